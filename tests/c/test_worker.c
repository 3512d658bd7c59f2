#include "poll/worker.h"

#include "cache/stack.h"

#include "lent.h"

#include <dirent.h>
#include <pthread.h>

/* -- the threads of this process ------------------------------------------ */

static int
other_threads(uint64_t *blocked)
{
    int count = 0;
    const struct dirent *entry;
    DIR *dir = opendir("/proc/self/task");
    while (dir != NULL && (entry = readdir(dir)) != NULL) {
        char name[300], line[256];
        long tid = strtol(entry->d_name, NULL, 10);
        if (tid <= 0 || tid == (long)gettid()) {
            continue;
        }
        count++;
        snprintf(name, sizeof(name), "/proc/self/task/%ld/status", tid);
        FILE *file = fopen(name, "r");
        while (file != NULL && fgets(line, sizeof(line), file) != NULL) {
            if (strncmp(line, "SigBlk:", 7) == 0) {
                *blocked = strtoull(line + 7, NULL, 16);
            }
        }
        if (file != NULL) {
            fclose(file);
        }
    }
    if (dir != NULL) {
        closedir(dir);
    }
    return count;
}

/* -- a worker and its inbox ----------------------------------------------- */

/* A shard that is lent and asked back by hand. */
typedef struct crew {
    world w;
    fnet_poller waiter;
    fnet_inbox inbox;
    fnet_worker *worker;
} crew;

static void
crew_init(crew *c)
{
    world_init(&c->w);
    CHECK(fnet_poller_init(&c->waiter) == 0);
    CHECK(fnet_inbox_init(&c->inbox, &c->waiter) == 0);
    CHECK(fnet_worker_new(&c->worker, &c->w.shard, &c->inbox) == 0);
}

static void
crew_fini(crew *c)
{
    fnet_worker_stop(c->worker);
    fnet_worker_free(c->worker);
    fnet_inbox_fini(&c->inbox);
    fnet_poller_fini(&c->waiter);
    world_fini(&c->w);
}

static void *
end_at_once(void *arg)
{
    return arg;
}

/* The other threads now; a sanitizer has one from the first on. */
static int
threads_at_rest(void)
{
    pthread_t thread;
    uint64_t blocked;
    CHECK(pthread_create(&thread, NULL, end_at_once, NULL) == 0);
    pthread_join(thread, NULL);
    usleep(20000);
    return other_threads(&blocked);
}

static void
lends_and_recalls(void)
{
    crew c;
    uint64_t blocked = 0;
    int threads = threads_at_rest();
    crew_init(&c);
    CHECK(fnet_worker_is_back(c.worker)); /* never lent */
    CHECK(other_threads(&blocked) == threads);
    for (int i = 0; i < 100; i++) {
        CHECK(fnet_worker_lend(c.worker) == 0);
        CHECK(fnet_shard_lent(&c.w.shard));
        CHECK(!fnet_worker_is_back(c.worker));
        fnet_worker_recall(c.worker);
        LENT_AWAIT(fnet_worker_is_back(c.worker));
        CHECK(c.w.shard.phase == FNET_PHASE_TURN);
        CHECK(world_pass(&c.w) == 0);
    }
    CHECK(other_threads(&blocked) == threads + 1);
    const int numbers[] = {SIGINT, SIGTERM, SIGALRM, SIGUSR1, SIGCHLD};
    for (size_t i = 0; i < FNET_COUNTOF(numbers); i++) {
        CHECK((blocked & (1ULL << (numbers[i] - 1))) != 0);
    }
    crew_fini(&c);
    /* Joined is a moment before it is gone from the list. */
    LENT_AWAIT(other_threads(&blocked) == threads);
}

static void
a_thread_that_cannot_be_started(void)
{
    crew c;
    crew_init(&c);
    fnet_thread_fail_after(0);
    CHECK(fnet_worker_lend(c.worker) == -EAGAIN);
    CHECK(!fnet_shard_lent(&c.w.shard));
    CHECK(world_pass(&c.w) == 0); /* the loop's own */
    fnet_worker_stop(c.worker);   /* nothing to stop */
    fnet_thread_fail_after(-1);
    CHECK(fnet_worker_lend(c.worker) == 0);
    crew_fini(&c);
}

