#include "net/stream.h"

#include <errno.h>
#include <string.h>

/* As many pieces leave in one call; more than a kernel copies at a gain. */
#define MAX_IOVECS 64
/* What the pass wants to have room for before it receives. */
#define MIN_ROOM ((size_t)64 * 1024)

static fnet_stream *
stream_of(fnet_source *source)
{
    return fnet_container_of(source, fnet_stream, source);
}

/* -- output, with the lock held ------------------------------------------- */

static void
fail_output_locked(fnet_stream *stream, int error)
{
    stream->error = error;
    stream->writable = false;
    fnet_chain_clear(&stream->out, stream->shard->cache,
                     &stream->shard->spent);
    fnet_list_remove(&stream->source.dirty);
}

/* Output that waits for room needs its edge, which is switched off together
 * with input that nobody wants, and for Unix sockets until now. */
static void
rearm_output_locked(fnet_stream *stream)
{
    fnet_source *source = &stream->source;
    if (!stream->always && (source->events & (uint32_t)EPOLLOUT) == 0) {
        (void)fnet_poller_modify(&stream->shard->poller, source,
                                 source->events | (uint32_t)EPOLLOUT);
    }
}

/* send() of one piece. */
static ssize_t
send_one(fnet_stream *stream, const void *data, size_t len)
{
    if (FNET_UNLIKELY(stream->io != NULL)) {
        struct iovec iov = {.iov_base = (void *)(uintptr_t)data,
                            .iov_len = len};
        return stream->io->send(stream->source.fd, &iov, 1);
    }
    return fnet_sys_send(stream->source.fd, data, len);
}

static ssize_t
send_many(fnet_stream *stream, struct iovec *iov, int n)
{
    if (FNET_UNLIKELY(stream->io != NULL)) {
        return stream->io->send(stream->source.fd, iov, n);
    }
    struct msghdr msg = {.msg_iov = iov, .msg_iovlen = (size_t)n};
    return fnet_sys_sendmsg(stream->source.fd, &msg);
}

static ssize_t
send_some(fnet_stream *stream, size_t *offered)
{
    struct iovec iov[MAX_IOVECS];
    int n = fnet_chain_iovecs(&stream->out, iov, MAX_IOVECS);

    stream->shard->stats.sends++;
    *offered = 0;
    for (int i = 0; i < n; i++) {
        *offered += iov[i].iov_len;
    }
    /* What is queued meanwhile goes behind these bytes. */
    bool left = fnet_shard_leave(stream->shard);
    ssize_t sent = n == 1 ? send_one(stream, iov[0].iov_base, iov[0].iov_len)
                          : send_many(stream, iov, n);
    fnet_shard_enter(stream->shard, left);
    return sent;
}

static void
flush_locked(fnet_stream *stream)
{
    fnet_shard *shard = stream->shard;

    while (stream->writable && !fnet_chain_empty(&stream->out)) {
        if (FNET_UNLIKELY(shard->hurry)) {
            /* Somebody wants to detach or drop, and shall not wait until a
             * peer has taken everything. */
            fnet_shard_defer_locked(shard, &stream->source);
            return;
        }
        size_t offered;
        ssize_t sent = send_some(stream, &offered);
        if (sent == -EAGAIN) {
            sent = 0;
        }
        else if (sent < 0) {
            fail_output_locked(stream, (int)sent);
            stream->report_error = true;
            return;
        }
        shard->stats.bytes_sent += (uint64_t)sent;
        fnet_chain_consume(&stream->out, shard->cache, (size_t)sent,
                           &shard->spent);
        if ((size_t)sent < offered) {
            stream->writable = false;
            rearm_output_locked(stream);
        }
    }
    if (fnet_chain_empty(&stream->out) && stream->shutdown &&
        !stream->was_shut) {
        stream->was_shut = true;
        (void)fnet_sys_shutdown(stream->source.fd, SHUT_WR);
    }
}

static bool
has_report(const fnet_stream *stream)
{
    return stream->report_error ||
           (stream->notify && stream->out.bytes <= stream->low) ||
           (stream->notify_room && stream->writable);
}

