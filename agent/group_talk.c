/* SPDX-License-Identifier: Apache-2.0
 *
 * What the agents of a group say to each other while it lives. The leader's word is about attempts;
 * a member carries it out for its own ranks and reports. Nobody trusts a rank or attempt number of
 * another node: attempt.c looks them up.
 */
#include "agent/attempt.h"
#include "agent/demand.h"
#include "agent/exchange.h"
#include "agent/group_local.h"
#include "agent/hold.h"
#include "agent/run_parts.h"
#include "base/log.h"
#include "format/exits.h"
#include "format/wire.h"

#include <string.h>

#define BODY(name) CAIRN__PEER__PEER_ENVELOPE__BODY_##name
typedef Cairn__Peer__PeerEnvelope Envelope;

static ProtobufCBinaryData text_of(const char *text) {
        return (ProtobufCBinaryData){strlen(text), (uint8_t *) (uintptr_t) text};
}

/* As much of it as there is room for. */
static void copy_shortened(char *target, size_t bytes, const ProtobufCBinaryData *text) {
        size_t count = text->len < bytes ? text->len : bytes - 1;
        if (count)
                memcpy(target, text->data, count);
        target[count] = 0;
}

/* ---- saying ---- */

/* A message that cannot be delivered is a node that is lost: the link says so soon. */
static void to_leader(struct run *run, const Envelope *e) {
        struct group *g = run->group;
        if (g && g->state == GROUP_FOLLOWING && g->leader && peer_send(g->leader, e) < 0)
                group_lost(g, "the leader does not take messages");
}

static void to_node(struct run *run, const struct group_node *node, const Envelope *e) {
        struct group *g = run->group;
        if (g->state == GROUP_LEADING && node && node->ready && node->link &&
            peer_send(node->link, e) < 0)
                group_lost(g, "a node does not take messages");
}

static void to_members(struct run *run, const Envelope *e, const struct peer_link *but) {
        struct group *g = run->group;
        for (uint32_t i = 0; g && i < g->node_count; i++)
                if (!but || g->nodes[i].link != but)
                        to_node(run, &g->nodes[i], e);
}

/* To one, or to all. */
static void to_link(struct run *run, const Envelope *e, const struct peer_link *link) {
        if (link && run->group)
                to_node(run, group_node_of(run->group, link), e);
        else
                to_members(run, e, NULL);
}

void group_tell_open(struct run *run, uint32_t attempt, struct peer_link *to) {
        Envelope e = CAIRN__PEER__PEER_ENVELOPE__INIT;
        Cairn__Peer__Open m = CAIRN__PEER__OPEN__INIT;
        m.attempt = attempt;
        e.body_case = BODY(OPEN);
        e.open = &m;
        to_link(run, &e, to);
}

void group_tell_doom(struct run *run, uint32_t attempt, const struct cairn_error *error) {
        Envelope e = CAIRN__PEER__PEER_ENVELOPE__INIT;
        Cairn__Control__Failure failure = CAIRN__CONTROL__FAILURE__INIT;
        Cairn__Peer__Doom doom = CAIRN__PEER__DOOM__INIT;
        Cairn__Peer__Nack nack = CAIRN__PEER__NACK__INIT;
        if (!run->group)
                return;
        group_local_drop(run, attempt);
        if (error && error->status) {
                wire_failure_fill(&failure, error);
                doom.failure = nack.failure = &failure;
        }
        doom.attempt = nack.attempt = attempt;
        if (group_leads(run)) {
                e.body_case = BODY(DOOM);
                e.doom = &doom;
                to_members(run, &e, NULL);
        } else {
                e.body_case = BODY(NACK);
                e.nack = &nack;
                to_leader(run, &e);
        }
}

void group_tell_committed(struct run *run, uint32_t attempt, const struct commit_result *c) {
        Envelope e = CAIRN__PEER__PEER_ENVELOPE__INIT;
        Cairn__Peer__Committed m = CAIRN__PEER__COMMITTED__INIT;
        m.attempt = attempt;
        m.checkpoint = text_of(c->name);
        m.step = c->step;
        m.bytes = c->bytes;
        m.flagged = c->flagged;
        m.existed = c->existed;
        e.body_case = BODY(COMMITTED);
        e.committed = &m;
        to_members(run, &e, NULL);
}

