/* SPDX-License-Identifier: Apache-2.0
 *
 * Any framed file, or the header of a data file: read, checked, and if accepted written and read
 * again to the same bytes.
 */
#include "base/bytes.h"
#include "format/crc32c.h"
#include "format/file.h"
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

static void round_trip(const struct file_content *content) {
        struct cairn_error e = CAIRN_ERROR_INIT;
        struct file_content again;
        struct arena arena;
        void *first = NULL, *second = NULL;
        size_t first_bytes = 0, second_bytes = 0;

        FUZZ_CHECK(file_write(content, &first, &first_bytes, &e) == 0);
        arena_init(&arena, 1 * GiB);
        FUZZ_CHECK(file_read(first, first_bytes, content->kind, "again", &arena, &again, &e) == 0);
        FUZZ_CHECK(file_write(&again, &second, &second_bytes, &e) == 0);
        FUZZ_CHECK(first_bytes == second_bytes && memcmp(first, second, first_bytes) == 0);
        arena_done(&arena);
        free(first);
        free(second);
}

static void read_data_header(const uint8_t *bytes, size_t count) {
        uint8_t *block = calloc(1, DATA_BLOCK_BYTES), again[DATA_BLOCK_BYTES];
        struct cairn_error e = CAIRN_ERROR_INIT;
        struct data_header h;

        FUZZ_CHECK(block);
        memcpy(block, bytes, count < DATA_BLOCK_BYTES ? count : DATA_BLOCK_BYTES);
        for (int repaired = 0; repaired < 2; repaired++) {
                int r = data_header_read(block, "data", &h, &e);
                if (r < 0)
                        fuzz_check_error(r, &e);
                else {
                        data_header_write(again, &h);
                        FUZZ_CHECK(memcmp(again, block, DATA_BLOCK_BYTES) == 0);
                }
                store_le32(block + 4092, crc32c(0, block, 4092));
        }
        free(block);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count) {
        struct cairn_error e = CAIRN_ERROR_INIT;
        struct file_content content = {0};
        struct arena arena;

        if (count >= 8 && memcmp(bytes, "CAIRNDAT", 8) == 0) {
                read_data_header(bytes, count);
                return 0;
        }
        uint8_t *copy = fuzz_copy(bytes, count);
        arena_init(&arena, 1 * GiB);
        int r = file_read(copy, count, fuzz_file_kind(bytes, count), "file", &arena, &content, &e);
        fuzz_check_arena(&arena, count);
        if (r < 0)
                fuzz_check_error(r, &e);
        else
                round_trip(&content);
        arena_done(&arena);
        free(copy);
        return 0;
}

size_t LLVMFuzzerCustomMutator(uint8_t *bytes, size_t count, size_t max, unsigned int seed) {
        return fuzz_mutate_files(bytes, count, max, seed);
}
