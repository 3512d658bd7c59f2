/* adapt: whether it pays to have the home shard's pass run by a worker.
 *
 * It pays when the loop's thread is saturated, other CPUs are idle, and Python
 * and the kernel take comparable parts of a message's time; nothing that can
 * be read beforehand tells, so it is tried.  Time is cut into windows.  When
 * the thread was busy for two of them, did not have to wait for a CPU, and
 * half a CPU or more was idle, the shard is lent for a trial; it stays lent if
 * messages then come faster by GAIN, and is taken back if not, at the first
 * window that goes badly, to be tried again after twice the time.
 * What stays lent is reviewed: taken back for a moment, and compared.
 *
 * Plain arithmetic on what the caller has measured; any thread, one at a
 * time. */
#ifndef FNET_POLL_ADAPT_H
#define FNET_POLL_ADAPT_H

#include "base/base.h"

enum fnet_advice { FNET_ADVICE_NONE, FNET_ADVICE_LEND, FNET_ADVICE_RECALL };

enum fnet_adapt_state {
    FNET_ADAPT_HOME,   /* the loop's thread has it */
    FNET_ADAPT_TRIAL,  /* lent, not sure yet */
    FNET_ADAPT_KEPT,   /* lent, it pays */
    FNET_ADAPT_REVIEW, /* taken back to compare */
};

/* Totals since some moment, of the loop's thread. */
typedef struct fnet_load {
    int64_t now;    /* monotonic clock, ns */
    int64_t cpu;    /* CPU time, ns */
    int64_t delay;  /* time it was runnable and had no CPU, ns */
    uint64_t count; /* completions delivered */
    int64_t idle;   /* time that CPUs were idle, us, together; -1: not known */
} fnet_load;

typedef struct fnet_adapt {
    enum fnet_adapt_state state;
    int windows;        /* in this state */
    int busy;           /* windows in a row that were busy */
    int asked;          /* of these, at whose ends `idle` was asked for */
    int64_t window_end; /* when fnet_adapt_window() is to be called */
    fnet_load last;     /* at the beginning of the window; while the loop
                           does not run: how far it had come */
    double rate;        /* completions per second at home, or lent: of the
                           state before the one that is measured */
    double sum;         /* of the windows measured in this state */
    int measured;
    int64_t next;  /* no trial before; KEPT: when to review */
    int64_t pause; /* between the last trial and the next; 0: not begun */
} fnet_adapt;

/* The first window begins. */
void fnet_adapt_init(fnet_adapt *adapt, const fnet_load *load);
/* Whether the load of the window that ends now needs its `idle`, which is dear
 * to find out; that of a stop does while `asked` is not 0. */
bool fnet_adapt_asks_idle(const fnet_adapt *adapt, int64_t now);
/* A window is over. */
enum fnet_advice fnet_adapt_window(fnet_adapt *adapt, const fnet_load *load);
/* The loop stops; and runs again, perhaps by another thread, whose totals are
 * others: the window goes on as if it had not stopped. */
void fnet_adapt_suspend(fnet_adapt *adapt, const fnet_load *load);
void fnet_adapt_resume(fnet_adapt *adapt, const fnet_load *load);
/* What was advised could not be done now, or is no longer so. */
void fnet_adapt_refused(fnet_adapt *adapt, int64_t now);

#endif
