/* SPDX-License-Identifier: Apache-2.0
 *
 * time limit: 1800 s
 *
 * The life of a run - a start, commits with retention, restarts, rolling forward, going back to a
 * step - crashed before every file operation, several times each, and with each operation and each
 * fault point of the store failing.
 *
 * After every crash: the newest checkpoint is the last one reported or the one in work, all that is
 * found valid is valid to the last byte, nothing half-written has the name of a checkpoint, and a
 * new generation can start and commit. Some recoveries are crashed again.
 *
 * The same sweep must find planted bugs: an fsync of directories, manifests or records left out or
 * done late, a file that is reused while a saver that stalled holds it still. SEED and ROUNDS
 * (crashes for each operation) come from the environment.
 */
#include "agent/generation.h"
#include "base/cleanup.h"
#include "base/fault.h"
#include "tests/sim/ranks.h"
#include "tests/sim/simfs.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WORLD = 2, KEEP = 2, PRINTED_MAX = 5, PLANTED_ROUNDS = 12 };
static const char run_name[] = "run";

struct key { /* of a checkpoint; generation 0: none */
        uint64_t generation;
        int64_t step;
};
struct tally {
        uint64_t seed, rounds;
        uint64_t points, crashes, second_crashes, recoveries, violations, faults;
        bool stop_at_first, quiet;
};
struct life { /* of one disk */
        struct simfs *fs;
        struct io_ops io;
        struct store store;
        struct store_run run;
        struct key now, next; /* the newest as reported; as it may also be found */
        bool has_next, may_be_finished, failed;
        const char *doing;
        struct tally *tally;
        unsigned depth;
        uint64_t crash_at; /* call of a recovery that is crashed; 0: every call */
        uint64_t calls;
};

static void violation(struct life *l, const char *format, ...)
        __attribute__((format(printf, 2, 3)));

static void violation(struct life *l, const char *format, ...) {
        va_list arguments;

        l->tally->violations++;
        if (l->tally->quiet || l->tally->violations > PRINTED_MAX)
                return;
        printf("VIOLATION while %s (depth %u, point %" PRIu64 ", crash %" PRIu64 "): ", l->doing,
               l->depth, l->tally->points, l->tally->crashes);
        va_start(arguments, format);
        (void) vprintf(format, arguments);
        va_end(arguments);
        printf("\n");
}

static const char *why(const struct cairn_error *e) {
        static char text[900];
        return error_format(e, text, sizeof text);
}

/* ---- verbs, with what they promise ---- */

static void life_init(struct life *l, struct simfs *fs, struct tally *tally, const char *doing) {
        *l = (struct life){.fs = fs, .tally = tally, .doing = doing};
        simfs_ops(fs, &l->io);
        l->store = (struct store){.io = &l->io, .clock = &clock_system, .fd = simfs_root(fs)};
        l->run = (struct store_run){.store = &l->store, .fd = -1, .lock_fd = -1};
}

static void promise(struct life *l, const char *doing, struct key next) {
        l->doing = doing;
        l->next = next;
        l->has_next = true;
}

/* A verb ended. Only an injected fault, which happens once, may have made it fail. */
static int expect_success(struct life *l, int r, const struct cairn_error *e) {
        bool injected = simfs_failed(l->fs) || fault_fired();
        if (r < 0 && (!injected || l->failed))
                violation(l, "it failed without a fault: %s", why(e));
        l->failed |= r < 0;
        return r;
}

/* On success the promise holds from now on, otherwise either may be found. */
static int settle(struct life *l, int r, const struct cairn_error *e) {
        if (r == 0 && l->has_next) {
                l->now = l->next;
                l->has_next = false;
        }
        return expect_success(l, r, e);
}

static int start(struct life *l, enum start_mode mode, int64_t from_step,
                 struct start_reply *reply) {
        struct cairn_error e = CAIRN_ERROR_INIT;
        struct start_request *q = calloc(1, sizeof *q);

        memcpy(q->run, run_name, sizeof run_name);
        q->world = WORLD;
        q->mode = mode;
        q->is_restart = from_step < 0;
        q->has_from_step = from_step >= 0;
        q->from_step = from_step;
        store_run_done(&l->run);
        int r = settle(l, generation_start(&l->store, q, &l->run, reply, &e), &e);
        if (r < 0) /* a fault happens once */
                r = settle(l, generation_start(&l->store, q, &l->run, reply, &e), &e);
        free(q);
        return r;
}

