/* SPDX-License-Identifier: Apache-2.0
 *
 * cairn inspect - what a checkpoint holds: its record, its host state, its descriptions and, on
 * request, its tensors.
 */
#include "base/cleanup.h"
#include "base/log.h"
#include "format/dtype.h"
#include "format/host_state.h"
#include "tools/command.h"
#include "tools/print_json.h"
#include "tools/store_view.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* What a checkpoint says about itself may be large, but not larger than its INDEX allows. */
#define INSPECT_ARENA_BYTES (16 * GiB)

static const char *name_or(const char *name, const char *fallback) {
        return name ? name : fallback;
}

static const char *dtype_text(uint32_t dtype) {
        const struct dtype_info *info = dtype_info(dtype);
        return info ? info->name : "?";
}

static void shape_text(const Cairn__Format__Tensor *t, char *text, size_t bytes) {
        size_t used = (size_t) snprintf(text, bytes, "[");
        for (size_t d = 0; d < t->n_shape && used < bytes; d++)
                used += (size_t) snprintf(text + used, bytes - used, "%s%" PRIu64, d ? ", " : "",
                                          t->shape[d]);
        if (used < bytes)
                (void) snprintf(text + used, bytes - used, "]");
}

static const char *bytes_text(ProtobufCBinaryData b, char *text, size_t bytes) {
        return text_escape(text, bytes, (const char *) b.data, b.len);
}

static void print_value(const Cairn__Format__StateValue *v) {
        char name[256];
        printf("  %-28s ", bytes_text(v->name, name, sizeof name));
        switch (v->type) {
        case CAIRN_VALUE_I64:
                printf("%" PRId64 "\n", v->i64);
                break;
        case CAIRN_VALUE_U64:
                printf("%" PRIu64 "\n", v->u64);
                break;
        case CAIRN_VALUE_F64:
                printf("%.17g\n", v->f64);
                break;
        default:
                printf("%zu bytes\n", v->bytes_value.len);
                break;
        }
}

/* libcairn's own values: a step's int64 is shown with its tensor. */
static bool is_reserved(const Cairn__Format__StateValue *v) {
        const size_t bytes = sizeof HOST_VALUE_RESERVED_PREFIX - 1;
        return v->name.len >= bytes && memcmp(v->name.data, HOST_VALUE_RESERVED_PREFIX, bytes) == 0;
}

/* What a narrower stored type cost, or why it was not used. */
static void print_encoding(const Cairn__Format__Encoding *e) {
        if (e && e->fell_back)
                printf("  not as %s: %" PRIu64 " overflows, %" PRIu64 " underflows",
                       dtype_text(e->asked_dtype), e->overflow_count, e->underflow_count);
        else if (e)
                printf("  error at most %.3g", e->error_abs_max);
}

static void print_tensors(const struct file_content *index) {
        printf("\n%-36s %-12s %-8s %-8s %14s  %s\n", "TENSOR", "ROLE", "DTYPE", "STORED", "BYTES",
               "SHAPE");
        for (size_t i = 0; i < index->tensor_count; i++) {
                const Cairn__Format__Tensor *t = index->tensors[i];
                char name[256], shape[256], alias[256];
                uint64_t bytes = 0;
                for (size_t k = 0; k < t->n_extents; k++)
                        bytes += t->extents[k]->bytes;
                shape_text(t, shape, sizeof shape);
                printf("%-36s %-12s %-8s %-8s %14" PRIu64 "  %s",
                       bytes_text(t->name, name, sizeof name), name_or(role_name(t->role), "?"),
                       dtype_text(t->runtime_dtype), dtype_text(t->stored_dtype), bytes, shape);
                if (t->has_true_step)
                        printf("  step %" PRId64, t->true_step);
                if (t->alias_of.len > 0)
                        printf("  tied to %s", bytes_text(t->alias_of, alias, sizeof alias));
                print_encoding(t->encoding);
                putchar('\n');
        }
}