static void
without_memory(void)
{
    world w;
    fnet_poller waiter;
    fnet_inbox inbox;
    fnet_worker *worker = NULL;
    world_init(&w);
    CHECK(fnet_poller_init(&waiter) == 0);
    CHECK(fnet_inbox_init(&inbox, &waiter) == 0);
    fnet_mem_fail_after(0);
    CHECK(fnet_worker_new(&worker, &w.shard, &inbox) == -ENOMEM);
    CHECK(fnet_mem_failed() && worker == NULL);
    CHECK(fnet_list_empty(&w.shard.batches));
    fnet_inbox_fini(&inbox);
    fnet_poller_fini(&waiter);
    world_fini(&w);
}

/* -- whoever detaches waits ----------------------------------------------- */

/* A source whose operations stay away from the shard for as long as the test
 * wants, as one that is in a long system call. */
typedef struct gate {
    fnet_source source;
    fnet_shard *shard;
    int fd, peer;
    bool in_event, in_ready, in_flush, in_vain;
    atomic_bool away, let_go, over;
    atomic_int calls;
} gate;

static gate *
gate_of(fnet_source *source)
{
    return fnet_container_of(source, gate, source);
}

static void
stay_away(gate *g)
{
    atomic_fetch_add(&g->calls, 1);
    bool left = fnet_shard_leave(g->shard);
    atomic_store(&g->away, true);
    while (!atomic_load(&g->let_go)) {
        usleep(50);
    }
    atomic_store(&g->over, true);
    atomic_store(&g->away, false);
    fnet_shard_enter(g->shard, left);
}

static bool
gate_event(fnet_shard *shard, fnet_source *source, uint32_t events)
{
    if (gate_of(source)->in_event) {
        stay_away(gate_of(source));
    }
    return true;
}

static bool
gate_ready(fnet_shard *shard, fnet_source *source, fnet_batch *batch)
{
    if (gate_of(source)->in_ready) {
        stay_away(gate_of(source));
    }
    if (gate_of(source)->in_vain) {
        return true;
    }
    fnet_batch_push(batch, source, FNET_WHAT_OUTPUT, 0);
    return true; /* and there is more */
}

static void
gate_flush(fnet_shard *shard, fnet_source *source)
{
    if (gate_of(source)->in_flush) {
        stay_away(gate_of(source));
    }
}

static const fnet_source_ops gate_ops = {
    .kind = 100,
    .event = gate_event,
    .ready = gate_ready,
    .flush = gate_flush,
};

static void
gate_init(gate *g, fnet_shard *shard)
{
    int fds[2];
    world_pair(fds);
    g->shard = shard;
    g->fd = fds[0];
    g->peer = fds[1];
    fnet_source_init(&g->source, &gate_ops, g);
    fnet_shard_lock(shard);
    CHECK(fnet_poller_attach(&shard->poller, &g->source, g->fd,
                             FNET_EVENTS_EDGE & ~(uint32_t)EPOLLOUT) == 0);
    fnet_shard_unlock(shard);
}

static void *
let_go_later(void *arg)
{
    usleep(30000);
    atomic_store((atomic_bool *)arg, true);
    return NULL;
}

static void
ignore(void *arg, fnet_source *source, const fnet_completion *item)
{
}

