/* SPDX-License-Identifier: Apache-2.0
 *
 * Starts of a group. The order is the protocol: judge read-only -> lock -> claim GEN-n -> fence
 * (older .pending- become .stale-) -> roll forward -> sync the run's folder -> link GEN-n.start.
 * Until the claim nothing of an existing run changes; a claim without its .start is ignored.
 */
#include "agent/generation.h"
#include "agent/commit.h"
#include "agent/intent.h"
#include "agent/restore.h"
#include "agent/retention.h"
#include "base/cleanup.h"
#include "base/fault.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

enum { OVERRIDES_MAX = 256, LOCK_PATIENCE_MS = 1000 };

struct start {
        struct store *store;
        const struct start_request *request;
        struct store_run run; /* fd -1: the run does not exist yet */
        struct run_scan scan;
        struct intent_verdict verdict;
        uint64_t generation;
        uint8_t claim_uuid[16];
        char rolled[STORE_NOTE_BYTES]; /* what was rolled forward */
        struct start_reply *reply;
        bool store_missing;
};

static int passage(enum fault point, const char *operation, const char *object,
                   struct cairn_error *reterr) {
        int error_number = fault_point(point);
        return error_number ? error_set_errno(reterr, error_number, operation, object) : 0;
}

static ProtobufCBinaryData bytes_of(const void *data, size_t bytes) {
        return (ProtobufCBinaryData){.len = bytes, .data = (uint8_t *) (uintptr_t) data};
}

static int choose_uuid(uint8_t *uuid, struct cairn_error *reterr) {
        if (getrandom(uuid, 16, 0) != 16)
                return error_set_errno(reterr, errno, "choose an id", "store");
        return 0;
}

/* ---- the store ---- */

int store_create_at(const struct io_ops *io, const struct clock_ops *clock, int dirfd,
                    uint32_t kind, struct cairn_error *reterr) {
        Cairn__Format__StoreMarker marker = CAIRN__FORMAT__STORE_MARKER__INIT;
        struct file_content content = {.kind = FILE_STORE, .store = &marker};
        _cleanup_free_ void *bytes = NULL;
        size_t bytes_count;
        uint8_t id[16];

        TRY(choose_uuid(id, reterr));
        marker.store_id = bytes_of(id, sizeof id);
        marker.kind = kind;
        marker.time_ns = clock->realtime_ns(clock->context);
        TRY(file_write(&content, &bytes, &bytes_count, reterr));
        return io_publish_file(io, dirfd, STORE_MARKER_NAME, bytes, bytes_count,
                               IO_PUBLISH_EXCLUSIVE, reterr);
}

/* The folder of a store is the operator's: it may be reached through links and lie anywhere. Only
 * what is beneath it is opened by the table. */
static int make_store_folder(const char *path, struct cairn_error *reterr) {
        char parent[STORE_PATH_BYTES];
        size_t bytes = strnlen(path, sizeof parent);

        if (bytes == 0 || bytes >= sizeof parent)
                return error_set(reterr, CAIRN_ERR_API, "create store", path,
                                 "the path is empty or too long");
        if (mkdir(path, 0755) < 0) {
                if (errno == EEXIST)
                        return 0;
                if (errno == ENOENT)
                        return error_set(reterr, CAIRN_ERR_CANNOT_WRITE, "create store", path,
                                         "the folder above it does not exist, or nothing can be "
                                         "made there; is the file system mounted?");
                return error_set_errno(reterr, errno, "create store", path);
        }
        memcpy(parent, path, bytes + 1);
        while (bytes > 1 && parent[bytes - 1] == '/')
                parent[--bytes] = '\0';
        char *slash = strrchr(parent, '/');
        if (slash)
                slash[slash == parent ? 1 : 0] = '\0';
        _cleanup_close_ int fd = open(slash ? parent : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (fd < 0 || fsync(fd) < 0)
                return error_set_errno(reterr, errno, "create store", path);
        return 0;
}

int store_create(const struct io_ops *io, const struct clock_ops *clock, const char *path,
                 uint32_t kind, struct cairn_error *reterr) {
        TRY(make_store_folder(path, reterr));
        _cleanup_close_ int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (fd < 0)
                return error_set_errno(reterr, errno, "create store", path);
        int r = store_create_at(io, clock, fd, kind, reterr);
        if (r == CAIRN_ERR_EXISTS)
                return error_set(reterr, r, "create store", path, "it is a store already");
        return r;
}

enum folder_kind { FOLDER_UNKNOWN, FOLDER_MISSING, FOLDER_EMPTY, FOLDER_USED, FOLDER_MARKED };

static void cleanup_closedir(DIR **directory) {
        if (*directory)
                (void) closedir(*directory);
}

static enum folder_kind look_at_folder(const char *path) {
        enum folder_kind kind = FOLDER_EMPTY;
        _cleanup_(cleanup_closedir) DIR *directory = opendir(path);

        if (!directory)
                return errno == ENOENT ? FOLDER_MISSING : FOLDER_UNKNOWN;
        for (const struct dirent *entry; (entry = readdir(directory));) {
                if (strcmp(entry->d_name, STORE_MARKER_NAME) == 0)
                        return FOLDER_MARKED;
                /* lost+found: a fresh file system is empty; .tmp-: an init that was killed. */
                if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0 &&
                    strcmp(entry->d_name, "lost+found") != 0 &&
                    strncmp(entry->d_name, ".tmp-", 5) != 0)
                        kind = FOLDER_USED;
        }
        return kind;
}

