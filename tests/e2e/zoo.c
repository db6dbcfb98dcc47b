/* SPDX-License-Identifier: Apache-2.0
 *
 * zoo - a trainer whose tensors are as odd as the format allows and whose bytes are a function of
 * (name, step, position): whatever a restore brings back is compared bit for bit with what that
 * step must hold, in every type.
 *
 *     cairn run ... -- zoo CASE [--steps N] [--save-at S] [--die-at S] [--step-ms T]
 *
 * At S it takes a snapshot and waits for the commit; at --die-at it kills itself, in its first life
 * only. Exit 0: every byte and value was as it should be; 1: not, it says which; else cairn's
 * status.
 *
 *     shapes, empty   [0] [4,0,3] [] [1] [1,1] and an ordinary one in each type; only empty ones
 *                     (B09)
 *     names, names-long    1 to 65536 bytes; one byte more (B64)
 *     sizes           1, 511, 512, 513, 4095, 4096, 4097 bytes and 1 MiB + 1 (B38)
 *     counters        steps around 2^24, 64-bit counters (B08)
 *     host            host values are scribbled over as soon as a snapshot was asked for (B32)
 *     permuted        registers in the opposite order in its second life
 *     narrow          a first moment and an average that fit FP16 and BF16, and two that do not
 *     moment2-narrow  a second moment in FP16: refused at registration
 *     large:TYPE:N    one tensor of N elements, beyond what 31 and 32 bits count (B10)
 *     many:N          N tensors of 4 to 64 bytes, from a million on of 0 to 8; up to a tenth of
 *                     them are step counters (B66)
 *     nan             from step 3 on the state is not finite
 *     mismatch        in its second life two shapes and one type differ: all three must be named,
 *                     and nothing may have been touched
 */
#include "base/clock.h"
#include "base/limits.h"
#include "client/cairn.h"
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { COUNTERS = 5, MANY_COUNTERS = 60000, NOISE_BYTES = 96 };
#define WAIT_NS (300 * NSEC_PER_SEC)

struct item {
        char *name;
        enum cairn_dtype dtype, stored_dtype; /* 0: as dtype */
        enum cairn_role role;
        uint32_t rank;
        uint64_t shape[CAIRN_RANK_MAX];
        uint64_t bytes;
        unsigned char *data;
};
struct zoo {
        const char *test;
        struct cairn *cairn;
        int64_t steps, save_at, die_at, step_ms;
        bool again; /* the second life */
        struct item *items;
        size_t item_count, item_capacity;
        float **counters;
        int64_t *truths;
        size_t counter_count;
        int64_t i64;
        uint64_t u64;
        double f64;
        unsigned char noise[NOISE_BYTES];
        uint64_t noise_bytes;
};

static int64_t counter_start(size_t i) {
        static const int64_t starts[COUNTERS] = {257, 10001, 16777215, 16777216, 16777217};
        return starts[i % COUNTERS] + (int64_t) (i / COUNTERS);
}

static bool is(const struct zoo *z, const char *test) {
        return strcmp(z->test, test) == 0;
}

static int complain(const struct zoo *z, const char *what) {
        fprintf(stderr, "zoo: %s: %s: %s\n", z->test, what, cairn_error_text(z->cairn));
        int code = cairn_exit_code(z->cairn);
        return code ? code : 70;
}

/* ---- what a step holds ---- */

static uint64_t mix(uint64_t x) {
        x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
        x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
        return x ^ (x >> 31);
}

static uint64_t hash_name(const char *name) {
        uint64_t h = UINT64_C(1469598103934665603);
        for (; *name; name++)
                h = (h ^ (unsigned char) *name) * UINT64_C(1099511628211);
        return h;
}

/* Bytes of a float's component, so that its last byte's bit can keep it finite: a state with NaN in
 * it would be flagged, and never resumed by itself. */
static uint64_t component_bytes(enum cairn_dtype dtype) {
        switch (dtype) {
        case CAIRN_C64:
                return 4;
        case CAIRN_C128:
                return 8;
        default:
                return cairn_dtype_bytes(dtype);
        }
}

