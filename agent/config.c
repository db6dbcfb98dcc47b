/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/config.h"
#include "base/bytes.h"
#include "base/cleanup.h"
#include <errno.h>
#include <ini.h>
#include <sys/un.h>

void config_init(struct config *c) {
        *c = (struct config){.keep_last = 3,
                             .group = "cairn",
                             .log_level = LOG_LEVEL_INFO,
                             .stop_deadline_s = 30,
                             .storage_timeout_s = 600};
}

static bool parse_number(const char *text, uint64_t max, uint64_t *ret, const char **ret_end) {
        if (*text < '0' || *text > '9')
                return false;
        char *end;
        errno = 0;
        unsigned long long v = strtoull(text, &end, 10);
        if (errno || v > max)
                return false;
        *ret = v;
        *ret_end = end;
        return true;
}

bool config_parse_bytes(const char *text, uint64_t *ret) {
        static const char suffixes[] = "KMGT";
        const char *end;
        uint64_t v;
        if (!parse_number(text, UINT64_MAX, &v, &end))
                return false;
        if (*end) {
                const char *s = strchr(suffixes, *end);
                if (!s || end[1] || !mul_checked(v, UINT64_C(1) << (10 * (s - suffixes + 1)), &v))
                        return false;
        }
        *ret = v;
        return true;
}

static int set_text(char *target, size_t bytes, const char *key, const char *value,
                    struct cairn_error *reterr) {
        if (!*value || strlen(value) >= bytes)
                return error_set(reterr, CAIRN_ERR_API, "read setting", key,
                                 "%s; at most %zu characters", *value ? "too long" : "empty",
                                 bytes - 1);
        memcpy(target, value, strlen(value) + 1);
        return 0;
}

static int set_level(struct config *c, const char *value, struct cairn_error *reterr) {
        static const char *const names[] = {[LOG_LEVEL_ERROR] = "error",
                                            [LOG_LEVEL_WARNING] = "warning",
                                            [LOG_LEVEL_INFO] = "info",
                                            [LOG_LEVEL_DEBUG] = "debug"};
        for (size_t i = 0; i < sizeof names / sizeof *names; i++)
                if (!strcmp(value, names[i])) {
                        c->log_level = (enum log_level) i;
                        return 0;
                }
        return error_set(reterr, CAIRN_ERR_API, "read setting", "log_level",
                         "'%s' is none of error, warning, info, debug", value);
}

static int set_count(const char *key, const char *value, uint64_t min, uint64_t max, uint64_t *ret,
                     struct cairn_error *reterr) {
        const char *end;
        uint64_t v;
        if (!parse_number(value, max, &v, &end) || *end || v < min)
                return error_set(reterr, CAIRN_ERR_API, "read setting", key,
                                 "'%s' is not a number from %llu to %llu", value,
                                 (unsigned long long) min, (unsigned long long) max);
        *ret = v;
        return 0;
}

int config_set(struct config *c, const char *key, const char *value, struct cairn_error *reterr) {
        uint64_t v = 0;
        if (!strcmp(key, "store"))
                return set_text(c->store, sizeof c->store, key, value, reterr);
        if (!strcmp(key, "socket"))
                return set_text(c->socket, sizeof c->socket, key, value, reterr);
        if (!strcmp(key, "group"))
                return set_text(c->group, sizeof c->group, key, value, reterr);
        if (!strcmp(key, "log_level"))
                return set_level(c, value, reterr);
        if (!strcmp(key, "keep_last")) {
                TRY(set_count(key, value, 1, 1000000, &v, reterr));
                c->keep_last = (uint32_t) v;
                return 0;
        }
        if (!strcmp(key, "stop_deadline_s"))
                return set_count(key, value, 1, 86400, &c->stop_deadline_s, reterr);
        if (!strcmp(key, "storage_timeout_s"))
                return set_count(key, value, 1, 86400, &c->storage_timeout_s, reterr);
        if (!strcmp(key, "staging_bytes_max")) {
                if (!config_parse_bytes(value, &c->staging_bytes_max))
                        return error_set(reterr, CAIRN_ERR_API, "read setting", key,
                                         "'%s' is not a number of bytes, like 8589934592 or 8G",
                                         value);
                return 0;
        }
        return error_set(reterr, CAIRN_ERR_API, "read setting", key,
                         "there is no such key; known are store, socket, staging_bytes_max, "
                         "keep_last, group, log_level, stop_deadline_s, storage_timeout_s");
}

struct load {
        struct config *config;
        struct cairn_error *error;
        int status;
};

static int visit(void *user, const char *section, const char *key, const char *value) {
        struct load *l = user;
        if (l->status < 0)
                return 0;
        if (section && *section)
                l->status = error_set(l->error, CAIRN_ERR_API, "read setting", key,
                                      "sections are not used, but it stands in [%s]", section);
        else
                l->status = config_set(l->config, key, value ? value : "", l->error);
        return l->status == 0;
}

int config_load(struct config *c, const char *path, struct cairn_error *reterr) {
        struct cairn_error inner = CAIRN_ERROR_INIT;
        struct load l = {.config = c, .error = &inner};
        _cleanup_fclose_ FILE *f = fopen(path, "re");
        if (!f)
                return error_set_errno(reterr, errno, "read configuration", path);
        int line = ini_parse_file(f, visit, &l);
        if (line == 0)
                return 0;
        char object[sizeof inner.object];
        (void) snprintf(object, sizeof object, "%.200s:%d", path, line > 0 ? line : 0);
        if (l.status < 0)
                return error_set(reterr, l.status, "read configuration", object, "%.60s: %.400s",
                                 inner.object, inner.message);
        return error_set(reterr, CAIRN_ERR_API, "read configuration", object,
                         "not a \"key = value\" line");
}

int config_check(const struct config *c, struct cairn_error *reterr) {
        if (!*c->socket)
                return error_set(reterr, CAIRN_ERR_API, "check configuration", "socket",
                                 "no socket given: use --socket PATH or the key socket");
        if (strlen(c->socket) >= sizeof((struct sockaddr_un *) 0)->sun_path)
                return error_set(reterr, CAIRN_ERR_API, "check configuration", c->socket,
                                 "a socket's path has at most %zu characters",
                                 sizeof((struct sockaddr_un *) 0)->sun_path - 1);
        if (*c->store && *c->store != '/')
                return error_set(reterr, CAIRN_ERR_API, "check configuration", c->store,
                                 "the store must be an absolute path");
        return 0;
}
