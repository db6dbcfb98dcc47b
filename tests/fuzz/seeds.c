/* SPDX-License-Identifier: Apache-2.0
 *
 * seeds.c - writes the inputs that the corpora started from: seeds FOLDER. Needed again when the
 * format changes; what the fuzzers found since then lies beside them.
 */
#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/limits.h"
#include "format/control.pb-c.h"
#include "format/host_state.h"
#include "format/layout.h"
#include "format/peer.pb-c.h"
#include "format/plan.h"
#include "tests/test.h"
#include "tests/unit/format_sample.h"

#include <sys/stat.h>

#define CHECKPOINT "000000000005-g0001"

static int out; /* the folder */

struct text {
        uint8_t bytes[1 << 18];
        size_t count;
};

static void add(struct text *t, const void *bytes, size_t count) {
        assert_true(count <= sizeof t->bytes - t->count);
        memcpy(t->bytes + t->count, bytes, count);
        t->count += count;
}

static void add_file(struct text *t, int dirfd, const char *path) {
        _cleanup_close_ int fd = openat(dirfd, path, O_RDONLY | O_CLOEXEC);
        assert_true(fd >= 0);
        ssize_t n = read(fd, t->bytes + t->count, sizeof t->bytes - t->count);
        assert_true(n >= 0);
        t->count += (size_t) n;
}

static void save(const char *target, const char *name, const struct text *t) {
        char path[128];
        (void) mkdirat(out, target, 0755);
        (void) snprintf(path, sizeof path, "%s/%s", target, name);
        sample_write(out, path, t->bytes, t->count);
}

static void save_bytes(const char *target, const char *name, const void *bytes, size_t count) {
        static struct text t;
        t.count = 0;
        add(&t, bytes, count);
        save(target, name, &t);
}

/* The messages of a framed file, each behind its type. */
static void messages(const char *name, const struct text *file) {
        static struct text t;
        for (size_t at = 64, n = 0; at < file->count; n++) {
                uint8_t type = file->bytes[at];
                size_t bytes = (size_t) load_le64(file->bytes + at + 8);
                char path[64];
                t.count = 0;
                add(&t, &type, 1);
                add(&t, file->bytes + at + 16, bytes);
                (void) snprintf(path, sizeof path, "%s-%zu", name, n);
                save("message", path, &t);
                at += 16 + (bytes + 7) / 8 * 8;
        }
}

static void files(int run) {
        static const char *const paths[][2] = {
                {CHECKPOINT "/COMMIT", "commit"},
                {CHECKPOINT "/INDEX", "index"},
                {CHECKPOINT "/rank-00000.manifest", "manifest-0"},
                {CHECKPOINT "/rank-00001.manifest", "manifest-1"},
                {CHECKPOINT "/rank-00000.data", "data"},
                {"GEN-0001", "generation"},
                {"GEN-0001.start", "generation-start"},
                {"marks/FINISHED", "mark"},
                {"../CAIRN-STORE", "store"},
        };
        static struct text t;
        for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++) {
                t.count = 0;
                add_file(&t, run, paths[i][0]);
                t.count = t.count > 4096 && i == 4 ? 4096 : t.count;
                save("file", paths[i][1], &t);
        }
        t.count = 0;
        add_file(&t, AT_FDCWD, "tests/golden/v1/inventory");
        save("file", "inventory", &t);
        save("source", "golden", &t);
        messages("inventory", &t);
        t.count = 0;
        add_file(&t, AT_FDCWD, "tests/golden/v1/gold/000000000042-g0001/INDEX");
        save("file", "index-golden", &t);
        messages("index", &t);
        t.count = 0;
        add_file(&t, AT_FDCWD, "tests/golden/v1/gold/000000000042-g0001/COMMIT");
        messages("commit", &t);
}

