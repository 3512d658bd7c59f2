#include "base/base.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

void
fnet_panic(const char *fmt, ...)
{
    /* Not stdio: the panic may strike while another thread holds the lock of
     * stderr, or when there is no memory. */
    static const char prefix[] = "pyfastnet: ";
    char text[512];
    size_t len = sizeof(prefix) - 1;
    for (size_t i = 0; i < len; i++) {
        text[i] = prefix[i];
    }
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(text + len, sizeof(text) - len - 1, fmt, args);
    va_end(args);
    if (n > 0) {
        size_t most = sizeof(text) - len - 2;
        len += (size_t)n < most ? (size_t)n : most;
    }
    text[len++] = '\n';
    ssize_t written = write(STDERR_FILENO, text, len);
    (void)written; /* nobody is left to be told */
    abort();
}
