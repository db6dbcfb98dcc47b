/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/server.h"
#include "base/assert.h"
#include "base/cleanup.h"
#include "base/log.h"
#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

static void connection_ready(void *context, uint32_t events);

/* ---- queued packets ---- */

static void packet_free(struct server_packet *p) {
        for (size_t i = 0; i < p->fd_count; i++)
                (void) close(p->fds[i]);
        free(p->bytes);
        free(p);
}

static struct server_packet *packet_new(const Cairn__Control__Envelope *e, const int *fds,
                                        size_t fd_count) {
        struct server_packet *p = calloc(1, sizeof *p);
        if (!p)
                return NULL;
        p->byte_count = cairn__control__envelope__get_packed_size(e);
        p->bytes = malloc(p->byte_count ? p->byte_count : 1);
        if (!p->bytes)
                goto fail;
        cairn__control__envelope__pack(e, p->bytes);
        for (size_t i = 0; i < fd_count; i++) {
                p->fds[i] = fcntl(fds[i], F_DUPFD_CLOEXEC, 3);
                if (p->fds[i] < 0)
                        goto fail;
                p->fd_count++;
        }
        return p;
fail:
        packet_free(p);
        return NULL;
}

/* Whether one more line may be said about what others do to us: they must not fill the log. */
static bool may_say(struct server *c) {
        uint64_t now_ns = loop_now(c->loop);
        if (now_ns >= c->say_from_ns + NSEC_PER_SEC) {
                if (c->unsaid)
                        log_event(LOG_LEVEL_WARNING,
                                  "connections=\"%u more were refused or dropped\"", c->unsaid);
                c->say_from_ns = now_ns;
                c->said = c->unsaid = 0;
        }
        if (c->said < SERVER_SAY_MAX)
                c->said++;
        else
                c->unsaid++;
        return c->unsaid == 0;
}

void server_drop(struct connection *c, const char *why) {
        if (c->fd < 0)
                return;
        if (why && may_say(c->server))
                log_event(LOG_LEVEL_WARNING, "connection=%llu pid=%d dropped=\"%s\"",
                          (unsigned long long) c->serial, (int) c->pid, why);
        loop_unwatch(c->server->loop, &c->source);
        loop_timer_clear(c->server->loop, &c->hello_timer);
        (void) close(c->fd);
        c->fd = -1;
        while (c->out) {
                struct server_packet *p = c->out;
                c->out = p->next;
                packet_free(p);
        }
        c->out_tail = &c->out;
        c->out_count = 0;
        if (c->server->options.closed)
                c->server->options.closed(c->server->options.context, c);
        c->session = NULL;
        c->run = NULL;
}

static void flush(struct connection *c) {
        while (c->out) {
                struct server_packet *p = c->out;
                struct cairn_error error = CAIRN_ERROR_INIT;
                Cairn__Control__Envelope *e =
                        cairn__control__envelope__unpack(NULL, p->byte_count, p->bytes);
                if (!e) {
                        server_drop(c, "no memory for what was queued");
                        return;
                }
                int r = wire_send(c->fd, e, p->fds, p->fd_count, 0, &error);
                cairn__control__envelope__free_unpacked(e, NULL);
                if (r == CAIRN_ERR_BUSY)
                        return;
                if (r < 0) {
                        server_drop(c, NULL);
                        return;
                }
                c->out = p->next;
                if (!c->out)
                        c->out_tail = &c->out;
                c->out_count--;
                packet_free(p);
        }
        if (c->closing)
                server_drop(c, NULL);
        else
                loop_change(c->server->loop, &c->source, EPOLLIN);
}

static void send_packet(struct connection *c, const Cairn__Control__Envelope *e, const int *fds,
                        size_t fd_count) {
        struct cairn_error error = CAIRN_ERROR_INIT;
        if (!c->out) {
                int r = wire_send(c->fd, e, fds, fd_count, 0, &error);
                if (r == 0)
                        return;
                if (r != CAIRN_ERR_BUSY) {
                        /* A peer that hung up is no event; end-of-file is noticed by reading. */
                        if (r != CAIRN_ERR_PEER)
                                log_error(LOG_LEVEL_WARNING, "send answer", &error);
                        return;
                }
        }
        struct server_packet *p =
                c->out_count < SERVER_OUT_MAX ? packet_new(e, fds, fd_count) : NULL;
        if (!p) {
                server_drop(c, "it does not read its answers");
                return;
        }
        *c->out_tail = p;
        c->out_tail = &p->next;
        c->out_count++;
        loop_change(c->server->loop, &c->source, EPOLLIN | EPOLLOUT);
}

