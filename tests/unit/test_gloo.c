/* SPDX-License-Identifier: Apache-2.0
 * time limit: 240 s
 *
 * gloo for real, between processes: sums in the order of the ranks, and ranks that are missing,
 * silent, stopped or killed.
 */
#include "base/clock.h"
#include "comm/presence.h"
#include "tests/unit/comm_group.h"

#include <math.h>

/* gloo is not built for the race detector, which cannot see the reference counts by which a
 * buffer's end waits for the thread that has just completed it. */
__attribute__((visibility("default"))) const char *__tsan_default_suppressions(void);
const char *__tsan_default_suppressions(void) {
        return "race:gloo::transport::tcp::UnboundBuffer\nrace:gloo::transport::UnboundBuffer\n";
}

static uint64_t patience_ns; /* of a collective, where it is not 0 */

static struct comm *meet(struct group *g, int rank) {
        struct comm_options o = group_options(g, rank);
        struct comm *c = NULL;

        if (patience_ns)
                o.collective_ns = o.silence_ns = patience_ns;
        RANK_OK(comm_new(&o, &c, error_));
        return c;
}

/* A value of which the sum depends on the order of the ranks. */
static float value_of(int rank, size_t i) {
        uint32_t x = (uint32_t) (i * 2654435761u) ^ (uint32_t) (rank * 40503u);
        x ^= x >> 15;
        x *= 2246822519u;
        x ^= x >> 13;
        return ldexpf((float) (int32_t) x, (int) (x % 24) - 12);
}

static float sum_of(int world, size_t i) {
        float sum = value_of(0, i);
        for (int r = 1; r < world; r++)
                sum += value_of(r, i);
        return sum;
}

static uint32_t bits_of(float f) {
        uint32_t bits;
        memcpy(&bits, &f, sizeof bits);
        return bits;
}

static const size_t counts[] = {1,      2, 3, 7, 8191, 8192, 8193, 65536, 65537, 131072 * 3 + 5,
                                1000003};

static void check_all_reduce(struct group *g, int rank, struct comm *c, size_t count) {
        float *data = malloc(count * sizeof *data);

        RANK_CHECK(data);
        for (size_t i = 0; i < count; i++)
                data[i] = value_of(rank, i);
        RANK_OK(comm_all_reduce(c, data, count, CAIRN_F32, error_));
        for (size_t i = 0; i < count; i++) {
                float sum = sum_of(g->world, i);
                RANK_CHECK(bits_of(data[i]) == bits_of(sum));
        }
        free(data);
}

static void check_reduce_scatter(struct group *g, int rank, struct comm *c, size_t count,
                                 bool in_place) {
        size_t all = count * (size_t) g->world, first = count * (size_t) rank;
        float *source = malloc(all * sizeof *source), *apart = malloc(count * sizeof *apart);

        RANK_CHECK(source && apart);
        for (size_t i = 0; i < all; i++)
                source[i] = value_of(rank, i);
        float *target = in_place ? source + first : apart;
        RANK_OK(comm_reduce_scatter(c, source, target, count, CAIRN_F32, error_));
        for (size_t i = 0; i < count; i++) {
                float sum = sum_of(g->world, first + i);
                RANK_CHECK(bits_of(target[i]) == bits_of(sum));
        }
        free(source);
        free(apart);
}

static void check_all_gather(struct group *g, int rank, struct comm *c, size_t bytes) {
        unsigned char *all = malloc(bytes * (size_t) g->world), *mine = malloc(bytes);

        RANK_CHECK(all && mine);
        for (size_t i = 0; i < bytes; i++)
                mine[i] = (unsigned char) ((size_t) rank * 31 + i);
        RANK_OK(comm_all_gather(c, mine, all, bytes, error_));
        for (size_t i = 0; i < bytes * (size_t) g->world; i++)
                RANK_CHECK(all[i] == (unsigned char) (i / bytes * 31 + i % bytes));
        free(all);
        free(mine);
}

