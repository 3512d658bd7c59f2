#include "poll/poller.h"

#include "world.h"

#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>

#define INPUT ((uint32_t)EPOLLIN | EPOLLET)

static int
new_eventfd(void)
{
    int fd = fnet_sys_eventfd();
    CHECK(fd >= 0);
    return fd;
}

static void
ring(int eventfd)
{
    uint64_t one = 1;
    CHECK(fnet_sys_write(eventfd, &one, sizeof(one)) == sizeof(one));
}

/* What has come: how many events. */
static int
harvest(const fnet_poller *poller, struct epoll_event *events, int max)
{
    return fnet_sys_epoll_wait(poller->epfd, events, max, 0);
}

/* Exactly one event has come, of this source. */
static bool
only_event_of(const fnet_poller *poller, const fnet_source *source)
{
    struct epoll_event events[4];
    int n = harvest(poller, events, 4);
    return n == 1 && fnet_poller_lookup(poller, events[0].data.u64) == source;
}

static bool
no_event(const fnet_poller *poller)
{
    struct epoll_event event;
    return harvest(poller, &event, 1) == 0;
}

static void
attach_and_detach(void)
{
    fnet_poller poller;
    fnet_source source;
    int owner, fd = new_eventfd();
    CHECK(fnet_poller_init(&poller) == 0);
    CHECK(no_event(&poller));
    fnet_source_init(&source, NULL, &owner);
    CHECK(!fnet_source_attached(&source));
    CHECK(source.owner == &owner && source.ops == NULL && source.fd == -1);
    CHECK(fnet_list_empty(&source.ready) && fnet_list_empty(&source.dirty));
    CHECK(fnet_poller_attach(&poller, &source, fd, INPUT) == 0);
    CHECK(fnet_source_attached(&source) && poller.attached == 1);
    CHECK(source.fd == fd && source.events == INPUT);
    CHECK(fnet_poller_lookup(&poller, source.tag) == &source);
    CHECK_PANICS((void)!fnet_poller_attach(&poller, &source, fd, INPUT));
    ring(fd);
    CHECK(only_event_of(&poller, &source));
    CHECK(no_event(&poller)); /* an edge comes once */
    ring(fd);
    fnet_poller_detach(&poller, &source, false);
    CHECK(!fnet_source_attached(&source) && poller.attached == 0);
    CHECK(source.events == 0 && no_event(&poller));
    fnet_poller_detach(&poller, &source, false); /* harmless */
    CHECK(poller.attached == 0);
    /* What is there already is told when the source comes back. */
    CHECK(fnet_poller_attach(&poller, &source, fd, INPUT) == 0);
    CHECK(only_event_of(&poller, &source));
    fnet_poller_detach(&poller, &source, true);
    close(fd);
    CHECK(no_event(&poller));
    fnet_poller_fini(&poller);
}

static void
detached_from_the_lists_too(void)
{
    fnet_poller poller;
    fnet_source source;
    fnet_list ready, dirty;
    int fd = new_eventfd();
    fnet_list_init(&ready);
    fnet_list_init(&dirty);
    CHECK(fnet_poller_init(&poller) == 0);
    fnet_source_init(&source, NULL, NULL);
    CHECK(fnet_poller_attach(&poller, &source, fd, INPUT) == 0);
    fnet_list_push(&ready, &source.ready);
    fnet_list_push(&dirty, &source.dirty);
    fnet_poller_detach(&poller, &source, false);
    CHECK(fnet_list_empty(&ready) && fnet_list_empty(&dirty));
    close(fd);
    fnet_poller_fini(&poller);
}

/* An event that was taken from the kernel before its source went finds
 * neither that one nor the next one in its slot. */
static void
a_late_event_reaches_no_stranger(void)
{
    enum { TURNS = 1000 };
    fnet_poller poller;
    fnet_source sources[2];
    struct epoll_event event;
    uint64_t last = 0;
    int fds[2] = {new_eventfd(), new_eventfd()};
    CHECK(fnet_poller_init(&poller) == 0);
    for (int i = 0; i < TURNS; i++) {
        fnet_source *source = &sources[i % 2];
        fnet_source_init(source, NULL, NULL);
        CHECK(fnet_poller_attach(&poller, source, fds[i % 2], INPUT) == 0);
        /* The slot is used again, the tag is not. */
        CHECK((uint32_t)source->tag == 1 && source->tag != last);
        CHECK(fnet_poller_lookup(&poller, last) == NULL);
        ring(fds[i % 2]);
        CHECK(harvest(&poller, &event, 1) == 1);
        CHECK(fnet_poller_lookup(&poller, event.data.u64) == source);
        last = source->tag;
        fnet_poller_detach(&poller, source, false);
        CHECK(fnet_poller_lookup(&poller, event.data.u64) == NULL);
    }
    CHECK(poller.count == 2); /* the wake-up's slot and this one */
    CHECK(fnet_poller_lookup(&poller, FNET_TAG_WAKE) == NULL);
    CHECK(fnet_poller_lookup(&poller, UINT64_MAX) == NULL);
    CHECK(fnet_poller_lookup(&poller, 2) == NULL); /* never used */
    close(fds[0]);
    close(fds[1]);
    fnet_poller_fini(&poller);
}

