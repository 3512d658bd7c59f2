#include "poll/cpus.h"

#include "base/base.h"
#include "test.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>

/* In the place of the C library's: the system's, or that of a machine with so
 * many CPUs, of which this thread may use two. */
static size_t machine;

int
sched_getaffinity(pid_t pid, size_t size, cpu_set_t *set)
{
    memset(set, 0, size);
    if (machine == 0) {
        return syscall(SYS_sched_getaffinity, pid, size, set) < 0 ? -1 : 0;
    }
    if (8 * size < machine) {
        errno = EINVAL;
        return -1;
    }
    CPU_SET_S(1, size, set);
    CPU_SET_S(machine - 1, size, set);
    return 0;
}

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

static void
machines_with_more_cpus_than_a_set_holds(void)
{
    unsigned quota = fnet_group_quota("/proc/self/cgroup", "/sys/fs/cgroup");
    const size_t machines[] = {64, 1024, 1025, 4096, 8192};
    for (size_t i = 0; i < FNET_COUNTOF(machines); i++) {
        machine = machines[i];
        CHECK(fnet_usable_cpus() == (quota == 1 ? 1 : 2));
        CHECK(fnet_idle_us() >= -1);
    }
    machine = 1000000;
    CHECK(fnet_usable_cpus() == 1);
    CHECK(fnet_idle_us() == -1);
    machine = 0;
}

/* -- how idle ------------------------------------------------------------ */

static int64_t
idle_in(const char *text, const void *set, size_t size)
{
    char path[] = "/tmp/fnet-stat-XXXXXX";
    int fd = mkstemp(path);
    CHECK(fd >= 0 && close(fd) == 0);
    write_text(path, text);
    int64_t ticks = fnet_idle_ticks(path, set, size);
    CHECK(unlink(path) == 0);
    return ticks;
}

static void
idle_ticks_of_the_cpus_asked_for(void)
{
    const char *text = "cpu  11 2 3 999 5\n"
                       "cpu0 1 2 3 40 5 6 7 8 0 0\n"
                       "cpu1 1 2 3 500 5 6 7 8 0 0\n"
                       "cpu12 1 2 3 6000 0\n"
                       "cpu2 1 2 3 7 0"; /* cut off */
    cpu_set_t set;
    CPU_ZERO(&set);
    CHECK(idle_in(text, &set, sizeof(set)) == -1);
    CPU_SET(0, &set);
    CHECK(idle_in(text, &set, sizeof(set)) == 45);
    CPU_SET(2, &set);
    CPU_SET(12, &set);
    CHECK(idle_in(text, &set, sizeof(set)) == 6045);
    CPU_SET(1, &set);
    CHECK(idle_in(text, &set, sizeof(set)) == 6550);
    CHECK(idle_in("cpu0 1 2 3 0 0\n", &set, sizeof(set)) == 0);
    CHECK(idle_in("", &set, sizeof(set)) == -1);
    CHECK(idle_in("cpu0 1 2\ncpu1 x\ncpu\ncpu1 1 2 3 4\n", &set,
                  sizeof(set)) == -1);
    CHECK(idle_in("cpu999999999 1 2 3 4 5\n", &set, sizeof(set)) == -1);
    CHECK(fnet_idle_ticks("/nonexistent", &set, sizeof(set)) == -1);
    CHECK(fnet_idle_ticks("/", &set, sizeof(set)) == -1); /* EISDIR */
}

/* Whatever falls on the border between two reads. */
static void
long_files(void)
{
    enum { CPUS = 3000, SIZE = 400000 };
    char *text = malloc(SIZE);
    cpu_set_t sets[4];
    CHECK(text != NULL);
    for (int pad = 0; pad < 100; pad += 9) {
        size_t n = (size_t)sprintf(text, "cpu  1%0*d 2 3 4 5\n", pad + 1, 0);
        for (int i = 0; i < CPUS; i++) {
            n += (size_t)sprintf(text + n, "cpu%d 1 2 3 %d 0 0 0 0 0\n", i, i);
        }
        n += (size_t)sprintf(text + n, "intr");
        while (n < SIZE - 100) {
            n += (size_t)sprintf(text + n, " 12345");
        }
        strcpy(text + n, "\ncpu0 1 2 3 4 5\n"); /* none of these */
        memset(sets, 0xff, sizeof(sets));
        CHECK(idle_in(text, sets, sizeof(sets)) ==
              (int64_t)CPUS * (CPUS - 1) / 2);
        memset(sets, 0, sizeof(sets));
        CPU_SET_S(2999, sizeof(sets), sets);
        CHECK(idle_in(text, sets, sizeof(sets)) == 2999);
    }
    memset(text, 'x', SIZE - 1);
    text[SIZE - 1] = '\0';
    CHECK(idle_in(text, sets, sizeof(sets)) == -1);
    memcpy(text, "cpu0", 4); /* a line that does not end */
    CHECK(idle_in(text, sets, sizeof(sets)) == -1);
    free(text);
}

/* Read in another way. */
static int64_t
idle_here(void)
{
    cpu_set_t set;
    char line[256];
    unsigned cpu;
    long long idle, iowait, total = 0;
    FILE *file = fopen("/proc/stat", "r");
    CHECK(file != NULL && sched_getaffinity(0, sizeof(set), &set) == 0);
    while (fgets(line, sizeof(line), file) != NULL) {
        if (sscanf(line, "cpu%u %*d %*d %*d %lld %lld", &cpu, &idle,
                   &iowait) == 3 &&
            line[3] != ' ' && CPU_ISSET(cpu, &set)) {
            total += idle + iowait;
        }
    }
    fclose(file);
    return total * (1000000 / sysconf(_SC_CLK_TCK));
}

static void
idle_time_of_this_machine(void)
{
    bool between = false;
    /* What waits for a disk may go down by a step. */
    for (int i = 0; i < 100 && !between; i++) {
        int64_t before = idle_here(), idle = fnet_idle_us();
        between = before > 0 && before <= idle && idle <= idle_here();
    }
    CHECK(between);
}

int
main(void)
{
    RUN(quotas_in_whole_cpus);
    RUN(the_smallest_quota_counts);
    RUN(only_the_line_of_version_2);
    RUN(quotas_of_version_1);
    RUN(affinity_counts);
    RUN(machines_with_more_cpus_than_a_set_holds);
    RUN(idle_ticks_of_the_cpus_asked_for);
    RUN(long_files);
    RUN(idle_time_of_this_machine);
    return test_report();
}
