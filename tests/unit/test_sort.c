/* SPDX-License-Identifier: Apache-2.0 */
#include "format/sort.h"
#include "tests/test.h"

typedef Cairn__Format__Tensor Tensor;

enum { COUNT = 20000 };

static uint64_t random_word(void) {
        static uint64_t state = 7;
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        return state;
}

/* Few values, so that many are equal, and all of them in some bytes only. */
static void test_items_are_sorted_and_stable(void **state) {
        static const uint64_t masks[] = {0, 1, 0xff00, UINT64_C(0xf) << 60, 0x1f1f, UINT64_MAX};
        static struct sort_item items[COUNT], spare[COUNT];
        static const char order[COUNT];

        for (size_t k = 0; k < 8 * sizeof masks / sizeof masks[0]; k++) {
                size_t count = k % 8 == 0 ? COUNT : k % 8 == 1 ? 0 : random_word() % 70;
                for (size_t i = 0; i < count; i++)
                        items[i] = (struct sort_item){random_word() & masks[k / 8], &order[i]};
                sort_items(items, spare, count);
                for (size_t i = 1; i < count; i++) {
                        assert_true(items[i - 1].key <= items[i].key);
                        if (items[i - 1].key == items[i].key)
                                assert_true(items[i - 1].item < items[i].item);
                }
        }
}

static Tensor records[COUNT];
static char names[COUNT][64];

static void name_record(size_t i, const char *name) {
        (void) snprintf(names[i], sizeof names[i], "%s", name);
        cairn__format__tensor__init(&records[i]);
        records[i].name = (ProtobufCBinaryData){strlen(names[i]), (uint8_t *) names[i]};
}

static void check_names(size_t count) {
        static Tensor *sorted[COUNT];

        for (size_t i = 0; i < count; i++)
                sorted[i] = &records[i];
        assert_int_equal(sort_tensors(sorted, count, NULL), 0);
        for (size_t i = 1; i < count; i++) {
                int order =
                        strcmp((char *) sorted[i - 1]->name.data, (char *) sorted[i]->name.data);
                assert_true(order < 0 || (order == 0 && sorted[i - 1] < sorted[i]));
        }
}

static void test_names(void **state) {
        char name[64];

        check_names(0);
        for (size_t i = 0; i < COUNT; i++) {
                (void) snprintf(name, sizeof name, "model.layers.%zu.self_attention.%s", i / 4,
                                (const char *[]){"weight", "bias", "w", "weight.scale"}[i % 4]);
                name_record(i, name);
        }
        check_names(COUNT);
        for (size_t i = 0; i < COUNT; i++) { /* short, many of them equal, one the other's begin */
                (void) snprintf(name, sizeof name, "%.*s", (int) (random_word() % 20 + 1),
                                "\xe2\x82\xac"
                                "aaaaaaaaaaaaaaaaa");
                name[random_word() % 3] = (char) ('a' + random_word() % 3);
                name_record(i, name);
        }
        check_names(COUNT);
        for (size_t i = 0; i < COUNT; i++)
                name_record(i, "the same name");
        check_names(COUNT);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_items_are_sorted_and_stable),
                cmocka_unit_test(test_names),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
