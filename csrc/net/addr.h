/* addr: a socket address kept small: what TCP and Unix connections need.
 *
 * Any thread. */
#ifndef FNET_NET_ADDR_H
#define FNET_NET_ADDR_H

#include "base/base.h"

#include <netinet/in.h>
#include <sys/socket.h>

/* Holds IPv4 and IPv6; the address of a Unix socket's peer is nearly always
 * empty and is asked for when somebody wants it. */
typedef struct fnet_addr {
    union {
        struct sockaddr any;
        struct sockaddr_in in4;
        struct sockaddr_in6 in6;
    } u;
    socklen_t len; /* 0: not known */
} fnet_addr;

/* Keeps the address if it is one of those; else len becomes 0. */
void fnet_addr_set(fnet_addr *addr, const void *sockaddr, size_t len);
/* "1.2.3.4" or "fe80::1" (without the zone) into text of at least
 * INET6_ADDRSTRLEN bytes, and the port.  False: not an IP address. */
bool fnet_addr_host(const fnet_addr *addr, char *text, uint16_t *port);
/* True for 0.0.0.0 and :: - a connection's own address differs then. */
bool fnet_addr_is_any(const fnet_addr *addr);

#endif
