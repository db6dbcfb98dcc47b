/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/parcel.h"
#include "agent/store_link.h"
#include "tests/unit/store_fixture.h"

#include <poll.h>
#include <sys/pidfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>

/* The child without exec: store_main, or one that answers nothing. */
struct children {
        char fault[64]; /* CAIRN_FAULT of the next child, then cleared */
        bool mute;      /* the next child reads nothing and never ends by itself */
        bool broken;    /* cannot be started */
        unsigned count;
        pid_t last;
};

static int spawn(void *context, const char *path, int *ret_socket, int *ret_pidfd,
                 struct cairn_error *reterr) {
        struct children *c = context;
        int pair[2];

        c->count++;
        if (c->broken)
                return error_set_errno(reterr, EAGAIN, "start store process", path);
        assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
        pid_t pid = fork();
        assert_true(pid >= 0);
        if (pid == 0) {
                (void) close(pair[0]);
                if (c->mute)
                        for (;;)
                                (void) pause();
                (void) setenv("CAIRN_FAULT", c->fault, 1);
                _exit(store_main(pair[1], path));
        }
        (void) close(pair[1]);
        c->mute = false;
        c->fault[0] = '\0';
        c->last = pid;
        *ret_socket = pair[0];
        *ret_pidfd = pidfd_open(pid, 0);
        return 0;
}

struct answers {
        unsigned count;
        struct store_message last;
        int fds[WIRE_FDS_MAX];
        size_t fd_count;
        char order[64];
};

static void on_done(void *context, struct store_message *reply, int *fds, size_t fd_count) {
        struct answers *a = context;
        a->last = *reply;
        a->fd_count = fd_count;
        for (size_t i = 0; i < fd_count; i++) {
                a->fds[i] = fds[i];
                fds[i] = -1;
        }
        if (a->count < sizeof a->order)
                a->order[a->count] = (char) ('0' + reply->attempt % 10);
        a->count++;
}

struct linked {
        struct fixture *f;
        struct children children;
        struct answers answers;
        struct store_link *link;
};

static void linked_init(struct linked *l) {
        *l = (struct linked){.f = fixture_new()};
        assert_int_equal(store_link_new(l->f->path, spawn, &l->children, &l->link, NULL), 0);
}

static void linked_done(struct linked *l) {
        l->link = store_link_free(l->link);
        if (l->children.last > 0)
                (void) waitpid(l->children.last, NULL, 0);
        fixture_free(l->f);
}

static void submit(struct linked *l, const struct store_message *m, uint64_t timeout_ns) {
        assert_int_equal(store_link_submit(l->link, m, timeout_ns, on_done, &l->answers, NULL), 0);
}

static void drive(struct linked *l, unsigned answers) {
        uint64_t end = clock_now(&clock_system) + 100 * NSEC_PER_SEC;
        while (l->answers.count < answers) {
                struct pollfd p = {.fd = store_link_fd(l->link), .events = POLLIN};
                assert_true(clock_now(&clock_system) < end);
                (void) poll(&p, 1, 1000);
                store_link_dispatch(l->link);
        }
        assert_int_equal(l->answers.count, answers);
}

static int ask(struct linked *l, struct store_message m) {
        memcpy(m.run, "run", 4);
        m.world = 2;
        submit(l, &m, 60 * NSEC_PER_SEC);
        drive(l, l->answers.count + 1);
        return l->answers.last.status;
}

static void start_run(struct linked *l) {
        struct store_message m = {.verb = STORE_START};
        m.start = *fixture_request(l->f, START_FRESH);
        assert_int_equal(ask(l, m), 0);
        assert_int_equal(l->answers.last.started.generation, 1);
        assert_int_equal(l->answers.last.generation, 1);
}

