#include "net/watch.h"

#include "world.h"

#include <sys/mman.h>

#define IN ((uint32_t)EPOLLIN)
#define OUT ((uint32_t)EPOLLOUT)

/* A watched end of a Unix socket pair, and its peer. */
typedef struct watched {
    world w;
    fnet_watch watch;
    int fd, peer;
} watched;

static void
watched_init(watched *x)
{
    int ends[2];
    world_init(&x->w);
    world_pair(ends);
    x->fd = ends[0];
    x->peer = ends[1];
    fnet_watch_init(&x->watch, &x->w.shard, x);
    CHECK(!fnet_source_attached(&x->watch.source));
}

static void
watched_fini(watched *x)
{
    fnet_watch_detach(&x->watch);
    close(x->fd);
    close(x->peer);
    world_fini(&x->w);
}

static void
set(watched *x, uint32_t levels, uint32_t waits)
{
    CHECK(fnet_watch_set(&x->watch, x->fd, levels, waits) == 0);
    CHECK(x->watch.levels == levels && x->watch.waits == waits);
}

/* What one pass tells of it; 0: nothing. */
static uint32_t
told(watched *x)
{
    if (world_pass(&x->w) == 0) {
        return 0;
    }
    const fnet_completion *item = &x->w.batch.items[0];
    CHECK(world_only(&x->w, &x->watch.source, FNET_WHAT_WATCH, item->result));
    CHECK(item->result != 0);
    return (uint32_t)item->result;
}

static void
feed(watched *x)
{
    CHECK(world_send(x->peer, 0, 1) == 1);
}

static void
eat(watched *x)
{
    CHECK(world_take(x->fd, 0, 1) == 1);
}

/* An edge of room: fills the socket and has the peer take it all. */
static void
make_room(watched *x)
{
    char data[4096] = {0};
    while (fnet_sys_send(x->fd, data, sizeof(data)) > 0) {
    }
    while (fnet_sys_recv(x->peer, data, sizeof(data)) > 0) {
    }
}

/* -- levels --------------------------------------------------------------- */

static void
a_level_is_told_while_it_lasts(void)
{
    watched x;
    watched_init(&x);
    CHECK(x.watch.source.owner == &x);
    CHECK(x.watch.source.ops->kind == FNET_KIND_WATCH);
    set(&x, IN, 0);
    CHECK(told(&x) == 0);
    feed(&x);
    CHECK(told(&x) == IN && told(&x) == IN && told(&x) == IN);
    eat(&x);
    CHECK(told(&x) == 0);
    set(&x, IN | OUT, 0);
    CHECK(told(&x) == OUT && told(&x) == OUT);
    feed(&x);
    CHECK(told(&x) == (IN | OUT));
    set(&x, OUT, 0);
    CHECK(told(&x) == OUT);
    set(&x, 0, 0); /* which removes it from the set */
    CHECK(!fnet_source_attached(&x.watch.source) && told(&x) == 0);
    set(&x, IN, 0);
    CHECK(told(&x) == IN);
    watched_fini(&x);
}

/* -- waits ---------------------------------------------------------------- */

static void
a_wait_is_told_once(void)
{
    watched x;
    watched_init(&x);
    set(&x, 0, IN);
    uint64_t tag = x.watch.source.tag;
    CHECK(told(&x) == 0);
    for (int i = 0; i < 5; i++) {
        feed(&x);
        CHECK(told(&x) == IN && x.watch.waits == 0);
        CHECK(told(&x) == 0);
        eat(&x);
        set(&x, 0, IN);
    }
    /* All that time it was registered once. */
    CHECK(x.watch.source.tag == tag);
    CHECK(x.watch.source.events == FNET_EVENTS_EDGE);
    CHECK(x.w.shard.stats.disarmed == 0);
    watched_fini(&x);
}

/* What was there before the first wait is told, too. */
static void
a_first_wait_for_what_is_there(void)
{
    watched x;
    watched_init(&x);
    feed(&x);
    set(&x, 0, IN);
    CHECK(told(&x) == IN && told(&x) == 0);
    watched_fini(&x);
}

