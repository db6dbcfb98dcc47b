/* SPDX-License-Identifier: Apache-2.0
 *
 * What every call begins and ends with, and the small calls that only look.
 */
#include "client/handle.h"
#include "base/cleanup.h"
#include "format/crc32c.h"
#include "format/dtype.h"
#include <errno.h>
#include <inttypes.h>
#include <string.h>

int handle_check(struct cairn *c, const char *operation, struct cairn_error *reterr) {
        if (c->fork_guard && *c->fork_guard == 0)
                return error_set(
                        reterr, CAIRN_ERR_API, operation, c->run,
                        "this is a forked child: only the process that opened the handle uses it");
        if (atomic_load_explicit(&c->poisoned, memory_order_acquire))
                return error_set(
                        reterr, CAIRN_ERR_FATAL, operation, c->run,
                        "the handle is poisoned by an earlier error; training may go on without "
                        "checkpoints");
        if (!c->opened)
                return error_set(reterr, CAIRN_ERR_API, operation, c->run, "cairn_open failed");
        return 0;
}

int handle_end(struct cairn *c, int r, const struct cairn_error *e) {
        if (r >= 0)
                return r;
        (void) pthread_mutex_lock(&c->error_lock);
        c->error = *e;
        c->error.status = r;
        if (r != CAIRN_ERR_MISMATCH)
                textbuf_clear(&c->details);
        (void) pthread_mutex_unlock(&c->error_lock);
        return r;
}

int handle_poison(struct cairn *c, const char *operation, const char *what,
                  struct cairn_error *reterr) {
        atomic_store_explicit(&c->poisoned, true, memory_order_release);
        return error_set(reterr, CAIRN_ERR_FATAL, operation, c->run,
                         "%s; the session is given up, training may go on without checkpoints",
                         what);
}

int handle_wrong_stage(struct cairn *c, const char *operation, struct cairn_error *reterr) {
        static const char *const expected[] = {
                [HANDLE_FAILED] = "cairn_open failed",
                [HANDLE_OPENED] = "cairn_seal comes next",
                [HANDLE_SEALED] = "cairn_restore comes next",
                [HANDLE_STABLE] = "cairn_update_begin comes next",
                [HANDLE_UPDATING] = "cairn_update_end comes next",
        };
        return error_set(reterr, CAIRN_ERR_API, operation, c->run, "not in this order: %s",
                         expected[c->stage]);
}

void handle_ring(struct cairn *c) {
        uint64_t one = 1;
        ssize_t n = write(c->ring_fd, &one, sizeof one);
        (void) n; /* full means that it is ringing already */
}

/* ---- debug_mutation ---- */

#define DIGEST_PART_BYTES (4 * MiB)

static bool is_watched(const struct tensor *t) {
        return t->mutates == CAIRN_IN_UPDATE && t->alias_of < 0 && t->bytes > 0;
}

/* Through a copy where the host cannot read it. */
static int digest(struct cairn *c, const struct tensor *t, uint32_t *ret,
                  struct cairn_error *reterr) {
        *ret = 0;
        if (!c->stream.device) {
                *ret = crc32c(0, t->data, t->bytes);
                return 0;
        }
        _cleanup_free_ void *part = malloc(DIGEST_PART_BYTES);
        if (!part)
                return error_set_errno(reterr, ENOMEM, "digest tensor", t->name);
        for (uint64_t at = 0, n; at < t->bytes; at += n) {
                n = t->bytes - at < DIGEST_PART_BYTES ? t->bytes - at : DIGEST_PART_BYTES;
                TRY(c->device->ops->copy_async(c->device, NULL, part, (char *) t->data + at, n,
                                               reterr));
                TRY(c->device->ops->synchronize(c->device, clock_now(c->clock) + STREAM_WAIT_NS,
                                                reterr));
                *ret = crc32c(*ret, part, n);
        }
        return 0;
}

int handle_digest_take(struct cairn *c, struct cairn_error *reterr) {
        for (size_t i = 0; c->debug_mutation && i < c->registry.tensor_count; i++) {
                struct tensor *t = &c->registry.tensors[i];
                if (is_watched(t))
                        TRY(digest(c, t, &t->digest, reterr));
        }
        return 0;
}

int handle_digest_compare(struct cairn *c, struct cairn_error *reterr) {
        for (size_t i = 0; c->debug_mutation && i < c->registry.tensor_count; i++) {
                const struct tensor *t = &c->registry.tensors[i];
                uint32_t now;
                if (!is_watched(t))
                        continue;
                TRY(digest(c, t, &now, reterr));
                if (now == t->digest)
                        continue;
                int r = error_set(
                        reterr, CAIRN_ERR_API, "begin update", t->name,
                        "it was written after cairn_update_end of step %" PRId64
                        ": move the write into the update, or register it with mutates anytime",
                        c->step);
                /* Told once: the next call goes on from what is there now. */
                TRY(handle_digest_take(c, NULL));
                return r;
        }
        return 0;
}

