/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/device_contract.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "device/chunks.h"
#include "tests/test.h"

#include <sys/mman.h>
#include <sys/socket.h>

/* Little: a life is lived hundreds of times. */
#define LIFE_BYTES (256 * KiB)
#define LIFE_CHUNK_BYTES (64 * KiB)

uint64_t contract_deadline(void) {
        return clock_now(&clock_system) + 60 * NSEC_PER_SEC;
}

unsigned char *contract_host_new(struct device *d, uint64_t bytes) {
        unsigned char *p =
                mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        assert_ptr_not_equal(p, MAP_FAILED);
        assert_int_equal(d->ops->host_register(d, p, bytes, NULL), 0);
        return p;
}

void contract_host_free(struct device *d, unsigned char *p, uint64_t bytes) {
        assert_int_equal(d->ops->host_unregister(d, p, NULL), 0);
        assert_int_equal(munmap(p, bytes), 0);
}

static void copy_and_wait(struct device *d, void *target, const void *source, uint64_t bytes) {
        assert_int_equal(d->ops->copy_async(d, NULL, target, source, bytes, NULL), 0);
        assert_int_equal(d->ops->synchronize(d, contract_deadline(), NULL), 0);
}

static bool is_all(const unsigned char *p, uint64_t bytes, unsigned char value) {
        for (uint64_t i = 0; i < bytes; i++)
                if (p[i] != value)
                        return false;
        return true;
}

/* ---- between processes ---- */

struct exporter {
        const struct device_ops *ops;
        int socket;
};

static void export_and_die(void *argument) {
        struct exporter *x = argument;
        struct device *d;
        struct device_memory m;
        int fd = -1;
        char control[CMSG_SPACE(sizeof fd)] = {0};
        if (x->ops->open(0, &d, NULL) < 0 || x->ops->allocate(d, LIFE_BYTES, &m, NULL) < 0 ||
            x->ops->export_fd(d, &m, &fd, NULL) < 0)
                return;
        unsigned char *host = contract_host_new(d, LIFE_BYTES);
        memset(host, 42, LIFE_BYTES);
        copy_and_wait(d, m.address, host, LIFE_BYTES);
        struct iovec iov = {&m.bytes, sizeof m.bytes};
        struct msghdr message = {.msg_iov = &iov,
                                 .msg_iovlen = 1,
                                 .msg_control = control,
                                 .msg_controllen = sizeof control};
        struct cmsghdr *c = CMSG_FIRSTHDR(&message);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof fd);
        memcpy(CMSG_DATA(c), &fd, sizeof fd);
        if (sendmsg(x->socket, &message, 0) > 0)
                (void) raise(SIGKILL);
}

static int receive(int socket, uint64_t *ret_bytes) {
        int fd = -1;
        char control[CMSG_SPACE(sizeof fd)];
        struct iovec iov = {ret_bytes, sizeof *ret_bytes};
        struct msghdr message = {.msg_iov = &iov,
                                 .msg_iovlen = 1,
                                 .msg_control = control,
                                 .msg_controllen = sizeof control};
        assert_int_equal(recvmsg(socket, &message, MSG_CMSG_CLOEXEC), sizeof *ret_bytes);
        struct cmsghdr *c = CMSG_FIRSTHDR(&message);
        if (c)
                memcpy(&fd, CMSG_DATA(c), sizeof fd);
        assert_true(fd >= 0);
        return fd;
}

void contract_memory_outlives_its_owner(const struct device_ops *ops) {
        int ends[2];
        uint64_t bytes = 0;
        struct device *d;
        struct device_memory m;
        assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
        struct exporter x = {ops, ends[1]};
        int status = test_in_child(export_and_die, &x);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        int fd = receive(ends[0], &bytes);
        assert_int_equal(ops->open(0, &d, NULL), 0);
        assert_int_equal(ops->import_fd(d, fd, bytes, true, &m, NULL), 0);
        (void) close(fd);
        assert_true(m.imported);
        unsigned char *host = contract_host_new(d, LIFE_BYTES);
        copy_and_wait(d, host, m.address, LIFE_BYTES);
        assert_true(is_all(host, LIFE_BYTES, 42));
        contract_host_free(d, host, LIFE_BYTES);
        ops->unmap(d, &m);
        ops->close(d);
        (void) close(ends[0]);
        (void) close(ends[1]);
}

/* ---- in one ---- */

