/* SPDX-License-Identifier: Apache-2.0 */
#include "trainer/group.h"
#include "comm/comm.h"
#include "trainer/group_store.h"
#include "trainer/stop.h"

/* In every wait. A newer generation exists: whoever is missing will not come. Until all have met a
 * rank that is asked to end does so by itself; afterwards all do at the same step. */
static int check_wait(void *context, struct cairn_error *reterr) {
        struct cairn_statistics n = {.size = sizeof(n)};
        struct group *g = context;

        if (!g->comm && (stop_signal() != 0 || cairn_should_stop(g->cairn)))
                return error_set(reterr, CAIRN_ERR_VOID, "wait for ranks", "", "asked to end");
        if (cairn_get_statistics(g->cairn, &n) != CAIRN_ERR_STALE)
                return 0;
        return error_set(reterr, CAIRN_ERR_STALE, "wait for ranks", "", "%s",
                         cairn_error_text(g->cairn));
}

/* Where the other ranks reach this one: `cairn run` tells where others reach its node. */
static const char *own_interface(const struct settings *s, uint32_t world) {
        const char *local = getenv("LOCAL_WORLD_SIZE"), *address = getenv("CAIRN_ADDRESS");

        if (s->interface)
                return s->interface;
        return !local || strtoul(local, NULL, 10) == world ? "127.0.0.1" : address ? address : "";
}

int group_open(struct group *g, struct cairn *c, uint64_t generation, const struct settings *s,
               struct cairn_error *reterr) {
        struct comm_options o = COMM_OPTIONS_INIT;

        g->cairn = c;
        if (g->world <= 1)
                return 0;
        o.back_end = "gloo";
        o.rank = (int) g->rank;
        o.world = (int) g->world;
        o.generation = generation;
        o.store = group_store(c);
        o.interface = own_interface(s, g->world);
        o.check = check_wait;
        o.check_context = g;
        o.bootstrap_ns = (uint64_t) (s->bootstrap_timeout * 1e9);
        o.collective_ns = o.silence_ns = (uint64_t) (s->collective_timeout * 1e9);
        if (!*o.interface)
                return error_set(reterr, CAIRN_ERR_API, "meet the other ranks", "--interface",
                                 "ranks run on several machines: give the network interface, or "
                                 "an address of this host, that the others reach");
        return comm_new(&o, &g->comm, reterr);
}

void group_close(struct group *g) {
        struct cairn_error error = CAIRN_ERROR_INIT;

        if (!g->comm)
                return;
        if (comm_abort(&g->comm, 1, &error) < 0)
                _exit(COMM_EXIT_HUNG);
        g->comm = comm_free(g->comm);
}

const char *group_describe(const struct group *g) {
        return g->comm ? comm_describe(g->comm) : "none";
}

const char *group_numerics(const struct group *g, char *buf, size_t bytes) {
        const char *all = group_describe(g);

        (void) snprintf(buf, bytes, "%.*s", (int) strcspn(all, ","), all);
        return buf;
}

int group_sum(struct group *g, float *x, size_t count, struct cairn_error *reterr) {
        return g->world > 1 ? comm_all_reduce(g->comm, x, count, CAIRN_F32, reterr) : 0;
}

int group_sum_part(struct group *g, float *x, size_t count, struct cairn_error *reterr) {
        return g->world > 1 ? comm_reduce_scatter(g->comm, x, x + g->rank * count, count, CAIRN_F32,
                                                  reterr)
                            : 0;
}

int group_spread(struct group *g, void *x, size_t part_bytes, struct cairn_error *reterr) {
        return g->world > 1 ? comm_all_gather(g->comm, (char *) x + g->rank * part_bytes, x,
                                              part_bytes, reterr)
                            : 0;
}

void group_keepalive(struct group *g) {
        if (g->comm)
                comm_keepalive(g->comm);
}
