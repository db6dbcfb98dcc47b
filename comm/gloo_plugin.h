/* SPDX-License-Identifier: Apache-2.0
 *
 * gloo_plugin.h - what gloo.c asks of cairn-comm-gloo.so (gloo_plugin.cc), which alone is linked
 * with gloo: C and C++ meet here. It exports one symbol, GLOO_PLUGIN_SYMBOL, a const struct
 * gloo_plugin.
 *
 *     p->open(&setup, &g, &e);                          // listens, one address for each other rank
 *     p->addresses(g, buf);                             // world * GLOO_ADDRESS_BYTES, for the
 *     others p->connect(g, theirs, &e);                        // [r]: what rank r's had at our
 *     rank p->all_reduce(g, sequence, data, count, dtype, &e); ...
 *     p->cut(g); p->close(g);
 *
 * Verbs run in the caller's thread and come back to it for a turn every 100 ms; what a turn returns
 * ends them. `lost` is asked for the error when a peer is gone. After an error only cut and close
 * are left. No exception leaves the plugin. It starts threads with all signals blocked, and SIGPIPE
 * is blocked in the caller's while it is in a verb: gloo writes to sockets that peers may close.
 */
#ifndef CAIRN_COMM_GLOO_PLUGIN_H
#define CAIRN_COMM_GLOO_PLUGIN_H

#include "base/status.h"

#define GLOO_PLUGIN_ABI 1
#define GLOO_PLUGIN_SYMBOL "cairn_comm_gloo"
#define GLOO_ADDRESS_BYTES 192 /* the first one says how many follow */

struct gloo_context;

struct gloo_host {
        void *host;
        int (*turn)(void *host, struct cairn_error *reterr);
        void (*here)(void *host, int rank, int is_here); /* owes nothing in this operation */
        int (*lost)(void *host, int rank, const char *how, struct cairn_error *reterr);
};

struct gloo_setup {
        int rank, world;
        const char *interface; /* of this host, or an address of it */
        uint64_t connect_ns;
        struct gloo_host host;
};

struct gloo_plugin {
        uint32_t abi, bytes; /* of this struct */
        const char *version;
        int (*open)(const struct gloo_setup *setup, struct gloo_context **ret,
                    struct cairn_error *reterr);
        /* Text of the device; holds until close. */
        const char *(*describe)(const struct gloo_context *g);
        int (*addresses)(struct gloo_context *g, unsigned char *ret, struct cairn_error *reterr);
        int (*connect)(struct gloo_context *g, const unsigned char *theirs,
                       struct cairn_error *reterr);
        int (*all_reduce)(struct gloo_context *g, uint64_t sequence, void *data, uint64_t count,
                          enum cairn_dtype dtype, struct cairn_error *reterr);
        int (*reduce_scatter)(struct gloo_context *g, uint64_t sequence, const void *source,
                              void *target, uint64_t count, enum cairn_dtype dtype,
                              struct cairn_error *reterr);
        int (*all_gather)(struct gloo_context *g, uint64_t sequence, const void *source,
                          void *target, uint64_t bytes, struct cairn_error *reterr);
        int (*broadcast)(struct gloo_context *g, uint64_t sequence, void *data, uint64_t bytes,
                         int root, struct cairn_error *reterr);
        void (*cut)(struct gloo_context *g);   /* closes all connections; idempotent */
        void (*close)(struct gloo_context *g); /* frees */
};

#endif
