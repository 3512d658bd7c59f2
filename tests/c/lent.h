/* lent: a loop's thread without Python: a home shard, a set with workers, and
 * turns that deliver what passes and workers bring. */
#ifndef FNET_TESTS_LENT_H
#define FNET_TESTS_LENT_H

#include "net/stream.h"
#include "poll/shardset.h"

#include "world.h"

typedef struct lent {
    fnet_depot *depot;
    fnet_shard home;
    fnet_shardset set;
    fnet_batch batch; /* of home's own passes */
    /* Gets each completion whose source is still there. */
    void (*deliver)(void *arg, fnet_source *source,
                    const fnet_completion *item);
    void *arg;
    int fds; /* open before */
    bool recalling;
    unsigned flips, dropped;
} lent;

static inline void
lent_init(lent *l,
          void (*deliver)(void *, fnet_source *, const fnet_completion *),
          void *arg)
{
    *l = (lent){.deliver = deliver, .arg = arg};
    l->fds = world_count_fds();
    CHECK(fnet_depot_new(&l->depot, 16 * MIB) == 0);
    CHECK(fnet_shard_init(&l->home, l->depot) == 0);
    CHECK(fnet_shardset_init(&l->set, &l->home, l->depot) == 0);
    fnet_batch_init(&l->batch);
    l->batch.shard = &l->home;
    fnet_shard_begin_turn(&l->home, false);
}

/* Foreign memory of these tests is a count of how often it was spent. */
static inline void
lent_reap(fnet_shard *shard)
{
    atomic_int *spent;
    fnet_lock_acquire(&shard->output);
    while ((spent = fnet_chain_pop_spent(&shard->spent, shard->cache)) !=
           NULL) {
        atomic_fetch_add(spent, 1);
    }
    fnet_lock_release(&shard->output);
}

static inline void
lent_offer_landings(fnet_shard *shard)
{
    fnet_lock_acquire(&shard->output);
    for (unsigned i = 0; i < FNET_LANDINGS; i++) {
        if (shard->landings[i].owner == NULL) {
            char *data = malloc(shard->landing_size);
            shard->landings[i] = (fnet_landing){
                .owner = data, .data = data, .len = shard->landing_size};
        }
    }
    shard->want_landings = false;
    shard->landings_used = 0;
    fnet_lock_release(&shard->output);
}

static inline void
lent_drop_landings(fnet_shard *shard)
{
    fnet_lock_acquire(&shard->output);
    for (unsigned i = 0; i < FNET_COUNTOF(shard->landings); i++) {
        free(shard->landings[i].owner);
        shard->landings[i].owner = NULL;
    }
    fnet_lock_release(&shard->output);
}

static inline void
lent_deliver(lent *l, fnet_batch *batch)
{
    while (batch->next < batch->count) {
        fnet_completion *item = &batch->items[batch->next++];
        fnet_source *source =
            fnet_poller_lookup(&batch->shard->poller, item->tag);
        if (source != NULL) {
            l->deliver(l->arg, source, item);
        }
        else {
            l->dropped++;
            if (item->what == FNET_WHAT_ACCEPTED) {
                close(item->result);
            }
        }
        free(item->landing);
    }
}

/* Delivers and returns what is in the inbox, as far as one turn may. */
static inline void
lent_take_mail(lent *l)
{
    fnet_batch *batch;
    for (unsigned n = l->set.count;
         n > 0 && (batch = fnet_inbox_take(&l->set.inbox)) != NULL; n--) {
        fnet_shard *shard = batch->shard;
        lent_deliver(l, batch);
        if (fnet_shard_return_batch(shard, batch)) {
            lent_offer_landings(shard);
        }
    }
}

static inline void
lent_lend(lent *l)
{
    fnet_shard_begin_turn(&l->home, false);
    CHECK(fnet_shardset_lend_home(&l->set) == 0);
}

static inline void
lent_recall(lent *l)
{
    l->recalling = true;
    fnet_shardset_recall_home(&l->set);
}

/* What python/turn.c does in one turn.  False: the deadline has passed. */
static inline bool
lent_turn(lent *l, int64_t deadline)
{
    fnet_shardset *set = &l->set;

    if (l->recalling && fnet_shardset_regain_home(set)) {
        l->recalling = false;
        l->flips++;
    }
    if (set->home_away) {
        if (deadline != FNET_NO_WAIT) {
            fnet_shardset_prepare_sleep(set);
            (void)fnet_shardset_wait(set, deadline);
        }
    }
    else {
        int64_t until = deadline;
        if (until != FNET_NO_WAIT) {
            fnet_shard_prepare_sleep(&l->home);
            if (fnet_shardset_has_mail(set)) {
                until = FNET_NO_WAIT;
            }
        }
        (void)fnet_shard_pass(&l->home, &l->batch, until);
        fnet_shard_begin_turn(&l->home, false);
        lent_deliver(l, &l->batch);
        lent_offer_landings(&l->home);
    }
    for (unsigned i = 0; i < set->count; i++) {
        lent_reap(set->members[i].shard);
    }
    lent_take_mail(l);
    return deadline == FNET_NO_WAIT || fnet_clock_ns() < deadline;
}

