/* SPDX-License-Identifier: Apache-2.0 */
#include "trainer/training_log.h"
#include "base/cleanup.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <sys/stat.h>

static const char line_begin[] = "{\"step\":";

/* One line that we wrote: its step and kind. An unfinished line is none. */
static bool read_line(const char *line, size_t length, int64_t *ret_step, bool *ret_is_evaluation) {
        size_t skip = sizeof(line_begin) - 1;
        char *end;

        if (length <= skip || strncmp(line, line_begin, skip) != 0 || line[length - 1] != '\n')
                return false;
        errno = 0;
        *ret_step = strtoll(line + skip, &end, 10);
        *ret_is_evaluation = strncmp(end, ",\"eval_loss\":", 13) == 0;
        return errno == 0 && (*ret_is_evaluation || strncmp(end, ",\"loss\":", 8) == 0);
}

/* Where the lines to keep end. */
static int find_cut(FILE *file, const char *path, int64_t step, off_t *ret_bytes,
                    int64_t *ret_last_step, struct cairn_error *reterr) {
        _cleanup_free_ char *line = NULL;
        size_t capacity = 0;
        ssize_t length;

        *ret_bytes = 0;
        *ret_last_step = 0;
        while ((length = getline(&line, &capacity, file)) > 0) {
                int64_t at;
                bool is_evaluation;
                if (!read_line(line, (size_t) length, &at, &is_evaluation)) {
                        if (line[length - 1] != '\n' && *ret_bytes > 0)
                                break; /* the writer died in this line */
                        return error_set(reterr, CAIRN_ERR_EXISTS, "continue log", path,
                                         "holds something else than training lines; nothing was "
                                         "changed, give another --log");
                }
                if (at > step || (is_evaluation && at >= step))
                        break;
                *ret_bytes += length;
                *ret_last_step = at;
        }
        if (ferror(file))
                return error_set_errno(reterr, errno, "read log", path);
        return 0;
}

static int cut_back(int fd, const char *path, int64_t step, int64_t *ret_last_step,
                    struct cairn_error *reterr) {
        off_t bytes, size = lseek(fd, 0, SEEK_END);
        int copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);
        _cleanup_fclose_ FILE *file = copy >= 0 ? fdopen(copy, "r") : NULL;

        if (size < 0 || !file || lseek(fd, 0, SEEK_SET) < 0) {
                if (copy >= 0 && !file)
                        (void) close(copy);
                return error_set_errno(reterr, errno, "read log", path);
        }
        TRY(find_cut(file, path, step, &bytes, ret_last_step, reterr));
        /* At a line's end, so any prefix that a crash leaves is a log, too. */
        if (bytes < size && (ftruncate(fd, bytes) < 0 || fsync(fd) < 0))
                return error_set_errno(reterr, errno, "cut log", path);
        return 0;
}

int training_log_open(struct training_log *l, const char *path, int64_t step, bool keep_previous,
                      int64_t *ret_last_step, struct cairn_error *reterr) {
        int64_t ignored;
        char previous[4096];

        *l = (struct training_log){.fd = -1};
        *ret_last_step = 0;
        if (!path)
                return 0;
        for (int round = 0; round < 2; round++) {
                struct stat st;
                _cleanup_close_ int fd =
                        open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NOCTTY | O_NOFOLLOW,
                             0666);
                if (fd < 0 || fstat(fd, &st) < 0)
                        return error_set_errno(reterr, errno, "open log (--log)", path);
                if (!S_ISREG(st.st_mode))
                        return error_set(reterr, CAIRN_ERR_EXISTS, "open log (--log)", path,
                                         "a log is a regular file, for it is cut back on a resume");
                if (step == 0 && keep_previous && round == 0 && lseek(fd, 0, SEEK_END) > 0) {
                        /* Cutting nothing: only looks whether it is ours. */
                        TRY(cut_back(fd, path, INT64_MAX, &ignored, reterr));
                        (void) snprintf(previous, sizeof(previous), "%s.previous", path);
                        if (rename(path, previous) < 0)
                                return error_set_errno(reterr, errno, "move log aside", path);
                        continue;
                }
                TRY(cut_back(fd, path, step, ret_last_step, reterr));
                l->fd = TAKE_FD(fd);
                return 0;
        }
        return 0;
}

void training_log_close(struct training_log *l) {
        if (!l || l->fd < 0)
                return;
        (void) fdatasync(l->fd);
        (void) close(l->fd);
        l->fd = -1;
}

static void write_line(struct training_log *l, const char *line, int length) {
        if (l->fd < 0)
                return;
        ssize_t written = write(l->fd, line, (size_t) length);
        if (written == length || l->failed)
                return;
        l->failed = true;
        (void) fprintf(stderr, "cairn-train: cannot write the log: %s; training goes on\n",
                       written < 0 ? strerror(errno) : "short write, is the disk full?");
}

static uint32_t bits_of(float value) {
        uint32_t bits;

        memcpy(&bits, &value, sizeof(bits));
        return bits;
}

/* JSON has no infinity and no NaN; the bits beside it tell. */
static const char *number(char buf[32], double value) {
        if (!isfinite(value))
                return "null";
        (void) snprintf(buf, 32, "%.9g", value);
        return buf;
}

void training_log_write_step(struct training_log *l, const struct training_log_step *line) {
        char buf[256], loss[32], rate[32];
        int length = snprintf(buf, sizeof(buf),
                              "{\"step\":%" PRId64 ",\"loss\":%s,\"loss_bits\":\"%08" PRIx32
                              "\",\"lr\":%s,\"samples\":%" PRId64 ",\"seconds\":%.3f}\n",
                              line->step, number(loss, (double) line->loss), bits_of(line->loss),
                              number(rate, line->rate), line->samples, line->seconds);

        write_line(l, buf, length);
}

void training_log_write_evaluation(struct training_log *l,
                                   const struct training_log_evaluation *line) {
        char buf[256], ema[96] = "", loss[32], ema_loss[32];

        if (line->has_ema)
                (void) snprintf(ema, sizeof(ema),
                                ",\"ema_loss\":%s,\"ema_loss_bits\":\"%08" PRIx32 "\"",
                                number(ema_loss, (double) line->ema_loss), bits_of(line->ema_loss));
        int length =
                snprintf(buf, sizeof(buf),
                         "{\"step\":%" PRId64 ",\"eval_loss\":%s,\"eval_loss_bits\":\"%08" PRIx32
                         "\"%s,\"seconds\":%.3f}\n",
                         line->step, number(loss, (double) line->loss), bits_of(line->loss), ema,
                         line->seconds);
        write_line(l, buf, length);
}
