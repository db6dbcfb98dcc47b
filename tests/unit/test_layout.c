/* SPDX-License-Identifier: Apache-2.0 */
#include "base/clock.h"
#include "format/layout.h"
#include "tests/test.h"
#include "tests/unit/format_sample.h"

/* ---- images ---- */

static void b09_empty_tensors_shift_nothing(void **state) {
        struct sample f, g;

        sample_init(&f, "run", 0, 1, 1, 1, 1);
        sample_tensor(&f, "first", CAIRN_BUFFER, CAIRN_F32, 1, (uint64_t[]){0});
        sample_tensor(&f, "a", CAIRN_BUFFER, CAIRN_U8, 1, (uint64_t[]){300});
        sample_tensor(&f, "middle", CAIRN_BUFFER, CAIRN_F64, 3, (uint64_t[]){4, 0, 3});
        sample_tensor(&f, "b", CAIRN_BUFFER, CAIRN_F32, 0, NULL);
        sample_tensor(&f, "c", CAIRN_BUFFER, CAIRN_F32, 2, (uint64_t[]){1, 1});
        sample_tensor(&f, "last", CAIRN_BUFFER, CAIRN_I64, 1, (uint64_t[]){0});
        sample_finish(&f);
        Tensor **t = f.content.tensors;
        assert_int_equal(t[0]->n_extents, 0);
        assert_int_equal(t[2]->n_extents, 0);
        assert_int_equal(t[5]->n_extents, 0);
        assert_int_equal(t[1]->extents[0]->offset, 4096);
        assert_int_equal(t[3]->extents[0]->offset, 4096 + 512);
        assert_int_equal(t[3]->extents[0]->bytes, 4);
        assert_int_equal(t[4]->extents[0]->offset, 4096 + 768);
        assert_int_equal(f.image_bytes, 8192);
        assert_int_equal(f.content.tensors[3]->n_shape, 0);
        assert_int_equal(file_check(&f.content, "manifest", NULL), 0);
        sample_done(&f);

        sample_init(&g, "run", 0, 1, 1, 1, 1);
        sample_tensor(&g, "only", CAIRN_BUFFER, CAIRN_F32, 1, (uint64_t[]){0});
        sample_finish(&g);
        assert_int_equal(g.image_bytes, 4096);
        struct file_content *manifests[] = {&g.content}, index;
        assert_int_equal(layout_merge(manifests, 1, &g.arena, &index, NULL), 0);
        assert_int_equal(index.tensor_count, 1);
        sample_done(&g);
}

static void test_image_too_large(void **state) {
        struct sample f;
        uint64_t bytes;

        sample_init(&f, "run", 0, 1, 1, 1, 1);
        for (int i = 0; i < 3; i++)
                sample_tensor(&f, (const char *[]){"a", "b", "c"}[i], CAIRN_BUFFER, CAIRN_U8, 1,
                              (uint64_t[]){i == 2 ? UINT64_MAX - 4096 : DATA_BYTES_MAX / 2});
        assert_int_equal(layout_assign(&f.content, 0, &f.arena, &bytes, NULL), CAIRN_ERR_NOMEM);
        sample_done(&f);
}

/* ---- owners ---- */

