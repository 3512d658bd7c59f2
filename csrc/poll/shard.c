#include "poll/shard.h"

#include "base/clock.h"

#include <errno.h>
#include <stdatomic.h>

/* Events taken from the kernel at a time; as many completions fit into a
 * batch. */
#define MAX_EVENTS FNET_BATCH_MAX
/* Of a worker whose pass can do nothing about what there is to do. */
#define REST FNET_MSEC

int
fnet_shard_init(fnet_shard *shard, fnet_depot *depot)
{
    int rc;

    *shard = (fnet_shard){.defer = true,
                          .phase = FNET_PHASE_TURN,
                          .landing_size = FNET_LANDING_MAX / 4};
    fnet_list_init(&shard->ready);
    fnet_list_init(&shard->dirty);
    fnet_list_init(&shard->gated);
    fnet_list_init(&shard->batches);
    fnet_chain_init(&shard->spent);
    rc = fnet_lock_init(&shard->output, FNET_RANK_OUTPUT);
    if (rc < 0) {
        return rc;
    }
    rc = fnet_cond_init(&shard->idle);
    if (rc < 0) {
        goto fail_cond;
    }
    rc = fnet_cache_new(&shard->cache, depot);
    if (rc < 0) {
        goto fail_cache;
    }
    rc = fnet_cache_new(&shard->read_cache, depot);
    if (rc < 0) {
        goto fail_read_cache;
    }
    rc = fnet_poller_init(&shard->poller);
    if (rc < 0) {
        goto fail_poller;
    }
    return 0;

fail_poller:
    fnet_cache_free(shard->read_cache);
fail_read_cache:
    fnet_cache_free(shard->cache);
fail_cache:
    fnet_cond_fini(&shard->idle);
fail_cond:
    fnet_lock_fini(&shard->output);
    return rc;
}

void
fnet_shard_fini(fnet_shard *shard)
{
    fnet_assert(shard->poller.attached == 0);
    fnet_assert(fnet_chain_empty(&shard->spent));
    fnet_assert(fnet_list_empty(&shard->batches) && shard->posted == 0);
    fnet_poller_fini(&shard->poller);
    fnet_cache_free(shard->read_cache);
    fnet_cache_free(shard->cache);
    fnet_cond_fini(&shard->idle);
    fnet_lock_fini(&shard->output);
}

void
fnet_shard_reset_lock(fnet_shard *shard)
{
    if (fnet_lock_init(&shard->output, FNET_RANK_OUTPUT) < 0 ||
        fnet_cond_init(&shard->idle) < 0) {
        fnet_panic("shard: no lock after fork");
    }
}

void
fnet_shard_forget_pass(fnet_shard *shard)
{
    fnet_list_init(&shard->ready);
    fnet_list_init(&shard->dirty);
    fnet_list_init(&shard->gated);
    fnet_chain_init(&shard->spent);
    for (uint32_t i = 0; i < shard->poller.count; i++) {
        fnet_source *source = shard->poller.slots[i].source;
        if (source != NULL) {
            fnet_list_init(&source->ready);
            fnet_list_init(&source->dirty);
        }
    }
    shard->busy = NULL;
    shard->busy_awaited = shard->flushing = false;
}

void
fnet_shard_prepare_sleep(fnet_shard *shard)
{
    /* seq_cst: pairs with the load in fnet_poller_wake_any(). */
    atomic_store(&shard->poller.asleep, 1);
}

/* Around an op that may leave the shard. */
static inline void
begin_op(fnet_shard *shard, fnet_source *source)
{
    shard->busy = source;
}

static inline void
tell_idle(fnet_shard *shard)
{
    if (FNET_UNLIKELY(shard->busy_awaited)) {
        shard->busy_awaited = false;
        fnet_cond_broadcast(&shard->idle);
    }
}

static inline void
end_op(fnet_shard *shard)
{
    shard->busy = NULL;
    shard->hurry = false;
    tell_idle(shard);
}

