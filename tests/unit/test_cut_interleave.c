/* SPDX-License-Identifier: Apache-2.0
 *
 * Every interleaving of the real code of format/cut.c (included below) within stated bounds:
 * trainer, one or two copiers and cairnd are coroutines, each access to the page is a point where
 * any other side may run next, the gate's deadline may pass whenever the gate sleeps, and the first
 * copier may be killed at any point. Schedules are explored depth first by replay; a state that was
 * met before is not explored again (page, ghosts, and for each side where it stands and all that it
 * has read since: its code depends on nothing else).
 *
 * Memory is sequentially consistent here; orders weaker than that are the race detector's and the
 * model's part (tests/model). What has to hold: P1  a published snapshot holds state and host state
 * of exactly its seq, and last_step belongs to it P2  a claim ends once: by its own copier, by the
 * gate, or by cairnd; nobody else leaves UPDATING P3  no lost wake-up: nobody sleeps at the gate
 * that nothing holds back, and a request that can be answered is not left lying with a copier
 * asleep P4  an update that a request is due for waits for the answer, unless the deadline passed
 * or is detached P5  the trainer needs a bounded number of its own steps, whatever the others do P6
 * an outcome CLAIMED stays only for a cut that was published Then each weakened variant (WEAKENED
 * below) must break one of them.
 *
 * time limit: 180 s */
#include "base/clock.h"
#include "base/limits.h"
#include "base/status.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#ifndef __x86_64__
#include <ucontext.h>
#endif

static void point(const void *object);
static void saw(const void *object, uint64_t value);
static bool swap(const char *verb, const void *object, bool equal);
static uint64_t weaken_load(const char *verb, const void *object, uint64_t value);
static uint32_t next_attempt(const char *verb, uint32_t attempt);
static void futex_sleep(const uint32_t *address, uint32_t expected);
static void futex_rouse(const char *verb, const void *address);

#define CUT_LOAD(object)                                                                        \
        ({                                                                                      \
                point((const void *) (object));                                                 \
                uint64_t load_ = (uint64_t) atomic_load_explicit(object, memory_order_relaxed); \
                load_ = weaken_load(__func__, (const void *) (object), load_);                  \
                saw((const void *) (object), load_);                                            \
                load_;                                                                          \
        })
#define CUT_STORE(object, value) \
        (point((const void *) (object)), atomic_store_explicit(object, value, memory_order_relaxed))
#define CUT_SWAP(object, expected, desired)                                                    \
        ({                                                                                     \
                point((const void *) (object));                                                \
                uint64_t present_ = atomic_load_explicit(object, memory_order_relaxed);        \
                swap_expected = *(expected);                                                   \
                swap_desired = (desired);                                                      \
                swap_present = present_;                                                       \
                bool done_ = swap(__func__, (const void *) (object), present_ == *(expected)); \
                if (done_)                                                                     \
                        atomic_store_explicit(object, swap_desired, memory_order_relaxed);     \
                else                                                                           \
                        *(expected) = present_;                                                \
                saw((const void *) (object), done_);                                           \
                saw((const void *) (object), *(expected));                                     \
                done_;                                                                         \
        })
#define CUT_COUNT(object, value) \
        ((void) atomic_fetch_add_explicit(object, value, memory_order_relaxed))
#define CUT_FUTEX_WAIT(address, expected, timeout_ns) \
        ((void) (timeout_ns), futex_sleep(address, expected))
#define CUT_FUTEX_WAKE(address) futex_rouse(__func__, address)
#define CUT_NEXT_ATTEMPT(attempt) next_attempt(__func__, attempt)

static uint64_t swap_expected, swap_desired, swap_present;

#include "format/cut.c" /* NOLINT(bugprone-suspicious-include) */

#include "tests/test.h"

/* ---- weakened variants: what a swap, a load or a wake does wrong, by the verb that does it ----
 */

