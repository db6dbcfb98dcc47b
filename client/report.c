/* SPDX-License-Identifier: Apache-2.0 */
#include "client/report.h"
#include <inttypes.h>
#include <string.h>

/* A line stays a line; the JSON object has them all. */
#define ITEMS_IN_LINE 16

static const struct binding nothing;

static const char *mode_name(const struct report_facts *f) {
        if (f->passive)
                return "without checkpoints";
        switch (f->start) {
        case CAIRN_START_RESUME:
                return "resume";
        case CAIRN_START_INIT_FROM:
                return "init-from";
        default:
                return "fresh";
        }
}

bool report_bit_exact(const struct report_facts *f) {
        return f->binding && f->start == CAIRN_START_RESUME && f->binding->converted_count == 0 &&
               f->binding->differs.item_count == 0;
}

static double rate_gb_per_s(const struct report_facts *f) {
        uint64_t ns = f->read_ns + f->apply_ns;
        return ns ? (double) f->bytes / (double) ns : 0;
}

static void add_list(struct textbuf *t, const char *name, const struct textbuf *items) {
        if (items->item_count == 0)
                return;
        textbuf_add(t, ", %s: ", name);
        textbuf_join(t, items, ITEMS_IN_LINE);
}

void report_text(struct textbuf *t, const struct report_facts *f) {
        const struct binding *b = f->binding ? f->binding : &nothing;
        textbuf_clear(t);
        textbuf_add(t, "start %s, step %" PRId64, mode_name(f), f->step);
        if (*f->checkpoint)
                textbuf_add(t, ", checkpoint %s", f->checkpoint);
        if (!f->passive)
                textbuf_add(t, ", restart %" PRIu64 ", generation %" PRIu64, f->restart,
                            f->generation);
        if (f->world_stored && f->world_stored != f->world)
                textbuf_add(t, ", world %" PRIu32 " -> %" PRIu32, f->world_stored, f->world);
        else
                textbuf_add(t, ", world %" PRIu32, f->world);
        for (size_t i = 0; i < f->override_count; i++)
                textbuf_add(t, "%s%s=%s", i ? " " : ", overrides: ", f->overrides[i].key,
                            f->overrides[i].value);
        if (f->binding) {
                textbuf_add(t, ", %zu tensors loaded, %zu skipped", b->load_count,
                            b->skipped.item_count);
                textbuf_add(t, ", %.1f MB at %.2f GB/s", (double) f->bytes / 1e6, rate_gb_per_s(f));
        }
        add_list(t, "changed", &b->changes);
        add_list(t, "converted", &b->conversions);
        add_list(t, "skipped", &b->skipped);
        if (f->start != CAIRN_START_RESUME || !f->binding)
                return;
        if (report_bit_exact(f))
                textbuf_add(t, ", bit-exact");
        else if (b->differs.item_count)
                add_list(t, "not bit-exact", &b->differs);
        else
                textbuf_add(t, ", not bit-exact: converted");
}

static void add_string(struct textbuf *t, const char *name, const char *value) {
        textbuf_add(t, ",\"%s\":", name);
        textbuf_json(t, value, strlen(value));
}

static void add_items(struct textbuf *t, const char *name, const struct textbuf *items) {
        textbuf_add(t, ",\"%s\":", name);
        textbuf_json_items(t, items);
}

void report_json(struct textbuf *t, const struct report_facts *f) {
        const struct binding *b = f->binding ? f->binding : &nothing;
        textbuf_clear(t);
        textbuf_add(t, "{\"event\":\"restore\",\"step\":%" PRId64, f->step);
        add_string(t, "mode", mode_name(f));
        add_string(t, "run", f->run);
        add_string(t, "checkpoint", f->checkpoint);
        textbuf_add(t, ",\"restart\":%" PRIu64 ",\"generation\":%" PRIu64, f->restart,
                    f->generation);
        textbuf_add(t, ",\"rank\":%" PRIu32 ",\"world\":%" PRIu32, f->rank, f->world);
        textbuf_add(t, ",\"world_stored\":%" PRIu32 ",\"overrides\":{", f->world_stored);
        for (size_t i = 0; i < f->override_count; i++) {
                textbuf_add(t, "%s", i ? "," : "");
                textbuf_json(t, f->overrides[i].key, strlen(f->overrides[i].key));
                textbuf_add(t, ":");
                textbuf_json(t, f->overrides[i].value, strlen(f->overrides[i].value));
        }
        textbuf_add(t, "},\"tensors_loaded\":%zu,\"tensors_skipped\":%zu", b->load_count,
                    b->skipped.item_count);
        textbuf_add(t, ",\"tensors_converted\":%" PRIu64, b->converted_count);
        textbuf_add(t, ",\"bytes\":%" PRIu64 ",\"bytes_read\":%" PRIu64, f->bytes, f->bytes_read);
        textbuf_add(t, ",\"read_ns\":%" PRIu64 ",\"apply_ns\":%" PRIu64, f->read_ns, f->apply_ns);
        textbuf_add(t, ",\"gb_per_s\":%.3f,\"bit_exact\":%s", rate_gb_per_s(f),
                    report_bit_exact(f) ? "true" : "false");
        add_items(t, "changes", &b->changes);
        add_items(t, "conversions", &b->conversions);
        add_items(t, "skipped", &b->skipped);
        add_items(t, "differs", &b->differs);
        textbuf_add(t, "}");
}
