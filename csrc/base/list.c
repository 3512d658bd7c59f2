#include "base/list.h"

void
fnet_list_splice(fnet_list *list, fnet_list *from)
{
    if (fnet_list_empty(from)) {
        return;
    }
    fnet_list *first = from->next;
    fnet_list *last = from->prev;
    first->prev = list->prev;
    list->prev->next = first;
    last->next = list;
    list->prev = last;
    fnet_list_init(from);
}
