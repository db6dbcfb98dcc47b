/* SPDX-License-Identifier: Apache-2.0 */
#include "format/file.h"
#include "base/assert.h"
#include "base/bytes.h"
#include "base/cleanup.h"
#include "format/check.h"
#include "format/crc32c.h"
#include "format/message.h"
#include "format/names.h"

#include <errno.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SECTION_HEADER_BYTES 16
#define PAGE_BYTES (1 * MiB) /* a page ends with the record that reaches this */
#define CHUNK_CRCS_PER_SECTION 1048576

/* What unpacking may take for each byte of the file. The records that Cairn writes take 10 to 40 (a
 * tensor of 30 bytes becomes a struct of 180); only a file made to hurt takes more. */
#define UNPACK_FACTOR 64
#define UNPACK_BYTES_MIN (64 * KiB)

static const uint8_t magic[8] = {'C', 'A', 'I', 'R', 'N', 'F', 'M', 'T'};

/* ---- the tables ---- */

struct kind_row {
        const char *name;
        uint64_t bytes_max;
};
static const struct kind_row kinds[] = {
        [FILE_MANIFEST] = {"manifest", INVENTORY_BYTES_MAX},
        [FILE_INDEX] = {"index", INVENTORY_BYTES_MAX * 16},
        [FILE_COMMIT] = {"commit record", 2 * FILE_SECTION_BYTES_MAX},
        [FILE_GENERATION] = {"generation", FILE_SECTION_BYTES_MAX},
        [FILE_GENERATION_START] = {"generation start", 1 * MiB},
        [FILE_STORE] = {"store marker", 1 * MiB},
        [FILE_INVENTORY] = {"inventory", INVENTORY_BYTES_MAX},
        [FILE_MARK] = {"mark", 1 * MiB},
};
#define KIND_COUNT (sizeof kinds / sizeof kinds[0])

const char *file_kind_name(enum file_kind kind) {
        return (size_t) kind < KIND_COUNT && kinds[kind].name ? kinds[kind].name : "unknown file";
}

/* How a section type maps to struct file_content. ONE: a pointer; EACH: an array, one section a
 * message; PAGED: an array, the messages are the repeated field 1 of the section's message. */
enum section_shape { SHAPE_ONE, SHAPE_EACH, SHAPE_PAGED };
struct section_row {
        const char *name;
        const ProtobufCMessageDescriptor *descriptor;
        unsigned kinds; /* mask of the file kinds where it may stand */
        uint64_t count_min, count_max;
        enum section_shape shape;
        size_t content_offset, count_offset; /* in struct file_content; SIZE_MAX: not kept there */
};
#define IN(kind) (1u << (kind))
#define AT(member) offsetof(struct file_content, member)
static const struct section_row rows[] = {
        [SECTION_HEAD] = {"head", &cairn__format__head__descriptor,
                          IN(FILE_MANIFEST) | IN(FILE_INDEX) | IN(FILE_COMMIT), 1, 1, SHAPE_ONE,
                          AT(head), SIZE_MAX},
        [SECTION_INVENTORY_HEAD] = {"inventory head", &cairn__format__inventory_head__descriptor,
                                    IN(FILE_INVENTORY), 1, 1, SHAPE_ONE, AT(inventory), SIZE_MAX},
        [SECTION_PAGE_DIRECTORY] = {"page directory", &cairn__format__page_directory__descriptor,
                                    IN(FILE_INDEX), 1, 1, SHAPE_ONE, SIZE_MAX, SIZE_MAX},
        [SECTION_TENSORS] = {"tensors", &cairn__format__tensor_page__descriptor,
                             IN(FILE_MANIFEST) | IN(FILE_INDEX) | IN(FILE_INVENTORY), 0, UINT32_MAX,
                             SHAPE_PAGED, AT(tensors), AT(tensor_count)},
        [SECTION_PLACEMENTS] = {"placements", &cairn__format__placement_page__descriptor,
                                IN(FILE_INVENTORY), 0, UINT32_MAX, SHAPE_PAGED, AT(placements),
                                AT(placement_count)},
        [SECTION_STATE] = {"state", &cairn__format__state__descriptor,
                           IN(FILE_MANIFEST) | IN(FILE_INDEX), 1, RANK_COUNT_MAX, SHAPE_EACH,
                           AT(states), AT(state_count)},
        [SECTION_CHUNK_CRCS] = {"chunk checksums", &cairn__format__chunk_crcs__descriptor,
                                IN(FILE_MANIFEST) | IN(FILE_INDEX), 1, UINT32_MAX, SHAPE_EACH,
                                AT(chunk_crcs), AT(chunk_crcs_count)},
        [SECTION_COMMIT] = {"commit", &cairn__format__commit__descriptor, IN(FILE_COMMIT), 1, 1,
                            SHAPE_ONE, AT(commit), SIZE_MAX},
        [SECTION_GENERATION] = {"generation", &cairn__format__generation__descriptor,
                                IN(FILE_GENERATION), 1, 1, SHAPE_ONE, AT(generation), SIZE_MAX},
        [SECTION_GENERATION_START] = {"generation start",
                                      &cairn__format__generation_start__descriptor,
                                      IN(FILE_GENERATION_START), 1, 1, SHAPE_ONE,
                                      AT(generation_start), SIZE_MAX},
        [SECTION_STORE] = {"store", &cairn__format__store_marker__descriptor, IN(FILE_STORE), 1, 1,
                           SHAPE_ONE, AT(store), SIZE_MAX},
        [SECTION_MARK] = {"mark", &cairn__format__mark__descriptor, IN(FILE_MARK), 1, 1, SHAPE_ONE,
                          AT(mark), SIZE_MAX},
};
#define ROW_COUNT (sizeof rows / sizeof rows[0])

