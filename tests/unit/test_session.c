/* SPDX-License-Identifier: Apache-2.0
 *
 * What a trainer may say when, and what is refused (agent_fixture.h plays the rest).
 */
#include "tests/test.h"
#include "tests/unit/agent_fixture.h"
#include <sys/syscall.h>

#define BODY(name) CAIRN__CONTROL__ENVELOPE__BODY_##name
#define DEMO ((ProtobufCBinaryData){4, (uint8_t *) "demo"})

static struct fixture f;
static struct fixture_trainer t;
static int runner;

static int setup(void **state) {
        (void) state;
        fixture_init(&f);
        runner = fixture_connect(&f, CAIRN__CONTROL__PEER_KIND__PEER_RUNNER);
        fixture_start_run(&f, runner, 2);
        fixture_hello(&f, &t, 0);
        return 0;
}

static int teardown(void **state) {
        (void) state;
        fixture_trainer_done(&t);
        (void) close(runner);
        fixture_done(&f);
        return 0;
}

static int hello_status(uint32_t rank, int pidfd) {
        Cairn__Control__Envelope e = CAIRN__CONTROL__ENVELOPE__INIT;
        Cairn__Control__Hello h = CAIRN__CONTROL__HELLO__INIT;
        int fd = fixture_connect_raw(&f);
        h.protocol = WIRE_PROTOCOL;
        h.kind = CAIRN__CONTROL__PEER_KIND__PEER_CLIENT;
        h.run = DEMO;
        h.rank = rank;
        e.body_case = BODY(HELLO);
        e.hello = &h;
        const Cairn__Control__Envelope *reply = fixture_ask(&f, fd, &e, &pidfd, pidfd >= 0);
        int status = reply->failure ? reply->failure->status : 0;
        (void) close(fd);
        return status;
}

static void test_hello_refused(void **state) {
        (void) state;
        int own = (int) syscall(SYS_pidfd_open, getpid(), 0);
        int other = (int) syscall(SYS_pidfd_open, getppid(), 0);
        assert_int_equal(hello_status(2, own), CAIRN_ERR_API);  /* no such rank */
        assert_int_equal(hello_status(0, own), CAIRN_ERR_BUSY); /* alive */
        assert_int_equal(hello_status(1, -1), CAIRN_ERR_API);   /* no pidfd */
        assert_int_equal(hello_status(1, f.agent.loop.epoll_fd), CAIRN_ERR_API);
        if (other >= 0)
                assert_int_equal(hello_status(1, other), CAIRN_ERR_API); /* of another process */
        assert_int_equal(hello_status(1, own), 0);
        (void) close(own);
        (void) close(other);
}

static void test_page(void **state) {
        uint64_t bytes;
        (void) state;
        assert_int_equal(wire_memfd_check(t.page_fd, F_SEAL_SHRINK | F_SEAL_GROW,
                                          CONTROL_PAGE_BYTES, CONTROL_PAGE_BYTES, &bytes, NULL),
                         0);
        assert_int_equal(control_page_check(t.page, CONTROL_PAGE_BYTES, NULL), 0);
        assert_int_equal(cut_read(t.page).phase, CUT_UPDATING);
        assert_int_equal(t.page->session_id, t.session_id);
}

static void test_states(void **state) {
        (void) state;
        struct session *s = fixture_session(&f, 0);
        assert_int_equal(s->state, SESSION_WELCOMED);
        fixture_seal(&f, &t, 1);
        assert_int_equal(s->state, SESSION_SEALED);
        assert_int_equal(s->gate_deadline_ns, GATE_DEADLINE_NS_MIN);
        fixture_restore_done(&f, &t);
        assert_int_equal(s->state, SESSION_ACTIVE);
        fixture_seal(&f, &t, 2); /* inside an update; here the state alone counts */
        assert_int_equal(s->state, SESSION_ACTIVE);
        assert_int_equal(s->seal, 2);
        assert_int_equal(f.seals, 2);
        fixture_seal(&f, &t, 2); /* the same again, after a reconnection */
        assert_int_equal(f.seals, 2);
}

/* The saver finds another image than the trainer announced: refused, and asked again it holds. */
static void test_announced_image(void **state) {
        (void) state;
        struct session *s = fixture_session(&f, 0);
        f.image_bytes = 12288;
        fixture_seal_refused(&f, &t, 1, CAIRN_ERR_MISMATCH);
        assert_int_equal(s->state, SESSION_WELCOMED);
        f.image_bytes = 0;
        fixture_seal(&f, &t, 1);
        assert_int_equal(s->state, SESSION_SEALED);
}

/* A trainer that never says RestoreDone: the page does. */
static void test_page_makes_active(void **state) {
        uint64_t seq;
        bool ring;
        (void) state;
        struct session *s = fixture_session(&f, 0);
        fixture_seal(&f, &t, 1);
        assert_int_equal(cut_update_end(t.page, 0, 1, &seq, &ring), 0);
        run_pump(s->run);
        assert_int_equal(s->state, SESSION_ACTIVE);
}

