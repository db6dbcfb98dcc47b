/* SPDX-License-Identifier: Apache-2.0
 *
 * log.h - `key=value` lines on standard error. Only the agent's loop, the tools' mains and the
 * trainer's main log; libraries return errors instead.
 *
 *     log_init("cairnd", LOG_LEVEL_INFO);
 *     log_event(LOG_LEVEL_INFO, "session=%u rank=%u state=%s", id, rank, name);
 *
 * One write(2) a line; values are escaped by the caller through text_escape. The level is the one
 * global that docs/STYLE.md allows. $CAIRN_LOG (error|warning|info|debug) overrides the level given
 * to log_init.
 */
#ifndef CAIRN_LOG_H
#define CAIRN_LOG_H

#include "base/status.h"
#include <stdbool.h>

enum log_level { LOG_LEVEL_ERROR, LOG_LEVEL_WARNING, LOG_LEVEL_INFO, LOG_LEVEL_DEBUG };

void log_init(const char *program, enum log_level level);
void log_event(enum log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* `what` says which undertaking failed; prints error_format(e). */
void log_error(enum log_level level, const char *what, const struct cairn_error *e);

/* Copy with control characters, non-UTF-8 bytes, double quotes and backslashes escaped (\xNN): safe
 * on a terminal and in a log line. Truncates with "..." where the buffer is too small. Returns
 * target.
 */
const char *text_escape(char *target, size_t target_bytes, const char *source, size_t source_bytes);
/* The same, but quotes and backslashes stay: for sentences, which are not values. */
const char *text_escape_control(char *target, size_t target_bytes, const char *source,
                                size_t source_bytes);

/* Whether it is UTF-8 without control characters, separators and marks that turn the direction. */
bool text_is_plain(const char *source, size_t source_bytes);

#endif
