/* SPDX-License-Identifier: Apache-2.0
 *
 * simfs.h - a file system in memory behind struct io_ops that knows what a crash may do.
 *
 *     struct simfs *fs = simfs_new();
 *     simfs_ops(fs, &io); root = simfs_root(fs);        // io.* as on any file system
 *     copy = simfs_clone(fs); simfs_crash(copy, seed, order);   // as the disk might be found
 *     simfs_free(fs);
 *
 * Visible state and durable state are kept apart. A file's content becomes durable by fsync or
 * fdatasync of the file, a directory's entries by fsync of the directory; neither brings the other
 * along. At a crash each write since the last sync is kept, dropped or torn (some of its sectors of
 * 512 bytes or blocks of 4 KiB are there, others hold what was there before; where the file grew,
 * zeros or foreign bytes), and each directory operation kept or dropped: in order (a journal:
 * everything up to some point) or any of them (no promise at all). A rename within a directory is
 * one operation. Descriptors and locks die with the crash.
 *
 * A failed fsync of a file is final, as on Linux: what it should have written stays visible and is
 * never durable, while the next fsync succeeds.
 *
 * One thread. Descriptors are numbers that no real file has, so a call that goes past the table
 * fails.
 */
#ifndef CAIRN_TESTS_SIMFS_H
#define CAIRN_TESTS_SIMFS_H

#include "base/io.h"

struct simfs;

enum simfs_order { SIMFS_IN_ORDER, SIMFS_REORDER };
/* What an fsync is worth, for planted bugs; the rename is the next one of a directory. */
enum simfs_sync { SIMFS_SYNC, SIMFS_SYNC_IGNORED, SIMFS_SYNC_AFTER_RENAME };

struct simfs *simfs_new(void);
struct simfs *simfs_free(struct simfs *fs);
/* Everything but descriptors, locks and hooks. */
struct simfs *simfs_clone(const struct simfs *fs);
void simfs_ops(struct simfs *fs, struct io_ops *ret);
/* A descriptor of the root directory, to be closed like any other. */
int simfs_root(struct simfs *fs);
void simfs_crash(struct simfs *fs, uint64_t seed, enum simfs_order order);

/* Calls so far (close and fstat are not counted: they change nothing). */
uint64_t simfs_calls(const struct simfs *fs);
/* Before each counted call: the instant at which a crash is interesting. */
void simfs_set_hook(struct simfs *fs, void (*before)(void *argument), void *argument);
/* The n-th call from now on fails with this errno, once; 0 switches it off. */
void simfs_fail(struct simfs *fs, uint64_t n, int error_number);
bool simfs_failed(const struct simfs *fs); /* it did */
/* Called with the name under which the file was opened. */
void simfs_set_sync_policy(struct simfs *fs,
                           enum simfs_sync (*policy)(const char *name, bool is_dir));
/* Another: O_EXCL is forgotten, an old file of that name is opened as it is. */
void simfs_set_reuse_policy(struct simfs *fs, bool (*reuse)(const char *name));
size_t simfs_open_count(const struct simfs *fs);
uint64_t simfs_random(uint64_t *seed); /* splitmix64 */

#endif
