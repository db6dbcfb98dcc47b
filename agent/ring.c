/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/ring.h"

#include "base/assert.h"
#include "base/cleanup.h"
#include "base/fault.h"
#include "base/queue.h"
#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/stat.h>

#define RING_REGISTER_BYTES_MAX (1 * GiB)
#define RING_BUFFERS_MAX 16384
#define BUFFERED                                                                                 \
        "buffered transfers instead, which take processor time; a store on another file system " \
        "goes past the page cache"
/* User data of the queue's poll, of a sync and of a reservation; each of those two counts as one
 * byte that has to settle. */
enum { RING_WORKERS = 4, QUEUE_EVENT = RING_DEPTH, SYNC_EVENT, RESERVE_EVENT, CALL_WEIGHT = 1 };

/* What the main thread tells the I/O thread. It waits for none of it: what belongs to a job is
 * counted, the rest happens in order. */
enum message_kind {
        MESSAGE_TRANSFER,
        MESSAGE_SYNC,
        MESSAGE_RESERVE,
        MESSAGE_ATTACH, /* memory, bytes; file: register it */
        MESSAGE_BEGIN,  /* file: the job's number */
        MESSAGE_END,
        MESSAGE_CLOSE, /* file: a descriptor */
        MESSAGE_STOP
};
struct message {
        enum message_kind kind;
        uint32_t file;
        uint64_t file_offset, region_offset, bytes;
        uint64_t position;     /* bytes that were pushed before it in this job */
        unsigned char *memory; /* NULL: region_offset says where in the region */
};

struct ring_file {
        int fd;
        _Atomic uint32_t alignment; /* 1: buffered */
};

/* A piece in flight. */
struct slot {
        struct message m;
        bool direct;
};

struct ring {
        struct ring_options options;
        enum ring_backend backend;
        struct queue queue;
        pthread_t threads[RING_WORKERS];
        unsigned thread_count;
        /* the region and the files; changed only while no job is under way */
        unsigned char *base;
        uint64_t region_bytes;
        enum ring_direction direction;
        struct ring_file files[RING_FILES_MAX];
        uint32_t file_count;
        bool job_open, stuck;
        uint32_t job; /* its number */
        /* the job: done when settled == pushed; settled counts dropped bytes, too */
        uint64_t pushed;
        _Atomic uint64_t settled, bytes_done;
        _Atomic uint64_t whole_to;  /* everything before this position has settled */
        _Atomic uint32_t job_begun; /* that whole_to is of; by the I/O thread */
        _Atomic bool failed;
        int done_fd;
        pthread_mutex_t mutex; /* error, error_file, warning */
        struct cairn_error error;
        uint32_t error_file;
        char warning[1024];
        /* whether io_uring could be set up */
        pthread_cond_t started;
        bool start_known;
        int start_status;
        /* io_uring; touched by the I/O thread alone */
        struct io_uring uring;
        struct slot slots[RING_DEPTH];
        uint32_t free_slots[RING_DEPTH], free_count;
        struct message current; /* being cut into pieces; bytes 0: none */
        unsigned in_flight;
        bool poll_armed, files_registered, buffers_registered, stop_seen;
        uint32_t call_file; /* of the sync or reservation in flight */
        bool busy[RING_DEPTH];
};

/* ---- what both back ends share ---- */

static void add_warning(struct ring *r, const char *what, int error_number, const char *effect) {
        (void) pthread_mutex_lock(&r->mutex);
        size_t used = strlen(r->warning);
        char line[384];
        (void) snprintf(line, sizeof line, "%s%s (%s): %s", used ? "; " : "", what,
                        strerror(error_number), effect);
        if (!strstr(r->warning, what))
                (void) snprintf(r->warning + used, sizeof r->warning - used, "%s", line);
        (void) pthread_mutex_unlock(&r->mutex);
}

static void wake_main(struct ring *r) {
        uint64_t one = 1;
        (void) !write(r->done_fd, &one, sizeof one);
}

static void settle(struct ring *r, uint64_t bytes, bool good) {
        if (good)
                atomic_fetch_add(&r->bytes_done, bytes);
        atomic_fetch_add(&r->settled, bytes);
        wake_main(r);
}

