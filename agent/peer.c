/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/peer.h"
#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "base/states.h"
#include "format/wire.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/params.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

enum { HEADER_BYTES = 32, TAG_BYTES = 16, NONCE_BYTES = 16, PROOF_BYTES = 32, TEXT_BYTES = 512 };
static const char magic[4] = {'C', 'R', 'P', '1'};
#define ACCEPT_PAUSE_NS (500 * NSEC_PER_MSEC)

struct peer_link {
        struct loop *loop;
        struct peer_listener *listener; /* of a stranger; NULL once open, or where we connected */
        struct peer_link *next;         /* among the strangers */
        struct peer_callbacks callbacks;
        void *owner;
        enum peer_state state;
        bool acceptor;
        int fd;
        struct loop_source source;
        struct loop_timer timer; /* opening's deadline, then pings and silence */
        char address[INET6_ADDRSTRLEN + 8];
        struct peer_identity identity;
        char node[PEER_NODE_BYTES]; /* of the other side */
        uint8_t own_nonce[NONCE_BYTES], other_nonce[NONCE_BYTES];
        uint8_t key[PEER_SECRET_BYTES];
        bool keyed_in, keyed_out;
        uint64_t number_in, number_out, heard_ns;
        unsigned char *in, *out;
        size_t in_bytes, out_begin, out_end, out_capacity;
        struct arena arena;
        bool reading, freed; /* freed by a callback of the reader, who does it in the end */
};

static const struct state_row peer_states[PEER_STATE_COUNT] = {
        [PEER_CONNECTING] = {"connecting", STATE_TO(PEER_GREETING) | STATE_TO(PEER_CLOSED)},
        [PEER_GREETING] = {"greeting", STATE_TO(PEER_OPEN) | STATE_TO(PEER_CLOSED)},
        [PEER_OPEN] = {"open", STATE_TO(PEER_CLOSED)},
        [PEER_CLOSED] = {"closed", 0},
};

static void set_state(struct peer_link *k, enum peer_state to) {
        const char *name = state_table_step(peer_states, PEER_STATE_COUNT, k->state, to);
        log_event(LOG_LEVEL_DEBUG, "peer=%s node=\"%s\" state=%s", k->address, k->node, name);
        k->state = to;
}

void peer_set_owner(struct peer_link *k, void *owner) {
        k->owner = owner;
}

void *peer_owner(const struct peer_link *k) {
        return k->owner;
}

const char *peer_node(const struct peer_link *k) {
        return k->node;
}

const char *peer_run(const struct peer_link *k) {
        return k->identity.run;
}

uint64_t peer_generation(const struct peer_link *k) {
        return k->identity.generation;
}

/* ---- the end of a link ---- */

static void leave_listener(struct peer_link *k) {
        if (!k->listener)
                return;
        if (k->listener->stranger_count == PEER_STRANGERS_MAX)
                loop_change(k->loop, &k->listener->source, EPOLLIN);
        struct peer_link **p = &k->listener->strangers;
        while (*p && *p != k)
                p = &(*p)->next;
        if (*p) {
                *p = k->next;
                k->listener->stranger_count--;
        }
        k->listener = NULL;
}

void peer_free(struct peer_link *k) {
        if (!k)
                return;
        leave_listener(k);
        loop_unwatch(k->loop, &k->source);
        loop_timer_clear(k->loop, &k->timer);
        k->freed = true;
        if (k->reading)
                return;
        if (k->fd >= 0)
                (void) close(k->fd);
        OPENSSL_cleanse(&k->identity, sizeof k->identity);
        OPENSSL_cleanse(k->key, sizeof k->key);
        arena_done(&k->arena);
        free(k->in);
        free(k->out);
        free(k);
}

