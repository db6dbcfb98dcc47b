/* SPDX-License-Identifier: Apache-2.0
 *
 * probe.h - `cairn-train --probe-gpu`: what --device cuda needs beside a driver, found and loaded
 * as training does it; no device is touched. One line each for `cairn doctor`, separated by tabs:
 * its name, "good" or "lacks", where it is or what is the matter.
 *
 * One thread, before there are others; the libraries stay loaded until the process ends.
 */
#ifndef CAIRN_TRAINER_PROBE_H
#define CAIRN_TRAINER_PROBE_H

#include <stdio.h>

void probe_gpu(FILE *out);

#endif
