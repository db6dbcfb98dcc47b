/* SPDX-License-Identifier: Apache-2.0
 *
 * The control page under a peer that scribbles: every verb ends, and what it returns is a value of
 * its kind. Input: a sequence of operations, each one byte and its arguments; the page may be
 * written to at any offset between any two of them.
 */
#include "format/cut.h"
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

enum { OPERATIONS_MAX = 256 };

static uint64_t fake_now(void *context) {
        uint64_t *now = context;
        return *now += 500;
}

static void fake_sleep(void *context, uint64_t duration_ns) {
        *(uint64_t *) context += duration_ns;
}

struct sides {
        struct control_page *page;
        struct clock_ops clock;
        struct cut_gate gate;
        struct cut_word mine;
};

static bool is_status(int r) {
        return r == 0 || (r < 0 && r > -100);
}

static void trainer(struct sides *s, uint8_t what, struct fuzz_input *in) {
        uint64_t seq = 0;
        bool flag = false;
        int r;

        if (what == 0) {
                r = cut_update_begin(s->page, &s->gate, &s->clock, &flag);
                FUZZ_CHECK(is_status(r));
                if (r == 0)
                        FUZZ_CHECK(cut_read(s->page).phase == CUT_UPDATING);
        } else if (what == 1) {
                r = cut_update_end(s->page, (int64_t) fuzz_u64(in), fuzz_u8(in), &seq, &flag);
                FUZZ_CHECK(is_status(r));
                if (r == 0)
                        FUZZ_CHECK(cut_read(s->page).phase == CUT_STABLE &&
                                   cut_read(s->page).seq == seq);
        } else {
                (void) cut_request(s->page, &flag);
        }
}

static void copier(struct sides *s, uint8_t what, struct fuzz_input *in) {
        int r;

        switch (what) {
        case 3:
                r = cut_copy_begin(s->page, fuzz_u8(in) & 1, &s->mine);
                FUZZ_CHECK(is_status(r));
                if (r == 0)
                        FUZZ_CHECK(s->mine.phase == CUT_COPYING);
                break;
        case 4:
                cut_decline(s->page, -(int) fuzz_u8(in));
                break;
        case 5:
                (void) cut_copy_continue(s->page, s->mine);
                break;
        case 6:
                FUZZ_CHECK(is_status(cut_copy_end(s->page, s->mine)));
                break;
        case 7:
                cut_copy_abandon(s->page, s->mine);
                break;
        default:
                (void) cut_copy_revoke(s->page);
        }
}

static void outcomes(struct sides *s, uint8_t what, struct fuzz_input *in) {
        uint64_t seq = fuzz_u64(in), found = 0;
        int status = 1;

        if (what == 9) {
                enum cut_outcome o = cut_outcome_find(s->page, seq, &found, &status);
                FUZZ_CHECK(o >= CUT_NONE && o <= CUT_FAILED && cut_outcome_name(o));
                if (o != CUT_NONE)
                        FUZZ_CHECK(found >= seq && status <= 0 && status > -256);
        } else if (what == 10) {
                uint8_t kind = fuzz_u8(in);
                cut_outcome_set(s->page, seq, kind % (CUT_FAILED + 1), -(int) fuzz_u8(in));
        } else if (what == 11) {
                cut_committed(s->page, seq, (int64_t) fuzz_u64(in));
        } else {
                uint64_t now = clock_now(&s->clock);
                int r = cut_outcome_wait(s->page, (uint32_t) seq, now + 2000, &s->clock);
                FUZZ_CHECK(r == 0 || r == CAIRN_ERR_TIMEOUT);
        }
}

static void scribble(struct sides *s, struct fuzz_input *in) {
        uint32_t at = fuzz_u32(in) % (CONTROL_PAGE_BYTES / 8) * 8;
        uint64_t v = fuzz_u64(in);
        memcpy((char *) s->page + at, &v, sizeof v);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count) {
        struct fuzz_input in = {bytes, count};
        struct cairn_error e = CAIRN_ERROR_INIT;
        uint64_t now = 1;
        struct sides s = {.clock = {fake_now, fake_now, fake_sleep, &now},
                          .gate = {.deadline_duration_ns = 2000}};
        char name[40] = "pending";

        FUZZ_CHECK(posix_memalign((void **) &s.page, 64, CONTROL_PAGE_BYTES) == 0);
        memset(s.page, 0, CONTROL_PAGE_BYTES);
        control_page_init(s.page, 1);
        for (int i = 0; i < OPERATIONS_MAX && in.left > 0; i++) {
                uint8_t what = fuzz_u8(&in) % 18;
                if (what < 3)
                        trainer(&s, what, &in);
                else if (what < 9)
                        copier(&s, what, &in);
                else if (what < 13)
                        outcomes(&s, what, &in);
                else if (what == 13)
                        cut_ledger_write(&s.page->ledger[fuzz_u8(&in) % CUT_LEDGER_COUNT],
                                         STAGING_COPYING, s.mine, 7, name);
                else
                        scribble(&s, &in);
                FUZZ_CHECK(cut_phase_name(cut_read(s.page).phase));
        }
        int r = control_page_check(s.page, CONTROL_PAGE_BYTES - (count & 1), &e);
        if (r < 0)
                fuzz_check_error(r, &e);
        free(s.page);
        return 0;
}

size_t LLVMFuzzerCustomMutator(uint8_t *bytes, size_t count, size_t max, unsigned int seed) {
        return fuzz_mutate_plain(bytes, count, max, seed);
}
