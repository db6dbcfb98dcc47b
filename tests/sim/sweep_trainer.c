/* SPDX-License-Identifier: Apache-2.0 */
#include "base/cleanup.h"
#include "client/cairn.h"
#include "tests/sim/sweep.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define COMMIT_NS (30 * NSEC_PER_SEC)
#define STEPS_OVER 8 /* beyond STEPS, for a commit that a fault cost */

const struct sweep_tensor sweep_tensors[SWEEP_TENSORS] = {
        {"layer.weight", CAIRN_PARAMETER, 700001},
        {"layer.moment", CAIRN_MOMENT1, 196609},
        {"average", CAIRN_EMA, 1000},
        {"buffer", CAIRN_BUFFER, 1},
};

/* Whole numbers below 2^24: finite, exact. */
float sweep_value(size_t tensor, int64_t step, uint64_t element) {
        uint64_t x = (uint64_t) step * 40503 + element * UINT64_C(2654435761) + tensor * 97;
        return (float) ((x ^ x >> 17) & 0xffffff);
}

uint64_t sweep_difference(size_t tensor, int64_t step, const float *data) {
        uint64_t i = 0;

        for (; i < sweep_tensors[tensor].count; i++) {
                float value = sweep_value(tensor, step, i);
                uint32_t expected, found;
                memcpy(&expected, &value, sizeof expected);
                memcpy(&found, &data[i], sizeof found);
                if (expected != found)
                        break;
        }
        return i;
}

struct trainer {
        struct cairn *c;
        int log;
        bool again, spoil;
        int64_t step, last, committed;
        float *tensors[SWEEP_TENSORS], *step_fp32;
        int64_t truth, samples;
        uint64_t noise_bytes;
        unsigned char noise[16];
};

static void note(const struct trainer *t, const char *format, ...)
        __attribute__((format(printf, 2, 3)));

/* One write a line, so that a process that is killed leaves whole ones. */
static void note(const struct trainer *t, const char *format, ...) {
        char line[1024];
        va_list arguments;

        va_start(arguments, format);
        (void) vsnprintf(line, sizeof line - 1, format, arguments);
        va_end(arguments);
        for (char *at = line; (at = strchr(at, '\n'));)
                *at = ' ';
        size_t bytes = strlen(line);
        line[bytes] = '\n';
        if (write(t->log, line, bytes + 1) != (ssize_t) bytes + 1)
                _exit(70);
}

static void fill(struct trainer *t, int64_t step) {
        for (size_t k = 0; k < SWEEP_TENSORS; k++)
                for (uint64_t i = 0; i < sweep_tensors[k].count; i++)
                        t->tensors[k][i] = sweep_value(k, step, i);
        t->truth = step;
        t->samples = step * SWEEP_SAMPLES_PER_STEP;
        t->noise_bytes = (uint64_t) step % sizeof t->noise;
        memset(t->noise, (int) (step & 0xff), t->noise_bytes);
}

static void check(const struct trainer *t, int64_t step) {
        for (size_t k = 0; k < SWEEP_TENSORS; k++) {
                uint64_t i = sweep_difference(k, step, t->tensors[k]);
                if (i < sweep_tensors[k].count)
                        note(t,
                             "wrong element %" PRIu64 " of %s after the restore of step %" PRId64,
                             i, sweep_tensors[k].name, step);
        }
        if (*t->step_fp32 != (float) step || t->truth != step ||
            t->samples != step * SWEEP_SAMPLES_PER_STEP ||
            t->noise_bytes != (uint64_t) step % sizeof t->noise)
                note(t, "wrong values after the restore of step %" PRId64, step);
        for (uint64_t i = 0; i < t->noise_bytes; i++)
                if (t->noise[i] != (step & 0xff))
                        note(t, "wrong byte after the restore of step %" PRId64, step);
}

static int declare(struct trainer *t) {
        int r = 0;

        for (size_t k = 0; k < SWEEP_TENSORS && r == 0; k++) {
                const struct sweep_tensor *s = &sweep_tensors[k];
                r = cairn_alloc(t->c, s->count * sizeof(float), (void **) &t->tensors[k]);
                if (r == 0)
                        r = cairn_register(
                                t->c, &(struct cairn_tensor){
                                              CAIRN_TENSOR_INIT, .name = s->name, .role = s->role,
                                              .dtype = CAIRN_F32, .rank = 1, .shape = {s->count},
                                              .data = t->tensors[k], .replicated = true});
        }
        if (r == 0)
                r = cairn_alloc(t->c, sizeof *t->step_fp32, (void **) &t->step_fp32);
        if (r == 0)
                r = cairn_register_step(t->c, "step", t->step_fp32, &t->truth);
        if (r == 0)
                r = cairn_state_i64(t->c, "samples", &t->samples);
        if (r == 0)
                r = cairn_state_bytes(t->c, "noise", t->noise, &t->noise_bytes, sizeof t->noise);
        if (r == 0)
                r = cairn_describe(t->c, "config.state", "of its step");
        return r == 0 ? cairn_seal(t->c) : r;
}

