/* SPDX-License-Identifier: Apache-2.0
 *
 * The CUDA back end (trainer/cuda/) on the emulated driver and the kernels' simulator, beside the
 * processor's: the same network, the same update.
 */
#include "tests/unit/cuda_emulated.h"
#include "tests/unit/gradient.h"
#include "trainer/network.h"

enum { L = 2, NH = 2, C = 16, P = 8, T = 8, V = 20, B = 2, ROWS = B * T };

static const char *built(const char *name) {
        static char path[512];
        const char *build = getenv("BUILD");

        (void) snprintf(path, sizeof(path), "%s/tests/cuda/%s", build ? build : "build", name);
        return path;
}

static struct compute *open_within(enum cairn_dtype dtype, uint64_t limit_ns) {
        struct compute_options o = {.dtype = dtype, .limit_ns = limit_ns};
        struct cairn_error e = CAIRN_ERROR_INIT;
        struct compute *c = NULL;
        char text[1200];

        if (compute_open("cuda", &o, &c, &e) < 0)
                fail_msg("%s", error_format(&e, text, sizeof(text)));
        return c;
}

static struct compute *open_cuda(enum cairn_dtype dtype) {
        return open_within(dtype, UINT64_C(60000000000));
}

static struct compute *open_cpu(void) {
        struct compute *c;

        assert_int_equal(compute_open("cpu", &(struct compute_options){.threads = 1}, &c, NULL), 0);
        return c;
}

/* Uploaded; the caller releases it. */
static void *given(struct compute *c, const void *host, size_t bytes) {
        void *p;

        assert_int_equal(c->ops->allocate(c, bytes, &p, NULL), 0);
        c->ops->upload(c, p, host, bytes);
        return p;
}

static void taken(struct compute *c, void *host, void *p, size_t bytes) {
        assert_int_equal(c->ops->download(c, host, p, bytes, NULL), 0);
        c->ops->release(c, p);
}

/* ---- memory ---- */

static void test_memory(void **state) {
        enum { BYTES = (20 << 20) + 5 }; /* more than the page-locked memory at a time */
        unsigned char *host = malloc(BYTES), *back = malloc(BYTES);
        struct compute *c = open_cuda(CAIRN_F32);

        assert_true(!c->is_host && c->ordinal == 0 && c->type == CAIRN_F32);
        assert_string_equal(c->ops->name, "cuda");
        for (size_t i = 0; i < BYTES; i++)
                host[i] = (unsigned char) (i * 7 + i / 251);
        void *p = given(c, host, BYTES), *q = given(c, host, 1);
        memset(back, 0, BYTES);
        assert_int_equal(c->ops->download(c, back, p, BYTES, NULL), 0);
        assert_memory_equal(back, host, BYTES);
        c->ops->zero(c, (char *) p + 1, BYTES - 2);
        c->ops->copy(c, q, p, 1);
        taken(c, back, p, BYTES);
        assert_true(back[0] == host[0] && back[1] == 0 && back[BYTES - 2] == 0 &&
                    back[BYTES - 1] == host[BYTES - 1]);
        taken(c, back, q, 1);
        assert_true(back[0] == host[0]);
        compute_close(c);
        free(host);
        free(back);
}

/* ---- the update, bit for bit ---- */

