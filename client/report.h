/* SPDX-License-Identifier: Apache-2.0
 *
 * report.h - the restore line and the same as one JSON object. Pure; the texts belong to the
 * caller.
 */
#ifndef CAIRN_CLIENT_REPORT_H
#define CAIRN_CLIENT_REPORT_H

#include "client/binding.h"

struct report_facts {
        enum cairn_start start;
        bool passive;
        const char *run, *checkpoint;
        int64_t step;
        uint64_t generation, restart, bytes, bytes_read, read_ns, apply_ns;
        uint32_t rank, world, world_stored; /* world_stored 0: nothing was restored */
        const struct pair *overrides;
        size_t override_count;
        const struct binding *binding; /* NULL: fresh */
};
bool report_bit_exact(const struct report_facts *f);
void report_text(struct textbuf *t, const struct report_facts *f);
void report_json(struct textbuf *t, const struct report_facts *f);

#endif
