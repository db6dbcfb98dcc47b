/* SPDX-License-Identifier: Apache-2.0
 * time limit: 240 s
 *
 * The NCCL back end against tests/comm/nccl_script.c, between processes: it works; what is missing,
 * silent, stopped, late or hung returns within its limit, names rank and operation, and ends the
 * process where the abort hangs.
 */
#include "base/clock.h"
#include "comm/back_end.h"
#include "device/device.h"
#include "tests/unit/comm_group.h"

enum { MET, GO };

static struct device *device;
static int event_query_busy(struct device *d, const struct device_event *e,
                            struct cairn_error *reterr) {
        return error_set(reterr, CAIRN_ERR_BUSY, "query event", "", "not yet");
}

static struct comm_options options(struct group *g, int rank) {
        struct comm_options o = group_options(g, rank);
        struct cairn_error e = CAIRN_ERROR_INIT;

        RANK_CHECK(device || device_host.open(0, &device, &e) == 0);
        o.device = device;
        return o;
}

static struct comm *meet(struct group *g, int rank) {
        struct comm_options o = options(g, rank);
        struct comm *c = NULL;

        RANK_OK(comm_new(&o, &c, error_));
        return c;
}

static void script(const char *what) {
        RANK_CHECK(setenv("CAIRN_NCCL_SCRIPT", what, 1) == 0);
}

static void all_verbs(struct group *g, int rank) {
        struct comm_options o = options(g, rank);
        struct comm *c = NULL;
        enum { COUNT = 100000 };
        float *a = malloc(COUNT * sizeof *a * (size_t) g->world), *b = malloc(COUNT * sizeof *b);
        double d = rank;
        int root = g->world - 1;

        o.collective_ns = 100 * NSEC_PER_SEC; /* nothing here is about time */
        RANK_OK(comm_new(&o, &c, error_));
        RANK_CHECK(a && b && strstr(comm_describe(c), "NCCL 2.28.9, device host:0"));
        for (int i = 0; i < COUNT; i++)
                a[i] = (float) (i + rank);
        RANK_OK(comm_all_reduce(c, a, COUNT, CAIRN_F32, error_));
        for (int i = 0; i < COUNT; i++)
                RANK_CHECK(a[i] == (float) (i * g->world) + 0.5F * (float) (g->world * root));
        for (int i = 0; i < COUNT * g->world; i++)
                a[i] = (float) i;
        RANK_OK(comm_reduce_scatter(c, a, b, COUNT, CAIRN_F32, error_));
        for (int i = 0; i < COUNT; i++)
                RANK_CHECK(b[i] == (float) ((i + COUNT * rank) * g->world));
        RANK_OK(comm_all_gather(c, b, a, COUNT * sizeof *b, error_));
        for (int i = 0; i < COUNT * g->world; i++)
                RANK_CHECK(a[i] == (float) (i * g->world));
        RANK_OK(comm_broadcast(c, &d, sizeof d, root, error_));
        RANK_CHECK(d == root);
        RANK_OK(comm_all_reduce(c, &d, 1, CAIRN_F64, error_));
        RANK_CHECK(d == root * g->world);
        RANK_OK(comm_barrier(c, error_));
        RANK_OK(comm_abort(&c, 1, error_));
        (void) comm_free(c);
        /* The id's maker is gone: it lived as long as it was needed. */
        RANK_CHECK(waitpid(-1, NULL, WNOHANG) == -1);
}

static void it_works(void **state) {
        struct group g;
        for (int world = 1; world <= 3; world++) {
                group_init(&g, "nccl", world);
                group_run(&g, all_verbs);
                group_done(&g);
        }
}

static void slow_start(struct group *g, int rank) {
        script("init=slow");
        assert_int_equal(setenv("NCCL_COMM_BLOCKING", "1", 1), 0); /* removed: it would override */
        (void) comm_free(meet(g, rank));
}

static void in_progress_is_waited_for(void **state) {
        struct group g;
        group_init(&g, "nccl", 2);
        group_run(&g, slow_start);
        group_done(&g);
}

/* ---- at init ---- */

static void try_to_meet(struct group *g, int rank) {
        struct comm_options o = options(g, rank);
        struct comm *c = NULL;

        o.bootstrap_ns = o.abort_ns = NSEC_PER_SEC;
        RANK_TIMED(comm_new(&o, &c, error_));
        /* as a main does */
        _exit(g->ranks[rank].status == CAIRN_ERR_FATAL ? COMM_EXIT_HUNG : 0);
}

