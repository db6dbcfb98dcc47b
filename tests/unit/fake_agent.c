/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/fake_agent.h"
#include "base/assert.h"
#include "base/cleanup.h"
#include "format/crc32c.h"
#include "format/host_state.h"
#include "format/layout.h"
#include "format/plan.h"
#include "format/wire.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>

#define FAKE_CHECKPOINT "000000000007-g0001"
#define FAKE_SECRET "0123456789abcdef"
#define FAKE_SESSION 77

typedef Cairn__Control__Envelope Envelope;

void fake_agent_lock(struct fake_agent *a) {
        (void) pthread_mutex_lock(&a->lock);
}
void fake_agent_unlock(struct fake_agent *a) {
        (void) pthread_mutex_unlock(&a->lock);
}

static ProtobufCBinaryData text(const char *s) {
        return (ProtobufCBinaryData){strlen(s), (uint8_t *) (uintptr_t) s};
}

static void close_fd(int *fd) {
        if (*fd >= 0)
                (void) close(*fd);
        *fd = -1;
}

void fake_agent_init(struct fake_agent *a) {
        static int number;
        const char *directory = getenv("TMPDIR");
        *a = (struct fake_agent){.mode = 1,
                                 .world = 1,
                                 .generation = 1,
                                 .listen_fd = -1,
                                 .connection = -1,
                                 .page_fd = -1,
                                 .ring_fd = -1,
                                 .inventory_fd = -1,
                                 .host_fd = -1,
                                 .push_fd = -1};
        (void) pthread_mutex_init(&a->lock, NULL);
        for (size_t i = 0; i < 64; i++)
                a->slab_fds[i] = -1;
        directory = directory ? directory : "/tmp";
        (void) snprintf(a->path, sizeof a->path, "%s/fake-%d-%d.sock", directory, (int) getpid(),
                        number++);
        CAIRN_ASSERT(setenv("XDG_RUNTIME_DIR", directory, 1) == 0); /* for what a trainer locks */
}

void fake_agent_forget(struct fake_agent *a) {
        fake_agent_lock(a);
        if (a->page)
                (void) munmap(a->page, CONTROL_PAGE_BYTES);
        a->page = NULL;
        close_fd(&a->page_fd);
        close_fd(&a->ring_fd);
        close_fd(&a->inventory_fd);
        close_fd(&a->host_fd);
        close_fd(&a->push_fd);
        for (size_t i = 0; i < 64; i++)
                close_fd(&a->slab_fds[i]);
        fake_agent_unlock(a);
}

void fake_agent_done(struct fake_agent *a) {
        fake_agent_stop(a);
        fake_agent_forget(a);
        free(a->image.index);
        free(a->image.data);
        (void) unlink(a->path);
        (void) pthread_mutex_destroy(&a->lock);
}

/* ---- answers ---- */

static uint64_t soon(void) {
        return clock_now(&clock_system) + 60 * NSEC_PER_SEC;
}

static void answer(struct fake_agent *a, uint64_t id, Envelope *e, const int *fds, size_t count) {
        e->id = id;
        (void) wire_send(a->connection, e, fds, count, soon(), NULL);
}

static void fail(struct fake_agent *a, uint64_t id, int status) {
        Cairn__Control__Failure failure = CAIRN__CONTROL__FAILURE__INIT;
        Envelope e = CAIRN__CONTROL__ENVELOPE__INIT;
        failure.status = status;
        failure.message = text("refused by the fake agent");
        e.failure = &failure;
        answer(a, id, &e, NULL, 0);
}

static void make_page(struct fake_agent *a) {
        CAIRN_ASSERT(wire_memfd_create("page", CONTROL_PAGE_BYTES, &a->page_fd, NULL) == 0);
        CAIRN_ASSERT(wire_memfd_seal(a->page_fd, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL, NULL) ==
                     0);
        a->page = mmap(NULL, CONTROL_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, a->page_fd, 0);
        CAIRN_ASSERT(a->page != MAP_FAILED);
        control_page_init(a->page, FAKE_SESSION);
        a->ring_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
}