static unsigned char byte_mask(enum cairn_dtype dtype) {
        switch (dtype) {
        case CAIRN_F64:
        case CAIRN_F32:
        case CAIRN_F16:
        case CAIRN_BF16:
        case CAIRN_F8E4M3:
        case CAIRN_F8E5M2:
        case CAIRN_C64:
        case CAIRN_C128:
                return 0xbf; /* not the highest exponent bit */
        case CAIRN_E8M0:
                return 0x7f;
        case CAIRN_BOOL:
                return 0x01;
        default:
                return 0xff;
        }
}

/* Eight bytes at a time, for there may be gigabytes; components have 1, 2, 4 or 8. */
static uint64_t word_mask(enum cairn_dtype dtype) {
        uint64_t mask = 0, c = component_bytes(dtype);
        for (uint64_t k = 0; k < 8; k++)
                mask |= (uint64_t) ((k + 1) % c == 0 ? byte_mask(dtype) : 0xff) << 8 * k;
        return mask;
}

/* Quarters, so few that FP16 and BF16 hold them exactly; what overflows or underflows there has one
 * such element. */
static float narrow_value(const struct item *t, uint64_t i) {
        if (i == 5 && strncmp(t->name, "over", 4) == 0)
                return 1e6f;
        if (i == 5 && strncmp(t->name, "under", 5) == 0)
                return 1e-9f;
        return 0.25f * (float) (1 + i % (t->stored_dtype == CAIRN_BF16 ? 256 : 1000));
}

static uint64_t expected_word(const struct zoo *z, const struct item *t, uint64_t seed,
                              uint64_t k) {
        if (!is(z, "narrow"))
                return mix(seed + k) & word_mask(t->dtype);
        const float pair[2] = {narrow_value(t, k / 4), narrow_value(t, k / 4 + 1)};
        uint64_t word;
        memcpy(&word, pair, sizeof word);
        return word;
}

static uint64_t word_bytes(const struct item *t, uint64_t at) {
        return t->bytes - at < 8 ? t->bytes - at : 8;
}

static void fill(struct zoo *z, int64_t step) {
        for (size_t i = 0; i < z->item_count; i++) {
                struct item *t = &z->items[i];
                uint64_t seed = hash_name(t->name) ^ mix((uint64_t) step);
                for (uint64_t k = 0; k < t->bytes; k += 8) {
                        uint64_t word = expected_word(z, t, seed, k);
                        memcpy(t->data + k, &word, word_bytes(t, k));
                }
                if (is(z, "nan") && step >= 3 && t->bytes > 0)
                        memset(t->data, 0xff, t->bytes);
        }
        z->i64 = INT64_C(5000000000) + step;
        z->u64 = (UINT64_C(1) << 63) + (uint64_t) step;
        z->f64 = 1.0 / (double) (step + 3);
        z->noise_bytes = (uint64_t) step % NOISE_BYTES;
        for (uint64_t k = 0; k < z->noise_bytes; k++)
                z->noise[k] = (unsigned char) mix((uint64_t) step * 1000 + k);
}

static int check_counters(const struct zoo *z, int64_t step) {
        for (size_t i = 0; i < z->counter_count; i++) {
                int64_t truth = counter_start(i) + step;
                if (is(z, "counters"))
                        printf("step %" PRId64 " counter %zu truth %" PRId64 " fp32 %.1f\n", step,
                               i, z->truths[i], (double) *z->counters[i]);
                if (z->truths[i] != truth || *z->counters[i] != (float) truth) {
                        fprintf(stderr,
                                "zoo: counter %zu is %" PRId64 " (fp32 %.1f), not %" PRId64 "\n", i,
                                z->truths[i], (double) *z->counters[i], truth);
                        return 1;
                }
        }
        return 0;
}

/* Everything as step `step` left it? */
static int check(struct zoo *z, int64_t step) {
        static struct zoo wanted = {.test = ""};
        for (size_t i = 0; i < z->item_count; i++) {
                const struct item *t = &z->items[i];
                uint64_t seed = hash_name(t->name) ^ mix((uint64_t) step);
                for (uint64_t k = 0; k < t->bytes; k += 8) {
                        uint64_t word = expected_word(z, t, seed, k);
                        if (memcmp(t->data + k, &word, word_bytes(t, k)) == 0)
                                continue;
                        fprintf(stderr,
                                "zoo: %.40s (%s) differs in the bytes from %" PRIu64
                                " on of step %" PRId64 "\n",
                                t->name, cairn_dtype_name(t->dtype), k, step);
                        return 1;
                }
        }
        wanted.item_count = 0;
        fill(&wanted, step);
        if (z->i64 != wanted.i64 || z->u64 != wanted.u64 || z->f64 != wanted.f64 ||
            z->noise_bytes != wanted.noise_bytes ||
            memcmp(z->noise, wanted.noise, wanted.noise_bytes) != 0) {
                fprintf(stderr,
                        "zoo: a host value is not that of step %" PRId64 ": %" PRId64 " %" PRIu64
                        " %.17g, %" PRIu64 " bytes\n",
                        step, z->i64, z->u64, z->f64, z->noise_bytes);
                return 1;
        }
        return check_counters(z, step);
}

