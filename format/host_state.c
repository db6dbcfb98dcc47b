/* SPDX-License-Identifier: Apache-2.0 */
#include "format/host_state.h"
#include "base/assert.h"
#include "base/bytes.h"
#include "format/crc32c.h"

#define HEADER_BYTES 4096
#define PAGE_BYTES 4096

static_assert(sizeof(struct host_state_slot) == 64, "the payload starts on its own cache line");

/* ---- layout ---- */

static int compare_names(const void *a, const void *b) {
        return strcmp(*(const char *const *) a, *(const char *const *) b);
}

static int check_names(const struct host_value *values, size_t count, struct cairn_error *reterr) {
        const char **names = calloc(count ? count : 1, sizeof *names);
        int r = 0;

        if (!names)
                return error_set(reterr, CAIRN_ERR_NOMEM, "lay out host state", "",
                                 "out of memory");
        for (size_t i = 0; i < count; i++)
                names[i] = values[i].name;
        qsort(names, count, sizeof *names, compare_names);
        for (size_t i = 1; i < count && r == 0; i++)
                if (strcmp(names[i - 1], names[i]) == 0)
                        r = error_set(reterr, CAIRN_ERR_API, "lay out host state", names[i],
                                      "two values have this name");
        free(names);
        return r;
}

static int value_bytes(const struct host_value *v, uint64_t *ret, struct cairn_error *reterr) {
        const char *operation = "lay out host state";
        size_t name_bytes = v->name ? strlen(v->name) : 0;

        if (name_bytes == 0 || name_bytes > TENSOR_NAME_BYTES_MAX)
                return error_set(reterr, CAIRN_ERR_API, operation, "", "a name has 1 to %llu bytes",
                                 (unsigned long long) TENSOR_NAME_BYTES_MAX);
        switch (v->type) {
        case CAIRN_VALUE_I64:
        case CAIRN_VALUE_U64:
        case CAIRN_VALUE_F64:
                *ret = 8;
                return 0;
        case CAIRN_VALUE_BYTES:
                if (v->capacity > HOST_STATE_BYTES_MAX)
                        return error_set(reterr, CAIRN_ERR_API, operation, v->name,
                                         "a capacity of %llu bytes; host state has at most %llu: "
                                         "register larger state as a tensor",
                                         (unsigned long long) v->capacity,
                                         (unsigned long long) HOST_STATE_BYTES_MAX);
                *ret = 8 + ((v->capacity + 7) & ~UINT64_C(7));
                return 0;
        default:
                return error_set(reterr, CAIRN_ERR_API, operation, v->name, "unknown type %u",
                                 v->type);
        }
}

int host_state_layout(struct host_value *values, size_t count, uint64_t *ret_payload_bytes,
                      struct cairn_error *reterr) {
        uint64_t offset = 0;

        if (count > HOST_STATE_VALUES_MAX)
                return error_set(reterr, CAIRN_ERR_API, "lay out host state", "",
                                 "%zu values, but at most %d", count, HOST_STATE_VALUES_MAX);
        for (size_t i = 0; i < count; i++) {
                uint64_t bytes = 0;

                TRY(value_bytes(&values[i], &bytes, reterr));
                values[i].offset = offset;
                offset += bytes; /* both are far below 2^63 */
                if (offset > HOST_STATE_BYTES_MAX)
                        return error_set(reterr, CAIRN_ERR_API, "lay out host state",
                                         values[i].name,
                                         "the values together exceed %llu bytes: register large "
                                         "state as a tensor",
                                         (unsigned long long) HOST_STATE_BYTES_MAX);
        }
        TRY(check_names(values, count, reterr));
        *ret_payload_bytes = offset;
        return 0;
}

/* ---- the memfd ---- */

static uint64_t slot_stride(uint64_t payload_bytes) {
        uint64_t bytes = sizeof(struct host_state_slot) + payload_bytes;

        return (bytes + PAGE_BYTES - 1) & ~(uint64_t) (PAGE_BYTES - 1);
}

uint64_t host_state_bytes(uint64_t payload_bytes) {
        return HEADER_BYTES + 2 * slot_stride(payload_bytes);
}

void host_state_init(void *mapping, uint64_t payload_bytes) {
        struct host_state_header *h = mapping;

        CAIRN_ASSERT(payload_bytes <= HOST_STATE_BYTES_MAX && payload_bytes % 8 == 0);
        memcpy(h->magic, HOST_STATE_MAGIC, sizeof h->magic);
        h->version = 1;
        h->payload_bytes = payload_bytes;
        h->slot_stride = slot_stride(payload_bytes);
}

