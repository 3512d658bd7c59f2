/* Sending: the outbox, and the socket with it. */
#include "poll/prompter.h"

#include "post.h"

#include <pthread.h>
#include <time.h>

static void
await_peer(post *p, size_t *number, size_t count)
{
    int64_t deadline = fnet_clock_ns() + WORLD_PATIENCE;
    while (*number < count && fnet_clock_ns() < deadline) {
        *number += post_peer_takes(p, *number);
    }
    CHECK(*number == count);
}

/* -- when ----------------------------------------------------------------- */

static void
deferred_to_the_pass(void)
{
    post p;
    post_init_udp(&p);
    for (size_t i = 0; i < 9; i++) {
        CHECK(post_send(&p, i, false) > 0);
    }
    CHECK(post_peer_takes(&p, 0) == 0);
    CHECK(p.w.shard.stats.sends == 0 && p.w.shard.deferrals == 1);
    CHECK(fnet_outbox_bytes(&p.d.out) == 3342 + 9 * 8);
    post_step(&p);
    CHECK(post_peer_takes(&p, 0) == 9);
    CHECK(p.w.shard.stats.sends == 1 && p.w.shard.stats.bytes_sent == 3342);
    CHECK(fnet_outbox_bytes(&p.d.out) == 0);
    post_fini(&p);
}

static void
at_once_in_an_eager_turn(void)
{
    post p;
    post_init_udp(&p);
    fnet_shard_begin_turn(&p.w.shard, true);
    CHECK(post_send(&p, 0, true) > 0); /* others follow */
    CHECK(post_peer_takes(&p, 0) == 0);
    post_step(&p);
    CHECK(post_peer_takes(&p, 0) == 1);
    fnet_shard_begin_turn(&p.w.shard, true);
    CHECK(post_send(&p, 1, false) == 0);
    CHECK(post_peer_takes(&p, 1) == 1);
    CHECK(post_send(&p, 2, false) > 0); /* the second of the turn waits */
    CHECK(post_peer_takes(&p, 2) == 0);
    p.w.shard.late = true; /* the prompter has said so */
    CHECK(post_send(&p, 3, false) == 0);
    CHECK(post_peer_takes(&p, 2) == 2);
    post_step(&p);
    p.w.shard.defer = false;
    CHECK(post_send(&p, 4, true) == 0);
    CHECK(post_peer_takes(&p, 4) == 1);
    post_fini(&p);
}

static void
no_more_waits_than_a_call_takes(void)
{
    post p;
    size_t number = 0;
    post_init_udp(&p);
    for (size_t i = 0; i < 200; i++) {
        CHECK(post_send(&p, i, true) >= 0);
        CHECK(p.d.out.count < FNET_OUTBOX_CALL);
        number += post_peer_takes(&p, number);
    }
    CHECK(number >= 192);
    fnet_dgram_flush(&p.d, NULL);
    await_peer(&p, &number, 200);
    post_fini(&p);
}

static void
the_turn_is_over_without_a_pass(void)
{
    post p;
    size_t bytes = 1;
    post_init_udp(&p);
    post_send(&p, 0, false);
    fnet_shard_flush(&p.w.shard);
    CHECK(post_peer_takes(&p, 0) == 1);
    post_send(&p, 1, false);
    CHECK(fnet_dgram_flush(&p.d, &bytes) == 0 && bytes == 0);
    CHECK(post_peer_takes(&p, 1) == 1);
    CHECK(fnet_list_empty(&p.w.shard.dirty));
    post_fini(&p);
}

/* -- runs ----------------------------------------------------------------- */

/* Any lengths, to two addresses and in any order: every datagram arrives as it
 * was, in the order of its address. */