static bool
note_event(fnet_shard *shard, const struct epoll_event *event)
{
    fnet_source *source = fnet_poller_lookup(&shard->poller, event->data.u64);
    if (source == NULL) {
        return false;
    }
    begin_op(shard, source);
    bool wanted = source->ops->event(shard, source, event->events);
    if (wanted) {
        fnet_shard_make_ready(shard, source);
    }
    end_op(shard);
    return wanted;
}

/* Waits until there is something for somebody.  A return with nothing for
 * anybody goes back to waiting here, without a trip through the loop. */
static int
poll_until_wanted(fnet_shard *shard, int64_t deadline)
{
    struct epoll_event events[MAX_EVENTS];

    for (;;) {
        int64_t timeout = deadline == FNET_FOREVER ? -1 : 0;
        if (deadline != FNET_FOREVER && deadline != FNET_NO_WAIT) {
            timeout = deadline - fnet_clock_ns();
            if (timeout <= 0) {
                deadline = FNET_NO_WAIT;
                timeout = 0;
            }
        }
        int n = fnet_sys_epoll_wait(shard->poller.epfd, events, MAX_EVENTS,
                                    timeout);
        shard->stats.polls++;
        if (n < 0) {
            return n == -EINTR ? -EINTR : 0;
        }
        shard->stats.events += (uint64_t)n;
        bool wanted = false;
        for (int i = 0; i < n; i++) {
            if (events[i].data.u64 == FNET_TAG_WAKE) {
                wanted = true;
            }
            else if (note_event(shard, &events[i])) {
                wanted = true;
            }
        }
        if (wanted || n == 0 || deadline == FNET_NO_WAIT) {
            return 0;
        }
        shard->stats.quiet++;
    }
}

/* The loop has not returned the batch with the source's last completion yet:
 * the pass reads ahead of Python by no more. */
static inline bool
is_gated(const fnet_shard *shard, const fnet_source *source)
{
    return source->sequence > shard->returned;
}

/* One round over the sources that have work now; what a source leaves, and
 * what found no room, waits for the next pass in the order of arrival.  False:
 * there was input, and no memory for any. */
static bool
read_ready(fnet_shard *shard, fnet_batch *batch)
{
    fnet_list todo;
    fnet_list *node;
    bool in_vain = false;

    fnet_list_init(&todo);
    fnet_list_splice(&todo, &shard->ready);
    while (!fnet_batch_full(batch) && (node = fnet_list_pop(&todo)) != NULL) {
        fnet_source *source = fnet_container_of(node, fnet_source, ready);
        if (FNET_UNLIKELY(is_gated(shard, source))) {
            fnet_list_push(&shard->gated, node);
            continue;
        }
        begin_op(shard, source);
        if (source->ops->ready(shard, source, batch)) {
            fnet_shard_make_ready(shard, source);
            in_vain = batch->count == 0;
        }
        end_op(shard);
    }
    if (!fnet_list_empty(&todo)) {
        fnet_list_splice(&todo, &shard->ready);
        fnet_list_splice(&shard->ready, &todo);
    }
    return !in_vain || batch->count > 0;
}

int
fnet_shard_pass(fnet_shard *shard, fnet_batch *batch, int64_t deadline)
{
    fnet_lock_acquire(&shard->output);
    shard->phase = FNET_PHASE_PASS;
    shard->late = false;
    fnet_lock_release(&shard->output);
    shard->stats.passes++;
    fnet_batch_reset(batch, shard->read_cache, false);
    fnet_shard_flush_locked(shard);
    if (!fnet_list_empty(&shard->ready)) {
        deadline = FNET_NO_WAIT;
    }
    int rc = poll_until_wanted(shard, deadline);
    /* relaxed: a wake-up that comes too late costs one spare return. */
    atomic_store_explicit(&shard->poller.asleep, 0, memory_order_relaxed);
    (void)read_ready(shard, batch);
    shard->now = fnet_clock_ns();
    return rc;
}

void
fnet_shard_begin_turn(fnet_shard *shard, bool eager)
{
    fnet_lock_acquire(&shard->output);
    if (!fnet_shard_lent(shard)) {
        shard->phase = FNET_PHASE_TURN;
        shard->turn++;
        shard->turn_began = shard->now;
        shard->eager = eager || !shard->defer;
    }
    fnet_lock_release(&shard->output);
}