/* The owner frees an open link; a stranger has no owner but the listener. */
static void close_link(struct peer_link *k, const struct cairn_error *why) {
        char text[TEXT_BYTES];
        bool is_stranger = k->listener != NULL;

        if (k->state == PEER_CLOSED)
                return;
        log_event(LOG_LEVEL_INFO, "peer=%s node=\"%s\" closed=\"%s\"", k->address, k->node,
                  error_format(why, text, sizeof text));
        set_state(k, PEER_CLOSED);
        loop_unwatch(k->loop, &k->source);
        loop_timer_clear(k->loop, &k->timer);
        if (is_stranger)
                peer_free(k);
        else
                k->callbacks.closed(k->callbacks.context, k, why);
}

static void close_because(struct peer_link *k, int status, const char *sentence) {
        struct cairn_error e = CAIRN_ERROR_INIT;
        (void) error_set(&e, status, "speak to agent", *k->node ? k->node : k->address, "%s",
                         sentence);
        close_link(k, &e);
}

/* ---- proofs and tags ---- */

struct part {
        const void *bytes;
        size_t count;
};
static void hash(const uint8_t *secret, const struct part *parts, size_t part_count,
                 uint8_t ret[PROOF_BYTES]) {
        char digest[] = "SHA256";
        const OSSL_PARAM how[] = {
                OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_DIGEST, digest, 0),
                OSSL_PARAM_construct_end()};
        size_t bytes = 0;
        EVP_MAC *algorithm = EVP_MAC_fetch(NULL, "HMAC", NULL);
        EVP_MAC_CTX *c = algorithm ? EVP_MAC_CTX_new(algorithm) : NULL;
        bool ok = c && EVP_MAC_init(c, secret, PEER_SECRET_BYTES, how);
        for (size_t i = 0; ok && i < part_count; i++)
                ok = EVP_MAC_update(c, parts[i].bytes, parts[i].count);
        if (!ok || !EVP_MAC_final(c, ret, &bytes, PROOF_BYTES) || bytes != PROOF_BYTES)
                (void) getrandom(ret, PROOF_BYTES, 0); /* out of memory: it fits nothing */
        EVP_MAC_CTX_free(c);
        EVP_MAC_free(algorithm);
}

/* Both sides hash the same: the connector's nonce and node come first. */
static void prove(const struct peer_link *k, const char *purpose, uint8_t ret[PROOF_BYTES]) {
        unsigned char generation[8];
        store_le64(generation, k->identity.generation);
        const char *connector = k->acceptor ? k->node : k->identity.node;
        const char *acceptor = k->acceptor ? k->identity.node : k->node;
        const struct part parts[] = {
                {purpose, strlen(purpose) + 1},
                {k->acceptor ? k->other_nonce : k->own_nonce, NONCE_BYTES},
                {k->acceptor ? k->own_nonce : k->other_nonce, NONCE_BYTES},
                {k->identity.run, strlen(k->identity.run) + 1},
                {generation, sizeof generation},
                {connector, strlen(connector) + 1},
                {acceptor, strlen(acceptor) + 1},
        };
        hash(k->identity.secret, parts, sizeof parts / sizeof *parts, ret);
}

static void tag(const struct peer_link *k, bool from_connector, uint64_t number,
                const void *payload, size_t bytes, uint8_t ret[PROOF_BYTES]) {
        unsigned char head[9];
        head[0] = from_connector;
        store_le64(head + 1, number);
        const struct part parts[] = {{head, sizeof head}, {payload, bytes}};
        hash(k->key, parts, 2, ret);
}

/* ---- out ---- */

static void watch(struct peer_link *k) {
        loop_change(k->loop, &k->source, k->out_end > k->out_begin ? EPOLLIN | EPOLLOUT : EPOLLIN);
}

/* Only what the socket takes at once; errors are seen by the next read. */
static void flush(struct peer_link *k) {
        while (k->out_end > k->out_begin) {
                ssize_t n = send(k->fd, k->out + k->out_begin, k->out_end - k->out_begin,
                                 MSG_NOSIGNAL | MSG_DONTWAIT);
                if (n <= 0)
                        break;
                k->out_begin += (size_t) n;
        }
        if (k->out_begin == k->out_end)
                k->out_begin = k->out_end = 0;
        watch(k);
}

