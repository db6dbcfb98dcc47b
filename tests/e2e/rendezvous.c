/* SPDX-License-Identifier: Apache-2.0
 *
 * rendezvous SCENARIO KIND FOLDER [WEATHER] - agents that meet, as real processes: each a loop with
 * a rendezvous object and its child. KIND is dir or etcd (a real one, on free ports, in FOLDER).
 * Prints an "ok" line for each thing shown; anything else ends with 1 and a sentence.
 */
#include "agent/rendezvous_etcd.h"
#include "agent/rendezvous_process.h"
#include "base/cleanup.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

enum { MEMBERS_MAX = 8, ANSWERS_MAX = 64 };
#define MS NSEC_PER_MSEC
enum {
        PATIENCE_MS = 60000, /* what nobody promised a time for, on a slow machine */
        LOSS_MS = RENDEZVOUS_LOSS_NS / MS + 5000 /* what is promised, and a margin */
};

enum order_kind { JOIN, LEAVE, CREATE, PUT, GET };
struct order {
        enum order_kind kind;
        uint32_t tag;
        uint64_t number, timeout_ms, nonce;
        char key[RENDEZVOUS_KEY_BYTES], value[64];
        struct rendezvous_member members[MEMBERS_MAX];
        size_t member_count;
};
struct shown { /* a view, flat */
        enum rendezvous_standing standing;
        uint64_t generation;
        char leader[RENDEZVOUS_NODE_BYTES];
        uint8_t secret[RENDEZVOUS_SECRET_BYTES];
        size_t member_count;
        struct rendezvous_member members[MEMBERS_MAX];
        int error;
        char message[512];
};
struct event {
        bool is_view;
        uint32_t tag;
        int status;
        char message[512], value[64];
        struct shown view;
        uint64_t stall_ns; /* longest dispatch so far */
};

/* ---- a member's process ---- */

struct agent {
        int socket;
        struct rendezvous *r;
        struct rendezvous_member self;
        uint64_t stall_ns;
};
struct asked {
        struct agent *agent;
        uint32_t tag;
};

static void tell(struct agent *a, struct event *e) {
        e->stall_ns = a->stall_ns;
        if (send(a->socket, e, sizeof *e, MSG_NOSIGNAL) != (ssize_t) sizeof *e)
                _exit(3);
}

static void on_change(void *context) {
        struct agent *a = context;
        const struct rendezvous_view *v = rendezvous_view(a->r);
        struct event e = {.is_view = true};

        e.view = (struct shown){.standing = v->standing,
                                .generation = v->generation.number,
                                .member_count = v->member_count,
                                .error = v->error.status};
        memcpy(e.view.leader, v->generation.leader, sizeof e.view.leader);
        memcpy(e.view.secret, v->generation.secret, sizeof e.view.secret);
        (void) snprintf(e.view.message, sizeof e.view.message, "%s", v->error.message);
        for (size_t i = 0; i < v->member_count && i < MEMBERS_MAX; i++)
                e.view.members[i] = v->members[i];
        tell(a, &e);
}

static void on_answer(void *context, const struct rendezvous_answer *answer) {
        struct asked *asked = context;
        struct event e = {.tag = asked->tag, .status = answer->status};

        on_change(asked->agent); /* an answer comes with the view that shows it */
        (void) error_format(&answer->error, e.message, sizeof e.message);
        if (answer->value && answer->value_bytes < sizeof e.value)
                memcpy(e.value, answer->value, answer->value_bytes);
        tell(asked->agent, &e);
        free(asked);
}

static int follow(struct agent *a, const struct order *o, struct asked *asked,
                  struct cairn_error *reterr) {
        uint64_t deadline_ns = clock_now(&clock_system) + o->timeout_ms * MS;
        struct rendezvous_generation g = {
                .number = o->number, .members = o->members, .member_count = o->member_count};

        switch (o->kind) {
        case JOIN:
                a->self.nonce = o->nonce;
                return rendezvous_join(a->r, &a->self, deadline_ns, on_answer, asked, reterr);
        case LEAVE:
                return rendezvous_leave(a->r, deadline_ns, on_answer, asked, reterr);
        case CREATE:
                for (size_t i = 0; i < o->member_count; i++)
                        g.world += o->members[i].ranks;
                return rendezvous_create(a->r, &g, deadline_ns, on_answer, asked, reterr);
        case PUT:
                return rendezvous_put(a->r, o->number, o->key, o->value, strlen(o->value),
                                      deadline_ns, on_answer, asked, reterr);
        case GET:
                return rendezvous_get(a->r, o->number, o->key, deadline_ns, on_answer, asked,
                                      reterr);
        }
        return -1;
}

static void obey(struct agent *a) {
        struct asked *asked = calloc(1, sizeof *asked);
        struct cairn_error error = CAIRN_ERROR_INIT;
        struct order o;

        if (!asked || recv(a->socket, &o, sizeof o, 0) != (ssize_t) sizeof o)
                _exit(0); /* the driver is done */
        *asked = (struct asked){a, o.tag};
        if (follow(a, &o, asked, &error) == 0)
                return;
        struct rendezvous_answer refused = {.status = error.status, .error = error};
        on_answer(asked, &refused);
}

static void live(struct agent *a, const struct rendezvous_place *place) {
        if (rendezvous_new(place, on_change, a, &a->r, NULL) < 0)
                _exit(4);
        for (;;) {
                struct pollfd p[] = {{.fd = a->socket, .events = POLLIN},
                                     {.fd = rendezvous_fd(a->r), .events = POLLIN}};
                (void) poll(p, 2, -1);
                if (p[0].revents)
                        obey(a);
                uint64_t before = clock_now(&clock_system);
                rendezvous_dispatch(a->r);
                uint64_t took = clock_now(&clock_system) - before;
                a->stall_ns = took > a->stall_ns ? took : a->stall_ns;
        }
}

/* ---- the driver ---- */

