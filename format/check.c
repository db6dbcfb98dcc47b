/* SPDX-License-Identifier: Apache-2.0
 *
 * check.c - what must hold for every message but the tensor records. A checksum says that bytes are
 * the ones that were written; only this says that they make sense.
 */
#include "format/check.h"
#include "base/bytes.h"
#include "base/log.h"
#include "format/dtype.h"
#include "format/name_table.h"
#include "format/names.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define UUID_BYTES 16
#define TEXT_BYTES_MAX (1 * MiB)
#define SHORT_TEXT_BYTES_MAX 4096
#define MEMBER_TEXT_BYTES_MAX 1024
#define SEQ_MAX ((UINT64_C(1) << 40) - 1)
#define ATTEMPT_MAX ((1u << 22) - 1)

/* ---- errors ---- */

static const struct section_place *find_section(const struct check *c, uint32_t type, size_t item,
                                                size_t *ret_index) {
        for (size_t i = 0; i < c->section_count; i++)
                if (c->sections[i].type == type && item >= c->sections[i].first_item &&
                    item - c->sections[i].first_item < c->sections[i].item_count) {
                        *ret_index = i;
                        return &c->sections[i];
                }
        return NULL;
}

int check_fail(const struct check *c, int status, enum section_type type, size_t item,
               const ProtobufCBinaryData *name, const char *message, ...) {
        char operation[48], object[256], escaped[160], text[512];
        size_t index = 0;
        va_list arguments;

        va_start(arguments, message);
        (void) vsnprintf(text, sizeof text, message, arguments);
        va_end(arguments);
        const struct section_place *place = find_section(c, type, item, &index);
        if (place)
                (void) snprintf(operation, sizeof operation, "check section %zu (%s)", index,
                                section_name(type));
        else
                (void) snprintf(operation, sizeof operation, "check %s", section_name(type));
        if (name)
                (void) snprintf(
                        object, sizeof object, "%.80s, \"%s\"", c->object,
                        text_escape(escaped, sizeof escaped, (const char *) name->data, name->len));
        else
                (void) snprintf(object, sizeof object, "%.200s", c->object);
        (void) error_set(c->reterr, status, operation, object, "%s", text);
        if (c->reterr && place)
                c->reterr->offset = place->offset;
        return status;
}

#define FAIL(c, type, item, ...) \
        check_fail((c), CAIRN_ERR_CORRUPT, (type), (item), NULL, __VA_ARGS__)

/* ---- text ---- */

/* Length of the UTF-8 sequence at p, 0 if it is none (overlong, surrogate, above U+10FFFF, cut). */
static size_t sequence_bytes(const uint8_t *p, size_t left) {
        static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
        size_t bytes = p[0] < 0x80       ? 1
                       : p[0] >> 5 == 6  ? 2
                       : p[0] >> 4 == 14 ? 3
                       : p[0] >> 3 == 30 ? 4
                                         : 0;
        uint32_t code = p[0] & (0x7fu >> bytes);

        if (bytes < 2)
                return bytes;
        if (bytes > left)
                return 0;
        for (size_t i = 1; i < bytes; i++) {
                if (p[i] >> 6 != 2)
                        return 0;
                code = code << 6 | (p[i] & 0x3fu);
        }
        if (code < least[bytes] || code > 0x10ffff || (code >= 0xd800 && code < 0xe000))
                return 0;
        return bytes;
}

/* Eight bytes of ASCII, none of them zero: nearly all that names are made of. */
static bool is_plain(const uint8_t *p) {
        const uint64_t ones = UINT64_C(0x0101010101010101), high = ones << 7;
        uint64_t w = load_le64(p);

        return (w & high) == 0 && ((w - ones) & high) == 0;
}

