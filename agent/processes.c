/* SPDX-License-Identifier: Apache-2.0
 *
 * agent_ops_processes: the real store processes (one a store path, started when first needed) and
 * the real savers.
 */
#include "agent/agent.h"
#include "agent/session.h"
#include "agent/store_link.h"
#include "base/assert.h"
#include "base/log.h"
#include <errno.h>

/* A verb that takes longer than its time is ended and its outcome asked for again. */
#define STORE_TIMEOUT_NS (60 * NSEC_PER_SEC)
#define STORE_TIMEOUT_LONG_NS (600 * NSEC_PER_SEC) /* reads manifests or deletes data */

struct pending;
struct agent_store {
        char path[STORE_PATH_BYTES];
        struct store_link *link;
        struct loop_source source;
        struct pending *pending;
        struct agent_store *next;
};

/* A request under way; the list is for the end of the agent. */
struct pending {
        struct agent_store *store;
        agent_store_fn reply;
        void *context;
        struct pending *next;
};

static void store_answered(void *context, struct store_message *reply, int *fds, size_t fd_count) {
        struct pending *p = context, **list = &p->store->pending;
        struct wire_fds taken = WIRE_FDS_INIT;
        for (size_t i = 0; i < fd_count && i < WIRE_FDS_MAX; i++) {
                taken.fds[taken.count++] = fds[i];
                fds[i] = -1;
        }
        p->reply(p->context, reply, &taken);
        while (*list != p)
                list = &(*list)->next;
        *list = p->next;
        free(p);
        wire_fds_done(&taken);
}

static void store_ready(void *context, uint32_t events) {
        struct agent_store *store = context;
        (void) events;
        store_link_dispatch(store->link);
}

static int store_get(struct agent *a, const char *path, struct agent_store **ret,
                     struct cairn_error *reterr) {
        for (struct agent_store *s = a->stores; s; s = s->next)
                if (!strcmp(s->path, path)) {
                        *ret = s;
                        return 0;
                }
        struct agent_store *s = calloc(1, sizeof *s);
        if (!s || strlen(path) >= sizeof s->path) {
                free(s);
                return error_set_errno(reterr, ENOMEM, "start store process", path);
        }
        memcpy(s->path, path, strlen(path) + 1);
        int r = store_link_new(s->path, NULL, NULL, &s->link, reterr);
        if (r == 0)
                r = loop_watch(&a->loop, &s->source, store_link_fd(s->link), EPOLLIN, store_ready,
                               s, reterr);
        if (r < 0) {
                if (s->link)
                        (void) store_link_free(s->link);
                free(s);
                return r;
        }
        s->next = a->stores;
        a->stores = s;
        *ret = s;
        return 0;
}

static uint64_t timeout_of(enum store_verb verb) {
        switch (verb) {
        case STORE_START:
        case STORE_REOPEN:
        case STORE_COMMIT:
        case STORE_RETAIN:
        case STORE_DISCARD:
        case STORE_RESTORE_OPEN:
        case STORE_SURVEY:
        case STORE_COMPOSE:
        case STORE_RECORD:
        case STORE_RENAME:
        case STORE_SETTLE:
                return STORE_TIMEOUT_LONG_NS;
        default:
                return STORE_TIMEOUT_NS;
        }
}

static int store_request(struct agent *a, const char *path, const struct store_message *request,
                         agent_store_fn reply, void *context, struct cairn_error *reterr) {
        struct agent_store *store = NULL;
        TRY(store_get(a, path, &store, reterr));
        struct pending *p = store ? malloc(sizeof *p) : NULL;
        if (!p)
                return error_set_errno(reterr, ENOMEM, "ask store", path);
        *p = (struct pending){store, reply, context, store->pending};
        int r = store_link_submit(store->link, request, timeout_of(request->verb), store_answered,
                                  p, reterr);
        if (r < 0)
                free(p);
        else
                store->pending = p;
        return r;
}

static void store_done(struct agent *a) {
        while (a->stores) {
                struct agent_store *s = a->stores;
                a->stores = s->next;
                loop_unwatch(&a->loop, &s->source);
                (void) store_link_free(s->link);
                while (s->pending) {
                        struct pending *p = s->pending;
                        s->pending = p->next;
                        free(p);
                }
                free(s);
        }
}

static void saver_message(void *context, const struct saver_message *m, struct wire_fds *fds) {
        session_saver_message(context, m, fds);
}

static void saver_ended(void *context, bool reaped, int wait_status) {
        session_saver_ended(context, reaped, wait_status);
}

static int saver_start(struct session *s, struct cairn_error *reterr) {
        return saver_link_start(&s->saver, &s->agent->loop, s->agent->program, saver_message,
                                saver_ended, s, reterr);
}

static int saver_send(struct session *s, const struct saver_message *m, const int *fds,
                      size_t fd_count) {
        return saver_link_send(&s->saver, m, fds, fd_count);
}

static void saver_stop(struct session *s) {
        saver_link_stop(&s->saver);
}

static void saver_forget(struct session *s) {
        saver_link_done(&s->saver);
}

const struct agent_ops agent_ops_processes = {.store_request = store_request,
                                              .saver_start = saver_start,
                                              .saver_send = saver_send,
                                              .saver_stop = saver_stop,
                                              .saver_forget = saver_forget,
                                              .store_done = store_done};
