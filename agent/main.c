/* SPDX-License-Identifier: Apache-2.0
 *
 * cairnd: the agent of one node; also the program of its savers and store processes.
 */
#include "agent/agent.h"
#include "agent/bench.h"
#include "agent/budget.h"
#include "agent/generation.h"
#include "agent/import.h"
#include "agent/probe.h"
#include "agent/rendezvous_process.h"
#include "agent/service.h"
#include "base/fault.h"
#include "base/io.h"
#include "base/log.h"
#include <fcntl.h>
#include <sys/resource.h>

static const char usage_text[] =
        "usage: cairnd [--config FILE] [--store STORE] [--socket PATH] [--embedded PID]\n"
        "\n"
        "The agent that checkpoints and restores the training jobs of this machine. `cairn run`\n"
        "starts a private one where no system agent runs.\n"
        "\n"
        "  --config FILE   settings, one `key = value` a line: store, socket, staging_bytes_max,\n"
        "                  keep_last, group, log_level, stop_deadline_s,\n                  "
        "storage_timeout_s\n"
        "  --store STORE   default store (absolute path) for runs that name none\n"
        "  --socket PATH   where to listen (default /run/cairn/cairnd.sock)\n"
        "  --embedded PID  belong to the `cairn run` that started it: end with it\n"
        "  --init STORE [--kind shared|node-local]   make a folder a store, then end\n"
        "  --bench write|read|snapshot --dir D --bytes N [--keep NAME] [--json]\n"
        "                  measure, then end\n"
        "  --probe         what io_uring can do here, as JSON, then end\n"
        "  --probe-gpu     what GPUs there are and what of them works, as JSON lines, then end\n"
        "  --version       print the version\n"
        "  --help          print this\n";

#define STORE_SOCKET_FD 3
#define SYSTEM_SOCKET "/run/cairn/cairnd.sock"

static int fail(const struct cairn_error *error) {
        char text[900];
        fprintf(stderr, "cairnd: %s\n", error_format(error, text, sizeof text));
        return status_exit_code(error->status);
}

static int fail_usage(const char *format, const char *what) {
        fprintf(stderr, "cairnd: ");
        fprintf(stderr, format, what);
        fprintf(stderr, "; `cairnd --help` lists the flags\n");
        return status_exit_code(CAIRN_ERR_API);
}

/* Each inherited role has one socket, on descriptor 3. */
static int run_child(int argc, char **argv) {
        if (fcntl(SAVER_SOCKET_FD, F_GETFD) < 0)
                return fail_usage("%s is started by cairnd itself", argv[1]);
        (void) fcntl(SAVER_SOCKET_FD, F_SETFD, FD_CLOEXEC);
        if (!strcmp(argv[1], "--saver")) {
                struct cairn_error error = CAIRN_ERROR_INIT;
                if (argc != 2)
                        return fail_usage("%s takes no argument", argv[1]);
                log_init("cairnd", LOG_LEVEL_INFO);
                if (fault_init_environment(&error) < 0)
                        return fail(&error);
                return saver_main(SAVER_SOCKET_FD);
        }
        if (!strcmp(argv[1], "--import"))
                return argc == 2 ? import_main() : fail_usage("%s takes no argument", argv[1]);
        if (!strcmp(argv[1], "--rendezvous-process"))
                return rendezvous_main(SAVER_SOCKET_FD, argc, argv);
        return argc == 3 ? store_main(STORE_SOCKET_FD, argv[2])
                         : fail_usage("%s takes one path", argv[1]);
}

/* `cairn init`: what changes a store is code of this room. */
static int make_store(int argc, char **argv) {
        struct cairn_error error = CAIRN_ERROR_INIT;
        uint32_t kind = 1;
        if (argc == 5 && !strcmp(argv[3], "--kind") && !strcmp(argv[4], "node-local"))
                kind = 2;
        else if (argc != 3 &&
                 (argc != 5 || strcmp(argv[3], "--kind") != 0 || strcmp(argv[4], "shared") != 0))
                return fail_usage("%s takes a folder and --kind shared or node-local", argv[1]);
        bool used = !store_folder_is_free(argv[2]);
        if (store_create(&io_system, &clock_system, argv[2], kind, &error) < 0)
                return fail(&error);
        printf("%s is a store now%s\n", argv[2],
               used ? "; what it holds besides stays as it is, but `cairn list` takes folders for "
                      "runs"
                    : "");
        return 0;
}

struct flag {
        const char *name, *key;
};

static int read_runner(const char *text, pid_t *ret, struct cairn_error *reterr) {
        char *end = NULL;
        long pid = strtol(text, &end, 10);
        if (end == text || *end || pid < 1 || pid > INT_MAX)
                return error_set(reterr, CAIRN_ERR_API, "read flags", "--embedded",
                                 "\"%s\" is no process id", text);
        *ret = (pid_t) pid;
        return 0;
}

