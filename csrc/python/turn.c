/* turn: one iteration of the loop.
 *
 *     pass          without the GIL: flush, wait, read (poll/shard.h)
 *     callbacks     that were ready before the pass
 *     completions   protocol calls, readers and writers
 *     timers        that were due when the pass was over
 *
 * which is asyncio's order.  What any of these adds waits for the next turn.
 * An exception that must leave run_forever() leaves the rest of the turn for
 * the next run. */
#include "python/context.h"

#include "base/clock.h"
#include "net/dgram.h"

#include <errno.h>

/* With callbacks ready a turn may do without a pass as long as the last one
 * was this short a while ago and nothing waits to be sent: chains of
 * callbacks do not pay for a system call each (micro.py, future_wake: +25 %),
 * and events wait no longer than a short callback may take. */
#define PASS_EVERY (50 * INT64_C(1000))

/* Other Python threads: giving up the GIL costs us up to a switch interval
 * (5 ms) whenever one of them computes, and each pass gives it up, so that a
 * server would answer one round of requests per interval.  When taking it
 * back took longer than GIL_SLOW, the passes of the next GIL_KEEP are made
 * with it, looking for input for up to GIL_LOOK (what a peer needs to wake up
 * and answer) before it is given up after all.  The thread keeps what it gets
 * beside uvloop, the server answers more (benchmarks/gil_contention.py; with
 * 0.5 ms and 30 us the server had 0.3 to 0.6 of uvloop's rate, and the thread
 * 1.2 to 1.6). */
#define GIL_SLOW (200 * INT64_C(1000))
#define GIL_KEEP (4 * FNET_MSEC)
#define GIL_LOOK (100 * INT64_C(1000))

/* A pass that does not wait, because callbacks are ready, keeps the GIL as
 * well, for up to GIL_INTERVAL.  Given up and taken back within a microsecond
 * it only wakes the thread that waits for it, which finds it taken and starts
 * to wait anew; one that has waited for a switch interval (5 ms) in vain asks
 * for it, and then gets it, from Python code at once and from a pass that
 * gives it up.  So the interval is longer than two of those
 * (tests/test_fairness.py has the case). */
#define GIL_INTERVAL (12 * FNET_MSEC)

/* A worker whose thread could not be started again after a fork. */
#define START_AGAIN (10 * FNET_MSEC)

/* Memory is given back after at least TRIM_BYTES were read and sent since the
 * last time, at most once a second: once the loop has been idle for
 * IDLE_BEFORE_TRIM, or has moved less than QUIET_BYTES in a second.  While
 * there is more to do than that, the caches age: what a burst has left there
 * and nobody has needed for a second goes. */
#define IDLE_BEFORE_TRIM (200 * FNET_MSEC)
#define TRIM_BYTES (UINT64_C(2) << 20)
#define QUIET_BYTES (UINT64_C(1) << 20)
#define AGED_ENOUGH ((size_t)1 << 20) /* to ask the system to take it */

/* -- what the core cannot do without Python ----------------------------- */

void
fnet_loop_drop_spent(LoopObject *self, fnet_shard *shard)
{
    void *foreign[64];
    size_t n;

    do {
        n = 0;
        fnet_lock_acquire(&shard->output);
        while (n < FNET_COUNTOF(foreign) &&
               (foreign[n] = fnet_chain_pop_spent(&shard->spent,
                                                  shard->cache)) != NULL) {
            n++;
        }
        fnet_lock_release(&shard->output);
        for (size_t i = 0; i < n; i++) {
            Py_DECREF((PyObject *)foreign[i]);
        }
    } while (n == FNET_COUNTOF(foreign));
}

void
fnet_loop_drop_all_spent(LoopObject *self)
{
    for (unsigned i = 0; i < self->set.count; i++) {
        fnet_loop_drop_spent(self, self->set.members[i].shard);
    }
}

/* Fills the places that were used.  Without memory large reads are copied. */
static void
offer_landings(fnet_shard *shard)
{
    fnet_landing fresh[FNET_LANDINGS];
    unsigned n = 0;

    fnet_lock_acquire(&shard->output);
    size_t size = shard->landing_size;
    unsigned missing = 0;
    for (unsigned i = 0; i < FNET_LANDINGS; i++) {
        missing += shard->landings[i].owner == NULL;
    }
    fnet_lock_release(&shard->output);
    /* Without the lock, as the allocation may run the collector. */
    while (n < missing) {
        PyObject *bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)size);
        if (bytes == NULL) {
            PyErr_Clear();
            break;
        }
        fresh[n++] = (fnet_landing){
            .owner = bytes, .data = PyBytes_AS_STRING(bytes), .len = size};
    }
    fnet_lock_acquire(&shard->output);
    for (unsigned i = 0; i < FNET_LANDINGS && n > 0; i++) {
        if (shard->landings[i].owner == NULL) {
            shard->landings[i] = fresh[--n];
        }
    }
    shard->want_landings = false;
    shard->landings_used = 0;
    fnet_lock_release(&shard->output);
    while (n > 0) { /* the collector has come back here */
        Py_DECREF((PyObject *)fresh[--n].owner);
    }
}