#define WEAKENED(X)                                                                  \
        X(NONE, "the code as it is")                                                 \
        X(REVOKE_STORE, "cairnd revokes by a plain store")                           \
        X(END_STORE, "the copier publishes by a plain store")                        \
        X(END_ANY_ATTEMPT, "publishing ignores the attempt")                         \
        X(NO_BUMP, "a claim keeps the attempt")                                      \
        X(GATE_STORE, "the gate takes the word by a plain store")                    \
        X(GATE_NO_SWAP, "an expired gate goes on without taking the word")           \
        X(DECLINE_NO_CHANGE, "a decline leaves the word as it is")                   \
        X(END_NO_WAKE, "publishing wakes nobody")                                    \
        X(REVOKE_NO_WAKE, "revoking wakes nobody")                                   \
        X(REQUEST_NO_SECOND_LOOK, "a request rings by the phase that it read first") \
        X(GATE_IGNORES_OWED, "the gate does not wait for an unanswered request")

enum weaken {
#define WEAKEN_ENUM(name, text) WEAKEN_##name,
        WEAKENED(WEAKEN_ENUM) WEAKEN_COUNT
};
static const char *const weaken_texts[] = {
#define WEAKEN_TEXT(name, text) text,
        WEAKENED(WEAKEN_TEXT)};
static enum weaken weaken;

/* ---- the world ---- */

enum { TRAINER, COPIER, SECOND, CAIRND, SIDES };
/* A copier that was given up alive is interrupted at most LATE_MAX more times, then goes on to its
 * end. */
enum { LATE_MAX = 1 };
enum { STEPS_MAX = 600, STACK_BYTES = 32768, UPDATES_MAX = 3 };
static const char *const side_names[] = {"trainer", "copier", "second copier", "cairnd", "nobody"};

struct scenario {
        const char *name;
        int updates;
        unsigned scheduled; /* bit u: update u asks for a snapshot */
        bool may_decline;   /* copiers decline instead, or abandon their copy, wherever they like */
        bool demand;        /* cairnd asks for a cut at any time */
        bool revoke; /* cairnd gives the first copier up at any time, and starts the second one */
        bool kill;   /* the first copier may be killed at any point; only then does cairnd revoke */
        bool no_second; /* the first copier has no successor */
        bool outcomes;  /* accesses to outcomes are points, too */
};
static const struct scenario *scenario;

/* ucontext asks the kernel for the signal mask at each switch, and this test switches 10^8 times.
 */
#ifdef __x86_64__
typedef void *coroutine;
void coroutine_switch(coroutine *from, coroutine to);
__asm__(".text\n.globl coroutine_switch\n.hidden coroutine_switch\n"
        ".type coroutine_switch,@function\ncoroutine_switch:\n"
        "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
        "mov %rsp,(%rdi)\nmov %rsi,%rsp\n"
        "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n");

static void coroutine_init(coroutine *c, unsigned char *stack, size_t bytes, void (*entry)(void)) {
        void **top =
                (void **) (void *) (stack + bytes) - 2; /* as after a call, for the alignment */

        *--top = (void *) entry;
        *c = top - 6;
        memset(*c, 0, 6 * sizeof(void *));
}
#else
typedef ucontext_t coroutine;

static void coroutine_switch_to(coroutine *from, coroutine *to) {
        (void) swapcontext(from, to);
}
#define coroutine_switch(from, to) coroutine_switch_to(from, &(to))

static void coroutine_init(coroutine *c, unsigned char *stack, size_t bytes, void (*entry)(void)) {
        (void) getcontext(c);
        c->uc_stack.ss_sp = stack;
        c->uc_stack.ss_size = bytes;
        makecontext(c, entry, 0);
}
#endif

struct side {
        coroutine context;
        uint64_t seen; /* hash of what it read since `mark` */
        uint64_t place;
        int late;                         /* steps since it was given up */
        bool started, done, dead, asleep; /* asleep: at the gate's futex */
        bool wants_bell;
};
static struct side sides[SIDES];
static _Alignas(64) unsigned char stacks[SIDES][STACK_BYTES];
static coroutine scheduler;
static int running;

static union {
        struct control_page page;
        unsigned char bytes[CONTROL_PAGE_BYTES];
} shared;
#define PAGE (&shared.page)

static uint64_t cells[2], host_slots[2], images[2][3];
static int bell;
static bool time_is_up; /* of the gate's present passage */
static struct cut_gate gate;
static bool updating;    /* ghost: between update_begin and update_end */
static int holder;       /* ghost: side whose claim is in the word; 0: none */
static uint64_t due_seq; /* ghost: newest scheduled request */
static bool published[UPDATES_MAX + 2];
static bool revoked, abandoning;

static char violation[256];
static bool tracing;

