/* SPDX-License-Identifier: Apache-2.0
 *
 * The collectives over gloo's TCP transport. Every rank is connected with every other one and sends
 * to each what that one has to add up or to get, so that
 *   - a sum is taken in the order of the ranks for each element, by one rank that then sends it to
 *     all: the same bits whatever the timing, the verb or the length (gloo's ring rotates the order
 *     with the position in the buffer, and would give a shard other bits than the whole);
 *   - it is known whose contribution has come (gloo's own collectives say only that one has not);
 *   - each byte crosses the network as often as with a ring, and the way is two messages long.
 * The price is world - 1 connections and receive buffers a rank, which is what a group on CPUs has.
 *
 * Waits. gloo waits in UnboundBuffer::waitRecv and waitSend; their time-out ends all connections,
 * so that none is used: a thread of ours interrupts a wait every 100 ms (abortWait..., which loses
 * nothing), and the verb takes its turn. gloo tells a buffer whose message was half received
 * nothing of the connection's end; one message that is never sent (the sentinel) is told in any
 * case.
 */
#include <gloo/common/error.h>
#include <gloo/config.h>
#include <gloo/transport/address.h>
#include <gloo/transport/context.h>
#include <gloo/transport/pair.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>

#include <net/if.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

extern "C" {
#include "comm/gloo_plugin.h"
}

#define TEXT_OF(x) TEXT(x)
#define TEXT(x) #x

namespace {

using gloo::transport::UnboundBuffer;
using std::chrono::milliseconds;
using buffer_ptr = std::unique_ptr<UnboundBuffer>;

constexpr milliseconds turn_period(100);
constexpr milliseconds no_limit = std::chrono::hours(1000); /* turns end a wait */
constexpr size_t small_bytes = 32 * 1024;                   /* sent whole to everybody */
constexpr uint64_t sentinel_slot = UINT64_MAX;

/* A turn has failed; the context's error is filled. */
struct Ended {
        int status;
};

/* The connection with a rank is gone. */
struct Lost {
        int rank;
        std::string how;
};

/* gloo writes to sockets whose other end may be closed, from the caller's thread, too. */
class QuietPipe {
      public:
        QuietPipe() {
                sigset_t pending;
                sigemptyset(&pipe_);
                sigaddset(&pipe_, SIGPIPE);
                sigpending(&pending);
                was_pending_ = sigismember(&pending, SIGPIPE) == 1;
                pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
        }
        ~QuietPipe() {
                struct timespec none = {};
                if (!was_pending_)
                        (void) sigtimedwait(&pipe_, nullptr, &none);
                pthread_sigmask(SIG_SETMASK, &before_, nullptr);
        }

      private:
        sigset_t pipe_, before_;
        bool was_pending_;
};

/* Threads that are started meanwhile leave signals to the others. */
class NoSignals {
      public:
        NoSignals() {
                sigset_t all;
                sigfillset(&all);
                pthread_sigmask(SIG_SETMASK, &all, &before_);
        }
        ~NoSignals() {
                pthread_sigmask(SIG_SETMASK, &before_, nullptr);
        }

      private:
        sigset_t before_;
};

/* What is received and added up at a time: small enough for the cache, large enough that messages
 * do not count, and 16 MiB from all ranks together. The ranks agree on it, as they do on their
 * number. */
size_t segment_bytes_of(int world) {
        size_t bytes = 16 * 1024 * 1024 / (size_t) world / 4096 * 4096;
        return std::min(std::max(bytes, small_bytes), (size_t) 512 * 1024);
}

/* An outstanding message to or from a rank. */
struct Message {
        UnboundBuffer *buffer;
        int rank;
        bool is_send;
};
using Messages = std::vector<Message>;

template <typename T> void add(T *sum, const T *a, const T *b, size_t count) {
#pragma GCC ivdep
        for (size_t i = 0; i < count; i++)
                sum[i] = a[i] + b[i];
}

} // namespace

struct gloo_context {
        int rank, world;
        size_t segment_bytes;
        struct gloo_host host;
        struct cairn_error error = {};
        std::string description;
        std::shared_ptr<gloo::transport::Device> device;
        std::shared_ptr<gloo::transport::Context> transport;

        /* Received segments: two a rank, so that one comes while the other is added up. */
        std::vector<unsigned char> scratch;
        std::vector<buffer_ptr> segments, sentinels;
        std::vector<size_t> owed; /* messages outstanding with a rank, in this operation */
        unsigned char nothing = 0;

