/* SPDX-License-Identifier: Apache-2.0
 *
 * cairn - the command line. One file a subcommand; this one finds it.
 */
#include "base/io.h"
#include "base/log.h"
#include "base/types.h"
#include "tools/command.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>

static const struct command commands[] = {
        {"demo", "[--data FILE] [--keep]",
         "Train, kill, resume and compare: 30 seconds, no root, no GPU.", command_demo},
        {"doctor", "[STORE] [--json]", "Can Cairn work here, and how well? What to do if not.",
         command_doctor},
        {"init", "STORE [--kind shared|node-local]", "Make a directory a store for checkpoints.",
         command_init},
        {"run", "[options] -- CMD ...",
         "Run a training command; restart it from its last checkpoint when it dies.", command_run},
        {"status", "[RUN] [--watch] [--json]",
         "What a run is doing and how old its last checkpoint is.", command_status},
        {"snapshot", "RUN [--wait] [--timeout S] [--tag T] [--json]",
         "Take a checkpoint now, without stopping.", command_snapshot},
        {"stop", "RUN [--deadline S]", "One snapshot, then an orderly end.", command_stop},
        {"notify", "RUN --kind preempt --in TIME|--kind rebalance [--in TIME] [--id ID] [--json]",
         "Rehearse that this machine goes away.", command_notify},
        {"drain", "[--deadline S]", "Stop every run on this machine.", command_drain},
        {"list", "[RUN] [--store S] [--json]", "The checkpoints of a run, or the runs of a store.",
         command_list},
        {"inspect", "CKPT [--tensors] [--store S] [--json]", "What a checkpoint holds.",
         command_inspect},
        {"verify", "CKPT|RUN [--store S] [--json]", "Read every byte of a checkpoint and check it.",
         command_verify},
        {"diff", "A B [--tensors] [--store S] [--json]",
         "What two checkpoints do not have in common.", command_diff},
        {"prune", "RUN --keep-last N [--keep-every K] [--dry-run] [--store S]",
         "Delete old checkpoints of a run.", command_prune},
        {"bench", "write|read|snapshot [--dir D] [--bytes N] [--keep NAME] [--json]",
         "How fast this machine copies, writes and reads.", command_bench},
        {"pin", "CKPT [--store S]", "Keep a checkpoint, whatever is pruned.", command_pin},
        {"unpin", "CKPT [--store S]", "Let pruning delete it again.", command_pin},
};
enum { COMMAND_COUNT = sizeof commands / sizeof commands[0] };

static void usage(FILE *out) {
        fputs("usage: cairn COMMAND ...\n\n", out);
        for (size_t i = 0; i < COMMAND_COUNT; i++)
                fprintf(out, "  %-10s %s\n", commands[i].name, commands[i].summary);
        fputs("\n`cairn COMMAND --help` shows a command's options; start with `cairn demo`.\n",
              out);
}

static int dispatch(int argc, char **argv) {
        if (argc < 2) {
                usage(stderr);
                return status_exit_code(CAIRN_ERR_API);
        }
        if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 ||
            strcmp(argv[1], "help") == 0) {
                usage(stdout);
                return 0;
        }
        if (strcmp(argv[1], "--version") == 0) {
                puts("cairn " CAIRN_VERSION);
                return 0;
        }
        for (size_t i = 0; i < COMMAND_COUNT; i++)
                if (strcmp(argv[1], commands[i].name) == 0)
                        return commands[i].run(&commands[i], argc - 1, argv + 1);
        char name[64];
        text_escape(name, sizeof name, argv[1], strlen(argv[1]));
        fprintf(stderr, "cairn: there is no command '%s'; `cairn --help` lists them\n", name);
        return status_exit_code(CAIRN_ERR_API);
}

/* An answer that did not arrive is none, whatever the command made of its work. */
static int check_output(int code) {
        bool lost = ferror(stdout) != 0;
        if (fflush(stdout) == 0 && !lost)
                return code;
        fprintf(stderr, "cairn: write standard output: %s\n", strerror(errno));
        return code == 0 ? status_exit_code(CAIRN_ERR_IO) : code;
}

int main(int argc, char **argv) {
        io_open_standard();
        log_init("cairn", LOG_LEVEL_WARNING);
        return check_output(dispatch(argc, argv));
}