/* A reader and a writer wait for the same descriptor. */
static void
both_directions(void)
{
    watched x;
    watched_init(&x);
    set(&x, 0, IN | OUT);
    CHECK(told(&x) == OUT && x.watch.waits == IN);
    CHECK(told(&x) == 0);
    feed(&x);
    CHECK(told(&x) == IN && x.watch.waits == 0);
    eat(&x);
    set(&x, 0, IN | OUT);
    make_room(&x);
    CHECK(told(&x) == OUT && x.watch.waits == IN);
    set(&x, 0, IN | OUT);
    feed(&x);
    make_room(&x);
    CHECK(told(&x) == (IN | OUT) && x.watch.waits == 0);
    watched_fini(&x);
}

static void
a_wait_that_is_given_up(void)
{
    watched x;
    watched_init(&x);
    set(&x, 0, IN);
    set(&x, 0, 0);
    CHECK(fnet_source_attached(&x.watch.source)); /* kept */
    feed(&x);
    CHECK(told(&x) == 0);
    eat(&x);
    set(&x, 0, IN);
    feed(&x);
    CHECK(told(&x) == IN);
    watched_fini(&x);
}

/* A wait may be given up after its event came and before it is told: by a
 * callback that runs between the two when a batch was full. */
static void
given_up_before_it_was_told(void)
{
    watched x;
    watched_init(&x);
    set(&x, 0, IN);
    feed(&x);
    CHECK(told(&x) == IN);
    x.watch.waits = x.watch.arrived = IN; /* what a full batch leaves */
    fnet_shard_make_ready(&x.w.shard, &x.watch.source);
    set(&x, 0, OUT);
    CHECK(told(&x) == 0 && x.watch.waits == OUT);
    watched_fini(&x);
}

/* -- events that nobody waits for ----------------------------------------- */

static void
quiet_events_switch_it_off(void)
{
    watched x;
    watched_init(&x);
    set(&x, 0, IN);
    feed(&x);
    CHECK(told(&x) == IN);
    int events = 0;
    while (x.w.shard.stats.disarmed == 0 && events < 10) {
        feed(&x);
        CHECK(told(&x) == 0);
        events++;
    }
    CHECK(events > 1 && events < 10); /* not by the first that comes late */
    CHECK(x.watch.source.events == FNET_EVENTS_QUIET);
    uint64_t before = x.w.shard.stats.events;
    for (int i = 0; i < 10; i++) {
        feed(&x);
        CHECK(told(&x) == 0);
    }
    CHECK(x.w.shard.stats.events == before);
    /* The next wait switches it on; what came in between is told. */
    set(&x, 0, IN);
    CHECK(x.watch.source.events == FNET_EVENTS_EDGE);
    CHECK(told(&x) == IN && told(&x) == 0);
    watched_fini(&x);
}

/* Events of the other direction are quiet, too, but whoever waits must not
 * miss his own. */
static void
never_off_while_somebody_waits(void)
{
    watched x;
    watched_init(&x);
    for (int i = 0; i < 3; i++) {
        set(&x, 0, IN);
        for (int k = 0; k < 10; k++) {
            make_room(&x);
            CHECK(told(&x) == 0 && x.watch.waits == IN);
        }
        CHECK(x.watch.source.events == FNET_EVENTS_EDGE);
        feed(&x);
        CHECK(told(&x) == IN);
        eat(&x);
    }
    for (int k = 0; k < 10; k++) {
        set(&x, 0, OUT);
        feed(&x); /* an edge of input; there is room, but no edge of it */
        told(&x);
    }
    set(&x, 0, OUT);
    make_room(&x);
    CHECK(told(&x) == OUT && x.w.shard.stats.disarmed == 0);
    watched_fini(&x);
}

/* -- both kinds at once --------------------------------------------------- */