/* The first error tells why. */
static void doom_job(struct ring *r, const struct cairn_error *error, uint32_t file) {
        (void) pthread_mutex_lock(&r->mutex);
        if (!atomic_load(&r->failed)) {
                r->error = *error;
                r->error_file = file;
        }
        (void) pthread_mutex_unlock(&r->mutex);
        atomic_store(&r->failed, true);
}

static void fail_job(struct ring *r, const char *operation, int status, int error_number,
                     uint32_t file, uint64_t offset) {
        struct cairn_error error = CAIRN_ERROR_INIT;
        if (!operation)
                operation = r->direction == RING_WRITE ? "write data" : "read data";
        if (error_number)
                (void) error_set_errno_at(&error, error_number, operation, "data file", offset);
        else
                (void) error_set(&error, status, operation, "data file",
                                 "the file ends at byte %llu: it is shorter than the checkpoint "
                                 "says",
                                 (unsigned long long) offset);
        error.offset = offset;
        doom_job(r, &error, file);
}

static void stop_direct(struct ring *r, uint32_t file, int error_number) {
        struct ring_file *f = &r->files[file];
        if (atomic_exchange(&f->alignment, 1) == 1)
                return;
        int flags = fcntl(f->fd, F_GETFL);
        if (flags >= 0)
                (void) fcntl(f->fd, F_SETFL, flags & ~O_DIRECT);
        add_warning(r, "O_DIRECT refused", error_number, BUFFERED);
}

static unsigned char *memory_of(const struct ring *r, const struct message *m) {
        return m->memory ? m->memory : r->base + m->region_offset;
}

static bool is_aligned(const struct ring *r, const struct message *m, uint32_t alignment) {
        return (m->file_offset | m->bytes | (uintptr_t) memory_of(r, m)) % alignment == 0;
}

/* A piece that does not fit O_DIRECT makes its file buffered from here on. Returns whether it goes
 * direct. */
static bool piece_direct(struct ring *r, const struct message *m) {
        uint32_t alignment = atomic_load(&r->files[m->file].alignment);
        if (alignment == 1)
                return false;
        if (is_aligned(r, m, alignment))
                return true;
        stop_direct(r, m->file, EINVAL);
        return false;
}

/* Start writing back at once, so that the final sync has little left to do. Advice: its failure is
 * no failure. */
static void write_behind(const struct ring *r, const struct message *m, bool direct) {
        if (r->direction == RING_WRITE && !direct)
                (void) sync_file_range(r->files[m->file].fd, (off64_t) m->file_offset,
                                       (off64_t) m->bytes, SYNC_FILE_RANGE_WRITE);
}

static void skip(struct message *m, uint64_t bytes) {
        m->file_offset += bytes;
        if (m->memory)
                m->memory += bytes;
        else
                m->region_offset += bytes;
        m->bytes -= bytes;
}

/* The outcome of one transfer call: 0 the piece is finished, 1 the rest is in *m to be done again,
 * -1 the job failed. */
static int after_transfer(struct ring *r, struct message *m, bool direct, ssize_t result) {
        if (result == -EINTR || result == -EAGAIN)
                return 1;
        if (result == -EINVAL && direct) {
                stop_direct(r, m->file, EINVAL);
                return 1;
        }
        if (result < 0) {
                fail_job(r, NULL, 0, (int) -result, m->file, m->file_offset);
                return -1;
        }
        if (result == 0) {
                bool writing = r->direction == RING_WRITE;
                fail_job(r, NULL, CAIRN_ERR_CORRUPT, writing ? EIO : 0, m->file, m->file_offset);
                return -1;
        }
        uint64_t moved = (uint64_t) result;
        if (moved >= m->bytes) {
                write_behind(r, m, direct);
                settle(r, m->bytes, true);
                return 0;
        }
        /* a short transfer: go on behind what is certainly there and still aligned */
        if (direct)
                moved -= moved % atomic_load(&r->files[m->file].alignment);
        if (moved == 0) {
                stop_direct(r, m->file, EINVAL);
                return 1;
        }
        settle(r, moved, true);
        skip(m, moved);
        return 1;
}

/* A sync that failed may have lost what was written before it: the job is doomed, nothing is
 * retried. */
