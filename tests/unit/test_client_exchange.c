/* SPDX-License-Identifier: Apache-2.0
 *
 * The calls of the exchange between ranks, against fake_agent.h.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/limits.h"
#include "tests/unit/small_session.h"
#include <pthread.h>
#include <string.h>

static struct fake_agent agent;
static struct small_session now;

static int set_up(void **state) {
        fake_agent_init(&agent);
        fake_agent_start(&agent);
        small_init(&now);
        return small_open(&now, &agent);
}
static int tear_down(void **state) {
        cairn_close(now.c);
        now.c = NULL;
        fake_agent_done(&agent);
        return 0;
}

#define SOON (60 * NSEC_PER_SEC)

static void put_and_get(void **state) {
        char value[16];
        uint64_t bytes = 0, generation = 0;
        uint32_t ranks[2], count = 0;
        assert_int_equal(cairn_exchange_put(now.c, "a", "address", 7, SOON), 0);
        assert_int_equal(cairn_exchange_get(now.c, "a", value, sizeof value, &bytes, 0), 0);
        assert_int_equal(bytes, 7);
        assert_memory_equal(value, "address", 7);
        assert_int_equal(cairn_exchange_put(now.c, "a", "another", 7, 0), 0);
        assert_int_equal(cairn_exchange_get(now.c, "a", value, sizeof value, &bytes, SOON), 0);
        assert_memory_equal(value, "another", 7);
        assert_int_equal(cairn_exchange_put(now.c, "nothing", NULL, 0, SOON), 0);
        assert_int_equal(cairn_exchange_get(now.c, "nothing", NULL, 0, &bytes, 0), 0);
        assert_int_equal(bytes, 0);
        /* Too small a place: how large it has to be. */
        assert_int_equal(cairn_exchange_get(now.c, "a", value, 6, &bytes, 0), CAIRN_ERR_NOMEM);
        assert_int_equal(bytes, 7);
        assert_int_equal(cairn_exchange_ranks(now.c, ranks, 2, &count, &generation, SOON), 0);
        assert_int_equal(count, 3);
        assert_int_equal(ranks[1], 2);
        assert_int_equal(generation, agent.generation);
}

static void append(const char *key, const void *value, uint64_t bytes, void *argument) {
        char *all = argument;
        size_t at = strlen(all);
        (void) snprintf(all + at, 64 - at, "%s=%.*s ", key, (int) bytes, (const char *) value);
}

static void list(void **state) {
        char all[64] = "";
        assert_int_equal(cairn_exchange_list(now.c, "", append, all, SOON), 0);
        assert_string_equal(all, "");
        assert_int_equal(cairn_exchange_put(now.c, "k.0", "zero", 4, SOON), 0);
        assert_int_equal(cairn_exchange_put(now.c, "k.1", "one", 3, SOON), 0);
        assert_int_equal(cairn_exchange_put(now.c, "k.2", "", 0, SOON), 0);
        assert_int_equal(cairn_exchange_list(now.c, "k.", append, all, SOON), 0);
        assert_string_equal(all, "k.0=zero k.1=one k.2= ");
        assert_int_equal(cairn_exchange_list(now.c, "k.", NULL, all, SOON), CAIRN_ERR_API);
        assert_int_equal(cairn_exchange_list(now.c, NULL, append, all, SOON), CAIRN_ERR_API);
}

static void *put_soon(void *argument) {
        clock_system.sleep_ns(clock_system.context, 50 * NSEC_PER_MSEC);
        return (void *) (intptr_t) cairn_exchange_put(now.c, argument, "here", 4, SOON);
}

/* Another thread gets its turn while one waits. */
static void waiting(void **state) {
        pthread_t thread;
        char value[16], key[] = "late";
        uint64_t bytes;
        void *r;
        assert_int_equal(
                cairn_exchange_get(now.c, key, value, sizeof value, &bytes, 20 * NSEC_PER_MSEC),
                CAIRN_ERR_TIMEOUT);
        assert_non_null(strstr(cairn_error_text(now.c), "late"));
        assert_int_equal(pthread_create(&thread, NULL, put_soon, key), 0);
        assert_int_equal(cairn_exchange_get(now.c, key, value, sizeof value, &bytes, SOON), 0);
        assert_memory_equal(value, "here", 4);
        assert_int_equal(pthread_join(thread, &r), 0);
        assert_null(r);
}