static void violate(const char *property, const char *what) {
        if (!violation[0])
                (void) snprintf(violation, sizeof violation, "%s: %s (%s)", property, what,
                                side_names[running]);
}

/* ---- exploration ---- */

struct choice {
        uint8_t taken, count;
};
static struct choice path[STEPS_MAX * 2];
static size_t depth, path_length;
static uint64_t schedules, states, steps_of_run;

#define VISITED_BITS 23
static uint64_t *visited;

static uint64_t mix(uint64_t h, uint64_t v) {
        h = (h ^ v) * UINT64_C(0x9e3779b97f4a7c15);
        return h ^ (h >> 29);
}

static uint64_t hash_of_state(void) {
        uint64_t h = 1;

        h = mix(h, PAGE->word);
        h = mix(h, PAGE->wanted_seq);
        h = mix(h, PAGE->answered_seq);
        h = mix(h, gate.detached ? PAGE->progress == gate.progress_seen : 2);
        h = mix(h, PAGE->gate_waiting);
        h = mix(h, (uint64_t) PAGE->last_step);
        for (size_t i = 0; scenario->outcomes && i < UPDATES_MAX + 2; i++)
                h = mix(h, PAGE->outcomes[i]);
        for (size_t i = 0; i < 2; i++) {
                h = mix(h, cells[i] << 32 | host_slots[i]);
                h = mix(h, images[i][0] << 42 | images[i][1] << 21 | images[i][2]);
        }
        h = mix(h, (uint64_t) bell << 12 | (uint64_t) holder << 8 | updating << 3 |
                           time_is_up << 2 | revoked << 1 | gate.detached | abandoning << 5);
        h = mix(h, due_seq);
        for (size_t i = 0; scenario->outcomes && i < UPDATES_MAX + 2; i++)
                h = mix(h, published[i]);
        for (size_t i = 0; i < SIDES; i++)
                h = mix(h, mix(sides[i].seen, (uint64_t) sides[i].late << 5 |
                                                      (uint64_t) sides[i].started << 4 |
                                                      sides[i].done << 3 | sides[i].dead << 2 |
                                                      sides[i].asleep << 1 | sides[i].wants_bell));
        return h ? h : 1;
}

static bool visit(uint64_t hash) {
        uint64_t mask = (UINT64_C(1) << VISITED_BITS) - 1;

        for (uint64_t i = hash & mask;; i = (i + 1) & mask) {
                if (visited[i] == hash)
                        return false;
                if (visited[i])
                        continue;
                visited[i] = hash;
                states++;
                return true;
        }
}

static int decide(int count) {
        if (depth == path_length)
                path[path_length++] = (struct choice){.count = (uint8_t) count};
        return path[depth++].taken;
}

/* ---- what the wrapped accesses do ---- */

static void yield_to_scheduler(void) {
        coroutine_switch(&sides[running].context, scheduler);
}

static bool is_outcome(const void *object) {
        const unsigned char *p = object;

        return p >= (const unsigned char *) PAGE->outcomes &&
               p < (const unsigned char *) (PAGE->outcomes + CUT_OUTCOME_COUNT);
}

/* Counters count in one step with the access before them. */
static bool is_point(const void *object) {
        if (object == &PAGE->seal_number)
                return false;
        if (is_outcome(object))
                return scenario->outcomes;
        return true;
}

static void point(const void *object) {
        if (running < SIDES && is_point(object))
                yield_to_scheduler();
}

/* Progress matters only by comparison with what the gate remembers. */
static void saw(const void *object, uint64_t value) {
        if (running >= SIDES)
                return;
        if (is_outcome(object) && !scenario->outcomes)
                return; /* nothing but outcomes follows from them */
        if (object == &PAGE->progress)
                value = value == gate.progress_seen;
        sides[running].seen = mix(sides[running].seen, value + 1);
}

/* Where a side stands, when nothing that it read before matters any more. */
static void mark(uint64_t place) {
        sides[running].place = place;
        sides[running].seen = mix(7, place);
}

static bool in_verb(const char *verb, const char *name) {
        return weaken != WEAKEN_NONE && strcmp(verb, name) == 0;
}

/* leave_copying serves three verbs; the side tells which. */
static bool is_ending(const char *verb) {
        return strcmp(verb, "swap_word") == 0 && (running == COPIER || running == SECOND) &&
               cut_word_unpack(swap_expected).phase == CUT_COPYING;
}

