/* loadgen: the C client of the benchmarks, so that a comparison of Python
 * servers never measures a Python client.
 *
 *   loadgen (--port P [--host A] | --unix PATH) [--conns N]
 *           [--size B] [--depth N] [--oneshot]      echo (default)
 *           [--udp]                                 each message a datagram
 *           [--http [--path /]]                     HTTP/1.1 keep-alive GETs
 *           [--trickle USEC]                        one byte each USEC, no
 * read
 *           [--ops N | --secs S | --interactive]
 *
 * Echo: each connection keeps `depth` messages of `size` bytes in flight; one
 * operation is one message that came back in full.  The first and last byte
 * of every piece that arrives are compared with what was sent.  --oneshot:
 * one operation is connect, one message there and back, close.  HTTP: one
 * operation is one response with status 200, read to the end of its body.
 *
 * --interactive connects, prints {"ready": N} and then obeys the lines of
 * its standard input, `ops N` or `secs S`, each answered by one line of JSON;
 * no message is in flight between two runs, so that whoever samples the
 * server's CPU time there gets exactly the time of that run's operations.
 *
 * One thread, level-triggered epoll, nothing beyond libc. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <getopt.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define HEAD_MAX 8192
#define CHUNK (1u << 20)
#define BUCKETS 2048
#define MAX_ERRORS 10000
#define STALL_NS 10000000000u

enum state { IDLE, CONNECTING, OPEN };

typedef struct {
    int fd;
    enum state state;
    uint32_t events;
    size_t to_send;     /* bytes still to be sent of what was issued */
    size_t send_off;    /* where in a message the next byte to send is */
    size_t recv_off;    /* where in a message the next byte to come is */
    uint32_t in_flight; /* messages issued and not back yet */
    uint32_t oldest;    /* index of the oldest of them in sent_ns */
    uint64_t *sent_ns;  /* ring of `depth` times of issue */
    /* HTTP only */
    char *head;
    size_t head_len;
    size_t body_left;
    bool in_body;
    bool last; /* the server closes after this response */
} conn;

static const char *host = "127.0.0.1", *unix_path, *path = "/";
static int port, udp, oneshot, http, interactive;
static uint32_t nconns = 10, depth = 1;
static size_t size = 1024;
static uint64_t trickle_us;

static int ep;
static conn *conns;
static char *out, *in;
static size_t out_len;

/* One run: issued = done + lost + what is in flight. */
static uint64_t budget, issued, done, lost, errors;
static uint64_t latency[BUCKETS], latency_max;

static void
die(const char *what)
{
    fprintf(stderr, "loadgen: %s: %s\n", what, strerror(errno));
    exit(2);
}

static void
die_plain(const char *what)
{
    fprintf(stderr, "loadgen: %s\n", what);
    exit(3);
}

/* A number from a command; anything else, or a negative one, ends it. */
static double
number(const char *text)
{
    char *end;
    double value = strtod(text, &end);
    if (end == text || (*end != 0 && *end != '\n') || !(value >= 0)) {
        die_plain("expected a number");
    }
    return value;
}

static void *
zalloc(size_t n)
{
    void *p = calloc(1, n);
    if (p == NULL) {
        die("malloc");
    }
    return p;
}

static uint64_t
now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Log-linear buckets, 32 to each power of two: 3 % wide. */
static uint32_t
bucket_of(uint64_t ns)
{
    if (ns < 32) {
        return (uint32_t)ns;
    }
    uint32_t exp = 63u - (uint32_t)__builtin_clzll(ns);
    return (exp - 4) * 32 + (uint32_t)((ns >> (exp - 5)) & 31);
}

static double
bucket_us(uint32_t b)
{
    if (b < 32) {
        return b / 1e3;
    }
    return (double)((uint64_t)(32 + b % 32) << (b / 32 - 1)) / 1e3;
}

static double
percentile(double p)
{
    uint64_t seen = 0;
    for (uint32_t b = 0; b < BUCKETS; b++) {
        seen += latency[b];
        if (seen > 0 && (double)seen >= p * (double)done) {
            return bucket_us(b);
        }
    }
    return 0;
}

