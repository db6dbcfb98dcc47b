/* SPDX-License-Identifier: Apache-2.0
 *
 * request.pml - the cut protocol for spin: who waits for whom? Requests, the gate and its deadline, bells,
 * detachment. Transitions and their order: snapshot.pml. Contents are left out here, and attempts where the
 * holder is known. Configurations:
 *
 *   CHECK_REQUEST     safety: two copiers, each may be the stale one, each cut may be declined, given up or revoked
 *   CHECK_TRAINER     liveness: copier and cairnd may stop for ever at any point
 *   CHECK_COPIER      liveness: copiers die and deadlines fire during an outage, which ends or not
 *   CHECK_POSTMORTEM  liveness: the trainer stops for ever outside an update; its copier dies up to twice
 *
 * Liveness is checked under weak fairness: a process that can go on does. seq is lowered by 2 at SEQ_TOP as
 * in snapshot.pml; there wanted_seq stops at 1, answered_seq at 0, so that an old request stays owed.
 */
#define STABLE 0
#define UPDATING 1
#define COPYING 2
#define ENDED 0
#define RUNNING 1
#define KILLED 2
#define SEQ_TOP 3

#if defined(CHECK_REQUEST)
#define COPIERS 2
#define DEADLINE_FIRES true
#define DECLINES
#elif defined(CHECK_TRAINER)
#define COPIERS 1
#define DEADLINE_FIRES true
#define KILLS true
#define DECLINES
#define CLAIMS_MAX 2
#elif defined(CHECK_COPIER)
#define COPIERS 1
bool outage = true;
#define DEADLINE_FIRES outage
#define KILLS outage
#define CLAIMS_MAX 2
#elif defined(CHECK_POSTMORTEM)
#define COPIERS 1
byte kills;
bool stopped; /* the trainer, for ever */
#define DEADLINE_FIRES true
#define KILLS (kills < 2)
#define CLAIMS_MAX 4
#else
#error choose a configuration
#endif
#define NOBODY COPIERS

/* ---- the control page ---- */
byte w_seq;
byte w_phase = UPDATING;
byte wanted_seq, answered_seq;
bool detached; /* progress == the value that the gate remembered at its last expiry */

byte holder = NOBODY; /* whose claim is in the word: what {seq, attempt} tell in the code */
bool ended;           /* update_end has been called, its swap is to come */
bool scheduled;
#ifdef CHECK_REQUEST
byte due; /* ghost: newest scheduled request */
#endif
byte my_seq[COPIERS], my_wanted[COPIERS];
byte asked_seq;
#ifndef CHECK_REQUEST
byte life = RUNNING;
byte claims; /* at this seq, up to CLAIMS_MAX: CUT_CLAIMS_PER_SEQ_MAX */
bool bell;   /* the eventfd: a copier's read takes it */
#ifdef CHECK_POSTMORTEM
bool again; /* cairnd's message: take a cut at this seq although it was answered (`demanded`) */
#define AGAIN again
#else
#define AGAIN false
#endif
#endif
#ifdef CHECK_TRAINER
bool updating;
#elif !defined(CHECK_REQUEST)
bool published;
#endif

#define MINE (holder == i && w_phase == COPYING)
#define LOWER(v, floor) v = (v >= floor + 2 -> v - 2 : floor)
#define MAXIMUM(v, x) v = (v < (x) -> (x) : v)
#define OWED (answered_seq < wanted_seq)

#ifdef W_NO_ANSWER_WAIT
#define HELD_BACK (w_phase == COPYING)
#else
#define HELD_BACK (w_phase == COPYING || (OWED && wanted_seq <= w_seq))
#endif

inline new_seq()
{
        if
        :: w_seq >= SEQ_TOP ->
                w_seq = w_seq - 2;
                LOWER(wanted_seq, 1);
                LOWER(asked_seq, 1);
                LOWER(answered_seq, 0);
#ifdef CHECK_REQUEST
                LOWER(due, 0);
#endif
                LOWER(my_seq[0], 0);
                LOWER(my_wanted[0], 0);
#if COPIERS > 1
                LOWER(my_seq[1], 0);
                LOWER(my_wanted[1], 0)
#endif
        :: else
        fi
}

