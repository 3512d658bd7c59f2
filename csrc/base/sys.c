#include "base/sys.h"

#include "base/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The same number on every architecture; the headers of old C libraries lack
 * it. */
#ifndef SYS_epoll_pwait2
#define SYS_epoll_pwait2 441
#endif

/* The result of a call into `result`, again after EINTR, errors negated. */
#define RETRY(result, call)                                                   \
    do {                                                                      \
        do {                                                                  \
            (result) = (call);                                                \
        } while ((result) < 0 && errno == EINTR);                             \
        if ((result) < 0) {                                                   \
            (result) = -errno;                                                \
        }                                                                     \
    } while (0)

/* The calls made for each message go around the C library's wrappers, which
 * in a process of several threads switch its cancellation on and off with two
 * atomic operations each (1.5 % of the CPU of bench.py's proto-1k).  Nobody
 * cancels our threads.  The sanitizers know the wrappers only. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define WRAPPERS 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) ||    \
    __has_feature(memory_sanitizer)
#define WRAPPERS 1
#endif
#endif

/* Whoever shares the open socket, a child process for one, may have made it
 * blocking: a call for a loop's connection must not wait all the same. */
#define NO_WAIT (MSG_NOSIGNAL | MSG_DONTWAIT)

#ifdef WRAPPERS
#define RAW_RECV(fd, buf, len) recv(fd, buf, len, MSG_DONTWAIT)
#define RAW_RECVMSG(fd, msg, flags) recvmsg(fd, msg, (flags) | MSG_DONTWAIT)
#define RAW_SEND(fd, buf, len) send(fd, buf, len, NO_WAIT)
#define RAW_SENDMSG(fd, msg) sendmsg(fd, msg, NO_WAIT)
#define RAW_RECVMMSG(fd, msgs, n) recvmmsg(fd, msgs, n, MSG_DONTWAIT, NULL)
#define RAW_SENDMMSG(fd, msgs, n)                                             \
    sendmmsg(fd, msgs, n, MSG_DONTWAIT | MSG_NOSIGNAL)
#define RAW_EPOLL_WAIT(epfd, events, max, ms) epoll_wait(epfd, events, max, ms)
#define RAW_RECVFROM(fd, buf, len, flags, addr, addrlen)                      \
    recvfrom(fd, buf, len, flags, addr, addrlen)
#define RAW_SENDTO(fd, buf, len, flags, addr, addrlen)                        \
    sendto(fd, buf, len, (flags) | MSG_NOSIGNAL, addr, addrlen)
#define RAW_SENDMSG_FLAGS(fd, msg, flags)                                     \
    sendmsg(fd, msg, (flags) | MSG_NOSIGNAL)
#else
#if defined(__LP64__) /* where the kernel's timespec is the C library's */
#define RAW_PPOLL(fds, count, timeout)                                        \
    (int)syscall(SYS_ppoll, fds, (unsigned long)(count), timeout, NULL,       \
                 (size_t)8)
#endif
#define RAW_RECVFROM(fd, buf, len, flags, addr, addrlen)                      \
    syscall(SYS_recvfrom, fd, buf, len, flags, addr, addrlen)
#define RAW_SENDTO(fd, buf, len, flags, addr, addrlen)                        \
    syscall(SYS_sendto, fd, buf, len, (flags) | MSG_NOSIGNAL, addr, addrlen)
#define RAW_SENDMSG_FLAGS(fd, msg, flags)                                     \
    syscall(SYS_sendmsg, fd, msg, (flags) | MSG_NOSIGNAL)
#define RAW_RECV(fd, buf, len)                                                \
    syscall(SYS_recvfrom, fd, buf, len, MSG_DONTWAIT, NULL, NULL)
#define RAW_RECVMSG(fd, msg, flags)                                           \
    syscall(SYS_recvmsg, fd, msg, (flags) | MSG_DONTWAIT)
#define RAW_SEND(fd, buf, len)                                                \
    syscall(SYS_sendto, fd, buf, len, NO_WAIT, NULL, 0)
#define RAW_SENDMSG(fd, msg) syscall(SYS_sendmsg, fd, msg, NO_WAIT)
#define RAW_RECVMMSG(fd, msgs, n)                                             \
    (int)syscall(SYS_recvmmsg, fd, msgs, n, MSG_DONTWAIT, NULL)
