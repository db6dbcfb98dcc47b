/* SPDX-License-Identifier: Apache-2.0
 *
 * cairn init - make a directory a store. What changes a store is the agent's work, so this is
 * `cairnd --init`.
 */
#include "tools/agent_process.h"
#include "tools/command.h"
#include <errno.h>
#include <string.h>
#include <unistd.h>

int command_init(const struct command *self, int argc, char **argv) {
        const char *kind = "shared", *store = NULL;
        size_t count;
        const struct option_row rows[] = {
                {"--kind", "K", OPTION_STRING, &kind,
                 "shared (default): all nodes see it; node-local: each node has its own", NULL},
        };
        int r = options_parse(self, OPTION_ROWS(rows), argc, argv, &store, 1, &count, NULL);
        if (r != 0)
                return r < 0 ? status_exit_code(CAIRN_ERR_API) : 0;
        if (count == 0)
                return command_fail_text(self, CAIRN_ERR_API,
                                         "which directory? usage: cairn init %s", self->arguments);
        if (strcmp(kind, "shared") != 0 && strcmp(kind, "node-local") != 0)
                return command_fail_text(self, CAIRN_ERR_API, "--kind is shared or node-local");
        char program[PATH_MAX];
        struct cairn_error e = CAIRN_ERROR_INIT;
        if (agent_process_find("cairnd", program, sizeof program, &e) < 0)
                return command_fail(self, &e);
        (void) execl(program, "cairnd", "--init", store, "--kind", kind, (char *) NULL);
        (void) error_set_errno(&e, errno, "start", program);
        return command_fail(self, &e);
}
