/* SPDX-License-Identifier: Apache-2.0
 *
 * The loop's side with a child that does what a script in shared memory says. The kinds have their
 * own tests; real ones meet in tests/e2e/rendezvous.sh.
 */
#include "agent/rendezvous_process.h"
#include "base/cleanup.h"
#include "tests/test.h"

#include <poll.h>
#include <sys/mman.h>

enum { VERBS = RENDEZVOUS_GET + 1 };

struct script {
        int status[VERBS]; /* of an answer, after the first `failures` with `failure` */
        unsigned failures[VERBS];
        int failure[VERBS];
        unsigned calls[VERBS], renewals, member_looks;
        unsigned look_ms;
        bool mute, die; /* once: the next request is not answered; ends the child */
        unsigned children, seeded_with;
        uint64_t generation, newest_deadline_ns;
        uint32_t members;
        char last_put[32];
};

/* ---- the child ---- */

static void answer_look(struct script *s, const struct rendezvous_message *m, int fd,
                        struct rendezvous_message *reply, int *ret_fd) {
        struct rendezvous_member members[4] = {0};
        struct rendezvous_look look = {.members = members, .member_count = s->members};
        void *packed, *seed;
        size_t bytes;

        (void) usleep(s->look_ms * 1000);
        s->renewals += m->renew;
        s->member_looks += m->is_member;
        if (fd >= 0 && rendezvous_payload_read(fd, &seed, &bytes, NULL) == 0) {
                struct rendezvous_look known = {0};
                if (rendezvous_unpack(seed, bytes, &known, NULL) == 0)
                        s->seeded_with = (unsigned) known.member_count;
                free(seed);
        }
        for (uint32_t i = 0; i < s->members; i++)
                (void) snprintf(members[i].node, sizeof members[i].node, "n%u", i);
        look.generation.number = s->generation;
        if (rendezvous_pack(&look, &packed, &bytes, NULL) == 0) {
                *ret_fd = rendezvous_payload(packed, bytes, NULL);
                reply->has_payload = true;
                free(packed);
        }
}

static int do_as_told(struct script *s, const struct rendezvous_message *m, int fd, int *ret_fd,
                      struct rendezvous_message *reply) {
        enum rendezvous_verb verb = m->verb;
        unsigned call = ++s->calls[verb];
        int status = call <= s->failures[verb] ? s->failure[verb] : s->status[verb];
        void *value;
        size_t bytes;

        s->newest_deadline_ns = m->deadline_ns;
        if (status == 0 && verb == RENDEZVOUS_LOOK)
                answer_look(s, m, fd, reply, ret_fd);
        if (status == 0 && verb == RENDEZVOUS_CREATE)
                s->generation = m->generation ? m->generation : s->generation;
        if (verb == RENDEZVOUS_PUT && rendezvous_payload_read(fd, &value, &bytes, NULL) == 0) {
                (void) snprintf(s->last_put, sizeof s->last_put, "%.*s", (int) bytes,
                                (char *) value);
                free(value);
        }
        if (status == 0 && verb == RENDEZVOUS_GET) {
                *ret_fd = rendezvous_payload("value", 5, NULL);
                reply->has_payload = true;
        }
        return status;
}

static int child_main(int argc, char **argv) {
        struct rendezvous_message m;
        int fd;

        if (argc != 6 || strncmp(argv[2], "dir://", 6) != 0)
                return 9;
        int file = open(argv[2] + 6, O_RDWR | O_CLOEXEC);
        struct script *s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        if (s == MAP_FAILED)
                return 9;
        s->children++;
        while (rendezvous_receive(3, 0, &m, &fd) == 1) {
                struct rendezvous_message reply = m;
                _cleanup_close_ int request_fd = fd, reply_fd = -1;
                if (s->mute || s->die) {
                        bool die = s->die;
                        s->mute = s->die = false;
                        if (die)
                                _exit(1);
                        for (;;)
                                (void) pause();
                }
                reply.has_payload = false;
                reply.error = (struct cairn_error) CAIRN_ERROR_INIT;
                reply.status = do_as_told(s, &m, request_fd, &reply_fd, &reply);
                if (reply.status < 0)
                        (void) error_set(&reply.error, reply.status, "be asked", "script",
                                         "as the script says");
                if (rendezvous_send(3, 0, &reply, reply_fd) < 0)
                        return 1;
        }
        return 0;
}

