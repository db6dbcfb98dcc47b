/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/budget.h"
#include "agent/run.h"
#include "agent/session_parts.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "device/device.h"
#include <errno.h>
#include <sys/stat.h>

static int take_slabs(struct session *s, const Cairn__Control__SlabBatch *m, struct wire_fds *fds,
                      struct cairn_error *reterr) {
        if (m->n_bytes != fds->count || m->n_kind != fds->count || m->n_bytes == 0)
                return error_set(reterr, CAIRN_ERR_API, "take slabs", s->run->name,
                                 "%zu sizes, %zu kinds and %zu descriptors", m->n_bytes, m->n_kind,
                                 fds->count);
        if (m->first_slab > SLAB_COUNT_MAX || fds->count > SLAB_COUNT_MAX - m->first_slab)
                return error_set(reterr, CAIRN_ERR_API, "take slabs", s->run->name,
                                 "more than %d slabs", SLAB_COUNT_MAX);
        bool known = m->first_slab + fds->count <= s->slab_count;
        if (m->first_slab != s->slab_count && !known)
                return error_set(reterr, CAIRN_ERR_API, "take slabs", s->run->name,
                                 "slab %u follows %u", m->first_slab, s->slab_count);
        for (size_t i = 0; i < fds->count; i++) {
                if (m->kind[i] != DEVICE_HANDLE_MEMFD && m->kind[i] != DEVICE_HANDLE_CUDA_VMM)
                        return error_set(reterr, CAIRN_ERR_UNSUPPORTED, "take slabs", s->run->name,
                                         "slab %zu is of kind %u, which this agent does not know",
                                         m->first_slab + i, m->kind[i]);
                if (m->bytes[i] > SLAB_BYTES_MAX)
                        return error_set(reterr, CAIRN_ERR_API, "take slabs", s->run->name,
                                         "a slab has at most %llu bytes",
                                         (unsigned long long) SLAB_BYTES_MAX);
                uint64_t bytes;
                /* A GPU's handle is checked by the driver, once it is opened. */
                if (m->kind[i] == DEVICE_HANDLE_MEMFD)
                        TRY(wire_memfd_check(fds->fds[i], MEMORY_SEALS, m->bytes[i], m->bytes[i],
                                             &bytes, reterr));
        }
        if (known) /* sent again after a reconnection: the same memory */
                return 0;
        uint32_t first = s->slab_count;
        for (size_t i = 0; i < m->n_bytes; i++, s->slab_count++) {
                s->slab_fds[s->slab_count] = wire_fds_take(fds, i);
                s->slab_bytes[s->slab_count] = m->bytes[i];
                s->slab_kinds[s->slab_count] = m->kind[i];
        }
        if (s->saver_ready)
                (void) session_send_slabs(s, first);
        return 0;
}

int session_slabs(struct session *s, const struct reply_to *to, const Cairn__Control__SlabBatch *m,
                  struct wire_fds *fds, struct cairn_error *reterr) {
        s->slab_error = (struct cairn_error) CAIRN_ERROR_INIT;
        int r = take_slabs(s, m, fds, &s->slab_error);
        if (r == 0)
                server_done_reply(to);
        else if (reterr)
                *reterr = s->slab_error;
        return r;
}

/* Pages of a memfd come with their first use. */
static uint64_t filled(int fd) {
        struct stat st;
        return fd >= 0 && fstat(fd, &st) == 0 ? (uint64_t) st.st_blocks * 512 : 0;
}

static uint64_t unfilled(int fd, uint64_t bytes) {
        uint64_t there = filled(fd);
        return bytes > there ? bytes - there : 0;
}

/* All ranks of this machine share its memory: what others were promised, and what trainers have
 * registered, counts before it is filled. The session's own old staging goes first: its saver
 * unmaps it at the seal. */
static struct budget_use staging_use(const struct session *s, uint64_t *ret_abandoned) {
        struct budget_use use = {.bytes_max = s->agent->config.staging_bytes_max,
                                 .same_group = s->agent->config.runner != 0,
                                 .freed = filled(s->staging_fd)};
        *ret_abandoned = 0;
        for (size_t i = 0; i < SESSION_COUNT_MAX; i++) {
                const struct session *other = s->agent->sessions[i];
                *ret_abandoned += other ? saver_link_lost_bytes(&other->saver) : 0;
                for (uint32_t j = 0; other && !other->dead && j < other->slab_count; j++)
                        if (other->slab_kinds[j] == DEVICE_HANDLE_MEMFD)
                                use.trainers += unfilled(other->slab_fds[j], other->slab_bytes[j]);
                if (!other || other == s || other->staging_fd < 0)
                        continue;
                use.promised += other->staging_bytes;
                use.unfilled += unfilled(other->staging_fd, other->staging_bytes);
        }
        use.promised += *ret_abandoned;
        return use;
}

