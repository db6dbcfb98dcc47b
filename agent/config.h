/* SPDX-License-Identifier: Apache-2.0
 *
 * config.h - what cairnd was told: defaults, then the file (inih), then the command line.
 *
 *     config_init(&c);
 *     config_load(&c, path, &e);      // key = value lines; an unknown key names file and line
 *     config_set(&c, key, value, &e); // one value, as the file and the flags set it
 *     config_check(&c, &e);
 *
 * Keys: store (absolute path), socket (path), staging_bytes_max (bytes; K, M, G, T suffixes),
 * keep_last (checkpoints), group (may operate besides the owner and root), log_level,
 * stop_deadline_s, storage_timeout_s. Errors are CAIRN_ERR_API with a sentence: the main ends with
 * 64.
 */
#ifndef CAIRN_AGENT_CONFIG_H
#define CAIRN_AGENT_CONFIG_H

#include "base/log.h"
#include "base/status.h"
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define CONFIG_PATH_BYTES 4096

struct config {
        char store[CONFIG_PATH_BYTES]; /* "": each Start names its own */
        char socket[CONFIG_PATH_BYTES];
        uint64_t staging_bytes_max; /* all sessions together; 0: what memory allows */
        uint32_t keep_last;
        char group[64];
        enum log_level log_level;
        uint64_t stop_deadline_s;   /* SIGTERM to cairnd: trainers have that long */
        uint64_t storage_timeout_s; /* a transfer that has not ended by then is given up */
        int listen_fd;              /* handed over by the service manager; 0: none */
        pid_t runner; /* the `cairn run` that this agent belongs to; 0: a system-wide agent */
};

void config_init(struct config *c);
int config_load(struct config *c, const char *path, struct cairn_error *reterr);
int config_set(struct config *c, const char *key, const char *value, struct cairn_error *reterr);
int config_check(const struct config *c, struct cairn_error *reterr);
/* "4096", "16M", "2G" -> bytes. */
bool config_parse_bytes(const char *text, uint64_t *ret);

#endif