/* ATTEMPT_OPEN and what savers do then. */
static void write_attempt(struct linked *l, uint32_t attempt, int64_t step) {
        struct ranks_cut cut = {
                .run = "run", .generation = 1, .attempt = attempt, .world = 2, .step = step};

        assert_int_equal(ask(l, (struct store_message){.verb = STORE_ATTEMPT_OPEN,
                                                       .generation = 1,
                                                       .attempt = attempt,
                                                       .count = 2}),
                         0);
        assert_int_equal(l->answers.fd_count, 2);
        for (uint32_t rank = 0; rank < 2; rank++) {
                int fds[2];
                assert_int_equal(parcel_unpack(l->answers.fds[rank], fds, 2, NULL), 0);
                (void) close(l->answers.fds[rank]);
                assert_int_equal(ranks_write(&io_system, &cut, rank, fds[0], fds[1], NULL), 0);
                (void) close(fds[0]);
                (void) close(fds[1]);
        }
}

static int publish(struct linked *l, uint32_t attempt, uint32_t rank) {
        return ask(l, (struct store_message){.verb = STORE_PUBLISH_MANIFEST,
                                             .generation = 1,
                                             .attempt = attempt,
                                             .rank = rank});
}

static int commit(struct linked *l, uint32_t attempt) {
        return ask(l, (struct store_message){
                              .verb = STORE_COMMIT, .generation = 1, .attempt = attempt});
}

static void test_a_run_from_start_to_end(void **state) {
        struct linked l;

        linked_init(&l);
        start_run(&l);
        write_attempt(&l, 1, 10);
        assert_int_equal(publish(&l, 1, 0), 0);
        assert_int_equal(publish(&l, 1, 1), 0);
        assert_int_equal(commit(&l, 1), 0);
        assert_string_equal(l.answers.last.committed.name, "000000000010-g0001");
        assert_int_equal(
                ask(&l,
                    (struct store_message){.verb = STORE_RETAIN, .generation = 1, .keep_last = 3}),
                0);
        struct store_message m = {.verb = STORE_RESTORE_OPEN, .name = "000000000010-g0001"};
        assert_int_equal(ask(&l, m), 0);
        assert_int_equal(l.answers.last.world, 2);
        assert_int_equal(l.answers.fd_count, 1);
        (void) close(l.answers.fds[0]);
        m.verb = STORE_RESTORE_FILES;
        m.count = 2;
        assert_int_equal(ask(&l, m), 0);
        int files[2];
        assert_int_equal(l.answers.fd_count, 1);
        assert_int_equal(parcel_unpack(l.answers.fds[0], files, 2, NULL), 0);
        (void) close(l.answers.fds[0]);
        (void) close(files[0]);
        (void) close(files[1]);
        m = (struct store_message){.verb = STORE_TAG, .generation = 1, .name = "best"};
        memcpy(m.committed.name, "000000000010-g0001", 19);
        assert_int_equal(ask(&l, m), 0);
        m = (struct store_message){.verb = STORE_FINISHED, .generation = 1, .name = "done"};
        assert_int_equal(ask(&l, m), 0);
        m.verb = STORE_EXIT;
        assert_int_equal(ask(&l, m), 0);
        assert_int_equal(ask(&l, (struct store_message){.verb = STORE_END_RUN}), 0);
        assert_int_equal(l.children.count, 1);
        /* The lock is free, and the run is finished. */
        assert_int_equal(fixture_start_mode(l.f, START_AUTO), 0);
        assert_true(l.f->reply.finished);
        linked_done(&l);
}

static void test_refusals_travel_whole(void **state) {
        struct store_message m = {.verb = STORE_START};
        struct linked l;

        linked_init(&l);
        m.start = *fixture_request(l.f, START_RESUME);
        assert_int_equal(ask(&l, m), CAIRN_ERR_UNREACHABLE);
        assert_int_equal(l.answers.last.error.status, CAIRN_ERR_UNREACHABLE);
        assert_non_null(strstr(l.answers.last.error.message, "no such folder"));
        assert_int_equal(ask(&l, (struct store_message){.verb = 99, .generation = 1}),
                         CAIRN_ERR_CANNOT_WRITE);
        linked_done(&l);
}

