/* SPDX-License-Identifier: Apache-2.0
 *
 * client/pusher.c: the test is the saver, and the GPU is the emulated one.
 */
#include "base/cleanup.h"
#include "client/pusher.h"
#include "format/wire.h"
#include "tests/test.h"
#include "tests/unit/cuda_emulated.h"

#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>

#define CHUNK (64 * KiB)
#define TENSOR_BYTES (3 * CHUNK + 12345)
#define SMALL_BYTES 4096
#define IMAGE_BYTES (TENSOR_BYTES + 2 * DATA_BLOCK_BYTES + SMALL_BYTES)
#define AWHILE_MS 20000

static const struct emu_control *emu;

struct staging {
        int fd;
        unsigned char *base;
};
struct fixture {
        const struct device_ops *ops;
        struct device *device; /* the trainer's */
        struct device_memory memory;
        unsigned char *bytes; /* what lies in it */
        struct control_page *page;
        struct pusher pusher;
        struct staging staging;
        int saver;
        uint64_t order;
};

static void staging_new(struct staging *s) {
        assert_int_equal(
                wire_memfd_create("test-staging", IMAGE_BYTES + DATA_BLOCK_BYTES, &s->fd, NULL), 0);
        assert_int_equal(wire_memfd_seal(s->fd, F_SEAL_SHRINK | F_SEAL_GROW, NULL), 0);
        s->base = mmap(NULL, IMAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, s->fd, 0);
        assert_ptr_not_equal(s->base, MAP_FAILED);
}

static void staging_free(struct staging *s) {
        (void) munmap(s->base, IMAGE_BYTES);
        (void) close(s->fd);
}

static void give_plan(struct fixture *f, uint64_t seal) {
        struct push_plan *plan = malloc(sizeof *plan + 2 * sizeof *plan->items);
        *plan = (struct push_plan){.seal = seal, .image_bytes = IMAGE_BYTES, .count = 2};
        plan->items[0] = (struct push_item){(char *) f->memory.address + TENSOR_BYTES,
                                            DATA_BLOCK_BYTES, SMALL_BYTES};
        plan->items[1] =
                (struct push_item){f->memory.address, UINT64_C(2) * DATA_BLOCK_BYTES, TENSOR_BYTES};
        pusher_take_plan(&f->pusher, plan);
}

static void fill(struct fixture *f) {
        uint64_t bytes = TENSOR_BYTES + SMALL_BYTES;
        f->bytes = malloc(bytes);
        for (uint64_t i = 0; i < bytes; i++)
                f->bytes[i] = (unsigned char) (i * 7 + i / 4093);
        assert_int_equal(
                f->ops->copy_async(f->device, NULL, f->memory.address, f->bytes, bytes, NULL), 0);
        assert_int_equal(f->ops->synchronize(f->device, UINT64_MAX, NULL), 0);
}

static struct fixture *set_up_on(const struct device_ops *ops) {
        struct fixture *f = calloc(1, sizeof *f);
        f->ops = ops;
        assert_int_equal(ops->open(0, &f->device, NULL), 0);
        assert_int_equal(ops->allocate(f->device, TENSOR_BYTES + SMALL_BYTES, &f->memory, NULL), 0);
        fill(f);
        f->page = aligned_alloc(4096, CONTROL_PAGE_BYTES);
        memset(f->page, 0, CONTROL_PAGE_BYTES);
        control_page_init(f->page, 1);
        uint64_t seq;
        bool ring;
        assert_int_equal(cut_update_end(f->page, 1, 1, &seq, &ring), 0);
        const struct pusher_parts parts = {.ops = ops,
                                           .page = f->page,
                                           .clock = &clock_system,
                                           .chunk_bytes = CHUNK,
                                           .chunk_ns = NSEC_PER_SEC};
        assert_int_equal(pusher_start(&f->pusher, &parts, NULL), 0);
        assert_int_equal(pusher_start(&f->pusher, &parts, NULL), 0);
        give_plan(f, 1);
        f->saver = pusher_saver_end(&f->pusher);
        staging_new(&f->staging);
        return f;
}

static int set_up(void **state) {
        const struct cuda_driver *cuda;
        emu = cuda_emulated(&cuda);
        *state = set_up_on(&device_cuda);
        return 0;
}

static int set_up_host(void **state) {
        *state = set_up_on(&device_host);
        return 0;
}

static void free_fixture(struct fixture *f) {
        pusher_done(&f->pusher);
        pusher_done(&f->pusher);
        f->ops->release(f->device, &f->memory);
        f->ops->close(f->device);
        staging_free(&f->staging);
        (void) close(f->saver);
        free(f->page);
        free(f->bytes);
        free(f);
}

