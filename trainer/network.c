/* SPDX-License-Identifier: Apache-2.0 */
#include "trainer/network.h"
#include <stdlib.h>

#define RUNNING_MOMENTUM 0.1f

/* Hands out parts of the block; with no block it only counts. */
struct carve {
        char *block;
        size_t bytes, element_bytes; /* of activations */
};

static void *take_bytes(struct carve *c, size_t bytes) {
        void *p = c->block ? c->block + c->bytes : NULL;

        c->bytes += (bytes + 63) / 64 * 64;
        return p;
}

static void *take(struct carve *c, size_t count) {
        return take_bytes(c, count * c->element_bytes);
}

static float *take_floats(struct carve *c, size_t count) {
        return take_bytes(c, count * sizeof(float));
}

static struct attention attention_of(const struct network *n) {
        return (struct attention){.batch = n->batch,
                                  .time = n->time,
                                  .channels = n->model->width,
                                  .heads = n->model->heads};
}

static void lay_out_layer(struct layer_activations *l, const struct attention *a, size_t rows,
                          struct carve *c) {
        size_t wide = rows * a->channels;

        *l = (struct layer_activations){
                .ln1 = take(c, wide),
                .ln1_mean = take_floats(c, rows),
                .ln1_rstd = take_floats(c, rows),
                .qkv = take(c, 3 * wide),
                .att = take(c, a->batch * a->heads * a->time * a->time),
                .mixed = take(c, wide),
                .middle = take(c, wide),
                .ln2 = take(c, wide),
                .ln2_mean = take_floats(c, rows),
                .ln2_rstd = take_floats(c, rows),
                .up = take(c, 4 * wide),
                .gelu = take(c, 4 * wide),
                .residual = take(c, wide),
                .mask1 = take_bytes(c, wide),
                .mask2 = take_bytes(c, wide),
        };
}

static void lay_out(struct network *n, struct carve *c) {
        size_t rows = n->batch * n->time, wide = rows * n->model->width;
        struct attention a = attention_of(n);

        for (size_t l = 0; l < n->model->layers; l++)
                lay_out_layer(&n->layer[l], &a, rows, c);
        n->inputs = take_bytes(c, rows * sizeof(*n->inputs));
        n->targets = take_bytes(c, rows * sizeof(*n->targets));
        n->embedded = take(c, wide);
        n->ln = take(c, wide);
        n->ln_mean = take_floats(c, rows);
        n->ln_rstd = take_floats(c, rows);
        n->logits = take(c, rows * n->model->vocabulary);
        n->losses = take_floats(c, rows);
        n->mask = take_bytes(c, wide);
        n->branch = take(c, wide);
        n->dresidual = take(c, wide);
        n->dbranch = take(c, wide);
        n->dwide = take(c, 4 * wide);
        n->scratch = take(c, n->compute->ops->attention_scratch(&a));
}

int network_init(struct network *n, struct compute *compute, const struct model *m, size_t batch,
                 size_t time, double dropout, struct cairn_error *reterr) {
        struct carve c = {.element_bytes = compute->type == CAIRN_F32 ? 4 : 2};
        int r = CAIRN_ERR_NOMEM;

        *n = (struct network){.compute = compute,
                              .model = m,
                              .batch = batch,
                              .time = time,
                              .dropout = (float) dropout};
        n->layer = calloc(m->layers, sizeof(*n->layer));
        if (n->layer) {
                lay_out(n, &c);
                r = compute->ops->allocate(compute, c.bytes, &n->block, reterr);
        }
        if (r < 0) {
                network_done(n);
                return r != CAIRN_ERR_NOMEM
                               ? r
                               : error_set(reterr, r, "make model", "activations",
                                           "%zu MiB of memory are not free; give a smaller "
                                           "--batch and more --accumulate",
                                           c.bytes >> 20);
        }
        c.block = n->block;
        c.bytes = 0;
        lay_out(n, &c);
        return 0;
}

