/* The hand-over between the loop and its workers, model and check.
 *
 * The protocol of poll/worker.c, poll/shardset.c, poll/inbox.c, the lent half
 * of poll/shard.c and python/turn.c, reduced to what decides who may run the
 * home shard's pass and who must be woken: five threads whose steps are atomic
 * and interleave in every order.
 *
 *     LOOP     turns: lends and recalls home at will, passes, sleeps, delivers
 *     WORKER   home's: passes while it is lent, gives it back
 *     POSTER   the worker of another shard: posts batches
 *     CALLER   another Python thread: call_soon_threadsafe()
 *     NETWORK  input for two connections of the home shard
 *
 * All states that can be reached are visited.  In each of them the loop and
 * the worker are never in the pass together; where nobody can move there is
 * nothing left to do (no wake-up was lost); from each of them all that is left
 * can still be done; and the worker, left alone, goes to sleep (it never
 * spins).  Steps are sequentially consistent, as the atomics are where they
 * matter; a section under the shard's lock is one step, as all that it touches
 * is under the lock, but for `asleep`, which it touches once.
 *
 * That the check finds what is wrong is checked too: each rule that the code
 * keeps is broken in turn (enum fault), and a fault must show. */
#include "base/base.h"

#include "explore.h"
#include "test.h"

enum fault {
    NONE,
    LOOP_SLEEPS_WITHOUT_LOOKING_FOR_MAIL, /* fnet_shardset_wait */
    LOOP_SLEEPS_WITHOUT_LOOKING_FOR_HOME,
    PASS_SLEEPS_WITHOUT_LOOKING_FOR_MAIL, /* pass_without_gil */
    UNLOCK_DOES_NOT_WAKE,                 /* fnet_shard_unlock */
    RETURN_DOES_NOT_WAKE,                 /* fnet_shard_return_batch */
    RECALL_DOES_NOT_WAKE,                 /* fnet_worker_recall */
    GIVING_BACK_DOES_NOT_WAKE,            /* worker.c, run */
    WORKER_ANNOUNCES_SLEEP_TOO_LATE,      /* fnet_shard_pass_lent_locked */
    STARVED_WORKER_IGNORES_BATCHES,       /* has_work_locked */
    GATED_SOURCES_STAY_GATED,             /* fnet_shard_return_batch */
    POST_WAKES_BEFORE_IT_POSTS,           /* fnet_inbox_post_any */
    HOME_COMES_BACK_BEFORE_ITS_BATCHES,   /* fnet_worker_is_back */
    HOME_IS_TAKEN_WITHOUT_ASKING,
    STARVED_WORKER_DOES_NOT_SLEEP, /* has_work_locked */
    STOP_DOES_NOT_WAKE,            /* fnet_worker_stop */
    START_FORGETS_THE_LENT,        /* fnet_worker_start */
    FAULTS
};

enum thread { LOOP, WORKER, POSTER, CALLER, NETWORK, THREADS };
enum poller { HOME, WAITER };
enum phase { TURN, PASS, LENT };
/* In fnet_inbox_wake_any() and fnet_poller_wake_any(), whose load before the
 * exchange only saves it. */
enum waking { NOT_WAKING, LOADS_SLEEPER, EXCHANGES, WRITES };
enum holder { FREE, BY_LOOP, BY_CALLER };

enum loop_at {
    AT_TOP,
    AT_LEND,
    AT_PASS,
    AT_ASLEEP_WAITER,
    AT_RELEASE_WAITER,
    AT_LOOK_FOR_MAIL,
    AT_LOOK_FOR_HOME,
    AT_WAIT,
    AT_AWAKE_WAITER,
    AT_ASLEEP_HOME,
    AT_LOOK_BEFORE_PASS,
    AT_RELEASE_HOME,
    AT_BEGIN_PASS,
    AT_FLUSH,
    AT_POLL,
    AT_AWAKE_HOME,
    AT_READ,
    AT_TAKE_GIL,
    AT_BEGIN_TURN,
    AT_RUN,
    AT_WRITE,
    AT_MAIL,
    AT_RETURN,
    AT_JOIN,
    AT_START
};

