/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/test.h"
#include "tools/launcher.h"

static const char *const names[] = {"RANK",
                                    "WORLD_SIZE",
                                    "LOCAL_RANK",
                                    "LOCAL_WORLD_SIZE",
                                    "MASTER_PORT",
                                    "TORCHELASTIC_USE_AGENT_STORE",
                                    "SLURM_JOB_ID",
                                    "SLURM_JOB_NAME",
                                    "SLURM_JOB_NUM_NODES",
                                    "SLURM_NNODES",
                                    "SLURM_STEP_NUM_NODES",
                                    "SLURM_STEP_NUM_TASKS",
                                    "SLURM_NTASKS_PER_NODE",
                                    "SLURM_GPUS_ON_NODE",
                                    "SLURMD_NODENAME"};

/* words: NAME=VALUE, all that is set. */
static int read_with(const struct launcher_given *given, struct launcher *l, struct cairn_error *e,
                     const char *words) {
        char copy[600], *rest = copy;
        for (size_t i = 0; i < sizeof names / sizeof *names; i++)
                (void) unsetenv(names[i]);
        (void) snprintf(copy, sizeof copy, "%s", words);
        for (char *word; (word = strsep(&rest, " "));) {
                char *equals = strchr(word, '=');
                if (!equals)
                        continue;
                *equals = 0;
                assert_int_equal(setenv(word, equals + 1, 1), 0);
        }
        *e = (struct cairn_error) CAIRN_ERROR_INIT;
        return launcher_read(given, l, e);
}

#define BATCH "SLURM_JOB_ID=7 SLURM_JOB_NAME=gpt SLURMD_NODENAME=n1 SLURM_JOB_NUM_NODES="
#define STEP BATCH "2 SLURM_STEP_NUM_NODES=2 SLURM_STEP_NUM_TASKS="

static void test_what_is_said(void **state) {
        static const struct {
                const char *variables;
                struct launcher_given given;
                uint32_t nodes;
                uint64_t ranks;
                uint16_t port;
                const char *node, *run;
        } rows[] = {
                {"", {0}, 0, 0, 0, "", ""},
                {"MASTER_PORT=4000", {0}, 0, 0, 4000, "", ""},
                {"RANK=1 LOCAL_RANK=0 WORLD_SIZE=3 LOCAL_WORLD_SIZE=1 MASTER_PORT=1",
                 {0},
                 3,
                 0,
                 1,
                 "0001-*",
                 ""},
                {"RANK=0 WORLD_SIZE=1 LOCAL_WORLD_SIZE=1", {0}, 1, 0, 0, "0000-*", ""},
                /* The launcher's own store listens at its port. */
                {"RANK=0 WORLD_SIZE=2 LOCAL_WORLD_SIZE=1 MASTER_PORT=1 "
                 "TORCHELASTIC_USE_AGENT_STORE=True",
                 {0},
                 2,
                 0,
                 0,
                 "0000-*",
                 ""},
                {"RANK=1 WORLD_SIZE=2 MASTER_PORT=5", {.nodes_max = 2}, 2, 0, 5, "0001-*", ""},
                {"RANK=3 WORLD_SIZE=4 LOCAL_WORLD_SIZE=4", {.nodes_max = 1}, 0, 0, 0, "", ""},
                {STEP "2", {0}, 2, 0, 0, "n1", "gpt-7"},
                {STEP "2 SLURM_NTASKS_PER_NODE=1 SLURM_GPUS_ON_NODE=8",
                 {0},
                 2,
                 8,
                 0,
                 "n1",
                 "gpt-7"},
                {STEP "2 SLURM_GPUS_ON_NODE=x", {.ranks = true, .run = true}, 2, 0, 0, "n1", ""},
                {STEP "8", {.nodes_max = 1}, 0, 0, 0, "n1", "gpt-7"},
                {BATCH "1 SLURM_NTASKS_PER_NODE=4", {0}, 1, 4, 0, "n1", "gpt-7"},
                {BATCH "1 SLURM_NTASKS_PER_NODE=4 SLURM_GPUS_ON_NODE=4",
                 {0},
                 1,
                 4,
                 0,
                 "n1",
                 "gpt-7"},
                {BATCH "2", {.nodes_max = 4}, 2, 0, 0, "n1", "gpt-7"},
                {"SLURM_JOB_ID=8 SLURM_NNODES=1", {0}, 1, 0, 0, "", "job-8"},
                /* torchrun under Slurm: the inner one counts. */
                {STEP "2 RANK=0 WORLD_SIZE=2 LOCAL_WORLD_SIZE=1", {0}, 2, 0, 0, "0000-*", "gpt-7"},
        };
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
                struct cairn_error e;
                struct launcher l;
                size_t same = strcspn(rows[i].node, "*");
                assert_int_equal(read_with(&rows[i].given, &l, &e, rows[i].variables), 0);
                assert_int_equal(l.nodes, rows[i].nodes);
                assert_int_equal(l.ranks, rows[i].ranks);
                assert_int_equal(l.master_port, rows[i].port);
                assert_int_equal(strncmp(l.node, rows[i].node, same), 0);
                assert_true(rows[i].node[same] ? l.node[same] : !l.node[same]);
                assert_string_equal(l.run, rows[i].run);
        }
}