void
fnet_loop_drop_landings(fnet_shard *shard)
{
    PyObject *owners[FNET_COUNTOF(shard->landings)];

    fnet_lock_acquire(&shard->output);
    for (unsigned i = 0; i < FNET_COUNTOF(owners); i++) {
        owners[i] = shard->landings[i].owner;
        shard->landings[i].owner = NULL;
    }
    shard->landings_used = 0;
    shard->want_landings = false;
    fnet_lock_release(&shard->output);
    for (unsigned i = 0; i < FNET_COUNTOF(owners); i++) {
        Py_XDECREF(owners[i]);
    }
}

/* -- the pass ----------------------------------------------------------- */

static int64_t
next_deadline(LoopObject *self)
{
    if (self->ring_count > 0 || self->stopping ||
        fnet_shardset_has_mail(&self->set)) {
        return FNET_NO_WAIT;
    }
    FNET_LOCK(self);
    fnet_heap_node *first = fnet_heap_min(&self->timers);
    int64_t key = first == NULL ? FNET_FOREVER : first->key;
    FNET_UNLOCK(self);
    return key <= 0 ? FNET_NO_WAIT : key;
}

/* What is buffered between a read and a send is freed by the send: both
 * count. */
static uint64_t
bytes_moved(LoopObject *self)
{
    uint64_t sum = 0;

    for (unsigned i = 0; i < self->set.count; i++) {
        fnet_shard *shard = self->set.members[i].shard;
        fnet_lock_acquire(&shard->output);
        sum += shard->stats.bytes_read + shard->stats.bytes_sent;
        fnet_lock_release(&shard->output);
    }
    return sum;
}

static bool
trim_pending(LoopObject *self)
{
    return bytes_moved(self) - self->trim_mark >= TRIM_BYTES ||
           fnet_loop_ring_is_large(self);
}

/* The loop is idle, or nearly, after a lot of traffic; the batch is empty. */
static FNET_COLD void
give_memory_back(LoopObject *self)
{
    if (self->now - self->trim_time < FNET_SEC) {
        return;
    }
    self->trim_mark = bytes_moved(self);
    self->trim_time = self->now;
    for (unsigned i = 0; i < self->set.count; i++) {
        fnet_shard *shard = self->set.members[i].shard;
        fnet_loop_drop_landings(shard);
        fnet_shard_lock(shard);
        if (shard == &self->home) {
            fnet_batch_reset(&self->batch, shard->read_cache, true);
        }
        if (fnet_shard_lent(shard)) {
            shard->trim = true;
        }
        else {
            fnet_shard_trim_batches_locked(shard);
            fnet_cache_flush(shard->read_cache);
            fnet_cache_flush(shard->cache);
        }
        fnet_shard_unlock(shard);
    }
    fnet_depot_trim_any(self->depot);
    fnet_prompter_trim(self->prompter);
    fnet_loop_shrink_ring(self);
}

/* Once a second, before a pass. */
static FNET_COLD void
age_caches(LoopObject *self)
{
    uint64_t moved = bytes_moved(self);
    bool quiet = moved - self->age_mark < QUIET_BYTES;

    self->age_mark = moved;
    self->age_time = self->now;
    if (quiet && trim_pending(self)) {
        give_memory_back(self);
        return;
    }
    for (unsigned i = 0; i < self->set.count; i++) {
        fnet_shard *shard = self->set.members[i].shard;
        fnet_shard_lock(shard);
        if (fnet_shard_lent(shard)) {
            shard->age = true;
        }
        else {
            fnet_cache_age(shard->read_cache);
            fnet_cache_age(shard->cache);
        }
        fnet_shard_unlock(shard);
    }
    if (fnet_depot_age_any(self->depot) >= AGED_ENOUGH) {
        fnet_prompter_trim(self->prompter);
    }
}

/* A pass that does not give up the GIL, and so does not wait. */
static int
pass_with_gil(LoopObject *self, int64_t deadline)
{
    fnet_shard *shard = &self->home;
    int64_t begin = fnet_clock_ns();
    int rc;

    do {
        rc = fnet_shard_pass(shard, &self->batch, FNET_NO_WAIT);
        self->now = shard->now;
    } while (rc == 0 && self->batch.count == 0 && deadline > self->now &&
             self->now - begin < GIL_LOOK);
    return rc;
}