static void commit(struct life *l, uint64_t generation, int64_t step, uint32_t attempt) {
        struct ranks_cut cut = {.run = run_name,
                                .generation = generation,
                                .attempt = attempt,
                                .world = WORLD,
                                .step = step};
        struct cairn_error e = CAIRN_ERROR_INIT;
        struct commit_result result;

        promise(l, "committing", (struct key){generation, step});
        if (settle(l, ranks_commit(&l->run, &cut, &result, &e), &e) == 0 &&
            (result.step != step || result.existed))
                violation(l, "the result of the commit is wrong");
        l->doing = "applying retention";
        (void) expect_success(l, retention_run(&l->run, KEEP, NULL, &e), &e);
}

/* The store process was replaced and opens the attempt again; the saver that had its files first
 * stalled, and writes into them when the checkpoint is there. */
static void commit_beside_stalled(struct life *l, uint64_t generation, int64_t step,
                                  uint32_t attempt) {
        static const char late[] = "written by a saver that was given up long ago";
        struct cairn_error e = CAIRN_ERROR_INIT;
        struct attempt a;
        int fds[2] = {-1, -1};

        l->doing = "opening files for a saver that stalls";
        int r = attempt_open(&l->run, generation, attempt, WORLD, &a, &e);
        if (expect_success(l, r, &e) == 0) {
                (void) expect_success(l, attempt_open_rank(&a, &l->io, 0, &fds[0], &fds[1], &e),
                                      &e);
                attempt_done(&a, &l->io);
        }
        commit(l, generation, step, attempt);
        l->doing = "writing late";
        for (size_t i = 0; i < 2; i++)
                if (fds[i] >= 0) {
                        (void) l->io.pwrite(l->fs, fds[i], late, sizeof late, DATA_BLOCK_BYTES / 2);
                        (void) l->io.close(l->fs, fds[i]);
                }
}

/* All ranks acknowledge, and the leader dies. */
static void attempt_only(struct life *l, uint64_t generation, int64_t step, uint32_t attempt) {
        struct ranks_cut cut = {.run = run_name,
                                .generation = generation,
                                .attempt = attempt,
                                .world = WORLD,
                                .step = step};
        struct cairn_error e = CAIRN_ERROR_INIT;
        struct attempt a;

        promise(l, "writing an attempt", (struct key){generation, step});
        if (settle(l, ranks_attempt(&l->run, &cut, &a, &e), &e) == 0)
                attempt_done(&a, &l->io);
}

/* ---- the run's life ---- */

static void restart(struct life *l, uint64_t *ret_generation) {
        struct start_reply *reply = calloc(1, sizeof *reply);

        l->doing = "restarting";
        if (start(l, START_FRESH, -1, reply) == 0) {
                *ret_generation = reply->generation;
                /* A failed commit may or may not have become visible; the start decides. */
                l->now = (struct key){reply->checkpoint_generation, reply->checkpoint_step};
                l->has_next = false;
        }
        free(reply);
}

static void live(struct life *l) {
        struct start_reply *reply = calloc(1, sizeof *reply);
        struct cairn_error e = CAIRN_ERROR_INIT;
        uint64_t g = 1;

        l->doing = "creating the store";
        int r = expect_success(l, store_create_at(&l->io, &clock_system, l->store.fd, 1, &e), &e);
        if (r < 0 && (r = store_create_at(&l->io, &clock_system, l->store.fd, 1, &e)) < 0 &&
            r != CAIRN_ERR_EXISTS)
                violation(l, "the store cannot be made: %s", why(&e));
        restart(l, &g);
        commit(l, g, 10, 1);
        commit_beside_stalled(l, g, 20, 2);
        commit(l, g, 30, 3);
        restart(l, &g);
        attempt_only(l, g, 40, 1);
        restart(l, &g); /* rolls forward */
        struct key back = l->now;
        commit(l, g, 50, 1);
        promise(l, "going back", back);
        if (start(l, START_FRESH, back.step, reply) == 0)
                g = reply->generation;
        free(reply);
        commit(l, g, 45, 1);
        commit(l, g, 55, 2);
        l->doing = "marking the run finished";
        l->may_be_finished = true;
        (void) expect_success(l, mark_finished(&l->run, "done", 55, g, &e), &e);
        store_run_done(&l->run);
        if (simfs_open_count(l->fs) != 1)
                violation(l, "%zu descriptors were left open", simfs_open_count(l->fs) - 1);
}

