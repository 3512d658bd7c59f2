#include "net/fd.h"

#include "base/clock.h"
#include "base/sys.h"
#include "test.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/resource.h>
#include <time.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define MANY 150
#else
#define MANY 1000
#endif

/* Valgrind runs one thread at a time, of 500 at most. */
static bool
under_valgrind(void)
{
    const char *preload = getenv("LD_PRELOAD");
    return preload != NULL && strstr(preload, "vgpreload") != NULL;
}

/* One end of a Unix socket pair as an fnet_fd, and its peer. */
typedef struct link {
    fnet_fd fd;
    int peer;
} link_;

static void
link_init(link_ *x)
{
    int ends[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
    CHECK(fnet_fd_init(&x->fd, ends[0]) == 0);
    x->peer = ends[1];
}

static void
link_fini(link_ *x)
{
    fnet_fd_fini(&x->fd);
    close(x->peer);
}

static void
nap(int64_t ns)
{
    struct timespec t = {.tv_sec = (time_t)(ns / FNET_SEC),
                         .tv_nsec = (long)(ns % FNET_SEC)};
    nanosleep(&t, NULL);
}

static bool
is_open(int number)
{
    return fcntl(number, F_GETFD) >= 0;
}

static void
feed(link_ *x, const char *text)
{
    CHECK(write(x->peer, text, strlen(text)) == (ssize_t)strlen(text));
}

/* A whole blocking call, as the wrapper makes it; EINTR is passed on. */
static ssize_t
call(fnet_fd *fd, enum fnet_fd_dir dir, void *buf, size_t len, int64_t timeout)
{
    fnet_fd_op op;
    ssize_t n;
    int rc = fnet_fd_begin(fd, &op, dir, timeout);
    if (rc == -EAGAIN) {
        rc = fnet_fd_await_turn(fd, &op);
    }
    if (rc < 0) {
        return rc;
    }
    do {
        n = dir == FNET_FD_READ
                ? fnet_sys_recvfrom(fd->number, buf, len, MSG_DONTWAIT, NULL,
                                    NULL)
                : fnet_sys_sendto(fd->number, buf, len, MSG_DONTWAIT, NULL, 0);
    } while (n == -EAGAIN && (rc = fnet_fd_wait(fd, &op)) == 0);
    fnet_fd_end(fd, &op);
    return n == -EAGAIN ? rc : n;
}

static ssize_t
read_one(fnet_fd *fd, int64_t timeout)
{
    char c;
    return call(fd, FNET_FD_READ, &c, 1, timeout);
}

/* A thread in one call. */
typedef struct caller {
    pthread_t thread;
    fnet_fd *fd;
    enum fnet_fd_dir dir;
    int64_t timeout;
    ssize_t result;
    int64_t ended;
    atomic_bool done;
} caller;

static void *
caller_main(void *arg)
{
    static char big[1 << 16];
    caller *c = arg;
    do {
        c->result = c->dir == FNET_FD_READ
                        ? read_one(c->fd, c->timeout)
                        : call(c->fd, c->dir, big, sizeof(big), c->timeout);
    } while (c->dir == FNET_FD_WRITE && c->result > 0);
    c->ended = fnet_clock_ns();
    atomic_store(&c->done, true);
    return NULL;
}

static void
caller_start(caller *c, fnet_fd *fd, enum fnet_fd_dir dir, int64_t timeout)
{
    pthread_attr_t attr;

    c->fd = fd;
    c->dir = dir;
    c->timeout = timeout;
    atomic_init(&c->done, false);
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, 256 * 1024);
    CHECK(pthread_create(&c->thread, &attr, caller_main, c) == 0);
    pthread_attr_destroy(&attr);
}

static ssize_t
caller_join(caller *c)
{
    pthread_join(c->thread, NULL);
    return c->result;
}

/* Until `n` calls sleep or wait for their turn. */
static void
await_blocked(fnet_fd *fd, int n)
{
    for (int i = 0; i < 2000; i++) {
        int count = 0;
        fnet_list *node;
        fnet_lock_acquire(&fd->lock);
        for (int dir = 0; dir < 2; dir++) {
            fnet_list_foreach(node, &fd->sleeping[dir]) { count++; }
            fnet_list_foreach(node, &fd->queue[dir]) { count++; }
        }
        fnet_lock_release(&fd->lock);
        if (count >= n) {
            return;
        }
        nap(FNET_MSEC);
    }
    CHECK(!"blocked");
}

/* -- turns and references ------------------------------------------------ */

