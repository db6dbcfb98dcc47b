/* SPDX-License-Identifier: Apache-2.0
 *
 * test_golden.c - tests/golden/v1 pins format version 1: this program makes the same store again,
 * byte for byte, and reads the stored one through the public readers. UPDATE_GOLDEN=1 rewrites it,
 * which is right only together with a new format version and docs/FORMAT.md.
 */
#include "base/cleanup.h"
#include "format/dtype.h"
#include "format/layout.h"
#include "format/scan.h"
#include "tests/test.h"
#include "tests/unit/format_sample.h"

#include <sys/stat.h>

#define GOLDEN "tests/golden/v1"
#define RUN "gold"
#define CHECKPOINT "000000000042-g0001"

static const char *const files[] = {
        "CAIRN-STORE",
        "inventory",
        RUN "/GEN-0001",
        RUN "/GEN-0001.start",
        RUN "/marks/FINISHED",
        RUN "/marks/PIN-" CHECKPOINT,
        RUN "/marks/TAG-" CHECKPOINT,
        RUN "/" CHECKPOINT "/COMMIT",
        RUN "/" CHECKPOINT "/INDEX",
        RUN "/" CHECKPOINT "/rank-00000.manifest",
        RUN "/" CHECKPOINT "/rank-00000.data",
};
#define FILE_COUNT (sizeof files / sizeof files[0])

static char made_path[256];
static int made_fd = -1, golden_fd = -1;

/* ---- making it ---- */

static void add_tensors(struct sample *s) {
        for (uint32_t dtype = CAIRN_F64; dtype <= CAIRN_C128; dtype++)
                sample_tensor(s, dtype_info(dtype)->name, CAIRN_OTHER, dtype, 2,
                              (uint64_t[]){2, 3});
        sample_tensor(s, "empty", CAIRN_BUFFER, CAIRN_F32, 3, (uint64_t[]){4, 0, 3});
        sample_tensor(s, "scalar", CAIRN_SCALER, CAIRN_F32, 0, NULL);
        Tensor *weight =
                sample_tensor(s, "wte", CAIRN_PARAMETER, CAIRN_BF16, 2, (uint64_t[]){8, 4});
        weight->device_class = 1;
        weight->replicated = true;
        Tensor *tied =
                sample_tensor(s, "lm_head", CAIRN_PARAMETER, CAIRN_BF16, 2, (uint64_t[]){8, 4});
        tied->alias_of = sample_text(s, "wte");
        tied->device_class = 1;
        tied->replicated = true;
        Tensor *step = sample_tensor(s, "adam.step", CAIRN_STEP, CAIRN_F32, 0, NULL);
        step->has_true_step = true;
        step->true_step = (1 << 24) + 1;
        Tensor *ema = sample_tensor(s, "ema.wte", CAIRN_EMA, CAIRN_F32, 2, (uint64_t[]){8, 4});
        ema->stored_dtype = CAIRN_BF16;
        ema->encoding = sample_memory(s, sizeof *ema->encoding);
        cairn__format__encoding__init(ema->encoding);
        ema->encoding->error_abs_max = 0x1p-9;
        ema->encoding->asked_dtype = CAIRN_BF16;
        Tensor *flat = sample_tensor(s, "m.wte", CAIRN_MOMENT1, CAIRN_F32, 2, (uint64_t[]){8, 4});
        sample_flat(s, flat, 0, 32);
        Tensor *block = sample_tensor(s, "v.wte", CAIRN_MOMENT2, CAIRN_F32, 2, (uint64_t[]){8, 4});
        sample_block(s, block, (uint64_t[]){0, 0}, (uint64_t[]){8, 4});
        Tensor *amax =
                sample_tensor(s, "amax \xe2\x82\xac", CAIRN_BUFFER, CAIRN_F32, 1, (uint64_t[]){1});
        amax->mutates = CAIRN_ANYTIME;
}

static void add_descriptions(struct sample *s) {
        Cairn__Format__Head *head = s->content.head;
        Cairn__Format__Text *text = sample_memory(s, sizeof *text);
        Cairn__Format__Ending *ending = sample_memory(s, sizeof *ending);

        cairn__format__text__init(text);
        text->key = sample_text(s, "config.layers");
        text->value = sample_text(s, "12");
        head->texts = sample_memory(s, sizeof(void *));
        head->texts[0] = text;
        head->n_texts = 1;
        cairn__format__ending__init(ending);
        ending->kind = 2;
        ending->code = SIGKILL;
        head->ending = ending;
        sample_value(s, "samples", CAIRN_VALUE_I64, -7, NULL);
        sample_value(s, "epoch", CAIRN_VALUE_U64, 3, NULL);
        sample_value(s, "best", CAIRN_VALUE_F64, 20, NULL);
        sample_value(s, "rng", CAIRN_VALUE_BYTES, 0, "stream");
}

