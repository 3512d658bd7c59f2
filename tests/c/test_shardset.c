#include "poll/shardset.h"

#include "cache/stack.h"
#include "net/listen.h"
#include "net/watch.h"

#include "lent.h"

#include <sched.h>
#include <sys/resource.h>
#include <sys/stat.h>

/* -- the partition -------------------------------------------------------- */

static void
picks_in_turn(void)
{
    lent l;
    lent_init(&l, end_note, NULL);
    fnet_shardset *set = &l.set;
    for (int i = 0; i < 3; i++) {
        CHECK(fnet_shardset_pick(set) == &l.home);
    }
    CHECK(set->count == 1);
    set->limit = 4;
    set->spread = 3;
    /* Made when they are first needed, home first. */
    for (unsigned i = 0; i < 9; i++) {
        fnet_shard *shard = fnet_shardset_pick(set);
        CHECK(shard == set->members[(i + 1) % 3].shard);
        CHECK(set->count == (i == 0 ? 2 : 3));
        CHECK((shard == &l.home) != fnet_shard_lent(shard));
    }
    /* Narrower and wider: those that are there stay. */
    set->spread = 1;
    for (int i = 0; i < 3; i++) {
        CHECK(fnet_shardset_pick(set) == &l.home);
    }
    CHECK(set->count == 3);
    set->spread = 4;
    for (unsigned i = 0; i < 8; i++) {
        CHECK(fnet_shardset_pick(set) == set->members[(i + 1) % 4].shard);
    }
    lent_fini(&l);
}

/* The n-th thing that a third shard takes is not to be had: what for. */
static int
third_shard_fails(long n)
{
    lent l;
    end e;
    lent_init(&l, end_note, NULL);
    fnet_shardset *set = &l.set;
    set->limit = set->spread = 4;
    CHECK(fnet_shardset_pick(set) == &l.home);
    fnet_shard *second = fnet_shardset_pick(set);
    CHECK(second != &l.home);
    fnet_mem_fail_after(n);
    (void)fnet_shardset_pick(set);
    bool failed = fnet_mem_failed();
    fnet_mem_fail_after(-1);
    if (!failed) {
        CHECK(set->failed == 0 && set->count == 3);
        lent_fini(&l);
        return 0;
    }
    /* Those that are there go on, home keeps its share. */
    int why = set->failed;
    for (int i = 0; i < 6; i++) {
        CHECK(fnet_shardset_pick(set) == (i % 2 == 0 ? second : &l.home));
    }
    CHECK(set->failed == why && set->count == 2);
    fnet_mem_fail_after(0);
    CHECK(fnet_shardset_lend_home(set) < 0);
    fnet_mem_fail_after(-1);
    CHECK(!set->home_away && !fnet_shard_lent(&l.home));
    CHECK(fnet_shardset_regain_home(set));
    fnet_shardset_recall_home(set); /* of what is not away: nothing */
    end_open(&e, &l.home, false);
    fnet_stream_want(&e.s, true);
    CHECK(world_send(e.peer, 0, 10) == 10);
    LENT_UNTIL(&l, e.got == 10);
    end_close(&e);
    lent_lend(&l);
    lent_fini(&l);
    return why;
}

static void
no_thread_to_be_had(void)
{
    bool no_thread = false;
    int why;
    for (long n = 0; (why = third_shard_fails(n)) != 0; n++) {
        CHECK(why == -ENOMEM || why == -EAGAIN);
        no_thread = no_thread || why == -EAGAIN;
    }
    CHECK(no_thread);
}

/* Each allocation on the way to a shard and to lending home fails once. */
static void
without_memory(void)
{
    bool failed = true;
    for (long n = 0; failed; n++) {
        lent l;
        lent_init(&l, end_note, NULL);
        l.set.limit = l.set.spread = 2;
        CHECK(fnet_shardset_pick(&l.set) == &l.home);
        long live = fnet_mem_live();
        fnet_mem_fail_after(n);
        fnet_shard *shard = fnet_shardset_pick(&l.set);
        failed = fnet_mem_failed();
        fnet_mem_fail_after(-1);
        if (failed) {
            CHECK(shard == &l.home && l.set.failed < 0);
            CHECK(l.set.count == 1 && fnet_mem_live() == live);
        }
        else {
            CHECK(shard != &l.home && n > 3);
        }
        lent_fini(&l);
    }
    failed = true;
    for (long n = 0; failed; n++) {
        lent l;
        lent_init(&l, end_note, NULL);
        fnet_mem_fail_after(n);
        int rc = fnet_shardset_lend_home(&l.set);
        failed = fnet_mem_failed();
        fnet_mem_fail_after(-1);
        CHECK((rc < 0) == failed && l.set.home_away == !failed);
        if (failed) {
            CHECK(world_count_fds() >= l.fds);
            lent_lend(&l); /* and then it works */
        }
        lent_fini(&l);
    }
}

