/* SPDX-License-Identifier: Apache-2.0
 *
 * Snapshots on request, and the end of a run. A ticket is the seq that was asked for; what became
 * of it stands in the control page, so that polling needs no message.
 */
#include "client/handle.h"
#include <inttypes.h>
#include <string.h>

#define FINISH_TIMEOUT_NS (120 * NSEC_PER_SEC)
/* How often a wait looks by itself, were a wake to be lost with an agent. */
#define WAIT_SLICE_NS (100 * NSEC_PER_MSEC)
#define REASON_BYTES_MAX 1024

static int check_live(struct cairn *c, const char *operation, struct cairn_error *reterr) {
        TRY(handle_check(c, operation, reterr));
        if (c->passive)
                return error_set(reterr, CAIRN_ERR_UNREACHABLE, operation, "",
                                 "this session was opened without checkpoints");
        return 0;
}

/* Of nobody's request: it would be under way for ever. */
static int check_ticket(struct cairn *c, cairn_ticket ticket, const char *operation,
                        struct cairn_error *reterr) {
        TRY(check_live(c, operation, reterr));
        if (ticket > 0 && ticket <= cut_read(c->page).seq + 1)
                return 0;
        return error_set(reterr, CAIRN_ERR_API, operation, c->run,
                         "%" PRIu64 " is no ticket that cairn_snapshot has given", ticket);
}

int cairn_snapshot(struct cairn *c, cairn_ticket *ret) {
        struct cairn_error e = CAIRN_ERROR_INIT;
        bool updating;
        if (!c)
                return CAIRN_ERR_API;
        int r = check_live(c, "ask for a snapshot", &e);
        if (r < 0)
                return handle_end(c, r, &e);
        uint64_t ticket = cut_request(c->page, &updating);
        if (!updating)
                handle_ring(c);
        if (ret)
                *ret = ticket;
        return 0;
}

/* The ticket's fate; *ret_retry: it is none of storage, and passes. */
static int look(struct cairn *c, cairn_ticket ticket, int64_t *ret_step, bool *ret_retry,
                struct cairn_error *reterr) {
        static const char operation[] = "snapshot";
        uint64_t seq = 0;
        int status = 0;
        *ret_retry = false;
        /* The step is read after the seq, so it is that one's or a later one's. */
        if (atomic_load(&c->page->committed_seq) >= ticket) {
                if (ret_step)
                        *ret_step = atomic_load(&c->page->committed_step);
                return 0;
        }
        switch (cut_outcome_find(c->page, ticket, &seq, &status)) {
        case CUT_NONE:
        case CUT_CLAIMED:
        case CUT_COMMITTED: /* its step follows */
                return error_set(reterr, CAIRN_ERR_BUSY, operation, c->run, "it is under way");
        case CUT_DECLINED:
                *ret_retry = status == CAIRN_ERR_BUSY || status == CAIRN_ERR_STALE;
                return error_set(reterr, status < 0 ? status : CAIRN_ERR_BUSY, operation, c->run,
                                 "the agent declined it: %s",
                                 status == CAIRN_ERR_BUSY    ? "it is still writing an earlier one"
                                 : status == CAIRN_ERR_STALE ? "it lacks the newest inventory"
                                                             : status_name(status));
        case CUT_VOID:
                *ret_retry = cut_read(c->page).seq == seq; /* its copier died, nobody went on */
                return error_set(reterr, CAIRN_ERR_VOID, operation, c->run,
                                 "it was given up, since training was not to wait");
        default:
                *ret_retry = status == CAIRN_ERR_PEER; /* who wrote it died, storage did not fail */
                return error_set(reterr, status < 0 ? status : CAIRN_ERR_IO, operation, c->run,
                                 "it was taken, but not committed: %s", status_name(status));
        }
}

int cairn_snapshot_poll(struct cairn *c, cairn_ticket ticket, int64_t *ret_step) {
        struct cairn_error e = CAIRN_ERROR_INIT;
        bool retry;
        if (!c)
                return CAIRN_ERR_API;
        int r = check_ticket(c, ticket, "poll snapshot", &e);
        if (r == 0)
                r = look(c, ticket, ret_step, &retry, &e);
        return handle_end(c, r, &e);
}

/* The page remembers that this very seq was answered, and the trainer may not move on while it
 * waits here: the agent takes a cut of an answered seq on demand only. */
static int demand(struct cairn *c, uint64_t deadline_ns, struct cairn_error *reterr) {
        Cairn__Control__SnapshotRequest request = CAIRN__CONTROL__SNAPSHOT_REQUEST__INIT;
        Cairn__Control__Envelope e = CAIRN__CONTROL__ENVELOPE__INIT;
        uint64_t now_ns = clock_now(c->clock);
        request.run = (ProtobufCBinaryData){strlen(c->run), (uint8_t *) c->run};
        request.wait = 1;
        request.timeout_ns = deadline_ns > now_ns ? deadline_ns - now_ns : 0;
        CONTROL_SET(&e, SNAPSHOT_REQUEST, snapshot_request, &request);
        TRY(link_call(&c->link, &e, NULL, 0, CONTROL_REPLY(SNAPSHOT_REPLY), deadline_ns, NULL, NULL,
                      reterr));
        link_end_call(&c->link);
        return 0;
}

