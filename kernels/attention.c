/* SPDX-License-Identifier: Apache-2.0
 *
 * Every sum grows in the order of one outer loop, the lanes of a vector are independent elements
 * (keys or channels): nothing is reordered by vectors. For the dot products keys (and values,
 * backward) of a head are transposed into scratch, each row padded to whole tiles.
 */
#include "kernels/attention.h"
#include "kernels/clones.h"
#include "kernels/exp.h"
#include "kernels/lanes.h"
#include <math.h>
#include <string.h>

/* A tile of independent sums, kept in a register. */
typedef float tile __attribute__((vector_size(32)));
enum { TILE = sizeof(tile) / sizeof(float) };

static inline size_t padded(size_t count) {
        return (count + 2 * TILE - 1) / (2 * TILE) * (2 * TILE);
}

size_t attention_scratch(const struct attention *a) {
        size_t size = a->channels / a->heads;

        return size * padded(a->time) + padded(a->time) + a->time * padded(a->time);
}

/* target (size, padded time) from the columns of one head, source (time, stride) */
static inline void transpose(float *restrict target, const float *restrict source, size_t time,
                             size_t size, size_t stride) {
        for (size_t i = 0; i < size; i++) {
                float *row = target + i * padded(time);
                for (size_t t = 0; t < time; t++)
                        row[t] = source[t * stride + i];
                memset(row + time, 0, (padded(time) - time) * sizeof(*row));
        }
}

/* target[t] = sum over i of row[i] * columns[i][t], for t < count and up to the end of a tile */
static inline void weighted_columns(float *restrict target, const float *restrict row,
                                    const float *restrict columns, size_t size, size_t pitch,
                                    size_t count, float scale) {
        for (size_t t = 0; t < count; t += 2 * TILE) {
                tile sum0 = {0}, sum1 = {0}, x0, x1;
                for (size_t i = 0; i < size; i++) {
                        float weight = row[i] * scale;
                        memcpy(&x0, columns + i * pitch + t, sizeof(x0));
                        memcpy(&x1, columns + i * pitch + t + TILE, sizeof(x1));
                        sum0 += x0 * weight;
                        sum1 += x1 * weight;
                }
                memcpy(target + t, &sum0, sizeof(sum0));
                memcpy(target + t + TILE, &sum1, sizeof(sum1));
        }
}

/* target[i] = sum over n of weights[n * pitch] * rows[n][i], for i < size */
static inline void weighted_rows(float *restrict target, const float *restrict weights,
                                 size_t pitch, const float *restrict rows, size_t stride,
                                 size_t count, size_t size) {
        size_t i = 0;

        for (; i + TILE <= size; i += TILE) {
                tile sum = {0}, x;
                for (size_t n = 0; n < count; n++) {
                        memcpy(&x, rows + n * stride + i, sizeof(x));
                        sum += x * weights[n * pitch];
                }
                memcpy(target + i, &sum, sizeof(sum));
        }
        for (; i < size; i++) {
                float sum = 0.0f;
                for (size_t n = 0; n < count; n++)
                        sum += rows[n * stride + i] * weights[n * pitch];
                target[i] = sum;
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
        float *row = scratch + size * padded(T);

        for (size_t b = 0; b < a->batch; b++)
                for (size_t h = 0; h < a->heads; h++) {
                        const float *q = qkv + b * T * stride + h * size;
                        float *p = att + (b * a->heads + h) * T * T;
                        transpose(scratch, q + C, T, size, stride);
                        for (size_t t = 0; t < T; t++, p += T) {
                                weighted_columns(row, q + t * stride, scratch, size, padded(T),
                                                 t + 1, scale);
                                softmax_row(row, t + 1);
                                memcpy(p, row, (t + 1) * sizeof(*p));
                                weighted_rows(out + (b * T + t) * C + h * size, row, 1, q + 2 * C,
                                              stride, t + 1, size);
                        }
                }
}

CLONES void attention_backward(float *restrict dqkv, const float *restrict dout,
                               const float *restrict qkv, const float *restrict att,
                               float *restrict scratch, const struct attention *a) {
        size_t T = a->time, C = a->channels, size = C / a->heads, stride = 3 * C;
        size_t pitch = padded(T);
        float scale = 1.0f / sqrtf((float) size);
        float *slopes = scratch + size * pitch; /* (T, pitch): gradients of the scores */

        for (size_t b = 0; b < a->batch; b++)
                for (size_t h = 0; h < a->heads; h++) {
                        size_t head = b * T * stride + h * size;
                        const float *q = qkv + head, *p = att + (b * a->heads + h) * T * T;
                        const float *dy = dout + b * T * C + h * size;
                        float *dq = dqkv + head, *dk = dq + C, *dv = dk + C;
                        transpose(scratch, q + 2 * C, T, size, stride);
                        for (size_t t = 0; t < T; t++) {
                                float *slope = slopes + t * pitch;
                                weighted_columns(slope, dy + t * C, scratch, size, pitch, t + 1,
                                                 1.0f);
                                float mean = lanes_dot_f32(p + t * T, slope, t + 1);
                                for (size_t t2 = 0; t2 <= t; t2++)
                                        slope[t2] = p[t * T + t2] * (slope[t2] - mean) * scale;
                                weighted_rows(dq + t * stride, slope, 1, q + C, stride, t + 1,
                                              size);
                        }
                        for (size_t t = 0; t < T; t++) { /* a key is seen by t and later ones */
                                weighted_rows(dk + t * stride, slopes + t * pitch + t, pitch,
                                              q + t * stride, stride, T - t, size);
                                weighted_rows(dv + t * stride, p + t * T + t, T, dy + t * C, C,
                                              T - t, size);
                        }
                }
}