/* Is it only what savers that are stuck in the storage still hold? */
bool session_room_will_come(const struct session *s, uint64_t bytes) {
        uint64_t abandoned;
        struct budget_use use = staging_use(s, &abandoned);
        struct budget b;
        use.promised -= abandoned;
        use.freed += abandoned;
        budget_read(&use, &b);
        return abandoned > 0 && budget_check(&b, bytes, NULL) == 0;
}

int session_make_staging(struct session *s, uint64_t bytes, struct cairn_error *reterr) {
        uint64_t abandoned;
        const struct budget_use use = staging_use(s, &abandoned);
        struct budget b;
        budget_read(&use, &b);
        TRY(budget_check(&b, bytes, reterr));
        session_close_fd(&s->staging_fd);
        TRY(wire_memfd_create("cairn-staging", bytes, &s->staging_fd, reterr));
        s->staging_bytes = bytes;
        return wire_memfd_seal(s->staging_fd, MEMORY_SEALS, reterr);
}

/* What the inventory says is read by the saver, who copies by it: a hundred thousand records would
 * hold up everybody else here. */
static int check_seal(const struct session *s, const Cairn__Control__Seal *m,
                      const struct wire_fds *fds, struct cairn_error *reterr) {
        uint64_t bytes;

        if (fds->count != 2 && fds->count != 3)
                return error_set(reterr, CAIRN_ERR_API, "seal", s->run->name,
                                 "two descriptors are needed, or three where the trainer copies");
        if (m->bytes < DATA_BLOCK_BYTES || m->bytes % DATA_BLOCK_BYTES || m->bytes > DATA_BYTES_MAX)
                return error_set(reterr, CAIRN_ERR_API, "seal", s->run->name,
                                 "an image of %llu bytes is not possible",
                                 (unsigned long long) m->bytes);
        if (m->device_uuid.len != 0 && m->device_uuid.len != DEVICE_UUID_BYTES)
                return error_set(reterr, CAIRN_ERR_API, "seal", s->run->name,
                                 "a GPU's UUID has %d bytes, not %zu", DEVICE_UUID_BYTES,
                                 m->device_uuid.len);
        TRY(wire_memfd_check(fds->fds[0], MEMORY_SEALS, 1, INVENTORY_BYTES_MAX, &bytes, reterr));
        return wire_memfd_check(fds->fds[1], MEMORY_SEALS, host_state_bytes(0),
                                host_state_bytes(HOST_STATE_BYTES_MAX), &bytes, reterr);
}

static void answer_sealed(struct session *s) {
        Cairn__Control__Envelope e = CAIRN__CONTROL__ENVELOPE__INIT;
        Cairn__Control__Sealed m = CAIRN__CONTROL__SEALED__INIT;
        m.seal = s->seal;
        m.staging_bytes = s->staging_bytes;
        m.gate_deadline_ns = s->gate_deadline_ns;
        e.body_case = CAIRN__CONTROL__ENVELOPE__BODY_SEALED;
        e.sealed = &m;
        server_reply(&s->seal_reply, &e, NULL, 0);
        s->seal_reply = (struct reply_to){0};
}

/* As nvidia-smi -L has it, but for what it puts before. */
static void name_device(struct session *s, const ProtobufCBinaryData *uuid) {
        size_t used = 0;
        s->device[0] = '\0';
        for (size_t i = 0; i < uuid->len; i++)
                used += (size_t) snprintf(s->device + used, sizeof s->device - used, "%s%02x",
                                          i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "",
                                          uuid->data[i]);
}