/* After a restore that failed the state may be half old and half new: nothing may take it for a
 * state. */
static void check_refusal(struct trainer *t, const char *text) {
        cairn_ticket ticket;
        int64_t step;

        note(t, "refused %s", text);
        if (!*text)
                note(t, "wrong: a restore failed and says nothing");
        if (cairn_update_begin(t->c) == 0)
                note(t, "wrong: an update begins after a restore that failed");
        if (cairn_update_end(t->c, 1000000) == 0)
                note(t, "wrong: an update ends after a restore that failed");
        if (cairn_snapshot(t->c, &ticket) == 0 &&
            cairn_snapshot_wait(t->c, ticket, 10 * NSEC_PER_MSEC, &step) == 0)
                note(t, "wrong: a snapshot after a restore that failed");
        if (cairn_finish(t->c, "completed") == 0)
                note(t, "wrong: the run is finished by a restore that failed");
}

static int restore(struct trainer *t) {
        struct cairn_report report = {.size = sizeof report};

        fill(t, 0);
        int r = cairn_restore(t->c, &report);
        if (r < 0) {
                check_refusal(t, cairn_error_text(t->c));
                if (t->again && (r = cairn_restore(t->c, &report)) < 0)
                        note(t, "refused %s", cairn_error_text(t->c));
        }
        if (r < 0)
                return r;
        note(t, "restored %" PRId64, report.step);
        if (t->spoil)
                t->tensors[1][7]++;
        t->step = report.step;
        check(t, t->step);
        return 0;
}

static int update(struct trainer *t) {
        uint64_t begin_ns = clock_now(&clock_system);
        int r = cairn_update_begin(t->c);
        uint64_t took_ns = clock_now(&clock_system) - begin_ns;

        if (r < 0)
                return r;
        fill(t, ++t->step);
        begin_ns = clock_now(&clock_system);
        r = cairn_update_end(t->c, t->step);
        took_ns += clock_now(&clock_system) - begin_ns;
        if (took_ns > SWEEP_STEP_NS_MAX)
                note(t, "wrong: step %" PRId64 " waited %" PRIu64 " ms", t->step,
                     took_ns / NSEC_PER_MSEC);
        return r;
}

/* The update after the request meets the copy at the gate. */
static int train(struct trainer *t) {
        while (t->step < t->last || (t->committed < 0 && t->step < t->last + STEPS_OVER)) {
                cairn_ticket ticket;
                int r = update(t);
                note(t, "asked %" PRId64, t->step + 1);
                if (r == 0)
                        r = cairn_snapshot(t->c, &ticket);
                if (r == 0)
                        r = update(t);
                if (r < 0) {
                        note(t, "wrong: %s", cairn_error_text(t->c));
                        return r;
                }
                t->committed = -1;
                if (cairn_snapshot_wait(t->c, ticket, COMMIT_NS, &t->committed) == 0)
                        note(t, "committed %" PRId64, t->committed);
                else
                        note(t, "failed %s", cairn_error_text(t->c));
        }
        return 0;
}

int sweep_trainer_main(int argc, char **argv) {
        struct trainer t = {.committed = -1};
        struct cairn_options options = CAIRN_OPTIONS_INIT;

        if (argc != 5)
                return 64;
        _cleanup_close_ int log = open(argv[2], O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
        if (log < 0)
                return 73;
        t.log = log;
        t.last = strtoll(argv[3], NULL, 10);
        t.again = strcmp(argv[4], "again") == 0;
        t.spoil = strcmp(argv[4], "spoil") == 0;
        note(&t, "start");
        int r = cairn_open(&options, &t.c);
        if (r < 0)
                note(&t, "refused %s", t.c ? cairn_error_text(t.c) : "no memory");
        if (r == 0 && (r = declare(&t)) < 0)
                note(&t, "refused %s", cairn_error_text(t.c));
        if (r == 0)
                r = restore(&t);
        if (r == 0)
                r = train(&t);
        if (r < 0)
                (void) fprintf(stderr, "trainer: %s\n", t.c ? cairn_error_text(t.c) : "no memory");
        int code = r == 0 ? 0 : t.c ? cairn_exit_code(t.c) : 71;
        cairn_close(t.c);
        if (r == 0)
                note(&t, "end");
        return code;
}