static int tear_down(void **state) {
        emu->hold(false);
        emu->fault(NULL, 0, CUDA_OK);
        free_fixture(*state);
        cuda_emulated_assert_empty(emu);
        return 0;
}

static int tear_down_host(void **state) {
        free_fixture(*state);
        return 0;
}

/* For what leaves an error in the context, or handles. */
static int tear_down_broken(void **state) {
        emu->hold(false);
        free_fixture(*state);
        emu->reset();
        return 0;
}

/* ---- the saver ---- */

static struct cut_word claim(struct fixture *f) {
        struct cut_word mine;
        assert_int_equal(cut_copy_begin(f->page, true, &mine), 0);
        return mine;
}

static void order(struct fixture *f, enum push_verb verb, uint64_t seal, struct cut_word mine) {
        struct push_packet o = {.verb = verb,
                                .order = ++f->order,
                                .seal = seal,
                                .seq = mine.seq,
                                .attempt = mine.attempt};
        assert_int_equal(push_send(f->saver, &o, f->staging.fd), 0);
}

static bool done_within(struct fixture *f, int ms, struct push_packet *ret) {
        struct pollfd p = {.fd = f->saver, .events = POLLIN};
        int fd;
        if (poll(&p, 1, ms) <= 0)
                return false;
        assert_int_equal(push_receive(f->saver, ret, &fd), 0);
        assert_int_equal(fd, -1);
        assert_int_equal(ret->verb, PUSH_DONE);
        assert_int_equal(ret->order, f->order);
        return true;
}

static int expect_done(struct fixture *f, const char *text) {
        struct push_packet done = {0};
        assert_true(done_within(f, AWHILE_MS, &done));
        if (!strstr(done.text, text))
                print_error("%s\n", done.text);
        assert_non_null(strstr(done.text, text));
        return done.status;
}

static bool is_whole(const struct fixture *f) {
        return memcmp(f->staging.base + 2 * DATA_BLOCK_BYTES, f->bytes, TENSOR_BYTES) == 0 &&
               memcmp(f->staging.base + DATA_BLOCK_BYTES, f->bytes + TENSOR_BYTES, SMALL_BYTES) ==
                       0;
}

static void copy_whole(struct fixture *f) {
        struct cut_word mine = claim(f);
        uint64_t progress = atomic_load(&f->page->progress);
        order(f, PUSH_COPY, 1, mine);
        assert_int_equal(expect_done(f, ""), 0);
        assert_true(is_whole(f));
        assert_true(atomic_load(&f->page->progress) >= progress + 4); /* chunks */
        assert_int_equal(cut_copy_end(f->page, mine), 0);
}

/* ---- tests ---- */

static void a_state_arrives(void **state) {
        copy_whole(*state);
        copy_whole(*state);
}

static void staging_is_locked_once(void **state) {
        struct fixture *f = *state;
        struct emu_counts c;
        copy_whole(f);
        copy_whole(f);
        emu->counts(&c);
        assert_int_equal(c.registrations, 1);
        uint64_t pageable = c.pageable_copies;
        struct staging former = f->staging;
        staging_new(&f->staging); /* of the saver's successor */
        copy_whole(f);
        staging_free(&former);
        emu->counts(&c);
        assert_int_equal(c.registrations, 1);
        assert_int_equal(c.pageable_copies, pageable); /* none of these */
}

static void a_sample_is_measured(void **state) {
        struct fixture *f = *state;
        struct push_packet done;
        order(f, PUSH_PROBE, 1, (struct cut_word){0});
        assert_true(done_within(f, AWHILE_MS, &done));
        assert_int_equal(done.status, 0);
        assert_int_equal(done.bytes, TENSOR_BYTES + SMALL_BYTES);
        assert_true(done.copy_ns > 0);
}

static void a_refused_lock_is_told(void **state) {
        struct fixture *f = *state;
        emu->fault("cuMemHostRegister_v2", 1, CUDA_OUT_OF_MEMORY);
        order(f, PUSH_PROBE, 1, (struct cut_word){0});
        assert_int_equal(expect_done(f, "not page-locked"), 0);
        copy_whole(f);
}

