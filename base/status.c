/* SPDX-License-Identifier: Apache-2.0 */
#include "base/status.h"
#include "base/log.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

static const struct status_row {
        int status;
        int exit_code;
        const char *name;
} status_rows[] = {
        {CAIRN_OK, 0, "OK"},
        {CAIRN_ERR_API, 64, "API"},
        {CAIRN_ERR_BUSY, 70, "BUSY"},
        {CAIRN_ERR_TIMEOUT, 124, "TIMEOUT"},
        {CAIRN_ERR_CORRUPT, 65, "CORRUPT"},
        {CAIRN_ERR_NOSPACE, 73, "NOSPACE"},
        {CAIRN_ERR_STALE, 78, "STALE"},
        {CAIRN_ERR_DEVICE, 70, "DEVICE"},
        {CAIRN_ERR_PEER, 69, "PEER"},
        {CAIRN_ERR_FATAL, 70, "FATAL"},
        {CAIRN_ERR_UNREACHABLE, 69, "UNREACHABLE"},
        {CAIRN_ERR_NOTFOUND, 66, "NOTFOUND"},
        {CAIRN_ERR_PERMISSION, 77, "PERMISSION"},
        {CAIRN_ERR_MISMATCH, 78, "MISMATCH"},
        {CAIRN_ERR_IO, 74, "IO"},
        {CAIRN_ERR_NOMEM, 73, "NOMEM"},
        {CAIRN_ERR_VOID, 70, "VOID"},
        {CAIRN_ERR_UNSUPPORTED, 65, "UNSUPPORTED"},
        {CAIRN_ERR_EXISTS, 73, "EXISTS"},
        {CAIRN_ERR_FINISHED, 66, "FINISHED"},
        {CAIRN_ERR_CANNOT_WRITE, 73, "CANNOT_WRITE"},
        {CAIRN_ERR_PREEMPTED, 75, "PREEMPTED"},
};

static const struct errno_row {
        int error_number;
        int status;
        const char *remedy;
} errno_rows[] = {
        {ENOSPC, CAIRN_ERR_NOSPACE, "free space on the file system or choose another store"},
        {EDQUOT, CAIRN_ERR_NOSPACE, "free space or have the quota raised"},
        {EIO, CAIRN_ERR_IO, "the storage failed; look into the kernel log"},
        {ESTALE, CAIRN_ERR_IO, "the network file system lost the file; mount it again"},
        {EACCES, CAIRN_ERR_PERMISSION, "check the owner and the mode of each folder on the way"},
        {EPERM, CAIRN_ERR_PERMISSION, "the system refuses this to the user of the process"},
        {ELOOP, CAIRN_ERR_PERMISSION, "symbolic links are not followed inside a store"},
        {EXDEV, CAIRN_ERR_PERMISSION, "the path or a link in it leaves its folder"},
        {EROFS, CAIRN_ERR_CANNOT_WRITE, "mount the file system writable or choose another store"},
        {ENOTDIR, CAIRN_ERR_CANNOT_WRITE, "a part of the path is not a folder"},
        {EISDIR, CAIRN_ERR_CANNOT_WRITE, "a folder has the name of the file: move it away"},
        {ENOENT, CAIRN_ERR_NOTFOUND, ""},
        {EEXIST, CAIRN_ERR_EXISTS, ""},
        {ETIMEDOUT, CAIRN_ERR_TIMEOUT, ""},
        {ENOMEM, CAIRN_ERR_NOMEM, "give the process more memory"},
        {EMFILE, CAIRN_ERR_NOMEM, "raise the limit of open files (ulimit -n)"},
        {ENFILE, CAIRN_ERR_NOMEM, "the machine has too many open files (fs.file-max)"},
        {ECONNREFUSED, CAIRN_ERR_UNREACHABLE, "nobody listens there; start the agent"},
        {ENOSYS, CAIRN_ERR_UNSUPPORTED, "the kernel or its sandbox lacks this call"},
        {EOPNOTSUPP, CAIRN_ERR_UNSUPPORTED, "the file system lacks this operation"},
};

