/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "format/crc32c.h"
#include "tests/unit/small_session.h"

#define STEP 7

static struct fake_agent agent;
static struct small_session before, now;

static int set_up(void **state) {
        fake_agent_init(&agent);
        fake_agent_start(&agent);
        small_init(&before);
        small_init(&now);
        return 0;
}
static int tear_down(void **state) {
        cairn_close(now.c);
        now.c = NULL;
        fake_agent_done(&agent);
        return 0;
}

/* The second session: everything declared, other values in it. Returns what cairn_restore said. */
static int resume(struct cairn_report *report) {
        assert_int_equal(small_open(&now, &agent), 0);
        small_declare(&now);
        small_fill(&now, 99);
        now.truth = 5;
        assert_int_equal(cairn_seal(now.c), 0);
        return cairn_restore(now.c, report);
}

/* RestoreDone is a message that nobody answers: it arrives a little later. */
static int restore_done_status(void) {
        for (int i = 0; i < 3000; i++) {
                fake_agent_lock(&agent);
                int count = agent.restore_done_count, status = agent.restore_done_status;
                fake_agent_unlock(&agent);
                if (count > 0)
                        return status;
                clock_system.sleep_ns(clock_system.context, 20 * NSEC_PER_MSEC);
        }
        return CAIRN_ERR_TIMEOUT;
}

#define REPORT \
        { .size = sizeof(struct cairn_report) }

static void expect_step_state(const struct small_session *s, int64_t step) {
        int salt = (int) step + 1;
        for (int i = 0; i < 12; i++) {
                assert_true(s->w[i] == (float) (salt * 100 + i));
                assert_true(s->m[i] == (float) (salt * 100 + i) / 7);
                assert_true(s->v[i] == (float) (salt * 100 + i) / 11);
        }
        for (int i = 0; i < 5; i++)
                assert_int_equal(s->half[i], salt * 17 + i);
        for (int i = 0; i < 4; i++)
                assert_true(s->stat[i] == (float) (salt + i));
        assert_int_equal(s->truth, step);
        assert_true(*s->step == (float) step);
        assert_int_equal(s->samples, salt * 1000);
        assert_int_equal(s->seed, (uint64_t) salt << 40);
        assert_true(s->best == salt / 3.0);
        assert_int_equal(s->rng_bytes, salt % 16);
        for (uint64_t i = 0; i < s->rng_bytes; i++)
                assert_int_equal(s->rng[i], salt);
}

static void every_bit_comes_back(void **state) {
        struct cairn_report report = REPORT;
        small_make_checkpoint(&before, &agent, STEP);
        assert_int_equal(resume(&report), 0);
        expect_step_state(&now, STEP);
        assert_int_equal(report.start, CAIRN_START_RESUME);
        assert_int_equal(report.step, STEP);
        assert_int_equal(report.tensors_loaded, 6);
        assert_int_equal(report.tensors_skipped, 0);
        assert_true(report.bit_exact_possible);
        assert_non_null(
                strstr(report.text, "resume, step 7, checkpoint 000000000007-g0001, restart 0"));
        assert_non_null(strstr(report.text, ", bit-exact"));
        assert_non_null(strstr(report.json, "\"bit_exact\":true"));
        /* It goes on, and the next cut is the old one's successor. */
        small_update(&now, STEP + 1);
        assert_int_equal(cut_read(agent.page).seq, 2);
        assert_int_equal(restore_done_status(), 0);
}

/* save -> load -> save: the images are the same bytes. */
static void resume_22_uncompressed_is_lossless(void **state) {
        small_make_checkpoint(&before, &agent, STEP);
        uint64_t bytes = agent.image.data_bytes;
        unsigned char *first = malloc(bytes);
        memcpy(first, agent.image.data, bytes);
        assert_int_equal(resume(NULL), 0);
        assert_int_equal(fake_agent_take(&agent, true), 0);
        assert_int_equal(agent.image.data_bytes, bytes);
        assert_memory_equal(agent.image.data, first, bytes);
        free(first);
}

