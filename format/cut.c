/* SPDX-License-Identifier: Apache-2.0 */
#include "format/cut.h"
#include "base/bytes.h"

#include <errno.h>
#include <linux/futex.h>
#include <sys/syscall.h>

/* Every access to the page that another side may race with goes through these, so that
 * tests/unit/test_cut_interleave.c can make each of them a point where another side runs. The swaps
 * are sequentially consistent because of three store-then-load pairs, which acquire and release
 * leave open: update_end swaps the word, then loads wanted_seq, while cut_request raises
 * wanted_seq, then loads the word; the gate stores gate_waiting, then the kernel loads the word,
 * while a copier swaps the word, then loads gate_waiting; and the gate loads answered_seq after
 * gate_waiting, while a decline does the reverse. */
#ifndef CUT_LOAD
#define CUT_LOAD(object) atomic_load_explicit(object, memory_order_seq_cst)
#define CUT_STORE(object, value) atomic_store_explicit(object, value, memory_order_seq_cst)
#define CUT_SWAP(object, expected, desired)                                                      \
        atomic_compare_exchange_strong_explicit(object, expected, desired, memory_order_seq_cst, \
                                                memory_order_seq_cst)
#define CUT_COUNT(object, value) atomic_fetch_add_explicit(object, value, memory_order_relaxed)
#define CUT_FUTEX_WAIT(address, expected, timeout_ns) futex_wait(address, expected, timeout_ns)
#define CUT_FUTEX_WAKE(address) futex_wake(address)
#endif

#define SEQ_BITS 40
#define ATTEMPT_BITS 22
#define PHASE_BITS 2
#define SEQ_MAX ((UINT64_C(1) << SEQ_BITS) - 1)
#define ATTEMPT_MASK ((UINT32_C(1) << ATTEMPT_BITS) - 1)
#define PHASE_MASK ((1u << PHASE_BITS) - 1)

/* Each claim, decline and fence gets a new attempt, so that a word that was read before differs. */
#ifndef CUT_NEXT_ATTEMPT
#define CUT_NEXT_ATTEMPT(attempt) (((attempt) + 1) & ATTEMPT_MASK)
#endif

/* Nobody who follows the protocol can make a swap fail that often; a peer that scribbles could for
 * ever. */
enum { SWAP_TRIES_MAX = 4096 };

static_assert(SEQ_BITS + ATTEMPT_BITS + PHASE_BITS == 64, "the word is one atomic");
static_assert(ATOMIC_LLONG_LOCK_FREE == 2, "locks do not work across processes");
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the futex is the first half of the word");
static_assert(CUT_CLAIMS_PER_SEQ_MAX <= ATTEMPT_MASK / 2, "a stale attempt is never met again");

static const char *const phase_names[] = {"stable", "updating", "copying"};
static const char *const outcome_names[] = {"none", "claimed",   "declined",
                                            "void", "committed", "failed"};

const char *cut_phase_name(enum cut_phase phase) {
        return (unsigned) phase <= CUT_COPYING ? phase_names[phase] : "unknown";
}

const char *cut_outcome_name(enum cut_outcome outcome) {
        return (unsigned) outcome <= CUT_FAILED ? outcome_names[outcome] : "unknown";
}

/* ---- futex: never private, the other sleeper is another process ---- */

__attribute__((unused)) static void futex_wait(uint32_t *address, uint32_t expected,
                                               uint64_t timeout_ns) {
        struct timespec timeout = {
                .tv_sec = (time_t) (timeout_ns / NSEC_PER_SEC),
                .tv_nsec = (long) (timeout_ns % NSEC_PER_SEC),
        };
        /* Every outcome means the same to the caller: look again. */
        (void) syscall(SYS_futex, address, FUTEX_WAIT, expected, &timeout, NULL, 0);
}

