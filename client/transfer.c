/* SPDX-License-Identifier: Apache-2.0 */
#include "client/transfer.h"
#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/fault.h"
#include "base/io.h"
#include "device/chunks.h"
#include "format/crc32c.h"
#include "format/dtype.h"
#include "format/wire.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>

/* A GPU that takes longer for a chunk hangs. */
#define WAIT_NS (60 * NSEC_PER_SEC)
#define PART_BYTES (4 * MiB)
#define PLAN_SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL)

struct transfer_part {
        size_t load;
        const Cairn__Format__Extent *extent;
};

/* ---- which elements an extent holds ---- */

/* A run of consecutive elements of the global tensor; false ends the walk. */
typedef bool (*run_visit)(uint64_t start, uint64_t count, void *argument);

static bool walk_block(const Cairn__Format__Tensor *stored, const Cairn__Format__Shard *shard,
                       run_visit visit, void *argument) {
        size_t rank = stored->n_shape;
        uint64_t index[CAIRN_RANK_MAX] = {0};
        if (rank == 0 || rank > CAIRN_RANK_MAX || shard->n_offsets != rank ||
            shard->n_extents != rank)
                return false;
        for (size_t i = 0; i < rank; i++)
                if (shard->extents[i] == 0)
                        return true;
        for (;;) {
                uint64_t start = 0;
                for (size_t i = 0; i < rank; i++)
                        start = start * stored->shape[i] + shard->offsets[i] + index[i];
                if (!visit(start, shard->extents[rank - 1], argument))
                        return false;
                size_t i = rank - 1;
                while (i > 0 && ++index[i - 1] == shard->extents[i - 1])
                        index[--i] = 0;
                if (i == 0)
                        return true;
        }
}

static bool walk_runs(const Cairn__Format__Tensor *stored, const Cairn__Format__Extent *e,
                      uint64_t elements, run_visit visit, void *argument) {
        const Cairn__Format__Shard *shard = e->shard;
        if (!shard)
                return visit(0, elements, argument);
        if (shard->flat)
                return visit(shard->flat_start, shard->flat_count, argument);
        return walk_block(stored, shard, visit, argument);
}

/* The hull of what a tensor needs of an extent, in the extent's elements. */
struct overlap {
        const struct tensor *tensor;
        uint64_t passed, begin, end; /* begin == end: nothing */
};

static bool note_overlap(uint64_t start, uint64_t count, void *argument) {
        struct overlap *o = argument;
        const struct tensor *t = o->tensor;
        uint64_t end;
        if (!add_checked(start, count, &end) || !add_checked(o->passed, count, &o->passed))
                return false;
        uint64_t from = start > t->first ? start : t->first;
        uint64_t to = end < t->first + t->count ? end : t->first + t->count;
        if (from < to) {
                if (o->begin == o->end)
                        o->begin = o->passed - count + (from - start);
                o->end = o->passed - count + (to - start);
        }
        return true;
}

/* ---- the plan ---- */

static int grow(struct transfer *x, struct cairn_error *reterr) {
        if (x->part_count < x->part_capacity)
                return 0;
        size_t larger = x->part_capacity ? x->part_capacity * 2 : 64;
        struct transfer_part *parts = realloc(x->parts, larger * sizeof *parts);
        if (parts)
                x->parts = parts;
        struct ranges_want *wants = realloc(x->wants, larger * sizeof *wants);
        if (wants)
                x->wants = wants;
        if (!parts || !wants)
                return error_set_errno(reterr, ENOMEM, "plan restore", "");
        x->part_capacity = larger;
        return 0;
}

/* One extent, if it holds something of the tensor. */
static int add_part(struct transfer *x, size_t load, const Cairn__Format__Extent *e,
                    struct cairn_error *reterr) {
        const struct load *l = &x->binding->loads[load];
        const struct tensor *t = &x->registry->tensors[l->tensor];
        struct overlap o = {.tensor = t};
        uint64_t element_bytes = dtype_info(l->stored->stored_dtype)->bytes;
        if (!walk_runs(l->stored, e, t->elements, note_overlap, &o) ||
            o.end > e->bytes / element_bytes)
                return error_set(reterr, CAIRN_ERR_CORRUPT, "plan restore", t->name,
                                 "an extent's shard does not fit the shape");
        if (o.begin == o.end)
                return 0;
        TRY(grow(x, reterr));
        x->parts[x->part_count] = (struct transfer_part){.load = load, .extent = e};
        x->wants[x->part_count++] =
                (struct ranges_want){.rank = e->rank,
                                     .crc32c = e->crc32c,
                                     .offset = e->offset,
                                     .end = e->offset + e->bytes,
                                     .need_begin = e->offset + o.begin * element_bytes,
                                     .need_end = e->offset + o.end * element_bytes};
        return 0;
}