void group_tell_hold(struct run *run, uint32_t attempt, uint32_t first_rank, uint32_t count,
                     int64_t step) {
        Envelope e = CAIRN__PEER__PEER_ENVELOPE__INIT;
        Cairn__Peer__Hold m = CAIRN__PEER__HOLD__INIT;
        m.attempt = attempt;
        m.step = step;
        e.body_case = BODY(HOLD);
        e.hold = &m;
        for (uint32_t end = first_rank + count; first_rank < end; first_rank += m.count) {
                const struct group_node *node =
                        run->group ? group_node_at(run->group, first_rank) : NULL;
                if (!node)
                        return;
                uint32_t left = node->member.first_rank + node->member.ranks - first_rank;
                m.rank = first_rank;
                m.count = left < end - first_rank ? left : end - first_rank;
                to_node(run, node, &e);
        }
}

void group_tell_go(struct run *run, uint32_t attempt) {
        Envelope e = CAIRN__PEER__PEER_ENVELOPE__INIT;
        Cairn__Peer__Go m = CAIRN__PEER__GO__INIT;
        m.attempt = attempt;
        e.body_case = BODY(GO);
        e.go = &m;
        to_members(run, &e, NULL);
}

void group_tell_release(struct run *run) {
        Envelope e = CAIRN__PEER__PEER_ENVELOPE__INIT;
        Cairn__Peer__Release m = CAIRN__PEER__RELEASE__INIT;
        e.body_case = BODY(RELEASE);
        e.release = &m;
        to_members(run, &e, NULL);
}

void group_tell_release_rank(struct run *run, uint32_t rank) {
        Envelope e = CAIRN__PEER__PEER_ENVELOPE__INIT;
        Cairn__Peer__Release m = CAIRN__PEER__RELEASE__INIT;
        e.body_case = BODY(RELEASE);
        e.release = &m;
        if (run->group)
                to_node(run, group_node_at(run->group, rank), &e);
}

void group_tell_follow(struct run *run, uint32_t attempt, int64_t step, struct peer_link *to) {
        Envelope e = CAIRN__PEER__PEER_ENVELOPE__INIT;
        Cairn__Peer__Follow m = CAIRN__PEER__FOLLOW__INIT;
        m.attempt = attempt;
        m.step = step;
        e.body_case = BODY(FOLLOW);
        e.follow = &m;
        to_link(run, &e, to);
}

void group_tell_stop(struct run *run, uint64_t duration_ns) {
        Envelope e = CAIRN__PEER__PEER_ENVELOPE__INIT;
        Cairn__Peer__Stop m = CAIRN__PEER__STOP__INIT;
        m.deadline_ns = duration_ns;
        m.preempted = run->notice.active || run->stop.preempted;
        e.body_case = BODY(STOP);
        e.stop = &m;
        to_leader(run, &e);
        to_members(run, &e, NULL);
}

void group_tell_ready(struct run *run) {
        Envelope e = CAIRN__PEER__PEER_ENVELOPE__INIT;
        Cairn__Peer__Ready m = CAIRN__PEER__READY__INIT;
        e.body_case = BODY(READY);
        e.ready = &m;
        to_leader(run, &e);
}

void group_tell_finish(struct run *run) {
        Envelope e = CAIRN__PEER__PEER_ENVELOPE__INIT;
        Cairn__Peer__Finish m = CAIRN__PEER__FINISH__INIT;
        m.reason = text_of(run->finish.reason);
        m.step = run->finish.step;
        e.body_case = BODY(FINISH);
        e.finish = &m;
        to_leader(run, &e);
}

void group_tell_finished(struct run *run, const struct cairn_error *error) {
        Envelope e = CAIRN__PEER__PEER_ENVELOPE__INIT;
        Cairn__Peer__Finish m = CAIRN__PEER__FINISH__INIT;
        Cairn__Control__Failure failure = CAIRN__CONTROL__FAILURE__INIT;
        m.reason = text_of(run->finish.reason);
        m.step = run->finish.step;
        if (error && error->status) {
                wire_failure_fill(&failure, error);
                m.failure = &failure;
        }
        e.body_case = BODY(FINISH);
        e.finish = &m;
        to_members(run, &e, NULL);
        for (uint32_t i = 0; run->group && m.failure && i < run->group->node_count; i++)
                run->group->nodes[i].finished = false;
        if (run->group && m.failure)
                run->group->finished_count = 0;
}

bool group_finished(const struct run *run) {
        const struct group *g = run->group;
        return !g || g->finished_count + 1 >= g->node_count;
}

/* To the leader, or to this node, or to all but the one from which it came. */
static void say_exchange(struct run *run, uint32_t rank, const ProtobufCBinaryData *key,
                         const ProtobufCBinaryData *value, const struct group_node *to,
                         const struct peer_link *but) {
        Envelope e = CAIRN__PEER__PEER_ENVELOPE__INIT;
        Cairn__Peer__Exchange m = CAIRN__PEER__EXCHANGE__INIT;
        m.rank = rank;
        m.key = *key;
        m.value = *value;
        e.body_case = BODY(EXCHANGE);
        e.exchange = &m;
        to_leader(run, &e);
        if (to)
                to_node(run, to, &e);
        else
                to_members(run, &e, but);
}

