/* Streams whose shard a worker has. */

#include "lent.h"

#include <pthread.h>

/* -- bytes, both ways ----------------------------------------------------- */

static void
delivers_and_sends(void)
{
    lent l;
    end e[2];
    lent_init(&l, end_note, NULL);
    fnet_shard *shard = lent_worker_shard(&l);
    for (int i = 0; i < 2; i++) {
        end_open(&e[i], shard, i == 1);
        fnet_stream_want(&e[i].s, true);
        for (int k = 0; k < (i == 1 ? 20 : 200); k++) {
            size_t len = (size_t)(k * k);
            CHECK(world_send(e[i].peer, e[i].got, len + 1) == len + 1);
            size_t want = e[i].got + len + 1;
            LENT_UNTIL(&l, e[i].got == want);
            CHECK(end_write(&e[i], len + 1) > 0);
            LENT_MEANWHILE(&l, end_all_taken(&e[i]));
        }
        end_close(&e[i]);
    }
    lent_fini(&l);
}

/* The end of a stream comes behind its last byte, however they arrive. */
static void
eof_after_data(void)
{
    lent l;
    lent_init(&l, end_note, NULL);
    fnet_shard *shard = lent_worker_shard(&l);
    for (int i = 0; i < 100; i++) {
        end e;
        size_t len = (size_t)i * 997;
        end_open(&e, shard, i % 2 == 1);
        fnet_stream_want(&e.s, i % 3 != 0);
        size_t sent = world_send(e.peer, 0, len);
        shutdown(e.peer, SHUT_WR);
        fnet_stream_want(&e.s, true);
        LENT_UNTIL(&l, e.eofs == 1);
        CHECK(e.got == sent);
        CHECK(end_write(&e, 100) == 100); /* the other half stays open */
        LENT_MEANWHILE(&l, end_all_taken(&e));
        end_close(&e);
    }
    lent_fini(&l);
}

static void
a_peer_that_resets(void)
{
    lent l;
    end e;
    int on[2] = {1, 0}; /* struct linger */
    lent_init(&l, end_note, NULL);
    fnet_shard *shard = lent_worker_shard(&l);
    end_open(&e, shard, true);
    fnet_stream_want(&e.s, true);
    CHECK(setsockopt(e.peer, SOL_SOCKET, SO_LINGER, on, sizeof(on)) == 0);
    close(e.peer);
    LENT_UNTIL(&l, e.errors == 1);
    CHECK(e.got == 0 && e.eofs == 0);
    /* A write finds out, sooner or later, and says so from then on. */
    int64_t deadline = fnet_clock_ns() + WORLD_PATIENCE;
    ssize_t rc = 0;
    while (rc >= 0 && fnet_clock_ns() < deadline) {
        rc = end_write(&e, 100);
    }
    CHECK(rc == -EPIPE || rc == -ECONNRESET);
    CHECK(fnet_stream_error(&e.s) == rc);
    CHECK(end_write(&e, 1) == rc);
    end_detach(&e);
    lent_fini(&l);
}

static void
shutdown_behind_the_output(void)
{
    lent l;
    lent_init(&l, end_note, NULL);
    fnet_shard *shard = lent_worker_shard(&l);
    for (int i = 0; i < 40; i++) {
        end e;
        end_open(&e, shard, i % 2 == 1);
        size_t len = (size_t)i * 20000;
        if (len > 0) {
            (void)end_write(&e, len);
        }
        fnet_stream_shutdown(&e.s);
        CHECK(end_write(&e, 10) >= 0); /* dropped */
        e.written -= 10;
        LENT_MEANWHILE(&l, end_all_taken(&e));
        LENT_AWAIT(world_at_end(e.peer));
        end_close(&e);
    }
    lent_fini(&l);
}

