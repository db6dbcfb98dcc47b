/* SPDX-License-Identifier: Apache-2.0
 *
 * The leader of a large group: the real group, attempts and holds of one agent, with a played store
 * and savers (agent_fixture.h), a played rendezvous, and real connections from this process, which
 * plays all members. What is said for one commit grows with the group and no faster.
 *
 * SIZE_NODES (make check-size): up to so many nodes, and what it took. Without, small groups.
 */
#include "agent/group.h"
#include "base/log.h"
#include "tests/test.h"
#include "tests/unit/agent_fixture.h"

#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#define BODY(name) CAIRN__CONTROL__ENVELOPE__BODY_##name
#define PEER(name) CAIRN__PEER__PEER_ENVELOPE__BODY_##name
#define DEMO ((ProtobufCBinaryData){4, (uint8_t *) "demo"})
enum { RANKS = 8, SIZES = 4, STEP_BYTES = 4096 };

/* ---- a rendezvous where all are ---- */

struct rendezvous {
        rendezvous_changed_fn changed;
        rendezvous_done_fn done;
        void *context, *done_context;
        int fd;
        struct rendezvous_view view;
        struct rendezvous_member *members, *group;
};
static uint32_t node_count;

static void name_node(char *name, size_t bytes, uint32_t node) {
        (void) snprintf(name, bytes, "node-%04u", (unsigned) node);
}

int rendezvous_new(const struct rendezvous_place *place, rendezvous_changed_fn changed,
                   void *context, struct rendezvous **ret, struct cairn_error *reterr) {
        struct rendezvous *r = calloc(1, sizeof *r);
        (void) place;
        (void) reterr;
        assert_non_null(r);
        *r = (struct rendezvous){.changed = changed,
                                 .context = context,
                                 .fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC),
                                 .members = calloc(node_count, sizeof *r->members)};
        for (uint32_t i = 0; i < node_count; i++) {
                name_node(r->members[i].node, sizeof r->members[i].node, i);
                r->members[i].nonce = i + 1;
                r->members[i].ranks = RANKS;
        }
        r->view.members = r->members;
        r->view.member_count = node_count;
        *ret = r;
        return 0;
}

struct rendezvous *rendezvous_free(struct rendezvous *r) {
        if (r) {
                (void) close(r->fd);
                free(r->members);
                free(r->group);
        }
        free(r);
        return NULL;
}

int rendezvous_fd(const struct rendezvous *r) {
        return r->fd;
}

const struct rendezvous_view *rendezvous_view(const struct rendezvous *r) {
        return &r->view;
}

static int later(struct rendezvous *r, rendezvous_done_fn done, void *context) {
        r->done = done;
        r->done_context = context;
        assert_int_equal(write(r->fd, &(uint64_t){1}, 8), 8);
        return 0;
}

void rendezvous_dispatch(struct rendezvous *r) {
        const struct rendezvous_answer answer = {.error = CAIRN_ERROR_INIT};
        uint64_t count;
        rendezvous_done_fn done = r->done;
        if (read(r->fd, &count, sizeof count) < 0)
                return;
        r->done = NULL;
        if (done)
                done(r->done_context, &answer);
        r->changed(r->context);
}

int rendezvous_join(struct rendezvous *r, const struct rendezvous_member *self,
                    uint64_t deadline_ns, rendezvous_done_fn done, void *context,
                    struct cairn_error *reterr) {
        (void) deadline_ns;
        (void) reterr;
        r->members[0] = *self;
        r->view.standing = RENDEZVOUS_MEMBER;
        return later(r, done, context);
}

int rendezvous_leave(struct rendezvous *r, uint64_t deadline_ns, rendezvous_done_fn done,
                     void *context, struct cairn_error *reterr) {
        (void) deadline_ns;
        (void) reterr;
        r->view.standing = RENDEZVOUS_OUTSIDE;
        return later(r, done, context);
}

int rendezvous_create(struct rendezvous *r, const struct rendezvous_generation *generation,
                      uint64_t deadline_ns, rendezvous_done_fn done, void *context,
                      struct cairn_error *reterr) {
        size_t bytes = generation->member_count * sizeof *r->group;
        (void) deadline_ns;
        (void) reterr;
        r->group = malloc(bytes);
        assert_non_null(r->group);
        memcpy(r->group, generation->members, bytes);
        r->view.generation = *generation;
        r->view.generation.members = r->group;
        memcpy(r->view.generation.leader, r->members[0].node, sizeof r->members[0].node);
        return later(r, done, context);
}

