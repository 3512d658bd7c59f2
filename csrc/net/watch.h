/* watch: a descriptor of the program's, watched and not read by the core.
 *
 * Two kinds of interest share it, because an epoll set has one entry per
 * descriptor: levels (add_reader: reported in every pass while the condition
 * holds) and waits (a sock_* call that got EAGAIN: reported once).  With
 * waits alone the registration is edge-triggered and stays between calls;
 * what comes while nobody waits switches it off.
 *
 * While the shard is lent a level is reported once, and its descriptor is
 * switched off until fnet_watch_taken(): only then the loop has had the chance
 * to do something about it, and until then the worker would find it again in
 * each pass.
 *
 * The loop's thread between passes, or at any time while the shard is lent. */
#ifndef FNET_NET_WATCH_H
#define FNET_NET_WATCH_H

#include "base/base.h"
#include "poll/shard.h"

#define FNET_KIND_WATCH 3

typedef struct fnet_watch {
    fnet_source source;
    fnet_shard *shard;
    uint32_t levels;  /* EPOLLIN, EPOLLOUT */
    uint32_t waits;   /* likewise */
    uint32_t arrived; /* events to report in this pass */
    uint8_t quiet;    /* events in a row that nobody waited for */
    bool muted;       /* switched off until what was reported is taken */
} fnet_watch;

void fnet_watch_init(fnet_watch *watch, fnet_shard *shard, void *owner);
/* Changes what is reported of the descriptor; the first call registers it.
 * `levels` and `waits` are EPOLLIN, EPOLLOUT, both or 0.  A watch with
 * neither stays registered if it was for waits, else it is detached.  0 or a
 * negative errno, with the interest as it was. */
FNET_MUST_CHECK int fnet_watch_set(fnet_watch *watch, int fd, uint32_t levels,
                                   uint32_t waits);
void fnet_watch_detach(fnet_watch *watch);
/* The same; `taken_over`: the entry in the epoll set is another source's. */
void fnet_watch_forget(fnet_watch *watch, bool taken_over);
/* The number may be another file's by now: registers it again. */
void fnet_watch_refresh(fnet_watch *watch);
/* Of the last batch that a worker has put something into, or may be about to;
 * 0 at home.  What batches up to it bring may have happened before. */
uint64_t fnet_watch_sequence(fnet_watch *watch);
/* What was reported has been delivered, as far as the watch is still there. */
void fnet_watch_taken(fnet_watch *watch);

#endif
