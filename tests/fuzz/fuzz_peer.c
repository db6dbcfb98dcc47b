/* SPDX-License-Identifier: Apache-2.0
 *
 * What one agent tells another. The first byte chooses: h what a node's store holds (a Holds), p
 * pieces of a haul (Haul messages, each after a byte with its length), e any envelope.
 */
#include "agent/haul.h"
#include "agent/survey.h"
#include "format/wire.h"
#include "tests/fuzz/fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static void check_survey(const struct survey_node *node) {
        struct survey_node again = {.place = node->place};
        size_t count;
        void *bytes;
        int fd;

        FUZZ_CHECK(survey_write(&node->scan, node->store_id, &fd, NULL) == 0);
        FUZZ_CHECK(haul_map(fd, HAUL_HOLDS_BYTES_MAX, &bytes, &count, NULL) == 0);
        FUZZ_CHECK(survey_read(bytes, count, &again, NULL) == 0);
        FUZZ_CHECK(again.scan.checkpoint_count == node->scan.checkpoint_count &&
                   again.scan.generation_count == node->scan.generation_count &&
                   again.scan.node_count == node->scan.node_count &&
                   memcmp(again.store_id, node->store_id, sizeof node->store_id) == 0);
        (void) munmap(bytes, count);
        (void) close(fd);
        survey_node_done(&again);
}

/* Beside a node that holds the same in another store: every part is there, or named as missing. */
static void merge(const struct survey_node *node) {
        struct survey_node nodes[2] = {*node, *node};
        struct cairn_error e = CAIRN_ERROR_INIT;
        struct run_scan merged;

        nodes[0].place = (struct scan_node){.node = "a", .ranks = 2};
        nodes[1].place = (struct scan_node){.node = "b", .first_rank = 2, .ranks = 2};
        nodes[1].store_id[0] ^= 1;
        int r = survey_merge(nodes, 2, "run", &merged, &e);
        if (r < 0) {
                fuzz_check_error(r, &e);
                return;
        }
        for (size_t i = 0; i < merged.checkpoint_count; i++) {
                const struct scan_checkpoint *c = &merged.checkpoints[i];
                FUZZ_CHECK((c->validity == CHECKPOINT_DAMAGED) == (c->error.status < 0));
                if (c->validity == CHECKPOINT_VALID)
                        FUZZ_CHECK(survey_holder(nodes, 2, c) == 0);
        }
        run_scan_done(&merged);
}

static void read_holds(const uint8_t *bytes, size_t count) {
        struct survey_node node = {.place = {.node = "a"}};
        struct cairn_error e = CAIRN_ERROR_INIT;
        int r = survey_read(bytes, count, &node, &e);

        if (r < 0) {
                fuzz_check_error(r, &e);
                return;
        }
        check_survey(&node);
        merge(&node);
        survey_node_done(&node);
}

static void take_pieces(struct fuzz_input *in) {
        const struct haul_name name = {CAIRN__PEER__HAUL_KIND__HAUL_PARTS, 1, 1};
        struct haul_in haul = {0};
        uint64_t sum = 0;

        haul_expect(&haul, &name);
        while (in->left > 0) {
                size_t bytes = fuzz_u8(in);
                struct cairn_error e = CAIRN_ERROR_INIT;
                bytes = bytes < in->left ? bytes : in->left;
                Cairn__Peer__Haul *m = cairn__peer__haul__unpack(NULL, bytes, in->bytes);
                in->bytes += bytes;
                in->left -= bytes;
                if (!m)
                        continue;
                int r = haul_take_piece(&haul, m, &e);
                if (r < 0)
                        fuzz_check_error(r, &e);
                else
                        sum += m->data.len;
                FUZZ_CHECK(haul.have == sum && haul.have <= haul.total);
                FUZZ_CHECK(!haul.begun || lseek(haul.fd, 0, SEEK_END) == (off_t) sum);
                FUZZ_CHECK((r == 1) == (r >= 0 && haul.have == haul.total));
                cairn__peer__haul__free_unpacked(m, NULL);
        }
        haul_in_done(&haul);
}

static void read_envelope(const uint8_t *bytes, size_t count) {
        Cairn__Peer__PeerEnvelope *e = cairn__peer__peer_envelope__unpack(NULL, count, bytes);
        struct cairn_error said;

        if (!e)
                return;
        if (e->body_case == CAIRN__PEER__PEER_ENVELOPE__BODY_NACK && e->nack->failure) {
                wire_failure_read(e->nack->failure, &said);
                FUZZ_CHECK(said.status < 0 && memchr(said.message, 0, sizeof said.message));
        }
        cairn__peer__peer_envelope__free_unpacked(e, NULL);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count) {
        struct fuzz_input in = {bytes, count};
        uint8_t which = fuzz_u8(&in);

        if (which == 'h')
                read_holds(in.bytes, in.left);
        else if (which == 'p')
                take_pieces(&in);
        else
                read_envelope(in.bytes, in.left);
        return 0;
}

size_t LLVMFuzzerCustomMutator(uint8_t *bytes, size_t count, size_t max, unsigned int seed) {
        if (count < 2 || max < 2 || seed % 16 == 0)
                return LLVMFuzzerMutate(bytes, count, max);
        if (bytes[0] == 'p')
                return fuzz_mutate_plain(bytes, count, max, seed);
        return 1 + fuzz_mutate_message(bytes + 1, count - 1, max - 1, seed / 16,
                                       bytes[0] == 'h' ? &cairn__peer__holds__descriptor
                                                       : &cairn__peer__peer_envelope__descriptor);
}
