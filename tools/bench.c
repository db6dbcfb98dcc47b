/* SPDX-License-Identifier: Apache-2.0
 *
 * cairn bench - how fast this machine copies, writes and reads checkpoints. What measures is the
 * agent's own path, so this is `cairnd --bench`.
 */
#include "tools/agent_process.h"
#include "tools/command.h"
#include <errno.h>
#include <string.h>
#include <unistd.h>

int command_bench(const struct command *self, int argc, char **argv) {
        const char *what = NULL, *dir = ".", *bytes = "1G", *keep = NULL;
        bool json = false;
        size_t count;
        const struct option_row rows[] = {
                {"--dir", "D", OPTION_STRING, &dir,
                 "the folder whose disk is measured (default: this one)", NULL},
                {"--bytes", "N", OPTION_STRING, &bytes,
                 "size of the state, like 4G (default 1G); needs twice as much memory", NULL},
                {"--keep", "NAME", OPTION_STRING, &keep,
                 "leave the data file in that folder, for other programs to measure", NULL},
                {"--json", NULL, OPTION_FLAG, &json, "one JSON object", NULL},
        };
        struct cairn_error e = CAIRN_ERROR_INIT;
        char program[PATH_MAX];
        int r = options_parse(self, OPTION_ROWS(rows), argc, argv, &what, 1, &count, NULL);
        if (r != 0)
                return r < 0 ? status_exit_code(CAIRN_ERR_API) : 0;
        if (count == 0)
                return command_fail_text(self, CAIRN_ERR_API, "what? usage: cairn bench %s",
                                         self->arguments);
        if (agent_process_find("cairnd", program, sizeof program, &e) < 0)
                return command_fail(self, &e);
        const char *arguments[12] = {"cairn bench", "--bench", what, "--dir",
                                     dir,           "--bytes", bytes};
        size_t n = 7;
        if (keep) {
                arguments[n++] = "--keep";
                arguments[n++] = keep;
        }
        if (json)
                arguments[n++] = "--json";
        (void) execv(program, (char **) arguments);
        (void) error_set_errno(&e, errno, "start", program);
        return command_fail(self, &e);
}
