/* How a thread should wait for a socket: the choices, in bare C threads.
 *
 *     cc -O2 -pthread -o build/waiting benchmarks/waiting.c
 *     build/waiting MODE [PAIRS] [EXCHANGES]
 *
 * PAIRS of threads exchange 512 bytes over TCP; wall and CPU time and
 * voluntary context switches per exchange.  Modes:
 *
 *     recv     a blocking recv(): cannot be woken by close() or a deadline
 *     ppoll    a try, the thread's own ppoll() on the socket and an eventfd,
 *              recv(): what csrc/net/sleeper.c does
 *     parked   a try, a futex that a thread of the process with an epoll set
 *              wakes, recv()
 */
#define _GNU_SOURCE

#include <linux/futex.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define SIZE 512
#define MAX_PAIRS 64

enum mode { MODE_RECV, MODE_PPOLL, MODE_PARKED };
static const char *const modes[] = {"recv", "ppoll", "parked"};

typedef struct side {
    pthread_t thread;
    int fd, wakefd;
    _Atomic(int) ready;
} side;

static enum mode mode;
static int exchanges, epfd;
static side sides[2 * MAX_PAIRS];

static void
fail(const char *what)
{
    perror(what);
    exit(1);
}

static void
futex(_Atomic(int) *word, int op, int value)
{
    syscall(SYS_futex, word, op, value, NULL, NULL, 0);
}

static void *
poller_main(void *unused)
{
    struct epoll_event events[64];

    (void)unused;
    for (;;) {
        int n = epoll_wait(epfd, events, 64, -1);
        for (int i = 0; i < n; i++) {
            side *s = events[i].data.ptr;
            if (atomic_exchange(&s->ready, 1) == 0) {
                futex(&s->ready, FUTEX_WAKE_PRIVATE, 1);
            }
        }
    }
    return NULL;
}

static void
wait_for(side *s)
{
    if (mode == MODE_PPOLL) {
        struct pollfd fds[2] = {{s->fd, POLLIN, 0}, {s->wakefd, POLLIN, 0}};
        ppoll(fds, 2, NULL, NULL);
    }
    else {
        while (atomic_load(&s->ready) == 0) {
            futex(&s->ready, FUTEX_WAIT_PRIVATE, 0);
        }
    }
}

static void
receive(side *s)
{
    char buf[SIZE];
    size_t got = 0;

    while (got < SIZE) {
        int flags = mode == MODE_RECV ? 0 : MSG_DONTWAIT;
        atomic_store(&s->ready, 0);
        ssize_t n = recv(s->fd, buf + got, SIZE - got, flags);
        if (n > 0) {
            got += (size_t)n;
        }
        else if (n == 0 || mode == MODE_RECV) {
            fail("recv");
        }
        else {
            wait_for(s);
        }
    }
}

static void *
side_main(void *arg)
{
    static const char message[SIZE];
    side *s = arg;
    int client = (s - sides) % 2;

    for (int i = 0; i < exchanges; i++) {
        if (!client) {
            receive(s);
        }
        if (send(s->fd, message, SIZE, MSG_DONTWAIT) != SIZE) {
            fail("send");
        }
        if (client) {
            receive(s);
        }
    }
    return NULL;
}

static void
connect_pair(int listener, side *server, side *client)
{
    struct sockaddr_in addr;
    socklen_t len = sizeof(addr);

    getsockname(listener, (struct sockaddr *)&addr, &len);
    client->fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(client->fd, (struct sockaddr *)&addr, len) < 0) {
        fail("connect");
    }
    server->fd = accept(listener, NULL, NULL);
    side *both[2] = {server, client};
    for (int i = 0; i < 2; i++) {
        struct epoll_event event = {.events = (uint32_t)EPOLLIN | EPOLLET,
                                    .data = {.ptr = both[i]}};
        both[i]->wakefd = eventfd(0, 0);
        if (mode == MODE_PARKED &&
            epoll_ctl(epfd, EPOLL_CTL_ADD, both[i]->fd, &event) < 0) {
            fail("epoll_ctl");
        }
    }
}

static double
seconds_of_cpu(const struct rusage *usage)
{
    return (double)(usage->ru_utime.tv_sec + usage->ru_stime.tv_sec) +
           (double)(usage->ru_utime.tv_usec + usage->ru_stime.tv_usec) / 1e6;
}

int
main(int argc, char **argv)
{
    struct sockaddr_in any = {.sin_family = AF_INET,
                              .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)}};
    int pairs = argc > 2 ? atoi(argv[2]) : 4;
    int count = argc > 3 ? atoi(argv[3]) : 40000;

    for (mode = MODE_RECV; mode <= MODE_PARKED; mode++) {
        if (argc > 1 && strcmp(argv[1], modes[mode]) == 0) {
            break;
        }
    }
    if (mode > MODE_PARKED || pairs < 1 || pairs > MAX_PAIRS) {
        fprintf(stderr, "usage: waiting recv|ppoll|parked [1..64] [count]\n");
        return 2;
    }
    exchanges = count / pairs;
    epfd = epoll_create1(0);
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(listener, (struct sockaddr *)&any, sizeof(any)) < 0 ||
        listen(listener, MAX_PAIRS) < 0) {
        fail("listen");
    }
    pthread_t poller;
    if (mode == MODE_PARKED) {
        pthread_create(&poller, NULL, poller_main, NULL);
    }
    for (int i = 0; i < pairs; i++) {
        connect_pair(listener, &sides[2 * i], &sides[2 * i + 1]);
    }
    struct rusage before, after;
    struct timespec begin, end;
    getrusage(RUSAGE_SELF, &before);
    clock_gettime(CLOCK_MONOTONIC, &begin);
    for (int i = 0; i < 2 * pairs; i++) {
        pthread_create(&sides[i].thread, NULL, side_main, &sides[i]);
    }
    for (int i = 0; i < 2 * pairs; i++) {
        pthread_join(sides[i].thread, NULL);
    }
    clock_gettime(CLOCK_MONOTONIC, &end);
    getrusage(RUSAGE_SELF, &after);
    double done = (double)exchanges * pairs;
    double wall = (double)(end.tv_sec - begin.tv_sec) +
                  (double)(end.tv_nsec - begin.tv_nsec) / 1e9;
    printf("%-8s %d pairs: %.2f us wall, %.2f us CPU, %.2f switches\n",
           modes[mode], pairs, wall / done * 1e6,
           (seconds_of_cpu(&after) - seconds_of_cpu(&before)) / done * 1e6,
           (double)(after.ru_nvcsw - before.ru_nvcsw) / done);
    return 0;
}
