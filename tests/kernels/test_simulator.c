/* SPDX-License-Identifier: Apache-2.0
 *
 * The simulator finds each mistake that planted.cu makes, and nothing in the like without it.
 */
#include "device/cuda_abi.h"
#include "tests/cuda/sim/sim.h"
#include "tests/kernels/gpu_test.h"
#include "tests/kernels/planted.h"
#include <cuda_runtime_api.h>
#include <string.h>

enum { COUNT = 4 * 256, BOUNDS = 1, NEEDS_ACCESSES = 2, OF_DRIVER = 3 };

#ifdef __SANITIZE_ADDRESS__
enum { SANITIZED = 1 };
#else
enum { SANITIZED = 0 };
#endif

enum cuda_result cuMemAlloc_v2(cuda_address *address, size_t bytes);

static const struct {
        enum planted what;
        int error;
        const char *text;
        int kind;
} mistakes[] = {
        {PLANTED_SHARED_RACE, 719, "without a barrier between", NEEDS_ACCESSES},
        {PLANTED_WARP_RACE, 719, "without a barrier between", NEEDS_ACCESSES},
        {PLANTED_GLOBAL_RACE, 719, "a race: ", NEEDS_ACCESSES},
        {PLANTED_GLOBAL_RACE, 719, "a race: ", OF_DRIVER},
        {PLANTED_READ_RACE, 719, "a race: ", NEEDS_ACCESSES},
        {PLANTED_BLOCK_RACE, 719, "which another block wrote", NEEDS_ACCESSES},
        {PLANTED_ATOMIC_RACE, 719, "a race: ", NEEDS_ACCESSES},
        {PLANTED_DIVERGENT, 719, "waits in __syncthreads for others that never come", 0},
        {PLANTED_TWO_BARRIERS, 719, "is in __syncthreads at ", 0},
        {PLANTED_EARLY_END, 719, "of 256 threads 1 have ended and 255 are at a barrier", 0},
        {PLANTED_HALF_WARP, 719, "waits in __shfl_xor_sync", 0},
        {PLANTED_NOT_IN_MASK, 719, "not in its mask 0xffff0000", 0},
        {PLANTED_BEHIND, 700, "writes 4 bytes at 4096 of an allocation of 4096", BOUNDS},
        {PLANTED_SHARED_OVER, 700, "outside of what was declared", BOUNDS},
        {PLANTED_UNWRITTEN, 719, "that the block did not write", NEEDS_ACCESSES},
        {PLANTED_STALE, 719, "that the block did not write", NEEDS_ACCESSES},
        {PLANTED_MISALIGNED, 716, "writes 4 bytes at the address", BOUNDS},
        {PLANTED_TOO_MUCH, 701, "of shared memory, 49152 are there", 0},
        {PLANTED_TRAP, 719, "an assertion failed", 0},
};

/* In a process of its own: the error stays in the context, and a sanitizer ends the process. */
static int outcome(size_t i) {
        static float zero[COUNT];
        float *in = gpu_test_copy(zero, sizeof zero), *out = gpu_test_copy(zero, sizeof zero);
        cuda_address a = 0;
        if (mistakes[i].kind == OF_DRIVER) /* memory that the runtime knows nothing of */
                gpu_test_ok(cuMemAlloc_v2(&a, sizeof zero));
        out = a ? (float *) (uintptr_t) a : out;
        int launched = planted_launch(mistakes[i].what, gpu_test_stream(), out, in, COUNT);
        int error = cudaStreamSynchronize(gpu_test_stream());
        int later = cudaMemsetAsync(out, 0, sizeof zero, gpu_test_stream());
        if (launched == 0 && error == mistakes[i].error && later == error &&
            strstr(sim_complaint(), mistakes[i].text))
                return 0;
        (void) fprintf(stderr, "mistake %zu: launch %d, error %d, later %d, told \"%s\"\n", i,
                       launched, error, later, sim_complaint());
        return 3;
}

