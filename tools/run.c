/* SPDX-License-Identifier: Apache-2.0
 *
 * cairn run - the options of a run; runner.c does the work.
 */
#include "base/cleanup.h"
#include "base/limits.h"
#include "base/log.h"
#include "format/dtype.h"
#include "tools/launcher.h"
#include "tools/runner.h"
#include "tools/store_view.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define EVERY_NS_DEFAULT (600 * NSEC_PER_SEC)
#define MAX_RESTARTS_DEFAULT 10
#define KEEP_LAST_DEFAULT 3

struct run_arguments {
        const char *run, *store, *mode, *every, *nodes, *on_notice;
        bool mode_given, ranks_given;
        /* What is found where nothing was given. */
        struct launcher launcher;
        char default_run[RUN_NAME_BYTES_MAX + 1], default_node[65];
};

/* "100steps" or a time. */
static bool parse_every(const char *text, struct runner_options *o) {
        const char *unit = strstr(text, "step");
        if (!unit)
                return parse_duration(text, &o->every_ns) && o->every_ns > 0;
        char number[32];
        if ((strcmp(unit, "steps") != 0 && strcmp(unit, "step") != 0) ||
            (size_t) (unit - text) >= sizeof number)
                return false;
        memcpy(number, text, (size_t) (unit - text));
        number[unit - text] = '\0';
        return parse_count(number, &o->every_steps) && o->every_steps > 0;
}

/* "2", or "1:4": at least and at most. */
static bool parse_nodes(const char *text, struct runner_options *o) {
        char first[32];
        const char *colon = strchr(text, ':');
        uint64_t least, most;
        (void) snprintf(first, sizeof first, "%.*s", colon ? (int) (colon - text) : 31, text);
        if (!parse_count(first, &least) || !parse_count(colon ? colon + 1 : text, &most) ||
            least < 1 || most < least || most > NODE_COUNT_MAX)
                return false;
        o->nodes_min = (uint32_t) least;
        o->nodes_max = (uint32_t) most;
        return true;
}

/* Options, else what a launcher says, else one rank here. */
static int take_launcher(const struct command *self, struct run_arguments *a,
                         struct runner_options *o) {
        struct launcher *l = &a->launcher;
        struct launcher_given given = {.run = a->run && *a->run, .ranks = a->ranks_given};
        struct cairn_error e = CAIRN_ERROR_INIT;
        if (a->nodes && !parse_nodes(a->nodes, o))
                return command_fail_text(self, CAIRN_ERR_API,
                                         "--nnodes takes a number or MIN:MAX up to %d, not '%s'",
                                         NODE_COUNT_MAX, a->nodes);
        given.nodes_max = o->nodes_max;
        if (launcher_read(&given, l, &e) < 0)
                return command_fail(self, &e);
        if (!given.nodes_max)
                o->nodes_min = o->nodes_max = l->nodes;
        if (!given.run && *l->run)
                a->run = l->run;
        if (!given.ranks && l->ranks)
                o->ranks = l->ranks;
        if (!o->node && *l->node)
                o->node = l->node;
        o->master_port = l->master_port;
        if (o->nodes_max > NODE_COUNT_MAX)
                return command_fail_text(self, CAIRN_ERR_API, "%s: a run has up to %d nodes",
                                         l->nodes_source, NODE_COUNT_MAX);
        if (o->nodes_max > 1 && !o->rendezvous)
                return command_fail_text(self, CAIRN_ERR_API,
                                         "%s%sseveral nodes need a place to meet: --rdzv dir (the "
                                         "shared store) or --rdzv etcd://HOST:PORT",
                                         given.nodes_max ? "" : l->nodes_source,
                                         given.nodes_max ? "" : ": ");
        if (o->rendezvous && !o->nodes_max)
                return command_fail_text(self, CAIRN_ERR_API,
                                         "--rdzv goes with --nnodes N or MIN:MAX");
        return 0;
}

static bool parse_mode(const char *text, uint32_t *ret) {
        static const char *const modes[] = {"fresh", "resume", "auto"};
        for (uint32_t i = 0; i < 3; i++)
                if (strcmp(text, modes[i]) == 0) {
                        *ret = i + 1;
                        return true;
                }
        return false;
}

static const char *missing_equals(const struct option_list *list) {
        for (size_t i = 0; i < list->count; i++)
                if (!strchr(list->items[i], '=') || list->items[i][0] == '=')
                        return list->items[i];
        return NULL;
}

