/* SPDX-License-Identifier: Apache-2.0
 *
 * cairn list - the checkpoints of a run, newest last, or the runs of a store.
 */
#include "base/cleanup.h"
#include "base/log.h"
#include "tools/command.h"
#include "tools/print_json.h"
#include "tools/store_view.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *validity_text(const struct scan_checkpoint *c, bool is_part) {
        if (c->is_attempt && c->validity != CHECKPOINT_ROLLABLE)
                return "unfinished"; /* being written, or left behind: no checkpoint */
        switch (c->validity) {
        case CHECKPOINT_FLAGGED:
                return "flagged: never chosen by itself";
        case CHECKPOINT_DAMAGED:
                return "damaged";
        case CHECKPOINT_ROLLABLE:
                return is_part ? "this node's part is whole; the next start commits it if all are"
                               : "complete, to be committed by the next start";
        default:
                return "";
        }
}

static const char *validity_word(const struct scan_checkpoint *c) {
        static const char *const words[] = {[CHECKPOINT_UNCHECKED] = "unchecked",
                                            [CHECKPOINT_VALID] = "valid",
                                            [CHECKPOINT_FLAGGED] = "flagged",
                                            [CHECKPOINT_DAMAGED] = "damaged",
                                            [CHECKPOINT_ROLLABLE] = "rollable"};
        return c->is_attempt && c->validity != CHECKPOINT_ROLLABLE ? "unfinished"
                                                                   : words[c->validity];
}

static json_t *checkpoint_json(const struct scan_checkpoint *c, bool newest) {
        char reason[1024];
        json_t *j = json_pack("{s:s, s:I, s:I, s:I, s:I, s:b, s:b, s:b, s:b, s:s}", "checkpoint",
                              c->name, "step", (json_int_t) c->step, "generation",
                              (json_int_t) c->generation, "bytes", (json_int_t) c->bytes, "time_ns",
                              (json_int_t) c->time_ns, "newest", newest, "lineage", c->on_lineage,
                              "pinned", c->pinned, "attempt", c->is_attempt, "validity",
                              validity_word(c));
        if (c->validity == CHECKPOINT_DAMAGED && !c->is_attempt)
                json_object_set_new(j, "reason",
                                    json_string(error_format(&c->error, reason, sizeof reason)));
        return j;
}

static int list_json(const struct store_view *v, const struct scan_checkpoint *newest) {
        json_t *list = json_array();
        for (size_t i = 0; i < v->scan.checkpoint_count; i++)
                json_array_append_new(list, checkpoint_json(&v->scan.checkpoints[i],
                                                            &v->scan.checkpoints[i] == newest));
        json_t *j = json_pack("{s:s, s:s, s:b, s:o}", "run", v->run, "store", v->path, "finished",
                              v->scan.finished, "checkpoints", list);
        if (*v->scan.node)
                json_object_set_new(j, "node", json_string(v->scan.node));
        if (v->scan.finished)
                json_object_set_new(j, "finished_reason", json_string(v->scan.finished_reason));
        return print_json(j);
}

static void print_row(const struct scan_checkpoint *c, bool newest, bool is_part) {
        char bytes[32], age[32], reason[1024];
        char step[32] = "-"; /* an attempt's step is known once its manifests are there */
        if (c->step >= 0)
                (void) snprintf(step, sizeof step, "%" PRId64, c->step);
        printf("%-22s %12s  %4" PRIu64 "  %10s  %9s  ", c->name, step, c->generation,
               c->is_attempt ? "-" : human_bytes(c->bytes, bytes),
               c->time_ns ? human_duration(human_age(c->time_ns), age) : "-");
        const char *separator = "";
        const char *const words[] = {newest ? "newest" : NULL, c->pinned ? "pinned" : NULL,
                                     c->on_lineage || c->is_attempt ? NULL : "abandoned branch",
                                     *validity_text(c, is_part) ? validity_text(c, is_part) : NULL};
        for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
                if (words[i]) {
                        printf("%s%s", separator, words[i]);
                        separator = ", ";
                }
        if (c->validity == CHECKPOINT_DAMAGED && !c->is_attempt)
                printf(" (%s)", error_format(&c->error, reason, sizeof reason));
        putchar('\n');
}

