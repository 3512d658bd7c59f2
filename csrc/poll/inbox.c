#include "poll/inbox.h"

int
fnet_inbox_init(fnet_inbox *inbox, fnet_poller *sleeper)
{
    atomic_init(&inbox->sleeper, sleeper);
    atomic_init(&inbox->count, 0);
    fnet_list_init(&inbox->batches);
    return fnet_lock_init(&inbox->lock, FNET_RANK_INBOX);
}

void
fnet_inbox_forget(fnet_inbox *inbox)
{
    if (fnet_lock_init(&inbox->lock, FNET_RANK_INBOX) < 0) {
        fnet_panic("inbox: no lock after fork");
    }
    fnet_list_init(&inbox->batches);
    atomic_store(&inbox->count, 0);
}

void
fnet_inbox_fini(fnet_inbox *inbox)
{
    fnet_assert(fnet_list_empty(&inbox->batches));
    fnet_lock_fini(&inbox->lock);
}

void
fnet_inbox_wake_any(fnet_inbox *inbox)
{
    /* The caller has published its news; if the sleeper is changed after this
     * load, the loop looks for news before it sleeps on the new one. */
    fnet_poller_wake_any(atomic_load(&inbox->sleeper));
}

void
fnet_inbox_post_any(fnet_inbox *inbox, fnet_batch *batch)
{
    fnet_lock_acquire(&inbox->lock);
    fnet_list_push(&inbox->batches, &batch->link);
    atomic_fetch_add(&inbox->count, 1);
    fnet_lock_release(&inbox->lock);
    fnet_inbox_wake_any(inbox);
}

fnet_batch *
fnet_inbox_take(fnet_inbox *inbox)
{
    fnet_lock_acquire(&inbox->lock);
    fnet_list *node = fnet_list_pop(&inbox->batches);
    if (node != NULL) {
        atomic_fetch_sub(&inbox->count, 1);
    }
    fnet_lock_release(&inbox->lock);
    return node == NULL ? NULL : fnet_container_of(node, fnet_batch, link);
}
