#include "base/mem.h"

#include "test.h"

#include <pthread.h>

static void
live_counts_blocks(void)
{
    long before = fnet_mem_live();
    void *a = fnet_malloc(10);
    void *b = fnet_calloc(3, 7);
    void *c = fnet_realloc(NULL, 5);
    CHECK(a != NULL && b != NULL && c != NULL);
    CHECK(fnet_mem_live() == before + 3);
    c = fnet_realloc(c, 5000);
    CHECK(c != NULL);
    CHECK(fnet_mem_live() == before + 3);
    fnet_free(NULL);
    CHECK(fnet_mem_live() == before + 3);
    fnet_free(a);
    fnet_free(b);
    fnet_free(c);
    CHECK(fnet_mem_live() == before);
}

static void
contents_are_right(void)
{
    unsigned char *zeros = fnet_calloc(100, 9);
    CHECK(zeros != NULL);
    int sum = 0;
    for (int i = 0; zeros != NULL && i < 900; i++) {
        sum += zeros[i];
    }
    CHECK(sum == 0);
    fnet_free(zeros);
    char *text = fnet_malloc(4);
    CHECK(text != NULL);
    memcpy(text, "abc", 4);
    text = fnet_realloc(text, 100000);
    CHECK(text != NULL && strcmp(text, "abc") == 0);
    fnet_free(text);
}

static void
the_nth_call_fails_once(void)
{
    for (long n = 0; n < 5; n++) {
        fnet_mem_fail_after(n);
        CHECK(!fnet_mem_failed());
        for (long i = 0; i < 8; i++) {
            void *ptr = fnet_malloc(1);
            CHECK((ptr == NULL) == (i == n));
            CHECK(fnet_mem_failed() == (i >= n));
            fnet_free(ptr);
        }
    }
    fnet_mem_fail_after(2);
    fnet_mem_fail_after(-1);
    CHECK(!fnet_mem_failed());
    for (int i = 0; i < 4; i++) {
        void *ptr = fnet_malloc(1);
        CHECK(ptr != NULL);
        fnet_free(ptr);
    }
}

static void
each_function_can_fail(void)
{
    long before = fnet_mem_live();
    fnet_mem_fail_after(0);
    CHECK(fnet_malloc(1) == NULL);
    fnet_mem_fail_after(0);
    CHECK(fnet_calloc(1, 1) == NULL);
    fnet_mem_fail_after(0);
    CHECK(fnet_realloc(NULL, 1) == NULL);
    CHECK(fnet_mem_live() == before);
    char *text = fnet_malloc(3);
    CHECK(text != NULL);
    memcpy(text, "ab", 3);
    fnet_mem_fail_after(0);
    char *moved = fnet_realloc(text, 1000);
    CHECK(moved == NULL);
    CHECK(strcmp(text, "ab") == 0); /* still there */
    CHECK(fnet_mem_live() == before + 1);
    fnet_free(text);
}

static void *
allocate_many(void *arg)
{
    long refused = 0;
    for (int i = 0; i < 5000; i++) {
        void *ptr = fnet_malloc(16);
        refused += ptr == NULL;
        fnet_free(ptr);
    }
    *(long *)arg = refused;
    return NULL;
}

static void
threads_share_the_count(void)
{
    long before = fnet_mem_live();
    pthread_t threads[4];
    long refused[4];
    fnet_mem_fail_after(3000);
    for (int i = 0; i < 4; i++) {
        CHECK(pthread_create(&threads[i], NULL, allocate_many, &refused[i]) ==
              0);
    }
    long sum = 0;
    for (int i = 0; i < 4; i++) {
        CHECK(pthread_join(threads[i], NULL) == 0);
        sum += refused[i];
    }
    CHECK(sum == 1); /* one failure was asked for, one thread had it */
    CHECK(fnet_mem_failed());
    CHECK(fnet_mem_live() == before);
}

static void
misuse_panics(void)
{
    CHECK_PANICS((void)!fnet_malloc(0));
    CHECK_PANICS(fnet_panic("%s", "on purpose"));
}

int
main(void)
{
    RUN(live_counts_blocks);
    RUN(contents_are_right);
    RUN(the_nth_call_fails_once);
    RUN(each_function_can_fail);
    RUN(threads_share_the_count);
    RUN(misuse_panics);
    return test_report();
}
