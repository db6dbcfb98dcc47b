/* SPDX-License-Identifier: Apache-2.0
 *
 * How a group comes together and how it ends; what its agents say meanwhile is in group_talk.c.
 */
#include "agent/group.h"
#include "agent/attempt.h"
#include "agent/group_local.h"
#include "agent/group_refusal.h"
#include "agent/rendezvous_record.h"
#include "agent/run_parts.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "base/states.h"
#include "format/exits.h"
#include "format/wire.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define TICK_NS (100 * NSEC_PER_MSEC)
#define RETRY_NS (1 * NSEC_PER_SEC)
#define STRANGER_NS (2 * RENDEZVOUS_RENEW_NS)

static const struct state_row group_states[GROUP_STATE_COUNT] = {
        [GROUP_OUTSIDE] = {"outside", STATE_TO(GROUP_LOOKING)},
        [GROUP_LOOKING] = {"looking", STATE_TO(GROUP_JOINING) | STATE_TO(GROUP_OUTSIDE) |
                                              STATE_TO(GROUP_TELLING)},
        [GROUP_JOINING] = {"joining", STATE_TO(GROUP_FORMING) | STATE_TO(GROUP_OUTSIDE) |
                                              STATE_TO(GROUP_TELLING)},
        [GROUP_FORMING] = {"forming", STATE_TO(GROUP_CLAIMING) | STATE_TO(GROUP_CREATING) |
                                              STATE_TO(GROUP_CONNECTING) | STATE_TO(GROUP_JOINING) |
                                              STATE_TO(GROUP_OUTSIDE) | STATE_TO(GROUP_TELLING)},
        [GROUP_CLAIMING] = {"claiming", STATE_TO(GROUP_CREATING) | STATE_TO(GROUP_OUTSIDE) |
                                                STATE_TO(GROUP_TELLING)},
        [GROUP_CREATING] = {"creating", STATE_TO(GROUP_LEADING) | STATE_TO(GROUP_SURVEYING) |
                                                STATE_TO(GROUP_JOINING) | STATE_TO(GROUP_OUTSIDE) |
                                                STATE_TO(GROUP_TELLING)},
        [GROUP_SURVEYING] = {"surveying", STATE_TO(GROUP_SETTLING) | STATE_TO(GROUP_JOINING) |
                                                  STATE_TO(GROUP_OUTSIDE) |
                                                  STATE_TO(GROUP_TELLING)},
        [GROUP_SETTLING] = {"settling", STATE_TO(GROUP_LEADING) | STATE_TO(GROUP_FOLLOWING) |
                                                STATE_TO(GROUP_JOINING) | STATE_TO(GROUP_OUTSIDE) |
                                                STATE_TO(GROUP_TELLING)},
        [GROUP_LEADING] = {"leading", STATE_TO(GROUP_LOST) | STATE_TO(GROUP_OUTSIDE)},
        [GROUP_CONNECTING] = {"connecting", STATE_TO(GROUP_REOPENING) | STATE_TO(GROUP_SURVEYING) |
                                                    STATE_TO(GROUP_JOINING) |
                                                    STATE_TO(GROUP_OUTSIDE) |
                                                    STATE_TO(GROUP_TELLING)},
        [GROUP_REOPENING] = {"reopening", STATE_TO(GROUP_FOLLOWING) | STATE_TO(GROUP_JOINING) |
                                                  STATE_TO(GROUP_OUTSIDE) |
                                                  STATE_TO(GROUP_TELLING)},
        [GROUP_FOLLOWING] = {"following", STATE_TO(GROUP_LOST) | STATE_TO(GROUP_OUTSIDE)},
        [GROUP_LOST] = {"lost", STATE_TO(GROUP_LOOKING) | STATE_TO(GROUP_OUTSIDE)},
        [GROUP_TELLING] = {"telling", STATE_TO(GROUP_LOOKING) | STATE_TO(GROUP_OUTSIDE)},
};

void group_set_state(struct group *g, enum group_state to, uint64_t deadline_ns) {
        const char *name = state_table_step(group_states, GROUP_STATE_COUNT, g->state, to);
        log_event(LOG_LEVEL_INFO, "run=%s node=%s group=%s generation=%llu nodes=%u world=%u",
                  g->run->name, g->self.node, name, (unsigned long long) g->generation,
                  g->node_count, g->world);
        g->state = to;
        if (deadline_ns)
                loop_timer_set(&g->run->agent->loop, &g->timer, deadline_ns);
        else
                loop_timer_clear(&g->run->agent->loop, &g->timer);
}

static uint64_t now_of(const struct group *g) {
        return loop_now(&g->run->agent->loop);
}

bool group_leads(const struct run *run) {
        return !run->group || run->group->state == GROUP_LEADING;
}

