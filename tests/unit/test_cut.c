/* SPDX-License-Identifier: Apache-2.0 */
#include "format/cut.h"
#include "tests/test.h"

#include <pthread.h>
#include <sys/mman.h>

static struct control_page *page;
static uint64_t ring_seq;

static struct cut_gate new_gate(uint64_t duration_ns) {
        return (struct cut_gate){.deadline_duration_ns = duration_ns};
}

static int setup(void **state) {
        page = mmap(NULL, CONTROL_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                    -1, 0);
        assert_ptr_not_equal(page, MAP_FAILED);
        control_page_init(page, 7);
        return 0;
}

static int teardown(void **state) {
        return munmap(page, CONTROL_PAGE_BYTES);
}

static void end_update(int64_t step, bool expect_ring) {
        bool ring;

        assert_int_equal(cut_update_end(page, step, 1, &ring_seq, &ring), 0);
        assert_int_equal(ring, expect_ring);
}

static bool begin_update(struct cut_gate *gate) {
        bool expired;

        assert_int_equal(cut_update_begin(page, gate, &clock_system, &expired), 0);
        return expired;
}

static void test_word(void **state) {
        struct cut_word w = {(UINT64_C(1) << 40) - 1, (1u << 22) - 1, CUT_COPYING};
        uint64_t packed = cut_word_pack(w);

        assert_true(packed == (UINT64_MAX & ~UINT64_C(1)));
        struct cut_word u = cut_word_unpack(packed);
        assert_true(u.seq == w.seq && u.attempt == w.attempt && u.phase == w.phase);
        assert_true(cut_word_pack((struct cut_word){1, 0, CUT_STABLE}) == UINT64_C(1) << 24);
        assert_string_equal(cut_phase_name(CUT_UPDATING), "updating");
        assert_string_equal(cut_phase_name((enum cut_phase) 3), "unknown");
        assert_string_equal(cut_outcome_name(CUT_VOID), "void");
}

static void test_page_check(void **state) {
        assert_int_equal(control_page_check(page, CONTROL_PAGE_BYTES, NULL), 0);
        assert_int_equal(control_page_check(page, CONTROL_PAGE_BYTES - 1, NULL), CAIRN_ERR_CORRUPT);
        page->feature_incompat = 1;
        assert_int_equal(control_page_check(page, CONTROL_PAGE_BYTES, NULL), CAIRN_ERR_UNSUPPORTED);
        page->feature_incompat = 0;
        page->version = 2;
        assert_int_equal(control_page_check(page, CONTROL_PAGE_BYTES, NULL), CAIRN_ERR_UNSUPPORTED);
        page->magic[0] = 0;
        assert_int_equal(control_page_check(page, CONTROL_PAGE_BYTES, NULL), CAIRN_ERR_CORRUPT);
}

static void test_update_alone(void **state) {
        struct cut_gate gate = new_gate(NSEC_PER_SEC);
        bool expired, ring;

        assert_int_equal(cut_update_begin(page, &gate, &clock_system, &expired), CAIRN_ERR_API);
        end_update(0, false);
        assert_int_equal(ring_seq, 1);
        assert_int_equal(cut_update_end(page, 0, 1, &ring_seq, &ring), CAIRN_ERR_API);
        for (int step = 1; step < 100; step++) {
                assert_false(begin_update(&gate));
                end_update(step, false);
        }
        assert_int_equal(cut_read(page).seq, 100);
        assert_int_equal(page->last_step, 99);
        assert_int_equal(page->seal_number, 1);
        assert_int_equal(page->gate_stall_ns, 0);
}