static void
detach_from(bool in_event, bool in_ready, bool in_flush)
{
    lent l;
    pthread_t thread;
    lent_init(&l, ignore, NULL);
    fnet_shard *shard = lent_worker_shard(&l);
    gate g = {
        .in_event = in_event, .in_ready = in_ready, .in_flush = in_flush};
    gate_init(&g, shard);
    if (in_flush) {
        fnet_shard_lock(shard);
        fnet_shard_defer_locked(shard, &g.source);
        fnet_shard_unlock(shard);
    }
    else {
        CHECK(write(g.peer, "x", 1) == 1);
    }
    LENT_AWAIT(atomic_load(&g.away));
    /* The shard itself is free meanwhile: others do not wait. */
    end other;
    end_open(&other, shard, false);
    CHECK(end_write(&other, 10) == 10);
    end_close(&other);
    CHECK(atomic_load(&g.away));
    CHECK(pthread_create(&thread, NULL, let_go_later, &g.let_go) == 0);
    fnet_shard_lock(shard);
    fnet_shard_detach_locked(shard, &g.source, true);
    CHECK(atomic_load(&g.over) && !atomic_load(&g.away));
    CHECK(shard->busy != &g.source);
    fnet_shard_unlock(shard);
    int calls = atomic_load(&g.calls);
    g.source.ops = NULL; /* whoever still came would crash */
    close(g.fd);
    pthread_join(thread, NULL);
    CHECK(fnet_sys_send(g.peer, "x", 1) == -EPIPE);
    usleep(2000);
    CHECK(atomic_load(&g.calls) == calls);
    close(g.peer);
    lent_fini(&l);
}

static void
detach_waits_for_an_event(void)
{
    detach_from(true, false, false);
}

static void
detach_waits_for_a_read(void)
{
    detach_from(false, true, false);
}

static void
detach_waits_for_a_flush(void)
{
    detach_from(false, false, true);
}

/* Sources that wait for their turn while the worker is away with one. */
static void
those_behind_may_go(void)
{
    lent l;
    end ends[4];
    lent_init(&l, end_note, NULL);
    fnet_shard *shard = lent_worker_shard(&l);
    gate g = {.in_flush = true};
    gate_init(&g, shard);
    for (int i = 0; i < 4; i++) {
        end_open(&ends[i], shard, false);
    }
    fnet_shard_lock(shard);
    fnet_shard_defer_locked(shard, &g.source);
    fnet_shard_unlock(shard);
    LENT_AWAIT(atomic_load(&g.away));
    for (int i = 0; i < 4; i++) {
        CHECK(end_write(&ends[i], 100) == 100);
    }
    end_detach(&ends[1]);
    CHECK(world_at_end(ends[1].peer)); /* dropped, and closed at once */
    close(ends[1].peer);
    fnet_stream_drop(&ends[2].s);
    atomic_store(&g.let_go, true);
    LENT_MEANWHILE(&l, end_all_taken(&ends[0]));
    LENT_MEANWHILE(&l, end_all_taken(&ends[3]));
    CHECK(end_take(&ends[2]) == 0);
    fnet_shard_lock(shard);
    fnet_shard_detach_locked(shard, &g.source, true);
    fnet_shard_unlock(shard);
    close(g.fd);
    close(g.peer);
    for (int i = 0; i < 4; i++) {
        if (i != 1) {
            end_close(&ends[i]);
        }
    }
    lent_fini(&l);
}

/* Who flushes a lent shard waits until the worker has; and sends what is left
 * if that gives the shard back instead. */
static void
flush_of_one_given_back(void)
{
    lent l;
    end e;
    pthread_t thread;
    lent_init(&l, end_note, NULL);
    lent_lend(&l);
    gate g = {.in_flush = true};
    gate_init(&g, &l.home);
    end_open(&e, &l.home, false);
    for (int round = 0; round < 3; round++) {
        CHECK(end_write(&e, 1000) == 1000);
        fnet_shard_flush(&l.home);
        CHECK(end_all_taken(&e));
    }
    fnet_shard_lock(&l.home);
    fnet_shard_defer_locked(&l.home, &g.source);
    fnet_shard_unlock(&l.home);
    LENT_AWAIT(atomic_load(&g.away));
    CHECK(end_write(&e, 1000) == 1000);
    lent_recall(&l);
    CHECK(pthread_create(&thread, NULL, let_go_later, &g.let_go) == 0);
    fnet_shard_flush(&l.home);
    CHECK(atomic_load(&g.over) && end_all_taken(&e));
    pthread_join(thread, NULL);
    LENT_MEANWHILE(&l, l.flips == 1);
    fnet_shard_lock(&l.home);
    fnet_shard_detach_locked(&l.home, &g.source, true);
    fnet_shard_unlock(&l.home);
    close(g.fd);
    close(g.peer);
    end_close(&e);
    lent_fini(&l);
}

