#include "net/pipe.h"

#include <errno.h>
#include <sys/stat.h>

static ssize_t
pipe_write(int fd, const struct iovec *iov, int n)
{
    if (n == 1) {
        return fnet_sys_write(fd, iov[0].iov_base, iov[0].iov_len);
    }
    return fnet_sys_writev(fd, iov, n);
}

/* The writing end has no input; it is asked once the reader has gone. */
static ssize_t
no_input(int fd, void *buf, size_t len)
{
    return 0;
}

static const fnet_stream_io reading = {
    .events = (uint32_t)(EPOLLIN | EPOLLRDHUP),
    .receive = fnet_sys_read,
    .send = pipe_write,
};

/* EPOLLRDHUP: of a socket.  A pipe without readers has EPOLLERR. */
static const fnet_stream_io writing = {
    .events = (uint32_t)(EPOLLOUT | EPOLLRDHUP) | EPOLLET,
    .receive = no_input,
    .send = pipe_write,
};

bool
fnet_pipe_takes(int mode)
{
    mode_t bits = (mode_t)mode;
    return S_ISFIFO(bits) || S_ISSOCK(bits) || S_ISCHR(bits);
}

int
fnet_pipe_attach(fnet_stream *stream, fnet_shard *shard, int fd, void *owner,
                 enum fnet_pipe_end end)
{
    int mode = fnet_sys_mode(fd);
    if (mode < 0) {
        return mode;
    }
    if (!fnet_pipe_takes(mode)) {
        return -EINVAL;
    }
    int rc = fnet_sys_set_nonblocking(fd);
    if (rc < 0) {
        return rc;
    }
    rc = fnet_stream_attach_io(stream, shard, fd, owner,
                               end == FNET_PIPE_READ ? &reading : &writing);
    if (rc == 0 && end == FNET_PIPE_WRITE && S_ISCHR((mode_t)mode)) {
        stream->ended = true; /* its hang-up is the next write's error */
    }
    return rc;
}
