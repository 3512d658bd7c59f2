#include "net/dgram.h"

#include <errno.h>
#include <string.h>

/* Errors of a socket in a row, without a datagram between them, after which
 * an event must come before it is read again. */
#define MAX_REFUSED 16
/* Reads in a row that got several datagrams, after which the socket leaves the
 * epoll set until a read gets none: see heat(). */
#define HOT_STREAK 8

static fnet_dgram *
dgram_of(fnet_source *source)
{
    return fnet_container_of(source, fnet_dgram, source);
}

/* -- output, with the lock held ------------------------------------------- */

/* Output that waits for room needs its edge; while there is room each
 * datagram that leaves the machine or reaches its reader would be one. */
static void
wait_for_room_locked(fnet_dgram *dgram)
{
    fnet_source *source = &dgram->source;

    dgram->writable = false;
    if ((dgram->flags & FNET_DGRAM_NO_EDGE) != 0) {
        dgram->stuck = true;
    }
    else if ((source->events & (uint32_t)EPOLLOUT) == 0) {
        (void)fnet_poller_modify(&dgram->shard->poller, source,
                                 source->events | FNET_EVENTS_QUIET |
                                     (uint32_t)EPOLLOUT);
    }
}

static void
flush_locked(fnet_dgram *dgram)
{
    fnet_shard *shard = dgram->shard;

    while (dgram->writable && dgram->out.count > 0 &&
           dgram->nerrors < FNET_DGRAM_ERRORS) {
        size_t before = dgram->out.chain.bytes;
        shard->stats.sends++;
        int sent = fnet_outbox_send(&dgram->out, dgram->source.fd,
                                    shard->cache, &shard->spent);
        if (sent == -EAGAIN) {
            wait_for_room_locked(dgram);
        }
        else if (sent < 0) {
            dgram->errors[dgram->nerrors++] = sent;
        }
        else {
            shard->stats.bytes_sent += before - dgram->out.chain.bytes;
        }
    }
}

static void
drop_locked(fnet_dgram *dgram)
{
    if (dgram->out.count > 0) {
        fnet_outbox_consume(&dgram->out, dgram->shard->cache, dgram->out.count,
                            &dgram->shard->spent);
    }
    fnet_list_remove(&dgram->source.dirty);
}

static bool
is_low(const fnet_dgram *dgram)
{
    return dgram->notify &&
           (dgram->low == 0 ? dgram->out.count == 0
                            : fnet_outbox_bytes(&dgram->out) <= dgram->low);
}

static bool
has_report(const fnet_dgram *dgram)
{
    return dgram->nerrors > 0 || dgram->stuck || is_low(dgram);
}

/* -- what the shard calls ------------------------------------------------- */

static void
dgram_flush(fnet_shard *shard, fnet_source *source)
{
    fnet_dgram *dgram = dgram_of(source);

    flush_locked(dgram);
    if (has_report(dgram)) {
        if (shard->phase != FNET_PHASE_TURN) {
            fnet_shard_make_ready(shard, source);
        }
        else {
            /* The prompter: the pass must come by and report. */
            fnet_list_push(&shard->dirty, &source->dirty);
        }
    }
}

/* What the socket is registered for while input is wanted. */
static uint32_t
wanted_events(const fnet_dgram *dgram)
{
    uint32_t events = FNET_EVENTS_EDGE;
    if (dgram->writable || (dgram->flags & FNET_DGRAM_NO_EDGE) != 0) {
        events &= ~(uint32_t)EPOLLOUT;
    }
    return events;
}

static void
disarm(fnet_dgram *dgram)
{
    uint32_t events =
        FNET_EVENTS_QUIET | (wanted_events(dgram) & (uint32_t)EPOLLOUT);
    if (fnet_poller_modify(&dgram->shard->poller, &dgram->source, events) ==
        0) {
        dgram->shard->stats.disarmed++;
    }
}

/* Notes input; true if somebody wants it. */
static bool
input_event(fnet_dgram *dgram, uint32_t events)
{
    if ((events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) == 0) {
        return false;
    }
    dgram->readable = true;
    dgram->refused = 0;
    if ((events & EPOLLERR) != 0) {
        dgram->careful = true;
    }
    if (dgram->wanted) {
        dgram->quiet = 0;
        return true;
    }
    if (dgram->quiet < FNET_QUIET_EVENTS) {
        dgram->quiet++;
    }
    else if ((dgram->source.events & (uint32_t)EPOLLIN) != 0) {
        disarm(dgram);
    }
    return false;
}

