/* SPDX-License-Identifier: Apache-2.0
 *
 * saver_link.h - cairnd's side of one saver process (saver.h): start, talk, end.
 *
 *     saver_link_start(&k, loop, program, on_message, on_end, context, &e);
 *     saver_link_send(&k, &message, fds, count);     // never blocks; queued, bounded
 *     saver_link_stop(&k);                           // hang up, SIGKILL, abandon
 *     saver_link_done(&k);
 *
 * on_end is called once: `reaped` false means that the process could not be ended (stuck storage)
 * and is abandoned; its staging and files must never be used again. Messages stop before on_end.
 * Abandoned savers are reaped when the storage lets go of them; while SAVER_LOST_MAX of them are
 * stuck no more are started (BUSY), for each holds the memory of a snapshot.
 * The link owns pidfd and socket; descriptors passed to _send are duplicated where they have to
 * wait.
 */
#ifndef CAIRN_AGENT_SAVER_LINK_H
#define CAIRN_AGENT_SAVER_LINK_H

#include "agent/loop.h"
#include "agent/saver.h"
#include "format/wire.h"

#define SAVER_LINK_OUT_MAX 64
#define SAVER_LOST_MAX 4
#define SAVER_KILL_NS (7 * NSEC_PER_SEC) /* after which it is abandoned */

typedef void (*saver_message_fn)(void *context, const struct saver_message *m,
                                 struct wire_fds *fds);
typedef void (*saver_end_fn)(void *context, bool reaped, int wait_status);

enum saver_link_state { SAVER_LINK_NONE, SAVER_LINK_RUNNING, SAVER_LINK_STOPPING };

struct saver_packet;
struct saver_lost { /* abandoned; loop NULL: the slot is free */
        struct loop *loop;
        struct loop_source source;
        int pidfd;
        uint64_t bytes; /* of staging, which it still holds */
};
struct saver_link {
        struct loop *loop;
        enum saver_link_state state;
        saver_message_fn message;
        saver_end_fn end;
        void *context;
        int socket, pidfd;
        pid_t pid;
        struct loop_source socket_source, pid_source;
        struct loop_timer timer;
        struct saver_packet *out, **out_tail;
        size_t out_count;
        uint64_t held_bytes; /* of staging; the owner says it with each that is handed over */
        struct saver_lost lost[SAVER_LOST_MAX];
};

int saver_link_start(struct saver_link *k, struct loop *loop, const char *program,
                     saver_message_fn message, saver_end_fn end, void *context,
                     struct cairn_error *reterr);
bool saver_link_running(const struct saver_link *k);
unsigned saver_link_lost_count(const struct saver_link *k);
uint64_t saver_link_lost_bytes(const struct saver_link *k);
/* BUSY: the queue is full; PEER: it is gone (on_end follows). */
int saver_link_send(struct saver_link *k, const struct saver_message *m, const int *fds,
                    size_t fd_count);
void saver_link_stop(struct saver_link *k);
/* Forget it at once: SIGKILL, no callbacks. */
void saver_link_done(struct saver_link *k);

#endif
