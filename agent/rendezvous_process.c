/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/rendezvous_process.h"
#include "agent/rendezvous_record.h"
#include "agent/worker.h"
#include "base/assert.h"
#include "base/cleanup.h"
#include "base/fault.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>

/* ---- sentences ---- */

int rendezvous_refuse_lost(const struct rendezvous_member *self, struct cairn_error *reterr) {
        return error_set(reterr, CAIRN_ERR_STALE, "renew lease", self->node,
                         "the lease of this member is gone: the others did not hear of it in time "
                         "(it was stopped, frozen or cut off) and went on without it; it has to "
                         "join anew");
}

int rendezvous_refuse_old(const char *operation, uint64_t number, uint64_t newest,
                          struct cairn_error *reterr) {
        char object[48];

        (void) snprintf(object, sizeof object, "generation %" PRIu64, number);
        if (newest == 0)
                return error_set(reterr, CAIRN_ERR_STALE, operation, object,
                                 "the rendezvous has no generation (any more): it was removed");
        return error_set(reterr, CAIRN_ERR_STALE, operation, object,
                         "it is %s: the newest generation is %" PRIu64,
                         number < newest ? "over" : "not known", newest);
}

int rendezvous_refuse_taken(uint64_t number, const char *leader, struct cairn_error *reterr) {
        char object[48];

        (void) snprintf(object, sizeof object, "generation %" PRIu64, number);
        return error_set(reterr, CAIRN_ERR_EXISTS, "create generation", object,
                         "%s was faster and leads it", leader);
}

int rendezvous_refuse_name(const struct rendezvous_member *living, struct cairn_error *reterr) {
        return error_set(reterr, CAIRN_ERR_EXISTS, "join", living->node,
                         "a member of this name, at %s, is alive or was a few seconds ago; two "
                         "nodes of a run need two names",
                         living->address);
}

/* ---- payloads ---- */

int rendezvous_payload(const void *bytes, size_t count, struct cairn_error *reterr) {
        _cleanup_close_ int fd = memfd_create("cairn-rendezvous", MFD_CLOEXEC);

        if (fd < 0)
                return error_set_errno(reterr, errno, "make payload", "rendezvous");
        TRY(io_write_all(&io_system, fd, bytes, count, 0, "rendezvous", reterr));
        return TAKE_FD(fd);
}

int rendezvous_payload_read(int fd, void **ret, size_t *ret_bytes, struct cairn_error *reterr) {
        struct stat s;

        if (fd < 0 || fstat(fd, &s) < 0)
                return error_set_errno(reterr, EBADF, "read payload", "rendezvous");
        size_t bytes = (size_t) s.st_size;
        _cleanup_free_ void *copy = malloc(bytes ? bytes : 1);
        if (!copy)
                return error_set_errno(reterr, ENOMEM, "read payload", "rendezvous");
        TRY(io_read_exact(&io_system, fd, copy, bytes, 0, "rendezvous", reterr));
        *ret = TAKE_PTR(copy);
        *ret_bytes = bytes;
        return 0;
}

struct packed {
        struct rendezvous_generation generation; /* members: NULL */
        uint64_t member_count;
        struct rendezvous_member members[]; /* the generation's, then the living */
};

int rendezvous_pack(const struct rendezvous_look *look, void **ret, size_t *ret_bytes,
                    struct cairn_error *reterr) {
        size_t in_generation = look->generation.member_count;
        size_t count = in_generation + look->member_count, bytes;
        struct packed *p;

        CAIRN_ASSERT(in_generation <= RENDEZVOUS_MEMBERS_MAX &&
                     look->member_count <= RENDEZVOUS_MEMBERS_MAX);
        bytes = sizeof *p + count * sizeof *p->members;
        p = calloc(1, bytes);
        if (!p)
                return error_set_errno(reterr, ENOMEM, "pack members", "rendezvous");
        memcpy(&p->generation, &look->generation, sizeof p->generation);
        p->generation.members = NULL;
        p->member_count = look->member_count;
        if (in_generation > 0)
                memcpy(p->members, look->generation.members, in_generation * sizeof *p->members);
        if (look->member_count > 0)
                memcpy(p->members + in_generation, look->members,
                       look->member_count * sizeof *p->members);
        *ret = p;
        *ret_bytes = bytes;
        return 0;
}

