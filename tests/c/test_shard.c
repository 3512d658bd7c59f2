#include "poll/shard.h"

#include "world.h"

#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/time.h>

/* -- a kind of source for these tests: an eventfd ------------------------- */

typedef struct probe {
    fnet_source source;
    int number;
    int fd;
    int posts;    /* completions that it posts each time */
    int more;     /* times that it says there is more to do */
    int ignores;  /* events that concern nobody */
    int rings;    /* the eventfd that such an event rings, or -1 */
    size_t bytes; /* that it receives each time */
    int events;   /* calls */
    int readies;  /* calls that posted */
    int flushes;  /* calls */
    int put_back; /* flushes after which it has output again */
} probe;

/* The order in which the probes were called, by number. */
static int calls[1024];
static int ncalls;

static void
note_call(const probe *p)
{
    if (ncalls < (int)FNET_COUNTOF(calls)) {
        calls[ncalls++] = p->number;
    }
}

static probe *
probe_of(fnet_source *source)
{
    return fnet_container_of(source, probe, source);
}

static void
ring(int eventfd)
{
    uint64_t one = 1;
    CHECK(fnet_sys_write(eventfd, &one, sizeof(one)) == sizeof(one));
}

static bool
probe_event(fnet_shard *shard, fnet_source *source, uint32_t events)
{
    probe *p = probe_of(source);
    CHECK(shard->phase == FNET_PHASE_PASS);
    CHECK((events & EPOLLIN) != 0);
    p->events++;
    if (p->ignores > 0) {
        p->ignores--;
        if (p->rings >= 0) {
            ring(p->rings);
        }
        return false;
    }
    return true;
}

static bool
probe_ready(fnet_shard *shard, fnet_source *source, fnet_batch *batch)
{
    probe *p = probe_of(source);
    CHECK(!fnet_batch_full(batch));
    note_call(p);
    batch->bytes += p->bytes;
    p->readies++;
    for (int i = 0; i < p->posts; i++) {
        if (batch->count == FNET_BATCH_MAX) {
            return true;
        }
        fnet_batch_push(batch, source, FNET_WHAT_WATCH, p->number);
    }
    return p->more > 0 && p->more-- > 0;
}

static void
probe_flush(fnet_shard *shard, fnet_source *source)
{
    probe *p = probe_of(source);
    note_call(p);
    p->flushes++;
    if (p->put_back > 0) {
        p->put_back--;
        fnet_list_push(&shard->dirty, &source->dirty);
    }
}

static const fnet_source_ops probe_ops = {
    .kind = 99,
    .event = probe_event,
    .ready = probe_ready,
    .flush = probe_flush,
};

static void
probe_init(probe *p, world *w, int number)
{
    *p = (probe){.number = number, .posts = 1, .rings = -1};
    p->fd = fnet_sys_eventfd();
    CHECK(p->fd >= 0);
    fnet_source_init(&p->source, &probe_ops, p);
    CHECK(fnet_poller_attach(&w->shard.poller, &p->source, p->fd,
                             (uint32_t)EPOLLIN | EPOLLET) == 0);
}

static void
probe_fini(probe *p, world *w)
{
    fnet_poller_detach(&w->shard.poller, &p->source, false);
    close(p->fd);
}

/* True if exactly these were called since the last look, in this order; ends
 * with -1. */
static bool
called(const int *numbers)
{
    int i = 0;
    while (i < ncalls && numbers[i] == calls[i]) {
        i++;
    }
    bool same = i == ncalls && numbers[i] == -1;
    ncalls = 0;
    return same;
}

#define CALLED(...) called((const int[]){__VA_ARGS__, -1})
#define CALLED_NOBODY() called((const int[]){-1})

static void
probes_init(probe *probes, int count, world *w)
{
    world_init(w);
    ncalls = 0;
    for (int i = 0; i < count; i++) {
        probe_init(&probes[i], w, i);
    }
}

static void
probes_fini(probe *probes, int count, world *w)
{
    for (int i = 0; i < count; i++) {
        probe_fini(&probes[i], w);
    }
    world_fini(w);
}

/* -- init ----------------------------------------------------------------- */

