/* SPDX-License-Identifier: Apache-2.0
 *
 * saver.h - the saver: one child of cairnd per session. It copies cuts into staging, writes them,
 * reads checkpoints back for a restore. A bus error, a device error or an OOM kill here costs a
 * respawn and one snapshot.
 *
 *   main thread   commands from cairnd, the copier's eventfd, copying (copier.c), CRCs, manifest
 *   I/O thread    owns the ring (ring.c, the only file that touches io_uring); never computes
 *
 * Started as `cairnd --saver` with the socketpair as descriptor 3. Messages are plain structs (the
 * same binary on both ends) over SEQPACKET, descriptors by SCM_RIGHTS. The saver ends at
 * end-of-file.
 *
 *   cairnd -> saver                                    saver -> cairnd
 *   SAVER_SETUP   fds: page, copier eventfd            SAVER_READY
 *   SAVER_SLABS   fds: slabs first.. (batches of 8)
 *   SAVER_SEAL    fds: inventory, host state, staging  SAVER_SEALED {status, image bytes, rate}
 *     and where the trainer copies: its socket (push.h), its pidfd
 *   SAVER_ARM     fds: parcel of data, manifest        (nothing: the next cut may be taken)
 *   SAVER_TAKE    {seq}: a cut at or after it is       (as for a request in the page)
 *                 wanted, even if it was answered
 *                 (declined, void) before; {ending}:
 *                 of a trainer that died
 *     with {hold}: only the claim of a group's cut,  SAVER_HELD {attempt, seq, step}: the state
 *                 at {step} or later                 stands still, nothing is copied
 *   SAVER_GO      all ranks are held at one step     (then as below)
 *   SAVER_RELEASE let go of it, want it no more      SAVER_VOID, where something was held
 *                                                      SAVER_CUT {attempt, seq, step}: copied
 *                                                      SAVER_VOID {seq, status}: still armed
 *                                                      SAVER_WRITTEN {status, step, bytes, uuid}:
 *                                                      data and manifest (temporary name) synced
 *   SAVER_DISARM  {attempt}: give its files back; a    SAVER_DISARMED {attempt}, after the VOID
 *                 copy or write under way is not wanted  (the copy) or WRITTEN {VOID} (the write)
 *   SAVER_RESTORE fds: plan, then SAVER_FILES {first, count, flush} of the ranks that it needs, at
 *   most SAVER_FILES_MAX before a flush: SAVER_PART, and after the last range
 *                                                      SAVER_RESTORED {status, bytes, ns}
 *                 fds: parcel of data files
 *
 * While a state is held any order but GO lets go of it first. A hold ends by itself after
 * SAVER_HOLD_NS, or when the gate's deadline expires. A write that is given up ends with what
 * storage has in hand, RING_DEPTH requests at most, or one sync: that cannot be called back.
 *
 * Storage that does not answer: a job whose transfers have not ended storage_timeout_ns
 * (SAVER_SETUP) and some time a byte after its begin is given up, and so is the saver: it says
 * `stuck` and ends, as far as it can; cairnd starts another one with new staging. Its own staging
 * and files are never used again.
 *
 * Claiming rule: a saver claims a request only when it is armed (files open), sealed with the
 * page's present seal_number and its staging is free; unarmed or writing it declines with BUSY; an
 * unknown seal is declined with STALE.
 */
#ifndef CAIRN_AGENT_SAVER_H
#define CAIRN_AGENT_SAVER_H

#include "base/clock.h"
#include "format/cut.h"
#include "format/file.h"
#include "format/host_state.h"
#include "format/plan.h"

#define SAVER_SOCKET_FD 3
#define SAVER_HOLD_NS (30 * NSEC_PER_SEC)

/* How the trainer stood when a cut was taken, as the manifest says it. */
enum saver_ending_kind {
        ENDING_ALIVE = 0,
        ENDING_EXITED = 1,
        ENDING_SIGNALLED = 2,
        ENDING_UNKNOWN = 3
};
struct saver_ending {
        enum saver_ending_kind kind;
        int32_t code; /* exit status or signal */
        bool suspect; /* the state may have been scribbled on: never chosen by itself */
};

#define SAVER_FILES_MAX 64 /* open at a time for a restore */

enum saver_verb {
        SAVER_SETUP = 1,
        SAVER_READY,
        SAVER_SLABS,
        SAVER_SEAL,
        SAVER_SEALED,
        SAVER_ARM,
        SAVER_TAKE,
        SAVER_HELD,
        SAVER_GO,
        SAVER_RELEASE,
        SAVER_DISARM,
        SAVER_DISARMED,
        SAVER_CUT,
        SAVER_VOID,
        SAVER_WRITTEN,
        SAVER_RESTORE,
        SAVER_FILES,
        SAVER_PART,
        SAVER_RESTORED
};
struct saver_message {
        enum saver_verb verb;
        int status;
        struct cairn_error error;
        char run[RUN_NAME_BYTES_MAX + 1];
        uint64_t generation, session_id, seal, seq, bytes, duration_ns, rate_bytes_per_sec;
        uint64_t storage_timeout_ns;
        int64_t step;
        uint32_t rank, world, attempt, first, count;
        uint64_t slab_bytes[8];
        uint32_t slab_kind[8];
        uint8_t data_uuid[16];
        bool warned; /* SAVER_WRITTEN, SAVER_RESTORED: fell back; `error` says why, once */
        uint64_t non_finite_count;
        bool hold;  /* SAVER_TAKE; SAVER_VOID of one that was held */
        bool flush; /* SAVER_FILES: these and those before them are read, then closed */
        bool stuck; /* WRITTEN, RESTORED: transfers never ended; the saver goes, others come */
        struct saver_ending ending; /* SAVER_TAKE of a dead trainer; SAVER_CUT repeats it */
};
/* The saver's main: returns its exit status. */
int saver_main(int socket);

/* ring.h, staging.h, source.h, copier.h, writer.h and reader.h belong to the saver alone. */

#endif
