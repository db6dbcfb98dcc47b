/* SPDX-License-Identifier: Apache-2.0
 *
 * A run from its start to its end, with a played store and played savers (agent_fixture.h).
 */
#include "agent/demand.h"
#include "agent/postmortem.h"
#include "agent/session_parts.h"
#include "tests/test.h"
#include "tests/unit/agent_fixture.h"
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#define BODY(name) CAIRN__CONTROL__ENVELOPE__BODY_##name
#define RUNNER CAIRN__CONTROL__PEER_KIND__PEER_RUNNER
#define TOOL CAIRN__CONTROL__PEER_KIND__PEER_TOOL
#define DEMO ((ProtobufCBinaryData){4, (uint8_t *) "demo"})

static struct fixture f;
static struct fixture_trainer t;
static int runner, tool;

static int setup_unsealed(void **state) {
        (void) state;
        fixture_init(&f);
        runner = fixture_connect(&f, RUNNER);
        tool = fixture_connect(&f, TOOL);
        fixture_start_run(&f, runner, 1);
        fixture_hello(&f, &t, 0);
        return 0;
}

static int setup(void **state) {
        (void) setup_unsealed(state);
        fixture_seal(&f, &t, 1);
        fixture_restore_done(&f, &t);
        fixture_run_ms(&f, 20);
        return 0;
}

static int teardown(void **state) {
        (void) state;
        fixture_trainer_done(&t);
        (void) close(runner);
        (void) close(tool);
        fixture_done(&f);
        return 0;
}

static uint64_t ask_snapshot(bool wait, uint64_t timeout_ns, const char *tag) {
        Cairn__Control__Envelope e = CAIRN__CONTROL__ENVELOPE__INIT;
        Cairn__Control__SnapshotRequest m = CAIRN__CONTROL__SNAPSHOT_REQUEST__INIT;
        m.run = DEMO;
        m.wait = wait;
        m.timeout_ns = timeout_ns;
        m.tag = (ProtobufCBinaryData){strlen(tag), (uint8_t *) tag};
        e.body_case = BODY(SNAPSHOT_REQUEST);
        e.snapshot_request = &m;
        return fixture_send(&f, tool, &e, NULL, 0);
}

static void ask_stop(uint64_t deadline_ns) {
        Cairn__Control__Envelope e = CAIRN__CONTROL__ENVELOPE__INIT;
        Cairn__Control__StopRequest m = CAIRN__CONTROL__STOP_REQUEST__INIT;
        m.run = DEMO;
        m.deadline_ns = deadline_ns;
        e.body_case = BODY(STOP_REQUEST);
        e.stop_request = &m;
        (void) fixture_send(&f, tool, &e, NULL, 0);
}

static const Cairn__Control__Envelope *rank_exit(uint32_t rank) {
        Cairn__Control__Envelope e = CAIRN__CONTROL__ENVELOPE__INIT;
        Cairn__Control__RankExit m = CAIRN__CONTROL__RANK_EXIT__INIT;
        m.run = DEMO;
        m.rank = rank;
        e.body_case = BODY(RANK_EXIT);
        e.rank_exit = &m;
        return fixture_ask(&f, runner, &e, NULL, 0);
}

static void test_scheduled(void **state) {
        (void) state;
        assert_int_equal(fixture_session(&f, 0)->state, SESSION_ACTIVE);
        assert_int_equal(f.arms, 1);
        fixture_update(&f, &t, 1, true);
        fixture_run_ms(&f, 50);
        assert_int_equal(atomic_load(&t.page->committed_step), 1);
        assert_int_equal(atomic_load(&t.page->committed_seq), 2);
        assert_int_equal(fixture_count(&f, STORE_PUBLISH_MANIFEST), 1);
        assert_int_equal(fixture_count(&f, STORE_COMMIT), 1);
        assert_int_equal(fixture_count(&f, STORE_RETAIN), 1);
        assert_int_equal(f.last[STORE_RETAIN].keep_last, 3);
        /* The next one is armed already: another cut works at once, without a third set of files.
         */
        assert_int_equal(f.arms, 2);
        fixture_update(&f, &t, 2, true);
        fixture_run_ms(&f, 50);
        assert_int_equal(atomic_load(&t.page->committed_step), 2);
        uint64_t seq;
        int status;
        assert_int_equal(cut_outcome_find(t.page, 3, &seq, &status), CUT_COMMITTED);
}

static void test_failed_write(void **state) {
        (void) state;
        f.write_status = CAIRN_ERR_NOSPACE;
        fixture_update(&f, &t, 1, true);
        fixture_run_ms(&f, 50);
        uint64_t seq;
        int status;
        assert_int_equal(cut_outcome_find(t.page, 2, &seq, &status), CUT_FAILED);
        assert_int_equal(status, CAIRN_ERR_NOSPACE);
        assert_int_equal(fixture_count(&f, STORE_COMMIT), 0);
        assert_int_equal(fixture_count(&f, STORE_DISCARD), 1);
        assert_int_equal(agent_find_run(&f.agent, "demo")->attempts_failed, 1);
        fixture_update(&f, &t, 2, true); /* the next one is independent of it */
        fixture_run_ms(&f, 50);
        assert_int_equal(atomic_load(&t.page->committed_step), 2);
}

static void test_failed_commit(void **state) {
        (void) state;
        f.fail_verb = STORE_COMMIT;
        f.fail_status = CAIRN_ERR_IO;
        ask_snapshot(true, 5 * NSEC_PER_SEC, "");
        const Cairn__Control__Envelope *reply = fixture_receive(&f, tool);
        assert_non_null(reply->failure);
        assert_int_equal(reply->failure->status, CAIRN_ERR_IO);
        fixture_run_ms(&f, 20);
        assert_int_equal(fixture_count(&f, STORE_DISCARD), 1);
        /* An unknown outcome is asked for again. */
        f.fail_verb = STORE_COMMIT;
        f.fail_status = CAIRN_ERR_TIMEOUT;
        fixture_update(&f, &t, 3, true);
        fixture_run_ms(&f, 50);
        assert_int_equal(fixture_count(&f, STORE_COMMIT), 3);
        assert_int_equal(atomic_load(&t.page->committed_step), 3);
}

