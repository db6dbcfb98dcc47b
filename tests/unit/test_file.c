/* SPDX-License-Identifier: Apache-2.0 */
#include "base/bytes.h"
#include "format/check.h"
#include "format/crc32c.h"
#include "format/dtype.h"
#include "format/file.h"
#include "format/layout.h"
#include "tests/test.h"
#include "tests/unit/format_sample.h"

static uint8_t *written;
static size_t written_bytes;
static struct cairn_error error;
static struct arena arena;
static struct file_content content;

static void write_sample(struct sample *s, bool checked) {
        void *bytes = NULL;

        free(written);
        written = NULL;
        int r = checked ? file_write(&s->content, &bytes, &written_bytes, &error)
                        : file_write_unchecked(&s->content, &bytes, &written_bytes, &error);
        if (r < 0)
                fail_msg("%s %s: %s", error.operation, error.object, error.message);
        written = bytes;
}

/* content lives until the next call. */
static int read_bytes(const void *bytes, size_t count, enum file_kind kind) {
        arena_done(&arena);
        arena_init(&arena, 8 * GiB);
        error = (struct cairn_error) CAIRN_ERROR_INIT;
        return file_read(bytes, count, kind, "object", &arena, &content, &error);
}

static int read_written(void) {
        return read_bytes(written, written_bytes, FILE_MANIFEST);
}

static void standard(struct sample *s) {
        sample_init(s, "run", 0, 1, 2, 100, 7);
        sample_standard(s);
        sample_finish(s);
}

/* ---- round trips ---- */

static void expect_same_again(enum file_kind kind) {
        void *again;
        size_t count;

        assert_int_equal(read_bytes(written, written_bytes, kind), 0);
        assert_int_equal(file_write(&content, &again, &count, NULL), 0);
        assert_int_equal(count, written_bytes);
        assert_memory_equal(again, written, count);
        free(again);
}

static void test_round_trips(void **state) {
        struct sample s;
        struct file_content index;

        standard(&s);
        write_sample(&s, true);
        expect_same_again(FILE_MANIFEST);
        assert_int_equal(content.tensor_count, 6);
        assert_int_equal(content.states[0]->n_values, 2);
        struct file_content *manifests[] = {&s.content};
        assert_int_equal(layout_merge(manifests, 1, &s.arena, &index, NULL), 0);
        s.content = index;
        write_sample(&s, true);
        expect_same_again(FILE_INDEX);
        sample_done(&s);
}

static void make_inventory(struct sample *s, Cairn__Format__InventoryHead *head,
                           uint64_t *slab_bytes) {
        sample_init(s, "run", 0, 1, 2, 100, 7);
        sample_standard(s);
        for (size_t i = 0; i < s->content.placement_count; i++)
                s->content.placements[i]->offset = i * 4096;
        cairn__format__inventory_head__init(head);
        head->seal = 1;
        head->tensor_count = s->content.tensor_count;
        head->slab_count = 1;
        *slab_bytes = 1 << 20;
        head->n_slab_bytes = 1;
        head->slab_bytes = slab_bytes;
        s->content.kind = FILE_INVENTORY;
        s->content.inventory = head;
}

static void test_inventory(void **state) {
        Cairn__Format__InventoryHead head;
        struct sample s;
        uint64_t slab_bytes;

        make_inventory(&s, &head, &slab_bytes);
        write_sample(&s, true);
        expect_same_again(FILE_INVENTORY);
        assert_int_equal(content.placement_count, 6);
        assert_int_equal(content.placements[3]->offset, 3 * 4096);
        assert_true(content.placements[3]->owned);
        s.content.placements[2]->offset = 1 << 20;
        assert_int_equal(file_check(&s.content, "x", &error), CAIRN_ERR_CORRUPT);
        assert_non_null(strstr(error.object, "m.wte"));
        s.content.placements[2]->offset = UINT64_MAX - 255;
        assert_int_equal(file_check(&s.content, "x", &error), CAIRN_ERR_CORRUPT);
        s.content.placements[2]->offset = 0;
        s.content.placements[2]->slab = 1;
        assert_int_equal(file_check(&s.content, "x", &error), CAIRN_ERR_CORRUPT);
        s.content.placements[2]->slab = 0;
        s.content.tensors[2]->mutates = CAIRN_ANYTIME;
        s.content.placements[2]->shadow_offset = (1 << 20) - 256;
        assert_int_equal(file_check(&s.content, "x", &error), CAIRN_ERR_CORRUPT);
        s.content.placements[2]->shadow_offset = 512;
        assert_int_equal(file_check(&s.content, "x", &error), 0);
        s.content.placement_count--;
        assert_int_equal(file_check(&s.content, "x", &error), CAIRN_ERR_CORRUPT);
        sample_done(&s);
}