static void print_text(const struct store_view *v, const struct file_content *index,
                       const struct file_content *commit, const char *here, bool tensors) {
        static const char *const reasons[] = {"scheduled",  "on demand",   "on notice",
                                              "at the end", "post-mortem", "rolled forward"};
        const Cairn__Format__Head *head = index->head;
        const Cairn__Format__Commit *record = commit->commit;
        char bytes[32], age[32], key[256], value[512], parent[NAME_BYTES];
        printf("checkpoint   %s\nrun          %s\nstore        %s\n", v->checkpoint, v->run,
               v->path);
        printf("step         %" PRId64 "\ngeneration   %" PRIu64 "\nworld        %u\n", head->step,
               head->generation, head->world);
        if (*here)
                printf("holds        %s\n", here);
        printf("parent       %s\n",
               record->parent.len ? bytes_text(record->parent, parent, sizeof parent) : "none");
        printf("taken        %s ago, %s\n", human_duration(human_age(head->time_ns), age),
               record->reason < sizeof reasons / sizeof reasons[0] ? reasons[record->reason]
                                                                   : "for another reason");
        if (record->tag.len > 0)
                printf("tag          %s\n", bytes_text(record->tag, value, sizeof value));
        printf("tensors      %zu, %s\n", index->tensor_count,
               human_bytes(head->tensor_bytes, bytes));
        if (head->non_finite_count > 0)
                printf("flagged      %" PRIu64 " tensors hold NaN or infinity\n",
                       head->non_finite_count);
        if (head->ending && head->ending->suspect)
                printf("flagged      the trainer died of a fault (%d) before this was taken\n",
                       head->ending->code);
        for (size_t i = 0; i < index->state_count; i++) {
                printf("\nstate of rank %u\n", index->states[i]->rank);
                for (size_t k = 0; k < index->states[i]->n_values; k++)
                        if (!is_reserved(index->states[i]->values[k]))
                                print_value(index->states[i]->values[k]);
        }
        if (head->n_texts > 0)
                puts("\ndescriptions");
        for (size_t i = 0; i < head->n_texts; i++)
                printf("  %-28s %s\n", bytes_text(head->texts[i]->key, key, sizeof key),
                       bytes_text(head->texts[i]->value, value, sizeof value));
        if (tensors)
                print_tensors(index);
}

static json_t *value_json(const Cairn__Format__StateValue *v) {
        switch (v->type) {
        case CAIRN_VALUE_I64:
                return json_integer(v->i64);
        case CAIRN_VALUE_U64: /* JSON readers differ above 2^63 */
                return v->u64 <= INT64_MAX ? json_integer((json_int_t) v->u64)
                                           : json_sprintf("%" PRIu64, v->u64);
        case CAIRN_VALUE_F64:
                return json_sprintf("%.17g", v->f64); /* may be NaN */
        default:
                return json_sprintf("%zu bytes", v->bytes_value.len);
        }
}

static json_t *tensor_json(const Cairn__Format__Tensor *t) {
        json_t *shape = json_array(), *extents = json_array();
        for (size_t d = 0; d < t->n_shape; d++)
                json_array_append_new(shape, json_integer((json_int_t) t->shape[d]));
        for (size_t k = 0; k < t->n_extents; k++)
                json_array_append_new(extents,
                                      json_pack("{s:i, s:I, s:I, s:I}", "rank",
                                                (int) t->extents[k]->rank, "offset",
                                                (json_int_t) t->extents[k]->offset, "bytes",
                                                (json_int_t) t->extents[k]->bytes, "crc32c",
                                                (json_int_t) t->extents[k]->crc32c));
        json_t *j = json_pack(
                "{s:o, s:s, s:s, s:s, s:o, s:o}", "name", json_text(t->name.data, t->name.len),
                "role", name_or(role_name(t->role), "?"), "dtype", dtype_text(t->runtime_dtype),
                "stored_dtype", dtype_text(t->stored_dtype), "shape", shape, "extents", extents);
        if (t->has_true_step)
                json_object_set_new(j, "true_step", json_integer(t->true_step));
        if (t->alias_of.len > 0)
                json_object_set_new(j, "alias_of", json_text(t->alias_of.data, t->alias_of.len));
        if (t->encoding)
                json_object_set_new(j, "encoding",
                                    json_pack("{s:s, s:b, s:f, s:I, s:I}", "asked",
                                              dtype_text(t->encoding->asked_dtype), "fell_back",
                                              t->encoding->fell_back, "error_abs_max",
                                              t->encoding->error_abs_max, "overflows",
                                              (json_int_t) t->encoding->overflow_count,
                                              "underflows",
                                              (json_int_t) t->encoding->underflow_count));
        return j;
}

