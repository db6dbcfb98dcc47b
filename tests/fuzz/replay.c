/* SPDX-License-Identifier: Apache-2.0
 *
 * replay.c - the main of a fuzz target without libFuzzer: fuzz_X [-rounds N] [FILE...], by default
 * all files of tests/fuzz/corpus/X. Each file is run as it is, cut to its first 0 to 16 bytes, with
 * extreme values in whole words of its head, and N times (40) changed by the target's mutator.
 */
#include "base/bytes.h"
#include "tests/fuzz/fuzz.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A name of libFuzzer's, which is a digest: one of many, so that it is not swept. */
enum { FOUND_NAME_BYTES = 40 };
enum { INPUT_MAX = 1 << 17, SWEPT_BYTES = 192, ROUNDS = 40 };

static uint64_t random_state, runs;

static uint64_t random_word(void) {
        uint64_t z = random_state += UINT64_C(0x9e3779b97f4a7c15);
        z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
        z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
        return z ^ z >> 31;
}

/* What libFuzzer's own mutations do, in small. */
size_t LLVMFuzzerMutate(uint8_t *bytes, size_t count, size_t max) {
        size_t at = count ? random_word() % count : 0, n = random_word() % 8 + 1;

        switch (count ? random_word() % 5 : 4) {
        case 0:
                bytes[at] ^= (uint8_t) (1 << random_word() % 8);
                return count;
        case 1:
                bytes[at] = (uint8_t) random_word();
                return count;
        case 2:
                n = n < count - at ? n : count - at;
                memmove(bytes + at, bytes + at + n, count - at - n);
                return count - n;
        case 3:
                n = n < count - at ? n : count - at;
                memcpy(bytes + at, &fuzz_extremes[random_word() % fuzz_extreme_count], n);
                return count;
        default:
                n = n < max - count ? n : max - count;
                memmove(bytes + at + n, bytes + at, count - at);
                for (size_t i = 0; i < n; i++)
                        bytes[at + i] = (uint8_t) random_word();
                return count + n;
        }
}

/* The input ends where its block ends. */
static void run(const uint8_t *bytes, size_t count) {
        uint8_t *copy = fuzz_copy(bytes, count);
        (void) LLVMFuzzerTestOneInput(copy, count);
        free(copy);
        runs++;
}

static void run_file(const char *path, uint64_t rounds) {
        static uint8_t bytes[INPUT_MAX], changed[INPUT_MAX];
        FILE *f = fopen(path, "re");
        if (!f) {
                perror(path);
                exit(66);
        }
        size_t count = fread(bytes, 1, sizeof bytes, f);
        (void) fclose(f);
        random_state = count;
        run(bytes, count);
        for (size_t n = 0; n <= 16 && n < count; n++)
                run(bytes, n);
        const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
        bool swept = strlen(name) < FOUND_NAME_BYTES;
        for (size_t at = 0; swept && at + 8 <= count && at < SWEPT_BYTES; at += 4)
                for (size_t i = 0; i < fuzz_extreme_count; i++) {
                        size_t width = i % 2 ? 8 : 4;
                        memcpy(changed, bytes, count);
                        memcpy(changed + at, &fuzz_extremes[i], width);
                        run(changed, count);
                }
        for (uint64_t i = 0; i < rounds; i++) {
                memcpy(changed, bytes, count);
                size_t n = count, times = random_word() % 3 + 1;
                while (times--)
                        n = LLVMFuzzerCustomMutator(changed, n, sizeof changed,
                                                    (unsigned) random_word());
                run(changed, n);
        }
}

static uint64_t run_folder(const char *program, uint64_t rounds) {
        const char *slash = strrchr(program, '/'), *name = slash ? slash + 1 : program;
        char folder[256], path[600];
        struct dirent **entries;

        if (strncmp(name, "fuzz_", 5) == 0)
                name += 5;
        (void) snprintf(folder, sizeof folder, "tests/fuzz/corpus/%s", name);
        int n = scandir(folder, &entries, NULL, alphasort);
        uint64_t files = 0;
        for (int i = 0; i < n; i++) {
                (void) snprintf(path, sizeof path, "%s/%s", folder, entries[i]->d_name);
                if (entries[i]->d_name[0] != '.') {
                        run_file(path, rounds);
                        files++;
                }
                free(entries[i]);
        }
        if (n >= 0)
                free(entries);
        return files;
}

int main(int argc, char **argv) {
        uint64_t rounds = ROUNDS, files = 0;
        int i = 1;

        if (argc > 2 && strcmp(argv[1], "-rounds") == 0) {
                rounds = strtoull(argv[2], NULL, 10);
                i = 3;
        }
        for (; i < argc; i++, files++)
                run_file(argv[i], rounds);
        if (files == 0)
                files = run_folder(argv[0], rounds);
        printf("%llu inputs from %llu files\n", (unsigned long long) runs,
               (unsigned long long) files);
        return files ? 0 : 66;
}
