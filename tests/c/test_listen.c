#include "net/listen.h"

#include "world.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/un.h>

/* A listener on the loopback interface, and clients of it. */
enum { CLIENTS_MAX = 200 };

typedef struct server {
    world *w; /* whose shard it is in */
    fnet_listener l;
    int fd;
    struct sockaddr_in addr;
    int clients[CLIENTS_MAX], conns[CLIENTS_MAX];
    int nclients, nconns;
    int errors, error;
} server;

static void
server_init(server *s, world *w, int backlog)
{
    *s = (server){.w = w};
    s->fd = world_listen(&s->addr, CLIENTS_MAX);
    CHECK(fnet_listener_attach(&s->l, &w->shard, s->fd, backlog, s) == 0);
}

static void
server_fini(server *s)
{
    fnet_listener_detach(&s->l);
    close(s->fd);
    for (int i = 0; i < s->nclients; i++) {
        close(s->clients[i]);
    }
    for (int i = 0; i < s->nconns; i++) {
        close(s->conns[i]);
    }
}

/* They are in the kernel's queue when connect() returns. */
static void
come(server *s, int count)
{
    for (int i = 0; i < count; i++) {
        s->clients[s->nclients++] = world_connect(&s->addr);
    }
}

/* What the last pass has brought: how many connections. */
static int
take(server *s)
{
    int count = 0;
    for (unsigned i = 0; i < s->w->batch.count; i++) {
        const fnet_completion *item = &s->w->batch.items[i];
        if (item->source != &s->l.source) {
            continue; /* another server's */
        }
        CHECK(item->tag == s->l.source.tag);
        if (item->what == FNET_WHAT_ACCEPTED) {
            s->conns[s->nconns++] = item->result;
            count++;
        }
        else {
            CHECK(item->what == FNET_WHAT_ERROR);
            s->errors++;
            s->error = item->result;
        }
    }
    return count;
}

/* One pass without waiting. */
static int
step(server *s)
{
    world_pass(s->w);
    return take(s);
}

/* Every client has a connection of its own: a byte from each arrives. */
static bool
all_are_served(server *s)
{
    bool served = s->nconns == s->nclients;
    for (int i = 0; i < s->nclients; i++) {
        served = served && world_send(s->clients[i], 0, 1) == 1;
    }
    for (int i = 0; i < s->nconns; i++) {
        char byte;
        struct pollfd ready = {.fd = s->conns[i], .events = POLLIN};
        served = served && poll(&ready, 1, 10000) == 1 &&
                 fnet_sys_recv(s->conns[i], &byte, 1) == 1;
    }
    return served;
}

static void
one_connection(void)
{
    world w;
    server s;
    struct sockaddr_in own;
    socklen_t len = sizeof(own);
    world_init(&w);
    server_init(&s, &w, 100);
    CHECK(s.l.source.owner == &s);
    CHECK(s.l.source.ops->kind == FNET_KIND_LISTENER);
    CHECK(step(&s) == 0);
    come(&s, 1);
    CHECK(world_wait(&w) == 1 && take(&s) == 1);
    const fnet_completion *item = &w.batch.items[0];
    CHECK(getsockname(s.clients[0], (struct sockaddr *)&own, &len) == 0);
    CHECK(item->len == sizeof(own) && memcmp(item->data, &own, len) == 0);
    int conn = s.conns[0];
    CHECK((fcntl(conn, F_GETFL) & O_NONBLOCK) != 0);
    CHECK((fcntl(conn, F_GETFD) & FD_CLOEXEC) != 0);
    CHECK(all_are_served(&s));
    CHECK(step(&s) == 0 && w.shard.stats.accepts == 1);
    server_fini(&s);
    world_fini(&w);
}

/* Each completion has an address of its own. */
static void
addresses(void)
{
    world w;
    server s;
    world_init(&w);
    server_init(&s, &w, 100);
    come(&s, 10);
    CHECK(world_wait(&w) == 10 && take(&s) == 10);
    for (int i = 0; i < 10; i++) {
        struct sockaddr_in peer;
        socklen_t len = sizeof(peer);
        CHECK(getpeername(s.conns[i], (struct sockaddr *)&peer, &len) == 0);
        const fnet_completion *item = &w.batch.items[i];
        CHECK(item->len == len && memcmp(item->data, &peer, len) == 0);
    }
    server_fini(&s);
    world_fini(&w);
}

/* In batches, the later ones without an event; then it has come to the end
 * of the queue and hears of new ones. */
static void
many_connections(void)
{
    world w;
    server s;
    world_init(&w);
    server_init(&s, &w, 1000);
    come(&s, FNET_ACCEPT_MAX + 36);
    CHECK(world_wait(&w) == FNET_ACCEPT_MAX);
    CHECK(take(&s) == FNET_ACCEPT_MAX);
    uint64_t events = w.shard.stats.events;
    CHECK(step(&s) == 36 && step(&s) == 0);
    CHECK(w.shard.stats.events == events);
    come(&s, 3);
    CHECK(world_wait(&w) > 0 && take(&s) + step(&s) == 3);
    CHECK(all_are_served(&s) && s.errors == 0);
    server_fini(&s);
    world_fini(&w);
}