int host_state_check(const void *mapping, uint64_t mapping_bytes, struct cairn_error *reterr) {
        const char *operation = "check host state";
        struct host_state_header h;

        if (mapping_bytes < HEADER_BYTES)
                return error_set(reterr, CAIRN_ERR_CORRUPT, operation, "", "%llu bytes are too few",
                                 (unsigned long long) mapping_bytes);
        memcpy(&h, mapping, sizeof h); /* the other side may change it under us */
        if (memcmp(h.magic, HOST_STATE_MAGIC, sizeof h.magic) != 0)
                return error_set(reterr, CAIRN_ERR_CORRUPT, operation, "", "this is no host state");
        if (h.version != 1)
                return error_set(reterr, CAIRN_ERR_UNSUPPORTED, operation, "",
                                 "version %u; this program knows 1", h.version);
        if (h.payload_bytes > HOST_STATE_BYTES_MAX || h.payload_bytes % 8 != 0 ||
            h.slot_stride != slot_stride(h.payload_bytes) ||
            mapping_bytes != host_state_bytes(h.payload_bytes))
                return error_set(reterr, CAIRN_ERR_CORRUPT, operation, "",
                                 "payload %llu, stride %llu and size %llu disagree",
                                 (unsigned long long) h.payload_bytes,
                                 (unsigned long long) h.slot_stride,
                                 (unsigned long long) mapping_bytes);
        return 0;
}

/* ---- slots ---- */

/* A seqlock without fences: every word is stored with release and loaded with acquire order, so
 * that no word can move before the first store of `lock` or after its second load. On x86 these are
 * plain moves. */
static void store_words(uint64_t *target, const void *source, uint64_t bytes) {
        for (uint64_t i = 0; i < bytes / 8; i++) {
                uint64_t word;

                memcpy(&word, (const unsigned char *) source + 8 * i, 8);
                __atomic_store_n(&target[i], word, __ATOMIC_RELEASE);
        }
}

static void load_words(void *target, const uint64_t *source, uint64_t bytes) {
        for (uint64_t i = 0; i < bytes / 8; i++) {
                uint64_t word = __atomic_load_n(&source[i], __ATOMIC_ACQUIRE);

                memcpy((unsigned char *) target + 8 * i, &word, 8);
        }
}

static uint32_t slot_crc(uint64_t seq, int64_t step, uint64_t payload_bytes, const void *payload) {
        unsigned char head[24];

        store_le64(head, seq);
        store_le64(head + 8, (uint64_t) step);
        store_le64(head + 16, payload_bytes);
        return crc32c(crc32c(0, head, sizeof head), payload, payload_bytes);
}

void host_state_publish(void *mapping, uint64_t seq, int64_t step, const void *payload) {
        const struct host_state_header *h = mapping;
        uint64_t bytes = h->payload_bytes;
        struct host_state_slot *slot = (void *) ((unsigned char *) mapping + HEADER_BYTES +
                                                 (seq % 2) * slot_stride(bytes));
        uint64_t lock = atomic_load_explicit(&slot->lock, memory_order_relaxed) | 1;

        atomic_store_explicit(&slot->lock, lock, memory_order_relaxed);
        __atomic_store_n(&slot->seq, seq, __ATOMIC_RELEASE);
        __atomic_store_n(&slot->step, step, __ATOMIC_RELEASE);
        __atomic_store_n(&slot->payload_bytes, bytes, __ATOMIC_RELEASE);
        __atomic_store_n(&slot->crc, slot_crc(seq, step, bytes, payload), __ATOMIC_RELEASE);
        store_words((uint64_t *) (slot + 1), payload, bytes);
        atomic_store_explicit(&slot->lock, lock + 1, memory_order_release);
}

int host_state_read(const void *mapping, uint64_t payload_bytes, uint64_t seq, int64_t *ret_step,
                    void *payload, struct cairn_error *reterr) {
        const char *operation = "read host state";
        const struct host_state_slot *slot =
                (const void *) ((const unsigned char *) mapping + HEADER_BYTES +
                                (seq % 2) * slot_stride(payload_bytes));
        uint64_t lock = atomic_load_explicit(&slot->lock, memory_order_acquire);
        uint64_t slot_seq = __atomic_load_n(&slot->seq, __ATOMIC_ACQUIRE);
        int64_t step = __atomic_load_n(&slot->step, __ATOMIC_ACQUIRE);
        uint64_t bytes = __atomic_load_n(&slot->payload_bytes, __ATOMIC_ACQUIRE);
        uint32_t crc = __atomic_load_n(&slot->crc, __ATOMIC_ACQUIRE);

        load_words(payload, (const uint64_t *) (slot + 1), payload_bytes);
        if (lock % 2 != 0 || atomic_load_explicit(&slot->lock, memory_order_relaxed) != lock)
                return error_set(reterr, CAIRN_ERR_STALE, operation, "",
                                 "the slot is being written");
        if (slot_seq != seq || lock == 0)
                return error_set(reterr, CAIRN_ERR_STALE, operation, "",
                                 "the slot holds seq %llu, not %llu", (unsigned long long) slot_seq,
                                 (unsigned long long) seq);
        if (bytes != payload_bytes || crc != slot_crc(seq, step, bytes, payload))
                return error_set(reterr, CAIRN_ERR_CORRUPT, operation, "",
                                 "the slot's checksum differs: something wrote over it");
        *ret_step = step;
        return 0;
}