static bool weakened_equal(const char *verb, bool equal) {
        struct cut_word expected = cut_word_unpack(swap_expected);
        struct cut_word present = cut_word_unpack(swap_present);

        switch (weaken) {
        case WEAKEN_REVOKE_STORE:
                return equal || (running == CAIRND && expected.phase == CUT_COPYING);
        case WEAKEN_END_STORE:
                return equal || is_ending(verb);
        case WEAKEN_END_ANY_ATTEMPT:
                if (equal || !is_ending(verb))
                        return equal;
                swap_desired =
                        cut_word_pack((struct cut_word){present.seq, present.attempt, CUT_STABLE});
                return present.seq == expected.seq && present.phase == CUT_COPYING;
        case WEAKEN_GATE_STORE:
                return equal || (running == TRAINER && !updating);
        case WEAKEN_GATE_NO_SWAP:
                if (running == TRAINER && equal && expected.phase == CUT_COPYING)
                        swap_desired = swap_present;
                return equal;
        case WEAKEN_DECLINE_NO_CHANGE:
                if (equal && running != TRAINER && running != CAIRND &&
                    cut_word_unpack(swap_desired).phase == CUT_STABLE &&
                    expected.phase == CUT_STABLE)
                        swap_desired = swap_present;
                return equal;
        default:
                return equal;
        }
}

static void check_transition(void) {
        struct cut_word from = cut_word_unpack(swap_present), to = cut_word_unpack(swap_desired);

        if (swap_present == swap_desired)
                return;
        if (updating && running != TRAINER)
                violate("P2", "somebody else left UPDATING");
        if (to.phase == CUT_COPYING) {
                if (holder)
                        violate("P2", "two claims at a time");
                holder = running;
        } else if (from.phase == CUT_COPYING || holder) {
                bool by_copier = running == COPIER || running == SECOND;

                if (by_copier && holder != running)
                        violate("P2", "ended a claim that it did not hold");
                /* Noted at once: the copier may be killed before it comes back from the verb. */
                if (by_copier && !abandoning && to.seq < UPDATES_MAX + 2)
                        published[to.seq] = true;
                holder = 0;
        }
}

static bool swap(const char *verb, const void *object, bool equal) {
        if (object != &PAGE->word)
                return equal;
        equal = weakened_equal(verb, equal);
        if (equal && running < SIDES)
                check_transition();
        return equal;
}

static uint64_t weaken_load(const char *verb, const void *object, uint64_t value) {
        static uint64_t first;

        if (weaken == WEAKEN_GATE_IGNORES_OWED && in_verb(verb, "is_owed"))
                return object == &PAGE->wanted_seq ? 0 : value;
        if (weaken != WEAKEN_REQUEST_NO_SECOND_LOOK || running != CAIRND || object != &PAGE->word)
                return value;
        /* cut_request looks twice, and in this variant believes the first look. */
        first = sides[CAIRND].wants_bell ? first : value;
        sides[CAIRND].wants_bell = true;
        return first;
}

static uint32_t next_attempt(const char *verb, uint32_t attempt) {
        if (weaken == WEAKEN_NO_BUMP && in_verb(verb, "cut_copy_begin"))
                return attempt;
        return (attempt + 1) & ATTEMPT_MASK;
}

static void futex_sleep(const uint32_t *address, uint32_t expected) {
        point(address);
        if (*address != expected)
                return;
        sides[running].asleep = true;
        yield_to_scheduler();
        /* The gate looks at everything afresh: `place` is not to name this twice. */
        sides[running].seen = mix(11, sides[running].place);
}

static void futex_rouse(const char *verb, const void *address) {
        if (address != (const void *) &PAGE->word)
                return;
        point(address);
        if (weaken == WEAKEN_END_NO_WAKE && (running == COPIER || running == SECOND) && !holder)
                return;
        if (weaken == WEAKEN_REVOKE_NO_WAKE && running == CAIRND)
                return;
        sides[TRAINER].asleep = false;
}

static uint64_t test_now(void *context) {
        return time_is_up ? 2 * NSEC_PER_SEC : 0;
}

static const struct clock_ops test_clock = {.now_ns = test_now};

/* ---- the sides ---- */

static bool choose(void) {
        bool yes = decide(2) != 0;

        sides[running].seen = mix(sides[running].seen, yes);
        return yes;
}

