/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/runner.h"

#include "base/cleanup.h"
#include "base/log.h"
#include "client/generation_lock.h"
#include "format/exits.h"
#include "tools/agent_call.h"
#include "tools/agent_process.h"
#include "tools/agent_status.h"
#include "tools/agent_watch.h"
#include "tools/crash_guard.h"
#include "tools/process_tree.h"
#include "tools/store_view.h"
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define AGENT_START_NS (20 * NSEC_PER_SEC)
#define AGENT_START_TRIES 3
#define AGENT_LEAVE_NS (60 * NSEC_PER_SEC) /* one that still commits what trainers left */
#define AGENT_ANSWER_AGAIN_NS (300 * NSEC_PER_MSEC)
#define AGENT_ANSWER_NS (5 * NSEC_PER_SEC) /* of one that another `cairn run` started */
#define AGENT_RETRY_NS (50 * NSEC_PER_MSEC)
#define AGENT_END_NS (90 * NSEC_PER_SEC)
#define SYSTEM_AGENT_NS (60 * NSEC_PER_SEC)
#define SYSTEM_AGENT_AGAIN_NS NSEC_PER_SEC /* once it was given up, and is tried again */
#define LOCK_PAUSE_NS (300 * NSEC_PER_MSEC)
#define REQUEST_NS (300 * NSEC_PER_SEC)
#define GROUP_NS (600 * NSEC_PER_SEC) /* until enough nodes have come */
#define STOP_DEADLINE_NS (120 * NSEC_PER_SEC)
#define ONE_WISH_NS (100 * NSEC_PER_MSEC) /* of interrupts that one wish sends */
/* Ranks whose fellow failed: SIGTERM, then SIGKILL. They may finish an update that they are in, for
 * its gradients are complete; their next collective fails. */
#define PEER_RANKS_END_NS (5 * NSEC_PER_SEC)
#define STOP_RANKS_END_NS (30 * NSEC_PER_SEC) /* the like of ranks that hold nothing */
#define CALL_NS (60 * NSEC_PER_SEC) /* from the command's start to its first call of libcairn */
#define BACKOFF_NS (200 * NSEC_PER_MSEC)
#define BACKOFF_NS_MAX (30 * NSEC_PER_SEC)

/* Exit statuses after which another start cannot do better (docs/OPERATIONS.md), and 75: the
 * machine is going away. */
static bool is_final(int code) {
        return code == 75 || exit_final_reason(code);
}

struct runner {
        const struct command *command;
        const struct runner_options *options;
        struct control agent;
        struct agent_watch watch;
        char socket[PATH_MAX];
        bool system_agent;
        pid_t agent_pid;     /* private agent; 0: none */
        bool agent_killed;   /* by a signal, while it started */
        uint64_t recover_ns; /* it was given up: when it is tried again; 0: it was not */
        uint64_t recover_pause_ns;
        int signal_fd;
        struct ranks ranks;
        uint64_t generation, restart;
        int64_t committed_step;
        struct crash_guard guard;
        struct {                  /* what the last life left */
                bool post_mortem; /* committed_step was taken after its death */
                int64_t flagged_step;
                uint64_t lost_steps;
        } left;
        bool group_lost; /* of several nodes: another one's rank or node is gone */
        int group_code;  /* not 0: for good, it ended with this final status */
        bool agent_lost; /* and so is what it knew of our ranks */
        bool finished;   /* the run is complete, as the agent recorded */
        bool preempted;  /* a notice ends the run */
        bool leaves;     /* this machine's: nothing is started here again */
        bool holding;    /* only the signal is waited for */
        bool stopped;    /* `cairn stop` or the agent's end: there is no other life */
        unsigned interrupts;
        uint64_t one_wish_until_ns; /* an interrupt until then says no more than the one before */
        int stop_signal;            /* the first that asks for the end; 0 while none came */
        uint64_t look_ns;           /* whether the command has called libcairn; 0: not any more */
        uint64_t end_ranks_at_ns;   /* SIGKILL to those that still run; 0: not set */
};

static void say(const struct runner *r, const char *format, ...)
        __attribute__((format(printf, 2, 3)));
static void say(const struct runner *r, const char *format, ...) {
        char text[1024];
        va_list arguments;
        va_start(arguments, format);
        (void) vsnprintf(text, sizeof text, format, arguments);
        va_end(arguments);
        fprintf(stderr, "cairn run: %s: %s\n", r->options->run, text);
}

/* ---- the agent ---- */

/* The agent watches us, as we watch the ranks: our pidfd goes with Start. */
static int own_pidfd(void) {
        return (int) syscall(SYS_pidfd_open, getpid(), 0);
}

static int connect_and_greet(struct runner *r, uint64_t deadline_ns, struct cairn_error *reterr) {
        for (;;) {
                struct cairn_error e = CAIRN_ERROR_INIT;
                int status = control_connect(&r->agent, r->socket, &e);
                if (status == 0)
                        status = control_greet(&r->agent, CAIRN__CONTROL__PEER_KIND__PEER_RUNNER,
                                               r->options->run, deadline_ns, &e);
                bool retry = status == CAIRN_ERR_UNREACHABLE || status == CAIRN_ERR_PEER;
                if (status == 0 || !retry || clock_now(&clock_system) > deadline_ns) {
                        if (status < 0 && reterr)
                                *reterr = e;
                        return status;
                }
                int wait_status;
                if (r->agent_pid > 0 &&
                    waitpid(r->agent_pid, &wait_status, WNOHANG) == r->agent_pid) {
                        r->agent_pid = 0;
                        r->agent_killed = WIFSIGNALED(wait_status);
                        return error_set(reterr, CAIRN_ERR_UNREACHABLE, "start agent", r->socket,
                                         "cairnd ended with status %d",
                                         ranks_exit_status(wait_status));
                }
                clock_system.sleep_ns(clock_system.context, AGENT_RETRY_NS);
        }
}

