/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/locate.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The folder of the running program, "." where it cannot be told. */
static void program_folder(char *ret, size_t bytes) {
        ssize_t length = readlink("/proc/self/exe", ret, bytes - 1);

        ret[length > 0 ? length : 0] = '\0';
        char *slash = strrchr(ret, '/');
        if (slash)
                *slash = '\0';
        else
                (void) snprintf(ret, bytes, ".");
}

int locate(const char *variable, const char *file, char *ret, size_t bytes,
           struct cairn_error *reterr) {
        static const char *const places[] = {"", "/../lib/cairn"};
        const char *given = getenv(variable);
        char folder[PATH_MAX];

        if (given && *given) {
                (void) snprintf(ret, bytes, "%s", given);
                if (access(ret, R_OK) == 0)
                        return 0;
                return error_set(reterr, CAIRN_ERR_UNSUPPORTED, "find", given,
                                 "$%s names it, but it cannot be read", variable);
        }
        program_folder(folder, sizeof folder);
        for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
                int length = snprintf(ret, bytes, "%s%s/%s", folder, places[i], file);
                if (length > 0 && (size_t) length < bytes && access(ret, R_OK) == 0)
                        return 0;
        }
        return error_set(
                reterr, CAIRN_ERR_UNSUPPORTED, "find", file,
                "it is neither in %.200s nor in its ../lib/cairn; build it, or name it in $%s",
                folder, variable);
}
