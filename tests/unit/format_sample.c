/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/format_sample.h"
#include "base/cleanup.h"
#include "format/crc32c.h"
#include "format/dtype.h"
#include "format/layout.h"
#include "tests/test.h"

#include <sys/stat.h>

#define TIME_NS UINT64_C(1700000000000000000)

void *sample_memory(struct sample *f, size_t bytes) {
        void *p = arena_alloc(&f->arena, bytes, 16);
        assert_non_null(p);
        return p;
}

ProtobufCBinaryData sample_text(struct sample *f, const char *text) {
        size_t bytes = strlen(text);
        uint8_t *copy = sample_memory(f, bytes + 1);
        memcpy(copy, text, bytes + 1);
        return (ProtobufCBinaryData){bytes, copy};
}

void sample_init(struct sample *f, const char *run, uint32_t rank, uint32_t world,
                 uint64_t generation, int64_t step, uint32_t attempt) {
        *f = (struct sample){.content = {.kind = FILE_MANIFEST}, .capacity = 4096};
        arena_init(&f->arena, 8 * GiB);
        f->content.tensors = sample_memory(f, f->capacity * sizeof(Tensor *));
        f->content.placements = sample_memory(f, f->capacity * sizeof(void *));
        Cairn__Format__Head *head = sample_memory(f, sizeof *head);
        cairn__format__head__init(head);
        head->run = sample_text(f, run);
        head->generation = generation;
        head->rank = rank;
        head->world = world;
        head->step = step;
        head->seq = (uint64_t) step + 1;
        head->attempt = attempt;
        head->data_uuid.len = 16;
        head->data_uuid.data = sample_memory(f, 16);
        for (size_t i = 0; i < 16; i++)
                head->data_uuid.data[i] = (uint8_t) (i + rank * 16 + (uint64_t) step * 3);
        head->time_ns = TIME_NS + (uint64_t) step;
        head->writer = sample_text(f, "cairn test");
        f->content.head = head;
        Cairn__Format__State *state = sample_memory(f, sizeof *state);
        cairn__format__state__init(state);
        state->rank = rank;
        state->step = step;
        state->seq = head->seq;
        state->values = sample_memory(f, 64 * sizeof(void *));
        f->content.states = sample_memory(f, sizeof(void *));
        f->content.states[0] = state;
        f->content.state_count = 1;
}

void sample_done(struct sample *f) {
        free(f->image);
        arena_done(&f->arena);
}

Tensor *sample_tensor(struct sample *f, const char *name, uint32_t role, uint32_t dtype,
                      size_t rank, const uint64_t *shape) {
        struct file_content *c = &f->content;
        Tensor *t = sample_memory(f, sizeof *t);
        Cairn__Format__Placement *p = sample_memory(f, sizeof *p);

        assert_true(c->tensor_count < f->capacity);
        cairn__format__tensor__init(t);
        cairn__format__placement__init(p);
        t->name = sample_text(f, name);
        t->role = role;
        t->runtime_dtype = t->stored_dtype = dtype;
        t->n_shape = rank;
        t->shape = sample_memory(f, (rank + 1) * sizeof *t->shape);
        for (size_t i = 0; i < rank; i++)
                t->shape[i] = shape[i];
        p->owned = true;
        c->tensors[c->tensor_count++] = t;
        c->placements[c->placement_count++] = p;
        return t;
}

void sample_disown(struct sample *f, const Tensor *t) {
        for (size_t i = 0; i < f->content.tensor_count; i++)
                if (f->content.tensors[i] == t)
                        f->content.placements[i]->owned = false;
}

void sample_flat(struct sample *f, Tensor *t, uint64_t start, uint64_t count) {
        t->shard = sample_memory(f, sizeof *t->shard);
        cairn__format__shard__init(t->shard);
        t->shard->flat = true;
        t->shard->flat_start = start;
        t->shard->flat_count = count;
}

void sample_block(struct sample *f, Tensor *t, const uint64_t *offsets, const uint64_t *extents) {
        size_t bytes = t->n_shape * sizeof *offsets;

        t->shard = sample_memory(f, sizeof *t->shard);
        cairn__format__shard__init(t->shard);
        t->shard->n_offsets = t->shard->n_extents = t->n_shape;
        t->shard->offsets = sample_memory(f, bytes);
        t->shard->extents = sample_memory(f, bytes);
        for (size_t i = 0; i < t->n_shape; i++) {
                t->shard->offsets[i] = offsets[i];
                t->shard->extents[i] = extents[i];
        }
}

