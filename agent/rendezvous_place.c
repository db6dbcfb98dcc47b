/* SPDX-License-Identifier: Apache-2.0
 *
 * Where a rendezvous is, from what the operator wrote.
 */
#include "agent/rendezvous_record.h"

#include <stdio.h>
#include <string.h>

#define OPERATION "read --rdzv"
#define DEFAULT_PORT ":2379"
#define DEFAULT_PREFIX "/cairn"

static int refuse(const char *url, const char *why, struct cairn_error *reterr) {
        return error_set(reterr, CAIRN_ERR_API, OPERATION, url,
                         "%s; right are: dir (a folder of the store), dir:///FOLDER, "
                         "etcd://HOST[:PORT][,HOST[:PORT]...][/PREFIX]",
                         why);
}

static int copy_text(const char *url, const char *text, char *ret, size_t bytes,
                     struct cairn_error *reterr) {
        if (strlen(text) >= bytes)
                return refuse(url, "it is too long", reterr);
        memcpy(ret, text, strlen(text) + 1);
        return 0;
}

static int parse_dir(const char *url, const char *rest, const char *store,
                     struct rendezvous_place *ret, struct cairn_error *reterr) {
        ret->kind = RENDEZVOUS_DIR;
        ret->in_store = *rest == '\0';
        if (ret->in_store && (!store || store[0] != '/'))
                return refuse(url, "it lies in the store, and no store is named (--store)", reterr);
        if (!ret->in_store && strncmp(rest, "://", 3) != 0)
                return refuse(url, "after dir comes nothing or ://", reterr);
        if (!ret->in_store && rest[3] != '/')
                return refuse(url, "a folder is named by its whole path, with three slashes",
                              reterr);
        return copy_text(url, ret->in_store ? store : rest + 3, ret->path, sizeof ret->path,
                         reterr);
}

/* "a,b:1" to "a:2379,b:1". */
static int add_hosts(const char *url, const char *text, size_t bytes, struct rendezvous_place *ret,
                     struct cairn_error *reterr) {
        const char *end = text + bytes;
        size_t used = 0;

        for (;;) {
                const char *comma = memchr(text, ',', (size_t) (end - text));
                size_t host = (size_t) ((comma ? comma : end) - text);
                if (!rendezvous_is_address(text, host, true))
                        return refuse(url, "a host is missing or wrong", reterr);
                bool has_port = rendezvous_is_address(text, host, false);
                int length =
                        snprintf(ret->hosts + used, sizeof ret->hosts - used, "%s%.*s%s",
                                 used ? "," : "", (int) host, text, has_port ? "" : DEFAULT_PORT);
                used += (size_t) length;
                if (used >= sizeof ret->hosts)
                        return refuse(url, "these are too many hosts", reterr);
                if (!comma)
                        return 0;
                text = comma + 1;
        }
}

static int parse_etcd(const char *url, const char *rest, struct rendezvous_place *ret,
                      struct cairn_error *reterr) {
        static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                      "0123456789._/-";
        size_t hosts = strcspn(rest, "/");
        const char *prefix = rest + hosts;
        size_t bytes = strlen(prefix);

        ret->kind = RENDEZVOUS_ETCD;
        if (memchr(rest, '@', hosts))
                return refuse(url, "user names and passwords are not supported", reterr);
        TRY(add_hosts(url, rest, hosts, ret, reterr));
        while (bytes > 0 && prefix[bytes - 1] == '/')
                bytes--;
        if (strspn(prefix, allowed) != strlen(prefix) || strstr(prefix, "//"))
                return refuse(url, "a prefix has letters, digits, '.', '_', '-' and single slashes",
                              reterr);
        if (bytes >= sizeof ret->prefix)
                return refuse(url, "the prefix is too long", reterr);
        (void) snprintf(ret->prefix, sizeof ret->prefix, "%.*s",
                        (int) (bytes ? bytes : sizeof DEFAULT_PREFIX),
                        bytes ? prefix : DEFAULT_PREFIX);
        return 0;
}

int rendezvous_place_parse(const char *url, const char *store, const char *run,
                           struct rendezvous_place *ret, struct cairn_error *reterr) {
        struct rendezvous_place place = {0};

        TRY(name_check_run(run, reterr));
        TRY(copy_text(url, url, place.url, sizeof place.url, reterr));
        (void) snprintf(place.run, sizeof place.run, "%s", run);
        if (strncmp(url, "dir", 3) == 0 && (url[3] == '\0' || url[3] == ':'))
                TRY(parse_dir(url, url + 3, store, &place, reterr));
        else if (strncmp(url, "etcd://", 7) == 0)
                TRY(parse_etcd(url, url + 7, &place, reterr));
        else
                return refuse(url, "there is no rendezvous of this kind", reterr);
        *ret = place;
        return 0;
}
