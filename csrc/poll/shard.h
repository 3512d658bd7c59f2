/* shard: an epoll set with its connections, its memory and its I/O pass.
 *
 * The pass is the one verb: flush what was written, wait, read what came, and
 * leave completions.  It is C without Python.  Who runs it is a token, the
 * phase:
 *
 *     FNET_PHASE_TURN  nobody: the loop's thread runs callbacks
 *     FNET_PHASE_PASS  the loop's thread, with the GIL released
 *     FNET_PHASE_LENT  a worker (worker.h), again and again
 *
 * While the shard is the loop's, its thread needs no lock for what it alone
 * touches.  Output that a callback leaves is sent by the next pass; when a
 * turn takes too long for that, the prompter (prompter.h) sends it from its
 * own thread.  So pending output has a lock, which a pass needs only to change
 * phase: in it the prompter keeps off.
 *
 * While it is lent, everything of the shard and of its sources is guarded by
 * that lock, and whoever makes a system call for a source gives it up for the
 * call (fnet_shard_leave, fnet_shard_enter).  `busy` names the source
 * meanwhile, and detaching it waits until it is not: when that is done, no
 * thread uses its descriptor or its memory.  The loop's thread changes what
 * it likes under the lock, and wakes the worker if that sleeps. */
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
     * called in this pass.  Like the two below it may leave the shard for a
     * system call, and finds its source attached afterwards. */
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

/* Passes of a worker that may wait for the loop; a connection has something
 * in one of them at most. */
#define FNET_BATCHES 4

/* Those that are offered; there is a place for one more, as one may be out
 * with a worker when its place is filled again. */
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

enum fnet_phase { FNET_PHASE_TURN, FNET_PHASE_PASS, FNET_PHASE_LENT };

struct fnet_shard {
    /* constant after init */
    fnet_cache *cache;      /* of output, and guarded with it */
    fnet_cache *read_cache; /* of batches; used by who runs the pass */
    bool defer;             /* false: every write() is sent at once */

    /* owner; while lent: output.  Slots of the poller are the loop's thread's
     * to change always, and so its to look at without the lock. */
    fnet_poller poller;
    fnet_list ready; /* sources with work for the pass, first come first */
    fnet_landing landings[FNET_LANDINGS + 1];
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

    /* guarded by output: lent */
    fnet_source *busy; /* whose op has left the shard */
    bool flushing;     /* a worker's pass sends what was dirty */
    bool busy_awaited;
    bool hurry;        /* who waits for the busy source does so to detach it */
    fnet_cond idle;    /* nobody is busy any more */
    fnet_list gated;   /* with work, but their last batch is not back */
    fnet_list batches; /* free ones */
    unsigned posted;   /* batches that the loop has not returned */
    uint64_t sequence; /* of the last batch that was begun */
    uint64_t returned; /* of the last one that came back */
    bool recall;       /* the worker is asked for the shard; until the loop
                          has seen that it is back */
    bool stop;         /* it is to end, or has ended */
    bool trim;         /* likewise: to give its free memory back */
    bool age;          /* likewise, once it comes by: fnet_cache_age() */
    bool starved;      /* the worker sleeps without a batch */
    bool in_vain;      /* its last pass had no memory to read into */
};

FNET_MUST_CHECK int fnet_shard_init(fnet_shard *shard, fnet_depot *depot);
/* Every source is detached, every spent segment taken. */
void fnet_shard_fini(fnet_shard *shard);

/* In a forked child: another thread of the parent may have held the lock. */
void fnet_shard_reset_lock(fnet_shard *shard);
/* Likewise, where that thread may have been in the middle of a pass: what is
 * on lists may be on the stack of a thread that is no more.  The lists are
 * empty afterwards; segments on their way to `spent` are lost. */
void fnet_shard_forget_pass(fnet_shard *shard);

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
/* Sends all pending output, as far as the sockets take it; while the shard is
 * lent, waits until its worker has, unless that is being stopped.  Does
 * nothing while another thread is in its pass (one that forks calls it). */
void fnet_shard_flush(fnet_shard *shard);

/* -- lent ----------------------------------------------------------------- */

static inline bool
fnet_shard_lent(const fnet_shard *shard)
{
    return shard->phase == FNET_PHASE_LENT;
}

/* True while a worker has the shard, and until the loop, between two turns,
 * has found it given back: in the present turn a worker may have taken edges
 * that nobody waited for yet.  The loop's thread, with the lock. */
static inline bool
fnet_shard_away(const fnet_shard *shard)
{
    return fnet_shard_lent(shard) || shard->recall;
}

/* Around a system call in an op of a source; `left` is what the first one
 * has answered. */
static inline bool
fnet_shard_leave(fnet_shard *shard)
{
    bool lent = FNET_UNLIKELY(fnet_shard_lent(shard));

    if (lent) {
        fnet_lock_release(&shard->output);
    }
    return lent;
}

static inline void
fnet_shard_enter(fnet_shard *shard, bool left)
{
    if (FNET_UNLIKELY(left)) {
        fnet_lock_acquire(&shard->output);
    }
}

/* For the loop's thread: takes the lock, and releases it, waking the worker
 * if there is work for it. */
void fnet_shard_lock(fnet_shard *shard);
void fnet_shard_unlock(fnet_shard *shard);
/* Waits until no op of the source has left the shard. */
void fnet_shard_await_idle_locked(fnet_shard *shard, fnet_source *source);
/* Forgets the source, once nobody is busy with it. */
void fnet_shard_detach_locked(fnet_shard *shard, fnet_source *source,
                              bool closing);
/* One pass of a shard that is lent: waits until there is something to do, and
 * does it.  Without a batch nothing is read.  Worker, with the lock, which is
 * given up for system calls. */
void fnet_shard_pass_lent_locked(fnet_shard *shard, fnet_batch *batch);
/* The shard is the loop's again.  Its thread may be in a long turn: what was
 * written meanwhile is sent before, and what is written in the rest of the
 * turn is sent at once.  Worker, with the lock. */
void fnet_shard_give_back_locked(fnet_shard *shard);
/* A free batch for the next pass, NULL: the loop has them all.  Worker, with
 * the lock. */
fnet_batch *fnet_shard_begin_batch_locked(fnet_shard *shard);
/* The free batches keep no memory.  Whoever has the shard, with the lock. */
void fnet_shard_trim_batches_locked(fnet_shard *shard);
/* The loop has delivered the batch.  True: landing places are wanted. */
bool fnet_shard_return_batch(fnet_shard *shard, fnet_batch *batch);

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