/* One that was killed while it started says nothing about the next one. */
static int agent_start(struct runner *r, struct cairn_error *reterr) {
        int status = 0;
        for (int tries = 0; tries < AGENT_START_TRIES; tries++) {
                r->agent_killed = false;
                TRY(agent_process_start(r->options->store, r->socket, -1, &r->agent_pid, reterr));
                status = connect_and_greet(r, clock_now(&clock_system) + AGENT_START_NS, reterr);
                if (status == 0 || !r->agent_killed)
                        break;
        }
        return status;
}

static int say_hello(struct runner *r) {
        TRY(control_connect(&r->agent, r->socket, NULL));
        int status =
                control_greet(&r->agent, CAIRN__CONTROL__PEER_KIND__PEER_RUNNER, r->options->run,
                              clock_now(&clock_system) + AGENT_ANSWER_NS, NULL);
        control_close(&r->agent);
        return status == CAIRN_ERR_UNREACHABLE ? CAIRN_ERR_PEER : status;
}

/* A private agent that answers twice, or is stopped, belongs to another `cairn run` of the same
 * run, which must not have two. One that hangs up or refuses is on its way out, for its `cairn run`
 * is gone; it may not have noticed that when it was asked first. */
static int wait_for_former(struct runner *r, struct cairn_error *reterr) {
        const char *run = r->options->run;
        uint64_t deadline_ns = clock_now(&clock_system) + AGENT_LEAVE_NS;
        for (int answers = 0;;) {
                int status = say_hello(r);
                if (status == CAIRN_ERR_UNREACHABLE || status == CAIRN_ERR_NOTFOUND)
                        return 0;
                answers += status != CAIRN_ERR_PEER;
                if (answers > 1 || status == CAIRN_ERR_TIMEOUT)
                        return error_set(reterr, CAIRN_ERR_EXISTS, "start run", run,
                                         "it is running already; `cairn status %s` shows it, "
                                         "`cairn stop %s` ends it",
                                         run, run);
                if (clock_now(&clock_system) >= deadline_ns)
                        return error_set(reterr, CAIRN_ERR_TIMEOUT, "start run", run,
                                         "the agent that another `cairn run` of it left has not "
                                         "ended yet; `cairn status %s` shows what it still does",
                                         run);
                clock_system.sleep_ns(clock_system.context,
                                      answers ? AGENT_ANSWER_AGAIN_NS : AGENT_RETRY_NS);
        }
}

/* The run's agent: the system's where there is one, else a private one. */
static int agent_find(struct runner *r, struct cairn_error *reterr) {
        TRY(agent_process_socket(r->options->run, r->socket, sizeof r->socket, &r->system_agent,
                                 reterr));
        if (r->system_agent)
                return connect_and_greet(r, clock_now(&clock_system) + AGENT_START_NS, reterr);
        TRY(wait_for_former(r, reterr));
        return agent_start(r, reterr);
}

/* ---- signals and children ---- */

static void fill_exit(const struct runner *r, uint32_t rank, Cairn__Control__RankExit *m,
                      Cairn__Control__Envelope *e) {
        m->run = agent_call_text(r->options->run);
        m->rank = r->ranks.first + rank;
        m->wait_status = r->ranks.all[rank].wait_status;
        m->pid = (uint32_t) r->ranks.all[rank].pid;
        CONTROL_SET(e, RANK_EXIT, rank_exit, m);
}

static void ask_to_stop(struct runner *r) {
        Cairn__Control__StopRequest request = CAIRN__CONTROL__STOP_REQUEST__INIT;
        request.run = agent_call_text(r->options->run);
        request.deadline_ns = STOP_DEADLINE_NS;
        Cairn__Control__Envelope envelope = CAIRN__CONTROL__ENVELOPE__INIT;
        CONTROL_SET(&envelope, STOP_REQUEST, stop_request, &request);
        struct cairn_error e = CAIRN_ERROR_INIT;
        if (control_send(&r->agent, &envelope, NULL, 0, clock_now(&clock_system) + NSEC_PER_SEC,
                         NULL, &e) == 0)
                return;
        log_error(LOG_LEVEL_WARNING, "ask the agent to stop the run", &e);
        ranks_signal(&r->ranks, SIGTERM);
}

/* A terminal that goes away, and a launcher's notice, may be told several times, and are followed
 * by SIGTERM: only the signals of somebody who waits say that it takes too long. timeout(1) sends
 * two at once, one to its child and one to the group. */
static void on_stop_signal(struct runner *r, int signal_number) {
        bool is_interrupt = signal_number == SIGINT || signal_number == SIGTERM;
        if (is_interrupt && clock_now(&clock_system) < r->one_wish_until_ns)
                return;
        r->interrupts += is_interrupt;
        if (is_interrupt)
                r->one_wish_until_ns = clock_now(&clock_system) + ONE_WISH_NS;
        if (r->interrupts > 1) {
                say(r, "ending at once");
                ranks_signal(&r->ranks, SIGKILL);
                return;
        }
        if (r->stop_signal || (r->holding && signal_number == SIGUSR2))
                return;
        r->stop_signal = signal_number;
        if (r->holding)
                return;
        say(r, "one snapshot, then an orderly end (again: end at once)");
        if (ranks_running(&r->ranks) > 0)
                ask_to_stop(r);
        if (is_interrupt) /* asking took its time, and the second one waited meanwhile */
                r->one_wish_until_ns = clock_now(&clock_system) + ONE_WISH_NS;
}

