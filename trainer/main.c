/* SPDX-License-Identifier: Apache-2.0
 *
 * cairn-train: trains a small GPT on the CPU; continues after a crash bit for bit.
 */
#include "base/io.h"
#include "trainer/stop.h"
#include "trainer/train.h"

static int fail(const struct cairn_error *e, int code) {
        char text[1200];

        if (e->status < 0)
                (void) fprintf(stderr, "cairn-train: %s\n", error_format(e, text, sizeof(text)));
        return code;
}

int main(int argc, char **argv) {
        struct cairn_error error = CAIRN_ERROR_INIT;
        struct settings settings;
        struct train train;
        int code = 0;

        io_open_standard();
        if (settings_parse(&settings, argc, argv, &error) < 0)
                return fail(&error, 64);
        if (settings.help) {
                settings_help(stdout);
                return 0;
        }
        stop_init();
        if (train_init(&train, &settings, &code, &error) < 0)
                code = fail(&error, code);
        else
                code = train_run(&train);
        train_done(&train);
        return code;
}
