/* SPDX-License-Identifier: Apache-2.0
 *
 * The child that makes unique ids: it lives as long as it is wanted, and not longer than its
 * parent. Stand-ins for it are scripts.
 */
#include "base/clock.h"
#include "base/limits.h"
#include "comm/nccl_id.h"
#include "tests/test.h"

#include <errno.h>
#include <sys/stat.h>

static char folder[256];

static void stand_in(const char *body) {
        char path[300];
        (void) snprintf(path, sizeof path, "%s/stand-in", folder);
        FILE *f = fopen(path, "we");
        assert_non_null(f);
        (void) fprintf(f, "#!/bin/bash\n%s\n", body);
        assert_int_equal(fclose(f), 0);
        assert_int_equal(chmod(path, 0700), 0);
        assert_int_equal(setenv("CAIRN_NCCL_ID", path, 1), 0);
}

static int read_within(struct nccl_id_child *child, struct nccl_id *ret, struct cairn_error *e) {
        int r = 0;
        for (int i = 0; i < 300 && r == 0; i++)
                r = nccl_id_read(child, ret, 100, e);
        return r;
}

static void an_id_in_two_pieces(void **state) {
        struct nccl_id_child child = NCCL_ID_CHILD_INIT;
        struct nccl_id id;
        stand_in("printf 'a%.0s' {1..100}; sleep 0.1; printf 'b%.0s' {1..28}; read -r line");
        assert_int_equal(nccl_id_start(&child, NULL), 0);
        pid_t pid = child.pid;
        assert_int_equal(read_within(&child, &id, NULL), 1);
        assert_int_equal(id.internal[99], 'a');
        assert_int_equal(id.internal[127], 'b');
        assert_int_equal(kill(pid, 0), 0);
        nccl_id_end(&child);
        assert_true(kill(pid, 0) < 0 && errno == ESRCH);
        nccl_id_end(&child);
}

static void a_child_that_makes_none(void **state) {
        struct nccl_id_child child = NCCL_ID_CHILD_INIT;
        struct cairn_error e = CAIRN_ERROR_INIT;
        struct nccl_id id;
        stand_in("echo short; exit 3");
        assert_int_equal(nccl_id_start(&child, NULL), 0);
        assert_int_equal(read_within(&child, &id, &e), CAIRN_ERR_PEER);
        nccl_id_end(&child);
        assert_int_equal(setenv("CAIRN_NCCL_ID", "/no/such/file", 1), 0);
        assert_int_equal(nccl_id_start(&child, &e), CAIRN_ERR_UNSUPPORTED);
        nccl_id_end(&child);
}

static void a_child_that_is_silent(void **state) {
        struct nccl_id_child child = NCCL_ID_CHILD_INIT;
        struct nccl_id id;
        stand_in("exec sleep 1000");
        assert_int_equal(nccl_id_start(&child, NULL), 0);
        assert_int_equal(nccl_id_read(&child, &id, 50, NULL), 0);
        nccl_id_end(&child);
}

static void start_and_die(void *argument) {
        struct nccl_id_child child = NCCL_ID_CHILD_INIT;
        if (nccl_id_start(&child, NULL) == 0)
                *(volatile pid_t *) argument = child.pid;
}

/* Whatever ends the parent. */
static void it_ends_with_its_parent(void **state) {
        const char *build = getenv("BUILD");
        char path[400];
        int fds[2];
        (void) snprintf(path, sizeof path, "%s/cairn-nccl-id", build ? build : "build");
        assert_int_equal(setenv("CAIRN_NCCL_ID", path, 1), 0);
        (void) snprintf(path, sizeof path, "%s/tests/comm/libnccl-script.so",
                        build ? build : "build");
        assert_int_equal(setenv("CAIRN_LIBNCCL", path, 1), 0);
        assert_int_equal(pipe(fds), 0); /* its end is seen when nobody holds it any more */
        pid_t parent = fork();
        if (parent == 0) {
                pid_t child = 0;
                start_and_die(&child);
                _exit(child > 0 ? 0 : 1);
        }
        (void) close(fds[1]);
        int status;
        char byte;
        assert_int_equal(waitpid(parent, &status, 0), parent);
        assert_int_equal(status, 0);
        assert_int_equal(read(fds[0], &byte, 1), 0);
        (void) close(fds[0]);
}

static int setup(void **state) {
        (void) close(test_folder(folder, sizeof folder));
        return 0;
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(an_id_in_two_pieces),
                cmocka_unit_test(a_child_that_makes_none),
                cmocka_unit_test(a_child_that_is_silent),
                cmocka_unit_test(it_ends_with_its_parent),
        };
        return cmocka_run_group_tests(tests, setup, NULL);
}
