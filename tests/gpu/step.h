/* SPDX-License-Identifier: Apache-2.0
 *
 * step.h - what the steps of tests/gpu/run share. A step is a program that looks at one thing of a
 * GPU and ends with 0 (passed), 77 (skipped: the last line says why) or 1. Figures are lines of
 * their own, which the script collects:
 *
 *     figure push_rate 24.31 GB/s
 *
 * Environment: CAIRN_GPU_BRIEF=1 asks for the short form, which proves that a step works (on the
 * emulated driver, tests/cuda/emu.h) and measures nothing. The GPU is the first that is visible.
 *
 *     struct step s;
 *     step_open(&s);                                  // ends the process where there is no GPU
 *     STEP_TRY(s.device->ops->allocate(s.device, bytes, &m, &s.error));
 *     step_figure("rate", 24.3, "GB/s");
 *     return step_passed(&s);
 *
 * All of these end the process on a failure. One thread.
 */
#ifndef CAIRN_TESTS_GPU_STEP_H
#define CAIRN_TESTS_GPU_STEP_H

#include "base/status.h"
#include "device/cuda_driver.h"
#include "device/device.h"
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct step {
        struct device *device;
        const struct cuda_driver *cuda;
        struct cairn_error error;
};

void step_open(struct step *s);
int step_passed(struct step *s); /* closes the device; 0 */
bool step_brief(void);
/* The first, or the second in the short form. */
uint64_t step_choose(uint64_t whole, uint64_t brief);
/* So much of `bytes` as the free memory of this machine and of the GPU allow (a third of each). */
uint64_t step_fit(struct step *s, uint64_t bytes);
uint64_t step_deadline(void); /* far away, before the script's limit */

void step_figure(const char *name, double value, const char *unit);
_Noreturn void step_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
_Noreturn void step_skip(const char *format, ...) __attribute__((format(printf, 1, 2)));
_Noreturn void step_fail_error(const struct cairn_error *e);
#define STEP_TRY(expression)                       \
        do {                                       \
                if ((expression) < 0)              \
                        step_fail_error(&s.error); \
        } while (0)
#define STEP_CHECK(condition)                                                           \
        do {                                                                            \
                if (!(condition))                                                       \
                        step_fail("%s:%d: not so: %s", __FILE__, __LINE__, #condition); \
        } while (0)

double step_seconds(void);                        /* monotonic */
double step_median(double *values, size_t count); /* sorts them */

/* A sealed memfd, mapped and with all its pages; the descriptor is closed, *ret_fd NULL allowed. */
void *step_memfd(uint64_t bytes, int *ret_fd);

/* All words of host memory are this one; `what` it is says the failure. */
void step_check_words(const void *words, uint64_t bytes, uint32_t expected, const char *what);

/* Another process of this program, with a fresh driver, which gets `arguments` (NULL-terminated,
 * without the name) and one end of a socket pair as descriptor 3; it dies with this one. */
pid_t step_spawn(const char *const *arguments, int *ret_socket);
enum { STEP_SOCKET_FD = 3 };
void step_send(int socket, const void *bytes, size_t count, int fd);   /* fd -1: none */
void step_receive(int socket, void *bytes, size_t count, int *ret_fd); /* ret_fd NULL: none */
/* SIGKILL, and its wait status. */
int step_kill(pid_t pid);
/* Its end by itself with status 0, within the limit. */
void step_join(pid_t pid);

/* Words of a device's memory, queued on the device's own stream of `queue`. */
void step_fill(struct step *s, void *queue, void *address, uint32_t word, uint64_t bytes);
struct cuda_stream *step_stream(struct step *s);
/* Runs with the GPU's context current, as a trainer's thread has it. */
void step_enter(struct step *s);

#endif
