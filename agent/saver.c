/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/saver.h"

#include "agent/import.h"
#include "agent/parcel.h"
#include "agent/push.h"
#include "agent/reader.h"
#include "agent/worker.h"
#include "agent/writer.h"
#include "base/cleanup.h"
#include "base/fault.h"
#include "base/log.h"
#include "format/wire.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>

#define WAIT_NS (500 * NSEC_PER_MSEC)
#define HOLD_LOOK_MS 10 /* how soon a hold sees that the gate's deadline expired */
#define SEND_NS (30 * NSEC_PER_SEC)
#define STORAGE_BYTES_PER_SEC_MIN (4 * MiB) /* what takes longer is given up */

struct saver {
        int socket;
        struct control_page *page;
        int event_fd;
        struct source source;
        struct staging staging;
        struct push push; /* where the trainer copies */
        struct ring *ring;
        bool staging_ready;         /* every page is there, and registered where that is allowed */
        bool source_ready;          /* every page is mapped */
        struct saver_message setup; /* who we serve */
        bool armed;
        uint32_t attempt;
        int data_fd, manifest_fd;
        uint64_t take_seq; /* a cut at or after it is wanted; valid while take_wanted */
        bool take_wanted;
        /* While a cut is copied and written: no further order is looked at; it is not wanted. */
        bool orders_wait, given_up;
        bool hold; /* it is a group's: held until all ranks are, at hold_step or later */
        int64_t hold_step;
        struct saver_ending ending; /* the trainer's: all later cuts are post-mortem */
        uint64_t valid_seq;         /* of the newest valid cut */
        bool any_valid;
        /* how often this seq was claimed: the attempt must not wrap within one */
        uint64_t claim_seq;
        uint32_t claim_count;
        unsigned char *payload;
        /* a restore: its plan is mapped until all is read, some files at a time */
        void *plan;
        uint64_t plan_bytes;
        const struct plan_range *ranges;
        uint64_t range_count, ranges_read, restored_bytes, restore_ns, restore_deadline_ns;
        int files[SAVER_FILES_MAX];
        uint32_t first_file, file_count;
        bool warned;
        bool stuck; /* staging may be written by a process that cannot be ended */
};

/* ---- packets ---- */