/* Turns that sleep until the condition holds; false: it never did. */
#define LENT_UNTIL(l, condition)                                              \
    do {                                                                      \
        int64_t lent_deadline_ = fnet_clock_ns() + WORLD_PATIENCE;            \
        while (!(condition)) {                                                \
            if (!lent_turn((l), lent_deadline_)) {                            \
                CHECK(condition);                                             \
                break;                                                        \
            }                                                                 \
        }                                                                     \
    } while (0)

/* Turns that do not sleep, for what nobody tells the loop. */
#define LENT_MEANWHILE(l, condition)                                          \
    do {                                                                      \
        int64_t lent_deadline_ = fnet_clock_ns() + WORLD_PATIENCE;            \
        while (!(condition) && fnet_clock_ns() < lent_deadline_) {            \
            lent_turn((l), FNET_NO_WAIT);                                     \
            usleep(100);                                                      \
        }                                                                     \
        CHECK(condition);                                                     \
    } while (0)

/* Waits for what another thread does, without turns. */
#define LENT_AWAIT(condition)                                                 \
    do {                                                                      \
        int64_t lent_deadline_ = fnet_clock_ns() + WORLD_PATIENCE;            \
        while (!(condition) && fnet_clock_ns() < lent_deadline_) {            \
            usleep(100);                                                      \
        }                                                                     \
        CHECK(condition);                                                     \
    } while (0)

/* A shard with a worker of its own. */
static inline fnet_shard *
lent_worker_shard(lent *l)
{
    l->set.limit = l->set.spread = 2;
    fnet_shard *shard = fnet_shardset_pick(&l->set);
    if (shard == &l->home) {
        shard = fnet_shardset_pick(&l->set);
    }
    CHECK(shard != &l->home && fnet_shard_lent(shard));
    return shard;
}

/* Ends the threads; what they have brought is delivered. */
static inline void
lent_end_threads(lent *l)
{
    fnet_batch *batch;

    fnet_shardset_stop(&l->set);
    for (unsigned i = 0; i < l->set.count; i++) {
        if (l->set.members[i].worker != NULL) {
            fnet_worker_take_over(l->set.members[i].worker);
        }
    }
    l->set.home_away = false;
    while ((batch = fnet_inbox_take(&l->set.inbox)) != NULL) {
        lent_deliver(l, batch);
        (void)fnet_shard_return_batch(batch->shard, batch);
    }
}

static inline void
lent_fini(lent *l)
{
    lent_end_threads(l);
    for (unsigned i = 0; i < l->set.count; i++) {
        fnet_shard *shard = l->set.members[i].shard;
        CHECK(fnet_list_empty(&shard->ready));
        CHECK(fnet_list_empty(&shard->dirty));
        CHECK(fnet_list_empty(&shard->gated));
        lent_reap(shard);
        lent_drop_landings(shard);
    }
    fnet_batch_fini(&l->batch, l->home.read_cache);
    fnet_shardset_fini(&l->set);
    fnet_shard_fini(&l->home);
    fnet_depot_free(l->depot);
    CHECK(world_count_fds() == l->fds);
}

/* -- a connection of the loop's, and its peer ----------------------------- */

typedef struct end {
    fnet_stream s;
    fnet_shard *shard;
    int fd, peer;
    size_t written, taken; /* towards the peer */
    size_t got;            /* delivered, checked */
    unsigned eofs, errors, outputs, datas;
} end;

static inline void
end_attach(end *e, fnet_shard *shard, const int fds[2], bool with_rights)
{
    *e = (end){.shard = shard, .fd = fds[0], .peer = fds[1]};
    CHECK(fnet_stream_attach(&e->s, shard, e->fd, e, with_rights) == 0);
}

static inline void
end_open(end *e, fnet_shard *shard, bool tcp)
{
    int fds[2];
    if (tcp) {
        world_tcp_pair(fds);
    }
    else {
        world_pair(fds);
    }
    end_attach(e, shard, fds, !tcp);
}

static inline void
end_detach(end *e)
{
    fnet_stream_detach(&e->s, true);
    close(e->fd);
}

static inline void
end_close(end *e)
{
    end_detach(e);
    close(e->peer);
}

/* A completion for one of these. */
static inline void
end_note(void *arg, fnet_source *source, const fnet_completion *item)
{
    end *e = source->owner;

    CHECK(e->eofs + e->errors == 0 || item->what == FNET_WHAT_OUTPUT);
    switch (item->what) {
    case FNET_WHAT_DATA:
        CHECK(world_matches(item->data, e->got, item->len));
        e->got += item->len;
        e->datas++;
        break;
    case FNET_WHAT_EOF:
        e->eofs++;
        break;
    case FNET_WHAT_OUTPUT:
        e->outputs++;
        break;
    default:
        CHECK(item->what == FNET_WHAT_ERROR);
        e->errors++;
    }
}

/* Writes the next bytes; they are copied. */
static inline ssize_t
end_write(end *e, size_t len)
{
    char *data = malloc(len);
    fnet_piece piece = {.data = data, .len = len};
    world_fill(data, e->written, len);
    e->written += len;
    ssize_t left = fnet_stream_write(&e->s, &piece, 1);
    free(data);
    return left;
}

static inline size_t
end_take(end *e)
{
    size_t n = world_take(e->peer, e->taken, SIZE_MAX);
    e->taken += n;
    return n;
}

/* True once the peer has taken everything that was written. */
static inline bool
end_all_taken(end *e)
{
    end_take(e);
    return e->taken == e->written;
}

#endif
