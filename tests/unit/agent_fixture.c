/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/agent_fixture.h"
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#define MUST(e)                                                                          \
        do {                                                                             \
                if (!(e)) {                                                              \
                        fprintf(stderr, "fixture: %s:%d: %s\n", __FILE__, __LINE__, #e); \
                        abort();                                                         \
                }                                                                        \
        } while (0)

struct fixture_reply {
        struct store_message message;
        agent_store_fn reply;
        void *context;
        struct fixture_reply *next;
};

static struct fixture *fixture_of(struct agent *a) {
        return (struct fixture *) ((char *) a - offsetof(struct fixture, agent));
}

/* ---- the store ---- */

static void play_retain(struct fixture *f, struct store_message *m) {
        m->count = f->retain_count;
        (void) snprintf(m->name, sizeof m->name, "%s", m->count ? "one\n" : "");
        f->retain_count = 0;
        m->more = f->retain_more > 0;
        if (m->more)
                f->retain_more--;
        if (m->more && f->retain_fails) {
                f->fail_verb = STORE_RETAIN;
                f->fail_status = CAIRN_ERR_IO;
        }
}

static void store_turn(void *context) {
        struct fixture *f = context;
        while (f->replies && !f->store_holds) {
                struct fixture_reply *r = f->replies;
                struct wire_fds fds = WIRE_FDS_INIT;
                struct store_message *m = &r->message;
                f->replies = r->next;
                if (m->verb == f->fail_verb) {
                        f->fail_verb = 0;
                        m->status = error_set(&m->error, f->fail_status, "play store", m->run,
                                              "as the test wants it");
                } else if (m->verb == STORE_START) {
                        m->started = (struct start_reply){.generation = ++f->generation,
                                                          .decided = START_FRESH,
                                                          .checkpoint_step = -1};
                } else if (m->verb == STORE_REOPEN) {
                        m->started = (struct start_reply){.generation = m->generation,
                                                          .decided = START_FRESH,
                                                          .checkpoint_step = -1};
                } else if (m->verb == STORE_ATTEMPT_OPEN) {
                        for (uint32_t i = 0; i < m->count; i++)
                                fds.fds[fds.count++] = memfd_create("parcel", MFD_CLOEXEC);
                } else if (m->verb == STORE_RETAIN) {
                        play_retain(f, m);
                } else if (m->verb == STORE_COMMIT) {
                        int64_t step = m->step;
                        m->committed = (struct commit_result){
                                .step = step, .bytes = 4096, .flagged = f->commits_flagged};
                        name_checkpoint(m->committed.name, step, m->generation);
                }
                r->reply(r->context, m, &fds);
                wire_fds_done(&fds);
                free(r);
        }
        if (f->replies)
                loop_timer_set(&f->agent.loop, &f->store_timer,
                               loop_now(&f->agent.loop) + NSEC_PER_MSEC);
}

static int store_request(struct agent *a, const char *path, const struct store_message *request,
                         agent_store_fn reply, void *context, struct cairn_error *reterr) {
        struct fixture *f = fixture_of(a);
        struct fixture_reply *r = calloc(1, sizeof *r), **p = &f->replies;
        (void) path;
        (void) reterr;
        MUST(r && f->asked_count < FIXTURE_RECORDS);
        f->asked[f->asked_count++] = request->verb;
        f->last[request->verb] = *request;
        *r = (struct fixture_reply){.message = *request, .reply = reply, .context = context};
        r->message.error = (struct cairn_error) CAIRN_ERROR_INIT;
        while (*p)
                p = &(*p)->next;
        *p = r;
        loop_timer_set(&a->loop, &f->store_timer, loop_now(&a->loop));
        return 0;
}

static void store_done(struct agent *a) {
        struct fixture *f = fixture_of(a);
        while (f->replies) {
                struct fixture_reply *r = f->replies;
                f->replies = r->next;
                free(r);
        }
}

size_t fixture_count(const struct fixture *f, enum store_verb verb) {
        size_t count = 0;
        for (size_t i = 0; i < f->asked_count; i++)
                count += f->asked[i] == verb;
        return count;
}

/* ---- savers ---- */

static size_t saver_index(struct fixture *f, const struct session *s) {
        for (size_t i = 0; i < 8; i++)
                if (f->savers[i].session == s)
                        return i;
        MUST(!"a saver of this session");
        return 0;
}

static void say(struct fixture *f, size_t i, struct saver_message m) {
        struct wire_fds none = WIRE_FDS_INIT;
        (void) f;
        session_saver_message(f->savers[i].session, &m, &none);
}

static void saver_done(struct fixture *f, size_t i, struct cut_word word) {
        f->savers[i].armed = false;
        f->savers[i].cut = true;
        f->savers[i].word = word;
        f->savers[i].step = atomic_load(&f->savers[i].session->page->last_step);
        say(f, i,
            (struct saver_message){.verb = SAVER_CUT,
                                   .attempt = f->savers[i].attempt,
                                   .seq = word.seq,
                                   .step = f->savers[i].step,
                                   .ending = f->savers[i].ending});
}

static void saver_let_go(struct fixture *f, size_t i) {
        struct cut_word word = f->savers[i].word;
        if (!f->savers[i].held)
                return;
        f->savers[i].held = f->savers[i].release = f->savers[i].go = false;
        cut_copy_abandon(f->savers[i].session->page, word);
        say(f, i,
            (struct saver_message){.verb = SAVER_VOID, .status = CAIRN_ERR_VOID, .seq = word.seq});
}

/* Claims for a group's cut, waits for the word to go, or lets go. */
static void saver_hold(struct fixture *f, size_t i) {
        struct control_page *page = f->savers[i].session->page;
        int64_t step = atomic_load(&page->last_step);
        if (f->savers[i].held) {
                struct cut_word word = f->savers[i].word;
                bool lost = !cut_copy_continue(page, word);
                if (f->savers[i].go && !lost && f->savers[i].holds_copy)
                        return;
                if (f->savers[i].go && !lost) {
                        f->savers[i].held = f->savers[i].hold = f->savers[i].go = false;
                        MUST(cut_copy_end(page, word) == 0);
                        saver_done(f, i, word);
                } else if (f->savers[i].release || lost) {
                        f->savers[i].hold = f->savers[i].hold && !lost;
                        saver_let_go(f, i);
                }
        } else if (step < f->savers[i].hold_step)
                cut_request_next(page);
        else if (cut_copy_begin(page, true, &f->savers[i].word) == 0) {
                f->savers[i].held = true;
                f->savers[i].release = f->savers[i].go = false;
                say(f, i,
                    (struct saver_message){.verb = SAVER_HELD,
                                           .attempt = f->savers[i].attempt,
                                           .seq = f->savers[i].word.seq,
                                           .step = step});
        }
}

/* What a saver does when it is armed: claims a request, copies nothing, writes nothing. */
static void saver_cut(struct fixture *f, size_t i) {
        struct session *s = f->savers[i].session;
        struct cut_word word;
        bool demanded = f->savers[i].take && cut_read(s->page).seq >= f->savers[i].take;
        if (cut_copy_begin(s->page, demanded, &word) < 0)
                return;
        f->savers[i].take = 0;
        MUST(cut_copy_continue(s->page, word));
        if (f->void_next) {
                f->void_next = 0;
                cut_copy_abandon(s->page, word);
                say(f, i,
                    (struct saver_message){
                            .verb = SAVER_VOID, .status = CAIRN_ERR_VOID, .seq = word.seq});
                return;
        }
        MUST(cut_copy_end(s->page, word) == 0);
        saver_done(f, i, word);
}

static void saver_write(struct fixture *f, size_t i, int status) {
        struct saver_message m = {.verb = SAVER_WRITTEN,
                                  .attempt = f->savers[i].attempt,
                                  .status = status,
                                  .step = f->savers[i].step,
                                  .bytes = 4096,
                                  .duration_ns = 1000,
                                  .error = CAIRN_ERROR_INIT};
        if (status)
                (void) error_set(&m.error, status, "write data", "rank", "test");
        f->savers[i].cut = false;
        m.stuck = f->write_stuck;
        f->write_stuck = false;
        say(f, i, m);
}

static void saver_turn(void *context) {
        struct fixture *f = context;
        loop_timer_set(&f->agent.loop, &f->saver_timer, loop_now(&f->agent.loop) + NSEC_PER_MSEC);
        for (size_t i = 0; i < 8; i++) {
                struct session *s = f->savers[i].session;
                if (!s)
                        continue;
                if (f->savers[i].ended) {
                        f->savers[i].session = NULL;
                        s->saver.state = SAVER_LINK_NONE;
                        session_saver_ended(s, true, 0);
                } else if (!f->savers[i].ready) {
                        f->savers[i].ready = true;
                        say(f, i, (struct saver_message){.verb = SAVER_READY});
                } else if (f->savers[i].sealed) {
                        f->savers[i].sealed = false;
                        say(f, i,
                            (struct saver_message){.verb = SAVER_SEALED,
                                                   .seal = s->seal,
                                                   .bytes = f->image_bytes ? f->image_bytes : 8192,
                                                   .count = 1,
                                                   .rate_bytes_per_sec = GiB});
                } else if (f->savers[i].disarm && f->savers[i].cut) {
                        saver_write(f, i, CAIRN_ERR_VOID);
                } else if (f->savers[i].disarm) {
                        f->savers[i].disarm = false;
                        saver_let_go(f, i);
                        if (f->savers[i].disarm_attempt == f->savers[i].attempt)
                                f->savers[i].armed = false;
                        say(f, i,
                            (struct saver_message){.verb = SAVER_DISARMED,
                                                   .attempt = f->savers[i].disarm_attempt});
                } else if (f->savers[i].armed && (f->savers[i].hold || f->savers[i].held))
                        saver_hold(f, i);
                else if (f->savers[i].armed)
                        saver_cut(f, i);
                else if (f->savers[i].cut && !f->saver_holds_write && !f->savers[i].holds_write) {
                        saver_write(f, i, f->write_status);
                        if (!f->writes_fail)
                                f->write_status = 0;
                }
        }
}

static int saver_start(struct session *s, struct cairn_error *reterr) {
        struct fixture *f = fixture_of(s->agent);
        size_t i = 0;
        (void) reterr;
        while (i < 8 && f->savers[i].session)
                i++;
        MUST(i < 8);
        memset(&f->savers[i], 0, sizeof f->savers[i]);
        f->savers[i].session = s;
        f->savers_started++;
        s->saver.state = SAVER_LINK_RUNNING;
        return 0;
}

static int saver_send(struct session *s, const struct saver_message *m, const int *fds,
                      size_t fd_count) {
        struct fixture *f = fixture_of(s->agent);
        size_t i = saver_index(f, s);
        for (size_t k = 0; k < fd_count; k++)
                MUST(fcntl(fds[k], F_GETFD) >= 0);
        if (f->saver_hung_up)
                return CAIRN_ERR_PEER;
        switch (m->verb) {
        case SAVER_SEAL:
                f->savers[i].sealed = true;
                f->seals++;
                break;
        case SAVER_ARM:
                MUST(fd_count == 1 && !f->savers[i].armed && !f->savers[i].cut);
                f->savers[i].armed = true;
                f->savers[i].attempt = m->attempt;
                f->savers[i].take = 0;
                f->savers[i].hold = false;
                f->arms++;
                break;
        case SAVER_TAKE:
                f->savers[i].take = m->hold ? 0 : m->seq;
                f->savers[i].ending = m->ending;
                f->savers[i].hold = m->hold;
                f->savers[i].hold_step = m->step;
                f->savers[i].release = f->savers[i].held;
                f->takes++;
                break;
        case SAVER_GO:
                f->savers[i].go = true;
                break;
        case SAVER_RELEASE:
                f->savers[i].release = f->savers[i].held;
                f->savers[i].hold = false;
                cut_forget_next(s->page);
                break;
        case SAVER_DISARM:
                f->savers[i].disarm = true;
                f->savers[i].disarm_attempt = m->attempt;
                break;
        default:
                break;
        }
        return 0;
}

static void saver_stop(struct session *s) {
        struct fixture *f = fixture_of(s->agent);
        f->savers[saver_index(f, s)].ended = true;
        s->saver.state = SAVER_LINK_STOPPING;
}

static void saver_forget(struct session *s) {
        struct fixture *f = fixture_of(s->agent);
        for (size_t i = 0; i < 8; i++)
                if (f->savers[i].session == s)
                        f->savers[i].session = NULL;
}

static const struct agent_ops ops = {.store_request = store_request,
                                     .saver_start = saver_start,
                                     .saver_send = saver_send,
                                     .saver_stop = saver_stop,
                                     .saver_forget = saver_forget,
                                     .store_done = store_done};

/* ---- the loop and its peers ---- */

void fixture_init(struct fixture *f) {
        struct config config;
        struct cairn_error e = CAIRN_ERROR_INIT;
        memset(f, 0, sizeof *f);
        config_init(&config);
        log_init("test", LOG_LEVEL_ERROR);
        MUST(agent_init(&f->agent, &config, &ops, "none", &e) == 0);
        arena_init(&f->arena, 4 * MiB);
        loop_timer_init(&f->store_timer, store_turn, f);
        loop_timer_init(&f->saver_timer, saver_turn, f);
        loop_timer_set(&f->agent.loop, &f->saver_timer, 1);
}

void fixture_done(struct fixture *f) {
        agent_done(&f->agent);
        wire_fds_done(&f->received);
        arena_done(&f->arena);
}

/* A pause of the machine is one turn of them: what takes several turns has them all the same. */
void fixture_run_ms(struct fixture *f, unsigned ms) {
        unsigned turns = ms < 20 ? ms : 20;
        for (unsigned i = 0; i < turns; i++) {
                uint64_t until_ns = loop_now(&f->agent.loop) + ms * NSEC_PER_MSEC / turns;
                do
                        MUST(loop_step(&f->agent.loop, until_ns, NULL) == 0);
                while (loop_now(&f->agent.loop) < until_ns);
        }
}

int fixture_connect_raw(struct fixture *f) {
        int pair[2];
        MUST(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) == 0);
        MUST(server_adopt(&f->agent.server, pair[1], NULL, NULL) == 0);
        return pair[0];
}