struct answered {
        uint32_t tag;
        int status;
        char message[512], value[64];
        uint64_t at_ns;
};
struct member {
        char node[RENDEZVOUS_NODE_BYTES];
        uint64_t nonce;
        pid_t pid; /* 0: none */
        int socket;
        struct shown view;
        struct answered answers[ANSWERS_MAX];
        size_t answer_count;
        bool dropped_others; /* the view was once without somebody who was in it */
        uint64_t stall_ns;
};
static struct driver {
        struct rendezvous_place place;
        char url[512], store[512], folder[512];
        const char *weather; /* of passfs, for "stuck" */
        struct member members[MEMBERS_MAX];
        uint32_t last_tag;
        bool is_etcd;
        pid_t etcd, fake;
        uint16_t ports[2];
} d;

static void end_all(void) {
        for (size_t i = 0; i < MEMBERS_MAX; i++)
                if (d.members[i].pid > 0)
                        (void) kill(d.members[i].pid, SIGKILL);
        if (d.etcd > 0)
                (void) kill(d.etcd, SIGKILL);
        if (d.fake > 0)
                (void) kill(d.fake, SIGKILL);
}

static _Noreturn void die(const char *format, ...) __attribute__((format(printf, 1, 2)));
static _Noreturn void die(const char *format, ...) {
        va_list list;

        va_start(list, format);
        printf("✗ ");
        vprintf(format, list);
        printf("\n");
        va_end(list);
        for (size_t i = 0; i < MEMBERS_MAX; i++) {
                const struct member *m = &d.members[i];
                if (m->pid > 0 || m->view.member_count > 0)
                        printf("    %s: standing %d, generation %" PRIu64 " of %s, %zu members, "
                               "error %d %s\n",
                               m->node, (int) m->view.standing, m->view.generation, m->view.leader,
                               m->view.member_count, m->view.error, m->view.message);
        }
        end_all();
        exit(1);
}

static void ok(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void ok(const char *format, ...) {
        va_list list;

        va_start(list, format);
        printf("ok %s: ", d.is_etcd ? "etcd" : "dir");
        vprintf(format, list);
        printf("\n");
        va_end(list);
        (void) fflush(stdout);
}

static uint64_t now_ns(void) {
        return clock_now(&clock_system);
}

static bool sees(const struct member *m, const struct member *other) {
        for (size_t i = 0; i < m->view.member_count && i < MEMBERS_MAX; i++)
                if (strcmp(m->view.members[i].node, other->node) == 0 &&
                    m->view.members[i].nonce == other->nonce)
                        return true;
        return false;
}

static void take_event(struct member *m, const struct event *e) {
        m->stall_ns = e->stall_ns;
        if (e->is_view) {
                m->dropped_others |= e->view.member_count < m->view.member_count;
                m->view = e->view;
                return;
        }
        if (m->answer_count == ANSWERS_MAX)
                die("%s: too many answers", m->node);
        struct answered *a = &m->answers[m->answer_count++];
        *a = (struct answered){.tag = e->tag, .status = e->status, .at_ns = now_ns()};
        memcpy(a->message, e->message, sizeof a->message);
        memcpy(a->value, e->value, sizeof a->value);
}

/* Takes what the members say, for at most that long or until one said something. */
static void listen_ms(int milliseconds) {
        struct pollfd p[MEMBERS_MAX];
        struct event e;

        for (size_t i = 0; i < MEMBERS_MAX; i++)
                p[i] = (struct pollfd){.fd = d.members[i].pid > 0 ? d.members[i].socket : -1,
                                       .events = POLLIN};
        if (poll(p, MEMBERS_MAX, milliseconds) <= 0)
                return;
        for (size_t i = 0; i < MEMBERS_MAX; i++)
                while (p[i].fd >= 0 && recv(p[i].fd, &e, sizeof e, MSG_DONTWAIT) == sizeof e)
                        take_event(&d.members[i], &e);
}

#define UNTIL(condition, milliseconds, ...)                               \
        do {                                                              \
                uint64_t end_ = now_ns() + (uint64_t) (milliseconds) *MS; \
                while (!(condition)) {                                    \
                        if (now_ns() > end_)                              \
                                die(__VA_ARGS__);                         \
                        listen_ms(50);                                    \
                }                                                         \
        } while (0)

static void wait_ms(uint64_t milliseconds) {
        uint64_t end = now_ns() + milliseconds * MS;
        while (now_ns() < end)
                listen_ms(20);
}

static uint64_t new_nonce(void) {
        uint64_t nonce = 0;
        while (nonce == 0)
                if (getrandom(&nonce, sizeof nonce, 0) != sizeof nonce)
                        die("no random number");
        return nonce;
}

static struct member *begin(size_t i, const char *node) {
        struct member *m = &d.members[i];
        int pair[2];

        *m = (struct member){.nonce = new_nonce()};
        (void) snprintf(m->node, sizeof m->node, "%s", node);
        if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
                die("no socket");
        (void) fflush(stdout);
        m->pid = fork();
        if (m->pid == 0) {
                struct agent a = {.socket = pair[1], .self = {.ranks = 2}};
                (void) prctl(PR_SET_PDEATHSIG, SIGKILL);
                (void) close(pair[0]);
                (void) snprintf(a.self.node, sizeof a.self.node, "%s", node);
                (void) snprintf(a.self.address, sizeof a.self.address, "127.0.0.1:%zu", 5000 + i);
                (void) snprintf(a.self.detail, sizeof a.self.detail, "intent=resume");
                live(&a, &d.place);
        }
        (void) close(pair[1]);
        m->socket = pair[0];
        return m;
}

static void stop(struct member *m) {
        (void) kill(m->pid, SIGKILL);
        (void) waitpid(m->pid, NULL, 0);
        (void) close(m->socket);
        m->pid = 0;
}

static uint32_t ask(struct member *m, struct order o) {
        o.tag = ++d.last_tag;
        if (send(m->socket, &o, sizeof o, MSG_NOSIGNAL) != (ssize_t) sizeof o)
                die("%s does not listen", m->node);
        return o.tag;
}

static const struct answered *answer_of(const struct member *m, uint32_t tag) {
        for (size_t i = 0; i < m->answer_count; i++)
                if (m->answers[i].tag == tag)
                        return &m->answers[i];
        return NULL;
}

/* Its answer, within the order's time and what a loaded machine takes. */
static const struct answered *await(struct member *m, uint32_t tag, uint64_t timeout_ms) {
        UNTIL(answer_of(m, tag), timeout_ms + PATIENCE_MS, "%s: no answer within its deadline",
              m->node);
        return answer_of(m, tag);
}

static const struct answered *ask_wait(struct member *m, struct order o) {
        return await(m, ask(m, o), o.timeout_ms);
}

static void expect(const struct answered *a, int status, const char *what) {
        if (a->status != status)
                die("%s: %s and not %s: %s", what, status_name(a->status), status_name(status),
                    a->message);
}

static struct order join_order(const struct member *m) {
        return (struct order){.kind = JOIN, .nonce = m->nonce, .timeout_ms = PATIENCE_MS};
}

static void join(struct member *m) {
        expect(ask_wait(m, join_order(m)), 0, "join");
        if (m->view.standing != RENDEZVOUS_MEMBER || !sees(m, m))
                die("%s joined and does not see itself", m->node);
}

static void meet(size_t count) {
        for (size_t i = 0; i < count; i++)
                for (size_t k = 0; k < count; k++)
                        UNTIL(sees(&d.members[i], &d.members[k]), PATIENCE_MS, "%s does not see %s",
                              d.members[i].node, d.members[k].node);
}

static void gather(size_t count) {
        static const char *const names[] = {"a", "b", "c", "d", "e", "f", "g", "h"};
        for (size_t i = 0; i < count; i++)
                join(begin(i, names[i]));
        meet(count);
}

static struct order create_order(uint64_t number, const struct member *const members[],
                                 size_t count) {
        struct order o = {
                .kind = CREATE, .number = number, .timeout_ms = PATIENCE_MS, .member_count = count};
        for (size_t i = 0; i < count; i++) {
                struct rendezvous_member *m = &o.members[i];
                memcpy(m->node, members[i]->node, sizeof m->node);
                (void) snprintf(m->address, sizeof m->address, "127.0.0.1:5000");
                m->nonce = members[i]->nonce;
                m->ranks = 2;
                m->first_rank = (uint32_t) (2 * i);
        }
        return o;
}

static void create(struct member *leader, uint64_t number, size_t count) {
        const struct member *all[MEMBERS_MAX];
        for (size_t i = 0; i < count; i++)
                all[i] = &d.members[i];
        expect(ask_wait(leader, create_order(number, all, count)), 0, "create");
        if (leader->view.generation != number || strcmp(leader->view.leader, leader->node) != 0)
                die("the leader of %" PRIu64 " does not see it", number);
}

/* ---- etcd ---- */

/*
 * A socket with a free port that the listener that is to have it may share (SO_REUSEADDR in
 * socket(7)). While it is held, Linux gives the port to nobody else: neither to who binds to any
 * nor to a connection.
 */
static int hold_port(uint16_t *port) {
        struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        socklen_t bytes = sizeof a;
        int yes = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

        if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) < 0 ||
            bind(fd, (struct sockaddr *) &a, sizeof a) < 0 ||
            getsockname(fd, (struct sockaddr *) &a, &bytes) < 0)
                die("no free port");
        *port = ntohs(a.sin_port);
        return fd;
}