static void *
flush_it(void *arg)
{
    fnet_shard_flush(arg);
    return NULL;
}

/* Nobody waits for a worker that is stopped, or is being stopped: whoever
 * stops it may need what the one that waits holds. */
static void
flush_of_one_that_is_stopped(void)
{
    lent l;
    end e;
    pthread_t threads[2];
    lent_init(&l, end_note, NULL);
    fnet_shard *shard = lent_worker_shard(&l);
    end_open(&e, shard, false);
    fnet_shardset_stop(&l.set);
    CHECK(end_write(&e, 1000) == 1000);
    fnet_shard_flush(shard);
    CHECK(end_take(&e) == 0);
    fnet_shardset_start(&l.set);
    LENT_MEANWHILE(&l, end_all_taken(&e));
    /* While one waits. */
    gate g = {.in_flush = true};
    gate_init(&g, shard);
    fnet_shard_lock(shard);
    fnet_shard_defer_locked(shard, &g.source);
    fnet_shard_unlock(shard);
    LENT_AWAIT(atomic_load(&g.away));
    CHECK(end_write(&e, 1000) == 1000);
    CHECK(pthread_create(&threads[0], NULL, flush_it, shard) == 0);
    CHECK(pthread_create(&threads[1], NULL, let_go_later, &g.let_go) == 0);
    usleep(5000);
    fnet_shardset_stop(&l.set);
    pthread_join(threads[0], NULL);
    pthread_join(threads[1], NULL);
    fnet_shardset_start(&l.set);
    LENT_MEANWHILE(&l, end_all_taken(&e));
    fnet_shard_lock(shard);
    fnet_shard_detach_locked(shard, &g.source, true);
    fnet_shard_unlock(shard);
    close(g.fd);
    close(g.peer);
    end_close(&e);
    lent_fini(&l);
}

/* -- what a late batch has of those that are gone ------------------------- */

static void
late_batches_reach_nobody(void)
{
    lent l;
    end old, fresh;
    lent_init(&l, end_note, NULL);
    fnet_shard *shard = lent_worker_shard(&l);
    end_open(&old, shard, false);
    fnet_stream_want(&old.s, true);
    CHECK(world_send(old.peer, 0, 100) == 100);
    LENT_AWAIT(fnet_shardset_has_mail(&l.set));
    end_detach(&old);
    /* The same memory, slot and number. */
    int peer = old.peer, fd = old.fd;
    end_open(&fresh, shard, false);
    CHECK(fresh.fd == fd);
    CHECK((uint32_t)fresh.s.source.tag != 0);
    fnet_stream_want(&fresh.s, true);
    lent_turn(&l, FNET_NO_WAIT);
    CHECK(l.dropped == 1 && fresh.got == 0 && old.got == 0);
    CHECK(world_send(fresh.peer, 0, 50) == 50);
    LENT_UNTIL(&l, fresh.got == 50);
    close(peer);
    end_close(&fresh);
    lent_fini(&l);
}

/* -- bounds --------------------------------------------------------------- */

static uint64_t
polls_of(fnet_shard *shard)
{
    fnet_lock_acquire(&shard->output);
    uint64_t polls = shard->stats.polls;
    fnet_lock_release(&shard->output);
    return polls;
}

static uint64_t
reads_of(fnet_shard *shard)
{
    fnet_lock_acquire(&shard->output);
    uint64_t reads = shard->stats.reads;
    fnet_lock_release(&shard->output);
    return reads;
}