/* The agent is told at once how a rank ended: what its memory is worth hangs on it, and the others
 * may still take their time. Its answer is asked for later (settle). */
static void tell_exit(struct runner *r, uint32_t rank) {
        Cairn__Control__RankExit m = CAIRN__CONTROL__RANK_EXIT__INIT;
        Cairn__Control__Envelope envelope = CAIRN__CONTROL__ENVELOPE__INIT;
        fill_exit(r, rank, &m, &envelope);
        struct cairn_error e = CAIRN_ERROR_INIT;
        if (r->agent.socket >= 0 && control_tell(&r->agent, &envelope, NULL, 0,
                                                 clock_now(&clock_system) + NSEC_PER_SEC, &e) < 0)
                log_error(LOG_LEVEL_WARNING, "tell the agent of a rank's end", &e);
}

static void reap(struct runner *r) {
        int wait_status;
        for (pid_t pid; (pid = waitpid(-1, &wait_status, WNOHANG)) > 0;) {
                if (pid == r->agent_pid) {
                        r->agent_pid = 0;
                        continue;
                }
                int rank = ranks_reap(&r->ranks, pid, wait_status);
                if (rank < 0)
                        continue;
                tell_exit(r, (uint32_t) rank);
                if (wait_status != 0 && r->end_ranks_at_ns == 0 && ranks_running(&r->ranks) > 0) {
                        /* the group cannot go on without it */
                        ranks_signal(&r->ranks, SIGTERM);
                        r->end_ranks_at_ns = clock_now(&clock_system) + PEER_RANKS_END_NS;
                }
        }
}

static void on_signals(struct runner *r) {
        struct signalfd_siginfo info;
        while (read(r->signal_fd, &info, sizeof info) == sizeof info)
                if (info.ssi_signo == SIGCHLD)
                        reap(r);
                else if (info.ssi_signo != SIGUSR1) /* sent to all of a job's processes */
                        on_stop_signal(r, (int) info.ssi_signo);
}

/* Wait for a signal or the agent, at most until the deadline. Returns whether there is something
 * to receive from the agent, its end included. */
static bool runner_wait(struct runner *r, uint64_t deadline_ns) {
        struct pollfd fds[] = {{.fd = r->signal_fd, .events = POLLIN},
                               {.fd = r->agent.socket, .events = POLLIN}};
        uint64_t watch_ns = clock_now(&clock_system) + AGENT_WATCH_EVERY_NS;
        bool connected = r->agent.socket >= 0;
        deadline_ns = watch_ns < deadline_ns ? watch_ns : deadline_ns;
        if (r->end_ranks_at_ns && r->end_ranks_at_ns < deadline_ns)
                deadline_ns = r->end_ranks_at_ns;
        (void) poll(fds, 2, clock_poll_timeout(&clock_system, deadline_ns));
        if (fds[0].revents)
                on_signals(r);
        if (r->end_ranks_at_ns && clock_now(&clock_system) >= r->end_ranks_at_ns) {
                ranks_signal(&r->ranks, SIGKILL);
                r->end_ranks_at_ns = clock_now(&clock_system) + NSEC_PER_SEC;
        }
        if (fds[1].revents)
                agent_watch_heard(&r->watch, r->options->run);
        else
                agent_watch_ask(&r->watch, &r->agent, r->options->run);
        /* Asking may be what finds it dead. */
        return fds[1].revents != 0 || (connected && r->agent.socket < 0);
}

/* Ask and wait for the answer while signals and children are served. */
static int ask(struct runner *r, Cairn__Control__Envelope *e, const int *fds, size_t fd_count,
               Cairn__Control__Envelope__BodyCase expected, Cairn__Control__Envelope **ret,
               struct cairn_error *reterr) {
        bool waits = expected == CONTROL_REPLY(STARTED) && r->options->rendezvous;
        uint64_t id, deadline_ns = clock_now(&clock_system) + (waits ? GROUP_NS : REQUEST_NS);
        TRY(control_send(&r->agent, e, fds, fd_count, deadline_ns, &id, reterr));
        for (;;) {
                if (runner_wait(r, deadline_ns)) {
                        *ret = NULL;
                        int status = control_receive(&r->agent, id, 0, ret, NULL, reterr);
                        if (status == 0 && (*ret)->body_case != expected)
                                return error_set(reterr, CAIRN_ERR_CORRUPT, "speak to the agent",
                                                 r->socket,
                                                 "an unexpected answer: agent and `cairn` are of "
                                                 "different versions");
                        if (status != CAIRN_ERR_BUSY || *ret)
                                return status;
                }
                if (waits && r->stop_signal)
                        return error_set(reterr, CAIRN_ERR_PEER, "wait for nodes", r->options->run,
                                         "asked to end");
                if (clock_now(&clock_system) >= deadline_ns)
                        return waits ? error_set(reterr, CAIRN_ERR_TIMEOUT, "wait for nodes",
                                                 r->options->meeting_place,
                                                 "fewer than %u nodes came within %d minutes: "
                                                 "compare what the others say they wait at",
                                                 r->options->nodes_min,
                                                 (int) (GROUP_NS / NSEC_PER_SEC / 60))
                                     : error_set(reterr, CAIRN_ERR_TIMEOUT, "ask the agent",
                                                 r->socket, "it did not answer");
        }
}

