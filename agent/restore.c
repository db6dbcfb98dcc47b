/* SPDX-License-Identifier: Apache-2.0
 *
 * Descriptors for a restore. Checked here: the digest of INDEX, lengths and headers; the data's
 * checksums are checked by whoever reads it.
 */
#include "agent/restore.h"
#include "agent/commit.h"
#include "base/cleanup.h"
#include "base/fault.h"
#include "format/crc32c.h"
#include "format/wire.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

enum { RESTORE_INDEX_BYTES_MAX_SHIFT = 36 };

/* ---- places ---- */

static void close_fd(const struct io_ops *io, int fd) {
        if (fd >= 0)
                (void) io->close(io->context, fd);
}

/* "a/b/" -> last component "b", and what is before it ("a", "." or "/"). */
static int split_path(const char *path, char *parent, char *name, struct cairn_error *reterr) {
        size_t bytes = strnlen(path, STORE_PATH_BYTES);

        while (bytes > 1 && path[bytes - 1] == '/')
                bytes--;
        size_t at = bytes;
        while (at > 0 && path[at - 1] != '/')
                at--;
        if (bytes == 0 || bytes >= STORE_PATH_BYTES || bytes - at >= NAME_BYTES || bytes == at)
                return error_set(reterr, CAIRN_ERR_NOTFOUND, "open checkpoint", path,
                                 "this is neither a checkpoint's name nor a path to one");
        memcpy(name, path + at, bytes - at);
        name[bytes - at] = '\0';
        while (at > 1 && path[at - 1] == '/')
                at--;
        memcpy(parent, at ? path : ".", at ? at : 1);
        parent[at ? at : 1] = '\0';
        return 0;
}

/* NAME or RUN/NAME of the open store; NOTFOUND otherwise. */
static int open_in_store(struct store *store, const char *run, const char *checkpoint,
                         struct checkpoint_place *place, struct cairn_error *reterr) {
        char of_run[RUN_NAME_BYTES_MAX + 1];
        const char *slash = strchr(checkpoint, '/'), *name = slash ? slash + 1 : checkpoint;
        uint64_t generation;
        int64_t step;

        (void) snprintf(of_run, sizeof of_run, "%.*s",
                        slash ? (int) (slash - checkpoint) : RUN_NAME_BYTES_MAX,
                        slash ? checkpoint : run);
        if (store->fd < 0 || !name_parse_checkpoint(name, &step, &generation) ||
            (slash && (slash - checkpoint > RUN_NAME_BYTES_MAX)) ||
            name_check_run(of_run, NULL) < 0)
                return error_set(reterr, CAIRN_ERR_NOTFOUND, "open checkpoint", checkpoint,
                                 "the store has no such checkpoint");
        (void) snprintf(place->name, sizeof place->name, "%s", name);
        return run_open(store->io, store->fd, of_run, &place->run_fd, reterr);
}

/* The folder above belongs to the operator and may be reached through links; the checkpoint itself
 * and what is in it are opened beneath it, without following any. */
