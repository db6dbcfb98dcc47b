/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/upkeep.h"
#include "agent/run.h"
#include "base/log.h"
#include <errno.h>

struct upkeep {
        struct agent *agent;
        struct reply_to to;
        char store[STORE_PATH_BYTES];
        struct store_message asked, told; /* told: of a pruning that is not over yet */
        struct upkeep *next;
};

static int copy_text(char *target, size_t bytes, const ProtobufCBinaryData *text, const char *what,
                     struct cairn_error *reterr) {
        if (text->len >= bytes || (text->len && memchr(text->data, 0, text->len)))
                return error_set(reterr, CAIRN_ERR_API, "read request", what,
                                 "longer than %zu bytes, or with a zero in it", bytes - 1);
        if (text->len)
                memcpy(target, text->data, text->len);
        target[text->len] = 0;
        return 0;
}

/* Names the run in `q` and finds its store: of a run that is served here, else as asked, else the
 * agent's own. */
static int find_store(struct agent *a, const ProtobufCBinaryData *run,
                      const ProtobufCBinaryData *asked, struct store_message *q, char *store,
                      struct cairn_error *reterr) {
        TRY(copy_text(q->run, sizeof q->run, run, "run", reterr));
        TRY(name_check_run(q->run, reterr));
        TRY(copy_text(store, STORE_PATH_BYTES, asked, "store", reterr));
        const struct run *served = agent_find_run(a, q->run);
        if (served)
                memcpy(store, served->store, sizeof served->store);
        else if (!*store)
                (void) snprintf(store, STORE_PATH_BYTES, "%s", a->config.store);
        if (*store != '/')
                return error_set(reterr, CAIRN_ERR_API, "find store", q->run,
                                 "the store must be given as an absolute path");
        return 0;
}

static void answer_pruned(const struct reply_to *to, const struct store_message *reply) {
        Cairn__Control__Envelope e = CAIRN__CONTROL__ENVELOPE__INIT;
        Cairn__Control__PruneReply m = CAIRN__CONTROL__PRUNE_REPLY__INIT;
        m.deleted = reply->count;
        m.bytes = reply->bytes;
        m.names = (ProtobufCBinaryData){strnlen(reply->name, sizeof reply->name),
                                        (uint8_t *) (uintptr_t) reply->name};
        e.body_case = CAIRN__CONTROL__ENVELOPE__BODY_PRUNE_REPLY;
        e.prune_reply = &m;
        server_reply(to, &e, NULL, 0);
}

/* What goes is chosen and named at first; deleting it takes several requests. */
static void note_pruned(struct upkeep *u, const struct store_message *reply) {
        if (!*u->told.name)
                memcpy(u->told.name, reply->name, sizeof u->told.name);
        u->told.count += reply->count;
        u->told.bytes += reply->bytes;
}

static void replied(void *context, const struct store_message *reply, struct wire_fds *fds) {
        struct upkeep *u = context, **list = &u->agent->upkeeps;
        struct cairn_error error = reply->error;
        int r = reply->status;
        (void) fds;
        if (r == 0 && u->asked.verb == STORE_RETAIN) {
                note_pruned(u, reply);
                if (reply->more)
                        r = u->agent->ops->store_request(u->agent, u->store, &u->asked, replied, u,
                                                         &error);
                if (reply->more && r == 0)
                        return;
        }
        if (r < 0) {
                log_error(LOG_LEVEL_INFO, "change stored run", &error);
                server_fail(&u->to, &error);
        } else if (u->asked.verb == STORE_RETAIN)
                answer_pruned(&u->to, &u->told);
        else
                server_done_reply(&u->to);
        while (*list != u)
                list = &(*list)->next;
        *list = u->next;
        agent_reap(u->agent);
        free(u);
}

static int ask(struct agent *a, const struct reply_to *to, const char *store,
               const struct store_message *q, struct cairn_error *reterr) {
        struct upkeep *u = malloc(sizeof *u);
        if (!u)
                return error_set_errno(reterr, ENOMEM, "ask store", store);
        *u = (struct upkeep){.agent = a, .to = *to, .asked = *q, .next = a->upkeeps};
        (void) snprintf(u->store, sizeof u->store, "%s", store);
        int r = a->ops->store_request(a, store, q, replied, u, reterr);
        if (r < 0)
                free(u);
        else
                a->upkeeps = u;
        return r;
}

int upkeep_prune(struct agent *a, const struct reply_to *to, const Cairn__Control__PruneRequest *m,
                 struct cairn_error *reterr) {
        struct store_message q = {.verb = STORE_RETAIN,
                                  .error = CAIRN_ERROR_INIT,
                                  .keep_last = m->keep_last < UINT32_MAX ? (uint32_t) m->keep_last
                                                                         : UINT32_MAX,
                                  .keep_every = m->keep_every,
                                  .dry_run = m->dry_run};
        char store[STORE_PATH_BYTES] = "";
        if (m->keep_last == 0)
                return error_set(reterr, CAIRN_ERR_API, "prune run", "",
                                 "at least one checkpoint has to stay: keep_last is 0");
        TRY(find_store(a, &m->run, &m->store, &q, store, reterr));
        return ask(a, to, store, &q, reterr);
}

int upkeep_pin(struct agent *a, const struct reply_to *to, const Cairn__Control__PinRequest *m,
               struct cairn_error *reterr) {
        struct store_message q = {.verb = m->pinned ? STORE_PIN : STORE_UNPIN,
                                  .error = CAIRN_ERROR_INIT};
        char store[STORE_PATH_BYTES] = "";
        TRY(copy_text(q.name, sizeof q.name, &m->checkpoint, "checkpoint", reterr));
        TRY(find_store(a, &m->run, &m->store, &q, store, reterr));
        return ask(a, to, store, &q, reterr);
}

void upkeep_done(struct agent *a) {
        while (a->upkeeps) {
                struct upkeep *u = a->upkeeps;
                a->upkeeps = u->next;
                free(u);
        }
}
