/* Who may touch a source of a shard that is lent: the check of its model.
 *
 * In each state that can be reached: a call for a source is made while that
 * has its descriptor and is attached; what is sent and what is delivered are
 * in order and go to whom they were for; batches come back in order, and a
 * source has one out at most; nobody waits for ever, and the worker does not
 * spin.  Each rule that the code keeps for this is broken in turn, and the
 * fault must show. */
#include "explore.h"
#include "test.h"

/* Behind them: its names are short. */
#include "source_model.h"

static const state scenarios[] = {
    {.writes = 3, .detaches = 1, .fulls = 1, .free = 1},
    {.writes = 1, .detaches = 1, .input = {1, 1}, .fulls = 1, .free = 1},
    {.writes = 2, .drops = 1, .detaches = 1, .fulls = 1, .free = 1},
    {.writes = 3, .flushes = 1, .recalls = 1, .fulls = 1, .free = 1},
    {.writes = 1, .writes_other = 2, .flushes = 1, .recalls = 1, .free = 1},
    {.writes = 2, .flushes = 1, .drops = 1, .detaches = 1, .free = 1},
    {.input = {2, 1}, .input_other = 2, .detaches = 1, .free = 2},
    {.input = {3, 0}, .input_other = 3, .free = 3},
};
static const state *scenario;

/* -- all states ----------------------------------------------------------- */

#define CHOICES 8

static explorer all;

static bool
step(state *s, int who, unsigned choice)
{
    switch (who) {
    case LOOP:
        return loop_step(s, choice);
    case WORKER:
        return worker_step(s, choice);
    default:
        return network_step(s, choice);
    }
}

/* Nothing that anybody waits for. */
static bool
is_done(const state *s)
{
    bool idle = s->loop == L_TOP && s->inbox[0].sequence == 0 &&
                s->mail.sequence == 0 && !s->full;
    if (!s->lent) {
        /* Input is for home's passes, output waits for none. */
        return idle && s->worker == W_TOP &&
               (s->prompted ||
                ((s->out == 0 || !s->writable) && !s->dirty_other));
    }
    return idle && s->worker == W_POLL && s->out == 0 && s->dirty == NOWHERE &&
           !s->dirty_other && s->ready == NOWHERE &&
           s->ready_other == NOWHERE && s->received == 0;
}

/* Alone, with nothing new, it must come to rest. */
static bool
worker_rests(state s)
{
    for (int i = 0; i < 64; i++) {
        if (!worker_step(&s, 0)) {
            return true;
        }
    }
    return false;
}

static const char *
visit(size_t which)
{
    explorer_clear(&all);
    scenario = &scenarios[which];
    state start = *scenario;
    start.lent = start.attached = start.open = start.writable = 1;
    (void)explorer_number(&all, &start);
    for (uint32_t i = 0; i < all.count && !all.full; i++) {
        state here;
        memcpy(&here, explorer_state(&all, i), sizeof(here));
        bool moved = false;
        broken = NULL;
        for (int who = 0; who < THREADS; who++) {
            for (unsigned choice = 0; choice < CHOICES; choice++) {
                state next = here;
                if (step(&next, who, choice)) {
                    moved = true;
                    explorer_add_edge(&all, i, explorer_number(&all, &next));
                }
            }
        }
        if (broken == NULL && !moved && !is_done(&here)) {
            broken = "nobody moves, and there is work";
        }
        if (broken == NULL && !worker_rests(here)) {
            broken = "the worker spins";
        }
        if (broken != NULL) {
            return broken;
        }
    }
    return all.full ? "too many states" : NULL;
}

/* And nothing is to come. */
static bool
is_the_end(const void *what)
{
    const state *s = what;
    return is_done(s) && s->writes == 0 && s->detaches == 0 &&
           s->flushes == 0 && s->drops == 0 && s->input_other == 0;
}

static void
the_rules_hold(void)
{
    uint32_t states = 0;
    fault = NONE;
    for (size_t i = 0; i < FNET_COUNTOF(scenarios); i++) {
        const char *wrong = visit(i);
        if (wrong != NULL) {
            fprintf(stderr, "%d: %s (state %u)\n", (int)i, wrong, all.count);
        }
        CHECK(wrong == NULL);
        CHECK(explorer_count_hopeless(&all, is_the_end) == 0);
        states += all.count;
    }
    CHECK(states > 10000);
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
    RUN(the_rules_hold);
    RUN(each_fault_shows);
    explorer_fini(&all);
    return test_report();
}
