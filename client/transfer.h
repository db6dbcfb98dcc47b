/* SPDX-License-Identifier: Apache-2.0
 *
 * transfer.h - the bytes of a binding: which ranges to read (format/plan.h), whether the staging
 * image holds them, and copying them to where the trainer has its tensors.
 *
 *     TRY(transfer_plan(&x, binding, registry, reterr));      x.plan_fd goes to the agent; its
 * reply is mapped TRY(transfer_check(&x, staging, bytes, reterr));        every CRC32C again,
 * before anything is touched TRY(transfer_check_steps(&x, ..., problems, reterr));   foreign step
 * counters, likewise TRY(transfer_apply(&x, reterr));                        from here on tensors
 * are touched transfer_done(&x);
 *
 * Owner: points into binding and registry. One thread at a time.
 */
#ifndef CAIRN_CLIENT_TRANSFER_H
#define CAIRN_CLIENT_TRANSFER_H

#include "base/clock.h"
#include "client/binding.h"
#include "client/ranges.h"

struct transfer_part; /* one extent of one load */
struct transfer {
        struct binding *binding;
        const struct registry *registry;
        struct transfer_part *parts; /* in the order of the loads */
        struct ranges_want *wants;   /* parallel to them */
        size_t part_count, part_capacity;
        struct plan_range *ranges;
        size_t range_count;
        uint64_t staging_bytes, bytes, bytes_read; /* bytes: of the tensors */
        int plan_fd;                               /* -1: nothing to read */
        const unsigned char *staging;
        /* set before transfer_apply; NULL: the tensors lie in the host's memory */
        struct device *device;
        const struct clock_ops *clock;
};

int transfer_plan(struct transfer *x, struct binding *b, const struct registry *r,
                  struct cairn_error *reterr);
int transfer_check(struct transfer *x, const void *staging, uint64_t bytes,
                   struct cairn_error *reterr);
int transfer_check_steps(struct transfer *x, const struct binding_request *request,
                         struct textbuf *problems, struct cairn_error *reterr);
int transfer_apply(struct transfer *x, struct cairn_error *reterr);
void transfer_done(struct transfer *x);

#endif
