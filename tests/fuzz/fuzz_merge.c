/* SPDX-License-Identifier: Apache-2.0
 *
 * Manifests one behind the other, rank by rank: what each of them says alone is checked when it is
 * read, what they say together by the merge. An accepted merge is an INDEX that can be written,
 * read and found in.
 */
#include "base/limits.h"
#include "format/layout.h"
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

enum { RANKS_MAX = 8 };

static void check_index(const struct file_content *index) {
        struct cairn_error e = CAIRN_ERROR_INIT;
        struct file_content again;
        struct arena arena;
        void *bytes = NULL;
        size_t count = 0;

        FUZZ_CHECK(layout_check_coverage(index, &e) == 0);
        FUZZ_CHECK(file_write(index, &bytes, &count, &e) == 0);
        arena_init(&arena, 1 * GiB);
        FUZZ_CHECK(file_read(bytes, count, FILE_INDEX, "INDEX", &arena, &again, &e) == 0);
        FUZZ_CHECK(again.tensor_count == index->tensor_count);
        for (size_t i = 0; i < again.tensor_count; i++)
                FUZZ_CHECK(layout_find(&again, again.tensors[i]->name.data,
                                       again.tensors[i]->name.len) == (ptrdiff_t) i);
        FUZZ_CHECK(layout_find(&again, "\377 no name", 9) == -1);
        arena_done(&arena);
        free(bytes);
}

/* Owners do not depend on anything but sizes and names, and every rank is a rank. */
static void elect(const struct file_content *index, uint32_t world) {
        size_t n = index->tensor_count;
        uint64_t *bytes = calloc(n + 1, sizeof *bytes);
        const char **names = calloc(n + 1, sizeof *names);
        uint32_t *owners = calloc(n + 1, sizeof *owners);
        FUZZ_CHECK(bytes && names && owners);
        for (size_t i = 0; i < n; i++) {
                const ProtobufCBinaryData *name = &index->tensors[i]->name;
                bytes[i] = index->tensors[i]->n_shape ? index->tensors[i]->shape[0] : 4;
                names[i] = strndup((const char *) name->data, name->len);
        }
        if (layout_elect_owners(bytes, names, n, world, owners, NULL) == 0)
                for (size_t i = 0; i < n; i++)
                        FUZZ_CHECK(owners[i] < world);
        for (size_t i = 0; i < n; i++)
                free((void *) (uintptr_t) names[i]);
        free(bytes);
        free(names);
        free(owners);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count) {
        struct file_content contents[RANKS_MAX], *pointers[RANKS_MAX], index = {0};
        struct cairn_error e = CAIRN_ERROR_INIT;
        struct arena arena;
        uint32_t world = 0;
        size_t all = count;

        arena_init(&arena, 1 * GiB);
        for (size_t n; world < RANKS_MAX && (n = fuzz_file_bytes(bytes, count)) > 0;
             bytes += n, count -= n) {
                enum file_kind kind =
                        fuzz_file_kind(bytes, n) == FILE_INDEX ? FILE_INDEX : FILE_MANIFEST;
                struct file_content *c = &contents[world];
                if (file_read(bytes, n, kind, "file", &arena, c, &e) < 0)
                        continue;
                if (kind == FILE_INDEX)
                        (void) layout_check_coverage(c, &e);
                else
                        pointers[world++] = c;
        }
        if (world > 0) {
                e = (struct cairn_error) CAIRN_ERROR_INIT;
                int r = layout_merge(pointers, world, &arena, &index, &e);
                fuzz_check_arena(&arena, 2 * all);
                if (r < 0)
                        fuzz_check_error(r, &e);
                else {
                        check_index(&index);
                        elect(&index, world);
                }
        }
        arena_done(&arena);
        return 0;
}

size_t LLVMFuzzerCustomMutator(uint8_t *bytes, size_t count, size_t max, unsigned int seed) {
        return fuzz_mutate_files(bytes, count, max, seed);
}