static void
test_operations(void)
{
    link_ x;
    char buf[8];
    link_init(&x);
    feed(&x, "abc");
    CHECK(call(&x.fd, FNET_FD_READ, buf, sizeof(buf), -1) == 3);
    CHECK(memcmp(buf, "abc", 3) == 0);
    CHECK(call(&x.fd, FNET_FD_WRITE, buf, 3, -1) == 3);
    CHECK(read(x.peer, buf, sizeof(buf)) == 3);
    link_fini(&x);
}

static void
test_the_directions_are_apart(void)
{
    link_ x;
    fnet_fd_op read_op, write_op;
    link_init(&x);
    CHECK(fnet_fd_begin(&x.fd, &read_op, FNET_FD_READ, -1) == 0);
    CHECK(fnet_fd_begin(&x.fd, &write_op, FNET_FD_WRITE, -1) == 0);
    CHECK(read_op.turn && write_op.turn);
    fnet_fd_end(&x.fd, &read_op);
    fnet_fd_end(&x.fd, &write_op);
    link_fini(&x);
}

static void *
try_begin(void *arg)
{
    fnet_fd_op op;
    int rc = fnet_fd_begin(arg, &op, FNET_FD_READ, -1);
    if (rc == 0) {
        fnet_fd_end(arg, &op);
    }
    return (void *)(intptr_t)rc;
}

static int
other_thread_begins(fnet_fd *fd)
{
    pthread_t thread;
    void *rc;
    CHECK(pthread_create(&thread, NULL, try_begin, fd) == 0);
    pthread_join(thread, &rc);
    return (int)(intptr_t)rc;
}

static void
test_a_turn_is_one_threads(void)
{
    link_ x;
    fnet_fd_op op, nested;
    link_init(&x);
    CHECK(fnet_fd_begin(&x.fd, &op, FNET_FD_READ, -1) == 0);
    CHECK(other_thread_begins(&x.fd) == -EAGAIN);
    /* as a signal handler in the middle of it would */
    CHECK(fnet_fd_begin(&x.fd, &nested, FNET_FD_READ, -1) == 0);
    CHECK(!nested.turn);
    fnet_fd_end(&x.fd, &nested);
    CHECK(other_thread_begins(&x.fd) == -EAGAIN);
    fnet_fd_end(&x.fd, &op);
    CHECK(other_thread_begins(&x.fd) == 0);
    link_fini(&x);
}

static void
test_turns_are_handed_on_in_order(void)
{
    link_ x;
    fnet_fd_op op;
    caller callers[5];
    link_init(&x);
    CHECK(fnet_fd_begin(&x.fd, &op, FNET_FD_READ, -1) == 0);
    for (int i = 0; i < 5; i++) {
        caller_start(&callers[i], &x.fd, FNET_FD_READ, -1);
        await_blocked(&x.fd, i + 1);
    }
    fnet_fd_end(&x.fd, &op);
    for (int i = 0; i < 5; i++) {
        feed(&x, "x");
        CHECK(caller_join(&callers[i]) == 1);
        for (int j = i + 1; j < 5; j++) {
            CHECK(!atomic_load(&callers[j].done));
        }
    }
    link_fini(&x);
}

static void
test_waiting_for_a_turn_ends_in_time(void)
{
    link_ x;
    fnet_fd_op op;
    caller late, patient;
    link_init(&x);
    CHECK(fnet_fd_begin(&x.fd, &op, FNET_FD_READ, -1) == 0);
    caller_start(&late, &x.fd, FNET_FD_READ, 20 * FNET_MSEC);
    await_blocked(&x.fd, 1);
    caller_start(&patient, &x.fd, FNET_FD_READ, -1);
    CHECK(caller_join(&late) == -ETIMEDOUT);
    await_blocked(&x.fd, 1);
    fnet_fd_end(&x.fd, &op);
    feed(&x, "x");
    CHECK(caller_join(&patient) == 1);
    CHECK(other_thread_begins(&x.fd) == 0);
    link_fini(&x);
}

/* -- close and detach ---------------------------------------------------- */