static void after_sync(struct ring *r, uint32_t file, int result) {
        if (result < 0)
                fail_job(r, "sync data", 0, -result, file, UINT64_MAX);
        settle(r, CALL_WEIGHT, false);
}

/* Where space cannot be reserved the writes will tell. */
static void after_reserve(struct ring *r, uint32_t file, int result) {
        if (result < 0 && result != -EOPNOTSUPP && result != -ENOSYS && result != -EINTR &&
            result != -EINVAL)
                fail_job(r, "reserve space", 0, -result, file, UINT64_MAX);
        settle(r, CALL_WEIGHT, false);
}

static int piece_fault(struct ring *r, const struct message *m) {
        int error_number =
                fault_point(r->direction == RING_WRITE ? FAULT_DATA_WRITE : FAULT_RESTORE_READ);
        if (error_number)
                fail_job(r, NULL, 0, error_number, m->file, m->file_offset);
        return error_number;
}

/* The next piece of *whole. */
static struct message cut_piece(struct message *whole) {
        struct message piece = *whole;
        if (piece.bytes > RING_REQUEST_BYTES)
                piece.bytes = RING_REQUEST_BYTES;
        whole->position += piece.bytes;
        skip(whole, piece.bytes);
        return piece;
}

/* ---- threads ---- */

static void transfer_all(struct ring *r, struct message *whole) {
        while (whole->bytes > 0) {
                struct message piece = cut_piece(whole);
                int again = 1;
                while (again == 1) {
                        if (atomic_load(&r->failed) || piece_fault(r, &piece)) {
                                again = -1;
                                break;
                        }
                        bool direct = piece_direct(r, &piece);
                        void *memory = memory_of(r, &piece);
                        int fd = r->files[piece.file].fd;
                        ssize_t n =
                                r->direction == RING_WRITE
                                        ? pwrite(fd, memory, piece.bytes, (off_t) piece.file_offset)
                                        : pread(fd, memory, piece.bytes, (off_t) piece.file_offset);
                        again = after_transfer(r, &piece, direct, n < 0 ? -errno : n);
                }
                if (again < 0)
                        settle(r, piece.bytes, false);
        }
}

static int outcome(int result) {
        return result < 0 ? -errno : 0;
}

static void *worker_main(void *argument) {
        struct ring *r = argument;
        struct message m;
        for (;;) {
                if (queue_pop(&r->queue, &m, UINT64_MAX) < 0)
                        continue;
                switch (m.kind) {
                case MESSAGE_TRANSFER:
                        transfer_all(r, &m);
                        break;
                case MESSAGE_SYNC:
                        after_sync(r, m.file, outcome(fdatasync(r->files[m.file].fd)));
                        break;
                case MESSAGE_RESERVE:
                        after_reserve(
                                r, m.file,
                                outcome(fallocate(r->files[m.file].fd, 0, 0, (off_t) m.bytes)));
                        break;
                case MESSAGE_CLOSE:
                        (void) close((int) m.file);
                        break;
                case MESSAGE_STOP:
                        return NULL;
                case MESSAGE_ATTACH:
                case MESSAGE_BEGIN:
                case MESSAGE_END:
                        break; /* nothing is registered */
                }
        }
}

static int start_workers(struct ring *r, struct cairn_error *reterr) {
        r->backend = RING_THREADS;
        for (; r->thread_count < RING_WORKERS; r->thread_count++) {
                int error_number =
                        pthread_create(&r->threads[r->thread_count], NULL, worker_main, r);
                if (error_number)
                        return error_set_errno(reterr, error_number, "start I/O threads", "");
        }
        return 0;
}

/* ---- io_uring ---- */

static int uring_setup(struct ring *r) {
        static const unsigned flags[] = {IORING_SETUP_SUBMIT_ALL | IORING_SETUP_SINGLE_ISSUER |
                                                 (1U << 13), /* DEFER_TASKRUN, Linux 6.1 */
                                         IORING_SETUP_SUBMIT_ALL, 0};
        int status = -ENOSYS;
        for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++) {
                struct io_uring_params params = {.flags = flags[i]};
                status = io_uring_queue_init_params(2 * RING_DEPTH, &r->uring, &params);
                if (status != -EINVAL)
                        break; /* only an unknown flag is worth another try */
        }
        return status;
}