/* Until the worker has nothing more to do: no pass for 20 ms. */
static void
await_rest(fnet_shard *shard)
{
    int64_t deadline = fnet_clock_ns() + WORLD_PATIENCE;
    uint64_t before;
    do {
        before = polls_of(shard);
        usleep(20000);
    } while (polls_of(shard) != before && fnet_clock_ns() < deadline);
    CHECK(fnet_clock_ns() < deadline);
}

static bool
has_gated(fnet_shard *shard)
{
    fnet_lock_acquire(&shard->output);
    bool gated = !fnet_list_empty(&shard->gated);
    fnet_lock_release(&shard->output);
    return gated;
}

/* A connection has at most one batch that the loop did not return. */
static void
reads_ahead_by_one_batch(void)
{
    lent l;
    end e;
    size_t sent = 0;
    lent_init(&l, end_note, NULL);
    fnet_shard *shard = lent_worker_shard(&l);
    end_open(&e, shard, false);
    fnet_stream_want(&e.s, true);
    for (int i = 0; i < 8; i++) {
        sent += world_send(e.peer, sent, 1000);
        LENT_AWAIT(fnet_shardset_has_mail(&l.set));
    }
    LENT_AWAIT(has_gated(shard));
    await_rest(shard);
    CHECK(fnet_inbox_count(&l.set.inbox) == 1);
    CHECK(reads_of(shard) == 1);
    lent_take_mail(&l);
    CHECK(e.got == 1000 || e.got == sent); /* it may have been quick */
    LENT_UNTIL(&l, e.got == sent);
    CHECK(e.datas == 2);
    /* One that was paused while its batch was out: no more comes. */
    sent += world_send(e.peer, sent, 1000);
    LENT_AWAIT(fnet_shardset_has_mail(&l.set));
    fnet_stream_want(&e.s, false);
    sent += world_send(e.peer, sent, 1000);
    lent_take_mail(&l);
    await_rest(shard);
    lent_take_mail(&l);
    CHECK(e.got == sent - 1000);
    fnet_stream_want(&e.s, true);
    LENT_UNTIL(&l, e.got == sent);
    end_close(&e);
    lent_fini(&l);
}

enum { MANY = 12 };

/* The loop is stuck in a callback: what is written goes on leaving, input
 * stays in the sockets, and nobody spins. */
static void
a_loop_that_returns_nothing(void)
{
    lent l;
    end ends[MANY];
    lent_init(&l, end_note, NULL);
    fnet_shard *shard = lent_worker_shard(&l);
    for (int i = 0; i < MANY; i++) {
        end_open(&ends[i], shard, false);
        fnet_stream_want(&ends[i].s, true);
    }
    long before = fnet_mem_live();
    for (int i = 0; i < MANY; i++) {
        unsigned mail = i < FNET_BATCHES ? (unsigned)i + 1 : FNET_BATCHES;
        CHECK(world_send(ends[i].peer, 0, 3000) == 3000);
        LENT_AWAIT(fnet_inbox_count(&l.set.inbox) == mail);
    }
    await_rest(shard);
    CHECK(fnet_inbox_count(&l.set.inbox) == FNET_BATCHES);
    uint64_t reads = reads_of(shard);
    CHECK(reads == FNET_BATCHES);
    for (int i = 0; i < MANY; i++) {
        CHECK(world_send(ends[i].peer, 3000, 3000) == 3000);
        CHECK(end_write(&ends[i], 500) == 500);
    }
    await_rest(shard);
    CHECK(reads_of(shard) == reads);
    CHECK(fnet_mem_live() - before <= FNET_BATCHES * FNET_BATCH_BLOCKS + MANY);
    uint64_t polls = polls_of(shard);
    for (int i = 0; i < MANY; i++) {
        LENT_AWAIT(end_all_taken(&ends[i]));
    }
    usleep(50000);
    CHECK(polls_of(shard) - polls <= 5);
    /* It comes back to itself. */
    for (int i = 0; i < MANY; i++) {
        LENT_UNTIL(&l, ends[i].got == 6000);
        end_close(&ends[i]);
    }
    lent_fini(&l);
}

