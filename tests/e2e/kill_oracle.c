/* SPDX-License-Identifier: Apache-2.0
 *
 * What was reported, and whether the log and the store bear it out.
 */
#include "base/cleanup.h"
#include "tests/e2e/kill_parts.h"
#include <inttypes.h>

void note_committed(struct driver *d, const char *name, int64_t step) {
        uint64_t generation = 0;
        const char *g = strstr(name, "-g");
        if (g)
                generation = strtoull(g + 2, NULL, 10);
        if (generation < d->reported.generation ||
            (generation == d->reported.generation && step < d->reported.step))
                return;
        (void) snprintf(d->reported.name, sizeof d->reported.name, "%s", name);
        d->reported.step = step;
        d->reported.generation = generation;
}

/* Without "seconds". */
void check_log(struct driver *d, bool whole) {
        char a[LINE_BYTES], b[LINE_BYTES];
        _cleanup_fclose_ FILE *reference = fopen(d->reference, "re");
        _cleanup_fclose_ FILE *log = fopen(d->log, "re");
        size_t line = 0;
        while (log && reference && fgets(b, sizeof b, log) && strchr(b, '\n')) {
                line++;
                if (!fgets(a, sizeof a, reference))
                        a[0] = '\0';
                char *end_a = strstr(a, ",\"seconds\":"), *end_b = strstr(b, ",\"seconds\":");
                if (end_a && end_b) {
                        *end_a = *end_b = '\0';
                        if (strcmp(a, b) == 0)
                                continue;
                }
                d->torn++;
                say(d, "✗ torn: line %zu of the log is\n    %s\nnot\n    %s", line, b, a);
                return;
        }
        if (whole && (!log || !reference || fgets(a, sizeof a, reference))) {
                d->torn++;
                say(d, "✗ torn: the log ends after %zu lines", line);
        }
}

/* A restart between two kills: its parent must not be older than what was reported before. */
static void check_parent(struct driver *d, const struct run_scan *scan) {
        const struct scan_generation *g = NULL;
        for (size_t i = 0; i < scan->generation_count; i++)
                if (scan->generations[i].started)
                        g = &scan->generations[i];
        const struct committed *c = &d->must_resume;
        if (!g || !c->name[0] || g->generation <= c->generation)
                return;
        if (g->parent_generation > c->generation ||
            (g->parent_generation == c->generation && g->parent_step >= c->step))
                return;
        d->lost++;
        say(d,
            "✗ lost: generation %" PRIu64 " starts at step %" PRId64 " of generation %" PRIu64
            ", %s had been reported",
            g->generation, g->parent_step, g->parent_generation, c->name);
        d->must_resume.name[0] = '\0';
}

static void check_checkpoints(struct driver *d, int run_fd, const struct run_scan *scan) {
        const struct committed *c = &d->reported;
        size_t newer = 0;
        bool found = !c->name[0];
        for (size_t i = 0; i < scan->checkpoint_count; i++) {
                const struct scan_checkpoint *s = &scan->checkpoints[i];
                struct cairn_error e = CAIRN_ERROR_INIT;
                char text[1024];
                if (s->is_attempt)
                        continue;
                int r = checkpoint_check(&io_system, run_fd, s->name, d->run, true, NULL, &e);
                if (r < 0 && faccessat(run_fd, s->name, F_OK, 0) == 0) {
                        d->torn++;
                        say(d, "✗ torn: %s: %s", s->name, error_format(&e, text, sizeof text));
                }
                if (strcmp(s->name, c->name) == 0)
                        found = true;
                else if (s->generation > c->generation ||
                         (s->generation == c->generation && s->step > c->step))
                        newer++;
        }
        if (!found && newer < KEEP_LAST) {
                d->lost++;
                say(d, "✗ lost: %s was reported committed, %zu newer ones are there", c->name,
                    newer);
                d->reported.name[0] = '\0';
        }
}

void check_store(struct driver *d) {
        struct cairn_error e = CAIRN_ERROR_INIT;
        _cleanup_close_ int store_fd = -1, run_fd = -1;
        struct run_scan scan = {0};
        char text[1024];
        int r = store_open(&io_system, d->read_stores[d->on_hanging_store], &store_fd, &e);
        if (r == 0)
                r = run_open(&io_system, store_fd, d->run, &run_fd, &e);
        if (r == CAIRN_ERR_NOTFOUND && !d->reported.name[0])
                return; /* nothing had been begun */
        if (r == 0)
                r = run_scan(&io_system, run_fd, d->run, true, &scan, &e);
        if (r < 0) {
                d->lost++;
                say(d, "✗ lost: the run cannot be read: %s", error_format(&e, text, sizeof text));
                return;
        }
        check_parent(d, &scan);
        check_checkpoints(d, run_fd, &scan);
        run_scan_done(&scan);
}
