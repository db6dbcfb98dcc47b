/* SPDX-License-Identifier: Apache-2.0
 *
 * A block has TILE queries (or keys) of one head and walks over the head's keys (queries) a tile
 * at a time; tiles lie in shared memory. In the square of a pair of tiles a warp has every
 * GPU_WARPS-th row and a lane one column, so that sums over a row are sums over the lanes. Only
 * t2 <= t is touched: what lies later must not even be multiplied by 0, it may be NaN.
 */
#include "kernels/attention.h"
#include "kernels/exp.h"
#include "kernels/gpu_block.cuh"

enum { TILE = GPU_WARP, ROWS = TILE / GPU_WARPS, HEAD_MAX = 128, PIECES = HEAD_MAX / TILE };

/* One column more than needed keeps the lanes of a warp in different banks. */
struct tile {
        float row[TILE][HEAD_MAX + 1];
};
struct square {
        float row[TILE][TILE + 1];
};

/* Where a block works. Offsets are those of the head's first element. */
struct place {
        size_t first; /* row of the block's own tile */
        size_t qkv, out, att;
        size_t time, size, channels;
        float scale;
};

__device__ static struct place place_of(struct attention a) {
        size_t tiles = (a.time + TILE - 1) / TILE;
        size_t head = blockIdx.x / tiles, b = head / a.heads, h = head % a.heads;
        struct place p;

        p.first = blockIdx.x % tiles * TILE;
        p.time = a.time;
        p.channels = a.channels;
        p.size = a.channels / a.heads;
        p.scale = 1.0f / sqrtf((float) p.size);
        p.qkv = b * a.time * 3 * a.channels + h * p.size;
        p.out = b * a.time * a.channels + h * p.size;
        p.att = head * a.time * a.time;
        return p;
}

/* The thread's n-th row of a tile. */
__device__ static size_t own_row(size_t n) {
        return gpu_warp() + n * GPU_WARPS;
}

/* TILE rows from `first`, times scale; what lies outside is 0. All threads of the block call. */
template <class T>
__device__ static void load_tile(struct tile *t, const T *rows, size_t stride, size_t first,
                                 const struct place *p, float scale) {
        __syncthreads(); /* nobody reads the last one any more */
        GPU_NO_UNROLL
        for (size_t i = gpu_lane(); i < p->size; i += GPU_WARP)
                for (size_t n = 0; n < ROWS; n++) {
                        size_t r = own_row(n);
                        bool inside = first + r < p->time;
                        t->row[r][i] =
                                inside ? gpu_load(rows + (first + r) * stride + i) * scale : 0.0f;
                }
        __syncthreads();
}

/* dot[n] = own row n of a . the lane's row of b */
__device__ static void products(float dot[ROWS], const struct tile *a, const struct tile *b,
                                size_t size) {
        for (size_t n = 0; n < ROWS; n++)
                dot[n] = 0.0f;
        for (size_t i = 0; i < size; i++) {
                float y = b->row[gpu_lane()][i];
                for (size_t n = 0; n < ROWS; n++)
                        dot[n] += a->row[own_row(n)][i] * y;
        }
}

/* Which columns of a square count for each own row; the end may lie beyond. */
struct columns {
        size_t begin[ROWS], end[ROWS];
};

/* sum[n][j] += over the row's columns c: weights[own row n][c] * t[c][the lane's j-th element] */
__device__ static void add_weighted(float sum[ROWS][PIECES], const struct square *weights,
                                    const struct tile *t, struct columns columns, size_t size) {
        GPU_NO_UNROLL
        for (size_t c = 0; c < TILE; c++) {
                float x[PIECES];
                for (size_t j = 0; j < PIECES; j++) {
                        size_t i = j * TILE + gpu_lane();
                        x[j] = i < size ? t->row[c][i] : 0.0f;
                }
                for (size_t n = 0; n < ROWS; n++)
                        if (columns.begin[n] <= c && c < columns.end[n])
                                for (size_t j = 0; j < PIECES; j++)
                                        sum[n][j] += weights->row[own_row(n)][c] * x[j];
        }
}

/* Own rows of the result to rows from `first` of target. */
template <class T>
__device__ static void store_rows(T *target, size_t stride, const float sum[ROWS][PIECES],
                                  const struct place *p) {
        for (size_t n = 0; n < ROWS; n++)
                for (size_t j = 0; j < PIECES; j++) {
                        size_t row = p->first + own_row(n), i = j * TILE + gpu_lane();
                        if (row < p->time && i < p->size)
                                gpu_store(target + row * stride + i, sum[n][j]);
                }
}

/* May the query in own row n look at this key? */
__device__ static bool sees(size_t n, size_t key, const struct place *p) {
        size_t query = p->first + own_row(n);

        return key <= query && query < p->time;
}

