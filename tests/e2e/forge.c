/* SPDX-License-Identifier: Apache-2.0
 *
 * forge STORE RUN CHECKPOINT KEY VALUE - makes a checkpoint of one rank say something else about
 * KEY, one of its descriptions, and puts lengths, checksums and digests right: it verifies, and
 * only what it means is wrong.
 */
#include "base/cleanup.h"
#include "tests/test.h"
#include "tests/unit/format_sample.h"

static void change(struct sample *f, struct file_content *manifest, const char *key,
                   const char *value) {
        size_t changed = 0;
        for (size_t i = 0; i < manifest->head->n_texts; i++) {
                Cairn__Format__Text *t = manifest->head->texts[i];
                if (t->key.len != strlen(key) || memcmp(t->key.data, key, t->key.len) != 0)
                        continue;
                t->value = sample_text(f, value);
                changed++;
        }
        assert_int_equal(changed, 1);
}

int main(int argc, char **argv) {
        struct file_content manifest, commit, *manifests[] = {&manifest};
        struct sample f = {0};
        char path[4096], name[NAME_BYTES], parent[NAME_BYTES];
        if (argc != 6)
                return 64;
        (void) snprintf(path, sizeof path, "%s/%s/%s", argv[1], argv[2], argv[3]);
        _cleanup_close_ int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (fd < 0)
                return 66;
        arena_init(&f.arena, 1 * GiB);
        name_manifest(name, 0);
        assert_int_equal(file_load(&io_system, fd, name, FILE_MANIFEST, &f.arena, &manifest, NULL,
                                   NULL, NULL),
                         0);
        assert_int_equal(file_load(&io_system, fd, COMMIT_NAME, FILE_COMMIT, &f.arena, &commit,
                                   NULL, NULL, NULL),
                         0);
        (void) snprintf(parent, sizeof parent, "%.*s", (int) commit.commit->parent.len,
                        (const char *) commit.commit->parent.data);
        change(&f, &manifest, argv[4], argv[5]);
        sample_write_content(fd, name, &manifest);
        sample_commit(fd, &f, manifests, *parent ? parent : NULL);
        arena_done(&f.arena);
        return 0;
}