bool group_has(const struct run *run, uint32_t rank) {
        const struct group *g = run->group;
        return g && !run_is_local(run, rank) && rank < g->world &&
               (g->state == GROUP_LEADING || g->state == GROUP_FOLLOWING);
}

bool group_discards(const struct run *run) {
        return group_node_local(run) && run->group->state == GROUP_FOLLOWING;
}

bool group_node_local(const struct run *run) {
        return run->group && run->group->local;
}

bool group_records_end(const struct run *run) {
        return group_leads(run) || run->group->local || run->group->end_code;
}

const char *group_node_name(const struct run *run) {
        return run->group ? run->group->self.node : "";
}

void group_drop_links(struct group *g) {
        group_local_reset(g);
        peer_free(g->leader);
        g->leader = NULL;
        for (uint32_t i = 0; i < g->node_count; i++) {
                peer_free(g->nodes[i].link);
                g->nodes[i].link = NULL;
        }
        free(g->nodes);
        g->nodes = NULL;
        g->node_count = g->finished_count = 0;
}

static void join(struct group *g);

/* This start came to nothing: its `cairn run` hears why, and if it is for good the others, too. */
static void give_up(struct group *g, const struct cairn_error *error) {
        group_refuse(g, false, error);
        run_start_failed(g->run, error);
}

void group_give_up(struct group *g, const struct cairn_error *error) {
        give_up(g, error);
}

/* The like where the others know by themselves. */
static void give_up_silently(struct group *g, const struct cairn_error *error) {
        group_leave(g);
        run_start_failed(g->run, error);
}

void group_was_refused(struct group *g, const struct cairn_error *error) {
        give_up_silently(g, error);
}

/* ---- the store ---- */

/* What only a store that all nodes see can have. */
static int check_local(const struct group *g, struct cairn_error *reterr) {
        if (!g->at_etcd)
                return error_set(reterr, CAIRN_ERR_API, "start group", g->run->store,
                                 "the store is node-local, so no other node sees what lies in it, "
                                 "and a folder cannot be where they meet: give --rdzv "
                                 "etcd://HOST:PORT, or a shared store");
        if (g->elastic)
                return error_set(reterr, CAIRN_ERR_API, "start group", g->run->store,
                                 "the store is node-local, so each node alone has the data of its "
                                 "ranks, and all of them have to be there: give --nnodes N, or a "
                                 "shared store for a run whose nodes may change");
        return 0;
}

static void looked(void *context, const struct store_message *reply, struct wire_fds *fds) {
        struct group *g = context;
        struct cairn_error error = reply->error;
        bool is_local = reply->status == 0 && reply->count == STORE_NODE_LOCAL;
        (void) fds;
        if (g->state != GROUP_LOOKING)
                return;
        if (is_local && !g->local)
                g->local = group_local_new();
        if (!is_local)
                g->local = group_local_free(g->local);
        if (is_local && !g->local)
                (void) error_set_errno(&error, ENOMEM, "start group", g->run->name);
        if (error.status < 0 || (is_local && check_local(g, &error) < 0)) {
                give_up(g, &error);
                return;
        }
        *g->self.detail = 0;
        if (reply->count)
                (void) snprintf(g->self.detail, sizeof g->self.detail, "store %s %.40s",
                                is_local ? "node-local" : "shared", is_local ? "" : reply->name);
        if (reply->bytes >= g->generation_min)
                g->generation_min = reply->bytes + 1;
        join(g);
}

/* Not one store, where it has to be, or of different kinds. */
static bool has_other_store(const struct group *g, const struct rendezvous_member *m) {
        return *m->detail && *g->self.detail && strcmp(m->detail, g->self.detail) != 0;
}

static int check_stores(const struct group *g, const struct rendezvous_view *v,
                        struct cairn_error *reterr) {
        for (size_t i = 0; i < v->member_count; i++)
                if (has_other_store(g, &v->members[i]))
                        return error_set(reterr, CAIRN_ERR_MISMATCH, "start group", g->run->store,
                                         "it is another store than that of node %s: mount one "
                                         "shared store on all nodes, or make one on each of them "
                                         "with `cairn init --kind node-local`",
                                         v->members[i].node);
        return 0;
}

/* ---- forming ---- */

static bool is_of(const struct rendezvous_generation *n, const struct rendezvous_member *m) {
        return rendezvous_find(n->members, n->member_count, m->node, m->nonce) != NULL;
}

static uint64_t hash_more(uint64_t hash, uint64_t value) {
        hash = (hash ^ value) * UINT64_C(0x9e3779b97f4a7c15);
        return hash ^ (hash >> 29);
}

/* How many nodes are ready, the first ones of the view, which is sorted by name; nodes_max at most.
 * 0: some of the newest generation are still at work, so that this is not the time. */
