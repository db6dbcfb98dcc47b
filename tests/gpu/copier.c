/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/gpu/copier.h"

#include "base/clock.h"
#include "device/chunks.h"
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

void copier_init(struct copier *c, struct step *step, uint64_t bytes) {
        struct step s = *step;
        const char *const arguments[] = {"pull", NULL};
        int slab_fd, staging_fd;
        *c = (struct copier){.step = step, .bytes = bytes};
        STEP_TRY(s.device->ops->allocate(s.device, bytes, &c->slab, &s.error));
        STEP_TRY(s.device->ops->export_fd(s.device, &c->slab, &slab_fd, &s.error));
        c->staging = step_memfd(bytes, &staging_fd);
        STEP_TRY(s.device->ops->host_register(s.device, c->staging, bytes, &s.error));
        c->puller = step_spawn(arguments, &c->socket);
        step_send(c->socket, &c->slab.bytes, sizeof c->slab.bytes, slab_fd);
        step_send(c->socket, &c->bytes, sizeof c->bytes, staging_fd);
        (void) close(slab_fd);
        (void) close(staging_fd);
        char ready;
        step_receive(c->socket, &ready, 1, NULL);
}

void copier_done(struct copier *c) {
        struct step s = *c->step;
        (void) close(c->socket); /* it ends */
        step_join(c->puller);
        STEP_TRY(s.device->ops->host_unregister(s.device, c->staging, &s.error));
        (void) munmap(c->staging, c->bytes);
        s.device->ops->release(s.device, &c->slab);
}

static double copy(struct step *step, void *target, const void *source, uint64_t bytes,
                   uint64_t chunk_bytes) {
        struct step s = *step;
        struct chunks chunks;
        double begin = step_seconds();
        chunks_init(&chunks, s.device, NULL, chunk_bytes, NULL, NULL);
        STEP_TRY(chunks_copy(&chunks, target, source, bytes, step_deadline(), &s.error));
        STEP_TRY(chunks_end(&chunks, step_deadline(), &s.error));
        double seconds = step_seconds() - begin;
        chunks_done(&chunks);
        return seconds;
}

double copier_whole(struct copier *c) {
        return copy(c->step, c->staging, c->slab.address, c->bytes, c->bytes);
}

double copier_push(struct copier *c, uint64_t chunk_bytes) {
        return copy(c->step, c->staging, c->slab.address, c->bytes, chunk_bytes);
}

void copier_pull_begin(struct copier *c) {
        char go = 1;
        step_send(c->socket, &go, 1, -1);
}

double copier_pull_end(struct copier *c) {
        double seconds;
        step_receive(c->socket, &seconds, sizeof seconds, NULL);
        return seconds;
}

double copier_pull(struct copier *c) {
        copier_pull_begin(c);
        return copier_pull_end(c);
}

void copier_check(struct copier *c, uint32_t word) {
        step_check_words(c->staging, c->bytes, word, "the copy");
        memset(c->staging, 0xa5, c->bytes);
}

/* ---- the other process ---- */

int copier_pull_main(void) {
        struct step s;
        struct device_memory slab;
        uint64_t slab_bytes, bytes;
        int slab_fd, staging_fd;
        char go;
        step_open(&s);
        step_receive(STEP_SOCKET_FD, &slab_bytes, sizeof slab_bytes, &slab_fd);
        step_receive(STEP_SOCKET_FD, &bytes, sizeof bytes, &staging_fd);
        STEP_TRY(s.device->ops->import_fd(s.device, slab_fd, slab_bytes, true, &slab, &s.error));
        void *staging = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, staging_fd, 0);
        STEP_CHECK(staging != MAP_FAILED);
        STEP_TRY(s.device->ops->host_register(s.device, staging, bytes, &s.error));
        step_send(STEP_SOCKET_FD, "r", 1, -1);
        while (read(STEP_SOCKET_FD, &go, 1) == 1) {
                double seconds = copy(&s, staging, slab.address, bytes, CHUNK_BYTES);
                step_send(STEP_SOCKET_FD, &seconds, sizeof seconds, -1);
        }
        STEP_TRY(s.device->ops->host_unregister(s.device, staging, &s.error));
        s.device->ops->unmap(s.device, &slab);
        return step_passed(&s);
}