static void check_broadcast(struct group *g, int rank, struct comm *c, size_t bytes) {
        unsigned char *data = malloc(bytes);

        RANK_CHECK(data);
        for (int root = 0; root < g->world; root++) {
                for (size_t i = 0; i < bytes; i++)
                        data[i] = rank == root ? (unsigned char) (i * 7 + (size_t) root) : 0;
                RANK_OK(comm_broadcast(c, data, bytes, root, error_));
                for (size_t i = 0; i < bytes; i++)
                        RANK_CHECK(data[i] == (unsigned char) (i * 7 + (size_t) root));
        }
        free(data);
}

static void all_verbs(struct group *g, int rank) {
        struct comm_options o = group_options(g, rank);
        struct comm *c = NULL;
        double d = rank + 1;
        int64_t n = INT64_MAX - rank;

        o.collective_ns = 100 * NSEC_PER_SEC; /* nothing here is about time */
        RANK_OK(comm_new(&o, &c, error_));
        RANK_CHECK(strstr(comm_describe(c), "gloo 0."));
        for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
                check_all_reduce(g, rank, c, counts[i]);
                check_reduce_scatter(g, rank, c, counts[i], i % 2 == 0);
                check_all_gather(g, rank, c, counts[i]);
                check_broadcast(g, rank, c, counts[i]);
        }
        RANK_OK(comm_all_reduce(c, &d, 1, CAIRN_F64, error_));
        RANK_CHECK(d == 0.5 * g->world * (g->world + 1));
        RANK_OK(comm_all_reduce(c, &n, 1, CAIRN_I64, error_));
        RANK_OK(comm_all_reduce(c, &d, 0, CAIRN_F64, error_));
        RANK_OK(comm_barrier(c, error_));
        (void) comm_free(c);
}

static void sums_are_in_the_order_of_the_ranks(void **state) {
        struct group g;
        for (int world = 1; world <= 5; world++) {
                group_init(&g, "gloo", world);
                group_run(&g, all_verbs);
                group_done(&g);
        }
}

/* ---- ranks that are not there ---- */

enum { MET, GO, DONE };

static void try_to_meet(struct group *g, int rank) {
        struct comm_options o = group_options(g, rank);
        struct comm *c = NULL;

        o.bootstrap_ns = NSEC_PER_SEC;
        RANK_TIMED(comm_new(&o, &c, error_));
}

static void a_missing_rank_is_named(void **state) {
        struct group g;
        group_init(&g, "gloo", 3);
        group_start(&g, 0, try_to_meet);
        group_start(&g, 2, try_to_meet);
        assert_int_equal(group_wait(&g, 0, 60), 0);
        assert_int_equal(group_wait(&g, 2, 60), 0);
        for (int rank = 0; rank < 3; rank += 2) {
                /* or the other one was first, and said why */
                int status =
                        g.ranks[rank].status == CAIRN_ERR_PEER ? CAIRN_ERR_PEER : CAIRN_ERR_TIMEOUT;
                group_assert_error(&g, rank, status, "init 1",
                                   "missing: rank 1 (never seen); waited");
                group_assert_in_time(&g, rank, 1);
        }
        group_done(&g);
}

/* In its first wait, when its address is published: stops, or does nothing any more. */
static int stop_in_wait(void *context, struct cairn_error *reterr) {
        struct group_rank *r = context;
        r->marks[MET] = 1;
        (void) raise(SIGSTOP);
        return 0;
}

static int hang_in_wait(void *context, struct cairn_error *reterr) {
        struct group_rank *r = context;
        r->marks[MET] = 1;
        group_hang();
        return 0;
}

static void meet_with(struct group *g, int rank,
                      int (*check)(void *context, struct cairn_error *reterr)) {
        struct comm_options o = group_options(g, rank);
        struct comm *c = NULL;

        o.check = check;
        o.check_context = &g->ranks[rank];
        RANK_OK(comm_new(&o, &c, error_));
}

static void stops_at_init(struct group *g, int rank) {
        meet_with(g, rank, stop_in_wait);
}

static void hangs_at_init(struct group *g, int rank) {
        meet_with(g, rank, hang_in_wait);
}