static void
boundaries_are_kept(void)
{
    enum { COUNT = 400 };
    static char data[2000];
    struct sockaddr_in addr;
    post p;
    uint32_t random = 7;
    size_t sent[2] = {0}, got[2] = {0};
    size_t lens[2][COUNT];
    int peers[2];
    static const size_t common[] = {0, 1, 7, 200, 200, 200, 1999};

    post_init_udp(&p);
    peers[0] = p.peer;
    peers[1] = post_udp_socket(&addr);
    for (int i = 0; i < COUNT; i++) {
        int which = test_random(&random) % 4 == 0;
        size_t len = common[test_random(&random) % FNET_COUNTOF(common)];
        for (unsigned n = test_random(&random) % 12; n > 0; n--) {
            if (sent[which] == COUNT) {
                break;
            }
            memset(data, (int)(sent[which] % 251), len);
            fnet_piece piece = {.data = data, .len = len};
            CHECK(fnet_dgram_send(&p.d, &piece, which ? &addr : &p.other,
                                  sizeof(addr), true) >= 0);
            lens[which][sent[which]++] = len;
        }
        if (test_random(&random) % 3 == 0) {
            post_step(&p);
        }
        for (int k = 0; k < 2; k++) {
            ssize_t n;
            while ((n = recv(peers[k], data, sizeof(data), MSG_DONTWAIT)) >=
                   0) {
                CHECK(got[k] < sent[k] && (size_t)n == lens[k][got[k]]);
                CHECK(n == 0 || (unsigned char)data[n - 1] == got[k] % 251);
                got[k]++;
            }
        }
    }
    fnet_dgram_flush(&p.d, NULL);
    for (int k = 0; k < 2; k++) {
        while (recv(peers[k], data, sizeof(data), MSG_DONTWAIT) >= 0) {
            got[k]++;
        }
        CHECK(got[k] == sent[k] && got[k] > 50);
    }
    close(peers[1]);
    post_fini(&p);
}

static void
send_equal(post *p, size_t len, int count)
{
    static char data[2000];
    for (int i = 0; i < count; i++) {
        fnet_piece piece = {.data = data, .len = len};
        CHECK(fnet_dgram_send(&p->d, &piece, &p->other, sizeof(p->other),
                              true) >= 0);
    }
    fnet_dgram_flush(&p->d, NULL);
}

static int
count_equal(post *p, size_t len)
{
    static char data[2000];
    int count = 0;
    ssize_t n;
    while ((n = recv(p->peer, data, sizeof(data), MSG_DONTWAIT)) >= 0) {
        CHECK((size_t)n == len);
        count++;
    }
    return count;
}

/* A kernel or a device that cuts no runs up gets them one by one. */
static void
runs_are_refused(void)
{
    post p;
    int one = 1;
    post_init_udp(&p);
    /* Without checksums the kernel cuts nothing up: EINVAL. */
    CHECK(setsockopt(p.fd, SOL_SOCKET, SO_NO_CHECK, &one, sizeof(one)) == 0);
    send_equal(&p, 1000, 20);
    CHECK(count_equal(&p, 1000) == 20);
    CHECK(p.d.out.segment_max == 999);
    send_equal(&p, 500, 20);
    CHECK(count_equal(&p, 500) == 20);
    CHECK(p.d.out.segment_max == 499 && p.d.nerrors == 0);
    post_fini(&p);
}

/* -- room ----------------------------------------------------------------- */

/* A connected Unix socket, whose peer has another one's queue to fill. */
static void
init_connected(post *p, struct sockaddr_un *name)
{
    socklen_t len = sizeof(sa_family_t);
    *p = (post){0};
    world_init(&p->w);
    *name = (struct sockaddr_un){.sun_family = AF_UNIX};
    p->peer = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    p->fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    CHECK(bind(p->peer, (struct sockaddr *)name, len) == 0);
    len = sizeof(*name);
    CHECK(getsockname(p->peer, (struct sockaddr *)name, &len) == 0);
    CHECK(connect(p->fd, (struct sockaddr *)name, len) == 0);
    post_attach(p, FNET_DGRAM_WIDE);
}

/* Sends until nothing goes any more; how many were sent and wait. */
static size_t
fill(post *p)
{
    size_t number = 0;
    while (p->d.writable) {
        CHECK(post_send(p, number++, false) >= 0);
        fnet_dgram_flush(&p->d, NULL);
        CHECK(number < 10000);
    }
    for (int i = 0; i < 50; i++) {
        CHECK(post_send(p, number++, false) > 0);
    }
    return number;
}

static void
waits_for_room(void)
{
    struct sockaddr_un name;
    size_t bytes = 0, number = 0;
    post p;

    init_connected(&p, &name);
    size_t count = fill(&p);
    CHECK(fnet_dgram_flush(&p.d, &bytes) == 51 && bytes > 51 * 8);
    CHECK((p.d.source.events & (uint32_t)EPOLLOUT) != 0);
    fnet_dgram_notify(&p.d, 100);
    for (int i = 0; i < 3; i++) {
        CHECK(post_step(&p) == 0); /* no spinning, no news */
    }
    int64_t deadline = fnet_clock_ns() + WORLD_PATIENCE;
    while (number < count && fnet_clock_ns() < deadline) {
        number += post_peer_takes(&p, number);
        post_step(&p);
    }
    CHECK(number == count && p.outputs == 1 && p.stuck == 0);
    CHECK(p.errors == 0 && fnet_outbox_bytes(&p.d.out) == 0);
    post_step(&p);
    fnet_dgram_notify(&p.d, 0); /* what is so already is told, too */
    post_step(&p);
    CHECK(p.outputs == 2);
    post_fini(&p);
}