static void
test_the_number_lives_as_long_as_its_calls(void)
{
    link_ x;
    fnet_fd_op op, other;
    link_init(&x);
    int number = x.fd.number;
    CHECK(fnet_fd_begin(&x.fd, &op, FNET_FD_READ, -1) == 0);
    CHECK(fnet_fd_hold(&x.fd) == 0);
    CHECK(!fnet_fd_closed(&x.fd));
    CHECK(fnet_fd_close(&x.fd) == 0);
    CHECK(fnet_fd_closed(&x.fd));
    CHECK(fnet_fd_close(&x.fd) == -EBADF);
    CHECK(fnet_fd_detach(&x.fd) == -EBADF);
    CHECK(fnet_fd_hold(&x.fd) == -EBADF);
    CHECK(fnet_fd_begin(&x.fd, &other, FNET_FD_WRITE, -1) == -EBADF);
    CHECK(fnet_fd_check(&x.fd, &op) == -EBADF);
    CHECK(fnet_fd_wait(&x.fd, &op) == -EBADF);
    fnet_fd_end(&x.fd, &op);
    CHECK(is_open(number));
    fnet_fd_release(&x.fd);
    CHECK(!is_open(number));
    link_fini(&x);
}

static void
test_close_wakes_all(void)
{
    link_ x;
    caller callers[7];
    link_init(&x);
    int number = x.fd.number;
    for (int i = 0; i < 7; i++) {
        caller_start(&callers[i], &x.fd, i < 4 ? FNET_FD_READ : FNET_FD_WRITE,
                     i % 2 ? -1 : 3600 * FNET_SEC);
    }
    await_blocked(&x.fd, 7);
    int64_t begin = fnet_clock_ns();
    CHECK(fnet_fd_close(&x.fd) == 0);
    CHECK(fnet_clock_ns() - begin < FNET_SEC);
    for (int i = 0; i < 7; i++) {
        CHECK(caller_join(&callers[i]) == -EBADF);
    }
    CHECK(!is_open(number));
    link_fini(&x);
}