static void b09_every_type_and_small_shape(void **state) {
        static const uint64_t shapes[][3] = {{0}, {4, 0, 3}, {0}, {1}, {1, 1}};
        static const size_t ranks[] = {1, 3, 0, 1, 2};
        struct sample s;
        char name[32];

        sample_init(&s, "run", 0, 1, 1, 1, 1);
        for (uint32_t dtype = CAIRN_F64; dtype <= CAIRN_C128; dtype++)
                for (size_t i = 0; i < 5; i++) {
                        (void) snprintf(name, sizeof name, "%s.%zu", dtype_info(dtype)->name, i);
                        sample_tensor(&s, name, CAIRN_OTHER, dtype, ranks[i], shapes[i]);
                }
        sample_finish(&s);
        write_sample(&s, true);
        assert_int_equal(read_written(), 0);
        assert_int_equal(content.tensor_count, 18 * 5);
        for (size_t k = 0; k < content.tensor_count; k++) {
                const Tensor *t = content.tensors[k];
                size_t i = k % 5;
                assert_int_equal(t->runtime_dtype, CAIRN_F64 + k / 5);
                assert_int_equal(t->n_shape, ranks[i]);
                for (size_t d = 0; d < ranks[i]; d++)
                        assert_int_equal(t->shape[d], shapes[i][d]);
                assert_int_equal(t->n_extents, i >= 2);
        }
        sample_done(&s);
}

static void resume_16_step_is_exact(void **state) {
        static const int64_t steps[] = {0,     1,       2047,          2048,    2049,
                                        65505, 1 << 24, (1 << 24) + 1, STEP_MAX};
        struct sample s;
        char name[32];

        sample_init(&s, "run", 0, 1, 1, 1, 1);
        for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
                (void) snprintf(name, sizeof name, "step.%zu", i);
                Tensor *t = sample_tensor(&s, name, CAIRN_STEP, CAIRN_F32, 0, NULL);
                t->has_true_step = true;
                t->true_step = steps[i];
        }
        sample_finish(&s);
        write_sample(&s, true);
        assert_int_equal(read_written(), 0);
        for (size_t i = 0; i < content.tensor_count; i++) {
                const Tensor *t = content.tensors[i];
                float single;
                memcpy(&single, s.image + t->extents[0]->offset, 4);
                assert_true(t->true_step == steps[i]);
                assert_true(single == (float) steps[i]);
                assert_int_equal(t->runtime_dtype, CAIRN_F32);
                assert_int_equal(t->stored_dtype, CAIRN_F32);
        }
        for (uint32_t dtype = CAIRN_F64; dtype <= CAIRN_C128; dtype++) {
                if (dtype == CAIRN_F32)
                        continue;
                s.content.tensors[2]->stored_dtype = dtype;
                assert_int_equal(file_check(&s.content, "x", &error), CAIRN_ERR_CORRUPT);
                s.content.tensors[2]->runtime_dtype = dtype;
                assert_int_equal(file_check(&s.content, "x", &error), CAIRN_ERR_CORRUPT);
                assert_non_null(strstr(error.message, "step counter is f32"));
                s.content.tensors[2]->stored_dtype = CAIRN_F32;
                assert_int_equal(file_check(&s.content, "x", &error), CAIRN_ERR_CORRUPT);
                s.content.tensors[2]->runtime_dtype = CAIRN_F32;
        }
        assert_int_equal(file_check(&s.content, "x", &error), 0);
        sample_done(&s);
}

/* ---- B60 and its kind: right checksums, wrong records ---- */

static void expect_refused(struct sample *s, const char *tensor, const char *word) {
        write_sample(s, false);
        int r = read_written();
        if (r == 0)
                fail_msg("accepted, expected \"%s\"", word);
        if (!strstr(error.message, word) || (tensor && !strstr(error.object, tensor)))
                fail_msg("object \"%s\", message \"%s\", expected \"%s\"", error.object,
                         error.message, word);
        assert_true(error.offset != UINT64_MAX);
        assert_non_null(strstr(error.operation, "section"));
        assert_int_equal(file_write(&s->content, &(void *){NULL}, &(size_t){0}, NULL), r);
}

