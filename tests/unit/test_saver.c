/* SPDX-License-Identifier: Apache-2.0
 *
 * A whole saver in a child process against a played session: page, slab, host state, staging and
 * files are real, cairnd's part is a socketpair. */
#include "agent/parcel.h"
#include "agent/saver.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/fault.h"
#include "format/crc32c.h"
#include "format/dtype.h"
#include "format/layout.h"
#include "format/wire.h"
#include "tests/test.h"

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>

#define SLAB_BYTES (4 * MiB)
#define BIG_COUNT 700001 /* F32: neither a whole chunk nor a whole block */

typedef Cairn__Format__Tensor Tensor;
typedef Cairn__Format__Placement Placement;
enum { TENSORS = 8, VALUES = 4 };

static struct session {
        char folder[200];
        int folder_fd, page_fd, event_fd, slab_fd, host_fd, inventory_fd, staging_fd;
        struct control_page *page;
        unsigned char *slab, *host, *staging;
        uint64_t payload_bytes, image_bytes, staging_bytes;
        struct arena arena;
        struct file_content inventory;
        pid_t saver;
        int socket;
        int data_fd, manifest_fd;
        uint64_t storage_timeout_ns;
} s;

/* What the tensors are: placed one after another in the slab, `stat` with a shadow. */
static const struct {
        const char *name;
        uint32_t role, runtime, stored;
        uint64_t count;
        bool anytime, owned;
} kinds[TENSORS] = {
        {"w.big", CAIRN_PARAMETER, CAIRN_F32, CAIRN_F32, BIG_COUNT, false, true},
        {"w.half", CAIRN_PARAMETER, CAIRN_BF16, CAIRN_BF16, 333, false, true},
        {"w.empty", CAIRN_PARAMETER, CAIRN_F32, CAIRN_F32, 0, false, true},
        {"w.other", CAIRN_PARAMETER, CAIRN_F32, CAIRN_F32, 5, false, false},
        {"m.big", CAIRN_MOMENT1, CAIRN_F32, CAIRN_BF16, 1001, false, true},
        {"step", CAIRN_STEP, CAIRN_F32, CAIRN_F32, 1, false, true},
        {"mask", CAIRN_BUFFER, CAIRN_F32, CAIRN_F32, 9, false, true},
        {"stat", CAIRN_BUFFER, CAIRN_F32, CAIRN_F32, 17, true, true},
};
static float *floats(size_t i) {
        const Placement *p = s.inventory.placements[i];

        return (float *) (void *) (s.slab + (kinds[i].anytime ? p->shadow_offset : p->offset));
}

static ProtobufCBinaryData text(const char *t) {
        return (ProtobufCBinaryData){.len = strlen(t), .data = (uint8_t *) (uintptr_t) t};
}

static void *memory(size_t bytes) {
        void *p = arena_alloc(&s.arena, bytes, 16);

        assert_non_null(p);
        return p;
}

static void declare_tensors(void) {
        uint64_t at = 0;

        /* NOLINTNEXTLINE(bugprone-sizeof-expression): an array of pointers is meant */
        s.inventory.tensors = memory(TENSORS * sizeof(Tensor *));
        s.inventory.placements = memory(TENSORS * sizeof(Placement *));
        for (size_t i = 0; i < TENSORS; i++) {
                Tensor *t = s.inventory.tensors[i] = memory(sizeof *t);
                Placement *p = s.inventory.placements[i] = memory(sizeof *p);
                uint64_t bytes = (kinds[i].count * dtype_info(kinds[i].runtime)->bytes + 255) &
                                 ~UINT64_C(255);

                cairn__format__tensor__init(t);
                cairn__format__placement__init(p);
                t->name = text(kinds[i].name);
                t->role = kinds[i].role;
                t->runtime_dtype = kinds[i].runtime;
                t->stored_dtype = kinds[i].stored;
                t->mutates = kinds[i].anytime;
                t->n_shape = kinds[i].role == CAIRN_STEP ? 0 : 1;
                t->shape = memory(sizeof *t->shape);
                t->shape[0] = kinds[i].count;
                t->replicated = !kinds[i].owned;
                p->owned = kinds[i].owned;
                p->offset = at;
                at += bytes;
                if (kinds[i].anytime) {
                        p->shadow_offset = at;
                        at += bytes;
                }
        }
        s.inventory.tensor_count = s.inventory.placement_count = TENSORS;
        assert_true(at <= SLAB_BYTES);
}

static void declare_values(Cairn__Format__InventoryHead *head) {
        static const struct host_value values[VALUES] = {
                {.name = HOST_VALUE_STEP_PREFIX "step", .type = CAIRN_VALUE_I64},
                {.name = "samples", .type = CAIRN_VALUE_U64},
                {.name = "best", .type = CAIRN_VALUE_F64},
                {.name = "rng", .type = CAIRN_VALUE_BYTES, .capacity = 20},
        };
        struct host_value layout[VALUES];

        memcpy(layout, values, sizeof values);
        assert_int_equal(host_state_layout(layout, VALUES, &s.payload_bytes, NULL), 0);
        /* NOLINTNEXTLINE(bugprone-sizeof-expression): likewise */
        head->layout = memory(VALUES * sizeof *head->layout);
        head->n_layout = VALUES;
        for (size_t i = 0; i < VALUES; i++) {
                Cairn__Format__StateValue *v = head->layout[i] = memory(sizeof *v);

                cairn__format__state_value__init(v);
                v->name = text(values[i].name);
                v->type = values[i].type;
                v->capacity = values[i].capacity;
        }
}