int rendezvous_put(struct rendezvous *r, uint64_t generation, const char *key, const void *value,
                   size_t bytes, uint64_t deadline_ns, rendezvous_done_fn done, void *context,
                   struct cairn_error *reterr) {
        (void) r, (void) generation, (void) key, (void) value, (void) bytes, (void) deadline_ns;
        (void) done, (void) context;
        return error_set(reterr, CAIRN_ERR_UNSUPPORTED, "put", "", "not played");
}

int rendezvous_get(struct rendezvous *r, uint64_t generation, const char *key, uint64_t deadline_ns,
                   rendezvous_done_fn done, void *context, struct cairn_error *reterr) {
        (void) r, (void) generation, (void) key, (void) deadline_ns, (void) done, (void) context;
        return error_set(reterr, CAIRN_ERR_UNSUPPORTED, "get", "", "not played");
}

/* ---- the members ---- */

struct member {
        uint32_t node;
        struct peer_link *link;
        uint32_t armed; /* attempt */
};
static struct fixture f;
static struct fixture_trainer trainers[RANKS];
static struct member *members;
static int64_t common_step;
static uint32_t opened, closed;
static uint64_t said[PEER(EXCHANGE) + 1], reports; /* by the leader; by the members */

static void report(const struct member *m, uint32_t attempt, uint32_t rank,
                   Cairn__Peer__RankEvent event) {
        Cairn__Peer__PeerEnvelope e = CAIRN__PEER__PEER_ENVELOPE__INIT;
        Cairn__Peer__Rank r = CAIRN__PEER__RANK__INIT;
        r.attempt = attempt;
        r.rank = rank;
        r.event = event;
        r.step = common_step;
        r.bytes = STEP_BYTES;
        e.body_case = PEER(RANK);
        e.rank = &r;
        reports++;
        assert_int_equal(peer_send(m->link, &e), 0);
}

static void report_all(const struct member *m, uint32_t attempt, Cairn__Peer__RankEvent event) {
        for (uint32_t i = 0; i < RANKS; i++)
                report(m, attempt, m->node * RANKS + i, event);
}

/* Its savers copy and write at once, and are armed with the next attempt as soon as it is told. */
static void cut(struct member *m, uint32_t attempt) {
        if (m->armed != attempt)
                return;
        m->armed = 0;
        report_all(m, attempt, CAIRN__PEER__RANK_EVENT__RANK_CUT);
        report_all(m, attempt, CAIRN__PEER__RANK_EVENT__RANK_PUBLISHED);
}

static void received(void *context, struct peer_link *link, const Cairn__Peer__PeerEnvelope *e) {
        struct member *m = context;
        (void) link;
        said[e->body_case]++;
        switch (e->body_case) {
        case PEER(OPEN):
                m->armed = e->open->attempt;
                report_all(m, m->armed, CAIRN__PEER__RANK_EVENT__RANK_ARMED);
                break;
        case PEER(HOLD):
                assert_int_equal(e->hold->rank, m->node * RANKS);
                assert_int_equal(e->hold->count, RANKS);
                report_all(m, e->hold->attempt, CAIRN__PEER__RANK_EVENT__RANK_HELD);
                break;
        case PEER(GO):
                cut(m, e->go->attempt);
                break;
        case PEER(FOLLOW):
                cut(m, e->follow->attempt);
                break;
        default:
                break;
        }
}

static void link_opened(void *context, struct peer_link *link) {
        Cairn__Peer__PeerEnvelope e = CAIRN__PEER__PEER_ENVELOPE__INIT;
        Cairn__Peer__Ready m = CAIRN__PEER__READY__INIT;
        (void) context;
        e.body_case = PEER(READY);
        e.ready = &m;
        opened++;
        assert_int_equal(peer_send(link, &e), 0);
}

static void link_closed(void *context, struct peer_link *link, const struct cairn_error *why) {
        struct member *m = context;
        char text[400];
        if (closed++ == 0)
                print_message("node %u: %s\n", m->node, error_format(why, text, sizeof text));
        m->link = NULL;
        peer_free(link);
}