static void
a_level_and_a_wait(void)
{
    watched x;
    watched_init(&x);
    feed(&x);
    set(&x, IN, OUT);
    CHECK(told(&x) == (IN | OUT) && x.watch.waits == 0);
    CHECK(told(&x) == IN && told(&x) == IN);
    eat(&x);
    /* What was registered for the wait alone is taken out by its next event,
     * which nobody sees. */
    CHECK(told(&x) == 0 && told(&x) == 0);
    CHECK(x.watch.source.events == IN);
    uint64_t before = x.w.shard.stats.events;
    CHECK(told(&x) == 0 && x.w.shard.stats.events == before);
    /* Both for the same direction. */
    set(&x, IN, IN);
    feed(&x);
    CHECK(told(&x) == IN && x.watch.waits == 0 && x.watch.levels == IN);
    CHECK(told(&x) == IN);
    watched_fini(&x);
}

static void
from_one_kind_to_the_other(void)
{
    watched x;
    watched_init(&x);
    set(&x, 0, IN);
    CHECK(told(&x) == 0);
    set(&x, IN, 0);
    feed(&x);
    CHECK(told(&x) == IN && told(&x) == IN);
    set(&x, IN, OUT);
    set(&x, 0, OUT); /* the reader goes, the waiter stays */
    CHECK(x.watch.source.events == FNET_EVENTS_EDGE);
    CHECK(told(&x) == OUT && told(&x) == 0);
    set(&x, IN, 0);
    CHECK(told(&x) == IN && told(&x) == IN); /* a level again */
    set(&x, 0, 0);
    CHECK(!fnet_source_attached(&x.watch.source));
    set(&x, 0, IN);
    CHECK(told(&x) == IN && told(&x) == 0);
    watched_fini(&x);
}

/* -- ends and errors ------------------------------------------------------ */

/* A hang-up ends every kind of waiting, as for select(). */
static void
a_hang_up_is_for_everybody(void)
{
    for (int level = 0; level < 2; level++) {
        for (int direction = 0; direction < 2; direction++) {
            watched x;
            uint32_t mine = direction ? OUT : IN;
            watched_init(&x);
            set(&x, 0, IN | OUT);
            CHECK(told(&x) == OUT);
            set(&x, level ? mine : 0, level ? 0 : mine);
            close(x.peer);
            CHECK(told(&x) == mine);
            CHECK(told(&x) == (level ? mine : 0));
            x.peer = dup(x.fd); /* for watched_fini() */
            watched_fini(&x);
        }
    }
}

/* The end of the peer's output is input, for whoever waits for that. */
static void
half_closed(void)
{
    watched x;
    watched_init(&x);
    set(&x, 0, IN);
    CHECK(told(&x) == 0);
    CHECK(shutdown(x.peer, SHUT_WR) == 0);
    CHECK(told(&x) == IN);
    watched_fini(&x);
}

static void
pipes(void)
{
    world w;
    fnet_watch reader, writer;
    int ends[2];
    world_init(&w);
    CHECK(fnet_sys_pipe(ends) == 0);
    fnet_watch_init(&reader, &w.shard, NULL);
    fnet_watch_init(&writer, &w.shard, NULL);
    CHECK(fnet_watch_set(&reader, ends[0], IN, 0) == 0);
    CHECK(fnet_watch_set(&writer, ends[1], 0, OUT) == 0);
    CHECK(world_pass(&w) == 1);
    CHECK(world_only(&w, &writer.source, FNET_WHAT_WATCH, EPOLLOUT));
    CHECK(fnet_sys_write(ends[1], "x", 1) == 1);
    CHECK(world_pass(&w) == 1);
    CHECK(world_only(&w, &reader.source, FNET_WHAT_WATCH, EPOLLIN));
    /* Nobody is left to read: the writer waits in vain. */
    CHECK(fnet_watch_set(&writer, ends[1], 0, OUT) == 0);
    CHECK(fnet_watch_set(&reader, ends[0], 0, 0) == 0);
    close(ends[0]);
    CHECK(world_pass(&w) == 1);
    CHECK(world_only(&w, &writer.source, FNET_WHAT_WATCH, EPOLLOUT));
    fnet_watch_detach(&writer);
    close(ends[1]);
    world_fini(&w);
}