static void b60_range_against_shape(void **state) {
        struct sample s;
        Tensor *t;

        sample_init(&s, "run", 0, 1, 2, 100, 7);
        t = sample_tensor(&s, "big\x1b[31m", CAIRN_PARAMETER, CAIRN_F32, 2, (uint64_t[]){100, 100});
        sample_tensor(&s, "next", CAIRN_PARAMETER, CAIRN_F32, 1, (uint64_t[]){64});
        sample_finish(&s);
        Extent *e = t->extents[0];
        uint64_t bytes = e->bytes;
        write_sample(&s, true);
        assert_int_equal(read_written(), 0);

        static const uint64_t sizes[] = {4, 0, 39996, 40004, UINT64_MAX, UINT64_C(1) << 63};
        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
                e->bytes = sizes[i];
                expect_refused(&s, "big\\x1b[31m", "shape and stored type");
        }
        e->bytes = bytes;
        static const uint64_t behind[] = {8192, UINT64_C(1) << 40, UINT64_MAX - 255,
                                          UINT64_MAX - 40191};
        for (size_t i = 0; i < sizeof behind / sizeof behind[0]; i++) {
                e->offset = behind[i] & ~UINT64_C(255);
                expect_refused(&s, "big", "end behind the data file");
        }
        static const uint64_t unaligned[] = {0, 256, 3840, 4097, 4352 + 8};
        for (size_t i = 0; i < sizeof unaligned / sizeof unaligned[0]; i++) {
                e->offset = unaligned[i];
                expect_refused(&s, "big", "header or is not aligned");
        }
        e->offset = 4096 + 256;
        expect_refused(&s, "next", "overlap");
        e->offset = 4096;
        e->rank = 1;
        expect_refused(&s, "big", "file of rank 1");
        e->rank = 0;
        t->shape[0] = UINT64_C(1) << 62;
        expect_refused(&s, "big", "does not fit in 64 bits");
        t->shape[0] = 101;
        expect_refused(&s, "big", "shape and stored type");
        t->shape[0] = 100;
        t->stored_dtype = CAIRN_F64;
        expect_refused(&s, "big", "shape and stored type");
        t->stored_dtype = CAIRN_F32;
        write_sample(&s, true);
        sample_done(&s);
}

