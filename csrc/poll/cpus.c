#include "poll/cpus.h"

#include "base/base.h"

#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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
    return cpus < CPU_SETSIZE ? (unsigned)cpus : 0;
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
    cpu_set_t set;
    unsigned cpus = 1;

    if (sched_getaffinity(0, sizeof(set), &set) == 0) {
        int n = CPU_COUNT(&set);
        cpus = n < 1 ? 1 : (unsigned)n;
    }
    unsigned quota = fnet_group_quota("/proc/self/cgroup", "/sys/fs/cgroup");
    return quota != 0 && quota < cpus ? quota : cpus;
}

/* -- how idle ------------------------------------------------------------ */

/* The CPU of a line "cpu7 user nice system idle ...", or -1, and its idle
 * ticks. */
static long
parse_cpu(const char *line, int64_t *idle)
{
    char *at;

    if (strncmp(line, "cpu", 3) != 0 || line[3] < '0' || line[3] > '9') {
        return -1;
    }
    long cpu = strtol(line + 3, &at, 10);
    for (int field = 0; field < 4; field++) {
        char *end;
        *idle = strtoll(at, &end, 10);
        if (end == at) {
            return -1;
        }
        at = end;
    }
    return cpu;
}

int64_t
fnet_parse_idle(const char *text, const void *cpus, size_t size)
{
    int64_t total = 0, idle;
    const cpu_set_t *set = cpus;
    bool any = false;

    /* A last line that was cut off counts for nothing. */
    for (const char *line = text, *end; (end = strchr(line, '\n')) != NULL;
         line = end + 1) {
        long cpu = parse_cpu(line, &idle);
        if (cpu >= 0 && CPU_ISSET_S((size_t)cpu, size, set)) {
            total += idle;
            any = true;
        }
    }
    return any ? total : -1;
}

int64_t
fnet_idle_ns(void)
{
    cpu_set_t set;
    char text[32768]; /* 400 CPUs */
    long hz = sysconf(_SC_CLK_TCK);
    int fd = open("/proc/stat", O_RDONLY | O_CLOEXEC);

    if (fd < 0) {
        return -1;
    }
    ssize_t n = read(fd, text, sizeof(text) - 1);
    close(fd);
    if (n <= 0 || hz <= 0 || sched_getaffinity(0, sizeof(set), &set) != 0) {
        return -1;
    }
    text[n] = '\0';
    int64_t idle = fnet_parse_idle(text, &set, sizeof(set));
    return idle < 0 ? -1 : idle * (1000000000 / hz);
}
