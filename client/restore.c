/* SPDX-License-Identifier: Apache-2.0
 *
 * cairn_restore: validate everything, read and verify, only then touch; and what is stored, for
 * whoever has to know before the first seal.
 *
 *   client                                      agent
 *   InventoryRequest                         -> InventoryReply [INDEX]
 *   (binding: all mismatches, or none)
 *   Restore [plan]                           -> RestoreReady [staging]
 *   (every CRC32C again, foreign steps; then tensors and values are written)
 *   RestoreDone {status}                        (nobody answers)
 *   publish: seq 1, STABLE
 */
#include "base/bytes.h"
#include "base/cleanup.h"
#include "client/handle.h"
#include "client/override.h"
#include "client/report.h"
#include "client/transfer.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>

#define INVENTORY_TIMEOUT_NS (60 * NSEC_PER_SEC)
#define RESTORE_TIMEOUT_NS (120 * NSEC_PER_SEC)
/* Slower storage than this is a failure. */
#define RESTORE_BYTES_PER_SEC_MIN (20 * MiB)

/* ---- what is stored ---- */

int handle_fetch_stored(struct cairn *c, struct cairn_error *reterr) {
        Cairn__Control__InventoryRequest request = CAIRN__CONTROL__INVENTORY_REQUEST__INIT;
        Cairn__Control__Envelope e = CAIRN__CONTROL__ENVELOPE__INIT, *reply;
        struct wire_fds fds = WIRE_FDS_INIT;
        if (c->stored.present)
                return 0;
        if (c->passive || c->start == CAIRN_START_FRESH)
                return error_set(reterr, CAIRN_ERR_NOTFOUND, "look at what is stored", c->run,
                                 "this start is fresh: there is no checkpoint to start from");
        CONTROL_SET(&e, INVENTORY_REQUEST, inventory_request, &request);
        TRY(link_call(&c->link, &e, NULL, 0, CONTROL_REPLY(INVENTORY_REPLY),
                      clock_now(c->clock) + INVENTORY_TIMEOUT_NS, &reply, &fds, reterr));
        int64_t step = reply->inventory_reply->step;
        const struct layout_ranks here = {reply->inventory_reply->first_rank,
                                          reply->inventory_reply->ranks};
        link_end_call(&c->link);
        _cleanup_close_ int fd = wire_fds_take(&fds, 0);
        wire_fds_done(&fds);
        if (fd < 0 || step != c->checkpoint_step)
                return error_set(reterr, CAIRN_ERR_CORRUPT, "look at what is stored", c->checkpoint,
                                 "the agent sent no INDEX, or that of another step");
        TRY(stored_open(&c->stored, fd, c->checkpoint, reterr));
        c->stored.here = here;
        return 0;
}

static int fetch_for_caller(struct cairn *c, const char *operation, struct cairn_error *reterr) {
        TRY(handle_check(c, operation, reterr));
        return handle_fetch_stored(c, reterr);
}

int cairn_stored_count(struct cairn *c, uint64_t *ret) {
        struct cairn_error e = CAIRN_ERROR_INIT;
        if (!c || !ret)
                return CAIRN_ERR_API;
        int r = fetch_for_caller(c, "count stored tensors", &e);
        if (r == 0 || r == CAIRN_ERR_NOTFOUND) {
                *ret = r == 0 ? c->stored.index.tensor_count : 0;
                return 0;
        }
        return handle_end(c, r, &e);
}

int cairn_stored_tensor(struct cairn *c, uint64_t index, struct cairn_stored *ret) {
        static const char operation[] = "look at stored tensor";
        struct cairn_error e = CAIRN_ERROR_INIT;
        if (!c)
                return CAIRN_ERR_API;
        int r = fetch_for_caller(c, operation, &e);
        if (r < 0)
                return handle_end(c, r, &e);
        if (!ret || ret->size < sizeof *ret || index >= c->stored.index.tensor_count)
                return handle_end(c,
                                  error_set(&e, CAIRN_ERR_API, operation, c->run,
                                            "index %" PRIu64
                                            " of %zu, or the struct's size is not set",
                                            index, c->stored.index.tensor_count),
                                  &e);
        const Cairn__Format__Tensor *t = c->stored.index.tensors[index];
        *ret = (struct cairn_stored){
                .size = ret->size,
                .name = c->stored.names[index],
                .role = (enum cairn_role) t->role,
                .dtype = (enum cairn_dtype) t->runtime_dtype,
                .stored_dtype = (enum cairn_dtype) t->stored_dtype,
                .rank = (uint32_t) t->n_shape,
        };
        for (size_t i = 0; i < t->n_shape && i < CAIRN_RANK_MAX; i++)
                ret->shape[i] = t->shape[i];
        return 0;
}