/* The file first, whatever the order on the command line: flags override it. */
static int take_socket(struct config *c, struct cairn_error *reterr) {
        char path[sizeof c->socket];
        c->listen_fd = service_socket(path, sizeof path, reterr);
        TRY(c->listen_fd);
        if (c->listen_fd > 0 && strcmp(path, c->socket) != 0)
                return error_set(reterr, CAIRN_ERR_API, "take over socket", path,
                                 "the service manager listens there, and the configuration says "
                                 "%s: let them agree",
                                 c->socket);
        return 0;
}

static int read_flags(int argc, char **argv, struct config *c, struct cairn_error *reterr) {
        static const struct flag flags[] = {{"--config", NULL},
                                            {"--store", "store"},
                                            {"--socket", "socket"},
                                            {"--embedded", NULL}};
        for (int pass = 0; pass < 2; pass++)
                for (int i = 1; i < argc; i++) {
                        const struct flag *f = NULL;
                        for (size_t k = 0; k < sizeof flags / sizeof *flags; k++)
                                if (!strcmp(argv[i], flags[k].name))
                                        f = &flags[k];
                        if (!f)
                                return error_set(reterr, CAIRN_ERR_API, "read flags", argv[i],
                                                 "there is no such flag; `cairnd --help` lists "
                                                 "them");
                        if (++i == argc)
                                return error_set(reterr, CAIRN_ERR_API, "read flags", f->name,
                                                 "a value is missing");
                        if (pass == 0 && !strcmp(f->name, "--embedded"))
                                TRY(read_runner(argv[i], &c->runner, reterr));
                        else if (pass == 0 && !f->key)
                                TRY(config_load(c, argv[i], reterr));
                        else if (pass == 1 && f->key)
                                TRY(config_set(c, f->key, argv[i], reterr));
                }
        if (!*c->socket)
                TRY(config_set(c, "socket", SYSTEM_SOCKET, reterr));
        TRY(take_socket(c, reterr));
        return config_check(c, reterr);
}

/* A run with many ranks needs more than the usual 1024; a program that uses select may not have
 * more, which is why nobody gets them unasked. We use none. */
static void raise_file_limit(void) {
        struct rlimit files;
        if (getrlimit(RLIMIT_NOFILE, &files) < 0)
                return;
        files.rlim_cur = files.rlim_max;
        (void) setrlimit(RLIMIT_NOFILE, &files);
}

int main(int argc, char **argv) {
        struct cairn_error error = CAIRN_ERROR_INIT;
        struct config config;
        if (argc > 1 && (!strcmp(argv[1], "--saver") || !strcmp(argv[1], "--store-process") ||
                         !strcmp(argv[1], "--rendezvous-process") || !strcmp(argv[1], "--import")))
                return run_child(argc, argv);
        io_open_standard();
        if (argc > 1 && !strcmp(argv[1], "--init"))
                return make_store(argc, argv);
        if (argc > 1 && !strcmp(argv[1], "--bench"))
                return bench_main(argc, argv);
        if (argc == 2 && !strcmp(argv[1], "--probe"))
                return probe_main();
        if (argc == 2 && !strcmp(argv[1], "--probe-gpu"))
                return probe_gpu_main();
        for (int i = 1; i < argc; i++) {
                if (!strcmp(argv[i], "--version")) {
                        printf("cairnd %s\n", CAIRN_VERSION);
                        return 0;
                }
                if (!strcmp(argv[i], "--help")) {
                        fputs(usage_text, stdout);
                        return 0;
                }
        }
        config_init(&config);
        if (read_flags(argc, argv, &config, &error) < 0)
                return fail(&error);
        if (fault_init_environment(&error) < 0)
                return fail(&error);
        log_init("cairnd", config.log_level);
        raise_file_limit();
        if (budget_check_files(1, &error) < 0)
                return fail(&error);
        struct agent *agent = calloc(1, sizeof *agent);
        if (!agent)
                return status_exit_code(CAIRN_ERR_NOMEM);
        int r = agent_init(agent, &config, &agent_ops_processes, "/proc/self/exe", &error);
        bool supervised = config.runner == 0; /* of a private agent nobody waits to hear */
        if (r == 0 && supervised)
                service_notify("READY=1\nSTATUS=serving");
        if (r == 0)
                r = agent_run(agent, &error);
        if (supervised)
                service_notify("STOPPING=1");
        int code = r < 0 ? fail(&error) : 0;
        agent_done(agent);
        free(agent);
        return code;
}
