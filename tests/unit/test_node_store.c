/* SPDX-License-Identifier: Apache-2.0
 *
 * Two nodes with a rank each, in one process: what their store processes do, by the verbs alone.
 */
#include "agent/generation.h"
#include "agent/haul.h"
#include "agent/node_store.h"
#include "agent/survey.h"
#include "base/cleanup.h"
#include "tests/sim/ranks.h"
#include "tests/test.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { NODES = 2 };

struct rig {
        char folder[512];
        struct store stores[NODES];
        struct store_run runs[NODES];
        struct scan_node nodes[NODES];
        struct attempt attempts[NODES];
        struct start_reply reply;
        struct cairn_error e;
};

static int set_up(void **state) {
        struct rig *rig = *state = calloc(1, sizeof *rig);
        (void) close(test_folder(rig->folder, sizeof rig->folder));
        for (uint32_t i = 0; i < NODES; i++) {
                struct store *s = &rig->stores[i];
                *s = (struct store){.io = &io_system, .clock = &clock_system, .fd = -1};
                (void) snprintf(s->path, sizeof s->path, "%s/%c", rig->folder, 'a' + (char) i);
                assert_int_equal(store_create(s->io, s->clock, s->path, STORE_NODE_LOCAL, NULL), 0);
                rig->runs[i] = (struct store_run){.store = s, .fd = -1, .lock_fd = -1};
                rig->nodes[i] = (struct scan_node){.first_rank = i, .ranks = 1};
                rig->nodes[i].node[0] = (char) ('a' + (char) i);
        }
        return 0;
}

static int tear_down(void **state) {
        struct rig *rig = *state;
        for (int i = 0; i < NODES; i++) {
                store_run_done(&rig->runs[i]);
                if (rig->stores[i].fd >= 0)
                        (void) close(rig->stores[i].fd);
        }
        free(rig);
        return 0;
}

/* ---- what the leader does ---- */

static int pack_settle(uint64_t generation, const struct scan_node *nodes,
                       const struct scan_checkpoint *parent, int records_fd) {
        const struct start_request q = {.run = "run", .world = NODES, .mode = START_RESUME};
        const uint8_t uuid[16] = {1, (uint8_t) generation};
        Cairn__Peer__Settle m = CAIRN__PEER__SETTLE__INIT;
        void *claim, *start, *bytes;
        size_t count;
        int fd;

        assert_int_equal(generation_write_claim(&q, generation, 1, uuid, nodes, NODES, &claim,
                                                &m.claim.len, NULL),
                         0);
        assert_int_equal(
                generation_write_start(generation, uuid, parent, &start, &m.start.len, NULL), 0);
        m.claim.data = claim;
        m.start.data = start;
        if (records_fd >= 0) {
                m.rolled_generation = parent->generation;
                m.rolled_attempt = parent->attempt;
                assert_int_equal(haul_map(records_fd, HAUL_BYTES_MAX, &bytes, &count, NULL), 0);
                m.records = cairn__peer__records__unpack(NULL, count, bytes);
                (void) munmap(bytes, count);
        }
        assert_int_equal(haul_pack(&m.base, &fd, NULL), 0);
        if (m.records)
                cairn__peer__records__free_unpacked(m.records, NULL);
        free(claim);
        free(start);
        return fd;
}

static int settle_node(struct rig *rig, int i, uint64_t generation, int fd) {
        store_run_done(&rig->runs[i]);
        rig->e = (struct cairn_error) CAIRN_ERROR_INIT;
        return node_settle(&rig->stores[i], "run", rig->nodes[i].node, generation, fd,
                           &rig->runs[i], &rig->reply, &rig->e);
}

static void settle(struct rig *rig, uint64_t generation, const struct scan_checkpoint *parent,
                   int records_fd) {
        _cleanup_close_ int fd = pack_settle(generation, rig->nodes, parent, records_fd);
        for (int i = 0; i < NODES; i++)
                if (settle_node(rig, i, generation, fd) < 0)
                        fail_msg("%s: %s", rig->e.operation, rig->e.message);
}