static void wait_for_bell(void) {
        sides[running].wants_bell = true;
        yield_to_scheduler();
        sides[running].wants_bell = false;
        bell = 0;
}

static void ring(void) {
        point(&bell);
        bell = 1;
}

static void enter_gate(uint64_t update) {
        bool expired, detached = gate.detached;

        time_is_up = false;
        if (cut_update_begin(PAGE, &gate, &test_clock, &expired) != 0)
                violate("P2", "update_begin failed");
        if (!time_is_up && !detached && PAGE->answered_seq < due_seq)
                violate("P4", "passed the gate before the request was answered");
        updating = true;
        time_is_up = false;
}

static void trainer_main(void) {
        gate = (struct cut_gate){.deadline_duration_ns = NSEC_PER_SEC};
        updating = true; /* as the page starts */
        for (int update = 0; update < scenario->updates; update++) {
                uint64_t seq = (uint64_t) update + 1, ended = 0;
                bool must_ring = false, ignored;

                mark((uint64_t) update);
                if (update > 0)
                        enter_gate(seq);
                mark((uint64_t) update + 10);
                for (int i = 0; i < 2; i++) {
                        point(&cells[i]);
                        cells[i] = seq;
                }
                host_slots[seq % 2] = seq;
                if (scenario->scheduled & 1u << update)
                        due_seq = cut_request(PAGE, &ignored);
                updating = false;
                int r = cut_update_end(PAGE, (int64_t) seq * 10, 1, &ended, &must_ring);
                if (r != 0 || ended != seq)
                        violate("P2", "somebody else left UPDATING");
                if (must_ring)
                        ring();
        }
        mark(99);
        enter_gate(99); /* the last snapshot is held or given up */
}

static void take_snapshot(int buffer, struct cut_word mine) {
        uint64_t *image = images[buffer];

        for (int i = 0; i < 2; i++) {
                if (!cut_copy_continue(PAGE, mine))
                        return;
                point(&cells[i]);
                image[i] = cells[i];
        }
        image[2] = host_slots[mine.seq % 2];
        int64_t step = (int64_t) CUT_LOAD(&PAGE->last_step);
        if (scenario->may_decline && choose()) {
                abandoning = true;
                cut_copy_abandon(PAGE, mine);
                abandoning = false;
                return;
        }
        if (cut_copy_end(PAGE, mine) != 0)
                return;
        if (image[0] != mine.seq || image[1] != mine.seq || image[2] != mine.seq ||
            step != (int64_t) mine.seq * 10)
                violate("P1", "a torn snapshot was published");
}

static void copier_main(int buffer, bool demanded) {
        struct cut_word mine;

        for (bool first = true;; first = false) {
                mark((uint64_t) first + 4 + (demanded ? 2 : 0));
                memset(images[buffer], 0, sizeof images[buffer]);
                /* A new saver does not wait for a bell that a dead one may have taken. */
                if (!first || buffer == 0)
                        wait_for_bell();
                if (buffer == 0 && revoked) {
                        ring(); /* it was meant for the second one */
                        return;
                }
                if (scenario->may_decline && choose()) {
                        if (cut_read(PAGE).phase == CUT_STABLE)
                                cut_decline(PAGE, CAIRN_ERR_BUSY);
                        continue;
                }
                while (cut_copy_begin(PAGE, demanded && first, &mine) == 0) {
                        demanded = false;
                        mark(mix(cut_word_pack(mine), first));
                        take_snapshot(buffer, mine);
                        mark((uint64_t) first + 2);
                }
        }
}

static void cairnd_main(void) {
        bool during_update;

        if (scenario->demand) {
                (void) cut_request(PAGE, &during_update);
                sides[CAIRND].wants_bell = false;
                if (!during_update)
                        ring();
        }
        if (scenario->revoke) {
                point(&revoked);
                revoked = true;
                (void) cut_copy_revoke(PAGE);
                sides[SECOND].started = !scenario->no_second;
        }
}

static void side_main(void) {
        int self = running;

        if (self == TRAINER)
                trainer_main();
        else if (self == COPIER)
                copier_main(0, false);
        else if (self == SECOND)
                copier_main(1, true);
        else
                cairnd_main();
        sides[self].done = true;
        for (;;)
                yield_to_scheduler();
}

/* ---- one run ---- */