bool store_folder_is_free(const char *path) {
        enum folder_kind kind = look_at_folder(path);
        return kind == FOLDER_MISSING || kind == FOLDER_EMPTY;
}

static int refuse_store(const struct start *s, enum folder_kind kind, struct cairn_error *reterr) {
        const char *path = s->store->path;

        if (kind == FOLDER_USED)
                return error_set(reterr, CAIRN_ERR_MISMATCH, "open store", path,
                                 "the folder holds other files and is not a Cairn store; choose "
                                 "another with --store, or make it one with `cairn init %s`",
                                 path);
        return error_set(reterr, CAIRN_ERR_UNREACHABLE, "open store", path,
                         "%s; is the file system mounted? A new store is made by `cairn init` or "
                         "by a start with --mode fresh",
                         kind == FOLDER_EMPTY ? "the folder is empty" : "there is no such folder");
}

static int open_store(struct start *s, struct cairn_error *reterr) {
        struct store *store = s->store;
        struct cairn_error e = CAIRN_ERROR_INIT;
        bool may_create = s->request->create_store &&
                          (s->request->mode == START_FRESH || s->request->mode == START_INIT_FROM);

        if (store->fd >= 0)
                return 0;
        int r = store_open(store->io, store->path, &store->fd, &e);
        if (r == 0)
                return 0;
        store->fd = -1;
        if (r == CAIRN_ERR_NOTFOUND || r == CAIRN_ERR_MISMATCH) {
                enum folder_kind kind = look_at_folder(store->path);
                if (kind == FOLDER_USED)
                        return refuse_store(s, kind, reterr);
                if (kind == FOLDER_MISSING || kind == FOLDER_EMPTY) {
                        s->store_missing = true;
                        return may_create ? 0 : refuse_store(s, kind, reterr);
                }
                /* Somebody made it between the two looks: two first runs at the same time. */
                if (kind == FOLDER_MARKED)
                        r = store_open(store->io, store->path, &store->fd, &e);
                if (r == 0)
                        return 0;
                store->fd = -1;
        }
        if (reterr)
                *reterr = e;
        return r;
}

/* A group in node-local stores starts by another way (node_store.h). */
static int check_kind(const struct start *s, struct cairn_error *reterr) {
        struct store_marker marker = {0};

        if (!s->store_missing)
                TRY(store_read_marker(s->store->io, s->store->fd, s->store->path, &marker, reterr));
        if (marker.kind != STORE_NODE_LOCAL)
                return 0;
        return error_set(reterr, CAIRN_ERR_MISMATCH, "start run", s->store->path,
                         "the store was made node-local, for runs of several nodes of which each "
                         "has its own: start the run on each of them with --nnodes N --rdzv "
                         "etcd://HOST:PORT, or make a shared store (`cairn init DIR`)");
}

/* ---- looking ---- */

