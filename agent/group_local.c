/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/group_local.h"
#include "agent/attempt.h"
#include "agent/generation.h"
#include "agent/group_refusal.h"
#include "agent/haul.h"
#include "agent/intent.h"
#include "agent/run_parts.h"
#include "agent/survey.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "format/wire.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>

#define BODY(name) CAIRN__PEER__PEER_ENVELOPE__BODY_##name
#define KIND(name) CAIRN__PEER__HAUL_KIND__HAUL_##name
typedef Cairn__Peer__PeerEnvelope Envelope;

enum step { STEP_IDLE, STEP_SURVEY, STEP_RECORDS, STEP_PARTS, STEP_COMPOSE, STEP_RECORD };

struct local_node {
        struct haul_in in;
        struct haul_out out;
        struct survey_node survey;
        bool done; /* with the present step */
};
struct group_local {
        struct haul_in in; /* member: from and to its leader */
        struct haul_out out;
        /* leader */
        struct local_node *nodes; /* parallel to the group's */
        uint32_t node_count;
        enum step step;
        struct haul_name wanted; /* in this step */
        uint32_t missing;        /* nodes that are not done with it */
        int parts_fd;            /* Parts of those that are; -1: none yet */
        uint32_t reason;
        char tag[136];
        struct run_scan merged; /* of a start */
        struct intent_verdict verdict;
};

/* ---- the object ---- */

struct group_local *group_local_new(void) {
        struct group_local *l = calloc(1, sizeof *l);
        if (l)
                l->parts_fd = -1;
        return l;
}

static void end_step(struct group_local *l) {
        cleanup_close(&l->parts_fd);
        l->parts_fd = -1;
        l->step = STEP_IDLE;
        l->missing = 0;
}

void group_local_reset(struct group *g) {
        struct group_local *l = g->local;
        if (!l)
                return;
        for (uint32_t i = 0; i < l->node_count; i++) {
                haul_in_done(&l->nodes[i].in);
                haul_out_done(&l->nodes[i].out);
                survey_node_done(&l->nodes[i].survey);
        }
        free(l->nodes);
        l->nodes = NULL;
        l->node_count = 0;
        haul_in_done(&l->in);
        haul_out_done(&l->out);
        run_scan_done(&l->merged);
        end_step(l);
}

struct group_local *group_local_free(struct group_local *l) {
        struct group with = {.local = l};
        group_local_reset(&with);
        free(l);
        return NULL;
}

/* ---- saying ---- */

static int send_failure(struct peer_link *link, const struct haul_name *name,
                        const struct cairn_error *error) {
        Envelope e = CAIRN__PEER__PEER_ENVELOPE__INIT;
        Cairn__Peer__Haul m = CAIRN__PEER__HAUL__INIT;
        Cairn__Control__Failure failure = CAIRN__CONTROL__FAILURE__INIT;
        wire_failure_fill(&failure, error);
        m.kind = name->kind;
        m.generation = name->generation;
        m.attempt = name->attempt;
        m.failure = &failure;
        e.body_case = BODY(HAUL);
        e.haul = &m;
        return link ? peer_send(link, &e) : CAIRN_ERR_PEER;
}

static int say(struct peer_link *link, const Envelope *e, struct cairn_error *reterr) {
        int r = link ? peer_send(link, e) : CAIRN_ERR_PEER;
        return r < 0 ? error_set(reterr, r, "speak to agent", "peer", "it takes no messages") : 0;
}

static int send_piece(struct peer_link *link, struct haul_out *out, const struct haul_name *name,
                      uint64_t offset, struct cairn_error *reterr) {
        Envelope e = CAIRN__PEER__PEER_ENVELOPE__INIT;
        Cairn__Peer__Haul m = CAIRN__PEER__HAUL__INIT;
        TRY(haul_fill(out, name, offset, &m, reterr));
        e.body_case = BODY(HAUL);
        e.haul = &m;
        return say(link, &e, reterr);
}

