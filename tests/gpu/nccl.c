/* SPDX-License-Identifier: Apache-2.0
 *
 * NCCL: a communicator whose peer never comes ends in time and names it; a rank alone sums; where
 * there are two GPUs, two ranks do, and a killed one is noticed. In the short form the library may
 * be a scripted one over host memory.
 */
#include "base/clock.h"
#include "comm/comm.h"
#include "tests/gpu/step.h"
#include "tests/unit/comm_group.h"

#include <dlfcn.h>

enum { COUNT = 1 << 20 };

static uint64_t missing_ns(void) {
        return step_choose(5, 1) * NSEC_PER_SEC;
}

static struct step s; /* of a rank's process */
static struct cuda_context *context;

static const struct device_ops *ops(void) {
        return step_brief() ? &device_host : &device_cuda;
}

static void make_current(void *unused) {
        if (context)
                (void) s.cuda->CtxSetCurrent(context);
}

static struct comm_options options(struct group *g, int rank) {
        struct comm_options o = group_options(g, rank);
        struct cairn_error *e = &g->ranks[rank].error;
        int device, ordinal = rank;
        RANK_CHECK(setenv("NCCL_SOCKET_IFNAME", "lo", 0) == 0);
        if (ops() == &device_cuda) {
                RANK_OK(cuda_driver_load(&s.cuda, e));
                int count = 0;
                RANK_CHECK(s.cuda->DeviceGetCount(&count) == CUDA_OK);
                if (ordinal >= count) /* of a missing peer there need be no GPU */
                        ordinal = 0;
        }
        RANK_OK(ops()->open(ops() == &device_cuda ? ordinal : 0, &s.device, e));
        if (ops() == &device_cuda) {
                RANK_CHECK(s.cuda->DeviceGet(&device, ordinal) == CUDA_OK);
                RANK_CHECK(s.cuda->DevicePrimaryCtxRetain(&context, device) == CUDA_OK);
                make_current(NULL);
                o.queue = step_stream(&s);
        }
        o.device = s.device;
        o.thread_begin = make_current;
        return o;
}

/* ---- bodies ---- */

static void meet_nobody(struct group *g, int rank) {
        struct comm_options o = options(g, rank);
        struct comm *c = NULL;
        o.bootstrap_ns = missing_ns();
        RANK_TIMED(comm_new(&o, &c, error_));
        _exit(g->ranks[rank].status == CAIRN_ERR_FATAL ? COMM_EXIT_HUNG : 0);
}

static void sum(struct group *g, struct comm *c, int rank) {
        struct device_memory m;
        struct cairn_error *e = &g->ranks[rank].error;
        float *host = malloc(COUNT * sizeof *host);
        RANK_CHECK(host);
        for (int i = 0; i < COUNT; i++)
                host[i] = (float) (i % 1000 + rank);
        RANK_OK(s.device->ops->allocate(s.device, COUNT * sizeof *host, &m, e));
        RANK_OK(s.device->ops->copy_async(s.device, NULL, m.address, host, COUNT * sizeof *host,
                                          e));
        RANK_OK(s.device->ops->synchronize(s.device, step_deadline(), e));
        RANK_OK(comm_all_reduce(c, m.address, COUNT, CAIRN_F32, e));
        RANK_OK(s.device->ops->copy_async(s.device, NULL, host, m.address, COUNT * sizeof *host,
                                          e));
        RANK_OK(s.device->ops->synchronize(s.device, step_deadline(), e));
        int ranks = g->world * (g->world - 1) / 2;
        for (int i = 0; i < COUNT; i++)
                RANK_CHECK(host[i] == (float) (g->world * (i % 1000) + ranks));
        s.device->ops->release(s.device, &m);
        free(host);
}

static void meet_and_sum(struct group *g, int rank) {
        struct comm_options o = options(g, rank);
        struct comm *c = NULL;
        o.collective_ns = 20 * NSEC_PER_SEC;
        RANK_TIMED(comm_new(&o, &c, error_));
        if (g->ranks[rank].status < 0)
                return;
        printf("%s\n", comm_describe(c));
        (void) fflush(stdout);
        sum(g, c, rank);
        RANK_OK(comm_barrier(c, &g->ranks[rank].error));
        (void) comm_free(c);
}