/* ---- after a crash ---- */

static bool is_key(const struct scan_checkpoint *c, struct key k) {
        return c->generation == k.generation && c->step == k.step;
}

/* Returns the newest that the scan finds. */
static struct key look_at(struct life *l) {
        struct cairn_error e = CAIRN_ERROR_INIT;
        struct run_scan scan;
        struct key newest = {0};
        int fd;

        int r = run_open(&l->io, l->store.fd, run_name, &fd, &e);
        if (r == CAIRN_ERR_NOTFOUND)
                return newest;
        if (r < 0 || run_scan(&l->io, fd, run_name, true, &scan, &e) < 0) {
                violation(l, "the run cannot be scanned: %s", why(&e));
                return newest;
        }
        for (size_t i = 0; i < scan.checkpoint_count; i++) {
                const struct scan_checkpoint *c = &scan.checkpoints[i];
                if (!c->is_attempt && c->validity != CHECKPOINT_VALID)
                        violation(l, "%s is visible and not valid: %s", c->name, why(&c->error));
                else if (!c->is_attempt &&
                         checkpoint_check(&l->io, fd, c->name, run_name, true, NULL, &e) < 0)
                        violation(l, "%s passes for valid: %s", c->name, why(&e));
        }
        const struct scan_checkpoint *c = scan_newest(&scan, 0);
        if (c)
                newest = (struct key){c->generation, c->step};
        bool expected = c ? is_key(c, l->now) || (l->has_next && is_key(c, l->next))
                          : l->now.generation == 0;
        if (!expected)
                violation(l,
                          "the newest is %" PRId64 "-g%" PRIu64 ", not %" PRId64 "-g%" PRIu64
                          " or %" PRId64 "-g%" PRIu64,
                          newest.step, newest.generation, l->now.step, l->now.generation,
                          l->next.step, l->next.generation);
        run_scan_done(&scan);
        (void) l->io.close(l->io.context, fd);
        return newest;
}

static void before_call(void *argument);

static void recover(struct life *l, uint64_t seed) {
        struct start_reply *reply = calloc(1, sizeof *reply);
        struct cairn_error e = CAIRN_ERROR_INIT;

        l->tally->recoveries++;
        struct key newest = look_at(l);
        if (l->depth < 2 && seed % 4 == 0) { /* crashed again while it recovers */
                l->crash_at = 1 + simfs_random(&seed) % 200;
                simfs_set_hook(l->fs, before_call, l);
        }
        int r = store_create_at(&l->io, &clock_system, l->store.fd, 1, &e);
        if (r < 0 && r != CAIRN_ERR_EXISTS)
                violation(l, "the store cannot be made: %s", why(&e));
        if (start(l, newest.generation ? START_RESUME : START_FRESH, -1, reply) < 0)
                goto finish;
        if (reply->finished) {
                if (!l->may_be_finished)
                        violation(l, "the run passes for finished");
                goto finish;
        }
        if (reply->checkpoint_step != (newest.generation ? newest.step : -1) ||
            reply->checkpoint_generation != newest.generation)
                violation(l, "it restarts from step %" PRId64 ", not from the newest: %s",
                          reply->checkpoint_step, reply->note);
        l->now = newest;
        l->has_next = false;
        commit(l, reply->generation, newest.step + 1, 1);
        simfs_set_hook(l->fs, NULL, NULL);
        (void) look_at(l);
finish:
        simfs_set_hook(l->fs, NULL, NULL);
        store_run_done(&l->run);
        free(reply);
}

