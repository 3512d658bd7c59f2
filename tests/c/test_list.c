#include "base/list.h"

#include "test.h"

typedef struct item {
    int value;
    fnet_list link;
} item;

static int
value_of(const fnet_list *node)
{
    /* The analyzer takes the link for the whole object. */
    /* NOLINTNEXTLINE(clang-analyzer-security.ArrayBound) */
    return fnet_container_of(node, item, link)->value;
}

/* Whether the list holds these values, forwards and backwards. */
static bool
holds(const fnet_list *list, const int *values, int count)
{
    const fnet_list *node;
    int i = 0;
    fnet_list_foreach(node, list)
    {
        if (i == count || value_of(node) != values[i] ||
            node->next->prev != node) {
            return false;
        }
        i++;
    }
    for (node = list->prev; node != list; node = node->prev) {
        if (i == 0 || value_of(node) != values[i - 1]) {
            return false;
        }
        i--;
    }
    return i == 0 && (count > 0 || fnet_list_empty(list));
}

#define HOLDS(list, ...)                                                      \
    holds((list), (const int[]){__VA_ARGS__},                                 \
          (int)(sizeof((const int[]){__VA_ARGS__}) / sizeof(int)))

static void
fill(fnet_list *list, item *items, int first, int count)
{
    fnet_list_init(list);
    for (int i = 0; i < count; i++) {
        items[i].value = first + i;
        fnet_list_init(&items[i].link);
        fnet_list_push(list, &items[i].link);
    }
}

static void
push_pop_is_a_queue(void)
{
    fnet_list list;
    item items[3];
    fill(&list, items, 1, 3);
    CHECK(HOLDS(&list, 1, 2, 3));
    for (int i = 1; i <= 3; i++) {
        fnet_list *node = fnet_list_pop(&list);
        CHECK(node != NULL && value_of(node) == i);
        CHECK(node != NULL && fnet_list_empty(node));
    }
    CHECK(fnet_list_pop(&list) == NULL);
    CHECK(fnet_list_empty(&list));
}

static void
remove_anywhere_and_twice(void)
{
    fnet_list list;
    item items[4];
    fill(&list, items, 1, 4);
    fnet_list_remove(&items[1].link);
    CHECK(HOLDS(&list, 1, 3, 4));
    fnet_list_remove(&items[1].link);
    CHECK(HOLDS(&list, 1, 3, 4));
    fnet_list_remove(&items[3].link);
    fnet_list_remove(&items[0].link);
    CHECK(HOLDS(&list, 3));
    fnet_list_push(&list, &items[0].link);
    CHECK(HOLDS(&list, 3, 1));
    fnet_list_remove(&items[2].link);
    fnet_list_remove(&items[0].link);
    CHECK(fnet_list_empty(&list));
}

static void
splice_moves_all(void)
{
    fnet_list to, from;
    item first[2], second[3];
    fill(&to, first, 1, 2);
    fill(&from, second, 3, 3);
    fnet_list_splice(&to, &from);
    CHECK(HOLDS(&to, 1, 2, 3, 4, 5));
    CHECK(fnet_list_empty(&from));
    fnet_list_splice(&to, &from);
    CHECK(HOLDS(&to, 1, 2, 3, 4, 5));
    fnet_list_splice(&from, &to);
    CHECK(HOLDS(&from, 1, 2, 3, 4, 5));
    CHECK(fnet_list_empty(&to));
}

int
main(void)
{
    RUN(push_pop_is_a_queue);
    RUN(remove_anywhere_and_twice);
    RUN(splice_moves_all);
    return test_report();
}