static void test_owners_at_every_world_size(void **state) {
        enum { COUNT = 200 };
        uint64_t bytes[COUNT], total = 0, largest = 0;
        char text[COUNT][8];
        const char *names[COUNT];
        uint32_t owners[COUNT], shuffled[COUNT];

        for (size_t i = 0; i < COUNT; i++) {
                bytes[i] = i % 5 ? 4096 : 1000000 + i * 1000;
                total += bytes[i];
                largest = bytes[i] > largest ? bytes[i] : largest;
                (void) snprintf(text[i], sizeof text[i], "t%03zu", i);
                names[i] = text[i];
        }
        for (uint32_t world = 1; world <= 64; world++) {
                uint64_t loads[64] = {0}, heaviest = 0;
                assert_int_equal(layout_elect_owners(bytes, names, COUNT, world, owners, NULL), 0);
                for (size_t i = 0; i < COUNT; i++) {
                        assert_true(owners[i] < world);
                        loads[owners[i]] += bytes[i];
                }
                for (uint32_t rank = 0; rank < world; rank++)
                        heaviest = loads[rank] > heaviest ? loads[rank] : heaviest;
                /* The bound of greedy scheduling. */
                assert_true(heaviest <= total / world + largest);
                /* The order of the input does not matter. */
                uint64_t reversed_bytes[COUNT];
                const char *reversed_names[COUNT];
                for (size_t i = 0; i < COUNT; i++) {
                        reversed_bytes[i] = bytes[COUNT - 1 - i];
                        reversed_names[i] = names[COUNT - 1 - i];
                }
                assert_int_equal(layout_elect_owners(reversed_bytes, reversed_names, COUNT, world,
                                                     shuffled, NULL),
                                 0);
                for (size_t i = 0; i < COUNT; i++)
                        assert_int_equal(owners[i], shuffled[COUNT - 1 - i]);
        }
        assert_int_equal(layout_elect_owners(bytes, names, COUNT, 0, owners, NULL), CAIRN_ERR_API);
        assert_int_equal(layout_elect_owners(NULL, NULL, 0, 3, owners, NULL), 0);
        /* Equal sizes: by name, then by lowest rank. */
        uint64_t equal[] = {8, 8, 8};
        assert_int_equal(
                layout_elect_owners(equal, (const char *[]){"c", "a", "b"}, 3, 2, owners, NULL), 0);
        assert_int_equal(owners[1], 0);
        assert_int_equal(owners[2], 1);
        assert_int_equal(owners[0], 0);
}

/* ---- coverage ---- */

enum { PARTS_MAX = 4096 };
static struct sample cover_fixture;
static Extent cover_parts[PARTS_MAX], *cover_pointers[PARTS_MAX];

static Tensor *cover_begin(size_t rank, const uint64_t *shape) {
        sample_init(&cover_fixture, "run", 0, 1, 1, 1, 1);
        Tensor *t = sample_tensor(&cover_fixture, "t", CAIRN_PARAMETER, CAIRN_U8, rank, shape);
        t->extents = cover_pointers;
        return t;
}

static void cover_add(Tensor *t) {
        Extent *e = &cover_parts[t->n_extents];

        assert_true(t->n_extents < PARTS_MAX);
        cairn__format__extent__init(e);
        e->shard = t->shard;
        e->bytes = 1;
        t->shard = NULL;
        cover_pointers[t->n_extents++] = e;
}

static void cover_block(Tensor *t, const uint64_t *offsets, const uint64_t *extents) {
        sample_block(&cover_fixture, t, offsets, extents);
        cover_add(t);
}

static void cover_flat(Tensor *t, uint64_t start, uint64_t count) {
        sample_flat(&cover_fixture, t, start, count);
        cover_add(t);
}

static int cover_end(const char *expected_message) {
        struct cairn_error e = CAIRN_ERROR_INIT;
        int r = layout_check_coverage(&cover_fixture.content, &e);
        if (expected_message && !strstr(e.message, expected_message))
                fail_msg("message is \"%s\"", e.message);
        sample_done(&cover_fixture);
        return r;
}