/* ---- answers ---- */

struct reply_to server_later(struct connection *c, uint64_t id) {
        return (struct reply_to){.connection = c, .serial = c->serial, .id = id};
}

struct connection *server_reach(const struct reply_to *to) {
        struct connection *c = to->connection;
        return c && c->fd >= 0 && c->serial == to->serial ? c : NULL;
}

void server_reply(const struct reply_to *to, Cairn__Control__Envelope *e, const int *fds,
                  size_t fd_count) {
        struct connection *c = server_reach(to);
        if (!c || to->id == 0) /* id 0: told, not asked */
                return;
        e->id = to->id;
        send_packet(c, e, fds, fd_count);
}

void server_tell(const struct reply_to *to, Cairn__Control__Envelope *e) {
        struct connection *c = server_reach(to);
        e->id = 0;
        if (c)
                send_packet(c, e, NULL, 0);
}

void server_fail(const struct reply_to *to, const struct cairn_error *error) {
        Cairn__Control__Envelope e = CAIRN__CONTROL__ENVELOPE__INIT;
        Cairn__Control__Failure f = CAIRN__CONTROL__FAILURE__INIT;
        wire_failure_fill(&f, error);
        e.failure = &f;
        server_reply(to, &e, NULL, 0);
}

void server_done_reply(const struct reply_to *to) {
        Cairn__Control__Envelope e = CAIRN__CONTROL__ENVELOPE__INIT;
        Cairn__Control__Done d = CAIRN__CONTROL__DONE__INIT;
        e.body_case = CAIRN__CONTROL__ENVELOPE__BODY_DONE;
        e.done = &d;
        server_reply(to, &e, NULL, 0);
}

bool server_idle(const struct server *c) {
        for (size_t i = 0; i < CONNECTION_COUNT_MAX; i++)
                if (c->connections[i].fd >= 0 && c->connections[i].out)
                        return false;
        return true;
}

/* ---- requests ---- */

/* Version and kind; the rest of a Hello belongs to its row. An older side is served as far as its
 * features go; another protocol is refused with a sentence. */
static int check_hello(struct connection *c, const Cairn__Control__Envelope *e,
                       struct cairn_error *reterr) {
        if (e->body_case != CAIRN__CONTROL__ENVELOPE__BODY_HELLO)
                return error_set(reterr, CAIRN_ERR_API, "greet agent", "",
                                 "the first message must be Hello");
        const Cairn__Control__Hello *h = e->hello;
        if (h->protocol != WIRE_PROTOCOL)
                return error_set(reterr, CAIRN_ERR_UNSUPPORTED, "greet agent", "",
                                 "this agent speaks protocol %d and the peer protocol %u: install "
                                 "the same version of Cairn on both sides",
                                 WIRE_PROTOCOL, h->protocol);
        if (h->kind != CAIRN__CONTROL__PEER_KIND__PEER_CLIENT &&
            h->kind != CAIRN__CONTROL__PEER_KIND__PEER_RUNNER &&
            h->kind != CAIRN__CONTROL__PEER_KIND__PEER_TOOL)
                return error_set(reterr, CAIRN_ERR_UNSUPPORTED, "greet agent", "",
                                 "unknown kind of peer %d", (int) h->kind);
        c->kind = h->kind;
        c->features = h->features & SERVER_FEATURES;
        loop_timer_clear(c->server->loop, &c->hello_timer);
        return 0;
}

static int dispatch(struct connection *c, const Cairn__Control__Envelope *e, struct wire_fds *fds,
                    struct cairn_error *reterr) {
        const struct server_options *o = &c->server->options;
        if (c->kind == CAIRN__CONTROL__PEER_KIND__PEER_UNSET) {
                int r = check_hello(c, e, reterr);
                if (r < 0) {
                        c->closing = true;
                        return r;
                }
        } else if (e->body_case == CAIRN__CONTROL__ENVELOPE__BODY_HELLO) {
                return error_set(reterr, CAIRN_ERR_API, "greet agent", "",
                                 "Hello is sent once a connection");
        }
        for (size_t i = 0; i < o->row_count; i++)
                if (o->rows[i].body == (int) e->body_case) {
                        if (!(o->rows[i].kinds & 1u << c->kind))
                                return error_set(reterr, CAIRN_ERR_PERMISSION, "handle message", "",
                                                 "this kind of peer may not send it");
                        return o->rows[i].call(o->context, c, e, fds, reterr);
                }
        return error_set(reterr, CAIRN_ERR_UNSUPPORTED, "handle message", "",
                         "this agent (%s) does not know the message; its version may be older",
                         SERVER_SOFTWARE);
}

