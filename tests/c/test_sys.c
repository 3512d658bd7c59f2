#include "base/sys.h"

#include "base/clock.h"

#include "test.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <netinet/in.h>
#include <poll.h>
#include <stddef.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>

#ifndef SYS_epoll_pwait2
#define SYS_epoll_pwait2 441
#endif

#define USEC INT64_C(1000)

static void
make_pair(int fds[2], int flags)
{
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | flags, 0, fds) ==
          0);
}

static void
close_pair(const int fds[2])
{
    fnet_sys_close(fds[0]);
    fnet_sys_close(fds[1]);
}

static bool
is_nonblocking_cloexec(int fd)
{
    return (fcntl(fd, F_GETFL) & O_NONBLOCK) != 0 &&
           (fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0;
}

static void
data_goes_through(void)
{
    int fds[2];
    char buf[16];
    make_pair(fds, SOCK_NONBLOCK);
    CHECK(fnet_sys_recv(fds[0], buf, sizeof(buf)) == -EAGAIN);
    CHECK(fnet_sys_send(fds[1], "hello", 5) == 5);
    CHECK(fnet_sys_recv(fds[0], buf, 2) == 2);
    CHECK(fnet_sys_recv(fds[0], buf + 2, sizeof(buf) - 2) == 3);
    CHECK(memcmp(buf, "hello", 5) == 0);
    struct iovec out[2] = {{(void *)(uintptr_t)"ab", 2},
                           {(void *)(uintptr_t)"cde", 3}};
    struct msghdr msg = {.msg_iov = out, .msg_iovlen = 2};
    CHECK(fnet_sys_sendmsg(fds[1], &msg) == 5);
    struct iovec in = {buf, sizeof(buf)};
    msg = (struct msghdr){.msg_iov = &in, .msg_iovlen = 1};
    CHECK(fnet_sys_recvmsg(fds[0], &msg, MSG_PEEK) == 5);
    CHECK(fnet_sys_recvmsg(fds[0], &msg, 0) == 5);
    CHECK(memcmp(buf, "abcde", 5) == 0);
    CHECK(fnet_sys_recvmsg(fds[0], &msg, 0) == -EAGAIN);
    CHECK(fnet_sys_shutdown(fds[1], SHUT_WR) == 0);
    CHECK(fnet_sys_recv(fds[0], buf, sizeof(buf)) == 0);
    close_pair(fds);
}

static void
a_full_socket_says_again(void)
{
    int fds[2];
    static const char zeros[65536];
    make_pair(fds, SOCK_NONBLOCK);
    CHECK(fnet_sys_set_int(fds[0], SOL_SOCKET, SO_SNDBUF, 4096) == 0);
    ssize_t n = 0;
    for (int i = 0; i < 1000 && n >= 0; i++) {
        n = fnet_sys_send(fds[0], zeros, sizeof(zeros));
    }
    CHECK(n == -EAGAIN);
    close_pair(fds);
}

static void
a_lost_peer_sends_no_signal(void)
{
    int fds[2];
    make_pair(fds, SOCK_NONBLOCK);
    fnet_sys_close(fds[1]);
    signal(SIGPIPE, SIG_DFL);
    CHECK(fnet_sys_send(fds[0], "x", 1) == -EPIPE);
    struct iovec iov = {(void *)(uintptr_t)"x", 1};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
    CHECK(fnet_sys_sendmsg(fds[0], &msg) == -EPIPE);
    fnet_sys_close(fds[0]);
}

static void
pipe_and_eventfd(void)
{
    int fds[2];
    char buf[8];
    CHECK(fnet_sys_pipe(fds) == 0);
    CHECK(is_nonblocking_cloexec(fds[0]) && is_nonblocking_cloexec(fds[1]));
    CHECK(fnet_sys_read(fds[0], buf, 8) == -EAGAIN);
    CHECK(fnet_sys_write(fds[1], "abc", 3) == 3);
    CHECK(fnet_sys_read(fds[0], buf, 8) == 3);
    struct iovec iov[] = {{(void *)(uintptr_t)"de", 2},
                          {(void *)(uintptr_t)"f", 1}};
    CHECK(fnet_sys_writev(fds[1], iov, 2) == 3);
    CHECK(fnet_sys_read(fds[0], buf, 8) == 3 && memcmp(buf, "def", 3) == 0);
    int copy = fnet_sys_dup(fds[1]);
    CHECK(copy >= 0 && copy != fds[1] && is_nonblocking_cloexec(copy));
    fnet_sys_close(copy);
    CHECK(fnet_sys_dup(-1) == -EBADF);
    CHECK(S_ISFIFO((mode_t)fnet_sys_mode(fds[0])));
    CHECK(fnet_sys_mode(-1) == -EBADF);
    fnet_sys_close(fds[1]);
    CHECK(fnet_sys_read(fds[0], buf, 8) == 0);
    fnet_sys_close(fds[0]);
    CHECK(pipe(fds) == 0 && (fcntl(fds[0], F_GETFL) & O_NONBLOCK) == 0);
    for (int i = 0; i < 2; i++) {
        CHECK(fnet_sys_set_nonblocking(fds[0]) == 0);
        CHECK((fcntl(fds[0], F_GETFL) & O_NONBLOCK) != 0);
    }
    CHECK(fnet_sys_set_nonblocking(-1) == -EBADF);
    fnet_sys_close(fds[0]);
    fnet_sys_close(fds[1]);
    int fd = fnet_sys_eventfd();
    CHECK(fd >= 0 && is_nonblocking_cloexec(fd));
    uint64_t value = 3;
    CHECK(fnet_sys_write(fd, &value, 8) == 8);
    CHECK(fnet_sys_write(fd, &value, 8) == 8);
    CHECK(fnet_sys_read(fd, &value, 8) == 8 && value == 6);
    CHECK(fnet_sys_read(fd, &value, 8) == -EAGAIN);
    fnet_sys_close(fd);
}

static int
new_socket(int type)
{
    int fd = socket(AF_INET, type | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        perror("socket");
        exit(1);
    }
    return fd;
}

static int
loopback_socket(int type, struct sockaddr_in *addr)
{
    int fd = new_socket(type | SOCK_NONBLOCK);
    socklen_t len = sizeof(*addr);
    *addr = (struct sockaddr_in){.sin_family = AF_INET,
                                 .sin_addr = {htonl(INADDR_LOOPBACK)}};
    CHECK(bind(fd, (struct sockaddr *)addr, len) == 0);
    CHECK(getsockname(fd, (struct sockaddr *)addr, &len) == 0);
    return fd;
}

static void
accept_makes_ready_descriptors(void)
{
    struct sockaddr_in addr, from = {0}, local = {0};
    int listener = loopback_socket(SOCK_STREAM, &addr);
    CHECK(listen(listener, 4) == 0);
    CHECK(fnet_sys_accept(listener, NULL, NULL) == -EAGAIN);
    int client = new_socket(SOCK_STREAM);
    CHECK(connect(client, (struct sockaddr *)&addr, sizeof(addr)) == 0);
    socklen_t len = sizeof(from);
    int conn = fnet_sys_accept(listener, (struct sockaddr *)&from, &len);
    CHECK(conn >= 0 && is_nonblocking_cloexec(conn));
    len = sizeof(local);
    CHECK(getsockname(client, (struct sockaddr *)&local, &len) == 0);
    CHECK(from.sin_port == local.sin_port && from.sin_port != 0);
    fnet_sys_close(conn);
    fnet_sys_close(client);
    fnet_sys_close(listener);
}

static void
options_and_errors_are_taken(void)
{
    struct sockaddr_in addr;
    int gone = loopback_socket(SOCK_DGRAM, &addr);
    fnet_sys_close(gone);
    int fd = new_socket(SOCK_DGRAM);
    CHECK(fnet_sys_take_error(fd) == 0);
    CHECK(connect(fd, (struct sockaddr *)&addr, sizeof(addr)) == 0);
    CHECK(fnet_sys_send(fd, "x", 1) == 1);
    struct pollfd wait = {.fd = fd};
    CHECK(poll(&wait, 1, 5000) == 1);
    CHECK(fnet_sys_take_error(fd) == -ECONNREFUSED);
    CHECK(fnet_sys_take_error(fd) == 0);
    CHECK(fnet_sys_set_int(fd, SOL_SOCKET, SO_REUSEADDR, 1) == 0);
    int value = 0;
    socklen_t len = sizeof(value);
    CHECK(getsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &value, &len) == 0);
    CHECK(value == 1);
    CHECK(fnet_sys_set_int(fd, SOL_SOCKET, 12345, 1) == -ENOPROTOOPT);
    fnet_sys_close(fd);
}

