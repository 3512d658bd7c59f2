/* The reading side of streams; test_stream_output.c has the writing side. */
#include "conn.h"

static void
nothing_before_it_is_wanted(void)
{
    conn c;
    got g = {0};
    conn_init(&c);
    CHECK(c.s.source.owner == &c && c.s.source.ops->kind == FNET_KIND_STREAM);
    CHECK(c.s.source.events == UNIX_EVENTS);
    CHECK(world_send(c.peer, 0, 100) == 100);
    CHECK(conn_step(&c, &g) == 0);
    CHECK(c.w.shard.stats.reads == 0);
    fnet_stream_want(&c.s, true); /* the edge has passed, but is remembered */
    CHECK(conn_step(&c, &g) == 1 && g.bytes == 100 && g.datas == 1);
    CHECK(c.w.shard.stats.bytes_read == 100);
    CHECK(conn_step(&c, &g) == 0);
    conn_fini(&c);
}

static void
a_short_read_is_the_last(void)
{
    conn c;
    got g = {0};
    conn_init(&c);
    fnet_stream_want(&c.s, true);
    for (unsigned i = 1; i <= 5; i++) {
        CHECK(world_send(c.peer, g.bytes, 1000) == 1000);
        CHECK(conn_step(&c, &g) == 1 && g.datas == i);
        CHECK(conn_step(&c, &g) == 0);
        CHECK(c.w.shard.stats.reads == i); /* none that says EAGAIN */
    }
    CHECK(g.bytes == 5000 && c.s.last_read == 1000);
    conn_fini(&c);
}

/* A read that fills all the room there is leaves the rest to the next pass,
 * which finds it without an event. */
static void
a_full_read_goes_on(void)
{
    conn c;
    got g = {0};
    conn_init(&c);
    CHECK(fnet_sys_set_int(c.peer, SOL_SOCKET, SO_SNDBUF, 1 << 20) == 0);
    size_t total = world_send(c.peer, 0, 2 * MIB);
    CHECK(total > 256 * KIB);
    fnet_stream_want(&c.s, true);
    uint64_t events = c.w.shard.stats.events;
    CHECK(conn_step(&c, &g) == 1 && g.bytes == 256 * KIB);
    while (g.bytes < total && conn_step(&c, &g) > 0) {
    }
    CHECK(g.bytes == total && c.w.shard.stats.events == events + 1);
    CHECK(conn_step(&c, &g) == 0);
    conn_fini(&c);
}

static void
the_end_comes_after_the_data(void)
{
    conn c;
    got g = {0};
    conn_init(&c);
    fnet_stream_want(&c.s, true);
    CHECK(world_send(c.peer, 0, 10) == 10);
    CHECK(shutdown(c.peer, SHUT_WR) == 0);
    conn_until(&c, &g, 10, 1);
    CHECK(g.eofs == 1 && g.datas == 1);
    /* Once, whatever happens then. */
    fnet_stream_want(&c.s, false);
    fnet_stream_want(&c.s, true);
    CHECK(conn_step(&c, &g) == 0);
    conn_hang_up(&c);
    CHECK(conn_step(&c, &g) == 0);
    conn_fini(&c);
}

static void
an_end_that_was_not_taken_comes_again(void)
{
    conn c;
    got g = {0};
    conn_init(&c);
    fnet_stream_want(&c.s, true);
    CHECK(shutdown(c.peer, SHUT_WR) == 0);
    conn_until(&c, &g, 0, 1);
    fnet_stream_want(&c.s, false);
    fnet_stream_untake_eof(&c.s);
    g = (got){0};
    CHECK(conn_step(&c, &g) == 0);
    fnet_stream_want(&c.s, true);
    conn_until(&c, &g, 0, 1);
    CHECK(g.eofs == 1);
    conn_fini(&c);
}

/* The news that the peer is done may come long before anybody reads. */
static void
the_end_is_remembered(void)
{
    conn c;
    got g = {0};
    conn_init(&c);
    CHECK(world_send(c.peer, 0, 10) == 10);
    conn_hang_up(&c);
    CHECK(conn_step(&c, &g) == 0 && c.s.hup && c.s.readable);
    CHECK(conn_step(&c, &g) == 0);
    fnet_stream_want(&c.s, true);
    CHECK(conn_step(&c, &g) > 0);
    conn_until(&c, &g, 10, 1);
    CHECK(g.eofs == 1);
    conn_fini(&c);
}

