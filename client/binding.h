/* SPDX-License-Identifier: Apache-2.0
 *
 * binding.h - stored tensors and values against registered ones: by name and shape, all of it
 * before anything is touched. binding_make only reads. Its lines are what errors and the report
 * list.
 *
 *     struct stored s;                        the INDEX that the agent sent
 *     TRY(stored_open(&s, fd, reterr));       takes nothing; the caller closes fd
 *     TRY(binding_make(&b, &s, &request, &registry, reterr));
 *     if (b.problems.item_count) ... refuse, nothing was touched
 *     ... plan the ranges of b.loads, read them, copy ...
 *     binding_done(&b); stored_done(&s);
 *
 * Owner: a binding points into stored and registry. One thread at a time.
 */
#ifndef CAIRN_CLIENT_BINDING_H
#define CAIRN_CLIENT_BINDING_H

#include "client/registry.h"
#include "client/textbuf.h"
#include "format/layout.h"

struct pair {
        const char *key, *value;
};

struct stored {
        struct arena arena;
        void *mapping; /* of INDEX, which the content points into */
        uint64_t mapping_bytes;
        struct file_content index;
        const char **names; /* of the tensors, terminated */
        struct pair *texts; /* descriptions */
        size_t text_count;
        struct layout_ranks here; /* whose data can be read */
        bool present;
};
int stored_open(struct stored *s, int fd, const char *checkpoint, struct cairn_error *reterr);
void stored_done(struct stored *s);

struct binding_request {
        enum cairn_start start;
        const char *run;
        uint32_t rank, world;
        int64_t step; /* of the checkpoint, as Welcome said */
        const struct pair *overrides, *conversions;
        size_t override_count, conversion_count;
};

struct load {
        size_t tensor;                       /* registered */
        const Cairn__Format__Tensor *stored; /* holds the extents: never an alias */
        bool converted;                      /* runtime dtypes differ; the operator named it */
        bool has_true_step;                  /* STEP: set by transfer_check_steps */
        int64_t true_step;
};
struct binding {
        const struct file_content *index;
        struct layout_ranks here;
        struct load *loads;
        size_t load_count;
        const Cairn__Format__StateValue **values; /* parallel to the registered ones; NULL: none */
        uint64_t converted_count;
        struct textbuf problems;    /* why it is refused, all of them; init-from: nothing fits */
        struct textbuf skipped;     /* init-from: not loaded, and why; of ranks that are gone */
        struct textbuf conversions; /* "wte f16 -> f32" */
        struct textbuf changes;     /* "optimizer.lr 0.1 -> 0.01 (overridden)", "world 2 -> 1" */
        struct textbuf differs;     /* why the continuation is not bit-exact */
};

int binding_make(struct binding *b, const struct stored *s, const struct binding_request *request,
                 const struct registry *r, struct cairn_error *reterr);
void binding_done(struct binding *b);
/* NULL: not overridden. */
const char *pair_find(const struct pair *pairs, size_t count, const char *key);

#endif