/* A store that cannot be listed must not look empty, and says so whatever the errno was. */
static int unreachable(const struct start *s, int status, const struct cairn_error *e,
                       struct cairn_error *reterr) {
        char text[400];

        if (status != CAIRN_ERR_IO && status != CAIRN_ERR_PERMISSION &&
            status != CAIRN_ERR_TIMEOUT && status != CAIRN_ERR_CANNOT_WRITE) {
                if (reterr)
                        *reterr = *e;
                return status;
        }
        int r = error_set(reterr, CAIRN_ERR_UNREACHABLE, "list store", s->store->path,
                          "the run cannot be looked at, so nothing is concluded from it: %s",
                          error_format(e, text, sizeof text));
        if (reterr)
                reterr->system_code = e->system_code;
        return r;
}

static int open_run(struct start *s, struct cairn_error *reterr) {
        struct cairn_error e = CAIRN_ERROR_INIT;

        if (s->store_missing)
                return 0;
        int r = run_open(s->store->io, s->store->fd, s->request->run, &s->run.fd, &e);
        if (r == 0)
                return 0;
        s->run.fd = -1;
        return r == CAIRN_ERR_NOTFOUND ? 0 : unreachable(s, r, &e, reterr);
}

static int verify(void *context, const struct scan_checkpoint *c, bool *ret_flagged,
                  struct cairn_error *reterr);

static int look(struct start *s, struct cairn_error *reterr) {
        struct cairn_error e = CAIRN_ERROR_INIT;

        run_scan_done(&s->scan);
        s->scan = (struct run_scan){0};
        if (s->run.fd >= 0) {
                int r = run_scan(s->store->io, s->run.fd, s->request->run, true, &s->scan, &e);
                if (r < 0) {
                        s->scan = (struct run_scan){0};
                        return unreachable(s, r, &e, reterr);
                }
        }
        return intent_judge(s->request, &s->scan, verify, s, &s->verdict, reterr);
}

static uint32_t world_of(const struct run_scan *scan, uint64_t generation) {
        for (size_t i = 0; i < scan->generation_count; i++)
                if (scan->generations[i].generation == generation)
                        return scan->generations[i].world;
        return 0;
}

/* INDEX and COMMIT of an attempt as they would be; the dry run verifies it. */
static int compose_attempt(struct start *s, const struct scan_checkpoint *c,
                           struct commit_files *ret, struct cairn_error *reterr) {
        const struct io_ops *io = s->store->io;
        struct commit_source source = {
                .dir_fd = io->openat(io->context, s->run.fd, c->name, O_RDONLY | O_DIRECTORY, 0),
                .name = c->name,
                .generation = c->generation,
                .attempt = c->attempt,
                .world = world_of(&s->scan, c->generation),
                .reason = COMMIT_REASON_ROLLED_FORWARD};

        if (source.dir_fd < 0)
                return error_set_errno(reterr, errno, "open folder", c->name);
        int r = commit_compose(&s->run, &source, ret, reterr);
        (void) io->close(io->context, source.dir_fd);
        return r;
}

static int verify(void *context, const struct scan_checkpoint *c, bool *ret_flagged,
                  struct cairn_error *reterr) {
        struct start *s = context;
        struct commit_files files = {0};

        *ret_flagged = c->validity == CHECKPOINT_FLAGGED;
        if (!c->is_attempt)
                return checkpoint_check(s->store->io, s->run.fd, c->name, s->request->run, false,
                                        NULL, reterr);
        TRY(compose_attempt(s, c, &files, reterr));
        *ret_flagged = files.flagged;
        commit_files_done(&files);
        return 0;
}

/* ---- the run's folder and lock ---- */

static int lock_is_held(const char *run, struct cairn_error *reterr) {
        return error_set(reterr, CAIRN_ERR_BUSY, "lock run", run,
                         "the lock is held: by a store process that cannot be ended yet, or by "
                         "another agent that started the run meanwhile");
}

static int refuse_living(const struct start *s, struct cairn_error *reterr) {
        if (s->request->again)
                return lock_is_held(s->request->run, reterr);
        return error_set(reterr, CAIRN_ERR_EXISTS, "start run", s->request->run,
                         "the run is running; `cairn status %s` shows it, `cairn stop %s` ends it",
                         s->request->run, s->request->run);
}

static int try_lock(const struct io_ops *io, int run_fd, int flags, int *ret_fd) {
        int fd = io->openat(io->context, run_fd, MARKS_NAME "/" LOCK_NAME, O_RDWR | flags, 0644);
        if (fd < 0)
                return -errno;
        if (io->try_lock(io->context, fd) < 0) {
                int error_number = errno;
                (void) io->close(io->context, fd);
                return -error_number;
        }
        *ret_fd = fd;
        return 0;
}

