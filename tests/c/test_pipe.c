/* Streams that are no sockets: pipes, terminals, devices. */
#define _GNU_SOURCE
#include "net/pipe.h"

#include "conn.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <termios.h>

/* One end is the stream, the other the peer; both non-blocking. */
static void
attach_end(conn *c, const int fds[2], enum fnet_pipe_end end)
{
    c->written = c->taken = 0;
    c->fd = fds[end == FNET_PIPE_READ ? 0 : 1];
    c->peer = fds[end == FNET_PIPE_READ ? 1 : 0];
    CHECK(fnet_sys_set_nonblocking(c->peer) == 0);
    CHECK(fnet_pipe_attach(&c->s, &c->w.shard, c->fd, c, end) == 0);
    CHECK((fcntl(c->fd, F_GETFL) & O_NONBLOCK) != 0);
}

static void
init_end(conn *c, enum fnet_pipe_end end, int flags)
{
    int fds[2];
    world_init(&c->w);
    CHECK(pipe2(fds, O_CLOEXEC | flags) == 0);
    attach_end(c, fds, end);
}

/* A terminal in raw mode; the stream is its slave. */
static void
init_terminal(conn *c, enum fnet_pipe_end end)
{
    struct termios mode;
    world_init(&c->w);
    int master = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    CHECK(master >= 0 && grantpt(master) == 0 && unlockpt(master) == 0);
    int slave = open(ptsname(master), O_RDWR | O_NOCTTY | O_CLOEXEC);
    CHECK(slave >= 0 && tcgetattr(slave, &mode) == 0);
    cfmakeraw(&mode);
    CHECK(tcsetattr(slave, TCSANOW, &mode) == 0);
    int fds[2] = {end == FNET_PIPE_READ ? slave : master,
                  end == FNET_PIPE_READ ? master : slave};
    attach_end(c, fds, end);
}

static size_t
put(conn *c, size_t at, size_t len)
{
    char data[4096];
    size_t done = 0;
    while (done < len) {
        size_t n = len - done < sizeof(data) ? len - done : sizeof(data);
        world_fill(data, at + done, n);
        ssize_t sent = write(c->peer, data, n);
        if (sent <= 0) {
            break;
        }
        done += (size_t)sent;
    }
    return done;
}

static size_t
take(conn *c)
{
    char data[16384];
    ssize_t n;
    size_t done = 0;
    while ((n = read(c->peer, data, sizeof(data))) > 0) {
        CHECK(world_matches(data, c->taken, (size_t)n));
        c->taken += (size_t)n;
        done += (size_t)n;
    }
    return done;
}

/* -- reading -------------------------------------------------------------- */

static void
one_read_per_event(void)
{
    conn c;
    got g = {0};
    init_end(&c, FNET_PIPE_READ, 0);
    CHECK(c.s.source.ops->kind == FNET_KIND_STREAM);
    fnet_stream_want(&c.s, true);
    for (unsigned i = 1; i <= 5; i++) {
        CHECK(put(&c, g.bytes, 1000) == 1000);
        CHECK(conn_step(&c, &g) == 1 && g.datas == i);
        CHECK(conn_step(&c, &g) == 0);
        CHECK(c.w.shard.stats.reads == i); /* none that says EAGAIN */
    }
    conn_hang_up(&c);
    conn_until(&c, &g, 5000, 1);
    CHECK(g.eofs == 1);
    CHECK(conn_step(&c, &g) == 0);
    conn_fini(&c);
}

/* Each read of a pipe in packet mode is one packet, however much waits. */
static void
packets(void)
{
    conn c;
    got g = {0};
    init_end(&c, FNET_PIPE_READ, O_DIRECT);
    for (size_t i = 0; i < 10; i++) {
        CHECK(put(&c, i * 100, 100) == 100);
    }
    fnet_stream_want(&c.s, true);
    for (unsigned i = 1; i <= 10; i++) {
        CHECK(conn_step(&c, &g) == 1 && g.datas == i && g.bytes == i * 100);
    }
    CHECK(conn_step(&c, &g) == 0);
    conn_fini(&c);
}