static bool
dgram_event(fnet_shard *shard, fnet_source *source, uint32_t events)
{
    fnet_dgram *dgram = dgram_of(source);
    bool wanted = input_event(dgram, events);

    if ((events & (EPOLLOUT | EPOLLHUP | EPOLLERR)) != 0 && !dgram->writable &&
        !dgram->stuck) {
        dgram->writable = true;
        flush_locked(dgram);
        wanted = wanted || has_report(dgram);
    }
    if ((source->events & (uint32_t)EPOLLOUT) != 0 && dgram->writable) {
        (void)fnet_poller_modify(&shard->poller, source,
                                 source->events & ~(uint32_t)EPOLLOUT);
    }
    return wanted;
}

/* Datagrams to ask for: as many as fill the batch, if they are as long as
 * they were lately. */
static unsigned
how_many(const fnet_dgram *dgram, const fnet_batch *batch)
{
    size_t room = FNET_BATCH_BYTES - batch->bytes;
    size_t n = dgram->usual == 0 ? FNET_TRAY_SLOTS : room / dgram->usual + 1;

    return n < FNET_TRAY_SLOTS ? (unsigned)n : FNET_TRAY_SLOTS;
}

static void
post_datagrams(fnet_dgram *dgram, fnet_batch *batch, struct mmsghdr *headers,
               int n)
{
    size_t bytes = 0;

    for (int i = 0; i < n; i++) {
        bytes += headers[i].msg_len;
    }
    dgram->usual = (uint32_t)(bytes / (unsigned)n);
    fnet_completion *item =
        fnet_batch_push(batch, &dgram->source, FNET_WHAT_DATAGRAMS, n);
    item->data = headers;
    item->len = bytes;
    batch->bytes += bytes;
    dgram->shard->stats.bytes_read += bytes;
}

/* Input that comes faster than it is taken needs no events, and each costs
 * dearly: the kernel calls epoll for each datagram that comes or, whatever it
 * was asked to report, leaves (2.60 us to send one over the loopback
 * interface, 2.48 us with the socket out of the set).  So it leaves the set,
 * and is read in every pass until there is nothing to read. */
static void
heat(fnet_dgram *dgram)
{
    fnet_source *source = &dgram->source;

    if (dgram->writable &&
        fnet_sys_epoll_ctl(dgram->shard->poller.epfd, EPOLL_CTL_DEL,
                           source->fd, 0, 0) == 0) {
        source->events = 0;
        dgram->hot = true;
    }
}

/* Back into the set, which tells of what has come since the last read. */
static void
cool(fnet_dgram *dgram)
{
    dgram->hot = false;
    (void)fnet_poller_modify(&dgram->shard->poller, &dgram->source,
                             wanted_events(dgram));
}

/* After a read that got `got` of at most `room`. */
static void
note_read(fnet_dgram *dgram, unsigned got, unsigned room)
{
    dgram->refused = 0;
    if (got < room && !dgram->careful && !dgram->hot) {
        dgram->readable = false;
    }
    if (dgram->hot) {
        return;
    }
    dgram->streak = got > 1 ? dgram->streak + 1 : 0;
    if (dgram->streak >= HOT_STREAK) {
        dgram->streak = 0;
        heat(dgram);
        dgram->readable = dgram->readable || dgram->hot;
    }
}

/* False: no room; in the next pass. */
static bool
receive(fnet_dgram *dgram, fnet_batch *batch)
{
    bool wide = (dgram->flags & FNET_DGRAM_WIDE) != 0;
    fnet_tray *tray = fnet_batch_tray(batch);
    unsigned room = 0;
    struct mmsghdr *headers =
        tray == NULL
            ? NULL
            : fnet_tray_reserve(tray, wide, how_many(dgram, batch), &room);
    if (room == 0) {
        return false;
    }
    dgram->shard->stats.reads++;
    bool left = fnet_shard_leave(dgram->shard);
    int got = fnet_sys_recvmmsg(dgram->source.fd, headers, room);
    fnet_shard_enter(dgram->shard, left);
    fnet_tray_commit(tray, wide, got > 0 ? (unsigned)got : 0);
    if (got > 0) {
        post_datagrams(dgram, batch, headers, got);
        note_read(dgram, (unsigned)got, room);
    }
    else if (got == -EAGAIN || got == 0) {
        dgram->readable = dgram->careful = false;
        dgram->streak = 0;
        if (dgram->hot) {
            cool(dgram);
        }
    }
    else {
        fnet_batch_push(batch, &dgram->source, FNET_WHAT_ERROR, got);
        dgram->careful = true; /* datagrams may wait behind it */
        if (++dgram->refused >= MAX_REFUSED) {
            dgram->readable = false;
            if (dgram->hot) {
                cool(dgram);
            }
        }
    }
    return true;
}

