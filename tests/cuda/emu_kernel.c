/* SPDX-License-Identifier: Apache-2.0
 *
 * Modules are tables of C functions (emu.h); a launch runs one of them on the stream's thread, with
 * device memory open.
 */
#include "tests/cuda/emu_parts.h"

#define THREADS_PER_BLOCK_MAX 1024
#define BLOCK_Z_MAX 64
#define GRID_X_MAX 2147483647u
#define GRID_YZ_MAX 65535u
#define SHARED_BYTES (48u * 1024)
#define SHARED_BYTES_MAX (163 * 1024)

static struct emu_module *module_of(struct cuda_module *handle) {
        for (struct emu_module *m = emu.modules; m && handle; m = m->next)
                if (m->handle == handle)
                        return m->context == emu_current() ? m : NULL;
        return NULL;
}

static struct emu_function_object *function_of(struct cuda_function *handle) {
        for (struct emu_module *m = emu.modules; m && handle; m = m->next)
                for (struct emu_function_object *f = m->functions; f; f = f->next)
                        if (f->handle == handle)
                                return m->context == emu_current() ? f : NULL;
        return NULL;
}

static void module_end(struct emu_module *m) {
        struct emu_module **link = &emu.modules;
        while (*link != m)
                link = &(*link)->next;
        *link = m->next;
        while (m->functions) {
                struct emu_function_object *f = m->functions;
                m->functions = f->next;
                free(f);
        }
        free(m);
}

void emu_modules_end(struct cuda_context *context) {
        struct emu_module *next;
        for (struct emu_module *m = emu.modules; m; m = next) {
                next = m->next;
                if (m->context != context)
                        continue;
                emu.abandoned++;
                module_end(m);
        }
}

enum cuda_result cuModuleLoadData(struct cuda_module **module, const void *image) {
        EMU_ENTER(ModuleLoadData, EMU_CONTEXT);
        const struct emu_image *i = image;
        if (!module || !image)
                return emu_leave(CUDA_INVALID_VALUE);
        if (memcmp(i->magic, EMU_IMAGE_MAGIC, sizeof i->magic) != 0)
                return emu_leave(CUDA_INVALID_IMAGE);
        struct emu_module *m = emu_new(sizeof *m);
        m->image = i;
        m->context = emu_current();
        m->handle = (struct cuda_module *) (uintptr_t) emu_new_handle();
        m->next = emu.modules;
        emu.modules = m;
        *module = m->handle;
        return emu_leave(CUDA_OK);
}

enum cuda_result cuModuleUnload(struct cuda_module *module) {
        EMU_ENTER(ModuleUnload, EMU_CONTEXT);
        struct emu_module *m = module_of(module);
        if (!m)
                return emu_leave(CUDA_INVALID_HANDLE);
        module_end(m);
        return emu_leave(CUDA_OK);
}

static enum cuda_result find(struct emu_module *m, const char *name, struct cuda_function **ret) {
        struct emu_function_object *f = m->functions;
        while (f && strcmp(f->kernel->name, name) != 0)
                f = f->next;
        for (unsigned i = 0; i < m->image->kernel_count && !f; i++) {
                if (strcmp(m->image->kernels[i].name, name) != 0)
                        continue;
                f = emu_new(sizeof *f);
                f->kernel = &m->image->kernels[i];
                f->handle = (struct cuda_function *) (uintptr_t) emu_new_handle();
                f->dynamic_shared_bytes_max = SHARED_BYTES;
                f->next = m->functions;
                m->functions = f;
        }
        if (!f)
                return CUDA_NOT_FOUND;
        *ret = f->handle;
        return CUDA_OK;
}

enum cuda_result cuModuleGetFunction(struct cuda_function **function, struct cuda_module *module,
                                     const char *name) {
        EMU_ENTER(ModuleGetFunction, EMU_CONTEXT);
        struct emu_module *m = module_of(module);
        if (!m)
                return emu_leave(CUDA_INVALID_HANDLE);
        if (!function || !name)
                return emu_leave(CUDA_INVALID_VALUE);
        return emu_leave(find(m, name, function));
}

enum cuda_result cuFuncSetAttribute(struct cuda_function *function,
                                    enum cuda_function_attribute attribute, int value) {
        EMU_ENTER(FuncSetAttribute, EMU_CONTEXT);
        struct emu_function_object *f = function_of(function);
        if (!f)
                return emu_leave(CUDA_INVALID_HANDLE);
        if (attribute != CUDA_FUNCTION_MAX_DYNAMIC_SHARED_BYTES || value < 0 ||
            value > SHARED_BYTES_MAX)
                return emu_leave(CUDA_INVALID_VALUE);
        f->dynamic_shared_bytes_max = (unsigned) value;
        return emu_leave(CUDA_OK);
}

static bool is_launch(const struct emu_launch *l, unsigned shared_bytes_max) {
        uint64_t threads = (uint64_t) l->block[0] * l->block[1] * l->block[2];
        return l->grid[0] > 0 && l->grid[0] <= GRID_X_MAX && l->grid[1] > 0 &&
               l->grid[1] <= GRID_YZ_MAX && l->grid[2] > 0 && l->grid[2] <= GRID_YZ_MAX &&
               l->block[0] <= THREADS_PER_BLOCK_MAX && l->block[1] <= THREADS_PER_BLOCK_MAX &&
               l->block[2] <= BLOCK_Z_MAX && threads > 0 && threads <= THREADS_PER_BLOCK_MAX &&
               l->shared_bytes <= shared_bytes_max;
}

/* The values are taken at the call: pointers first, then what they point to. */
static void **copy_parameters(const struct emu_kernel *k, void **parameters) {
        size_t bytes = k->parameter_count * sizeof(void *);
        for (unsigned i = 0; i < k->parameter_count; i++)
                bytes += (k->parameter_bytes[i] + 15) & ~(size_t) 15;
        void **copy = emu_new(bytes + 16);
        unsigned char *values = (unsigned char *) copy +
                                ((k->parameter_count * sizeof(void *) + 15) & ~(size_t) 15);
        for (unsigned i = 0; i < k->parameter_count; i++) {
                copy[i] = memcpy(values, parameters[i], k->parameter_bytes[i]);
                values += (k->parameter_bytes[i] + 15) & ~(size_t) 15;
        }
        return copy;
}

enum cuda_result cuLaunchKernel(struct cuda_function *function, unsigned grid_x, unsigned grid_y,
                                unsigned grid_z, unsigned block_x, unsigned block_y,
                                unsigned block_z, unsigned shared_bytes, struct cuda_stream *stream,
                                void **parameters, void **extra) {
        EMU_ENTER(LaunchKernel, EMU_CONTEXT);
        struct emu_launch launch = {
                .grid = {grid_x, grid_y, grid_z},
                .block = {block_x, block_y, block_z},
                .shared_bytes = shared_bytes,
        };
        struct emu_function_object *f = function_of(function);
        struct emu_stream *s = emu_stream_of(stream);
        if (!f || !s)
                return emu_leave(CUDA_INVALID_HANDLE);
        if (extra || (!parameters && f->kernel->parameter_count > 0) ||
            !is_launch(&launch, f->dynamic_shared_bytes_max))
                return emu_leave(CUDA_INVALID_VALUE);
        struct emu_operation *o = emu_new(sizeof *o);
        o->kind = EMU_KERNEL;
        o->kernel = f->kernel;
        o->launch = launch;
        o->parameters = copy_parameters(f->kernel, parameters);
        emu_queue(s, o);
        return emu_leave(CUDA_OK);
}