        std::mutex mutex; /* of the three below */
        std::condition_variable wake;
        const Message *waiting = nullptr;
        bool stopping = false;
        std::thread ticker;

        explicit gloo_context(const struct gloo_setup &setup);
        ~gloo_context();
        void connect(const unsigned char *theirs);
        void cut();
        void begin();

        template <typename T> void all_reduce(uint64_t slot, T *data, size_t count);
        template <typename T>
        void reduce_scatter(uint64_t slot, const T *source, T *target, size_t count);
        void all_gather(uint64_t slot, const void *source, void *target, size_t bytes);
        void broadcast(uint64_t slot, void *data, size_t bytes, int root);

      private:
        void tick();
        void take_turn();
        bool wait_one(const Message &message);
        void wait_all(Messages &&messages);
        void owe(int peer);
        void settle(int peer);
        void connect_all(const unsigned char *theirs, std::atomic<int> *connected,
                         const std::atomic<bool> *stop);
        void watch(int peer);
        buffer_ptr buffer_on(const void *data, size_t bytes);
        void send(Messages *messages, UnboundBuffer *buffer, int peer, uint64_t slot, size_t offset,
                  size_t bytes);
        void receive(Messages *messages, UnboundBuffer *buffer, int peer, uint64_t slot,
                     size_t offset, size_t bytes);
        Messages receive_segment(uint64_t slot, size_t parity, size_t bytes);
        template <typename T> T *received(int peer, size_t parity);
        template <typename T> void sum(T *target, const T *mine, size_t parity, size_t count);
        template <typename T> void reduce_small(uint64_t slot, T *data, size_t count);
        template <typename T, typename F>
        void reduce_parts(uint64_t slot, const T *source, const std::vector<size_t> &begin,
                          T *target, F &&finished);
};

/* ---- coming, going, waiting ---- */

gloo_context::gloo_context(const struct gloo_setup &setup)
        : rank(setup.rank), world(setup.world), segment_bytes(segment_bytes_of(setup.world)),
          host(setup.host) {
        NoSignals no_signals;
        gloo::transport::tcp::attr attr;

        if (if_nametoindex(setup.interface) != 0)
                attr.iface = setup.interface;
        else
                attr.hostname = setup.interface;
        device = gloo::transport::tcp::CreateDevice(attr);
        description = device->str();
        transport = device->createContext(rank, world);
        /* gloo waits five times as long for a connection; turns end it before. */
        transport->setTimeout(milliseconds(setup.connect_ns / 1000000 + 1));
        for (int peer = 0; peer < world; peer++)
                if (peer != rank)
                        (void) transport->createPair(peer);
        scratch.resize((size_t) world * 2 * segment_bytes);
        segments.resize((size_t) world * 2);
        sentinels.resize((size_t) world);
        owed.resize((size_t) world);
        for (size_t i = 0; i < segments.size(); i++)
                segments[i] = buffer_on(scratch.data() + i * segment_bytes, segment_bytes);
        ticker = std::thread([this] { tick(); });
}

gloo_context::~gloo_context() {
        {
                std::lock_guard<std::mutex> lock(mutex);
                stopping = true;
        }
        wake.notify_all();
        if (ticker.joinable())
                ticker.join();
        segments.clear();
        sentinels.clear();
        transport.reset();
        device.reset();
}

void gloo_context::tick() {
        std::unique_lock<std::mutex> lock(mutex);
        while (!stopping) {
                wake.wait_for(lock, turn_period);
                if (!waiting)
                        continue;
                if (waiting->is_send)
                        waiting->buffer->abortWaitSend();
                else
                        waiting->buffer->abortWaitRecv();
        }
}

void gloo_context::take_turn() {
        int r = host.turn(host.host, &error);
        if (r < 0)
                throw Ended{r};
        for (int peer = 0; peer < world; peer++) {
                if (!sentinels[(size_t) peer])
                        continue;
                sentinels[(size_t) peer]->abortWaitRecv();
                (void) wait_one({sentinels[(size_t) peer].get(), peer, false});
        }
}