static uint32_t ready_nodes(const struct group *g, const struct rendezvous_view *v) {
        for (size_t i = 0; i < v->member_count; i++)
                if (is_of(&v->generation, &v->members[i]))
                        return 0;
        return v->member_count < g->nodes_max ? (uint32_t) v->member_count : g->nodes_max;
}

static int take_nodes(struct group *g, const struct rendezvous_member *members, size_t count,
                      struct cairn_error *reterr) {
        g->nodes = calloc(count, sizeof *g->nodes);
        if (!g->nodes)
                return error_set_errno(reterr, ENOMEM, "form group", g->run->name);
        g->node_count = (uint32_t) count;
        uint64_t world = 0;
        for (size_t i = 0; i < count; i++) {
                g->nodes[i].member = members[i];
                g->nodes[i].member.first_rank = (uint32_t) world;
                world += members[i].ranks;
        }
        g->world = world < UINT32_MAX ? (uint32_t) world : UINT32_MAX;
        if (world <= RANK_COUNT_MAX)
                return 0;
        return error_set(reterr, CAIRN_ERR_API, "form group", g->run->name,
                         "%zu nodes with %llu ranks together; a run has %d at most", count,
                         (unsigned long long) world, RANK_COUNT_MAX);
}

struct group_node *group_node_at(const struct group *g, uint32_t rank) {
        uint32_t low = 0, high = g->node_count;
        while (low < high) { /* the first one behind it */
                uint32_t middle = low + (high - low) / 2;
                if (g->nodes[middle].member.first_rank <= rank)
                        low = middle + 1;
                else
                        high = middle;
        }
        return low > 0 && rank < g->world ? &g->nodes[low - 1] : NULL;
}

struct group_node *group_node_of(const struct group *g, const struct peer_link *link) {
        struct group_node *node = peer_owner(link);
        return g->node_count > 0 ? node : NULL;
}

static struct group_node *find_node(struct group *g, const char *node) {
        for (uint32_t i = 0; g->nodes && i < g->node_count; i++)
                if (strcmp(g->nodes[i].member.node, node) == 0)
                        return &g->nodes[i];
        return NULL;
}

static void take_ranks(struct group *g) {
        const struct group_node *self = find_node(g, g->self.node);
        g->run->world = g->world;
        g->run->first_rank = self ? self->member.first_rank : 0;
        g->run->local_count = self ? self->member.ranks : 0;
        g->node_rank = self ? (uint32_t) (self - g->nodes) : 0;
}

static void create(struct group *g, uint64_t number, const char *parent);

static void lead(struct group *g, const struct rendezvous_member *ready, uint32_t count) {
        struct cairn_error error = CAIRN_ERROR_INIT;
        if (take_nodes(g, ready, count, &error) < 0) {
                give_up(g, &error);
                return;
        }
        take_ranks(g);
        (void) snprintf(g->master, sizeof g->master, "%s", g->host);
        if (g->local) { /* the claim is the rendezvous'; the stores get it once all are here */
                uint64_t newest = rendezvous_view(g->rendezvous)->generation.number;
                uint64_t number = newest < g->generation_min ? g->generation_min : newest + 1;
                create(g, number, "");
                return;
        }
        group_set_state(g, GROUP_CLAIMING, 0);
        run_ask_store(g->run);
}

/* Members know of a generation before its leader has the answer: one that came and was refused
 * meanwhile says so for a shorter time than it would be waited for. */
static void lose_who_left(struct group *g) {
        char reason[200];
        for (uint32_t i = 0; i < g->node_count; i++) {
                if (!g->nodes[i].left)
                        continue;
                (void) snprintf(reason, sizeof reason, "node %s left before the group was whole",
                                g->nodes[i].member.node);
                if (g->local)
                        join(g);
                else
                        group_lost(g, reason);
                return;
        }
}

static void created(void *context, const struct rendezvous_answer *answer) {
        struct group *g = context;
        if (g->state != GROUP_CREATING)
                return;
        if (answer->status == 0) {
                memcpy(g->secret, rendezvous_view(g->rendezvous)->generation.secret,
                       sizeof g->secret);
                if (g->local) {
                        group_set_state(g, GROUP_SURVEYING, now_of(g) + GROUP_CONNECT_NS);
                        group_local_start(g);
                } else {
                        group_set_state(g, GROUP_LEADING, now_of(g) + GROUP_CONNECT_NS);
                        run_started(g->run, &g->decided);
                }
                lose_who_left(g);
                return;
        }
        /* Another one was faster, or the answer was lost: the view tells, and a generation in the
         * store that nobody uses does no harm. */
        log_error(LOG_LEVEL_WARNING, "create generation", &answer->error);
        join(g);
}

