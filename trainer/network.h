/* SPDX-License-Identifier: Apache-2.0
 *
 * network.h - the transformer's forward and backward pass on the CPU, with its activations.
 *
 *     network_init(&n, &model, batch, time, dropout, &error);
 *     loss = network_forward(&n, &weights, inputs, targets, &pass);
 *     network_backward(&n, &weights, &gradients, inputs, targets, &pass, scale);
 *
 * Nothing in it survives a pass but `running`, which the owner registers. One thread.
 */
#ifndef CAIRN_TRAINER_NETWORK_H
#define CAIRN_TRAINER_NETWORK_H

#include "trainer/model.h"

struct layer_activations {
        float *ln1, *ln1_mean, *ln1_rstd; /* (B, T, C), (B, T), (B, T) */
        float *qkv;                       /* (B, T, 3C) */
        float *att;                       /* (B, NH, T, T) */
        float *mixed;                     /* (B, T, C), heads' outputs */
        float *middle;                    /* (B, T, C), residual after attention */
        float *ln2, *ln2_mean, *ln2_rstd;
        float *up, *gelu;       /* (B, T, 4C) */
        float *residual;        /* (B, T, C), the block's output */
        uint8_t *mask1, *mask2; /* (B, T, C), dropout after each half */
};

struct network {
        const struct model *model;
        size_t batch, time;
        float dropout;
        float *running; /* (C) running means, or NULL: see --batchnorm-demo */
        float *floats;  /* the block that all float activations lie in */
        uint8_t *bytes;
        struct layer_activations *layer;
        float *embedded; /* (B, T, C) */
        float *ln, *ln_mean, *ln_rstd;
        float *logits;                      /* (B, T, V): logits, probabilities, gradients */
        float *losses;                      /* (B, T) */
        uint8_t *mask;                      /* (B, T, C) after the embedding */
        float *branch;                      /* (B, T, C) */
        float *dresidual, *dbranch, *dwide; /* (B, T, C), (B, T, C), (B, T, 4C) */
        float *scratch;
};

/* Keys the dropout masks; training = false: none, and running means stay as they are. */
struct network_pass {
        bool training;
        uint64_t seed, step, sample;
};

int network_init(struct network *n, const struct model *m, size_t batch, size_t time,
                 double dropout, struct cairn_error *reterr);
void network_done(struct network *n);

/* The mean loss of the batch. */
float network_forward(struct network *n, const struct weights *w, const uint32_t *inputs,
                      const uint32_t *targets, const struct network_pass *pass);
/* Adds scale * gradient of the mean loss to d. After a forward pass with training = true. */
void network_backward(struct network *n, const struct weights *w, struct weights *d,
                      const uint32_t *inputs, const uint32_t *targets, float scale);

#endif
