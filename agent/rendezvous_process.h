/* SPDX-License-Identifier: Apache-2.0
 *
 * rendezvous_process.h - the child that does what blocks for a rendezvous, and the table behind
 * which its two kinds are. Both ends of the socket are the same binary (worker.h), so requests are
 * plain structs; what has no fixed size travels in a memfd beside them.
 *
 * Layers:  rendezvous.c (loop side: requests with deadlines, the view)  ->  rendezvous_process.c
 * (child's main: one request, one verb, one reply)  ->  rendezvous_ops: rendezvous_dir.c,
 * rendezvous_etcd.c.
 *
 * A child can be killed in the middle of anything. Its successor knows nothing but what requests
 * say (who this member is) and the seed (who was alive); so every verb looks first at what is
 * there, and asking again for what has happened reports it.
 */
#ifndef CAIRN_AGENT_RENDEZVOUS_PROCESS_H
#define CAIRN_AGENT_RENDEZVOUS_PROCESS_H

#include "agent/rendezvous.h"
#include "base/io.h"

/* What a look finds; the kind owns what it points to until its next verb. Members by node. */
struct rendezvous_look {
        struct rendezvous_generation generation;
        const struct rendezvous_member *members;
        size_t member_count;
};

/* One kind of rendezvous. Blocking, one thread. Each verb ends around `deadline_ns` at the latest,
 * unless the kernel holds it (then the child is killed). Outcomes beside 0: UNREACHABLE, TIMEOUT:
 * unknown, ask again; STALE: of a newer generation or without the lease; PERMISSION, UNSUPPORTED,
 * CORRUPT, ...: final. `self` is this member; its lease is known by node and nonce. */
struct rendezvous_ops {
        int (*open)(const struct rendezvous_place *place, void **ret, struct cairn_error *reterr);
        void (*close)(void *kind); /* leases stay */
        /* Who was alive for the predecessor: counted as seen just now. NULL: needs none. */
        void (*seed)(void *kind, const struct rendezvous_member *members, size_t count);
        /* EXISTS: a living one has the name. */
        int (*join)(void *kind, const struct rendezvous_member *self, uint64_t deadline_ns,
                    struct cairn_error *reterr);
        int (*leave)(void *kind, const struct rendezvous_member *self, uint64_t deadline_ns,
                     struct cairn_error *reterr);
        /* self: NULL unless a member. STALE: its lease is gone (and nothing else is STALE here). */
        int (*look)(void *kind, const struct rendezvous_member *self, bool renew,
                    uint64_t deadline_ns, struct rendezvous_look *ret, struct cairn_error *reterr);
        int (*create)(void *kind, const struct rendezvous_member *self,
                      const struct rendezvous_generation *generation, uint64_t deadline_ns,
                      struct cairn_error *reterr);
        int (*put)(void *kind, const struct rendezvous_member *self, uint64_t generation,
                   const char *key, const void *value, size_t bytes, uint64_t deadline_ns,
                   struct cairn_error *reterr);
        /* NOTFOUND: not there yet. *ret is malloc'ed. */
        int (*get)(void *kind, const struct rendezvous_member *self, uint64_t generation,
                   const char *key, uint64_t deadline_ns, void **ret, size_t *ret_bytes,
                   struct cairn_error *reterr);
};
extern const struct rendezvous_ops rendezvous_dir_ops, rendezvous_etcd_ops;
/* The folder's kind on another table and clock, for tests. */
int rendezvous_dir_new(const struct rendezvous_place *place, const struct io_ops *io,
                       const struct clock_ops *clock, void **ret, struct cairn_error *reterr);

/* The sentences that both kinds use. */
int rendezvous_refuse_lost(const struct rendezvous_member *self, struct cairn_error *reterr);
int rendezvous_refuse_old(const char *operation, uint64_t number, uint64_t newest,
                          struct cairn_error *reterr);
int rendezvous_refuse_taken(uint64_t number, const char *leader, struct cairn_error *reterr);
int rendezvous_refuse_name(const struct rendezvous_member *living, struct cairn_error *reterr);

/* ---- messages between rendezvous.c and rendezvous_process.c ---- */
enum rendezvous_verb {
        RENDEZVOUS_LOOK = 1,
        RENDEZVOUS_JOIN,
        RENDEZVOUS_LEAVE,
        RENDEZVOUS_CREATE,
        RENDEZVOUS_PUT,
        RENDEZVOUS_GET,
};
struct rendezvous_message {
        uint64_t id;
        enum rendezvous_verb verb;
        int status;               /* reply */
        struct cairn_error error; /* reply */
        uint64_t deadline_ns;
        bool is_member, renew; /* LOOK */
        struct rendezvous_member self;
        uint64_t generation; /* PUT, GET */
        char key[RENDEZVOUS_KEY_BYTES];
        /* A memfd goes with it: a packed look (CREATE: its generation alone; LOOK: the seed; its
         * reply: what is there, only if it is not what the reply before said) or a value (PUT;
         * reply of GET). */
        bool has_payload;
};
/* *ret_fd: -1 without a payload. 1: received, 0: the other side is gone, -1: broken, or (with
 * MSG_DONTWAIT) nothing there. */
int rendezvous_receive(int socket, int flags, struct rendezvous_message *ret, int *ret_fd);
int rendezvous_send(int socket, int flags, const struct rendezvous_message *m, int fd);

/* Bytes in a new memfd, and back. */
int rendezvous_payload(const void *bytes, size_t count, struct cairn_error *reterr);
int rendezvous_payload_read(int fd, void **ret, size_t *ret_bytes, struct cairn_error *reterr);
/* A look as one block; unpack points into it. Equal looks pack to equal bytes. */
int rendezvous_pack(const struct rendezvous_look *look, void **ret, size_t *ret_bytes,
                    struct cairn_error *reterr);
int rendezvous_unpack(void *bytes, size_t count, struct rendezvous_look *ret,
                      struct cairn_error *reterr);

/* The child's main loop on `socket`; returns its exit status. The arguments of the program are
 * NAME --rendezvous-process URL STORE RUN create|open. */
int rendezvous_main(int socket, int argc, char **argv);

#endif
