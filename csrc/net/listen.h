/* listen: a listening socket; connections are accepted in batches by the
 * pass.
 *
 * The loop's thread between passes.  The descriptor belongs to the caller;
 * those that ACCEPTED completions carry belong to whoever takes them. */
#ifndef FNET_NET_LISTEN_H
#define FNET_NET_LISTEN_H

#include "base/base.h"
#include "poll/shard.h"

#define FNET_KIND_LISTENER 2

/* Connections accepted in one pass, so that a flood of them does not starve
 * those that are open already. */
#define FNET_ACCEPT_MAX 64

typedef struct fnet_listener {
    fnet_source source;
    fnet_shard *shard;
    int backlog;  /* at most so many in one pass */
    bool pending; /* there may be connections to accept */
    bool paused;  /* no descriptors or memory: wait for resume */
} fnet_listener;

/* Starts accepting.  0 or a negative errno. */
FNET_MUST_CHECK int fnet_listener_attach(fnet_listener *listener,
                                         fnet_shard *shard, int fd,
                                         int backlog, void *owner);
void fnet_listener_detach(fnet_listener *listener);
/* After an ERROR completion nothing is accepted until this is called. */
void fnet_listener_resume(fnet_listener *listener);

#endif