static void say_wait(struct fake_agent *a, uint64_t id) {
        Cairn__Control__Wait wait = CAIRN__CONTROL__WAIT__INIT;
        Envelope e = CAIRN__CONTROL__ENVELOPE__INIT;
        wait.reason = text("the predecessor is being written");
        wait.total_bytes = 100;
        e.body_case = CAIRN__CONTROL__ENVELOPE__BODY_WAIT;
        e.wait = &wait;
        answer(a, id, &e, NULL, 0);
}

static void on_hello(struct fake_agent *a, const Envelope *request, struct wire_fds *fds) {
        const Cairn__Control__Hello *h = request->hello;
        bool again = h->session_id != 0;
        a->hellos++;
        a->pidfd_seen = fds->count >= 1;
        int status = again ? a->reattach_status : a->hello_status;
        if (status < 0) {
                fail(a, request->id, status);
                return;
        }
        for (int i = 0; i < a->waits; i++)
                say_wait(a, request->id);
        if (a->wait_for_ever)
                return;
        if (again) {
                CAIRN_ASSERT(h->session_id == FAKE_SESSION && h->secret.len == 16);
                a->page_handed_back = fds->count == 2;
                a->reattached++;
        } else if (!a->page)
                make_page(a);

        Cairn__Control__Welcome w = CAIRN__CONTROL__WELCOME__INIT;
        Cairn__Control__Pair override = CAIRN__CONTROL__PAIR__INIT, *overrides[] = {&override};
        Cairn__Control__Pair conversion = CAIRN__CONTROL__PAIR__INIT,
                             *conversions[] = {&conversion};
        w.protocol = WIRE_PROTOCOL;
        w.session_id = FAKE_SESSION;
        w.secret = text(FAKE_SECRET);
        w.run = h->run;
        w.generation = a->generation;
        w.world = a->world;
        w.mode = a->mode;
        w.every_steps = a->every_steps;
        w.restart = a->restart;
        w.run_dir = text("/store/run");
        w.reattached = again;
        if (a->mode != 1) {
                w.checkpoint = text(FAKE_CHECKPOINT);
                w.checkpoint_step = a->image.step;
        }
        if (a->override_key) {
                override.key = text(a->override_key);
                override.value = text(a->override_value);
                w.overrides = overrides;
                w.n_overrides = 1;
        }
        if (a->conversion_key) {
                conversion.key = text(a->conversion_key);
                conversion.value = text(a->conversion_value);
                w.conversions = conversions;
                w.n_conversions = 1;
        }
        Envelope e = CAIRN__CONTROL__ENVELOPE__INIT;
        e.body_case = CAIRN__CONTROL__ENVELOPE__BODY_WELCOME;
        e.welcome = &w;
        int given[] = {a->page_fd, a->ring_fd};
        answer(a, request->id, &e, given, 2);
}

static void on_slabs(struct fake_agent *a, const Envelope *request, struct wire_fds *fds) {
        const Cairn__Control__SlabBatch *b = request->slab_batch;
        CAIRN_ASSERT(b->n_bytes == fds->count && fds->count <= 8);
        for (size_t i = 0; i < b->n_bytes; i++) {
                close_fd(&a->slab_fds[b->first_slab + i]);
                a->slab_fds[b->first_slab + i] = wire_fds_take(fds, i);
        }
        a->slabs += (int) b->n_bytes;
}

static void on_seal(struct fake_agent *a, const Envelope *request, struct wire_fds *fds) {
        a->seals++;
        if (a->seal_status < 0) {
                fail(a, request->id, a->seal_status);
                return;
        }
        close_fd(&a->inventory_fd);
        close_fd(&a->host_fd);
        close_fd(&a->push_fd);
        a->inventory_fd = wire_fds_take(fds, 0);
        a->host_fd = wire_fds_take(fds, 1);
        if (fds->count == 3)
                a->push_fd = wire_fds_take(fds, 2);
        a->seal_number = request->seal->seal;
        a->seal_bytes = request->seal->bytes;
        Cairn__Control__Sealed sealed = CAIRN__CONTROL__SEALED__INIT;
        Envelope e = CAIRN__CONTROL__ENVELOPE__INIT;
        sealed.seal = a->seal_number;
        sealed.staging_bytes = a->seal_bytes;
        sealed.gate_deadline_ns = a->gate_deadline_ns;
        e.body_case = CAIRN__CONTROL__ENVELOPE__BODY_SEALED;
        e.sealed = &sealed;
        answer(a, request->id, &e, NULL, 0);
}

