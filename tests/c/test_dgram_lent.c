/* Datagram sockets whose shard a worker has. */

#include "lent.h"
#include "post.h"

/* A socket of the loop's and its peer: datagrams are numbered both ways. */
typedef struct mail {
    fnet_dgram d;
    int fd, peer;
    struct sockaddr_in own, other;
    size_t fed, got;     /* from the peer */
    size_t written, out; /* to the peer, taken by it */
    unsigned outputs, errors;
} mail;

static void
mail_open(mail *m, fnet_shard *shard, bool udp)
{
    int fds[2];
    *m = (mail){0};
    if (udp) {
        m->fd = post_udp_socket(&m->own);
        m->peer = post_udp_socket(&m->other);
    }
    else {
        CHECK(socketpair(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0,
                         fds) == 0);
        m->fd = fds[0];
        m->peer = fds[1];
    }
    CHECK(fnet_dgram_attach(&m->d, shard, m->fd, m,
                            udp ? FNET_DGRAM_UDP : FNET_DGRAM_WIDE, 8) == 0);
}

static void
mail_close(mail *m)
{
    fnet_dgram_detach(&m->d, true);
    close(m->fd);
    close(m->peer);
}

static void
mail_note(void *arg, fnet_source *source, const fnet_completion *item)
{
    mail *m = source->owner;
    const struct mmsghdr *headers = item->data;

    CHECK(source->ops->kind == FNET_KIND_DGRAM);
    switch (item->what) {
    case FNET_WHAT_DATAGRAMS:
        CHECK(item->result > 0);
        for (int i = 0; i < item->result; i++, m->got++) {
            CHECK(post_is(headers[i].msg_hdr.msg_iov->iov_base,
                          headers[i].msg_len, m->got));
        }
        break;
    case FNET_WHAT_OUTPUT:
        m->outputs++;
        break;
    default:
        CHECK(item->what == FNET_WHAT_ERROR);
        m->errors++;
    }
}

static void
mail_feed(mail *m, size_t count)
{
    char data[2048];
    for (size_t i = 0; i < count; i++, m->fed++) {
        size_t len = post_len(m->fed);
        bool udp = m->own.sin_family != 0;
        world_fill(data, m->fed * 7, len);
        CHECK(sendto(m->peer, data, len, 0,
                     udp ? (struct sockaddr *)&m->own : NULL,
                     udp ? sizeof(m->own) : 0) == (ssize_t)len);
    }
}

static void
mail_send(mail *m, size_t count)
{
    char data[2048];
    for (size_t i = 0; i < count; i++, m->written++) {
        fnet_piece piece = {.data = data, .len = post_len(m->written)};
        bool udp = m->own.sin_family != 0;
        world_fill(data, m->written * 7, piece.len);
        CHECK(fnet_dgram_send(&m->d, &piece, &m->other,
                              udp ? (socklen_t)sizeof(m->other) : 0,
                              i + 1 < count) >= 0);
    }
}

static bool
mail_all_out(mail *m)
{
    char data[4096];
    ssize_t n;
    while ((n = recv(m->peer, data, sizeof(data), MSG_DONTWAIT)) >= 0) {
        CHECK(post_is(data, (size_t)n, m->out));
        m->out++;
    }
    return m->out == m->written;
}

static void
flip_sometimes(lent *l, int round)
{
    if (round % 3 == 0 && !l->recalling) {
        if (l->set.home_away) {
            lent_recall(l);
        }
        else {
            lent_lend(l);
        }
    }
}

/* Both ways, in order, none lost; `flips`: home comes and goes meanwhile. */
static void
exchange(bool udp, bool flips)
{
    lent l;
    mail m;
    lent_init(&l, mail_note, NULL);
    if (!flips) {
        lent_lend(&l);
    }
    mail_open(&m, &l.home, udp);
    fnet_dgram_want(&m.d, true);
    for (int i = 0; i < 300; i++) {
        if (flips) {
            flip_sometimes(&l, i);
        }
        size_t count = 1 + (size_t)i % 5;
        mail_feed(&m, count);
        LENT_UNTIL(&l, m.got == m.fed);
        mail_send(&m, count);
        if (i % 2 == 0) {
            /* With what comes back from the pass; else with the next. */
            LENT_MEANWHILE(&l, mail_all_out(&m));
        }
        (void)mail_all_out(&m);
    }
    LENT_MEANWHILE(&l, mail_all_out(&m));
    CHECK(m.errors == 0 && (!flips || l.flips > 20));
    mail_close(&m);
    lent_fini(&l);
}