/* Requests are taken in order, so nothing before the first piece that is in flight or waits to be
 * cut is missing. */
static void uring_note_whole(struct ring *r) {
        uint64_t position = r->current.position;

        for (uint32_t i = 0; i < RING_DEPTH; i++)
                if (r->busy[i] && r->slots[i].m.position < position)
                        position = r->slots[i].m.position;
        atomic_store(&r->whole_to, position);
}

static void warn_unregistered(struct ring *r, uint64_t bytes, int error_number) {
        struct rlimit limit = {0};
        char effect[200];
        (void) getrlimit(RLIMIT_MEMLOCK, &limit);
        (void) snprintf(effect, sizeof effect,
                        "plain buffers instead; %llu KiB of locked memory are needed and the limit "
                        "is %llu KiB: raise it (ulimit -l, LimitMEMLOCK=)",
                        (unsigned long long) (bytes / KiB),
                        (unsigned long long) (limit.rlim_cur / KiB));
        add_warning(r, "registering buffers refused", error_number, effect);
}

static void uring_attach(struct ring *r, const struct message *m) {
        if (r->buffers_registered)
                (void) io_uring_unregister_buffers(&r->uring);
        r->buffers_registered = false;
        uint64_t count = (m->bytes + RING_REGISTER_BYTES_MAX - 1) / RING_REGISTER_BYTES_MAX;
        if (r->options.without_registration || !m->file || count == 0 || count > RING_BUFFERS_MAX)
                return;
        struct iovec *buffers = calloc(count, sizeof *buffers);
        if (!buffers)
                return;
        for (uint64_t i = 0; i < count; i++) {
                uint64_t offset = i * RING_REGISTER_BYTES_MAX, left = m->bytes - offset;
                buffers[i] = (struct iovec){
                        .iov_base = m->memory + offset,
                        .iov_len = left < RING_REGISTER_BYTES_MAX ? left : RING_REGISTER_BYTES_MAX};
        }
        int status = io_uring_register_buffers(&r->uring, buffers, (unsigned) count);
        free(buffers);
        r->buffers_registered = status == 0;
        /* EFAULT: it was unmapped meanwhile, and another region follows. */
        if (status < 0 && status != -EFAULT)
                warn_unregistered(r, m->bytes, -status);
}

static void uring_begin(struct ring *r, const struct message *m) {
        int fds[RING_FILES_MAX];
        for (uint32_t i = 0; i < r->file_count; i++)
                fds[i] = r->files[i].fd;
        int status = io_uring_register_files(&r->uring, fds, r->file_count);
        r->files_registered = status == 0;
        if (status < 0)
                add_warning(r, "registering files refused", -status, "plain descriptors instead");
        r->current = (struct message){0};
        uring_note_whole(r);
        atomic_store(&r->job_begun, m->file);
}

/* A file that is registered stays open: one that was deleted would keep its space. */
static void uring_end(struct ring *r) {
        if (r->files_registered)
                (void) io_uring_unregister_files(&r->uring);
        r->files_registered = false;
}

static int uring_file(const struct ring *r, uint32_t file) {
        return r->files_registered ? (int) file : r->files[file].fd;
}

static void uring_submit(struct ring *r, struct io_uring_sqe *sqe, uint64_t data) {
        if (r->files_registered)
                io_uring_sqe_set_flags(sqe, IOSQE_FIXED_FILE);
        io_uring_sqe_set_data64(sqe, data);
        r->in_flight++;
}

static void uring_prepare(struct ring *r, uint32_t index) {
        struct slot *slot = &r->slots[index];
        struct message *m = &slot->m;
        r->busy[index] = true;
        struct io_uring_sqe *sqe = io_uring_get_sqe(&r->uring);
        CAIRN_ASSERT(sqe); /* twice as many entries as slots */
        slot->direct = piece_direct(r, m);
        void *memory = memory_of(r, m);
        int fd = uring_file(r, m->file);
        uint64_t buffer = m->region_offset / RING_REGISTER_BYTES_MAX;
        bool fixed = r->buffers_registered && !m->memory &&
                     (m->region_offset + m->bytes - 1) / RING_REGISTER_BYTES_MAX == buffer;
        unsigned bytes = (unsigned) m->bytes;
        if (r->direction == RING_WRITE && fixed)
                io_uring_prep_write_fixed(sqe, fd, memory, bytes, m->file_offset, (int) buffer);
        else if (r->direction == RING_WRITE)
                io_uring_prep_write(sqe, fd, memory, bytes, m->file_offset);
        else if (fixed)
                io_uring_prep_read_fixed(sqe, fd, memory, bytes, m->file_offset, (int) buffer);
        else
                io_uring_prep_read(sqe, fd, memory, bytes, m->file_offset);
        uring_submit(r, sqe, index);
}

