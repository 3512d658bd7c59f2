/* explore: all states that a model can reach, and what leads from where.
 *
 * A state is a struct of bytes without padding; equal bytes are one state. */
#ifndef FNET_TESTS_EXPLORE_H
#define FNET_TESTS_EXPLORE_H

#include "base/base.h"

#include <stdlib.h>
#include <string.h>

#define EXPLORE_MAX (1u << 20) /* states */
#define EXPLORE_TABLE (EXPLORE_MAX * 2)

typedef struct explore_edge {
    uint32_t from, to;
} explore_edge;

typedef struct explorer {
    size_t size; /* of a state */
    unsigned char *states;
    uint32_t count;
    uint32_t *table; /* by hash: a number + 1; 0: empty */
    explore_edge *edges;
    size_t nedges, room;
    bool full; /* there are more states */
} explorer;

static inline void *
explore_memory(void *ptr)
{
    if (ptr == NULL) {
        abort();
    }
    return ptr;
}

static inline void
explorer_init(explorer *e, size_t size)
{
    *e = (explorer){.size = size};
    e->states = explore_memory(malloc(EXPLORE_MAX * size));
    e->table = explore_memory(malloc(EXPLORE_TABLE * sizeof(*e->table)));
}

static inline void
explorer_fini(explorer *e)
{
    free(e->states);
    free(e->table);
    free(e->edges);
}

static inline void
explorer_clear(explorer *e)
{
    e->count = 0;
    e->nedges = 0;
    e->full = false;
    memset(e->table, 0, EXPLORE_TABLE * sizeof(*e->table));
}

static inline const void *
explorer_state(const explorer *e, uint32_t number)
{
    return e->states + (size_t)number * e->size;
}

/* The number of the state, a new one if it has none. */
static inline uint32_t
explorer_number(explorer *e, const void *state)
{
    const unsigned char *bytes = state;
    uint64_t hash = UINT64_C(1469598103934665603);
    for (size_t i = 0; i < e->size; i++) {
        hash = (hash ^ bytes[i]) * UINT64_C(1099511628211);
    }
    uint32_t at = (uint32_t)(hash >> 32) & (EXPLORE_TABLE - 1);
    while (e->table[at] != 0) {
        uint32_t known = e->table[at] - 1;
        if (memcmp(explorer_state(e, known), state, e->size) == 0) {
            return known;
        }
        at = (at + 1) & (EXPLORE_TABLE - 1);
    }
    if (e->count == EXPLORE_MAX) {
        e->full = true;
        return 0;
    }
    memcpy(e->states + (size_t)e->count * e->size, state, e->size);
    e->table[at] = ++e->count;
    return e->count - 1;
}

static inline void
explorer_add_edge(explorer *e, uint32_t from, uint32_t to)
{
    if (e->nedges == e->room) {
        e->room = e->room == 0 ? 1 << 16 : 2 * e->room;
        e->edges =
            explore_memory(realloc(e->edges, e->room * sizeof(*e->edges)));
    }
    e->edges[e->nedges++] = (explore_edge){from, to};
}

/* From how many states none can be reached that is good. */
static inline uint32_t
explorer_count_hopeless(const explorer *e, bool (*is_good)(const void *state))
{
    uint32_t *first =
        explore_memory(calloc((size_t)e->count + 1, sizeof(*first)));
    uint32_t *sources =
        explore_memory(malloc((e->nedges + 1) * sizeof(*sources)));
    uint32_t *queue = explore_memory(malloc(e->count * sizeof(*queue)));
    unsigned char *good = explore_memory(calloc(e->count, 1));
    uint32_t head = 0, tail = 0;
    /* The edges by their ends, then backwards from what is good. */
    for (size_t i = 0; i < e->nedges; i++) {
        first[e->edges[i].to]++;
    }
    for (uint32_t i = 1; i <= e->count; i++) {
        first[i] += first[i - 1];
    }
    for (size_t i = e->nedges; i-- > 0;) {
        sources[--first[e->edges[i].to]] = e->edges[i].from;
    }
    for (uint32_t i = 0; i < e->count; i++) {
        if (is_good(explorer_state(e, i))) {
            good[i] = 1;
            queue[tail++] = i;
        }
    }
    while (head < tail) {
        uint32_t to = queue[head++];
        for (uint32_t i = first[to]; i < first[to + 1]; i++) {
            if (!good[sources[i]]) {
                good[sources[i]] = 1;
                queue[tail++] = sources[i];
            }
        }
    }
    free(first);
    free(sources);
    free(queue);
    free(good);
    return e->count - tail;
}

/* True if something is wrong in one of the scenarios: visit(i) explores the
 * i-th into `e` and says what is, or there is no way to an end from some
 * state. */
static inline bool
explorer_finds(const explorer *e, size_t scenarios,
               const char *(*visit)(size_t scenario),
               bool (*is_the_end)(const void *state))
{
    for (size_t i = 0; i < scenarios; i++) {
        const char *wrong = visit(i);
        if (!e->full &&
            (wrong != NULL || explorer_count_hopeless(e, is_the_end) > 0)) {
            return true;
        }
    }
    return false;
}

#endif