static void
record(uint64_t ns)
{
    uint32_t b = bucket_of(ns);
    latency[b < BUCKETS ? b : BUCKETS - 1]++;
    latency_max = ns > latency_max ? ns : latency_max;
    done++;
}

static void
watch(conn *c, uint32_t events, int op)
{
    if (op == EPOLL_CTL_MOD && c->events == events) {
        return;
    }
    struct epoll_event e = {.events = events, .data.ptr = c};
    c->events = events;
    if (epoll_ctl(ep, op, c->fd, &e) < 0) {
        die("epoll_ctl");
    }
}

static int
connect_fd(int fd)
{
    if (unix_path != NULL) {
        struct sockaddr_un a = {.sun_family = AF_UNIX};
        strncpy(a.sun_path, unix_path, sizeof a.sun_path - 1);
        return connect(fd, (struct sockaddr *)&a, sizeof a);
    }
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_port = htons((uint16_t)port)};
    if (inet_pton(AF_INET, host, &a.sin_addr) != 1) {
        die_plain("--host wants an IPv4 address");
    }
    return connect(fd, (struct sockaddr *)&a, sizeof a);
}

static void
conn_open(conn *c)
{
    int one = 1, family = unix_path != NULL ? AF_UNIX : AF_INET;
    int type = udp ? SOCK_DGRAM : SOCK_STREAM;
    c->fd = socket(family, type | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (c->fd < 0) {
        die("socket");
    }
    if (unix_path == NULL && !udp) {
        setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    }
    if (oneshot) {
        /* A reset leaves no TIME_WAIT: else the ports run out in a second. */
        struct linger l = {1, 0};
        setsockopt(c->fd, SOL_SOCKET, SO_LINGER, &l, sizeof l);
    }
    /* EAGAIN: the backlog of a Unix listener is full; try again for a while
     * (there is no event to wait for). */
    for (int tries = 0; connect_fd(c->fd) < 0; tries++) {
        if (errno == EINPROGRESS) {
            break;
        }
        if (errno != EAGAIN || tries == 5000) {
            die("connect");
        }
        usleep(200);
    }
    c->state = CONNECTING;
    c->to_send = c->send_off = c->recv_off = 0;
    c->in_flight = c->oldest = 0;
    c->head_len = c->body_left = 0;
    c->in_body = c->last = false;
    watch(c, EPOLLIN | EPOLLOUT, EPOLL_CTL_ADD);
}

static void
conn_close(conn *c)
{
    close(c->fd);
    c->fd = -1;
    c->state = IDLE;
}

/* Takes one more operation out of the budget; false when it is used up. */
static bool
conn_issue(conn *c, uint64_t t)
{
    if (issued >= budget) {
        return false;
    }
    issued++;
    c->sent_ns[(c->oldest + c->in_flight) % depth] = t;
    c->in_flight++;
    c->to_send += size;
    return true;
}

static void
conn_fail(conn *c)
{
    errors++;
    if (errors > MAX_ERRORS) {
        die_plain("too many errors: the server drops its connections");
    }
    lost += c->in_flight;
    conn_close(c);
    conn_open(c);
    if (oneshot && !conn_issue(c, now_ns())) {
        conn_close(c);
    }
}

/* The oldest message is back.  False when the connection is not to be read
 * on: it was closed, as a one-shot one or as the server asked. */
static bool
conn_complete(conn *c, uint64_t t)
{
    record(t - c->sent_ns[c->oldest]);
    c->oldest = (c->oldest + 1) % depth;
    c->in_flight--;
    if (oneshot) {
        conn_close(c);
        if (issued < budget) {
            conn_open(c);
            conn_issue(c, now_ns());
        }
        return false;
    }
    if (c->last) {
        conn_close(c);
        conn_open(c);
        return false;
    }
    conn_issue(c, t);
    return true;
}

static bool
conn_send(conn *c)
{
    while (c->to_send > 0) {
        size_t n = out_len - c->send_off;
        n = n < c->to_send ? n : c->to_send;
        n = udp && n > size ? size : n;
        ssize_t r = send(c->fd, out + c->send_off, n, MSG_NOSIGNAL);
        if (r < 0) {
            return errno == EAGAIN;
        }
        c->to_send -= (size_t)r;
        c->send_off = (c->send_off + (size_t)r) % size;
    }
    return true;
}

/* What an echo server sent.  0: drained (a short read saves the receive that
 * would say so; what comes later is another event), 1: read on, -1: broken,
 * -2: closed on purpose. */
static int
read_echo(conn *c)
{
    ssize_t r = recv(c->fd, in, CHUNK, 0);
    if (r <= 0) {
        return r < 0 && errno == EAGAIN ? 0 : -1;
    }
    size_t left = (size_t)r;
    size_t end = (c->recv_off + left - 1) % size;
    if (in[0] != out[c->recv_off] || in[left - 1] != out[end]) {
        return -1;
    }
    uint64_t t = now_ns();
    while (left > 0) {
        size_t k = size - c->recv_off;
        if (k > left) {
            c->recv_off += left;
            break;
        }
        left -= k;
        c->recv_off = 0;
        if (c->in_flight == 0) {
            return -1;
        }
        if (!conn_complete(c, t)) {
            return -2;
        }
    }
    return udp || (size_t)r == CHUNK;
}

/* Case-insensitive search for a header line; NULL or its value. */
static const char *
header(const char *head, const char *name)
{
    size_t n = strlen(name);
    for (const char *p = strstr(head, "\r\n"); p != NULL;
         p = strstr(p + 2, "\r\n")) {
        if (strncasecmp(p + 2, name, n) == 0 && p[2 + n] == ':') {
            p += 3 + n;
            return p + strspn(p, " \t");
        }
    }
    return NULL;
}

static int
parse_head(conn *c)
{
    const char *length, *close_it;

    if (strncmp(c->head, "HTTP/1.", 7) != 0 ||
        strncmp(c->head + 8, " 200", 4) != 0) {
        return -1;
    }
    length = header(c->head, "content-length");
    close_it = header(c->head, "connection");
    if (length == NULL) {
        return -1;
    }
    c->last = close_it != NULL && strncasecmp(close_it, "close", 5) == 0;
    c->body_left = strtoul(length, NULL, 10);
    c->in_body = true;
    return 0;
}

static int
read_http(conn *c)
{
    size_t got;
    ssize_t r;

    if (c->in_body) {
        r = recv(c->fd, in, CHUNK, 0);
    }
    else {
        r = recv(c->fd, c->head + c->head_len, HEAD_MAX - c->head_len, 0);
    }
    if (r <= 0) {
        return r < 0 && errno == EAGAIN ? 0 : -1;
    }
    got = (size_t)r;
    if (!c->in_body) {
        char *end;

        c->head_len += got;
        c->head[c->head_len] = 0;
        end = strstr(c->head, "\r\n\r\n");
        if (end == NULL) {
            return c->head_len < HEAD_MAX ? 1 : -1;
        }
        got = c->head_len - (size_t)(end + 4 - c->head);
        if (parse_head(c) < 0) {
            return -1;
        }
    }
    if (got > c->body_left || c->in_flight == 0) {
        return -1;
    }
    c->body_left -= got;
    if (c->body_left > 0) {
        return 1;
    }
    c->in_body = false;
    c->head_len = 0;
    return conn_complete(c, now_ns()) ? 0 : -2;
}

static void
on_event(conn *c, uint32_t ev)
{
    if (c->state == CONNECTING) {
        int err = 0;
        socklen_t n = sizeof err;
        getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &err, &n);
        if (err != 0) {
            conn_fail(c);
            return;
        }
        if (!(ev & EPOLLOUT)) {
            return;
        }
        c->state = OPEN;
        while (!oneshot && c->in_flight < depth && conn_issue(c, now_ns())) {
        }
    }
    if (!conn_send(c)) {
        conn_fail(c);
        return;
    }
    for (int more = (ev & ~(uint32_t)EPOLLOUT) != 0; more > 0;) {
        more = http ? read_http(c) : read_echo(c);
        if (more == -2) {
            return;
        }
        if (more == -1 || !conn_send(c)) {
            conn_fail(c);
            return;
        }
    }
    watch(c, EPOLLIN | (c->to_send > 0 ? EPOLLOUT : 0), EPOLL_CTL_MOD);
}

