/* SPDX-License-Identifier: Apache-2.0 */
#include "client/binding.h"
#include "base/bytes.h"
#include "format/check.h"
#include "format/dtype.h"
#include "format/layout.h"
#include "format/wire.h"
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>

/* Unpacked records are some ten times as large as their wire form. */
#define STORED_ARENA_FACTOR 32
#define STORED_ARENA_BYTES_MIN (64 * MiB)
#define LABEL_BYTES 200
#define SHAPE_BYTES 200

/* ---- the stored side ---- */

static int stored_strings(struct stored *s, struct cairn_error *reterr) {
        size_t count = s->index.tensor_count;
        const Cairn__Format__Head *head = s->index.head;
        if (!head)
                return error_set(reterr, CAIRN_ERR_CORRUPT, "read INDEX", "", "it has no head");
        s->names = arena_alloc(&s->arena, (count + 1) * sizeof *s->names, 8);
        s->texts = arena_alloc(&s->arena, (head->n_texts + 1) * sizeof *s->texts, 8);
        bool complete = s->names && s->texts;
        for (size_t i = 0; complete && i < count; i++) {
                const ProtobufCBinaryData *name = &s->index.tensors[i]->name;
                s->names[i] = arena_strndup(&s->arena, (const char *) name->data, name->len);
                complete = s->names[i] != NULL;
        }
        for (size_t i = 0; complete && i < head->n_texts; i++) {
                const Cairn__Format__Text *t = head->texts[i];
                s->texts[i].key = arena_strndup(&s->arena, (const char *) t->key.data, t->key.len);
                s->texts[i].value =
                        arena_strndup(&s->arena, (const char *) t->value.data, t->value.len);
                complete = s->texts[i].key && s->texts[i].value;
                s->text_count++;
        }
        if (!complete)
                return error_set(reterr, CAIRN_ERR_NOMEM, "read INDEX", "", "memory is missing");
        return 0;
}

int stored_open(struct stored *s, int fd, const char *checkpoint, struct cairn_error *reterr) {
        uint64_t bytes;
        char object[300];
        *s = (struct stored){0};
        TRY(wire_memfd_check(fd, F_SEAL_SHRINK | F_SEAL_WRITE, 64, INVENTORY_BYTES_MAX, &bytes,
                             reterr));
        void *mapping = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
        if (mapping == MAP_FAILED)
                return error_set_errno(reterr, errno, "map INDEX", checkpoint);
        (void) madvise(mapping, bytes, MADV_DONTFORK);
        s->mapping = mapping;
        s->mapping_bytes = bytes;
        uint64_t limit = bytes * STORED_ARENA_FACTOR;
        arena_init(&s->arena, limit > STORED_ARENA_BYTES_MIN ? limit : STORED_ARENA_BYTES_MIN);
        (void) snprintf(object, sizeof object, "%s/INDEX", checkpoint);
        int r = file_read(mapping, bytes, FILE_INDEX, object, &s->arena, &s->index, reterr);
        if (r == 0 && !s->index.head)
                r = error_set(reterr, CAIRN_ERR_CORRUPT, "read INDEX", object, "it has no head");
        if (r == 0)
                r = layout_check_coverage(&s->index, reterr);
        if (r == 0)
                r = stored_strings(s, reterr);
        if (r < 0) {
                stored_done(s);
                return r;
        }
        s->present = true;
        return 0;
}

void stored_done(struct stored *s) {
        if (s->mapping)
                (void) munmap(s->mapping, s->mapping_bytes);
        arena_done(&s->arena);
        *s = (struct stored){0};
}

static const Cairn__Format__Tensor *stored_find(const struct stored *s, const void *name,
                                                size_t bytes) {
        ptrdiff_t i = layout_find(&s->index, name, bytes);
        return i < 0 ? NULL : s->index.tensors[i];
}

/* ---- one tensor ---- */

struct maker {
        struct binding *b;
        const struct stored *s;
        const struct binding_request *request;
        const struct registry *r;
        size_t convertible; /* of the problems: those that --convert takes away */
};

const char *pair_find(const struct pair *pairs, size_t count, const char *key) {
        for (size_t i = 0; i < count; i++)
                if (strcmp(pairs[i].key, key) == 0)
                        return pairs[i].value;
        return NULL;
}

