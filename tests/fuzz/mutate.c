/* SPDX-License-Identifier: Apache-2.0
 *
 * mutate.c - mutators that keep the format's frame intact: a message is rewritten field by field
 * with one of them changed, a file section by section; lengths and checksums follow.
 */
#include "base/bytes.h"
#include "format/check.h"
#include "format/crc32c.h"
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

enum { BUFFER_BYTES = 1 << 20, SECTIONS_MAX = 64, HEADER = 64, SECTION_HEADER = 16, DEPTH_MAX = 8 };

const uint64_t fuzz_extremes[] = {0,
                                  1,
                                  2,
                                  255,
                                  4095,
                                  4096,
                                  65536,
                                  UINT64_C(0x7fffffff),
                                  UINT64_C(0x80000000),
                                  UINT64_C(0xffffffff),
                                  UINT64_C(0x100000000),
                                  UINT64_C(1) << 46,
                                  UINT64_C(0x3fffffffffffffff),
                                  UINT64_C(0x7fffffffffffffff),
                                  UINT64_C(0x8000000000000000),
                                  UINT64_C(0xffffffffffffff00),
                                  UINT64_C(0xfffffffffffffffe),
                                  UINT64_C(0xffffffffffffffff)};
const size_t fuzz_extreme_count = sizeof fuzz_extremes / sizeof fuzz_extremes[0];

static uint64_t next_random(uint64_t *state) {
        uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
        z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
        z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
        return z ^ z >> 31;
}

static size_t below(uint64_t *state, size_t n) {
        return n ? (size_t) (next_random(state) % n) : 0;
}

static uint64_t changed_number(uint64_t v, uint64_t *random) {
        switch (below(random, 6)) {
        case 0:
                return v + 1;
        case 1:
                return v - 1;
        case 2:
                return v ^ UINT64_C(1) << below(random, 64);
        case 3:
                return below(random, 16);
        default:
                return fuzz_extremes[below(random, fuzz_extreme_count)];
        }
}

/* ---- messages ---- */

struct out {
        uint8_t *bytes;
        size_t count, max;
        bool full;
};
struct rewrite {
        uint64_t random;
        size_t at, target; /* index of the field at hand, and of the one to be changed */
};

static void put(struct out *o, const void *bytes, size_t count) {
        if (count > o->max - o->count) {
                o->full = true;
                return;
        }
        if (count)
                memcpy(o->bytes + o->count, bytes, count);
        o->count += count;
}

static void put_varint(struct out *o, uint64_t v) {
        uint8_t bytes[10];
        size_t n = 0;
        for (; v >= 0x80; v >>= 7)
                bytes[n++] = (uint8_t) (v | 0x80);
        bytes[n++] = (uint8_t) v;
        put(o, bytes, n);
}

static size_t get_varint(const uint8_t *p, size_t count, uint64_t *ret) {
        *ret = 0;
        for (size_t i = 0; i < count && i < 10; i++) {
                *ret |= (uint64_t) (p[i] & 0x7f) << (7 * i);
                if (!(p[i] & 0x80))
                        return i + 1;
        }
        return 0;
}

struct field {
        uint64_t tag;
        const uint8_t *start, *value; /* of the tag; of what follows it (and the length) */
        uint64_t number;              /* varint, fixed */
        size_t bytes, value_bytes;    /* all of it */
};

/* The field at the front; false at the end or where it is no protobuf. */
static bool next_field(const uint8_t *p, size_t count, struct field *f) {
        uint64_t length;
        size_t n = get_varint(p, count, &f->tag), m;

        *f = (struct field){.tag = f->tag, .start = p};
        if (n == 0)
                return false;
        switch (f->tag & 7) {
        case 0:
                m = get_varint(p + n, count - n, &f->number);
                if (m == 0)
                        return false;
                f->value_bytes = m;
                break;
        case 1:
        case 5:
                f->value_bytes = (f->tag & 7) == 1 ? 8 : 4;
                if (count - n < f->value_bytes)
                        return false;
                memcpy(&f->number, p + n, f->value_bytes);
                break;
        case 2:
                m = get_varint(p + n, count - n, &length);
                if (m == 0 || length > count - n - m)
                        return false;
                n += m;
                f->value_bytes = (size_t) length;
                break;
        default:
                return false;
        }
        f->value = p + n;
        f->bytes = n + f->value_bytes;
        return true;
}