const char *section_name(uint32_t type) {
        return type < ROW_COUNT && rows[type].name ? rows[type].name : "unknown section";
}

static ProtobufCMessage **content_array(const struct file_content *content, uint32_t type,
                                        size_t *ret_count) {
        const char *base = (const char *) content;
        memcpy(ret_count, base + rows[type].count_offset, sizeof *ret_count);
        ProtobufCMessage **array;
        memcpy(&array, base + rows[type].content_offset, sizeof(void *));
        return array;
}

static ProtobufCMessage *content_one(const struct file_content *content, uint32_t type) {
        ProtobufCMessage *message;
        memcpy(&message, (const char *) content + rows[type].content_offset, sizeof(void *));
        return message;
}

/* ---- writing ---- */

/* A page of tensors, for the directory. */
struct page {
        const Cairn__Format__Tensor *first;
        uint64_t offset; /* of the section, as long as there is no directory before it */
};
struct writer {
        uint8_t *bytes;
        size_t count, capacity;
        size_t section_at; /* where the section that is being written began */
        uint32_t section_count;
        const struct file_content *content;
        struct page *pages;
        size_t page_count;
        struct cairn_error *reterr;
};

static int no_memory(struct writer *w, uint64_t bytes) {
        return error_set(w->reterr, CAIRN_ERR_NOMEM, "write file", file_kind_name(w->content->kind),
                         "%" PRIu64 " bytes of memory are not available", bytes);
}

static int reserve(struct writer *w, size_t bytes) {
        size_t wanted = w->count + bytes;

        if (wanted <= w->capacity)
                return 0;
        size_t capacity = w->capacity * 2 > wanted ? w->capacity * 2 : wanted + 4096;
        uint8_t *larger = realloc(w->bytes, capacity);
        if (!larger)
                return no_memory(w, capacity);
        w->bytes = larger;
        w->capacity = capacity;
        return 0;
}

static uint64_t padded(uint64_t bytes) {
        return (bytes + 7) & ~UINT64_C(7);
}

/* Sections are appended: begin, put messages, end. */
static int section_begin(struct writer *w, uint32_t type) {
        TRY(reserve(w, SECTION_HEADER_BYTES));
        w->section_at = w->count;
        store_le32(w->bytes + w->count, type);
        w->count += SECTION_HEADER_BYTES;
        return 0;
}

