/* SPDX-License-Identifier: Apache-2.0
 *
 * agent/push.c and format/push.c: the test is the trainer that copies.
 */
#include "agent/push.h"
#include "format/push.h"
#include "format/wire.h"
#include "tests/test.h"

#include <poll.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/pidfd.h>
#include <sys/socket.h>

#define STAGING_BYTES 8192
#define AWHILE_MS 20000

struct fixture {
        struct push push;
        struct control_page *page;
        struct copied copied;
        pid_t trainer; /* a process that sleeps */
        int socket;    /* the trainer's */
        int saver_socket, staging_fd;
        struct cairn_error error;
        /* what the playing thread does with the next order */
        pthread_t thread;
        int status;
        unsigned delay_ms;
        bool final, silent, stale_first, dies, counts;
        struct push_packet seen;
        bool came_with_staging;
};

static pid_t sleeper(void) {
        (void) fflush(NULL);
        pid_t pid = fork();
        if (pid == 0)
                for (;;)
                        (void) pause();
        return pid;
}

static int set_up(void **state) {
        struct fixture *f = calloc(1, sizeof *f);
        int pair[2];
        f->push = (struct push) PUSH_INIT;
        f->trainer = sleeper();
        assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
        f->socket = pair[0];
        f->saver_socket = pair[1];
        assert_int_equal(wire_memfd_create("staging", STAGING_BYTES, &f->staging_fd, NULL), 0);
        f->page = aligned_alloc(4096, CONTROL_PAGE_BYTES);
        memset(f->page, 0, CONTROL_PAGE_BYTES);
        control_page_init(f->page, 1);
        f->copied.word = (struct cut_word){5, 9, CUT_COPYING};
        push_seal(&f->push, fcntl(f->saver_socket, F_DUPFD_CLOEXEC, 3), pidfd_open(f->trainer, 0),
                  fcntl(f->staging_fd, F_DUPFD_CLOEXEC, 3));
        *state = f;
        return 0;
}

static int tear_down(void **state) {
        struct fixture *f = *state;
        (void) kill(f->trainer, SIGKILL);
        (void) waitpid(f->trainer, NULL, 0);
        push_done(&f->push);
        push_done(&f->push);
        (void) close(f->socket);
        (void) close(f->saver_socket);
        (void) close(f->staging_fd);
        free(f->page);
        free(f);
        return 0;
}

static void *play(void *argument) {
        struct fixture *f = argument;
        struct pollfd p = {.fd = f->socket, .events = POLLIN};
        int fd;
        if (poll(&p, 1, AWHILE_MS) <= 0 || push_receive(f->socket, &f->seen, &fd) < 0)
                return NULL;
        f->came_with_staging = fd >= 0;
        if (fd >= 0)
                (void) close(fd);
        for (unsigned ms = 0; ms < f->delay_ms; ms += 10) {
                (void) usleep(10000);
                if (f->counts)
                        (void) atomic_fetch_add(&f->page->progress, 1);
        }
        if (f->dies)
                (void) kill(f->trainer, SIGKILL);
        struct push_packet done = {.verb = PUSH_DONE,
                                   .order = f->seen.order - 1,
                                   .status = CAIRN_ERR_IO,
                                   .text = "of a former one"};
        if (f->stale_first)
                (void) push_send(f->socket, &done, -1);
        done = (struct push_packet){.verb = PUSH_DONE,
                                    .order = f->seen.order,
                                    .status = f->status,
                                    .final = f->final,
                                    .bytes = 1000000,
                                    .copy_ns = 1000000,
                                    .text = "as it is played"};
        if (!f->silent && !f->dies)
                (void) push_send(f->socket, &done, -1);
        return NULL;
}

static bool never(void *context) {
        (void) context;
        return false;
}
static bool at_once(void *context) {
        (void) context;
        return true;
}

static int copy(struct fixture *f, bool (*given_up)(void *context)) {
        f->error = (struct cairn_error) CAIRN_ERROR_INIT;
        assert_int_equal(pthread_create(&f->thread, NULL, play, f), 0);
        int r = push_copy(&f->push, f->page, 3, &f->copied, given_up, NULL, &f->error);
        assert_int_equal(pthread_join(f->thread, NULL), 0);
        return r;
}

static void an_order_is_answered(void **state) {
        struct fixture *f = *state;
        f->stale_first = true;
        assert_int_equal(copy(f, never), 0);
        assert_int_equal(f->seen.verb, PUSH_COPY);
        assert_int_equal(f->seen.seal, 3);
        assert_int_equal(f->seen.seq, 5);
        assert_int_equal(f->seen.attempt, 9);
        assert_true(f->came_with_staging);
        assert_false(push_is_lent(&f->push));
        uint64_t first = f->seen.order;
        assert_int_equal(copy(f, never), 0);
        assert_true(f->seen.order > first);
}