static void test_records_that_make_no_sense(void **state) {
        struct sample s;
        struct file_content *c = &s.content;

        standard(&s);
#define WITH(field, wrong, tensor, word)              \
        do {                                          \
                __typeof__(field) right_ = (field);   \
                (field) = (wrong);                    \
                expect_refused(&s, (tensor), (word)); \
                (field) = right_;                     \
        } while (0)
        WITH(c->tensors[0]->role, 13, "wte", "role 13");
        WITH(c->tensors[0]->runtime_dtype, 19, "wte", "type 19");
        WITH(c->tensors[0]->stored_dtype, 0, "wte", "stored as 0");
        WITH(c->tensors[0]->device_class, 2, "wte", "device class");
        WITH(c->tensors[0]->mutates, 2, "wte", "time of change");
        WITH(c->tensors[0]->n_shape, 0, "wte", "shape and stored type");
        WITH(c->tensors[1]->alias_of, sample_text(&s, "nothing"), "lm_head", "does not exist");
        WITH(c->tensors[1]->alias_of, sample_text(&s, "lm_head"), "lm_head", "tied itself");
        WITH(c->tensors[1]->alias_of, sample_text(&s, "v.wte"), "lm_head", "another shape or type");
        WITH(c->tensors[0]->alias_of, sample_text(&s, "v.wte"), "wte", "bytes of its own");
        WITH(c->tensors[3]->stored_dtype, CAIRN_BF16, "v.wte", "second moment");
        WITH(c->tensors[0]->stored_dtype, CAIRN_F8E5M2, "wte", "may not be stored");
        WITH(c->tensors[4]->true_step, -1, "step", "true step -1");
        WITH(c->tensors[4]->true_step, STEP_MAX + 1, "step", "true step");
        WITH(c->tensors[4]->has_true_step, false, "step", "not marked");
        WITH(c->tensors[0]->has_true_step, true, "wte", "true step");
        WITH(c->tensors[2]->extents[0]->shard->flat_count, 8, "m.wte", "shape and stored type");
        WITH(c->tensors[2]->extents[0]->shard->flat_start, UINT64_MAX, "m.wte",
             "behind the tensor");
        WITH(c->tensors[3]->extents[0]->shard->n_offsets, 1, "v.wte", "number of dimensions");
        WITH(c->tensors[3]->extents[0]->shard->offsets[1], UINT64_MAX, "v.wte",
             "behind the tensor");
        WITH(c->head->run, sample_text(&s, "../x"), NULL, "run's name");
        WITH(c->head->run, sample_text(&s, ""), NULL, "run's name");
        WITH(c->head->generation, 0, NULL, "generation 0");
        WITH(c->head->world, 0, NULL, "0 ranks");
        WITH(c->head->world, RANK_COUNT_MAX + 1, NULL, "65537 ranks");
        WITH(c->head->rank, 1, NULL, "rank 1 of 1");
        WITH(c->head->step, -1, NULL, "step -1");
        WITH(c->head->seq, UINT64_C(1) << 40, NULL, "sequence number");
        WITH(c->head->attempt, 1u << 22, NULL, "attempt");
        WITH(c->head->data_uuid.len, 15, NULL, "uuid has 15 bytes");
        WITH(c->head->data_bytes, 0, NULL, "data file of 0");
        WITH(c->head->data_bytes, c->head->data_bytes + 1, NULL, "not possible");
        WITH(c->head->data_bytes, 4096, "wte", "end behind");
        WITH(c->head->data_bytes, c->head->data_bytes + DATA_CHUNK_BYTES, NULL, "checksums end");
        WITH(c->head->tensor_count, 7, NULL, "announces 7 tensors");
        WITH(c->head->tensor_bytes, 1, NULL, "of 1 bytes");
        WITH(c->states[0]->rank, 1, NULL, "of rank 1");
        WITH(c->states[0]->step, 99, NULL, "of step 99");
        WITH(c->states[0]->seq, 5, NULL, "sequence number 5");
        WITH(c->states[0]->values[1]->name, sample_text(&s, "samples"), "samples", "another value");
        WITH(c->states[0]->values[1]->name, sample_text(&s, ""), NULL, "is empty");
        WITH(c->states[0]->values[1]->capacity, 15, "rng", "more bytes than capacity");
        WITH(c->states[0]->values[1]->capacity, UINT64_MAX, "rng", "more capacity");
        WITH(c->states[0]->values[1]->type, 5, "rng", "unknown type");
        WITH(c->states[0]->values[1]->type, CAIRN_VALUE_F64, "rng", "is a number");
        WITH(c->chunk_crcs[0]->first_chunk, 1, NULL, "chunk 1");
        WITH(c->chunk_crcs[0]->rank, 1, NULL, "of rank 1 stand");
        write_sample(&s, true);
        assert_int_equal(read_written(), 0);
        sample_done(&s);
}

/* ---- B64 ---- */

static void b64_name_lengths(void **state) {
        static const size_t lengths[] = {1, 254, 255, 256, 4096, 65536};
        char *name = malloc(65538);
        struct sample s;

        assert_non_null(name);
        sample_init(&s, "run", 0, 1, 1, 1, 1);
        for (size_t i = 0; i < 6; i++) {
                memset(name, 'a' + (int) i, lengths[i]);
                name[lengths[i]] = '\0';
                sample_tensor(&s, name, CAIRN_OTHER, CAIRN_U8, 1, (uint64_t[]){1});
        }
        sample_finish(&s);
        write_sample(&s, true);
        assert_int_equal(read_written(), 0);
        for (size_t i = 0; i < 6; i++)
                assert_int_equal(content.tensors[i]->name.len, lengths[i]);
        Tensor *t = s.content.tensors[2];
        ProtobufCBinaryData right = t->name;
        memset(name, 'x', 65537);
        t->name = (ProtobufCBinaryData){65537, (uint8_t *) name};
        expect_refused(&s, NULL, "too long");
        t->name = (ProtobufCBinaryData){0, NULL};
        expect_refused(&s, NULL, "is empty");
        t->name = sample_text(&s, "bbbb");
        t->name.data[1] = 0;
        expect_refused(&s, NULL, "zero byte");
        t->name = s.content.tensors[5]->name;
        expect_refused(&s, NULL, "another tensor has this name");
        static const char *const not_utf8[] = {
                "\x80",         "\xc0\x80",         "\xc3",
                "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xf8\x88\x80\x80\x80",
                "a\xff",        "\xe0\x80\x80"};
        for (size_t i = 0; i < sizeof not_utf8 / sizeof not_utf8[0]; i++) {
                t->name = sample_text(&s, not_utf8[i]);
                expect_refused(&s, NULL, "not valid UTF-8");
        }
        static const char *const utf8[] = {"\xc3\xa4", "\xe2\x82\xac", "\xf0\x9f\x8f\x94",
                                           "\xef\xbf\xbf", "a/../b\n"};
        for (size_t i = 0; i < sizeof utf8 / sizeof utf8[0]; i++) {
                t->name = sample_text(&s, utf8[i]);
                assert_int_equal(file_check(&s.content, "x", NULL), 0);
        }
        t->name = right;
        free(name);
        sample_done(&s);
}

