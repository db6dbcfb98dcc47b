/* SPDX-License-Identifier: Apache-2.0
 *
 * The store process: one request at a time, one verb each, blocking. What it holds open are
 * shortcuts: a successor opens runs and attempts again from what a request says. Requests come from
 * the parent, the same binary; their strings are terminated all the same.
 */
#include "agent/store.h"
#include "agent/commit.h"
#include "agent/generation.h"
#include "agent/node_store.h"
#include "agent/parcel.h"
#include "agent/recall.h"
#include "agent/restore.h"
#include "agent/worker.h"
#include "base/assert.h"
#include "base/fault.h"
#include "format/wire.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define RETAIN_SLICE_NS (500 * NSEC_PER_MSEC)
enum { RUNS_MAX = 16, ATTEMPTS_MAX = 8, PLACE_BYTES = STORE_PATH_BYTES + RUN_NAME_BYTES_MAX + 2 };

struct open_run {
        bool used,
                temporary; /* temporary: for one request, on a run that this agent did not start */
        uint64_t generation;
        struct store_run run;
        struct attempt attempts[ATTEMPTS_MAX];
        size_t attempt_count;
};
struct child {
        int socket;
        int request_fd; /* that came with the request; -1: none */
        struct store store;
        struct open_run runs[RUNS_MAX];
        /* What was opened last for a restore: its COMMIT is not read again for each few files. */
        struct checkpoint_place restored;
        char restored_run[RUN_NAME_BYTES_MAX + 1], restored_name[STORE_PATH_BYTES]; /* "": none */
        int fds[WIRE_FDS_MAX]; /* of the reply at hand */
        size_t fd_count;
};

/* ---- open runs and attempts ---- */

static struct open_run *find_run(struct child *c, const char *name) {
        for (size_t i = 0; i < RUNS_MAX; i++)
                if (c->runs[i].used && strcmp(c->runs[i].run.run, name) == 0)
                        return &c->runs[i];
        return NULL;
}

static struct open_run *find_free(struct child *c, const char *name, struct cairn_error *reterr) {
        for (size_t i = 0; i < RUNS_MAX; i++)
                if (!c->runs[i].used)
                        return &c->runs[i];
        (void) error_set(reterr, CAIRN_ERR_NOMEM, "open run", name,
                         "this agent serves %d runs already", RUNS_MAX);
        return NULL;
}

static void close_run(struct child *c, struct open_run *r) {
        for (size_t i = 0; i < r->attempt_count; i++)
                attempt_done(&r->attempts[i], c->store.io);
        store_run_done(&r->run);
        *r = (struct open_run){0};
}

/* ---- folders that people move ---- */

enum place { PLACE_SAME, PLACE_GONE, PLACE_OTHER };

/* Does the path still lead to the folder that is open? Only an answer counts: a storage that does
 * not give one fails what is about to be done, with its own reason. */
static enum place look_at_place(const char *path, int fd) {
        struct stat there, opened;
        char link[64], target[STORE_PATH_BYTES];
        static const char removed[] = " (deleted)";
        bool known = stat(path, &there) == 0;

        if (!known && errno != ENOENT && errno != ENOTDIR && errno != ESTALE)
                return PLACE_SAME;
        if (fstat(fd, &opened) < 0 || opened.st_nlink == 0)
                return PLACE_GONE;
        if (known && there.st_dev == opened.st_dev && there.st_ino == opened.st_ino)
                return PLACE_SAME;
        /* Where a folder's links are not counted the kernel's name for it still tells. */
        (void) snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        ssize_t bytes = readlink(link, target, sizeof target);
        size_t end = sizeof removed - 1;
        return bytes > (ssize_t) end && memcmp(target + bytes - end, removed, end) == 0
                       ? PLACE_GONE
                       : PLACE_OTHER;
}

/* A store that was put back or made anew is found by its path. */
static void forget_restored(struct child *c) {
        if (*c->restored_name)
                checkpoint_place_done(&c->store, &c->restored);
        *c->restored_name = '\0';
}

static void forget_moved_store(struct child *c) {
        if (c->store.fd < 0 || look_at_place(c->store.path, c->store.fd) == PLACE_SAME)
                return;
        forget_restored(c);
        (void) close(c->store.fd);
        c->store.fd = -1;
}

static enum place place_of(const struct child *c, const struct open_run *r,
                           char path[PLACE_BYTES]) {
        (void) snprintf(path, PLACE_BYTES, "%s/%s", c->store.path, r->run.run);
        return look_at_place(path, r->run.fd);
}