/* False: interrupted. */
bool gloo_context::wait_one(const Message &message) {
        struct Waiting {
                gloo_context *g;
                Waiting(gloo_context *context, const Message *m) : g(context) {
                        std::lock_guard<std::mutex> lock(g->mutex);
                        g->waiting = m;
                }
                ~Waiting() {
                        std::lock_guard<std::mutex> lock(g->mutex);
                        g->waiting = nullptr;
                }
        } here(this, &message);

        try {
                if (message.is_send)
                        return message.buffer->waitSend(nullptr, no_limit);
                return message.buffer->waitRecv(nullptr, no_limit);
        } catch (const gloo::IoException &) {
                throw Lost{message.rank, "closed the connection"};
        }
}

void gloo_context::owe(int peer) {
        if (owed[(size_t) peer]++ == 0)
                host.here(host.host, peer, 0);
}

void gloo_context::settle(int peer) {
        if (--owed[(size_t) peer] == 0)
                host.here(host.host, peer, 1);
}

/* An operation begins: nobody owes anything yet. */
void gloo_context::begin() {
        for (int peer = 0; peer < world; peer++) {
                owed[(size_t) peer] = 0;
                host.here(host.host, peer, 1);
        }
}

/* The order does not matter; after an interruption another one is waited for, so that it becomes
 * known who has come. */
void gloo_context::wait_all(Messages &&messages) {
        size_t at = 0, left = messages.size();

        while (left > 0) {
                if (at >= left)
                        at = 0;
                if (!wait_one(messages[at])) {
                        take_turn();
                        at++;
                        continue;
                }
                settle(messages[at].rank);
                messages[at] = messages[--left];
        }
}

void gloo_context::watch(int peer) {
        sentinels[(size_t) peer] = buffer_on(&nothing, sizeof nothing);
        receive(nullptr, sentinels[(size_t) peer].get(), peer, sentinel_slot, 0, sizeof nothing);
}

void gloo_context::connect_all(const unsigned char *theirs, std::atomic<int> *connected,
                               const std::atomic<bool> *stop) {
        for (int peer = 0; peer < world && !*stop; peer++) {
                const unsigned char *address = theirs + (size_t) peer * GLOO_ADDRESS_BYTES;
                const char *bytes = (const char *) address + 1;
                if (peer != rank)
                        transport->getPair(peer)->connect(std::vector<char>(
                                bytes,
                                bytes + std::min<size_t>(address[0], GLOO_ADDRESS_BYTES - 1)));
                *connected = peer + 1;
        }
}

/* gloo's connect cannot be interrupted but by closing what it waits for. */
void gloo_context::connect(const unsigned char *theirs) {
        std::atomic<int> connected(0);
        std::atomic<bool> stop(false), done(false);
        std::string what;
        int known = 0;
        std::thread helper;

        {
                NoSignals no_signals;
                helper = std::thread([&] {
                        try {
                                connect_all(theirs, &connected, &stop);
                        } catch (const std::exception &e) {
                                what = e.what();
                        }
                        done = true;
                });
        }
        try {
                for (auto pause = milliseconds(1); !done;
                     pause = std::min(pause * 2, turn_period)) {
                        std::this_thread::sleep_for(pause);
                        for (; known < connected; known++)
                                host.here(host.host, known, 1);
                        if (!done)
                                take_turn();
                }
        } catch (...) {
                for (stop = true; !done; std::this_thread::sleep_for(milliseconds(1)))
                        cut();
                helper.join();
                throw;
        }
        helper.join();
        if (connected < world)
                throw Lost{connected, "cannot be connected with: " + what};
        for (int peer = 0; peer < world; peer++)
                if (peer != rank)
                        watch(peer);
}

void gloo_context::cut() {
        for (int peer = 0; peer < world; peer++)
                if (peer != rank)
                        transport->getPair(peer)->close();
}

/* ---- messages ---- */

buffer_ptr gloo_context::buffer_on(const void *data, size_t bytes) {
        return transport->createUnboundBuffer(const_cast<void *>(data), bytes);
}

void gloo_context::send(Messages *messages, UnboundBuffer *buffer, int peer, uint64_t slot,
                        size_t offset, size_t bytes) {
        try {
                buffer->send(peer, slot, offset, bytes);
        } catch (const gloo::IoException &) {
                throw Lost{peer, "closed the connection"};
        }
        messages->push_back({buffer, peer, true});
        owe(peer);
}

void gloo_context::receive(Messages *messages, UnboundBuffer *buffer, int peer, uint64_t slot,
                           size_t offset, size_t bytes) {
        try {
                buffer->recv(peer, slot, offset, bytes);
        } catch (const gloo::IoException &) {
                throw Lost{peer, "closed the connection"};
        }
        if (!messages)
                return;
        messages->push_back({buffer, peer, false});
        owe(peer);
}

