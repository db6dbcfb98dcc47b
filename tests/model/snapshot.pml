/* SPDX-License-Identifier: Apache-2.0
 *
 * snapshot.pml - the cut protocol (format/cut.h) for spin, first half: is what gets published a cut? The second half,
 * request.pml, asks who waits for whom. `run` verifies both exhaustively, and each weakened variant (-DW_*) until the
 * property that it breaks is reported. README.md: properties, variants, findings.
 *
 * TRANSITIONS. word = seq, attempt, phase; every change is one compare-and-swap from a value that was read.
 *
 *   who      from -> to                   what must be true or done
 *   trainer  STABLE -> UPDATING           Gate: no request with answered_seq < wanted_seq <= seq; or this gate has
 *                                         expired, or the client is detached.
 *   trainer  COPYING -> UPDATING          The gate has expired, or the client is detached. attempt stays.
 *   trainer  UPDATING -> STABLE, seq+1    Before: state finished, slot (seq+1)%2 published, a scheduled request stored
 *    side                                 in wanted_seq. After: load wanted_seq, ring if it is unanswered, whoever
 *                                         asked.
 *   copier   STABLE -> COPYING,           Before: word read, then owner found to be this saver (or: KILL_FIRST below);
 *            attempt+1                    own copies into the buffer ended; ledger row COPYING. After: answered_seq
 *                                         raised to seq.
 *   copier   STABLE -> STABLE,            cut_decline: answered_seq raised to the wanted_seq that it read, not to the
 *            attempt+1                    word's seq. The new attempt only wakes the gate.
 *   copier   COPYING -> STABLE            After the last copy has ended without error and slot seq%2 was found to be of
 *                                         seq. Then ledger row COPYING -> HELD by compare-and-swap, and only that tells
 *                                         others that the snapshot is valid: never the word, which looks the same after
 *                                         a revocation.
 *   cairnd   COPYING -> STABLE            Before: owner taken away, or the saver killed. attempt stays.
 *   cairnd   STABLE -> STABLE, attempt+1  The fence: the same, against a saver between its read and its claim. In
 *                                         UPDATING nothing is to do, the next STABLE has another seq. After either:
 *                                         ledger rows COPYING -> ABANDONED by compare-and-swap, then a successor, in
 *                                         another buffer until the old process is reaped and its copies have ended.
 *
 * ORDER. acquire and release suffice for the data: the copier's reads precede its final swap, which the trainer's next
 * STABLE -> UPDATING acquires before it writes; if the final swap fails, what was read is thrown away. Spin's memory is
 * sequentially consistent, and three store-then-load pairs need that in the code too (seq_cst on both sides):
 *   update_end swaps the word, then loads wanted_seq  /  cut_request raises wanted_seq, then loads the word;
 *   cairnd takes owner away, then loads the word      /  a copier swaps the word, and next time loads owner;
 *   the gate says that it sleeps, then looks again    /  a copier swaps or answers, then looks for a sleeper.
 * wanted_seq and answered_seq change by atomic maximum only.
 *
 * ABSTRACTIONS. seq is unbounded: at SEQ_TOP all variables that hold one are lowered by 2, which keeps the differences
 * between living values and the parity of the slots; values long past collapse on 0, which equals no present one.
 * attempt starts from 0 at each seq (only equality at one seq matters) and is counted modulo ATTEMPTS. Any gate may have
 * expired and a saver claims whenever it likes: more than requests and deadlines allow. A stop or a delay is a
 * scheduling choice, SIGKILL is life = KILLED. Copies land at any later time, even after their saver's death: memcpy,
 * DMA and io_uring alike. The contents of one buffer are followed; the other saver's are the same by symmetry.
 * SMALL leaves out kills, restarts of cairnd, declines and copies given up: enough to catch the weakened variants.
 */
#define STABLE 0
#define UPDATING 1
#define COPYING 2
/* staging_state, as far as validity is concerned */
#define FREE 0
#define FILLING 1 /* STAGING_COPYING */
#define HELD 2
#define ABANDONED 3
/* life of a saver process */
#define ENDED 0 /* executes nothing any more; reaped when a successor takes its place */
#define RUNNING 1
#define KILLED 2

