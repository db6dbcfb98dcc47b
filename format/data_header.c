/* SPDX-License-Identifier: Apache-2.0
 *
 * data_header.c - the first 4096 bytes of a data file (file.h draws them).
 */
#include "base/bytes.h"
#include "format/crc32c.h"
#include "format/file.h"
#include "format/names.h"

#include <string.h>

#define DATA_VERSION 1
#define RUN_OFFSET 40
#define ZEROS_OFFSET (RUN_OFFSET + RUN_NAME_BYTES_MAX)
#define CRC_OFFSET (DATA_BLOCK_BYTES - 4)

static const uint8_t magic[8] = {'C', 'A', 'I', 'R', 'N', 'D', 'A', 'T'};

void data_header_write(void *block, const struct data_header *h) {
        uint8_t *p = block;

        memset(p, 0, DATA_BLOCK_BYTES);
        memcpy(p, magic, sizeof magic);
        store_le32(p + 8, DATA_VERSION);
        store_le32(p + 12, h->rank);
        store_le64(p + 16, h->generation);
        memcpy(p + 24, h->uuid, sizeof h->uuid);
        memcpy(p + RUN_OFFSET, h->run, strnlen(h->run, RUN_NAME_BYTES_MAX));
        store_le32(p + CRC_OFFSET, crc32c(0, p, CRC_OFFSET));
}

static int fail(struct cairn_error *reterr, int status, const char *object, uint64_t offset,
                const char *message) {
        (void) error_set(reterr, status, "read data header", object, "%s", message);
        if (reterr)
                reterr->offset = offset;
        return status;
}

int data_header_read(const void *block, const char *object, struct data_header *ret,
                     struct cairn_error *reterr) {
        const uint8_t *p = block;
        struct data_header h = {0};

        if (memcmp(p, magic, sizeof magic) != 0)
                return fail(reterr, CAIRN_ERR_CORRUPT, object, 0, "it is no data file of Cairn's");
        if (load_le32(p + CRC_OFFSET) != crc32c(0, p, CRC_OFFSET))
                return fail(reterr, CAIRN_ERR_CORRUPT, object, CRC_OFFSET, "the checksum differs");
        if (load_le32(p + 8) != DATA_VERSION)
                return fail(reterr, CAIRN_ERR_UNSUPPORTED, object, 8,
                            "the file has another format version than this program knows");
        h.rank = load_le32(p + 12);
        h.generation = load_le64(p + 16);
        memcpy(h.uuid, p + 24, sizeof h.uuid);
        memcpy(h.run, p + RUN_OFFSET, RUN_NAME_BYTES_MAX);
        for (size_t i = strlen(h.run); i < RUN_NAME_BYTES_MAX; i++)
                if (p[RUN_OFFSET + i])
                        return fail(reterr, CAIRN_ERR_CORRUPT, object, RUN_OFFSET + i,
                                    "the run's name is not padded with zeros");
        for (size_t i = ZEROS_OFFSET; i < CRC_OFFSET; i++)
                if (p[i])
                        return fail(reterr, CAIRN_ERR_CORRUPT, object, i,
                                    "reserved bytes are not zero");
        if (name_check_run(h.run, NULL) < 0)
                return fail(reterr, CAIRN_ERR_CORRUPT, object, RUN_OFFSET,
                            "the run's name is not valid");
        *ret = h;
        return 0;
}