const char *check_text(const ProtobufCBinaryData *text, size_t bytes_max, bool empty_allowed) {
        if (text->len == 0)
                return empty_allowed ? NULL : "is empty";
        if (text->len > bytes_max)
                return "is too long";
        for (size_t at = 0; at < text->len;) {
                if (text->len - at >= 8 && is_plain(text->data + at)) {
                        at += 8;
                        continue;
                }
                /* The last word may begin among bytes that were looked at already: in the middle
                 * of a character it is not plain. */
                if (text->len - at < 8 && text->len >= 8 && is_plain(text->data + text->len - 8))
                        return NULL;
                size_t bytes = sequence_bytes(text->data + at, text->len - at);
                if (bytes == 0)
                        return "is not valid UTF-8";
                if (text->data[at] == 0)
                        return "contains a zero byte";
                at += bytes;
        }
        return NULL;
}

static bool copy_name(const ProtobufCBinaryData *text, char *target, size_t bytes) {
        if (text->len >= bytes || (text->len && memchr(text->data, 0, text->len)))
                return false;
        if (text->len)
                memcpy(target, text->data, text->len);
        target[text->len] = '\0';
        return true;
}

static int check_run(const struct check *c, enum section_type type,
                     const ProtobufCBinaryData *run) {
        char name[RUN_NAME_BYTES_MAX + 1];
        struct cairn_error why = CAIRN_ERROR_INIT;

        if (!copy_name(run, name, sizeof name))
                return FAIL(c, type, 0, "the run's name is too long or contains a zero byte");
        if (name_check_run(name, &why) < 0)
                return FAIL(c, type, 0, "the run's name is not valid: %s", why.message);
        return 0;
}

static int check_texts(const struct check *c, enum section_type type,
                       Cairn__Format__Text *const *texts, size_t count) {
        for (size_t i = 0; i < count; i++) {
                const char *why = check_text(&texts[i]->key, SHORT_TEXT_BYTES_MAX, false);
                if (why)
                        return FAIL(c, type, 0, "the key of description %zu %s", i, why);
                why = check_text(&texts[i]->value, TEXT_BYTES_MAX, true);
                if (why)
                        return FAIL(c, type, 0, "the value of description %zu %s", i, why);
        }
        return 0;
}

/* ---- head ---- */

static int check_head_ranges(const struct check *c, const Cairn__Format__Head *h) {
        if (h->generation == 0)
                return FAIL(c, SECTION_HEAD, 0, "generation 0 does not exist");
        if (h->world == 0 || h->world > RANK_COUNT_MAX)
                return FAIL(c, SECTION_HEAD, 0, "%" PRIu32 " ranks are not 1 to %d", h->world,
                            RANK_COUNT_MAX);
        if (h->rank >= h->world)
                return FAIL(c, SECTION_HEAD, 0, "rank %" PRIu32 " of %" PRIu32 " does not exist",
                            h->rank, h->world);
        if (h->step < 0 || h->step > STEP_MAX)
                return FAIL(c, SECTION_HEAD, 0, "step %" PRId64 " is out of range", h->step);
        if (h->seq > SEQ_MAX || h->attempt > ATTEMPT_MAX)
                return FAIL(c, SECTION_HEAD, 0,
                            "sequence number %" PRIu64 " or attempt %" PRIu32 " is out of range",
                            h->seq, h->attempt);
        return 0;
}

static int check_head(const struct check *c) {
        const Cairn__Format__Head *h = c->content->head;

        if (!h)
                return FAIL(c, SECTION_HEAD, 0, "there is no head");
        TRY(check_run(c, SECTION_HEAD, &h->run));
        TRY(check_head_ranges(c, h));
        if (c->content->kind == FILE_MANIFEST) {
                if (h->data_uuid.len != UUID_BYTES)
                        return FAIL(c, SECTION_HEAD, 0, "the data file's uuid has %zu bytes",
                                    h->data_uuid.len);
                if (h->data_bytes < DATA_BLOCK_BYTES || h->data_bytes > DATA_BYTES_MAX ||
                    h->data_bytes % DATA_BLOCK_BYTES != 0)
                        return FAIL(c, SECTION_HEAD, 0,
                                    "a data file of %" PRIu64 " bytes is not possible",
                                    h->data_bytes);
        }
        const char *why = check_text(&h->writer, SHORT_TEXT_BYTES_MAX, true);
        if (why)
                return FAIL(c, SECTION_HEAD, 0, "the writer's name %s", why);
        if (h->ending && h->ending->kind > 3)
                return FAIL(c, SECTION_HEAD, 0, "ending %" PRIu32 " is unknown", h->ending->kind);
        return check_texts(c, SECTION_HEAD, h->texts, h->n_texts);
}