static int write_plan(struct transfer *x, struct cairn_error *reterr) {
        uint64_t bytes = plan_bytes(x->range_count);
        _cleanup_free_ void *plan = malloc(bytes);
        _cleanup_close_ int fd = -1;
        if (!plan)
                return error_set_errno(reterr, ENOMEM, "plan restore", "");
        TRY(plan_write(plan, x->ranges, x->range_count, &x->staging_bytes, reterr));
        TRY(wire_memfd_create("cairn-plan", bytes, &fd, reterr));
        TRY(io_write_all(&io_system, fd, plan, bytes, 0, "restore plan", reterr));
        TRY(wire_memfd_seal(fd, PLAN_SEALS, reterr));
        x->plan_fd = TAKE_FD(fd);
        return 0;
}

int transfer_plan(struct transfer *x, struct binding *b, const struct registry *r,
                  struct cairn_error *reterr) {
        *x = (struct transfer){.binding = b, .registry = r, .plan_fd = -1};
        for (size_t i = 0; i < b->load_count; i++) {
                size_t count;
                Cairn__Format__Extent *const *extents =
                        layout_extents(b->loads[i].stored, b->here, &count);
                for (size_t k = 0; k < count; k++)
                        TRY(add_part(x, i, extents[k], reterr));
                x->bytes += r->tensors[b->loads[i].tensor].bytes;
        }
        TRY(ranges_make(x->wants, x->part_count, b->index, &x->ranges, &x->range_count, reterr));
        for (size_t i = 0; i < x->range_count; i++)
                x->bytes_read += x->ranges[i].bytes;
        return x->range_count ? write_plan(x, reterr) : 0;
}

void transfer_done(struct transfer *x) {
        free(x->parts);
        free(x->wants);
        free(x->ranges);
        if (x->plan_fd >= 0)
                (void) close(x->plan_fd);
        *x = (struct transfer){.plan_fd = -1};
}

/* ---- before anything is touched ---- */

/* A tensor that needs the range, for the message. */
static const char *tensor_of_range(const struct transfer *x, const struct plan_range *range) {
        for (size_t i = 0; i < x->part_count; i++) {
                const struct ranges_want *w = &x->wants[i];
                if (w->rank == range->rank && w->begin < range->file_offset + range->bytes &&
                    range->file_offset < w->stop)
                        return x->registry->tensors[x->binding->loads[x->parts[i].load].tensor]
                                .name;
        }
        return "";
}

int transfer_check(struct transfer *x, const void *staging, uint64_t bytes,
                   struct cairn_error *reterr) {
        if (bytes < x->staging_bytes)
                return error_set(reterr, CAIRN_ERR_CORRUPT, "check restored image", "",
                                 "%" PRIu64 " bytes came, %" PRIu64 " were planned", bytes,
                                 x->staging_bytes);
        x->staging = staging;
        for (size_t i = 0; i < x->range_count; i++) {
                const struct plan_range *range = &x->ranges[i];
                if (crc32c(0, x->staging + range->staging_offset, range->bytes) != range->crc32c)
                        return error_set(reterr, CAIRN_ERR_CORRUPT, "check restored image",
                                         tensor_of_range(x, range),
                                         "its bytes do not have the checksum of INDEX");
        }
        return 0;
}

/* The bytes of a STEP tensor's first element; STEP tensors are small and come whole. Parts stand in
 * the order of their loads, and an optimizer may have a counter for each of its tensors. */
static const void *first_bytes(const struct transfer *x, size_t load) {
        size_t low = 0, high = x->part_count;
        while (low < high) {
                size_t middle = low + (high - low) / 2;
                if (x->parts[middle].load < load)
                        low = middle + 1;
                else
                        high = middle;
        }
        if (low == x->part_count || x->parts[low].load != load)
                return NULL;
        return x->staging + ranges_place(&x->wants[low], x->ranges);
}

static bool supplied_step(const struct binding_request *request, const char *name, int64_t *ret) {
        for (size_t i = 0; i < request->override_count; i++) {
                const struct pair *p = &request->overrides[i];
                if (strcmp(p->key, "step") != 0 &&
                    (strncmp(p->key, "step/", 5) != 0 || strcmp(p->key + 5, name) != 0))
                        continue;
                char *end;
                errno = 0;
                long long value = strtoll(p->value, &end, 10);
                if (errno == 0 && end != p->value && *end == 0 && value >= 0 && value <= STEP_MAX) {
                        *ret = value;
                        return true;
                }
        }
        return false;
}

/* One counter: what the int64 beside it says, else what its value certainly means, else what the
 * operator says. */