int rendezvous_unpack(void *bytes, size_t count, struct rendezvous_look *ret,
                      struct cairn_error *reterr) {
        struct packed *p = bytes;

        if (count < sizeof *p || p->generation.member_count > RENDEZVOUS_MEMBERS_MAX ||
            p->member_count > RENDEZVOUS_MEMBERS_MAX ||
            count !=
                    sizeof *p + (p->generation.member_count + p->member_count) * sizeof *p->members)
                return error_set(reterr, CAIRN_ERR_PEER, "read members", "rendezvous",
                                 "the rendezvous process sent something else");
        *ret = (struct rendezvous_look){.generation = p->generation,
                                        .members = p->members + p->generation.member_count,
                                        .member_count = p->member_count};
        ret->generation.members = p->members;
        return 0;
}

/* ---- the socket ---- */

int rendezvous_receive(int socket, int flags, struct rendezvous_message *ret, int *ret_fd) {
        union {
                struct cmsghdr header;
                char bytes[CMSG_SPACE(sizeof(int))];
        } control;
        struct iovec iov = {.iov_base = ret, .iov_len = sizeof *ret};
        struct msghdr message = {.msg_iov = &iov,
                                 .msg_iovlen = 1,
                                 .msg_control = control.bytes,
                                 .msg_controllen = sizeof control.bytes};
        ssize_t n;

        *ret_fd = -1;
        do
                n = recvmsg(socket, &message, flags | MSG_CMSG_CLOEXEC);
        while (n < 0 && errno == EINTR);
        if (n <= 0)
                return n == 0 ? 0 : -1;
        const struct cmsghdr *h = CMSG_FIRSTHDR(&message);
        if (h && h->cmsg_level == SOL_SOCKET && h->cmsg_type == SCM_RIGHTS)
                memcpy(ret_fd, CMSG_DATA(h), sizeof *ret_fd);
        if (n == (ssize_t) sizeof *ret && ret->has_payload == (*ret_fd >= 0))
                return 1;
        cleanup_close(ret_fd);
        *ret_fd = -1;
        errno = EBADMSG;
        return -1;
}

int rendezvous_send(int socket, int flags, const struct rendezvous_message *m, int fd) {
        union {
                struct cmsghdr header;
                char bytes[CMSG_SPACE(sizeof(int))];
        } control = {0};
        struct iovec iov = {.iov_base = (void *) (uintptr_t) m, .iov_len = sizeof *m};
        struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1};
        ssize_t n;

        CAIRN_ASSERT(m->has_payload == (fd >= 0));
        if (fd >= 0) {
                message.msg_control = control.bytes;
                message.msg_controllen = sizeof control.bytes;
                struct cmsghdr *h = CMSG_FIRSTHDR(&message);
                h->cmsg_level = SOL_SOCKET;
                h->cmsg_type = SCM_RIGHTS;
                h->cmsg_len = CMSG_LEN(sizeof fd);
                memcpy(CMSG_DATA(h), &fd, sizeof fd);
        }
        do
                n = sendmsg(socket, &message, flags | MSG_NOSIGNAL);
        while (n < 0 && errno == EINTR);
        return n == (ssize_t) sizeof *m ? 0 : -1;
}

/* ---- the child ---- */

struct child {
        int socket;
        const struct rendezvous_place *place;
        const struct rendezvous_ops *ops;
        void *kind; /* NULL: not open yet, or it failed */
        /* The look that was sent last. */
        void *sent;
        size_t sent_bytes;
        int reply_fd;
};

