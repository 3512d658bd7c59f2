#include "poll/worker.h"

#include "base/mem.h"
#include "cache/stack.h"

#include <errno.h>
#include <malloc.h>

struct fnet_worker {
    /* constant after init */
    fnet_shard *shard;
    fnet_inbox *inbox;

    /* the loop's thread */
    fnet_thread thread; /* to be joined if it was started */

    /* guarded by shard->output */
    fnet_cond lent; /* the shard was lent, or the thread is to stop */

    fnet_batch batches[FNET_BATCHES];
};

/* What is asked for between two passes.  True: the shard was given back. */
static bool
heed_locked(fnet_worker *worker)
{
    fnet_shard *shard = worker->shard;

    if (shard->trim) {
        shard->trim = false;
        fnet_shard_trim_batches_locked(shard);
        fnet_cache_flush(shard->read_cache);
        fnet_cache_trim(shard->cache);
        fnet_lock_release(&shard->output);
        malloc_trim(0); /* the loop's has been, perhaps */
        fnet_lock_acquire(&shard->output);
    }
    if (shard->age) {
        shard->age = false;
        fnet_cache_age(shard->read_cache);
        fnet_cache_age(shard->cache);
    }
    if (shard->recall && fnet_shard_lent(shard)) {
        fnet_shard_give_back_locked(shard);
        return true;
    }
    return false;
}

/* One pass; what it has brought goes to the loop. */
static void
pass_locked(fnet_worker *worker)
{
    fnet_shard *shard = worker->shard;
    fnet_batch *batch = fnet_shard_begin_batch_locked(shard);

    fnet_shard_pass_lent_locked(shard, batch);
    if (batch == NULL) {
        return;
    }
    if (batch->count == 0) {
        fnet_list_push(&shard->batches, &batch->link);
        return;
    }
    shard->posted++;
    fnet_lock_release(&shard->output);
    fnet_inbox_post_any(worker->inbox, batch);
    fnet_lock_acquire(&shard->output);
}

static void
run(void *arg)
{
    fnet_worker *worker = arg;
    fnet_shard *shard = worker->shard;

    fnet_lock_acquire(&shard->output);
    while (!shard->stop) {
        if (heed_locked(worker)) {
            fnet_lock_release(&shard->output);
            fnet_inbox_wake_any(worker->inbox);
            fnet_lock_acquire(&shard->output);
        }
        else if (fnet_shard_lent(shard)) {
            pass_locked(worker);
        }
        else {
            fnet_cond_wait(&worker->lent, &shard->output);
        }
    }
    fnet_cond_broadcast(&shard->idle); /* who waits for a flush */
    fnet_lock_release(&shard->output);
}

static void
set_stop(fnet_worker *worker, bool stop)
{
    fnet_lock_acquire(&worker->shard->output);
    worker->shard->stop = stop;
    fnet_lock_release(&worker->shard->output);
}

static int
start(fnet_worker *worker)
{
    if (fnet_thread_started(&worker->thread)) {
        return 0;
    }
    set_stop(worker, false);
    int rc = fnet_thread_start(&worker->thread, "fnet-worker", FNET_STACK_LIBS,
                               run, worker);
    if (rc < 0) {
        set_stop(worker, true); /* nobody waits for it */
    }
    return rc;
}

int
fnet_worker_new(fnet_worker **out, fnet_shard *shard, fnet_inbox *inbox)
{
    fnet_worker *worker = fnet_calloc(1, sizeof(*worker));
    if (worker == NULL) {
        return -ENOMEM;
    }
    int rc = fnet_cond_init(&worker->lent);
    if (rc < 0) {
        fnet_free(worker);
        return rc;
    }
    worker->shard = shard;
    worker->inbox = inbox;
    for (int i = 0; i < FNET_BATCHES; i++) {
        fnet_batch *batch = &worker->batches[i];
        fnet_batch_init(batch);
        batch->shard = shard;
        fnet_list_push(&shard->batches, &batch->link);
    }
    *out = worker;
    return 0;
}

void
fnet_worker_free(fnet_worker *worker)
{
    fnet_shard *shard = worker->shard;

    fnet_assert(!fnet_thread_started(&worker->thread) && shard->posted == 0);
    for (int i = 0; i < FNET_BATCHES; i++) {
        fnet_list_remove(&worker->batches[i].link);
        fnet_batch_fini(&worker->batches[i], shard->read_cache);
    }
    fnet_cond_fini(&worker->lent);
    fnet_free(worker);
}

int
fnet_worker_lend(fnet_worker *worker)
{
    fnet_shard *shard = worker->shard;
    int rc = start(worker);

    if (rc < 0) {
        return rc;
    }
    fnet_lock_acquire(&shard->output);
    fnet_assert(shard->phase == FNET_PHASE_TURN && shard->posted == 0);
    shard->phase = FNET_PHASE_LENT;
    shard->recall = false;
    fnet_cond_broadcast(&worker->lent);
    fnet_lock_release(&shard->output);
    return 0;
}

void
fnet_worker_recall(fnet_worker *worker)
{
    fnet_shard_lock(worker->shard);
    worker->shard->recall = true;
    fnet_shard_unlock(worker->shard);
}

bool
fnet_worker_is_back(fnet_worker *worker)
{
    fnet_shard *shard = worker->shard;

    fnet_lock_acquire(&shard->output);
    bool back = !fnet_shard_lent(shard) && shard->posted == 0;
    if (back) {
        shard->recall = false; /* and the loop knows, see fnet_shard_away() */
    }
    fnet_lock_release(&shard->output);
    return back;
}

void
fnet_worker_stop(fnet_worker *worker)
{
    fnet_shard *shard = worker->shard;

    if (!fnet_thread_started(&worker->thread)) {
        return;
    }
    fnet_shard_lock(shard);
    shard->stop = true;
    fnet_cond_broadcast(&worker->lent);
    fnet_shard_unlock(shard);
    fnet_thread_join(&worker->thread);
}

int
fnet_worker_start(fnet_worker *worker)
{
    return fnet_shard_lent(worker->shard) ? start(worker) : 0;
}

void
fnet_worker_forget(fnet_worker *worker)
{
    if (fnet_thread_started(&worker->thread)) {
        fnet_shard_forget_pass(worker->shard);
    }
    fnet_thread_forget(&worker->thread);
    worker->shard->stop = false;
    if (fnet_cond_init(&worker->lent) < 0) {
        fnet_panic("worker: no condition after fork");
    }
}

void
fnet_worker_forget_batches(fnet_worker *worker)
{
    fnet_shard *shard = worker->shard;

    fnet_list_init(&shard->batches);
    for (int i = 0; i < FNET_BATCHES; i++) {
        fnet_list_init(&worker->batches[i].link);
        fnet_list_push(&shard->batches, &worker->batches[i].link);
    }
}

void
fnet_worker_take_over(fnet_worker *worker)
{
    fnet_shard *shard = worker->shard;

    fnet_assert(!fnet_thread_started(&worker->thread));
    shard->phase = FNET_PHASE_TURN;
    shard->recall = false;
    fnet_list_splice(&shard->ready, &shard->gated);
}
