/* SPDX-License-Identifier: Apache-2.0 */
#include "trainer/model.h"
#include "kernels/philox.h"
#include <math.h>

enum start { ZEROS, ONES, NORMAL, NORMAL_RESIDUAL };
/* Lengths of dimensions; NONE ends a shape. */
enum length { NONE, C1, C3, C4, VOCABULARY, POSITIONS };

struct row {
        const char *name;
        enum length shape[2];
        enum start start;
};

static const struct row outer_rows[] = {
        {"wte.weight", {VOCABULARY, C1}, NORMAL},
        {"wpe.weight", {POSITIONS, C1}, NORMAL},
        {"ln_f.weight", {C1, NONE}, ONES},
        {"ln_f.bias", {C1, NONE}, ZEROS},
};
static const struct row layer_rows[] = {
        {"ln_1.weight", {C1, NONE}, ONES},
        {"ln_1.bias", {C1, NONE}, ZEROS},
        {"attn.c_attn.weight", {C3, C1}, NORMAL},
        {"attn.c_attn.bias", {C3, NONE}, ZEROS},
        {"attn.c_proj.weight", {C1, C1}, NORMAL_RESIDUAL},
        {"attn.c_proj.bias", {C1, NONE}, ZEROS},
        {"ln_2.weight", {C1, NONE}, ONES},
        {"ln_2.bias", {C1, NONE}, ZEROS},
        {"mlp.c_fc.weight", {C4, C1}, NORMAL},
        {"mlp.c_fc.bias", {C4, NONE}, ZEROS},
        {"mlp.c_proj.weight", {C1, C4}, NORMAL_RESIDUAL},
        {"mlp.c_proj.bias", {C1, NONE}, ZEROS},
};
_Static_assert(sizeof(outer_rows) / sizeof(outer_rows[0]) == OUTER_TENSORS, "a row a pointer");
_Static_assert(sizeof(layer_rows) / sizeof(layer_rows[0]) == LAYER_TENSORS, "a row a pointer");

static uint64_t length_of(const struct model *m, enum length length) {
        switch (length) {
        case NONE:
                return 1;
        case C1:
                return m->width;
        case C3:
                return 3 * m->width;
        case C4:
                return 4 * m->width;
        case VOCABULARY:
                return m->vocabulary;
        case POSITIONS:
                return m->positions;
        }
        return 0;
}

static const struct row *row_of(size_t index) {
        return index < OUTER_TENSORS ? &outer_rows[index]
                                     : &layer_rows[(index - OUTER_TENSORS) % LAYER_TENSORS];
}

int model_init(struct model *m, size_t layers, size_t heads, size_t width, size_t positions,
               size_t vocabulary, struct cairn_error *reterr) {
        *m = (struct model){.layers = layers,
                            .heads = heads,
                            .width = width,
                            .positions = positions,
                            .vocabulary = vocabulary,
                            .tensor_count = OUTER_TENSORS + layers * LAYER_TENSORS};
        m->tensor = calloc(m->tensor_count, sizeof(*m->tensor));
        if (!m->tensor)
                return error_set(reterr, CAIRN_ERR_NOMEM, "make model", "tensor table",
                                 "no memory is free");
        for (size_t i = 0; i < m->tensor_count; i++) {
                struct model_tensor *t = &m->tensor[i];
                const struct row *row = row_of(i);
                char prefix[24] = "";
                if (i >= OUTER_TENSORS)
                        (void) snprintf(prefix, sizeof(prefix), "h.%u.",
                                        (unsigned) ((i - OUTER_TENSORS) / LAYER_TENSORS));
                (void) snprintf(t->name, sizeof(t->name), "%s%s", prefix, row->name);
                t->rank = row->shape[1] == NONE ? 1 : 2;
                t->is_matrix = t->rank == 2;
                t->shape[0] = length_of(m, row->shape[0]);
                t->shape[1] = length_of(m, row->shape[1]);
                t->count = t->shape[0] * t->shape[1];
                t->offset = m->block_count;
                m->block_count += (t->count + 63) / 64 * 64;
        }
        return 0;
}

void model_done(struct model *m) {
        if (!m)
                return;
        free(m->tensor);
        m->tensor = NULL;
}

void model_view(const struct model *m, struct weights *w, struct layer_weights *layer, void *block,
                size_t element_bytes) {
        void *pointer[LAYER_TENSORS];

        for (size_t i = 0; i < OUTER_TENSORS; i++)
                pointer[i] = (char *) block + m->tensor[i].offset * element_bytes;
        memcpy(&w->outer, pointer, sizeof(w->outer));
        w->layer = layer;
        for (size_t l = 0; l < m->layers; l++) {
                const struct model_tensor *t = &m->tensor[OUTER_TENSORS + l * LAYER_TENSORS];
                for (size_t i = 0; i < LAYER_TENSORS; i++)
                        pointer[i] = (char *) block + t[i].offset * element_bytes;
                memcpy(&layer[l], pointer, sizeof(layer[l]));
        }
}

/* Two normal values from four random words (Box and Muller, 1958), in double. */
static void normal_pair(uint64_t seed, uint32_t tensor, uint64_t pair, double ret[2]) {
        struct philox_block r = philox_draw(seed, PHILOX_INITIALISE, (uint32_t) pair,
                                            (uint32_t) (pair >> 32), tensor, 0);
        double u = (r.word[0] + 1.0) * 0x1p-32 - r.word[1] * 0x1p-64;
        double angle = 2.0 * M_PI * (r.word[2] * 0x1p-32 + r.word[3] * 0x1p-64);
        double radius = sqrt(-2.0 * log(u));

        ret[0] = radius * cos(angle);
        ret[1] = radius * sin(angle);
}

void model_initialise(const struct model *m, size_t tensor, float *x, uint64_t seed) {
        enum start start = row_of(tensor)->start;
        double pair[2] = {0, 0};
        /* 2L additions go into the residual stream. */
        double deviation = start == NORMAL ? 0.02 : 0.02 / sqrt(2.0 * (double) m->layers);

        for (size_t j = 0; j < m->tensor[tensor].count; j++) {
                if (start == ZEROS || start == ONES) {
                        x[j] = start == ONES ? 1.0f : 0.0f;
                } else {
                        if (j % 2 == 0)
                                normal_pair(seed, (uint32_t) tensor, j / 2, pair);
                        x[j] = (float) (deviation * pair[j % 2]);
                }
        }
}
