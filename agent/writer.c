/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/writer.h"

#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/fault.h"
#include "format/crc32c.h"
#include "format/dtype.h"
#include "format/host_state.h"
#include "format/layout.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/random.h>

#define MANIFEST_ARENA_BYTES_MAX (1 * GiB)
enum { FILE_DATA, FILE_MANIFEST_TEMPORARY, FILES };

struct writer {
        const struct writer_job *job;
        struct ring *ring;
        const struct source *source;
        struct staging *staging;
        const struct copied *copied;
        struct written *written;
        struct arena arena; /* of this manifest */
        void *manifest;
        uint32_t *chunk_crcs;
        uint64_t chunk_count;
        size_t tensor;          /* the first one that ends behind what was checksummed */
        bool tensor_non_finite; /* it held a NaN or an infinity so far */
};

/* event_fd -1: does not wait. */
static int wait_for(struct writer *w, int event_fd, struct cairn_error *reterr) {
        if (w->job->wait(w->job->context, event_fd) < 0)
                return error_set(reterr, CAIRN_ERR_PEER, "write checkpoint", w->job->run,
                                 "the agent is gone");
        if (clock_now(w->job->clock) >= w->job->deadline_ns)
                return error_set(reterr, CAIRN_ERR_TIMEOUT, "write checkpoint", w->job->run,
                                 "storage took %" PRIu64 " of %" PRIu64 " bytes in time",
                                 ring_bytes_done(w->ring), w->source->image_bytes);
        return 0;
}

static int wait_for_ring(struct writer *w, struct cairn_error *reterr) {
        return wait_for(w, ring_event_fd(w->ring), reterr);
}

/* ---- preparing the image ---- */

static void zero(struct writer *w, uint64_t from, uint64_t to) {
        if (to > from)
                memset(w->staging->base + from, 0, to - from);
}

/* Store in the narrower type. An over- or underflow makes the stored type FP32, for which room was
 * kept. */
static int convert(struct writer *w, const struct source_tensor *t, struct cairn_error *reterr) {
        Cairn__Format__Tensor *record = t->record;
        uint32_t asked = record->encoding ? record->encoding->asked_dtype : record->stored_dtype;
        struct conversion_result result = {0};
        _cleanup_free_ unsigned char *narrow = malloc(t->elements * dtype_info(asked)->bytes);
        Cairn__Format__Encoding *encoding = arena_alloc(&w->arena, sizeof *encoding, 8);
        if (!narrow || !encoding)
                return error_set_errno(reterr, ENOMEM, "store a tensor narrower", "");
        TRY(dtype_convert(narrow, asked, w->staging->base + t->offset, record->runtime_dtype,
                          t->elements, &result, reterr));
        cairn__format__encoding__init(encoding);
        encoding->asked_dtype = asked;
        encoding->error_abs_max = result.error_abs_max;
        encoding->overflow_count = result.overflow_count;
        encoding->underflow_count = result.underflow_count;
        encoding->fell_back = result.overflow_count > 0 || result.underflow_count > 0;
        record->encoding = encoding;
        record->stored_dtype = encoding->fell_back ? record->runtime_dtype : asked;
        record->extents[0]->bytes = t->elements * dtype_info(record->stored_dtype)->bytes;
        if (!encoding->fell_back)
                memcpy(w->staging->base + t->offset, narrow, record->extents[0]->bytes);
        return 0;
}

/* The header, the conversions, and zeros wherever no tensor lies: a restore may have left bytes
 * there. Ends early where the job has failed. */
static int prepare_image(struct writer *w, struct cairn_error *reterr) {
        const struct source *s = w->source;
        struct data_header header = {.rank = w->job->rank, .generation = w->job->generation};
        if (getrandom(w->written->data_uuid, sizeof w->written->data_uuid, 0) !=
            sizeof w->written->data_uuid)
                return error_set_errno(reterr, errno, "make a file id", "getrandom");
        memcpy(header.uuid, w->written->data_uuid, sizeof header.uuid);
        (void) snprintf(header.run, sizeof header.run, "%s", w->job->run);
        data_header_write(w->staging->base, &header);
        uint64_t end = DATA_BLOCK_BYTES;
        for (size_t i = 0; i < s->tensor_count; i++) {
                const struct source_tensor *t = &s->tensors[i];
                if (t->record->encoding || t->record->stored_dtype != t->record->runtime_dtype) {
                        TRY(wait_for(w, -1, reterr));
                        if (ring_failed(w->ring))
                                return 0;
                        TRY(convert(w, t, reterr));
                }
                zero(w, end, t->offset);
                end = t->offset + t->record->extents[0]->bytes;
        }
        zero(w, end, s->image_bytes);
        return 0;
}

