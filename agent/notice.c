/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/notice.h"
#include "agent/attempt.h"
#include "agent/demand.h"
#include "agent/group.h"
#include "agent/run_parts.h"
#include "base/cleanup.h"
#include "base/log.h"
#include <errno.h>
#include <fcntl.h>

#define NOTICE_OVERHEAD_NS (200 * NSEC_PER_MSEC) /* at least */
#define NOTICE_END_NS_MAX (1 * NSEC_PER_SEC)     /* for the end of the trainers, and for ours */

/* ---- the plan ---- */

static uint64_t need_ns(const struct notice_budget *b, uint64_t bytes, uint64_t commits) {
        double seconds = (double) bytes / (double) (b->bandwidth ? b->bandwidth : 1);
        return seconds < 1e9 ? (uint64_t) (seconds * 1e9) + commits * b->overhead_ns : UINT64_MAX;
}

enum notice_decision notice_plan(const struct notice_budget *b, uint64_t *ret_need_ns) {
        *ret_need_ns = need_ns(b, b->flight_bytes + b->image_bytes, b->flight_count + 1);
        if (b->flight_count == 0 || *ret_need_ns <= b->left_ns)
                return NOTICE_CUT;
        *ret_need_ns = need_ns(b, b->flight_bytes, b->flight_count);
        return *ret_need_ns <= b->left_ns ? NOTICE_COMMIT : NOTICE_FINISH;
}

const char *notice_decision_name(enum notice_decision decision) {
        static const char *const names[NOTICE_DECISION_COUNT] = {"cut", "commit", "finish", "none"};
        return names[decision];
}

/* Between cut and commit. */
static void add_flight(const struct run *run, struct notice_budget *b) {
        for (size_t i = 0; i < RUN_ATTEMPT_COUNT; i++) {
                const struct run_attempt *a = &run->attempts[i];
                bool any = false;
                if ((a->state != ATTEMPT_OPEN && a->state != ATTEMPT_COMMITTING) || a->doomed)
                        continue;
                for (uint32_t k = 0; k < a->local_count; k++) {
                        const struct rank_cut *row = &a->ranks[a->first_rank + k];
                        any = any || row->state >= RANK_CUT;
                        if (row->state == RANK_CUT)
                                b->flight_bytes += row->bytes;
                }
                b->flight_count += any;
        }
}

static bool is_in_flight(const struct run *run) {
        struct notice_budget b = {0};
        add_flight(run, &b);
        return b.flight_count > 0;
}

static struct notice_budget measure(const struct run *run, uint64_t left_ns) {
        struct notice_budget b = {.left_ns = left_ns,
                                  .bandwidth = run_bandwidth(run) * run->local_count};
        add_flight(run, &b);
        for (uint32_t i = 0; i < run->local_count; i++)
                if (run->sessions[i])
                        b.image_bytes += run->sessions[i]->image_bytes;
        /* What the last one took besides its bytes. */
        uint64_t writing_ns = need_ns(&b, b.image_bytes, 0);
        b.overhead_ns = run->commit_ns > writing_ns ? run->commit_ns - writing_ns : 0;
        if (b.overhead_ns < NOTICE_OVERHEAD_NS)
                b.overhead_ns = NOTICE_OVERHEAD_NS;
        return b;
}

static void plan(struct run *run) {
        struct run_notice *n = &run->notice;
        uint64_t now_ns = loop_now(&run->agent->loop);
        uint64_t left_ns = n->deadline_ns > now_ns ? n->deadline_ns - now_ns : 0;
        n->budget = measure(run, n->end_ns > now_ns ? n->end_ns - now_ns : 0);
        n->decision = notice_plan(&n->budget, &n->need_ns);
        if (n->budget.image_bytes == 0 ||
            (n->decision == NOTICE_CUT && !demand_notice(run, n->end_ns))) {
                n->decision = NOTICE_NONE;
                n->need_ns = 0;
        }
        n->planned = true;
        log_event(LOG_LEVEL_WARNING,
                  "run=%s notice=%s source=%s id=\"%s\" left_ms=%llu image_bytes=%llu "
                  "in_flight_bytes=%llu bytes_per_s=%llu overhead_ms=%llu need_ms=%llu "
                  "decision=%s",
                  run->name, n->kind, n->source, n->id,
                  (unsigned long long) (left_ns / NSEC_PER_MSEC),
                  (unsigned long long) n->budget.image_bytes,
                  (unsigned long long) n->budget.flight_bytes,
                  (unsigned long long) n->budget.bandwidth,
                  (unsigned long long) (n->budget.overhead_ns / NSEC_PER_MSEC),
                  (unsigned long long) (n->need_ns / NSEC_PER_MSEC),
                  notice_decision_name(n->decision));
}

/* ---- beside the socket ---- */