/* One of each at a time: user data, and which file, stand for it. */
static void uring_call(struct ring *r, const struct message *m) {
        struct io_uring_sqe *sqe = io_uring_get_sqe(&r->uring);
        CAIRN_ASSERT(sqe);
        r->call_file = m->file;
        if (m->kind == MESSAGE_SYNC)
                io_uring_prep_fsync(sqe, uring_file(r, m->file), IORING_FSYNC_DATASYNC);
        else
                io_uring_prep_fallocate(sqe, uring_file(r, m->file), 0, 0, m->bytes);
        uring_submit(r, sqe, m->kind == MESSAGE_SYNC ? SYNC_EVENT : RESERVE_EVENT);
}

static void uring_command(struct ring *r, const struct message *m) {
        switch (m->kind) {
        case MESSAGE_TRANSFER:
                r->current = *m;
                break;
        case MESSAGE_SYNC:
        case MESSAGE_RESERVE:
                uring_call(r, m);
                break;
        case MESSAGE_ATTACH:
                uring_attach(r, m);
                break;
        case MESSAGE_BEGIN:
                uring_begin(r, m);
                break;
        case MESSAGE_END:
                uring_end(r);
                break;
        case MESSAGE_CLOSE:
                (void) close((int) m->file);
                break;
        case MESSAGE_STOP:
                r->stop_seen = true;
                break;
        }
}

/* Move requests from the queue into free slots. */
static void uring_fill(struct ring *r) {
        while (r->free_count > 0 && !r->stop_seen) {
                struct message m;
                if (r->current.bytes == 0) {
                        if (queue_try_pop(&r->queue, &m) < 0)
                                return;
                        uring_command(r, &m);
                        continue;
                }
                struct message piece = cut_piece(&r->current);
                if (atomic_load(&r->failed) || piece_fault(r, &piece)) {
                        settle(r, piece.bytes, false);
                        continue;
                }
                uint32_t index = r->free_slots[--r->free_count];
                r->slots[index].m = piece;
                uring_prepare(r, index);
        }
}

static void uring_completion(struct ring *r, uint64_t index, int result) {
        if (index == QUEUE_EVENT) {
                r->poll_armed = false;
                return;
        }
        if (index == SYNC_EVENT || index == RESERVE_EVENT) {
                r->in_flight--;
                (index == SYNC_EVENT ? after_sync : after_reserve)(r, r->call_file, result);
                return;
        }
        struct slot *slot = &r->slots[index];
        r->in_flight--;
        int again = after_transfer(r, &slot->m, slot->direct, result);
        if (again == 1 && !atomic_load(&r->failed)) {
                uring_prepare(r, (uint32_t) index);
                return;
        }
        if (again != 0)
                settle(r, slot->m.bytes, false);
        r->busy[index] = false;
        r->free_slots[r->free_count++] = (uint32_t) index;
}

static void uring_arm_queue(struct ring *r) {
        if (r->poll_armed || r->free_count == 0)
                return;
        struct io_uring_sqe *sqe = io_uring_get_sqe(&r->uring);
        CAIRN_ASSERT(sqe);
        io_uring_prep_poll_add(sqe, queue_event_fd(&r->queue), POLLIN);
        io_uring_sqe_set_data64(sqe, QUEUE_EVENT);
        r->poll_armed = true;
}