static uint64_t section_bytes(const struct writer *w) {
        return w->count - w->section_at - SECTION_HEADER_BYTES;
}

static int section_end(struct writer *w) {
        uint64_t bytes = section_bytes(w);
        size_t padding = (size_t) (padded(bytes) - bytes);

        if (bytes > FILE_SECTION_BYTES_MAX)
                return error_set(
                        w->reterr, CAIRN_ERR_NOMEM, "write file", file_kind_name(w->content->kind),
                        "section %" PRIu32 " (%s) would have %" PRIu64 " bytes, more than %" PRIu64,
                        w->section_count, section_name(load_le32(w->bytes + w->section_at)), bytes,
                        FILE_SECTION_BYTES_MAX);
        TRY(reserve(w, padding));
        memset(w->bytes + w->count, 0, padding);
        w->count += padding;
        uint8_t *header = w->bytes + w->section_at;
        store_le32(header + 4, crc32c(0, header + SECTION_HEADER_BYTES, (size_t) bytes));
        store_le64(header + 8, bytes);
        w->section_count++;
        return 0;
}

/* As field `id` of the section's message, or as that message itself. */
static int put(struct writer *w, uint32_t id, const ProtobufCMessage *m) {
        for (;;) {
                uint8_t *at = w->bytes + w->count;
                size_t room = w->capacity - w->count;
                size_t bytes = id ? message_pack_field(id, m, at, room) : message_pack(m, at, room);
                if (bytes != SIZE_MAX) {
                        w->count += bytes;
                        return 0;
                }
                TRY(reserve(w, room + 1));
        }
}

static int write_message(struct writer *w, uint32_t type, const ProtobufCMessage *message) {
        TRY(section_begin(w, type));
        TRY(put(w, 0, message));
        return section_end(w);
}

/* The page at hand ends, and one that begins with this record follows. */
static int next_page(struct writer *w, uint32_t type, const ProtobufCMessage *first,
                     bool is_first) {
        if (!is_first)
                TRY(section_end(w));
        if (type == SECTION_TENSORS) {
                struct page *pages = realloc(w->pages, (w->page_count + 1) * sizeof *pages);
                if (!pages)
                        return no_memory(w, (w->page_count + 1) * sizeof *pages);
                w->pages = pages;
                pages[w->page_count++] =
                        (struct page){.first = (const void *) first, .offset = w->count};
        }
        return section_begin(w, type);
}

/* A page's message is `repeated X items = 1`. */
static int write_pages(struct writer *w, uint32_t type) {
        size_t count;
        ProtobufCMessage **items = content_array(w->content, type, &count);

        for (size_t i = 0; i < count; i++) {
                if (i == 0 || section_bytes(w) >= PAGE_BYTES)
                        TRY(next_page(w, type, items[i], i == 0));
                size_t before = w->count;
                TRY(put(w, 1, items[i]));
                if (section_bytes(w) > FILE_SECTION_BYTES_MAX &&
                    before > w->section_at + SECTION_HEADER_BYTES) {
                        w->count = before;
                        TRY(next_page(w, type, items[i], false));
                        TRY(put(w, 1, items[i]));
                }
        }
        return count ? section_end(w) : 0;
}

/* Before the pages, whose offsets depend on its own size, which depends on how long the offsets are
 * as varints. Both only grow, so that a few turns find the size that fits. */