static bool etcd_answers(void) {
        struct rendezvous_place place;
        struct rendezvous_look look;
        bool answers;
        void *kind;

        if (rendezvous_place_parse(d.url, NULL, "probe", &place, NULL) < 0 ||
            rendezvous_etcd_ops.open(&place, &kind, NULL) < 0)
                die("no etcd client");
        answers = rendezvous_etcd_ops.look(kind, NULL, false, now_ns() + NSEC_PER_SEC, &look,
                                           NULL) == 0;
        rendezvous_etcd_ops.close(kind);
        return answers;
}

static void etcd_start(void) {
        char data[600], client[64], peer[64], cluster[80], log[600];
        bool ended = false;

        (void) snprintf(data, sizeof data, "%s/etcd", d.folder);
        (void) snprintf(log, sizeof log, "%s/etcd.log", d.folder);
        (void) snprintf(client, sizeof client, "http://127.0.0.1:%u", d.ports[0]);
        (void) snprintf(peer, sizeof peer, "http://127.0.0.1:%u", d.ports[1]);
        (void) snprintf(cluster, sizeof cluster, "default=%s", peer);
        d.etcd = fork();
        if (d.etcd == 0) {
                (void) prctl(PR_SET_PDEATHSIG, SIGKILL);
                int fd = open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
                (void) dup2(fd, 1);
                (void) dup2(fd, 2);
                (void) execlp("etcd", "etcd", "--data-dir", data, "--listen-client-urls", client,
                              "--advertise-client-urls", client, "--listen-peer-urls", peer,
                              "--initial-advertise-peer-urls", peer, "--initial-cluster", cluster,
                              "--logger", "zap", (char *) NULL);
                _exit(127);
        }
        UNTIL(etcd_answers() || (ended = waitpid(d.etcd, NULL, WNOHANG) == d.etcd), 120000,
              "etcd does not answer");
        if (ended) {
                d.etcd = 0;
                die("etcd ended at its start");
        }
}

static void etcd_kill(void) {
        (void) kill(d.etcd, SIGKILL);
        (void) waitpid(d.etcd, NULL, 0);
        d.etcd = 0;
}

/* ---- scenarios ---- */

