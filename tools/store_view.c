/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/store_view.h"

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "tools/command.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void store_view_done(struct store_view *v) {
        if (v->scanned)
                run_scan_done(&v->scan);
        v->scanned = false;
        cleanup_close(&v->run_fd);
        cleanup_close(&v->store_fd);
        v->run_fd = v->store_fd = -1;
}

const char *store_view_default(const char *option) {
        if (option)
                return option;
        const char *environment = getenv("CAIRN_STORE");
        return environment && *environment ? environment : "./cairn-store";
}

int store_view_run_name(const char *argument, const char **ret, struct cairn_error *reterr) {
        const char *run = argument ? argument : getenv("CAIRN_RUN");
        if (!run || !*run)
                return error_set(reterr, CAIRN_ERR_API, "find run", "",
                                 "no run is named: give RUN, or set CAIRN_RUN");
        TRY(name_check_run(run, reterr));
        *ret = run;
        return 0;
}

int store_view_open(struct store_view *v, const char *store, struct cairn_error *reterr) {
        int n = snprintf(v->path, sizeof v->path, "%s", store);
        if (n < 0 || (size_t) n >= sizeof v->path)
                return error_set(reterr, CAIRN_ERR_API, "open store", store,
                                 "the path is too long");
        int r = store_open(&io_system, v->path, &v->store_fd, reterr);
        if (r == CAIRN_ERR_NOTFOUND)
                return error_set(
                        reterr, r, "open store", store,
                        "there is no such directory; name the store by --store or CAIRN_STORE");
        return r;
}

int store_view_open_run(struct store_view *v, const char *store, const char *run,
                        struct cairn_error *reterr) {
        TRY(name_check_run(run, reterr));
        TRY(store_view_open(v, store, reterr));
        (void) snprintf(v->run, sizeof v->run, "%s", run);
        int r = run_open(&io_system, v->store_fd, v->run, &v->run_fd, reterr);
        if (r == CAIRN_ERR_NOTFOUND)
                return error_set(
                        reterr, r, "open run", run,
                        "the store %s has no run of this name; `cairn list` shows those that "
                        "it has, --store names another store",
                        store);
        if (r < 0)
                return r;
        TRY(run_scan(&io_system, v->run_fd, v->run, false, &v->scan, reterr));
        v->scanned = true;
        return 0;
}

int store_view_newest(struct store_view *v, const struct scan_checkpoint **ret,
                      struct cairn_error *reterr) {
        TRY(run_scan_check_newest(&io_system, v->run_fd, v->run, &v->scan, reterr));
        *ret = scan_newest(&v->scan, 0);
        /* Whether other nodes have their parts, too, cannot be seen here. */
        for (size_t skip = 1; *v->scan.node && *ret && (*ret)->is_attempt; skip++)
                *ret = scan_newest(&v->scan, skip);
        return 0;
}

const struct scan_checkpoint *store_view_find(const struct store_view *v, const char *checkpoint) {
        for (size_t i = 0; i < v->scan.checkpoint_count; i++)
                if (strcmp(v->scan.checkpoints[i].name, checkpoint) == 0)
                        return &v->scan.checkpoints[i];
        return NULL;
}

/* STORE/RUN/NAME as a path: the two parents are the run and the store. */
static int open_by_path(struct store_view *v, const char *argument, struct cairn_error *reterr) {
        _cleanup_free_ char *real = realpath(argument, NULL);
        if (!real)
                return error_set_errno(reterr, errno, "open checkpoint", argument);
        char *name = strrchr(real, '/');
        if (!name || name == real)
                return error_set(reterr, CAIRN_ERR_API, "open checkpoint", argument,
                                 "this is not a checkpoint");
        *name++ = '\0';
        char *run = strrchr(real, '/');
        int64_t step;
        uint64_t generation;
        if (!run || !name_parse_checkpoint(name, &step, &generation))
                return error_set(reterr, CAIRN_ERR_API, "open checkpoint", argument,
                                 "a checkpoint's folder is named like 000000001200-g0003");
        *run++ = '\0';
        TRY(store_view_open_run(v, *real ? real : "/", run, reterr));
        (void) snprintf(v->checkpoint, sizeof v->checkpoint, "%s", name);
        return 0;
}