/* ---- B58: framing ---- */

/* Make all checksums and the length right again. */
static void seal(uint8_t *bytes, size_t count) {
        size_t at = 64;

        while (count >= 64 && at + 16 <= count) {
                uint64_t payload = load_le64(bytes + at + 8);
                if (payload > count - at - 16)
                        break;
                store_le32(bytes + at + 4, crc32c(0, bytes + at + 16, payload));
                at += 16 + ((payload + 7) & ~UINT64_C(7));
        }
        if (count >= 64)
                store_le32(bytes + 60, crc32c(0, bytes, 60));
}

static uint64_t memory_limit(size_t count) {
        return 65 * (uint64_t) count + 8 * 64 * KiB; /* whole blocks are paid */
}

static void b58_lengths_and_counts(void **state) {
        static const uint64_t values[] = {0,
                                          1,
                                          15,
                                          0x7fffffff,
                                          0x80000000,
                                          0xffffffff,
                                          INT64_MAX,
                                          UINT64_C(1) << 63,
                                          UINT64_MAX - 7,
                                          UINT64_MAX};
        static const size_t words[] = {0, 8, 16, 24, 32, 40, 48, 56, 64, 72};
        struct sample s;

        standard(&s);
        write_sample(&s, true);
        uint8_t *copy = malloc(written_bytes);
        assert_non_null(copy);
        for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
                for (size_t k = 0; k < sizeof values / sizeof values[0]; k++)
                        for (int half = 0; half < 3; half++) {
                                memcpy(copy, written, written_bytes);
                                if (half == 2)
                                        store_le64(copy + words[i], values[k]);
                                else
                                        store_le32(copy + words[i] + 4 * half,
                                                   (uint32_t) values[k]);
                                if (words[i] < 64)
                                        store_le32(copy + 60, crc32c(0, copy, 60));
                                else
                                        seal(copy, written_bytes);
                                bool same = memcmp(copy, written, written_bytes) == 0;
                                int r = read_bytes(copy, written_bytes, FILE_MANIFEST);
                                bool compat = words[i] == 16; /* unknown ones are tolerated */
                                if (same || compat)
                                        assert_int_equal(r, 0);
                                else
                                        assert_true(r == CAIRN_ERR_CORRUPT ||
                                                    r == CAIRN_ERR_UNSUPPORTED);
                                assert_true(arena.bytes_used <= memory_limit(written_bytes));
                        }
        for (size_t count = 0; count < written_bytes; count++) {
                memcpy(copy, written, written_bytes);
                assert_int_equal(read_bytes(copy, count, FILE_MANIFEST), CAIRN_ERR_CORRUPT);
                if (count >= 64) { /* cut, and the header knows it */
                        store_le64(copy + 40, count);
                        seal(copy, count);
                        assert_int_equal(read_bytes(copy, count, FILE_MANIFEST), CAIRN_ERR_CORRUPT);
                }
        }
        free(copy);
        sample_done(&s);
}

static void b58_random_changes(void **state) {
        struct sample s;
        uint64_t seed = 20240229, accepted = 0;
        const char *asked = getenv("ROUNDS"); /* a million with the sanitizers, now and then */
        long rounds = asked ? strtol(asked, NULL, 10) : 40000;

        standard(&s);
        write_sample(&s, true);
        size_t count = written_bytes > 0 ? written_bytes : 1;
        uint8_t *copy = malloc(count);
        assert_non_null(copy);
        for (long round = 0; round < rounds; round++) {
                memcpy(copy, written, written_bytes);
                for (uint64_t changes = 1 + (seed >> 60) % 4; changes > 0; changes--) {
                        seed = seed * 6364136223846793005u + 1442695040888963407u;
                        copy[(seed >> 32) % count] ^= (uint8_t) (1u << (seed >> 28) % 8);
                }
                bool sealed = round % 4 != 0;
                if (sealed)
                        seal(copy, written_bytes);
                int r = read_bytes(copy, written_bytes, FILE_MANIFEST);
                accepted += r == 0;
                if (!sealed && memcmp(copy, written, written_bytes) != 0)
                        assert_true(r == CAIRN_ERR_CORRUPT || r == CAIRN_ERR_UNSUPPORTED);
                assert_true(arena.bytes_used <= memory_limit(written_bytes));
        }
        print_message("%ju of %ld changed files were still valid\n", (uintmax_t) accepted, rounds);
        free(copy);
        sample_done(&s);
}

