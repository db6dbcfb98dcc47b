/* SPDX-License-Identifier: Apache-2.0
 *
 * store_fixture.h - a store in a folder of its own, with starts and commits in one line each, for
 * the tests of the store process's verbs.
 */
#ifndef CAIRN_TESTS_STORE_FIXTURE_H
#define CAIRN_TESTS_STORE_FIXTURE_H

#include "agent/commit.h"
#include "agent/generation.h"
#include "agent/store.h"
#include "format/crc32c.h"
#include "tests/sim/ranks.h"
#include "tests/test.h"

#include <dirent.h>
#include <errno.h>
#include <ftw.h>
#include <limits.h>
#include <sys/stat.h>

struct fixture {
        char folder[512], path[600]; /* the store is FOLDER/store */
        struct store store;
        struct store_run run;
        struct start_request q;
        struct start_reply reply;
        struct cairn_error e;
        uint32_t attempt;
};

static inline void fixture_reopen(struct fixture *f) {
        store_run_done(&f->run);
        if (f->store.fd >= 0)
                (void) close(f->store.fd);
        f->store.fd = -1;
}

/* No store yet: the first fresh start makes it. */
static inline struct fixture *fixture_new(void) {
        struct fixture *f = calloc(1, sizeof *f);
        assert_non_null(f);
        (void) close(test_folder(f->folder, sizeof f->folder));
        (void) snprintf(f->path, sizeof f->path, "%s/store", f->folder);
        f->store = (struct store){.io = &io_system, .clock = &clock_system, .fd = -1};
        (void) snprintf(f->store.path, sizeof f->store.path, "%s", f->path);
        f->run = (struct store_run){.store = &f->store, .fd = -1, .lock_fd = -1};
        return f;
}

static inline void fixture_free(struct fixture *f) {
        fixture_reopen(f);
        free(f);
}

static inline struct start_request *fixture_request(struct fixture *f, enum start_mode mode) {
        f->q = (struct start_request){.run = "run", .world = 2, .mode = mode, .create_store = true};
        return &f->q;
}

/* With f->q as it is. The predecessor has ended. */
static inline int fixture_start(struct fixture *f) {
        store_run_done(&f->run);
        f->e = (struct cairn_error) CAIRN_ERROR_INIT;
        return generation_start(&f->store, &f->q, &f->run, &f->reply, &f->e);
}

static inline int fixture_start_mode(struct fixture *f, enum start_mode mode) {
        (void) fixture_request(f, mode);
        return fixture_start(f);
}

static inline struct ranks_cut fixture_cut(struct fixture *f, int64_t step) {
        return (struct ranks_cut){.run = f->run.run,
                                  .generation = f->reply.generation,
                                  .attempt = ++f->attempt,
                                  .world = 2,
                                  .step = step};
}

static inline void fixture_commit(struct fixture *f, int64_t step) {
        struct ranks_cut cut = fixture_cut(f, step);
        struct commit_result result;
        f->e = (struct cairn_error) CAIRN_ERROR_INIT;
        if (ranks_commit(&f->run, &cut, &result, &f->e) < 0)
                fail_msg("%s: %s", f->e.operation, f->e.message);
        assert_int_equal(result.step, step);
}

/* All ranks have acknowledged it, nobody commits it. */
static inline void fixture_attempt(struct fixture *f, int64_t step) {
        struct ranks_cut cut = fixture_cut(f, step);
        struct attempt a;
        assert_int_equal(ranks_attempt(&f->run, &cut, &a, &f->e), 0);
        attempt_done(&a, &io_system);
}

static inline bool fixture_has(struct fixture *f, const char *name) {
        char path[PATH_MAX];
        (void) snprintf(path, sizeof path, "%s/run/%s", f->path, name);
        return access(path, F_OK) == 0;
}

/* Overwrites bytes in the middle of a file of a checkpoint. */
static inline void fixture_damage(struct fixture *f, const char *name) {
        char path[PATH_MAX];
        struct stat st = {0};
        (void) snprintf(path, sizeof path, "%s/run/%s", f->path, name);
        int fd = open(path, O_RDWR | O_CLOEXEC);
        assert_true(fd >= 0 && fstat(fd, &st) == 0);
        assert_int_equal(pwrite(fd, "\xff\x00\xff\x00", 4, st.st_size / 2), 4);
        (void) close(fd);
}

/* ---- a digest of everything below a folder: names, types, sizes, times, contents ---- */

static uint64_t fixture_digest_sum;

static int fixture_digest_visit(const char *path, const struct stat *st, int type,
                                struct FTW *place) {
        uint64_t d = crc32c(0, path, strlen(path));
        d = d * 31 + (uint64_t) st->st_mtim.tv_sec * 1000000007u + (uint64_t) st->st_mtim.tv_nsec;
        d = d * 31 + (uint64_t) st->st_mode * 7 + (uint64_t) st->st_nlink;
        if (type == FTW_F) {
                char *bytes = calloc(1, (size_t) st->st_size + 1);
                int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOATIME);
                assert_true(fd >= 0 && read(fd, bytes, (size_t) st->st_size) == st->st_size);
                (void) close(fd);
                d = d * 31 + crc32c(0, bytes, (size_t) st->st_size);
                free(bytes);
        }
        fixture_digest_sum += d * d; /* the order of a folder does not matter */
        return 0;
}

static inline uint64_t fixture_digest(struct fixture *f) {
        fixture_digest_sum = 0;
        (void) nftw(f->folder, fixture_digest_visit, 16, FTW_PHYS);
        return fixture_digest_sum;
}

#define assert_refused(f, expected, sentence)                             \
        do {                                                              \
                uint64_t before_ = fixture_digest(f);                     \
                assert_int_equal(fixture_start(f), (expected));           \
                assert_non_null(strstr((f)->e.message, (sentence)));      \
                assert_true(before_ == fixture_digest(f));                \
                assert_true((f)->run.fd == -1 && (f)->run.lock_fd == -1); \
        } while (0)

#endif