static const char *dtype_label(uint32_t dtype) {
        const struct dtype_info *info = dtype_info(dtype);
        return info ? info->name : "unknown";
}

static const char *role_label(uint32_t role) {
        const char *name = role_name(role);
        return name ? name : "unknown";
}

/* The dtype that the operator asked this tensor to be converted to; NULL: not named. */
static const char *asked_conversion(const struct maker *m, const char *name) {
        for (size_t i = 0; i < m->request->conversion_count; i++)
                if (fnmatch(m->request->conversions[i].key, name, 0) == 0)
                        return m->request->conversions[i].value;
        return NULL;
}

static bool converts(uint32_t to, uint32_t from) {
        unsigned char target[1], source[1] = {0};
        return dtype_convert(target, to, source, from, 0, NULL, NULL) == 0;
}

/* Runtime dtypes agree, or the operator named their conversion. Writes a line to `complaints`
 * otherwise. */
static bool dtypes_agree(struct maker *m, const struct tensor *t,
                         const Cairn__Format__Tensor *stored, const char *label,
                         struct textbuf *complaints, bool *ret_converted) {
        *ret_converted = false;
        if (stored->runtime_dtype == t->dtype)
                return true;
        /* A foreign step counter becomes FP32 by the rules of format/dtype.h, once its value is
         * known. */
        if (t->role == CAIRN_STEP) {
                *ret_converted = true;
                return true;
        }
        const char *asked = asked_conversion(m, t->name);
        const char *is = dtype_label(stored->runtime_dtype), *wanted = dtype_label(t->dtype);
        if (!converts(t->dtype, stored->runtime_dtype)) {
                textbuf_item(
                        complaints,
                        "tensor %s: the checkpoint has %s, the trainer expects %s; there is no "
                        "conversion",
                        label, is, wanted);
                return false;
        }
        if (asked && dtype_from_name(asked) == t->dtype) {
                *ret_converted = true;
                return true;
        }
        m->convertible++;
        if (!asked)
                textbuf_item(
                        complaints,
                        "tensor %s: the checkpoint has %s, the trainer expects %s (allow it with "
                        "--convert 'NAME=%s')",
                        label, is, wanted, wanted);
        else
                textbuf_item(complaints,
                             "tensor %s: --convert asks for %s, but the trainer registered %s "
                             "(the checkpoint has %s)",
                             label, asked, wanted, is);
        return false;
}

static bool shapes_agree(const struct tensor *t, const Cairn__Format__Tensor *stored,
                         const char *label, struct textbuf *complaints) {
        char is[SHAPE_BYTES], wanted[SHAPE_BYTES];
        if (stored->n_shape == t->rank &&
            (t->rank == 0 || memcmp(stored->shape, t->shape, t->rank * sizeof *t->shape) == 0))
                return true;
        textbuf_item(complaints, "tensor %s: the checkpoint has shape %s, the trainer %s", label,
                     shape_label(stored->shape, stored->n_shape, is, sizeof is),
                     shape_label(t->shape, t->rank, wanted, sizeof wanted));
        return false;
}

static int add_load(struct maker *m, size_t index, const Cairn__Format__Tensor *stored,
                    bool converted, const char *label, struct cairn_error *reterr) {
        const struct tensor *t = &m->r->tensors[index];
        const Cairn__Format__Tensor *root = stored;
        if (stored->alias_of.len) {
                root = stored_find(m->s, stored->alias_of.data, stored->alias_of.len);
                if (!root || root->alias_of.len)
                        return error_set(reterr, CAIRN_ERR_CORRUPT, "read INDEX", label,
                                         "the tensor that it is an alias of is missing");
        }
        if (converted) {
                m->b->converted_count++;
                textbuf_item(&m->b->conversions, "%s %s -> %s", label,
                             dtype_label(stored->runtime_dtype), dtype_label(t->dtype));
        } else if (root->stored_dtype != root->runtime_dtype) {
                textbuf_item(&m->b->differs, "%s was stored as %s", label,
                             dtype_label(root->stored_dtype));
        }
        m->b->loads[m->b->load_count++] =
                (struct load){.tensor = index, .stored = root, .converted = converted};
        return 0;
}