static void
bad_descriptors_are_reported(void)
{
    char buf[1] = {0};
    struct iovec iov = {buf, 1};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
    struct epoll_event event;
    CHECK(fnet_sys_recv(-1, buf, 1) == -EBADF);
    CHECK(fnet_sys_recvmsg(-1, &msg, 0) == -EBADF);
    CHECK(fnet_sys_send(-1, buf, 1) == -EBADF);
    CHECK(fnet_sys_sendmsg(-1, &msg) == -EBADF);
    CHECK(fnet_sys_read(-1, buf, 1) == -EBADF);
    CHECK(fnet_sys_write(-1, "", 1) == -EBADF);
    CHECK(fnet_sys_accept(-1, NULL, NULL) == -EBADF);
    CHECK(fnet_sys_shutdown(-1, SHUT_RD) == -EBADF);
    CHECK(fnet_sys_set_int(-1, SOL_SOCKET, SO_REUSEADDR, 1) == -EBADF);
    CHECK(fnet_sys_take_error(-1) == -EBADF);
    CHECK(fnet_sys_epoll_ctl(-1, EPOLL_CTL_ADD, 0, EPOLLIN, 0) == -EBADF);
    CHECK(fnet_sys_epoll_wait(-1, &event, 1, 0) == -EBADF);
    CHECK(fnet_sys_epoll_wait(-1, &event, 1, USEC) == -EBADF);
}

