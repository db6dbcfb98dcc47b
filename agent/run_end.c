/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/attempt.h"
#include "agent/demand.h"
#include "agent/group.h"
#include "agent/run_parts.h"
#include "base/log.h"
#include "format/check.h"
#include "format/wire.h"
#include <signal.h>

#define RUN_END_NS (30 * NSEC_PER_SEC)

/* A snapshot that failed, or was asked for and did not even begin, is said together with what it
 * loses: who stops a run for its last snapshot must not take an older one for it. */
static void answer_stopped(struct run *run) {
        Cairn__Control__Envelope e = CAIRN__CONTROL__ENVELOPE__INIT;
        Cairn__Control__StopReply m = CAIRN__CONTROL__STOP_REPLY__INIT;
        Cairn__Control__Failure failure = CAIRN__CONTROL__FAILURE__INIT;
        bool all_came = true;
        m.step = run->resumable_step;
        m.reached = run->committed_step;
        for (uint32_t i = 0; i < run->local_count; i++) {
                all_came = all_came && run->sessions[i];
                if (run->sessions[i] && run->sessions[i]->page) {
                        int64_t step = atomic_load(&run->sessions[i]->page->last_step);
                        m.reached = step > m.reached ? step : m.reached;
                }
        }
        bool failed = run->attempts_failed > run->failed_before;
        bool unsaved = run->stop.cut_demanded && m.step == run->stop.resumable_before;
        if (m.reached > m.step && (failed || unsaved) && !run->finish.done) {
                struct cairn_error late = CAIRN_ERROR_INIT;
                (void) error_set(&late, CAIRN_ERR_TIMEOUT, "write checkpoint", run->name,
                                 "none was committed before the deadline of the stop");
                wire_failure_fill(&failure, failed ? &run->last_error : &late);
                m.failure = &failure;
        }
        e.body_case = CAIRN__CONTROL__ENVELOPE__BODY_STOP_REPLY;
        e.stop_reply = &m;
        while (run->stop.reply_count > 0)
                server_reply(&run->stop.replies[--run->stop.reply_count], &e, NULL, 0);
        /* Ranks that had no session are its to end, at once; so are those that stay after theirs,
         * or come to no session in a life that began since, but these have until the deadline. */
        bool at_once = !run->stop.answered && !all_came;
        run->stop.answered = true;
        if (run->stop.told || (!at_once && loop_now(&run->agent->loop) < run->stop.deadline_ns))
                return;
        server_tell(&run->runner, &e);
        run->stop.told = true;
}

int run_stop(struct run *run, const struct reply_to *to, uint64_t duration_ns,
             struct cairn_error *reterr) {
        if (to && run->stop.reply_count == sizeof run->stop.replies / sizeof *run->stop.replies)
                return error_set(reterr, CAIRN_ERR_BUSY, "stop run", run->name,
                                 "too many ask for it");
        uint64_t now_ns = loop_now(&run->agent->loop);
        if (!duration_ns)
                duration_ns = run->agent->config.stop_deadline_s * NSEC_PER_SEC;
        if (duration_ns > UINT64_MAX / 4)
                duration_ns = UINT64_MAX / 4;
        if (!run->stop.active || now_ns + duration_ns < run->stop.deadline_ns) {
                run->stop.half_ns = now_ns + duration_ns / 2;
                run->stop.deadline_ns = now_ns + duration_ns;
        }
        if (!run->stop.active)
                log_event(LOG_LEVEL_INFO, "run=%s stop=asked deadline_ms=%llu", run->name,
                          (unsigned long long) (duration_ns / NSEC_PER_MSEC));
        if (!run->stop.active) {
                run->stop.resumable_before = run->resumable_step;
                group_tell_stop(run, duration_ns);
        }
        run->stop.active = true;
        if (to)
                run->stop.replies[run->stop.reply_count++] = *to;
        run_wish_stop(run);
        run_pump(run);
        return 0;
}

