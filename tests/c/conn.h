/* conn: a stream in a world of its own, its peer, and what it has posted. */
#ifndef FNET_TESTS_CONN_H
#define FNET_TESTS_CONN_H

#include "net/stream.h"

#include "world.h"

/* A stream over a Unix socket pair or a TCP connection, and its peer. */
typedef struct conn {
    world w;
    fnet_stream s;
    int fd, peer;
    size_t written; /* bytes handed to the stream */
    size_t taken;   /* bytes that the peer has taken */
} conn;

/* What an idle Unix stream is registered for: room is asked for when there is
 * none. */
#define UNIX_EVENTS (FNET_EVENTS_EDGE & ~(uint32_t)EPOLLOUT)

static inline void
conn_attach(conn *c, const int fds[2], bool with_rights)
{
    c->written = c->taken = 0;
    c->fd = fds[0];
    c->peer = fds[1];
    CHECK(fnet_stream_attach(&c->s, &c->w.shard, c->fd, c, with_rights) == 0);
}

static inline void
conn_init(conn *c)
{
    int fds[2];
    world_init(&c->w);
    world_pair(fds);
    conn_attach(c, fds, true);
}

static inline void
conn_init_tcp(conn *c)
{
    int fds[2];
    world_init(&c->w);
    world_tcp_pair(fds);
    conn_attach(c, fds, false);
}

static inline void
conn_hang_up(conn *c)
{
    close(c->peer);
    c->peer = -1;
}

/* What the stream has posted, over passes. */
typedef struct got {
    size_t bytes;
    unsigned datas, readables, outputs, eofs, errors;
    int error;
} got;

/* Adds what the last pass has posted; the bytes must follow on. */
static inline void
conn_note(conn *c, got *g)
{
    for (unsigned i = 0; i < c->w.batch.count; i++) {
        const fnet_completion *item = &c->w.batch.items[i];
        CHECK(item->source == &c->s.source && item->tag == c->s.source.tag);
        CHECK(g->eofs == 0 && g->errors == 0); /* nothing comes after these */
        switch (item->what) {
        case FNET_WHAT_DATA:
            CHECK(item->len > 0);
            CHECK(world_matches(item->data, g->bytes, item->len));
            g->bytes += item->len;
            g->datas++;
            break;
        case FNET_WHAT_READABLE:
            g->readables++;
            break;
        case FNET_WHAT_OUTPUT:
            g->outputs++;
            break;
        case FNET_WHAT_EOF:
            g->eofs++;
            break;
        default:
            CHECK(item->what == FNET_WHAT_ERROR);
            g->errors++;
            g->error = item->result;
        }
    }
}

/* One pass without waiting. */
static inline unsigned
conn_step(conn *c, got *g)
{
    unsigned count = world_pass(&c->w);
    conn_note(c, g);
    return count;
}

/* Passes until so many bytes and ends have come, and one more. */
static inline void
conn_until(conn *c, got *g, size_t bytes, unsigned ends)
{
    while (g->bytes < bytes || g->eofs + g->errors < ends) {
        CHECK(world_wait(&c->w) > 0);
        if (c->w.batch.count == 0) {
            return; /* it will not come */
        }
        conn_note(c, g);
    }
    conn_step(c, g);
    CHECK(g->bytes == bytes && g->eofs + g->errors == ends);
}

/* -- writing -------------------------------------------------------------- */

/* Memory that a stream may keep a reference of. */
typedef struct foreign {
    char *data;
    size_t len;
    int spent; /* how often it has turned up as such */
} foreign;

/* Takes what is spent: how many. */
static inline int
conn_reap(conn *c)
{
    fnet_shard *shard = &c->w.shard;
    foreign *spent;
    int count = 0;
    fnet_lock_acquire(&shard->output);
    while ((spent = fnet_chain_pop_spent(&shard->spent, shard->cache)) !=
           NULL) {
        spent->spent++;
        count++;
    }
    fnet_lock_release(&shard->output);
    return count;
}

static inline void
conn_fini(conn *c)
{
    if (c->peer >= 0) {
        close(c->peer);
    }
    fnet_stream_detach(&c->s, true);
    conn_reap(c);
    close(c->fd);
    world_fini(&c->w);
}

/* Writes the next bytes, in one piece that is not foreign. */
static inline ssize_t
conn_write(conn *c, size_t len)
{
    char *data = malloc(len);
    CHECK(data != NULL);
    fnet_piece piece = {.data = data, .len = len};
    world_fill(data, c->written, len);
    ssize_t left = fnet_stream_write(&c->s, &piece, 1);
    c->written += len;
    free(data);
    return left;
}

/* Writes until the kernel takes no more. */
static inline void
conn_fill(conn *c)
{
    ssize_t left = 0;
    while (left == 0) {
        left = conn_write(c, FNET_SEND_NOW);
    }
    CHECK(left > 0 && !c->s.writable);
}

/* Lets the peer take what there is: how much. */
static inline size_t
conn_take(conn *c)
{
    size_t n = world_take(c->peer, c->taken, SIZE_MAX);
    c->taken += n;
    return n;
}

/* Lets the peer take and the stream go on until everything has arrived. */
static inline void
conn_take_all(conn *c, got *g)
{
    int64_t deadline = fnet_clock_ns() + WORLD_PATIENCE;
    while (c->taken < c->written && fnet_clock_ns() < deadline) {
        conn_take(c);
        conn_step(c, g);
    }
    CHECK(c->taken == c->written);
}

#endif