static void
init_without_memory_or_descriptors(void)
{
    fnet_depot *depot;
    fnet_shard shard;
    struct rlimit before;
    CHECK(fnet_depot_new(&depot, MIB) == 0);
    long live = fnet_mem_live();
    int fds = world_count_fds();
    for (long n = 0;; n++) {
        fnet_mem_fail_after(n);
        int rc = fnet_shard_init(&shard, depot);
        if (rc == 0) {
            CHECK(!fnet_mem_failed() && n > 1);
            break;
        }
        CHECK(rc == -ENOMEM && fnet_mem_failed());
        CHECK(fnet_mem_live() == live && world_count_fds() == fds);
    }
    fnet_mem_fail_after(-1);
    fnet_shard_fini(&shard);
    CHECK(getrlimit(RLIMIT_NOFILE, &before) == 0);
    struct rlimit none = before;
    none.rlim_cur = 0;
    CHECK(setrlimit(RLIMIT_NOFILE, &none) == 0);
    CHECK(fnet_shard_init(&shard, depot) == -EMFILE);
    CHECK(setrlimit(RLIMIT_NOFILE, &before) == 0);
    CHECK(fnet_mem_live() == live && world_count_fds() == fds);
    fnet_depot_free(depot);
}

static void
fini_with_a_source(void)
{
    probe p;
    world w;
    probes_init(&p, 1, &w);
    CHECK_PANICS(fnet_shard_fini(&w.shard));
    probes_fini(&p, 1, &w);
}

/* -- reading -------------------------------------------------------------- */

static void
in_the_order_of_events(void)
{
    probe p[4];
    world w;
    probes_init(p, 4, &w);
    ring(p[2].fd);
    ring(p[0].fd);
    ring(p[3].fd);
    ring(p[1].fd);
    ring(p[2].fd); /* told already */
    CHECK(world_pass(&w) == 4);
    CHECK(CALLED(2, 0, 3, 1));
    const int order[] = {2, 0, 3, 1};
    for (int i = 0; i < 4; i++) {
        const fnet_completion *item = &w.batch.items[i];
        CHECK(item->result == order[i]);
        CHECK(item->source == &p[order[i]].source);
        CHECK(fnet_poller_lookup(&w.shard.poller, item->tag) == item->source);
    }
    CHECK(world_pass(&w) == 0 && CALLED_NOBODY());
    CHECK(w.shard.stats.passes == 2 && w.shard.stats.events == 4);
    probes_fini(p, 4, &w);
}

/* Those that have more to do come first in the next pass, in the order in
 * which they were, then those of new events. */
static void
first_come_first_served(void)
{
    probe p[3];
    world w;
    probes_init(p, 3, &w);
    p[1].more = p[2].more = 2;
    ring(p[1].fd);
    ring(p[0].fd);
    ring(p[2].fd);
    CHECK(world_pass(&w) == 3 && CALLED(1, 0, 2));
    ring(p[0].fd);
    ring(p[2].fd); /* is on the list already: not twice */
    CHECK(world_pass(&w) == 3 && CALLED(1, 2, 0));
    CHECK(world_pass(&w) == 2 && CALLED(1, 2));
    CHECK(world_pass(&w) == 0 && CALLED_NOBODY());
    probes_fini(p, 3, &w);
}

/* Work that is left means that the next pass does not wait. */
static void
leftovers_do_not_wait(void)
{
    probe p;
    world w;
    probes_init(&p, 1, &w);
    p.more = 1;
    ring(p.fd);
    CHECK(fnet_shard_pass(&w.shard, &w.batch, FNET_FOREVER) == 0);
    CHECK(fnet_shard_pass(&w.shard, &w.batch, FNET_FOREVER) == 0);
    CHECK(w.batch.count == 1 && CALLED(0, 0));
    /* So does what somebody has put there in the turn. */
    fnet_shard_make_ready(&w.shard, &p.source);
    fnet_shard_make_ready(&w.shard, &p.source);
    CHECK(fnet_shard_pass(&w.shard, &w.batch, FNET_FOREVER) == 0);
    CHECK(w.batch.count == 1 && CALLED(0));
    probes_fini(&p, 1, &w);
}

