#include "poll/inbox.h"

#include "poll/shard.h"

#include "world.h"

#include <pthread.h>

/* An inbox whose reader sleeps on `poller`. */
typedef struct box {
    fnet_poller poller;
    fnet_inbox inbox;
} box;

static void
box_init(box *b)
{
    CHECK(fnet_poller_init(&b->poller) == 0);
    CHECK(fnet_inbox_init(&b->inbox, &b->poller) == 0);
}

static void
box_fini(box *b)
{
    fnet_inbox_fini(&b->inbox);
    fnet_poller_fini(&b->poller);
}

/* True if somebody has written to the poller's wake-up since the last look. */
static bool
was_woken(fnet_poller *poller)
{
    struct epoll_event event;
    return fnet_sys_epoll_wait(poller->epfd, &event, 1, 0) == 1;
}

static void
first_come_first_delivered(void)
{
    box b;
    fnet_batch batches[3];
    box_init(&b);
    CHECK(fnet_inbox_take(&b.inbox) == NULL);
    for (int i = 0; i < 3; i++) {
        fnet_batch_init(&batches[i]);
        CHECK(fnet_inbox_count(&b.inbox) == (unsigned)i);
        fnet_inbox_post_any(&b.inbox, &batches[i]);
    }
    CHECK(!was_woken(&b.poller)); /* nobody slept */
    for (int i = 0; i < 3; i++) {
        CHECK(fnet_inbox_count(&b.inbox) == 3 - (unsigned)i);
        CHECK(fnet_inbox_take(&b.inbox) == &batches[i]);
        CHECK(fnet_list_empty(&batches[i].link));
    }
    CHECK(fnet_inbox_take(&b.inbox) == NULL);
    CHECK(fnet_inbox_count(&b.inbox) == 0);
    box_fini(&b);
}

static void
woken_once_per_sleep(void)
{
    box b;
    fnet_batch batches[4];
    box_init(&b);
    for (int round = 0; round < 2; round++) {
        atomic_store(&b.poller.asleep, 1);
        fnet_batch_init(&batches[0]);
        fnet_inbox_post_any(&b.inbox, &batches[0]);
        CHECK(was_woken(&b.poller));
        CHECK(atomic_load(&b.poller.asleep) == 0);
        for (int i = 1; i < 4; i++) {
            fnet_batch_init(&batches[i]);
            fnet_inbox_post_any(&b.inbox, &batches[i]);
        }
        CHECK(!was_woken(&b.poller));
        for (int i = 0; i < 4; i++) {
            CHECK(fnet_inbox_take(&b.inbox) == &batches[i]);
        }
    }
    box_fini(&b);
}

static void
wakes_the_sleeper_of_the_moment(void)
{
    box b;
    fnet_poller other;
    fnet_batch batch;
    box_init(&b);
    CHECK(fnet_poller_init(&other) == 0);
    atomic_store(&b.poller.asleep, 1);
    atomic_store(&other.asleep, 1);
    atomic_store(&b.inbox.sleeper, &other);
    fnet_batch_init(&batch);
    fnet_inbox_post_any(&b.inbox, &batch);
    CHECK(!was_woken(&b.poller) && was_woken(&other));
    CHECK(fnet_inbox_take(&b.inbox) == &batch);
    atomic_store(&b.inbox.sleeper, &b.poller);
    fnet_inbox_wake_any(&b.inbox);
    CHECK(was_woken(&b.poller) && !was_woken(&other));
    fnet_poller_fini(&other);
    box_fini(&b);
}

/* -- several posters, a reader that changes what it sleeps on ------------- */

enum { POSTERS = 3, ROUNDS = 4000, STOCK = 4 };

typedef struct poster {
    fnet_inbox *inbox;
    fnet_batch stock[STOCK];
    pthread_mutex_t mutex;
    pthread_cond_t back;
    unsigned free; /* of the stock, in turn */
} poster;

static void *
post_all(void *arg)
{
    poster *p = arg;
    for (uint64_t n = 0; n < ROUNDS; n++) {
        pthread_mutex_lock(&p->mutex);
        while (p->free == 0) {
            pthread_cond_wait(&p->back, &p->mutex);
        }
        p->free--;
        pthread_mutex_unlock(&p->mutex);
        fnet_batch *batch = &p->stock[n % STOCK];
        batch->sequence = n;
        batch->bytes = n * 7; /* plain memory, published by the post */
        fnet_inbox_post_any(p->inbox, batch);
    }
    return NULL;
}

static void
give_back(poster *p)
{
    pthread_mutex_lock(&p->mutex);
    p->free++;
    pthread_cond_signal(&p->back);
    pthread_mutex_unlock(&p->mutex);
}

/* Sleeps as the loop's thread does; false: it was not woken in time. */
static bool
sleep_on(fnet_inbox *inbox, fnet_poller *poller)
{
    struct epoll_event event;
    atomic_store(&inbox->sleeper, poller);
    atomic_store(&poller->asleep, 1);
    int64_t timeout = fnet_inbox_count(inbox) > 0 ? 0 : WORLD_PATIENCE;
    int n = fnet_sys_epoll_wait(poller->epfd, &event, 1, timeout);
    atomic_store(&poller->asleep, 0);
    return timeout == 0 || n == 1;
}

static void
no_wake_up_is_lost(void)
{
    box b;
    fnet_poller other;
    pthread_t threads[POSTERS];
    static poster posters[POSTERS];
    uint64_t next[POSTERS] = {0};
    unsigned left = POSTERS * ROUNDS, sleeps = 0;

    box_init(&b);
    CHECK(fnet_poller_init(&other) == 0);
    for (int i = 0; i < POSTERS; i++) {
        posters[i].inbox = &b.inbox;
        posters[i].free = STOCK;
        pthread_mutex_init(&posters[i].mutex, NULL);
        pthread_cond_init(&posters[i].back, NULL);
        for (int k = 0; k < STOCK; k++) {
            fnet_batch_init(&posters[i].stock[k]);
        }
        CHECK(pthread_create(&threads[i], NULL, post_all, &posters[i]) == 0);
    }
    while (left > 0) {
        fnet_batch *batch = fnet_inbox_take(&b.inbox);
        if (batch == NULL) {
            bool woken =
                sleep_on(&b.inbox, sleeps++ % 2 == 0 ? &other : &b.poller);
            CHECK(woken);
            continue;
        }
        for (int i = 0; i < POSTERS; i++) {
            if (batch >= posters[i].stock &&
                batch < posters[i].stock + STOCK) {
                CHECK(batch->sequence == next[i]);
                CHECK(batch->bytes == next[i] * 7);
                next[i]++;
                give_back(&posters[i]);
            }
        }
        left--;
    }
    for (int i = 0; i < POSTERS; i++) {
        pthread_join(threads[i], NULL);
        pthread_cond_destroy(&posters[i].back);
        pthread_mutex_destroy(&posters[i].mutex);
        CHECK(next[i] == ROUNDS);
    }
    fnet_poller_fini(&other);
    box_fini(&b);
}

int
main(void)
{
    RUN(first_come_first_delivered);
    RUN(woken_once_per_sleep);
    RUN(wakes_the_sleeper_of_the_moment);
    RUN(no_wake_up_is_lost);
    return test_report();
}