/* ---- states ---- */

static const char *check_value(const Cairn__Format__StateValue *v) {
        const char *why = check_text(&v->name, TENSOR_NAME_BYTES_MAX, false);

        if (why)
                return why;
        if (v->type < CAIRN_VALUE_I64 || v->type > CAIRN_VALUE_BYTES)
                return "has an unknown type";
        if (v->type != CAIRN_VALUE_BYTES)
                return v->bytes_value.len ? "has bytes, but is a number" : NULL;
        if (v->capacity > HOST_STATE_BYTES_MAX)
                return "has more capacity than a host state";
        return v->bytes_value.len > v->capacity ? "has more bytes than capacity" : NULL;
}

static int check_value_names(const struct check *c, enum section_type type, size_t item,
                             Cairn__Format__StateValue *const *values, size_t count) {
        struct name_table names;
        ssize_t same = -1;
        int r = name_table_init(&names, values, count, &same, c->reterr);

        if (r == 0 && same >= 0)
                r = check_fail(c, CAIRN_ERR_CORRUPT, type, item, &values[same]->name,
                               "host value %zd has the name of another value", same);
        name_table_done(&names);
        return r;
}

static int check_values(const struct check *c, enum section_type type, size_t item,
                        Cairn__Format__StateValue *const *values, size_t count) {
        uint64_t bytes = 0;

        if (count > HOST_STATE_VALUES_MAX)
                return FAIL(c, type, item, "%zu host values are more than %d", count,
                            HOST_STATE_VALUES_MAX);
        for (size_t i = 0; i < count; i++) {
                const char *why = check_value(values[i]);
                bytes += values[i]->capacity > 8 ? values[i]->capacity : 8;
                if (!why && bytes > HOST_STATE_BYTES_MAX)
                        why = "is one too many for the size of a host state";
                if (why)
                        return check_fail(c, CAIRN_ERR_CORRUPT, type, item, &values[i]->name,
                                          "host value %zu %s", i, why);
        }
        return check_value_names(c, type, item, values, count);
}

static int check_states(const struct check *c) {
        const struct file_content *content = c->content;
        const Cairn__Format__Head *head = content->head;
        bool index = content->kind == FILE_INDEX;

        if (content->state_count != (index ? head->world : 1))
                return FAIL(c, SECTION_STATE, 0, "%zu host states are not one for each rank",
                            content->state_count);
        for (size_t i = 0; i < content->state_count; i++) {
                const Cairn__Format__State *s = content->states[i];
                if (s->rank != (index ? i : head->rank))
                        return FAIL(c, SECTION_STATE, i, "host state %zu is of rank %" PRIu32, i,
                                    s->rank);
                if (s->step != head->step || s->seq > SEQ_MAX || (!index && s->seq != head->seq))
                        return FAIL(c, SECTION_STATE, i,
                                    "the host state of rank %" PRIu32 " is of step %" PRId64
                                    " (sequence number %" PRIu64 "), the head of step %" PRId64,
                                    s->rank, s->step, s->seq, head->step);
                TRY(check_values(c, SECTION_STATE, i, s->values, s->n_values));
        }
        return 0;
}

/* ---- chunk CRCs ---- */