static bool file_path(const struct agent *a, const char *run, char *path, size_t bytes) {
        const char *slash = strrchr(a->config.socket, '/');
        int n = slash ? snprintf(path, bytes, "%.*s/%s.notice", (int) (slash - a->config.socket),
                                 a->config.socket, run)
                      : -1;
        return n > 0 && (size_t) n < bytes;
}

static uint64_t realtime_ns(void) {
        return clock_system.realtime_ns(clock_system.context);
}

static void store(const struct run *run) {
        const struct run_notice *n = &run->notice;
        uint64_t until_ns = realtime_ns() + (n->deadline_ns - loop_now(&run->agent->loop));
        char path[4300], text[4 * NOTICE_TEXT_BYTES];
        if (!file_path(run->agent, run->name, path, sizeof path))
                return;
        int bytes = snprintf(text, sizeof text, "%s %llu %s %s\n", n->kind,
                             (unsigned long long) until_ns, n->source, n->id);
        (void) unlink(path); /* whatever it is: it is ours to make anew */
        _cleanup_close_ int fd =
                open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
        if (fd >= 0 && write(fd, text, (size_t) bytes) == bytes)
                return;
        struct cairn_error e = CAIRN_ERROR_INIT;
        (void) error_set_errno(&e, errno, "keep the notice", path);
        log_error(LOG_LEVEL_WARNING, "a restarted agent will not know of it", &e);
}

/* False: none is active. Its deadline is the loop's time. */
static bool load(struct agent *a, const char *run, struct run_notice *ret) {
        unsigned long long until_ns;
        char path[4300], text[4 * NOTICE_TEXT_BYTES] = "";
        if (!file_path(a, run, path, sizeof path))
                return false;
        _cleanup_close_ int fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
        if (fd < 0 || read(fd, text, sizeof text - 1) <= 0)
                return false;
        *ret = (struct run_notice){0};
        uint64_t now_ns = realtime_ns();
        if (sscanf(text, "%63s %llu %63s %63s", ret->kind, &until_ns, ret->source, ret->id) != 4 ||
            until_ns <= now_ns || until_ns - now_ns > NOTICE_NS_MAX) {
                (void) unlink(path);
                return false;
        }
        ret->deadline_ns = loop_now(&a->loop) + (until_ns - now_ns);
        ret->active = ret->stops = true;
        return true;
}

static int refuse(const struct agent *a, const char *run, const struct run_notice *n,
                  struct cairn_error *reterr) {
        return error_set(reterr, CAIRN_ERR_PREEMPTED, "start run", run,
                         "a notice (%s, id %s) says that this machine goes away within %.0f s: "
                         "nothing is started on it until then",
                         n->kind, n->id, (double) (n->deadline_ns - loop_now(&a->loop)) / 1e9);
}

int notice_check_start(struct agent *a, const char *run, bool again, struct cairn_error *reterr) {
        struct run *living = agent_find_run(a, run);
        struct run_notice n = {0};
        if (again)
                return 0;
        if (living && living->notice.deadline_ns <= loop_now(&a->loop))
                living->notice = n; /* the machine is still there */
        if (living)
                n = living->notice;
        return n.active || load(a, run, &n) ? refuse(a, run, &n, reterr) : 0;
}

/* It waits for other nodes, and may do so for long. */
static void refuse_start(struct run *run) {
        struct cairn_error error = CAIRN_ERROR_INIT;
        if (!group_cancel(run->group))
                return;
        (void) refuse(run->agent, run->name, &run->notice, &error);
        run_start_failed(run, &error);
}

/* ---- events ---- */

static void set_end(struct agent *a, struct run_notice *n) {
        uint64_t end_ns = (n->deadline_ns - loop_now(&a->loop)) / 4;
        if (end_ns > NOTICE_END_NS_MAX)
                end_ns = NOTICE_END_NS_MAX;
        n->end_ns = n->deadline_ns - 2 * end_ns;
}

static ProtobufCBinaryData bytes_of(const char *text) {
        return (ProtobufCBinaryData){strlen(text), (uint8_t *) (uintptr_t) text};
}

static void fill(const struct run *run, Cairn__Control__Envelope *e, Cairn__Control__Notice *m) {
        const struct run_notice *n = &run->notice;
        uint64_t now_ns = loop_now(&run->agent->loop);
        m->kind = bytes_of(n->kind);
        m->source = bytes_of(n->source);
        m->id = bytes_of(n->id);
        m->decision = bytes_of(notice_decision_name(n->decision));
        m->stops = n->stops;
        m->left_ns = n->deadline_ns > now_ns ? n->deadline_ns - now_ns : 0;
        m->need_ns = n->need_ns;
        m->image_bytes = n->budget.image_bytes;
        m->flight_bytes = n->budget.flight_bytes;
        m->bytes_per_s = n->budget.bandwidth;
        e->body_case = CAIRN__CONTROL__ENVELOPE__BODY_NOTICE;
        e->notice = m;
}

