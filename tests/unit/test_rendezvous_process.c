/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/rendezvous_process.h"
#include "base/cleanup.h"
#include "tests/test.h"

#include <poll.h>
#include <sys/socket.h>

static struct cairn_error e;

static void looks_are_packed_and_unpacked(void **state) {
        struct rendezvous_member members[5] = {0};
        struct rendezvous_look look = {.generation = {.number = 3,
                                                      .members = members,
                                                      .member_count = 2},
                                       .members = members + 2,
                                       .member_count = 3},
                               back;
        void *bytes, *again;
        size_t count, again_count;

        for (int i = 0; i < 5; i++)
                members[i].nonce = (uint64_t) i + 1;
        assert_int_equal(rendezvous_pack(&look, &bytes, &count, &e), 0);
        assert_int_equal(rendezvous_pack(&look, &again, &again_count, &e), 0);
        assert_true(count == again_count && memcmp(bytes, again, count) == 0);
        assert_int_equal(rendezvous_unpack(bytes, count, &back, &e), 0);
        assert_true(back.generation.number == 3 && back.generation.members[1].nonce == 2);
        assert_true(back.member_count == 3 && back.members[2].nonce == 5);
        /* Not a look: any other length. */
        for (size_t i = 0; i < count; i++)
                assert_int_equal(rendezvous_unpack(bytes, i, &back, &e), CAIRN_ERR_PEER);
        free(bytes);
        free(again);
}

static void payloads_travel_by_memfd(void **state) {
        void *back;
        size_t count;

        for (size_t bytes = 0; bytes < 200000; bytes = bytes * 3 + 1) {
                char *text = malloc(bytes + 1);
                memset(text, 'x', bytes);
                _cleanup_close_ int fd = rendezvous_payload(text, bytes, &e);
                assert_true(fd >= 0);
                assert_int_equal(rendezvous_payload_read(fd, &back, &count, &e), 0);
                assert_int_equal(count, bytes);
                assert_memory_equal(back, text, bytes);
                free(back);
                free(text);
        }
        assert_true(rendezvous_payload_read(-1, &back, &count, &e) < 0);
}

static void messages_travel_with_their_payload(void **state) {
        struct rendezvous_message m = {.id = 9, .verb = RENDEZVOUS_PUT}, back;
        int pair[2], fd;

        assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
        assert_int_equal(rendezvous_receive(pair[1], MSG_DONTWAIT, &back, &fd), -1);
        assert_int_equal(rendezvous_send(pair[0], 0, &m, -1), 0);
        assert_int_equal(rendezvous_receive(pair[1], 0, &back, &fd), 1);
        assert_true(back.id == 9 && fd == -1);
        _cleanup_close_ int payload = rendezvous_payload("abc", 3, &e);
        m.has_payload = true;
        assert_int_equal(rendezvous_send(pair[0], 0, &m, payload), 0);
        assert_int_equal(rendezvous_receive(pair[1], 0, &back, &fd), 1);
        assert_true(fd >= 0 && fd != payload);
        (void) close(fd);
        /* Another length, or a payload that is not there, is none of ours. */
        assert_int_equal(send(pair[0], &m, 10, 0), 10);
        assert_int_equal(rendezvous_receive(pair[1], 0, &back, &fd), -1);
        assert_int_equal(send(pair[0], &m, sizeof m, 0), sizeof m);
        assert_int_equal(rendezvous_receive(pair[1], 0, &back, &fd), -1);
        (void) close(pair[0]);
        assert_int_equal(rendezvous_receive(pair[1], 0, &back, &fd), 0);
        (void) close(pair[1]);
}

static void serve(const int pair[2]) {
        char words[][24] = {"x", "--rendezvous-process", "dir", "run", "create"}, store[300];
        char *arguments[] = {words[0], words[1], words[2], store, words[3], words[4]};
        const char *base = getenv("TMPDIR");

        (void) snprintf(store, sizeof store, "%s/served", base ? base : "/tmp");
        (void) close(pair[0]);
        _exit(rendezvous_main(pair[1], 6, arguments));
}

/* The child: each message is answered, whatever it asks; it ends with the socket. */
static void the_child_serves(void **state) {
        struct rendezvous_message m = {.id = 1, .verb = RENDEZVOUS_JOIN, .deadline_ns = UINT64_MAX},
                                  back;
        struct rendezvous_look look;
        int pair[2], fd, status;
        void *bytes;
        size_t count;

        m.self = (struct rendezvous_member){.node = "a", .address = "h:1", .nonce = 4, .ranks = 1};
        assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
        pid_t pid = fork();
        assert_true(pid >= 0);
        if (pid == 0)
                serve(pair);
        (void) close(pair[1]);
        assert_int_equal(rendezvous_send(pair[0], 0, &m, -1), 0);
        assert_int_equal(rendezvous_receive(pair[0], 0, &back, &fd), 1);
        if (back.status < 0)
                fail_msg("%s", back.error.message);
        for (int i = 0; i < 2; i++) {
                m = (struct rendezvous_message){
                        .id = 2, .verb = RENDEZVOUS_LOOK, .is_member = true, .self = m.self};
                assert_int_equal(rendezvous_send(pair[0], 0, &m, -1), 0);
                assert_int_equal(rendezvous_receive(pair[0], 0, &back, &fd), 1);
                assert_int_equal(back.status, 0);
                assert_int_equal(fd >= 0, i == 0); /* the same look is not sent twice */
                if (i == 0) {
                        assert_int_equal(rendezvous_payload_read(fd, &bytes, &count, &e), 0);
                        assert_int_equal(rendezvous_unpack(bytes, count, &look, &e), 0);
                        assert_true(look.member_count == 1 && look.members[0].nonce == 4);
                        free(bytes);
                        (void) close(fd);
                }
        }
        m.verb = 77;
        assert_int_equal(rendezvous_send(pair[0], 0, &m, -1), 0);
        assert_int_equal(rendezvous_receive(pair[0], 0, &back, &fd), 1);
        assert_int_equal(back.status, CAIRN_ERR_API);
        m.verb = RENDEZVOUS_CREATE; /* without what it creates */
        m.has_payload = true;
        _cleanup_close_ int rubbish = rendezvous_payload("rubbish", 7, &e);
        assert_int_equal(rendezvous_send(pair[0], 0, &m, rubbish), 0);
        assert_int_equal(rendezvous_receive(pair[0], 0, &back, &fd), 1);
        assert_int_equal(back.status, CAIRN_ERR_PEER);
        (void) close(pair[0]);
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void sentences(void **state) {
        (void) rendezvous_refuse_old("put value", 3, 5, &e);
        assert_non_null(strstr(e.message, "it is over: the newest generation is 5"));
        (void) rendezvous_refuse_old("put value", 7, 5, &e);
        assert_non_null(strstr(e.message, "it is not known: the newest generation is 5"));
        (void) rendezvous_refuse_old("put value", 7, 0, &e);
        assert_non_null(strstr(e.message, "no generation"));
        assert_int_equal(rendezvous_refuse_taken(4, "node-1", &e), CAIRN_ERR_EXISTS);
        assert_string_equal(e.object, "generation 4");
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(looks_are_packed_and_unpacked),
                cmocka_unit_test(payloads_travel_by_memfd),
                cmocka_unit_test(messages_travel_with_their_payload),
                cmocka_unit_test(the_child_serves),
                cmocka_unit_test(sentences),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
