/* SPDX-License-Identifier: Apache-2.0
 *
 * The folder's kind, several members in one process, with a clock that the test moves.
 */
#include "agent/generation.h"
#include "agent/rendezvous_process.h"
#include "base/io.h"
#include "tests/test.h"

#include <dirent.h>
#include <errno.h>
#include <sys/stat.h>

enum { MEMBERS = 3 };
#define STEP_NS (500 * NSEC_PER_MSEC)
#define OPS (&rendezvous_dir_ops)

static uint64_t time_ns;

static uint64_t fake_now(void *context) {
        return time_ns;
}
static uint64_t fake_realtime(void *context) {
        return 0;
}
static void fake_sleep(void *context, uint64_t duration_ns) {
        time_ns += duration_ns;
}
static const struct clock_ops fake_clock = {
        .now_ns = fake_now, .realtime_ns = fake_realtime, .sleep_ns = fake_sleep};

/* A table whose next `fail_left` openings fail. */
static unsigned fail_left;
static int failing_errno;

static int failing_openat(void *context, int dirfd, const char *path, int flags, mode_t mode) {
        if (fail_left > 0) {
                fail_left--;
                errno = failing_errno;
                return -1;
        }
        if (dirfd ==
            AT_FDCWD) /* the store itself, which store_open does not open beneath anything */
                return open(path, flags | O_CLOEXEC, mode);
        return io_system.openat(context, dirfd, path, flags, mode);
}

/* What happens just before the next link or rename: somebody else's whole verb. */
static void (*meanwhile)(void *argument);
static void *meanwhile_argument;

static void let_others_act(void) {
        void (*act)(void *) = meanwhile;
        meanwhile = NULL;
        if (act)
                act(meanwhile_argument);
}

static int interrupted_linkat(void *context, int olddirfd, const char *oldpath, int newdirfd,
                              const char *newpath) {
        let_others_act();
        return io_system.linkat(context, olddirfd, oldpath, newdirfd, newpath);
}

static int interrupted_renameat(void *context, int olddirfd, const char *oldpath, int newdirfd,
                                const char *newpath, unsigned flags) {
        let_others_act();
        return io_system.renameat(context, olddirfd, oldpath, newdirfd, newpath, flags);
}

struct fixture {
        char folder[300], store[320], place_folder[400];
        struct rendezvous_place place;
        struct io_ops io;
        void *kinds[MEMBERS];
        struct rendezvous_member selves[MEMBERS];
        struct rendezvous_look look;
        struct cairn_error e;
};

static void *open_kind(struct fixture *f) {
        void *kind;
        assert_int_equal(rendezvous_dir_new(&f->place, &f->io, &fake_clock, &kind, &f->e), 0);
        return kind;
}

static struct fixture *fixture_new(void) {
        struct fixture *f = calloc(1, sizeof *f);

        assert_non_null(f);
        time_ns = 1000 * NSEC_PER_SEC;
        fail_left = 0;
        f->io = io_system;
        f->io.openat = failing_openat;
        f->io.linkat = interrupted_linkat;
        f->io.renameat = interrupted_renameat;
        meanwhile = NULL;
        (void) close(test_folder(f->folder, sizeof f->folder));
        (void) snprintf(f->store, sizeof f->store, "%s/store", f->folder);
        (void) snprintf(f->place_folder, sizeof f->place_folder, "%s/run/rendezvous", f->store);
        assert_int_equal(rendezvous_place_parse("dir", f->store, "run", &f->place, NULL), 0);
        f->place.create_store = true;
        for (size_t i = 0; i < MEMBERS; i++) {
                f->kinds[i] = open_kind(f);
                f->selves[i] = (struct rendezvous_member){.nonce = 100 + i, .ranks = 2};
                (void) snprintf(f->selves[i].node, sizeof f->selves[i].node, "node-%zu", i);
                (void) snprintf(f->selves[i].address, sizeof f->selves[i].address, "h%zu:1", i);
        }
        return f;
}

static void fixture_free(struct fixture *f) {
        for (size_t i = 0; i < MEMBERS; i++)
                if (f->kinds[i])
                        OPS->close(f->kinds[i]);
        free(f);
}