static void crash(const struct life *l, uint64_t seed) {
        struct life after;

        life_init(&after, simfs_clone(l->fs), l->tally, l->doing);
        after.now = l->now;
        after.next = l->next;
        after.has_next = l->has_next;
        after.may_be_finished = l->may_be_finished;
        after.depth = l->depth + 1;
        simfs_crash(after.fs, seed, seed % 2 ? SIMFS_IN_ORDER : SIMFS_REORDER);
        after.store.fd = simfs_root(after.fs);
        l->tally->crashes++;
        l->tally->second_crashes += l->depth > 0;
        recover(&after, seed / 2);
        after.fs = simfs_free(after.fs);
}

static void before_call(void *argument) {
        struct life *l = argument;
        uint64_t rounds = l->depth == 0 ? l->tally->rounds : 2;

        l->calls++;
        if (l->depth == 0)
                l->tally->points++;
        if (l->crash_at != 0 && l->calls != l->crash_at)
                return;
        if (l->tally->stop_at_first && l->tally->violations > 0)
                return;
        for (uint64_t i = 0; i < rounds; i++)
                crash(l, simfs_random(&l->tally->seed));
}

/* ---- sweeps ---- */

struct planted {
        const char *name;
        enum simfs_sync (*sync)(const char *name, bool is_dir);
        bool (*reuse)(const char *name);
};
static const int errors[] = {EIO, ENOSPC};
enum { ERRORS = sizeof errors / sizeof *errors };

static void sweep_crashes(struct tally *tally, const struct planted *bug) {
        struct life l;

        life_init(&l, simfs_new(), tally, "beginning");
        simfs_set_sync_policy(l.fs, bug ? bug->sync : NULL);
        simfs_set_reuse_policy(l.fs, bug ? bug->reuse : NULL);
        simfs_set_hook(l.fs, before_call, &l);
        live(&l);
        simfs_set_hook(l.fs, NULL, NULL);
        crash(&l, 1);
        crash(&l, 2);
        l.fs = simfs_free(l.fs);
}

/* What was reported in spite of an error must survive a crash afterwards. */
static bool live_with_error(struct tally *tally, struct life *l, uint64_t n) {
        live(l);
        bool fired = simfs_failed(l->fs) || fault_fired();
        simfs_fail(l->fs, 0, 0);
        (void) fault_init(NULL, NULL);
        tally->points = n;
        tally->faults += fired;
        for (uint64_t round = 0; fired && round < 4; round++)
                crash(l, simfs_random(&tally->seed));
        l->fs = simfs_free(l->fs);
        return fired;
}

static void sweep_errors(struct tally *tally) {
        struct life l;

        for (size_t i = 0; i < ERRORS; i++) {
                uint64_t n = 0;
                do {
                        life_init(&l, simfs_new(), tally, "beginning");
                        simfs_fail(l.fs, ++n, errors[i]);
                } while (live_with_error(tally, &l, n));
        }
}

/* Savers and trainers pass these (test_fault_sweep has all). A crash at a point is one before the
 * next file operation. */
static bool is_elsewhere(enum fault point) {
        return point <= FAULT_MANIFEST_WRITE || point == FAULT_RESTORE_OPEN ||
               point == FAULT_RESTORE_READ || point == FAULT_CLIENT_APPLY;
}

static bool sweep_points(struct tally *tally) {
        bool all_fired = true;

        printf("points:");
        for (enum fault point = 0; point < FAULT_COUNT; point++) {
                uint64_t before = tally->faults;
                for (size_t i = 0; i < ERRORS; i++) {
                        struct life l;
                        uint64_t n = 0;
                        do {
                                char specification[80];
                                (void) snprintf(specification, sizeof specification,
                                                "%s:%" PRIu64 ":error:%d", fault_name(point), ++n,
                                                errors[i]);
                                life_init(&l, simfs_new(), tally, specification);
                                (void) fault_init(specification, NULL);
                        } while (live_with_error(tally, &l, n));
                }
                uint64_t fired = tally->faults - before;
                if (fired > 0)
                        printf(" %s %" PRIu64, fault_name(point), fired);
                if ((fired == 0) != is_elsewhere(point)) {
                        printf(" (%s: NOT AS LISTED)", fault_name(point));
                        all_fired = false;
                }
        }
        printf("\npoints: %" PRIu64 " errors, %" PRIu64 " crashes after them, %" PRIu64
               " violations\n",
               tally->faults, tally->crashes, tally->violations);
        return all_fired;
}

