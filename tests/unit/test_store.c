/* SPDX-License-Identifier: Apache-2.0
 *
 * The store process by itself: what store_link's tests, which see it through its other end, do not.
 */
#include "tests/unit/store_fixture.h"

#include <sys/socket.h>

static pid_t begin(const char *path, int *ret_socket) {
        int pair[2];

        assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
        pid_t pid = fork();
        assert_true(pid >= 0);
        if (pid == 0) {
                (void) close(pair[0]);
                _exit(store_main(pair[1], path));
        }
        (void) close(pair[1]);
        *ret_socket = pair[0];
        return pid;
}

static int end(pid_t pid, int socket) {
        int status;
        (void) close(socket);
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFEXITED(status));
        return WEXITSTATUS(status);
}

static int ask(int socket, struct store_message *m) {
        static uint64_t id;
        m->id = ++id;
        assert_int_equal(send(socket, m, sizeof *m, 0), sizeof *m);
        assert_int_equal(recv(socket, m, sizeof *m, 0), sizeof *m);
        assert_int_equal(m->id, id);
        return m->status;
}

static int start(int socket, struct fixture *f, const char *run) {
        struct store_message m = {.verb = STORE_START};
        m.start = *fixture_request(f, START_FRESH);
        (void) snprintf(m.start.run, sizeof m.start.run, "%s", run);
        return ask(socket, &m);
}

static void test_ends_with_its_agent(void **state) {
        struct fixture *f = fixture_new();
        int socket;
        pid_t pid = begin(f->path, &socket);

        assert_int_equal(start(socket, f, "run"), 0);
        assert_int_equal(end(pid, socket), 0);
        fixture_free(f);
}

static void test_a_broken_request_ends_it(void **state) {
        struct fixture *f = fixture_new();
        int socket;
        pid_t pid = begin(f->path, &socket);

        assert_int_equal(send(socket, "short", 5, 0), 5);
        assert_int_equal(end(pid, socket), status_exit_code(CAIRN_ERR_PEER));
        fixture_free(f);
}

static void test_a_wrong_fault_point_is_told(void **state) {
        struct fixture *f = fixture_new();
        int socket;

        (void) setenv("CAIRN_FAULT", "no-such-point:1:crash", 1);
        pid_t pid = begin(f->path, &socket);
        (void) unsetenv("CAIRN_FAULT");
        assert_int_equal(end(pid, socket), status_exit_code(CAIRN_ERR_API));
        fixture_free(f);
}

static void test_a_table_of_runs(void **state) {
        struct fixture *f = fixture_new();
        char run[32];
        int socket;
        pid_t pid = begin(f->path, &socket);

        for (int i = 0; i < 16; i++) {
                (void) snprintf(run, sizeof run, "run%d", i);
                assert_int_equal(start(socket, f, run), 0);
        }
        assert_int_equal(start(socket, f, "run16"), CAIRN_ERR_NOMEM);
        assert_int_equal(start(socket, f, "run3"), CAIRN_ERR_NOMEM); /* it is running, besides */
        struct store_message m = {.verb = STORE_END_RUN, .run = "run7"};
        assert_int_equal(ask(socket, &m), 0);
        assert_int_equal(start(socket, f, "run3"), CAIRN_ERR_EXISTS);
        assert_int_equal(start(socket, f, "run16"), 0);
        assert_int_equal(end(pid, socket), 0);
        fixture_free(f);
}

static void test_more_attempts_than_it_keeps_open(void **state) {
        struct fixture *f = fixture_new();
        struct store_message m = {0};
        int socket;
        pid_t pid = begin(f->path, &socket);

        assert_int_equal(start(socket, f, "run"), 0);
        for (uint32_t i = 1; i <= 20; i++) {
                m = (struct store_message){.verb = STORE_ATTEMPT_OPEN,
                                           .run = "run",
                                           .generation = 1,
                                           .world = 2,
                                           .attempt = i};
                assert_int_equal(ask(socket, &m), 0);
        }
        for (uint32_t i = 1; i <= 20; i++) {
                m = (struct store_message){.verb = STORE_DISCARD,
                                           .run = "run",
                                           .generation = 1,
                                           .world = 2,
                                           .attempt = i};
                assert_int_equal(ask(socket, &m), 0);
        }
        m.verb = STORE_ATTEMPT_OPEN;
        m.count = 9;
        assert_int_equal(ask(socket, &m), CAIRN_ERR_API);
        assert_false(fixture_has(f, ".pending-g0001-a000001"));
        assert_int_equal(end(pid, socket), 0);
        fixture_free(f);
}