static void create(struct group *g, uint64_t number, const char *parent) {
        struct cairn_error error = CAIRN_ERROR_INIT;
        g->generation = number;
        _cleanup_free_ struct rendezvous_member *members = calloc(g->node_count, sizeof *members);
        if (!members) {
                (void) error_set_errno(&error, ENOMEM, "form group", g->run->name);
                give_up(g, &error);
                return;
        }
        for (uint32_t i = 0; i < g->node_count; i++)
                members[i] = g->nodes[i].member;
        struct rendezvous_generation n = {.number = number,
                                          .world = g->world,
                                          .master_port = g->run->master_port,
                                          .members = members,
                                          .member_count = g->node_count};
        (void) snprintf(n.parent, sizeof n.parent, "%.63s", parent);
        while (getrandom(n.secret, sizeof n.secret, 0) != sizeof n.secret)
                ;
        memcpy(g->secret, n.secret, sizeof g->secret);
        group_set_state(g, GROUP_CREATING, 0);
        if (rendezvous_create(g->rendezvous, &n, now_of(g) + GROUP_REQUEST_NS, created, g, &error) <
            0)
                give_up(g, &error);
}

void group_claimed(struct group *g, const struct start_reply *decided) {
        g->decided = *decided;
        if (decided->finished) { /* nothing was made */
                group_refuse_finished(g, decided->finished_reason);
                run_started(g->run, decided);
                return;
        }
        create(g, decided->generation, decided->decided == START_RESUME ? decided->checkpoint : "");
}

void group_settled(struct group *g, const struct start_reply *decided) {
        bool leads = !g->leader;
        g->decided = *decided;
        group_set_state(g, leads ? GROUP_LEADING : GROUP_FOLLOWING,
                        leads ? now_of(g) + GROUP_CONNECT_NS : 0);
        if (!leads)
                group_tell_ready(g->run);
        run_started(g->run, &g->decided);
}

void group_join_again(struct group *g, uint64_t generation_min) {
        if (generation_min > g->generation_min)
                g->generation_min = generation_min;
        join(g);
}

void group_claim_failed(struct group *g, const struct cairn_error *error) {
        group_refuse(g, true, error);
}

bool run_is_telling(const struct run *run) {
        return run->group && run->group->state == GROUP_TELLING;
}

/* ---- a member ---- */

static void identity_of(const struct group *g, struct peer_identity *ret) {
        *ret = (struct peer_identity){.generation = g->generation};
        memcpy(ret->run, g->run->name, sizeof ret->run);
        (void) snprintf(ret->node, sizeof ret->node, "%.63s", g->self.node);
        memcpy(ret->secret, g->secret, sizeof ret->secret);
}

static void link_opened(void *context, struct peer_link *link);
static void link_closed(void *context, struct peer_link *link, const struct cairn_error *why);

static int split_address(const char *address, char *host, size_t bytes, uint16_t *ret_port) {
        const char *colon = strrchr(address, ':');
        if (!colon || (size_t) (colon - address) >= bytes)
                return CAIRN_ERR_API;
        memcpy(host, address, (size_t) (colon - address));
        host[colon - address] = 0;
        *ret_port = (uint16_t) strtoul(colon + 1, NULL, 10);
        return 0;
}

static void follow(struct group *g, const struct rendezvous_generation *n) {
        struct cairn_error error = CAIRN_ERROR_INIT;
        struct peer_identity me;
        char host[RENDEZVOUS_ADDRESS_BYTES];
        uint16_t port = 0;
        if (take_nodes(g, n->members, n->member_count, &error) < 0) {
                give_up(g, &error);
                return;
        }
        take_ranks(g);
        g->generation = n->number;
        g->run->master_port = n->master_port;
        memcpy(g->secret, n->secret, sizeof g->secret);
        group_set_state(g, GROUP_CONNECTING, now_of(g) + GROUP_CONNECT_NS);
        identity_of(g, &me);
        const struct peer_callbacks callbacks = {.context = g,
                                                 .opened = link_opened,
                                                 .received = group_received,
                                                 .closed = link_closed};
        const struct group_node *leader = find_node(g, n->leader);
        bool known = leader && split_address(leader->member.address, host, sizeof host, &port) == 0;
        if (known)
                memcpy(g->master, host, sizeof host);
        if (!known || peer_connect(&g->run->agent->loop, &me, host, port, &callbacks, &g->leader,
                                   &error) < 0) {
                log_error(LOG_LEVEL_WARNING, "connect to the group's leader", &error);
                join(g);
        }
}

