/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/survey.h"
#include "tests/test.h"

#include <stdio.h>
#include <stdlib.h>

enum { NODES = 2, ITEMS = 8 };

/* Two nodes, a with ranks 0 and 1, b with 2 and 3; one generation that both know. */
struct rig {
        struct survey_node nodes[NODES];
        struct scan_checkpoint items[NODES][ITEMS];
        struct scan_generation generations[NODES][3];
        struct scan_node then[NODES];
        struct run_scan merged;
        struct cairn_error e;
};

/* "c20 w30": committed, whole but not committed; C, W: flagged; x: committed with another COMMIT;
 * d: damaged; p: an attempt that is not whole. Each of an attempt of its own step. */
static void holds(struct rig *rig, int node, const char *text) {
        struct run_scan *scan = &rig->nodes[node].scan;
        char kind;
        int step, used;

        for (; sscanf(text, " %c%d%n", &kind, &step, &used) == 2; text += used) {
                struct scan_checkpoint *c = &rig->items[node][scan->checkpoint_count++];
                *c = (struct scan_checkpoint){.generation = 1,
                                              .step = step,
                                              .attempt = (uint32_t) step / 10,
                                              .on_lineage = true,
                                              .is_attempt = strchr("wWp", kind) != NULL,
                                              .record_crc32c = kind == 'x' ? 1 : 7,
                                              .error = CAIRN_ERROR_INIT};
                c->validity = strchr("CW", kind)   ? CHECKPOINT_FLAGGED
                              : strchr("dp", kind) ? CHECKPOINT_DAMAGED
                              : kind == 'w'        ? CHECKPOINT_ROLLABLE
                                                   : CHECKPOINT_VALID;
                if (c->validity == CHECKPOINT_DAMAGED)
                        (void) error_set(&c->error, CAIRN_ERR_CORRUPT, "check", "INDEX", "torn");
                name_checkpoint(c->name, step, 1);
        }
}

static void rig_init(struct rig *rig, const char *a, const char *b) {
        *rig = (struct rig){.e = CAIRN_ERROR_INIT};
        for (uint32_t i = 0; i < NODES; i++) {
                struct survey_node *n = &rig->nodes[i];
                (void) snprintf(n->place.node, sizeof n->place.node, "%c", 'a' + (char) i);
                n->place.first_rank = 2 * i;
                n->place.ranks = 2;
                n->store_id[0] = (uint8_t) i;
                rig->then[i] = n->place;
                rig->generations[i][0] = (struct scan_generation){
                        .generation = 1, .started = true, .world = 4, .error = CAIRN_ERROR_INIT};
                n->scan = (struct run_scan){.generations = rig->generations[i],
                                            .generation_count = 1,
                                            .generation_max = 1,
                                            .checkpoints = rig->items[i],
                                            .nodes = rig->then,
                                            .node_count = NODES};
        }
        holds(rig, 0, a);
        holds(rig, 1, b);
}

static int merge(struct rig *rig) {
        return survey_merge(rig->nodes, NODES, "run", &rig->merged, &rig->e);
}

/* "V10 r20": V valid, R rollable, F flagged, f flagged and to be rolled forward, D damaged. */
static const char *render(const struct run_scan *m, char *text, size_t bytes) {
        size_t used = 0;

        *text = 0;
        for (size_t i = 0; i < m->checkpoint_count; i++) {
                const struct scan_checkpoint *c = &m->checkpoints[i];
                char kind = c->validity == CHECKPOINT_VALID      ? 'V'
                            : c->validity == CHECKPOINT_ROLLABLE ? 'R'
                            : c->validity == CHECKPOINT_DAMAGED  ? 'D'
                            : c->is_attempt                      ? 'f'
                                                                 : 'F';
                assert_true(c->is_attempt == (kind == 'R' || kind == 'f'));
                used += (size_t) snprintf(text + used, bytes - used, "%s%c%d", used ? " " : "",
                                          kind, (int) c->step);
        }
        return text;
}

static void test_table(void **state) {
        static const struct {
                const char *a, *b, *merged;
                int newest; /* what a resume takes; 0: nothing */
                int holder; /* of it */
        } rows[] = {
                {"", "", "", 0, -1},
                {"c10", "c10", "V10", 10, 0},
                {"c10 c20", "c10 c20", "V10 V20", 20, 0},
                /* the leader was killed between the nodes' COMMITs */
                {"c10 c20", "c10 w20", "V10 R20", 20, 0},
                {"c10 w20", "c10 c20", "V10 R20", 20, 1},
                /* and before the first: whole on both */
                {"c10 w20", "c10 w20", "V10 R20", 20, -1},
                /* and before one of them had its part whole */
                {"c10 w20", "c10 p20", "V10 D20", 10, 0},
                {"c10 w20", "c10", "V10 D20", 10, 0},
                {"c10", "c10 w20", "V10 D20", 10, 0},
                {"p10", "p10", "", 0, -1},
                /* two attempts at once: the older one is complete, the newer one is not */
                {"c10 w20 w30", "c10 w20 p30", "V10 D30 R20", 20, -1},
                /* a disk lost it, or was replaced */
                {"c10 c20", "c10 d20", "V10 D20", 10, 0},
                {"c10 c20", "c10", "V10 D20", 10, 0},
                {"c10 c20", "", "D10 D20", 0, -1},
                {"d10", "d10", "D10", 0, -1},
                {"d10", "w10", "D10", 0, -1},
                /* COMMIT is one and the same everywhere */
                {"c10 c20", "c10 x20", "V10 D20", 10, 0},
                /* flagged anywhere is flagged */
                {"c10 c20", "c10 C20", "V10 F20", 10, 0},
                {"c10 W20", "c10 c20", "V10 f20", 10, 0},
                /* pruned on one node and not yet on the other */
                {"c10 c20 c30", "c20 c30", "D10 V20 V30", 30, 0},
        };
        char text[128];

        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
                struct rig rig;
                rig_init(&rig, rows[i].a, rows[i].b);
                assert_int_equal(merge(&rig), 0);
                assert_string_equal(render(&rig.merged, text, sizeof text), rows[i].merged);
                const struct scan_checkpoint *newest = scan_newest(&rig.merged, 0);
                assert_int_equal(newest ? newest->step : 0, rows[i].newest);
                if (newest) {
                        assert_int_equal(survey_holder(rig.nodes, NODES, newest), rows[i].holder);
                        assert_non_null(strstr(newest->name, "0-g0001"));
                }
                run_scan_done(&rig.merged);
        }
}

