/* The writing side of streams; test_stream.c has the reading side. */
#include "conn.h"

static foreign
foreign_new(size_t at, size_t len)
{
    foreign f = {.data = malloc(len), .len = len};
    CHECK(f.data != NULL);
    world_fill(f.data, at, len);
    return f;
}

/* Writes the next bytes, in one piece of foreign memory: what is queued. */
static ssize_t
write_foreign(conn *c, foreign *f, size_t len, bool *kept)
{
    *f = foreign_new(c->written, len);
    fnet_piece piece = {.data = f->data, .len = len, .foreign = f};
    ssize_t left = fnet_stream_write(&c->s, &piece, 1);
    c->written += len;
    *kept = piece.kept;
    return left;
}

/* As many bytes as the peer has got more are there at once. */
static bool
arrives(conn *c, size_t bytes)
{
    return conn_take(c) == bytes && c->taken == c->written;
}

static uint64_t
sends(const conn *c)
{
    return c->w.shard.stats.sends;
}

/* -- when bytes leave ----------------------------------------------------- */

static void
a_turn_leaves_in_one_call(void)
{
    conn c;
    got g = {0};
    conn_init(&c);
    for (int turn = 1; turn <= 3; turn++) {
        for (int i = 1; i <= 10; i++) {
            CHECK(conn_write(&c, 100) == i * 100);
            CHECK(conn_take(&c) == 0);
        }
        CHECK(conn_step(&c, &g) == 0);
        CHECK(arrives(&c, 1000));
        CHECK(sends(&c) == (uint64_t)turn);
    }
    CHECK(c.w.shard.stats.writes == 30 && c.w.shard.stats.bytes_sent == 3000);
    CHECK(c.w.shard.deferrals == 3);
    conn_fini(&c);
}

static void
an_eager_turn_sends_the_first(void)
{
    conn c;
    got g = {0};
    conn_init(&c);
    for (int turn = 0; turn < 3; turn++) {
        fnet_shard_begin_turn(&c.w.shard, true);
        CHECK(conn_write(&c, 100) == 0);
        CHECK(arrives(&c, 100));
        CHECK(conn_write(&c, 100) == 100); /* the others go together */
        CHECK(conn_write(&c, 100) == 200);
        CHECK(conn_take(&c) == 0);
        CHECK(conn_step(&c, &g) == 0);
        CHECK(arrives(&c, 200));
    }
    CHECK(sends(&c) == 6);
    conn_fini(&c);
}

static void
a_late_turn_sends_at_once(void)
{
    conn c;
    got g = {0};
    conn_init(&c);
    CHECK(conn_write(&c, 10) == 10);
    c.w.shard.late = true;          /* as the prompter says */
    CHECK(conn_write(&c, 10) == 0); /* with what waited before it */
    CHECK(arrives(&c, 20) && sends(&c) == 1);
    CHECK(conn_write(&c, 10) == 0);
    CHECK(arrives(&c, 10));
    CHECK(conn_step(&c, &g) == 0);
    CHECK(conn_write(&c, 10) == 10); /* the next turn is young again */
    CHECK(conn_step(&c, &g) == 0);
    CHECK(arrives(&c, 10));
    c.w.shard.defer = false;
    fnet_shard_begin_turn(&c.w.shard, false);
    for (int i = 0; i < 3; i++) {
        CHECK(conn_write(&c, 10) == 0);
        CHECK(arrives(&c, 10));
    }
    conn_fini(&c);
}

static void
much_is_sent_at_once(void)
{
    conn c;
    got g = {0};
    bool kept;
    foreign f;
    conn_init(&c);
    CHECK(conn_write(&c, FNET_SEND_NOW) == 0);
    CHECK(arrives(&c, FNET_SEND_NOW) && sends(&c) == 1);
    CHECK(write_foreign(&c, &f, FNET_SEND_NOW, &kept) == 0 && !kept);
    free(f.data); /* nobody needs it any more */
    CHECK(arrives(&c, FNET_SEND_NOW) && sends(&c) == 2);
    CHECK(conn_write(&c, FNET_SEND_COPY) == 0); /* spares a copy */
    CHECK(arrives(&c, FNET_SEND_COPY) && sends(&c) == 3);
    for (size_t i = 1; i <= FNET_SEND_NOW / FNET_SEND_COPY; i++) {
        CHECK(conn_write(&c, FNET_SEND_COPY - 1) ==
              (ssize_t)(i * (FNET_SEND_COPY - 1)));
    }
    CHECK(conn_take(&c) == 0);
    /* together they are much */
    CHECK(conn_write(&c, FNET_SEND_NOW / FNET_SEND_COPY) == 0);
    CHECK(arrives(&c, FNET_SEND_NOW) && sends(&c) == 4);
    CHECK(conn_write(&c, 5) == 5);
    CHECK(conn_write(&c, FNET_SEND_NOW) == 0); /* behind those five */
    CHECK(arrives(&c, 5 + FNET_SEND_NOW));
    CHECK(conn_step(&c, &g) == 0 && conn_reap(&c) == 0);
    conn_fini(&c);
}

