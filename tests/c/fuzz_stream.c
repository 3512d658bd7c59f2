/* fuzz_stream: takes its input for a program of operations on a stream and its
 * peer, and checks after each pass what must hold then, and in the end that
 * every byte has arrived in its place.
 *
 * A libFuzzer target (`make fuzz`); test_fuzz.c runs it on inputs of its own.
 * Over a Unix socket pair nothing is left to chance, so that an input that
 * fails does so each time. */
#include "net/stream.h"

#include "world.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* More than the socket takes, and little enough to be fast. */
#define UNDERWAY_MAX (512 * KIB)
#define LANDING_SIZE (32 * KIB)

typedef struct model {
    world w;
    fnet_stream s;
    int fd, peer; /* peer: -1 when it is gone */
    const uint8_t *program, *begin, *end;

    /* output */
    size_t written, taken;
    bool claims;  /* what arrives is what was written */
    bool shut;    /* the stream was told that this is all */
    bool sealed;  /* the socket was shut down by a stream before this one */
    bool dropped; /* so no news of the output is promised */
    bool failed;  /* an error of it was reported */
    bool notify, room;
    size_t low;
    long kept, spent;

    /* input */
    size_t sent, read;
    bool peer_shut;
    bool ended;  /* EOF or ERROR was posted, or received */
    bool posted; /* READABLE, not yet taken */
} model;

static char landing_place[LANDING_SIZE];

static _Noreturn void
give_up(const model *m, int line, const char *what)
{
    fprintf(stderr, "fuzz_stream.c:%d: %s\nafter", line, what);
    for (const uint8_t *byte = m->begin; byte < m->program; byte++) {
        fprintf(stderr, " %u", *byte);
    }
    fprintf(stderr, "\n");
    abort();
}

#define REQUIRE(m, expr) ((expr) ? (void)0 : give_up((m), __LINE__, #expr))

static unsigned
next(model *m)
{
    return m->program < m->end ? *m->program++ : 0;
}

/* A size of any magnitude up to 128 KiB. */
static size_t
next_size(model *m)
{
    unsigned mantissa = next(m);
    unsigned shift = next(m) % 10;
    return ((size_t)mantissa << shift) + 1;
}

static bool
is_lost(int error)
{
    return error == -EPIPE || error == -ECONNRESET;
}

/* -- output --------------------------------------------------------------- */

static bool
may_fail(const model *m)
{
    return m->peer < 0 || m->sealed;
}

static void
reap(model *m)
{
    fnet_shard *shard = &m->w.shard;
    void *memory;
    fnet_lock_acquire(&shard->output);
    while ((memory = fnet_chain_pop_spent(&shard->spent, shard->cache)) !=
           NULL) {
        free(memory); /* which tells a sanitizer */
        m->spent++;
    }
    fnet_lock_release(&shard->output);
}

/* Writes `n` pieces of `len` bytes; every `mod`-th is foreign. */
static void
write_pieces(model *m, size_t n, size_t len, size_t mod)
{
    enum { MOST = 100 };
    fnet_piece pieces[MOST];
    if (m->written - m->taken + n * len > UNDERWAY_MAX) {
        return;
    }
    for (size_t i = 0; i < n; i++) {
        char *data = malloc(len);
        REQUIRE(m, data != NULL);
        world_fill(data, m->written + i * len, len);
        void *foreign = i % mod == 0 ? data : NULL;
        pieces[i] = (fnet_piece){data, len, foreign, false};
    }
    ssize_t rc = fnet_stream_write(&m->s, pieces, n);
    for (size_t i = 0; i < n; i++) {
        if (pieces[i].kept) {
            m->kept++;
        }
        else {
            free((void *)(uintptr_t)pieces[i].data);
        }
    }
    if (rc == -ENOMEM) {
        REQUIRE(m, fnet_mem_failed());
        m->claims = false;
    }
    else if (rc < 0) {
        REQUIRE(m, may_fail(m) && is_lost((int)rc));
        REQUIRE(m, fnet_stream_error(&m->s) == rc);
        m->failed = true;
    }
    else {
        REQUIRE(m, (size_t)rc == m->s.out.bytes);
        m->written += m->shut ? 0 : n * len;
    }
}