static int memfd_of(const void *bytes, size_t count) {
        int fd;
        CAIRN_ASSERT(wire_memfd_create("fake", count, &fd, NULL) == 0);
        CAIRN_ASSERT(io_write_all(&io_system, fd, bytes, count, 0, "fake", NULL) == 0);
        CAIRN_ASSERT(wire_memfd_seal(fd, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE, NULL) == 0);
        return fd;
}

static void on_inventory_request(struct fake_agent *a, const Envelope *request) {
        Cairn__Control__InventoryReply reply = CAIRN__CONTROL__INVENTORY_REPLY__INIT;
        Envelope e = CAIRN__CONTROL__ENVELOPE__INIT;
        _cleanup_close_ int fd = memfd_of(a->image.index, a->image.index_bytes);
        reply.checkpoint = text(FAKE_CHECKPOINT);
        reply.step = a->image.step;
        e.body_case = CAIRN__CONTROL__ENVELOPE__BODY_INVENTORY_REPLY;
        e.inventory_reply = &reply;
        answer(a, request->id, &e, &fd, 1);
}

static void on_restore(struct fake_agent *a, const Envelope *request, struct wire_fds *fds) {
        const struct plan_range *ranges;
        uint64_t plan_size, count, staging_bytes;
        a->restores++;
        CAIRN_ASSERT(wire_memfd_check(fds->fds[0], F_SEAL_SHRINK | F_SEAL_WRITE, 32, 1 << 20,
                                      &plan_size, NULL) == 0);
        void *plan = mmap(NULL, plan_size, PROT_READ, MAP_SHARED, fds->fds[0], 0);
        CAIRN_ASSERT(plan_read(plan, plan_size, 1, &ranges, &count, &staging_bytes, NULL) == 0);
        CAIRN_ASSERT(count == request->restore->range_count);
        unsigned char *staging = calloc(1, staging_bytes);
        for (uint64_t i = 0; i < count; i++)
                memcpy(staging + ranges[i].staging_offset, a->image.data + ranges[i].file_offset,
                       ranges[i].bytes);
        if (a->corrupt_image)
                staging[ranges[count - 1].staging_offset] ^= 1;
        (void) munmap(plan, plan_size);
        _cleanup_close_ int fd = memfd_of(staging, staging_bytes);
        free(staging);
        Cairn__Control__RestoreReady ready = CAIRN__CONTROL__RESTORE_READY__INIT;
        Envelope e = CAIRN__CONTROL__ENVELOPE__INIT;
        ready.bytes = staging_bytes;
        ready.read_ns = 1000;
        e.body_case = CAIRN__CONTROL__ENVELOPE__BODY_RESTORE_READY;
        e.restore_ready = &ready;
        answer(a, request->id, &e, &fd, 1);
}

static void say_done(struct fake_agent *a, uint64_t id) {
        Cairn__Control__Done done = CAIRN__CONTROL__DONE__INIT;
        Envelope e = CAIRN__CONTROL__ENVELOPE__INIT;
        e.body_case = CAIRN__CONTROL__ENVELOPE__BODY_DONE;
        e.done = &done;
        answer(a, id, &e, NULL, 0);
}

static int take(struct fake_agent *a, bool demanded);

static void on_demand(struct fake_agent *a, const Envelope *request) {
        a->demands++;
        if (take(a, true) < 0) {
                fail(a, request->id, CAIRN_ERR_BUSY);
                return;
        }
        Cairn__Control__SnapshotReply reply = CAIRN__CONTROL__SNAPSHOT_REPLY__INIT;
        Envelope e = CAIRN__CONTROL__ENVELOPE__INIT;
        e.body_case = CAIRN__CONTROL__ENVELOPE__BODY_SNAPSHOT_REPLY;
        e.snapshot_reply = &reply;
        answer(a, request->id, &e, NULL, 0);
}