void sample_value(struct sample *f, const char *name, uint32_t type, int64_t v, const char *bytes) {
        Cairn__Format__State *state = f->content.states[0];
        Cairn__Format__StateValue *value = sample_memory(f, sizeof *value);

        assert_true(state->n_values < 64);
        cairn__format__state_value__init(value);
        value->name = sample_text(f, name);
        value->type = type;
        if (type == CAIRN_VALUE_I64)
                value->i64 = v;
        else if (type == CAIRN_VALUE_U64)
                value->u64 = (uint64_t) v;
        else if (type == CAIRN_VALUE_F64)
                value->f64 = (double) v / 8;
        else
                value->bytes_value = sample_text(f, bytes);
        value->capacity = type == CAIRN_VALUE_BYTES ? 64 : 0;
        state->values[state->n_values++] = value;
}

static void fill(const Tensor *t, uint8_t *p, uint64_t bytes) {
        float step = (float) t->true_step;

        for (uint64_t i = 0; i < bytes; i++)
                p[i] = (uint8_t) (t->runtime_dtype == CAIRN_BOOL ? i & 1
                                                                 : i * 37 + t->name.len * 11);
        for (uint64_t i = 0; t->has_true_step && i + 4 <= bytes; i += 4)
                memcpy(p + i, &step, 4);
}

void sample_finish(struct sample *f) {
        struct file_content *c = &f->content;
        struct data_header header = {.rank = c->head->rank, .generation = c->head->generation};

        assert_int_equal(layout_assign(c, c->head->rank, &f->arena, &f->image_bytes, NULL), 0);
        f->image = calloc(1, f->image_bytes);
        assert_non_null(f->image);
        memcpy(header.uuid, c->head->data_uuid.data, 16);
        memcpy(header.run, c->head->run.data, c->head->run.len);
        data_header_write(f->image, &header);
        c->head->tensor_count = c->tensor_count;
        c->head->tensor_bytes = 0;
        for (size_t i = 0; i < c->tensor_count; i++)
                for (size_t k = 0; k < c->tensors[i]->n_extents; k++) {
                        Extent *e = c->tensors[i]->extents[k];
                        fill(c->tensors[i], f->image + e->offset, e->bytes);
                        e->crc32c = crc32c(0, f->image + e->offset, e->bytes);
                        c->head->tensor_bytes += e->bytes;
                }
        c->head->data_bytes = f->image_bytes;
        Cairn__Format__ChunkCrcs *crcs = sample_memory(f, sizeof *crcs);
        cairn__format__chunk_crcs__init(crcs);
        crcs->rank = c->head->rank;
        crcs->n_crc32c = (f->image_bytes + DATA_CHUNK_BYTES - 1) / DATA_CHUNK_BYTES;
        crcs->crc32c = sample_memory(f, crcs->n_crc32c * sizeof *crcs->crc32c);
        for (size_t i = 0; i < crcs->n_crc32c; i++) {
                uint64_t at = i * DATA_CHUNK_BYTES, left = f->image_bytes - at;
                crcs->crc32c[i] =
                        crc32c(0, f->image + at, left < DATA_CHUNK_BYTES ? left : DATA_CHUNK_BYTES);
        }
        c->chunk_crcs = sample_memory(f, sizeof(void *));
        c->chunk_crcs[0] = crcs;
        c->chunk_crcs_count = 1;
}

