/* The controller of the home shard, fed with loads of which the answer is
 * known. */
#include "poll/adapt.h"

#include "base/clock.h"
#include "test.h"

/* A loop's thread and what it would do at home, and with home lent. */
typedef struct script {
    fnet_adapt adapt;
    fnet_load load;
    double busy, delayed; /* parts of its time */
    uint64_t home, lent;  /* completions per window */
    double idle;          /* CPUs */
    int64_t all_idle;     /* us */
    unsigned asked;
    bool knows_idle;
    bool away;
    unsigned lends, recalls;
} script;

static void
begin(script *s)
{
    s->load = (fnet_load){.now = 1000 * FNET_SEC, .idle = -1};
    fnet_adapt_init(&s->adapt, &s->load);
}

/* Lets the thread run for so long. */
static void
pass_time(script *s, int64_t ns)
{
    s->load.now += ns;
    s->load.cpu += (int64_t)(s->busy * (double)ns);
    s->load.delay += (int64_t)(s->delayed * (double)ns);
    if (s->knows_idle) {
        s->all_idle += (int64_t)(s->idle * (double)ns / 1e3);
    }
    s->load.count += (s->away ? s->lent : s->home) * (uint64_t)ns /
                     (uint64_t)(50 * FNET_MSEC);
}

static void
look(script *s)
{
    if (s->load.now < s->adapt.window_end) {
        return;
    }
    s->load.idle = -1;
    if (fnet_adapt_asks_idle(&s->adapt, s->load.now)) {
        s->asked++;
        s->load.idle = s->knows_idle ? s->all_idle : -1;
    }
    switch (fnet_adapt_window(&s->adapt, &s->load)) {
    case FNET_ADVICE_LEND:
        CHECK(!s->away);
        s->away = true;
        s->lends++;
        break;
    case FNET_ADVICE_RECALL:
        CHECK(s->away);
        s->away = false;
        s->recalls++;
        break;
    default:
        break;
    }
}

static void
seconds(script *s, int n)
{
    for (int i = 0; i < 100 * n; i++) {
        pass_time(s, 10 * FNET_MSEC);
        look(s);
    }
}

static void
stays_lent_where_it_pays(void)
{
    script s = {.busy = 1, .home = 1000, .lent = 1300};
    begin(&s);
    seconds(&s, 1);
    CHECK(s.away && s.lends == 1 && s.recalls == 0);
    CHECK(s.adapt.state == FNET_ADAPT_KEPT);
    seconds(&s, 60); /* reviewed now and then, and lent again */
    CHECK(s.away && s.recalls >= 3 && s.lends == s.recalls + 1);
    s.busy = 0.1;
    seconds(&s, 1);
    CHECK(!s.away && s.adapt.state == FNET_ADAPT_HOME);
}

static void
comes_back_where_it_does_not(void)
{
    script s = {.busy = 1, .home = 1000, .lent = 1000};
    begin(&s);
    seconds(&s, 60);
    CHECK(!s.away && s.lends == s.recalls);
    CHECK(s.lends >= 4 && s.lends <= 8); /* after 0.5, 1, 2, 4, ... seconds */
}

static void
is_not_tried_without_need(void)
{
    script idle = {.busy = 0.5, .home = 1000, .lent = 2000};
    script crowded = {.busy = 0.8, .delayed = 0.2, .home = 1000, .lent = 2000};
    begin(&idle);
    seconds(&idle, 10);
    CHECK(idle.lends == 0);
    begin(&crowded);
    seconds(&crowded, 10);
    CHECK(crowded.lends == 0);
}

static void
is_not_tried_without_an_idle_cpu(void)
{
    script s = {.busy = 1,
                .home = 1000,
                .lent = 2000,
                .knows_idle = true,
                .idle = 0.4};
    begin(&s);
    seconds(&s, 60);
    CHECK(s.lends == 0);
    CHECK(s.asked >= 2 && s.asked <= 16); /* not in each window */
    s.idle = 0.6;
    seconds(&s, 33); /* when the pause is over */
    CHECK(s.lends > 0);
}

static void
a_thread_with_little_to_do_asks_nothing(void)
{
    script s = {.busy = 0.5, .home = 1000, .knows_idle = true, .idle = 1};
    begin(&s);
    seconds(&s, 10);
    CHECK(s.asked == 0);
}

/* Lent for two windows of 50 ms, not four: one to settle, one that is bad. */
static void
a_bad_trial_ends_at_once(void)
{
    script s = {.busy = 1, .home = 1000, .lent = 900};
    int away = 0; /* ms */
    begin(&s);
    for (int i = 0; i < 50; i++) {
        pass_time(&s, 10 * FNET_MSEC);
        away += s.away ? 10 : 0;
        look(&s);
    }
    CHECK(s.lends == 1 && !s.away && away == 100);
}