/* ---- the conversation ---- */

static size_t fill_pairs(const struct option_list *list, Cairn__Control__Pair *pairs,
                         Cairn__Control__Pair **pointers) {
        for (size_t i = 0; i < list->count; i++) {
                const char *equals = strchr(list->items[i], '=');
                cairn__control__pair__init(&pairs[i]);
                pairs[i].key =
                        (ProtobufCBinaryData){.len = (size_t) (equals - list->items[i]),
                                              .data = (uint8_t *) (uintptr_t) list->items[i]};
                pairs[i].value = agent_call_text(equals + 1);
                pointers[i] = &pairs[i];
        }
        return list->count;
}

/* Start, or go on in `generation` after the agent was lost. */
static int send_start(struct runner *r, uint64_t generation, bool again,
                      Cairn__Control__Started **ret, struct cairn_error *reterr) {
        const struct runner_options *o = r->options;
        Cairn__Control__Start start = CAIRN__CONTROL__START__INIT;
        Cairn__Control__Pair overrides[64], conversions[64], *override_pointers[64],
                *conversion_pointers[64];
        start.run = agent_call_text(o->run);
        start.store = agent_call_text(o->store);
        start.world = (uint32_t) o->ranks;
        start.mode = o->mode;
        start.from_step = o->from_step;
        start.has_from_step = o->has_from_step;
        start.init_from = agent_call_text(o->init_from);
        start.overrides = override_pointers;
        start.n_overrides = fill_pairs(&o->overrides, overrides, override_pointers);
        start.conversions = conversion_pointers;
        start.n_conversions = fill_pairs(&o->conversions, conversions, conversion_pointers);
        start.every_steps = o->every_steps;
        start.every_ns = o->every_ns;
        start.keep_last = o->keep_last;
        start.restart = r->restart;
        start.create_store = o->mode == 1;
        start.before_step = r->guard.before_step;
        start.generation = generation;
        start.again = again;
        start.master_port = o->master_port;
        if (o->rendezvous) {
                start.rendezvous = agent_call_text(o->rendezvous);
                start.nodes_min = o->nodes_min;
                start.nodes_max = o->nodes_max;
                start.node = agent_call_text(o->node);
                start.address = agent_call_text(o->address);
        }
        start.socket_note = agent_call_text(r->system_agent ? "system" : "embedded");
        Cairn__Control__Envelope envelope = CAIRN__CONTROL__ENVELOPE__INIT, *reply = NULL;
        CONTROL_SET(&envelope, START, start, &start);
        _cleanup_close_ int pidfd = own_pidfd();
        if (pidfd < 0)
                return error_set_errno(reterr, errno, "open own pidfd", "");
        TRY(ask(r, &envelope, &pidfd, 1, CONTROL_REPLY(STARTED), &reply, reterr));
        *ret = reply->started;
        return 0;
}

/* Without its fellows on other nodes no rank gets any further. With a final status the run ends. */
static void lose_group(struct runner *r, const char *reason, int final_code) {
        if (final_code && !r->group_code) {
                r->group_code = final_code;
                say(r, "%s; no other start would do better, the run ends with status %d", reason,
                    final_code);
        } else if (!r->group_lost && !final_code)
                say(r, "%s; the ranks of this node start again with the others", reason);
        if (r->group_lost)
                return;
        r->group_lost = true;
        ranks_signal(&r->ranks, SIGKILL);
}

/* The run is stopped, and what its ranks held is committed or given up. Some have not come to their
 * agent, or have left it and did not end in time: there is nothing of them to be saved. */
static void end_ranks(struct runner *r) {
        if (ranks_running(&r->ranks) == 0 || r->end_ranks_at_ns)
                return;
        ranks_signal(&r->ranks, SIGTERM);
        r->end_ranks_at_ns = clock_now(&clock_system) + STOP_RANKS_END_NS;
}

static void take_notice(struct runner *r, const Cairn__Control__Notice *n) {
        char kind[80], id[80], decision[32], left[32], need[32], bytes[32];
        text_escape(kind, sizeof kind, (const char *) n->kind.data, n->kind.len);
        text_escape(id, sizeof id, (const char *) n->id.data, n->id.len);
        text_escape(decision, sizeof decision, (const char *) n->decision.data, n->decision.len);
        r->preempted = r->preempted || n->stops;
        r->leaves = r->leaves || n->stops;
        say(r, "notice (%s, id %s): this machine %s within %s; %s (%s, %s)%s", kind, id,
            n->stops ? "goes away" : "may go away", human_duration(n->left_ns, left),
            agent_status_decision(decision), human_bytes(n->image_bytes + n->flight_bytes, bytes),
            human_duration(n->need_ns, need),
            !n->stops          ? "; the run goes on"
            : r->options->hold ? "; then the run ends and SIGTERM is waited for"
                               : "; then the run ends with status 75");
}