static void test_flat_parts(void **state) {
        Tensor *t = cover_begin(2, (uint64_t[]){4, 5});
        cover_flat(t, 12, 8);
        cover_flat(t, 0, 5);
        cover_flat(t, 5, 7);
        assert_int_equal(cover_end(NULL), 0);
        t = cover_begin(2, (uint64_t[]){4, 5});
        cover_flat(t, 0, 5);
        cover_flat(t, 6, 14);
        assert_int_equal(cover_end("elements 5 to 6 are covered by no rank"), CAIRN_ERR_CORRUPT);
        t = cover_begin(2, (uint64_t[]){4, 5});
        cover_flat(t, 0, 8);
        cover_flat(t, 6, 14);
        assert_int_equal(cover_end("elements 6 to 8 are covered twice"), CAIRN_ERR_CORRUPT);
        t = cover_begin(2, (uint64_t[]){4, 5});
        cover_flat(t, 0, 19);
        assert_int_equal(cover_end("19 to 20 are covered by no rank"), CAIRN_ERR_CORRUPT);
        t = cover_begin(2, (uint64_t[]){4, 5});
        cover_flat(t, 0, UINT64_MAX);
        assert_int_equal(cover_end("behind the tensor"), CAIRN_ERR_CORRUPT);
        t = cover_begin(1, (uint64_t[]){UINT64_MAX});
        cover_flat(t, 0, UINT64_MAX - 1);
        cover_flat(t, UINT64_MAX - 1, 1);
        assert_int_equal(cover_end(NULL), 0);
}

static void test_whole_and_mixed(void **state) {
        (void) cover_begin(1, (uint64_t[]){10});
        assert_int_equal(cover_end("no rank has written it"), CAIRN_ERR_CORRUPT);
        Tensor *t = cover_begin(1, (uint64_t[]){10});
        cover_add(t);
        assert_int_equal(cover_end(NULL), 0);
        t = cover_begin(1, (uint64_t[]){10});
        cover_add(t);
        cover_add(t);
        assert_int_equal(cover_end("2 ranks have written the whole"), CAIRN_ERR_CORRUPT);
        t = cover_begin(1, (uint64_t[]){10});
        cover_flat(t, 0, 5);
        cover_block(t, (uint64_t[]){5}, (uint64_t[]){5});
        assert_int_equal(cover_end("different forms"), CAIRN_ERR_CORRUPT);
        t = cover_begin(1, (uint64_t[]){10});
        cover_flat(t, 0, 10);
        cover_add(t);
        assert_int_equal(cover_end("different forms"), CAIRN_ERR_CORRUPT);
        t = cover_begin(2, (uint64_t[]){10, 0});
        cover_add(t);
        assert_int_equal(cover_end("tied or empty"), CAIRN_ERR_CORRUPT);
        t = cover_begin(0, NULL);
        cover_block(t, NULL, NULL);
        assert_int_equal(cover_end(NULL), 0);
        t = cover_begin(0, NULL);
        cover_block(t, NULL, NULL);
        cover_block(t, NULL, NULL);
        assert_int_equal(cover_end("2 blocks cover 2 elements of 1"), CAIRN_ERR_CORRUPT);
}

/* In a node-local store each node has a whole copy of what is replicated. */
static void test_copies(void **state) {
        size_t count;
        Tensor *t = cover_begin(1, (uint64_t[]){10});
        t->replicated = true;
        for (uint32_t i = 0; i < 3; i++) {
                cover_add(t);
                t->extents[i]->rank = 2 * i + 1;
        }
        assert_ptr_equal(*layout_extents(t, (struct layout_ranks){2, 2}, &count), t->extents[1]);
        assert_int_equal(count, 1);
        assert_ptr_equal(*layout_extents(t, (struct layout_ranks){5, 1}, &count), t->extents[2]);
        assert_ptr_equal(*layout_extents(t, (struct layout_ranks){6, 9}, &count), t->extents[0]);
        assert_ptr_equal(*layout_extents(t, (struct layout_ranks){0, 0}, &count), t->extents[0]);
        assert_int_equal(cover_end(NULL), 0);
        t = cover_begin(1, (uint64_t[]){10});
        t->replicated = true;
        cover_add(t);
        cover_flat(t, 0, 10);
        assert_int_equal(cover_end("different forms"), CAIRN_ERR_CORRUPT);
        t = cover_begin(1, (uint64_t[]){10});
        cover_flat(t, 0, 4);
        cover_flat(t, 4, 6);
        assert_ptr_equal(layout_extents(t, (struct layout_ranks){1, 1}, &count), t->extents);
        assert_int_equal(count, 2);
        assert_int_equal(cover_end(NULL), 0);
}

