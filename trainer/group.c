/* SPDX-License-Identifier: Apache-2.0 */
#include "trainer/group.h"
#include "comm/comm.h"
#include "device/device.h"
#include "trainer/group_store.h"
#include "trainer/stop.h"
#include <errno.h>
#include <stdlib.h>

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

static int set_up_nccl(struct group *g, struct comm_options *o, struct cairn_error *reterr) {
        struct compute *c = g->compute;

        if (c->ordinal < 0)
                return error_set(
                        reterr, CAIRN_ERR_API, "meet the other ranks", "--collectives",
                        "nccl adds what is in a GPU's memory; give --device cuda, or gloo");
        TRY(device_cuda.open(c->ordinal, &g->device, reterr));
        o->device = g->device;
        o->queue = c->ops->queue(c);
        o->thread_begin = c->ops->thread_begin;
        o->thread_context = c;
        return 0;
}

int group_open(struct group *g, struct cairn *c, struct compute *compute, uint64_t generation,
               const struct settings *s, struct cairn_error *reterr) {
        struct comm_options o = COMM_OPTIONS_INIT;

        g->cairn = c;
        g->compute = compute;
        if (g->world <= 1)
                return 0;
        o.back_end = settings_collectives(s);
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
        if (!strcmp(o.back_end, "nccl"))
                TRY(set_up_nccl(g, &o, reterr));
        return comm_new(&o, &g->comm, reterr);
}

static void stage_done(struct group *g) {
        if (g->device && g->compute)
                g->compute->ops->release(g->compute, g->stage);
        else
                free(g->stage);
        g->stage = NULL;
        g->stage_bytes = 0;
}

/* Memory of the host, or of the device where the communicator is NCCL's. */
static int make_stage(struct group *g, size_t bytes, struct cairn_error *reterr) {
        struct compute *c = g->compute;

        if (bytes <= g->stage_bytes)
                return 0;
        stage_done(g);
        if (g->device)
                TRY(c->ops->allocate(c, bytes, &g->stage, reterr));
        else
                g->stage = malloc(bytes);
        if (!g->stage)
                return error_set_errno(reterr, ENOMEM, "exchange with other ranks", "buffer");
        g->stage_bytes = bytes;
        return 0;
}

void group_close(struct group *g) {
        struct cairn_error error = CAIRN_ERROR_INIT;

        if (g->comm) {
                if (comm_abort(&g->comm, 1, &error) < 0)
                        _exit(COMM_EXIT_HUNG);
                g->comm = comm_free(g->comm);
        }
        stage_done(g);
        if (g->device)
                g->device->ops->close(g->device);
        g->device = NULL;
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
        struct compute *c = g->compute;
        size_t bytes = count * sizeof(*x);

        if (g->world <= 1)
                return 0;
        if (c->is_host || g->device)
                return comm_all_reduce(g->comm, x, count, CAIRN_F32, reterr);
        TRY(make_stage(g, bytes, reterr));
        TRY(c->ops->download(c, g->stage, x, bytes, reterr));
        TRY(comm_all_reduce(g->comm, g->stage, count, CAIRN_F32, reterr));
        c->ops->upload(c, x, g->stage, bytes);
        return 0;
}

int group_sum_part(struct group *g, float *x, size_t count, struct cairn_error *reterr) {
        struct compute *c = g->compute;
        size_t bytes = count * sizeof(*x);
        float *own = x + g->rank * count, *staged;

        if (g->world <= 1)
                return 0;
        if (c->is_host || g->device)
                return comm_reduce_scatter(g->comm, x, own, count, CAIRN_F32, reterr);
        TRY(make_stage(g, g->world * bytes, reterr));
        staged = (float *) g->stage + g->rank * count;
        TRY(c->ops->download(c, g->stage, x, g->world * bytes, reterr));
        TRY(comm_reduce_scatter(g->comm, g->stage, staged, count, CAIRN_F32, reterr));
        c->ops->upload(c, own, staged, bytes);
        return 0;
}

static int gather(struct group *g, void *x, size_t part_bytes, struct cairn_error *reterr) {
        return comm_all_gather(g->comm, (char *) x + g->rank * part_bytes, x, part_bytes, reterr);
}

int group_gather(struct group *g, void *x, size_t part_bytes, struct cairn_error *reterr) {
        struct compute *c = g->compute;
        size_t own = g->rank * part_bytes;

        if (g->world <= 1)
                return 0;
        if (c->is_host || g->device)
                return gather(g, x, part_bytes, reterr);
        TRY(make_stage(g, g->world * part_bytes, reterr));
        TRY(c->ops->download(c, (char *) g->stage + own, (char *) x + own, part_bytes, reterr));
        TRY(gather(g, g->stage, part_bytes, reterr));
        c->ops->upload(c, x, g->stage, g->world * part_bytes);
        return 0;
}

int group_spread(struct group *g, void *x, size_t part_bytes, struct cairn_error *reterr) {
        struct compute *c = g->compute;
        size_t own = g->rank * part_bytes;

        if (g->world <= 1)
                return 0;
        if (!g->device)
                return gather(g, x, part_bytes, reterr);
        TRY(make_stage(g, g->world * part_bytes, reterr));
        c->ops->upload(c, (char *) g->stage + own, (char *) x + own, part_bytes);
        TRY(gather(g, g->stage, part_bytes, reterr));
        return c->ops->download(c, x, g->stage, g->world * part_bytes, reterr);
}

void group_keepalive(struct group *g) {
        if (g->comm)
                comm_keepalive(g->comm);
}