uint64_t fixture_send(struct fixture *f, int socket, Cairn__Control__Envelope *e, const int *fds,
                      size_t fd_count) {
        e->id = ++f->next_id;
        MUST(wire_send(socket, e, fds, fd_count, 0, NULL) == 0);
        return e->id;
}

Cairn__Control__Envelope *fixture_receive(struct fixture *f, int socket) {
        Cairn__Control__Envelope *e = NULL;
        wire_fds_done(&f->received);
        f->received = (struct wire_fds) WIRE_FDS_INIT;
        arena_clear(&f->arena);
        for (unsigned i = 0; i < 5000; i++) {
                int r = wire_receive(socket, &f->arena, &e, &f->received, 0, NULL);
                if (r == 0)
                        return e;
                if (r != CAIRN_ERR_BUSY)
                        return NULL;
                fixture_run_ms(f, 1);
        }
        MUST(!"an answer within five seconds");
        return NULL;
}

Cairn__Control__Envelope *fixture_ask(struct fixture *f, int socket, Cairn__Control__Envelope *e,
                                      const int *fds, size_t fd_count) {
        uint64_t id = fixture_send(f, socket, e, fds, fd_count);
        Cairn__Control__Envelope *reply = fixture_receive(f, socket);
        MUST(!reply || reply->id == id);
        return reply;
}