/* Split a box at random until there are many blocks; then spoil it in every way. */
static void split_at_random(Tensor *t, size_t rank, const uint64_t *shape, uint64_t seed,
                            size_t cuts) {
        uint64_t boxes[64][2][CAIRN_RANK_MAX] = {0};
        size_t count = 1;

        memcpy(boxes[0][1], shape, rank * sizeof *shape);
        for (size_t i = 0; i < cuts; i++) {
                seed = seed * 6364136223846793005u + 1442695040888963407u;
                size_t box = (seed >> 33) % count, d = (seed >> 20) % rank;
                uint64_t extent = boxes[box][1][d];
                if (extent < 2)
                        continue;
                uint64_t cut = 1 + (seed >> 40) % (extent - 1);
                memcpy(boxes[count], boxes[box], sizeof boxes[box]);
                boxes[box][1][d] = cut;
                boxes[count][0][d] += cut;
                boxes[count][1][d] -= cut;
                count++;
        }
        for (size_t i = 0; i < count; i++)
                cover_block(t, boxes[i][0], boxes[i][1]);
}

static void test_blocks(void **state) {
        uint64_t shape[CAIRN_RANK_MAX] = {7, 5, 6, 4, 3, 3, 2, 2};

        for (uint64_t seed = 1; seed <= 400; seed++) {
                size_t rank = 1 + seed % CAIRN_RANK_MAX;
                Tensor *t = cover_begin(rank, shape);
                split_at_random(t, rank, shape, seed, 40);
                assert_int_equal(cover_end(NULL), 0);

                /* One block missing. */
                t = cover_begin(rank, shape);
                split_at_random(t, rank, shape, seed, 40);
                size_t victim = seed % t->n_extents;
                cover_pointers[victim] = cover_pointers[t->n_extents - 1];
                t->n_extents--;
                if (t->n_extents > 0)
                        assert_int_equal(cover_end("cover"), CAIRN_ERR_CORRUPT);
                else
                        sample_done(&cover_fixture);

                /* One block moved onto another of the same size: the volume is right. */
                t = cover_begin(rank, shape);
                split_at_random(t, rank, shape, seed, 40);
                bool moved = false;
                for (size_t d = 0; d < rank && !moved; d++) {
                        Shard *s = cover_pointers[victim]->shard;
                        if (s->offsets[d] > 0) {
                                s->offsets[d]--;
                                moved = true;
                        } else if (s->offsets[d] + s->extents[d] < shape[d]) {
                                s->offsets[d]++;
                                moved = true;
                        }
                }
                assert_int_equal(cover_end(moved ? "overlap and leave gaps" : NULL),
                                 moved ? CAIRN_ERR_CORRUPT : 0);
        }
        Tensor *t = cover_begin(2, (uint64_t[]){4, 4});
        cover_block(t, (uint64_t[]){0, 0}, (uint64_t[]){4, 5});
        assert_int_equal(cover_end("behind the tensor"), CAIRN_ERR_CORRUPT);
        t = cover_begin(2, (uint64_t[]){4, 4});
        cover_block(t, (uint64_t[]){0, UINT64_MAX}, (uint64_t[]){4, 2});
        assert_int_equal(cover_end("behind the tensor"), CAIRN_ERR_CORRUPT);
        /* A pinwheel: no cut goes through, yet it is an exact cover. */
        t = cover_begin(2, (uint64_t[]){3, 3});
        cover_block(t, (uint64_t[]){0, 0}, (uint64_t[]){1, 2});
        cover_block(t, (uint64_t[]){0, 2}, (uint64_t[]){2, 1});
        cover_block(t, (uint64_t[]){2, 1}, (uint64_t[]){1, 2});
        cover_block(t, (uint64_t[]){1, 0}, (uint64_t[]){2, 1});
        cover_block(t, (uint64_t[]){1, 1}, (uint64_t[]){1, 1});
        assert_int_equal(cover_end(NULL), 0);
}