static void reset(void) {
        memset(&shared, 0, sizeof shared);
        running = SIDES; /* outside of any side: no points */
        control_page_init(PAGE, 1);
        memset(cells, 0, sizeof cells);
        memset(host_slots, 0, sizeof host_slots);
        memset(images, 0, sizeof images);
        memset(published, 0, sizeof published);
        bell = holder = 0;
        due_seq = 0;
        time_is_up = updating = revoked = abandoning = false;
        gate = (struct cut_gate){0};
        violation[0] = '\0';
        depth = 0;
        steps_of_run = 0;
        for (int i = 0; i < SIDES; i++) {
                sides[i] = (struct side){.started = i != SECOND};
                coroutine_init(&sides[i].context, stacks[i], STACK_BYTES, side_main);
        }
        sides[CAIRND].started = scenario->demand || scenario->revoke;
}

static bool is_enabled(int i) {
        const struct side *s = &sides[i];

        if (!s->started || s->done || s->dead || s->asleep)
                return false;
        if ((i == COPIER || i == SECOND) && s->wants_bell)
                return bell > 0;
        /* A copier is given up once it is dead; its time comes at the latest when all others rest.
         */
        return i != CAIRND || !scenario->kill || sides[COPIER].dead;
}

enum { EVENT_TIME = SIDES, EVENT_KILL };

static int list_events(int *events) {
        int count = 0;

        if (sides[COPIER].late >= LATE_MAX && is_enabled(COPIER)) {
                events[0] = COPIER;
                return 1;
        }
        for (int i = 0; i < SIDES; i++)
                if (is_enabled(i))
                        events[count++] = i;
        if (sides[TRAINER].asleep)
                events[count++] = EVENT_TIME;
        if (scenario->kill && !sides[COPIER].dead)
                events[count++] = EVENT_KILL;
        return count;
}

static bool copier_alive(void) {
        for (int i = COPIER; i <= SECOND; i++)
                if (sides[i].started && !sides[i].done && !sides[i].dead)
                        return true;
        return false;
}

/* Nobody but the clock can move on: is that as it should be? */
static void check_rest(void) {
        struct cut_word word = cut_word_unpack(PAGE->word);
        bool owed = PAGE->answered_seq < PAGE->wanted_seq && PAGE->wanted_seq <= word.seq;

        running = TRAINER;
        if (sides[TRAINER].asleep) {
                bool held = word.phase == CUT_COPYING || (word.phase == CUT_STABLE && owed);

                if (!held)
                        violate("P3", "sleeps at a gate that nothing holds back");
                else if (copier_alive())
                        violate("P3", "sleeps at a gate with a live copier asleep");
        } else if (!sides[TRAINER].done) {
                violate("P5", "the trainer cannot go on");
        }
        if (word.phase == CUT_STABLE && owed && copier_alive())
                violate("P3", "a request is left lying with a copier asleep");
        for (size_t seq = 1; scenario->outcomes && seq < UPDATES_MAX + 2; seq++)
                if (PAGE->outcomes[seq] >> 24 == seq &&
                    (PAGE->outcomes[seq] >> 20 & 0xf) == CUT_CLAIMED && !published[seq])
                        violate("P6", "a cut that was given up stays claimed");
}

/* The schedule that broke a property, run again: who moved, and what the word was before. */
static void trace(int event) {
        struct cut_word word = cut_word_unpack(PAGE->word);

        print_message("  %-14s word %llu.%u %s wanted %llu answered %llu%s%s\n",
                      event == EVENT_TIME   ? "deadline"
                      : event == EVENT_KILL ? "kill copier"
                                            : side_names[event],
                      (unsigned long long) word.seq, word.attempt, cut_phase_name(word.phase),
                      (unsigned long long) PAGE->wanted_seq,
                      (unsigned long long) PAGE->answered_seq, bell ? " bell" : "",
                      sides[TRAINER].asleep ? " asleep" : "");
}