enum worker_at { W_NONE, W_TOP, W_ASLEEP, W_POLL, W_READ, W_POST };

/* Two connections are the bits 1 and 2. */
#define SOURCES 3

typedef struct state {
    /* what is to come */
    uint8_t input[2], posts, calls, writes, forks;
    /* the program counters */
    uint8_t loop, worker, gil;
    uint8_t waking[THREADS], target[THREADS];
    uint8_t caller_in; /* the caller is in call_soon_threadsafe() */
    /* atomics and the kernel's */
    uint8_t asleep[2], event[2], sleeper, net;
    uint8_t inbox_home[2], inbox_other; /* sources in a batch; how many */
    /* under the shard's lock */
    uint8_t phase, recall, dirty, ready, gated, posted, batches, starved;
    uint8_t stop;
    uint8_t outside; /* sources whose last batch is not back */
    /* the loop's */
    uint8_t away, recalling, ring, nowait, read, mail;
    /* the worker's */
    uint8_t has_batch, sleeps, noted, full;
} state;

static enum fault fault;
static const char *broken; /* an invariant that a step has found broken */

/* What comes: all of it at once would be too many states.  With one batch
 * the worker starves soon. */
static const state scenarios[] = {
    {.batches = 1, .input = {2, 1}, .writes = 1},
    {.batches = 2, .input = {2, 1}},
    {.batches = 1, .input = {1, 0}, .posts = 1, .calls = 1},
    {.batches = 1, .input = {1, 0}, .posts = 2},
    {.batches = 1, .posts = 1, .calls = 1, .writes = 1},
    {.batches = 1, .input = {1, 1}, .writes = 1, .forks = 1},
};
static const state *scenario;

static void
must(bool holds, const char *what)
{
    if (!holds && broken == NULL) {
        broken = what;
    }
}

/* -- what the threads share ----------------------------------------------- */

static unsigned
mail(const state *s)
{
    return s->inbox_other + (s->inbox_home[0] != 0 ? 1u : 0u) +
           (s->inbox_home[1] != 0 ? 1u : 0u);
}

/* has_work_locked() */
static bool
has_work(const state *s)
{
    bool starved = s->starved != 0;
    if (starved && fault == STARVED_WORKER_DOES_NOT_SLEEP && s->ready != 0) {
        return true;
    }
    return s->dirty || s->recall || s->stop || (s->ready != 0 && !starved) ||
           (starved && s->batches > 0 &&
            fault != STARVED_WORKER_IGNORES_BATCHES);
}

/* fnet_worker_is_back() */
static bool
is_back(const state *s)
{
    return s->phase != LENT &&
           (s->posted == 0 || fault == HOME_COMES_BACK_BEFORE_ITS_BATCHES);
}

static void
wake_poller(state *s, enum thread me, enum poller which)
{
    s->waking[me] = EXCHANGES;
    s->target[me] = (uint8_t)which;
}

static void
wake_inbox(state *s, enum thread me)
{
    s->waking[me] = LOADS_SLEEPER;
}

/* fnet_shard_unlock() */
static void
unlock(state *s, enum fault forgotten)
{
    if (s->phase == LENT && s->asleep[HOME] && has_work(s) &&
        fault != forgotten) {
        wake_poller(s, LOOP, HOME);
    }
}

static void
wake_step(state *s, enum thread me)
{
    uint8_t which = s->target[me];
    switch (s->waking[me]) {
    case LOADS_SLEEPER:
        wake_poller(s, me, (enum poller)s->sleeper);
        break;
    case EXCHANGES:
        s->waking[me] = s->asleep[which] ? WRITES : NOT_WAKING;
        s->asleep[which] = 0;
        break;
    default:
        s->event[which] = 1;
        s->waking[me] = NOT_WAKING;
    }
    if (s->waking[me] == NOT_WAKING) {
        s->target[me] = 0; /* not used: no state of its own */
    }
}

