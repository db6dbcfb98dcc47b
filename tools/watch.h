/* SPDX-License-Identifier: Apache-2.0
 *
 * watch.h - `cairn status --watch`: look at a run every second until it has ended. On a terminal
 * the last picture is drawn over; otherwise a line is printed whenever something changed; with
 * `json` one object a line.
 */
#ifndef CAIRN_TOOLS_WATCH_H
#define CAIRN_TOOLS_WATCH_H

#include "base/status.h"
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

/* The run is not running; 1: any more. An agent that is being restarted is waited for. */
int watch_run(const char *run, bool json, void (*print)(FILE *out, const json_t *run),
              struct cairn_error *reterr);
/* "step 12, committed 10, writing step 12: 40%": what changed lines are made of. */
void watch_line(const json_t *run, char *text, size_t bytes);

#endif