static void uring_loop(struct ring *r) {
        for (uint32_t i = 0; i < RING_DEPTH; i++)
                r->free_slots[r->free_count++] = i;
        while (!r->stop_seen || r->in_flight > 0) {
                uring_fill(r);
                if (!r->stop_seen)
                        uring_arm_queue(r);
                else if (r->in_flight == 0)
                        break;
                int status = io_uring_submit_and_wait(&r->uring, 1);
                if (status < 0 && status != -EINTR && status != -EAGAIN && status != -EBUSY)
                        fail_job(r, NULL, 0, -status, 0, 0);
                struct io_uring_cqe *cqe;
                while (io_uring_peek_cqe(&r->uring, &cqe) == 0) {
                        uint64_t index = io_uring_cqe_get_data64(cqe);
                        int result = cqe->res;
                        io_uring_cqe_seen(&r->uring, cqe);
                        uring_completion(r, index, result);
                }
                uring_note_whole(r);
                wake_main(r);
        }
}

/* The ring belongs to the thread that made it (SINGLE_ISSUER), so it is made here. */
static void *uring_main(void *argument) {
        struct ring *r = argument;
        int status = uring_setup(r);
        (void) pthread_mutex_lock(&r->mutex);
        r->start_status = status;
        r->start_known = true;
        (void) pthread_cond_signal(&r->started);
        (void) pthread_mutex_unlock(&r->mutex);
        if (status < 0)
                return NULL;
        uring_loop(r);
        io_uring_queue_exit(&r->uring);
        return NULL;
}

static int start_uring(struct ring *r) {
        int error_number = pthread_create(&r->threads[0], NULL, uring_main, r);
        if (error_number)
                return -error_number;
        (void) pthread_mutex_lock(&r->mutex);
        while (!r->start_known) /* set-up touches no storage */
                (void) pthread_cond_wait(&r->started, &r->mutex);
        (void) pthread_mutex_unlock(&r->mutex);
        if (r->start_status < 0) {
                (void) pthread_join(r->threads[0], NULL);
                return r->start_status;
        }
        r->thread_count = 1;
        r->backend = RING_URING;
        return 0;
}

/* ---- the verbs ---- */

static int init_sync(struct ring *r, struct cairn_error *reterr) {
        (void) pthread_mutex_init(&r->mutex, NULL);
        (void) pthread_cond_init(&r->started, NULL);
        r->done_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        if (r->done_fd < 0)
                return error_set_errno(reterr, errno, "start I/O thread", "eventfd");
        return 0;
}

int ring_new(const struct ring_options *options, struct ring **ret, struct cairn_error *reterr) {
        struct ring *r = calloc(1, sizeof *r);
        if (!r)
                return error_set_errno(reterr, ENOMEM, "start I/O thread", "");
        r->options = *options;
        r->done_fd = r->queue.event_fd = -1;
        int status = queue_init(&r->queue, sizeof(struct message), RING_QUEUE_MAX, reterr);
        if (status < 0) {
                free(r);
                return status;
        }
        status = init_sync(r, reterr);
        int refused = status == 0 && options->backend != RING_THREADS ? start_uring(r) : 0;
        if (refused < 0 && options->backend == RING_URING)
                status = error_set_errno(reterr, -refused, "set up io_uring", "");
        else if (refused < 0)
                add_warning(r, "io_uring refused", -refused,
                            refused == -ENOMEM
                                    ? "ordinary reads and writes by threads instead; raise the "
                                      "locked-memory limit (ulimit -l)"
                                    : "ordinary reads and writes by threads instead; allow "
                                      "io_uring (the container's seccomp profile, sysctl "
                                      "kernel.io_uring_disabled)");
        if (status == 0 && r->backend != RING_URING)
                status = start_workers(r, reterr);
        if (status < 0) {
                ring_free(r);
                return status;
        }
        *ret = r;
        return 0;
}

void ring_free(struct ring *r) {
        if (!r || r->stuck)
                return;                 /* a transfer that never ends still uses it */
        atomic_store(&r->failed, true); /* what is queued is dropped */
        const struct message stop = {.kind = MESSAGE_STOP};
        for (unsigned i = 0; i < r->thread_count; i++)
                while (queue_push(&r->queue, &stop) < 0)
                        clock_system.sleep_ns(clock_system.context, NSEC_PER_MSEC);
        for (unsigned i = 0; i < r->thread_count; i++)
                (void) pthread_join(r->threads[i], NULL);
        (void) pthread_mutex_destroy(&r->mutex);
        (void) pthread_cond_destroy(&r->started);
        queue_done(&r->queue);
        cleanup_close(&r->done_fd);
        free(r);
}

