/* SPDX-License-Identifier: Apache-2.0
 *
 * names.h - the path names of a store, made and parsed in one place. Steps and generations are
 * compared as numbers, never as text (B52).
 *
 *   CAIRN-STORE  <run>/GEN-0003  <run>/GEN-0003.start  <run>/000000001234-g0003/
 * <run>/.pending-g0003-a000001/ <run>/.stale-...  <run>/.trash-...  <run>/marks/  and in a
 * checkpoint: COMMIT INDEX rank-00000.manifest rank-00000.data
 *
 * A run name is 1..64 of [A-Za-z0-9._-], not starting with '.', '-' or "GEN-", and not
 * the store marker's name. A pending directory is named before
 * its step is known (its files are opened before the copy starts), so it carries the attempt, not
 * the step.
 */
#ifndef CAIRN_NAMES_H
#define CAIRN_NAMES_H

#include "base/limits.h"
#include "base/status.h"
#include <stdbool.h>

#define NAME_BYTES 64 /* enough for every name below */
#define STORE_MARKER_NAME "CAIRN-STORE"
#define COMMIT_NAME "COMMIT"
#define INDEX_NAME "INDEX"
#define MARKS_NAME "marks"
#define FINISHED_NAME "FINISHED" /* in marks/ */
#define NODE_NAME "NODE"         /* in marks/ */
#define EXIT_NAME "exit.json"

int name_check_run(const char *run, struct cairn_error *reterr);
void name_generation(char *name, uint64_t generation);       /* GEN-0003 */
void name_generation_start(char *name, uint64_t generation); /* GEN-0003.start */
void name_checkpoint(char *name, int64_t step, uint64_t generation);
void name_pending(char *name, uint64_t generation, uint32_t attempt);
void name_stale(char *name, uint64_t generation, uint32_t attempt, uint64_t fenced_by);
void name_trash(char *name, const char *of);
void name_pin(char *name, const char *checkpoint); /* in marks/: PIN-000000001234-g0003 */
void name_tag(char *name, const char *checkpoint); /* in marks/: TAG-000000001234-g0003 */
void name_manifest(char *name, uint32_t rank);
void name_data(char *name, uint32_t rank);
/* Exact inverses: false unless the whole name is of that form. */
bool name_parse_generation(const char *name, uint64_t *ret_generation, bool *ret_is_start);
bool name_parse_checkpoint(const char *name, int64_t *ret_step, uint64_t *ret_generation);
bool name_parse_pending(const char *name, uint64_t *ret_generation, uint32_t *ret_attempt);
bool name_parse_stale(const char *name, uint64_t *ret_generation, uint32_t *ret_attempt);

#endif
