/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/intent.h"
#include "tests/test.h"

#include <errno.h>

/* A lineage of one generation with these validities at steps 10, 20, ... */
struct rig {
        struct scan_checkpoint checkpoints[8];
        struct scan_generation generation;
        struct run_scan scan;
        struct start_request q;
        struct intent_verdict verdict;
        struct cairn_error e;
        int outcome[8]; /* of verify */
};

static void rig_init(struct rig *rig, enum start_mode mode, const char *validities) {
        *rig = (struct rig){.q = {.run = "run", .world = 2, .mode = mode},
                            .generation = {.generation = 1, .started = true}};
        rig->scan = (struct run_scan){.checkpoints = rig->checkpoints,
                                      .generations = &rig->generation,
                                      .generation_count = 1,
                                      .generation_max = 1};
        for (size_t i = 0; validities[i]; i++) {
                struct scan_checkpoint *c = &rig->checkpoints[rig->scan.checkpoint_count++];
                c->step = (int64_t) (i + 1) * 10;
                c->generation = 1;
                c->on_lineage = true;
                name_checkpoint(c->name, c->step, 1);
                c->validity = validities[i] == 'v'   ? CHECKPOINT_VALID
                              : validities[i] == 'f' ? CHECKPOINT_FLAGGED
                              : validities[i] == 'r' ? CHECKPOINT_ROLLABLE
                                                     : CHECKPOINT_DAMAGED;
                c->is_attempt = validities[i] == 'r';
                if (c->validity == CHECKPOINT_DAMAGED)
                        (void) error_set(&c->error, CAIRN_ERR_CORRUPT, "check", c->name, "torn");
        }
}

static int verify(void *context, const struct scan_checkpoint *c, bool *ret_flagged,
                  struct cairn_error *reterr) {
        struct rig *rig = context;
        int outcome = rig->outcome[c - rig->checkpoints];

        *ret_flagged = c->validity == CHECKPOINT_FLAGGED || outcome == 1;
        return outcome < 0 ? error_set(reterr, outcome, "verify", c->name, "as set") : 0;
}

static int judge(struct rig *rig) {
        rig->e = (struct cairn_error) CAIRN_ERROR_INIT;
        return intent_judge(&rig->q, &rig->scan, verify, rig, &rig->verdict, &rig->e);
}

static void test_table(void **state) {
        static const struct {
                enum start_mode mode;
                const char *checkpoints;
                int status;
                enum start_mode decided;
                int64_t step; /* chosen; -1: none */
        } rows[] = {
                {START_FRESH, "", 0, START_FRESH, -1},
                {START_FRESH, "v", CAIRN_ERR_EXISTS, 0, -1},
                {START_FRESH, "d", CAIRN_ERR_EXISTS, 0, -1},
                {START_FRESH, "r", CAIRN_ERR_EXISTS, 0, -1},
                {START_RESUME, "", CAIRN_ERR_NOTFOUND, 0, -1},
                {START_RESUME, "vv", 0, START_RESUME, 20},
                {START_RESUME, "vvr", 0, START_RESUME, 30},
                {START_RESUME, "vd", 0, START_RESUME, 10},
                {START_RESUME, "vf", 0, START_RESUME, 10},
                {START_RESUME, "dd", CAIRN_ERR_CORRUPT, 0, -1},
                {START_RESUME, "ff", CAIRN_ERR_CORRUPT, 0, -1},
                {START_AUTO, "", 0, START_FRESH, -1},
                {START_AUTO, "v", 0, START_RESUME, 10},
                {START_AUTO, "d", CAIRN_ERR_CORRUPT, 0, -1},
                {START_AUTO, "df", CAIRN_ERR_CORRUPT, 0, -1},
        };

        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
                struct rig rig;
                rig_init(&rig, rows[i].mode, rows[i].checkpoints);
                assert_int_equal(judge(&rig), rows[i].status);
                if (rows[i].status < 0)
                        continue;
                assert_int_equal(rig.verdict.decided, rows[i].decided);
                assert_int_equal(rig.verdict.choice ? rig.verdict.choice->step : -1, rows[i].step);
        }
}

static void test_storage_that_fails_is_no_damage(void **state) {
        struct rig rig;

        rig_init(&rig, START_AUTO, "vv");
        rig.outcome[1] = CAIRN_ERR_IO; /* the older one must not be taken for that */
        assert_int_equal(judge(&rig), CAIRN_ERR_IO);
        rig.outcome[1] = CAIRN_ERR_UNSUPPORTED;
        assert_int_equal(judge(&rig), CAIRN_ERR_UNSUPPORTED);
        rig.outcome[1] = CAIRN_ERR_CORRUPT;
        assert_int_equal(judge(&rig), 0);
        assert_int_equal(rig.verdict.choice->step, 10);
        assert_non_null(strstr(rig.verdict.note, "fell back to 000000000010-g0001"));
        rig_init(&rig, START_AUTO, "vd");
        rig.checkpoints[1].error.status = CAIRN_ERR_IO;
        assert_int_equal(judge(&rig), CAIRN_ERR_IO);
}

