#include "poll/tray.h"

#include "base/mem.h"

/* Five lines of the cache between where two neighbours begin. */
#define STRIDE (FNET_TRAY_SLOT + 5 * (size_t)64)

static void
set_header(fnet_tray *tray, unsigned index, unsigned slot, size_t room)
{
    tray->places[index] = (struct iovec){
        .iov_base = tray->memory + slot * STRIDE, .iov_len = room};
    tray->headers[index].msg_hdr.msg_namelen = sizeof(tray->names[index]);
}

fnet_tray *
fnet_tray_new(void)
{
    fnet_tray *tray =
        fnet_malloc(sizeof(fnet_tray) + FNET_TRAY_SLOTS * STRIDE);

    if (tray == NULL) {
        return NULL;
    }
    tray->used = tray->dirty = 0;
    for (unsigned i = 0; i < FNET_TRAY_SLOTS; i++) {
        tray->headers[i] =
            (struct mmsghdr){.msg_hdr = {.msg_name = &tray->names[i],
                                         .msg_iov = &tray->places[i],
                                         .msg_iovlen = 1}};
        set_header(tray, i, i, FNET_TRAY_SLOT);
    }
    return tray;
}

void
fnet_tray_free(fnet_tray *tray)
{
    fnet_free(tray);
}

void
fnet_tray_reset(fnet_tray *tray)
{
    for (unsigned i = 0; i < tray->dirty; i++) {
        set_header(tray, i, i, FNET_TRAY_SLOT);
    }
    tray->used = tray->dirty = 0;
}

struct mmsghdr *
fnet_tray_reserve(fnet_tray *tray, bool wide, unsigned most, unsigned *count)
{
    unsigned each = wide ? FNET_TRAY_WIDE : 1;
    unsigned n = (FNET_TRAY_SLOTS - tray->used) / each;

    if (n > most) {
        n = most;
    }
    if (wide) {
        for (unsigned i = 0; i < n; i++) {
            set_header(tray, tray->used + i, tray->used + i * each,
                       FNET_TRAY_WIDE_SLOT);
        }
        tray->dirty = tray->used + n;
    }
    *count = n;
    return &tray->headers[tray->used];
}

void
fnet_tray_commit(fnet_tray *tray, bool wide, unsigned n)
{
    unsigned first = tray->used;

    tray->used += n * (wide ? FNET_TRAY_WIDE : 1);
    fnet_assert(tray->used <= FNET_TRAY_SLOTS);
    if (!wide) {
        tray->dirty = tray->used;
        return;
    }
    /* The headers of slots that follow are as narrow readers expect them. */
    for (unsigned i = first + n; i < tray->dirty; i++) {
        set_header(tray, i, i, FNET_TRAY_SLOT);
    }
    tray->dirty = tray->used;
}
