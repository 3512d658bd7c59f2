#include "net/outbox.h"

#include "base/mem.h"

#include <errno.h>
#include <netinet/udp.h>
#include <string.h>

#ifndef UDP_SEGMENT /* Linux 4.18; the headers of old C libraries lack it */
#define UDP_SEGMENT 103
#endif

/* Pieces of memory for one call: a datagram that was copied may stand in two
 * blocks, a very large one in many. */
#define MAX_IOVECS 256
/* The kernel cuts a run into at most so many, of at most so many bytes. */
#define RUN_MAX 64
#define RUN_BYTES ((uint32_t)60 * 1024)
/* A ring that has grown beyond this is freed when it is empty. */
#define RING_KEEP 256

/* -- the ring ------------------------------------------------------------- */

static fnet_outbox_entry *
entry_at(const fnet_outbox *outbox, uint32_t index)
{
    return &outbox->ring[(outbox->head + index) & (outbox->capacity - 1)];
}

static void *
address_of(fnet_outbox_entry *entry)
{
    return entry->addr_len <= sizeof(entry->addr.bytes) ? entry->addr.bytes
                                                        : entry->addr.large;
}

static void
forget_address(fnet_outbox_entry *entry)
{
    if (entry->addr_len > sizeof(entry->addr.bytes)) {
        fnet_free(entry->addr.large);
    }
}

static int
grow(fnet_outbox *outbox)
{
    uint32_t capacity = outbox->capacity == 0 ? 16 : outbox->capacity * 2;
    fnet_outbox_entry *ring = fnet_malloc(capacity * sizeof(*ring));

    if (ring == NULL) {
        return -ENOMEM;
    }
    for (uint32_t i = 0; i < outbox->count; i++) {
        ring[i] = *entry_at(outbox, i);
    }
    fnet_free(outbox->ring);
    outbox->ring = ring;
    outbox->capacity = capacity;
    outbox->head = 0;
    return 0;
}

void
fnet_outbox_init(fnet_outbox *outbox, int udp, uint32_t overhead)
{
    /* A kernel that does not know the option ignores what a message says of
     * it, and would send a run as one datagram. */
    bool runs =
        udp >= 0 && fnet_sys_get_int(udp, IPPROTO_UDP, UDP_SEGMENT) >= 0;
    *outbox = (fnet_outbox){.overhead = overhead,
                            .segment_max = runs ? RUN_BYTES : 0};
    fnet_chain_init(&outbox->chain);
}

void
fnet_outbox_fini(fnet_outbox *outbox, fnet_cache *cache, fnet_chain *spent)
{
    if (outbox->count > 0) {
        fnet_outbox_consume(outbox, cache, outbox->count, spent);
    }
    fnet_free(outbox->ring);
    outbox->ring = NULL;
    outbox->capacity = 0;
}

static int
push_bytes(fnet_outbox *outbox, fnet_cache *cache, fnet_piece *piece)
{
    if (piece->len == 0) {
        return 0;
    }
    if (piece->foreign == NULL || piece->len <= FNET_COPY_MAX) {
        return fnet_chain_copy(&outbox->chain, cache, piece->data, piece->len);
    }
    int rc = fnet_chain_ref(&outbox->chain, cache, piece->data, piece->len,
                            piece->foreign);
    piece->kept = rc == 0;
    return rc;
}

int
fnet_outbox_push(fnet_outbox *outbox, fnet_cache *cache, fnet_piece *piece,
                 const void *addr, socklen_t addr_len)
{
    fnet_outbox_entry entry = {.len = (uint32_t)piece->len,
                               .addr_len = addr_len};

    if (piece->len > UINT32_MAX) {
        return -EMSGSIZE;
    }
    if (outbox->count == outbox->capacity && grow(outbox) < 0) {
        return -ENOMEM;
    }
    if (addr_len > sizeof(entry.addr.bytes)) {
        entry.addr.large = fnet_malloc(addr_len);
        if (entry.addr.large == NULL) {
            return -ENOMEM;
        }
    }
    if (addr_len > 0) {
        memcpy(address_of(&entry), addr, addr_len);
    }
    int rc = push_bytes(outbox, cache, piece);
    if (rc < 0) {
        forget_address(&entry);
        return rc;
    }
    *entry_at(outbox, outbox->count++) = entry;
    return 0;
}

void
fnet_outbox_consume(fnet_outbox *outbox, fnet_cache *cache, uint32_t n,
                    fnet_chain *spent)
{
    size_t bytes = 0;

    for (uint32_t i = 0; i < n; i++) {
        fnet_outbox_entry *entry = entry_at(outbox, i);
        bytes += entry->len;
        forget_address(entry);
    }
    outbox->head = (outbox->head + n) & (outbox->capacity - 1);
    outbox->count -= n;
    outbox->single -= n < outbox->single ? n : outbox->single;
    if (bytes > 0) {
        fnet_chain_consume(&outbox->chain, cache, bytes, spent);
    }
    if (outbox->count == 0 && outbox->capacity > RING_KEEP) {
        fnet_free(outbox->ring);
        outbox->ring = NULL;
        outbox->capacity = outbox->head = 0;
    }
}

/* -- one call ------------------------------------------------------------- */

/* What one sendmmsg() is given. */
typedef struct call {
    struct mmsghdr headers[FNET_OUTBOX_CALL];
    struct iovec iov[MAX_IOVECS];
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(sizeof(uint16_t))];
    } control[FNET_OUTBOX_CALL];
    uint8_t datagrams[FNET_OUTBOX_CALL]; /* in each message */
    unsigned count;
    unsigned iovecs;
    /* where the next datagram's bytes begin */
    const fnet_seg *seg;
    size_t offset;
} call;