void
fnet_shard_flush_locked(fnet_shard *shard)
{
    fnet_list todo;
    fnet_list *node;

    /* A source may put itself back, for the next pass. */
    fnet_list_init(&todo);
    fnet_list_splice(&todo, &shard->dirty);
    while ((node = fnet_list_pop(&todo)) != NULL) {
        fnet_source *source = fnet_container_of(node, fnet_source, dirty);
        begin_op(shard, source);
        source->ops->flush(shard, source);
        end_op(shard);
    }
}

void
fnet_shard_flush(fnet_shard *shard)
{
    fnet_lock_acquire(&shard->output);
    /* Not for a worker that is stopped for a fork on another thread, which
     * may need what this one holds; it sends when it is started again. */
    while (fnet_shard_lent(shard) && !shard->stop &&
           (shard->flushing || !fnet_list_empty(&shard->dirty))) {
        shard->busy_awaited = true;
        fnet_poller_wake_any(&shard->poller);
        fnet_cond_wait(&shard->idle, &shard->output);
    }
    /* The worker may have given it back instead. */
    if (shard->phase == FNET_PHASE_TURN) {
        fnet_shard_flush_locked(shard);
    }
    fnet_lock_release(&shard->output);
}

void
fnet_shard_defer_locked(fnet_shard *shard, fnet_source *source)
{
    if (fnet_list_empty(&shard->dirty)) {
        shard->deferrals++;
    }
    /* Not only by the first of a turn: a fork may have stopped it since. */
    if (!shard->prompter_up && shard->wake_prompter != NULL &&
        !fnet_shard_lent(shard)) {
        shard->wake_prompter(shard->prompter);
    }
    if (fnet_list_empty(&source->dirty)) {
        fnet_list_push(&shard->dirty, &source->dirty);
    }
}

fnet_landing
fnet_shard_take_landing(fnet_shard *shard)
{
    /* The spare one first, so that it is free when this comes back unused. */
    for (unsigned n = 0; n < FNET_LANDINGS + 1; n++) {
        unsigned i = n == 0 ? FNET_LANDINGS : n - 1;
        fnet_landing landing = shard->landings[i];
        if (landing.owner != NULL) {
            shard->landings[i].owner = NULL;
            shard->landings_used++;
            return landing;
        }
    }
    shard->want_landings = true;
    return (fnet_landing){0};
}

void
fnet_shard_note_landing(fnet_shard *shard, size_t got, size_t len)
{
    /* One page more than what came, so that a read of the usual size is
     * short and shows that the socket is drained. */
    size_t want = ((got + 4096) | 4095) + 1;

    if (got == len) {
        want = 2 * len;
    }
    if (want >= shard->landing_size) {
        shard->landing_size =
            want < FNET_LANDING_MAX ? want : FNET_LANDING_MAX;
    }
    else {
        shard->landing_size -= (shard->landing_size - want) / 16;
    }
}

void
fnet_shard_return_landing(fnet_shard *shard, fnet_landing landing)
{
    for (unsigned i = 0; i < FNET_LANDINGS + 1; i++) {
        if (shard->landings[i].owner == NULL) {
            shard->landings[i] = landing;
            if (shard->landings_used > 0) {
                shard->landings_used--; /* 0: refilled meanwhile */
            }
            return;
        }
    }
    fnet_panic("shard: a landing place that was not taken is returned");
}

/* -- lent ----------------------------------------------------------------- */

static bool
has_work_locked(const fnet_shard *shard)
{
    return !fnet_list_empty(&shard->dirty) || shard->recall || shard->stop ||
           shard->trim ||
           (!fnet_list_empty(&shard->ready) && !shard->starved) ||
           (shard->starved && !fnet_list_empty(&shard->batches));
}

void
fnet_shard_lock(fnet_shard *shard)
{
    fnet_lock_acquire(&shard->output);
}