static unsigned char *make_room(struct peer_link *k, size_t bytes) {
        if (k->out_begin > 0) {
                memmove(k->out, k->out + k->out_begin, k->out_end - k->out_begin);
                k->out_end -= k->out_begin;
                k->out_begin = 0;
        }
        if (k->out_end + bytes > PEER_OUT_BYTES_MAX)
                return NULL;
        if (k->out_end + bytes > k->out_capacity) {
                size_t capacity = 2 * (k->out_end + bytes);
                unsigned char *larger = realloc(k->out, capacity);
                if (!larger)
                        return NULL;
                k->out = larger;
                k->out_capacity = capacity;
        }
        return k->out + k->out_end;
}

static int put_frame(struct peer_link *k, const Cairn__Peer__PeerEnvelope *e) {
        size_t bytes = cairn__peer__peer_envelope__get_packed_size(e);
        uint8_t full_tag[PROOF_BYTES] = {0};
        if (bytes > PEER_PAYLOAD_BYTES_MAX)
                return CAIRN_ERR_API;
        unsigned char *frame = make_room(k, HEADER_BYTES + bytes);
        if (!frame)
                return CAIRN_ERR_BUSY;
        (void) cairn__peer__peer_envelope__pack(e, frame + HEADER_BYTES);
        if (k->keyed_out)
                tag(k, !k->acceptor, k->number_out, frame + HEADER_BYTES, bytes, full_tag);
        memcpy(frame, magic, sizeof magic);
        store_le32(frame + 4, (uint32_t) bytes);
        store_le64(frame + 8, k->number_out++);
        memcpy(frame + 16, full_tag, TAG_BYTES);
        k->out_end += HEADER_BYTES + bytes;
        flush(k);
        return 0;
}

int peer_send(struct peer_link *k, const Cairn__Peer__PeerEnvelope *e) {
        return k->state == PEER_OPEN ? put_frame(k, e) : CAIRN_ERR_PEER;
}

static ProtobufCBinaryData data_of(const void *bytes, size_t count) {
        return (ProtobufCBinaryData){.len = count, .data = (uint8_t *) (uintptr_t) bytes};
}

static void say_hello(struct peer_link *k) {
        Cairn__Peer__PeerEnvelope e = CAIRN__PEER__PEER_ENVELOPE__INIT;
        Cairn__Peer__Hello m = CAIRN__PEER__HELLO__INIT;
        uint8_t proof[PROOF_BYTES];
        m.protocol = PEER_PROTOCOL;
        m.run = data_of(k->identity.run, strlen(k->identity.run));
        m.generation = k->identity.generation;
        m.node = data_of(k->identity.node, strlen(k->identity.node));
        m.nonce = data_of(k->own_nonce, NONCE_BYTES);
        if (k->acceptor) {
                prove(k, "accept", proof);
                m.proof = data_of(proof, sizeof proof);
        }
        e.body_case = CAIRN__PEER__PEER_ENVELOPE__BODY_HELLO;
        e.hello = &m;
        (void) put_frame(k, &e);
}

static void ping(struct peer_link *k) {
        Cairn__Peer__PeerEnvelope e = CAIRN__PEER__PEER_ENVELOPE__INIT;
        Cairn__Peer__Ping m = CAIRN__PEER__PING__INIT;
        e.body_case = CAIRN__PEER__PEER_ENVELOPE__BODY_PING;
        e.ping = &m;
        (void) put_frame(k, &e);
}

/* ---- opening ---- */

static void become_open(struct peer_link *k) {
        set_state(k, PEER_OPEN);
        leave_listener(k);
        k->heard_ns = loop_now(k->loop);
        loop_timer_set(k->loop, &k->timer, k->heard_ns + PEER_PING_NS);
        k->callbacks.opened(k->callbacks.context, k);
}

static int copy_text(char *target, size_t bytes, const ProtobufCBinaryData *text) {
        return wire_text_copy(target, bytes, text, "speak to agent", "", NULL);
}