int fixture_connect(struct fixture *f, unsigned kind) {
        int socket = fixture_connect_raw(f);
        Cairn__Control__Envelope e = CAIRN__CONTROL__ENVELOPE__INIT;
        Cairn__Control__Hello h = CAIRN__CONTROL__HELLO__INIT;
        h.protocol = WIRE_PROTOCOL;
        h.kind = kind;
        e.body_case = CAIRN__CONTROL__ENVELOPE__BODY_HELLO;
        e.hello = &h;
        const Cairn__Control__Envelope *reply = fixture_ask(f, socket, &e, NULL, 0);
        MUST(reply && reply->body_case == CAIRN__CONTROL__ENVELOPE__BODY_WELCOME);
        return socket;
}

void fixture_start_run(struct fixture *f, int runner, uint32_t world) {
        Cairn__Control__Envelope e = CAIRN__CONTROL__ENVELOPE__INIT;
        Cairn__Control__Start s = CAIRN__CONTROL__START__INIT;
        s.run = (ProtobufCBinaryData){4, (uint8_t *) "demo"};
        s.store = (ProtobufCBinaryData){6, (uint8_t *) "/store"};
        s.world = world;
        s.mode = START_FRESH;
        e.body_case = CAIRN__CONTROL__ENVELOPE__BODY_START;
        e.start = &s;
        int fd = (int) syscall(SYS_pidfd_open, getpid(), 0);
        const Cairn__Control__Envelope *reply = fixture_ask(f, runner, &e, &fd, 1);
        (void) close(fd);
        MUST(reply && reply->body_case == CAIRN__CONTROL__ENVELOPE__BODY_STARTED);
}