static int join(struct fixture *f, size_t i) {
        f->e = (struct cairn_error) CAIRN_ERROR_INIT;
        return OPS->join(f->kinds[i], &f->selves[i], UINT64_MAX, &f->e);
}

static int look(struct fixture *f, size_t i, bool renew) {
        f->e = (struct cairn_error) CAIRN_ERROR_INIT;
        return OPS->look(f->kinds[i], &f->selves[i], renew, UINT64_MAX, &f->look, &f->e);
}

static bool sees(const struct fixture *f, size_t i) {
        for (size_t k = 0; k < f->look.member_count; k++)
                if (f->look.members[k].nonce == f->selves[i].nonce)
                        return true;
        return false;
}

/* Time passes; those in `living` look and renew. */
static void pass(struct fixture *f, uint64_t nanoseconds, const char *living) {
        for (uint64_t end = time_ns + nanoseconds; time_ns < end;) {
                time_ns += STEP_NS;
                for (size_t i = 0; i < MEMBERS; i++)
                        if (strchr(living, (int) ('0' + i)))
                                assert_int_equal(look(f, i, true), 0);
        }
}

static void gather(struct fixture *f) {
        for (size_t i = 0; i < MEMBERS; i++)
                assert_int_equal(join(f, i), 0);
        pass(f, 2 * STEP_NS, "012");
        for (size_t i = 0; i < MEMBERS; i++) {
                assert_int_equal(look(f, i, false), 0);
                assert_int_equal(f->look.member_count, MEMBERS);
        }
}

static int create(struct fixture *f, size_t i, uint64_t number) {
        struct rendezvous_member members[MEMBERS];
        struct rendezvous_generation g = {.number = number,
                                          .world = 2 * MEMBERS,
                                          .parent = "p",
                                          .leader_nonce = f->selves[i].nonce,
                                          .secret = {9},
                                          .members = members,
                                          .member_count = MEMBERS};
        memcpy(g.leader, f->selves[i].node, sizeof g.leader);
        for (uint32_t k = 0; k < MEMBERS; k++) {
                members[k] = f->selves[k];
                members[k].first_rank = 2 * k;
        }
        f->e = (struct cairn_error) CAIRN_ERROR_INIT;
        return OPS->create(f->kinds[i], &f->selves[i], &g, UINT64_MAX, &f->e);
}

static bool has_file(const struct fixture *f, const char *name) {
        char path[600];
        (void) snprintf(path, sizeof path, "%s/%s", f->place_folder, name);
        return access(path, F_OK) == 0;
}

static void members_appear_and_leave(void **state) {
        struct fixture *f = fixture_new();

        gather(f);
        assert_string_equal(f->look.members[0].node, "node-0"); /* by name */
        assert_string_equal(f->look.members[2].address, "h2:1");
        assert_int_equal(OPS->leave(f->kinds[1], &f->selves[1], UINT64_MAX, NULL), 0);
        assert_int_equal(look(f, 0, false), 0);
        assert_false(sees(f, 1)); /* at once */
        assert_int_equal(look(f, 1, true), CAIRN_ERR_STALE);
        assert_int_equal(join(f, 1), CAIRN_ERR_STALE);
        f->selves[1].nonce = 555;
        assert_int_equal(join(f, 1), 0);
        pass(f, 2 * STEP_NS, "01");
        assert_int_equal(look(f, 0, false), 0);
        assert_true(sees(f, 1));
        fixture_free(f);
}