/* What is asked for again is as flagged as it was, and it is not what a restart begins from. */
static void test_flagged_is_no_progress(void **state) {
        (void) state;
        fixture_update(&f, &t, 7, false);
        ask_snapshot(true, 5 * NSEC_PER_SEC, "");
        assert_false(fixture_receive(&f, tool)->snapshot_reply->flagged);
        f.commits_flagged = true;
        fixture_update(&f, &t, 8, false);
        for (int i = 0; i < 2; i++) {
                ask_snapshot(true, 5 * NSEC_PER_SEC, "");
                const Cairn__Control__SnapshotReply *reply =
                        fixture_receive(&f, tool)->snapshot_reply;
                assert_int_equal(reply->step, 8);
                assert_int_equal(reply->existed, i == 1);
                assert_true(reply->flagged);
        }
        const struct run *run = f.agent.runs[0];
        assert_int_equal(run->resumable_step, 7);
        assert_int_equal(run->flagged_step, 8);
        assert_true(run->committed_flagged);
        f.commits_flagged = false;
        fixture_update(&f, &t, 9, false);
        ask_snapshot(true, 5 * NSEC_PER_SEC, "");
        assert_false(fixture_receive(&f, tool)->snapshot_reply->flagged);
        assert_int_equal(run->resumable_step, 9);
        assert_int_equal(run->flagged_step, -1);
        /* Nor is it what whoever stops the run is told to resume from. */
        f.commits_flagged = true;
        fixture_update(&f, &t, 10, false);
        ask_snapshot(true, 5 * NSEC_PER_SEC, "");
        assert_true(fixture_receive(&f, tool)->snapshot_reply->flagged);
        ask_stop(60 * NSEC_PER_SEC);
        fixture_run_ms(&f, 10);
        session_died(fixture_session(&f, 0));
        (void) rank_exit(0);
        const Cairn__Control__Envelope *reply = fixture_receive(&f, tool);
        assert_int_equal(reply->body_case, BODY(STOP_REPLY));
        assert_int_equal(reply->stop_reply->step, 9);
        assert_int_equal(reply->stop_reply->reached, 10);
}

static void test_tag_is_no_text(void **state) {
        (void) state;
        fixture_update(&f, &t, 7, false);
        ask_snapshot(true, 5 * NSEC_PER_SEC, "\xff");
        const Cairn__Control__Envelope *reply = fixture_receive(&f, tool);
        assert_non_null(reply->failure);
        assert_int_equal(reply->failure->status, CAIRN_ERR_API);
        assert_int_equal(fixture_count(&f, STORE_COMMIT), 0);
}

static void test_demanded(void **state) {
        (void) state;
        fixture_update(&f, &t, 7, false);
        ask_snapshot(true, 5 * NSEC_PER_SEC, "lunch");
        ask_snapshot(true, 5 * NSEC_PER_SEC, ""); /* merges with it */
        for (int i = 0; i < 2; i++) {
                const Cairn__Control__Envelope *reply = fixture_receive(&f, tool);
                assert_int_equal(reply->body_case, BODY(SNAPSHOT_REPLY));
                assert_int_equal(reply->snapshot_reply->step, 7);
                assert_false(reply->snapshot_reply->existed);
        }
        assert_int_equal(fixture_count(&f, STORE_COMMIT), 1);
        assert_string_equal(f.last[STORE_COMMIT].name, "lunch");
        assert_int_equal(f.last[STORE_COMMIT].reason, 1);
        /* The same cut again: the same checkpoint. */
        ask_snapshot(true, 5 * NSEC_PER_SEC, "");
        const Cairn__Control__Envelope *reply = fixture_receive(&f, tool);
        assert_true(reply->snapshot_reply->existed);
        assert_int_equal(reply->snapshot_reply->step, 7);
        ask_snapshot(true, 5 * NSEC_PER_SEC, "tea");
        assert_true(fixture_receive(&f, tool)->snapshot_reply->existed);
        assert_string_equal(f.last[STORE_TAG].name, "tea");
        assert_int_equal(fixture_count(&f, STORE_COMMIT), 1);
}

static void test_demanded_in_update(void **state) {
        struct cut_gate gate = {.deadline_duration_ns = GATE_DEADLINE_NS_MIN};
        bool expired, ring;
        uint64_t seq;
        (void) state;
        assert_int_equal(cut_update_begin(t.page, &gate, &clock_system, &expired), 0);
        ask_snapshot(true, 200 * NSEC_PER_MSEC, "");
        const Cairn__Control__Envelope *reply = fixture_receive(&f, tool);
        assert_int_equal(reply->failure->status, CAIRN_ERR_TIMEOUT);
        assert_non_null(memmem(reply->failure->message.data, reply->failure->message.len,
                               "inside an update", 16));
        ask_snapshot(true, 5 * NSEC_PER_SEC, "");
        fixture_run_ms(&f, 20);
        assert_int_equal(cut_update_end(t.page, 9, 1, &seq, &ring), 0);
        assert_true(ring);
        reply = fixture_receive(&f, tool);
        assert_int_equal(reply->snapshot_reply->step, 9);
}

static void test_void_is_asked_again(void **state) {
        (void) state;
        fixture_update(&f, &t, 4, false);
        f.void_next = 1;
        ask_snapshot(true, 5 * NSEC_PER_SEC, "");
        const Cairn__Control__Envelope *reply = fixture_receive(&f, tool);
        assert_int_equal(reply->snapshot_reply->step, 4);
}