static void
a_reset(void)
{
    conn c;
    got g = {0};
    struct linger at_once = {.l_onoff = 1};
    conn_init_tcp(&c);
    fnet_stream_want(&c.s, true);
    CHECK(setsockopt(c.peer, SOL_SOCKET, SO_LINGER, &at_once,
                     sizeof(at_once)) == 0);
    conn_hang_up(&c);
    conn_until(&c, &g, 0, 1);
    CHECK(g.errors == 1 && g.error == -ECONNRESET);
    fnet_stream_want(&c.s, false);
    fnet_stream_want(&c.s, true);
    CHECK(conn_step(&c, &g) == 0);
    conn_fini(&c);
}

static void
tcp_reads(void)
{
    conn c;
    got g = {0};
    conn_init_tcp(&c);
    fnet_stream_want(&c.s, true);
    for (unsigned i = 1; i <= 5; i++) {
        CHECK(world_send(c.peer, g.bytes, 1000) == 1000);
        conn_until(&c, &g, i * 1000, 0);
    }
    CHECK(c.w.shard.stats.reads == g.datas);
    CHECK(world_send(c.peer, g.bytes, 100) == 100);
    conn_hang_up(&c);
    conn_until(&c, &g, 5100, 1);
    CHECK(g.eofs == 1);
    conn_fini(&c);
}

/* A read stops short at an urgent mark; what is behind it comes all the
 * same. */
static void
urgent_data(void)
{
    for (int together = 0; together < 2; together++) {
        conn c;
        got g = {0};
        char data[8];
        conn_init_tcp(&c);
        fnet_stream_want(&c.s, true);
        world_fill(data, 0, sizeof(data));
        CHECK(fnet_sys_send(c.peer, data, 3) == 3);
        if (!together) {
            conn_until(&c, &g, 3, 0);
        }
        CHECK(send(c.peer, "!", 1, MSG_OOB) == 1);
        if (!together) {
            CHECK(conn_step(&c, &g) == 0); /* the mark alone is no input */
        }
        CHECK(fnet_sys_send(c.peer, data + 3, 4) == 4);
        conn_until(&c, &g, 7, 0);
        CHECK(c.s.careful);
        CHECK(fnet_sys_send(c.peer, data + 7, 1) == 1);
        conn_until(&c, &g, 8, 0);
        conn_hang_up(&c);
        conn_until(&c, &g, 8, 1);
        CHECK(g.eofs == 1);
        conn_fini(&c);
    }
}

static void
send_with_descriptor(int fd, size_t at, size_t len, int passed)
{
    char data[64];
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(sizeof(int))];
    } control;
    struct iovec iov = {.iov_base = data, .iov_len = len};
    struct msghdr msg = {.msg_iov = &iov,
                         .msg_iovlen = 1,
                         .msg_control = &control,
                         .msg_controllen = sizeof(control)};
    memset(&control, 0, sizeof(control));
    world_fill(data, at, len);
    struct cmsghdr *header = CMSG_FIRSTHDR(&msg);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(header), &passed, sizeof(int));
    CHECK(fnet_sys_sendmsg(fd, &msg) == (ssize_t)len);
}

/* A read stops short at a descriptor that is passed; what is behind it comes
 * all the same, and the descriptor stays nowhere. */
static void
passed_descriptors(void)
{
    for (int direct = 0; direct < 2; direct++) {
        conn c;
        got g = {0};
        conn_init(&c);
        fnet_stream_set_direct(&c.s, direct);
        fnet_stream_want(&c.s, true);
        CHECK(world_send(c.peer, 0, 10) == 10);
        send_with_descriptor(c.peer, 10, 20, c.peer);
        CHECK(world_send(c.peer, 30, 30) == 30);
        send_with_descriptor(c.peer, 60, 1, c.peer);
        CHECK(world_send(c.peer, 61, 9) == 9);
        while (g.bytes < 70 && conn_step(&c, &g) > 0) {
            char data[100];
            ssize_t n;
            if (!direct) {
                continue;
            }
            n = fnet_stream_recv(&c.s, data, sizeof(data));
            CHECK(n > 0);
            if (n <= 0) {
                break;
            }
            CHECK(world_matches(data, g.bytes, (size_t)n));
            g.bytes += (size_t)n;
            fnet_stream_taken(&c.s);
        }
        CHECK(g.bytes == 70 && c.s.careful);
        fnet_stream_want(&c.s, false);
        CHECK(conn_step(&c, &g) == 0);
        conn_fini(&c); /* which counts descriptors */
    }
}