static int ask(struct peer_link *link, const struct haul_name *name, uint64_t offset,
               struct cairn_error *reterr) {
        Envelope e = CAIRN__PEER__PEER_ENVELOPE__INIT;
        Cairn__Peer__HaulNext m = CAIRN__PEER__HAUL_NEXT__INIT;
        m.kind = name->kind;
        m.generation = name->generation;
        m.attempt = name->attempt;
        m.offset = offset;
        e.body_case = BODY(HAUL_NEXT);
        e.haul_next = &m;
        return say(link, &e, reterr);
}

/* A memfd that goes to every member; the caller's own stays open. */
static int offer_to_all(struct group *g, const struct haul_name *name, int fd,
                        struct cairn_error *reterr) {
        for (uint32_t i = 0; i < g->node_count; i++) {
                if (i == g->node_rank)
                        continue;
                int copy = fcntl(fd, F_DUPFD_CLOEXEC, 3);
                if (copy < 0)
                        return error_set_errno(reterr, errno, "tell nodes", g->run->name);
                TRY(haul_offer(&g->local->nodes[i].out, name, copy, reterr));
                TRY(send_piece(g->nodes[i].link, &g->local->nodes[i].out, name, 0, reterr));
        }
        return 0;
}

/* ---- leader: ends of what is under way ---- */

/* Every node's `cairn run` hears why. */
static void refuse(struct group *g, const struct cairn_error *error) {
        const struct haul_name name = {.kind = KIND(SETTLE), .generation = g->generation};
        for (uint32_t i = 0; i < g->node_count; i++)
                if (i != g->node_rank)
                        (void) send_failure(g->nodes[i].link, &name, error);
        group_give_up(g, error); /* some may not have connected yet */
}

static void fail(struct group *g, const struct cairn_error *error) {
        uint32_t attempt = g->local->wanted.attempt;
        struct cairn_error nothing = CAIRN_ERROR_INIT;
        if (error->status == 0) { /* an answer without its memory */
                (void) error_set(&nothing, CAIRN_ERR_PEER, "ask store", g->run->name,
                                 "the store process gave nothing");
                error = &nothing;
        }
        end_step(g->local);
        if (g->state == GROUP_LEADING)
                attempts_failed(g->run, attempt, error);
        else
                refuse(g, error);
}

static int store(struct group *g, struct store_message *m, agent_store_fn reply,
                 struct cairn_error *reterr) {
        return run_store_request(g->run, m, reply, g, reterr);
}

/* An answer to what is under way still, and not to what was given up. */
static bool is_due(const struct group *g, const struct store_message *reply, enum step step) {
        const struct group_local *l = g->local;
        return l && l->step == step && reply->of_generation == l->wanted.generation &&
               reply->attempt == l->wanted.attempt;
}

static void begin_step(struct group *g, enum step step, const struct haul_name *wanted) {
        struct group_local *l = g->local;
        l->step = step;
        l->wanted = *wanted;
        l->missing = l->node_count;
        for (uint32_t i = 0; i < l->node_count; i++)
                l->nodes[i].done = false;
}

/* True: this was the last one. */
static bool node_done(struct group *g, uint32_t node) {
        struct group_local *l = g->local;
        if (l->nodes[node].done)
                return false;
        l->nodes[node].done = true;
        return --l->missing == 0;
}

/* ---- leader: settling a start ---- */

static void settled(void *context, const struct store_message *reply, struct wire_fds *fds) {
        struct group *g = context;
        (void) fds;
        if (g->state != GROUP_SETTLING || reply->generation != g->generation)
                return;
        if (reply->status < 0)
                refuse(g, &reply->error);
        else
                group_settled(g, &reply->started);
}

static void member_settled(void *context, const struct store_message *reply, struct wire_fds *fds) {
        struct group *g = context;
        (void) fds;
        if (g->state != GROUP_SETTLING || reply->generation != g->generation)
                return;
        if (reply->status < 0)
                group_give_up(g, &reply->error);
        else
                group_settled(g, &reply->started);
}

static int ask_settle(struct group *g, int fd, agent_store_fn reply, struct cairn_error *reterr) {
        struct store_message m = {.verb = STORE_SETTLE,
                                  .generation = g->generation,
                                  .world = g->world,
                                  .has_fd = true,
                                  .fd = fd};
        (void) snprintf(m.name, sizeof m.name, "%s", g->self.node);
        return store(g, &m, reply, reterr);
}