static void
a_full_batch_leaves_the_rest(void)
{
    probe p[4];
    world w;
    probes_init(p, 4, &w);
    p[0].posts = 100;
    p[1].posts = 28;
    for (int i = 0; i < 4; i++) {
        ring(p[i].fd);
    }
    CHECK(world_pass(&w) == FNET_BATCH_MAX && CALLED(0, 1));
    ring(p[1].fd); /* new events wait behind those that were left */
    CHECK(world_pass(&w) == 2 + 28 && CALLED(2, 3, 1));
    /* One that had its turn goes behind those that had none. */
    p[0].posts = FNET_BATCH_MAX;
    p[0].more = 1;
    ring(p[0].fd);
    ring(p[2].fd);
    ring(p[3].fd);
    CHECK(world_pass(&w) == FNET_BATCH_MAX && CALLED(0));
    p[0].posts = 1;
    CHECK(world_pass(&w) == 3 && CALLED(2, 3, 0));
    CHECK(world_pass(&w) == 0 && CALLED_NOBODY());
    probes_fini(p, 4, &w);
}

/* More events than fit into one batch: each is delivered, once. */
static void
a_flood_of_events(void)
{
    enum { MANY = 300 };
    static probe p[MANY];
    world w;
    int passes = 0;
    probes_init(p, MANY, &w);
    for (int i = 0; i < MANY; i++) {
        ring(p[i].fd);
    }
    while (world_pass(&w) > 0) {
        passes++;
    }
    CHECK(passes == (MANY + FNET_BATCH_MAX - 1) / FNET_BATCH_MAX);
    for (int i = 0; i < MANY; i++) {
        CHECK(p[i].readies == 1);
    }
    probes_fini(p, MANY, &w);
}

/* A batch is full of bytes as well: those that got nothing are next. */
static void
a_batch_full_of_bytes(void)
{
    enum { READERS = 5, PASSES = 50 };
    probe p[READERS];
    world w;
    probes_init(p, READERS, &w);
    for (int i = 0; i < READERS; i++) {
        p[i].bytes = FNET_BATCH_BYTES / 2;
        p[i].more = PASSES * 2;
        ring(p[i].fd);
    }
    CHECK(world_pass(&w) == 2 && CALLED(0, 1));
    CHECK(world_pass(&w) == 2 && CALLED(2, 3));
    CHECK(world_pass(&w) == 2 && CALLED(4, 0));
    CHECK(world_pass(&w) == 2 && CALLED(1, 2));
    for (int i = 4; i < PASSES; i++) {
        CHECK(world_pass(&w) == 2);
    }
    for (int i = 0; i < READERS; i++) {
        CHECK(p[i].readies == PASSES * 2 / READERS);
    }
    probes_fini(p, READERS, &w);
}

static void
detached_before_its_turn(void)
{
    probe p[3];
    world w;
    probes_init(p, 3, &w);
    p[0].more = p[1].more = 1;
    ring(p[0].fd);
    ring(p[1].fd);
    CHECK(world_pass(&w) == 2 && CALLED(0, 1));
    uint64_t tag = p[0].source.tag;
    ring(p[0].fd);
    fnet_poller_detach(&w.shard.poller, &p[0].source, false);
    CHECK(world_pass(&w) == 1 && CALLED(1));
    CHECK(fnet_poller_lookup(&w.shard.poller, tag) == NULL);
    probes_fini(p, 3, &w);
}

/* -- waiting -------------------------------------------------------------- */

static void
quiet_events_are_polled_again(void)
{
    probe p[2];
    world w;
    probes_init(p, 2, &w);
    /* Each event that nobody wants causes the next one, the last one the
     * event that somebody wants: all within one pass. */
    p[0].ignores = 5;
    p[0].rings = p[0].fd;
    ring(p[0].fd);
    CHECK(fnet_shard_pass(&w.shard, &w.batch, FNET_FOREVER) == 0);
    fnet_shard_begin_turn(&w.shard, false);
    CHECK(w.batch.count == 1 && CALLED(0) && p[0].events == 6);
    CHECK(w.shard.stats.quiet == 5 && w.shard.stats.polls == 6);
    /* Without leave to wait there is one look. */
    p[0].ignores = 1;
    p[0].rings = p[1].fd;
    ring(p[0].fd);
    CHECK(world_pass(&w) == 0 && CALLED_NOBODY());
    CHECK(world_pass(&w) == 1 && CALLED(1));
    CHECK(w.shard.stats.quiet == 5 && w.shard.stats.polls == 8);
    /* A deadline bounds all of it. */
    int64_t deadline = fnet_clock_ns() + 20 * FNET_MSEC;
    p[0].ignores = 1000000;
    p[0].rings = p[0].fd;
    ring(p[0].fd);
    CHECK(fnet_shard_pass(&w.shard, &w.batch, deadline) == 0);
    CHECK(fnet_clock_ns() >= deadline && w.batch.count == 0);
    CHECK(CALLED_NOBODY() && w.shard.stats.quiet > 5);
    probes_fini(p, 2, &w);
}