static void
many_sources(void)
{
    enum { MANY = 200 };
    static fnet_source sources[MANY];
    static struct epoll_event events[MANY + 1];
    bool seen[MANY] = {false};
    int fds[MANY];
    fnet_poller poller;
    CHECK(fnet_poller_init(&poller) == 0);
    for (int i = 0; i < MANY; i++) {
        fds[i] = new_eventfd();
        fnet_source_init(&sources[i], NULL, NULL);
        CHECK(fnet_poller_attach(&poller, &sources[i], fds[i], INPUT) == 0);
        ring(fds[i]);
    }
    CHECK(poller.attached == MANY && poller.count == MANY + 1);
    /* Each tag names its source, after the growth as before it. */
    for (int i = 0; i < MANY; i++) {
        CHECK(fnet_poller_lookup(&poller, sources[i].tag) == &sources[i]);
    }
    CHECK(harvest(&poller, events, MANY + 1) == MANY);
    for (int i = 0; i < MANY; i++) {
        fnet_source *source = fnet_poller_lookup(&poller, events[i].data.u64);
        CHECK(source != NULL && !seen[source - sources]);
        seen[source - sources] = true;
    }
    /* Every second one goes; the slots are used again before new ones. */
    for (int i = 0; i < MANY; i += 2) {
        fnet_poller_detach(&poller, &sources[i], false);
    }
    CHECK(poller.attached == MANY / 2);
    for (int i = 0; i < MANY; i += 2) {
        CHECK(fnet_poller_attach(&poller, &sources[i], fds[i], INPUT) == 0);
    }
    CHECK(poller.attached == MANY && poller.count == MANY + 1);
    for (int i = 0; i < MANY; i++) {
        CHECK(fnet_poller_lookup(&poller, sources[i].tag) == &sources[i]);
        fnet_poller_detach(&poller, &sources[i], true);
        close(fds[i]);
    }
    CHECK(poller.attached == 0);
    fnet_poller_fini(&poller);
}

static void
growth_without_memory(void)
{
    enum { FIRST = 63 }; /* of 64 slots one is the wake-up's */
    fnet_poller poller;
    fnet_source sources[FIRST + 1];
    int fd = new_eventfd();
    int fds[FIRST];
    CHECK(fnet_poller_init(&poller) == 0);
    for (int i = 0; i < FIRST; i++) {
        fds[i] = new_eventfd();
        fnet_source_init(&sources[i], NULL, NULL);
        CHECK(fnet_poller_attach(&poller, &sources[i], fds[i], INPUT) == 0);
    }
    fnet_source *last = &sources[FIRST];
    fnet_source_init(last, NULL, NULL);
    fnet_mem_fail_after(0);
    CHECK(fnet_poller_attach(&poller, last, fd, INPUT) == -ENOMEM);
    CHECK(fnet_mem_failed() && !fnet_source_attached(last));
    CHECK(poller.attached == FIRST);
    ring(fd);
    CHECK(no_event(&poller)); /* it is not in the set */
    CHECK(fnet_poller_attach(&poller, last, fd, INPUT) == 0);
    CHECK(only_event_of(&poller, last));
    fnet_poller_detach(&poller, last, false);
    for (int i = 0; i < FIRST; i++) {
        CHECK(fnet_poller_lookup(&poller, sources[i].tag) == &sources[i]);
        fnet_poller_detach(&poller, &sources[i], false);
        close(fds[i]);
    }
    close(fd);
    fnet_poller_fini(&poller);
}

