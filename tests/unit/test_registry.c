/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "client/registry.h"
#include <sys/mman.h>

struct fixture {
        struct device *device;
        struct slabs slabs;
        struct registry registry;
        float *data;
};

static int set_up(void **state) {
        struct fixture *f = calloc(1, sizeof *f);
        *state = f;
        (void) device_host.open(0, &f->device, NULL);
        slabs_init(&f->slabs, f->device);
        (void) registry_init(&f->registry);
        return slabs_allocate(&f->slabs, 4096, (void **) &f->data, NULL, NULL);
}
static int tear_down(void **state) {
        struct fixture *f = *state;
        registry_done(&f->registry);
        slabs_done(&f->slabs);
        device_host.close(f->device);
        free(f);
        return 0;
}

static struct cairn_tensor tensor(struct fixture *f, const char *name) {
        return (struct cairn_tensor){CAIRN_TENSOR_INIT,  .name = name, .role = CAIRN_PARAMETER,
                                     .dtype = CAIRN_F32, .rank = 2,    .shape = {4, 8},
                                     .data = f->data};
}

static int add(struct fixture *f, struct cairn_tensor t, struct cairn_error *e) {
        *e = (struct cairn_error) CAIRN_ERROR_INIT;
        return registry_add_tensor(&f->registry, &f->slabs, &t, e);
}

#define REFUSED(change, text)                                      \
        do {                                                       \
                struct cairn_tensor t = tensor(f, "x");            \
                size_t count = f->registry.tensor_count;           \
                change;                                            \
                assert_int_equal(add(f, t, &e), CAIRN_ERR_API);    \
                if (!strstr(e.message, text))                      \
                        print_error("%s\n", e.message);            \
                assert_non_null(strstr(e.message, text));          \
                assert_int_equal(f->registry.tensor_count, count); \
        } while (0)

static void every_rule_at_the_call(void **state) {
        struct fixture *f = *state;
        struct cairn_error e;
        REFUSED(t.name = NULL, "name is missing");
        REFUSED(t.name = "", "name is missing");
        REFUSED(t.name = "\xff", "not valid UTF-8");
        REFUSED(t.name = "\xc0\x80", "not valid UTF-8");
        REFUSED(t.name = "\xed\xa0\x80", "not valid UTF-8");
        REFUSED(t.role = 0, "not a role");
        REFUSED(t.dtype = 99, "not a dtype");
        REFUSED(t.stored_dtype = 99, "not a dtype");
        REFUSED(t.mutates = 7, "mutates");
        REFUSED(t.rank = 9, "more than 8");
        REFUSED(t.shape[0] = UINT64_MAX / 2, "too large");
        REFUSED((t.role = CAIRN_STEP, t.dtype = CAIRN_F16), "f16");
        REFUSED((t.role = CAIRN_STEP, t.dtype = CAIRN_I64), "role other");
        REFUSED((t.role = CAIRN_MOMENT2, t.stored_dtype = CAIRN_F16), "");
        REFUSED((t.strides[0] = 16, t.strides[1] = 1), "strides");
        REFUSED((t.strides[0] = 1, t.strides[1] = 4), "strides");
        REFUSED((t.strides[0] = -8, t.strides[1] = 1), "strides");
        REFUSED(t.data = NULL, "NULL");
        REFUSED(t.data = (void *) 4096, "no memory of this process");
        REFUSED(t.data = (char *) f->data + 4090, "cairn_alloc");
        REFUSED(t.data = (char *) f->data + 1, "aligned");
        REFUSED((t.sharded = true, t.flat_start = 30, t.flat_count = 3), "beyond");
        REFUSED((t.sharded = true, t.flat_start = UINT64_MAX, t.flat_count = 2), "beyond");
        REFUSED((t.sharded = t.replicated = true), "at once");
        REFUSED(t.alias_of = "nobody", "not registered");
        REFUSED(t.size = 8, "CAIRN_TENSOR_INIT");
        assert_int_equal(add(f, tensor(f, "x"), &e), 0);
        REFUSED((void) 0, "before");
}

