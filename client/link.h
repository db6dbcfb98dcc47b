/* SPDX-License-Identifier: Apache-2.0
 *
 * link.h - the session's connection to its agent, which survives the agent. A helper thread watches
 * the socket; at end-of-file it connects again, every LINK_RETRY_NS and for as long as it takes
 * (later each time, up to LINK_RETRY_NS_MAX, where it is dropped again as soon as it is attached),
 * says who it is (session id, secret, generation; pidfd, control page) and hands over every
 * descriptor again: slabs, inventory, host state; and the values that this rank put into the
 * exchange. Training does not notice: the cut word lives in the page.
 *
 *     link_init(&l, clock);
 *     link_start(&l, &control, &identity, page_fd, ring_fd, reterr)   takes the connection after
 * Welcome link_add_slab ... link_seal ... link_call ... link_end_call link_done(&l)
 *
 * Threads: link_start and link_done by the owner; link_call and link_put_value by any thread, one
 * after the other; the other verbs between by the API thread; the helper has its own connection
 * while it reattaches. `lock` guards everything but the atomics. Deadlines are absolute. Owner:
 * descriptors given to link_start, link_add_slab and link_seal belong to the link from then on.
 * Errors: PEER while there is no agent and the deadline passes, STALE once a newer generation
 * exists (final).
 */
#ifndef CAIRN_CLIENT_LINK_H
#define CAIRN_CLIENT_LINK_H

#include "client/control.h"
#include "client/kept.h"
#include <pthread.h>
#include <stdatomic.h>

#define LINK_RETRY_NS (100 * NSEC_PER_MSEC)
#define LINK_RETRY_NS_MAX (500 * NSEC_PER_MSEC) /* back within 1 s, whatever was before */
#define LINK_STEADY_NS (1 * NSEC_PER_SEC)       /* one that lasted: the next is tried at once */
#define LINK_SLABS_PER_BATCH 8
#define LINK_PATH_BYTES 128
#define LINK_SECRET_BYTES_MAX 64

enum link_state {
        LINK_DOWN = 0,   /* the helper is reattaching */
        LINK_UP = 1,     /* whoever holds the lock may use the connection */
        LINK_FENCED = 2, /* a newer generation or session: nothing is tried any more */
        LINK_ENDED = 3,
};

struct link_identity {
        char path[LINK_PATH_BYTES];
        char run[RUN_NAME_BYTES_MAX + 1];
        uint32_t rank;
        uint64_t session_id, generation;
        uint8_t secret[LINK_SECRET_BYTES_MAX];
        size_t secret_bytes;
};

struct link_seal {
        uint64_t number; /* 0: none yet */
        uint64_t tensor_count, bytes, elsewhere;
        unsigned char device_uuid[DEVICE_UUID_BYTES];
        size_t device_uuid_bytes; /* 0: a session of the host */
        int inventory_fd, host_fd;
        int push_fd; /* where this process copies; else -1 */
};

struct link {
        pthread_mutex_t lock;
        pthread_cond_t changed;
        pthread_t thread;
        bool started, stop;
        enum link_state state;
        const struct clock_ops *clock;
        struct link_identity identity;
        struct control control;
        int wake_fd, pid_fd, page_fd, ring_fd;
        int reattaching; /* socket of the helper's conversation, -1: none */
        int slab_fds[SLAB_COUNT_MAX];
        uint64_t slab_bytes[SLAB_COUNT_MAX];
        uint32_t slab_kinds[SLAB_COUNT_MAX];
        uint32_t slab_count, slab_sent;
        struct link_seal seal;
        struct kept_value *kept; /* of the exchange: a restarted agent gets them again */
        uint64_t sealed_number, gate_deadline_ns; /* of the agent's last Sealed */
        struct cairn_error seal_error;            /* why the agent refused the present seal */
        struct cairn_error error;                 /* why it is down or fenced */
        uint64_t up_ns, retry_ns, pause_ns; /* up since, down until at least, and its length */
        _Atomic uint64_t reattached;
};

/* Half-built is fine for link_done. */
int link_init(struct link *l, const struct clock_ops *clock, struct cairn_error *reterr);
void link_done(struct link *l);
int link_start(struct link *l, struct control *control, const struct link_identity *identity,
               int pid_fd, int page_fd, int ring_fd, struct cairn_error *reterr);

void link_add_slab(struct link *l, int fd, uint64_t bytes, uint32_t kind);
/* Replaces the seal and hands it over; *ret_gate_ns is the agent's answer. The seal stays for the
 * next reattachment even if this agent is gone (PEER) or refuses. */
int link_seal(struct link *l, const struct link_seal *seal, uint64_t deadline_ns,
              uint64_t *ret_gate_ns, struct cairn_error *reterr);

/* One request, again after each reattachment until the deadline. On success the reply lives until
 * link_end_call, which must follow; on failure nothing is held. */
int link_call(struct link *l, Cairn__Control__Envelope *e, const int *fds, size_t fd_count,
              Cairn__Control__Envelope__BodyCase expected, uint64_t deadline_ns,
              Cairn__Control__Envelope **ret, struct wire_fds *ret_fds, struct cairn_error *reterr);
void link_end_call(struct link *l);
/* ExchangePut, and again to each agent that comes after this one: they keep values in memory. */
int link_put_value(struct link *l, const char *key, const void *value, uint64_t bytes,
                   uint64_t deadline_ns, struct cairn_error *reterr);
/* A message that nobody answers; lost if there is no agent. */
void link_tell(struct link *l, Cairn__Control__Envelope *e);
/* Why the session is fenced: STALE, or 0. */
int link_check(struct link *l, struct cairn_error *reterr);

#endif