static void
init_without_memory_or_descriptors(void)
{
    fnet_poller poller;
    fnet_source source;
    struct rlimit before;
    int fds = world_count_fds();
    fnet_source_init(&source, NULL, NULL);
    fnet_mem_fail_after(0);
    CHECK(fnet_poller_init(&poller) == -ENOMEM);
    CHECK(poller.epfd == -1 && world_count_fds() == fds);
    CHECK(getrlimit(RLIMIT_NOFILE, &before) == 0);
    int next = new_eventfd(); /* the lowest number that is free */
    close(next);
    for (int room = 0; room < 2; room++) {
        /* Bounds the numbers, so it matters that there are no gaps. */
        struct rlimit tight = before;
        tight.rlim_cur = (rlim_t)(next + room);
        CHECK(setrlimit(RLIMIT_NOFILE, &tight) == 0);
        CHECK(fnet_poller_init(&poller) == -EMFILE);
        CHECK(setrlimit(RLIMIT_NOFILE, &before) == 0);
        CHECK(poller.epfd == -1 && world_count_fds() == fds);
        CHECK(fnet_poller_attach(&poller, &source, 0, INPUT) == -EBADF);
        fnet_poller_fini(&poller); /* harmless */
    }
    CHECK(world_count_fds() == fds);
}

static void
what_cannot_be_polled(void)
{
    fnet_poller poller;
    fnet_source source;
    int file = memfd_create("regular", MFD_CLOEXEC);
    CHECK(file >= 0);
    CHECK(fnet_poller_init(&poller) == 0);
    fnet_source_init(&source, NULL, NULL);
    CHECK(fnet_poller_attach(&poller, &source, file, INPUT) == -EPERM);
    CHECK(!fnet_source_attached(&source) && poller.attached == 0);
    close(file);
    CHECK(fnet_poller_attach(&poller, &source, file, INPUT) == -EBADF);
    CHECK(fnet_poller_attach(&poller, &source, -1, INPUT) == -EBADF);
    CHECK(!fnet_source_attached(&source) && poller.attached == 0);
    /* The slot that they tried was given back each time. */
    int fd = new_eventfd();
    CHECK(fnet_poller_attach(&poller, &source, fd, INPUT) == 0);
    CHECK(poller.count == 2);
    fnet_poller_detach(&poller, &source, false);
    close(fd);
    fnet_poller_fini(&poller);
}

/* A duplicate kept the entry of a closed descriptor alive, and both the number
 * and what it stands for came back. */
static void
left_behind_by_a_duplicate(void)
{
    fnet_poller poller;
    fnet_source first, second;
    int fd = new_eventfd();
    int copy = dup(fd);
    CHECK(copy >= 0 && fnet_poller_init(&poller) == 0);
    fnet_source_init(&first, NULL, NULL);
    fnet_source_init(&second, NULL, NULL);
    CHECK(fnet_poller_attach(&poller, &first, fd, INPUT) == 0);
    uint64_t old = first.tag;
    fnet_poller_detach(&poller, &first, true);
    close(fd);
    ring(copy);
    struct epoll_event event;
    CHECK(harvest(&poller, &event, 1) == 1 && event.data.u64 == old);
    CHECK(fnet_poller_lookup(&poller, event.data.u64) == NULL); /* dropped */
    CHECK(dup2(copy, fd) == fd);
    CHECK(fnet_poller_attach(&poller, &second, fd, INPUT) == 0);
    CHECK(second.tag != old);
    CHECK(only_event_of(&poller, &second));
    fnet_poller_detach(&poller, &second, false);
    ring(copy);
    CHECK(no_event(&poller));
    close(copy);
    close(fd);
    fnet_poller_fini(&poller);
}

/* The program closed the descriptor and opened another one, which got the
 * same number. */
static void
closed_behind_our_back(void)
{
    fnet_poller poller;
    fnet_source source;
    int fd = new_eventfd();
    int other = new_eventfd();
    CHECK(fnet_poller_init(&poller) == 0);
    fnet_source_init(&source, NULL, NULL);
    CHECK(fnet_poller_attach(&poller, &source, fd, INPUT) == 0);
    uint64_t tag = source.tag;
    CHECK(dup2(other, fd) == fd);
    ring(other);
    CHECK(no_event(&poller)); /* nobody polls the new one */
    CHECK(fnet_poller_modify(&poller, &source, INPUT | EPOLLRDHUP) == 0);
    CHECK(source.events == (INPUT | EPOLLRDHUP) && source.tag == tag);
    CHECK(only_event_of(&poller, &source));
    close(fd);
    CHECK(fnet_poller_modify(&poller, &source, INPUT) == -EBADF);
    CHECK(source.events == (INPUT | EPOLLRDHUP)); /* as it was */
    fnet_poller_detach(&poller, &source, false);  /* no matter */
    CHECK(!fnet_source_attached(&source) && poller.attached == 0);
    close(other);
    fnet_poller_fini(&poller);
}

