/* SPDX-License-Identifier: Apache-2.0
 *
 * corpus.h - text files as tokens, cut into samples.
 *
 *     corpus_load(&c, &settings, &error);
 *     corpus_batch(&c, inputs, targets, position, batch, time);        // training, shuffled
 *     corpus_eval_batch(&c, inputs, targets, index, batch, time);      // evaluation, in order
 *     corpus_done(&c);
 *
 * Sample i is the window of tokens [i * stride, i * stride + stride]; a shorter training context
 * takes its first tokens, so that a sample keeps its number. Vocabularies: the 256 bytes, or the
 * characters that occur, by code point; a byte that is not UTF-8 is a character of its own. The
 * fingerprint is that of tokens and vocabulary together; where the files lie does not enter it.
 * Owned by the caller; read-only after loading, so any thread may fetch.
 */
#ifndef CAIRN_TRAINER_CORPUS_H
#define CAIRN_TRAINER_CORPUS_H

#include "trainer/settings.h"

struct corpus {
        uint32_t *tokens;
        uint64_t token_count;
        uint32_t *characters; /* by token; NULL for bytes */
        uint32_t vocabulary_count;
        uint64_t stride;
        uint64_t train_samples;
        uint64_t eval_begin, eval_samples; /* evaluation windows start at token eval_begin */
        uint64_t fingerprint, seed;
        uint64_t file_count;
};

int corpus_load(struct corpus *c, const struct settings *s, struct cairn_error *reterr);
void corpus_done(struct corpus *c);

/* The number of the sample at a global position. */
uint64_t corpus_sample(const struct corpus *c, uint64_t position);
/* inputs and targets: batch x time. Sample b is at global position position + b. */
void corpus_batch(const struct corpus *c, uint32_t *inputs, uint32_t *targets, uint64_t position,
                  uint64_t batch, uint64_t time);
void corpus_eval_batch(const struct corpus *c, uint32_t *inputs, uint32_t *targets, uint64_t index,
                       uint64_t batch, uint64_t time);
static inline uint64_t corpus_epoch(const struct corpus *c, uint64_t position) {
        return position / c->train_samples;
}

#endif
