/* SPDX-License-Identifier: Apache-2.0
 *
 * comm/nccl_abi.h against NVIDIA's header, where that and CUDA's are installed.
 */
#include "comm/nccl_abi.h"
#include "tests/test.h"

#if defined(__has_include)
#if __has_include(<nccl.h>) && __has_include(<cuda_runtime.h>)
#define HAS_HEADER
#endif
#endif

#ifdef HAS_HEADER
#include <nccl.h>

#define SAME(ours, theirs) _Static_assert((int) (ours) == (int) (theirs), #ours " is " #theirs)
SAME(NCCL_OK, ncclSuccess);
SAME(NCCL_CUDA_ERROR, ncclUnhandledCudaError);
SAME(NCCL_SYSTEM_ERROR, ncclSystemError);
SAME(NCCL_INTERNAL_ERROR, ncclInternalError);
SAME(NCCL_INVALID_ARGUMENT, ncclInvalidArgument);
SAME(NCCL_INVALID_USAGE, ncclInvalidUsage);
SAME(NCCL_REMOTE_ERROR, ncclRemoteError);
SAME(NCCL_IN_PROGRESS, ncclInProgress);
SAME(NCCL_UINT8, ncclUint8);
SAME(NCCL_INT64, ncclInt64);
SAME(NCCL_FLOAT16, ncclFloat16);
SAME(NCCL_FLOAT32, ncclFloat32);
SAME(NCCL_FLOAT64, ncclFloat64);
SAME(NCCL_BFLOAT16, ncclBfloat16);
SAME(NCCL_SUM, ncclSum);
SAME(NCCL_ABI_UNDEFINED, NCCL_CONFIG_UNDEF_INT);
SAME(sizeof(struct nccl_id), sizeof(ncclUniqueId));
SAME(_Alignof(struct nccl_id), _Alignof(ncclUniqueId));
SAME(sizeof(enum nccl_result), sizeof(ncclResult_t));
SAME(sizeof(int), sizeof(ncclResult_t)); /* as our prototypes have it */
SAME(sizeof(int), sizeof(ncclDataType_t));
SAME(sizeof(int), sizeof(ncclRedOp_t));
SAME(sizeof(void *), sizeof(cudaStream_t));
#define SAME_MEMBER(ours, theirs)                                                 \
        SAME(offsetof(struct nccl_config, ours), offsetof(ncclConfig_t, theirs)); \
        SAME(sizeof(((struct nccl_config *) 0)->ours), sizeof(((ncclConfig_t *) 0)->theirs))
SAME_MEMBER(size, size);
SAME_MEMBER(magic, magic);
SAME_MEMBER(version, version);
SAME_MEMBER(blocking, blocking);
SAME_MEMBER(cga_cluster_size, cgaClusterSize);
_Static_assert(sizeof(struct nccl_config) <= sizeof(ncclConfig_t), "a part of theirs");

/* Each function takes what our prototypes pass: integers of an enum's size, pointers, the id. */
static void prototypes(struct nccl_id *id, int *n, ncclComm_t comm, const char *text) {
        (void) ncclGetVersion(n);
        (void) ncclGetUniqueId((ncclUniqueId *) id);
        (void) ncclCommInitRankConfig(&comm, 1, *(ncclUniqueId *) id, 0, (ncclConfig_t *) NULL);
        (void) ncclCommAbort(comm);
        (void) ncclCommGetAsyncError(comm, (ncclResult_t *) NULL);
        (void) ncclGetErrorString(ncclSuccess);
        (void) ncclGetLastError(comm);
        (void) ncclAllReduce(text, n, sizeof *n, ncclInt64, ncclSum, comm, NULL);
        (void) ncclReduceScatter(text, n, sizeof *n, ncclInt64, ncclSum, comm, NULL);
        (void) ncclAllGather(text, n, sizeof *n, ncclInt64, comm, NULL);
        (void) ncclBroadcast(text, n, sizeof *n, ncclInt64, 0, comm, NULL);
        (void) ncclGroupStart();
        (void) ncclGroupEnd();
}

static void numbers(void **state) {
        const ncclConfig_t theirs = NCCL_CONFIG_INITIALIZER;
        assert_int_equal(theirs.magic, NCCL_ABI_MAGIC);
        assert_int_equal(NCCL_VERSION(2, 14, 0), NCCL_ABI_VERSION_MIN);
        (void) sizeof(&prototypes);
}

int main(void) {
        const struct CMUnitTest tests[] = {cmocka_unit_test(numbers)};
        return cmocka_run_group_tests(tests, NULL, NULL);
}
#else
int main(void) {
        printf("nccl.h and cuda_runtime.h are not both installed\n");
        return 77;
}
#endif