#define RAW_SENDMMSG(fd, msgs, n)                                             \
    (int)syscall(SYS_sendmmsg, fd, msgs, n, MSG_DONTWAIT | MSG_NOSIGNAL)
#define RAW_EPOLL_WAIT(epfd, events, max, ms)                                 \
    (int)syscall(SYS_epoll_pwait, epfd, events, max, ms, NULL, 8)
#endif

#ifndef RAW_PPOLL
#define RAW_PPOLL(fds, count, timeout) ppoll(fds, count, timeout, NULL)
#endif

ssize_t
fnet_sys_recv(int fd, void *buf, size_t len)
{
    ssize_t n;
    RETRY(n, RAW_RECV(fd, buf, len));
    return n;
}

ssize_t
fnet_sys_recvmsg(int fd, struct msghdr *msg, int flags)
{
    ssize_t n;
    RETRY(n, RAW_RECVMSG(fd, msg, flags));
    return n;
}

ssize_t
fnet_sys_send(int fd, const void *buf, size_t len)
{
    ssize_t n;
    RETRY(n, RAW_SEND(fd, buf, len));
    return n;
}

ssize_t
fnet_sys_sendmsg(int fd, const struct msghdr *msg)
{
    ssize_t n;
    RETRY(n, RAW_SENDMSG(fd, msg));
    return n;
}

int
fnet_sys_recvmmsg(int fd, struct mmsghdr *msgs, unsigned n)
{
    int got;
    RETRY(got, RAW_RECVMMSG(fd, msgs, n));
    return got;
}

int
fnet_sys_sendmmsg(int fd, struct mmsghdr *msgs, unsigned n)
{
    int sent;
    RETRY(sent, RAW_SENDMMSG(fd, msgs, n));
    return sent;
}

ssize_t
fnet_sys_recvfrom(int fd, void *buf, size_t len, int flags,
                  struct sockaddr *addr, socklen_t *addrlen)
{
    ssize_t n;
    RETRY(n, RAW_RECVFROM(fd, buf, len, flags, addr, addrlen));
    return n;
}

ssize_t
fnet_sys_sendto(int fd, const void *buf, size_t len, int flags,
                const struct sockaddr *addr, socklen_t addrlen)
{
    ssize_t n;
    RETRY(n, RAW_SENDTO(fd, buf, len, flags, addr, addrlen));
    return n;
}

ssize_t
fnet_sys_sendmsg_flags(int fd, const struct msghdr *msg, int flags)
{
    ssize_t n;
    RETRY(n, RAW_SENDMSG_FLAGS(fd, msg, flags));
    return n;
}

ssize_t
fnet_sys_read(int fd, void *buf, size_t len)
{
    ssize_t n;
    RETRY(n, read(fd, buf, len));
    return n;
}

ssize_t
fnet_sys_write(int fd, const void *buf, size_t len)
{
    ssize_t n;
    RETRY(n, write(fd, buf, len));
    return n;
}

ssize_t
fnet_sys_writev(int fd, const struct iovec *iov, int n)
{
    ssize_t sent;
    RETRY(sent, writev(fd, iov, n));
    return sent;
}

int
fnet_sys_accept(int fd, struct sockaddr *addr, socklen_t *len)
{
    int conn;
    RETRY(conn, accept4(fd, addr, len, SOCK_NONBLOCK | SOCK_CLOEXEC));
    return conn;
}

int
fnet_sys_epoll_create(void)
{
    int fd = epoll_create1(EPOLL_CLOEXEC);
    return fd < 0 ? -errno : fd;
}

int
fnet_sys_eventfd(void)
{
    int fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    return fd < 0 ? -errno : fd;
}

int
fnet_sys_pipe(int fds[2])
{
    int ends[2];
    if (pipe2(ends, O_NONBLOCK | O_CLOEXEC) < 0) {
        return -errno;
    }
    fds[0] = ends[0];
    fds[1] = ends[1];
    return 0;
}

int
fnet_sys_dup(int fd)
{
    int copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    return copy < 0 ? -errno : copy;
}