static const struct status_row *status_row_of(int status) {
        for (size_t i = 0; i < sizeof status_rows / sizeof *status_rows; i++)
                if (status_rows[i].status == status)
                        return &status_rows[i];
        return NULL;
}

static const struct errno_row *errno_row_of(int error_number) {
        for (size_t i = 0; i < sizeof errno_rows / sizeof *errno_rows; i++)
                if (errno_rows[i].error_number == error_number)
                        return &errno_rows[i];
        return NULL;
}

const char *status_name(int status) {
        const struct status_row *row = status_row_of(status);
        return row ? row->name : "UNKNOWN";
}

int status_exit_code(int status) {
        const struct status_row *row = status_row_of(status);
        return row ? row->exit_code : 70;
}

int error_status_of_errno(int error_number) {
        const struct errno_row *row = errno_row_of(error_number);
        return row ? row->status : CAIRN_ERR_IO;
}

/* The caller may pass the error's own strings, to add to it: everything is composed before it is
 * assigned. */
int error_set(struct cairn_error *reterr, int status, const char *operation, const char *object,
              const char *message, ...) {
        struct cairn_error e = {.status = status, .offset = UINT64_MAX};
        va_list arguments;

        if (!reterr)
                return status;
        (void) snprintf(e.operation, sizeof e.operation, "%s", operation ? operation : "");
        (void) snprintf(e.object, sizeof e.object, "%s", object ? object : "");
        va_start(arguments, message);
        (void) vsnprintf(e.message, sizeof e.message, message, arguments);
        va_end(arguments);
        *reterr = e;
        return status;
}

int error_set_errno(struct cairn_error *reterr, int error_number, const char *operation,
                    const char *object) {
        return error_set_errno_at(reterr, error_number, operation, object, UINT64_MAX);
}

int error_set_errno_at(struct cairn_error *reterr, int error_number, const char *operation,
                       const char *object, uint64_t offset) {
        const struct errno_row *row = errno_row_of(error_number);
        int status = error_set(reterr, error_status_of_errno(error_number), operation, object, "%s",
                               row ? row->remedy : "");
        if (reterr) {
                reterr->system_code = error_number;
                reterr->offset = offset;
        }
        return status;
}

/* What the system said, or nothing. */
static void format_system_code(const struct cairn_error *e, char *buf, size_t bytes) {
        const char *text = e->status == CAIRN_ERR_DEVICE ? NULL : strerrordesc_np(e->system_code);

        buf[0] = '\0';
        if (e->system_code == 0)
                return;
        if (text)
                (void) snprintf(buf, bytes, "%s", text);
        else
                (void) snprintf(buf, bytes, "code %d", e->system_code);
}

const char *error_format(const struct cairn_error *e, char *buf, size_t bytes) {
        char line[1280], place[48] = "", system_text[96];
        bool has_object = e->object[0] != '\0', has_message = e->message[0] != '\0';

        if (bytes == 0)
                return buf;
        format_system_code(e, system_text, sizeof system_text);
        if (e->offset != UINT64_MAX)
                (void) snprintf(place, sizeof place, " at byte %" PRIu64, e->offset);
        /* The arrays may come from a peer: nothing promises that they end inside. */
        int length =
                snprintf(line, sizeof line, "%.*s%s%.*s%s: %s%s%.*s", (int) sizeof e->operation,
                         e->operation, has_object ? " " : "", (int) sizeof e->object, e->object,
                         place, system_text, system_text[0] && has_message ? ": " : "",
                         (int) sizeof e->message, e->message);
        if (!system_text[0] && !has_message)
                (void) snprintf(line + length, sizeof line - (size_t) length, "%s",
                                status_name(e->status));
        return text_escape_control(buf, bytes, line, strnlen(line, sizeof line));
}