static void
tells_when_output_has_gone(void)
{
    lent l;
    end e;
    lent_init(&l, end_note, NULL);
    fnet_shard *shard = lent_worker_shard(&l);
    end_open(&e, shard, false);
    /* Down to the mark. */
    size_t big = 4 * MIB;
    CHECK(end_write(&e, big) > 0);
    fnet_stream_notify(&e.s, 100000);
    usleep(20000);
    lent_turn(&l, FNET_NO_WAIT);
    CHECK(e.outputs == 0);
    while (e.outputs == 0 && end_take(&e) + 1 > 0 && e.taken < big) {
        lent_turn(&l, FNET_NO_WAIT);
    }
    LENT_UNTIL(&l, e.outputs == 1);
    CHECK(fnet_stream_flush(&e.s) <= 100000);
    LENT_MEANWHILE(&l, end_all_taken(&e));
    /* Nothing queued: at once.  Again and again: the worker sleeps. */
    for (unsigned i = 2; i < 200; i++) {
        fnet_stream_notify(&e.s, 0);
        LENT_UNTIL(&l, e.outputs == i);
    }
    end_close(&e);
    lent_fini(&l);
}

/* The program has sent by itself and found no room; by the time it says so,
 * the worker may have seen the edge already. */
static void
tells_of_room_that_came_early(void)
{
    char data[65536];
    lent l;
    lent_init(&l, end_note, NULL);
    fnet_shard *shard = lent_worker_shard(&l);
    for (int tcp = 0; tcp < 2; tcp++) {
        end e;
        end_open(&e, shard, tcp == 1);
        for (unsigned i = 1; i <= 20; i++) {
            memset(data, 0, sizeof(data));
            int64_t quiet = fnet_clock_ns();
            while (fnet_clock_ns() - quiet < 2 * FNET_MSEC) {
                if (fnet_sys_send(e.fd, data, sizeof(data)) > 0) {
                    quiet = fnet_clock_ns();
                }
            }
            while (fnet_sys_send(e.fd, data, sizeof(data)) > 0) {
            }
            if (i % 2 == 0) { /* room comes before */
                while (recv(e.peer, data, sizeof(data), MSG_DONTWAIT) > 0) {
                }
                usleep(3000);
            }
            fnet_stream_notify_room(&e.s);
            if (i % 2 == 1) { /* or behind */
                usleep(500);
                lent_turn(&l, FNET_NO_WAIT);
                /* TCP may find room by itself: its buffers grow. */
                CHECK(tcp == 1 || e.outputs == i - 1);
                while (recv(e.peer, data, sizeof(data), MSG_DONTWAIT) > 0) {
                }
            }
            LENT_UNTIL(&l, e.outputs == i);
        }
        end_close(&e);
    }
    lent_fini(&l);
}

/* -- while the worker is at it -------------------------------------------- */

/* Takes what comes at the peer's end, until the end of the stream. */
typedef struct taker {
    pthread_t thread;
    int fd;
    size_t at;
    bool check;
    bool slow;
} taker;

static void *
take_all(void *arg)
{
    taker *t = arg;
    char *data = malloc(256 * KIB);
    for (;;) {
        struct pollfd ready = {.fd = t->fd, .events = POLLIN};
        CHECK(poll(&ready, 1, (int)(WORLD_PATIENCE / FNET_MSEC)) == 1);
        ssize_t got = fnet_sys_recv(t->fd, data, 256 * KIB);
        if (got == -EAGAIN) {
            continue;
        }
        if (got <= 0) {
            break;
        }
        CHECK(!t->check || world_matches(data, t->at, (size_t)got));
        t->at += (size_t)got;
        if (t->slow) {
            usleep(20);
        }
    }
    free(data);
    return NULL;
}

static void
taker_start(taker *t, int fd, bool check, bool slow)
{
    *t = (taker){.fd = fd, .check = check, .slow = slow};
    CHECK(pthread_create(&t->thread, NULL, take_all, t) == 0);
}

enum { WRITES = 4000 };