/* -- direct streams ------------------------------------------------------- */

static void
direct_reads(void)
{
    conn c;
    got g = {0};
    char data[100];
    conn_init(&c);
    fnet_stream_set_direct(&c.s, true);
    fnet_stream_want(&c.s, true);
    CHECK(world_send(c.peer, 0, 100) == 100);
    CHECK(conn_step(&c, &g) == 1 && g.readables == 1);
    CHECK(c.w.shard.stats.reads == 0);
    /* Not again before it was taken. */
    CHECK(world_send(c.peer, 100, 50) == 50);
    fnet_stream_want(&c.s, true);
    CHECK(conn_step(&c, &g) == 0);
    /* Full reads: there is more. */
    CHECK(fnet_stream_recv(&c.s, data, 100) == 100);
    CHECK(world_matches(data, 0, 100));
    fnet_stream_taken(&c.s);
    CHECK(conn_step(&c, &g) == 1 && g.readables == 2);
    CHECK(fnet_stream_recv(&c.s, data, 100) == 50); /* a short one: none */
    CHECK(world_matches(data, 100, 50));
    fnet_stream_taken(&c.s);
    CHECK(conn_step(&c, &g) == 0);
    CHECK(fnet_stream_recv(&c.s, data, 100) == -EAGAIN);
    CHECK(world_send(c.peer, 150, 1) == 1);
    CHECK(shutdown(c.peer, SHUT_WR) == 0);
    CHECK(conn_step(&c, &g) == 1 && g.readables == 3);
    CHECK(fnet_stream_recv(&c.s, data, 100) == 1);
    fnet_stream_taken(&c.s);
    CHECK(conn_step(&c, &g) == 1 && g.readables == 4); /* the end */
    CHECK(fnet_stream_recv(&c.s, data, 100) == 0);
    fnet_stream_taken(&c.s);
    CHECK(conn_step(&c, &g) == 0 && g.eofs == 0);
    conn_fini(&c);
}

static void
direct_errors(void)
{
    conn c;
    char byte;
    struct linger at_once = {.l_onoff = 1};
    conn_init_tcp(&c);
    fnet_stream_set_direct(&c.s, true);
    fnet_stream_want(&c.s, true);
    CHECK(setsockopt(c.peer, SOL_SOCKET, SO_LINGER, &at_once,
                     sizeof(at_once)) == 0);
    conn_hang_up(&c);
    CHECK(world_wait(&c.w) == 1);
    CHECK(world_only(&c.w, &c.s.source, FNET_WHAT_READABLE, 0));
    CHECK(fnet_stream_recv(&c.s, &byte, 1) == -ECONNRESET);
    fnet_stream_taken(&c.s);
    CHECK(world_pass(&c.w) == 0);
    conn_fini(&c);
}

/* A protocol may be replaced by one of the other kind at any time. */
static void
direct_or_not(void)
{
    conn c;
    got g = {0};
    char data[10];
    conn_init(&c);
    fnet_stream_want(&c.s, true);
    fnet_stream_set_direct(&c.s, true);
    CHECK(conn_step(&c, &g) == 0);
    CHECK(world_send(c.peer, 0, 10) == 10);
    CHECK(conn_step(&c, &g) == 1 && g.readables == 1);
    fnet_stream_set_direct(&c.s, false); /* it was not taken */
    CHECK(conn_step(&c, &g) == 1 && g.bytes == 10);
    CHECK(world_send(c.peer, 10, 10) == 10);
    fnet_stream_set_direct(&c.s, true);
    CHECK(conn_step(&c, &g) == 1 && g.readables == 2);
    fnet_stream_want(&c.s, false);
    fnet_stream_taken(&c.s); /* not read, and not wanted */
    CHECK(conn_step(&c, &g) == 0);
    fnet_stream_want(&c.s, true);
    CHECK(conn_step(&c, &g) == 1 && g.readables == 3);
    CHECK(fnet_stream_recv(&c.s, data, 10) == 10);
    CHECK(world_matches(data, 10, 10));
    fnet_stream_set_direct(&c.s, false);
    CHECK(conn_step(&c, &g) == 0 &&
          g.bytes == 10); /* finds EAGAIN, posts none */
    conn_fini(&c);
}

/* -- input that nobody wants ---------------------------------------------- */