static int insert_directory(struct writer *w, size_t pages_at) {
        size_t slots = w->page_count + 1, pages_to = w->count;
        /* One block: the references, and behind them the pointers that protobuf-c wants. */
        _cleanup_free_ Cairn__Format__PageRef *refs = calloc(slots, sizeof *refs + sizeof(void *));
        Cairn__Format__PageDirectory directory = CAIRN__FORMAT__PAGE_DIRECTORY__INIT;
        size_t whole = 0, assumed;

        if (!refs)
                return no_memory(w, slots * (sizeof *refs + sizeof(void *)));
        directory.pages = (void *) (refs + slots);
        directory.n_pages = w->page_count;
        uint32_t section = w->section_count - (uint32_t) w->page_count;
        do {
                assumed = whole;
                for (size_t i = 0; i < w->page_count; i++) {
                        refs[i] = (Cairn__Format__PageRef) CAIRN__FORMAT__PAGE_REF__INIT;
                        refs[i].first_name = w->pages[i].first->name;
                        refs[i].section = section + 1 + (uint32_t) i;
                        refs[i].offset = w->pages[i].offset + assumed;
                        directory.pages[i] = &refs[i];
                }
                w->count = pages_to;
                w->section_count = section + (uint32_t) w->page_count;
                TRY(write_message(w, SECTION_PAGE_DIRECTORY, &directory.base));
                whole = w->count - pages_to;
        } while (whole != assumed);
        _cleanup_free_ uint8_t *copy = malloc(whole);
        if (!copy)
                return no_memory(w, whole);
        memcpy(copy, w->bytes + pages_to, whole);
        memmove(w->bytes + pages_at + whole, w->bytes + pages_at, pages_to - pages_at);
        memcpy(w->bytes + pages_at, copy, whole);
        return 0;
}

/* At most CHUNK_CRCS_PER_SECTION checksums a section, whatever the caller's messages hold. */
static int write_chunk_crcs(struct writer *w) {
        for (size_t i = 0; i < w->content->chunk_crcs_count; i++) {
                Cairn__Format__ChunkCrcs part = *w->content->chunk_crcs[i];
                size_t left = part.n_crc32c;
                do {
                        part.n_crc32c =
                                left < CHUNK_CRCS_PER_SECTION ? left : CHUNK_CRCS_PER_SECTION;
                        TRY(write_message(w, SECTION_CHUNK_CRCS, &part.base));
                        left -= part.n_crc32c;
                        part.first_chunk += part.n_crc32c;
                        part.crc32c += part.n_crc32c;
                } while (left > 0);
        }
        return 0;
}

static int write_row(struct writer *w, uint32_t type) {
        size_t count = 0;

        if (type == SECTION_PAGE_DIRECTORY)
                return 0; /* once the pages are there */
        if (type == SECTION_CHUNK_CRCS)
                return write_chunk_crcs(w);
        if (rows[type].shape == SHAPE_PAGED) {
                size_t at = w->count;
                TRY(write_pages(w, type));
                bool has_directory = rows[SECTION_PAGE_DIRECTORY].kinds & IN(w->content->kind);
                return has_directory ? insert_directory(w, at) : 0;
        }
        if (rows[type].shape == SHAPE_ONE) {
                ProtobufCMessage *message = content_one(w->content, type);
                return message ? write_message(w, type, message) : 0;
        }
        ProtobufCMessage **items = content_array(w->content, type, &count);
        for (size_t i = 0; i < count; i++)
                TRY(write_message(w, type, items[i]));
        return 0;
}

static uint64_t incompatible_features(const struct file_content *content) {
        if (content->kind != FILE_INDEX)
                return 0;
        for (size_t i = 0; i < content->tensor_count; i++) {
                const Cairn__Format__Tensor *t = content->tensors[i];
                if (t->n_extents > 1 && !t->extents[0]->shard)
                        return FILE_FEATURE_COPIES;
        }
        return 0;
}

static void write_header(struct writer *w) {
        uint8_t *header = w->bytes;

        memset(header, 0, FILE_HEADER_BYTES);
        memcpy(header, magic, sizeof magic);
        store_le32(header + 8, FILE_VERSION);
        store_le32(header + 12, w->content->kind);
        store_le64(header + 16, FILE_FEATURES_COMPAT);
        store_le64(header + 24, incompatible_features(w->content));
        store_le32(header + 32, w->section_count);
        store_le64(header + 40, w->count);
        store_le32(header + 60, crc32c(0, header, 60));
}

int file_write_unchecked(const struct file_content *content, void **ret, size_t *ret_bytes,
                         struct cairn_error *reterr) {
        struct writer w = {.content = content, .reterr = reterr};
        int r = reserve(&w, FILE_HEADER_BYTES);

        w.count = FILE_HEADER_BYTES;
        for (uint32_t type = 1; type < ROW_COUNT && r == 0; type++)
                if (rows[type].kinds & IN(content->kind))
                        r = write_row(&w, type);
        free(w.pages);
        if (r < 0 || !w.bytes) {
                free(w.bytes);
                return r;
        }
        write_header(&w);
        *ret = w.bytes;
        *ret_bytes = w.count;
        return 0;
}

