#include "net/fd.h"

#include "base/clock.h"
#include "base/sys.h"

#include <errno.h>

/* The state: five flags, and above them the number of references, one of
 * which is that of being open.  All changes of it are atomic; that a queue is
 * not empty (QUEUED) is changed with the lock only. */
#define CLOSING UINT64_C(1)
#define TURN(dir) (UINT64_C(2) << (dir))
#define QUEUED(dir) (UINT64_C(8) << (dir))
#define DETACHED UINT64_C(32) /* the number is not ours to close */
#define REF UINT64_C(256)

static inline uint64_t
load(const fnet_fd *fd)
{
    return atomic_load_explicit(&fd->state, memory_order_acquire);
}

/* False, and *seen renewed: the state has changed. */
static inline bool
change(fnet_fd *fd, uint64_t *seen, uint64_t next)
{
    return atomic_compare_exchange_weak_explicit(
        &fd->state, seen, next, memory_order_acq_rel, memory_order_acquire);
}

static void
reset(fnet_fd *fd)
{
    for (int dir = 0; dir < 2; dir++) {
        atomic_store_explicit(&fd->owner[dir], 0, memory_order_relaxed);
        fnet_list_init(&fd->sleeping[dir]);
        fnet_list_init(&fd->queue[dir]);
    }
    fd->drain = NULL;
}

int
fnet_fd_init(fnet_fd *fd, int number)
{
    fnet_fork_watch();
    int rc = fnet_lock_init(&fd->lock, FNET_RANK_FD);
    if (rc < 0) {
        return rc;
    }
    fd->number = number;
    atomic_init(&fd->state, REF);
    for (int dir = 0; dir < 2; dir++) {
        atomic_init(&fd->deadline[dir], FNET_NEVER);
        atomic_init(&fd->owner[dir], 0);
    }
    atomic_init(&fd->generation, fnet_fork_generation());
    reset(fd);
    return 0;
}

/* -- forks -------------------------------------------------------------- */

/* The first use in a child: whoever had a turn, a reference or the lock in
 * the parent is not here. */
static FNET_COLD void
renew(fnet_fd *fd)
{
    unsigned now = fnet_fork_generation();

    fnet_fork_lock();
    if (atomic_load_explicit(&fd->generation, memory_order_relaxed) != now) {
        uint64_t state = load(fd);
        bool open = state >= REF;
        state &= CLOSING | DETACHED;
        if (open && state == CLOSING) {
            /* A call that kept it open was blocked when the fork came. */
            fnet_sys_close(fd->number);
        }
        /* The lock may have been held: it is made anew, not unlocked. */
        if (fnet_lock_init(&fd->lock, FNET_RANK_FD) < 0) {
            fnet_panic("fd: no lock in a forked child");
        }
        reset(fd);
        atomic_store_explicit(&fd->state, state != 0 ? state : REF,
                              memory_order_relaxed);
        atomic_store_explicit(&fd->generation, now, memory_order_release);
    }
    fnet_fork_unlock();
}

static inline void
look_for_fork(fnet_fd *fd)
{
    if (FNET_UNLIKELY(
            atomic_load_explicit(&fd->generation, memory_order_acquire) !=
            fnet_fork_generation())) {
        renew(fd);
    }
}

void
fnet_fd_fini(fnet_fd *fd)
{
    look_for_fork(fd);
    (void)fnet_fd_close(fd);
    fnet_assert(load(fd) < REF);
    fnet_lock_fini(&fd->lock);
}

/* -- references and turns ----------------------------------------------- */

/* The last one has left, after close or detach. */
static void
last_left(fnet_fd *fd, uint64_t state)
{
    fnet_assert(state & CLOSING);
    if (!(state & DETACHED)) {
        fnet_sys_close(fd->number);
        return;
    }
    fnet_lock_acquire(&fd->lock);
    if (fd->drain != NULL) {
        fnet_sleeper_wake_locked(fd->drain);
    }
    fnet_lock_release(&fd->lock);
}

int
fnet_fd_hold(fnet_fd *fd)
{
    look_for_fork(fd);
    uint64_t state = load(fd);
    do {
        if (state & CLOSING) {
            return -EBADF;
        }
    } while (!change(fd, &state, state + REF));
    return 0;
}