static void test_what_is_not_clear(void **state) {
        static const struct {
                const char *variables, *sentence;
                uint32_t nodes_max;
        } rows[] = {
                {"RANK=1 WORLD_SIZE=4 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2",
                 "RANK=1 WORLD_SIZE=4 LOCAL_WORLD_SIZE=2 say that a launcher starts a process for "
                 "each rank",
                 0},
                {"RANK=1 WORLD_SIZE=4 LOCAL_WORLD_SIZE=2", "--nproc-per-node 1", 2},
                {"RANK=1 WORLD_SIZE=4", "RANK=1 WORLD_SIZE=4 LOCAL_WORLD_SIZE=:", 0},
                {"RANK=1 LOCAL_WORLD_SIZE=1", "RANK=1 WORLD_SIZE= LOCAL_WORLD_SIZE=1:", 0},
                {"RANK=4 WORLD_SIZE=4 LOCAL_WORLD_SIZE=1", "do not go with WORLD_SIZE=4", 0},
                {"RANK=-1 WORLD_SIZE=4 LOCAL_WORLD_SIZE=1", "'-1' is no number from 0", 0},
                {"MASTER_PORT=70000", "'70000' is no number from 1 to 65535", 0},
                {STEP "8",
                 "SLURM_STEP_NUM_TASKS=8 SLURM_STEP_NUM_NODES=2 say that srun starts a "
                 "process for each rank",
                 0},
                {STEP "8", "srun --ntasks-per-node=1", 2},
                {BATCH "2", "SLURM_JOB_NUM_NODES=2, and no SLURM_STEP_NUM_NODES: this is the batch",
                 0},
                {BATCH "1 SLURM_NTASKS_PER_NODE=4 SLURM_GPUS_ON_NODE=8", "Give --nproc-per-node",
                 0},
                {BATCH "many", "'many' is no number", 0},
                {"SLURM_JOB_ID=123456789012345678901234567890123456789012345678901234567890"
                 "12345678901234567890123456789012345678901234567890123456789012345678901",
                 "give --run NAME", 0},
        };
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
                const struct launcher_given given = {.nodes_max = rows[i].nodes_max};
                struct cairn_error e;
                struct launcher l;
                char text[1000];
                assert_int_equal(read_with(&given, &l, &e, rows[i].variables), CAIRN_ERR_API);
                assert_non_null(strstr(error_format(&e, text, sizeof text), rows[i].sentence));
        }
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_what_is_said),
                cmocka_unit_test(test_what_is_not_clear),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