static size_t count_fields(const uint8_t *p, size_t count, const ProtobufCMessageDescriptor *d,
                           int depth) {
        struct field f;
        size_t n = 0;
        for (; next_field(p, count, &f); p += f.bytes, count -= f.bytes) {
                const ProtobufCFieldDescriptor *field =
                        protobuf_c_message_descriptor_get_field(d, (unsigned) (f.tag >> 3));
                n++;
                if (field && field->type == PROTOBUF_C_TYPE_MESSAGE && (f.tag & 7) == 2 &&
                    depth < DEPTH_MAX)
                        n += count_fields(f.value, f.value_bytes, field->descriptor, depth + 1);
        }
        return n;
}

/* Packed numbers: one of them, or one more or less of them. */
static void put_packed(struct out *o, const struct field *f, const ProtobufCFieldDescriptor *field,
                       struct rewrite *w) {
        static _Thread_local uint8_t scratch[4096];
        struct out inner = {.bytes = scratch, .max = sizeof scratch};
        bool fixed = field->type == PROTOBUF_C_TYPE_FIXED32;
        size_t count = 0, at = 0, n, i = 0;
        uint64_t v = 0;

        for (size_t p = 0; p < f->value_bytes; p += n, count++) {
                n = fixed ? 4 : get_varint(f->value + p, f->value_bytes - p, &v);
                if (n == 0 || n > f->value_bytes - p)
                        break;
        }
        size_t target = below(&w->random, count + 1), action = below(&w->random, 4);
        for (; i < count; i++, at += n) {
                n = fixed ? 4 : get_varint(f->value + at, f->value_bytes - at, &v);
                if (fixed)
                        v = load_le32(f->value + at);
                for (size_t times = i != target   ? 1
                                    : action == 0 ? 0
                                    : action == 1 ? 2
                                                  : 1;
                     times; times--) {
                        uint64_t now =
                                i == target && action > 1 ? changed_number(v, &w->random) : v;
                        if (fixed)
                                put(&inner, &now, 4);
                        else
                                put_varint(&inner, now);
                }
        }
        if (target == count)
                fixed ? put(&inner, &w->random, 4)
                      : put_varint(&inner, changed_number(1, &w->random));
        put_varint(o, f->tag);
        put_varint(o, inner.count);
        put(o, inner.bytes, inner.count);
        o->full |= inner.full;
}

static void put_bytes(struct out *o, const struct field *f) {
        size_t max = f->value_bytes + 32;
        uint8_t *copy = malloc(max);
        if (!copy)
                abort();
        if (f->value_bytes)
                memcpy(copy, f->value, f->value_bytes);
        size_t bytes = LLVMFuzzerMutate(copy, f->value_bytes, max);
        put_varint(o, f->tag);
        put_varint(o, bytes);
        put(o, copy, bytes);
        free(copy);
}

/* The field that is to be changed: gone, twice, or with another value. */
static void put_changed(struct out *o, const struct field *f, const ProtobufCFieldDescriptor *field,
                        struct rewrite *w) {
        size_t action = below(&w->random, 10);

        if (action == 0)
                return;
        if (action == 1) {
                put(o, f->start, f->bytes);
                put(o, f->start, f->bytes);
                return;
        }
        uint64_t number = changed_number(f->number, &w->random);
        switch (f->tag & 7) {
        case 0:
                put_varint(o, f->tag);
                put_varint(o, number);
                return;
        case 1:
        case 5:
                put_varint(o, f->tag);
                put(o, &number, f->value_bytes);
                return;
        default:
                if (field && field->label == PROTOBUF_C_LABEL_REPEATED &&
                    field->type != PROTOBUF_C_TYPE_MESSAGE && field->type != PROTOBUF_C_TYPE_BYTES)
                        put_packed(o, f, field, w);
                else
                        put_bytes(o, f);
        }
}

