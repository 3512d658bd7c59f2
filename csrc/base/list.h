/* list: an intrusive, circular, doubly linked list (a queue and a set).
 *
 * A node is in at most one list; a node in no list links to itself, so that
 * removing it twice is harmless.  Not thread-safe. */
#ifndef FNET_BASE_LIST_H
#define FNET_BASE_LIST_H

#include "base/base.h"

typedef struct fnet_list {
    struct fnet_list *next, *prev;
} fnet_list;

static inline void
fnet_list_init(fnet_list *list)
{
    list->next = list->prev = list;
}

/* Of a head: no nodes in it.  Of a node: in no list. */
static inline bool
fnet_list_empty(const fnet_list *list)
{
    return list->next == list;
}

static inline void
fnet_list_push(fnet_list *list, fnet_list *node)
{
    node->next = list;
    node->prev = list->prev;
    list->prev->next = node;
    list->prev = node;
}

static inline void
fnet_list_remove(fnet_list *node)
{
    node->prev->next = node->next;
    node->next->prev = node->prev;
    fnet_list_init(node);
}

/* The first node, removed; NULL from an empty list. */
static inline fnet_list *
fnet_list_pop(fnet_list *list)
{
    fnet_list *node = list->next;
    if (node == list) {
        return NULL;
    }
    fnet_list_remove(node);
    return node;
}

/* Moves all nodes of `from` to the end of `list`. */
void fnet_list_splice(fnet_list *list, fnet_list *from);

#define fnet_list_foreach(node, list)                                         \
    for ((node) = (list)->next; (node) != (list); (node) = (node)->next)

#endif
