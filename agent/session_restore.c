/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/run.h"
#include "agent/session_parts.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "format/plan.h"
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>

static void inventory_opened(void *context, const struct store_message *reply,
                             struct wire_fds *fds) {
        struct session *s = context;
        struct reply_to to = s->restore.inventory_reply;
        s->restore.inventory_reply = (struct reply_to){0};
        if (reply->status < 0) {
                session_note_error(s, "open checkpoint", &reply->error);
                server_fail(&to, &reply->error);
                return;
        }
        s->restore.world = reply->world;
        s->restore.first = reply->first;
        s->restore.count = reply->count;
        s->restore.opened = true;
        Cairn__Control__Envelope e = CAIRN__CONTROL__ENVELOPE__INIT;
        Cairn__Control__InventoryReply m = CAIRN__CONTROL__INVENTORY_REPLY__INIT;
        m.checkpoint =
                (ProtobufCBinaryData){strlen(s->run->checkpoint), (uint8_t *) s->run->checkpoint};
        m.step = s->run->checkpoint_step;
        m.first_rank = reply->first;
        m.ranks = reply->count;
        e.body_case = CAIRN__CONTROL__ENVELOPE__BODY_INVENTORY_REPLY;
        e.inventory_reply = &m;
        server_reply(&to, &e, fds->fds, fds->count ? 1 : 0);
}

int session_inventory(struct session *s, const struct reply_to *to, struct cairn_error *reterr) {
        if (!*s->run->checkpoint)
                return error_set(reterr, CAIRN_ERR_NOTFOUND, "open checkpoint", s->run->name,
                                 "this generation starts from no checkpoint");
        if (s->restore.inventory_reply.connection)
                return error_set(reterr, CAIRN_ERR_API, "open checkpoint", s->run->name,
                                 "it is being opened already");
        struct store_message m = {.verb = STORE_RESTORE_OPEN};
        memcpy(m.name, s->run->checkpoint, sizeof m.name);
        s->restore.inventory_reply = *to;
        int r = run_store_request(s->run, &m, inventory_opened, s, reterr);
        if (r < 0)
                s->restore.inventory_reply = (struct reply_to){0};
        return r;
}

static void restore_fail(struct session *s, const struct cairn_error *error) {
        session_note_error(s, "restore", error);
        if (s->restore.reply.connection)
                server_fail(&s->restore.reply, error);
        s->restore.reply = (struct reply_to){0};
        s->restore.wanted = false;
        if (s->state == SESSION_RESTORING)
                session_set_state(s, SESSION_SEALED);
}

static void restore_ask_files(struct session *s);

/* The first rank from there on of whose file the plan needs something; UINT32_MAX: none. The plan
 * was checked, and nobody can write to it. */
static uint32_t next_needed(const struct session *s, uint32_t from) {
        uint64_t low = 0, high = s->restore.range_count, bytes = plan_bytes(high);
        unsigned char *map = mmap(NULL, bytes, PROT_READ, MAP_SHARED, s->restore.plan_fd, 0);
        if (map == MAP_FAILED) /* one that is not needed costs its opening */
                return from - s->restore.first < s->restore.count ? from : UINT32_MAX;
        const struct plan_range *ranges = (const void *) (map + PLAN_HEADER_BYTES);
        while (low < high) {
                uint64_t middle = low + (high - low) / 2;
                if (ranges[middle].rank < from)
                        low = middle + 1;
                else
                        high = middle;
        }
        uint32_t rank = low < s->restore.range_count ? ranges[low].rank : UINT32_MAX;
        (void) munmap(map, bytes);
        return rank;
}

static void restore_files(void *context, const struct store_message *reply, struct wire_fds *fds) {
        struct session *s = context;
        s->restore.files_pending = false;
        if (s->state != SESSION_RESTORING)
                return;
        if (reply->status < 0) {
                restore_fail(s, &reply->error);
                return;
        }
        if (!s->restore.begun) { /* they were another saver's */
                session_restore_begin(s);
                return;
        }
        uint32_t end = reply->first + reply->count, next = next_needed(s, end);
        struct saver_message m = session_message(s, SAVER_FILES);
        m.first = reply->first;
        m.count = reply->count;
        s->restore.unflushed += m.count;
        m.flush = next != end || s->restore.unflushed + WIRE_FDS_MAX > SAVER_FILES_MAX;
        if (fds->count == 0 || s->agent->ops->saver_send(s, &m, fds->fds, 1) < 0)
                return; /* the saver is gone: its successor begins anew */
        s->restore.next = next;
        if (m.flush)
                s->restore.unflushed = 0; /* SAVER_PART or SAVER_RESTORED follows */
        else
                restore_ask_files(s);
}