static unsigned char *map(int fd, uint64_t bytes) {
        unsigned char *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

        assert_ptr_not_equal(p, MAP_FAILED);
        return p;
}

static unsigned char *new_memory(uint64_t bytes, int *ret_fd) {
        assert_int_equal(wire_memfd_create("test", bytes, ret_fd, NULL), 0);
        return map(*ret_fd, bytes);
}

static void make_inventory(void) {
        Cairn__Format__InventoryHead *head = memory(sizeof *head);
        struct file_content parsed;
        struct arena scratch;
        void *bytes;
        size_t count;

        cairn__format__inventory_head__init(head);
        head->seal = 1;
        head->tensor_count = TENSORS;
        head->slab_count = 1;
        head->n_slab_bytes = 1;
        head->slab_bytes = memory(sizeof *head->slab_bytes);
        head->slab_bytes[0] = SLAB_BYTES;
        head->n_texts = 1;
        /* NOLINTNEXTLINE(bugprone-sizeof-expression): an array of pointers is meant */
        head->texts = memory(sizeof *head->texts);
        head->texts[0] = memory(sizeof *head->texts[0]);
        cairn__format__text__init(head->texts[0]);
        head->texts[0]->key = text("model.layers");
        head->texts[0]->value = text("2");
        declare_values(head);
        head->host_state_bytes = s.payload_bytes;
        s.inventory.kind = FILE_INVENTORY;
        s.inventory.inventory = head;
        struct cairn_error e = CAIRN_ERROR_INIT;
        if (file_write(&s.inventory, &bytes, &count, &e) < 0)
                fail_msg("%s: %s", e.object, e.message);
        (void) munmap(new_memory(count, &s.inventory_fd), count);
        assert_int_equal(pwrite(s.inventory_fd, bytes, count, 0), count);
        arena_init(&scratch, GiB);
        assert_int_equal(file_read(bytes, count, FILE_INVENTORY, "i", &scratch, &parsed, &e), 0);
        assert_int_equal(layout_assign(&parsed, 0, &scratch, &s.image_bytes, &e), 0);
        arena_done(&scratch);
        free(bytes);
}

static int setup(void **state) {
        memset(&s, 0, sizeof s);
        s.data_fd = s.manifest_fd = s.socket = -1;
        arena_init(&s.arena, 16 * MiB);
        s.folder_fd = test_folder(s.folder, sizeof s.folder);
        s.page = (void *) new_memory(CONTROL_PAGE_BYTES, &s.page_fd);
        control_page_init(s.page, 1);
        s.event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        s.slab = new_memory(SLAB_BYTES, &s.slab_fd);
        declare_tensors();
        make_inventory();
        s.storage_timeout_ns = 60 * NSEC_PER_SEC;
        s.host = new_memory(host_state_bytes(s.payload_bytes), &s.host_fd);
        host_state_init(s.host, s.payload_bytes);
        s.staging_bytes = s.image_bytes + 8 * MiB; /* a restore may need more */
        s.staging = new_memory(s.staging_bytes, &s.staging_fd);
        return 0;
}

static void stop_saver(void) {
        int status;

        if (s.saver <= 0)
                return;
        (void) close(s.socket);
        uint64_t end = clock_now(&clock_system) + 20 * NSEC_PER_SEC;
        while (waitpid(s.saver, &status, WNOHANG) == 0) {
                assert_true(clock_now(&clock_system) < end); /* ends at end-of-file */
                clock_system.sleep_ns(NULL, NSEC_PER_MSEC);
        }
        assert_int_equal(status, 0);
        s.saver = 0;
}

static void close_files(void) {
        if (s.data_fd >= 0)
                (void) close(s.data_fd);
        if (s.manifest_fd >= 0)
                (void) close(s.manifest_fd);
        s.data_fd = s.manifest_fd = -1;
}

static int teardown(void **state) {
        const int fds[] = {s.folder_fd, s.page_fd,      s.event_fd,  s.slab_fd,
                           s.host_fd,   s.inventory_fd, s.staging_fd};

        stop_saver();
        close_files();
        arena_done(&s.arena);
        (void) munmap(s.page, CONTROL_PAGE_BYTES);
        (void) munmap(s.slab, SLAB_BYTES);
        (void) munmap(s.host, host_state_bytes(s.payload_bytes));
        (void) munmap(s.staging, s.staging_bytes);
        for (size_t i = 0; i < sizeof fds / sizeof fds[0]; i++)
                (void) close(fds[i]);
        return 0;
}

/* ---- cairnd's part ---- */

