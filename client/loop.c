/* SPDX-License-Identifier: Apache-2.0
 *
 * The two calls of every step. Without a copy under way they are a few hundred nanoseconds: no
 * system call, no allocation, the host values copied once into the slot.
 */
#include "client/handle.h"
#include <inttypes.h>

/* What the driver keeps ends the session's cuts; the rest is update_end's to tell. */
static int check_device(struct cairn *c, const char *operation, struct cairn_error *reterr) {
        int r = stream_check(&c->stream, reterr);
        if (r == CAIRN_ERR_FATAL)
                return handle_poison(c, operation, "the cut word was changed by somebody else",
                                     reterr);
        return r;
}

static int update_begin(struct cairn *c, struct cairn_error *reterr) {
        static const char operation[] = "begin update";
        bool expired;
        TRY(handle_check(c, operation, reterr));
        if (c->stage != HANDLE_STABLE)
                return handle_wrong_stage(c, operation, reterr);
        /* Where the end before is no cut the word is still UPDATING. */
        bool stable =
                !c->stream.device || stream_await(&c->stream, clock_now(c->clock) + STREAM_WAIT_NS);
        if (c->stream.device)
                TRY(check_device(c, operation, reterr));
        if (c->debug_mutation && stable)
                TRY(handle_digest_compare(c, reterr));
        if (!c->passive && stable && cut_update_begin(c->page, &c->gate, c->clock, &expired) < 0)
                return handle_poison(c, operation, "the cut word is not where this session left it",
                                     reterr);
        c->stage = HANDLE_UPDATING;
        return 0;
}

/* Host values and a due snapshot, of whatever device. */
static void publish_values(struct cairn *c, int64_t step) {
        bool updating;
        host_state_publish(c->inventory.host, cut_read(c->page).seq + 1, step, c->payload);
        /* Before the swap, so that the next gate already finds the request unanswered. */
        if (c->stage == HANDLE_UPDATING && c->every_steps > 0 &&
            (uint64_t) step % c->every_steps == 0)
                (void) cut_request(c->page, &updating);
}

/* The helper thread, or the next gate, swaps the word when the device has come there. */
static int publish_queued(struct cairn *c, int64_t step, struct cairn_error *reterr) {
        int r = stream_end(&c->stream, &c->registry, step, c->seal_number, reterr);
        c->step = step;
        c->stage = HANDLE_STABLE;
        if (r < 0)
                return r;
        if (!c->passive)
                pusher_wake(&c->pusher);
        if (c->debug_mutation && stream_await(&c->stream, clock_now(c->clock) + STREAM_WAIT_NS))
                TRY(handle_digest_take(c, reterr));
        return stream_failure(&c->stream, reterr);
}

int handle_publish(struct cairn *c, int64_t step, struct cairn_error *reterr) {
        uint64_t seq = 0;
        bool ring = false;
        if (!c->passive)
                TRY(inventory_pack_values(&c->registry, c->value_count, c->payload, reterr));
        if (c->stream.device) {
                if (!c->passive)
                        publish_values(c, step);
                return publish_queued(c, step, reterr);
        }
        registry_write_steps(&c->registry);
        registry_write_shadows(&c->registry);
        TRY(handle_digest_take(c, reterr));
        if (c->passive) {
                c->step = step;
                c->stage = HANDLE_STABLE;
                return 0;
        }
        publish_values(c, step);
        if (cut_update_end(c->page, step, c->seal_number, &seq, &ring) < 0)
                return handle_poison(c, "end update", "the cut word was changed by somebody else",
                                     reterr);
        c->step = step;
        c->stage = HANDLE_STABLE;
        if (ring)
                handle_ring(c);
        return 0;
}

static int update_end(struct cairn *c, int64_t step, struct cairn_error *reterr) {
        static const char operation[] = "end update";
        TRY(handle_check(c, operation, reterr));
        if (c->stage != HANDLE_UPDATING) {
                /* It has not begun, for this. */
                if (c->stage == HANDLE_STABLE && c->stream.device)
                        TRY(check_device(c, operation, reterr));
                return handle_wrong_stage(c, operation, reterr);
        }
        if (step <= c->step || step > STEP_MAX)
                return error_set(reterr, CAIRN_ERR_API, operation, c->run,
                                 "step %" PRId64 " does not follow step %" PRId64, step, c->step);
        if (c->registry.unsealed)
                return error_set(reterr, CAIRN_ERR_API, operation, c->run,
                                 "something was registered in this update: call cairn_seal first");
        return handle_publish(c, step, reterr);
}

int cairn_update_begin(struct cairn *c) {
        struct cairn_error e;
        if (!c)
                return CAIRN_ERR_API;
        e.status = 0;
        int r = update_begin(c, &e);
        return r < 0 ? handle_end(c, r, &e) : 0;
}

int cairn_update_end(struct cairn *c, int64_t step) {
        struct cairn_error e;
        if (!c)
                return CAIRN_ERR_API;
        e.status = 0;
        int r = update_end(c, step, &e);
        return r < 0 ? handle_end(c, r, &e) : 0;
}

int cairn_set_stream(struct cairn *c, void *stream) {
        static const char operation[] = "set stream";
        struct cairn_error e = CAIRN_ERROR_INIT;
        if (!c)
                return CAIRN_ERR_API;
        int r = handle_check(c, operation, &e);
        if (r == 0 && !c->stream.device)
                r = error_set(&e, CAIRN_ERR_API, operation, c->run,
                              "this is a session of the host, which has no streams");
        if (r == 0)
                stream_set(&c->stream, stream);
        return handle_end(c, r, &e);
}

bool cairn_should_stop(struct cairn *c) {
        if (!c || !c->page || (c->fork_guard && *c->fork_guard == 0))
                return false;
        return (atomic_load_explicit(&c->page->wishes, memory_order_acquire) & CUT_WISH_STOP) != 0;
}