static void reopened(void *context, const struct store_message *reply, struct wire_fds *fds) {
        struct group *g = context;
        (void) fds;
        if (g->state != GROUP_REOPENING)
                return;
        if (reply->status < 0) {
                give_up(g, &reply->error);
                return;
        }
        g->decided = reply->started;
        group_set_state(g, GROUP_FOLLOWING, 0);
        group_tell_ready(g->run);
        run_started(g->run, &g->decided);
}

static void link_opened(void *context, struct peer_link *link) {
        struct group *g = context;
        struct cairn_error error = CAIRN_ERROR_INIT;
        struct store_message m = {.verb = STORE_REOPEN, .generation = g->generation};
        if (g->state != GROUP_CONNECTING)
                return;
        (void) link;
        if (g->local) {
                group_set_state(g, GROUP_SURVEYING, 0);
                group_local_follow(g);
                return;
        }
        group_set_state(g, GROUP_REOPENING, 0);
        if (run_store_request(g->run, &m, reopened, g, &error) < 0)
                give_up(g, &error);
}

/* ---- the leader's side of a link ---- */

static int identify(void *context, const char *run, uint64_t generation, const char *node,
                    struct peer_identity *ret, struct cairn_error *reterr) {
        struct group *g = context;
        bool leads = g->state == GROUP_LEADING || g->state == GROUP_CREATING ||
                     (!g->leader && (g->state == GROUP_SURVEYING || g->state == GROUP_SETTLING));
        if (strcmp(run, g->run->name) != 0 || !leads || generation != g->generation)
                return error_set(reterr, CAIRN_ERR_STALE, "join group", run,
                                 "restart %llu is not led here; restart %llu is the newest that "
                                 "this agent knows",
                                 (unsigned long long) generation,
                                 (unsigned long long) g->generation);
        if (!find_node(g, node))
                return error_set(reterr, CAIRN_ERR_STALE, "join group", run,
                                 "node %s is not in restart %llu", node,
                                 (unsigned long long) generation);
        identity_of(g, ret);
        return 0;
}

static void member_opened(void *context, struct peer_link *link) {
        struct group *g = context;
        struct group_node *node = find_node(g, peer_node(link));
        if (!node || peer_generation(link) != g->generation) {
                peer_free(link);
                return;
        }
        peer_free(node->link); /* it came again */
        node->link = link;
        peer_set_owner(link, node);
        node->ready = node->left = false;
        log_event(LOG_LEVEL_INFO, "run=%s member=%s connected=1", g->run->name, peer_node(link));
        if (g->local)
                group_local_connected(g, node);
}

static void link_closed(void *context, struct peer_link *link, const struct cairn_error *why) {
        struct group *g = context;
        char text[400], reason[500];
        (void) snprintf(reason, sizeof reason, "node %.64s is lost: %s",
                        *peer_node(link) ? peer_node(link) : "(the leader)",
                        error_format(why, text, sizeof text));
        struct group_node *node = group_node_of(g, link);
        if (node && node->link == link) {
                node->link = NULL;
                node->left = true;
        }
        if (g->leader == link)
                g->leader = NULL;
        peer_free(link);
        if (g->state == GROUP_CONNECTING || g->state == GROUP_REOPENING ||
            g->state == GROUP_SURVEYING || g->state == GROUP_SETTLING)
                join(g); /* its start is looked at anew */
        else
                group_lost(g, reason);
}

/* ---- the rendezvous ---- */

static void left_behind(struct group *g, const struct rendezvous_view *v) {
        char text[400], reason[500];
        (void) snprintf(reason, sizeof reason, "this node was given up by the others: %s",
                        error_format(&v->error, text, sizeof text));
        group_lost(g, reason);
}

/* A node with another store is there: both starts end, each by itself, once both have seen the
 * other; this one also where that one has left meanwhile. A run that goes on waits until it is
 * gone. */
static bool sees_stranger(struct group *g, const struct rendezvous_view *v) {
        struct cairn_error error = CAIRN_ERROR_INIT;
        bool is_there = check_stores(g, v, &error) < 0;
        if (g->run->generation > 0)
                return is_there;
        if (is_there && !g->stranger_ns) {
                g->stranger_ns = now_of(g);
                g->stranger = error;
        }
        if (g->stranger_ns && now_of(g) >= g->stranger_ns + STRANGER_NS)
                give_up_silently(g, &g->stranger);
        return g->stranger_ns != 0;
}

