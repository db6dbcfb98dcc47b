/* SPDX-License-Identifier: Apache-2.0
 *
 * flip STORE RUN CHECKPOINT ROUNDS SEED - damages a checkpoint that many times, each time one bit
 * or one truncation in one of its files, and lets the verifier look. Every damage has to be
 * reported with the file's name; afterwards the file is as it was. Prints counts; exit 1 if one
 * went unnoticed.
 */
#include "base/cleanup.h"
#include "format/scan.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { FILES_MAX = 16 };

struct target {
        int run_fd;
        const char *run, *checkpoint;
        char files[FILES_MAX][NAME_BYTES];
        size_t file_count;
        uint64_t random;
        uint64_t flips, truncations, missed, unnamed;
};

static uint64_t random_next(struct target *t) {
        uint64_t x = t->random += UINT64_C(0x9e3779b97f4a7c15);
        x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
        x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
        return x ^ (x >> 31);
}

static int add_file(const char *name, void *argument) {
        struct target *t = argument;
        if (t->file_count == FILES_MAX)
                return 1;
        (void) snprintf(t->files[t->file_count++], NAME_BYTES, "%s", name);
        return 0;
}

/* The verifier has to fail, and its sentence has to name the file. */
static void look(struct target *t, const char *file, const char *what, uint64_t at) {
        struct cairn_error e = CAIRN_ERROR_INIT;
        struct verify_result result;
        char text[2048] = "";
        int r = checkpoint_check(&io_system, t->run_fd, t->checkpoint, t->run, true, &result, &e);
        if (r == 0) {
                printf("✗ %s %s at %" PRIu64 " went unnoticed\n", file, what, at);
                t->missed++;
                return;
        }
        if (!strstr(error_format(&e, text, sizeof text), file)) {
                if (t->unnamed == 0)
                        printf("✗ %s %s at %" PRIu64 ": the error does not name it: %s\n", file,
                               what, at, text);
                t->unnamed++;
        }
}

static int damage(struct target *t, const char *file) {
        char path[2 * NAME_BYTES];
        struct stat st;
        (void) snprintf(path, sizeof path, "%s/%s", t->checkpoint, file);
        _cleanup_close_ int fd = openat(t->run_fd, path, O_RDWR | O_CLOEXEC);
        if (fd < 0 || fstat(fd, &st) < 0)
                return -1;
        if (st.st_size == 0)
                return 0;
        uint64_t at = random_next(t) % (uint64_t) st.st_size;
        if (random_next(t) % 5 != 0) {
                unsigned char byte, changed;
                if (pread(fd, &byte, 1, (off_t) at) != 1)
                        return -1;
                changed = byte ^ (unsigned char) (1u << random_next(t) % 8);
                if (pwrite(fd, &changed, 1, (off_t) at) != 1)
                        return -1;
                look(t, file, "flipped", at);
                t->flips++;
                return pwrite(fd, &byte, 1, (off_t) at) == 1 ? 0 : -1;
        }
        size_t rest = (size_t) ((uint64_t) st.st_size - at);
        _cleanup_free_ void *tail = malloc(rest);
        if (!tail || pread(fd, tail, rest, (off_t) at) != (ssize_t) rest ||
            ftruncate(fd, (off_t) at) < 0)
                return -1;
        look(t, file, "cut", at);
        t->truncations++;
        return pwrite(fd, tail, rest, (off_t) at) == (ssize_t) rest ? 0 : -1;
}

static int damage_often(struct target *t, uint64_t rounds) {
        struct cairn_error e = CAIRN_ERROR_INIT;
        char text[2048];
        for (uint64_t i = 0; i < rounds; i++)
                if (damage(t, t->files[random_next(t) % t->file_count]) < 0) {
                        fprintf(stderr, "flip: %s\n", strerror(errno));
                        return 70;
                }
        if (checkpoint_check(&io_system, t->run_fd, t->checkpoint, t->run, true, NULL, &e) < 0) {
                fprintf(stderr, "flip: not as it was: %s\n", error_format(&e, text, sizeof text));
                return 70;
        }
        printf("%" PRIu64 " flipped bits and %" PRIu64 " truncations in %zu files: %" PRIu64
               " unnoticed, %" PRIu64 " without the file's name\n",
               t->flips, t->truncations, t->file_count, t->missed, t->unnamed);
        return t->missed + t->unnamed > 0;
}

int main(int argc, char **argv) {
        if (argc != 6)
                return 64;
        struct target t = {.run_fd = -1,
                           .run = argv[2],
                           .checkpoint = argv[3],
                           .random = strtoull(argv[5], NULL, 10)};
        struct cairn_error e = CAIRN_ERROR_INIT;
        char text[2048];
        _cleanup_close_ int store_fd = -1;
        if (store_open(&io_system, argv[1], &store_fd, &e) < 0 ||
            run_open(&io_system, store_fd, t.run, &t.run_fd, &e) < 0) {
                fprintf(stderr, "flip: %s\n", error_format(&e, text, sizeof text));
                return 66;
        }
        _cleanup_close_ int dir =
                openat(t.run_fd, t.checkpoint, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (dir < 0 || io_system.list(io_system.context, dir, add_file, &t) != 0 ||
            t.file_count == 0) {
                fprintf(stderr, "flip: cannot list %s\n", t.checkpoint);
                return 66;
        }
        int r = damage_often(&t, strtoull(argv[4], NULL, 10));
        (void) close(t.run_fd);
        return r;
}