static void put_message(struct out *o, const uint8_t *p, size_t count,
                        const ProtobufCMessageDescriptor *d, struct rewrite *w, int depth) {
        struct field f;

        for (; next_field(p, count, &f); p += f.bytes, count -= f.bytes) {
                const ProtobufCFieldDescriptor *field =
                        protobuf_c_message_descriptor_get_field(d, (unsigned) (f.tag >> 3));
                if (w->at++ == w->target)
                        put_changed(o, &f, field, w);
                if (!field || field->type != PROTOBUF_C_TYPE_MESSAGE || (f.tag & 7) != 2 ||
                    depth >= DEPTH_MAX) {
                        if (w->at - 1 != w->target)
                                put(o, f.start, f.bytes);
                        continue;
                }
                if (w->at - 1 == w->target) {
                        w->at += count_fields(f.value, f.value_bytes, field->descriptor, depth + 1);
                        continue;
                }
                /* A change adds a copy of a field or a few kilobytes, no more. */
                size_t room = 2 * f.value_bytes + 8192;
                struct out inner = {.bytes = malloc(room), .max = room};
                if (!inner.bytes)
                        abort();
                put_message(&inner, f.value, f.value_bytes, field->descriptor, w, depth + 1);
                put_varint(o, f.tag);
                put_varint(o, inner.count);
                put(o, inner.bytes, inner.count);
                o->full |= inner.full;
                free(inner.bytes);
        }
        put(o, p, count);
}

/* A field that was not there: proto3 leaves zeros out, so most are not. */
static void put_new_field(struct out *o, const ProtobufCMessageDescriptor *d, struct rewrite *w) {
        const ProtobufCFieldDescriptor *field = &d->fields[below(&w->random, d->n_fields)];
        uint64_t number = changed_number(1, &w->random);

        switch (field->type) {
        case PROTOBUF_C_TYPE_MESSAGE:
        case PROTOBUF_C_TYPE_BYTES:
        case PROTOBUF_C_TYPE_STRING:
                put_varint(o, (uint64_t) field->id << 3 | 2);
                put_varint(o, number % 5);
                put(o, "a.b.c", number % 5);
                break;
        case PROTOBUF_C_TYPE_DOUBLE:
        case PROTOBUF_C_TYPE_FIXED64:
                put_varint(o, (uint64_t) field->id << 3 | 1);
                put(o, &number, 8);
                break;
        case PROTOBUF_C_TYPE_FIXED32:
                put_varint(o, (uint64_t) field->id << 3 | 5);
                put(o, &number, 4);
                break;
        default:
                put_varint(o, (uint64_t) field->id << 3);
                put_varint(o, number);
        }
}

static void mutate_message(struct out *o, const uint8_t *p, size_t count,
                           const ProtobufCMessageDescriptor *d, uint64_t *random) {
        size_t fields = count_fields(p, count, d, 0);
        struct rewrite w = {.random = next_random(random), .target = below(random, fields + 1)};

        if (w.target == fields)
                put_new_field(o, d, &w);
        put_message(o, p, count, d, &w, 0);
}

size_t fuzz_mutate_message(uint8_t *bytes, size_t count, size_t max, unsigned int seed,
                           const ProtobufCMessageDescriptor *descriptor) {
        uint64_t random = seed;

        if (below(&random, 8) == 0)
                return LLVMFuzzerMutate(bytes, count, max);
        struct out o = {.bytes = malloc(max ? max : 1), .max = max};
        if (!o.bytes)
                abort();
        mutate_message(&o, bytes, count, descriptor, &random);
        if (!o.full) {
                memcpy(bytes, o.bytes, o.count);
                count = o.count;
        }
        free(o.bytes);
        return count;
}

/* ---- files ---- */

static const ProtobufCMessageDescriptor *const messages[] = {
        [SECTION_HEAD] = &cairn__format__head__descriptor,
        [SECTION_INVENTORY_HEAD] = &cairn__format__inventory_head__descriptor,
        [SECTION_PAGE_DIRECTORY] = &cairn__format__page_directory__descriptor,
        [SECTION_TENSORS] = &cairn__format__tensor_page__descriptor,
        [SECTION_PLACEMENTS] = &cairn__format__placement_page__descriptor,
        [SECTION_STATE] = &cairn__format__state__descriptor,
        [SECTION_CHUNK_CRCS] = &cairn__format__chunk_crcs__descriptor,
        [SECTION_COMMIT] = &cairn__format__commit__descriptor,
        [SECTION_GENERATION] = &cairn__format__generation__descriptor,
        [SECTION_GENERATION_START] = &cairn__format__generation_start__descriptor,
        [SECTION_STORE] = &cairn__format__store_marker__descriptor,
        [SECTION_MARK] = &cairn__format__mark__descriptor,
};