void
fnet_shard_unlock(fnet_shard *shard)
{
    /* The worker says that it sleeps with the lock held, and looks for work
     * before: it has seen what was there then, and this is what came since.
     * Not that it is lent: one that is just being returned looks again. */
    bool wake =
        FNET_UNLIKELY(fnet_shard_lent(shard)) &&
        atomic_load_explicit(&shard->poller.asleep, memory_order_relaxed) &&
        has_work_locked(shard);
    fnet_lock_release(&shard->output);
    if (wake) {
        fnet_poller_wake_any(&shard->poller);
    }
}

void
fnet_shard_await_idle_locked(fnet_shard *shard, fnet_source *source)
{
    while (fnet_shard_lent(shard) && shard->busy == source) {
        shard->busy_awaited = shard->hurry = true;
        fnet_cond_wait(&shard->idle, &shard->output);
    }
}

void
fnet_shard_detach_locked(fnet_shard *shard, fnet_source *source, bool closing)
{
    fnet_shard_await_idle_locked(shard, source);
    fnet_poller_detach(&shard->poller, source, closing);
}

fnet_batch *
fnet_shard_begin_batch_locked(fnet_shard *shard)
{
    fnet_list *node = fnet_list_pop(&shard->batches);

    if (node == NULL) {
        return NULL;
    }
    fnet_batch *batch = fnet_container_of(node, fnet_batch, link);
    fnet_batch_reset(batch, shard->read_cache, false);
    batch->sequence = ++shard->sequence;
    return batch;
}

void
fnet_shard_pass_lent_locked(fnet_shard *shard, fnet_batch *batch)
{
    struct epoll_event events[MAX_EVENTS];

    shard->stats.passes++;
    shard->starved = batch == NULL;
    shard->flushing = true;
    fnet_shard_flush_locked(shard);
    shard->flushing = false;
    tell_idle(shard);
    bool sleep = !has_work_locked(shard);
    bool rest = shard->in_vain;
    if (sleep) {
        fnet_shard_prepare_sleep(shard);
    }
    fnet_lock_release(&shard->output);
    int n = fnet_sys_epoll_wait(shard->poller.epfd, events, MAX_EVENTS,
                                sleep ? -1 : 0);
    if (FNET_UNLIKELY(rest || (n < 0 && n != -EINTR))) {
        (void)fnet_sys_poll(NULL, 0, REST);
    }
    fnet_lock_acquire(&shard->output);
    atomic_store_explicit(&shard->poller.asleep, 0, memory_order_relaxed);
    shard->starved = false;
    shard->stats.polls++;
    shard->stats.events += (uint64_t)(n < 0 ? 0 : n);
    for (int i = 0; i < n; i++) {
        if (events[i].data.u64 != FNET_TAG_WAKE) {
            (void)note_event(shard, &events[i]);
        }
    }
    shard->in_vain = batch != NULL && !read_ready(shard, batch);
}

void
fnet_shard_give_back_locked(fnet_shard *shard)
{
    shard->flushing = true;
    fnet_shard_flush_locked(shard);
    shard->flushing = false;
    shard->phase = FNET_PHASE_TURN;
    shard->late = true; /* until the loop's next pass */
    fnet_cond_broadcast(&shard->idle);
    if (!fnet_list_empty(&shard->dirty) && !shard->prompter_up &&
        shard->wake_prompter != NULL) {
        shard->wake_prompter(shard->prompter); /* written during the flush */
    }
}

void
fnet_shard_trim_batches_locked(fnet_shard *shard)
{
    fnet_list *node;

    fnet_list_foreach(node, &shard->batches)
    {
        fnet_batch_reset(fnet_container_of(node, fnet_batch, link),
                         shard->read_cache, true);
    }
}

bool
fnet_shard_return_batch(fnet_shard *shard, fnet_batch *batch)
{
    fnet_shard_lock(shard);
    bool landings = shard->want_landings || shard->landings_used > 0;
    fnet_assert(batch->sequence > shard->returned && shard->posted > 0);
    shard->returned = batch->sequence;
    shard->posted--;
    fnet_list_splice(&shard->ready, &shard->gated);
    fnet_list_push(&shard->batches, &batch->link);
    fnet_shard_unlock(shard);
    return landings;
}
