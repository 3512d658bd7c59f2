/* Receiving; test_dgram_output.c has sending. */
#include "post.h"

static void
a_run_is_one_completion(void)
{
    post p;
    post_init_unix(&p);
    fnet_dgram_want(&p.d, true);
    post_feed(&p, 9);
    CHECK(post_step(&p) == 1);
    CHECK(p.runs == 1 && p.got == 9);
    CHECK(p.w.batch.items[0].len == 3341 + 1);
    CHECK(p.w.shard.stats.reads == 1 && p.w.shard.stats.bytes_read == 3342);
    CHECK(post_step(&p) == 0);
    CHECK(p.w.shard.stats.reads == 1); /* fewer than room: it was drained */
    post_fini(&p);
}

static void
the_senders_address_comes_with_it(void)
{
    post p;
    post_init_udp(&p);
    fnet_dgram_want(&p.d, true);
    post_feed(&p, 1);
    CHECK(world_wait(&p.w) == 1);
    const struct mmsghdr *header = p.w.batch.items[0].data;
    CHECK(header->msg_hdr.msg_namelen == sizeof(p.other));
    CHECK(memcmp(header->msg_hdr.msg_name, &p.other, sizeof(p.other)) == 0);
    post_fini(&p);
}

/* A pass takes what its tray has room for, and the next one goes on. */
static void
more_than_a_pass_takes(void)
{
    post p;
    post_init_udp(&p);
    fnet_dgram_want(&p.d, true);
    post_feed(&p, 150);
    post_take_in(&p);
    CHECK(p.runs == 3 && p.got == 150);
    post_fini(&p);
}

/* Long ones: so many that a pass brings little more than it should. */
static void
the_bound_in_bytes(void)
{
    enum { LEN = 30000 };
    static char data[LEN];
    post p;
    unsigned got = 0, passes = 0;

    post_init_udp(&p);
    int room = 4 << 20;
    (void)setsockopt(p.fd, SOL_SOCKET, SO_RCVBUFFORCE, &room, sizeof(room));
    fnet_dgram_want(&p.d, true);
    for (int round = 0; round < 4; round++) {
        for (int i = 0; i < 3; i++) {
            CHECK(sendto(p.peer, data, LEN, 0, (struct sockaddr *)&p.own,
                         sizeof(p.own)) == LEN);
        }
        while (got < 3u * (unsigned)(round + 1)) {
            CHECK(world_wait(&p.w) == 1);
            got += (unsigned)p.w.batch.items[0].result;
            CHECK(p.w.batch.bytes < FNET_BATCH_BYTES + LEN);
            passes++;
        }
    }
    CHECK(p.d.usual == LEN && passes >= 4);
    post_fini(&p);
}

/* Unix sockets: longer than any of UDP's, and cut where asyncio's are. */
static void
very_long_ones(void)
{
    size_t len = 300 * KIB;
    char *data = malloc(len);
    post p;
    int room = 4 << 20;

    post_init_unix(&p);
    fnet_dgram_want(&p.d, true);
    bool large = setsockopt(p.peer, SOL_SOCKET, SO_SNDBUFFORCE, &room,
                            sizeof(room)) == 0;
    size_t lens[] = {100 * KIB, 0, large ? len : 90 * KIB, 5};
    world_fill(data, 0, len);
    for (size_t i = 0; i < 4; i++) {
        CHECK(send(p.peer, data, lens[i], 0) == (ssize_t)lens[i]);
    }
    CHECK(world_wait(&p.w) == 1 && p.w.batch.items[0].result == 4);
    const struct mmsghdr *headers = p.w.batch.items[0].data;
    for (size_t i = 0; i < 4; i++) {
        size_t n = lens[i] < 256 * KIB ? lens[i] : 256 * KIB;
        CHECK(headers[i].msg_len == n);
        CHECK(world_matches(headers[i].msg_hdr.msg_iov->iov_base, 0, n));
    }
    post_fini(&p);
    free(data);
}

