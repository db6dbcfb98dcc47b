/* SPDX-License-Identifier: Apache-2.0
 *
 * What comm.c does around a back end: counting, checking, dooming, aborting. The back end is made
 * up.
 */
#include "base/clock.h"
#include "comm/back_end.h"
#include "tests/test.h"

struct fake {
        int64_t sum; /* of the test all-reduce */
        int result;  /* of the verbs */
        int open, abort_result;
        int opens, verbs, aborts, closes, together;
        uint64_t abort_limit_ns;
        char said[512]; /* what was written to the store last */
        uint64_t generation;
};
static struct fake fake;

static int fake_result(struct comm *c, int result, struct cairn_error *reterr) {
        fake.verbs++;
        return result < 0 ? comm_fail(c, result, reterr, "as told") : 0;
}
static int fake_open(struct comm *c, struct cairn_error *reterr) {
        fake.opens++;
        return fake.open < 0 ? comm_fail(c, fake.open, reterr, "cannot open") : 0;
}
static int fake_all_reduce(struct comm *c, void *data, uint64_t count, enum cairn_dtype dtype,
                           struct cairn_error *reterr) {
        return fake_result(c, fake.result, reterr);
}
static int fake_reduce_scatter(struct comm *c, const void *source, void *target, uint64_t count,
                               enum cairn_dtype dtype, struct cairn_error *reterr) {
        return fake_result(c, fake.result, reterr);
}
static int fake_all_gather(struct comm *c, const void *source, void *target, uint64_t bytes,
                           struct cairn_error *reterr) {
        return fake_result(c, fake.result, reterr);
}
static int fake_broadcast(struct comm *c, void *data, uint64_t bytes, int root,
                          struct cairn_error *reterr) {
        return fake_result(c, fake.result, reterr);
}
static int fake_barrier(struct comm *c, int64_t *ret_count, struct cairn_error *reterr) {
        *ret_count = fake.sum;
        return fake_result(c, fake.result, reterr);
}
static int fake_abort(struct comm *const *comms, size_t count, uint64_t deadline_ns,
                      struct cairn_error *reterr) {
        fake.aborts++;
        fake.together = (int) count;
        fake.abort_limit_ns = deadline_ns - clock_now(&clock_system);
        return fake.abort_result < 0
                       ? comm_fail(comms[0], fake.abort_result, reterr, "the abort hangs")
                       : 0;
}
static void fake_close(struct comm *c) {
        fake.closes++;
}

static const struct comm_ops fake_ops = {
        .name = "fake",
        .open = fake_open,
        .all_reduce = fake_all_reduce,
        .reduce_scatter = fake_reduce_scatter,
        .all_gather = fake_all_gather,
        .broadcast = fake_broadcast,
        .barrier = fake_barrier,
        .abort = fake_abort,
        .close = fake_close,
};

static int store_set(void *context, const char *key, const void *value, size_t bytes,
                     uint64_t deadline_ns, struct cairn_error *reterr) {
        (void) snprintf(fake.said, sizeof fake.said, "%s=%.*s", key, (int) bytes,
                        (const char *) value);
        return 0;
}
static int store_get(void *context, const char *key, void *buf, size_t bytes_max, size_t *ret_bytes,
                     uint64_t deadline_ns, struct cairn_error *reterr) {
        return error_set(reterr, CAIRN_ERR_TIMEOUT, "get", key, "it is not there");
}
static int store_list(void *context, const char *prefix, comm_store_visit_fn visit, void *argument,
                      uint64_t deadline_ns, struct cairn_error *reterr) {
        return 0;
}
static int store_generation(void *context, uint64_t *ret, uint64_t deadline_ns,
                            struct cairn_error *reterr) {
        *ret = fake.generation;
        return 0;
}

static struct comm_options options(void) {
        struct comm_options o = COMM_OPTIONS_INIT;
        o.world = 2;
        o.rank = 1;
        o.generation = 7;
        o.store = (struct comm_store){store_set, store_get, store_list, store_generation, NULL};
        return o;
}

static struct comm *ready(void) {
        struct comm_options o = options();
        struct comm *c = NULL;
        fake = (struct fake){.sum = 2, .generation = 7};
        assert_int_equal(comm_new_with(&fake_ops, &o, &c, NULL), 0);
        return c;
}

static void a_table_with_a_gap_is_refused(void **state) {
        struct cairn_error e = CAIRN_ERROR_INIT;
        struct comm_ops ops = fake_ops;
        assert_int_equal(comm_ops_check(&fake_ops, NULL), 0);
        assert_int_equal(comm_ops_check(&comm_gloo, NULL), 0);
        ops.broadcast = NULL;
        assert_int_equal(comm_ops_check(&ops, &e), CAIRN_ERR_FATAL);
        assert_non_null(strstr(e.message, "broadcast"));
        assert_int_equal(comm_ops_check(NULL, NULL), CAIRN_ERR_FATAL);
}