/* The next segment from each peer. */
Messages gloo_context::receive_segment(uint64_t slot, size_t parity, size_t bytes) {
        Messages messages;

        for (int peer = 0; peer < world; peer++)
                if (peer != rank)
                        receive(&messages, segments[(size_t) peer * 2 + parity].get(), peer, slot,
                                0, bytes);
        return messages;
}

template <typename T> T *gloo_context::received(int peer, size_t parity) {
        return reinterpret_cast<T *>(scratch.data() + ((size_t) peer * 2 + parity) * segment_bytes);
}

/* target = ((x0 + x1) + x2) + ... with this rank's `mine` in its place, which may be target. As
 * long as mine is not in, the sum grows in what came from rank 0. */
template <typename T>
void gloo_context::sum(T *target, const T *mine, size_t parity, size_t count) {
        auto x = [&](int r) { return r == rank ? mine : received<T>(r, parity); };
        const T *so_far = x(0);

        for (int r = 1; r < world; r++) {
                T *next = r >= rank ? target : received<T>(0, parity);
                add(next, so_far, x(r), count);
                so_far = next;
        }
}

/* ---- collectives ---- */

/* Everybody gets all and adds it up: one way instead of two. */
template <typename T> void gloo_context::reduce_small(uint64_t slot, T *data, size_t count) {
        size_t bytes = count * sizeof(T);
        buffer_ptr mine = buffer_on(data, bytes);
        T *total = received<T>(rank, 0); /* nobody sends this */
        Messages sends;

        Messages receives = receive_segment(slot, 0, bytes);
        for (int peer = 0; peer < world; peer++)
                if (peer != rank)
                        send(&sends, mine.get(), peer, slot, 0, bytes);
        wait_all(std::move(receives));
        sum(total, data, 0, count);
        wait_all(std::move(sends));
        memcpy(data, total, bytes);
}

/* Adds up elements begin[rank] .. begin[rank + 1] of everybody's source in target, in segments, and
 * tells `finished` each (offset and count); the other parts go to the other ranks. */
template <typename T, typename F>
void gloo_context::reduce_parts(uint64_t slot, const T *source, const std::vector<size_t> &begin,
                                T *target, F &&finished) {
        const size_t step = segment_bytes / sizeof(T);
        const T *mine = source + begin[(size_t) rank];
        size_t count = begin[(size_t) rank + 1] - begin[(size_t) rank];
        auto length = [&](size_t at) { return std::min(step, count - at); };
        Messages coming[2], sends;
        std::vector<buffer_ptr> parts((size_t) world);

        for (size_t at = 0; at < count && at < 2 * step; at += step)
                coming[at / step] = receive_segment(slot, at / step, length(at) * sizeof(T));
        for (int i = 1; i < world; i++) { /* each begins with another one */
                int peer = (rank + i) % world;
                size_t first = begin[(size_t) peer],
                       bytes = (begin[(size_t) peer + 1] - first) * sizeof(T);
                parts[(size_t) peer] = buffer_on(source + first, bytes);
                for (size_t at = 0; at < bytes; at += segment_bytes)
                        send(&sends, parts[(size_t) peer].get(), peer, slot, at,
                             std::min(segment_bytes, bytes - at));
        }
        for (size_t at = 0; at < count; at += step) {
                size_t parity = at / step % 2, after = at + 2 * step;
                wait_all(std::move(coming[parity]));
                sum(target + at, mine + at, parity, length(at));
                if (after < count)
                        coming[parity] = receive_segment(slot, parity, length(after) * sizeof(T));
                finished(at, length(at));
        }
        wait_all(std::move(sends));
}

/* A segment is sent to all as soon as it is added up. What comes back into the buffer was added up
 * from what was sent from there before. */