/* By rank, and for each rank every chunk from 0 on without a gap. */
static int check_chunks(const struct check *c) {
        const struct file_content *content = c->content;
        const Cairn__Format__Head *head = content->head;
        bool index = content->kind == FILE_INDEX;
        uint64_t next = 0;
        uint32_t rank = index ? 0 : head->rank;

        for (size_t i = 0; i < content->chunk_crcs_count; i++) {
                const Cairn__Format__ChunkCrcs *crcs = content->chunk_crcs[i];
                if (index && next > 0 && crcs->rank == rank + 1) {
                        rank++;
                        next = 0;
                }
                if (crcs->rank != rank || crcs->first_chunk != next || crcs->n_crc32c == 0)
                        return FAIL(c, SECTION_CHUNK_CRCS, i,
                                    "checksums of chunk %" PRIu64 " of rank %" PRIu32
                                    " stand where those of chunk %" PRIu64 " of rank %" PRIu32
                                    " are due",
                                    crcs->first_chunk, crcs->rank, next, rank);
                next += crcs->n_crc32c;
        }
        uint64_t due = (head->data_bytes + DATA_CHUNK_BYTES - 1) / DATA_CHUNK_BYTES;
        if (next == 0 || (index ? rank != head->world - 1 : next != due))
                return FAIL(c, SECTION_CHUNK_CRCS, 0,
                            "the checksums end after chunk %" PRIu64 " of rank %" PRIu32, next,
                            rank);
        return 0;
}

/* ---- records of a group ---- */

static int check_commit(const struct check *c) {
        const Cairn__Format__Commit *commit = c->content->commit;
        char parent[NAME_BYTES];
        int64_t step;
        uint64_t generation;

        if (!commit || commit->n_files != c->content->head->world)
                return FAIL(c, SECTION_COMMIT, 0, "it does not list one manifest for each rank");
        for (size_t i = 0; i < commit->n_files; i++) {
                const Cairn__Format__FileDigest *f = commit->files[i];
                if (f->rank != i || f->data_uuid.len != UUID_BYTES || f->manifest_bytes == 0 ||
                    f->data_bytes < DATA_BLOCK_BYTES || f->data_bytes > DATA_BYTES_MAX ||
                    f->data_bytes % DATA_BLOCK_BYTES != 0)
                        return FAIL(c, SECTION_COMMIT, 0, "the digest of rank %zu is not possible",
                                    i);
        }
        if (commit->parent.len > 0 && (!copy_name(&commit->parent, parent, sizeof parent) ||
                                       !name_parse_checkpoint(parent, &step, &generation)))
                return FAIL(c, SECTION_COMMIT, 0, "its parent is not a checkpoint's name");
        if (commit->reason > 5)
                return FAIL(c, SECTION_COMMIT, 0, "reason %" PRIu32 " is unknown", commit->reason);
        const char *why = check_text(&commit->tag, SHORT_TEXT_BYTES_MAX, true);
        if (why)
                return FAIL(c, SECTION_COMMIT, 0, "its tag %s", why);
        return 0;
}

static int check_members(const struct check *c, const Cairn__Format__Generation *g) {
        if (g->n_members > g->world)
                return FAIL(c, SECTION_GENERATION, 0, "%zu members are more than %" PRIu32 " ranks",
                            g->n_members, g->world);
        for (size_t i = 0; i < g->n_members; i++) {
                const Cairn__Format__Member *m = g->members[i];
                if (m->rank >= g->world || check_text(&m->host, MEMBER_TEXT_BYTES_MAX, true) ||
                    check_text(&m->boot_id, MEMBER_TEXT_BYTES_MAX, true))
                        return FAIL(c, SECTION_GENERATION, 0, "member %zu is not possible", i);
        }
        return 0;
}