/* -- the loop ------------------------------------------------------------- */

/* Around a fork: the worker is stopped, and started if home is lent. */
static bool
loop_forks(state *s)
{
    switch (s->loop) {
    case AT_TOP:
        if (s->forks == 0 || s->worker == W_NONE) {
            return false;
        }
        s->forks--;
        s->stop = 1;
        s->gil = FREE;
        s->loop = AT_JOIN;
        unlock(s, STOP_DOES_NOT_WAKE);
        return true;
    case AT_JOIN:
        s->loop = AT_START;
        return s->worker == W_NONE;
    default:
        if (s->gil != FREE) {
            return false;
        }
        s->gil = BY_LOOP;
        s->stop = 0;
        if (s->phase == LENT && fault != START_FORGETS_THE_LENT) {
            s->worker = W_TOP;
        }
        s->loop = AT_TOP;
        return true;
    }
}

/* move_home(): each choice is a step of its own.  False: there is none. */
static bool
loop_at_top(state *s, unsigned choice)
{
    if (choice == 2) {
        return loop_forks(s);
    }
    if (choice == 0) {
        if (s->away && s->recalling && is_back(s)) {
            s->sleeper = HOME;
            s->away = s->recalling = 0;
        }
        s->loop = AT_PASS;
        return true;
    }
    if (choice > 1 || s->recalling) {
        return false;
    }
    if (!s->away) {
        s->sleeper = WAITER; /* before the shard is lent */
        s->loop = AT_LEND;
        return true;
    }
    s->recalling = 1;
    s->recall = 1;
    s->loop = AT_PASS;
    if (fault == HOME_IS_TAKEN_WITHOUT_ASKING) {
        s->away = s->recalling = 0;
        s->sleeper = HOME;
    }
    unlock(s, RECALL_DOES_NOT_WAKE);
    return true;
}

/* fnet_shardset_wait(), and what wait_for_mail() does around it. */
static bool
loop_waits(state *s)
{
    switch (s->loop) {
    case AT_ASLEEP_WAITER:
        s->asleep[WAITER] = 1;
        s->loop = AT_RELEASE_WAITER;
        return true;
    case AT_RELEASE_WAITER:
        s->gil = FREE;
        s->nowait = 0;
        s->loop = AT_LOOK_FOR_MAIL;
        return true;
    case AT_LOOK_FOR_MAIL:
        s->nowait =
            mail(s) > 0 && fault != LOOP_SLEEPS_WITHOUT_LOOKING_FOR_MAIL;
        s->loop = AT_LOOK_FOR_HOME;
        return true;
    case AT_LOOK_FOR_HOME:
        if (is_back(s) && fault != LOOP_SLEEPS_WITHOUT_LOOKING_FOR_HOME) {
            s->nowait = 1;
        }
        s->loop = AT_WAIT;
        return true;
    case AT_WAIT:
        if (!s->nowait && !s->event[WAITER]) {
            return false;
        }
        s->event[WAITER] = s->nowait = 0;
        s->loop = AT_AWAKE_WAITER;
        return true;
    default:
        s->asleep[WAITER] = 0;
        s->loop = AT_TAKE_GIL;
        return true;
    }
}