#ifndef ATTEMPTS
#define ATTEMPTS 4 /* 2^22 */
#endif
#ifndef CLAIMS_MAX
#define CLAIMS_MAX (ATTEMPTS - 1) /* changes of attempt at one seq: claims and fences together */
#endif
#define SEQ_TOP 3
#define SAVERS 2
#define NOBODY 2

/* ---- the control page ---- */
byte w_seq, w_attempt;
byte w_phase = UPDATING;
byte claims;         /* changes of attempt at this seq */
byte owner = NOBODY; /* the saver that may claim */
byte ledger, row_seq;
#ifdef W_WORD_IS_PROOF
byte row_attempt;
#endif

/* ---- trainer's memory ---- */
byte state0, state1; /* one state: a cut at seq is whole if both hold seq */
byte slot[2];        /* host state: the seq it belongs to */

/* ---- staging: one buffer stands for each; the other saver's contents are the same by symmetry ---- */
bool flight0, flight1;           /* copies under way */
bool image0, image1, image_host; /* holds these bytes of the cut at row_seq */
#define WHOLE (image0 && image1 && image_host)
#ifdef W_STAGING_REUSED
bool mine[SAVERS];
#define USES(i) mine[i]
#else
#define USES(i) (i == 0)
#endif

#ifdef W_NO_DRAIN
#define DRAINED true
bool late; /* a copy of a voided attempt has read its bytes and will write them */
#else
#define DRAINED (!flight0 && !flight1)
#endif

/* KILL_FIRST: cairnd sends SIGKILL before it revokes, so no saver executes anything afterwards: then neither the owner
 * field nor the fence is needed. Without it a saver that was only given up (stopped, or not seen since cairnd was
 * restarted) may come back. */
#ifdef KILL_FIRST
#define W_NO_OWNER
#define W_NO_FENCE
#define MAY_REPLACE (life[owner] != RUNNING)
#else
#define MAY_REPLACE true
#endif
#ifdef W_NO_OWNER
#define OWNS(i) true
#else
#define OWNS(i) (owner == i)
#endif

/* ---- savers ---- */
byte life[SAVERS];
byte my_seq[SAVERS], my_attempt[SAVERS]; /* the word that this saver read or holds */
bool fenced[SAVERS];                     /* ghost: this incarnation's revocation is complete */
byte holder = NOBODY;                    /* ghost: who made the claim that is in the word */

#define WORD_IS(s, a, p) (w_seq == (s) && w_attempt == (a) && w_phase == (p))
#define MINE WORD_IS(my_seq[i], my_attempt[i], COPYING)
/* Contents of a void copy are never read again; forgetting them saves states. Not where they are. */
#if defined(W_STAGING_REUSED) || defined(W_WORD_IS_PROOF) || defined(W_LEDGER_EARLY)
#define DISCARD skip
#else
#define DISCARD if :: USES(i) && ledger != HELD -> row_seq = 0; forget() :: else fi
#endif
#define LOOK_AGAIN my_seq[i] = 0; my_attempt[i] = 0; DISCARD; goto look
#define LOWER(v) v = (v >= 2 -> v - 2 : 0)

inline forget()
{
        image0 = false;
        image1 = false;
        image_host = false
}

/* A word read at an earlier seq equals none to come: its attempt is forgotten. At SEQ_TOP all seqs get
 * smaller by 2. */
inline new_seq()
{
        w_attempt = 0;
        claims = 0;
        my_attempt[0] = 0;
        my_attempt[1] = 0;
#ifdef W_WORD_IS_PROOF
        row_attempt = 0;
#endif
        if
        :: w_seq >= SEQ_TOP ->
                LOWER(w_seq);
                LOWER(state0);
                LOWER(state1);
                LOWER(slot[0]);
                LOWER(slot[1]);
                LOWER(row_seq);
                LOWER(my_seq[0]);
                LOWER(my_seq[1])
        :: else
        fi
}

