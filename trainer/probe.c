/* SPDX-License-Identifier: Apache-2.0 */
#include "trainer/probe.h"

#include "base/log.h"
#include "comm/nccl_library.h"
#include "trainer/compute.h"
#include <dlfcn.h>

enum { TEXT_BYTES = 1024 };

/* e: NULL where it is there. */
static void say(FILE *out, const char *name, const char *found, const struct cairn_error *e) {
        char text[TEXT_BYTES], line[2 * TEXT_BYTES];

        if (e)
                found = error_format(e, text, sizeof(text));
        (void) fprintf(out, "%s\t%s\t%s\n", name, e ? "lacks" : "good",
                       text_escape_control(line, sizeof(line), found, strlen(found)));
}

static const char *path_of(const void *symbol) {
        Dl_info place;

        return dladdr(symbol, &place) && place.dli_fname ? place.dli_fname : "there";
}

static void probe_plugin(FILE *out) {
        struct cairn_error e = CAIRN_ERROR_INIT;
        const struct compute_ops *ops = NULL;
        char path[TEXT_BYTES] = "";

        if (compute_load_cuda(&ops, &e) < 0) {
                say(out, "cairn-cuda.so", NULL, &e);
                return; /* it is what loads cuBLAS */
        }
        say(out, "cairn-cuda.so", path_of(ops), NULL);
        int r = ops->library(path, sizeof(path), &e);
        say(out, "cuBLAS", path, r < 0 ? &e : NULL);
}

static void probe_nccl(FILE *out) {
        struct cairn_error e = CAIRN_ERROR_INIT;
        struct nccl_library l;
        char found[TEXT_BYTES] = "";

        int r = nccl_library_load(&l, &e);
        if (r == 0)
                (void) snprintf(found, sizeof(found), "%d.%d.%d, %s", l.version / 10000,
                                l.version % 10000 / 100, l.version % 100,
                                path_of((void *) l.GetVersion));
        say(out, "NCCL", found, r < 0 ? &e : NULL);
}

void probe_gpu(FILE *out) {
        probe_plugin(out);
        probe_nccl(out);
}
