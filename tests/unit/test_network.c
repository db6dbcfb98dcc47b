/* SPDX-License-Identifier: Apache-2.0
 *
 * The whole network against a plain one in double: loss, and every gradient by finite differences.
 * The reference takes the dropout masks that the network drew.
 */
#include "tests/unit/gradient.h"
#include "trainer/network.h"

enum { L = 2, NH = 2, C = 6, HS = C / NH, P = 5, T = 4, V = 7, B = 2, ROWS = B * T };
#define DROP 0.25

struct case_ {
        const struct model *model;
        const struct network *network;
        const uint32_t *inputs, *targets;
        bool dropped;
};

static void linear(double *out, const double *in, const double *w, const double *b, size_t k,
                   size_t n) {
        for (size_t r = 0; r < ROWS; r++)
                for (size_t o = 0; o < n; o++) {
                        out[r * n + o] = b ? b[o] : 0;
                        for (size_t i = 0; i < k; i++)
                                out[r * n + o] += in[r * k + i] * w[o * k + i];
                }
}

static void normalise(double *out, const double *in, const double *w, const double *b) {
        for (size_t r = 0; r < ROWS; r++) {
                double mean = 0, variance = 0;
                for (size_t c = 0; c < C; c++)
                        mean += in[r * C + c] / C;
                for (size_t c = 0; c < C; c++)
                        variance += (in[r * C + c] - mean) * (in[r * C + c] - mean) / C;
                for (size_t c = 0; c < C; c++)
                        out[r * C + c] =
                                (in[r * C + c] - mean) / sqrt(variance + 1e-5) * w[c] + b[c];
        }
}

static void attend(double *out, const double *qkv) {
        for (size_t r = 0; r < ROWS; r++)
                for (size_t h = 0; h < NH; h++) {
                        size_t first = r / T * T;
                        double p[T], sum = 0;
                        for (size_t r2 = first; r2 <= r; r2++) {
                                double dot = 0;
                                for (size_t i = 0; i < HS; i++)
                                        dot += qkv[r * 3 * C + h * HS + i] *
                                               qkv[r2 * 3 * C + C + h * HS + i];
                                p[r2 - first] = exp(dot / sqrt(HS));
                                sum += p[r2 - first];
                        }
                        for (size_t i = 0; i < HS; i++) {
                                double y = 0;
                                for (size_t r2 = first; r2 <= r; r2++)
                                        y += p[r2 - first] / sum *
                                             qkv[r2 * 3 * C + 2 * C + h * HS + i];
                                out[r * C + h * HS + i] = y;
                        }
                }
}

static void add_dropped(double *x, const double *branch, const uint8_t *mask, bool dropped) {
        for (size_t i = 0; i < ROWS * C; i++)
                x[i] += !dropped ? branch[i] : mask[i] ? branch[i] / (1 - DROP) : 0;
}

/* The tensor number of a layer's weight, in the order of struct layer_weights. */
static const double *at(const struct case_ *k, const double *block, size_t tensor) {
        return block + k->model->tensor[tensor].offset;
}

static double objective(const double *block, void *argument) {
        const struct case_ *k = argument;
        double x[ROWS * C] = {0}, e[ROWS * C], n[ROWS * C], wide[ROWS * 4 * C], branch[ROWS * C];
        double logits[ROWS * V], loss = 0;

        for (size_t i = 0; i < ROWS * C; i++)
                e[i] = at(k, block, 0)[k->inputs[i / C] * C + i % C] +
                       at(k, block, 1)[i / C % T * C + i % C];
        add_dropped(x, e, k->network->mask, k->dropped);
        for (size_t l = 0; l < L; l++) {
                const struct layer_activations *a = &k->network->layer[l];
                size_t w = OUTER_TENSORS + l * LAYER_TENSORS;
                normalise(n, x, at(k, block, w), at(k, block, w + 1));
                linear(wide, n, at(k, block, w + 2), at(k, block, w + 3), C, 3 * C);
                attend(n, wide);
                linear(branch, n, at(k, block, w + 4), at(k, block, w + 5), C, C);
                add_dropped(x, branch, a->mask1, k->dropped);
                normalise(n, x, at(k, block, w + 6), at(k, block, w + 7));
                linear(wide, n, at(k, block, w + 8), at(k, block, w + 9), C, 4 * C);
                for (size_t i = 0; i < ROWS * 4 * C; i++)
                        wide[i] *=
                                0.5 *
                                (1 + tanh(sqrt(2 / M_PI) * (wide[i] + 0.044715 * pow(wide[i], 3))));
                linear(branch, wide, at(k, block, w + 10), at(k, block, w + 11), 4 * C, C);
                add_dropped(x, branch, a->mask2, k->dropped);
        }
        normalise(n, x, at(k, block, 2), at(k, block, 3));
        linear(logits, n, at(k, block, 0), NULL, C, V);
        for (size_t r = 0; r < ROWS; r++) {
                double sum = 0;
                for (size_t v = 0; v < V; v++)
                        sum += exp(logits[r * V + v]);
                loss += (log(sum) - logits[r * V + k->targets[r]]) / ROWS;
        }
        return loss;
}

static void check(bool dropped) {
        static const uint32_t inputs[ROWS] = {0, 6, 2, 2, 5, 1, 0, 3};
        static const uint32_t targets[ROWS] = {6, 2, 2, 1, 1, 0, 3, 4};
        struct layer_weights layers[2 * L];
        struct weights w, d;
        struct network n;
        struct model m;
        struct compute *c;
        float loss;
        struct network_pass pass = {.training = true, .seed = 3, .step = 5, .sample = 2};

        assert_int_equal(model_init(&m, L, NH, C, P, V, NULL), 0);
        assert_int_equal(compute_open("cpu", &(struct compute_options){.threads = 1}, &c, NULL), 0);
        assert_int_equal(network_init(&n, c, &m, B, T, dropped ? DROP : 0, NULL), 0);
        float *block = calloc(m.block_count, sizeof(float));
        float *gradient = calloc(m.block_count, sizeof(float));
        double *wide = calloc(m.block_count, sizeof(double));
        /* Larger than a start, so that every path matters. */
        for (size_t i = 0; i < m.tensor_count; i++) {
                float noise[4 * C * C + P * C + V * C];
                gradient_fill(noise, m.tensor[i].count, (uint32_t) i);
                model_initialise(&m, i, block + m.tensor[i].offset, 1);
                for (size_t j = 0; j < m.tensor[i].count; j++)
                        block[m.tensor[i].offset + j] += 0.5f * noise[j];
        }
        gradient_widen(wide, block, m.block_count);
        model_view(&m, &w, layers, block, sizeof(float));
        model_view(&m, &d, layers + L, gradient, sizeof(float));

        struct case_ k = {&m, &n, inputs, targets, dropped};
        network_forward(&n, &w, inputs, targets, &pass);
        assert_int_equal(network_loss(&n, &loss, NULL), 0);
        gradient_close((double) loss, objective(wide, &k), 1e-6, "loss", 0);
        network_backward(&n, &w, &d, 1.0f);
        gradient_check(objective, wide, gradient, m.block_count, &k, "gradient");

        free(block);
        free(gradient);
        free(wide);
        network_done(&n);
        model_done(&m);
        compute_close(c);
}

static void test_against_double(void **state) {
        check(false);
        check(true);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_against_double),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
