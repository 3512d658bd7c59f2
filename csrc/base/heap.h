/* heap: a 4-ary min-heap of intrusive nodes that know their place, so that
 * any of them can be taken out in O(log n).
 *
 * Four children per node: half the depth of a binary heap, and the children
 * of a node share cache lines.  Equal keys leave in the order they came.
 * Not thread-safe. */
#ifndef FNET_BASE_HEAP_H
#define FNET_BASE_HEAP_H

#include "base/base.h"

#define FNET_HEAP_NOWHERE SIZE_MAX

typedef struct fnet_heap_node {
    int64_t key;
    uint64_t seq; /* order of arrival: breaks ties */
    size_t index; /* in `nodes`, or FNET_HEAP_NOWHERE */
} fnet_heap_node;

typedef struct fnet_heap {
    fnet_heap_node **nodes;
    size_t count, capacity;
    uint64_t next_seq;
} fnet_heap;

void fnet_heap_init(fnet_heap *heap);
/* Forgets the nodes (their index becomes FNET_HEAP_NOWHERE), frees memory. */
void fnet_heap_fini(fnet_heap *heap);

static inline void
fnet_heap_node_init(fnet_heap_node *node)
{
    node->index = FNET_HEAP_NOWHERE;
}

static inline bool
fnet_heap_contains(const fnet_heap_node *node)
{
    return node->index != FNET_HEAP_NOWHERE;
}

/* The node with the smallest key, or NULL. */
static inline fnet_heap_node *
fnet_heap_min(const fnet_heap *heap)
{
    return heap->count ? heap->nodes[0] : NULL;
}

/* 0 or -ENOMEM (the heap is unchanged then).  The node must be nowhere. */
FNET_MUST_CHECK int fnet_heap_push(fnet_heap *heap, fnet_heap_node *node,
                                   int64_t key);
/* Takes the node out of the heap that it is in.  Gives memory back when the
 * heap has shrunk to a quarter of its capacity. */
void fnet_heap_remove(fnet_heap *heap, fnet_heap_node *node);

/* Walks the heap: every node knows its place and no child precedes it. */
bool fnet_heap_is_valid(const fnet_heap *heap);

#endif