/* A loop that runs for a moment at a time, by threads with totals of their
 * own: what counts is the time in it, in whole windows. */
static void
stops_do_not_count(void)
{
    script s = {.busy = 0.5, .home = 1000, .lent = 2000};
    begin(&s);
    for (int i = 0; i < 20000; i++) {
        fnet_adapt_suspend(&s.adapt, &s.load);
        s.load.now += 49 * FNET_MSEC;
        s.load.cpu = 5 * (20000 - i); /* of another thread */
        s.load.delay = 7 * i;
        fnet_adapt_resume(&s.adapt, &s.load);
        s.busy = i / 2 % 2; /* half of the time, and never for long */
        pass_time(&s, FNET_MSEC);
        look(&s);
    }
    CHECK(s.lends == 0);
    s.busy = 1;
    for (int i = 0; i < 600; i++) {
        fnet_adapt_suspend(&s.adapt, &s.load);
        s.load.now += FNET_MSEC;
        fnet_adapt_resume(&s.adapt, &s.load);
        pass_time(&s, FNET_MSEC);
        look(&s);
    }
    CHECK(s.lends == 1 && s.away);
}

/* With no CPU to spare a loop that runs for moments must not ask at the
 * beginning and the end of each: it asks in a window for each trial it would
 * have had. */
static void
a_crowded_loop_seldom_asks_in_its_stops(void)
{
    script s = {.busy = 0.8, .delayed = 0.2, .home = 1000, .lent = 2000};
    int asking = 0, stops = 60000;
    begin(&s);
    for (int i = 0; i < stops; i++) {
        pass_time(&s, FNET_MSEC);
        look(&s);
        asking += s.adapt.asked > 0;
        fnet_adapt_suspend(&s.adapt, &s.load);
        fnet_adapt_resume(&s.adapt, &s.load);
    }
    CHECK(s.lends == 0);
    CHECK(asking > 0 && asking <= stops / 100);
}

/* One that computes and gets no messages. */
static void
nothing_is_no_gain(void)
{
    script s = {.busy = 1, .home = 0, .lent = 0};
    begin(&s);
    seconds(&s, 60);
    CHECK(!s.away && s.lends == s.recalls && s.lends <= 8);
}

/* Once lent for its messages, and then without. */
static void
nothing_is_no_reason_to_stay(void)
{
    script s = {.busy = 1, .home = 1000, .lent = 1300};
    begin(&s);
    seconds(&s, 5);
    CHECK(s.away);
    s.home = s.lent = 0;
    seconds(&s, 20);
    CHECK(!s.away);
}

/* The idle time of a loop that stops between the two that are compared. */
static void
stops_do_not_count_as_idle(void)
{
    script s = {.busy = 1,
                .home = 1000,
                .lent = 2000,
                .knows_idle = true,
                .idle = 0.2};
    begin(&s);
    for (int i = 0; i < 3000; i++) {
        s.load.idle = s.adapt.asked > 0 ? s.all_idle : -1;
        fnet_adapt_suspend(&s.adapt, &s.load);
        s.load.now += FNET_MSEC;
        s.all_idle += 2000; /* two CPUs */
        s.load.idle = s.adapt.asked > 0 ? s.all_idle : -1;
        fnet_adapt_resume(&s.adapt, &s.load);
        pass_time(&s, FNET_MSEC);
        look(&s);
    }
    CHECK(s.asked >= 2 && s.lends == 0);
}

/* What was advised did not happen, or did not last. */
static void
refused(void)
{
    script s = {.busy = 1, .home = 1000, .lent = 2000};
    begin(&s);
    seconds(&s, 1);
    CHECK(s.adapt.state == FNET_ADAPT_KEPT);
    fnet_adapt_refused(&s.adapt, s.load.now);
    CHECK(s.adapt.state == FNET_ADAPT_HOME);
    s.away = false;
    seconds(&s, 3);
    CHECK(s.away && s.lends == 2);
}

int
main(void)
{
    RUN(stays_lent_where_it_pays);
    RUN(comes_back_where_it_does_not);
    RUN(is_not_tried_without_need);
    RUN(is_not_tried_without_an_idle_cpu);
    RUN(a_thread_with_little_to_do_asks_nothing);
    RUN(a_bad_trial_ends_at_once);
    RUN(stops_do_not_count);
    RUN(a_crowded_loop_seldom_asks_in_its_stops);
    RUN(nothing_is_no_gain);
    RUN(nothing_is_no_reason_to_stay);
    RUN(stops_do_not_count_as_idle);
    RUN(refused);
    return test_report();
}