/* ---- inventories ---- */

static void add(struct zoo *z, const char *name, enum cairn_dtype dtype, uint32_t rank,
                const uint64_t *shape) {
        if (z->item_count == z->item_capacity) {
                z->item_capacity = z->item_capacity ? 2 * z->item_capacity : 256;
                z->items = reallocarray(z->items, z->item_capacity, sizeof *z->items);
                if (!z->items)
                        exit(70);
        }
        struct item *t = &z->items[z->item_count++];
        *t = (struct item){.name = strdup(name),
                           .dtype = dtype,
                           .role = strstr(name, ".weight")    ? CAIRN_PARAMETER
                                   : strstr(name, ".moment1") ? CAIRN_MOMENT1
                                                              : CAIRN_BUFFER,
                           .rank = rank,
                           .bytes = cairn_dtype_bytes(dtype)};
        for (uint32_t d = 0; d < rank; d++) {
                t->shape[d] = shape[d];
                t->bytes *= shape[d];
        }
}

static void add_shapes(struct zoo *z, bool only_empty) {
        static const struct {
                uint32_t rank;
                uint64_t shape[3];
        } shapes[] = {{1, {0}},    {0, {0}},    {3, {4, 0, 3}}, {1, {1}},
                      {2, {1, 1}}, {2, {3, 5}}, {1, {0}}};
        for (int dtype = CAIRN_F64; dtype <= CAIRN_C128; dtype++)
                for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
                        char name[64];
                        if (only_empty && shapes[i].shape[0] != 0 && shapes[i].rank > 0 &&
                            shapes[i].rank != 3)
                                continue;
                        if (only_empty && shapes[i].rank == 0)
                                continue;
                        (void) snprintf(name, sizeof name, "%s.%zu", cairn_dtype_name(dtype), i);
                        add(z, name, (enum cairn_dtype) dtype, shapes[i].rank, shapes[i].shape);
                }
}

static void add_names(struct zoo *z) {
        static const size_t lengths[] = {1, 254, 255, 256, 4096, 65536, 65537};
        static char name[65538];
        const uint64_t shape[] = {7};
        size_t count = sizeof lengths / sizeof lengths[0] - (is(z, "names-long") ? 0 : 1);
        for (size_t i = 0; i < count; i++) {
                for (size_t k = 0; k < lengths[i]; k++)
                        name[k] = k % 50 == 49 ? '/' : (char) ('a' + (k + i) % 26);
                name[lengths[i]] = '\0';
                add(z, name, CAIRN_F32, 1, shape);
        }
}

static void add_sizes(struct zoo *z) {
        static const uint64_t sizes[] = {1,    511,  512,  513,
                                         4095, 4096, 4097, (UINT64_C(1) << 20) + 1};
        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
                char name[32];
                (void) snprintf(name, sizeof name, "bytes.%" PRIu64, sizes[i]);
                add(z, name, CAIRN_U8, 1, &sizes[i]);
        }
}

static void add_ordinary(struct zoo *z) {
        bool wrong = is(z, "mismatch") && z->again;
        const uint64_t first[] = {wrong ? 6 : 5, 3}, second[] = {wrong ? 12 : 11}, third[] = {8};
        add(z, "first.weight", CAIRN_F32, 2, first);
        add(z, "first.moment1", CAIRN_F32, 2, (const uint64_t[]){5, 3});
        add(z, "second.weight", CAIRN_BF16, 1, second);
        add(z, "third.weight", wrong ? CAIRN_F16 : CAIRN_F32, 1, third);
}