/* ---- resume: everything agrees ---- */

static void check_tie(struct maker *m, const struct tensor *t, const Cairn__Format__Tensor *stored,
                      const char *label) {
        const struct tensor *root = t->alias_of >= 0 ? &m->r->tensors[t->alias_of] : NULL;
        bool stored_tie = stored->alias_of.len > 0;
        if (!root && !stored_tie)
                return;
        char is[LABEL_BYTES] = "nothing", wanted[LABEL_BYTES] = "nothing";
        if (stored_tie)
                name_label(stored->alias_of.data, stored->alias_of.len, is, sizeof is);
        if (root)
                name_label(root->name, root->name_bytes, wanted, sizeof wanted);
        if (root && stored_tie && root->name_bytes == stored->alias_of.len &&
            memcmp(root->name, stored->alias_of.data, root->name_bytes) == 0)
                return;
        textbuf_item(&m->b->problems,
                     "tensor %s: tied to %s in the checkpoint, to %s in the trainer", label, is,
                     wanted);
}

/* A counter that was no f32 could only be registered with another role. */
static bool is_foreign_step(const struct tensor *t, const Cairn__Format__Tensor *stored) {
        return t->role == CAIRN_STEP &&
               (stored->role == CAIRN_OTHER || stored->role == CAIRN_MOMENT_OTHER);
}

static int resume_tensor(struct maker *m, size_t index, struct cairn_error *reterr) {
        const struct tensor *t = &m->r->tensors[index];
        struct textbuf *problems = &m->b->problems;
        char label[LABEL_BYTES], shape[SHAPE_BYTES];
        name_label(t->name, t->name_bytes, label, sizeof label);
        const Cairn__Format__Tensor *stored = stored_find(m->s, t->name, t->name_bytes);
        if (!stored) {
                textbuf_item(
                        problems,
                        "tensor %s: the trainer registered it (%s %s), the checkpoint lacks it",
                        label, dtype_label(t->dtype),
                        shape_label(t->shape, t->rank, shape, sizeof shape));
                return 0;
        }
        bool converted;
        bool good = shapes_agree(t, stored, label, problems);
        good &= dtypes_agree(m, t, stored, label, problems, &converted);
        if (stored->role != t->role && !is_foreign_step(t, stored)) {
                textbuf_item(problems, "tensor %s: the checkpoint has role %s, the trainer %s",
                             label, role_label(stored->role), role_label(t->role));
                good = false;
        }
        check_tie(m, t, stored, label);
        if (!good || t->alias_of >= 0)
                return 0;
        return add_load(m, index, stored, converted, label, reterr);
}

/* Is a stored tensor that nobody registered here another rank's own? A tied one is where its root
 * is; of an empty one there is nothing to miss. */
static bool belongs_elsewhere(const struct maker *m, const Cairn__Format__Tensor *stored) {
        const Cairn__Format__Tensor *root = stored;
        if (stored->alias_of.len)
                root = stored_find(m->s, stored->alias_of.data, stored->alias_of.len);
        if (m->s->index.head->world <= 1 || !root || root->replicated)
                return false;
        for (size_t i = 0; i < root->n_extents; i++)
                if (root->extents[i]->shard || root->extents[i]->rank == m->request->rank)
                        return false;
        return true;
}

/* A rank that was that this world lacks: nobody restores its own. */
static bool is_orphan(const struct maker *m, const Cairn__Format__Tensor *stored) {
        return stored->n_extents > 0 && stored->extents[0]->rank >= m->request->world;
}

static void find_extra_tensors(struct maker *m) {
        char label[LABEL_BYTES], shape[SHAPE_BYTES];
        for (size_t i = 0; i < m->s->index.tensor_count; i++) {
                const Cairn__Format__Tensor *stored = m->s->index.tensors[i];
                if (name_map_find(&m->r->tensor_names, stored->name.data, stored->name.len, NULL))
                        continue;
                if (belongs_elsewhere(m, stored)) {
                        if (is_orphan(m, stored))
                                textbuf_item(&m->b->skipped,
                                             "tensor %s: of rank %" PRIu32
                                             ", of which there is none now",
                                             name_label(stored->name.data, stored->name.len, label,
                                                        sizeof label),
                                             stored->extents[0]->rank);
                        continue;
                }
                textbuf_item(&m->b->problems,
                             "tensor %s: the checkpoint has it (%s %s %s), the trainer did not "
                             "register it",
                             name_label(stored->name.data, stored->name.len, label, sizeof label),
                             role_label(stored->role), dtype_label(stored->runtime_dtype),
                             shape_label(stored->shape, stored->n_shape, shape, sizeof shape));
        }
}

