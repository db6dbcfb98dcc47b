/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/back_end.h"
#include "comm/gloo_plugin.h"
#include "comm/locate.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct gloo {
        const struct gloo_plugin *plugin; /* never unloaded: it has threads */
        struct gloo_context *context;
        unsigned char *mine, *theirs; /* addresses, during bootstrap */
};

static int load(struct comm *c, struct gloo *g, struct cairn_error *reterr) {
        struct cairn_error e = CAIRN_ERROR_INIT;
        char path[PATH_MAX];

        if (locate("CAIRN_GLOO_PLUGIN", "cairn-comm-gloo.so", path, sizeof path, &e) < 0)
                return comm_fail(c, CAIRN_ERR_UNSUPPORTED, reterr, "no gloo: %s", e.message);
        void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        if (!library)
                return comm_fail(c, CAIRN_ERR_UNSUPPORTED, reterr, "no gloo: %s", dlerror());
        g->plugin = dlsym(library, GLOO_PLUGIN_SYMBOL);
        if (!g->plugin || g->plugin->abi != GLOO_PLUGIN_ABI ||
            g->plugin->bytes != sizeof *g->plugin)
                return comm_fail(c, CAIRN_ERR_UNSUPPORTED, reterr,
                                 "no gloo: %s is of another version", path);
        return 0;
}

static int host_turn(void *host, struct cairn_error *reterr) {
        return comm_turn(host, reterr);
}

static void host_here(void *host, int rank, int is_here) {
        comm_here(host, rank, is_here);
}

static int host_lost(void *host, int rank, const char *how, struct cairn_error *reterr) {
        return comm_lost(host, rank, how, reterr);
}

static int set_up(struct comm *c, struct gloo *g, struct cairn_error *reterr) {
        struct gloo_setup setup = {
                .rank = c->options.rank,
                .world = c->options.world,
                .interface = c->interface,
                .connect_ns = c->options.bootstrap_ns,
                .host = {.host = c, .turn = host_turn, .here = host_here, .lost = host_lost},
        };

        if (c->interface[0] == '\0')
                return comm_fail(c, CAIRN_ERR_API, reterr,
                                 "gloo has to be told a network interface or address of this host");
        TRY(g->plugin->open(&setup, &g->context, reterr));
        (void) snprintf(c->description, sizeof c->description, "gloo %s, %s, generation %llu",
                        g->plugin->version, g->plugin->describe(g->context),
                        (unsigned long long) c->options.generation);
        return 0;
}

/* Each rank publishes where it listens for each of the others. */
static int exchange(struct comm *c, struct gloo *g, struct cairn_error *reterr) {
        size_t bytes = (size_t) c->options.world * GLOO_ADDRESS_BYTES, got;
        unsigned char *theirs = g->theirs, *buf;

        if (bytes > COMM_VALUE_BYTES_MAX)
                return comm_fail(c, CAIRN_ERR_API, reterr, "gloo connects %d ranks at most",
                                 (int) (COMM_VALUE_BYTES_MAX / GLOO_ADDRESS_BYTES));
        TRY(g->plugin->addresses(g->context, g->mine, reterr));
        TRY(comm_set(c, "addr", c->options.rank, g->mine, bytes, reterr));
        buf = g->mine;
        for (int r = 0; r < c->options.world; r++) {
                if (r == c->options.rank)
                        continue;
                TRY(comm_get(c, "addr", r, buf, bytes, &got, reterr));
                if (got != bytes)
                        return comm_fail(c, CAIRN_ERR_MISMATCH, reterr,
                                         "rank %d is in a group of another size", r);
                memcpy(theirs + (size_t) r * GLOO_ADDRESS_BYTES,
                       buf + (size_t) c->options.rank * GLOO_ADDRESS_BYTES, GLOO_ADDRESS_BYTES);
        }
        return 0;
}

static int gloo_open(struct comm *c, struct cairn_error *reterr) {
        struct gloo *g = calloc(1, sizeof *g);
        size_t bytes = (size_t) c->options.world * GLOO_ADDRESS_BYTES;

        if (!g)
                return comm_fail(c, CAIRN_ERR_NOMEM, reterr, "no memory");
        c->back = g;
        g->mine = calloc(1, bytes);
        g->theirs = calloc(1, bytes);
        if (!g->mine || !g->theirs)
                return comm_fail(c, CAIRN_ERR_NOMEM, reterr, "no memory");
        TRY(load(c, g, reterr));
        TRY(set_up(c, g, reterr));
        TRY(exchange(c, g, reterr));
        return g->plugin->connect(g->context, g->theirs, reterr);
}

static int gloo_all_reduce(struct comm *c, void *data, uint64_t count, enum cairn_dtype dtype,
                           struct cairn_error *reterr) {
        struct gloo *g = c->back;
        return g->plugin->all_reduce(g->context, c->presence.sequence, data, count, dtype, reterr);
}

static int gloo_reduce_scatter(struct comm *c, const void *source, void *target, uint64_t count,
                               enum cairn_dtype dtype, struct cairn_error *reterr) {
        struct gloo *g = c->back;
        return g->plugin->reduce_scatter(g->context, c->presence.sequence, source, target, count,
                                         dtype, reterr);
}

static int gloo_all_gather(struct comm *c, const void *source, void *target, uint64_t bytes,
                           struct cairn_error *reterr) {
        struct gloo *g = c->back;
        return g->plugin->all_gather(g->context, c->presence.sequence, source, target, bytes,
                                     reterr);
}

static int gloo_broadcast(struct comm *c, void *data, uint64_t bytes, int root,
                          struct cairn_error *reterr) {
        struct gloo *g = c->back;
        return g->plugin->broadcast(g->context, c->presence.sequence, data, bytes, root, reterr);
}

static int gloo_barrier(struct comm *c, int64_t *ret_count, struct cairn_error *reterr) {
        *ret_count = 1;
        return gloo_all_reduce(c, ret_count, 1, CAIRN_I64, reterr);
}

static int gloo_abort(struct comm *const *comms, size_t count, uint64_t deadline_ns,
                      struct cairn_error *reterr) {
        for (size_t i = 0; i < count; i++) {
                struct gloo *g = comms[i]->back;
                if (g && g->context)
                        g->plugin->cut(g->context);
        }
        return 0;
}

static void gloo_close(struct comm *c) {
        struct gloo *g = c->back;

        if (!g)
                return;
        if (g->context)
                g->plugin->close(g->context);
        free(g->mine);
        free(g->theirs);
        free(g);
        c->back = NULL;
}

const struct comm_ops comm_gloo = {
        .name = "gloo",
        .aborts_at_once = true,
        .open = gloo_open,
        .all_reduce = gloo_all_reduce,
        .reduce_scatter = gloo_reduce_scatter,
        .all_gather = gloo_all_gather,
        .broadcast = gloo_broadcast,
        .barrier = gloo_barrier,
        .abort = gloo_abort,
        .close = gloo_close,
};