static void test_update_bits(void **state) {
        enum { N = 2048 };
        static float w[N], m1[N], m2[N], g[N], ema[N], w2[N], m12[N], m22[N], ema2[N];
        static uint16_t narrow[N], narrow2[N];
        static const enum cairn_dtype types[] = {CAIRN_F32, CAIRN_BF16, CAIRN_F16};
        const struct adamw a = {0.9, 0.99, 1e-8, 0.1, 0.003};
        struct compute *cpu = open_cpu();
        double sums[N / 256], sums2[N / 256], sum, sum2 = 0;
        uint64_t digest, digest2;

        for (size_t k = 0; k < 3; k++) {
                struct compute *c = open_cuda(types[k]);
                bool has_narrow = types[k] != CAIRN_F32;
                gradient_fill(w, N, 1);
                gradient_fill(g, N, 2);
                gradient_fill(m1, N, 3);
                memset(m2, 0, sizeof(m2));
                gradient_fill(ema, N, 4);
                void *dw = given(c, w, sizeof(w)), *dg = given(c, g, sizeof(g));
                void *dm1 = given(c, m1, sizeof(m1)), *dm2 = given(c, m2, sizeof(m2));
                void *dn = given(c, narrow, sizeof(narrow)), *de = given(c, ema, sizeof(ema));
                for (int64_t t = 5; t < 8; t++) {
                        cpu->ops->adamw(cpu, w, has_narrow ? narrow : NULL, types[k], m1, m2, g,
                                        N - 3, &a, t, 0.25f);
                        cpu->ops->ema(cpu, ema, w, N, 0.9f);
                        c->ops->adamw(c, dw, has_narrow ? dn : NULL, types[k], dm1, dm2, dg, N - 3,
                                      &a, t, 0.25f);
                        c->ops->ema(c, de, dw, N, 0.9f);
                }
                assert_int_equal(c->ops->norm_squared(c, sums2, dw, 256, N, NULL), 0);
                assert_int_equal(c->ops->digest(c, &digest2, dm1, sizeof(m1), NULL), 0);
                assert_int_equal(c->ops->sum(c, &sum2, dw, N, NULL), 0);
                taken(c, w2, dw, sizeof(w2));
                taken(c, m12, dm1, sizeof(m12));
                taken(c, m22, dm2, sizeof(m22));
                taken(c, ema2, de, sizeof(ema2));
                if (has_narrow) { /* and back */
                        c->ops->cast(c, dg, CAIRN_F32, dn, types[k], N);
                        c->ops->cast(c, dn, types[k], dg, CAIRN_F32, N);
                }
                taken(c, narrow2, dn, sizeof(narrow2));
                c->ops->release(c, dg);
                assert_memory_equal(w2, w, sizeof(w));
                assert_memory_equal(m12, m1, sizeof(m1));
                assert_memory_equal(m22, m2, sizeof(m2));
                assert_memory_equal(ema2, ema, sizeof(ema));
                assert_memory_equal(narrow2, narrow, sizeof(narrow));
                (void) cpu->ops->norm_squared(cpu, sums, w, 256, N, NULL);
                assert_memory_equal(sums2, sums, sizeof(sums));
                (void) cpu->ops->digest(cpu, &digest, m1, sizeof(m1), NULL);
                assert_true(digest == digest2);
                (void) cpu->ops->sum(cpu, &sum, w, N, NULL);
                gradient_close(sum2, sum, 1e-6, "sum", 0);
                compute_close(c);
        }
        compute_close(cpu);
}

/* ---- the network ---- */

struct result {
        float loss;
        double *gradient; /* of model.block_count */
};

static void run_network(struct compute *c, const struct model *m, const float *block,
                        struct result *ret) {
        static const uint32_t inputs[ROWS] = {0, 6, 2, 2, 5, 1, 0, 3, 19, 18, 7, 7, 4, 11, 13, 0};
        static const uint32_t targets[ROWS] = {6, 2, 2, 5, 1, 0, 3, 9, 18, 7, 7, 4, 11, 13, 0, 1};
        const struct network_pass pass = {.training = true, .seed = 3, .step = 5, .sample = 2};
        size_t count = m->block_count, bytes = count * sizeof(float);
        size_t element = c->type == CAIRN_F32 ? 4 : 2;
        struct layer_weights layers[2 * L];
        struct weights w, d;
        struct network n;
        float *host = malloc(bytes);

        void *wide = given(c, block, bytes), *narrow, *gradient;
        assert_int_equal(c->ops->allocate(c, count * element, &narrow, NULL), 0);
        if (c->type == CAIRN_F32)
                c->ops->copy(c, narrow, wide, bytes);
        else
                c->ops->cast(c, narrow, c->type, wide, CAIRN_F32, count);
        assert_int_equal(c->ops->allocate(c, bytes, &gradient, NULL), 0);
        model_view(m, &w, layers, narrow, element);
        model_view(m, &d, layers + L, gradient, sizeof(float));
        assert_int_equal(network_init(&n, c, m, B, T, 0.25, NULL), 0);
        network_forward(&n, &w, inputs, targets, &pass);
        network_backward(&n, &w, &d, 1024.0f);
        assert_int_equal(network_loss(&n, &ret->loss, NULL), 0);
        taken(c, host, gradient, bytes);
        for (size_t i = 0; i < count; i++)
                ret->gradient[i] = (double) host[i] / 1024;
        network_done(&n);
        c->ops->release(c, wide);
        c->ops->release(c, narrow);
        free(host);
}

