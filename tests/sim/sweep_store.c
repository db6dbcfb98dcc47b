/* SPDX-License-Identifier: Apache-2.0 */
#include "base/cleanup.h"
#include "format/scan.h"
#include "tests/sim/sweep.h"
#include "tools/tensor_read.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int compare_tensor(struct tensor_reader *reader, const struct file_content *index,
                          size_t which, int64_t step, struct cairn_error *reterr) {
        const struct sweep_tensor *s = &sweep_tensors[which];
        _cleanup_free_ float *data = calloc(s->count, sizeof *data);

        for (size_t i = 0; i < index->tensor_count; i++) {
                const Cairn__Format__Tensor *t = index->tensors[i];
                if (t->name.len != strlen(s->name) ||
                    memcmp(t->name.data, s->name, t->name.len) != 0)
                        continue;
                TRY(tensor_read(reader, t, 0, s->count, data, reterr));
                uint64_t k = sweep_difference(which, step, data);
                if (k < s->count)
                        return error_set(reterr, CAIRN_ERR_MISMATCH, "compare", s->name,
                                         "element %" PRIu64 " is %g, not %g", k, (double) data[k],
                                         (double) sweep_value(which, step, k));
                return 0;
        }
        return error_set(reterr, CAIRN_ERR_NOTFOUND, "compare", s->name, "it is not stored");
}

static int compare(int run_fd, const struct scan_checkpoint *c, struct cairn_error *reterr) {
        _cleanup_(tensor_reader_done) struct tensor_reader reader = TENSOR_READER_INIT;
        _cleanup_(arena_done) struct arena arena;
        struct file_content index, commit;

        arena_init(&arena, 64 * MiB);
        TRY(checkpoint_check(&io_system, run_fd, c->name, SWEEP_RUN, true, NULL, reterr));
        TRY(checkpoint_load(&io_system, run_fd, c->name, &arena, &index, &commit, reterr));
        TRY(tensor_reader_open(&reader, &io_system, run_fd, c->name, 1, reterr));
        for (size_t i = 0; i < SWEEP_TENSORS; i++)
                TRY(compare_tensor(&reader, &index, i, c->step, reterr));
        for (size_t i = 0; i < index.states[0]->n_values; i++) {
                const Cairn__Format__StateValue *v = index.states[0]->values[i];
                if (v->name.len == 7 && memcmp(v->name.data, "samples", 7) == 0 &&
                    v->i64 == c->step * SWEEP_SAMPLES_PER_STEP)
                        return 0;
        }
        return error_set(reterr, CAIRN_ERR_MISMATCH, "compare", "samples",
                         "it is not that of the step");
}

static int check(const char *store, int64_t *ret_newest, struct cairn_error *reterr) {
        _cleanup_(run_scan_done) struct run_scan scan = {0};
        _cleanup_close_ int store_fd = -1, run_fd = -1;

        *ret_newest = -1;
        TRY(store_open(&io_system, store, &store_fd, reterr));
        TRY(run_open(&io_system, store_fd, SWEEP_RUN, &run_fd, reterr));
        TRY(run_scan(&io_system, run_fd, SWEEP_RUN, true, &scan, reterr));
        for (size_t i = 0; i < scan.checkpoint_count; i++) {
                const struct scan_checkpoint *c = &scan.checkpoints[i];
                if (c->is_attempt)
                        continue;
                if (c->validity != CHECKPOINT_VALID) {
                        *reterr = c->error;
                        return c->error.status < 0
                                       ? c->error.status
                                       : error_set(reterr, CAIRN_ERR_CORRUPT, "scan", c->name,
                                                   "it is flagged or not checked");
                }
                TRY(compare(run_fd, c, reterr));
        }
        const struct scan_checkpoint *newest = scan_newest(&scan, 0);
        if (newest)
                *ret_newest = newest->step;
        return 0;
}

bool sweep_store_check(const char *store, int64_t *ret_newest, char *problem, size_t bytes) {
        struct cairn_error e = CAIRN_ERROR_INIT;

        problem[0] = '\0';
        if (check(store, ret_newest, &e) == 0)
                return true;
        (void) error_format(&e, problem, bytes);
        return false;
}
