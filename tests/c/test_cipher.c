/* A connection whose bytes are transformed in the pass: a source of a kind of
 * its own, which enciphers what leaves and deciphers what comes.  It shows
 * what such a kind (TLS) has to do for shards that workers have:
 *
 *   - what the loop's thread touches too (here `out`, `wanted`) is used with
 *     the shard's lock, which the operations are called with;
 *   - for the system call and for the transformation the shard is left: the
 *     source is busy meanwhile and cannot be detached, and what only its
 *     operations touch (the positions in the key, `sealed`) is theirs, without
 *     a lock.  The prompter, too, calls flush, but never beside a pass;
 *   - what was enciphered and not yet sent is output that is left, though
 *     `out` is empty. */

#include "lent.h"
#include "poll/prompter.h"

#include <pthread.h>

#define SEALED_MAX ((size_t)4096)

typedef struct cipher {
    fnet_source source;
    fnet_shard *shard;
    int fd, peer;

    /* of its operations */
    bool readable, hup, ended, writable;
    size_t in_at, out_at; /* in the key */
    char sealed[SEALED_MAX];
    size_t sealed_len, sealed_off;

    /* guarded by shard->output */
    fnet_chain out;
    bool wanted;

    /* of the loop's thread */
    size_t got, written;
    bool closing;
} cipher;

static cipher *
cipher_of(fnet_source *source)
{
    return fnet_container_of(source, cipher, source);
}

/* Both ways; a byte at the wrong place of the key comes out wrong. */
static void
transform(char *data, size_t len, size_t at)
{
    for (size_t i = 0; i < len; i++) {
        data[i] ^= world_byte(3 * (at + i) + 1);
    }
}

/* -- the pass ------------------------------------------------------------- */

/* Takes the next bytes to be sent; false: there are none. */
static bool
refill(cipher *c)
{
    struct iovec iov[8];
    int n = fnet_chain_iovecs(&c->out, iov, 8);

    c->sealed_len = c->sealed_off = 0;
    for (int i = 0; i < n && c->sealed_len < SEALED_MAX; i++) {
        size_t room = SEALED_MAX - c->sealed_len;
        size_t len = iov[i].iov_len < room ? iov[i].iov_len : room;
        memcpy(c->sealed + c->sealed_len, iov[i].iov_base, len);
        c->sealed_len += len;
    }
    fnet_chain_consume(&c->out, c->shard->cache, c->sealed_len,
                       &c->shard->spent);
    return c->sealed_len > 0;
}

static void
cipher_flush(fnet_shard *shard, fnet_source *source)
{
    cipher *c = cipher_of(source);

    while (c->writable) {
        if (shard->hurry) {
            fnet_shard_defer_locked(shard, source);
            return;
        }
        bool fresh = c->sealed_off == c->sealed_len;
        if (fresh && !refill(c)) {
            return;
        }
        bool left = fnet_shard_leave(shard);
        if (fresh) {
            transform(c->sealed, c->sealed_len, c->out_at);
            c->out_at += c->sealed_len;
        }
        size_t rest = c->sealed_len - c->sealed_off;
        ssize_t sent = fnet_sys_send(c->fd, c->sealed + c->sealed_off, rest);
        fnet_shard_enter(shard, left);
        c->sealed_off += sent > 0 ? (size_t)sent : 0;
        c->writable = sent == (ssize_t)rest;
    }
}

static bool
cipher_event(fnet_shard *shard, fnet_source *source, uint32_t events)
{
    cipher *c = cipher_of(source);

    c->readable |= (events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP)) != 0;
    c->hup |= (events & (EPOLLRDHUP | EPOLLHUP)) != 0;
    if ((events & EPOLLOUT) != 0 && !c->writable) {
        c->writable = true;
        cipher_flush(shard, source);
    }
    return c->readable && c->wanted;
}