static void silence_is_a_loss(void **state) {
        struct fixture *f = fixture_new();
        struct rendezvous_look watched;
        void *watcher;

        gather(f);
        watcher = open_kind(f);
        assert_int_equal(OPS->look(watcher, NULL, false, UINT64_MAX, &watched, &f->e), 0);
        assert_int_equal(watched.member_count, 0); /* nobody has been seen to change yet */
        pass(f, RENDEZVOUS_SILENCE_NS - STEP_NS, "01");
        assert_int_equal(look(f, 0, false), 0);
        assert_true(sees(f, 2)); /* not yet */
        assert_int_equal(OPS->look(watcher, NULL, false, UINT64_MAX, &watched, &f->e), 0);
        assert_int_equal(watched.member_count, 2);
        pass(f, RENDEZVOUS_LOSS_NS - RENDEZVOUS_SILENCE_NS, "01");
        assert_int_equal(look(f, 0, false), 0);
        assert_true(sees(f, 1) && !sees(f, 2));
        assert_true(has_file(f, "gone-node-2-0000000000000066"));
        /* It comes back late: nothing that it may do revives it. */
        uint64_t deadline_ns = UINT64_MAX;
        assert_int_equal(look(f, 2, true), CAIRN_ERR_STALE);
        assert_non_null(strstr(f->e.message, "went on without it"));
        assert_int_equal(create(f, 2, 1), CAIRN_ERR_STALE);
        assert_int_equal(OPS->put(f->kinds[2], &f->selves[2], 1, "k", "v", 1, deadline_ns, NULL),
                         CAIRN_ERR_STALE);
        assert_int_equal(join(f, 2), CAIRN_ERR_STALE);
        pass(f, 4 * STEP_NS, "01");
        assert_int_equal(look(f, 0, false), 0);
        assert_false(sees(f, 2));
        OPS->close(watcher);
        fixture_free(f);
}

/* Who could not look for a while has not seen others be silent. */
static void an_observer_that_slept_blames_nobody(void **state) {
        struct fixture *f = fixture_new();

        gather(f);
        time_ns += 60 * NSEC_PER_SEC; /* nobody ran, or the storage hung */
        for (size_t i = 0; i < MEMBERS; i++)
                assert_int_equal(look(f, i, false), 0);
        pass(f, 2 * STEP_NS, "012");
        assert_int_equal(look(f, 0, false), 0);
        assert_int_equal(f->look.member_count, MEMBERS);

        failing_errno = EIO;
        for (int i = 0; i < 100; i++) { /* looks that fail let no time pass */
                fail_left = 1;
                time_ns += STEP_NS;
                assert_true(look(f, 0, true) < 0);
        }
        assert_int_equal(f->e.status, CAIRN_ERR_IO);
        assert_int_equal(look(f, 0, true), 0);
        assert_int_equal(f->look.member_count, MEMBERS);
        fixture_free(f);
}

static void what_a_dead_job_left_is_not_counted(void **state) {
        struct fixture *f = fixture_new();

        gather(f);
        for (size_t i = 0; i < MEMBERS; i++) { /* all killed */
                OPS->close(f->kinds[i]);
                f->kinds[i] = open_kind(f);
                f->selves[i].nonce += 1000;
        }
        assert_int_equal(join(f, 0), 0); /* its predecessor on this machine is dead for sure */
        pass(f, 4 * STEP_NS, "0");
        assert_int_equal(look(f, 0, false), 0);
        assert_int_equal(f->look.member_count, 1);
        pass(f, RENDEZVOUS_LOSS_NS, "0");
        assert_true(has_file(f, "gone-node-1-0000000000000065"));
        assert_false(has_file(f, "member-node-1-0000000000000065"));
        fixture_free(f);
}

static void two_of_one_name(void **state) {
        struct fixture *f = fixture_new();

        assert_int_equal(join(f, 0), 0);
        memcpy(f->selves[1].node, "node-0", sizeof "node-0");
        assert_int_equal(join(f, 1), CAIRN_ERR_EXISTS);
        assert_non_null(strstr(f->e.message, "h0:1"));
        pass(f, 2 * STEP_NS, "0"); /* undisturbed */
        assert_int_equal(f->look.member_count, 1);
        /* The first one freezes: the second gets the name when that is known. */
        uint64_t start_ns = time_ns;
        struct rendezvous_look watched;
        while (join(f, 1) == CAIRN_ERR_EXISTS) {
                time_ns += STEP_NS;
                assert_int_equal(OPS->look(f->kinds[1], NULL, false, UINT64_MAX, &watched, NULL),
                                 0);
                assert_true(time_ns - start_ns <= RENDEZVOUS_LOSS_NS);
        }
        assert_int_equal(f->e.status, 0);
        assert_true(time_ns - start_ns >= RENDEZVOUS_SILENCE_NS - STEP_NS);
        assert_int_equal(look(f, 0, true), CAIRN_ERR_STALE);
        fixture_free(f);
}