/* Exactly one of all creators wins, each time, and all see the same winner and secret. */
static void scenario_race(void) {
        enum { MEMBERS = 6, ROUNDS = 200 };
        const struct member *all[MEMBERS];
        unsigned wins[MEMBERS] = {0};
        uint32_t tags[MEMBERS];

        gather(MEMBERS);
        for (size_t i = 0; i < MEMBERS; i++)
                all[i] = &d.members[i];
        for (uint64_t n = 1; n <= ROUNDS; n++) {
                struct order o = create_order(n, all, MEMBERS);
                size_t winner = MEMBERS;
                for (size_t i = 0; i < MEMBERS; i++) {
                        d.members[i].answer_count = 0;
                        tags[i] = ask(&d.members[i], o);
                }
                for (size_t i = 0; i < MEMBERS; i++) {
                        const struct answered *a = await(&d.members[i], tags[i], o.timeout_ms);
                        if (a->status == 0 && winner < MEMBERS)
                                die("round %" PRIu64 ": %s and %s lead", n, d.members[winner].node,
                                    d.members[i].node);
                        if (a->status == 0)
                                winner = i;
                        else
                                expect(a, CAIRN_ERR_EXISTS, "create");
                }
                if (winner == MEMBERS)
                        die("round %" PRIu64 ": nobody leads", n);
                wins[winner]++;
                for (size_t i = 0; i < MEMBERS; i++) {
                        const struct shown *v = &d.members[i].view, *w = &d.members[winner].view;
                        if (v->generation != n || strcmp(v->leader, d.members[winner].node) != 0 ||
                            memcmp(v->secret, w->secret, sizeof v->secret) != 0)
                                die("round %" PRIu64 ": %s was answered and sees another leader", n,
                                    d.members[i].node);
                }
        }
        ok("%d rounds of %d creators: one leader each time (%u %u %u %u %u %u)", ROUNDS, MEMBERS,
           wins[0], wins[1], wins[2], wins[3], wins[4], wins[5]);
        const struct answered *old =
                ask_wait(&d.members[0], create_order(ROUNDS - 1, all, MEMBERS));
        expect(old, CAIRN_ERR_STALE, "an older number");
        if (!strstr(old->message, "the newest generation is 200"))
                die("does not say which is newest: %s", old->message);
        ok("an older number is refused: %s", old->message);
}

static pid_t child_of(pid_t parent, const char *name) {
        _cleanup_(cleanup_fclose) FILE *f = NULL;
        char path[64], text[64];
        pid_t child = 0;

        (void) snprintf(path, sizeof path, "/proc/%d/task/%d/children", parent, parent);
        f = fopen(path, "re");
        while (f && fscanf(f, "%d", &child) == 1) {
                (void) snprintf(path, sizeof path, "/proc/%d/comm", child);
                _cleanup_fclose_ FILE *comm = fopen(path, "re");
                if (comm && fgets(text, sizeof text, comm) &&
                    strncmp(text, name, strlen(name)) == 0)
                        return child;
        }
        return 0;
}

/* Its child, another one than `former` (0: any); none is there while one is being replaced. */
static pid_t await_child(const struct member *m, pid_t former) {
        pid_t child = 0;

        UNTIL((child = child_of(m->pid, "cairnd-rdzv")) > 0 && child != former, PATIENCE_MS,
              "%s has no child, or still the one that hangs or died", m->node);
        return child;
}

/* Kill, freeze, late return; a child that hangs or dies alone costs nothing. */
static void scenario_loss(void) {
        struct member *a = &d.members[0], *b = &d.members[1], *c = &d.members[2];

        gather(3);
        create(a, 1, 3);
        pid_t child = await_child(b, 0), next;
        (void) kill(child, SIGSTOP);
        wait_ms(8000);
        if (a->dropped_others || c->dropped_others || b->view.standing != RENDEZVOUS_MEMBER)
                die("a child that hung cost a member");
        next = await_child(b, child);
        (void) kill(next, SIGKILL);
        wait_ms(2000);
        child = await_child(b, next);
        if (a->dropped_others || c->dropped_others || b->view.standing != RENDEZVOUS_MEMBER)
                die("a child that died cost a member");
        ok("a child that hangs or dies is replaced, the member stays");

        uint64_t at = now_ns();
        stop(c);
        UNTIL(!sees(a, c) && !sees(b, c), LOSS_MS, "a killed member is not known in time");
        ok("a killed member is known after %" PRIu64 " ms", (now_ns() - at) / MS);

        /* The agent and its child: the whole node. */
        at = now_ns();
        (void) kill(b->pid, SIGSTOP);
        (void) kill(child, SIGSTOP);
        UNTIL(!sees(a, b), LOSS_MS, "a frozen member is not known in time");
        ok("a frozen member is known after %" PRIu64 " ms", (now_ns() - at) / MS);
        create(a, 2, 1);
        uint32_t late = ask(b, (struct order){.kind = PUT,
                                              .number = 1,
                                              .key = "k",
                                              .value = "late",
                                              .timeout_ms = PATIENCE_MS});
        (void) kill(child, SIGCONT);
        (void) kill(b->pid, SIGCONT);
        expect(await(b, late, PATIENCE_MS), CAIRN_ERR_STALE, "a late put");
        UNTIL(b->view.standing == RENDEZVOUS_LOST, PATIENCE_MS, "the late member does not know it");
        if (!strstr(b->view.message, "went on without it"))
                die("the sentence is missing: %s", b->view.message);
        const struct member *both[] = {a, b};
        expect(ask_wait(b, create_order(3, both, 2)), CAIRN_ERR_STALE, "a late create");
        expect(ask_wait(b, join_order(b)), CAIRN_ERR_STALE, "a join with the old nonce");
        wait_ms(1500);
        if (sees(a, b))
                die("the late member is back without joining");
        ok("the late member is refused: %s", b->view.message);
        b->nonce = new_nonce();
        join(b);
        UNTIL(sees(a, b), PATIENCE_MS, "it does not come back");
        if (b->view.generation != 2 || strcmp(b->view.leader, "a") != 0)
                die("it does not see the new generation");
        ok("it comes back with another nonce");
}

