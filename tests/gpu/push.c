/* SPDX-License-Identifier: Apache-2.0
 *
 * How fast push is, beside one large copy of the same bytes (the ceiling) and beside pull; in
 * turns.
 */
#include "base/limits.h"
#include "device/chunks.h"
#include "tests/gpu/copier.h"

enum { ROUNDS_MAX = 5 };
#define PUSH_RATIO_MIN 0.9

static void fill(struct copier *c, struct cuda_stream *stream, uint32_t word) {
        struct step s = *c->step;
        step_fill(&s, stream, c->slab.address, word, c->bytes);
        STEP_CHECK(s.cuda->StreamSynchronize(stream) == CUDA_OK);
}

int main(int argc, char **argv) {
        struct step s;
        struct copier c;
        double whole[ROUNDS_MAX], push[ROUNDS_MAX], small[ROUNDS_MAX], pull[ROUNDS_MAX];
        if (argc > 1)
                return copier_pull_main();
        step_open(&s);
        struct cuda_stream *stream = step_stream(&s);
        copier_init(&c, &s, step_fit(&s, step_choose(2 * GiB, 24 * MiB)));
        size_t rounds = step_choose(ROUNDS_MAX, 2);
        (void) copier_whole(&c); /* the first copy of anything is slower */
        (void) copier_pull(&c);
        for (size_t i = 0; i < rounds; i++) {
                fill(&c, stream, (uint32_t) (4 * i + 1));
                whole[i] = copier_whole(&c);
                copier_check(&c, (uint32_t) (4 * i + 1));
                push[i] = copier_push(&c, CHUNK_BYTES);
                copier_check(&c, (uint32_t) (4 * i + 1));
                small[i] = copier_push(&c, CHUNK_BYTES / 2);
                copier_check(&c, (uint32_t) (4 * i + 1));
                pull[i] = copier_pull(&c);
                copier_check(&c, (uint32_t) (4 * i + 1));
        }
        double gigabytes = (double) c.bytes * 1e-9;
        double ceiling = gigabytes / step_median(whole, rounds),
               pushed = gigabytes / step_median(push, rounds);
        step_figure("bytes", (double) c.bytes, "B");
        step_figure("ceiling", ceiling, "GB/s");
        step_figure("push_16MiB", pushed, "GB/s");
        step_figure("push_8MiB", gigabytes / step_median(small, rounds), "GB/s");
        step_figure("pull", gigabytes / step_median(pull, rounds), "GB/s");
        step_figure("push_to_ceiling", pushed / ceiling, "");
        copier_done(&c);
        STEP_CHECK(s.cuda->StreamDestroy(stream) == CUDA_OK);
        if (!step_brief() && pushed < PUSH_RATIO_MIN * ceiling)
                step_fail("push has %.2f of the ceiling, %.2f is the aim", pushed / ceiling,
                          PUSH_RATIO_MIN);
        return step_passed(&s);
}