void network_done(struct network *n) {
        if (!n)
                return;
        free(n->layer);
        if (n->block)
                n->compute->ops->release(n->compute, n->block);
        n->layer = NULL;
        n->block = NULL;
}

static void drop(const struct network *n, void *x, uint8_t *mask, uint32_t site,
                 const struct network_pass *pass) {
        struct dropout_site where = {.seed = pass->seed,
                                     .step = pass->step,
                                     .sample = pass->sample,
                                     .layer = site,
                                     .probability = n->dropout};

        if (pass->training && n->dropout > 0.0f)
                n->compute->ops->dropout_forward(n->compute, x, mask, x, n->batch,
                                                 n->time * n->model->width, &where);
}

static void undrop(const struct network *n, void *out, const void *dout, const uint8_t *mask) {
        size_t count = n->batch * n->time * n->model->width;
        struct compute *c = n->compute;

        if (n->dropout > 0.0f)
                c->ops->dropout_backward(c, out, dout, mask, count, n->dropout);
        else
                c->ops->copy(c, out, dout, count * (c->type == CAIRN_F32 ? 4 : 2));
}

static void layer_forward(struct network *n, const struct layer_weights *w,
                          struct layer_activations *a, const void *in, uint32_t site,
                          const struct network_pass *pass) {
        size_t rows = n->batch * n->time, C = n->model->width;
        struct attention shape = attention_of(n);
        struct compute *c = n->compute;
        const struct compute_ops *ops = c->ops;

        ops->layernorm_forward(c, a->ln1, a->ln1_mean, a->ln1_rstd, in, w->ln1_weight, w->ln1_bias,
                               rows, C);
        ops->matmul_forward(c, a->qkv, a->ln1, w->qkv_weight, w->qkv_bias, rows, C, 3 * C);
        ops->attention_forward(c, a->mixed, a->att, a->qkv, n->scratch, &shape);
        ops->matmul_forward(c, n->branch, a->mixed, w->project_weight, w->project_bias, rows, C, C);
        drop(n, n->branch, a->mask1, site, pass);
        ops->rows_add(c, a->middle, in, n->branch, rows * C);

        ops->layernorm_forward(c, a->ln2, a->ln2_mean, a->ln2_rstd, a->middle, w->ln2_weight,
                               w->ln2_bias, rows, C);
        ops->matmul_forward(c, a->up, a->ln2, w->up_weight, w->up_bias, rows, C, 4 * C);
        ops->gelu_forward(c, a->gelu, a->up, rows * 4 * C);
        ops->matmul_forward(c, n->branch, a->gelu, w->down_weight, w->down_bias, rows, 4 * C, C);
        drop(n, n->branch, a->mask2, site + 1, pass);
        ops->rows_add(c, a->residual, a->middle, n->branch, rows * C);
}

void network_forward(struct network *n, const struct weights *w, const uint32_t *inputs,
                     const uint32_t *targets, const struct network_pass *pass) {
        size_t rows = n->batch * n->time, C = n->model->width, V = n->model->vocabulary;
        const void *x = n->embedded;
        struct compute *c = n->compute;
        const struct compute_ops *ops = c->ops;

        ops->upload(c, n->inputs, inputs, rows * sizeof(*inputs));
        ops->upload(c, n->targets, targets, rows * sizeof(*targets));
        ops->embedding_forward(c, n->embedded, n->inputs, w->outer.wte, w->outer.wpe, n->batch,
                               n->time, C);
        drop(n, n->embedded, n->mask, 0, pass);
        if (n->running && pass->training)
                ops->rows_center_running(c, n->running, n->embedded, RUNNING_MOMENTUM, rows, C);
        else if (n->running)
                ops->rows_subtract(c, n->embedded, n->running, rows, C);
        for (size_t l = 0; l < n->model->layers; l++) {
                layer_forward(n, &w->layer[l], &n->layer[l], x, (uint32_t) (1 + 2 * l), pass);
                x = n->layer[l].residual;
        }
        ops->layernorm_forward(c, n->ln, n->ln_mean, n->ln_rstd, x, w->outer.ln_weight,
                               w->outer.ln_bias, rows, C);
        ops->matmul_forward(c, n->logits, n->ln, w->outer.wte, NULL, rows, C, V);
        ops->cross_entropy_forward(c, n->losses, n->logits, n->targets, rows, V);
}

