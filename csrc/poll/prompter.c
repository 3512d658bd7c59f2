#include "poll/prompter.h"

#include "base/clock.h"
#include "base/mem.h"
#include "cache/stack.h"

#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* See the header. */
#define PERIOD FNET_MSEC
#define OLD (FNET_MSEC / 2)
/* Looks without a deferral before the thread goes to sleep: 30 ms, so that a
 * busy server does not pay for a wake-up per pause. */
#define IDLE_LOOKS 30

struct fnet_prompter {
    /* constant after init */
    fnet_shard *shard;

    /* guarded by mutex (a leaf) */
    pthread_mutex_t mutex;
    pthread_cond_t wake;
    fnet_thread thread; /* to be joined if it was started */
    bool stop;
    bool armed; /* asked to watch */
    bool trim;  /* asked to trim */
};

typedef struct look_state {
    uint64_t deferrals; /* those seen */
    int idle;           /* looks without a new one */
    int64_t next;       /* when to look again */
} look_state;

/* One look at the shard.  False when nothing has been deferred for so long
 * that the thread may sleep. */
static bool
look(fnet_shard *shard, look_state *state)
{
    bool awake = true;
    int64_t now = fnet_clock_ns();

    state->next = now + PERIOD;
    fnet_lock_acquire(&shard->output);
    if (shard->phase == FNET_PHASE_TURN && !fnet_list_empty(&shard->dirty)) {
        if (now - shard->turn_began >= OLD) {
            shard->stats.prompted++;
            shard->late = true;
            fnet_shard_flush_locked(shard);
        }
        else {
            state->next = shard->turn_began + PERIOD;
        }
    }
    state->idle = shard->deferrals == state->deferrals ? state->idle + 1 : 0;
    state->deferrals = shard->deferrals;
    if (state->idle > IDLE_LOOKS) {
        shard->prompter_up = false;
        awake = false;
    }
    fnet_lock_release(&shard->output);
    return awake;
}

/* With the mutex held, which is given up meanwhile.  A plain sleep: one system
 * call per look, where a timed wait for the condition takes two; who stops
 * the thread waits for the rest of its millisecond. */
static void
watch(fnet_prompter *prompter)
{
    look_state state = {.next = fnet_clock_ns() + PERIOD};
    bool awake = true;

    while (awake && !prompter->stop) {
        pthread_mutex_unlock(&prompter->mutex);
        struct timespec until = {.tv_sec = (time_t)(state.next / FNET_SEC),
                                 .tv_nsec = (long)(state.next % FNET_SEC)};
        (void)clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
        awake = look(prompter->shard, &state);
        pthread_mutex_lock(&prompter->mutex);
    }
}

/* Asks the scheduler for short slices, as who does little and must do it
 * soon: without that a loop that computes on the same CPU keeps it for a
 * slice of 3 ms (Linux >= 6.12; others refuse or ignore it, no matter). */
static void
ask_for_short_slices(void)
{
    struct {
        uint32_t size, policy;
        uint64_t flags;
        int32_t nice;
        uint32_t priority;
        uint64_t runtime, deadline, period;
    } attr = {.size = 48, .policy = SCHED_OTHER, .runtime = 100000};

    errno = 0;
    attr.nice = getpriority(PRIO_PROCESS, 0);
    if (errno == 0) {
        (void)syscall(SYS_sched_setattr, 0, &attr, 0);
    }
}

static void
run(void *arg)
{
    fnet_prompter *prompter = arg;

    ask_for_short_slices();
    pthread_mutex_lock(&prompter->mutex);
    while (!prompter->stop) {
        if (prompter->armed) {
            prompter->armed = false;
            watch(prompter);
        }
        else if (prompter->trim) {
            prompter->trim = false;
            pthread_mutex_unlock(&prompter->mutex);
            malloc_trim(0);
            pthread_mutex_lock(&prompter->mutex);
        }
        else {
            pthread_cond_wait(&prompter->wake, &prompter->mutex);
        }
    }
    pthread_mutex_unlock(&prompter->mutex);
}

static bool
start_locked(fnet_prompter *prompter)
{
    if (fnet_thread_started(&prompter->thread)) {
        return true;
    }
    prompter->stop = false;
    return fnet_thread_start(&prompter->thread, "fnet-prompter",
                             FNET_STACK_CORE, run, prompter) == 0;
}

/* The first deferral of a turn found the prompter asleep. */
static void
wake_locked(void *arg)
{
    fnet_prompter *prompter = arg;
    fnet_assert_locked(&prompter->shard->output);

    pthread_mutex_lock(&prompter->mutex);
    if (start_locked(prompter)) {
        prompter->armed = true;
        prompter->shard->prompter_up = true;
        pthread_cond_signal(&prompter->wake);
    }
    else {
        /* No thread to be had: send at once from now on. */
        prompter->shard->late = true;
        prompter->shard->defer = false;
    }
    pthread_mutex_unlock(&prompter->mutex);
}

int
fnet_prompter_new(fnet_prompter **out, fnet_shard *shard)
{
    fnet_prompter *prompter = fnet_calloc(1, sizeof(*prompter));

    if (prompter == NULL) {
        return -ENOMEM;
    }
    prompter->shard = shard;
    pthread_mutex_init(&prompter->mutex, NULL);
    pthread_cond_init(&prompter->wake, NULL);
    shard->wake_prompter = wake_locked;
    shard->prompter = prompter;
    *out = prompter;
    return 0;
}

static void
reset(fnet_prompter *prompter)
{
    prompter->stop = false;
    prompter->armed = false;
    prompter->trim = false;
    prompter->shard->prompter_up = false;
}

void
fnet_prompter_stop(fnet_prompter *prompter)
{
    bool join;

    pthread_mutex_lock(&prompter->mutex);
    prompter->stop = true;
    join = fnet_thread_started(&prompter->thread);
    pthread_cond_signal(&prompter->wake);
    pthread_mutex_unlock(&prompter->mutex);
    if (join) {
        fnet_thread_join(&prompter->thread);
    }
    reset(prompter);
}

void
fnet_prompter_forget(fnet_prompter *prompter)
{
    fnet_thread_forget(&prompter->thread);
    /* If it was not stopped, or a worker was waking it, it is held. */
    pthread_mutex_init(&prompter->mutex, NULL);
    pthread_cond_init(&prompter->wake, NULL);
    reset(prompter);
}

void
fnet_prompter_free(fnet_prompter *prompter)
{
    if (prompter == NULL) {
        return;
    }
    fnet_prompter_stop(prompter);
    prompter->shard->wake_prompter = NULL;
    prompter->shard->prompter = NULL;
    pthread_cond_destroy(&prompter->wake);
    pthread_mutex_destroy(&prompter->mutex);
    fnet_free(prompter);
}

void
fnet_prompter_trim(fnet_prompter *prompter)
{
    pthread_mutex_lock(&prompter->mutex);
    if (start_locked(prompter)) {
        prompter->trim = true;
        pthread_cond_signal(&prompter->wake);
    }
    pthread_mutex_unlock(&prompter->mutex);
}
