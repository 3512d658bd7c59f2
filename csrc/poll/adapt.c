#include "poll/adapt.h"

#include "base/clock.h"

/* Long enough for hundreds of messages, short against what a trial that fails
 * costs: with four windows in 2, 4, 8, ... 64 windows' time, 1.5 % of the rate
 * where a worker loses a fifth. */
#define WINDOW (50 * FNET_MSEC)
#define BUSY 0.85    /* of the window: the thread is saturated */
#define CALM 0.30    /* the thread has little to do */
#define DELAYED 0.05 /* of the window: there is no CPU to spare */
#define SPARE 0.5    /* CPUs that were idle: less than that is no worker's */
#define GAIN 1.05
#define LOSS 0.95 /* a window of a trial that ends it */
#define SETTLE 1  /* windows after a change that do not count */
#define MEASURE 3 /* those that do */
#define PAUSE_MIN (FNET_SEC / 2)
#define PAUSE_MAX (32 * FNET_SEC)
#define REVIEW_EVERY (10 * FNET_SEC)

typedef struct window {
    double busy, delayed, rate;
    double idle; /* CPUs */
} window;

static void
enter(fnet_adapt *adapt, enum fnet_adapt_state state)
{
    adapt->state = state;
    adapt->windows = 0;
    adapt->busy = 0;
    adapt->asked = 0;
    adapt->sum = 0;
    adapt->measured = 0;
}

static window
measure(fnet_adapt *adapt, const fnet_load *load)
{
    double wall = (double)(load->now - adapt->last.now);
    window w = {
        .busy = (double)(load->cpu - adapt->last.cpu) / wall,
        .delayed = (double)(load->delay - adapt->last.delay) / wall,
        .rate = (double)(load->count - adapt->last.count) * 1e9 / wall,
    };
    /* Where the system does not tell, the trial will. */
    w.idle = load->idle < 0 || adapt->last.idle < 0
                 ? SPARE
                 : (double)(load->idle - adapt->last.idle) * 1e3 / wall;
    adapt->last = *load;
    adapt->window_end = load->now + WINDOW;
    adapt->windows++;
    return w;
}

/* True once MEASURE windows are in the sum. */
static bool
add(fnet_adapt *adapt, const window *w)
{
    if (adapt->windows <= SETTLE) {
        return false;
    }
    adapt->sum += w->rate;
    adapt->measured++;
    return adapt->measured >= MEASURE;
}

static double
mean(const fnet_adapt *adapt)
{
    return adapt->measured == 0 ? 0 : adapt->sum / adapt->measured;
}

/* Into the mean of the last MEASURE windows of this state. */
static void
slide(fnet_adapt *adapt, const window *w)
{
    if (adapt->measured == MEASURE) {
        adapt->sum -= adapt->sum / MEASURE;
        adapt->measured--;
    }
    adapt->sum += w->rate;
    adapt->measured++;
}

/* The next trial is twice as far away. */
static void
put_off(fnet_adapt *adapt, int64_t now)
{
    adapt->next = now + adapt->pause;
    adapt->pause = 2 * adapt->pause < PAUSE_MAX ? 2 * adapt->pause : PAUSE_MAX;
    enter(adapt, FNET_ADAPT_HOME);
}

static enum fnet_advice
give_up(fnet_adapt *adapt, int64_t now)
{
    put_off(adapt, now);
    return FNET_ADVICE_RECALL;
}

static enum fnet_advice
at_home(fnet_adapt *adapt, const window *w, int64_t now)
{
    if (w->busy + w->delayed < BUSY) {
        enter(adapt, FNET_ADAPT_HOME);
        if (w->busy < CALM) {
            adapt->pause = PAUSE_MIN; /* other work, another try */
        }
        return FNET_ADVICE_NONE;
    }
    bool asked = fnet_adapt_asks_idle(adapt, now);
    adapt->busy++;
    slide(adapt, w);
    adapt->asked = asked ? adapt->asked + 1 : 0;
    if (adapt->asked < 2) {
        return FNET_ADVICE_NONE;
    }
    if (w->delayed > DELAYED || w->idle < SPARE) {
        /* For both: or a loop that runs for moments would ask in each. */
        put_off(adapt, now);
        return FNET_ADVICE_NONE;
    }
    adapt->rate = mean(adapt);
    enter(adapt, FNET_ADAPT_TRIAL);
    return FNET_ADVICE_LEND;
}