/* A lease of another machine: its free lock says nothing. */
static void a_lock_counts_on_its_own_machine_only(void **state) {
        struct fixture *f = fixture_new();
        char path[600];

        assert_int_equal(join(f, 0), 0);
        OPS->close(f->kinds[0]);
        f->kinds[0] = NULL;
        (void) snprintf(path, sizeof path, "%s/member-node-0-0000000000000064", f->place_folder);
        int fd = open(path, O_RDWR | O_CLOEXEC);
        assert_true(fd >= 0 && pwrite(fd, "ffffffff", 8, 21) == 8); /* the boot id */
        (void) close(fd);
        memcpy(f->selves[1].node, "node-0", sizeof "node-0");
        assert_int_equal(join(f, 1), CAIRN_ERR_EXISTS);
        fixture_free(f);
}

static void a_restarted_agent_takes_its_lease_up(void **state) {
        struct fixture *f = fixture_new();

        gather(f);
        OPS->close(f->kinds[1]);
        f->kinds[1] = open_kind(f);
        memcpy(f->selves[1].address, "elsewhere:2", sizeof "elsewhere:2");
        assert_int_equal(join(f, 1), 0);
        for (int i = 0; i < 20; i++) {
                pass(f, STEP_NS, "012");
                assert_int_equal(look(f, 0, false), 0);
                assert_true(sees(f, 1)); /* never gone */
        }
        assert_string_equal(f->look.members[1].address, "elsewhere:2");
        /* And a child that was replaced only goes on. */
        OPS->close(f->kinds[1]);
        f->kinds[1] = open_kind(f);
        pass(f, 2 * STEP_NS, "012");
        assert_int_equal(look(f, 0, false), 0);
        assert_true(sees(f, 1));
        /* It holds the lock, too: nobody takes the member for dead. */
        struct rendezvous_member rival = f->selves[1];
        rival.nonce = 999;
        void *other = open_kind(f);
        assert_int_equal(OPS->join(other, &rival, UINT64_MAX, NULL), CAIRN_ERR_EXISTS);
        OPS->close(other);
        fixture_free(f);
}

static void a_seed_keeps_members_alive(void **state) {
        struct fixture *f = fixture_new();

        gather(f);
        assert_int_equal(look(f, 0, false), 0);
        void *successor = open_kind(f);
        OPS->seed(successor, f->look.members, f->look.member_count);
        OPS->close(f->kinds[0]);
        f->kinds[0] = successor;
        assert_int_equal(look(f, 0, true), 0);
        assert_int_equal(f->look.member_count, MEMBERS);
        fixture_free(f);
}

static void generations_are_exclusive(void **state) {
        struct fixture *f = fixture_new();
        void *value;
        size_t bytes;

        gather(f);
        assert_int_equal(create(f, 0, 3), 0);
        assert_int_equal(create(f, 0, 3), 0); /* asked again: it is there */
        assert_int_equal(create(f, 1, 3), CAIRN_ERR_EXISTS);
        assert_non_null(strstr(f->e.message, "node-0"));
        assert_int_equal(create(f, 1, 2), CAIRN_ERR_STALE);
        assert_int_equal(look(f, 2, false), 0);
        assert_int_equal(f->look.generation.number, 3);
        assert_string_equal(f->look.generation.leader, "node-0");
        assert_int_equal(f->look.generation.secret[0], 9);
        assert_int_equal(f->look.generation.members[2].first_rank, 4);

        assert_int_equal(OPS->put(f->kinds[0], &f->selves[0], 3, "k", "abc", 3, UINT64_MAX, NULL),
                         0);
        assert_int_equal(
                OPS->get(f->kinds[1], &f->selves[1], 3, "k", UINT64_MAX, &value, &bytes, NULL), 0);
        assert_int_equal(bytes, 3);
        free(value);
        assert_int_equal(
                OPS->get(f->kinds[1], &f->selves[1], 3, "other", UINT64_MAX, &value, &bytes, NULL),
                CAIRN_ERR_NOTFOUND);
        assert_int_equal(create(f, 1, 4), 0);
        assert_false(has_file(f, "generation-00000000000000000003"));
        assert_false(has_file(f, "value-00000000000000000003-k"));
        f->e = (struct cairn_error) CAIRN_ERROR_INIT;
        assert_int_equal(OPS->put(f->kinds[0], &f->selves[0], 3, "k", "abc", 3, UINT64_MAX, &f->e),
                         CAIRN_ERR_STALE);
        assert_non_null(strstr(f->e.message, "newest generation is 4"));
        assert_int_equal(
                OPS->get(f->kinds[0], &f->selves[0], 3, "k", UINT64_MAX, &value, &bytes, NULL),
                CAIRN_ERR_STALE);
        fixture_free(f);
}

