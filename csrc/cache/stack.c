#include "cache/stack.h"

#include "base/mem.h"

#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

/* The sizes that are kept, guard page included, and how many of each: eight
 * loops' prompters, or the workers of one; half as many that call out. */
#define KINDS 2
#define SLOTS 8
static const size_t kind_size[KINDS] = {(size_t)256 << 10, (size_t)1 << 20};
static const size_t kind_slots[KINDS] = {8, 4};

/* A slot holds a stack or NULL.  It is emptied by an exchange, and filled by
 * a compare-and-exchange from NULL, so what is in it belongs to one thread.
 * acq_rel: what the last owner did to the mapping is done before the next one
 * has it. */
static _Atomic(void *) slots[KINDS][SLOTS];

/* Statistics: relaxed, they order nothing. */
static atomic_size_t running, running_bytes, high_water;
static _Atomic(uint64_t) hits, misses;

/* What the C library takes of a stack for itself: thread-local storage, which
 * libraries may have made large, and the least for a thread.  glibc tells
 * those who ask by this name (Rust's threads and the JVM's do). */
static size_t
overhead(void)
{
    typedef size_t minstack(const pthread_attr_t *attr);
    union {
        void *object;
        minstack *function;
    } found = {.object = dlsym(RTLD_DEFAULT, "__pthread_get_minstack")};
    pthread_attr_t attr;
    size_t bytes = (size_t)64 << 10;
    if (found.object != NULL && pthread_attr_init(&attr) == 0) {
        bytes = found.function(&attr);
        pthread_attr_destroy(&attr);
    }
    return bytes;
}