/* Few of these are ever under way: a queue that is full of transfers takes none. */
static int tell(struct ring *r, const struct message *m, struct cairn_error *reterr) {
        if (!r->stuck && queue_push(&r->queue, m) == 0)
                return 0;
        r->stuck = true;
        return error_set(reterr, CAIRN_ERR_TIMEOUT, "reach I/O thread", "",
                         "storage does not answer");
}

static int attach(struct ring *r, void *base, uint64_t bytes, bool register_wanted,
                  struct cairn_error *reterr) {
        if (r->job_open)
                return error_set(reterr, CAIRN_ERR_API, "attach staging", "", "a job is under way");
        const struct message m = {
                .kind = MESSAGE_ATTACH, .file = register_wanted, .memory = base, .bytes = bytes};
        r->base = base;
        r->region_bytes = bytes;
        return tell(r, &m, reterr);
}

int ring_attach(struct ring *r, void *base, uint64_t bytes, struct cairn_error *reterr) {
        return attach(r, base, bytes, true, reterr);
}

int ring_attach_plain(struct ring *r, void *base, uint64_t bytes, struct cairn_error *reterr) {
        return attach(r, base, bytes, false, reterr);
}

/* What O_DIRECT needs of this file, having switched it on; 1 where it stays off. */
static uint32_t try_direct(struct ring *r, int fd) {
        struct statx st;
        uint32_t alignment = DATA_BLOCK_BYTES;
        if (r->options.without_direct)
                return 1;
        /* Of what is known here: a server that hangs must not be asked by this thread. */
        if (statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_DIOALIGN, &st) == 0 &&
            (st.stx_mask & STATX_DIOALIGN)) {
                if (st.stx_dio_offset_align == 0) {
                        add_warning(r, "O_DIRECT refused", EOPNOTSUPP, BUFFERED);
                        return 1;
                }
                alignment = st.stx_dio_offset_align > st.stx_dio_mem_align ? st.stx_dio_offset_align
                                                                           : st.stx_dio_mem_align;
        }
        int flags = fcntl(fd, F_GETFL);
        if (flags < 0 || fcntl(fd, F_SETFL, flags | O_DIRECT) < 0) {
                add_warning(r, "O_DIRECT refused", errno, BUFFERED);
                return 1;
        }
        return alignment;
}

int ring_begin(struct ring *r, enum ring_direction direction, const int *fds, uint32_t count,
               uint32_t direct_count, struct cairn_error *reterr) {
        if (r->job_open || count == 0 || count > RING_FILES_MAX)
                return error_set(reterr, CAIRN_ERR_API, "begin transfer", "",
                                 "a job is under way, or too many files");
        r->direction = direction;
        r->file_count = count;
        for (uint32_t i = 0; i < count; i++) {
                r->files[i].fd = fds[i];
                atomic_store(&r->files[i].alignment, i < direct_count ? try_direct(r, fds[i]) : 1);
        }
        r->pushed = 0;
        atomic_store(&r->settled, 0);
        atomic_store(&r->bytes_done, 0);
        atomic_store(&r->failed, false);
        const struct message m = {.kind = MESSAGE_BEGIN, .file = ++r->job};
        TRY(tell(r, &m, reterr));
        r->job_open = true;
        return 0;
}

static int push(struct ring *r, const struct message *m, uint64_t weight) {
        TRY(queue_push(&r->queue, m));
        r->pushed += weight;
        return 0;
}

int ring_push(struct ring *r, uint32_t file, uint64_t file_offset, uint64_t region_offset,
              uint64_t bytes) {
        if (!r->job_open || file >= r->file_count || bytes > r->region_bytes ||
            region_offset > r->region_bytes - bytes)
                return CAIRN_ERR_API;
        if (bytes == 0)
                return 0;
        const struct message m = {.kind = MESSAGE_TRANSFER,
                                  .file = file,
                                  .file_offset = file_offset,
                                  .region_offset = region_offset,
                                  .bytes = bytes,
                                  .position = r->pushed};
        return push(r, &m, bytes);
}