static void add_narrow(struct zoo *z) {
        const uint64_t shape[] = {40, 25};
        add(z, "fits.moment1", CAIRN_F32, 2, shape);
        add(z, "over.moment1", CAIRN_F32, 2, shape);
        add(z, "under.moment1", CAIRN_F32, 2, shape);
        for (size_t i = 0; i < z->item_count; i++)
                z->items[i].stored_dtype = CAIRN_F16;
        add(z, "fits.average", CAIRN_F32, 2, shape);
        z->items[z->item_count - 1].stored_dtype = CAIRN_BF16;
        z->items[z->item_count - 1].role = CAIRN_EMA;
        add(z, "fits.moment2", CAIRN_F32, 2, shape);
        z->items[z->item_count - 1].role = CAIRN_MOMENT2;
        if (is(z, "moment2-narrow"))
                z->items[z->item_count - 1].stored_dtype = CAIRN_F16;
}

/* "large:bf16:2147483653" */
static void add_large(struct zoo *z, const char *what) {
        char type[16] = "";
        uint64_t count = 0;
        if (sscanf(what, "%15[^:]:%" SCNu64, type, &count) != 2)
                exit(64);
        for (int dtype = CAIRN_F64; dtype <= CAIRN_C128; dtype++)
                if (strcmp(cairn_dtype_name(dtype), type) == 0)
                        add(z, "large", (enum cairn_dtype) dtype, 1, &count);
}

static void add_many(struct zoo *z, const char *count_text) {
        uint64_t count = strtoull(count_text, NULL, 10);
        /* An optimizer has a counter for each of its parameters; Cairn takes 65,536 truths. */
        z->counter_count = count / 10 < MANY_COUNTERS ? count / 10 : MANY_COUNTERS;
        for (uint64_t i = 0; i < count - z->counter_count; i++) {
                char name[32];
                uint64_t bytes = count < 1000000 ? 4 + i % 61 : i % 9;
                (void) snprintf(name, sizeof name, "many.%07" PRIu64, i);
                add(z, name, CAIRN_U8, 1, &bytes);
        }
}

static void add_all(struct zoo *z) {
        z->counter_count = is(z, "counters") ? COUNTERS : 0;
        if (is(z, "shapes") || is(z, "empty"))
                add_shapes(z, is(z, "empty"));
        else if (is(z, "names") || is(z, "names-long"))
                add_names(z);
        else if (is(z, "sizes"))
                add_sizes(z);
        else if (is(z, "narrow") || is(z, "moment2-narrow"))
                add_narrow(z);
        else if (strncmp(z->test, "large:", 6) == 0)
                add_large(z, z->test + 6);
        else if (strncmp(z->test, "many:", 5) == 0)
                add_many(z, z->test + 5);
        else
                add_ordinary(z);
}

static int declare_item(struct zoo *z, struct item *t) {
        void *data = NULL;
        struct cairn_tensor tensor = {CAIRN_TENSOR_INIT,
                                      .name = t->name,
                                      .role = t->role,
                                      .dtype = t->dtype,
                                      .stored_dtype = t->stored_dtype,
                                      .rank = t->rank};
        if (t->bytes > 0 && cairn_alloc(z->cairn, t->bytes, &data) < 0)
                return complain(z, "allocate");
        t->data = data;
        tensor.data = data;
        memcpy(tensor.shape, t->shape, sizeof tensor.shape);
        return cairn_register(z->cairn, &tensor) < 0 ? complain(z, "register") : 0;
}

static int declare(struct zoo *z) {
        char name[32];
        void *data;
        z->counters = calloc(z->counter_count + 1, sizeof *z->counters);
        z->truths = calloc(z->counter_count + 1, sizeof *z->truths);
        if (!z->counters || !z->truths)
                return 70;
        for (size_t i = 0; i < z->item_count; i++) {
                bool reverse = is(z, "permuted") && z->again;
                int r = declare_item(z, &z->items[reverse ? z->item_count - 1 - i : i]);
                if (r != 0)
                        return r;
        }
        for (size_t i = 0; i < z->counter_count; i++) {
                (void) snprintf(name, sizeof name, "counter.%zu", i);
                if (cairn_alloc(z->cairn, sizeof(float), &data) < 0)
                        return complain(z, "allocate");
                z->counters[i] = data;
                z->truths[i] = counter_start(i);
                *z->counters[i] = (float) z->truths[i];
                if (cairn_register_step(z->cairn, name, z->counters[i], &z->truths[i]) < 0)
                        return complain(z, "register a step");
        }
        if (cairn_state_i64(z->cairn, "i64", &z->i64) < 0 ||
            cairn_state_u64(z->cairn, "u64", &z->u64) < 0 ||
            cairn_state_f64(z->cairn, "f64", &z->f64) < 0 ||
            cairn_state_bytes(z->cairn, "noise", z->noise, &z->noise_bytes, NOISE_BYTES) < 0)
                return complain(z, "register values");
        return cairn_describe(z->cairn, "config.zoo", z->test) < 0 ? complain(z, "describe") : 0;
}