static void
without_descriptors(void)
{
    struct rlimit before, tight;
    lent l;
    lent_init(&l, end_note, NULL);
    l.set.limit = l.set.spread = 2;
    CHECK(fnet_shardset_pick(&l.set) == &l.home);
    int fds = world_count_fds();
    CHECK(getrlimit(RLIMIT_NOFILE, &before) == 0);
    tight = before;
    tight.rlim_cur = 1;
    CHECK(setrlimit(RLIMIT_NOFILE, &tight) == 0);
    CHECK(fnet_shardset_lend_home(&l.set) == -EMFILE);
    CHECK(fnet_shardset_pick(&l.set) == &l.home);
    CHECK(setrlimit(RLIMIT_NOFILE, &before) == 0);
    CHECK(l.set.failed == -EMFILE && world_count_fds() == fds);
    lent_fini(&l);
}

/* -- what else a shard may have ------------------------------------------- */

enum { CLIENTS = 150 };

typedef struct porter {
    fnet_listener listener;
    int conns[CLIENTS], nconns;
    unsigned errors;
} porter;

static void
porter_note(void *arg, fnet_source *source, const fnet_completion *item)
{
    porter *p = source->owner;
    CHECK(source->ops->kind == FNET_KIND_LISTENER);
    if (item->what == FNET_WHAT_ERROR) {
        CHECK(item->result == -EMFILE);
        p->errors++;
        return;
    }
    CHECK(item->what == FNET_WHAT_ACCEPTED && item->result >= 0);
    CHECK(item->len == sizeof(struct sockaddr_in));
    p->conns[p->nconns++] = item->result;
}

static void
accepts_on_a_lent_home(void)
{
    lent l;
    porter p = {.nconns = 0};
    struct sockaddr_in addr;
    int clients[CLIENTS];
    struct rlimit before, tight;
    lent_init(&l, porter_note, NULL);
    int fd = world_listen(&addr, CLIENTS);
    lent_lend(&l);
    CHECK(fnet_listener_attach(&p.listener, &l.home, fd, 100, &p) == 0);
    for (int i = 0; i < CLIENTS - 1; i++) {
        clients[i] = world_connect(&addr);
        if (i % 40 == 0) {
            LENT_UNTIL(&l, p.nconns == i + 1);
        }
    }
    LENT_UNTIL(&l, p.nconns == CLIENTS - 1);
    /* No descriptor for the last one until somebody says so. */
    clients[CLIENTS - 1] =
        socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    CHECK(getrlimit(RLIMIT_NOFILE, &before) == 0);
    tight = before;
    tight.rlim_cur = 1;
    CHECK(setrlimit(RLIMIT_NOFILE, &tight) == 0);
    CHECK(connect(clients[CLIENTS - 1], (struct sockaddr *)&addr,
                  sizeof(addr)) == 0 ||
          errno == EINPROGRESS);
    LENT_UNTIL(&l, p.errors == 1);
    usleep(5000);
    lent_turn(&l, FNET_NO_WAIT);
    CHECK(p.errors == 1); /* once */
    CHECK(setrlimit(RLIMIT_NOFILE, &before) == 0);
    fnet_listener_resume(&p.listener);
    LENT_UNTIL(&l, p.nconns == CLIENTS);
    for (int i = 0; i < CLIENTS; i++) {
        close(p.conns[i]);
        close(clients[i]);
    }
    fnet_listener_detach(&p.listener);
    close(fd);
    lent_fini(&l);
}

/* What was accepted for a listener that is gone is closed, not leaked: the
 * count of descriptors at the end tells. */
static void
listeners_that_go_while_it_accepts(void)
{
    lent l;
    int clients[8];
    lent_init(&l, porter_note, NULL);
    lent_lend(&l);
    for (int i = 0; i < 100; i++) {
        porter p = {.nconns = 0};
        struct sockaddr_in addr;
        int fd = world_listen(&addr, 8);
        CHECK(fnet_listener_attach(&p.listener, &l.home, fd, 8, &p) == 0);
        for (int k = 0; k < 8; k++) {
            clients[k] = world_connect(&addr);
        }
        if (i % 3 == 0) {
            LENT_UNTIL(&l, p.nconns > 0);
        }
        fnet_listener_detach(&p.listener);
        close(fd);
        lent_turn(&l, FNET_NO_WAIT);
        for (int k = 0; k < p.nconns; k++) {
            close(p.conns[k]);
        }
        for (int k = 0; k < 8; k++) {
            close(clients[k]);
        }
    }
    lent_fini(&l);
}

typedef struct watched {
    fnet_watch watch;
    int fd, peer;
    unsigned told;
    uint32_t last;
} watched;