/* Only an existing lock file: a refused start creates nothing. */
static int lock_existing(struct start *s, struct cairn_error *reterr) {
        if (s->run.fd < 0 || s->run.lock_fd >= 0 || s->request->grouped)
                return 0;
        int r = try_lock(s->store->io, s->run.fd, 0, &s->run.lock_fd);
        if (r == 0 || r == -ENOENT)
                return 0;
        if (r == -EAGAIN)
                return refuse_living(s, reterr);
        return error_set_errno(reterr, -r, "lock run", s->request->run);
}

static int create_run(struct start *s, struct cairn_error *reterr) {
        const struct io_ops *io = s->store->io;

        if (s->store_missing) {
                int r = store_create(io, s->store->clock, s->store->path, 1, reterr);
                if (r < 0 && r != CAIRN_ERR_EXISTS)
                        return r;
                TRY(store_open(io, s->store->path, &s->store->fd, reterr));
                s->store_missing = false;
        }
        if (s->run.fd < 0) {
                int r = io_make_dir(io, s->store->fd, s->request->run, 0755, true, reterr);
                if (r < 0 && reterr) /* which store, too: it is the one that cannot be written */
                        (void) snprintf(reterr->object, sizeof reterr->object, "%.180s/%.64s",
                                        s->store->path, s->request->run);
                if (r < 0)
                        return r;
                TRY(run_open(io, s->store->fd, s->request->run, &s->run.fd, reterr));
        }
        /* Also where it existed: a predecessor may have died between mkdir and sync. */
        TRY(io_sync(io, s->store->fd, s->request->run, reterr));
        TRY(io_make_dir(io, s->run.fd, MARKS_NAME, 0755, true, reterr));
        if (s->run.lock_fd >= 0)
                return 0;
        if (s->request->grouped)
                return look(s, reterr);
        int r = try_lock(io, s->run.fd, O_CREAT, &s->run.lock_fd);
        if (r == -EAGAIN)
                return refuse_living(s, reterr);
        if (r < 0)
                return error_set_errno(reterr, -r, "lock run", s->request->run);
        /* Between the look and the lock another start may have come and gone. */
        return look(s, reterr);
}

/* ---- claim and fence ---- */

static size_t split_overrides(const char *text, Cairn__Format__Text *texts,
                              Cairn__Format__Text **pointers) {
        size_t count = 0;

        while (*text && count < OVERRIDES_MAX) {
                const char *end = strchrnul(text, '\n'), *equals = memchr(text, '=', end - text);
                if (equals) {
                        cairn__format__text__init(&texts[count]);
                        texts[count].key = bytes_of(text, (size_t) (equals - text));
                        texts[count].value = bytes_of(equals + 1, (size_t) (end - equals - 1));
                        pointers[count] = &texts[count];
                        count++;
                }
                text = *end ? end + 1 : end;
        }
        return count;
}

/* One member a rank, in order; nodes NULL: none. */
static int fill_members(Cairn__Format__Generation *g, const struct scan_node *nodes, size_t count,
                        Cairn__Format__Member **ret, struct cairn_error *reterr) {
        *ret = calloc(g->world, sizeof **ret + sizeof(void *));
        if (!*ret)
                return error_set_errno(reterr, ENOMEM, "claim restart", "members");
        g->members = (void *) (*ret + g->world);
        for (size_t i = 0; i < count; i++)
                for (uint32_t k = 0; k < nodes[i].ranks && g->n_members < g->world; k++) {
                        Cairn__Format__Member *m = &(*ret)[g->n_members];
                        cairn__format__member__init(m);
                        m->rank = (uint32_t) g->n_members;
                        m->host = bytes_of(nodes[i].node, strlen(nodes[i].node));
                        g->members[g->n_members++] = m;
                }
        return 0;
}

