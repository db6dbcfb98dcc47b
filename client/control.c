/* SPDX-License-Identifier: Apache-2.0 */
#include "client/control.h"
#include "base/cleanup.h"
#include "base/log.h"
#include <inttypes.h>
#include <string.h>

/* A reply is one packet; unpacked it is a few times as large. */
#define CONTROL_ARENA_BYTES_MAX (64 * WIRE_MESSAGE_BYTES_MAX)

void control_init(struct control *c, const struct clock_ops *clock) {
        *c = (struct control){.socket = -1, .clock = clock};
        arena_init(&c->arena, CONTROL_ARENA_BYTES_MAX);
}

void control_close(struct control *c) {
        if (c->socket >= 0)
                (void) close(c->socket);
        c->socket = -1;
}

void control_done(struct control *c) {
        control_close(c);
        arena_done(&c->arena);
}

int control_connect(struct control *c, const char *path, struct cairn_error *reterr) {
        control_close(c);
        return wire_connect(path, &c->socket, reterr);
}

static int control_check_open(const struct control *c, struct cairn_error *reterr) {
        if (c->socket < 0)
                return error_set(reterr, CAIRN_ERR_PEER, "speak to the agent", "",
                                 "the connection is closed");
        return 0;
}

/* After an error in the middle of a packet nothing that follows can be trusted. */
static int control_broken(struct control *c, int r) {
        if (r == CAIRN_ERR_PEER || r == CAIRN_ERR_CORRUPT)
                control_close(c);
        return r;
}

int control_send(struct control *c, Cairn__Control__Envelope *e, const int *fds, size_t fd_count,
                 uint64_t deadline_ns, uint64_t *ret_id, struct cairn_error *reterr) {
        TRY(control_check_open(c, reterr));
        e->id = ++c->next_id;
        int r = wire_send(c->socket, e, fds, fd_count, deadline_ns, reterr);
        if (r < 0)
                return control_broken(c, r);
        if (ret_id)
                *ret_id = e->id;
        return 0;
}

int control_tell(struct control *c, Cairn__Control__Envelope *e, const int *fds, size_t fd_count,
                 uint64_t deadline_ns, struct cairn_error *reterr) {
        TRY(control_check_open(c, reterr));
        e->id = 0;
        return control_broken(c, wire_send(c->socket, e, fds, fd_count, deadline_ns, reterr));
}

int control_receive(struct control *c, uint64_t id, uint64_t deadline_ns,
                    Cairn__Control__Envelope **ret, struct wire_fds *ret_fds,
                    struct cairn_error *reterr) {
        for (;;) {
                struct wire_fds fds = WIRE_FDS_INIT;
                Cairn__Control__Envelope *e;
                TRY(control_check_open(c, reterr));
                arena_clear(&c->arena);
                int r = wire_receive(c->socket, &c->arena, &e, &fds, deadline_ns, reterr);
                if (r == CAIRN_ERR_TIMEOUT)
                        return error_set(reterr, r, "wait for the agent", "",
                                         "it did not answer in time: it is stopped, or the machine "
                                         "is overloaded; training goes on meanwhile");
                if (r < 0)
                        return control_broken(c, r);
                if (e->id != id) {
                        wire_fds_done(&fds);
                        continue;
                }
                *ret = e;
                if (e->failure && e->failure->status < 0) {
                        wire_fds_done(&fds);
                        if (reterr)
                                wire_failure_read(e->failure, reterr);
                        return e->failure->status;
                }
                if (ret_fds)
                        *ret_fds = fds;
                else
                        wire_fds_done(&fds);
                return 0;
        }
}

static int control_check_body(struct control *c, const Cairn__Control__Envelope *e,
                              Cairn__Control__Envelope__BodyCase expected,
                              struct cairn_error *reterr) {
        if (e->body_case == expected)
                return 0;
        control_close(c);
        return error_set(
                reterr, CAIRN_ERR_CORRUPT, "speak to the agent", "",
                "message %d was expected, %d came: agent and program are of different versions",
                (int) expected, (int) e->body_case);
}