static void
flush_sends_at_once(void)
{
    conn c;
    got g = {0};
    conn_init(&c);
    CHECK(fnet_stream_flush(&c.s) == 0);
    CHECK(sends(&c) == 0);
    CHECK(conn_write(&c, 100) == 100);
    CHECK(fnet_stream_flush(&c.s) == 0);
    CHECK(arrives(&c, 100));
    CHECK(conn_write(&c, 100) == 100);
    fnet_shard_flush(&c.w.shard);
    CHECK(arrives(&c, 100) && sends(&c) == 2);
    CHECK(conn_step(&c, &g) == 0 && sends(&c) == 2);
    conn_fill(&c);
    size_t queued = c.s.out.bytes;
    CHECK(fnet_stream_flush(&c.s) == queued); /* as far as it goes */
    conn_take_all(&c, &g);
    CHECK(fnet_stream_flush(&c.s) == 0);
    conn_fini(&c);
}

/* -- pieces --------------------------------------------------------------- */

static void
pieces_leave_together(void)
{
    for (int eager = 0; eager < 2; eager++) {
        conn c;
        got g = {0};
        conn_init(&c);
        foreign f[2] = {foreign_new(110, 3000), foreign_new(3110, 10)};
        char first[110];
        world_fill(first, 0, sizeof(first));
        fnet_piece pieces[] = {
            {.data = first, .len = 100},
            {.data = first, .len = 0},
            {.data = first + 100, .len = 10},
            {.data = f[0].data, .len = f[0].len, .foreign = &f[0]},
            {.data = NULL, .len = 0, .foreign = &f[1]},
            {.data = f[1].data, .len = f[1].len, .foreign = &f[1]},
        };
        fnet_shard_begin_turn(&c.w.shard, eager);
        ssize_t left = fnet_stream_write(&c.s, pieces, FNET_COUNTOF(pieces));
        c.written = 3120;
        CHECK(left == (eager ? 0 : 3120));
        memset(first, 'x', sizeof(first)); /* these were copied */
        memset(f[1].data, 'x', f[1].len);
        if (!eager) {
            CHECK(conn_take(&c) == 0 && conn_reap(&c) == 0);
            CHECK(conn_step(&c, &g) == 0);
        }
        CHECK(arrives(&c, 3120) && sends(&c) == 1);
        CHECK(pieces[3].kept && !pieces[4].kept && !pieces[5].kept);
        CHECK(conn_reap(&c) == 1 && f[0].spent == 1 && f[1].spent == 0);
        CHECK(fnet_stream_write(&c.s, NULL, 0) == 0);
        CHECK(fnet_stream_write(&c.s, pieces + 1, 1) == 0); /* empty */
        CHECK(conn_step(&c, &g) == 0 && sends(&c) == 1);
        free(f[0].data);
        free(f[1].data);
        conn_fini(&c);
    }
}

/* More than one call of the kernel takes. */
static void
very_many_pieces(void)
{
    enum { PIECES = 150, SIZE = FNET_COPY_MAX + 1 };
    static foreign f[PIECES];
    fnet_piece pieces[PIECES] = {{0}};
    conn c;
    got g = {0};
    conn_init(&c);
    for (int i = 0; i < PIECES; i++) {
        f[i] = foreign_new(c.written, SIZE);
        pieces[i] = (fnet_piece){f[i].data, f[i].len, &f[i], false};
        c.written += SIZE;
    }
    CHECK(fnet_stream_write(&c.s, pieces, PIECES) >= 0);
    CHECK(conn_take(&c) >= 64 * SIZE);
    conn_take_all(&c, &g);
    CHECK(sends(&c) >= 3 && sends(&c) < 10);
    CHECK(conn_reap(&c) == PIECES);
    for (int i = 0; i < PIECES; i++) {
        CHECK(pieces[i].kept && f[i].spent == 1);
        free(f[i].data);
    }
    conn_fini(&c);
}