/* Unconnected: the kernel does not tell of room, the layer above retries. */
static void
no_edge_of_room(void)
{
    struct sockaddr_un name;
    size_t number = 0, bytes;
    post p;

    init_connected(&p, &name);
    struct sockaddr none = {.sa_family = AF_UNSPEC};
    CHECK(connect(p.fd, &none, sizeof(none)) == 0);
    fnet_dgram_detach(&p.d, false);
    post_attach(&p, FNET_DGRAM_WIDE | FNET_DGRAM_NO_EDGE);
    char data[10] = "0123456789";
    size_t count = 0;
    socklen_t len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) +
                                strnlen(name.sun_path + 1, 10) + 1);
    while (p.d.writable) {
        fnet_piece piece = {.data = data, .len = 10};
        CHECK(fnet_dgram_send(&p.d, &piece, &name, len, false) >= 0);
        fnet_dgram_flush(&p.d, NULL);
        count++;
    }
    post_step(&p);
    CHECK(p.outputs == 1 && p.stuck == 1);
    post_step(&p);
    CHECK(p.outputs == 1); /* told once for each attempt */
    fnet_dgram_retry(&p.d);
    post_step(&p);
    CHECK(p.outputs == 2 && p.stuck == 2);
    while (recv(p.peer, data, sizeof(data), MSG_DONTWAIT) == 10) {
        number++;
    }
    CHECK(number == count - 1);
    fnet_dgram_retry(&p.d);
    CHECK(fnet_dgram_flush(&p.d, &bytes) == 0 && bytes == 0);
    CHECK(recv(p.peer, data, sizeof(data), MSG_DONTWAIT) == 10);
    post_step(&p);
    CHECK(p.outputs == 2 && fnet_list_empty(&p.w.shard.dirty));
    post_fini(&p);
}

static void
dropped_and_detached(void)
{
    struct sockaddr_un name;
    static char large[5000];
    post p;

    init_connected(&p, &name);
    (void)fill(&p);
    fnet_piece piece = {.data = large, .len = 5000, .foreign = large};
    CHECK(fnet_dgram_send(&p.d, &piece, &name, sizeof(name), false) > 0);
    CHECK(piece.kept && post_reap(&p) == 0);
    fnet_dgram_drop(&p.d);
    CHECK(fnet_outbox_bytes(&p.d.out) == 0 && post_reap(&p) == 1);
    CHECK(fnet_dgram_send(&p.d, &piece, &name, sizeof(name), false) > 0);
    CHECK(piece.kept);
    post_fini(&p); /* with some that wait, and a long address */
}

/* -- errors --------------------------------------------------------------- */

/* To nobody: a name that is not bound. */
static ssize_t
send_to_nobody(post *p, bool company)
{
    struct sockaddr_un nobody = {.sun_family = AF_UNIX,
                                 .sun_path = "/nonexistent/path"};
    char byte = 'x';
    fnet_piece piece = {.data = &byte, .len = 1};
    return fnet_dgram_send(&p->d, &piece, &nobody, sizeof(nobody), company);
}

static void
errors_at_once(void)
{
    post p;
    post_init_unix(&p);
    fnet_shard_begin_turn(&p.w.shard, true);
    CHECK(send_to_nobody(&p, false) == -ENOENT);
    CHECK(p.d.nerrors == 0 && p.d.out.count == 0);
    CHECK(post_send(&p, 0, false) > 0); /* the next one goes on */
    post_step(&p);
    CHECK(post_peer_takes(&p, 0) == 1 && p.errors == 0);
    post_fini(&p);
}

static void
errors_that_were_deferred(void)
{
    post p;
    size_t number = 0;

    post_init_unix(&p);
    for (int i = 0; i < 30; i++) {
        CHECK(send_to_nobody(&p, true) > 0);
        CHECK(post_send(&p, number++, true) > 0);
    }
    int taken = 0, error;
    size_t arrived = 0;
    for (int i = 0; i < 30 && taken < 30; i++) {
        CHECK(post_step(&p) == 1);
        CHECK(p.w.batch.items[0].what == FNET_WHAT_ERROR &&
              p.w.batch.items[0].result == 0);
        CHECK(p.d.nerrors <= FNET_DGRAM_ERRORS);
        while ((error = fnet_dgram_take_error(&p.d)) != 0) {
            CHECK(error == -ENOENT);
            taken++;
        }
        arrived += post_peer_takes(&p, arrived);
    }
    CHECK(taken == 30);
    post_step(&p);
    arrived += post_peer_takes(&p, arrived);
    CHECK(arrived == number && p.d.out.count == 0);
    CHECK(fnet_dgram_take_error(&p.d) == 0);
    post_fini(&p);
}

