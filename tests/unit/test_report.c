/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "client/report.h"

static struct pair overrides[] = {{"optimizer.lr", "0.01"}};

static struct report_facts facts(const struct binding *b) {
        return (struct report_facts){.start = CAIRN_START_RESUME,
                                     .run = "run",
                                     .checkpoint = "000000001200-g0002",
                                     .step = 1200,
                                     .generation = 4,
                                     .restart = 3,
                                     .bytes = 2000000000,
                                     .read_ns = 900000000,
                                     .apply_ns = 100000000,
                                     .world = 1,
                                     .world_stored = 2,
                                     .overrides = overrides,
                                     .override_count = 1,
                                     .binding = b};
}

static void one_line_says_it_all(void **state) {
        struct binding b = {.load_count = 148};
        struct textbuf t = {0};
        struct report_facts f = facts(&b);
        report_text(&t, &f);
        assert_string_equal(textbuf_string(&t),
                            "start resume, step 1200, checkpoint 000000001200-g0002, restart 3, "
                            "generation 4, world 2 -> 1, overrides: optimizer.lr=0.01, 148 tensors "
                            "loaded, 0 skipped, 2000.0 MB at 2.00 GB/s, bit-exact");
        assert_true(report_bit_exact(&f));
        textbuf_item(&b.differs, "numerics.blas a -> b");
        report_text(&t, &f);
        assert_non_null(strstr(textbuf_string(&t), ", not bit-exact: numerics.blas a -> b"));
        assert_null(strchr(textbuf_string(&t), '\n'));
        report_json(&t, &f);
        assert_non_null(strstr(textbuf_string(&t), "\"differs\":[\"numerics.blas a -> b\"]}"));
        assert_non_null(strstr(textbuf_string(&t), "\"overrides\":{\"optimizer.lr\":\"0.01\"}"));
        binding_done(&b);
        textbuf_done(&t);
}

static void the_line_stays_readable(void **state) {
        struct binding b = {0};
        struct textbuf t = {0};
        struct report_facts f = facts(&b);
        f.start = CAIRN_START_INIT_FROM;
        for (int i = 0; i < 1000; i++)
                textbuf_item(&b.skipped, "tensor %d", i);
        report_text(&t, &f);
        assert_non_null(strstr(textbuf_string(&t), "1000 skipped"));
        assert_non_null(strstr(textbuf_string(&t), "; and 984 more"));
        report_json(&t, &f);
        assert_non_null(strstr(textbuf_string(&t), "\"tensor 999\""));
        assert_false(report_bit_exact(&f));
        binding_done(&b);
        textbuf_done(&t);
}

static void fresh_is_short(void **state) {
        struct textbuf t = {0};
        struct report_facts f = {.start = CAIRN_START_FRESH,
                                 .run = "run",
                                 .checkpoint = "",
                                 .generation = 1,
                                 .world = 1};
        report_text(&t, &f);
        assert_string_equal(textbuf_string(&t),
                            "start fresh, step 0, restart 0, generation 1, world 1");
        textbuf_done(&t);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(one_line_says_it_all),
                cmocka_unit_test(the_line_stays_readable),
                cmocka_unit_test(fresh_is_short),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
