/* SPDX-License-Identifier: Apache-2.0 */
#include "base/states.h"
#include "comm/back_end.h"
#include "format/dtype.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct state_row comm_states[] = {
        [COMM_STARTING] = {"starting", STATE_TO(COMM_READY) | STATE_TO(COMM_DOOMED)},
        [COMM_READY] = {"ready", STATE_TO(COMM_DOOMED) | STATE_TO(COMM_ABORTED)},
        [COMM_DOOMED] = {"doomed", STATE_TO(COMM_ABORTED)},
        [COMM_ABORTED] = {"aborted", 0},
};

static void set_state(struct comm *c, enum comm_state to) {
        (void) state_table_step(comm_states, sizeof comm_states / sizeof *comm_states, c->state,
                                to);
        c->state = to;
}

int comm_ops_check(const struct comm_ops *ops, struct cairn_error *reterr) {
        if (!ops || !ops->name)
                return error_set(reterr, CAIRN_ERR_FATAL, "check communicator table", "",
                                 "it has no name");
        const struct {
                const char *name;
                bool present;
        } verbs[] = {
                {"open", ops->open},
                {"all_reduce", ops->all_reduce},
                {"reduce_scatter", ops->reduce_scatter},
                {"all_gather", ops->all_gather},
                {"broadcast", ops->broadcast},
                {"barrier", ops->barrier},
                {"abort", ops->abort},
                {"close", ops->close},
        };
        for (size_t i = 0; i < sizeof verbs / sizeof *verbs; i++)
                if (!verbs[i].present)
                        return error_set(reterr, CAIRN_ERR_FATAL, "check communicator table",
                                         ops->name, "the verb %s is missing", verbs[i].name);
        return 0;
}

/* ---- what back ends use ---- */

static int fail_v(const struct comm *c, int status, struct cairn_error *reterr, const char *message,
                  va_list arguments) {
        char operation[48], text[512];

        (void) snprintf(operation, sizeof operation, "%s %" PRIu64, c->presence.verb,
                        c->presence.sequence);
        (void) vsnprintf(text, sizeof text, message, arguments);
        return error_set(reterr, status, operation, c->object, "%s", text);
}

int comm_fail(const struct comm *c, int status, struct cairn_error *reterr, const char *message,
              ...) {
        va_list arguments;

        va_start(arguments, message);
        (void) fail_v(c, status, reterr, message, arguments);
        va_end(arguments);
        return status;
}

int comm_turn(struct comm *c, struct cairn_error *reterr) {
        char text[512];

        if (c->options.check)
                TRY(c->options.check(c->options.check_context, reterr));
        int r = presence_turn(&c->presence, text, sizeof text);
        return r < 0 ? comm_fail(c, r, reterr, "%s", text) : 0;
}

void comm_here(struct comm *c, int rank, bool is_here) {
        presence_here(&c->presence, rank, is_here);
}

int comm_lost(struct comm *c, int rank, const char *how, struct cairn_error *reterr) {
        const char *why = presence_why(&c->presence, rank);

        return comm_fail(c, CAIRN_ERR_PEER, reterr, "rank %d %s%s%s", rank, how,
                         why ? "; it gave up: " : "", why ? why : "");
}

int comm_blame(struct comm *c, int status, const char *message, struct cairn_error *reterr) {
        char text[512];

        presence_blame(&c->presence, message, text, sizeof text);
        return comm_fail(c, status, reterr, "%s%s%s", message, text[0] ? "; " : "", text);
}

void comm_key(const struct comm *c, const char *what, int rank, char ret[COMM_KEY_BYTES]) {
        int length = snprintf(ret, COMM_KEY_BYTES, "g%" PRIu64 ".%s.%" PRIu32 ".%s",
                              c->options.generation, c->name, c->options.attempt, what);
        CAIRN_ASSERT(length > 0 && length < COMM_KEY_BYTES - 12);
        if (rank >= 0)
                (void) snprintf(ret + length, COMM_KEY_BYTES - (size_t) length, ".%d", rank);
}

/* Whether to ask the store again: it did not answer, or not in time, and there is time left. */
static int ask_again(struct comm *c, int r, struct cairn_error *reterr) {
        if (r != CAIRN_ERR_TIMEOUT && r != CAIRN_ERR_UNREACHABLE)
                return r;
        TRY(comm_turn(c, reterr));
        if (r == CAIRN_ERR_UNREACHABLE)
                clock_system.sleep_ns(clock_system.context, COMM_TURN_NS / 4);
        return 0;
}