static void restore_ask_files(struct session *s) {
        struct cairn_error error = CAIRN_ERROR_INIT;
        struct store_message m = {.verb = STORE_RESTORE_FILES, .first = s->restore.next};
        uint32_t left = s->restore.first + s->restore.count - s->restore.next;
        m.count = left < WIRE_FDS_MAX ? left : WIRE_FDS_MAX;
        m.world = s->restore.world;
        memcpy(m.name, s->run->checkpoint, sizeof m.name);
        s->restore.files_pending = true;
        if (run_store_request(s->run, &m, restore_files, s, &error) < 0) {
                s->restore.files_pending = false;
                restore_fail(s, &error);
        }
}

void session_saver_part(struct session *s) {
        if (s->state == SESSION_RESTORING && s->restore.wanted && !s->restore.files_pending &&
            s->restore.next < s->restore.first + s->restore.count)
                restore_ask_files(s);
}

/* The trainer waits no longer than its own deadline. What it was given for the seal is too small,
 * and goes: it would be missing. */
static void wait_for_room(struct session *s) {
        session_close_fd(&s->staging_fd);
        s->staging_bytes = s->restore.staging_bytes;
        s->saver_sealed = false;
        session_hand_over(s); /* which says why, and tries again */
}

/* With a sealed saver: its staging is large enough, or a larger one is sealed first. */
void session_restore_begin(struct session *s) {
        struct cairn_error error = CAIRN_ERROR_INIT;
        struct session_restore *t = &s->restore;
        if (!s->saver_sealed || t->files_pending)
                return;
        if (t->staging_bytes > s->staging_bytes) {
                int r = session_make_staging(s, t->staging_bytes, &error);
                if (r == 0)
                        (void) session_send_seal(s);
                else if (r == CAIRN_ERR_NOMEM && session_room_will_come(s, t->staging_bytes))
                        wait_for_room(s);
                else
                        restore_fail(s, &error);
                return;
        }
        if (++t->tries > 3) {
                (void) error_set(&error, CAIRN_ERR_PEER, "restore", s->run->name,
                                 "savers died of it %u times", t->tries - 1);
                restore_fail(s, &error);
                return;
        }
        struct saver_message m = session_message(s, SAVER_RESTORE);
        m.bytes = t->staging_bytes;
        m.world = t->world;
        t->next = next_needed(s, t->first);
        t->unflushed = 0;
        t->begun = s->agent->ops->saver_send(s, &m, &t->plan_fd, 1) == 0;
        if (t->begun && t->range_count > 0)
                restore_ask_files(s);
}

/* Ranges ascend in the rank. */
static int check_here(const struct session *s, const struct plan_range *ranges, uint64_t count,
                      struct cairn_error *reterr) {
        const struct session_restore *t = &s->restore;
        uint32_t first = count ? ranges[0].rank : t->first;
        uint32_t last = count ? ranges[count - 1].rank : t->first;
        uint32_t elsewhere = first < t->first ? first : last;
        if (first >= t->first && last - t->first < t->count)
                return 0;
        return error_set(reterr, CAIRN_ERR_MISMATCH, "restore", s->run->name,
                         "rank %u needs what rank %u wrote, and in this node-local store are ranks "
                         "%u to %u only: start as many ranks on the same nodes as before",
                         s->rank, elsewhere, t->first, t->first + t->count - 1);
}

/* The plan is checked against the checkpoint's world, so that has to be open. */
static int begin_planned(struct session *s, struct cairn_error *reterr) {
        struct session_restore *t = &s->restore;
        uint64_t bytes, count;
        TRY(wire_memfd_check(t->plan_fd, MEMORY_SEALS | F_SEAL_WRITE, PLAN_HEADER_BYTES,
                             plan_bytes(TENSOR_COUNT_MAX * 4), &bytes, reterr));
        void *map = mmap(NULL, bytes, PROT_READ, MAP_SHARED, t->plan_fd, 0);
        if (map == MAP_FAILED)
                return error_set_errno(reterr, errno, "map restore plan", s->run->name);
        const struct plan_range *ranges;
        int r = plan_read(map, bytes, t->world, &ranges, &count, &t->staging_bytes, reterr);
        if (r == 0)
                r = check_here(s, ranges, count, reterr);
        (void) munmap(map, bytes);
        TRY(r);
        if (count != t->range_count)
                return error_set(reterr, CAIRN_ERR_API, "restore", s->run->name,
                                 "the plan has %llu ranges, the message says %llu",
                                 (unsigned long long) count, (unsigned long long) t->range_count);
        t->wanted = true;
        t->tries = 0;
        session_set_state(s, SESSION_RESTORING);
        session_restore_begin(s);
        return 0;
}

