/* SPDX-License-Identifier: Apache-2.0
 *
 * A rendezvous in etcd (3.4 or newer), by its JSON gateway.
 *
 *     PREFIX/RUN/members/NODE        record, under the member's lease
 *     PREFIX/RUN/generations/NNN     record; the highest number is the newest
 *     PREFIX/RUN/values/NNN/KEY      as it was put
 *
 * A member's lease has its nonce as number: whoever knows the nonce knows the lease, and a grant
 * that was not answered is found. Everything else is one transaction that compares first: the
 * member's key is still under its lease, no generation of that number or a higher one is there. So
 * nothing is done by a member that was given up, and asking again finds what an unanswered request
 * has done.
 *
 * A look costs a few hundred bytes as long as nothing changes: it asks for keys that changed since
 * the last revision, and for how many there are; only if these do not explain each other all are
 * read.
 */
#include "agent/rendezvous_etcd.h"
#include "agent/rendezvous_process.h"
#include "agent/rendezvous_record.h"
#include "base/cleanup.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#define OPERATION "ask etcd"
#define KEY_BYTES 512
#define TTL_S (RENDEZVOUS_TTL_NS / NSEC_PER_SEC)

struct etcd {
        struct rendezvous_place place;
        char root[256]; /* PREFIX/RUN/ */
        etcd_post post;
        void *context;
        struct http *http; /* what post asks, if it is ours */
        /* What the last look knew; the members are without order. */
        struct rendezvous_member *members;
        size_t member_count, member_capacity;
        struct rendezvous_generation generation;
        int64_t revision; /* 0: nothing is known */
        char cluster[24];
};

static void cleanup_json(json_t **j) {
        json_decref(*j);
}

/* ---- base64 ---- */

