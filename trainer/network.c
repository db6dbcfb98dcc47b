/* SPDX-License-Identifier: Apache-2.0 */
#include "trainer/network.h"
#include "kernels/attention.h"
#include "kernels/cross_entropy.h"
#include "kernels/dropout.h"
#include "kernels/embedding.h"
#include "kernels/gelu.h"
#include "kernels/layernorm.h"
#include "kernels/rows.h"
#include "trainer/matmul.h"

#define RUNNING_MOMENTUM 0.1f

/* Hands out parts of the blocks; with no block it only counts. */
struct carve {
        float *floats;
        uint8_t *bytes;
        size_t float_count, byte_count;
};

static float *take(struct carve *c, size_t count) {
        float *p = c->floats ? c->floats + c->float_count : NULL;

        c->float_count += (count + 15) / 16 * 16;
        return p;
}

static uint8_t *take_mask(struct carve *c, size_t count) {
        uint8_t *p = c->bytes ? c->bytes + c->byte_count : NULL;

        c->byte_count += (count + 63) / 64 * 64;
        return p;
}

static struct attention attention_of(const struct network *n) {
        return (struct attention){.batch = n->batch,
                                  .time = n->time,
                                  .channels = n->model->width,
                                  .heads = n->model->heads};
}

static void lay_out(struct network *n, struct carve *c) {
        size_t rows = n->batch * n->time, wide = rows * n->model->width;
        struct attention a = attention_of(n);

        for (size_t l = 0; l < n->model->layers; l++)
                n->layer[l] = (struct layer_activations){
                        .ln1 = take(c, wide),
                        .ln1_mean = take(c, rows),
                        .ln1_rstd = take(c, rows),
                        .qkv = take(c, 3 * wide),
                        .att = take(c, a.batch * a.heads * a.time * a.time),
                        .mixed = take(c, wide),
                        .middle = take(c, wide),
                        .ln2 = take(c, wide),
                        .ln2_mean = take(c, rows),
                        .ln2_rstd = take(c, rows),
                        .up = take(c, 4 * wide),
                        .gelu = take(c, 4 * wide),
                        .residual = take(c, wide),
                        .mask1 = take_mask(c, wide),
                        .mask2 = take_mask(c, wide),
                };
        n->embedded = take(c, wide);
        n->ln = take(c, wide);
        n->ln_mean = take(c, rows);
        n->ln_rstd = take(c, rows);
        n->logits = take(c, rows * n->model->vocabulary);
        n->losses = take(c, rows);
        n->mask = take_mask(c, wide);
        n->branch = take(c, wide);
        n->dresidual = take(c, wide);
        n->dbranch = take(c, wide);
        n->dwide = take(c, 4 * wide);
        n->scratch = take(c, attention_scratch(&a));
}

int network_init(struct network *n, const struct model *m, size_t batch, size_t time,
                 double dropout, struct cairn_error *reterr) {
        struct carve c = {0};

        *n = (struct network){.model = m, .batch = batch, .time = time, .dropout = (float) dropout};
        n->layer = calloc(m->layers, sizeof(*n->layer));
        if (n->layer) {
                lay_out(n, &c);
                size_t bytes = c.float_count * sizeof(float);
                n->floats = aligned_alloc(256, (bytes + 255) / 256 * 256);
                n->bytes = malloc(c.byte_count);
        }
        if (!n->layer || !n->floats || !n->bytes) {
                network_done(n);
                return error_set(reterr, CAIRN_ERR_NOMEM, "make model", "activations",
                                 "%zu MiB of memory are not free; give a smaller --batch and more "
                                 "--accumulate",
                                 (c.float_count * sizeof(float) + c.byte_count) >> 20);
        }
        memset(n->floats, 0, c.float_count * sizeof(float));
        c = (struct carve){.floats = n->floats, .bytes = n->bytes};
        lay_out(n, &c);
        return 0;
}

void network_done(struct network *n) {
        if (!n)
                return;
        free(n->layer);
        free(n->floats);
        free(n->bytes);
        n->layer = NULL;
        n->floats = NULL;
        n->bytes = NULL;
}

static void drop(const struct network *n, float *x, uint8_t *mask, uint32_t site,
                 const struct network_pass *pass) {
        struct dropout_site where = {.seed = pass->seed,
                                     .step = pass->step,
                                     .sample = pass->sample,
                                     .layer = site,
                                     .probability = n->dropout};

        if (pass->training && n->dropout > 0.0f)
                dropout_forward(x, mask, x, n->batch, n->time * n->model->width, &where);
}

static void undrop(const struct network *n, float *out, const float *dout, const uint8_t *mask) {
        size_t count = n->batch * n->time * n->model->width;

        if (n->dropout > 0.0f)
                dropout_backward(out, dout, mask, count, n->dropout);
        else
                memcpy(out, dout, count * sizeof(*out));
}