static enum fnet_advice
on_trial(fnet_adapt *adapt, const window *w, int64_t now)
{
    bool all = add(adapt, w);
    if (adapt->measured > 0 && w->rate < adapt->rate * LOSS) {
        return give_up(adapt, now);
    }
    if (!all) {
        return FNET_ADVICE_NONE;
    }
    /* Not <: where nothing is delivered, nothing is gained. */
    if (mean(adapt) <= adapt->rate * GAIN) {
        return give_up(adapt, now);
    }
    enter(adapt, FNET_ADAPT_KEPT);
    adapt->next = now + REVIEW_EVERY;
    return FNET_ADVICE_NONE;
}

static enum fnet_advice
kept(fnet_adapt *adapt, const window *w, int64_t now)
{
    if (w->busy < CALM) {
        /* Little to do: a hand-over for each message only costs. */
        adapt->busy++;
        if (adapt->busy >= MEASURE) {
            adapt->pause = PAUSE_MIN;
            return give_up(adapt, now);
        }
        return FNET_ADVICE_NONE;
    }
    adapt->busy = 0;
    slide(adapt, w);
    if (now < adapt->next) {
        return FNET_ADVICE_NONE;
    }
    adapt->rate = mean(adapt);
    enter(adapt, FNET_ADAPT_REVIEW);
    return FNET_ADVICE_RECALL;
}

static enum fnet_advice
in_review(fnet_adapt *adapt, const window *w, int64_t now)
{
    if (!add(adapt, w)) {
        return FNET_ADVICE_NONE;
    }
    if (adapt->rate <= mean(adapt) * GAIN) {
        adapt->next = now + adapt->pause;
        enter(adapt, FNET_ADAPT_HOME);
        return FNET_ADVICE_NONE;
    }
    enter(adapt, FNET_ADAPT_KEPT);
    adapt->next = now + REVIEW_EVERY;
    return FNET_ADVICE_LEND;
}

void
fnet_adapt_init(fnet_adapt *adapt, const fnet_load *load)
{
    *adapt = (fnet_adapt){
        .last = *load, .window_end = load->now + WINDOW, .pause = PAUSE_MIN};
}

/* From the second busy window on, when a trial is due: two make a difference.
 */
bool
fnet_adapt_asks_idle(const fnet_adapt *adapt, int64_t now)
{
    return adapt->state == FNET_ADAPT_HOME && adapt->busy > 0 &&
           now >= adapt->next;
}

/* From the totals at the window's beginning to what it has come to, and back.
 */
static void
turn_over(fnet_load *last, const fnet_load *load)
{
    last->now = load->now - last->now;
    last->cpu = load->cpu - last->cpu;
    last->delay = load->delay - last->delay;
    last->count = load->count - last->count;
    last->idle =
        load->idle < 0 || last->idle < 0 ? -1 : load->idle - last->idle;
}

void
fnet_adapt_suspend(fnet_adapt *adapt, const fnet_load *load)
{
    adapt->window_end -= load->now;
    turn_over(&adapt->last, load);
}

void
fnet_adapt_resume(fnet_adapt *adapt, const fnet_load *load)
{
    adapt->window_end += load->now;
    turn_over(&adapt->last, load);
}

enum fnet_advice
fnet_adapt_window(fnet_adapt *adapt, const fnet_load *load)
{
    if (load->now <= adapt->last.now) {
        return FNET_ADVICE_NONE;
    }
    window w = measure(adapt, load);

    switch (adapt->state) {
    case FNET_ADAPT_HOME:
        return at_home(adapt, &w, load->now);
    case FNET_ADAPT_TRIAL:
        return on_trial(adapt, &w, load->now);
    case FNET_ADAPT_KEPT:
        return kept(adapt, &w, load->now);
    default:
        return in_review(adapt, &w, load->now);
    }
}

void
fnet_adapt_refused(fnet_adapt *adapt, int64_t now)
{
    (void)give_up(adapt, now);
}