/* One packet a wake-up, so that a busy peer does not starve the others. */
static void receive(struct connection *c) {
        struct wire_fds fds = WIRE_FDS_INIT;
        struct cairn_error error = CAIRN_ERROR_INIT;
        Cairn__Control__Envelope *e = NULL;
        arena_clear(&c->arena);
        int r = wire_receive(c->fd, &c->arena, &e, &fds, 0, &error);
        if (r == CAIRN_ERR_BUSY)
                return;
        bool lost = r == CAIRN_ERR_NOMEM && e; /* its descriptors */
        if (r < 0 && !lost) {
                char text[256];
                server_drop(c,
                            r == CAIRN_ERR_PEER ? NULL : error_format(&error, text, sizeof text));
                return;
        }
        struct reply_to to = server_later(c, e->id);
        c->closing = c->closing || lost;
        r = lost ? r : dispatch(c, e, &fds, &error);
        wire_fds_done(&fds);
        if (r < 0) {
                if (may_say(c->server))
                        log_error(LOG_LEVEL_WARNING, "serve request", &error);
                server_fail(&to, &error);
        }
        if (server_reach(&to) && c->closing && !c->out)
                server_drop(c, NULL);
}

static void connection_ready(void *context, uint32_t events) {
        struct connection *c = context;
        uint64_t serial = c->serial;
        if (events & EPOLLOUT)
                flush(c);
        if (c->fd >= 0 && c->serial == serial && events & (EPOLLIN | EPOLLHUP | EPOLLERR))
                receive(c);
}

static void hello_late(void *context) {
        server_drop(context, "it did not say Hello");
}

/* ---- accepting ---- */

static bool in_group(int fd, gid_t primary, gid_t group) {
        if (group == (gid_t) -1)
                return false;
        if (primary == group)
                return true;
        gid_t groups[1024];
        socklen_t bytes = sizeof groups;
        if (getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, groups, &bytes) < 0)
                return false;
        for (size_t i = 0; i < bytes / sizeof *groups; i++)
                if (groups[i] == group)
                        return true;
        return false;
}

static bool is_idle(const struct connection *c) {
        return c->fd >= 0 && !c->session && !c->run;
}

static size_t idle_count(const struct server *c, uid_t uid) {
        size_t count = 0;
        for (size_t i = 0; i < CONNECTION_COUNT_MAX; i++)
                count += is_idle(&c->connections[i]) && c->connections[i].uid == uid;
        return count;
}

/* A free slot, or the oldest idle one of the user who has most of them; NULL: all are at work. */
static struct connection *find_slot(struct server *c) {
        struct connection *found = NULL;
        size_t most = 0;
        for (size_t i = 0; i < CONNECTION_COUNT_MAX; i++) {
                struct connection *k = &c->connections[i];
                if (k->fd < 0)
                        return k;
        }
        for (size_t i = 0; i < CONNECTION_COUNT_MAX; i++) {
                struct connection *k = &c->connections[i];
                size_t count = is_idle(k) ? idle_count(c, k->uid) : 0;
                if (count > most || (count && count == most && k->serial < found->serial)) {
                        most = count;
                        found = k;
                }
        }
        if (found)
                server_drop(found, "its user has the most connections, and all are taken");
        return found;
}

int server_adopt(struct server *c, int fd, struct connection **ret, struct cairn_error *reterr) {
        struct ucred cred;
        socklen_t bytes = sizeof cred;
        if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &bytes) < 0)
                return error_set_errno(reterr, errno, "identify peer", "");
        if (cred.uid != geteuid() && cred.uid != 0 && !in_group(fd, cred.gid, c->options.group_id))
                return error_set(reterr, CAIRN_ERR_PERMISSION, "accept connection", "",
                                 "user %u is neither the agent's user nor root nor in its group",
                                 (unsigned) cred.uid);
        struct connection *slot = find_slot(c);
        if (!slot)
                return error_set(reterr, CAIRN_ERR_BUSY, "accept connection", "",
                                 "%d connections are open, which is the limit",
                                 CONNECTION_COUNT_MAX);
        arena_done(&slot->arena);
        *slot = (struct connection){.server = c,
                                    .fd = fd,
                                    .serial = ++c->serial_last,
                                    .pid = cred.pid,
                                    .uid = cred.uid};
        slot->out_tail = &slot->out;
        arena_init(&slot->arena, 4 * MiB);
        loop_timer_init(&slot->hello_timer, hello_late, slot);
        int r = loop_watch(c->loop, &slot->source, fd, EPOLLIN, connection_ready, slot, reterr);
        if (r < 0) {
                slot->fd = -1;
                return r;
        }
        loop_timer_set(c->loop, &slot->hello_timer, loop_now(c->loop) + SERVER_HELLO_NS);
        if (ret)
                *ret = slot;
        return 0;
}