/* It is one line of the run's settings, and is stored and shown. */
static const char *not_plain(const struct option_list *list) {
        for (size_t i = 0; i < list->count; i++)
                if (!text_is_plain(list->items[i], strlen(list->items[i])))
                        return list->items[i];
        return NULL;
}

/* A type that is misspelt would be found after the checkpoint was read, by each restart again. */
static const char *unknown_dtype(const struct option_list *conversions) {
        for (size_t i = 0; i < conversions->count; i++)
                if (dtype_from_name(strchr(conversions->items[i], '=') + 1) == 0)
                        return conversions->items[i];
        return NULL;
}

/* 0, or what a shell answers: 126 for what cannot be run, 127 for what is not there. */
static int check_program(const char *path) {
        struct stat st;
        if (stat(path, &st) < 0)
                return errno == ENOENT || errno == ENOTDIR ? 127 : 126;
        return !S_ISDIR(st.st_mode) && access(path, X_OK) == 0 ? 0 : 126;
}

/* What cannot be started is refused before the run is begun; a restart would not find it either.
 * The search is execvp's: an empty part of $PATH is the current folder. */
static int check_command(const char *command) {
        char path[PATH_MAX];
        if (!*command || strchr(command, '/'))
                return check_program(command);
        const char *search = getenv("PATH");
        _cleanup_free_ char *list = strdup(search ? search : "/bin:/usr/bin");
        char *rest = list;
        int code = 127;
        for (char *folder; code != 0 && rest && (folder = strsep(&rest, ":"));)
                if ((size_t) snprintf(path, sizeof path, "%s%s%s", folder, *folder ? "/" : "",
                                      command) < sizeof path) {
                        int here = check_program(path);
                        code = here == 127 ? code : here;
                }
        return code;
}

static int current_folder(char *ret, size_t bytes, struct cairn_error *reterr) {
        if (getcwd(ret, bytes))
                return 0;
        if (errno == ENOENT)
                return error_set(reterr, CAIRN_ERR_API, "find the current folder", "",
                                 "it was removed: change to another one, or give --run NAME and "
                                 "--store as an absolute path");
        return error_set_errno(reterr, errno, "find the current folder", "");
}

/* The folder's name is what a person would have called the run. */
static int default_run_name(char *name, size_t bytes, struct cairn_error *reterr) {
        char folder[PATH_MAX];
        TRY(current_folder(folder, sizeof folder, reterr));
        const char *base = strrchr(folder, '/');
        (void) snprintf(name, bytes, "%s", base && base[1] ? base + 1 : "run");
        if (name_check_run(name, NULL) < 0)
                return error_set(reterr, CAIRN_ERR_API, "name the run", name,
                                 "the current folder's name cannot be one; give --run NAME");
        return 0;
}

static int absolute_path(const char *path, char *ret, size_t bytes, struct cairn_error *reterr) {
        char folder[PATH_MAX] = "";
        if (*path != '/')
                TRY(current_folder(folder, sizeof folder, reterr));
        while (path[0] == '.' && path[1] == '/')
                path += 2;
        int n = *path == '/' ? snprintf(ret, bytes, "%s", path)
                             : snprintf(ret, bytes, "%s/%s", folder, path);
        if (n < 0 || (size_t) n >= bytes)
                return error_set(reterr, CAIRN_ERR_API, "find store", path, "the path is too long");
        return 0;
}

/* CKPT as the other commands take it: RUN, RUN@STEP and relative paths are this process's to
 * resolve;
 * RUN/NAME is what the agent looks up by itself. */
static int resolve_init_from(const char *store, const char **init_from, char *text, size_t bytes,
                             struct cairn_error *reterr) {
        const char *slash = strchr(*init_from, '/');
        if (**init_from == '/' || (slash && slash != *init_from && !strchr(slash + 1, '/') &&
                                   **init_from != '.' && access(*init_from, F_OK) < 0))
                return 0;
        _cleanup_(store_view_done) struct store_view v = STORE_VIEW_INIT;
        char path[PATH_MAX];
        TRY(store_view_open_checkpoint(&v, store, *init_from, reterr));
        TRY(absolute_path(v.path, path, sizeof path, reterr));
        bool same = strcmp(path, store) == 0;
        int n = snprintf(text, bytes, "%s%s%s/%s", same ? "" : path, same ? "" : "/", v.run,
                         v.checkpoint);
        if (n < 0 || (size_t) n >= bytes)
                return error_set(reterr, CAIRN_ERR_API, "find checkpoint", *init_from,
                                 "its path is too long");
        *init_from = text;
        return 0;
}