/* What failed in a folder that is not at its place failed for that reason. */
static int explain_place(const struct child *c, const struct open_run *r, const char *operation,
                         struct cairn_error *reterr) {
        char path[PLACE_BYTES], link[64], now_at[300] = "";
        enum place place = place_of(c, r, path);

        if (place == PLACE_SAME)
                return 0;
        if (place == PLACE_GONE)
                return error_set(reterr, CAIRN_ERR_CANNOT_WRITE, operation, path,
                                 "the run's folder was removed while the run goes on; the next "
                                 "checkpoint makes it again, where the store is still there");
        (void) snprintf(link, sizeof link, "/proc/self/fd/%d", r->run.fd);
        (void) !readlink(link, now_at, sizeof now_at - 1);
        return error_set(reterr, CAIRN_ERR_CANNOT_WRITE, operation, path,
                         "the run's folder is not at its path any more, but at %s: move or mount "
                         "it back; the run goes on, without checkpoints until then",
                         now_at);
}

/* The run goes on and there is no folder of it at its path. With a store a new attempt makes it
 * again; nothing is made where the store itself is gone. */
static int find_missing(struct child *c, struct store_message *m, struct store_run *ret,
                        struct cairn_error *reterr) {
        struct cairn_error e = CAIRN_ERROR_INIT;
        char text[200];
        int status = c->store.fd < 0 ? store_open(c->store.io, c->store.path, &c->store.fd, &e) : 0;

        if (status < 0 && status != CAIRN_ERR_NOTFOUND && status != CAIRN_ERR_MISMATCH) {
                *reterr = e;
                return status;
        }
        if (status < 0)
                return error_set(reterr, CAIRN_ERR_CANNOT_WRITE, "find store", c->store.path,
                                 "the store is gone while the run goes on: mount it, put it back, "
                                 "or make a new one (`cairn init`); the next checkpoint after that "
                                 "commits (%s)",
                                 error_format(&e, text, sizeof text));
        if (m->verb != STORE_ATTEMPT_OPEN)
                return error_set(reterr, CAIRN_ERR_CANNOT_WRITE, "find run", m->run,
                                 "its folder in %.200s was removed while the run goes on; the next "
                                 "checkpoint makes it again",
                                 c->store.path);
        TRY(generation_remake(&c->store, m->run, m->generation, m->world, ret, reterr));
        m->remade = true;
        return 0;
}

/* A node of a group opens what its leader has made a moment ago. */
static int explain_unshared(const struct child *c, const struct store_message *m,
                            const struct cairn_error *why, struct cairn_error *reterr) {
        char text[200];

        return error_set(reterr, CAIRN_ERR_MISMATCH, "start group", c->store.path,
                         "restart %llu of the run, which another node has just begun, is not in "
                         "it (%s): it is not the store of the other nodes; mount theirs on this "
                         "one, too, or name it by --store",
                         (unsigned long long) m->generation, error_format(why, text, sizeof text));
}

/* Generation 0: of nobody's, the run is locked for this request only. */
static int open_run(struct child *c, struct store_message *m, struct open_run **ret,
                    struct cairn_error *reterr) {
        struct open_run *r = find_run(c, m->run);
        char path[PLACE_BYTES];

        /* A member of a group opens the generation that its leader has made. */
        if (r && m->verb == STORE_REOPEN && r->generation < m->generation) {
                close_run(c, r);
                r = NULL;
        }
        if (r && m->generation != 0 && r->generation != m->generation)
                return error_set(reterr, CAIRN_ERR_STALE, "open run", m->run,
                                 "the request is of another restart than the one that is running");
        /* A checkpoint is not begun where nobody would look for it. */
        bool begins = m->verb == STORE_ATTEMPT_OPEN;
        enum place place = r && begins ? place_of(c, r, path) : PLACE_SAME;
        if (place == PLACE_OTHER)
                return explain_place(c, r, "open attempt", reterr);
        if (place == PLACE_GONE) {
                close_run(c, r);
                r = NULL;
        }
        if (r) {
                *ret = r;
                return 0;
        }
        r = find_free(c, m->run, reterr);
        if (!r)
                return CAIRN_ERR_NOMEM;
        struct cairn_error e = CAIRN_ERROR_INIT;
        int status = store_run_reopen(&c->store, m->run, m->generation ? m->generation : UINT64_MAX,
                                      m->grouped, &r->run, &e);
        bool missing = status == CAIRN_ERR_NOTFOUND || status == CAIRN_ERR_MISMATCH;
        bool joins = m->verb == STORE_REOPEN && m->grouped && !m->take_up;
        bool without_it = status == CAIRN_ERR_CANNOT_WRITE && e.system_code == 0;
        if (joins && (missing || without_it))
                return explain_unshared(c, m, &e, reterr);
        if (missing && m->generation != 0 && m->verb != STORE_DISCARD) {
                e = (struct cairn_error) CAIRN_ERROR_INIT;
                status = find_missing(c, m, &r->run, &e);
        }
        if (status == CAIRN_ERR_BUSY && m->generation == 0)
                return error_set(reterr, CAIRN_ERR_EXISTS, "lock run", m->run,
                                 "it is running under another agent: ask that one, on its machine "
                                 "and as its user, or wait for its end");
        *reterr = e;
        if (status < 0)
                return status;
        r->used = true;
        r->temporary = m->generation == 0;
        r->generation = m->generation;
        *ret = r;
        return 0;
}