static void check_step(struct transfer *x, size_t i, const void *bytes,
                       const struct binding_request *request, struct textbuf *problems) {
        struct load *load = &x->binding->loads[i];
        const struct tensor *t = &x->registry->tensors[load->tensor];
        const Cairn__Format__StateValue *truth =
                t->truth ? x->binding->values[t->truth_value] : NULL;
        struct cairn_error e = CAIRN_ERROR_INIT;
        float value;

        load->has_true_step = true;
        if (truth || load->stored->has_true_step) {
                load->true_step = truth ? truth->i64 : load->stored->true_step;
                if (load->stored->stored_dtype != CAIRN_F32)
                        return;
                memcpy(&value, bytes, sizeof value);
                if ((float) load->true_step != value)
                        textbuf_item(problems,
                                     "tensor %s: it holds %.9g, the int64 beside it %" PRId64,
                                     t->name, (double) value, load->true_step);
                return;
        }
        if (step_from_foreign(t->name, load->stored->stored_dtype, bytes, &value, &load->true_step,
                              &e) < 0 &&
            !supplied_step(request, t->name, &load->true_step))
                textbuf_item(problems,
                             "tensor %s: %s (or say which it is with --override step/%s=N)",
                             t->name, e.message, t->name);
}

int transfer_check_steps(struct transfer *x, const struct binding_request *request,
                         struct textbuf *problems, struct cairn_error *reterr) {
        for (size_t i = 0; i < x->binding->load_count; i++) {
                const struct load *load = &x->binding->loads[i];
                const struct tensor *t = &x->registry->tensors[load->tensor];
                if (t->role != CAIRN_STEP || t->count == 0)
                        continue;
                bool foreign = load->stored->stored_dtype != CAIRN_F32;
                if (!t->truth && !foreign)
                        continue; /* its own FP32 is all there is */
                const void *bytes = first_bytes(x, i);
                if (!bytes)
                        return error_set(reterr, CAIRN_ERR_CORRUPT, "check steps", t->name,
                                         "the checkpoint has no bytes of it");
                if (!t->truth && t->count != 1)
                        textbuf_item(problems,
                                     "tensor %s: several foreign step counters in one tensor are "
                                     "not converted",
                                     t->name);
                else
                        check_step(x, i, bytes, request, problems);
        }
        return 0;
}

/* ---- copying ---- */

/* Where the tensors are. What a GPU gets without a place in staging goes through `part`. */
struct target {
        struct device *device; /* NULL: the host */
        const struct clock_ops *clock;
        struct chunks chunks;
        unsigned char *part;
};

static int target_open(struct target *to, const struct transfer *x, struct cairn_error *reterr) {
        *to = (struct target){.device = x->device, .clock = x->clock};
        if (!to->device)
                return 0;
        to->part = malloc(PART_BYTES);
        if (!to->part)
                return error_set_errno(reterr, ENOMEM, "restore", "");
        chunks_init(&to->chunks, to->device, NULL, CHUNK_BYTES, NULL, NULL);
        return 0;
}

static int target_end(struct target *to, struct cairn_error *reterr) {
        return to->device ? chunks_end(&to->chunks, clock_now(to->clock) + WAIT_NS, reterr) : 0;
}

static void target_done(struct target *to) {
        if (to->part)
                chunks_done(&to->chunks);
        free(to->part);
}

/* `source` stays as it is until target_end. */
static int put(struct target *to, void *target, const void *source, uint64_t bytes,
               struct cairn_error *reterr) {
        if (to->device)
                return chunks_copy(&to->chunks, target, source, bytes,
                                   clock_now(to->clock) + WAIT_NS, reterr);
        memcpy(target, source, bytes);
        return 0;
}

struct copy {
        const struct tensor *tensor;
        struct target *to;
        uint32_t stored_dtype;
        const unsigned char *staging;
        int64_t place;         /* of the extent's first byte in it, were all of it there */
        uint64_t source_count; /* elements that the extent has */
        uint64_t done;         /* elements of the extent that were passed */
        uint64_t overflow_count;
        int status;
        struct cairn_error *reterr;
};

/* The host converts. */
static int put_converted(struct copy *c, char *target, const unsigned char *source,
                         uint64_t count) {
        uint32_t dtype = c->tensor->dtype;
        uint32_t source_bytes = dtype_info(c->stored_dtype)->bytes;
        uint32_t target_bytes = dtype_info(dtype)->bytes;
        struct conversion_result result;
        for (uint64_t n; count > 0; count -= n) {
                n = count;
                if (c->to->device && n > PART_BYTES / target_bytes)
                        n = PART_BYTES / target_bytes;
                TRY(dtype_convert(c->to->device ? (char *) c->to->part : target, dtype, source,
                                  c->stored_dtype, n, &result, c->reterr));
                c->overflow_count += result.overflow_count;
                if (!c->to->device)
                        continue; /* all of it */
                TRY(put(c->to, target, c->to->part, n * target_bytes, c->reterr));
                TRY(target_end(c->to, c->reterr));
                target += n * target_bytes;
                source += n * source_bytes;
        }
        return 0;
}