size_t fuzz_file_bytes(const uint8_t *bytes, size_t count) {
        if (count < HEADER || memcmp(bytes, "CAIRNFMT", 8) != 0)
                return 0;
        uint64_t said = load_le64(bytes + 40);
        return said >= HEADER && said <= count ? (size_t) said : count;
}

uint32_t fuzz_file_kind(const uint8_t *bytes, size_t count) {
        uint32_t kind = count >= 16 ? load_le32(bytes + 12) : 0;
        return kind >= FILE_MANIFEST && kind <= FILE_MARK ? kind : FILE_MANIFEST;
}

struct section {
        uint32_t type;
        const uint8_t *payload;
        size_t bytes;
        bool changed;
};
struct file {
        const uint8_t *header;
        struct section sections[SECTIONS_MAX];
        size_t count;
};

static void split(struct file *file, const uint8_t *bytes, size_t count) {
        *file = (struct file){.header = bytes};
        for (size_t at = HEADER; count - at >= SECTION_HEADER && file->count < SECTIONS_MAX;) {
                uint64_t length = load_le64(bytes + at + 8), left = count - at - SECTION_HEADER;
                size_t n = length < left ? (size_t) length : (size_t) left;
                file->sections[file->count++] =
                        (struct section){.type = load_le32(bytes + at),
                                         .payload = bytes + at + SECTION_HEADER,
                                         .bytes = n};
                size_t padded = (n + 7) & ~(size_t) 7;
                at += SECTION_HEADER + (padded < left ? padded : (size_t) left);
        }
}

static void change_sections(struct file *file, uint64_t *random) {
        if (file->count == 0)
                return;
        size_t i = below(random, file->count), k = below(random, file->count);
        struct section s = file->sections[i];

        switch (below(random, 3)) {
        case 0:
                file->sections[i] = file->sections[k];
                file->sections[k] = s;
                break;
        case 1:
                memmove(&file->sections[i], &file->sections[i + 1], (--file->count - i) * sizeof s);
                break;
        default:
                if (file->count < SECTIONS_MAX)
                        file->sections[file->count++] = s;
        }
}

/* The first tensor's name in a page, as protobuf has it. */
static bool first_name(const struct section *s, struct field *ret) {
        struct field page, f;

        if (!next_field(s->payload, s->bytes, &page) || page.tag != (1 << 3 | 2))
                return false;
        const uint8_t *p = page.value;
        for (size_t left = page.value_bytes; next_field(p, left, &f); p += f.bytes, left -= f.bytes)
                if (f.tag == (1 << 3 | 2)) {
                        *ret = f;
                        return true;
                }
        return false;
}

/* The directory of an INDEX, with offsets of a fixed length so that its size is known at once. */
static void put_directory(struct out *o, const struct file *file, size_t directory) {
        static _Thread_local uint8_t scratch[65536];

        for (int pass = 0; pass < 2; pass++) {
                struct out inner = {.bytes = scratch, .max = sizeof scratch};
                size_t at = o->count + SECTION_HEADER;
                /* In the first pass the size of the directory is not known, in the second it is. */
                at += pass ? (file->sections[directory].bytes + 7) & ~(size_t) 7 : 0;
                for (size_t i = directory + 1; i < file->count; i++) {
                        const struct section *s = &file->sections[i];
                        struct field name = {0};
                        if (s->type == SECTION_TENSORS && first_name(s, &name)) {
                                uint8_t ref[] = {2 << 3,
                                                 (uint8_t) (i & 0x7f),
                                                 3 << 3,
                                                 (uint8_t) (at & 0x7f) | 0x80,
                                                 (uint8_t) (at >> 7 & 0x7f) | 0x80,
                                                 (uint8_t) (at >> 14 & 0x7f)};
                                put_varint(&inner, 1 << 3 | 2);
                                put_varint(&inner, name.bytes + sizeof ref);
                                put(&inner, name.start, name.bytes);
                                put(&inner, ref, sizeof ref);
                        }
                        at += SECTION_HEADER + ((s->bytes + 7) & ~(size_t) 7);
                }
                ((struct file *) (uintptr_t) file)->sections[directory].payload = scratch;
                ((struct file *) (uintptr_t) file)->sections[directory].bytes = inner.count;
        }
}

static void put_section(struct out *o, const struct section *s) {
        uint8_t header[SECTION_HEADER], zeros[8] = {0};

        store_le32(header, s->type);
        store_le32(header + 4, crc32c(0, s->payload, s->bytes));
        store_le64(header + 8, s->bytes);
        put(o, header, sizeof header);
        put(o, s->payload, s->bytes);
        put(o, zeros, -s->bytes & 7);
}