static void wrong_options_are_refused(void **state) {
        struct comm *c = NULL;
        struct cairn_error e = CAIRN_ERROR_INIT;
        const struct comm_options good = options();
        struct comm_options o[9];

        for (size_t i = 0; i < 9; i++)
                o[i] = good;
        o[0].size = 8;
        o[1].name = "no spaces";
        o[2].name = "a_name_that_is_too_long";
        o[3].rank = 2;
        o[4].world = 0;
        o[5].store.list = NULL;
        o[6].bootstrap_ns = 0;
        o[7].name = NULL;
        o[8].interface = "0123456789012345678901234567890123456789012345678901234567890123";
        for (size_t i = 0; i < 9; i++)
                assert_int_equal(comm_new_with(&fake_ops, &o[i], &c, &e), CAIRN_ERR_API);
        o[0] = good;
        o[0].back_end = "mpi";
        assert_int_equal(comm_new(&o[0], &c, &e), CAIRN_ERR_API);
        o[0].back_end = NULL;
        assert_int_equal(comm_new(&o[0], &c, &e), CAIRN_ERR_API);
        assert_null(c);
}

static void operations_are_counted(void **state) {
        struct comm *c = ready();
        char data[64];
        assert_int_equal(comm_sequence(c), 2); /* init and the test */
        assert_int_equal(comm_all_reduce(c, data, 4, CAIRN_F32, NULL), 0);
        assert_int_equal(comm_reduce_scatter(c, data, data, 2, CAIRN_F64, NULL), 0);
        assert_int_equal(comm_all_gather(c, data, data, 2, NULL), 0);
        assert_int_equal(comm_broadcast(c, data, 2, 1, NULL), 0);
        assert_int_equal(comm_barrier(c, NULL), 0);
        assert_int_equal(comm_sequence(c), 7);
        assert_int_equal(fake.verbs, 6);
        comm_keepalive(c);
        assert_string_equal(fake.said, "g7.world.0.at.1=1 k 7 0 barrier ");
        (void) comm_free(c);
        assert_int_equal(fake.aborts, 1);
        assert_int_equal(fake.closes, 1);
}

static void a_wrong_call_changes_nothing(void **state) {
        struct cairn_error e = CAIRN_ERROR_INIT;
        struct comm *c = ready();
        char data[64];
        assert_int_equal(comm_all_reduce(c, data, 4, 99, &e), CAIRN_ERR_API);
        assert_int_equal(comm_all_reduce(c, NULL, 4, CAIRN_F32, &e), CAIRN_ERR_API);
        assert_int_equal(comm_all_reduce(c, data, UINT64_MAX / 4, CAIRN_F32, &e), CAIRN_ERR_API);
        assert_int_equal(comm_reduce_scatter(c, NULL, data, 4, CAIRN_F32, &e), CAIRN_ERR_API);
        assert_int_equal(comm_all_gather(c, data, NULL, 4, &e), CAIRN_ERR_API);
        assert_int_equal(comm_broadcast(c, data, 4, 2, &e), CAIRN_ERR_API);
        assert_int_equal(comm_broadcast(c, data, 4, -1, &e), CAIRN_ERR_API);
        assert_int_equal(comm_sequence(c), 2);
        assert_int_equal(comm_barrier(c, NULL), 0);
        (void) comm_free(c);
}

static void the_first_error_stays(void **state) {
        struct cairn_error first = CAIRN_ERROR_INIT, later = CAIRN_ERROR_INIT;
        struct comm *c = ready();
        char data[64];
        fake.result = CAIRN_ERR_PEER;
        assert_int_equal(comm_barrier(c, &first), CAIRN_ERR_PEER);
        assert_string_equal(first.operation, "barrier 3");
        assert_string_equal(first.object, "fake communicator world, generation 7, rank 1 of 2");
        assert_string_equal(fake.said, "g7.world.0.at.1=1 f 3 0 barrier barrier 3: as told");
        fake.result = 0;
        assert_int_equal(comm_all_reduce(c, data, 4, CAIRN_F32, &later), CAIRN_ERR_PEER);
        assert_memory_equal(&later, &first, sizeof first);
        assert_int_equal(fake.verbs, 2);
        assert_int_equal(fake.aborts, 0);
        assert_int_equal(comm_abort(&c, 1, NULL), 0);
        assert_int_equal(comm_barrier(c, NULL), CAIRN_ERR_PEER);
        fake.said[0] = '\0';
        comm_keepalive(c);
        assert_string_equal(fake.said, "");
        (void) comm_free(c);
}

