/* Echo over shards that workers have: every byte is checked, the loop sleeps
 * whenever it may, and a sleep that nobody ends is a failure. */

#include "poll/prompter.h"

#include "lent.h"

#include <pthread.h>

enum { CONNS_MAX = 64, HIGH = 100000, LOW = 20000 };

/* -- the clients: one thread for all connections -------------------------- */

typedef struct client {
    int fd;
    size_t sent, got;
    bool shut, done;
} client;

typedef struct clients {
    pthread_t thread;
    client all[CONNS_MAX];
    unsigned n;
    size_t total;       /* bytes of each */
    size_t window;      /* bytes on their way, at most */
    atomic_bool enough; /* no more bytes */
} clients;

/* More is sent only when half of the window is empty: no single bytes. */
static bool
is_full(const clients *cs, const client *c)
{
    return c->sent >= cs->total || c->sent - c->got > cs->window / 2;
}

static void
client_send(clients *cs, client *c, uint32_t *seed)
{
    bool last = atomic_load(&cs->enough) || c->sent >= cs->total;
    if (last && !c->shut && c->got == c->sent) {
        c->shut = true;
        shutdown(c->fd, SHUT_WR);
    }
    if (last || is_full(cs, c)) {
        return;
    }
    size_t len = cs->window - (c->sent - c->got);
    char data[16384];
    len = 1 + test_random(seed) % (len < sizeof(data) ? len : sizeof(data));
    len = len < cs->total - c->sent ? len : cs->total - c->sent;
    world_fill(data, c->sent, len);
    ssize_t sent = send(c->fd, data, len, MSG_DONTWAIT | MSG_NOSIGNAL);
    c->sent += sent > 0 ? (size_t)sent : 0;
}

static void
client_receive(client *c)
{
    char data[65536];
    ssize_t got = recv(c->fd, data, sizeof(data), MSG_DONTWAIT);
    if (got > 0) {
        CHECK(world_matches(data, c->got, (size_t)got));
        c->got += (size_t)got;
    }
    else if (got == 0 || errno != EAGAIN) {
        CHECK(got == 0 && c->shut && c->got == c->sent);
        c->done = true;
    }
}

static void *
run_clients(void *arg)
{
    clients *cs = arg;
    uint32_t seed = 7;
    unsigned open = cs->n;
    struct pollfd fds[CONNS_MAX];

    while (open > 0) {
        for (unsigned i = 0; i < cs->n; i++) {
            client *c = &cs->all[i];
            if (!c->done) {
                client_send(cs, c, &seed);
            }
            fds[i] = (struct pollfd){.fd = c->done ? -1 : c->fd};
            bool full = c->shut || is_full(cs, c);
            fds[i].events = (short)(POLLIN | (full ? 0 : POLLOUT));
        }
        int n = poll(fds, cs->n, (int)(WORLD_PATIENCE / FNET_MSEC));
        CHECK(n > 0);
        if (n <= 0) {
            return NULL;
        }
        for (unsigned i = 0; i < cs->n; i++) {
            if ((fds[i].revents & (POLLIN | POLLHUP | POLLERR)) != 0) {
                client_receive(&cs->all[i]);
                open -= cs->all[i].done;
            }
        }
    }
    return NULL;
}

/* -- the server ----------------------------------------------------------- */

typedef struct hub {
    lent l;
    clients cs;
    end ends[CONNS_MAX];
    unsigned open;
    uint32_t seed;
} hub;