/* ---- training ---- */

static int save(struct zoo *z, int64_t step) {
        cairn_ticket ticket;
        int64_t saved = -1;
        if (cairn_snapshot(z->cairn, &ticket) < 0)
                return complain(z, "snapshot");
        if (is(z, "host")) {
                z->i64 = -1;
                z->u64 = 0;
                z->f64 = -1.0;
                z->noise_bytes = NOISE_BYTES;
                memset(z->noise, 0xee, sizeof z->noise);
        }
        if (cairn_snapshot_wait(z->cairn, ticket, WAIT_NS, &saved) < 0)
                return complain(z, "wait for the snapshot");
        printf("saved step %" PRId64 "\n", saved);
        (void) fflush(stdout);
        return saved == step ? 0 : 1;
}

static int train(struct zoo *z, int64_t step) {
        for (step++; step <= z->steps; step++) {
                if (z->step_ms > 0)
                        clock_system.sleep_ns(clock_system.context,
                                              (uint64_t) z->step_ms * NSEC_PER_MSEC);
                (void) cairn_update_begin(z->cairn);
                fill(z, step);
                for (size_t i = 0; i < z->counter_count; i++)
                        z->truths[i]++;
                if (cairn_update_end(z->cairn, step) < 0)
                        return complain(z, "update");
                int r = check_counters(z, step);
                if (r == 0 && step == z->save_at)
                        r = save(z, step);
                if (r != 0)
                        return r;
                if (step == z->die_at && !z->again)
                        (void) raise(SIGKILL);
        }
        return cairn_finish(z->cairn, "completed") < 0 ? complain(z, "finish") : 0;
}

/* A refused restore leaves what was there. */
static int restore_refused(struct zoo *z, const char *text) {
        printf("%s\n", text);
        int r = check(z, 1000);
        if (r == 0)
                printf("nothing was touched\n");
        return r ? r : cairn_exit_code(z->cairn);
}

static int live(struct zoo *z) {
        struct cairn_session session = {.size = sizeof session};
        struct cairn_report report = {.size = sizeof report};
        if (cairn_session(z->cairn, &session) < 0)
                return complain(z, "session");
        z->again = session.checkpoint_step >= 0;
        add_all(z);
        int r = declare(z);
        if (r != 0)
                return r;
        if (cairn_seal(z->cairn) < 0)
                return complain(z, "seal");
        fill(z, z->again ? 1000 : 0); /* what a restore has to replace */
        if (cairn_restore(z->cairn, &report) < 0)
                return z->again && is(z, "mismatch")
                               ? restore_refused(z, cairn_error_text(z->cairn))
                               : complain(z, "restore");
        printf("%s\n", report.text);
        r = check(z, report.step);
        return r ? r : train(z, report.step);
}

int main(int argc, char **argv) {
        static struct zoo z;
        struct cairn_options options = CAIRN_OPTIONS_INIT;
        z = (struct zoo){.test = argc > 1 ? argv[1] : "", .steps = 6, .save_at = 3, .die_at = 3};
        for (int i = 2; i + 1 < argc; i += 2) {
                int64_t value = strtoll(argv[i + 1], NULL, 10);
                if (strcmp(argv[i], "--steps") == 0)
                        z.steps = value;
                else if (strcmp(argv[i], "--save-at") == 0)
                        z.save_at = value;
                else if (strcmp(argv[i], "--die-at") == 0)
                        z.die_at = value;
                else if (strcmp(argv[i], "--step-ms") == 0)
                        z.step_ms = value;
                else
                        return 64;
        }
        int r = cairn_open(&options, &z.cairn) < 0 ? complain(&z, "open") : live(&z);
        cairn_close(z.cairn);
        for (size_t i = 0; i < z.item_count; i++)
                free(z.items[i].name);
        free(z.items);
        return r;
}
