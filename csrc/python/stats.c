/* stats: what loop.stats() and pyfastnet.stats() tell. */
#include "python/module.h"

#include "cache/stack.h"

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
    fnet_shard_stats shards[FNET_SHARDS_MAX];
    uint32_t attached[FNET_SHARDS_MAX];
    unsigned count;
    fnet_cache_stats cache;
    uint64_t timers, ready;
    uint64_t flips; /* of the home shard's token */
    bool home_away;
} snapshot;

static bool
take(LoopObject *loop, snapshot *out)
{
    FNET_LOCK(loop);
    bool there = loop->has_core;
    out->count = there ? loop->set.count : 0;
    for (unsigned i = 0; i < out->count; i++) {
        fnet_shard *shard = loop->set.members[i].shard;
        fnet_lock_acquire(&shard->output);
        out->shards[i] = shard->stats;
        out->attached[i] = shard->poller.attached;
        fnet_lock_release(&shard->output);
    }
    if (there) {
        fnet_depot_stats_any(loop->depot, &out->cache);
        out->timers = loop->timers.count;
        out->ready = loop->ring_count;
        out->flips = loop->flips;
        out->home_away = loop->set.home_away;
#ifdef Py_GIL_DISABLED
        out->ready += loop->inbox_count;
#endif
    }
    FNET_UNLOCK(loop);
    return there;
}

static int
put_shard(PyObject *dict, const fnet_shard_stats *stats, uint32_t attached)
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

typedef struct row {
    const char *name;
    uint64_t value;
} row;

static int
put_rows(PyObject *dict, const row *rows, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (put(dict, rows[i].name, rows[i].value) < 0) {
            return -1;
        }
    }
    return 0;
}

static int
put_cache(PyObject *dict, const fnet_cache_stats *stats)
{
    const row rows[] = {
        {"caches", stats->caches},
        {"held_blocks", stats->held_blocks},
        {"held_bytes", stats->held_bytes},
        {"limit_bytes", stats->limit_bytes},
        {"high_water_bytes", stats->high_water_bytes},
        {"hits", stats->hits},
        {"misses", stats->misses},
        {"transfers", stats->transfers},
        {"freed", stats->freed},
    };
    return put_rows(dict, rows, FNET_COUNTOF(rows));
}

static PyObject *
shard_list(const snapshot *from)
{
    PyObject *list = PyList_New(0);

    for (unsigned i = 0; list != NULL && i < from->count; i++) {
        PyObject *dict = PyDict_New();
        if (dict == NULL ||
            put_shard(dict, &from->shards[i], from->attached[i]) < 0 ||
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
        put_cache(cache, &from.cache) < 0 ||
        PyDict_SetItemString(result, "shards", shards) < 0 ||
        PyDict_SetItemString(result, "cache", cache) < 0 ||
        put(result, "home_away", from.home_away) < 0 ||
        put(result, "flips", from.flips) < 0 ||
        put(result, "timers", from.timers) < 0 ||
        put(result, "ready", from.ready) < 0) {
        Py_CLEAR(result);
    }
    Py_XDECREF(cache);
    Py_XDECREF(shards);
    return result;
}

/* _set_cache_limit(bytes): before the loop has run. */
static PyObject *
loop_set_cache_limit(LoopObject *self, PyObject *bytes)
{
    size_t limit = PyLong_AsSize_t(bytes);

    if ((limit == (size_t)-1 && PyErr_Occurred()) ||
        fnet_loop_check(self) < 0) {
        return NULL;
    }
    int rc = fnet_depot_set_limit_any(self->depot, limit);
    if (rc < 0) {
        return fnet_raise(rc);
    }
    Py_RETURN_NONE;
}

PyMethodDef fnet_stats_methods[] = {
    {"_set_cache_limit", (PyCFunction)loop_set_cache_limit, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

static PyObject *
stack_stats(PyObject *module, PyObject *unused)
{
    PyObject *result = PyDict_New();
    fnet_stack_stats stats;

    fnet_stack_stats_any(&stats);
    const row rows[] = {
        {"running", stats.running},
        {"running_bytes", stats.running_bytes},
        {"held", stats.held},
        {"held_bytes", stats.held_bytes},
        {"limit_bytes", stats.limit_bytes},
        {"high_water", stats.high_water},
        {"hits", stats.hits},
        {"misses", stats.misses},
    };
    if (result != NULL && put_rows(result, rows, FNET_COUNTOF(rows)) < 0) {
        Py_CLEAR(result);
    }
    return result;
}

PyMethodDef fnet_stats_functions[] = {
    {"_stack_stats", stack_stats, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};