static void groups(int run) {
        static const char *const parts[] = {"GEN-0001",
                                            "GEN-0001.start",
                                            "GEN-0002",
                                            "GEN-0002.start",
                                            CHECKPOINT "/COMMIT",
                                            CHECKPOINT "/INDEX",
                                            CHECKPOINT "/rank-00000.manifest",
                                            CHECKPOINT "/rank-00001.manifest"};
        static struct text t;
        t.count = 0;
        add_file(&t, run, parts[6]);
        add_file(&t, run, parts[7]);
        save("merge", "two", &t);
        t.count = 0;
        add_file(&t, run, "000000000004-g0001/rank-00000.manifest");
        save("merge", "one", &t);
        for (uint8_t flags = 0; flags < 8; flags++) {
                char name[16];
                t.count = 0;
                add(&t, &flags, 1);
                for (size_t i = 0; i < 8; i++)
                        add_file(&t, run, parts[i]);
                if (flags & 1)
                        add_file(&t, run, "marks/FINISHED");
                (void) snprintf(name, sizeof name, "flags-%u", flags);
                save("checkpoint", name, &t);
                t.count = 0;
                add(&t, &flags, 1);
                add_file(&t, run, parts[5]);
                save("binding", name, &t);
        }
}

/* The same trainer's tensors in other types, to be converted. */
static void conversion(void) {
        static struct text t;
        struct file_content *manifests[1], index = {0};
        struct sample f;
        uint8_t flags = 2;
        void *bytes = NULL;
        size_t count = 0;

        sample_init(&f, "run", 0, 2, 1, 5, 1);
        f.content.head->world = 1;
        sample_tensor(&f, "wte", CAIRN_PARAMETER, CAIRN_F32, 2, (uint64_t[]){9, 5});
        sample_tensor(&f, "lm_head", CAIRN_PARAMETER, CAIRN_F32, 2, (uint64_t[]){9, 5})->alias_of =
                sample_text(&f, "wte");
        sample_tensor(&f, "m.wte", CAIRN_MOMENT1, CAIRN_F64, 1, (uint64_t[]){207});
        sample_tensor(&f, "v.wte", CAIRN_MOMENT2, CAIRN_BF16, 2, (uint64_t[]){4, 6});
        sample_tensor(&f, "empty", CAIRN_BUFFER, CAIRN_F16, 3, (uint64_t[]){4, 0, 3});
        sample_tensor(&f, "step", CAIRN_OTHER, CAIRN_I64, 0, NULL);
        sample_value(&f, "samples", CAIRN_VALUE_I64, 160, NULL);
        sample_value(&f, "rng", CAIRN_VALUE_BYTES, 0, "0123456789abcdef");
        sample_finish(&f);
        manifests[0] = &f.content;
        assert_int_equal(layout_merge(manifests, 1, &f.arena, &index, NULL), 0);
        assert_int_equal(file_write(&index, &bytes, &count, NULL), 0);
        t.count = 0;
        add(&t, &flags, 1);
        add(&t, bytes, count);
        save("binding", "convert", &t);
        free(bytes);
        sample_done(&f);
}

static void plans(void) {
        struct plan_range ranges[] = {{.rank = 0, .file_offset = 4096, .bytes = 100},
                                      {.rank = 0, .file_offset = 4352, .bytes = 256},
                                      {.rank = 1, .file_offset = 4096, .bytes = 1}};
        uint8_t bytes[4 + 32 + 3 * 32] = {2};
        uint64_t staging_bytes;
        assert_int_equal(plan_write(bytes + 4, ranges, 3, &staging_bytes, NULL), 0);
        save_bytes("plan", "three", bytes, sizeof bytes);
        assert_int_equal(plan_write(bytes + 4, ranges, 0, &staging_bytes, NULL), 0);
        save_bytes("plan", "none", bytes, 36);
}

static void envelope(const char *name, Cairn__Control__Envelope *e) {
        uint8_t bytes[4096] = {0x80 | 2};
        size_t n = cairn__control__envelope__pack(e, bytes + 1);
        save_bytes("wire", name, bytes, n + 1);
}

static ProtobufCBinaryData data(const char *s) {
        return (ProtobufCBinaryData){strlen(s), (uint8_t *) (uintptr_t) s};
}

static void peer(const char *name, char which, const ProtobufCMessage *m) {
        uint8_t bytes[4096] = {(uint8_t) which};
        save_bytes("peer", name, bytes, 1 + protobuf_c_message_pack(m, bytes + 1));
}