static int send_message(struct saver *s, struct saver_message *m) {
        m->session_id = s->setup.session_id;
        m->rank = s->setup.rank;
        uint64_t deadline_ns = clock_now(&clock_system) + SEND_NS;
        while (send(s->socket, m, sizeof *m, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) {
                struct pollfd p = {.fd = s->socket, .events = POLLOUT};
                if ((errno != EAGAIN && errno != EINTR) || clock_now(&clock_system) >= deadline_ns)
                        return CAIRN_ERR_PEER;
                (void) poll(&p, 1, clock_poll_timeout(&clock_system, deadline_ns));
        }
        return 0;
}

static void take_fds(const struct msghdr *header, struct wire_fds *fds) {
        for (struct cmsghdr *c = CMSG_FIRSTHDR(header); c;
             c = CMSG_NXTHDR((struct msghdr *) (uintptr_t) header, c)) {
                if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
                        continue;
                size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
                for (size_t i = 0; i < count && fds->count < WIRE_FDS_MAX; i++)
                        memcpy(&fds->fds[fds->count++], CMSG_DATA(c) + i * sizeof(int),
                               sizeof(int));
        }
}

static int receive_message(struct saver *s, struct saver_message *m, struct wire_fds *fds) {
        union {
                struct cmsghdr header;
                char bytes[CMSG_SPACE(WIRE_FDS_MAX * sizeof(int))];
        } control;
        struct iovec part = {.iov_base = m, .iov_len = sizeof *m};
        struct msghdr header = {.msg_iov = &part,
                                .msg_iovlen = 1,
                                .msg_control = control.bytes,
                                .msg_controllen = sizeof control.bytes};
        ssize_t n = recvmsg(s->socket, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
                return CAIRN_ERR_BUSY;
        if (n <= 0)
                return CAIRN_ERR_PEER;
        take_fds(&header, fds);
        if (n != sizeof *m || (header.msg_flags & (MSG_TRUNC | MSG_CTRUNC)))
                return CAIRN_ERR_PEER;
        m->run[sizeof m->run - 1] = '\0';
        return 0;
}

/* ---- requests for a cut ---- */

/* The present state is asked for; a request for a later one rings when it is there. */
static bool due(const struct saver *s) {
        if (!s->page)
                return false;
        uint64_t wanted_seq = atomic_load(&s->page->wanted_seq);
        return wanted_seq > atomic_load(&s->page->answered_seq) &&
               wanted_seq <= cut_read(s->page).seq;
}

/* While no cut can be taken the gate must not wait for one. */
static void decline_if_due(struct saver *s) {
        if (due(s))
                cut_decline(s->page, CAIRN_ERR_BUSY);
}

static void clear_event(const struct saver *s) {
        uint64_t count;
        (void) !read(s->event_fd, &count, sizeof count);
}

/* A look at what comes next, without taking it; false: nothing did in time. */
static bool next_order(const struct saver *s, int timeout_ms, struct saver_message *ret) {
        struct pollfd p = {.fd = s->socket, .events = POLLIN};
        *ret = (struct saver_message){.verb = SAVER_DISARM}; /* of nobody: the agent is gone */
        if (poll(&p, 1, timeout_ms) <= 0)
                return false;
        (void) !recv(s->socket, ret, sizeof *ret, MSG_PEEK | MSG_DONTWAIT);
        return true;
}

static int dispatch(struct saver *s, const struct saver_message *m, struct wire_fds *fds);

/* Orders that arrive while a cut is copied or written. What only notes a wish for later is done at
 * once; any other is the main loop's, and the first of them ends the looking. */
static bool is_given_up(void *context) {
        struct saver *s = context;
        struct saver_message m;
        while (!s->orders_wait && next_order(s, 0, &m)) {
                struct wire_fds none = WIRE_FDS_INIT;
                bool at_once = m.verb == SAVER_RELEASE ||
                               (m.verb == SAVER_TAKE && m.ending.kind == ENDING_ALIVE);
                s->given_up = m.verb == SAVER_DISARM;
                s->orders_wait =
                        !at_once || receive_message(s, &m, &none) < 0 || dispatch(s, &m, &none) < 0;
        }
        return s->given_up;
}

/* writer and reader wait here, without a ring_fd not at all: requests are declined meanwhile, what
 * is given up is dropped, and a hang-up ends the work. */
static int wait_for_ring(void *context, int ring_fd) {
        struct saver *s = context;
        short orders = s->orders_wait ? POLLRDHUP : POLLIN | POLLRDHUP;
        struct pollfd fds[] = {{.fd = ring_fd, .events = POLLIN},
                               {.fd = s->event_fd, .events = POLLIN},
                               {.fd = s->socket, .events = orders}};
        uint64_t count, wait_ns = ring_fd < 0 ? 0 : WAIT_NS;
        (void) poll(fds, 3, clock_poll_timeout(&clock_system, clock_now(&clock_system) + wait_ns));
        if (fds[2].revents & (POLLHUP | POLLRDHUP | POLLERR))
                return -1;
        if ((fds[2].revents & POLLIN) && is_given_up(s))
                ring_drop(s->ring);
        if (fds[1].revents) {
                clear_event(s);
                decline_if_due(s);
        }
        if (fds[0].revents)
                (void) !read(ring_fd, &count, sizeof count);
        return 0;
}

static uint64_t storage_deadline(const struct saver *s, uint64_t bytes) {
        return clock_now(&clock_system) + s->setup.storage_timeout_ns +
               bytes / STORAGE_BYTES_PER_SEC_MIN * NSEC_PER_SEC;
}

/* What had to be given up goes along with the next result, once. */
static void add_warning(struct saver *s, struct saver_message *m) {
        const char *warning = ring_warning(s->ring);
        if (!warning || s->warned || m->status < 0)
                return;
        s->warned = true;
        m->warned = true;
        (void) error_set(&m->error, CAIRN_ERR_UNSUPPORTED, "use the fast path of storage",
                         s->setup.run, "%s", warning);
}

static void disarm(struct saver *s) {
        ring_close(s->ring, s->data_fd);
        ring_close(s->ring, s->manifest_fd);
        s->data_fd = s->manifest_fd = -1;
        s->armed = false;
}

/* After a job that never ended this process is of no more use. */
static int send_result(struct saver *s, struct saver_message *m) {
        m->stuck = ring_stuck(s->ring);
        TRY(send_message(s, m));
        return m->stuck ? CAIRN_ERR_TIMEOUT : 0;
}

static int write_cut(struct saver *s, const struct copied *copied) {
        struct saver_message m = {.verb = SAVER_WRITTEN,
                                  .error = CAIRN_ERROR_INIT,
                                  .attempt = s->attempt,
                                  .seq = copied->word.seq,
                                  .step = copied->step};
        const struct writer_job job = {.run = s->setup.run,
                                       .generation = s->setup.generation,
                                       .rank = s->setup.rank,
                                       .world = s->setup.world,
                                       .attempt = s->attempt,
                                       .ending = s->ending,
                                       .data_fd = s->data_fd,
                                       .manifest_fd = s->manifest_fd,
                                       .clock = &clock_system,
                                       .wait = wait_for_ring,
                                       .context = s,
                                       .deadline_ns = storage_deadline(s, s->source.image_bytes)};
        struct written written;
        uint64_t start_ns = clock_now(&clock_system);
        m.status = writer_write(&job, s->ring, &s->source, &s->staging, copied, &written, &m.error);
        m.duration_ns = clock_now(&clock_system) - start_ns;
        m.bytes = written.bytes;
        m.non_finite_count = written.non_finite_count;
        memcpy(m.data_uuid, written.data_uuid, sizeof m.data_uuid);
        if (m.status < 0)
                s->any_valid = false; /* cairnd may ask for this very cut again */
        add_warning(s, &m);
        s->orders_wait = true;
        disarm(s);
        return send_result(s, &m);
}

/* A demand that was declined before finds the trainer inside an update: the request is raised
 * again, so that the update's end rings. False if it has ended meanwhile. */
static bool will_ring(struct saver *s) {
        bool updating;

        if (s->take_wanted)
                (void) cut_request(s->page, &updating);
        return !s->take_wanted || updating;
}

/* A stale copier is told by the attempt, which wraps after 2^22 claims at one seq (cut.h). */
static bool may_claim(struct saver *s) {
        uint64_t seq = cut_read(s->page).seq;
        if (seq != s->claim_seq)
                s->claim_count = 0;
        s->claim_seq = seq;
        return s->claim_count++ < CUT_CLAIMS_PER_SEQ_MAX;
}

/* All ranks must stand at one step before any copies (copier.h). Any order but GO is carried out by
 * the main loop, after the state was let go of. */
static int wait_for_go(void *context, const struct copied *copied, struct cairn_error *reterr) {
        struct saver *s = context;
        struct saver_message m = {.verb = SAVER_HELD,
                                  .error = CAIRN_ERROR_INIT,
                                  .attempt = s->attempt,
                                  .seq = copied->word.seq,
                                  .step = copied->step};
        uint64_t deadline_ns = clock_now(&clock_system) + SAVER_HOLD_NS;
        TRY(send_message(s, &m));
        while (clock_now(&clock_system) < deadline_ns && cut_copy_continue(s->page, copied->word)) {
                struct wire_fds fds = WIRE_FDS_INIT;
                bool is_told = next_order(s, HOLD_LOOK_MS, &m);
                if (is_told && m.verb == SAVER_GO)
                        return receive_message(s, &m, &fds);
                if (is_told)
                        break;
        }
        return error_set(reterr, CAIRN_ERR_VOID, "hold the state", s->setup.run,
                         "the other ranks were not level with step %lld in time",
                         (long long) copied->step);
}

/* The state of a group's cut is a later one: its update's end rings. */
static bool is_early(struct saver *s) {
        if (!s->take_wanted || !s->hold || atomic_load(&s->page->last_step) >= s->hold_step)
                return false;
        decline_if_due(s);
        cut_request_next(s->page);
        return atomic_load(&s->page->last_step) <
               s->hold_step; /* else it came before the request */
}

/* A trainer that copies does so while it lives. */
static int fetch(void *context, const struct copied *copied, struct cairn_error *reterr) {
        struct saver *s = context;
        if (s->ending.kind != ENDING_ALIVE)
                return import_copy(&s->source, s->push.staging_fd, is_given_up, s, &s->stuck,
                                   reterr);
        return push_copy(&s->push, s->page, s->source.seal, copied, is_given_up, s, reterr);
}

/* Copies that nobody waits for any more may still arrive in staging; or none can be made. */
static bool cannot_copy(const struct saver *s) {
        return push_trainer_copies(&s->push) && s->ending.kind == ENDING_ALIVE &&
               (push_is_lent(&s->push) || s->push.lost);
}

/* Take a cut if one is wanted and can be taken; else say so where somebody waits for the answer. */
static int try_cut(struct saver *s) {
        if (!due(s) && !(s->page && s->take_wanted))
                return 0;
        if (!s->armed || s->source.seal == 0 || !s->staging.base || cannot_copy(s) || is_early(s) ||
            !may_claim(s)) {
                decline_if_due(s);
                return 0;
        }
        struct saver_message m = {.error = CAIRN_ERROR_INIT, .attempt = s->attempt};
        struct copied copied = {.payload = s->payload};
        struct copier_orders orders = {.given_up = is_given_up, .context = s};
        if (s->take_wanted && s->hold)
                orders.hold = wait_for_go;
        if (push_trainer_copies(&s->push))
                orders.fetch = fetch;
        s->orders_wait = s->given_up = false;
        int r = copier_take(s->page, &s->source, &s->staging, s->take_wanted, &orders, &copied,
                            &m.error);
        if (r == CAIRN_ERR_BUSY && !will_ring(s))
                r = copier_take(s->page, &s->source, &s->staging, true, &orders, &copied, &m.error);
        if (r == CAIRN_ERR_BUSY)
                return 0; /* inside an update: its end rings */
        m.seq = copied.word.seq;
        m.status = r;
        if (r < 0) {
                m.verb = SAVER_VOID;
                m.hold = orders.hold != NULL;
                s->take_wanted = false; /* cairnd asks again where somebody still waits */
                TRY(send_message(s, &m));
                return s->stuck ? CAIRN_ERR_TIMEOUT : 0; /* another saver has other staging */
        }
        m.verb = SAVER_CUT;
        m.ending = s->ending;
        s->any_valid = true;
        s->valid_seq = copied.word.seq;
        m.step = copied.step;
        m.bytes = s->source.image_bytes;
        if (s->take_wanted && copied.word.seq >= s->take_seq)
                s->take_wanted = false;
        TRY(send_message(s, &m));
        return write_cut(s, &copied);
}

/* ---- commands ---- */

static int on_setup(struct saver *s, const struct saver_message *m, struct wire_fds *fds) {
        struct saver_message reply = {.verb = SAVER_READY, .error = CAIRN_ERROR_INIT};
        uint64_t bytes = 0;
        s->setup = *m;
        _cleanup_close_ int page_fd = wire_fds_take(fds, 0);
        s->event_fd = wire_fds_take(fds, 1);
        reply.status = wire_memfd_check(page_fd, 0, CONTROL_PAGE_BYTES, CONTROL_PAGE_BYTES, &bytes,
                                        &reply.error);
        if (reply.status == 0 && !s->page) {
                void *page = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, page_fd, 0);
                if (page == MAP_FAILED)
                        reply.status = error_set_errno(&reply.error, errno, "map control page",
                                                       s->setup.run);
                else
                        s->page = page;
        }
        if (reply.status == 0)
                reply.status = control_page_check(s->page, bytes, &reply.error);
        return send_message(s, &reply);
}

static int on_slabs(struct saver *s, const struct saver_message *m, struct wire_fds *fds) {
        for (uint32_t i = 0; i < m->count && i < 8; i++) {
                struct cairn_error e = CAIRN_ERROR_INIT;
                _cleanup_close_ int fd = wire_fds_take(fds, i);
                if (source_add_slab(&s->source, m->first + i, fd, m->slab_bytes[i], m->slab_kind[i],
                                    &e) < 0)
                        log_error(LOG_LEVEL_ERROR, "saver: take slab",
                                  &e); /* the seal then fails and says so */
        }
        return 0;
}

static int seal(struct saver *s, const struct saver_message *m, int inventory, int host,
                int staging, struct cairn_error *reterr) {
        staging_done(&s->staging);
        TRY(source_seal(&s->source, s->setup.rank, m->seal, inventory, host, reterr));
        if (m->bytes < s->source.image_bytes)
                return error_set(reterr, CAIRN_ERR_API, "seal", s->setup.run,
                                 "staging is smaller than the image");
        TRY(staging_map(&s->staging, staging, m->bytes, &s->page->ledger[0], reterr));
        free(s->payload);
        s->payload = malloc(s->source.payload_bytes + 1);
        if (!s->payload)
                return error_set_errno(reterr, ENOMEM, "seal", s->setup.run);
        s->staging_ready = s->source_ready = false;
        return ring_attach_plain(s->ring, s->staging.base, s->staging.bytes, reterr);
}

static uint64_t probe(struct saver *s, uint64_t seal, struct cairn_error *ret_warning) {
        if (push_trainer_copies(&s->push))
                return push_probe(&s->push, seal, &clock_system, ret_warning);
        return s->source.is_live ? copier_probe(&s->source, &s->staging, &clock_system) : 0;
}

static int on_seal(struct saver *s, const struct saver_message *m, struct wire_fds *fds) {
        struct saver_message reply = {
                .verb = SAVER_SEALED, .error = CAIRN_ERROR_INIT, .seal = m->seal};
        _cleanup_close_ int inventory = wire_fds_take(fds, 0), host = wire_fds_take(fds, 1);
        _cleanup_close_ int staging = wire_fds_take(fds, 2);
        bool pushed = fds->count == 5;
        push_seal(&s->push, wire_fds_take(fds, 3), wire_fds_take(fds, 4),
                  pushed ? fcntl(staging, F_DUPFD_CLOEXEC, 3) : -1);
        reply.status =
                s->page ? seal(s, m, inventory, host, staging, &reply.error)
                        : error_set(&reply.error, CAIRN_ERR_API, "seal", "", "there was no set-up");
        if (reply.status == 0) {
                (void) staging_populate(
                        &s->staging); /* the probe measures copying, not page faults */
                reply.rate_bytes_per_sec = probe(s, m->seal, &reply.error);
                reply.warned = reply.error.message[0] != 0;
        } else
                s->source.seal = 0;
        reply.bytes = s->source.image_bytes;
        reply.count = (uint32_t) s->source.inventory.tensor_count;
        return send_message(s, &reply);
}

static int on_arm(struct saver *s, const struct saver_message *m, struct wire_fds *fds) {
        _cleanup_close_ int parcel = wire_fds_take(fds, 0);
        int files[2];
        disarm(s);
        s->attempt = m->attempt;
        TRY(parcel_unpack(parcel, files, 2, NULL)); /* of no use without: another one is started */
        s->data_fd = files[0];
        s->manifest_fd = files[1];
        s->armed = true;
        s->take_wanted = s->take_wanted && !s->hold; /* that was for other files */
        return 0;
}

static int on_disarm(struct saver *s, const struct saver_message *m) {
        struct saver_message reply = {
                .verb = SAVER_DISARMED, .error = CAIRN_ERROR_INIT, .attempt = m->attempt};
        if (s->attempt == m->attempt)
                disarm(s);
        return send_message(s, &reply);
}

static void on_take(struct saver *s, const struct saver_message *m) {
        s->ending = m->ending;
        /* A dead trainer's cut is asked for again only when the former one was not committed. */
        if (s->any_valid && s->valid_seq >= m->seq && m->ending.kind == ENDING_ALIVE && !m->hold)
                return;
        s->take_seq = m->seq;
        s->take_wanted = true;
        s->hold = m->hold;
        s->hold_step = m->step;
}

static_assert(SAVER_FILES_MAX <= RING_FILES_MAX, "they are read together");

static void close_files(struct saver *s) {
        for (uint32_t i = 0; i < s->file_count; i++)
                ring_close(s->ring, s->files[i]);
        s->file_count = 0;
}

static void end_restore(struct saver *s) {
        close_files(s);
        if (s->plan)
                (void) munmap(s->plan, s->plan_bytes);
        s->plan = NULL;
}

static int answer_restored(struct saver *s, struct saver_message *reply) {
        reply->verb = SAVER_RESTORED;
        reply->bytes = s->restored_bytes;
        reply->duration_ns = s->restore_ns;
        add_warning(s, reply);
        end_restore(s);
        return send_result(s, reply);
}

static int open_plan(struct saver *s, int fd, uint32_t world, struct cairn_error *reterr) {
        uint64_t staging_bytes;
        TRY(wire_memfd_check(fd, 0, PLAN_HEADER_BYTES, UINT64_MAX, &s->plan_bytes, reterr));
        void *plan = mmap(NULL, s->plan_bytes, PROT_READ, MAP_PRIVATE, fd, 0);
        if (plan == MAP_FAILED)
                return error_set_errno(reterr, errno, "map restore plan", s->setup.run);
        s->plan = plan;
        TRY(plan_read(plan, s->plan_bytes, world, &s->ranges, &s->range_count, &staging_bytes,
                      reterr));
        if (!s->staging.base || staging_bytes > s->staging.bytes)
                return error_set(reterr, CAIRN_ERR_API, "restore", s->setup.run,
                                 "staging is smaller than the plan, or there is none yet");
        s->restore_deadline_ns = storage_deadline(s, staging_bytes);
        const struct cut_word none = {.phase = CUT_UPDATING};
        staging_note(&s->staging, STAGING_RESTORE, none, 0);
        return 0;
}

static int on_restore(struct saver *s, const struct saver_message *m, struct wire_fds *fds) {
        struct saver_message reply = {.error = CAIRN_ERROR_INIT};
        _cleanup_close_ int fd = wire_fds_take(fds, 0);
        end_restore(s);
        s->ranges_read = s->range_count = s->restored_bytes = s->restore_ns = 0;
        reply.status = open_plan(s, fd, m->world, &reply.error);
        return reply.status < 0 || s->range_count == 0 ? answer_restored(s, &reply) : 0;
}

/* The ranges that lie in the files that are open. */
static int read_part(struct saver *s, struct cairn_error *reterr) {
        struct reader_job job = {.fds = s->files,
                                 .first_rank = s->first_file,
                                 .file_count = s->file_count,
                                 .ranges = s->ranges + s->ranges_read,
                                 .clock = &clock_system,
                                 .wait = wait_for_ring,
                                 .context = s,
                                 .deadline_ns = s->restore_deadline_ns};
        uint64_t left = s->range_count - s->ranges_read, bytes;
        while (job.range_count < left &&
               job.ranges[job.range_count].rank < s->first_file + s->file_count)
                job.range_count++;
        job.alone = job.range_count == s->range_count;
        if (job.range_count == 0 || job.ranges[0].rank < s->first_file)
                return error_set(reterr, CAIRN_ERR_API, "restore", s->setup.run,
                                 "the plan needs other files than are here");
        int r = reader_read(&job, s->ring, &s->staging, &bytes, reterr);
        s->restored_bytes += bytes;
        s->ranges_read += job.range_count;
        return r;
}

static int on_files(struct saver *s, const struct saver_message *m, struct wire_fds *fds) {
        struct saver_message reply = {.verb = SAVER_PART, .error = CAIRN_ERROR_INIT};
        _cleanup_close_ int parcel = wire_fds_take(fds, 0);
        if (!s->plan) /* it has failed: they were under way */
                return 0;
        if (s->file_count == 0)
                s->first_file = m->first;
        if (m->first != s->first_file + s->file_count || m->count == 0 || m->count > WIRE_FDS_MAX ||
            m->count > SAVER_FILES_MAX - s->file_count)
                return CAIRN_ERR_PEER;
        TRY(parcel_unpack(parcel, s->files + s->file_count, m->count, NULL));
        s->file_count += m->count;
        if (!m->flush)
                return 0;
        uint64_t start_ns = clock_now(&clock_system);
        reply.status = read_part(s, &reply.error);
        s->restore_ns += clock_now(&clock_system) - start_ns;
        if (reply.status < 0 || s->ranges_read == s->range_count)
                return answer_restored(s, &reply);
        close_files(s);
        return send_message(s, &reply);
}

static int dispatch(struct saver *s, const struct saver_message *m, struct wire_fds *fds) {
        switch (m->verb) {
        case SAVER_SETUP:
                return on_setup(s, m, fds);
        case SAVER_SLABS:
                return on_slabs(s, m, fds);
        case SAVER_SEAL:
                return on_seal(s, m, fds);
        case SAVER_ARM:
                return on_arm(s, m, fds);
        case SAVER_DISARM:
                return on_disarm(s, m);
        case SAVER_TAKE:
                on_take(s, m);
                return 0;
        case SAVER_RELEASE:
                s->take_wanted = false;
                if (s->page)
                        cut_forget_next(s->page);
                return 0;
        case SAVER_RESTORE:
                return on_restore(s, m, fds);
        case SAVER_FILES:
                return on_files(s, m, fds);
        default:
                return 0; /* ours, not theirs */
        }
}

/* ---- main ---- */

/* All that has arrived. */
static int receive_all(struct saver *s, bool *ret_any) {
        for (*ret_any = false;; *ret_any = true) {
                struct saver_message m;
                struct wire_fds received = WIRE_FDS_INIT;
                int r = receive_message(s, &m, &received);
                if (r == 0)
                        r = dispatch(s, &m, &received);
                wire_fds_done(&received);
                if (r < 0)
                        return r == CAIRN_ERR_BUSY ? 0 : r;
        }
}

static bool may_prepare(const struct saver *s) {
        return s->staging.base &&
               (!s->staging_ready || (!s->source_ready && cut_read(s->page).seq > 0));
}

/* A step towards copies and transfers that are as fast as they get; the trainer need not wait for
 * it. Transfers do without where the I/O thread does not answer. */
static void prepare(struct saver *s) {
        if (s->staging_ready)
                s->source_ready = !source_populate(&s->source);
        else if (!staging_populate(&s->staging)) {
                (void) ring_attach(s->ring, s->staging.base, s->staging.bytes, NULL);
                s->staging_ready = true;
        }
}

static int serve(struct saver *s) {
        /* A negative descriptor is passed over. */
        struct pollfd fds[] = {{.fd = s->socket, .events = POLLIN},
                               {.fd = s->event_fd, .events = POLLIN},
                               {.fd = s->push.lent ? s->push.socket : -1, .events = POLLIN}};
        bool preparing = may_prepare(s), any;
        (void) poll(fds, 3, preparing ? 0 : -1);
        if (fds[1].revents)
                clear_event(s);
        if (fds[2].revents)
                push_hear(&s->push);
        /* Is a cut wanted? Only then the messages: files that were sent before the request are
         * there when it is answered, or it would be declined. A later request rings. */
        bool asked = due(s);
        TRY(receive_all(s, &any));
        if (preparing && !any && !asked)
                prepare(s);
        if (!asked && !s->take_wanted)
                return 0;
        return try_cut(s);
}

int saver_main(int socket) {
        struct saver s = {.orders_wait = true,
                          .socket = socket,
                          .event_fd = -1,
                          .push = PUSH_INIT,
                          .data_fd = -1,
                          .manifest_fd = -1};
        struct cairn_error e = CAIRN_ERROR_INIT;
        const struct ring_options options = {.backend = RING_AUTO};
        worker_become("cairn-saver");
        if (ring_new(&options, &s.ring, &e) < 0) {
                log_error(LOG_LEVEL_ERROR, "saver: start", &e);
                return status_exit_code(e.status);
        }
        source_init(&s.source);
        int r = 0;
        while (r >= 0)
                r = serve(&s);
        /* at end-of-file the agent is gone, and what was begun is void: the kernel takes
         * everything back, and what storage still holds when it lets go of it */
        if (ring_stuck(s.ring))
                return status_exit_code(CAIRN_ERR_TIMEOUT);
        disarm(&s);
        end_restore(&s);
        free(s.payload);
        ring_free(s.ring);
        staging_done(&s.staging);
        source_done(&s.source);
        push_done(&s.push);
        if (s.page)
                (void) munmap(s.page, CONTROL_PAGE_BYTES);
        cleanup_close(&s.event_fd);
        return 0;
}
