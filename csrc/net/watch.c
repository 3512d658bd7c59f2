#include "net/watch.h"

#include <stdatomic.h>

/* Events that nobody waited for before a kept registration is switched off:
 * with a reader that sleeps between its reads each costs a wake-up. */
#define QUIET_EVENTS 2

#define ALWAYS ((uint32_t)(EPOLLHUP | EPOLLERR))

static fnet_watch *
watch_of(fnet_source *source)
{
    return fnet_container_of(source, fnet_watch, source);
}

/* The directions that the events end the waiting for: an error or a hang-up
 * concerns both, as for select(). */
static uint32_t
directions(uint32_t events)
{
    uint32_t result = events & (uint32_t)(EPOLLIN | EPOLLOUT);
    if ((events & ALWAYS) != 0) {
        result |= (uint32_t)(EPOLLIN | EPOLLOUT);
    }
    if ((events & (uint32_t)EPOLLRDHUP) != 0) {
        result |= (uint32_t)EPOLLIN;
    }
    return result;
}

static bool
watch_event(fnet_shard *shard, fnet_source *source, uint32_t events)
{
    fnet_watch *watch = watch_of(source);
    uint32_t wanted = directions(events) & (watch->levels | watch->waits);

    if (wanted != 0) {
        watch->quiet = 0;
        watch->arrived |= wanted;
        if (fnet_shard_lent(shard) && (source->events & EPOLLET) == 0 &&
            fnet_poller_modify(&shard->poller, source, FNET_EVENTS_QUIET) ==
                0) {
            watch->muted = true;
        }
        return true;
    }
    if ((source->events & EPOLLET) == 0) {
        /* A level that was for a wait only, which is over. */
        (void)fnet_poller_modify(&shard->poller, source, watch->levels);
    }
    else if (watch->waits != 0) {
        /* The other direction's: what is waited for is still to come. */
    }
    else if (watch->quiet < QUIET_EVENTS) {
        watch->quiet++;
    }
    else if (source->events == FNET_EVENTS_EDGE) {
        if (fnet_poller_modify(&shard->poller, source, FNET_EVENTS_QUIET) ==
            0) {
            shard->stats.disarmed++;
        }
    }
    return false;
}

static bool
watch_ready(fnet_shard *shard, fnet_source *source, fnet_batch *batch)
{
    fnet_watch *watch = watch_of(source);
    uint32_t events = watch->arrived;

    watch->arrived = 0;
    watch->waits &= ~events;
    if (events != 0) {
        fnet_batch_push(batch, source, FNET_WHAT_WATCH, (int32_t)events);
    }
    return false;
}

static const fnet_source_ops watch_ops = {
    .kind = FNET_KIND_WATCH,
    .event = watch_event,
    .ready = watch_ready,
};

void
fnet_watch_init(fnet_watch *watch, fnet_shard *shard, void *owner)
{
    *watch = (fnet_watch){.shard = shard};
    fnet_source_init(&watch->source, &watch_ops, owner);
}

static int
set_locked(fnet_watch *watch, int fd, uint32_t levels, uint32_t waits)
{
    fnet_shard *shard = watch->shard;
    uint32_t events = levels != 0 ? levels | waits : FNET_EVENTS_EDGE;
    int rc = 0;

    if (!fnet_source_attached(&watch->source)) {
        if ((levels | waits) != 0) {
            rc =
                fnet_poller_attach(&shard->poller, &watch->source, fd, events);
        }
    }
    else if (levels == 0 && waits == 0) {
        /* Kept for the next wait, unless it would report levels. */
        if ((watch->source.events & EPOLLET) == 0 || watch->muted) {
            fnet_shard_detach_locked(shard, &watch->source, false);
        }
    }
    else if (watch->source.events != events ||
             (fnet_shard_away(shard) && (waits & ~watch->waits) != 0)) {
        /* The worker may have had the edge between the call that said EAGAIN
         * and now, and given the shard back since.  This brings it again if
         * the condition holds. */
        rc = fnet_poller_modify(&shard->poller, &watch->source, events);
    }
    if (rc == 0) {
        watch->levels = levels;
        watch->waits = waits;
        watch->arrived &= levels | waits;
        watch->muted = false;
    }
    return rc;
}

int
fnet_watch_set(fnet_watch *watch, int fd, uint32_t levels, uint32_t waits)
{
    fnet_shard_lock(watch->shard);
    int rc = set_locked(watch, fd, levels, waits);
    fnet_shard_unlock(watch->shard);
    return rc;
}

void
fnet_watch_detach(fnet_watch *watch)
{
    fnet_watch_forget(watch, false);
}

void
fnet_watch_forget(fnet_watch *watch, bool taken_over)
{
    fnet_shard_lock(watch->shard);
    fnet_shard_detach_locked(watch->shard, &watch->source, taken_over);
    watch->levels = watch->waits = watch->arrived = 0;
    watch->muted = false;
    fnet_shard_unlock(watch->shard);
}

void
fnet_watch_refresh(fnet_watch *watch)
{
    fnet_shard *shard = watch->shard;

    fnet_shard_lock(shard);
    if (fnet_source_attached(&watch->source) &&
        fnet_poller_modify(&shard->poller, &watch->source,
                           watch->source.events) < 0) {
        fnet_shard_detach_locked(shard, &watch->source, false);
        watch->levels = watch->waits = watch->arrived = 0;
        watch->muted = false;
    }
    fnet_shard_unlock(shard);
}

uint64_t
fnet_watch_sequence(fnet_watch *watch)
{
    fnet_shard *shard = watch->shard;
    uint64_t sequence = 0;

    fnet_shard_lock(shard);
    if (fnet_shard_away(shard)) {
        /* A worker that sleeps has nothing in its batch yet. */
        bool asleep = atomic_load_explicit(&shard->poller.asleep,
                                           memory_order_relaxed) != 0;
        sequence = shard->sequence - (asleep ? 1 : 0);
    }
    fnet_shard_unlock(shard);
    return sequence;
}

void
fnet_watch_taken(fnet_watch *watch)
{
    fnet_shard_lock(watch->shard);
    if (watch->muted) {
        watch->muted = false;
        if (fnet_source_attached(&watch->source)) {
            (void)fnet_poller_modify(&watch->shard->poller, &watch->source,
                                     watch->levels | watch->waits);
        }
    }
    fnet_shard_unlock(watch->shard);
}