static int find_value(const struct fake_agent *a, const ProtobufCBinaryData *key) {
        for (int i = 0; i < a->value_count; i++)
                if (strlen(a->values[i].key) == key->len &&
                    memcmp(a->values[i].key, key->data, key->len) == 0)
                        return i;
        return -1;
}

static void on_put(struct fake_agent *a, const Envelope *request) {
        const Cairn__Control__ExchangePut *m = request->exchange_put;
        int i = find_value(a, &m->key);
        a->puts++;
        if (i < 0)
                i = a->value_count++;
        CAIRN_ASSERT(i < 4 && m->key.len < 64 && m->value.len <= 64);
        memcpy(a->values[i].key, m->key.data, m->key.len);
        if (m->value.len > 0)
                memcpy(a->values[i].value, m->value.data, m->value.len);
        a->values[i].bytes = m->value.len;
        if (request->id)
                say_done(a, request->id);
}

/* It never waits. */
static void on_get(struct fake_agent *a, const Envelope *request) {
        Cairn__Control__ExchangeValue value = CAIRN__CONTROL__EXCHANGE_VALUE__INIT;
        Envelope e = CAIRN__CONTROL__ENVELOPE__INIT;
        int i = find_value(a, &request->exchange_get->key);
        value.present = i >= 0;
        if (i >= 0)
                value.value =
                        (ProtobufCBinaryData){a->values[i].bytes, (uint8_t *) a->values[i].value};
        e.body_case = CAIRN__CONTROL__ENVELOPE__BODY_EXCHANGE_VALUE;
        e.exchange_value = &value;
        answer(a, request->id, &e, NULL, 0);
}

/* One key an answer, in the order in which they came. */
static void on_list(struct fake_agent *a, const Envelope *request) {
        Cairn__Control__ExchangeItems m = CAIRN__CONTROL__EXCHANGE_ITEMS__INIT;
        Cairn__Control__Pair pair = CAIRN__CONTROL__PAIR__INIT, *items[] = {&pair};
        Envelope e = CAIRN__CONTROL__ENVELOPE__INIT;
        int i = find_value(a, &request->exchange_list->after) + 1;
        m.items = items;
        m.n_items = i < a->value_count;
        m.more = i + 1 < a->value_count;
        if (m.n_items) {
                pair.key = text(a->values[i].key);
                pair.value =
                        (ProtobufCBinaryData){a->values[i].bytes, (uint8_t *) a->values[i].value};
        }
        e.body_case = CAIRN__CONTROL__ENVELOPE__BODY_EXCHANGE_ITEMS;
        e.exchange_items = &m;
        answer(a, request->id, &e, NULL, 0);
}

static void on_ranks(struct fake_agent *a, const Envelope *request) {
        Cairn__Control__ExchangeRanks m = CAIRN__CONTROL__EXCHANGE_RANKS__INIT;
        Envelope e = CAIRN__CONTROL__ENVELOPE__INIT;
        uint32_t ranks[] = {0, 2, 3};
        m.n_ranks = 3;
        m.generation = a->generation;
        m.ranks = ranks;
        e.body_case = CAIRN__CONTROL__ENVELOPE__BODY_EXCHANGE_RANKS;
        e.exchange_ranks = &m;
        answer(a, request->id, &e, NULL, 0);
}

