/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/small_session.h"
#include "base/assert.h"
#include "format/crc32c.h"

void small_init(struct small_session *s) {
        *s = (struct small_session){
                .half_dtype = CAIRN_BF16, .w_role = CAIRN_PARAMETER, .layers = "12", .blas = "one"};
}

int small_open(struct small_session *s, struct fake_agent *a) {
        struct cairn_options o = CAIRN_OPTIONS_INIT;
        o.run = "run";
        o.rank = 0;
        o.socket = a->path;
        o.open_timeout_ns = 5000000000;
        return cairn_open(&o, &s->c);
}

static void add(struct small_session *s, struct cairn_tensor t) {
        t.size = sizeof t;
        int r = cairn_register(s->c, &t);
        if (r < 0)
                (void) fprintf(stderr, "%s\n", cairn_error_text(s->c));
        CAIRN_ASSERT(r == 0);
}

static void add_one(struct small_session *s, int which) {
        uint64_t columns = s->wide_w ? 4 : 3;
        switch (which) {
        case 0:
                add(s, (struct cairn_tensor){.name = "w",
                                             .role = s->w_role,
                                             .dtype = CAIRN_F32,
                                             .rank = 2,
                                             .shape = {4, columns},
                                             .data = s->w});
                break;
        case 1:
                add(s, (struct cairn_tensor){.name = "half",
                                             .role = CAIRN_PARAMETER,
                                             .dtype = s->half_dtype,
                                             .rank = 1,
                                             .shape = {5},
                                             .data = s->half});
                break;
        case 2:
                add(s, (struct cairn_tensor){.name = "m",
                                             .role = CAIRN_MOMENT1,
                                             .dtype = CAIRN_F32,
                                             .rank = 2,
                                             .shape = {4, columns},
                                             .data = s->m});
                break;
        case 3:
                if (!s->without_v)
                        add(s, (struct cairn_tensor){.name = "v",
                                                     .role = CAIRN_MOMENT2,
                                                     .dtype = CAIRN_F32,
                                                     .rank = 2,
                                                     .shape = {4, 3},
                                                     .data = s->v});
                break;
        case 4:
                add(s, (struct cairn_tensor){.name = "stat",
                                             .role = CAIRN_BUFFER,
                                             .dtype = CAIRN_F32,
                                             .rank = 1,
                                             .shape = {4},
                                             .data = s->stat,
                                             .mutates = CAIRN_ANYTIME});
                break;
        case 5:
                CAIRN_ASSERT(cairn_register_step(s->c, "step", s->step, &s->truth) == 0);
                break;
        default:
                if (s->with_extra_tensor)
                        add(s, (struct cairn_tensor){.name = "extra",
                                                     .role = CAIRN_PARAMETER,
                                                     .dtype = CAIRN_F32,
                                                     .rank = 1,
                                                     .shape = {3},
                                                     .data = s->v});
        }
}

void small_declare(struct small_session *s) {
        struct cairn *c = s->c;
        CAIRN_ASSERT(cairn_alloc(c, 16 * sizeof *s->w, (void **) &s->w) == 0);
        CAIRN_ASSERT(cairn_alloc(c, 5 * sizeof(float), (void **) &s->half) == 0);
        CAIRN_ASSERT(cairn_alloc(c, 16 * sizeof *s->m, (void **) &s->m) == 0);
        CAIRN_ASSERT(cairn_alloc(c, 12 * sizeof *s->v, (void **) &s->v) == 0);
        CAIRN_ASSERT(cairn_alloc(c, 4 * sizeof *s->stat, (void **) &s->stat) == 0);
        CAIRN_ASSERT(cairn_alloc(c, sizeof *s->step, (void **) &s->step) == 0);
        for (int i = 0; i <= 6; i++)
                add_one(s, s->reversed ? 6 - i : i);
        CAIRN_ASSERT(cairn_state_i64(c, "samples", &s->samples) == 0);
        CAIRN_ASSERT(cairn_state_u64(c, "seed", &s->seed) == 0);
        if (!s->without_best)
                CAIRN_ASSERT(cairn_state_f64(c, "best", &s->best) == 0);
        if (s->with_extra_value)
                CAIRN_ASSERT(cairn_state_i64(c, "extra_value", &s->samples) == 0);
        CAIRN_ASSERT(cairn_state_bytes(c, "rng", s->rng, &s->rng_bytes, sizeof s->rng) == 0);
        CAIRN_ASSERT(cairn_describe(c, "config.layers", s->layers) == 0);
        CAIRN_ASSERT(cairn_describe(c, "numerics.blas", s->blas) == 0);
        CAIRN_ASSERT(cairn_describe(c, "free.workers", s->workers ? s->workers : "4") == 0);
}

void small_fill(struct small_session *s, int salt) {
        for (int i = 0; i < 12; i++) {
                s->w[i] = (float) (salt * 100 + i);
                s->m[i] = (float) (salt * 100 + i) / 7;
                s->v[i] = (float) (salt * 100 + i) / 11;
        }
        for (int i = 0; i < 5; i++)
                s->half[i] = (uint16_t) (salt * 17 + i);
        for (int i = 0; i < 4; i++)
                s->stat[i] = (float) (salt + i);
        s->samples = salt * 1000;
        s->seed = (uint64_t) salt << 40;
        s->best = salt / 3.0;
        s->rng_bytes = (uint64_t) (salt % 16);
        memset(s->rng, salt, sizeof s->rng);
}

uint32_t small_digest(const struct small_session *s) {
        uint32_t crc = crc32c(0, s->w, 12 * sizeof *s->w);
        crc = crc32c(crc, s->half, 5 * sizeof *s->half);
        crc = crc32c(crc, s->m, 12 * sizeof *s->m);
        crc = crc32c(crc, s->v, 12 * sizeof *s->v);
        crc = crc32c(crc, s->stat, 4 * sizeof *s->stat);
        crc = crc32c(crc, s->step, sizeof *s->step);
        crc = crc32c(crc, &s->truth, sizeof s->truth);
        crc = crc32c(crc, &s->samples, sizeof s->samples);
        crc = crc32c(crc, &s->seed, sizeof s->seed);
        crc = crc32c(crc, &s->best, sizeof s->best);
        crc = crc32c(crc, &s->rng_bytes, sizeof s->rng_bytes);
        return crc32c(crc, s->rng, s->rng_bytes);
}

void small_update(struct small_session *s, int64_t step) {
        CAIRN_ASSERT(cairn_update_begin(s->c) == 0);
        small_fill(s, (int) step + 1);
        s->truth++;
        CAIRN_ASSERT(cairn_update_end(s->c, step) == 0);
}

void small_begin(struct small_session *s, struct fake_agent *a) {
        int r = small_open(s, a);
        if (r < 0)
                (void) fprintf(stderr, "%s\n", cairn_error_text(s->c));
        CAIRN_ASSERT(r == 0);
        small_declare(s);
        small_fill(s, 1);
        CAIRN_ASSERT(cairn_seal(s->c) == 0);
        CAIRN_ASSERT(cairn_restore(s->c, NULL) == 0);
}

void small_make_checkpoint(struct small_session *s, struct fake_agent *a, int64_t step) {
        small_begin(s, a);
        for (int64_t i = 1; i <= step; i++)
                small_update(s, i);
        CAIRN_ASSERT(fake_agent_take(a, true) == 0);
        cairn_close(s->c);
        fake_agent_forget(a);
        a->mode = CAIRN_START_RESUME;
}