static void
watched_note(void *arg, fnet_source *source, const fnet_completion *item)
{
    watched *x = source->owner;
    CHECK(item->what == FNET_WHAT_WATCH && item->result != 0);
    x->told++;
    x->last = (uint32_t)item->result;
}

static void
watched_open(watched *x, fnet_shard *shard)
{
    int fds[2];
    world_pair(fds);
    *x = (watched){.fd = fds[0], .peer = fds[1]};
    fnet_watch_init(&x->watch, shard, x);
}

static void
watched_close(watched *x)
{
    fnet_watch_detach(&x->watch);
    close(x->fd);
    close(x->peer);
}

/* A level that nobody does anything about is told once, until it is taken;
 * no pass finds it again meanwhile. */
static void
levels_until_taken(void)
{
    lent l;
    watched x;
    lent_init(&l, watched_note, NULL);
    lent_lend(&l);
    watched_open(&x, &l.home);
    CHECK(fnet_watch_set(&x.watch, x.fd, EPOLLIN, 0) == 0);
    CHECK(world_send(x.peer, 0, 1) == 1);
    for (unsigned i = 1; i <= 50; i++) {
        LENT_UNTIL(&l, x.told == i);
        CHECK(x.last == EPOLLIN);
        if (i % 10 == 0) {
            usleep(3000);
            lent_turn(&l, FNET_NO_WAIT);
            CHECK(x.told == i && x.watch.muted);
        }
        fnet_watch_taken(&x.watch);
    }
    LENT_UNTIL(&l, x.told == 51);
    /* Both directions, then none, then the other. */
    CHECK(fnet_watch_set(&x.watch, x.fd, EPOLLIN | EPOLLOUT, 0) == 0);
    LENT_UNTIL(&l, x.told == 52);
    CHECK(x.last == (EPOLLIN | EPOLLOUT));
    CHECK(fnet_watch_set(&x.watch, x.fd, 0, 0) == 0);
    fnet_watch_taken(&x.watch);
    usleep(3000);
    lent_turn(&l, FNET_NO_WAIT);
    CHECK(x.told == 52);
    CHECK(fnet_watch_set(&x.watch, x.fd, EPOLLOUT, 0) == 0);
    LENT_UNTIL(&l, x.told == 53);
    CHECK(x.last == EPOLLOUT);
    watched_close(&x);
    lent_fini(&l);
}

/* A wait is told once; the next one finds what is still there. */
static void
waits_on_a_lent_home(void)
{
    lent l;
    watched x;
    lent_init(&l, watched_note, NULL);
    lent_lend(&l);
    watched_open(&x, &l.home);
    for (unsigned i = 1; i <= 100; i++) {
        CHECK(fnet_watch_set(&x.watch, x.fd, 0, EPOLLIN) == 0);
        CHECK(world_send(x.peer, i, 1) == 1);
        LENT_UNTIL(&l, x.told == i);
        CHECK(world_take(x.fd, i, 2) == 1);
        CHECK(fnet_watch_set(&x.watch, x.fd, 0, 0) == 0);
    }
    watched_close(&x);
    lent_fini(&l);
}

static uint64_t
events_of(fnet_shard *shard)
{
    fnet_shard_lock(shard);
    uint64_t events = shard->stats.events;
    fnet_shard_unlock(shard);
    return events;
}

static bool
is_lent(fnet_shard *shard)
{
    fnet_shard_lock(shard);
    bool is = fnet_shard_lent(shard);
    fnet_shard_unlock(shard);
    return is;
}

/* The worker has the edge between the call that said EAGAIN and the wait, and
 * gives home back before the wait. */
static void
a_wait_that_comes_late(void)
{
    lent l;
    watched x;
    lent_init(&l, watched_note, NULL);
    watched_open(&x, &l.home);
    for (unsigned i = 1; i <= 20; i++) {
        lent_lend(&l);
        CHECK(fnet_watch_set(&x.watch, x.fd, 0, EPOLLIN) == 0);
        CHECK(world_send(x.peer, 0, 1) == 1);
        LENT_UNTIL(&l, x.told == 2 * i - 1);
        CHECK(world_take(x.fd, 0, 2) == 1);
        CHECK(fnet_watch_set(&x.watch, x.fd, 0, 0) == 0);
        uint64_t events = events_of(&l.home);
        CHECK(world_send(x.peer, 1, 1) == 1);
        LENT_AWAIT(events_of(&l.home) > events); /* which nobody waits for */
        lent_recall(&l);
        LENT_AWAIT(!is_lent(&l.home));
        CHECK(fnet_watch_set(&x.watch, x.fd, 0, EPOLLIN) == 0);
        LENT_UNTIL(&l, x.told == 2 * i && !l.recalling);
        CHECK(x.last == EPOLLIN && world_take(x.fd, 1, 2) == 1);
        CHECK(fnet_watch_set(&x.watch, x.fd, 0, 0) == 0);
    }
    watched_close(&x);
    lent_fini(&l);
}

