/* SPDX-License-Identifier: Apache-2.0
 *
 * cuda_emulated.h - the emulated driver (tests/cuda/emu.h) in this process.
 */
#ifndef CAIRN_TESTS_UNIT_CUDA_EMULATED_H
#define CAIRN_TESTS_UNIT_CUDA_EMULATED_H

#include "device/cuda_driver.h"
#include "tests/cuda/emu.h"

/* Names it in CAIRN_LIBCUDA, loads and starts it. `ret` NULL: only names it. */
const struct emu_control *cuda_emulated(const struct cuda_driver **ret);
void cuda_emulated_assert_empty(const struct emu_control *emu);

#endif
