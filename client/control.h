/* SPDX-License-Identifier: Apache-2.0
 *
 * control.h - one connection to an agent: connect, say hello, ask and be answered by id within a
 * deadline. libcairn and the command line use the same few verbs.
 *
 *     struct control c;
 *     control_init(&c, &clock_system);
 *     TRY(control_connect(&c, path, reterr));
 *     TRY(control_greet(&c, CAIRN__CONTROL__PEER_KIND__PEER_TOOL, run, deadline_ns, reterr));
 *     Cairn__Control__Envelope e = CAIRN__CONTROL__ENVELOPE__INIT, *reply;
 *     CONTROL_SET(&e, STOP_REQUEST, stop_request, &request);
 *     TRY(control_call(&c, &e, NULL, 0, CONTROL_REPLY(STOP_REPLY), deadline_ns, &reply, NULL,
 *                      reterr));
 *     control_done(&c);
 *
 * Owner: the reply and its strings belong to the connection and live until its next verb; received
 * descriptors belong to the caller's struct wire_fds (NULL: they are closed). Threads: one at a
 * time per connection. Deadlines are absolute times of the clock. Errors: what the agent's Failure
 * says; PEER when the agent is gone (the connection is then closed, connect again), TIMEOUT,
 * CORRUPT for an answer that is none, UNREACHABLE from control_connect.
 */
#ifndef CAIRN_CLIENT_CONTROL_H
#define CAIRN_CLIENT_CONTROL_H

#include "format/wire.h"

struct control {
        int socket; /* -1: not connected */
        uint64_t next_id;
        struct arena arena;
        const struct clock_ops *clock;
};

#define CONTROL_REPLY(NAME) CAIRN__CONTROL__ENVELOPE__BODY_##NAME
#define CONTROL_SET(envelope, NAME, field, message)                            \
        do {                                                                   \
                (envelope)->body_case = CAIRN__CONTROL__ENVELOPE__BODY_##NAME; \
                (envelope)->field = (message);                                 \
        } while (0)

void control_init(struct control *c, const struct clock_ops *clock);
void control_done(struct control *c);
void control_close(struct control *c); /* the socket alone; connect again is fine */
int control_connect(struct control *c, const char *path, struct cairn_error *reterr);

/* Gives the envelope an id, sends it; *ret_id (NULL allowed) names the answer. */
int control_send(struct control *c, Cairn__Control__Envelope *e, const int *fds, size_t fd_count,
                 uint64_t deadline_ns, uint64_t *ret_id, struct cairn_error *reterr);
/* Sends with id 0: nobody answers. */
int control_tell(struct control *c, Cairn__Control__Envelope *e, const int *fds, size_t fd_count,
                 uint64_t deadline_ns, struct cairn_error *reterr);
/* The next packet with this id; others are dropped. A Failure becomes the error; *ret is set then,
 * too, which tells a BUSY of the agent's from that of a deadline 0. May be called again for answers
 * of several packets. */
int control_receive(struct control *c, uint64_t id, uint64_t deadline_ns,
                    Cairn__Control__Envelope **ret, struct wire_fds *ret_fds,
                    struct cairn_error *reterr);
int control_call(struct control *c, Cairn__Control__Envelope *e, const int *fds, size_t fd_count,
                 Cairn__Control__Envelope__BodyCase expected, uint64_t deadline_ns,
                 Cairn__Control__Envelope **ret, struct wire_fds *ret_fds,
                 struct cairn_error *reterr);

/* Hello -> Welcome. Wait packets come first while a predecessor is being settled; a time-out tells
 * the last one's reason. Fills protocol, features and software of *hello. */
int control_hello(struct control *c, Cairn__Control__Hello *hello, const int *fds, size_t fd_count,
                  uint64_t deadline_ns, Cairn__Control__Welcome **ret, struct wire_fds *ret_fds,
                  struct cairn_error *reterr);
/* control_hello of a tool or a runner. */
int control_greet(struct control *c, Cairn__Control__PeerKind kind, const char *run,
                  uint64_t deadline_ns, struct cairn_error *reterr);

#endif