static int read_records(int fd, void **ret_bytes, size_t *ret_count, Cairn__Peer__Records **ret,
                        struct cairn_error *reterr) {
        TRY(haul_map(fd, HAUL_BYTES_MAX, ret_bytes, ret_count, reterr));
        *ret = cairn__peer__records__unpack(NULL, *ret_count, *ret_bytes);
        (void) munmap(*ret_bytes, *ret_count);
        return *ret ? 0
                    : error_set(reterr, CAIRN_ERR_CORRUPT, "roll forward", "peer",
                                "what came is no INDEX and COMMIT");
}

static int pack_settle(struct group *g, Cairn__Peer__Settle *m, int records_fd, int *ret_fd,
                       struct cairn_error *reterr) {
        void *bytes;
        size_t count;

        if (records_fd < 0)
                return haul_pack(&m->base, ret_fd, reterr);
        m->rolled_generation = g->local->wanted.generation;
        m->rolled_attempt = g->local->wanted.attempt;
        TRY(read_records(records_fd, &bytes, &count, &m->records, reterr));
        int r = haul_pack(&m->base, ret_fd, reterr);
        cairn__peer__records__free_unpacked(m->records, NULL);
        m->records = NULL;
        return r;
}

static void fill_nodes(const struct group *g, struct scan_node *nodes) {
        for (uint32_t i = 0; i < g->node_count; i++) {
                nodes[i] = (struct scan_node){.first_rank = g->nodes[i].member.first_rank,
                                              .ranks = g->nodes[i].member.ranks};
                (void) snprintf(nodes[i].node, sizeof nodes[i].node, "%.63s",
                                g->nodes[i].member.node);
        }
}

static struct start_request request_of(const struct group *g) {
        struct start_request q = g->run->start_request->start;
        q.world = g->world;
        q.is_restart = q.is_restart || g->run->start_request->verb == STORE_REOPEN;
        return q;
}

static int write_settle(struct group *g, int records_fd, int *ret_fd, struct cairn_error *reterr) {
        const struct clock_ops *clock = &clock_system;
        const struct start_request q = request_of(g);
        Cairn__Peer__Settle m = CAIRN__PEER__SETTLE__INIT;
        _cleanup_free_ struct scan_node *nodes = calloc(g->node_count, sizeof *nodes);
        _cleanup_free_ void *claim = NULL;
        _cleanup_free_ void *start = NULL;
        uint8_t uuid[16];

        if (!nodes)
                return error_set_errno(reterr, ENOMEM, "start run", g->run->name);
        while (getrandom(uuid, sizeof uuid, 0) != sizeof uuid)
                ;
        fill_nodes(g, nodes);
        TRY(generation_write_claim(&q, g->generation, clock->realtime_ns(clock->context), uuid,
                                   nodes, g->node_count, &claim, &m.claim.len, reterr));
        TRY(generation_write_start(g->generation, uuid, g->local->verdict.choice, &start,
                                   &m.start.len, reterr));
        m.claim.data = claim;
        m.start.data = start;
        m.note.data = (uint8_t *) g->local->verdict.note;
        m.note.len = strnlen(g->local->verdict.note, sizeof g->local->verdict.note);
        return pack_settle(g, &m, records_fd, ret_fd, reterr);
}

static void settle_all(struct group *g, int records_fd) {
        const struct haul_name name = {.kind = KIND(SETTLE), .generation = g->generation};
        struct cairn_error error = CAIRN_ERROR_INIT;
        _cleanup_close_ int fd = -1;

        if (write_settle(g, records_fd, &fd, &error) < 0 ||
            offer_to_all(g, &name, fd, &error) < 0 || ask_settle(g, fd, settled, &error) < 0) {
                refuse(g, &error);
                return;
        }
        end_step(g->local);
        group_set_state(g, GROUP_SETTLING, 0);
}

/* ---- leader: INDEX and COMMIT, from a node or from all manifests ---- */

static void recorded_here(void *context, const struct store_message *reply, struct wire_fds *fds);