static void move(struct fixture *f, const char *from, const char *to) {
        char old[PATH_MAX], new[PATH_MAX];
        (void) snprintf(old, sizeof old, "%s/%s", f->folder, from);
        (void) snprintf(new, sizeof new, "%s/%s", f->folder, to);
        assert_int_equal(rename(old, new), 0);
}

static int remove_visited(const char *path, const struct stat *st, int type, struct FTW *place) {
        return remove(path);
}

static void remove_tree(struct fixture *f, const char *name) {
        char path[PATH_MAX];
        (void) snprintf(path, sizeof path, "%s/%s", f->folder, name);
        assert_int_equal(nftw(path, remove_visited, 16, FTW_DEPTH | FTW_PHYS), 0);
}

static int ask_attempt(int socket, enum store_verb verb, uint32_t attempt,
                       struct store_message *m) {
        *m = (struct store_message){
                .verb = verb, .run = "run", .generation = 1, .world = 2, .attempt = attempt};
        return ask(socket, m);
}

static int ask_restart(int socket, struct fixture *f) {
        struct store_message m = {.verb = STORE_START, .generation = 1};
        m.start = *fixture_request(f, START_FRESH);
        m.start.is_restart = true;
        return ask(socket, &m);
}

static void test_a_run_whose_folder_is_removed(void **state) {
        struct fixture *f = fixture_new();
        struct store_message m;
        int socket;
        pid_t pid = begin(f->path, &socket);

        assert_int_equal(start(socket, f, "run"), 0);
        assert_int_equal(ask_attempt(socket, STORE_ATTEMPT_OPEN, 1, &m), 0);
        remove_tree(f, "store/run");
        assert_int_equal(ask_attempt(socket, STORE_PUBLISH_MANIFEST, 1, &m),
                         CAIRN_ERR_CANNOT_WRITE);
        assert_non_null(strstr(m.error.object, "/store/run"));
        /* Nothing is begun anew in place of what was lost. */
        assert_int_equal(ask_restart(socket, f), CAIRN_ERR_CANNOT_WRITE);
        assert_non_null(strstr(m.error.message, "removed"));
        assert_false(fixture_has(f, ""));
        /* What the trainers hold can be saved all the same. */
        assert_int_equal(ask_attempt(socket, STORE_ATTEMPT_OPEN, 2, &m), 0);
        assert_true(m.remade);
        assert_true(fixture_has(f, "GEN-0001.start"));
        assert_int_equal(ask_attempt(socket, STORE_COMMIT, 1, &m), CAIRN_ERR_CANNOT_WRITE);
        assert_int_equal(ask_attempt(socket, STORE_DISCARD, 1, &m), 0);
        assert_int_equal(ask_attempt(socket, STORE_ATTEMPT_OPEN, 3, &m), 0);
        assert_false(m.remade);
        assert_int_equal(ask_restart(socket, f), 0);
        assert_int_equal(end(pid, socket), 0);
        fixture_free(f);
}

/* In the middle of its removal the folder is there and what it held is not. */
static void test_a_run_whose_files_are_removed(void **state) {
        struct fixture *f = fixture_new();
        struct store_message m;
        int socket;
        pid_t pid = begin(f->path, &socket);

        assert_int_equal(start(socket, f, "run"), 0);
        assert_int_equal(ask_attempt(socket, STORE_ATTEMPT_OPEN, 1, &m), 0);
        assert_int_equal(ask_attempt(socket, STORE_PUBLISH_MANIFEST, 1, &m),
                         CAIRN_ERR_CANNOT_WRITE);
        assert_non_null(strstr(m.error.message, "removes files of the run"));
        assert_int_equal(ask_attempt(socket, STORE_ATTEMPT_OPEN, 2, &m), 0);
        /* A question is answered as it is. */
        m = (struct store_message){.verb = STORE_PIN,
                                   .run = "run",
                                   .generation = 1,
                                   .world = 2,
                                   .name = "000000000010-g0001"};
        assert_int_equal(ask(socket, &m), CAIRN_ERR_NOTFOUND);
        assert_int_equal(end(pid, socket), 0);
        fixture_free(f);
}