/* -- a full socket -------------------------------------------------------- */

static void
partial_sends(void)
{
    for (int tcp = 0; tcp < 2; tcp++) {
        conn c;
        got g = {0};
        if (tcp) {
            conn_init_tcp(&c);
        }
        else {
            conn_init(&c);
        }
        conn_fill(&c);
        uint64_t before = sends(&c);
        size_t queued = c.s.out.bytes;
        for (size_t i = 1; i <= 10; i++) {
            CHECK(conn_write(&c, 1000) == (ssize_t)(queued + i * 1000));
            if (!tcp) {
                CHECK(conn_step(&c, &g) == 0);
            }
        }
        if (!tcp) {
            CHECK(sends(&c) == before); /* no call that only says EAGAIN */
        }
        CHECK(fnet_list_empty(&c.s.source.dirty));
        conn_take_all(&c, &g);
        CHECK(c.s.out.bytes == 0);
        /* As if nothing had been. */
        CHECK(conn_write(&c, 100) == 100);
        CHECK(conn_step(&c, &g) == 0);
        conn_take_all(&c, &g);
        CHECK(g.outputs == 0 && g.errors == 0);
        conn_fini(&c);
    }
}

static void
references_are_kept_until_sent(void)
{
    conn c;
    got g = {0};
    bool kept;
    foreign f[3];
    conn_init(&c);
    CHECK(write_foreign(&c, &f[0], FNET_COPY_MAX, &kept) > 0 && !kept);
    CHECK(write_foreign(&c, &f[1], FNET_COPY_MAX + 1, &kept) > 0 && kept);
    CHECK(conn_step(&c, &g) == 0);
    CHECK(conn_reap(&c) == 1 && f[1].spent == 1 && f[0].spent == 0);
    /* Sent at once, but in part only. */
    CHECK(write_foreign(&c, &f[2], 4 * MIB, &kept) > 0 && kept);
    CHECK(conn_reap(&c) == 0);
    conn_take_all(&c, &g);
    CHECK(conn_reap(&c) == 1 && f[2].spent == 1);
    for (int i = 0; i < 3; i++) {
        free(f[i].data);
    }
    conn_fini(&c);
}

/* -- OUTPUT --------------------------------------------------------------- */

static void
news_of_the_low_mark(void)
{
    conn c;
    got g = {0};
    const size_t low = 30000;
    conn_init(&c);
    conn_fill(&c);
    conn_write(&c, 200000);
    fnet_stream_notify(&c.s, low);
    CHECK(conn_step(&c, &g) == 0);
    while (c.taken < c.written) {
        unsigned before = g.outputs;
        CHECK(conn_take(&c) > 0);
        conn_step(&c, &g);
        CHECK(g.outputs == (c.s.out.bytes <= low));
        CHECK(g.outputs == before ||
              world_only(&c.w, &c.s.source, FNET_WHAT_OUTPUT, 0));
    }
    CHECK(g.outputs == 1); /* once */
    conn_write(&c, 100);
    CHECK(conn_step(&c, &g) == 0);
    conn_take_all(&c, &g);
    CHECK(g.outputs == 1);
    conn_fini(&c);
}

/* It is so already: the next pass tells, and does not wait. */
static void
news_that_is_none(void)
{
    conn c;
    got g = {0};
    conn_init(&c);
    CHECK(conn_step(&c, &g) == 0);
    fnet_stream_notify(&c.s, 0);
    CHECK(fnet_shard_pass(&c.w.shard, &c.w.batch, FNET_FOREVER) == 0);
    fnet_shard_begin_turn(&c.w.shard, false);
    CHECK(world_only(&c.w, &c.s.source, FNET_WHAT_OUTPUT, 0));
    CHECK(conn_step(&c, &g) == 0);
    conn_fini(&c);
}