/* Every node is to write them into the attempt's directory. */
static void record_all(struct group *g, int records_fd) {
        struct group_local *l = g->local;
        struct haul_name name = l->wanted;
        struct store_message m = {.verb = STORE_RECORD,
                                  .attempt = name.attempt,
                                  .of_generation = name.generation,
                                  .has_fd = true,
                                  .fd = records_fd};
        struct cairn_error error = CAIRN_ERROR_INIT;

        name.kind = KIND(RECORDS);
        begin_step(g, STEP_RECORD, &name);
        if (offer_to_all(g, &name, records_fd, &error) < 0 ||
            store(g, &m, recorded_here, &error) < 0)
                fail(g, &error);
}

static void has_records(struct group *g, int records_fd) {
        if (g->state == GROUP_LEADING)
                record_all(g, records_fd);
        else
                settle_all(g, records_fd);
}

static void composed(void *context, const struct store_message *reply, struct wire_fds *fds) {
        struct group *g = context;
        if (!is_due(g, reply, STEP_COMPOSE))
                return;
        if (reply->status < 0 || fds->count == 0)
                fail(g, &reply->error);
        else
                has_records(g, fds->fds[0]);
}

static void compose(struct group *g) {
        struct group_local *l = g->local;
        struct cairn_error error = CAIRN_ERROR_INIT;
        struct store_message m = {.verb = STORE_COMPOSE,
                                  .attempt = l->wanted.attempt,
                                  .of_generation = l->wanted.generation,
                                  .world = g->world,
                                  .reason = l->reason,
                                  .has_fd = true,
                                  .fd = l->parts_fd};
        memcpy(m.name, l->tag, sizeof l->tag);
        l->step = STEP_COMPOSE;
        if (store(g, &m, composed, &error) < 0)
                fail(g, &error);
}

/* Messages of one type that follow each other are one, of the fields of all. */
static int append_parts(struct group_local *l, int fd, struct cairn_error *reterr) {
        size_t count;
        void *bytes;

        TRY(haul_map(fd, HAUL_BYTES_MAX, &bytes, &count, reterr));
        if (l->parts_fd < 0)
                l->parts_fd = memfd_create("cairn-parts", MFD_CLOEXEC);
        off_t end = l->parts_fd < 0 ? -1 : lseek(l->parts_fd, 0, SEEK_END);
        int r = end < 0 ? error_set_errno(reterr, errno, "merge manifests", "memory")
                        : io_write_all(&io_system, l->parts_fd, bytes, count, end, "memory",
                                       reterr);
        (void) munmap(bytes, count);
        return r;
}

static void has_parts(struct group *g, uint32_t node, int fd) {
        struct cairn_error error = CAIRN_ERROR_INIT;
        if (append_parts(g->local, fd, &error) < 0)
                fail(g, &error);
        else if (node_done(g, node))
                compose(g);
}

static void own_parts(void *context, const struct store_message *reply, struct wire_fds *fds) {
        struct group *g = context;
        if (!is_due(g, reply, STEP_PARTS))
                return;
        if (reply->status < 0 || fds->count == 0)
                fail(g, &reply->error);
        else
                has_parts(g, g->node_rank, fds->fds[0]);
}

static int ask_store_for(struct group *g, enum store_verb verb, const struct haul_name *name,
                         agent_store_fn reply, struct cairn_error *reterr) {
        struct store_message m = {
                .verb = verb, .attempt = name->attempt, .of_generation = name->generation};
        return store(g, &m, reply, reterr);
}

static void collect_parts(struct group *g, uint64_t generation, uint32_t attempt) {
        const struct haul_name name = {KIND(PARTS), generation, attempt};
        struct cairn_error error = CAIRN_ERROR_INIT;
        begin_step(g, STEP_PARTS, &name);
        int r = ask_store_for(g, STORE_PARTS, &name, own_parts, &error);
        for (uint32_t i = 0; i < g->node_count && r == 0; i++) {
                if (i == g->node_rank)
                        continue;
                haul_expect(&g->local->nodes[i].in, &name);
                r = ask(g->nodes[i].link, &name, 0, &error);
        }
        if (r < 0)
                fail(g, &error);
}

static void own_records(void *context, const struct store_message *reply, struct wire_fds *fds) {
        struct group *g = context;
        if (!is_due(g, reply, STEP_RECORDS))
                return;
        if (reply->status < 0 || fds->count == 0)
                fail(g, &reply->error);
        else
                has_records(g, fds->fds[0]);
}

