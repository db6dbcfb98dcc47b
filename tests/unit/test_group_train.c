/* SPDX-License-Identifier: Apache-2.0
 *
 * Several ranks in one process, a thread each (fake_group.h): they find the same losses, decide the
 * same, and the parts of a shared optimizer state are the whole one's.
 */
#include "tests/unit/fake_group.h"
#include "tests/unit/small_train.h"
#include "trainer/ending.h"
#include "trainer/gradient.h"
#include <math.h>

enum { STEPS = 24, BLOCK_MAX = 1 << 16 };

/* What the ranks of one run found. */
struct outcome {
        const char *options;
        uint32_t world;
        int64_t steps;
        float losses[FAKE_WORLD_MAX][STEPS + 1], evaluations[FAKE_WORLD_MAX];
        /* the state at the end: of rank 0, or put together from the ranks' parts */
        size_t block_count;
        float parameters[BLOCK_MAX], moment1[BLOCK_MAX], moment2[BLOCK_MAX], ema[BLOCK_MAX];
        int64_t samples, truth;
};

static void take_part(float *whole, const float *part, const struct shard *s) {
        memcpy(whole + s->first, part, s->count * sizeof(*part));
}

static void train_rank(uint32_t rank, void *argument) {
        struct outcome *o = argument;
        struct train t;

        small_start(&t, o->options);
        const struct state *st = &t.state;
        CAIRN_ASSERT(st->shard.whole <= BLOCK_MAX);
        CAIRN_ASSERT(gradient_prepare(&t, NULL) == 0);
        while (t.step < o->steps)
                o->losses[rank][t.step + 1] = small_step(&t);
        CAIRN_ASSERT(train_evaluate(&t, NULL) == 0);
        o->evaluations[rank] = (float) st->best_loss;
        if (st->is_sharded || rank == 0) {
                take_part(o->moment1, st->moment1, &st->shard);
                take_part(o->moment2, st->moment2, &st->shard);
                if (st->has_ema)
                        take_part(o->ema, st->ema, &st->shard);
        }
        if (rank == 0) {
                memcpy(o->parameters, st->working, t.model.block_count * sizeof(float));
                o->block_count = t.model.block_count;
                o->samples = st->samples;
                o->truth = st->truths[0];
        }
        CAIRN_ASSERT(t.checkpoint.cairn->misuse == 0);
        train_done(&t);
}

static struct outcome *run(uint32_t world, const char *options) {
        struct outcome *o = calloc(1, sizeof(*o));

        *o = (struct outcome){.options = options, .world = world, .steps = STEPS};
        fake_group_run(world, train_rank, o);
        for (uint32_t i = 1; i < world; i++) {
                assert_memory_equal(o->losses[i], o->losses[0], sizeof(o->losses[0]));
                assert_true(o->evaluations[i] == o->evaluations[0]);
        }
        assert_true(o->losses[0][STEPS] < o->losses[0][1]); /* it learns */
        return o;
}

static void assert_same(const struct outcome *a, const struct outcome *b) {
        size_t bytes = a->block_count * sizeof(float);

        assert_memory_equal(a->losses[0], b->losses[0], sizeof(a->losses[0]));
        assert_true(a->evaluations[0] == b->evaluations[0]);
        assert_memory_equal(a->parameters, b->parameters, bytes);
        assert_memory_equal(a->moment1, b->moment1, bytes);
        assert_memory_equal(a->moment2, b->moment2, bytes);
        assert_memory_equal(a->ema, b->ema, bytes);
        assert_true(a->samples == b->samples && a->truth == b->truth);
}

/* Sharing the optimizer's state changes no bit, whatever the number of ranks. */
static void test_zero(void **state) {
        static const char *const options[] = {
                "--global-batch 12 --batch 1 --dropout 0.1 --ema 0.9 --warmup 4 --lr 0.01",
                "--global-batch 12 --batch 1 --dropout 0.1 --ema 0.9 --warmup 4 --lr 0.01 "
                "--dtype bf16 --loss-scale dynamic --loss-scale-growth 5 --overflow-step 9",
        };
        static const uint32_t worlds[] = {1, 2, 3, 4};

        for (size_t i = 0; i < 2; i++)
                for (size_t k = 0; k < 4; k++) {
                        char shared[256];
                        (void) snprintf(shared, sizeof(shared), "%s --zero 1", options[i]);
                        struct outcome *a = run(worlds[k], options[i]);
                        struct outcome *b = run(worlds[k], shared);
                        assert_same(a, b);
                        free(a);
                        free(b);
                }
}

/* The same samples in the same order, so nearly the same losses; and the same samples again. */
static void test_world_size(void **state) {
        static const char options[] = "--global-batch 12 --batch 3 --warmup 4 --lr 0.01";
        struct outcome *one = run(1, options), *again = run(1, options), *four = run(4, options);

        assert_same(one, again);
        for (int i = 1; i <= STEPS; i++)
                assert_true(fabsf(four->losses[0][i] - one->losses[0][i]) < 1e-3f);
        assert_true(four->samples == one->samples);
        assert_true(fabsf(four->evaluations[0] - one->evaluations[0]) < 1e-3f);
        free(one);
        free(again);
        free(four);
}

/* ---- which samples ---- */

static void learn_samples(uint32_t rank, void *argument) {
        struct train t;
        char options[5000];

        (void) snprintf(options, sizeof(options), "--global-batch 12 --batch 3 --sample-log %s",
                        (char *) argument);
        small_start(&t, options);
        CAIRN_ASSERT(sample_log_open(&t.sample_log, t.settings.sample_log, rank, NULL) == 0);
        while (t.step < 3)
                (void) small_step(&t);
        train_done(&t);
}