/* pass_without_gil() and fnet_shard_pass() */
static bool
loop_passes(state *s)
{
    switch (s->loop) {
    case AT_ASLEEP_HOME:
        s->asleep[HOME] = 1;
        s->loop = AT_LOOK_BEFORE_PASS;
        return true;
    case AT_LOOK_BEFORE_PASS:
        s->nowait =
            mail(s) > 0 && fault != PASS_SLEEPS_WITHOUT_LOOKING_FOR_MAIL;
        s->loop = AT_RELEASE_HOME;
        return true;
    case AT_RELEASE_HOME:
        s->gil = FREE;
        s->loop = AT_BEGIN_PASS;
        return true;
    case AT_BEGIN_PASS:
        must(s->phase != LENT, "the loop passes while the worker has home");
        s->phase = PASS;
        s->loop = AT_FLUSH;
        return true;
    case AT_FLUSH:
        s->dirty = 0;
        s->loop = AT_POLL;
        return true;
    case AT_POLL:
        if (!s->nowait && !s->event[HOME] && !s->net && !s->ready) {
            return false;
        }
        s->event[HOME] = s->nowait = 0;
        s->ready |= s->net;
        s->net = 0;
        s->loop = AT_AWAKE_HOME;
        return true;
    case AT_AWAKE_HOME:
        s->asleep[HOME] = 0;
        s->loop = AT_READ;
        return true;
    default:
        must(s->phase == PASS, "the phase changes within a pass");
        s->read = s->ready;
        s->ready = 0;
        s->loop = AT_TAKE_GIL;
        return true;
    }
}

/* The rest of a turn; a callback may write, at will. */
static bool
loop_turns(state *s, unsigned choice)
{
    switch (s->loop) {
    case AT_BEGIN_TURN:
        if (!s->away) {
            s->phase = TURN;
        }
        s->loop = AT_RUN;
        return true;
    case AT_RUN:
        s->ring = s->read = 0;
        s->loop = AT_WRITE;
        return true;
    case AT_WRITE:
        s->loop = AT_MAIL;
        if (choice > 0) {
            if (s->writes == 0) {
                return false;
            }
            s->writes--;
            s->dirty = 1;
            unlock(s, UNLOCK_DOES_NOT_WAKE);
        }
        return true;
    case AT_MAIL:
        s->loop = AT_TOP;
        if (s->inbox_home[0] != 0 && choice == 0) {
            s->mail = s->inbox_home[0];
            s->inbox_home[0] = s->inbox_home[1];
            s->inbox_home[1] = 0;
            s->loop = AT_RETURN;
        }
        else if (s->inbox_other > 0 && choice == 1) {
            s->inbox_other--;
        }
        else {
            return mail(s) == 0 && choice == 0;
        }
        return true;
    default:
        s->posted--;
        s->batches++;
        s->outside &= (uint8_t)~s->mail;
        s->mail = 0;
        if (fault != GATED_SOURCES_STAY_GATED) {
            s->ready |= s->gated;
            s->gated = 0;
        }
        unlock(s, RETURN_DOES_NOT_WAKE);
        s->loop = AT_TOP;
        return true;
    }
}

/* False: cannot move, or has no such choice. */
static bool
loop_step(state *s, unsigned choice)
{
    switch (s->loop) {
    case AT_TOP:
        return loop_at_top(s, choice);
    case AT_WRITE:
    case AT_MAIL:
        return choice < 2 && loop_turns(s, choice);
    default:
        break;
    }
    if (choice > 0) {
        return false;
    }
    switch (s->loop) {
    case AT_LEND:
        must(s->phase == TURN && s->posted == 0,
             "home is lent before it is back");
        s->phase = LENT;
        s->recall = 0;
        s->away = 1;
        s->worker = s->worker == W_NONE ? W_TOP : s->worker;
        s->loop = AT_PASS;
        return true;
    case AT_PASS:
        s->nowait = s->ring > 0 || mail(s) > 0;
        if (s->away) {
            s->loop = s->nowait ? AT_BEGIN_TURN : AT_ASLEEP_WAITER;
            s->nowait = 0;
        }
        else {
            s->loop = s->nowait ? AT_RELEASE_HOME : AT_ASLEEP_HOME;
        }
        return true;
    case AT_JOIN:
    case AT_START:
        return loop_forks(s);
    case AT_TAKE_GIL:
        if (s->gil != FREE) {
            return false;
        }
        s->gil = BY_LOOP;
        s->loop = AT_BEGIN_TURN;
        return true;
    default:
        break;
    }
    if (s->loop >= AT_ASLEEP_WAITER && s->loop <= AT_AWAKE_WAITER) {
        return loop_waits(s);
    }
    return s->loop <= AT_READ ? loop_passes(s) : loop_turns(s, 0);
}