static void
not_wanted_in_time(void)
{
    conn c;
    got g = {0};
    conn_init(&c);
    fnet_stream_want(&c.s, true);
    CHECK(world_send(c.peer, 0, 10) == 10);
    CHECK(conn_step(&c, &g) == 1);
    CHECK(world_send(c.peer, 10, 10) == 10);
    fnet_stream_want(&c.s, false);
    CHECK(conn_step(&c, &g) == 0 && g.bytes == 10);
    fnet_stream_want(&c.s, true);
    fnet_stream_want(&c.s, false); /* is on the list, but not wanted */
    CHECK(conn_step(&c, &g) == 0);
    fnet_stream_want(&c.s, true);
    CHECK(conn_step(&c, &g) == 1 && g.bytes == 20);
    conn_fini(&c);
}

/* Sends bytes one by one until the stream's input is switched off. */
static size_t
disarm_by_bytes(conn *c, size_t at)
{
    for (int i = 0; i <= FNET_QUIET_EVENTS; i++) {
        CHECK(c->w.shard.stats.disarmed == 0);
        CHECK(world_send(c->peer, at, 1) == 1);
        CHECK(world_pass(&c->w) == 0);
        at++;
    }
    CHECK(c->w.shard.stats.disarmed == 1);
    return at;
}

static void
quiet_input_is_switched_off(void)
{
    conn c;
    got g = {0};
    conn_init(&c);
    size_t sent = disarm_by_bytes(&c, 0);
    CHECK(c.s.source.events == FNET_EVENTS_QUIET);
    uint64_t events = c.w.shard.stats.events;
    for (int i = 0; i < 10; i++) {
        CHECK(world_send(c.peer, sent, 1) == 1);
        sent++;
        CHECK(conn_step(&c, &g) == 0);
    }
    CHECK(c.w.shard.stats.events == events); /* which saves the wake-ups */
    fnet_stream_want(&c.s, true);
    CHECK(c.s.source.events == UNIX_EVENTS);
    conn_until(&c, &g, sent, 0);
    /* It works as before, and the count of quiet ones begins anew. */
    CHECK(world_send(c.peer, sent, 1) == 1);
    conn_until(&c, &g, sent + 1, 0);
    fnet_stream_want(&c.s, false);
    CHECK(world_send(c.peer, sent + 1, 1) == 1);
    CHECK(conn_step(&c, &g) == 0);
    CHECK(c.s.source.events == UNIX_EVENTS);
    conn_fini(&c);
}

static void
the_end_while_switched_off(void)
{
    conn c;
    got g = {0};
    conn_init(&c);
    size_t sent = disarm_by_bytes(&c, 0);
    CHECK(world_send(c.peer, sent, 5) == 5);
    CHECK(shutdown(c.peer, SHUT_WR) == 0);
    CHECK(conn_step(&c, &g) == 0);
    fnet_stream_want(&c.s, true);
    conn_until(&c, &g, sent + 5, 1);
    CHECK(g.eofs == 1);
    conn_fini(&c);
}

static void
a_reset_while_switched_off(void)
{
    conn c;
    got g = {0};
    struct linger at_once = {.l_onoff = 1};
    conn_init_tcp(&c);
    for (size_t i = 0; c.w.shard.stats.disarmed == 0 && i < 1000; i++) {
        CHECK(world_send(c.peer, i, 1) == 1);
        usleep(1000);
        CHECK(conn_step(&c, &g) == 0);
    }
    CHECK(c.w.shard.stats.disarmed == 1);
    CHECK(setsockopt(c.peer, SOL_SOCKET, SO_LINGER, &at_once,
                     sizeof(at_once)) == 0);
    conn_hang_up(&c);
    fnet_stream_want(&c.s, true);
    while (g.errors == 0 && world_wait(&c.w) > 0) {
        conn_note(&c, &g);
    }
    CHECK(g.errors == 1 && g.error == -ECONNRESET && g.eofs == 0);
    conn_fini(&c);
}

/* Input is switched off while output waits for room, and the other way
 * round: the output goes on. */
static void
output_while_switched_off(void)
{
    for (int output_first = 0; output_first < 2; output_first++) {
        conn c;
        got g = {0};
        conn_init(&c);
        if (output_first) {
            conn_fill(&c);
            CHECK(c.s.source.events == FNET_EVENTS_EDGE); /* room, too */
        }
        size_t sent = disarm_by_bytes(&c, 0);
        if (!output_first) {
            CHECK(c.s.source.events == FNET_EVENTS_QUIET);
            conn_fill(&c);
        }
        CHECK(c.s.source.events == (FNET_EVENTS_QUIET | (uint32_t)EPOLLOUT));
        fnet_stream_notify(&c.s, 0);
        conn_take_all(&c, &g);
        CHECK(g.outputs == 1 && c.s.out.bytes == 0);
        fnet_stream_want(&c.s, true);
        CHECK(c.s.source.events == UNIX_EVENTS);
        conn_until(&c, &g, sent, 0);
        conn_fini(&c);
    }
}