/* What is in flight is given up, too: storage that hangs must not hold up the stop. */
static void stop_by_force(struct run *run) {
        struct cairn_error error = CAIRN_ERROR_INIT;
        run_signal_all(run, SIGKILL);
        for (uint32_t i = 0; i < SESSION_COUNT_MAX; i++) {
                struct session *s = run->sessions[i];
                if (!s || !s->dead || s->state != SESSION_SETTLING)
                        continue;
                (void) error_set(&error, CAIRN_ERR_TIMEOUT, "write checkpoint", run->name,
                                 "the storage did not take it before the deadline of the stop");
                if (run_session_in_flight(run, s))
                        attempts_doom_all(run, &error);
                session_finish_settling(s);
        }
}

void run_stop_check(struct run *run) {
        uint64_t now_ns = loop_now(&run->agent->loop);
        if (!run->stop.active)
                return;
        if (run_sessions_ended(run) && run->state != RUN_STARTING) {
                answer_stopped(run);
                return;
        }
        run_wish_stop(run);
        if (now_ns >= run->stop.half_ns && !run->stop.cut_demanded) {
                run->stop.cut_demanded = true;
                demand_internal(run, run->stop.deadline_ns);
        }
        /* SIGTERM once the state is safe, or when little time is left. */
        uint64_t last_ns = run->stop.half_ns + (run->stop.deadline_ns - run->stop.half_ns) / 2;
        if (run->stop.cut_demanded && !run->stop.termed &&
            (now_ns >= last_ns || !demand_pending(run))) {
                run->stop.termed = true;
                log_event(LOG_LEVEL_WARNING, "run=%s trainers=terminated reason=\"stop\"",
                          run->name);
                run_signal_all(run, SIGTERM);
        }
        if (now_ns >= run->stop.deadline_ns)
                stop_by_force(run);
}

/* Of a longer text as many bytes as there is room for, between two letters of UTF-8: half a one
 * would not be written. */
static size_t shorten(const uint8_t *text, size_t room) {
        while (room > 0 && (text[room] & 0xc0) == 0x80)
                room--;
        return room;
}

int run_finish(struct run *run, struct session *s, const struct reply_to *to,
               const Cairn__Control__Finish *m, struct cairn_error *reterr) {
        if (run->finish.done) {
                server_done_reply(to);
                return 0;
        }
        if (s->finished || run->finish.count >= SESSION_COUNT_MAX)
                return error_set(reterr, CAIRN_ERR_API, "finish run", run->name,
                                 "rank %u said so already", s->rank);
        const char *wrong = check_text(&m->reason, m->reason.len, false);
        if (wrong)
                return error_set(reterr, CAIRN_ERR_API, "finish run", run->name, "the reason %s",
                                 wrong);
        s->finished = true;
        size_t bytes = m->reason.len < sizeof run->finish.reason
                               ? m->reason.len
                               : shorten(m->reason.data, sizeof run->finish.reason - 1);
        memset(run->finish.reason, 0, sizeof run->finish.reason);
        memcpy(run->finish.reason, m->reason.data, bytes);
        run->finish.step = m->step;
        run->finish.replies[run->finish.count++] = *to;
        run_pump(run);
        return 0;
}

static void finished(void *context, const struct store_message *reply, struct wire_fds *fds) {
        struct run *run = context;
        (void) fds;
        for (uint32_t i = 0; i < run->finish.count; i++)
                if (reply->status < 0)
                        server_fail(&run->finish.replies[i], &reply->error);
                else
                        server_done_reply(&run->finish.replies[i]);
        run->finish.count = 0;
        run->finish.sent = false;
        run->finish.done = reply->status == 0;
        for (uint32_t i = 0; i < SESSION_COUNT_MAX; i++)
                if (run->sessions[i])
                        run->sessions[i]->finished = run->finish.done;
        log_event(LOG_LEVEL_INFO, "run=%s finished=%d step=%lld", run->name, run->finish.done,
                  (long long) run->finish.step);
        if (group_leads(run))
                group_tell_finished(run, reply->status < 0 ? &reply->error : NULL);
}