/* --- waiting ------------------------------------------------------------- */

static void
events_carry_their_data(void)
{
    int fds[2];
    struct epoll_event events[2];
    make_pair(fds, SOCK_NONBLOCK);
    int ep = fnet_sys_epoll_create();
    CHECK(ep >= 0 && (fcntl(ep, F_GETFD) & FD_CLOEXEC) != 0);
    uint64_t data = UINT64_C(0x123456789abcdef0);
    CHECK(fnet_sys_epoll_ctl(ep, EPOLL_CTL_ADD, fds[0], EPOLLIN, data) == 0);
    CHECK(fnet_sys_epoll_ctl(ep, EPOLL_CTL_ADD, fds[0], EPOLLIN, 0) ==
          -EEXIST);
    CHECK(fnet_sys_epoll_wait(ep, events, 2, 0) == 0);
    CHECK(fnet_sys_send(fds[1], "x", 1) == 1);
    /* Whatever the time allowed, and by either call, an event comes at once.
     */
    const int64_t timeouts[] = {0, 1, 10 * FNET_SEC, INT64_MAX, -1};
    for (int forget = 0; forget < 2; forget++) {
        fnet_sys_forget_pwait2(forget);
        for (size_t i = 0; i < FNET_COUNTOF(timeouts); i++) {
            events[0] = (struct epoll_event){0};
            CHECK(fnet_sys_epoll_wait(ep, events, 2, timeouts[i]) == 1);
            CHECK(events[0].events == EPOLLIN && events[0].data.u64 == data);
        }
    }
    fnet_sys_forget_pwait2(false);
    CHECK(fnet_sys_epoll_ctl(ep, EPOLL_CTL_MOD, fds[0], EPOLLOUT, 7) == 0);
    CHECK(fnet_sys_epoll_wait(ep, events, 2, 0) == 1);
    CHECK(events[0].events == EPOLLOUT && events[0].data.u64 == 7);
    CHECK(fnet_sys_epoll_ctl(ep, EPOLL_CTL_DEL, fds[0], 0, 0) == 0);
    CHECK(fnet_sys_epoll_ctl(ep, EPOLL_CTL_DEL, fds[0], 0, 0) == -ENOENT);
    fnet_sys_close(ep);
    close_pair(fds);
}