/* The gate lets the update in; what is under way is waited for before DONE. */
static void a_revoked_copy_ends(void **state) {
        struct fixture *f = *state;
        struct push_packet done;
        struct cut_word mine = claim(f);
        uint64_t progress = atomic_load(&f->page->progress);
        emu->hold(true);
        order(f, PUSH_COPY, 1, mine);
        for (int i = 0; i < AWHILE_MS && atomic_load(&f->page->progress) < progress + 2; i++)
                (void) usleep(1000);
        assert_true(cut_copy_revoke(f->page));
        assert_false(done_within(f, 100, &done));
        emu->hold(false);
        assert_int_equal(expect_done(f, "revoked"), CAIRN_ERR_VOID);
        assert_int_equal(cut_copy_end(f->page, mine), CAIRN_ERR_STALE);
        assert_false(is_whole(f));
        unsigned char last = f->staging.base[IMAGE_BYTES - DATA_BLOCK_BYTES];
        assert_int_equal(last, 0); /* the chunks behind were never begun */
        copy_whole(f);
}

static void a_claim_that_is_gone(void **state) {
        struct fixture *f = *state;
        struct cut_word mine = claim(f);
        cut_copy_abandon(f->page, mine);
        order(f, PUSH_COPY, 1, mine);
        assert_int_equal(expect_done(f, "revoked"), CAIRN_ERR_VOID);
}

static void another_seal(void **state) {
        struct fixture *f = *state;
        struct cut_word mine = claim(f);
        order(f, PUSH_COPY, 2, mine);
        assert_int_equal(expect_done(f, "sealed again"), CAIRN_ERR_STALE);
        give_plan(f, 2);
        order(f, PUSH_COPY, 2, mine);
        assert_int_equal(expect_done(f, ""), 0);
        assert_true(is_whole(f));
}

/* Sealed again while a copy by the former plan is under way: that one ends by it. */
static void a_plan_that_is_replaced_meanwhile(void **state) {
        struct fixture *f = *state;
        uint64_t progress = atomic_load(&f->page->progress);
        struct cut_word mine = claim(f);
        emu->hold(true);
        order(f, PUSH_COPY, 1, mine);
        for (int i = 0; i < AWHILE_MS && atomic_load(&f->page->progress) < progress + 2; i++)
                (void) usleep(1000);
        give_plan(f, 2);
        give_plan(f, 3);
        emu->hold(false);
        assert_int_equal(expect_done(f, ""), 0);
        assert_true(is_whole(f));
}

/* Each call of the driver that a copy makes fails once: the order says so, the next goes well. */
static void a_failure_costs_one_copy(void **state) {
        static const char *const calls[] = {
                "cuMemcpyAsync",     "cuEventRecord",       "cuEventQuery",      "cuEventCreate",
                "cuEventDestroy_v2", "cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2"};
        struct fixture *f = *state;
        copy_whole(f);
        for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
                for (uint64_t nth = 1; nth <= 3; nth++) {
                        struct push_packet done;
                        struct cut_word mine = claim(f);
                        memset(f->staging.base, 0, IMAGE_BYTES);
                        emu->fault(calls[i], nth, CUDA_INVALID_VALUE);
                        order(f, PUSH_COPY, 1, mine);
                        assert_true(done_within(f, AWHILE_MS, &done));
                        if (done.status == 0)
                                assert_true(is_whole(f));
                        else {
                                assert_int_equal(done.status, CAIRN_ERR_DEVICE);
                                assert_true(done.text[0] != 0 && !done.final);
                        }
                        cut_copy_abandon(f->page, mine);
                        emu->fault(NULL, 0, CUDA_OK);
                        copy_whole(f);
                }
}

static void what_the_driver_keeps_is_final(void **state) {
        struct fixture *f = *state;
        struct push_packet done;
        emu->break_operation(2, CUDA_ILLEGAL_ADDRESS);
        order(f, PUSH_COPY, 1, claim(f));
        assert_true(done_within(f, AWHILE_MS, &done));
        assert_int_equal(done.status, CAIRN_ERR_DEVICE);
        assert_true(done.final);
        assert_non_null(strstr(done.text, "ILLEGAL_ADDRESS"));
}

/* The GPU never ends its copies: they keep what they write, and DONE never comes. */
static void closed_while_the_gpu_hangs(void **state) {
        struct fixture *f = *state;
        struct push_packet done;
        int fd;
        emu->hold(true);
        order(f, PUSH_COPY, 1, claim(f));
        assert_false(done_within(f, 200, &done));
        struct device *left = f->pusher.device;
        pusher_done(&f->pusher);
        assert_int_equal(push_receive(f->saver, &done, &fd), CAIRN_ERR_PEER);
        emu->hold(false);
        left->ops->close(left); /* what it left to the end of the process */
}