/* ---- the parent ---- */

struct answers {
        unsigned count;
        struct rendezvous_answer last;
        char order[80], value[32];
        uint64_t generation_then; /* of the view, in the callback */
        uint64_t at_ns;
};
struct fixture {
        char path[256];
        struct script *script;
        struct rendezvous_place place;
        struct rendezvous *r;
        unsigned changes;
        struct answers answers;
        struct rendezvous_member self;
};
struct asked {
        struct fixture *f;
        char name;
};

static uint64_t now(void) {
        return clock_now(&clock_system);
}

static uint64_t in_ms(uint64_t milliseconds) {
        return now() + milliseconds * NSEC_PER_MSEC;
}

static void on_change(void *context) {
        struct fixture *f = context;
        f->changes++;
}

static void on_done(void *context, const struct rendezvous_answer *answer) {
        struct fixture *f = context;
        struct answers *a = &f->answers;

        a->last = *answer;
        a->at_ns = now();
        a->generation_then = rendezvous_view(f->r)->generation.number;
        a->value[0] = '\0';
        if (answer->value)
                (void) snprintf(a->value, sizeof a->value, "%.*s", (int) answer->value_bytes,
                                (const char *) answer->value);
        a->count++;
}

static void on_named(void *context, const struct rendezvous_answer *answer) {
        struct asked *asked = context;
        char *order = asked->f->answers.order;

        order[strlen(order)] = asked->name;
        on_done(asked->f, answer);
}

static struct fixture *fixture_new(void) {
        struct fixture *f = calloc(1, sizeof *f);
        char folder[200], url[300];