/* Rank 1 dies; rank 0 waits for it no longer than it may. */
static void lose_a_rank(struct group *g, int rank) {
        struct comm_options o = options(g, rank);
        struct comm *c = NULL;
        struct device_memory m;
        RANK_OK(comm_new(&o, &c, error_));
        RANK_OK(s.device->ops->allocate(s.device, 4096, &m, &g->ranks[rank].error));
        RANK_OK(comm_barrier(c, &g->ranks[rank].error));
        if (rank == 1)
                (void) raise(SIGKILL);
        RANK_TIMED(comm_all_reduce(c, m.address, 1024, CAIRN_F32, error_));
        _exit(0);
}

/* ---- tests ---- */

static void a_missing_peer_is_named_in_time(void **state) {
        for (int there = 0; there < 2; there++) {
                struct group g;
                char text[64];
                group_init(&g, "nccl", 2);
                group_start(&g, there, meet_nobody);
                assert_int_equal(group_wait(&g, there, 40), 0);
                (void) snprintf(text, sizeof text, "missing: rank %d", 1 - there);
                group_assert_error(&g, there, CAIRN_ERR_TIMEOUT, "init", text);
                group_assert_in_time(&g, there, (double) missing_ns() / (double) NSEC_PER_SEC);
                step_figure(there ? "given_up_by_rank_1" : "given_up_by_rank_0",
                            group_seconds(&g, there), "s");
                group_done(&g);
        }
}

static void ranks_sum(int world) {
        struct group g;
        group_init(&g, "nccl", world);
        group_run(&g, meet_and_sum);
        for (int rank = 0; rank < world; rank++)
                group_assert_error(&g, rank, 0, "", "");
        step_figure(world == 1 ? "meet_one_rank" : "meet_two_ranks", group_seconds(&g, 0), "s");
        group_done(&g);
}

static void a_rank_alone_sums(void **state) {
        ranks_sum(1);
}

static void two_ranks_sum(void **state) {
        ranks_sum(2);
}

static void a_killed_rank_is_noticed(void **state) {
        struct group g;
        group_init(&g, "nccl", 2);
        group_start(&g, 0, lose_a_rank);
        group_start(&g, 1, lose_a_rank);
        int status = group_wait(&g, 1, 60);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        assert_int_equal(group_wait(&g, 0, 60), 0);
        assert_true(g.ranks[0].status == CAIRN_ERR_TIMEOUT || g.ranks[0].status == CAIRN_ERR_PEER);
        group_assert_in_time(&g, 0, 2);
        step_figure("dead_rank_noticed", group_seconds(&g, 0), "s");
        group_done(&g);
}

/* In a child: a context does not survive the forks of the tests. */
static void count_gpus(void *unused) {
        const struct cuda_driver *cuda;
        int count = 0;
        if (cuda_driver_load(&cuda, NULL) == 0)
                (void) cuda->DeviceGetCount(&count);
        _exit(count);
}

int main(void) {
        const char *given = getenv("CAIRN_LIBNCCL");
        const struct CMUnitTest alone[] = {
                cmocka_unit_test(a_missing_peer_is_named_in_time),
                cmocka_unit_test(a_rank_alone_sums),
        };
        const struct CMUnitTest together[] = {
                cmocka_unit_test(two_ranks_sum),
                cmocka_unit_test(a_killed_rank_is_noticed),
        };
        if (!dlopen(given && *given ? given : "libnccl.so.2", RTLD_LAZY))
                step_skip("no libnccl.so.2: neither a toolkit nor a Python environment has it");
        int status = test_in_child(count_gpus, NULL);
        int gpus = step_brief() ? 2 : WIFEXITED(status) ? WEXITSTATUS(status) : 0;
        step_figure("ranks_tried", gpus < 2 ? 1 : 2, "");
        int failed = cmocka_run_group_tests(alone, NULL, NULL);
        if (gpus >= 2)
                failed += cmocka_run_group_tests(together, NULL, NULL);
        return failed == 0 ? 0 : 1;
}