int session_seal(struct session *s, const struct reply_to *to, const Cairn__Control__Seal *m,
                 struct wire_fds *fds, struct cairn_error *reterr) {
        if (s->state != SESSION_WELCOMED && s->state != SESSION_ACTIVE &&
            s->state != SESSION_SEALED)
                return error_set(reterr, CAIRN_ERR_API, "seal", s->run->name, "the session is %s",
                                 session_state_name(s->state));
        if (s->slab_error.status) {
                *reterr = s->slab_error;
                return reterr->status;
        }
        s->seal_reply = *to;
        if (m->seal == s->seal && s->saver_sealed) { /* again after a reconnection */
                answer_sealed(s);
                return 0;
        }
        uint64_t image = m->bytes, bytes = image > s->staging_bytes ? image : s->staging_bytes;
        int r = check_seal(s, m, fds, reterr);
        /* A write in flight reads the old staging, which its saver has mapped: a new one anyway. */
        if (r == 0 && (s->staging_fd < 0 || s->staging_bytes < image || s->writing)) {
                r = session_make_staging(s, bytes, reterr);
                if (r == CAIRN_ERR_NOMEM && session_room_will_come(s, bytes)) {
                        session_close_fd(&s->staging_fd);
                        s->staging_bytes = bytes;
                        r = 0;
                }
        }
        if (r < 0) {
                s->seal_reply = (struct reply_to){0};
                return r;
        }
        session_close_fd(&s->inventory_fd);
        session_close_fd(&s->host_fd);
        s->inventory_fd = wire_fds_take(fds, 0);
        s->host_fd = wire_fds_take(fds, 1);
        session_close_fd(&s->push_fd);
        if (fds->count == 3)
                s->push_fd = wire_fds_take(fds, 2);
        s->elsewhere = m->elsewhere;
        name_device(s, &m->device_uuid);
        s->seal = m->seal;
        s->image_bytes = image;
        session_set_state(s, s->state == SESSION_WELCOMED ? SESSION_SEALING : SESSION_RESEALING);
        if (s->saver_ready)
                session_hand_over(s);
        return 0;
}

static void be_sealed(struct session *s) {
        if (s->state == SESSION_SEALING)
                session_set_state(s, s->reattached && cut_read(s->page).seq > 0 ? SESSION_ACTIVE
                                                                                : SESSION_SEALED);
        else if (s->state == SESSION_RESEALING)
                session_set_state(s, SESSION_ACTIVE);
        if (s->seal_reply.connection)
                answer_sealed(s);
}

void session_seal_without_room(struct session *s) {
        if (!s->gate_deadline_ns)
                s->gate_deadline_ns = GATE_DEADLINE_NS_MIN;
        be_sealed(s);
}

void session_saver_sealed(struct session *s, const struct saver_message *m) {
        if (m->seal != s->seal)
                return;
        struct cairn_error error = m->error;
        int r = m->status;
        if (r == 0 && m->bytes != s->image_bytes)
                r = error_set(&error, CAIRN_ERR_MISMATCH, "seal", s->run->name,
                              "the inventory makes an image of %llu bytes, the trainer announced "
                              "%llu",
                              (unsigned long long) m->bytes, (unsigned long long) s->image_bytes);
        if (r < 0) {
                session_note_error(s, "seal", &error);
                session_fail_pending(s, &error);
                if (s->dead)
                        s->postmortem = POSTMORTEM_OVER;
                return;
        }
        s->saver_sealed = true;
        s->tensor_count = m->count;
        s->copy_rate = m->rate_bytes_per_sec ? m->rate_bytes_per_sec : s->copy_rate;
        s->gate_deadline_ns = GATE_DEADLINE_NS_MIN;
        if (s->copy_rate) {
                __uint128_t wait = (__uint128_t) 2 * s->image_bytes * NSEC_PER_SEC / s->copy_rate;
                if (wait > s->gate_deadline_ns)
                        s->gate_deadline_ns =
                                wait < UINT64_MAX / 4 ? (uint64_t) wait : UINT64_MAX / 4;
        }
        if (s->elsewhere)
                log_event(LOG_LEVEL_WARNING,
                          "run=%s rank=%u tensors_elsewhere=%llu post_mortem=impossible "
                          "reason=\"they are not in memory of cairn_alloc\"",
                          s->run->name, s->rank, (unsigned long long) s->elsewhere);
        if (m->warned)
                session_note_error(s, "copying", &m->error);
        log_event(LOG_LEVEL_INFO,
                  "run=%s rank=%u sealed=%llu tensors=%llu image_bytes=%llu staging_bytes=%llu "
                  "gate_deadline_ms=%llu copy_bytes_per_sec=%llu",
                  s->run->name, s->rank, (unsigned long long) s->seal,
                  (unsigned long long) s->tensor_count, (unsigned long long) s->image_bytes,
                  (unsigned long long) s->staging_bytes,
                  (unsigned long long) (s->gate_deadline_ns / NSEC_PER_MSEC),
                  (unsigned long long) s->copy_rate);
        be_sealed(s);
        if (s->restore.wanted)
                session_restore_begin(s);
}
