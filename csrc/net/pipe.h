/* pipe: one end of a pipe, a terminal or another device, or a socket that is
 * treated as a pipe: a stream in one direction, moved by read() and write().
 *
 * What differs from a socket's stream:
 *
 * - Reading is level-triggered, one read per event.  On a pipe in packet mode
 *   and a terminal by lines a short read keeps data back; and read() must not
 *   be tried again to see whether there is more, as that of a terminal with
 *   VMIN = 0 says 0, the end, where there is nothing.
 * - There is no shutdown: who has written its last byte closes.
 * - The writing end posts EOF when the reader has gone, of pipes and sockets;
 *   a device does not tell.
 *
 * All else is net/stream.h, which works on both. */
#ifndef FNET_NET_PIPE_H
#define FNET_NET_PIPE_H

#include "base/base.h"
#include "net/stream.h"

enum fnet_pipe_end { FNET_PIPE_READ = 1, FNET_PIPE_WRITE };

/* True if a descriptor of this mode (fnet_sys_mode()) can be one: a FIFO, a
 * socket or a character device. */
bool fnet_pipe_takes(int mode);
/* Makes the descriptor non-blocking and registers it: 0, or a negative errno
 * (-EINVAL: a regular file or the like). */
FNET_MUST_CHECK int fnet_pipe_attach(fnet_stream *stream, fnet_shard *shard,
                                     int fd, void *owner,
                                     enum fnet_pipe_end end);

#endif