/* ---- data ---- */

/* Where a NaN or an infinity means that training has gone wrong. Elsewhere it may belong there:
 * masks are full of minus infinity. */
static bool must_be_finite(const Cairn__Format__Tensor *t) {
        switch (t->role) {
        case CAIRN_PARAMETER:
        case CAIRN_MASTER:
        case CAIRN_MOMENT1:
        case CAIRN_MOMENT2:
        case CAIRN_MOMENT_OTHER:
        case CAIRN_EMA:
                return dtype_info(t->stored_dtype)->is_float;
        default:
                return false;
        }
}

/* CRC and scan of the parts of tensors that lie in [from, to), whose own CRC is known. Chunks begin
 * at multiples of the largest element. */
static void checksum_tensors(struct writer *w, uint64_t from, uint64_t to, uint32_t chunk_crc) {
        const struct source *s = w->source;
        for (size_t i = w->tensor; i < s->tensor_count && s->tensors[i].offset < to; i++) {
                Cairn__Format__Tensor *record = s->tensors[i].record;
                Cairn__Format__Extent *e = record->extents[0];
                uint64_t end = e->offset + e->bytes;
                uint64_t part_from = e->offset > from ? e->offset : from,
                         part_to = end < to ? end : to;
                const unsigned char *data = w->staging->base + part_from;
                const struct dtype_info *stored = dtype_info(record->stored_dtype);
                if (part_from == e->offset) {
                        e->crc32c = 0;
                        w->tensor_non_finite = false;
                }
                if (part_from == from && part_to == to)
                        e->crc32c = crc32c_combine(e->crc32c, chunk_crc, to - from);
                else
                        e->crc32c = crc32c(e->crc32c, data, part_to - part_from);
                if (!w->tensor_non_finite && must_be_finite(record))
                        w->tensor_non_finite =
                                dtype_non_finite_count(data, record->stored_dtype,
                                                       (part_to - part_from) / stored->bytes) > 0;
                if (end <= to) {
                        w->written->non_finite_count += w->tensor_non_finite;
                        w->tensor = i + 1;
                }
        }
}

static int push(struct writer *w, uint64_t from, uint64_t to, struct cairn_error *reterr) {
        while (ring_push(w->ring, FILE_DATA, from, from, to - from) == CAIRN_ERR_BUSY)
                TRY(wait_for_ring(w, reterr));
        return 0;
}

static int drain(struct writer *w, struct cairn_error *reterr) {
        while (!ring_idle(w->ring))
                TRY(wait_for_ring(w, reterr));
        return 0;
}

/* Checksums run ahead of the transfers; requests are two chunks long. */
static int write_chunks(struct writer *w, struct cairn_error *reterr) {
        uint64_t bytes = w->source->image_bytes, pushed = 0;
        for (uint64_t chunk = 0; chunk < w->chunk_count && !ring_failed(w->ring); chunk++) {
                uint64_t from = chunk * DATA_CHUNK_BYTES;
                uint64_t to = from + DATA_CHUNK_BYTES < bytes ? from + DATA_CHUNK_BYTES : bytes;
                TRY(wait_for(w, -1, reterr));
                w->chunk_crcs[chunk] = crc32c(0, w->staging->base + from, to - from);
                checksum_tensors(w, from, to, w->chunk_crcs[chunk]);
                if (to - pushed >= RING_REQUEST_BYTES || to == bytes) {
                        TRY(push(w, pushed, to, reterr));
                        pushed = to;
                }
        }
        return drain(w, reterr);
}

/* Space first, so that a full disk is found before anything is written; the image is prepared
 * meanwhile. */
static int reserve(struct writer *w, struct cairn_error *reterr) {
        while (ring_reserve(w->ring, FILE_DATA, w->source->image_bytes) == CAIRN_ERR_BUSY)
                TRY(wait_for_ring(w, reterr));
        TRY(prepare_image(w, reterr));
        return drain(w, reterr);
}

/* The files came as descriptors; where they lie is for the reader of the message. A path that does
 * not fit keeps its end. */