static void a_stopped_or_silent_rank_at_init_is_named(void **state) {
        void (*const bodies[])(struct group * g, int rank) = {stops_at_init, hangs_at_init};
        struct group g;
        for (int i = 0; i < 2; i++) {
                group_init(&g, "gloo", 2);
                group_start(&g, 1, bodies[i]);
                group_await(&g, 1, MET);
                group_start(&g, 0, try_to_meet);
                assert_int_equal(group_wait(&g, 0, 60), 0);
                group_assert_error(&g, 0, CAIRN_ERR_TIMEOUT, "", "rank 1");
                group_assert_in_time(&g, 0, 1);
                group_done(&g);
        }
}

/* ---- the wait can be ended ---- */

static volatile sig_atomic_t terminated;
static void on_term(int signal) {
        terminated = 1;
}
static int check_terminated(void *context, struct cairn_error *reterr) {
        struct group_rank *r = context;
        r->marks[MET] = 1;
        return terminated ? error_set(reterr, CAIRN_ERR_VOID, "wait", "", "asked to stop") : 0;
}

static void waits_checking(struct group *g, int rank) {
        struct comm_options o = group_options(g, rank);
        struct comm *c = NULL;

        (void) signal(SIGTERM, on_term);
        o.check = check_terminated;
        o.check_context = &g->ranks[rank];
        RANK_TIMED(comm_new(&o, &c, error_));
}

static void sigterm_ends_a_wait_at_once(void **state) {
        struct group g;
        uint64_t begin_ns;

        group_init(&g, "gloo", 2);
        group_start(&g, 0, waits_checking);
        group_await(&g, 0, MET);
        begin_ns = clock_now(&clock_system);
        (void) kill(g.pids[0], SIGTERM);
        assert_int_equal(group_wait(&g, 0, 60), 0);
        assert_int_equal(g.ranks[0].status, CAIRN_ERR_VOID);
        assert_string_equal(g.ranks[0].error.message, "asked to stop");
        assert_true(g.ranks[0].end_ns - begin_ns < 15 * NSEC_PER_SEC);

        group_start(&g, 0, hangs_at_init); /* nobody checks: the default */
        group_await(&g, 0, MET);
        (void) kill(g.pids[0], SIGTERM);
        int status = group_wait(&g, 0, 60);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM);
        group_done(&g);
}

/* ---- in a collective ---- */

static void meets_and_is_silent(struct group *g, int rank) {
        (void) meet(g, rank);
        g->ranks[rank].marks[MET] = 1;
        group_hang();
}

static void waits_for_all(struct group *g, int rank) {
        struct cairn_error again = CAIRN_ERROR_INIT;
        struct comm *c = meet(g, rank);
        float one = 1;

        RANK_TIMED(comm_all_reduce(c, &one, 1, CAIRN_F32, error_));
        /* doomed: the same at once */
        uint64_t begin_ns = clock_now(&clock_system);
        RANK_CHECK(comm_barrier(c, &again) == g->ranks[rank].status);
        RANK_CHECK(clock_now(&clock_system) - begin_ns < 2 * NSEC_PER_SEC); /* another limit */
        RANK_CHECK(memcmp(&again, &g->ranks[rank].error, sizeof again) == 0);
        RANK_OK(comm_abort(&c, 1, error_));
        (void) comm_free(c);
}

static void a_silent_rank_is_named(void **state) {
        struct group g;
        group_init(&g, "gloo", 2);
        group_start(&g, 0, waits_for_all);
        group_start(&g, 1, meets_and_is_silent);
        assert_int_equal(group_wait(&g, 0, 60), 0);
        group_assert_error(&g, 0, CAIRN_ERR_TIMEOUT, "all_reduce 3", "rank 1");
        group_assert_in_time(&g, 0, 2);
        group_done(&g);
}

static void waits_with_silent_store(struct group *g, int rank) {
        struct comm *c = meet(g, rank);
        int silent = 1;
        float one = 1;

        g->store.silent = &silent;
        RANK_TIMED(comm_all_reduce(c, &one, 1, CAIRN_F32, error_));
        (void) comm_free(c);
}