static void resume_24_permuted_registration(void **state) {
        small_make_checkpoint(&before, &agent, STEP);
        now.reversed = true;
        assert_int_equal(resume(NULL), 0);
        expect_step_state(&now, STEP);
}

static void expect_untouched(int expected_problems) {
        char count[32];
        uint32_t digest = small_digest(&now);
        struct cairn_report report = REPORT;
        assert_int_equal(cairn_seal(now.c), 0);
        assert_int_equal(cairn_restore(now.c, &report), CAIRN_ERR_MISMATCH);
        assert_int_equal(small_digest(&now), digest);
        assert_int_equal(cairn_exit_code(now.c), 78);
        (void) snprintf(count, sizeof count, "%d difference%s between", expected_problems,
                        expected_problems == 1 ? "" : "s");
        if (!strstr(cairn_error_text(now.c), count))
                print_error("%s\n", cairn_error_text(now.c));
        assert_non_null(strstr(cairn_error_text(now.c), count));
        /* Nothing was published: there is no cut of a state that is none. */
        assert_int_equal(cut_read(agent.page).phase, CUT_UPDATING);
        assert_int_equal(cut_read(agent.page).seq, 0);
}

static void prepare(void) {
        small_make_checkpoint(&before, &agent, STEP);
        assert_int_equal(small_open(&now, &agent), 0);
}

static void fill_now(void) {
        small_declare(&now);
        small_fill(&now, 99);
}

static void resume_24_validate_before_touch(void **state) {
        prepare();
        now.wide_w = true; /* w and m have the wrong shape */
        now.half_dtype = CAIRN_F32;
        now.w_role = CAIRN_MASTER;
        now.without_best = now.with_extra_value = now.with_extra_tensor = now.without_v = true;
        now.layers = "24";
        fill_now();
        expect_untouched(9);
        const char *text = cairn_error_text(now.c);
        assert_non_null(
                strstr(text, "tensor w: the checkpoint has shape [4, 3], the trainer [4, 4]"));
        assert_non_null(
                strstr(text, "tensor m: the checkpoint has shape [4, 3], the trainer [4, 4]"));
        assert_non_null(
                strstr(text, "tensor w: the checkpoint has role parameter, the trainer master"));
        assert_non_null(
                strstr(text, "tensor half: the checkpoint has bf16, the trainer expects f32"));
        assert_non_null(strstr(text, "tensor extra: the trainer registered it"));
        assert_non_null(strstr(text, "tensor v: the checkpoint has it"));
        assert_non_null(strstr(text, "state value best: the checkpoint has it (f64)"));
        assert_non_null(strstr(text, "state value extra_value: the trainer registered it"));
        /* Shapes and names differ as well: no --override brings them in line. */
        assert_non_null(strstr(text, "config.layers: 12 in the checkpoint, 24 now (go on with the "
                                     "checkpoint's, or start anew from its weights with "
                                     "--init-from)"));
        assert_null(strstr(text, "--override"));
        assert_int_equal(restore_done_status(), CAIRN_ERR_MISMATCH);
        assert_int_equal(agent.restores, 0);
        assert_int_equal(cairn_update_begin(now.c), CAIRN_ERR_API);
}

static void resume_19_dtype_errors_at_load(void **state) {
        prepare();
        now.half_dtype = CAIRN_F16;
        fill_now();
        expect_untouched(1);
        assert_non_null(strstr(cairn_error_text(now.c),
                               "tensor half: the checkpoint has bf16, the trainer expects f16"));
}

static void resume_6_identity_suggests_init_from(void **state) {
        prepare();
        now.layers = "80";
        fill_now();
        expect_untouched(1);
        assert_non_null(strstr(cairn_error_text(now.c), "(allow it with --override, or start anew "
                                                        "from its weights with --init-from)"));
}