static void test_what_is_lacking_is_named(void **state) {
        struct rig rig;

        rig_init(&rig, "c10", "");
        assert_int_equal(merge(&rig), 0);
        assert_non_null(strstr(rig.merged.checkpoints[0].error.message, "node b does not hold"));
        assert_int_equal(rig.merged.checkpoints[0].error.status, CAIRN_ERR_CORRUPT);
        run_scan_done(&rig.merged);
        rig_init(&rig, "c10", "d10");
        assert_int_equal(merge(&rig), 0);
        assert_non_null(strstr(rig.merged.checkpoints[0].error.message, "node b"));
        assert_non_null(strstr(rig.merged.checkpoints[0].error.message, "torn"));
        run_scan_done(&rig.merged);
}

/* A start that reached one node only: it is the run's newest, with its parent. */
static void test_lineage_is_of_all_nodes(void **state) {
        struct rig rig;
        char text[64];

        rig_init(&rig, "c10 c20", "c10 c20");
        rig.generations[1][1] = (struct scan_generation){.generation = 2,
                                                         .started = true,
                                                         .parent_generation = 1,
                                                         .parent_step = 10,
                                                         .error = CAIRN_ERROR_INIT};
        rig.nodes[1].scan.generation_count = 2;
        rig.nodes[1].scan.generation_max = 3; /* a claim without a start */
        rig.generations[0][1] =
                (struct scan_generation){.generation = 2, .error = CAIRN_ERROR_INIT};
        rig.nodes[0].scan.generation_count = 2;
        rig.nodes[0].scan.generation_max = 2;
        assert_int_equal(merge(&rig), 0);
        assert_string_equal(render(&rig.merged, text, sizeof text), "V10 V20");
        assert_int_equal(rig.merged.generation_count, 2);
        assert_int_equal(rig.merged.generation_max, 3);
        assert_int_equal(scan_newest(&rig.merged, 0)->step, 10);
        run_scan_done(&rig.merged);
}

static void test_finished_on_one_node(void **state) {
        struct rig rig;

        rig_init(&rig, "c10", "c10");
        rig.nodes[1].scan.finished = true;
        rig.nodes[1].scan.finished_step = 10;
        (void) snprintf(rig.nodes[1].scan.finished_reason, 128, "completed");
        assert_int_equal(merge(&rig), 0);
        assert_true(rig.merged.finished);
        assert_string_equal(rig.merged.finished_reason, "completed");
        run_scan_done(&rig.merged);
        /* It was extended, and this node did not hear of it. */
        rig.generations[0][1] = (struct scan_generation){
                .generation = 2, .started = true, .error = CAIRN_ERROR_INIT};
        rig.nodes[0].scan.generation_count = 2;
        assert_int_equal(merge(&rig), 0);
        assert_false(rig.merged.finished);
        run_scan_done(&rig.merged);
}

static void test_other_nodes_are_refused(void **state) {
        struct rig rig;

        /* another name */
        rig_init(&rig, "c10", "");
        (void) snprintf(rig.nodes[1].place.node, 64, "c");
        assert_int_equal(merge(&rig), CAIRN_ERR_MISMATCH);
        assert_non_null(strstr(rig.e.message, "a (2 ranks), b (2 ranks)"));
        assert_non_null(strstr(rig.e.message, "a (2 ranks), c (2 ranks)"));
        /* another number of ranks */
        rig_init(&rig, "c10", "c10");
        rig.nodes[1].place.ranks = 3;
        assert_int_equal(merge(&rig), CAIRN_ERR_MISMATCH);
        /* one is missing */
        rig_init(&rig, "c10", "c10");
        assert_int_equal(survey_merge(rig.nodes, 1, "run", &rig.merged, &rig.e),
                         CAIRN_ERR_MISMATCH);
        /* nothing was ever written: any nodes may begin it */
        rig_init(&rig, "", "p10");
        (void) snprintf(rig.nodes[1].place.node, 64, "c");
        assert_int_equal(merge(&rig), 0);
        run_scan_done(&rig.merged);
}

static void test_shared_by_mistake(void **state) {
        struct rig rig;

        rig_init(&rig, "", "");
        rig.nodes[1].store_id[0] = rig.nodes[0].store_id[0];
        assert_int_equal(merge(&rig), CAIRN_ERR_MISMATCH);
        assert_non_null(strstr(rig.e.message, "nodes a and b have the same store"));
        rig_init(&rig, "c10", "c10");
        (void) snprintf(rig.nodes[1].scan.node, 64, "a");
        assert_int_equal(merge(&rig), CAIRN_ERR_MISMATCH);
        assert_non_null(strstr(rig.e.message, "is that of node a"));
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_table),
                cmocka_unit_test(test_what_is_lacking_is_named),
                cmocka_unit_test(test_lineage_is_of_all_nodes),
                cmocka_unit_test(test_finished_on_one_node),
                cmocka_unit_test(test_other_nodes_are_refused),
                cmocka_unit_test(test_shared_by_mistake),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
