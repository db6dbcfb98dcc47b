/* SPDX-License-Identifier: Apache-2.0
 *
 * process_tree.h - a process and all of its descendants, as /proc shows them.
 */
#ifndef CAIRN_TOOLS_PROCESS_TREE_H
#define CAIRN_TOOLS_PROCESS_TREE_H

#include <stddef.h>
#include <sys/types.h>

/* SIGKILL to `root`, which must be a child of ours that was not reaped, and to every descendant;
 * returns how many, once all have ended. The root is stopped first so that it starts no new ones
 * meanwhile. */
size_t process_tree_kill(pid_t root);
/* SIGKILL to every descendant but not to `root` itself (what a dead child of a subreaper left
 * behind). */
size_t process_tree_kill_descendants(pid_t root);
/* The first descendant that was started with this variable ("RANK=1"); 0: there is none. */
pid_t process_tree_find(pid_t root, const char *variable);

#endif