/* The shortest of some waits for `timeout_ns` on a set where nothing comes;
 * -1 if one of them went wrong or was too short. */
static int64_t
shortest_wait(int64_t timeout_ns)
{
    struct epoll_event event;
    int64_t shortest = INT64_MAX;
    int ep = fnet_sys_epoll_create();
    for (int i = 0; i < 20 && shortest >= 0; i++) {
        int64_t before = fnet_clock_ns();
        int rc = fnet_sys_epoll_wait(ep, &event, 1, timeout_ns);
        int64_t took = fnet_clock_ns() - before;
        if (rc != 0 || took < timeout_ns) {
            shortest = -1;
        }
        else if (took < shortest) {
            shortest = took;
        }
    }
    fnet_sys_close(ep);
    return shortest;
}

static bool
kernel_has_pwait2(void)
{
    struct epoll_event event;
    int ep = fnet_sys_epoll_create();
    struct timespec none = {0};
    long rc = syscall(SYS_epoll_pwait2, ep, &event, 1, &none, NULL, (size_t)0);
    fnet_sys_close(ep);
    return rc == 0;
}

static void
never_early_by_either_call(void)
{
    const int64_t timeouts[] = {1, 300 * USEC, FNET_MSEC, 1500 * USEC};
    for (size_t i = 0; i < FNET_COUNTOF(timeouts); i++) {
        fnet_sys_forget_pwait2(false);
        CHECK(shortest_wait(timeouts[i]) >= timeouts[i]);
        fnet_sys_forget_pwait2(true);
        CHECK(shortest_wait(timeouts[i]) >= timeouts[i]);
    }
    /* Without the call, milliseconds; with it, what was asked for. */
    CHECK(shortest_wait(100 * USEC) >= FNET_MSEC - 50 * USEC);
    fnet_sys_forget_pwait2(false);
    int64_t took = shortest_wait(100 * USEC);
    CHECK(took >= 100 * USEC);
    CHECK(!kernel_has_pwait2() || took < FNET_MSEC);
}

/* Makes epoll_pwait2 fail with `error` from here on, for this process. */
static bool
forbid_pwait2(unsigned error)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_epoll_pwait2, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog prog = {.len = FNET_COUNTOF(code), .filter = code};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &prog) == 0;
}

enum { WENT_WELL = 0, WENT_WRONG = 1, NOT_POSSIBLE = 77 };

static int
wait_where_pwait2_is_forbidden(unsigned error)
{
    struct epoll_event event;
    int fds[2];
    if (!forbid_pwait2(error)) {
        return NOT_POSSIBLE;
    }
    fnet_sys_forget_pwait2(false);
    if (shortest_wait(100 * USEC) < 100 * USEC ||
        socketpair(AF_UNIX, SOCK_STREAM, 0, fds) < 0) {
        return WENT_WRONG;
    }
    int ep = fnet_sys_epoll_create();
    bool ok = fnet_sys_epoll_ctl(ep, EPOLL_CTL_ADD, fds[0], EPOLLIN, 5) == 0 &&
              fnet_sys_send(fds[1], "x", 1) == 1 &&
              fnet_sys_epoll_wait(ep, &event, 1, FNET_SEC) == 1 &&
              event.data.u64 == 5;
    return ok ? WENT_WELL : WENT_WRONG;
}