/* The agent keeps values in memory only: its successor is told of them before it is asked. */
static void a_new_agent_is_told(void **state) {
        char value[16];
        uint64_t bytes;
        assert_int_equal(cairn_exchange_put(now.c, "a", "1", 1, SOON), 0);
        assert_int_equal(cairn_exchange_put(now.c, "b", "2", 1, SOON), 0);
        assert_int_equal(cairn_exchange_put(now.c, "b", "3", 1, SOON), 0);
        fake_agent_stop(&agent);
        assert_int_equal(cairn_exchange_put(now.c, "b", "4", 1, 0), CAIRN_ERR_UNREACHABLE);
        assert_int_equal(cairn_exchange_get(now.c, "a", value, sizeof value, &bytes, 0),
                         CAIRN_ERR_UNREACHABLE);
        fake_agent_start(&agent);
        assert_int_equal(cairn_exchange_get(now.c, "a", value, sizeof value, &bytes, SOON), 0);
        assert_memory_equal(value, "1", 1);
        assert_int_equal(cairn_exchange_get(now.c, "b", value, sizeof value, &bytes, SOON), 0);
        assert_memory_equal(value, "3", 1);
        assert_int_equal(agent.puts, 5);
}

static void a_silent_agent(void **state) {
        uint64_t begin_ns = clock_now(&clock_system);
        agent.mute = true;
        assert_int_equal(cairn_exchange_put(now.c, "a", "1", 1, 100 * NSEC_PER_MSEC),
                         CAIRN_ERR_UNREACHABLE);
        uint64_t took_ns = clock_now(&clock_system) - begin_ns;
        assert_true(took_ns >= 100 * NSEC_PER_MSEC && took_ns < 20 * NSEC_PER_SEC);
}

static void misuse(void **state) {
        static char text[CAIRN_EXCHANGE_VALUE_BYTES_MAX + 1];
        struct cairn_options alone = CAIRN_OPTIONS_INIT;
        struct cairn *passive = NULL;
        uint64_t bytes, generation;
        uint32_t count;
        memset(text, 'k', sizeof text - 1);
        assert_int_equal(cairn_exchange_put(NULL, "a", "1", 1, SOON), CAIRN_ERR_API);
        assert_int_equal(cairn_exchange_put(now.c, NULL, "1", 1, SOON), CAIRN_ERR_API);
        assert_int_equal(cairn_exchange_put(now.c, "", "1", 1, SOON), CAIRN_ERR_API);
        assert_int_equal(cairn_exchange_put(now.c, text, "1", 1, SOON), CAIRN_ERR_API);
        assert_int_equal(cairn_exchange_put(now.c, "a", NULL, 1, SOON), CAIRN_ERR_API);
        assert_int_equal(cairn_exchange_put(now.c, "a", text, sizeof text, SOON), CAIRN_ERR_API);
        assert_int_equal(cairn_exchange_get(now.c, "a", NULL, 1, &bytes, 0), CAIRN_ERR_API);
        assert_int_equal(cairn_exchange_get(now.c, "a", NULL, 0, NULL, 0), CAIRN_ERR_API);
        assert_int_equal(cairn_exchange_ranks(now.c, NULL, 1, &count, &generation, 0),
                         CAIRN_ERR_API);
        assert_int_equal(agent.puts, 0);
        alone.run = "alone";
        alone.without_checkpoints = true;
        assert_int_equal(cairn_open(&alone, &passive), 0);
        assert_int_equal(cairn_exchange_put(passive, "a", "1", 1, SOON), CAIRN_ERR_UNREACHABLE);
        assert_int_equal(cairn_exchange_ranks(passive, NULL, 0, &count, &generation, SOON),
                         CAIRN_ERR_UNREACHABLE);
        cairn_close(passive);
}

int main(void) {
#define TEST(fn) cmocka_unit_test_setup_teardown(fn, set_up, tear_down)
        const struct CMUnitTest tests[] = {
                TEST(put_and_get),         TEST(list),           TEST(waiting),
                TEST(a_new_agent_is_told), TEST(a_silent_agent), TEST(misuse),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
