/* SPDX-License-Identifier: Apache-2.0
 *
 * Is the declared state complete? Whatever was declared at a step is copied into a second training,
 * which then must give the same losses and the same state, bit for bit, as the one that went on.
 */
#include "tests/unit/small_train.h"

enum { STEPS_MAX = 256 };

static const char everything[] =
        "--accumulate 2 --dropout 0.2 --ema 0.99 --loss-scale dynamic --loss-scale-growth 7 "
        "--overflow-step 21 --batchnorm-demo --eval-every 10 --eval-batches 2";

static void run(struct train *t, int64_t last, float losses[STEPS_MAX]) {
        while (t->step < last) {
                if (t->step > 0 && t->settings.eval_every > 0 &&
                    t->step % t->settings.eval_every == 0)
                        assert_int_equal(train_evaluate(t, NULL), 0);
                losses[t->step + 1] = small_step(t);
        }
}

/* Trains to `last`, with the cut at `at` on the way. */
static void reference(const char *options, int64_t at, int64_t last, float losses[STEPS_MAX],
                      struct fake_cut *ret_cut, struct fake_cut *ret_end) {
        struct train t;

        small_start(&t, options);
        run(&t, at, losses);
        fake_take(t.checkpoint.cairn, ret_cut);
        run(&t, last, losses);
        fake_take(t.checkpoint.cairn, ret_end);
        assert_true(t.checkpoint.cairn->misuse == 0);
        train_done(&t);
}

/* `without`: an entry that is not restored, -1 for none. Wall-clock time is the one value that may
 * differ. Returns whether everything was equal. */
static bool continues_equally(const char *options, const struct fake_cut *cut, int64_t last,
                              const float wanted[STEPS_MAX], const struct fake_cut *end,
                              int without, char ret_name[96]) {
        float losses[STEPS_MAX] = {0};
        struct fake_cut our_end = {.count = 0}, part = *cut;
        struct train t;

        small_start(&t, options);
        struct cairn *c = t.checkpoint.cairn;
        if (without >= 0) {
                (void) snprintf(ret_name, 96, "%s", c->entry[without].name);
                part.bytes[without] = malloc(c->entry[without].bytes + 1);
                memcpy(part.bytes[without], c->entry[without].data, c->entry[without].bytes);
        }
        small_resume(&t, &part);
        run(&t, last, losses);
        fake_take(c, &our_end);
        bool equal = !memcmp(losses + cut->step + 1, wanted + cut->step + 1,
                             (size_t) (last - cut->step) * sizeof(float));
        for (size_t i = 0; i < c->count; i++)
                if (strcmp(c->entry[i].name, "time.seconds") != 0)
                        equal = equal && our_end.bytes[i] && end->bytes[i] &&
                                !memcmp(our_end.bytes[i], end->bytes[i], c->entry[i].bytes);
        if (without >= 0)
                free(part.bytes[without]);
        fake_cut_done(&our_end);
        train_done(&t);
        return equal;
}

static void check_resume(const char *options, int64_t at, int64_t last) {
        float losses[STEPS_MAX] = {0};
        struct fake_cut cut = {.count = 0}, end = cut;
        char name[96];

        reference(options, at, last, losses, &cut, &end);
        assert_true(losses[last] < losses[1]); /* it learns */
        assert_true(continues_equally(options, &cut, last, losses, &end, -1, name));
        fake_cut_done(&cut);
        fake_cut_done(&end);
}

static void test_resume_fp32(void **state) {
        check_resume("", 40, 90);
        check_resume(everything, 0, 50); /* before the first step */
        check_resume(everything, 20,
                     70); /* in the warm-up, before the overflow, at an evaluation */
        check_resume(everything, 21, 71); /* right after the overflow */
        check_resume(everything, 29, 79); /* at the end of the warm-up */
}

static void test_resume_bf16(void **state) {
        char options[512];

        (void) snprintf(options, sizeof(options), "--dtype bf16 %s", everything);
        check_resume("--dtype bf16", 40, 90);
        check_resume(options, 13, 63);
        check_resume(options, 21, 71);
}

static void test_resume_fp16(void **state) {
        check_resume("--dtype fp16", 40, 90);
        check_resume("--dtype fp16 --loss-scale-growth 7 --overflow-step 21 --ema 0.99", 21, 71);
}

/* The end of an epoch, with an order of samples that changes in each. */
static void test_resume_over_epochs(void **state) {
        check_resume("--batch 64 --lr 0.01 --warmup 2", 8, 30);
}

/* Where memory was short the run goes on with smaller micro-batches, and so does a resume: another
 * split has other last bits. */
static void test_resume_after_memory_was_short(void **state) {
        check_resume("--batch 6 --dropout 0.1 --oom-step 5", 20, 70);
}

/* The tests above have teeth: each entry is missed when it is left out, but for those that only
 * report, and those that happen to be what a fresh start has (test_train stops early by the wait).
 */
static void test_each_entry_matters(void **state) {
        static const char *const without_effect[] = {
                "data.epoch",      "accumulation.phase", "data.seed",
                "dropout.seed",    "time.seconds",       "updates.nonfinite_run",
                "early_stop.wait", "batch.full",         "batch.micro"};
        float losses[STEPS_MAX] = {0};
        struct fake_cut cut = {.count = 0}, end = cut;
        char name[96];
        size_t count;
        struct train t;

        reference(everything, 22, 29, losses, &cut, &end);
        small_start(&t, everything);
        count = t.checkpoint.cairn->count;
        train_done(&t);
        for (size_t i = 0; i < count; i++) {
                bool equal = continues_equally(everything, &cut, 29, losses, &end, (int) i, name);
                for (size_t k = 0; k < sizeof(without_effect) / sizeof(without_effect[0]); k++)
                        if (!strcmp(name, without_effect[k]))
                                equal = false;
                if (equal)
                        print_error("%s was not restored, and nobody noticed\n", name);
                assert_false(equal);
        }
        fake_cut_done(&cut);
        fake_cut_done(&end);
}

/* What libcairn will be told: roles and types follow its rules. */
static void test_declaration(void **state) {
        size_t counts[16] = {0};
        struct train t;
        char options[512];

        (void) snprintf(options, sizeof(options), "--dtype bf16 %s", everything);
        small_start(&t, options);
        const struct cairn *c = t.checkpoint.cairn;
        size_t tensors = t.model.tensor_count;
        for (size_t i = 0; i < c->count; i++) {
                counts[c->entry[i].role]++;
                if (c->entry[i].role == CAIRN_BUFFER)
                        assert_int_equal(c->entry[i].mutates, CAIRN_ANYTIME);
        }
        assert_true(counts[CAIRN_PARAMETER] == tensors && counts[CAIRN_MASTER] == tensors);
        assert_true(counts[CAIRN_MOMENT1] == tensors && counts[CAIRN_MOMENT2] == tensors);
        assert_true(counts[CAIRN_EMA] == tensors && counts[CAIRN_STEP] == tensors);
        assert_true(counts[CAIRN_BUFFER] == 1 && counts[0] == 16);
        train_done(&t);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_resume_fp32),
                cmocka_unit_test(test_resume_bf16),
                cmocka_unit_test(test_resume_fp16),
                cmocka_unit_test(test_resume_over_epochs),
                cmocka_unit_test(test_resume_after_memory_was_short),
                cmocka_unit_test(test_each_entry_matters),
                cmocka_unit_test(test_declaration),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