static void a_missing_rank_is_named(void **state) {
        struct group g;
        for (int there = 0; there < 2; there++) { /* the one that makes the id, or the other */
                char text[64];
                group_init(&g, "nccl", 2);
                group_start(&g, there, try_to_meet);
                assert_int_equal(group_wait(&g, there, 60), 0);
                (void) snprintf(text, sizeof text, "missing: rank %d (never seen)", 1 - there);
                group_assert_error(&g, there, CAIRN_ERR_TIMEOUT, "init 1", text);
                group_assert_in_time(&g, there, 1);
                group_done(&g);
        }
}

static int hang_in_wait(void *context, struct cairn_error *reterr) {
        struct group_rank *r = context;
        r->marks[MET] = 1;
        group_hang();
        return 0;
}

static int stop_in_wait(void *context, struct cairn_error *reterr) {
        struct group_rank *r = context;
        r->marks[MET] = 1;
        (void) raise(SIGSTOP);
        return 0;
}

static void meet_with(struct group *g, int rank,
                      int (*check)(void *context, struct cairn_error *reterr)) {
        struct comm_options o = options(g, rank);
        struct comm *c = NULL;

        o.check = check;
        o.check_context = &g->ranks[rank];
        RANK_OK(comm_new(&o, &c, error_));
}

static void hangs_at_init(struct group *g, int rank) {
        meet_with(g, rank, hang_in_wait);
}

static void stops_at_init(struct group *g, int rank) {
        meet_with(g, rank, stop_in_wait);
}

static void a_silent_or_stopped_rank_at_init_is_named(void **state) {
        void (*const bodies[])(struct group * g, int rank) = {hangs_at_init, stops_at_init};
        struct group g;
        for (int i = 0; i < 2; i++) {
                group_init(&g, "nccl", 2);
                group_start(&g, 1, bodies[i]);
                group_await(&g, 1, MET);
                group_start(&g, 0, try_to_meet);
                assert_int_equal(group_wait(&g, 0, 60), 0);
                group_assert_error(&g, 0, CAIRN_ERR_TIMEOUT, "init 1", "rank 1");
                group_assert_in_time(&g, 0, 1);
                group_done(&g);
        }
}

static void hung_init(struct group *g, int rank) {
        script(rank == 0 ? "init=hang" : "");
        try_to_meet(g, rank);
}

static void null_init(struct group *g, int rank) {
        script("init=null");
        try_to_meet(g, rank);
}

static void late_init(struct group *g, int rank) {
        script(rank == 0 ? "init=late" : "");
        try_to_meet(g, rank);
}

/* The call does not return, so that nothing can be aborted. */
static void an_init_that_hangs_ends_the_process(void **state) {
        struct group g;
        group_init(&g, "nccl", 2);
        group_start(&g, 0, hung_init);
        group_start(&g, 1, hung_init);
        int status = group_wait(&g, 0, 60);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == COMM_EXIT_HUNG);
        group_assert_error(&g, 0, CAIRN_ERR_FATAL, "init 1",
                           "ncclCommInitRankConfig does not return");
        group_assert_in_time(&g, 0, 2);
        assert_int_equal(group_wait(&g, 1, 60), 0);
        assert_true(g.ranks[1].status < 0);
        group_done(&g);
}

static void an_init_that_fails_says_why(void **state) {
        void (*const bodies[])(struct group * g, int rank) = {null_init, late_init};
        struct group g;
        for (int i = 0; i < 2; i++) {
                group_init(&g, "nccl", 2);
                group_start(&g, 0, bodies[i]);
                group_start(&g, 1, bodies[i]);
                assert_int_equal(group_wait(&g, 0, 60), 0);
                assert_int_equal(group_wait(&g, 1, 60), 0);
                group_assert_error(
                        &g, 0, CAIRN_ERR_PEER, "init 1",
                        "ncclCommInitRankConfig: unhandled system error: as the script says");
                group_assert_error(&g, 1, g.ranks[1].status, "init 1", "unhandled system error");
                group_done(&g);
        }
}

/* ---- in a collective ---- */