/* Pieces of all kinds are written while the worker sends those before. */
static void
writes_while_it_sends(void)
{
    static char data[128 * 1024];
    static atomic_int spent[WRITES];
    lent l;
    uint32_t seed = 5;
    lent_init(&l, end_note, NULL);
    fnet_shard *shard = lent_worker_shard(&l);
    for (int tcp = 0; tcp < 2; tcp++) {
        end e;
        taker t;
        end_open(&e, shard, tcp == 1);
        taker_start(&t, e.peer, true, false);
        char *kept[WRITES] = {0};
        for (int i = 0; i < WRITES; i++) {
            atomic_store(&spent[i], 0);
            fnet_piece pieces[3];
            size_t n = 1 + test_random(&seed) % 3;
            size_t at = 0;
            for (size_t k = 0; k < n; k++) {
                size_t len = 1 + test_random(&seed) % 3000;
                world_fill(data + at, e.written + at, len);
                pieces[k] = (fnet_piece){.data = data + at, .len = len};
                at += len;
            }
            if (i % 3 == 0) {
                /* The last one stays where it is. */
                fnet_piece *last = &pieces[n - 1];
                kept[i] = malloc(last->len);
                memcpy(kept[i], last->data, last->len);
                last->data = kept[i];
                last->foreign = &spent[i];
            }
            e.written += at;
            ssize_t left = fnet_stream_write(&e.s, pieces, n);
            CHECK(left > 0);
            if (kept[i] != NULL && !pieces[n - 1].kept) {
                free(kept[i]);
                kept[i] = NULL;
            }
            if (left > 300000) {
                unsigned before = e.outputs;
                fnet_stream_notify(&e.s, 1000);
                LENT_UNTIL(&l, e.outputs > before);
            }
        }
        fnet_stream_shutdown(&e.s);
        pthread_join(t.thread, NULL);
        CHECK(t.at == e.written);
        end_close(&e);
        lent_reap(shard);
        for (int i = 0; i < WRITES; i++) {
            CHECK(atomic_load(&spent[i]) == (kept[i] != NULL));
            free(kept[i]);
        }
    }
    lent_fini(&l);
}

/* Output that is dropped, now and then in the middle of a send: what arrives
 * is a beginning of what was written. */
static void
drops_while_it_sends(void)
{
    lent l;
    lent_init(&l, end_note, NULL);
    fnet_shard *shard = lent_worker_shard(&l);
    for (int i = 0; i < 40; i++) {
        end e;
        taker t;
        end_open(&e, shard, i % 2 == 1);
        taker_start(&t, e.peer, true, false);
        CHECK(end_write(&e, (size_t)(i + 1) * 30000) > 0);
        if (i % 4 != 0) {
            usleep((unsigned)i);
        }
        fnet_stream_drop(&e.s);
        CHECK(fnet_stream_flush(&e.s) == 0);
        fnet_stream_shutdown(&e.s);
        pthread_join(t.thread, NULL);
        CHECK(t.at <= e.written);
        end_close(&e);
    }
    lent_fini(&l);
}

/* Who closes a connection waits for one call, not until a fast reader has
 * taken all there is: a flush ends when somebody is in a hurry, and what it
 * leaves is there for the next one. */
static void
a_flush_ends_in_a_hurry(void)
{
    lent l;
    end e;
    lent_init(&l, end_note, NULL);
    fnet_shard *shard = lent_worker_shard(&l);
    end_open(&e, shard, false);
    fnet_shardset_stop(&l.set); /* its passes are this thread's */
    CHECK(end_write(&e, 3000) == 3000);
    fnet_shard_lock(shard);
    shard->hurry = true;
    fnet_shard_flush_locked(shard);
    CHECK(!shard->hurry && end_take(&e) == 0);
    CHECK(!fnet_list_empty(&shard->dirty));
    fnet_shard_flush_locked(shard);
    CHECK(end_all_taken(&e) && fnet_list_empty(&shard->dirty));
    fnet_shard_unlock(shard);
    fnet_shardset_start(&l.set);
    end_close(&e);
    lent_fini(&l);
}

/* -- a number that is used again at once ---------------------------------- */

/* Sends to the peer without an end, until told. */
typedef struct flood {
    pthread_t thread;
    atomic_int fd; /* -1: wait; -2: end */
    atomic_int at; /* the one that it has seen */
} flood;

static void *
flood_peers(void *arg)
{
    flood *f = arg;
    static char data[32768];
    for (;;) {
        int fd = atomic_load(&f->fd);
        atomic_store(&f->at, fd);
        if (fd == -2) {
            return NULL;
        }
        if (fd < 0 ||
            send(fd, data, sizeof(data), MSG_DONTWAIT | MSG_NOSIGNAL) < 0) {
            usleep(5);
        }
    }
}

