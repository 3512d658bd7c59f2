/* cserver: a bare epoll echo server, one thread, one receive and one send
 * for each message: the reference (`limit`) beside the Python servers, and
 * the peer of the client benchmarks.
 *
 *   cserver [--unix PATH | --udp]
 *
 * Prints {"port": N} or {"unix": PATH} and serves until it is killed or its
 * parent ends.  A peer that does not read its answers is not read from. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define BUFFER (1 << 18)

/* What the kernel did not take of an answer; by descriptor. */
typedef struct {
    char *data;
    size_t off, len;
} rest;

static char buffer[BUFFER];
static rest *rests;
static size_t nrests;
static int ep, is_unix;

static void
die(const char *what)
{
    fprintf(stderr, "cserver: %s: %s\n", what, strerror(errno));
    exit(2);
}

static void
watch(int fd, uint32_t events, int op)
{
    struct epoll_event e = {.events = events, .data.fd = fd};
    if (epoll_ctl(ep, op, fd, &e) < 0) {
        die("epoll_ctl");
    }
}

static int
listen_inet(int type)
{
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof a;
    int fd = socket(AF_INET, type | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&a, n) < 0 ||
        getsockname(fd, (struct sockaddr *)&a, &n) < 0 ||
        (type == SOCK_STREAM && listen(fd, 1024) < 0)) {
        die("listen");
    }
    printf("{\"port\": %d}\n", ntohs(a.sin_port));
    return fd;
}

static int
listen_unix(const char *path)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    strncpy(a.sun_path, path, sizeof a.sun_path - 1);
    unlink(path);
    if (fd < 0 || bind(fd, (struct sockaddr *)&a, sizeof a) < 0 ||
        listen(fd, 1024) < 0) {
        die("listen");
    }
    printf("{\"unix\": \"%s\"}\n", path);
    return fd;
}

static void
accept_one(int listener)
{
    int one = 1;
    int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) {
        return;
    }
    if ((size_t)fd >= nrests) {
        size_t n = (size_t)fd + 1024;
        rest *grown = realloc(rests, n * sizeof *rests);
        if (grown == NULL) {
            die("realloc");
        }
        memset(grown + nrests, 0, (n - nrests) * sizeof *rests);
        rests = grown;
        nrests = n;
    }
    if (!is_unix) {
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    }
    watch(fd, EPOLLIN, EPOLL_CTL_ADD);
}

static void
drop(int fd)
{
    free(rests[fd].data);
    rests[fd] = (rest){0};
    close(fd);
}

static void
keep_rest(int fd, size_t off, size_t len)
{
    char *data = malloc(len);
    if (data == NULL) {
        die("malloc");
    }
    memcpy(data, buffer + off, len);
    rests[fd] = (rest){data, 0, len};
    watch(fd, EPOLLOUT, EPOLL_CTL_MOD);
}

static void
echo(int fd)
{
    ssize_t r = recv(fd, buffer, BUFFER, 0);
    if (r < 0 && errno == EAGAIN) {
        return;
    }
    if (r <= 0) {
        drop(fd);
        return;
    }
    ssize_t w = send(fd, buffer, (size_t)r, MSG_NOSIGNAL);
    if (w < 0 && errno != EAGAIN) {
        drop(fd);
    }
    else if (w < r) {
        size_t sent = w > 0 ? (size_t)w : 0;
        keep_rest(fd, sent, (size_t)r - sent);
    }
}

static void
echo_datagrams(int fd)
{
    struct sockaddr_storage from;
    socklen_t n = sizeof from;
    ssize_t r;
    while ((r = recvfrom(fd, buffer, BUFFER, 0, (struct sockaddr *)&from,
                         &n)) >= 0) {
        sendto(fd, buffer, (size_t)r, 0, (struct sockaddr *)&from, n);
        n = sizeof from;
    }
}

static void
send_rest(int fd)
{
    rest *p = &rests[fd];
    ssize_t w = send(fd, p->data + p->off, p->len - p->off, MSG_NOSIGNAL);
    if (w < 0) {
        if (errno != EAGAIN) {
            drop(fd);
        }
        return;
    }
    p->off += (size_t)w;
    if (p->off == p->len) {
        free(p->data);
        *p = (rest){0};
        watch(fd, EPOLLIN, EPOLL_CTL_MOD);
    }
}

int
main(int argc, char **argv)
{
    struct epoll_event ev[512];
    struct rlimit files;
    int listener;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    is_unix = argc == 3 && strcmp(argv[1], "--unix") == 0;
    bool is_udp = argc == 2 && strcmp(argv[1], "--udp") == 0;
    if (argc != 1 && !is_unix && !is_udp) {
        fprintf(stderr, "usage: cserver [--unix PATH | --udp]\n");
        return 2;
    }
    listener = is_unix  ? listen_unix(argv[2])
               : is_udp ? listen_inet(SOCK_DGRAM)
                        : listen_inet(SOCK_STREAM);
    fflush(stdout);
    ep = epoll_create1(EPOLL_CLOEXEC);
    if (ep < 0) {
        die("epoll_create1");
    }
    watch(listener, EPOLLIN, EPOLL_CTL_ADD);
    for (;;) {
        int n = epoll_wait(ep, ev, 512, -1);
        for (int i = 0; i < n; i++) {
            int fd = ev[i].data.fd;
            if (fd == listener && is_udp) {
                echo_datagrams(fd);
            }
            else if (fd == listener) {
                accept_one(fd);
            }
            else if (rests[fd].data != NULL) {
                send_rest(fd);
            }
            else {
                echo(fd);
            }
        }
    }
}