/* An event, or an answer that nobody waits for; negative: the end of the connection. */
static int take_event(struct runner *r) {
        Cairn__Control__Envelope *event;
        char reason[600];
        int status = control_receive(&r->agent, 0, 0, &event, NULL, NULL);
        if (status == 0 && event->body_case == CONTROL_REPLY(GROUP_LOST)) {
                text_escape(reason, sizeof reason, (const char *) event->group_lost->reason.data,
                            event->group_lost->reason.len);
                lose_group(r, reason, event->group_lost->code);
        }
        if (status == 0 && event->body_case == CONTROL_REPLY(STOP_REPLY))
                end_ranks(r);
        if (status == 0 && event->body_case == CONTROL_REPLY(NOTICE))
                take_notice(r, event->notice);
        return status == CAIRN_ERR_BUSY ? 0 : status;
}

/* What a former agent left may hold the run's lock: a store process that is killed, but waits in
 * the kernel for storage that does not answer. */
static int start_when_free(struct runner *r, uint64_t generation, bool again,
                           Cairn__Control__Started **ret, struct cairn_error *reterr) {
        uint64_t deadline_ns = clock_now(&clock_system) + REQUEST_NS;
        for (bool told = false;; told = true) {
                struct cairn_error e = CAIRN_ERROR_INIT;
                int status = send_start(r, generation, again, ret, &e);
                uint64_t pause_ns = clock_now(&clock_system) + LOCK_PAUSE_NS;
                if (status < 0)
                        *reterr = e;
                if (status != CAIRN_ERR_BUSY || !again || pause_ns > deadline_ns ||
                    r->interrupts > 1)
                        return status;
                if (!told)
                        log_error(LOG_LEVEL_WARNING, "waiting for the run's lock", &e);
                while (clock_now(&clock_system) < pause_ns)
                        if (runner_wait(r, pause_ns) && take_event(r) < 0)
                                return error_set(reterr, CAIRN_ERR_PEER, "start run",
                                                 r->options->run, "the agent ended");
        }
}

static void say_note(const struct runner *r, const Cairn__Control__Started *s) {
        char note[600];
        text_escape(note, sizeof note, (const char *) s->note.data, s->note.len);
        if (*note)
                say(r, "%s", note);
}

/* The agent is gone, or its store process died over what was asked: a new private one, or the
 * system's again. */
static int agent_again(struct runner *r, struct cairn_error *reterr) {
        uint64_t patience_ns = r->recover_ns ? SYSTEM_AGENT_AGAIN_NS : SYSTEM_AGENT_NS;
        control_close(&r->agent);
        if (r->system_agent)
                return connect_and_greet(r, clock_now(&clock_system) + patience_ns, reterr);
        if (r->agent_pid > 0) { /* it lives: end it, it must not be two */
                (void) kill(r->agent_pid, SIGKILL);
                (void) waitpid(r->agent_pid, NULL, 0);
                r->agent_pid = 0;
        }
        say(r, "the agent died; starting it again");
        return agent_start(r, reterr);
}

static int agent_recover_once(struct runner *r, struct cairn_error *reterr) {
        Cairn__Control__Started *started = NULL;
        TRY(agent_again(r, reterr));
        /* A group is not taken up by one node: all start again from its newest checkpoint. */
        if (r->options->rendezvous) {
                r->agent_lost = true;
                lose_group(r, "this node's agent died", 0);
                return 0;
        }
        TRY(start_when_free(r, r->generation, true, &started, reterr));
        say_note(r, started);
        for (uint32_t rank = 0; rank < r->ranks.count; rank++)
                if (!r->ranks.all[rank].running)
                        tell_exit(r, rank);
        if (r->stop_signal && ranks_running(&r->ranks) > 0)
                ask_to_stop(r);
        return 0;
}

/* The same while ranks run or settle: they go on meanwhile. One that dies while it takes the run up
 * again says nothing about the next one. */
static int agent_recover(struct runner *r, struct cairn_error *reterr) {
        int status = CAIRN_ERR_PEER;
        for (int tries = 0; tries < AGENT_START_TRIES && status == CAIRN_ERR_PEER; tries++)
                status = agent_recover_once(r, reterr);
        if (status == 0)
                r->recover_ns = 0;
        if (status == 0 && r->look_ns) /* ranks come back to the new one in their own time */
                r->look_ns = clock_now(&clock_system) + CALL_NS;
        return status;
}

static void agent_recover_or_wait(struct runner *r) {
        struct cairn_error e = CAIRN_ERROR_INIT;
        bool told = r->recover_ns != 0;
        if (agent_recover(r, &e) == 0) {
                if (told)
                        say(r, "the agent is back: checkpoints go on");
                return;
        }
        control_close(&r->agent);
        if (!told)
                log_error(LOG_LEVEL_ERROR,
                          "training goes on without checkpoints, the agent is tried again", &e);
        r->recover_pause_ns = told ? 2 * r->recover_pause_ns : NSEC_PER_SEC;
        if (r->recover_pause_ns > BACKOFF_NS_MAX)
                r->recover_pause_ns = BACKOFF_NS_MAX;
        r->recover_ns = clock_now(&clock_system) + r->recover_pause_ns;
}

static void drain_agent(struct runner *r) {
        if (take_event(r) < 0)
                agent_recover_or_wait(r);
}

/* One round of waiting while ranks run, or before they are started again. */
static void runner_turn(struct runner *r, uint64_t deadline_ns) {
        if (runner_wait(r, deadline_ns) || (r->agent.socket < 0 && !r->recover_ns))
                drain_agent(r);
        else if (r->recover_ns && clock_now(&clock_system) >= r->recover_ns)
                agent_recover_or_wait(r);
}

