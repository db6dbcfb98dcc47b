/* SPDX-License-Identifier: Apache-2.0
 *
 * ring.h - the saver's I/O thread: transfers between one memory region (staging) and files, through
 * io_uring, or through a pool of threads with pread/pwrite where a ring is refused. The only file
 * that touches io_uring.
 *
 *     ring_new(&options, &ring, reterr);          once; starts the thread
 *     ring_attach(ring, base, bytes, reterr);     the region; registered where that is allowed
 *     ring_begin(ring, RING_WRITE, fds, count, direct_count, reterr);
 *                                                 files of one job; O_DIRECT is probed and set
 *     ring_reserve(ring, file, bytes)             space, once ring_idle
 *     ring_push(ring, file, file_offset, region_offset, bytes)
 *     ring_push_memory(ring, file, file_offset, memory, bytes)
 *                                                 many times; BUSY: the queue is full, again later
 *     ring_sync(ring, file)                       fdatasync, once ring_idle
 *     ring_end(ring, deadline_ns, reterr)         waits for all; the first error dooms the job
 *     ring_close(ring, fd)                        a file on storage: closing it may take for ever
 *     ring_free(ring);
 *
 * All verbs are called by one thread (the saver's main thread), which computes; the I/O thread only
 * transfers. Requests may be of any size: they are cut into RING_REQUEST_BYTES pieces, short
 * transfers are resumed. After an error the rest of the job is dropped, not tried again. No verb
 * but ring_new, ring_end and ring_free waits for the I/O thread, and ring_end not beyond its
 * deadline (0: not at all): whoever has other duties waits at ring_event_fd.
 *
 * Stuck: transfers that did not end by ring_end's deadline may still end at any time. Their files
 * and their memory must never be used again, and the ring takes nothing more (ring_stuck): the
 * process has to go.
 *
 * Fall-backs, each with one warning in ring_warning: no ring (EPERM in containers, ENOSYS, ENOMEM
 * ...) -> threads; no registered buffer (RLIMIT_MEMLOCK) -> plain buffers; no O_DIRECT, or a piece
 * that is not aligned for it -> buffered, with sync_file_range behind the writer. The bytes on disk
 * are the same.
 */
#ifndef CAIRN_AGENT_RING_H
#define CAIRN_AGENT_RING_H

#include "base/clock.h"
#include "base/limits.h"
#include "base/status.h"
#include <stdbool.h>

#define RING_REQUEST_BYTES (2 * MiB)
#define RING_DEPTH 24
#define RING_FILES_MAX 64
#define RING_QUEUE_MAX 256 /* requests of ring_push that wait for the thread */

enum ring_direction { RING_READ, RING_WRITE };
enum ring_backend { RING_AUTO, RING_URING, RING_THREADS };

struct ring_options {
        enum ring_backend
                backend; /* AUTO: io_uring, else threads; the others are for tests and benchmarks */
        bool without_direct, without_registration;
};

struct ring;
int ring_new(const struct ring_options *options, struct ring **ret, struct cairn_error *reterr);
void ring_free(
        struct ring *ring); /* NULL allowed; drops what is queued, waits for what is in flight */
int ring_attach(struct ring *ring, void *base, uint64_t bytes, struct cairn_error *reterr);
/* The same without registering, at once: registering makes pages that are not there yet, one by
 * one, for seconds per GiB. */
int ring_attach_plain(struct ring *ring, void *base, uint64_t bytes, struct cairn_error *reterr);
/* direct_count: for the first so many files O_DIRECT is wanted, and every push is aligned for it.
 * */
int ring_begin(struct ring *ring, enum ring_direction direction, const int *fds, uint32_t count,
               uint32_t direct_count, struct cairn_error *reterr);
int ring_push(struct ring *ring, uint32_t file, uint64_t file_offset, uint64_t region_offset,
              uint64_t bytes);
/* From anywhere; it stays the caller's and has to live until ring_end, and for ever where that says
 * that the ring is stuck. Only to write. */
int ring_push_memory(struct ring *ring, uint32_t file, uint64_t file_offset, const void *memory,
                     uint64_t bytes);
/* Everything that was pushed has ended, well or not. */
bool ring_idle(const struct ring *ring);
/* API unless ring_idle. Where the file system cannot reserve that is no failure. */
int ring_reserve(struct ring *ring, uint32_t file, uint64_t bytes);
int ring_sync(struct ring *ring, uint32_t file);
/* The job is not wanted any more: what storage has not in hand is dropped, as after an error.
 * ring_end says VOID then. */
void ring_drop(struct ring *ring);
/* The files are let go of by the I/O thread, soon after. */
int ring_end(struct ring *ring, uint64_t deadline_ns, struct cairn_error *reterr);
/* Of a job that failed: the file (its number in ring_begin) that the error is about. */
uint32_t ring_error_file(const struct ring *ring);
/* Takes it. What was told before comes first. */
void ring_close(struct ring *ring, int fd);
bool ring_stuck(const struct ring *ring);
/* Becomes readable whenever something ended: look at ring_idle, or push again after BUSY. */
int ring_event_fd(const struct ring *ring);
bool ring_failed(
        const struct ring *ring); /* the job is doomed already: stop pushing, call ring_end */
/* All bytes before this count of pushed bytes have ended, well or not (look at ring_failed): what a
 * reader may work on while the rest arrives. The threads only know when everything has. */
uint64_t ring_whole_to(const struct ring *ring);
uint64_t ring_bytes_done(const struct ring *ring);
/* Alignment that file offset, region offset and length need for O_DIRECT; 1 where the file is read
 * buffered. */
uint32_t ring_alignment(const struct ring *ring, uint32_t file);
const char *ring_backend_name(const struct ring *ring);
/* What had to be given up since ring_new, for one log line each; NULL if nothing, "" never. */
const char *ring_warning(const struct ring *ring);

#endif