static void test_scheduled_copy(void **state) {
        struct cut_gate gate = new_gate(NSEC_PER_SEC);
        struct cut_word mine;
        uint64_t seq;
        int status;
        bool updating;

        assert_int_equal(cut_copy_begin(page, false, &mine), CAIRN_ERR_BUSY);
        assert_int_equal(cut_request(page, &updating), 1);
        assert_true(updating);
        assert_int_equal(cut_copy_begin(page, false, &mine), CAIRN_ERR_BUSY); /* UPDATING */
        end_update(5, true);
        assert_int_equal(cut_copy_begin(page, false, &mine), 0);
        assert_true(mine.seq == 1 && mine.attempt == 1 && mine.phase == CUT_COPYING);
        assert_int_equal(cut_outcome_find(page, 0, &seq, &status), CUT_CLAIMED);
        assert_int_equal(seq, 1);
        assert_true(cut_copy_continue(page, mine));
        assert_int_equal(cut_copy_end(page, mine), 0);
        assert_int_equal(cut_copy_end(page, mine), CAIRN_ERR_STALE);
        assert_false(cut_copy_continue(page, mine));
        assert_int_equal(cut_copy_begin(page, false, &mine), CAIRN_ERR_BUSY); /* answered */
        assert_int_equal(cut_copy_begin(page, true, &mine), 0);               /* demanded again */
        assert_int_equal(mine.attempt, 2);
        cut_copy_abandon(page, mine);
        assert_int_equal(cut_outcome_find(page, 1, &seq, &status), CUT_VOID);
        assert_int_equal(status, CAIRN_ERR_VOID);
        assert_int_equal(page->void_count, 1);
        assert_false(begin_update(&gate));
}

static void test_gate_expires_and_detaches(void **state) {
        struct cut_gate gate = new_gate(20 * NSEC_PER_MSEC);
        struct cut_word mine;
        bool updating;
        uint64_t seq;
        int status;

        end_update(1, false);
        (void) cut_request(page, &updating);
        assert_int_equal(cut_copy_begin(page, false, &mine), 0);
        uint64_t begin = clock_now(&clock_system);
        assert_true(begin_update(&gate));
        assert_true(clock_now(&clock_system) - begin >= 20 * NSEC_PER_MSEC);
        assert_true(gate.detached);
        assert_int_equal(cut_copy_end(page, mine), CAIRN_ERR_STALE);
        assert_int_equal(page->gate_expired_count, 1);
        assert_true(page->gate_stall_ns >= 20 * NSEC_PER_MSEC);
        assert_int_equal(cut_outcome_find(page, 1, &seq, &status), CUT_VOID);

        /* One penalty an outage: as long as nothing moves, the gate does not wait. */
        gate.deadline_duration_ns = 3600 * NSEC_PER_SEC;
        (void) cut_request(page, &updating);
        end_update(2, true);
        assert_false(begin_update(&gate)); /* nobody was copying */
        (void) cut_request(page, &updating);
        end_update(3, true);
        assert_int_equal(cut_copy_begin(page, false, &mine), 0); /* progress: attached again */
        assert_int_equal(cut_copy_end(page, mine), 0);
        assert_false(begin_update(&gate));
        assert_false(gate.detached);
        assert_int_equal(page->gate_expired_count, 1);
}

static void test_decline_releases_owed_gate(void **state) {
        struct cut_gate gate = new_gate(3600 * NSEC_PER_SEC);
        uint64_t seq;
        int status;
        bool updating;

        (void) cut_request(page, &updating);
        end_update(1, true);
        cut_decline(page, CAIRN_ERR_BUSY);
        assert_false(begin_update(&gate));
        assert_int_equal(cut_outcome_find(page, 1, &seq, &status), CUT_DECLINED);
        assert_int_equal(status, CAIRN_ERR_BUSY);
}

static void test_revoke(void **state) {
        struct cut_word mine, second;
        bool updating;

        assert_false(cut_copy_revoke(page));
        end_update(1, false);
        (void) cut_request(page, &updating);
        assert_int_equal(cut_copy_begin(page, false, &mine), 0);
        assert_true(cut_copy_revoke(page));
        assert_false(cut_copy_revoke(page)); /* fences: the attempt grows */
        assert_int_equal(cut_copy_begin(page, true, &second), 0);
        assert_int_equal(second.seq, mine.seq);
        assert_true(second.attempt != mine.attempt);
        assert_int_equal(cut_copy_end(page, mine), CAIRN_ERR_STALE);
        assert_int_equal(cut_copy_end(page, second), 0);
}

static void test_lost_claims(void **state) {
        uint64_t seq;
        int status;
        cut_outcome_set(page, 3, CUT_CLAIMED, 0);
        cut_outcome_set(page, 4, CUT_DECLINED, CAIRN_ERR_BUSY);
        cut_outcome_set(page, 5, CUT_CLAIMED, 0);
        cut_outcome_set(page, 6, CUT_CLAIMED, 0);
        assert_int_equal(cut_claims_lost(page, 4), 2);
        assert_int_equal(cut_outcome_find(page, 3, &seq, &status), CUT_CLAIMED);
        assert_int_equal(cut_outcome_find(page, 4, &seq, &status), CUT_DECLINED);
        assert_int_equal(cut_outcome_find(page, 5, &seq, &status), CUT_FAILED);
        assert_int_equal(status, CAIRN_ERR_PEER);
        assert_int_equal(cut_outcome_find(page, 6, &seq, &status), CUT_FAILED);
        assert_int_equal(seq, 6);
        assert_int_equal(cut_claims_lost(page, 4), 0);
}