static void fetch_records(struct group *g, uint32_t holder, uint64_t generation, uint32_t attempt) {
        const struct haul_name name = {KIND(RECORDS), generation, attempt};
        struct cairn_error error = CAIRN_ERROR_INIT;
        int r;
        begin_step(g, STEP_RECORDS, &name);
        if (holder == g->node_rank)
                r = ask_store_for(g, STORE_RECORDS, &name, own_records, &error);
        else {
                haul_expect(&g->local->nodes[holder].in, &name);
                r = ask(g->nodes[holder].link, &name, 0, &error);
        }
        if (r < 0)
                fail(g, &error);
}

/* ---- leader: the decision ---- */

static int verify_merged(void *context, const struct scan_checkpoint *c, bool *ret_flagged,
                         struct cairn_error *reterr) {
        (void) context;
        (void) reterr; /* each node has verified its part */
        *ret_flagged = c->validity == CHECKPOINT_FLAGGED;
        return 0;
}

static struct survey_node *take_surveys(struct group *g) {
        struct survey_node *nodes = calloc(g->node_count, sizeof *nodes);
        _cleanup_free_ struct scan_node *places = calloc(g->node_count, sizeof *places);
        if (nodes && places)
                fill_nodes(g, places);
        for (uint32_t i = 0; nodes && places && i < g->node_count; i++) {
                nodes[i] = g->local->nodes[i].survey; /* borrowed */
                nodes[i].place = places[i];
        }
        return nodes;
}

static int decide(struct group *g, const struct survey_node *nodes, int *ret_holder,
                  struct cairn_error *reterr) {
        const struct start_request q = request_of(g);
        struct group_local *l = g->local;
        run_scan_done(&l->merged);
        TRY(survey_merge(nodes, g->node_count, g->run->name, &l->merged, reterr));
        if (q.is_restart && l->merged.generation_max < g->run->generation)
                return error_set(reterr, CAIRN_ERR_CANNOT_WRITE, "restart run", g->run->name,
                                 "its folders were removed on all nodes while it was running: put "
                                 "them back, or begin anew with --mode fresh");
        TRY(intent_check(&q, reterr));
        TRY(intent_judge(&q, &l->merged, verify_merged, NULL, &l->verdict, reterr));
        *ret_holder =
                l->verdict.choice ? survey_holder(nodes, g->node_count, l->verdict.choice) : -1;
        return 0;
}

static void tell_finished(struct group *g) {
        Envelope e = CAIRN__PEER__PEER_ENVELOPE__INIT;
        Cairn__Peer__Finish m = CAIRN__PEER__FINISH__INIT;
        struct start_reply r = {.finished = true, .checkpoint_step = -1};
        memcpy(r.finished_reason, g->local->merged.finished_reason, sizeof r.finished_reason);
        m.reason = (ProtobufCBinaryData){strlen(r.finished_reason), (uint8_t *) r.finished_reason};
        e.body_case = BODY(FINISH);
        e.finish = &m;
        for (uint32_t i = 0; i < g->node_count; i++)
                if (g->nodes[i].link)
                        (void) peer_send(g->nodes[i].link, &e);
        group_leave(g);
        run_started(g->run, &r);
}

static void all_surveyed(struct group *g) {
        struct group_local *l = g->local;
        struct cairn_error error = CAIRN_ERROR_INIT;
        _cleanup_free_ struct survey_node *nodes = take_surveys(g);
        uint64_t newest = 0;
        int holder = -1;

        end_step(l);
        for (uint32_t i = 0; i < l->node_count; i++)
                if (l->nodes[i].survey.scan.generation_max > newest)
                        newest = l->nodes[i].survey.scan.generation_max;
        if (newest >= g->generation) { /* etcd was made anew, or this node was away for long */
                group_join_again(g, newest + 1);
                return;
        }
        if (!nodes)
                (void) error_set_errno(&error, ENOMEM, "start run", g->run->name);
        if (!nodes || decide(g, nodes, &holder, &error) < 0) {
                refuse(g, &error);
                return;
        }
        const struct scan_checkpoint *c = l->verdict.choice;
        l->reason = COMMIT_REASON_ROLLED_FORWARD;
        l->tag[0] = 0;
        if (l->verdict.finished)
                tell_finished(g);
        else if (!c || !c->is_attempt)
                settle_all(g, -1);
        else if (holder >= 0)
                fetch_records(g, (uint32_t) holder, c->generation, c->attempt);
        else
                collect_parts(g, c->generation, c->attempt);
}