static double relative_error(const double *got, const double *wanted, size_t count) {
        double difference = 0, all = 0;

        for (size_t i = 0; i < count; i++) {
                difference += (got[i] - wanted[i]) * (got[i] - wanted[i]);
                all += wanted[i] * wanted[i];
        }
        return sqrt(difference / all);
}

static void compare_network(enum cairn_dtype dtype, double tolerance) {
        struct compute *cpu = open_cpu(), *c = open_cuda(dtype);
        struct result a, b, again;
        struct model m;

        assert_int_equal(model_init(&m, L, NH, C, P, V, NULL), 0);
        float *block = calloc(m.block_count, sizeof(*block));
        uint16_t *narrow = calloc(m.block_count, sizeof(*narrow));
        a.gradient = calloc(m.block_count, sizeof(double));
        b.gradient = calloc(m.block_count, sizeof(double));
        again.gradient = calloc(m.block_count, sizeof(double));
        for (size_t i = 0; i < m.tensor_count; i++)
                model_initialise(&m, i, block + m.tensor[i].offset, 1);
        if (dtype != CAIRN_F32) { /* what both can hold */
                cpu->ops->cast(cpu, narrow, dtype, block, CAIRN_F32, m.block_count);
                cpu->ops->cast(cpu, block, CAIRN_F32, narrow, dtype, m.block_count);
        }
        run_network(cpu, &m, block, &a);
        run_network(c, &m, block, &b);
        run_network(c, &m, block, &again);
        assert_true(fabs((double) b.loss - (double) a.loss) <= tolerance * (double) a.loss);
        double error = relative_error(b.gradient, a.gradient, m.block_count);
        if (!(error <= tolerance))
                fail_msg("gradients of type %d differ by %g", (int) dtype, error);
        assert_true(b.loss == again.loss);
        assert_memory_equal(b.gradient, again.gradient, m.block_count * sizeof(double));
        model_done(&m);
        free(block);
        free(narrow);
        free(a.gradient);
        free(b.gradient);
        free(again.gradient);
        compute_close(cpu);
        compute_close(c);
}

static void test_network_types(void **state) {
        compare_network(CAIRN_F32, 1e-5);
        compare_network(CAIRN_BF16, 2e-2);
        compare_network(CAIRN_F16, 2e-2);
}

/* ---- failures ---- */

static int visit(const char *key, const char *value, void *argument) {
        size_t *found = argument;

        *found += !strcmp(key, "numerics.gpu") + !strcmp(key, "numerics.driver") +
                  !strcmp(key, "numerics.blas");
        assert_true(value[0] != '\0');
        return 0;
}

static void test_fingerprint(void **state) {
        struct compute *c = open_cuda(CAIRN_F32);
        size_t found = 0;

        assert_int_equal(c->ops->describe(c, visit, &found), 0);
        assert_int_equal(found, 3);
        assert_non_null(c->ops->queue(c));
        compute_close(c);
}

static void test_other_devices(void **state) {
        struct compute_options o = {.dtype = CAIRN_F32, .limit_ns = 1};
        struct cairn_error e = CAIRN_ERROR_INIT;
        struct compute *c;

        assert_int_equal(compute_open("cuda:1", &o, &c, &e), CAIRN_ERR_UNSUPPORTED);
        assert_non_null(strstr(e.message, "no GPU 1"));
}