static void listener_ready(void *context, uint32_t events) {
        struct server *c = context;
        (void) events;
        int fd = accept4(c->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        struct cairn_error error = CAIRN_ERROR_INIT;
        if (fd < 0 && (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED))
                return;
        if (fd < 0) {
                /* No descriptors or no memory: the listener would be ready for ever. */
                (void) error_set_errno(&error, errno, "accept connection", c->options.socket_path);
                if (!c->accept_failed)
                        log_error(LOG_LEVEL_ERROR, "accept connection; it is tried again", &error);
                c->accept_failed = true;
                loop_change(c->loop, &c->listen_source, 0);
                return;
        }
        c->accept_failed = false;
        if (server_adopt(c, fd, NULL, &error) < 0) {
                if (may_say(c))
                        log_error(LOG_LEVEL_WARNING, "accept connection", &error);
                (void) close(fd);
        }
}

/* The folder of the socket: ours alone, unless it existed before and root owns it (/run/cairn, made
 * by tmpfiles for the group). */
static int prepare_folder(const char *path, struct cairn_error *reterr) {
        char folder[sizeof((struct sockaddr_un *) 0)->sun_path];
        const char *slash = strrchr(path, '/');
        if (!slash || slash == path)
                return 0;
        (void) snprintf(folder, sizeof folder, "%.*s", (int) (slash - path), path);
        if (mkdir(folder, 0700) < 0 && errno != EEXIST)
                return error_set_errno(reterr, errno, "create socket folder", folder);
        struct stat st;
        if (lstat(folder, &st) < 0)
                return error_set_errno(reterr, errno, "inspect socket folder", folder);
        if (!S_ISDIR(st.st_mode))
                return error_set(reterr, CAIRN_ERR_PERMISSION, "inspect socket folder", folder,
                                 "not a directory");
        if (st.st_uid != geteuid() && st.st_uid != 0)
                return error_set(reterr, CAIRN_ERR_PERMISSION, "inspect socket folder", folder,
                                 "it belongs to user %u: whoever owns the folder can replace the "
                                 "socket, so use another one (--socket)",
                                 (unsigned) st.st_uid);
        if (st.st_mode & S_IWOTH)
                return error_set(reterr, CAIRN_ERR_PERMISSION, "inspect socket folder", folder,
                                 "everybody may write there: use a private one (--socket)");
        return 0;
}

/* A file left by an agent that died is replaced; one behind which somebody answers is not. */
static int remove_stale(const struct sockaddr_un *address, struct cairn_error *reterr) {
        struct stat st;
        if (lstat(address->sun_path, &st) < 0)
                return errno == ENOENT ? 0
                                       : error_set_errno(reterr, errno, "inspect socket",
                                                         address->sun_path);
        if (!S_ISSOCK(st.st_mode))
                return error_set(reterr, CAIRN_ERR_EXISTS, "create socket", address->sun_path,
                                 "the path is taken by something that is no socket");
        _cleanup_close_ int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd < 0)
                return error_set_errno(reterr, errno, "create socket", address->sun_path);
        if (connect(fd, (const struct sockaddr *) address, sizeof *address) == 0 || errno == EAGAIN)
                return error_set(reterr, CAIRN_ERR_EXISTS, "create socket", address->sun_path,
                                 "another agent answers there; a second one is not started");
        if (errno != ECONNREFUSED)
                return error_set_errno(reterr, errno, "probe socket", address->sun_path);
        if (unlink(address->sun_path) < 0 && errno != ENOENT)
                return error_set_errno(reterr, errno, "remove stale socket", address->sun_path);
        return 0;
}