static void surveys(void) {
        Cairn__Peer__Holds holds = CAIRN__PEER__HOLDS__INIT;
        Cairn__Peer__HeldGeneration one = CAIRN__PEER__HELD_GENERATION__INIT;
        Cairn__Peer__HeldGeneration *generations[] = {&one};
        Cairn__Peer__Held committed = CAIRN__PEER__HELD__INIT, whole = CAIRN__PEER__HELD__INIT;
        Cairn__Peer__Held damaged = CAIRN__PEER__HELD__INIT;
        Cairn__Peer__Held *checkpoints[] = {&committed, &whole, &damaged};
        Cairn__Peer__HeldNode a = CAIRN__PEER__HELD_NODE__INIT, b = CAIRN__PEER__HELD_NODE__INIT;
        Cairn__Peer__HeldNode *nodes[] = {&a, &b};
        Cairn__Control__Failure failure = CAIRN__CONTROL__FAILURE__INIT;

        holds.store_id = data("0123456789abcdef");
        peer("empty", 'h', &holds.base);
        one.generation = holds.generation_max = 1;
        one.started = true;
        one.world = 4;
        committed.generation = whole.generation = damaged.generation = 1;
        committed.step = 10;
        committed.validity = 1;
        committed.attempt = 1;
        whole.step = 20;
        whole.attempt = 2;
        whole.is_attempt = true;
        whole.validity = 4;
        damaged.step = 5;
        damaged.validity = 3;
        damaged.failure = &failure;
        failure.status = -3;
        failure.message = data("torn");
        a.node = data("a");
        b.node = data("b");
        a.ranks = b.ranks = b.first_rank = 2;
        holds.generations = generations;
        holds.n_generations = 1;
        holds.checkpoints = checkpoints;
        holds.n_checkpoints = 3;
        holds.nodes = nodes;
        holds.n_nodes = 2;
        peer("holds", 'h', &holds.base);
}

static void hauls(void) {
        Cairn__Peer__PeerEnvelope e = CAIRN__PEER__PEER_ENVELOPE__INIT;
        Cairn__Peer__Nack nack = CAIRN__PEER__NACK__INIT;
        Cairn__Peer__Haul m = CAIRN__PEER__HAUL__INIT;
        Cairn__Control__Failure failure = CAIRN__CONTROL__FAILURE__INIT;
        uint8_t bytes[512] = {'p'};
        size_t n = 1;

        m.kind = CAIRN__PEER__HAUL_KIND__HAUL_PARTS;
        m.generation = m.attempt = 1;
        m.total = 9;
        for (m.offset = 0; m.offset < 9; m.offset += 3) {
                m.data = data("abc");
                bytes[n] = (uint8_t) cairn__peer__haul__pack(&m, bytes + n + 1);
                n += 1 + (size_t) bytes[n];
        }
        save_bytes("peer", "pieces", bytes, n);
        e.body_case = CAIRN__PEER__PEER_ENVELOPE__BODY_HAUL;
        e.haul = &m;
        peer("haul", 'e', &e.base);
        e.body_case = CAIRN__PEER__PEER_ENVELOPE__BODY_NACK;
        e.nack = &nack;
        nack.failure = &failure;
        failure.status = -5;
        peer("nack", 'e', &e.base);
}

static void envelopes(void) {
        Cairn__Control__Envelope e = CAIRN__CONTROL__ENVELOPE__INIT;
        Cairn__Control__Hello hello = CAIRN__CONTROL__HELLO__INIT;
        Cairn__Control__Failure failure = CAIRN__CONTROL__FAILURE__INIT;
        Cairn__Control__Restore restore = CAIRN__CONTROL__RESTORE__INIT;

        e.id = 1;
        e.body_case = CAIRN__CONTROL__ENVELOPE__BODY_HELLO;
        e.hello = &hello;
        hello.run = data("run");
        envelope("hello", &e);
        e.body_case = CAIRN__CONTROL__ENVELOPE__BODY__NOT_SET;
        e.failure = &failure;
        failure.status = -3;
        failure.message = data("no");
        envelope("failure", &e);
        e.failure = NULL;
        e.body_case = CAIRN__CONTROL__ENVELOPE__BODY_RESTORE;
        e.restore = &restore;
        restore.checkpoint = data(CHECKPOINT);
        restore.range_count = 3;
        envelope("restore", &e);
        save_bytes("wire", "raw", "\1CRN1\4\0\0\0\0\0\0\0\1\0\0\0abcd", 21);
}