static void has_survey(struct group *g, uint32_t node, int fd) {
        struct cairn_error error = CAIRN_ERROR_INIT;
        void *bytes;
        size_t count;
        int r = haul_map(fd, HAUL_HOLDS_BYTES_MAX, &bytes, &count, &error);
        if (r == 0) {
                survey_node_done(&g->local->nodes[node].survey);
                r = survey_read(bytes, count, &g->local->nodes[node].survey, &error);
                (void) munmap(bytes, count);
        }
        if (r < 0)
                fail(g, &error);
        else if (node_done(g, node))
                all_surveyed(g);
}

static void own_survey(void *context, const struct store_message *reply, struct wire_fds *fds) {
        struct group *g = context;
        if (!is_due(g, reply, STEP_SURVEY))
                return;
        if (reply->status < 0 || fds->count == 0)
                fail(g, &reply->error);
        else
                has_survey(g, g->node_rank, fds->fds[0]);
}

void group_local_start(struct group *g) {
        const struct haul_name name = {.kind = KIND(HOLDS), .generation = g->generation};
        struct group_local *l = g->local;
        struct cairn_error error = CAIRN_ERROR_INIT;
        group_local_reset(g);
        l->nodes = calloc(g->node_count, sizeof *l->nodes);
        if (!l->nodes) {
                (void) error_set_errno(&error, ENOMEM, "start run", g->run->name);
                group_give_up(g, &error);
                return;
        }
        l->node_count = g->node_count;
        begin_step(g, STEP_SURVEY, &name);
        for (uint32_t i = 0; i < g->node_count && l->step == STEP_SURVEY; i++)
                if (g->nodes[i].link) /* before the rendezvous had answered */
                        group_local_connected(g, &g->nodes[i]);
        if (l->step == STEP_SURVEY && ask_store_for(g, STORE_SURVEY, &name, own_survey, &error) < 0)
                fail(g, &error);
}

/* It came, or came again: what its directory holds is asked for. */
void group_local_connected(struct group *g, const struct group_node *node) {
        struct group_local *l = g->local;
        struct cairn_error error = CAIRN_ERROR_INIT;
        if (l->step != STEP_SURVEY)
                return;
        haul_expect(&l->nodes[node - g->nodes].in, &l->wanted);
        if (ask(node->link, &l->wanted, 0, &error) < 0)
                fail(g, &error);
}

/* ---- leader: committing ---- */

void group_local_commit(struct run *run, uint32_t attempt, uint32_t reason, const char *tag) {
        struct group *g = run->group;
        struct group_local *l = g->local;
        if (l->step != STEP_IDLE || g->state != GROUP_LEADING)
                return;
        l->reason = reason;
        (void) snprintf(l->tag, sizeof l->tag, "%s", tag);
        collect_parts(g, g->generation, attempt);
}

void group_local_drop(struct run *run, uint32_t attempt) {
        struct group *g = run->group;
        if (g && g->local && g->state == GROUP_LEADING && g->local->step != STEP_IDLE &&
            g->local->wanted.attempt == attempt)
                end_step(g->local);
}

static void record_done(struct group *g, uint32_t node) {
        uint32_t attempt = g->local->wanted.attempt;
        if (!node_done(g, node))
                return;
        end_step(g->local);
        attempts_recorded(g->run, attempt);
}

static void recorded_here(void *context, const struct store_message *reply, struct wire_fds *fds) {
        struct group *g = context;
        (void) fds;
        if (!is_due(g, reply, STEP_RECORD))
                return;
        if (reply->status < 0)
                fail(g, &reply->error);
        else
                record_done(g, g->node_rank);
}

/* ---- a member ---- */

static void member_fail(struct group *g, const struct haul_name *name,
                        const struct cairn_error *error) {
        if (send_failure(g->leader, name, error) < 0)
                group_lost(g, "the leader does not take messages");
}