template <typename T> void gloo_context::all_reduce(uint64_t slot, T *data, size_t count) {
        if (count == 0 || world == 1)
                return;
        if (count * sizeof(T) <= small_bytes)
                return reduce_small(slot, data, count);

        std::vector<size_t> begin((size_t) world + 1);
        std::vector<buffer_ptr> parts((size_t) world);
        Messages messages;
        for (size_t r = 0; r <= (size_t) world; r++)
                begin[r] = count / (size_t) world * r + std::min(r, count % (size_t) world);
        for (int r = 0; r < world; r++) {
                size_t first = begin[(size_t) r],
                       bytes = (begin[(size_t) r + 1] - first) * sizeof(T);
                parts[(size_t) r] = buffer_on(data + first, bytes);
                for (size_t at = 0; r != rank && at < bytes; at += segment_bytes)
                        receive(&messages, parts[(size_t) r].get(), r, slot + 1, at,
                                std::min(segment_bytes, bytes - at));
        }
        reduce_parts(slot, data, begin, data + begin[(size_t) rank], [&](size_t at, size_t n) {
                for (int i = 1; i < world; i++)
                        send(&messages, parts[(size_t) rank].get(), (rank + i) % world, slot + 1,
                             at * sizeof(T), n * sizeof(T));
        });
        wait_all(std::move(messages));
}

template <typename T>
void gloo_context::reduce_scatter(uint64_t slot, const T *source, T *target, size_t count) {
        std::vector<size_t> begin((size_t) world + 1);

        if (count == 0)
                return;
        if (world == 1) {
                memmove(target, source, count * sizeof(T));
                return;
        }
        for (size_t r = 0; r <= (size_t) world; r++)
                begin[r] = r * count;
        reduce_parts(slot, source, begin, target, [](size_t, size_t) {});
}

void gloo_context::all_gather(uint64_t slot, const void *source, void *target, size_t bytes) {
        char *all = static_cast<char *>(target), *own = all + (size_t) rank * bytes;
        buffer_ptr whole;
        Messages messages;

        if (bytes == 0)
                return;
        if (own != source)
                memcpy(own, source, bytes);
        whole = buffer_on(all, (size_t) world * bytes);
        std::vector<buffer_ptr> parts((size_t) world);
        for (int i = 1; i < world; i++) {
                int peer = (rank + world - i) % world;
                parts[(size_t) peer] = buffer_on(all + (size_t) peer * bytes, bytes);
                receive(&messages, parts[(size_t) peer].get(), peer, slot, 0, bytes);
        }
        for (int i = 1; i < world; i++)
                send(&messages, whole.get(), (rank + i) % world, slot, (size_t) rank * bytes,
                     bytes);
        wait_all(std::move(messages));
}

void gloo_context::broadcast(uint64_t slot, void *data, size_t bytes, int root) {
        buffer_ptr buffer;
        Messages messages;

        if (bytes == 0)
                return;
        buffer = buffer_on(data, bytes);
        if (rank != root)
                receive(&messages, buffer.get(), root, slot, 0, bytes);
        for (int peer = 0; rank == root && peer < world; peer++)
                if (peer != root)
                        send(&messages, buffer.get(), peer, slot, 0, bytes);
        wait_all(std::move(messages));
}

/* ---- the table ---- */

namespace {

/* Messages of different operations do not meet: ranks that are not in the same one wait, and find
 * out in a turn. Two slots each. */
uint64_t slot_of(uint64_t sequence, unsigned verb, uint64_t bytes) {
        uint64_t mixed = bytes * UINT64_C(0x9e3779b97f4a7c15) >> 48;
        return sequence << 20 | (mixed & 0xffff) << 4 | verb << 1;
}

template <typename F> int guarded(struct gloo_context *g, struct cairn_error *reterr, F &&f) {
        try {
                QuietPipe quiet;
                f();
                return 0;
        } catch (const Ended &ended) {
                if (reterr)
                        *reterr = g->error;
                return ended.status;
        } catch (const Lost &lost) {
                return g->host.lost(g->host.host, lost.rank, lost.how.c_str(), reterr);
        } catch (const std::bad_alloc &) {
                return error_set(reterr, CAIRN_ERR_NOMEM, "use gloo", "", "no memory");
        } catch (const std::exception &e) {
                return error_set(reterr, CAIRN_ERR_FATAL, "use gloo", "", "%s", e.what());
        }
}

template <typename F> int collective(struct gloo_context *g, struct cairn_error *reterr, F &&f) {
        return guarded(g, reterr, [&] {
                g->begin();
                f();
        });
}

int plugin_open(const struct gloo_setup *setup, struct gloo_context **ret,
                struct cairn_error *reterr) {
        try {
                *ret = new gloo_context(*setup);
                return 0;
        } catch (const std::exception &e) {
                return error_set(reterr, CAIRN_ERR_UNREACHABLE, "listen on", setup->interface, "%s",
                                 e.what());
        }
}

const char *plugin_describe(const struct gloo_context *g) {
        return g->description.c_str();
}

int plugin_addresses(struct gloo_context *g, unsigned char *ret, struct cairn_error *reterr) {
        return guarded(g, reterr, [&] {
                memset(ret, 0, (size_t) g->world * GLOO_ADDRESS_BYTES);
                for (int peer = 0; peer < g->world; peer++) {
                        if (peer == g->rank)
                                continue;
                        std::vector<char> bytes = g->transport->getPair(peer)->address().bytes();
                        if (bytes.size() >= GLOO_ADDRESS_BYTES)
                                throw std::length_error("an address is too long");
                        unsigned char *to = ret + (size_t) peer * GLOO_ADDRESS_BYTES;
                        to[0] = (unsigned char) bytes.size();
                        memcpy(to + 1, bytes.data(), bytes.size());
                }
        });
}

int plugin_connect(struct gloo_context *g, const unsigned char *theirs,
                   struct cairn_error *reterr) {
        return guarded(g, reterr, [&] { g->connect(theirs); });
}

int unsupported(enum cairn_dtype dtype, struct cairn_error *reterr) {
        return error_set(reterr, CAIRN_ERR_UNSUPPORTED, "add up", "gloo",
                         "sums are of f32, f64 or i64, not of type %d", (int) dtype);
}

int plugin_all_reduce(struct gloo_context *g, uint64_t sequence, void *data, uint64_t count,
                      enum cairn_dtype dtype, struct cairn_error *reterr) {
        uint64_t slot = slot_of(sequence, 1, count << 5 | dtype);