int control_call(struct control *c, Cairn__Control__Envelope *e, const int *fds, size_t fd_count,
                 Cairn__Control__Envelope__BodyCase expected, uint64_t deadline_ns,
                 Cairn__Control__Envelope **ret, struct wire_fds *ret_fds,
                 struct cairn_error *reterr) {
        Cairn__Control__Envelope *reply;
        struct wire_fds received = WIRE_FDS_INIT;
        uint64_t id;
        TRY(control_send(c, e, fds, fd_count, deadline_ns, &id, reterr));
        TRY(control_receive(c, id, deadline_ns, &reply, &received, reterr));
        int r = control_check_body(c, reply, expected, reterr);
        if (r < 0 || !ret_fds)
                wire_fds_done(&received);
        else
                *ret_fds = received;
        if (r >= 0 && ret)
                *ret = reply;
        return r;
}

/* Remember why we wait, so that the time-out can tell. */
static void control_note_wait(const Cairn__Control__Wait *w, char *note, size_t bytes) {
        char reason[200];
        text_escape(reason, sizeof reason, (const char *) w->reason.data, w->reason.len);
        (void) snprintf(note, bytes, "; the agent said: %s (%" PRIu64 " of %" PRIu64 " bytes)",
                        reason, w->done_bytes, w->total_bytes);
}

int control_hello(struct control *c, Cairn__Control__Hello *hello, const int *fds, size_t fd_count,
                  uint64_t deadline_ns, Cairn__Control__Welcome **ret, struct wire_fds *ret_fds,
                  struct cairn_error *reterr) {
        static char software[] = "libcairn " CAIRN_VERSION;
        char note[300] = "";
        uint64_t id;

        hello->protocol = WIRE_PROTOCOL;
        hello->software.data = (uint8_t *) software;
        hello->software.len = sizeof software - 1;
        Cairn__Control__Envelope e = CAIRN__CONTROL__ENVELOPE__INIT, *reply;
        CONTROL_SET(&e, HELLO, hello, hello);
        TRY(control_send(c, &e, fds, fd_count, deadline_ns, &id, reterr));
        for (;;) {
                struct wire_fds received = WIRE_FDS_INIT;
                int r = control_receive(c, id, deadline_ns, &reply, &received, reterr);
                if (r == CAIRN_ERR_TIMEOUT && *note) /* it did say why it takes time */
                        return error_set(reterr, r, "wait for the agent's welcome", "",
                                         "it did not come in time%s", note);
                if (r < 0)
                        return r;
                if (reply->body_case == CONTROL_REPLY(WAIT)) {
                        wire_fds_done(&received);
                        control_note_wait(reply->wait, note, sizeof note);
                        continue;
                }
                r = control_check_body(c, reply, CONTROL_REPLY(WELCOME), reterr);
                if (r >= 0 && reply->welcome->protocol != WIRE_PROTOCOL)
                        r = error_set(reterr, CAIRN_ERR_UNSUPPORTED, "greet the agent", "",
                                      "it speaks protocol %" PRIu32
                                      ", this is %d: install the same version "
                                      "on both sides",
                                      reply->welcome->protocol, WIRE_PROTOCOL);
                if (r < 0 || !ret_fds)
                        wire_fds_done(&received);
                if (r < 0)
                        return r;
                if (ret_fds)
                        *ret_fds = received;
                if (ret)
                        *ret = reply->welcome;
                return 0;
        }
}

int control_greet(struct control *c, Cairn__Control__PeerKind kind, const char *run,
                  uint64_t deadline_ns, struct cairn_error *reterr) {
        Cairn__Control__Hello hello = CAIRN__CONTROL__HELLO__INIT;
        hello.kind = kind;
        if (run) {
                hello.run.data = (uint8_t *) (uintptr_t) run;
                hello.run.len = strlen(run);
        }
        return control_hello(c, &hello, NULL, 0, deadline_ns, NULL, NULL, reterr);
}