static struct run_scan look(struct rig *rig) {
        struct survey_node surveys[NODES] = {0};
        struct run_scan merged;
        void *bytes;
        size_t count;

        for (int i = 0; i < NODES; i++) {
                _cleanup_close_ int fd = -1;
                surveys[i].place = rig->nodes[i];
                assert_int_equal(node_survey(&rig->stores[i], "run", &fd, &rig->e), 0);
                assert_int_equal(haul_map(fd, HAUL_HOLDS_BYTES_MAX, &bytes, &count, NULL), 0);
                assert_int_equal(survey_read(bytes, count, &surveys[i], &rig->e), 0);
                (void) munmap(bytes, count);
        }
        assert_int_equal(survey_merge(surveys, NODES, "run", &merged, &rig->e), 0);
        for (int i = 0; i < NODES; i++)
                survey_node_done(&surveys[i]);
        return merged;
}

/* ---- an attempt ---- */

static void write_part(struct rig *rig, int i, uint32_t attempt, int64_t step) {
        struct attempt *a = &rig->attempts[i];
        const struct ranks_cut cut = {.run = "run",
                                      .generation = rig->reply.generation,
                                      .attempt = attempt,
                                      .world = NODES,
                                      .step = step};
        int data, manifest;
        assert_int_equal(attempt_open(&rig->runs[i], cut.generation, attempt, NODES, a, NULL), 0);
        assert_int_equal(attempt_open_rank(a, &io_system, (uint32_t) i, &data, &manifest, NULL), 0);
        assert_int_equal(ranks_write(&io_system, &cut, (uint32_t) i, data, manifest, NULL), 0);
        (void) close(data);
        (void) close(manifest);
        assert_int_equal(attempt_publish_manifest(a, &io_system, (uint32_t) i, NULL), 0);
}

static int compose(struct rig *rig, uint32_t attempt) {
        struct commit_source source = {.dir_fd = -1,
                                       .name = "attempt",
                                       .generation = rig->reply.generation,
                                       .attempt = attempt,
                                       .world = NODES,
                                       .tag = ""};
        _cleanup_close_ int all = memfd_create("all", MFD_CLOEXEC);
        void *bytes;
        size_t count;
        int records;

        for (int i = NODES; i-- > 0;) { /* in any order */
                _cleanup_close_ int fd = -1;
                assert_int_equal(node_parts(&rig->stores[i], "run", source.generation, attempt, &fd,
                                            &rig->e),
                                 0);
                assert_int_equal(haul_map(fd, HAUL_BYTES_MAX, &bytes, &count, NULL), 0);
                assert_int_equal(write(all, bytes, count), count);
                (void) munmap(bytes, count);
        }
        if (node_compose(&rig->stores[0], "run", &source, all, &records, &rig->e) < 0)
                fail_msg("%s: %s", rig->e.operation, rig->e.message);
        return records;
}

static void assert_newest(struct rig *rig, int64_t step, enum checkpoint_validity validity) {
        struct run_scan merged = look(rig);
        const struct scan_checkpoint *newest = scan_newest(&merged, 0);
        assert_non_null(newest);
        assert_int_equal(newest->step, step);
        assert_int_equal(newest->validity, validity);
        run_scan_done(&merged);
}

/* ---- tests ---- */

static void test_commit_on_both(void **state) {
        struct rig *rig = *state;
        struct verify_result result;
        struct commit_result committed;

        settle(rig, 1, NULL, -1);
        assert_int_equal(rig->reply.decided, START_FRESH);
        for (int i = 0; i < NODES; i++)
                write_part(rig, i, 1, 10);
        assert_newest(rig, 10, CHECKPOINT_ROLLABLE);
        _cleanup_close_ int records = compose(rig, 1);
        for (int i = 0; i < NODES; i++)
                assert_int_equal(node_record(&rig->runs[i], &rig->attempts[i], records, &rig->e),
                                 0);
        assert_newest(rig, 10, CHECKPOINT_ROLLABLE);
        for (int i = 0; i < NODES; i++) {
                assert_int_equal(
                        commit_rename(&rig->runs[i], &rig->attempts[i], &committed, &rig->e), 0);
                assert_string_equal(committed.name, "000000000010-g0001");
                assert_int_equal(checkpoint_check(&io_system, rig->runs[i].fd, committed.name,
                                                  "run", true, &result, &rig->e),
                                 0);
                assert_string_equal(result.here.node, rig->nodes[i].node);
                assert_int_equal(result.here.first_rank, i);
                assert_int_equal(result.here.ranks, 1);
                assert_int_equal(result.files, 4);
        }
        assert_newest(rig, 10, CHECKPOINT_VALID);
}

