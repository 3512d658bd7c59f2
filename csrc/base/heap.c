#include "base/heap.h"

#include "base/mem.h"

#include <errno.h>

#define ARITY 4
#define MIN_CAPACITY 16

static inline bool
precedes(const fnet_heap_node *a, const fnet_heap_node *b)
{
    return a->key < b->key || (a->key == b->key && a->seq < b->seq);
}

static inline void
place(fnet_heap *heap, fnet_heap_node *node, size_t index)
{
    heap->nodes[index] = node;
    node->index = index;
}

/* Puts the node where the hole at `index` comes to rest on its way up. */
static void
sift_up(fnet_heap *heap, fnet_heap_node *node, size_t index)
{
    while (index > 0) {
        size_t parent = (index - 1) / ARITY;
        if (!precedes(node, heap->nodes[parent])) {
            break;
        }
        place(heap, heap->nodes[parent], index);
        index = parent;
    }
    place(heap, node, index);
}

/* The same, on its way down. */
static void
sift_down(fnet_heap *heap, fnet_heap_node *node, size_t index)
{
    for (;;) {
        size_t child = index * ARITY + 1;
        if (child >= heap->count) {
            break;
        }
        size_t end = child + ARITY;
        if (end > heap->count) {
            end = heap->count;
        }
        size_t least = child;
        while (++child < end) {
            if (precedes(heap->nodes[child], heap->nodes[least])) {
                least = child;
            }
        }
        if (!precedes(heap->nodes[least], node)) {
            break;
        }
        place(heap, heap->nodes[least], index);
        index = least;
    }
    place(heap, node, index);
}

static int
resize(fnet_heap *heap, size_t capacity)
{
    if (capacity > SIZE_MAX / sizeof(*heap->nodes)) {
        return -ENOMEM;
    }
    fnet_heap_node **nodes =
        fnet_realloc(heap->nodes, capacity * sizeof(*heap->nodes));
    if (nodes == NULL) {
        return -ENOMEM;
    }
    heap->nodes = nodes;
    heap->capacity = capacity;
    return 0;
}

void
fnet_heap_init(fnet_heap *heap)
{
    *heap = (fnet_heap){0};
}

void
fnet_heap_fini(fnet_heap *heap)
{
    for (size_t i = 0; i < heap->count; i++) {
        heap->nodes[i]->index = FNET_HEAP_NOWHERE;
    }
    fnet_free(heap->nodes);
    *heap = (fnet_heap){0};
}

int
fnet_heap_push(fnet_heap *heap, fnet_heap_node *node, int64_t key)
{
    fnet_assert(!fnet_heap_contains(node));
    if (heap->count == heap->capacity) {
        int rc =
            resize(heap, heap->capacity ? heap->capacity * 2 : MIN_CAPACITY);
        if (rc < 0) {
            return rc;
        }
    }
    node->key = key;
    node->seq = heap->next_seq++;
    sift_up(heap, node, heap->count++);
    fnet_check(fnet_heap_is_valid(heap));
    return 0;
}

void
fnet_heap_remove(fnet_heap *heap, fnet_heap_node *node)
{
    size_t index = node->index;
    fnet_assert(index < heap->count && heap->nodes[index] == node);
    node->index = FNET_HEAP_NOWHERE;
    fnet_heap_node *last = heap->nodes[--heap->count];
    if (last != node) {
        if (precedes(last, node)) {
            sift_up(heap, last, index);
        }
        else {
            sift_down(heap, last, index);
        }
    }
    /* To half only: a heap at the edge must not move with every push. */
    if (heap->capacity > MIN_CAPACITY && heap->count <= heap->capacity / 4) {
        int rc = resize(heap, heap->capacity / 2);
        (void)rc; /* it stays as large as it is */
    }
    fnet_check(fnet_heap_is_valid(heap));
}

bool
fnet_heap_is_valid(const fnet_heap *heap)
{
    if (heap->count > heap->capacity) {
        return false;
    }
    for (size_t i = 0; i < heap->count; i++) {
        const fnet_heap_node *node = heap->nodes[i];
        if (node->index != i || node->seq >= heap->next_seq) {
            return false;
        }
        if (i > 0 && precedes(node, heap->nodes[(i - 1) / ARITY])) {
            return false;
        }
    }
    return true;
}
