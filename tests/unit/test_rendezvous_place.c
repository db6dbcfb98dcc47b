/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/rendezvous.h"
#include "tests/test.h"

static struct rendezvous_place place;
static struct cairn_error e;

static int parse(const char *url) {
        e = (struct cairn_error) CAIRN_ERROR_INIT;
        return rendezvous_place_parse(url, "/mnt/store", "run-1", &place, &e);
}

static void folders(void **state) {
        assert_int_equal(parse("dir"), 0);
        assert_int_equal(place.kind, RENDEZVOUS_DIR);
        assert_true(place.in_store && !place.create_store);
        assert_string_equal(place.path, "/mnt/store");
        assert_string_equal(place.run, "run-1");
        assert_string_equal(place.url, "dir");
        assert_int_equal(parse("dir:///shared/meet"), 0);
        assert_false(place.in_store);
        assert_string_equal(place.path, "/shared/meet");
        assert_int_equal(rendezvous_place_parse("dir:///x", NULL, "run", &place, &e), 0);
}

static void etcds(void **state) {
        assert_int_equal(parse("etcd://a"), 0);
        assert_int_equal(place.kind, RENDEZVOUS_ETCD);
        assert_string_equal(place.hosts, "a:2379");
        assert_string_equal(place.prefix, "/cairn");
        assert_int_equal(parse("etcd://a:1,10.0.0.2,[::1],[fe80::1]:65535/team/jobs"), 0);
        assert_string_equal(place.hosts, "a:1,10.0.0.2:2379,[::1]:2379,[fe80::1]:65535");
        assert_string_equal(place.prefix, "/team/jobs");
        assert_int_equal(parse("etcd://a/jobs/"), 0);
        assert_string_equal(place.prefix, "/jobs");
        assert_int_equal(parse("etcd://a/"), 0);
        assert_string_equal(place.prefix, "/cairn");
}

static void refusals(void **state) {
        static const struct {
                const char *url, *sentence;
        } wrong[] = {
                {"", "no rendezvous of this kind"},
                {"c10d://a:1", "no rendezvous of this kind"},
                {"directory", "no rendezvous of this kind"},
                {"/shared/meet", "no rendezvous of this kind"},
                {"etcd:a", "no rendezvous of this kind"},
                {"dir:", "comes nothing or ://"},
                {"dir://", "three slashes"},
                {"dir://shared", "three slashes"},
                {"etcd://", "host is missing or wrong"},
                {"etcd:///jobs", "host is missing or wrong"},
                {"etcd://a,", "host is missing or wrong"},
                {"etcd://,a", "host is missing or wrong"},
                {"etcd://a:0", "host is missing or wrong"},
                {"etcd://a:65536", "host is missing or wrong"},
                {"etcd://a:", "host is missing or wrong"},
                {"etcd://a:x", "host is missing or wrong"},
                {"etcd://a b", "host is missing or wrong"},
                {"etcd://::1", "host is missing or wrong"},
                {"etcd://[]:1", "host is missing or wrong"},
                {"etcd://user:secret@a", "passwords are not supported"},
                {"etcd://a/x y", "a prefix has"},
                {"etcd://a//x", "a prefix has"},
                {"etcd://a/x?y=1", "a prefix has"},
        };

        for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
                assert_int_equal(parse(wrong[i].url), CAIRN_ERR_API);
                if (!strstr(e.message, wrong[i].sentence))
                        fail_msg("%s: %s", wrong[i].url, e.message);
                assert_string_equal(e.object, wrong[i].url);
                assert_non_null(strstr(e.message, "right are: dir")); /* what to do */
        }
        assert_int_equal(rendezvous_place_parse("dir", NULL, "run", &place, &e), CAIRN_ERR_API);
        assert_non_null(strstr(e.message, "--store"));
        assert_int_equal(rendezvous_place_parse("dir", "relative", "run", &place, &e),
                         CAIRN_ERR_API);
        assert_int_equal(rendezvous_place_parse("dir", "/s", "../run", &place, &e), CAIRN_ERR_API);
}

static void lengths(void **state) {
        char url[5000];

        for (size_t bytes = 1; bytes < sizeof url - 10; bytes += 61) {
                memset(url, 'a', sizeof url);
                memcpy(url, "dir:///", 7);
                url[7 + bytes] = '\0';
                assert_int_equal(parse(url), bytes + 7 < sizeof place.url ? 0 : CAIRN_ERR_API);
                memset(url, 'a', sizeof url);
                memcpy(url, "etcd://h/", 9);
                url[9 + bytes] = '\0';
                assert_int_equal(parse(url), bytes + 1 < sizeof place.prefix ? 0 : CAIRN_ERR_API);
                (void) snprintf(url, sizeof url, "etcd://");
                for (size_t i = 7; i + 2 < 7 + bytes; i += 2)
                        memcpy(url + i, "h,", 3);
                memcpy(url + strlen(url), "h", 2);
                int r = parse(url); /* "h:2379,": 7 bytes each */
                assert_int_equal(
                        r, (strlen(url) - 6) / 2 * 7 <= sizeof place.hosts ? 0 : CAIRN_ERR_API);
        }
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(folders),
                cmocka_unit_test(etcds),
                cmocka_unit_test(refusals),
                cmocka_unit_test(lengths),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
