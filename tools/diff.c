/* SPDX-License-Identifier: Apache-2.0
 *
 * cairn diff - what two checkpoints do not have in common: descriptions, host state, tensors. Equal
 * checksums are believed. Other tensors are read, checked against their own, so that a damaged one
 * does not pass for a different one, and compared a block at a time, so that memory is bounded by
 * the two INDEX files. Exit status 0: equal, 1: not, 65: damaged.
 */
#include "base/cleanup.h"
#include "base/log.h"
#include "format/check.h"
#include "format/dtype.h"
#include "tools/command.h"
#include "tools/compare.h"
#include "tools/print_json.h"
#include "tools/store_view.h"
#include "tools/tensor_read.h"
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define DIFF_ARENA_BYTES (16 * GiB)
#define DIFF_DIFFERENT 1 /* exit status */
enum { TEXT_BYTES = 256, BLOCK_BYTES = COMPARE_ELEMENTS_MAX * 16 /* the widest element */ };

struct side {
        struct store_view view;
        struct arena arena;
        struct file_content index, commit;
        struct tensor_reader reader;
};
struct diff {
        struct side a, b;
        bool tensors_only;
        json_t *descriptions, *states, *tensors; /* differences; rows of text are made of them */
        uint64_t equal;                          /* tensors */
        unsigned char *blocks;                   /* one of each side */
};

static int side_open(struct side *s, const char *store, const char *checkpoint,
                     struct cairn_error *reterr) {
        TRY(store_view_open_checkpoint(&s->view, store, checkpoint, reterr));
        TRY(checkpoint_load(&io_system, s->view.run_fd, s->view.checkpoint, &s->arena, &s->index,
                            &s->commit, reterr));
        TRY(tensor_reader_open(&s->reader, &io_system, s->view.run_fd, s->view.checkpoint,
                               s->index.head->world, reterr));
        struct scan_node here;
        TRY(checkpoint_here(&io_system, s->view.run_fd, s->index.head->generation,
                            s->index.head->world, &here, reterr));
        s->reader.here = (struct layout_ranks){here.first_rank, here.ranks};
        return 0;
}

static void side_init(struct side *s) {
        s->view = (struct store_view) STORE_VIEW_INIT;
        s->reader = (struct tensor_reader) TENSOR_READER_INIT;
        arena_init(&s->arena, DIFF_ARENA_BYTES);
}

static void side_done(struct side *s) {
        tensor_reader_done(&s->reader);
        arena_done(&s->arena);
        store_view_done(&s->view);
}

static json_t *bytes_json(ProtobufCBinaryData b) {
        return json_text(b.data, b.len);
}

/* ---- descriptions and host state ---- */

static const Cairn__Format__Text *find_text(const Cairn__Format__Head *head,
                                            ProtobufCBinaryData key, size_t hint) {
        if (hint < head->n_texts && bytes_equal(&head->texts[hint]->key, &key))
                return head->texts[hint];
        for (size_t i = 0; i < head->n_texts; i++)
                if (bytes_equal(&head->texts[i]->key, &key))
                        return head->texts[i];
        return NULL;
}

static void compare_texts(struct diff *d) {
        const Cairn__Format__Head *a = d->a.index.head, *b = d->b.index.head;
        for (size_t i = 0; i < a->n_texts; i++) {
                const Cairn__Format__Text *t = a->texts[i], *other = find_text(b, t->key, i);
                if (!other || !bytes_equal(&t->value, &other->value))
                        json_array_append_new(
                                d->descriptions,
                                json_pack("{s:o, s:o, s:o}", "key", bytes_json(t->key), "a",
                                          bytes_json(t->value), "b",
                                          other ? bytes_json(other->value) : json_null()));
        }
        for (size_t i = 0; i < b->n_texts; i++)
                if (!find_text(a, b->texts[i]->key, i))
                        json_array_append_new(d->descriptions,
                                              json_pack("{s:o, s:n, s:o}", "key",
                                                        bytes_json(b->texts[i]->key), "a", "b",
                                                        bytes_json(b->texts[i]->value)));
}