static void host_states(void) {
        enum { PAYLOAD = 64 };
        static _Alignas(64) uint8_t mapping[3 * 4096];
        struct text *t = calloc(1, sizeof *t);
        uint32_t head[2] = {sizeof mapping / 8, 1};
        uint8_t payload[PAYLOAD] = "host state";

        assert_non_null(t);
        assert_int_equal(host_state_bytes(PAYLOAD), sizeof mapping);
        host_state_init(mapping, PAYLOAD);
        host_state_publish(mapping, 4, 9, payload);
        host_state_publish(mapping, 5, 10, payload);
        add(t, head, sizeof head);
        add(t, mapping, 32);
        add(t, mapping + 4096, 64);
        add(t, mapping + 8192, 64);
        add(t, payload, PAYLOAD);
        save("host_state", "two", t);
        free(t);
}

static void texts(void) {
        static const struct {
                const char *target, *name, *text;
        } seeds[] = {
                {"cut", "normal", "\1\7\0\0\0\0\0\0\0\1\2\3\1\5\6\0\1\7\0\0\0\0\0\0\0\1\11"},
                {"cut", "decline", "\1\7\0\0\0\0\0\0\0\1\2\4\5\10\0\14\1\13\1"},
                {"config", "all",
                 "store = /tmp/store\nsocket = /tmp/s\nstaging_bytes_max = 16M\nkeep_last = 3\n"
                 "group = cairn\nlog_level = info\nstop_deadline_s = 30\n"},
                {"config", "sections", "[cairn]\nstore = x\n; remark\nkey"},
                {"config", "bytes", "8589934592G"},
                {"names", "checkpoint", "\100" CHECKPOINT},
                {"names", "generation", "\100GEN-0003.start"},
                {"names", "pending", "\100.pending-g0003-a000001"},
                {"names", "stale", "\100.stale-g0003-a000001-by-g0004"},
                {"names", "escape", "\40\33]0;title\7\302\233red \"%s%n\" \\ $(x) \377"},
                {"names", "dtype", "\10bf16"},
                {"names", "duration",
                 "\10"
                 "1.5h"},
                {"options", "all",
                 "run\n--flag\n--string\nx\n--count=7\n--step\n3\n--time\n2h\n"
                 "--list\na=b\n--\nrest"},
                {"options", "help", "--help"},
                {"options", "wrong", "--cuont\n--count\n-1"},
        };
        for (size_t i = 0; i < sizeof seeds / sizeof seeds[0]; i++) {
                bool cut = strcmp(seeds[i].target, "cut") == 0;
                /* The operations hold zeros; how many follow does not matter. */
                save_bytes(seeds[i].target, seeds[i].name, seeds[i].text,
                           cut ? 18 : strlen(seeds[i].text));
        }
}