/* Adds pieces of the chain to the message, the last of the call: false if
 * there is no room for them. */
static bool
add_bytes(call *c, struct msghdr *msg, size_t len)
{
    while (len > 0) {
        if (c->offset == c->seg->len) {
            c->seg = c->seg->next;
            c->offset = 0;
        }
        const char *data = c->seg->data + c->offset;
        size_t n = c->seg->len - c->offset;
        if (n > len) {
            n = len;
        }
        struct iovec *last =
            msg->msg_iovlen > 0 ? &msg->msg_iov[msg->msg_iovlen - 1] : NULL;
        if (last != NULL && (char *)last->iov_base + last->iov_len == data) {
            last->iov_len += n;
        }
        else if (c->iovecs == MAX_IOVECS) {
            return false;
        }
        else {
            c->iov[c->iovecs++] = (struct iovec){
                .iov_base = (void *)(uintptr_t)data, .iov_len = n};
            msg->msg_iovlen++;
        }
        c->offset += n;
        len -= n;
    }
    return true;
}

/* How many datagrams from the index on can be sent as one: all are as long as
 * the first, to the same address; the last one may be shorter. */
static unsigned
run_length(const fnet_outbox *outbox, uint32_t index)
{
    fnet_outbox_entry *first = entry_at(outbox, index);
    uint32_t bytes = first->len;
    unsigned n = 1;

    if (first->len == 0 || first->len > outbox->segment_max ||
        index < outbox->single ||
        first->addr_len > sizeof(first->addr.bytes)) {
        return 1;
    }
    while (n < RUN_MAX && index + n < outbox->count) {
        fnet_outbox_entry *entry = entry_at(outbox, index + n);
        bytes += entry->len;
        if (entry->len == 0 || entry->len > first->len || bytes > RUN_BYTES ||
            entry->addr_len != first->addr_len ||
            memcmp(entry->addr.bytes, first->addr.bytes, first->addr_len) !=
                0) {
            break;
        }
        n++;
        if (entry->len < first->len) {
            break;
        }
    }
    return n;
}

static void
ask_for_cuts(call *c, uint32_t len)
{
    struct msghdr *msg = &c->headers[c->count].msg_hdr;
    uint16_t size = (uint16_t)len;

    memset(&c->control[c->count], 0, sizeof(c->control[c->count]));
    msg->msg_control = &c->control[c->count];
    msg->msg_controllen = sizeof(c->control[c->count]);
    struct cmsghdr *cmsg = CMSG_FIRSTHDR(msg);
    cmsg->cmsg_level = IPPROTO_UDP;
    cmsg->cmsg_type = UDP_SEGMENT;
    cmsg->cmsg_len = CMSG_LEN(sizeof(size));
    memcpy(CMSG_DATA(cmsg), &size, sizeof(size));
}

/* Fills the call from the queue.  A first datagram in too many pieces leaves
 * it empty. */
static void
fill(call *c, const fnet_outbox *outbox)
{
    uint32_t index = 0;

    c->count = c->iovecs = 0;
    c->seg = outbox->chain.head;
    c->offset = 0;
    while (c->count < FNET_OUTBOX_CALL && index < outbox->count) {
        fnet_outbox_entry *entry = entry_at(outbox, index);
        struct msghdr *msg = &c->headers[c->count].msg_hdr;
        unsigned n = run_length(outbox, index);
        size_t bytes = 0;

        for (unsigned i = 0; i < n; i++) {
            bytes += entry_at(outbox, index + i)->len;
        }
        *msg = (struct msghdr){.msg_iov = &c->iov[c->iovecs],
                               .msg_namelen = entry->addr_len};
        if (entry->addr_len > 0) {
            msg->msg_name = address_of(entry);
        }
        if (!add_bytes(c, msg, bytes)) {
            break;
        }
        if (n > 1) {
            ask_for_cuts(c, entry->len);
        }
        c->datagrams[c->count++] = (uint8_t)n;
        index += n;
    }
}

/* The first message could not be sent: 0 if its datagrams are to be sent one
 * by one, else the error. */
static int
first_failed(fnet_outbox *outbox, unsigned datagrams, int error)
{
    if (datagrams > 1 && (error == -EINVAL || error == -EMSGSIZE)) {
        /* Longer than what the way to there takes in one packet: alone it is
         * fragmented. */
        outbox->segment_max = entry_at(outbox, 0)->len - 1;
        return 0;
    }
    if (datagrams > 1 && (error == -EIO || error == -EOPNOTSUPP)) {
        outbox->segment_max = 0; /* the device computes no checksums */
        return 0;
    }
    if (datagrams > 1 && (error == -ENOBUFS || error == -ENOMEM)) {
        outbox->single = datagrams;
        return 0;
    }
    return error;
}

int
fnet_outbox_send(fnet_outbox *outbox, int fd, fnet_cache *cache,
                 fnet_chain *spent)
{
    call c;
    int sent = -EMSGSIZE;
    uint32_t n = 0;

    fill(&c, outbox);
    if (c.count > 0) {
        sent = fnet_sys_sendmmsg(fd, c.headers, c.count);
    }
    if (sent == -EAGAIN) {
        return sent;
    }
    if (sent < 0) {
        int error =
            first_failed(outbox, c.count > 0 ? c.datagrams[0] : 1, sent);
        if (error < 0) {
            fnet_outbox_consume(outbox, cache, 1, spent);
        }
        return error;
    }
    for (int i = 0; i < sent; i++) {
        n += c.datagrams[i];
    }
    fnet_outbox_consume(outbox, cache, n, spent);
    return (int)n;
}
