/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/device.cuh"

struct losses {
        unsigned long long overflows, underflows, inexact;
        double largest_error;
};

__device__ static inline bool is_finite(double value) {
        return fabs(value) <= 1.7976931348623157e308;
}

/* As dtype_convert counts: not what was NaN, and no error that is infinite. */
__device__ static inline void note_loss(struct losses *l, double before, double after) {
        if (before == after || before != before)
                return;
        l->inexact++;
        l->overflows += is_finite(before) && !is_finite(after);
        l->underflows += before != 0 && after == 0;
        if (is_finite(before) && is_finite(after))
                l->largest_error = fmax(l->largest_error, fabs(before - after));
}

/* One of each warp reports. Numbers that are not negative are ordered as their bits are. */
__device__ static void report_losses(struct gpu_cast_report *report, struct losses l) {
        unsigned long long *sums = reinterpret_cast<unsigned long long *>(report);
        static_assert(sizeof *report == 4 * sizeof *sums, "three counts and a double");
        unsigned long long values[] = {gpu_warp_sum(l.overflows), gpu_warp_sum(l.underflows),
                                       gpu_warp_sum(l.inexact),
                                       static_cast<unsigned long long>(__double_as_longlong(
                                               gpu_warp_max(l.largest_error)))};
        if (threadIdx.x % GPU_WARP != 0 || values[2] == 0)
                return;
        for (int i = 0; i < 3; i++)
                atomicAdd(&sums[i], values[i]);
        atomicMax(&sums[3], values[3]);
}

template <class To, class From>
__device__ static inline void convert(To *target, const From *source) {
        gpu_store(target, gpu_load(source));
}
/* The bits as they are, of a NaN too. */
template <class T> __device__ static inline void convert(T *target, const T *source) {
        *target = *source;
}

template <class To, class From>
static __global__ void cast(To *target, const From *source, size_t count,
                            struct gpu_cast_report *report) {
        struct losses l = {0, 0, 0, 0.0};
        for (size_t i = gpu_index(); i < count; i += gpu_stride()) {
                To stored;
                From value = source[i];
                convert(&stored, &value);
                target[i] = stored;
                note_loss(&l, gpu_load(&value), gpu_load(&stored));
        }
        if (report)
                report_losses(report, l);
}

int gpu_cast(void *stream, void *target, enum gpu_type to, const void *source, enum gpu_type from,
             size_t count, struct gpu_cast_report *report) {
        return gpu_with_type(to, [&](auto to_zero) {
                return gpu_with_type(from, [&](auto from_zero) {
                        typedef decltype(to_zero) To;
                        typedef decltype(from_zero) From;
                        return gpu_launch_each(GPU_KERNEL(cast<To, From>), count, stream,
                                               static_cast<To *>(target),
                                               static_cast<const From *>(source), count, report);
                });
        });
}
