/* SPDX-License-Identifier: Apache-2.0
 *
 * settings.h - what the command line says. One table row an option: type, range, meaning and what a
 * change of it on resume means. Each error is one sentence naming the option, the reason and the
 * remedy.
 *
 *     struct settings s;
 *     if (settings_parse(&s, argc, argv, &error) < 0) ... exit 64
 *     settings_set(&s, "steps", "600", &error);  // what the operator overrides
 *     s.world = 2;
 *     settings_check(&s, &error);                // fills what follows from other options
 *     settings_each(&s, visit, argument);       // for the checkpoint's description
 *     settings_done(&s);
 *
 * Owner: the caller; strings point into argv or into memory of the struct. One thread.
 */
#ifndef CAIRN_TRAINER_SETTINGS_H
#define CAIRN_TRAINER_SETTINGS_H

#include "base/status.h"
#include <stdbool.h>
#include <stdio.h>

enum { SETTINGS_FILES_MAX = 256 };

enum settings_decay { DECAY_LINEAR, DECAY_COSINE, DECAY_CONSTANT };
enum settings_dtype { DTYPE_FP32, DTYPE_BF16, DTYPE_FP16 };
enum settings_collectives { COLLECTIVES_AUTO, COLLECTIVES_GLOO, COLLECTIVES_NCCL };
enum settings_vocabulary { VOCABULARY_BYTE, VOCABULARY_CHAR };

struct settings_files {
        const char *path[SETTINGS_FILES_MAX];
        size_t count;
};

struct settings {
        /* model */
        int64_t layers, heads, width, positions, context;
        int64_t vocabulary, dtype; /* enums above */
        /* data */
        struct settings_files data, eval_data;
        int64_t seed;
        /* schedule, in steps of the global batch */
        int64_t steps, warmup, decay;
        int64_t batch, accumulate, global_batch;
        int64_t world; /* ranks; not an option: 0 until it is known */
        int64_t zero;
        double lr, min_lr;
        /* optimizer */
        double weight_decay, beta1, beta2, epsilon, clip, dropout, ema;
        double loss_scale; /* 0: off; negative: dynamic; else the scale; NaN: not said yet */
        int64_t loss_scale_growth;
        /* ends and evaluation */
        int64_t eval_every, eval_batches, patience, stop_at;
        double max_seconds;
        /* surroundings */
        const char *device; /* compute.h */
        const char *log, *run, *interface;
        int64_t threads, collectives;
        double device_timeout;
        bool tf32;
        double save_timeout, bootstrap_timeout, collective_timeout;
        bool without_checkpoints, quiet;
        /* rehearsals: what goes wrong in real training, on purpose and at a known step */
        int64_t stall_step, stall_ms, eval_stall_ms, step_ms, update_stall_step, update_stall_ms;
        int64_t overflow_step, nan_step, oom_step;
        int64_t rehearse_on; /* -1: on each rank */
        const char *sample_log;
        bool batchnorm_demo, batchnorm_wrong;
        bool probe_gpu; /* --probe-gpu: print what probe_gpu finds and exit 0 */
        bool help;      /* --help was given: print settings_help and exit 0 */
};

/* What a different value on resume means; also the prefix of the key in the description. */
enum settings_kind {
        SETTINGS_CONFIG,   /* "config.": must be equal unless overridden */
        SETTINGS_NUMERICS, /* "numerics.": may change, but not bit for bit */
        SETTINGS_FREE,     /* "free.": may change */
        SETTINGS_LOCAL,    /* of this start only, not described */
};

int settings_parse(struct settings *s, int argc, char **argv, struct cairn_error *reterr);
/* As if --name value had been given: for the operator's overrides. Call settings_check afterwards.
 */
int settings_set(struct settings *s, const char *name, const char *value,
                 struct cairn_error *reterr);
/* On resume: the run's global batch, where the command line gives none; accumulation follows from
 * it and the number of ranks. stored NULL: not known. */
int settings_keep_global_batch(struct settings *s, const char *stored, struct cairn_error *reterr);
/* Rehearsals that are another rank's are none here. */
void settings_rehearse_on(struct settings *s, uint32_t rank);
/* Fills what follows from other options and checks what belongs together. */
int settings_check(struct settings *s, struct cairn_error *reterr);
void settings_done(struct settings *s);

/* visit(key, value, argument) for each described option, e.g. ("config.layers", "2"); stops at the
 * first non-zero result and returns it. */
int settings_each(const struct settings *s,
                  int (*visit)(const char *key, const char *value, void *argument), void *argument);
/* The name of the option that a key describes, NULL if none. */
const char *settings_option_of_key(const char *key);
void settings_help(FILE *out);

static inline enum cairn_dtype settings_dtype(const struct settings *s) {
        return s->dtype == DTYPE_BF16 ? CAIRN_BF16 : s->dtype == DTYPE_FP16 ? CAIRN_F16 : CAIRN_F32;
}
/* "gloo" or "nccl" */
const char *settings_collectives(const struct settings *s);

#endif