/* Header and sections with right lengths, counts and checksums. */
static void put_file(struct out *o, struct file *file) {
        size_t begin = o->count;
        uint8_t header[HEADER];

        memcpy(header, file->header, sizeof header);
        put(o, header, sizeof header);
        struct out rest = {
                .bytes = o->bytes + begin, .count = o->count - begin, .max = o->max - begin};
        for (size_t i = 0; i < file->count && !rest.full; i++) {
                if (file->sections[i].type == SECTION_PAGE_DIRECTORY && !file->sections[i].changed)
                        put_directory(&rest, file, i);
                put_section(&rest, &file->sections[i]);
        }
        o->count = begin + rest.count;
        o->full |= rest.full;
        if (o->full)
                return;
        store_le32(header + 32, (uint32_t) file->count);
        store_le64(header + 40, rest.count);
        store_le32(header + 60, crc32c(0, header, 60));
        memcpy(o->bytes + begin, header, sizeof header);
}

/* A field of the header: only the checksum is put right. */
static void change_header(uint8_t *bytes, uint64_t *random) {
        size_t at = 8 + 4 * below(random, 13);
        uint64_t v = changed_number(load_le32(bytes + at), random);

        if (at % 8 == 0 && at < 56 && below(random, 2))
                store_le64(bytes + at, v);
        else
                store_le32(bytes + at, (uint32_t) v);
        store_le32(bytes + 60, crc32c(0, bytes, 60));
}

static void mutate_file(struct out *o, const uint8_t *bytes, size_t count, uint64_t *random) {
        static _Thread_local uint8_t scratch[BUFFER_BYTES];
        static _Thread_local struct file file;
        struct out changed = {.bytes = scratch, .max = sizeof scratch};

        split(&file, bytes, count);
        size_t how = below(random, 16), begin = o->count;
        if (how == 0)
                change_sections(&file, random);
        else if (how > 1 && file.count > 0) {
                struct section *s = &file.sections[below(random, file.count)];
                bool known = s->type < sizeof messages / sizeof messages[0] && messages[s->type];
                if (known && how > 2)
                        mutate_message(&changed, s->payload, s->bytes, messages[s->type], random);
                else {
                        put(&changed, s->payload, s->bytes);
                        size_t room = s->bytes + 64 < sizeof scratch ? s->bytes + 64 : s->bytes;
                        changed.count = LLVMFuzzerMutate(scratch, changed.count, room);
                }
                s->payload = scratch;
                s->bytes = changed.count;
                s->changed = true;
        }
        put_file(o, &file);
        if (how == 1 && !o->full)
                change_header(o->bytes + begin, random);
}

size_t fuzz_mutate_files(uint8_t *bytes, size_t count, size_t max, unsigned int seed) {
        uint64_t random = seed;
        size_t files = 0, at = 0, n;

        for (; (n = fuzz_file_bytes(bytes + at, count - at)) > 0; at += n)
                files++;
        if (files == 0 || below(&random, 16) == 0)
                return LLVMFuzzerMutate(bytes, count, max);
        struct out o = {.bytes = malloc(max), .max = max};
        if (!o.bytes)
                abort();
        size_t target = below(&random, files);
        at = 0;
        for (size_t i = 0; i < files; i++, at += n) {
                n = fuzz_file_bytes(bytes + at, count - at);
                if (i == target)
                        mutate_file(&o, bytes + at, n, &random);
                else
                        put(&o, bytes + at, n);
        }
        put(&o, bytes + at, count - at);
        if (!o.full) {
                memcpy(bytes, o.bytes, o.count);
                count = o.count;
        }
        free(o.bytes);
        return count;
}

/* ---- no structure ---- */

size_t fuzz_mutate_plain(uint8_t *bytes, size_t count, size_t max, unsigned int seed) {
        uint64_t random = seed;

        if (count < 8 || below(&random, 3) > 0)
                return LLVMFuzzerMutate(bytes, count, max);
        size_t width = below(&random, 2) ? 8 : 4;
        size_t at = below(&random, (count - width) / 4 + 1) * 4;
        uint64_t v = width == 8 ? load_le64(bytes + at) : load_le32(bytes + at);
        v = changed_number(v, &random);
        memcpy(bytes + at, &v, width);
        return count;
}