/* Input that there is no memory for is tried again, with a rest between. */
static void
rests_where_nothing_can_be_done(void)
{
    lent l;
    lent_init(&l, end_note, NULL);
    fnet_shard *shard = lent_worker_shard(&l);
    gate g = {.in_vain = true};
    gate_init(&g, shard);
    CHECK(write(g.peer, "x", 1) == 1);
    LENT_AWAIT(polls_of(shard) > 10);
    uint64_t polls = polls_of(shard);
    usleep(50000);
    CHECK(polls_of(shard) - polls <= 60);
    fnet_shard_lock(shard);
    fnet_shard_detach_locked(shard, &g.source, true);
    fnet_shard_unlock(shard);
    await_rest(shard);
    close(g.fd);
    close(g.peer);
    lent_fini(&l);
}

static bool
is_lent(fnet_shard *shard)
{
    fnet_lock_acquire(&shard->output);
    bool is = fnet_shard_lent(shard);
    fnet_lock_release(&shard->output);
    return is;
}

/* A recall while the loop has all batches: given back, but the loop's only
 * with the last of them. */
static void
back_with_the_last_batch(void)
{
    lent l;
    end ends[MANY];
    lent_init(&l, end_note, NULL);
    lent_lend(&l);
    for (int i = 0; i < MANY; i++) {
        end_open(&ends[i], &l.home, false);
        fnet_stream_want(&ends[i].s, true);
        unsigned mail = i < FNET_BATCHES ? (unsigned)i + 1 : FNET_BATCHES;
        CHECK(world_send(ends[i].peer, 0, 1000) == 1000);
        LENT_AWAIT(fnet_inbox_count(&l.set.inbox) == mail);
    }
    CHECK(fnet_inbox_count(&l.set.inbox) == FNET_BATCHES);
    lent_recall(&l);
    LENT_AWAIT(!is_lent(&l.home));
    CHECK(!fnet_shardset_regain_home(&l.set));
    /* What is written now waits for nobody: the turn may be a long one. */
    CHECK(end_write(&ends[0], 10) == 0 && end_all_taken(&ends[0]));
    while (fnet_shardset_has_mail(&l.set)) {
        CHECK(!fnet_shardset_regain_home(&l.set));
        lent_take_mail(&l);
    }
    CHECK(fnet_shardset_regain_home(&l.set));
    for (int i = 0; i < MANY; i++) {
        LENT_UNTIL(&l, ends[i].got == 1000);
    }
    LENT_MEANWHILE(&l, end_all_taken(&ends[0]));
    for (int i = 0; i < MANY; i++) {
        end_close(&ends[i]);
    }
    lent_fini(&l);
}

/* Written while the worker is on its way to give home back: the loop's thread
 * may be in a long turn, so the bytes leave before. */
static void
sends_before_it_gives_back(void)
{
    lent l;
    end e;
    lent_init(&l, end_note, NULL);
    lent_lend(&l);
    gate g = {.in_event = true};
    gate_init(&g, &l.home);
    end_open(&e, &l.home, false);
    CHECK(write(g.peer, "x", 1) == 1);
    LENT_AWAIT(atomic_load(&g.away));
    CHECK(end_write(&e, 1000) == 1000);
    lent_recall(&l);
    atomic_store(&g.let_go, true);
    LENT_AWAIT(!is_lent(&l.home));
    CHECK(end_all_taken(&e));
    LENT_MEANWHILE(&l, l.flips == 1);
    fnet_shard_lock(&l.home);
    fnet_shard_detach_locked(&l.home, &g.source, true);
    fnet_shard_unlock(&l.home);
    close(g.fd);
    close(g.peer);
    end_close(&e);
    lent_fini(&l);
}

static bool
has_to_trim(fnet_shard *shard)
{
    fnet_lock_acquire(&shard->output);
    bool trim = shard->trim;
    fnet_lock_release(&shard->output);
    return trim;
}