static json_t *value_json(const Cairn__Format__StateValue *v) {
        switch (v ? v->type : 0) {
        case CAIRN_VALUE_I64:
                return json_sprintf("%" PRId64, v->i64);
        case CAIRN_VALUE_U64:
                return json_sprintf("%" PRIu64, v->u64);
        case CAIRN_VALUE_F64:
                return json_sprintf("%.17g", v->f64);
        case CAIRN_VALUE_BYTES:
                return v->bytes_value.len <= 64 ? bytes_json(v->bytes_value)
                                                : json_sprintf("%zu bytes", v->bytes_value.len);
        default:
                return json_null();
        }
}

static uint64_t bits_of(double v) {
        uint64_t bits;
        memcpy(&bits, &v, sizeof bits);
        return bits;
}

static bool same_value(const Cairn__Format__StateValue *a, const Cairn__Format__StateValue *b) {
        return a->type == b->type && a->i64 == b->i64 && a->u64 == b->u64 &&
               bits_of(a->f64) == bits_of(b->f64) && bytes_equal(&a->bytes_value, &b->bytes_value);
}

static const Cairn__Format__StateValue *find_value(const Cairn__Format__State *s,
                                                   ProtobufCBinaryData name, size_t hint) {
        if (s && hint < s->n_values && bytes_equal(&s->values[hint]->name, &name))
                return s->values[hint];
        for (size_t i = 0; s && i < s->n_values; i++)
                if (bytes_equal(&s->values[i]->name, &name))
                        return s->values[i];
        return NULL;
}

static void add_value(struct diff *d, uint32_t rank, const Cairn__Format__StateValue *a,
                      const Cairn__Format__StateValue *b) {
        json_array_append_new(d->states, json_pack("{s:i, s:o, s:o, s:o}", "rank", (int) rank,
                                                   "name", bytes_json((a ? a : b)->name), "a",
                                                   value_json(a), "b", value_json(b)));
}

static void compare_states(struct diff *d) {
        const struct file_content *a = &d->a.index, *b = &d->b.index;
        for (size_t rank = 0; rank < a->state_count || rank < b->state_count; rank++) {
                const Cairn__Format__State *sa = rank < a->state_count ? a->states[rank] : NULL;
                const Cairn__Format__State *sb = rank < b->state_count ? b->states[rank] : NULL;
                for (size_t i = 0; sa && i < sa->n_values; i++) {
                        const Cairn__Format__StateValue *other =
                                find_value(sb, sa->values[i]->name, i);
                        if (!other || !same_value(sa->values[i], other))
                                add_value(d, (uint32_t) rank, sa->values[i], other);
                }
                for (size_t i = 0; sb && i < sb->n_values; i++)
                        if (!find_value(sa, sb->values[i]->name, i))
                                add_value(d, (uint32_t) rank, NULL, sb->values[i]);
        }
}

/* ---- tensors ---- */

static json_t *form_json(const Cairn__Format__Tensor *t) {
        json_t *shape = json_array();
        const struct dtype_info *runtime = dtype_info(t->runtime_dtype),
                                *stored = dtype_info(t->stored_dtype);
        for (size_t i = 0; i < t->n_shape; i++)
                json_array_append_new(shape, json_integer((json_int_t) t->shape[i]));
        const char *role = role_name(t->role);
        json_t *j = json_pack("{s:s, s:s, s:s, s:o}", "role", role ? role : "?", "dtype",
                              runtime ? runtime->name : "?", "stored_dtype",
                              stored ? stored->name : "?", "shape", shape);
        if (t->alias_of.len > 0)
                json_object_set_new(j, "alias_of", bytes_json(t->alias_of));
        if (t->has_true_step)
                json_object_set_new(j, "true_step", json_integer(t->true_step));
        return j;
}

