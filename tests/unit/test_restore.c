/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/restore.h"
#include "tests/unit/store_fixture.h"

#include <sys/mman.h>

static struct fixture *started(void) {
        struct fixture *f = fixture_new();
        assert_int_equal(fixture_start_mode(f, START_FRESH), 0);
        fixture_commit(f, 10);
        fixture_commit(f, 20);
        return f;
}

static int open_all(struct fixture *f, const char *run, const char *checkpoint) {
        int memfd = -1, fds[4] = {-1, -1, -1, -1};
        uint32_t world = 0;
        struct stat st;

        f->e = (struct cairn_error) CAIRN_ERROR_INIT;
        int r = restore_open(&f->store, run, checkpoint, &memfd, fds, 4, &world, &f->e);
        if (r < 0) {
                assert_true(memfd == -1 && fds[0] == -1);
                return r;
        }
        assert_int_equal(world, 2);
        int seals = fcntl(memfd, F_GET_SEALS);
        assert_int_equal(seals & (F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK),
                         F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK);
        assert_int_equal(fstat(memfd, &st), 0);
        void *bytes = malloc((size_t) st.st_size);
        assert_int_equal(pread(memfd, bytes, (size_t) st.st_size, 0), st.st_size);
        struct file_content index;
        struct arena arena;
        arena_init(&arena, 1 * MiB);
        assert_int_equal(
                file_read(bytes, (size_t) st.st_size, FILE_INDEX, "INDEX", &arena, &index, &f->e),
                0);
        assert_int_equal(index.tensor_count, 2);
        arena_done(&arena);
        free(bytes);
        (void) close(memfd);
        for (size_t i = 0; i < 2; i++) {
                assert_int_equal(fcntl(fds[i], F_GETFL) & O_ACCMODE, O_RDONLY);
                assert_true(fcntl(fds[i], F_GETFD) & FD_CLOEXEC);
                (void) close(fds[i]);
        }
        assert_int_equal(fds[2], -1);
        return 0;
}

static void test_three_ways_to_name_a_checkpoint(void **state) {
        struct fixture *f = started();
        char path[900];

        assert_int_equal(open_all(f, "run", "000000000010-g0001"), 0);
        assert_int_equal(open_all(f, "another", "run/000000000020-g0001"), 0);
        (void) snprintf(path, sizeof path, "%s/run/000000000020-g0001", f->path);
        assert_int_equal(open_all(f, "another", path), 0);
        (void) snprintf(path, sizeof path, "%s/run//000000000020-g0001//", f->path);
        assert_int_equal(open_all(f, "another", path), 0);
        fixture_free(f);
}

static void test_what_is_no_checkpoint(void **state) {
        static const char *const names[] = {
                "000000000011-g0001",
                "run/000000000011-g0001",
                "nothing",
                "../run/000000000010-g0001",
                "/",
                "/does/not/exist",
                "",
                "run/marks",
        };
        struct fixture *f = started();

        for (size_t i = 0; i < sizeof names / sizeof *names; i++)
                assert_int_equal(open_all(f, "run", names[i]), CAIRN_ERR_NOTFOUND);
        fixture_free(f);
}

static void test_damage_is_found_before_anything_is_handed_out(void **state) {
        struct fixture *f = started();
        char path[900];

        fixture_damage(f, "000000000010-g0001/INDEX");
        assert_int_equal(open_all(f, "run", "000000000010-g0001"), CAIRN_ERR_CORRUPT);
        (void) snprintf(path, sizeof path, "%s/run/000000000020-g0001/rank-00001.data", f->path);
        int fd = open(path, O_WRONLY | O_CLOEXEC);
        assert_int_equal(pwrite(fd, "x", 1, 100), 1); /* in the header */
        (void) close(fd);
        assert_int_equal(open_all(f, "run", "000000000020-g0001"), CAIRN_ERR_CORRUPT);
        assert_int_equal(unlink(path), 0);
        assert_true(open_all(f, "run", "000000000020-g0001") < 0);
        fixture_free(f);
}

static void test_files_in_batches(void **state) {
        struct fixture *f = started();
        struct checkpoint_place place;
        int fds[2];

        assert_int_equal(
                checkpoint_place_open(&f->store, "run", "000000000010-g0001", &place, &f->e), 0);
        assert_int_equal(place.world, 2);
        assert_int_equal(restore_open_files(&f->store, &place, 1, 1, fds, &f->e), 0);
        (void) close(fds[0]);
        assert_int_equal(restore_open_files(&f->store, &place, 1, 2, fds, &f->e), CAIRN_ERR_API);
        assert_int_equal(restore_open_files(&f->store, &place, 2, 0, fds, &f->e), 0);
        checkpoint_place_done(&f->store, &place);
        fixture_free(f);
}

/* A checkpoint that is a link is not followed out of its run (B56). */
static void test_B56_links_inside_a_store(void **state) {
        struct fixture *f = started();
        char path[900];

        (void) snprintf(path, sizeof path, "%s/run/000000000030-g0001", f->path);
        assert_int_equal(symlink("000000000010-g0001", path), 0);
        assert_true(open_all(f, "run", "000000000030-g0001") < 0);
        (void) snprintf(path, sizeof path, "%s/run/000000000020-g0001/rank-00000.data", f->path);
        assert_int_equal(unlink(path), 0);
        assert_int_equal(symlink("../000000000010-g0001/rank-00000.data", path), 0);
        assert_true(open_all(f, "run", "000000000020-g0001") < 0);
        fixture_free(f);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_three_ways_to_name_a_checkpoint),
                cmocka_unit_test(test_what_is_no_checkpoint),
                cmocka_unit_test(test_damage_is_found_before_anything_is_handed_out),
                cmocka_unit_test(test_files_in_batches),
                cmocka_unit_test(test_B56_links_inside_a_store),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