static void test_many_blocks_are_fast(void **state) {
        uint64_t begin = clock_now(&clock_system);
        Tensor *t = cover_begin(2, (uint64_t[]){64 * 3, 64 * 5});

        for (uint64_t i = 0; i < PARTS_MAX; i++)
                cover_block(t, (uint64_t[]){i / 64 * 3, i % 64 * 5}, (uint64_t[]){3, 5});
        assert_int_equal(cover_end(NULL), 0);
        assert_true(clock_now(&clock_system) - begin < 5 * NSEC_PER_SEC);
}

/* ---- merging ---- */

static void make_ranks(struct sample *ranks, struct file_content **manifests, uint32_t world) {
        for (uint32_t rank = 0; rank < world; rank++) {
                sample_init(&ranks[rank], "run", rank, world, 2, 100, 7);
                sample_standard(&ranks[rank]);
                sample_finish(&ranks[rank]);
                manifests[rank] = &ranks[rank].content;
        }
}

static void done_ranks(struct sample *ranks, uint32_t world) {
        for (uint32_t rank = 0; rank < world; rank++)
                sample_done(&ranks[rank]);
}

static void test_merge(void **state) {
        struct sample ranks[8];
        struct file_content *manifests[8], index;

        for (uint32_t world = 1; world <= 8; world++) {
                make_ranks(ranks, manifests, world);
                assert_int_equal(layout_merge(manifests, world, &ranks[0].arena, &index, NULL), 0);
                assert_int_equal(index.tensor_count, 6);
                assert_int_equal(index.state_count, world);
                assert_int_equal(index.head->world, world);
                assert_int_equal(index.head->tensor_count, 6);
                for (size_t i = 1; i < index.tensor_count; i++)
                        assert_true(memcmp(index.tensors[i - 1]->name.data,
                                           index.tensors[i]->name.data,
                                           index.tensors[i - 1]->name.len) <= 0);
                ptrdiff_t at = layout_find(&index, "m.wte", 5);
                assert_true(at >= 0);
                assert_int_equal(index.tensors[at]->n_extents, world);
                for (uint32_t rank = 0; rank < world; rank++)
                        assert_int_equal(index.tensors[at]->extents[rank]->rank, rank);
                assert_int_equal(layout_find(&index, "m.wt", 4), -1);
                assert_int_equal(layout_find(&index, "m.wtee", 6), -1);
                assert_int_equal(layout_find(&index, "", 0), -1);
                at = layout_find(&index, "wte", 3);
                assert_int_equal(index.tensors[at]->n_extents, 1);
                done_ranks(ranks, world);
        }
}

/* Leaves out of the manifests what their ranks do not write, as a saver does. */
static void trim(struct sample *r, uint32_t world) {
        for (uint32_t rank = 0; rank < world; rank++) {
                struct file_content *c = &r[rank].content;
                size_t kept = 0;
                c->head->replicated_digest = layout_digest_replicated(c->tensors, c->tensor_count,
                                                                      &c->head->replicated_count);
                for (size_t i = 0; i < c->tensor_count; i++)
                        if (layout_in_manifest(c->tensors[i], rank))
                                c->tensors[kept++] = c->tensors[i];
                c->head->tensor_count = c->tensor_count = kept;
        }
}

/* The index is the same, byte for byte. */
static void test_merge_without_what_others_wrote(void **state) {
        struct sample ranks[8];
        struct file_content *manifests[8], index;

        for (uint32_t world = 1; world <= 8; world++) {
                void *bytes[2];
                size_t count[2], records = 0;
                make_ranks(ranks, manifests, world);
                for (int i = 0; i < 2; i++) {
                        assert_int_equal(
                                layout_merge(manifests, world, &ranks[0].arena, &index, NULL), 0);
                        assert_int_equal(file_write(&index, &bytes[i], &count[i], NULL), 0);
                        trim(ranks, world);
                }
                assert_int_equal(count[0], count[1]);
                assert_memory_equal(bytes[0], bytes[1], count[0]);
                free(bytes[0]);
                free(bytes[1]);
                for (uint32_t rank = 0; rank < world; rank++)
                        records += manifests[rank]->tensor_count;
                assert_true(world == 1 || records < (size_t) 6 * world);
                assert_int_equal(manifests[0]->tensor_count, 6);
                done_ranks(ranks, world);
        }
}

