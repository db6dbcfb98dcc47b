/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/rendezvous_record.h"
#include "base/cleanup.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

static void cleanup_json(json_t **j) {
        json_decref(*j);
}

/* ---- checks ---- */

int rendezvous_check_name(const char *name, const char *what, struct cairn_error *reterr) {
        static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                      "0123456789._-";
        size_t bytes = strnlen(name, RENDEZVOUS_NODE_BYTES);

        if (bytes > 0 && bytes < RENDEZVOUS_NODE_BYTES && strspn(name, allowed) == bytes &&
            name[0] != '.' && name[0] != '-')
                return 0;
        return error_set(reterr, CAIRN_ERR_API, what, bytes < RENDEZVOUS_NODE_BYTES ? name : "",
                         "1 to %d letters, digits, '.', '_' and '-' are allowed, and neither '.' "
                         "nor '-' first",
                         RENDEZVOUS_NODE_BYTES - 1);
}

static bool is_port(const char *text, size_t bytes) {
        unsigned port = 0;

        if (bytes == 0 || bytes > 5)
                return false;
        for (size_t i = 0; i < bytes; i++) {
                if (text[i] < '0' || text[i] > '9')
                        return false;
                port = port * 10 + (unsigned) (text[i] - '0');
        }
        return port >= 1 && port <= 65535;
}