/* The same pieces with the same checksums. */
static bool same_extents(const Cairn__Format__Tensor *a, const Cairn__Format__Tensor *b) {
        if (a->n_extents != b->n_extents || a->stored_dtype != b->stored_dtype)
                return false;
        for (size_t i = 0; i < a->n_extents; i++) {
                const Cairn__Format__Extent *x = a->extents[i], *y = b->extents[i];
                if (x->bytes != y->bytes || x->crc32c != y->crc32c || !x->shard != !y->shard)
                        return false;
                const Cairn__Format__Shard *s = x->shard, *o = y->shard;
                if (s && (s->flat != o->flat || s->flat_start != o->flat_start ||
                          s->n_offsets != o->n_offsets ||
                          (s->n_offsets &&
                           memcmp(s->offsets, o->offsets, s->n_offsets * sizeof *s->offsets) != 0)))
                        return false;
        }
        return true;
}

static bool same_shape(const Cairn__Format__Tensor *a, const Cairn__Format__Tensor *b) {
        return a->n_shape == b->n_shape &&
               (a->n_shape == 0 || memcmp(a->shape, b->shape, a->n_shape * sizeof *a->shape) == 0);
}

static bool same_form(const Cairn__Format__Tensor *a, const Cairn__Format__Tensor *b) {
        return a->role == b->role && a->runtime_dtype == b->runtime_dtype &&
               a->stored_dtype == b->stored_dtype && same_shape(a, b) &&
               bytes_equal(&a->alias_of, &b->alias_of) && a->has_true_step == b->has_true_step &&
               a->true_step == b->true_step;
}

static int compare_content(struct diff *d, const Cairn__Format__Tensor *a,
                           const Cairn__Format__Tensor *b, struct comparison *c,
                           struct cairn_error *reterr) {
        uint64_t elements = 1;
        TRY(tensor_check(&d->a.reader, a, reterr));
        TRY(tensor_check(&d->b.reader, b, reterr));
        for (size_t i = 0; i < a->n_shape; i++) /* INDEX was checked: no overflow */
                elements *= a->shape[i];
        for (uint64_t first = 0; first < elements;) {
                uint64_t count = elements - first < COMPARE_ELEMENTS_MAX ? elements - first
                                                                         : COMPARE_ELEMENTS_MAX;
                TRY(tensor_read(&d->a.reader, a, first, count, d->blocks, reterr));
                TRY(tensor_read(&d->b.reader, b, first, count, d->blocks + BLOCK_BYTES, reterr));
                TRY(compare_elements(d->blocks, a->stored_dtype, d->blocks + BLOCK_BYTES,
                                     b->stored_dtype, count, c, reterr));
                first += count;
        }
        return 0;
}

static int compare_tensor(struct diff *d, const Cairn__Format__Tensor *a,
                          const Cairn__Format__Tensor *b, struct cairn_error *reterr) {
        struct comparison c = {0};
        bool form = same_form(a, b), readable = a->alias_of.len == 0 && b->alias_of.len == 0;
        bool compared = readable && same_shape(a, b) && !same_extents(a, b) &&
                        compare_possible(a->stored_dtype, b->stored_dtype);
        if (compared)
                TRY(compare_content(d, a, b, &c, reterr));
        if (form && c.different == 0) {
                d->equal++;
                return 0;
        }
        json_t *j = json_pack("{s:o, s:o, s:o}", "name", bytes_json(a->name), "a", form_json(a),
                              "b", form_json(b));
        json_object_set_new(j, "same_form", json_boolean(form));
        if (compared) {
                json_object_set_new(j, "elements", json_integer((json_int_t) c.elements));
                json_object_set_new(j, "different", json_integer((json_int_t) c.different));
                json_object_set_new(j, "largest",
                                    isfinite(c.largest) ? json_real(c.largest)
                                                        : json_string("infinite"));
        }
        json_array_append_new(d->tensors, j);
        return 0;
}