static void handle(struct fake_agent *a, const Envelope *e, struct wire_fds *fds) {
        if (a->mute && e->body_case != CAIRN__CONTROL__ENVELOPE__BODY_HELLO)
                return;
        switch (e->body_case) {
        case CAIRN__CONTROL__ENVELOPE__BODY_HELLO:
                on_hello(a, e, fds);
                break;
        case CAIRN__CONTROL__ENVELOPE__BODY_SLAB_BATCH:
                on_slabs(a, e, fds);
                break;
        case CAIRN__CONTROL__ENVELOPE__BODY_SEAL:
                on_seal(a, e, fds);
                break;
        case CAIRN__CONTROL__ENVELOPE__BODY_INVENTORY_REQUEST:
                on_inventory_request(a, e);
                break;
        case CAIRN__CONTROL__ENVELOPE__BODY_RESTORE:
                on_restore(a, e, fds);
                break;
        case CAIRN__CONTROL__ENVELOPE__BODY_RESTORE_DONE:
                a->restore_done_count++;
                a->restore_done_status = e->restore_done->status;
                break;
        case CAIRN__CONTROL__ENVELOPE__BODY_SNAPSHOT_REQUEST:
                on_demand(a, e);
                break;
        case CAIRN__CONTROL__ENVELOPE__BODY_FINISH:
                a->finishes++;
                (void) snprintf(a->finish_reason, sizeof a->finish_reason, "%.*s",
                                (int) e->finish->reason.len, (char *) e->finish->reason.data);
                say_done(a, e->id);
                break;
        case CAIRN__CONTROL__ENVELOPE__BODY_EXCHANGE_PUT:
                on_put(a, e);
                break;
        case CAIRN__CONTROL__ENVELOPE__BODY_EXCHANGE_GET:
                on_get(a, e);
                break;
        case CAIRN__CONTROL__ENVELOPE__BODY_EXCHANGE_LIST:
                on_list(a, e);
                break;
        case CAIRN__CONTROL__ENVELOPE__BODY_EXCHANGE_RANKS_REQUEST:
                on_ranks(a, e);
                break;
        default:
                CAIRN_ASSERT(!"a message that a client does not send");
        }
}

/* ---- the thread ---- */

static void serve(struct fake_agent *a) {
        struct arena arena;
        arena_init(&arena, 64 * MiB);
        for (;;) {
                struct wire_fds received = WIRE_FDS_INIT;
                Envelope *e;
                struct pollfd fds[] = {{.fd = a->connection, .events = POLLIN},
                                       {.fd = a->stop_pipe[0], .events = POLLIN}};
                (void) poll(fds, 2, -1);
                if (fds[1].revents)
                        break;
                arena_clear(&arena);
                if (wire_receive(a->connection, &arena, &e, &received, soon(), NULL) < 0)
                        break;
                fake_agent_lock(a);
                handle(a, e, &received);
                bool drop = e->body_case == CAIRN__CONTROL__ENVELOPE__BODY_SEAL && a->drops > 0;
                a->drops -= drop;
                fake_agent_unlock(a);
                wire_fds_done(&received);
                if (drop)
                        break;
        }
        arena_done(&arena);
        close_fd(&a->connection);
}

static void *fake_main(void *argument) {
        struct fake_agent *a = argument;
        for (;;) {
                struct pollfd fds[] = {{.fd = a->listen_fd, .events = POLLIN},
                                       {.fd = a->stop_pipe[0], .events = POLLIN}};
                (void) poll(fds, 2, -1);
                if (fds[1].revents)
                        return NULL;
                a->connection = accept4(a->listen_fd, NULL, NULL, SOCK_CLOEXEC);
                if (a->connection >= 0)
                        serve(a);
        }
}

void fake_agent_start(struct fake_agent *a) {
        struct sockaddr_un address = {.sun_family = AF_UNIX};
        (void) unlink(a->path);
        memcpy(address.sun_path, a->path, sizeof a->path);
        a->listen_fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        CAIRN_ASSERT(bind(a->listen_fd, (struct sockaddr *) &address, sizeof address) == 0);
        CAIRN_ASSERT(listen(a->listen_fd, 4) == 0);
        CAIRN_ASSERT(pipe2(a->stop_pipe, O_CLOEXEC) == 0);
        CAIRN_ASSERT(pthread_create(&a->thread, NULL, fake_main, a) == 0);
        a->running = true;
}