static void connect_members(const struct run *run) {
        const struct rendezvous_generation *g =
                &rendezvous_view(run->group->rendezvous)->generation;
        struct cairn_error e = CAIRN_ERROR_INIT;
        for (uint32_t i = 1; i < node_count; i++) {
                struct peer_identity me = {.run = "demo", .generation = g->number};
                struct peer_callbacks callbacks = {.context = &members[i],
                                                   .opened = link_opened,
                                                   .received = received,
                                                   .closed = link_closed};
                name_node(me.node, sizeof me.node, i);
                memcpy(me.secret, g->secret, sizeof me.secret);
                members[i] = (struct member){.node = i};
                if (peer_connect(&f.agent.loop, &me, "127.0.0.1", run->group->listener.port,
                                 &callbacks, &members[i].link, &e) < 0)
                        fail_msg("node %u: %s", i, e.message);
        }
}

/* ---- conversations ---- */

static struct run *run(void) {
        return agent_find_run(&f.agent, "demo");
}

static void until(bool (*is_so)(void)) {
        for (unsigned i = 0; i < 60000 && !is_so(); i++)
                fixture_run_ms(&f, 1);
        if (!is_so())
                fail_msg("%u nodes: %u connected, %u lost", node_count, opened, closed);
}

static bool all_ready(void) {
        uint32_t ready = 1;
        for (uint32_t i = 0; i < run()->group->node_count; i++)
                ready += run()->group->nodes[i].ready;
        return ready == node_count;
}

static bool attempt_is_open(void) {
        for (size_t i = 0; i < RUN_ATTEMPT_COUNT; i++) {
                const struct run_attempt *a = &run()->attempts[i];
                if (a->state == ATTEMPT_OPEN && a->counts[RANK_ARMED] == run()->world)
                        return true;
        }
        return false;
}

static bool all_heard(void) {
        return run()->committed_step == common_step && said[PEER(COMMITTED)] == node_count - 1;
}

static void start(int runner) {
        Cairn__Control__Envelope e = CAIRN__CONTROL__ENVELOPE__INIT;
        Cairn__Control__Start s = CAIRN__CONTROL__START__INIT;
        s.run = DEMO;
        s.store = (ProtobufCBinaryData){6, (uint8_t *) "/store"};
        s.world = RANKS;
        s.mode = START_FRESH;
        s.rendezvous = (ProtobufCBinaryData){16, (uint8_t *) "etcd://127.0.0.1"};
        s.node = (ProtobufCBinaryData){9, (uint8_t *) "node-0000"};
        s.address = (ProtobufCBinaryData){9, (uint8_t *) "127.0.0.1"};
        s.nodes_min = s.nodes_max = node_count;
        e.body_case = BODY(START);
        e.start = &s;
        int fd = (int) syscall(SYS_pidfd_open, getpid(), 0);
        const Cairn__Control__Envelope *reply = fixture_ask(&f, runner, &e, &fd, 1);
        (void) close(fd);
        assert_non_null(reply);
        if (reply->failure)
                fail_msg("%.*s", (int) reply->failure->message.len,
                         (const char *) reply->failure->message.data);
        assert_int_equal(reply->body_case, BODY(STARTED));
        assert_int_equal(run()->world, node_count * RANKS);
}