static void test_taken(void **state) {
        (void) state;
        f.saver_holds_write = true;
        fixture_update(&f, &t, 5, false);
        ask_snapshot(false, 5 * NSEC_PER_SEC, "");
        const Cairn__Control__Envelope *reply = fixture_receive(&f, tool);
        assert_int_equal(reply->snapshot_reply->step, 5);
        assert_int_equal(reply->snapshot_reply->checkpoint.len, 0);
        assert_int_equal(fixture_count(&f, STORE_COMMIT), 0);
        /* Written when asked once more: a demand waits while staging is in use. */
        fixture_update(&f, &t, 6, false);
        ask_snapshot(true, 5 * NSEC_PER_SEC, "");
        fixture_run_ms(&f, 30);
        f.saver_holds_write = false;
        reply = fixture_receive(&f, tool);
        assert_int_equal(reply->snapshot_reply->step, 6);
        assert_int_equal(fixture_count(&f, STORE_COMMIT), 2);
}

static void test_death_settles_first(void **state) {
        struct fixture_trainer next;
        (void) state;
        f.saver_holds_write = true;
        fixture_update(&f, &t, 3, true);
        fixture_run_ms(&f, 20);
        struct session *s = fixture_session(&f, 0);
        session_died(s);
        fixture_run_ms(&f, 20);
        assert_int_equal(s->state, SESSION_SETTLING);
        f.saver_holds_write = false;
        const Cairn__Control__Envelope *reply = rank_exit(0);
        assert_int_equal(reply->body_case, BODY(RANK_SETTLED));
        assert_int_equal(reply->rank_settled->committed_step, 3);
        assert_false(reply->rank_settled->stopped);
        /* The next life: a new generation, a new session. */
        fixture_start_run(&f, runner, 1);
        fixture_hello(&f, &next, 0);
        assert_int_equal(next.generation, 2);
        assert_true(next.session_id != t.session_id);
        fixture_trainer_done(&next);
}

/* Claimed in its life, copied after its end: the state is taken again, with how it ended. */
static void test_copied_across_death(void **state) {
        struct session *s = fixture_session(&f, 0);
        uint64_t seq;
        int status;
        (void) state;
        f.saver_holds_write = true;
        fixture_update(&f, &t, 3, true); /* nothing is cut before the loop turns */
        session_died(s);
        fixture_run_ms(&f, 20);
        assert_int_equal(cut_outcome_find(t.page, 2, &seq, &status), CUT_FAILED);
        f.saver_holds_write = false;
        postmortem_reaped(s, SIGSEGV, s->pid);
        const Cairn__Control__Envelope *reply = rank_exit(0);
        assert_int_equal(reply->body_case, BODY(RANK_SETTLED));
        assert_int_equal(f.savers[0].ending.kind, ENDING_SIGNALLED);
        assert_true(f.savers[0].ending.suspect);
        assert_int_equal(fixture_count(&f, STORE_COMMIT), 1);
        assert_int_equal(f.last[STORE_COMMIT].attempt, 2);
}

static void test_successor_waits(void **state) {
        Cairn__Control__Envelope e = CAIRN__CONTROL__ENVELOPE__INIT;
        Cairn__Control__Hello h = CAIRN__CONTROL__HELLO__INIT;
        (void) state;
        h.protocol = WIRE_PROTOCOL;
        h.kind = CAIRN__CONTROL__PEER_KIND__PEER_CLIENT;
        h.run = DEMO;
        e.body_case = BODY(HELLO);
        e.hello = &h;
        int fd = (int) syscall(SYS_pidfd_open, getpid(), 0);
        int alive = fixture_connect_raw(&f), next = fixture_connect_raw(&f);
        const Cairn__Control__Envelope *reply = fixture_ask(&f, alive, &e, &fd, 1);
        assert_int_equal(reply->failure->status, CAIRN_ERR_BUSY); /* the predecessor lives */
        f.saver_holds_write = true;
        fixture_update(&f, &t, 3, true);
        fixture_run_ms(&f, 20);
        session_died(fixture_session(&f, 0));
        reply = fixture_ask(&f, next, &e, &fd, 1);
        assert_int_equal(reply->body_case, BODY(WAIT));
        assert_true(reply->wait->limit_ms > 1000);
        f.saver_holds_write = false;
        do
                reply = fixture_receive(&f, next);
        while (reply && reply->body_case == BODY(WAIT));
        assert_true(reply && reply->body_case == BODY(WELCOME));
        assert_int_equal(agent_find_run(&f.agent, "demo")->committed_step, 3);
        (void) close(fd);
        (void) close(alive);
        (void) close(next);
}

static void test_saver_dies(void **state) {
        (void) state;
        struct session *s = fixture_session(&f, 0);
        f.saver_holds_write = true;
        fixture_update(&f, &t, 3, true);
        fixture_run_ms(&f, 20);
        f.savers[0].session = NULL;
        s->saver.state = SAVER_LINK_NONE;
        session_saver_ended(s, true, 9);
        f.saver_holds_write = false;
        uint64_t seq;
        int status;
        fixture_run_ms(&f, 20);
        assert_int_equal(cut_outcome_find(t.page, 2, &seq, &status), CUT_FAILED);
        /* No saver: a ring is declined at once, so that no gate waits. */
        fixture_update(&f, &t, 4, true);
        fixture_run_ms(&f, 20);
        assert_true(atomic_load(&t.page->answered_seq) >= 3);
        fixture_run_ms(&f, 1000);
        assert_int_equal(f.savers_started, 2);
        assert_int_equal(f.seals, 2);
        fixture_update(&f, &t, 5, true);
        fixture_run_ms(&f, 50);
        assert_int_equal(atomic_load(&t.page->committed_step), 5);
}