static void create_six(void *argument) {
        assert_int_equal(create(argument, 1, 6), 0);
}

/* A creator that slept between look and link: the link succeeds, and it leads all the same not. */
static void a_creator_that_slept_does_not_lead(void **state) {
        struct fixture *f = fixture_new();

        gather(f);
        meanwhile = create_six;
        meanwhile_argument = f;
        assert_int_equal(create(f, 0, 5), CAIRN_ERR_STALE);
        assert_null(meanwhile);
        assert_non_null(strstr(f->e.message, "the newest generation is 6"));
        assert_int_equal(look(f, 2, false), 0);
        assert_int_equal(f->look.generation.number, 6);
        assert_string_equal(f->look.generation.leader, "node-1");
        assert_int_equal(create(f, 0, 4), CAIRN_ERR_STALE);
        assert_false(has_file(f, "generation-00000000000000000004")); /* not even begun */
        fixture_free(f);
}

static void join_second(void *argument) {
        assert_int_equal(join(argument, 1), 0);
}

/* Two join under one name at the same moment: never both. */
static void two_of_one_name_at_once(void **state) {
        struct fixture *f = fixture_new();

        memcpy(f->selves[1].node, "node-0", sizeof "node-0");
        meanwhile = join_second;
        meanwhile_argument = f;
        assert_int_equal(join(f, 0), CAIRN_ERR_EXISTS);
        assert_null(meanwhile);
        assert_false(has_file(f, "member-node-0-0000000000000064"));
        assert_true(has_file(f, "member-node-0-0000000000000065"));
        fixture_free(f);
}

static void empty_folder(const char *path, bool remove) {
        DIR *folder = opendir(path);
        const struct dirent *e;

        assert_non_null(folder);
        while ((e = readdir(folder)))
                (void) unlinkat(dirfd(folder), e->d_name, 0);
        (void) closedir(folder);
        if (remove)
                assert_int_equal(rmdir(path), 0);
}

static void what_vanishes_is_put_back(void **state) {
        struct fixture *f = fixture_new();

        gather(f);
        assert_int_equal(create(f, 0, 7), 0);
        pass(f, STEP_NS, "012");
        for (int i = 0; i < 2; i++) {
                empty_folder(f->place_folder, i == 1);
                pass(f, RENDEZVOUS_LOSS_NS, "012");
                for (size_t k = 0; k < MEMBERS; k++) {
                        assert_int_equal(look(f, k, false), 0);
                        assert_int_equal(f->look.member_count, MEMBERS);
                        assert_int_equal(f->look.generation.number, 7);
                }
        }
        /* The run's folder is not made again by a member, and its way back stays free. */
        char run[400], moved[420];
        (void) snprintf(run, sizeof run, "%s/run", f->store);
        (void) snprintf(moved, sizeof moved, "%s/elsewhere", f->store);
        assert_int_equal(rename(run, moved), 0);
        assert_int_equal(look(f, 0, true), CAIRN_ERR_UNREACHABLE);
        assert_non_null(strstr(f->e.message, "move it back"));
        assert_int_equal(access(run, F_OK), -1);
        assert_int_equal(rename(moved, run), 0);
        pass(f, STEP_NS, "012");
        assert_int_equal(f->look.member_count, MEMBERS);
        fixture_free(f);
}

