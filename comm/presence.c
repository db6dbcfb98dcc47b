/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/presence.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAMED_MAX 8 /* missing ranks in one sentence */

int presence_init(struct presence *p, int rank, int world, const struct comm_store *store,
                  const char *prefix, const struct clock_ops *clock, uint64_t silence_ns,
                  struct cairn_error *reterr) {
        *p = (struct presence){
                .rank = rank,
                .world = world,
                .store = store,
                .clock = clock,
                .silence_ns = silence_ns,
                .verb = "",
                .ranks = calloc((size_t) world, sizeof *p->ranks),
        };
        (void) snprintf(p->prefix, sizeof p->prefix, "%s.at.", prefix);
        if (!p->ranks)
                return error_set(reterr, CAIRN_ERR_NOMEM, "watch ranks", prefix, "no memory");
        return 0;
}

void presence_done(struct presence *p) {
        free(p->ranks);
        p->ranks = NULL;
}

void presence_begin(struct presence *p, const char *verb, uint64_t bytes, uint64_t limit_ns) {
        p->sequence++;
        p->verb = verb;
        p->bytes = bytes;
        p->begin_ns = clock_now(p->clock);
        p->limit_ns = limit_ns;
        p->look_ns = p->begin_ns + (p->sequence == 1 ? 0 : PRESENCE_FIRST_NS);
        for (int r = 0; r < p->world; r++)
                p->ranks[r].here = r == p->rank;
}

void presence_here(struct presence *p, int rank, bool is_here) {
        p->ranks[rank].here = is_here || rank == p->rank;
}

static void key_of(const struct presence *p, int rank, char ret[COMM_KEY_BYTES]) {
        (void) snprintf(ret, COMM_KEY_BYTES, "%.48s%d", p->prefix, rank);
}

static uint64_t store_deadline(const struct presence *p) {
        return clock_now(p->clock) + PRESENCE_STORE_NS;
}

static void store_answered(struct presence *p, int r, const struct cairn_error *e) {
        if (r < 0)
                p->store_error = *e;
        else
                p->store_error.status = 0;
}

static void write_record(struct presence *p, enum presence_state state, const char *sentence) {
        struct cairn_error e = CAIRN_ERROR_INIT;
        char key[COMM_KEY_BYTES], value[512];

        key_of(p, p->rank, key);
        int bytes =
                snprintf(value, sizeof value, "%" PRIu64 " %c %" PRIu64 " %" PRIu64 " %s %.255s",
                         ++p->counter, (char) state, p->sequence, p->bytes, p->verb, sentence);
        int r = p->store->set(p->store->context, key, value, (size_t) bytes, store_deadline(p), &e);
        store_answered(p, r, &e);
}

/* A record that cannot be read is none. */
static void read_record(struct presence *p, int rank, const void *value, size_t bytes) {
        struct presence_rank *r = &p->ranks[rank], seen = *r;
        char text[512];
        char state;

        if (bytes >= sizeof text)
                return;
        memcpy(text, value, bytes);
        text[bytes] = '\0';
        seen.sentence[0] = '\0';
        if (sscanf(text, "%" SCNu64 " %c %" SCNu64 " %" SCNu64 " %15s %255[^\n]", &seen.counter,
                   &state, &seen.sequence, &seen.bytes, seen.verb, seen.sentence) < 5)
                return;
        if (state != PRESENCE_WAITS && state != PRESENCE_WORKS && state != PRESENCE_GAVE_UP)
                return;
        seen.state = (enum presence_state) state;
        if (r->state == PRESENCE_NONE || seen.counter != r->counter)
                seen.changed_ns = clock_now(p->clock);
        *r = seen;
}

static void visit_record(const char *key, const void *value, size_t bytes, void *argument) {
        struct presence *p = argument;
        char *end;
        long rank = strtol(key + strlen(p->prefix), &end, 10);

        if (*end == '\0' && rank >= 0 && rank < p->world && rank != p->rank)
                read_record(p, (int) rank, value, bytes);
}

