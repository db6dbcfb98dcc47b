/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/probe.h"

#include "agent/ring.h"
#include "base/cleanup.h"
#include "device/gpu_probe.h"
#include "format/wire.h"
#include <errno.h>
#include <jansson.h>
#include <sys/mman.h>

/* More than the default limit on locked memory of most distributions, less than any staging. */
#define PROBE_BYTES (64 * MiB)

/* *ret_registered: 0 where it was refused. */
static int try_register(struct ring *ring, uint64_t *ret_registered, struct cairn_error *reterr) {
        _cleanup_close_ int fd = -1;
        TRY(wire_memfd_create("cairn-probe", PROBE_BYTES, &fd, reterr));
        void *base = mmap(NULL, PROBE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (base == MAP_FAILED)
                return error_set_errno(reterr, errno, "map memory", "memfd");
        int r = ring_attach(ring, base, PROBE_BYTES, reterr);
        *ret_registered = r == 0 && !ring_warning(ring) ? PROBE_BYTES : 0;
        TRY_KEEP(ring_attach(ring, NULL, 0, reterr)); /* before its pages go */
        (void) munmap(base, PROBE_BYTES);
        return r;
}

int probe_main(void) {
        const struct ring_options options = {.backend = RING_AUTO};
        struct cairn_error e = CAIRN_ERROR_INIT;
        struct ring *ring = NULL;
        uint64_t registered = 0;
        char text[1024];
        int r = ring_new(&options, &ring, &e);
        if (r == 0)
                r = try_register(ring, &registered, &e);
        if (r < 0) {
                fprintf(stderr, "cairnd: %s\n", error_format(&e, text, sizeof text));
                ring_free(ring);
                return status_exit_code(r);
        }
        json_t *j = json_pack("{s:s, s:I, s:s?}", "backend", ring_backend_name(ring),
                              "registered_bytes", (json_int_t) registered, "warning",
                              ring_warning(ring));
        r = j ? json_dumpf(j, stdout, JSON_COMPACT) : -1;
        json_decref(j);
        ring_free(ring);
        putchar('\n');
        return r == 0 && fflush(stdout) == 0 ? 0 : status_exit_code(CAIRN_ERR_IO);
}

/* ---- GPUs ---- */

/* Takes the reference. */
static int print_line(json_t *object) {
        int r = object ? json_dumpf(object, stdout, JSON_COMPACT) : -1;
        json_decref(object);
        putchar('\n');
        return r == 0 && fflush(stdout) == 0 ? 0 : status_exit_code(CAIRN_ERR_IO);
}

/* NULL, which is packed as null, where nothing failed. */
static const char *failure(const struct cairn_error *e, char *text, size_t bytes) {
        return e->status < 0 ? error_format(e, text, bytes) : NULL;
}

static int print_gpu(int ordinal, const struct gpu_found *g) {
        char slab[1024], staging[1024];
        if (g->error.status < 0)
                return print_line(json_pack("{s:i, s:s}", "gpu", ordinal, "error",
                                            error_format(&g->error, slab, sizeof slab)));
        json_t *persistence = g->persistence == NVML_UNKNOWN
                                      ? json_null()
                                      : json_boolean(g->persistence == NVML_ON);
        return print_line(json_pack(
                "{s:i, s:s, s:s, s:s, s:I, s:i, s:b, s:b, s:b, s:b, s:b, s:o, s:n, s:s?, s:s?}",
                "gpu", ordinal, "name", g->name, "uuid", g->uuid, "bus", g->bus_id, "bytes",
                (json_int_t) g->memory_bytes, "capability", g->capability, "exclusive",
                g->exclusive, "vmm", g->vmm, "posix_fd", g->posix_fd, "host_register",
                g->host_register, "full", g->full, "persistence", persistence, "error", "slab",
                failure(&g->slab, slab, sizeof slab), "staging",
                failure(&g->staging, staging, sizeof staging)));
}

int probe_gpu_main(void) {
        struct gpu_driver_found driver;
        struct gpu_found gpu;
        char text[1024];
        gpu_probe_driver(&driver);
        int status = print_line(
                json_pack("{s:b, s:s, s:i, s:i, s:b, s:s?}", "present", driver.present, "library",
                          driver.library, "version", driver.version, "count", driver.count, "none",
                          driver.none, "error", failure(&driver.error, text, sizeof text)));
        for (int i = 0; i < driver.count && status == 0; i++) {
                gpu_probe(i, &gpu);
                status = print_gpu(i, &gpu);
        }
        return status;
}