/* Its transfers may still end: nothing of it is used again. */
static void test_stuck_saver_is_replaced(void **state) {
        struct session *s = fixture_session(&f, 0);
        struct stat before, after;
        uint64_t seq;
        int status;

        assert_int_equal(fstat(s->staging_fd, &before), 0);
        int held = dup(s->staging_fd); /* as the saver does: the number is not given away */
        f.write_status = CAIRN_ERR_TIMEOUT;
        f.write_stuck = true;
        fixture_update(&f, &t, 1, true);
        for (int i = 0; i < 100 && s->saver.state != SAVER_LINK_STOPPING; i++)
                fixture_run_ms(&f, 1);
        assert_int_equal(cut_outcome_find(t.page, 2, &seq, &status), CUT_FAILED);
        assert_int_equal(status, CAIRN_ERR_TIMEOUT);
        /* Nobody else answers: a gate must not wait. */
        fixture_update(&f, &t, 2, true);
        fixture_run_ms(&f, 20);
        assert_true(atomic_load(&t.page->answered_seq) >= 3);
        fixture_run_ms(&f, 1000);
        assert_int_equal(f.savers_started, 2);
        assert_int_equal(f.seals, 2);
        assert_int_equal(fstat(s->staging_fd, &after), 0);
        assert_int_not_equal(before.st_ino, after.st_ino);
        fixture_update(&f, &t, 3, true);
        fixture_run_ms(&f, 50);
        assert_int_equal(atomic_load(&t.page->committed_step), 3);
        (void) close(held);
}

/* Where nothing is left for a new saver's staging, snapshots wait until there is; training does
 * not. */
/* A trainer that starts fresh may restore nothing: only its page tells that it trains. */
static void test_period_before_anything_else(void **state) {
        struct run *run = agent_find_run(&f.agent, "demo");
        uint64_t seq;
        bool ring;
        (void) state;
        fixture_seal(&f, &t, 1);
        fixture_run_ms(&f, 20);
        assert_int_equal(cut_update_end(t.page, 0, 1, &seq, &ring), 0);
        fixture_update(&f, &t, 1, false);
        fixture_run_ms(&f, 20);
        assert_int_equal(fixture_session(&f, 0)->state, SESSION_SEALED);
        run->every_ns = NSEC_PER_SEC;
        demand_periodic(run);
        assert_int_equal(fixture_session(&f, 0)->state, SESSION_ACTIVE);
        run_pump(run);
        fixture_run_ms(&f, 50);
        assert_int_equal(atomic_load(&t.page->committed_step), 1);
}

/* Files that it was to have when it was dead already are its successor's. */
static void test_saver_hung_up(void **state) {
        (void) state;
        struct session *s = fixture_session(&f, 0);
        f.saver_hung_up = true;
        fixture_update(&f, &t, 3, true); /* the next files are due at once */
        fixture_run_ms(&f, 50);
        f.saver_hung_up = false;
        f.savers[0].session = NULL;
        s->saver.state = SAVER_LINK_NONE;
        session_saver_ended(s, true, 9);
        for (int i = 0; i < 300 && !s->saver_sealed; i++)
                fixture_run_ms(&f, 10);
        fixture_run_ms(&f, 50);
        fixture_update(&f, &t, 6, true);
        for (int i = 0; i < 300 && atomic_load(&t.page->committed_step) < 6; i++)
                fixture_run_ms(&f, 10);
        assert_int_equal(atomic_load(&t.page->committed_step), 6);
}

/* It had copied a state and was killed before it said so: whoever waits is told. */
static void test_saver_dies_untold(void **state) {
        (void) state;
        struct session *s = fixture_session(&f, 0);
        struct cut_word mine;
        uint64_t seq;
        int status;
        fixture_update(&f, &t, 1, false);
        f.savers[0].session = NULL;
        assert_int_equal(cut_copy_begin(t.page, true, &mine), 0);
        assert_int_equal(cut_copy_end(t.page, mine), 0);
        assert_int_equal(cut_outcome_find(t.page, mine.seq, &seq, &status), CUT_CLAIMED);
        s->saver.state = SAVER_LINK_NONE;
        session_saver_ended(s, true, 9);
        assert_int_equal(cut_outcome_find(t.page, mine.seq, &seq, &status), CUT_FAILED);
        assert_int_equal(status, CAIRN_ERR_PEER);
        assert_int_equal(seq, mine.seq);
}

static void test_room_comes_back(void **state) {
        struct session *s = fixture_session(&f, 0);
        (void) state;
        f.agent.config.staging_bytes_max = 1;
        f.savers[0].session = NULL;
        s->saver.state = SAVER_LINK_NONE;
        session_saver_ended(s, true, 9);
        for (int i = 0; i < 300 && !s->no_room; i++)
                fixture_run_ms(&f, 10);
        assert_true(s->no_room);
        assert_int_equal(s->last_error.status, CAIRN_ERR_NOMEM);
        fixture_update(&f, &t, 1, false);
        f.agent.config.staging_bytes_max = 0;
        ask_snapshot(true, 30 * NSEC_PER_SEC, "");
        const Cairn__Control__Envelope *reply = NULL;
        while (!s->saver_sealed)
                fixture_run_ms(&f, 10);
        reply = fixture_receive(&f, tool);
        assert_int_equal(reply->body_case, BODY(SNAPSHOT_REPLY));
        assert_int_equal(reply->snapshot_reply->step, 1);
        assert_false(s->no_room);
        assert_int_equal(f.savers_started, 2);
}

static void test_stop(void **state) {
        (void) state;
        fixture_update(&f, &t, 11, false);
        ask_stop(60 * NSEC_PER_SEC);
        fixture_run_ms(&f, 20);
        assert_true(atomic_load(&t.page->wishes) & CUT_WISH_STOP);
        fixture_update(&f, &t, 12, true);
        fixture_run_ms(&f, 50);
        session_died(fixture_session(&f, 0));
        const Cairn__Control__Envelope *reply = rank_exit(0);
        assert_true(reply->rank_settled->stopped);
        reply = fixture_receive(&f, tool);
        assert_int_equal(reply->body_case, BODY(STOP_REPLY));
        assert_int_equal(reply->stop_reply->step, 12);
}

/* A command that goes on when its trainer has closed its session has the deadline's time for that;
 * then `cairn run` is told, whose it is to end. */
