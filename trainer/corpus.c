/* SPDX-License-Identifier: Apache-2.0 */
#include "trainer/corpus.h"
#include "base/cleanup.h"
#include "base/io.h"
#include "kernels/digest.h"
#include "trainer/shuffle.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

static const char default_data[] = "/usr/share/common-licenses";
enum { TEXT_BYTES_MAX = 1 << 30, CODE_MAX = 0x110000 + 256 };

struct text {
        unsigned char *bytes;
        size_t count;
        uint64_t files;
};

static int text_append(struct text *text, const char *path, struct cairn_error *reterr) {
        _cleanup_free_ void *bytes = NULL;
        size_t count;

        _cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
        struct stat st;
        if (fd < 0 || fstat(fd, &st) < 0)
                return error_set(reterr, CAIRN_ERR_API, "open text", path,
                                 "%s; give --data and --eval-data texts that can be read",
                                 strerror(errno));
        if (!S_ISREG(st.st_mode))
                return error_set(reterr, CAIRN_ERR_API, "open text", path,
                                 "is neither a file nor a folder; give --data a text file");
        if ((uint64_t) st.st_size > TEXT_BYTES_MAX - text->count)
                return error_set(reterr, CAIRN_ERR_API, "open text", path,
                                 "the texts together are over 1 GiB; give less of them");
        count = (size_t) st.st_size;
        bytes = realloc(text->bytes, text->count + count + 1);
        if (!bytes)
                return error_set(reterr, CAIRN_ERR_NOMEM, "load text", path,
                                 "%zu bytes of memory are not free", count);
        text->bytes = TAKE_PTR(bytes);
        TRY(io_read_exact(&io_system, fd, text->bytes + text->count, count, 0, path, reterr));
        text->count += count;
        text->files++;
        return 0;
}

/* The regular files of a folder by name; links are left out, they would repeat texts. */
static int text_append_folder(struct text *text, const char *path, struct cairn_error *reterr) {
        struct dirent **entries = NULL;
        int r = 0, count = scandir(path, &entries, NULL, alphasort);

        if (count < 0)
                return error_set(reterr, CAIRN_ERR_API, "list folder", path,
                                 "%s; give --data and --eval-data texts that can be read",
                                 strerror(errno));
        for (int i = 0; i < count; i++) {
                char file[4096];
                struct stat st;
                (void) snprintf(file, sizeof(file), "%s/%s", path, entries[i]->d_name);
                if (r == 0 && entries[i]->d_name[0] != '.' && lstat(file, &st) == 0 &&
                    S_ISREG(st.st_mode))
                        r = text_append(text, file, reterr);
                free(entries[i]);
        }
        free(entries);
        return r;
}

static int text_load(struct text *text, const struct settings_files *files,
                     struct cairn_error *reterr) {
        for (size_t i = 0; i < files->count; i++) {
                struct stat st;
                if (stat(files->path[i], &st) == 0 && S_ISDIR(st.st_mode))
                        TRY(text_append_folder(text, files->path[i], reterr));
                else
                        TRY(text_append(text, files->path[i], reterr));
        }
        return 0;
}

/* One character at p (left >= 1): its code, or 0x110000 + byte where it is not UTF-8. */
static uint32_t character_at(const unsigned char *p, size_t left, size_t *ret_bytes) {
        static const uint32_t smallest[] = {0, 0, 0x80, 0x800, 0x10000};
        size_t length = p[0] < 0x80 ? 1 : p[0] >= 0xf0 ? 4 : p[0] >= 0xe0 ? 3 : 2;
        uint32_t code = p[0] < 0x80 ? p[0] : p[0] & (0xffu >> (length + 1));
        bool good = length <= left && (p[0] < 0x80 || (p[0] >= 0xc2 && p[0] < 0xf5));

        for (size_t i = 1; good && i < length; i++) {
                good = (p[i] & 0xc0) == 0x80;
                code = code << 6 | (p[i] & 0x3f);
        }
        good = good && code >= smallest[length] && code < 0x110000 &&
               (code < 0xd800 || code > 0xdfff);
        *ret_bytes = good ? length : 1;
        return good ? code : 0x110000u + p[0];
}

static void tokenize_characters(struct corpus *c, const struct text *text, uint32_t *token_of_code,
                                size_t *eval_begin) {
        uint32_t count = 0;
        uint64_t tokens = 0;
        size_t bytes, eval_token = 0;

        for (size_t i = 0; i < text->count; i += bytes)
                token_of_code[character_at(text->bytes + i, text->count - i, &bytes)] = 1;
        for (uint32_t code = 0; code < CODE_MAX; code++)
                if (token_of_code[code]) {
                        c->characters[count] = code;
                        token_of_code[code] = count++;
                }
        for (size_t i = 0; i < text->count; i += bytes) {
                if (i < *eval_begin)
                        eval_token = tokens + 1;
                c->tokens[tokens++] =
                        token_of_code[character_at(text->bytes + i, text->count - i, &bytes)];
        }
        *eval_begin = eval_token;
        c->token_count = tokens;
        c->vocabulary_count = count;
}

