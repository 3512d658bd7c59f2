#include "python/gate.h"

#include "base/clock.h"
#include "net/sleeper.h"

#include <limits.h>

#ifdef Py_GIL_DISABLED

void
fnet_gate_init(fnet_gate *gate, unsigned cpus)
{
}

PyThreadState *
fnet_gate_leave(fnet_gate *gate)
{
    return PyEval_SaveThread();
}

void
fnet_gate_enter(fnet_gate *gate, PyThreadState *saved)
{
    PyEval_RestoreThread(saved);
}

/* There is no GIL that a try could spare. */
bool
fnet_gate_crowded(const fnet_gate *gate)
{
    return true;
}

bool
fnet_gate_call_crowded(fnet_gate *gate)
{
    return false;
}

#else

/* -- to wait for it ------------------------------------------------------ */

#define WAIT INT64_C(4000)    /* ns: what a sleep and a wake-up take */
#define LATE 16               /* in vain so often, with none that helped: */
#define OFF 256               /* so many do not wait */

void
fnet_gate_init(fnet_gate *gate, unsigned cpus)
{
    atomic_init(&gate->mark, 0);
    atomic_init(&gate->off, cpus > 1 ? 0 : INT_MAX);
    gate->late = 0;
    gate->wanted = 0;
}

PyThreadState *
fnet_gate_leave(fnet_gate *gate)
{
    uintptr_t self = fnet_thread_self();
    PyThreadState *saved = PyEval_SaveThread();

    /* Only afterwards, so that who waits finds the GIL free; by then it may
     * be another's, and the mark too. */
    (void)atomic_compare_exchange_strong_explicit(
        &gate->mark, &self, 0, memory_order_relaxed, memory_order_relaxed);
    return saved;
}

static inline bool
try_mark(fnet_gate *gate, uintptr_t self)
{
    uintptr_t seen = 0;

    return atomic_load_explicit(&gate->mark, memory_order_relaxed) == 0 &&
           atomic_compare_exchange_strong_explicit(&gate->mark, &seen, self,
                                                   memory_order_relaxed,
                                                   memory_order_relaxed);
}

enum passage {
    AT_ONCE, /* there was no mark, or waiting is given up: says nothing */
    WAITED,  /* the mark went away */
    IN_VAIN, /* it did not */
};

/* Puts this thread's mark in the gate, if need be after a wait. */
static enum passage
pass(fnet_gate *gate, uintptr_t self, int64_t since)
{
    if (FNET_LIKELY(try_mark(gate, self))) {
        return AT_ONCE;
    }
    do {
        for (int i = 0; i < 8; i++) {
            fnet_cpu_relax();
        }
        if (try_mark(gate, self)) {
            return WAITED;
        }
    } while (fnet_clock_ns() - since < WAIT);
    return IN_VAIN;
}

/* With the GIL: what the next ones may hope for. */
static void
learn(fnet_gate *gate, enum passage how)
{
    int off = atomic_load_explicit(&gate->off, memory_order_relaxed);

    if (FNET_UNLIKELY(off > 0)) {
        if (off != INT_MAX) {
            atomic_store_explicit(&gate->off, off - 1, memory_order_relaxed);
        }
    }
    else if (how == WAITED) {
        gate->late = 0;
    }
    else if (how == IN_VAIN && ++gate->late == LATE) {
        gate->late = 0;
        atomic_store_explicit(&gate->off, OFF, memory_order_relaxed);
    }
}

/* -- to keep it or not --------------------------------------------------- */

/* A call that keeps the GIL while it tries spares itself two hand-overs, and
 * where another thread computes each of them costs a switch interval.  But
 * where several threads talk at once, a send of 4 us with the GIL keeps the
 * others from their bit of Python, and they go to sleep for it: 4.1 sleeps per
 * exchange instead of 3.6 (csrc/README.md).  So taking the GIL back after a
 * wait is timed: a short wait for it lets the next calls try without it, a
 * long one (somebody computes) or none lets them keep it. */
#define SHORT INT64_C(2000)   /* ns: more than an uncontended one takes */
#define LONG INT64_C(1000000) /* ns: nobody that talks has it so long */
#define CALLS 4096            /* tried without it after a short wait */

void
fnet_gate_enter(fnet_gate *gate, PyThreadState *saved)
{
    int64_t before = fnet_clock_ns();
    uintptr_t self = fnet_thread_self();
    enum passage how = AT_ONCE;

    if (atomic_load_explicit(&gate->off, memory_order_relaxed) == 0) {
        how = pass(gate, self, before);
        if (how == IN_VAIN) {
            before = fnet_clock_ns(); /* the GIL may have been free */
        }
    }
    PyEval_RestoreThread(saved);
    atomic_store_explicit(&gate->mark, self, memory_order_relaxed);
    learn(gate, how);
    int64_t took = fnet_clock_ns() - before;
    if (took > LONG) {
        gate->wanted = 0;
    }
    else if (took > SHORT) {
        gate->wanted = CALLS;
    }
}

bool
fnet_gate_crowded(const fnet_gate *gate)
{
    return gate->wanted > 0;
}

bool
fnet_gate_call_crowded(fnet_gate *gate)
{
    if (FNET_LIKELY(gate->wanted == 0)) {
        return false;
    }
    gate->wanted--;
    return true;
}

#endif