int file_write(const struct file_content *content, void **ret, size_t *ret_bytes,
               struct cairn_error *reterr) {
        TRY(file_check(content, file_kind_name(content->kind), reterr));
        return file_write_unchecked(content, ret, ret_bytes, reterr);
}

/* ---- reading ---- */

struct unpack_budget {
        struct arena *arena;
        uint64_t left;
        bool exceeded,
                refused; /* more than the file may ask for; more than the caller's arena has */
};
struct reader {
        const uint8_t *bytes;
        size_t count;
        const char *object;
        struct unpack_budget budget;
        struct section_place *sections;
        ProtobufCMessage **messages;
        uint32_t section_count;
        struct cairn_error *reterr;
};

static int fail_at(const struct reader *rd, int status, const char *operation, uint64_t offset,
                   const char *message) {
        (void) error_set(rd->reterr, status, operation, rd->object, "%s", message);
        if (rd->reterr)
                rd->reterr->offset = offset;
        return status;
}

static int fail_section(const struct reader *rd, int status, size_t index, const char *message) {
        char operation[48];

        (void) snprintf(operation, sizeof operation, "read section %zu (%s)", index,
                        section_name(rd->sections[index].type));
        return fail_at(rd, status, operation, rd->sections[index].offset, message);
}

static int read_header(struct reader *rd, enum file_kind expected) {
        const uint8_t *h = rd->bytes;
        const char *operation = "read header";

        if (rd->count < FILE_HEADER_BYTES)
                return fail_at(rd, CAIRN_ERR_CORRUPT, operation, rd->count,
                               "the file is shorter than its header");
        if (memcmp(h, magic, sizeof magic) != 0)
                return fail_at(rd, CAIRN_ERR_CORRUPT, operation, 0, "it is no file of Cairn's");
        if (load_le32(h + 60) != crc32c(0, h, 60))
                return fail_at(rd, CAIRN_ERR_CORRUPT, operation, 60, "the checksum differs");
        if (load_le32(h + 8) != FILE_VERSION)
                return fail_at(rd, CAIRN_ERR_UNSUPPORTED, operation, 8,
                               "the file has another format version than this program knows");
        if (load_le64(h + 24) & ~FILE_FEATURES_INCOMPAT)
                return fail_at(rd, CAIRN_ERR_UNSUPPORTED, operation, 24,
                               "the file needs a feature that this program does not know");
        if (load_le32(h + 12) != expected)
                return fail_at(rd, CAIRN_ERR_CORRUPT, operation, 12,
                               "the file is of another kind than its name says");
        if (load_le64(h + 40) != rd->count)
                return fail_at(rd, CAIRN_ERR_CORRUPT, operation, 40,
                               "the file is longer or shorter than it was written");
        if (load_le32(h + 36) || load_le64(h + 48) || load_le32(h + 56))
                return fail_at(rd, CAIRN_ERR_CORRUPT, operation, 36, "reserved bytes are not zero");
        rd->section_count = load_le32(h + 32);
        if (rd->section_count > (rd->count - FILE_HEADER_BYTES) / SECTION_HEADER_BYTES)
                return fail_at(rd, CAIRN_ERR_CORRUPT, operation, 32,
                               "it announces more sections than there is room for");
        return 0;
}

static void *budget_alloc(void *context, size_t bytes) {
        struct unpack_budget *budget = context;

        bytes = bytes > SIZE_MAX - 15 ? bytes : (bytes + 15) & ~(size_t) 15;
        if (bytes > budget->left) {
                budget->exceeded = true;
                return NULL;
        }
        budget->left -= bytes;
        void *p = arena_alloc(budget->arena, bytes, _Alignof(max_align_t));
        budget->refused |= !p;
        return p;
}

static void budget_free(void *context, void *pointer) {
}

