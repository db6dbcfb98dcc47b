/* SPDX-License-Identifier: Apache-2.0
 *
 * command.h - the command line: one row a subcommand, one file a subcommand. A command parses its
 * options, does its work and returns an exit status; it prints its own errors with command_fail.
 */
#ifndef CAIRN_TOOLS_COMMAND_H
#define CAIRN_TOOLS_COMMAND_H

#include "base/status.h"
#include <stdbool.h>

struct command {
        const char *name;
        const char *arguments; /* "RUN [--wait]" for the usage line */
        const char *summary;   /* one line */
        int (*run)(const struct command *self, int argc,
                   char **argv); /* argv[0] is the command's name */
};

int command_bench(const struct command *self, int argc, char **argv);
int command_demo(const struct command *self, int argc, char **argv);
int command_diff(const struct command *self, int argc, char **argv);
int command_doctor(const struct command *self, int argc, char **argv);
int command_drain(const struct command *self, int argc, char **argv);
int command_init(const struct command *self, int argc, char **argv);
int command_inspect(const struct command *self, int argc, char **argv);
int command_list(const struct command *self, int argc, char **argv);
int command_notify(const struct command *self, int argc, char **argv);
int command_pin(const struct command *self, int argc, char **argv); /* and unpin */
int command_prune(const struct command *self, int argc, char **argv);
int command_run(const struct command *self, int argc, char **argv);
int command_snapshot(const struct command *self, int argc, char **argv);
int command_status(const struct command *self, int argc, char **argv);
int command_stop(const struct command *self, int argc, char **argv);
int command_verify(const struct command *self, int argc, char **argv);

/* Print "cairn NAME: <error>" and return the exit status that belongs to it. */
int command_fail(const struct command *self, const struct cairn_error *e);
/* The same for a sentence of ours. */
int command_fail_text(const struct command *self, int status, const char *format, ...)
        __attribute__((format(printf, 3, 4)));

/* ---- options ---- */
enum option_kind {
        OPTION_FLAG,     /* bool */
        OPTION_STRING,   /* const char *, into argv */
        OPTION_COUNT,    /* uint64_t */
        OPTION_STEP,     /* int64_t >= 0 */
        OPTION_DURATION, /* uint64_t ns: "30s", "10m", "2h", "500ms"; a bare number is seconds */
        OPTION_LIST,     /* struct option_list: may be given again */
};
struct option_list {
        const char *items[64];
        size_t count;
};
struct option_row {
        const char *name;     /* "--timeout" */
        const char *argument; /* "S", NULL for a flag */
        enum option_kind kind;
        void *target;
        const char *help;
        bool *given; /* set when the option was there; NULL allowed */
};

/* Parse; options and positionals may be mixed; "--" ends both and *ret_rest is the index after it
 * (argc where there is none). positionals holds up to positional_max. Returns 0, or -1 after having
 * printed the reason (exit 64), or 1 after
 * --help was printed (exit 0). */
int options_parse(const struct command *self, const struct option_row *rows, size_t row_count,
                  int argc, char **argv, const char **positionals, size_t positional_max,
                  size_t *ret_positional_count, int *ret_rest);
#define OPTION_ROWS(rows) rows, sizeof(rows) / sizeof((rows)[0])

bool parse_duration(const char *text, uint64_t *ret_ns);
bool parse_count(const char *text, uint64_t *ret);

#endif