/* A section of this type and payload alone in a file of this kind. */
static int read_one_section(enum file_kind kind, uint32_t type, const uint8_t *payload,
                            size_t bytes) {
        size_t count = 64 + 16 + ((bytes + 7) & ~(size_t) 7);
        uint8_t *file = calloc(1, count);

        assert_non_null(file);
        memcpy(file, (const uint8_t[]){'C', 'A', 'I', 'R', 'N', 'F', 'M', 'T'}, 8);
        store_le32(file + 8, 1);
        store_le32(file + 12, kind);
        store_le32(file + 32, 1);
        store_le64(file + 40, count);
        store_le32(file + 64, type);
        store_le64(file + 72, bytes);
        if (bytes)
                memcpy(file + 80, payload, bytes);
        seal(file, count);
        int r = read_bytes(file, count, kind);
        assert_true(arena.bytes_used <= memory_limit(count));
        free(file);
        return r;
}

static void repeat(uint8_t *target, size_t bytes, const uint8_t *unit, size_t unit_bytes) {
        for (size_t i = 0; i + unit_bytes <= bytes; i += unit_bytes)
                memcpy(target + i, unit, unit_bytes);
}

/* Two bytes a record: each would become a struct a hundred times as large. */
static void b58_memory_is_bounded_by_the_file(void **state) {
        enum { BYTES = 8 << 20 };
        uint8_t *payload = malloc(BYTES);

        assert_non_null(payload);
        repeat(payload, BYTES, (const uint8_t[]){0x82, 0x01, 0}, 3); /* Head.texts, empty */
        assert_int_equal(read_one_section(FILE_COMMIT, SECTION_HEAD, payload, BYTES / 3 * 3),
                         CAIRN_ERR_CORRUPT);
        repeat(payload, BYTES, (const uint8_t[]){0xa2, 0x06, 0},
               3); /* field 100: from the future */
        assert_int_equal(read_one_section(FILE_COMMIT, SECTION_HEAD, payload, BYTES / 3 * 3),
                         CAIRN_ERR_CORRUPT);
        repeat(payload, BYTES, (const uint8_t[]){0x22, 0}, 2); /* Generation.members, empty */
        assert_int_equal(read_one_section(FILE_GENERATION, SECTION_GENERATION, payload, BYTES),
                         CAIRN_ERR_CORRUPT);
        memset(payload, 0xff, BYTES); /* a varint without end */
        assert_int_equal(read_one_section(FILE_MARK, SECTION_MARK, payload, BYTES),
                         CAIRN_ERR_CORRUPT);
        assert_int_equal(read_one_section(FILE_MARK, SECTION_MARK,
                                          (const uint8_t *) "\x12\xff\xff\xff\xff\x07", 6),
                         CAIRN_ERR_CORRUPT); /* a length of 2 GiB */
        assert_int_equal(read_one_section(FILE_MARK, SECTION_MARK, NULL, 0), CAIRN_ERR_CORRUPT);
        free(payload);

        /* A tensor of two bytes is a struct of 180. */
        enum { COUNT = 1 << 20 };
        Tensor empty = CAIRN__FORMAT__TENSOR__INIT, **tensors = calloc(COUNT, sizeof *tensors);
        Cairn__Format__InventoryHead head = CAIRN__FORMAT__INVENTORY_HEAD__INIT;
        assert_non_null(tensors);
        for (size_t i = 0; i < COUNT; i++)
                tensors[i] = &empty;
        const struct file_content many = {.kind = FILE_INVENTORY,
                                          .inventory = &head,
                                          .tensors = tensors,
                                          .tensor_count = COUNT};
        void *bytes;
        size_t count;
        assert_int_equal(file_write_unchecked(&many, &bytes, &count, NULL), 0);
        assert_int_equal(read_bytes(bytes, count, FILE_INVENTORY), CAIRN_ERR_CORRUPT);
        assert_non_null(strstr(error.message, "far more memory"));
        free(bytes);
        free(tensors);

        /* The caller's own limit is another error: the file may be good. */
        struct sample s;
        standard(&s);
        write_sample(&s, true);
        arena_done(&arena);
        arena_init(&arena, 1000);
        assert_int_equal(
                file_read(written, written_bytes, FILE_MANIFEST, "x", &arena, &content, NULL),
                CAIRN_ERR_NOMEM);
        sample_done(&s);
}