static void name_place(const struct writer *w, struct cairn_error *e) {
        bool is_manifest = strstr(e->operation, "manifest");
        char link[64], path[4096];
        (void) snprintf(link, sizeof link, "/proc/self/fd/%d",
                        is_manifest ? w->job->manifest_fd : w->job->data_fd);
        ssize_t bytes = readlink(link, path, sizeof path - 1);
        if (bytes <= 0)
                return;
        path[bytes] = '\0';
        size_t most = sizeof e->object - 1;
        const char *end = path + ((size_t) bytes > most ? (size_t) bytes - most : 0);
        memcpy(e->object, end, strlen(end) + 1);
}

/* What failed in storage: where, and for a lack of space how much it is and what helps. */
static void explain(const struct writer *w, struct cairn_error *e) {
        if (e->system_code)
                name_place(w, e);
        if (e->status == CAIRN_ERR_VOID)
                (void) snprintf(e->message, sizeof e->message,
                                "given up with its checkpoint after %" PRIu64 " of %" PRIu64
                                " bytes",
                                ring_bytes_done(w->ring), w->source->image_bytes);
        if (e->status != CAIRN_ERR_NOSPACE)
                return;
        (void) snprintf(e->message, sizeof e->message,
                        "%" PRIu64 " bytes are needed for the data of rank %" PRIu32
                        "; free space, %skeep fewer checkpoints (--keep-last) or choose another "
                        "store",
                        w->source->image_bytes, w->job->rank,
                        e->system_code == EDQUOT ? "have the quota raised, " : "");
}

static int sync_file(struct writer *w, uint32_t file, struct cairn_error *reterr) {
        while (ring_sync(w->ring, file) == CAIRN_ERR_BUSY)
                TRY(wait_for_ring(w, reterr));
        return drain(w, reterr);
}

/* ---- manifest ---- */

static ProtobufCBinaryData borrow(const void *bytes, size_t count) {
        return (ProtobufCBinaryData){.len = count, .data = (uint8_t *) (uintptr_t) bytes};
}

static int no_memory(struct cairn_error *reterr) {
        return error_set_errno(reterr, ENOMEM, "make manifest", "");
}

/* The host slot's bytes as typed values (host_state.h draws them). */
static int fill_state(struct writer *w, Cairn__Format__State *state, struct cairn_error *reterr) {
        const Cairn__Format__InventoryHead *head = w->source->inventory.inventory;
        size_t count = head->n_layout;
        Cairn__Format__StateValue *values = arena_alloc(&w->arena, (count + 1) * sizeof *values, 8);
        struct host_value *layout = arena_alloc(&w->arena, (count + 1) * sizeof *layout, 8);
        state->values = arena_alloc(&w->arena, (count + 1) * sizeof *state->values, 8);
        if (!values || !layout || !state->values)
                return no_memory(reterr);
        for (size_t i = 0; i < count; i++) {
                layout[i] = (struct host_value){.type = head->layout[i]->type,
                                                .capacity = head->layout[i]->capacity};
                layout[i].name = arena_strndup(&w->arena, (const char *) head->layout[i]->name.data,
                                               head->layout[i]->name.len);
                if (!layout[i].name)
                        return no_memory(reterr);
        }
        uint64_t payload_bytes;
        TRY(host_state_layout(layout, count, &payload_bytes, reterr));
        if (payload_bytes != w->source->payload_bytes)
                return error_set(reterr, CAIRN_ERR_CORRUPT, "read host state", w->job->run,
                                 "its size does not follow from its layout");
        for (size_t i = 0; i < count; i++) {
                Cairn__Format__StateValue *v = state->values[i] = &values[i];
                const unsigned char *at = w->copied->payload + layout[i].offset;
                *v = *head->layout[i];
                uint64_t word = load_le64(at);
                if (v->type == CAIRN_VALUE_I64)
                        v->i64 = (int64_t) word;
                else if (v->type == CAIRN_VALUE_U64)
                        v->u64 = word;
                else if (v->type == CAIRN_VALUE_F64)
                        memcpy(&v->f64, &word, sizeof word);
                else if (word <= v->capacity)
                        v->bytes_value = borrow(at + sizeof word, word);
                else
                        return error_set(reterr, CAIRN_ERR_CORRUPT, "read host state",
                                         layout[i].name, "its length is beyond its capacity");
        }
        state->n_values = count;
        return 0;
}