int generation_write_claim(const struct start_request *q, uint64_t generation, uint64_t time_ns,
                           const uint8_t *uuid, const struct scan_node *nodes, size_t node_count,
                           void **ret, size_t *ret_bytes, struct cairn_error *reterr) {
        Cairn__Format__Generation g = CAIRN__FORMAT__GENERATION__INIT;
        struct file_content content = {.kind = FILE_GENERATION, .generation = &g};
        Cairn__Format__Text texts[OVERRIDES_MAX], *pointers[OVERRIDES_MAX];
        _cleanup_free_ Cairn__Format__Member *members = NULL;

        g.run = bytes_of(q->run, strlen(q->run));
        g.generation = generation;
        g.world = q->world;
        g.mode = q->mode == START_INIT_FROM ? START_FRESH : q->mode;
        g.init_from = bytes_of(q->init_from, strlen(q->init_from));
        g.has_from_step = q->has_from_step;
        g.from_step = q->from_step;
        g.n_overrides = split_overrides(q->overrides, texts, pointers);
        g.overrides = pointers;
        g.restart = q->restart;
        g.time_ns = time_ns;
        g.claim_uuid = bytes_of(uuid, 16);
        if (node_count)
                TRY(fill_members(&g, nodes, node_count, &members, reterr));
        return file_write(&content, ret, ret_bytes, reterr);
}

static int claim(struct start *s, struct cairn_error *reterr) {
        const struct start_request *q = s->request;
        const struct clock_ops *clock = s->store->clock;
        _cleanup_free_ void *bytes = NULL;
        char name[NAME_BYTES];
        size_t bytes_count;

        TRY(choose_uuid(s->claim_uuid, reterr));
        s->generation = s->scan.generation_max + 1;
        TRY(generation_write_claim(q, s->generation, clock->realtime_ns(clock->context),
                                   s->claim_uuid, NULL, 0, &bytes, &bytes_count, reterr));
        name_generation(name, s->generation);
        TRY(passage(FAULT_GENERATION_CLAIM, "claim restart", name, reterr));
        int r = io_publish_file(s->store->io, s->run.fd, name, bytes, bytes_count,
                                IO_PUBLISH_EXCLUSIVE, reterr);
        return r == CAIRN_ERR_EXISTS ? refuse_living(s, reterr) : r;
}

/* After this an older leader's commit fails: the name it would rename is gone. */
int generation_fence(struct store_run *run, uint64_t by, struct cairn_error *reterr) {
        const struct io_ops *io = run->store->io;
        _cleanup_(names_done) struct names names = {0};

        TRY(names_list(io, run->fd, run->run, &names, reterr));
        for (size_t i = 0; i < names.count; i++) {
                char stale[NAME_BYTES];
                uint64_t generation;
                uint32_t attempt;

                if (!name_parse_pending(names.items[i], &generation, &attempt) || generation >= by)
                        continue;
                TRY(passage(FAULT_GENERATION_FENCE, "set aside", names.items[i], reterr));
                name_stale(stale, generation, attempt, by);
                if (io->renameat(io->context, run->fd, names.items[i], run->fd, stale, 0) < 0 &&
                    errno != ENOENT) /* committed or discarded meanwhile */
                        return error_set_errno(reterr, errno, "set aside", names.items[i]);
        }
        return 0;
}

/* ---- roll forward ---- */

int generation_publish_files(struct store_run *run, const char *name,
                             const struct commit_files *files, struct cairn_error *reterr) {
        const struct io_ops *io = run->store->io;
        int fd = io->openat(io->context, run->fd, name, O_RDONLY | O_DIRECTORY, 0);

        if (fd < 0)
                return error_set_errno(reterr, errno, "open folder", name);
        /* Replaced by rename: the old leader may still be writing its own, into files that have no
         * name then. The sync of the folder in the second call covers the manifests' names. */
        int r = io_publish_file(io, fd, INDEX_NAME, files->index, files->index_bytes,
                                IO_PUBLISH_REPLACE, reterr);
        if (r == 0)
                r = io_publish_file(io, fd, COMMIT_NAME, files->record, files->record_bytes,
                                    IO_PUBLISH_REPLACE, reterr);
        (void) io->close(io->context, fd);
        return r;
}

static int roll_forward(struct start *s, const struct scan_checkpoint *c,
                        struct cairn_error *reterr) {
        struct commit_files files = {0};
        char name[NAME_BYTES];
        bool existed, gone;

        TRY(compose_attempt(s, c, &files, reterr));
        name_checkpoint(name, files.step, c->generation);
        int r = generation_publish_files(&s->run, c->name, &files, reterr);
        commit_files_done(&files);
        TRY(r);
        TRY(passage(FAULT_COMMIT_RENAME, "roll forward", name, reterr));
        TRY(commit_give_name(&s->run, c->name, name, &existed, reterr));
        if (existed)
                return retention_trash(&s->run, c->name, &gone, reterr);
        intent_note(s->rolled, "rolled forward %s, which was written but not committed", name);
        return 0;
}