static uint64_t store_deadline(void) {
        return clock_now(&clock_system) + PRESENCE_STORE_NS;
}

int comm_set(struct comm *c, const char *what, int rank, const void *value, size_t bytes,
             struct cairn_error *reterr) {
        const struct comm_store *s = &c->options.store;
        char key[COMM_KEY_BYTES];

        comm_key(c, what, rank, key);
        for (;;) {
                int r = s->set(s->context, key, value, bytes, store_deadline(), reterr);
                if (r == 0)
                        return 0;
                TRY(ask_again(c, r, reterr));
        }
}

/* Not longer than a turn at a time: what it waits for may never come. */
int comm_get(struct comm *c, const char *what, int rank, void *buf, size_t bytes_max,
             size_t *ret_bytes, struct cairn_error *reterr) {
        const struct comm_store *s = &c->options.store;
        char key[COMM_KEY_BYTES];

        comm_key(c, what, rank, key);
        for (;;) {
                int r = s->get(s->context, key, buf, bytes_max, ret_bytes,
                               clock_now(&clock_system) + COMM_TURN_NS, reterr);
                if (r == 0)
                        return 0;
                TRY(ask_again(c, r, reterr));
        }
}

/* ---- counting, limits, dooming ---- */

static void begin(struct comm *c, const char *verb, uint64_t bytes, uint64_t limit_ns) {
        presence_begin(&c->presence, verb, bytes, limit_ns);
}

/* The others are told why before their connections end, so that they can say it, too. */
static int end(struct comm *c, int r, const struct cairn_error *e, struct cairn_error *reterr) {
        char sentence[256];

        if (r >= 0)
                return 0;
        c->first = *e;
        set_state(c, COMM_DOOMED);
        (void) snprintf(sentence, sizeof sentence, "%s: %.200s", e->operation, e->message);
        presence_gave_up(&c->presence, sentence);
        if (c->ops->aborts_at_once)
                (void) c->ops->abort(&c, 1, clock_now(&clock_system) + c->options.abort_ns, NULL);
        if (reterr)
                *reterr = *e;
        return r;
}

static int check_ready(const struct comm *c, const char *verb, struct cairn_error *reterr) {
        if (c->state == COMM_READY)
                return 0;
        if (c->first.status == 0)
                return error_set(reterr, CAIRN_ERR_API, verb, c->object, "it is %s",
                                 comm_states[c->state].name);
        if (reterr)
                *reterr = c->first;
        return c->first.status;
}

static int check_elements(const struct comm *c, const char *verb, const void *data, uint64_t count,
                          enum cairn_dtype dtype, uint64_t *ret_bytes, struct cairn_error *reterr) {
        const struct dtype_info *info = dtype_info(dtype);

        TRY(check_ready(c, verb, reterr));
        if (!info || !data || count > UINT64_MAX / 16 / (uint64_t) c->options.world)
                return error_set(reterr, CAIRN_ERR_API, verb, c->object,
                                 "no data, an unknown type or too many elements");
        *ret_bytes = count * info->bytes;
        return 0;
}

static int check_bytes(const struct comm *c, const char *verb, const void *data, uint64_t bytes,
                       struct cairn_error *reterr) {
        TRY(check_ready(c, verb, reterr));
        if (!data || bytes > UINT64_MAX / 16 / (uint64_t) c->options.world)
                return error_set(reterr, CAIRN_ERR_API, verb, c->object,
                                 "no data or too many bytes");
        return 0;
}

/* ---- coming and going ---- */

static int check_name(const char *name) {
        size_t length = name ? strlen(name) : 0;

        if (length == 0 || length >= COMM_NAME_BYTES)
                return CAIRN_ERR_API;
        for (; *name; name++)
                if (!(*name >= 'a' && *name <= 'z') && !(*name >= 'A' && *name <= 'Z') &&
                    !(*name >= '0' && *name <= '9') && *name != '_')
                        return CAIRN_ERR_API;
        return 0;
}

static int check_options(const struct comm_options *o, struct cairn_error *reterr) {
        const char *wrong = NULL;

        if (o->size != sizeof *o)
                wrong = "its size is another version's";
        else if (check_name(o->name) < 0)
                wrong = "a name is 1 to 16 of A-Z a-z 0-9 _";
        else if (o->world < 1 || o->world > COMM_WORLD_MAX || o->rank < 0 || o->rank >= o->world)
                wrong = "rank or world is out of range";
        else if (!o->store.set || !o->store.get || !o->store.list || !o->store.generation)
                wrong = "the store lacks a verb";
        else if (o->bootstrap_ns == 0 || o->collective_ns == 0 || o->silence_ns == 0 ||
                 o->abort_ns == 0)
                wrong = "a limit is 0";
        else if (o->interface && strlen(o->interface) >= sizeof((struct comm *) 0)->interface)
                wrong = "the interface's name is too long";
        return wrong ? error_set(reterr, CAIRN_ERR_API, "make communicator", o->name, "%s", wrong)
                     : 0;
}