static void read_all(struct presence *p) {
        struct cairn_error e = CAIRN_ERROR_INIT;
        int r = p->store->list(p->store->context, p->prefix, visit_record, p, store_deadline(p),
                               &e);

        store_answered(p, r, &e);
}

static void look(struct presence *p) {
        write_record(p, PRESENCE_WAITS, "");
        if (p->store_error.status == 0)
                read_all(p);
        p->look_ns = clock_now(p->clock) + PRESENCE_PERIOD_NS;
}

static bool is_fresh(const struct presence *p, const struct presence_rank *r) {
        return clock_now(p->clock) - r->changed_ns < PRESENCE_STALE_NS;
}

static bool is_missing(const struct presence *p, const struct presence_rank *r) {
        if (r->here || r->sequence > p->sequence)
                return false;
        if (r->state == PRESENCE_GAVE_UP)
                return r->sequence < p->sequence;
        return r->state != PRESENCE_WAITS || r->sequence != p->sequence || !is_fresh(p, r);
}

static bool is_working(const struct presence *p, const struct presence_rank *r) {
        return r->state == PRESENCE_WORKS && r->sequence + 1 == p->sequence &&
               clock_now(p->clock) - r->changed_ns < p->silence_ns;
}

/* Somebody is missing for whom there is no reason to wait; or nobody is. */
static bool is_overdue(const struct presence *p) {
        int missing = 0, working = 0;

        for (int r = 0; r < p->world; r++) {
                if (!is_missing(p, &p->ranks[r]))
                        continue;
                missing++;
                working += is_working(p, &p->ranks[r]);
        }
        return missing == 0 || working < missing;
}

static double seconds(uint64_t ns) {
        return (double) ns / (double) NSEC_PER_SEC;
}

static void say_rank(const struct presence *p, int rank, char *ret, size_t bytes) {
        const struct presence_rank *r = &p->ranks[rank];
        double silent = seconds(clock_now(p->clock) - r->changed_ns);

        if (r->state == PRESENCE_NONE)
                (void) snprintf(ret, bytes, "rank %d (never seen)", rank);
        else if (r->state == PRESENCE_GAVE_UP)
                (void) snprintf(ret, bytes, "rank %d (gave up: %.200s)", rank, r->sentence);
        else if (r->state == PRESENCE_WORKS && r->sequence + 1 == p->sequence)
                (void) snprintf(ret, bytes,
                                "rank %d (at work after %" PRIu64 ", silent for %.0f s)", rank,
                                r->sequence, silent);
        else if (r->sequence == p->sequence)
                (void) snprintf(ret, bytes, "rank %d (silent for %.0f s)", rank, silent);
        else
                (void) snprintf(ret, bytes, "rank %d (last seen in %s %" PRIu64 ")", rank, r->verb,
                                r->sequence);
}

/* Adds `one` to a list in `text`; false where it is full. */
static bool append(char *text, size_t bytes, const char *one) {
        size_t length = strlen(text);

        if (length + strlen(one) + 3 >= bytes)
                return false;
        (void) snprintf(text + length, bytes - length, "%s%s", length > 0 ? ", " : "", one);
        return true;
}

/* Who keeps the operation from ending: those that are missing and not at work, else those that came
 * but have contributed nothing. Returns how many. */
static int list_ranks(const struct presence *p, bool missing, char *text, size_t bytes) {
        char one[256];
        int count = 0;

        text[0] = '\0';
        for (int r = 0; r < p->world; r++) {
                const struct presence_rank *rank = &p->ranks[r];
                if (missing ? !is_missing(p, rank) || is_working(p, rank) : rank->here)
                        continue;
                say_rank(p, r, one, sizeof one);
                if (++count <= NAMED_MAX && !append(text, bytes, one))
                        break;
        }
        return count;
}