static int check_generation(const struct check *c) {
        const Cairn__Format__Generation *g = c->content->generation;

        if (!g)
                return FAIL(c, SECTION_GENERATION, 0, "there is no claim");
        TRY(check_run(c, SECTION_GENERATION, &g->run));
        if (g->generation == 0 || g->world == 0 || g->world > RANK_COUNT_MAX)
                return FAIL(c, SECTION_GENERATION, 0,
                            "generation %" PRIu64 " of %" PRIu32 " ranks is not possible",
                            g->generation, g->world);
        TRY(check_members(c, g));
        if (g->mode < 1 || g->mode > 3)
                return FAIL(c, SECTION_GENERATION, 0, "mode %" PRIu32 " is unknown", g->mode);
        if (g->has_from_step && (g->from_step < 0 || g->from_step > STEP_MAX))
                return FAIL(c, SECTION_GENERATION, 0, "step %" PRId64 " is out of range",
                            g->from_step);
        const char *why = check_text(&g->init_from, TEXT_BYTES_MAX, true);
        if (why)
                return FAIL(c, SECTION_GENERATION, 0, "the checkpoint to initialise from %s", why);
        if (g->claim_uuid.len != UUID_BYTES)
                return FAIL(c, SECTION_GENERATION, 0, "the claim's uuid has %zu bytes",
                            g->claim_uuid.len);
        return check_texts(c, SECTION_GENERATION, g->overrides, g->n_overrides);
}

static int check_generation_start(const struct check *c) {
        const Cairn__Format__GenerationStart *g = c->content->generation_start;
        char parent[NAME_BYTES];
        int64_t step;
        uint64_t generation;

        if (!g || g->generation == 0)
                return FAIL(c, SECTION_GENERATION_START, 0, "it starts no generation");
        if (g->claim_uuid.len != UUID_BYTES)
                return FAIL(c, SECTION_GENERATION_START, 0, "the claim's uuid has %zu bytes",
                            g->claim_uuid.len);
        if (g->parent.len == 0)
                return g->parent_generation == 0 ? 0
                                                 : FAIL(c, SECTION_GENERATION_START, 0,
                                                        "it has a parent without a name");
        if (!copy_name(&g->parent, parent, sizeof parent) ||
            !name_parse_checkpoint(parent, &step, &generation) || step != g->parent_step ||
            generation != g->parent_generation || generation >= g->generation)
                return FAIL(c, SECTION_GENERATION_START, 0,
                            "its parent is not an older checkpoint's name, or has another step or "
                            "generation");
        return 0;
}

static int check_store(const struct check *c) {
        const Cairn__Format__StoreMarker *s = c->content->store;

        if (!s || s->store_id.len != UUID_BYTES || s->kind < 1 || s->kind > 2)
                return FAIL(c, SECTION_STORE, 0, "it is not the marker of a known kind of store");
        return 0;
}

static int check_mark(const struct check *c) {
        const Cairn__Format__Mark *m = c->content->mark;

        if (!m || m->kind < FILE_MARK_FINISHED || m->kind > FILE_MARK_NODE)
                return FAIL(c, SECTION_MARK, 0, "its kind is unknown");
        if (m->generation == 0 || m->step < 0 || m->step > STEP_MAX)
                return FAIL(c, SECTION_MARK, 0,
                            "generation %" PRIu64 " or step %" PRId64 " is out of range",
                            m->generation, m->step);
        const char *why = check_text(&m->reason, SHORT_TEXT_BYTES_MAX, true);
        if (why)
                return FAIL(c, SECTION_MARK, 0, "its reason %s", why);
        return 0;
}

/* ---- inventory ---- */

/* Tensors may be pieces of one allocation, so their elements are aligned and nothing more. */
static bool placed_inside(const Cairn__Format__InventoryHead *head, uint32_t slab, uint64_t offset,
                          uint64_t bytes, uint32_t alignment) {
        uint64_t end;
        return slab < head->slab_count && offset % alignment == 0 &&
               add_checked(offset, bytes, &end) && end <= head->slab_bytes[slab];
}