static int new_comm(const struct comm_ops *ops, const struct comm_options *o, struct comm **ret,
                    struct cairn_error *reterr) {
        char prefix[COMM_KEY_BYTES];
        struct comm *c = calloc(1, sizeof *c);

        if (!c)
                return error_set(reterr, CAIRN_ERR_NOMEM, "make communicator", o->name,
                                 "no memory");
        c->ops = ops;
        c->options = *o;
        (void) snprintf(c->name, sizeof c->name, "%s", o->name);
        c->options.name = c->name;
        (void) snprintf(c->interface, sizeof c->interface, "%s", o->interface ? o->interface : "");
        c->options.interface = c->interface;
        (void) snprintf(c->object, sizeof c->object,
                        "%.16s communicator %s, generation %" PRIu64 ", rank %d of %d", ops->name,
                        c->name, o->generation, o->rank, o->world);
        (void) snprintf(prefix, sizeof prefix, "g%" PRIu64 ".%s.%" PRIu32, o->generation, c->name,
                        o->attempt);
        int r = presence_init(&c->presence, o->rank, o->world, &c->options.store, prefix,
                              &clock_system, o->silence_ns, reterr);
        if (r < 0) {
                free(c);
                return r;
        }
        *ret = c;
        return 0;
}

/* A member that was left behind must not meet those of its generation that were, too. */
static int check_generation(struct comm *c, struct cairn_error *reterr) {
        const struct comm_store *s = &c->options.store;
        uint64_t newest;

        for (;;) {
                int r = s->generation(s->context, &newest, store_deadline(), reterr);
                if (r == 0)
                        break;
                TRY(ask_again(c, r, reterr));
        }
        if (newest != c->options.generation)
                return comm_fail(c, CAIRN_ERR_STALE, reterr, "the newest generation is %" PRIu64,
                                 newest);
        return 0;
}

static int meet(struct comm *c, struct cairn_error *reterr) {
        TRY(check_generation(c, reterr));
        TRY(c->ops->open(c, reterr));
        return check_generation(c, reterr);
}

static int barrier(struct comm *c, struct cairn_error *reterr) {
        int64_t count;

        TRY(c->ops->barrier(c, &count, reterr));
        if (count != c->options.world)
                return comm_fail(c, CAIRN_ERR_MISMATCH, reterr,
                                 "1 from each of %d ranks makes %" PRIi64, c->options.world, count);
        return 0;
}

static int test(struct comm *c, struct cairn_error *reterr) {
        TRY(barrier(c, reterr));
        return check_generation(c, reterr);
}

static int start(struct comm *c, struct cairn_error *reterr) {
        struct cairn_error e = CAIRN_ERROR_INIT;
        uint64_t begin_ns = clock_now(&clock_system);

        begin(c, "init", 0, c->options.bootstrap_ns);
        TRY(end(c, meet(c, &e), &e, reterr));
        uint64_t spent_ns = clock_now(&clock_system) - begin_ns;
        uint64_t left_ns =
                spent_ns < c->options.bootstrap_ns ? c->options.bootstrap_ns - spent_ns : 1;
        begin(c, "test_all_reduce", sizeof(int64_t), left_ns);
        TRY(end(c, test(c, &e), &e, reterr));
        set_state(c, COMM_READY);
        return 0;
}

int comm_new_with(const struct comm_ops *ops, const struct comm_options *options, struct comm **ret,
                  struct cairn_error *reterr) {
        struct cairn_error e = CAIRN_ERROR_INIT;
        struct comm *c = NULL;

        TRY(comm_ops_check(ops, reterr));
        TRY(check_options(options, reterr));
        TRY(new_comm(ops, options, &c, reterr));
        int r = start(c, reterr);
        if (r == 0) {
                *ret = c;
                return 0;
        }
        /* What the library still uses stays: the process has to end. */
        if (comm_abort(&c, 1, &e) < 0)
                return comm_fail(c, CAIRN_ERR_FATAL, reterr, "%s; %s", c->first.message, e.message);
        (void) comm_free(c);
        return r;
}

