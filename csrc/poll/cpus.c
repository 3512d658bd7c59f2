#include "poll/cpus.h"

#include "base/base.h"

#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* No Linux has more.  sched_getaffinity() fails where the kernel could have
 * more CPUs than the set, and one cpu_set_t is for 1024. */
#define MOST_CPUS 16384

typedef struct cpu_sets {
    cpu_set_t sets[MOST_CPUS / CPU_SETSIZE];
} cpu_sets;

static bool
get_affinity(cpu_sets *cpus)
{
    return sched_getaffinity(0, sizeof(*cpus), cpus->sets) == 0;
}

/* -- how many ------------------------------------------------------------- */

unsigned
fnet_parse_quota(const char *text)
{
    char *end;
    long quota = strtol(text, &end, 10);
    if (end == text || quota <= 0) {
        return 0;
    }
    long period = strtol(end, NULL, 10);
    if (period <= 0) {
        return 0;
    }
    long cpus = quota / period + (quota % period != 0);
    return cpus < MOST_CPUS ? (unsigned)cpus : 0;
}

static bool
read_file(const char *path, char *text, size_t size)
{
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        return false;
    }
    size_t n = fread(text, 1, size - 1, file);
    fclose(file);
    text[n] = '\0';
    return n > 0;
}

static unsigned
smaller(unsigned limit, unsigned other)
{
    return other != 0 && (limit == 0 || other < limit) ? other : limit;
}

/* The quota of the group at `path` and of those above it. */
static unsigned
quota_of_group(const char *root, char *path)
{
    unsigned limit = 0;
    char file[640], text[64];

    for (;;) {
        int n = snprintf(file, sizeof(file), "%s%s/cpu.max", root, path);
        if (n > 0 && (size_t)n < sizeof(file) &&
            read_file(file, text, sizeof(text))) {
            limit = smaller(limit, fnet_parse_quota(text));
        }
        char *slash = strrchr(path, '/');
        if (slash == NULL) {
            return limit;
        }
        *slash = '\0';
    }
}

static bool
read_group_file(const char *root, const char *name, char *text, size_t size)
{
    char file[640];
    int n = snprintf(file, sizeof(file), "%s/%s", root, name);

    return n > 0 && (size_t)n < sizeof(file) && read_file(file, text, size);
}

/* Version 1, as a container sees its own group. */
static unsigned
quota_of_version_1(const char *root)
{
    char quota[48], period[48], both[100];

    if (!read_group_file(root, "cpu/cpu.cfs_quota_us", quota, sizeof(quota)) ||
        !read_group_file(root, "cpu/cpu.cfs_period_us", period,
                         sizeof(period))) {
        return 0;
    }
    snprintf(both, sizeof(both), "%s %s", quota, period);
    return fnet_parse_quota(both);
}

unsigned
fnet_group_quota(const char *groups, const char *root)
{
    char text[4096];
    unsigned limit = 0;

    if (read_file(groups, text, sizeof(text))) {
        /* The line of version 2; others have other numbers. */
        char *line = text;
        while (line != NULL && strncmp(line, "0::", 3) != 0) {
            line = strchr(line, '\n');
            line = line == NULL ? NULL : line + 1;
        }
        if (line != NULL) {
            char *path = line + 3;
            char *end = strchr(path, '\n');
            if (end != NULL) {
                *end = '\0';
            }
            if (strlen(path) < 512) {
                limit = quota_of_group(root, path);
            }
        }
    }
    return smaller(limit, quota_of_version_1(root));
}

unsigned
fnet_usable_cpus(void)
{
    cpu_sets affinity;
    unsigned cpus = 1;

    if (get_affinity(&affinity)) {
        int n = CPU_COUNT_S(sizeof(affinity), affinity.sets);
        cpus = n < 1 ? 1 : (unsigned)n;
    }
    unsigned quota = fnet_group_quota("/proc/self/cgroup", "/sys/fs/cgroup");
    return quota != 0 && quota < cpus ? quota : cpus;
}

/* -- how idle ------------------------------------------------------------ */

/* The CPU of a line "cpu7 user nice system idle iowait ...", or -1, and its
 * idle ticks.  One whose tasks wait for a disk has nothing to do either. */
static long
parse_cpu(const char *line, int64_t *idle)
{
    int64_t fields[5] = {0};
    char *at;

    if (strncmp(line, "cpu", 3) != 0 || line[3] < '0' || line[3] > '9') {
        return -1;
    }
    long cpu = strtol(line + 3, &at, 10);
    for (int i = 0; i < 5; i++) {
        char *end;
        fields[i] = strtoll(at, &end, 10);
        if (end == at) {
            return -1;
        }
        at = end;
    }
    *idle = fields[3] + fields[4];
    return cpu;
}

/* Adds the ticks of the whole lines; the rest, a line that goes on. */
static char *
add_idle(char *text, const cpu_set_t *set, size_t size, int64_t *total)
{
    char *line = text, *end;
    int64_t idle;

    for (; (end = strchr(line, '\n')) != NULL; line = end + 1) {
        *end = '\0';
        long cpu = parse_cpu(line, &idle);
        if (cpu >= 0 && CPU_ISSET_S((size_t)cpu, size, set)) {
            *total = (*total < 0 ? 0 : *total) + idle;
        }
    }
    return line;
}

int64_t
fnet_idle_ticks(const char *path, const void *cpus, size_t size)
{
    char text[8192];
    size_t kept = 0;
    int64_t total = -1;
    int fd = open(path, O_RDONLY | O_CLOEXEC);

    if (fd < 0) {
        return -1;
    }
    for (;;) {
        ssize_t n = read(fd, text + kept, sizeof(text) - 1 - kept);
        if (n <= 0) {
            total = n < 0 ? -1 : total;
            break;
        }
        text[kept + (size_t)n] = '\0';
        char *rest = add_idle(text, cpus, size, &total);
        /* The lines of the CPUs come first; that of the interrupts may be a
         * hundred times as long as all before it. */
        kept = strlen(rest);
        if (kept >= 3 && strncmp(rest, "cpu", 3) != 0) {
            break;
        }
        if (kept == sizeof(text) - 1) {
            break; /* not the system's file */
        }
        memmove(text, rest, kept);
    }
    close(fd);
    return total;
}

int64_t
fnet_idle_us(void)
{
    cpu_sets affinity;
    long hz = sysconf(_SC_CLK_TCK);

    if (hz <= 0 || !get_affinity(&affinity)) {
        return -1;
    }
    int64_t ticks =
        fnet_idle_ticks("/proc/stat", affinity.sets, sizeof(affinity));
    /* In ns it would overflow: 512 CPUs, idle for seven months. */
    return ticks < 0 ? -1 : ticks * (1000000 / hz);
}
