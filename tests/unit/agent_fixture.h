/* SPDX-License-Identifier: Apache-2.0
 *
 * agent_fixture.h - cairnd's loop in the test's own thread, with a store and savers that are
 * played: they answer from timers, record what they were asked, and fail when told to. Trainers,
 * runners and tools are ends of socketpairs.
 *
 *     struct fixture f; fixture_init(&f);
 *     int runner = fixture_connect(&f, CAIRN__CONTROL__PEER_KIND__PEER_RUNNER);
 *     fixture_ask(&f, runner, &envelope, fds, count);      // the answer, valid until the next call
 *     fixture_run_ms(&f, 50);                               // let the loop turn
 *     fixture_done(&f);
 *
 * Failures of the fixture abort the test.
 */
#ifndef CAIRN_TESTS_AGENT_FIXTURE_H
#define CAIRN_TESTS_AGENT_FIXTURE_H

#include "agent/run.h"
#include "agent/session.h"

#define FIXTURE_RECORDS 256

struct fixture_reply;
struct fixture_trainer { /* what a trainer holds of its session */
        int socket, page_fd, event_fd;
        struct control_page *page;
        uint64_t session_id, generation;
        uint8_t secret[16];
        bool reattached;
};
struct fixture {
        struct agent agent;
        struct arena arena;
        struct wire_fds received;
        uint64_t next_id;
        /* the store */
        struct fixture_reply *replies;
        struct loop_timer store_timer;
        enum store_verb asked[FIXTURE_RECORDS];
        struct store_message last[STORE_SETTLE + 1]; /* by verb; SETTLE is the last one */
        size_t asked_count;
        bool commits_flagged;
        enum store_verb fail_verb; /* the next one of this verb fails with fail_status */
        int fail_status;
        bool store_holds; /* requests wait until it is false */
        uint64_t generation;
        uint32_t retain_count; /* the next RETAIN deletes so many */
        unsigned retain_more;  /* so many RETAINs have not deleted all */
        bool retain_fails;     /* the one after the first of them fails with IO */
        /* the savers */
        struct loop_timer saver_timer;
        unsigned savers_started, seals, arms, takes;
        bool saver_holds_write; /* a cut stays unwritten */
        bool saver_hung_up;     /* it takes nothing, and cairnd has not heard of its end yet */
        bool writes_fail;       /* write_status stays */
        bool write_stuck;       /* the next write that fails never ended */
        int write_status, void_next;
        uint64_t image_bytes; /* of the seals; 0: 8192, what the trainer announces */
        struct {
                struct session *session;
                bool ready, ended, armed, cut, sealed, disarm;
                bool holds_write; /* as above, this one alone */
                bool holds_copy;  /* a group's cut that may go is not copied */
                uint32_t attempt, disarm_attempt;
                uint64_t take;
                bool hold, held, go, release; /* of a group's cut */
                int64_t hold_step;
                struct cut_word word;
                int64_t step;
                struct saver_ending ending; /* as TAKE said */
        } savers[8];
};

void fixture_init(struct fixture *f);
void fixture_done(struct fixture *f);
int fixture_connect(struct fixture *f, unsigned kind);
int fixture_connect_raw(struct fixture *f); /* without Hello */
void fixture_run_ms(struct fixture *f, unsigned ms);
uint64_t fixture_send(struct fixture *f, int socket, Cairn__Control__Envelope *e, const int *fds,
                      size_t fd_count);
/* The next packet, at most 5 s; NULL: end-of-file. */
Cairn__Control__Envelope *fixture_receive(struct fixture *f, int socket);
Cairn__Control__Envelope *fixture_ask(struct fixture *f, int socket, Cairn__Control__Envelope *e,
                                      const int *fds, size_t fd_count);
size_t fixture_count(const struct fixture *f, enum store_verb verb);

/* Conversations */
void fixture_start_run(struct fixture *f, int runner, uint32_t world);
void fixture_hello(struct fixture *f, struct fixture_trainer *t, uint32_t rank);
void fixture_seal(struct fixture *f, struct fixture_trainer *t, uint64_t seal);
void fixture_seal_refused(struct fixture *f, struct fixture_trainer *t, uint64_t seal, int status);
void fixture_restore_done(struct fixture *f, struct fixture_trainer *t);
/* One update: the word moves to STABLE at `step`; scheduled: a snapshot is asked for. */
void fixture_update(struct fixture *f, struct fixture_trainer *t, int64_t step, bool scheduled);
void fixture_trainer_done(struct fixture_trainer *t);
struct session *fixture_session(struct fixture *f, uint32_t rank);

#endif