static void
what_cannot_be_watched(void)
{
    watched x;
    watched_init(&x);
    int file = memfd_create("regular", MFD_CLOEXEC);
    CHECK(file >= 0);
    CHECK(fnet_watch_set(&x.watch, file, IN, 0) == -EPERM);
    CHECK(fnet_watch_set(&x.watch, file, 0, OUT) == -EPERM);
    close(file);
    CHECK(fnet_watch_set(&x.watch, file, IN, 0) == -EBADF);
    CHECK(x.watch.levels == 0 && x.watch.waits == 0);
    CHECK(!fnet_source_attached(&x.watch.source));
    set(&x, 0, 0); /* nothing to do */
    CHECK(!fnet_source_attached(&x.watch.source));
    /* A change that fails leaves the interest as it was. */
    set(&x, IN, 0);
    close(x.fd);
    CHECK(fnet_watch_set(&x.watch, x.fd, IN | OUT, 0) == -EBADF);
    CHECK(x.watch.levels == IN && x.watch.source.events == IN);
    CHECK(dup2(x.peer, x.fd) == x.fd); /* for watched_fini() */
    watched_fini(&x);
}

/* The program closed the descriptor and opened another one, which got the
 * same number. */
static void
closed_behind_our_back(void)
{
    watched x;
    watched_init(&x);
    set(&x, IN, 0);
    CHECK(dup2(x.peer, x.fd) == x.fd); /* hangs up, too */
    CHECK(told(&x) == 0);
    set(&x, OUT, 0);
    CHECK((told(&x) & OUT) != 0);
    watched_fini(&x);
}

static void
detached(void)
{
    watched x;
    watched_init(&x);
    set(&x, IN, 0);
    feed(&x);
    CHECK(told(&x) == IN);
    uint64_t tag = x.watch.source.tag;
    fnet_watch_detach(&x.watch);
    fnet_watch_detach(&x.watch); /* harmless */
    CHECK(x.watch.levels == 0 && x.watch.waits == 0);
    CHECK(told(&x) == 0);
    CHECK(fnet_poller_lookup(&x.w.shard.poller, tag) == NULL);
    watched_fini(&x);
}

/* More have news than fit into a batch: the others' is told next. */
static void
a_full_batch(void)
{
    enum { MANY = FNET_BATCH_MAX + 20 };
    static fnet_watch watches[MANY];
    static int fds[MANY], told_of[MANY];
    world w;
    world_init(&w);
    for (int i = 0; i < MANY; i++) {
        fds[i] = fnet_sys_eventfd();
        told_of[i] = 0;
        fnet_watch_init(&watches[i], &w.shard, NULL);
        CHECK(fnet_watch_set(&watches[i], fds[i], 0, OUT) == 0);
        /* As many again are on the list already. */
        watches[i].arrived = OUT;
        fnet_shard_make_ready(&w.shard, &watches[i].source);
    }
    for (int pass = 0; pass < 4; pass++) {
        world_pass(&w);
        for (unsigned k = 0; k < w.batch.count; k++) {
            const fnet_source *source = w.batch.items[k].source;
            told_of[fnet_container_of(source, const fnet_watch, source) -
                    watches]++;
        }
    }
    for (int i = 0; i < MANY; i++) {
        CHECK(told_of[i] == 1);
        fnet_watch_detach(&watches[i]);
        close(fds[i]);
    }
    world_fini(&w);
}

int
main(void)
{
    RUN(a_level_is_told_while_it_lasts);
    RUN(a_wait_is_told_once);
    RUN(a_first_wait_for_what_is_there);
    RUN(both_directions);
    RUN(a_wait_that_is_given_up);
    RUN(given_up_before_it_was_told);
    RUN(quiet_events_switch_it_off);
    RUN(never_off_while_somebody_waits);
    RUN(a_level_and_a_wait);
    RUN(from_one_kind_to_the_other);
    RUN(a_hang_up_is_for_everybody);
    RUN(half_closed);
    RUN(pipes);
    RUN(what_cannot_be_watched);
    RUN(closed_behind_our_back);
    RUN(detached);
    RUN(a_full_batch);
    return test_report();
}
