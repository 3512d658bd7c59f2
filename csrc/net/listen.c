#include "net/listen.h"

#include <errno.h>
#include <string.h>

static fnet_listener *
listener_of(fnet_source *source)
{
    return fnet_container_of(source, fnet_listener, source);
}

static bool
listener_event(fnet_shard *shard, fnet_source *source, uint32_t events)
{
    fnet_listener *listener = listener_of(source);

    listener->pending = true;
    return !listener->paused;
}

/* Errors of the connection that was to be accepted, not of the listener: it
 * is gone, and the next one is tried (accept(2)). */
static bool
is_peers_fault(int error)
{
    switch (-error) {
    case ECONNABORTED:
    case ENETDOWN:
    case EPROTO:
    case ENOPROTOOPT:
    case EHOSTDOWN:
    case ENONET:
    case EHOSTUNREACH:
    case EOPNOTSUPP:
    case ENETUNREACH:
        return true;
    default:
        return false;
    }
}

/* Accepts one.  False: nothing more to accept now. */
static bool
accept_one(fnet_listener *listener, fnet_batch *batch)
{
    struct sockaddr_storage addr;
    socklen_t len = sizeof(addr);

    bool left = fnet_shard_leave(listener->shard);
    int fd =
        fnet_sys_accept(listener->source.fd, (struct sockaddr *)&addr, &len);
    fnet_shard_enter(listener->shard, left);
    if (fd == -EAGAIN) {
        listener->pending = false;
        return false;
    }
    if (fd < 0 && is_peers_fault(fd)) {
        return true;
    }
    if (fd < 0) {
        listener->paused = true;
        fnet_batch_push(batch, &listener->source, FNET_WHAT_ERROR, fd);
        return false;
    }
    listener->shard->stats.accepts++;
    size_t room;
    char *place =
        fnet_batch_reserve(batch, listener->shard->read_cache, len + 1, &room);
    fnet_completion *item =
        fnet_batch_push(batch, &listener->source, FNET_WHAT_ACCEPTED, fd);
    if (place != NULL && len > 0) {
        memcpy(place, &addr, len);
        fnet_batch_commit(batch, len);
        item->data = place;
        item->len = len;
    }
    return true;
}

static bool
listener_ready(fnet_shard *shard, fnet_source *source, fnet_batch *batch)
{
    fnet_listener *listener = listener_of(source);
    int most = listener->backlog < FNET_ACCEPT_MAX ? listener->backlog
                                                   : FNET_ACCEPT_MAX;

    for (int i = 0; i < most && !fnet_batch_full(batch); i++) {
        /* Who wants to detach it waits for one call, not for all. */
        if (listener->paused || shard->hurry || !accept_one(listener, batch)) {
            break;
        }
    }
    return listener->pending && !listener->paused;
}

static const fnet_source_ops listener_ops = {
    .kind = FNET_KIND_LISTENER,
    .event = listener_event,
    .ready = listener_ready,
};

int
fnet_listener_attach(fnet_listener *listener, fnet_shard *shard, int fd,
                     int backlog, void *owner)
{
    *listener =
        (fnet_listener){.shard = shard, .backlog = backlog > 0 ? backlog : 1};
    fnet_source_init(&listener->source, &listener_ops, owner);
    /* EPOLLEXCLUSIVE is not asked for: with processes that share a listener
     * it would leave edges behind. */
    fnet_shard_lock(shard);
    int rc = fnet_poller_attach(&shard->poller, &listener->source, fd,
                                (uint32_t)EPOLLIN | EPOLLET);
    fnet_shard_unlock(shard);
    return rc;
}

void
fnet_listener_detach(fnet_listener *listener)
{
    fnet_shard_lock(listener->shard);
    fnet_shard_detach_locked(listener->shard, &listener->source, false);
    fnet_shard_unlock(listener->shard);
}

void
fnet_listener_resume(fnet_listener *listener)
{
    fnet_shard_lock(listener->shard);
    listener->paused = false;
    if (fnet_source_attached(&listener->source)) {
        listener->pending = true;
        fnet_shard_make_ready(listener->shard, &listener->source);
    }
    fnet_shard_unlock(listener->shard);
}