static bool
cipher_ready(fnet_shard *shard, fnet_source *source, fnet_batch *batch)
{
    cipher *c = cipher_of(source);
    size_t room;

    if (!c->readable || !c->wanted || c->ended) {
        return false;
    }
    char *place = fnet_batch_reserve(batch, shard->read_cache, 1000, &room);
    if (place == NULL) {
        return true;
    }
    bool left = fnet_shard_leave(shard);
    ssize_t got = fnet_sys_recv(c->fd, place, room);
    if (got > 0) {
        transform(place, (size_t)got, c->in_at);
        c->in_at += (size_t)got;
    }
    fnet_shard_enter(shard, left);
    if (got > 0) {
        fnet_batch_commit(batch, (size_t)got);
        fnet_completion *item =
            fnet_batch_push(batch, source, FNET_WHAT_DATA, 0);
        item->data = place;
        item->len = (size_t)got;
        batch->bytes += (size_t)got;
        c->readable = (size_t)got == room || c->hup;
    }
    else {
        c->readable = false;
        if (got == 0) {
            c->ended = true;
            fnet_batch_push(batch, source, FNET_WHAT_EOF, 0);
        }
    }
    return c->readable;
}

static const fnet_source_ops cipher_ops = {
    .kind = 101,
    .event = cipher_event,
    .ready = cipher_ready,
    .flush = cipher_flush,
};

/* -- the loop's thread ---------------------------------------------------- */

static void
cipher_open(cipher *c, fnet_shard *shard)
{
    int fds[2], size = 16384;
    world_pair(fds);
    /* Small, so that records are sent in parts. */
    CHECK(fnet_sys_set_int(fds[0], SOL_SOCKET, SO_SNDBUF, size) == 0);
    *c = (cipher){
        .shard = shard, .fd = fds[0], .peer = fds[1], .writable = true};
    fnet_source_init(&c->source, &cipher_ops, c);
    fnet_chain_init(&c->out);
    fnet_shard_lock(shard);
    CHECK(fnet_poller_attach(&shard->poller, &c->source, c->fd,
                             FNET_EVENTS_EDGE) == 0);
    c->wanted = true;
    fnet_shard_unlock(shard);
}

static void
cipher_write(cipher *c, const char *data, size_t len)
{
    fnet_shard_lock(c->shard);
    CHECK(fnet_chain_copy(&c->out, c->shard->cache, data, len) == 0);
    fnet_shard_defer_locked(c->shard, &c->source);
    fnet_shard_unlock(c->shard);
    c->written += len;
}

/* All that was written has left. */
static bool
cipher_drained(cipher *c)
{
    fnet_shard_lock(c->shard);
    fnet_shard_await_idle_locked(c->shard, &c->source);
    bool drained = fnet_chain_empty(&c->out) && c->sealed_off == c->sealed_len;
    fnet_shard_unlock(c->shard);
    return drained;
}

static void
cipher_close(cipher *c)
{
    fnet_shard_lock(c->shard);
    fnet_shard_detach_locked(c->shard, &c->source, true);
    fnet_chain_clear(&c->out, c->shard->cache, &c->shard->spent);
    fnet_shard_unlock(c->shard);
    close(c->fd);
}

static void
echo(void *arg, fnet_source *source, const fnet_completion *item)
{
    cipher *c = source->owner;

    CHECK(source->ops == &cipher_ops);
    if (item->what == FNET_WHAT_EOF) {
        c->closing = true;
        return;
    }
    CHECK(item->what == FNET_WHAT_DATA);
    CHECK(world_matches(item->data, c->got, item->len));
    c->got += item->len;
    cipher_write(c, item->data, item->len);
}

/* -- the other side ------------------------------------------------------- */

typedef struct peer {
    pthread_t thread;
    int fd;
    size_t total;
} peer;

/* Sends `total` bytes, enciphered, and checks what comes back. */
static void *
run_peer(void *arg)
{
    peer *p = arg;
    size_t sent = 0, got = 0;
    uint32_t seed = (uint32_t)p->fd;
    char data[20000];

    while (got < p->total) {
        bool may = sent < p->total && sent - got < 40000;
        struct pollfd ready = {.fd = p->fd, .events = POLLIN};
        ready.events = (short)(POLLIN | (may ? POLLOUT : 0));
        int n = poll(&ready, 1, (int)(WORLD_PATIENCE / FNET_MSEC));
        CHECK(n == 1);
        if (n != 1) {
            break;
        }
        if ((ready.revents & POLLOUT) != 0 && may) {
            size_t len = 1 + test_random(&seed) % sizeof(data);
            len = len < p->total - sent ? len : p->total - sent;
            world_fill(data, sent, len);
            transform(data, len, sent);
            ssize_t rc = fnet_sys_send(p->fd, data, len);
            sent += rc > 0 ? (size_t)rc : 0;
        }
        if ((ready.revents & POLLIN) != 0) {
            ssize_t rc = fnet_sys_recv(p->fd, data, sizeof(data));
            CHECK(rc > 0);
            transform(data, (size_t)rc, got);
            CHECK(world_matches(data, got, (size_t)rc));
            got += (size_t)rc;
        }
    }
    CHECK(got == p->total);
    shutdown(p->fd, SHUT_WR);
    return NULL;
}