static int no_memory(size_t bytes, struct cairn_error *reterr) {
        return error_set(reterr, CAIRN_ERR_NOMEM, "load text", "--data",
                         "%zu bytes of memory are not free; give less text", bytes);
}

static int tokenize(struct corpus *c, const struct text *text, enum settings_vocabulary kind,
                    size_t *eval_begin, struct cairn_error *reterr) {
        uint32_t *token_of_code;

        c->tokens = malloc((text->count + 1) * sizeof(*c->tokens));
        if (!c->tokens)
                return no_memory(text->count * sizeof(*c->tokens), reterr);
        if (kind == VOCABULARY_CHAR) {
                c->characters = calloc(CODE_MAX, sizeof(*c->characters));
                token_of_code = c->characters ? calloc(CODE_MAX, sizeof(*token_of_code)) : NULL;
                if (!token_of_code)
                        return no_memory(CODE_MAX * sizeof(*token_of_code), reterr);
                tokenize_characters(c, text, token_of_code, eval_begin);
                free(token_of_code);
                return 0;
        }
        for (size_t i = 0; i < text->count; i++)
                c->tokens[i] = text->bytes[i];
        c->token_count = text->count;
        c->vocabulary_count = 256;
        return 0;
}

/* Whole windows of stride tokens, each with one token more to predict. */
static uint64_t window_count(uint64_t tokens, uint64_t stride) {
        return stride > 0 && tokens > stride ? (tokens - 1) / stride : 0;
}

static int cut_samples(struct corpus *c, uint64_t eval_token, bool eval_is_own_text,
                       struct cairn_error *reterr) {
        uint64_t all = window_count(eval_token, c->stride);

        if (eval_is_own_text) {
                c->train_samples = all;
                c->eval_begin = eval_token;
                c->eval_samples = window_count(c->token_count - eval_token, c->stride);
        } else {
                c->eval_samples = all / 20 > 0 ? all / 20 : 1;
                c->train_samples = all > c->eval_samples ? all - c->eval_samples : 0;
                c->eval_begin = c->train_samples * c->stride;
        }
        if (c->train_samples == 0 || c->eval_samples == 0)
                return error_set(reterr, CAIRN_ERR_API, "cut text into samples",
                                 c->train_samples ? "--eval-data" : "--data",
                                 "%llu tokens are too few for samples of %llu; give more text or "
                                 "a smaller --context",
                                 (unsigned long long) c->token_count,
                                 (unsigned long long) c->stride);
        return 0;
}

int corpus_load(struct corpus *c, const struct settings *s, struct cairn_error *reterr) {
        static const struct settings_files standard = {.path = {default_data}, .count = 1};
        struct text text = {0};
        int r;

        *c = (struct corpus){.stride = (uint64_t) s->positions, .seed = (uint64_t) s->seed};
        TRY_GOTO(text_load(&text, s->data.count ? &s->data : &standard, reterr), end);
        size_t eval_begin = text.count;
        TRY_GOTO(text_load(&text, &s->eval_data, reterr), end);
        TRY_GOTO(tokenize(c, &text, (enum settings_vocabulary) s->vocabulary, &eval_begin, reterr),
                 end);
        TRY_GOTO(cut_samples(c, eval_begin, s->eval_data.count > 0, reterr), end);
        c->file_count = text.files;
        c->fingerprint = digest_bytes(c->tokens, c->token_count * sizeof(*c->tokens));
        c->fingerprint = digest_combine(c->fingerprint, c->vocabulary_count);
        if (c->characters)
                c->fingerprint = digest_combine(
                        c->fingerprint,
                        digest_bytes(c->characters, c->vocabulary_count * sizeof(uint32_t)));
end:
        free(text.bytes);
        if (r < 0)
                corpus_done(c);
        return r;
}

void corpus_done(struct corpus *c) {
        if (!c)
                return;
        free(c->tokens);
        free(c->characters);
        c->tokens = c->characters = NULL;
}

static void copy_window(const struct corpus *c, uint32_t *inputs, uint32_t *targets, uint64_t begin,
                        uint64_t time) {
        memcpy(inputs, c->tokens + begin, time * sizeof(*inputs));
        memcpy(targets, c->tokens + begin + 1, time * sizeof(*targets));
}

uint64_t corpus_sample(const struct corpus *c, uint64_t position) {
        return shuffle_sample(c->seed, corpus_epoch(c, position), position % c->train_samples,
                              c->train_samples);
}

void corpus_batch(const struct corpus *c, uint32_t *inputs, uint32_t *targets, uint64_t position,
                  uint64_t batch, uint64_t time) {
        for (uint64_t b = 0; b < batch; b++) {
                uint64_t begin = corpus_sample(c, position + b) * c->stride;
                copy_window(c, inputs + b * time, targets + b * time, begin, time);
        }
}

void corpus_eval_batch(const struct corpus *c, uint32_t *inputs, uint32_t *targets, uint64_t index,
                       uint64_t batch, uint64_t time) {
        for (uint64_t b = 0; b < batch; b++) {
                uint64_t sample = (index * batch + b) % c->eval_samples;
                copy_window(c, inputs + b * time, targets + b * time,
                            c->eval_begin + sample * c->stride, time);
        }
}