static struct attempt *find_attempt(struct open_run *r, uint32_t attempt) {
        for (size_t i = 0; i < r->attempt_count; i++)
                if (r->attempts[i].attempt == attempt)
                        return &r->attempts[i];
        return NULL;
}

static void drop_attempt(struct child *c, struct open_run *r, struct attempt *a) {
        attempt_done(a, c->store.io);
        *a = r->attempts[--r->attempt_count];
}

/* Existing, or opened (`create`), or opened again after a predecessor's end. */
static int get_attempt(struct child *c, struct open_run *r, const struct store_message *m,
                       bool create, struct attempt **ret, struct cairn_error *reterr) {
        struct attempt *a = find_attempt(r, m->attempt);

        if (!a) {
                if (r->attempt_count == ATTEMPTS_MAX) /* the oldest can be opened again */
                        drop_attempt(c, r, &r->attempts[0]);
                a = &r->attempts[r->attempt_count];
                TRY((create ? attempt_open : attempt_reopen)(&r->run, r->generation, m->attempt,
                                                             m->world, a, reterr));
                r->attempt_count++;
        }
        *ret = a;
        return 0;
}

/* ---- verbs ---- */

static int do_start(struct child *c, struct store_message *m, struct cairn_error *reterr) {
        /* Request and reply share the memory of the message. */
        static_assert(sizeof m->start + sizeof m->started < 64 * KiB, "both fit on the stack");
        struct start_request request = m->start;
        struct start_reply reply;
        struct store_run run;
        struct open_run *r = find_run(c, request.run);
        char path[PLACE_BYTES];
        int lock_fd = -1;

        request.generation_min = request.is_restart ? m->generation : 0;
        /* The lock stays held from one generation to the next. */
        if (r && request.is_restart && place_of(c, r, path) == PLACE_SAME) {
                lock_fd = r->run.lock_fd;
                r->run.lock_fd = -1;
        }
        if (r && request.is_restart)
                close_run(c, r);
        r = find_free(c, request.run, reterr);
        if (!r) {
                if (lock_fd >= 0)
                        (void) c->store.io->close(c->store.io->context, lock_fd);
                return CAIRN_ERR_NOMEM;
        }
        TRY(generation_restart(&c->store, &request, lock_fd, &run, &reply, reterr));
        m->started = reply;
        if (reply.finished)
                return 0;
        *r = (struct open_run){.used = true, .generation = reply.generation, .run = run};
        m->generation = reply.generation;
        return 0;
}

/* One more descriptor of the reply. Takes the files. */
static int pack(struct child *c, const int *fds, size_t count, struct cairn_error *reterr) {
        int r = parcel_pack(fds, count, &c->fds[c->fd_count], reterr);

        c->fd_count += r == 0;
        for (size_t i = 0; i < count; i++)
                (void) close(fds[i]);
        return r;
}

static int do_attempt_open(struct child *c, struct open_run *r, const struct store_message *m,
                           struct cairn_error *reterr) {
        struct attempt *a;

        if (m->count > WIRE_FDS_MAX)
                return error_set(reterr, CAIRN_ERR_API, "open attempt", m->run,
                                 "%u ranks at once are more than %d", m->count, WIRE_FDS_MAX);
        TRY(get_attempt(c, r, m, true, &a, reterr));
        for (uint32_t i = 0; i < m->count; i++) {
                int fds[2];
                TRY(attempt_open_rank(a, c->store.io, m->first + i, &fds[0], &fds[1], reterr));
                TRY(pack(c, fds, 2, reterr));
        }
        return 0;
}

