/* fd: the life of a descriptor that many threads use in blocking calls.
 *
 * After Go's netFD.  Each call is an operation: it takes the turn of its
 * direction (reads are one after the other, and so are writes) and with it a
 * reference; fnet_fd_close() marks the descriptor, wakes every blocked call,
 * and the number is closed by the last call that leaves: never under one.
 * Deadlines are absolute, one per direction, and move under blocked calls.
 *
 *     rc = fnet_fd_begin(fd, &op, FNET_FD_READ, timeout);
 *     if (rc == -EAGAIN) { rc = fnet_fd_await_turn(fd, &op); }
 *     if (rc == 0) {
 *         while ((n = try without waiting) == -EAGAIN &&
 *                (rc = fnet_fd_wait(fd, &op)) == 0) {
 *         }
 *         fnet_fd_end(fd, &op);
 *     }
 *
 * Any thread, for every function but init and fini.  Those named await_turn
 * and wait may block, the others never do.  They return 0 or
 *     -EBADF      closed
 *     -ETIMEDOUT  the deadline has passed
 *     -EINTR      a signal came: whoever calls lets its handler run, and
 *                 calls again; what is left of the time stays as it was.
 *
 * A turn belongs to a thread: a handler that interrupts an operation and
 * begins another one in the same direction is let in beside it.  In a forked
 * child the turns of threads that are not there have ended. */
#ifndef FNET_NET_FD_H
#define FNET_NET_FD_H

#include "base/base.h"
#include "base/lock.h"
#include "net/sleeper.h"

#include <stdatomic.h>

enum fnet_fd_dir { FNET_FD_READ = 0, FNET_FD_WRITE = 1 };

typedef struct fnet_fd {
    /* constant after init */
    int number;
    /* atomic: see fd.c for its bits.  Acquired by begin, released by end. */
    _Atomic(uint64_t) state;
    /* atomic: relaxed; set_deadline then looks at who sleeps, with the lock */
    _Atomic(int64_t) deadline[2];
    /* atomic: relaxed; fnet_thread_self() of who has the turn, 0 */
    _Atomic(uintptr_t) owner[2];
    /* atomic: released after what a fork broke was put right */
    _Atomic(unsigned) generation;
    /* guarded by lock */
    fnet_lock lock;
    fnet_list sleeping[2]; /* who waits for the descriptor */
    fnet_list queue[2];    /* who waits for a turn */
    fnet_sleeper *drain;   /* who waits for all to leave */
} fnet_fd;

/* One call, on the stack of its thread. */
typedef struct fnet_fd_op {
    enum fnet_fd_dir dir;
    bool turn; /* has it; else it came in beside its own thread's */
    unsigned generation;
    int64_t timeout; /* ns from the first wait on; < 0: none */
    int64_t until;   /* what that comes to; FNET_NEVER: none, or not yet */
} fnet_fd_op;

/* Owns `number` from now on: 0 or -ENOMEM and the like (then it does not). */
FNET_MUST_CHECK int fnet_fd_init(fnet_fd *fd, int number);
/* Nobody uses it; closes the number if that is still open. */
void fnet_fd_fini(fnet_fd *fd);

/* `timeout`: in ns, < 0 for none; counted from the first time the operation
 * has to wait.  -EAGAIN: the turn is another thread's. */
FNET_MUST_CHECK int fnet_fd_begin(fnet_fd *fd, fnet_fd_op *op,
                                  enum fnet_fd_dir dir, int64_t timeout);
/* After -EAGAIN: waits for the turn, in the order of asking. */
FNET_MUST_CHECK int fnet_fd_await_turn(fnet_fd *fd, fnet_fd_op *op);
/* Waits until the descriptor may be ready for the operation: a hint. */
FNET_MUST_CHECK int fnet_fd_wait(fnet_fd *fd, fnet_fd_op *op);
/* Sleeps for `ns`, or until the operation has to end: 0, or as above.  For
 * what cannot be waited for. */
FNET_MUST_CHECK int fnet_fd_pause(fnet_fd *fd, fnet_fd_op *op, int64_t ns);
/* Between the pieces of a long operation: 0, -EBADF or -ETIMEDOUT. */
FNET_MUST_CHECK int fnet_fd_check(fnet_fd *fd, const fnet_fd_op *op);
/* After each begin or await_turn that has returned 0. */
void fnet_fd_end(fnet_fd *fd, fnet_fd_op *op);

/* A use that takes no turn (getsockopt and the like) and has no deadline. */
FNET_MUST_CHECK int fnet_fd_hold(fnet_fd *fd);
void fnet_fd_release(fnet_fd *fd);

/* Wakes every call, which return -EBADF as all later ones do; the number is
 * closed once they have left.  -EBADF if somebody was first. */
int fnet_fd_close(fnet_fd *fd);
/* The same, but the number becomes the caller's, which must then wait with
 * fnet_fd_await_end() before it uses it. */
int fnet_fd_detach(fnet_fd *fd);
/* Blocks for as long as the calls that were woken need to leave; at once if
 * one of them is this thread's own.  0 or -EINTR. */
int fnet_fd_await_end(fnet_fd *fd);
bool fnet_fd_closed(const fnet_fd *fd);

/* A time of fnet_clock_ns(), or FNET_NEVER; also for calls blocked now.  One
 * that has passed makes each call fail before it does anything. */
void fnet_fd_set_deadline(fnet_fd *fd, enum fnet_fd_dir dir, int64_t when);

#endif