static void take_settled(struct runner *r, const Cairn__Control__RankSettled *m) {
        if (m->committed_step > r->committed_step)
                r->committed_step = m->committed_step;
        if (!r->group_lost) /* else it did not fail by itself */
                crash_guard_settled(&r->guard, m->committed_step, m->died_step);
        r->left.post_mortem = m->post_mortem;
        r->left.flagged_step = m->flagged_step;
        r->left.lost_steps = m->lost_steps;
        r->finished = r->finished || m->finished;
        r->stopped = r->stopped || m->stopped;
        r->preempted = r->preempted || m->preempted;
        r->leaves = r->leaves || m->leaves;
}

/* Tell the agent how each rank ended and wait until what it left in flight is committed or given
 * up. */
static int settle(struct runner *r, struct cairn_error *reterr) {
        for (uint32_t rank = 0; rank < r->ranks.count && !r->agent_lost; rank++) {
                Cairn__Control__RankExit exit_message = CAIRN__CONTROL__RANK_EXIT__INIT;
                Cairn__Control__Envelope envelope = CAIRN__CONTROL__ENVELOPE__INIT, *reply = NULL;
                fill_exit(r, rank, &exit_message, &envelope);
                int status =
                        ask(r, &envelope, NULL, 0, CONTROL_REPLY(RANK_SETTLED), &reply, reterr);
                for (int tries = 0; status == CAIRN_ERR_PEER && tries < AGENT_START_TRIES;
                     tries++) {
                        TRY(agent_recover(r, reterr));
                        if (r->agent_lost)
                                return 0;
                        status = ask(r, &envelope, NULL, 0, CONTROL_REPLY(RANK_SETTLED), &reply,
                                     reterr);
                }
                if (status < 0)
                        return status;
                take_settled(r, reply->rank_settled);
        }
        return 0;
}

static void announce(const struct runner *r, const Cairn__Control__Started *s) {
        char checkpoint[300];
        text_escape(checkpoint, sizeof checkpoint, (const char *) s->checkpoint.data,
                    s->checkpoint.len);
        say_note(r, s);
        if (s->checkpoint.len == 0)
                say(r, "starts fresh; checkpoints go to %s/%s", r->options->store, r->options->run);
        else if (s->mode == 4)
                say(r, "starts fresh with the weights of %s", checkpoint);
        else
                say(r, "resumes step %" PRId64 " from %s", s->checkpoint_step, checkpoint);
}

static void say_waiting(const struct runner *r) {
        const struct runner_options *o = r->options;
        char least[32] = "";
        if (o->nodes_min < o->nodes_max)
                (void) snprintf(least, sizeof least, "%u to ", o->nodes_min);
        say(r, "waits for %s%u nodes at %s", least, o->nodes_max, o->meeting_place);
}

/* A command that does not call libcairn trains, and nothing of it is saved: that is told while it
 * runs, once. An agent that does not answer now is asked later. */
static void look_for_calls(struct runner *r) {
        _cleanup_(control_done) struct control agent;
        json_t *status = NULL;
        uint64_t now_ns = clock_now(&clock_system);
        r->look_ns = now_ns + CALL_NS;
        control_init(&agent, &clock_system);
        if (control_connect(&agent, r->socket, NULL) < 0 ||
            control_greet(&agent, CAIRN__CONTROL__PEER_KIND__PEER_TOOL, NULL, now_ns + NSEC_PER_SEC,
                          NULL) < 0 ||
            agent_status_ask(&agent, r->options->run, NSEC_PER_SEC, &status, NULL) < 0)
                return;
        r->look_ns = 0;
        const json_t *run = json_array_get(json_object_get(status, "runs"), 0);
        if (run && json_array_size(json_object_get(run, "ranks")) == 0)
                say(r,
                    "the command has not called libcairn for %d s: nothing of it is saved until "
                    "it does (man 3 libcairn)",
                    (int) (CALL_NS / NSEC_PER_SEC));
        json_decref(status);
}

/* One life of the group: generation, ranks, their end, settlement. *ret_done: there was nothing to
 * run. */
static int run_once(struct runner *r, bool *ret_done, struct cairn_error *reterr) {
        Cairn__Control__Started *started = NULL;
        r->group_lost = r->agent_lost = false;
        r->ranks.count = 0;
        if (r->options->rendezvous)
                say_waiting(r);
        int status = start_when_free(r, 0, r->restart > 0, &started, reterr);
        if (status < 0 && r->stop_signal && r->options->rendezvous)
                return 0; /* asked to end before it began */
        r->leaves = r->leaves || status == CAIRN_ERR_PREEMPTED;
        if (status == CAIRN_ERR_PREEMPTED && r->generation) { /* a notice between two lives */
                r->preempted = true;
                return 0;
        }
        /* Between two lives: nothing of ours was running. */
        for (int tries = 0; status == CAIRN_ERR_PEER && tries < AGENT_START_TRIES; tries++) {
                TRY(agent_again(r, reterr));
                status = start_when_free(r, 0, true, &started, reterr);
        }
        if (status < 0)
                return status;
        if (started->finished_reason.len > 0) {
                char reason[200];
                text_escape(reason, sizeof reason, (const char *) started->finished_reason.data,
                            started->finished_reason.len);
                say(r, "is finished (%s); nothing to do", reason);
                *ret_done = true;
                return 0;
        }
        r->generation = started->generation;
        bool resumes = started->checkpoint.len > 0 && started->mode == 2;
        r->committed_step = resumes ? started->checkpoint_step : -1;
        crash_guard_started(&r->guard, r->committed_step);
        announce(r, started);
        char master[128], address[128];
        (void) snprintf(master, sizeof master, "%.*s", (int) started->master_address.len,
                        (const char *) started->master_address.data);
        (void) snprintf(address, sizeof address, "%.*s", (int) started->address.len,
                        (const char *) started->address.data);
        const struct ranks_environment environment = {.run = r->options->run,
                                                      .store = r->options->store,
                                                      .socket = r->socket,
                                                      .master_address = master,
                                                      .address = address,
                                                      .master_port = started->master_port,
                                                      .node_rank = started->node_rank,
                                                      .nodes = started->nodes,
                                                      .first_rank = started->first_rank,
                                                      .world = started->world,
                                                      .restart = r->restart};
        r->end_ranks_at_ns = 0;
        if (r->stop_signal || r->preempted)
                return 0; /* asked to end before it began */
        TRY(ranks_spawn(&r->ranks, (uint32_t) r->options->ranks, &environment, r->options->command,
                        reterr));
        if (r->restart == 0 || r->look_ns)
                r->look_ns = clock_now(&clock_system) + CALL_NS;
        while (ranks_running(&r->ranks) > 0) {
                runner_turn(r, clock_now(&clock_system) + NSEC_PER_SEC);
                if (r->look_ns && clock_now(&clock_system) >= r->look_ns)
                        look_for_calls(r);
        }
        ranks_clear(&r->ranks);
        return settle(r, reterr);
}