active proctype trainer()
{
        goto update; /* the page starts UPDATING: a restore, or the decision that there is none */

gate: /* cut_update_begin. Any gate may have expired. A swap that fails changes nothing: load and swap are one step. */
        atomic {
                if
                :: w_phase == STABLE -> w_phase = UPDATING
                :: w_phase == COPYING ->
#ifndef W_EXPIRED_NO_SWAP
                        w_phase = UPDATING;
                        holder = NOBODY
#endif
                fi
        };
update:
        state0 = w_seq + 1;
        state1 = w_seq + 1;
#ifndef W_HOST_LATE
        slot[(w_seq + 1) & 1] = w_seq + 1;
#endif
        atomic { /* cut_update_end */
#ifndef W_EXPIRED_NO_SWAP
                assert(w_phase == UPDATING); /* P2: nobody else leaves UPDATING */
#endif
                w_seq++;
                w_phase = STABLE;
                new_seq()
        };
#ifdef W_HOST_LATE
        slot[w_seq & 1] = w_seq;
#endif
        goto gate
}

/* Copies land at any time, whatever became of their saver, with what the state holds then. */
active proctype engine()
{
        do
        :: d_step { flight0 -> image0 = (state0 == row_seq); flight0 = false }
        :: d_step { flight1 -> image1 = (state1 == row_seq); flight1 = false }
#ifdef W_NO_DRAIN
        :: d_step { late -> image0 = false; late = false }
#endif
        od
}

proctype saver(byte i)
{
        bool stable;

idle:
        life[i] != ENDED;
        {
                skip;
look:
                atomic {
                        my_seq[i] = w_seq;
                        my_attempt[i] = w_attempt;
                        stable = (w_phase == STABLE && claims < CLAIMS_MAX)
                };
                atomic {
                        if
                        :: !OWNS(i) -> goto gone
                        :: OWNS(i) && stable -> stable = false
#ifndef SMALL
                        :: OWNS(i) && stable && WORD_IS(my_seq[i], my_attempt[i], STABLE) -> /* cut_decline */
                                w_attempt = (w_attempt + 1) % ATTEMPTS;
                                claims++;
                                stable = false;
                                LOOK_AGAIN
#endif
                        :: else -> LOOK_AGAIN
                        fi
                };
                if
                :: atomic { USES(i) && DRAINED -> /* own copies of a voided attempt have ended */
#ifdef W_NO_DRAIN
                        late = late || flight0;
                        flight0 = false;
                        flight1 = false;
#endif
                        if
                        :: ledger == ABANDONED -> goto gone
                        :: else
                        fi;
                        ledger = FILLING;
                        row_seq = my_seq[i];
#ifdef W_WORD_IS_PROOF
                        row_attempt = (my_attempt[i] + 1) % ATTEMPTS;
#endif
                        forget() }
                :: !USES(i)
                fi;
                atomic { /* cut_copy_begin */
                        if
                        :: WORD_IS(my_seq[i], my_attempt[i], STABLE) ->
                                assert(!fenced[i]); /* P6: no claim after the revocation */
                                w_phase = COPYING;
                                claims++;
#ifndef W_NO_BUMP
                                w_attempt = (w_attempt + 1) % ATTEMPTS;
#endif
                                my_attempt[i] = w_attempt;
                                holder = i
                        :: else -> LOOK_AGAIN
                        fi
                };
                if
                :: USES(i) ->
                        atomic { /* cut_copy_continue, then the chunk */
                                if
                                :: MINE -> flight0 = true
                                :: else -> LOOK_AGAIN
                                fi
                        };
                        atomic {
                                if
                                :: MINE -> flight1 = true
                                :: else -> LOOK_AGAIN
                                fi
                        };
                        atomic {
#ifndef W_END_EARLY
                                !flight0 && !flight1;
#endif
#ifdef W_HOST_NEWEST
                                image_host = ((slot[0] > slot[1] -> slot[0] : slot[1]) == row_seq)
#else
                                image_host = (slot[my_seq[i] & 1] == row_seq);
                                if
                                :: !image_host ->
                                        assert(!MINE); /* P1: a held cut has its host state */
                                        LOOK_AGAIN
                                :: else
                                fi
#endif
                        }
                :: !USES(i)
                fi;
#ifndef SMALL
                if
                :: skip
                :: atomic { MINE -> w_phase = STABLE; holder = NOBODY; LOOK_AGAIN } /* cut_copy_abandon */
                fi;
#endif
#ifdef W_LEDGER_EARLY
                if
                :: atomic { USES(i) && ledger == FILLING -> ledger = HELD }
                :: USES(i) && ledger != FILLING -> goto gone
                :: !USES(i)
                fi;
#endif
                atomic { /* cut_copy_end */
                        if
#if defined(W_END_STORE)
                        :: true ->
#elif defined(W_END_NO_ATTEMPT)
                        :: w_seq == my_seq[i] && w_phase == COPYING ->
#else
                        :: MINE ->
#endif
                                assert(!USES(i) || (WHOLE && row_seq == my_seq[i])); /* P1 */
                                assert(w_seq == my_seq[i]);                          /* P2 */
                                assert(holder == i && !fenced[i]);                   /* P2, P5, P6 */
                                w_phase = STABLE;
                                holder = NOBODY
                        :: else -> LOOK_AGAIN
                        fi
                };
                if
                :: USES(i) ->
#ifndef W_LEDGER_EARLY
                        atomic {
#ifdef W_LEDGER_STORE
                                assert(ledger == FILLING); /* P2: one answer for one attempt */
#endif
                                if
                                :: ledger == FILLING -> ledger = HELD
                                :: else -> goto gone /* cairnd came first: the snapshot is lost, not wrong */
                                fi
                        };
#endif
                        atomic { /* written out and committed */
                                assert(WHOLE); /* P1, P6 */
                                ledger = FREE;
                                row_seq = 0;
                                forget()
                        }
                :: !USES(i)
                fi;
                atomic { LOOK_AGAIN };
gone:
                life[i] = KILLED;
                false
        } unless { life[i] == KILLED };
        atomic {
                life[i] = ENDED;
                DISCARD;
                stable = false;
                my_seq[i] = 0;
                my_attempt[i] = 0
        };
        goto idle
}