static void send_verb(struct saver_message m, const int *fds, size_t count) {
        char control[CMSG_SPACE(8 * sizeof(int))] = {0};
        struct iovec part = {.iov_base = &m, .iov_len = sizeof m};
        struct msghdr header = {.msg_iov = &part, .msg_iovlen = 1};

        if (count) {
                header.msg_control = control;
                header.msg_controllen = CMSG_SPACE(count * sizeof(int));
                struct cmsghdr *c = CMSG_FIRSTHDR(&header);
                c->cmsg_level = SOL_SOCKET;
                c->cmsg_type = SCM_RIGHTS;
                c->cmsg_len = CMSG_LEN(count * sizeof(int));
                memcpy(CMSG_DATA(c), fds, count * sizeof(int));
        }
        assert_int_equal(sendmsg(s.socket, &header, MSG_NOSIGNAL), sizeof m);
}

static void send_files(struct saver_message m, const int *fds, size_t count) {
        int parcel;
        assert_int_equal(parcel_pack(fds, count, &parcel, NULL), 0);
        send_verb(m, &parcel, 1);
        (void) close(parcel);
}

static bool receive_within(struct saver_message *m, uint64_t duration_ns) {
        struct pollfd p = {.fd = s.socket, .events = POLLIN};

        if (poll(&p, 1, (int) (duration_ns / NSEC_PER_MSEC)) != 1)
                return false;
        return recv(s.socket, m, sizeof *m, 0) == sizeof *m;
}

static struct saver_message expect(enum saver_verb verb) {
        struct saver_message m = {0};
        char line[1024];

        if (!receive_within(&m, 60 * NSEC_PER_SEC))
                fail_msg("no answer, verb %d expected", verb);
        if (m.verb != verb || m.status < 0)
                print_message("verb %d status %d %s\n", m.verb, m.status,
                              error_format(&m.error, line, sizeof line));
        assert_int_equal(m.verb, verb);
        return m;
}

static void fork_saver(const char *faults) {
        int pair[2];

        assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
        (void) fflush(NULL);
        s.saver = fork();
        assert_true(s.saver >= 0);
        if (s.saver == 0) {
                (void) close(pair[0]);
                if (fault_init(faults, NULL) < 0)
                        _exit(9);
                _exit(saver_main(pair[1]));
        }
        (void) close(pair[1]);
        s.socket = pair[0];
        struct saver_message m = {.verb = SAVER_SETUP,
                                  .run = "gpt",
                                  .generation = 3,
                                  .session_id = 1,
                                  .world = 1,
                                  .storage_timeout_ns = s.storage_timeout_ns};
        send_verb(m, (int[]){s.page_fd, s.event_fd}, 2);
        assert_int_equal(expect(SAVER_READY).status, 0);
}

static struct saver_message seal_saver(void) {
        struct saver_message m = {.verb = SAVER_SEAL, .seal = 1, .bytes = s.staging_bytes};
        send_verb(m, (int[]){s.inventory_fd, s.host_fd, s.staging_fd}, 3);
        return expect(SAVER_SEALED);
}

static void start_saver(const char *faults) {
        fork_saver(faults);
        struct saver_message m = {
                .verb = SAVER_SLABS, .count = 1, .slab_bytes = {SLAB_BYTES}, .slab_kind = {1}};
        send_verb(m, &s.slab_fd, 1);
        m = seal_saver();
        assert_int_equal(m.status, 0);
        assert_int_equal(m.bytes, s.image_bytes);
        assert_int_equal(m.count, TENSORS);
        assert_true(m.rate_bytes_per_sec > 0);
}