static void a_silent_store_delays_nothing(void **state) {
        struct group g;
        group_init(&g, "gloo", 2);
        group_start(&g, 0, waits_with_silent_store);
        group_start(&g, 1, meets_and_is_silent);
        assert_int_equal(group_wait(&g, 0, 60), 0);
        group_assert_error(&g, 0, CAIRN_ERR_TIMEOUT, "all_reduce 3", "rank 1");
        group_assert_error(&g, 0, CAIRN_ERR_TIMEOUT, "all_reduce 3", "the store does not answer");
        group_assert_in_time(&g, 0, 2);
        group_done(&g);
}

/* All-reduces until one fails; of a size that is under way most of the time. */
static void reduces_for_ever(struct group *g, int rank) {
        struct comm *c = meet(g, rank);
        size_t count = 2 * MiB / sizeof(float);
        float *data = calloc(count, sizeof *data);

        RANK_CHECK(data);
        g->ranks[rank].marks[MET] = 1;
        do
                RANK_TIMED(comm_all_reduce(c, data, count, CAIRN_F32, error_));
        while (g->ranks[rank].status == 0);
        (void) comm_free(c);
        free(data);
}

static void assert_survivors(struct group *g, int signal, int status) {
        group_init(g, "gloo", 3);
        for (int rank = 0; rank < 3; rank++)
                group_start(g, rank, reduces_for_ever);
        for (int rank = 0; rank < 3; rank++)
                group_await(g, rank, MET);
        clock_system.sleep_ns(NULL, (uint64_t) (rand() % 30) * NSEC_PER_MSEC);
        (void) kill(g->pids[1], signal);
        assert_int_equal(group_wait(g, 0, 60), 0);
        assert_int_equal(group_wait(g, 2, 60), 0);
        for (int rank = 0; rank < 3; rank += 2) {
                if (g->ranks[rank].status == CAIRN_ERR_PEER) /* or the other survivor was first */
                        status = CAIRN_ERR_PEER;
                group_assert_error(g, rank, status, "all_reduce", "rank 1");
        }
}

static void a_stopped_rank_is_named(void **state) {
        struct group g;
        assert_survivors(&g, SIGSTOP, CAIRN_ERR_TIMEOUT);
        group_assert_in_time(&g, 0, 2);
        group_assert_in_time(&g, 2, 2);
        group_done(&g);
}

/* A connection that ends in the middle of a message, too: gloo does not wake who waits for it. */
static void a_killed_rank_is_known_at_once(void **state) {
        struct group g;
        patience_ns = 20 * NSEC_PER_SEC;
        for (int round = 0; round < 8; round++) {
                assert_survivors(&g, SIGKILL, CAIRN_ERR_PEER);
                assert_true(group_seconds(&g, 0) < 10); /* of the limit */
                group_done(&g);
        }
        patience_ns = 0;
}

static void gives_up_early(struct group *g, int rank) {
        struct comm_options o = group_options(g, rank);
        struct comm *c = NULL;

        o.collective_ns = (rank == 0 ? 1 : 60) * NSEC_PER_SEC;
        RANK_OK(comm_new(&o, &c, error_));
        RANK_TIMED(comm_barrier(c, error_));
        (void) comm_free(c);
}

static void the_others_learn_why_a_rank_gave_up(void **state) {
        struct group g;
        group_init(&g, "gloo", 3);
        group_start(&g, 0, gives_up_early);
        group_start(&g, 1, gives_up_early);
        group_start(&g, 2, meets_and_is_silent);
        assert_int_equal(group_wait(&g, 1, 60), 0);
        group_assert_error(&g, 1, CAIRN_ERR_PEER, "barrier 3",
                           "rank 0 closed the connection; it gave up");
        group_assert_error(&g, 1, CAIRN_ERR_PEER, "barrier 3", "missing: rank 2");
        group_done(&g);
}