static void test_outcomes(void **state) {
        uint64_t seq = 0;
        int status = 0;

        assert_int_equal(cut_outcome_find(page, 0, &seq, &status), CUT_NONE);
        cut_outcome_set(page, 40, CUT_FAILED, CAIRN_ERR_NOSPACE);
        cut_outcome_set(page, 8, CUT_COMMITTED, 0); /* same slot, older: dropped */
        assert_int_equal(cut_outcome_find(page, 0, &seq, &status), CUT_FAILED);
        assert_int_equal(seq, 40);
        assert_int_equal(status, CAIRN_ERR_NOSPACE);
        cut_committed(page, 40, 1234);
        cut_outcome_set(page, 40, CUT_VOID, 0); /* durable stays durable */
        assert_int_equal(cut_outcome_find(page, 33, &seq, &status), CUT_COMMITTED);
        assert_int_equal(page->committed_seq, 40);
        assert_int_equal(page->committed_step, 1234);
        cut_outcome_set(page, 41, CUT_CLAIMED, 0);
        assert_int_equal(cut_outcome_find(page, 41, &seq, &status), CUT_CLAIMED);
        assert_int_equal(cut_outcome_find(page, 42, &seq, &status), CUT_NONE);
        uint32_t seen = page->outcome_futex;
        uint64_t soon = clock_now(&clock_system) + 10 * NSEC_PER_MSEC;
        assert_int_equal(cut_outcome_wait(page, seen, soon, &clock_system), CAIRN_ERR_TIMEOUT);
        assert_int_equal(cut_outcome_wait(page, seen - 1, soon, &clock_system), 0);
}

/* A peer can write anything into the page: every verb must come back, and say so where it can tell.
 */
static void test_nonsense(void **state) {
        struct cut_gate gate = new_gate(NSEC_PER_MSEC);
        struct cut_word mine;
        uint64_t seq;
        bool flag;
        int status;

        page->word = UINT64_MAX; /* phase 3 */
        assert_int_equal(cut_update_begin(page, &gate, &clock_system, &flag), CAIRN_ERR_CORRUPT);
        assert_int_equal(cut_update_end(page, 1, 1, &seq, &flag), CAIRN_ERR_CORRUPT);
        assert_int_equal(cut_copy_begin(page, true, &mine), CAIRN_ERR_CORRUPT);
        assert_false(cut_copy_revoke(page));
        cut_decline(page, CAIRN_ERR_BUSY);
        (void) cut_request(page, &flag);

        page->word = cut_word_pack((struct cut_word){9, 1, CUT_STABLE});
        page->wanted_seq = UINT64_MAX; /* beyond any seq: the gate does not wait for it */
        page->answered_seq = 0;
        gate.deadline_duration_ns = 3600 * NSEC_PER_SEC;
        assert_int_equal(cut_copy_begin(page, true, &mine), CAIRN_ERR_CORRUPT);
        cut_decline(page, CAIRN_ERR_BUSY);
        assert_int_equal(cut_update_begin(page, &gate, &clock_system, &flag), 0);
        for (size_t i = 0; i < CUT_OUTCOME_COUNT; i++)
                page->outcomes[i] = UINT64_MAX - i;
        assert_int_equal(cut_outcome_find(page, 0, &seq, &status), CUT_NONE);
        cut_outcome_set(page, 3, CUT_FAILED, -5);
        assert_int_equal(cut_outcome_find(page, 0, &seq, &status), CUT_FAILED);
        page->word = cut_word_pack((struct cut_word){(UINT64_C(1) << 40) - 1, 1, CUT_UPDATING});
        assert_int_equal(cut_update_end(page, 1, 1, &seq, &flag), CAIRN_ERR_CORRUPT);
}