static void add_lonely(struct diff *d, const char *side, const Cairn__Format__Tensor *t) {
        json_array_append_new(d->tensors, json_pack("{s:o, s:o}", "name", bytes_json(t->name), side,
                                                    form_json(t)));
}

static int order(const Cairn__Format__Tensor *a, const Cairn__Format__Tensor *b) {
        size_t shorter = a->name.len < b->name.len ? a->name.len : b->name.len;
        int r = shorter ? memcmp(a->name.data, b->name.data, shorter) : 0;
        return r ? r : (a->name.len > b->name.len) - (a->name.len < b->name.len);
}

/* Both INDEX files are sorted by name. */
static int compare_tensors(struct diff *d, struct cairn_error *reterr) {
        const struct file_content *a = &d->a.index, *b = &d->b.index;
        size_t i = 0, k = 0;
        d->blocks = malloc((size_t) 2 * BLOCK_BYTES);
        if (!d->blocks)
                return error_set_errno(reterr, ENOMEM, "compare tensors", "");
        while (i < a->tensor_count || k < b->tensor_count) {
                int o = i == a->tensor_count   ? 1
                        : k == b->tensor_count ? -1
                                               : order(a->tensors[i], b->tensors[k]);
                if (o < 0)
                        add_lonely(d, "a", a->tensors[i++]);
                else if (o > 0)
                        add_lonely(d, "b", b->tensors[k++]);
                else
                        TRY(compare_tensor(d, a->tensors[i++], b->tensors[k++], reterr));
        }
        return 0;
}

/* ---- output ---- */

static bool is_equal(const struct diff *d) {
        return json_array_size(d->descriptions) + json_array_size(d->states) +
                       json_array_size(d->tensors) ==
               0;
}

static const char *shown(const json_t *object, const char *key, char *text) {
        const char *value = json_string_value(json_object_get(object, key));
        if (!value)
                return "-";
        size_t length = strlen(value);
        return text_escape(text, TEXT_BYTES, value,
                           length < TEXT_BYTES / 5 ? length : TEXT_BYTES / 5);
}

static void print_pairs(const char *what, const json_t *list, const char *name_key) {
        size_t i;
        json_t *row;
        printf("%-13s %zu differ\n", what, json_array_size(list));
        json_array_foreach(list, i, row) {
                char name[TEXT_BYTES], a[TEXT_BYTES], b[TEXT_BYTES];
                printf("  %-28s %s | %s\n", shown(row, name_key, name), shown(row, "a", a),
                       shown(row, "b", b));
        }
}

static void print_form(const json_t *form) {
        size_t i;
        json_t *extent;
        printf("%s %s", json_string_value(json_object_get(form, "role")),
               json_string_value(json_object_get(form, "dtype")));
        if (strcmp(json_string_value(json_object_get(form, "dtype")),
                   json_string_value(json_object_get(form, "stored_dtype"))) != 0)
                printf(" stored as %s", json_string_value(json_object_get(form, "stored_dtype")));
        printf(" [");
        json_array_foreach(json_object_get(form, "shape"), i, extent)
                printf("%s%" JSON_INTEGER_FORMAT, i ? ", " : "", json_integer_value(extent));
        printf("]");
        if (json_object_get(form, "alias_of"))
                printf(" tied");
        if (json_object_get(form, "true_step"))
                printf(" step %" JSON_INTEGER_FORMAT,
                       json_integer_value(json_object_get(form, "true_step")));
}

static void print_tensor(const json_t *row) {
        const json_t *a = json_object_get(row, "a"), *b = json_object_get(row, "b"),
                     *largest = json_object_get(row, "largest");
        char name[TEXT_BYTES];
        printf("  %-36s ", shown(row, "name", name));
        if (!a || !b)
                printf("only in %s: ", a ? "a" : "b");
        print_form(a ? a : b);
        if (a && b && !json_is_true(json_object_get(row, "same_form"))) {
                printf(" | ");
                print_form(b);
        }
        if (largest) {
                printf(": %" JSON_INTEGER_FORMAT " of %" JSON_INTEGER_FORMAT " elements differ",
                       json_integer_value(json_object_get(row, "different")),
                       json_integer_value(json_object_get(row, "elements")));
                if (json_is_real(largest))
                        printf(", by up to %.6g", json_real_value(largest));
                else
                        printf(", one of them by infinity or NaN");
        }
        putchar('\n');
}