/* ---- init-from: weights alone, as many as match ---- */

static bool is_weight(uint32_t role) {
        return role == CAIRN_PARAMETER || role == CAIRN_BUFFER || role == CAIRN_MASTER;
}

static int init_tensor(struct maker *m, size_t index, struct cairn_error *reterr) {
        const struct tensor *t = &m->r->tensors[index];
        char label[LABEL_BYTES], shape[SHAPE_BYTES];
        if (!is_weight(t->role) || t->alias_of >= 0)
                return 0;
        name_label(t->name, t->name_bytes, label, sizeof label);
        const Cairn__Format__Tensor *stored = stored_find(m->s, t->name, t->name_bytes);
        if (!stored || !is_weight(stored->role)) {
                textbuf_item(&m->b->skipped,
                             "tensor %s: the checkpoint lacks it, the trainer has shape %s", label,
                             shape_label(t->shape, t->rank, shape, sizeof shape));
                return 0;
        }
        bool converted = false;
        if (!shapes_agree(t, stored, label, &m->b->skipped) ||
            !dtypes_agree(m, t, stored, label, &m->b->skipped, &converted))
                return 0;
        return add_load(m, index, stored, converted, label, reterr);
}

static void list_unused_weights(struct maker *m) {
        char label[LABEL_BYTES], shape[SHAPE_BYTES];
        for (size_t i = 0; i < m->s->index.tensor_count; i++) {
                const Cairn__Format__Tensor *stored = m->s->index.tensors[i];
                if (!is_weight(stored->role) ||
                    name_map_find(&m->r->tensor_names, stored->name.data, stored->name.len, NULL))
                        continue;
                textbuf_item(&m->b->skipped,
                             "tensor %s: the checkpoint has shape %s, the trainer lacks it",
                             name_label(stored->name.data, stored->name.len, label, sizeof label),
                             shape_label(stored->shape, stored->n_shape, shape, sizeof shape));
        }
}

/* A weight that one rank alone holds may find its place there while nothing does here. What every
 * rank holds or has a part of, every rank judges alike. */
static bool may_be_loaded_elsewhere(const struct maker *m) {
        if (m->request->world <= 1)
                return false;
        for (size_t i = 0; i < m->r->tensor_count; i++) {
                const struct tensor *t = &m->r->tensors[i];
                if (is_weight(t->role) && t->alias_of < 0 && !t->replicated && !t->sharded)
                        return true;
        }
        for (size_t i = 0; i < m->s->index.tensor_count; i++) {
                const Cairn__Format__Tensor *stored = m->s->index.tensors[i];
                bool shared =
                        stored->replicated || (stored->n_extents > 0 && stored->extents[0]->shard);
                if (is_weight(stored->role) && !stored->alias_of.len && !shared &&
                    !name_map_find(&m->r->tensor_names, stored->name.data, stored->name.len, NULL))
                        return true;
        }
        return false;
}

/* Whoever asks for another run's weights does not mean to train without a single one of them. */
static void refuse_to_load_nothing(struct maker *m) {
        if (m->b->load_count > 0 || may_be_loaded_elsewhere(m))
                return;
        m->b->problems = m->b->skipped;
        m->b->skipped = (struct textbuf){0};
        if (m->b->problems.item_count == 0)
                textbuf_item(&m->b->problems, "neither the checkpoint nor the trainer has weights");
}

/* ---- host values ---- */

static const Cairn__Format__State *find_state(const struct maker *m) {
        const Cairn__Format__State *first = NULL;
        for (size_t i = 0; i < m->s->index.state_count; i++) {
                const Cairn__Format__State *state = m->s->index.states[i];
                if (state->rank == m->request->rank)
                        return state;
                if (state->rank == 0)
                        first = state;
        }
        /* A rank that is new to a larger world starts from the first one's values. */
        return first;
}