/* What cairnd must know is in the page: a restart of cairnd is the loss of its local variables, which may
 * happen between any two steps. */
active proctype cairnd()
{
        byte s;
        bool revoked; /* no saver before the next owner can claim or publish any more */

        atomic { run saver(0); run saver(1) };
        do
#ifndef SMALL
        :: atomic { life[0] == RUNNING -> life[0] = KILLED } /* any saver dies, also an abandoned one */
        :: atomic { life[1] == RUNNING -> life[1] = KILLED }
        :: atomic { revoked -> revoked = false } /* cairnd restarts and does not know how far it came */
#endif
        :: atomic { owner != NOBODY -> /* dead, or alive and given up */
                if
                :: MAY_REPLACE -> owner = NOBODY
                :: else
                fi }
        :: atomic { owner == NOBODY && !revoked -> /* cut_copy_revoke; load and swap are one step as above */
                if
                :: w_phase == COPYING -> w_phase = STABLE; holder = NOBODY
#ifdef W_NO_FENCE
                :: w_phase == STABLE
#else
                :: w_phase == STABLE && claims < CLAIMS_MAX -> /* else no attempt is left: wait for a new seq */
                        w_attempt = (w_attempt + 1) % ATTEMPTS;
                        claims++
#endif
                :: w_phase == UPDATING
                fi;
                revoked = true;
                fenced[0] = true;
                fenced[1] = true }
        :: atomic { revoked ->
                if
                :: ledger == FILLING -> /* what is not HELD by now never will be */
#ifdef W_WORD_IS_PROOF
                        if
                        :: WORD_IS(row_seq, row_attempt, STABLE) -> assert(WHOLE) /* P1 */
                        :: else
                        fi;
#endif
                        ledger = ABANDONED
                :: else
                fi;
                /* A buffer stays with its process until that has been reaped and its copies have ended. */
                if
                :: life[0] == ENDED && !flight0 && !flight1 ->
                        if
                        :: ledger == HELD -> assert(WHOLE) /* P1: cairnd has it written out */
                        :: else
                        fi;
                        ledger = FREE;
                        row_seq = 0;
                        forget();
                        s = 0
#ifdef W_STAGING_REUSED
                        ;
                        mine[0] = true
#endif
                :: life[1] == ENDED -> s = 1
#ifdef W_STAGING_REUSED
                        ;
                        mine[1] = true;
                        ledger = FREE
#endif
                fi;
                owner = s;
                fenced[s] = false;
                revoked = false;
                if
                :: life[s] = RUNNING
#ifndef SMALL
                :: skip /* cairnd restarts before it has started the saver */
#endif
                fi;
                s = 0 }
        od
}
