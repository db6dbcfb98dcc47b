/* SPDX-License-Identifier: Apache-2.0
 *
 * The runtime calls over the emulated driver: what they do, what they refuse, what they leave.
 */
#include "tests/cuda/emu.h"
#include "tests/kernels/gpu_test.h"
#include <cuda_runtime_api.h>

enum { BYTES = 5000 };
extern const struct emu_control emu_control;

/* First: nothing was opened yet. */
static void test_no_device(void **state) {
        int count = 0, device;
        void *address;
        assert_int_equal(cudaGetDevice(&device), cudaErrorDeviceUninitialized);
        assert_int_not_equal(cudaMalloc(&address, 16), cudaSuccess);
        assert_int_not_equal(cudaGetLastError(), cudaSuccess);
        assert_int_equal(cudaGetLastError(), cudaSuccess);
        assert_int_not_equal(gpu_sum(NULL, NULL, NULL, 1), cudaSuccess);
        assert_int_equal(cudaSetDevice(77), cudaErrorInvalidDevice);
        assert_int_equal(cudaGetDeviceCount(&count), cudaSuccess);
        assert_int_equal(count, 1);
        assert_int_equal(cudaSetDevice(1), cudaErrorInvalidDevice);
        assert_int_equal(cudaPeekAtLastError(), cudaErrorInvalidDevice);
}

static void test_device(void **state) {
        struct cudaDeviceProp p;
        size_t free_bytes, total;
        int device;
        assert_int_equal(cudaSetDevice(0), cudaSuccess);
        assert_int_equal(cudaGetDevice(&device), cudaSuccess);
        assert_int_equal(device, 0);
        assert_int_equal(cudaGetDeviceProperties(&p, 0), cudaSuccess);
        assert_string_equal(p.name, "emulated GPU");
        assert_true(p.major == 8 && p.warpSize == 32 && p.pciBusID == 1 && !p.integrated);
        assert_int_equal(cudaMemGetInfo(&free_bytes, &total), cudaSuccess);
        assert_true(total == p.totalGlobalMem && free_bytes <= total);
}

static void test_copies(void **state) {
        cudaStream_t stream = gpu_test_stream();
        unsigned char *host, *device, plain[BYTES];
        gpu_test_ok(cudaMallocHost((void **) &host, BYTES));
        gpu_test_ok(cudaMalloc((void **) &device, BYTES));
        gpu_test_ok(cudaMemcpyAsync(host, device, BYTES, cudaMemcpyDeviceToHost, stream));
        gpu_test_wait();
        assert_true(host[0] == 0xff && host[BYTES - 1] == 0xff); /* not zero by luck */
        gpu_test_ok(cudaMemsetAsync(device, 3, BYTES, stream));
        gpu_test_ok(cudaMemcpyAsync(plain, device, BYTES, cudaMemcpyDefault, stream));
        gpu_test_wait();
        assert_true(plain[0] == 3 && plain[BYTES - 1] == 3);
        /* The kind belies an address. */
        assert_int_equal(cudaMemcpyAsync(device, host, 1, cudaMemcpyDeviceToHost, stream),
                         cudaErrorInvalidMemcpyDirection);
        assert_int_equal(cudaMemcpyAsync(device, device, 1, cudaMemcpyHostToDevice, stream),
                         cudaErrorInvalidMemcpyDirection);
        assert_int_equal(cudaMemcpyAsync(device, host, 1, cudaMemcpyDeviceToDevice, stream),
                         cudaErrorInvalidMemcpyDirection);
        assert_int_equal(cudaMemcpyAsync(device, host, 1, cudaMemcpyHostToDevice, NULL),
                         cudaErrorInvalidResourceHandle);
        assert_int_equal(cudaFree(device + 1), cudaErrorInvalidValue);
        assert_int_equal(cudaFree(host), cudaErrorInvalidValue);
        gpu_test_ok(cudaFree(device));
        gpu_test_ok(cudaFreeHost(host));
        gpu_test_ok(cudaMalloc((void **) &device, 0));
        assert_null(device);
        gpu_test_ok(cudaFree(NULL));
}