static size_t
page_size(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

/* The kind of a mapping; KINDS: of none, it is not kept. */
static int
kind_of(size_t size)
{
    int kind = 0;
    while (kind < KINDS && kind_size[kind] != size) {
        kind++;
    }
    return kind;
}

/* Bytes to map for a stack of at least `stack` bytes. */
static size_t
mapping_size(size_t stack)
{
    size_t page = page_size();
    size_t size = stack + overhead() + 2 * page; /* guard, and rounding */
    for (int i = 0; i < KINDS; i++) {
        if (size <= kind_size[i]) {
            return kind_size[i];
        }
    }
    return (size + page - 1) / page * page;
}

static void *
map_stack(size_t size)
{
    if (fnet_mem_denied()) {
        return NULL;
    }
    void *base =
        mmap(NULL, size, PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) {
        return NULL;
    }
    if (mprotect(base, page_size(), PROT_NONE) != 0) {
        munmap(base, size);
        return NULL;
    }
    return base;
}

static void *
get_stack(size_t size)
{
    int kind = kind_of(size);
    for (size_t i = 0; kind < KINDS && i < kind_slots[kind]; i++) {
        void *base = atomic_exchange_explicit(&slots[kind][i], NULL,
                                              memory_order_acq_rel);
        if (base != NULL) {
            atomic_fetch_add_explicit(&hits, 1, memory_order_relaxed);
            return base;
        }
    }
    atomic_fetch_add_explicit(&misses, 1, memory_order_relaxed);
    return map_stack(size);
}

/* The memory goes back at once, the addresses are kept. */
static void
put_stack(void *base, size_t size)
{
    int kind = kind_of(size);
    size_t page = page_size();
    if (kind < KINDS) {
        (void)madvise((char *)base + page, size - page, MADV_DONTNEED);
    }
    for (size_t i = 0; kind < KINDS && i < kind_slots[kind]; i++) {
        void *empty = NULL;
        if (atomic_compare_exchange_strong_explicit(&slots[kind][i], &empty,
                                                    base, memory_order_acq_rel,
                                                    memory_order_relaxed)) {
            return;
        }
    }
    munmap(base, size);
}

static void
note_start(size_t size)
{
    size_t now =
        atomic_fetch_add_explicit(&running, 1, memory_order_relaxed) + 1;
    size_t most = atomic_load_explicit(&high_water, memory_order_relaxed);
    atomic_fetch_add_explicit(&running_bytes, size, memory_order_relaxed);
    while (most < now && !atomic_compare_exchange_weak_explicit(
                             &high_water, &most, now, memory_order_relaxed,
                             memory_order_relaxed)) {
    }
}

static void
give_stack_back(fnet_thread *thread)
{
    atomic_fetch_sub_explicit(&running, 1, memory_order_relaxed);
    atomic_fetch_sub_explicit(&running_bytes, thread->size,
                              memory_order_relaxed);
    put_stack(thread->stack, thread->size);
    thread->stack = NULL;
}

/* -- threads -------------------------------------------------------------- */

static void *
begin(void *arg)
{
    fnet_thread *thread = arg;
    (void)pthread_setname_np(pthread_self(), thread->name);
    thread->run(thread->arg);
    return NULL;
}

/* With all signals blocked, which the new thread inherits. */
static int
create(fnet_thread *thread, const pthread_attr_t *attr)
{
    sigset_t all, before;
    if (fnet_mem_denied()) {
        return EAGAIN;
    }
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int rc = pthread_create(&thread->id, attr, begin, thread);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return rc;
}

#if FNET_DEBUG >= 1

static atomic_long fail_after = -1;

static bool
must_fail(void)
{
    long left = atomic_load(&fail_after);
    if (left > 0) {
        atomic_fetch_sub(&fail_after, 1);
    }
    return left == 0;
}

void
fnet_thread_fail_after(long n)
{
    atomic_store(&fail_after, n < 0 ? -1 : n);
}

#else

static inline bool
must_fail(void)
{
    return false;
}

void
fnet_thread_fail_after(long n)
{
}

#endif

int
fnet_thread_start(fnet_thread *thread, const char *name, size_t stack,
                  void (*run)(void *arg), void *arg)
{
    pthread_attr_t attr;
    size_t size = mapping_size(stack);
    size_t page = page_size();
    *thread = (fnet_thread){.run = run, .arg = arg, .size = size};
    snprintf(thread->name, sizeof(thread->name), "%s", name);
    if (must_fail()) {
        return -EAGAIN;
    }
    void *base = get_stack(size);
    if (base == NULL) {
        return -ENOMEM;
    }
    int rc = pthread_attr_init(&attr);
    if (rc != 0) {
        goto fail_attr;
    }
    rc = pthread_attr_setstack(&attr, (char *)base + page, size - page);
    if (rc == 0) {
        /* Before the thread runs, which may look at it. */
        thread->stack = base;
        rc = create(thread, &attr);
    }
    pthread_attr_destroy(&attr);
    if (rc != 0) {
        goto fail_attr;
    }
    note_start(size);
    return 0;

fail_attr:
    thread->stack = NULL;
    put_stack(base, size);
    return -rc;
}

void
fnet_thread_join(fnet_thread *thread)
{
    fnet_assert(fnet_thread_started(thread));
    int rc = pthread_join(thread->id, NULL);
    fnet_assert(rc == 0);
    (void)rc;
    give_stack_back(thread);
}

void
fnet_thread_forget(fnet_thread *thread)
{
    if (fnet_thread_started(thread)) {
        give_stack_back(thread);
    }
}

/* -- the cache ------------------------------------------------------------ */

void
fnet_stack_trim_any(void)
{
    for (int kind = 0; kind < KINDS; kind++) {
        for (size_t i = 0; i < kind_slots[kind]; i++) {
            void *base = atomic_exchange_explicit(&slots[kind][i], NULL,
                                                  memory_order_acq_rel);
            if (base != NULL) {
                munmap(base, kind_size[kind]);
            }
        }
    }
}

void
fnet_stack_stats_any(fnet_stack_stats *out)
{
    *out = (fnet_stack_stats){
        .running = atomic_load_explicit(&running, memory_order_relaxed),
        .running_bytes =
            atomic_load_explicit(&running_bytes, memory_order_relaxed),
        .high_water = atomic_load_explicit(&high_water, memory_order_relaxed),
        .hits = atomic_load_explicit(&hits, memory_order_relaxed),
        .misses = atomic_load_explicit(&misses, memory_order_relaxed)};
    for (int kind = 0; kind < KINDS; kind++) {
        out->limit_bytes += kind_slots[kind] * kind_size[kind];
        for (size_t i = 0; i < kind_slots[kind]; i++) {
            if (atomic_load_explicit(&slots[kind][i], memory_order_relaxed) !=
                NULL) {
                out->held++;
                out->held_bytes += kind_size[kind];
            }
        }
    }
}
