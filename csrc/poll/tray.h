/* tray: memory that datagrams are received into, many with one call.
 *
 * The kernel wants to know beforehand where each datagram may go, and any may
 * be of the largest size.  So a tray has slots of that size, most of which is
 * never touched and so costs addresses, not memory.  Neighbours begin at
 * different places of their page: at the same one they would compete for the
 * same few lines of the caches.
 *
 * Belongs to a batch, and to whoever holds that. */
#ifndef FNET_POLL_TRAY_H
#define FNET_POLL_TRAY_H

#include "base/base.h"

#include <sys/socket.h>

/* Datagrams per pass: above that the data no longer stays in the cache until
 * the protocols get it, and what one call saves is below 5 ns for each. */
#define FNET_TRAY_SLOTS 64
/* Takes every datagram of the Internet protocols. */
#define FNET_TRAY_SLOT ((size_t)64 * 1024)
/* Other families may send longer ones: these take so many slots, and are cut
 * at 256 KiB, as by asyncio. */
#define FNET_TRAY_WIDE 4
#define FNET_TRAY_WIDE_SLOT (FNET_TRAY_WIDE * FNET_TRAY_SLOT)

typedef struct fnet_tray {
    unsigned used;  /* slots */
    unsigned dirty; /* headers that are not as they were in the beginning */
    struct mmsghdr headers[FNET_TRAY_SLOTS];
    struct iovec places[FNET_TRAY_SLOTS];
    struct sockaddr_storage names[FNET_TRAY_SLOTS];
    char memory[];
} fnet_tray;

/* NULL without memory. */
FNET_MUST_CHECK fnet_tray *fnet_tray_new(void);
void fnet_tray_free(fnet_tray *tray);

/* Forgets what was received. */
void fnet_tray_reset(fnet_tray *tray);
/* Headers for at most `most` datagrams, ready for recvmmsg(): the first, and
 * how many in *count (0: the tray is full). */
struct mmsghdr *fnet_tray_reserve(fnet_tray *tray, bool wide, unsigned most,
                                  unsigned *count);
/* Takes the first `n` of those reserved last. */
void fnet_tray_commit(fnet_tray *tray, bool wide, unsigned n);

#endif