        switch (dtype) {
        case CAIRN_F32:
                return collective(g, reterr, [&] { g->all_reduce(slot, (float *) data, count); });
        case CAIRN_F64:
                return collective(g, reterr, [&] { g->all_reduce(slot, (double *) data, count); });
        case CAIRN_I64:
                return collective(g, reterr,
                                  [&] { g->all_reduce(slot, (uint64_t *) data, count); });
        default:
                return unsupported(dtype, reterr);
        }
}

int plugin_reduce_scatter(struct gloo_context *g, uint64_t sequence, const void *source,
                          void *target, uint64_t count, enum cairn_dtype dtype,
                          struct cairn_error *reterr) {
        uint64_t slot = slot_of(sequence, 2, count << 5 | dtype);

        switch (dtype) {
        case CAIRN_F32:
                return collective(g, reterr, [&] {
                        g->reduce_scatter(slot, (const float *) source, (float *) target, count);
                });
        case CAIRN_F64:
                return collective(g, reterr, [&] {
                        g->reduce_scatter(slot, (const double *) source, (double *) target, count);
                });
        case CAIRN_I64:
                return collective(g, reterr, [&] {
                        g->reduce_scatter(slot, (const uint64_t *) source, (uint64_t *) target,
                                          count);
                });
        default:
                return unsupported(dtype, reterr);
        }
}

int plugin_all_gather(struct gloo_context *g, uint64_t sequence, const void *source, void *target,
                      uint64_t bytes, struct cairn_error *reterr) {
        return collective(g, reterr, [&] {
                g->all_gather(slot_of(sequence, 3, bytes), source, target, bytes);
        });
}

int plugin_broadcast(struct gloo_context *g, uint64_t sequence, void *data, uint64_t bytes,
                     int root, struct cairn_error *reterr) {
        return collective(g, reterr, [&] {
                g->broadcast(slot_of(sequence, 4, bytes << 12 | (unsigned) root), data, bytes,
                             root);
        });
}

void plugin_cut(struct gloo_context *g) {
        (void) guarded(g, nullptr, [&] { g->cut(); });
}

void plugin_close(struct gloo_context *g) {
        QuietPipe quiet;
        delete g;
}

} // namespace

extern "C" __attribute__((visibility("default"))) const struct gloo_plugin cairn_comm_gloo = {
        GLOO_PLUGIN_ABI,
        sizeof(struct gloo_plugin),
        TEXT_OF(GLOO_VERSION_MAJOR) "." TEXT_OF(GLOO_VERSION_MINOR) "." TEXT_OF(GLOO_VERSION_PATCH),
        plugin_open,
        plugin_describe,
        plugin_addresses,
        plugin_connect,
        plugin_all_reduce,
        plugin_reduce_scatter,
        plugin_all_gather,
        plugin_broadcast,
        plugin_cut,
        plugin_close,
};
