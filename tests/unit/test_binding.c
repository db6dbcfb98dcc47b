/* SPDX-License-Identifier: Apache-2.0
 *
 * What is judged against what a checkpoint of several ranks holds; the single-rank rules are in
 * test_restore.c.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "client/binding.h"

enum { TENSORS_MAX = 4 };

struct fixture {
        struct device *device;
        struct slabs slabs;
        struct registry registry;
        float *data;
        struct stored stored;
        Cairn__Format__Tensor tensors[TENSORS_MAX], *list[TENSORS_MAX];
        Cairn__Format__Extent extents[TENSORS_MAX], *extent_lists[TENSORS_MAX];
        Cairn__Format__Head head;
        Cairn__Format__State states[2], *state_list[2];
        uint64_t shape[1];
        struct binding_request request;
        struct binding binding;
};

static ProtobufCBinaryData text(const char *s) {
        return (ProtobufCBinaryData){strlen(s), (uint8_t *) (uintptr_t) s};
}

static int set_up(void **state) {
        struct fixture *f = calloc(1, sizeof *f);
        *state = f;
        (void) device_host.open(0, &f->device, NULL);
        slabs_init(&f->slabs, f->device);
        (void) registry_init(&f->registry);
        (void) slabs_allocate(&f->slabs, 4096, (void **) &f->data, NULL, NULL);
        f->shape[0] = 3;
        cairn__format__head__init(&f->head);
        f->head.run = text("run");
        f->head.world = 2;
        f->stored.index = (struct file_content){.kind = FILE_INDEX,
                                                .head = &f->head,
                                                .tensors = f->list,
                                                .states = f->state_list,
                                                .state_count = 2};
        for (uint32_t i = 0; i < 2; i++) {
                cairn__format__state__init(&f->states[i]);
                f->states[i].rank = i;
                f->state_list[i] = &f->states[i];
        }
        f->request =
                (struct binding_request){.start = CAIRN_START_RESUME, .run = "run", .world = 2};
        return 0;
}
static int tear_down(void **state) {
        struct fixture *f = *state;
        binding_done(&f->binding);
        registry_done(&f->registry);
        slabs_done(&f->slabs);
        device_host.close(f->device);
        free(f);
        return 0;
}

/* Names must be added in order. */
static Cairn__Format__Tensor *store(struct fixture *f, const char *name, uint32_t rank) {
        size_t i = f->stored.index.tensor_count++;
        Cairn__Format__Tensor *t = f->list[i] = &f->tensors[i];
        cairn__format__tensor__init(t);
        cairn__format__extent__init(&f->extents[i]);
        f->extents[i].rank = rank;
        f->extents[i].bytes = 12;
        f->extent_lists[i] = &f->extents[i];
        t->name = text(name);
        t->role = CAIRN_PARAMETER;
        t->runtime_dtype = t->stored_dtype = CAIRN_F32;
        t->shape = f->shape;
        t->n_shape = 1;
        t->extents = &f->extent_lists[i];
        t->n_extents = 1;
        return t;
}

static void declare(struct fixture *f, const char *name, const char *alias_of) {
        struct cairn_tensor t = {CAIRN_TENSOR_INIT,  .name = name,        .role = CAIRN_PARAMETER,
                                 .dtype = CAIRN_F32, .rank = 1,           .shape = {3},
                                 .data = f->data,    .alias_of = alias_of};
        assert_int_equal(registry_add_tensor(&f->registry, &f->slabs, &t, NULL), 0);
}

static void make(struct fixture *f, size_t problems) {
        assert_int_equal(binding_make(&f->binding, &f->stored, &f->request, &f->registry, NULL), 0);
        if (f->binding.problems.item_count != problems)
                print_error("%s", textbuf_string(&f->binding.problems));
        assert_int_equal(f->binding.problems.item_count, problems);
}

static void other_ranks_tensors_are_no_extras(void **state) {
        struct fixture *f = *state;
        store(f, "mine", 0);
        store(f, "theirs", 1);
        declare(f, "mine", NULL);
        make(f, 0);
        assert_int_equal(f->binding.load_count, 1);
}

/* Of a rank that is no more: left out, and said. */
static void lost_ranks_tensors_are_told(void **state) {
        struct fixture *f = *state;
        store(f, "mine", 0);
        store(f, "theirs", 1);
        declare(f, "mine", NULL);
        f->request.world = 1;
        make(f, 0);
        assert_int_equal(f->binding.load_count, 1);
        assert_string_equal(textbuf_string(&f->binding.skipped),
                            "tensor theirs: of rank 1, of which there is none now\n");
}

/* Neither has extents that say whose it is. */
static void other_ranks_tied_and_empty_are_no_extras(void **state) {
        struct fixture *f = *state;
        store(f, "empty", 1)->n_extents = 0;
        store(f, "mine", 0);
        store(f, "theirs", 1);
        Cairn__Format__Tensor *tied = store(f, "tied", 1);
        tied->alias_of = text("theirs");
        tied->n_extents = 0;
        declare(f, "mine", NULL);
        make(f, 0);
        assert_int_equal(f->binding.load_count, 1);
        assert_int_equal(f->binding.skipped.item_count, 0);
        binding_done(&f->binding);
        f->request.rank = 1;
        make(f, 2); /* it lacks its own ones */
}

