#include "poll/tray.h"

#include "poll/batch.h"
#include "world.h"

/* Where header `index` lets a datagram go. */
static char *
place(const fnet_tray *tray, unsigned index)
{
    return tray->headers[index].msg_hdr.msg_iov->iov_base;
}

static void
check_fresh(const fnet_tray *tray, unsigned from)
{
    for (unsigned i = from; i < FNET_TRAY_SLOTS; i++) {
        const struct msghdr *msg = &tray->headers[i].msg_hdr;
        CHECK(msg->msg_iovlen == 1);
        CHECK(msg->msg_iov->iov_len == FNET_TRAY_SLOT);
        CHECK(msg->msg_namelen == sizeof(struct sockaddr_storage));
        CHECK(i == 0 || place(tray, i) >= place(tray, i - 1) + FNET_TRAY_SLOT);
    }
}

static void
slots_are_apart(void)
{
    fnet_tray *tray = fnet_tray_new();
    unsigned n;

    CHECK(tray != NULL);
    check_fresh(tray, 0);
    CHECK(fnet_tray_reserve(tray, false, 10, &n) == &tray->headers[0]);
    CHECK(n == 10);
    fnet_tray_commit(tray, false, 3);
    CHECK(fnet_tray_reserve(tray, false, 100, &n) == &tray->headers[3]);
    CHECK(n == FNET_TRAY_SLOTS - 3);
    fnet_tray_commit(tray, false, n);
    (void)fnet_tray_reserve(tray, false, 1, &n);
    CHECK(n == 0);
    tray->headers[7].msg_hdr.msg_namelen = 0;
    fnet_tray_reset(tray);
    check_fresh(tray, 0);
    (void)fnet_tray_reserve(tray, false, 100, &n);
    CHECK(n == FNET_TRAY_SLOTS);
    fnet_tray_free(tray);
}

/* Readers of long and of short datagrams share a tray. */
static void
wide_slots(void)
{
    fnet_tray *tray = fnet_tray_new();
    struct mmsghdr *headers;
    unsigned n;

    fnet_tray_commit(tray, false, 1);
    headers = fnet_tray_reserve(tray, true, 3, &n);
    CHECK(headers == &tray->headers[1] && n == 3);
    for (unsigned i = 0; i < n; i++) {
        CHECK(headers[i].msg_hdr.msg_iov->iov_len == FNET_TRAY_WIDE_SLOT);
        CHECK(i == 0 ||
              place(tray, 1 + i) >= place(tray, i) + FNET_TRAY_WIDE_SLOT);
    }
    char *second = place(tray, 2);
    fnet_tray_commit(tray, true, 2);
    CHECK(tray->used == 1 + 2 * FNET_TRAY_WIDE);
    /* What comes now lies behind those that were taken. */
    headers = fnet_tray_reserve(tray, false, 100, &n);
    CHECK(headers == &tray->headers[tray->used]);
    CHECK(n == FNET_TRAY_SLOTS - tray->used);
    CHECK(place(tray, tray->used) >= second + FNET_TRAY_WIDE_SLOT);
    check_fresh(tray, tray->used);
    fnet_tray_reset(tray);
    check_fresh(tray, 0);
    (void)fnet_tray_reserve(tray, true, 100, &n);
    CHECK(n == FNET_TRAY_SLOTS / FNET_TRAY_WIDE);
    fnet_tray_commit(tray, true, 0);
    check_fresh(tray, 0);
    fnet_tray_free(tray);
}

/* A batch has one from the first datagram on, until it is trimmed. */
static void
of_a_batch(void)
{
    fnet_depot *depot;
    fnet_cache *cache;
    fnet_batch batch;
    unsigned n;

    CHECK(fnet_depot_new(&depot, 16 * MIB) == 0);
    CHECK(fnet_cache_new(&cache, depot) == 0);
    fnet_batch_init(&batch);
    CHECK(batch.tray == NULL);
    fnet_mem_fail_after(0);
    CHECK(fnet_batch_tray(&batch) == NULL);
    fnet_mem_fail_after(-1);
    fnet_tray *tray = fnet_batch_tray(&batch);
    CHECK(tray != NULL && fnet_batch_tray(&batch) == tray);
    (void)fnet_tray_reserve(tray, false, 2, &n);
    fnet_tray_commit(tray, false, n);
    fnet_batch_reset(&batch, cache, false);
    CHECK(batch.tray == tray && tray->used == 0);
    fnet_batch_reset(&batch, cache, true);
    CHECK(batch.tray == NULL);
    CHECK(fnet_batch_tray(&batch) != NULL);
    fnet_batch_fini(&batch, cache);
    fnet_cache_free(cache);
    fnet_depot_free(depot);
}

int
main(void)
{
    RUN(slots_are_apart);
    RUN(wide_slots);
    RUN(of_a_batch);
    return test_report();
}