void fake_agent_stop(struct fake_agent *a) {
        if (!a->running)
                return;
        CAIRN_ASSERT(write(a->stop_pipe[1], "x", 1) == 1);
        (void) pthread_join(a->thread, NULL);
        close_fd(&a->listen_fd);
        close_fd(&a->stop_pipe[0]);
        close_fd(&a->stop_pipe[1]);
        memset(a->values, 0, sizeof a->values);
        a->value_count = 0;
        a->running = false;
}

/* ---- the copier ---- */

static void *map_fd(int fd, size_t *ret_bytes) {
        off_t end = lseek(fd, 0, SEEK_END);
        *ret_bytes = (size_t) end;
        void *p = mmap(NULL, *ret_bytes, PROT_READ, MAP_SHARED, fd, 0);
        CAIRN_ASSERT(p != MAP_FAILED);
        return p;
}

static void fill_state(const struct file_content *inventory, const unsigned char *payload,
                       Cairn__Format__State *state, struct arena *arena) {
        Cairn__Format__InventoryHead *head = inventory->inventory;
        uint64_t at = 0;
        state->values = head->layout;
        state->n_values = head->n_layout;
        for (size_t i = 0; i < head->n_layout; i++) {
                Cairn__Format__StateValue *v = head->layout[i];
                if (v->type == CAIRN_VALUE_BYTES) {
                        uint64_t length;
                        memcpy(&length, payload + at, 8);
                        v->bytes_value.len = length;
                        v->bytes_value.data = arena_alloc(arena, length + 1, 1);
                        memcpy(v->bytes_value.data, payload + at + 8, length);
                        at += 8 + ((v->capacity + 7) & ~UINT64_C(7));
                        continue;
                }
                if (v->type == CAIRN_VALUE_I64)
                        memcpy(&v->i64, payload + at, 8);
                else if (v->type == CAIRN_VALUE_U64)
                        memcpy(&v->u64, payload + at, 8);
                else
                        memcpy(&v->f64, payload + at, 8);
                at += 8;
        }
}

static int compare_names(const void *x, const void *y) {
        const Cairn__Format__Tensor *a = *(Cairn__Format__Tensor *const *) x;
        const Cairn__Format__Tensor *b = *(Cairn__Format__Tensor *const *) y;
        size_t n = a->name.len < b->name.len ? a->name.len : b->name.len;
        int order = memcmp(a->name.data, b->name.data, n);
        return order ? order : (a->name.len > b->name.len) - (a->name.len < b->name.len);
}

static void copy_tensors(struct fake_agent *a, struct file_content *inventory,
                         unsigned char *data) {
        void *slabs[64] = {0};
        size_t slab_bytes[64] = {0};
        for (size_t i = 0; i < inventory->tensor_count; i++) {
                Cairn__Format__Tensor *t = inventory->tensors[i];
                const Cairn__Format__Placement *p = inventory->placements[i];
                uint32_t slab = t->mutates == CAIRN_ANYTIME ? p->shadow_slab : p->slab;
                uint64_t offset = t->mutates == CAIRN_ANYTIME ? p->shadow_offset : p->offset;
                t->shard = NULL;
                for (size_t k = 0; k < t->n_extents; k++) {
                        Cairn__Format__Extent *e = t->extents[k];
                        if (!slabs[slab])
                                slabs[slab] = map_fd(a->slab_fds[slab], &slab_bytes[slab]);
                        memcpy(data + e->offset, (char *) slabs[slab] + offset, e->bytes);
                        e->crc32c = crc32c(0, data + e->offset, e->bytes);
                }
        }
        for (size_t i = 0; i < 64; i++)
                if (slabs[i])
                        (void) munmap(slabs[i], slab_bytes[i]);
}

static void fill_chunks(struct fake_agent *a, Cairn__Format__ChunkCrcs *chunks, uint32_t *crcs,
                        size_t crcs_max) {
        chunks->crc32c = crcs;
        for (uint64_t at = 0; at < a->image.data_bytes; at += DATA_CHUNK_BYTES) {
                uint64_t bytes = a->image.data_bytes - at;
                CAIRN_ASSERT(chunks->n_crc32c < crcs_max);
                crcs[chunks->n_crc32c++] = crc32c(
                        0, a->image.data + at, bytes < DATA_CHUNK_BYTES ? bytes : DATA_CHUNK_BYTES);
        }
}