static void refuse(struct peer_link *k, const struct cairn_error *why) {
        Cairn__Peer__PeerEnvelope e = CAIRN__PEER__PEER_ENVELOPE__INIT;
        Cairn__Peer__Refused m = CAIRN__PEER__REFUSED__INIT;
        Cairn__Control__Failure failure = CAIRN__CONTROL__FAILURE__INIT;
        wire_failure_fill(&failure, why);
        m.failure = &failure;
        e.body_case = CAIRN__PEER__PEER_ENVELOPE__BODY_REFUSED;
        e.refused = &m;
        (void) put_frame(k, &e);
        close_link(k, why);
}

static void hello_to_acceptor(struct peer_link *k, const Cairn__Peer__Hello *m) {
        struct cairn_error e = CAIRN_ERROR_INIT;
        char run[RUN_NAME_BYTES_MAX + 1];
        if (copy_text(run, sizeof run, &m->run) < 0 ||
            copy_text(k->node, sizeof k->node, &m->node) < 0 || m->nonce.len != NONCE_BYTES) {
                close_because(k, CAIRN_ERR_CORRUPT, "its Hello is malformed");
                return;
        }
        memcpy(k->other_nonce, m->nonce.data, NONCE_BYTES);
        int r = m->protocol == PEER_PROTOCOL
                        ? k->callbacks.identify(k->callbacks.context, run, m->generation, k->node,
                                                &k->identity, &e)
                        : error_set(&e, CAIRN_ERR_UNSUPPORTED, "join group", run,
                                    "it speaks protocol %u and this agent %d: install the same "
                                    "version on all nodes",
                                    m->protocol, PEER_PROTOCOL);
        if (r < 0) {
                refuse(k, &e);
                return;
        }
        say_hello(k);
        prove(k, "frame", k->key);
        k->keyed_out = true; /* whoever is told more must be able to prove itself first */
}

static void hello_to_connector(struct peer_link *k, const Cairn__Peer__Hello *m) {
        Cairn__Peer__PeerEnvelope e = CAIRN__PEER__PEER_ENVELOPE__INIT;
        Cairn__Peer__Proof answer = CAIRN__PEER__PROOF__INIT;
        uint8_t proof[PROOF_BYTES];
        if (copy_text(k->node, sizeof k->node, &m->node) < 0 || m->nonce.len != NONCE_BYTES ||
            m->proof.len != PROOF_BYTES) {
                close_because(k, CAIRN_ERR_CORRUPT, "its Hello is malformed");
                return;
        }
        memcpy(k->other_nonce, m->nonce.data, NONCE_BYTES);
        prove(k, "accept", proof);
        if (CRYPTO_memcmp(proof, m->proof.data, PROOF_BYTES) != 0) {
                close_because(k, CAIRN_ERR_PERMISSION,
                              "it does not know the group's secret: another cluster's agent "
                              "listens at this address");
                return;
        }
        prove(k, "connect", proof);
        answer.proof = data_of(proof, sizeof proof);
        e.body_case = CAIRN__PEER__PEER_ENVELOPE__BODY_PROOF;
        e.proof = &answer;
        (void) put_frame(k, &e);
        prove(k, "frame", k->key);
        k->keyed_in = k->keyed_out = true;
        become_open(k);
}

static void greet(struct peer_link *k, const Cairn__Peer__PeerEnvelope *e) {
        uint8_t proof[PROOF_BYTES];
        switch (e->body_case) {
        case CAIRN__PEER__PEER_ENVELOPE__BODY_HELLO:
                if (k->acceptor && !k->keyed_out)
                        hello_to_acceptor(k, e->hello);
                else if (!k->acceptor)
                        hello_to_connector(k, e->hello);
                else
                        close_because(k, CAIRN_ERR_CORRUPT, "it said Hello twice");
                return;
        case CAIRN__PEER__PEER_ENVELOPE__BODY_PROOF:
                prove(k, "connect", proof);
                if (!k->acceptor || !k->keyed_out || e->proof->proof.len != PROOF_BYTES ||
                    CRYPTO_memcmp(proof, e->proof->proof.data, PROOF_BYTES) != 0) {
                        close_because(k, CAIRN_ERR_PERMISSION,
                                      "it does not know the group's secret");
                        return;
                }
                k->keyed_in = true;
                become_open(k);
                return;
        case CAIRN__PEER__PEER_ENVELOPE__BODY_REFUSED: {
                struct cairn_error why = CAIRN_ERROR_INIT;
                if (e->refused->failure)
                        wire_failure_read(e->refused->failure, &why);
                if (why.status >= 0)
                        (void) error_set(&why, CAIRN_ERR_PEER, "join group", k->address,
                                         "refused without a reason");
                close_link(k, &why);
                return;
        }
        default:
                close_because(k, CAIRN_ERR_CORRUPT, "it spoke before it was known");
        }
}