int ring_push_memory(struct ring *r, uint32_t file, uint64_t file_offset, const void *memory,
                     uint64_t bytes) {
        if (!r->job_open || file >= r->file_count || r->direction != RING_WRITE)
                return CAIRN_ERR_API;
        if (bytes == 0)
                return 0;
        const struct message m = {.kind = MESSAGE_TRANSFER,
                                  .file = file,
                                  .file_offset = file_offset,
                                  .memory = (void *) (uintptr_t) memory, /* only read */
                                  .bytes = bytes,
                                  .position = r->pushed};
        return push(r, &m, bytes);
}

bool ring_idle(const struct ring *r) {
        return atomic_load(&r->settled) >= r->pushed;
}

static int call(struct ring *r, enum message_kind kind, uint32_t file, uint64_t bytes) {
        if (!r->job_open || file >= r->file_count || !ring_idle(r))
                return CAIRN_ERR_API;
        const struct message m = {.kind = kind, .file = file, .bytes = bytes};
        return push(r, &m, CALL_WEIGHT);
}

int ring_reserve(struct ring *r, uint32_t file, uint64_t bytes) {
        return call(r, MESSAGE_RESERVE, file, bytes);
}

int ring_sync(struct ring *r, uint32_t file) {
        return call(r, MESSAGE_SYNC, file, 0);
}

void ring_drop(struct ring *r) {
        struct cairn_error error = CAIRN_ERROR_INIT;
        (void) error_set(&error, CAIRN_ERR_VOID, "write data", "data file", "it is not wanted");
        doom_job(r, &error, 0);
}

int ring_end(struct ring *r, uint64_t deadline_ns, struct cairn_error *reterr) {
        if (!r->job_open)
                return error_set(reterr, CAIRN_ERR_API, "end transfer", "", "no job is under way");
        while (!ring_idle(r)) {
                struct pollfd p = {.fd = r->done_fd, .events = POLLIN};
                uint64_t count;
                if (clock_now(&clock_system) >= deadline_ns) {
                        r->stuck = true;
                        return error_set(reterr, CAIRN_ERR_TIMEOUT, "wait for storage", "",
                                         "%llu of %llu bytes were transferred in time",
                                         (unsigned long long) atomic_load(&r->bytes_done),
                                         (unsigned long long) r->pushed);
                }
                (void) poll(&p, 1, clock_poll_timeout(&clock_system, deadline_ns));
                (void) !read(r->done_fd, &count, sizeof count);
        }
        const struct message m = {.kind = MESSAGE_END};
        TRY(tell(r, &m, reterr));
        r->job_open = false;
        if (!atomic_load(&r->failed))
                return 0;
        (void) pthread_mutex_lock(&r->mutex);
        struct cairn_error e = r->error;
        (void) pthread_mutex_unlock(&r->mutex);
        if (reterr)
                *reterr = e;
        return e.status;
}

void ring_close(struct ring *r, int fd) {
        const struct message m = {.kind = MESSAGE_CLOSE, .file = (uint32_t) fd};
        if (fd >= 0)
                (void) tell(r, &m, NULL); /* stuck: it is closed with the process */
}

bool ring_stuck(const struct ring *r) {
        return r->stuck;
}

uint32_t ring_error_file(const struct ring *r) {
        return r->error_file; /* the job has ended: nobody writes it */
}

int ring_event_fd(const struct ring *r) {
        return r->done_fd;
}

bool ring_failed(const struct ring *r) {
        return atomic_load(&r->failed);
}

uint64_t ring_whole_to(const struct ring *r) {
        if (ring_idle(r))
                return r->pushed;
        return atomic_load(&r->job_begun) == r->job ? atomic_load(&r->whole_to) : 0;
}

uint64_t ring_bytes_done(const struct ring *r) {
        return atomic_load(&r->bytes_done);
}

uint32_t ring_alignment(const struct ring *r, uint32_t file) {
        return file < r->file_count ? atomic_load(&r->files[file].alignment) : 1;
}

const char *ring_backend_name(const struct ring *r) {
        return r->backend == RING_URING ? "io_uring" : "threads";
}

const char *ring_warning(const struct ring *r) {
        return r->warning[0] ? r->warning : NULL;
}
