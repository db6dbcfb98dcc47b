/* SPDX-License-Identifier: Apache-2.0
 *
 * fake_cairn.h - libcairn without an agent, for tests of the trainer: it remembers what was
 * declared, and a cut is a copy of exactly that. Defines the cairn_* functions, so that the linker
 * does not take the library's. Include in one test program's only source.
 */
#ifndef CAIRN_TESTS_FAKE_CAIRN_H
#define CAIRN_TESTS_FAKE_CAIRN_H

#include "base/assert.h"
#include "client/cairn.h"
#include "format/dtype.h"

enum { FAKE_ENTRIES_MAX = 4096, FAKE_ALLOCATIONS_MAX = 64 };

struct fake_entry {
        char name[96];
        char *data;
        size_t bytes;
        enum cairn_role role; /* 0: a host value */
        enum cairn_mutates mutates;
        float *step_fp32; /* of a step: data is its truth */
        char *shadow;     /* value at the last update_end: host values and anytime tensors */
};

struct cairn {
        struct fake_entry entry[FAKE_ENTRIES_MAX];
        size_t count;
        void *allocation[FAKE_ALLOCATIONS_MAX];
        size_t allocation_count;
        int64_t step;
        bool in_update;
        uint64_t updates, descriptions, misuse;
};

/* The status of everything after the restore, and one override. */
static int fake_status;
static const char *fake_override_key, *fake_override_value;
/* What the session says; a thread a rank. */
static __thread uint32_t fake_rank, fake_world = 1;

struct fake_cut {
        char *bytes[FAKE_ENTRIES_MAX];
        size_t count;
        int64_t step;
};

static inline struct fake_entry *fake_add(struct cairn *c, const char *name, void *data,
                                          size_t bytes) {
        for (size_t i = 0; i < c->count; i++)
                CAIRN_ASSERT(strcmp(c->entry[i].name, name) != 0);
        CAIRN_ASSERT(c->count < FAKE_ENTRIES_MAX);
        struct fake_entry *e = &c->entry[c->count++];
        (void) snprintf(e->name, sizeof(e->name), "%s", name);
        e->data = data;
        e->bytes = bytes;
        e->shadow = calloc(1, bytes + 1);
        return e;
}

static inline bool fake_is_shadowed(const struct fake_entry *e) {
        return e->role == 0 || e->step_fp32 || e->mutates == CAIRN_ANYTIME;
}

static inline void fake_publish(struct cairn *c) {
        for (size_t i = 0; i < c->count; i++) {
                struct fake_entry *e = &c->entry[i];
                if (e->step_fp32)
                        *e->step_fp32 = (float) *(int64_t *) e->data;
                if (fake_is_shadowed(e))
                        memcpy(e->shadow, e->data, e->bytes);
        }
}

/* What a copier would take now. */
static inline void fake_take(const struct cairn *c, struct fake_cut *cut) {
        cut->step = c->step;
        cut->count = c->count;
        for (size_t i = 0; i < c->count; i++) {
                const struct fake_entry *e = &c->entry[i];
                cut->bytes[i] = malloc(e->bytes + 1);
                if (e->bytes)
                        memcpy(cut->bytes[i], fake_is_shadowed(e) ? e->shadow : e->data, e->bytes);
        }
}

static inline void fake_give(struct cairn *c, const struct fake_cut *cut) {
        CAIRN_ASSERT(cut->count == c->count);
        for (size_t i = 0; i < c->count; i++)
                memcpy(c->entry[i].data, cut->bytes[i], c->entry[i].bytes);
        c->step = cut->step;
        fake_publish(c);
}

static inline void fake_cut_done(struct fake_cut *cut) {
        for (size_t i = 0; i < cut->count; i++)
                free(cut->bytes[i]);
        cut->count = 0;
}

