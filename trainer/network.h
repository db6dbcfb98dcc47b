/* SPDX-License-Identifier: Apache-2.0
 *
 * network.h - the transformer's forward and backward pass, with its activations in the memory of
 * whoever computes (compute.h).
 *
 *     network_init(&n, compute, &model, batch, time, dropout, &error);
 *     network_forward(&n, &weights, inputs, targets, &pass);
 *     network_backward(&n, &weights, &gradients, scale);
 *     TRY(network_loss(&n, &loss, &error));            // waits for both
 *
 * Weights are of the type that is computed in, gradients float. Nothing in it survives a pass but
 * `running`, which the owner registers. One thread.
 */
#ifndef CAIRN_TRAINER_NETWORK_H
#define CAIRN_TRAINER_NETWORK_H

#include "trainer/compute.h"
#include "trainer/model.h"

struct layer_activations {
        void *ln1;                  /* (B, T, C) */
        float *ln1_mean, *ln1_rstd; /* (B, T) */
        void *qkv;                  /* (B, T, 3C) */
        void *att;                  /* (B, NH, T, T) */
        void *mixed;                /* (B, T, C), heads' outputs */
        void *middle;               /* (B, T, C), residual after attention */
        void *ln2;
        float *ln2_mean, *ln2_rstd;
        void *up, *gelu;        /* (B, T, 4C) */
        void *residual;         /* (B, T, C), the block's output */
        uint8_t *mask1, *mask2; /* (B, T, C), dropout after each half */
};

struct network {
        struct compute *compute;
        const struct model *model;
        size_t batch, time;
        float dropout;
        float *running; /* (C) running means, or NULL: see --batchnorm-demo */
        void *block;    /* that everything below lies in */
        struct layer_activations *layer;
        uint32_t *inputs, *targets; /* (B, T), of the last forward pass */
        void *embedded;             /* (B, T, C) */
        void *ln;
        float *ln_mean, *ln_rstd;
        void *logits;                      /* (B, T, V): logits, probabilities, gradients */
        float *losses;                     /* (B, T) */
        uint8_t *mask;                     /* (B, T, C) after the embedding */
        void *branch;                      /* (B, T, C) */
        void *dresidual, *dbranch, *dwide; /* (B, T, C), (B, T, C), (B, T, 4C) */
        void *scratch;
};

/* Keys the dropout masks; training = false: none, and running means stay as they are. */
struct network_pass {
        bool training;
        uint64_t seed, step, sample;
};

int network_init(struct network *n, struct compute *c, const struct model *m, size_t batch,
                 size_t time, double dropout, struct cairn_error *reterr);
void network_done(struct network *n);

/* inputs, targets: host memory, the caller's again on return. */
void network_forward(struct network *n, const struct weights *w, const uint32_t *inputs,
                     const uint32_t *targets, const struct network_pass *pass);
/* Adds scale * gradient of the mean loss to d. After a forward pass with training = true. */
void network_backward(struct network *n, const struct weights *w, struct weights *d, float scale);
/* The mean loss of the batch of the last forward pass. Waits, and tells what failed in between. */
int network_loss(struct network *n, float *ret, struct cairn_error *reterr);

#endif
