/* SPDX-License-Identifier: Apache-2.0
 *
 * Which device is meant, what is said where it cannot be had, and the processor's table. That its
 * verbs are the functions of kernels/ is shown by test_network, test_update and test_train.
 */
#include "tests/test.h"
#include "trainer/compute.h"

static int open_device(const char *device, struct compute **ret, struct cairn_error *e) {
        const struct compute_options o = {.dtype = CAIRN_BF16, .threads = 1, .limit_ns = 1};

        *e = (struct cairn_error) CAIRN_ERROR_INIT;
        return compute_open(device, &o, ret, e);
}

static void test_names(void **state) {
        static const char *const wrong[] = {
                "gpu",     "",        "cpu:0",   "cuda:", "cuda0", "cuda:x",
                "cuda:-1", "cuda: 1", "cuda:1 ", "cudas", "CUDA",  "cuda:4096"};
        struct cairn_error e;
        struct compute *c;

        for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
                assert_int_equal(open_device(wrong[i], &c, &e), CAIRN_ERR_API);
                assert_non_null(strstr(e.message, "cuda:N"));
        }
        /* Another rank's GPU is never taken for want of a number. */
        static const char *const ranks[] = {"", "one", "1x", "-1", "4096"};
        for (size_t i = 0; i < sizeof(ranks) / sizeof(ranks[0]); i++) {
                assert_int_equal(setenv("LOCAL_RANK", ranks[i], 1), 0);
                assert_int_equal(open_device("cuda", &c, &e), CAIRN_ERR_API);
                assert_non_null(strstr(e.message, "LOCAL_RANK"));
        }
        assert_int_equal(unsetenv("LOCAL_RANK"), 0);
}

static void refuse_plugin(const char *path, const char *says) {
        struct cairn_error e;
        struct compute *c;

        assert_int_equal(setenv("CAIRN_CUDA", path, 1), 0);
        assert_int_equal(open_device("cuda", &c, &e), CAIRN_ERR_UNSUPPORTED);
        if (!strstr(e.message, says) || !strstr(e.message, "toolkit"))
                fail_msg("%s", e.message);
        assert_int_equal(unsetenv("CAIRN_CUDA"), 0);
}

/* Never another device instead: a sentence that says what to build. */
static void test_no_plugin(void **state) {
        char folder[4000], path[4200];

        refuse_plugin("/nonexistent/cairn-cuda.so", "/nonexistent/cairn-cuda.so");
        int fd = test_folder(folder, sizeof(folder));
        (void) close(fd);
        (void) snprintf(path, sizeof(path), "%s/cairn-cuda.so", folder);
        FILE *out = fopen(path, "w");
        assert_non_null(out);
        assert_int_equal(fclose(out), 0);
        refuse_plugin(path, "too short");
        /* A library that is none of ours. */
        const char *build = getenv("BUILD");
        (void) snprintf(path, sizeof(path), "%s/libcairn.so", build ? build : "build");
        refuse_plugin(path, "another version");
}

static void test_processor(void **state) {
        static const size_t odd = 777;
        struct cairn_error e;
        struct compute *c;
        void *p;
        char back[777];
        uint64_t digest[2];
        double sum;

        assert_int_equal(open_device("cpu", &c, &e), 0);
        void *const *verbs = (void *const *) (const void *) &compute_cpu.open;
        size_t count = (sizeof(compute_cpu) - offsetof(struct compute_ops, open)) / sizeof(void *);
        for (size_t i = 0; i < count; i++)
                assert_non_null(verbs[i]);
        assert_true(c->type == CAIRN_F32 && c->is_host && !c->is_lost && c->ordinal < 0);
        assert_int_equal(c->ops->allocate(c, odd, &p, &e), 0);
        assert_true((uintptr_t) p % 256 == 0 && ((char *) p)[0] == 0 && ((char *) p)[776] == 0);
        memset(back, 'x', sizeof(back));
        c->ops->upload(c, p, back, odd);
        assert_int_equal(c->ops->digest(c, &digest[0], p, odd, &e), 0);
        c->ops->zero(c, p, odd);
        assert_int_equal(c->ops->digest(c, &digest[1], p, odd, &e), 0);
        assert_true(digest[0] != digest[1]);
        assert_int_equal(c->ops->download(c, back, p, odd, &e), 0);
        assert_true(back[0] == 0 && back[776] == 0);
        assert_int_equal(c->ops->sum(c, &sum, (const float[]){1, 2, 4.5f}, 3, &e), 0);
        assert_true(sum == 7.5);
        c->ops->release(c, p);
        c->ops->release(c, NULL);
        assert_int_equal(c->ops->allocate(c, SIZE_MAX / 2, &p, &e), CAIRN_ERR_NOMEM);
        assert_int_equal(c->ops->finish(c, &e), 0);
        assert_int_equal(c->ops->check(c, &e), 0);
        compute_close(c);
        compute_close(NULL);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_names),
                cmocka_unit_test(test_no_plugin),
                cmocka_unit_test(test_processor),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