/* Whoever sends the rest, the next pass tells. */
static void
news_of_a_flush(void)
{
    for (int way = 0; way < 4; way++) {
        conn c;
        got g = {0};
        conn_init(&c);
        CHECK(conn_step(&c, &g) == 0);
        CHECK(conn_write(&c, 100) == 100);
        fnet_stream_notify(&c.s, 0);
        if (way == 0) {
            CHECK(fnet_stream_flush(&c.s) == 0);
        }
        else if (way == 1) {
            fnet_shard_flush(&c.w.shard); /* as the prompter does */
            fnet_shard_flush(&c.w.shard);
        }
        else if (way == 2) {
            c.w.shard.late = true;
            CHECK(conn_write(&c, 100) == 0);
        }
        else {
            fnet_stream_shutdown(&c.s);
        }
        CHECK(arrives(&c, way == 2 ? 200 : 100));
        CHECK(fnet_shard_pass(&c.w.shard, &c.w.batch, FNET_FOREVER) == 0);
        fnet_shard_begin_turn(&c.w.shard, false);
        CHECK(world_only(&c.w, &c.s.source, FNET_WHAT_OUTPUT, 0));
        CHECK(conn_step(&c, &g) == 0);
        conn_fini(&c);
    }
}

/* What is written while news is on its way leaves as ever. */
static void
writes_before_the_news(void)
{
    conn c;
    got g = {0};
    conn_init(&c);
    fnet_stream_notify(&c.s, 1000);
    CHECK(conn_write(&c, 100) == 100);
    CHECK(conn_step(&c, &g) == 1 && g.outputs == 1);
    CHECK(arrives(&c, 100));
    CHECK(conn_write(&c, 100) == 100);
    CHECK(conn_step(&c, &g) == 0);
    CHECK(arrives(&c, 100));
    conn_fini(&c);
}

static void
news_of_room(void)
{
    conn c;
    got g = {0};
    char data[KIB] = {0};
    size_t sent = 0;
    ssize_t n;
    conn_init(&c);
    CHECK(conn_step(&c, &g) == 0);
    /* The caller sends by itself, until there is no room. */
    world_fill(data, 0, 1);
    while ((n = fnet_sys_send(c.fd, data, sizeof(data))) > 0) {
        sent += (size_t)n;
    }
    CHECK(n == -EAGAIN);
    fnet_stream_notify_room(&c.s);
    CHECK(conn_step(&c, &g) == 0);
    while (sent > 0) {
        n = fnet_sys_recv(c.peer, data, sizeof(data));
        CHECK(n > 0);
        if (n <= 0) {
            break;
        }
        sent -= (size_t)n;
    }
    CHECK(conn_step(&c, &g) == 1 && g.outputs == 1);
    CHECK(conn_step(&c, &g) == 0);
    /* And it writes as before. */
    CHECK(conn_write(&c, 10) == 10);
    CHECK(conn_step(&c, &g) == 0);
    CHECK(arrives(&c, 10));
    conn_fini(&c);
}

/* -- the end -------------------------------------------------------------- */

static void
shutdown_after_the_output(void)
{
    for (int full = 0; full < 2; full++) {
        conn c;
        got g = {0};
        conn_init(&c);
        if (full) {
            conn_fill(&c);
        }
        conn_write(&c, 100);
        fnet_stream_shutdown(&c.s);
        fnet_stream_shutdown(&c.s);
        CHECK(c.s.was_shut == !full);
        conn_take_all(&c, &g);
        CHECK(world_at_end(c.peer) && c.s.was_shut);
        size_t written = c.written;
        CHECK(conn_write(&c, 10) == 0); /* no more */
        CHECK(conn_step(&c, &g) == 0 && fnet_stream_error(&c.s) == 0);
        /* The other direction goes on. */
        fnet_stream_want(&c.s, true);
        CHECK(world_send(c.peer, 0, 100) == 100);
        conn_until(&c, &g, 100, 0);
        CHECK(world_at_end(c.peer) && c.taken == written);
        conn_fini(&c);
    }
}

static void
dropped_output(void)
{
    conn c;
    got g = {0};
    bool kept;
    foreign f;
    conn_init(&c);
    CHECK(conn_write(&c, 100) == 100);
    CHECK(write_foreign(&c, &f, 5000, &kept) == 5100 && kept);
    fnet_stream_drop(&c.s);
    CHECK(conn_reap(&c) == 1 && f.spent == 1);
    fnet_stream_drop(&c.s); /* harmless */
    CHECK(conn_step(&c, &g) == 0 && sends(&c) == 0);
    CHECK(conn_take(&c) == 0);
    free(f.data);
    conn_fini(&c);
}

