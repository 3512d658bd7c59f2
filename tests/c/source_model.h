/* source_model: one source of a shard that is lent, and who may touch it.
 *
 * Beside test_handover.c, which has the token and the sleeping: here the shard
 * is lent, and may be asked back once, and the steps are those that a source
 * goes through, named by the functions that take them.
 *
 *     LOOP     writes, drops, flushes, takes and returns batches, detaches,
 *              closes the descriptor and opens another one of that number
 *     WORKER   flushes, polls, notes events, receives, posts
 *     NETWORK  input, room
 *
 * A section under shard->output is one step, and a system call with the lock
 * given up (fnet_shard_leave, fnet_shard_enter) is one: between these anybody
 * may come.  Wake-ups are part of the step that causes them.
 *
 * What must hold in each step is said by must(). */
#ifndef FNET_TESTS_SOURCE_MODEL_H
#define FNET_TESTS_SOURCE_MODEL_H

#include "base/base.h"
#include "source_faults.h"

enum thread { LOOP, WORKER, NETWORK, THREADS };

enum loop_at {
    L_TOP,
    L_AWAIT_DETACH,
    L_AWAIT_DROP,
    L_AWAIT_FLUSH,
    L_CLOSE,
    L_OPEN,
    L_DETACH_CLOSED /* with CLOSED_BEFORE_DETACHED */
};

/* The source is busy in those of W_SEND to W_RECEIVED. */
enum worker_at {
    W_TOP,
    W_SEND,
    W_SENT,
    W_RECEIVE,
    W_RECEIVED,
    W_POLL,
    W_NOTE,
    W_POST
};

enum place { NOWHERE, LISTED, IN_TODO, GATED };
enum event { IN = 1, OUT = 2 };

/* What a batch has of the source, whose generation it is, and of another
 * source that is never detached. */
typedef struct batch {
    uint8_t sequence, has, generation, number, other;
} batch;

typedef struct state {
    /* what is to come */
    uint8_t writes, writes_other, drops, flushes, detaches, recalls, fulls;
    uint8_t input[2], input_other;
    /* the program counters */
    uint8_t loop, worker;
    uint8_t in_event; /* the send is one of stream_event() */
    uint8_t told;     /* the condition was told of while the loop waits */
    /* the source */
    uint8_t attached, generation;
    uint8_t out, written; /* pieces queued, and ever written */
    uint8_t writable, readable, dirty, ready, last; /* last: its sequence */
    uint8_t ready_other, last_other, dirty_other;
    /* the descriptor, in the kernel */
    uint8_t open, owner, received, events, events_other, full;
    uint8_t arrived, units; /* at the peer; of input, received so far */
    /* of the shard */
    uint8_t lent, recall, busy, busy_awaited, hurry, flushing;
    uint8_t giving, prompted; /* back; the prompter sees to what is dirty */
    uint8_t asleep, wake, starved, free, sequence, returned;
    /* the worker's */
    uint8_t op, piece, sent, got, noted, noted_tag, noted_other, sleeps;
    batch made;
    /* on its way, and with the loop */
    batch inbox[3], mail;
    uint8_t delivered; /* units of input */
    uint8_t due;       /* what a flush must have sent */
} state;

/* The rule that is broken, and what a step has found wrong. */
static enum fault fault;
static const char *broken;

static inline void
must(bool holds, const char *what)
{
    if (!holds && broken == NULL) {
        broken = what;
    }
}

/* -- under the lock ------------------------------------------------------- */

/* has_work_locked() */
static inline bool
has_work(const state *s)
{
    bool ready = s->ready == LISTED || s->ready_other == LISTED;
    return s->dirty == LISTED || s->dirty_other || s->recall ||
           (ready && !s->starved) || (s->starved && s->free > 0);
}

/* fnet_shard_unlock() and fnet_poller_wake_any() */
static inline void
unlock(state *s)
{
    if (s->lent && s->asleep && has_work(s)) {
        s->asleep = 0;
        s->wake = 1;
    }
}

/* tell_idle() */
static inline void
tell_idle(state *s)
{
    if (s->busy_awaited && fault != END_OF_OP_IS_NOT_TOLD) {
        s->busy_awaited = 0;
        s->told = 1;
    }
}

