/* SPDX-License-Identifier: Apache-2.0
 *
 * An INDEX as libcairn gets it from the agent, against a trainer that registered the tensors of the
 * seeds: bound, planned, checked and applied into memory that ends where each tensor ends. The
 * first byte: resume or init-from, conversions, overrides.
 */
#include "base/limits.h"
#include "client/transfer.h"
#include "format/crc32c.h"
#include "format/dtype.h"
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { STAGING_LIMIT = 1 << 20, RNG_BYTES = 64 };
enum flags { INIT_FROM = 1, CONVERT = 2, OVERRIDE = 4 };

/* The trainer, made once. */
static struct registry registry;
static struct slabs slabs;
static int64_t truth, samples;
static char rng[RNG_BYTES];
static uint64_t rng_length;

static void declare(struct cairn_tensor *t, uint64_t bytes) {
        struct cairn_error e = CAIRN_ERROR_INIT;
        if (bytes > 0 && !t->data)
                FUZZ_CHECK(slabs_allocate(&slabs, bytes, &t->data, NULL, NULL) == 0);
        FUZZ_CHECK(registry_add_tensor(&registry, &slabs, t, &e) == 0);
}

static void set_up(void) {
        struct device *device;
        struct cairn_tensor wte = {CAIRN_TENSOR_INIT,   .name = "wte", .role = CAIRN_PARAMETER,
                                   .dtype = CAIRN_BF16, .rank = 2,     .shape = {9, 5},
                                   .replicated = true};
        struct cairn_tensor head = wte;
        struct cairn_tensor m = {CAIRN_TENSOR_INIT,  .name = "m.wte",  .role = CAIRN_MOMENT1,
                                 .dtype = CAIRN_F32, .rank = 1,        .shape = {207},
                                 .sharded = true,    .flat_start = 50, .flat_count = 100};
        struct cairn_tensor v = {CAIRN_TENSOR_INIT,  .name = "v.wte", .role = CAIRN_MOMENT2,
                                 .dtype = CAIRN_F32, .rank = 2,       .shape = {4, 6}};
        struct cairn_tensor empty = {CAIRN_TENSOR_INIT,  .name = "empty", .role = CAIRN_BUFFER,
                                     .dtype = CAIRN_F32, .rank = 3,       .shape = {4, 0, 3},
                                     .replicated = true};
        float *step = NULL;

        FUZZ_CHECK(device_host.open(0, &device, NULL) == 0);
        slabs_init(&slabs, device);
        FUZZ_CHECK(registry_init(&registry) == 0);
        declare(&wte, 9 * 5 * 2);
        head.name = "lm_head";
        head.data = wte.data;
        head.alias_of = "wte";
        declare(&head, 0);
        declare(&m, 100 * 4);
        declare(&v, 4 * 6 * 4);
        declare(&empty, 0);
        FUZZ_CHECK(slabs_allocate(&slabs, 4, (void **) &step, NULL, NULL) == 0);
        FUZZ_CHECK(registry_add_step(&registry, &slabs, "step", step, &truth, NULL) == 0);
        FUZZ_CHECK(registry_add_value(&registry, "samples", CAIRN_VALUE_I64, &samples, NULL, 8,
                                      NULL) == 0);
        FUZZ_CHECK(registry_add_value(&registry, "rng", CAIRN_VALUE_BYTES, rng, &rng_length,
                                      RNG_BYTES, NULL) == 0);
        /* What is applied goes to blocks of exactly the right size. */
        for (size_t i = 0; i < registry.tensor_count; i++)
                if (registry.tensors[i].alias_of < 0)
                        registry.tensors[i].data = calloc(1, registry.tensors[i].bytes + !*rng);
}