static void test_mistakes(void **state) {
        for (size_t i = 0; i < sizeof mistakes / sizeof *mistakes; i++) {
                if (SANITIZED && mistakes[i].kind >= NEEDS_ACCESSES)
                        continue;
                pid_t child = fork();
                assert_true(child >= 0);
                if (child == 0)
                        _exit(outcome(i));
                int status;
                assert_int_equal(waitpid(child, &status, 0), child);
                if (SANITIZED && mistakes[i].kind == BOUNDS)
                        assert_true(status != 0 &&
                                    !(WIFEXITED(status) && WEXITSTATUS(status) == 3));
                else if (status != 0)
                        fail_msg("mistake %zu went unnoticed or was misnamed (%x)", i, status);
        }
}

static void run(enum planted what, float *out, const float *in) {
        gpu_test_ok(planted_launch(what, gpu_test_stream(), out, in, COUNT));
        gpu_test_wait();
}

static void check_sound(float *out, const float *in, const float *x) {
        static float got[COUNT];
        static const enum planted reverses[] = {PLANTED_NOTHING_REVERSE, PLANTED_NOTHING_DYNAMIC,
                                                PLANTED_NOTHING_WARP};
        for (size_t r = 0; r < 3; r++) {
                size_t group = reverses[r] == PLANTED_NOTHING_WARP ? 32 : 256;
                run(reverses[r], out, in);
                gpu_test_fetch(got, out, sizeof got);
                for (size_t i = 0; i < COUNT; i++)
                        assert_true(got[i] == x[i ^ (group - 1)]);
        }
        run(PLANTED_NOTHING_EXCHANGE, out, in);
        gpu_test_fetch(got, out, sizeof got);
        for (size_t i = 0; i < COUNT; i++)
                assert_true(got[i] == x[i ^ 5] + x[i % 32 + 3 < 32 ? i + 3 : i]);
        gpu_test_ok(cudaMemsetAsync(out, 0, sizeof got, gpu_test_stream()));
        run(PLANTED_NOTHING_COUNT, out, in);
        unsigned sum;
        gpu_test_fetch(&sum, out, sizeof sum);
        assert_int_equal(sum, COUNT * (COUNT - 1) / 2);
}

static void test_sound(void **state) {
        float x[COUNT];
        for (size_t i = 0; i < COUNT; i++)
                x[i] = (float) i;
        float *in = gpu_test_copy(x, sizeof x), *out = gpu_test_new(sizeof x);
        for (int seed = 1; seed <= 5; seed++) {
                char text[16];
                (void) snprintf(text, sizeof text, "%d", seed);
                assert_int_equal(setenv("CAIRN_SIM_SEED", text, 1), 0);
                check_sound(out, in, x);
        }
        assert_int_equal(unsetenv("CAIRN_SIM_SEED"), 0);
        assert_true(sim_switches() > 0);
        gpu_test_free(in);
        gpu_test_free(out);
}

/* Without a look at the accesses a race shows by what comes out: the order is no order. */
static void test_order(void **state) {
        float x[COUNT], got[COUNT];
        size_t wrong = 0;
        for (size_t i = 0; i < COUNT; i++)
                x[i] = (float) i;
        float *in = gpu_test_copy(x, sizeof x), *out = gpu_test_new(sizeof x);
        assert_int_equal(setenv("CAIRN_SIM_ACCESSES", "0", 1), 0);
        run(PLANTED_SHARED_RACE, out, in);
        assert_int_equal(unsetenv("CAIRN_SIM_ACCESSES"), 0);
        gpu_test_fetch(got, out, sizeof got);
        for (size_t i = 0; i < COUNT; i++)
                wrong += got[i] != x[i ^ 255];
        assert_true(wrong > COUNT / 4 && wrong < COUNT);
        gpu_test_free(in);
        gpu_test_free(out);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_mistakes), /* first: no process that has a GPU forks */
                cmocka_unit_test(test_sound),
                cmocka_unit_test(test_order),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