static void
bounded_by_the_backlog(void)
{
    world w;
    server s;
    world_init(&w);
    server_init(&s, &w, 5);
    come(&s, 12);
    CHECK(world_wait(&w) == 5 && take(&s) == 5);
    CHECK(step(&s) == 5 && step(&s) == 2 && step(&s) == 0);
    CHECK(all_are_served(&s));
    server_fini(&s);
    server_init(&s, &w, 0); /* asyncio lets the program say so */
    come(&s, 2);
    CHECK(world_wait(&w) == 1 && take(&s) == 1);
    CHECK(step(&s) == 1 && step(&s) == 0);
    server_fini(&s);
    world_fini(&w);
}

/* Three listeners have more than a batch takes: each gets what is its. */
static void
a_full_batch(void)
{
    enum { SERVERS = 3, EACH = 60 };
    world w;
    server s[SERVERS];
    int total = 0;
    world_init(&w);
    for (int i = 0; i < SERVERS; i++) {
        server_init(&s[i], &w, 100);
        come(&s[i], EACH);
    }
    while (total < SERVERS * EACH && world_wait(&w) > 0) {
        CHECK(w.batch.count <= FNET_BATCH_MAX);
        for (int i = 0; i < SERVERS; i++) {
            total += take(&s[i]);
        }
    }
    CHECK(world_pass(&w) == 0);
    for (int i = 0; i < SERVERS; i++) {
        CHECK(s[i].nconns == EACH && all_are_served(&s[i]));
        server_fini(&s[i]);
    }
    world_fini(&w);
}

/* Under valgrind accept() above the limit takes the connection and closes it,
 * before it says EMFILE. */
static bool
accept_loses_connections(void)
{
    const char *preloaded = getenv("LD_PRELOAD");
    return preloaded != NULL && strstr(preloaded, "vgpreload") != NULL;
}

/* Without descriptors it says so once, waits until it is told to go on, and
 * loses nobody. */
static void
out_of_descriptors(void)
{
    world w;
    server s;
    struct rlimit before;
    world_init(&w);
    server_init(&s, &w, 100);
    come(&s, 5);
    CHECK(getrlimit(RLIMIT_NOFILE, &before) == 0);
    struct rlimit tight = before;
    /* Room for two: the numbers up to here are all taken. */
    int next = dup(s.fd);
    close(next);
    tight.rlim_cur = (rlim_t)(next + 2);
    CHECK(setrlimit(RLIMIT_NOFILE, &tight) == 0);
    CHECK(world_wait(&w) == 3 && take(&s) == 2);
    CHECK(s.errors == 1 && s.error == -EMFILE && s.l.paused);
    CHECK(step(&s) == 0);
    CHECK(setrlimit(RLIMIT_NOFILE, &before) == 0);
    come(&s, 2); /* new ones are no reason to try, nor to wake up */
    int64_t deadline = fnet_clock_ns() + 5 * FNET_MSEC;
    CHECK(fnet_shard_pass(&w.shard, &w.batch, deadline) == 0);
    CHECK(take(&s) == 0 && s.errors == 1 && fnet_clock_ns() >= deadline);
    fnet_shard_begin_turn(&w.shard, false);
    CHECK(setrlimit(RLIMIT_NOFILE, &tight) == 0);
    fnet_listener_resume(&s.l); /* too early */
    CHECK(step(&s) == 0 && s.errors == 2 && s.error == -EMFILE);
    CHECK(setrlimit(RLIMIT_NOFILE, &before) == 0);
    fnet_listener_resume(&s.l);
    CHECK(fnet_shard_pass(&w.shard, &w.batch, FNET_FOREVER) == 0);
    fnet_shard_begin_turn(&w.shard, false);
    CHECK(take(&s) == 5 && step(&s) == 0);
    CHECK(all_are_served(&s) && s.errors == 2);
    come(&s, 1);
    CHECK(world_wait(&w) == 1 && take(&s) == 1);
    server_fini(&s);
    world_fini(&w);
}

static void
resumed_for_nothing(void)
{
    world w;
    server s;
    world_init(&w);
    server_init(&s, &w, 100);
    fnet_listener_resume(&s.l);
    CHECK(step(&s) == 0 && s.errors == 0);
    fnet_listener_detach(&s.l);
    fnet_listener_resume(&s.l);
    CHECK(step(&s) == 0);
    server_fini(&s);
    world_fini(&w);
}