static void differs(struct group *g, int rank) {
        struct comm_options o = group_options(g, rank);
        struct comm *c = NULL;
        char data[64] = "";

        o.collective_ns = 60 * NSEC_PER_SEC;
        RANK_OK(comm_new(&o, &c, error_));
        if (rank == 0)
                RANK_TIMED(comm_barrier(c, error_));
        else
                RANK_TIMED(comm_broadcast(c, data, sizeof data, 0, error_));
        (void) comm_free(c);
}

static void ranks_in_different_operations_are_told(void **state) {
        struct group g;
        group_init(&g, "gloo", 2);
        group_start(&g, 0, differs);
        group_start(&g, 1, differs);
        assert_int_equal(group_wait(&g, 0, 60), 0);
        assert_int_equal(group_wait(&g, 1, 60), 0);
        /* who looks second may find the other gone already, with the reason */
        for (int rank = 0; rank < 2; rank++)
                assert_true(g.ranks[rank].status == CAIRN_ERR_MISMATCH ||
                            g.ranks[rank].status == CAIRN_ERR_PEER);
        assert_true(g.ranks[0].status == CAIRN_ERR_MISMATCH ||
                    g.ranks[1].status == CAIRN_ERR_MISMATCH);
        group_assert_error(&g, 0, g.ranks[0].status, "barrier 3", " bytes, this one in ");
        group_assert_error(&g, 1, g.ranks[1].status, "broadcast 3", " bytes, this one in ");
        group_done(&g);
}

/* ---- long work ---- */

static void works_long(struct group *g, int rank) {
        struct comm_options o = group_options(g, rank);
        struct comm *c = NULL;

        o.collective_ns = NSEC_PER_SEC;
        o.silence_ns = 4 * NSEC_PER_SEC;
        RANK_OK(comm_new(&o, &c, error_));
        for (int i = 0; rank == 1 && i < 40; i++) { /* four times the limit */
                comm_keepalive(c);
                g->ranks[rank].marks[GO] = 1;
                clock_system.sleep_ns(NULL, 100 * NSEC_PER_MSEC);
        }
        group_await(g, 1, GO); /* its first word, which may come late */
        RANK_TIMED(comm_barrier(c, error_));
        RANK_CHECK(g->ranks[rank].status == 0);
        if (rank == 1) {
                clock_system.sleep_ns(NULL, PRESENCE_PERIOD_NS); /* or it was said just now */
                comm_keepalive(c);
                g->ranks[rank].marks[MET] = 1;
                group_hang();
        }
        group_await(g, 1, MET);
        RANK_TIMED(comm_barrier(c, error_));
        (void) comm_free(c);
}

static void work_is_waited_for_as_long_as_it_says_so(void **state) {
        struct group g;
        group_init(&g, "gloo", 2);
        group_start(&g, 0, works_long);
        group_start(&g, 1, works_long);
        assert_int_equal(group_wait(&g, 0, 60), 0);
        group_assert_error(&g, 0, CAIRN_ERR_TIMEOUT, "barrier 4",
                           "rank 1 (at work after 3, silent for ");
        assert_true(group_seconds(&g, 0) > 3);
        group_assert_in_time(&g, 0, 4);
        group_done(&g);
}

/* ---- what cannot be used ---- */

static void another_generation_is_stale(void **state) {
        struct group g;
        group_init(&g, "gloo", 2);
        dir_store_set_generation(&g.store, 8);
        group_run(&g, try_to_meet);
        for (int rank = 0; rank < 2; rank++)
                group_assert_error(&g, rank, CAIRN_ERR_STALE, "init 1",
                                   "the newest generation is 8");
        group_done(&g);
}

/* The newest generation is 7 as often as marks[GO] says, then 8. */
static int generation_that_ends(void *context, uint64_t *ret, uint64_t deadline_ns,
                                struct cairn_error *reterr) {
        static int asked;
        const struct dir_store *s = context;
        const struct group *g = (const struct group *) (const void *) s; /* its first member */
        *ret = asked++ < g->ranks[0].marks[GO] ? 7 : 8;
        return 0;
}

