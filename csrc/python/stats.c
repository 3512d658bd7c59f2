/* stats: what loop.stats() tells. */
#include "python/module.h"

static int
put(PyObject *dict, const char *name, uint64_t value)
{
    PyObject *number = PyLong_FromUnsignedLongLong(value);
    int rc = number == NULL ? -1 : PyDict_SetItemString(dict, name, number);
    Py_XDECREF(number);
    return rc;
}

/* What stats() tells, taken while the core is there. */
typedef struct snapshot {
    struct {
        fnet_shard_stats stats;
        uint64_t attached;
    } shards[FNET_SHARDS_MAX];
    unsigned count;
    fnet_cache_stats caches,
        depot; /* the sum over the shards'; what is free */
    uint64_t timers, ready;
} snapshot;

static void
take_shard(fnet_shard *shard, unsigned i, snapshot *out)
{
    fnet_cache_stats cache;

    fnet_lock_acquire(&shard->output);
    out->shards[i].stats = shard->stats;
    out->shards[i].attached = shard->poller.attached;
    fnet_cache_get_stats(shard->cache, &cache);
    fnet_lock_release(&shard->output);
    out->caches.held_blocks += cache.held_blocks;
    out->caches.held_bytes += cache.held_bytes;
    out->caches.hits += cache.hits;
    out->caches.misses += cache.misses;
}

static bool
take(LoopObject *loop, snapshot *out)
{
    FNET_LOCK(loop);
    bool there = loop->has_core;
    if (there) {
        out->caches = (fnet_cache_stats){0};
        out->count = loop->set.count;
        for (unsigned i = 0; i < out->count; i++) {
            take_shard(loop->set.members[i].shard, i, out);
        }
        fnet_depot_stats_any(loop->depot, &out->depot);
        out->timers = loop->timers.count;
        out->ready = loop->ring_count;
#ifdef Py_GIL_DISABLED
        out->ready += loop->inbox_count;
#endif
    }
    FNET_UNLOCK(loop);
    return there;
}

static int
put_shard(PyObject *dict, const fnet_shard_stats *stats, uint64_t attached)
{
    const struct {
        const char *name;
        uint64_t value;
    } rows[] = {
        {"passes", stats->passes},
        {"polls", stats->polls},
        {"events", stats->events},
        {"empty_returns", stats->quiet},
        {"disarmed", stats->disarmed},
        {"reads", stats->reads},
        {"bytes_read", stats->bytes_read},
        {"writes", stats->writes},
        {"sends", stats->sends},
        {"bytes_sent", stats->bytes_sent},
        {"prompted_flushes", stats->prompted},
        {"accepts", stats->accepts},
        {"descriptors", attached},
    };
    for (size_t i = 0; i < FNET_COUNTOF(rows); i++) {
        if (put(dict, rows[i].name, rows[i].value) < 0) {
            return -1;
        }
    }
    return 0;
}

static int
put_cache(PyObject *dict, const snapshot *from)
{
    const fnet_cache_stats *mine = &from->caches, *depot = &from->depot;

    if (put(dict, "held_blocks", mine->held_blocks + depot->held_blocks) < 0 ||
        put(dict, "held_bytes", mine->held_bytes + depot->held_bytes) < 0 ||
        put(dict, "limit_bytes", depot->limit_bytes) < 0 ||
        put(dict, "hits", mine->hits) < 0 ||
        put(dict, "misses", mine->misses) < 0) {
        return -1;
    }
    return 0;
}

static PyObject *
shard_list(const snapshot *from)
{
    PyObject *list = PyList_New(0);

    for (unsigned i = 0; list != NULL && i < from->count; i++) {
        PyObject *dict = PyDict_New();
        if (dict == NULL ||
            put_shard(dict, &from->shards[i].stats, from->shards[i].attached) <
                0 ||
            PyList_Append(list, dict) < 0) {
            Py_CLEAR(list);
        }
        Py_XDECREF(dict);
    }
    return list;
}

PyObject *
fnet_loop_stats(LoopObject *self, PyObject *unused)
{
    snapshot from;

    if (fnet_loop_check(self) < 0) {
        return NULL;
    }
    if (!take(self, &from)) {
        PyErr_SetString(PyExc_RuntimeError, "Event loop is closed");
        return NULL;
    }
    PyObject *result = PyDict_New();
    PyObject *cache = PyDict_New();
    PyObject *shards = shard_list(&from);

    if (result == NULL || cache == NULL || shards == NULL ||
        put_cache(cache, &from) < 0 ||
        PyDict_SetItemString(result, "shards", shards) < 0 ||
        PyDict_SetItemString(result, "cache", cache) < 0 ||
        put(result, "timers", from.timers) < 0 ||
        put(result, "ready", from.ready) < 0) {
        Py_CLEAR(result);
    }
    Py_XDECREF(cache);
    Py_XDECREF(shards);
    return result;
}
