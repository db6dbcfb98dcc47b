/* SPDX-License-Identifier: Apache-2.0
 *
 * state.h - everything that a step reads and that the configuration does not say: the state of a
 * run. It is declared to libcairn in one place, so what is not here is not restored.
 *
 *     state_init(&st, cairn, compute, &model, &settings, rank, &error);   // memory, first values
 *     state_declare(&st, cairn);                           // names every tensor and value
 *     ... cairn_seal, cairn_restore ...
 *     state_obey(&st, &settings);                          // what the operator overrode
 *     state_restored(&st);                                 // what is derived from the state
 *     state_done(&st);
 *
 * Tensors are in the memory of whoever computes (compute.h). Owner: the caller; they belong to the
 * cairn handle and go with it. Tensors and host values
 * change between cairn_update_begin and cairn_update_end only; the early-stop triple also after an
 * evaluation (libcairn reads host values in cairn_update_end) and `running` in the forward pass
 * (registered so). One thread.
 */
#ifndef CAIRN_TRAINER_STATE_H
#define CAIRN_TRAINER_STATE_H

#include "client/cairn.h"
#include "trainer/compute.h"
#include "trainer/model.h"
#include "trainer/settings.h"
#include "trainer/shard.h"

struct state {
        const struct model *model;
        struct compute *compute;
        enum cairn_dtype dtype; /* of the parameters: F32, BF16, F16 */
        bool has_ema, is_sharded, running_is_wrong;
        struct shard shard; /* with --zero 1 this rank's part, else all */

        /* A block in the model's layout, of shard.whole elements; then the shard's of others. */
        void *parameters;
        float *masters; /* where the parameters are narrower */
        float *moment1, *moment2;
        float *ema;      /* with --ema only */
        float *steps;    /* one a tensor, written by libcairn from the truths */
        int64_t *truths; /* updates applied to each tensor */
        float *running;  /* (C), --batchnorm-demo only */

        /* host values */
        int64_t samples, epoch;     /* seen; the position in the order of samples */
        int64_t accumulation_phase; /* 0 at every cut */
        int64_t ema_updates;
        double loss_scale;              /* 1 when off */
        int64_t good_steps;             /* since the scale last changed */
        int64_t skipped, nonfinite_run; /* updates skipped; in a row */
        uint64_t data_seed, dropout_seed;
        int64_t batch_full, batch_micro; /* as batch.h has them: a resume splits as the run did */
        double best_loss;
        int64_t best_step, evaluations_without_gain; /* best_step -1: no evaluation yet */
        double seconds;                              /* of training, over all restarts */

        /* Not state: the weights of the passes, of the type that is computed in. The parameters, or
         * made from narrower ones. */
        void *working;
        bool working_is_own;
};

/* rank: of s->world. */
int state_init(struct state *st, struct cairn *c, struct compute *compute, const struct model *m,
               const struct settings *s, uint32_t rank, struct cairn_error *reterr);
void state_done(struct state *st);
/* A negative status leaves its sentence in cairn_error_text. */
int state_declare(struct state *st, struct cairn *c);
void state_restored(struct state *st);
/* Seeds and a fixed loss scale are the settings': libcairn has refused others than the stored ones
 * unless the operator overrode them, and then what is described is what is computed with. */
void state_obey(struct state *st, const struct settings *s);
/* Inside an update: while no update was applied, masters and average are the parameters by
 * definition, whether these come from the seed or from another run's checkpoint. */
void state_begin_update(struct state *st);
static inline bool state_is_narrow(const struct state *st) {
        return st->dtype != CAIRN_F32;
}
static inline size_t state_element_bytes(const struct state *st) {
        return state_is_narrow(st) ? 2 : 4;
}
/* The shard's part of the parameters. */
static inline void *state_own_parameters(const struct state *st) {
        return (char *) st->parameters + st->shard.first * state_element_bytes(st);
}
/* The fp32 weights that the optimizer updates: the shard's. */
static inline float *state_weights(const struct state *st) {
        return state_is_narrow(st) ? st->masters : state_own_parameters(st);
}

#endif