static void test_answers_in_order_and_a_full_queue(void **state) {
        struct linked l;
        struct store_message m = {.verb = STORE_END_RUN, .run = "run"};

        linked_init(&l);
        for (uint32_t i = 0; i < STORE_LINK_QUEUE_MAX; i++) {
                m.attempt = i;
                submit(&l, &m, NSEC_PER_SEC);
        }
        assert_int_equal(store_link_submit(l.link, &m, 1, on_done, &l.answers, NULL),
                         CAIRN_ERR_BUSY);
        assert_int_equal(store_link_waiting(l.link), STORE_LINK_QUEUE_MAX);
        assert_int_equal(l.answers.count, 0); /* never from within submit */
        drive(&l, STORE_LINK_QUEUE_MAX);
        assert_memory_equal(l.answers.order, "0123456789012345678901234567", 28);
        assert_int_equal(store_link_waiting(l.link), 0);
        linked_done(&l);
}

/* Killed at each place of a commit: unknown, and asking again tells. */
static void test_killed_while_committing(void **state) {
        static const char *const points[] = {"manifest-rename", "commit-index", "commit-record",
                                             "commit-rename", "commit-parent-sync"};

        for (size_t i = 0; i < sizeof points / sizeof *points; i++) {
                struct linked l;
                linked_init(&l);
                (void) snprintf(l.children.fault, sizeof l.children.fault, "%s:1:crash", points[i]);
                start_run(&l);
                write_attempt(&l, 1, 10);
                int r = publish(&l, 1, 0);
                if (r < 0)
                        r = publish(&l, 1, 0);
                assert_int_equal(r, 0);
                assert_int_equal(publish(&l, 1, 1), 0);
                r = commit(&l, 1);
                if (i > 0) {
                        assert_int_equal(r, CAIRN_ERR_PEER);
                        assert_non_null(strstr(l.answers.last.error.message, "unknown"));
                        r = commit(&l, 1);
                }
                assert_int_equal(r, 0);
                assert_string_equal(l.answers.last.committed.name, "000000000010-g0001");
                assert_int_equal(l.children.count, 2);
                /* The successor holds the lock. */
                (void) fixture_request(l.f, START_AUTO);
                assert_int_equal(fixture_start(l.f), CAIRN_ERR_EXISTS);
                linked_done(&l);
        }
}

static void test_time_out_kills_and_replaces(void **state) {
        struct linked l;
        struct store_message m = {.verb = STORE_RETAIN, .run = "run", .generation = 1, .world = 2};

        linked_init(&l);
        (void) snprintf(l.children.fault, sizeof l.children.fault, "attempt-open:1:stop");
        start_run(&l);
        m.verb = STORE_ATTEMPT_OPEN;
        m.attempt = 1;
        uint64_t begin = clock_now(&clock_system);
        submit(&l, &m, 200 * NSEC_PER_MSEC);
        m.attempt = 2; /* waits behind it */
        submit(&l, &m, 60 * NSEC_PER_SEC);
        drive(&l, 2);
        assert_int_equal(l.answers.last.status, CAIRN_ERR_TIMEOUT);
        assert_int_equal(l.answers.last.attempt, 1);
        assert_true(clock_now(&clock_system) - begin >= 200 * NSEC_PER_MSEC);
        drive(&l, 3);
        assert_int_equal(l.answers.last.status, 0);
        assert_int_equal(l.answers.last.attempt, 2);
        assert_int_equal(l.children.count, 2);
        linked_done(&l);
}

/* A child that never answers costs each request its time, and no more. */
static void test_mute_child(void **state) {
        struct store_message m = {.verb = STORE_END_RUN, .run = "run"};
        struct linked l;

        linked_init(&l);
        l.children.mute = true;
        submit(&l, &m, 100 * NSEC_PER_MSEC);
        drive(&l, 1);
        assert_int_equal(l.answers.last.status, CAIRN_ERR_TIMEOUT);
        submit(&l, &m, 60 * NSEC_PER_SEC); /* the next child comes after a pause */
        drive(&l, 2);
        assert_int_equal(l.answers.last.status, 0);
        linked_done(&l);
}