/* Handles what is ready.  Dies when the server has gone silent. */
static void
turn(int timeout_ms)
{
    static uint64_t last_event;
    struct epoll_event ev[512];
    int n = epoll_wait(ep, ev, 512, timeout_ms);
    if (n < 0 && errno != EINTR) {
        die("epoll_wait");
    }
    for (int i = 0; i < n; i++) {
        on_event(ev[i].data.ptr, ev[i].events);
    }
    bool waiting = issued > done + lost;
    if (n > 0 || !waiting || last_event == 0) {
        last_event = now_ns();
    }
    else if (now_ns() - last_event > STALL_NS) {
        die_plain("stalled: no answer for ten seconds");
    }
}

static void
connect_all(void)
{
    uint64_t give_up = now_ns() + STALL_NS;
    uint32_t open;
    for (uint32_t i = 0; i < nconns; i++) {
        conn_open(&conns[i]);
    }
    do {
        turn(20);
        open = 0;
        for (uint32_t i = 0; i < nconns; i++) {
            open += conns[i].state == OPEN;
        }
        if (now_ns() > give_up) {
            die_plain("the server does not accept");
        }
    } while (open < nconns);
}

static void
start_all(void)
{
    for (uint32_t i = 0; i < nconns; i++) {
        conn *c = &conns[i];
        if (oneshot) {
            if (issued < budget) {
                conn_open(c);
                conn_issue(c, now_ns());
            }
            continue;
        }
        while (c->state == OPEN && c->in_flight < depth &&
               conn_issue(c, now_ns())) {
        }
        if (c->state == OPEN) {
            on_event(c, 0);
        }
    }
}