static void replicated_extras_are(void **state) {
        struct fixture *f = *state;
        store(f, "mine", 0);
        store(f, "theirs", 1)->replicated = 1;
        declare(f, "mine", NULL);
        make(f, 1);
}

static void declare_replicated(struct fixture *f, const char *name, bool replicated) {
        declare(f, name, NULL);
        f->registry.tensors[f->registry.tensor_count - 1].replicated = replicated;
}

/* All ranks hold the same weights: each finds that none fits, and refuses. */
static void init_from_of_nothing_is_refused(void **state) {
        static uint64_t other_shape[1] = {4};
        struct fixture *f = *state;
        f->request.start = CAIRN_START_INIT_FROM;
        store(f, "old", 0)->replicated = 1;
        Cairn__Format__Tensor *w = store(f, "w", 0);
        w->replicated = 1;
        w->shape = other_shape;
        declare_replicated(f, "w", true);
        declare_replicated(f, "new", true);
        for (uint32_t rank = 0; rank < 2; rank++) {
                f->request.rank = rank;
                make(f, 3);
                assert_string_equal(
                        textbuf_string(&f->binding.problems),
                        "tensor w: the checkpoint has shape [4], the trainer [3]\n"
                        "tensor new: the checkpoint lacks it, the trainer has shape [3]\n"
                        "tensor old: the checkpoint has shape [3], the trainer lacks it\n");
                binding_done(&f->binding);
        }
        /* One that fits is enough. */
        w->shape = f->shape;
        make(f, 0);
        assert_int_equal(f->binding.load_count, 1);
        assert_int_equal(f->binding.skipped.item_count, 2);
}

static void init_from_without_weights_is_refused(void **state) {
        struct fixture *f = *state;
        f->request.start = CAIRN_START_INIT_FROM;
        store(f, "v", 0)->role = CAIRN_MOMENT2;
        make(f, 1);
}

/* A weight of another rank's own may be loaded there, though nothing is here; not where there is no
 * other rank. */
static void init_from_may_load_on_another_rank(void **state) {
        struct fixture *f = *state;
        f->request.start = CAIRN_START_INIT_FROM;
        store(f, "theirs", 1);
        declare_replicated(f, "w", true);
        make(f, 0);
        assert_int_equal(f->binding.skipped.item_count, 2);
        binding_done(&f->binding);
        f->request.world = 1;
        make(f, 2);
        binding_done(&f->binding);
        f->request.world = 2;
        f->tensors[0].replicated = 1;
        make(f, 2);
        binding_done(&f->binding);
        f->registry.tensors[0].replicated = false;
        make(f, 0);
}

static void ties_must_agree(void **state) {
        struct fixture *f = *state;
        store(f, "a", 0);
        Cairn__Format__Tensor *b = store(f, "b", 0);
        b->alias_of = text("a");
        b->n_extents = 0;
        declare(f, "a", NULL);
        declare(f, "b", NULL);
        make(f, 1);
        assert_non_null(strstr(textbuf_string(&f->binding.problems),
                               "tensor b: tied to a in the checkpoint, to nothing in the trainer"));
}

static void ties_load_once(void **state) {
        struct fixture *f = *state;
        store(f, "a", 0);
        Cairn__Format__Tensor *b = store(f, "b", 0);
        b->alias_of = text("a");
        b->n_extents = 0;
        declare(f, "a", NULL);
        declare(f, "b", "a");
        make(f, 0);
        assert_int_equal(f->binding.load_count, 1);
}

static void another_runs_checkpoint_is_foreign(void **state) {
        struct fixture *f = *state;
        f->head.run = text("other");
        make(f, 1);
        assert_non_null(strstr(textbuf_string(&f->binding.problems), "of run other, this is run"));
}

static void a_changed_world_is_told(void **state) {
        struct fixture *f = *state;
        f->request.world = 3;
        f->request.rank = 2; /* new: it takes the first rank's values */
        make(f, 0);
        assert_string_equal(textbuf_string(&f->binding.changes), "world 2 -> 3\n");
        assert_int_equal(f->binding.differs.item_count, 1);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void) {
        const struct CMUnitTest tests[] = {
                TEST(other_ranks_tensors_are_no_extras),
                TEST(lost_ranks_tensors_are_told),
                TEST(other_ranks_tied_and_empty_are_no_extras),
                TEST(replicated_extras_are),
                TEST(init_from_of_nothing_is_refused),
                TEST(init_from_without_weights_is_refused),
                TEST(init_from_may_load_on_another_rank),
                TEST(ties_must_agree),
                TEST(ties_load_once),
                TEST(another_runs_checkpoint_is_foreign),
                TEST(a_changed_world_is_told),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
