/* sys: system calls that answer with 0 or a result, or a negative errno.
 *
 * EINTR is retried, except by the calls that wait.  Nothing leaves its answer
 * in errno.  Any thread. */
#ifndef FNET_BASE_SYS_H
#define FNET_BASE_SYS_H

#include "base/base.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>

/* Data: the number of bytes, or a negative errno (-EAGAIN: not now). */
ssize_t fnet_sys_recv(int fd, void *buf, size_t len);
ssize_t fnet_sys_recvmsg(int fd, struct msghdr *msg, int flags);
ssize_t fnet_sys_send(int fd, const void *buf, size_t len); /* no SIGPIPE */
ssize_t fnet_sys_sendmsg(int fd, const struct msghdr *msg); /* no SIGPIPE */
/* Datagrams, many with one call and without waiting: how many, or a negative
 * errno of the first.  After fewer than `n` the next call tells why. */
int fnet_sys_recvmmsg(int fd, struct mmsghdr *msgs, unsigned n);
int fnet_sys_sendmmsg(int fd, struct mmsghdr *msgs, unsigned n);
/* With flags and, if `addr` is not NULL, an address (*len: its size). */
ssize_t fnet_sys_recvfrom(int fd, void *buf, size_t len, int flags,
                          struct sockaddr *addr, socklen_t *addrlen);
ssize_t fnet_sys_sendto(int fd, const void *buf, size_t len, int flags,
                        const struct sockaddr *addr, socklen_t addrlen);
ssize_t fnet_sys_sendmsg_flags(int fd, const struct msghdr *msg, int flags);
ssize_t fnet_sys_read(int fd, void *buf, size_t len);
ssize_t fnet_sys_write(int fd, const void *buf, size_t len);
ssize_t fnet_sys_writev(int fd, const struct iovec *iov, int n);

/* A new non-blocking, close-on-exec descriptor, or a negative errno. */
int fnet_sys_accept(int fd, struct sockaddr *addr, socklen_t *len);
int fnet_sys_epoll_create(void);
int fnet_sys_eventfd(void);
/* Both ends non-blocking and close-on-exec. */
int fnet_sys_pipe(int fds[2]);

/* Another descriptor, close-on-exec, for the same open file. */
int fnet_sys_dup(int fd);
int fnet_sys_set_nonblocking(int fd);
/* st_mode of what is open, or a negative errno. */
int fnet_sys_mode(int fd);

int fnet_sys_epoll_ctl(int epfd, int op, int fd, uint32_t events,
                       uint64_t data);
/* Waits at most `timeout_ns` (< 0: for ever); -EINTR is returned.  Uses
 * epoll_pwait2 where the kernel has it (ENOSYS and EPERM both mean that it
 * does not), else rounds up to milliseconds, so that it never returns early
 * for a reason of its own. */
int fnet_sys_epoll_wait(int epfd, struct epoll_event *events, int max,
                        int64_t timeout_ns);
/* Waits until one of the descriptors is ready, at most `timeout_ns` (< 0: for
 * ever): how many are, 0, or a negative errno; -EINTR is returned. */
int fnet_sys_poll(struct pollfd *fds, unsigned count, int64_t timeout_ns);
/* Tests: act as if the kernel had no epoll_pwait2. */
void fnet_sys_forget_pwait2(bool forget);

/* Linux closes the descriptor whatever close() says: never retried. */
void fnet_sys_close(int fd);
int fnet_sys_shutdown(int fd, int how);
int fnet_sys_set_int(int fd, int level, int option, int value);
/* An option that is an int and not negative, or a negative errno. */
int fnet_sys_get_int(int fd, int level, int option);
/* SO_ERROR, taken: 0 or a negative errno. */
int fnet_sys_take_error(int fd);

#endif