/* The int64 beside each FP32 step: the host value named after the tensor. */
static void fill_true_steps(struct writer *w, const Cairn__Format__State *state) {
        const struct file_content *c = &w->source->inventory;
        const size_t prefix = sizeof HOST_VALUE_STEP_PREFIX - 1;
        size_t v = 0; /* both lists are in registration order, so one pass finds all of them */
        for (size_t i = 0; i < c->tensor_count; i++) {
                Cairn__Format__Tensor *t = c->tensors[i];
                if (t->role != CAIRN_STEP)
                        continue;
                for (size_t tried = 0; tried < state->n_values; tried++, v++) {
                        const Cairn__Format__StateValue *value = state->values[v % state->n_values];
                        if (value->type == CAIRN_VALUE_I64 &&
                            value->name.len == prefix + t->name.len &&
                            memcmp(value->name.data, HOST_VALUE_STEP_PREFIX, prefix) == 0 &&
                            memcmp(value->name.data + prefix, t->name.data, t->name.len) == 0) {
                                t->has_true_step = true;
                                t->true_step = value->i64;
                                v++;
                                break;
                        }
                }
        }
}

static void fill_head(const struct writer *w, Cairn__Format__Head *head,
                      Cairn__Format__Ending *ending) {
        const Cairn__Format__InventoryHead *inventory = w->source->inventory.inventory;
        static const char version[] = "cairn " CAIRN_VERSION;
        head->run = borrow(w->job->run, strlen(w->job->run));
        head->generation = w->job->generation;
        head->rank = w->job->rank;
        head->world = w->job->world;
        head->step = w->copied->step;
        head->seq = w->copied->word.seq;
        head->attempt = w->job->attempt;
        head->data_uuid = borrow(w->written->data_uuid, sizeof w->written->data_uuid);
        head->data_bytes = w->source->image_bytes;
        for (size_t i = 0; i < w->source->tensor_count; i++)
                head->tensor_bytes += w->source->tensors[i].record->extents[0]->bytes;
        head->time_ns = w->job->clock->realtime_ns(w->job->clock->context);
        head->writer = borrow(version, sizeof version - 1);
        head->non_finite_count = w->written->non_finite_count;
        if (w->job->ending.kind != ENDING_ALIVE) {
                ending->kind = w->job->ending.kind;
                ending->code = w->job->ending.code;
                ending->suspect = w->job->ending.suspect;
                head->ending = ending;
        }
        head->texts = inventory->texts;
        head->n_texts = inventory->n_texts;
}

/* The records that belong into this rank's manifest. */
static int choose_tensors(struct writer *w, Cairn__Format__Head *head, Cairn__Format__Tensor ***ret,
                          struct cairn_error *reterr) {
        const struct file_content *inventory = &w->source->inventory;
        Cairn__Format__Tensor **chosen =
                arena_alloc(&w->arena, (inventory->tensor_count + 1) * sizeof(void *), 8);
        if (!chosen)
                return no_memory(reterr);
        head->tensor_count = 0;
        for (size_t i = 0; i < inventory->tensor_count; i++)
                if (layout_in_manifest(inventory->tensors[i], w->job->rank))
                        chosen[head->tensor_count++] = inventory->tensors[i];
        if (w->job->world > 1)
                head->replicated_digest = layout_digest_replicated(
                        inventory->tensors, inventory->tensor_count, &head->replicated_count);
        *ret = chosen;
        return 0;
}

static int make_manifest(struct writer *w, void **ret, size_t *ret_bytes,
                         struct cairn_error *reterr) {
        Cairn__Format__Head head = CAIRN__FORMAT__HEAD__INIT;
        Cairn__Format__Ending ending = CAIRN__FORMAT__ENDING__INIT;
        Cairn__Format__State state = CAIRN__FORMAT__STATE__INIT, *states[] = {&state};
        Cairn__Format__ChunkCrcs crcs = CAIRN__FORMAT__CHUNK_CRCS__INIT, *crc_list[] = {&crcs};
        Cairn__Format__Tensor **tensors = NULL;
        fill_head(w, &head, &ending);
        state.rank = crcs.rank = w->job->rank;
        state.step = w->copied->step;
        state.seq = w->copied->word.seq;
        TRY(fill_state(w, &state, reterr));
        fill_true_steps(w, &state);
        TRY(choose_tensors(w, &head, &tensors, reterr));
        crcs.crc32c = w->chunk_crcs;
        crcs.n_crc32c = w->chunk_count;
        const struct file_content manifest = {.kind = FILE_MANIFEST,
                                              .head = &head,
                                              .tensors = tensors,
                                              .tensor_count = head.tensor_count,
                                              .states = states,
                                              .state_count = 1,
                                              .chunk_crcs = crc_list,
                                              .chunk_crcs_count = 1};
        return file_write(&manifest, ret, ret_bytes, reterr);
}