static void resume_10_overrides_are_named(void **state) {
        struct cairn_report report = REPORT;
        small_make_checkpoint(&before, &agent, STEP);
        agent.override_key = "config.layers";
        agent.override_value = "24";
        now.layers = "24";
        assert_int_equal(resume(&report), 0);
        assert_string_equal(cairn_override(now.c, "config.layers"), "24");
        assert_null(cairn_override(now.c, "config.width"));
        assert_non_null(strstr(report.text, "config.layers 12 -> 24 (overridden)"));
        assert_false(report.bit_exact_possible);
}

/* What nobody knows would change nothing: it is refused, with what was meant. */
static void unknown_overrides_are_refused(void **state) {
        static const struct {
                const char *key, *says;
        } wrong[] = {{"config.layer", "did you mean config.layers"},
                     {"layers", "did you mean config.layers"},
                     {"colour", "has no setting colour; it has config.layers; "},
                     {"step/nobody", "has no setting step/nobody; it has config.layers; "}};
        struct cairn_report report = REPORT;
        small_make_checkpoint(&before, &agent, STEP);
        agent.override_value = "24";
        for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
                agent.override_key = wrong[i].key;
                assert_int_equal(resume(&report), CAIRN_ERR_API);
                assert_non_null(strstr(cairn_error_text(now.c), wrong[i].says));
                cairn_close(now.c);
        }
        agent.override_key = "colour"; /* not described, but this trainer asks for it */
        assert_int_equal(small_open(&now, &agent), 0);
        assert_string_equal(cairn_override(now.c, "colour"), "24");
        fill_now();
        assert_int_equal(cairn_seal(now.c), 0);
        assert_int_equal(cairn_restore(now.c, &report), 0);
}

static void resume_9_free_values_are_logged(void **state) {
        struct cairn_report report = REPORT;
        char eight[] = "8";
        small_make_checkpoint(&before, &agent, STEP);
        now.workers = eight;
        assert_int_equal(resume(&report), 0);
        assert_non_null(strstr(report.text, "free.workers 4 -> 8"));
        assert_true(report.bit_exact_possible);
}

static void other_numerics_are_not_bit_exact(void **state) {
        struct cairn_report report = REPORT;
        small_make_checkpoint(&before, &agent, STEP);
        now.blas = "other";
        assert_int_equal(resume(&report), 0);
        assert_false(report.bit_exact_possible);
        assert_non_null(strstr(report.text, "not bit-exact: numerics.blas one -> other"));
}

/* B07: every tensor comes back with the type it had, whatever the parameters' type is. */
static void resume_15_b07_mixed_dtypes(void **state) {
        struct cairn_stored stored = {.size = sizeof stored};
        uint64_t count;
        small_make_checkpoint(&before, &agent, STEP);
        assert_int_equal(small_open(&now, &agent), 0);
        assert_int_equal(cairn_stored_count(now.c, &count), 0);
        assert_int_equal(count, 6);
        const enum cairn_dtype expected[] = {CAIRN_BF16, CAIRN_F32, CAIRN_F32,
                                             CAIRN_F32,  CAIRN_F32, CAIRN_F32};
        const char *const names[] = {"half", "m", "stat", "step", "v", "w"};
        for (uint64_t i = 0; i < count; i++) {
                assert_int_equal(cairn_stored_tensor(now.c, i, &stored), 0);
                assert_string_equal(stored.name, names[i]);
                assert_int_equal(stored.dtype, expected[i]);
                assert_int_equal(stored.stored_dtype, expected[i]);
        }
        assert_int_equal(stored.rank, 2);
        assert_int_equal(stored.shape[1], 3);
        assert_string_equal(cairn_stored_description(now.c, "config.layers"), "12");
        assert_null(cairn_stored_description(now.c, "config.width"));
        assert_int_equal(cairn_stored_tensor(now.c, count, &stored), CAIRN_ERR_API);
        small_declare(&now);
        assert_int_equal(cairn_seal(now.c), 0);
        assert_int_equal(cairn_restore(now.c, NULL), 0);
        expect_step_state(&now, STEP);
}

