/* SPDX-License-Identifier: Apache-2.0
 *
 * Marks: that a run is finished, pins, tags; and exit.json for people and supervisors. Each is
 * replaced whole, so that a reader sees the old or the new one.
 */
#include "agent/store.h"
#include "base/cleanup.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { EXIT_BYTES_MAX = 4096 };

static int write_mark(struct store_run *run, const char *name, enum file_mark kind,
                      const char *reason, int64_t step, uint64_t generation,
                      struct cairn_error *reterr) {
        const struct clock_ops *clock = run->store->clock;
        Cairn__Format__Mark mark = CAIRN__FORMAT__MARK__INIT;
        struct file_content content = {.kind = FILE_MARK, .mark = &mark};
        _cleanup_free_ void *bytes = NULL;
        char path[2 * NAME_BYTES];
        size_t bytes_count;

        mark.kind = kind;
        mark.reason.len = strlen(reason);
        mark.reason.data = (uint8_t *) (uintptr_t) reason;
        mark.step = step < 0 ? 0 : step;
        mark.generation = generation;
        mark.time_ns = clock->realtime_ns(clock->context);
        (void) snprintf(path, sizeof path, "%s/%s", MARKS_NAME, name);
        TRY(file_write(&content, &bytes, &bytes_count, reterr));
        return io_publish_file(run->store->io, run->fd, path, bytes, bytes_count,
                               IO_PUBLISH_REPLACE, reterr);
}

int mark_finished(struct store_run *run, const char *reason, int64_t step, uint64_t generation,
                  struct cairn_error *reterr) {
        return write_mark(run, FINISHED_NAME, FILE_MARK_FINISHED, reason, step, generation, reterr);
}

static int parse_checkpoint(const char *checkpoint, int64_t *ret_step, uint64_t *ret_generation,
                            struct cairn_error *reterr) {
        if (name_parse_checkpoint(checkpoint, ret_step, ret_generation))
                return 0;
        return error_set(reterr, CAIRN_ERR_NOTFOUND, "mark checkpoint", checkpoint,
                         "this is not the name of a checkpoint; `cairn list` shows them");
}

int mark_tag(struct store_run *run, const char *checkpoint, const char *tag,
             struct cairn_error *reterr) {
        char name[NAME_BYTES];
        uint64_t generation;
        int64_t step;

        TRY(parse_checkpoint(checkpoint, &step, &generation, reterr));
        name_tag(name, checkpoint);
        return write_mark(run, name, FILE_MARK_TAG, tag, step, generation, reterr);
}

int mark_pin(struct store_run *run, const char *checkpoint, bool pinned,
             struct cairn_error *reterr) {
        const struct io_ops *io = run->store->io;
        char name[NAME_BYTES], path[2 * NAME_BYTES];
        uint64_t generation;
        int64_t step;

        TRY(parse_checkpoint(checkpoint, &step, &generation, reterr));
        name_pin(name, checkpoint);
        if (pinned) {
                /* COMMIT is what makes it one; a pin of nothing would be a promise of nothing. */
                TRY(checkpoint_check(io, run->fd, checkpoint, run->run, false, NULL, reterr));
                return write_mark(run, name, FILE_MARK_PIN, "", step, generation, reterr);
        }
        (void) snprintf(path, sizeof path, "%s/%s", MARKS_NAME, name);
        if (io->unlinkat(io->context, run->fd, path, 0) < 0 && errno != ENOENT)
                return error_set_errno(reterr, errno, "unpin", path);
        return 0;
}

/* ---- exit.json ---- */

/* Quoted JSON. What does not fit is left out; bytes that are not ASCII go as they are. */
static void append_quoted(char *target, size_t bytes, const char *text) {
        size_t used = strlen(target);

        if (used + 1 < bytes)
                target[used++] = '"';
        for (; *text && used + 8 < bytes; text++) {
                unsigned char c = (unsigned char) *text;
                if (c == '"' || c == '\\')
                        used += (size_t) snprintf(target + used, bytes - used, "\\%c", c);
                else if (c < 0x20 || c == 0x7f)
                        used += (size_t) snprintf(target + used, bytes - used, "\\u%04x", c);
                else
                        target[used++] = (char) c;
        }
        target[used] = '\0';
        (void) snprintf(target + used, bytes - used, "\"");
}

int mark_exit(struct store_run *run, int code, const char *reason, int64_t step,
              struct cairn_error *reterr) {
        char text[EXIT_BYTES_MAX];

        (void) snprintf(text, sizeof text, "{\"code\":%d,\"reason\":", code);
        append_quoted(text, sizeof text - 64, reason);
        size_t used = strlen(text);
        (void) snprintf(text + used, sizeof text - used, ",\"step\":%" PRId64 "}\n", step);
        return io_publish_file(run->store->io, run->fd, EXIT_NAME, text, strlen(text),
                               IO_PUBLISH_REPLACE, reterr);
}
