/* SPDX-License-Identifier: Apache-2.0
 *
 * What others wrote into a rendezvous, and what etcd, or something else at its port, answers. The
 * first byte chooses: m member record, g generation record, u URL, and l j v c p t a verb at etcd
 * whose answers follow, a zero byte between them; one that begins with '!' has status 503, '?' 404,
 * '#' none at all.
 */
#include "agent/rendezvous_etcd.h"
#include "agent/rendezvous_process.h"
#include "agent/rendezvous_record.h"
#include "tests/fuzz/fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void check_generation(const struct rendezvous_generation *g) {
        struct rendezvous_generation again;
        char *text;
        size_t bytes;

        FUZZ_CHECK(rendezvous_check_generation(g, NULL) == 0);
        FUZZ_CHECK(rendezvous_find(g->members, g->member_count, g->leader, g->leader_nonce));
        FUZZ_CHECK(rendezvous_generation_text(g, &text, &bytes, NULL) == 0);
        FUZZ_CHECK(rendezvous_generation_parse(text, bytes, "x", &again, NULL) == 0);
        FUZZ_CHECK(again.number == g->number && again.member_count == g->member_count);
        FUZZ_CHECK(memcmp(again.members, g->members, g->member_count * sizeof *g->members) == 0);
        FUZZ_CHECK(again.master_port == g->master_port);
        FUZZ_CHECK(memcmp(again.secret, g->secret, sizeof g->secret) == 0);
        rendezvous_generation_done(&again);
        free(text);
}

static void check_member(const struct rendezvous_member *m) {
        struct rendezvous_member again;
        char *text;
        size_t bytes;

        FUZZ_CHECK(rendezvous_check_member(m, NULL) == 0);
        FUZZ_CHECK(rendezvous_member_text(m, &text, &bytes, NULL) == 0);
        FUZZ_CHECK(bytes <= RENDEZVOUS_MEMBER_TEXT_BYTES_MAX);
        FUZZ_CHECK(rendezvous_member_parse(text, bytes, "x", &again, NULL) == 0);
        FUZZ_CHECK(strcmp(m->node, again.node) == 0 && strcmp(m->address, again.address) == 0);
        FUZZ_CHECK(m->nonce == again.nonce && m->ranks == again.ranks);
        FUZZ_CHECK(m->first_rank == again.first_rank && strcmp(m->detail, again.detail) == 0);
        free(text);
}

static void check_url(const char *bytes, size_t count) {
        struct cairn_error e = CAIRN_ERROR_INIT;
        struct rendezvous_place place;
        char *url = malloc(count + 1);

        FUZZ_CHECK(url);
        memcpy(url, bytes, count);
        url[count] = '\0';
        int r = rendezvous_place_parse(url, "/store", "run", &place, &e);
        if (r < 0)
                fuzz_check_error(r, &e);
        else
                FUZZ_CHECK(place.kind == RENDEZVOUS_DIR ? place.path[0] == '/'
                                                        : place.hosts[0] && place.prefix[0] == '/');
        free(url);
}

/* ---- answers of etcd ---- */

struct answers {
        const char *next;
        size_t left;
};

static int post(void *context, const char *path, const char *body, uint64_t deadline_ns,
                struct http_answer *ret, struct cairn_error *reterr) {
        struct answers *a = context;
        size_t count = a->left ? strnlen(a->next, a->left) : 0;
        const char *bytes = a->next;

        *ret = (struct http_answer){.status = 200};
        a->next += count < a->left ? count + 1 : count;
        a->left -= count < a->left ? count + 1 : count;
        if (count > 0 && *bytes == '#')
                return error_set(reterr, CAIRN_ERR_TIMEOUT, "ask etcd", path, "no answer");
        if (count > 0 && (*bytes == '!' || *bytes == '?')) {
                ret->status = *bytes == '!' ? 503 : 404;
                bytes++;
                count--;
        }
        ret->bytes = fuzz_copy(bytes, count);
        ret->count = count;
        return 0;
}

static int ask(void *kind, char verb, struct cairn_error *e) {
        static const struct rendezvous_member self = {
                .node = "a", .address = "h:1", .nonce = 5, .ranks = 1};
        const struct rendezvous_generation g = {.number = 7,
                                                .leader = "a",
                                                .leader_nonce = 5,
                                                .world = 1,
                                                .members = &self,
                                                .member_count = 1};
        const struct rendezvous_ops *ops = &rendezvous_etcd_ops;
        struct rendezvous_look look;
        void *value = NULL;
        size_t bytes = 0;

        switch (verb) {
        case 'j':
                return ops->join(kind, &self, UINT64_MAX, e);
        case 'v':
                return ops->leave(kind, &self, UINT64_MAX, e);
        case 'c':
                return ops->create(kind, &self, &g, UINT64_MAX, e);
        case 'p':
                return ops->put(kind, &self, 7, "key", "value", 5, UINT64_MAX, e);
        case 't':
                TRY(ops->get(kind, &self, 7, "key", UINT64_MAX, &value, &bytes, e));
                FUZZ_CHECK(value && bytes <= RENDEZVOUS_VALUE_BYTES_MAX);
                free(value);
                return 0;
        default:
                TRY(ops->look(kind, &self, verb == 'l', UINT64_MAX, &look, e));
                FUZZ_CHECK(look.member_count <= RENDEZVOUS_MEMBERS_MAX);
                for (size_t i = 0; i < look.member_count; i++)
                        check_member(&look.members[i]);
                FUZZ_CHECK(rendezvous_find(look.members, look.member_count, self.node, self.nonce));
                if (look.generation.number)
                        check_generation(&look.generation);
                return 0;
        }
}

static void check_etcd(char verb, const char *bytes, size_t count) {
        struct answers a = {.next = bytes, .left = count};
        struct rendezvous_place place;
        void *kind;

        FUZZ_CHECK(rendezvous_place_parse("etcd://x/p", NULL, "r", &place, NULL) == 0);
        FUZZ_CHECK(rendezvous_etcd_new(&place, post, &a, &kind, NULL) == 0);
        for (int i = 0; i < 2; i++) { /* a second one meets what the first one kept */
                struct cairn_error e = CAIRN_ERROR_INIT;
                int r = ask(kind, verb, &e);
                if (r < 0)
                        fuzz_check_error(r, &e);
        }
        rendezvous_etcd_ops.close(kind);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count) {
        struct cairn_error e = CAIRN_ERROR_INIT;
        struct rendezvous_generation g;
        struct rendezvous_member m;

        if (count == 0)
                return 0;
        char *rest = fuzz_copy(bytes + 1, count - 1);
        int r = 0;
        switch (*bytes) {
        case 'm':
                r = rendezvous_member_parse(rest, count - 1, "x", &m, &e);
                if (r == 0)
                        check_member(&m);
                break;
        case 'g':
                r = rendezvous_generation_parse(rest, count - 1, "x", &g, &e);
                if (r == 0)
                        check_generation(&g);
                rendezvous_generation_done(&g);
                break;
        case 'u':
                check_url(rest, count - 1);
                break;
        default:
                check_etcd((char) *bytes, rest, count - 1);
        }
        if (r < 0)
                fuzz_check_error(r, &e);
        free(rest);
        return 0;
}

size_t LLVMFuzzerCustomMutator(uint8_t *bytes, size_t count, size_t max, unsigned int seed) {
        return fuzz_mutate_plain(bytes, count, max, seed);
}