static int put_step(struct target *to, float *target, int64_t step, struct cairn_error *reterr) {
        float value = (float) step;
        if (!to->device) {
                *target = value;
                return 0;
        }
        memcpy(to->part, &value, sizeof value);
        TRY(put(to, target, to->part, sizeof value, reterr));
        return target_end(to, reterr);
}

static bool copy_run(uint64_t start, uint64_t count, void *argument) {
        struct copy *c = argument;
        const struct tensor *t = c->tensor;
        uint64_t end;
        if (count > c->source_count - c->done || !add_checked(start, count, &end) ||
            end > t->elements) {
                c->status = error_set(c->reterr, CAIRN_ERR_CORRUPT, "restore tensor", t->name,
                                      "an extent's shard does not fit its bytes");
                return false;
        }
        uint64_t from = start > t->first ? start : t->first;
        uint64_t to = end < t->first + t->count ? end : t->first + t->count;
        if (from < to) {
                uint32_t source_bytes = dtype_info(c->stored_dtype)->bytes;
                uint32_t target_bytes = dtype_info(t->dtype)->bytes;
                const unsigned char *source =
                        c->staging +
                        (c->place + (int64_t) ((c->done + from - start) * source_bytes));
                char *target = (char *) t->data + (from - t->first) * target_bytes;
                c->status =
                        c->stored_dtype == t->dtype
                                ? put(c->to, target, source, (to - from) * source_bytes, c->reterr)
                                : put_converted(c, target, source, to - from);
        }
        c->done += count;
        return c->status == 0;
}

static int apply_part(struct transfer *x, size_t index, struct target *to,
                      struct cairn_error *reterr) {
        const struct transfer_part *part = &x->parts[index];
        const struct load *load = &x->binding->loads[part->load];
        const struct tensor *t = &x->registry->tensors[load->tensor];
        int error_number = fault_point(FAULT_CLIENT_APPLY);
        if (error_number)
                return error_set_errno(reterr, error_number, "restore tensor", t->name);
        if (load->has_true_step) {
                TRY(put_step(to, t->data, load->true_step, reterr));
                if (t->truth)
                        *t->truth = load->true_step;
                return 0;
        }
        struct copy c = {.tensor = t,
                         .to = to,
                         .stored_dtype = load->stored->stored_dtype,
                         .staging = x->staging,
                         .place = ranges_place(&x->wants[index], x->ranges),
                         .reterr = reterr};
        c.source_count = part->extent->bytes / dtype_info(c.stored_dtype)->bytes;
        if (!walk_runs(load->stored, part->extent, t->elements, copy_run, &c) && c.status == 0)
                return error_set(reterr, CAIRN_ERR_CORRUPT, "restore tensor", t->name,
                                 "an extent's shard does not fit the shape");
        if (c.overflow_count)
                textbuf_item(&x->binding->differs,
                             "%s: %" PRIu64 " values overflowed in the conversion", t->name,
                             c.overflow_count);
        return c.status;
}

static void apply_value(const struct value *v, const Cairn__Format__StateValue *stored) {
        switch (v->type) {
        case CAIRN_VALUE_I64:
                memcpy(v->data, &stored->i64, 8);
                break;
        case CAIRN_VALUE_U64:
                memcpy(v->data, &stored->u64, 8);
                break;
        case CAIRN_VALUE_F64:
                memcpy(v->data, &stored->f64, 8);
                break;
        default:
                if (stored->bytes_value.len)
                        memcpy(v->data, stored->bytes_value.data, stored->bytes_value.len);
                *v->length = stored->bytes_value.len;
        }
}

static int apply_parts(struct transfer *x, struct cairn_error *reterr) {
        struct target to;
        int r = target_open(&to, x, reterr);
        for (size_t i = 0; r == 0 && i < x->part_count; i++)
                r = apply_part(x, i, &to, reterr);
        /* Staging is the copies' until they have ended, whatever became of one. */
        struct cairn_error e = CAIRN_ERROR_INIT;
        int ended = to.part ? target_end(&to, &e) : 0;
        if (r == 0 && ended < 0 && reterr)
                *reterr = e;
        target_done(&to);
        return r < 0 ? r : ended;
}

int transfer_apply(struct transfer *x, struct cairn_error *reterr) {
        TRY(apply_parts(x, reterr));
        for (size_t i = 0; i < x->registry->value_count; i++)
                if (x->binding->values[i])
                        apply_value(&x->registry->values[i], x->binding->values[i]);
        return 0;
}