static int open_path(const char *checkpoint, struct checkpoint_place *place,
                     struct cairn_error *reterr) {
        char parent[STORE_PATH_BYTES];

        TRY(split_path(checkpoint, parent, place->name, reterr));
        place->run_fd = open(parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (place->run_fd < 0)
                return error_set_errno(reterr, errno, "open checkpoint", checkpoint);
        return 0;
}

static int read_record(struct store *store, const char *checkpoint, struct checkpoint_place *place,
                       struct cairn_error *reterr) {
        struct file_content record;
        struct arena arena;

        arena_init(&arena, COMMIT_ARENA_BYTES);
        int r = commit_load_record(store->io, place->run_fd, place->name, &arena, &record, reterr);
        if (r == 0) {
                const Cairn__Format__Head *h = record.head;
                place->step = h->step;
                place->generation = h->generation;
                place->world = h->world;
                place->index_crc32c = record.commit->index_crc32c;
                place->index_bytes = record.commit->index_bytes;
                (void) snprintf(place->run, sizeof place->run, "%.*s", (int) h->run.len,
                                h->run.len ? (const char *) h->run.data : "");
                r = name_check_run(place->run, reterr) < 0 ? CAIRN_ERR_CORRUPT : 0;
        } else if (r == CAIRN_ERR_NOTFOUND) {
                r = error_set(reterr, r, "open checkpoint", checkpoint,
                              "there is no checkpoint: it has no %s; `cairn list` shows what there "
                              "is",
                              COMMIT_NAME);
        }
        arena_done(&arena);
        return r;
}

int checkpoint_place_open(struct store *store, const char *run, const char *checkpoint,
                          struct checkpoint_place *ret, struct cairn_error *reterr) {
        struct checkpoint_place place = {.run_fd = -1};
        int r = open_in_store(store, run, checkpoint, &place, reterr);

        if (r == CAIRN_ERR_NOTFOUND && strchr(checkpoint, '/'))
                r = open_path(checkpoint, &place, reterr);
        if (r < 0)
                return r;
        r = read_record(store, checkpoint, &place, reterr);
        if (r < 0)
                checkpoint_place_done(store, &place);
        else
                *ret = place;
        return r;
}

void checkpoint_place_done(struct store *store, struct checkpoint_place *place) {
        close_fd(store->io, place->run_fd);
        place->run_fd = -1;
}

/* ---- INDEX ---- */

static int copy_index(struct store *store, const struct checkpoint_place *place, int *ret_memfd,
                      struct cairn_error *reterr) {
        _cleanup_free_ void *bytes = NULL;
        _cleanup_close_ int memfd = -1;
        char path[2 * NAME_BYTES];
        size_t bytes_count;

        (void) snprintf(path, sizeof path, "%s/%s", place->name, INDEX_NAME);
        int r = io_read_file(store->io, place->run_fd, path,
                             UINT64_C(1) << RESTORE_INDEX_BYTES_MAX_SHIFT, &bytes, &bytes_count,
                             reterr);
        TRY(checkpoint_missing(store->io, place->run_fd, place->name, r, reterr));
        if (bytes_count != place->index_bytes ||
            crc32c(0, bytes, bytes_count) != place->index_crc32c)
                return error_set(reterr, CAIRN_ERR_CORRUPT, "check digest", path,
                                 "the file is not the one that was committed");
        TRY(wire_memfd_create("cairn-index", bytes_count, &memfd, reterr));
        TRY(io_write_all(&io_system, memfd, bytes, bytes_count, 0, path, reterr));
        TRY(wire_memfd_seal(memfd, F_SEAL_WRITE, reterr));
        *ret_memfd = TAKE_FD(memfd);
        return 0;
}

int restore_open_index(struct store *store, const struct checkpoint_place *place,
                       int *ret_index_memfd, struct scan_node *ret_here,
                       struct cairn_error *reterr) {
        TRY(checkpoint_here(store->io, place->run_fd, place->generation, place->world, ret_here,
                            reterr));
        return copy_index(store, place, ret_index_memfd, reterr);
}

/* ---- data files ---- */

static int open_data(struct store *store, const struct checkpoint_place *place, uint32_t rank,
                     int *ret_fd, struct cairn_error *reterr) {
        const struct io_ops *io = store->io;
        unsigned char block[DATA_BLOCK_BYTES];
        char name[NAME_BYTES], path[2 * NAME_BYTES];
        struct data_header header;
        int r;

        name_data(name, rank);
        (void) snprintf(path, sizeof path, "%s/%s", place->name, name);
        int fd = io->openat(io->context, place->run_fd, path, O_RDONLY | O_NONBLOCK, 0);
        if (fd < 0) {
                r = error_set_errno(reterr, errno, "open", path);
                return checkpoint_missing(io, place->run_fd, place->name, r, reterr);
        }
        TRY_GOTO(io_read_exact(io, fd, block, sizeof block, 0, path, reterr), fail);
        TRY_GOTO(data_header_read(block, path, &header, reterr), fail);
        if (header.rank != rank || header.generation != place->generation) {
                r = error_set(reterr, CAIRN_ERR_CORRUPT, "check data file", path,
                              "its header names rank %" PRIu32 " of restart %" PRIu64, header.rank,
                              header.generation);
                goto fail;
        }
        *ret_fd = fd;
        return 0;
fail:
        close_fd(io, fd);
        return r;
}

int restore_open_files(struct store *store, const struct checkpoint_place *place, uint32_t first,
                       uint32_t count, int *ret_fds, struct cairn_error *reterr) {
        uint32_t opened = 0;
        int r = 0;

        if (first > place->world || count > place->world - first)
                r = error_set(reterr, CAIRN_ERR_API, "open data files", place->name,
                              "it has %" PRIu32 " ranks", place->world);
        int fault = fault_point(FAULT_RESTORE_OPEN);
        if (r == 0 && fault)
                r = error_set_errno(reterr, fault, "open data files", place->name);
        for (; r == 0 && opened < count; opened += r == 0)
                r = open_data(store, place, first + opened, &ret_fds[opened], reterr);
        while (r < 0 && opened > 0) {
                close_fd(store->io, ret_fds[--opened]);
                ret_fds[opened] = -1;
        }
        return r;
}

int restore_open(struct store *store, const char *run, const char *checkpoint, int *ret_index_memfd,
                 int *ret_data_fds, uint32_t fds_max, uint32_t *ret_world,
                 struct cairn_error *reterr) {
        _cleanup_close_ int memfd = -1;
        struct checkpoint_place place;
        struct scan_node here;

        TRY(checkpoint_place_open(store, run, checkpoint, &place, reterr));
        int r = restore_open_index(store, &place, &memfd, &here, reterr);
        if (r == 0)
                r = restore_open_files(store, &place, 0,
                                       place.world < fds_max ? place.world : fds_max, ret_data_fds,
                                       reterr);
        *ret_world = place.world;
        checkpoint_place_done(store, &place);
        TRY(r);
        *ret_index_memfd = TAKE_FD(memfd);
        return 0;
}