static void named_conversion_is_applied(void **state) {
        struct cairn_report report = REPORT;
        small_make_checkpoint(&before, &agent, STEP);
        agent.conversion_key = "ha*";
        agent.conversion_value = "f32";
        now.half_dtype = CAIRN_F32;
        assert_int_equal(resume(&report), 0);
        assert_int_equal(report.tensors_converted, 1);
        assert_false(report.bit_exact_possible);
        assert_non_null(strstr(report.text, "half bf16 -> f32"));
        for (int i = 0; i < 5; i++) {
                uint32_t bits;
                memcpy(&bits, (char *) now.half + 4 * i, 4);
                assert_int_equal(bits, (uint32_t) ((STEP + 1) * 17 + i) << 16);
        }
}

static void conversion_to_another_dtype_is_refused(void **state) {
        prepare();
        cairn_close(now.c);
        fake_agent_forget(&agent);
        agent.conversion_key = "*";
        agent.conversion_value = "f64";
        assert_int_equal(small_open(&now, &agent), 0);
        now.half_dtype = CAIRN_F32;
        fill_now();
        expect_untouched(1);
        assert_non_null(strstr(cairn_error_text(now.c), "--convert asks for f64"));
}

/* Found before anything is touched, and not proposed. */
static void conversion_that_there_is_not(void **state) {
        prepare();
        cairn_close(now.c);
        for (int asked = 0; asked < 2; asked++) {
                fake_agent_forget(&agent);
                agent.conversion_key = asked ? "half" : NULL;
                agent.conversion_value = asked ? "bool" : NULL;
                assert_int_equal(small_open(&now, &agent), 0);
                now.half_dtype = CAIRN_BOOL;
                now.layers = "24";
                fill_now();
                expect_untouched(2);
                const char *text = cairn_error_text(now.c);
                assert_non_null(strstr(text, "tensor half: the checkpoint has bf16, the trainer "
                                             "expects bool; there is no conversion\n"));
                assert_null(strstr(text, "--convert"));
                assert_null(strstr(text, "--override"));
                cairn_close(now.c);
        }
        now.c = NULL;
}

/* What --convert takes away leaves the way of --override open. */
static void convertible_and_described_otherwise(void **state) {
        prepare();
        now.half_dtype = CAIRN_F32;
        now.layers = "24";
        fill_now();
        expect_untouched(2);
        const char *text = cairn_error_text(now.c);
        assert_non_null(strstr(text, "(allow it with --convert 'NAME=f32')"));
        assert_non_null(strstr(text, "24 now (allow it with --override, or"));
}

static void damaged_image_touches_nothing(void **state) {
        prepare();
        agent.corrupt_image = true;
        fill_now();
        uint32_t digest = small_digest(&now);
        assert_int_equal(cairn_seal(now.c), 0);
        assert_int_equal(cairn_restore(now.c, NULL), CAIRN_ERR_CORRUPT);
        assert_int_equal(small_digest(&now), digest);
        assert_int_equal(cut_read(agent.page).phase, CUT_UPDATING);
}

/* ---- steps ---- */

static void set_truth(int64_t truth) {
        small_begin(&before, &agent);
        assert_int_equal(cairn_update_begin(before.c), 0);
        before.truth = truth;
        assert_int_equal(cairn_update_end(before.c, 1), 0);
        assert_int_equal(fake_agent_take(&agent, true), 0);
        cairn_close(before.c);
        fake_agent_forget(&agent);
        agent.mode = CAIRN_START_RESUME;
}