/* Two sockets in one pass: neither overwrites what the other got. */
static void
sockets_share_the_tray(void)
{
    post p, q;
    int fds[2];
    char data[] = "of the other one";

    post_init_unix(&p);
    CHECK(socketpair(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0, fds) == 0);
    q.fd = fds[0];
    CHECK(fnet_dgram_attach(&q.d, &p.w.shard, q.fd, &q, 0, 0) == 0);
    fnet_dgram_want(&p.d, true);
    fnet_dgram_want(&q.d, true);
    post_feed(&p, 5);
    CHECK(send(fds[1], data, sizeof(data), 0) == sizeof(data));
    CHECK(world_pass(&p.w) == 2);
    for (unsigned i = 0; i < 2; i++) {
        const fnet_completion *item = &p.w.batch.items[i];
        const struct mmsghdr *headers = item->data;
        CHECK(item->what == FNET_WHAT_DATAGRAMS);
        if (item->source == &q.d.source) {
            CHECK(item->result == 1 && headers->msg_len == sizeof(data));
            CHECK(memcmp(headers->msg_hdr.msg_iov->iov_base, data,
                         sizeof(data)) == 0);
            continue;
        }
        CHECK(item->result == 5);
        for (int k = 0; k < item->result; k++, p.got++) {
            CHECK(post_is(headers[k].msg_hdr.msg_iov->iov_base,
                          headers[k].msg_len, p.got));
        }
    }
    fnet_dgram_detach(&q.d, true);
    close(fds[0]);
    close(fds[1]);
    post_fini(&p);
}

static void
what_nobody_wants_stays(void)
{
    post p;
    post_init_unix(&p);
    for (int i = 0; i < 10; i++) {
        post_feed(&p, 1);
        CHECK(post_step(&p) == 0);
    }
    CHECK(p.w.shard.stats.reads == 0 && p.w.shard.stats.disarmed == 1);
    CHECK(p.d.source.events == FNET_EVENTS_QUIET);
    fnet_dgram_want(&p.d, true);
    post_take_in(&p);
    CHECK(p.got == 10);
    fnet_dgram_want(&p.d, false);
    post_feed(&p, 1);
    CHECK(post_step(&p) == 0);
    fnet_dgram_want(&p.d, true);
    post_take_in(&p);
    post_fini(&p);
}

/* A busy socket is read without events, and none is lost when it no longer
 * is. */
static void
a_busy_socket_leaves_the_set(void)
{
    post p;
    post_init_unix(&p);
    fnet_dgram_want(&p.d, true);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 8; i++) {
            CHECK(!p.d.hot);
            post_feed(&p, 3);
            CHECK(post_step(&p) == 1 && p.got == p.sent);
        }
        CHECK(p.d.hot && p.d.source.events == 0);
        uint64_t events = p.w.shard.stats.events;
        post_feed(&p, 1);
        CHECK(post_step(&p) == 1 && p.got == p.sent);
        CHECK(p.w.shard.stats.events == events && p.d.hot);
        CHECK(post_step(&p) == 0);
        CHECK(!p.d.hot && p.d.source.events != 0);
        /* Single ones do not heat it. */
        for (int i = 0; i < 20; i++) {
            post_feed(&p, 1);
            post_take_in(&p);
        }
        CHECK(!p.d.hot);
    }
    post_fini(&p);
}

static void
heat(post *p)
{
    while (!p->d.hot) {
        post_feed(p, 2);
        post_step(p);
    }
}

static void
a_busy_socket_is_paused(void)
{
    post p;
    post_init_unix(&p);
    fnet_dgram_want(&p.d, true);
    heat(&p);
    fnet_dgram_want(&p.d, false);
    post_feed(&p, 5);
    CHECK(post_step(&p) == 0 && post_step(&p) == 0);
    fnet_dgram_want(&p.d, true);
    post_take_in(&p);
    CHECK(p.got == p.sent && !p.d.hot);
    heat(&p);
    fnet_dgram_want(&p.d, false);
    fnet_dgram_want(&p.d, true);
    post_feed(&p, 1);
    post_take_in(&p);
    heat(&p); /* and goes in this state */
    post_fini(&p);
}

