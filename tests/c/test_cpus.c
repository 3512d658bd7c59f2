#include "poll/cpus.h"

#include "base/base.h"
#include "test.h"

#include <sched.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>

/* -- how many ------------------------------------------------------------- */

static void
quotas_in_whole_cpus(void)
{
    const struct {
        const char *text;
        unsigned cpus;
    } cases[] = {
        {"max 100000\n", 0},
        {"200000 100000\n", 2},
        {"200001 100000\n", 3},
        {"100000 100000", 1},
        {"1000 100000\n", 1},
        {"1 9223372036854775807", 1},
        {"50000\n50000\n", 1},
        {"-1\n100000\n", 0},
        {"0 100000", 0},
        {"", 0},
        {"\n", 0},
        {"x", 0},
        {"100000", 0},
        {"100000 0", 0},
        {"100000 -5", 0},
        {"100000 max", 0},
        {"9223372036854775807 9223372036854775807", 1},
        {"9223372036854775807 1", 0}, /* no limit that could be reached */
        {"99999999999999999999999 100000", 0},
    };
    for (size_t i = 0; i < FNET_COUNTOF(cases); i++) {
        CHECK(fnet_parse_quota(cases[i].text) == cases[i].cpus);
    }
}

typedef struct groups {
    char root[64], file[96];
    char made[8][256];
    int count;
} groups;

static void
write_text(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    CHECK(file != NULL && fputs(text, file) >= 0 && fclose(file) == 0);
}

static void
groups_init(groups *g, const char *memberships)
{
    *g = (groups){.root = "/tmp/fnet-groups-XXXXXX"};
    CHECK(mkdtemp(g->root) != NULL);
    snprintf(g->file, sizeof(g->file), "%s/groups", g->root);
    write_text(g->file, memberships);
    strcpy(g->made[g->count++], g->root);
}

/* A group, below one that is there, and a file in it. */
static void
groups_add(groups *g, const char *group, const char *name, const char *text)
{
    char path[512];
    snprintf(path, sizeof(path), "%s%s", g->root, group);
    if (mkdir(path, 0700) == 0) {
        strcpy(g->made[g->count++], path);
    }
    snprintf(path, sizeof(path), "%s%s/%s", g->root, group, name);
    write_text(path, text);
}

static unsigned
groups_quota(const groups *g)
{
    return fnet_group_quota(g->file, g->root);
}

static void
groups_fini(groups *g)
{
    const char *const names[] = {"groups", "cpu.max", "cpu.cfs_quota_us",
                                 "cpu.cfs_period_us"};
    char path[512];
    while (g->count-- > 0) {
        for (size_t i = 0; i < FNET_COUNTOF(names); i++) {
            snprintf(path, sizeof(path), "%s/%s", g->made[g->count], names[i]);
            (void)unlink(path);
        }
        CHECK(rmdir(g->made[g->count]) == 0);
    }
}

static void
the_smallest_quota_counts(void)
{
    groups g;
    groups_init(&g, "7:cpu:/x0::/y\n0::/a/b\n");
    CHECK(groups_quota(&g) == 0); /* no such files */
    groups_add(&g, "/a", "cpu.max", "300000 100000\n");
    CHECK(groups_quota(&g) == 3);
    groups_add(&g, "/a/b", "cpu.max", "max 100000\n");
    CHECK(groups_quota(&g) == 3);
    groups_add(&g, "/a/b", "cpu.max", "150000 100000\n");
    CHECK(groups_quota(&g) == 2);
    groups_add(&g, "", "cpu.max", "100000 100000\n");
    CHECK(groups_quota(&g) == 1);
    groups_fini(&g);
}