static void test_a_store_that_is_removed(void **state) {
        struct fixture *f = fixture_new();
        struct store_message m;
        int socket;
        pid_t pid = begin(f->path, &socket);

        assert_int_equal(start(socket, f, "run"), 0);
        remove_tree(f, "store");
        assert_int_equal(ask_attempt(socket, STORE_ATTEMPT_OPEN, 1, &m), CAIRN_ERR_CANNOT_WRITE);
        assert_string_equal(m.error.object, f->path);
        assert_non_null(strstr(m.error.message, "cairn init"));
        assert_int_equal(ask_attempt(socket, STORE_PUBLISH_MANIFEST, 1, &m),
                         CAIRN_ERR_CANNOT_WRITE);
        /* An empty folder is a mount point without its file system. */
        assert_int_equal(mkdir(f->path, 0755), 0);
        assert_int_equal(ask_attempt(socket, STORE_ATTEMPT_OPEN, 1, &m), CAIRN_ERR_CANNOT_WRITE);
        assert_false(fixture_has(f, ""));
        assert_int_equal(store_create(&io_system, &clock_system, f->path, 1, &f->e), 0);
        assert_int_equal(ask_attempt(socket, STORE_ATTEMPT_OPEN, 1, &m), 0);
        assert_true(m.remade);
        /* Another run of this agent finds the new store, too. */
        assert_int_equal(start(socket, f, "other"), 0);
        assert_int_equal(end(pid, socket), 0);
        fixture_free(f);
}

static void test_a_store_that_is_moved(void **state) {
        struct fixture *f = fixture_new();
        struct store_message m;
        int socket;
        pid_t pid = begin(f->path, &socket);

        assert_int_equal(start(socket, f, "run"), 0);
        move(f, "store", "elsewhere");
        assert_int_equal(ask_attempt(socket, STORE_ATTEMPT_OPEN, 1, &m), CAIRN_ERR_CANNOT_WRITE);
        assert_non_null(strstr(m.error.message, "/elsewhere/run: move"));
        assert_int_equal(access(f->path, F_OK), -1);
        move(f, "elsewhere", "store");
        assert_int_equal(ask_attempt(socket, STORE_ATTEMPT_OPEN, 1, &m), 0);
        assert_false(m.remade);
        /* The folder of another start of that name. */
        remove_tree(f, "store/run");
        assert_int_equal(fixture_start_mode(f, START_FRESH), 0);
        store_run_done(&f->run);
        char path[PATH_MAX];
        (void) snprintf(path, sizeof path, "%s/run/GEN-0001.start", f->path);
        assert_int_equal(unlink(path), 0);
        assert_int_equal(ask_attempt(socket, STORE_ATTEMPT_OPEN, 2, &m), CAIRN_ERR_CANNOT_WRITE);
        assert_non_null(strstr(m.error.message, "GEN-0001.start is missing"));
        assert_int_equal(end(pid, socket), 0);
        fixture_free(f);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_ends_with_its_agent),
                cmocka_unit_test(test_a_broken_request_ends_it),
                cmocka_unit_test(test_a_wrong_fault_point_is_told),
                cmocka_unit_test(test_a_table_of_runs),
                cmocka_unit_test(test_more_attempts_than_it_keeps_open),
                cmocka_unit_test(test_a_run_whose_folder_is_removed),
                cmocka_unit_test(test_a_run_whose_files_are_removed),
                cmocka_unit_test(test_a_store_that_is_removed),
                cmocka_unit_test(test_a_store_that_is_moved),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