/* A part without elements is left out, but for rank 0; one of an empty tensor is not. */
static void test_in_manifest(void **state) {
        Cairn__Format__Shard shard = CAIRN__FORMAT__SHARD__INIT;
        Tensor t = CAIRN__FORMAT__TENSOR__INIT;
        uint64_t shape = 7;

        t.shape = &shape;
        t.n_shape = 1;
        assert_true(layout_in_manifest(&t, 3)); /* a rank's own, whatever it is */
        t.shard = &shard;
        shard.flat = true;
        assert_false(layout_in_manifest(&t, 3));
        assert_true(layout_in_manifest(&t, 0));
        shape = 0;
        assert_true(layout_in_manifest(&t, 3));
        t.shard = NULL;
        t.replicated = true;
        assert_false(layout_in_manifest(&t, 3));
        assert_true(layout_in_manifest(&t, 0));
        t.n_extents = 1;
        assert_true(layout_in_manifest(&t, 3));
}

static int spoil_count;
static int merge_spoiled(void (*spoil)(struct sample *ranks), const char *word) {
        struct sample ranks[3];
        struct file_content *manifests[3], index;
        struct cairn_error e = CAIRN_ERROR_INIT;

        make_ranks(ranks, manifests, 3);
        spoil(ranks);
        int r = layout_merge(manifests, 3, &ranks[0].arena, &index, &e);
        done_ranks(ranks, 3);
        spoil_count++;
        if (r < 0 && !strstr(e.message, word))
                fail_msg("case %d: message is \"%s\"", spoil_count, e.message);
        return r;
}

static void spoil_step(struct sample *r) {
        r[1].content.head->step++;
}
static void spoil_generation(struct sample *r) {
        r[2].content.head->generation++;
}
static void spoil_attempt(struct sample *r) {
        r[1].content.head->attempt++;
}
static void spoil_world(struct sample *r) {
        r[2].content.head->world = 4;
}
static void spoil_rank(struct sample *r) {
        r[2].content.head->rank = 1;
}
static void spoil_run(struct sample *r) {
        r[2].content.head->run = sample_text(&r[2], "other");
}
static void spoil_shape(struct sample *r) {
        r[1].content.tensors[0]->shape[0] = 10;
}
static void spoil_role(struct sample *r) {
        r[1].content.tensors[0]->role = CAIRN_BUFFER;
}
static void spoil_stored(struct sample *r) {
        r[1].content.tensors[2]->stored_dtype = CAIRN_BF16;
}
static void spoil_truth(struct sample *r) {
        r[1].content.tensors[4]->true_step++;
}
static void spoil_owner(struct sample *r) {
        r[0].content.tensors[0]->n_extents = 0;
        r[0].content.head->tensor_bytes -= 90;
}
static void spoil_flat(struct sample *r) {
        r[1].content.tensors[2]->extents[0]->shard->flat_start++;
}

static void spoil_registered(struct sample *r) {
        trim(r, 3);
        r[2].content.head->replicated_digest++;
}
static void spoil_registered_count(struct sample *r) {
        trim(r, 3);
        r[1].content.head->replicated_count--;
}
/* Each rank takes another one for the owner: nobody's manifest has it. */
static void spoil_lost(struct sample *r) {
        trim(r, 3);
        for (size_t i = 0; i < 3; i++) {
                struct file_content *c = &r[i].content;
                for (size_t k = 0; k < c->tensor_count; k++)
                        if (c->tensors[k]->name.len == 3 &&
                            memcmp(c->tensors[k]->name.data, "wte", 3) == 0)
                                c->tensors[k--] = c->tensors[--c->tensor_count];
        }
}

