/* gate: how the blocking sockets give the GIL up and take it back.
 *
 * Between two system calls a thread that talks has a microsecond of Python to
 * run, and the next one that comes back meanwhile finds the GIL taken.  To
 * sleep for it is ten times as dear as to wait: two context switches, on an
 * idle CPU with a wake-up from the halt.  So whoever takes the GIL here leaves
 * its mark in the gate, and who finds one waits for a few microseconds on its
 * CPU until it is gone (csrc/README.md has the figures).
 *
 * The gate is a hint and protects nothing.  A thread that gives the GIL up
 * elsewhere (a lock, a queue, the switch interval) leaves a mark behind; who
 * waits in vain takes the GIL as ever and puts its own mark there.  Where
 * waiting is often in vain and never helps, it is given up for so many calls;
 * with one CPU it is never done.
 *
 * A gate is of one interpreter, and lives as long as its sockets: a thread
 * that waits here while the interpreter ends, of which PyEval_RestoreThread()
 * lets none return, leaves nothing but a mark.  On a free-threaded build all
 * this is nothing. */
#ifndef FNET_PYTHON_GATE_H
#define FNET_PYTHON_GATE_H

#include "base/base.h"
#include "python/compat.h"

#include <stdatomic.h>

typedef struct fnet_gate {
    /* atomic: relaxed; with the GIL or without: fnet_thread_self() of who has
     * taken the GIL here or is about to, 0: nobody */
    _Atomic(uintptr_t) mark;
    /* atomic: relaxed; so many more are not to wait here, INT_MAX: nobody
     * ever; written with the GIL, read without */
    atomic_int off;
    int late;   /* waits in vain since one that helped; with the GIL */
    int wanted; /* calls that are to try without the GIL; with the GIL */
} fnet_gate;

void fnet_gate_init(fnet_gate *gate, unsigned cpus);

/* In place of PyEval_SaveThread() and PyEval_RestoreThread(). */
PyThreadState *fnet_gate_leave(fnet_gate *gate);
void fnet_gate_enter(fnet_gate *gate, PyThreadState *saved);

/* With the GIL, before a system call that could be made with it or without:
 * whether others want it. */
bool fnet_gate_crowded(const fnet_gate *gate);
/* The same, and counts the call. */
bool fnet_gate_call_crowded(fnet_gate *gate);

#endif