static void test_stop_of_what_stays(void **state) {
        (void) state;
        struct pollfd told = {.fd = runner, .events = POLLIN};
        fixture_update(&f, &t, 11, true);
        fixture_run_ms(&f, 50);
        session_died(fixture_session(&f, 0));
        fixture_run_ms(&f, 20);
        ask_stop(60 * NSEC_PER_SEC);
        const Cairn__Control__Envelope *reply = fixture_receive(&f, tool);
        assert_int_equal(reply->body_case, BODY(STOP_REPLY));
        assert_int_equal(reply->stop_reply->step, 11);
        assert_int_equal(poll(&told, 1, 0), 0);
        ask_stop(NSEC_PER_MSEC);
        reply = fixture_receive(&f, runner);
        assert_int_equal(reply->body_case, BODY(STOP_REPLY));
        fixture_run_ms(&f, 100);
        assert_int_equal(poll(&told, 1, 0), 0); /* once */
}

/* The trainer dies at step 12: whoever stops the run hears that 11 is saved, and why not more. */
static void expect_step_lost(int status) {
        session_died(fixture_session(&f, 0));
        (void) rank_exit(0);
        const Cairn__Control__Envelope *reply = fixture_receive(&f, tool);
        assert_int_equal(reply->body_case, BODY(STOP_REPLY));
        assert_int_equal(reply->stop_reply->step, 11);
        assert_int_equal(reply->stop_reply->reached, 12);
        assert_non_null(reply->stop_reply->failure);
        assert_int_equal(reply->stop_reply->failure->status, status);
}

/* The last snapshot fails: `cairn stop` hears why, and how far training had come. */
/* A saver that is stuck in the storage holds the memory that the successor's staging would take. */
static void test_abandoned_staging(void **state) {
        struct session *s = fixture_session(&f, 0), *n;
        struct fixture_trainer next;
        uint64_t bytes = s->staging_bytes;
        int stuck[2];
        (void) state;
        assert_int_equal(pipe(stuck), 0);
        s->saver.lost[0] = (struct saver_lost){
                .loop = &f.agent.loop, .pidfd = stuck[0], .bytes = s->staging_bytes};
        f.agent.config.staging_bytes_max = bytes + bytes / 2;
        session_died(s);
        assert_int_equal(rank_exit(0)->body_case, BODY(RANK_SETTLED));
        fixture_start_run(&f, runner, 1);
        fixture_hello(&f, &next, 0);
        fixture_seal(&f, &next, 1);
        n = fixture_session(&f, 0);
        assert_true(n != s && n->no_room && !n->saver_sealed && n->staging_fd < 0);
        assert_int_equal(n->last_error.status, CAIRN_ERR_NOMEM);
        fixture_restore_done(&f, &next);
        fixture_update(&f, &next, 1, true);
        fixture_run_ms(&f, 100);
        assert_int_equal(atomic_load(&next.page->committed_seq), 0);
        s->saver.lost[0] = (struct saver_lost){0}; /* the storage let go of it */
        for (int i = 0; i < 1000 && !n->saver_sealed; i++)
                fixture_run_ms(&f, 10);
        assert_true(n->saver_sealed && !n->no_room && n->staging_bytes == bytes);
        fixture_update(&f, &next, 2, true);
        fixture_run_ms(&f, 100);
        assert_int_equal(atomic_load(&next.page->committed_step), 2);
        fixture_trainer_done(&next);
        (void) close(stuck[0]);
        (void) close(stuck[1]);
}

/* The same where only the restore needs more than there is: it waits, and is no end of the run. */
static void test_restore_waits_for_room(void **state) {
        struct session *s = fixture_session(&f, 0), *n;
        struct fixture_trainer next;
        uint64_t bytes = s->staging_bytes;
        int stuck[2];
        (void) state;
        assert_int_equal(pipe(stuck), 0);
        s->saver.lost[0] =
                (struct saver_lost){.loop = &f.agent.loop, .pidfd = stuck[0], .bytes = bytes};
        f.agent.config.staging_bytes_max = 2 * bytes + bytes / 2;
        session_died(s);
        assert_int_equal(rank_exit(0)->body_case, BODY(RANK_SETTLED));
        fixture_start_run(&f, runner, 1);
        fixture_hello(&f, &next, 0);
        fixture_seal(&f, &next, 1);
        n = fixture_session(&f, 0);
        assert_true(n->saver_sealed && !n->no_room);
        n->restore.wanted = true;
        n->restore.plan_fd = memfd_create("plan", MFD_CLOEXEC);
        n->restore.staging_bytes = 2 * bytes;
        session_set_state(n, SESSION_RESTORING);
        session_restore_begin(n);
        fixture_run_ms(&f, 50);
        assert_true(n->no_room && !n->restore.begun && n->state == SESSION_RESTORING);
        assert_int_equal(n->last_error.status, CAIRN_ERR_NOMEM);
        s->saver.lost[0] = (struct saver_lost){0}; /* the storage let go of it */
        for (int i = 0; i < 1000 && !n->restore.begun; i++)
                fixture_run_ms(&f, 10);
        assert_true(n->restore.begun && !n->no_room && n->staging_bytes == 2 * bytes);
        fixture_trainer_done(&next);
        (void) close(stuck[0]);
        (void) close(stuck[1]);
}

static void test_stop_without_room(void **state) {
        const struct run *run = agent_find_run(&f.agent, "demo");
        (void) state;
        fixture_update(&f, &t, 11, true);
        for (int i = 0; i < 100 && run->checkpoints_committed == 0; i++)
                fixture_run_ms(&f, 10);
        f.writes_fail = true;
        f.write_status = CAIRN_ERR_NOSPACE;
        ask_stop(60 * NSEC_PER_SEC);
        fixture_update(&f, &t, 12, true);
        for (int i = 0; i < 100 && run->attempts_failed == 0; i++)
                fixture_run_ms(&f, 10);
        expect_step_lost(CAIRN_ERR_NOSPACE);
}