static void write_index(struct fake_agent *a, struct file_content *inventory,
                        Cairn__Format__State *state, struct cut_word word) {
        Cairn__Format__Head head = CAIRN__FORMAT__HEAD__INIT;
        Cairn__Format__State *states[] = {state};
        struct file_content index = {.kind = FILE_INDEX,
                                     .head = &head,
                                     .tensors = inventory->tensors,
                                     .tensor_count = inventory->tensor_count,
                                     .states = states,
                                     .state_count = 1};
        head.run = text("run");
        head.generation = a->generation;
        head.world = 1;
        head.step = state->step;
        head.seq = word.seq;
        head.texts = inventory->inventory->texts;
        head.n_texts = inventory->inventory->n_texts;
        qsort(index.tensors, index.tensor_count, sizeof *index.tensors, compare_names);
        if (a->edit)
                a->edit(&index, a->image.data, a->edit_argument);
        head.tensor_count = index.tensor_count;
        for (size_t i = 0; i < index.tensor_count; i++)
                for (size_t k = 0; k < index.tensors[i]->n_extents; k++)
                        head.tensor_bytes += index.tensors[i]->extents[k]->bytes;
        Cairn__Format__ChunkCrcs chunks = CAIRN__FORMAT__CHUNK_CRCS__INIT,
                                 *all_chunks[] = {&chunks};
        uint32_t crcs[256];
        fill_chunks(a, &chunks, crcs, sizeof crcs / sizeof *crcs);
        index.chunk_crcs = all_chunks;
        index.chunk_crcs_count = 1;
        struct cairn_error e = CAIRN_ERROR_INIT;
        int r = file_write(&index, &a->image.index, &a->image.index_bytes, &e);
        if (r < 0)
                (void) fprintf(stderr, "fake agent: %s %s: %s\n", e.operation, e.object, e.message);
        CAIRN_ASSERT(r == 0);
}

static int take(struct fake_agent *a, bool demanded) {
        struct arena arena;
        struct file_content inventory;
        struct cut_word word;
        size_t inventory_bytes, host_bytes;
        Cairn__Format__State state = CAIRN__FORMAT__STATE__INIT;
        int r = cut_copy_begin(a->page, demanded, &word);
        if (r < 0)
                return r;
        arena_init(&arena, 1 * GiB);
        void *bytes = map_fd(a->inventory_fd, &inventory_bytes);
        void *host = map_fd(a->host_fd, &host_bytes);
        CAIRN_ASSERT(file_read(bytes, inventory_bytes, FILE_INVENTORY, "inventory", &arena,
                               &inventory, NULL) == 0);
        uint64_t payload_bytes = inventory.inventory->host_state_bytes;
        unsigned char *payload = arena_alloc(&arena, payload_bytes + 8, 8);
        CAIRN_ASSERT(host_state_check(host, host_bytes, NULL) == 0);
        CAIRN_ASSERT(host_state_read(host, payload_bytes, word.seq, &state.step, payload, NULL) ==
                     0);
        fill_state(&inventory, payload, &state, &arena);
        free(a->image.data);
        free(a->image.index);
        CAIRN_ASSERT(layout_assign(&inventory, 0, &arena, &a->image.data_bytes, NULL) == 0);
        CAIRN_ASSERT(a->image.data_bytes == a->seal_bytes);
        a->image.data = calloc(1, a->image.data_bytes);
        copy_tensors(a, &inventory, a->image.data);
        state.seq = word.seq;
        a->image.step = state.step;
        write_index(a, &inventory, &state, word);
        r = cut_copy_end(a->page, word);
        if (r == 0)
                cut_committed(a->page, word.seq, state.step);
        (void) munmap(bytes, inventory_bytes);
        (void) munmap(host, host_bytes);
        arena_done(&arena);
        return r;
}

int fake_agent_take(struct fake_agent *a, bool demanded) {
        fake_agent_lock(a);
        int r = take(a, demanded);
        fake_agent_unlock(a);
        return r;
}
