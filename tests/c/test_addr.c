#include "net/addr.h"

#include "test.h"

#include <arpa/inet.h>
#include <sys/un.h>

static struct sockaddr_in
make_in4(const char *host, uint16_t port)
{
    struct sockaddr_in in4 = {.sin_family = AF_INET};
    in4.sin_port = htons(port);
    CHECK(inet_pton(AF_INET, host, &in4.sin_addr) == 1);
    return in4;
}

static struct sockaddr_in6
make_in6(const char *host, uint16_t port)
{
    struct sockaddr_in6 in6 = {.sin6_family = AF_INET6};
    in6.sin6_port = htons(port);
    CHECK(inet_pton(AF_INET6, host, &in6.sin6_addr) == 1);
    return in6;
}

static bool
host_is(const fnet_addr *addr, const char *host, uint16_t port)
{
    char text[INET6_ADDRSTRLEN];
    uint16_t got = 0;
    return fnet_addr_host(addr, text, &got) && strcmp(text, host) == 0 &&
           got == port;
}

static void
ip4(void)
{
    struct sockaddr_in in4 = make_in4("192.0.2.255", 65535);
    fnet_addr addr;
    fnet_addr_set(&addr, &in4, sizeof(in4));
    CHECK(addr.len == sizeof(in4));
    CHECK(memcmp(&addr.u, &in4, sizeof(in4)) == 0);
    CHECK(host_is(&addr, "192.0.2.255", 65535));
    CHECK(!fnet_addr_is_any(&addr));
}

static void
ip6(void)
{
    struct sockaddr_in6 in6 = make_in6("fe80::1:2", 80);
    in6.sin6_scope_id = 7;
    in6.sin6_flowinfo = htonl(5);
    fnet_addr addr;
    fnet_addr_set(&addr, &in6, sizeof(in6));
    CHECK(addr.len == sizeof(in6));
    CHECK(memcmp(&addr.u, &in6, sizeof(in6)) == 0);
    CHECK(host_is(&addr, "fe80::1:2", 80)); /* without the zone */
    CHECK(!fnet_addr_is_any(&addr));
    /* The longest text there is fits in. */
    const char *longest = "1111:2222:3333:4444:5555:6666:7777:8888";
    in6 = make_in6(longest, 1);
    fnet_addr_set(&addr, &in6, sizeof(in6));
    CHECK(host_is(&addr, longest, 1));
}

/* accept() fills a sockaddr_storage; more than is needed is no fault. */
static void
from_a_larger_place(void)
{
    struct sockaddr_storage storage = {0};
    struct sockaddr_in in4 = make_in4("127.0.0.1", 8080);
    memcpy(&storage, &in4, sizeof(in4));
    fnet_addr addr;
    fnet_addr_set(&addr, &storage, sizeof(storage));
    CHECK(addr.len == sizeof(in4));
    CHECK(host_is(&addr, "127.0.0.1", 8080));
}

static void
anywhere(void)
{
    struct sockaddr_in in4 = make_in4("0.0.0.0", 1);
    struct sockaddr_in6 in6 = make_in6("::", 1);
    fnet_addr addr;
    fnet_addr_set(&addr, &in4, sizeof(in4));
    CHECK(fnet_addr_is_any(&addr));
    CHECK(host_is(&addr, "0.0.0.0", 1));
    fnet_addr_set(&addr, &in6, sizeof(in6));
    CHECK(fnet_addr_is_any(&addr));
    CHECK(host_is(&addr, "::", 1));
    in6 = make_in6("::1", 1);
    fnet_addr_set(&addr, &in6, sizeof(in6));
    CHECK(!fnet_addr_is_any(&addr));
}

static bool
is_unknown(const void *sockaddr, size_t len)
{
    char text[INET6_ADDRSTRLEN];
    uint16_t port = 0;
    struct sockaddr_in in4 = make_in4("127.0.0.1", 8080);
    fnet_addr addr;
    fnet_addr_set(&addr, &in4, sizeof(in4)); /* what was there is gone */
    fnet_addr_set(&addr, sockaddr, len);
    return addr.len == 0 && !fnet_addr_host(&addr, text, &port) &&
           fnet_addr_is_any(&addr);
}

static void
unknown(void)
{
    struct sockaddr_in in4 = make_in4("127.0.0.1", 8080);
    struct sockaddr_in6 in6 = make_in6("::1", 8080);
    struct sockaddr_un un = {.sun_family = AF_UNIX, .sun_path = "/x"};
    CHECK(is_unknown(NULL, 0));
    CHECK(is_unknown(NULL, sizeof(in4)));
    for (size_t len = 0; len < sizeof(in4); len++) {
        CHECK(is_unknown(&in4, len));
    }
    for (size_t len = 0; len < sizeof(in6); len++) {
        CHECK(is_unknown(&in6, len));
    }
    CHECK(is_unknown(&un, sizeof(un)));
    CHECK(is_unknown(&un, sizeof(un.sun_family))); /* an unnamed peer's */
}

int
main(void)
{
    RUN(ip4);
    RUN(ip6);
    RUN(from_a_larger_place);
    RUN(anywhere);
    RUN(unknown);
    return test_report();
}
