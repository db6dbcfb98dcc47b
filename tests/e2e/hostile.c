/* SPDX-License-Identifier: Apache-2.0
 *
 * hostile STORE RUN - a run with one whole checkpoint in which every text is an attack on whoever
 * prints it, pastes it into a shell or takes it for a format or a path.
 */
#include "base/cleanup.h"
#include "tests/test.h"
#include "tests/unit/format_sample.h"

static const char *const texts[] = {"\033]0;owned\007\033[2J",
                                    "\302\2332Jc1",
                                    "$(touch pwned)",
                                    "`touch pwned`",
                                    "; touch pwned #",
                                    "%s%s%n%n%99999999d",
                                    "../../../../etc/passwd",
                                    "--help",
                                    "line\nsecond\r\tline",
                                    "\177\177delete",
                                    "\"quoted\\\"",
                                    "file:///bin/sh",
                                    "\342\200\256right-to-left"};
enum { TEXT_COUNT = sizeof texts / sizeof texts[0] };

static void add_texts(struct sample *f) {
        Cairn__Format__Head *head = f->content.head;
        head->texts = sample_memory(f, TEXT_COUNT * sizeof(void *));
        head->n_texts = TEXT_COUNT;
        for (size_t i = 0; i < TEXT_COUNT; i++) {
                head->texts[i] = sample_memory(f, sizeof *head->texts[i]);
                cairn__format__text__init(head->texts[i]);
                head->texts[i]->key = sample_text(f, texts[i]);
                head->texts[i]->value = sample_text(f, texts[TEXT_COUNT - 1 - i]);
        }
        head->writer = sample_text(f, texts[0]);
}

static void make_checkpoint(int run_fd, const char *run) {
        struct file_content *manifests[1];
        struct sample f;
        char name[NAME_BYTES];

        name_checkpoint(name, 5, 1);
        assert_int_equal(mkdirat(run_fd, name, 0755), 0);
        _cleanup_close_ int fd = openat(run_fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        sample_init(&f, run, 0, 1, 1, 5, 1);
        for (size_t i = 0; i < TEXT_COUNT; i++) {
                sample_tensor(&f, texts[i], CAIRN_PARAMETER, CAIRN_F32, 1, (uint64_t[]){3});
                sample_value(&f, texts[i], CAIRN_VALUE_BYTES, 0, texts[i]);
        }
        add_texts(&f);
        sample_finish(&f);
        sample_publish(&f, fd);
        manifests[0] = &f.content;
        sample_commit(fd, &f, manifests, NULL);
        sample_done(&f);
}

int main(int argc, char **argv) {
        if (argc != 3)
                return 64;
        _cleanup_close_ int store = open(argv[1], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (store < 0 || mkdirat(store, argv[2], 0755) < 0)
                return 66;
        _cleanup_close_ int run = openat(store, argv[2], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        sample_claim(run, argv[2], 1, 1);
        sample_start(run, 1, NULL);
        make_checkpoint(run, argv[2]);
        sample_mark(run, "TAG-000000000005-g0001", FILE_MARK_TAG, texts[0], 5, 1);
        sample_mark(run, "PIN-000000000005-g0001", FILE_MARK_PIN, texts[2], 5, 1);
        sample_mark(run, FINISHED_NAME, FILE_MARK_FINISHED, texts[0], 5, 1);
        return 0;
}
