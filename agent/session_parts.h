/* SPDX-License-Identifier: Apache-2.0
 *
 * session_parts.h - what the files of a session share among themselves; others use session.h.
 *
 *   session.c          its states, how it is opened and how it ends
 *   session_saver.c    its saver: started, told, heard, replaced
 *   session_seal.c     what its trainer registers: slabs, inventory, staging
 *   session_restore.c  what its trainer gets back
 *
 * The loop's thread. Descriptors stay the session's; errors are those of the callee.
 */
#ifndef CAIRN_AGENT_SESSION_PARTS_H
#define CAIRN_AGENT_SESSION_PARTS_H

#include "agent/session.h"
#include <fcntl.h>

#define MEMORY_SEALS (F_SEAL_SHRINK | F_SEAL_GROW)

void session_set_state(struct session *s, enum session_state to);
/* Keeps it as the session's last error and logs it. */
void session_note_error(struct session *s, const char *what, const struct cairn_error *error);
void session_close_fd(int *fd);

/* A message to its saver with everything that names the session. */
struct saver_message session_message(const struct session *s, enum saver_verb verb);
void session_start_saver(struct session *s);
/* After a pause; the context of its timer is the session. */
void session_respawn(void *context);
/* From this slab on. */
int session_send_slabs(struct session *s, uint32_t first);
int session_send_seal(struct session *s);

/* Whoever waits for a seal or a restore is told, and the state goes back to where it came from. */
void session_fail_pending(struct session *s, const struct cairn_error *error);
/* A new one in place of the one that is there. */
int session_make_staging(struct session *s, uint64_t bytes, struct cairn_error *reterr);
/* Is there none only because savers that are stuck in the storage still hold it? */
bool session_room_will_come(const struct session *s, uint64_t bytes);
/* What was sealed, with staging, to a saver that has the slabs; without room for it, later. */
void session_hand_over(struct session *s);
/* The trainer may go on: its snapshots are BUSY until there is room. */
void session_seal_without_room(struct session *s);
/* The saver took the seal, or could not. */
void session_saver_sealed(struct session *s, const struct saver_message *m);

/* With a sealed saver: its staging is large enough, or a larger one is sealed first. */
void session_restore_begin(struct session *s);
void session_saver_restored(struct session *s, const struct saver_message *m);
void session_saver_part(struct session *s); /* the saver has read what it was sent */

#endif
