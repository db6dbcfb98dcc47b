/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/fuzz/fuzz.h"
#include "base/limits.h"
#include "format/wire.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

_Noreturn void fuzz_failed(const char *expression, const char *file, int line) {
        fprintf(stderr, "%s:%d: not so: %s\n", file, line, expression);
        abort();
}

static void take(struct fuzz_input *in, void *target, size_t bytes) {
        size_t n = bytes < in->left ? bytes : in->left;
        memset(target, 0, bytes);
        if (n)
                memcpy(target, in->bytes, n);
        in->bytes += n;
        in->left -= n;
}

uint8_t fuzz_u8(struct fuzz_input *in) {
        uint8_t v;
        take(in, &v, sizeof v);
        return v;
}

uint32_t fuzz_u32(struct fuzz_input *in) {
        uint32_t v;
        take(in, &v, sizeof v);
        return v;
}

uint64_t fuzz_u64(struct fuzz_input *in) {
        uint64_t v;
        take(in, &v, sizeof v);
        return v;
}

void *fuzz_copy(const void *bytes, size_t count) {
        void *copy = malloc(count ? count : 1);
        if (!copy)
                abort();
        if (count)
                memcpy(copy, bytes, count);
        return copy;
}

/* What file.c allows for each byte, twice because a block may be left half used, and the least that
 * an arena takes. */
void fuzz_check_arena(const struct arena *a, size_t count) {
        FUZZ_CHECK(a->bytes_used <= 2 * 64 * (uint64_t) count + 256 * KiB);
}

void fuzz_check_error(int status, const struct cairn_error *e) {
        FUZZ_CHECK(status < 0 && e->status == status);
        FUZZ_CHECK(status != CAIRN_ERR_FATAL);
        FUZZ_CHECK(memchr(e->message, 0, sizeof e->message));
        FUZZ_CHECK(*e->message || (*e->operation && e->system_code));
        FUZZ_CHECK(memchr(e->operation, 0, sizeof e->operation) &&
                   memchr(e->object, 0, sizeof e->object));
}

int fuzz_memfd(const void *bytes, size_t count) {
        int fd;
        FUZZ_CHECK(wire_memfd_create("fuzz", count, &fd, NULL) == 0);
        FUZZ_CHECK(count == 0 || pwrite(fd, bytes, count, 0) == (ssize_t) count);
        FUZZ_CHECK(wire_memfd_seal(fd, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE, NULL) == 0);
        return fd;
}
