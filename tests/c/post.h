/* post: a datagram socket in a world of its own, its peer, and what came. */
#ifndef FNET_TESTS_POST_H
#define FNET_TESTS_POST_H

#include "net/dgram.h"

#include "world.h"

#include <fcntl.h>
#include <sys/un.h>

typedef struct post {
    world w;
    fnet_dgram d;
    int fd, peer;
    struct sockaddr_in own, other; /* of UDP ones */
    size_t sent; /* the numbers of datagrams sent by and got from the peer */
    size_t got;
    unsigned runs, errors, outputs, stuck;
    int error; /* the last one */
} post;

static inline int
post_udp_socket(struct sockaddr_in *addr)
{
    socklen_t len = sizeof(*addr);
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    *addr = (struct sockaddr_in){.sin_family = AF_INET};
    addr->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    CHECK(fd >= 0);
    CHECK(bind(fd, (struct sockaddr *)addr, len) == 0);
    CHECK(getsockname(fd, (struct sockaddr *)addr, &len) == 0);
    return fd;
}

static inline void
post_attach(post *p, unsigned flags)
{
    CHECK(fnet_dgram_attach(&p->d, &p->w.shard, p->fd, p, flags, 8) == 0);
}

/* Both ends UDP on the loopback interface, unconnected. */
static inline void
post_init_udp(post *p)
{
    *p = (post){0};
    world_init(&p->w);
    p->fd = post_udp_socket(&p->own);
    p->peer = post_udp_socket(&p->other);
    post_attach(p, FNET_DGRAM_UDP);
}

/* A pair of Unix sockets, which deliver before a send returns. */
static inline void
post_init_unix(post *p)
{
    int fds[2];
    *p = (post){0};
    world_init(&p->w);
    CHECK(socketpair(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0,
                     fds) == 0);
    p->fd = fds[0];
    p->peer = fds[1];
    post_attach(p, FNET_DGRAM_WIDE);
}

/* Takes what is spent: how many. */
static inline int
post_reap(post *p)
{
    fnet_shard *shard = &p->w.shard;
    int count = 0;
    fnet_lock_acquire(&shard->output);
    while (fnet_chain_pop_spent(&shard->spent, shard->cache) != NULL) {
        count++;
    }
    fnet_lock_release(&shard->output);
    return count;
}

static inline void
post_fini(post *p)
{
    fnet_dgram_detach(&p->d, true);
    post_reap(p);
    close(p->fd);
    if (p->peer >= 0) {
        close(p->peer);
    }
    world_fini(&p->w);
}

/* -- the length and the bytes of datagram `number` ------------------------ */

static inline size_t
post_len(size_t number)
{
    /* Runs of equal ones, some shorter ones, empty ones. */
    static const size_t lens[] = {100, 100, 100, 40, 0, 1500, 1500, 1, 1};
    return lens[number % FNET_COUNTOF(lens)];
}

static inline bool
post_is(const char *data, size_t len, size_t number)
{
    return len == post_len(number) && world_matches(data, number * 7, len);
}

/* -- from the peer -------------------------------------------------------- */

static inline void
post_feed(post *p, size_t count)
{
    char data[2048];
    for (size_t i = 0; i < count; i++, p->sent++) {
        size_t len = post_len(p->sent);
        world_fill(data, p->sent * 7, len);
        const struct sockaddr *to =
            p->own.sin_family == 0 ? NULL : (struct sockaddr *)&p->own;
        CHECK(sendto(p->peer, data, len, 0, to,
                     to == NULL ? 0 : sizeof(p->own)) == (ssize_t)len);
    }
}

/* What the last pass has posted; datagrams must come in their order. */
static inline void
post_note(post *p)
{
    for (unsigned i = 0; i < p->w.batch.count; i++) {
        const fnet_completion *item = &p->w.batch.items[i];
        const struct mmsghdr *headers = item->data;
        CHECK(item->source == &p->d.source);
        switch (item->what) {
        case FNET_WHAT_DATAGRAMS:
            CHECK(item->result > 0);
            for (int k = 0; k < item->result; k++, p->got++) {
                CHECK(post_is(headers[k].msg_hdr.msg_iov->iov_base,
                              headers[k].msg_len, p->got));
            }
            p->runs++;
            break;
        case FNET_WHAT_OUTPUT:
            p->outputs++;
            p->stuck += item->result != 0;
            break;
        default:
            CHECK(item->what == FNET_WHAT_ERROR);
            p->errors++;
            p->error = item->result;
        }
    }
}

static inline unsigned
post_step(post *p)
{
    unsigned count = world_pass(&p->w);
    post_note(p);
    return count;
}

/* Passes until all that the peer has sent is there, and one more. */
static inline void
post_take_in(post *p)
{
    while (p->got < p->sent) {
        if (world_wait(&p->w) == 0) {
            CHECK(!"it will not come");
            return;
        }
        post_note(p);
    }
    post_step(p);
}

/* -- to the peer ---------------------------------------------------------- */

/* Sends datagram `number`, in memory that is not foreign. */
static inline ssize_t
post_send(post *p, size_t number, bool company)
{
    char data[2048];
    fnet_piece piece = {.data = data, .len = post_len(number)};
    world_fill(data, number * 7, piece.len);
    return fnet_dgram_send(
        &p->d, &piece, &p->other,
        p->other.sin_family == 0 ? 0 : (socklen_t)sizeof(p->other), company);
}

/* How many the peer has got since, beginning with datagram `number`. */
static inline size_t
post_peer_takes(post *p, size_t number)
{
    char data[4096];
    size_t count = 0;
    ssize_t n;
    while ((n = recv(p->peer, data, sizeof(data), MSG_DONTWAIT)) >= 0) {
        CHECK(post_is(data, (size_t)n, number + count));
        count++;
    }
    return count;
}

#endif