/* The store process has what the leader asked for. */
static void offer_to_leader(void *context, const struct store_message *reply,
                            struct wire_fds *fds) {
        struct group *g = context;
        struct haul_name name = {.generation = reply->of_generation, .attempt = reply->attempt};
        struct cairn_error error = reply->error;
        name.kind = reply->verb == STORE_SURVEY  ? KIND(HOLDS)
                    : reply->verb == STORE_PARTS ? KIND(PARTS)
                                                 : KIND(RECORDS);
        if (!g->local || !g->leader)
                return;
        int fd = reply->status == 0 ? wire_fds_take(fds, 0) : -1;
        if (reply->status < 0 || fd < 0 || haul_offer(&g->local->out, &name, fd, &error) < 0 ||
            send_piece(g->leader, &g->local->out, &name, 0, &error) < 0)
                member_fail(g, &name, &error);
}

void group_local_follow(struct group *g) {
        const struct haul_name settle = {.kind = KIND(SETTLE), .generation = g->generation};
        group_local_reset(g);
        haul_expect(&g->local->in, &settle);
}

static void member_asked(struct group *g, const struct haul_name *name, uint64_t offset) {
        struct cairn_error error = CAIRN_ERROR_INIT;
        int r;
        if (offset > 0)
                r = send_piece(g->leader, &g->local->out, name, offset, &error);
        else
                r = ask_store_for(g,
                                  name->kind == KIND(HOLDS)   ? STORE_SURVEY
                                  : name->kind == KIND(PARTS) ? STORE_PARTS
                                                              : STORE_RECORDS,
                                  name, offer_to_leader, &error);
        if (r < 0)
                member_fail(g, name, &error);
}

static void member_recorded(void *context, const struct store_message *reply,
                            struct wire_fds *fds) {
        struct group *g = context;
        Envelope e = CAIRN__PEER__PEER_ENVELOPE__INIT;
        Cairn__Peer__Recorded m = CAIRN__PEER__RECORDED__INIT;
        (void) fds;
        if (g->state != GROUP_FOLLOWING || reply->of_generation != g->generation || !g->leader)
                return;
        if (reply->status < 0) {
                attempts_failed(g->run, reply->attempt, &reply->error);
                return;
        }
        m.attempt = reply->attempt;
        e.body_case = BODY(RECORDED);
        e.recorded = &m;
        if (peer_send(g->leader, &e) < 0)
                group_lost(g, "the leader does not take messages");
}

/* All of what the leader sent is here. */
static void member_has(struct group *g, const struct haul_name *name, int fd) {
        struct cairn_error error = CAIRN_ERROR_INIT;
        struct store_message m = {.verb = STORE_RECORD,
                                  .attempt = name->attempt,
                                  .of_generation = name->generation,
                                  .has_fd = true,
                                  .fd = fd};
        if (name->kind == KIND(SETTLE)) {
                group_set_state(g, GROUP_SETTLING, 0);
                if (ask_settle(g, fd, member_settled, &error) < 0)
                        group_give_up(g, &error);
        } else if (store(g, &m, member_recorded, &error) < 0)
                attempts_failed(g->run, name->attempt, &error);
}

static void member_heard_piece(struct group *g, const Cairn__Peer__Haul *m) {
        const struct haul_name name = {m->kind, m->generation, m->attempt};
        struct group_local *l = g->local;
        struct cairn_error error = CAIRN_ERROR_INIT;
        if (m->failure && name.kind == KIND(SETTLE) && g->state == GROUP_SURVEYING) {
                wire_failure_read(m->failure, &error);
                group_was_refused(g, &error);
                return;
        }
        if (name.kind == KIND(RECORDS) && m->offset == 0 && g->state == GROUP_FOLLOWING &&
            name.generation == g->generation)
                haul_expect(&l->in, &name);
        int r = haul_take_piece(&l->in, m, &error);
        if (r == 0)
                r = ask(g->leader, &name, l->in.have, &error);
        else if (r == 1) {
                _cleanup_close_ int fd = haul_take(&l->in);
                member_has(g, &name, fd);
                return;
        }
        if (r < 0 && r != CAIRN_ERR_STALE)
                group_lost(g, error.message);
}

/* ---- hearing ---- */