static void resume_16_steps_are_exact(void **state) {
        const int64_t truths[] = {0,     2047,    2048,          2049,
                                  65505, 1 << 24, (1 << 24) + 1, INT64_C(1) << 40};
        for (size_t i = 0; i < sizeof truths / sizeof *truths; i++) {
                set_truth(truths[i]);
                assert_int_equal(resume(NULL), 0);
                assert_int_equal(now.truth, truths[i]);
                assert_true(*now.step == (float) truths[i]);
                cairn_close(now.c);
                now.c = NULL;
                fake_agent_forget(&agent);
                agent.mode = CAIRN_START_FRESH;
        }
}

/* A checkpoint of a program that kept its counter in another type. */
struct foreign {
        uint32_t dtype;
        unsigned char value[8];
};
static void make_foreign(struct file_content *index, unsigned char *data, void *argument) {
        const struct foreign *f = argument;
        for (size_t i = 0; i < index->tensor_count; i++) {
                Cairn__Format__Tensor *t = index->tensors[i];
                if (t->name.len != 4 || memcmp(t->name.data, "step", 4) != 0)
                        continue;
                uint32_t bytes = (uint32_t) cairn_dtype_bytes((enum cairn_dtype) f->dtype);
                t->role = CAIRN_OTHER;
                t->runtime_dtype = t->stored_dtype = f->dtype;
                t->extents[0]->bytes = bytes;
                memcpy(data + t->extents[0]->offset, f->value, bytes);
                t->extents[0]->crc32c = crc32c(0, f->value, bytes);
        }
        /* It had no int64 beside it. */
        Cairn__Format__State *s = index->states[0];
        for (size_t i = 0; i < s->n_values; i++)
                if (s->values[i]->name.len > 11 &&
                    memcmp(s->values[i]->name.data, "cairn.step/", 11) == 0)
                        s->values[i--] = s->values[--s->n_values];
}

static int resume_foreign(struct foreign *f) {
        agent.edit = make_foreign;
        agent.edit_argument = f;
        small_make_checkpoint(&before, &agent, STEP);
        return resume(NULL);
}

static void resume_17_fp16_step_up_to_2047(void **state) {
        struct foreign f = {.dtype = CAIRN_F16, .value = {0xff, 0x67}}; /* 2047 */
        assert_int_equal(resume_foreign(&f), 0);
        assert_int_equal(now.truth, 2047);
        assert_true(*now.step == 2047.0f);
}

static void resume_17_fp16_step_2048_is_refused(void **state) {
        struct foreign f = {.dtype = CAIRN_F16, .value = {0x00, 0x68}}; /* 2048 */
        agent.edit = make_foreign;
        agent.edit_argument = &f;
        prepare();
        fill_now();
        expect_untouched(1);
        assert_non_null(strstr(cairn_error_text(now.c), "--override step/step=N"));
}

static void resume_17_operator_supplies_the_step(void **state) {
        struct foreign f = {.dtype = CAIRN_F16, .value = {0x00, 0x68}};
        agent.override_key = "step/step";
        agent.override_value = "2049";
        assert_int_equal(resume_foreign(&f), 0);
        assert_int_equal(now.truth, 2049);
        assert_true(*now.step == 2049.0f);
}

static void resume_18_int64_step(void **state) {
        struct foreign f = {.dtype = CAIRN_I64};
        int64_t value = 1 << 24;
        memcpy(f.value, &value, 8);
        assert_int_equal(resume_foreign(&f), 0);
        assert_int_equal(now.truth, 1 << 24);
}

static void resume_18_int64_step_too_large(void **state) {
        struct foreign f = {.dtype = CAIRN_I64};
        int64_t value = (1 << 24) + 1;
        memcpy(f.value, &value, 8);
        assert_int_equal(resume_foreign(&f), CAIRN_ERR_MISMATCH);
        assert_int_equal(now.truth, 5);
}

/* ---- init-from ---- */

