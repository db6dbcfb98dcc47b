/* SPDX-License-Identifier: Apache-2.0
 *
 * pusher.h - the helper thread that copies the state for a saver which cannot read it (format/
 * push.h), and that publishes the ends of a GPU's updates (stream.h).
 *
 *     TRY(pusher_start(&p, &parts, reterr));
 *     pusher_take_plan(&p, plan);                 before the seal of that number is handed over
 *     int fd = pusher_saver_end(&p);              goes along with each seal
 *     pusher_wake(&p);                            after stream_end
 *     pusher_done(&p);
 *
 * It copies in chunks on a stream of its own, looks at the word before each, and says DONE only
 * when nothing of the order writes staging any more. Staging is mapped, and page-locked where that
 * is allowed, once for as long as the saver has the same.
 *
 * Threads: start, plan, end and done by the API thread; wake by any. A forked child has no such
 * thread and must not call anything here.
 */
#ifndef CAIRN_CLIENT_PUSHER_H
#define CAIRN_CLIENT_PUSHER_H

#include "client/push_plan.h"
#include "client/stream.h"
#include "format/push.h"

/* A chunk is there in milliseconds; a GPU that takes so long hangs. */
#define PUSHER_CHUNK_NS (10 * NSEC_PER_SEC)

struct pusher_parts {
        const struct device_ops *ops; /* a device of its own is opened: another stream */
        int ordinal;
        struct control_page *page;
        struct stream *stream; /* NULL: there are no events to look at */
        const struct clock_ops *clock;
        uint64_t chunk_bytes, chunk_ns; /* 0: what chunks.h says, PUSHER_CHUNK_NS */
};

struct pusher {
        struct pusher_parts parts;
        struct device *device;
        bool started;
        int socket, saver_socket, wake_fd;
        pthread_t thread;
        _Atomic bool stop;

        pthread_mutex_t lock;
        struct push_plan *plan, *used; /* used: by the order under way */

        /* the thread's */
        unsigned char *staging;
        uint64_t staging_bytes, staging_inode;
        bool staging_locked;
        bool adrift; /* copies of it may never end: what they write stays */
        char warning[160];
};

/* STARTED already: nothing. */
int pusher_start(struct pusher *p, const struct pusher_parts *parts, struct cairn_error *reterr);
void pusher_done(struct pusher *p); /* of a zeroed one: nothing */
void pusher_take_plan(struct pusher *p, struct push_plan *plan);
/* A copy for the saver; -1: errno. The caller's. */
int pusher_saver_end(const struct pusher *p);
void pusher_wake(struct pusher *p);

#endif
