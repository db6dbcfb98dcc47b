/* SPDX-License-Identifier: Apache-2.0
 *
 * store_link.h - the event loop's side of the store process: a bounded queue of requests, one in
 * flight, each answered exactly once by its callback. Never blocks.
 *
 *     store_link_new(path, NULL, NULL, &link, &e);
 *     loop_watch(loop, &source, store_link_fd(link), EPOLLIN, ...);  // calls store_link_dispatch
 *     m = (struct store_message){.verb = STORE_COMMIT, .run = ..., .generation = ..., ...};
 *     store_link_submit(link, &m, 30 * NSEC_PER_SEC, on_committed, context, &e);
 *     store_link_free(link);
 *
 * Callbacks run inside store_link_dispatch (never inside submit) and may submit again, not free the
 * link. reply->status is the outcome, reply->error says why. Descriptors in `fds` are the
 * callback's if it takes them (sets the slot to -1); the rest is closed after it.
 *
 * Time-out: the child is killed and replaced, the request is answered TIMEOUT ("outcome unknown").
 * Asking again is safe: what has happened is reported as such. A child that dies by itself answers
 * PEER likewise. A successor takes the locks of the started runs again before anything else.
 *
 * What requests carry, beside verb, run and generation (0: a run that is not this agent's, locked
 * for this one request):
 *   START            start (run in start.run); reply: started, generation
 *   ATTEMPT_OPEN     attempt, world, first, count (<= 8; 0: the directory only);
 *                    reply fds: data and manifest of each rank
 *   PUBLISH_MANIFEST attempt, world, rank
 *   COMMIT           attempt, world, reason, name = tag; reply: committed
 *   DISCARD          attempt, world
 *   RETAIN           keep_last (0: keep all), keep_every, dry_run;
 *                    reply: count deleted, bytes of them, name = names, a line each; `more`: ask
 *                    again, for deleting takes long and others are to be served in between
 *   FINISHED         name = reason, step
 *   EXIT             code, name = reason, step
 *   TAG              committed.name, name = tag
 *   PIN, UNPIN       name = checkpoint
 *   RESTORE_OPEN     name = checkpoint as in start_reply; reply: world, fd INDEX,
 *                    first and count: the ranks whose files are here
 *   RESTORE_FILES    name, first, count (<= 16); reply fds: data files
 *   REOPEN           takes up a started run after a restart of the agent alone
 *   END_RUN          releases the run
 *   LOOK             reply: count = the store's kind, 0: there is none; name = its id in hex;
 *                    bytes = the run's highest claim
 *   SURVEY           reply fd: Holds
 *   PARTS, RECORDS   of_generation, attempt; reply fd: Parts, Records
 *   COMPOSE          of_generation, attempt, world, reason, name = tag, fd: Parts of all nodes;
 *                    reply fd: Records
 *   RECORD           attempt, world, fd: Records
 *   RENAME           attempt, world: as COMMIT, where INDEX and COMMIT are there
 *   SETTLE           name = node, fd: Settle; reply: started. Opens the generation.
 */
#ifndef CAIRN_AGENT_STORE_LINK_H
#define CAIRN_AGENT_STORE_LINK_H

#include "agent/store.h"

#define STORE_LINK_QUEUE_MAX 64

struct store_link;

typedef void (*store_link_done)(void *context, struct store_message *reply, int *fds,
                                size_t fd_count);
/* Starts a child that runs store_main on the other end of *ret_socket. NULL: `/proc/self/exe
 * --store-process PATH` with the socket as descriptor 3. */
typedef int (*store_link_spawn)(void *context, const char *path, int *ret_socket, int *ret_pidfd,
                                struct cairn_error *reterr);

int store_link_new(const char *path, store_link_spawn spawn, void *spawn_context,
                   struct store_link **ret, struct cairn_error *reterr);
/* Kills the child; requests that wait are dropped without an answer. NULL is allowed. */
struct store_link *store_link_free(struct store_link *link);
int store_link_fd(const struct store_link *link); /* readable: call store_link_dispatch */
void store_link_dispatch(struct store_link *link);
/* BUSY when the queue is full. The time counts from when the request is sent. */
int store_link_submit(struct store_link *link, const struct store_message *request,
                      uint64_t timeout_ns, store_link_done done, void *context,
                      struct cairn_error *reterr);
size_t store_link_waiting(const struct store_link *link); /* queued and in flight */

#endif
