/* SPDX-License-Identifier: Apache-2.0
 *
 * cut.h - the control page of a session and the cut word: who may change the trainer's state, who
 * may copy it, and which of them won (docs/PROTOCOL.md; model: tests/model).
 *
 * The page is a sealed memfd made by the agent, mapped by the trainer (libcairn), the saver and
 * cairnd. It lives as long as the session and survives each of them. All fields that change are C11
 * atomics on a cache line each; only the verbs below change them. Memory that a peer maps is never
 * trusted: the verbs take and return values, and a value outside its range is CAIRN_ERR_CORRUPT for
 * its reader.
 *
 * The word:  bit 63                24 23              2 1     0
 *                | seq:40            | attempt:22      | phase |
 * Its low 32 bits (phase, attempt, 8 bits of seq) are the futex that the gate sleeps on.
 *
 *   who            transition (compare-and-swap, acq_rel)          verb
 *   trainer        STABLE   -> UPDATING                            cut_update_begin
 *   trainer side   UPDATING -> STABLE, seq + 1                     cut_update_end
 *   copier         STABLE   -> COPYING, attempt + 1                cut_copy_begin
 *   copier         COPYING  -> STABLE   (valid if it succeeds)     cut_copy_end
 *   trainer        COPYING  -> UPDATING (gate's deadline expired)  cut_update_begin
 *   cairnd         COPYING  -> STABLE   (copier dead, abandoned)   cut_copy_revoke
 *
 * seq grows by one with every update and every restore and never goes back. The page starts at (seq
 * 0, attempt 0, UPDATING); the end of the restore, or of deciding that there is none, is the first
 * cut_update_end. `wanted_seq` only grows; `answered_seq` is stored by the copier when it claims or
 * declines. The gate waits, within its deadline, while phase is COPYING or answered_seq <
 * wanted_seq <= seq.
 *
 * A stale copier's word differs from the present one in seq, attempt or phase unless exactly 2^22
 * claims passed at one seq: cairnd never starts a saver for a session after CUT_CLAIMS_PER_SEQ_MAX
 * of them at one seq (it declines until seq moves).
 *
 * Threads: every verb may be called from any thread or process; per session one trainer side, one
 * copier at a time, one cairnd.
 */
#ifndef CAIRN_CUT_H
#define CAIRN_CUT_H

#include "base/clock.h"
#include "base/limits.h"
#include "base/status.h"
#include <stdatomic.h>
#include <stdbool.h>

#define CONTROL_PAGE_MAGIC "CAIRNPG1"
#define CONTROL_PAGE_VERSION 1
#define CONTROL_PAGE_BYTES 16384
#define CUT_OUTCOME_COUNT 32
#define CUT_LEDGER_COUNT 4
#define CUT_CLAIMS_PER_SEQ_MAX (1u << 20)

enum cut_phase { CUT_STABLE = 0, CUT_UPDATING = 1, CUT_COPYING = 2 };

struct cut_word {
        uint64_t seq;     /* < 2^40 */
        uint32_t attempt; /* < 2^22, wraps */
        enum cut_phase phase;
};

/* What became of the cut at one seq; stored as seq:40 | outcome:4 | attempt:12 | -status:8 in one
 * atomic. A later stage replaces an earlier one at the same seq. */
enum cut_outcome {
        CUT_NONE = 0,
        CUT_CLAIMED = 1,   /* being copied, or copied and being written */
        CUT_DECLINED = 2,  /* not taken: status says why (BUSY, STALE seal ...) */
        CUT_VOID = 3,      /* the copy was given up: gate, revocation, inventory */
        CUT_COMMITTED = 4, /* durable, reported */
        CUT_FAILED = 5,    /* copied, but not committed: status says why */
};

/* Agent -> trainer wishes (bits of control_page.wishes). */
enum {
        CUT_WISH_STOP = 1u << 0,    /* end at the next boundary, after a last snapshot */
        CUT_WISH_DETACHED = 1u << 1 /* the agent is shutting down */
};

/* One staging buffer as its owner last wrote it; the state is written before each change
 * (re-attachment). */
enum staging_state {
        STAGING_FREE = 0,
        STAGING_COPYING = 1,
        STAGING_HELD = 2,
        STAGING_WRITING = 3,
        STAGING_RESTORE = 4,
        STAGING_ABANDONED = 5
};
struct cut_ledger_row {
        _Alignas(64) _Atomic uint64_t state_attempt; /* state:8 | attempt:22 << 8 */
        _Atomic uint64_t seq;
        _Atomic int64_t step;
        char pending_name[40];
};

#define CUT_LINE _Alignas(64)
struct control_page {
        /* written once, before the page is shared */
        CUT_LINE char magic[8];
        uint32_t version;
        uint32_t page_bytes;
        uint64_t session_id;
        uint64_t feature_compat, feature_incompat;
        /* the protocol */
        CUT_LINE _Atomic uint64_t word;
        CUT_LINE _Atomic uint64_t wanted_seq;
        CUT_LINE _Atomic uint64_t answered_seq;
        CUT_LINE _Atomic uint64_t progress; /* grows with each chunk that the copier copied */
        /* the gate sleeps on the word: whoever releases it must wake */
        CUT_LINE _Atomic uint32_t gate_waiting;
        /* published with STABLE: inventory that the state follows */
        CUT_LINE _Atomic uint64_t seal_number;
        CUT_LINE _Atomic uint32_t wishes; /* cairnd: CUT_WISH_* */
        /* what happened, for tickets, status and metrics */
        CUT_LINE _Atomic int64_t last_step;      /* step of the newest STABLE state */
        CUT_LINE _Atomic uint64_t committed_seq; /* newest committed */
        _Atomic int64_t committed_step;
        _Atomic uint32_t outcome_futex; /* grows with each outcome; waiters sleep on it */
        CUT_LINE _Atomic uint64_t gate_expired_count;
        _Atomic uint64_t gate_stall_ns; /* summed time that update_begin was held */
        _Atomic uint64_t void_count;
        CUT_LINE _Atomic uint64_t outcomes[CUT_OUTCOME_COUNT]; /* slot seq % count */
        struct cut_ledger_row ledger[CUT_LEDGER_COUNT];
};
static_assert(sizeof(struct control_page) <= CONTROL_PAGE_BYTES, "the page holds every field");