/* -- the worker ----------------------------------------------------------- */

/* The end, heed_locked(), the begin of a pass, or the wait for the shard. */
static bool
worker_at_top(state *s)
{
    if (s->stop) {
        s->worker = W_NONE;
        return true;
    }
    if (s->recall && s->phase == LENT) {
        s->dirty = 0; /* fnet_shard_give_back_locked() */
        s->phase = TURN;
        if (fault != GIVING_BACK_DOES_NOT_WAKE) {
            wake_inbox(s, WORKER);
        }
        return true;
    }
    if (s->phase != LENT) {
        return false;
    }
    s->has_batch = s->batches > 0;
    s->batches -= s->has_batch;
    s->starved = !s->has_batch;
    s->dirty = 0;
    s->sleeps = !has_work(s);
    s->worker = W_POLL;
    if (s->sleeps) {
        if (fault == WORKER_ANNOUNCES_SLEEP_TOO_LATE) {
            s->worker = W_ASLEEP;
        }
        else {
            s->asleep[HOME] = 1;
        }
    }
    return true;
}

/* What was ready goes into the batch, or waits for the one before it. */
static void
worker_reads(state *s)
{
    s->asleep[HOME] = 0;
    s->starved = 0;
    s->ready |= s->noted;
    s->noted = 0;
    s->worker = W_TOP;
    must(s->phase == LENT, "the worker passes without having home");
    if (!s->has_batch) {
        return;
    }
    s->has_batch = 0;
    s->full = s->ready & (uint8_t)(SOURCES & ~s->outside);
    s->gated |= s->ready & s->outside;
    s->ready = 0;
    if (s->full == 0) {
        s->batches++;
        return;
    }
    s->outside |= s->full;
    s->posted++;
    s->worker = W_POST;
    if (fault == POST_WAKES_BEFORE_IT_POSTS) {
        wake_inbox(s, WORKER);
    }
}

static bool
worker_step(state *s)
{
    switch (s->worker) {
    case W_NONE:
        return false;
    case W_TOP:
        return worker_at_top(s);
    case W_ASLEEP:
        s->asleep[HOME] = 1;
        s->worker = W_POLL;
        return true;
    case W_POLL:
        if (s->sleeps && !s->event[HOME] && !s->net) {
            return false;
        }
        s->event[HOME] = s->sleeps = 0;
        s->noted = s->net;
        s->net = 0;
        s->worker = W_READ;
        return true;
    case W_READ:
        worker_reads(s);
        return true;
    default:
        s->inbox_home[s->inbox_home[0] != 0] = s->full;
        s->full = 0;
        if (fault != POST_WAKES_BEFORE_IT_POSTS) {
            wake_inbox(s, WORKER);
        }
        s->worker = W_TOP;
        return true;
    }
}

/* -- the others ----------------------------------------------------------- */

static bool
poster_step(state *s)
{
    if (s->posts == 0) {
        return false;
    }
    s->posts--;
    s->inbox_other++;
    wake_inbox(s, POSTER);
    return true;
}

static bool
caller_step(state *s)
{
    if (s->caller_in) {
        s->caller_in = 0;
        s->gil = FREE;
        return true;
    }
    if (s->calls == 0 || s->gil != FREE) {
        return false;
    }
    s->calls--;
    s->caller_in = 1;
    s->gil = BY_CALLER;
    s->ring = 1;
    wake_inbox(s, CALLER);
    return true;
}