static int do_attempt(struct child *c, struct open_run *r, struct store_message *m,
                      struct cairn_error *reterr) {
        struct attempt *a;
        int result;

        TRY(get_attempt(c, r, m, false, &a, reterr));
        if (m->verb == STORE_PUBLISH_MANIFEST)
                return attempt_publish_manifest(a, c->store.io, m->rank, reterr);
        if (m->verb == STORE_RECORD)
                return node_record(&r->run, a, c->request_fd, reterr);
        if (m->verb == STORE_DISCARD)
                result = attempt_discard(&r->run, a, reterr);
        else if (m->verb == STORE_RENAME)
                result = commit_rename(&r->run, a, &m->committed, reterr);
        else
                result = attempt_commit(&r->run, a, m->reason, m->name, &m->committed, reterr);
        if (m->verb == STORE_DISCARD || result == 0)
                drop_attempt(c, r, a);
        return result;
}

/* Others are served in between, and silence means what it means otherwise. */
static int do_retain(struct open_run *r, struct store_message *m, struct cairn_error *reterr) {
        struct prune p = {.keep_last = m->keep_last,
                          .keep_every = m->keep_every,
                          .dry_run = m->dry_run,
                          .generation = r->generation,
                          .attempts_before = m->attempt,
                          .slice_ns = RETAIN_SLICE_NS,
                          .names = m->name,
                          .names_bytes = sizeof m->name};

        TRY(retention_prune(&r->run, &p, reterr));
        m->count = p.deleted;
        m->bytes = p.bytes;
        m->more = p.more;
        return 0;
}

static int do_on_run(struct child *c, struct open_run *r, struct store_message *m,
                     struct cairn_error *reterr) {
        switch (m->verb) {
        case STORE_ATTEMPT_OPEN:
                return do_attempt_open(c, r, m, reterr);
        case STORE_PUBLISH_MANIFEST:
        case STORE_COMMIT:
        case STORE_DISCARD:
        case STORE_RECORD:
        case STORE_RENAME:
                return do_attempt(c, r, m, reterr);
        case STORE_RETAIN:
                return do_retain(r, m, reterr);
        case STORE_FINISHED:
                return mark_finished(&r->run, m->name, m->step, m->generation, reterr);
        case STORE_EXIT:
                return mark_exit(&r->run, m->code, m->name, m->step, reterr);
        case STORE_TAG:
                return mark_tag(&r->run, m->committed.name, m->name, reterr);
        case STORE_PIN:
        case STORE_UNPIN:
                return mark_pin(&r->run, m->name, m->verb == STORE_PIN, reterr);
        case STORE_REOPEN:
                TRY(generation_recall(&r->run, r->generation, &m->started, reterr));
                if (!m->take_up)
                        return 0;
                return generation_take_up(&r->run, r->generation, &m->started, reterr);
        default:
                return error_set(reterr, CAIRN_ERR_API, "store request", m->run,
                                 "verb %d is unknown", (int) m->verb);
        }
}

/* Opened anew for each restore, once for all of its files. */
static int open_place(struct child *c, const struct store_message *m, struct cairn_error *reterr) {
        if (m->verb == STORE_RESTORE_FILES && strcmp(c->restored_run, m->run) == 0 &&
            strcmp(c->restored_name, m->name) == 0)
                return 0;
        forget_restored(c);
        TRY(checkpoint_place_open(&c->store, m->run, m->name, &c->restored, reterr));
        memcpy(c->restored_run, m->run, sizeof c->restored_run);
        (void) snprintf(c->restored_name, sizeof c->restored_name, "%s", m->name);
        return 0;
}

static int do_restore(struct child *c, struct store_message *m, struct cairn_error *reterr) {
        if (c->store.fd < 0)
                TRY(store_open(c->store.io, c->store.path, &c->store.fd, reterr));
        TRY(open_place(c, m, reterr));
        if (m->verb == STORE_RESTORE_OPEN) {
                struct scan_node here;
                TRY(restore_open_index(&c->store, &c->restored, &c->fds[0], &here, reterr));
                m->world = c->restored.world;
                m->first = here.first_rank;
                m->count = here.ranks;
                c->fd_count = 1;
                return 0;
        }
        if (m->count > WIRE_FDS_MAX)
                return error_set(reterr, CAIRN_ERR_API, "open data files", m->name,
                                 "%u files at once are more than %d", m->count, WIRE_FDS_MAX);
        int fds[WIRE_FDS_MAX];
        TRY(restore_open_files(&c->store, &c->restored, m->first, m->count, fds, reterr));
        return m->count ? pack(c, fds, m->count, reterr) : 0;
}