static volatile sig_atomic_t terminated;
static void on_term(int signal) {
        terminated = 1;
}
static int check_terminated(void *context, struct cairn_error *reterr) {
        struct group_rank *r = context;
        if (comm_sequence(*(struct comm **) (uintptr_t) r->values[0]) > 2)
                r->marks[MET] = 1;
        return terminated ? error_set(reterr, CAIRN_ERR_VOID, "wait", "", "asked to stop") : 0;
}

static void waits_checking(struct group *g, int rank) {
        struct comm_options o = options(g, rank);
        struct comm *c = NULL;

        (void) signal(SIGTERM, on_term);
        RANK_OK(comm_new(&o, &c, error_));
        g->ranks[rank].values[0] = (uint64_t) (uintptr_t) &c;
        c->options.check = check_terminated;
        c->options.check_context = &g->ranks[rank];
        c->options.collective_ns = 60 * NSEC_PER_SEC;
        RANK_TIMED(comm_barrier(c, error_));
        RANK_OK(comm_abort(&c, 1, error_));
        (void) comm_free(c);
}

static void meets_and_is_silent(struct group *g, int rank) {
        (void) meet(g, rank);
        group_hang();
}

static void sigterm_ends_a_wait_at_once(void **state) {
        struct group g;
        group_init(&g, "nccl", 2);
        group_start(&g, 0, waits_checking);
        group_start(&g, 1, meets_and_is_silent);
        group_await(&g, 0, MET);
        uint64_t begin_ns = clock_now(&clock_system);
        (void) kill(g.pids[0], SIGTERM);
        assert_int_equal(group_wait(&g, 0, 60), 0);
        assert_int_equal(g.ranks[0].status, CAIRN_ERR_VOID);
        assert_true(g.ranks[0].end_ns - begin_ns < 15 * NSEC_PER_SEC);
        group_done(&g);
}

/* All-reduces until one fails, then aborts and meets what is left of the group anew. */
static void reduces_for_ever(struct group *g, int rank) {
        struct comm *c = meet(g, rank);
        float data[64] = {0};

        g->ranks[rank].marks[MET] = 1;
        do
                RANK_TIMED(comm_all_reduce(c, data, 64, CAIRN_F32, error_));
        while (g->ranks[rank].status == 0);
        RANK_OK(comm_abort(&c, 1, error_));
        (void) comm_free(c);

        struct cairn_error kept = g->ranks[rank].error;
        struct comm_options o = options(g, rank / 2);
        o.world = 2;
        o.attempt = 1;
        RANK_OK(comm_new(&o, &c, error_));
        RANK_OK(comm_barrier(c, error_));
        (void) comm_free(c);
        g->ranks[rank].error = kept;
}

static void check_survivors(int signal) {
        struct group g;
        group_init(&g, "nccl", 3);
        for (int rank = 0; rank < 3; rank++)
                group_start(&g, rank, reduces_for_ever);
        for (int rank = 0; rank < 3; rank++)
                group_await(&g, rank, MET);
        (void) kill(g.pids[1], signal);
        for (int rank = 0; rank < 3; rank += 2) {
                assert_int_equal(group_wait(&g, rank, 60), 0);
                /* or the other one was first, and said it */
                assert_true(g.ranks[rank].status == CAIRN_ERR_TIMEOUT ||
                            g.ranks[rank].status == CAIRN_ERR_PEER);
                group_assert_error(&g, rank, g.ranks[rank].status, "all_reduce",
                                   "missing: rank 1 (");
                group_assert_in_time(&g, rank, 2);
        }
        group_done(&g);
}

static void a_killed_or_stopped_rank_is_named_and_left_behind(void **state) {
        for (int round = 0; round < 3; round++)
                check_survivors(round == 0 ? SIGSTOP : SIGKILL);
}

static void late_error(struct group *g, int rank) {
        struct comm *c = meet(g, rank);
        float one = 1;

        /* the second operation, after the test */
        script("late=2");
        if (rank == 1)
                group_hang();
        RANK_TIMED(comm_all_reduce(c, &one, 1, CAIRN_F32, error_));
        RANK_OK(comm_abort(&c, 1, error_));
        (void) comm_free(c);
}

static void a_late_error_names_who_is_missing(void **state) {
        struct group g;
        group_init(&g, "nccl", 3);
        for (int rank = 0; rank < 3; rank++)
                group_start(&g, rank, late_error);
        for (int rank = 0; rank < 3; rank += 2) {
                assert_int_equal(group_wait(&g, rank, 60), 0);
                group_assert_error(
                        &g, rank, CAIRN_ERR_PEER, "all_reduce 3",
                        "ncclAllReduce: remote process exited or there was a network error: as "
                        "the script says; missing: rank 1 (");
                assert_null(strstr(g.ranks[rank].error.message, "rank 2"));
                assert_null(strstr(g.ranks[rank].error.message, "rank 0"));
        }
        group_done(&g);
}

