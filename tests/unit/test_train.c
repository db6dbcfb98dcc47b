/* SPDX-License-Identifier: Apache-2.0
 *
 * The loop: its log, why it ends, and both over a resume.
 */
#include "tests/unit/small_train.h"
#include "trainer/stop.h"

static char log_path[4200];

static const char *new_log(void) {
        char folder[4000];

        (void) close(test_folder(folder, sizeof(folder)));
        (void) snprintf(log_path, sizeof(log_path), "%s/log.jsonl", folder);
        return log_path;
}

static char *read_all(const char *path) {
        FILE *in = fopen(path, "r");
        char *text = calloc(1, 1 << 20);

        assert_non_null(in);
        assert_true(fread(text, 1, (1 << 20) - 1, in) > 0);
        assert_int_equal(fclose(in), 0);
        /* All fields but the last, "seconds". */
        char *write = text;
        for (char *line = text, *end; (end = strchr(line, '\n')); line = end + 1) {
                char *cut = strstr(line, ",\"seconds\":");
                memmove(write, line, (size_t) (cut - line));
                write += cut - line;
                *write++ = '\n';
        }
        *write = '\0';
        return text;
}

static void open_log(struct train *t, const char *path) {
        int64_t last;

        assert_int_equal(training_log_open(&t->log, path, t->step, true, &last, NULL), 0);
        assert_true(last == t->step);
}

/* Lines of an interrupted run equal those of one that was not: killed after the cut at 20, when the
 * log was already further. */
static void test_log_over_a_resume(void **state) {
        static const char options[] = "--steps 45 --eval-every 10 --eval-batches 2 --ema 0.9 "
                                      "--dropout 0.1 --accumulate 2 --step-ms 0";
        struct fake_cut cut = {.count = 0};
        struct train t;

        small_start(&t, options);
        open_log(&t, new_log());
        assert_int_equal(train_run(&t, NULL), 0);
        assert_true(t.step == 45 && t.state.samples == 45 * 4);
        train_done(&t);
        char *wanted = read_all(log_path);

        small_start(&t, options);
        open_log(&t, new_log());
        t.settings.stop_at = 20;
        assert_int_equal(train_run(&t, NULL), 0);
        assert_true(t.step == 20);
        fake_take(t.checkpoint.cairn, &cut);
        t.settings.stop_at = 27;
        assert_int_equal(train_run(&t, NULL), 0);
        train_done(&t);

        small_start(&t, options);
        small_resume(&t, &cut);
        open_log(&t, log_path);
        assert_int_equal(train_run(&t, NULL), 0);
        fake_cut_done(&cut);
        train_done(&t);
        char *got = read_all(log_path);
        assert_string_equal(got, wanted);
        free(wanted);
        free(got);
}

/* Patience 3 of a run that cannot gain: it stops at the same step over a cut while waiting. */
static void test_early_stop(void **state) {
        static const char options[] = "--steps 100 --eval-every 5 --patience 3 --lr 0 --min-lr 0";
        struct fake_cut cut = {.count = 0};
        struct train t;

        small_start(&t, options);
        assert_int_equal(train_run(&t, NULL), 0);
        assert_true(t.step == 20 && t.state.best_step == 5);
        train_done(&t);

        small_start(&t, options);
        t.settings.stop_at = 12;
        assert_int_equal(train_run(&t, NULL), 0);
        fake_take(t.checkpoint.cairn, &cut);
        train_done(&t);
        small_start(&t, options);
        small_resume(&t, &cut);
        assert_true(t.state.evaluations_without_gain == 1);
        assert_int_equal(train_run(&t, NULL), 0);
        assert_true(t.step == 20 && t.state.best_step == 5);
        fake_cut_done(&cut);
        train_done(&t);
}

/* Time counts over restarts. */
static void test_time_budget(void **state) {
        struct train t;

        small_start(&t, "--max-seconds 10");
        t.state.seconds = 9.999;
        train_restored(&t, 0);
        t.settings.step_ms = 2;
        assert_int_equal(train_run(&t, NULL), 0);
        assert_true(t.step == 1 && t.state.seconds >= 10.0);
        train_done(&t);
}

static void test_signals(void **state) {
        struct train t;

        small_start(&t, "");
        stop_init();
        assert_int_equal(raise(SIGTERM), 0);
        assert_int_equal(train_run(&t, NULL), 75);
        assert_true(t.step == 0);
        stop_init();
        assert_int_equal(raise(SIGINT), 0);
        assert_int_equal(raise(SIGINT), 0); /* the launcher's copy of the same key press */
        assert_int_equal(train_run(&t, NULL), 0);
        stop_init();
        train_done(&t);
}

/* Seed and loss scale stand in the settings and in the state: what was overridden, and is described
 * from then on, is what the run uses. */
