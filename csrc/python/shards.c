/* shards: which shard a connection gets, and who runs the home shard's pass.
 *
 * The rules are poll/shardset.c's and poll/adapt.c's; here they meet the loop.
 * All of it for the loop's thread, with the GIL. */
#include "python/module.h"

#include "base/clock.h"

#include <errno.h>
#include <fcntl.h>

PyObject *
fnet_usable_cpus_object(PyObject *module, PyObject *unused)
{
    return PyLong_FromUnsignedLong(fnet_usable_cpus());
}

fnet_shard *
fnet_loop_pick_shard(LoopObject *self)
{
    FNET_LOCK(self); /* stats() counts them */
    fnet_shard *shard = fnet_shardset_pick(&self->set);
    FNET_UNLOCK(self);

    if (FNET_UNLIKELY(self->set.failed < 0) && !self->warned) {
        self->warned = true;
        if (PyErr_WarnFormat(PyExc_RuntimeWarning, 1,
                             "no thread for another shard (%s): the loop "
                             "goes on with %u of %u",
                             strerror(-self->set.failed), self->set.count,
                             self->set.limit) < 0) {
            PyErr_WriteUnraisable((PyObject *)self);
        }
    }
    return shard;
}

void
fnet_loop_take_shards_over(LoopObject *self)
{
    fnet_shardset_stop(&self->set);
    for (unsigned i = 0; i < self->set.count; i++) {
        if (self->set.members[i].worker != NULL) {
            fnet_worker_take_over(self->set.members[i].worker);
        }
    }
    self->set.home_away = false;
    self->set.failed = -ECANCELED; /* no more of them */
}

/* -- who has the home shard --------------------------------------------- */

/* "cpu delay slices" in ns, of the thread that opened the file. */
static void
read_schedstat(int fd, fnet_load *load)
{
    char text[96];
    char *end;
    ssize_t n = fd < 0 ? -1 : pread(fd, text, sizeof(text) - 1, 0);

    if (n > 0) {
        text[n] = '\0';
        load->cpu = strtoll(text, &end, 10);
        load->delay = strtoll(end, NULL, 10);
    }
}

static fnet_load
current_load(LoopObject *self, bool with_idle)
{
    fnet_load load = {.now = self->now, .count = self->delivered, .idle = -1};

    read_schedstat(self->schedstat, &load);
    if (with_idle) {
        load.idle = fnet_idle_us();
    }
    return load;
}

void
fnet_loop_begin_adapting(LoopObject *self)
{
    if (self->home_mode != FNET_HOME_AUTO) {
        return;
    }
    self->schedstat =
        open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
    if (self->schedstat < 0) {
        return; /* not in this kernel: everything stays as it is */
    }
    self->now = fnet_clock_ns();
    fnet_load load = current_load(self, self->adapt.asked > 0);
    if (self->adapt.pause == 0) {
        fnet_adapt_init(&self->adapt, &load);
    }
    else {
        fnet_adapt_resume(&self->adapt, &load);
    }
}

void
fnet_loop_end_adapting(LoopObject *self)
{
    if (self->schedstat >= 0) {
        self->now = fnet_clock_ns();
        fnet_load load = current_load(self, self->adapt.asked > 0);
        fnet_adapt_suspend(&self->adapt, &load);
        fnet_sys_close(self->schedstat);
        self->schedstat = -1;
    }
}

static bool
wants_to_lend(LoopObject *self)
{
    return self->home_mode != FNET_HOME_AUTO ||
           self->advice == FNET_ADVICE_LEND;
}

static bool
wants_to_recall(LoopObject *self)
{
    if (self->home_mode == FNET_HOME_FLIPS) {
        /* One turn in eight, at random. */
        return (self->turns * UINT64_C(0x9E3779B97F4A7C15) >> 61) == 0;
    }
    return self->home_mode == FNET_HOME_AUTO &&
           self->advice == FNET_ADVICE_RECALL;
}

static void
lend_home(LoopObject *self)
{
    self->advice = FNET_ADVICE_NONE;
    fnet_shard_begin_turn(&self->home, false);
    if (fnet_shardset_lend_home(&self->set) < 0) {
        if (self->home_mode == FNET_HOME_AUTO) {
            fnet_adapt_refused(&self->adapt, self->now); /* for now */
        }
        else {
            self->home_mode = FNET_HOME_LOOP;
        }
    }
    else if (self->home_mode == FNET_HOME_AUTO) {
        self->set.spread = self->set.limit; /* new connections, too */
    }
}

/* Everything of its last pass is delivered. */
static FNET_COLD void
move_home(LoopObject *self)
{
    fnet_shardset *set = &self->set;

    if (self->recalling) {
        if (fnet_shardset_regain_home(set)) {
            self->recalling = false;
            self->flips++;
        }
    }
    else if (!set->home_away && !self->stopping && wants_to_lend(self)) {
        lend_home(self);
    }
    else if (set->home_away && wants_to_recall(self)) {
        if (self->home_mode == FNET_HOME_AUTO &&
            self->advice != FNET_ADVICE_RECALL) {
            /* For a pipe.  What is measured from here on is home's. */
            fnet_adapt_refused(&self->adapt, self->now);
        }
        self->advice = FNET_ADVICE_NONE;
        self->recalling = true;
        fnet_shardset_recall_home(set);
        if (self->home_mode == FNET_HOME_AUTO) {
            set->spread = 1;
        }
    }
}

void
fnet_loop_see_to_home(LoopObject *self)
{
    if (self->home_mode == FNET_HOME_AUTO) {
        if (FNET_UNLIKELY(self->now >= self->adapt.window_end) &&
            self->schedstat >= 0) {
            fnet_load load = current_load(
                self, fnet_adapt_asks_idle(&self->adapt, self->now));
            self->advice = (int)fnet_adapt_window(&self->adapt, &load);
        }
        if (FNET_LIKELY(self->advice == FNET_ADVICE_NONE &&
                        !self->recalling)) {
            return;
        }
    }
    move_home(self);
}