/* Sends past the stream, as sendfile() does, until there is no room. */
static void
send_by_hand(model *m)
{
    if (m->s.out.bytes > 0 || m->shut || m->peer < 0 || !m->s.writable) {
        return;
    }
    m->written += world_send(m->fd, m->written, SIZE_MAX);
    fnet_stream_notify_room(&m->s);
    m->room = true;
}

static void
peer_takes(model *m, size_t len)
{
    char data[4096];
    if (m->peer < 0) {
        return;
    }
    if (m->claims) {
        m->taken += world_take(m->peer, m->taken, len);
        return;
    }
    ssize_t n = 1;
    while (len > 0 && n > 0) {
        size_t most = len < sizeof(data) ? len : sizeof(data);
        n = recv(m->peer, data, most, MSG_DONTWAIT);
        len -= n > 0 ? (size_t)n : 0;
    }
}

/* -- input ---------------------------------------------------------------- */

static void
peer_sends(model *m, size_t len)
{
    if (m->peer >= 0 && !m->peer_shut &&
        m->sent - m->read + len < UNDERWAY_MAX) {
        m->sent += world_send(m->peer, m->sent, len);
    }
}

/* One byte, and a descriptor, which nobody takes: not of a socket of these,
 * which would stay open in its queue. */
static void
peer_passes(model *m)
{
    char byte = world_byte(m->sent);
    int passed = STDERR_FILENO;
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(sizeof(int))];
    } control;
    struct iovec iov = {.iov_base = &byte, .iov_len = 1};
    struct msghdr msg = {.msg_iov = &iov,
                         .msg_iovlen = 1,
                         .msg_control = &control,
                         .msg_controllen = sizeof(control)};
    if (m->peer < 0 || m->peer_shut) {
        return;
    }
    memset(&control, 0, sizeof(control));
    struct cmsghdr *header = CMSG_FIRSTHDR(&msg);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(header), &passed, sizeof(int));
    m->sent += fnet_sys_sendmsg(m->peer, &msg) == 1;
}

static void
peer_leaves(model *m)
{
    if (m->peer >= 0) {
        close(m->peer);
        m->peer = -1;
        m->peer_shut = true;
        m->claims = false;
    }
}

static void
take_input(model *m, const char *data, size_t len)
{
    REQUIRE(m, len > 0 && !m->ended);
    REQUIRE(m, world_matches(data, m->read, len));
    m->read += len;
}

/* Of a stream that the layer above reads. */
static void
receive(model *m, size_t len)
{
    static char data[256 * KIB];
    if (!m->posted || !m->s.direct || m->ended) {
        return;
    }
    ssize_t n = fnet_stream_recv(&m->s, data, len);
    if (n > 0) {
        take_input(m, data, (size_t)n);
    }
    else if (n != -EAGAIN) {
        REQUIRE(m, n == 0 ? m->peer_shut : m->peer < 0 && is_lost((int)n));
        REQUIRE(m, m->read == m->sent);
        m->ended = true;
    }
    m->posted = false;
    fnet_stream_taken(&m->s);
}

/* -- passes --------------------------------------------------------------- */

static void
deliver_error(model *m, const fnet_completion *item)
{
    REQUIRE(m, is_lost(item->result));
    if (m->s.error != 0 && !m->failed) {
        REQUIRE(m, may_fail(m));
        m->failed = true;
        m->notify = m->room = false; /* told together */
    }
    else {
        REQUIRE(m, m->peer < 0);
        REQUIRE(m, !m->ended && m->read == m->sent);
        m->ended = true;
    }
}

