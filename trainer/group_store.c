/* SPDX-License-Identifier: Apache-2.0 */
#include "trainer/group_store.h"
#include "base/clock.h"

static uint64_t timeout_of(uint64_t deadline_ns) {
        uint64_t now_ns = clock_now(&clock_system);

        return deadline_ns > now_ns ? deadline_ns - now_ns : 0;
}

static int result(struct cairn *c, int r, const char *operation, const char *key,
                  struct cairn_error *reterr) {
        return r < 0 ? error_set(reterr, r, operation, key, "%s", cairn_error_text(c)) : 0;
}

static int set(void *context, const char *key, const void *value, size_t bytes,
               uint64_t deadline_ns, struct cairn_error *reterr) {
        int r = cairn_exchange_put(context, key, value, bytes, timeout_of(deadline_ns));

        return result(context, r, "tell ranks", key, reterr);
}

static int get(void *context, const char *key, void *buf, size_t bytes_max, size_t *ret_bytes,
               uint64_t deadline_ns, struct cairn_error *reterr) {
        uint64_t bytes = 0;
        int r = cairn_exchange_get(context, key, buf, bytes_max, &bytes, timeout_of(deadline_ns));

        *ret_bytes = bytes;
        return result(context, r == CAIRN_ERR_NOMEM ? CAIRN_ERR_CORRUPT : r, "hear from ranks", key,
                      reterr);
}

struct visitor {
        comm_store_visit_fn visit;
        void *argument;
};

static void visit_one(const char *key, const void *value, uint64_t bytes, void *argument) {
        const struct visitor *v = argument;

        v->visit(key, value, bytes, v->argument);
}

static int list(void *context, const char *prefix, comm_store_visit_fn visit, void *argument,
                uint64_t deadline_ns, struct cairn_error *reterr) {
        struct visitor v = {.visit = visit, .argument = argument};
        int r = cairn_exchange_list(context, prefix, visit_one, &v, timeout_of(deadline_ns));

        return result(context, r, "hear from ranks", prefix, reterr);
}

static int generation(void *context, uint64_t *ret, uint64_t deadline_ns,
                      struct cairn_error *reterr) {
        uint32_t count;
        int r = cairn_exchange_ranks(context, NULL, 0, &count, ret, timeout_of(deadline_ns));

        return result(context, r, "ask for the newest restart", "", reterr);
}

struct comm_store group_store(struct cairn *c) {
        return (struct comm_store){
                .set = set, .get = get, .list = list, .generation = generation, .context = c};
}