static void
hub_serve(void *arg, fnet_source *source, const fnet_completion *item)
{
    hub *h = arg;
    end *e = source->owner;

    switch (item->what) {
    case FNET_WHAT_DATA: {
        CHECK(e->eofs == 0);
        CHECK(world_matches(item->data, e->got, item->len));
        e->got += item->len;
        fnet_piece piece = {.data = item->data, .len = item->len};
        ssize_t left = fnet_stream_write(&e->s, &piece, 1);
        CHECK(left >= 0);
        if (left > HIGH) {
            fnet_stream_want(&e->s, false);
            fnet_stream_notify(&e->s, LOW);
        }
        break;
    }
    case FNET_WHAT_EOF:
        e->eofs++;
        fnet_stream_notify(&e->s, 0);
        break;
    case FNET_WHAT_OUTPUT:
        if (e->eofs == 0) {
            fnet_stream_want(&e->s, true);
            break;
        }
        end_detach(e);
        h->open--;
        break;
    default:
        CHECK(item->what != FNET_WHAT_ERROR);
    }
}

/* `shards` of them, `n` connections: every other one over TCP. */
static hub *
hub_new(unsigned shards, unsigned n, size_t total, size_t window)
{
    hub *h = calloc(1, sizeof(*h));
    lent_init(&h->l, hub_serve, h);
    h->l.set.limit = h->l.set.spread = shards;
    h->seed = 1;
    h->cs.n = h->open = n;
    h->cs.total = total;
    h->cs.window = window;
    for (unsigned i = 0; i < n; i++) {
        fnet_shard *shard = fnet_shardset_pick(&h->l.set);
        CHECK(shard == h->l.set.members[i % shards].shard);
        end_open(&h->ends[i], shard, i / shards % 2 == 1);
        if (i / shards % 2 == 1) {
            int fds[] = {h->ends[i].fd, h->ends[i].peer};
            for (int k = 0; k < 2; k++) {
                CHECK(fnet_sys_set_int(fds[k], IPPROTO_TCP, 1, 1) == 0);
            }
        }
        fnet_stream_want(&h->ends[i].s, true);
        h->cs.all[i].fd = h->ends[i].peer;
    }
    CHECK(h->l.set.count == shards);
    CHECK(pthread_create(&h->cs.thread, NULL, run_clients, &h->cs) == 0);
    return h;
}

/* Sleeps in each turn until something comes; false: it did not. */
static bool
hub_turn(hub *h)
{
    bool came = lent_turn(&h->l, fnet_clock_ns() + WORLD_PATIENCE);
    CHECK(came);
    return came;
}

static void
hub_free(hub *h)
{
    while (h->open > 0 && hub_turn(h)) {
    }
    pthread_join(h->cs.thread, NULL);
    for (unsigned i = 0; i < h->cs.n; i++) {
        CHECK(h->cs.all[i].done);
        CHECK(h->cs.all[i].got == h->ends[i].got);
        close(h->cs.all[i].fd);
    }
    lent_fini(&h->l);
    free(h);
}

/* -- tests ---------------------------------------------------------------- */

static void
many_connections(void)
{
    hub_free(hub_new(4, 40, 100000, 30000));
}

static void
one_message_at_a_time(void)
{
    hub_free(hub_new(2, 2, 200000, 64));
}

/* Large reads go into landing places, large writes wait for room. */
static void
much_at_a_time(void)
{
    hub_free(hub_new(3, 6, 2 * MIB, MIB));
}

static void
with_home_lent(void)
{
    hub *h = hub_new(2, 16, 300000, 30000);
    lent_lend(&h->l);
    hub_free(h);
}

/* Lends home or asks for it, at random; it stays where it is for a while. */
static void
flip(hub *h)
{
    lent *l = &h->l;
    if (l->recalling || test_random(&h->seed) % 2 == 0) {
        return;
    }
    if (l->set.home_away) {
        lent_recall(l);
    }
    else {
        lent_lend(l);
    }
}

static void
flips_of(unsigned shards, unsigned n, size_t window, unsigned flips,
         bool prompted)
{
    fnet_prompter *prompter = NULL;
    hub *h = hub_new(shards, n, SIZE_MAX / 2, window);
    if (prompted) {
        CHECK(fnet_prompter_new(&prompter, &h->l.home) == 0);
    }
    while (h->l.flips < flips && hub_turn(h)) {
        flip(h);
    }
    CHECK(h->l.flips == flips);
    atomic_store(&h->cs.enough, true);
    while (h->open > 0 && hub_turn(h)) {
        flip(h);
    }
    fnet_prompter_free(prompter);
    hub_free(h);
}

