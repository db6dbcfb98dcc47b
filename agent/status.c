/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/status.h"
#include "agent/attempt.h"
#include "agent/run.h"
#include <errno.h>
#include <jansson.h>

static json_t *integer(uint64_t v) {
        return json_integer(v > INT64_MAX ? INT64_MAX : (json_int_t) v);
}

/* Paths and sentences of others: whatever is no UTF-8 is escaped, so that the JSON is valid. */
static json_t *text(const char *s) {
        json_t *j = json_string(s);
        if (j)
                return j;
        char escaped[2048];
        return json_string(text_escape(escaped, sizeof escaped, s, strlen(s)));
}

static json_t *error_text(const struct cairn_error *e) {
        char line[900];
        if (!e->status)
                return json_null();
        return json_pack("{s:s, s:o}", "status", status_name(e->status), "text",
                         text(error_format(e, line, sizeof line)));
}

static json_t *seconds(uint64_t ns) {
        return json_real((double) ns / 1e9);
}

static json_t *rank_json(struct session *s) {
        session_refresh(s);
        struct cut_word w = session_word(s);
        uint64_t now_ns = loop_now(&s->agent->loop); /* not before the word was seen */
        json_t *j = json_object();
        json_object_set_new(j, "rank", json_integer(s->rank));
        json_object_set_new(j, "pid", json_integer(s->pid));
        json_object_set_new(j, "alive", json_boolean(!s->dead));
        json_object_set_new(j, "connected", json_boolean(server_reach(&s->hello) != NULL));
        json_object_set_new(j, "session", integer(s->id));
        json_object_set_new(j, "state", json_string(session_state_name(s->state)));
        json_object_set_new(j, "phase", json_string(cut_phase_name(w.phase)));
        json_object_set_new(j, "phase_s", seconds(now_ns - s->word_since_ns));
        json_object_set_new(j, "seq", integer(w.seq));
        json_object_set_new(j, "step", json_integer(atomic_load(&s->page->last_step)));
        json_object_set_new(j, "committed_seq", integer(atomic_load(&s->page->committed_seq)));
        json_object_set_new(j, "tensors", integer(s->tensor_count));
        json_object_set_new(j, "tensors_elsewhere", integer(s->elsewhere));
        json_object_set_new(j, "device", json_string(*s->device ? "cuda" : "host"));
        json_object_set_new(j, "device_uuid", *s->device ? json_string(s->device) : json_null());
        json_object_set_new(j, "post_mortem", json_boolean(s->elsewhere == 0));
        json_object_set_new(j, "copies", json_string(s->push_fd < 0 ? "saver" : "trainer"));
        json_object_set_new(j, "image_bytes", integer(s->image_bytes));
        json_object_set_new(j, "staging_bytes", integer(s->staging_bytes));
        json_object_set_new(j, "gate_deadline_s", seconds(s->gate_deadline_ns));
        json_object_set_new(j, "saver_pid",
                            json_integer(saver_link_running(&s->saver) ? s->saver.pid : 0));
        json_object_set_new(j, "savers_stuck", integer(saver_link_lost_count(&s->saver)));
        json_object_set_new(j, "voids", integer(atomic_load(&s->page->void_count)));
        json_object_set_new(j, "gate_expired", integer(atomic_load(&s->page->gate_expired_count)));
        json_object_set_new(j, "stall_s", seconds(atomic_load(&s->page->gate_stall_ns)));
        json_object_set_new(j, "write_bytes_per_s", integer(s->write_rate));
        json_object_set_new(j, "error", error_text(&s->last_error));
        return j;
}

static json_t *committed_json(const struct run *run, uint64_t now_ns) {
        if (run->committed_step < 0)
                return json_null();
        json_t *j = json_object();
        json_object_set_new(j, "checkpoint", text(run->committed_name));
        json_object_set_new(j, "step", json_integer(run->committed_step));
        json_object_set_new(j, "bytes", integer(run->committed_bytes));
        json_object_set_new(j, "flagged", json_boolean(run->committed_flagged));
        /* Unknown for one that an earlier generation or agent made. */
        json_object_set_new(j, "age_s",
                            run->committed_ns ? seconds(now_ns - run->committed_ns) : json_null());
        return j;
}

/* The cut that is being copied, written or committed. The page's progress counts chunks since the
 * session began, so bytes are known a rank at a time. */
static json_t *snapshot_json(const struct run *run) {
        for (size_t i = 0; i < RUN_ATTEMPT_COUNT; i++) {
                const struct run_attempt *a = &run->attempts[i];
                if (a->state != ATTEMPT_OPEN && a->state != ATTEMPT_COMMITTING)
                        continue;
                uint64_t done = 0, total = 0;
                int64_t step = -1;
                for (uint32_t rank = 0; rank < a->world; rank++) {
                        const struct rank_cut *row = &a->ranks[rank];
                        if (row->state < RANK_CUT)
                                continue;
                        step = row->step;
                        total += row->bytes;
                        done += row->state >= RANK_WRITTEN ? row->bytes : 0;
                }
                if (step >= 0)
                        return json_pack("{s:i, s:I, s:o, s:o, s:s}", "attempt", (int) a->number,
                                         "step", (json_int_t) step, "bytes_done", integer(done),
                                         "bytes_total", integer(total), "stage",
                                         a->state == ATTEMPT_COMMITTING ? "committing" : "writing");
        }
        return json_null();
}