static void
only_the_line_of_version_2(void)
{
    groups g;
    groups_init(&g, "10:cpu:/a\n1:name=0::/a:/a\n");
    groups_add(&g, "/a", "cpu.max", "300000 100000\n");
    CHECK(groups_quota(&g) == 0);
    write_text(g.file, "10:cpu:/\n0::/a");
    CHECK(groups_quota(&g) == 3);
    write_text(g.file, "");
    CHECK(groups_quota(&g) == 0);
    CHECK(fnet_group_quota("/nonexistent", g.root) == 0);
    /* A path that is too long is not followed. */
    char line[2000];
    memset(line, 'x', sizeof(line));
    memcpy(line, "0::/", 4);
    line[sizeof(line) - 1] = '\0';
    write_text(g.file, line);
    CHECK(groups_quota(&g) == 0);
    groups_fini(&g);
}

static void
quotas_of_version_1(void)
{
    groups g;
    groups_init(&g, "4:cpu,cpuacct:/docker/1\n");
    groups_add(&g, "/cpu", "cpu.cfs_quota_us", "-1\n");
    CHECK(groups_quota(&g) == 0);
    groups_add(&g, "/cpu", "cpu.cfs_period_us", "100000\n");
    CHECK(groups_quota(&g) == 0);
    groups_add(&g, "/cpu", "cpu.cfs_quota_us", "250000\n");
    CHECK(groups_quota(&g) == 3);
    groups_fini(&g);
}

static void
affinity_counts(void)
{
    cpu_set_t before, one;
    CHECK(sched_getaffinity(0, sizeof(before), &before) == 0);
    unsigned all = fnet_usable_cpus();
    CHECK(all >= 1 && all <= (unsigned)CPU_COUNT(&before));
    CPU_ZERO(&one);
    for (size_t cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (CPU_ISSET(cpu, &before)) {
            CPU_SET(cpu, &one);
            break;
        }
    }
    CHECK(sched_setaffinity(0, sizeof(one), &one) == 0);
    CHECK(fnet_usable_cpus() == 1);
    CHECK(sched_setaffinity(0, sizeof(before), &before) == 0);
    CHECK(fnet_usable_cpus() == all);
}

/* -- how idle ------------------------------------------------------------- */

static void
idle_ticks_of_the_cpus_asked_for(void)
{
    const char *text = "cpu  11 2 3 999 5\n"
                       "cpu0 1 2 3 40 5 6 7 8 0 0\n"
                       "cpu1 1 2 3 500 5 6 7 8 0 0\n"
                       "cpu12 1 2 3 6000 5\n"
                       "intr 1 2 3 4 5\n"
                       "cpu2 1 2 3 7"; /* cut off */
    cpu_set_t set;
    CPU_ZERO(&set);
    CHECK(fnet_parse_idle(text, &set, sizeof(set)) == -1);
    CPU_SET(0, &set);
    CHECK(fnet_parse_idle(text, &set, sizeof(set)) == 40);
    CPU_SET(2, &set);
    CPU_SET(12, &set);
    CHECK(fnet_parse_idle(text, &set, sizeof(set)) == 6040);
    CPU_SET(1, &set);
    CHECK(fnet_parse_idle(text, &set, sizeof(set)) == 6540);
    CHECK(fnet_parse_idle("", &set, sizeof(set)) == -1);
    CHECK(fnet_parse_idle("cpu0 1 2\ncpu1 x\ncpu\n", &set, sizeof(set)) == -1);
    CHECK(fnet_parse_idle("cpu999999999 1 2 3 4\n", &set, sizeof(set)) == -1);
}

static void
idle_time_passes(void)
{
    struct timespec tick = {.tv_nsec = 50000000};
    int64_t before = fnet_idle_ns(), after = before;
    CHECK(before >= 0);
    /* Others may keep the CPUs busy; they do not for ever. */
    for (int i = 0; i < 400 && after == before; i++) {
        nanosleep(&tick, NULL);
        after = fnet_idle_ns();
    }
    CHECK(after > before);
}

int
main(void)
{
    RUN(quotas_in_whole_cpus);
    RUN(the_smallest_quota_counts);
    RUN(only_the_line_of_version_2);
    RUN(quotas_of_version_1);
    RUN(affinity_counts);
    RUN(idle_ticks_of_the_cpus_asked_for);
    RUN(idle_time_passes);
    return test_report();
}