/* -- memory --------------------------------------------------------------- */

static char landing_place[64 * KIB];
static int landing_owner;

static void
offer_landing(conn *c, size_t len)
{
    c->w.shard.landings[0] =
        (fnet_landing){&landing_owner, landing_place, len};
}

static void
large_reads_land(void)
{
    conn c;
    got g = {0};
    const size_t size = FNET_LAND_MIN;
    conn_init(&c);
    fnet_stream_want(&c.s, true);
    offer_landing(&c, sizeof(landing_place));
    /* The first one tells that reads are large. */
    CHECK(world_send(c.peer, 0, size) == size);
    CHECK(conn_step(&c, &g) == 1 && c.w.batch.items[0].landing == NULL);
    CHECK(world_send(c.peer, size, size) == size);
    CHECK(conn_step(&c, &g) == 1);
    CHECK(c.w.batch.items[0].landing == &landing_owner);
    CHECK(c.w.batch.items[0].data == landing_place);
    CHECK(c.w.shard.landings[0].owner == NULL);
    CHECK(c.w.shard.landings_used == 1 && !c.w.shard.want_landings);
    /* None is left: into the batch, and the layer above hears of it. */
    CHECK(world_send(c.peer, 2 * size, 100) == 100);
    CHECK(conn_step(&c, &g) == 1 && c.w.batch.items[0].landing == NULL);
    CHECK(c.w.shard.want_landings);
    /* Small again: needs none. */
    offer_landing(&c, sizeof(landing_place));
    CHECK(world_send(c.peer, 2 * size + 100, 100) == 100);
    CHECK(conn_step(&c, &g) == 1 && c.w.batch.items[0].landing == NULL);
    CHECK(g.bytes == 2 * size + 200);
    conn_fini(&c);
}

static void
a_full_landing_goes_on(void)
{
    conn c;
    got g = {0};
    const size_t size = FNET_LAND_MIN;
    conn_init(&c);
    fnet_stream_want(&c.s, true);
    CHECK(world_send(c.peer, 0, size) == size);
    CHECK(conn_step(&c, &g) == 1);
    offer_landing(&c, 1000);
    CHECK(world_send(c.peer, size, 2500) == 2500);
    CHECK(conn_step(&c, &g) == 1 && g.bytes == size + 1000);
    CHECK(conn_step(&c, &g) == 1 && g.bytes == size + 2500);
    CHECK(conn_step(&c, &g) == 0);
    conn_fini(&c);
}

static void
an_unused_landing_is_given_back(void)
{
    for (int empty = 0; empty < 2; empty++) {
        conn c;
        got g = {0};
        char byte;
        const size_t size = FNET_LAND_MIN;
        conn_init(&c);
        fnet_stream_want(&c.s, true);
        CHECK(world_send(c.peer, 0, size) == size);
        CHECK(conn_step(&c, &g) == 1);
        offer_landing(&c, sizeof(landing_place));
        if (empty) {
            /* Somebody else has read what the event was about. */
            CHECK(world_send(c.peer, size, 1) == 1);
            CHECK(fnet_sys_recv(c.fd, &byte, 1) == 1);
            CHECK(conn_step(&c, &g) == 0);
        }
        else {
            CHECK(shutdown(c.peer, SHUT_WR) == 0);
            CHECK(conn_step(&c, &g) == 1 && g.eofs == 1);
        }
        CHECK(c.w.shard.landings[0].owner == &landing_owner);
        CHECK(c.w.shard.landings_used == 0 && c.s.last_read == size);
        conn_fini(&c);
    }
}

/* Without memory to read into nothing is lost: the next pass reads. */
static void
receiving_without_memory(void)
{
    conn c;
    got g = {0};
    conn_init(&c);
    fnet_stream_want(&c.s, true);
    CHECK(world_send(c.peer, 0, 100) == 100);
    CHECK(shutdown(c.peer, SHUT_WR) == 0);
    for (int i = 0; i < 3; i++) {
        fnet_mem_fail_after(0);
        CHECK(conn_step(&c, &g) == 0 && fnet_mem_failed());
    }
    CHECK(c.w.shard.stats.reads == 0);
    conn_until(&c, &g, 100, 1);
    CHECK(g.eofs == 1);
    conn_fini(&c);
}

