#include "base/lock.h"

#include "test.h"

#define THREADS 4
#define ROUNDS 5000

typedef struct counter {
    fnet_lock lock;
    long value; /* guarded by lock */
} counter;

static void *
count_up(void *arg)
{
    counter *shared = arg;
    for (int i = 0; i < ROUNDS; i++) {
        /* Every other time by trying, so that both ways are mixed. */
        if (i % 2 == 0 || !fnet_lock_try(&shared->lock)) {
            fnet_lock_acquire(&shared->lock);
        }
        fnet_assert_locked(&shared->lock);
        shared->value++;
        fnet_lock_release(&shared->lock);
    }
    return NULL;
}

static void
excludes_other_threads(void)
{
    counter shared = {.value = 0};
    CHECK(fnet_lock_init(&shared.lock, FNET_RANK_INBOX) == 0);
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++) {
        CHECK(pthread_create(&threads[i], NULL, count_up, &shared) == 0);
    }
    for (int i = 0; i < THREADS; i++) {
        CHECK(pthread_join(threads[i], NULL) == 0);
    }
    CHECK(shared.value == (long)THREADS * ROUNDS);
    fnet_lock_fini(&shared.lock);
}

static void *
try_it(void *arg)
{
    fnet_lock *lock = arg;
    CHECK(!fnet_lock_is_mine(lock));
    bool got = fnet_lock_try(lock);
    if (got) {
        CHECK(fnet_lock_is_mine(lock));
        fnet_lock_release(lock);
    }
    return got ? lock : NULL;
}

static bool
another_thread_can_take(fnet_lock *lock)
{
    pthread_t thread;
    void *result = NULL;
    CHECK(pthread_create(&thread, NULL, try_it, lock) == 0);
    CHECK(pthread_join(thread, &result) == 0);
    return result != NULL;
}

static void
try_tells_who_holds_it(void)
{
    fnet_lock lock;
    CHECK(fnet_lock_init(&lock, FNET_RANK_OUTPUT) == 0);
    CHECK(!fnet_lock_is_mine(&lock));
    CHECK(another_thread_can_take(&lock));
    fnet_lock_acquire(&lock);
    CHECK(fnet_lock_is_mine(&lock));
    CHECK(!another_thread_can_take(&lock));
    fnet_lock_release(&lock);
    CHECK(!fnet_lock_is_mine(&lock));
    CHECK(another_thread_can_take(&lock));
    fnet_lock_fini(&lock);
}

static void
order_is_checked(void)
{
    fnet_lock low, high, peer;
    CHECK(fnet_lock_init(&low, FNET_RANK_SHARDSET) == 0);
    CHECK(fnet_lock_init(&high, FNET_RANK_DEPOT) == 0);
    CHECK(fnet_lock_init(&peer, FNET_RANK_DEPOT) == 0);
    fnet_lock_acquire(&low);
    fnet_lock_acquire(&high);
    CHECK_PANICS(fnet_lock_acquire(&high));
    CHECK_PANICS(fnet_lock_acquire(&peer));
    CHECK_PANICS((void)fnet_lock_try(&peer));
    fnet_lock_release(&low);
    CHECK_PANICS(fnet_lock_acquire(&low));
    fnet_lock_release(&high);
    fnet_lock_fini(&low);
    fnet_lock_fini(&high);
    fnet_lock_fini(&peer);
}

static void
release_forgets(void)
{
    fnet_lock low, peer;
    CHECK(fnet_lock_init(&low, FNET_RANK_SHARDSET) == 0);
    CHECK(fnet_lock_init(&peer, FNET_RANK_DEPOT) == 0);
    fnet_lock_acquire(&peer);
    fnet_lock_release(&peer);
    fnet_lock_acquire(&low);
    CHECK(fnet_lock_try(&peer));
    fnet_lock_release(&peer);
    fnet_lock_release(&low);
    CHECK_PANICS(fnet_lock_release(&low));
    CHECK_PANICS(fnet_assert_locked(&low));
    fnet_lock_fini(&low);
    fnet_lock_fini(&peer);
}

int
main(void)
{
    RUN(excludes_other_threads);
    RUN(try_tells_who_holds_it);
    RUN(order_is_checked);
    RUN(release_forgets);
    return test_report();
}