static void tell_runner(struct run *run) {
        Cairn__Control__Envelope e = CAIRN__CONTROL__ENVELOPE__INIT;
        Cairn__Control__Notice m = CAIRN__CONTROL__NOTICE__INIT;
        fill(run, &e, &m);
        server_tell(&run->runner, &e);
}

static void answer(struct run *run, const struct reply_to *to) {
        Cairn__Control__Envelope e = CAIRN__CONTROL__ENVELOPE__INIT;
        Cairn__Control__Notice m = CAIRN__CONTROL__NOTICE__INIT;
        fill(run, &e, &m);
        server_reply(to, &e, NULL, 0);
}

/* It is a word of a line in a file, and of lines in logs. */
static int take_word(char *target, const ProtobufCBinaryData *text, const char *what,
                     const char *run, struct cairn_error *reterr) {
        static const char letters[] =
                "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._:-";
        bool good = text->len > 0 && text->len < NOTICE_TEXT_BYTES;
        for (size_t i = 0; good && i < text->len; i++)
                good = text->data[i] && strchr(letters, text->data[i]);
        if (!good)
                return error_set(reterr, CAIRN_ERR_API, "notify", run,
                                 "the %s has 1 to %d letters, digits, or any of . _ : -", what,
                                 NOTICE_TEXT_BYTES - 1);
        memcpy(target, text->data, text->len);
        target[text->len] = 0;
        return 0;
}

static int read_request(const struct run *run, const Cairn__Control__NoticeRequest *m,
                        struct run_notice *ret, struct cairn_error *reterr) {
        *ret = (struct run_notice){.active = true};
        TRY(take_word(ret->kind, &m->kind, "kind", run->name, reterr));
        TRY(take_word(ret->source, &m->source, "source", run->name, reterr));
        TRY(take_word(ret->id, &m->id, "id", run->name, reterr));
        ret->stops = strcmp(ret->kind, "preempt") == 0;
        if (!ret->stops && strcmp(ret->kind, "rebalance") != 0)
                return error_set(reterr, CAIRN_ERR_API, "notify", run->name,
                                 "the kind is preempt or rebalance, not '%s'", ret->kind);
        if (m->in_ns == 0 || m->in_ns > NOTICE_NS_MAX)
                return error_set(reterr, CAIRN_ERR_API, "notify", run->name,
                                 "a notice says when the machine goes away: in more than 0 and at "
                                 "most 24 h");
        ret->deadline_ns = loop_now(&run->agent->loop) + m->in_ns;
        set_end(run->agent, ret);
        return 0;
}

int run_notice(struct run *run, const struct reply_to *to, const Cairn__Control__NoticeRequest *m,
               struct cairn_error *reterr) {
        struct run_notice n;
        TRY(read_request(run, m, &n, reterr));
        /* Of two the earlier one counts, and a hint adds nothing to a notice. */
        if (run->notice.active && (!n.stops || n.deadline_ns >= run->notice.deadline_ns)) {
                answer(run, to);
                return 0;
        }
        run->notice = n;
        if (n.stops)
                store(run);
        if (run->state == RUN_LIVE || !n.stops) { /* else when it is */
                plan(run);
                tell_runner(run);
        } else
                run->notice.decision = NOTICE_NONE;
        answer(run, to);
        run->notice.active = n.stops;
        run_pump(run);
        return 0;
}

void notice_take_up(struct run *run) {
        struct run_notice n;
        if (!load(run->agent, run->name, &n))
                return;
        set_end(run->agent, &n);
        run->notice = n;
}

/* Its trainers are back, or there is no time left to wait for them. */
static bool can_plan(const struct run *run) {
        uint64_t now_ns = loop_now(&run->agent->loop);
        for (uint32_t i = 0; i < run->local_count; i++) {
                const struct session *s = run->sessions[i];
                if ((!s || s->state < SESSION_ACTIVE) && now_ns < run->expect_until_ns)
                        return false;
        }
        return true;
}

void run_notice_check(struct run *run) {
        struct run_notice *n = &run->notice;
        uint64_t now_ns = loop_now(&run->agent->loop);
        if (!n->active || n->stopping)
                return;
        if (run->state == RUN_STARTING)
                refuse_start(run);
        if (run->state != RUN_LIVE)
                return;
        if (!n->planned && can_plan(run)) {
                plan(run);
                tell_runner(run);
        }
        bool busy = !n->planned ||
                    (n->decision == NOTICE_CUT ? demand_notice_pending(run) : is_in_flight(run));
        if (busy && now_ns < n->end_ns)
                return;
        n->stopping = true;
        /* As long after the last moment to end as that lies before the deadline. */
        uint64_t force_ns = n->deadline_ns - (n->deadline_ns - n->end_ns) / 2;
        (void) run_stop(run, NULL, force_ns > now_ns ? force_ns - now_ns : 1, NULL);
}

bool notice_pending(const struct run *run) {
        return run->notice.active && !run->notice.stopping;
}