/* RESUME-11: only the chosen GPU has a context. */
static void choose_second(void *argument) {
        const struct cuda_driver *driver;
        struct compute_options o = {.dtype = CAIRN_F32, .limit_ns = UINT64_C(60000000000)};
        struct compute *c;
        unsigned flags;
        int active[2];

        (void) setenv("CAIRN_EMU_DEVICES", "2", 1);
        (void) cuda_emulated(&driver);
        if (compute_open("cuda:1", &o, &c, NULL) < 0 || c->ordinal != 1)
                _exit(1);
        for (int i = 0; i < 2; i++)
                if (driver->DevicePrimaryCtxGetState(i, &flags, &active[i]) != CUDA_OK)
                        _exit(2);
        compute_close(c);
        _exit(active[0] == 0 && active[1] == 1 ? 0 : 3);
}

static void test_no_other_gpu_is_touched(void **state) {
        assert_int_equal(test_in_child(choose_second, NULL), 0);
}

/* Too much is NOMEM, and something smaller goes on. */
static void test_out_of_memory(void **state) {
        struct compute *c = open_cuda(CAIRN_F32);
        struct cairn_error e = CAIRN_ERROR_INIT;
        void *p;

        assert_int_equal(c->ops->allocate(c, (size_t) 1 << 40, &p, &e), CAIRN_ERR_NOMEM);
        assert_non_null(strstr(e.message, "1048576 MiB"));
        assert_false(c->is_lost);
        assert_int_equal(c->ops->allocate(c, 1000, &p, &e), 0);
        c->ops->release(c, p);
        compute_close(c);
}

/* In a process of its own: what failed stays. The limit is a real one only where nothing ends. */
static void lose(void *argument) {
        const struct cuda_driver *driver;
        const struct emu_control *emu = cuda_emulated(&driver);
        struct compute *c = open_within(CAIRN_F32, argument ? UINT64_C(60000000000) : 300000000);
        struct cairn_error e = CAIRN_ERROR_INIT;
        char host[64] = "";
        void *p = given(c, host, sizeof(host));

        if (c->ops->finish(c, NULL) < 0)
                _exit(3);
        if (argument)
                emu->break_operation(1, CUDA_ILLEGAL_ADDRESS);
        else
                emu->hold(true);
        c->ops->zero(c, p, 10);
        int wanted = argument ? CAIRN_ERR_DEVICE : CAIRN_ERR_TIMEOUT;
        for (int i = 0; i < 2; i++) { /* and stays so */
                e = (struct cairn_error) CAIRN_ERROR_INIT;
                if (c->ops->download(c, host, p, sizeof(host), &e) != wanted || !c->is_lost ||
                    !strstr(e.message, "has to end"))
                        _exit(1);
        }
        if (c->ops->check(c, &e) != wanted)
                _exit(2);
        c->ops->release(c, p);
        compute_close(c);
        _exit(0);
}

static void test_lost_device(void **state) {
        static int illegal;

        assert_int_equal(test_in_child(lose, &illegal), 0);
        assert_int_equal(test_in_child(lose, NULL), 0);
}

/* ---- every call of the driver fails once ---- */

static int live(struct compute *c, struct cairn_error *e) {
        static const uint32_t tokens[4] = {0, 1, 2, 3};
        struct layer_weights layers[2];
        struct weights w, d;
        struct network n;
        struct model m;
        float loss, host[16] = {0};
        double sums[1];
        void *block = NULL;
        int r;

        assert_int_equal(model_init(&m, 1, 1, 4, 4, 4, NULL), 0);
        size_t bytes = 2 * m.block_count * sizeof(float);
        TRY_GOTO(c->ops->allocate(c, bytes, &block, e), out);
        model_view(&m, &w, layers, block, sizeof(float));
        model_view(&m, &d, layers + 1, (float *) block + m.block_count, sizeof(float));
        TRY_GOTO(network_init(&n, c, &m, 1, 4, 0.1, e), out);
        network_forward(&n, &w, tokens, tokens, &(struct network_pass){.training = true});
        network_backward(&n, &w, &d, 1.0f);
        r = network_loss(&n, &loss, e);
        if (r == 0)
                r = c->ops->norm_squared(c, sums, block, 256, 256, e);
        if (r == 0)
                r = c->ops->download(c, host, block, sizeof(host), e);
        if (!c->is_lost)
                network_done(&n);
out:
        if (!c->is_lost)
                c->ops->release(c, block);
        model_done(&m);
        return r;
}