/* Nothing failed, but there was no cut either: what whoever asked for it is told is no success. */
static void test_stop_that_saves_nothing(void **state) {
        struct run *run = agent_find_run(&f.agent, "demo");
        struct cut_gate gate = {.deadline_duration_ns = GATE_DEADLINE_NS_MIN};
        bool expired;
        (void) state;
        fixture_update(&f, &t, 11, true);
        for (int i = 0; i < 1000 && run->checkpoints_committed == 0; i++)
                fixture_run_ms(&f, 10);
        fixture_update(&f, &t, 12, false);
        assert_int_equal(cut_update_begin(t.page, &gate, &clock_system, &expired), 0);
        ask_stop(60 * NSEC_PER_SEC);
        fixture_run_ms(&f, 10);
        run->stop.termed = true; /* the test plays the trainer itself */
        run->stop.half_ns = 0;
        run_pump(run);
        fixture_run_ms(&f, 10);
        assert_true(run->stop.cut_demanded);
        expect_step_lost(CAIRN_ERR_TIMEOUT);
        assert_int_equal(run->attempts_failed, 0);
}

/* After failures the store is asked less and less often, but at once where somebody waits. */
static void test_asked_during_pause(void **state) {
        struct run *run = agent_find_run(&f.agent, "demo");
        (void) state;
        f.fail_verb = STORE_ATTEMPT_OPEN;
        f.fail_status = CAIRN_ERR_NOSPACE;
        fixture_update(&f, &t, 1, true); /* uses up what is armed */
        fixture_run_ms(&f, 50);
        run->open_failures = 20;
        for (unsigned i = 0; i < 20 && !run->open_after_ns; i++) {
                f.fail_verb = STORE_ATTEMPT_OPEN;
                fixture_update(&f, &t, 2 + i, true);
                fixture_run_ms(&f, 50);
        }
        assert_true(run->open_after_ns > 0);
        f.fail_verb = 0;
        run->open_after_ns += 60 * NSEC_PER_SEC;
        fixture_update(&f, &t, 40, false);
        ask_snapshot(true, 5 * NSEC_PER_SEC, "");
        const Cairn__Control__Envelope *reply = fixture_receive(&f, tool);
        assert_int_equal(reply->body_case, BODY(SNAPSHOT_REPLY));
        assert_int_equal(reply->snapshot_reply->step, 40);
}

/* What was begun before somebody asked says nothing about the storage of now. */
static void test_asked_while_opening(void **state) {
        struct run *run = agent_find_run(&f.agent, "demo");
        uint64_t failed = run->attempts_failed;
        (void) state;
        f.store_holds = true;
        size_t begun = fixture_count(&f, STORE_ATTEMPT_OPEN);
        fixture_update(&f, &t, 1, true); /* uses up what is armed */
        while (fixture_count(&f, STORE_ATTEMPT_OPEN) == begun)
                fixture_run_ms(&f, 10);
        fixture_update(&f, &t, 2, false);
        ask_snapshot(true, 5 * NSEC_PER_SEC, "");
        while (!demand_pending(run))
                fixture_run_ms(&f, 10);
        f.fail_verb = STORE_ATTEMPT_OPEN;
        f.fail_status = CAIRN_ERR_NOSPACE;
        f.store_holds = false;
        const Cairn__Control__Envelope *reply = fixture_receive(&f, tool);
        assert_int_equal(reply->body_case, BODY(SNAPSHOT_REPLY));
        assert_null(reply->failure);
        assert_int_equal(reply->snapshot_reply->step, 2);
        assert_int_equal(run->attempts_failed, failed + 1);
}

/* A fast schedule on storage that takes nothing: fewer and fewer tries, until one works. */
static void test_failing_writes_pause(void **state) {
        struct run *run = agent_find_run(&f.agent, "demo");
        int64_t step = 1;
        (void) state;
        f.writes_fail = true;
        f.write_status = CAIRN_ERR_NOSPACE;
        uint64_t begin = loop_now(&f.agent.loop);
        while (loop_now(&f.agent.loop) < begin + 2 * NSEC_PER_SEC) {
                fixture_update(&f, &t, step++, true);
                fixture_run_ms(&f, 10);
        }
        /* At 0, 0, 0.5 and 1.5 s, however slow this machine is. */
        uint64_t failed = run->attempts_failed;
        assert_true(failed >= 2);
        assert_true(failed <= 4);
        /* Whoever asks does not wait, and what works again is used at once. */
        run->arm_after_ns += 60 * NSEC_PER_SEC;
        ask_snapshot(true, 5 * NSEC_PER_SEC, "");
        const Cairn__Control__Envelope *reply = fixture_receive(&f, tool);
        assert_non_null(reply->failure);
        assert_int_equal(reply->failure->status, CAIRN_ERR_NOSPACE);
        assert_int_equal(run->attempts_failed, failed + 1);
        f.writes_fail = false;
        f.write_status = 0;
        fixture_update(&f, &t, step, false);
        ask_snapshot(true, 5 * NSEC_PER_SEC, "");
        reply = fixture_receive(&f, tool);
        assert_int_equal(reply->body_case, BODY(SNAPSHOT_REPLY));
        assert_int_equal(reply->snapshot_reply->step, step);
        for (int i = 0; i < 1000 && !f.savers[0].armed; i++)
                fixture_run_ms(&f, 5);
        fixture_update(&f, &t, ++step, true);
        for (int i = 0; i < 1000 && atomic_load(&t.page->committed_step) != step; i++)
                fixture_run_ms(&f, 5);
        assert_int_equal(atomic_load(&t.page->committed_step), step);
}