static void
deadlines(void)
{
    world w;
    world_init(&w);
    for (int pwait2 = 0; pwait2 < 2; pwait2++) {
        fnet_sys_forget_pwait2(pwait2 == 0);
        for (int64_t us = 100; us < 30000; us *= 5) {
            int64_t deadline = fnet_clock_ns() + us * 1000;
            CHECK(fnet_shard_pass(&w.shard, &w.batch, deadline) == 0);
            CHECK(fnet_clock_ns() >= deadline); /* never early */
        }
    }
    uint64_t polls = w.shard.stats.polls;
    int64_t past = fnet_clock_ns() - FNET_SEC;
    CHECK(fnet_shard_pass(&w.shard, &w.batch, past) == 0);
    CHECK(fnet_shard_pass(&w.shard, &w.batch, 1) == 0);
    CHECK(fnet_shard_pass(&w.shard, &w.batch, -1) == 0);
    CHECK(fnet_shard_pass(&w.shard, &w.batch, FNET_NO_WAIT) == 0);
    CHECK(w.shard.stats.polls == polls + 4);
    CHECK(w.batch.count == 0);
    fnet_shard_begin_turn(&w.shard, false);
    world_fini(&w);
}

static void *
wake_later(void *arg)
{
    world *w = arg;
    while (atomic_load(&w->shard.poller.asleep) == 0) {
        usleep(200);
    }
    fnet_poller_wake_any(&w->shard.poller);
    return NULL;
}

static void
woken_by_another_thread(void)
{
    world w;
    pthread_t thread;
    world_init(&w);
    for (int i = 0; i < 20; i++) {
        CHECK(pthread_create(&thread, NULL, wake_later, &w) == 0);
        fnet_shard_prepare_sleep(&w.shard);
        CHECK(fnet_shard_pass(&w.shard, &w.batch, FNET_FOREVER) == 0);
        CHECK(w.batch.count == 0);
        CHECK(atomic_load(&w.shard.poller.asleep) == 0);
        pthread_join(thread, NULL);
    }
    /* A pass that ends for another reason is awake as well. */
    fnet_shard_prepare_sleep(&w.shard);
    CHECK(world_pass(&w) == 0);
    CHECK(atomic_load(&w.shard.poller.asleep) == 0);
    world_fini(&w);
}

static atomic_int signals;

static void
on_signal(int number)
{
    atomic_fetch_add(&signals, 1);
}

/* Comes again and again, for the first may come before the wait. */
static void
start_signals(void)
{
    struct sigaction action = {.sa_handler = on_signal};
    struct itimerval often = {{.tv_usec = 10000}, {.tv_usec = 10000}};
    CHECK(sigaction(SIGALRM, &action, NULL) == 0);
    CHECK(setitimer(ITIMER_REAL, &often, NULL) == 0);
}

static void
stop_signals(void)
{
    struct itimerval never = {{0}, {0}};
    CHECK(setitimer(ITIMER_REAL, &never, NULL) == 0);
    CHECK(signal(SIGALRM, SIG_DFL) != SIG_ERR);
}

static void
a_signal_ends_the_wait(void)
{
    world w;
    world_init(&w);
    start_signals();
    for (int i = 0; i < 3; i++) {
        int before = atomic_load(&signals);
        CHECK(fnet_shard_pass(&w.shard, &w.batch, FNET_FOREVER) == -EINTR);
        CHECK(atomic_load(&signals) > before && w.batch.count == 0);
    }
    stop_signals();
    fnet_shard_begin_turn(&w.shard, false);
    world_fini(&w);
}

/* -- turns ---------------------------------------------------------------- */