/* ---- in ---- */

static void *arena_allocate(void *context, size_t bytes) {
        return arena_alloc(context, bytes, 16);
}

static void arena_release(void *context, void *memory) {
        (void) context;
        (void) memory;
}

/* All callbacks but closed() are made from here; each may free the link. */
static void take_frame(struct peer_link *k, const unsigned char *frame, size_t bytes) {
        uint8_t expected[PROOF_BYTES] = {0};
        const unsigned char *payload = frame + HEADER_BYTES;
        if (k->keyed_in)
                tag(k, k->acceptor, k->number_in, payload, bytes, expected);
        if (load_le64(frame + 8) != k->number_in ||
            CRYPTO_memcmp(frame + 16, expected, TAG_BYTES) != 0) {
                close_because(k, CAIRN_ERR_CORRUPT, "a frame does not carry the right tag");
                return;
        }
        k->number_in++;
        k->heard_ns = loop_now(k->loop);
        arena_clear(&k->arena);
        ProtobufCAllocator allocator = {arena_allocate, arena_release, &k->arena};
        const Cairn__Peer__PeerEnvelope *e =
                cairn__peer__peer_envelope__unpack(&allocator, bytes, payload);
        if (!e)
                close_because(k, CAIRN_ERR_CORRUPT, "a frame cannot be read");
        else if (k->state == PEER_GREETING)
                greet(k, e);
        else if (e->body_case != CAIRN__PEER__PEER_ENVELOPE__BODY_PING)
                k->callbacks.received(k->callbacks.context, k, e);
}

/* False: there is no whole frame, or the link is over. */
static bool take_one(struct peer_link *k) {
        if (k->freed || k->state == PEER_CLOSED || k->in_bytes < HEADER_BYTES)
                return false;
        size_t bytes = load_le32(k->in + 4);
        if (memcmp(k->in, magic, sizeof magic) != 0 || bytes > PEER_PAYLOAD_BYTES_MAX) {
                close_because(k, CAIRN_ERR_CORRUPT, "what it sends is no frame");
                return false;
        }
        if (k->in_bytes < HEADER_BYTES + bytes)
                return false;
        take_frame(k, k->in, bytes);
        k->in_bytes -= HEADER_BYTES + bytes;
        memmove(k->in, k->in + HEADER_BYTES + bytes, k->in_bytes);
        return true;
}

