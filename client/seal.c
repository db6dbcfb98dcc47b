/* SPDX-License-Identifier: Apache-2.0
 *
 * cairn_seal: the inventory goes to the agent. The first seal comes before cairn_restore; later
 * ones inside an update, whose cairn_update_end publishes the new number with the state that
 * follows it.
 */
#include "base/cleanup.h"
#include "client/handle.h"
#include <errno.h>
#include <inttypes.h>

#define SEAL_TIMEOUT_NS (30 * NSEC_PER_SEC)
/* The agent sizes, and on slow machines prefaults, staging of the image's size. */
#define SEAL_BYTES_PER_SEC_MIN (1 * GiB)

int handle_link_slabs(struct cairn *c, struct cairn_error *reterr) {
        for (; c->slabs_linked < c->slabs.count; c->slabs_linked++) {
                const struct device_memory *m = &c->slabs.items[c->slabs_linked].memory;
                int fd;
                TRY(c->device->ops->export_fd(c->device, m, &fd, reterr));
                link_add_slab(&c->link, fd, m->bytes, m->kind);
        }
        return 0;
}

/* From now on the trainer publishes into this seal's host state. */
static int install(struct cairn *c, struct inventory *fresh, uint64_t number,
                   struct cairn_error *reterr) {
        void *payload = calloc(1, fresh->payload_bytes ? fresh->payload_bytes : 1);
        if (!payload)
                return error_set(reterr, CAIRN_ERR_NOMEM, "seal", c->run,
                                 "memory for %" PRIu64 " bytes of host values is missing",
                                 fresh->payload_bytes);
        free(c->payload);
        c->payload = payload;
        inventory_done(&c->inventory);
        c->inventory = *fresh;
        *fresh = (struct inventory) INVENTORY_INIT;
        c->seal_number = number;
        c->value_count = c->registry.value_count;
        c->registry.unsealed = false;
        return 0;
}

/* The saver cannot read this state: a thread of ours copies for it. */
static int start_pushing(struct cairn *c, struct inventory *fresh, int *ret_fd,
                         struct cairn_error *reterr) {
        const struct pusher_parts parts = {
                .ops = c->device->ops,
                .ordinal = c->device->ordinal,
                .page = c->page,
                .stream = c->stream.device ? &c->stream : NULL,
                .clock = c->clock,
        };
        TRY(pusher_start(&c->pusher, &parts, reterr));
        pusher_take_plan(&c->pusher, TAKE_PTR(fresh->plan));
        *ret_fd = pusher_saver_end(&c->pusher);
        if (*ret_fd < 0)
                return error_set_errno(reterr, errno, "seal", c->run);
        return 0;
}

static int hand_over(struct cairn *c, struct inventory *fresh, uint64_t number,
                     struct cairn_error *reterr) {
        uint64_t gate_ns = c->gate.deadline_duration_ns;
        uint64_t deadline_ns = clock_now(c->clock) + SEAL_TIMEOUT_NS +
                               fresh->image_bytes / SEAL_BYTES_PER_SEC_MIN * NSEC_PER_SEC;
        _cleanup_close_ int push_fd = -1;
        if (fresh->plan)
                TRY(start_pushing(c, fresh, &push_fd, reterr));
        struct link_seal seal = {.number = number,
                                 .tensor_count = c->registry.tensor_count,
                                 .bytes = fresh->image_bytes,
                                 .elsewhere = c->registry.elsewhere_count,
                                 .inventory_fd = TAKE_FD(fresh->fd),
                                 .host_fd = TAKE_FD(fresh->host_fd),
                                 .push_fd = TAKE_FD(push_fd)};
        seal.device_uuid_bytes = fresh->device_uuid_bytes;
        memcpy(seal.device_uuid, fresh->device_uuid, fresh->device_uuid_bytes);
        TRY(link_seal(&c->link, &seal, deadline_ns, &gate_ns, reterr));
        c->gate.deadline_duration_ns =
                gate_ns > GATE_DEADLINE_NS_MIN ? gate_ns : GATE_DEADLINE_NS_MIN;
        return 0;
}

/* Once: the next seal takes what was registered as it is. */
static int check_refused(struct cairn *c, struct cairn_error *reterr) {
        struct cairn_error e = c->refused;
        char text[900];
        if (e.status == 0)
                return 0;
        c->refused = (struct cairn_error) CAIRN_ERROR_INIT;
        return error_set(reterr, e.status, "seal", c->run,
                         "a registration was refused: %.400s; what it was for would be missing in "
                         "every checkpoint; where that is meant, seal again",
                         error_format(&e, text, sizeof text));
}

static int seal(struct cairn *c, struct cairn_error *reterr) {
        struct inventory fresh = INVENTORY_INIT;
        bool first = c->stage == HANDLE_OPENED;
        uint64_t number = c->seal_number + 1;

        TRY(handle_check(c, "seal", reterr));
        if (!first && c->stage != HANDLE_UPDATING)
                return handle_wrong_stage(c, "seal", reterr);
        TRY(check_refused(c, reterr));
        if (c->passive) {
                c->registry.unsealed = false;
                if (first)
                        c->stage = HANDLE_SEALED;
                return 0;
        }
        TRY(handle_link_slabs(c, reterr));
        TRY(inventory_build(&c->registry, &c->slabs, number, c->rank, c->writers, &fresh, reterr));
        int r = hand_over(c, &fresh, number, reterr);
        /* A first seal that failed may be tried again. A later one holds whatever the agent says:
         * the state has its shape already, and cuts are declined until an agent has this inventory.
         */
        if (r == 0 || !first) {
                int installed = install(c, &fresh, number, r == 0 ? reterr : NULL);
                if (installed < 0)
                        r = r < 0 ? r : installed;
                else if (first)
                        c->stage = HANDLE_SEALED;
        }
        inventory_done(&fresh);
        return r;
}

int cairn_seal(struct cairn *c) {
        struct cairn_error e = CAIRN_ERROR_INIT;
        return c ? handle_end(c, seal(c, &e), &e) : CAIRN_ERR_API;
}