static void leader_has(struct group *g, uint32_t node, const struct haul_name *name, int fd) {
        enum step step = g->local->step;
        if (name->kind == KIND(HOLDS) && step == STEP_SURVEY)
                has_survey(g, node, fd);
        else if (name->kind == KIND(PARTS) && step == STEP_PARTS)
                has_parts(g, node, fd);
        else if (name->kind == KIND(RECORDS) && step == STEP_RECORDS)
                has_records(g, fd);
}

static void leader_heard_piece(struct group *g, uint32_t node, const Cairn__Peer__Haul *m) {
        const struct haul_name name = {m->kind, m->generation, m->attempt};
        struct haul_in *in = &g->local->nodes[node].in;
        struct cairn_error error = CAIRN_ERROR_INIT;
        bool is_wanted = in->expected && in->name.kind == name.kind &&
                         in->name.generation == name.generation &&
                         in->name.attempt == name.attempt && g->local->step != STEP_IDLE;
        if (!is_wanted)
                return; /* of something that was given up */
        if (m->failure) {
                wire_failure_read(m->failure, &error);
                fail(g, &error);
                return;
        }
        int r = haul_take_piece(in, m, &error);
        if (r == 0)
                r = ask(g->nodes[node].link, &name, in->have, &error);
        if (r < 0)
                fail(g, &error);
        else if (r == 1) {
                _cleanup_close_ int fd = haul_take(in);
                leader_has(g, node, &name, fd);
        }
}

static void member_heard_finish(struct group *g, const Cairn__Peer__Finish *m) {
        struct start_reply r = {.finished = true, .checkpoint_step = -1};
        size_t count = m->reason.len < sizeof r.finished_reason ? m->reason.len
                                                                : sizeof r.finished_reason - 1;
        if (count)
                memcpy(r.finished_reason, m->reason.data, count);
        group_leave(g);
        run_started(g->run, &r);
}

static void leader_received(struct group *g, struct peer_link *link, const Envelope *e) {
        const struct group_node *node = group_node_of(g, link);
        struct group_local *l = g->local;
        struct cairn_error error = CAIRN_ERROR_INIT;
        uint32_t i = node ? (uint32_t) (node - g->nodes) : UINT32_MAX;
        if (i >= l->node_count)
                return;
        if (e->body_case == BODY(HAUL))
                leader_heard_piece(g, i, e->haul);
        else if (e->body_case == BODY(RECORDED)) {
                if (l->step == STEP_RECORD && l->wanted.attempt == e->recorded->attempt)
                        record_done(g, i);
        } else {
                const struct haul_name name = {e->haul_next->kind, e->haul_next->generation,
                                               e->haul_next->attempt};
                int r = send_piece(link, &l->nodes[i].out, &name, e->haul_next->offset, &error);
                if (r < 0 && r != CAIRN_ERR_STALE)
                        group_lost(g, error.message);
        }
}

void group_local_received(struct group *g, struct peer_link *link, const Envelope *e) {
        if (!g->local)
                return;
        if (g->leader != link)
                leader_received(g, link, e);
        else if (e->body_case == BODY(HAUL))
                member_heard_piece(g, e->haul);
        else if (e->body_case == BODY(HAUL_NEXT)) {
                const struct haul_name name = {e->haul_next->kind, e->haul_next->generation,
                                               e->haul_next->attempt};
                member_asked(g, &name, e->haul_next->offset);
        } else if (e->body_case == BODY(FINISH) && g->state == GROUP_SURVEYING)
                member_heard_finish(g, e->finish);
}

/* ---- the end of the run ---- */

static void marked(void *context, const struct store_message *reply, struct wire_fds *fds) {
        (void) context;
        (void) fds;
        if (reply->status < 0)
                log_error(LOG_LEVEL_WARNING, "mark finished", &reply->error);
}

void group_local_finished(struct run *run) {
        struct cairn_error error = CAIRN_ERROR_INIT;
        struct store_message m = {.verb = STORE_FINISHED, .step = run->finish.step};
        if (!group_node_local(run))
                return;
        memcpy(m.name, run->finish.reason, sizeof run->finish.reason);
        if (run_store_request(run, &m, marked, run, &error) < 0)
                log_error(LOG_LEVEL_WARNING, "mark finished", &error);
}
