/* names: look-ups of host names and addresses by the C library's resolver.
 *
 * The resolver blocks, so look-ups are made by a pool of threads of the
 * process's own, shared by all loops: started when there is work, at most
 * FNET_NAMES_THREADS, ended when they have been idle for a while.  They are
 * detached: nobody waits for one that hangs in the resolver, exit() neither.
 *
 *     loop's thread                     | pool
 *     fnet_lookup_new                   |
 *     fnet_lookup_try: numeric? done    |
 *     fnet_names_ask            queued ->  running
 *     (woken) fnet_names_next  <- done  |
 *     fnet_lookup_free          at any time, also of one that runs
 *
 * A fnet_names stands for a loop; its functions and those of its look-ups are
 * for the loop's thread.  In a forked child the pool starts anew, and what
 * the parent had asked gets no answer there. */
#ifndef FNET_NET_NAMES_H
#define FNET_NET_NAMES_H

#include "base/base.h"
#include "base/list.h"

#include <netdb.h>
#include <stdatomic.h>
#include <sys/socket.h>

/* As many as resolvers answer at a time without queues of their own; uvloop
 * has 4, asyncio shares up to 32 with all other blocking calls. */
#define FNET_NAMES_THREADS 8

/* The resolver's modules are written for the stacks of ordinary threads. */
#define FNET_NAMES_STACK ((size_t)512 * 1024)

typedef struct fnet_names {
    /* constant after init */
    void (*wake_any)(void *arg); /* any thread, with the pool's lock held */
    void *arg;
    /* guarded by the pool's lock */
    fnet_list done;
    /* set (release) with the lock held when `done` gets its first, cleared
     * when it is empty; read by the loop before it sleeps (seq_cst, against
     * the poller's `asleep`) */
    atomic_bool news;
} fnet_names;

enum fnet_lookup_state {
    FNET_LOOKUP_NEW,
    FNET_LOOKUP_QUEUED,
    FNET_LOOKUP_RUNNING,
    FNET_LOOKUP_DONE, /* has its answer; in names->done, or taken */
    FNET_LOOKUP_LOST, /* in a child: the parent's threads had it */
};

typedef struct fnet_lookup {
    /* for the layer above; the pool never looks at it */
    void *owner;
    fnet_list mine;

    /* constant while asked */
    bool reverse;
    char *host, *service;  /* forward; NULL: none */
    struct addrinfo hints; /* forward */
    struct sockaddr_storage addr;
    socklen_t addr_len;
    int flags; /* NI_... */

    /* guarded by the pool's lock */
    fnet_names *names; /* NULL: nobody waits for it any more */
    fnet_list node;    /* queue, running or names->done */
    enum fnet_lookup_state state;

    /* the answer, once DONE */
    int error;                      /* EAI_..., 0 */
    int system;                     /* errno, for EAI_SYSTEM */
    struct addrinfo *list;          /* forward */
    char *host_text, *service_text; /* reverse; inside texts */
    char texts[NI_MAXHOST + NI_MAXSERV];
} fnet_lookup;

void fnet_names_init(fnet_names *names, void (*wake_any)(void *arg),
                     void *arg);

/* Copies of both texts are made; NULL: none.  NULL if memory is short. */
fnet_lookup *fnet_lookup_new(const char *host, const char *service, int family,
                             int type, int proto, int flags);
/* The names of an address. */
fnet_lookup *fnet_lookup_new_reverse(const struct sockaddr *addr,
                                     socklen_t len, int flags);
/* Answers at once what needs no look-up (numbers): true, and the look-up is
 * DONE.  False: ask. */
bool fnet_lookup_try(fnet_lookup *lookup);

/* Gives the look-up to the pool.  0, or -EAGAIN when there is no thread and
 * none can be had. */
FNET_MUST_CHECK int fnet_names_ask(fnet_names *names, fnet_lookup *lookup);

/* True if fnet_names_next() has something.  To be looked at (again) after
 * the loop has announced that it sleeps. */
static inline bool
fnet_names_pending(fnet_names *names)
{
    return atomic_load(&names->news);
}

/* Takes a look-up that has its answer; NULL: there is none (now). */
fnet_lookup *fnet_names_next(fnet_names *names);

/* Frees the look-up, whatever state it is in: one that a thread is busy with
 * is freed by that thread, and no wake-up comes of it. */
void fnet_lookup_free(fnet_lookup *lookup);

/* Tests and the curious: threads there are, busy or not. */
unsigned fnet_names_threads(void);
/* Tests: how long an idle thread stays. */
void fnet_names_set_idle(int64_t ns);

#endif