static int
pass_without_gil(LoopObject *self, int64_t deadline)
{
    int rc;

    /* Under the GIL: whoever adds a callback from another thread from here
     * on, does so after this, and wakes the pass. */
    if (deadline != FNET_NO_WAIT) {
        fnet_shard_prepare_sleep(&self->home);
        if (fnet_shardset_has_mail(&self->set) || fnet_loop_has_inbox(self) ||
            fnet_names_pending(&self->names)) {
            deadline = FNET_NO_WAIT; /* its wake-up may have been before */
        }
    }
    self->passing = true;
    PyThreadState *tstate = PyEval_SaveThread();
    rc = fnet_shard_pass(&self->home, &self->batch, deadline);
    PyEval_RestoreThread(tstate);
    self->passing = false;
    self->now = self->gil_released = fnet_clock_ns();
    if (FNET_UNLIKELY(self->now - self->home.now > GIL_SLOW)) {
        self->keep_gil_until = self->now + GIL_KEEP;
    }
    return rc;
}

/* In place of a pass while the home shard is away.  Without anything to wait
 * for the GIL is kept as by a pass: for GIL_INTERVAL. */
static int
wait_for_mail(LoopObject *self, int64_t deadline)
{
    bool waits = deadline != FNET_NO_WAIT;
    int rc = 0;

    if (waits) {
        fnet_shardset_prepare_sleep(&self->set);
        if (fnet_loop_has_inbox(self) || fnet_names_pending(&self->names)) {
            deadline = FNET_NO_WAIT;
        }
    }
    if (waits || self->now - self->gil_released >= GIL_INTERVAL) {
        self->passing = true;
        PyThreadState *tstate = PyEval_SaveThread();
        rc = fnet_shardset_wait(&self->set, deadline);
        PyEval_RestoreThread(tstate);
        self->passing = false;
        self->now = self->gil_released = fnet_clock_ns();
    }
    else {
        self->now = fnet_clock_ns();
    }
    return rc;
}

static int
run_pass(LoopObject *self)
{
    fnet_shard *shard = &self->home;
    int64_t deadline = next_deadline(self);
    bool trim = false;
    int rc = 0;

    if (FNET_UNLIKELY(self->now - self->age_time >= FNET_SEC)) {
        age_caches(self);
    }
    if (FNET_LIKELY(!self->set.home_away) &&
        (shard->want_landings || shard->landings_used > 0)) {
        offer_landings(shard);
    }
    if (deadline > self->now + IDLE_BEFORE_TRIM && trim_pending(self)) {
        deadline = self->now + IDLE_BEFORE_TRIM;
        trim = true;
    }
    if (FNET_UNLIKELY(self->set.incomplete)) {
        fnet_shardset_start(&self->set);
        int64_t again = fnet_clock_ns() + START_AGAIN;
        if (self->set.incomplete && deadline > again) {
            deadline = again;
        }
    }
    bool done = false;
    if (FNET_UNLIKELY(self->set.home_away || self->set.count > 1)) {
        fnet_loop_drop_all_spent(self); /* what workers have sent */
    }
    if (FNET_UNLIKELY(self->set.home_away)) {
        rc = wait_for_mail(self, deadline);
        done = true;
    }
    else if (FNET_UNLIKELY(FNET_HAS_GIL && self->keep_gil_until > self->now) ||
             (deadline == FNET_NO_WAIT &&
              self->now - self->gil_released < GIL_INTERVAL)) {
        rc = pass_with_gil(self, deadline);
        done = rc < 0 || self->batch.count > 0 || deadline <= self->now;
    }
    if (FNET_LIKELY(!done)) {
        rc = pass_without_gil(self, deadline);
    }
    self->last_pass = self->now;
    if (!self->set.home_away && shard->spent.head != NULL) {
        fnet_loop_drop_spent(self, shard);
    }
    if (trim && rc == 0 && self->batch.count == 0 && self->ring_count == 0 &&
        !fnet_shardset_has_mail(&self->set) && self->now >= deadline) {
        give_memory_back(self);
    }
    return rc;
}