static int
compare_times(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static void
test_a_thousand_blocked_threads(void)
{
    static link_ links[MANY];
    static caller callers[MANY];
    static int64_t took[MANY];
    int many = under_valgrind() ? 100 : MANY;
    struct rlimit limit;

    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max < 8192 ? limit.rlim_max : 8192;
    setrlimit(RLIMIT_NOFILE, &limit);
    for (int i = 0; i < many; i++) {
        link_init(&links[i]);
        caller_start(&callers[i], &links[i].fd, FNET_FD_READ, -1);
    }
    for (int i = 0; i < many; i++) {
        await_blocked(&links[i].fd, 1);
    }
    for (int i = 0; i < many; i++) {
        took[i] = fnet_clock_ns();
        CHECK(fnet_fd_close(&links[i].fd) == 0);
    }
    for (int i = 0; i < many; i++) {
        CHECK(caller_join(&callers[i]) == -EBADF);
        took[i] = callers[i].ended - took[i];
        CHECK(!is_open(links[i].fd.number));
        link_fini(&links[i]);
    }
    qsort(took, (size_t)many, sizeof(took[0]), compare_times);
#ifndef __SANITIZE_THREAD__
    CHECK(took[many * 99 / 100] <= 100 * FNET_MSEC);
#endif
    fprintf(stderr, "close: %d threads woken, p50 %.2f ms, p99 %.2f ms\n",
            many, (double)took[many / 2] / 1e6,
            (double)took[many * 99 / 100] / 1e6);
}

static void
test_detach_waits_for_the_last_call(void)
{
    link_ x;
    caller c;
    link_init(&x);
    int number = x.fd.number;
    caller_start(&c, &x.fd, FNET_FD_READ, -1);
    await_blocked(&x.fd, 1);
    CHECK(fnet_fd_detach(&x.fd) == 0);
    CHECK(fnet_fd_await_end(&x.fd) == 0);
    CHECK(caller_join(&c) == -EBADF);
    CHECK(is_open(number));
    close(number);
    link_fini(&x);
}

static void
test_detach_within_an_operation_does_not_wait(void)
{
    link_ x;
    fnet_fd_op op;
    link_init(&x);
    int number = x.fd.number;
    CHECK(fnet_fd_begin(&x.fd, &op, FNET_FD_WRITE, -1) == 0);
    CHECK(fnet_fd_detach(&x.fd) == 0);
    CHECK(fnet_fd_await_end(&x.fd) == 0);
    fnet_fd_end(&x.fd, &op);
    CHECK(is_open(number));
    close(number);
    link_fini(&x);
}

/* -- deadlines ----------------------------------------------------------- */

static void
test_a_deadline_in_the_past(void)
{
    link_ x;
    link_init(&x);
    feed(&x, "data");
    fnet_fd_set_deadline(&x.fd, FNET_FD_READ, fnet_clock_ns() - 1);
    CHECK(read_one(&x.fd, -1) == -ETIMEDOUT);
    char c = 'x';
    CHECK(call(&x.fd, FNET_FD_WRITE, &c, 1, -1) == 1);
    fnet_fd_set_deadline(&x.fd, FNET_FD_READ, FNET_NEVER);
    CHECK(read_one(&x.fd, -1) == 1);
    fnet_fd_set_deadline(&x.fd, FNET_FD_WRITE, 0);
    CHECK(call(&x.fd, FNET_FD_WRITE, &c, 1, -1) == -ETIMEDOUT);
    CHECK(read_one(&x.fd, -1) == 1);
    link_fini(&x);
}

static void
test_timeouts_take_their_time(void)
{
    link_ x;
    link_init(&x);
    int64_t begin = fnet_clock_ns();
    CHECK(read_one(&x.fd, 30 * FNET_MSEC) == -ETIMEDOUT);
    CHECK(fnet_clock_ns() - begin >= 30 * FNET_MSEC);
    begin = fnet_clock_ns();
    fnet_fd_set_deadline(&x.fd, FNET_FD_READ, begin + 30 * FNET_MSEC);
    CHECK(read_one(&x.fd, 3600 * FNET_SEC) == -ETIMEDOUT);
    CHECK(fnet_clock_ns() - begin >= 30 * FNET_MSEC);
    /* data within the timeout; one that the clock cannot count */
    fnet_fd_set_deadline(&x.fd, FNET_FD_READ, FNET_NEVER);
    feed(&x, "x");
    CHECK(read_one(&x.fd, 0) == 1);
    CHECK(read_one(&x.fd, 0) == -ETIMEDOUT);
    caller c;
    caller_start(&c, &x.fd, FNET_FD_READ, FNET_NEVER);
    await_blocked(&x.fd, 1);
    feed(&x, "x");
    CHECK(caller_join(&c) == 1);
    link_fini(&x);
}

static void
test_deadlines_move_under_a_blocked_call(void)
{
    link_ x;
    caller reader, queued;
    link_init(&x);
    fnet_fd_set_deadline(&x.fd, FNET_FD_READ,
                         fnet_clock_ns() + 40 * FNET_MSEC);
    caller_start(&reader, &x.fd, FNET_FD_READ, -1);
    caller_start(&queued, &x.fd, FNET_FD_READ, -1);
    await_blocked(&x.fd, 2);
    fnet_fd_set_deadline(&x.fd, FNET_FD_READ, fnet_clock_ns() + 10 * FNET_SEC);
    nap(80 * FNET_MSEC);
    CHECK(!atomic_load(&reader.done) && !atomic_load(&queued.done));
    fnet_fd_set_deadline(&x.fd, FNET_FD_READ, FNET_NEVER);
    int64_t begin = fnet_clock_ns();
    fnet_fd_set_deadline(&x.fd, FNET_FD_READ, begin - 1);
    CHECK(caller_join(&reader) == -ETIMEDOUT);
    CHECK(caller_join(&queued) == -ETIMEDOUT);
    CHECK(fnet_clock_ns() - begin < FNET_SEC);
    link_fini(&x);
}

typedef struct race {
    link_ x;
    atomic_bool stop;
    long timeouts;
    ssize_t last;
} race;

static void *
race_reader(void *arg)
{
    race *r = arg;
    while (!atomic_load(&r->stop)) {
        r->last = read_one(&r->x.fd, -1);
        if (r->last != -ETIMEDOUT) {
            break;
        }
        r->timeouts++;
        sched_yield();
    }
    return NULL;
}

static void
test_deadline_changes_race_with_reads(void)
{
    static race r;
    pthread_t reader;
    uint32_t seed = 7;
    int rounds = under_valgrind() ? 1000 : 20000;

    link_init(&r.x);
    CHECK(pthread_create(&reader, NULL, race_reader, &r) == 0);
    for (int i = 0; i < rounds; i++) {
        int64_t past = test_random(&seed) % 2 ? 0 : fnet_clock_ns() - 1;
        fnet_fd_set_deadline(&r.x.fd, FNET_FD_READ, past);
        if (test_random(&seed) % 8 == 0) {
            sched_yield();
        }
        fnet_fd_set_deadline(&r.x.fd, FNET_FD_READ,
                             fnet_clock_ns() + 60 * FNET_SEC);
    }
    /* the reader waits now; one more past deadline must interrupt it */
    await_blocked(&r.x.fd, 1);
    atomic_store(&r.stop, true);
    int64_t begin = fnet_clock_ns();
    fnet_fd_set_deadline(&r.x.fd, FNET_FD_READ, 0);
    pthread_join(reader, NULL);
    CHECK(fnet_clock_ns() - begin < FNET_SEC);
    CHECK(r.last == -ETIMEDOUT && r.timeouts > 0);
    link_fini(&r.x);
}

/* -- numbers are not reused under a call ---------------------------------- */

typedef struct reuse {
    _Atomic(link_ *) current;
    atomic_int readers; /* that look at it */
    atomic_bool stop;
    atomic_long strange, closed;
} reuse;

static void *
reuse_reader(void *arg)
{
    reuse *r = arg;
    while (!atomic_load(&r->stop)) {
        atomic_fetch_add(&r->readers, 1);
        link_ *x = atomic_load(&r->current);
        ssize_t n = x == NULL ? 0 : read_one(&x->fd, 2 * FNET_MSEC);
        atomic_fetch_sub(&r->readers, 1);
        if (n == -EBADF) {
            atomic_fetch_add(&r->closed, 1);
        }
        else if (n > 0) {
            atomic_fetch_add(&r->strange, 1);
        }
    }
    return NULL;
}

/* Nobody ever writes to what the threads read from; strangers that get the
 * numbers do have data. */
static void
test_no_call_reads_from_a_reused_number(void)
{
    static reuse r;
    pthread_t threads[3];

    for (int i = 0; i < 3; i++) {
        CHECK(pthread_create(&threads[i], NULL, reuse_reader, &r) == 0);
    }
    for (int i = 0; i < 300; i++) {
        link_ x;
        int stranger[2];
        link_init(&x);
        atomic_store(&r.current, &x);
        nap(i % 3 * FNET_MSEC / 4);
        CHECK(fnet_fd_close(&x.fd) == 0);
        CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, stranger) == 0);
        CHECK(write(stranger[0], "s", 1) == 1 &&
              write(stranger[1], "s", 1) == 1);
        atomic_store(&r.current, NULL);
        while (atomic_load(&r.readers) > 0) {
            sched_yield();
        }
        close(stranger[0]);
        close(stranger[1]);
        link_fini(&x);
    }
    atomic_store(&r.stop, true);
    for (int i = 0; i < 3; i++) {
        pthread_join(threads[i], NULL);
    }
    CHECK(atomic_load(&r.strange) == 0);
    CHECK(atomic_load(&r.closed) > 0);
}

