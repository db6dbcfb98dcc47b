/* SPDX-License-Identifier: Apache-2.0
 *
 * fake_agent.h - the agent's side of a client's session, in a thread of the test: welcomes, takes
 * the seal, plays the copier on request, serves one checkpoint. It can be stopped and started again
 * as a new agent of the same session.
 *
 *     struct fake_agent a;
 *     fake_agent_init(&a);              // then set the fields of the first group
 *     fake_agent_start(&a);
 *     ... the test calls libcairn with a.path ...
 *     fake_agent_take(&a);              // a cut of the present state becomes the stored checkpoint
 *     fake_agent_stop(&a);              // the agent dies; the session's page stays
 *     fake_agent_done(&a);
 *
 * The second group is what it saw; read it through fake_agent_lock while the agent runs. Failures
 * of the fake itself abort the test.
 */
#ifndef CAIRN_TESTS_FAKE_AGENT_H
#define CAIRN_TESTS_FAKE_AGENT_H

#include "format/cut.h"
#include "format/file.h"
#include <pthread.h>

struct fake_image {
        void *index; /* bytes of INDEX */
        size_t index_bytes;
        unsigned char *data; /* the data file of rank 0 */
        uint64_t data_bytes;
        int64_t step;
};

struct fake_agent {
        /* what it says */
        uint32_t mode, world;
        uint64_t every_steps, restart, generation;
        const char *override_key, *override_value, *conversion_key, *conversion_value;
        int waits; /* Wait packets before Welcome */
        bool wait_for_ever;
        int hello_status;    /* refuse with this */
        int reattach_status; /* likewise, when a session comes back */
        int seal_status;
        int drops;          /* so many connections end right after Sealed */
        bool mute;          /* answers nothing after Welcome */
        bool corrupt_image; /* flips a byte of what it restores */
        uint64_t gate_deadline_ns;

        /* what it saw */
        pthread_mutex_t lock;
        int hellos, reattached, seals, slabs, restores, finishes, demands;
        int restore_done_count, restore_done_status;
        bool pidfd_seen, page_handed_back;
        uint64_t seal_number, seal_bytes;
        char finish_reason[64];
        struct { /* what was put into the exchange; forgotten when it stops */
                char key[64], value[64];
                size_t bytes;
        } values[4];
        int value_count, puts;

        /* the session */
        char path[108];
        int listen_fd, connection, stop_pipe[2];
        pthread_t thread;
        bool running;
        int page_fd, ring_fd;
        struct control_page *page;
        int slab_fds[64], inventory_fd, host_fd, push_fd; /* push_fd: where the client copies; -1 */
        struct fake_image image;
        /* Called on INDEX's content before it is written, so that a test can make it foreign. */
        void (*edit)(struct file_content *index, unsigned char *data, void *argument);
        void *edit_argument;
};

void fake_agent_init(struct fake_agent *a);
void fake_agent_start(struct fake_agent *a);
void fake_agent_stop(struct fake_agent *a);
void fake_agent_done(struct fake_agent *a);
/* A new session: the next Hello gets a fresh page. The image stays. */
void fake_agent_forget(struct fake_agent *a);
/* Take a cut as the copier does; the image becomes the checkpoint that is served. 0 or what
 * cut_copy_begin said. */
int fake_agent_take(struct fake_agent *a, bool demanded);
void fake_agent_lock(struct fake_agent *a);
void fake_agent_unlock(struct fake_agent *a);

#endif