static double processor_s(void) {
        struct rusage u;
        (void) getrusage(RUSAGE_SELF, &u);
        return (double) (u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
               (double) (u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

struct measured {
        uint64_t said, reports;
        double seconds;
};

/* One cut of all ranks, up to the moment when every member has heard that it is committed. */
static struct measured cut_all(int tool, bool demanded) {
        Cairn__Control__Envelope e = CAIRN__CONTROL__ENVELOPE__INIT;
        Cairn__Control__SnapshotRequest m = CAIRN__CONTROL__SNAPSHOT_REQUEST__INIT;
        struct measured result = {.seconds = -processor_s()};
        until(attempt_is_open);
        memset(said, 0, sizeof said);
        reports = 0;
        common_step++;
        for (uint32_t i = 0; i < RANKS; i++)
                fixture_update(&f, &trainers[i], common_step, !demanded);
        m.run = DEMO;
        m.wait = true;
        m.timeout_ns = 60 * NSEC_PER_SEC;
        e.body_case = BODY(SNAPSHOT_REQUEST);
        e.snapshot_request = &m;
        if (demanded)
                (void) fixture_send(&f, tool, &e, NULL, 0);
        until(all_heard);
        if (demanded) {
                const Cairn__Control__Envelope *reply = fixture_receive(&f, tool);
                assert_non_null(reply);
                assert_null(reply->failure);
                assert_int_equal(reply->snapshot_reply->step, common_step);
        }
        until(attempt_is_open); /* the next one, on all ranks */
        result.seconds += processor_s();
        for (size_t i = 0; i < sizeof said / sizeof *said; i++)
                result.said += i == PEER(PING) ? 0 : said[i];
        result.reports = reports;
        return result;
}

/* Each message to each member once; the ranks' reports once a rank. */
static void check(const struct measured *m, bool demanded) {
        uint64_t others = node_count - 1;
        assert_int_equal(said[PEER(OPEN)], others);
        assert_int_equal(said[PEER(COMMITTED)], others);
        assert_int_equal(said[PEER(GO)], demanded ? others : 0);
        assert_int_equal(said[PEER(FOLLOW)], demanded ? 0 : others);
        assert_int_equal(said[PEER(DOOM)], 0);
        assert_int_equal(said[PEER(EXCHANGE)], 0);
        /* Held in time or, on a busy machine, once more. */
        assert_int_equal(said[PEER(HOLD)] % others, 0);
        assert_int_equal(said[PEER(HOLD)] - said[PEER(RELEASE)], demanded ? others : 0);
        assert_int_equal(m->reports, (3 + said[PEER(HOLD)] / others) * RANKS * others);
        assert_int_equal(run()->attempts_failed, 0);
        assert_int_equal(closed, 0);
}

static void one_size(uint32_t nodes) {
        node_count = nodes;
        common_step = 6;
        opened = closed = 0;
        members = calloc(nodes, sizeof *members);
        assert_non_null(members);
        fixture_init(&f);
        double begin = processor_s();
        int runner = fixture_connect(&f, CAIRN__CONTROL__PEER_KIND__PEER_RUNNER);
        int tool = fixture_connect(&f, CAIRN__CONTROL__PEER_KIND__PEER_TOOL);
        start(runner);
        for (uint32_t i = 0; i < RANKS; i++) {
                fixture_hello(&f, &trainers[i], i);
                fixture_seal(&f, &trainers[i], 1);
                fixture_restore_done(&f, &trainers[i]);
        }
        connect_members(run());
        until(all_ready);
        assert_int_equal(opened, nodes - 1);
        double connected = processor_s() - begin;
        struct measured demanded = cut_all(tool, true);
        check(&demanded, true);
        struct measured scheduled = cut_all(tool, false);
        check(&scheduled, false);
        printf("%8u %8u | %9.2f | %9.2f %9llu %9llu | %9.2f %9llu %9llu\n", nodes, nodes * RANKS,
               connected, demanded.seconds, (unsigned long long) demanded.said,
               (unsigned long long) demanded.reports, scheduled.seconds,
               (unsigned long long) scheduled.said, (unsigned long long) scheduled.reports);
        for (uint32_t i = 1; i < nodes; i++)
                peer_free(members[i].link);
        for (uint32_t i = 0; i < RANKS; i++)
                fixture_trainer_done(&trainers[i]);
        (void) close(runner);
        (void) close(tool);
        fixture_done(&f);
        free(members);
}

static void test_growth(void **state) {
        const char *text = getenv("SIZE_NODES");
        uint32_t nodes = text ? (uint32_t) strtoul(text, NULL, 10) : 32;
        struct rlimit files;
        (void) state;
        assert_int_equal(getrlimit(RLIMIT_NOFILE, &files), 0);
        files.rlim_cur = files.rlim_max;
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &files), 0);
        printf("the leader and all members in one process; s: of the processor\n");
        printf("%8s %8s | %9s | %9s %9s %9s | %9s %9s %9s\n", "nodes", "ranks", "connect s",
               "demand s", "to", "from", "sched. s", "to", "from");
        for (uint32_t i = 0; i < SIZES; i++)
                one_size(nodes >> (SIZES - 1 - i));
}

int main(void) {
        const struct CMUnitTest tests[] = {cmocka_unit_test(test_growth)};
        return cmocka_run_group_tests(tests, NULL, NULL);
}