int
fnet_sys_set_nonblocking(int fd)
{
    int flags = fcntl(fd, F_GETFL);
    if (flags >= 0 && (flags & O_NONBLOCK) == 0) {
        flags = fcntl(fd, F_SETFL, flags | O_NONBLOCK);
    }
    return flags < 0 ? -errno : 0;
}

int
fnet_sys_mode(int fd)
{
    struct stat status;
    return fstat(fd, &status) < 0 ? -errno : (int)status.st_mode;
}

int
fnet_sys_epoll_ctl(int epfd, int op, int fd, uint32_t events, uint64_t data)
{
    struct epoll_event event = {.events = events, .data = {.u64 = data}};
    return epoll_ctl(epfd, op, fd, &event) < 0 ? -errno : 0;
}

/* Set once the kernel has refused epoll_pwait2.  Relaxed: a thread that does
 * not see it yet asks once more. */
static atomic_bool no_pwait2;

/* What the kernel reads, on 32-bit machines too; time_t may be narrower. */
struct kernel_timespec {
    int64_t sec;
    int64_t nsec;
};

static int
wait_ns(int epfd, struct epoll_event *events, int max, int64_t timeout_ns)
{
    struct kernel_timespec timeout = {.sec = timeout_ns / FNET_SEC,
                                      .nsec = timeout_ns % FNET_SEC};
    long n = syscall(SYS_epoll_pwait2, epfd, events, max,
                     timeout_ns < 0 ? NULL : &timeout, NULL, (size_t)0);
    return n < 0 ? -errno : (int)n;
}

static int
wait_ms(int epfd, struct epoll_event *events, int max, int64_t timeout_ns)
{
    if (timeout_ns < 0) {
        int n = RAW_EPOLL_WAIT(epfd, events, max, -1);
        return n < 0 ? -errno : n;
    }
    int64_t ms =
        timeout_ns / FNET_MSEC + (timeout_ns % FNET_MSEC != 0 ? 1 : 0);
    int n;
    do { /* once, unless it is more than the 24 days that an int can say */
        int step = ms < INT_MAX ? (int)ms : INT_MAX;
        n = RAW_EPOLL_WAIT(epfd, events, max, step);
        ms -= step;
    } while (n == 0 && ms > 0);
    return n < 0 ? -errno : n;
}

int
fnet_sys_epoll_wait(int epfd, struct epoll_event *events, int max,
                    int64_t timeout_ns)
{
    /* epoll_wait says "at once" and "for ever" as well as the newer call. */
    if (timeout_ns > 0 &&
        !atomic_load_explicit(&no_pwait2, memory_order_relaxed)) {
        int n = wait_ns(epfd, events, max, timeout_ns);
        if (n != -ENOSYS && n != -EPERM) {
            return n;
        }
        atomic_store_explicit(&no_pwait2, true, memory_order_relaxed);
    }
    return wait_ms(epfd, events, max, timeout_ns);
}

int
fnet_sys_poll(struct pollfd *fds, unsigned count, int64_t timeout_ns)
{
    struct timespec timeout = {0};
    if (timeout_ns >= 0) {
        timeout.tv_sec = (time_t)(timeout_ns / FNET_SEC);
        timeout.tv_nsec = (long)(timeout_ns % FNET_SEC);
    }
    int n = RAW_PPOLL(fds, count, timeout_ns < 0 ? NULL : &timeout);
    return n < 0 ? -errno : n;
}

void
fnet_sys_forget_pwait2(bool forget)
{
    atomic_store_explicit(&no_pwait2, forget, memory_order_relaxed);
}

void
fnet_sys_close(int fd)
{
    close(fd);
}

int
fnet_sys_shutdown(int fd, int how)
{
    return shutdown(fd, how) < 0 ? -errno : 0;
}

int
fnet_sys_set_int(int fd, int level, int option, int value)
{
    return setsockopt(fd, level, option, &value, sizeof(value)) < 0 ? -errno
                                                                    : 0;
}

int
fnet_sys_get_int(int fd, int level, int option)
{
    int value = 0;
    socklen_t len = sizeof(value);
    return getsockopt(fd, level, option, &value, &len) < 0 ? -errno : value;
}

int
fnet_sys_take_error(int fd)
{
    int error = 0;
    socklen_t len = sizeof(error);
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len) < 0) {
        return -errno;
    }
    return -error;
}