/* Timers that are due go behind the callbacks that are ready. */
static int
collect_due_timers(LoopObject *self)
{
    for (;;) {
        FNET_LOCK(self);
        fnet_heap_node *node = fnet_heap_min(&self->timers);
        if (node != NULL && node->key <= self->now) {
            fnet_heap_remove(&self->timers, node);
        }
        else {
            node = NULL;
        }
        FNET_UNLOCK(self);
        if (node == NULL) {
            return 0;
        }
        TimerObject *timer = fnet_container_of(node, TimerObject, node);
        if (fnet_loop_push(self, &timer->handle) < 0) {
            return -1;
        }
    }
}

/* -- the turn ----------------------------------------------------------- */

static int
run_handles(LoopObject *self, size_t n)
{
    while (n-- > 0 && self->ring_count > 0) {
        HandleObject *handle = self->ring[self->ring_head];
        self->ring_head = (self->ring_head + 1) & self->ring_mask;
        self->ring_count--;
        int rc = fnet_handle_run_ready(self, handle);
        fnet_context_settle(self);
        if (FNET_UNLIKELY(rc < 0)) {
            return -1;
        }
    }
    return 0;
}

/* What nobody is there for any more. */
static FNET_COLD void
drop_item(fnet_completion *item)
{
    if (item->what == FNET_WHAT_ACCEPTED) {
        fnet_sys_close(item->result);
    }
    Py_CLEAR(item->landing);
}

void
fnet_loop_drop_batch(fnet_batch *batch)
{
    while (batch->next < batch->count) {
        drop_item(&batch->items[batch->next++]);
    }
}

static int
deliver_one(LoopObject *self, const fnet_batch *batch, fnet_completion *item)
{
    fnet_source *source = fnet_poller_lookup(&batch->shard->poller, item->tag);
    PyObject *owner;
    int rc = 0;

    if (FNET_UNLIKELY(source == NULL)) {
        drop_item(item);
        return 0;
    }
    owner = Py_NewRef((PyObject *)source->owner);
    switch (source->ops->kind) {
    case FNET_KIND_STREAM:
        rc = fnet_transport_deliver((TransportObject *)owner, item);
        break;
    case FNET_KIND_LISTENER:
        rc = fnet_listener_deliver((ListenerObject *)owner, item);
        break;
    case FNET_KIND_WATCH:
        rc = fnet_watch_deliver((WatchObject *)owner, item);
        break;
    case FNET_KIND_DGRAM:
        rc = fnet_datagram_deliver(owner, item);
        break;
    default:
        fnet_panic("turn: a source of kind %d", source->ops->kind);
    }
    Py_XDECREF((PyObject *)item->landing);
    Py_DECREF(owner);
    return rc;
}

static FNET_COLD int
deliver_in_debug(LoopObject *self, const fnet_batch *batch,
                 fnet_completion *item)
{
    fnet_source *source = fnet_poller_lookup(&batch->shard->poller, item->tag);
    PyObject *owner = source == NULL ? NULL : source->owner;

    if (source != NULL && (source->ops->kind == FNET_KIND_WATCH ||
                           source->ops->kind == FNET_KIND_DGRAM)) {
        /* These tell themselves. */
        return deliver_one(self, batch, item);
    }
    int64_t begin = fnet_clock_ns();

    Py_XINCREF(owner);
    int rc = deliver_one(self, batch, item);
    double took = (double)(fnet_clock_ns() - begin) / 1e9;
    if (rc == 0 && owner != NULL && took >= self->slow_callback_duration) {
        rc = fnet_report(self->state, "slow_callback", "(OOd)", self, owner,
                         took);
    }
    Py_XDECREF(owner);
    return rc;
}

static int
deliver(LoopObject *self, fnet_batch *batch)
{
    self->delivering = batch;
    while (batch->next < batch->count) {
        fnet_completion *item = &batch->items[batch->next++];
        self->delivered++;
        int rc = FNET_UNLIKELY(self->debug)
                     ? deliver_in_debug(self, batch, item)
                     : deliver_one(self, batch, item);
        fnet_context_settle(self);
        if (FNET_UNLIKELY(rc < 0)) {
            return -1;
        }
    }
    return 0;
}

/* Delivers the one that was begun and the next `n`. */
static int
deliver_mail(LoopObject *self, unsigned n)
{
    while (self->mail != NULL || n-- > 0) {
        if (self->mail == NULL) {
            self->mail = fnet_inbox_take(&self->set.inbox);
        }
        if (self->mail == NULL) {
            return 0;
        }
        if (deliver(self, self->mail) < 0) {
            return -1;
        }
        fnet_batch *batch = self->mail;
        fnet_shard *shard = batch->shard;
        self->mail = NULL;
        if (fnet_shard_return_batch(shard, batch)) {
            offer_landings(shard);
        }
    }
    return 0;
}