static void
deliver(model *m, const fnet_completion *item)
{
    REQUIRE(m, item->source == &m->s.source && item->tag == m->s.source.tag);
    switch (item->what) {
    case FNET_WHAT_DATA:
        REQUIRE(m, m->s.wanted && !m->s.direct);
        REQUIRE(m, item->landing == NULL || item->data == landing_place);
        take_input(m, item->data, item->len);
        break;
    case FNET_WHAT_READABLE:
        REQUIRE(m, m->s.wanted && m->s.direct && !m->posted && !m->ended);
        m->posted = true;
        break;
    case FNET_WHAT_EOF:
        REQUIRE(m, m->peer_shut && m->read == m->sent && !m->ended);
        m->ended = true;
        break;
    case FNET_WHAT_OUTPUT:
        REQUIRE(m, m->notify || m->room);
        REQUIRE(m, m->room || m->s.out.bytes <= m->low);
        m->notify = m->room = false;
        break;
    default:
        REQUIRE(m, item->what == FNET_WHAT_ERROR);
        deliver_error(m, item);
    }
}

static void
pass(model *m, unsigned flags)
{
    fnet_shard *shard = &m->w.shard;
    if ((flags & 1) != 0) {
        shard->landings[0] =
            (fnet_landing){m, landing_place, sizeof(landing_place)};
    }
    if ((flags & 2) != 0) {
        fnet_mem_fail_after(0);
    }
    REQUIRE(m, fnet_shard_pass(shard, &m->w.batch, FNET_NO_WAIT) == 0);
    fnet_mem_fail_after(-1);
    fnet_shard_begin_turn(shard, (flags & 4) != 0);
    for (unsigned i = 0; i < m->w.batch.count; i++) {
        deliver(m, &m->w.batch.items[i]);
    }
    /* No output is left lying, nor any input that is wanted. */
    bool listed = !fnet_list_empty(&m->s.source.ready);
    REQUIRE(m, m->s.out.bytes == 0 || !m->s.writable);
    REQUIRE(m, fnet_list_empty(&m->s.source.dirty));
    REQUIRE(m, !m->s.wanted || m->read == m->sent || listed || m->posted);
    REQUIRE(m, !m->notify || m->s.out.bytes > m->low || listed || m->dropped);
    reap(m);
}

static void
attach(model *m)
{
    REQUIRE(m, fnet_stream_attach(&m->s, &m->w.shard, m->fd, m, true) == 0);
    m->shut = m->notify = m->room = m->failed = false;
    m->ended = m->posted = false;
}

/* Another stream takes the descriptor, and what was not sent is lost. */
static void
change_hands(model *m)
{
    m->claims = m->claims && m->s.out.bytes == 0 && !m->shut;
    m->sealed = m->sealed || m->s.was_shut;
    fnet_stream_detach(&m->s, false);
    attach(m);
}

/* -- operations ----------------------------------------------------------- */

static void
write_one(model *m)
{
    size_t foreign = next(m) % 2;
    write_pieces(m, 1, next_size(m), foreign ? 1 : 2);
}

static void
write_many(model *m)
{
    size_t n = next(m) % 100;
    size_t len = next(m) * 16 + 1;
    write_pieces(m, n, len, next(m) % 5 + 1);
}

static void
write_without_memory(model *m)
{
    if (next(m) % 4 == 0) {
        size_t n = next(m) % 100;
        size_t len = next(m) * 16 + 1;
        fnet_mem_fail_after((long)(next(m) % 16));
        write_pieces(m, n, len, 3);
        fnet_mem_fail_after(-1);
    }
}

static void
take_some(model *m)
{
    peer_takes(m, next_size(m));
}

static void
take_all(model *m)
{
    peer_takes(m, SIZE_MAX);
}

static void
feed(model *m)
{
    peer_sends(m, next_size(m));
}

static void
want(model *m)
{
    fnet_stream_want(&m->s, next(m) % 3 > 0);
}

/* Input that nobody wants, until it is switched off. */
static void
be_quiet(model *m)
{
    fnet_stream_want(&m->s, false);
    for (int i = 0; i <= FNET_QUIET_EVENTS; i++) {
        peer_sends(m, 1);
        pass(m, 0);
    }
}

static void
turn(model *m)
{
    pass(m, next(m));
}

static void
set_direct(model *m)
{
    fnet_stream_set_direct(&m->s, next(m) % 2);
    m->posted = false;
}