/* ---- planted bugs ---- */

static enum simfs_sync no_directory_sync(const char *name, bool is_dir) {
        return is_dir ? SIMFS_SYNC_IGNORED : SIMFS_SYNC;
}

static enum simfs_sync no_manifest_sync(const char *name, bool is_dir) {
        return strstr(name, ".manifest") ? SIMFS_SYNC_IGNORED : SIMFS_SYNC;
}

static enum simfs_sync late_manifest_sync(const char *name, bool is_dir) {
        return strstr(name, ".manifest") ? SIMFS_SYNC_AFTER_RENAME : SIMFS_SYNC;
}

static enum simfs_sync no_data_sync(const char *name, bool is_dir) {
        return strstr(name, ".data") ? SIMFS_SYNC_IGNORED : SIMFS_SYNC;
}

static enum simfs_sync late_record_sync(const char *name, bool is_dir) {
        return strcmp(name, COMMIT_NAME) == 0 || strcmp(name, INDEX_NAME) == 0
                       ? SIMFS_SYNC_AFTER_RENAME
                       : SIMFS_SYNC;
}

static enum simfs_sync no_pending_directory_sync(const char *name, bool is_dir) {
        return is_dir && strncmp(name, ".pending", 8) == 0 ? SIMFS_SYNC_IGNORED : SIMFS_SYNC;
}

static bool reuse_rank_files(const char *name) {
        return strncmp(name, "rank-", 5) == 0;
}

static const struct planted planted[] = {
        {"fsync of directories is ignored", no_directory_sync, NULL},
        {"fsync of the pending directory is ignored", no_pending_directory_sync, NULL},
        {"fsync of the manifests is ignored", no_manifest_sync, NULL},
        {"fsync of the data is ignored", no_data_sync, NULL},
        {"COMMIT comes before the manifests are synced", late_manifest_sync, NULL},
        {"the rename comes before the fsync of COMMIT", late_record_sync, NULL},
        {"files of an attempt are reused", NULL, reuse_rank_files},
};

static uint64_t environment(const char *name, uint64_t otherwise) {
        const char *text = getenv(name);
        return text && *text ? strtoull(text, NULL, 10) : otherwise;
}

int main(void) {
        uint64_t seed = environment("SEED", 1), rounds = environment("ROUNDS", 6);
        struct tally crashes = {.seed = seed, .rounds = rounds}, failures = {.seed = seed},
                     points = {.seed = seed};

        printf("SEED=%" PRIu64 " ROUNDS=%" PRIu64 "\n", seed, rounds);
        sweep_crashes(&crashes, NULL);
        printf("crashes: %" PRIu64 " operations, %" PRIu64 " crashes (%" PRIu64
               " while recovering), %" PRIu64 " recoveries, %" PRIu64 " violations\n",
               crashes.points, crashes.crashes, crashes.second_crashes, crashes.recoveries,
               crashes.violations);
        sweep_errors(&failures);
        printf("errors: %" PRIu64 " calls failed, %" PRIu64 " crashes after them, %" PRIu64
               " violations\n",
               failures.faults, failures.crashes, failures.violations);
        bool failed = !sweep_points(&points);
        for (size_t i = 0; i < sizeof planted / sizeof *planted; i++) {
                struct tally t = {.seed = seed,
                                  .rounds = rounds > PLANTED_ROUNDS ? rounds : PLANTED_ROUNDS,
                                  .stop_at_first = true,
                                  .quiet = true};
                sweep_crashes(&t, &planted[i]);
                failed |= t.violations == 0;
                printf("planted: %s: %s after %" PRIu64 " crashes\n", planted[i].name,
                       t.violations ? "found" : "NOT FOUND", t.crashes);
        }
        return failed || crashes.violations > 0 || failures.violations > 0 || points.violations > 0;
}