int network_loss(struct network *n, float *ret, struct cairn_error *reterr) {
        size_t rows = n->batch * n->time;
        double sum;

        TRY(n->compute->ops->sum(n->compute, &sum, n->losses, rows, reterr));
        *ret = (float) (sum / (double) rows);
        return 0;
}

/* n->dresidual: the gradient of the block's output on entry, of its input (in) on return. */
static void layer_backward(struct network *n, const struct layer_weights *w,
                           struct layer_weights *d, const struct layer_activations *a,
                           const void *in) {
        size_t rows = n->batch * n->time, C = n->model->width;
        struct attention shape = attention_of(n);
        struct compute *c = n->compute;
        const struct compute_ops *ops = c->ops;

        undrop(n, n->dbranch, n->dresidual, a->mask2);
        ops->matmul_backward(c, n->dwide, d->down_weight, d->down_bias, n->dbranch, a->gelu,
                             w->down_weight, rows, 4 * C, C);
        ops->gelu_backward(c, n->dwide, n->dwide, a->up, rows * 4 * C);
        ops->matmul_backward(c, n->dbranch, d->up_weight, d->up_bias, n->dwide, a->ln2,
                             w->up_weight, rows, C, 4 * C);
        ops->layernorm_backward(c, n->dbranch, d->ln2_weight, d->ln2_bias, n->dbranch, a->middle,
                                w->ln2_weight, a->ln2_mean, a->ln2_rstd, rows, C);
        ops->rows_add(c, n->dresidual, n->dresidual, n->dbranch, rows * C);

        undrop(n, n->dbranch, n->dresidual, a->mask1);
        ops->matmul_backward(c, n->branch, d->project_weight, d->project_bias, n->dbranch, a->mixed,
                             w->project_weight, rows, C, C);
        ops->attention_backward(c, n->dwide, n->branch, a->qkv, a->att, n->scratch, &shape);
        ops->matmul_backward(c, n->dbranch, d->qkv_weight, d->qkv_bias, n->dwide, a->ln1,
                             w->qkv_weight, rows, C, 3 * C);
        ops->layernorm_backward(c, n->dbranch, d->ln1_weight, d->ln1_bias, n->dbranch, in,
                                w->ln1_weight, a->ln1_mean, a->ln1_rstd, rows, C);
        ops->rows_add(c, n->dresidual, n->dresidual, n->dbranch, rows * C);
}

void network_backward(struct network *n, const struct weights *w, struct weights *d, float scale) {
        size_t rows = n->batch * n->time, C = n->model->width, V = n->model->vocabulary;
        size_t L = n->model->layers;
        struct compute *c = n->compute;
        const struct compute_ops *ops = c->ops;

        ops->cross_entropy_backward(c, n->logits, n->targets, rows, V, scale / (float) rows);
        ops->matmul_backward(c, n->dresidual, d->outer.wte, NULL, n->logits, n->ln, w->outer.wte,
                             rows, C, V);
        ops->layernorm_backward(c, n->dresidual, d->outer.ln_weight, d->outer.ln_bias, n->dresidual,
                                n->layer[L - 1].residual, w->outer.ln_weight, n->ln_mean,
                                n->ln_rstd, rows, C);
        for (size_t l = L; l-- > 0;)
                layer_backward(n, &w->layer[l], &d->layer[l], &n->layer[l],
                               l > 0 ? n->layer[l - 1].residual : n->embedded);
        undrop(n, n->dbranch, n->dresidual, n->mask);
        ops->embedding_backward(c, d->outer.wte, d->outer.wpe, n->dbranch, n->inputs, n->batch,
                                n->time, C, V);
}