static void say_missing(const struct presence *p, char *ret, size_t bytes) {
        char text[400];
        const char *what = "missing: ";
        const char *store_silent = p->store_error.status < 0 ? "; the store does not answer: " : "";
        int count = list_ranks(p, true, text, sizeof text);

        if (count == 0) {
                what = "all ranks have come to it, but it got no further with ";
                count = list_ranks(p, false, text, sizeof text);
        }
        (void) snprintf(ret, bytes, "%s%s%s; waited %.1f s%s%s", what, text,
                        count > NAMED_MAX ? " and more" : "",
                        seconds(clock_now(p->clock) - p->begin_ns), store_silent,
                        p->store_error.status < 0 ? p->store_error.message : "");
}

/* A rank that gave up does not come back. */
static int check_gave_up(const struct presence *p, char *ret_text, size_t bytes) {
        for (int i = 0; i < p->world; i++) {
                const struct presence_rank *r = &p->ranks[i];
                if (r->state != PRESENCE_GAVE_UP || r->here)
                        continue;
                (void) snprintf(ret_text, bytes, "rank %d gave up: %s", i, r->sentence);
                return CAIRN_ERR_PEER;
        }
        return 0;
}

/* Ranks in different operations wait for ever; there is no need to. */
static int check_same(const struct presence *p, char *ret_text, size_t bytes) {
        for (int i = 0; i < p->world; i++) {
                const struct presence_rank *r = &p->ranks[i];
                if (r->state != PRESENCE_WAITS || r->sequence != p->sequence || !is_fresh(p, r) ||
                    (strcmp(r->verb, p->verb) == 0 && r->bytes == p->bytes))
                        continue;
                (void) snprintf(ret_text, bytes,
                                "rank %d is in %s of %" PRIu64 " bytes, this one in %s of %" PRIu64,
                                i, r->verb, r->bytes, p->verb, p->bytes);
                return CAIRN_ERR_MISMATCH;
        }
        return 0;
}

int presence_turn(struct presence *p, char *ret_text, size_t bytes) {
        if (clock_now(p->clock) >= p->look_ns) {
                look(p);
                TRY(check_same(p, ret_text, bytes));
                TRY(check_gave_up(p, ret_text, bytes));
        }
        if (clock_now(p->clock) < p->begin_ns + p->limit_ns || !is_overdue(p))
                return 0;
        look(p); /* somebody may have come since */
        TRY(check_same(p, ret_text, bytes));
        if (!is_overdue(p))
                return 0;
        say_missing(p, ret_text, bytes);
        return CAIRN_ERR_TIMEOUT;
}

void presence_work(struct presence *p) {
        uint64_t now = clock_now(p->clock);

        if (p->written_ns != 0 && now - p->written_ns < PRESENCE_PERIOD_NS)
                return;
        write_record(p, PRESENCE_WORKS, "");
        p->written_ns = now;
}

void presence_gave_up(struct presence *p, const char *sentence) {
        write_record(p, PRESENCE_GAVE_UP, sentence);
}

void presence_blame(struct presence *p, const char *sentence, char *ret_text, size_t bytes) {
        uint64_t end_ns = clock_now(p->clock) + PRESENCE_BLAME_NS;
        char text[400];

        presence_gave_up(p, sentence);
        for (;;) {
                read_all(p);
                int count = list_ranks(p, true, text, sizeof text);
                (void) snprintf(ret_text, bytes, "%s%s%s", count > 0 ? "missing: " : "", text,
                                count > NAMED_MAX ? " and more" : "");
                if (count == 0 || p->store_error.status < 0 || clock_now(p->clock) >= end_ns)
                        return;
                p->clock->sleep_ns(p->clock->context, PRESENCE_PERIOD_NS / 10);
        }
}

const char *presence_why(struct presence *p, int rank) {
        struct cairn_error e = CAIRN_ERROR_INIT;
        char key[COMM_KEY_BYTES], value[512];
        size_t bytes;

        key_of(p, rank, key);
        int r = p->store->get(p->store->context, key, value, sizeof value, &bytes,
                              store_deadline(p), &e);
        store_answered(p, r, &e);
        if (r == 0)
                read_record(p, rank, value, bytes);
        return p->ranks[rank].state == PRESENCE_GAVE_UP ? p->ranks[rank].sentence : NULL;
}