static bool
network_step(state *s, unsigned choice)
{
    if (choice > 1 || s->input[choice] == 0) {
        return false;
    }
    s->input[choice]--;
    s->net |= (uint8_t)(1u << choice);
    return true;
}

#define CHOICES 3

static bool
step(state *s, enum thread who, unsigned choice)
{
    if (s->waking[who] != NOT_WAKING) {
        if (choice > 0) {
            return false;
        }
        wake_step(s, who);
        return true;
    }
    switch (who) {
    case LOOP:
        return loop_step(s, choice);
    case WORKER:
        return choice == 0 && worker_step(s);
    case POSTER:
        return choice == 0 && poster_step(s);
    case CALLER:
        return choice == 0 && caller_step(s);
    default:
        return network_step(s, choice);
    }
}

/* -- all states ----------------------------------------------------------- */

static explorer all;

/* Nothing that anybody waits for. */
static bool
is_done(const state *s)
{
    return s->net == 0 && s->ready == 0 && s->gated == 0 && mail(s) == 0 &&
           s->ring == 0 && s->dirty == 0 && s->read == 0 && s->full == 0 &&
           s->noted == 0 && !s->recalling;
}

/* Alone, with nothing new, it must come to rest. */
static bool
worker_rests(state s)
{
    for (int i = 0; i < 64; i++) {
        if (!step(&s, WORKER, 0)) {
            return true;
        }
    }
    return false;
}

/* Visits all states; what is wrong with one of them, NULL: nothing. */
static const char *
visit(size_t which)
{
    explorer_clear(&all);
    scenario = &scenarios[which];
    state start = *scenario;
    start.gil = BY_LOOP;
    start.sleeper = HOME;
    (void)explorer_number(&all, &start);
    for (uint32_t i = 0; i < all.count && !all.full; i++) {
        state here;
        memcpy(&here, explorer_state(&all, i), sizeof(here));
        bool moved = false;
        broken = NULL;
        for (int who = 0; who < THREADS; who++) {
            for (unsigned choice = 0; choice < CHOICES; choice++) {
                state next = here;
                if (step(&next, (enum thread)who, choice)) {
                    moved = true;
                    explorer_add_edge(&all, i, explorer_number(&all, &next));
                }
            }
        }
        if (broken != NULL) {
            return broken;
        }
        if (!moved && !is_done(&here)) {
            return "all sleep, and there is work";
        }
        if (!worker_rests(here)) {
            return "the worker spins";
        }
    }
    return all.full ? "too many states" : NULL;
}

/* And nothing is to come. */
static bool
is_the_end(const void *what)
{
    const state *s = what;
    return is_done(s) && s->input[0] + s->input[1] == 0 && s->posts == 0 &&
           s->calls == 0 && !s->stop;
}

static void
the_protocol_holds(void)
{
    fault = NONE;
    for (size_t i = 0; i < FNET_COUNTOF(scenarios); i++) {
        const char *wrong = visit(i);
        if (wrong != NULL) {
            fprintf(stderr, "%s (state %u)\n", wrong, all.count);
        }
        CHECK(wrong == NULL);
        CHECK(all.count > 1000);
        CHECK(explorer_count_hopeless(&all, is_the_end) == 0);
    }
}

static bool
shows(enum fault which)
{
    fault = which;
    if (explorer_finds(&all, FNET_COUNTOF(scenarios), visit, is_the_end)) {
        return true;
    }
    fprintf(stderr, "fault %d does not show\n", (int)which);
    return false;
}

static void
each_fault_shows(void)
{
    for (int i = NONE + 1; i < FAULTS; i++) {
        CHECK(shows((enum fault)i));
    }
}

int
main(void)
{
    explorer_init(&all, sizeof(state));
    RUN(the_protocol_holds);
    RUN(each_fault_shows);
    explorer_fini(&all);
    return test_report();
}