void group_tell_exchange(struct run *run, uint32_t rank, const ProtobufCBinaryData *key,
                         const ProtobufCBinaryData *value) {
        say_exchange(run, rank, key, value, NULL, NULL);
}

void group_tell_rank(struct run *run, uint32_t attempt, uint32_t rank, int event, int64_t step,
                     uint64_t bytes) {
        Envelope e = CAIRN__PEER__PEER_ENVELOPE__INIT;
        Cairn__Peer__Rank m = CAIRN__PEER__RANK__INIT;
        m.attempt = attempt;
        m.rank = rank;
        m.event = (Cairn__Peer__RankEvent) event;
        m.step = step;
        m.bytes = bytes;
        e.body_case = BODY(RANK);
        e.rank = &m;
        to_leader(run, &e);
}

int group_tell_demand(struct run *run, const struct run_waiter *w, uint64_t timeout_ns) {
        Envelope e = CAIRN__PEER__PEER_ENVELOPE__INIT;
        Cairn__Peer__Demand m = CAIRN__PEER__DEMAND__INIT;
        struct group *g = run->group;
        m.id = w->peer_id;
        m.tag = text_of(w->tag);
        m.wait = w->wait;
        m.notice = w->notice;
        m.timeout_ns = timeout_ns;
        e.body_case = BODY(DEMAND);
        e.demand = &m;
        return g && g->state == GROUP_FOLLOWING && g->leader ? peer_send(g->leader, &e)
                                                             : CAIRN_ERR_PEER;
}

void group_tell_demanded(struct run *run, const struct run_waiter *w, const char *name,
                         int64_t step, uint64_t bytes, bool existed, bool flagged,
                         const struct cairn_error *error) {
        Envelope e = CAIRN__PEER__PEER_ENVELOPE__INIT;
        Cairn__Peer__Demanded m = CAIRN__PEER__DEMANDED__INIT;
        Cairn__Control__Failure failure = CAIRN__CONTROL__FAILURE__INIT;
        struct group *g = run->group;
        m.id = w->peer_id;
        m.checkpoint = text_of(name);
        m.step = step;
        m.bytes = bytes;
        m.existed = existed;
        m.flagged = flagged;
        if (error) {
                wire_failure_fill(&failure, error);
                m.failure = &failure;
        }
        e.body_case = BODY(DEMANDED);
        e.demanded = &m;
        for (uint32_t i = 0; g && i < g->node_count; i++)
                if (g->nodes[i].link && g->nodes[i].member.nonce == w->peer_nonce)
                        (void) peer_send(g->nodes[i].link, &e);
}

/* ---- hearing ---- */

static void heard_committed(struct run *run, const Cairn__Peer__Committed *m) {
        struct commit_result c = {
                .step = m->step, .bytes = m->bytes, .flagged = m->flagged, .existed = m->existed};
        copy_shortened(c.name, sizeof c.name, &m->checkpoint);
        attempts_heard_committed(run, m->attempt, &c);
}

static void heard_failure(struct run *run, uint32_t attempt, const Cairn__Control__Failure *f) {
        struct cairn_error error = CAIRN_ERROR_INIT;
        if (f)
                wire_failure_read(f, &error);
        attempts_heard_doom(run, attempt, error.status < 0 ? &error : NULL);
}

static void heard_finish(struct run *run, struct peer_link *link, const Cairn__Peer__Finish *m) {
        struct group *g = run->group;
        struct cairn_error error = CAIRN_ERROR_INIT;
        if (g->state == GROUP_LEADING) {
                struct group_node *node = group_node_of(g, link);
                if (node && !node->finished) {
                        node->finished = true;
                        g->finished_count++;
                }
                return;
        }
        if (m->failure)
                wire_failure_read(m->failure, &error);
        if (!m->failure)
                group_local_finished(run);
        run_heard_finished(run, &error);
}

static void heard_lost(struct run *run, const Cairn__Peer__Lost *m) {
        char reason[500];
        copy_shortened(reason, sizeof reason, &m->reason);
        if (exit_final_reason(m->code))
                group_ended(run->group, reason, m->code);
        else
                group_lost(run->group, reason);
}

static void heard_exchange(struct run *run, const struct peer_link *link,
                           const Cairn__Peer__Exchange *m) {
        if (m->rank >= run->world)
                return;
        struct cairn_error error = CAIRN_ERROR_INIT;
        if (exchange_put(&run->exchange, m->rank, &m->key, &m->value, NULL, &error) < 0)
                log_error(LOG_LEVEL_WARNING, "learn a value of another node", &error);
        if (run->group->state == GROUP_LEADING)
                say_exchange(run, m->rank, &m->key, &m->value, NULL, link);
}

