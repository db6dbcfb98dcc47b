/* SPDX-License-Identifier: Apache-2.0
 *
 * states.h - state machines as tables (docs/STYLE.md). A long-lived object has an enum, a table of
 * rows {name, allowed-successors mask} and one setter; the setter calls state_table_step.
 *
 *     static const struct state_row session_states[] = {
 *             [SESSION_NEW] = {"new", STATE_TO(SESSION_SEALING) | STATE_TO(SESSION_ENDED)}, ...
 */
#ifndef CAIRN_STATES_H
#define CAIRN_STATES_H

#include "base/assert.h"
#include <stddef.h>
#include <stdint.h>

struct state_row {
        const char *name;
        uint64_t successors; /* mask of STATE_TO(next) */
};

#define STATE_TO(s) (UINT64_C(1) << (s))

/* Asserts that from -> to is a row of the table; returns the name of `to`. */
static inline const char *state_table_step(const struct state_row *table, size_t count,
                                           unsigned from, unsigned to) {
        CAIRN_ASSERT(from < count && to < count && to < 64);
        CAIRN_ASSERT(table[from].successors & STATE_TO(to));
        return table[to].name;
}

#endif