static void test_overridden_state(void **state) {
        struct fake_cut cut = {.count = 0};
        struct train t;

        small_start(&t, "--seed 1 --loss-scale 1024");
        (void) small_step(&t);
        fake_take(t.checkpoint.cairn, &cut);
        train_done(&t);
        small_start(&t, "--seed 7 --loss-scale off");
        small_resume(&t, &cut);
        assert_true(t.state.data_seed == 7 && t.state.dropout_seed == 7 && t.corpus.seed == 7);
        assert_true(t.state.loss_scale == 1.0);
        train_done(&t);
        small_start(&t, "--seed 1 --loss-scale dynamic"); /* that one is the state's own */
        small_resume(&t, &cut);
        assert_true(t.corpus.seed == 1 && t.state.loss_scale == 1024.0);
        fake_cut_done(&cut);
        train_done(&t);
}

/* What a run got over is not reported as why it ended. */
static void test_memory_was_short(void **state) {
        struct cairn_error e = CAIRN_ERROR_INIT;
        struct train t;

        small_start(&t, "--steps 4 --oom-step 2");
        assert_int_equal(train_run(&t, &e), 0);
        assert_true(t.step == 4 && t.batch.micro == 1);
        assert_int_equal(e.status, 0);
        train_done(&t);
}

/* A step whose first attempt was given up leaves what it would have left with smaller micro-batches
 * from the start: no trace of that attempt in anything that a forward pass changes. */
static void test_second_attempt(void **state) {
        static const char options[] = "--steps 4 --accumulate 2 --batchnorm-demo --dropout 0.1";
        struct fake_cut given_up = {.count = 0}, smaller = given_up;
        char with_oom[128];
        struct train t;

        (void) snprintf(with_oom, sizeof(with_oom), "%s --oom-step 2", options);
        small_start(&t, with_oom);
        (void) small_step(&t);
        float loss = small_step(&t);
        assert_true(t.batch.micro == 1);
        fake_take(t.checkpoint.cairn, &given_up);
        train_done(&t);

        small_start(&t, options);
        (void) small_step(&t);
        assert_true(batch_shrink(&t.batch));
        assert_true(small_step(&t) == loss);
        assert_true(t.checkpoint.cairn->misuse == 0);
        fake_take(t.checkpoint.cairn, &smaller);
        for (size_t i = 0; i < smaller.count; i++) {
                const struct fake_entry *e = &t.checkpoint.cairn->entry[i];
                bool equal = given_up.bytes[i] && smaller.bytes[i] &&
                             !memcmp(smaller.bytes[i], given_up.bytes[i], e->bytes);
                if (!equal && strcmp(e->name, "time.seconds") != 0)
                        fail_msg("%s differs", e->name);
        }
        train_done(&t);
        fake_cut_done(&given_up);
        fake_cut_done(&smaller);
}

static void run_hopeless(void *argument) {
        struct train t;

        small_start(&t, "--nan-step 4");
        _exit(train_run(&t, NULL) == 1 && t.step == 6 ? 0 : 1);
}

static void test_hopeless(void **state) {
        assert_int_equal(test_in_child(run_hopeless, NULL), 0);
}

static void run_unsaved(void *argument) {
        struct train t;

        small_start(&t, "--steps 3");
        fake_status = CAIRN_ERR_NOSPACE;
        _exit(train_run(&t, NULL) == 70 && t.step == 3 ? 0 : 1);
}

/* Training ends where it should, but the exit status says that its end was not saved. */
static void test_last_snapshot_fails(void **state) {
        assert_int_equal(test_in_child(run_unsaved, NULL), 0);
}

static int64_t milliseconds(void) {
        struct timespec now;

        (void) clock_gettime(CLOCK_MONOTONIC, &now);
        return (int64_t) now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void test_rehearsed_stalls(void **state) {
        struct train t;

        small_start(&t, "--stall-step 2 --stall-ms 30 --update-stall-step 3 --update-stall-ms 40");
        for (int64_t step = 1; step <= 3; step++) {
                int64_t begin = milliseconds();
                (void) small_step(&t);
                int64_t took = milliseconds() - begin;
                assert_true(took >= (step == 2 ? 30 : step == 3 ? 40 : 0));
        }
        train_done(&t);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_log_over_a_resume),   cmocka_unit_test(test_early_stop),
                cmocka_unit_test(test_time_budget),         cmocka_unit_test(test_signals),
                cmocka_unit_test(test_overridden_state),    cmocka_unit_test(test_memory_was_short),
                cmocka_unit_test(test_second_attempt),      cmocka_unit_test(test_hopeless),
                cmocka_unit_test(test_last_snapshot_fails), cmocka_unit_test(test_rehearsed_stalls),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