static void resume_2_init_from_skips_and_lists(void **state) {
        struct cairn_report report = REPORT;
        small_make_checkpoint(&before, &agent, STEP);
        agent.mode = CAIRN_START_INIT_FROM;
        now.wide_w = true;
        now.layers = "24";
        assert_int_equal(resume(&report), 0);
        assert_int_equal(report.step, 0);
        assert_int_equal(report.tensors_loaded, 2); /* half, stat */
        assert_int_equal(report.tensors_skipped, 1);
        assert_non_null(strstr(report.text,
                               "tensor w: the checkpoint has shape [4, 3], the trainer [4, 4]"));
        assert_int_equal(now.half[0], (STEP + 1) * 17);
        assert_true(now.stat[1] == (float) (STEP + 1 + 1));
        /* Fresh: optimizer, counters, values. */
        assert_true(now.w[0] == 9900.0f);
        assert_true(now.m[0] == 9900.0f / 7);
        assert_int_equal(now.samples, 99000);
        assert_int_equal(now.truth, 5);
}

static void init_from_skips_other_dtypes(void **state) {
        struct cairn_report report = REPORT;
        small_make_checkpoint(&before, &agent, STEP);
        agent.mode = CAIRN_START_INIT_FROM;
        now.half_dtype = CAIRN_F32;
        assert_int_equal(resume(&report), 0);
        assert_int_equal(report.tensors_loaded, 2); /* w, stat */
        assert_int_equal(report.tensors_skipped, 1);
        assert_non_null(strstr(report.json, "tensor half: the checkpoint has bf16"));
}

static void fresh_keeps_the_trainers_values(void **state) {
        struct cairn_report report = REPORT;
        uint64_t count = 5;
        assert_int_equal(small_open(&now, &agent), 0);
        assert_int_equal(cairn_stored_count(now.c, &count), 0);
        assert_int_equal(count, 0);
        fill_now();
        now.truth = 0;
        uint32_t digest = small_digest(&now);
        assert_int_equal(cairn_restore(now.c, &report), CAIRN_ERR_API); /* not sealed yet */
        assert_int_equal(cairn_seal(now.c), 0);
        assert_int_equal(cairn_restore(now.c, &report), 0);
        assert_int_equal(small_digest(&now), digest);
        assert_int_equal(report.step, 0);
        assert_int_equal(report.start, CAIRN_START_FRESH);
        assert_non_null(strstr(report.text, "start fresh, step 0, restart 0"));
        assert_int_equal(cut_read(agent.page).seq, 1);
        assert_int_equal(cut_read(agent.page).phase, CUT_STABLE);
        assert_int_equal(cairn_restore(now.c, &report), CAIRN_ERR_API);
}

/* B09: shapes without elements, without dimensions, first, in the middle and last. */
static void b09_empty_and_tiny_tensors(void **state) {
        static const struct {
                const char *name;
                uint32_t rank;
                uint64_t shape[3];
                uint64_t count;
        } rows[] = {{"a", 1, {0}, 0}, {"b", 0, {0}, 1},    {"c", 3, {4, 0, 3}, 0},
                    {"d", 1, {1}, 1}, {"e", 2, {1, 1}, 1}, {"f", 2, {0, 0}, 0}};
        for (uint32_t dtype = CAIRN_F64; dtype <= CAIRN_C128; dtype++)
                for (int pass = 0; pass < 2; pass++) {
                        void *data[6];
                        size_t bytes = cairn_dtype_bytes((enum cairn_dtype) dtype);
                        agent.mode = pass == 0 ? CAIRN_START_FRESH : CAIRN_START_RESUME;
                        assert_int_equal(small_open(&now, &agent), 0);
                        for (int i = 0; i < 6; i++) {
                                assert_int_equal(cairn_alloc(now.c, bytes, &data[i]), 0);
                                struct cairn_tensor t = {CAIRN_TENSOR_INIT,
                                                         .name = rows[i].name,
                                                         .role = CAIRN_OTHER,
                                                         .dtype = (enum cairn_dtype) dtype,
                                                         .rank = rows[i].rank,
                                                         .data = rows[i].count ? data[i] : NULL};
                                memcpy(t.shape, rows[i].shape, sizeof rows[i].shape);
                                assert_int_equal(cairn_register(now.c, &t), 0);
                                memset(data[i], pass == 0 ? 1 : 0, bytes);
                        }
                        assert_int_equal(cairn_seal(now.c), 0);
                        assert_int_equal(cairn_restore(now.c, NULL), 0);
                        for (int i = 0; i < 6; i++)
                                for (size_t k = 0; k < bytes; k++)
                                        assert_int_equal(((char *) data[i])[k],
                                                         rows[i].count || pass == 0 ? 1 : 0);
                        if (pass == 0)
                                assert_int_equal(fake_agent_take(&agent, true), 0);
                        cairn_close(now.c);
                        now.c = NULL;
                        fake_agent_forget(&agent);
                }
}