const char *cairn_stored_description(struct cairn *c, const char *key) {
        struct cairn_error e = CAIRN_ERROR_INIT;
        if (!c || !key || fetch_for_caller(c, "look at stored description", &e) < 0)
                return NULL;
        return pair_find(c->stored.texts, c->stored.text_count, key);
}

/* ---- restoring ---- */

struct restoration {
        struct binding binding;
        struct transfer transfer;
        void *staging;
        uint64_t staging_bytes, read_ns, apply_ns;
};

static void restoration_done(struct restoration *r) {
        if (r->staging)
                (void) munmap(r->staging, r->staging_bytes);
        transfer_done(&r->transfer);
        binding_done(&r->binding);
}

static int refuse(struct cairn *c, const struct textbuf *problems, struct cairn_error *reterr) {
        char first[300];
        const char *lines = textbuf_string(problems);
        (void) snprintf(first, sizeof first, "%.*s", (int) strcspn(lines, "\n"), lines);
        (void) pthread_mutex_lock(&c->error_lock);
        textbuf_clear(&c->details);
        textbuf_add(&c->details, "%s", lines);
        (void) pthread_mutex_unlock(&c->error_lock);
        if (c->start == CAIRN_START_INIT_FROM)
                return error_set(reterr, CAIRN_ERR_MISMATCH, "restore", c->checkpoint,
                                 "none of its weights fits the trainer's by name, shape and dtype, "
                                 "nothing was touched: give --init-from a checkpoint of a like "
                                 "model, or leave it out; the first of %zu: %s",
                                 problems->item_count, first);
        return error_set(
                reterr, CAIRN_ERR_MISMATCH, "restore", c->checkpoint,
                "%zu difference%s between the checkpoint and the trainer, nothing was touched; the "
                "first: %s",
                problems->item_count, problems->item_count == 1 ? "" : "s", first);
}

static int check_overrides(const struct cairn *c, struct cairn_error *reterr) {
        return override_check(c->overrides, c->overrides_asked, c->override_count, &c->registry,
                              &c->stored, reterr);
}

static int read_image(struct cairn *c, struct restoration *x, struct cairn_error *reterr) {
        Cairn__Control__Restore message = CAIRN__CONTROL__RESTORE__INIT;
        Cairn__Control__Envelope e = CAIRN__CONTROL__ENVELOPE__INIT, *reply;
        struct wire_fds fds = WIRE_FDS_INIT;
        uint64_t planned = x->transfer.staging_bytes;
        uint64_t deadline_ns = clock_now(c->clock) + RESTORE_TIMEOUT_NS +
                               planned / RESTORE_BYTES_PER_SEC_MIN * NSEC_PER_SEC;

        message.checkpoint =
                (ProtobufCBinaryData){strlen(c->checkpoint), (uint8_t *) (uintptr_t) c->checkpoint};
        message.range_count = x->transfer.range_count;
        CONTROL_SET(&e, RESTORE, restore, &message);
        TRY(link_call(&c->link, &e, &x->transfer.plan_fd, 1, CONTROL_REPLY(RESTORE_READY),
                      deadline_ns, &reply, &fds, reterr));
        x->read_ns = reply->restore_ready->read_ns;
        link_end_call(&c->link);
        _cleanup_close_ int fd = wire_fds_take(&fds, 0);
        wire_fds_done(&fds);
        if (fd < 0)
                return error_set(reterr, CAIRN_ERR_CORRUPT, "restore", c->checkpoint,
                                 "the agent sent no image");
        uint64_t bytes;
        TRY(wire_memfd_check(fd, F_SEAL_SHRINK, planned, DATA_BYTES_MAX, &bytes, reterr));
        void *staging = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
        if (staging == MAP_FAILED)
                return error_set_errno(reterr, errno, "map restored image", c->checkpoint);
        x->staging = staging;
        x->staging_bytes = bytes;
        (void) madvise(staging, bytes, MADV_DONTFORK);
        return 0;
}

