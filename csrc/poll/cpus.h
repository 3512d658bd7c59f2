/* cpus: what CPUs this process has, and how much of them is idle.  Any
 * thread; all of it reads files of the system's. */
#ifndef FNET_POLL_CPUS_H
#define FNET_POLL_CPUS_H

#include "base/base.h"

/* CPUs that this process may use: its affinity, and the quota of its control
 * group, rounded up; at least 1. */
unsigned fnet_usable_cpus(void);
/* Its parts, for tests.  "quota period" (or "max period") in whole CPUs,
 * rounded up; 0: no limit, or none that makes sense. */
unsigned fnet_parse_quota(const char *text);
/* The same of the control groups named in the file `groups`, whose hierarchy
 * is mounted at `root`, and of those above them. */
unsigned fnet_group_quota(const char *groups, const char *root);

/* Time that the CPUs of this thread's affinity were idle since some moment,
 * all together, us, in steps of 10 ms; -1: the system does not tell.  Takes
 * 20 us, and a millisecond with hundreds of CPUs. */
int64_t fnet_idle_us(void);
/* Its part, for tests: ticks in a file like /proc/stat, of the CPUs in a
 * cpu_set_t of `size` bytes; -1: none of these is there. */
int64_t fnet_idle_ticks(const char *path, const void *cpus, size_t size);

#endif