/* ---- versions ---- */

static void test_versions_and_features(void **state) {
        struct sample s;

        standard(&s);
        write_sample(&s, true);
        store_le32(written + 8, 2);
        seal(written, written_bytes);
        assert_int_equal(read_written(), CAIRN_ERR_UNSUPPORTED);
        store_le32(written + 8, 1);
        store_le64(written + 24, 2);
        seal(written, written_bytes);
        assert_int_equal(read_written(), CAIRN_ERR_UNSUPPORTED);
        store_le64(written + 24, FILE_FEATURE_COPIES); /* there are none */
        seal(written, written_bytes);
        assert_int_equal(read_written(), CAIRN_ERR_CORRUPT);
        store_le64(written + 24, 0);
        store_le64(written + 16, UINT64_MAX);
        seal(written, written_bytes);
        assert_int_equal(read_written(), 0);
        store_le32(written + 64, 99);
        seal(written, written_bytes);
        assert_int_equal(read_written(), CAIRN_ERR_UNSUPPORTED);
        store_le32(written + 64, SECTION_MARK);
        seal(written, written_bytes);
        assert_int_equal(read_written(), CAIRN_ERR_CORRUPT);
        sample_done(&s);
        /* An unknown field is from a later writer: kept out of the way. Field 100, varint 5. */
        static const uint8_t mark[] = {0x08, 2, 0x20, 1, 0xa0, 0x06, 5};
        assert_int_equal(read_one_section(FILE_MARK, SECTION_MARK, mark, sizeof mark), 0);
        assert_int_equal(content.mark->kind, FILE_MARK_PIN);
        assert_int_equal(read_one_section(FILE_STORE, SECTION_MARK, mark, sizeof mark),
                         CAIRN_ERR_CORRUPT);
}

static void test_data_header(void **state) {
        struct data_header h = {.rank = 3,
                                .generation = 9,
                                .uuid = "0123456789abcde",
                                .run = "run"},
                           back;
        uint8_t block[4096], copy[4096];

        memset(h.run, 'r', RUN_NAME_BYTES_MAX);
        data_header_write(block, &h);
        assert_int_equal(data_header_read(block, "data", &back, NULL), 0);
        assert_int_equal(back.rank, 3);
        assert_int_equal(back.generation, 9);
        assert_memory_equal(back.uuid, h.uuid, sizeof h.uuid);
        assert_string_equal(back.run, h.run);
        for (size_t i = 0; i < sizeof block; i++) {
                memcpy(copy, block, sizeof copy);
                copy[i] ^= 1;
                assert_true(data_header_read(copy, "data", &back, NULL) < 0);
        }
        memcpy(copy, block, sizeof copy);
        copy[200] = 1;
        store_le32(copy + 4092, crc32c(0, copy, 4092));
        assert_int_equal(data_header_read(copy, "data", &back, &error), CAIRN_ERR_CORRUPT);
        assert_int_equal(error.offset, 200);
        memcpy(copy, block, sizeof copy);
        store_le32(copy + 8, 2);
        store_le32(copy + 4092, crc32c(0, copy, 4092));
        assert_int_equal(data_header_read(copy, "data", &back, NULL), CAIRN_ERR_UNSUPPORTED);
}

/* ---- INDEX pages ---- */

static void many_tensors(struct sample *s, size_t count) {
        sample_init(s, "run", 0, 1, 1, 1, 1);
        s->capacity = count;
        s->content.tensors = sample_memory(s, count * sizeof(Tensor *));
        s->content.placements = sample_memory(s, count * sizeof(void *));
        for (size_t i = 0; i < count; i++) {
                char name[96];
                (void) snprintf(name, sizeof name,
                                "model.layers.%zu.attention.projection.weight.%zu", i % 97, i);
                sample_tensor(s, name, CAIRN_PARAMETER, CAIRN_BF16, 2, (uint64_t[]){4, 8});
        }
        sample_finish(s);
}