active proctype trainer()
{
        byte read_phase;
        bool expired; /* this gate waits no longer */

        goto update; /* the page starts UPDATING: a restore, or the decision that there is none */

gate: /* cut_update_begin */
        do
#ifndef W_NO_DEADLINE
        :: atomic { w_phase != UPDATING && HELD_BACK && !expired && !detached && DEADLINE_FIRES ->
                expired = true;
                detached = true }
#endif
        :: atomic { w_phase != UPDATING && (expired || detached || !HELD_BACK) -> /* the helper has swapped */
                expired = expired || detached;
                read_phase = w_phase };
                atomic {
                        if
#ifdef W_GATE_STORE
                        :: true -> assert(w_phase == read_phase); /* P2 */
#else
                        :: w_phase == read_phase ->
#endif
#ifdef CHECK_REQUEST
                                assert(expired || answered_seq >= due); /* P4 */
#endif
                                w_phase = UPDATING;
                                holder = NOBODY;
                                expired = false;
                                read_phase = 0;
                                break
                        :: else -> read_phase = 0
                        fi
                }
#ifdef CHECK_POSTMORTEM
        :: atomic { w_phase != UPDATING && !ended -> stopped = true; published = false; goto over }
#endif
        od;

update:
#ifdef CHECK_TRAINER
        updating = true;
#endif
        atomic {
                if
                :: scheduled = true
                :: scheduled = false
                fi;
#ifdef CHECK_REQUEST
                due = (scheduled -> w_seq + 1 : due);
#endif
#ifdef CHECK_TRAINER
                updating = false;
#endif
                ended = true
        };
        goto gate;
#ifdef CHECK_POSTMORTEM
over:
        false
#endif
}

/* cut_update_end as the helper thread runs it when the device has finished. Where the trainer's own thread does
 * it, the gate is entered after it: fewer interleavings of the same steps. */
active proctype helper()
{
        do
        :: ended ->
#ifndef W_WANTED_LATE
                atomic {
                        if
                        :: scheduled -> MAXIMUM(wanted_seq, w_seq + 1) /* before the swap: cut_request in UPDATING */
                        :: else
                        fi
                };
#endif
                atomic {
                        assert(w_phase == UPDATING); /* P2: nobody else leaves UPDATING */
                        w_seq++;
                        w_phase = STABLE;
                        ended = false;
#ifndef CHECK_REQUEST
                        claims = 0;
#endif
                        new_seq()
                };
#ifdef W_WANTED_LATE
                atomic {
                        if
                        :: scheduled -> MAXIMUM(wanted_seq, w_seq)
                        :: else
                        fi
                };
#endif
#ifndef CHECK_REQUEST
                atomic {
                        if
#ifdef W_RING_SCHEDULED_ONLY
                        :: scheduled -> bell = true
#else
                        :: OWED -> bell = true
#endif
                        :: else
                        fi
                }
#endif
        od
}

#define LOOK_AGAIN my_seq[i] = 0; my_wanted[i] = 0; goto look
#ifdef W_ANSWER_STORE
#define ANSWER(x) assert(answered_seq <= x); answered_seq = x /* P2 */
#else
#define ANSWER(x) MAXIMUM(answered_seq, x)
#endif

proctype copier(byte i)
{
        bool stable;

idle:
        skip;
#ifndef CHECK_REQUEST
        life != ENDED;
#endif
        {
                goto look; /* a new copier does not wait for a bell that its predecessor may have taken */
rest:
#ifndef CHECK_REQUEST
                atomic { bell || AGAIN -> bell = false };
#endif
look:
                atomic {
                        stable = (w_phase == STABLE);
                        my_seq[i] = w_seq
                };
                atomic {
                        my_wanted[i] = wanted_seq;
                        if
#ifdef CHECK_REQUEST
                        :: stable && OWED ->
#else
                        :: (OWED || AGAIN) && !stable -> /* cut_copy_begin: BUSY, update_end will ring */
#ifndef W_PROGRESS_BY_CHUNK
                                detached = false;
#endif
                                my_seq[i] = 0;
                                my_wanted[i] = 0;
                                goto rest
                        :: (OWED || AGAIN) && stable && claims == CLAIMS_MAX -> /* declined until seq moves */
                                ANSWER(my_wanted[i]);
#ifdef CHECK_POSTMORTEM
                                again = false;
#endif
                                stable = false;
                                my_seq[i] = 0;
                                my_wanted[i] = 0;
                                goto rest
                        :: (OWED || AGAIN) && stable && claims < CLAIMS_MAX ->
#endif
                                stable = false
#ifndef W_PROGRESS_BY_CHUNK
                                ;
                                detached = false /* progress: alive and willing, the gate waits for it again */
#endif
                        :: else -> stable = false; my_seq[i] = 0; my_wanted[i] = 0; goto rest
                        fi
                };
#ifdef DECLINES
                if
                :: skip
                :: goto decline
                fi;
#endif
                atomic { /* cut_copy_begin */
                        if
                        :: w_seq == my_seq[i] && w_phase == STABLE ->
                                w_phase = COPYING;
#ifndef CHECK_REQUEST
                                claims++;
#endif
                                holder = i
                        :: else -> LOOK_AGAIN
                        fi
                };
                atomic {
                        ANSWER(my_seq[i]);
#ifdef CHECK_POSTMORTEM
                        again = false;
#endif
                        my_wanted[i] = 0
                };
                atomic { /* cut_copy_continue, then the chunk */
                        if
                        :: MINE -> detached = false
                        :: else -> LOOK_AGAIN
                        fi
                };
                atomic { /* cut_copy_end */
                        if
                        :: MINE ->
                                assert(w_seq == my_seq[i]); /* P2 */
                                w_phase = STABLE;
                                holder = NOBODY;
                                my_seq[i] = 0
#if defined(CHECK_COPIER) || defined(CHECK_POSTMORTEM)
                                ;
                                published = true
#endif
                        :: else -> LOOK_AGAIN
                        fi
                };
#ifdef CHECK_COPIER
                published = false;
#endif
                goto look;
#ifdef DECLINES
decline:
                atomic { /* only what it has seen */
                        ANSWER(my_wanted[i]);
#ifdef CHECK_POSTMORTEM
                        again = false;
#endif
                        LOOK_AGAIN
                };
#endif
                skip
        }
#ifndef CHECK_REQUEST
        unless { life == KILLED };
        atomic {
                life = ENDED;
                stable = false;
#ifdef CHECK_COPIER
                published = false;
#endif
                my_seq[i] = 0;
                my_wanted[i] = 0
        };
        goto idle
#endif
}

