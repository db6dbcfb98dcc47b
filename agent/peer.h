/* SPDX-License-Identifier: Apache-2.0
 *
 * peer.h - the connection between two agents of a group: TCP, framed, authenticated, watched.
 *
 *     peer_listen(&l, loop, "10.0.0.7", &callbacks, &e);      // l.port was chosen by the kernel
 *     peer_connect(loop, &identity, "10.0.0.5", port, &callbacks, &link, &e);
 *     peer_send(link, &envelope);                              // never blocks; queued, bounded
 *     peer_free(link);                                         // or from closed(); NULL allowed
 *
 * Frame, little-endian:
 *
 *     magic "CRP1" | u32 payload bytes | u64 number | 16 bytes tag | payload (one PeerEnvelope)
 *
 * `number` counts a direction's frames from 0. Opening, each side with a fresh 16-byte nonce:
 *
 *     connector  Hello{run, generation, node, nonce}
 *     acceptor   Hello{.., nonce, proof}      proof = H(secret, "accept" | both nonces | identity)
 *     connector  Proof{proof}                 proof = H(secret, "connect" | both nonces | identity)
 *
 * H is HMAC-SHA256 (RFC 2104); `secret` is the generation's, from the rendezvous store, so that who
 * cannot read that cannot speak. Afterwards tag = the first 16 bytes of H(key, direction | number |
 * payload) with key = H(secret, "frame" | both nonces); before that it is zero. A frame that is
 * too long, out of order or with a wrong tag ends the connection.
 *
 * A peer that says nothing for PEER_SILENT_NS is gone; both sides send Ping every PEER_PING_NS.
 * Opening ends within PEER_OPEN_NS. `opened` is called once the other side has proven itself;
 * `closed` exactly once, with the reason, unless the owner freed the link before. Callbacks may
 * free the link. Everything runs on the loop's thread. A stranger costs one slot of
 * PEER_STRANGERS_MAX for PEER_OPEN_NS at most, and one log line; others wait for a slot unaccepted.
 */
#ifndef CAIRN_AGENT_PEER_H
#define CAIRN_AGENT_PEER_H

#include "agent/loop.h"
#include "base/arena.h"
#include "base/limits.h"
#include "format/peer.pb-c.h"

#define PEER_PROTOCOL 1
#define PEER_SECRET_BYTES 32
#define PEER_NODE_BYTES 64
#define PEER_PAYLOAD_BYTES_MAX (256 * KiB)
#define PEER_OUT_BYTES_MAX (4 * MiB)
#define PEER_STRANGERS_MAX 32
#define PEER_PING_NS (1 * NSEC_PER_SEC)
#define PEER_SILENT_NS (5 * NSEC_PER_SEC)
#define PEER_OPEN_NS (5 * NSEC_PER_SEC)

struct peer_identity { /* of this side */
        char run[RUN_NAME_BYTES_MAX + 1];
        uint64_t generation;
        char node[PEER_NODE_BYTES];
        uint8_t secret[PEER_SECRET_BYTES];
};
struct peer_link;
struct peer_callbacks {
        void *context;
        /* Listener only: who we are for this run and generation; negative: refused, reterr is told
         * to the other side (STALE: that generation is over). */
        int (*identify)(void *context, const char *run, uint64_t generation, const char *node,
                        struct peer_identity *ret, struct cairn_error *reterr);
        void (*opened)(void *context, struct peer_link *link);
        /* Valid during the call. */
        void (*received)(void *context, struct peer_link *link, const Cairn__Peer__PeerEnvelope *e);
        void (*closed)(void *context, struct peer_link *link, const struct cairn_error *why);
};

enum peer_state { PEER_CONNECTING, PEER_GREETING, PEER_OPEN, PEER_CLOSED, PEER_STATE_COUNT };

struct peer_listener {
        struct loop *loop;
        struct peer_callbacks callbacks;
        int fd;
        uint16_t port;
        struct loop_source source;
        struct loop_timer pause_timer; /* no descriptors left: accepts again a little later */
        struct peer_link *strangers;   /* accepted, not open yet */
        size_t stranger_count;
};

/* `address`: a numeric one of this machine, or "" for all. */
int peer_listen(struct peer_listener *l, struct loop *loop, const char *address,
                const struct peer_callbacks *callbacks, struct cairn_error *reterr);
void peer_listener_done(struct peer_listener *l);

/* `address` is numeric (rendezvous stores hold addresses, not names). *ret is set on success only;
 * a refused or lost connection is told to closed(). */
int peer_connect(struct loop *loop, const struct peer_identity *identity, const char *address,
                 uint16_t port, const struct peer_callbacks *callbacks, struct peer_link **ret,
                 struct cairn_error *reterr);
/* BUSY: the other side does not read (PEER_OUT_BYTES_MAX); PEER: it is gone, closed() tells why. */
int peer_send(struct peer_link *link, const Cairn__Peer__PeerEnvelope *e);
void peer_free(struct peer_link *link);

/* What the owner keeps beside it; NULL at first. */
void peer_set_owner(struct peer_link *link, void *owner);
void *peer_owner(const struct peer_link *link);
/* Of an open link: the other side's node, and the generation it speaks for. */
const char *peer_node(const struct peer_link *link);
uint64_t peer_generation(const struct peer_link *link);
const char *peer_run(const struct peer_link *link);

#endif
