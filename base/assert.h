/* SPDX-License-Identifier: Apache-2.0
 *
 * assert.h - CAIRN_ASSERT stays on in release builds and is for programmer errors only; bytes from
 * disk, socket, device or peer yield errors. libcairn never asserts on what the trainer does:
 * misuse returns CAIRN_ERR_API.
 */
#ifndef CAIRN_ASSERT_H
#define CAIRN_ASSERT_H

_Noreturn void assert_failed(const char *expression, const char *file, int line,
                             const char *function);

#define CAIRN_ASSERT(e) ((e) ? (void) 0 : assert_failed(#e, __FILE__, __LINE__, __func__))

#endif