static int do_look(struct child *c, struct store_message *m, struct cairn_error *reterr) {
        struct node_look look;

        TRY(node_look(&c->store, m->run, &look, reterr));
        m->count = look.marker.kind;
        m->bytes = look.generation_max;
        for (size_t i = 0; i < sizeof look.marker.id; i++)
                (void) snprintf(m->name + 2 * i, 3, "%02x", look.marker.id[i]);
        return 0;
}

/* The generation is open from then on, as after do_start. */
static int do_settle(struct child *c, struct store_message *m, struct cairn_error *reterr) {
        struct open_run *r = find_run(c, m->run);
        struct start_reply reply;
        struct store_run run;

        if (r)
                close_run(c, r);
        r = find_free(c, m->run, reterr);
        if (!r)
                return CAIRN_ERR_NOMEM;
        TRY(node_settle(&c->store, m->run, m->name, m->generation, c->request_fd, &run, &reply,
                        reterr));
        m->started = reply;
        *r = (struct open_run){.used = true, .generation = m->generation, .run = run};
        return 0;
}

/* Of a group in node-local stores, before its generation is open here. */
static int do_node(struct child *c, struct store_message *m, struct cairn_error *reterr) {
        struct store *s = &c->store;
        char pending[NAME_BYTES];
        int r;

        name_pending(pending, m->of_generation, m->attempt);
        const struct commit_source source = {.dir_fd = -1,
                                             .name = pending,
                                             .generation = m->of_generation,
                                             .attempt = m->attempt,
                                             .world = m->world,
                                             .reason = m->reason,
                                             .tag = m->name};
        switch (m->verb) {
        case STORE_LOOK:
                return do_look(c, m, reterr);
        case STORE_SETTLE:
                return do_settle(c, m, reterr);
        case STORE_SURVEY:
                r = node_survey(s, m->run, &c->fds[0], reterr);
                break;
        case STORE_PARTS:
                r = node_parts(s, m->run, m->of_generation, m->attempt, &c->fds[0], reterr);
                break;
        case STORE_COMPOSE:
                r = node_compose(s, m->run, &source, c->request_fd, &c->fds[0], reterr);
                break;
        default:
                r = node_records(s, m->run, m->of_generation, m->attempt, &c->fds[0], reterr);
                break;
        }
        c->fd_count = r == 0;
        return r;
}

static bool is_node_verb(enum store_verb verb) {
        return verb == STORE_LOOK || verb == STORE_SURVEY || verb == STORE_PARTS ||
               verb == STORE_COMPOSE || verb == STORE_RECORDS || verb == STORE_SETTLE;
}

static bool makes_something(enum store_verb verb) {
        return verb == STORE_ATTEMPT_OPEN || verb == STORE_PUBLISH_MANIFEST ||
               verb == STORE_COMMIT || verb == STORE_RECORD || verb == STORE_RENAME ||
               verb == STORE_FINISHED || verb == STORE_EXIT;
}

static int perform(struct child *c, struct store_message *m, struct cairn_error *reterr) {
        struct open_run *r = NULL;

        m->remade = false;
        forget_moved_store(c);
        if (m->verb == STORE_START)
                return do_start(c, m, reterr);
        if (m->verb == STORE_RESTORE_OPEN || m->verb == STORE_RESTORE_FILES)
                return do_restore(c, m, reterr);
        if (is_node_verb(m->verb))
                return do_node(c, m, reterr);
        if (m->verb == STORE_END_RUN) {
                r = find_run(c, m->run);
                if (r && (m->generation == 0 || m->generation == r->generation))
                        close_run(c, r);
                return 0;
        }
        TRY(open_run(c, m, &r, reterr));
        CAIRN_ASSERT(r);
        int result = do_on_run(c, r, m, reterr);
        if (result < 0 && m->verb != STORE_DISCARD &&
            explain_place(c, r, reterr->operation, reterr) < 0)
                result = reterr->status;
        /* Its folder is being emptied, say: that is no answer to a question. */
        if (result == CAIRN_ERR_NOTFOUND && makes_something(m->verb))
                result =
                        error_set(reterr, CAIRN_ERR_CANNOT_WRITE, reterr->operation, reterr->object,
                                  "it is not there any more: somebody removes files of the run "
                                  "while it goes on");
        if (r->temporary)
                close_run(c, r);
        return result;
}