active proctype cairnd()
{
#ifdef CHECK_REQUEST
        atomic { run copier(0); run copier(1) };
#else
        run copier(0);
#endif
        do
        :: /* a demanded cut: cut_request, ring */
#ifdef CHECK_POSTMORTEM
                atomic { stopped && life == RUNNING -> asked_seq = w_seq };
#elif defined(CHECK_REQUEST)
                atomic { asked_seq = (w_phase == UPDATING -> w_seq + 1 : w_seq) };
#else
                atomic { life == RUNNING -> asked_seq = (w_phase == UPDATING -> w_seq + 1 : w_seq) };
#endif
#ifdef W_REQUEST_NO_RING
                if
                :: w_phase == UPDATING -> /* "update_end will ring": it may have looked already */
                        atomic { MAXIMUM(wanted_seq, asked_seq); asked_seq = 0 }
                :: else ->
                        atomic { MAXIMUM(wanted_seq, asked_seq); asked_seq = 0; bell = true }
                fi
#else
                atomic {
#if !defined(W_NO_AGAIN) && defined(CHECK_POSTMORTEM)
                        if
                        :: w_phase == STABLE && answered_seq >= asked_seq -> again = true
                        :: else
                        fi;
#endif
                        MAXIMUM(wanted_seq, asked_seq);
                        asked_seq = 0
                };
#ifndef CHECK_REQUEST
                atomic {
                        if
                        :: w_phase != UPDATING -> bell = true /* read again after wanted_seq was raised */
                        :: else
                        fi
                }
#endif
#endif
#ifdef CHECK_REQUEST
        :: atomic { w_phase == COPYING -> w_phase = STABLE; holder = NOBODY }
#else
        :: atomic { KILLS && life == RUNNING ->
#ifdef CHECK_POSTMORTEM
                kills++;
#endif
                life = KILLED }
        :: life == ENDED ->
                atomic {
                        if
                        :: w_phase == COPYING -> w_phase = STABLE; holder = NOBODY
                        :: else
                        fi
                };
                life = RUNNING
#endif
#ifdef CHECK_TRAINER
        :: goto halted
#endif
#ifdef CHECK_COPIER
        :: atomic { outage -> outage = false }
        :: !outage && life == RUNNING /* nor must it ask for ever */
#endif
        od;
#ifdef CHECK_TRAINER
halted:
        false
#endif
}

#ifdef CHECK_TRAINER
/* P3: whatever stops, update follows update. */
ltl trainer_goes_on { ([]<> updating) && ([]<> !updating) }
#endif
#ifdef CHECK_COPIER
/* P4: requests that do not end are served, once the outage has ended. */
ltl copier_gets_its_cut { [] (outage || ([]<> OWED -> <> published)) }
#endif
#ifdef CHECK_POSTMORTEM
/* P4: the last state of a trainer that stopped outside an update is taken. */
ltl last_state_is_taken { [] (stopped -> <> published) }
#endif
