#include "poll/poller.h"

#include "base/mem.h"

#include <errno.h>
#include <stdatomic.h>

int
fnet_poller_init(fnet_poller *poller)
{
    int rc;

    *poller = (fnet_poller){.epfd = -1, .wakefd = -1, .count = 1};
    poller->capacity = 64;
    poller->slots = fnet_calloc(poller->capacity, sizeof(fnet_slot));
    if (poller->slots == NULL) {
        return -ENOMEM;
    }
    rc = poller->epfd = fnet_sys_epoll_create();
    if (rc < 0) {
        goto fail_epoll;
    }
    rc = poller->wakefd = fnet_sys_eventfd();
    if (rc < 0) {
        goto fail_eventfd;
    }
    /* Edge-triggered: each write is an edge of its own, so that the counter
     * need not be read back. */
    rc = fnet_sys_epoll_ctl(poller->epfd, EPOLL_CTL_ADD, poller->wakefd,
                            (uint32_t)EPOLLIN | EPOLLET, FNET_TAG_WAKE);
    if (rc < 0) {
        goto fail_ctl;
    }
    return 0;

fail_ctl:
    fnet_sys_close(poller->wakefd);
fail_eventfd:
    fnet_sys_close(poller->epfd);
fail_epoll:
    fnet_free(poller->slots);
    *poller = (fnet_poller){.epfd = -1, .wakefd = -1};
    return rc;
}

void
fnet_poller_fini(fnet_poller *poller)
{
    if (poller->epfd >= 0) {
        fnet_sys_close(poller->epfd);
        fnet_sys_close(poller->wakefd);
    }
    fnet_free(poller->slots);
    *poller = (fnet_poller){.epfd = -1, .wakefd = -1};
}

void
fnet_source_init(fnet_source *source, const struct fnet_source_ops *ops,
                 void *owner)
{
    *source = (fnet_source){.ops = ops, .owner = owner, .fd = -1};
    fnet_list_init(&source->ready);
    fnet_list_init(&source->dirty);
}

static int
grow(fnet_poller *poller)
{
    uint32_t capacity = poller->capacity * 2;
    fnet_slot *slots =
        fnet_realloc(poller->slots, capacity * sizeof(fnet_slot));
    if (slots == NULL) {
        return -ENOMEM;
    }
    for (uint32_t i = poller->capacity; i < capacity; i++) {
        slots[i] = (fnet_slot){0};
    }
    poller->slots = slots;
    poller->capacity = capacity;
    return 0;
}

static void
release_slot(fnet_poller *poller, uint32_t index)
{
    fnet_slot *slot = &poller->slots[index];
    slot->source = NULL;
    slot->generation++;
    slot->next_free = poller->free;
    poller->free = index;
    poller->attached--;
}

int
fnet_poller_attach(fnet_poller *poller, fnet_source *source, int fd,
                   uint32_t events)
{
    uint32_t index = poller->free;
    int rc;

    fnet_assert(!fnet_source_attached(source));
    if (poller->epfd < 0) {
        return -EBADF; /* after fini, or a fork that found no descriptor */
    }
    if (index != 0) {
        poller->free = poller->slots[index].next_free;
    }
    else {
        if (poller->count == poller->capacity && grow(poller) < 0) {
            return -ENOMEM;
        }
        index = poller->count++;
    }
    fnet_slot *slot = &poller->slots[index];
    slot->source = source;
    poller->attached++;
    uint64_t tag = (uint64_t)slot->generation << 32 | index;
    rc = events == 0 ? 0
                     : fnet_sys_epoll_ctl(poller->epfd, EPOLL_CTL_ADD, fd,
                                          events, tag);
    if (rc == -EEXIST) {
        /* Left behind by a duplicate of a descriptor closed earlier. */
        rc = fnet_sys_epoll_ctl(poller->epfd, EPOLL_CTL_MOD, fd, events, tag);
    }
    if (rc < 0) {
        release_slot(poller, index);
        return rc;
    }
    source->tag = tag;
    source->fd = fd;
    source->events = events;
    return 0;
}

int
fnet_poller_modify(fnet_poller *poller, fnet_source *source, uint32_t events)
{
    fnet_assert(fnet_source_attached(source));
    int rc = fnet_sys_epoll_ctl(poller->epfd, EPOLL_CTL_MOD, source->fd,
                                events, source->tag);
    if (rc == -ENOENT) {
        rc = fnet_sys_epoll_ctl(poller->epfd, EPOLL_CTL_ADD, source->fd,
                                events, source->tag);
    }
    if (rc == 0) {
        source->events = events;
    }
    return rc;
}

void
fnet_poller_detach(fnet_poller *poller, fnet_source *source, bool closing)
{
    if (!fnet_source_attached(source)) {
        return;
    }
    if (!closing) {
        /* The descriptor may have been closed by the program: no matter. */
        (void)fnet_sys_epoll_ctl(poller->epfd, EPOLL_CTL_DEL, source->fd, 0,
                                 0);
    }
    release_slot(poller, (uint32_t)source->tag);
    source->tag = 0;
    source->events = 0;
    fnet_list_remove(&source->ready);
    fnet_list_remove(&source->dirty);
}

void
fnet_poller_wake_any(fnet_poller *poller)
{
    /* seq_cst: pairs with the store and the re-check in fnet_shard_pass():
     * either this sees `asleep`, or the pass sees what was published. */
    if (atomic_load(&poller->asleep) != 0 &&
        atomic_exchange(&poller->asleep, 0) != 0) {
        uint64_t one = 1;
        (void)fnet_sys_write(poller->wakefd, &one, sizeof(one));
    }
}