bool rendezvous_is_address(const char *text, size_t bytes, bool port_optional) {
        static const char name[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                   "0123456789.-_";
        static const char ipv6[] = "0123456789abcdefABCDEF:.";
        const char *end;
        char copy[RENDEZVOUS_ADDRESS_BYTES];

        if (bytes == 0 || bytes >= sizeof copy || memchr(text, '\0', bytes))
                return false;
        memcpy(copy, text, bytes);
        copy[bytes] = '\0';
        if (copy[0] == '[') {
                end = copy + 1 + strspn(copy + 1, ipv6);
                if (end < copy + 3 || *end++ != ']')
                        return false;
        } else {
                end = copy + strspn(copy, name);
                if (end == copy)
                        return false;
        }
        if (*end == '\0')
                return port_optional;
        return *end == ':' && is_port(end + 1, strlen(end + 1));
}

int rendezvous_check_member(const struct rendezvous_member *m, struct cairn_error *reterr) {
        TRY(rendezvous_check_name(m->node, "check node name", reterr));
        if (!rendezvous_is_address(m->address, strnlen(m->address, sizeof m->address), false))
                return error_set(reterr, CAIRN_ERR_API, "check address", m->node,
                                 "an address is HOST:PORT or [IPV6]:PORT, shorter than %d bytes",
                                 RENDEZVOUS_ADDRESS_BYTES);
        if (m->nonce == 0)
                return error_set(reterr, CAIRN_ERR_API, "check member", m->node,
                                 "the nonce of an agent is not 0");
        if (m->ranks > RANK_COUNT_MAX || m->first_rank > RANK_COUNT_MAX)
                return error_set(reterr, CAIRN_ERR_API, "check member", m->node,
                                 "it has more than %d ranks", RANK_COUNT_MAX);
        if (!memchr(m->detail, '\0', sizeof m->detail))
                return error_set(reterr, CAIRN_ERR_API, "check member", m->node,
                                 "its detail is longer than %d bytes", RENDEZVOUS_DETAIL_BYTES - 1);
        return 0;
}

int rendezvous_check_generation(const struct rendezvous_generation *g, struct cairn_error *reterr) {
        char name[32];
        uint64_t world = 0;

        (void) snprintf(name, sizeof name, "%" PRIu64, g->number);
        if (g->number == 0 || g->number > INT64_MAX)
                return error_set(reterr, CAIRN_ERR_API, "check generation", name,
                                 "a generation's number is 1 or more");
        if (!memchr(g->parent, '\0', sizeof g->parent))
                return error_set(reterr, CAIRN_ERR_API, "check generation", name,
                                 "the parent's name is too long");
        if (g->member_count == 0 || g->member_count > RENDEZVOUS_MEMBERS_MAX)
                return error_set(reterr, CAIRN_ERR_API, "check generation", name,
                                 "a generation has 1 to %d members", RENDEZVOUS_MEMBERS_MAX);
        for (size_t i = 0; i < g->member_count; i++) {
                const struct rendezvous_member *m = &g->members[i];
                TRY(rendezvous_check_member(m, reterr));
                if (m->ranks == 0 || m->first_rank != world)
                        return error_set(reterr, CAIRN_ERR_API, "check generation", name,
                                         "the ranks of %s do not follow those before it", m->node);
                world += m->ranks;
                for (size_t k = 0; k < i; k++)
                        if (strcmp(m->node, g->members[k].node) == 0)
                                return error_set(reterr, CAIRN_ERR_API, "check generation", name,
                                                 "%s is in it twice", m->node);
        }
        if (world != g->world || world > RANK_COUNT_MAX)
                return error_set(reterr, CAIRN_ERR_API, "check generation", name,
                                 "its members have %" PRIu64 " ranks, not %" PRIu32, world,
                                 g->world);
        return 0;
}

const struct rendezvous_member *rendezvous_find(const struct rendezvous_member *members,
                                                size_t count, const char *node, uint64_t nonce) {
        for (size_t i = 0; i < count; i++)
                if (members[i].nonce == nonce && strcmp(members[i].node, node) == 0)
                        return &members[i];
        return NULL;
}

/* ---- to text ---- */

static json_t *nonce_json(uint64_t nonce) {
        char text[17];
        (void) snprintf(text, sizeof text, "%016" PRIx64, nonce);
        return json_string(text);
}

static int text_of(json_t *j, const char *object, char **ret, size_t *ret_bytes,
                   struct cairn_error *reterr) {
        *ret = j ? json_dumps(j, JSON_COMPACT) : NULL;
        if (!*ret) /* the only text of ours that can be refused is one that is not UTF-8 */
                return error_set(reterr, CAIRN_ERR_API, "write record", object,
                                 "a text in it is not UTF-8, or memory is short");
        *ret_bytes = strlen(*ret);
        return 0;
}

static json_t *member_json(const struct rendezvous_member *m) {
        return json_pack("{s:s, s:s, s:o, s:I}", "node", m->node, "address", m->address, "nonce",
                         nonce_json(m->nonce), "ranks", (json_int_t) m->ranks);
}

int rendezvous_member_text(const struct rendezvous_member *m, char **ret, size_t *ret_bytes,
                           struct cairn_error *reterr) {
        _cleanup_(cleanup_json) json_t *j = member_json(m);
        json_t *detail = json_string(m->detail);

        if (!j || !detail || json_object_set_new(j, "detail", detail) < 0) {
                json_decref(j);
                j = NULL;
        }
        return text_of(j, m->node, ret, ret_bytes, reterr);
}

static json_t *members_json(const struct rendezvous_generation *g) {
        json_t *members = json_array();

        for (size_t i = 0; members && i < g->member_count; i++) {
                json_t *m = member_json(&g->members[i]);
                if (!m ||
                    json_object_set_new(m, "first_rank",
                                        json_integer((json_int_t) g->members[i].first_rank)) < 0 ||
                    json_array_append(members, m) < 0) {
                        json_decref(members);
                        members = NULL;
                }
                json_decref(m);
        }
        return members;
}

int rendezvous_generation_text(const struct rendezvous_generation *g, char **ret, size_t *ret_bytes,
                               struct cairn_error *reterr) {
        char secret[2 * RENDEZVOUS_SECRET_BYTES + 1];
        json_t *members = members_json(g);

        for (size_t i = 0; i < RENDEZVOUS_SECRET_BYTES; i++)
                (void) snprintf(secret + 2 * i, 3, "%02x", g->secret[i]);
        _cleanup_(cleanup_json) json_t *j = json_pack(
                "{s:I, s:s, s:o, s:I, s:I, s:s, s:s, s:o}", "number", (json_int_t) g->number,
                "leader", g->leader, "leader_nonce", nonce_json(g->leader_nonce), "world",
                (json_int_t) g->world, "master_port", (json_int_t) g->master_port, "parent",
                g->parent, "secret", secret, "members", members);
        return text_of(j, g->leader, ret, ret_bytes, reterr);
}

/* ---- from text ---- */

struct source {
        const char *object;
        struct cairn_error *reterr;
};

static int corrupt(const struct source *s, const char *what) {
        return error_set(s->reterr, CAIRN_ERR_CORRUPT, "read record", s->object,
                         "%s; it was not written by Cairn, or by a version that is too new: end "
                         "the run's agents and remove it",
                         what);
}

static int load(const struct source *s, const void *bytes, size_t count, size_t max, json_t **ret) {
        json_error_t e;

        if (count > max)
                return corrupt(s, "it is too large");
        *ret = json_loadb(bytes, count, JSON_REJECT_DUPLICATES, &e);
        if (!json_is_object(*ret))
                return corrupt(s, "it is no JSON object");
        return 0;
}

static int get_text(const struct source *s, const json_t *j, const char *key, char *ret,
                    size_t bytes) {
        const json_t *value = json_object_get(j, key);

        if (!json_is_string(value) || json_string_length(value) >= bytes)
                return corrupt(s, "a text in it is missing or too long");
        memcpy(ret, json_string_value(value), json_string_length(value) + 1);
        return 0;
}

static int get_number(const struct source *s, const json_t *j, const char *key, uint64_t max,
                      uint64_t *ret) {
        const json_t *value = json_object_get(j, key);

        if (!json_is_integer(value) || json_integer_value(value) < 0 ||
            (uint64_t) json_integer_value(value) > max)
                return corrupt(s, "a number in it is missing or out of range");
        *ret = (uint64_t) json_integer_value(value);
        return 0;
}

static int get_hex(const struct source *s, const json_t *j, const char *key, uint8_t *ret,
                   size_t bytes) {
        static const char digits[] = "0123456789abcdef";
        const json_t *value = json_object_get(j, key);

        if (!json_is_string(value) || json_string_length(value) != 2 * bytes)
                return corrupt(s, "a number in it is missing or of another length");
        const char *text = json_string_value(value);
        if (strspn(text, digits) != 2 * bytes)
                return corrupt(s, "a number in it is not hexadecimal");
        for (size_t i = 0; i < bytes; i++)
                ret[i] = (uint8_t) ((strchr(digits, text[2 * i]) - digits) << 4 |
                                    (strchr(digits, text[2 * i + 1]) - digits));
        return 0;
}

static int get_nonce(const struct source *s, const json_t *j, const char *key, uint64_t *ret) {
        uint8_t bytes[8];

        TRY(get_hex(s, j, key, bytes, sizeof bytes));
        *ret = 0;
        for (size_t i = 0; i < sizeof bytes; i++)
                *ret = *ret << 8 | bytes[i];
        return 0;
}

static int get_member(const struct source *s, const json_t *j, struct rendezvous_member *ret) {
        uint64_t ranks = 0;

        memset(ret, 0, sizeof *ret); /* padding too: records are compared as bytes */
        TRY(get_text(s, j, "node", ret->node, sizeof ret->node));
        TRY(get_text(s, j, "address", ret->address, sizeof ret->address));
        TRY(get_nonce(s, j, "nonce", &ret->nonce));
        TRY(get_number(s, j, "ranks", RANK_COUNT_MAX, &ranks));
        ret->ranks = (uint32_t) ranks;
        return 0;
}

/* What breaks a rule for callers is corrupt where it is read. */
static int as_corrupt(const struct source *s, int status) {
        return status < 0 ? corrupt(s, "what it says breaks a rule") : 0;
}

int rendezvous_member_parse(const void *bytes, size_t count, const char *object,
                            struct rendezvous_member *ret, struct cairn_error *reterr) {
        const struct source s = {object, reterr};
        _cleanup_(cleanup_json) json_t *j = NULL;

        TRY(load(&s, bytes, count, RENDEZVOUS_MEMBER_TEXT_BYTES_MAX, &j));
        TRY(get_member(&s, j, ret));
        TRY(get_text(&s, j, "detail", ret->detail, sizeof ret->detail));
        return as_corrupt(&s, rendezvous_check_member(ret, NULL));
}

static int get_members(const struct source *s, const json_t *j, struct rendezvous_generation *ret) {
        const json_t *list = json_object_get(j, "members");
        size_t count = json_array_size(list);
        uint64_t first = 0;

        if (count == 0 || count > RENDEZVOUS_MEMBERS_MAX)
                return corrupt(s, "its members are missing or too many");
        struct rendezvous_member *members = calloc(count, sizeof *members);
        if (!members)
                return error_set_errno(s->reterr, ENOMEM, "read record", s->object);
        ret->members = members;
        ret->member_count = count;
        for (size_t i = 0; i < count; i++) {
                const json_t *m = json_array_get(list, i);
                TRY(get_member(s, m, &members[i]));
                TRY(get_number(s, m, "first_rank", RANK_COUNT_MAX, &first));
                members[i].first_rank = (uint32_t) first;
        }
        TRY(as_corrupt(s, rendezvous_check_generation(ret, NULL)));
        return rendezvous_find(members, count, ret->leader, ret->leader_nonce)
                       ? 0
                       : corrupt(s, "its leader is not in it");
}

static int get_generation(const struct source *s, const json_t *j,
                          struct rendezvous_generation *ret) {
        uint64_t world = 0, port = 0;

        TRY(get_number(s, j, "number", INT64_MAX, &ret->number));
        TRY(get_text(s, j, "leader", ret->leader, sizeof ret->leader));
        TRY(get_nonce(s, j, "leader_nonce", &ret->leader_nonce));
        TRY(get_number(s, j, "world", RANK_COUNT_MAX, &world));
        ret->world = (uint32_t) world;
        TRY(get_number(s, j, "master_port", UINT16_MAX, &port));
        ret->master_port = (uint16_t) port;
        TRY(get_text(s, j, "parent", ret->parent, sizeof ret->parent));
        TRY(get_hex(s, j, "secret", ret->secret, sizeof ret->secret));
        return get_members(s, j, ret);
}

int rendezvous_generation_parse(const void *bytes, size_t count, const char *object,
                                struct rendezvous_generation *ret, struct cairn_error *reterr) {
        const struct source s = {object, reterr};
        _cleanup_(cleanup_json) json_t *j = NULL;

        memset(ret, 0, sizeof *ret);
        int r = load(&s, bytes, count, RENDEZVOUS_GENERATION_TEXT_BYTES_MAX, &j);
        if (r == 0)
                r = get_generation(&s, j, ret);
        if (r < 0)
                rendezvous_generation_done(ret);
        return r;
}

void rendezvous_generation_done(struct rendezvous_generation *g) {
        free((void *) (uintptr_t) g->members);
        memset(g, 0, sizeof *g);
}