static void test_finish_and_end(void **state) {
        Cairn__Control__Envelope e = CAIRN__CONTROL__ENVELOPE__INIT;
        Cairn__Control__Finish m = CAIRN__CONTROL__FINISH__INIT;
        (void) state;
        f.saver_holds_write = true;
        fixture_update(&f, &t, 20, true);
        fixture_run_ms(&f, 20);
        m.reason = (ProtobufCBinaryData){9, (uint8_t *) "completed"};
        m.step = 20;
        e.body_case = BODY(FINISH);
        e.finish = &m;
        (void) fixture_send(&f, t.socket, &e, NULL, 0);
        fixture_run_ms(&f, 20);
        assert_int_equal(fixture_count(&f, STORE_FINISHED), 0); /* not before the last commit */
        f.saver_holds_write = false;
        const Cairn__Control__Envelope *reply = fixture_receive(&f, t.socket);
        assert_int_equal(reply->body_case, BODY(DONE));
        assert_string_equal(f.last[STORE_FINISHED].name, "completed");
        assert_int_equal(f.last[STORE_FINISHED].step, 20);
        session_died(fixture_session(&f, 0));
        assert_true(rank_exit(0)->rank_settled->finished);
        Cairn__Control__End end = CAIRN__CONTROL__END__INIT;
        end.run = DEMO;
        end.reason = m.reason;
        e.body_case = BODY(END);
        e.end = &end;
        reply = fixture_ask(&f, runner, &e, NULL, 0);
        assert_int_equal(reply->body_case, BODY(DONE));
        assert_int_equal(fixture_count(&f, STORE_EXIT), 1);
        assert_int_equal(fixture_count(&f, STORE_END_RUN), 1);
        fixture_run_ms(&f, 10);
        assert_null(agent_find_run(&f.agent, "demo"));
        for (size_t i = 0; i < SESSION_COUNT_MAX; i++)
                assert_null(f.agent.sessions[i]);
}

/* A reason is cut between two letters: half a letter would be refused when it is written. What is
 * missing is said all the same. */
static void test_finish_long_reason(void **state) {
        Cairn__Control__Envelope e = CAIRN__CONTROL__ENVELOPE__INIT;
        Cairn__Control__Finish m = CAIRN__CONTROL__FINISH__INIT;
        uint8_t reason[201] = "x"; /* then letters of two bytes each */
        (void) state;
        for (size_t i = 1; i < sizeof reason; i++)
                reason[i] = i % 2 ? 0xc3 : 0xa9;
        fixture_update(&f, &t, 20, false);
        m.reason = (ProtobufCBinaryData){sizeof reason, reason};
        m.step = 20;
        e.body_case = BODY(FINISH);
        e.finish = &m;
        const Cairn__Control__Envelope *reply = fixture_ask(&f, t.socket, &e, NULL, 0);
        assert_int_equal(reply->body_case, BODY(DONE));
        const char *missing = strstr(f.last[STORE_FINISHED].name, "; no checkpoint was committed");
        assert_non_null(missing);
        assert_int_equal((missing - f.last[STORE_FINISHED].name) % 2, 1);
        assert_in_range(strlen(f.last[STORE_FINISHED].name), 120, 127);
}

/* The newest snapshot failed: how far the newest checkpoint is from the end. */
static void test_finish_short(void **state) {
        Cairn__Control__Envelope e = CAIRN__CONTROL__ENVELOPE__INIT;
        Cairn__Control__Finish m = CAIRN__CONTROL__FINISH__INIT;
        (void) state;
        fixture_update(&f, &t, 20, true);
        fixture_run_ms(&f, 20);
        f.fail_verb = STORE_COMMIT;
        f.fail_status = CAIRN_ERR_NOSPACE;
        fixture_update(&f, &t, 40, true);
        fixture_run_ms(&f, 20);
        m.reason = (ProtobufCBinaryData){9, (uint8_t *) "completed"};
        m.step = 40;
        e.body_case = BODY(FINISH);
        e.finish = &m;
        const Cairn__Control__Envelope *reply = fixture_ask(&f, t.socket, &e, NULL, 0);
        assert_int_equal(reply->body_case, BODY(DONE));
        assert_string_equal(f.last[STORE_FINISHED].name,
                            "completed; the newest checkpoint is of step 20");
        session_died(fixture_session(&f, 0));
        const Cairn__Control__RankSettled *settled = rank_exit(0)->rank_settled;
        assert_true(settled->finished);
        assert_int_equal(settled->committed_step, 20);
        assert_int_equal(settled->lost_steps, 20);
}

static void test_second_runner(void **state) {
        Cairn__Control__Envelope e = CAIRN__CONTROL__ENVELOPE__INIT;
        Cairn__Control__Start m = CAIRN__CONTROL__START__INIT;
        (void) state;
        int second = fixture_connect(&f, RUNNER);
        m.run = DEMO;
        m.store = (ProtobufCBinaryData){6, (uint8_t *) "/store"};
        m.world = 1;
        m.mode = START_FRESH;
        e.body_case = BODY(START);
        e.start = &m;
        const Cairn__Control__Envelope *reply = fixture_ask(&f, second, &e, NULL, 0);
        assert_int_equal(reply->failure->status, CAIRN_ERR_EXISTS);
        m.world = 0;
        m.run = (ProtobufCBinaryData){3, (uint8_t *) "new"};
        reply = fixture_ask(&f, second, &e, NULL, 0);
        assert_int_equal(reply->failure->status, CAIRN_ERR_API);
        /* An override is one line of a list of lines. */
        Cairn__Control__Pair pair = CAIRN__CONTROL__PAIR__INIT, *pairs[] = {&pair};
        m.world = 1;
        m.overrides = pairs;
        m.n_overrides = 1;
        pair.key = (ProtobufCBinaryData){1, (uint8_t *) "a"};
        pair.value = (ProtobufCBinaryData){5, (uint8_t *) "1\nb=2"};
        reply = fixture_ask(&f, second, &e, NULL, 0);
        assert_int_equal(reply->failure->status, CAIRN_ERR_API);
        pair.value = (ProtobufCBinaryData){1, (uint8_t *) "\xff"};
        reply = fixture_ask(&f, second, &e, NULL, 0);
        assert_int_equal(reply->failure->status, CAIRN_ERR_API);
        (void) close(second);
}

