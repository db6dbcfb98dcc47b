/* SPDX-License-Identifier: Apache-2.0
 *
 * An exporter is killed again and again while it updates its memory: what another process then
 * imports is the state that the cut word names, unless it names an update; and the dead process'
 * memory comes back.
 */
#include "base/clock.h"
#include "base/limits.h"
#include "format/cut.h"
#include "format/wire.h"
#include "tests/gpu/step.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define MEMORY_BYTES (64 * MiB)
#define LEAK_BYTES_MAX (32 * MiB)
#define PAUSE_NS_MAX (40 * NSEC_PER_MSEC)
enum { RESTING_UPDATES = 3 };

static struct control_page *map_page(int fd) {
        void *p = mmap(NULL, CONTROL_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        STEP_CHECK(p != MAP_FAILED);
        return p;
}

/* ---- the one that dies ---- */

/* resting: it stays at a cut after a few updates, as in a long evaluation. */
static int exporter_main(bool resting) {
        struct step s;
        struct device_memory m;
        struct cut_gate gate = {.deadline_duration_ns = 2 * NSEC_PER_SEC};
        uint64_t bytes = step_choose(MEMORY_BYTES, 2 * MiB);
        uint64_t seq;
        bool expired, ring;
        int fd, page_fd;
        step_open(&s);
        step_receive(STEP_SOCKET_FD, &bytes, sizeof bytes, &page_fd);
        struct control_page *page = map_page(page_fd);
        STEP_TRY(s.device->ops->allocate(s.device, bytes, &m, &s.error));
        STEP_TRY(s.device->ops->export_fd(s.device, &m, &fd, &s.error));
        step_send(STEP_SOCKET_FD, &m.bytes, sizeof m.bytes, fd);
        struct cuda_stream *stream = step_stream(&s);
        for (uint32_t n = 1;; n++) { /* until it is killed */
                if (n > 1)
                        STEP_CHECK(cut_update_begin(page, &gate, &clock_system, &expired) == 0);
                /* In pieces, so that there is a middle to die in. */
                for (uint64_t at = 0; at < m.bytes; at += m.bytes / 8)
                        step_fill(&s, stream, (char *) m.address + at, n, m.bytes / 8);
                STEP_CHECK(s.cuda->StreamSynchronize(stream) == CUDA_OK);
                STEP_CHECK(cut_update_end(page, (int64_t) n, 0, &seq, &ring) == 0);
                if (resting && n == RESTING_UPDATES)
                        (void) pause();
        }
}

/* ---- the one that looks ---- */

struct counts {
        unsigned cuts, updates;
};

static void look(struct step *step, const struct control_page *page, int fd, uint64_t bytes,
                 uint32_t *host, struct counts *counts) {
        struct step s = *step;
        struct device_memory m;
        struct cut_word w = cut_read(page);
        STEP_TRY(s.device->ops->import_fd(s.device, fd, bytes, true, &m, &s.error));
        STEP_TRY(s.device->ops->copy_async(s.device, NULL, host, m.address, bytes, &s.error));
        STEP_TRY(s.device->ops->synchronize(s.device, step_deadline(), &s.error));
        s.device->ops->unmap(s.device, &m);
        if (w.phase == CUT_UPDATING) {
                counts->updates++;
                return;
        }
        STEP_CHECK(w.phase == CUT_STABLE);
        counts->cuts++;
        step_check_words(host, bytes, (uint32_t) w.seq, "a cut of a dead exporter");
}

static void one_life(struct step *s, uint32_t *host, uint64_t bytes, bool resting,
                     struct counts *counts) {
        const char *const arguments[] = {resting ? "rest" : "work", NULL};
        struct cairn_error e = CAIRN_ERROR_INIT;
        uint64_t slab_bytes;
        int socket, fd, page_fd;
        if (wire_memfd_create("cairn-gpu-page", CONTROL_PAGE_BYTES, &page_fd, &e) < 0)
                step_fail_error(&e);
        struct control_page *page = map_page(page_fd);
        control_page_init(page, 1);
        pid_t pid = step_spawn(arguments, &socket);
        step_send(socket, &bytes, sizeof bytes, page_fd);
        step_receive(socket, &slab_bytes, sizeof slab_bytes, &fd);
        uint64_t deadline_ns = step_deadline();
        while (cut_read(page).seq < (resting ? RESTING_UPDATES : 1))
                if (clock_now(&clock_system) > deadline_ns)
                        step_fail("no update ends");
        if (!resting)
                clock_system.sleep_ns(clock_system.context, (uint64_t) random() % PAUSE_NS_MAX);
        int status = step_kill(pid);
        STEP_CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        look(s, page, fd, slab_bytes, host, counts);
        STEP_CHECK(!resting || cut_read(page).seq == RESTING_UPDATES);
        (void) close(fd);
        (void) close(socket);
        (void) close(page_fd);
        (void) munmap(page, CONTROL_PAGE_BYTES);
}

static uint64_t free_bytes(struct step *s) {
        size_t available, total;
        step_enter(s);
        STEP_CHECK(s->cuda->MemGetInfo(&available, &total) == CUDA_OK);
        return available;
}

int main(int argc, char **argv) {
        struct step s;
        struct counts counts = {0};
        uint64_t lives = step_choose(16, 6), bytes = step_choose(MEMORY_BYTES, 2 * MiB);
        if (argc > 1)
                return exporter_main(strcmp(argv[1], "rest") == 0);
        step_open(&s);
        uint32_t *host = step_memfd(bytes, NULL);
        STEP_TRY(s.device->ops->host_register(s.device, host, bytes, &s.error));
        uint64_t before = free_bytes(&s);
        srandom((unsigned) (clock_now(&clock_system) / 1000));
        for (uint64_t i = 0; i < lives; i++)
                one_life(&s, host, bytes, i % 2 == 0, &counts);
        uint64_t after = free_bytes(&s);
        step_figure("lives", (double) lives, "");
        step_figure("cuts", counts.cuts, "");
        step_figure("died_in_update", counts.updates, "");
        step_figure("memory_kept", before > after ? (double) (before - after) / MiB : 0, "MiB");
        STEP_TRY(s.device->ops->host_unregister(s.device, host, &s.error));
        STEP_CHECK(counts.cuts >= lives / 2); /* those that rested */
        if (before > after + LEAK_BYTES_MAX)
                step_fail("memory of dead exporters stays in use");
        return step_passed(&s);
}