struct failing {
        uint64_t nth;
        enum cuda_result result;
};
enum { NEVER_FIRED = 10, UNCLEAN = 11 };

/* A failure of what only frees, or only tells of versions, has nobody to be told. */
static bool may_be_silent(const char *function) {
        static const char *const words[] = {"Free",       "Destroy",    "Release",
                                            "Unregister", "Unmap",      "DriverGetVersion",
                                            "ErrorName",  "ErrorString"};

        for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
                if (strstr(function, words[i]))
                        return true;
        return false;
}

static void fail_once(void *argument) {
        const struct failing *f = argument;
        const struct cuda_driver *driver;
        const struct emu_control *emu = cuda_emulated(&driver);
        struct compute_options o = {.dtype = CAIRN_F32, .limit_ns = UINT64_C(60000000000)};
        struct cairn_error e = CAIRN_ERROR_INIT;
        struct compute *c = NULL;

        emu->fault(NULL, f->nth, f->result);
        int r = compute_open("cuda", &o, &c, &e);
        if (r == 0)
                r = live(c, &e);
        if (r == 0)
                r = c->ops->check(c, &e);
        const char *fired = emu->fired();
        bool is_clean = !fired || (r == 0 ? may_be_silent(fired) : e.status == r && e.message[0]);
        if (!is_clean)
                (void) printf("%s failed: %d, '%s'\n", fired, r, e.message);
        (void) fflush(stdout);
        compute_close(c); /* has nobody to tell */
        _exit(!is_clean ? UNCLEAN : emu->fired() ? 0 : NEVER_FIRED);
}

/* One call in seventeen, each time others; each of them with CUDA_FAULTS=all. */
static void test_every_call_fails_once(void **state) {
        static const enum cuda_result results[] = {CUDA_OUT_OF_MEMORY, CUDA_LAUNCH_FAILED};
        const char *which = getenv("CUDA_FAULTS");
        uint64_t stride = which && !strcmp(which, "all") ? 1 : 17;
        uint64_t first = 1 + (uint64_t) getpid() % stride;

        print_message("from call %llu on, each %llu\n", (unsigned long long) first,
                      (unsigned long long) stride);
        for (size_t i = 0; i < sizeof(results) / sizeof(results[0]); i++) {
                struct failing f = {.nth = first, .result = results[i]};
                int status;
                while (status = test_in_child(fail_once, &f),
                       WIFEXITED(status) && WEXITSTATUS(status) == 0)
                        f.nth += stride;
                if (!WIFEXITED(status) || WEXITSTATUS(status) != NEVER_FIRED)
                        fail_msg("call %llu with result %d: wait status %x",
                                 (unsigned long long) f.nth, (int) f.result, status);
                assert_true(f.nth > 50);
        }
}

int main(void) {
        const struct CMUnitTest tests[] = {
                /* These first: their processes come from one that has opened no device. */
                cmocka_unit_test(test_lost_device),
                cmocka_unit_test(test_every_call_fails_once),
                cmocka_unit_test(test_no_other_gpu_is_touched),
                cmocka_unit_test(test_memory),
                cmocka_unit_test(test_update_bits),
                cmocka_unit_test(test_network_types),
                cmocka_unit_test(test_fingerprint),
                cmocka_unit_test(test_other_devices),
                cmocka_unit_test(test_out_of_memory),
        };

        if (access(built("cairn-cuda-emu.so"), R_OK) != 0) {
                (void) puts("skipped: the kernels' simulator was not built");
                return 77;
        }
        (void) cuda_emulated(NULL);
        (void) setenv("CAIRN_CUDA", built("cairn-cuda-emu.so"), 1);
        (void) setenv("CAIRN_LIBCUBLAS", built("libcublas-emu.so"), 1);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