/* Is it time, and does this node lead? */
static void form(struct group *g, const struct rendezvous_view *all) {
        _cleanup_free_ struct rendezvous_member *memory = NULL;
        struct cairn_error error = CAIRN_ERROR_INIT;
        struct rendezvous_view v;
        if (group_without_refusals(all, &v, &memory, &error) < 0) {
                log_error(LOG_LEVEL_WARNING, "form group", &error); /* again with the next look */
                return;
        }
        if (sees_stranger(g, &v))
                return;
        uint32_t count = ready_nodes(g, &v);
        uint64_t hash = count;
        for (uint32_t i = 0; i < count; i++)
                hash = hash_more(hash, v.members[i].nonce);
        if (hash != g->ready_hash) {
                g->ready_hash = hash;
                g->ready_since_ns = now_of(g);
        }
        if (count >= g->nodes_min && strcmp(v.members[0].node, g->self.node) == 0 &&
            (count == g->nodes_max || now_of(g) >= g->ready_since_ns + GROUP_SETTLE_NS))
                lead(g, v.members, count);
}

static void look(struct group *g) {
        const struct rendezvous_view *v = rendezvous_view(g->rendezvous);
        if (v->standing == RENDEZVOUS_LOST) {
                if (g->state == GROUP_FORMING)
                        join(g);
                else if (g->state == GROUP_LEADING || g->state == GROUP_FOLLOWING)
                        left_behind(g, v);
                return;
        }
        if (g->state != GROUP_FORMING || v->standing != RENDEZVOUS_MEMBER)
                return;
        if (v->generation.number > 0 && is_of(&v->generation, &g->self)) {
                follow(g, &v->generation);
                return;
        }
        if (!group_heed_refusal(g, v))
                form(g, v);
}

static void on_change(void *context) {
        look(context);
}

static void on_rendezvous(void *context, uint32_t events) {
        struct group *g = context;
        (void) events;
        rendezvous_dispatch(g->rendezvous);
}

static void joined(void *context, const struct rendezvous_answer *answer) {
        struct group *g = context;
        if (g->state != GROUP_JOINING)
                return;
        /* A node that was cut off comes back when its link does; its `cairn run` waits as long as
         * for other nodes. */
        bool retry = g->run->generation > 0 && (answer->status == CAIRN_ERR_UNREACHABLE ||
                                                answer->status == CAIRN_ERR_TIMEOUT);
        if (retry) {
                log_error(LOG_LEVEL_WARNING, "join the rendezvous again", &answer->error);
                loop_timer_set(&g->run->agent->loop, &g->timer, now_of(g) + RETRY_NS);
        } else if (answer->status < 0)
                give_up(g, &answer->error);
        else {
                group_set_state(g, GROUP_FORMING, now_of(g) + TICK_NS);
                look(g);
        }
}

static void enter(struct group *g) {
        struct cairn_error error = CAIRN_ERROR_INIT;
        /* Until its own former lease has run out the name may be taken. */
        if (rendezvous_join(g->rendezvous, &g->self,
                            now_of(g) + RENDEZVOUS_LOSS_NS + GROUP_REQUEST_NS, joined, g,
                            &error) < 0)
                give_up(g, &error);
}

static void leave_or_enter(struct group *g);

/* While nobody can be told that this node left, it cannot come again either. */
static void left_first(void *context, const struct rendezvous_answer *answer) {
        struct group *g = context;
        if (g->state != GROUP_JOINING)
                return;
        if (answer->status < 0)
                log_error(LOG_LEVEL_WARNING, "leave the rendezvous", &answer->error);
        loop_timer_set(&g->run->agent->loop, &g->timer,
                       now_of(g) + (answer->status < 0 ? RETRY_NS : 0));
}

static void leave_or_enter(struct group *g) {
        struct cairn_error error = CAIRN_ERROR_INIT;
        if (rendezvous_view(g->rendezvous)->standing != RENDEZVOUS_MEMBER)
                enter(g);
        else if (rendezvous_leave(g->rendezvous, now_of(g) + GROUP_REQUEST_NS, left_first, g,
                                  &error) < 0)
                give_up(g, &error);
}

/* With a fresh nonce: whoever sees it knows that this node is ready. */
static void join(struct group *g) {
        group_drop_links(g);
        while (getrandom(&g->self.nonce, sizeof g->self.nonce, 0) != sizeof g->self.nonce ||
               g->self.nonce == 0)
                ;
        g->ready_hash = 0;
        g->few_ns = 0;
        g->end_code = 0;
        group_set_state(g, GROUP_JOINING, 0);
        leave_or_enter(g);
}

