/* SPDX-License-Identifier: Apache-2.0
 *
 * small_train.h - a small training on a text of its own, with libcairn's fake. For tests.
 */
#ifndef CAIRN_TESTS_SMALL_TRAIN_H
#define CAIRN_TESTS_SMALL_TRAIN_H

#include "tests/test.h"
#include "tests/unit/fake_cairn.h"
#include "trainer/train.h"

enum { SMALL_ARGUMENTS_MAX = 64 };

/* A text of many different lines. Returns its path. */
static inline const char *small_text(void) {
        static char path[4096];
        char folder[4000];

        if (path[0])
                return path;
        (void) close(test_folder(folder, sizeof(folder)));
        (void) snprintf(path, sizeof(path), "%s/text", folder);
        FILE *out = fopen(path, "w");
        assert_non_null(out);
        for (int i = 0; i < 300; i++)
                (void) fprintf(out, "Line %d: the square of %d is %d.\n", i, i, i * i);
        assert_int_equal(fclose(out), 0);
        return path;
}

/* Options as one string, separated by single spaces. */
static inline int small_parse(struct settings *s, const char *options, struct cairn_error *error) {
        static __thread char text[4096]; /* settings point into it */
        char *argv[SMALL_ARGUMENTS_MAX] = {(char *) (uintptr_t) "cairn-train"}, *next = text;
        int argc = 1;

        (void) snprintf(text, sizeof(text), "%s", options);
        for (char *word; (word = strsep(&next, " "));)
                if (word[0])
                        argv[argc++] = word;
        return settings_parse(s, argc, argv, error);
}

static inline void small_start(struct train *t, const char *options) {
        struct cairn_error error = CAIRN_ERROR_INIT;
        struct settings s;
        char all[4096];

        (void) snprintf(all, sizeof(all),
                        "--steps 200 --batch 2 --context 16 --layers 2 --heads 2 --width 16 "
                        "--warmup 30 %s",
                        options);
        assert_int_equal(small_parse(&s, all, &error), 0);
        s.data.path[s.data.count++] = small_text();
        *t = (struct train){.settings = s, .log = {.fd = -1}};
        struct compute_options o = {.dtype = settings_dtype(&s), .threads = 1};
        assert_int_equal(compute_open("cpu", &o, &t->compute, &error), 0);
        assert_int_equal(checkpoint_open(&t->checkpoint, &s, t->compute), 0);
        t->group.rank = t->checkpoint.session.rank;
        t->group.world = t->checkpoint.session.world;
        t->settings.world = t->checkpoint.session.world;
        assert_int_equal(checkpoint_override(&t->checkpoint, &t->settings, &error), 0);
        assert_int_equal(train_build(t, &error), 0);
        assert_int_equal(
                checkpoint_restore(&t->checkpoint, &t->settings, &t->corpus, &t->state, "none"), 0);
        train_restored(t, t->checkpoint.report.step);
        progress_init(&t->progress, t->settings.steps, t->step, true, t->begin_ns);
}

static inline void small_resume(struct train *t, const struct fake_cut *cut) {
        fake_give(t->checkpoint.cairn, cut);
        state_restored(&t->state);
        train_restored(t, cut->step);
}

static inline float small_step(struct train *t) {
        float loss;

        assert_int_equal(train_step(t, &loss, NULL), 0);
        return loss;
}

#endif