static int stop_code(const struct runner *r, int child_code) {
        if (child_code != 0 && child_code != 75 && child_code < 128)
                return child_code;
        return r->stop_signal == SIGINT ? 130 : 75;
}

static void announce_restart(struct runner *r, const char *what, bool again) {
        char from[128], kept[128] = "", lost[64] = "";
        if (r->committed_step < 0)
                (void) snprintf(from, sizeof from, "from the beginning");
        else
                (void) snprintf(from, sizeof from, "from step %" PRId64 "%s", r->committed_step,
                                r->left.post_mortem ? " (taken after its death)" : "");
        if (again)
                (void) snprintf(from, sizeof from,
                                "from before step %" PRId64 ", for it failed twice after step "
                                "%" PRId64,
                                r->guard.before_step, r->guard.failed_step);
        if (r->left.flagged_step >= 0)
                (void) snprintf(kept, sizeof kept,
                                "; step %" PRId64 " is kept, but flagged: it may be damaged",
                                r->left.flagged_step);
        if (r->left.lost_steps > 0)
                (void) snprintf(lost, sizeof lost, "; finished steps lost: %" PRIu64,
                                r->left.lost_steps);
        say(r, "%s; restart %" PRIu64 " %s%s%s", what, r->restart, from, kept, lost);
}

/* The run is complete, and what it made is not there. Empty: it is. */
static const char *shortfall(const struct runner *r, char *text, size_t bytes) {
        *text = '\0';
        if (!r->finished || r->left.lost_steps == 0)
                return text;
        if (r->left.flagged_step >= 0)
                (void) snprintf(text, bytes,
                                "the newest checkpoint, of step %" PRId64
                                ", is flagged: never chosen by itself",
                                r->left.flagged_step);
        else if (r->committed_step < 0)
                (void) snprintf(text, bytes, "no checkpoint was committed");
        else
                (void) snprintf(text, bytes,
                                "the newest checkpoint is of step %" PRId64 ", %" PRIu64
                                " steps before the end",
                                r->committed_step, r->left.lost_steps);
        return text;
}

/* Decide about another life. Returns the exit status, or -1 to restart. */
static int after_life(struct runner *r) {
        uint32_t rank = ranks_first_failed(&r->ranks);
        int wait_status = r->ranks.count > 0 ? r->ranks.all[rank].wait_status : 0;
        int code = ranks_exit_status(wait_status);
        char what[128];
        if (r->stop_signal)
                return stop_code(r, code);
        if (r->preempted && !r->leaves)
                say(r, "a machine of the run goes away, and the run ends");
        if (r->preempted)
                return r->finished || (code != 0 && code < 128) ? code : 75;
        if (r->group_code)
                return r->group_code;
        if (!r->group_lost && (code == 0 || is_final(code)))
                return code;
        if (r->group_lost)
                (void) snprintf(what, sizeof what, "the group was lost");
        else
                ranks_describe(r->ranks.first + rank, wait_status, what, sizeof what);
        if (r->stopped) { /* a trainer that did not end in time was killed: nobody wants it back */
                say(r, "%s; the run was to stop and is not started again", what);
                return code < 128 ? code : 75;
        }
        struct crash_guard *g = &r->guard;
        bool again = crash_guard_failed(g);
        if (g->restarts >= r->options->max_restarts) {
                say(r, "%s; giving up after %" PRIu64 " restarts without a new checkpoint", what,
                    g->restarts);
                return code;
        }
        if (crash_guard_is_hopeless(g)) {
                say(r,
                    "%s; giving up: it failed after step %" PRId64
                    " again, and going back %d times did not help",
                    what, g->failed_step, CRASH_GUARD_BACK_MAX);
                return code;
        }
        uint64_t backoff_ns = BACKOFF_NS << (g->restarts < 8 ? g->restarts : 8);
        g->restarts++;
        r->restart++;
        announce_restart(r, what, again);
        uint64_t until_ns = clock_now(&clock_system) +
                            (backoff_ns < BACKOFF_NS_MAX ? backoff_ns : BACKOFF_NS_MAX);
        while (!r->stop_signal && !r->preempted && !r->group_code &&
               clock_now(&clock_system) < until_ns)
                runner_turn(r, until_ns);
        if (r->stop_signal)
                return stop_code(r, 0);
        return r->preempted ? 75 : r->group_code ? r->group_code : -1;
}