static int check(const struct command *self, const struct run_arguments *a,
                 struct runner_options *o) {
        const char *bad;
        if (!parse_mode(a->mode, &o->mode))
                return command_fail_text(self, CAIRN_ERR_API,
                                         "--mode takes fresh, resume or auto, not '%s'", a->mode);
        if (a->every && !parse_every(a->every, o))
                return command_fail_text(
                        self, CAIRN_ERR_API,
                        "--every takes a time like 10m or a count like 100steps, not '%s'",
                        a->every);
        if (!a->every)
                o->every_ns = EVERY_NS_DEFAULT;
        o->hold = a->on_notice && strcmp(a->on_notice, "hold") == 0;
        if (a->on_notice && !o->hold && strcmp(a->on_notice, "exit") != 0)
                return command_fail_text(self, CAIRN_ERR_API,
                                         "--on-notice takes exit or hold, not '%s'", a->on_notice);
        if ((bad = missing_equals(&o->overrides)))
                return command_fail_text(self, CAIRN_ERR_API,
                                         "--override takes KEY=VALUE, not '%s'", bad);
        if ((bad = not_plain(&o->overrides)))
                return command_fail_text(
                        self, CAIRN_ERR_API,
                        "--override takes UTF-8 text without control characters, not '%s'", bad);
        if ((bad = missing_equals(&o->conversions)))
                return command_fail_text(self, CAIRN_ERR_API,
                                         "--convert takes GLOB=DTYPE, not '%s'", bad);
        if ((bad = unknown_dtype(&o->conversions)))
                return command_fail_text(self, CAIRN_ERR_API,
                                         "--convert takes GLOB=DTYPE, and '%s' names no type like "
                                         "f32, bf16 or i64",
                                         bad);
        if (o->ranks < 1 || o->ranks > RANKS_MAX)
                return command_fail_text(self, CAIRN_ERR_API, "--nproc-per-node takes 1 to %d",
                                         RANKS_MAX);
        if (o->keep_last < 1 || o->keep_last > 1000000)
                return command_fail_text(self, CAIRN_ERR_API, "--keep-last takes 1 to 1000000");
        if (o->has_from_step && o->mode == 3)
                return command_fail_text(
                        self, CAIRN_ERR_API,
                        "--from goes back on purpose, which auto never does: use --mode resume");
        if (o->has_from_step && o->init_from)
                return command_fail_text(
                        self, CAIRN_ERR_API,
                        "--from continues a run and --init-from begins one: give one of them");
        if (o->init_from && o->mode == 2)
                return command_fail_text(self, CAIRN_ERR_API,
                                         "--init-from begins a run and --mode resume continues "
                                         "one: give one of them");
        return 0;
}

static int default_names(const struct command *self, struct run_arguments *a,
                         struct runner_options *o) {
        struct cairn_error e = CAIRN_ERROR_INIT;
        if (!a->run || !*a->run) {
                if (default_run_name(a->default_run, sizeof a->default_run, &e) < 0)
                        return command_fail(self, &e);
                a->run = a->default_run;
        }
        if (gethostname(a->default_node, sizeof a->default_node - 1) < 0)
                (void) snprintf(a->default_node, sizeof a->default_node, "node");
        o->run = a->run;
        o->node = o->node ? o->node : a->default_node;
        o->address = o->address ? o->address : "";
        return 0;
}

/* Two nodes that wait for each other in two folders look alike until these are named. */
static void name_meeting_place(struct runner_options *o) {
        static const char folder[] = "dir://";
        const char *at = o->rendezvous ? o->rendezvous : "";
        bool is_path = strncmp(at, folder, sizeof folder - 1) == 0;
        if (is_path || strcmp(at, "dir") == 0)
                (void) snprintf(o->meeting_place, sizeof o->meeting_place, "%s/%s/rendezvous",
                                is_path ? at + sizeof folder - 1 : o->store, o->run);
        else
                (void) snprintf(o->meeting_place, sizeof o->meeting_place, "%s", at);
}