/* The operation is enqueued and the device works on it; meanwhile the communicator fails, or
 * not. */
static void busy_device(struct group *g, int rank, const char *what) {
        struct comm *c = meet(g, rank);
        struct device_ops ops = device_host;
        float one = 1;

        ops.event_query = event_query_busy;
        device->ops = &ops;
        script(what);
        RANK_TIMED(comm_all_reduce(c, &one, 1, CAIRN_F32, error_));
        RANK_OK(comm_abort(&c, 1, error_));
}

static void stuck_device(struct group *g, int rank) {
        busy_device(g, rank, "");
}

static void late_error_on_the_device(struct group *g, int rank) {
        busy_device(g, rank, "after=2");
}

static void the_device_is_not_waited_for_without_end(void **state) {
        struct group g;
        group_init(&g, "nccl", 2);
        group_run(&g, stuck_device);
        for (int rank = 0; rank < 2; rank++) {
                assert_true(g.ranks[rank].status == CAIRN_ERR_TIMEOUT ||
                            g.ranks[rank].status == CAIRN_ERR_PEER);
                group_assert_in_time(&g, rank, 2);
        }
        group_done(&g);
        group_init(&g, "nccl", 2);
        group_run(&g, late_error_on_the_device);
        for (int rank = 0; rank < 2; rank++)
                group_assert_error(&g, rank, CAIRN_ERR_PEER, "all_reduce 3",
                                   "remote process exited");
        group_done(&g);
}

/* ---- an abort that hangs ---- */

static void hung_abort(struct group *g, int rank) {
        struct cairn_error again = CAIRN_ERROR_INIT;
        struct comm *c = meet(g, rank);
        float one = 1;

        if (rank == 1)
                group_hang();
        script("abort=hang");
        RANK_CHECK(comm_all_reduce(c, &one, 1, CAIRN_F32, &again) == CAIRN_ERR_TIMEOUT);
        RANK_TIMED(comm_abort(&c, 1, error_));
        RANK_CHECK(comm_abort(&c, 1, &again) == CAIRN_ERR_FATAL); /* at once */
        RANK_CHECK(clock_now(&clock_system) - g->ranks[rank].end_ns < 2 * NSEC_PER_SEC);
        (void) comm_free(c);
        if (g->ranks[rank].status == CAIRN_ERR_FATAL)
                _exit(COMM_EXIT_HUNG);
}

static void an_abort_that_hangs_ends_the_process(void **state) {
        struct group g;
        group_init(&g, "nccl", 2);
        group_start(&g, 0, hung_abort);
        group_start(&g, 1, hung_abort);
        int status = group_wait(&g, 0, 60);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == COMM_EXIT_HUNG);
        group_assert_error(&g, 0, CAIRN_ERR_FATAL, "all_reduce 3", "ncclCommAbort does not return");
        group_assert_in_time(&g, 0, 2);
        group_done(&g);
}

static void hung_call(struct group *g, int rank) {
        struct comm *c = meet(g, rank);
        float one = 1;

        if (rank == 1)
                group_hang();
        script("call=2");
        RANK_CHECK(comm_all_reduce(c, &one, 1, CAIRN_F32, &g->ranks[rank].error) ==
                   CAIRN_ERR_TIMEOUT);
        RANK_TIMED(comm_abort(&c, 1, error_));
        if (g->ranks[rank].status == CAIRN_ERR_FATAL)
                _exit(COMM_EXIT_HUNG);
}

static void a_call_that_hangs_ends_the_process(void **state) {
        struct group g;
        group_init(&g, "nccl", 2);
        group_start(&g, 0, hung_call);
        group_start(&g, 1, hung_call);
        int status = group_wait(&g, 0, 60);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == COMM_EXIT_HUNG);
        group_assert_error(&g, 0, CAIRN_ERR_FATAL, "all_reduce 3", "ncclAllReduce does not return");
        group_assert_in_time(&g, 0, 2);
        group_done(&g);
}

static struct comm *meet_as(struct group *g, int rank, const char *name) {
        struct comm_options o = options(g, rank);
        struct comm *c = NULL;

