/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/group_refusal.h"
#include "agent/agent.h"
#include "agent/run_parts.h"
#include "base/log.h"
#include "format/exits.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define TICK_NS (100 * NSEC_PER_MSEC)
/* In a folder a lease is seen once it has changed. */
#define SEEN_NS (2 * RENDEZVOUS_RENEW_NS)
#define FEW_NS (RENDEZVOUS_LOSS_NS / 2)

struct word {
        bool all;
        int status; /* 0: finished */
        char node[RENDEZVOUS_NODE_BYTES];
        const char *text;
};

static uint64_t now_of(const struct group *g) {
        return loop_now(&g->run->agent->loop);
}

static bool is_final(int status) {
        return status < 0 && exit_final_reason(status_exit_code(status));
}

/* ---- hearing ---- */

static bool read_word(const struct rendezvous_member *m, struct word *ret) {
        char scope[8];
        int used = 0;
        if (sscanf(m->detail, "refused %7s %d %64s %n", scope, &ret->status, ret->node, &used) !=
                    3 ||
            used == 0)
                return false;
        ret->all = strcmp(scope, "all") == 0;
        ret->text = m->detail + used;
        return ret->status == 0 || is_final(ret->status);
}

static bool was_in_group(const struct rendezvous_view *v, const char *node) {
        for (size_t i = 0; i < v->generation.member_count; i++)
                if (strcmp(v->generation.members[i].node, node) == 0)
                        return true;
        return false;
}

static size_t count_waiting(const struct rendezvous_view *v) {
        struct word w;
        size_t count = 0;
        for (size_t i = 0; i < v->member_count; i++)
                count += !read_word(&v->members[i], &w);
        return count;
}

static void hear(struct group *g, const struct word *w) {
        struct start_reply finished = {.finished = true, .checkpoint_step = -1};
        struct cairn_error error = CAIRN_ERROR_INIT;
        group_leave(g);
        if (w->status < 0) {
                (void) error_set(&error, w->status, "start group", g->run->name,
                                 "node %s was refused: %s", w->node, w->text);
                run_start_failed(g->run, &error);
        } else {
                (void) snprintf(finished.finished_reason, sizeof finished.finished_reason, "%.127s",
                                w->text);
                run_started(g->run, &finished);
        }
}

/* Where nodes may come and go, those that come back after a loss come one after the other. */
static bool are_too_few(struct group *g, const struct rendezvous_view *v) {
        uint64_t now_ns = now_of(g);
        if (count_waiting(v) >= g->nodes_min)
                g->few_ns = 0;
        else if (!g->few_ns)
                g->few_ns = now_ns;
        return g->few_ns && (!g->elastic || now_ns >= g->few_ns + FEW_NS);
}

bool group_heed_refusal(struct group *g, const struct rendezvous_view *v) {
        struct word w;
        for (size_t i = 0; i < v->member_count; i++) {
                if (!read_word(&v->members[i], &w))
                        continue;
                bool ours = g->run->generation == 0 || was_in_group(v, w.node);
                if (ours && (w.all || are_too_few(g, v))) {
                        hear(g, &w);
                        return true;
                }
        }
        return false;
}

int group_without_refusals(const struct rendezvous_view *v, struct rendezvous_view *ret,
                           struct rendezvous_member **memory, struct cairn_error *reterr) {
        struct word w;
        size_t count = count_waiting(v);
        *ret = *v;
        *memory = NULL;
        if (count == v->member_count)
                return 0;
        *memory = calloc(count + 1, sizeof **memory);
        if (!*memory)
                return error_set_errno(reterr, ENOMEM, "form group", "members");
        ret->members = *memory;
        ret->member_count = 0;
        for (size_t i = 0; i < v->member_count; i++)
                if (!read_word(&v->members[i], &w))
                        (*memory)[ret->member_count++] = v->members[i];
        return 0;
}

/* ---- saying ---- */

/* Whoever waits for the end of this may go. */
static void be_silent(struct group *g) {
        group_set_state(g, GROUP_OUTSIDE, 0);
        agent_reap(g->run->agent);
}