/* Where the trainer moved on, a newer cut does, and what becomes of that one counts from now on. */
static int ask_again(struct cairn *c, cairn_ticket *ticket, uint64_t deadline_ns,
                     struct cairn_error *reterr) {
        bool updating;
        if (cut_read(c->page).seq > *ticket) {
                *ticket = cut_request(c->page, &updating);
                if (!updating)
                        handle_ring(c);
                return 0;
        }
        struct cairn_error e = CAIRN_ERROR_INIT;
        int r = demand(c, deadline_ns, &e);
        if (r == 0 || r == CAIRN_ERR_BUSY || r == CAIRN_ERR_PEER)
                return 0;
        if (reterr)
                *reterr = e;
        return r;
}

/* What the driver keeps lets no state become a cut, nor be copied. */
static int check_coming(struct cairn *c, cairn_ticket ticket, bool retry,
                        struct cairn_error *reterr) {
        if (!c->stream.device || (!retry && cut_read(c->page).seq >= ticket))
                return 0;
        return stream_check(&c->stream, reterr);
}

static int snapshot_wait(struct cairn *c, cairn_ticket ticket, uint64_t timeout_ns,
                         int64_t *ret_step, struct cairn_error *reterr) {
        TRY(check_ticket(c, ticket, "wait for snapshot", reterr));
        uint64_t now_ns = clock_now(c->clock);
        uint64_t deadline_ns = timeout_ns > UINT64_MAX - now_ns ? UINT64_MAX : now_ns + timeout_ns;
        for (;;) {
                uint32_t seen = atomic_load(&c->page->outcome_futex);
                bool retry;
                int r = look(c, ticket, ret_step, &retry, reterr);
                if (r != CAIRN_ERR_BUSY && !retry)
                        return r;
                TRY(check_coming(c, ticket, retry, reterr));
                now_ns = clock_now(c->clock);
                if (now_ns >= deadline_ns)
                        return error_set(reterr, CAIRN_ERR_TIMEOUT, "wait for snapshot", c->run,
                                         "it was not committed within %" PRIu64 " ms",
                                         timeout_ns / NSEC_PER_MSEC);
                if (retry)
                        TRY(ask_again(c, &ticket, deadline_ns, reterr));
                uint64_t slice_ns = deadline_ns - now_ns;
                if (slice_ns > WAIT_SLICE_NS)
                        slice_ns = WAIT_SLICE_NS;
                (void) cut_outcome_wait(c->page, seen, now_ns + slice_ns, c->clock);
                TRY(link_check(&c->link, reterr));
        }
}

int cairn_snapshot_wait(struct cairn *c, cairn_ticket ticket, uint64_t timeout_ns,
                        int64_t *ret_step) {
        struct cairn_error e = CAIRN_ERROR_INIT;
        return c ? handle_end(c, snapshot_wait(c, ticket, timeout_ns, ret_step, &e), &e)
                 : CAIRN_ERR_API;
}

static int finish(struct cairn *c, const char *reason, struct cairn_error *reterr) {
        Cairn__Control__Finish message = CAIRN__CONTROL__FINISH__INIT;
        Cairn__Control__Envelope e = CAIRN__CONTROL__ENVELOPE__INIT;
        TRY(handle_check(c, "finish", reterr));
        if (!reason || !*reason || strnlen(reason, REASON_BYTES_MAX + 1) > REASON_BYTES_MAX)
                return error_set(reterr, CAIRN_ERR_API, "finish", c->run,
                                 "the reason has between 1 and %d bytes", REASON_BYTES_MAX);
        if (c->stage != HANDLE_STABLE)
                return handle_wrong_stage(c, "finish", reterr);
        if (c->passive)
                return 0;
        /* The last update is part of the run. */
        if (c->stream.device)
                (void) stream_await(&c->stream, clock_now(c->clock) + STREAM_WAIT_NS);
        message.reason = (ProtobufCBinaryData){strlen(reason), (uint8_t *) (uintptr_t) reason};
        message.step = c->step;
        CONTROL_SET(&e, FINISH, finish, &message);
        TRY(link_call(&c->link, &e, NULL, 0, CONTROL_REPLY(DONE),
                      clock_now(c->clock) + FINISH_TIMEOUT_NS, NULL, NULL, reterr));
        link_end_call(&c->link);
        return 0;
}

int cairn_finish(struct cairn *c, const char *reason) {
        struct cairn_error e = CAIRN_ERROR_INIT;
        return c ? handle_end(c, finish(c, reason, &e), &e) : CAIRN_ERR_API;
}