/* What has arrived, one buffer at a time: the loop comes back for the rest. */
static void read_some(struct peer_link *k) {
        ssize_t n = recv(k->fd, k->in + k->in_bytes,
                         HEADER_BYTES + PEER_PAYLOAD_BYTES_MAX - k->in_bytes, MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
                return;
        if (n <= 0) {
                struct cairn_error e = CAIRN_ERROR_INIT;
                if (n < 0)
                        (void) error_set_errno(&e, errno, "speak to agent", k->address);
                else
                        (void) error_set(&e, CAIRN_ERR_PEER, "speak to agent",
                                         *k->node ? k->node : k->address,
                                         "it closed the connection");
                close_link(k, &e);
                return;
        }
        k->in_bytes += (size_t) n;
        k->reading = true;
        while (take_one(k))
                ;
        k->reading = false;
        if (k->freed)
                peer_free(k);
}

static void connected(struct peer_link *k) {
        int error_number = 0;
        socklen_t bytes = sizeof error_number;
        if (getsockopt(k->fd, SOL_SOCKET, SO_ERROR, &error_number, &bytes) < 0)
                error_number = errno;
        if (error_number) {
                struct cairn_error e = CAIRN_ERROR_INIT;
                (void) error_set_errno(&e, error_number, "connect to agent", k->address);
                close_link(k, &e);
                return;
        }
        set_state(k, PEER_GREETING);
        say_hello(k);
}

static void on_ready(void *context, uint32_t events) {
        struct peer_link *k = context;
        if (k->state == PEER_CONNECTING) {
                connected(k);
                return;
        }
        if (events & EPOLLOUT)
                flush(k);
        if (events & (EPOLLIN | EPOLLHUP | EPOLLERR))
                read_some(k);
}

static void on_time(void *context) {
        struct peer_link *k = context;
        uint64_t now_ns = loop_now(k->loop);
        if (k->state != PEER_OPEN) {
                close_because(k, CAIRN_ERR_TIMEOUT,
                              "it did not open the conversation within 5 s: is the address right, "
                              "and does a firewall let it through?");
                return;
        }
        if (now_ns >= k->heard_ns + PEER_SILENT_NS) {
                close_because(k, CAIRN_ERR_TIMEOUT,
                              "it has said nothing for 5 s: its node hangs or is cut off");
                return;
        }
        ping(k);
        loop_timer_set(k->loop, &k->timer, now_ns + PEER_PING_NS);
}

/* ---- making links ---- */

static struct peer_link *link_new(struct loop *loop, int fd, const struct peer_callbacks *callbacks,
                                  struct cairn_error *reterr) {
        struct peer_link *k = calloc(1, sizeof *k);
        if (k)
                k->in = malloc(HEADER_BYTES + PEER_PAYLOAD_BYTES_MAX);
        if (!k || !k->in || getrandom(k->own_nonce, NONCE_BYTES, 0) != NONCE_BYTES) {
                if (k)
                        free(k->in);
                free(k);
                (void) close(fd);
                (void) error_set_errno(reterr, ENOMEM, "speak to agent", "");
                return NULL;
        }
        const int yes = 1;
        (void) setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
        k->loop = loop;
        k->fd = fd;
        k->callbacks = *callbacks;
        arena_init(&k->arena, 4 * PEER_PAYLOAD_BYTES_MAX);
        loop_timer_init(&k->timer, on_time, k);
        loop_timer_set(loop, &k->timer, loop_now(loop) + PEER_OPEN_NS);
        return k;
}

static int parse_address(const char *address, uint16_t port, struct sockaddr_storage *ret,
                         socklen_t *ret_bytes, struct cairn_error *reterr) {
        struct sockaddr_in *v4 = (struct sockaddr_in *) ret;
        struct sockaddr_in6 *v6 = (struct sockaddr_in6 *) ret;
        memset(ret, 0, sizeof *ret);
        if (inet_pton(AF_INET, *address ? address : "0.0.0.0", &v4->sin_addr) == 1) {
                v4->sin_family = AF_INET;
                v4->sin_port = htons(port);
                *ret_bytes = sizeof *v4;
                return 0;
        }
        memset(ret, 0, sizeof *ret);
        if (inet_pton(AF_INET6, address, &v6->sin6_addr) == 1) {
                v6->sin6_family = AF_INET6;
                v6->sin6_port = htons(port);
                *ret_bytes = sizeof *v6;
                return 0;
        }
        return error_set(reterr, CAIRN_ERR_API, "use address", address,
                         "it is no numeric IPv4 or IPv6 address");
}

int peer_connect(struct loop *loop, const struct peer_identity *identity, const char *address,
                 uint16_t port, const struct peer_callbacks *callbacks, struct peer_link **ret,
                 struct cairn_error *reterr) {
        struct sockaddr_storage target;
        socklen_t bytes;
        TRY(parse_address(address, port, &target, &bytes, reterr));
        int fd = socket(target.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd < 0)
                return error_set_errno(reterr, errno, "connect to agent", address);
        if (connect(fd, (struct sockaddr *) &target, bytes) < 0 && errno != EINPROGRESS) {
                int error_number = errno;
                (void) close(fd);
                return error_set_errno(reterr, error_number, "connect to agent", address);
        }
        struct peer_link *k = link_new(loop, fd, callbacks, reterr);
        if (!k)
                return CAIRN_ERR_NOMEM;
        k->identity = *identity;
        (void) snprintf(k->address, sizeof k->address, "%.45s:%u", address, port);
        int r = loop_watch(loop, &k->source, fd, EPOLLIN | EPOLLOUT, on_ready, k, reterr);
        if (r < 0) {
                peer_free(k);
                return r;
        }
        *ret = k;
        return 0;
}

static void adopt(struct peer_listener *l, int fd, const struct sockaddr_storage *from) {
        struct cairn_error e = CAIRN_ERROR_INIT;
        struct peer_link *k = link_new(l->loop, fd, &l->callbacks, &e);
        if (!k)
                return;
        k->acceptor = true;
        k->state = PEER_GREETING;
        k->listener = l;
        k->next = l->strangers;
        l->strangers = k;
        l->stranger_count++;
        const void *where =
                from->ss_family == AF_INET6
                        ? (const void *) &((const struct sockaddr_in6 *) from)->sin6_addr
                        : (const void *) &((const struct sockaddr_in *) from)->sin_addr;
        if (!inet_ntop(from->ss_family, where, k->address, sizeof k->address))
                k->address[0] = 0;
        if (loop_watch(l->loop, &k->source, fd, EPOLLIN, on_ready, k, &e) < 0)
                peer_free(k);
}

static void on_accept(void *context, uint32_t events) {
        struct peer_listener *l = context;
        struct sockaddr_storage from;
        socklen_t bytes = sizeof from;
        (void) events;
        int fd = accept4(l->fd, (struct sockaddr *) &from, &bytes, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0) {
                if (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED)
                        return;
                /* No descriptors or memory: the listener would be ready for ever. */
                loop_change(l->loop, &l->source, 0);
                loop_timer_set(l->loop, &l->pause_timer, loop_now(l->loop) + ACCEPT_PAUSE_NS);
                return;
        }
        adopt(l, fd, &from);
        /* Others wait in the kernel: a large group comes all at once. */
        if (l->stranger_count >= PEER_STRANGERS_MAX)
                loop_change(l->loop, &l->source, 0);
}

static void accept_again(void *context) {
        struct peer_listener *l = context;
        if (l->stranger_count < PEER_STRANGERS_MAX)
                loop_change(l->loop, &l->source, EPOLLIN);
}

int peer_listen(struct peer_listener *l, struct loop *loop, const char *address,
                const struct peer_callbacks *callbacks, struct cairn_error *reterr) {
        struct sockaddr_storage here;
        socklen_t bytes;
        *l = (struct peer_listener){.loop = loop, .callbacks = *callbacks, .fd = -1};
        loop_timer_init(&l->pause_timer, accept_again, l);
        TRY(parse_address(address, 0, &here, &bytes, reterr));
        int r = 0;
        l->fd = socket(here.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (l->fd < 0 || bind(l->fd, (struct sockaddr *) &here, bytes) < 0 ||
            listen(l->fd, SOMAXCONN) < 0 ||
            getsockname(l->fd, (struct sockaddr *) &here, &bytes) < 0)
                r = error_set_errno(reterr, errno, "listen for agents", address);
        if (r == 0)
                r = loop_watch(loop, &l->source, l->fd, EPOLLIN, on_accept, l, reterr);
        if (r < 0) {
                peer_listener_done(l);
                return r;
        }
        l->port = ntohs(here.ss_family == AF_INET6 ? ((struct sockaddr_in6 *) &here)->sin6_port
                                                   : ((struct sockaddr_in *) &here)->sin_port);
        return 0;
}

void peer_listener_done(struct peer_listener *l) {
        if (!l->loop)
                return;
        while (l->strangers)
                peer_free(l->strangers);
        loop_unwatch(l->loop, &l->source);
        loop_timer_clear(l->loop, &l->pause_timer);
        if (l->fd >= 0)
                (void) close(l->fd);
        *l = (struct peer_listener){.fd = -1};
}