static void
receive_some(model *m)
{
    receive(m, next_size(m));
}

static void
flush(model *m)
{
    unsigned flags = next(m);
    if ((flags & 1) != 0) {
        fnet_shard_flush(&m->w.shard); /* as the prompter does */
    }
    else {
        fnet_stream_flush(&m->s);
    }
    m->w.shard.late = (flags & 6) == 0;
}

static void
notify(model *m)
{
    m->low = next_size(m) - 1;
    m->notify = true;
    fnet_stream_notify(&m->s, m->low);
}

static void
untake_the_end(model *m)
{
    if (m->ended && m->s.error == 0 && m->peer >= 0) {
        m->ended = false;
        fnet_stream_untake_eof(&m->s);
        fnet_stream_want(&m->s, m->s.wanted);
    }
}

/* What there is little to see after. */
static void
end_something(model *m)
{
    switch (next(m) % 32) {
    case 0:
        fnet_stream_drop(&m->s);
        m->dropped = true;
        m->claims = false;
        break;
    case 1:
        fnet_stream_shutdown(&m->s);
        m->shut = true;
        break;
    case 2:
        peer_leaves(m);
        break;
    case 3:
        m->peer_shut = true;
        (void)fnet_sys_shutdown(m->peer, SHUT_WR);
        break;
    case 4:
        change_hands(m);
        break;
    default:
        break;
    }
}

/* Some of them more often than others. */
static void (*const operations[])(model *) = {
    write_one,      write_one,    write_many,    write_without_memory,
    turn,           turn,         turn,          take_some,
    take_some,      take_all,     feed,          feed,
    want,           want,         be_quiet,      peer_passes,
    flush,          notify,       send_by_hand,  set_direct,
    untake_the_end, receive_some, end_something,
};

/* -- the whole ------------------------------------------------------------ */

static bool
output_is_settled(const model *m)
{
    return (!m->claims || m->taken == m->written) && m->s.out.bytes == 0;
}

static bool
input_is_settled(const model *m)
{
    return m->read == m->sent && m->ended == m->peer_shut;
}

/* Everybody takes what there is: it all arrives, the output whether the input
 * is wanted or not. */
static void
settle(model *m)
{
    for (int i = 0; i < 1000 && !output_is_settled(m); i++) {
        peer_takes(m, SIZE_MAX);
        pass(m, 0);
    }
    REQUIRE(m, output_is_settled(m));
    REQUIRE(m, !m->shut || !m->claims || world_at_end(m->peer));
    fnet_stream_set_direct(&m->s, false);
    m->posted = false;
    fnet_stream_want(&m->s, true);
    pass(m, 0);
    peer_sends(m, 1);
    for (int i = 0; i < 1000 && !input_is_settled(m); i++) {
        pass(m, 0);
    }
    REQUIRE(m, input_is_settled(m));
    pass(m, 0);
    pass(m, 0);
    REQUIRE(m, m->w.batch.count == 0);
}

static void
run(model *m)
{
    int ends[2];
    world_init(&m->w);
    world_pair(ends);
    m->fd = ends[0];
    m->peer = ends[1];
    /* Little room, so that sends are partial. */
    (void)fnet_sys_set_int(m->fd, SOL_SOCKET, SO_SNDBUF,
                           (int)(next(m) % 8) * 8192);
    m->w.shard.defer = next(m) % 8 != 0;
    attach(m);
    while (m->program < m->end) {
        operations[next(m) % FNET_COUNTOF(operations)](m);
    }
    settle(m);
    fnet_stream_detach(&m->s, true);
    reap(m);
    REQUIRE(m, m->spent == m->kept);
    close(m->fd);
    if (m->peer >= 0) {
        close(m->peer);
    }
    world_fini(&m->w);
    REQUIRE(m, atomic_load(&test_broken) == 0);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    long live = fnet_mem_live();
    model m = {.program = data, .begin = data, .end = data + size};
    m.claims = true;
    run(&m);
    REQUIRE(&m, fnet_mem_live() == live);
    return 0;
}