/* Keys from `key` on, a tile of them: those that the queries in the own rows look at. */
__device__ static struct columns seen(size_t key, const struct place *p) {
        struct columns s;

        for (size_t n = 0; n < ROWS; n++) {
                s.begin[n] = 0;
                s.end[n] = sees(n, key, p) ? p->first + own_row(n) - key + 1 : 0;
        }
        return s;
}

/* Queries from `query` on, a tile of them: those that look at the keys in the own rows. */
__device__ static struct columns seeing(size_t query, const struct place *p) {
        struct columns s;

        for (size_t n = 0; n < ROWS; n++) {
                s.begin[n] = query == p->first ? own_row(n) : 0;
                s.end[n] = p->time - query;
        }
        return s;
}

/* The probabilities times their row's sum go to att, as e^(score - max); sum[n] is the row's. */
template <class T>
__device__ static void exponents(T *att, float sum[ROWS], const struct tile *query,
                                 struct tile *other, const T *keys, const struct place *p) {
        float max[ROWS], dot[ROWS];

        for (size_t n = 0; n < ROWS; n++) {
                max[n] = -INFINITY;
                sum[n] = 0.0f;
        }
        for (size_t key = 0; key <= p->first; key += TILE) {
                load_tile(other, keys, 3 * p->channels, key, p, 1.0f);
                products(dot, query, other, p->size);
                for (size_t n = 0; n < ROWS; n++)
                        if (sees(n, key + gpu_lane(), p))
                                max[n] = gpu_larger(max[n], dot[n]);
        }
        for (size_t n = 0; n < ROWS; n++)
                max[n] = gpu_warp_max(max[n]);
        for (size_t key = 0; key <= p->first; key += TILE) {
                load_tile(other, keys, 3 * p->channels, key, p, 1.0f);
                products(dot, query, other, p->size);
                for (size_t n = 0; n < ROWS; n++)
                        if (sees(n, key + gpu_lane(), p)) {
                                size_t row = p->first + own_row(n);
                                float e = exp_f32(dot[n] - max[n]);
                                gpu_store(att + row * p->time + key + gpu_lane(), e);
                                sum[n] += e;
                        }
        }
        for (size_t n = 0; n < ROWS; n++)
                sum[n] = gpu_warp_sum(sum[n]);
}

template <class T>
static __global__ void forward(T *out, T *att, const T *qkv, struct attention a) {
        GPU_SHARED(struct tile, query, 1);
        GPU_SHARED(struct tile, other, 1);
        GPU_SHARED(struct square, weights, 1);
        struct place p = place_of(a);
        size_t stride = 3 * p.channels;
        float total[ROWS], sum[ROWS][PIECES] = {{0.0f}};

        qkv += p.qkv;
        att += p.att;
        load_tile(query, qkv, stride, p.first, &p, p.scale);
        exponents(att, total, query, other, qkv + p.channels, &p);
        for (size_t n = 0; n < ROWS; n++)
                total[n] = 1.0f / total[n];
        for (size_t key = 0; key <= p.first; key += TILE) {
                load_tile(other, qkv + 2 * p.channels, stride, key, &p, 1.0f);
                for (size_t n = 0; n < ROWS; n++)
                        if (sees(n, key + gpu_lane(), &p)) { /* the element that it stored above */
                                T *x = att + (p.first + own_row(n)) * p.time + key + gpu_lane();
                                float probability = gpu_load(x) * total[n];
                                weights->row[own_row(n)][gpu_lane()] = probability;
                                gpu_store(x, probability);
                        }
                __syncthreads();
                add_weighted(sum, weights, other, seen(key, &p), p.size);
        }
        store_rows(out + p.out, p.channels, sum, &p);
}

/* Rows of keys: target[t2] = over queries t >= t2: att[t][t2] * source[t]. Of probabilities and
 * dout that is the gradient of the values, of the scores' gradients and queries that of the keys.
 */
template <class T>
static __global__ void backward_keys(T *target, const T *att, const T *source, size_t source_stride,
                                     bool source_is_dout, struct attention a) {
        GPU_SHARED(struct tile, queries, 1);
        GPU_SHARED(struct square, weights, 1);
        struct place p = place_of(a);
        size_t key = p.first + gpu_lane();
        float sum[ROWS][PIECES] = {{0.0f}};

        source += source_is_dout ? p.out : p.qkv;
        for (size_t query = p.first; query < p.time; query += TILE) {
                load_tile(queries, source, source_stride, query, &p, 1.0f);
                for (size_t n = 0; n < ROWS; n++) {
                        size_t t = query + own_row(n);
                        if (t < p.time && key <= t)
                                weights->row[gpu_lane()][own_row(n)] =
                                        gpu_load(att + p.att + t * p.time + key);
                }
                __syncthreads();
                add_weighted(sum, weights, queries, seeing(query, &p), p.size);
        }
        store_rows(target + p.qkv, 3 * p.channels, sum, &p);
}