/* A level that was muted by the worker is home's again, and goes on. */
static void
levels_across_flips(void)
{
    lent l;
    watched x;
    lent_init(&l, watched_note, NULL);
    watched_open(&x, &l.home);
    CHECK(fnet_watch_set(&x.watch, x.fd, EPOLLIN, 0) == 0);
    CHECK(world_send(x.peer, 0, 1) == 1);
    for (unsigned i = 0; i < 300; i++) {
        if (!l.recalling && i % 3 == 0) {
            if (l.set.home_away) {
                lent_recall(&l);
            }
            else {
                lent_lend(&l);
            }
        }
        unsigned before = x.told;
        fnet_watch_taken(&x.watch);
        LENT_UNTIL(&l, x.told > before);
    }
    CHECK(l.flips > 30);
    watched_close(&x);
    lent_fini(&l);
}

/* -- forks ---------------------------------------------------------------- */

/* In the child nothing of the parent's is touched, and nothing hangs. */
static void
child(lent *l, end *e)
{
    fnet_shardset_after_fork(&l->set);
    l->set.home_away = false;
    for (unsigned i = 0; i < l->set.count; i++) {
        CHECK(!fnet_shard_lent(l->set.members[i].shard));
    }
    CHECK(end_write(e, 0) >= 0); /* what may be left is the parent's to send */
    CHECK(!fnet_shardset_has_mail(&l->set) || l->dropped == 0);
    fnet_stream_detach(&e->s, true);
    lent_end_threads(l);
    for (unsigned i = 0; i < l->set.count; i++) {
        lent_reap(l->set.members[i].shard);
        lent_drop_landings(l->set.members[i].shard);
    }
    fnet_batch_fini(&l->batch, l->home.read_cache);
    fnet_shardset_fini(&l->set);
    fnet_shard_fini(&l->home);
    fnet_depot_free(l->depot);
    _exit(atomic_load(&test_broken) != 0);
}

static void
forks_while_it_works(void)
{
    lent l;
    end e;
    lent_init(&l, end_note, NULL);
    fnet_shard *shard = lent_worker_shard(&l);
    lent_lend(&l);
    end_open(&e, shard, false);
    fnet_stream_want(&e.s, true);
    for (int i = 0; i < 20; i++) {
        size_t want = e.got + 100;
        CHECK(world_send(e.peer, e.got, 100) == 100);
        end_write(&e, 1000);
        if (i % 2 == 0) {
            LENT_AWAIT(fnet_shardset_has_mail(&l.set)); /* a batch is out */
        }
        fnet_shardset_stop(&l.set);
        fflush(NULL);
        pid_t pid = fork();
        if (pid == 0) {
            child(&l, &e);
        }
        fnet_shardset_start(&l.set);
        CHECK(pid > 0 && test_wait(pid) == 0);
        LENT_UNTIL(&l, e.got == want);
        LENT_MEANWHILE(&l, end_all_taken(&e));
    }
    end_close(&e);
    lent_fini(&l);
}

/* The child has the place that the thread had: it comes back with time. */
static void
no_thread_after_a_fork(void)
{
    lent l;
    end e;
    lent_init(&l, end_note, NULL);
    fnet_shard *shard = lent_worker_shard(&l);
    end_open(&e, shard, false);
    fnet_stream_want(&e.s, true);
    fnet_shardset_stop(&l.set);
    fnet_thread_fail_after(0);
    fnet_shardset_start(&l.set);
    fnet_thread_fail_after(-1);
    CHECK(l.set.incomplete);
    /* Nobody waits for it. */
    CHECK(end_write(&e, 10) == 10);
    fnet_shardset_flush(&l.set);
    CHECK(end_take(&e) == 0);
    fnet_shardset_start(&l.set);
    CHECK(!l.set.incomplete);
    LENT_MEANWHILE(&l, end_all_taken(&e));
    CHECK(world_send(e.peer, 0, 10) == 10);
    LENT_UNTIL(&l, e.got == 10);
    end_close(&e);
    lent_fini(&l);
}

int
main(void)
{
    RUN(picks_in_turn);
    RUN(no_thread_to_be_had);
    RUN(without_memory);
    RUN(without_descriptors);
    RUN(accepts_on_a_lent_home);
    RUN(listeners_that_go_while_it_accepts);
    RUN(levels_until_taken);
    RUN(waits_on_a_lent_home);
    RUN(a_wait_that_comes_late);
    RUN(levels_across_flips);
    RUN(forks_while_it_works);
    RUN(no_thread_after_a_fork);
    return test_report();
}
