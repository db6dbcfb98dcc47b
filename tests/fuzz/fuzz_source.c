/* SPDX-License-Identifier: Apache-2.0
 *
 * An inventory as a trainer hands it to the saver, with two slabs: what is sealed can be copied,
 * every byte of it, and goes to places of the image that do not overlap.
 */
#include "agent/source.h"
#include "format/host_state.h"
#include "format/wire.h"
#include "tests/fuzz/fuzz.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { SLAB_COUNT = 2, SLAB_BYTES = 1 << 20, PAYLOAD_LIMIT = 1 << 20, SLAB_IS_MEMFD = 1 };

static int make_slab(void) {
        int fd;
        FUZZ_CHECK(wire_memfd_create("slab", SLAB_BYTES, &fd, NULL) == 0);
        FUZZ_CHECK(wire_memfd_seal(fd, F_SEAL_SHRINK | F_SEAL_GROW, NULL) == 0);
        return fd;
}

static int make_host(uint64_t payload_bytes) {
        uint64_t bytes = host_state_bytes(payload_bytes);
        int fd;
        FUZZ_CHECK(wire_memfd_create("host", bytes, &fd, NULL) == 0);
        void *mapping = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        FUZZ_CHECK(mapping != MAP_FAILED);
        host_state_init(mapping, payload_bytes);
        (void) munmap(mapping, bytes);
        FUZZ_CHECK(wire_memfd_seal(fd, F_SEAL_SHRINK | F_SEAL_GROW, NULL) == 0);
        return fd;
}

/* Ends that can be read; all of it would be too slow, since tensors may overlap. */
static unsigned sum_of(const unsigned char *p, uint64_t bytes) {
        return bytes ? p[0] + p[bytes - 1] : 0;
}

static void check_source(const struct source *s) {
        uint64_t end = DATA_BLOCK_BYTES;
        unsigned sum = 0;

        FUZZ_CHECK(s->image_bytes % DATA_BLOCK_BYTES == 0);
        for (size_t i = 0; i < s->tensor_count; i++) {
                const struct source_tensor *t = &s->tensors[i];
                FUZZ_CHECK(t->offset >= end && t->offset % TENSOR_ALIGNMENT == 0);
                FUZZ_CHECK(t->room_bytes >= t->live_bytes);
                FUZZ_CHECK(!t->live || t->live_bytes <= SLAB_BYTES);
                FUZZ_CHECK(t->live || !s->is_live);
                end = t->offset + t->room_bytes;
                if (t->live)
                        sum += sum_of(t->live, t->live_bytes);
        }
        FUZZ_CHECK(end <= s->image_bytes || s->tensor_count == 0);
        sum += sum_of(s->host, s->host_bytes);
        FUZZ_CHECK(sum != 1);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count) {
        struct cairn_error e = CAIRN_ERROR_INIT;
        static int slab_fds[SLAB_COUNT] = {-1, -1};
        struct file_content inventory = {0};
        uint64_t seal = 1, payload_bytes = 0;
        struct arena arena;
        struct source s;

        source_init(&s);
        for (uint32_t i = 0; i < SLAB_COUNT; i++) {
                if (slab_fds[i] < 0)
                        slab_fds[i] = make_slab();
                FUZZ_CHECK(source_add_slab(&s, i, slab_fds[i], SLAB_BYTES, SLAB_IS_MEMFD, &e) == 0);
        }
        arena_init(&arena, 1 * GiB);
        if (file_read(bytes, count, FILE_INVENTORY, "i", &arena, &inventory, NULL) == 0) {
                seal = inventory.inventory->seal;
                payload_bytes = inventory.inventory->host_state_bytes;
        }
        arena_done(&arena);
        if (payload_bytes > PAYLOAD_LIMIT || payload_bytes % 8)
                payload_bytes = 0;
        int host = make_host(payload_bytes), fd = fuzz_memfd(bytes, count);
        int r = source_seal(&s, count & 1, seal, fd, host, &e);
        fuzz_check_arena(&s.arena, 4 * count);
        if (r < 0) {
                fuzz_check_error(r, &e);
                FUZZ_CHECK(s.seal == 0 && !s.host && s.tensor_count == 0);
        } else {
                check_source(&s);
        }
        (void) close(fd);
        (void) close(host);
        source_done(&s);
        return 0;
}

size_t LLVMFuzzerCustomMutator(uint8_t *bytes, size_t count, size_t max, unsigned int seed) {
        return fuzz_mutate_files(bytes, count, max, seed);
}
