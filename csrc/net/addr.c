#include "net/addr.h"

#include <arpa/inet.h>
#include <string.h>

void
fnet_addr_set(fnet_addr *addr, const void *sockaddr, size_t len)
{
    const struct sockaddr *any = sockaddr;

    addr->len = 0;
    if (sockaddr == NULL || len < sizeof(sa_family_t)) {
        return;
    }
    size_t size = any->sa_family == AF_INET    ? sizeof(addr->u.in4)
                  : any->sa_family == AF_INET6 ? sizeof(addr->u.in6)
                                               : 0;
    if (size != 0 && len >= size) {
        memcpy(&addr->u, sockaddr, size);
        addr->len = (socklen_t)size;
    }
}

bool
fnet_addr_host(const fnet_addr *addr, char *text, uint16_t *port)
{
    if (addr->len == 0) {
        return false;
    }
    if (addr->u.any.sa_family == AF_INET) {
        *port = ntohs(addr->u.in4.sin_port);
        return inet_ntop(AF_INET, &addr->u.in4.sin_addr, text,
                         INET6_ADDRSTRLEN) != NULL;
    }
    *port = ntohs(addr->u.in6.sin6_port);
    return inet_ntop(AF_INET6, &addr->u.in6.sin6_addr, text,
                     INET6_ADDRSTRLEN) != NULL;
}

bool
fnet_addr_is_any(const fnet_addr *addr)
{
    if (addr->len == 0) {
        return true;
    }
    if (addr->u.any.sa_family == AF_INET) {
        return addr->u.in4.sin_addr.s_addr == htonl(INADDR_ANY);
    }
    return IN6_IS_ADDR_UNSPECIFIED(&addr->u.in6.sin6_addr);
}