static void add_texts(json_t *target, const Cairn__Format__Head *head) {
        for (size_t i = 0; i < head->n_texts; i++) {
                char key[1024];
                json_object_set_new(
                        target, bytes_text(head->texts[i]->key, key, sizeof key),
                        json_text(head->texts[i]->value.data, head->texts[i]->value.len));
        }
}

static int inspect_json(const struct store_view *v, const struct file_content *index,
                        const struct file_content *commit, const char *here, bool tensors) {
        const Cairn__Format__Head *head = index->head;
        json_t *states = json_array(), *texts = json_object();
        for (size_t i = 0; i < index->state_count; i++) {
                json_t *values = json_object();
                for (size_t k = 0; k < index->states[i]->n_values; k++) {
                        char name[1024];
                        json_object_set_new(
                                values,
                                bytes_text(index->states[i]->values[k]->name, name, sizeof name),
                                value_json(index->states[i]->values[k]));
                }
                json_array_append_new(states,
                                      json_pack("{s:i, s:o}", "rank", (int) index->states[i]->rank,
                                                "values", values));
        }
        add_texts(texts, head);
        json_t *j = json_pack(
                "{s:s, s:s, s:s, s:I, s:I, s:i, s:o, s:I, s:I, s:I, s:I, s:o, s:o}", "checkpoint",
                v->checkpoint, "run", v->run, "store", v->path, "step", (json_int_t) head->step,
                "generation", (json_int_t) head->generation, "world", (int) head->world, "parent",
                json_text(commit->commit->parent.data, commit->commit->parent.len), "time_ns",
                (json_int_t) head->time_ns, "tensor_count", (json_int_t) index->tensor_count,
                "tensor_bytes", (json_int_t) head->tensor_bytes, "non_finite_count",
                (json_int_t) head->non_finite_count, "states", states, "descriptions", texts);
        if (*here)
                json_object_set_new(j, "holds", json_string(here));
        if (tensors) {
                json_t *list = json_array();
                for (size_t i = 0; i < index->tensor_count; i++)
                        json_array_append_new(list, tensor_json(index->tensors[i]));
                json_object_set_new(j, "tensors", list);
        }
        return print_json(j);
}

int command_inspect(const struct command *self, int argc, char **argv) {
        const char *store = NULL, *checkpoint = NULL;
        bool tensors = false, json = false;
        size_t count;
        const struct option_row rows[] = {
                {"--tensors", NULL, OPTION_FLAG, &tensors, "list every tensor", NULL},
                {"--store", "S", OPTION_STRING, &store,
                 "the store (default: $CAIRN_STORE, ./cairn-store)", NULL},
                {"--json", NULL, OPTION_FLAG, &json, "one JSON object", NULL},
        };
        struct cairn_error e = CAIRN_ERROR_INIT;
        int r = options_parse(self, OPTION_ROWS(rows), argc, argv, &checkpoint, 1, &count, NULL);
        if (r != 0)
                return r < 0 ? status_exit_code(CAIRN_ERR_API) : 0;
        if (count == 0)
                return command_fail_text(self, CAIRN_ERR_API,
                                         "which checkpoint? usage: cairn inspect %s",
                                         self->arguments);
        _cleanup_(store_view_done) struct store_view v = STORE_VIEW_INIT;
        if (store_view_open_checkpoint(&v, store_view_default(store), checkpoint, &e) < 0)
                return command_fail(self, &e);
        _cleanup_(arena_done) struct arena arena;
        arena_init(&arena, INSPECT_ARENA_BYTES);
        struct file_content index, commit;
        if (checkpoint_load(&io_system, v.run_fd, v.checkpoint, &arena, &index, &commit, &e) < 0)
                return command_fail(self, &e);
        struct scan_node node;
        char here[128];
        if (checkpoint_here(&io_system, v.run_fd, commit.head->generation, commit.head->world,
                            &node, &e) < 0)
                return command_fail(self, &e);
        (void) human_here(&node, commit.head->world, here);
        if (json)
                return inspect_json(&v, &index, &commit, here, tensors);
        print_text(&v, &index, &commit, here, tensors);
        return 0;
}