/* ---- calls that only look ---- */

const char *cairn_error_text(const struct cairn *handle) {
        struct cairn *c = (struct cairn *) (uintptr_t) handle;
        char line[sizeof(struct cairn_error) * 4];
        if (!c)
                return "there is no handle: memory is out, or cairn_open was not called";
        (void) pthread_mutex_lock(&c->error_lock);
        textbuf_clear(&c->error_string);
        if (c->error.status < 0) {
                textbuf_add(&c->error_string, "%s", error_format(&c->error, line, sizeof line));
                if (c->details.length)
                        textbuf_add(&c->error_string, "\n%s", textbuf_string(&c->details));
        }
        const char *text = textbuf_string(&c->error_string);
        (void) pthread_mutex_unlock(&c->error_lock);
        return text;
}

int cairn_exit_code(const struct cairn *handle) {
        struct cairn *c = (struct cairn *) (uintptr_t) handle;
        if (!c)
                return status_exit_code(CAIRN_ERR_NOMEM);
        (void) pthread_mutex_lock(&c->error_lock);
        int code = status_exit_code(c->error.status);
        (void) pthread_mutex_unlock(&c->error_lock);
        return code;
}

const char *cairn_version(void) {
        return CAIRN_VERSION_STRING;
}

const char *cairn_status_name(int status) {
        return status_name(status);
}

uint64_t cairn_dtype_bytes(enum cairn_dtype dtype) {
        const struct dtype_info *info = dtype_info(dtype);
        return info ? info->bytes : 0;
}

const char *cairn_dtype_name(enum cairn_dtype dtype) {
        const struct dtype_info *info = dtype_info(dtype);
        return info ? info->name : NULL;
}

/* An output struct of a caller built against an older header is shorter. */
static int copy_out(void *target, const void *source, size_t source_bytes, const char *operation,
                    struct cairn_error *reterr) {
        size_t bytes;
        if (!target)
                return error_set(reterr, CAIRN_ERR_API, operation, "", "the struct is NULL");
        memcpy(&bytes, target, sizeof bytes);
        if (bytes < sizeof bytes)
                return error_set(reterr, CAIRN_ERR_API, operation, "",
                                 "the struct's size is not set");
        if (bytes > source_bytes)
                bytes = source_bytes;
        memcpy((char *) target + sizeof bytes, (const char *) source + sizeof bytes,
               bytes - sizeof bytes);
        return 0;
}

int cairn_session(struct cairn *c, struct cairn_session *ret) {
        struct cairn_error e = CAIRN_ERROR_INIT;
        if (!c)
                return CAIRN_ERR_API;
        int r = handle_check(c, "look at session", &e);
        if (r < 0)
                return handle_end(c, r, &e);
        struct cairn_session s = {
                .run = c->run,
                .checkpoint = c->checkpoint,
                .run_dir = c->run_dir,
                .checkpoint_step = c->checkpoint_step,
                .generation = c->generation,
                .restart = c->restart,
                .rank = c->rank,
                .world = c->world,
                .start = c->start,
                .every_steps = c->every_steps,
        };
        return handle_end(c, copy_out(ret, &s, sizeof s, "look at session", &e), &e);
}

const char *cairn_override(struct cairn *c, const char *key) {
        if (!c || !key || !c->opened)
                return NULL;
        for (size_t i = 0; i < c->override_count; i++)
                if (strcmp(c->overrides[i].key, key) == 0)
                        c->overrides_asked[i] = true;
        return pair_find(c->overrides, c->override_count, key);
}

int cairn_get_statistics(struct cairn *c, struct cairn_statistics *ret) {
        struct cairn_error e = CAIRN_ERROR_INIT;
        struct cairn_statistics s = {.committed_step = -1};
        if (!c)
                return CAIRN_ERR_API;
        int r = handle_check(c, "look at statistics", &e);
        if (r == 0 && c->page) {
                s.seq = cut_read(c->page).seq;
                s.committed_seq = atomic_load(&c->page->committed_seq);
                s.committed_step = atomic_load(&c->page->committed_step);
                s.stall_ns = atomic_load(&c->page->gate_stall_ns);
                s.gate_expired = atomic_load(&c->page->gate_expired_count);
                s.voids = atomic_load(&c->page->void_count);
                s.gate_deadline_ns = c->gate.deadline_duration_ns;
                s.reattached = atomic_load_explicit(&c->link.reattached, memory_order_relaxed);
        }
        if (r == 0)
                r = copy_out(ret, &s, sizeof s, "look at statistics", &e);
        /* The counters are there, and so is the news that this member was fenced. */
        if (r == 0 && c->link_ready)
                r = link_check(&c->link, &e);
        return handle_end(c, r, &e);
}