/* Until the choice is a checkpoint. Each round turns one attempt into one. */
static int settle_choice(struct start *s, struct cairn_error *reterr) {
        TRY(look(s, reterr));
        for (unsigned round = 0; s->verdict.choice && s->verdict.choice->is_attempt; round++) {
                if (round == 64)
                        return error_set(reterr, CAIRN_ERR_STALE, "start run", s->request->run,
                                         "its folder changes while it is looked at");
                struct scan_checkpoint choice = *s->verdict.choice;
                TRY(roll_forward(s, &choice, reterr));
                TRY(look(s, reterr));
        }
        return 0;
}

/* ---- parent and start ---- */

static int describe_choice(struct start *s, struct cairn_error *reterr) {
        struct start_reply *reply = s->reply;
        struct checkpoint_place place;
        const char *name = s->verdict.choice ? s->verdict.choice->name : s->request->init_from;

        reply->decided = s->verdict.decided;
        reply->checkpoint_step = -1;
        if (reply->decided == START_FRESH)
                return 0;
        TRY(checkpoint_place_open(s->store, s->request->run, name, &place, reterr));
        reply->checkpoint_step = place.step;
        reply->checkpoint_generation = place.generation;
        reply->checkpoint_world = place.world;
        (void) snprintf(reply->checkpoint, sizeof reply->checkpoint, "%s", name);
        int r = reply->decided == START_RESUME
                        ? 0 /* verified by the judge */
                        : checkpoint_check(s->store->io, place.run_fd, place.name, place.run, false,
                                           NULL, reterr);
        checkpoint_place_done(s->store, &place);
        return r;
}

int generation_write_start(uint64_t generation, const uint8_t *uuid,
                           const struct scan_checkpoint *parent, void **ret, size_t *ret_bytes,
                           struct cairn_error *reterr) {
        Cairn__Format__GenerationStart start = CAIRN__FORMAT__GENERATION_START__INIT;
        struct file_content content = {.kind = FILE_GENERATION_START, .generation_start = &start};

        start.generation = generation;
        if (parent) {
                start.parent = bytes_of(parent->name, strlen(parent->name));
                start.parent_step = parent->step;
                start.parent_generation = parent->generation;
        }
        start.claim_uuid = bytes_of(uuid, 16);
        return file_write(&content, ret, ret_bytes, reterr);
}

static int link_start(struct start *s, struct cairn_error *reterr) {
        _cleanup_free_ void *bytes = NULL;
        char name[NAME_BYTES];
        size_t bytes_count;

        TRY(generation_write_start(s->generation, s->claim_uuid, s->verdict.choice, &bytes,
                                   &bytes_count, reterr));
        name_generation_start(name, s->generation);
        TRY(passage(FAULT_GENERATION_START, "start restart", name, reterr));
        TRY(commit_check_fenced(&s->run, s->generation, reterr));
        return io_publish_file(s->store->io, s->run.fd, name, bytes, bytes_count,
                               IO_PUBLISH_EXCLUSIVE, reterr);
}

/* Read-only. *ret_done: there is nothing to do (finished). */
static int judge(struct start *s, bool *ret_done, struct cairn_error *reterr) {
        TRY(intent_check(s->request, reterr));
        TRY(open_store(s, reterr));
        TRY(check_kind(s, reterr));
        TRY(open_run(s, reterr));
        TRY(lock_existing(s, reterr));
        TRY(look(s, reterr));
        /* What it had is gone: that must not become a fresh start. */
        if (s->scan.generation_max < s->request->generation_min)
                return error_set(reterr, CAIRN_ERR_CANNOT_WRITE, "restart run", s->request->run,
                                 "its folder in %.180s was removed while it was running, with its "
                                 "checkpoints: put it back, or begin anew with --mode fresh",
                                 s->store->path);
        *ret_done = s->verdict.finished;
        if (!*ret_done && !(s->verdict.choice && s->verdict.choice->is_attempt))
                TRY(describe_choice(s, reterr));
        return 0;
}