static int open_listener(struct server *c, struct cairn_error *reterr) {
        struct sockaddr_un address = {.sun_family = AF_UNIX};
        const char *path = c->options.socket_path;
        if (strlen(path) >= sizeof address.sun_path)
                return error_set(reterr, CAIRN_ERR_API, "create socket", path, "path too long");
        memcpy(address.sun_path, path, strlen(path) + 1);
        TRY(prepare_folder(path, reterr));
        TRY(remove_stale(&address, reterr));
        _cleanup_close_ int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd < 0)
                return error_set_errno(reterr, errno, "create socket", path);
        bool shared = c->options.group_id != (gid_t) -1;
        mode_t old = umask(shared ? 0117 : 0177);
        int r = bind(fd, (const struct sockaddr *) &address, sizeof address);
        int bind_errno = errno;
        (void) umask(old);
        if (r < 0)
                return error_set_errno(reterr, bind_errno, "bind socket", path);
        if (shared && chown(path, (uid_t) -1, c->options.group_id) < 0 && errno != EPERM)
                return error_set_errno(reterr, errno, "hand socket to group", path);
        struct stat st;
        if (listen(fd, 64) < 0 || lstat(path, &st) < 0)
                return error_set_errno(reterr, errno, "listen", path);
        c->listen_device = st.st_dev;
        c->listen_inode = st.st_ino;
        loop_unwatch(c->loop, &c->listen_source);
        cleanup_close(&c->listen_fd); /* of a file that is gone */
        c->listen_fd = -1;
        TRY(loop_watch(c->loop, &c->listen_source, fd, EPOLLIN, listener_ready, c, reterr));
        c->listen_fd = TAKE_FD(fd);
        return 0;
}

static bool owns_file(const struct server *c) {
        struct stat st;
        return lstat(c->options.socket_path, &st) == 0 && st.st_dev == c->listen_device &&
               st.st_ino == c->listen_inode;
}

/* Without its file an agent that is alive cannot be reached: tools would call its runs ended, and a
 * trainer that was restarted would find nobody. */
static void keep_file(void *context) {
        struct server *c = context;
        struct cairn_error error = CAIRN_ERROR_INIT;
        loop_timer_set(c->loop, &c->listen_timer, loop_now(c->loop) + SERVER_FILE_NS);
        if (c->accept_failed)
                loop_change(c->loop, &c->listen_source, EPOLLIN);
        if (owns_file(c))
                return;
        if (open_listener(c, &error) == 0) {
                log_event(LOG_LEVEL_WARNING,
                          "socket=%s reason=\"it was removed\" action=\"made again\"",
                          c->options.socket_path);
                c->listen_lost = false;
        } else if (!c->listen_lost) {
                log_error(LOG_LEVEL_ERROR, "make the removed socket again", &error);
                c->listen_lost = true;
        }
}

static int take_listener(struct server *c, int fd, struct cairn_error *reterr) {
        int flags = fcntl(fd, F_GETFL);
        if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0)
                return error_set_errno(reterr, errno, "take over socket", c->options.socket_path);
        TRY(loop_watch(c->loop, &c->listen_source, fd, EPOLLIN, listener_ready, c, reterr));
        c->listen_fd = fd;
        c->listen_given = true;
        return 0;
}

int server_init(struct server *c, struct loop *loop, const struct server_options *options,
                struct cairn_error *reterr) {
        *c = (struct server){.loop = loop, .options = *options, .listen_fd = -1};
        c->connections = calloc(CONNECTION_COUNT_MAX, sizeof *c->connections);
        if (!c->connections)
                return error_set_errno(reterr, ENOMEM, "create connections", "");
        for (size_t i = 0; i < CONNECTION_COUNT_MAX; i++)
                c->connections[i].fd = -1;
        loop_timer_init(&c->listen_timer, keep_file, c);
        if (!options->socket_path)
                return 0;
        if (options->listen_fd > 0)
                return take_listener(c, options->listen_fd, reterr);
        TRY(open_listener(c, reterr));
        loop_timer_set(loop, &c->listen_timer, loop_now(loop) + SERVER_FILE_NS);
        return 0;
}

void server_close_listener(struct server *c) {
        loop_timer_clear(c->loop, &c->listen_timer);
        if (c->listen_fd < 0)
                return;
        loop_unwatch(c->loop, &c->listen_source);
        (void) close(c->listen_fd);
        c->listen_fd = -1;
        if (!c->listen_given && owns_file(c)) /* else it is somebody else's by now */
                (void) unlink(c->options.socket_path);
}

void server_done(struct server *c) {
        if (!c->connections)
                return;
        server_close_listener(c);
        for (size_t i = 0; i < CONNECTION_COUNT_MAX; i++) {
                server_drop(&c->connections[i], NULL);
                arena_done(&c->connections[i].arena);
        }
        free(c->connections);
        c->connections = NULL;
}
