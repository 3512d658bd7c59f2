/* poller: an epoll set, the descriptors in it, and a wake-up from any thread.
 *
 * A source is a descriptor somebody polls for.  It lives in memory of its
 * owner and may be freed as soon as it is detached: events carry a tag (slot
 * and generation) and one whose generation has passed is dropped, so that a
 * late event never reaches a stranger.
 *
 * Owner's thread only, except fnet_poller_wake_any(). */
#ifndef FNET_POLL_POLLER_H
#define FNET_POLL_POLLER_H

#include "base/base.h"
#include "base/list.h"
#include "base/sys.h"

/* What every descriptor of the core is registered for, once: edge-triggered,
 * both directions.  EPOLLPRI tells of an urgent mark, behind which a short
 * read does not mean that the socket is drained. */
#define FNET_EVENTS_EDGE                                                      \
    ((uint32_t)(EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLPRI) | EPOLLET)
/* The same while nobody wants input: what cannot be switched off remains. */
#define FNET_EVENTS_QUIET ((uint32_t)EPOLLET)

struct fnet_source_ops; /* shard.h */

typedef struct fnet_source {
    const struct fnet_source_ops *ops;
    void *owner;     /* for the layer above; the core never looks at it */
    uint64_t tag;    /* generation << 32 | slot; 0: not attached */
    fnet_list ready; /* in the shard's list while the pass has work with it */
    fnet_list dirty; /* in the shard's list while it has output */
    int fd;
    uint32_t events;   /* what it is registered for */
    uint64_t sequence; /* of the last batch with a completion of it */
} fnet_source;

typedef struct fnet_slot {
    fnet_source *source; /* NULL: free */
    uint32_t generation;
    uint32_t next_free;
} fnet_slot;

typedef struct fnet_poller {
    int epfd;
    int wakefd;
    fnet_slot *slots;
    uint32_t count, capacity; /* slots ever used, slots there are */
    uint32_t free;            /* head of the free list, 0: none */
    uint32_t attached;
    _Atomic(int) asleep; /* 1: whoever has news must write to wakefd */
} fnet_poller;

FNET_MUST_CHECK int fnet_poller_init(fnet_poller *poller);
void fnet_poller_fini(fnet_poller *poller);

void fnet_source_init(fnet_source *source, const struct fnet_source_ops *ops,
                      void *owner);

static inline bool
fnet_source_attached(const fnet_source *source)
{
    return source->tag != 0;
}

/* Registers `fd`: 0, -ENOMEM, or what epoll_ctl says (-EPERM: a regular
 * file).  Without events the source gets its tag only: for what epoll does not
 * take; then it is not modified, and detached as if closing. */
FNET_MUST_CHECK int fnet_poller_attach(fnet_poller *poller,
                                       fnet_source *source, int fd,
                                       uint32_t events);
/* Changes what the source is registered for.  A descriptor that was closed
 * behind our back and opened anew is registered again. */
int fnet_poller_modify(fnet_poller *poller, fnet_source *source,
                       uint32_t events);
/* Forgets the source: no event of it is reported from now on.  `closing`: the
 * descriptor is closed next and nobody has a duplicate, which takes it out of
 * the epoll set without a call of ours. */
void fnet_poller_detach(fnet_poller *poller, fnet_source *source,
                        bool closing);

/* The source that the tag was given to, NULL when that one is gone. */
static inline fnet_source *
fnet_poller_lookup(const fnet_poller *poller, uint64_t tag)
{
    uint32_t slot = (uint32_t)tag;
    if (slot >= poller->count ||
        poller->slots[slot].generation != (uint32_t)(tag >> 32)) {
        return NULL;
    }
    return poller->slots[slot].source;
}

/* Slot 0 is the wake-up's. */
#define FNET_TAG_WAKE UINT64_C(0)

/* Makes the owner's wait return, if it is asleep: one write per sleep however
 * many call.  Any thread. */
void fnet_poller_wake_any(fnet_poller *poller);

#endif