        o.name = name;
        RANK_OK(comm_new(&o, &c, error_));
        return c;
}

static void two_communicators(struct group *g, int rank) {
        struct comm *c[2];
        float one = 1;

        c[0] = meet_as(g, rank, "first");
        c[1] = meet_as(g, rank, "second");
        if (rank == 1)
                group_hang();
        script("abort=grouped");
        for (int i = 0; i < 2; i++)
                RANK_CHECK(comm_all_reduce(c[i], &one, 1, CAIRN_F32, &g->ranks[rank].error) ==
                           CAIRN_ERR_TIMEOUT);
        RANK_TIMED(comm_abort(c, 2, error_));
        (void) comm_free(c[0]);
        (void) comm_free(c[1]);
}

static void communicators_that_block_each_other_are_aborted_together(void **state) {
        struct group g;
        group_init(&g, "nccl", 2);
        group_start(&g, 0, two_communicators);
        group_start(&g, 1, two_communicators);
        assert_int_equal(group_wait(&g, 0, 60), 0);
        assert_int_equal(g.ranks[0].status, 0);
        group_done(&g);
}

/* ---- what cannot be used ---- */

static void what_cannot_be_used_is_refused(void **state) {
        struct cairn_error e = CAIRN_ERROR_INIT;
        struct group g;
        struct comm *c = NULL;

        group_init(&g, "nccl", 1);
        assert_int_equal(device_host.open(0, &device, &e), 0);
        struct comm_options o = options(&g, 0);
        o.device = NULL;
        assert_int_equal(comm_new(&o, &c, &e), CAIRN_ERR_API);
        o = options(&g, 0);
        script("version=old");
        assert_int_equal(comm_new(&o, &c, &e), CAIRN_ERR_UNSUPPORTED);
        assert_non_null(strstr(e.message, "21300"));
        script("");
        assert_int_equal(comm_new(&o, &c, &e), 0);
        float one = 1;
        assert_int_equal(comm_all_reduce(c, &one, 1, CAIRN_U64, &e), CAIRN_ERR_UNSUPPORTED);
        (void) comm_free(c);
        char *given = strdup(getenv("CAIRN_LIBNCCL"));
        assert_int_equal(setenv("CAIRN_LIBNCCL", "/nowhere.so", 1), 0);
        assert_int_equal(comm_new(&o, &c, &e), CAIRN_ERR_UNSUPPORTED);
        assert_non_null(strstr(e.message, "CAIRN_LIBNCCL"));
        assert_int_equal(setenv("CAIRN_LIBNCCL", given, 1), 0);
        assert_int_equal(setenv("CAIRN_NCCL_ID", "/bin/false", 1), 0);
        assert_int_equal(comm_new(&o, &c, &e), CAIRN_ERR_PEER);
        free(given);
        device_host.close(device);
        device = NULL;
        group_done(&g);
}

static int setup(void **state) {
        const char *build = getenv("BUILD");
        char path[512];
        (void) snprintf(path, sizeof path, "%s/tests/comm/libnccl-script.so",
                        build ? build : "build");
        assert_int_equal(setenv("CAIRN_LIBNCCL", path, 1), 0);
        (void) snprintf(path, sizeof path, "%s/cairn-nccl-id", build ? build : "build");
        return setenv("CAIRN_NCCL_ID", path, 1);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(it_works),
                cmocka_unit_test(in_progress_is_waited_for),
                cmocka_unit_test(a_missing_rank_is_named),
                cmocka_unit_test(a_silent_or_stopped_rank_at_init_is_named),
                cmocka_unit_test(an_init_that_hangs_ends_the_process),
                cmocka_unit_test(an_init_that_fails_says_why),
                cmocka_unit_test(sigterm_ends_a_wait_at_once),
                cmocka_unit_test(a_killed_or_stopped_rank_is_named_and_left_behind),
                cmocka_unit_test(a_late_error_names_who_is_missing),
                cmocka_unit_test(the_device_is_not_waited_for_without_end),
                cmocka_unit_test(an_abort_that_hangs_ends_the_process),
                cmocka_unit_test(a_call_that_hangs_ends_the_process),
                cmocka_unit_test(communicators_that_block_each_other_are_aborted_together),
                cmocka_unit_test(what_cannot_be_used_is_refused),
        };
        return cmocka_run_group_tests(tests, setup, NULL);
}