/* Several large readers share what a pass may bring: each gets its turn. */
static void
readers_take_turns(void)
{
    enum { READERS = 3 };
    fnet_stream s[READERS];
    int peers[READERS], fds[READERS];
    size_t sent[READERS], bytes[READERS] = {0};
    world w;
    world_init(&w);
    for (int i = 0; i < READERS; i++) {
        int ends[2];
        world_pair(ends);
        fds[i] = ends[0];
        peers[i] = ends[1];
        CHECK(fnet_sys_set_int(peers[i], SOL_SOCKET, SO_SNDBUF, 1 << 20) == 0);
        CHECK(fnet_stream_attach(&s[i], &w.shard, fds[i], &w, true) == 0);
        fnet_stream_want(&s[i], true);
        sent[i] = world_send(peers[i], 0, 2 * MIB);
        CHECK(sent[i] > 2 * FNET_BATCH_BYTES);
    }
    for (int pass = 0; pass < 2 * READERS; pass++) {
        CHECK(world_pass(&w) == 1);
        const fnet_completion *item = &w.batch.items[0];
        CHECK(item->source == &s[pass % READERS].source);
        CHECK(item->what == FNET_WHAT_DATA);
        CHECK(item->len >= FNET_BATCH_BYTES || bytes[pass % READERS] > 0);
        CHECK(world_matches(item->data, bytes[pass % READERS], item->len));
        bytes[pass % READERS] += item->len;
    }
    for (int i = 0; i < READERS; i++) {
        fnet_stream_detach(&s[i], false);
        close(fds[i]);
        close(peers[i]);
    }
    world_fini(&w);
}

/* -- the end of a stream -------------------------------------------------- */

static void
detached_with_input_waiting(void)
{
    conn c;
    got g = {0};
    conn_init(&c);
    fnet_stream_want(&c.s, true);
    CHECK(world_send(c.peer, 0, 10) == 10);
    CHECK(conn_step(&c, &g) == 1);
    fnet_completion late = c.w.batch.items[0];
    CHECK(world_send(c.peer, 10, 10) == 10);
    fnet_stream_want(&c.s, true);
    fnet_stream_detach(&c.s, false);
    CHECK(!fnet_source_attached(&c.s.source));
    CHECK(world_pass(&c.w) == 0);
    CHECK(fnet_poller_lookup(&c.w.shard.poller, late.tag) == NULL);
    /* Another one may take the descriptor, and finds what was left. */
    CHECK(fnet_stream_attach(&c.s, &c.w.shard, c.fd, &c, true) == 0);
    CHECK(c.s.source.tag != late.tag);
    fnet_stream_want(&c.s, true);
    CHECK(conn_step(&c, &g) == 1 && g.bytes == 20);
    conn_fini(&c);
}

static void
cannot_attach(void)
{
    world w;
    fnet_stream s;
    world_init(&w);
    CHECK(fnet_stream_attach(&s, &w.shard, -1, NULL, false) == -EBADF);
    CHECK(!fnet_source_attached(&s.source));
    CHECK(w.shard.poller.attached == 0);
    world_fini(&w);
}

int
main(void)
{
    RUN(nothing_before_it_is_wanted);
    RUN(a_short_read_is_the_last);
    RUN(a_full_read_goes_on);
    RUN(the_end_comes_after_the_data);
    RUN(an_end_that_was_not_taken_comes_again);
    RUN(the_end_is_remembered);
    RUN(a_reset);
    RUN(tcp_reads);
    RUN(urgent_data);
    RUN(passed_descriptors);
    RUN(direct_reads);
    RUN(direct_errors);
    RUN(direct_or_not);
    RUN(not_wanted_in_time);
    RUN(quiet_input_is_switched_off);
    RUN(the_end_while_switched_off);
    RUN(a_reset_while_switched_off);
    RUN(output_while_switched_off);
    RUN(large_reads_land);
    RUN(a_full_landing_goes_on);
    RUN(an_unused_landing_is_given_back);
    RUN(receiving_without_memory);
    RUN(readers_take_turns);
    RUN(detached_with_input_waiting);
    RUN(cannot_attach);
    return test_report();
}
