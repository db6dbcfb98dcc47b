/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/staging.h"

#include "format/wire.h"
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>

/* So short that whoever rings meanwhile hardly waits. */
#define POPULATE_SLICE_BYTES (8 * MiB)

int staging_map(struct staging *s, int fd, uint64_t bytes, struct cut_ledger_row *row,
                struct cairn_error *reterr) {
        uint64_t actual;
        TRY(wire_memfd_check(fd, F_SEAL_SHRINK | F_SEAL_GROW, bytes, UINT64_MAX, &actual, reterr));
        void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (base == MAP_FAILED)
                return error_set_errno(reterr, errno, "map staging", "memfd");
        /* Huge pages where shmem may have them; advice, so refusal is no failure. */
        (void) madvise(base, bytes, MADV_HUGEPAGE);
        *s = (struct staging){.base = base, .bytes = bytes, .row = row};
        return 0;
}

void staging_done(struct staging *s) {
        if (s->base)
                (void) munmap(s->base, s->bytes);
        *s = (struct staging){0};
}

bool staging_populate(struct staging *s) {
        if (!s->base || s->populated >= s->bytes)
                return false;
        uint64_t left = s->bytes - s->populated;
        uint64_t slice = left < POPULATE_SLICE_BYTES ? left : POPULATE_SLICE_BYTES;
        /* Where the kernel cannot, the copy faults the pages in. */
        if (madvise(s->base + s->populated, slice, MADV_POPULATE_WRITE) < 0)
                s->populated = s->bytes;
        else
                s->populated += slice;
        return s->populated < s->bytes;
}

void staging_reach(struct staging *s, uint64_t to) {
        while (s->populated < to && staging_populate(s))
                ;
}

void staging_note(struct staging *s, enum staging_state state, struct cut_word word, int64_t step) {
        if (s->row)
                cut_ledger_write(s->row, state, word, step, "");
}