/* ICMP: told once, and reading goes on. */
static void
errors_of_the_socket(void)
{
    struct sockaddr_in gone;
    post p;
    char byte = 'x';

    post_init_udp(&p);
    close(post_udp_socket(&gone));
    fnet_dgram_want(&p.d, true);
    for (int round = 0; round < 3; round++) {
        CHECK(connect(p.fd, (struct sockaddr *)&gone, sizeof(gone)) == 0);
        CHECK(send(p.fd, &byte, 1, 0) == 1);
        while (p.errors == (unsigned)round) {
            CHECK(world_wait(&p.w) == 1);
            post_note(&p);
        }
        CHECK(p.error == -ECONNREFUSED);
        CHECK(connect(p.fd, (struct sockaddr *)&p.other, sizeof(p.other)) ==
              0);
        post_feed(&p, 2);
        post_take_in(&p);
    }
    CHECK(p.errors == 3 && p.got == 6);
    post_fini(&p);
}

/* A descriptor that is gone is not asked for ever. */
static void
errors_without_end(void)
{
    post p;
    post_init_unix(&p);
    fnet_dgram_want(&p.d, true);
    post_feed(&p, 1);
    post_take_in(&p);
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    CHECK(dup2(null, p.fd) == p.fd);
    close(null);
    p.d.readable = true;
    fnet_shard_make_ready(&p.w.shard, &p.d.source);
    for (int i = 0; i < 100; i++) {
        post_step(&p);
    }
    CHECK(p.errors > 0 && p.errors < 20 && p.error == -ENOTSOCK);
    post_fini(&p);
}

/* Of a socket that is gone nothing is told. */
static void
detached_with_input(void)
{
    post p;
    post_init_unix(&p);
    fnet_dgram_want(&p.d, true);
    post_feed(&p, 3);
    CHECK(post_step(&p) == 1);
    uint64_t tag = p.w.batch.items[0].tag;
    CHECK(fnet_poller_lookup(&p.w.shard.poller, tag) == &p.d.source);
    post_feed(&p, 3);
    fnet_dgram_detach(&p.d, false);
    CHECK(fnet_poller_lookup(&p.w.shard.poller, tag) == NULL);
    CHECK(world_pass(&p.w) == 0);
    CHECK(fnet_dgram_attach(&p.d, &p.w.shard, p.fd, &p, 0, 0) == 0);
    fnet_dgram_want(&p.d, true);
    post_take_in(&p);
    post_fini(&p);
}

static void
no_descriptor(void)
{
    fnet_dgram d;
    world w;
    world_init(&w);
    int null = open("/etc/passwd", O_RDONLY | O_CLOEXEC);
    CHECK(fnet_dgram_attach(&d, &w.shard, null, NULL, 0, 0) == -EPERM);
    CHECK(fnet_dgram_attach(&d, &w.shard, 9999, NULL, 0, 0) == -EBADF);
    close(null);
    world_fini(&w);
}

/* Without memory for the tray input waits. */
static void
no_memory(void)
{
    post p;
    post_init_unix(&p);
    fnet_dgram_want(&p.d, true);
    post_feed(&p, 2);
    fnet_mem_fail_after(0);
    CHECK(post_step(&p) == 0);
    CHECK(fnet_mem_failed());
    fnet_mem_fail_after(-1);
    post_take_in(&p);
    CHECK(p.got == 2);
    post_fini(&p);
}

int
main(void)
{
    RUN(a_run_is_one_completion);
    RUN(the_senders_address_comes_with_it);
    RUN(more_than_a_pass_takes);
    RUN(the_bound_in_bytes);
    RUN(very_long_ones);
    RUN(sockets_share_the_tray);
    RUN(what_nobody_wants_stays);
    RUN(a_busy_socket_leaves_the_set);
    RUN(a_busy_socket_is_paused);
    RUN(errors_of_the_socket);
    RUN(errors_without_end);
    RUN(detached_with_input);
    RUN(no_descriptor);
    RUN(no_memory);
    return test_report();
}