/* The leader had given it its name when all died; the other rolls its part forward. */
static void test_roll_forward(void **state) {
        struct rig *rig = *state;
        struct commit_result committed;
        _cleanup_close_ int again = -1;

        settle(rig, 1, NULL, -1);
        for (int i = 0; i < NODES; i++)
                write_part(rig, i, 1, 10);
        _cleanup_close_ int records = compose(rig, 1);
        assert_int_equal(node_record(&rig->runs[0], &rig->attempts[0], records, &rig->e), 0);
        assert_int_equal(commit_rename(&rig->runs[0], &rig->attempts[0], &committed, &rig->e), 0);
        attempt_done(&rig->attempts[1], &io_system);
        assert_newest(rig, 10, CHECKPOINT_ROLLABLE);
        struct run_scan merged = look(rig);
        struct scan_checkpoint choice = *scan_newest(&merged, 0);
        run_scan_done(&merged);
        assert_int_equal(node_records(&rig->stores[0], "run", 1, 1, &again, &rig->e), 0);
        settle(rig, 2, &choice, again);
        assert_int_equal(rig->reply.decided, START_RESUME);
        assert_string_equal(rig->reply.checkpoint, "000000000010-g0001");
        assert_non_null(strstr(rig->reply.note, "rolled forward"));
        assert_newest(rig, 10, CHECKPOINT_VALID);
        /* Asked again, after an answer that was lost. */
        settle(rig, 2, &choice, again);
        assert_newest(rig, 10, CHECKPOINT_VALID);
}

static void test_refusals(void **state) {
        struct rig *rig = *state;
        struct start_request q = {.run = "run", .world = 1, .mode = START_FRESH};

        settle(rig, 2, NULL, -1);
        _cleanup_close_ int older = pack_settle(1, rig->nodes, NULL, -1);
        assert_int_equal(settle_node(rig, 0, 1, older), CAIRN_ERR_STALE);
        _cleanup_close_ int next = pack_settle(3, rig->nodes, NULL, -1);
        assert_int_equal(settle_node(rig, 0, 4, next), CAIRN_ERR_CORRUPT); /* of another number */
        struct scan_node known = rig->nodes[0];
        rig->nodes[0] = rig->nodes[1]; /* node b in the directory of a */
        assert_int_equal(settle_node(rig, 0, 3, next), CAIRN_ERR_MISMATCH);
        assert_non_null(strstr(rig->e.message, "node a"));
        rig->nodes[0] = known;
        settle(rig, 3, NULL, -1);
        /* COMMIT of another attempt, or of files that are not here. */
        for (int i = 0; i < NODES; i++)
                write_part(rig, i, 1, 10);
        _cleanup_close_ int records = compose(rig, 1);
        attempt_done(&rig->attempts[0], &io_system);
        write_part(rig, 0, 2, 10);
        assert_int_equal(node_record(&rig->runs[0], &rig->attempts[0], records, &rig->e),
                         CAIRN_ERR_CORRUPT);
        attempt_done(&rig->attempts[0], &io_system);
        attempt_done(&rig->attempts[1], &io_system);
        /* Not without a group. */
        struct store_run run;
        assert_int_equal(generation_start(&rig->stores[0], &q, &run, &rig->reply, &rig->e),
                         CAIRN_ERR_MISMATCH);
        assert_non_null(strstr(rig->e.message, "node-local"));
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup_teardown(test_commit_on_both, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_roll_forward, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_refusals, set_up, tear_down),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