static void what_is_no_record_counts_as_none(void **state) {
        static const char *const odd[] = {"member-",
                                          "member-x-0000000000000000",
                                          "member-node-9-00000000000000ff",
                                          "gone-",
                                          "generation-1",
                                          "generation-9999999999999999999x",
                                          "value-",
                                          "generation-99999999999999999999",
                                          "member-../../x",
                                          "generation-00000000000000000000",
                                          "hello"};
        struct fixture *f = fixture_new();
        char path[800];

        gather(f);
        for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
                if (strchr(odd[i], '/'))
                        continue;
                (void) snprintf(path, sizeof path, "%s/%s", f->place_folder, odd[i]);
                int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
                assert_true(fd >= 0 && write(fd, "rubbish", 7) == 7);
                (void) close(fd);
        }
        pass(f, RENDEZVOUS_LOSS_NS, "012");
        assert_int_equal(f->look.member_count, MEMBERS);
        assert_int_equal(f->look.generation.number, 0);
        assert_int_equal(create(f, 0, 1), 0);
        /* A generation that cannot be read is an error, not an older one. */
        (void) snprintf(path, sizeof path, "%s/generation-00000000000000000002", f->place_folder);
        int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
        assert_true(fd >= 0 && write(fd, "{}", 2) == 2);
        (void) close(fd);
        assert_int_equal(look(f, 0, true), CAIRN_ERR_CORRUPT);
        fixture_free(f);
}

static void places(void **state) {
        struct fixture *f = fixture_new();
        struct rendezvous_look none;
        struct stat st;

        /* Looking makes nothing. */
        assert_int_equal(OPS->look(f->kinds[0], NULL, false, UINT64_MAX, &none, &f->e),
                         CAIRN_ERR_UNREACHABLE);
        assert_non_null(strstr(f->e.message, "is the file system mounted"));
        assert_int_equal(access(f->store, F_OK), -1);
        /* Nor does a join, unless this start may make a store. */
        f->place.create_store = false;
        void *strict = open_kind(f);
        assert_int_equal(OPS->join(strict, &f->selves[0], UINT64_MAX, &f->e),
                         CAIRN_ERR_UNREACHABLE);
        assert_int_equal(access(f->store, F_OK), -1);
        /* A folder of something else is no store. */
        assert_int_equal(mkdir(f->store, 0755), 0);
        char other[400];
        (void) snprintf(other, sizeof other, "%s/photo.jpg", f->store);
        int fd = open(other, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
        (void) close(fd);
        assert_int_equal(join(f, 0), CAIRN_ERR_MISMATCH);
        assert_int_equal(unlink(other), 0);
        assert_int_equal(join(f, 0), 0);
        assert_int_equal(OPS->join(strict, &f->selves[1], UINT64_MAX, &f->e), 0);
        assert_true(stat(f->place_folder, &st) == 0 && (st.st_mode & 0777) == 0700);
        OPS->close(strict);
        fixture_free(f);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(members_appear_and_leave),
                cmocka_unit_test(silence_is_a_loss),
                cmocka_unit_test(an_observer_that_slept_blames_nobody),
                cmocka_unit_test(what_a_dead_job_left_is_not_counted),
                cmocka_unit_test(two_of_one_name),
                cmocka_unit_test(a_lock_counts_on_its_own_machine_only),
                cmocka_unit_test(a_restarted_agent_takes_its_lease_up),
                cmocka_unit_test(a_seed_keeps_members_alive),
                cmocka_unit_test(generations_are_exclusive),
                cmocka_unit_test(a_creator_that_slept_does_not_lead),
                cmocka_unit_test(two_of_one_name_at_once),
                cmocka_unit_test(what_vanishes_is_put_back),
                cmocka_unit_test(what_is_no_record_counts_as_none),
                cmocka_unit_test(places),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