static int read_allocate(struct reader *rd, size_t count, size_t bytes, void **ret) {
        *ret = budget_alloc(&rd->budget, (count ? count : 1) * bytes);
        if (*ret)
                return 0;
        return rd->budget.refused ? fail_at(rd, CAIRN_ERR_NOMEM, "read file", UINT64_MAX,
                                            "there is not enough memory for it")
                                  : fail_at(rd, CAIRN_ERR_CORRUPT, "read file", UINT64_MAX,
                                            "it asks for far more memory than it has bytes");
}

/* Length, checksum and padding of the section at `at`; nothing is allocated yet. */
static int read_section(struct reader *rd, size_t index, uint32_t type_before, uint64_t at,
                        enum file_kind kind) {
        struct section_place *place = &rd->sections[index];
        const uint8_t *h = rd->bytes + at;

        *place = (struct section_place){.offset = at};
        if (rd->count - at < SECTION_HEADER_BYTES)
                return fail_section(rd, CAIRN_ERR_CORRUPT, index, "the file ends in its header");
        place->type = load_le32(h);
        place->bytes = load_le64(h + 8);
        if (place->bytes > FILE_SECTION_BYTES_MAX ||
            padded(place->bytes) > rd->count - at - SECTION_HEADER_BYTES)
                return fail_section(rd, CAIRN_ERR_CORRUPT, index,
                                    "it is longer than the file or than any section");
        if (load_le32(h + 4) != crc32c(0, h + SECTION_HEADER_BYTES, (size_t) place->bytes))
                return fail_section(rd, CAIRN_ERR_CORRUPT, index, "the checksum differs");
        for (uint64_t i = place->bytes; i < padded(place->bytes); i++)
                if (h[SECTION_HEADER_BYTES + i])
                        return fail_section(rd, CAIRN_ERR_CORRUPT, index,
                                            "its padding is not zero");
        if (place->type >= ROW_COUNT || !rows[place->type].name)
                return fail_section(rd, CAIRN_ERR_UNSUPPORTED, index,
                                    "this program does not know its type");
        if (!(rows[place->type].kinds & IN(kind)))
                return fail_section(rd, CAIRN_ERR_CORRUPT, index,
                                    "it does not belong in this kind of file");
        if (place->type < type_before)
                return fail_section(rd, CAIRN_ERR_CORRUPT, index, "it stands in the wrong order");
        return 0;
}

static int read_sections(struct reader *rd, enum file_kind kind) {
        uint64_t at = FILE_HEADER_BYTES, counts[ROW_COUNT] = {0};
        uint32_t type = 0;
        void *memory;

        TRY(read_allocate(rd, rd->section_count, sizeof *rd->sections, &memory));
        rd->sections = memory;
        for (uint32_t i = 0; i < rd->section_count; i++) {
                TRY(read_section(rd, i, type, at, kind));
                type = rd->sections[i].type;
                counts[type]++;
                at += SECTION_HEADER_BYTES + padded(rd->sections[i].bytes);
        }
        if (at != rd->count)
                return fail_at(rd, CAIRN_ERR_CORRUPT, "read file", at,
                               "there are bytes behind its last section");
        for (type = 1; type < ROW_COUNT; type++)
                if ((rows[type].kinds & IN(kind)) &&
                    (counts[type] < rows[type].count_min || counts[type] > rows[type].count_max)) {
                        char operation[48];
                        (void) snprintf(operation, sizeof operation, "count sections (%s)",
                                        section_name(type));
                        return fail_at(rd, CAIRN_ERR_CORRUPT, operation, UINT64_MAX,
                                       "there are too few or too many of them");
                }
        return 0;
}

/* protobuf-c keeps what it does not know, fields of number 0 as well, but does not read such a one
 * back after it was written: a merge would make a file that nobody can open. */
