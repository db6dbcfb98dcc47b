/* SPDX-License-Identifier: Apache-2.0
 *
 * kill_parts.h - what the files of kill_driver share: one driver, which starts runs, does harm to
 * their processes and judges what comes of it. kill_driver.c calls the others in this order:
 *
 *     next_run -> start_runner -> fault_choose -> fault_begin -> (time passes) -> fault_end
 *              -> check_log, check_store
 *     steps_follow whenever there is a moment
 *
 * One thread; everything belongs to the driver. Times are nanoseconds of the monotonic clock.
 */
#ifndef CAIRN_E2E_KILL_PARTS_H
#define CAIRN_E2E_KILL_PARTS_H

#include "base/clock.h"
#include "base/limits.h"
#include "format/scan.h"
#include "tests/e2e/processes.h"

#define KEEP_LAST 3
#define STEPS "600"
#define STEPS_LAST 600
/* The gate's deadline of a model so small, and what a busy machine may add to a step. Where it held
 * up this driver for longer nothing is said of the steps of that time. */
#define GATE_NS (2 * NSEC_PER_SEC)
#define GATE_MARGIN_NS (1 * NSEC_PER_SEC)
enum {
        DRIVER_PATH_BYTES = 4096,
        DESCENDANTS_MAX = 256,
        LINE_BYTES = 512,
        STOPPED_MAX = 16,
        OUTAGES_MAX = 16,
        KINDS_ALL = 1 << PROCESS_RUNNER | 1 << PROCESS_AGENT | 1 << PROCESS_SAVER |
                    1 << PROCESS_STORE | 1 << PROCESS_TRAINER
};

struct committed {
        char name[NAME_BYTES];
        int64_t step;
        uint64_t generation;
};

/* What one round does; kinds are bits 1 << enum process_kind. */
struct fault {
        unsigned kill, stop;
        bool hang;         /* the store answers nothing */
        uint64_t kill_ns;  /* after the stops and the hang began */
        uint64_t until_ns; /* SIGCONT and storage that answers: so long after they began */
};
struct victim {
        int pidfd;
        enum process_kind kind;
};

/* Between one fault and the next one gate may expire. */
struct outage {
        uint64_t begin_ns;
        bool paid;
};

/* The log as it grows. */
struct steps {
        uint64_t offset;  /* of the first byte that was not read yet */
        int64_t step;     /* of the line before it; valid while any */
        double seconds;   /* of that line */
        bool any;         /* in this life of the trainer */
        uint64_t zero_ns; /* when the log's second 0 was, in this life; UINT64_MAX: unknown */
        struct outage outages[OUTAGES_MAX]; /* the newest, by count % OUTAGES_MAX */
        uint64_t outage_count;
        uint64_t stop_begin_ns, stop_end_ns; /* the trainer's last stop; begin 0: none */
        uint64_t looked_ns;                  /* at the log */
        uint64_t held_begin_ns, held_end_ns; /* between two such looks; end 0: never so long */
        uint64_t longest_ns, expired; /* expired: steps that took the gate's deadline or longer */
};

struct driver {
        const char *bin, *work;
        uint64_t random, seed;
        unsigned run_number;
        char run[32];
        char log[DRIVER_PATH_BYTES], output[DRIVER_PATH_BYTES], reference[DRIVER_PATH_BYTES];
        /* [0] an ordinary store, [1] one that can hang, NULL where no such can be mounted;
         * read_stores: the same past what hangs. */
        const char *stores[2], *read_stores[2], *weather;
        bool on_hanging_store; /* the present run */
        pid_t runner;          /* 0: none */
        bool runner_killed;    /* by us: its end says nothing */
        pid_t snapshot;        /* a `cairn snapshot --wait` under way; 0: none */
        unsigned snapshot_run; /* its run's number */
        bool is_probe; /* it was started after the kill: its success shows that all is well */
        char answer[DRIVER_PATH_BYTES];
        struct committed reported;    /* newest; name "" if none */
        struct committed must_resume; /* what had been reported when the last kill came */
        struct victim stopped[STOPPED_MAX];
        size_t stopped_count;
        struct steps steps;
        uint64_t rounds, commits, probes, runs_done, store_hangs;
        uint64_t kills[PROCESS_KIND_COUNT], stops[PROCESS_KIND_COUNT];
        uint64_t stuck[PROCESS_KIND_COUNT]; /* killed, and still there */
        uint64_t recovery_ns;
        uint64_t torn, lost, hangs, broken, late;
};

/* ---- kill_driver.c ---- */
void say(struct driver *d, const char *format, ...) __attribute__((format(printf, 2, 3)));
uint64_t random_next(struct driver *d);
uint64_t now_ns(void);
/* What runs below this process, this process excluded. */
size_t descendants(struct process_entry *tree);
int64_t last_step(const struct driver *d);

/* ---- kill_start.c ---- */
/* The log that an undisturbed trainer writes. */
bool make_reference(struct driver *d);
/* The next run's names; every other one on the store that can hang. */
void next_run(struct driver *d);
void start_runner(struct driver *d);
void start_snapshot(struct driver *d, bool is_probe);
/* What `cairn status` says, to standard output. */
void say_status(struct driver *d);

/* ---- kill_faults.c ---- */
struct fault fault_choose(struct driver *d);
/* Stops and hang; then fault_kill after fault->kill_ns, then fault_end after fault->until_ns. */
void fault_begin(struct driver *d, const struct fault *fault);
/* Returns whether agents were left when `cairn run` was killed; true if it was not. */
bool fault_kill(struct driver *d, unsigned kinds);
/* The storage answers again, and who was stopped goes on. */
void fault_end(struct driver *d);

/* ---- kill_oracle.c ---- */
/* `cairn run` or a snapshot said that this is committed. */
void note_committed(struct driver *d, const char *name, int64_t step);
/* Each complete line of the log has to be the reference's; `whole`: and none is missing. */
void check_log(struct driver *d, bool whole);
/* Every checkpoint verifies, what was reported is there, the newest generation's parent is not
 * older than what had been reported. */
void check_store(struct driver *d);

/* ---- kill_steps.c ---- */
void steps_forget(struct steps *steps); /* another log begins */
void steps_outage(struct steps *steps);
/* Judge the lines that were added. */
void steps_follow(struct driver *d);

#endif
