#include "poll/shardset.h"

#include "base/clock.h"
#include "base/mem.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* -- how many ------------------------------------------------------------- */

unsigned
fnet_parse_quota(const char *text)
{
    char *end;
    long quota = strtol(text, &end, 10);
    if (end == text || quota <= 0) {
        return 0;
    }
    long period = strtol(end, NULL, 10);
    if (period <= 0) {
        return 0;
    }
    long cpus = quota / period + (quota % period != 0);
    return cpus < CPU_SETSIZE ? (unsigned)cpus : 0;
}

static bool
read_file(const char *path, char *text, size_t size)
{
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        return false;
    }
    size_t n = fread(text, 1, size - 1, file);
    fclose(file);
    text[n] = '\0';
    return n > 0;
}

static unsigned
smaller(unsigned limit, unsigned other)
{
    return other != 0 && (limit == 0 || other < limit) ? other : limit;
}

/* The quota of the group at `path` and of those above it. */
static unsigned
quota_of_group(const char *root, char *path)
{
    unsigned limit = 0;
    char file[640], text[64];

    for (;;) {
        int n = snprintf(file, sizeof(file), "%s%s/cpu.max", root, path);
        if (n > 0 && (size_t)n < sizeof(file) &&
            read_file(file, text, sizeof(text))) {
            limit = smaller(limit, fnet_parse_quota(text));
        }
        char *slash = strrchr(path, '/');
        if (slash == NULL) {
            return limit;
        }
        *slash = '\0';
    }
}

static bool
read_group_file(const char *root, const char *name, char *text, size_t size)
{
    char file[640];
    int n = snprintf(file, sizeof(file), "%s/%s", root, name);

    return n > 0 && (size_t)n < sizeof(file) && read_file(file, text, size);
}

/* Version 1, as a container sees its own group. */
static unsigned
quota_of_version_1(const char *root)
{
    char quota[48], period[48], both[100];

    if (!read_group_file(root, "cpu/cpu.cfs_quota_us", quota, sizeof(quota)) ||
        !read_group_file(root, "cpu/cpu.cfs_period_us", period,
                         sizeof(period))) {
        return 0;
    }
    snprintf(both, sizeof(both), "%s %s", quota, period);
    return fnet_parse_quota(both);
}

unsigned
fnet_group_quota(const char *groups, const char *root)
{
    char text[4096];
    unsigned limit = 0;

    if (read_file(groups, text, sizeof(text))) {
        /* The line of version 2; others have other numbers. */
        char *line = text;
        while (line != NULL && strncmp(line, "0::", 3) != 0) {
            line = strchr(line, '\n');
            line = line == NULL ? NULL : line + 1;
        }
        if (line != NULL) {
            char *path = line + 3;
            char *end = strchr(path, '\n');
            if (end != NULL) {
                *end = '\0';
            }
            if (strlen(path) < 512) {
                limit = quota_of_group(root, path);
            }
        }
    }
    return smaller(limit, quota_of_version_1(root));
}

unsigned
fnet_usable_cpus(void)
{
    cpu_set_t set;
    unsigned cpus = 1;

    if (sched_getaffinity(0, sizeof(set), &set) == 0) {
        int n = CPU_COUNT(&set);
        cpus = n < 1 ? 1 : (unsigned)n;
    }
    unsigned quota = fnet_group_quota("/proc/self/cgroup", "/sys/fs/cgroup");
    return quota != 0 && quota < cpus ? quota : cpus;
}

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