/* What stops a listener for good is an error like any other. */
static void
shut_down(void)
{
    world w;
    server s;
    world_init(&w);
    server_init(&s, &w, 100);
    CHECK(step(&s) == 0);
    CHECK(shutdown(s.fd, SHUT_RDWR) == 0);
    CHECK(world_wait(&w) == 1 && take(&s) == 0);
    CHECK(s.errors == 1 && s.error == -EINVAL && s.l.paused);
    CHECK(step(&s) == 0 && s.errors == 1);
    server_fini(&s);
    world_fini(&w);
}

/* Without memory for the address the connection is accepted all the same. */
static void
without_memory(void)
{
    world w;
    server s;
    world_init(&w);
    server_init(&s, &w, 100);
    CHECK(step(&s) == 0);
    come(&s, 2);
    fnet_mem_fail_after(0);
    CHECK(world_wait(&w) == 2 && fnet_mem_failed() && take(&s) == 2);
    CHECK(w.batch.items[0].data == NULL && w.batch.items[0].len == 0);
    CHECK(w.batch.items[1].data != NULL);
    CHECK(all_are_served(&s));
    server_fini(&s);
    world_fini(&w);
}

/* One that is gone before it was accepted. */
static void
the_client_gives_up(void)
{
    world w;
    server s;
    struct linger at_once = {.l_onoff = 1};
    world_init(&w);
    server_init(&s, &w, 100);
    come(&s, 3);
    CHECK(setsockopt(s.clients[1], SOL_SOCKET, SO_LINGER, &at_once,
                     sizeof(at_once)) == 0);
    close(s.clients[1]);
    int count = 0;
    while (count < 3 && world_wait(&w) > 0) {
        count += take(&s);
    }
    /* Linux hands it out with the reset to be read from it. */
    CHECK(count == 3 && s.errors == 0);
    char byte;
    CHECK(fnet_sys_recv(s.conns[1], &byte, 1) == -ECONNRESET);
    s.clients[1] = s.clients[--s.nclients];
    server_fini(&s);
    world_fini(&w);
}

static void
detached_with_clients_waiting(void)
{
    world w;
    server s;
    world_init(&w);
    server_init(&s, &w, 2);
    come(&s, 6);
    CHECK(world_wait(&w) == 2 && take(&s) == 2);
    fnet_completion late = w.batch.items[0];
    fnet_listener_detach(&s.l);
    fnet_listener_detach(&s.l); /* harmless */
    CHECK(step(&s) == 0);
    CHECK(fnet_poller_lookup(&w.shard.poller, late.tag) == NULL);
    /* Whoever listens next finds those that were not accepted. */
    CHECK(fnet_listener_attach(&s.l, &w.shard, s.fd, 100, &s) == 0);
    CHECK(step(&s) == 4 && step(&s) == 0);
    CHECK(all_are_served(&s));
    server_fini(&s);
    world_fini(&w);
}

/* The peer of a Unix socket has an address that names nothing. */
static void
unix_listener(void)
{
    world w;
    fnet_listener l;
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    socklen_t len = sizeof(un);
    world_init(&w);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    int client = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(fd >= 0 && client >= 0);
    /* Without a name the kernel chooses one, in no folder. */
    CHECK(bind(fd, (struct sockaddr *)&un, sizeof(un.sun_family)) == 0);
    CHECK(getsockname(fd, (struct sockaddr *)&un, &len) == 0);
    CHECK(listen(fd, 5) == 0);
    CHECK(fnet_listener_attach(&l, &w.shard, fd, 5, NULL) == 0);
    CHECK(connect(client, (struct sockaddr *)&un, len) == 0);
    CHECK(world_pass(&w) == 1);
    const fnet_completion *item = &w.batch.items[0];
    CHECK(item->what == FNET_WHAT_ACCEPTED && item->result >= 0);
    CHECK(item->len == sizeof(un.sun_family));
    const struct sockaddr *peer = item->data;
    CHECK(peer != NULL && peer->sa_family == AF_UNIX);
    close(item->result);
    fnet_listener_detach(&l);
    close(client);
    close(fd);
    world_fini(&w);
}

static void
cannot_attach(void)
{
    world w;
    fnet_listener l;
    world_init(&w);
    CHECK(fnet_listener_attach(&l, &w.shard, -1, 5, NULL) == -EBADF);
    CHECK(!fnet_source_attached(&l.source));
    world_fini(&w);
}

int
main(void)
{
    RUN(one_connection);
    RUN(addresses);
    RUN(many_connections);
    RUN(bounded_by_the_backlog);
    RUN(a_full_batch);
    if (!accept_loses_connections()) {
        RUN(out_of_descriptors);
    }
    RUN(resumed_for_nothing);
    RUN(shut_down);
    RUN(without_memory);
    RUN(the_client_gives_up);
    RUN(detached_with_clients_waiting);
    RUN(unix_listener);
    RUN(cannot_attach);
    return test_report();
}