static void
begin_of_a_turn(void)
{
    world w;
    world_init(&w);
    fnet_shard *shard = &w.shard;
    uint64_t turn = shard->turn;
    shard->late = true;
    CHECK(fnet_shard_pass(shard, &w.batch, FNET_NO_WAIT) == 0);
    CHECK(shard->phase == FNET_PHASE_PASS && !shard->late);
    fnet_shard_begin_turn(shard, true);
    CHECK(shard->phase == FNET_PHASE_TURN);
    CHECK(shard->turn == turn + 1 && shard->eager);
    fnet_shard_begin_turn(shard, false);
    CHECK(shard->turn == turn + 2 && !shard->eager);
    shard->defer = false;
    fnet_shard_begin_turn(shard, false);
    CHECK(shard->eager);
    world_fini(&w);
}

static void
defer(world *w, probe *p)
{
    fnet_lock_acquire(&w->shard.output);
    fnet_shard_defer_locked(&w->shard, &p->source);
    fnet_lock_release(&w->shard.output);
}

static void
output_of_a_turn_goes_in_order(void)
{
    probe p[3];
    world w;
    probes_init(p, 3, &w);
    defer(&w, &p[1]);
    defer(&w, &p[0]);
    defer(&w, &p[1]); /* is there already */
    defer(&w, &p[2]);
    CHECK(w.shard.deferrals == 1); /* it counts turns */
    CHECK(world_pass(&w) == 0 && CALLED(1, 0, 2));
    CHECK(world_pass(&w) == 0 && CALLED_NOBODY());
    defer(&w, &p[2]);
    CHECK(w.shard.deferrals == 2);
    fnet_shard_flush(&w.shard);
    CHECK(CALLED(2));
    /* One that puts itself back waits for the next flush. */
    p[0].put_back = 1;
    defer(&w, &p[0]);
    defer(&w, &p[1]);
    fnet_shard_flush(&w.shard);
    CHECK(CALLED(0, 1));
    CHECK(world_pass(&w) == 0 && CALLED(0));
    /* One that is detached is forgotten. */
    defer(&w, &p[0]);
    defer(&w, &p[1]);
    fnet_poller_detach(&w.shard.poller, &p[0].source, false);
    CHECK(world_pass(&w) == 0 && CALLED(1));
    probes_fini(p, 3, &w);
}

static int prompter_woken;

static void
count_wake(void *prompter)
{
    int *count = prompter;
    (*count)++;
}

static void
deferring_wakes_the_prompter(void)
{
    probe p[2];
    world w;
    probes_init(p, 2, &w);
    prompter_woken = 0;
    w.shard.prompter = &prompter_woken;
    w.shard.wake_prompter = count_wake;
    defer(&w, &p[0]);
    CHECK(prompter_woken == 1);
    w.shard.prompter_up = true; /* as it does when it is up */
    defer(&w, &p[1]);
    CHECK(prompter_woken == 1);
    /* It was stopped, and output is left all the same. */
    w.shard.prompter_up = false;
    defer(&w, &p[1]);
    CHECK(prompter_woken == 2);
    CHECK(world_pass(&w) == 0 && CALLED(0, 1));
    probes_fini(p, 2, &w);
}

/* -- memory --------------------------------------------------------------- */

static void
landings(void)
{
    world w;
    int owners[FNET_LANDINGS];
    char place[1];
    world_init(&w);
    fnet_shard *shard = &w.shard;
    CHECK(fnet_shard_take_landing(shard).owner == NULL);
    CHECK(shard->want_landings && shard->landings_used == 0);
    for (int i = 0; i < FNET_LANDINGS; i++) {
        shard->landings[i] = (fnet_landing){&owners[i], place, sizeof(place)};
    }
    fnet_landing taken[FNET_LANDINGS];
    for (int i = 0; i < FNET_LANDINGS; i++) {
        taken[i] = fnet_shard_take_landing(shard);
        CHECK(taken[i].owner == &owners[i] && taken[i].data == place);
        CHECK(taken[i].len == sizeof(place));
    }
    CHECK(fnet_shard_take_landing(shard).owner == NULL);
    CHECK(shard->landings_used == FNET_LANDINGS);
    fnet_shard_return_landing(shard, taken[2]);
    CHECK(shard->landings_used == FNET_LANDINGS - 1);
    CHECK(fnet_shard_take_landing(shard).owner == &owners[2]);
    for (int i = 0; i < FNET_LANDINGS; i++) {
        fnet_shard_return_landing(shard, taken[i]);
    }
    CHECK(shard->landings_used == 0);
    world_fini(&w);
}