static int write_manifest(struct writer *w, struct cairn_error *reterr) {
        size_t count;
        TRY(make_manifest(w, &w->manifest, &count, reterr));
        int error_number = fault_point(FAULT_MANIFEST_WRITE);
        if (error_number)
                return error_set_errno(reterr, error_number, "write manifest", w->job->run);
        while (ring_push_memory(w->ring, FILE_MANIFEST_TEMPORARY, 0, w->manifest, count) ==
               CAIRN_ERR_BUSY)
                TRY(wait_for_ring(w, reterr));
        return drain(w, reterr);
}

/* 0 also where the ring has failed: ring_end tells why. */
static int write_both(struct writer *w, struct cairn_error *reterr) {
        TRY(reserve(w, reterr));
        if (ring_failed(w->ring))
                return 0;
        TRY(write_chunks(w, reterr));
        if (ring_failed(w->ring))
                return 0;
        int error_number = fault_point(FAULT_DATA_SYNC);
        if (error_number)
                return error_set_errno(reterr, error_number, "sync data", w->job->run);
        TRY(sync_file(w, FILE_DATA, reterr));
        if (ring_failed(w->ring))
                return 0;
        TRY(write_manifest(w, reterr));
        if (ring_failed(w->ring))
                return 0;
        return sync_file(w, FILE_MANIFEST_TEMPORARY, reterr);
}

/* After an error of ours the transfers still have to end before staging is used again. */
static int end_job(struct writer *w, int r, struct cairn_error *reterr) {
        while (r < 0 && r != CAIRN_ERR_PEER && !ring_idle(w->ring))
                if (wait_for_ring(w, NULL) < 0)
                        break;
        int ended = ring_end(w->ring, 0, r == 0 ? reterr : NULL);
        if (r == 0 && ended < 0 && reterr && !ring_stuck(w->ring) &&
            ring_error_file(w->ring) == FILE_MANIFEST_TEMPORARY)
                (void) snprintf(reterr->operation, sizeof reterr->operation, "%s manifest",
                                strncmp(reterr->operation, "sync", 4) == 0 ? "sync" : "write");
        return r < 0 ? r : ended;
}

int writer_write(const struct writer_job *job, struct ring *ring, const struct source *source,
                 struct staging *staging, const struct copied *copied, struct written *ret,
                 struct cairn_error *reterr) {
        *ret = (struct written){.bytes = source->image_bytes};
        struct writer w = {.job = job,
                           .ring = ring,
                           .source = source,
                           .staging = staging,
                           .copied = copied,
                           .written = ret};
        const int fds[FILES] = {
                [FILE_DATA] = job->data_fd, [FILE_MANIFEST_TEMPORARY] = job->manifest_fd};
        arena_init(&w.arena, MANIFEST_ARENA_BYTES_MAX);
        w.chunk_count = (source->image_bytes + DATA_CHUNK_BYTES - 1) / DATA_CHUNK_BYTES;
        w.chunk_crcs = arena_alloc(&w.arena, w.chunk_count * sizeof *w.chunk_crcs, 8);
        staging_note(staging, STAGING_WRITING, copied->word, copied->step);
        int r = w.chunk_crcs ? ring_begin(ring, RING_WRITE, fds, FILES, FILE_DATA + 1, reterr)
                             : no_memory(reterr);
        if (r == 0)
                r = end_job(&w, write_both(&w, reterr), reterr);
        if (!ring_stuck(ring))
                free(w.manifest);
        /* the encodings lie in this job's arena */
        for (size_t i = 0; i < source->tensor_count; i++)
                if (source->tensors[i].record->encoding) {
                        source->tensors[i].record->stored_dtype =
                                source->tensors[i].record->encoding->asked_dtype;
                        source->tensors[i].record->encoding = NULL;
                }
        arena_done(&w.arena);
        if (r < 0 && reterr)
                explain(&w, reterr);
        if (r == 0)
                staging_note(staging, STAGING_FREE, copied->word, copied->step);
        return r;
}