static bool has_field_zero(const ProtobufCMessage *m) {
        const char *base = (const char *) m;

        for (unsigned i = 0; i < m->n_unknown_fields; i++)
                if (m->unknown_fields[i].tag == 0)
                        return true;
        for (unsigned i = 0; i < m->descriptor->n_fields; i++) {
                const ProtobufCFieldDescriptor *f = &m->descriptor->fields[i];
                ProtobufCMessage *one, **items = &one;
                size_t count = 1;
                if (f->type != PROTOBUF_C_TYPE_MESSAGE)
                        continue;
                if (f->label == PROTOBUF_C_LABEL_REPEATED) {
                        memcpy(&count, base + f->quantifier_offset, sizeof count);
                        memcpy(&items, base + f->offset, sizeof(void *));
                } else {
                        memcpy(&one, base + f->offset, sizeof(void *));
                }
                for (size_t k = 0; k < count; k++)
                        if (items[k] && has_field_zero(items[k]))
                                return true;
        }
        return false;
}

static ProtobufCMessage *unpack_section(struct reader *rd, const struct section_place *place) {
        ProtobufCAllocator allocator = {budget_alloc, budget_free, &rd->budget};
        const ProtobufCMessageDescriptor *d = rows[place->type].descriptor;
        const uint8_t *payload = rd->bytes + place->offset + SECTION_HEADER_BYTES;
        const struct unpack_budget before = rd->budget;

        ProtobufCMessage *m = message_unpack(d, &allocator, payload, (size_t) place->bytes);
        if (m)
                return m;
        rd->budget = before;
        m = protobuf_c_message_unpack(d, &allocator, (size_t) place->bytes, payload);
        return m && !has_field_zero(m) ? m : NULL;
}

static int unpack_sections(struct reader *rd) {
        void *memory;

        TRY(read_allocate(rd, rd->section_count, sizeof(void *), &memory));
        rd->messages = memory;
        for (uint32_t i = 0; i < rd->section_count; i++) {
                rd->messages[i] = unpack_section(rd, &rd->sections[i]);
                if (rd->messages[i])
                        continue;
                if (rd->budget.refused)
                        return fail_section(rd, CAIRN_ERR_NOMEM, i,
                                            "there is not enough memory for it");
                return fail_section(rd, CAIRN_ERR_CORRUPT, i,
                                    rd->budget.exceeded
                                            ? "it asks for far more memory than it has bytes"
                                            : "it is not a valid protobuf message");
        }
        return 0;
}

/* The records of a page: field 1 of its message, whatever it is called. */
static ProtobufCMessage **page_items(const ProtobufCMessage *page, size_t *ret_count) {
        const ProtobufCFieldDescriptor *field = &page->descriptor->fields[0];
        const char *base = (const char *) page;
        ProtobufCMessage **items;

        memcpy(ret_count, base + field->quantifier_offset, sizeof *ret_count);
        memcpy(&items, base + field->offset, sizeof(void *));
        return items;
}

/* Put the messages of one section type where struct file_content keeps them. */
static int gather(struct reader *rd, uint32_t type, struct file_content *ret) {
        const struct section_row *row = &rows[type];
        size_t total = 0, count, n = 0;
        void *memory;

        for (uint32_t i = 0; i < rd->section_count; i++) {
                struct section_place *place = &rd->sections[i];
                if (place->type != type)
                        continue;
                count = 1;
                if (row->shape == SHAPE_PAGED)
                        (void) page_items(rd->messages[i], &count);
                place->first_item = total;
                place->item_count = count;
                total += count;
        }
        if (row->shape == SHAPE_ONE && row->content_offset == SIZE_MAX)
                return 0;
        TRY(read_allocate(rd, total, sizeof(void *), &memory));
        ProtobufCMessage **array = memory;
        for (uint32_t i = 0; i < rd->section_count; i++) {
                if (rd->sections[i].type != type)
                        continue;
                if (row->shape != SHAPE_PAGED) {
                        array[n++] = rd->messages[i];
                        continue;
                }
                ProtobufCMessage **items = page_items(rd->messages[i], &count);
                if (count > 0)
                        memcpy(array + n, items, count * sizeof(void *));
                n += count;
        }
        char *base = (char *) ret;
        if (row->shape == SHAPE_ONE) {
                if (total > 0)
                        memcpy(base + row->content_offset, &array[0], sizeof(void *));
                return 0;
        }
        memcpy(base + row->content_offset, &array, sizeof(void *));
        memcpy(base + row->count_offset, &total, sizeof total);
        return 0;
}