static void
udp_on_a_lent_home(void)
{
    exchange(true, false);
}

static void
unix_on_a_lent_home(void)
{
    exchange(false, false);
}

static void
across_flips(void)
{
    exchange(true, true);
    exchange(false, true);
}

/* A peer that takes nothing: output waits, is told of, and goes. */
static void
waits_for_room(void)
{
    lent l;
    mail m;
    lent_init(&l, mail_note, NULL);
    lent_lend(&l);
    mail_open(&m, &l.home, false);
    for (unsigned round = 1; round <= 20; round++) {
        mail_send(&m, 2000);
        fnet_dgram_notify(&m.d, 0);
        usleep(1000);
        lent_turn(&l, FNET_NO_WAIT);
        CHECK(m.outputs == round - 1);
        CHECK(fnet_dgram_flush(&m.d, NULL) > 0);
        LENT_MEANWHILE(&l, mail_all_out(&m));
        LENT_UNTIL(&l, m.outputs == round);
        CHECK(fnet_dgram_flush(&m.d, NULL) == 0);
    }
    /* And dropped in the middle. */
    mail_send(&m, 2000);
    fnet_dgram_drop(&m.d);
    CHECK(fnet_dgram_flush(&m.d, NULL) == 0);
    (void)mail_all_out(&m);
    m.written = m.out;
    mail_send(&m, 10);
    LENT_MEANWHILE(&l, mail_all_out(&m));
    mail_close(&m);
    lent_fini(&l);
}

static void
errors_are_told(void)
{
    lent l;
    mail m;
    lent_init(&l, mail_note, NULL);
    lent_lend(&l);
    mail_open(&m, &l.home, false);
    fnet_dgram_want(&m.d, true);
    close(m.peer);
    mail_send(&m, 3);
    int taken = 0, error;
    unsigned seen = 0;
    while (taken < 3 && m.errors == seen) {
        LENT_UNTIL(&l, m.errors > seen);
        seen = m.errors;
        while ((error = fnet_dgram_take_error(&m.d)) != 0) {
            CHECK(error == (taken == 0 ? -ECONNREFUSED : -ENOTCONN));
            taken++;
        }
    }
    CHECK(taken == 3);
    fnet_dgram_detach(&m.d, true);
    close(m.fd);
    lent_fini(&l);
}

/* Detached while the worker receives, and the number used again: whoever has
 * it now gets all of its own. */
static void
closes_while_it_receives(void)
{
    lent l;
    lent_init(&l, mail_note, NULL);
    lent_lend(&l);
    for (int i = 0; i < 300; i++) {
        mail m;
        char byte = 'x';
        int fds[2];
        mail_open(&m, &l.home, i % 2 == 0);
        fnet_dgram_want(&m.d, true);
        mail_feed(&m, 9);
        if (i % 3 == 0) {
            LENT_AWAIT(fnet_shardset_has_mail(&l.set));
        }
        mail_send(&m, 5);
        mail_close(&m);
        CHECK(socketpair(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0,
                         fds) == 0);
        CHECK(fds[0] == m.fd && fds[1] == m.peer);
        CHECK(send(fds[1], &byte, 1, 0) == 1);
        usleep((unsigned)i % 40);
        CHECK(recv(fds[0], &byte, 1, MSG_DONTWAIT) == 1);
        CHECK(recv(fds[0], &byte, 1, MSG_DONTWAIT) == -1);
        CHECK(recv(fds[1], &byte, 1, MSG_DONTWAIT) == -1);
        close(fds[0]);
        close(fds[1]);
        lent_turn(&l, FNET_NO_WAIT);
    }
    lent_fini(&l);
}

int
main(void)
{
    RUN(udp_on_a_lent_home);
    RUN(unix_on_a_lent_home);
    RUN(across_flips);
    RUN(waits_for_room);
    RUN(errors_are_told);
    RUN(closes_while_it_receives);
    return test_report();
}
