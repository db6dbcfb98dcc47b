/* SPDX-License-Identifier: Apache-2.0
 *
 * comm_group.h - a few ranks as processes of this machine, which meet in a folder: for the tests of
 * communicators. A rank's body runs in a child; what it leaves in its place of `ranks` is shared.
 */
#ifndef CAIRN_TESTS_COMM_GROUP_H
#define CAIRN_TESTS_COMM_GROUP_H

#include "comm/comm.h"
#include "tests/test.h"

enum { GROUP_RANKS_MAX = 8, GROUP_MARKS = 8 };

struct group_rank {
        int status;
        struct cairn_error error;
        uint64_t begin_ns, end_ns;       /* set by the body */
        volatile int marks[GROUP_MARKS]; /* what the body tells the test, and it the body */
        uint64_t values[4];
};

/* A store in a folder; see comm_store. Its file "generation" holds the newest one's number. */
struct dir_store {
        char path[256];
        volatile int *silent; /* set: it does not answer */
};

struct group {
        struct dir_store store;
        int world;
        const char *back_end;
        pid_t pids[GROUP_RANKS_MAX];
        struct group_rank *ranks;
};

struct comm_store dir_store_verbs(struct dir_store *s);
void dir_store_set_generation(const struct dir_store *s, uint64_t generation);

void group_init(struct group *g, const char *back_end, int world);
void group_done(struct group *g); /* kills those that still run */
/* Limits of two seconds, half a minute to meet, generation 7, the loopback interface. */
struct comm_options group_options(struct group *g, int rank);
/* Starts the rank's body; a body that returns ends with exit status 0. */
void group_start(struct group *g, int rank, void (*body)(struct group *g, int rank));
/* Its wait status, within so many seconds; fails the test otherwise. */
int group_wait(struct group *g, int rank, double seconds);
void group_run(struct group *g, void (*body)(struct group *g, int rank)); /* all of them */
/* Waits until the mark is set. */
void group_await(struct group *g, int rank, int mark);
double group_seconds(const struct group *g, int rank); /* from begin_ns to end_ns */

/* A limit is a promise of comm.h; two more seconds for a machine that is busy. */
void group_assert_in_time(const struct group *g, int rank, double limit);
/* What RANK_TIMED left there: the status, and parts of the error's operation and message. */
void group_assert_error(const struct group *g, int rank, int status, const char *operation,
                        const char *part);
void group_hang(void) __attribute__((noreturn)); /* in a body: until it is killed */

/* In bodies: ends the process with 1 and says what is wrong. */
#define RANK_CHECK(condition)                                                                  \
        do {                                                                                   \
                if (!(condition)) {                                                            \
                        (void) fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
                        _exit(1);                                                              \
                }                                                                              \
        } while (0)
#define RANK_OK(call)                                                                            \
        do {                                                                                     \
                char text_[1024];                                                                \
                struct cairn_error *error_ = &g->ranks[rank].error;                              \
                if ((call) < 0) {                                                                \
                        (void) fprintf(stderr, "%s:%d: rank %d: %s\n", __FILE__, __LINE__, rank, \
                                       error_format(error_, text_, sizeof text_));               \
                        _exit(1);                                                                \
                }                                                                                \
        } while (0)

/* The body's call, timed; what it gave is left in the rank's place. */
#define RANK_TIMED(call)                                            \
        do {                                                        \
                struct cairn_error *error_ = &g->ranks[rank].error; \
                g->ranks[rank].begin_ns = clock_now(&clock_system); \
                g->ranks[rank].status = (call);                     \
                g->ranks[rank].end_ns = clock_now(&clock_system);   \
        } while (0)

#endif