static const char digits64[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

static json_t *encode(const void *bytes, size_t count) {
        const uint8_t *in = bytes;
        char *text = malloc(count / 3 * 4 + 5), *out = text;

        if (!text)
                return NULL;
        for (size_t i = 0; i < count; i += 3) {
                size_t left = count - i;
                uint32_t v = (uint32_t) in[i] << 16 | (left > 1 ? (uint32_t) in[i + 1] << 8 : 0) |
                             (left > 2 ? in[i + 2] : 0);
                *out++ = digits64[v >> 18];
                *out++ = digits64[v >> 12 & 63];
                *out++ = left > 1 ? digits64[v >> 6 & 63] : '=';
                *out++ = left > 2 ? digits64[v & 63] : '=';
        }
        json_t *j = json_stringn_nocheck(text, (size_t) (out - text));
        free(text);
        return j;
}

/* malloc'ed, with a zero behind; NULL: not base64, or memory is short. */
static void *decode(const json_t *j, size_t *ret_count) {
        const char *in = json_string_value(j);
        size_t bytes = json_string_length(j);

        while (bytes > 0 && in[bytes - 1] == '=')
                bytes--;
        uint8_t *out = j && bytes % 4 != 1 ? malloc(bytes / 4 * 3 + 4) : NULL;
        if (!out)
                return NULL;
        uint32_t v = 0;
        *ret_count = 0;
        for (size_t i = 0; i < bytes; i++) {
                const char *digit = in[i] ? strchr(digits64, in[i]) : NULL;
                if (!digit) {
                        free(out);
                        return NULL;
                }
                v = v << 6 | (uint32_t) (digit - digits64);
                if (i % 4 > 0)
                        out[(*ret_count)++] = (uint8_t) (v >> (6 - 2 * (i % 4)));
        }
        out[*ret_count] = 0;
        return out;
}

/* ---- requests ---- */

static json_t *text_key(const char *key) {
        return encode(key, strlen(key));
}

static uint64_t lease_of(const struct rendezvous_member *self) {
        uint64_t id = self->nonce & INT64_MAX;
        return id ? id : 1;
}

/* The gateway has 64-bit numbers as text. */
static json_t *number(uint64_t n) {
        char text[24];
        (void) snprintf(text, sizeof text, "%" PRIu64, n);
        return json_string(text);
}

static void member_key(const struct etcd *e, const char *node, char key[KEY_BYTES]) {
        (void) snprintf(key, KEY_BYTES, "%smembers/%s", e->root, node);
}

static void generation_key(const struct etcd *e, uint64_t n, char key[KEY_BYTES]) {
        (void) snprintf(key, KEY_BYTES, "%sgenerations/%020" PRIu64, e->root, n);
}

static void values_key(const struct etcd *e, uint64_t n, const char *key, char ret[KEY_BYTES]) {
        (void) snprintf(ret, KEY_BYTES, "%svalues/%020" PRIu64 "/%s", e->root, n, key);
}

/* All keys that begin with root + folder + '/': up to the next sign. */
static json_t *range_of(const struct etcd *e, const char *folder) {
        char first[KEY_BYTES], end[KEY_BYTES];

        (void) snprintf(first, sizeof first, "%s%s/", e->root, folder);
        (void) snprintf(end, sizeof end, "%s%s0", e->root, folder);
        return json_pack("{s:o, s:o}", "key", text_key(first), "range_end", text_key(end));
}

static json_t *one_key(const char *key) {
        return json_pack("{s:o}", "key", text_key(key));
}

static json_t *set(json_t *object, const char *key, json_t *value) {
        if (!object || json_object_set_new(object, key, value) < 0) {
                json_decref(object);
                return NULL;
        }
        return object;
}

static json_t *newest_range(const struct etcd *e, bool keys_only) {
        json_t *j = range_of(e, "generations");

        j = set(set(j, "sort_order", json_string("DESCEND")), "sort_target", json_string("KEY"));
        j = set(j, "limit", number(1));
        return keys_only ? set(j, "keys_only", json_true()) : j;
}

static json_t *operation(const char *kind, json_t *request) {
        return json_pack("{s:o}", kind, request);
}

static json_t *put_operation(const char *key, const void *value, size_t bytes, uint64_t lease) {
        json_t *j = json_pack("{s:o, s:o}", "key", text_key(key), "value", encode(value, bytes));

        return operation("request_put", lease ? set(j, "lease", number(lease)) : j);
}

/* From `folder` the numbers below n: there the keys sort as the numbers. */
static json_t *delete_operation(const struct etcd *e, const char *folder, uint64_t n) {
        char first[KEY_BYTES], end[KEY_BYTES];

        (void) snprintf(first, sizeof first, "%s%s/", e->root, folder);
        (void) snprintf(end, sizeof end, "%s%s/%020" PRIu64, e->root, folder, n);
        return operation("request_delete_range", json_pack("{s:o, s:o}", "key", text_key(first),
                                                           "range_end", text_key(end)));
}

static json_t *compare(const char *key, const char *target, const char *field, const char *result,
                       uint64_t value) {
        return json_pack("{s:o, s:s, s:s, s:o}", "key", text_key(key), "target", target, "result",
                         result, field, number(value));
}

static json_t *compare_absent(const char *key) {
        return compare(key, "CREATE", "create_revision", "EQUAL", 0);
}

static json_t *compare_lease(const struct etcd *e, const struct rendezvous_member *self) {
        char key[KEY_BYTES];

        member_key(e, self->node, key);
        return compare(key, "LEASE", "lease", "EQUAL", lease_of(self));
}

/* No generation n or a higher one. */
static json_t *compare_none_from(const struct etcd *e, uint64_t n) {
        char key[KEY_BYTES], end[KEY_BYTES];

        generation_key(e, n, key);
        (void) snprintf(end, sizeof end, "%sgenerations0", e->root);
        return set(compare_absent(key), "range_end", text_key(end));
}

/* Who is this member now, and which generation is the newest: why a comparison failed. */
static json_t *explain_operations(const struct etcd *e, const struct rendezvous_member *self,
                                  bool keys_only) {
        char key[KEY_BYTES];

        member_key(e, self->node, key);
        return json_pack("[o, o]", operation("request_range", one_key(key)),
                         operation("request_range", newest_range(e, keys_only)));
}

/* ---- answers ---- */

static int odd(const struct etcd *e, const char *what, struct cairn_error *reterr) {
        return error_set(reterr, CAIRN_ERR_PEER, OPERATION, e->place.hosts,
                         "%s; what answers there is not etcd 3.4 or newer", what);
}

static int64_t get_number(const json_t *object, const char *key) {
        const json_t *j = json_object_get(object, key);
        char *end;

        if (!json_is_string(j))
                return 0; /* left out: zero */
        errno = 0;
        long long n = strtoll(json_string_value(j), &end, 10);
        return errno || *end ? 0 : n;
}

static int refuse_status(const struct etcd *e, const struct http_answer *a, const json_t *j,
                         struct cairn_error *reterr) {
        enum { NOT_FOUND = 5, DENIED = 7, EXHAUSTED = 8, PRECONDITION = 9, UNAUTHENTICATED = 16 };
        const char *text = json_string_value(json_object_get(j, "error"));
        int code = (int) json_integer_value(json_object_get(j, "code"));
        const char *hosts = e->place.hosts;

        if (text && !*text)
                text = NULL;
        if (!text && a->status == 404)
                return error_set(reterr, CAIRN_ERR_UNSUPPORTED, OPERATION, hosts,
                                 "there is no such service: Cairn needs etcd 3.4 or newer with its "
                                 "JSON gateway (--enable-grpc-gateway)");
        if (a->status == 401 || a->status == 403 || code == DENIED || code == UNAUTHENTICATED ||
            (text && strstr(text, "user name is empty")))
                return error_set(reterr, CAIRN_ERR_PERMISSION, OPERATION, hosts,
                                 "it demands a user (%.200s); Cairn has none to give: allow access "
                                 "beneath %s without, or use another etcd",
                                 text ? text : "HTTP 401 or 403", e->root);
        if (code == NOT_FOUND || code == PRECONDITION)
                return error_set(reterr, code == NOT_FOUND ? CAIRN_ERR_NOTFOUND : CAIRN_ERR_EXISTS,
                                 OPERATION, hosts, "%.400s", text ? text : "it gives no reason");
        if (code == EXHAUSTED && text && strstr(text, "space"))
                return error_set(reterr, CAIRN_ERR_NOSPACE, OPERATION, hosts,
                                 "%.200s; compact and defragment it, then disarm its alarm "
                                 "(etcdctl)",
                                 text);
        return error_set(reterr, CAIRN_ERR_UNREACHABLE, OPERATION, hosts,
                         "it cannot serve now: HTTP status %ld, %.300s", a->status,
                         text ? text : "no reason given");
}

/* Takes the request; *ret is an object. NOTFOUND, EXISTS: etcd's own words for a lease. */
static int call(struct etcd *e, const char *path, json_t *request, uint64_t deadline_ns,
                json_t **ret, struct cairn_error *reterr) {
        struct cairn_error why = CAIRN_ERROR_INIT;
        struct http_answer a;
        char *body = request ? json_dumps(request, JSON_COMPACT) : NULL;

        json_decref(request);
        if (!body)
                return error_set_errno(reterr, ENOMEM, OPERATION, path);
        int r = e->post(e->context, path, body, deadline_ns, &a, &why);
        free(body);
        if (r < 0) {
                if (reterr)
                        *reterr = why;
                return r;
        }
        json_t *j = a.count ? json_loadb(a.bytes, a.count, JSON_REJECT_DUPLICATES, NULL) : NULL;
        free(a.bytes);
        if (a.status != 200)
                r = refuse_status(e, &a, j, reterr);
        else if (!json_is_object(j))
                r = odd(e, "the answer is no JSON object", reterr);
        if (r < 0)
                json_decref(j);
        else
                *ret = j;
        return r;
}

/* compare, success, failure: arrays; the latter may be NULL. */
static int transact(struct etcd *e, json_t *compares, json_t *success, json_t *failure,
                    uint64_t deadline_ns, json_t **ret, bool *ret_succeeded,
                    struct cairn_error *reterr) {
        size_t answers[] = {json_array_size(failure), json_array_size(success)};
        json_t *request = json_pack("{s:o*, s:o, s:o*}", "compare", compares, "success", success,
                                    "failure", failure);

        TRY(call(e, "/v3/kv/txn", request, deadline_ns, ret, reterr));
        *ret_succeeded = json_is_true(json_object_get(*ret, "succeeded"));
        size_t count = json_array_size(json_object_get(*ret, "responses"));
        /* What compares nothing succeeds. */
        bool complete = count == answers[*ret_succeeded] && count > 0;
        return complete ? 0 : odd(e, "answers are missing", reterr);
}

/* The keys that the i-th operation of a transaction found: an array, or NULL for none. */
static const json_t *found(const json_t *answer, size_t i, int64_t *ret_count) {
        const json_t *one = json_array_get(json_object_get(answer, "responses"), i);
        const json_t *range = json_object_get(one, "response_range");

        if (ret_count)
                *ret_count = get_number(range, "count");
        return json_object_get(range, "kvs");
}

/* The name behind root + folder + '/', or NULL: not such a key. */
static char *name_in(const struct etcd *e, const json_t *kv, const char *folder) {
        char prefix[KEY_BYTES];
        size_t count, bytes;
        char *key = decode(json_object_get(kv, "key"), &count);

        bytes = (size_t) snprintf(prefix, sizeof prefix, "%s%s/", e->root, folder);
        if (!key || count <= bytes || strlen(key) != count || memcmp(key, prefix, bytes) != 0) {
                free(key);
                return NULL;
        }
        memmove(key, key + bytes, count - bytes + 1);
        return key;
}

/* The newest generation's number in a list of at most one key; 0: none. */
static int newest_of(const struct etcd *e, const json_t *kvs, uint64_t *ret,
                     struct cairn_error *reterr) {
        const json_t *kv = json_array_get(kvs, 0);

        *ret = 0;
        if (!kv)
                return 0;
        _cleanup_free_ char *name = name_in(e, kv, "generations");
        if (!name || strlen(name) != 20 || strspn(name, "0123456789") != 20)
                return odd(e, "a key of a generation is wrong", reterr);
        errno = 0;
        *ret = strtoull(name, NULL, 10);
        return errno || *ret == 0 || *ret > INT64_MAX ? odd(e, "a generation has no number", reterr)
                                                      : 0;
}

static int parse_generation(const struct etcd *e, const json_t *kv, uint64_t n,
                            struct rendezvous_generation *ret, struct cairn_error *reterr) {
        char object[48];
        size_t count = 0;
        _cleanup_free_ void *bytes = decode(json_object_get(kv, "value"), &count);

        (void) snprintf(object, sizeof object, "generation %" PRIu64, n);
        TRY(rendezvous_generation_parse(bytes ? bytes : "", count, object, ret, reterr));
        if (ret->number == n)
                return 0;
        rendezvous_generation_done(ret);
        return odd(e, "a generation's record has another number than its key", reterr);
}

/* ---- why a comparison failed ---- */

/* *ret_newest: set if this member is still one, 0 if it is not known. */
static int explain(const struct etcd *e, const struct rendezvous_member *self, const json_t *answer,
                   uint64_t *ret_newest, struct cairn_error *reterr) {
        const json_t *own = json_array_get(found(answer, 0, NULL), 0);

        if (get_number(own, "lease") != (int64_t) lease_of(self))
                return rendezvous_refuse_lost(self, reterr);
        return newest_of(e, found(answer, 1, NULL), ret_newest, reterr);
}

/* ---- looking ---- */

static void forget(struct etcd *e) {
        e->member_count = 0;
        e->revision = 0;
        rendezvous_generation_done(&e->generation);
}

/* A record that is not one is nobody: its key is counted, so all are read again at each look. */
static int merge_member(struct etcd *e, const json_t *kv, struct cairn_error *reterr) {
        _cleanup_free_ char *node = name_in(e, kv, "members");
        struct rendezvous_member m;
        size_t bytes = 0, i = 0;
        _cleanup_free_ void *text = decode(json_object_get(kv, "value"), &bytes);

        if (!node || !text || rendezvous_member_parse(text, bytes, node, &m, NULL) < 0 ||
            strcmp(m.node, node) != 0 || get_number(kv, "lease") == 0)
                return 0;
        while (i < e->member_count && strcmp(e->members[i].node, node) != 0)
                i++;
        if (i == RENDEZVOUS_MEMBERS_MAX)
                return error_set(reterr, CAIRN_ERR_UNSUPPORTED, OPERATION, e->root,
                                 "more than %d members are there", RENDEZVOUS_MEMBERS_MAX);
        if (i == e->member_capacity) {
                size_t wanted = e->member_capacity ? e->member_capacity * 2 : 16;
                void *larger = reallocarray(e->members, wanted, sizeof *e->members);
                if (!larger)
                        return error_set_errno(reterr, ENOMEM, OPERATION, e->root);
                e->members = larger;
                e->member_capacity = wanted;
        }
        memcpy(&e->members[i], &m, sizeof m);
        e->member_count += i == e->member_count;
        return 0;
}

static int merge_members(struct etcd *e, const json_t *kvs, struct cairn_error *reterr) {
        for (size_t i = 0; i < json_array_size(kvs); i++)
                TRY(merge_member(e, json_array_get(kvs, i), reterr));
        return 0;
}

static int read_generation(struct etcd *e, uint64_t n, uint64_t deadline_ns,
                           struct cairn_error *reterr) {
        _cleanup_(cleanup_json) json_t *answer = NULL;
        struct rendezvous_generation g;
        char key[KEY_BYTES];

        if (n == e->generation.number)
                return 0;
        rendezvous_generation_done(&e->generation);
        if (n == 0)
                return 0;
        generation_key(e, n, key);
        TRY(call(e, "/v3/kv/range", one_key(key), deadline_ns, &answer, reterr));
        const json_t *kv = json_array_get(json_object_get(answer, "kvs"), 0);
        if (!kv) /* the next one was created meanwhile: the next look finds it */
                return error_set(reterr, CAIRN_ERR_BUSY, OPERATION, key, "it was just replaced");
        TRY(parse_generation(e, kv, n, &g, reterr));
        e->generation = g;
        return 0;
}

/* etcd's own number and place of the answer: another cluster, or one that was put back from a
 * backup, makes what is known void. */
static int take_header(struct etcd *e, const json_t *answer, bool *ret_void,
                       struct cairn_error *reterr) {
        const json_t *header = json_object_get(answer, "header");
        const char *cluster = json_string_value(json_object_get(header, "cluster_id"));
        int64_t revision = get_number(header, "revision");

        if (!cluster || strlen(cluster) >= sizeof e->cluster || revision <= 0)
                return odd(e, "the answer has no header", reterr);
        *ret_void = revision < e->revision || (e->revision && strcmp(cluster, e->cluster) != 0);
        (void) snprintf(e->cluster, sizeof e->cluster, "%s", cluster);
        e->revision = revision;
        return 0;
}

/* What changed since the last look. *ret_whole: the members known are those there. */
static int read_changes(struct etcd *e, uint64_t deadline_ns, bool *ret_whole,
                        struct cairn_error *reterr) {
        _cleanup_(cleanup_json) json_t *answer = NULL;
        json_t *changed = range_of(e, "members"), *all = range_of(e, "members");
        uint64_t newest;
        bool succeeded, is_void = false;
        int64_t count;

        if (e->revision > 0)
                changed = set(changed, "min_mod_revision", number((uint64_t) e->revision + 1));
        json_t *operations =
                json_pack("[o, o, o]", operation("request_range", newest_range(e, true)),
                          operation("request_range", set(all, "count_only", json_true())),
                          operation("request_range", changed));
        TRY(transact(e, NULL, operations, NULL, deadline_ns, &answer, &succeeded, reterr));
        TRY(take_header(e, answer, &is_void, reterr));
        *ret_whole = false;
        if (is_void) {
                forget(e);
                return 0;
        }
        (void) found(answer, 1, &count);
        TRY(merge_members(e, found(answer, 2, NULL), reterr));
        *ret_whole = count == (int64_t) e->member_count;
        TRY(newest_of(e, found(answer, 0, NULL), &newest, reterr));
        return read_generation(e, newest, deadline_ns, reterr);
}

static int keep_alive(struct etcd *e, const struct rendezvous_member *self, uint64_t deadline_ns,
                      struct cairn_error *reterr) {
        _cleanup_(cleanup_json) json_t *answer = NULL;

        TRY(call(e, "/v3/lease/keepalive", json_pack("{s:o}", "ID", number(lease_of(self))),
                 deadline_ns, &answer, reterr));
        const json_t *result = json_object_get(answer, "result");
        if (!result)
                return error_set(reterr, CAIRN_ERR_UNREACHABLE, "renew lease", e->place.hosts,
                                 "it cannot serve now");
        return get_number(result, "TTL") > 0 ? 0 : rendezvous_refuse_lost(self, reterr);
}

static int compare_members(const void *a, const void *b) {
        const struct rendezvous_member *x = a, *y = b;
        return strcmp(x->node, y->node);
}

static int etcd_look(void *kind, const struct rendezvous_member *self, bool renew,
                     uint64_t deadline_ns, struct rendezvous_look *ret,
                     struct cairn_error *reterr) {
        struct etcd *e = kind;
        bool whole;

        if (self && renew)
                TRY(keep_alive(e, self, deadline_ns, reterr));
        int r = read_changes(e, deadline_ns, &whole, reterr);
        if (r == 0 && !whole) { /* somebody left, or this is the first look: all, once */
                forget(e);
                r = read_changes(e, deadline_ns, &whole, reterr);
        }
        if (r < 0) { /* what was merged before it failed would not be seen again */
                forget(e);
                return r;
        }
        if (self && !rendezvous_find(e->members, e->member_count, self->node, self->nonce))
                return rendezvous_refuse_lost(self, reterr);
        if (e->member_count > 0)
                qsort(e->members, e->member_count, sizeof *e->members, compare_members);
        *ret = (struct rendezvous_look){.generation = e->generation,
                                        .members = e->members,
                                        .member_count = e->member_count};
        return 0;
}

/* ---- joining and leaving ---- */

static int write_member(struct etcd *e, const struct rendezvous_member *self, json_t *condition,
                        uint64_t deadline_ns, json_t **ret, bool *ret_succeeded,
                        struct cairn_error *reterr) {
        _cleanup_free_ char *text = NULL;
        char key[KEY_BYTES];
        size_t bytes;

        int r = rendezvous_member_text(self, &text, &bytes, reterr);
        if (r < 0) {
                json_decref(condition);
                return r;
        }
        member_key(e, self->node, key);
        return transact(e, json_pack("[o]", condition),
                        json_pack("[o]", put_operation(key, text, bytes, lease_of(self))),
                        json_pack("[o]", operation("request_range", one_key(key))), deadline_ns,
                        ret, ret_succeeded, reterr);
}

static int refuse_rival(const json_t *kv, const char *node, struct cairn_error *reterr) {
        struct rendezvous_member rival = {0};
        size_t bytes = 0;
        _cleanup_free_ void *text = decode(json_object_get(kv, "value"), &bytes);

        if (!text || rendezvous_member_parse(text, bytes, node, &rival, NULL) < 0) {
                (void) snprintf(rival.node, sizeof rival.node, "%s", node);
                (void) snprintf(rival.address, sizeof rival.address, "an unreadable address");
        }
        return rendezvous_refuse_name(&rival, reterr);
}

/* A lease that runs out between two calls is an outage of a moment: the next try grants it anew. */
static int as_outage(int status, const struct etcd *e, struct cairn_error *reterr) {
        if (status != CAIRN_ERR_NOTFOUND)
                return status;
        return error_set(reterr, CAIRN_ERR_UNREACHABLE, "join", e->place.hosts,
                         "the lease ran out before it was used");
}

static int etcd_join(void *kind, const struct rendezvous_member *self, uint64_t deadline_ns,
                     struct cairn_error *reterr) {
        _cleanup_(cleanup_json) json_t *granted = NULL, *answer = NULL, *again = NULL;
        struct cairn_error why = CAIRN_ERROR_INIT;
        struct etcd *e = kind;
        char key[KEY_BYTES];
        bool succeeded;

        int r = call(e, "/v3/lease/grant",
                     json_pack("{s:o, s:o}", "TTL", number(TTL_S), "ID", number(lease_of(self))),
                     deadline_ns, &granted, &why);
        if (r == CAIRN_ERR_EXISTS) /* granted to a try before this one, or to a predecessor */
                r = keep_alive(e, self, deadline_ns, &why);
        if (r < 0) {
                if (reterr)
                        *reterr = why;
                return r == CAIRN_ERR_STALE ? as_outage(CAIRN_ERR_NOTFOUND, e, reterr) : r;
        }
        member_key(e, self->node, key);
        TRY(as_outage(write_member(e, self, compare_absent(key), deadline_ns, &answer, &succeeded,
                                   reterr),
                      e, reterr));
        if (succeeded)
                return 0;
        const json_t *kv = json_array_get(found(answer, 0, NULL), 0);
        if (get_number(kv, "lease") != (int64_t) lease_of(self))
                return refuse_rival(kv, self->node, reterr);
        TRY(as_outage(write_member(e, self, compare_lease(e, self), deadline_ns, &again, &succeeded,
                                   reterr),
                      e, reterr));
        return succeeded ? 0 : as_outage(CAIRN_ERR_NOTFOUND, e, reterr);
}

static int etcd_leave(void *kind, const struct rendezvous_member *self, uint64_t deadline_ns,
                      struct cairn_error *reterr) {
        _cleanup_(cleanup_json) json_t *answer = NULL;
        struct cairn_error why = CAIRN_ERROR_INIT;
        struct etcd *e = kind;

        int r = call(e, "/v3/lease/revoke", json_pack("{s:o}", "ID", number(lease_of(self))),
                     deadline_ns, &answer, &why);
        if (r == CAIRN_ERR_NOTFOUND)
                return 0;
        if (r < 0 && reterr)
                *reterr = why;
        return r;
}

/* ---- generations and values ---- */

static int etcd_create(void *kind, const struct rendezvous_member *self,
                       const struct rendezvous_generation *generation, uint64_t deadline_ns,
                       struct cairn_error *reterr) {
        _cleanup_(cleanup_json) json_t *answer = NULL;
        struct rendezvous_generation g;
        _cleanup_free_ char *text = NULL;
        uint64_t n = generation->number, newest;
        struct etcd *e = kind;
        char key[KEY_BYTES];
        size_t bytes;
        bool succeeded;

        TRY(rendezvous_generation_text(generation, &text, &bytes, reterr));
        generation_key(e, n, key);
        TRY(transact(e, json_pack("[o, o]", compare_lease(e, self), compare_none_from(e, n)),
                     json_pack("[o, o, o]", put_operation(key, text, bytes, 0),
                               delete_operation(e, "generations", n),
                               delete_operation(e, "values", n)),
                     explain_operations(e, self, false), deadline_ns, &answer, &succeeded, reterr));
        if (succeeded)
                return 0;
        TRY(explain(e, self, answer, &newest, reterr));
        if (newest > n)
                return rendezvous_refuse_old("create generation", n, newest, reterr);
        if (newest < n)
                return odd(e, "it refused for no reason that can be seen", reterr);
        TRY(parse_generation(e, json_array_get(found(answer, 1, NULL), 0), n, &g, reterr));
        /* Its own, by a try that was not answered: done. */
        bool ours = g.leader_nonce == self->nonce && strcmp(g.leader, self->node) == 0;
        int r = ours ? 0 : rendezvous_refuse_taken(n, g.leader, reterr);
        rendezvous_generation_done(&g);
        return r;
}

/* In generation n, which has to be the newest. */
static int transact_in(struct etcd *e, const struct rendezvous_member *self, uint64_t n,
                       json_t *wanted, uint64_t deadline_ns, const char *name, json_t **ret,
                       struct cairn_error *reterr) {
        uint64_t newest;
        char key[KEY_BYTES];
        bool succeeded;

        generation_key(e, n, key);
        TRY(transact(e,
                     json_pack("[o, o, o]", compare_lease(e, self), compare_none_from(e, n + 1),
                               compare(key, "CREATE", "create_revision", "GREATER", 0)),
                     json_pack("[o]", wanted), explain_operations(e, self, true), deadline_ns, ret,
                     &succeeded, reterr));
        if (succeeded)
                return 0;
        TRY(explain(e, self, *ret, &newest, reterr));
        return newest == n ? odd(e, "it refused for no reason that can be seen", reterr)
                           : rendezvous_refuse_old(name, n, newest, reterr);
}

static int etcd_put(void *kind, const struct rendezvous_member *self, uint64_t generation,
                    const char *key, const void *value, size_t bytes, uint64_t deadline_ns,
                    struct cairn_error *reterr) {
        _cleanup_(cleanup_json) json_t *answer = NULL;
        struct etcd *e = kind;
        char name[KEY_BYTES];

        values_key(e, generation, key, name);
        return transact_in(e, self, generation, put_operation(name, value, bytes, 0), deadline_ns,
                           "put value", &answer, reterr);
}

static int etcd_get(void *kind, const struct rendezvous_member *self, uint64_t generation,
                    const char *key, uint64_t deadline_ns, void **ret, size_t *ret_bytes,
                    struct cairn_error *reterr) {
        _cleanup_(cleanup_json) json_t *answer = NULL;
        _cleanup_free_ void *value = NULL;
        struct etcd *e = kind;
        char name[KEY_BYTES];
        size_t bytes = 0;

        values_key(e, generation, key, name);
        TRY(transact_in(e, self, generation, operation("request_range", one_key(name)), deadline_ns,
                        "get value", &answer, reterr));
        const json_t *kv = json_array_get(found(answer, 0, NULL), 0);
        if (!kv)
                return error_set(reterr, CAIRN_ERR_NOTFOUND, "get value", key, "it is not there");
        const json_t *text = json_object_get(kv, "value"); /* left out: empty */
        value = text ? decode(text, &bytes) : calloc(1, 1);
        if (!value || bytes > RENDEZVOUS_VALUE_BYTES_MAX)
                return odd(e, "a value is not base64, or too long", reterr);
        *ret = TAKE_PTR(value);
        *ret_bytes = bytes;
        return 0;
}

/* ---- the object ---- */

static void etcd_close(void *kind) {
        struct etcd *e = kind;

        forget(e);
        (void) http_free(e->http);
        free(e->members);
        free(e);
}

int rendezvous_etcd_new(const struct rendezvous_place *place, etcd_post post, void *context,
                        void **ret, struct cairn_error *reterr) {
        struct etcd *e = calloc(1, sizeof *e);

        if (!e)
                return error_set_errno(reterr, ENOMEM, OPERATION, place->url);
        e->place = *place;
        (void) snprintf(e->root, sizeof e->root, "%s/%s/", place->prefix, place->run);
        e->post = post;
        e->context = context;
        *ret = e;
        return 0;
}

static int etcd_open(const struct rendezvous_place *place, void **ret, struct cairn_error *reterr) {
        struct http *http;
        struct etcd *e;

        TRY(http_new(place->hosts, &http, reterr));
        int r = rendezvous_etcd_new(place, http_post, http, (void **) &e, reterr);
        if (r < 0) {
                (void) http_free(http);
                return r;
        }
        e->http = http;
        *ret = e;
        return 0;
}

const struct rendezvous_ops rendezvous_etcd_ops = {
        .open = etcd_open,
        .close = etcd_close,
        .join = etcd_join,
        .leave = etcd_leave,
        .look = etcd_look,
        .create = etcd_create,
        .put = etcd_put,
        .get = etcd_get,
};