static void test_child_that_cannot_start(void **state) {
        struct store_message m = {.verb = STORE_END_RUN, .run = "run"};
        struct linked l;

        linked_init(&l);
        l.children.broken = true;
        submit(&l, &m, NSEC_PER_SEC);
        drive(&l, 1);
        assert_true(l.answers.last.status < 0);
        l.children.broken = false;
        submit(&l, &m, 60 * NSEC_PER_SEC);
        drive(&l, 2);
        assert_int_equal(l.answers.last.status, 0);
        linked_done(&l);
}

/* An agent that was restarted alone takes its run up again; an older generation is refused. */
static void test_reopen_after_a_restart_of_the_agent(void **state) {
        struct linked l;

        linked_init(&l);
        start_run(&l);
        write_attempt(&l, 1, 10);
        write_attempt(&l, 2, 20);
        assert_int_equal(publish(&l, 1, 0), 0);
        assert_int_equal(publish(&l, 1, 1), 0);
        assert_int_equal(publish(&l, 2, 0), 0);
        l.link = store_link_free(l.link);
        (void) waitpid(l.children.last, NULL, 0);
        assert_int_equal(store_link_new(l.f->path, spawn, &l.children, &l.link, NULL), 0);
        /* The whole attempt is committed, the other one is gone. */
        assert_int_equal(
                ask(&l,
                    (struct store_message){.verb = STORE_REOPEN, .generation = 1, .take_up = true}),
                0);
        assert_string_equal(l.answers.last.started.committed, "000000000010-g0001");
        assert_int_not_equal(publish(&l, 2, 1), 0);
        struct store_message m = {.verb = STORE_START};
        m.start = *fixture_request(l.f, START_FRESH);
        m.start.is_restart = true;
        assert_int_equal(ask(&l, m), 0);
        assert_int_equal(l.answers.last.started.generation, 2);
        assert_int_equal(l.answers.last.started.checkpoint_step, 10);
        assert_int_equal(ask(&l, (struct store_message){.verb = STORE_RETAIN, .generation = 1}),
                         CAIRN_ERR_STALE);
        linked_done(&l);
}

/* Pins and pruning of a run that nobody runs. */
static void test_requests_on_a_run_at_rest(void **state) {
        struct store_message m = {.verb = STORE_PIN, .name = "000000000010-g0001"};
        struct linked l;

        linked_init(&l);
        assert_int_equal(fixture_start_mode(l.f, START_FRESH), 0);
        fixture_commit(l.f, 10);
        fixture_reopen(l.f); /* before the fork, which would share the lock */
        assert_int_equal(ask(&l, m), 0);
        assert_true(fixture_has(l.f, "marks/PIN-000000000010-g0001"));
        m.verb = STORE_UNPIN;
        assert_int_equal(ask(&l, m), 0);
        assert_false(fixture_has(l.f, "marks/PIN-000000000010-g0001"));
        assert_int_equal(fixture_start_mode(l.f, START_RESUME), 0); /* the lock was let go */
        linked_done(&l);
}

/* The child must not outlive the agent, nor hear its signals. */
static void test_child_ends_with_the_socket(void **state) {
        struct linked l;
        int status;

        linked_init(&l);
        start_run(&l);
        assert_int_equal(kill(l.children.last, SIGTERM), 0);
        assert_int_equal(kill(l.children.last, SIGINT), 0);
        assert_int_equal(ask(&l, (struct store_message){.verb = STORE_END_RUN}), 0);
        l.link = store_link_free(l.link);
        /* The link may have collected it already. */
        pid_t pid = waitpid(l.children.last, &status, 0);
        assert_true(pid == l.children.last || (pid < 0 && errno == ECHILD));
        linked_done(&l);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_a_run_from_start_to_end),
                cmocka_unit_test(test_refusals_travel_whole),
                cmocka_unit_test(test_answers_in_order_and_a_full_queue),
                cmocka_unit_test(test_killed_while_committing),
                cmocka_unit_test(test_time_out_kills_and_replaces),
                cmocka_unit_test(test_mute_child),
                cmocka_unit_test(test_child_that_cannot_start),
                cmocka_unit_test(test_reopen_after_a_restart_of_the_agent),
                cmocka_unit_test(test_requests_on_a_run_at_rest),
                cmocka_unit_test(test_child_ends_with_the_socket),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