/* The trainer's own memory, of which no cut can be taken after its death. */
static void memory_from_elsewhere(void **state) {
        struct fixture *f = *state;
        float *outside = calloc(32, sizeof *outside);
        struct cairn_error e;
        struct cairn_tensor t = tensor(f, "a");
        t.data = outside;
        assert_int_equal(add(f, t, &e), 0);
        assert_true(f->registry.tensors[0].elsewhere);
        assert_int_equal(f->registry.elsewhere_count, 1);
        t.name = "tied";
        t.alias_of = "a";
        assert_int_equal(add(f, t, &e), 0);
        assert_int_equal(f->registry.elsewhere_count, 1);
        /* Its shadow is what is copied, and that lies in a slab. */
        t.name = "statistics";
        t.alias_of = NULL;
        t.mutates = CAIRN_ANYTIME;
        assert_int_equal(add(f, t, &e), 0);
        assert_false(f->registry.tensors[2].elsewhere);
        assert_int_equal(f->registry.elsewhere_count, 1);
        t = tensor(f, "in");
        assert_int_equal(add(f, t, &e), 0);
        assert_false(f->registry.tensors[3].elsewhere);
        free(outside);
}

/* Addresses that are mapped, but closed: a GPU's are reserved so in the process, and a session of
 * the host took them for memory. Both ends are looked at. */
static void memory_that_cannot_be_read(void **state) {
        enum { PAGE = 4096, PAGES = 3 };
        struct fixture *f = *state;
        struct cairn_error e;
        char *area = mmap(NULL, PAGES * PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        assert_ptr_not_equal(area, MAP_FAILED);
        struct cairn_tensor good = tensor(f, "good");
        good.data = area + PAGE;
        good.shape[0] = PAGE / 32;
        assert_int_equal(add(f, good, &e), 0);
        assert_int_equal(mprotect(area + PAGE, PAGE, PROT_NONE), 0);
        REFUSED(t.data = area + PAGE, "no memory of this process: a GPU's");
        REFUSED(t.data = area + PAGE - 32, "no memory of this process");
        REFUSED(t.data = area + 2 * PAGE - 32, "no memory of this process");
        good.name = "behind it";
        good.data = area + 2 * PAGE;
        assert_int_equal(add(f, good, &e), 0);
        assert_int_equal(munmap(area, PAGES * PAGE), 0);
}

/* B64: names live in the inventory; the limit is checked here, not hours later. */
static void b64_long_names(void **state) {
        static const size_t lengths[] = {1, 254, 255, 256, 4096, 65536};
        struct fixture *f = *state;
        struct cairn_error e;
        char *name = calloc(1, 65538);
        for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
                memset(name, 'n', lengths[i]);
                assert_int_equal(add(f, tensor(f, name), &e), 0);
        }
        memset(name, 'n', 65537);
        assert_int_equal(add(f, tensor(f, name), &e), CAIRN_ERR_API);
        assert_non_null(strstr(e.message, "65536"));
        free(name);
}

static void strides_that_are_contiguous(void **state) {
        struct fixture *f = *state;
        struct cairn_error e;
        struct cairn_tensor t = tensor(f, "a");
        t.strides[0] = 8;
        t.strides[1] = 1;
        assert_int_equal(add(f, t, &e), 0);
        t = tensor(f, "b");
        t.shape[0] = 1;
        t.strides[0] = 77; /* of one element: it does not matter */
        t.strides[1] = 1;
        assert_int_equal(add(f, t, &e), 0);
}

static void aliases(void **state) {
        struct fixture *f = *state;
        struct cairn_error e;
        struct cairn_tensor t = tensor(f, "a");
        assert_int_equal(add(f, t, &e), 0);
        t.name = "b";
        t.alias_of = "a";
        assert_int_equal(add(f, t, &e), 0);
        t.name = "c";
        t.alias_of = "b"; /* of an alias: of its root */
        assert_int_equal(add(f, t, &e), 0);
        assert_int_equal(f->registry.tensors[2].alias_of, 0);
        t.name = "d";
        t.data = f->data + 8;
        assert_int_equal(add(f, t, &e), CAIRN_ERR_API);
        t = tensor(f, "e");
        t.alias_of = "a";
        t.shape[t.rank++] = 1; /* as many elements, which no seal would take */
        assert_int_equal(add(f, t, &e), CAIRN_ERR_API);
        assert_non_null(strstr(e.message, "shape"));
}