/* Who may say what: a member's reports concern its own ranks. */
static bool is_rank_of(const struct group *g, const struct peer_link *link, uint32_t rank) {
        const struct group_node *node = group_node_of(g, link);
        return node && rank >= node->member.first_rank &&
               rank < node->member.first_rank + node->member.ranks;
}

static void heard_hold(struct run *run, const Cairn__Peer__Hold *m) {
        for (uint32_t i = 0; i < run->local_count; i++) {
                uint32_t rank = run->first_rank + i;
                struct session *s = run->sessions[i];
                if (rank < m->rank || rank - m->rank >= m->count)
                        continue;
                if (s && s->armed_attempt == m->attempt && !s->dead)
                        (void) session_hold(s, m->step);
                else
                        group_tell_rank(run, m->attempt, rank, CAIRN__PEER__RANK_EVENT__RANK_VOID,
                                        0, 0);
        }
}

static void from_leader(struct run *run, const Envelope *e) {
        struct session *s;
        switch (e->body_case) {
        case BODY(OPEN):
                attempts_heard_open(run, e->open->attempt);
                break;
        case BODY(DOOM):
                heard_failure(run, e->doom->attempt, e->doom->failure);
                break;
        case BODY(COMMITTED):
                heard_committed(run, e->committed);
                break;
        case BODY(HOLD):
                heard_hold(run, e->hold);
                break;
        case BODY(GO):
        case BODY(RELEASE):
                for (uint32_t i = 0; i < run->local_count; i++) {
                        s = run->sessions[i];
                        if (s && e->body_case == BODY(RELEASE))
                                session_release(s);
                        else if (s && s->armed_attempt == e->go->attempt)
                                session_go(s);
                }
                break;
        case BODY(FOLLOW):
                attempts_heard_follow(run, e->follow->attempt, e->follow->step);
                break;
        case BODY(DEMANDED):
                demand_heard(run, e->demanded);
                break;
        default:
                break;
        }
}

struct newcomer {
        struct run *run;
        struct group_node *node;
};
static void tell_exchange(void *context, uint32_t rank, const ProtobufCBinaryData *key,
                          const ProtobufCBinaryData *value) {
        const struct newcomer *n = context;
        say_exchange(n->run, rank, key, value, n->node, NULL);
}

/* What was said before it could hear. */
static void heard_ready(struct run *run, struct peer_link *link) {
        struct newcomer n = {.run = run, .node = group_node_of(run->group, link)};
        if (!n.node)
                return;
        n.node->ready = true;
        attempts_tell_newcomer(run, link);
        exchange_each(&run->exchange, tell_exchange, &n);
}

static void from_member(struct run *run, struct peer_link *link, const Envelope *e) {
        const struct group_node *node = group_node_of(run->group, link);
        switch (e->body_case) {
        case BODY(READY):
                heard_ready(run, link);
                break;
        case BODY(RANK):
                if (is_rank_of(run->group, link, e->rank->rank))
                        attempts_heard_rank(run, e->rank);
                break;
        case BODY(NACK):
                heard_failure(run, e->nack->attempt, e->nack->failure);
                break;
        case BODY(DEMAND):
                if (node)
                        demand_from(run, node->member.nonce, e->demand);
                break;
        default:
                break;
        }
}

void group_received(void *context, struct peer_link *link, const Envelope *e) {
        struct group *g = context;
        struct run *run = g->run;
        switch (e->body_case) {
        case BODY(STOP):
                run->stop.preempted = run->stop.preempted || e->stop->preempted;
                if (!run->stop.active)
                        (void) run_stop(run, NULL, e->stop->deadline_ns, NULL);
                break;
        case BODY(HAUL):
        case BODY(HAUL_NEXT):
        case BODY(RECORDED):
                group_local_received(g, link, e);
                break;
        case BODY(FINISH):
                if (g->state == GROUP_SURVEYING)
                        group_local_received(g, link, e);
                else
                        heard_finish(run, link, e->finish);
                break;
        case BODY(LOST):
                heard_lost(run, e->lost);
                break;
        case BODY(EXCHANGE):
                heard_exchange(run, link, e->exchange);
                break;
        default:
                /* A member may see the generation before its leader hears that it stands. */
                if (g->state == GROUP_LEADING || g->state == GROUP_CREATING ||
                    (g->state == GROUP_SETTLING && !g->leader))
                        from_member(run, link, e);
                else if (g->state == GROUP_FOLLOWING)
                        from_leader(run, e);
        }
        run_pump(run);
}