static int make_generation(struct start *s, struct cairn_error *reterr) {
        TRY(create_run(s, reterr));
        if (s->verdict.finished)
                return 0;
        TRY(claim(s, reterr));
        TRY(generation_fence(&s->run, s->generation, reterr));
        TRY(settle_choice(s, reterr));
        TRY(io_sync(s->store->io, s->run.fd, s->request->run, reterr));
        if (s->verdict.finished)
                return 0;
        TRY(describe_choice(s, reterr));
        return link_start(s, reterr);
}

static void fill_reply(struct start *s) {
        struct start_reply *reply = s->reply;

        reply->generation = s->verdict.finished ? 0 : s->generation;
        reply->finished = s->verdict.finished;
        if (s->verdict.finished)
                memcpy(reply->finished_reason, s->scan.finished_reason,
                       sizeof reply->finished_reason);
        if (s->rolled[0])
                intent_note(reply->note, "%s", s->rolled);
        if (s->verdict.note[0])
                intent_note(reply->note, "%s", s->verdict.note);
}

int generation_restart(struct store *store, const struct start_request *request, int lock_fd,
                       struct store_run *ret_run, struct start_reply *ret,
                       struct cairn_error *reterr) {
        struct start s = {.store = store,
                          .request = request,
                          .reply = ret,
                          .run = {.store = store, .fd = -1, .lock_fd = lock_fd}};
        bool done = false;

        *ret = (struct start_reply){.checkpoint_step = -1};
        *ret_run = (struct store_run){.store = store, .fd = -1, .lock_fd = -1};
        (void) snprintf(s.run.run, sizeof s.run.run, "%.*s", RUN_NAME_BYTES_MAX, request->run);
        int r = judge(&s, &done, reterr);
        if (r == 0 && !done)
                r = make_generation(&s, reterr);
        if (r == 0)
                fill_reply(&s);
        if (r == 0 && !s.verdict.finished)
                *ret_run = s.run;
        else
                store_run_done(&s.run);
        run_scan_done(&s.scan);
        return r;
}

int generation_start(struct store *store, const struct start_request *request,
                     struct store_run *ret_run, struct start_reply *ret,
                     struct cairn_error *reterr) {
        return generation_restart(store, request, -1, ret_run, ret, reterr);
}

void store_run_done(struct store_run *run) {
        if (run->store && run->fd >= 0)
                (void) run->store->io->close(run->store->io->context, run->fd);
        if (run->store && run->lock_fd >= 0)
                (void) run->store->io->close(run->store->io->context, run->lock_fd);
        run->fd = run->lock_fd = -1;
}

/* ---- in a new store process ---- */

static int retake_lock(struct store_run *run, struct cairn_error *reterr) {
        const struct clock_ops *clock = run->store->clock;
        int r;

        for (unsigned waited_ms = 0;; waited_ms += 10) {
                r = try_lock(run->store->io, run->fd, 0, &run->lock_fd);
                if (r != -EAGAIN || waited_ms >= LOCK_PATIENCE_MS)
                        break;
                clock->sleep_ns(clock->context, 10 * NSEC_PER_MSEC);
        }
        if (r == -EAGAIN)
                return lock_is_held(run->run, reterr);
        return r < 0 ? error_set_errno(reterr, -r, "lock run", run->run) : 0;
}

/* A folder that was put back may be an older copy, or another run's. */
static int check_started(const struct store_run *run, uint64_t generation,
                         struct cairn_error *reterr) {
        const struct io_ops *io = run->store->io;
        char name[NAME_BYTES];

        name_generation_start(name, generation);
        int fd = io->openat(io->context, run->fd, name, O_RDONLY, 0);
        if (fd < 0 && errno != ENOENT)
                return error_set_errno(reterr, errno, "open run", name);
        if (fd < 0)
                return error_set(reterr, CAIRN_ERR_CANNOT_WRITE, "open run", run->run,
                                 "its folder in %.180s is not the one that was started (%s is "
                                 "missing): put that one back, or stop the run and start it anew",
                                 run->store->path, name);
        (void) io->close(io->context, fd);
        return 0;
}