static bool
dgram_ready(fnet_shard *shard, fnet_source *source, fnet_batch *batch)
{
    fnet_dgram *dgram = dgram_of(source);

    if (dgram->nerrors > 0) {
        fnet_batch_push(batch, source, FNET_WHAT_ERROR, 0);
    }
    if (dgram->stuck || is_low(dgram)) {
        if (fnet_batch_full(batch)) {
            return true;
        }
        fnet_batch_push(batch, source, FNET_WHAT_OUTPUT, dgram->stuck);
        dgram->notify = dgram->notify && !is_low(dgram);
        dgram->stuck = false;
    }
    if (!dgram->wanted || !dgram->readable) {
        return false;
    }
    if (fnet_batch_full(batch) || !receive(dgram, batch)) {
        return true;
    }
    return dgram->readable;
}

static const fnet_source_ops dgram_ops = {
    .kind = FNET_KIND_DGRAM,
    .event = dgram_event,
    .ready = dgram_ready,
    .flush = dgram_flush,
};

/* -- the layer above ------------------------------------------------------ */

int
fnet_dgram_attach(fnet_dgram *dgram, fnet_shard *shard, int fd, void *owner,
                  unsigned flags, uint32_t overhead)
{
    *dgram = (fnet_dgram){.shard = shard, .flags = flags, .writable = true};
    fnet_source_init(&dgram->source, &dgram_ops, owner);
    fnet_outbox_init(&dgram->out, (flags & FNET_DGRAM_UDP) != 0 ? fd : -1,
                     overhead);
    dgram->sent_turn = UINT64_MAX;
    fnet_shard_lock(shard);
    int rc = fnet_poller_attach(&shard->poller, &dgram->source, fd,
                                wanted_events(dgram));
    fnet_shard_unlock(shard);
    return rc;
}

void
fnet_dgram_detach(fnet_dgram *dgram, bool closing)
{
    fnet_shard *shard = dgram->shard;

    fnet_shard_lock(shard);
    fnet_shard_detach_locked(shard, &dgram->source, closing);
    fnet_outbox_fini(&dgram->out, shard->cache, &shard->spent);
    fnet_shard_unlock(shard);
}

void
fnet_dgram_want(fnet_dgram *dgram, bool wanted)
{
    fnet_shard *shard = dgram->shard;

    /* At home the lock is for the prompter, which may be asking for an edge
     * of room at this moment. */
    fnet_shard_lock(shard);
    dgram->wanted = wanted;
    if (wanted) {
        dgram->quiet = 0;
        dgram->hot = false;
        uint32_t events = wanted_events(dgram);
        if (dgram->source.events != events) {
            (void)fnet_poller_modify(&shard->poller, &dgram->source, events);
        }
        if (dgram->readable) {
            fnet_shard_make_ready(shard, &dgram->source);
        }
    }
    fnet_shard_unlock(shard);
}

/* -EAGAIN: is to be queued. */
static int
send_at_once_locked(fnet_dgram *dgram, const fnet_piece *piece,
                    const void *addr, socklen_t addr_len)
{
    fnet_shard *shard = dgram->shard;
    struct iovec iov = {.iov_base = (void *)(uintptr_t)piece->data,
                        .iov_len = piece->len};
    struct msghdr msg = {.msg_iov = &iov,
                         .msg_iovlen = 1,
                         .msg_name = (void *)(uintptr_t)addr,
                         .msg_namelen = addr_len};

    if (addr_len == 0) {
        msg.msg_name = NULL;
    }
    shard->stats.sends++;
    dgram->sent_turn = shard->turn;
    ssize_t sent = fnet_sys_sendmsg(dgram->source.fd, &msg);
    if (sent == -EAGAIN) {
        wait_for_room_locked(dgram);
    }
    if (sent < 0) {
        return (int)sent;
    }
    shard->stats.bytes_sent += (uint64_t)sent;
    return 0;
}