static void said(void *context, const struct rendezvous_answer *answer) {
        struct group *g = context;
        if (g->state != GROUP_TELLING)
                return;
        if (answer->status < 0)
                log_error(LOG_LEVEL_WARNING, "leave the rendezvous", &answer->error);
        be_silent(g);
}

void group_refusal_pump(struct group *g) {
        const struct rendezvous_view *v = rendezvous_view(g->rendezvous);
        struct cairn_error error = CAIRN_ERROR_INIT;
        uint64_t now_ns = now_of(g);
        /* Who was in a group with this node leaves, too, to come back: no member meanwhile. */
        bool come_back = g->generation > 0 && g->generation == v->generation.number;
        if (v->standing == RENDEZVOUS_MEMBER && now_ns < g->told_ns + RENDEZVOUS_LOSS_NS &&
            (now_ns < g->told_ns + SEEN_NS || come_back || count_waiting(v) > 0))
                loop_timer_set(&g->run->agent->loop, &g->timer, now_ns + TICK_NS);
        else if (v->standing != RENDEZVOUS_MEMBER ||
                 rendezvous_leave(g->rendezvous, now_ns + GROUP_REQUEST_NS, said, g, &error) < 0)
                be_silent(g);
}

static void joined(void *context, const struct rendezvous_answer *answer) {
        struct group *g = context;
        if (g->state != GROUP_TELLING)
                return;
        g->told_ns = now_of(g);
        if (answer->status == 0) {
                group_refusal_pump(g);
                return;
        }
        log_error(LOG_LEVEL_INFO, "tell the other nodes", &answer->error);
        be_silent(g);
}

static void enter(struct group *g) {
        struct cairn_error error = CAIRN_ERROR_INIT;
        if (rendezvous_join(g->rendezvous, &g->word, now_of(g) + GROUP_REQUEST_NS, joined, g,
                            &error) == 0)
                return;
        log_error(LOG_LEVEL_INFO, "tell the other nodes", &error);
        be_silent(g);
}

static void left_first(void *context, const struct rendezvous_answer *answer) {
        struct group *g = context;
        if (g->state != GROUP_TELLING)
                return;
        if (answer->status == 0)
                enter(g);
        else
                said(g, answer);
}

/* The detail is text to its last letter: half a one would not be written. */
static void write_word(struct rendezvous_member *m, const char *node, uint32_t ranks, bool all,
                       int status, const char *text) {
        *m = (struct rendezvous_member){.ranks = ranks};
        while (getrandom(&m->nonce, sizeof m->nonce, 0) != sizeof m->nonce || m->nonce == 0)
                ;
        (void) snprintf(m->node, sizeof m->node, "refused-%016" PRIx64, m->nonce);
        (void) snprintf(m->detail, sizeof m->detail, "refused %s %d %s %s", all ? "all" : "node",
                        status, node, text);
        for (size_t bytes = strlen(m->detail); bytes > 0 && !text_is_plain(m->detail, bytes);)
                m->detail[--bytes] = 0;
}

static void tell(struct group *g, bool all, int status, const char *text) {
        struct cairn_error error = CAIRN_ERROR_INIT;
        group_drop_links(g);
        write_word(&g->word, g->self.node, g->self.ranks, all, status, text);
        (void) snprintf(g->word.address, sizeof g->word.address, "%s", g->self.address);
        group_set_state(g, GROUP_TELLING, 0);
        if (rendezvous_view(g->rendezvous)->standing != RENDEZVOUS_MEMBER)
                enter(g);
        else if (rendezvous_leave(g->rendezvous, now_of(g) + GROUP_REQUEST_NS, left_first, g,
                                  &error) < 0)
                be_silent(g);
}

void group_refuse(struct group *g, bool all, const struct cairn_error *error) {
        char text[RENDEZVOUS_DETAIL_BYTES];
        /* A store that could not be looked at cannot be where the others are told, and it is not
         * touched. */
        bool nowhere = g->state == GROUP_OUTSIDE || g->state == GROUP_TELLING ||
                       (g->state == GROUP_LOOKING && g->in_store);
        if (nowhere || !is_final(error->status))
                group_leave(g);
        else
                tell(g, all, error->status, error_format(error, text, sizeof text));
}

void group_refuse_finished(struct group *g, const char *reason) {
        tell(g, true, 0, reason);
}