/* Four threads take single bytes: each byte once, none lost. */
typedef struct crowd {
    link_ x;
    atomic_long bytes;
} crowd;

static void *
crowd_reader(void *arg)
{
    crowd *c = arg;
    while (read_one(&c->x.fd, -1) == 1) {
        atomic_fetch_add(&c->bytes, 1);
    }
    return NULL;
}

static void
test_many_readers_of_one_descriptor(void)
{
    static crowd c;
    pthread_t threads[4];
    link_init(&c.x);
    for (int i = 0; i < 4; i++) {
        CHECK(pthread_create(&threads[i], NULL, crowd_reader, &c) == 0);
    }
    for (int i = 0; i < 1000; i++) {
        feed(&c.x, "abcde");
    }
    shutdown(c.x.peer, SHUT_WR);
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
    }
    CHECK(atomic_load(&c.bytes) == 5000);
    link_fini(&c.x);
}

/* -- signals, forks, no descriptors --------------------------------------- */

static void
on_signal(int number)
{
}

static void *
send_signals(void *arg)
{
    for (int i = 0; i < 5; i++) {
        nap(10 * FNET_MSEC);
        pthread_kill(*(pthread_t *)arg, SIGUSR1);
    }
    return NULL;
}

static void
test_signals_are_reported_and_do_not_stretch(void)
{
    struct sigaction action = {.sa_handler = on_signal};
    pthread_t self = pthread_self(), sender;
    link_ x;
    fnet_fd_op op;
    int interrupted = 0, rc;

    sigaction(SIGUSR1, &action, NULL);
    link_init(&x);
    CHECK(fnet_fd_begin(&x.fd, &op, FNET_FD_READ, 100 * FNET_MSEC) == 0);
    CHECK(pthread_create(&sender, NULL, send_signals, &self) == 0);
    int64_t begin = fnet_clock_ns();
    while ((rc = fnet_fd_wait(&x.fd, &op)) == -EINTR) {
        interrupted++;
    }
    int64_t took = fnet_clock_ns() - begin;
    CHECK(rc == -ETIMEDOUT);
    CHECK(interrupted > 0);
    CHECK(took >= 100 * FNET_MSEC && took < 2 * FNET_SEC);
    pthread_join(sender, NULL);
    fnet_fd_end(&x.fd, &op);
    link_fini(&x);
}