static inline void
end_op(state *s)
{
    s->busy = s->hurry = s->op = 0;
    tell_idle(s);
}

static inline void
make_ready(state *s)
{
    if (s->ready == NOWHERE) {
        s->ready = LISTED;
    }
}

/* fnet_shard_defer_locked() */
static inline void
defer(state *s)
{
    if (s->dirty == NOWHERE) {
        s->dirty = LISTED;
    }
}

/* -- the worker ----------------------------------------------------------- */

/* fnet_shard_leave(): what the call is for is what the operation is of. */
static inline void
begin_send(state *s)
{
    s->piece = (uint8_t)(s->written - s->out);
    s->worker = W_SEND;
}

/* flush_locked(), from its begin or from behind a send.  True: it has gone
 * away to send. */
static inline bool
flush(state *s)
{
    if (!s->writable || s->out == 0) {
        return false;
    }
    if (s->hurry && fault != SENDS_ON_IN_A_HURRY) {
        defer(s);
        return false;
    }
    must(!s->hurry, "sends on though somebody wants to detach it");
    begin_send(s);
    return true;
}

/* The rest of read_ready(): the other source, and the end of the pass. */
static inline void
end_of_pass(state *s)
{
    if (s->made.sequence != 0 && s->ready_other == IN_TODO) {
        s->ready_other = NOWHERE;
        if (s->last_other > s->returned) {
            s->ready_other = GATED;
        }
        else {
            s->made.other = 1;
            s->last_other = s->made.sequence;
        }
    }
    s->worker = W_TOP;
    if (s->made.sequence == 0) {
        return;
    }
    if (s->made.has || s->made.other) {
        s->worker = W_POST;
        return;
    }
    s->free++;
    s->made = (batch){0};
}

/* read_ready() */
static inline void
read_ready(state *s)
{
    if (s->made.sequence == 0) {
        end_of_pass(s);
        return;
    }
    s->ready = s->ready == LISTED ? IN_TODO : s->ready;
    s->ready_other = s->ready_other == LISTED ? IN_TODO : s->ready_other;
    if (s->ready != IN_TODO) {
        end_of_pass(s);
        return;
    }
    must(s->attached, "reads from a source that was detached");
    s->ready = NOWHERE;
    if (s->last > s->returned && fault != SOURCES_ARE_NOT_GATED) {
        s->ready = GATED;
        end_of_pass(s);
        return;
    }
    must(s->last <= s->returned, "a source has two batches out");
    if (!s->readable) {
        end_of_pass(s);
        return;
    }
    s->busy = fault != READS_DO_NOT_MAKE_BUSY;
    s->op = (uint8_t)(s->generation + 1);
    s->worker = W_RECEIVE;
}

/* Behind the flushing: fnet_shard_give_back_locked() */
static inline void
give_back(state *s)
{
    s->lent = s->giving = 0;
    s->worker = W_TOP;
    s->prompted = (s->dirty == LISTED || s->dirty_other) &&
                  fault != GIVING_BACK_DOES_NOT_PROMPT &&
                  fault != GIVES_BACK_WHAT_WAS_WRITTEN;
}

/* The same, or fnet_shard_pass_lent_locked() */
static inline void
end_of_flush(state *s)
{
    s->flushing = 0;
    if (s->giving) {
        give_back(s);
        return;
    }
    tell_idle(s);
    s->sleeps = !has_work(s);
    s->asleep = s->sleeps;
    s->worker = W_POLL;
}

/* note_event(), behind the operation of the source. */
static inline void
end_of_event(state *s)
{
    if (s->readable) {
        make_ready(s);
    }
    end_op(s);
    s->in_event = 0;
    read_ready(s);
}

/* fnet_shard_begin_batch_locked() */
static inline void
begin_batch(state *s)
{
    s->made = (batch){0};
    s->starved = s->free == 0;
    if (s->free > 0) {
        s->free--;
        s->made.sequence = ++s->sequence;
    }
}