/* The memory of an idle worker goes back when it is asked for. */
static void
gives_its_memory_back(void)
{
    lent l;
    end e;
    fnet_cache_stats stats;
    lent_init(&l, end_note, NULL);
    fnet_shard *shard = lent_worker_shard(&l);
    end_open(&e, shard, false);
    fnet_stream_want(&e.s, true);
    for (int i = 0; i < 20; i++) {
        CHECK(world_send(e.peer, e.got, 4000) == 4000);
        size_t want = e.got + 4000;
        LENT_UNTIL(&l, e.got == want);
        end_write(&e, 3000);
        LENT_MEANWHILE(&l, end_all_taken(&e));
    }
    await_rest(shard);
    fnet_shard_lock(shard);
    shard->trim = true;
    fnet_shard_unlock(shard);
    LENT_AWAIT(!has_to_trim(shard));
    await_rest(shard);
    fnet_depot_trim_any(l.depot);
    fnet_cache_get_stats(shard->cache, &stats);
    CHECK(stats.held_blocks == 0);
    fnet_cache_get_stats(shard->read_cache, &stats);
    CHECK(stats.held_blocks == 0);
    fnet_lock_acquire(&shard->output);
    fnet_list *node;
    fnet_list_foreach(node, &shard->batches)
    {
        CHECK(fnet_container_of(node, fnet_batch, link)->nblocks == 0);
    }
    fnet_lock_release(&shard->output);
    CHECK(world_send(e.peer, e.got, 100) == 100);
    LENT_UNTIL(&l, e.got == 20 * 4000 + 100);
    end_close(&e);
    lent_fini(&l);
}

/* -- threads that end and come back --------------------------------------- */

static void
stopped_and_started(void)
{
    lent l;
    end e;
    uint64_t blocked;
    int threads = threads_at_rest();
    lent_init(&l, end_note, NULL);
    fnet_shard *shard = lent_worker_shard(&l);
    end_open(&e, shard, false);
    fnet_stream_want(&e.s, true);
    for (int i = 0; i < 50; i++) {
        size_t want = e.got + 10;
        fnet_shardset_stop(&l.set);
        LENT_AWAIT(other_threads(&blocked) == threads);
        CHECK(fnet_shard_lent(shard)); /* nobody else's meanwhile */
        CHECK(world_send(e.peer, e.got, 10) == 10);
        end_write(&e, 10);
        fnet_shardset_stop(&l.set); /* twice is once */
        fnet_shardset_start(&l.set);
        fnet_shardset_start(&l.set);
        CHECK(other_threads(&blocked) == threads + 1);
        LENT_UNTIL(&l, e.got == want);
        LENT_MEANWHILE(&l, end_all_taken(&e));
    }
    /* Asked for the shard while it had no thread. */
    lent_lend(&l);
    fnet_shardset_stop(&l.set);
    lent_recall(&l);
    CHECK(!fnet_shardset_regain_home(&l.set));
    fnet_shardset_start(&l.set);
    LENT_MEANWHILE(&l, l.flips == 1);
    end_close(&e);
    lent_fini(&l);
}

int
main(void)
{
    RUN(lends_and_recalls);
    RUN(a_thread_that_cannot_be_started);
    RUN(without_memory);
    RUN(detach_waits_for_an_event);
    RUN(detach_waits_for_a_read);
    RUN(detach_waits_for_a_flush);
    RUN(those_behind_may_go);
    RUN(flush_of_one_given_back);
    RUN(flush_of_one_that_is_stopped);
    RUN(late_batches_reach_nobody);
    RUN(reads_ahead_by_one_batch);
    RUN(a_loop_that_returns_nothing);
    RUN(rests_where_nothing_can_be_done);
    RUN(back_with_the_last_batch);
    RUN(sends_before_it_gives_back);
    RUN(gives_its_memory_back);
    RUN(stopped_and_started);
    return test_report();
}