/* A worker was away with one when the loop refilled the places. */
static void
landings_refilled_meanwhile(void)
{
    world w;
    int owners[20 + FNET_LANDINGS];
    char place[1];
    world_init(&w);
    fnet_shard *shard = &w.shard;
    for (int i = 0; i < FNET_LANDINGS; i++) {
        shard->landings[i] = (fnet_landing){&owners[i], place, sizeof(place)};
    }
    for (int i = 0; i < 20; i++) {
        fnet_landing out = fnet_shard_take_landing(shard);
        CHECK(out.owner != NULL);
        for (int k = 0; k < FNET_LANDINGS; k++) {
            if (shard->landings[k].owner == NULL) {
                shard->landings[k] =
                    (fnet_landing){&owners[FNET_LANDINGS + i], place, 1};
                shard->landings_used = 0;
            }
        }
        fnet_shard_return_landing(shard, out);
        CHECK(shard->landings_used <= FNET_LANDINGS);
    }
    for (unsigned i = 0; i < FNET_COUNTOF(shard->landings); i++) {
        CHECK(shard->landings[i].owner != NULL);
    }
    fnet_landing extra = shard->landings[0];
    CHECK_PANICS(fnet_shard_return_landing(shard, extra));
    world_fini(&w);
}

/* The size of those offered next follows what came: up at once, down slowly,
 * and always such that a read of the usual size is short. */
static void
landing_size(void)
{
    world w;
    world_init(&w);
    fnet_shard *shard = &w.shard;
    size_t first = shard->landing_size;
    CHECK(first > 0 && first <= FNET_LANDING_MAX);
    fnet_shard_note_landing(shard, first, first);
    CHECK(shard->landing_size == 2 * first);
    for (int i = 0; i < 10; i++) {
        fnet_shard_note_landing(shard, shard->landing_size,
                                shard->landing_size);
    }
    CHECK(shard->landing_size == FNET_LANDING_MAX);
    size_t before = shard->landing_size;
    fnet_shard_note_landing(shard, 20000, before);
    CHECK(shard->landing_size < before && shard->landing_size > before / 2);
    for (int i = 0; i < 300; i++) {
        fnet_shard_note_landing(shard, 20000, shard->landing_size);
    }
    CHECK(shard->landing_size > 20000 && shard->landing_size < 30000);
    fnet_shard_note_landing(shard, 100 * KIB, shard->landing_size);
    CHECK(shard->landing_size > 100 * KIB);
    world_fini(&w);
}

static void
trim_leaves_no_block(void)
{
    world w;
    size_t room;
    world_init(&w);
    long live = fnet_mem_live();
    CHECK(fnet_batch_reserve(&w.batch, w.shard.cache, 1, &room) != NULL);
    CHECK(world_pass(&w) == 0);
    CHECK(w.batch.nblocks == 1);
    /* What an idle loop does between passes. */
    fnet_batch_reset(&w.batch, w.shard.cache, true);
    CHECK(w.batch.nblocks == 0);
    CHECK(world_pass(&w) == 0);
    CHECK(w.batch.nblocks == 0);
    fnet_cache_flush(w.shard.cache);
    fnet_depot_trim_any(w.depot);
    CHECK(fnet_mem_live() == live);
    world_fini(&w);
}

int
main(void)
{
    RUN(init_without_memory_or_descriptors);
    RUN(fini_with_a_source);
    RUN(in_the_order_of_events);
    RUN(first_come_first_served);
    RUN(leftovers_do_not_wait);
    RUN(a_full_batch_leaves_the_rest);
    RUN(a_flood_of_events);
    RUN(a_batch_full_of_bytes);
    RUN(detached_before_its_turn);
    RUN(quiet_events_are_polled_again);
    RUN(deadlines);
    RUN(woken_by_another_thread);
    RUN(a_signal_ends_the_wait);
    RUN(begin_of_a_turn);
    RUN(output_of_a_turn_goes_in_order);
    RUN(deferring_wakes_the_prompter);
    RUN(landings);
    RUN(landings_refilled_meanwhile);
    RUN(landing_size);
    RUN(trim_leaves_no_block);
    return test_report();
}