static int restore_from(struct cairn *c, struct restoration *x, struct cairn_error *reterr) {
        struct binding_request request = {
                .start = c->start,
                .run = c->run,
                .rank = c->rank,
                .world = c->world,
                .step = c->checkpoint_step,
                .overrides = c->overrides,
                .override_count = c->override_count,
                .conversions = c->conversions,
                .conversion_count = c->conversion_count,
        };
        struct textbuf *problems = &x->binding.problems;

        TRY(handle_fetch_stored(c, reterr));
        TRY(check_overrides(c, reterr));
        TRY(binding_make(&x->binding, &c->stored, &request, &c->registry, reterr));
        if (problems->item_count)
                return refuse(c, problems, reterr);
        TRY(transfer_plan(&x->transfer, &x->binding, &c->registry, reterr));
        if (x->transfer.range_count) {
                TRY(read_image(c, x, reterr));
                uint64_t begin_ns = clock_now(c->clock);
                TRY(transfer_check(&x->transfer, x->staging, x->staging_bytes, reterr));
                x->apply_ns = clock_now(c->clock) - begin_ns;
        }
        TRY(transfer_check_steps(&x->transfer, &request, problems, reterr));
        if (problems->item_count)
                return refuse(c, problems, reterr);
        /* First values that are still on their way would overwrite what is restored. */
        TRY(stream_join(&c->stream, reterr));
        uint64_t begin_ns = clock_now(c->clock);
        x->transfer.device = c->stream.device;
        x->transfer.clock = c->clock;
        TRY(transfer_apply(&x->transfer, reterr));
        x->apply_ns += clock_now(c->clock) - begin_ns;
        return 0;
}

static void tell_done(struct cairn *c, int status) {
        Cairn__Control__RestoreDone message = CAIRN__CONTROL__RESTORE_DONE__INIT;
        Cairn__Control__Envelope e = CAIRN__CONTROL__ENVELOPE__INIT;
        message.status = status;
        CONTROL_SET(&e, RESTORE_DONE, restore_done, &message);
        link_tell(&c->link, &e);
}

static void make_report(struct cairn *c, const struct restoration *x, int64_t step,
                        struct cairn_report *ret) {
        bool restored = !c->passive && c->start != CAIRN_START_FRESH;
        struct report_facts f = {
                .start = c->start,
                .passive = c->passive,
                .run = c->run,
                .checkpoint = c->checkpoint,
                .step = step,
                .generation = c->generation,
                .restart = c->restart,
                .bytes = x->transfer.bytes,
                .bytes_read = x->transfer.bytes_read,
                .read_ns = x->read_ns,
                .apply_ns = x->apply_ns,
                .rank = c->rank,
                .world = c->world,
                .world_stored = restored ? c->stored.index.head->world : 0,
                .overrides = c->overrides,
                .override_count = c->override_count,
                .binding = restored ? &x->binding : NULL,
        };
        report_text(&c->report_text, &f);
        report_json(&c->report_json, &f);
        if (!ret)
                return;
        *ret = (struct cairn_report){
                .size = ret->size,
                .start = c->start,
                .step = step,
                .tensors_loaded = x->binding.load_count,
                .tensors_skipped = x->binding.skipped.item_count,
                .tensors_converted = x->binding.converted_count,
                .bytes = f.bytes,
                .read_ns = f.read_ns,
                .apply_ns = f.apply_ns,
                .bit_exact_possible = report_bit_exact(&f),
                .text = textbuf_string(&c->report_text),
                .json = textbuf_string(&c->report_json),
                .bytes_read = f.bytes_read,
        };
}

/* STABLE on the device too, before the first step is taken on it. */
static int publish(struct cairn *c, int64_t step, struct cairn_error *reterr) {
        int r = handle_publish(c, step, reterr);
        if (r == 0 && c->stream.device &&
            !stream_await(&c->stream, clock_now(c->clock) + STREAM_WAIT_NS))
                r = stream_failure(&c->stream, reterr);
        if (r < 0)
                c->stage = HANDLE_SEALED;
        return r;
}

static int restore(struct cairn *c, struct cairn_report *ret, struct cairn_error *reterr) {
        struct restoration x = {.transfer = {.plan_fd = -1}};
        int64_t step = 0;
        TRY(handle_check(c, "restore", reterr));
        if (c->stage != HANDLE_SEALED)
                return handle_wrong_stage(c, "restore", reterr);
        if (ret && ret->size < sizeof *ret)
                return error_set(reterr, CAIRN_ERR_API, "restore", c->run,
                                 "the report's size is not set");
        int r = 0;
        if (!c->passive && c->start != CAIRN_START_FRESH) {
                r = restore_from(c, &x, reterr);
                tell_done(c, r);
                if (r == 0 && c->start == CAIRN_START_RESUME)
                        step = c->checkpoint_step;
        } else if (!c->passive)
                r = check_overrides(c, reterr);
        if (r == 0)
                r = publish(c, step, reterr);
        if (r == 0) {
                make_report(c, &x, step, ret);
                stored_done(&c->stored); /* a hundred thousand records are worth giving back */
        }
        restoration_done(&x);
        return r;
}

int cairn_restore(struct cairn *c, struct cairn_report *ret) {
        struct cairn_error e = CAIRN_ERROR_INIT;
        return c ? handle_end(c, restore(c, ret, &e), &e) : CAIRN_ERR_API;
}
