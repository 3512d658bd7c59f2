#include "poll/shardset.h"

#include "base/clock.h"
#include "base/mem.h"

#include <errno.h>

/* -- life ----------------------------------------------------------------- */

int
fnet_shardset_init(fnet_shardset *set, fnet_shard *home, fnet_depot *depot)
{
    *set =
        (fnet_shardset){.depot = depot, .limit = 1, .count = 1, .spread = 1};
    set->members[0].shard = home;
    return fnet_inbox_init(&set->inbox, &home->poller);
}

void
fnet_shardset_fini(fnet_shardset *set)
{
    for (unsigned i = 0; i < set->count; i++) {
        fnet_member *member = &set->members[i];
        if (member->worker != NULL) {
            fnet_worker_free(member->worker);
        }
        if (i > 0) {
            fnet_shard_fini(member->shard);
            fnet_free(member->shard);
        }
    }
    set->count = 0;
    if (set->has_waiter) {
        fnet_poller_fini(&set->waiter);
        set->has_waiter = false;
    }
    fnet_inbox_fini(&set->inbox);
}

/* -- the partition -------------------------------------------------------- */

/* Makes shard number `count`, with a worker that has it. */
static int
add_shard(fnet_shardset *set)
{
    fnet_member *member = &set->members[set->count];
    fnet_shard *shard = fnet_calloc(1, sizeof(*shard));
    int rc;

    if (shard == NULL) {
        return -ENOMEM;
    }
    rc = fnet_shard_init(shard, set->depot);
    if (rc < 0) {
        goto fail_shard;
    }
    rc = fnet_worker_new(&member->worker, shard, &set->inbox);
    if (rc < 0) {
        goto fail_worker;
    }
    rc = fnet_worker_lend(member->worker);
    if (rc < 0) {
        goto fail_lend;
    }
    member->shard = shard;
    set->count++;
    return 0;

fail_lend:
    fnet_worker_free(member->worker);
    member->worker = NULL;
fail_worker:
    fnet_shard_fini(shard);
fail_shard:
    fnet_free(shard);
    return rc;
}

fnet_shard *
fnet_shardset_pick(fnet_shardset *set)
{
    unsigned index = set->next < set->spread ? set->next : 0;

    if (index >= set->count && set->failed == 0) {
        set->failed = add_shard(set);
    }
    if (index >= set->count) {
        index = 0;
    }
    set->next = index + 1;
    return set->members[index].shard;
}

/* -- home ----------------------------------------------------------------- */

int
fnet_shardset_lend_home(fnet_shardset *set)
{
    fnet_member *home = &set->members[0];
    int rc;

    fnet_assert(!set->home_away);
    if (!set->has_waiter) {
        rc = fnet_poller_init(&set->waiter);
        if (rc < 0) {
            return rc;
        }
        set->has_waiter = true;
    }
    if (home->worker == NULL) {
        rc = fnet_worker_new(&home->worker, home->shard, &set->inbox);
        if (rc < 0) {
            return rc;
        }
    }
    /* Before the shard is lent: from then on its poller's wake-up is the
     * worker's. */
    atomic_store(&set->inbox.sleeper, &set->waiter);
    rc = fnet_worker_lend(home->worker);
    if (rc < 0) {
        atomic_store(&set->inbox.sleeper, &home->shard->poller);
        return rc;
    }
    set->home_away = true;
    return 0;
}

void
fnet_shardset_recall_home(fnet_shardset *set)
{
    if (set->home_away) {
        fnet_worker_recall(set->members[0].worker);
    }
}

bool
fnet_shardset_regain_home(fnet_shardset *set)
{
    if (set->home_away && fnet_worker_is_back(set->members[0].worker)) {
        set->home_away = false;
        atomic_store(&set->inbox.sleeper, &set->members[0].shard->poller);
    }
    return !set->home_away;
}

void
fnet_shardset_prepare_sleep(fnet_shardset *set)
{
    atomic_store(&set->waiter.asleep, 1);
}

int
fnet_shardset_wait(fnet_shardset *set, int64_t deadline)
{
    struct epoll_event event;
    int64_t timeout = -1;

    if (deadline != FNET_FOREVER) {
        timeout = deadline - fnet_clock_ns();
        timeout = timeout < 0 ? 0 : timeout;
    }
    /* All that it would have been woken for is looked at again, now that it
     * has said that it sleeps. */
    if (fnet_shardset_has_mail(set) ||
        fnet_worker_is_back(set->members[0].worker)) {
        timeout = 0;
    }
    int n = fnet_sys_epoll_wait(set->waiter.epfd, &event, 1, timeout);
    atomic_store_explicit(&set->waiter.asleep, 0, memory_order_relaxed);
    return n == -EINTR ? -EINTR : 0;
}

void
fnet_shardset_wake_any(fnet_shardset *set)
{
    fnet_inbox_wake_any(&set->inbox);
}

/* -- threads -------------------------------------------------------------- */

void
fnet_shardset_flush(fnet_shardset *set)
{
    for (unsigned i = 0; i < set->count; i++) {
        fnet_shard_flush(set->members[i].shard);
    }
}

void
fnet_shardset_stop(fnet_shardset *set)
{
    for (unsigned i = 0; i < set->count; i++) {
        if (set->members[i].worker != NULL) {
            fnet_worker_stop(set->members[i].worker);
        }
    }
}

void
fnet_shardset_start(fnet_shardset *set)
{
    set->incomplete = false;
    for (unsigned i = 0; i < set->count; i++) {
        if (set->members[i].worker != NULL &&
            fnet_worker_start(set->members[i].worker) < 0) {
            set->incomplete = true;
        }
    }
}

/* Nobody had a lock that guards the lists of batches. */
static bool
is_free(fnet_lock *lock)
{
    bool yes = fnet_lock_try(lock);

    if (yes) {
        fnet_lock_release(lock);
    }
    return yes;
}

static bool
batches_are_whole(fnet_shardset *set)
{
    bool whole = is_free(&set->inbox.lock);

    for (unsigned i = 0; i < set->count; i++) {
        whole = is_free(&set->members[i].shard->output) && whole;
    }
    return whole;
}

/* Another thread was in the shard's pass, or the prompter in a flush: with
 * sources in a list on its stack. */
static bool
is_torn(fnet_shard *shard)
{
    return shard->phase == FNET_PHASE_PASS || !is_free(&shard->output);
}

void
fnet_shardset_after_fork(fnet_shardset *set)
{
    bool whole = batches_are_whole(set);

    if (!whole) {
        fnet_inbox_forget(&set->inbox);
    }
    for (unsigned i = 0; i < set->count; i++) {
        fnet_member *member = &set->members[i];
        if (is_torn(member->shard)) {
            fnet_shard_forget_pass(member->shard);
        }
        fnet_shard_reset_lock(member->shard);
        if (member->worker != NULL) {
            if (!whole) {
                fnet_worker_forget_batches(member->worker);
            }
            fnet_worker_forget(member->worker);
            fnet_worker_take_over(member->worker);
        }
        fnet_sys_close(member->shard->poller.epfd);
        member->shard->poller.epfd = fnet_sys_epoll_create();
    }
    if (set->has_waiter) {
        fnet_sys_close(set->waiter.epfd);
        set->waiter.epfd = fnet_sys_epoll_create();
    }
}