static void meets_while_the_generation_ends(struct group *g, int rank) {
        struct comm_options o = group_options(g, rank);
        struct comm *c = NULL;

        o.store.generation = generation_that_ends;
        RANK_TIMED(comm_new(&o, &c, error_));
}

static void a_generation_that_ends_meanwhile_is_stale(void **state) {
        static const char *const operations[] = {"init 1", "init 1", "test_all_reduce 2"};
        struct group g;
        for (int good = 0; good < 4; good++) {
                group_init(&g, "gloo", 2);
                g.ranks[0].marks[GO] = good;
                group_run(&g, meets_while_the_generation_ends);
                for (int rank = 0; rank < 2 && good < 3; rank++) {
                        /* the faster one may be gone before the other has asked */
                        int status = g.ranks[rank].status == CAIRN_ERR_PEER ? CAIRN_ERR_PEER
                                                                            : CAIRN_ERR_STALE;
                        group_assert_error(&g, rank, status, operations[good],
                                           "newest generation is 8");
                }
                for (int rank = 0; rank < 2 && good == 3; rank++)
                        assert_int_equal(g.ranks[rank].status, 0);
                group_done(&g);
        }
}

/* In a child: gloo leaks a little when an address is nobody's. */
static void meets_on_a_foreign_address(struct group *g, int rank) {
        struct comm_options o = group_options(g, rank);
        struct comm *c = NULL;

        o.interface = "192.0.2.1";
        RANK_TIMED(comm_new(&o, &c, error_));
}

static void what_cannot_be_used_is_refused(void **state) {
        struct cairn_error e = CAIRN_ERROR_INIT;
        struct group g;
        struct comm *c = NULL;

        group_init(&g, "gloo", 1);
        group_run(&g, meets_on_a_foreign_address);
        group_assert_error(&g, 0, CAIRN_ERR_UNREACHABLE, "listen on", "192.0.2.1");
        struct comm_options o = group_options(&g, 0);
        o.interface = NULL;
        assert_int_equal(comm_new(&o, &c, &e), CAIRN_ERR_API);
        o = group_options(&g, 0);
        assert_int_equal(setenv("CAIRN_GLOO_PLUGIN", "/nowhere.so", 1), 0);
        assert_int_equal(comm_new(&o, &c, &e), CAIRN_ERR_UNSUPPORTED);
        assert_non_null(strstr(e.message, "CAIRN_GLOO_PLUGIN"));
        assert_null(c);
        group_done(&g);
}

static int find_plugin(void **state) {
        const char *build = getenv("BUILD");
        char path[512];
        (void) snprintf(path, sizeof path, "%s/cairn-comm-gloo.so", build ? build : "build");
        if (access(path, R_OK) < 0) {
                printf("%s is not built: libgloo-dev is missing\n", path);
                exit(77);
        }
        return setenv("CAIRN_GLOO_PLUGIN", path, 1);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(sums_are_in_the_order_of_the_ranks),
                cmocka_unit_test(a_missing_rank_is_named),
                cmocka_unit_test(a_stopped_or_silent_rank_at_init_is_named),
                cmocka_unit_test(sigterm_ends_a_wait_at_once),
                cmocka_unit_test(a_silent_rank_is_named),
                cmocka_unit_test(a_silent_store_delays_nothing),
                cmocka_unit_test(a_stopped_rank_is_named),
                cmocka_unit_test(a_killed_rank_is_known_at_once),
                cmocka_unit_test(the_others_learn_why_a_rank_gave_up),
                cmocka_unit_test(ranks_in_different_operations_are_told),
                cmocka_unit_test(work_is_waited_for_as_long_as_it_says_so),
                cmocka_unit_test(another_generation_is_stale),
                cmocka_unit_test(a_generation_that_ends_meanwhile_is_stale),
                cmocka_unit_test(what_cannot_be_used_is_refused),
        };
        unsigned seed = (unsigned) clock_now(&clock_system);
        printf("seed %u\n", seed);
        srand(seed);
        return cmocka_run_group_tests(tests, find_plugin, NULL);
}