static void what_is_no_order(void **state) {
        struct fixture *f = *state;
        struct push_packet o = {.verb = PUSH_DONE, .order = 77};
        assert_int_equal(push_send(f->saver, &o, f->staging.fd), 0);
        assert_int_equal(send(f->saver, "x", 1, MSG_NOSIGNAL), 1);
        struct cut_word mine = claim(f);
        o = (struct push_packet){.verb = PUSH_COPY, .order = ++f->order, .seal = 1};
        assert_int_equal(push_send(f->saver, &o, -1), 0);
        assert_int_equal(expect_done(f, "came without it"), CAIRN_ERR_CORRUPT);
        cut_copy_abandon(f->page, mine);
        copy_whole(f);
}

/* Nobody but the thread looks at the event. */
static void an_end_is_published(void **state) {
        struct fixture *f = *state;
        struct registry registry;
        struct stream stream;
        struct pusher pusher = {0};
        bool expired;
        struct cut_gate gate = {.deadline_duration_ns = GATE_DEADLINE_NS_MIN};
        assert_int_equal(registry_init(&registry), 0);
        stream_init(&stream, f->device, f->page, -1, &clock_system);
        const struct cuda_driver *cuda;
        struct cuda_stream *queue;
        struct cuda_context *context;
        assert_int_equal(cuda_driver_load(&cuda, NULL), 0);
        assert_int_equal(cuda->DevicePrimaryCtxRetain(&context, 0), CUDA_OK);
        assert_int_equal(cuda->CtxSetCurrent(context), CUDA_OK);
        assert_int_equal(cuda->StreamCreateWithPriority(&queue, CUDA_STREAM_NON_BLOCKING, 0),
                         CUDA_OK);
        stream_set(&stream, queue);
        const struct pusher_parts parts = {
                .ops = f->ops, .page = f->page, .stream = &stream, .clock = &clock_system};
        assert_int_equal(pusher_start(&pusher, &parts, NULL), 0);
        assert_int_equal(cut_update_begin(f->page, &gate, &clock_system, &expired), 0);
        emu->hold(true);
        assert_int_equal(stream_end(&stream, &registry, 2, 1, NULL), 0);
        pusher_wake(&pusher);
        (void) usleep(20000);
        assert_int_equal(cut_read(f->page).phase, CUT_UPDATING);
        emu->hold(false);
        for (int i = 0; i < AWHILE_MS && cut_read(f->page).phase != CUT_STABLE; i++)
                (void) usleep(1000);
        assert_int_equal(cut_read(f->page).seq, 2);
        pusher_done(&pusher);
        stream_done(&stream);
        registry_done(&registry);
        (void) cuda->StreamDestroy(queue);
        (void) cuda->CtxSetCurrent(NULL);
        (void) cuda->DevicePrimaryCtxRelease(0);
}

static void each_start_that_fails_is_clean(void **state) {
        struct fixture *f = *state;
        struct pusher p = {0};
        const struct pusher_parts parts = {.ops = f->ops,
                                           .page = f->page,
                                           .clock = &clock_system,
                                           .chunk_bytes = CHUNK,
                                           .chunk_ns = NSEC_PER_SEC};
        struct cairn_error e = CAIRN_ERROR_INIT;
        emu->fault("cuStreamCreateWithPriority", 1, CUDA_OUT_OF_MEMORY);
        assert_int_equal(pusher_start(&p, &parts, &e), CAIRN_ERR_NOMEM);
        assert_int_equal(pusher_start(&p, &parts, &e), 0);
        pusher_done(&p);
}

#define ON_GPU(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
#define ON_HOST(name) cmocka_unit_test_setup_teardown(name, set_up_host, tear_down_host)
#define BREAKS(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down_broken)

int main(void) {
        const struct CMUnitTest tests[] = {
                ON_GPU(a_state_arrives),
                ON_HOST(a_state_arrives),
                ON_GPU(staging_is_locked_once),
                ON_GPU(a_sample_is_measured),
                ON_HOST(a_sample_is_measured),
                ON_GPU(a_refused_lock_is_told),
                ON_GPU(a_revoked_copy_ends),
                ON_GPU(a_claim_that_is_gone),
                ON_HOST(a_claim_that_is_gone),
                ON_GPU(another_seal),
                ON_GPU(a_plan_that_is_replaced_meanwhile),
                ON_GPU(a_failure_costs_one_copy),
                ON_GPU(what_is_no_order),
                ON_GPU(an_end_is_published),
                ON_GPU(each_start_that_fails_is_clean),
                BREAKS(what_the_driver_keeps_is_final),
                BREAKS(closed_while_the_gpu_hangs),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
