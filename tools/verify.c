/* SPDX-License-Identifier: Apache-2.0
 *
 * cairn verify - read every byte of a checkpoint (or of all of a run's) and check it against its
 * CRCs.
 */
#include "base/cleanup.h"
#include "base/clock.h"
#include "tools/command.h"
#include "tools/print_json.h"
#include "tools/store_view.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

struct verify_report {
        const struct store_view *view;
        json_t *list; /* NULL: print lines */
        int exit_status;
};

/* Of a whole run: what retention took away meanwhile is no failure. */
static void verify_one(struct verify_report *report, const char *name, bool may_go) {
        const struct store_view *v = report->view;
        struct cairn_error e = CAIRN_ERROR_INIT;
        struct verify_result result = {0};
        uint64_t start_ns = clock_now(&clock_system);
        int r = checkpoint_check(&io_system, v->run_fd, name, v->run, true, &result, &e);
        uint64_t took_ns = clock_now(&clock_system) - start_ns;
        char text[1024] = "", bytes[32], rate[32], here[128] = "";
        if (r == CAIRN_ERR_NOTFOUND && may_go) {
                if (!report->list)
                        printf("- %s  pruned while reading\n", name);
                return;
        }
        if (r < 0) {
                error_format(&e, text, sizeof text);
                if (report->exit_status == 0)
                        report->exit_status = status_exit_code(r);
        }
        if (r == 0)
                (void) human_here(&result.here, result.world, here);
        if (report->list) {
                json_array_append_new(
                        report->list,
                        json_pack("{s:s, s:b, s:I, s:I, s:I, s:s, s:s}", "checkpoint", name, "good",
                                  r == 0, "files", (json_int_t) result.files, "tensors",
                                  (json_int_t) result.tensors, "bytes", (json_int_t) result.bytes,
                                  "error", text, "holds", here));
                return;
        }
        if (r < 0)
                printf("✗ %s  %s\n", name, text);
        else
                printf("✓ %s  %" PRIu64 " tensors, %s in %" PRIu64 " files, %s/s%s%s\n", name,
                       result.tensors, human_bytes(result.bytes, bytes), result.files,
                       human_bytes(result.bytes * NSEC_PER_SEC / (took_ns ? took_ns : 1), rate),
                       *here ? "; " : "", here);
        (void) fflush(stdout);
}

static int verify_run(struct verify_report *report) {
        const struct run_scan *scan = &report->view->scan;
        size_t checked = 0;
        for (size_t i = 0; i < scan->checkpoint_count; i++)
                if (!scan->checkpoints[i].is_attempt) {
                        verify_one(report, scan->checkpoints[i].name, true);
                        checked++;
                }
        return checked > 0 ? 0 : CAIRN_ERR_NOTFOUND;
}

/* A bare RUN means all of its checkpoints; anything else is one. */
static bool is_run(const char *argument) {
        return !strpbrk(argument, "/@") && name_check_run(argument, NULL) == 0;
}

int command_verify(const struct command *self, int argc, char **argv) {
        const char *store = NULL, *argument = NULL;
        bool json = false;
        size_t count;
        const struct option_row rows[] = {
                {"--store", "S", OPTION_STRING, &store,
                 "the store (default: $CAIRN_STORE, ./cairn-store)", NULL},
                {"--json", NULL, OPTION_FLAG, &json, "one JSON object", NULL},
        };
        struct cairn_error e = CAIRN_ERROR_INIT;
        int r = options_parse(self, OPTION_ROWS(rows), argc, argv, &argument, 1, &count, NULL);
        if (r != 0)
                return r < 0 ? status_exit_code(CAIRN_ERR_API) : 0;
        if (count == 0)
                return command_fail_text(self, CAIRN_ERR_API,
                                         "what should be verified? usage: cairn verify %s",
                                         self->arguments);
        _cleanup_(store_view_done) struct store_view v = STORE_VIEW_INIT;
        bool whole_run = is_run(argument);
        r = whole_run ? store_view_open_run(&v, store_view_default(store), argument, &e)
                      : store_view_open_checkpoint(&v, store_view_default(store), argument, &e);
        if (r < 0)
                return command_fail(self, &e);
        struct verify_report report = {.view = &v, .list = json ? json_array() : NULL};
        if (!whole_run)
                verify_one(&report, v.checkpoint, false);
        else if (verify_run(&report) < 0 && !json)
                report.exit_status = command_fail_text(self, CAIRN_ERR_NOTFOUND,
                                                       "run '%s' has no checkpoint", v.run);
        if (json) {
                r = print_json(json_pack("{s:s, s:s, s:b, s:o}", "run", v.run, "store", v.path,
                                         "good", report.exit_status == 0, "checkpoints",
                                         report.list));
                return report.exit_status ? report.exit_status : r;
        }
        return report.exit_status;
}
