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
#include "python/module.h"

#include "base/clock.h"

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

/* Memory is given back once the loop has been idle for IDLE_BEFORE_TRIM after
 * at least TRIM_BYTES were read and sent since the last time, at most once a
 * second. */
#define IDLE_BEFORE_TRIM (200 * FNET_MSEC)
#define TRIM_BYTES (UINT64_C(16) << 20)

/* -- what the core cannot do without Python ----------------------------- */

void
fnet_loop_drop_spent(LoopObject *self)
{
    fnet_shard *shard = &self->home;
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

int
fnet_loop_offer_landings(LoopObject *self)
{
    fnet_shard *shard = &self->home;

    for (unsigned i = 0; i < FNET_LANDINGS; i++) {
        if (shard->landings[i].owner != NULL) {
            continue;
        }
        PyObject *bytes =
            PyBytes_FromStringAndSize(NULL, (Py_ssize_t)shard->landing_size);
        if (bytes == NULL) {
            return -1;
        }
        shard->landings[i] = (fnet_landing){.owner = bytes,
                                            .data = PyBytes_AS_STRING(bytes),
                                            .len = shard->landing_size};
    }
    shard->want_landings = false;
    shard->landings_used = 0;
    return 0;
}

void
fnet_loop_drop_landings(LoopObject *self)
{
    for (unsigned i = 0; i < FNET_LANDINGS; i++) {
        PyObject *owner = self->home.landings[i].owner;
        self->home.landings[i].owner = NULL;
        Py_XDECREF(owner);
    }
    self->home.landings_used = 0;
}

/* -- the pass ----------------------------------------------------------- */

static int64_t
next_deadline(LoopObject *self)
{
    if (self->ring_count > 0 || self->stopping) {
        return FNET_NO_WAIT;
    }
    fnet_heap_node *first = fnet_heap_min(&self->timers);
    if (first == NULL) {
        return FNET_FOREVER;
    }
    return first->key <= 0 ? FNET_NO_WAIT : first->key;
}

/* What is buffered between a read and a send is freed by the send: both
 * count. */
static uint64_t
bytes_moved(const LoopObject *self)
{
    return self->home.stats.bytes_read + self->home.stats.bytes_sent;
}

static bool
trim_pending(const LoopObject *self)
{
    return bytes_moved(self) - self->trim_mark >= TRIM_BYTES;
}

/* The loop was idle after a lot of traffic. */
static FNET_COLD void
give_memory_back(LoopObject *self)
{
    if (self->now - self->trim_time < FNET_SEC) {
        return;
    }
    self->trim_mark = bytes_moved(self);
    self->trim_time = self->now;
    fnet_loop_drop_landings(self);
    self->home.want_landings = false;
    fnet_batch_reset(&self->batch, self->home.cache, true);
    fnet_cache_flush(self->home.cache);
    fnet_depot_trim_any(self->depot);
    fnet_prompter_trim(self->prompter);
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
        if (fnet_names_pending(&self->names)) {
            deadline = FNET_NO_WAIT;
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

static int
run_pass(LoopObject *self)
{
    fnet_shard *shard = &self->home;
    int64_t deadline = next_deadline(self);
    bool trim = false;
    int rc = 0;

    if (shard->want_landings || shard->landings_used > 0) {
        if (fnet_loop_offer_landings(self) < 0) {
            PyErr_Clear(); /* large reads are copied, then */
        }
    }
    if (deadline > self->now + IDLE_BEFORE_TRIM && trim_pending(self)) {
        deadline = self->now + IDLE_BEFORE_TRIM;
        trim = true;
    }
    self->batch_next = 0;
    bool done = false;
    if (FNET_UNLIKELY(self->keep_gil_until > self->now) ||
        (deadline == FNET_NO_WAIT &&
         self->now - self->gil_released < GIL_INTERVAL)) {
        rc = pass_with_gil(self, deadline);
        done = rc < 0 || self->batch.count > 0 || deadline <= self->now;
    }
    if (FNET_LIKELY(!done)) {
        rc = pass_without_gil(self, deadline);
    }
    self->last_pass = self->now;
    if (shard->spent.head != NULL) {
        fnet_loop_drop_spent(self);
    }
    if (trim && rc == 0 && self->batch.count == 0 && self->ring_count == 0 &&
        self->now >= deadline) {
        give_memory_back(self);
    }
    return rc;
}

/* Timers that are due go behind the callbacks that are ready. */
static int
collect_due_timers(LoopObject *self)
{
    fnet_heap_node *node;

    while ((node = fnet_heap_min(&self->timers)) != NULL &&
           node->key <= self->now) {
        fnet_heap_remove(&self->timers, node);
        TimerObject *timer = fnet_container_of(node, TimerObject, node);
        if (fnet_loop_push(self, &timer->handle) < 0) {
            return -1;
        }
    }
    return 0;
}

/* -- the turn ----------------------------------------------------------- */

static int
run_handles(LoopObject *self, size_t n)
{
    while (n-- > 0 && self->ring_count > 0) {
        HandleObject *handle = self->ring[self->ring_head];
        self->ring_head = (self->ring_head + 1) & self->ring_mask;
        self->ring_count--;
        int rc = fnet_handle_run(self, handle);
        fnet_handle_drop(handle);
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

static int
deliver_one(LoopObject *self, fnet_completion *item)
{
    fnet_source *source = fnet_poller_lookup(&self->home.poller, item->tag);
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
    default:
        fnet_panic("turn: a source of kind %d", source->ops->kind);
    }
    Py_XDECREF((PyObject *)item->landing);
    Py_DECREF(owner);
    return rc;
}

static FNET_COLD int
deliver_in_debug(LoopObject *self, fnet_completion *item)
{
    fnet_source *source = fnet_poller_lookup(&self->home.poller, item->tag);
    PyObject *owner = source == NULL ? NULL : source->owner;

    if (source != NULL && source->ops->kind == FNET_KIND_WATCH) {
        return deliver_one(self, item); /* its handles tell themselves */
    }
    int64_t begin = fnet_clock_ns();

    Py_XINCREF(owner);
    int rc = deliver_one(self, item);
    double took = (double)(fnet_clock_ns() - begin) / 1e9;
    if (rc == 0 && owner != NULL && took >= self->slow_callback_duration) {
        rc = fnet_report(self->state, "slow_callback", "(OOd)", self, owner,
                         took);
    }
    Py_XDECREF(owner);
    return rc;
}

static int
deliver(LoopObject *self)
{
    while (self->batch_next < self->batch.count) {
        fnet_completion *item = &self->batch.items[self->batch_next++];
        int rc = FNET_UNLIKELY(self->debug) ? deliver_in_debug(self, item)
                                            : deliver_one(self, item);
        if (FNET_UNLIKELY(rc < 0)) {
            return -1;
        }
    }
    return 0;
}

static bool
may_skip_pass(LoopObject *self)
{
    if (self->ring_count == 0 || self->stopping ||
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
    bool resumed = self->batch_next < self->batch.count;

    if (FNET_UNLIKELY(self->forked)) {
        /* The child came back from the callback that has forked. */
        return fnet_loop_check(self);
    }
    if (FNET_LIKELY(!resumed) && !may_skip_pass(self)) {
        run_pass(self);
        if (FNET_UNLIKELY(PyErr_CheckSignals() < 0)) {
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
    size_t coming = self->batch.count - self->batch_next;
    bool eager = ready + due + coming <= 1;
    if (self->home.phase != FNET_PHASE_TURN || eager != self->home.eager) {
        fnet_shard_begin_turn(&self->home, eager);
    }
    if (run_handles(self, ready) < 0 || deliver(self) < 0) {
        return -1;
    }
    return run_handles(self, due);
}

static PyObject *
run(LoopObject *self, bool once)
{
    if (fnet_loop_check(self) < 0) {
        return NULL;
    }
    if (self->in_turn) {
        PyErr_SetString(PyExc_RuntimeError,
                        "This event loop is already running");
        return NULL;
    }
    int rc;

    self->in_turn = true;
    self->last_pass = 0; /* the first turn looks for events */
    do {
        rc = turn(self);
    } while (rc == 0 && !once && !self->stopping);
    PyObject *exc = rc < 0 ? fnet_err_take() : NULL;
    if (self->has_core) {
        fnet_shard_begin_turn(&self->home, true);
        fnet_shard_flush(&self->home);
        fnet_loop_drop_spent(self);
    }
    self->in_turn = false;
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