/* heed_locked(), or the begin of a pass; and the flush of either. */
static inline bool
worker_at_top(state *s)
{
    if (!s->lent) {
        return false;
    }
    if (s->recall && fault == GIVES_BACK_WHAT_WAS_WRITTEN) {
        give_back(s);
        return true;
    }
    s->giving = s->recall;
    if (!s->giving) {
        begin_batch(s);
    }
    s->flushing = 1;
    if (s->dirty_other) { /* sent at once, here */
        s->dirty_other = 0;
        tell_idle(s);
    }
    if (s->dirty == LISTED) {
        must(s->attached, "flushes a source that was detached");
        s->dirty = NOWHERE;
        s->busy = fault != FLUSHES_DO_NOT_MAKE_BUSY;
        s->op = (uint8_t)(s->generation + 1);
        if (flush(s)) {
            return true;
        }
        end_op(s);
    }
    end_of_flush(s);
    return true;
}

/* The descriptor that an operation uses is its source's. */
static inline void
must_be_its_own(const state *s)
{
    must(s->attached && s->op == s->generation + 1,
         "a source is detached while it is busy");
    must(s->open && s->owner == s->generation,
         "a call for a source uses another one's descriptor");
}

/* send(): all of the piece, or no room any more. */
static inline bool
worker_sends(state *s, unsigned choice)
{
    must_be_its_own(s);
    if (choice > 0) {
        if (s->fulls == 0) {
            return false;
        }
        s->fulls--;
        s->full = 1;
        s->sent = 0;
    }
    else {
        must(s->piece == s->arrived, "sent in another order than written");
        s->arrived++;
        s->sent = 1;
    }
    s->worker = W_SENT;
    return true;
}

/* Behind send(), with the lock again. */
static inline void
worker_sent(state *s)
{
    must_be_its_own(s);
    must(s->out > 0 && s->piece == (uint8_t)(s->written - s->out),
         "what is being sent was dropped");
    if (s->sent && s->out > 0) {
        s->out--;
    }
    else {
        s->writable = 0;
    }
    s->sent = s->piece = 0;
    if (flush(s)) {
        return;
    }
    if (s->in_event) {
        end_of_event(s);
        return;
    }
    end_op(s);
    end_of_flush(s);
}

/* note_event() for all, read_ready() */
static inline void
worker_notes(state *s)
{
    uint8_t events = s->noted, tag = s->noted_tag;

    s->asleep = s->starved = 0;
    s->noted = s->noted_tag = 0;
    if (s->noted_other && s->ready_other == NOWHERE) {
        s->ready_other = LISTED;
    }
    s->noted_other = 0;
    bool known = s->attached && tag == s->generation;
    if (events == 0 || (!known && fault != TAGS_OF_EVENTS_ARE_IGNORED)) {
        read_ready(s);
        return;
    }
    must(s->attached, "an event reaches a source that was detached");
    s->busy = fault != EVENTS_DO_NOT_MAKE_BUSY;
    s->op = (uint8_t)(s->generation + 1);
    s->in_event = 1;
    s->readable |= (events & IN) != 0;
    if ((events & OUT) != 0 && !s->writable) {
        s->writable = 1;
        if (flush(s)) {
            return;
        }
    }
    end_of_event(s);
}

/* Behind recv(), with the lock again. */
static inline void
worker_received(state *s)
{
    must_be_its_own(s);
    if (s->got > 0) {
        s->made.has = 1;
        s->made.generation = s->generation;
        s->made.number = s->units++;
        s->last = s->made.sequence;
    }
    else {
        s->readable = 0;
    }
    s->got = 0;
    if (s->readable) {
        make_ready(s); /* a unit is as much as fits: there may be more */
    }
    end_op(s);
    end_of_pass(s);
}

static inline bool
worker_step(state *s, unsigned choice)
{
    if (s->worker == W_SEND) {
        return choice < 2 && worker_sends(s, choice);
    }
    if (choice > 0) {
        return false;
    }
    switch (s->worker) {
    case W_TOP:
        return worker_at_top(s);
    case W_SENT:
        worker_sent(s);
        return true;
    case W_RECEIVE:
        must_be_its_own(s);
        s->got = s->received > 0;
        s->received -= s->got;
        s->worker = W_RECEIVED;
        return true;
    case W_RECEIVED:
        worker_received(s);
        return true;
    case W_POLL:
        if (s->sleeps && !s->wake && !s->events && !s->events_other) {
            return false;
        }
        s->noted = s->events;
        s->noted_tag = s->events ? s->owner : 0;
        s->noted_other = s->events_other;
        s->events = s->events_other = s->wake = s->sleeps = 0;
        s->worker = W_NOTE;
        return true;
    case W_NOTE:
        worker_notes(s);
        return true;
    default:
        /* fnet_inbox_post_any() */
        s->inbox[s->inbox[0].sequence == 0   ? 0
                 : s->inbox[1].sequence == 0 ? 1
                                             : 2] = s->made;
        s->made = (batch){0};
        s->worker = W_TOP;
        return true;
    }
}