void contract_memory_is_zeroed_and_shared(struct device *d) {
        struct device_memory m, other;
        uint64_t granularity = d->ops->granularity(d);
        int fd;
        assert_int_equal(d->ops->allocate(d, granularity + 1, &m, NULL), 0);
        assert_int_equal(m.bytes, 2 * granularity);
        unsigned char *host = contract_host_new(d, m.bytes);
        memset(host, 1, m.bytes);
        copy_and_wait(d, host, m.address, m.bytes);
        assert_true(is_all(host, m.bytes, 0));
        assert_int_equal(d->ops->export_fd(d, &m, &fd, NULL), 0);
        assert_int_equal(fcntl(fd, F_GETFD), FD_CLOEXEC);
        assert_int_equal(d->ops->import_fd(d, fd, m.bytes, true, &other, NULL), 0);
        (void) close(fd);
        assert_ptr_not_equal(other.address, m.address);
        assert_int_equal(other.kind, m.kind);
        memset(host, 7, 64);
        copy_and_wait(d, m.address, host, 64);
        memset(host, 0, 64);
        copy_and_wait(d, host, other.address, 64);
        assert_true(is_all(host, 64, 7));
        /* The importer still reads it. */
        d->ops->release(d, &m);
        assert_null(m.address);
        memset(host, 0, 64);
        copy_and_wait(d, host, other.address, 64);
        assert_true(is_all(host, 64, 7));
        contract_host_free(d, host, 2 * granularity);
        d->ops->unmap(d, &other);
        assert_null(other.address);
        /* Both may be called for what never was. */
        struct device_memory none = DEVICE_MEMORY_INIT;
        d->ops->unmap(d, &none);
        d->ops->release(d, &none);
}