/* True if the datagram is to be sent without waiting for company. */
static bool
goes_at_once(const fnet_dgram *dgram, const fnet_piece *piece, bool company)
{
    const fnet_shard *shard = dgram->shard;

    if (!dgram->writable || dgram->out.count > 0 || fnet_shard_lent(shard)) {
        return false;
    }
    return piece->len >= FNET_SEND_COPY || shard->late || !shard->defer ||
           (shard->eager && !company && dgram->sent_turn != shard->turn);
}

/* After queueing: leaves it to the pass, or sends if it is much or if nobody
 * may wait. */
static void
settle_locked(fnet_dgram *dgram)
{
    fnet_shard *shard = dgram->shard;

    if (dgram->writable && !fnet_shard_lent(shard) &&
        (dgram->out.count >= FNET_OUTBOX_CALL || shard->late ||
         !shard->defer || dgram->out.chain.bytes >= FNET_SEND_NOW)) {
        flush_locked(dgram);
    }
    if (has_report(dgram)) {
        fnet_shard_make_ready(shard, &dgram->source);
    }
    if (dgram->out.count > 0 && dgram->writable) {
        fnet_shard_defer_locked(shard, &dgram->source);
    }
}

ssize_t
fnet_dgram_send(fnet_dgram *dgram, fnet_piece *piece, const void *addr,
                socklen_t addr_len, bool company)
{
    fnet_shard *shard = dgram->shard;
    int rc = -EAGAIN;

    piece->kept = false;
    fnet_shard_lock(shard);
    shard->stats.writes++;
    if (goes_at_once(dgram, piece, company)) {
        rc = send_at_once_locked(dgram, piece, addr, addr_len);
    }
    if (rc == -EAGAIN) {
        rc =
            fnet_outbox_push(&dgram->out, shard->cache, piece, addr, addr_len);
        settle_locked(dgram);
    }
    ssize_t left = rc < 0 ? rc : (ssize_t)fnet_outbox_bytes(&dgram->out);
    fnet_shard_unlock(shard);
    return left;
}

uint32_t
fnet_dgram_flush(fnet_dgram *dgram, size_t *bytes)
{
    fnet_shard *shard = dgram->shard;

    fnet_shard_lock(shard);
    if (fnet_shard_lent(shard)) {
        if (dgram->writable && dgram->out.count > 0) {
            fnet_shard_defer_locked(shard, &dgram->source);
        }
    }
    else if (dgram->writable && dgram->out.count > 0) {
        flush_locked(dgram);
        if (has_report(dgram)) {
            fnet_shard_make_ready(shard, &dgram->source);
        }
        if (dgram->out.count == 0 || !dgram->writable) {
            fnet_list_remove(&dgram->source.dirty);
        }
    }
    uint32_t left = dgram->out.count;
    if (bytes != NULL) {
        *bytes = fnet_outbox_bytes(&dgram->out);
    }
    fnet_shard_unlock(shard);
    return left;
}

void
fnet_dgram_retry(fnet_dgram *dgram)
{
    fnet_shard_lock(dgram->shard);
    dgram->writable = true;
    fnet_shard_unlock(dgram->shard);
    (void)fnet_dgram_flush(dgram, NULL);
}

int
fnet_dgram_take_error(fnet_dgram *dgram)
{
    fnet_shard *shard = dgram->shard;
    int error = 0;

    fnet_shard_lock(shard);
    if (dgram->nerrors > 0) {
        error = dgram->errors[0];
        dgram->nerrors--;
        memmove(dgram->errors, dgram->errors + 1,
                dgram->nerrors * sizeof(dgram->errors[0]));
        if (dgram->out.count > 0 && dgram->writable) {
            fnet_shard_defer_locked(shard, &dgram->source);
        }
    }
    fnet_shard_unlock(shard);
    return error;
}

void
fnet_dgram_notify(fnet_dgram *dgram, size_t low)
{
    fnet_shard *shard = dgram->shard;

    fnet_shard_lock(shard);
    dgram->notify = true;
    dgram->low = low;
    if (has_report(dgram)) {
        fnet_shard_make_ready(shard, &dgram->source);
    }
    fnet_shard_unlock(shard);
}

void
fnet_dgram_drop(fnet_dgram *dgram)
{
    fnet_shard_lock(dgram->shard);
    flush_locked(dgram);
    drop_locked(dgram);
    fnet_shard_unlock(dgram->shard);
}
