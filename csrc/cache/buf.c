#include "cache/buf.h"

#include <errno.h>
#include <string.h>

_Static_assert(sizeof(fnet_seg) <= FNET_NODE_SIZE, "a node holds a segment");

/* Blocks for copied bytes are of this class at most: larger ones would mostly
 * be kept busy by the few bytes at their end. */
#define CLASS_MAX FNET_BLOCK_64K

/* Bytes that a block takes behind the segment at its start. */
static size_t
payload(enum fnet_block block)
{
    return fnet_block_size(block) - sizeof(fnet_seg);
}

static void
push(fnet_chain *chain, fnet_seg *seg)
{
    seg->next = NULL;
    if (chain->tail == NULL) {
        chain->head = seg;
    }
    else {
        chain->tail->next = seg;
    }
    chain->tail = seg;
    chain->bytes += seg->len;
}

/* The first segment, unlinked; its bytes leave the sum. */
static fnet_seg *
pop(fnet_chain *chain)
{
    fnet_seg *seg = chain->head;
    chain->head = seg->next;
    if (chain->head == NULL) {
        chain->tail = NULL;
    }
    chain->bytes -= seg->len;
    return seg;
}

static void
retire(fnet_seg *seg, fnet_cache *cache, fnet_chain *spent)
{
    if (seg->foreign == NULL) {
        fnet_cache_put(cache, (enum fnet_block)seg->block, seg);
        return;
    }
    seg->len = 0;
    push(spent, seg);
}

static inline bool
is_valid(const fnet_chain *chain)
{
    size_t bytes = 0;
    const fnet_seg *last = NULL;
    for (const fnet_seg *seg = chain->head; seg != NULL; seg = seg->next) {
        bytes += seg->len;
        last = seg;
    }
    return bytes == chain->bytes && last == chain->tail;
}

void
fnet_chain_init(fnet_chain *chain)
{
    *chain = (fnet_chain){0};
}

/* Fills new blocks with the bytes and appends them to `fresh`, sized for a
 * chain that holds `before` bytes already: the more is waiting, the more is
 * to be expected. */
static int
copy_to_blocks(fnet_chain *fresh, fnet_cache *cache, const char *data,
               size_t len, size_t before)
{
    while (len > 0) {
        enum fnet_block block = FNET_BLOCK_2K;
        while (block < CLASS_MAX && payload(block) < before + len) {
            block++;
        }
        fnet_seg *seg = fnet_cache_get(cache, block);
        if (seg == NULL) {
            return -ENOMEM;
        }
        char *bytes = (char *)(seg + 1);
        size_t n = len < payload(block) ? len : payload(block);
        memcpy(bytes, data, n);
        *seg = (fnet_seg){.data = bytes,
                          .len = n,
                          .room = (uint32_t)(payload(block) - n),
                          .block = (uint32_t)block};
        push(fresh, seg);
        data += n;
        len -= n;
        before += n;
    }
    return 0;
}

int
fnet_chain_copy(fnet_chain *chain, fnet_cache *cache, const void *data,
                size_t len)
{
    fnet_seg *tail = chain->tail;
    size_t room = tail != NULL && tail->foreign == NULL ? tail->room : 0;
    size_t fit = len < room ? len : room; /* goes into the tail */
    if (fit < len) {
        /* The blocks first: when they cannot be had, the tail is untouched. */
        fnet_chain fresh = {0};
        int rc = copy_to_blocks(&fresh, cache, (const char *)data + fit,
                                len - fit, chain->bytes + fit);
        if (rc < 0) {
            fnet_chain_clear(&fresh, cache, NULL); /* no foreign ones in it */
            return rc;
        }
        if (tail == NULL) {
            chain->head = fresh.head;
        }
        else {
            tail->next = fresh.head;
        }
        chain->tail = fresh.tail;
        chain->bytes += fresh.bytes;
    }
    if (fit > 0) {
        /* The segment is at the start of its block, so the way from it to the
         * data is known without casting the const away. */
        size_t end = (size_t)(tail->data - (const char *)tail) + tail->len;
        memcpy((char *)tail + end, data, fit);
        tail->len += fit;
        tail->room -= (uint32_t)fit;
        chain->bytes += fit;
    }
    fnet_check(is_valid(chain));
    return 0;
}

int
fnet_chain_ref(fnet_chain *chain, fnet_cache *cache, const void *data,
               size_t len, void *foreign)
{
    fnet_assert(foreign != NULL);
    fnet_seg *seg = fnet_cache_get_node(cache);
    if (seg == NULL) {
        return -ENOMEM;
    }
    *seg = (fnet_seg){.data = data, .len = len, .foreign = foreign};
    push(chain, seg);
    fnet_check(is_valid(chain));
    return 0;
}

int
fnet_chain_iovecs(const fnet_chain *chain, struct iovec *iov, int max)
{
    int n = 0;
    for (const fnet_seg *seg = chain->head; seg != NULL && n < max;
         seg = seg->next) {
        iov[n].iov_base = (void *)(uintptr_t)seg->data; /* is only read */
        iov[n].iov_len = seg->len;
        n++;
    }
    return n;
}

void
fnet_chain_consume(fnet_chain *chain, fnet_cache *cache, size_t n,
                   fnet_chain *spent)
{
    fnet_assert(n <= chain->bytes);
    fnet_seg *seg;
    while ((seg = chain->head) != NULL) {
        if (n < seg->len) {
            seg->data += n;
            seg->len -= n;
            chain->bytes -= n;
            break;
        }
        n -= seg->len;
        retire(pop(chain), cache, spent);
    }
    fnet_check(is_valid(chain));
}

void
fnet_chain_clear(fnet_chain *chain, fnet_cache *cache, fnet_chain *spent)
{
    while (chain->head != NULL) {
        retire(pop(chain), cache, spent);
    }
    fnet_assert(chain->bytes == 0);
}

void *
fnet_chain_pop_spent(fnet_chain *spent, fnet_cache *cache)
{
    if (spent->head == NULL) {
        return NULL;
    }
    fnet_seg *seg = pop(spent);
    void *foreign = seg->foreign;
    fnet_assert(foreign != NULL);
    fnet_cache_put_node(cache, seg);
    return foreign;
}