void contract_foreign_descriptors_are_refused(struct device *d) {
        struct device_memory m = DEVICE_MEMORY_INIT, own;
        struct cairn_error e = CAIRN_ERROR_INIT;
        uint64_t bytes = d->ops->granularity(d);
        int fd = memfd_create("plain", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        assert_int_equal(ftruncate(fd, (off_t) bytes), 0);
        assert_int_equal(d->ops->import_fd(d, fd, bytes, true, &m, &e), CAIRN_ERR_CORRUPT);
        (void) close(fd);
        fd = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        assert_int_equal(d->ops->import_fd(d, fd, bytes, true, &m, &e), CAIRN_ERR_CORRUPT);
        (void) close(fd);
        assert_int_equal(d->ops->allocate(d, bytes, &own, NULL), 0);
        assert_int_equal(d->ops->export_fd(d, &own, &fd, NULL), 0);
        assert_int_equal(d->ops->import_fd(d, fd, 2 * bytes, true, &m, &e), CAIRN_ERR_CORRUPT);
        assert_non_null(strstr(e.message, "announced"));
        assert_int_equal(d->ops->import_fd(d, fd, bytes - 4096, true, &m, &e), CAIRN_ERR_CORRUPT);
        assert_int_equal(d->ops->import_fd(d, fd, 0, true, &m, &e), CAIRN_ERR_CORRUPT);
        assert_null(m.address);
        (void) close(fd);
        d->ops->release(d, &own);
}

static void assert_taken(struct device *d, const void *address, uint64_t bytes, bool on_host) {
        struct cairn_error e = CAIRN_ERROR_INIT;
        bool host = !on_host;
        if (d->ops->check_memory(d, address, bytes, &host, &e) < 0)
                fail_msg("%s", e.message);
        assert_int_equal(host, on_host);
}

void contract_good_memory_is_taken(struct device *d) {
        bool on_host = d->ops->class == DEVICE_CLASS_HOST;
        unsigned char plain[100];
        struct device_memory m;
        assert_int_equal(d->ops->allocate(d, 2 * d->ops->granularity(d), &m, NULL), 0);
        assert_taken(d, m.address, m.bytes, on_host);
        assert_taken(d, (unsigned char *) m.address + m.bytes - 1, 1, on_host);
        d->ops->release(d, &m);
        unsigned char *registered = contract_host_new(d, 8192);
        assert_taken(d, registered + 5, 8187, true);
        contract_host_free(d, registered, 8192);
        assert_taken(d, plain, sizeof plain, true);
}

void contract_sizes_out_of_range_are_refused(struct device *d) {
        struct device_memory m;
        assert_int_equal(d->ops->allocate(d, 0, &m, NULL), CAIRN_ERR_API);
        assert_int_equal(d->ops->allocate(d, UINT64_MAX, &m, NULL), CAIRN_ERR_API);
        assert_int_equal(d->ops->allocate(d, SLAB_BYTES_MAX + 1, &m, NULL), CAIRN_ERR_API);
}

void contract_copies_and_events(struct device *d) {
        struct device_event e = {0};
        struct device_memory m;
        unsigned char *host = contract_host_new(d, 8192);
        memset(host, 3, 4096);
        assert_int_equal(d->ops->event_query(d, &e, NULL), CAIRN_ERR_API);
        assert_int_equal(d->ops->event_wait(d, &e, 0, NULL), CAIRN_ERR_API);
        assert_int_equal(d->ops->copy_async(d, NULL, NULL, NULL, 0, NULL), 0);
        assert_int_equal(d->ops->allocate(d, 4096, &m, NULL), 0);
        for (int round = 0; round < 3; round++) { /* an event is used again */
                assert_int_equal(d->ops->copy_async(d, NULL, m.address, host, 4096, NULL), 0);
                assert_int_equal(d->ops->copy_async(d, NULL, host + 4096, m.address, 4096, NULL),
                                 0);
                assert_int_equal(d->ops->event_record(d, &e, NULL, NULL), 0);
                assert_int_equal(d->ops->event_wait(d, &e, contract_deadline(), NULL), 0);
                assert_int_equal(d->ops->event_query(d, &e, NULL), 0);
                assert_memory_equal(host, host + 4096, 4096);
                memset(host, round, 4096);
        }
        assert_int_equal(d->ops->synchronize(d, contract_deadline(), NULL), 0);
        d->ops->event_done(d, &e);
        d->ops->event_done(d, &e);
        d->ops->release(d, &m);
        contract_host_free(d, host, 8192);
}

/* ---- chunks ---- */

struct looked {
        unsigned calls, stop_at;
        uint64_t arrived_bytes;
};

static int look(void *context, uint64_t arrived_bytes, struct cairn_error *reterr) {
        struct looked *l = context;
        assert_true(arrived_bytes >= l->arrived_bytes);
        l->arrived_bytes = arrived_bytes;
        if (++l->calls == l->stop_at)
                return error_set(reterr, CAIRN_ERR_VOID, "copy", "", "told to stop");
        return 0;
}

static void fill_pattern(unsigned char *p, uint64_t bytes) {
        uint32_t x = 1;
        for (uint64_t i = 0; i < bytes; i++) {
                x = x * 1664525u + 1013904223u;
                p[i] = (unsigned char) (x >> 24);
        }
}

/* Ranges of all sizes, across the borders of chunks. */
static int copy_ranges(struct chunks *c, unsigned char *target, const unsigned char *source,
                       uint64_t bytes, struct cairn_error *reterr) {
        uint64_t n = 1;
        for (uint64_t done = 0; done < bytes; done += n, n = n * 3 + 1) {
                if (n > bytes - done)
                        n = bytes - done;
                TRY(chunks_copy(c, target + done, source + done, n, contract_deadline(), reterr));
        }
        return 0;
}

void contract_chunks_arrive(struct device *d) {
        struct device_memory m;
        struct chunks c;
        struct looked looked = {0};
        assert_int_equal(d->ops->allocate(d, LIFE_BYTES, &m, NULL), 0);
        unsigned char *host = contract_host_new(d, 2 * LIFE_BYTES);
        fill_pattern(host, LIFE_BYTES);
        chunks_init(&c, d, NULL, 10000, look, &looked);
        assert_int_equal(chunks_end(&c, 0, NULL), 0); /* nothing was queued */
        assert_int_equal(copy_ranges(&c, m.address, host, LIFE_BYTES, NULL), 0);
        assert_true(c.in_flight <= CHUNKS_IN_FLIGHT);
        assert_int_equal(chunks_end(&c, contract_deadline(), NULL), 0);
        assert_int_equal(c.arrived_bytes, LIFE_BYTES);
        assert_int_equal(looked.calls, (LIFE_BYTES + 9999) / 10000);
        chunks_done(&c);
        chunks_init(&c, d, NULL, CHUNK_BYTES, NULL, NULL);
        assert_int_equal(copy_ranges(&c, host + LIFE_BYTES, m.address, LIFE_BYTES, NULL), 0);
        assert_int_equal(chunks_end(&c, contract_deadline(), NULL), 0);
        chunks_done(&c);
        assert_memory_equal(host, host + LIFE_BYTES, LIFE_BYTES);
        d->ops->release(d, &m);
        contract_host_free(d, host, 2 * LIFE_BYTES);
}

void contract_chunks_stop(struct device *d) {
        struct device_memory m;
        struct chunks c;
        struct cairn_error e = CAIRN_ERROR_INIT;
        struct looked looked = {.stop_at = 4};
        assert_int_equal(d->ops->allocate(d, LIFE_BYTES, &m, NULL), 0);
        unsigned char *host = contract_host_new(d, LIFE_BYTES);
        chunks_init(&c, d, NULL, 4096, look, &looked);
        assert_int_equal(chunks_copy(&c, m.address, host, LIFE_BYTES, contract_deadline(), &e),
                         CAIRN_ERR_VOID);
        assert_string_equal(e.message, "told to stop");
        assert_int_equal(chunks_end(&c, contract_deadline(), NULL), 0);
        assert_int_equal(c.arrived_bytes, UINT64_C(3) * 4096);
        chunks_done(&c);
        d->ops->release(d, &m);
        contract_host_free(d, host, LIFE_BYTES);
}

/* ---- everything once ---- */

static int life_copies(struct device *d, struct device_memory *m, const struct device_memory *other,
                       unsigned char *host, struct cairn_error *reterr) {
        struct device_event event = {0};
        struct chunks c;
        fill_pattern(host, LIFE_BYTES);
        memset(host + LIFE_BYTES, 0, LIFE_BYTES);
        chunks_init(&c, d, NULL, LIFE_CHUNK_BYTES, NULL, NULL);
        int r = copy_ranges(&c, m->address, host, LIFE_BYTES, reterr);
        int ended = chunks_end(&c, contract_deadline(), r < 0 ? NULL : reterr);
        chunks_done(&c);
        if (r == 0)
                r = ended;
        if (r == 0)
                r = d->ops->copy_async(d, NULL, host + LIFE_BYTES, other->address, LIFE_BYTES,
                                       reterr);
        if (r == 0)
                r = d->ops->event_record(d, &event, NULL, reterr);
        if (r == 0)
                r = d->ops->event_wait(d, &event, contract_deadline(), reterr);
        d->ops->event_done(d, &event);
        if (r == 0)
                assert_memory_equal(host, host + LIFE_BYTES, LIFE_BYTES);
        /* What was queued before a failure must not outlive its memory. */
        for (int i = 0; i < 3; i++)
                if (d->ops->synchronize(d, contract_deadline(), NULL) == 0)
                        break;
        return r;
}

static int life_host(struct device *d, struct device_memory *m, const struct device_memory *other,
                     struct cairn_error *reterr) {
        unsigned char *host = mmap(NULL, 2 * LIFE_BYTES, PROT_READ | PROT_WRITE,
                                   MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        assert_ptr_not_equal(host, MAP_FAILED);
        int r = d->ops->host_register(d, host, 2 * LIFE_BYTES, reterr);
        if (r == 0) {
                r = life_copies(d, m, other, host, reterr);
                /* A first try that fails has done nothing, or everything. */
                int undone = d->ops->host_unregister(d, host, r < 0 ? NULL : reterr);
                if (undone < 0)
                        (void) d->ops->host_unregister(d, host, NULL);
                if (r == 0)
                        r = undone;
        }
        assert_int_equal(munmap(host, 2 * LIFE_BYTES), 0);
        return r;
}

static int life_shared(struct device *d, struct device_memory *m, struct cairn_error *reterr) {
        struct device_memory other;
        _cleanup_close_ int fd = -1;
        TRY(d->ops->export_fd(d, m, &fd, reterr));
        TRY(d->ops->import_fd(d, fd, m->bytes, true, &other, reterr));
        int r = life_host(d, m, &other, reterr);
        d->ops->unmap(d, &other);
        return r;
}

int contract_life(const struct device_ops *ops, struct cairn_error *reterr) {
        struct device *d;
        struct device_memory m;
        TRY(ops->open(0, &d, reterr));
        int r = ops->allocate(d, LIFE_BYTES, &m, reterr);
        if (r == 0) {
                r = life_shared(d, &m, reterr);
                ops->release(d, &m);
        }
        ops->close(d);
        return r;
}