static void arm(uint32_t attempt) {
        char name[40];

        close_files();
        (void) snprintf(name, sizeof name, "data-%u", attempt);
        s.data_fd = openat(s.folder_fd, name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        (void) snprintf(name, sizeof name, "manifest-%u", attempt);
        s.manifest_fd = openat(s.folder_fd, name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        assert_true(s.data_fd >= 0 && s.manifest_fd >= 0);
        send_files((struct saver_message){.verb = SAVER_ARM, .attempt = attempt},
                   (int[]){s.data_fd, s.manifest_fd}, 2);
}

static void ring(void) {
        uint64_t one = 1;

        assert_int_equal(write(s.event_fd, &one, sizeof one), sizeof one);
}

/* As cairnd demands a cut: TAKE stays in force where the request was declined before the files were
 * there. */
static void demand(uint64_t seq) {
        bool updating;

        (void) cut_request(s.page, &updating);
        send_verb((struct saver_message){.verb = SAVER_TAKE, .seq = seq}, NULL, 0);
        ring();
}

/* ---- the trainer's part ---- */

static void fill_state(uint64_t seq) {
        for (size_t i = 0; i < TENSORS; i++)
                for (uint64_t j = 0; j < kinds[i].count && kinds[i].runtime == CAIRN_F32; j++)
                        floats(i)[j] = (float) (j % 251) + (float) seq;
        for (uint64_t j = 0; j < kinds[1].count; j++)
                ((uint16_t *) (void *) floats(1))[j] = (uint16_t) (0x3f80 + j + seq);
        floats(6)[3] = -INFINITY; /* masks may */
}

/* The first or next update, with a scheduled request if `request`. */
static uint64_t update(bool request) {
        struct cut_gate gate = {.deadline_duration_ns = 20 * NSEC_PER_SEC};
        unsigned char payload[256] = {0};
        struct cut_word word = cut_read(s.page);
        bool flag, must_ring;
        double best = 0.25;
        uint64_t seq;

        if (word.phase != CUT_UPDATING)
                assert_int_equal(cut_update_begin(s.page, &gate, &clock_system, &flag), 0);
        fill_state(word.seq + 1);
        store_le64(payload, (word.seq + 1) * 100);
        store_le64(payload + 8, 77);
        memcpy(payload + 16, &best, 8);
        store_le64(payload + 24, 5);
        /* NOLINTNEXTLINE(bugprone-not-null-terminated-result): bytes, not text */
        memcpy(payload + 32, "abcde", 5);
        host_state_publish(s.host, word.seq + 1, (int64_t) word.seq + 41, payload);
        if (request)
                (void) cut_request(s.page, &flag);
        assert_int_equal(cut_update_end(s.page, (int64_t) word.seq + 41, 1, &seq, &must_ring), 0);
        if (must_ring)
                ring();
        return seq;
}

/* ---- what was written ---- */

static const Tensor *find(const struct file_content *m, const char *name) {
        for (size_t i = 0; i < m->tensor_count; i++)
                if (m->tensors[i]->name.len == strlen(name) &&
                    memcmp(m->tensors[i]->name.data, name, strlen(name)) == 0)
                        return m->tensors[i];
        fail_msg("no tensor %s", name);
        return NULL;
}

static unsigned char *read_all(int fd, size_t *ret_bytes) {
        struct stat st;

        assert_int_equal(fstat(fd, &st), 0);
        unsigned char *bytes = malloc((size_t) st.st_size + 1);
        assert_non_null(bytes);
        (void) fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_DIRECT);
        assert_int_equal(pread(fd, bytes, (size_t) st.st_size, 0), st.st_size);
        *ret_bytes = (size_t) st.st_size;
        return bytes;
}

static void check_data(const struct file_content *m, const unsigned char *data, size_t bytes) {
        size_t covered = DATA_BLOCK_BYTES;
        struct data_header header;

        assert_int_equal(data_header_read(data, "data", &header, NULL), 0);
        assert_memory_equal(header.uuid, m->head->data_uuid.data, 16);
        assert_string_equal(header.run, "gpt");
        for (size_t i = 0; i < m->tensor_count; i++) {
                for (size_t j = 0; j < m->tensors[i]->n_extents; j++) {
                        const Cairn__Format__Extent *e = m->tensors[i]->extents[j];

                        for (; covered < e->offset; covered++)
                                assert_int_equal(data[covered], 0); /* padding */
                        assert_int_equal(crc32c(0, data + e->offset, e->bytes), e->crc32c);
                        covered = e->offset + e->bytes;
                }
        }
        for (; covered < bytes; covered++)
                assert_int_equal(data[covered], 0);
        const Cairn__Format__ChunkCrcs *chunks = m->chunk_crcs[0];
        assert_int_equal(chunks->n_crc32c, (bytes + MiB - 1) / MiB);
        for (size_t i = 0; i < chunks->n_crc32c; i++)
                assert_int_equal(
                        chunks->crc32c[i],
                        crc32c(0, data + i * MiB, bytes - i * MiB < MiB ? bytes - i * MiB : MiB));
}

static void check_records(const struct file_content *m, uint64_t seq) {
        const Cairn__Format__State *state = m->states[0];
        const Tensor *t;

        assert_int_equal(m->head->step, seq + 40);
        assert_int_equal(m->head->seq, seq);
        assert_int_equal(m->head->generation, 3);
        assert_int_equal(m->head->n_texts, 1);
        assert_int_equal(m->tensor_count, TENSORS);
        t = find(m, "step");
        assert_true(t->has_true_step);
        assert_int_equal(t->true_step, seq * 100);
        assert_int_equal(find(m, "w.empty")->n_extents, 0);
        assert_int_equal(find(m, "w.other")->n_extents, 0);
        t = find(m, "m.big");
        assert_int_equal(t->stored_dtype, CAIRN_BF16);
        assert_int_equal(t->extents[0]->bytes, 2002);
        assert_non_null(t->encoding);
        assert_int_equal(t->encoding->asked_dtype, CAIRN_BF16);
        assert_int_equal(state->n_values, VALUES);
        assert_int_equal(state->values[1]->u64, 77);
        assert_true(state->values[2]->f64 == 0.25);
        assert_int_equal(state->values[3]->bytes_value.len, 5);
        assert_memory_equal(state->values[3]->bytes_value.data, "abcde", 5);
}

/* Parses the manifest, checks it against the data; the caller frees the data. */
static unsigned char *check_written(uint64_t seq, struct file_content *m, struct arena *arena) {
        struct cairn_error e = CAIRN_ERROR_INIT;
        size_t bytes, manifest_bytes;
        unsigned char *data = read_all(s.data_fd, &bytes);
        unsigned char *manifest = read_all(s.manifest_fd, &manifest_bytes);

        arena_init(arena, 64 * MiB);
        assert_true(arena_adopt(arena, manifest, manifest_bytes));
        if (file_read(manifest, manifest_bytes, FILE_MANIFEST, "manifest", arena, m, &e) < 0)
                fail_msg("%s: %s", e.object, e.message);
        assert_int_equal(bytes, s.image_bytes);
        assert_int_equal(m->head->data_bytes, bytes);
        check_data(m, data, bytes);
        check_records(m, seq);
        const float *big = (const void *) (data + find(m, "w.big")->extents[0]->offset);
        for (size_t j = 0; j < BIG_COUNT; j += 97)
                assert_true(big[j] == (float) (j % 251) + (float) seq);
        return data;
}

/* ---- tests ---- */

/* All but the first tensor as if another rank had written them, where its number is not 0. */
static void plan_of(const struct file_content *m, uint32_t others, int *ret_fd,
                    struct plan_range *ranges, uint64_t *ret_count) {
        uint64_t count = 0, staging;
        unsigned char plan[4096];

        for (size_t i = 0; i < m->tensor_count; i++)
                for (size_t j = 0; j < m->tensors[i]->n_extents; j++, count++)
                        ranges[count] = (struct plan_range){
                                .rank = count ? others : 0,
                                .crc32c = m->tensors[i]->extents[j]->crc32c,
                                .file_offset = m->tensors[i]->extents[j]->offset,
                                .bytes = m->tensors[i]->extents[j]->bytes};
        assert_int_equal(plan_write(plan, ranges, count, &staging, NULL), 0);
        (void) munmap(new_memory(plan_bytes(count), ret_fd), plan_bytes(count));
        assert_int_equal(pwrite(*ret_fd, plan, plan_bytes(count), 0), plan_bytes(count));
        *ret_count = count;
}

static void restore(int plan_fd) {
        struct saver_message m = {.verb = SAVER_RESTORE, .world = 1, .count = 1};

        memset(s.staging, 0xee, s.staging_bytes);
        send_verb(m, &plan_fd, 1);
        m.verb = SAVER_FILES;
        m.flush = true;
        send_files(m, &s.data_fd, 1);
}

static void test_round_trip(void **state) {
        struct plan_range ranges[TENSORS];
        struct file_content m;
        struct arena arena;
        uint64_t count;
        int plan_fd;

        start_saver(NULL);
        arm(1);
        uint64_t seq = update(true);
        struct saver_message cut = expect(SAVER_CUT);
        assert_int_equal(cut.seq, seq);
        assert_int_equal(cut.step, seq + 40);
        struct saver_message written = expect(SAVER_WRITTEN);
        assert_int_equal(written.status, 0);
        assert_int_equal(written.bytes, s.image_bytes);
        assert_int_equal(written.non_finite_count, 0);
        unsigned char *data = check_written(seq, &m, &arena);
        assert_memory_equal(written.data_uuid, m.head->data_uuid.data, 16);

        plan_of(&m, 0, &plan_fd, ranges, &count);
        restore(plan_fd);
        struct saver_message restored = expect(SAVER_RESTORED);
        assert_int_equal(restored.status, 0);
        for (uint64_t i = 0; i < count; i++)
                assert_memory_equal(s.staging + ranges[i].staging_offset,
                                    data + ranges[i].file_offset, ranges[i].bytes);

        /* One flipped bit is found and located. */
        unsigned char byte = data[ranges[1].file_offset] ^ 1;
        assert_int_equal(pwrite(s.data_fd, &byte, 1, (off_t) ranges[1].file_offset), 1);
        restore(plan_fd);
        restored = expect(SAVER_RESTORED);
        assert_int_equal(restored.status, CAIRN_ERR_CORRUPT);
        assert_int_equal(restored.error.offset, ranges[1].file_offset);
        (void) close(plan_fd);
        arena_done(&arena);
        free(data);

        /* After a restore the staging serves the next cut, as clean as the first one. */
        floats(0)[5] = 0;
        arm(2);
        seq = update(true);
        floats(0)[5] = NAN; /* outside of an update: the copy has been taken or takes it along */
        (void) expect(SAVER_CUT);
        assert_int_equal(expect(SAVER_WRITTEN).status, 0);
        data = check_written(seq, &m, &arena);
        arena_done(&arena);
        free(data);
}

/* Files of a world of any size come and go a few at a time. */
static void test_restore_in_parts(void **state) {
        enum { OTHERS = 7000 };
        struct plan_range ranges[TENSORS];
        struct file_content m;
        struct arena arena;
        uint64_t count, staging = 0;
        int plan_fd;

        start_saver(NULL);
        arm(1);
        uint64_t seq = update(true);
        (void) expect(SAVER_CUT);
        assert_int_equal(expect(SAVER_WRITTEN).status, 0);
        unsigned char *data = check_written(seq, &m, &arena);
        char path[64]; /* as the store process opens it: without O_DIRECT */
        (void) snprintf(path, sizeof path, "/proc/self/fd/%d", s.data_fd);
        int data_fd = open(path, O_RDONLY | O_CLOEXEC);
        assert_true(data_fd >= 0);
        plan_of(&m, OTHERS, &plan_fd, ranges, &count);
        struct saver_message files = {.verb = SAVER_FILES, .first = 0, .count = 1, .flush = true};
        memset(s.staging, 0xee, s.staging_bytes);
        send_verb((struct saver_message){.verb = SAVER_RESTORE, .world = OTHERS + 2}, &plan_fd, 1);
        send_files(files, &data_fd, 1);
        assert_int_equal(expect(SAVER_PART).status, 0);
        files.first = OTHERS - 1;
        files.flush = false;
        send_files(files, &data_fd, 1);
        files.first = OTHERS;
        files.flush = true;
        send_files(files, &data_fd, 1);
        struct saver_message restored = expect(SAVER_RESTORED);
        assert_int_equal(restored.status, 0);
        for (uint64_t i = 0; i < count; i++) {
                assert_memory_equal(s.staging + ranges[i].staging_offset,
                                    data + ranges[i].file_offset, ranges[i].bytes);
                staging += ranges[i].bytes;
        }
        assert_int_equal(restored.bytes, staging);

        /* What the plan needs is not among them: told, and what comes afterwards does no harm. */
        send_verb((struct saver_message){.verb = SAVER_RESTORE, .world = OTHERS + 2}, &plan_fd, 1);
        files.first = 1;
        send_files(files, &data_fd, 1);
        assert_int_equal(expect(SAVER_RESTORED).status, CAIRN_ERR_API);
        send_files(files, &data_fd, 1);
        restore(plan_fd); /* of a world of one rank */
        assert_int_equal(expect(SAVER_RESTORED).status, CAIRN_ERR_CORRUPT);
        (void) close(data_fd);
        (void) close(plan_fd);
        arena_done(&arena);
        free(data);
}

static void test_unarmed_declines(void **state) {
        uint64_t seq, at;
        int status;
        bool flag;

        start_saver(NULL);
        seq = update(true); /* nothing to write to: declined, so that the gate does not wait */
        uint64_t end = clock_now(&clock_system) + 20 * NSEC_PER_SEC;
        while (cut_outcome_find(s.page, seq, &at, &status) != CUT_DECLINED)
                assert_true(clock_now(&clock_system) < end);
        assert_int_equal(status, CAIRN_ERR_BUSY);
        /* Demanded again, the same seq is taken once files are there. */
        (void) cut_request(s.page, &flag);
        send_verb((struct saver_message){.verb = SAVER_TAKE, .seq = seq}, NULL, 0);
        struct saver_message m;
        assert_false(receive_within(&m, 50 * NSEC_PER_MSEC));
        arm(1);
        assert_int_equal(expect(SAVER_CUT).seq, seq);
        assert_int_equal(expect(SAVER_WRITTEN).status, 0);
        arm(2);
        send_verb((struct saver_message){.verb = SAVER_DISARM, .attempt = 2}, NULL, 0);
        assert_int_equal(expect(SAVER_DISARMED).attempt, 2);
        assert_true(fcntl(s.data_fd, F_GETFD) >= 0);
}

/* In a fault point's `stop`: it stands there until it is let go on. */
static void await_stopped(void) {
        int status;
        assert_int_equal(waitpid(s.saver, &status, WUNTRACED), s.saver);
        assert_true(WIFSTOPPED(status));
}

static void go_on(void) {
        assert_int_equal(kill(s.saver, SIGCONT), 0);
}

static void test_void_copies(void **state) {
        struct cut_gate gate = {.deadline_duration_ns = NSEC_PER_MSEC};
        bool expired;

        start_saver("copy-chunk:2:stop,copy-chunk:5:stop,copy-release:1:error");
        arm(1);
        (void) update(true);
        await_stopped();
        assert_true(cut_copy_revoke(s.page)); /* given up by cairnd */
        go_on();
        assert_int_equal(expect(SAVER_VOID).status, CAIRN_ERR_VOID);
        assert_int_equal(cut_read(s.page).phase, CUT_STABLE);

        (void) update(true);
        await_stopped();
        assert_int_equal(cut_update_begin(s.page, &gate, &clock_system, &expired), 0);
        assert_true(expired); /* by the gate */
        go_on();
        (void) expect(SAVER_VOID);
        (void) update(true); /* still armed; the third one fails by an error of ours */
        assert_true(expect(SAVER_VOID).status < 0);
        assert_int_equal(cut_read(s.page).phase, CUT_STABLE);
        uint64_t seq = update(true);
        assert_int_equal(expect(SAVER_CUT).seq, seq);
        assert_int_equal(expect(SAVER_WRITTEN).status, 0);
}

static void hold(int64_t step) {
        send_verb((struct saver_message){.verb = SAVER_TAKE, .hold = true, .step = step}, NULL, 0);
}

/* A group's cut: claimed, held without a byte copied, let go, held again at a later step, taken. */
static void test_hold(void **state) {
        struct cut_gate gate = {.deadline_duration_ns = NSEC_PER_MSEC};
        struct saver_message m;
        bool expired;
        uint64_t seq;

        start_saver(NULL);
        arm(1);
        seq = update(false);
        memset(s.staging, 0xee, s.staging_bytes);
        hold(0);
        m = expect(SAVER_HELD);
        assert_int_equal(m.seq, seq);
        assert_int_equal(m.attempt, 1);
        int64_t step = m.step;
        assert_int_equal(cut_read(s.page).phase, CUT_COPYING);
        assert_false(receive_within(&m, 50 * NSEC_PER_MSEC));
        for (uint64_t i = 0; i < s.staging_bytes; i++)
                assert_int_equal(s.staging[i], 0xee);
        hold(step + 2); /* any order but GO lets go first */
        assert_int_equal(expect(SAVER_VOID).status, CAIRN_ERR_VOID);
        assert_int_equal(cut_read(s.page).phase, CUT_STABLE);
        (void) update(false); /* not there yet; its end rings all the same */
        assert_false(receive_within(&m, 50 * NSEC_PER_MSEC));
        assert_int_equal(cut_read(s.page).phase, CUT_STABLE);
        seq = update(false);
        assert_int_equal(expect(SAVER_HELD).step, step + 2);
        send_verb((struct saver_message){.verb = SAVER_RELEASE}, NULL, 0);
        assert_int_equal(expect(SAVER_VOID).status, CAIRN_ERR_VOID);

        hold(step + 3); /* nobody wants it any more: the next step is no cut */
        while (atomic_load(&s.page->wanted_seq) <= seq)
                clock_system.sleep_ns(NULL, NSEC_PER_MSEC);
        send_verb((struct saver_message){.verb = SAVER_RELEASE}, NULL, 0);
        while (atomic_load(&s.page->answered_seq) < atomic_load(&s.page->wanted_seq))
                clock_system.sleep_ns(NULL, NSEC_PER_MSEC);
        (void) update(false);
        assert_false(receive_within(&m, 50 * NSEC_PER_MSEC));

        hold(0); /* the gate does not wait for ever */
        (void) expect(SAVER_HELD);
        assert_int_equal(cut_update_begin(s.page, &gate, &clock_system, &expired), 0);
        assert_true(expired);
        (void) expect(SAVER_VOID);
        seq = update(false);
        hold(0);
        m = expect(SAVER_HELD);
        send_verb((struct saver_message){.verb = SAVER_GO}, NULL, 0);
        assert_int_equal(expect(SAVER_CUT).step, m.step);
        assert_int_equal(expect(SAVER_WRITTEN).status, 0);
        assert_int_equal(m.seq, seq);
}

static void test_unknown_seal_is_declined(void **state) {
        start_saver(NULL);
        arm(1);
        s.page->seal_number = 2;
        bool flag;
        uint64_t seq;
        host_state_publish(s.host, 1, 41, (unsigned char[256]){0});
        (void) cut_request(s.page, &flag);
        assert_int_equal(cut_update_end(s.page, 41, 2, &seq, &flag), 0);
        ring();
        assert_int_equal(expect(SAVER_VOID).status, CAIRN_ERR_STALE);
        assert_int_equal(cut_read(s.page).phase, CUT_STABLE);
}

static void test_failed_writes(void **state) {
        struct saver_message m;

        start_saver("data-write:1:error:28,data-sync:1:error,manifest-write:1:error:122");
        arm(1);
        uint64_t seq = update(true);
        (void) expect(SAVER_CUT);
        m = expect(SAVER_WRITTEN);
        assert_int_equal(m.status, CAIRN_ERR_NOSPACE);
        assert_int_equal(m.error.system_code, ENOSPC);
        /* The very same cut may be demanded again, into other files. */
        for (uint32_t attempt = 2; attempt <= 4; attempt++) {
                demand(seq);
                arm(attempt);
                (void) expect(SAVER_CUT);
                m = expect(SAVER_WRITTEN);
                assert_int_equal(m.status, attempt == 2   ? CAIRN_ERR_IO
                                           : attempt == 3 ? CAIRN_ERR_NOSPACE
                                                          : 0);
        }
}

static void test_kill_in_mid_write(void **state) {
        struct file_content m;
        struct arena arena;
        int status;

        start_saver("data-write:2:delay:30000");
        arm(1);
        (void) update(true);
        (void) expect(SAVER_CUT);
        uint64_t end = clock_now(&clock_system) + 20 * NSEC_PER_SEC;
        while ((atomic_load(&s.page->ledger[0].state_attempt) & 0xff) != STAGING_WRITING) {
                assert_true(clock_now(&clock_system) < end);
                clock_system.sleep_ns(NULL, NSEC_PER_MSEC);
        }
        /* The trainer trains on meanwhile: requests are declined, not waited for. */
        uint64_t begin = clock_now(&clock_system);
        (void) update(true);
        (void) update(false);
        assert_true(clock_now(&clock_system) - begin < 10 * NSEC_PER_SEC);
        assert_int_equal(kill(s.saver, SIGKILL), 0);
        assert_int_equal(waitpid(s.saver, &status, 0), s.saver);
        (void) close(s.socket);
        (void) cut_copy_revoke(s.page);

        start_saver(NULL);
        arm(2);
        uint64_t seq = cut_read(s.page).seq;
        demand(seq);
        assert_int_equal(expect(SAVER_CUT).seq, seq);
        assert_int_equal(expect(SAVER_WRITTEN).status, 0);
        free(check_written(seq, &m, &arena));
        arena_done(&arena);
}

/* cairnd gives a checkpoint up: what is being copied, or written, ends at once, and the files of
 * the next attempt are taken. A wish that was sent before is not in the way. */
static void test_given_up(void **state) {
        start_saver("copy-chunk:2:stop,copy-chunk:3:delay:1500,data-write:2:delay:4000");
        arm(1);
        uint64_t seq = update(true);
        await_stopped();
        send_verb((struct saver_message){.verb = SAVER_DISARM, .attempt = 1}, NULL, 0);
        go_on();
        assert_int_equal(expect(SAVER_VOID).status, CAIRN_ERR_VOID);
        assert_int_equal(cut_read(s.page).phase, CUT_STABLE);
        assert_int_equal(expect(SAVER_DISARMED).attempt, 1);

        demand(seq);
        arm(2);
        assert_int_equal(expect(SAVER_CUT).seq, seq);
        demand(seq + 1);
        send_verb((struct saver_message){.verb = SAVER_DISARM, .attempt = 2}, NULL, 0);
        struct saver_message m = expect(SAVER_WRITTEN);
        assert_int_equal(m.status, CAIRN_ERR_VOID);
        assert_non_null(strstr(m.error.message, "given up"));
        assert_int_equal(expect(SAVER_DISARMED).attempt, 2);

        seq = update(false); /* before the files are there: the wish is of this one */
        arm(3);
        assert_int_equal(expect(SAVER_CUT).seq, seq);
        m = expect(SAVER_WRITTEN);
        assert_int_equal(m.status, 0);
        send_verb((struct saver_message){.verb = SAVER_DISARM, .attempt = 3}, NULL, 0);
        arm(4); /* not of the files that it gets next */
        assert_int_equal(expect(SAVER_DISARMED).attempt, 3);
        seq = update(true);
        assert_int_equal(expect(SAVER_CUT).seq, seq);
        assert_int_equal(expect(SAVER_WRITTEN).status, 0);
}

/* Storage that does not answer: nobody waits for it for ever, the trainer not at all, and the saver
 * goes, for its staging and its files may still be written from and to. */
static void test_stuck_storage_ends_it(void **state) {
        int status;

        s.storage_timeout_ns = 5 * NSEC_PER_SEC;
        start_saver("data-write:2:delay:600000");
        arm(1);
        (void) update(true);
        (void) expect(SAVER_CUT);
        uint64_t begin = clock_now(&clock_system);
        (void) update(true); /* declined meanwhile */
        assert_true(clock_now(&clock_system) - begin < 4 * NSEC_PER_SEC);
        struct saver_message m = expect(SAVER_WRITTEN);
        assert_int_equal(m.status, CAIRN_ERR_TIMEOUT);
        assert_true(m.stuck);
        assert_int_equal(waitpid(s.saver, &status, 0), s.saver);
        assert_int_equal(status, status_exit_code(CAIRN_ERR_TIMEOUT) << 8);
        s.saver = 0;
        (void) close(s.socket);
}

/* An inventory of slabs that did not come. */
static void test_other_slabs(void **state) {
        fork_saver(NULL);
        assert_int_equal(seal_saver().status, CAIRN_ERR_MISMATCH);
}

static void test_overflow_falls_back(void **state) {
        struct file_content m;
        struct cairn_error e = CAIRN_ERROR_INIT;
        struct arena arena;
        size_t bytes;

        start_saver(NULL);
        arm(1);
        (void) update(false);
        floats(4)[7] = 3.4e38f;                        /* rounds to infinity in BF16 */
        floats(1)[0] = 0;                              /* two BF16 zeros */
        ((uint16_t *) (void *) floats(1))[9] = 0x7f80; /* infinity in a parameter */
        demand(1);
        (void) expect(SAVER_CUT);
        struct saver_message written = expect(SAVER_WRITTEN);
        assert_int_equal(written.status, 0);
        assert_int_equal(written.non_finite_count, 1);
        unsigned char *manifest = read_all(s.manifest_fd, &bytes);
        arena_init(&arena, 64 * MiB);
        assert_int_equal(file_read(manifest, bytes, FILE_MANIFEST, "m", &arena, &m, &e), 0);
        const Tensor *t = find(&m, "m.big");
        assert_int_equal(t->stored_dtype, CAIRN_F32);
        assert_int_equal(t->extents[0]->bytes, 4004);
        assert_true(t->encoding->fell_back);
        assert_int_equal(t->encoding->overflow_count, 1);
        assert_int_equal(m.head->non_finite_count, 1);
        unsigned char *data = read_all(s.data_fd, &bytes);
        check_data(&m, data, bytes);
        free(data);
        free(manifest);
        arena_done(&arena);
}

int main(void) {
#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
        const struct CMUnitTest tests[] = {
                TEST(test_round_trip),
                TEST(test_restore_in_parts),
                TEST(test_unarmed_declines),
                TEST(test_void_copies),
                TEST(test_unknown_seal_is_declined),
                TEST(test_failed_writes),
                TEST(test_kill_in_mid_write),
                TEST(test_overflow_falls_back),
                TEST(test_hold),
                TEST(test_other_slabs),
                TEST(test_stuck_storage_ends_it),
                TEST(test_given_up),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