static bool is_step_truth(const char *name) {
        return strncmp(name, HOST_VALUE_STEP_PREFIX, sizeof HOST_VALUE_STEP_PREFIX - 1) == 0;
}

static const char *type_label(uint32_t type) {
        static const char *const names[] = {"?", "i64", "u64", "f64", "bytes"};
        return type < sizeof names / sizeof *names ? names[type] : "?";
}

/* A truth that is missing is not a problem yet: the tensor's own value may say it exactly. */
static void bind_value(struct maker *m, size_t index, const struct name_map *stored_names,
                       const Cairn__Format__State *state) {
        const struct value *v = &m->r->values[index];
        char label[LABEL_BYTES];
        uint32_t at;
        name_label(v->name, strlen(v->name), label, sizeof label);
        if (!name_map_find(stored_names, v->name, strlen(v->name), &at)) {
                if (!is_step_truth(v->name))
                        textbuf_item(
                                &m->b->problems,
                                "state value %s: the trainer registered it (%s), the checkpoint "
                                "lacks it",
                                label, type_label(v->type));
                return;
        }
        const Cairn__Format__StateValue *stored = state->values[at];
        if (stored->type != v->type)
                textbuf_item(&m->b->problems,
                             "state value %s: the checkpoint has %s, the trainer %s", label,
                             type_label(stored->type), type_label(v->type));
        else if (v->type == CAIRN_VALUE_BYTES && stored->bytes_value.len > v->capacity)
                textbuf_item(&m->b->problems,
                             "state value %s: the checkpoint has %zu bytes, the trainer room for "
                             "%" PRIu64,
                             label, stored->bytes_value.len, v->capacity);
        else
                m->b->values[index] = stored;
}

static int bind_values(struct maker *m, struct cairn_error *reterr) {
        const Cairn__Format__State *state = find_state(m);
        struct name_map names = {0};
        char label[LABEL_BYTES];
        if (!state)
                return error_set(reterr, CAIRN_ERR_CORRUPT, "read INDEX", "",
                                 "it has no state record");
        for (size_t i = 0; i < state->n_values; i++) {
                const Cairn__Format__StateValue *v = state->values[i];
                const char *name = (const char *) v->name.data;
                int r = name_map_add(&names, name, v->name.len, (uint32_t) i);
                if (r < 0) {
                        name_map_done(&names);
                        return error_set(reterr, r == CAIRN_ERR_EXISTS ? CAIRN_ERR_CORRUPT : r,
                                         "read INDEX", "state", "a name is there twice");
                }
                if (!name_map_find(&m->r->value_names, name, v->name.len, NULL))
                        textbuf_item(
                                &m->b->problems,
                                "state value %s: the checkpoint has it (%s), the trainer did not "
                                "register it",
                                name_label(name, v->name.len, label, sizeof label),
                                type_label(v->type));
        }
        for (size_t i = 0; i < m->r->value_count; i++)
                bind_value(m, i, &names, state);
        name_map_done(&names);
        return 0;
}

/* ---- descriptions ---- */

static bool has_prefix(const char *key, const char *prefix) {
        return strncmp(key, prefix, strlen(prefix)) == 0;
}

static bool must_agree(const char *key) {
        return has_prefix(key, "config.") || has_prefix(key, "data.") ||
               has_prefix(key, "model.") || has_prefix(key, "optimizer.");
}

/* What helps against another description: no override where tensors or values do not fit, for it
 * changes none of them; the weights alone only where there are any that fit. */
static const char *remedy_for_descriptions(const struct maker *m) {
        bool fits = m->b->problems.item_count == m->convertible, has_weights = false;
        for (size_t i = 0; i < m->b->load_count && !has_weights; i++)
                has_weights = is_weight(m->r->tensors[m->b->loads[i].tensor].role);
        if (fits)
                return has_weights
                               ? "allow it with --override, or start anew from its weights with "
                                 "--init-from"
                               : "allow it with --override";
        return has_weights ? "go on with the checkpoint's, or start anew from its weights with "
                             "--init-from"
                           : "go on with the checkpoint's";
}