enum { PEERS = 4 };

static void
peers_start(peer *peers, const cipher *ciphers, size_t total)
{
    for (int i = 0; i < PEERS; i++) {
        peers[i] = (peer){.fd = ciphers[i].peer, .total = total};
        CHECK(pthread_create(&peers[i].thread, NULL, run_peer, &peers[i]) ==
              0);
    }
}

static void
peers_end(const peer *peers, cipher *ciphers, size_t total)
{
    for (int i = 0; i < PEERS; i++) {
        pthread_join(peers[i].thread, NULL);
        CHECK(ciphers[i].got == total && ciphers[i].written == total);
        CHECK(cipher_drained(&ciphers[i]));
        cipher_close(&ciphers[i]);
        close(ciphers[i].peer);
    }
}

static bool
all_closing(const cipher *ciphers)
{
    int count = 0;
    for (int i = 0; i < PEERS; i++) {
        count += ciphers[i].closing;
    }
    return count == PEERS;
}

/* -- tests ---------------------------------------------------------------- */

static void
on_a_workers_shard(void)
{
    lent l;
    static cipher ciphers[PEERS];
    peer peers[PEERS];
    lent_init(&l, echo, NULL);
    fnet_shard *shard = lent_worker_shard(&l);
    for (int i = 0; i < PEERS; i++) {
        cipher_open(&ciphers[i], shard);
    }
    peers_start(peers, ciphers, 2 * MIB);
    LENT_UNTIL(&l, all_closing(ciphers));
    peers_end(peers, ciphers, 2 * MIB);
    lent_fini(&l);
}

static void
across_flips(void)
{
    lent l;
    fnet_prompter *prompter;
    static cipher ciphers[PEERS];
    peer peers[PEERS];
    lent_init(&l, echo, NULL);
    CHECK(fnet_prompter_new(&prompter, &l.home) == 0);
    for (int i = 0; i < PEERS; i++) {
        cipher_open(&ciphers[i], &l.home);
    }
    peers_start(peers, ciphers, MIB);
    unsigned turns = 0;
    while (!all_closing(ciphers)) {
        if (++turns % 3 == 0 && !l.recalling) {
            if (l.set.home_away) {
                lent_recall(&l);
            }
            else {
                lent_lend(&l);
            }
        }
        if (turns % 64 == 0 && !l.set.home_away) {
            usleep(2000); /* a long turn: the prompter's */
        }
        bool in_time = lent_turn(&l, fnet_clock_ns() + WORLD_PATIENCE);
        CHECK(in_time);
        if (!in_time) {
            break;
        }
    }
    CHECK(l.flips > 3);
    fnet_prompter_free(prompter);
    peers_end(peers, ciphers, MIB);
    lent_fini(&l);
}

/* Detached in the middle of both: nothing of it is touched any more. */
static void
closed_while_busy(void)
{
    static char data[20000];
    lent l;
    lent_init(&l, echo, NULL);
    fnet_shard *shard = lent_worker_shard(&l);
    world_fill(data, 0, sizeof(data));
    for (int i = 0; i < 200; i++) {
        cipher *c = malloc(sizeof(*c));
        peer p;
        cipher_open(c, shard);
        p = (peer){.fd = c->peer};
        CHECK(fnet_sys_send(c->peer, data, sizeof(data)) > 0);
        cipher_write(c, data, sizeof(data));
        if (i % 2 == 0) {
            LENT_AWAIT(fnet_shardset_has_mail(&l.set));
        }
        else {
            usleep((unsigned)i / 4);
        }
        cipher_close(c);
        free(c); /* a sanitizer would see a late use */
        close(p.fd);
        lent_turn(&l, FNET_NO_WAIT);
    }
    lent_fini(&l);
}

int
main(void)
{
    RUN(on_a_workers_shard);
    RUN(across_flips);
    RUN(closed_while_busy);
    return test_report();
}