static void test_ledger(void **state) {
        struct cut_ledger_row *row = &page->ledger[1];
        struct cut_word w = {77, 5, CUT_COPYING};

        cut_ledger_write(row, STAGING_COPYING, w, 12, ".pending-g0001-a000001");
        assert_int_equal(row->state_attempt, STAGING_COPYING | 5 << 8);
        assert_int_equal(row->seq, 77);
        assert_int_equal(row->step, 12);
        assert_string_equal(row->pending_name, ".pending-g0001-a000001");
        cut_ledger_write(row, STAGING_FREE, w, 12, NULL);
        assert_string_equal(row->pending_name, "");
}

/* Threads: a copier, a scribble-free cairnd that demands, and a trainer; under a race detector as
 * well. */
static _Atomic uint64_t cell;
static atomic_bool over;

static void *copier(void *argument) {
        _Atomic uint64_t *published = argument;
        struct cut_word mine;

        while (!atomic_load(&over)) {
                if (cut_copy_begin(page, false, &mine) != 0)
                        continue;
                uint64_t seen = atomic_load_explicit(&cell, memory_order_relaxed);
                if (!cut_copy_continue(page, mine) || cut_copy_end(page, mine) != 0)
                        continue;
                assert_true(seen == mine.seq);
                atomic_fetch_add(published, 1);
        }
        return NULL;
}

static void *demander(void *argument) {
        bool updating;

        while (!atomic_load(&over)) {
                (void) cut_request(page, &updating);
                clock_system.sleep_ns(NULL, 100000);
        }
        return NULL;
}

static void test_threads(void **state) {
        struct cut_gate gate = new_gate(60 * NSEC_PER_SEC);
        pthread_t threads[2];
        _Atomic uint64_t published = 0;

        atomic_store(&cell, 1);
        end_update(0, false);
        assert_int_equal(pthread_create(&threads[0], NULL, copier, &published), 0);
        assert_int_equal(pthread_create(&threads[1], NULL, demander, NULL), 0);
        uint64_t now_ns, begin_ns = clock_now(&clock_system);
        while ((now_ns = clock_now(&clock_system)) < begin_ns + NSEC_PER_SEC / 2 ||
               (atomic_load(&published) == 0 && now_ns < begin_ns + 60 * NSEC_PER_SEC)) {
                bool expired, ring;

                assert_int_equal(cut_update_begin(page, &gate, &clock_system, &expired), 0);
                assert_false(expired);
                atomic_fetch_add_explicit(&cell, 1, memory_order_relaxed);
                assert_int_equal(cut_update_end(page, 1, 1, &ring_seq, &ring), 0);
        }
        atomic_store(&over, true);
        for (int i = 0; i < 2; i++)
                assert_int_equal(pthread_join(threads[i], NULL), 0);
        print_message("%llu updates, %llu snapshots\n", (unsigned long long) ring_seq,
                      (unsigned long long) atomic_load(&published));
        assert_true(atomic_load(&published) > 0);
}

/* The gate sleeps in one process, the copier ends in another: the wake crosses. */
static void test_wake_across_processes(void **state) {
        struct cut_gate gate = new_gate(60 * NSEC_PER_SEC);
        struct cut_word mine;

        end_update(1, false);
        for (int round = 0; round < 3; round++) {
                assert_int_equal(cut_copy_begin(page, true, &mine), 0);
                pid_t child = fork();
                assert_true(child >= 0);
                if (child == 0) {
                        clock_system.sleep_ns(NULL, 20 * NSEC_PER_MSEC);
                        _exit(round == 0   ? cut_copy_end(page, mine) != 0
                              : round == 1 ? !cut_copy_revoke(page)
                                           : (cut_copy_abandon(page, mine), 0));
                }
                uint64_t begin = clock_now(&clock_system);
                assert_false(begin_update(&gate));
                assert_true(clock_now(&clock_system) - begin < 30 * NSEC_PER_SEC);
                int status;
                assert_int_equal(waitpid(child, &status, 0), child);
                assert_int_equal(status, 0);
                end_update(1, false);
        }
}

int main(void) {
#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
        const struct CMUnitTest tests[] = {
                TEST(test_word),
                TEST(test_page_check),
                TEST(test_update_alone),
                TEST(test_scheduled_copy),
                TEST(test_gate_expires_and_detaches),
                TEST(test_decline_releases_owed_gate),
                TEST(test_revoke),
                TEST(test_outcomes),
                TEST(test_lost_claims),
                TEST(test_nonsense),
                TEST(test_ledger),
                TEST(test_wake_across_processes),
                TEST(test_threads),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