/* Records, and what etcd answers (fuzz_rendezvous.c): values and keys are base64 of the like. */
static void rendezvous(void) {
#define MEMBER_A                                                                               \
        "eyJub2RlIjoiYSIsImFkZHJlc3MiOiJoOjEiLCJub25jZSI6IjAwMDAwMDAwMDAwMDAwMDUiLCJyYW5rcyI6" \
        "MSwiZGV0YWlsIjoiIn0="
#define GENERATION_7                                                                           \
        "eyJudW1iZXIiOjcsImxlYWRlciI6ImEiLCJsZWFkZXJfbm9uY2UiOiIwMDAwMDAwMDAwMDAwMDA1Iiwid29y" \
        "bGQiOjEsIm1hc3Rlcl9wb3J0Ijo0MDAwMSwicGFyZW50IjoiIiwic2VjcmV0IjoiMDAwMDAwMDAwMDAwMDAw" \
        "MDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMCIsIm1lbWJlcnMiOlt7" \
        "Im5vZGUiOiJhIiwiYWRkcmVzcyI6Img6MSIsIm5vbmNlIjoiMDAwMDAwMDAwMDAwMDAwNSIsInJhbmtzIjox" \
        "LCJmaXJzdF9yYW5rIjowfV19"
#define KEY_A "L3Avci9tZW1iZXJzL2E="
#define KEY_7 "L3Avci9nZW5lcmF0aW9ucy8wMDAwMDAwMDAwMDAwMDAwMDAwNw=="
#define HEAD "{\"header\":{\"cluster_id\":\"77\",\"revision\":\"5\"},"
#define FOUND(kvs) "{\"response_range\":{\"count\":\"1\",\"kvs\":[" kvs "]}}"
#define KV_A "{\"key\":\"" KEY_A "\",\"value\":\"" MEMBER_A "\",\"lease\":\"5\"}"
#define KV_7 "{\"key\":\"" KEY_7 "\",\"value\":\"" GENERATION_7 "\"}"
#define YES(list) HEAD "\"succeeded\":true,\"responses\":[" list "]}"
#define NO(list) HEAD "\"responses\":[" list "]}"
#define ALIVE "{\"result\":{\"ID\":\"5\",\"TTL\":\"5\"}}"
#define LOOK YES(FOUND(KV_7) "," FOUND("") "," FOUND(KV_A))
#define SEED(name, text) save_bytes("rendezvous", name, text, sizeof(text) - 1)
        SEED("member", "m{\"node\":\"a\",\"address\":\"h:1\",\"nonce\":\"0000000000000005\","
                       "\"ranks\":1,\"detail\":\"x\"}");
        SEED("generation",
             "g{\"number\":7,\"leader\":\"b\",\"leader_nonce\":\"0000000000000006\",\"world\":3,"
             "\"master_port\":40001,\"parent\":\"" CHECKPOINT
             "\",\"secret\":\"0123456789abcdef0123456789abcdef"
             "0123456789abcdef0123456789abcdef\",\"members\":[{\"node\":\"a\",\"address\":\"h:1\","
             "\"nonce\":\"0000000000000005\",\"ranks\":1,\"first_rank\":0},{\"node\":\"b\","
             "\"address\":\"[::1]:2\",\"nonce\":\"0000000000000006\",\"ranks\":2,"
             "\"first_rank\":1}]}");
        SEED("url", "uetcd://a:1,10.0.0.2,[::1]:3/team/jobs");
        SEED("folder", "udir:///shared/meet");
        SEED("look", "l" ALIVE "\0" LOOK "\0" HEAD "\"kvs\":[" KV_7 "]}\0" ALIVE "\0" LOOK);
        SEED("left", "k" LOOK "\0" HEAD "\"kvs\":[" KV_7 "]}\0" YES("{},{},{}") "\0" LOOK);
        SEED("join", "j" HEAD "\"ID\":\"5\",\"TTL\":\"5\"}\0" YES("{}"));
        SEED("join-again", "j?{\"error\":\"lease already exists\",\"code\":9}\0" ALIVE
                           "\0" NO(FOUND(KV_A)) "\0" YES("{}"));
        SEED("leave", "v?{\"error\":\"requested lease not found\",\"code\":5}");
        SEED("create", "c" YES("{},{},{}") "\0" NO(FOUND(KV_A) "," FOUND(KV_7)));
        SEED("put", "p" NO(FOUND(KV_A) "," FOUND(KV_7)) "\0#");
        SEED("get", "t" YES(FOUND("{\"value\":\"aWQ=\"}")) "\0" YES("{}"));
        SEED("refused", "l!{\"error\":\"no leader\",\"code\":14}\0?404 page not found");
}

int main(int argc, char **argv) {
        char path[256];
        if (argc != 2)
                return 64;
        out = open(argv[1], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        assert_true(out >= 0);
        _cleanup_close_ int store = test_folder(path, sizeof path);
        sample_store_marker(store);
        assert_int_equal(mkdirat(store, "run", 0755), 0);
        _cleanup_close_ int run = openat(store, "run", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        assert_int_equal(mkdirat(run, "marks", 0755), 0);
        sample_claim(run, "run", 1, 2);
        sample_start(run, 1, NULL);
        sample_checkpoint(run, "run", 1, 5, 2, NULL, 0);
        sample_checkpoint(run, "run", 1, 4, 1, NULL, SAMPLE_SUSPECT);
        sample_claim(run, "run", 2, 1);
        sample_start(run, 2, CHECKPOINT);
        sample_mark(run, "FINISHED", FILE_MARK_FINISHED, "steps done", 5, 1);
        files(run);
        groups(run);
        conversion();
        plans();
        envelopes();
        surveys();
        hauls();
        host_states();
        texts();
        rendezvous();
        return 0;
}