/* An attempt that a resume would roll forward cannot be read yet. */
static int newest_readable(struct store_view *v, const struct scan_checkpoint **ret,
                           struct cairn_error *reterr) {
        TRY(store_view_newest(v, ret, reterr));
        for (size_t skip = 1; *ret && (*ret)->is_attempt; skip++)
                *ret = scan_newest(&v->scan, skip);
        return 0;
}

static int choose(struct store_view *v, const char *name, const char *step,
                  struct cairn_error *reterr) {
        const struct scan_checkpoint *found;
        uint64_t number;
        if (name)
                found = store_view_find(v, name);
        else if (step)
                found = parse_count(step, &number) && number <= STEP_MAX
                                ? scan_find_step(&v->scan, (int64_t) number)
                                : NULL;
        else
                TRY(newest_readable(v, &found, reterr));
        if (!found || (found->is_attempt && !name)) /* attempts have neither INDEX nor COMMIT */
                return error_set(
                        reterr, CAIRN_ERR_NOTFOUND, "find checkpoint",
                        name   ? name
                        : step ? step
                               : v->run,
                        "run '%s' has no such checkpoint; `cairn list %s` shows what it has",
                        v->run, v->run);
        (void) snprintf(v->checkpoint, sizeof v->checkpoint, "%s", found->name);
        return 0;
}

int store_view_open_checkpoint(struct store_view *v, const char *store, const char *checkpoint,
                               struct cairn_error *reterr) {
        const char *slash = strchr(checkpoint, '/'), *at = strchr(checkpoint, '@');
        bool is_path =
                *checkpoint == '/' || *checkpoint == '.' || (slash && strchr(slash + 1, '/'));
        if (is_path || (slash && access(checkpoint, F_OK) == 0))
                return open_by_path(v, checkpoint, reterr);
        const char *separator = slash ? slash : at;
        size_t run_bytes = separator ? (size_t) (separator - checkpoint) : strlen(checkpoint);
        char run[RUN_NAME_BYTES_MAX + 1];
        if (run_bytes >= sizeof run)
                return error_set(reterr, CAIRN_ERR_API, "find run", checkpoint,
                                 "a run's name has at most %d letters", RUN_NAME_BYTES_MAX);
        memcpy(run, checkpoint, run_bytes);
        run[run_bytes] = '\0';
        TRY(store_view_open_run(v, store, run, reterr));
        return choose(v, slash ? slash + 1 : NULL, at && !slash ? at + 1 : NULL, reterr);
}

const char *human_here(const struct scan_node *here, uint32_t world, char text[128]) {
        char node[SCAN_NODE_BYTES];
        *text = 0;
        if (*here->node)
                (void) snprintf(text, 128, "node %s, ranks %" PRIu32 " to %" PRIu32 " of %" PRIu32,
                                text_escape(node, sizeof node, here->node, strlen(here->node)),
                                here->first_rank, here->first_rank + here->ranks - 1, world);
        return text;
}

const char *human_bytes(uint64_t bytes, char *text) {
        static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
        double value = (double) bytes;
        size_t unit = 0;
        while (value >= 1000 && unit + 1 < sizeof units / sizeof units[0]) {
                value /= 1024;
                unit++;
        }
        (void) snprintf(text, 32, unit == 0 || value >= 100 ? "%.0f %s" : "%.1f %s", value,
                        units[unit]);
        return text;
}

/* To the nearest: what began a moment ago with 24 h left has 24 h left. */
const char *human_duration(uint64_t ns, char *text) {
        static const struct {
                uint64_t unit_ns, below; /* as many of them are the next unit's */
                const char *name;
        } units[] = {{NSEC_PER_MSEC, 1000, "ms"},
                     {NSEC_PER_SEC, 120, "s"},
                     {60 * NSEC_PER_SEC, 120, "min"},
                     {3600 * NSEC_PER_SEC, 48, "h"},
                     {86400 * NSEC_PER_SEC, UINT64_MAX, "days"}};
        uint64_t count;
        size_t i = 0;
        while ((count = ns / units[i].unit_ns + (ns % units[i].unit_ns >= units[i].unit_ns / 2)) >=
               units[i].below)
                i++;
        (void) snprintf(text, 32, "%" PRIu64 " %s", count, units[i].name);
        return text;
}

uint64_t human_age(uint64_t time_ns) {
        uint64_t now = clock_system.realtime_ns(clock_system.context);
        return now > time_ns ? now - time_ns : 0;
}