static int find_and_run(const struct command *self, const struct run_arguments *a,
                        struct runner_options *o) {
        struct cairn_error e = CAIRN_ERROR_INIT;
        char init_from[2 * PATH_MAX];
        if (name_check_run(o->run, &e) < 0 ||
            absolute_path(store_view_default(a->store), o->store, sizeof o->store, &e) < 0 ||
            (o->init_from &&
             resolve_init_from(o->store, &o->init_from, init_from, sizeof init_from, &e) < 0))
                return command_fail(self, &e);
        name_meeting_place(o);
        return runner_main(self, o);
}

int command_run(const struct command *self, int argc, char **argv) {
        struct run_arguments a = {.run = getenv("CAIRN_RUN"), .mode = "fresh"};
        struct runner_options o = {
                .max_restarts = MAX_RESTARTS_DEFAULT, .ranks = 1, .keep_last = KEEP_LAST_DEFAULT};
        size_t count;
        int rest;
        const struct option_row rows[] = {
                {"--run", "NAME", OPTION_STRING, &a.run,
                 "the run's name (default: $CAIRN_RUN, the Slurm job's, this folder's)", NULL},
                {"--store", "S", OPTION_STRING, &a.store,
                 "where checkpoints go (default: $CAIRN_STORE, ./cairn-store)", NULL},
                {"--mode", "M", OPTION_STRING, &a.mode,
                 "fresh (default), resume, or auto: resume if there is something", &a.mode_given},
                {"--from", "STEP", OPTION_STEP, &o.from_step,
                 "go back to that checkpoint on purpose (with resume)", &o.has_from_step},
                {"--init-from", "CKPT", OPTION_STRING, &o.init_from,
                 "begin with the weights of another checkpoint", NULL},
                {"--every", "PERIOD", OPTION_STRING, &a.every,
                 "checkpoint period: 10m (default) or 100steps", NULL},
                {"--on-notice", "WHAT", OPTION_STRING, &a.on_notice,
                 "exit (default, status 75) or hold until SIGTERM, when this machine goes away",
                 NULL},
                {"--keep-last", "N", OPTION_COUNT, &o.keep_last, "checkpoints to keep (default 3)",
                 NULL},
                {"--max-restarts", "N", OPTION_COUNT, &o.max_restarts,
                 "restarts in a row without a new checkpoint (default 10)", NULL},
                {"--nproc-per-node", "N", OPTION_COUNT, &o.ranks,
                 "ranks on this machine (default: the Slurm job's GPUs or tasks here, 1)",
                 &a.ranks_given},
                {"--nnodes", "N", OPTION_STRING, &a.nodes,
                 "machines of the run: N, or MIN:MAX; the same command starts on each (default: "
                 "as many as the launcher or Slurm say, 1)",
                 NULL},
                {"--rdzv", "URL", OPTION_STRING, &o.rendezvous,
                 "where they meet: dir (the shared store), dir:///PATH, etcd://HOST:PORT", NULL},
                {"--node", "NAME", OPTION_STRING, &o.node,
                 "this machine's name among them (default: $SLURMD_NODENAME, its host name)", NULL},
                {"--address", "IP", OPTION_STRING, &o.address,
                 "where the others reach it (default: its first address)", NULL},
                {"--override", "K=V", OPTION_LIST, &o.overrides,
                 "a setting that may differ from the checkpoint's", NULL},
                {"--convert", "GLOB=DTYPE", OPTION_LIST, &o.conversions,
                 "tensors that may change their type on restore", NULL},
        };
        int r = options_parse(self, OPTION_ROWS(rows), argc, argv, NULL, 0, &count, &rest);
        if (r != 0)
                return r < 0 ? status_exit_code(CAIRN_ERR_API) : 0;
        if (rest >= argc)
                return command_fail_text(self, CAIRN_ERR_API, "which command? usage: cairn run %s",
                                         self->arguments);
        int code = check_command(argv[rest]);
        if (code != 0) {
                (void) command_fail_text(self, CAIRN_ERR_API, "cannot start '%s': %s", argv[rest],
                                         strerror(code == 127 ? ENOENT : EACCES));
                return code;
        }
        if (o.has_from_step && !a.mode_given)
                a.mode = "resume"; /* there is nothing else that --from can mean */
        o.command = argv + rest;
        r = take_launcher(self, &a, &o);
        if (r == 0)
                r = check(self, &a, &o);
        if (r == 0)
                r = default_names(self, &a, &o);
        return r == 0 ? find_and_run(self, &a, &o) : r;
}
