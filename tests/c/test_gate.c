/* How threads take the GIL back (csrc/python/gate.c), with a mutex for a GIL:
 * here its marks can be set, and a thread sanitizer sees all of it. */
#define FNET_PYTHON_COMPAT_H /* which includes Python.h */

typedef struct PyThreadState {
    int unused;
} PyThreadState;

PyThreadState *PyEval_SaveThread(void);
void PyEval_RestoreThread(PyThreadState *state);

/* First, without a declaration of what is static in it. */
#include "python/gate.c"

#include "test.h"

#include <pthread.h>
#include <sched.h>

#define ELSEWHERE ((uintptr_t)1) /* no thread is there */
#define TRIES 1000               /* on a machine that does not keep time */

static pthread_mutex_t gil = PTHREAD_MUTEX_INITIALIZER;
static PyThreadState one_state;

PyThreadState *
PyEval_SaveThread(void)
{
    CHECK(pthread_mutex_unlock(&gil) == 0);
    return &one_state;
}

void
PyEval_RestoreThread(PyThreadState *state)
{
    CHECK(state == &one_state && pthread_mutex_lock(&gil) == 0);
}

static uintptr_t
mark_of(fnet_gate *gate)
{
    return atomic_load(&gate->mark);
}

/* A call whose thread finds this mark when it comes back. */
static void
call(fnet_gate *gate, uintptr_t mark)
{
    PyThreadState *saved = fnet_gate_leave(gate);
    CHECK(mark_of(gate) == 0);
    atomic_store(&gate->mark, mark);
    fnet_gate_enter(gate, saved);
    CHECK(mark_of(gate) == fnet_thread_self());
}

static void
a_thread_leaves_its_mark_and_takes_it_away(void)
{
    fnet_gate gate;
    fnet_gate_init(&gate, 2);
    pthread_mutex_lock(&gil);
    for (int i = 0; i < 10; i++) {
        call(&gate, 0);
    }
    CHECK(gate.late == 0 && atomic_load(&gate.off) == 0);

    atomic_store(&gate.mark, ELSEWHERE); /* another's stays */
    PyThreadState *saved = fnet_gate_leave(&gate);
    CHECK(mark_of(&gate) == ELSEWHERE);
    fnet_gate_enter(&gate, saved);
    pthread_mutex_unlock(&gil);
}

/* Between two waits in vain others come back to a gate without a mark, which
 * says nothing about the waits: a reader that hands on through a queue, and a
 * worker that sleeps there and leaves its mark. */
static void
waiting_in_vain_is_given_up(void)
{
    fnet_gate gate;
    fnet_gate_init(&gate, 2);
    pthread_mutex_lock(&gil);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < LATE; i++) {
            CHECK(atomic_load(&gate.off) == 0 && gate.late == i);
            call(&gate, ELSEWHERE);
            if (i < LATE - 1) {
                call(&gate, 0);
            }
        }
        for (int i = OFF; i > 0; i--) {
            CHECK(atomic_load(&gate.off) == i && gate.late == 0);
            call(&gate, ELSEWHERE);
        }
    }
    pthread_mutex_unlock(&gil);
}

static void
with_one_cpu_nobody_waits(void)
{
    fnet_gate gate;
    fnet_gate_init(&gate, 1);
    pthread_mutex_lock(&gil);
    for (int i = 0; i < 2 * OFF; i++) {
        call(&gate, ELSEWHERE);
    }
    CHECK(gate.late == 0 && atomic_load(&gate.off) == INT_MAX);
    pthread_mutex_unlock(&gil);
}

/* A mark that was left behind while the GIL is free: nobody wants it. */
static void
a_wait_in_vain_is_no_contention(void)
{
    bool calm = false;
    pthread_mutex_lock(&gil);
    for (int i = 0; i < TRIES && !calm; i++) {
        fnet_gate gate;
        fnet_gate_init(&gate, 2);
        call(&gate, ELSEWHERE);
        CHECK(gate.late == 1);
        calm = !fnet_gate_crowded(&gate);
    }
    CHECK(calm);
    pthread_mutex_unlock(&gil);
}

static void
calls_are_counted_while_it_is_crowded(void)
{
    fnet_gate gate;
    fnet_gate_init(&gate, 2);
    CHECK(!fnet_gate_crowded(&gate) && !fnet_gate_call_crowded(&gate));
    gate.wanted = 2;
    CHECK(fnet_gate_call_crowded(&gate) && fnet_gate_crowded(&gate));
    CHECK(fnet_gate_call_crowded(&gate) && !fnet_gate_crowded(&gate));
    CHECK(!fnet_gate_call_crowded(&gate) && gate.wanted == 0);
}

/* -- with others --------------------------------------------------------- */

typedef struct crowd {
    fnet_gate gate;
    atomic_bool stop;
    long count; /* with the GIL */
} crowd;

static void *
take_marks_away(void *arg)
{
    crowd *c = arg;
    while (!atomic_load(&c->stop)) {
        atomic_store(&c->gate.mark, 0);
        sched_yield();
    }
    return NULL;
}

static void
a_wait_that_succeeds_is_remembered(void)
{
    crowd c = {.count = 0};
    pthread_t thread;
    enum passage how = IN_VAIN;
    fnet_gate_init(&c.gate, 2);
    CHECK(pthread_create(&thread, NULL, take_marks_away, &c) == 0);
    for (int i = 0; i < 1000 * TRIES && how != WAITED; i++) {
        atomic_store(&c.gate.mark, ELSEWHERE);
        how = pass(&c.gate, fnet_thread_self(), fnet_clock_ns());
    }
    atomic_store(&c.stop, true);
    pthread_join(thread, NULL);
    CHECK(how == WAITED);
    c.gate.late = LATE - 1;
    learn(&c.gate, AT_ONCE);
    CHECK(c.gate.late == LATE - 1);
    learn(&c.gate, WAITED);
    CHECK(c.gate.late == 0);
}

#define THREADS 4
#define CALLS_EACH 20000

static void *
talk(void *arg)
{
    crowd *c = arg;
    pthread_mutex_lock(&gil);
    for (int i = 0; i < CALLS_EACH; i++) {
        (void)fnet_gate_call_crowded(&c->gate);
        c->count++;
        PyThreadState *saved = fnet_gate_leave(&c->gate);
        fnet_gate_enter(&c->gate, saved);
        if (i % 64 == 0) {
            /* Gives the GIL up without the gate. */
            pthread_mutex_unlock(&gil);
            sched_yield();
            pthread_mutex_lock(&gil);
        }
    }
    pthread_mutex_unlock(&gil);
    return NULL;
}

static void
many_threads(void)
{
    crowd c = {.count = 0};
    pthread_t threads[THREADS];
    fnet_gate_init(&c.gate, 2);
    for (int i = 0; i < THREADS; i++) {
        CHECK(pthread_create(&threads[i], NULL, talk, &c) == 0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
    }
    CHECK(c.count == (long)THREADS * CALLS_EACH);
    CHECK(c.gate.late >= 0 && c.gate.late < LATE);
    int off = atomic_load(&c.gate.off);
    CHECK(off >= 0 && off <= OFF);
}

int
main(void)
{
    RUN(a_thread_leaves_its_mark_and_takes_it_away);
    RUN(waiting_in_vain_is_given_up);
    RUN(with_one_cpu_nobody_waits);
    RUN(a_wait_in_vain_is_no_contention);
    RUN(calls_are_counted_while_it_is_crowded);
    RUN(a_wait_that_succeeds_is_remembered);
    RUN(many_threads);
    return test_report();
}
