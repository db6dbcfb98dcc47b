/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "client/inventory.h"
#include "format/file.h"
#include <fcntl.h>
#include <sys/mman.h>

struct fixture {
        struct device *device;
        struct slabs slabs;
        struct registry registry;
        char *data;
};

static int set_up(void **state) {
        struct fixture *f = calloc(1, sizeof *f);
        *state = f;
        (void) device_host.open(0, &f->device, NULL);
        slabs_init(&f->slabs, f->device);
        (void) registry_init(&f->registry);
        return slabs_allocate(&f->slabs, 65536, (void **) &f->data, NULL, NULL);
}
static int tear_down(void **state) {
        struct fixture *f = *state;
        registry_done(&f->registry);
        slabs_done(&f->slabs);
        device_host.close(f->device);
        free(f);
        return 0;
}

static void add(struct fixture *f, const char *name, uint64_t bytes, bool replicated) {
        struct cairn_tensor t = {CAIRN_TENSOR_INIT,
                                 .name = name,
                                 .role = CAIRN_PARAMETER,
                                 .dtype = CAIRN_U8,
                                 .rank = 1,
                                 .shape = {bytes},
                                 .data = f->data,
                                 .replicated = replicated};
        assert_int_equal(registry_add_tensor(&f->registry, &f->slabs, &t, NULL), 0);
}

static void the_agent_reads_what_was_declared(void **state) {
        struct fixture *f = *state;
        struct inventory i;
        struct file_content content;
        struct arena arena;
        int64_t v = 5;
        uint64_t length = 3;
        add(f, "a", 100, false);
        add(f, "b", 300, false);
        assert_int_equal(registry_add_value(&f->registry, "v", CAIRN_VALUE_I64, &v, NULL, 8, NULL),
                         0);
        assert_int_equal(registry_add_value(&f->registry, "bytes", CAIRN_VALUE_BYTES, f->data,
                                            &length, 13, NULL),
                         0);
        assert_int_equal(registry_describe(&f->registry, "config.x", "1", NULL), 0);
        assert_int_equal(inventory_build(&f->registry, &f->slabs, 3, 0, (struct layout_ranks){0, 1},
                                         &i, NULL),
                         0);
        assert_int_equal(i.image_bytes, 8192); /* header, then 256 + 300 bytes */
        assert_int_equal(i.payload_bytes, 8 + 8 + 16);
        assert_int_equal(fcntl(i.fd, F_GET_SEALS) & (F_SEAL_WRITE | F_SEAL_SHRINK),
                         F_SEAL_WRITE | F_SEAL_SHRINK);
        assert_int_equal(fcntl(i.host_fd, F_GET_SEALS) & F_SEAL_SHRINK, F_SEAL_SHRINK);

        void *bytes = mmap(NULL, i.file_bytes, PROT_READ, MAP_SHARED, i.fd, 0);
        arena_init(&arena, 16 * MiB);
        assert_int_equal(
                file_read(bytes, i.file_bytes, FILE_INVENTORY, "inventory", &arena, &content, NULL),
                0);
        assert_int_equal(content.tensor_count, 2);
        assert_int_equal(content.inventory->seal, 3);
        assert_int_equal(content.inventory->n_layout, 2);
        assert_int_equal(content.inventory->slab_bytes[0], 16 * MiB);
        assert_true(content.placements[0]->owned);
        (void) munmap(bytes, i.file_bytes);
        arena_done(&arena);

        unsigned char payload[32];
        memset(payload, 0xff, sizeof payload);
        memset(f->data, 7, 13);
        assert_int_equal(inventory_pack_values(&f->registry, 2, payload, NULL), 0);
        static const unsigned char expected[] = {5, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0,
                                                 7, 7, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
        assert_memory_equal(payload, expected, sizeof expected);
        length = 14;
        assert_int_equal(inventory_pack_values(&f->registry, 2, payload, NULL), CAIRN_ERR_API);
        inventory_done(&i);
        inventory_done(&i);
}

/* In node-local stores every node writes all of what is replicated, shared out over its ranks. */
static void replicated_tensors_have_an_owner_on_each_node(void **state) {
        struct fixture *f = *state;
        int owners[2][2] = {{0}};
        add(f, "b", 200, true);
        add(f, "a", 300, true);
        for (uint32_t rank = 0; rank < 4; rank++) {
                struct inventory i;
                struct layout_ranks node = {rank / 2 * 2, 2};
                assert_int_equal(inventory_build(&f->registry, &f->slabs, 1, rank, node, &i, NULL),
                                 0);
                for (size_t k = 0; k < 2; k++)
                        owners[rank / 2][k] += f->registry.tensors[k].owned;
                inventory_done(&i);
        }
        for (size_t k = 0; k < 4; k++)
                assert_int_equal(owners[k / 2][k % 2], 1);
}

/* A replicated tensor has one owner, whatever order a rank registers in. */
static void replicated_tensors_have_one_owner(void **state) {
        struct fixture *f = *state;
        enum { WORLD = 3 };
        int owners[4] = {0};
        add(f, "d", 100, true);
        add(f, "b", 200, true);
        add(f, "a", 300, true);
        add(f, "mine", 50, false);
        for (uint32_t rank = 0; rank < WORLD; rank++) {
                struct inventory i;
                assert_int_equal(inventory_build(&f->registry, &f->slabs, 1, rank,
                                                 (struct layout_ranks){0, WORLD}, &i, NULL),
                                 0);
                for (size_t k = 0; k < 4; k++)
                        owners[k] += f->registry.tensors[k].owned;
                inventory_done(&i);
        }
        for (size_t k = 0; k < 3; k++)
                assert_int_equal(owners[k], 1);
        assert_int_equal(owners[3], WORLD);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void) {
        const struct CMUnitTest tests[] = {
                TEST(the_agent_reads_what_was_declared),
                TEST(replicated_tensors_have_one_owner),
                TEST(replicated_tensors_have_an_owner_on_each_node),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