static void only_empty_tensors(void **state) {
        for (int pass = 0; pass < 2; pass++) {
                struct cairn_tensor t = {CAIRN_TENSOR_INIT, .name = "nothing",
                                         .role = CAIRN_PARAMETER, .dtype = CAIRN_F32, .rank = 1};
                agent.mode = pass == 0 ? CAIRN_START_FRESH : CAIRN_START_RESUME;
                assert_int_equal(small_open(&now, &agent), 0);
                assert_int_equal(cairn_register(now.c, &t), 0);
                assert_int_equal(cairn_seal(now.c), 0);
                assert_int_equal(cairn_restore(now.c, NULL), 0);
                if (pass == 0)
                        assert_int_equal(fake_agent_take(&agent, true), 0);
                cairn_close(now.c);
                now.c = NULL;
                fake_agent_forget(&agent);
        }
}

/* The agent dies in the middle: the request is made again to its successor. */
static void restore_survives_the_agent(void **state) {
        prepare();
        fill_now();
        assert_int_equal(cairn_seal(now.c), 0);
        fake_agent_stop(&agent);
        fake_agent_start(&agent);
        assert_int_equal(cairn_restore(now.c, NULL), 0);
        expect_step_state(&now, STEP);
        fake_agent_lock(&agent);
        assert_int_equal(agent.reattached, 1);
        assert_true(agent.page_handed_back);
        fake_agent_unlock(&agent);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void) {
        const struct CMUnitTest tests[] = {
                TEST(every_bit_comes_back),
                TEST(resume_22_uncompressed_is_lossless),
                TEST(resume_24_permuted_registration),
                TEST(resume_24_validate_before_touch),
                TEST(resume_19_dtype_errors_at_load),
                TEST(resume_6_identity_suggests_init_from),
                TEST(resume_10_overrides_are_named),
                TEST(unknown_overrides_are_refused),
                TEST(resume_9_free_values_are_logged),
                TEST(other_numerics_are_not_bit_exact),
                TEST(resume_15_b07_mixed_dtypes),
                TEST(named_conversion_is_applied),
                TEST(conversion_to_another_dtype_is_refused),
                TEST(conversion_that_there_is_not),
                TEST(convertible_and_described_otherwise),
                TEST(damaged_image_touches_nothing),
                TEST(resume_16_steps_are_exact),
                TEST(resume_17_fp16_step_up_to_2047),
                TEST(resume_17_fp16_step_2048_is_refused),
                TEST(resume_17_operator_supplies_the_step),
                TEST(resume_18_int64_step),
                TEST(resume_18_int64_step_too_large),
                TEST(resume_2_init_from_skips_and_lists),
                TEST(init_from_skips_other_dtypes),
                TEST(fresh_keeps_the_trainers_values),
                TEST(b09_empty_and_tiny_tensors),
                TEST(only_empty_tensors),
                TEST(restore_survives_the_agent),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