/* mean[n] = over the keys of own row n: probability * (dout . value) */
template <class T>
__device__ static void mean_slopes(float mean[ROWS], const T *att, const struct tile *dy,
                                   struct tile *other, const T *values, const struct place *p) {
        float dot[ROWS];

        for (size_t n = 0; n < ROWS; n++)
                mean[n] = 0.0f;
        for (size_t key = 0; key <= p->first; key += TILE) {
                load_tile(other, values, 3 * p->channels, key, p, 1.0f);
                products(dot, dy, other, p->size);
                for (size_t n = 0; n < ROWS; n++)
                        if (sees(n, key + gpu_lane(), p)) {
                                size_t row = p->first + own_row(n);
                                const T *x = att + row * p->time + key + gpu_lane();
                                mean[n] += gpu_load(x) * dot[n];
                        }
        }
        for (size_t n = 0; n < ROWS; n++)
                mean[n] = gpu_warp_sum(mean[n]);
}

/* Rows of queries: the gradients of the scores replace att, and give those of the queries. */
template <class T>
static __global__ void backward_queries(T *dqkv, const T *dout, const T *qkv, T *att,
                                        struct attention a) {
        GPU_SHARED(struct tile, dy, 1);
        GPU_SHARED(struct tile, other, 1);
        GPU_SHARED(struct square, slopes, 1);
        struct place p = place_of(a);
        const T *keys = qkv + p.qkv + p.channels, *values = keys + p.channels;
        float mean[ROWS], dot[ROWS], sum[ROWS][PIECES] = {{0.0f}};

        att += p.att;
        load_tile(dy, dout + p.out, p.channels, p.first, &p, 1.0f);
        mean_slopes(mean, att, dy, other, values, &p);
        for (size_t key = 0; key <= p.first; key += TILE) {
                load_tile(other, values, 3 * p.channels, key, &p, 1.0f);
                products(dot, dy, other, p.size);
                for (size_t n = 0; n < ROWS; n++)
                        if (sees(n, key + gpu_lane(), &p)) {
                                T *x = att + (p.first + own_row(n)) * p.time + key + gpu_lane();
                                float slope = gpu_load(x) * (dot[n] - mean[n]) * p.scale;
                                slopes->row[own_row(n)][gpu_lane()] = slope;
                                gpu_store(x, slope);
                        }
                load_tile(other, keys, 3 * p.channels, key, &p, 1.0f);
                add_weighted(sum, slopes, other, seen(key, &p), p.size);
        }
        store_rows(dqkv + p.qkv, 3 * p.channels, sum, &p);
}

/* A block for each tile of each head. */
static int blocks_of(unsigned *ret_blocks, struct attention a) {
        size_t blocks = (a.time + TILE - 1) / TILE * a.batch * a.heads;

        *ret_blocks = static_cast<unsigned>(blocks);
        if (a.heads == 0 || a.channels % a.heads != 0 || a.channels / a.heads > HEAD_MAX ||
            blocks > INT32_MAX)
                return cudaErrorInvalidValue;
        if (a.channels == 0)
                *ret_blocks = 0;
        return 0;
}

int gpu_attention_forward(void *stream, void *out, void *att, const void *qkv, struct attention a,
                          enum gpu_type type) {
        unsigned blocks;
        int e = blocks_of(&blocks, a);

        if (e || blocks == 0)
                return e;
        return gpu_with_type(type, [&](auto zero) {
                typedef decltype(zero) T;
                return gpu_launch(GPU_KERNEL(forward<T>), blocks, GPU_BLOCK, 0, stream,
                                  static_cast<T *>(out), static_cast<T *>(att),
                                  static_cast<const T *>(qkv), a);
        });
}

/* The values' gradient needs the probabilities, which the queries' kernel replaces by what the
 * keys' gradient needs. */
template <class T>
static int backward(void *stream, T *dqkv, const T *dout, const T *qkv, T *att, struct attention a,
                    unsigned blocks) {
        int e = gpu_launch(GPU_KERNEL(backward_keys<T>), blocks, GPU_BLOCK, 0, stream,
                           dqkv + 2 * a.channels, att, dout, a.channels, true, a);

        if (e == 0)
                e = gpu_launch(GPU_KERNEL(backward_queries<T>), blocks, GPU_BLOCK, 0, stream, dqkv,
                               dout, qkv, att, a);
        if (e == 0)
                e = gpu_launch(GPU_KERNEL(backward_keys<T>), blocks, GPU_BLOCK, 0, stream,
                               dqkv + a.channels, att, qkv, 3 * a.channels, false, a);
        return e;
}

int gpu_attention_backward(void *stream, void *dqkv, const void *dout, const void *qkv, void *att,
                           struct attention a, enum gpu_type type) {
        unsigned blocks;
        int e = blocks_of(&blocks, a);

        if (e || blocks == 0)
                return e;
        return gpu_with_type(type, [&](auto zero) {
                typedef decltype(zero) T;
                return backward(stream, static_cast<T *>(dqkv), static_cast<const T *>(dout),
                                static_cast<const T *>(qkv), static_cast<T *>(att), a, blocks);
        });
}
