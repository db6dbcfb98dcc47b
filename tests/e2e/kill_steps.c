/* SPDX-License-Identifier: Apache-2.0
 *
 * How long each step of the trainer took, from its log while that grows: "seconds" counts from the
 * trainer's start, so a step's own time is the difference of two lines of one life, and the line
 * that was read soonest after it was written tells when that was.
 */
#include "base/cleanup.h"
#include "tests/e2e/kill_parts.h"
#include <fcntl.h>
#include <inttypes.h>
#include <sys/stat.h>

#define SECONDS_TEXT ",\"seconds\":"
#define STEP_TEXT "{\"step\":"
#define GAP_NS (100 * NSEC_PER_MSEC) /* shorter than any restart takes */
enum { READ_BYTES = 16384 };

void steps_forget(struct steps *steps) {
        steps->offset = 0;
        steps->step = 0;
        steps->seconds = 0;
        steps->any = true;
        steps->zero_ns = UINT64_MAX;
}

void steps_outage(struct steps *steps) {
        steps->outages[steps->outage_count++ % OUTAGES_MAX] = (struct outage){.begin_ns = now_ns()};
}

/* Each outage may cost one deadline of the gate: the earliest one that the step met and that has
 * not been paid for. */
static bool pay(struct steps *steps, uint64_t begin_ns, uint64_t end_ns) {
        uint64_t first = steps->outage_count > OUTAGES_MAX ? steps->outage_count - OUTAGES_MAX : 0;
        for (uint64_t i = first; i < steps->outage_count; i++) {
                struct outage *o = &steps->outages[i % OUTAGES_MAX];
                bool is_last = i + 1 == steps->outage_count;
                uint64_t over_ns =
                        is_last ? UINT64_MAX : steps->outages[(i + 1) % OUTAGES_MAX].begin_ns;
                if (o->paid || o->begin_ns > end_ns || over_ns < begin_ns)
                        continue;
                o->paid = true;
                return true;
        }
        return false;
}

static void judge(struct driver *d, int64_t step, uint64_t took_ns, uint64_t end_ns) {
        struct steps *steps = &d->steps;
        uint64_t begin_ns = end_ns - took_ns;
        bool stopped = steps->stop_begin_ns && steps->stop_begin_ns <= end_ns &&
                       (!steps->stop_end_ns || steps->stop_end_ns >= begin_ns);
        bool held = steps->held_end_ns && steps->held_begin_ns <= end_ns &&
                    steps->held_end_ns >= begin_ns;
        if (stopped || held)
                return;
        if (took_ns > steps->longest_ns)
                steps->longest_ns = took_ns;
        if (took_ns < GATE_NS)
                return;
        steps->expired++;
        bool paid = pay(steps, begin_ns, end_ns);
        if (paid && took_ns <= GATE_NS + GATE_MARGIN_NS)
                return;
        d->late++;
        say(d, "✗ late: step %" PRId64 " took %.3f s%s", step, (double) took_ns / 1e9,
            paid ? "" : ", and the gate had expired before in this outage, or there is none");
}

static bool parse(const char *line, int64_t *ret_step, double *ret_seconds) {
        const char *text = strstr(line, SECONDS_TEXT);
        if (strncmp(line, STEP_TEXT, sizeof STEP_TEXT - 1) != 0 || !text)
                return false;
        *ret_step = strtoll(line + sizeof STEP_TEXT - 1, NULL, 10);
        *ret_seconds = strtod(text + sizeof SECONDS_TEXT - 1, NULL);
        return true;
}

static void take_line(struct driver *d, const char *line, uint64_t read_ns) {
        struct steps *steps = &d->steps;
        int64_t step;
        double seconds;
        if (!parse(line, &step, &seconds)) {
                steps->any = false; /* it was cut back, and is longer again */
                return;
        }
        uint64_t since_zero_ns = (uint64_t) (seconds * 1e9), zero_ns = read_ns - since_zero_ns;
        /* The earliest is the truest, unless the trainer was dead meanwhile. */
        if (zero_ns < steps->zero_ns || zero_ns > steps->zero_ns + GAP_NS)
                steps->zero_ns = zero_ns;
        if (steps->any && seconds >= steps->seconds && step >= steps->step)
                judge(d, step, (uint64_t) ((seconds - steps->seconds) * 1e9),
                      steps->zero_ns + since_zero_ns);
        steps->any = true;
        steps->step = step;
        steps->seconds = seconds;
}

/* A restart cut the log back to the step that it resumes, whose line says when its life begins. */
static void cut_back(struct steps *steps, int fd, uint64_t bytes) {
        char text[LINE_BYTES + 1];
        size_t before = bytes < LINE_BYTES ? bytes : LINE_BYTES;
        steps_forget(steps);
        steps->offset = bytes;
        if (bytes == 0)
                return;
        ssize_t n = pread(fd, text, before, (off_t) (bytes - before));
        text[n > 0 ? n : 0] = '\0';
        if (n > 0 && text[n - 1] == '\n')
                text[n - 1] = '\0';
        const char *line = strrchr(text, '\n');
        steps->any = parse(line ? line + 1 : text, &steps->step, &steps->seconds);
}

void steps_follow(struct driver *d) {
        struct steps *steps = &d->steps;
        uint64_t looked_ns = now_ns();
        if (steps->looked_ns && looked_ns > steps->looked_ns + GATE_MARGIN_NS) {
                steps->held_begin_ns = steps->looked_ns;
                steps->held_end_ns = looked_ns;
        }
        steps->looked_ns = looked_ns;
        _cleanup_close_ int fd = open(d->log, O_RDONLY | O_CLOEXEC);
        struct stat st;
        char text[READ_BYTES + 1];
        if (fd < 0 || fstat(fd, &st) < 0)
                return;
        if ((uint64_t) st.st_size < steps->offset)
                cut_back(steps, fd, (uint64_t) st.st_size);
        for (ssize_t n; (n = pread(fd, text, READ_BYTES, (off_t) steps->offset)) > 0;) {
                uint64_t read_ns = now_ns();
                char *line = text, *end;
                text[n] = '\0';
                for (; (end = strchr(line, '\n')); line = end + 1) {
                        *end = '\0';
                        take_line(d, line, read_ns);
                }
                if (line == text)
                        return; /* a line that is being written */
                steps->offset += (uint64_t) (line - text);
        }
}