/* One run of `ops` operations, or of `secs` seconds when ops is 0. */
static void
run(uint64_t ops, double secs)
{
    uint64_t begin = now_ns();
    uint64_t end = begin + (uint64_t)(secs * 1e9);

    issued = done = lost = errors = latency_max = 0;
    memset(latency, 0, sizeof latency);
    budget = ops > 0 ? ops : UINT64_MAX;
    start_all();
    while (issued > done + lost || issued < budget) {
        turn(100);
        if (ops == 0 && now_ns() >= end) {
            budget = issued;
        }
    }
    double took = (double)(now_ns() - begin) / 1e9;
    printf("{\"ops\": %llu, \"errors\": %llu, \"secs\": %.6f, "
           "\"rate\": %.1f, \"p50_us\": %.1f, \"p99_us\": %.1f, "
           "\"max_us\": %.1f}\n",
           (unsigned long long)done, (unsigned long long)errors, took,
           (double)done / took, percentile(.5), percentile(.99),
           (double)latency_max / 1e3);
    fflush(stdout);
}

/* Sends single bytes at a steady pace to a server that is in no hurry. */
static void
run_trickle(double secs)
{
    uint64_t begin = now_ns(), next = begin, sent = 0, refused = 0;
    uint64_t end = begin + (uint64_t)(secs * 1e9);
    while (next < end) {
        for (uint32_t i = 0; i < nconns; i++) {
            int fd = conns[i].fd;
            ssize_t r = fd < 0 ? -1 : send(fd, out, 1, MSG_NOSIGNAL);
            sent += r == 1;
            refused += r != 1;
        }
        next += trickle_us * 1000;
        uint64_t t = now_ns();
        next = next > t ? next : t;
        struct timespec at = {(time_t)(next / 1000000000u),
                              (long)(next % 1000000000u)};
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL);
    }
    printf("{\"ops\": %llu, \"errors\": %llu, \"secs\": %.6f}\n",
           (unsigned long long)sent, (unsigned long long)refused,
           (double)(now_ns() - begin) / 1e9);
    fflush(stdout);
}

static void
one_run(uint64_t ops, double secs)
{
    if (trickle_us > 0) {
        run_trickle(secs);
    }
    else {
        run(ops, secs);
    }
}