int cairn_open(const struct cairn_options *o, struct cairn **ret) {
        *ret = calloc(1, sizeof(**ret));
        return *ret ? 0 : CAIRN_ERR_NOMEM;
}
void cairn_close(struct cairn *c) {
        if (!c)
                return;
        for (size_t i = 0; i < c->count; i++)
                free(c->entry[i].shadow);
        for (size_t i = 0; i < c->allocation_count; i++)
                free(c->allocation[i]);
        free(c);
}
const char *cairn_error_text(const struct cairn *c) {
        return "the fake fails as it was told to";
}
int cairn_exit_code(const struct cairn *c) {
        return 70;
}
int cairn_set_stream(struct cairn *c, void *stream) {
        return CAIRN_ERR_API;
}
int cairn_session(struct cairn *c, struct cairn_session *ret) {
        ret->run = "fake";
        ret->checkpoint = ret->run_dir = "";
        ret->checkpoint_step = -1;
        ret->rank = fake_rank;
        ret->world = fake_world;
        ret->start = CAIRN_START_FRESH;
        return 0;
}
const char *cairn_override(struct cairn *c, const char *key) {
        return fake_override_key && !strcmp(key, fake_override_key) ? fake_override_value : NULL;
}
int cairn_alloc(struct cairn *c, uint64_t bytes, void **ret) {
        *ret = aligned_alloc(256, (bytes + 255) / 256 * 256);
        CAIRN_ASSERT(*ret && c->allocation_count < FAKE_ALLOCATIONS_MAX);
        memset(*ret, 0, bytes);
        c->allocation[c->allocation_count++] = *ret;
        return 0;
}
int cairn_register(struct cairn *c, const struct cairn_tensor *t) {
        uint64_t elements, bytes;

        if (!shape_bytes(t->shape, t->rank, t->dtype, &elements, &bytes))
                return CAIRN_ERR_API;
        CAIRN_ASSERT(!t->sharded || (!t->replicated && t->flat_start + t->flat_count <= elements));
        if (t->sharded)
                bytes = bytes / elements * t->flat_count;
        if (bytes > 0 && !t->data)
                return CAIRN_ERR_API;
        struct fake_entry *e = fake_add(c, t->name, t->data, bytes);
        e->role = t->role;
        e->mutates = t->mutates;
        return 0;
}
int cairn_register_step(struct cairn *c, const char *name, float *data, int64_t *truth) {
        struct fake_entry *e = fake_add(c, name, truth, sizeof(*truth));
        e->role = CAIRN_STEP;
        e->step_fp32 = data;
        return 0;
}
int cairn_state_i64(struct cairn *c, const char *name, int64_t *value) {
        return fake_add(c, name, value, sizeof(*value)) ? 0 : CAIRN_ERR_API;
}
int cairn_state_u64(struct cairn *c, const char *name, uint64_t *value) {
        return fake_add(c, name, value, sizeof(*value)) ? 0 : CAIRN_ERR_API;
}
int cairn_state_f64(struct cairn *c, const char *name, double *value) {
        return fake_add(c, name, value, sizeof(*value)) ? 0 : CAIRN_ERR_API;
}
int cairn_describe(struct cairn *c, const char *key, const char *value) {
        c->descriptions++;
        return 0;
}
int cairn_seal(struct cairn *c) {
        return 0;
}
int cairn_restore(struct cairn *c, struct cairn_report *ret) {
        fake_publish(c);
        ret->start = CAIRN_START_FRESH;
        ret->step = 0;
        return 0;
}
int cairn_update_begin(struct cairn *c) {
        c->misuse += c->in_update;
        c->in_update = true;
        return fake_status;
}
int cairn_update_end(struct cairn *c, int64_t step) {
        c->misuse += !c->in_update;
        c->in_update = false;
        c->step = step;
        c->updates++;
        fake_publish(c);
        return fake_status;
}
const char *cairn_stored_description(struct cairn *c, const char *key) {
        return NULL;
}
int cairn_exchange_put(struct cairn *c, const char *key, const void *value, uint64_t bytes,
                       uint64_t timeout_ns) {
        return CAIRN_ERR_UNREACHABLE;
}
int cairn_exchange_get(struct cairn *c, const char *key, void *value, uint64_t capacity,
                       uint64_t *ret_bytes, uint64_t timeout_ns) {
        return CAIRN_ERR_UNREACHABLE;
}
int cairn_exchange_list(struct cairn *c, const char *prefix,
                        void (*visit)(const char *key, const void *value, uint64_t bytes,
                                      void *argument),
                        void *argument, uint64_t timeout_ns) {
        return CAIRN_ERR_UNREACHABLE;
}
int cairn_exchange_ranks(struct cairn *c, uint32_t *ranks, uint32_t capacity, uint32_t *ret_count,
                         uint64_t *ret_generation, uint64_t timeout_ns) {
        return CAIRN_ERR_UNREACHABLE;
}
bool cairn_should_stop(struct cairn *c) {
        return false;
}
int cairn_snapshot(struct cairn *c, cairn_ticket *ret) {
        *ret = 1;
        return 0;
}
int cairn_snapshot_wait(struct cairn *c, cairn_ticket ticket, uint64_t timeout_ns,
                        int64_t *ret_step) {
        *ret_step = c->step;
        return fake_status;
}
int cairn_finish(struct cairn *c, const char *reason) {
        return 0;
}
int cairn_get_statistics(struct cairn *c, struct cairn_statistics *ret) {
        ret->committed_step = -1;
        return 0;
}
uint64_t cairn_dtype_bytes(enum cairn_dtype dtype) {
        const struct dtype_info *info = dtype_info(dtype);
        return info ? info->bytes : 0;
}

#endif
