/* SPDX-License-Identifier: Apache-2.0 */
#include "client/slab.h"
#include "tests/test.h"
#include "tests/unit/cuda_emulated.h"

static void places_repeat(void **state) {
        static const uint64_t sizes[] = {1, 256, 257, 0, 5 * MiB, 12 * MiB, 3, 200 * MiB, 7};
        struct slab_place first[9], again;
        struct device *d;
        assert_int_equal(device_host.open(0, &d, NULL), 0);
        for (int pass = 0; pass < 2; pass++) {
                struct slabs s;
                slabs_init(&s, d);
                for (size_t i = 0; i < 9; i++) {
                        void *p;
                        struct slab_place *place = pass == 0 ? &first[i] : &again;
                        assert_int_equal(slabs_allocate(&s, sizes[i], &p, place, NULL), 0);
                        assert_int_equal((uintptr_t) p % TENSOR_ALIGNMENT, 0);
                        assert_int_equal(place->slab, first[i].slab);
                        assert_int_equal(place->offset, first[i].offset);
                }
                assert_true(s.count <= 4);
                slabs_done(&s);
        }
        device_host.close(d);
}

static void few_slabs_hold_everything(void **state) {
        struct device *d;
        struct slabs s;
        void *p;
        assert_int_equal(device_host.open(0, &d, NULL), 0);
        slabs_init(&s, d);
        for (int i = 0; i < 4000; i++)
                assert_int_equal(slabs_allocate(&s, 1 * MiB, &p, NULL, NULL), 0);
        assert_true(s.count <= 8);
        assert_int_equal(slabs_allocate(&s, UINT64_MAX, &p, NULL, NULL), CAIRN_ERR_API);
        slabs_done(&s);
        device_host.close(d);
}

static void only_whole_ranges_are_found(void **state) {
        struct device *d;
        struct slabs s;
        struct slab_place place;
        char *a, *b, outside;
        assert_int_equal(device_host.open(0, &d, NULL), 0);
        slabs_init(&s, d);
        assert_int_equal(slabs_allocate(&s, 512, (void **) &a, NULL, NULL), 0);
        assert_int_equal(slabs_allocate(&s, 64 * MiB, (void **) &b, NULL, NULL), 0);
        assert_true(slabs_find(&s, a + 100, 412, &place));
        assert_int_equal(place.slab, 0);
        assert_int_equal(place.offset, 100);
        assert_true(slabs_find(&s, b, 64 * MiB, &place));
        assert_int_equal(place.slab, 1);
        assert_false(slabs_find(&s, b, 64 * MiB + 1, &place));
        assert_false(slabs_find(&s, a, 513, &place));
        assert_false(slabs_find(&s, &outside, 1, &place));
        assert_false(slabs_find(&s, a, UINT64_MAX, &place));
        slabs_done(&s);
        device_host.close(d);
}

/* A GPU's slabs are its, and other devices' verbs have nothing to do with where things lie. */
static void slabs_of_a_gpu(void **state) {
        const struct cuda_driver *cuda;
        struct device *d;
        struct slabs s;
        struct slab_place place;
        void *a, *b;
        const struct emu_control *emu = cuda_emulated(&cuda);
        assert_int_equal(device_cuda.open(0, &d, NULL), 0);
        slabs_init(&s, d);
        assert_int_equal(slabs_allocate(&s, 1000, &a, NULL, NULL), 0);
        assert_int_equal(slabs_allocate(&s, 40 * MiB, &b, &place, NULL), 0);
        assert_int_equal(place.slab, 1);
        assert_int_equal((uintptr_t) b % TENSOR_ALIGNMENT, 0);
        assert_int_equal(s.items[0].memory.kind, DEVICE_HANDLE_CUDA_VMM);
        assert_true(slabs_find(&s, (char *) b + 5, 100, &place));
        assert_int_equal(place.offset, 5);
        slabs_done(&s);
        device_cuda.close(d);
        cuda_emulated_assert_empty(emu);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(places_repeat),
                cmocka_unit_test(few_slabs_hold_everything),
                cmocka_unit_test(only_whole_ranges_are_found),
                cmocka_unit_test(slabs_of_a_gpu),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