static void test_merge_refuses(void **state) {
        assert_int_equal(merge_spoiled(spoil_step, "another step"), CAIRN_ERR_CORRUPT);
        assert_int_equal(merge_spoiled(spoil_generation, "another generation"), CAIRN_ERR_CORRUPT);
        assert_int_equal(merge_spoiled(spoil_attempt, "another attempt"), CAIRN_ERR_CORRUPT);
        assert_int_equal(merge_spoiled(spoil_world, "number of ranks"), CAIRN_ERR_CORRUPT);
        assert_int_equal(merge_spoiled(spoil_rank, "another rank"), CAIRN_ERR_CORRUPT);
        assert_int_equal(merge_spoiled(spoil_run, "another run"), CAIRN_ERR_CORRUPT);
        assert_int_equal(merge_spoiled(spoil_shape, "another shape"), CAIRN_ERR_CORRUPT);
        assert_int_equal(merge_spoiled(spoil_role, "another role"), CAIRN_ERR_CORRUPT);
        assert_int_equal(merge_spoiled(spoil_stored, "another stored type"), CAIRN_ERR_CORRUPT);
        assert_int_equal(merge_spoiled(spoil_truth, "another true step"), CAIRN_ERR_CORRUPT);
        assert_int_equal(merge_spoiled(spoil_owner, "no rank has written it"), CAIRN_ERR_CORRUPT);
        assert_int_equal(merge_spoiled(spoil_flat, "covered by no rank"), CAIRN_ERR_CORRUPT);
        assert_int_equal(merge_spoiled(spoil_registered, "rank 2 has registered other replicated"),
                         CAIRN_ERR_CORRUPT);
        assert_int_equal(
                merge_spoiled(spoil_registered_count, "rank 1 has registered other replicated"),
                CAIRN_ERR_CORRUPT);
        assert_int_equal(merge_spoiled(spoil_lost, "their manifests have"), CAIRN_ERR_CORRUPT);
}

/* A replica that fell back stores f32 where the others only say bf16 was asked for. */
static void test_merge_takes_the_writers_encoding(void **state) {
        struct sample ranks[2];
        struct file_content *manifests[2], index;

        for (uint32_t rank = 0; rank < 2; rank++) {
                sample_init(&ranks[rank], "run", rank, 2, 1, 5, 1);
                Tensor *t = sample_tensor(&ranks[rank], "ema", CAIRN_EMA, CAIRN_F32, 1,
                                          (uint64_t[]){8});
                t->replicated = true;
                t->stored_dtype = CAIRN_BF16;
                if (rank == 0) {
                        sample_disown(&ranks[rank], t);
                } else {
                        t->stored_dtype = CAIRN_F32;
                        t->encoding = sample_memory(&ranks[rank], sizeof *t->encoding);
                        cairn__format__encoding__init(t->encoding);
                        t->encoding->fell_back = true;
                        t->encoding->asked_dtype = CAIRN_BF16;
                }
                sample_finish(&ranks[rank]);
                manifests[rank] = &ranks[rank].content;
        }
        assert_int_equal(layout_merge(manifests, 2, &ranks[0].arena, &index, NULL), 0);
        assert_int_equal(index.tensors[0]->stored_dtype, CAIRN_F32);
        assert_true(index.tensors[0]->encoding->fell_back);
        done_ranks(ranks, 2);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(b09_empty_tensors_shift_nothing),
                cmocka_unit_test(test_image_too_large),
                cmocka_unit_test(test_owners_at_every_world_size),
                cmocka_unit_test(test_flat_parts),
                cmocka_unit_test(test_whole_and_mixed),
                cmocka_unit_test(test_copies),
                cmocka_unit_test(test_blocks),
                cmocka_unit_test(test_many_blocks_are_fast),
                cmocka_unit_test(test_merge),
                cmocka_unit_test(test_merge_without_what_others_wrote),
                cmocka_unit_test(test_in_manifest),
                cmocka_unit_test(test_merge_refuses),
                cmocka_unit_test(test_merge_takes_the_writers_encoding),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