static void print_text(const struct diff *d) {
        const struct side *sides[] = {&d->a, &d->b};
        for (size_t n = 0; n < 2; n++)
                printf("%c             %s/%s, step %" PRId64 ", world %u\n", "ab"[n],
                       sides[n] -> view.run, sides[n]->view.checkpoint, sides[n]->index.head->step,
                       sides[n]->index.head->world);
        if (!d->tensors_only) {
                print_pairs("descriptions", d->descriptions, "key");
                print_pairs("state", d->states, "name");
        }
        printf("%-13s %zu differ, %" PRIu64 " are equal\n", "tensors", json_array_size(d->tensors),
               d->equal);
        size_t i;
        json_t *row;
        json_array_foreach(d->tensors, i, row) print_tensor(row);
}

static json_t *side_json(const struct side *s) {
        return json_pack("{s:s, s:s, s:s, s:I, s:I, s:i}", "run", s->view.run, "checkpoint",
                         s->view.checkpoint, "store", s->view.path, "step",
                         (json_int_t) s->index.head->step, "generation",
                         (json_int_t) s->index.head->generation, "world",
                         (int) s->index.head->world);
}

static int finish(const struct diff *d, bool json) {
        int status = is_equal(d) ? 0 : DIFF_DIFFERENT;
        if (!json) {
                print_text(d);
                return status;
        }
        int r = print_json(json_pack("{s:o, s:o, s:b, s:I, s:O, s:O, s:O}", "a", side_json(&d->a),
                                     "b", side_json(&d->b), "equal", is_equal(d), "tensors_equal",
                                     (json_int_t) d->equal, "descriptions", d->descriptions,
                                     "state", d->states, "tensors", d->tensors));
        return r ? r : status;
}

static void diff_done(struct diff *d) {
        side_done(&d->a);
        side_done(&d->b);
        json_decref(d->descriptions);
        json_decref(d->states);
        json_decref(d->tensors);
        free(d->blocks);
}

int command_diff(const struct command *self, int argc, char **argv) {
        const char *store = NULL, *checkpoints[2];
        bool json = false, tensors_only = false;
        size_t count;
        const struct option_row rows[] = {
                {"--tensors", NULL, OPTION_FLAG, &tensors_only,
                 "compare the tensors only, not state and descriptions", NULL},
                {"--store", "S", OPTION_STRING, &store,
                 "the store (default: $CAIRN_STORE, ./cairn-store)", NULL},
                {"--json", NULL, OPTION_FLAG, &json, "one JSON object", NULL},
        };
        struct cairn_error e = CAIRN_ERROR_INIT;
        int r = options_parse(self, OPTION_ROWS(rows), argc, argv, checkpoints, 2, &count, NULL);
        if (r != 0)
                return r < 0 ? status_exit_code(CAIRN_ERR_API) : 0;
        if (count < 2)
                return command_fail_text(self, CAIRN_ERR_API,
                                         "which two checkpoints? usage: cairn diff %s",
                                         self->arguments);
        _cleanup_(diff_done) struct diff d = {.tensors_only = tensors_only,
                                              .descriptions = json_array(),
                                              .states = json_array(),
                                              .tensors = json_array()};
        side_init(&d.a);
        side_init(&d.b);
        store = store_view_default(store);
        if (side_open(&d.a, store, checkpoints[0], &e) < 0 ||
            side_open(&d.b, store, checkpoints[1], &e) < 0)
                return command_fail(self, &e);
        if (!tensors_only) {
                compare_texts(&d);
                compare_states(&d);
        }
        return compare_tensors(&d, &e) < 0 ? command_fail(self, &e) : finish(&d, json);
}
