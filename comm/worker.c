/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/worker.h"
#include "base/assert.h"
#include "base/limits.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>

struct worker {
        pthread_t thread;
        void (*begin)(void *context);
        void *context;
        pthread_mutex_t mutex; /* of the members below */
        pthread_cond_t changed;
        void (*f)(void *argument); /* NULL: idle */
        void *argument;
        bool stopping;
};

static void *run(void *argument) {
        struct worker *w = argument;

        if (w->begin)
                w->begin(w->context);
        (void) pthread_mutex_lock(&w->mutex);
        for (;;) {
                while (!w->f && !w->stopping)
                        (void) pthread_cond_wait(&w->changed, &w->mutex);
                if (!w->f)
                        break;
                (void) pthread_mutex_unlock(&w->mutex);
                w->f(w->argument);
                (void) pthread_mutex_lock(&w->mutex);
                w->f = NULL;
                (void) pthread_cond_broadcast(&w->changed);
        }
        (void) pthread_mutex_unlock(&w->mutex);
        return NULL;
}

static int start_thread(struct worker *w) {
        sigset_t all, before;

        (void) sigfillset(&all);
        (void) pthread_sigmask(SIG_SETMASK, &all, &before);
        int r = pthread_create(&w->thread, NULL, run, w);
        (void) pthread_sigmask(SIG_SETMASK, &before, NULL);
        return r;
}

int worker_new(struct worker **ret, void (*begin)(void *context), void *context,
               struct cairn_error *reterr) {
        struct worker *w = calloc(1, sizeof *w);
        pthread_condattr_t monotonic;

        if (!w)
                return error_set(reterr, CAIRN_ERR_NOMEM, "start thread", "", "no memory");
        w->begin = begin;
        w->context = context;
        (void) pthread_mutex_init(&w->mutex, NULL);
        (void) pthread_condattr_init(&monotonic);
        (void) pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
        (void) pthread_cond_init(&w->changed, &monotonic);
        (void) pthread_condattr_destroy(&monotonic);
        int r = start_thread(w);
        if (r != 0) {
                free(w);
                return error_set_errno(reterr, r, "start thread", "");
        }
        *ret = w;
        return 0;
}

void worker_start(struct worker *w, void (*f)(void *argument), void *argument) {
        (void) pthread_mutex_lock(&w->mutex);
        CAIRN_ASSERT(!w->f);
        w->f = f;
        w->argument = argument;
        (void) pthread_cond_broadcast(&w->changed);
        (void) pthread_mutex_unlock(&w->mutex);
}

bool worker_wait(struct worker *w, uint64_t deadline_ns) {
        struct timespec until = {
                .tv_sec = (time_t) (deadline_ns / NSEC_PER_SEC),
                .tv_nsec = (long) (deadline_ns % NSEC_PER_SEC),
        };

        (void) pthread_mutex_lock(&w->mutex);
        while (w->f && pthread_cond_timedwait(&w->changed, &w->mutex, &until) != ETIMEDOUT)
                ;
        bool idle = !w->f;
        (void) pthread_mutex_unlock(&w->mutex);
        return idle;
}

bool worker_free(struct worker *w) {
        if (!w)
                return true;
        (void) pthread_mutex_lock(&w->mutex);
        bool idle = !w->f;
        w->stopping = true;
        (void) pthread_cond_broadcast(&w->changed);
        (void) pthread_mutex_unlock(&w->mutex);
        if (!idle) {
                (void) pthread_detach(w->thread);
                return false;
        }
        (void) pthread_join(w->thread, NULL);
        (void) pthread_cond_destroy(&w->changed);
        (void) pthread_mutex_destroy(&w->mutex);
        free(w);
        return true;
}