/* -- the loop ------------------------------------------------------------- */

/* The loop of fnet_shard_await_idle_locked(): true: it is idle. */
static inline bool
is_idle(state *s)
{
    if (!s->lent || !s->busy) {
        return true;
    }
    if (fault != WAITS_BUT_DOES_NOT_SAY_SO) {
        s->busy_awaited = s->hurry = 1;
    }
    return false;
}

/* fnet_stream_detach() behind the waiting */
static inline void
detach(state *s)
{
    s->attached = 0;
    s->out = 0;
    if (fault != DETACHED_STAYS_DIRTY) {
        s->dirty = NOWHERE;
    }
    if (fault != DETACHED_STAYS_READY) {
        s->ready = NOWHERE;
    }
    s->loop = s->open ? L_CLOSE : L_OPEN;
}

static inline void
drop(state *s)
{
    s->written -= s->out; /* as if never written */
    s->out = 0;
    s->dirty = NOWHERE;
    s->loop = L_TOP;
}

/* By the loop's thread, of a shard that was given back. */
static inline void
send_all(state *s)
{
    for (; s->writable && s->out > 0; s->out--) {
        s->arrived++;
    }
}

/* What fnet_shard_flush() waits for; behind it what is the loop's again. */
static inline void
flush_all(state *s)
{
    bool sending = s->flushing && fault != FLUSH_DOES_NOT_WAIT_FOR_SEND;
    if (s->lent && (sending || s->dirty == LISTED || s->dirty_other)) {
        s->busy_awaited = 1;
        s->loop = L_AWAIT_FLUSH;
        if (s->asleep) {
            s->asleep = 0;
            s->wake = 1;
        }
        return;
    }
    if (!s->lent && fault != FLUSH_OF_ONE_GIVEN_BACK) {
        send_all(s);
        s->dirty = NOWHERE;
        s->dirty_other = 0;
    }
    must(!s->dirty_other, "a flush returns before the other is sent");
    must(s->arrived >= s->due || !s->writable || s->in_event,
         "a flush returns before all is sent");
    s->due = 0;
    s->loop = L_TOP;
}

/* fnet_stream_write() */
static inline bool
loop_writes(state *s)
{
    if (s->writes == 0 || !s->attached) {
        return false;
    }
    s->writes--;
    s->written++;
    s->out++;
    if (!s->lent && fault != GIVEN_BACK_BUT_NOT_LATE) {
        send_all(s);
    }
    else if (s->writable && fault != WRITES_ARE_NOT_DEFERRED) {
        defer(s);
    }
    unlock(s);
    return true;
}

static inline bool
loop_detaches(state *s)
{
    if (s->detaches == 0 || !s->attached) {
        return false;
    }
    s->detaches--;
    if (fault == CLOSED_BEFORE_DETACHED) {
        s->open = s->events = s->received = 0;
        s->loop = L_DETACH_CLOSED;
    }
    else if (fault == DETACH_DOES_NOT_WAIT || is_idle(s)) {
        detach(s);
    }
    else {
        s->loop = L_AWAIT_DETACH;
    }
    return true;
}