/* As the agent would answer: the plan is accepted, and the image holds what INDEX promises. */
static void apply(struct transfer *x, const struct binding_request *request) {
        struct cairn_error e = CAIRN_ERROR_INIT;
        struct textbuf problems = {0};
        const struct plan_range *ranges;
        uint64_t count, staging_bytes, plan_length = plan_bytes(x->range_count);
        uint8_t *plan = malloc(plan_length);

        FUZZ_CHECK(plan && pread(x->plan_fd, plan, plan_length, 0) == (ssize_t) plan_length);
        FUZZ_CHECK(plan_read(plan, plan_length, RANK_COUNT_MAX, &ranges, &count, &staging_bytes,
                             &e) == 0);
        FUZZ_CHECK(staging_bytes == x->staging_bytes);
        uint8_t *staging = staging_bytes <= STAGING_LIMIT ? calloc(1, staging_bytes + 1) : NULL;
        if (staging) {
                memset(staging, 0x41, staging_bytes);
                (void) transfer_check(x, staging, staging_bytes, &e);
                for (size_t i = 0; i < x->range_count; i++)
                        x->ranges[i].crc32c = crc32c(0, staging + x->ranges[i].staging_offset,
                                                     x->ranges[i].bytes);
                x->staging = staging;
                if (transfer_check_steps(x, request, &problems, &e) == 0)
                        (void) transfer_apply(x, &e);
                FUZZ_CHECK(rng_length <= RNG_BYTES);
        }
        textbuf_done(&problems);
        free(staging);
        free(plan);
}

/* An image is only as long as its extents: dtypes and shards must agree with them. */
static bool sizes_agree(const struct transfer *x) {
        for (size_t i = 0; i < x->binding->load_count; i++) {
                const Cairn__Format__Tensor *t = x->binding->loads[i].stored;
                for (size_t k = 0; k < t->n_extents; k++)
                        if (t->extents[k]->bytes % dtype_info(t->stored_dtype)->bytes)
                                return false;
        }
        return true;
}

static void bind(const struct stored *stored, uint8_t flags) {
        static const struct pair conversions[] = {
                {"wte", "bf16"}, {"lm_head", "bf16"}, {"*", "f32"}};
        static const struct pair overrides[] = {{"step", "7"}, {"config.lr", "0.1"}};
        struct binding_request request = {.start = flags & INIT_FROM ? CAIRN_START_INIT_FROM
                                                                     : CAIRN_START_RESUME,
                                          .run = "run",
                                          .world = 2,
                                          .step = stored->index.head->step,
                                          .conversions = conversions,
                                          .conversion_count = flags & CONVERT ? 3 : 0,
                                          .overrides = overrides,
                                          .override_count = flags & OVERRIDE ? 2 : 0};
        struct cairn_error e = CAIRN_ERROR_INIT;
        struct transfer x = {.plan_fd = -1};
        struct binding b = {0};

        int r = binding_make(&b, stored, &request, &registry, &e);
        if (r < 0)
                fuzz_check_error(r, &e);
        else if (b.problems.item_count == 0) {
                FUZZ_CHECK(b.load_count <= registry.tensor_count);
                r = transfer_plan(&x, &b, &registry, &e);
                if (r < 0)
                        fuzz_check_error(r, &e);
                else if (x.range_count) {
                        FUZZ_CHECK(sizes_agree(&x));
                        apply(&x, &request);
                }
                transfer_done(&x);
        }
        binding_done(&b);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count) {
        struct fuzz_input in = {bytes, count};
        struct cairn_error e = CAIRN_ERROR_INIT;
        struct stored stored;
        uint8_t flags = fuzz_u8(&in);

        if (!slabs.device)
                set_up();
        int fd = fuzz_memfd(in.bytes, in.left);
        int r = stored_open(&stored, fd, "000000000005-g0001", &e);
        (void) close(fd);
        if (r < 0) {
                fuzz_check_error(r, &e);
                return 0;
        }
        fuzz_check_arena(&stored.arena, count);
        bind(&stored, flags);
        stored_done(&stored);
        return 0;
}

size_t LLVMFuzzerCustomMutator(uint8_t *bytes, size_t count, size_t max, unsigned int seed) {
        if (count < 1 || seed % 16 == 0)
                return LLVMFuzzerMutate(bytes, count, max);
        return 1 + fuzz_mutate_files(bytes + 1, count - 1, max - 1, seed / 16);
}