static void
old_kernels_and_filters_are_no_errors(void)
{
    const unsigned errors[] = {ENOSYS, EPERM};
    for (size_t i = 0; i < FNET_COUNTOF(errors); i++) {
        pid_t pid = test_fork_quietly();
        if (pid == 0) {
            _exit(wait_where_pwait2_is_forbidden(errors[i]));
        }
        int status = test_wait(pid);
        CHECK(WIFEXITED(status));
        CHECK(WEXITSTATUS(status) == WENT_WELL ||
              WEXITSTATUS(status) == NOT_POSSIBLE);
        if (WEXITSTATUS(status) == NOT_POSSIBLE) {
            fprintf(stderr, "no seccomp here: fallback not tried\n");
        }
    }
}

/* --- signals ------------------------------------------------------------- */

static atomic_int signals;
static int signal_fd; /* constant while the timer runs */

static void
on_alarm(int signo)
{
    int saved = errno;
    if (atomic_fetch_add(&signals, 1) == 4) {
        ssize_t n = write(signal_fd, "x", 1);
        (void)n; /* the reader would hang, and `timeout` would tell */
    }
    errno = saved;
}

/* A signal each 2 ms; the fifth writes a byte to `fd`. */
static void
start_signals(int fd)
{
    struct sigaction action = {.sa_handler = on_alarm}; /* no SA_RESTART */
    signal_fd = fd;
    atomic_store(&signals, 0);
    CHECK(sigaction(SIGALRM, &action, NULL) == 0);
    struct itimerval every = {{0, 2000}, {0, 2000}};
    CHECK(setitimer(ITIMER_REAL, &every, NULL) == 0);
}

static void
stop_signals(void)
{
    struct itimerval never = {{0, 0}, {0, 0}};
    CHECK(setitimer(ITIMER_REAL, &never, NULL) == 0);
    signal(SIGALRM, SIG_IGN);
}

static void
interrupted_reads_go_on(void)
{
    int fds[2];
    char buf[4];
    make_pair(fds, 0);
    start_signals(fds[1]);
    CHECK(fnet_sys_read(fds[0], buf, 4) == 1);
    CHECK(atomic_load(&signals) >= 5);
    stop_signals();
    close_pair(fds);
}

/* A socket that whoever shares it has made blocking. */
static void
socket_calls_never_wait(void)
{
    static char zeros[65536];
    int fds[2];
    struct iovec iov = {zeros, sizeof(zeros)};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
    make_pair(fds, 0);
    CHECK(fnet_sys_recv(fds[0], zeros, 4) == -EAGAIN);
    CHECK(fnet_sys_recvmsg(fds[0], &msg, 0) == -EAGAIN);
    while (fnet_sys_send(fds[0], zeros, sizeof(zeros)) > 0) {
    }
    CHECK(fnet_sys_send(fds[0], zeros, sizeof(zeros)) == -EAGAIN);
    CHECK(fnet_sys_sendmsg(fds[0], &msg) == -EAGAIN);
    close_pair(fds);
}

static void
interrupted_waits_return(void)
{
    struct epoll_event event;
    int fds[2];
    make_pair(fds, 0);
    int ep = fnet_sys_epoll_create();
    for (int forget = 0; forget < 2; forget++) {
        fnet_sys_forget_pwait2(forget);
        start_signals(fds[1]);
        CHECK(fnet_sys_epoll_wait(ep, &event, 1, -1) == -EINTR);
        CHECK(fnet_sys_epoll_wait(ep, &event, 1, 30 * FNET_SEC) == -EINTR);
        stop_signals();
    }
    fnet_sys_forget_pwait2(false);
    fnet_sys_close(ep);
    close_pair(fds);
}

int
main(void)
{
    RUN(data_goes_through);
    RUN(a_full_socket_says_again);
    RUN(a_lost_peer_sends_no_signal);
    RUN(pipe_and_eventfd);
    RUN(accept_makes_ready_descriptors);
    RUN(options_and_errors_are_taken);
    RUN(bad_descriptors_are_reported);
    RUN(events_carry_their_data);
    RUN(never_early_by_either_call);
    RUN(old_kernels_and_filters_are_no_errors);
    RUN(interrupted_reads_go_on);
    RUN(socket_calls_never_wait);
    RUN(interrupted_waits_return);
    return test_report();
}