static void scenario_values(void) {
        struct member *a = &d.members[0], *b = &d.members[1];
        struct order get = {.kind = GET, .number = 1, .key = "comm-0", .timeout_ms = PATIENCE_MS};
        struct order put = {.kind = PUT,
                            .number = 1,
                            .key = "comm-0",
                            .value = "id-1",
                            .timeout_ms = PATIENCE_MS};

        gather(2);
        expect(ask_wait(a, put), CAIRN_ERR_STALE, "a value of no generation");
        create(a, 1, 2);
        UNTIL(b->view.generation == 1, PATIENCE_MS, "b does not hear of the generation");
        uint32_t waiting = ask(b, get);
        wait_ms(700);
        if (answer_of(b, waiting))
                die("a value before it was put");
        expect(ask_wait(a, put), 0, "put");
        uint64_t at = now_ns();
        const struct answered *v = await(b, waiting, PATIENCE_MS);
        expect(v, 0, "get");
        if (strcmp(v->value, "id-1") != 0)
                die("another value: %s", v->value);
        ok("a value arrives %" PRIu64 " ms after it was put", (now_ns() - at) / MS);
        memcpy(put.value, "", 1);
        expect(ask_wait(b, put), 0, "put nothing");
        v = ask_wait(a, get);
        expect(v, 0, "get nothing");
        if (v->value[0])
                die("another value: %s", v->value);
        (void) snprintf(get.key, sizeof get.key, "nobodys");
        get.timeout_ms = 1000;
        at = now_ns();
        v = ask_wait(b, get);
        expect(v, CAIRN_ERR_TIMEOUT, "get what nobody puts");
        if (!strstr(v->message, "nobodys") || now_ns() - at < 1000 * MS)
                die("early, or without the key: %s", v->message);
        ok("what nobody puts ends at the deadline: %s", v->message);
        waiting = ask(
                b, (struct order){
                           .kind = GET, .number = 1, .key = "nobodys", .timeout_ms = PATIENCE_MS});
        create(a, 2, 2);
        v = await(b, waiting, PATIENCE_MS);
        expect(v, CAIRN_ERR_STALE, "get of an older generation");
        ok("who waits in an older generation is told: %s", v->message);
        expect(ask_wait(b, put), CAIRN_ERR_STALE, "put in an older generation");
        put.number = 2;
        expect(ask_wait(b, put), 0, "put in the new one");
}

static void scenario_names(void) {
        struct member *a, *b;
        uint64_t at;

        gather(1);
        a = &d.members[0];
        b = begin(1, "a");
        struct order o = join_order(b);
        o.timeout_ms = 3000;
        const struct answered *v = ask_wait(b, o);
        expect(v, CAIRN_ERR_EXISTS, "a second node of that name");
        if (a->dropped_others || a->view.standing != RENDEZVOUS_MEMBER)
                die("the first one was disturbed");
        ok("two nodes of one name: %s", v->message);
        expect(ask_wait(a, (struct order){.kind = LEAVE, .timeout_ms = PATIENCE_MS}), 0, "leave");
        if (a->view.standing != RENDEZVOUS_OUTSIDE)
                die("it left and is there");
        at = now_ns();
        join(b);
        if (now_ns() - at > 4000 * MS) /* a lease takes 5 s to run out */
                die("a name that was given back is not free at once");
        ok("after it left the name is free");

        /* An agent that is restarted takes up its lease, and nobody sees it go. */
        join(begin(2, "c"));
        UNTIL(sees(b, &d.members[2]), PATIENCE_MS, "b does not see c");
        UNTIL(sees(&d.members[2], b), PATIENCE_MS, "c does not see b");
        uint64_t nonce = b->nonce;
        d.members[2].dropped_others = false;
        stop(b);
        b = begin(1, "a");
        b->nonce = nonce;
        at = now_ns();
        join(b);
        uint64_t took = now_ns() - at;
        wait_ms(9000);
        if (d.members[2].dropped_others)
                die("the restarted agent was gone for others");
        ok("a restarted agent is a member again after %" PRIu64 " ms", took / MS);

        /* A new start on the same machine, of the same name. */
        stop(b);
        b = begin(1, "a");
        at = now_ns();
        join(b);
        ok("the successor of a killed agent, with another nonce, joins after %" PRIu64 " ms",
           (now_ns() - at) / MS);
}

/* ---- etcd alone ---- */

static void check_stall(size_t count) {
        for (size_t i = 0; i < count; i++) /* storage that is waited for costs seconds */
                if (d.members[i].stall_ns > 1900 * MS)
                        die("the loop of %s was blocked for %" PRIu64 " ms", d.members[i].node,
                            d.members[i].stall_ns / MS);
}

static void scenario_restart(void) {
        struct member *a = &d.members[0], *b = &d.members[1];

        gather(2);
        create(a, 1, 2);
        etcd_kill();
        UNTIL(a->view.error < 0 && b->view.error < 0, PATIENCE_MS,
              "nobody notices that etcd is gone");
        ok("its end is noticed: %s", a->view.message);
        struct order get = {.kind = GET, .number = 1, .key = "k", .timeout_ms = 1500};
        uint64_t at = now_ns();
        expect(ask_wait(b, get), CAIRN_ERR_UNREACHABLE, "get without etcd");
        if (now_ns() - at > 20000 * MS)
                die("late");
        const struct member *both[] = {a, b};
        struct order o = create_order(2, both, 2);
        o.timeout_ms = 2 * PATIENCE_MS;
        uint32_t creating = ask(a, o);
        wait_ms(1000);
        etcd_start();
        expect(await(a, creating, o.timeout_ms), 0, "create across etcd's restart");
        UNTIL(a->view.error == 0 && b->view.error == 0, PATIENCE_MS, "etcd is back and unnoticed");
        UNTIL(b->view.generation == 2, PATIENCE_MS, "b does not hear of the generation");
        wait_ms(7000);
        if (a->view.standing != RENDEZVOUS_MEMBER || b->view.standing != RENDEZVOUS_MEMBER ||
            a->dropped_others || b->dropped_others)
                die("a restart of etcd cost a member");
        check_stall(2);
        ok("killed and restarted in the middle: members stay, a request across it succeeds");
}

