/* SPDX-License-Identifier: Apache-2.0 */
#include "trainer/checkpoint.h"
#include <inttypes.h>

int checkpoint_open(struct checkpoint *cp, const struct settings *s,
                    const struct compute *compute) {
        struct cairn_options options = CAIRN_OPTIONS_INIT;

        *cp = (struct checkpoint){.session.size = sizeof(cp->session),
                                  .report.size = sizeof(cp->report)};
        options.run = s->run;
        options.without_checkpoints = s->without_checkpoints;
        if (compute->ordinal >= 0) {
                options.device = CAIRN_DEVICE_CUDA;
                options.device_ordinal = compute->ordinal;
        }
        TRY(cairn_open(&options, &cp->cairn));
        if (compute->ordinal >= 0)
                TRY(cairn_set_stream(cp->cairn, compute->ops->queue(compute)));
        return cairn_session(cp->cairn, &cp->session);
}

struct override {
        struct checkpoint *cp;
        struct settings *settings;
        struct cairn_error *reterr;
};

static int override_one(const char *key, const char *value, void *argument) {
        struct override *o = argument;
        const char *wanted = cairn_override(o->cp->cairn, key);

        return wanted ? settings_set(o->settings, settings_option_of_key(key), wanted, o->reterr)
                      : 0;
}

int checkpoint_override(struct checkpoint *cp, struct settings *s, struct cairn_error *reterr) {
        struct settings before = *s;

        TRY(settings_each(&before, override_one, &(struct override){cp, s, reterr}));
        if (cp->session.start == CAIRN_START_RESUME)
                TRY(settings_keep_global_batch(
                        s, cairn_stored_description(cp->cairn, "config.global-batch"), reterr));
        return settings_check(s, reterr);
}

static int describe_one(const char *key, const char *value, void *argument) {
        return cairn_describe(argument, key, value);
}

/* What must be equal on resume (config, data), and what the bits of a result depend on (numerics).
 */
static int describe(struct cairn *c, const struct settings *s, const struct corpus *corpus,
                    const struct compute *compute, const char *collectives) {
        char text[64];

        TRY(settings_each(s, describe_one, c));
        (void) snprintf(text, sizeof(text), "%016" PRIx64, corpus->fingerprint);
        TRY(cairn_describe(c, "data.fingerprint", text));
        (void) snprintf(text, sizeof(text), "%" PRIu32, corpus->vocabulary_count);
        TRY(cairn_describe(c, "data.vocabulary", text));
        (void) snprintf(text, sizeof(text), "%" PRIu64, corpus->train_samples);
        TRY(cairn_describe(c, "data.train_samples", text));
        TRY(cairn_describe(c, "model.architecture", "gpt2"));
        TRY(cairn_describe(c, "optimizer.name", "adamw"));
        TRY(cairn_describe(c, "numerics.collectives", collectives));
        return compute->ops->describe(compute, describe_one, c);
}

int checkpoint_restore(struct checkpoint *cp, const struct settings *s, const struct corpus *corpus,
                       struct state *st, const char *collectives) {
        TRY(describe(cp->cairn, s, corpus, st->compute, collectives));
        TRY(state_declare(st, cp->cairn));
        TRY(cairn_seal(cp->cairn));
        TRY(cairn_restore(cp->cairn, &cp->report));
        state_restored(st);
        return 0;
}

static void note(struct checkpoint *cp, const char *what, int status) {
        if (status >= 0)
                return;
        cp->failures++;
        if (cp->reported & UINT64_C(1) << (-status & 63))
                return;
        cp->reported |= UINT64_C(1) << (-status & 63);
        (void) fprintf(stderr, "cairn-train: %s: %s; training goes on\n", what,
                       cairn_error_text(cp->cairn));
}

void checkpoint_update_begin(struct checkpoint *cp) {
        note(cp, "checkpoints (before an update)", cairn_update_begin(cp->cairn));
}

void checkpoint_update_end(struct checkpoint *cp, int64_t step) {
        note(cp, "checkpoints (after an update)", cairn_update_end(cp->cairn, step));
}

int64_t checkpoint_saved_step(const struct checkpoint *cp) {
        struct cairn_statistics n = {.size = sizeof(n)};

        return cairn_get_statistics(cp->cairn, &n) < 0 ? -1 : n.committed_step;
}

int checkpoint_last(struct checkpoint *cp, double timeout_s,
                    void (*wait)(double seconds, void *argument), void *argument,
                    int64_t *ret_step) {
        const double slice_s = 1.0;
        cairn_ticket ticket;
        int r;

        TRY(cairn_snapshot(cp->cairn, &ticket));
        for (double waited = 0;; waited += slice_s) {
                double left = timeout_s - waited;
                double now = left < slice_s ? left > 0 ? left : 0 : slice_s;
                r = cairn_snapshot_wait(cp->cairn, ticket, (uint64_t) (now * 1e9), ret_step);
                if ((r != CAIRN_ERR_TIMEOUT && r != CAIRN_ERR_BUSY) || left <= slice_s)
                        return r;
                wait(waited + now, argument);
        }
}
