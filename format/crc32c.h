/* SPDX-License-Identifier: Apache-2.0
 *
 * crc32c.h - CRC-32C (Castagnoli; RFC 3720 appendix B.4 gives the test vectors). crc32c(0, ...)
 * starts; pass the result on to continue. SSE4.2 (three interleaved streams) where the CPU has it,
 * slicing by 8 elsewhere: the same value. Any thread.
 */
#ifndef CAIRN_CRC32C_H
#define CAIRN_CRC32C_H

#include <stddef.h>
#include <stdint.h>

uint32_t crc32c(uint32_t crc, const void *data, size_t bytes);
/* CRC of A followed by B from crc(A), crc(B) and B's length. */
uint32_t crc32c_combine(uint32_t crc_a, uint32_t crc_b, uint64_t bytes_b);
/* The portable version, for tests. */
uint32_t crc32c_portable(uint32_t crc, const void *data, size_t bytes);
/* Copy and checksum in one pass over the memory. */
uint32_t crc32c_copy(uint32_t crc, void *target, const void *source, size_t bytes);

#endif