/* fnet_inbox_take() and the delivery */
static inline bool
loop_delivers(state *s)
{
    if (s->inbox[0].sequence == 0 || s->mail.sequence != 0) {
        return false;
    }
    int at = 0;
    if (fault == MAIL_LAST_COME_FIRST) {
        at = s->inbox[1].sequence == 0 ? 0 : s->inbox[2].sequence == 0 ? 1 : 2;
    }
    s->mail = s->inbox[at];
    for (int i = at; i < 2; i++) {
        s->inbox[i] = s->inbox[i + 1];
    }
    s->inbox[2] = (batch){0};
    bool known = s->attached && s->mail.generation == s->generation;
    if (s->mail.has && (known || fault == TAGS_OF_MAIL_ARE_IGNORED)) {
        must(known, "input reaches another one than it was for");
        must(s->mail.number == s->delivered, "input is out of order");
        s->delivered++;
    }
    return true;
}

/* fnet_shard_return_batch() */
static inline bool
loop_returns(state *s)
{
    if (s->mail.sequence == 0) {
        return false;
    }
    must(s->mail.sequence > s->returned, "batches come back out of order");
    s->returned = s->mail.sequence;
    s->mail = (batch){0};
    s->free++;
    s->ready = s->ready == GATED ? LISTED : s->ready;
    s->ready_other = s->ready_other == GATED ? LISTED : s->ready_other;
    unlock(s);
    return true;
}

static inline bool
loop_at_top(state *s, unsigned choice)
{
    switch (choice) {
    case 0:
        return loop_writes(s);
    case 1:
        return loop_detaches(s);
    case 2:
        return loop_delivers(s);
    case 3:
        return loop_returns(s);
    case 4:
        if (s->flushes == 0 || !s->attached) {
            return false;
        }
        s->flushes--;
        s->due = s->written;
        flush_all(s);
        return true;
    case 5:
        if (s->drops == 0 || !s->attached) {
            return false;
        }
        s->drops--;
        s->loop = L_AWAIT_DROP;
        if (fault == DROP_DOES_NOT_WAIT || is_idle(s)) {
            drop(s);
        }
        return true;
    case 6:
        if (s->writes_other == 0) {
            return false;
        }
        s->writes_other--;
        s->dirty_other = s->lent || fault == GIVEN_BACK_BUT_NOT_LATE;
        unlock(s);
        return true;
    default:
        if (s->recalls == 0) {
            return false;
        }
        s->recalls--;
        s->recall = 1; /* fnet_worker_recall() */
        unlock(s);
        return true;
    }
}

/* Behind fnet_cond_wait() */
static inline bool
loop_awakes(state *s)
{
    if (!s->told) {
        return false;
    }
    s->told = 0;
    switch (s->loop) {
    case L_AWAIT_DETACH:
        if (is_idle(s) || fault == WAITS_BUT_LOOKS_ONCE) {
            detach(s);
        }
        return true;
    case L_AWAIT_DROP:
        if (is_idle(s) || fault == WAITS_BUT_LOOKS_ONCE) {
            drop(s);
        }
        return true;
    default:
        flush_all(s);
        return true;
    }
}

static inline bool
loop_step(state *s, unsigned choice)
{
    if (s->loop == L_TOP) {
        return loop_at_top(s, choice);
    }
    if (choice > 0) {
        return false;
    }
    switch (s->loop) {
    case L_CLOSE:
        s->open = s->events = s->received = s->full = 0;
        s->loop = L_OPEN;
        return true;
    case L_OPEN:
        /* Another one, the number and the memory are the same. */
        s->open = s->owner = s->generation = s->attached = s->writable = 1;
        s->written = s->out = s->readable = s->last = 0;
        s->arrived = s->units = s->delivered = s->full = 0;
        s->loop = L_TOP;
        return true;
    case L_DETACH_CLOSED:
        s->loop = L_AWAIT_DETACH;
        if (is_idle(s)) {
            detach(s);
        }
        return true;
    default:
        return loop_awakes(s);
    }
}

/* -- the network ---------------------------------------------------------- */

static inline bool
network_step(state *s, unsigned choice)
{
    switch (choice) {
    case 0:
        if (!s->open || s->input[s->owner] == 0) {
            return false;
        }
        s->input[s->owner]--;
        s->received++;
        s->events |= IN;
        return true;
    case 1:
        if (s->input_other == 0) {
            return false;
        }
        s->input_other--;
        s->events_other = 1;
        return true;
    case 2:
        if (!s->open || !s->full) {
            return false;
        }
        s->full = 0;
        s->events |= OUT;
        return true;
    default:
        return false;
    }
}

#endif
