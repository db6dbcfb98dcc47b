/* SPDX-License-Identifier: Apache-2.0
 *
 * registry.h - what the trainer declared: tensors, host values, descriptions. Every rule of cairn.h
 * is checked here, at the call that breaks it, and a refused call changes nothing.
 *
 * Owned by the handle, one thread at a time. Names are copied; data, truths and host values stay
 * the trainer's.
 */
#ifndef CAIRN_CLIENT_REGISTRY_H
#define CAIRN_CLIENT_REGISTRY_H

#include "base/arena.h"
#include "client/cairn.h"
#include "client/name_map.h"
#include "client/slab.h"
#include "format/host_state.h"

struct tensor {
        const char *name;
        uint32_t name_bytes;
        uint32_t role, dtype, stored_dtype, mutates, rank;
        uint64_t shape[CAIRN_RANK_MAX];
        void *data, *shadow;
        uint64_t first, count; /* elements held here, row-major in the global tensor */
        uint64_t elements;     /* of the global tensor */
        uint64_t bytes;        /* held here */
        struct slab_place place, shadow_place;
        int64_t alias_of;   /* index of a tensor that is no alias; -1: none */
        int64_t *truth;     /* STEP of cairn_register_step */
        size_t truth_value; /* index of its host value */
        bool replicated, sharded, owned;
        bool elsewhere;  /* what is copied lies in no slab */
        uint32_t digest; /* debug_mutation */
};

struct value {
        const char *name;
        uint32_t type;
        void *data;
        uint64_t *length; /* BYTES */
        uint64_t capacity, offset;
};

struct description {
        const char *key, *value;
};

struct registry {
        struct arena arena;
        struct tensor *tensors;
        size_t tensor_count, tensor_capacity;
        struct value *values;
        size_t value_count, value_capacity;
        struct description *descriptions;
        size_t description_count, description_capacity;
        struct name_map tensor_names, value_names, keys;
        size_t *shadowed, *steps; /* indices of ANYTIME tensors, of tensors with a truth */
        size_t shadowed_count, shadowed_capacity, step_count, step_capacity;
        size_t elsewhere_count;
        bool unsealed; /* something was added since the last seal */
};

int registry_init(struct registry *r);
void registry_done(struct registry *r);
int registry_add_tensor(struct registry *r, struct slabs *slabs, const struct cairn_tensor *t,
                        struct cairn_error *reterr);
int registry_add_step(struct registry *r, struct slabs *slabs, const char *name, float *data,
                      int64_t *truth, struct cairn_error *reterr);
int registry_add_value(struct registry *r, const char *name, uint32_t type, void *data,
                       uint64_t *length, uint64_t capacity, struct cairn_error *reterr);
int registry_describe(struct registry *r, const char *key, const char *value,
                      struct cairn_error *reterr);
/* NULL: no such key. */
const char *registry_description(const struct registry *r, const char *key, size_t bytes);

/* Truths -> FP32 steps; tensors -> shadows: what update_end and the end of a restore do on the host
 * (stream.h: on a GPU). */
void registry_write_steps(const struct registry *r);
void registry_write_shadows(const struct registry *r);

/* A tensor's name for a sentence: escaped and cut. Returns buf. */
const char *name_label(const void *name, size_t bytes, char *buf, size_t buf_bytes);
/* "[2, 3]" */
const char *shape_label(const uint64_t *shape, size_t rank, char *buf, size_t buf_bytes);

#endif