/* ---- the end ---- */

/* A command that never called libcairn trains, and ends well: that nothing is left of it must not
 * be found out at the next start. */
static bool left_nothing(const struct runner *r, int code) {
        return code == 0 && r->generation > 0 && r->committed_step < 0 &&
               r->left.flagged_step < 0 && !r->finished && !r->stopped && !r->stop_signal &&
               !r->agent_lost && r->options->nodes_max <= 1;
}

static void end_run(struct runner *r, int code) {
        char reason[200], missing[128];
        (void) snprintf(reason, sizeof reason, "%s%s%s",
                        r->stop_signal ? "stopped"
                        : code == 0    ? "completed"
                        : code == 75   ? "preempted"
                                       : "failed",
                        *shortfall(r, missing, sizeof missing) ? "; " : "", missing);
        if (*missing)
                say(r, "is finished, but %s", missing);
        if (left_nothing(r, code))
                say(r, "ended with 0, but no checkpoint was committed: nothing can be resumed; "
                       "does the command call libcairn (man 3 libcairn)?");
        Cairn__Control__End end = CAIRN__CONTROL__END__INIT;
        end.run = agent_call_text(r->options->run);
        end.reason = agent_call_text(reason);
        end.code = code;
        Cairn__Control__Envelope envelope = CAIRN__CONTROL__ENVELOPE__INIT, *reply = NULL;
        CONTROL_SET(&envelope, END, end, &end);
        struct cairn_error e = CAIRN_ERROR_INIT;
        if (r->agent.socket >= 0 && ask(r, &envelope, NULL, 0, CONTROL_REPLY(DONE), &reply, &e) < 0)
                log_error(LOG_LEVEL_WARNING, "end the run", &e);
        control_close(&r->agent);
}

/* The private agent ends by itself after End; one that does not is ended. */
static void end_agent(struct runner *r) {
        uint64_t deadline_ns = clock_now(&clock_system) + AGENT_END_NS;
        while (r->agent_pid > 0 && clock_now(&clock_system) < deadline_ns && r->interrupts < 2)
                (void) runner_wait(r, clock_now(&clock_system) + 100 * NSEC_PER_MSEC);
        if (r->agent_pid > 0) {
                say(r, r->interrupts < 2 ? "the agent did not end in time; it is killed"
                                         : "ends at once, as asked twice: the agent is killed");
                (void) kill(r->agent_pid, SIGKILL);
                (void) waitpid(r->agent_pid, NULL, 0);
                (void) unlink(r->socket); /* as it would have done */
        }
        (void) process_tree_kill_descendants(getpid());
}

/* Whoever watches this process would start it again on a machine that is about to go: as long as it
 * is there, nobody does. The run is free by now for another machine. */
static void hold(struct runner *r) {
        r->holding = true;
        say(r, "holds until SIGTERM, so that nothing is started here again");
        while (!r->stop_signal)
                (void) runner_wait(r, clock_now(&clock_system) + NSEC_PER_SEC);
}

static int runner_init(struct runner *r, struct cairn_error *reterr) {
        static const int taken[] = {SIGCHLD, SIGINT, SIGTERM, SIGUSR1, SIGUSR2};
        struct sigaction hang_up;
        sigset_t signals;
        (void) sigemptyset(&signals);
        for (size_t i = 0; i < sizeof taken / sizeof *taken; i++)
                (void) sigaddset(&signals, taken[i]);
        if (sigaction(SIGHUP, NULL, &hang_up) == 0 && hang_up.sa_handler != SIG_IGN) /* nohup */
                (void) sigaddset(&signals, SIGHUP);
        if (sigprocmask(SIG_BLOCK, &signals, NULL) < 0)
                return error_set_errno(reterr, errno, "block signals", "");
        (void) signal(SIGPIPE, SIG_IGN);
        if (prctl(PR_SET_CHILD_SUBREAPER, 1) < 0)
                return error_set_errno(reterr, errno, "become a subreaper", "");
        r->signal_fd = signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
        if (r->signal_fd < 0)
                return error_set_errno(reterr, errno, "open signalfd", "");
        control_init(&r->agent, &clock_system);
        return agent_find(r, reterr);
}

int runner_main(const struct command *self, const struct runner_options *options) {
        struct runner r = {.command = self,
                           .options = options,
                           .signal_fd = -1,
                           .committed_step = -1,
                           .guard = CRASH_GUARD_INIT};
        struct cairn_error e = CAIRN_ERROR_INIT;
        int code, status = runner_init(&r, &e);
        bool done = false;
        if (status < 0)
                code = command_fail(self, &e);
        else
                do {
                        status = run_once(&r, &done, &e);
                        code = status < 0 ? command_fail(self, &e) : done ? 0 : after_life(&r);
                } while (code < 0);
        ranks_signal(&r.ranks, SIGKILL);
        if (status == 0)
                end_run(&r, code);
        else if (r.agent_pid > 0)
                (void) kill(r.agent_pid, SIGTERM); /* nothing was begun that End would end */
        control_done(&r.agent);
        end_agent(&r);
        generation_lock_remove(options->run);
        if (r.leaves && options->hold && code == 75 && !r.stop_signal)
                hold(&r);
        cleanup_close(&r.signal_fd);
        return code;
}