static void
modify(void)
{
    fnet_poller poller;
    fnet_source source;
    struct epoll_event event;
    int fds[2];
    world_pair(fds);
    CHECK(fnet_poller_init(&poller) == 0);
    fnet_source_init(&source, NULL, NULL);
    CHECK(fnet_poller_attach(&poller, &source, fds[0], FNET_EVENTS_EDGE) == 0);
    CHECK(harvest(&poller, &event, 1) == 1 && event.events == EPOLLOUT);
    CHECK(fnet_poller_modify(&poller, &source, FNET_EVENTS_QUIET) == 0);
    CHECK(world_send(fds[1], 0, 1) == 1);
    CHECK(no_event(&poller));
    CHECK(fnet_poller_modify(&poller, &source, FNET_EVENTS_EDGE) == 0);
    CHECK(harvest(&poller, &event, 1) == 1);
    CHECK(event.events == (EPOLLIN | EPOLLOUT));
    CHECK(fnet_poller_modify(&poller, &source, FNET_EVENTS_QUIET) == 0);
    /* What cannot be switched off. */
    close(fds[1]);
    CHECK(harvest(&poller, &event, 1) == 1);
    CHECK((event.events & EPOLLHUP) != 0 && (event.events & EPOLLIN) == 0);
    fnet_poller_detach(&poller, &source, false);
    CHECK_PANICS(fnet_poller_modify(&poller, &source, INPUT));
    close(fds[0]);
    fnet_poller_fini(&poller);
}

/* How often the wake-up was written to since the last look. */
static uint64_t
writes_to_wakefd(const fnet_poller *poller)
{
    uint64_t count = 0;
    ssize_t rc = fnet_sys_read(poller->wakefd, &count, sizeof(count));
    return rc == sizeof(count) ? count : 0;
}

static void
one_write_per_sleep(void)
{
    fnet_poller poller;
    struct epoll_event event;
    CHECK(fnet_poller_init(&poller) == 0);
    fnet_poller_wake_any(&poller); /* awake: costs nothing */
    CHECK(writes_to_wakefd(&poller) == 0 && no_event(&poller));
    for (int i = 0; i < 3; i++) {
        atomic_store(&poller.asleep, 1);
        for (int k = 0; k < 10; k++) {
            fnet_poller_wake_any(&poller);
        }
        CHECK(atomic_load(&poller.asleep) == 0);
        CHECK(harvest(&poller, &event, 1) == 1);
        CHECK(event.data.u64 == FNET_TAG_WAKE);
        CHECK(no_event(&poller));
    }
    /* Each was an edge of its own, though nobody has read the counter. */
    CHECK(writes_to_wakefd(&poller) == 3);
    fnet_poller_fini(&poller);
}

enum { WAKERS = 4, NEWS = 500 };

typedef struct wakers {
    fnet_poller poller;
    atomic_int news;
} wakers;

static void *
bring_news(void *arg)
{
    wakers *all = arg;
    for (int i = 0; i < NEWS; i++) {
        atomic_fetch_add(&all->news, 1);
        fnet_poller_wake_any(&all->poller);
        if (i % 32 == 0) {
            usleep(500); /* the owner falls asleep in between */
        }
    }
    return NULL;
}

static void
wakes_from_many_threads(void)
{
    wakers all = {.news = 0};
    pthread_t threads[WAKERS];
    uint64_t announced = 0;
    CHECK(fnet_poller_init(&all.poller) == 0);
    for (int i = 0; i < WAKERS; i++) {
        CHECK(pthread_create(&threads[i], NULL, bring_news, &all) == 0);
    }
    int seen = 0;
    while (seen < WAKERS * NEWS) {
        struct epoll_event event;
        atomic_store(&all.poller.asleep, 1);
        announced++;
        if (atomic_load(&all.news) == seen) {
            int n = fnet_sys_epoll_wait(all.poller.epfd, &event, 1,
                                        WORLD_PATIENCE);
            CHECK(n == 1); /* or a wake-up was lost */
            if (n != 1) {
                break;
            }
        }
        atomic_store(&all.poller.asleep, 0);
        seen = atomic_load(&all.news);
    }
    for (int i = 0; i < WAKERS; i++) {
        pthread_join(threads[i], NULL);
    }
    CHECK(atomic_load(&all.news) == WAKERS * NEWS);
    CHECK(writes_to_wakefd(&all.poller) <= announced);
    fnet_poller_fini(&all.poller);
}

int
main(void)
{
    RUN(attach_and_detach);
    RUN(detached_from_the_lists_too);
    RUN(a_late_event_reaches_no_stranger);
    RUN(many_sources);
    RUN(growth_without_memory);
    RUN(init_without_memory_or_descriptors);
    RUN(what_cannot_be_polled);
    RUN(left_behind_by_a_duplicate);
    RUN(closed_behind_our_back);
    RUN(modify);
    RUN(one_write_per_sleep);
    RUN(wakes_from_many_threads);
    return test_report();
}
