/* SPDX-License-Identifier: Apache-2.0
 *
 * server.h - the control socket: who may connect, how packets become calls, and how answers leave.
 *
 *     server_init(&c, loop, &options, &e);   // listens; options hold the dispatch table
 *     ...handlers run in the loop...
 *     server_done(&c);
 *
 * A peer is accepted if SO_PEERCRED says the agent's own user, root, or a member of
 * options.group_id. Its first packet is Hello; protocol and kind are checked here, then a row of
 * the table is called:
 *
 *     {CAIRN__CONTROL__ENVELOPE__BODY_SEAL, 1 << PEER_CLIENT, handle_seal}
 *
 * A handler returns 0 (it answered, or will: server_later keeps the address of an answer) or a
 * negative status with *reterr filled, which becomes a Failure. It takes descriptors out of `fds`;
 * the rest is closed. Garbage ends the connection with one log line. Whatever would block is
 * queued, at most SERVER_OUT_MAX packets a connection; a peer that does not read is dropped. When
 * all slots are taken, the user who has most connections that are neither a trainer's nor a `cairn
 * run`'s loses the oldest of them, so that nobody can keep the others out. What strangers and
 * garbage cause is logged at most SERVER_SAY_MAX times a second.
 *
 * Connections are slots: a dropped one stays readable until the handler has returned. Compare
 * `serial` before using one that was kept (struct reply_to).
 */
#ifndef CAIRN_AGENT_SERVER_H
#define CAIRN_AGENT_SERVER_H

#include "agent/loop.h"
#include "format/wire.h"
#include <sys/types.h>

#define SERVER_OUT_MAX 64
#define SERVER_HELLO_NS (10 * NSEC_PER_SEC)
#define SERVER_FILE_NS NSEC_PER_SEC
#define SERVER_SAY_MAX 10
#define SERVER_FEATURES UINT64_C(0)
#define SERVER_SOFTWARE "cairnd " CAIRN_VERSION

struct server;
struct session;
struct run;

struct server_packet {
        unsigned char *bytes; /* a packed Envelope */
        size_t byte_count;
        int fds[WIRE_FDS_MAX];
        size_t fd_count;
        struct server_packet *next;
};
struct connection {
        struct server *server;
        struct loop_source source;
        struct loop_timer hello_timer;
        int fd; /* -1: the slot is free */
        uint64_t serial;
        unsigned kind; /* PEER_*; PEER_UNSET until Hello */
        pid_t pid;
        uid_t uid;
        uint64_t features;
        bool closing;            /* drop when everything queued has left */
        struct session *session; /* client, once welcomed */
        struct run *run;         /* runner, once started */
        struct server_packet *out, **out_tail;
        size_t out_count;
        struct arena arena;
};
struct reply_to {
        struct connection *connection;
        uint64_t serial, id;
};

typedef int (*server_fn)(void *context, struct connection *c, const Cairn__Control__Envelope *e,
                         struct wire_fds *fds, struct cairn_error *reterr);
struct server_row {
        int body;       /* CAIRN__CONTROL__ENVELOPE__BODY_* */
        unsigned kinds; /* mask of 1 << PEER_* */
        server_fn call;
};
struct server_options {
        const char *socket_path;
        int listen_fd;  /* of the service manager's, listening at that path already; 0: none */
        gid_t group_id; /* (gid_t) -1: none */
        const struct server_row *rows;
        size_t row_count;
        void *context;
        void (*closed)(void *context, struct connection *c); /* end-of-file or dropped */
};
struct server {
        struct loop *loop;
        struct server_options options;
        int listen_fd;
        struct loop_source listen_source;
        struct loop_timer listen_timer; /* looks whether the socket's file is still there */
        dev_t listen_device;
        ino_t listen_inode;
        bool listen_given;  /* the service manager made its file, and removes it */
        bool listen_lost;   /* said already that it cannot be made again */
        bool accept_failed; /* said already; until the timer looks again nobody is accepted */
        uint64_t serial_last;
        uint64_t say_from_ns; /* the second that the next two count */
        unsigned said, unsaid;
        struct connection *connections; /* CONNECTION_COUNT_MAX slots */
};

int server_init(struct server *c, struct loop *loop, const struct server_options *options,
                struct cairn_error *reterr);
void server_done(struct server *c);
/* The socket's file is made again within a second or so if somebody removes it: cleaners of
 * temporary folders do, and a user's runtime directory goes with his last login. Without
 * descriptors or memory for a connection the listener rests until then, too.
 *
 * Stop listening and remove the socket's file; living connections stay. */
void server_close_listener(struct server *c);
/* Adopt a connected socket as if it had been accepted (tests). */
int server_adopt(struct server *c, int fd, struct connection **ret, struct cairn_error *reterr);

/* Address for an answer given after the handler returned. */
struct reply_to server_later(struct connection *c, uint64_t id);
/* The connection of an address, or NULL if it is gone. */
struct connection *server_reach(const struct reply_to *to);
/* Send; the id is the address's. Descriptors are borrowed. Nothing happens when the peer is gone.
 */
void server_reply(const struct reply_to *to, Cairn__Control__Envelope *e, const int *fds,
                  size_t fd_count);
/* An event, which nobody asked for and nobody answers. */
void server_tell(const struct reply_to *to, Cairn__Control__Envelope *e);
void server_fail(const struct reply_to *to, const struct cairn_error *error);
void server_done_reply(const struct reply_to *to); /* Done */
void server_drop(struct connection *c, const char *why);
bool server_idle(const struct server *c); /* nothing queued anywhere */

#endif