static void write_inventory(struct sample *s) {
        Cairn__Format__InventoryHead head = CAIRN__FORMAT__INVENTORY_HEAD__INIT;
        struct file_content inventory = s->content;
        uint64_t slab_bytes = 1 << 20;

        for (size_t i = 0; i < inventory.placement_count; i++) {
                inventory.placements[i]->offset = i * 512;
                inventory.placements[i]->shadow_offset = (1 << 19) + i * 512;
        }
        head.seal = 2;
        head.tensor_count = inventory.tensor_count;
        head.host_state_bytes = 128;
        head.slab_count = 1;
        head.n_slab_bytes = 1;
        head.slab_bytes = &slab_bytes;
        head.texts = s->content.head->texts;
        head.n_texts = s->content.head->n_texts;
        inventory.kind = FILE_INVENTORY;
        inventory.inventory = &head;
        sample_write_content(made_fd, "inventory", &inventory);
}

static int make(void **state) {
        struct sample s;

        made_fd = test_folder(made_path, sizeof made_path);
        sample_store_marker(made_fd);
        assert_int_equal(mkdirat(made_fd, RUN, 0755), 0);
        _cleanup_close_ int run_fd = openat(made_fd, RUN, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        sample_claim(run_fd, RUN, 1, 1);
        sample_start(run_fd, 1, NULL);
        assert_int_equal(mkdirat(run_fd, CHECKPOINT, 0755), 0);
        _cleanup_close_ int fd = openat(run_fd, CHECKPOINT, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        sample_init(&s, RUN, 0, 1, 1, 42, 3);
        add_tensors(&s);
        add_descriptions(&s);
        write_inventory(&s);
        sample_finish(&s);
        sample_publish(&s, fd);
        sample_commit(fd, &s, (struct file_content *[]){&s.content}, NULL);
        sample_done(&s);
        sample_mark(run_fd, "FINISHED", FILE_MARK_FINISHED, "completed", 42, 1);
        sample_mark(run_fd, "PIN-" CHECKPOINT, FILE_MARK_PIN, "", 42, 1);
        sample_mark(run_fd, "TAG-" CHECKPOINT, FILE_MARK_TAG, "best", 42, 1);
        if (getenv("UPDATE_GOLDEN"))
                sample_copy(made_path, GOLDEN);
        return 0;
}

static int forget(void **state) {
        return close(made_fd);
}

/* ---- comparing and reading ---- */

static void test_same_bytes(void **state) {
        golden_fd = open(GOLDEN, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        assert_true(golden_fd >= 0);
        for (size_t i = 0; i < FILE_COUNT; i++) {
                _cleanup_free_ void *made = NULL, *golden = NULL;
                size_t made_bytes, golden_bytes;
                assert_int_equal(io_read_file(&io_system, made_fd, files[i], 1 << 20, &made,
                                              &made_bytes, NULL),
                                 0);
                if (io_read_file(&io_system, golden_fd, files[i], 1 << 20, &golden, &golden_bytes,
                                 NULL) < 0)
                        fail_msg("%s is missing", files[i]);
                if (made_bytes != golden_bytes || memcmp(made, golden, made_bytes) != 0)
                        fail_msg("%s has changed: a format change needs a new version", files[i]);
        }
        (void) close(golden_fd);
}

static const Tensor *tensor_of(const struct file_content *index, const char *name) {
        ptrdiff_t at = layout_find(index, name, strlen(name));
        if (at < 0)
                fail_msg("%s is missing", name);
        return index->tensors[at];
}

static void check_index(const struct file_content *index, const struct file_content *commit) {
        assert_int_equal(index->tensor_count, 27);
        for (uint32_t dtype = CAIRN_F64; dtype <= CAIRN_C128; dtype++) {
                const Tensor *t = tensor_of(index, dtype_info(dtype)->name);
                assert_int_equal(t->runtime_dtype, dtype);
                assert_int_equal(t->stored_dtype, dtype);
                assert_int_equal(t->n_shape, 2);
                assert_int_equal(t->shape[0] * t->shape[1], 6);
                assert_int_equal(t->extents[0]->bytes, 6 * dtype_info(dtype)->bytes);
        }
        /* The first tensor of the registration begins behind the header. */
        assert_int_equal(tensor_of(index, "f64")->extents[0]->offset, 4096);
        assert_int_equal(tensor_of(index, "f32")->extents[0]->offset, 4096 + 256);
        assert_int_equal(tensor_of(index, "empty")->n_shape, 3);
        assert_int_equal(tensor_of(index, "empty")->n_extents, 0);
        assert_int_equal(tensor_of(index, "scalar")->n_shape, 0);
        assert_int_equal(tensor_of(index, "scalar")->extents[0]->bytes, 4);
        assert_int_equal(tensor_of(index, "lm_head")->n_extents, 0);
        assert_memory_equal(tensor_of(index, "lm_head")->alias_of.data, "wte", 3);
        assert_true(tensor_of(index, "adam.step")->true_step == 16777217);
        assert_int_equal(tensor_of(index, "ema.wte")->stored_dtype, CAIRN_BF16);
        assert_int_equal(tensor_of(index, "ema.wte")->extents[0]->bytes, 64);
        assert_true(tensor_of(index, "ema.wte")->encoding->error_abs_max == 0x1p-9);
        assert_true(tensor_of(index, "m.wte")->extents[0]->shard->flat);
        assert_int_equal(tensor_of(index, "v.wte")->extents[0]->shard->extents[0], 8);
        assert_int_equal(tensor_of(index, "amax \xe2\x82\xac")->mutates, CAIRN_ANYTIME);
        assert_int_equal(index->head->step, 42);
        assert_int_equal(index->head->ending->code, SIGKILL);
        assert_false(index->head->ending->suspect);
        assert_memory_equal(index->head->texts[0]->value.data, "12", 2);
        const Cairn__Format__State *st = index->states[0];
        assert_int_equal(st->n_values, 4);
        assert_true(st->values[0]->i64 == -7 && st->values[1]->u64 == 3 &&
                    st->values[2]->f64 == 2.5);
        assert_memory_equal(st->values[3]->bytes_value.data, "stream", 6);
        assert_int_equal(commit->commit->n_files, 1);
        assert_int_equal(commit->head->attempt, 3);
}

static void test_reading(void **state) {
        int store_fd, run_fd;
        struct arena arena;
        struct file_content index, commit;
        struct run_scan scan;
        struct cairn_error e = CAIRN_ERROR_INIT;
        float step;

        assert_int_equal(store_open(&io_system, GOLDEN, &store_fd, NULL), 0);
        assert_int_equal(run_open(&io_system, store_fd, RUN, &run_fd, NULL), 0);
        if (checkpoint_check(&io_system, run_fd, CHECKPOINT, RUN, true, NULL, &e) < 0)
                fail_msg("%s %s: %s", e.operation, e.object, e.message);
        arena_init(&arena, 64 * MiB);
        assert_int_equal(
                checkpoint_load(&io_system, run_fd, CHECKPOINT, &arena, &index, &commit, NULL), 0);
        check_index(&index, &commit);
        _cleanup_close_ int data =
                openat(run_fd, CHECKPOINT "/rank-00000.data", O_RDONLY | O_CLOEXEC);
        assert_int_equal(
                pread(data, &step, 4, (off_t) tensor_of(&index, "adam.step")->extents[0]->offset),
                4);
        assert_true(step == 16777216.0f);
        uint8_t byte;
        assert_int_equal(pread(data, &byte, 1, 4096 + 1), 1);
        assert_int_equal(byte, (37 + 3 * 11) & 0xff);
        arena_done(&arena);
        assert_int_equal(run_scan(&io_system, run_fd, RUN, true, &scan, NULL), 0);
        assert_int_equal(scan.checkpoint_count, 1);
        assert_int_equal(scan.checkpoints[0].validity, CHECKPOINT_VALID);
        assert_true(scan.checkpoints[0].pinned && scan.finished);
        assert_string_equal(scan_newest(&scan, 0)->name, CHECKPOINT);
        run_scan_done(&scan);
        (void) close(run_fd);
        (void) close(store_fd);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_same_bytes),
                cmocka_unit_test(test_reading),
        };
        return cmocka_run_group_tests(tests, make, forget);
}