static void reopened(void *context, const struct store_message *reply, struct wire_fds *fds) {
        struct session *s = context;
        struct cairn_error error = reply->error;
        (void) fds; /* INDEX, which the trainer has */
        if (s->state != SESSION_SEALED || !s->restore.reply.connection)
                return; /* it asks again */
        s->restore.world = reply->world;
        s->restore.first = reply->first;
        s->restore.count = reply->count;
        s->restore.opened = reply->status == 0;
        if (reply->status < 0 || begin_planned(s, &error) < 0)
                restore_fail(s, &error);
}

int session_restore(struct session *s, const struct reply_to *to, const Cairn__Control__Restore *m,
                    struct wire_fds *fds, struct cairn_error *reterr) {
        struct session_restore *t = &s->restore;
        /* Another agent opened it for this trainer, and died. */
        bool reopens = !t->opened && s->reattached && *s->run->checkpoint;
        if (s->state != SESSION_SEALED || (!t->opened && !reopens))
                return error_set(reterr, CAIRN_ERR_API, "restore", s->run->name,
                                 "the session is %s and the checkpoint %s",
                                 session_state_name(s->state), t->opened ? "open" : "not open");
        session_close_fd(&t->plan_fd);
        t->plan_fd = fds->count ? wire_fds_take(fds, 0) : -1;
        t->range_count = m->range_count;
        t->reply = *to;
        struct store_message q = {.verb = STORE_RESTORE_OPEN};
        memcpy(q.name, s->run->checkpoint, sizeof q.name);
        int r = reopens ? run_store_request(s->run, &q, reopened, s, reterr)
                        : begin_planned(s, reterr);
        if (r < 0)
                t->reply = (struct reply_to){0};
        return r;
}

void session_saver_restored(struct session *s, const struct saver_message *m) {
        struct session_restore *t = &s->restore;
        struct cairn_error error = CAIRN_ERROR_INIT;
        if (s->state != SESSION_RESTORING)
                return;
        if (m->status < 0) {
                restore_fail(s, &m->error);
                return;
        }
        /* A second open of the same memory, for reading only. */
        char path[64];
        (void) snprintf(path, sizeof path, "/proc/self/fd/%d", s->staging_fd);
        _cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd < 0) {
                (void) error_set_errno(&error, errno, "hand out staging", s->run->name);
                restore_fail(s, &error);
                return;
        }
        t->wanted = false;
        t->bytes = m->bytes;
        t->read_ns = m->duration_ns;
        Cairn__Control__Envelope e = CAIRN__CONTROL__ENVELOPE__INIT;
        Cairn__Control__RestoreReady ready = CAIRN__CONTROL__RESTORE_READY__INIT;
        ready.bytes = t->bytes;
        ready.read_ns = t->read_ns;
        e.body_case = CAIRN__CONTROL__ENVELOPE__BODY_RESTORE_READY;
        e.restore_ready = &ready;
        server_reply(&t->reply, &e, &fd, 1);
        t->reply = (struct reply_to){0};
        log_event(LOG_LEVEL_INFO, "run=%s rank=%u restored_bytes=%llu read_ms=%llu checkpoint=%s",
                  s->run->name, s->rank, (unsigned long long) t->bytes,
                  (unsigned long long) (t->read_ns / NSEC_PER_MSEC), s->run->checkpoint);
}

int session_restore_done(struct session *s, const struct reply_to *to, int status,
                         struct cairn_error *reterr) {
        if (s->state == SESSION_ACTIVE) { /* the page said so first */
                server_done_reply(to);
                return 0;
        }
        if (s->state != SESSION_SEALED && s->state != SESSION_RESTORING)
                return error_set(reterr, CAIRN_ERR_API, "end restore", s->run->name,
                                 "the session is %s", session_state_name(s->state));
        session_close_fd(&s->restore.plan_fd);
        if (status < 0) {
                log_event(LOG_LEVEL_WARNING, "run=%s rank=%u restore=failed status=%s",
                          s->run->name, s->rank, status_name(status));
                if (s->state == SESSION_RESTORING)
                        session_set_state(s, SESSION_SEALED);
        } else
                session_set_state(s, SESSION_ACTIVE);
        server_done_reply(to);
        return 0;
}