static void test_order_of_samples(void **state) {
        char folder[4000], path[4200];
        uint64_t seen[2][36];

        (void) close(test_folder(folder, sizeof(folder)));
        for (uint32_t world = 1, i = 0; world <= 4; world += 3, i++) {
                (void) snprintf(path, sizeof(path), "%s/samples-%u", folder, world);
                fake_group_run(world, learn_samples, path);
                memset(seen[i], 0xff, sizeof(seen[i]));
                for (uint32_t rank = 0; rank < world; rank++) {
                        char name[4300];
                        unsigned long long position, sample;
                        (void) snprintf(name, sizeof(name), "%s.%u", path, rank);
                        FILE *in = fopen(name, "r");
                        assert_non_null(in);
                        for (int n = 0; n < 36 / (int) world; n++) {
                                assert_int_equal(fscanf(in, "%llu %llu\n", &position, &sample), 2);
                                assert_true(position < 36 && seen[i][position] == UINT64_MAX);
                                seen[i][position] = sample;
                        }
                        assert_int_equal(getc(in), EOF);
                        assert_int_equal(fclose(in), 0);
                }
        }
        assert_memory_equal(seen[0], seen[1], sizeof(seen[0]));
}

/* ---- memory is short ---- */

/* On one rank of three, in its sixth step: all take smaller micro-batches, the gradient is computed
 * anew, and the run is the one that had them from that step on. */
static void short_rank(uint32_t rank, void *argument) {
        struct outcome *o = argument;
        struct train t;

        small_start(&t, o->options);
        settings_rehearse_on(&t.settings, rank);
        t.progress.is_silent = true;
        while (t.step < STEPS) {
                if (!strstr(o->options, "oom") && t.step == 5)
                        CAIRN_ASSERT(batch_shrink(&t.batch) && t.batch.micro == 2);
                o->losses[rank][t.step + 1] = small_step(&t);
        }
        CAIRN_ASSERT(t.batch.micro == 2 && t.state.samples == 12 * STEPS);
        if (rank == 0) {
                memcpy(o->moment2, t.state.moment2, t.model.block_count * sizeof(float));
                o->block_count = t.model.block_count;
        }
        train_done(&t);
}

static void test_memory_is_short(void **state) {
        struct outcome *a = calloc(1, sizeof(*a)), *b = calloc(1, sizeof(*b));

        a->options = "--global-batch 12 --batch 4 --dropout 0.1 --oom-step 6 --rehearse-on 1";
        b->options = "--global-batch 12 --batch 4 --dropout 0.1";
        fake_group_run(3, short_rank, a);
        fake_group_run(3, short_rank, b);
        assert_memory_equal(a->losses, b->losses, sizeof(a->losses));
        assert_memory_equal(a->moment2, b->moment2, a->block_count * sizeof(float));
        free(a);
        free(b);
}

/* ---- ends ---- */

static void find_end(uint32_t rank, void *argument) {
        const struct outcome *o = argument;
        struct train t;
        enum train_end end = TRAIN_GOES_ON;

        small_start(&t, o->options);
        settings_rehearse_on(&t.settings, rank);
        t.progress.is_silent = true;
        if (rank == 1)
                t.settings.stop_at = 7;
        while (CAIRN_ASSERT(ending_decide(&t, &end, NULL) == 0), end == TRAIN_GOES_ON)
                (void) small_step(&t);
        CAIRN_ASSERT((int64_t) end == o->samples && t.step == o->steps);
        train_done(&t);
}

static void expect_end(const char *options, enum train_end end, int64_t step) {
        struct outcome o = {.options = options, .samples = end, .steps = step};

        fake_group_run(2, find_end, &o);
}

/* What one rank wants or suffers from, all do. */
static void test_ends_together(void **state) {
        expect_end("", TRAIN_STOP_AT, 7);
        expect_end("--steps 5", TRAIN_COMPLETED, 5);
        expect_end("--nan-step 3 --rehearse-on 1", TRAIN_HOPELESS, 5);
        expect_end("--nan-step 3 --rehearse-on 0 --zero 1", TRAIN_HOPELESS, 5);
}

/* ---- an exchange fails ---- */

static void meet_failure(uint32_t rank, void *argument) {
        struct cairn_error e = CAIRN_ERROR_INIT;
        const char *options = argument;
        struct train t;
        float loss;
        int r;

        small_start(&t, options);
        while ((r = train_step(&t, &loss, &e)) == 0)
                ;
        CAIRN_ASSERT(r == CAIRN_ERR_PEER && e.status == r);
        /* The update was not entered, or never ended: no cut can follow it. */
        struct cairn *c = t.checkpoint.cairn;
        CAIRN_ASSERT(c->updates == (uint64_t) t.step && c->misuse == 0);
        train_done(&t);
}

static void test_failures(void **state) {
        for (int calls = 0; calls < 12; calls++) {
                static char options[] = "--zero 1 --ema 0.9";
                fake_group.calls_left = calls;
                fake_group_run(2, meet_failure, options);
        }
        fake_group.calls_left = -1;
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_zero),
                cmocka_unit_test(test_world_size),
                cmocka_unit_test(test_order_of_samples),
                cmocka_unit_test(test_memory_is_short),
                cmocka_unit_test(test_ends_together),
                cmocka_unit_test(test_failures),
        };
        (void) small_text(); /* before there are threads */
        return cmocka_run_group_tests(tests, NULL, NULL);
}