/* -- what the shard calls ------------------------------------------------- */

static void
stream_flush(fnet_shard *shard, fnet_source *source)
{
    fnet_stream *stream = stream_of(source);

    flush_locked(stream);
    if (has_report(stream)) {
        if (shard->phase != FNET_PHASE_TURN) {
            fnet_shard_make_ready(shard, source);
        }
        else {
            /* The prompter: the pass must come by and report. */
            fnet_list_push(&shard->dirty, &source->dirty);
        }
    }
}

static void
disarm(fnet_stream *stream)
{
    uint32_t events = FNET_EVENTS_QUIET;
    if (!stream->writable) {
        events |= (uint32_t)EPOLLOUT;
    }
    if (fnet_poller_modify(&stream->shard->poller, &stream->source, events) ==
        0) {
        stream->shard->stats.disarmed++;
    }
}

static bool
is_level(const fnet_stream *stream)
{
    return FNET_UNLIKELY(stream->io != NULL) &&
           (stream->io->events & (uint32_t)EPOLLET) == 0;
}

/* Notes input; true if somebody wants it. */
static bool
input_event(fnet_stream *stream, uint32_t events)
{
    if ((events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) == 0) {
        return false;
    }
    if (is_level(stream)) {
        /* Nothing needs to be remembered, and what nobody wants is switched
         * off at once, as it would come again at once. */
        stream->readable = stream->wanted && !stream->ended;
        /* A hang-up cannot be switched off; it comes once, unless asked for
         * again. */
        if (!stream->readable &&
            (stream->source.events & (uint32_t)EPOLLIN) != 0) {
            disarm(stream);
        }
        else if (stream->readable && fnet_shard_lent(stream->shard)) {
            /* A worker would find it again in each pass until the loop has
             * returned the batch that it waits for: see rearm_level(). */
            (void)fnet_poller_modify(&stream->shard->poller, &stream->source,
                                     FNET_EVENTS_QUIET);
        }
        return stream->readable;
    }
    stream->readable = true;
    if ((events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) {
        stream->hup = true;
    }
    if ((events & EPOLLPRI) != 0) {
        stream->careful = true;
    }
    if (stream->wanted && !stream->ended) {
        stream->quiet = 0;
        return true;
    }
    if (stream->quiet < FNET_QUIET_EVENTS) {
        stream->quiet++;
    }
    else if ((stream->source.events & (uint32_t)EPOLLIN) != 0) {
        disarm(stream);
    }
    return false;
}

static bool
stream_event(fnet_shard *shard, fnet_source *source, uint32_t events)
{
    fnet_stream *stream = stream_of(source);
    bool wanted = input_event(stream, events);

    if ((events & (EPOLLOUT | EPOLLHUP | EPOLLERR)) != 0 &&
        !stream->writable && stream->error == 0) {
        stream->writable = true;
        flush_locked(stream);
        wanted = wanted || has_report(stream);
    }
    return wanted;
}

static void
post_reports(fnet_stream *stream, fnet_batch *batch)
{
    bool failed = stream->report_error;
    stream->report_error = stream->notify = stream->notify_room = false;
    if (failed) {
        fnet_batch_push(batch, &stream->source, FNET_WHAT_ERROR,
                        stream->error);
        if (FNET_UNLIKELY(stream->io != NULL)) {
            stream->ended = true; /* a pipe has one direction: it is over */
        }
    }
    else {
        fnet_batch_push(batch, &stream->source, FNET_WHAT_OUTPUT, 0);
    }
}

/* recv(), and for Unix sockets news of descriptors that were passed: a read
 * that got some stops short at them, with more data behind. */
static ssize_t
receive(fnet_stream *stream, void *buf, size_t len)
{
    ssize_t got;

    stream->shard->stats.reads++;
    bool left = fnet_shard_leave(stream->shard);
    if (FNET_UNLIKELY(stream->io != NULL)) {
        got = stream->io->receive(stream->source.fd, buf, len);
        fnet_shard_enter(stream->shard, left);
    }
    else if (!stream->with_rights) {
        got = fnet_sys_recv(stream->source.fd, buf, len);
        fnet_shard_enter(stream->shard, left);
    }
    else {
        struct iovec iov = {.iov_base = buf, .iov_len = len};
        struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
        got = fnet_sys_recvmsg(stream->source.fd, &msg, 0);
        fnet_shard_enter(stream->shard, left);
        if ((msg.msg_flags & MSG_CTRUNC) != 0) {
            stream->careful = true;
        }
    }
    if (got > 0) {
        stream->last_read = got > INT32_MAX ? INT32_MAX : (uint32_t)got;
        stream->shard->stats.bytes_read += (uint64_t)got;
        if ((size_t)got < len && !stream->hup && !stream->careful) {
            stream->readable = false;
        }
        if (FNET_UNLIKELY(stream->io != NULL)) {
            stream->readable = stream->always;
        }
    }
    else if (got == -EAGAIN) {
        stream->readable = false;
    }
    else {
        stream->readable = false;
        stream->ended = true;
    }
    return got;
}

static bool
receive_into_landing(fnet_stream *stream, fnet_batch *batch, ssize_t *got)
{
    fnet_shard *shard = stream->shard;
    if (stream->last_read < FNET_LAND_MIN) {
        return false;
    }
    fnet_landing landing = fnet_shard_take_landing(shard);
    if (landing.owner == NULL) {
        return false;
    }
    *got = receive(stream, landing.data, landing.len);
    if (*got <= 0) {
        fnet_shard_return_landing(shard, landing);
        return true;
    }
    fnet_shard_note_landing(shard, (size_t)*got, landing.len);
    fnet_completion *item =
        fnet_batch_push(batch, &stream->source, FNET_WHAT_DATA, 0);
    item->data = landing.data;
    item->len = (size_t)*got;
    batch->bytes += (size_t)*got;
    item->landing = landing.owner;
    return true;
}

static bool
receive_into_batch(fnet_stream *stream, fnet_batch *batch, ssize_t *got)
{
    size_t room;
    char *place =
        fnet_batch_reserve(batch, stream->shard->read_cache, MIN_ROOM, &room);
    if (place == NULL) {
        return false;
    }
    *got = receive(stream, place, room);
    if (*got > 0) {
        fnet_batch_commit(batch, (size_t)*got);
        fnet_completion *item =
            fnet_batch_push(batch, &stream->source, FNET_WHAT_DATA, 0);
        item->data = place;
        item->len = (size_t)*got;
        batch->bytes += (size_t)*got;
    }
    return true;
}

/* After a read: a level that was muted is looked for again. */
static void
rearm_level(fnet_stream *stream)
{
    if (stream->wanted && !stream->ended && !stream->always &&
        (stream->source.events & (uint32_t)EPOLLIN) == 0) {
        (void)fnet_poller_modify(&stream->shard->poller, &stream->source,
                                 stream->io->events);
    }
}

static bool
stream_ready(fnet_shard *shard, fnet_source *source, fnet_batch *batch)
{
    fnet_stream *stream = stream_of(source);
    ssize_t got = 0;

    if (has_report(stream)) {
        post_reports(stream, batch);
        if (fnet_batch_full(batch)) {
            return true;
        }
    }
    if (!stream->wanted || !stream->readable || stream->ended) {
        return false;
    }
    if (stream->direct && !fnet_shard_lent(shard)) {
        if (!stream->posted) {
            stream->posted = true;
            fnet_batch_push(batch, source, FNET_WHAT_READABLE, 0);
        }
        return false;
    }
    if (!receive_into_landing(stream, batch, &got) &&
        !receive_into_batch(stream, batch, &got)) {
        return true; /* no room: in the next pass */
    }
    if (got == 0) {
        fnet_batch_push(batch, source, FNET_WHAT_EOF, 0);
    }
    else if (got < 0 && got != -EAGAIN) {
        fnet_batch_push(batch, source, FNET_WHAT_ERROR, (int32_t)got);
    }
    if (is_level(stream)) {
        rearm_level(stream);
    }
    return stream->readable;
}

static const fnet_source_ops stream_ops = {
    .kind = FNET_KIND_STREAM,
    .event = stream_event,
    .ready = stream_ready,
    .flush = stream_flush,
};

/* -- the layer above ------------------------------------------------------ */

/* What the stream is registered for while input is wanted.  A TCP socket has
 * an edge of room only after a send found none; a Unix socket has one for
 * each piece that the peer takes, so there room is asked for when it lacks. */
static uint32_t
wanted_events(const fnet_stream *stream)
{
    if (FNET_UNLIKELY(stream->io != NULL)) {
        return stream->io->events;
    }
    uint32_t events = FNET_EVENTS_EDGE;
    if (stream->with_rights && stream->writable) {
        events &= ~(uint32_t)EPOLLOUT;
    }
    return events;
}

static void
init(fnet_stream *stream, fnet_shard *shard, void *owner)
{
    *stream = (fnet_stream){.shard = shard, .writable = true};
    fnet_source_init(&stream->source, &stream_ops, owner);
    fnet_chain_init(&stream->out);
    stream->sent_turn = UINT64_MAX;
}

int
fnet_stream_attach(fnet_stream *stream, fnet_shard *shard, int fd, void *owner,
                   bool with_rights)
{
    init(stream, shard, owner);
    stream->with_rights = with_rights;
    fnet_shard_lock(shard);
    int rc = fnet_poller_attach(&shard->poller, &stream->source, fd,
                                wanted_events(stream));
    fnet_shard_unlock(shard);
    return rc;
}

int
fnet_stream_attach_io(fnet_stream *stream, fnet_shard *shard, int fd,
                      void *owner, const fnet_stream_io *io)
{
    init(stream, shard, owner);
    stream->io = io;
    fnet_shard_lock(shard);
    int rc =
        fnet_poller_attach(&shard->poller, &stream->source, fd, io->events);
    if (rc == -EPERM) {
        stream->always = stream->readable = true;
        rc = fnet_poller_attach(&shard->poller, &stream->source, fd, 0);
    }
    fnet_shard_unlock(shard);
    return rc;
}

void
fnet_stream_detach(fnet_stream *stream, bool closing)
{
    fnet_shard *shard = stream->shard;

    fnet_shard_lock(shard);
    fnet_shard_detach_locked(shard, &stream->source,
                             closing || stream->always);
    fnet_chain_clear(&stream->out, shard->cache, &shard->spent);
    fnet_shard_unlock(shard);
}

void
fnet_stream_want(fnet_stream *stream, bool wanted)
{
    fnet_shard *shard = stream->shard;

    /* At home the lock is for the prompter, which may be asking for an edge
     * of room at this moment. */
    fnet_shard_lock(shard);
    stream->wanted = wanted;
    if (wanted && !stream->ended) {
        stream->quiet = 0;
        uint32_t events = wanted_events(stream);
        if (stream->source.events != events && !stream->always) {
            (void)fnet_poller_modify(&shard->poller, &stream->source, events);
        }
        if (stream->readable) {
            fnet_shard_make_ready(shard, &stream->source);
        }
    }
    fnet_shard_unlock(shard);
}

void
fnet_stream_set_direct(fnet_stream *stream, bool direct)
{
    fnet_shard_lock(stream->shard);
    stream->direct = direct;
    stream->posted = false;
    if (stream->readable && stream->wanted) {
        fnet_shard_make_ready(stream->shard, &stream->source);
    }
    fnet_shard_unlock(stream->shard);
}

ssize_t
fnet_stream_recv(fnet_stream *stream, void *buf, size_t len)
{
    return receive(stream, buf, len);
}

void
fnet_stream_taken(fnet_stream *stream)
{
    stream->posted = false;
    if (stream->readable && stream->wanted && !stream->ended) {
        fnet_shard_make_ready(stream->shard, &stream->source);
    }
}

void
fnet_stream_untake_eof(fnet_stream *stream)
{
    fnet_shard_lock(stream->shard);
    stream->ended = false;
    stream->readable = true;
    stream->hup = true;
    fnet_shard_unlock(stream->shard);
}

/* Sends a piece that nothing stands before.  The bytes that went, or the
 * error. */
static ssize_t
send_piece_locked(fnet_stream *stream, const fnet_piece *piece)
{
    fnet_shard *shard = stream->shard;

    shard->stats.sends++;
    stream->sent_turn = shard->turn;
    ssize_t sent = send_one(stream, piece->data, piece->len);
    if (sent == -EAGAIN) {
        sent = 0;
    }
    if (sent < 0) {
        fail_output_locked(stream, (int)sent);
        return sent;
    }
    shard->stats.bytes_sent += (uint64_t)sent;
    if ((size_t)sent < piece->len) {
        stream->writable = false;
        rearm_output_locked(stream);
    }
    return sent;
}

static int
queue_piece_locked(fnet_stream *stream, fnet_piece *piece, size_t skip)
{
    fnet_cache *cache = stream->shard->cache;
    const char *data = piece->data + skip;
    size_t len = piece->len - skip;

    if (piece->foreign == NULL || len <= FNET_COPY_MAX) {
        return fnet_chain_copy(&stream->out, cache, data, len);
    }
    int rc = fnet_chain_ref(&stream->out, cache, data, len, piece->foreign);
    piece->kept = rc == 0;
    return rc;
}

/* True if the piece is to be sent without waiting for company. */
static bool
goes_at_once(const fnet_stream *stream, const fnet_piece *piece, size_t pieces)
{
    const fnet_shard *shard = stream->shard;

    if (!stream->writable || !fnet_chain_empty(&stream->out) ||
        fnet_shard_lent(shard)) {
        return false;
    }
    if (piece->len >= FNET_SEND_NOW ||
        (piece->foreign == NULL && piece->len >= FNET_SEND_COPY)) {
        return true;
    }
    if (pieces > 1) {
        return false; /* they go together, below */
    }
    return shard->late || !shard->defer ||
           (shard->eager && stream->sent_turn != shard->turn);
}

/* After queueing: leaves the rest to the pass, or sends it if it is much, or
 * if nobody may wait. */
static void
settle_locked(fnet_stream *stream, size_t pieces)
{
    fnet_shard *shard = stream->shard;

    if (fnet_chain_empty(&stream->out) || !stream->writable) {
        return; /* the edge of room brings the pass here */
    }
    if (fnet_shard_lent(shard)) {
        fnet_shard_defer_locked(shard, &stream->source);
        return;
    }
    bool now =
        stream->out.bytes >= FNET_SEND_NOW || shard->late || !shard->defer;
    if (!now && pieces > 1 && shard->eager &&
        stream->sent_turn != shard->turn) {
        stream->sent_turn = shard->turn;
        now = true;
    }
    if (now) {
        flush_locked(stream);
    }
    if (has_report(stream)) {
        fnet_shard_make_ready(shard, &stream->source);
    }
    if (!fnet_chain_empty(&stream->out) && stream->writable) {
        fnet_shard_defer_locked(shard, &stream->source);
    }
}

static int
write_locked(fnet_stream *stream, fnet_piece *pieces, size_t n)
{
    int rc = 0;

    stream->shard->stats.writes++;
    for (size_t i = 0; i < n && rc == 0; i++) {
        fnet_piece *piece = &pieces[i];
        ssize_t sent = 0;
        if (piece->len == 0) {
            continue;
        }
        if (goes_at_once(stream, piece, n)) {
            sent = send_piece_locked(stream, piece);
            if (sent < 0) {
                return (int)sent;
            }
        }
        if ((size_t)sent < piece->len) {
            rc = queue_piece_locked(stream, piece, (size_t)sent);
        }
    }
    settle_locked(stream, n); /* what was queued before memory ran out, too */
    return rc;
}

ssize_t
fnet_stream_write(fnet_stream *stream, fnet_piece *pieces, size_t n)
{
    fnet_shard *shard = stream->shard;
    ssize_t rc = 0;

    fnet_shard_lock(shard);
    if (stream->error == 0 && !stream->shutdown) {
        rc = write_locked(stream, pieces, n);
    }
    if (rc == 0 && stream->error != 0) {
        /* Of this call, or of one by the prompter while the turn went on: a
         * program that writes without end must hear of it here. */
        stream->report_error = false;
        rc = stream->error;
    }
    if (rc == 0) {
        rc = (ssize_t)stream->out.bytes;
    }
    fnet_shard_unlock(shard);
    return rc;
}

size_t
fnet_stream_flush(fnet_stream *stream)
{
    fnet_shard *shard = stream->shard;
    size_t left;

    fnet_shard_lock(shard);
    if (stream->writable && !fnet_chain_empty(&stream->out) &&
        !fnet_shard_lent(shard)) {
        fnet_list_remove(&stream->source.dirty);
        flush_locked(stream);
        if (has_report(stream)) {
            fnet_shard_make_ready(shard, &stream->source);
        }
    }
    left = stream->out.bytes;
    fnet_shard_unlock(shard);
    return left;
}

size_t
fnet_stream_pending(fnet_stream *stream)
{
    fnet_shard_lock(stream->shard);
    size_t left = stream->out.bytes;
    fnet_shard_unlock(stream->shard);
    return left;
}

int
fnet_stream_error(fnet_stream *stream)
{
    fnet_lock_acquire(&stream->shard->output);
    int error = stream->error;
    fnet_lock_release(&stream->shard->output);
    return error;
}

void
fnet_stream_notify(fnet_stream *stream, size_t low)
{
    fnet_shard *shard = stream->shard;

    fnet_shard_lock(shard);
    stream->notify = true;
    stream->low = low;
    if (has_report(stream)) {
        fnet_shard_make_ready(shard, &stream->source);
    }
    fnet_shard_unlock(shard);
}

void
fnet_stream_notify_room(fnet_stream *stream)
{
    fnet_shard *shard = stream->shard;

    fnet_shard_lock(shard);
    stream->notify_room = true;
    stream->writable = false;
    if (fnet_shard_away(shard)) {
        /* The worker may have had the edge since; this brings it again if
         * there is room. */
        (void)fnet_poller_modify(&shard->poller, &stream->source,
                                 stream->source.events | (uint32_t)EPOLLOUT);
    }
    else {
        rearm_output_locked(stream);
    }
    fnet_shard_unlock(shard);
}

void
fnet_stream_shutdown(fnet_stream *stream)
{
    fnet_shard *shard = stream->shard;

    fnet_shard_lock(shard);
    stream->shutdown = true;
    if (fnet_shard_lent(shard)) {
        fnet_shard_defer_locked(shard, &stream->source);
    }
    else {
        flush_locked(stream);
    }
    if (has_report(stream)) {
        fnet_shard_make_ready(shard, &stream->source);
    }
    fnet_shard_unlock(shard);
}

/* Nobody is in a call for it. */
static void
drop_locked(fnet_stream *stream)
{
    fnet_shard *shard = stream->shard;

    fnet_chain_clear(&stream->out, shard->cache, &shard->spent);
    fnet_list_remove(&stream->source.dirty);
}

void
fnet_stream_drop(fnet_stream *stream)
{
    fnet_shard *shard = stream->shard;

    fnet_shard_lock(shard);
    fnet_shard_await_idle_locked(shard, &stream->source);
    drop_locked(stream);
    fnet_shard_unlock(shard);
}

void
fnet_stream_abort(fnet_stream *stream)
{
    fnet_shard *shard = stream->shard;
    struct iovec iov[MAX_IOVECS];
    ssize_t sent = 1;

    fnet_shard_lock(shard);
    fnet_shard_await_idle_locked(shard, &stream->source);
    while (sent > 0 && stream->writable && !fnet_chain_empty(&stream->out)) {
        /* With the lock, or a worker would send the same. */
        sent = send_many(stream, iov,
                         fnet_chain_iovecs(&stream->out, iov, MAX_IOVECS));
        shard->stats.sends++;
        if (sent > 0) {
            shard->stats.bytes_sent += (uint64_t)sent;
            fnet_chain_consume(&stream->out, shard->cache, (size_t)sent,
                               &shard->spent);
        }
    }
    drop_locked(stream);
    fnet_shard_unlock(shard);
}