void fixture_hello(struct fixture *f, struct fixture_trainer *t, uint32_t rank) {
        Cairn__Control__Envelope e = CAIRN__CONTROL__ENVELOPE__INIT;
        Cairn__Control__Hello h = CAIRN__CONTROL__HELLO__INIT;
        memset(t, 0, sizeof *t);
        t->socket = fixture_connect_raw(f);
        h.protocol = WIRE_PROTOCOL;
        h.kind = CAIRN__CONTROL__PEER_KIND__PEER_CLIENT;
        h.run = (ProtobufCBinaryData){4, (uint8_t *) "demo"};
        h.rank = rank;
        e.body_case = CAIRN__CONTROL__ENVELOPE__BODY_HELLO;
        e.hello = &h;
        int fd = (int) syscall(SYS_pidfd_open, getpid(), 0);
        const Cairn__Control__Envelope *reply = fixture_ask(f, t->socket, &e, &fd, 1);
        (void) close(fd);
        MUST(reply && reply->body_case == CAIRN__CONTROL__ENVELOPE__BODY_WELCOME);
        t->session_id = reply->welcome->session_id;
        t->generation = reply->welcome->generation;
        t->reattached = reply->welcome->reattached;
        MUST(reply->welcome->secret.len == sizeof t->secret && f->received.count == 2);
        memcpy(t->secret, reply->welcome->secret.data, sizeof t->secret);
        t->page_fd = wire_fds_take(&f->received, 0);
        t->event_fd = wire_fds_take(&f->received, 1);
        t->page = mmap(NULL, CONTROL_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, t->page_fd, 0);
        MUST(t->page != MAP_FAILED);
}