static void
test_a_child_has_turns_of_its_own(void)
{
    link_ x;
    fnet_fd_op mine;
    caller c;
    link_init(&x);
    caller_start(&c, &x.fd, FNET_FD_READ, -1);
    await_blocked(&x.fd, 1);
    CHECK(fnet_fd_begin(&x.fd, &mine, FNET_FD_WRITE, -1) == 0);
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        /* the reader's turn is free; ours was taken before the fork */
        int bad = read_one(&x.fd, FNET_MSEC) != -ETIMEDOUT;
        fnet_fd_end(&x.fd, &mine);
        char byte = 'c';
        bad |= call(&x.fd, FNET_FD_WRITE, &byte, 1, -1) != 1;
        bad |= fnet_fd_close(&x.fd) != 0;
        bad |= is_open(x.fd.number);
        fnet_fd_fini(&x.fd);
        _exit(bad);
    }
    CHECK(test_wait(pid) == 0);
    fnet_fd_end(&x.fd, &mine);
    char byte = 0;
    CHECK(read(x.peer, &byte, 1) == 1 && byte == 'c');
    CHECK(!atomic_load(&c.done));
    feed(&x, "x");
    CHECK(caller_join(&c) == 1);
    link_fini(&x);
}

static void
test_a_fork_within_an_operation(void)
{
    link_ x;
    fnet_fd_op op;
    link_init(&x);
    CHECK(fnet_fd_begin(&x.fd, &op, FNET_FD_READ, FNET_MSEC) == 0);
    CHECK(fnet_fd_wait(&x.fd, &op) == -ETIMEDOUT);
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        int bad = fnet_fd_wait(&x.fd, &op) != -ETIMEDOUT;
        fnet_fd_end(&x.fd, &op);
        bad |= read_one(&x.fd, FNET_MSEC) != -ETIMEDOUT;
        _exit(bad);
    }
    CHECK(test_wait(pid) == 0);
    fnet_fd_end(&x.fd, &op);
    link_fini(&x);
}

static void *
without_descriptors(void *arg)
{
    return (void *)(intptr_t)read_one(arg, -1);
}

static void
test_waits_without_an_eventfd(void)
{
    struct rlimit before, none;
    pthread_t thread;
    void *result;
    link_ x;

    link_init(&x);
    getrlimit(RLIMIT_NOFILE, &before);
    none = before;
    none.rlim_cur = 2; /* what ppoll() needs; both are taken */
    CHECK(setrlimit(RLIMIT_NOFILE, &none) == 0);
    CHECK(pthread_create(&thread, NULL, without_descriptors, &x.fd) == 0);
    nap(30 * FNET_MSEC);
    CHECK(setrlimit(RLIMIT_NOFILE, &before) == 0);
    int64_t begin = fnet_clock_ns();
    CHECK(fnet_fd_close(&x.fd) == 0);
    pthread_join(thread, &result);
    CHECK((ssize_t)(intptr_t)result == -EBADF);
    CHECK(fnet_clock_ns() - begin < FNET_SEC);
    link_fini(&x);
}

int
main(void)
{
    RUN(test_operations);
    RUN(test_the_directions_are_apart);
    RUN(test_a_turn_is_one_threads);
    RUN(test_turns_are_handed_on_in_order);
    RUN(test_waiting_for_a_turn_ends_in_time);
    RUN(test_the_number_lives_as_long_as_its_calls);
    RUN(test_close_wakes_all);
    RUN(test_a_thousand_blocked_threads);
    RUN(test_detach_waits_for_the_last_call);
    RUN(test_detach_within_an_operation_does_not_wait);
    RUN(test_a_deadline_in_the_past);
    RUN(test_timeouts_take_their_time);
    RUN(test_deadlines_move_under_a_blocked_call);
    RUN(test_deadline_changes_race_with_reads);
    RUN(test_no_call_reads_from_a_reused_number);
    RUN(test_many_readers_of_one_descriptor);
    RUN(test_signals_are_reported_and_do_not_stretch);
    RUN(test_a_child_has_turns_of_its_own);
    RUN(test_a_fork_within_an_operation);
    RUN(test_waits_without_an_eventfd);
    return test_report();
}