__attribute__((unused)) static void futex_wake(uint32_t *address) {
        (void) syscall(SYS_futex, address, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

static uint32_t *word_futex(struct control_page *page) {
        return (uint32_t *) (void *) &page->word;
}

static void wake_gate(struct control_page *page) {
        if (CUT_LOAD(&page->gate_waiting))
                CUT_FUTEX_WAKE(word_futex(page));
}

/* ---- the word ---- */

struct cut_word cut_word_unpack(uint64_t packed) {
        return (struct cut_word){
                .seq = packed >> (ATTEMPT_BITS + PHASE_BITS),
                .attempt = (uint32_t) (packed >> PHASE_BITS) & ATTEMPT_MASK,
                .phase = (enum cut_phase)(packed & PHASE_MASK),
        };
}

uint64_t cut_word_pack(struct cut_word w) {
        return (w.seq & SEQ_MAX) << (ATTEMPT_BITS + PHASE_BITS) |
               (uint64_t) (w.attempt & ATTEMPT_MASK) << PHASE_BITS |
               ((uint64_t) w.phase & PHASE_MASK);
}

struct cut_word cut_read(const struct control_page *page) {
        return cut_word_unpack(CUT_LOAD(&page->word));
}

/* One swap from a word that was read before; false if somebody else changed it since. */
static bool swap_word(struct control_page *page, struct cut_word from, struct cut_word to) {
        uint64_t expected = cut_word_pack(from);

        return CUT_SWAP(&page->word, &expected, cut_word_pack(to));
}

/* Bounded: every failed swap means that the value grew, and a value that grows past `value` ends
 * the loop. A peer that makes it shrink again only loses its own request. */
static void raise_to(_Atomic uint64_t *object, uint64_t value) {
        uint64_t present = CUT_LOAD(object);

        for (int i = 0; i < SWAP_TRIES_MAX && present < value; i++)
                if (CUT_SWAP(object, &present, value))
                        return;
}

/* ---- the page ---- */

void control_page_init(struct control_page *page, uint64_t session_id) {
        memcpy(page->magic, CONTROL_PAGE_MAGIC, sizeof page->magic);
        page->version = CONTROL_PAGE_VERSION;
        page->page_bytes = CONTROL_PAGE_BYTES;
        page->session_id = session_id;
        atomic_init(&page->last_step, -1);
        atomic_init(&page->committed_step, -1);
        CUT_STORE(&page->word, cut_word_pack((struct cut_word){.phase = CUT_UPDATING}));
}

int control_page_check(const struct control_page *page, uint64_t bytes,
                       struct cairn_error *reterr) {
        const char *operation = "check control page";

        if (bytes < CONTROL_PAGE_BYTES)
                return error_set(reterr, CAIRN_ERR_CORRUPT, operation, "",
                                 "%llu bytes, but a page has %d", (unsigned long long) bytes,
                                 CONTROL_PAGE_BYTES);
        if (memcmp(page->magic, CONTROL_PAGE_MAGIC, sizeof page->magic) != 0)
                return error_set(reterr, CAIRN_ERR_CORRUPT, operation, "",
                                 "this is not a control page");
        if (page->version != CONTROL_PAGE_VERSION || page->feature_incompat != 0)
                return error_set(reterr, CAIRN_ERR_UNSUPPORTED, operation, "",
                                 "page version %u with features %#llx; this program knows version "
                                 "%d: use the same release of agent and libcairn",
                                 page->version, (unsigned long long) page->feature_incompat,
                                 CONTROL_PAGE_VERSION);
        if (page->page_bytes != CONTROL_PAGE_BYTES)
                return error_set(reterr, CAIRN_ERR_CORRUPT, operation, "",
                                 "the page says that it has %u bytes", page->page_bytes);
        return 0;
}

/* ---- outcomes ---- */

/* The attempt tells two voids of one seq apart: otherwise a copier that was slow to note its claim
 * could take the void of that claim for the one it saw before. */
static uint64_t outcome_pack(struct cut_word word, enum cut_outcome outcome, int status) {
        uint32_t code = status < 0 && status > -0x100 ? (uint32_t) -status : 0;

        return (word.seq & SEQ_MAX) << 24 | ((uint64_t) outcome & 0xf) << 20 |
               ((uint64_t) word.attempt & 0xfff) << 8 | code;
}

static uint64_t outcome_seq(uint64_t packed) {
        return packed >> 24;
}

static enum cut_outcome outcome_kind(uint64_t packed) {
        return (enum cut_outcome)(packed >> 20 & 0xf);
}

static _Atomic uint64_t *outcome_slot(struct control_page *page, uint64_t seq) {
        return &page->outcomes[seq % CUT_OUTCOME_COUNT];
}

static void outcome_announce(struct control_page *page) {
        (void) atomic_fetch_add_explicit(&page->outcome_futex, 1, memory_order_seq_cst);
        CUT_FUTEX_WAKE((uint32_t *) (void *) &page->outcome_futex);
}

/* A newer seq in the slot stays, and so does COMMITTED: what is durable remains so, whatever a late
 * side says. */
static bool outcome_may_replace(uint64_t present, uint64_t next) {
        if (outcome_kind(present) == CUT_NONE || outcome_kind(present) > CUT_FAILED)
                return true;
        if (outcome_seq(present) != outcome_seq(next))
                return outcome_seq(present) < outcome_seq(next);
        if (outcome_kind(next) == CUT_DECLINED && outcome_kind(present) == CUT_CLAIMED)
                return false; /* this very cut is under way */
        return outcome_kind(present) != CUT_COMMITTED;
}

static void outcome_store(struct control_page *page, struct cut_word word, enum cut_outcome outcome,
                          int status) {
        _Atomic uint64_t *slot = outcome_slot(page, word.seq);
        uint64_t next = outcome_pack(word, outcome, status);
        uint64_t present = CUT_LOAD(slot);

        for (int i = 0; i < SWAP_TRIES_MAX && outcome_may_replace(present, next); i++)
                if (CUT_SWAP(slot, &present, next))
                        break;
        outcome_announce(page);
}

void cut_outcome_set(struct control_page *page, uint64_t seq, enum cut_outcome outcome,
                     int status) {
        outcome_store(page, (struct cut_word){.seq = seq}, outcome, status);
}

void cut_committed(struct control_page *page, uint64_t seq, int64_t step) {
        CUT_STORE(&page->committed_step, step);
        raise_to(&page->committed_seq, seq);
        cut_outcome_set(page, seq, CUT_COMMITTED, 0);
}

enum cut_outcome cut_outcome_find(const struct control_page *page, uint64_t seq, uint64_t *ret_seq,
                                  int *ret_status) {
        uint64_t best = 0;
        bool found = false;

        for (size_t i = 0; i < CUT_OUTCOME_COUNT; i++) {
                uint64_t packed = CUT_LOAD(&page->outcomes[i]);

                if (outcome_kind(packed) == CUT_NONE || outcome_kind(packed) > CUT_FAILED ||
                    outcome_seq(packed) % CUT_OUTCOME_COUNT != i || outcome_seq(packed) < seq)
                        continue;
                if (!found || outcome_seq(packed) < outcome_seq(best))
                        best = packed;
                found = true;
        }
        if (!found)
                return CUT_NONE;
        *ret_seq = outcome_seq(best);
        *ret_status = -(int) (best & 0xff);
        return outcome_kind(best);
}

unsigned cut_claims_lost(struct control_page *page, uint64_t first) {
        unsigned lost = 0;

        for (size_t i = 0; i < CUT_OUTCOME_COUNT; i++) {
                uint64_t packed = CUT_LOAD(&page->outcomes[i]);

                if (outcome_kind(packed) != CUT_CLAIMED || outcome_seq(packed) < first)
                        continue;
                cut_outcome_set(page, outcome_seq(packed), CUT_FAILED, CAIRN_ERR_PEER);
                lost++;
        }
        return lost;
}

int cut_outcome_wait(struct control_page *page, uint32_t seen, uint64_t deadline_ns,
                     const struct clock_ops *clock) {
        for (;;) {
                if (CUT_LOAD(&page->outcome_futex) != seen)
                        return 0;
                uint64_t now = clock_now(clock);
                if (now >= deadline_ns)
                        return CAIRN_ERR_TIMEOUT;
                CUT_FUTEX_WAIT((uint32_t *) (void *) &page->outcome_futex, seen, deadline_ns - now);
        }
}

/* ---- trainer side ---- */

/* A request that the copier has not answered and that the present state satisfies. */
static bool is_owed(const struct control_page *page, uint64_t seq) {
        uint64_t wanted = CUT_LOAD(&page->wanted_seq);

        return wanted <= seq && CUT_LOAD(&page->answered_seq) < wanted;
}

static bool is_held_back(const struct control_page *page, struct cut_word word) {
        return word.phase == CUT_COPYING || (word.phase == CUT_STABLE && is_owed(page, word.seq));
}

/* How long this passage has waited, and what ended it. */
struct gate_wait {
        uint64_t begin_ns, deadline_ns;
        bool waited, expired;
};

/* One look and, if somebody is copying or about to, one sleep; true if the word may be swapped now.
 */
static bool gate_may_pass(struct control_page *page, struct cut_gate *gate,
                          const struct clock_ops *clock, struct cut_word word,
                          struct gate_wait *wait) {
        if (wait->expired || gate->detached || !is_held_back(page, word))
                return true;
        uint64_t now = clock_now(clock);
        if (!wait->waited) {
                wait->waited = true;
                wait->begin_ns = now;
                if (!add_checked(now, gate->deadline_duration_ns, &wait->deadline_ns))
                        wait->deadline_ns = UINT64_MAX;
        }
        if (now >= wait->deadline_ns) {
                wait->expired = true;
                return true;
        }
        CUT_STORE(&page->gate_waiting, 1);
        /* Whoever answered before it could see gate_waiting has changed the word or is seen here.
         */
        if (is_held_back(page, word))
                CUT_FUTEX_WAIT(word_futex(page), (uint32_t) cut_word_pack(word),
                               wait->deadline_ns - now);
        return false;
}

static void gate_account(struct control_page *page, struct cut_gate *gate,
                         const struct clock_ops *clock, const struct gate_wait *wait) {
        if (wait->waited) {
                CUT_STORE(&page->gate_waiting, 0);
                CUT_COUNT(&page->gate_stall_ns, clock_now(clock) - wait->begin_ns);
        }
        if (wait->expired) {
                CUT_COUNT(&page->gate_expired_count, 1);
                gate->detached = true;
                gate->progress_seen = CUT_LOAD(&page->progress);
        }
}

static void record_void(struct control_page *page, struct cut_word word) {
        CUT_COUNT(&page->void_count, 1);
        outcome_store(page, word, CUT_VOID, CAIRN_ERR_VOID);
}

int cut_update_begin(struct control_page *page, struct cut_gate *gate,
                     const struct clock_ops *clock, bool *ret_expired) {
        struct gate_wait wait = {0};
        int r = CAIRN_ERR_CORRUPT;

        *ret_expired = false;
        if (gate->detached && CUT_LOAD(&page->progress) != gate->progress_seen)
                gate->detached = false;
        for (int tries = 0; tries < SWAP_TRIES_MAX;) {
                struct cut_word word = cut_read(page);

                if (word.phase == CUT_UPDATING) {
                        r = CAIRN_ERR_API;
                        break;
                }
                if (word.phase > CUT_COPYING)
                        break;
                if (!gate_may_pass(page, gate, clock, word, &wait))
                        continue; /* ends with the deadline */
                struct cut_word next = {word.seq, word.attempt, CUT_UPDATING};
                if (swap_word(page, word, next)) {
                        *ret_expired = word.phase == CUT_COPYING;
                        if (*ret_expired)
                                record_void(page, word);
                        r = 0;
                        break;
                }
                tries++;
        }
        gate_account(page, gate, clock, &wait);
        return r;
}

int cut_update_end(struct control_page *page, int64_t step, uint64_t seal_number, uint64_t *ret_seq,
                   bool *ret_ring) {
        struct cut_word word = cut_read(page);

        if (word.phase > CUT_COPYING || word.seq >= SEQ_MAX)
                return CAIRN_ERR_CORRUPT;
        if (word.phase != CUT_UPDATING)
                return CAIRN_ERR_API;
        /* Before the swap: who sees STABLE sees what it belongs to. */
        CUT_STORE(&page->last_step, step);
        CUT_STORE(&page->seal_number, seal_number);
        /* Nobody else leaves UPDATING. */
        struct cut_word next = {word.seq + 1, word.attempt, CUT_STABLE};
        if (!swap_word(page, word, next))
                return CAIRN_ERR_CORRUPT;
        *ret_seq = next.seq;
        uint64_t wanted = CUT_LOAD(&page->wanted_seq);
        *ret_ring = CUT_LOAD(&page->answered_seq) < wanted;
        return 0;
}

/* ---- requests ---- */

uint64_t cut_request(struct control_page *page, bool *ret_updating) {
        struct cut_word word = cut_read(page);
        uint64_t seq = word.phase == CUT_UPDATING && word.seq < SEQ_MAX ? word.seq + 1 : word.seq;

        raise_to(&page->wanted_seq, seq);
        /* Read again: an update that ended before wanted_seq was raised did not ring. */
        *ret_updating = cut_read(page).phase == CUT_UPDATING;
        return seq;
}

void cut_request_next(struct control_page *page) {
        uint64_t seq = cut_read(page).seq;

        if (seq < SEQ_MAX)
                raise_to(&page->wanted_seq, seq + 1);
}

void cut_forget_next(struct control_page *page) {
        uint64_t wanted = CUT_LOAD(&page->wanted_seq);

        if (wanted > cut_read(page).seq && wanted > CUT_LOAD(&page->answered_seq))
                cut_decline(page, CAIRN_ERR_BUSY);
}

/* ---- copier ---- */

/* The gate sleeps on the word, so an answer that is no claim changes the word as well: a wake alone
 * could come between the gate's look at answered_seq and its sleep. A newer attempt in STABLE is
 * harmless: it is what cairnd's fence does. */
static void nudge_gate(struct control_page *page) {
        for (int i = 0; i < SWAP_TRIES_MAX; i++) {
                struct cut_word word = cut_read(page);
                struct cut_word next = {word.seq, CUT_NEXT_ATTEMPT(word.attempt), CUT_STABLE};

                if (word.phase != CUT_STABLE || swap_word(page, word, next))
                        break;
        }
        wake_gate(page);
}

int cut_copy_begin(struct control_page *page, bool demanded, struct cut_word *ret) {
        struct cut_word word = cut_read(page);
        uint64_t wanted = CUT_LOAD(&page->wanted_seq);

        if (word.phase > CUT_COPYING || wanted > SEQ_MAX)
                return CAIRN_ERR_CORRUPT;
        if (!demanded && wanted <= CUT_LOAD(&page->answered_seq))
                return CAIRN_ERR_BUSY;
        /* Alive and willing: a detached gate waits for it again. Otherwise a trainer without pauses
         * would win every race against a copier that never gets to its first chunk. */
        CUT_COUNT(&page->progress, 1);
        if (word.phase != CUT_STABLE || (!demanded && wanted > word.seq))
                return CAIRN_ERR_BUSY;

        struct cut_word next = {word.seq, CUT_NEXT_ATTEMPT(word.attempt), CUT_COPYING};
        uint64_t outcome = CUT_LOAD(outcome_slot(page, word.seq));
        if (!swap_word(page, word, next))
                return CAIRN_ERR_BUSY;
        raise_to(&page->answered_seq, word.seq);
        /* Revoked before it was answered: the gate may have gone to sleep for the answer. */
        if (CUT_LOAD(&page->word) != cut_word_pack(next))
                nudge_gate(page);
        /* Only over what stood there before the claim: the gate or cairnd may have voided it since,
         * and their word is the last one if this process dies here. */
        uint64_t claimed = outcome_pack(next, CUT_CLAIMED, 0);
        if (outcome_may_replace(outcome, claimed) &&
            CUT_SWAP(outcome_slot(page, word.seq), &outcome, claimed))
                outcome_announce(page);
        *ret = next;
        return 0;
}

void cut_decline(struct control_page *page, int status) {
        uint64_t wanted = CUT_LOAD(&page->wanted_seq);

        if (wanted > SEQ_MAX)
                return;
        CUT_COUNT(&page->progress, 1);
        cut_outcome_set(page, wanted, CUT_DECLINED, status);
        raise_to(&page->answered_seq, wanted);
        nudge_gate(page);
}

bool cut_copy_continue(struct control_page *page, struct cut_word mine) {
        if (CUT_LOAD(&page->word) != cut_word_pack(mine))
                return false;
        CUT_COUNT(&page->progress, 1);
        return true;
}

static bool leave_copying(struct control_page *page, struct cut_word mine) {
        struct cut_word next = {mine.seq, mine.attempt, CUT_STABLE};

        if (mine.phase != CUT_COPYING || !swap_word(page, mine, next))
                return false;
        wake_gate(page);
        return true;
}

int cut_copy_end(struct control_page *page, struct cut_word mine) {
        return leave_copying(page, mine) ? 0 : CAIRN_ERR_STALE;
}

void cut_copy_abandon(struct control_page *page, struct cut_word mine) {
        if (leave_copying(page, mine))
                record_void(page, mine);
}

/* ---- cairnd ---- */

bool cut_copy_revoke(struct control_page *page) {
        for (int i = 0; i < SWAP_TRIES_MAX; i++) {
                struct cut_word word = cut_read(page);

                if (word.phase == CUT_COPYING) {
                        if (!leave_copying(page, word))
                                continue;
                        record_void(page, word);
                        return true;
                }
                if (word.phase != CUT_STABLE)
                        return false; /* the next STABLE has another seq */
                struct cut_word next = {word.seq, CUT_NEXT_ATTEMPT(word.attempt), CUT_STABLE};
                if (swap_word(page, word, next)) {
                        wake_gate(page);
                        return false;
                }
        }
        return false;
}

/* ---- ledger ---- */

/* The state is stored last, so that a reader who finds it finds the row that belongs to it. */
void cut_ledger_write(struct cut_ledger_row *row, enum staging_state state, struct cut_word word,
                      int64_t step, const char *pending_name) {
        size_t bytes = pending_name ? strnlen(pending_name, sizeof row->pending_name - 1) : 0;

        CUT_STORE(&row->seq, word.seq);
        CUT_STORE(&row->step, step);
        memset(row->pending_name, 0, sizeof row->pending_name);
        if (bytes)
                memcpy(row->pending_name, pending_name, bytes);
        CUT_STORE(&row->state_attempt, (uint64_t) state | (uint64_t) word.attempt << 8);
}