static void test_no_room(void **state) {
        Cairn__Control__Envelope e = CAIRN__CONTROL__ENVELOPE__INIT;
        Cairn__Control__Seal m = CAIRN__CONTROL__SEAL__INIT;
        (void) state;
        f.agent.config.staging_bytes_max = 4096;
        /* fixture_seal insists on success: the same by hand, with its own descriptors. */
        int fds[2];
        assert_int_equal(wire_memfd_create("a", 100, &fds[0], NULL), 0);
        assert_int_equal(wire_memfd_create("b", 100, &fds[1], NULL), 0);
        m.seal = 1;
        m.bytes = 8192;
        e.body_case = BODY(SEAL);
        e.seal = &m;
        const Cairn__Control__Envelope *reply = fixture_ask(&f, t.socket, &e, fds, 2);
        assert_non_null(reply->failure); /* not sealed against shrinking */
        assert_int_equal(fixture_session(&f, 0)->state, SESSION_WELCOMED);
        reply = fixture_ask(&f, t.socket, &e, NULL, 0);
        assert_int_equal(reply->failure->status, CAIRN_ERR_API);
        m.bytes = 5000; /* no data file has such a size */
        reply = fixture_ask(&f, t.socket, &e, fds, 2);
        assert_int_equal(reply->failure->status, CAIRN_ERR_API);
        m.bytes = 8192;
        m.device_uuid = (ProtobufCBinaryData){3, (uint8_t *) "abc"}; /* a GPU has 16 */
        reply = fixture_ask(&f, t.socket, &e, fds, 2);
        assert_int_equal(reply->failure->status, CAIRN_ERR_API);
        assert_non_null(
                memmem(reply->failure->message.data, reply->failure->message.len, "UUID", 4));
        (void) close(fds[0]);
        (void) close(fds[1]);
}

static void test_out_of_order(void **state) {
        Cairn__Control__Envelope e = CAIRN__CONTROL__ENVELOPE__INIT;
        Cairn__Control__RestoreDone done = CAIRN__CONTROL__RESTORE_DONE__INIT;
        Cairn__Control__Restore restore = CAIRN__CONTROL__RESTORE__INIT;
        Cairn__Control__InventoryRequest inventory = CAIRN__CONTROL__INVENTORY_REQUEST__INIT;
        (void) state;
        e.body_case = BODY(RESTORE_DONE);
        e.restore_done = &done;
        assert_int_equal(fixture_ask(&f, t.socket, &e, NULL, 0)->failure->status, CAIRN_ERR_API);
        e.body_case = BODY(RESTORE);
        e.restore = &restore;
        assert_int_equal(fixture_ask(&f, t.socket, &e, NULL, 0)->failure->status, CAIRN_ERR_API);
        e.body_case = BODY(INVENTORY_REQUEST);
        e.inventory_request = &inventory;
        assert_int_equal(fixture_ask(&f, t.socket, &e, NULL, 0)->failure->status,
                         CAIRN_ERR_NOTFOUND);
}

/* Two ranks that were cut at different steps make no checkpoint; level ones do. */
static void test_two_ranks(void **state) {
        struct fixture_trainer u;
        (void) state;
        fixture_hello(&f, &u, 1);
        fixture_seal(&f, &t, 1);
        fixture_seal(&f, &u, 1);
        fixture_restore_done(&f, &t);
        fixture_restore_done(&f, &u);
        fixture_run_ms(&f, 30);
        fixture_update(&f, &t, 1, true);
        fixture_update(&f, &u, 1, true);
        fixture_run_ms(&f, 60);
        assert_int_equal(atomic_load(&t.page->committed_step), 1);
        assert_int_equal(atomic_load(&u.page->committed_step), 1);
        fixture_update(&f, &t, 2, true);
        fixture_update(&f, &u, 2, false);
        fixture_update(&f, &u, 3, true);
        fixture_run_ms(&f, 60);
        assert_int_equal(fixture_count(&f, STORE_COMMIT), 1);
        assert_int_equal(agent_find_run(&f.agent, "demo")->cuts_skipped, 1);
        assert_int_equal(agent_find_run(&f.agent, "demo")->attempts_failed, 0);
        fixture_update(&f, &t, 3, false);
        fixture_update(&f, &t, 4, true);
        fixture_update(&f, &u, 4, true);
        fixture_run_ms(&f, 60);
        assert_int_equal(atomic_load(&t.page->committed_step), 4);
        fixture_trainer_done(&u);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
int main(void) {
        const struct CMUnitTest tests[] = {
                TEST(test_hello_refused),
                TEST(test_page),
                TEST(test_states),
                TEST(test_announced_image),
                TEST(test_page_makes_active),
                TEST(test_no_room),
                TEST(test_out_of_order),
                TEST(test_two_ranks),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