void
fnet_fd_release(fnet_fd *fd)
{
    uint64_t state = load(fd);
    while (!change(fd, &state, state - REF)) {
    }
    if (state - REF < REF) {
        last_left(fd, state);
    }
}

static bool
passed(const fnet_fd *fd, const fnet_fd_op *op)
{
    int64_t until =
        atomic_load_explicit(&fd->deadline[op->dir], memory_order_relaxed);
    if (op->until < until) {
        until = op->until;
    }
    return until != FNET_NEVER && fnet_clock_ns() >= until;
}

int
fnet_fd_check(fnet_fd *fd, const fnet_fd_op *op)
{
    if (FNET_UNLIKELY(load(fd) & CLOSING)) {
        return -EBADF;
    }
    return FNET_UNLIKELY(passed(fd, op)) ? -ETIMEDOUT : 0;
}

/* The operation has its reference: it goes back if it came too late. */
static inline int
entered(fnet_fd *fd, fnet_fd_op *op)
{
    int rc = fnet_fd_check(fd, op);
    if (FNET_UNLIKELY(rc < 0)) {
        fnet_fd_end(fd, op);
    }
    return rc;
}

int
fnet_fd_begin(fnet_fd *fd, fnet_fd_op *op, enum fnet_fd_dir dir,
              int64_t timeout)
{
    uintptr_t self = fnet_thread_self();

    look_for_fork(fd);
    op->dir = dir;
    op->generation = fnet_fork_generation();
    op->timeout = timeout;
    op->until = FNET_NEVER;
    op->turn = true;
    uint64_t state = load(fd);
    for (;;) {
        if (state & CLOSING) {
            return -EBADF;
        }
        if (state & TURN(dir)) {
            /* Only this thread can have stored its own address. */
            if (atomic_load_explicit(&fd->owner[dir], memory_order_relaxed) !=
                self) {
                return -EAGAIN;
            }
            op->turn = false;
            if (change(fd, &state, state + REF)) {
                break;
            }
        }
        else if (change(fd, &state, (state | TURN(dir)) + REF)) {
            atomic_store_explicit(&fd->owner[dir], self, memory_order_relaxed);
            break;
        }
        op->turn = true;
    }
    return entered(fd, op);
}

/* With the lock: the turn goes to who has waited longest; without anybody
 * waiting it is free. */
static uint64_t
pass_on_locked(fnet_fd *fd, enum fnet_fd_dir dir)
{
    uint64_t state = load(fd), next;
    fnet_list *first = NULL;

    if (!(state & CLOSING)) {
        first = fnet_list_pop(&fd->queue[dir]);
    }
    if (first != NULL) {
        fnet_sleeper *next_one = fnet_container_of(first, fnet_sleeper, link);
        next_one->granted = true;
        fnet_sleeper_wake_locked(next_one);
    }
    do {
        next = state;
        if (first == NULL) {
            next = (state & ~TURN(dir)) - REF;
        }
        /* else our reference becomes the other one's */
        if (fnet_list_empty(&fd->queue[dir])) {
            next &= ~QUEUED(dir);
        }
    } while (!change(fd, &state, next));
    return next;
}

void
fnet_fd_end(fnet_fd *fd, fnet_fd_op *op)
{
    if (FNET_UNLIKELY(op->generation != fnet_fork_generation())) {
        return; /* in a child: it was ended by renew() */
    }
    if (!op->turn) {
        fnet_fd_release(fd);
        return;
    }
    enum fnet_fd_dir dir = op->dir;
    atomic_store_explicit(&fd->owner[dir], 0, memory_order_relaxed);
    uint64_t state = load(fd), next;
    do {
        if (FNET_UNLIKELY(state & QUEUED(dir))) {
            fnet_lock_acquire(&fd->lock);
            next = pass_on_locked(fd, dir);
            fnet_lock_release(&fd->lock);
            break;
        }
        next = (state & ~TURN(dir)) - REF;
    } while (!change(fd, &state, next));
    if (next < REF) {
        last_left(fd, next);
    }
}

/* -- waiting ------------------------------------------------------------ */

/* The operation's own time begins to run.  The time, if it was asked for. */
static int64_t
start_clock(fnet_fd_op *op)
{
    int64_t now = 0;

    if (op->timeout >= 0 && op->until == FNET_NEVER) {
        now = fnet_clock_ns();
        op->until = op->timeout < FNET_NEVER - now ? now + op->timeout
                                                   : FNET_NEVER - 1;
    }
    return now;
}