static void test_page_directory(void **state) {
        struct sample s;
        struct file_content index, *manifests[1] = {&s.content};

        many_tensors(&s, 40000);
        assert_int_equal(layout_merge(manifests, 1, &s.arena, &index, NULL), 0);
        s.content = index;
        write_sample(&s, true);
        assert_int_equal(read_bytes(written, written_bytes, FILE_INDEX), 0);
        assert_int_equal(content.tensor_count, 40000);
        /* Follow the directory by hand, as a reader that needs a few pages does. */
        size_t at = 64 + 16 + (size_t) ((load_le64(written + 72) + 7) & ~UINT64_C(7));
        assert_int_equal(load_le32(written + at), SECTION_PAGE_DIRECTORY);
        Cairn__Format__PageDirectory *directory = cairn__format__page_directory__unpack(
                NULL, load_le64(written + at + 8), written + at + 16);
        assert_non_null(directory);
        assert_true(directory->n_pages > 2);
        size_t total = 0;
        for (size_t i = 0; i < directory->n_pages; i++) {
                uint64_t offset = directory->pages[i]->offset;
                assert_int_equal(load_le32(written + offset), SECTION_TENSORS);
                assert_true(load_le64(written + offset + 8) < 2 * MiB);
                Cairn__Format__TensorPage *page = cairn__format__tensor_page__unpack(
                        NULL, load_le64(written + offset + 8), written + offset + 16);
                assert_non_null(page);
                assert_int_equal(page->tensors[0]->name.len, directory->pages[i]->first_name.len);
                assert_memory_equal(page->tensors[0]->name.data,
                                    directory->pages[i]->first_name.data,
                                    page->tensors[0]->name.len);
                total += page->n_tensors;
                cairn__format__tensor_page__free_unpacked(page, NULL);
        }
        assert_int_equal(total, 40000);
        cairn__format__page_directory__free_unpacked(directory, NULL);
        /* Not sorted: refused. */
        Tensor *first = s.content.tensors[0];
        s.content.tensors[0] = s.content.tensors[1];
        s.content.tensors[1] = first;
        assert_int_equal(file_check(&s.content, "x", &error), CAIRN_ERR_CORRUPT);
        sample_done(&s);
}

/* ---- scale ---- */

/* Of this process alone: other tests run beside it. */
static uint64_t cpu_now(void) {
        struct timespec t;
        assert_int_equal(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t), 0);
        return (uint64_t) t.tv_sec * NSEC_PER_SEC + (uint64_t) t.tv_nsec;
}

static double seconds(uint64_t from) {
        return (double) (cpu_now() - from) / 1e9;
}

static double measure(size_t count) {
        struct sample s;
        uint64_t image_bytes, begin;

        many_tensors(&s, count);
        begin = cpu_now();
        assert_int_equal(layout_assign(&s.content, 0, &s.arena, &image_bytes, NULL), 0);
        double layout = seconds(begin);
        begin = cpu_now();
        assert_int_equal(file_check(&s.content, "x", NULL), 0);
        double checking = seconds(begin);
        begin = cpu_now();
        write_sample(&s, true);
        double writing = seconds(begin);
        begin = cpu_now();
        assert_int_equal(read_written(), 0);
        double reading = seconds(begin);
        struct file_content index, *manifests[1] = {&content};
        begin = cpu_now();
        assert_int_equal(layout_merge(manifests, 1, &arena, &index, NULL), 0);
        double merging = seconds(begin);
        print_message("%zu tensors, %.1f MB: layout %.3f s, check %.3f s, write %.3f s, read %.3f "
                      "s, merge %.3f s, "
                      "arena %.0f bytes a tensor\n",
                      count, (double) written_bytes / 1e6, layout, checking, writing, reading,
                      merging, (double) arena.bytes_used / (double) count);
        assert_int_equal(content.tensor_count, count);
        sample_done(&s);
        return layout + writing + reading;
}

static void test_scale(void **state) {
        double small = measure(100000), large = measure(1000000);

        /* Near-linear, with room for a busy machine. */
        assert_true(large < 40 * small + 1);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_round_trips),
                cmocka_unit_test(test_inventory),
                cmocka_unit_test(b09_every_type_and_small_shape),
                cmocka_unit_test(resume_16_step_is_exact),
                cmocka_unit_test(b60_range_against_shape),
                cmocka_unit_test(test_records_that_make_no_sense),
                cmocka_unit_test(b64_name_lengths),
                cmocka_unit_test(b58_lengths_and_counts),
                cmocka_unit_test(b58_random_changes),
                cmocka_unit_test(b58_memory_is_bounded_by_the_file),
                cmocka_unit_test(test_versions_and_features),
                cmocka_unit_test(test_data_header),
                cmocka_unit_test(test_page_directory),
                cmocka_unit_test(test_scale),
        };
        int r = cmocka_run_group_tests(tests, NULL, NULL);
        free(written);
        arena_done(&arena);
        return r;
}
