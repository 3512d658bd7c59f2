#include "base/clock.h"

#include "test.h"

#include <time.h>

static int64_t
system_ns(clockid_t id)
{
    struct timespec now;
    CHECK(clock_gettime(id, &now) == 0);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static void
never_goes_back(void)
{
    int64_t before = fnet_clock_ns();
    for (int i = 0; i < 10000; i++) {
        int64_t now = fnet_clock_ns();
        CHECK(now >= before);
        before = now;
    }
}

static void
is_the_monotonic_clock(void)
{
    int64_t before = system_ns(CLOCK_MONOTONIC);
    int64_t now = fnet_clock_ns();
    CHECK(before <= now && now <= system_ns(CLOCK_MONOTONIC));
}

static void
counts_nanoseconds(void)
{
    struct timespec pause = {.tv_nsec = 3 * FNET_MSEC};
    int64_t before = fnet_clock_ns();
    CHECK(nanosleep(&pause, NULL) == 0);
    int64_t took = fnet_clock_ns() - before;
    CHECK(took >= 3 * FNET_MSEC && took < 10 * FNET_SEC);
}

int
main(void)
{
    RUN(never_goes_back);
    RUN(is_the_monotonic_clock);
    RUN(counts_nanoseconds);
    return test_report();
}