        assert_non_null(f);
        (void) close(test_folder(folder, sizeof folder));
        (void) snprintf(f->path, sizeof f->path, "%s/script", folder);
        int fd = open(f->path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        assert_true(fd >= 0 && ftruncate(fd, sizeof *f->script) == 0);
        f->script = mmap(NULL, sizeof *f->script, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        assert_true(f->script != MAP_FAILED);
        (void) close(fd);
        (void) snprintf(url, sizeof url, "dir://%s", f->path);
        assert_int_equal(rendezvous_place_parse(url, NULL, "run", &f->place, NULL), 0);
        assert_int_equal(rendezvous_new(&f->place, on_change, f, &f->r, NULL), 0);
        f->self = (struct rendezvous_member){
                .node = "n0", .address = "10.0.0.1:99", .nonce = 7, .ranks = 2};
        return f;
}

static void fixture_free(struct fixture *f) {
        f->r = rendezvous_free(f->r);
        (void) munmap(f->script, sizeof *f->script);
        free(f);
}

static void step(struct fixture *f) {
        struct pollfd p = {.fd = rendezvous_fd(f->r), .events = POLLIN};
        if (poll(&p, 1, 100) == 1) {
                uint64_t before = now();
                rendezvous_dispatch(f->r);
                assert_true(now() - before <
                            1800 * NSEC_PER_MSEC); /* it never waits for the child */
        }
}

#define UNTIL(f, condition)                        \
        do {                                       \
                uint64_t end_ = in_ms(60000);      \
                while (!(condition)) {             \
                        assert_true(now() < end_); \
                        step(f);                   \
                }                                  \
        } while (0)

static void wait_answers(struct fixture *f, unsigned count) {
        UNTIL(f, f->answers.count >= count);
        assert_int_equal(f->answers.count, count);
}

static int join(struct fixture *f) {
        unsigned before = f->answers.count;
        assert_int_equal(rendezvous_join(f->r, &f->self, in_ms(50000), on_done, f, NULL), 0);
        assert_int_equal(f->answers.count, before); /* never inside the call */
        wait_answers(f, before + 1);
        return f->answers.last.status;
}

static int put(struct fixture *f, uint64_t timeout_ms) {
        unsigned before = f->answers.count;
        assert_int_equal(
                rendezvous_put(f->r, 1, "key", "value", 5, in_ms(timeout_ms), on_done, f, NULL), 0);
        wait_answers(f, before + 1);
        return f->answers.last.status;
}

static int get(struct fixture *f, uint64_t timeout_ms) {
        unsigned before = f->answers.count;
        assert_int_equal(rendezvous_get(f->r, 1, "key", in_ms(timeout_ms), on_done, f, NULL), 0);
        wait_answers(f, before + 1);
        return f->answers.last.status;
}

static struct rendezvous_generation generation_of(const struct fixture *f, uint64_t number) {
        return (struct rendezvous_generation){
                .number = number, .world = 2, .members = &f->self, .member_count = 1};
}

static void watches_by_itself(void **state) {
        struct fixture *f = fixture_new();
        const struct rendezvous_view *v = rendezvous_view(f->r);

        f->script->members = 2;
        f->script->generation = 3;
        assert_true(v->confirmed_ns == 0 && v->member_count == 0);
        UNTIL(f, v->member_count == 2);
        assert_int_equal(v->standing, RENDEZVOUS_OUTSIDE);
        assert_int_equal(v->generation.number, 3);
        assert_string_equal(v->members[1].node, "n1");
        assert_true(v->confirmed_ns > 0 && v->error.status == 0);
        unsigned looks = f->script->calls[RENDEZVOUS_LOOK];
        UNTIL(f, f->script->calls[RENDEZVOUS_LOOK] >= looks + 3);
        assert_int_equal(f->changes, 1); /* nothing changed since */
        f->script->members = 3;
        UNTIL(f, v->member_count == 3);
        assert_int_equal(f->changes, 2);
        assert_int_equal(f->script->renewals, 0);
        fixture_free(f);
}

static void a_member_renews(void **state) {
        struct fixture *f = fixture_new();
        const struct rendezvous_view *v = rendezvous_view(f->r);

        f->script->members = 1;
        assert_int_equal(join(f), 0);
        assert_int_equal(v->standing, RENDEZVOUS_MEMBER);
        assert_true(v->member_count == 1 && f->script->member_looks > 0); /* shown when answered */
        UNTIL(f, f->script->renewals >= 2);
        assert_int_equal(join(f), 0); /* the same again */
        f->self.nonce = 8;
        assert_int_equal(join(f), CAIRN_ERR_API);
        assert_int_equal(rendezvous_leave(f->r, in_ms(50000), on_done, f, NULL), 0);
        wait_answers(f, f->answers.count + 1);
        assert_int_equal(v->standing, RENDEZVOUS_OUTSIDE);
        unsigned renewals = f->script->renewals, looks = f->script->calls[RENDEZVOUS_LOOK];
        UNTIL(f, f->script->calls[RENDEZVOUS_LOOK] >= looks + 5);
        assert_int_equal(f->script->renewals, renewals);
        f->self.nonce = 7; /* a membership that has ended */
        assert_int_equal(join(f), CAIRN_ERR_STALE);
        f->self.nonce = 8;
        assert_int_equal(join(f), 0);
        fixture_free(f);
}

static void answers_in_order_and_a_full_queue(void **state) {
        struct fixture *f = fixture_new();
        struct asked asked[RENDEZVOUS_WAITING_MAX];
        struct cairn_error e = CAIRN_ERROR_INIT;

        assert_int_equal(join(f), 0);
        f->answers.count = 0;
        for (size_t i = 0; i < RENDEZVOUS_WAITING_MAX; i++) {
                asked[i] = (struct asked){f, (char) ('A' + i % 26)};
                assert_int_equal(rendezvous_put(f->r, 1, "key", "v", 1, in_ms(50000), on_named,
                                                &asked[i], NULL),
                                 0);
        }
        assert_int_equal(rendezvous_put(f->r, 1, "key", "v", 1, in_ms(50000), on_done, f, &e),
                         CAIRN_ERR_BUSY);
        assert_non_null(strstr(e.message, "64"));
        wait_answers(f, RENDEZVOUS_WAITING_MAX);
        for (size_t i = 0; i < RENDEZVOUS_WAITING_MAX; i++)
                assert_int_equal(f->answers.order[i], (char) ('A' + i % 26));
        assert_string_equal(f->script->last_put, "v");
        fixture_free(f);
}

static void outages_are_asked_again(void **state) {
        struct fixture *f = fixture_new();
        struct script *s = f->script;

        assert_int_equal(join(f), 0);
        s->failures[RENDEZVOUS_PUT] = 2;
        s->failure[RENDEZVOUS_PUT] = CAIRN_ERR_UNREACHABLE;
        assert_int_equal(put(f, 50000), 0);
        assert_int_equal(s->calls[RENDEZVOUS_PUT], 3);
        s->status[RENDEZVOUS_PUT] = CAIRN_ERR_PEER;
        uint64_t at = now();
        assert_int_equal(put(f, 900), CAIRN_ERR_UNREACHABLE);
        assert_true(now() - at >= 900 * NSEC_PER_MSEC);
        assert_non_null(strstr(f->answers.last.error.message, "as the script says"));
        assert_non_null(strstr(f->answers.last.error.message, "outcome is unknown"));
        s->status[RENDEZVOUS_PUT] = CAIRN_ERR_PERMISSION; /* final: at once */
        unsigned calls = s->calls[RENDEZVOUS_PUT];
        assert_int_equal(put(f, 50000), CAIRN_ERR_PERMISSION);
        assert_int_equal(s->calls[RENDEZVOUS_PUT], calls + 1);
        fixture_free(f);
}

static void an_unreachable_storage_keeps_the_view(void **state) {
        struct fixture *f = fixture_new();
        const struct rendezvous_view *v = rendezvous_view(f->r);

        f->script->members = 2;
        assert_int_equal(join(f), 0);
        unsigned changes = f->changes;
        uint64_t confirmed_ns = v->confirmed_ns;
        f->script->status[RENDEZVOUS_LOOK] = CAIRN_ERR_IO;
        UNTIL(f, v->error.status < 0);
        unsigned looks = f->script->calls[RENDEZVOUS_LOOK];
        UNTIL(f, f->script->calls[RENDEZVOUS_LOOK] >= looks + 3);
        assert_int_equal(f->changes, changes + 1);
        assert_int_equal(v->member_count, 2);
        assert_int_equal(v->standing, RENDEZVOUS_MEMBER);
        f->script->status[RENDEZVOUS_LOOK] = 0;
        UNTIL(f, v->error.status == 0);
        assert_int_equal(f->changes, changes + 2);
        assert_true(v->confirmed_ns > confirmed_ns);
        fixture_free(f);
}

static void joining_waits_for_a_lease_to_run_out(void **state) {
        struct fixture *f = fixture_new();

        f->script->failures[RENDEZVOUS_JOIN] = 2;
        f->script->failure[RENDEZVOUS_JOIN] = CAIRN_ERR_EXISTS;
        assert_int_equal(join(f), 0);
        assert_int_equal(f->script->calls[RENDEZVOUS_JOIN], 3);
        fixture_free(f);

        f = fixture_new();
        f->script->status[RENDEZVOUS_JOIN] = CAIRN_ERR_EXISTS;
        assert_int_equal(rendezvous_join(f->r, &f->self, in_ms(700), on_done, f, NULL), 0);
        wait_answers(f, 1);
        assert_int_equal(f->answers.last.status, CAIRN_ERR_EXISTS);
        assert_string_equal(f->answers.last.error.message, "as the script says");
        assert_int_equal(rendezvous_view(f->r)->standing, RENDEZVOUS_OUTSIDE);
        fixture_free(f);
}

static void getting_waits_for_the_value(void **state) {
        struct fixture *f = fixture_new();

        assert_int_equal(join(f), 0);
        f->script->failures[RENDEZVOUS_GET] = 4;
        f->script->failure[RENDEZVOUS_GET] = CAIRN_ERR_NOTFOUND;
        assert_int_equal(get(f, 50000), 0);
        assert_int_equal(f->script->calls[RENDEZVOUS_GET], 5);
        assert_string_equal(f->answers.value, "value");
        f->script->status[RENDEZVOUS_GET] = CAIRN_ERR_NOTFOUND;
        uint64_t at = now();
        assert_int_equal(get(f, 800), CAIRN_ERR_TIMEOUT);
        assert_true(f->answers.at_ns - at >= 800 * NSEC_PER_MSEC);
        assert_string_equal(f->answers.last.error.object, "key");
        assert_non_null(strstr(f->answers.last.error.message, "nobody has put it"));
        fixture_free(f);
}

static void a_mute_child_is_replaced(void **state) {
        struct fixture *f = fixture_new();
        const struct rendezvous_view *v = rendezvous_view(f->r);

        f->script->members = 3;
        assert_int_equal(join(f), 0);
        unsigned changes = f->changes;
        f->script->mute = true;
        UNTIL(f, !f->script->mute);
        uint64_t at = now();
        assert_int_equal(put(f, 500), CAIRN_ERR_TIMEOUT); /* in the queue behind what hangs */
        assert_true(f->answers.at_ns - at >= 500 * NSEC_PER_MSEC);
        UNTIL(f, f->script->children == 2);
        assert_int_equal(put(f, 50000), 0);
        UNTIL(f, v->error.status == 0);
        assert_int_equal(f->script->seeded_with, 3);
        assert_int_equal(v->member_count, 3);
        assert_int_equal(v->standing, RENDEZVOUS_MEMBER);
        assert_int_equal(f->changes, changes + 2); /* gone, back; the members never changed */
        fixture_free(f);
}

static void a_dying_child_is_replaced(void **state) {
        struct fixture *f = fixture_new();

        f->script->members = 2;
        assert_int_equal(join(f), 0);
        for (unsigned i = 0; i < 3; i++) {
                f->script->die = true;
                assert_int_equal(put(f, 50000), 0);
                assert_int_equal(get(f, 50000), 0);
        }
        assert_true(f->script->children >= 4);
        assert_int_equal(rendezvous_view(f->r)->standing, RENDEZVOUS_MEMBER);
        fixture_free(f);
}

static void a_lost_member_is_told(void **state) {
        struct fixture *f = fixture_new();
        const struct rendezvous_view *v = rendezvous_view(f->r);
        struct rendezvous_generation g;

        assert_int_equal(join(f), 0);
        f->script->failures[RENDEZVOUS_LOOK] = f->script->calls[RENDEZVOUS_LOOK] + 1;
        f->script->failure[RENDEZVOUS_LOOK] = CAIRN_ERR_STALE;
        UNTIL(f, v->standing == RENDEZVOUS_LOST);
        assert_int_equal(v->error.status, CAIRN_ERR_STALE);
        unsigned puts = f->script->calls[RENDEZVOUS_PUT];
        assert_int_equal(put(f, 50000), CAIRN_ERR_STALE);
        g = generation_of(f, 2);
        assert_int_equal(rendezvous_create(f->r, &g, in_ms(50000), on_done, f, NULL), 0);
        wait_answers(f, f->answers.count + 1);
        assert_int_equal(f->answers.last.status, CAIRN_ERR_STALE);
        assert_int_equal(f->script->calls[RENDEZVOUS_PUT], puts); /* nobody was asked */
        assert_int_equal(join(f), CAIRN_ERR_STALE);
        assert_int_equal(v->standing, RENDEZVOUS_LOST);
        f->self.nonce++;
        assert_int_equal(join(f), 0);
        assert_int_equal(v->standing, RENDEZVOUS_MEMBER);
        assert_int_equal(v->error.status, 0);
        fixture_free(f);
}

static void the_view_shows_what_was_created(void **state) {
        struct fixture *f = fixture_new();
        struct rendezvous_generation g;

        assert_int_equal(join(f), 0);
        for (uint64_t n = 1; n <= 5; n++) {
                g = generation_of(f, n);
                assert_int_equal(rendezvous_create(f->r, &g, in_ms(50000), on_done, f, NULL), 0);
                wait_answers(f, f->answers.count + 1);
                assert_int_equal(f->answers.last.status, 0);
                assert_int_equal(f->answers.generation_then, n);
        }
        /* Somebody else was faster: the view has theirs. */
        f->script->status[RENDEZVOUS_CREATE] = CAIRN_ERR_EXISTS;
        f->script->generation = 6;
        g = generation_of(f, 6);
        assert_int_equal(rendezvous_create(f->r, &g, in_ms(50000), on_done, f, NULL), 0);
        wait_answers(f, f->answers.count + 1);
        assert_int_equal(f->answers.last.status, CAIRN_ERR_EXISTS);
        assert_int_equal(f->answers.generation_then, 6);
        fixture_free(f);
}

/* Looks that take longer than their period leave room for requests. */
static void slow_looks_do_not_starve_requests(void **state) {
        struct fixture *f = fixture_new();

        assert_int_equal(join(f), 0);
        f->script->look_ms = 700;
        for (int i = 0; i < 3; i++)
                assert_int_equal(put(f, 50000), 0);
        assert_true(f->script->newest_deadline_ns <= in_ms(2000)); /* of a call, not the request */
        fixture_free(f);
}

static void wrong_arguments(void **state) {
        struct fixture *f = fixture_new();
        struct rendezvous_generation g = generation_of(f, 1);
        struct rendezvous_member m = f->self;

        assert_int_equal(put(f, 50000), CAIRN_ERR_API); /* not joined */
        assert_non_null(strstr(f->answers.last.error.message, "join first"));
        assert_int_equal(rendezvous_create(f->r, &g, in_ms(50000), on_done, f, NULL),
                         CAIRN_ERR_API); /* nobody leads what he is not in */
        assert_int_equal(rendezvous_put(f->r, 1, "a/b", "v", 1, in_ms(50000), on_done, f, NULL),
                         CAIRN_ERR_API);
        assert_int_equal(rendezvous_put(f->r, 1, "k", "v", RENDEZVOUS_VALUE_BYTES_MAX + 1,
                                        in_ms(50000), on_done, f, NULL),
                         CAIRN_ERR_API);
        assert_int_equal(rendezvous_get(f->r, 1, "", in_ms(50000), on_done, f, NULL),
                         CAIRN_ERR_API);
        m.nonce = 0;
        assert_int_equal(rendezvous_join(f->r, &m, in_ms(50000), on_done, f, NULL), CAIRN_ERR_API);
        m = f->self;
        memcpy(m.detail, "\xff\xfe", 3);
        assert_int_equal(rendezvous_join(f->r, &m, in_ms(50000), on_done, f, NULL), CAIRN_ERR_API);
        m = f->self;
        (void) snprintf(m.address, sizeof m.address, "nowhere");
        assert_int_equal(rendezvous_join(f->r, &m, in_ms(50000), on_done, f, NULL), CAIRN_ERR_API);
        assert_int_equal(f->answers.count, 1);
        fixture_free(f);
}

static void freeing_drops_what_waits(void **state) {
        struct fixture *f = fixture_new();

        assert_int_equal(join(f), 0);
        f->script->status[RENDEZVOUS_GET] = CAIRN_ERR_NOTFOUND;
        for (int i = 0; i < 10; i++)
                assert_int_equal(rendezvous_get(f->r, 1, "key", in_ms(60000), on_done, f, NULL), 0);
        UNTIL(f, f->script->calls[RENDEZVOUS_GET] > 3);
        unsigned before = f->answers.count;
        f->r = rendezvous_free(f->r);
        assert_int_equal(f->answers.count, before);
        fixture_free(f);
}

int main(int argc, char **argv) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(watches_by_itself),
                cmocka_unit_test(a_member_renews),
                cmocka_unit_test(answers_in_order_and_a_full_queue),
                cmocka_unit_test(outages_are_asked_again),
                cmocka_unit_test(an_unreachable_storage_keeps_the_view),
                cmocka_unit_test(joining_waits_for_a_lease_to_run_out),
                cmocka_unit_test(getting_waits_for_the_value),
                cmocka_unit_test(a_mute_child_is_replaced),
                cmocka_unit_test(a_dying_child_is_replaced),
                cmocka_unit_test(a_lost_member_is_told),
                cmocka_unit_test(the_view_shows_what_was_created),
                cmocka_unit_test(slow_looks_do_not_starve_requests),
                cmocka_unit_test(wrong_arguments),
                cmocka_unit_test(freeing_drops_what_waits),
        };
        if (argc > 1 && strcmp(argv[1], "--rendezvous-process") == 0)
                return child_main(argc, argv);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