static void on_time(void *context) {
        struct group *g = context;
        char reason[200];
        switch (g->state) {
        case GROUP_FORMING:
                look(g);
                if (g->state == GROUP_FORMING)
                        loop_timer_set(&g->run->agent->loop, &g->timer, now_of(g) + TICK_NS);
                break;
        case GROUP_JOINING:
                leave_or_enter(g);
                break;
        case GROUP_TELLING:
                group_refusal_pump(g);
                break;
        case GROUP_SURVEYING: /* members wait for their leader, who is here or lost */
                for (uint32_t i = 0; i < g->node_count && !g->leader; i++)
                        if (!g->nodes[i].link && i != g->node_rank)
                                log_event(LOG_LEVEL_WARNING, "run=%s node=%s connected=0",
                                          g->run->name, g->nodes[i].member.node);
                join(g);
                break;
        case GROUP_CONNECTING:
                join(g);
                break;
        case GROUP_LEADING:
                for (uint32_t i = 0; i < g->node_count; i++)
                        if (!g->nodes[i].ready &&
                            strcmp(g->nodes[i].member.node, g->self.node) != 0) {
                                (void) snprintf(reason, sizeof reason,
                                                "node %s did not connect within %d s",
                                                g->nodes[i].member.node,
                                                (int) (GROUP_CONNECT_NS / NSEC_PER_SEC));
                                group_lost(g, reason);
                                return;
                        }
                break;
        default:
                break;
        }
}

void group_begin(struct group *g) {
        struct cairn_error error = CAIRN_ERROR_INIT;
        struct store_message m = {.verb = STORE_LOOK};
        group_drop_links(g);
        g->stranger_ns = 0;
        group_set_state(g, GROUP_LOOKING, 0);
        if (run_store_request(g->run, &m, looked, g, &error) < 0)
                give_up(g, &error);
}

static void left(void *context, const struct rendezvous_answer *answer) {
        (void) context;
        if (answer->status < 0)
                log_error(LOG_LEVEL_WARNING, "leave the rendezvous", &answer->error);
}

void group_leave(struct group *g) {
        struct cairn_error error = CAIRN_ERROR_INIT;
        if (!g || g->state == GROUP_OUTSIDE || g->state == GROUP_TELLING)
                return;
        group_drop_links(g);
        group_set_state(g, GROUP_OUTSIDE, 0);
        if (rendezvous_view(g->rendezvous)->standing != RENDEZVOUS_MEMBER)
                return;
        if (rendezvous_leave(g->rendezvous, now_of(g) + GROUP_REQUEST_NS, left, g, &error) < 0)
                log_error(LOG_LEVEL_WARNING, "leave the rendezvous", &error);
}

bool group_cancel(struct group *g) {
        if (!g ||
            (g->state != GROUP_LOOKING && g->state != GROUP_JOINING && g->state != GROUP_FORMING &&
             g->state != GROUP_CONNECTING && g->state != GROUP_SURVEYING))
                return false;
        group_leave(g);
        return true;
}

/* ---- losses ---- */

static void tell_runner(struct run *run, const char *reason, int code) {
        Cairn__Control__Envelope e = CAIRN__CONTROL__ENVELOPE__INIT;
        Cairn__Control__GroupLost m = CAIRN__CONTROL__GROUP_LOST__INIT;
        m.reason = (ProtobufCBinaryData){strlen(reason), (uint8_t *) (uintptr_t) reason};
        m.code = code;
        e.body_case = CAIRN__CONTROL__ENVELOPE__BODY_GROUP_LOST;
        e.group_lost = &m;
        server_tell(&run->runner, &e);
}

static void tell_lost(struct group *g, const char *reason, int code) {
        Cairn__Peer__PeerEnvelope e = CAIRN__PEER__PEER_ENVELOPE__INIT;
        Cairn__Peer__Lost m = CAIRN__PEER__LOST__INIT;
        m.reason = (ProtobufCBinaryData){strlen(reason), (uint8_t *) (uintptr_t) reason};
        m.code = code;
        e.body_case = CAIRN__PEER__PEER_ENVELOPE__BODY_LOST;
        e.lost = &m;
        if (g->leader)
                (void) peer_send(g->leader, &e);
        for (uint32_t i = 0; i < g->node_count; i++)
                if (g->nodes[i].link)
                        (void) peer_send(g->nodes[i].link, &e);
        tell_runner(g->run, reason, code);
}

static bool is_whole(const struct group *g) {
        return g->state == GROUP_LEADING || g->state == GROUP_FOLLOWING;
}

/* Ranks that leave a run which is complete or to be stopped are no loss. */
static bool is_ending(const struct run *run) {
        return run->finish.done || run->stop.active || run->end.wanted;
}

void group_lost(struct group *g, const char *reason) {
        struct run *run = g->run;
        if (!is_whole(g) || is_ending(run))
                return;
        log_event(LOG_LEVEL_WARNING, "run=%s generation=%llu group=lost reason=\"%s\"", run->name,
                  (unsigned long long) g->generation, reason);
        tell_lost(g, reason, 0);
        group_set_state(g, GROUP_LOST, 0);
        struct cairn_error error = CAIRN_ERROR_INIT;
        (void) error_set(&error, CAIRN_ERR_PEER, "take snapshot", run->name, "%s", reason);
        attempts_doom_all(run, &error);
        run_pump(run);
}