static int do_look(struct child *c, struct rendezvous_message *m, const void *seed, size_t bytes,
                   struct cairn_error *reterr) {
        const struct rendezvous_member *self = m->is_member ? &m->self : NULL;
        _cleanup_free_ void *packed = NULL;
        struct rendezvous_look look;
        size_t packed_bytes;

        if (seed && c->ops->seed) {
                TRY(rendezvous_unpack((void *) (uintptr_t) seed, bytes, &look, reterr));
                c->ops->seed(c->kind, look.members, look.member_count);
        }
        TRY(c->ops->look(c->kind, self, m->renew, m->deadline_ns, &look, reterr));
        TRY(rendezvous_pack(&look, &packed, &packed_bytes, reterr));
        if (packed_bytes == c->sent_bytes && memcmp(packed, c->sent, packed_bytes) == 0)
                return 0;
        c->reply_fd = rendezvous_payload(packed, packed_bytes, reterr);
        TRY(c->reply_fd);
        free(c->sent);
        c->sent = TAKE_PTR(packed);
        c->sent_bytes = packed_bytes;
        return 0;
}

static int do_get(struct child *c, const struct rendezvous_message *m, struct cairn_error *reterr) {
        _cleanup_free_ void *value = NULL;
        size_t bytes;

        TRY(c->ops->get(c->kind, &m->self, m->generation, m->key, m->deadline_ns, &value, &bytes,
                        reterr));
        c->reply_fd = rendezvous_payload(value, bytes, reterr);
        return c->reply_fd < 0 ? c->reply_fd : 0;
}

static int perform(struct child *c, struct rendezvous_message *m, void *payload, size_t bytes,
                   struct cairn_error *reterr) {
        struct rendezvous_look look;

        if (!c->kind)
                TRY(c->ops->open(c->place, &c->kind, reterr));
        switch (m->verb) {
        case RENDEZVOUS_LOOK:
                return do_look(c, m, payload, bytes, reterr);
        case RENDEZVOUS_JOIN:
                return c->ops->join(c->kind, &m->self, m->deadline_ns, reterr);
        case RENDEZVOUS_LEAVE:
                return c->ops->leave(c->kind, &m->self, m->deadline_ns, reterr);
        case RENDEZVOUS_CREATE:
                TRY(rendezvous_unpack(payload, bytes, &look, reterr));
                return c->ops->create(c->kind, &m->self, &look.generation, m->deadline_ns, reterr);
        case RENDEZVOUS_PUT:
                return c->ops->put(c->kind, &m->self, m->generation, m->key, payload, bytes,
                                   m->deadline_ns, reterr);
        case RENDEZVOUS_GET:
                return do_get(c, m, reterr);
        }
        return error_set(reterr, CAIRN_ERR_API, "ask rendezvous", c->place->run,
                         "verb %d is unknown", (int) m->verb);
}

static int serve_one(struct child *c, struct rendezvous_message *m, int fd) {
        _cleanup_close_ int request_fd = fd;
        _cleanup_free_ void *payload = NULL;
        size_t bytes = 0;

        m->error = (struct cairn_error) CAIRN_ERROR_INIT;
        m->status = fd >= 0 ? rendezvous_payload_read(request_fd, &payload, &bytes, &m->error) : 0;
        c->reply_fd = -1;
        if (m->status == 0)
                m->status = perform(c, m, payload, bytes, &m->error);
        m->has_payload = c->reply_fd >= 0;
        int r = rendezvous_send(c->socket, 0, m, c->reply_fd);
        cleanup_close(&c->reply_fd);
        return r;
}

int rendezvous_main(int socket, int argc, char **argv) {
        struct rendezvous_place place;
        struct child c = {.socket = socket, .place = &place};
        struct rendezvous_message m;
        int fd, r;

        worker_become("cairnd-rdzv"); /* its lease runs out, or a restarted agent takes it up */
        if (argc != 6 || rendezvous_place_parse(argv[2], argv[3], argv[4], &place, NULL) < 0 ||
            fault_init(getenv("CAIRN_FAULT"), NULL) < 0)
                return status_exit_code(CAIRN_ERR_API);
        place.create_store = strcmp(argv[5], "create") == 0;
        c.ops = place.kind == RENDEZVOUS_DIR ? &rendezvous_dir_ops : &rendezvous_etcd_ops;
        while ((r = rendezvous_receive(socket, 0, &m, &fd)) == 1)
                if (serve_one(&c, &m, fd) < 0) {
                        r = -1;
                        break;
                }
        if (c.kind)
                c.ops->close(c.kind);
        free(c.sent);
        return r == 0 ? 0 : status_exit_code(CAIRN_ERR_PEER);
}