static void scenario_hang(void) {
        struct member *a = &d.members[0], *b = &d.members[1];
        const struct member *both[] = {a, b};

        gather(2);
        create(a, 1, 2);
        (void) kill(d.etcd, SIGSTOP);
        struct order o = create_order(2, both, 2);
        o.timeout_ms = 4000;
        uint64_t at = now_ns();
        uint32_t creating = ask(a, o);
        uint32_t getting =
                ask(b, (struct order){.kind = GET, .number = 1, .key = "k", .timeout_ms = 4000});
        const struct answered *v = await(a, creating, 4000);
        expect(v, CAIRN_ERR_TIMEOUT, "create at an etcd that hangs");
        if (v->at_ns - at < 3900 * MS || v->at_ns - at > 20000 * MS)
                die("not at its deadline: after %" PRIu64 " ms", (v->at_ns - at) / MS);
        expect(await(b, getting, 4000), CAIRN_ERR_TIMEOUT, "get at an etcd that hangs");
        UNTIL(a->view.error < 0, PATIENCE_MS, "hanging is not noticed");
        if (a->view.standing != RENDEZVOUS_MEMBER)
                die("hanging costs a member at once");
        wait_ms(4000);
        check_stall(2);
        ok("hanging: answered at the deadline, longest dispatch %" PRIu64 " us: %s",
           a->stall_ns / 1000, v->message);
        (void) kill(d.etcd, SIGCONT);
        UNTIL((a->view.error == 0 || a->view.standing == RENDEZVOUS_LOST) &&
                      (b->view.error == 0 || b->view.standing == RENDEZVOUS_LOST),
              PATIENCE_MS, "etcd is back and unnoticed");
        wait_ms(2000);
        /* etcd lets leases run out that it could not hear being renewed. */
        for (size_t i = 0; i < 2; i++)
                if (d.members[i].view.standing == RENDEZVOUS_LOST) {
                        d.members[i].nonce = new_nonce();
                        join(&d.members[i]);
                }
        meet(2);
        uint64_t newest = a->view.generation; /* 2 if the order arrived after all */
        create(b, newest + 1, 2);
        ok("it goes on with generation %" PRIu64, newest + 1);
}

/* ---- an etcd whose answers get lost ---- */

struct lossy {
        struct http *http;
        unsigned calls, lost; /* the lost-th answer, 0: none */
};

static int lossy_post(void *context, const char *path, const char *body, uint64_t deadline_ns,
                      struct http_answer *ret, struct cairn_error *reterr) {
        struct lossy *l = context;
        int r = http_post(l->http, path, body, deadline_ns, ret, reterr);

        if (r == 0 && ++l->calls == l->lost) {
                free(ret->bytes);
                *ret = (struct http_answer){0};
                return error_set(reterr, CAIRN_ERR_TIMEOUT, "ask etcd", "", "lost");
        }
        return r;
}

