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

static int
put_shard(PyObject *dict, fnet_shard *shard)
{
    fnet_lock_acquire(&shard->output);
    const fnet_shard_stats copy = shard->stats, *stats = &copy;
    uint32_t attached = shard->poller.attached;
    fnet_lock_release(&shard->output);
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
put_cache(PyObject *dict, LoopObject *loop)
{
    fnet_cache_stats mine = {0}, depot;

    for (unsigned i = 0; i < loop->set.count; i++) {
        fnet_shard *shard = loop->set.members[i].shard;
        fnet_cache_stats part;
        fnet_lock_acquire(&shard->output);
        fnet_cache_get_stats(shard->cache, &part);
        fnet_lock_release(&shard->output);
        mine.held_blocks += part.held_blocks;
        mine.held_bytes += part.held_bytes;
        mine.hits += part.hits;
        mine.misses += part.misses;
    }
    fnet_depot_stats_any(loop->depot, &depot);
    if (put(dict, "held_blocks", mine.held_blocks + depot.held_blocks) < 0 ||
        put(dict, "held_bytes", mine.held_bytes + depot.held_bytes) < 0 ||
        put(dict, "limit_bytes", depot.limit_bytes) < 0 ||
        put(dict, "hits", mine.hits) < 0 ||
        put(dict, "misses", mine.misses) < 0) {
        return -1;
    }
    return 0;
}

static PyObject *
shard_list(LoopObject *loop)
{
    PyObject *list = PyList_New(0);

    for (unsigned i = 0; list != NULL && i < loop->set.count; i++) {
        PyObject *dict = PyDict_New();
        if (dict == NULL || put_shard(dict, loop->set.members[i].shard) < 0 ||
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
    if (fnet_loop_check(self) < 0) {
        return NULL;
    }
    PyObject *result = PyDict_New();
    PyObject *cache = PyDict_New();
    PyObject *shards = shard_list(self);

    if (result == NULL || cache == NULL || shards == NULL ||
        put_cache(cache, self) < 0 ||
        PyDict_SetItemString(result, "shards", shards) < 0 ||
        PyDict_SetItemString(result, "cache", cache) < 0 ||
        put(result, "home_away", self->set.home_away) < 0 ||
        put(result, "flips", self->flips) < 0 ||
        put(result, "timers", self->timers.count) < 0 ||
        put(result, "ready", self->ring_count) < 0) {
        Py_CLEAR(result);
    }
    Py_XDECREF(cache);
    Py_XDECREF(shards);
    return result;
}