static int check_placement(const struct check *c, size_t i) {
        const struct file_content *content = c->content;
        const Cairn__Format__Tensor *t = content->tensors[i];
        const Cairn__Format__Placement *p = content->placements[i];
        uint32_t element_bytes = dtype_info(t->runtime_dtype)->bytes;
        uint64_t elements, bytes;

        const char *why = shard_elements(t, t->shard, &elements);
        if (why || !mul_checked(elements, element_bytes, &bytes))
                return check_fail(c, CAIRN_ERR_CORRUPT, SECTION_PLACEMENTS, i, &t->name, "%s",
                                  why ? why : "its size does not fit in 64 bits");
        if (bytes == 0 || t->alias_of.len > 0)
                return 0;
        if (!p->elsewhere &&
            !placed_inside(content->inventory, p->slab, p->offset, bytes, element_bytes))
                return check_fail(c, CAIRN_ERR_CORRUPT, SECTION_PLACEMENTS, i, &t->name,
                                  "%" PRIu64 " bytes at %" PRIu64 " of slab %" PRIu32
                                  " are not inside it or not aligned",
                                  bytes, p->offset, p->slab);
        if (t->mutates == CAIRN_ANYTIME && !placed_inside(content->inventory, p->shadow_slab,
                                                          p->shadow_offset, bytes, element_bytes))
                return check_fail(c, CAIRN_ERR_CORRUPT, SECTION_PLACEMENTS, i, &t->name,
                                  "its shadow at %" PRIu64 " of slab %" PRIu32
                                  " is not inside it or not aligned",
                                  p->shadow_offset, p->shadow_slab);
        return 0;
}

static int check_inventory(const struct check *c) {
        const struct file_content *content = c->content;
        const Cairn__Format__InventoryHead *head = content->inventory;

        if (!head || head->seal == 0)
                return FAIL(c, SECTION_INVENTORY_HEAD, 0, "it has no number");
        if (head->slab_count > SLAB_COUNT_MAX || head->n_slab_bytes != head->slab_count)
                return FAIL(c, SECTION_INVENTORY_HEAD, 0, "%" PRIu32 " slabs with %zu sizes",
                            head->slab_count, head->n_slab_bytes);
        for (size_t i = 0; i < head->n_slab_bytes; i++)
                if (head->slab_bytes[i] > SLAB_BYTES_MAX)
                        return FAIL(c, SECTION_INVENTORY_HEAD, 0, "slab %zu has %" PRIu64 " bytes",
                                    i, head->slab_bytes[i]);
        if (head->tensor_count != content->tensor_count ||
            content->placement_count != content->tensor_count)
                return FAIL(c, SECTION_INVENTORY_HEAD, 0,
                            "it announces %" PRIu64 " tensors, there are %zu with %zu placements",
                            head->tensor_count, content->tensor_count, content->placement_count);
        if (head->host_state_bytes > HOST_STATE_BYTES_MAX)
                return FAIL(c, SECTION_INVENTORY_HEAD, 0, "a host state of %" PRIu64 " bytes",
                            head->host_state_bytes);
        if (head->device_uuid.len != 0 && head->device_uuid.len != DEVICE_UUID_BYTES)
                return FAIL(c, SECTION_INVENTORY_HEAD, 0, "a device's name of %zu bytes",
                            head->device_uuid.len);
        TRY(check_values(c, SECTION_INVENTORY_HEAD, 0, head->layout, head->n_layout));
        TRY(check_texts(c, SECTION_INVENTORY_HEAD, head->texts, head->n_texts));
        TRY(check_tensors(c));
        for (size_t i = 0; i < content->placement_count; i++)
                TRY(check_placement(c, i));
        return 0;
}

int check_content(const struct check *c) {
        switch (c->content->kind) {
        case FILE_MANIFEST:
        case FILE_INDEX:
                TRY(check_head(c));
                TRY(check_tensors(c));
                TRY(check_states(c));
                return check_chunks(c);
        case FILE_COMMIT:
                TRY(check_head(c));
                return check_commit(c);
        case FILE_GENERATION:
                return check_generation(c);
        case FILE_GENERATION_START:
                return check_generation_start(c);
        case FILE_STORE:
                return check_store(c);
        case FILE_INVENTORY:
                return check_inventory(c);
        case FILE_MARK:
                return check_mark(c);
        }
        return error_set(c->reterr, CAIRN_ERR_API, "check file", c->object,
                         "file kind %d is unknown", (int) c->content->kind);
}

int file_check(const struct file_content *content, const char *object, struct cairn_error *reterr) {
        return check_content(
                &(struct check){.content = content, .object = object, .reterr = reterr});
}
