/* shard: an epoll set with its connections, its memory and its I/O pass.
 *
 * The pass is the one verb: flush what was written, wait, read what came, and
 * leave completions.  It is C without Python, and is run by one thread at a
 * time, which owns the shard while it is in it: today always the loop's own,
 * with the GIL released.  Between passes the loop's thread calls the
 * functions of net/, which work on the same state.
 *
 *     loop's thread      | pass: flush, wait, read | callbacks write() ... |
 *     s->phase           | FNET_PHASE_PASS         | FNET_PHASE_TURN       |
 *     the prompter       | keeps off               | may flush (output lock)|
 *
 * Output that a callback leaves is sent by the next pass.  When a turn takes
 * too long for that, the prompter (prompter.h) sends it from its own thread;
 * so pending output has a lock, which the pass needs only to change phase. */
#ifndef FNET_POLL_SHARD_H
#define FNET_POLL_SHARD_H

#include "base/base.h"
#include "base/list.h"
#include "base/lock.h"
#include "cache/buf.h"
#include "cache/cache.h"
#include "poll/batch.h"
#include "poll/poller.h"

typedef struct fnet_shard fnet_shard;

/* What a kind of source does.  All are called by the thread in the pass;
 * flush also by the prompter, and by the loop's thread between passes, with
 * the output lock held. */
typedef struct fnet_source_ops {
    int kind; /* for the layer above: tells owners apart */
    /* Notes the events; true if they concern somebody, and `ready` is to be
     * called in this pass. */
    bool (*event)(fnet_shard *shard, fnet_source *source, uint32_t events);
    /* Receives and posts completions (the batch has room for one); true if
     * there is more to do in the next pass. */
    bool (*ready)(fnet_shard *shard, fnet_source *source, fnet_batch *batch);
    /* Sends pending output as far as it goes; NULL: has none. */
    void (*flush)(fnet_shard *shard, fnet_source *source);
} fnet_source_ops;

/* A place for large reads to land in, offered by the layer above so that
 * they need not be copied.  Its size follows what large reads have brought:
 * memory that is mostly not filled costs more than a copy. */
typedef struct fnet_landing {
    void *owner; /* NULL: none offered */
    char *data;
    size_t len;
} fnet_landing;

#define FNET_LANDINGS 4
#define FNET_LANDING_MAX ((size_t)256 * 1024)

typedef struct fnet_shard_stats {
    uint64_t passes;
    uint64_t polls;    /* calls of epoll_wait */
    uint64_t events;   /* what they returned */
    uint64_t quiet;    /* returns with nothing for anybody, polled again */
    uint64_t disarmed; /* inputs switched off because nobody wanted them */
    uint64_t reads;    /* receive calls */
    uint64_t bytes_read;
    uint64_t writes; /* write() calls of the layer above */
    uint64_t sends;  /* send calls they took */
    uint64_t bytes_sent;
    uint64_t prompted; /* flushes by the prompter */
    uint64_t accepts;
} fnet_shard_stats;

enum fnet_phase { FNET_PHASE_TURN, FNET_PHASE_PASS };

struct fnet_shard {
    /* constant after init */
    fnet_cache *cache; /* in a turn: under the output lock */
    bool defer;        /* false: every write() is sent at once */

    /* owner */
    fnet_poller poller;
    fnet_list ready; /* sources with work for the pass, first come first */
    fnet_landing landings[FNET_LANDINGS];
    unsigned landings_used; /* since the layer above refilled them */
    size_t landing_size;    /* what those offered next should have */
    bool want_landings;     /* a large reader found none */
    int64_t now;            /* when the last pass was over */
    fnet_shard_stats stats;

    /* guarded by output */
    fnet_lock output;
    fnet_list dirty; /* sources with output for the next pass */
    fnet_chain spent;
    enum fnet_phase phase;
    uint64_t turn;      /* counts turns */
    int64_t turn_began; /* when the pass before it was over */
    uint64_t deferrals; /* counts turns in which output was left */
    bool eager;         /* this turn: a first write() is sent at once */
    bool late;          /* this turn takes long: every write() is */
    bool prompter_up;   /* the prompter is awake and watches */
    void (*wake_prompter)(void *prompter);
    void *prompter;
};

FNET_MUST_CHECK int fnet_shard_init(fnet_shard *shard, fnet_depot *depot);
/* Every source is detached, every spent segment taken. */
void fnet_shard_fini(fnet_shard *shard);

/* In a forked child: another thread of the parent may have held the lock. */
void fnet_shard_reset_lock(fnet_shard *shard);

#define FNET_NO_WAIT INT64_C(0)
#define FNET_FOREVER INT64_MAX

/* Announces that the pass that follows may sleep: from here on news must be
 * told by fnet_poller_wake_any().  Whatever the caller looks at to decide
 * that there is no work, it looks at (again) after this. */
void fnet_shard_prepare_sleep(fnet_shard *shard);

/* One I/O pass into the (reset) batch; waits until `deadline` on the
 * monotonic clock, FNET_NO_WAIT or FNET_FOREVER.  0, or -EINTR when a signal
 * came.  Owner. */
int fnet_shard_pass(fnet_shard *shard, fnet_batch *batch, int64_t deadline);

/* The loop's thread tells, once the pass is over, whether the turn that
 * begins has so little to do that a first write() may go at once. */
void fnet_shard_begin_turn(fnet_shard *shard, bool eager);
/* Sends all pending output.  Between passes. */
void fnet_shard_flush(fnet_shard *shard);

/* Puts the source on the list for the next pass. */
static inline void
fnet_shard_make_ready(fnet_shard *shard, fnet_source *source)
{
    if (fnet_list_empty(&source->ready)) {
        fnet_list_push(&shard->ready, &source->ready);
    }
}

/* Leaves the source's output to the next pass. */
void fnet_shard_defer_locked(fnet_shard *shard, fnet_source *source);
/* fnet_shard_flush for whoever has the output lock. */
void fnet_shard_flush_locked(fnet_shard *shard);

/* Takes a landing place out of those offered. */
fnet_landing fnet_shard_take_landing(fnet_shard *shard);
/* Tells how much of a landing place a read has filled. */
void fnet_shard_note_landing(fnet_shard *shard, size_t got, size_t len);
/* Puts back one that was not used. */
void fnet_shard_return_landing(fnet_shard *shard, fnet_landing landing);

#endif
