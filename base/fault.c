/* SPDX-License-Identifier: Apache-2.0 */
#include "base/fault.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/limits.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { FAULTS_ARMED_MAX = 32, ERRNO_MAX = 4095 };

enum fault_action { FAULT_ERROR, FAULT_CRASH, FAULT_STOP, FAULT_DELAY };

static const char *const action_names[] = {"error", "crash", "stop", "delay"};

static const char *const point_names[] = {
#define FAULT_TEXT(name, text) text,
        FAULT_POINTS(FAULT_TEXT)
#undef FAULT_TEXT
};

/* The one process-wide table besides the log level: fault points lie in the middle of everything,
 * and off they must cost no argument. Written by fault_init only, before threads start. */
static struct armed_fault {
        enum fault point;
        enum fault_action action;
        uint64_t passage; /* 0: every one */
        uint64_t argument;
} armed[FAULTS_ARMED_MAX];
static size_t armed_count;
static atomic_uint_least64_t passages[FAULT_COUNT];
static atomic_bool fired;
static char once_path[PATH_MAX]; /* "": each process fires by itself */
static atomic_bool environment_read;
bool fault_enabled;

const char *fault_name(enum fault point) {
        return (unsigned) point < FAULT_COUNT ? point_names[point] : "unknown";
}

bool fault_fired(void) {
        return atomic_load(&fired);
}

static int find_name(const char *const *names, size_t count, const char *text, size_t bytes) {
        for (size_t i = 0; i < count; i++)
                if (strlen(names[i]) == bytes && memcmp(names[i], text, bytes) == 0)
                        return (int) i;
        return -1;
}

/* Splits at the next ':' of [*text, end); false when nothing is left. */
static bool next_field(const char **text, const char *end, const char **ret, size_t *ret_bytes) {
        if (*text > end)
                return false;
        const char *colon = memchr(*text, ':', (size_t) (end - *text));
        const char *field_end = colon ? colon : end;

        *ret = *text;
        *ret_bytes = (size_t) (field_end - *text);
        *text = field_end + 1;
        return true;
}

static bool parse_number(const char *text, size_t bytes, uint64_t max, uint64_t *ret) {
        uint64_t value = 0;

        if (bytes == 0 || bytes > 18)
                return false;
        for (size_t i = 0; i < bytes; i++) {
                if (text[i] < '0' || text[i] > '9')
                        return false;
                value = value * 10 + (uint64_t) (text[i] - '0');
        }
        if (value > max)
                return false;
        *ret = value;
        return true;
}

/* "point:n:action[:argument]" in [text, end). Returns what is wrong with it, or NULL. */
static const char *parse_fault(const char *text, const char *end, struct armed_fault *ret) {
        const char *field;
        size_t bytes;

        if (!next_field(&text, end, &field, &bytes))
                return "it is empty";
        int point = find_name(point_names, FAULT_COUNT, field, bytes);
        if (point < 0)
                return "there is no such fault point (base/fault.h lists them)";
        if (!next_field(&text, end, &field, &bytes) ||
            !parse_number(field, bytes, UINT32_MAX, &ret->passage))
                return "the passage must be a number; 0 means every one";
        if (!next_field(&text, end, &field, &bytes))
                return "the action is missing: error, crash, stop or delay";
        int action =
                find_name(action_names, sizeof action_names / sizeof *action_names, field, bytes);
        if (action < 0)
                return "the action must be error, crash, stop or delay";

        ret->point = (enum fault) point;
        ret->action = (enum fault_action) action;
        ret->argument = action == FAULT_ERROR ? EIO : 0;
        bool has_argument = next_field(&text, end, &field, &bytes);
        bool takes_argument = action == FAULT_ERROR || action == FAULT_DELAY;
        if (has_argument != takes_argument && !(action == FAULT_ERROR && !has_argument))
                return takes_argument ? "delay needs its milliseconds"
                                      : "crash and stop take no argument";
        if (has_argument &&
            !parse_number(field, bytes, action == FAULT_ERROR ? ERRNO_MAX : UINT32_MAX,
                          &ret->argument))
                return action == FAULT_ERROR ? "the argument of error must be an errno number"
                                             : "the argument of delay must be milliseconds";
        if (action == FAULT_ERROR && ret->argument == 0)
                return "errno 0 is no error";
        return next_field(&text, end, &field, &bytes) ? "there is too much of it" : NULL;
}

static void disarm(void) {
        fault_enabled = false;
        armed_count = 0;
        once_path[0] = '\0';
        atomic_store(&fired, false);
        for (size_t i = 0; i < FAULT_COUNT; i++)
                atomic_store(&passages[i], 0);
}

int fault_init(const char *specification, struct cairn_error *reterr) {
        disarm();
        if (!specification || !specification[0])
                return 0;
        for (const char *text = specification, *end; text; text = *end ? end + 1 : NULL) {
                end = strchrnul(text, ',');
                const char *problem = armed_count < FAULTS_ARMED_MAX
                                              ? parse_fault(text, end, &armed[armed_count])
                                              : "there are too many";
                if (problem) {
                        disarm();
                        return error_set(reterr, CAIRN_ERR_API, "parse CAIRN_FAULT", specification,
                                         "'%.*s': %s; the form is point:n:action[:argument]",
                                         (int) (end - text < 100 ? end - text : 100), text,
                                         problem);
                }
                armed_count++;
        }
        fault_enabled = true;
        return 0;
}

int fault_init_environment(struct cairn_error *reterr) {
        const char *specification = getenv("CAIRN_FAULT"), *once = getenv("CAIRN_FAULT_ONCE");

        if (!specification || !*specification || atomic_load(&environment_read))
                return 0;
        if (once && strlen(once) >= sizeof once_path)
                return error_set(reterr, CAIRN_ERR_API, "parse CAIRN_FAULT_ONCE", "",
                                 "the path is too long");
        TRY(fault_init(specification, reterr));
        (void) snprintf(once_path, sizeof once_path, "%s", once ? once : "");
        atomic_store(&environment_read, true);
        return 0;
}

/* May this passage fire? A file that cannot be made for another reason than that it is there is no
 * reason to pass a test. */
static bool claim(enum fault point, uint64_t passage) {
        if (!once_path[0])
                return true;
        _cleanup_close_ int fd = open(once_path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        if (fd < 0)
                return errno != EEXIST;
        (void) dprintf(fd, "%s:%llu pid %d\n", fault_name(point), (unsigned long long) passage,
                       (int) getpid());
        return true;
}

/* Only `error` returns something else than 0; a crash does not return. */
static int perform(const struct armed_fault *fault) {
        switch (fault->action) {
        case FAULT_ERROR:
                return (int) fault->argument;
        case FAULT_CRASH:
                (void) kill(getpid(), SIGKILL);
                for (;;)
                        (void) pause(); /* the signal may take another thread's time slice */
        case FAULT_STOP:
                (void) kill(getpid(), SIGSTOP);
                return 0;
        case FAULT_DELAY:
                clock_system.sleep_ns(NULL, fault->argument * NSEC_PER_MSEC);
                return 0;
        }
        return 0;
}

int fault_hit(enum fault point) {
        uint64_t passage = atomic_fetch_add(&passages[point], 1) + 1;
        int error_number = 0;

        for (size_t i = 0; i < armed_count; i++) {
                if (armed[i].point != point ||
                    (armed[i].passage != 0 && armed[i].passage != passage) ||
                    !claim(point, passage))
                        continue;
                atomic_store(&fired, true);
                int result = perform(&armed[i]);
                if (error_number == 0)
                        error_number = result;
        }
        return error_number;
}