static json_t *notice_json(const struct run *run, uint64_t now_ns) {
        const struct run_notice *n = &run->notice;
        if (!n->active)
                return json_null();
        return json_pack("{s:s, s:s, s:s, s:s, s:o}", "kind", n->kind, "source", n->source, "id",
                         n->id, "decision", notice_decision_name(n->decision), "left_s",
                         seconds(n->deadline_ns > now_ns ? n->deadline_ns - now_ns : 0));
}

static json_t *run_json(struct run *run) {
        uint64_t now_ns = loop_now(&run->agent->loop), voids = 0, expired = 0, stall_ns = 0;
        static const char *const modes[] = {"undecided", "fresh", "resume", "auto", "init-from"};
        json_t *ranks = json_array();
        for (uint32_t i = 0; i < run->local_count; i++) {
                struct session *s = run->sessions[i];
                if (!s || !s->page)
                        continue;
                voids += atomic_load(&s->page->void_count);
                expired += atomic_load(&s->page->gate_expired_count);
                stall_ns += atomic_load(&s->page->gate_stall_ns);
                json_array_append_new(ranks, rank_json(s));
        }
        json_t *j = json_object();
        json_object_set_new(j, "run", text(run->name));
        json_object_set_new(j, "state", json_string(run_state_name(run->state)));
        json_object_set_new(j, "generation", integer(run->generation));
        json_object_set_new(j, "restart", integer(run->restart));
        json_object_set_new(j, "world", json_integer(run->world));
        json_object_set_new(j, "mode", json_string(modes[run->mode]));
        json_object_set_new(j, "from_checkpoint", text(run->checkpoint));
        json_object_set_new(j, "from_step", json_integer(run->checkpoint_step));
        json_object_set_new(j, "every_steps", integer(run->every_steps));
        json_object_set_new(j, "every_s", seconds(run->every_ns));
        json_object_set_new(j, "keep_last", integer(run->keep_last));
        json_object_set_new(j, "committed", committed_json(run, now_ns));
        json_object_set_new(j, "committed_step", json_integer(run->committed_step));
        json_object_set_new(j, "snapshot", snapshot_json(run));
        json_object_set_new(j, "checkpoints", integer(run->checkpoints_committed));
        json_object_set_new(j, "attempts_failed", integer(run->attempts_failed));
        json_object_set_new(j, "cuts_skipped", integer(run->cuts_skipped));
        json_object_set_new(j, "lost_steps", integer(run->lost_steps));
        json_object_set_new(j, "voids", integer(voids));
        json_object_set_new(j, "gate_expired", integer(expired));
        json_object_set_new(j, "stall_s", seconds(stall_ns));
        json_object_set_new(j, "notice", notice_json(run, now_ns));
        json_object_set_new(j, "stopping", json_boolean(run->stop.active));
        json_object_set_new(j, "finished", json_boolean(run->finish.done));
        json_object_set_new(j, "finished_reason", text(run->finish.reason));
        json_object_set_new(j, "fenced", json_boolean(run->fenced));
        json_object_set_new(j, "store", text(run->store));
        json_object_set_new(j, "run_dir", text(run->run_dir));
        json_object_set_new(j, "error", error_text(&run->last_error));
        json_object_set_new(j, "ranks", ranks);
        return j;
}

int status_json(struct agent *a, const char *name, char **ret, struct cairn_error *reterr) {
        if (*name && !agent_find_run(a, name))
                return error_set(reterr, CAIRN_ERR_NOTFOUND, "show status", name,
                                 "this agent serves no such run");
        json_t *runs = json_array();
        for (size_t i = 0; i < AGENT_RUN_COUNT_MAX; i++)
                if (a->runs[i] && (!*name || !strcmp(a->runs[i]->name, name)))
                        json_array_append_new(runs, run_json(a->runs[i]));
        json_t *agent = json_pack("{s:s, s:i, s:i, s:b, s:b}", "version", CAIRN_VERSION, "pid",
                                  (int) getpid(), "protocol", WIRE_PROTOCOL, "embedded",
                                  a->config.runner != 0, "stopping", a->stopping);
        json_object_set_new(agent, "features", integer(SERVER_FEATURES));
        json_object_set_new(agent, "socket", text(a->config.socket));
        json_t *root = json_object();
        json_object_set_new(root, "agent", agent);
        json_object_set_new(root, "runs", runs);
        *ret = json_dumps(root, JSON_COMPACT);
        json_decref(root);
        return *ret ? 0 : error_set_errno(reterr, ENOMEM, "show status", name);
}

void status_send(const struct reply_to *to, const char *json) {
        size_t bytes = strlen(json), sent = 0;
        do {
                size_t part =
                        bytes - sent < STATUS_PACKET_BYTES ? bytes - sent : STATUS_PACKET_BYTES;
                Cairn__Control__Envelope e = CAIRN__CONTROL__ENVELOPE__INIT;
                Cairn__Control__StatusReply m = CAIRN__CONTROL__STATUS_REPLY__INIT;
                m.json = (ProtobufCBinaryData){part, (uint8_t *) json + sent};
                sent += part;
                m.more = sent < bytes;
                e.body_case = CAIRN__CONTROL__ENVELOPE__BODY_STATUS_REPLY;
                e.status_reply = &m;
                server_reply(to, &e, NULL, 0);
        } while (sent < bytes);
}