static int list_run(const struct command *self, const char *store, const char *run, bool json) {
        struct cairn_error e = CAIRN_ERROR_INIT;
        _cleanup_(store_view_done) struct store_view v = STORE_VIEW_INIT;
        const struct scan_checkpoint *newest;
        char node[SCAN_NODE_BYTES];
        if (store_view_open_run(&v, store, run, &e) < 0 || store_view_newest(&v, &newest, &e) < 0)
                return command_fail(self, &e);
        if (json)
                return list_json(&v, newest);
        if (v.scan.checkpoint_count == 0)
                printf("run '%s' has no checkpoint yet\n", run);
        else
                printf("%-22s %12s  %4s  %10s  %9s  %s\n", "CHECKPOINT", "STEP", "GEN", "SIZE",
                       "AGE", "NOTES");
        if (*v.scan.node)
                printf("node-local: what node %s holds, its own ranks' data; the run has %zu "
                       "nodes\n",
                       text_escape(node, sizeof node, v.scan.node, strlen(v.scan.node)),
                       v.scan.node_count);
        for (size_t i = 0; i < v.scan.checkpoint_count; i++)
                print_row(&v.scan.checkpoints[i], &v.scan.checkpoints[i] == newest,
                          *v.scan.node != 0);
        if (v.scan.finished) {
                char reason[160];
                printf("finished at step %" PRId64 ": %s\n", v.scan.finished_step,
                       text_escape(reason, sizeof reason, v.scan.finished_reason,
                                   strlen(v.scan.finished_reason)));
        }
        return 0;
}

static int is_name(const struct dirent *entry) {
        return name_check_run(entry->d_name, NULL) == 0;
}

static void show_run(const struct store_view *v, const char *name, json_t *list) {
        _cleanup_close_ int fd = -1;
        struct run_scan scan;
        if (run_open(&io_system, v->store_fd, name, &fd, NULL) < 0)
                return; /* not a run: marker, a stray file */
        if (run_scan(&io_system, fd, name, false, &scan, NULL) < 0)
                return;
        (void) run_scan_check_newest(&io_system, fd, name, &scan, NULL); /* else as it looks */
        const struct scan_checkpoint *newest = scan_newest(&scan, 0);
        char age[32];
        if (list)
                json_array_append_new(list,
                                      json_pack("{s:s, s:I, s:I, s:b}", "run", name, "step",
                                                (json_int_t) (newest ? newest->step : -1),
                                                "generation", (json_int_t) scan.generation_max,
                                                "finished", scan.finished));
        else if (newest)
                printf("%-32s %12" PRId64 "  %9s  %s\n", name, newest->step,
                       human_duration(human_age(newest->time_ns), age),
                       scan.finished ? "finished" : "");
        else
                printf("%-32s %12s  %9s  %s\n", name, "-", "-",
                       scan.finished ? "finished" : "no checkpoint");
        run_scan_done(&scan);
}

static int list_store(const struct command *self, const char *store, bool json) {
        struct cairn_error e = CAIRN_ERROR_INIT;
        _cleanup_(store_view_done) struct store_view v = STORE_VIEW_INIT;
        if (store_view_open(&v, store, &e) < 0)
                return command_fail(self, &e);
        struct dirent **names = NULL;
        int count = scandirat(v.store_fd, ".", &names, is_name, alphasort);
        if (count < 0) {
                (void) error_set_errno(&e, errno, "list store", v.path);
                return command_fail(self, &e);
        }
        json_t *list = json ? json_array() : NULL;
        if (!json)
                printf("%-32s %12s  %9s  %s\n", "RUN", "NEWEST STEP", "AGE", "");
        for (int i = 0; i < count; i++) {
                show_run(&v, names[i]->d_name, list);
                free(names[i]);
        }
        free(names);
        if (json)
                return print_json(json_pack("{s:s, s:o}", "store", v.path, "runs", list));
        return 0;
}

int command_list(const struct command *self, int argc, char **argv) {
        const char *store = NULL, *run = NULL;
        bool json = false;
        size_t count;
        const struct option_row rows[] = {
                {"--store", "S", OPTION_STRING, &store,
                 "the store (default: $CAIRN_STORE, ./cairn-store)", NULL},
                {"--json", NULL, OPTION_FLAG, &json, "one JSON object", NULL},
        };
        int r = options_parse(self, OPTION_ROWS(rows), argc, argv, &run, 1, &count, NULL);
        if (r != 0)
                return r < 0 ? status_exit_code(CAIRN_ERR_API) : 0;
        if (count == 0)
                return list_store(self, store_view_default(store), json);
        return list_run(self, store_view_default(store), run, json);
}