static void
obey(void)
{
    char line[128];
    printf("{\"ready\": %u}\n", nconns);
    fflush(stdout);
    while (fgets(line, sizeof line, stdin) != NULL) {
        if (strncmp(line, "ops ", 4) == 0 && number(line + 4) >= 1) {
            one_run((uint64_t)number(line + 4), 0);
        }
        else if (strncmp(line, "secs ", 5) == 0) {
            one_run(0, number(line + 5));
        }
        else {
            die_plain("expected `ops N` or `secs S`");
        }
    }
}

static void
fill_buffers(void)
{
    in = zalloc(CHUNK);
    if (http) {
        char request[1024];
        int n = snprintf(request, sizeof request,
                         "GET %s HTTP/1.1\r\nHost: %s:%d\r\n"
                         "User-Agent: loadgen\r\nAccept: */*\r\n\r\n",
                         path, host, port);
        if (n < 0 || (size_t)n >= sizeof request) {
            die_plain("--path is too long");
        }
        out = strdup(request);
        out_len = size = (size_t)n;
        depth = 1;
        return;
    }
    /* Whole messages, about a mebibyte of them, so that any number of them
     * goes out in one send from any place in the first. */
    size_t count = depth + 1 < CHUNK / size ? depth + 1 : CHUNK / size + 1;
    out_len = count * size;
    out = zalloc(out_len);
    for (size_t i = 0; i < out_len; i++) {
        /* Each message is a line; no other byte is a newline. */
        out[i] = i % size == size - 1 ? '\n' : (char)('A' + i % size % 23);
    }
}

static void
parse_options(int argc, char **argv, uint64_t *ops, double *secs)
{
    static const struct option options[] = {
        {"host", 1, NULL, 'h'},      {"port", 1, NULL, 'p'},
        {"unix", 1, NULL, 'u'},      {"conns", 1, NULL, 'c'},
        {"size", 1, NULL, 's'},      {"depth", 1, NULL, 'd'},
        {"path", 1, NULL, 'P'},      {"ops", 1, NULL, 'n'},
        {"secs", 1, NULL, 't'},      {"trickle", 1, NULL, 'T'},
        {"http", 0, &http, 1},       {"udp", 0, &udp, 1},
        {"oneshot", 0, &oneshot, 1}, {"interactive", 0, &interactive, 1},
        {NULL, 0, NULL, 0}};
    for (int o; (o = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        switch (o) {
        case 0:
            break;
        case 'h':
            host = optarg;
            break;
        case 'p':
            port = (int)number(optarg);
            break;
        case 'u':
            unix_path = optarg;
            break;
        case 'c':
            nconns = (uint32_t)number(optarg);
            break;
        case 's':
            size = (size_t)number(optarg);
            break;
        case 'd':
            depth = (uint32_t)number(optarg);
            break;
        case 'P':
            path = optarg;
            break;
        case 'n':
            *ops = (uint64_t)number(optarg);
            break;
        case 't':
            *secs = number(optarg);
            break;
        case 'T':
            trickle_us = (uint64_t)number(optarg);
            break;
        default:
            exit(2);
        }
    }
    if ((port == 0 && unix_path == NULL) || nconns == 0 || size == 0 ||
        depth == 0 || (oneshot && (depth > 1 || trickle_us > 0))) {
        die_plain("bad arguments; see the top of loadgen.c");
    }
}

int
main(int argc, char **argv)
{
    uint64_t ops = 0;
    double secs = 3;
    struct rlimit files;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    parse_options(argc, argv, &ops, &secs);
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    fill_buffers();
    ep = epoll_create1(EPOLL_CLOEXEC);
    if (ep < 0) {
        die("epoll_create1");
    }
    conns = zalloc(nconns * sizeof *conns);
    for (uint32_t i = 0; i < nconns; i++) {
        conns[i].fd = -1;
        conns[i].sent_ns = zalloc(depth * sizeof *conns[i].sent_ns);
        conns[i].head = http ? zalloc(HEAD_MAX + 1) : NULL;
    }
    if (!oneshot) {
        connect_all();
    }
    if (interactive) {
        obey();
    }
    else {
        one_run(ops, secs);
    }
    return 0;
}
