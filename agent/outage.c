/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/outage.h"
#include "agent/run.h"
#include "base/log.h"

#define DELETED_BYTES_PER_NS 4 /* at least */

/* It is late, or this process itself was stopped and the answer has come meanwhile. */
#define LATE_NS (500 * NSEC_PER_MSEC)

static void timer_fired(void *context) {
        run_pump(context);
}

void outage_init(struct run *run) {
        loop_timer_init(&run->outage.timer, timer_fired, run);
}

void outage_done(struct run *run) {
        loop_timer_clear(&run->agent->loop, &run->outage.timer);
}

/* Storage that does not answer and the process that is killed for it are one cause. */
static bool is_new(struct outage *o, int status, int system_code, uint64_t begin_ns) {
        if (status == CAIRN_ERR_PEER)
                status = CAIRN_ERR_TIMEOUT;
        if (o->cause_count == 0)
                o->begin_ns = begin_ns;
        for (size_t i = 0; i < o->cause_count; i++)
                if (o->causes[i].status == status && o->causes[i].system_code == system_code)
                        return false;
        if (o->cause_count == OUTAGE_CAUSES_MAX)
                return false;
        o->causes[o->cause_count].status = status;
        o->causes[o->cause_count++].system_code = system_code;
        return true;
}

static const char *escaped_store(const struct run *run, char *text, size_t bytes) {
        return text_escape(text, bytes, run->store, strlen(run->store));
}

/* Of a group the error names node and store: it may have come from another one. */
static const char *store_field(const struct run *run, char *text, size_t bytes) {
        char store[700];
        (void) snprintf(text, bytes, " store=\"%s\"", escaped_store(run, store, sizeof store));
        return run->group ? "" : text;
}

void outage_failed(struct run *run, uint32_t attempt, const struct cairn_error *error) {
        char text[700], store[720];
        bool told = !is_new(&run->outage, error->status, error->system_code,
                            loop_now(&run->agent->loop));
        run->outage.failures++;
        log_event(told ? LOG_LEVEL_DEBUG : LOG_LEVEL_ERROR,
                  "run=%s generation=%llu attempt=%u checkpoint=failed%s error=\"%s\"", run->name,
                  (unsigned long long) run->generation, attempt,
                  store_field(run, store, sizeof store), error_format(error, text, sizeof text));
}

enum log_level outage_level(const struct run *run) {
        return run->outage.cause_count > 0 ? LOG_LEVEL_DEBUG : LOG_LEVEL_WARNING;
}

/* ---- silence ---- */

static uint64_t writing_ns(const struct run *run, uint64_t bytes) {
        __uint128_t ns = (__uint128_t) 2 * bytes * NSEC_PER_SEC / run_bandwidth(run);
        return OUTAGE_SILENT_NS + (ns < UINT64_MAX / 4 ? (uint64_t) ns : UINT64_MAX / 4);
}

/* Of one file: it is gone as a whole, or not at all. */
static uint64_t deleting_ns(const struct run *run) {
        return run->committed_bytes / DELETED_BYTES_PER_NS;
}

/* What waited behind the checkpoint that was committed just now waits since then. */
static uint64_t since_commit(const struct run *run, uint64_t since_ns) {
        return since_ns > run->committed_ns ? since_ns : run->committed_ns;
}

/* When what this node's ranks wait for takes too long; UINT64_MAX: it waits for nothing. */
static uint64_t silent_at(const struct run *run) {
        uint64_t since_ns = run_store_asked_ns(run), at_ns = UINT64_MAX;
        if (since_ns)
                at_ns = since_commit(run, since_ns) + OUTAGE_SILENT_NS +
                        (run->retaining ? deleting_ns(run) : 0);
        for (size_t i = 0; i < RUN_ATTEMPT_COUNT; i++)
                for (uint32_t k = 0; k < run->attempts[i].local_count; k++) {
                        const struct run_attempt *a = &run->attempts[i];
                        const struct rank_cut *row = &a->ranks[a->first_rank + k];
                        if (a->state != ATTEMPT_OPEN || row->state != RANK_CUT)
                                continue;
                        uint64_t late_ns =
                                since_commit(run, row->cut_ns) + writing_ns(run, row->bytes);
                        at_ns = late_ns < at_ns ? late_ns : at_ns;
                }
        return at_ns;
}

void outage_pump(struct run *run) {
        struct loop *loop = &run->agent->loop;
        uint64_t at_ns = silent_at(run), now_ns = loop_now(loop);
        char store[700];
        loop_timer_clear(loop, &run->outage.timer);
        if (now_ns < at_ns)
                run->outage.late_ns = 0;
        else if (!run->outage.late_ns)
                run->outage.late_ns = now_ns;
        if (run->outage.late_ns)
                at_ns = run->outage.late_ns + LATE_NS;
        if (now_ns < at_ns) {
                if (at_ns != UINT64_MAX)
                        loop_timer_set(loop, &run->outage.timer, at_ns);
                return;
        }
        if (is_new(&run->outage, CAIRN_ERR_TIMEOUT, 0, now_ns - OUTAGE_SILENT_NS))
                log_event(
                        LOG_LEVEL_WARNING,
                        "run=%s storage=silent store=\"%s\" reason=\"it has not answered for some "
                        "seconds: training goes on, nothing is committed until it does; look at "
                        "the file system and its server\"",
                        run->name, escaped_store(run, store, sizeof store));
}

void outage_over(struct run *run) {
        struct outage *o = &run->outage;
        if (o->cause_count > 0)
                log_event(LOG_LEVEL_WARNING,
                          "run=%s checkpoint=again step=%lld failed=%llu outage_s=%.1f", run->name,
                          (long long) run->committed_step, (unsigned long long) o->failures,
                          (double) (loop_now(&run->agent->loop) - o->begin_ns) / 1e9);
        o->cause_count = 0;
        o->failures = 0;
}