/* As the prompter does it: between two passes, told by the next one. */
static void
errors_found_by_the_prompter(void)
{
    post p;
    post_init_unix(&p);
    CHECK(send_to_nobody(&p, true) > 0);
    fnet_shard_flush(&p.w.shard);
    CHECK(p.d.nerrors == 1);
    CHECK(post_step(&p) == 1 && p.errors == 1);
    CHECK(fnet_dgram_take_error(&p.d) == -ENOENT);
    CHECK(post_step(&p) == 0);
    post_fini(&p);
}

static void
too_long(void)
{
    static char data[70000];
    post p;
    post_init_udp(&p);
    fnet_piece piece = {.data = data, .len = 65508};
    CHECK(fnet_dgram_send(&p.d, &piece, &p.other, sizeof(p.other), true) ==
          -EMSGSIZE);
    CHECK(post_send(&p, 0, true) > 0);
    CHECK(fnet_dgram_send(&p.d, &piece, &p.other, sizeof(p.other), true) >= 0);
    post_step(&p);
    CHECK(post_peer_takes(&p, 0) == 1);
    CHECK(fnet_dgram_take_error(&p.d) == -EMSGSIZE);
    post_fini(&p);
}

/* -- memory --------------------------------------------------------------- */

static void
without_memory(void)
{
    struct sockaddr_un name;
    static char large[5000];
    post p;

    init_connected(&p, &name);
    for (long n = 0;; n++) {
        fnet_piece piece = {.data = large, .len = 3000, .foreign = large};
        uint32_t count = p.d.out.count;
        size_t bytes = fnet_outbox_bytes(&p.d.out);
        fnet_mem_fail_after(n);
        ssize_t rc = fnet_dgram_send(&p.d, &piece, &name, sizeof(name), true);
        bool failed = fnet_mem_failed();
        fnet_mem_fail_after(-1);
        if (!failed) {
            CHECK(rc > 0);
            break;
        }
        CHECK(rc == -ENOMEM && !piece.kept);
        CHECK(p.d.out.count == count && fnet_outbox_bytes(&p.d.out) == bytes);
        CHECK(n < 10);
    }
    fnet_dgram_drop(&p.d);
    post_reap(&p);
    post_fini(&p);
}

/* -- the prompter --------------------------------------------------------- */

static void
take_errors(post *p)
{
    int error;
    while ((error = fnet_dgram_take_error(&p->d)) != 0) {
        CHECK(error == -ENOENT);
    }
}

/* Turns that compute: what they have sent leaves by the thread, while it
 * sends more, and datagrams come in. */
static void
beside_the_prompter(void)
{
    fnet_prompter *prompter;
    post p;
    size_t number = 0, taken = 0;

    post_init_unix(&p);
    CHECK(fnet_prompter_new(&prompter, &p.w.shard) == 0);
    fnet_dgram_want(&p.d, true);
    for (int turn = 0; turn < 40; turn++) {
        for (int i = 0; i < 30; i++) {
            post_feed(&p, 1);
            CHECK(post_send(&p, number++, true) >= 0);
            if (turn % 4 == 0) {
                CHECK(send_to_nobody(&p, true) >= -ENOENT);
            }
            struct timespec pause = {.tv_nsec = 100000};
            nanosleep(&pause, NULL);
            taken += post_peer_takes(&p, taken);
        }
        while (p.got < p.sent) {
            take_errors(&p);
            post_step(&p);
        }
        take_errors(&p);
    }
    CHECK(p.w.shard.stats.prompted > 0);
    fnet_prompter_free(prompter);
    while (fnet_dgram_flush(&p.d, NULL) > 0) {
        take_errors(&p);
    }
    take_errors(&p);
    await_peer(&p, &taken, number);
    post_take_in(&p);
    post_fini(&p);
}

int
main(void)
{
    RUN(deferred_to_the_pass);
    RUN(at_once_in_an_eager_turn);
    RUN(no_more_waits_than_a_call_takes);
    RUN(the_turn_is_over_without_a_pass);
    RUN(boundaries_are_kept);
    RUN(runs_are_refused);
    RUN(waits_for_room);
    RUN(no_edge_of_room);
    RUN(dropped_and_detached);
    RUN(errors_at_once);
    RUN(errors_that_were_deferred);
    RUN(errors_found_by_the_prompter);
    RUN(too_long);
    RUN(without_memory);
    RUN(beside_the_prompter);
    return test_report();
}