static void run_once(void) {
        int events[SIDES + 2];

        reset();
        for (;;) {
                bool replaying = depth < path_length;
                int count = list_events(events);
                bool rest = true;

                for (int i = 0; i < count; i++)
                        rest = rest && events[i] == EVENT_TIME;
                if (rest)
                        check_rest();
                if (violation[0] || count == 0)
                        return;
                if (++steps_of_run > STEPS_MAX) {
                        violate("P5", "no end");
                        return;
                }
                if (!replaying && !tracing && !visit(hash_of_state()))
                        return;
                int event = events[count == 1 ? 0 : decide(count)];
                if (tracing)
                        trace(event);
                if (event == EVENT_KILL) {
                        sides[COPIER].dead = true;
                        continue;
                }
                if (event == EVENT_TIME) {
                        time_is_up = true;
                        sides[TRAINER].asleep = false;
                        continue;
                }
                running = event;
                if (event == COPIER && revoked)
                        sides[COPIER].late++;
                coroutine_switch(&scheduler, sides[event].context);
                sides[event].seen = mix(sides[event].seen, 1); /* one place further */
                running = SIDES;
        }
}

/* All schedules, or the first one that breaks a property. */
static bool explore(const struct scenario *s) {
        scenario = s;
        path_length = 0;
        memset(visited, 0, sizeof *visited << VISITED_BITS);
        for (;;) {
                run_once();
                schedules++;
                if (violation[0])
                        return false;
                while (path_length > 0 &&
                       path[path_length - 1].taken + 1 >= path[path_length - 1].count)
                        path_length--;
                if (path_length == 0)
                        return true;
                path[path_length - 1].taken++;
        }
}

static const struct scenario scenarios[] = {
        {.name = "scheduled", .updates = 2, .scheduled = 3},
        {.name = "scheduled or declined", .updates = 2, .scheduled = 3, .may_decline = true},
        {.name = "demanded", .updates = 2, .demand = true},
        {.name = "demanded or declined", .updates = 1, .demand = true, .may_decline = true},
        {.name = "killed, no successor",
         .updates = 2,
         .scheduled = 1,
         .revoke = true,
         .kill = true,
         .no_second = true},
        {.name = "abandoned", .updates = 1, .scheduled = 1, .revoke = true},
        {.name = "killed", .updates = 1, .scheduled = 1, .revoke = true, .kill = true},
        {.name = "killed, with outcomes",
         .updates = 1,
         .scheduled = 1,
         .revoke = true,
         .kill = true,
         .outcomes = true},
        {.name = "declined, with outcomes",
         .updates = 1,
         .scheduled = 1,
         .may_decline = true,
         .outcomes = true},
};

static double seconds_since(uint64_t begin) {
        return (double) (clock_now(&clock_system) - begin) / 1e9;
}

static void test_all_schedules(void **state) {
        weaken = WEAKEN_NONE;
        schedules = states = 0;
        for (size_t i = 0; i < sizeof scenarios / sizeof scenarios[0]; i++) {
                uint64_t before = schedules, states_before = states,
                         begin = clock_now(&clock_system);
                bool fine = explore(&scenarios[i]);

                print_message("%-28s %8llu schedules, %8llu states, %.1f s\n", scenarios[i].name,
                              (unsigned long long) (schedules - before),
                              (unsigned long long) (states - states_before), seconds_since(begin));
                if (!fine) {
                        print_message("%s\n", violation);
                        tracing = true;
                        run_once();
                        tracing = false;
                }
                assert_true(fine);
        }
        print_message("%llu schedules, %llu states\n", (unsigned long long) schedules,
                      (unsigned long long) states);
}

static void test_weakened_are_caught(void **state) {
        for (int w = WEAKEN_NONE + 1; w < WEAKEN_COUNT; w++) {
                bool caught = false;

                weaken = (enum weaken) w;
                for (size_t i = 0; i < sizeof scenarios / sizeof scenarios[0] && !caught; i++) {
                        caught = !explore(&scenarios[i]);
                        if (caught)
                                print_message("caught: %-50s %s: %s\n", weaken_texts[w],
                                              scenarios[i].name, violation);
                }
                if (!caught)
                        print_message("not caught: %s\n", weaken_texts[w]);
                assert_true(caught);
        }
}

int main(void) {
#ifdef __SANITIZE_ADDRESS__
        (void) puts("the coroutines change stacks behind the address sanitizer's back");
        return 77;
#endif
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_all_schedules),
                cmocka_unit_test(test_weakened_are_caught),
        };

        visited = calloc((size_t) 1 << VISITED_BITS, sizeof *visited);
        if (!visited)
                return 1;
        int failed = cmocka_run_group_tests(tests, NULL, NULL);
        free(visited);
        return failed;
}