/* ---- the socket ---- */

static void drop_request_fd(struct child *c) {
        if (c->request_fd >= 0)
                (void) close(c->request_fd);
        c->request_fd = -1;
}

/* 1: a request, 0: the agent is gone. */
static int receive(struct child *c, struct store_message *m) {
        union {
                struct cmsghdr header;
                char bytes[CMSG_SPACE(sizeof(int))];
        } control;
        struct iovec iov = {.iov_base = m, .iov_len = sizeof *m};
        struct msghdr message = {.msg_iov = &iov,
                                 .msg_iovlen = 1,
                                 .msg_control = control.bytes,
                                 .msg_controllen = sizeof control.bytes};
        ssize_t n;

        do
                n = recvmsg(c->socket, &message, MSG_CMSG_CLOEXEC);
        while (n < 0 && errno == EINTR);
        const struct cmsghdr *header = n > 0 ? CMSG_FIRSTHDR(&message) : NULL;
        if (header && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS)
                memcpy(&c->request_fd, CMSG_DATA(header), sizeof c->request_fd);
        if (n == 0)
                return 0;
        return n == (ssize_t) sizeof *m && !(message.msg_flags & MSG_TRUNC) ? 1 : -1;
}

static int reply(struct child *c, const struct store_message *m) {
        union {
                struct cmsghdr header;
                char bytes[CMSG_SPACE(sizeof(int) * WIRE_FDS_MAX)];
        } control = {0};
        struct iovec iov = {.iov_base = (void *) (uintptr_t) m, .iov_len = sizeof *m};
        struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1};
        ssize_t n;

        if (c->fd_count > 0) {
                message.msg_control = control.bytes;
                message.msg_controllen = CMSG_SPACE(sizeof(int) * c->fd_count);
                struct cmsghdr *header = CMSG_FIRSTHDR(&message);
                header->cmsg_level = SOL_SOCKET;
                header->cmsg_type = SCM_RIGHTS;
                header->cmsg_len = CMSG_LEN(sizeof(int) * c->fd_count);
                memcpy(CMSG_DATA(header), c->fds, sizeof(int) * c->fd_count);
        }
        do
                n = sendmsg(c->socket, &message, MSG_NOSIGNAL);
        while (n < 0 && errno == EINTR);
        return n == (ssize_t) sizeof *m ? 0 : -1;
}

static void close_fds(struct child *c) {
        while (c->fd_count > 0)
                (void) close(c->fds[--c->fd_count]);
}

static void terminate_strings(struct store_message *m) {
        m->run[sizeof m->run - 1] = '\0';
        m->name[sizeof m->name - 1] = '\0';
        if (m->verb == STORE_START) {
                m->start.run[sizeof m->start.run - 1] = '\0';
                m->start.init_from[sizeof m->start.init_from - 1] = '\0';
                m->start.overrides[sizeof m->start.overrides - 1] = '\0';
        }
}

static int serve(struct child *c) {
        struct store_message m;
        int r;

        while ((r = receive(c, &m)) == 1) {
                m.error = (struct cairn_error) CAIRN_ERROR_INIT;
                terminate_strings(&m);
                m.status = perform(c, &m, &m.error);
                drop_request_fd(c);
                if (m.status < 0)
                        close_fds(c);
                r = reply(c, &m);
                close_fds(c);
                if (r < 0)
                        break;
        }
        return r == 0 ? 0 : status_exit_code(CAIRN_ERR_PEER);
}

int store_main(int socket, const char *path) {
        struct child *c = calloc(1, sizeof *c);
        struct cairn_error e = CAIRN_ERROR_INIT;

        worker_become("cairnd-store"); /* and does what the agent still wants done */
        if (!c)
                return status_exit_code(CAIRN_ERR_NOMEM);
        c->socket = socket;
        c->request_fd = -1;
        c->store = (struct store){.io = &io_system, .clock = &clock_system, .fd = -1};
        int length = snprintf(c->store.path, sizeof c->store.path, "%s", path);
        int code = status_exit_code(CAIRN_ERR_API);
        if (length > 0 && (size_t) length < sizeof c->store.path && fault_init_environment(&e) == 0)
                code = serve(c);
        for (size_t i = 0; i < RUNS_MAX; i++)
                if (c->runs[i].used)
                        close_run(c, &c->runs[i]);
        forget_restored(c);
        if (c->store.fd >= 0)
                (void) close(c->store.fd);
        free(c);
        return code;
}