/* With VMIN = 0 read() says 0 when there is nothing: that is no end. */
static void
a_terminal_that_does_not_block(void)
{
    conn c;
    got g = {0};
    struct termios mode;
    init_terminal(&c, FNET_PIPE_READ);
    CHECK(tcgetattr(c.fd, &mode) == 0);
    mode.c_cc[VMIN] = mode.c_cc[VTIME] = 0;
    CHECK(tcsetattr(c.fd, TCSANOW, &mode) == 0);
    char byte;
    CHECK(read(c.fd, &byte, 1) == 0);
    fnet_stream_want(&c.s, true);
    for (unsigned i = 1; i <= 3; i++) {
        CHECK(put(&c, g.bytes, 10) == 10);
        conn_until(&c, &g, i * 10, 0);
        CHECK(conn_step(&c, &g) == 0);
    }
    /* Paused with something to read that is dropped before it goes on. */
    fnet_stream_want(&c.s, false);
    CHECK(put(&c, g.bytes, 10) == 10);
    while (c.s.source.events != FNET_EVENTS_QUIET) {
        CHECK(fnet_shard_pass(&c.w.shard, &c.w.batch,
                              fnet_clock_ns() + FNET_MSEC) == 0);
    }
    fnet_shard_begin_turn(&c.w.shard, false);
    CHECK(tcflush(c.fd, TCIFLUSH) == 0);
    fnet_stream_want(&c.s, true);
    CHECK(conn_step(&c, &g) == 0);
    conn_fini(&c);
}

static void
a_terminal_that_hangs_up(void)
{
    conn c;
    got g = {0};
    init_terminal(&c, FNET_PIPE_READ);
    fnet_stream_want(&c.s, true);
    CHECK(put(&c, 0, 10) == 10);
    conn_until(&c, &g, 10, 0);
    conn_hang_up(&c);
    conn_until(&c, &g, 10, 1);
    conn_fini(&c);
}

/* What nobody wants is switched off by its first event. */
static void
paused(void)
{
    conn c;
    got g = {0};
    init_end(&c, FNET_PIPE_READ, 0);
    CHECK(put(&c, 0, 100) == 100);
    CHECK(conn_step(&c, &g) == 0);
    CHECK(c.s.source.events == FNET_EVENTS_QUIET);
    CHECK(c.w.shard.stats.disarmed == 1);
    uint64_t events = c.w.shard.stats.events;
    CHECK(put(&c, 100, 100) == 100);
    CHECK(conn_step(&c, &g) == 0 && c.w.shard.stats.events == events);
    fnet_stream_want(&c.s, true);
    CHECK(conn_step(&c, &g) == 1 && g.bytes == 200);
    fnet_stream_want(&c.s, false);
    conn_hang_up(&c);
    CHECK(conn_step(&c, &g) == 0);
    CHECK(conn_step(&c, &g) == 0);
    fnet_stream_want(&c.s, true);
    conn_until(&c, &g, 200, 1);
    CHECK(g.eofs == 1);
    conn_fini(&c);
}

/* A hang-up is reported whatever one asks for: it must not come for ever. */
static void
the_end_while_paused(void)
{
    for (int early = 0; early < 2; early++) {
        conn c;
        got g = {0};
        init_end(&c, FNET_PIPE_READ, 0);
        fnet_stream_want(&c.s, true);
        fnet_stream_want(&c.s, false);
        CHECK(put(&c, 0, 10) == 10);
        if (early) {
            CHECK(conn_step(&c, &g) == 0);
        }
        conn_hang_up(&c);
        uint64_t polls = c.w.shard.stats.polls;
        CHECK(fnet_shard_pass(&c.w.shard, &c.w.batch,
                              fnet_clock_ns() + 30 * FNET_MSEC) == 0);
        fnet_shard_begin_turn(&c.w.shard, false);
        CHECK(c.w.shard.stats.polls - polls <= 4);
        fnet_stream_want(&c.s, true);
        conn_until(&c, &g, 10, 1);
        CHECK(g.eofs == 1);
        /* Nor after it was taken. */
        polls = c.w.shard.stats.polls;
        CHECK(fnet_shard_pass(&c.w.shard, &c.w.batch,
                              fnet_clock_ns() + 30 * FNET_MSEC) == 0);
        fnet_shard_begin_turn(&c.w.shard, false);
        CHECK(c.w.shard.stats.polls - polls <= 4);
        conn_fini(&c);
    }
}