/* With the lock, so that a deadline set from now on finds us in a list. */
static int64_t
until_locked(const fnet_fd *fd, const fnet_fd_op *op)
{
    int64_t until =
        atomic_load_explicit(&fd->deadline[op->dir], memory_order_relaxed);
    return op->until < until ? op->until : until;
}

/* Takes the turn, or notes that somebody waits for it: false. */
static bool
take_or_queue_locked(fnet_fd *fd, const fnet_fd_op *op)
{
    uint64_t state = load(fd), next;
    do {
        if (state & CLOSING) {
            return false;
        }
        next = state & TURN(op->dir) ? state | QUEUED(op->dir)
                                     : (state | TURN(op->dir)) + REF;
    } while (!change(fd, &state, next));
    return next >= state + REF;
}

static void
unqueue_locked(fnet_fd *fd, enum fnet_fd_dir dir)
{
    if (fnet_list_empty(&fd->queue[dir])) {
        (void)atomic_fetch_and_explicit(&fd->state, ~QUEUED(dir),
                                        memory_order_acq_rel);
    }
}

int
fnet_fd_await_turn(fnet_fd *fd, fnet_fd_op *op)
{
    fnet_sleeper sleeper;
    bool mine;
    int rc = 0;

    look_for_fork(fd);
    op->generation = fnet_fork_generation();
    op->turn = true;
    (void)start_clock(op);
    fnet_sleeper_init(&sleeper);
    fnet_lock_acquire(&fd->lock);
    mine = take_or_queue_locked(fd, op);
    while (!mine && rc == 0) {
        if (load(fd) & CLOSING) {
            rc = -EBADF;
            break;
        }
        fnet_list_push(&fd->queue[op->dir], &sleeper.link);
        int64_t until = until_locked(fd, op);
        fnet_lock_release(&fd->lock);
        rc = fnet_sleeper_sleep(&sleeper, -1, 0, until, 0);
        fnet_lock_acquire(&fd->lock);
        mine = sleeper.granted; /* then it is out of the queue */
        fnet_sleeper_done_locked(&sleeper);
        if (!mine && rc >= 0) {
            rc = fnet_fd_check(fd, op);
        }
        if (!mine && rc == 0) {
            mine = take_or_queue_locked(fd, op);
        }
    }
    if (!mine) {
        unqueue_locked(fd, op->dir);
    }
    fnet_lock_release(&fd->lock);
    if (!mine) {
        return rc;
    }
    atomic_store_explicit(&fd->owner[op->dir], fnet_thread_self(),
                          memory_order_relaxed);
    return entered(fd, op);
}

/* In a child, by a handler that forked in the middle of this operation. */
static FNET_COLD int
begin_again(fnet_fd *fd, fnet_fd_op *op)
{
    int64_t until = op->until;
    int rc = fnet_fd_begin(fd, op, op->dir, op->timeout);
    if (rc == -EAGAIN) {
        rc = fnet_fd_await_turn(fd, op);
    }
    if (rc < 0) {
        op->generation = fnet_fork_generation() - 1; /* end: nothing to do */
    }
    op->until = until;
    return rc;
}

/* One sleep, in the list of those who close() and set_deadline() look for:
 * positive, 0 or a negative errno. */
static int
sleep_once(fnet_fd *fd, const fnet_fd_op *op, int number, short events,
           int64_t at_most, int64_t now)
{
    fnet_sleeper sleeper;
    int rc = 0;

    fnet_sleeper_init(&sleeper);
    fnet_lock_acquire(&fd->lock);
    fnet_list_push(&fd->sleeping[op->dir], &sleeper.link);
    int64_t until = until_locked(fd, op);
    bool closing = load(fd) & CLOSING;
    fnet_lock_release(&fd->lock);
    if (!closing) {
        rc = fnet_sleeper_sleep(&sleeper, number, events,
                                until < at_most ? until : at_most, now);
    }
    fnet_lock_acquire(&fd->lock);
    fnet_sleeper_done_locked(&sleeper);
    fnet_lock_release(&fd->lock);
    return load(fd) & CLOSING ? -EBADF : rc;
}