struct cut_word cut_word_unpack(uint64_t packed);
uint64_t cut_word_pack(struct cut_word w);
struct cut_word cut_read(const struct control_page *page);

/* Fill a zeroed mapping (cairnd, once). */
void control_page_init(struct control_page *page, uint64_t session_id);
/* Check magic, version, size and features of a received mapping of `bytes`. */
int control_page_check(const struct control_page *page, uint64_t bytes, struct cairn_error *reterr);

/* ---- trainer side ---- */
struct cut_gate {
        uint64_t deadline_duration_ns; /* fixed at seal, >= GATE_DEADLINE_NS_MIN */
        bool detached;                 /* an expired gate detaches until `progress` moves */
        uint64_t progress_seen;
};
/* The gate: returns 0 with phase UPDATING, whatever the copier does, at the latest after the gate's
 * deadline. *ret_expired says whether a copy was revoked. CAIRN_ERR_API if the phase is UPDATING
 * already. */
int cut_update_begin(struct control_page *page, struct cut_gate *gate,
                     const struct clock_ops *clock, bool *ret_expired);
/* UPDATING -> STABLE with seq + 1; call after the host state of seq + 1 is published
 * (host_state.h). Stores last_step and seal_number before the swap. *ret_seq is the new seq;
 * *ret_ring: the copier has an unanswered request, ring its eventfd. */
int cut_update_end(struct control_page *page, int64_t step, uint64_t seal_number, uint64_t *ret_seq,
                   bool *ret_ring);

/* ---- requests (trainer or cairnd) ---- */
/* wanted_seq = max(wanted_seq, seq, or seq + 1 during an update); returns the seq that was asked
 * for. The caller rings the copier's eventfd unless *ret_updating; the phase is read after
 * wanted_seq was raised, so that either it or update_end sees the other. */
uint64_t cut_request(struct control_page *page, bool *ret_updating);
/* The present state is not what is wanted, the next one may be: the end of the next update rings.
 */
void cut_request_next(struct control_page *page);
/* The copier: nobody wants it any more, should it still be the next one. */
void cut_forget_next(struct control_page *page);
/* First outcome at or after `seq`: *ret_seq, status. CUT_NONE if there is none yet. */
enum cut_outcome cut_outcome_find(const struct control_page *page, uint64_t seq, uint64_t *ret_seq,
                                  int *ret_status);
void cut_outcome_set(struct control_page *page, uint64_t seq, enum cut_outcome outcome, int status);
/* cairnd: the cut is durable: committed_step, committed_seq and the outcome COMMITTED, which
 * nothing replaces. */
void cut_committed(struct control_page *page, uint64_t seq, int64_t step);
/* cairnd: copies at `first` or later of which nobody will tell any more: FAILED, PEER. Returns how
 * many. */
unsigned cut_claims_lost(struct control_page *page, uint64_t first);
/* Sleep until an outcome is stored after `outcome_futex` had `seen`, or the deadline; TIMEOUT or
 * 0. */
int cut_outcome_wait(struct control_page *page, uint32_t seen, uint64_t deadline_ns,
                     const struct clock_ops *clock);

/* ---- copier ---- */
/* STABLE -> COPYING for an unanswered request (wanted_seq > answered_seq), or for `demanded`
 * whatever was answered before; then answers it. 0: claimed, *ret is the word now held. BUSY:
 * nothing wanted yet, or UPDATING (update_end will ring when wanted_seq > answered_seq, so a demand
 * also raises wanted_seq). */
int cut_copy_begin(struct control_page *page, bool demanded, struct cut_word *ret);
/* Answer without copying: stores answered_seq and the outcome DECLINED with `status` (unless the
 * cut at that seq is being written already). Changes the attempt, so that a gate which is about to
 * sleep looks again. */
void cut_decline(struct control_page *page, int status);
/* Before each chunk: false once the word is no longer `mine`. Counts progress. */
bool cut_copy_continue(struct control_page *page, struct cut_word mine);
/* After the last byte: 0 = the snapshot is valid; STALE = it is void (revoked by gate or cairnd).
 * Wakes the gate. */
int cut_copy_end(struct control_page *page, struct cut_word mine);
/* Give up one's own copy (an error of ours): COPYING -> STABLE without validity. */
void cut_copy_abandon(struct control_page *page, struct cut_word mine);

/* ---- cairnd ---- */
/* The copier is dead or abandoned: COPYING -> STABLE if the word still is COPYING. Returns whether
 * it was. In STABLE the attempt grows, so that a claim which the old copier was about to make fails
 * (the fence in tests/model). */
bool cut_copy_revoke(struct control_page *page);

/* ---- ledger: one writer at a time, the owner of the buffer ---- */
void cut_ledger_write(struct cut_ledger_row *row, enum staging_state state, struct cut_word word,
                      int64_t step, const char *pending_name);

const char *cut_phase_name(enum cut_phase phase);
const char *cut_outcome_name(enum cut_outcome outcome);

#endif
