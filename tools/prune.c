/* SPDX-License-Identifier: Apache-2.0
 *
 * cairn prune, pin, unpin - which checkpoints of a run stay. What deletes or pins is the agent's
 * work; these ask one.
 */
#include "base/cleanup.h"
#include "base/log.h"
#include "tools/agent_borrow.h"
#include "tools/agent_call.h"
#include "tools/command.h"
#include "tools/store_view.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PRUNE_ANSWER_NS (660 * NSEC_PER_SEC) /* deleting may take what the store process may take */
#define PIN_ANSWER_NS (90 * NSEC_PER_SEC)

/* The agent's folder is not ours: it gets whole paths. */
static int absolute_store(const char *path, char *ret, struct cairn_error *reterr) {
        return realpath(path, ret) ? 0 : error_set_errno(reterr, errno, "find store", path);
}

/* ---- prune ---- */

struct prune_arguments {
        const char *run, *store;
        uint64_t keep_last, keep_every;
        bool dry_run;
};

static void print_pruned(const struct prune_arguments *a, const Cairn__Control__PruneReply *r) {
        const char *would = a->dry_run ? "would be deleted" : "deleted";
        char bytes[32];
        uint64_t named = 0;
        size_t begin = 0;
        for (size_t i = 0; i < r->names.len; i++) {
                char name[4 * NAME_BYTES];
                if (r->names.data[i] != '\n')
                        continue;
                printf("%s  %s\n", would,
                       text_escape(name, sizeof name, (const char *) r->names.data + begin,
                                   i - begin));
                begin = i + 1;
                named++;
        }
        if (r->deleted > named)
                printf("%s  and %" PRIu64 " more\n", would, r->deleted - named);
        if (r->deleted == 0)
                printf("nothing to delete in run '%s'\n", a->run);
        else
                printf("%" PRIu64 " checkpoint%s of run '%s' %s, %s\n", r->deleted,
                       r->deleted == 1 ? "" : "s", a->run, would, human_bytes(r->bytes, bytes));
}

static int prune(struct borrowed *b, const struct prune_arguments *a, struct cairn_error *reterr) {
        char store[PATH_MAX];
        _cleanup_(store_view_done) struct store_view v = STORE_VIEW_INIT;
        TRY(store_view_open_run(&v, a->store, a->run, reterr));
        TRY(absolute_store(a->store, store, reterr));
        TRY(agent_borrow(b, store, a->run, reterr));
        Cairn__Control__PruneRequest request = CAIRN__CONTROL__PRUNE_REQUEST__INIT;
        request.run = agent_call_text(a->run);
        request.store = agent_call_text(store);
        request.keep_last = a->keep_last;
        request.keep_every = a->keep_every;
        request.dry_run = a->dry_run;
        Cairn__Control__Envelope envelope = CAIRN__CONTROL__ENVELOPE__INIT, *reply;
        CONTROL_SET(&envelope, PRUNE_REQUEST, prune_request, &request);
        TRY(control_call(&b->control, &envelope, NULL, 0, CONTROL_REPLY(PRUNE_REPLY),
                         clock_now(&clock_system) + PRUNE_ANSWER_NS, &reply, NULL, reterr));
        print_pruned(a, reply->prune_reply);
        return 0;
}

int command_prune(const struct command *self, int argc, char **argv) {
        struct prune_arguments a = {0};
        bool last_given = false, every_given = false;
        size_t count;
        const struct option_row rows[] = {
                {"--keep-last", "N", OPTION_COUNT, &a.keep_last,
                 "how many of the newest verified checkpoints stay (at least 1)", &last_given},
                {"--keep-every", "K", OPTION_COUNT, &a.keep_every,
                 "those whose step is a multiple of K stay, too", &every_given},
                {"--dry-run", NULL, OPTION_FLAG, &a.dry_run, "only say what would go", NULL},
                {"--store", "S", OPTION_STRING, &a.store,
                 "the store (default: $CAIRN_STORE, ./cairn-store)", NULL},
        };
        struct cairn_error e = CAIRN_ERROR_INIT;
        int r = options_parse(self, OPTION_ROWS(rows), argc, argv, &a.run, 1, &count, NULL);
        if (r != 0)
                return r < 0 ? status_exit_code(CAIRN_ERR_API) : 0;
        if (store_view_run_name(a.run, &a.run, &e) < 0)
                return command_fail(self, &e);
        if (!last_given || a.keep_last == 0)
                return command_fail_text(
                        self, CAIRN_ERR_API,
                        "say how many checkpoints stay: --keep-last N, at least 1");
        if (every_given && a.keep_every == 0)
                return command_fail_text(self, CAIRN_ERR_API, "--keep-every takes at least 1");
        a.store = store_view_default(a.store);
        struct borrowed b = {.control.socket = -1};
        r = prune(&b, &a, &e);
        agent_return(&b);
        return r < 0 ? command_fail(self, &e) : 0;
}

/* ---- pin, unpin ---- */

static int pin(struct borrowed *b, const struct store_view *v, bool pinned,
               struct cairn_error *reterr) {
        char store[PATH_MAX];
        TRY(absolute_store(v->path, store, reterr));
        TRY(agent_borrow(b, store, v->run, reterr));
        Cairn__Control__PinRequest request = CAIRN__CONTROL__PIN_REQUEST__INIT;
        request.run = agent_call_text(v->run);
        request.store = agent_call_text(store);
        request.checkpoint = agent_call_text(v->checkpoint);
        request.pinned = pinned;
        Cairn__Control__Envelope envelope = CAIRN__CONTROL__ENVELOPE__INIT, *reply;
        CONTROL_SET(&envelope, PIN_REQUEST, pin_request, &request);
        return control_call(&b->control, &envelope, NULL, 0, CONTROL_REPLY(DONE),
                            clock_now(&clock_system) + PIN_ANSWER_NS, &reply, NULL, reterr);
}

int command_pin(const struct command *self, int argc, char **argv) {
        const char *store = NULL, *checkpoint = NULL;
        bool pinned = strcmp(self->name, "pin") == 0;
        size_t count;
        const struct option_row rows[] = {
                {"--store", "S", OPTION_STRING, &store,
                 "the store (default: $CAIRN_STORE, ./cairn-store)", NULL},
        };
        struct cairn_error e = CAIRN_ERROR_INIT;
        int r = options_parse(self, OPTION_ROWS(rows), argc, argv, &checkpoint, 1, &count, NULL);
        if (r != 0)
                return r < 0 ? status_exit_code(CAIRN_ERR_API) : 0;
        if (count == 0)
                return command_fail_text(self, CAIRN_ERR_API,
                                         "which checkpoint? usage: cairn %s %s", self->name,
                                         self->arguments);
        _cleanup_(store_view_done) struct store_view v = STORE_VIEW_INIT;
        if (store_view_open_checkpoint(&v, store_view_default(store), checkpoint, &e) < 0)
                return command_fail(self, &e);
        struct borrowed b = {.control.socket = -1};
        r = pin(&b, &v, pinned, &e);
        agent_return(&b);
        if (r < 0)
                return command_fail(self, &e);
        printf("%s of run '%s' is %s\n", v.checkpoint, v.run,
               pinned ? "pinned: pruning leaves it" : "not pinned");
        return 0;
}