static void what_failed_is_said(void **state) {
        struct fixture *f = *state;
        f->status = CAIRN_ERR_DEVICE;
        assert_int_equal(copy(f, never), CAIRN_ERR_VOID);
        assert_non_null(strstr(f->error.message, "as it is played"));
        assert_false(f->push.lost);
        f->status = CAIRN_ERR_STALE;
        assert_int_equal(copy(f, never), CAIRN_ERR_STALE);
        f->status = CAIRN_ERR_DEVICE;
        f->final = true;
        assert_int_equal(copy(f, never), CAIRN_ERR_VOID);
        assert_true(f->push.lost);
}

/* What was given up may still arrive: staging is lent until it has. */
static void given_up_and_late(void **state) {
        struct fixture *f = *state;
        f->delay_ms = 200;
        f->error = (struct cairn_error) CAIRN_ERROR_INIT;
        assert_int_equal(pthread_create(&f->thread, NULL, play, f), 0);
        assert_int_equal(push_copy(&f->push, f->page, 3, &f->copied, at_once, NULL, &f->error),
                         CAIRN_ERR_VOID);
        assert_true(push_is_lent(&f->push));
        assert_int_equal(pthread_join(f->thread, NULL), 0);
        push_hear(&f->push);
        assert_false(push_is_lent(&f->push));
        f->delay_ms = 0;
        assert_int_equal(copy(f, never), 0);
}

static void a_trainer_that_dies(void **state) {
        struct fixture *f = *state;
        f->dies = true;
        assert_int_equal(copy(f, never), CAIRN_ERR_VOID);
        assert_non_null(strstr(f->error.message, "gone"));
        assert_false(push_is_lent(&f->push));
        struct cairn_error e = CAIRN_ERROR_INIT;
        assert_int_equal(push_probe(&f->push, 3, &clock_system, &e), 0);
        assert_int_equal(e.status, 0); /* nobody needs a rate any more */
}

static void a_trainer_that_closes(void **state) {
        struct fixture *f = *state;
        f->silent = true;
        f->error = (struct cairn_error) CAIRN_ERROR_INIT;
        assert_int_equal(shutdown(f->socket, SHUT_RDWR), 0);
        assert_int_equal(push_copy(&f->push, f->page, 3, &f->copied, never, NULL, &f->error),
                         CAIRN_ERR_VOID);
        assert_false(push_is_lent(&f->push));
}

/* Longer than a trainer may stand still, but it counts chunks. Then it does not. */
static void progress_is_waited_for(void **state) {
        struct fixture *f = *state;
        f->push.still_ns = NSEC_PER_SEC;
        f->delay_ms = 1500;
        f->counts = true;
        assert_int_equal(copy(f, never), 0);
        f->counts = false;
        assert_int_equal(copy(f, never), CAIRN_ERR_VOID);
        assert_non_null(strstr(f->error.message, "not copied anything"));
}

static void a_sample(void **state) {
        struct fixture *f = *state;
        assert_int_equal(pthread_create(&f->thread, NULL, play, f), 0);
        assert_int_equal(push_probe(&f->push, 3, &clock_system, &f->error), 1000000000);
        assert_int_equal(pthread_join(f->thread, NULL), 0);
        assert_int_equal(f->seen.verb, PUSH_PROBE);
        assert_non_null(strstr(f->error.message, "as it is played")); /* a warning */
}

static void another_staging_is_not_lent(void **state) {
        struct fixture *f = *state;
        int fd;
        f->silent = true;
        f->error = (struct cairn_error) CAIRN_ERROR_INIT;
        assert_int_equal(pthread_create(&f->thread, NULL, play, f), 0);
        assert_int_equal(push_copy(&f->push, f->page, 3, &f->copied, at_once, NULL, NULL),
                         CAIRN_ERR_VOID);
        assert_int_equal(pthread_join(f->thread, NULL), 0);
        push_seal(&f->push, fcntl(f->saver_socket, F_DUPFD_CLOEXEC, 3), pidfd_open(f->trainer, 0),
                  fcntl(f->staging_fd, F_DUPFD_CLOEXEC, 3));
        assert_true(push_is_lent(&f->push));
        assert_int_equal(wire_memfd_create("other", STAGING_BYTES, &fd, NULL), 0);
        push_seal(&f->push, fcntl(f->saver_socket, F_DUPFD_CLOEXEC, 3), pidfd_open(f->trainer, 0),
                  fd);
        assert_false(push_is_lent(&f->push));
        push_seal(&f->push, -1, -1, -1);
        assert_false(push_trainer_copies(&f->push));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void) {
        const struct CMUnitTest tests[] = {
                TEST(an_order_is_answered),
                TEST(what_failed_is_said),
                TEST(given_up_and_late),
                TEST(a_trainer_that_dies),
                TEST(a_trainer_that_closes),
                TEST(progress_is_waited_for),
                TEST(a_sample),
                TEST(another_staging_is_not_lent),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
