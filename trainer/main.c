/* SPDX-License-Identifier: Apache-2.0
 *
 * cairn-train: trains a small GPT on the CPU or a GPU; continues after a crash bit for bit.
 */
#include "base/io.h"
#include "trainer/probe.h"
#include "trainer/stop.h"
#include "trainer/train.h"
#include <unistd.h>

static int fail(const struct cairn_error *e, const struct train *t, int code) {
        char text[1200], rank[32] = "";

        if (t && t->group.world > 1)
                (void) snprintf(rank, sizeof(rank), "rank %u: ", (unsigned) t->group.rank);
        if (e->status < 0)
                (void) fprintf(stderr, "cairn-train: %s%s\n", rank,
                               error_format(e, text, sizeof(text)));
        return code;
}

int main(int argc, char **argv) {
        struct cairn_error error = CAIRN_ERROR_INIT;
        struct settings settings;
        struct train train;
        int code = 0;

        io_open_standard();
        if (settings_parse(&settings, argc, argv, &error) < 0)
                return fail(&error, NULL, 64);
        if (settings.help) {
                settings_help(stdout);
                return 0;
        }
        if (settings.probe_gpu) {
                probe_gpu(stdout);
                return fflush(stdout) == 0 ? 0 : 74;
        }
        stop_init();
        if (train_init(&train, &settings, &code, &error) >= 0)
                code = train_run(&train, &error);
        code = fail(&error, &train, code);
        if (train.compute && train.compute->is_lost)
                _exit(code); /* whatever would be freed waits for the device */
        train_done(&train);
        return code;
}