/* All that was deferred is sent; what the socket would not take is dropped. */
static void
aborted_output(void)
{
    for (int full = 0; full < 2; full++) {
        conn c;
        got g = {0};
        bool kept;
        foreign f;
        conn_init(&c);
        if (full) {
            conn_fill(&c);
        }
        uint64_t before = sends(&c);
        CHECK(conn_write(&c, 100) > 0);
        CHECK(write_foreign(&c, &f, 5000, &kept) > 0 && kept);
        fnet_stream_abort(&c.s);
        CHECK(conn_reap(&c) >= 1 && f.spent == 1);
        CHECK(sends(&c) == before + (full ? 0 : 1));
        fnet_stream_abort(&c.s); /* harmless */
        CHECK(conn_step(&c, &g) == 0 && fnet_stream_pending(&c.s) == 0);
        CHECK(full || conn_take(&c) == 5100);
        free(f.data);
        conn_fini(&c);
    }
}

static void
detached_with_output(void)
{
    conn c;
    bool kept;
    foreign f;
    conn_init(&c);
    conn_fill(&c);
    CHECK(write_foreign(&c, &f, 5000, &kept) > 0 && kept);
    fnet_stream_detach(&c.s, false);
    CHECK(conn_reap(&c) == 1 && f.spent == 1);
    CHECK(world_pass(&c.w) == 0);
    free(f.data);
    conn_fini(&c);
}

/* -- errors --------------------------------------------------------------- */

/* After the error nothing is sent, queued or told any more. */
static void
check_dead(conn *c, got *g)
{
    uint64_t before = sends(c);
    bool kept;
    foreign f;
    CHECK(fnet_stream_error(&c->s) == -EPIPE && c->s.out.bytes == 0);
    CHECK(conn_write(c, 10) == -EPIPE);
    CHECK(write_foreign(c, &f, FNET_SEND_NOW, &kept) == -EPIPE && !kept);
    free(f.data);
    CHECK(write_foreign(c, &f, 5000, &kept) == -EPIPE && !kept);
    free(f.data);
    CHECK(fnet_stream_flush(&c->s) == 0);
    fnet_stream_shutdown(&c->s);
    unsigned errors = g->errors;
    CHECK(conn_step(c, g) == 0 && g->errors == errors);
    CHECK(sends(c) == before);
}

static void
an_error_at_once(void)
{
    for (int large = 0; large < 2; large++) {
        conn c;
        got g = {0};
        conn_init(&c);
        CHECK(conn_step(&c, &g) == 0);
        conn_hang_up(&c);
        fnet_shard_begin_turn(&c.w.shard, true);
        CHECK(conn_write(&c, large ? FNET_SEND_NOW : 10) == -EPIPE);
        check_dead(&c, &g);
        CHECK(g.errors == 0); /* the caller has been told */
        conn_fini(&c);
    }
}

static void
an_error_of_the_pass(void)
{
    conn c;
    got g = {0};
    bool kept;
    foreign f;
    conn_init(&c);
    CHECK(conn_step(&c, &g) == 0);
    CHECK(conn_write(&c, 10) == 10);
    CHECK(write_foreign(&c, &f, 5000, &kept) == 5010 && kept);
    conn_hang_up(&c);
    CHECK(conn_step(&c, &g) == 1 && g.errors == 1 && g.error == -EPIPE);
    CHECK(conn_reap(&c) == 1 && f.spent == 1);
    g = (got){0};
    check_dead(&c, &g);
    free(f.data);
    conn_fini(&c);
}

/* One that waits for room hears of the end of its peer. */
static void
an_error_while_waiting_for_room(void)
{
    conn c;
    got g = {0};
    bool kept;
    foreign f;
    conn_init(&c);
    conn_fill(&c);
    CHECK(write_foreign(&c, &f, 5000, &kept) > 0 && kept);
    CHECK(conn_step(&c, &g) == 0);
    conn_hang_up(&c);
    CHECK(conn_step(&c, &g) == 1 && g.errors == 1 && g.error == -EPIPE);
    CHECK(conn_reap(&c) == 1 && f.spent == 1);
    g = (got){0};
    check_dead(&c, &g);
    free(f.data);
    conn_fini(&c);
}

/* The prompter sent it: a write of the same turn hears of it, or else the
 * next pass tells; not both. */