/* A reader that needs a few tensors trusts the directory: it must say what the pages are. */
static int check_directory(const struct reader *rd, const struct file_content *content) {
        const Cairn__Format__PageDirectory *directory = NULL;
        size_t n = 0, at = 0;

        for (uint32_t i = 0; i < rd->section_count && !directory; i++)
                if (rd->sections[i].type == SECTION_PAGE_DIRECTORY) {
                        directory = (const void *) rd->messages[i];
                        at = i;
                }
        for (uint32_t i = 0; directory && i < rd->section_count; i++) {
                const struct section_place *place = &rd->sections[i];
                if (place->type != SECTION_TENSORS)
                        continue;
                if (n >= directory->n_pages || place->item_count == 0)
                        return fail_section(rd, CAIRN_ERR_CORRUPT, at,
                                            "a page is empty or missing");
                const Cairn__Format__PageRef *ref = directory->pages[n++];
                const ProtobufCBinaryData *name = &content->tensors[place->first_item]->name;
                if (ref->section != i || ref->offset != place->offset ||
                    ref->first_name.len != name->len ||
                    (name->len && memcmp(ref->first_name.data, name->data, name->len) != 0))
                        return fail_section(rd, CAIRN_ERR_CORRUPT, at,
                                            "it does not say where the pages are");
        }
        if (directory && n != directory->n_pages)
                return fail_section(rd, CAIRN_ERR_CORRUPT, at, "it names pages that do not exist");
        return 0;
}

int file_read(const void *bytes, size_t bytes_count, enum file_kind expected, const char *object,
              struct arena *arena, struct file_content *ret, struct cairn_error *reterr) {
        struct reader rd = {
                .bytes = bytes, .count = bytes_count, .object = object, .reterr = reterr};
        struct file_content content = {.kind = expected};

        CAIRN_ASSERT((size_t) expected < KIND_COUNT && kinds[expected].name);
        TRY(read_header(&rd, expected));
        rd.budget = (struct unpack_budget){
                .arena = arena, .left = UNPACK_FACTOR * (uint64_t) bytes_count + UNPACK_BYTES_MIN};
        TRY(read_sections(&rd, expected));
        TRY(unpack_sections(&rd));
        for (uint32_t type = 1; type < ROW_COUNT; type++)
                if (rows[type].kinds & IN(expected))
                        TRY(gather(&rd, type, &content));
        TRY(check_content(
                &(struct check){&content, object, rd.sections, rd.section_count, reterr}));
        TRY(check_directory(&rd, &content));
        if (load_le64(rd.bytes + 24) != incompatible_features(&content))
                return fail_at(&rd, CAIRN_ERR_CORRUPT, "read header", 24,
                               "it does not say whether tensors are there in several copies");
        *ret = content;
        return 0;
}

int file_check_header(const void *header, uint64_t bytes, enum file_kind expected,
                      const char *object, struct cairn_error *reterr) {
        struct reader rd = {.bytes = header, .count = bytes, .object = object, .reterr = reterr};

        return read_header(&rd, expected);
}

int file_load(const struct io_ops *io, int dirfd, const char *path, enum file_kind expected,
              struct arena *arena, struct file_content *ret, uint32_t *ret_crc, uint64_t *ret_bytes,
              struct cairn_error *reterr) {
        void *bytes = NULL;
        size_t count = 0;

        CAIRN_ASSERT((size_t) expected < KIND_COUNT && kinds[expected].name);
        TRY(io_read_file(io, dirfd, path, kinds[expected].bytes_max, &bytes, &count, reterr));
        if (!arena_adopt(arena, bytes, count)) {
                free(bytes);
                return error_set_errno(reterr, ENOMEM, "read", path);
        }
        TRY(file_read(bytes, count, expected, path, arena, ret, reterr));
        if (ret_crc)
                *ret_crc = crc32c(0, bytes, count);
        if (ret_bytes)
                *ret_bytes = count;
        return 0;
}