static void test_events(void **state) {
        cudaStream_t stream = gpu_test_stream(), other;
        cudaEvent_t start, end, untimed;
        float milliseconds = -1;
        assert_int_not_equal(cudaStreamCreateWithFlags(&other, 0), cudaSuccess);
        gpu_test_ok(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
        gpu_test_ok(cudaEventCreateWithFlags(&start, cudaEventDefault));
        gpu_test_ok(cudaEventCreateWithFlags(&end, cudaEventDefault));
        gpu_test_ok(cudaEventCreateWithFlags(&untimed, cudaEventDisableTiming));
        (void) cudaGetLastError();
        emu_control.hold(true);
        gpu_test_ok(cudaEventRecord(start, stream));
        gpu_test_ok(cudaEventRecord(untimed, stream));
        gpu_test_ok(cudaStreamWaitEvent(other, start, 0));
        gpu_test_ok(cudaEventRecord(end, other));
        assert_int_equal(cudaEventQuery(end), cudaErrorNotReady);
        assert_int_equal(cudaStreamQuery(other), cudaErrorNotReady);
        assert_int_equal(cudaEventElapsedTime(&milliseconds, start, end), cudaErrorNotReady);
        assert_int_equal(cudaGetLastError(), cudaSuccess); /* that was none */
        emu_control.hold(false);
        gpu_test_ok(cudaEventSynchronize(end));
        gpu_test_ok(cudaEventElapsedTime(&milliseconds, start, end));
        assert_true(milliseconds >= 0.0f);
        gpu_test_ok(cudaDeviceSynchronize());
        assert_int_equal(cudaEventElapsedTime(&milliseconds, start, untimed),
                         cudaErrorInvalidResourceHandle);
        gpu_test_ok(cudaEventDestroy(start));
        gpu_test_ok(cudaEventDestroy(end));
        gpu_test_ok(cudaEventDestroy(untimed));
        assert_int_not_equal(cudaEventDestroy(untimed), cudaSuccess);
        gpu_test_ok(cudaStreamDestroy(other));
}

static int let_go(void **state) {
        emu_control.hold(false);
        return 0;
}

/* An error of the driver comes through; the calls after it work. */
static void test_faults(void **state) {
        void *address;
        emu_control.fault("cuMemAlloc_v2", 1, CUDA_OUT_OF_MEMORY);
        assert_int_equal(cudaMalloc(&address, BYTES), cudaErrorMemoryAllocation);
        emu_control.fault("cuMemHostRegister_v2", 1, CUDA_INVALID_VALUE);
        assert_int_equal(cudaMallocHost(&address, BYTES), cudaErrorInvalidValue);
        emu_control.fault("cuLaunchKernel", 1, CUDA_LAUNCH_OUT_OF_RESOURCES);
        assert_int_equal(gpu_sum(gpu_test_stream(), NULL, NULL, 0), CUDA_LAUNCH_OUT_OF_RESOURCES);
        emu_control.fault(NULL, 0, CUDA_OK);
        gpu_test_wait();
}

/* All of it goes. */
static void test_reset(void **state) {
        struct emu_counts c;
        gpu_test_ok(cudaStreamDestroy(gpu_test_stream()));
        gpu_test_ok(cudaDeviceReset());
        emu_control.counts(&c);
        assert_true(c.contexts == 0 && c.allocations == 0 && c.mappings == 0 && c.streams == 0);
        assert_true(c.reservations == 0 && c.registrations == 0 && c.events == 0);
        assert_true(c.modules == 0 && c.operations == 0 && c.abandoned == 0);
}

struct things {
        cudaStream_t stream;
        cudaEvent_t start, end;
        void *host, *device;
};

static cudaError_t make_and_use(struct things *t) {
        float milliseconds;
        cudaError_t e = cudaSetDevice(0);
        e = e ? e : cudaStreamCreateWithFlags(&t->stream, cudaStreamNonBlocking);
        e = e ? e : cudaEventCreateWithFlags(&t->start, cudaEventDefault);
        e = e ? e : cudaEventCreateWithFlags(&t->end, cudaEventDefault);
        e = e ? e : cudaMalloc(&t->device, BYTES);
        e = e ? e : cudaMallocHost(&t->host, BYTES);
        e = e ? e : cudaEventRecord(t->start, t->stream);
        e = e ? e : cudaMemsetAsync(t->device, 0, BYTES, t->stream);
        e = e ? e : (cudaError_t) gpu_sum(t->stream, t->device, (float *) t->device + 2, 9);
        e = e ? e : cudaMemcpyAsync(t->host, t->device, 8, cudaMemcpyDeviceToHost, t->stream);
        e = e ? e : cudaEventRecord(t->end, t->stream);
        e = e ? e : cudaStreamSynchronize(t->stream);
        return e ? e : cudaEventElapsedTime(&milliseconds, t->start, t->end);
}

static int life(void) {
        struct things t = {0};
        int device, error = (int) make_and_use(&t);
        cudaError_t ends[] = {
                t.stream ? cudaStreamSynchronize(t.stream) : cudaSuccess,
                cudaFreeHost(t.host),
                cudaFree(t.device),
                t.start ? cudaEventDestroy(t.start) : cudaSuccess,
                t.end ? cudaEventDestroy(t.end) : cudaSuccess,
                t.stream ? cudaStreamDestroy(t.stream) : cudaSuccess,
                cudaGetDevice(&device) == cudaSuccess ? cudaDeviceReset() : cudaSuccess,
        };
        for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
                error = error ? error : (int) ends[i];
        return error;
}

/* Each call of the driver fails once: it is told, and nothing stays behind. */
static void test_sweep(void **state) {
        static const enum cuda_result codes[] = {CUDA_OUT_OF_MEMORY, CUDA_ILLEGAL_ADDRESS};
        for (size_t i = 0; i < sizeof codes / sizeof *codes; i++)
                for (uint64_t nth = 1;; nth++) {
                        struct emu_counts c;
                        emu_control.fault(NULL, nth, codes[i]);
                        int error = life();
                        if (!emu_control.fired()) {
                                assert_int_equal(error, 0);
                                assert_true(nth > 25);
                                break;
                        }
                        if (error == 0)
                                fail_msg("the failure of %s was not told", emu_control.fired());
                        emu_control.counts(&c);
                        /* After a fatal error all goes with the context. */
                        uint64_t left =
                                c.contexts + c.streams + c.events + c.modules + c.operations;
                        if (codes[i] == CUDA_OUT_OF_MEMORY)
                                left += c.allocations + c.registrations + c.abandoned;
                        if (left > 0)
                                fail_msg("%s (%d) left %lu contexts, %lu streams, %lu events, "
                                         "%lu modules, %lu allocations, %lu registrations, %lu to "
                                         "the context",
                                         emu_control.fired(), codes[i], c.contexts, c.streams,
                                         c.events, c.modules, c.allocations, c.registrations,
                                         c.abandoned);
                        emu_control.reset();
                }
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_no_device), cmocka_unit_test(test_device),
                cmocka_unit_test(test_copies),    cmocka_unit_test_teardown(test_events, let_go),
                cmocka_unit_test(test_faults),    cmocka_unit_test(test_reset),
                cmocka_unit_test(test_sweep),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
