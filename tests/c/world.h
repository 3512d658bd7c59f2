/* world: what the tests of poll and net need around them: a shard with its
 * depot and its batch, peers to talk to, and bytes that tell their place.
 *
 * Unix socket pairs deliver before send() returns, so that tests over them
 * need not wait; those over TCP use world_wait(). */
#ifndef FNET_TESTS_WORLD_H
#define FNET_TESTS_WORLD_H

#include "base/clock.h"
#include "cache/cache.h"
#include "poll/batch.h"
#include "poll/shard.h"

#include "test.h"

#include <dirent.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#define KIB ((size_t)1024)
#define MIB (KIB * KIB)
/* Long enough for anything that happens at all, on a busy machine too. */
#define WORLD_PATIENCE (20 * FNET_SEC)

typedef struct world {
    fnet_depot *depot;
    fnet_shard shard;
    fnet_batch batch;
    int fds; /* open before */
} world;

static inline int
world_count_fds(void)
{
    int count = 0;
    DIR *dir = opendir("/proc/self/fd");
    while (dir != NULL && readdir(dir) != NULL) {
        count++;
    }
    if (dir != NULL) {
        closedir(dir);
    }
    return count;
}

static inline void
world_init(world *w)
{
    w->fds = world_count_fds();
    CHECK(fnet_depot_new(&w->depot, 16 * MIB) == 0);
    CHECK(fnet_shard_init(&w->shard, w->depot) == 0);
    fnet_batch_init(&w->batch);
    fnet_shard_begin_turn(&w->shard, false);
}

/* Whatever the test opened is closed, whatever was spent is taken. */
static inline void
world_fini(world *w)
{
    CHECK(fnet_list_empty(&w->shard.ready));
    CHECK(fnet_list_empty(&w->shard.dirty));
    fnet_batch_fini(&w->batch, w->shard.cache);
    fnet_shard_fini(&w->shard);
    fnet_depot_free(w->depot);
    CHECK(world_count_fds() == w->fds);
}

/* One pass that does not wait, and the begin of the turn behind it: how many
 * completions it left. */
static inline unsigned
world_pass(world *w)
{
    CHECK(fnet_shard_pass(&w->shard, &w->batch, FNET_NO_WAIT) == 0);
    fnet_shard_begin_turn(&w->shard, false);
    return w->batch.count;
}

/* The same, but waits for the first completion. */
static inline unsigned
world_wait(world *w)
{
    int64_t deadline = fnet_clock_ns() + WORLD_PATIENCE;
    do {
        CHECK(fnet_shard_pass(&w->shard, &w->batch, deadline) == 0);
        fnet_shard_begin_turn(&w->shard, false);
    } while (w->batch.count == 0 && fnet_clock_ns() < deadline);
    return w->batch.count;
}

/* The completion is the only one of the last pass. */
static inline bool
world_only(const world *w, const fnet_source *source, enum fnet_what what,
           int result)
{
    const fnet_completion *item = &w->batch.items[0];
    return w->batch.count == 1 && item->source == source &&
           item->tag == source->tag && item->what == what &&
           item->result == result;
}

/* -- peers ---------------------------------------------------------------- */

/* A pair of connected Unix sockets, both non-blocking. */
static inline void
world_pair(int fds[2])
{
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0,
                     fds) == 0);
}

/* A listener on the loopback interface, non-blocking; its address. */
static inline int
world_listen(struct sockaddr_in *addr, int backlog)
{
    socklen_t len = sizeof(*addr);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    *addr = (struct sockaddr_in){.sin_family = AF_INET};
    addr->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    CHECK(fd >= 0);
    CHECK(bind(fd, (struct sockaddr *)addr, len) == 0);
    CHECK(getsockname(fd, (struct sockaddr *)addr, &len) == 0);
    CHECK(listen(fd, backlog) == 0);
    return fd;
}

static inline int
world_connect(const struct sockaddr_in *addr)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(connect(fd, (const struct sockaddr *)addr, sizeof(*addr)) == 0);
    return fd;
}

/* A TCP connection with itself over the loopback interface: [0] is
 * non-blocking, [1], the peer's, blocks. */
static inline void
world_tcp_pair(int fds[2])
{
    struct sockaddr_in addr;
    int listener = world_listen(&addr, 1);
    fds[1] = world_connect(&addr);
    struct pollfd ready = {.fd = listener, .events = POLLIN};
    CHECK(poll(&ready, 1, (int)(WORLD_PATIENCE / FNET_MSEC)) == 1);
    fds[0] = fnet_sys_accept(listener, NULL, NULL);
    CHECK(fds[0] >= 0);
    close(listener);
}

/* -- bytes ---------------------------------------------------------------- */

/* The byte at place `at` of every stream that the tests send. */
static inline char
world_byte(size_t at)
{
    uint32_t mixed = (uint32_t)at * UINT32_C(2654435761);
    return (char)(mixed >> 24);
}

static inline void
world_fill(char *data, size_t at, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        data[i] = world_byte(at + i);
    }
}

static inline bool
world_matches(const char *data, size_t at, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        if (data[i] != world_byte(at + i)) {
            return false;
        }
    }
    return true;
}

/* Sends bytes that begin at place `at`: how many went. */
static inline size_t
world_send(int fd, size_t at, size_t len)
{
    char data[4096];
    size_t done = 0;
    while (done < len) {
        size_t n = len - done < sizeof(data) ? len - done : sizeof(data);
        world_fill(data, at + done, n);
        ssize_t sent = fnet_sys_send(fd, data, n);
        if (sent <= 0) {
            break;
        }
        done += (size_t)sent;
    }
    return done;
}

/* Receives at most `len` bytes that begin at place `at`, without waiting:
 * how many came. */
static inline size_t
world_take(int fd, size_t at, size_t len)
{
    char data[16384];
    size_t done = 0;
    while (done < len) {
        size_t n = len - done < sizeof(data) ? len - done : sizeof(data);
        ssize_t got = recv(fd, data, n, MSG_DONTWAIT);
        if (got <= 0) {
            break;
        }
        CHECK(world_matches(data, at + done, (size_t)got));
        done += (size_t)got;
    }
    return done;
}

/* True if the peer sees the end of the stream, and nothing before it. */
static inline bool
world_at_end(int fd)
{
    char byte;
    return recv(fd, &byte, 1, MSG_DONTWAIT) == 0;
}

#endif