static void test_agent_restart(void **state) {
        Cairn__Control__Envelope e = CAIRN__CONTROL__ENVELOPE__INIT;
        Cairn__Control__Hello h = CAIRN__CONTROL__HELLO__INIT;
        Cairn__Control__Start m = CAIRN__CONTROL__START__INIT;
        struct cut_word word;
        (void) state;
        /* The old agent is gone in the middle of a copy. */
        fixture_update(&f, &t, 1, false);
        assert_int_equal(cut_copy_begin(t.page, true, &word), 0);
        fixture_done(&f);
        (void) close(runner);
        (void) close(tool);
        (void) close(t.socket);
        fixture_init(&f);
        t.socket = fixture_connect_raw(&f);
        h.protocol = WIRE_PROTOCOL;
        h.kind = CAIRN__CONTROL__PEER_KIND__PEER_CLIENT;
        h.run = DEMO;
        h.session_id = t.session_id;
        h.generation = 1;
        h.secret = (ProtobufCBinaryData){sizeof t.secret, t.secret};
        e.body_case = BODY(HELLO);
        e.hello = &h;
        int fds[] = {(int) syscall(SYS_pidfd_open, getpid(), 0), t.page_fd};
        uint64_t id = fixture_send(&f, t.socket, &e, fds, 2);
        (void) close(fds[0]);
        fixture_run_ms(&f, 20);
        assert_int_equal(cut_read(t.page).phase, CUT_COPYING); /* held until the runner is here */
        runner = fixture_connect(&f, RUNNER);
        tool = fixture_connect(&f, TOOL);
        m.run = DEMO;
        m.store = (ProtobufCBinaryData){6, (uint8_t *) "/store"};
        m.world = 1;
        m.mode = START_FRESH;
        m.generation = 1;
        e.body_case = BODY(START);
        e.start = &m;
        const Cairn__Control__Envelope *reply = fixture_ask(&f, runner, &e, NULL, 0);
        assert_int_equal(reply->body_case, BODY(STARTED));
        assert_int_equal(reply->started->generation, 1);
        assert_int_equal(fixture_count(&f, STORE_START), 0);
        reply = fixture_receive(&f, t.socket);
        assert_int_equal(reply->id, id);
        assert_true(reply->welcome->reattached);
        assert_int_equal(reply->welcome->session_id, t.session_id);
        assert_int_equal(cut_read(t.page).phase, CUT_STABLE);
        assert_int_not_equal(cut_copy_end(t.page, word), 0);
        uint64_t seq;
        int status;
        assert_int_equal(cut_outcome_find(t.page, word.seq, &seq, &status), CUT_VOID);
        fixture_seal(&f, &t, 1);
        assert_int_equal(fixture_session(&f, 0)->state, SESSION_ACTIVE);
        fixture_run_ms(&f, 20);
        fixture_update(&f, &t, 2, true);
        fixture_run_ms(&f, 50);
        assert_int_equal(atomic_load(&t.page->committed_step), 2);
}

/* `cairn run` dies while its new agent takes the run up, and that fails: nothing is left to end. */
static void test_not_taken_up(void **state) {
        Cairn__Control__Envelope e = CAIRN__CONTROL__ENVELOPE__INIT;
        Cairn__Control__Start m = CAIRN__CONTROL__START__INIT;
        (void) state;
        fixture_done(&f);
        (void) close(runner);
        (void) close(tool);
        fixture_init(&f);
        runner = fixture_connect(&f, RUNNER);
        tool = fixture_connect(&f, TOOL);
        m.run = DEMO;
        m.store = (ProtobufCBinaryData){6, (uint8_t *) "/store"};
        m.world = 1;
        m.mode = START_FRESH;
        m.generation = 1;
        e.body_case = BODY(START);
        e.start = &m;
        f.store_holds = true;
        f.fail_verb = STORE_REOPEN;
        f.fail_status = CAIRN_ERR_BUSY;
        (void) fixture_send(&f, runner, &e, NULL, 0);
        fixture_run_ms(&f, 20);
        (void) shutdown(runner, SHUT_RDWR);
        fixture_run_ms(&f, 20);
        assert_non_null(agent_find_run(&f.agent, "demo"));
        f.store_holds = false;
        fixture_run_ms(&f, 200);
        assert_null(agent_find_run(&f.agent, "demo"));
        assert_int_equal(fixture_count(&f, STORE_EXIT), 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
int main(void) {
        const struct CMUnitTest tests[] = {
                TEST(test_scheduled),
                TEST(test_failed_write),
                TEST(test_failed_commit),
                TEST(test_flagged_is_no_progress),
                TEST(test_tag_is_no_text),
                TEST(test_demanded),
                TEST(test_demanded_in_update),
                TEST(test_void_is_asked_again),
                TEST(test_taken),
                TEST(test_death_settles_first),
                TEST(test_copied_across_death),
                TEST(test_successor_waits),
                TEST(test_saver_dies),
                TEST(test_saver_dies_untold),
                TEST(test_saver_hung_up),
                TEST(test_stuck_saver_is_replaced),
                cmocka_unit_test_setup_teardown(test_period_before_anything_else, setup_unsealed,
                                                teardown),
                TEST(test_room_comes_back),
                TEST(test_abandoned_staging),
                TEST(test_restore_waits_for_room),
                TEST(test_stop),
                TEST(test_stop_of_what_stays),
                TEST(test_stop_without_room),
                TEST(test_stop_that_saves_nothing),
                TEST(test_asked_during_pause),
                TEST(test_asked_while_opening),
                TEST(test_failing_writes_pause),
                TEST(test_finish_and_end),
                TEST(test_finish_long_reason),
                TEST(test_finish_short),
                TEST(test_second_runner),
                TEST(test_agent_restart),
                TEST(test_not_taken_up),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
