#include "base/heap.h"

#include "test.h"

#include <errno.h>

#define COUNT 600

static void
init_nodes(fnet_heap_node *nodes, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        fnet_heap_node_init(&nodes[i]);
    }
}

static void
leaves_in_order_and_stable(void)
{
    static fnet_heap_node nodes[COUNT];
    init_nodes(nodes, COUNT);
    fnet_heap heap;
    fnet_heap_init(&heap);
    CHECK(fnet_heap_min(&heap) == NULL);
    uint32_t state = 1;
    for (size_t i = 0; i < COUNT; i++) {
        /* Few keys, some below zero: many ties. */
        int64_t key = (int64_t)(test_random(&state) % 20) - 10;
        CHECK(fnet_heap_push(&heap, &nodes[i], key) == 0);
        CHECK(fnet_heap_contains(&nodes[i]));
    }
    CHECK(fnet_heap_is_valid(&heap));
    const fnet_heap_node *before = NULL;
    for (size_t i = 0; i < COUNT; i++) {
        fnet_heap_node *node = fnet_heap_min(&heap);
        fnet_heap_remove(&heap, node);
        CHECK(!fnet_heap_contains(node));
        /* The nodes were pushed in the order of their addresses. */
        CHECK(before == NULL || before->key < node->key ||
              (before->key == node->key && before < node));
        before = node;
    }
    CHECK(fnet_heap_min(&heap) == NULL);
    fnet_heap_fini(&heap);
}

static int64_t
least_key(const fnet_heap_node *nodes, size_t count)
{
    int64_t least = INT64_MAX;
    for (size_t i = 0; i < count; i++) {
        if (fnet_heap_contains(&nodes[i]) && nodes[i].key < least) {
            least = nodes[i].key;
        }
    }
    return least;
}

static void
any_node_can_be_removed(void)
{
    static fnet_heap_node nodes[COUNT];
    init_nodes(nodes, COUNT);
    fnet_heap heap;
    fnet_heap_init(&heap);
    uint32_t state = 2;
    size_t count = 0;
    for (int i = 0; i < 5000; i++) {
        fnet_heap_node *node = &nodes[test_random(&state) % COUNT];
        if (fnet_heap_contains(node)) {
            fnet_heap_remove(&heap, node);
            count--;
        }
        else {
            int64_t key = (int64_t)(test_random(&state) % 1000);
            CHECK(fnet_heap_push(&heap, node, key) == 0);
            count++;
        }
        CHECK(heap.count == count);
        CHECK(fnet_heap_is_valid(&heap));
        CHECK(count == 0 ||
              fnet_heap_min(&heap)->key == least_key(nodes, COUNT));
    }
    fnet_heap_fini(&heap);
    CHECK(least_key(nodes, COUNT) == INT64_MAX); /* all are nowhere */
}

static void
memory_is_given_back(void)
{
    static fnet_heap_node nodes[COUNT];
    init_nodes(nodes, COUNT);
    fnet_heap heap;
    fnet_heap_init(&heap);
    for (size_t i = 0; i < COUNT; i++) {
        CHECK(fnet_heap_push(&heap, &nodes[i], (int64_t)i) == 0);
    }
    size_t most = heap.capacity;
    CHECK(most >= COUNT && most <= 2 * COUNT);
    while (heap.count > most / 4) {
        CHECK(heap.capacity == most);
        fnet_heap_remove(&heap, fnet_heap_min(&heap));
    }
    CHECK(heap.capacity == most / 2);
    while (heap.count > 0) {
        fnet_heap_remove(&heap, heap.nodes[heap.count - 1]);
        CHECK(heap.capacity <= 16 || heap.capacity < 4 * heap.count + 4);
    }
    CHECK(heap.capacity <= 16);
    fnet_heap_fini(&heap);
}

/* One push after the other, each of which is told once that there is none. */
static void
push_survives_lack_of_memory(void)
{
    static fnet_heap_node nodes[COUNT];
    init_nodes(nodes, COUNT);
    fnet_heap heap;
    fnet_heap_init(&heap);
    int refused = 0;
    for (size_t i = 0; i < COUNT; i++) {
        fnet_mem_fail_after(0);
        int rc = fnet_heap_push(&heap, &nodes[i], -(int64_t)i);
        CHECK((rc == -ENOMEM) == fnet_mem_failed());
        fnet_mem_fail_after(-1);
        if (rc != 0) {
            refused++;
            CHECK(heap.count == i && !fnet_heap_contains(&nodes[i]));
            CHECK(fnet_heap_is_valid(&heap));
            CHECK(fnet_heap_push(&heap, &nodes[i], -(int64_t)i) == 0);
        }
    }
    CHECK(refused > 3);
    /* Shrinking wants none: the heap may stay as large as it is. */
    size_t capacity = heap.capacity;
    while (heap.count > capacity / 4) {
        fnet_mem_fail_after(0);
        fnet_heap_remove(&heap, fnet_heap_min(&heap));
    }
    CHECK(fnet_mem_failed() && heap.capacity == capacity);
    fnet_mem_fail_after(-1);
    fnet_heap_remove(&heap, fnet_heap_min(&heap));
    CHECK(heap.capacity == capacity / 2);
    CHECK(fnet_heap_is_valid(&heap));
    fnet_heap_fini(&heap);
}

static void
damage_is_seen(void)
{
    fnet_heap_node nodes[8];
    init_nodes(nodes, 8);
    fnet_heap heap;
    fnet_heap_init(&heap);
    for (int i = 0; i < 8; i++) {
        CHECK(fnet_heap_push(&heap, &nodes[i], i) == 0);
    }
    nodes[7].key = -1;
    CHECK(!fnet_heap_is_valid(&heap));
    nodes[7].key = 7;
    CHECK(fnet_heap_is_valid(&heap));
    nodes[3].index = 4;
    CHECK(!fnet_heap_is_valid(&heap));
    nodes[3].index = 3;
    CHECK_PANICS((void)!fnet_heap_push(&heap, &nodes[3], 9));
    fnet_heap_remove(&heap, &nodes[3]);
    CHECK_PANICS(fnet_heap_remove(&heap, &nodes[3]));
    fnet_heap_fini(&heap);
}

int
main(void)
{
    RUN(leaves_in_order_and_stable);
    RUN(any_node_can_be_removed);
    RUN(memory_is_given_back);
    RUN(push_survives_lack_of_memory);
    RUN(damage_is_seen);
    return test_report();
}
