/* SPDX-License-Identifier: Apache-2.0
 *
 * clones.h - a second copy of a hot loop for wider vectors, chosen once at start by the processor.
 * Contraction is off and the order of every reduction is written out, so both copies give the same
 * bits; only the speed differs. Left out under a sanitizer: its start comes after the choice.
 * Private to kernels/.
 */
#ifndef CAIRN_KERNELS_CLONES_H
#define CAIRN_KERNELS_CLONES_H

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
        !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define CLONES __attribute__((target_clones("avx2", "default")))
#else
#define CLONES
#endif

#endif