static void layer_forward(struct network *n, const struct layer_weights *w,
                          struct layer_activations *a, const float *in, uint32_t site,
                          const struct network_pass *pass) {
        size_t rows = n->batch * n->time, C = n->model->width;
        struct attention shape = attention_of(n);

        layernorm_forward(a->ln1, a->ln1_mean, a->ln1_rstd, in, w->ln1_weight, w->ln1_bias, rows,
                          C);
        matmul_forward(a->qkv, a->ln1, w->qkv_weight, w->qkv_bias, rows, C, 3 * C);
        attention_forward(a->mixed, a->att, a->qkv, n->scratch, &shape);
        matmul_forward(n->branch, a->mixed, w->project_weight, w->project_bias, rows, C, C);
        drop(n, n->branch, a->mask1, site, pass);
        rows_add(a->middle, in, n->branch, rows * C);

        layernorm_forward(a->ln2, a->ln2_mean, a->ln2_rstd, a->middle, w->ln2_weight, w->ln2_bias,
                          rows, C);
        matmul_forward(a->up, a->ln2, w->up_weight, w->up_bias, rows, C, 4 * C);
        gelu_forward(a->gelu, a->up, rows * 4 * C);
        matmul_forward(n->branch, a->gelu, w->down_weight, w->down_bias, rows, 4 * C, C);
        drop(n, n->branch, a->mask2, site + 1, pass);
        rows_add(a->residual, a->middle, n->branch, rows * C);
}

float network_forward(struct network *n, const struct weights *w, const uint32_t *inputs,
                      const uint32_t *targets, const struct network_pass *pass) {
        size_t rows = n->batch * n->time, C = n->model->width, V = n->model->vocabulary;
        const float *x = n->embedded;
        double sum = 0.0;

        embedding_forward(n->embedded, inputs, w->outer.wte, w->outer.wpe, n->batch, n->time, C);
        drop(n, n->embedded, n->mask, 0, pass);
        if (n->running && pass->training)
                rows_center_running(n->running, n->embedded, RUNNING_MOMENTUM, rows, C);
        else if (n->running)
                rows_subtract(n->embedded, n->running, rows, C);
        for (size_t l = 0; l < n->model->layers; l++) {
                layer_forward(n, &w->layer[l], &n->layer[l], x, (uint32_t) (1 + 2 * l), pass);
                x = n->layer[l].residual;
        }
        layernorm_forward(n->ln, n->ln_mean, n->ln_rstd, x, w->outer.ln_weight, w->outer.ln_bias,
                          rows, C);
        matmul_forward(n->logits, n->ln, w->outer.wte, NULL, rows, C, V);
        cross_entropy_forward(n->losses, n->logits, targets, rows, V);
        for (size_t row = 0; row < rows; row++)
                sum += (double) n->losses[row];
        return (float) (sum / (double) rows);
}

/* n->dresidual: the gradient of the block's output on entry, of its input (in) on return. */
static void layer_backward(struct network *n, const struct layer_weights *w,
                           struct layer_weights *d, const struct layer_activations *a,
                           const float *in) {
        size_t rows = n->batch * n->time, C = n->model->width;
        struct attention shape = attention_of(n);

        undrop(n, n->dbranch, n->dresidual, a->mask2);
        matmul_backward(n->dwide, d->down_weight, d->down_bias, n->dbranch, a->gelu, w->down_weight,
                        rows, 4 * C, C);
        gelu_backward(n->dwide, n->dwide, a->up, rows * 4 * C);
        matmul_backward(n->dbranch, d->up_weight, d->up_bias, n->dwide, a->ln2, w->up_weight, rows,
                        C, 4 * C);
        layernorm_backward(n->dbranch, d->ln2_weight, d->ln2_bias, n->dbranch, a->middle,
                           w->ln2_weight, a->ln2_mean, a->ln2_rstd, rows, C);
        rows_add(n->dresidual, n->dresidual, n->dbranch, rows * C);

        undrop(n, n->dbranch, n->dresidual, a->mask1);
        matmul_backward(n->branch, d->project_weight, d->project_bias, n->dbranch, a->mixed,
                        w->project_weight, rows, C, C);
        attention_backward(n->dwide, n->branch, a->qkv, a->att, n->scratch, &shape);
        matmul_backward(n->dbranch, d->qkv_weight, d->qkv_bias, n->dwide, a->ln1, w->qkv_weight,
                        rows, C, 3 * C);
        layernorm_backward(n->dbranch, d->ln1_weight, d->ln1_bias, n->dbranch, in, w->ln1_weight,
                           a->ln1_mean, a->ln1_rstd, rows, C);
        rows_add(n->dresidual, n->dresidual, n->dbranch, rows * C);
}

void network_backward(struct network *n, const struct weights *w, struct weights *d,
                      const uint32_t *inputs, const uint32_t *targets, float scale) {
        size_t rows = n->batch * n->time, C = n->model->width, V = n->model->vocabulary;
        size_t L = n->model->layers;

        cross_entropy_backward(n->logits, targets, rows, V, scale / (float) rows);
        matmul_backward(n->dresidual, d->outer.wte, NULL, n->logits, n->ln, w->outer.wte, rows, C,
                        V);
        layernorm_backward(n->dresidual, d->outer.ln_weight, d->outer.ln_bias, n->dresidual,
                           n->layer[L - 1].residual, w->outer.ln_weight, n->ln_mean, n->ln_rstd,
                           rows, C);
        for (size_t l = L; l-- > 0;)
                layer_backward(n, &w->layer[l], &d->layer[l], &n->layer[l],
                               l > 0 ? n->layer[l - 1].residual : n->embedded);
        undrop(n, n->dbranch, n->dresidual, n->mask);
        embedding_backward(d->outer.wte, d->outer.wpe, n->dbranch, inputs, n->batch, n->time, C);
}
