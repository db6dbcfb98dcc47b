/* SPDX-License-Identifier: Apache-2.0 */
#include "base/bytes.h"
#include "base/clock.h"
#include "format/host_state.h"
#include "tests/test.h"

#include <pthread.h>

static void test_layout(void **state) {
        struct host_value v[] = {
                {.name = "a", .type = CAIRN_VALUE_I64},
                {.name = "b", .type = CAIRN_VALUE_BYTES, .capacity = 9},
                {.name = "c", .type = CAIRN_VALUE_BYTES, .capacity = 0},
                {.name = "d", .type = CAIRN_VALUE_F64},
        };
        uint64_t bytes;

        assert_int_equal(host_state_layout(v, 4, &bytes, NULL), 0);
        assert_int_equal(v[0].offset, 0);
        assert_int_equal(v[1].offset, 8);
        assert_int_equal(v[2].offset, 32);
        assert_int_equal(v[3].offset, 40);
        assert_int_equal(bytes, 48);
        v[3].name = "b";
        assert_int_equal(host_state_layout(v, 4, &bytes, NULL), CAIRN_ERR_API);
        v[3].name = "";
        assert_int_equal(host_state_layout(v, 4, &bytes, NULL), CAIRN_ERR_API);
        v[3] = (struct host_value){.name = "d", .type = 9};
        assert_int_equal(host_state_layout(v, 4, &bytes, NULL), CAIRN_ERR_API);
        v[3] = (struct host_value){
                .name = "d", .type = CAIRN_VALUE_BYTES, .capacity = HOST_STATE_BYTES_MAX};
        assert_int_equal(host_state_layout(v, 4, &bytes, NULL), CAIRN_ERR_API);
        v[3].capacity = UINT64_MAX;
        assert_int_equal(host_state_layout(v, 4, &bytes, NULL), CAIRN_ERR_API);
        assert_int_equal(host_state_layout(v, HOST_STATE_VALUES_MAX + 1, &bytes, NULL),
                         CAIRN_ERR_API);
        assert_int_equal(host_state_layout(NULL, 0, &bytes, NULL), 0);
        assert_int_equal(bytes, 0);
}

#define PAYLOAD_BYTES 1024
static _Alignas(4096) unsigned char mapping[16384];

static int setup(void **state) {
        memset(mapping, 0, sizeof mapping);
        assert_true(host_state_bytes(PAYLOAD_BYTES) <= sizeof mapping);
        host_state_init(mapping, PAYLOAD_BYTES);
        return 0;
}

static void test_check(void **state) {
        uint64_t bytes = host_state_bytes(PAYLOAD_BYTES);
        struct host_state_header *h = (void *) mapping, saved = *h;

        assert_int_equal(host_state_check(mapping, bytes, NULL), 0);
        assert_int_equal(host_state_check(mapping, bytes + 1, NULL), CAIRN_ERR_CORRUPT);
        assert_int_equal(host_state_check(mapping, 4095, NULL), CAIRN_ERR_CORRUPT);
        h->payload_bytes = UINT64_MAX - 7;
        assert_int_equal(host_state_check(mapping, bytes, NULL), CAIRN_ERR_CORRUPT);
        *h = saved;
        h->slot_stride = 0;
        assert_int_equal(host_state_check(mapping, bytes, NULL), CAIRN_ERR_CORRUPT);
        *h = saved;
        h->version = 2;
        assert_int_equal(host_state_check(mapping, bytes, NULL), CAIRN_ERR_UNSUPPORTED);
        h->magic[1] = 'x';
        assert_int_equal(host_state_check(mapping, bytes, NULL), CAIRN_ERR_CORRUPT);
}

static void test_slots(void **state) {
        unsigned char payload[PAYLOAD_BYTES], copy[PAYLOAD_BYTES];
        int64_t step;

        assert_int_equal(host_state_read(mapping, PAYLOAD_BYTES, 0, &step, copy, NULL),
                         CAIRN_ERR_STALE); /* never written */
        memset(payload, 1, sizeof payload);
        host_state_publish(mapping, 4, 40, payload);
        memset(payload, 2, sizeof payload);
        host_state_publish(mapping, 5, 50, payload);
        assert_int_equal(host_state_read(mapping, PAYLOAD_BYTES, 4, &step, copy, NULL), 0);
        assert_int_equal(step, 40);
        assert_int_equal(copy[PAYLOAD_BYTES - 1], 1);
        assert_int_equal(host_state_read(mapping, PAYLOAD_BYTES, 5, &step, copy, NULL), 0);
        assert_int_equal(copy[0], 2);
        assert_int_equal(host_state_read(mapping, PAYLOAD_BYTES, 6, &step, copy, NULL),
                         CAIRN_ERR_STALE);

        struct host_state_slot *slot = (void *) (mapping + 4096);
        ((unsigned char *) (slot + 1))[100] ^= 1;
        assert_int_equal(host_state_read(mapping, PAYLOAD_BYTES, 4, &step, copy, NULL),
                         CAIRN_ERR_CORRUPT);
        slot->lock |= 1;
        assert_int_equal(host_state_read(mapping, PAYLOAD_BYTES, 4, &step, copy, NULL),
                         CAIRN_ERR_STALE);
        host_state_publish(mapping, 6, 60, payload); /* an odd lock left behind does not stay */
        assert_int_equal(host_state_read(mapping, PAYLOAD_BYTES, 6, &step, copy, NULL), 0);
}

static atomic_bool over;

static void *writer(void *argument) {
        unsigned char payload[PAYLOAD_BYTES];

        for (uint64_t seq = 1; !atomic_load(&over); seq++) {
                memset(payload, (int) (seq & 0xff), sizeof payload);
                host_state_publish(mapping, seq, (int64_t) seq, payload);
        }
        return NULL;
}

/* A reader never sees a mixture, whatever seq it asks for. */
static void test_concurrent(void **state) {
        unsigned char copy[PAYLOAD_BYTES];
        uint64_t whole = 0, seq = 1;
        pthread_t thread;

        assert_int_equal(pthread_create(&thread, NULL, writer, NULL), 0);
        uint64_t now_ns, begin_ns = clock_now(&clock_system);
        while ((now_ns = clock_now(&clock_system)) < begin_ns + NSEC_PER_SEC / 5 ||
               (whole == 0 && now_ns < begin_ns + 60 * NSEC_PER_SEC)) {
                int64_t step;
                const struct host_state_slot *slot = (const void *) (mapping + 4096);

                seq = __atomic_load_n(&slot->seq, __ATOMIC_RELAXED);
                int r = host_state_read(mapping, PAYLOAD_BYTES, seq, &step, copy, NULL);
                assert_int_not_equal(r, CAIRN_ERR_CORRUPT);
                if (r != 0)
                        continue;
                whole++;
                assert_int_equal(step, seq);
                for (size_t i = 0; i < PAYLOAD_BYTES; i++)
                        assert_int_equal(copy[i], seq & 0xff);
        }
        atomic_store(&over, true);
        assert_int_equal(pthread_join(thread, NULL), 0);
        print_message("%llu whole reads\n", (unsigned long long) whole);
        assert_true(whole > 0);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_layout),
                cmocka_unit_test_setup(test_check, setup),
                cmocka_unit_test_setup(test_slots, setup),
                cmocka_unit_test_setup(test_concurrent, setup),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