static void
an_end_that_was_not_taken_comes_again(void)
{
    conn c;
    got g = {0};
    init_end(&c, FNET_PIPE_READ, 0);
    fnet_stream_want(&c.s, true);
    conn_hang_up(&c);
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

static void
direct_reads(void)
{
    conn c;
    got g = {0};
    char data[100];
    init_end(&c, FNET_PIPE_READ, 0);
    fnet_stream_set_direct(&c.s, true);
    fnet_stream_want(&c.s, true);
    CHECK(put(&c, 0, 150) == 150);
    for (unsigned i = 1; i <= 2; i++) {
        CHECK(conn_step(&c, &g) == 1 && g.readables == i);
        ssize_t n = fnet_stream_recv(&c.s, data, sizeof(data));
        CHECK(n == (i == 1 ? 100 : 50));
        CHECK(world_matches(data, (i - 1) * 100, (size_t)n));
        fnet_stream_taken(&c.s);
    }
    CHECK(conn_step(&c, &g) == 0);
    conn_fini(&c);
}

static void
much_at_a_time(void)
{
    conn c;
    got g = {0};
    size_t total = 0;
    init_end(&c, FNET_PIPE_READ, 0);
    fnet_stream_want(&c.s, true);
    while (total < MIB) {
        size_t n = put(&c, total, 64 * KIB);
        total += n;
        conn_until(&c, &g, total, 0);
    }
    CHECK(g.datas < 64);
    conn_fini(&c);
}

/* -- writing -------------------------------------------------------------- */

static void
pieces(void)
{
    conn c;
    got g = {0};
    init_end(&c, FNET_PIPE_WRITE, 0);
    fnet_stream_want(&c.s, true);
    CHECK(conn_write(&c, 100) == 100); /* deferred */
    CHECK(conn_write(&c, 200) == 300);
    CHECK(take(&c) == 0);
    CHECK(conn_step(&c, &g) == 0);
    CHECK(take(&c) == 300 && c.w.shard.stats.sends == 1);
    /* More than one segment: writev(). */
    fnet_piece two[2];
    foreign big[2];
    for (int i = 0; i < 2; i++) {
        big[i] = (foreign){.data = malloc(10000), .len = 10000};
        CHECK(big[i].data != NULL);
        world_fill(big[i].data, c.written, big[i].len);
        c.written += big[i].len;
        two[i] = (fnet_piece){
            .data = big[i].data, .len = big[i].len, .foreign = &big[i]};
    }
    CHECK(fnet_stream_write(&c.s, two, 2) == 20000);
    CHECK(conn_step(&c, &g) == 0 && c.w.shard.stats.sends == 2);
    CHECK(take(&c) == 20000 && conn_reap(&c) == 2);
    free(big[0].data);
    free(big[1].data);
    conn_fini(&c);
}

static void
a_full_pipe(void)
{
    conn c;
    got g = {0};
    init_end(&c, FNET_PIPE_WRITE, 0);
    fnet_stream_want(&c.s, true);
    conn_fill(&c);
    CHECK(conn_write(&c, 100000) > 0);
    fnet_stream_notify(&c.s, 0);
    CHECK(conn_step(&c, &g) == 0 && g.outputs == 0);
    int64_t deadline = fnet_clock_ns() + WORLD_PATIENCE;
    while (c.taken < c.written && fnet_clock_ns() < deadline) {
        take(&c);
        conn_step(&c, &g);
    }
    CHECK(c.taken == c.written && g.outputs == 1);
    conn_fini(&c);
}

static void
the_reader_goes(void)
{
    for (int pending = 0; pending < 2; pending++) {
        conn c;
        got g = {0};
        init_end(&c, FNET_PIPE_WRITE, 0);
        fnet_stream_want(&c.s, true);
        if (pending) {
            conn_fill(&c);
        }
        CHECK(conn_step(&c, &g) == 0);
        conn_hang_up(&c);
        conn_until(&c, &g, 0, 1);
        CHECK(g.eofs == (pending ? 0 : 1));
        CHECK(g.error == (pending ? -EPIPE : 0));
        CHECK(conn_step(&c, &g) == 0);
        conn_fini(&c);
    }
}

/* It may have gone before anybody asks. */
static void
the_reader_went_early(void)
{
    conn c;
    got g = {0};
    init_end(&c, FNET_PIPE_WRITE, 0);
    conn_hang_up(&c);
    CHECK(conn_step(&c, &g) == 0);
    fnet_stream_want(&c.s, true);
    conn_until(&c, &g, 0, 1);
    CHECK(g.eofs == 1);
    conn_fini(&c);
}

/* A socket's peer that sends is no peer that goes. */
static void
a_socket_to_write_to(void)
{
    conn c;
    got g = {0};
    int fds[2];
    world_init(&c.w);
    world_pair(fds);
    attach_end(&c, fds, FNET_PIPE_WRITE);
    fnet_stream_want(&c.s, true);
    CHECK(put(&c, 0, 100) == 100);
    CHECK(conn_step(&c, &g) == 0);
    CHECK(conn_write(&c, 100) == 100);
    CHECK(conn_step(&c, &g) == 0 && take(&c) == 100);
    CHECK(shutdown(c.peer, SHUT_WR) == 0);
    conn_until(&c, &g, 0, 1);
    CHECK(g.eofs == 1);
    conn_fini(&c);
}

/* A terminal tells no writer that it has gone but by the next write. */
static void
a_terminal_to_write_to(void)
{
    conn c;
    got g = {0};
    init_terminal(&c, FNET_PIPE_WRITE);
    fnet_stream_want(&c.s, true);
    CHECK(conn_write(&c, 100) == 100);
    int64_t deadline = fnet_clock_ns() + WORLD_PATIENCE;
    while (c.taken < c.written && fnet_clock_ns() < deadline) {
        conn_step(&c, &g);
        take(&c);
    }
    CHECK(c.taken == 100);
    conn_hang_up(&c);
    CHECK(conn_step(&c, &g) == 0 && conn_step(&c, &g) == 0);
    CHECK(conn_write(&c, 100) == 100);
    conn_until(&c, &g, 0, 1);
    CHECK(g.errors == 1);
    conn_fini(&c);
}

/* -- what epoll does not take --------------------------------------------- */

static void
attach_device(conn *c, const char *name, enum fnet_pipe_end end)
{
    world_init(&c->w);
    int fds[2] = {open(name, O_RDWR | O_CLOEXEC),
                  open(name, O_RDWR | O_CLOEXEC)};
    CHECK(fds[0] >= 0 && fds[1] >= 0);
    attach_end(c, fds, end);
}

static void
devices_that_are_always_ready(void)
{
    conn c;
    got g = {0};
    attach_device(&c, "/dev/null", FNET_PIPE_WRITE);
    CHECK(c.s.always);
    fnet_stream_want(&c.s, true);
    CHECK(conn_write(&c, 100) == 100);
    CHECK(conn_step(&c, &g) == 0);
    CHECK(fnet_stream_pending(&c.s) == 0);
    conn_fini(&c);

    attach_device(&c, "/dev/null", FNET_PIPE_READ);
    CHECK(conn_step(&c, &g) == 0);
    fnet_stream_want(&c.s, true);
    conn_until(&c, &g, 0, 1);
    CHECK(g.eofs == 1);
    fnet_stream_want(&c.s, false);
    conn_fini(&c);

    attach_device(&c, "/dev/zero", FNET_PIPE_READ);
    for (int i = 0; i < 3; i++) {
        fnet_stream_want(&c.s, true);
        CHECK(world_pass(&c.w) == 1 && c.w.batch.items[0].len > 4096);
        CHECK(world_pass(&c.w) == 1);
        fnet_stream_want(&c.s, false);
        CHECK(world_pass(&c.w) == 0);
    }
    conn_fini(&c);
}

static void
what_is_no_pipe(void)
{
    world w;
    fnet_stream s;
    world_init(&w);
    int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    CHECK(fd >= 0);
    CHECK(fnet_pipe_attach(&s, &w.shard, fd, NULL, FNET_PIPE_READ) == -EINVAL);
    CHECK(fnet_pipe_attach(&s, &w.shard, -1, NULL, FNET_PIPE_READ) == -EBADF);
    CHECK(!fnet_pipe_takes(S_IFDIR) && !fnet_pipe_takes(S_IFREG));
    CHECK(fnet_pipe_takes(S_IFIFO) && fnet_pipe_takes(S_IFSOCK) &&
          fnet_pipe_takes(S_IFCHR));
    CHECK(w.shard.poller.attached == 0);
    close(fd);
    world_fini(&w);
}

int
main(void)
{
    signal(SIGPIPE, SIG_IGN); /* as Python does */
    RUN(one_read_per_event);
    RUN(packets);
    RUN(a_terminal_that_does_not_block);
    RUN(a_terminal_that_hangs_up);
    RUN(paused);
    RUN(the_end_while_paused);
    RUN(an_end_that_was_not_taken_comes_again);
    RUN(direct_reads);
    RUN(much_at_a_time);
    RUN(pieces);
    RUN(a_full_pipe);
    RUN(the_reader_goes);
    RUN(the_reader_went_early);
    RUN(a_socket_to_write_to);
    RUN(a_terminal_to_write_to);
    RUN(devices_that_are_always_ready);
    RUN(what_is_no_pipe);
    return test_report();
}