int store_run_reopen(struct store *store, const char *run, uint64_t generation, bool grouped,
                     struct store_run *ret, struct cairn_error *reterr) {
        struct store_run opened = {.store = store, .fd = -1, .lock_fd = -1};
        int r = name_check_run(run, reterr);

        if (r == 0 && store->fd < 0)
                r = store_open(store->io, store->path, &store->fd, reterr);
        if (r == 0)
                r = run_open(store->io, store->fd, run, &opened.fd, reterr);
        if (r < 0)
                return r;
        (void) snprintf(opened.run, sizeof opened.run, "%.*s", RUN_NAME_BYTES_MAX, run);
        if (!grouped)
                TRY_GOTO(retake_lock(&opened, reterr), fail);
        TRY_GOTO(commit_check_fenced(&opened, generation, reterr), fail);
        if (generation != UINT64_MAX) /* of nobody's */
                TRY_GOTO(check_started(&opened, generation, reterr), fail);
        *ret = opened;
        return 0;
fail:
        store_run_done(&opened);
        return r;
}

int generation_remake(struct store *store, const char *run, uint64_t generation, uint32_t world,
                      struct store_run *ret, struct cairn_error *reterr) {
        struct start_request request = {.mode = START_FRESH, .world = world};
        struct start s = {.store = store,
                          .request = &request,
                          .run = {.store = store, .fd = -1, .lock_fd = -1}};
        int r;

        (void) snprintf(request.run, sizeof request.run, "%s", run);
        (void) snprintf(s.run.run, sizeof s.run.run, "%s", run);
        TRY_GOTO(create_run(&s, reterr), fail);
        s.scan.generation_max = generation - 1;
        s.verdict.choice = NULL;
        TRY_GOTO(claim(&s, reterr), fail);
        TRY_GOTO(io_sync(store->io, s.run.fd, run, reterr), fail);
        TRY_GOTO(link_start(&s, reterr), fail);
        *ret = s.run;
        run_scan_done(&s.scan);
        return 0;
fail:
        store_run_done(&s.run);
        run_scan_done(&s.scan);
        return r;
}

/* ---- an agent that was restarted ---- */

/* One attempt after the other; each leaves the scan behind, so that it is made anew. */
static int take_up_one(struct start *s, bool *ret_any, struct cairn_error *reterr) {
        *ret_any = false;
        run_scan_done(&s->scan);
        s->scan = (struct run_scan){0};
        TRY(run_scan(s->store->io, s->run.fd, s->run.run, false, &s->scan, reterr));
        for (size_t i = 0; i < s->scan.checkpoint_count; i++) {
                const struct scan_checkpoint c = s->scan.checkpoints[i];
                uint64_t generation;
                uint32_t attempt;
                bool gone, whole = c.validity == CHECKPOINT_ROLLABLE ||
                                   c.validity == CHECKPOINT_FLAGGED;
                if (!c.is_attempt || !name_parse_pending(c.name, &generation, &attempt) ||
                    generation != s->generation)
                        continue;
                *ret_any = true;
                struct cairn_error e = CAIRN_ERROR_INIT;
                if (whole && roll_forward(s, &c, &e) == 0)
                        return 0;
                if (whole && !intent_is_damage(&e)) {
                        if (reterr)
                                *reterr = e;
                        return e.status;
                }
                return retention_trash(&s->run, c.name, &gone, reterr);
        }
        return 0;
}

int generation_take_up(struct store_run *run, uint64_t generation, struct start_reply *ret,
                       struct cairn_error *reterr) {
        const struct start_request request = {.world = 0};
        struct start s = {.store = run->store,
                          .request = &request,
                          .run = *run, /* borrowed */
                          .generation = generation,
                          .reply = ret};
        bool any = true;
        int r = 0;
        for (unsigned round = 0; r == 0 && any && round < 64; round++)
                r = take_up_one(&s, &any, reterr);
        ret->committed_step = -1;
        for (size_t i = 0; r == 0 && i < s.scan.checkpoint_count; i++) {
                const struct scan_checkpoint *c = &s.scan.checkpoints[i];
                bool usable =
                        c->validity == CHECKPOINT_UNCHECKED || c->validity == CHECKPOINT_VALID;
                if (c->is_attempt || c->generation != generation || !usable ||
                    c->step <= ret->committed_step)
                        continue;
                ret->committed_step = c->step;
                ret->committed_bytes = c->bytes;
                memcpy(ret->committed, c->name, sizeof ret->committed);
        }
        if (s.rolled[0])
                intent_note(ret->note, "%s", s.rolled);
        run_scan_done(&s.scan);
        return r;
}