static inline int
before_sleep(fnet_fd *fd, fnet_fd_op *op, int64_t *now)
{
    if (FNET_UNLIKELY(op->generation != fnet_fork_generation())) {
        int rc = begin_again(fd, op);
        if (rc < 0) {
            return rc;
        }
    }
    *now = start_clock(op);
    return 0;
}

int
fnet_fd_wait(fnet_fd *fd, fnet_fd_op *op)
{
    short events = op->dir == FNET_FD_READ ? POLLIN : POLLOUT;
    int64_t now;
    int rc = before_sleep(fd, op, &now);

    while (rc == 0) {
        rc = sleep_once(fd, op, fd->number, events, FNET_NEVER, now);
        now = 0;
        if (rc == 0 && passed(fd, op)) {
            rc = -ETIMEDOUT;
        }
    }
    return rc < 0 ? rc : 0;
}

int
fnet_fd_pause(fnet_fd *fd, fnet_fd_op *op, int64_t ns)
{
    int64_t now;
    int rc = before_sleep(fd, op, &now);

    if (rc == 0) {
        rc = sleep_once(fd, op, -1, 0, fnet_clock_ns() + ns, 0);
    }
    return rc < 0 ? rc : fnet_fd_check(fd, op);
}

/* -- close and deadlines ------------------------------------------------ */

static void
wake_all_locked(fnet_list *list)
{
    fnet_list *node;
    fnet_list_foreach(node, list)
    {
        fnet_sleeper_wake_locked(fnet_container_of(node, fnet_sleeper, link));
    }
}

static int
finish(fnet_fd *fd, uint64_t how)
{
    look_for_fork(fd);
    uint64_t state = load(fd), next;
    do {
        if (state & CLOSING) {
            return -EBADF;
        }
        next = (state | how) - REF;
    } while (!change(fd, &state, next));
    if (next >= REF || (next & (QUEUED(0) | QUEUED(1)))) {
        fnet_lock_acquire(&fd->lock);
        for (int dir = 0; dir < 2; dir++) {
            wake_all_locked(&fd->sleeping[dir]);
            wake_all_locked(&fd->queue[dir]);
        }
        fnet_lock_release(&fd->lock);
    }
    if (next < REF) {
        last_left(fd, next);
    }
    return 0;
}

int
fnet_fd_close(fnet_fd *fd)
{
    return finish(fd, CLOSING);
}

int
fnet_fd_detach(fnet_fd *fd)
{
    return finish(fd, CLOSING | DETACHED);
}

bool
fnet_fd_closed(const fnet_fd *fd)
{
    return load(fd) & CLOSING;
}

int
fnet_fd_await_end(fnet_fd *fd)
{
    uintptr_t self = fnet_thread_self();
    fnet_sleeper sleeper;
    int rc = 0;

    for (int dir = 0; dir < 2; dir++) {
        if (atomic_load_explicit(&fd->owner[dir], memory_order_relaxed) ==
            self) {
            return 0; /* it cannot leave before we do */
        }
    }
    fnet_sleeper_init(&sleeper);
    while (rc >= 0 && load(fd) >= REF) {
        fnet_lock_acquire(&fd->lock);
        fd->drain = &sleeper;
        bool wait = load(fd) >= REF;
        fnet_lock_release(&fd->lock);
        if (wait) {
            rc = fnet_sleeper_sleep(&sleeper, -1, 0, FNET_NEVER, 0);
        }
        fnet_lock_acquire(&fd->lock);
        fd->drain = NULL;
        fnet_sleeper_done_locked(&sleeper);
        fnet_lock_release(&fd->lock);
    }
    return rc < 0 ? rc : 0;
}

void
fnet_fd_set_deadline(fnet_fd *fd, enum fnet_fd_dir dir, int64_t when)
{
    look_for_fork(fd);
    int64_t before = atomic_exchange_explicit(&fd->deadline[dir], when,
                                              memory_order_relaxed);
    /* Who sleeps until an earlier time looks at the deadline by itself. */
    if (when < before) {
        fnet_lock_acquire(&fd->lock);
        wake_all_locked(&fd->sleeping[dir]);
        wake_all_locked(&fd->queue[dir]);
        fnet_lock_release(&fd->lock);
    }
}