static void
an_error_in_the_turn(void)
{
    for (int hears = 0; hears < 2; hears++) {
        conn c;
        got g = {0};
        conn_init(&c);
        CHECK(conn_step(&c, &g) == 0);
        CHECK(conn_write(&c, 10) == 10);
        conn_hang_up(&c);
        fnet_shard_flush(&c.w.shard);
        CHECK(fnet_stream_error(&c.s) == -EPIPE);
        if (hears) {
            CHECK(conn_write(&c, 10) == -EPIPE);
            CHECK(conn_step(&c, &g) == 0);
        }
        else {
            CHECK(fnet_shard_pass(&c.w.shard, &c.w.batch, FNET_FOREVER) == 0);
            fnet_shard_begin_turn(&c.w.shard, false);
            CHECK(world_only(&c.w, &c.s.source, FNET_WHAT_ERROR, -EPIPE));
        }
        check_dead(&c, &g);
        CHECK(g.errors == 0);
        conn_fini(&c);
    }
}

/* -- without memory ------------------------------------------------------- */

enum { OOM_PIECES = 30 };

/* Sizes for copies into one block, into several, and for references. */
static size_t
oom_size(int i)
{
    const size_t sizes[] = {100, 3000, 40000};
    return sizes[i % 3];
}

/* The bytes that made it are those of the first pieces, whole. */
static bool
ends_between_pieces(size_t bytes)
{
    size_t sum = 0;
    for (int i = 0; i < OOM_PIECES && sum < bytes; i++) {
        sum += oom_size(i);
    }
    return sum == bytes;
}

/* Writes with the n-th allocation failing.  False when none has failed. */
static bool
write_with_failure(long n, bool full)
{
    conn c;
    got g = {0};
    foreign f[OOM_PIECES];
    fnet_piece pieces[OOM_PIECES];
    conn_init(&c);
    if (full) {
        conn_fill(&c);
    }
    size_t before = c.written, total = 0;
    for (int i = 0; i < OOM_PIECES; i++) {
        f[i] = foreign_new(before + total, oom_size(i));
        pieces[i] =
            (fnet_piece){f[i].data, f[i].len, i % 2 ? &f[i] : NULL, false};
        total += f[i].len;
    }
    fnet_mem_fail_after(n);
    ssize_t rc = fnet_stream_write(&c.s, pieces, OOM_PIECES);
    bool failed = fnet_mem_failed();
    fnet_mem_fail_after(-1);
    CHECK(failed ? rc == -ENOMEM : rc >= 0);
    /* What was queued leaves, without another write. */
    for (int i = 0; i < 200; i++) {
        conn_take(&c);
        CHECK(conn_step(&c, &g) == 0);
    }
    CHECK(c.s.out.bytes == 0 && c.taken >= before);
    CHECK(ends_between_pieces(c.taken - before));
    CHECK(failed || c.taken == before + total);
    conn_reap(&c);
    for (int i = 0; i < OOM_PIECES; i++) {
        CHECK(f[i].spent == pieces[i].kept);
        free(f[i].data);
    }
    c.written = c.taken; /* the stream goes on behind the loss */
    CHECK(conn_write(&c, 100) == 100);
    conn_take_all(&c, &g);
    conn_fini(&c);
    return failed;
}

static void
writing_without_memory(void)
{
    for (int full = 0; full < 2; full++) {
        long n = 0;
        while (write_with_failure(n, full)) {
            n++;
        }
        CHECK(n > 10); /* or the test does not test much */
    }
}

int
main(void)
{
    RUN(a_turn_leaves_in_one_call);
    RUN(an_eager_turn_sends_the_first);
    RUN(a_late_turn_sends_at_once);
    RUN(much_is_sent_at_once);
    RUN(flush_sends_at_once);
    RUN(pieces_leave_together);
    RUN(very_many_pieces);
    RUN(partial_sends);
    RUN(references_are_kept_until_sent);
    RUN(news_of_the_low_mark);
    RUN(news_that_is_none);
    RUN(news_of_a_flush);
    RUN(writes_before_the_news);
    RUN(news_of_room);
    RUN(shutdown_after_the_output);
    RUN(dropped_output);
    RUN(aborted_output);
    RUN(detached_with_output);
    RUN(an_error_at_once);
    RUN(an_error_of_the_pass);
    RUN(an_error_while_waiting_for_room);
    RUN(an_error_in_the_turn);
    RUN(writing_without_memory);
    return test_report();
}