static void an_abort_that_is_quick_is_made_at_once(void **state) {
        struct comm_ops ops = fake_ops;
        struct comm_options o = options();
        struct comm *c = NULL;
        ops.aborts_at_once = true;
        fake = (struct fake){.sum = 2, .generation = 7};
        assert_int_equal(comm_new_with(&ops, &o, &c, NULL), 0);
        fake.result = CAIRN_ERR_PEER;
        assert_int_equal(comm_barrier(c, NULL), CAIRN_ERR_PEER);
        assert_int_equal(fake.aborts, 1);
        (void) comm_free(c);
}

static void after_an_abort_nothing_works(void **state) {
        struct comm *c = ready();
        assert_int_equal(comm_abort(&c, 1, NULL), 0);
        assert_int_equal(comm_barrier(c, NULL), CAIRN_ERR_API);
        assert_int_equal(fake.verbs, 1);
        assert_null(comm_free(c));
        assert_null(comm_free(NULL));
}

static void several_are_aborted_together(void **state) {
        struct comm *a = ready(), *b = ready();
        struct comm *both[] = {a, b};
        struct comm_ops other = fake_ops;
        a->options.abort_ns = 2 * NSEC_PER_SEC;
        b->options.abort_ns = 5 * NSEC_PER_SEC;
        assert_int_equal(comm_abort(both, 2, NULL), 0);
        assert_int_equal(fake.aborts, 1);
        assert_int_equal(fake.together, 2);
        assert_in_range(fake.abort_limit_ns, 3 * NSEC_PER_SEC, 5 * NSEC_PER_SEC);
        assert_int_equal(comm_abort(both, 0, NULL), 0);
        b->ops = &other;
        assert_int_equal(comm_abort(both, 2, NULL), CAIRN_ERR_API);
        (void) comm_free(a);
        (void) comm_free(b);
}

/* In a child, as its memory is left as it is. */
static void start_with_hung_abort(void *argument) {
        struct cairn_error e = CAIRN_ERROR_INIT;
        struct comm_options o = options();
        struct comm *c = NULL;
        fake = (struct fake){.sum = 2, .generation = 7, .open = CAIRN_ERR_TIMEOUT};
        fake.abort_result = CAIRN_ERR_FATAL;
        if (comm_new_with(&fake_ops, &o, &c, &e) == CAIRN_ERR_FATAL && fake.closes == 0 &&
            strstr(e.message, "cannot open; the abort hangs"))
                _exit(COMM_EXIT_HUNG);
}

/* What the library still uses must not be freed. */
static void a_hung_abort_is_fatal(void **state) {
        struct cairn_error e = CAIRN_ERROR_INIT;
        struct comm *c = ready();
        fake.abort_result = CAIRN_ERR_FATAL;
        assert_int_equal(comm_abort(&c, 1, &e), CAIRN_ERR_FATAL);
        assert_non_null(strstr(e.message, "the abort hangs"));
        assert_null(comm_free(c));
        assert_int_equal(fake.closes, 0);
        fake.abort_result = 0;
        (void) comm_free(c);

        int status = test_in_child(start_with_hung_abort, NULL);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == COMM_EXIT_HUNG);
}

static void a_failed_start_leaves_nothing(void **state) {
        struct cairn_error e = CAIRN_ERROR_INIT;
        struct comm_options o = options();
        struct comm *c = NULL;
        fake = (struct fake){.sum = 2, .generation = 7, .open = CAIRN_ERR_TIMEOUT};
        assert_int_equal(comm_new_with(&fake_ops, &o, &c, &e), CAIRN_ERR_TIMEOUT);
        assert_string_equal(e.operation, "init 1");
        assert_int_equal(fake.closes, 1);
        fake = (struct fake){.sum = 3, .generation = 7};
        assert_int_equal(comm_new_with(&fake_ops, &o, &c, &e), CAIRN_ERR_MISMATCH);
        assert_string_equal(e.operation, "test_all_reduce 2");
        assert_string_equal(e.message, "1 from each of 2 ranks makes 3");
        assert_int_equal(fake.closes, 1);
        fake = (struct fake){.sum = 2, .generation = 8};
        assert_int_equal(comm_new_with(&fake_ops, &o, &c, &e), CAIRN_ERR_STALE);
        assert_int_equal(fake.opens, 0);
        assert_null(c);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(a_table_with_a_gap_is_refused),
                cmocka_unit_test(wrong_options_are_refused),
                cmocka_unit_test(operations_are_counted),
                cmocka_unit_test(a_wrong_call_changes_nothing),
                cmocka_unit_test(the_first_error_stays),
                cmocka_unit_test(an_abort_that_is_quick_is_made_at_once),
                cmocka_unit_test(after_an_abort_nothing_works),
                cmocka_unit_test(several_are_aborted_together),
                cmocka_unit_test(a_hung_abort_is_fatal),
                cmocka_unit_test(a_failed_start_leaves_nothing),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