static int memory(uint64_t bytes) {
        int fd = -1;
        MUST(wire_memfd_create("test", bytes, &fd, NULL) == 0);
        MUST(wire_memfd_seal(fd, F_SEAL_SHRINK | F_SEAL_GROW, NULL) == 0);
        return fd;
}

static int make_inventory(uint64_t seal, uint64_t slab_bytes) {
        Cairn__Format__InventoryHead head = CAIRN__FORMAT__INVENTORY_HEAD__INIT;
        Cairn__Format__Tensor tensor = CAIRN__FORMAT__TENSOR__INIT, *tensors[] = {&tensor};
        Cairn__Format__Placement placement = CAIRN__FORMAT__PLACEMENT__INIT;
        Cairn__Format__Placement *placements[] = {&placement};
        uint64_t shape[] = {100};
        struct cairn_error e = CAIRN_ERROR_INIT;
        void *bytes;
        size_t count;
        head.seal = seal;
        head.tensor_count = 1;
        head.host_state_bytes = 64;
        head.slab_count = 1;
        head.n_slab_bytes = 1;
        head.slab_bytes = &slab_bytes;
        tensor.name = (ProtobufCBinaryData){1, (uint8_t *) "w"};
        tensor.role = CAIRN_PARAMETER;
        tensor.runtime_dtype = tensor.stored_dtype = CAIRN_F32;
        tensor.n_shape = 1;
        tensor.shape = shape;
        placement.owned = true;
        struct file_content c = {.kind = FILE_INVENTORY,
                                 .inventory = &head,
                                 .tensors = tensors,
                                 .tensor_count = 1,
                                 .placements = placements,
                                 .placement_count = 1};
        int r = file_write(&c, &bytes, &count, &e);
        if (r < 0)
                fprintf(stderr, "fixture: %s %s\n", e.operation, e.message);
        MUST(r == 0);
        int fd = memory(count);
        MUST(pwrite(fd, bytes, count, 0) == (ssize_t) count);
        free(bytes);
        return fd;
}

