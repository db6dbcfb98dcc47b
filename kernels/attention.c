/* SPDX-License-Identifier: Apache-2.0
 *
 * Every inner loop runs over independent elements (keys or channels), none is a reduction: sums
 * grow in the order of the outer loop, and the loops vectorise without reordering anything. For
 * that the keys (and the values, backward) of a head are transposed into scratch first.
 */
#include "kernels/attention.h"
#include "kernels/clones.h"
#include "kernels/exp.h"
#include "kernels/lanes.h"
#include <math.h>
#include <string.h>

size_t attention_scratch(const struct attention *a) {
        return a->time * (a->channels / a->heads) + a->time;
}

/* target (size, time) from the columns of one head, source (time, stride) */
static inline void transpose(float *restrict target, const float *restrict source, size_t time,
                             size_t size, size_t stride) {
        for (size_t t = 0; t < time; t++)
                for (size_t i = 0; i < size; i++)
                        target[i * time + t] = source[t * stride + i];
}

/* target[t] = sum over i of row[i] * columns[i][t], for t < count */
static inline void weighted_columns(float *restrict target, const float *restrict row,
                                    const float *restrict columns, size_t size, size_t time,
                                    size_t count, float scale) {
        memset(target, 0, count * sizeof(*target));
        for (size_t i = 0; i < size; i++) {
                float x = row[i] * scale;
                const float *column = columns + i * time;
                for (size_t t = 0; t < count; t++)
                        target[t] += x * column[t];
        }
}

static inline void softmax_row(float *restrict p, size_t count) {
        float max = p[0];

        for (size_t t = 1; t < count; t++)
                max = p[t] > max ? p[t] : max;
        for (size_t t = 0; t < count; t++)
                p[t] = exp_f32(p[t] - max);
        float inverse = 1.0f / lanes_sum_f32(p, count);
        for (size_t t = 0; t < count; t++)
                p[t] *= inverse;
}

CLONES void attention_forward(float *restrict out, float *restrict att, const float *restrict qkv,
                              float *restrict scratch, const struct attention *a) {
        size_t T = a->time, C = a->channels, size = C / a->heads, stride = 3 * C;
        float scale = 1.0f / sqrtf((float) size);

        for (size_t b = 0; b < a->batch; b++)
                for (size_t h = 0; h < a->heads; h++) {
                        const float *q = qkv + b * T * stride + h * size;
                        const float *k = q + C, *v = q + 2 * C;
                        float *p = att + (b * a->heads + h) * T * T;
                        transpose(scratch, k, T, size, stride);
                        for (size_t t = 0; t < T; t++, p += T) {
                                float *y = out + (b * T + t) * C + h * size;
                                weighted_columns(p, q + t * stride, scratch, size, T, t + 1, scale);
                                softmax_row(p, t + 1);
                                memset(y, 0, size * sizeof(*y));
                                for (size_t t2 = 0; t2 <= t; t2++)
                                        for (size_t i = 0; i < size; i++)
                                                y[i] += p[t2] * v[t2 * stride + i];
                        }
                }
}

/* One query: its row of probabilities p, the gradient dy of its output. */
static inline void query_backward(float *restrict dq, float *restrict dk, float *restrict dv,
                                  const float *restrict dy, const float *restrict q,
                                  const float *restrict k, const float *restrict p,
                                  float *restrict dp, size_t count, size_t size, size_t stride,
                                  float scale) {
        float mean = lanes_dot_f32(p, dp, count);

        for (size_t t2 = 0; t2 < count; t2++)
                dp[t2] = p[t2] * (dp[t2] - mean) * scale;
        for (size_t t2 = 0; t2 < count; t2++) {
                const float *key = k + t2 * stride;
                float *dkey = dk + t2 * stride, *dvalue = dv + t2 * stride;
                float weight = p[t2], slope = dp[t2];
                for (size_t i = 0; i < size; i++) {
                        dvalue[i] += weight * dy[i];
                        dq[i] += slope * key[i];
                        dkey[i] += slope * q[i];
                }
        }
}

CLONES void attention_backward(float *restrict dqkv, const float *restrict dout,
                               const float *restrict qkv, const float *restrict att,
                               float *restrict scratch, const struct attention *a) {
        size_t T = a->time, C = a->channels, size = C / a->heads, stride = 3 * C;
        float scale = 1.0f / sqrtf((float) size);
        float *dp = scratch + T * size;

        memset(dqkv, 0, a->batch * T * stride * sizeof(*dqkv));
        for (size_t b = 0; b < a->batch; b++)
                for (size_t h = 0; h < a->heads; h++) {
                        size_t head = b * T * stride + h * size;
                        const float *q = qkv + head, *p = att + (b * a->heads + h) * T * T;
                        float *dq = dqkv + head;
                        transpose(scratch, q + 2 * C, T, size, stride);
                        for (size_t t = 0; t < T; t++, p += T) {
                                const float *dy = dout + (b * T + t) * C + h * size;
                                weighted_columns(dp, dy, scratch, size, T, t + 1, 1.0f);
                                query_backward(dq + t * stride, dq + C, dq + 2 * C, dy,
                                               q + t * stride, q + C, p, dp, t + 1, size, stride,
                                               scale);
                        }
                }
}