static void steps_follow_their_truth(void **state) {
        struct fixture *f = *state;
        int64_t truth = (1 << 24) + 1;
        assert_int_equal(registry_add_step(&f->registry, &f->slabs, "s", f->data, &truth, NULL), 0);
        registry_write_steps(&f->registry);
        assert_true(f->data[0] == 16777216.0f);
        assert_int_equal(truth, (1 << 24) + 1);
        assert_string_equal(f->registry.values[0].name, "cairn.step/s");
        assert_int_equal(registry_add_step(&f->registry, &f->slabs, "s", f->data, &truth, NULL),
                         CAIRN_ERR_API);
        assert_int_equal(registry_add_step(&f->registry, &f->slabs, "t", f->data, NULL, NULL),
                         CAIRN_ERR_API);
}

static void values_and_descriptions(void **state) {
        struct fixture *f = *state;
        struct registry *r = &f->registry;
        int64_t v;
        uint64_t length = 0;
        assert_int_equal(registry_add_value(r, "v", CAIRN_VALUE_I64, &v, NULL, 8, NULL), 0);
        assert_int_equal(registry_add_value(r, "v", CAIRN_VALUE_I64, &v, NULL, 8, NULL),
                         CAIRN_ERR_API);
        assert_int_equal(registry_add_value(r, "w", CAIRN_VALUE_I64, NULL, NULL, 8, NULL),
                         CAIRN_ERR_API);
        assert_int_equal(registry_add_value(r, "cairn.x", CAIRN_VALUE_I64, &v, NULL, 8, NULL),
                         CAIRN_ERR_API);
        assert_int_equal(registry_add_value(r, "b", CAIRN_VALUE_BYTES, &v, NULL, 8, NULL),
                         CAIRN_ERR_API);
        assert_int_equal(registry_add_value(r, "b", CAIRN_VALUE_BYTES, &v, &length,
                                            HOST_STATE_BYTES_MAX + 1, NULL),
                         CAIRN_ERR_API);
        assert_int_equal(registry_add_value(r, "b", CAIRN_VALUE_BYTES, &v, &length, 8, NULL), 0);
        assert_int_equal(registry_describe(r, "config.a", "1", NULL), 0);
        assert_int_equal(registry_describe(r, "config.a", "1", NULL), 0);
        assert_int_equal(registry_describe(r, "config.a", "2", NULL), CAIRN_ERR_API);
        assert_int_equal(registry_describe(r, "config.b", NULL, NULL), CAIRN_ERR_API);
        assert_string_equal(registry_description(r, "config.a", 8), "1");
        assert_null(registry_description(r, "config.b", 8));
}

static void shadows_are_copies(void **state) {
        struct fixture *f = *state;
        struct cairn_error e;
        struct cairn_tensor t = tensor(f, "a");
        t.mutates = CAIRN_ANYTIME;
        assert_int_equal(add(f, t, &e), 0);
        const struct tensor *kept = &f->registry.tensors[0];
        assert_non_null(kept->shadow);
        assert_ptr_not_equal(kept->shadow, kept->data);
        f->data[5] = 5;
        registry_write_shadows(&f->registry);
        f->data[5] = 6;
        assert_true(((float *) kept->shadow)[5] == 5.0f);
}

static void labels(void **state) {
        char buf[64];
        uint64_t shape[] = {2, 3};
        assert_string_equal(shape_label(shape, 2, buf, sizeof buf), "[2, 3]");
        assert_string_equal(shape_label(shape, 0, buf, sizeof buf), "[]");
        assert_string_equal(name_label("a\nb", 3, buf, sizeof buf), "a\\x0ab");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void) {
        const struct CMUnitTest tests[] = {
                TEST(every_rule_at_the_call),      TEST(memory_from_elsewhere),
                TEST(memory_that_cannot_be_read),  TEST(b64_long_names),
                TEST(strides_that_are_contiguous), TEST(aliases),
                TEST(steps_follow_their_truth),    TEST(values_and_descriptions),
                TEST(shadows_are_copies),          TEST(labels),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