/* Each verb with its n-th answer lost, then asked again: it finds what has happened. */
static void scenario_lost(void) {
        const struct rendezvous_ops *ops = &rendezvous_etcd_ops;
        struct lossy l = {0};
        struct rendezvous_member self = {.node = "a", .address = "127.0.0.1:5000", .ranks = 2};
        struct rendezvous_look look;
        unsigned swept = 0;
        void *kind;

        if (http_new(d.place.hosts, &l.http, NULL) < 0 ||
            rendezvous_etcd_new(&d.place, lossy_post, &l, &kind, NULL) < 0)
                die("no client");
        for (uint64_t n = 1; n <= 8; n++) {
                unsigned retries = 0;
                struct rendezvous_generation g = {.number = n,
                                                  .world = 2,
                                                  .leader = "a",
                                                  .members = &self,
                                                  .member_count = 1};
                struct cairn_error e = CAIRN_ERROR_INIT;
                void *value = NULL;
                size_t bytes = 0;
                self.nonce = g.leader_nonce = new_nonce();
                g.secret[0] = 1;
                l.calls = 0;
                l.lost = (unsigned) n;
#define AGAIN(call)                                                                  \
        do {                                                                         \
                uint64_t deadline_ns = now_ns() + PATIENCE_MS * MS;                  \
                int r_ = (call);                                                     \
                if (r_ == CAIRN_ERR_TIMEOUT && retries++ == 0)                       \
                        r_ = (call);                                                 \
                if (r_ < 0)                                                          \
                        die("answer %" PRIu64 " lost, " #call ": %s", n, e.message); \
        } while (0)
                AGAIN(ops->join(kind, &self, deadline_ns, &e));
                AGAIN(ops->look(kind, &self, true, deadline_ns, &look, &e));
                AGAIN(ops->create(kind, &self, &g, deadline_ns, &e));
                AGAIN(ops->put(kind, &self, n, "key", "value", 5, deadline_ns, &e));
                AGAIN(ops->get(kind, &self, n, "key", deadline_ns, &value, &bytes, &e));
                if (bytes != 5 || memcmp(value, "value", 5) != 0)
                        die("another value");
                free(value);
                AGAIN(ops->look(kind, &self, false, deadline_ns, &look, &e));
                if (look.generation.number != n || look.member_count != 1)
                        die("another view");
                AGAIN(ops->leave(kind, &self, deadline_ns, &e));
                swept += retries;
        }
        ops->close(kind);
        (void) http_free(l.http);
        if (swept != 8)
                die("%u answers were lost, not 8", swept);
        ok("each of the answers 1 to 8 lost: asking again finds what has happened");
}

/* ---- what is not etcd ---- */

enum { RUBBISH_KINDS = 11 };

static void write_all(int fd, const char *bytes, size_t count) {
        while (count > 0) {
                ssize_t n = send(fd, bytes, count, MSG_NOSIGNAL);
                if (n <= 0)
                        return;
                bytes += n;
                count -= (size_t) n;
        }
}

static void write_answer(int fd, const char *status, const char *body) {
        char head[200];

        (void) snprintf(head, sizeof head,
                        "HTTP/1.1 %s\r\nContent-Length: %zu\r\nConnection: close\r\n\r\n", status,
                        strlen(body));
        write_all(fd, head, strlen(head));
        write_all(fd, body, strlen(body));
}

static void rubbish(int fd, int kind) {
        static const char endless[] = "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n";
        char block[4096];

        switch (kind) {
        case 0:
                return; /* closes at once */
        case 1:
                memset(block, 0xee, sizeof block);
                write_all(fd, block, sizeof block);
                return;
        case 2:
                write_answer(fd, "200 OK", "<html>welcome</html>");
                return;
        case 3: /* without end */
                memset(block, '[', sizeof block);
                write_all(fd, endless, sizeof endless - 1);
                for (int i = 0; i < 100000; i++)
                        write_all(fd, block, sizeof block);
                return;
        case 4:
                write_answer(fd, "200 OK", "{}");
                return;
        case 5:
                write_answer(fd, "200 OK",
                             "{\"header\":{\"cluster_id\":\"1\",\"revision\":\"5\"},\"ID\":\"1\","
                             "\"TTL\":\"5\",\"succeeded\":true,\"responses\":[{},{},{}],"
                             "\"result\":{\"TTL\":\"x\"}}");
                return;
        case 6:
                write_answer(fd, "404 Not Found", "404 page not found\n");
                return;
        case 7:
                write_answer(fd, "401 Unauthorized", "{\"error\":\"no\",\"code\":16}");
                return;
        case 8:
                write_answer(fd, "503 Service Unavailable",
                             "{\"error\":\"no leader\",\"code\":14}");
                return;
        case 9: /* a byte now and then */
                for (int i = 0; i < 100; i++) {
                        write_all(fd, "H", 1);
                        (void) usleep(100000);
                }
                return;
        default:
                for (int i = 0; i < 100; i++) /* silence */
                        (void) usleep(100000);
        }
}

static void serve_rubbish(int listener, int kind) {
        (void) signal(SIGCHLD, SIG_IGN);
        for (;;) {
                int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
                if (fd < 0)
                        continue;
                if (fork() == 0) {
                        char request[2048];
                        (void) prctl(PR_SET_PDEATHSIG, SIGKILL);
                        (void) !recv(fd, request, sizeof request, 0);
                        rubbish(fd, kind);
                        _exit(0);
                }
                (void) close(fd);
        }
}

static uint16_t fake_start(int kind) {
        uint16_t port;
        int fd = hold_port(&port);

        if (listen(fd, 16) < 0)
                die("no fake server");
        d.fake = fork();
        if (d.fake == 0) {
                (void) prctl(PR_SET_PDEATHSIG, SIGKILL);
                serve_rubbish(fd, kind);
        }
        (void) close(fd);
        return port;
}

/* KiB that the process had at most. */
static long peak_of(pid_t pid) {
        char path[64], line[256];
        long peak = 0;

        (void) snprintf(path, sizeof path, "/proc/%d/status", pid);
        _cleanup_fclose_ FILE *f = fopen(path, "re");
        while (f && fgets(line, sizeof line, f))
                if (sscanf(line, "VmHWM: %ld", &peak) == 1)
                        break;
        return peak;
}

static void scenario_rubbish(void) {
        long highest = 0;

        for (int kind = 0; kind < RUBBISH_KINDS; kind++) {
                char url[64];
                (void) snprintf(url, sizeof url, "etcd://127.0.0.1:%u/x", fake_start(kind));
                if (rendezvous_place_parse(url, NULL, "run", &d.place, NULL) < 0)
                        die("no place");
                struct member *m = begin(0, "a");
                struct order o = join_order(m);
                o.timeout_ms = 3000;
                const struct answered *v = ask_wait(m, o);
                if (v->status >= 0 || v->status == CAIRN_ERR_FATAL || !strchr(v->message, ' '))
                        die("rubbish %d: %s %s", kind, status_name(v->status), v->message);
                if (m->view.standing != RENDEZVOUS_OUTSIDE || m->view.member_count > 0)
                        die("rubbish %d made a member", kind);
                check_stall(1);
                long peak = peak_of(child_of(m->pid, "cairnd-rdzv"));
                highest = peak > highest ? peak : highest;
                printf("   %2d %s: %s\n", kind, status_name(v->status), v->message);
                stop(m);
                (void) kill(d.fake, SIGKILL);
                (void) waitpid(d.fake, NULL, 0);
                d.fake = 0;
        }
#ifndef __SANITIZE_ADDRESS__ /* which takes some itself */
        if (highest == 0 || highest > 100 * 1024)
                die("a child took %ld KiB", highest);
#endif
        ok("%d kinds of rubbish: refused with a sentence, at most %ld KiB", RUBBISH_KINDS, highest);
}

/* ---- a folder whose storage hangs, and one that people touch ---- */

static void weather(const char *words) {
        char next[600];

        (void) snprintf(next, sizeof next, "%s.new", d.weather);
        _cleanup_fclose_ FILE *f = fopen(next, "we");
        if (!f || fputs(words, f) < 0 || fflush(f) != 0 || rename(next, d.weather) < 0)
                die("no weather");
}

static void scenario_stuck(void) {
        struct member *a = &d.members[0], *b = &d.members[1];
        struct order get = {.kind = GET, .number = 1, .key = "k", .timeout_ms = 4000};
        struct order put = {
                .kind = PUT, .number = 1, .key = "k", .value = "v", .timeout_ms = 2 * PATIENCE_MS};

        gather(2);
        create(a, 1, 2);
        UNTIL(b->view.generation == 1, PATIENCE_MS, "b does not hear of the generation");
        weather("hang");
        uint64_t at = now_ns();
        uint32_t getting = ask(b, get), putting = ask(a, put);
        const struct answered *v = await(b, getting, get.timeout_ms);
        if ((v->status != CAIRN_ERR_TIMEOUT && v->status != CAIRN_ERR_UNREACHABLE) ||
            v->at_ns - at < 3900 * MS)
                die("get on storage that hangs: %s %s", status_name(v->status), v->message);
        wait_ms(8000);
        check_stall(2);
        if (a->view.error >= 0)
                die("nobody notices that the storage hangs");
        ok("storage that hangs for 12 s: answered at the deadline, longest dispatch %" PRIu64
           " us: %s",
           b->stall_ns / 1000, v->message);
        weather("");
        expect(await(a, putting, put.timeout_ms), 0, "put across the hang");
        UNTIL(a->view.error == 0 && b->view.error == 0, PATIENCE_MS,
              "the storage is back and unnoticed");
        wait_ms(9000);
        if (a->dropped_others || b->dropped_others || a->view.standing != RENDEZVOUS_MEMBER ||
            b->view.standing != RENDEZVOUS_MEMBER)
                die("storage that hangs cost a member");
        ok("after it: all members are there, the put arrives");
}

static void remove_files(const char *path) {
        _cleanup_(cleanup_free) char *unused = NULL;
        DIR *folder = opendir(path);
        const struct dirent *e;

        if (!folder)
                die("no folder %s", path);
        while ((e = readdir(folder)))
                (void) unlinkat(dirfd(folder), e->d_name, 0);
        (void) closedir(folder);
}

static void scenario_folder(void) {
        struct member *a = &d.members[0], *b = &d.members[1];
        char path[700], moved[700];

        gather(2);
        create(a, 1, 2);
        UNTIL(b->view.generation == 1, PATIENCE_MS, "b does not hear of the generation");
        (void) snprintf(path, sizeof path, "%s/run/rendezvous", d.store);
        struct stat st;
        if (stat(path, &st) < 0 || (st.st_mode & 0777) != 0700)
                die("the folder with the secret is open to others");
        for (int i = 0; i < 3; i++) {
                remove_files(path);
                if (i == 2)
                        (void) rmdir(path);
                wait_ms(1500);
        }
        wait_ms(8000);
        if (a->view.standing != RENDEZVOUS_MEMBER || b->view.standing != RENDEZVOUS_MEMBER ||
            a->view.generation != 1 || b->view.generation != 1 || a->dropped_others ||
            b->dropped_others)
                die("emptying the folder cost something");
        ok("emptied and removed: leases and generation are put back");
        (void) snprintf(path, sizeof path, "%s/run", d.store);
        (void) snprintf(moved, sizeof moved, "%s/elsewhere", d.store);
        if (rename(path, moved) < 0)
                die("rename");
        UNTIL(a->view.error < 0 && b->view.error < 0, PATIENCE_MS, "a moved run is not noticed");
        ok("moved away: %s", a->view.message);
        wait_ms(9000);
        if (access(path, F_OK) == 0)
                die("a new run's folder is in the way of moving it back");
        if (rename(moved, path) < 0)
                die("rename back");
        UNTIL(a->view.error == 0 && b->view.error == 0, PATIENCE_MS,
              "a run that is back is not noticed");
        wait_ms(3000);
        if (a->dropped_others || b->dropped_others || a->view.standing != RENDEZVOUS_MEMBER)
                die("moving the run's folder cost a member");
        ok("moved back: all are there still");
}

static const struct scenario {
        const char *name;
        void (*run)(void);
        bool etcd, dir;
} scenarios[] = {
        {"race", scenario_race, true, true},        {"loss", scenario_loss, true, true},
        {"values", scenario_values, true, true},    {"names", scenario_names, true, true},
        {"restart", scenario_restart, true, false}, {"hang", scenario_hang, true, false},
        {"lost", scenario_lost, true, false},       {"rubbish", scenario_rubbish, true, false},
        {"folder", scenario_folder, false, true},   {"stuck", scenario_stuck, false, true},
};

static void set_up(const char *kind, const char *folder) {
        struct cairn_error e = CAIRN_ERROR_INIT;

        d.is_etcd = strcmp(kind, "etcd") == 0;
        (void) snprintf(d.folder, sizeof d.folder, "%s", folder);
        (void) snprintf(d.store, sizeof d.store, "%s/store", folder);
        (void) snprintf(d.url, sizeof d.url, "dir");
        if (d.is_etcd) {
                for (int i = 0; i < 2; i++)
                        (void) hold_port(&d.ports[i]); /* until this process ends */
                (void) snprintf(d.url, sizeof d.url, "etcd://127.0.0.1:%u/jobs", d.ports[0]);
        }
        if (rendezvous_place_parse(d.url, d.store, "run", &d.place, &e) < 0)
                die("%s", e.message);
        d.place.create_store = !d.is_etcd;
        if (d.is_etcd)
                etcd_start();
}

int main(int argc, char **argv) {
        if (argc == 6 && strcmp(argv[1], "--rendezvous-process") == 0)
                return rendezvous_main(3, argc, argv);
        if (argc < 4 || argc > 5) {
                fprintf(stderr, "usage: rendezvous SCENARIO dir|etcd FOLDER [WEATHER]\n");
                return 64;
        }
        d.weather = argc > 4 ? argv[4] : "";
        const struct scenario *s = NULL;
        for (size_t i = 0; i < sizeof scenarios / sizeof *scenarios; i++)
                if (strcmp(scenarios[i].name, argv[1]) == 0)
                        s = &scenarios[i];
        if (!s || (strcmp(argv[2], "etcd") == 0 ? !s->etcd : !s->dir))
                return 64;
        set_up(argv[2], argv[3]);
        s->run();
        end_all();
        return 0;
}