static bool
may_skip_pass(LoopObject *self)
{
    if (self->ring_count == 0 || self->set.home_away ||
        fnet_shardset_has_mail(&self->set) || self->stopping ||
        !fnet_list_empty(&self->home.dirty) ||
        !fnet_list_empty(&self->home.ready)) {
        return false;
    }
    self->now = fnet_clock_ns();
    return self->now - self->last_pass < PASS_EVERY;
}

static int
turn(LoopObject *self)
{
    bool resumed = self->batch.next < self->batch.count || self->mail != NULL;

    self->turns++;
    if (FNET_UNLIKELY(self->forked)) {
        /* The child came back from the callback that has forked. */
        return fnet_loop_check(self);
    }
    if (FNET_UNLIKELY(self->home_mode != FNET_HOME_LOOP) && !resumed) {
        fnet_loop_see_to_home(self);
    }
    if (fnet_loop_has_inbox(self) && fnet_loop_take_inbox(self) < 0) {
        return -1;
    }
    if (FNET_LIKELY(!resumed) && !may_skip_pass(self)) {
        run_pass(self);
        if (FNET_UNLIKELY(PyErr_CheckSignals() < 0)) {
            return -1;
        }
        if (fnet_loop_has_inbox(self) && fnet_loop_take_inbox(self) < 0) {
            return -1;
        }
    }
    if (FNET_UNLIKELY(fnet_names_pending(&self->names))) {
        fnet_loop_deliver_names(self);
    }
    size_t ready = self->ring_count;
    if (self->timers.count > 0 && collect_due_timers(self) < 0) {
        return -1;
    }
    size_t due = self->ring_count - ready;
    /* What is in the inbox now came before the callbacks that this turn will
     * add; what comes during it is for the next one, as what a poll of the
     * loop's own would find.  And not too much at a time, so that callbacks
     * have their turns. */
    unsigned mail = fnet_inbox_count(&self->set.inbox);
    if (FNET_UNLIKELY(mail > self->set.count)) {
        mail = self->set.count;
    }
    size_t coming = self->batch.count - self->batch.next + 2 * (size_t)mail;
    bool eager = ready + due + coming <= 1;
    if (FNET_LIKELY(!self->set.home_away) &&
        (self->home.phase != FNET_PHASE_TURN || eager != self->home.eager)) {
        fnet_shard_begin_turn(&self->home, eager);
    }
    if (run_handles(self, ready) < 0 || deliver(self, &self->batch) < 0 ||
        deliver_mail(self, mail) < 0) {
        return -1;
    }
    return run_handles(self, due);
}

/* The loop is this thread's from here on; false: it is another's. */
static bool
enter(LoopObject *self)
{
    bool entered = false;

    FNET_LOCK(self);
    if (!self->in_turn && !self->closed && !self->core_closing) {
        self->in_turn = entered = true;
#ifdef Py_GIL_DISABLED
        atomic_store(&self->runner, (uintptr_t)pthread_self());
#endif
    }
    FNET_UNLOCK(self);
    return entered;
}

static void
leave(LoopObject *self)
{
    fnet_context_settle(self);
    if (!FNET_HAS_GIL) {
        fnet_context_forget(self); /* owned by whoever runs the loop */
    }
    FNET_LOCK(self);
    self->in_turn = false;
#ifdef Py_GIL_DISABLED
    atomic_store(&self->runner, 0);
#endif
    FNET_UNLOCK(self);
}

static PyObject *
run(LoopObject *self, bool once)
{
    if (fnet_loop_check(self) < 0) {
        return NULL;
    }
    if (!enter(self)) {
        if (fnet_loop_check(self) < 0) {
            return NULL; /* closed since */
        }
        PyErr_SetString(PyExc_RuntimeError,
                        "This event loop is already running");
        return NULL;
    }
    int rc;

    self->last_pass = 0; /* the first turn looks for events */
    fnet_loop_begin_adapting(self);
    do {
        rc = turn(self);
    } while (rc == 0 && !once && !self->stopping);
    PyObject *exc = rc < 0 ? fnet_err_take() : NULL;
    fnet_loop_end_adapting(self);
    if (self->has_core) {
        fnet_shard_begin_turn(&self->home, true);
        fnet_shardset_flush(&self->set);
        fnet_loop_drop_all_spent(self);
    }
    leave(self);
    if (exc != NULL) {
        fnet_err_restore(exc);
        return NULL;
    }
    Py_RETURN_NONE;
}

PyObject *
fnet_loop_run(LoopObject *self, PyObject *unused)
{
    return run(self, false);
}

PyObject *
fnet_loop_run_once(LoopObject *self, PyObject *unused)
{
    return run(self, true);
}