/* The new owner of the number gets its own bytes, all of them, and nobody
 * else's: the worker is not in a call for the old one any more. */
static void
check_number_is_free(lent *l, fnet_shard *shard, int fd, bool attach)
{
    int fds[2];
    char byte;
    world_pair(fds);
    if (fds[0] != fd) {
        int moved = fds[0];
        if (fds[1] == fd) {
            fds[1] = moved;
        }
        else {
            CHECK(dup2(moved, fd) == fd);
            close(moved);
        }
        fds[0] = fd;
    }
    CHECK(world_send(fds[1], 0, 3000) == 3000);
    if (attach) {
        end e;
        end_attach(&e, shard, fds, true);
        fnet_stream_want(&e.s, true);
        CHECK(end_write(&e, 700) == 700);
        LENT_UNTIL(l, e.got == 3000);
        LENT_MEANWHILE(l, end_all_taken(&e));
        end_close(&e);
        return;
    }
    CHECK(world_take(fds[0], 0, 4000) == 3000);
    CHECK(recv(fds[1], &byte, 1, MSG_DONTWAIT) == -1 && errno == EAGAIN);
    close(fds[0]);
    close(fds[1]);
}

static void
take_anything(void *arg, fnet_source *source, const fnet_completion *item)
{
    end *e = source->owner;
    if (e->eofs == 99) { /* an end of the flood's */
        e->got += item->len;
        return;
    }
    end_note(arg, source, item);
}

static void
closes_while_it_receives(bool tcp)
{
    lent l;
    flood f;
    atomic_init(&f.fd, -1);
    atomic_init(&f.at, 0);
    lent_init(&l, take_anything, NULL);
    fnet_shard *shard = lent_worker_shard(&l);
    CHECK(pthread_create(&f.thread, NULL, flood_peers, &f) == 0);
    for (int i = 0; i < 300; i++) {
        end e;
        end_open(&e, shard, tcp);
        e.eofs = 99;
        fnet_stream_want(&e.s, true);
        atomic_store(&f.fd, e.peer);
        size_t want = (size_t)(i % 7) * 50000 + 1;
        LENT_UNTIL(&l, e.got >= want);
        for (int spin = 0; spin < i * 10; spin++) {
            atomic_load(&f.at);
        }
        end_detach(&e);
        check_number_is_free(&l, shard, e.fd, i % 2 == 0);
        atomic_store(&f.fd, -1);
        LENT_AWAIT(atomic_load(&f.at) == -1);
        close(e.peer);
    }
    atomic_store(&f.fd, -2);
    pthread_join(f.thread, NULL);
    lent_fini(&l);
}

static void
closes_while_it_receives_unix(void)
{
    closes_while_it_receives(false);
}

static void
closes_while_it_receives_tcp(void)
{
    closes_while_it_receives(true);
}

static void
closes_while_it_sends(void)
{
    lent l;
    lent_init(&l, end_note, NULL);
    fnet_shard *shard = lent_worker_shard(&l);
    for (int i = 0; i < 100; i++) {
        end e;
        taker t;
        end_open(&e, shard, i % 2 == 1);
        taker_start(&t, e.peer, true, false);
        CHECK(end_write(&e, 400000) > 0);
        size_t n = (size_t)(i % 10) * 20000;
        LENT_MEANWHILE(&l, fnet_stream_flush(&e.s) <= 400000 - n);
        end_detach(&e);
        check_number_is_free(&l, shard, e.fd, i % 4 < 2);
        pthread_join(t.thread, NULL);
        CHECK(t.at <= e.written);
        close(e.peer);
    }
    lent_fini(&l);
}

int
main(void)
{
    RUN(delivers_and_sends);
    RUN(eof_after_data);
    RUN(a_peer_that_resets);
    RUN(shutdown_behind_the_output);
    RUN(tells_when_output_has_gone);
    RUN(tells_of_room_that_came_early);
    RUN(writes_while_it_sends);
    RUN(drops_while_it_sends);
    RUN(a_flush_ends_in_a_hurry);
    RUN(closes_while_it_receives_unix);
    RUN(closes_while_it_receives_tcp);
    RUN(closes_while_it_sends);
    return test_report();
}