/* NULL: that side does not have the key. */
static void compare_description(struct maker *m, const char *key, const char *old, const char *new,
                                const char *remedy) {
        char key_label[LABEL_BYTES], old_label[LABEL_BYTES] = "nothing",
                                     new_label[LABEL_BYTES] = "nothing";
        if (old && new &&strcmp(old, new) == 0)
                return;
        name_label(key, strlen(key), key_label, sizeof key_label);
        if (old)
                name_label(old, strlen(old), old_label, sizeof old_label);
        if (new)
                name_label(new, strlen(new), new_label, sizeof new_label);
        if (has_prefix(key, "numerics.")) {
                textbuf_item(&m->b->differs, "%s %s -> %s", key_label, old_label, new_label);
                return;
        }
        bool overridden = pair_find(m->request->overrides, m->request->override_count, key) != NULL;
        if (must_agree(key) && !overridden) {
                textbuf_item(&m->b->problems, "%s: %s in the checkpoint, %s now (%s)", key_label,
                             old_label, new_label, remedy);
                return;
        }
        textbuf_item(&m->b->changes, "%s %s -> %s%s", key_label, old_label, new_label,
                     overridden ? " (overridden)" : "");
        if (must_agree(key))
                textbuf_item(&m->b->differs, "%s %s -> %s", key_label, old_label, new_label);
}

static void compare_descriptions(struct maker *m) {
        const char *remedy = remedy_for_descriptions(m);
        for (size_t i = 0; i < m->s->text_count; i++) {
                const struct pair *old = &m->s->texts[i];
                compare_description(m, old->key, old->value,
                                    registry_description(m->r, old->key, strlen(old->key)), remedy);
        }
        for (size_t i = 0; i < m->r->description_count; i++) {
                const struct description *d = &m->r->descriptions[i];
                if (!pair_find(m->s->texts, m->s->text_count, d->key))
                        compare_description(m, d->key, NULL, d->value, remedy);
        }
}

static void compare_heads(struct maker *m) {
        const Cairn__Format__Head *head = m->s->index.head;
        char label[LABEL_BYTES];
        if (!bytes_are(&head->run, m->request->run))
                textbuf_item(&m->b->problems, "the checkpoint is of run %s, this is %s",
                             name_label(head->run.data, head->run.len, label, sizeof label),
                             m->request->run);
        if (head->step != m->request->step)
                textbuf_item(&m->b->problems,
                             "the checkpoint is of step %" PRId64 ", step %" PRId64
                             " was announced",
                             head->step, m->request->step);
        if (head->world != m->request->world) {
                textbuf_item(&m->b->changes, "world %" PRIu32 " -> %" PRIu32, head->world,
                             m->request->world);
                textbuf_item(&m->b->differs, "world %" PRIu32 " -> %" PRIu32, head->world,
                             m->request->world);
        }
}

int binding_make(struct binding *b, const struct stored *s, const struct binding_request *request,
                 const struct registry *r, struct cairn_error *reterr) {
        struct maker m = {.b = b, .s = s, .request = request, .r = r};
        *b = (struct binding){.index = &s->index, .here = s->here};
        b->loads = calloc(r->tensor_count + 1, sizeof *b->loads);
        b->values = calloc(r->value_count + 1, sizeof *b->values);
        if (!b->loads || !b->values)
                return error_set(reterr, CAIRN_ERR_NOMEM, "bind checkpoint", "",
                                 "memory is missing");
        bool resume = request->start == CAIRN_START_RESUME;
        if (resume)
                compare_heads(&m);
        for (size_t i = 0; i < r->tensor_count; i++)
                TRY(resume ? resume_tensor(&m, i, reterr) : init_tensor(&m, i, reterr));
        if (!resume) {
                list_unused_weights(&m);
                refuse_to_load_nothing(&m);
                return 0;
        }
        find_extra_tensors(&m);
        TRY(bind_values(&m, reterr));
        compare_descriptions(&m);
        return 0;
}

void binding_done(struct binding *b) {
        free(b->loads);
        free(b->values);
        textbuf_done(&b->problems);
        textbuf_done(&b->skipped);
        textbuf_done(&b->conversions);
        textbuf_done(&b->changes);
        textbuf_done(&b->differs);
        *b = (struct binding){0};
}