void sample_write(int dirfd, const char *name, const void *bytes, size_t count) {
        _cleanup_close_ int fd =
                openat(dirfd, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
        assert_true(fd >= 0);
        assert_true(write(fd, bytes, count) == (ssize_t) count);
}

void sample_write_content(int dirfd, const char *name, const struct file_content *content) {
        struct cairn_error e = CAIRN_ERROR_INIT;
        _cleanup_free_ void *bytes = NULL;
        size_t count;

        if (file_write(content, &bytes, &count, &e) < 0)
                fail_msg("%s: %s: %s", name, e.operation, e.message);
        sample_write(dirfd, name, bytes, count);
}

void sample_publish(const struct sample *f, int dirfd) {
        char name[NAME_BYTES];

        name_manifest(name, f->content.head->rank);
        sample_write_content(dirfd, name, &f->content);
        name_data(name, f->content.head->rank);
        sample_write(dirfd, name, f->image, f->image_bytes);
}

/* ---- a run's folder ---- */

void sample_standard(struct sample *f) {
        const Cairn__Format__Head *head = f->content.head;
        uint32_t rank = head->rank, world = head->world;

        Tensor *wte = sample_tensor(f, "wte", CAIRN_PARAMETER, CAIRN_BF16, 2, (uint64_t[]){9, 5});
        wte->replicated = true;
        if (rank != 0)
                sample_disown(f, wte);
        Tensor *head_weight =
                sample_tensor(f, "lm_head", CAIRN_PARAMETER, CAIRN_BF16, 2, (uint64_t[]){9, 5});
        head_weight->replicated = true;
        head_weight->alias_of = sample_text(f, "wte");
        /* 100 * world + 7 elements in flat parts: the last rank holds 7 more. */
        Tensor *m = sample_tensor(f, "m.wte", CAIRN_MOMENT1, CAIRN_F32, 1,
                                  (uint64_t[]){100 * (uint64_t) world + 7});
        sample_flat(f, m, 100 * (uint64_t) rank, rank == world - 1 ? 107 : 100);
        Tensor *v = sample_tensor(f, "v.wte", CAIRN_MOMENT2, CAIRN_F32, 2,
                                  (uint64_t[]){2 * (uint64_t) world, 6});
        sample_block(f, v, (uint64_t[]){2 * (uint64_t) rank, 0}, (uint64_t[]){2, 6});
        Tensor *step = sample_tensor(f, "step", CAIRN_STEP, CAIRN_F32, 0, NULL);
        step->replicated = step->has_true_step = true;
        step->true_step = head->step;
        if (rank != world - 1)
                sample_disown(f, step);
        sample_tensor(f, "empty", CAIRN_BUFFER, CAIRN_F32, 3, (uint64_t[]){4, 0, 3})->replicated =
                true;
        sample_value(f, "samples", CAIRN_VALUE_I64, head->step * 32, NULL);
        sample_value(f, "rng", CAIRN_VALUE_BYTES, 0, "0123456789abcdef");
}

static uint8_t claim_uuid[16];

void sample_claim(int run_fd, const char *run, uint64_t generation, uint32_t world) {
        Cairn__Format__Generation g = CAIRN__FORMAT__GENERATION__INIT;
        char name[NAME_BYTES];

        g.run = (ProtobufCBinaryData){strlen(run), (uint8_t *) (uintptr_t) run};
        g.generation = generation;
        g.world = world;
        g.mode = 2;
        g.time_ns = TIME_NS;
        memset(claim_uuid, (int) generation, sizeof claim_uuid);
        g.claim_uuid = (ProtobufCBinaryData){16, claim_uuid};
        name_generation(name, generation);
        sample_write_content(run_fd, name,
                             &(struct file_content){.kind = FILE_GENERATION, .generation = &g});
}

void sample_start(int run_fd, uint64_t generation, const char *parent) {
        Cairn__Format__GenerationStart s = CAIRN__FORMAT__GENERATION_START__INIT;
        char name[NAME_BYTES];

        s.generation = generation;
        if (parent) {
                s.parent = (ProtobufCBinaryData){strlen(parent), (uint8_t *) (uintptr_t) parent};
                assert_true(name_parse_checkpoint(parent, &s.parent_step, &s.parent_generation));
        }
        memset(claim_uuid, (int) generation, sizeof claim_uuid);
        s.claim_uuid = (ProtobufCBinaryData){16, claim_uuid};
        name_generation_start(name, generation);
        sample_write_content(
                run_fd, name,
                &(struct file_content){.kind = FILE_GENERATION_START, .generation_start = &s});
}

static void make_rank(struct sample *f, const char *run, uint32_t rank, uint32_t world,
                      uint64_t generation, int64_t step, uint32_t attempt, unsigned flags) {
        sample_init(f, run, rank, world, generation, step, attempt);
        sample_standard(f);
        sample_finish(f);
        if (flags & SAMPLE_SUSPECT) {
                Cairn__Format__Ending *ending = sample_memory(f, sizeof *ending);
                cairn__format__ending__init(ending);
                ending->kind = 2;
                ending->code = SIGSEGV;
                ending->suspect = true;
                f->content.head->ending = ending;
        }
        if (flags & SAMPLE_NON_FINITE)
                f->content.head->non_finite_count = 1;
}

void sample_attempt(int run_fd, const char *directory, const char *run, uint64_t generation,
                    uint32_t attempt, int64_t step, uint32_t world, uint32_t ranks,
                    unsigned flags) {
        assert_int_equal(mkdirat(run_fd, directory, 0755), 0);
        _cleanup_close_ int fd = openat(run_fd, directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        for (uint32_t rank = 0; rank < ranks; rank++) {
                struct sample f;
                make_rank(&f, run, rank, world, generation, step, attempt, flags);
                sample_publish(&f, fd);
                sample_done(&f);
        }
}

void sample_commit(int fd, struct sample *f, struct file_content *const *manifests,
                   const char *parent) {
        Cairn__Format__Commit commit = CAIRN__FORMAT__COMMIT__INIT;
        struct file_content index = {0}, ignored;
        struct cairn_error e = CAIRN_ERROR_INIT;
        uint32_t world = manifests[0]->head->world;
        char name[NAME_BYTES];

        if (layout_merge(manifests, world, &f->arena, &index, &e) < 0)
                fail_msg("%s %s: %s", e.operation, e.object, e.message);
        sample_write_content(fd, INDEX_NAME, &index);
        commit.files = sample_memory(f, world * sizeof(void *));
        commit.n_files = world;
        for (uint32_t rank = 0; rank < world; rank++) {
                Cairn__Format__FileDigest *d = sample_memory(f, sizeof *d);
                cairn__format__file_digest__init(d);
                d->rank = rank;
                d->data_uuid = manifests[rank]->head->data_uuid;
                d->data_bytes = manifests[rank]->head->data_bytes;
                name_manifest(name, rank);
                assert_int_equal(file_load(&io_system, fd, name, FILE_MANIFEST, &f->arena, &ignored,
                                           &d->manifest_crc32c, &d->manifest_bytes, NULL),
                                 0);
                commit.files[rank] = d;
        }
        assert_int_equal(file_load(&io_system, fd, INDEX_NAME, FILE_INDEX, &f->arena, &ignored,
                                   &commit.index_crc32c, &commit.index_bytes, NULL),
                         0);
        if (parent)
                commit.parent = sample_text(f, parent);
        sample_write_content(
                fd, COMMIT_NAME,
                &(struct file_content){.kind = FILE_COMMIT, .head = index.head, .commit = &commit});
}

void sample_checkpoint(int run_fd, const char *run, uint64_t generation, int64_t step,
                       uint32_t world, const char *parent, unsigned flags) {
        char name[NAME_BYTES];
        struct sample ranks[16];
        struct file_content *manifests[16];

        if (world == 0 || world > 16) {
                fail();
                return;
        }
        name_checkpoint(name, step, generation);
        assert_int_equal(mkdirat(run_fd, name, 0755), 0);
        _cleanup_close_ int fd = openat(run_fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        for (uint32_t rank = 0; rank < world; rank++) {
                make_rank(&ranks[rank], run, rank, world, generation, step, 1, flags);
                sample_publish(&ranks[rank], fd);
                manifests[rank] = &ranks[rank].content;
        }
        sample_commit(fd, &ranks[0], manifests, parent);
        for (uint32_t rank = 0; rank < world; rank++)
                sample_done(&ranks[rank]);
}

void sample_mark(int run_fd, const char *name, enum file_mark kind, const char *reason,
                 int64_t step, uint64_t generation) {
        Cairn__Format__Mark mark = CAIRN__FORMAT__MARK__INIT;

        (void) mkdirat(run_fd, MARKS_NAME, 0755);
        _cleanup_close_ int fd = openat(run_fd, MARKS_NAME, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        mark.kind = kind;
        mark.reason = (ProtobufCBinaryData){strlen(reason), (uint8_t *) (uintptr_t) reason};
        mark.step = step;
        mark.generation = generation;
        mark.time_ns = TIME_NS;
        sample_write_content(fd, name, &(struct file_content){.kind = FILE_MARK, .mark = &mark});
}

void sample_store_marker(int store_fd) {
        Cairn__Format__StoreMarker marker = CAIRN__FORMAT__STORE_MARKER__INIT;
        uint8_t id[16] = "a store of tests";

        marker.store_id = (ProtobufCBinaryData){16, id};
        marker.kind = 1;
        marker.time_ns = TIME_NS;
        sample_write_content(store_fd, STORE_MARKER_NAME,
                             &(struct file_content){.kind = FILE_STORE, .store = &marker});
}

void sample_copy(const char *from, const char *to) {
        int status;
        pid_t child = fork();

        assert_true(child >= 0);
        if (child == 0) {
                (void) execlp("cp", "cp", "-r", "-T", from, to, (char *) NULL);
                _exit(127);
        }
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_int_equal(status, 0);
}