static int seal(struct fixture *f, struct fixture_trainer *t, uint64_t number) {
        Cairn__Control__Envelope e = CAIRN__CONTROL__ENVELOPE__INIT;
        Cairn__Control__SlabBatch b = CAIRN__CONTROL__SLAB_BATCH__INIT;
        Cairn__Control__Seal m = CAIRN__CONTROL__SEAL__INIT;
        uint64_t slab_bytes = 8192;
        uint32_t kind = 1;
        int slab = memory(slab_bytes);
        b.n_bytes = b.n_kind = 1;
        b.bytes = &slab_bytes;
        b.kind = &kind;
        e.body_case = CAIRN__CONTROL__ENVELOPE__BODY_SLAB_BATCH;
        e.slab_batch = &b;
        MUST(wire_send(t->socket, &e, &slab, 1, 0, NULL) == 0); /* id 0: nobody answers */
        int fds[] = {make_inventory(number, slab_bytes), memory(host_state_bytes(64))};
        m.seal = number;
        m.tensor_count = 1;
        m.bytes = 8192;
        e.body_case = CAIRN__CONTROL__ENVELOPE__BODY_SEAL;
        e.seal = &m;
        const Cairn__Control__Envelope *reply = fixture_ask(f, t->socket, &e, fds, 2);
        (void) close(slab);
        (void) close(fds[0]);
        (void) close(fds[1]);
        MUST(reply);
        if (reply->failure) {
                fprintf(stderr, "fixture: %.*s\n", (int) reply->failure->message.len,
                        (char *) reply->failure->message.data);
                return reply->failure->status;
        }
        MUST(reply->body_case == CAIRN__CONTROL__ENVELOPE__BODY_SEALED);
        MUST(reply->sealed->seal == number && reply->sealed->staging_bytes >= 8192);
        return 0;
}

void fixture_seal(struct fixture *f, struct fixture_trainer *t, uint64_t number) {
        MUST(seal(f, t, number) == 0);
}

void fixture_seal_refused(struct fixture *f, struct fixture_trainer *t, uint64_t number,
                          int status) {
        MUST(seal(f, t, number) == status);
}

void fixture_restore_done(struct fixture *f, struct fixture_trainer *t) {
        Cairn__Control__Envelope e = CAIRN__CONTROL__ENVELOPE__INIT;
        Cairn__Control__RestoreDone m = CAIRN__CONTROL__RESTORE_DONE__INIT;
        uint64_t seq;
        bool ring;
        e.body_case = CAIRN__CONTROL__ENVELOPE__BODY_RESTORE_DONE;
        e.restore_done = &m;
        const Cairn__Control__Envelope *reply = fixture_ask(f, t->socket, &e, NULL, 0);
        MUST(reply && reply->body_case == CAIRN__CONTROL__ENVELOPE__BODY_DONE);
        MUST(cut_update_end(t->page, 0, 1, &seq, &ring) == 0);
}

void fixture_update(struct fixture *f, struct fixture_trainer *t, int64_t step, bool scheduled) {
        struct cut_gate gate = {.deadline_duration_ns = GATE_DEADLINE_NS_MIN};
        uint64_t seq;
        bool expired, ring, updating;
        (void) f;
        MUST(cut_update_begin(t->page, &gate, &clock_system, &expired) == 0);
        if (scheduled)
                (void) cut_request(t->page, &updating);
        MUST(cut_update_end(t->page, step, 1, &seq, &ring) == 0);
        if (ring)
                MUST(write(t->event_fd, &(uint64_t){1}, 8) == 8);
}

void fixture_trainer_done(struct fixture_trainer *t) {
        (void) munmap(t->page, CONTROL_PAGE_BYTES);
        (void) close(t->socket);
        (void) close(t->page_fd);
        (void) close(t->event_fd);
}

struct session *fixture_session(struct fixture *f, uint32_t rank) {
        struct run *run = agent_find_run(&f->agent, "demo");
        return run ? run_session(run, rank) : NULL;
}