/* Also after a loss that was told before: whoever still listens does not wait for this node. */
void group_ended(struct group *g, const char *reason, int code) {
        if (g->end_code || (!is_whole(g) && g->state != GROUP_LOST) || is_ending(g->run))
                return;
        g->end_code = code;
        tell_lost(g, reason, code);
        group_lost(g, reason);
}

void group_rank_failed(struct run *run, const char *what, int code) {
        const char *final = exit_final_reason(code);
        char reason[400];
        if (!run->group)
                return;
        (void) snprintf(reason, sizeof reason, "%s on node %s%s%s", what, run->group->self.node,
                        final ? ": " : "", final ? final : "");
        if (final)
                group_ended(run->group, reason, code);
        else
                group_lost(run->group, reason);
}

/* ---- making ---- */

/* The first address that is not this machine's own only. */
static void own_address(char *host, size_t bytes) {
        struct ifaddrs *all = NULL;
        (void) snprintf(host, bytes, "127.0.0.1");
        if (getifaddrs(&all) < 0)
                return;
        for (const struct ifaddrs *i = all; i; i = i->ifa_next) {
                if (!i->ifa_addr || i->ifa_addr->sa_family != AF_INET || !(i->ifa_flags & IFF_UP) ||
                    (i->ifa_flags & IFF_LOOPBACK))
                        continue;
                const struct sockaddr_in *v4 = (const struct sockaddr_in *) (void *) i->ifa_addr;
                if (inet_ntop(AF_INET, &v4->sin_addr, host, (socklen_t) bytes))
                        break;
        }
        freeifaddrs(all);
}

static int open_group(struct group *g, const char *store, const Cairn__Control__Start *m,
                      struct cairn_error *reterr) {
        struct loop *loop = &g->run->agent->loop;
        struct rendezvous_place place;
        char url[sizeof place.url];
        TRY(wire_text_copy(url, sizeof url, &m->rendezvous, "start group", "--rdzv", reterr));
        TRY(wire_text_copy(g->self.node, sizeof g->self.node, &m->node, "start group", "--node",
                           reterr));
        TRY(wire_text_copy(g->host, sizeof g->host, &m->address, "start group", "--address",
                           reterr));
        if (m->nodes_min < 1 || m->nodes_max < m->nodes_min || m->nodes_max > NODE_COUNT_MAX)
                return error_set(reterr, CAIRN_ERR_API, "start group", "--nnodes",
                                 "%u:%u; a group has 1 to %d nodes", m->nodes_min, m->nodes_max,
                                 NODE_COUNT_MAX);
        TRY(rendezvous_place_parse(url, store, g->run->name, &place, reterr));
        place.create_store = m->create_store;
        if (!*g->host)
                own_address(g->host, sizeof g->host);
        g->nodes_min = m->nodes_min;
        g->nodes_max = m->nodes_max;
        g->elastic = m->nodes_min != m->nodes_max;
        g->at_etcd = place.kind == RENDEZVOUS_ETCD;
        g->in_store = place.in_store;
        g->self.ranks = m->world;
        const struct peer_callbacks callbacks = {.context = g,
                                                 .identify = identify,
                                                 .opened = member_opened,
                                                 .received = group_received,
                                                 .closed = link_closed};
        TRY(peer_listen(&g->listener, loop, g->host, &callbacks, reterr));
        (void) snprintf(g->self.address, sizeof g->self.address, "%.63s:%u", g->host,
                        g->listener.port);
        TRY(rendezvous_new(&place, on_change, g, &g->rendezvous, reterr));
        return loop_watch(loop, &g->rendezvous_source, rendezvous_fd(g->rendezvous), EPOLLIN,
                          on_rendezvous, g, reterr);
}

int group_new(struct run *run, const char *store, const Cairn__Control__Start *m,
              struct cairn_error *reterr) {
        if (m->rendezvous.len == 0)
                return 0;
        struct group *g = calloc(1, sizeof *g);
        if (!g)
                return error_set_errno(reterr, ENOMEM, "start group", run->name);
        g->run = run;
        loop_timer_init(&g->timer, on_time, g);
        int r = open_group(g, store, m, reterr);
        if (r < 0) {
                group_free(g);
                return r;
        }
        run->group = g;
        return 0;
}

void group_free(struct group *g) {
        if (!g)
                return;
        struct loop *loop = &g->run->agent->loop;
        group_drop_links(g);
        g->local = group_local_free(g->local);
        peer_listener_done(&g->listener);
        loop_timer_clear(loop, &g->timer);
        loop_unwatch(loop, &g->rendezvous_source);
        (void) rendezvous_free(g->rendezvous);
        free(g);
}
