/* SPDX-License-Identifier: Apache-2.0
 *
 * What is told of storage that fails or is silent, and how often: the lines themselves are caught.
 */
#include "base/log.h"
#include "tests/test.h"
#include "tests/unit/agent_fixture.h"
#include <fcntl.h>
#include <unistd.h>

static struct fixture f;
static struct fixture_trainer t;
static int runner, said = -1, stderr_before = -1;

static int setup(void **state) {
        (void) state;
        fixture_init(&f);
        log_init("cairnd", LOG_LEVEL_WARNING);
        runner = fixture_connect(&f, CAIRN__CONTROL__PEER_KIND__PEER_RUNNER);
        fixture_start_run(&f, runner, 1);
        fixture_hello(&f, &t, 0);
        fixture_seal(&f, &t, 1);
        fixture_restore_done(&f, &t);
        fixture_run_ms(&f, 20);
        said = open("/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
        stderr_before = dup(STDERR_FILENO);
        return said < 0 || dup2(said, STDERR_FILENO) < 0;
}

static int teardown(void **state) {
        (void) state;
        (void) dup2(stderr_before, STDERR_FILENO);
        (void) close(stderr_before);
        (void) close(said);
        fixture_trainer_done(&t);
        (void) close(runner);
        fixture_done(&f);
        return 0;
}

/* How many lines hold the text. */
static unsigned lines(const char *text) {
        static char all[1 << 16];
        ssize_t n = pread(said, all, sizeof all - 1, 0);
        unsigned count = 0;
        assert_true(n >= 0);
        all[n] = '\0';
        for (const char *c = all; (c = strstr(c, text)); c++)
                count++;
        return count;
}

/* The pause after failures is not waited for. */
static void snapshot(int64_t step) {
        struct run *run = agent_find_run(&f.agent, "demo");
        run->arm_after_ns = 0;
        run_pump(run);
        fixture_run_ms(&f, 10);
        fixture_update(&f, &t, step, true);
        fixture_run_ms(&f, 60);
}

static void test_same_cause_once(void **state) {
        (void) state;
        f.writes_fail = true;
        f.write_status = CAIRN_ERR_NOSPACE;
        for (int64_t step = 1; step <= 3; step++)
                snapshot(step);
        assert_int_equal(agent_find_run(&f.agent, "demo")->attempts_failed, 3);
        assert_int_equal(lines("checkpoint=failed"), 1);
        f.write_status = CAIRN_ERR_IO; /* another cause */
        snapshot(4);
        snapshot(5);
        assert_int_equal(lines("checkpoint=failed"), 2);
        assert_int_equal(lines("checkpoint=again"), 0);
        f.writes_fail = false;
        f.write_status = 0;
        snapshot(6);
        assert_int_equal(lines("checkpoint=again"), 1);
        assert_int_equal(lines("failed=5"), 1);
        snapshot(7);
        assert_int_equal(lines("checkpoint=again"), 1);
        f.write_status = CAIRN_ERR_NOSPACE; /* that was over: it is news */
        snapshot(8);
        assert_int_equal(lines("checkpoint=failed"), 3);
}

/* As if the writes had begun so long ago. */
static void make_late(void) {
        struct run *run = agent_find_run(&f.agent, "demo");
        for (size_t i = 0; i < RUN_ATTEMPT_COUNT; i++)
                if (run->attempts[i].ranks)
                        run->attempts[i].ranks[0].cut_ns -= 100 * NSEC_PER_SEC;
        run_pump(run);
}

static void test_silent_write(void **state) {
        (void) state;
        f.saver_holds_write = true;
        snapshot(1);
        make_late();
        assert_int_equal(lines("storage=silent"), 0); /* the answer may be there already */
        fixture_run_ms(&f, 700);
        assert_int_equal(lines("storage=silent"), 1);
        fixture_run_ms(&f, 700);
        assert_int_equal(lines("storage=silent"), 1);
        f.saver_holds_write = false;
        fixture_run_ms(&f, 60);
        snapshot(2);
        assert_int_equal(lines("checkpoint=again"), 1);
}

/* The agent itself was stopped: what it waits for has come, and it is not the storage's fault. */
static void test_late_itself(void **state) {
        (void) state;
        f.saver_holds_write = true;
        snapshot(1);
        make_late();
        f.saver_holds_write = false;
        fixture_run_ms(&f, 60);
        snapshot(2);
        fixture_run_ms(&f, 700);
        assert_int_equal(lines("storage=silent"), 0);
}

/* A request to the store takes three seconds before that is said. */
static void test_silent_store(void **state) {
        (void) state;
        f.store_holds = true;
        snapshot(1);
        fixture_run_ms(&f, 2000);
        assert_int_equal(lines("storage=silent"), 0);
        fixture_run_ms(&f, 3000);
        assert_int_equal(lines("storage=silent"), 1);
        f.store_holds = false;
        fixture_run_ms(&f, 100);
        assert_int_equal(lines("checkpoint=again"), 1);
}

/* Storage that came back has answered one request and not yet the next one behind it. */
static void test_answers_one_by_one(void **state) {
        struct run *run = agent_find_run(&f.agent, "demo");
        (void) state;
        f.store_holds = true;
        snapshot(1);
        fixture_run_ms(&f, 5000);
        assert_int_equal(lines("storage=silent"), 1);
        run->committed_ns = loop_now(&f.agent.loop); /* what a commit does, the rest still waits */
        outage_over(run);
        run_pump(run);
        fixture_run_ms(&f, 1000);
        assert_int_equal(lines("storage=silent"), 1);
        fixture_run_ms(&f, 4000); /* it hangs again */
        assert_int_equal(lines("storage=silent"), 2);
        f.store_holds = false;
        fixture_run_ms(&f, 100);
}

/* Pruning is no excuse: it asks for little at a time. */
static void test_silent_pruning(void **state) {
        (void) state;
        snapshot(1);
        assert_int_equal(fixture_count(&f, STORE_RETAIN), 1);
        f.store_holds = true;
        agent_find_run(&f.agent, "demo")->unretained = 1;
        run_pump(agent_find_run(&f.agent, "demo"));
        assert_true(agent_find_run(&f.agent, "demo")->retaining);
        fixture_run_ms(&f, 2000);
        assert_int_equal(lines("storage=silent"), 0);
        fixture_run_ms(&f, 3000);
        assert_int_equal(lines("storage=silent"), 1);
        f.store_holds = false;
        fixture_run_ms(&f, 100);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
int main(void) {
        const struct CMUnitTest tests[] = {
                TEST(test_same_cause_once), TEST(test_silent_write),
                TEST(test_late_itself),     TEST(test_silent_store),
                TEST(test_silent_pruning),  TEST(test_answers_one_by_one),
        };
        (void) unsetenv("CAIRN_LOG");
        return cmocka_run_group_tests(tests, NULL, NULL);
}