/* A link or a file with a checkpoint's name. */
static void test_decoys_are_damage(void **state) {
        struct rig rig;

        rig_init(&rig, START_AUTO, "vd");
        (void) error_set_errno(&rig.checkpoints[1].error, ELOOP, "open", "x");
        assert_int_equal(judge(&rig), 0);
        (void) error_set_errno(&rig.checkpoints[1].error, ENOTDIR, "open", "x");
        assert_int_equal(judge(&rig), 0);
        assert_int_equal(rig.verdict.choice->step, 10);
}

static void test_an_attempt_that_would_be_flagged(void **state) {
        struct rig rig;

        rig_init(&rig, START_RESUME, "vr");
        rig.outcome[1] = 1;
        assert_int_equal(judge(&rig), 0);
        assert_int_equal(rig.verdict.choice->step, 10);
        rig_init(&rig, START_RESUME, "r");
        rig.outcome[0] = 1;
        assert_int_equal(judge(&rig), CAIRN_ERR_CORRUPT);
        assert_non_null(strstr(rig.e.message, "--from 10"));
}

static void test_off_the_lineage(void **state) {
        struct rig rig;

        rig_init(&rig, START_AUTO, "v"); /* never fresh over what is there */
        rig.checkpoints[0].on_lineage = false;
        assert_int_equal(judge(&rig), CAIRN_ERR_CORRUPT);
        assert_non_null(strstr(rig.e.message, "--from STEP"));
        rig_init(&rig, START_FRESH, "v");
        rig.checkpoints[0].on_lineage = false;
        rig.q.has_from_step = true;
        rig.q.from_step = 10;
        assert_int_equal(judge(&rig), 0);
        assert_int_equal(rig.verdict.choice->step, 10);
}

/* The restart before began anew, over a flagged one, and died before its first checkpoint. */
static void test_a_restart_after_a_fresh_one(void **state) {
        struct rig rig;

        for (int restart = 0; restart < 2; restart++) {
                rig_init(&rig, START_AUTO, "ff");
                rig.checkpoints[0].on_lineage = rig.checkpoints[1].on_lineage = false;
                rig.q.is_restart = restart;
                assert_int_equal(judge(&rig), restart ? 0 : CAIRN_ERR_CORRUPT);
        }
        assert_int_equal(rig.verdict.decided, START_FRESH);
        assert_null(rig.verdict.choice);
        rig.checkpoints[0].validity = CHECKPOINT_VALID;
        assert_int_equal(judge(&rig), CAIRN_ERR_CORRUPT);
        rig.checkpoints[0].validity = CHECKPOINT_FLAGGED;
        rig.q.mode = START_RESUME;
        assert_int_equal(judge(&rig), CAIRN_ERR_CORRUPT);
}

static void test_from_prefers_the_lineage_then_the_newest(void **state) {
        struct rig rig;

        rig_init(&rig, START_FRESH, "vvv");
        for (size_t i = 0; i < 3; i++) {
                rig.checkpoints[i].step = 10;
                rig.checkpoints[i].generation = i + 1;
                rig.checkpoints[i].on_lineage = i == 0;
        }
        rig.q.has_from_step = true;
        rig.q.from_step = 10;
        assert_int_equal(judge(&rig), 0);
        assert_int_equal(rig.verdict.choice->generation, 1);
        rig.checkpoints[0].on_lineage = false;
        assert_int_equal(judge(&rig), 0);
        assert_int_equal(rig.verdict.choice->generation, 3);
        rig.outcome[2] = CAIRN_ERR_CORRUPT;
        assert_int_equal(judge(&rig), 0);
        assert_int_equal(rig.verdict.choice->generation, 2);
        rig.outcome[0] = rig.outcome[1] = CAIRN_ERR_CORRUPT;
        assert_int_equal(judge(&rig), CAIRN_ERR_CORRUPT);
        assert_non_null(strstr(rig.e.message, "is damaged"));
}

static void test_foreign_only(void **state) {
        struct rig rig;

        rig_init(&rig, START_RESUME, "dd");
        rig.checkpoints[0].error.status = rig.checkpoints[1].error.status = CAIRN_ERR_MISMATCH;
        assert_int_equal(judge(&rig), CAIRN_ERR_MISMATCH);
        rig.checkpoints[0].error.status = CAIRN_ERR_CORRUPT;
        assert_int_equal(judge(&rig), CAIRN_ERR_CORRUPT);
}

static void test_notes_end_in_time(void **state) {
        char note[STORE_NOTE_BYTES] = "";

        for (int i = 0; i < 200; i++)
                intent_note(note, "note %d", i);
        assert_true(strlen(note) < sizeof note);
        assert_memory_equal(note, "note 0; note 1; ", 16);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_table),
                cmocka_unit_test(test_storage_that_fails_is_no_damage),
                cmocka_unit_test(test_decoys_are_damage),
                cmocka_unit_test(test_an_attempt_that_would_be_flagged),
                cmocka_unit_test(test_off_the_lineage),
                cmocka_unit_test(test_a_restart_after_a_fresh_one),
                cmocka_unit_test(test_from_prefers_the_lineage_then_the_newest),
                cmocka_unit_test(test_foreign_only),
                cmocka_unit_test(test_notes_end_in_time),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