void run_heard_finished(struct run *run, const struct cairn_error *error) {
        const struct store_message m = {.status = error->status, .error = *error};
        finished(run, &m, NULL);
}

/* The run is complete, and what it made is not there: whoever asks for it later is told so. */
static void add_shortfall(struct run *run) {
        char what[96], *reason = run->finish.reason;
        if (run->committed_step < 0)
                (void) snprintf(what, sizeof what, "no checkpoint was committed");
        else if (run->committed_flagged)
                (void) snprintf(what, sizeof what,
                                "the newest checkpoint, of step %lld, is flagged: not finite",
                                (long long) run->committed_step);
        else if (run->finish.step > run->committed_step &&
                 run->attempts_failed > run->failed_before)
                (void) snprintf(what, sizeof what, "the newest checkpoint is of step %lld",
                                (long long) run->committed_step);
        else
                return;
        size_t bytes = strlen(reason),
               room = sizeof run->finish.reason - sizeof "; " - strlen(what);
        if (bytes > room)
                bytes = shorten((const uint8_t *) reason, room);
        (void) snprintf(reason + bytes, sizeof run->finish.reason - bytes, "%s%s",
                        bytes ? "; " : "", what);
        log_event(LOG_LEVEL_WARNING, "run=%s finished_step=%lld committed_step=%lld reason=\"%s\"",
                  run->name, (long long) run->finish.step, (long long) run->committed_step, reason);
}

/* All ranks said so, and what they had cut before is committed: then it is true. */
void run_finish_check(struct run *run) {
        struct cairn_error error = CAIRN_ERROR_INIT;
        if (run->finish.sent || run->finish.count < run->local_count || run->finish.count == 0)
                return;
        for (uint32_t i = 0; i < run->local_count; i++)
                if (run->sessions[i] && run_session_in_flight(run, run->sessions[i]))
                        return;
        if (group_leads(run) && !group_finished(run))
                return;
        run->finish.sent = true;
        if (!group_leads(run)) {
                group_tell_finish(run);
                return;
        }
        add_shortfall(run);
        struct store_message m = {.verb = STORE_FINISHED, .step = run->finish.step};
        memcpy(m.name, run->finish.reason, sizeof run->finish.reason);
        if (run_store_request(run, &m, finished, run, &error) < 0) {
                struct store_message failed = {.status = error.status, .error = error};
                finished(run, &failed, NULL);
        }
}

int run_end(struct run *run, const struct reply_to *to, const char *reason, int32_t code,
            struct cairn_error *reterr) {
        if (run->end.wanted) {
                if (to && run->end.reply.connection)
                        return error_set(reterr, CAIRN_ERR_API, "end run", run->name,
                                         "it is being ended");
        } else {
                run->end.wanted = true;
                run->end.code = code;
                run->end.deadline_ns = loop_now(&run->agent->loop) + RUN_END_NS;
                (void) snprintf(run->end.reason, sizeof run->end.reason, "%s", reason);
                loop_timer_clear(&run->agent->loop, &run->every_timer);
        }
        if (to)
                run->end.reply = *to;
        run_pump(run);
        return 0;
}

static void run_ended(void *context, const struct store_message *reply, struct wire_fds *fds) {
        struct run *run = context;
        (void) fds;
        if (reply->status < 0)
                log_error(LOG_LEVEL_WARNING, "end run", &reply->error);
        if (run->end.reply.connection)
                server_done_reply(&run->end.reply);
        run_set_state(run, RUN_ENDED);
}

