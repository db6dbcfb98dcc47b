/* SPDX-License-Identifier: Apache-2.0
 *
 * cairn-nccl-id: makes a unique id of NCCL and keeps the meeting place behind it open until its
 * standard input ends (nccl_id.h).
 */
#include "base/io.h"
#include "comm/nccl_library.h"

#include <errno.h>
#include <stdio.h>
#include <unistd.h>

static int fail(const struct cairn_error *e) {
        char text[1200];

        (void) fprintf(stderr, "cairn-nccl-id: %s\n", error_format(e, text, sizeof text));
        return status_exit_code(e->status);
}

int main(void) {
        struct cairn_error e = CAIRN_ERROR_INIT;
        struct nccl_library library;
        struct nccl_id id;
        char byte;

        io_open_standard();
        if (nccl_library_load(&library, &e) < 0)
                return fail(&e);
        int r = library.GetUniqueId(&id);
        if (r != NCCL_OK) {
                (void) error_set(&e, CAIRN_ERR_DEVICE, "make unique id", "ncclGetUniqueId",
                                 "%s: %s", library.GetErrorString(r), library.GetLastError(NULL));
                return fail(&e);
        }
        if (write(STDOUT_FILENO, &id, sizeof id) != sizeof id) /* a pipe takes it whole */
                return 74;
        do
                errno = 0;
        while (read(STDIN_FILENO, &byte, 1) > 0 || errno == EINTR);
        return 0;
}
