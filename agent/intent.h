/* SPDX-License-Identifier: Apache-2.0
 *
 * intent.h - what a start means for a run as it was found (docs/OPERATIONS.md): begin, resume from
 * which checkpoint, nothing to do, or a refusal that says what to do instead. A pure function of
 * the request and the scan; looks at checkpoints only through `verify`, changes nothing.
 */
#ifndef CAIRN_AGENT_INTENT_H
#define CAIRN_AGENT_INTENT_H

#include "agent/store.h"

/* 0: usable. CORRUPT, MISMATCH, NOTFOUND: damaged, an older one may serve. Anything else: storage
 * does not answer, nothing may be concluded. *ret_flagged: usable if asked for by --from only. */
typedef int (*intent_verify)(void *context, const struct scan_checkpoint *c, bool *ret_flagged,
                             struct cairn_error *reterr);

struct intent_verdict {
        enum start_mode decided;              /* FRESH, RESUME, INIT_FROM */
        bool finished;                        /* nothing to do; `decided` is unset */
        const struct scan_checkpoint *choice; /* in the scan; NULL: none */
        char note[STORE_NOTE_BYTES];          /* what was passed over, and why */
};

int intent_check(const struct start_request *request, struct cairn_error *reterr);
int intent_judge(const struct start_request *request, const struct run_scan *scan,
                 intent_verify verify, void *context, struct intent_verdict *ret,
                 struct cairn_error *reterr);
/* A damage of one checkpoint, as opposed to storage that does not answer. */
bool intent_is_damage(const struct cairn_error *e);
/* Adds "; " and the sentence. */
void intent_note(char *note, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