static void exit_written(void *context, const struct store_message *reply, struct wire_fds *fds) {
        struct run *run = context;
        struct cairn_error error = CAIRN_ERROR_INIT;
        (void) fds;
        if (reply->status < 0)
                log_error(LOG_LEVEL_WARNING, "write exit.json", &reply->error);
        struct store_message m = {.verb = STORE_END_RUN};
        if (run_store_request(run, &m, run_ended, run, &error) < 0) {
                struct store_message failed = {.status = error.status, .error = error};
                run_ended(run, &failed, NULL);
        }
}

/* Trainers of an agent before us that are not back yet. */
static bool expects_trainers(const struct run *run) {
        if (loop_now(&run->agent->loop) >= run->expect_until_ns)
                return false;
        for (uint32_t i = 0; i < run->local_count; i++)
                if (!run->sessions[i])
                        return true;
        return false;
}

void run_end_check(struct run *run) {
        struct cairn_error error = CAIRN_ERROR_INIT;
        bool late = loop_now(&run->agent->loop) >= run->end.deadline_ns;
        if (run->end.wanted && run->state == RUN_STARTING && group_cancel(run->group)) {
                (void) error_set(&error, CAIRN_ERR_PEER, "start run", run->name,
                                 "its 'cairn run' ended");
                if (run->end.reply.connection)
                        server_done_reply(&run->end.reply);
                run_start_failed(run, &error);
        }
        if (!run->end.wanted || run->end.sent || run->state == RUN_STARTING)
                return;
        if (run->state == RUN_ENDED) { /* it could not be taken up: nothing was begun here */
                run->end.sent = true;
                if (run->end.reply.connection)
                        server_done_reply(&run->end.reply);
                return;
        }
        if (run->orphaned)
                run_wish_stop(run);
        if (expects_trainers(run))
                return;
        if (!run_sessions_ended(run)) {
                if (!late)
                        return;
                run_signal_all(run, SIGKILL);
                return; /* settling has a limit of its own */
        }
        attempts_doom_all(run, NULL);
        attempts_pump(run);
        if ((attempts_open_count(run) > 0 || run->unretained || run->retaining) && !late)
                return;
        run->end.sent = true;
        if (run->state == RUN_LIVE)
                run_set_state(run, RUN_ENDING);
        bool records = group_records_end(run);
        group_leave(run->group);
        /* Nothing was started, or another node records it: there is nothing to write here. */
        if (!run->generation || !records) {
                exit_written(run, &(struct store_message){0}, NULL);
                return;
        }
        struct store_message m = {
                .verb = STORE_EXIT, .code = run->end.code, .step = run->resumable_step};
        memcpy(m.name, run->end.reason, sizeof run->end.reason);
        if (run_store_request(run, &m, exit_written, run, &error) < 0) {
                struct store_message failed = {.status = error.status, .error = error};
                exit_written(run, &failed, NULL);
        }
}

/* Nobody would restart or reap the trainers: what they have is committed and they are stopped. */
void run_runner_gone(struct run *run) {
        struct agent *a = run->agent;
        loop_unwatch(&a->loop, &run->runner_source);
        if (run->end.wanted || run->state >= RUN_ENDING)
                return;
        log_event(LOG_LEVEL_WARNING, "run=%s runner=gone trainers=stopping", run->name);
        run->orphaned = true;
        if (run->start_pending) {
                struct cairn_error error = CAIRN_ERROR_INIT;
                run->start_pending = false;
                (void) error_set(&error, CAIRN_ERR_PEER, "start run", run->name,
                                 "its 'cairn run' ended");
                run_start_failed(run, &error);
        }
        if (run_sessions_ended(run) && !expects_trainers(run)) {
                (void) run_end(run, NULL, "cairn run died", 70, NULL);
                return;
        }
        demand_internal(run, loop_now(&a->loop) + RUN_KILL_NS);
        run_wish_stop(run);
        run_signal_all(run, SIGTERM);
        loop_timer_set(&a->loop, &run->kill_timer, loop_now(&a->loop) + RUN_KILL_NS);
        (void) run_end(run, NULL, "cairn run died", 70, NULL);
        run->end.deadline_ns += RUN_KILL_NS;
}