static void
ten_thousand_flips(void)
{
    flips_of(1, 4, 100, 10000, false);
}

static void
flips_of_a_single_connection(void)
{
    flips_of(1, 1, 32, 3000, true);
}

static void
flips_beside_other_shards(void)
{
    flips_of(3, 12, 10000, 2000, true);
}

/* As around forks: the threads end and come back under load. */
static void
threads_that_come_and_go(void)
{
    hub *h = hub_new(3, 24, SIZE_MAX / 2, 10000);
    for (int i = 0; i < 200 && hub_turn(h); i++) {
        flip(h);
        fnet_shardset_stop(&h->l.set);
        if (i % 3 == 0) {
            lent_take_mail(&h->l);
        }
        fnet_shardset_start(&h->l.set);
    }
    atomic_store(&h->cs.enough, true);
    hub_free(h);
}

/* -- others that wake the loop -------------------------------------------- */

/* Adds to a count, as call_soon_threadsafe adds a callback, and wakes. */
typedef struct caller {
    pthread_t thread;
    lent *l;
    atomic_uint asked, answered;
    unsigned rounds;
} caller;

static void *
call_again_and_again(void *arg)
{
    caller *c = arg;
    for (unsigned i = 1; i <= c->rounds; i++) {
        atomic_store(&c->asked, i);
        fnet_shardset_wake_any(&c->l->set);
        int64_t deadline = fnet_clock_ns() + WORLD_PATIENCE;
        while (atomic_load(&c->answered) != i && fnet_clock_ns() < deadline) {
            sched_yield();
        }
        CHECK(atomic_load(&c->answered) == i);
    }
    return NULL;
}

static void
unused(void *arg, fnet_source *source, const fnet_completion *item)
{
    CHECK(source == NULL);
}

/* One that looks for calls before each sleep, as the loop does; home is
 * lent, asked for and back all the while. */
static void
calls_from_another_thread(void)
{
    hub *h = calloc(1, sizeof(*h));
    lent *l = &h->l;
    caller c = {.l = l, .rounds = 6000};
    lent_init(l, unused, NULL);
    h->seed = 3;
    CHECK(pthread_create(&c.thread, NULL, call_again_and_again, &c) == 0);
    unsigned done = 0;
    while (done < c.rounds) {
        flip(h);
        if (l->recalling && fnet_shardset_regain_home(&l->set)) {
            l->recalling = false;
            l->flips++;
        }
        /* Announced first, looked at then. */
        fnet_poller *sleeper = atomic_load(&l->set.inbox.sleeper);
        atomic_store(&sleeper->asleep, 1);
        int64_t deadline = fnet_clock_ns() + WORLD_PATIENCE;
        if (atomic_load(&c.asked) != done) {
            deadline = FNET_NO_WAIT;
        }
        if (l->set.home_away) {
            (void)fnet_shardset_wait(&l->set, deadline);
        }
        else {
            (void)fnet_shard_pass(&l->home, &l->batch, deadline);
            fnet_shard_begin_turn(&l->home, false);
        }
        bool in_time = deadline == FNET_NO_WAIT || fnet_clock_ns() < deadline;
        CHECK(in_time);
        if (!in_time) {
            break;
        }
        done = atomic_load(&c.asked);
        atomic_store(&c.answered, done);
    }
    pthread_join(c.thread, NULL);
    CHECK(l->flips > 100);
    lent_fini(l);
    free(h);
}

int
main(void)
{
    RUN(many_connections);
    RUN(one_message_at_a_time);
    RUN(much_at_a_time);
    RUN(with_home_lent);
    RUN(ten_thousand_flips);
    RUN(flips_of_a_single_connection);
    RUN(flips_beside_other_shards);
    RUN(threads_that_come_and_go);
    RUN(calls_from_another_thread);
    return test_report();
}
