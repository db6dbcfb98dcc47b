/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/test.h"
#include "trainer/corpus.h"

static char folder[4000];

static const char *put(const char *name, const void *bytes, size_t count) {
        static char path[8][4100];
        static unsigned next;
        char *p = path[next++ % 8];

        if (!folder[0])
                (void) close(test_folder(folder, sizeof(folder)));
        (void) snprintf(p, sizeof(path[0]), "%s/%s", folder, name);
        FILE *out = fopen(p, "w");
        assert_non_null(out);
        assert_true(fwrite(bytes, 1, count, out) == count);
        assert_int_equal(fclose(out), 0);
        return p;
}

static struct settings on(const char *path, enum settings_vocabulary kind, int64_t positions) {
        struct settings s = {
                .vocabulary = kind, .positions = positions, .context = positions, .seed = 1};

        s.data.path[s.data.count++] = path;
        return s;
}

static void test_bytes(void **state) {
        unsigned char text[256 * 4 + 1];
        struct settings s;
        struct corpus c;
        uint32_t in[8], out[8];

        for (size_t i = 0; i < sizeof(text); i++)
                text[i] = (unsigned char) i;
        s = on(put("bytes", text, sizeof(text)), VOCABULARY_BYTE, 8);
        assert_int_equal(corpus_load(&c, &s, NULL), 0);
        assert_true(c.vocabulary_count == 256 && c.token_count == sizeof(text));
        assert_true(c.eval_samples == 6 && c.train_samples == 122);
        corpus_batch(&c, in, out, 5, 1, 8);
        for (size_t i = 0; i < 8; i++) {
                assert_true(in[i] % 8 == i);
                assert_true(out[i] == (in[i] + 1) % 256);
        }
        corpus_eval_batch(&c, in, out, 0, 1, 8);
        assert_true(in[0] == 122 * 8 % 256);
        corpus_done(&c);
        corpus_done(NULL);
}

static void test_characters(void **state) {
        /* a, euro, an emoji, a byte that is not UTF-8, an overlong slash, a surrogate, a cut-off */
        static const char text[] = "a\xe2\x82\xac\xf0\x9f\x98\x80\xff\xc0\xaf\xed\xa0\x80"
                                   "aaaaaaaaaa\xe2\x82";
        struct settings s = on(put("chars", text, sizeof(text) - 1), VOCABULARY_CHAR, 2);
        struct corpus c;

        assert_int_equal(corpus_load(&c, &s, NULL), 0);
        assert_true(c.token_count == 21);
        assert_true(c.vocabulary_count == 11);
        assert_true(c.characters[0] == 'a' && c.characters[1] == 0x20ac);
        assert_true(c.characters[2] == 0x1f600 && c.characters[3] == 0x110080);
        assert_true(c.tokens[0] == 0 && c.tokens[1] == 1 && c.tokens[2] == 2);
        assert_true(c.tokens[19] != c.tokens[20]);
        corpus_done(&c);
}

static uint64_t fingerprint(const char *path, enum settings_vocabulary kind) {
        struct settings s = on(path, kind, 4);
        struct corpus c;

        assert_int_equal(corpus_load(&c, &s, NULL), 0);
        corpus_done(&c);
        return c.fingerprint;
}

static void test_fingerprint(void **state) {
        static const char text[] = "the same text, twice as long as it has to be. ";
        const char *a = put("a", text, 46), *b = put("b", text, 46), *cut = put("cut", text, 45);

        assert_true(fingerprint(a, VOCABULARY_BYTE) == fingerprint(b, VOCABULARY_BYTE));
        assert_true(fingerprint(a, VOCABULARY_BYTE) != fingerprint(a, VOCABULARY_CHAR));
        assert_true(fingerprint(a, VOCABULARY_BYTE) != fingerprint(cut, VOCABULARY_BYTE));
        /* Same token numbers, other characters. */
        assert_true(fingerprint(put("x", "abababababababab", 16), VOCABULARY_CHAR) !=
                    fingerprint(put("y", "cdcdcdcdcdcdcdcd", 16), VOCABULARY_CHAR));
}

/* A sample keeps its number whatever the batch and the context. */
static void test_positions(void **state) {
        static char text[2000];
        struct settings s;
        struct corpus c;
        uint32_t in[60], out[60], one[6], next[6];

        for (size_t i = 0; i < sizeof(text); i++)
                text[i] = (char) ('a' + i * i % 23);
        s = on(put("positions", text, sizeof(text)), VOCABULARY_BYTE, 6);
        assert_int_equal(corpus_load(&c, &s, NULL), 0);
        for (uint64_t position = 0; position < 3 * c.train_samples; position += 10) {
                corpus_batch(&c, in, out, position, 10, 6);
                for (uint64_t b = 0; b < 10; b++) {
                        corpus_batch(&c, one, next, position + b, 1, 3);
                        assert_memory_equal(one, in + 6 * b, 3 * sizeof(*one));
                        assert_memory_equal(next, out + 6 * b, 3 * sizeof(*one));
                }
        }
        assert_true(corpus_epoch(&c, c.train_samples - 1) == 0);
        assert_true(corpus_epoch(&c, c.train_samples) == 1);
        corpus_done(&c);
}

static void test_folder_and_own_evaluation(void **state) {
        struct settings s;
        struct corpus c;
        uint32_t in[4], out[4];

        (void) put("z-eval", "0123456789", 10);
        s = on(folder, VOCABULARY_BYTE, 4);
        assert_int_equal(corpus_load(&c, &s, NULL), 0);
        assert_true(c.file_count > 3);
        corpus_done(&c);

        s = on(put("data", "abcdefghijklm", 13), VOCABULARY_CHAR, 4);
        s.eval_data.path[s.eval_data.count++] = put("z-eval", "abcde01234", 10);
        assert_int_equal(corpus_load(&c, &s, NULL), 0);
        assert_true(c.vocabulary_count == 18 && c.train_samples == 3 && c.eval_samples == 2);
        corpus_eval_batch(&c, in, out, 0, 1, 4);
        assert_true(c.characters[in[0]] == 'a' && c.characters[out[3]] == 'e');
        corpus_done(&c);
}

static void test_refusals(void **state) {
        struct cairn_error e = CAIRN_ERROR_INIT;
        struct settings s = on("/nonexistent/text", VOCABULARY_BYTE, 4);
        struct corpus c;

        assert_true(corpus_load(&c, &s, &e) < 0);
        assert_string_equal(e.object, "/nonexistent/text");
        s = on("/dev/null", VOCABULARY_BYTE, 4);
        assert_true(corpus_load(&c, &s, &e) < 0);
        s = on(put("short", "abcd", 4), VOCABULARY_BYTE, 4);
        assert_int_equal(corpus_load(&c, &s, &e), CAIRN_ERR_API);
        assert_non_null(strstr(e.message, "--context"));
        s = on(put("empty", "", 0), VOCABULARY_CHAR, 4);
        assert_int_equal(corpus_load(&c, &s, &e), CAIRN_ERR_API);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_bytes),
                cmocka_unit_test(test_characters),
                cmocka_unit_test(test_fingerprint),
                cmocka_unit_test(test_positions),
                cmocka_unit_test(test_refusals),
                cmocka_unit_test(test_folder_and_own_evaluation),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
