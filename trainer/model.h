/* SPDX-License-Identifier: Apache-2.0
 *
 * model.h - shape and parameters of a decoder-only transformer (GPT-2: learnt positions, layer
 * normalisation before each half of a block, GELU, output tied to the token embedding).
 * Symbols everywhere: B batch, T time, C width, V vocabulary, L layers, P positions.
 *
 * All parameters lie in one block of floats (or of bf16, or f16) in the order of the table; each
 * starts at a multiple of 64 elements, so alignment, and with it the order of additions in BLAS, is
 * the same in every process. A struct weights is a view of one such block, of whatever type.
 */
#ifndef CAIRN_TRAINER_MODEL_H
#define CAIRN_TRAINER_MODEL_H

#include "base/status.h"
#include <stdbool.h>

struct layer_weights {
        void *ln1_weight;     /* (C) */
        void *ln1_bias;       /* (C) */
        void *qkv_weight;     /* (3C, C) */
        void *qkv_bias;       /* (3C) */
        void *project_weight; /* (C, C) */
        void *project_bias;   /* (C) */
        void *ln2_weight;     /* (C) */
        void *ln2_bias;       /* (C) */
        void *up_weight;      /* (4C, C) */
        void *up_bias;        /* (4C) */
        void *down_weight;    /* (C, 4C) */
        void *down_bias;      /* (C) */
};
enum { LAYER_TENSORS = sizeof(struct layer_weights) / sizeof(void *) };

struct outer_weights {
        void *wte;       /* (V, C) */
        void *wpe;       /* (P, C) */
        void *ln_weight; /* (C), of the last normalisation */
        void *ln_bias;   /* (C) */
};
enum { OUTER_TENSORS = sizeof(struct outer_weights) / sizeof(void *) };

struct weights {
        struct outer_weights outer;
        struct layer_weights *layer; /* L of them */
};

struct model_tensor {
        char name[48]; /* GPT-2's names: "h.0.attn.c_attn.weight" */
        uint32_t rank;
        uint64_t shape[2];
        size_t offset, count; /* elements of the block */
        bool is_matrix;       /* decays; vectors do not */
};

struct model {
        size_t layers, heads, width, positions, vocabulary;
        struct model_tensor *tensor;
        size_t tensor_count;
        size_t block_count; /* elements, gaps included */
};

/* NOMEM or 0. Sizes were checked by settings. */
int model_init(struct model *m, size_t layers, size_t heads, size_t width, size_t positions,
               size_t vocabulary, struct cairn_error *reterr);
void model_done(struct model *m);

/* layer: caller's array of m->layers. */
void model_view(const struct model *m, struct weights *w, struct layer_weights *layer, void *block,
                size_t element_bytes);
/* GPT-2's initialisation of one tensor (x: its elements), a pure function of the seed. */
void model_initialise(const struct model *m, size_t tensor, float *x, uint64_t seed);

#endif
