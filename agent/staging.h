/* SPDX-License-Identifier: Apache-2.0
 *
 * staging.h - the saver's view of its staging memory: a memfd that cairnd made, one data image
 * large (the image is the file, byte for byte), and the ledger row that says what lies in it. The
 * row is written before each change.
 *
 *     staging_map(&s, fd, bytes, row, reterr);  ->  staging_populate(&s) while idle  ->
 * staging_done(&s);
 *
 * Owner: the saver's main thread; the I/O thread transfers from and to it.
 */
#ifndef CAIRN_AGENT_STAGING_H
#define CAIRN_AGENT_STAGING_H

#include "format/cut.h"

struct staging {
        unsigned char *base; /* NULL: not mapped */
        uint64_t bytes;
        uint64_t populated; /* bytes whose pages are there already */
        struct cut_ledger_row *row;
};

/* Takes nothing: the descriptor stays the caller's. `row` NULL: no ledger. */
int staging_map(struct staging *s, int fd, uint64_t bytes, struct cut_ledger_row *row,
                struct cairn_error *reterr);
void staging_done(struct staging *s);
/* Fault in the next slice, so that the first copy is as fast as a later one. False once all is
 * there. */
bool staging_populate(struct staging *s);
/* At least up to here, for who is about to fill it: a page fault for each page takes twice as long.
 */
void staging_reach(struct staging *s, uint64_t to);
void staging_note(struct staging *s, enum staging_state state, struct cut_word word, int64_t step);

#endif