int comm_new(const struct comm_options *options, struct comm **ret, struct cairn_error *reterr) {
        const char *name = options->back_end ? options->back_end : "";

        if (strcmp(name, comm_gloo.name) == 0)
                return comm_new_with(&comm_gloo, options, ret, reterr);
        if (strcmp(name, comm_nccl.name) == 0)
                return comm_new_with(&comm_nccl, options, ret, reterr);
        return error_set(reterr, CAIRN_ERR_API, "make communicator", name,
                         "there is no such back end: gloo or nccl");
}

struct comm *comm_free(struct comm *c) {
        if (!c || comm_abort(&c, 1, NULL) < 0)
                return NULL;
        c->ops->close(c);
        presence_done(&c->presence);
        free(c);
        return NULL;
}

int comm_abort(struct comm *const *comms, size_t count, struct cairn_error *reterr) {
        uint64_t limit_ns = 0;

        for (size_t i = 0; i < count; i++) {
                if (comms[i]->ops != comms[0]->ops)
                        return error_set(reterr, CAIRN_ERR_API, "abort", comms[i]->object,
                                         "the communicators have different back ends");
                if (comms[i]->options.abort_ns > limit_ns)
                        limit_ns = comms[i]->options.abort_ns;
        }
        if (count == 0)
                return 0;
        TRY(comms[0]->ops->abort(comms, count, clock_now(&clock_system) + limit_ns, reterr));
        for (size_t i = 0; i < count; i++)
                if (comms[i]->state != COMM_ABORTED)
                        set_state(comms[i], COMM_ABORTED);
        return 0;
}

/* ---- verbs ---- */

int comm_all_reduce(struct comm *c, void *data, uint64_t count, enum cairn_dtype dtype,
                    struct cairn_error *reterr) {
        struct cairn_error e = CAIRN_ERROR_INIT;
        uint64_t bytes;

        TRY(check_elements(c, "all_reduce", data, count, dtype, &bytes, reterr));
        begin(c, "all_reduce", bytes, c->options.collective_ns);
        return end(c, c->ops->all_reduce(c, data, count, dtype, &e), &e, reterr);
}

int comm_reduce_scatter(struct comm *c, const void *source, void *target, uint64_t count,
                        enum cairn_dtype dtype, struct cairn_error *reterr) {
        struct cairn_error e = CAIRN_ERROR_INIT;
        uint64_t bytes;

        TRY(check_elements(c, "reduce_scatter", target, count, dtype, &bytes, reterr));
        TRY(check_bytes(c, "reduce_scatter", source, bytes, reterr));
        begin(c, "reduce_scatter", bytes, c->options.collective_ns);
        return end(c, c->ops->reduce_scatter(c, source, target, count, dtype, &e), &e, reterr);
}

int comm_all_gather(struct comm *c, const void *source, void *target, uint64_t bytes,
                    struct cairn_error *reterr) {
        struct cairn_error e = CAIRN_ERROR_INIT;

        TRY(check_bytes(c, "all_gather", source, bytes, reterr));
        TRY(check_bytes(c, "all_gather", target, bytes, reterr));
        begin(c, "all_gather", bytes, c->options.collective_ns);
        return end(c, c->ops->all_gather(c, source, target, bytes, &e), &e, reterr);
}

int comm_broadcast(struct comm *c, void *data, uint64_t bytes, int root,
                   struct cairn_error *reterr) {
        struct cairn_error e = CAIRN_ERROR_INIT;

        TRY(check_bytes(c, "broadcast", data, bytes, reterr));
        if (root < 0 || root >= c->options.world)
                return error_set(reterr, CAIRN_ERR_API, "broadcast", c->object,
                                 "there is no rank %d", root);
        begin(c, "broadcast", bytes, c->options.collective_ns);
        return end(c, c->ops->broadcast(c, data, bytes, root, &e), &e, reterr);
}

int comm_barrier(struct comm *c, struct cairn_error *reterr) {
        struct cairn_error e = CAIRN_ERROR_INIT;

        TRY(check_ready(c, "barrier", reterr));
        begin(c, "barrier", 0, c->options.collective_ns);
        return end(c, barrier(c, &e), &e, reterr);
}

void comm_keepalive(struct comm *c) {
        if (c->state == COMM_READY)
                presence_work(&c->presence);
}

const char *comm_describe(const struct comm *c) {
        return c->description;
}

uint64_t comm_sequence(const struct comm *c) {
        return c->presence.sequence;
}
