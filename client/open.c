/* SPDX-License-Identifier: Apache-2.0
 *
 * cairn_open and cairn_close: who we are, where the agent is, what it decided.
 */
#include "base/cleanup.h"
#include "base/fault.h"
#include "client/generation_lock.h"
#include "client/handle.h"
#include "format/names.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#define OPEN_TIMEOUT_NS (120 * NSEC_PER_SEC)
#define OPEN_RETRY_NS (50 * NSEC_PER_MSEC)
#define STRINGS_BYTES_MAX (1 * MiB)
#define PAGE_BYTES 4096

void cairn_options_init(struct cairn_options *o, size_t size) {
        struct cairn_options defaults = CAIRN_OPTIONS_INIT;
        if (!o || size < sizeof o->size)
                return;
        memset(o, 0, size);
        memcpy(o, &defaults, size < sizeof defaults ? size : sizeof defaults);
        o->size = size;
}

/* ---- who we are ---- */

static int parse_rank(const char *name, uint32_t *ret, struct cairn_error *reterr) {
        const char *text = getenv(name);
        char *end;
        errno = 0;
        unsigned long value = strtoul(text, &end, 10);
        if (errno != 0 || end == text || *end || *text == '-' || value >= RANK_COUNT_MAX)
                return error_set(reterr, CAIRN_ERR_API, "open session", name,
                                 "\"%s\" is not a rank between 0 and %d", text, RANK_COUNT_MAX - 1);
        *ret = (uint32_t) value;
        return 0;
}

static int find_rank(struct cairn *c, int64_t rank, struct cairn_error *reterr) {
        if (rank >= RANK_COUNT_MAX || rank < -1)
                return error_set(reterr, CAIRN_ERR_API, "open session", "",
                                 "%" PRId64 " is not a rank between 0 and %d", rank,
                                 RANK_COUNT_MAX - 1);
        c->rank = rank >= 0 ? (uint32_t) rank : 0;
        if (rank >= 0)
                return 0;
        if (getenv("RANK"))
                return parse_rank("RANK", &c->rank, reterr);
        if (getenv("SLURM_PROCID"))
                return parse_rank("SLURM_PROCID", &c->rank, reterr);
        return 0;
}

static int find_identity(struct cairn *c, const struct cairn_options *o,
                         struct cairn_error *reterr) {
        const char *run = o->run ? o->run : getenv("CAIRN_RUN");
        const char *debug = getenv("CAIRN_DEBUG_MUTATION");
        c->debug_mutation = o->debug_mutation || (debug && strcmp(debug, "1") == 0);
        c->passive = o->without_checkpoints;
        TRY(find_rank(c, o->rank, reterr));
        if ((!run || !*run) && c->passive)
                return 0;
        if (!run || !*run)
                return error_set(
                        reterr, CAIRN_ERR_API, "open session", "",
                        "the run has no name: start it with `cairn run`, or set CAIRN_RUN");
        TRY(name_check_run(run, reterr));
        (void) snprintf(c->run, sizeof c->run, "%s", run);
        return 0;
}

/* ---- what the agent decided ---- */

static const char *keep(struct cairn *c, const ProtobufCBinaryData *b) {
        const char *copy = arena_strndup(&c->strings, b->len ? (const char *) b->data : "", b->len);
        return copy ? copy : "";
}

static int keep_pairs(struct cairn *c, Cairn__Control__Pair *const *pairs, size_t count,
                      struct pair **ret, size_t *ret_count, struct cairn_error *reterr) {
        struct pair *copies = arena_alloc(&c->strings, (count + 1) * sizeof *copies, 8);
        if (!copies)
                return error_set(reterr, CAIRN_ERR_NOMEM, "open session", c->run,
                                 "the agent's overrides are too long");
        for (size_t i = 0; i < count; i++) {
                copies[i].key = keep(c, &pairs[i]->key);
                copies[i].value = keep(c, &pairs[i]->value);
        }
        *ret = copies;
        *ret_count = count;
        return 0;
}

static int read_welcome(struct cairn *c, const Cairn__Control__Welcome *w, struct link_identity *id,
                        struct cairn_error *reterr) {
        static const char operation[] = "read the agent's welcome";
        if (w->mode != CAIRN_START_FRESH && w->mode != CAIRN_START_RESUME &&
            w->mode != CAIRN_START_INIT_FROM)
                return error_set(reterr, CAIRN_ERR_UNSUPPORTED, operation, c->run,
                                 "mode %" PRIu32
                                 " is unknown: agent and libcairn are of different versions",
                                 w->mode);
        if (w->world == 0 || w->world > RANK_COUNT_MAX || c->rank >= w->world)
                return error_set(reterr, CAIRN_ERR_MISMATCH, operation, c->run,
                                 "rank %" PRIu32 " is not in a world of %" PRIu32, c->rank,
                                 w->world);
        if (w->secret.len == 0 || w->secret.len > LINK_SECRET_BYTES_MAX)
                return error_set(reterr, CAIRN_ERR_CORRUPT, operation, c->run,
                                 "the secret's length is wrong");
        c->world = w->world;
        c->writers = (struct layout_ranks){.count = w->world};
        if (w->node_ranks && c->rank - w->node_first < w->node_ranks)
                c->writers = (struct layout_ranks){w->node_first, w->node_ranks};
        c->generation = w->generation;
        c->restart = w->restart;
        c->every_steps = w->every_steps;
        c->start = (enum cairn_start) w->mode;
        c->checkpoint = keep(c, &w->checkpoint);
        c->checkpoint_step = w->checkpoint.len ? w->checkpoint_step : -1;
        c->run_dir = keep(c, &w->run_dir);
        id->session_id = w->session_id;
        id->generation = w->generation;
        memcpy(id->secret, w->secret.data, w->secret.len);
        id->secret_bytes = w->secret.len;
        TRY(keep_pairs(c, w->overrides, w->n_overrides, &c->overrides, &c->override_count, reterr));
        c->overrides_asked = arena_alloc(&c->strings, c->override_count + 1, 1);
        if (!c->overrides_asked)
                return error_set(reterr, CAIRN_ERR_NOMEM, operation, c->run, "memory is missing");
        memset((void *) c->overrides_asked, 0, c->override_count + 1);
        return keep_pairs(c, w->conversions, w->n_conversions, &c->conversions,
                          &c->conversion_count, reterr);
}

static int map_page(struct cairn *c, int fd, struct cairn_error *reterr) {
        uint64_t bytes;
        TRY(wire_memfd_check(fd, F_SEAL_SHRINK, CONTROL_PAGE_BYTES, CONTROL_PAGE_BYTES, &bytes,
                             reterr));
        void *page = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
        if (page == MAP_FAILED)
                return error_set_errno(reterr, errno, "map control page", c->run);
        c->page = page;
        if (madvise(page, bytes, MADV_DONTFORK) < 0)
                return error_set_errno(reterr, errno, "keep control page from children", c->run);
        TRY(control_page_check(c->page, bytes, reterr));
        if (cut_read(c->page).phase != CUT_UPDATING)
                return error_set(reterr, CAIRN_ERR_CORRUPT, "check control page", c->run,
                                 "a new session's page is not in UPDATING");
        return 0;
}

/* ---- the connection ---- */

/* An agent that is just being restarted refuses or ends connections: try again for as long as the
 * open may take. Where nothing listens at all, waiting would only hide the answer; but a restart
 * takes the old socket away a moment before the new one is there, so that is looked at twice. */
static bool may_pass(int r, const struct cairn_error *e, unsigned *missing) {
        if (r == CAIRN_ERR_UNREACHABLE && e->system_code == ENOENT && e->object[0])
                return (*missing)++ == 0;
        return r == CAIRN_ERR_PEER ||
               (r == CAIRN_ERR_UNREACHABLE && e->system_code == ECONNREFUSED && e->object[0]);
}

static int greet(struct cairn *c, struct control *control, const char *path, int pid_fd,
                 uint64_t deadline_ns, Cairn__Control__Welcome **ret, struct wire_fds *ret_fds,
                 struct cairn_error *reterr) {
        Cairn__Control__Hello hello = CAIRN__CONTROL__HELLO__INIT;
        uint64_t refused_until_ns = clock_now(c->clock) + RECONNECT_NS;
        unsigned missing = 0;
        hello.kind = CAIRN__CONTROL__PEER_KIND__PEER_CLIENT;
        hello.run = (ProtobufCBinaryData){strlen(c->run), (uint8_t *) c->run};
        hello.rank = c->rank;
        for (;;) {
                struct cairn_error e = CAIRN_ERROR_INIT;
                int r = control_connect(control, path, &e);
                if (r == 0)
                        r = control_hello(control, &hello, &pid_fd, 1, deadline_ns, ret, ret_fds,
                                          &e);
                uint64_t now_ns = clock_now(c->clock);
                uint64_t until_ns = r == CAIRN_ERR_PEER ? deadline_ns : refused_until_ns;
                if (r == 0)
                        return 0;
                if (!may_pass(r, &e, &missing) || now_ns + OPEN_RETRY_NS >= until_ns) {
                        if (reterr)
                                *reterr = e;
                        return r;
                }
                c->clock->sleep_ns(c->clock->context, OPEN_RETRY_NS);
        }
}

static uint64_t open_deadline(const struct cairn *c, const struct cairn_options *o) {
        uint64_t timeout_ns = o->open_timeout_ns ? o->open_timeout_ns : OPEN_TIMEOUT_NS;
        uint64_t now_ns = clock_now(c->clock);
        return timeout_ns > UINT64_MAX - now_ns ? UINT64_MAX : now_ns + timeout_ns;
}

static int attach(struct cairn *c, struct control *control, const struct cairn_options *o,
                  struct cairn_error *reterr) {
        struct link_identity id = {.rank = c->rank};
        struct wire_fds fds = WIRE_FDS_INIT;
        Cairn__Control__Welcome *welcome = NULL;
        uint64_t deadline_ns = open_deadline(c, o);

        (void) snprintf(id.run, sizeof id.run, "%s", c->run);
        if (o->socket) {
                if (strlen(o->socket) >= sizeof id.path)
                        return error_set(reterr, CAIRN_ERR_API, "open session", o->socket,
                                         "the socket's path is too long");
                (void) snprintf(id.path, sizeof id.path, "%s", o->socket);
        } else
                TRY(wire_socket_path(c->run, id.path, sizeof id.path, reterr));
        _cleanup_close_ int pid_fd = (int) syscall(SYS_pidfd_open, getpid(), 0);
        if (pid_fd < 0)
                return error_set_errno(reterr, errno, "open session", "pidfd");
        TRY(greet(c, control, id.path, pid_fd, deadline_ns, &welcome, &fds, reterr));
        _cleanup_close_ int page_fd = wire_fds_take(&fds, 0);
        _cleanup_close_ int ring_fd = wire_fds_take(&fds, 1);
        wire_fds_done(&fds);
        if (page_fd < 0 || ring_fd < 0)
                return error_set(reterr, CAIRN_ERR_CORRUPT, "read the agent's welcome", c->run,
                                 "control page and eventfd are missing");
        TRY(read_welcome(c, welcome, &id, reterr));
        TRY(map_page(c, page_fd, reterr));
        c->ring_fd = ring_fd;
        return link_start(&c->link, control, &id, TAKE_FD(pid_fd), TAKE_FD(page_fd),
                          TAKE_FD(ring_fd), reterr);
}

/* ---- the handle ---- */

static struct cairn *handle_new(void) {
        struct cairn *c = calloc(1, sizeof *c);
        if (!c)
                return NULL;
        c->clock = &clock_system;
        c->ring_fd = c->generation_fd = -1;
        c->checkpoint = c->run_dir = "";
        c->checkpoint_step = -1;
        c->start = CAIRN_START_FRESH;
        c->world = 1;
        c->writers.count = 1;
        c->inventory = (struct inventory) INVENTORY_INIT;
        c->error = c->refused = (struct cairn_error) CAIRN_ERROR_INIT;
        c->gate.deadline_duration_ns = GATE_DEADLINE_NS_MIN;
        (void) pthread_mutex_init(&c->error_lock, NULL);
        arena_init(&c->strings, STRINGS_BYTES_MAX);
        (void) registry_init(&c->registry);
        return c;
}

/* A page that the kernel empties in a forked child: cheaper than asking for the pid at every call.
 */
static void guard_against_fork(struct cairn *c) {
        char *page =
                mmap(NULL, PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (page == MAP_FAILED)
                return;
        if (madvise(page, PAGE_BYTES, MADV_WIPEONFORK) < 0) {
                (void) munmap(page, PAGE_BYTES);
                return;
        }
        *page = 1;
        c->fork_guard = page;
}

static int open_device(struct cairn *c, const struct cairn_options *o, struct cairn_error *reterr) {
        if (o->device == CAIRN_DEVICE_HOST)
                return device_host.open(0, &c->device, reterr);
        if (o->device == CAIRN_DEVICE_CUDA)
                return device_cuda.open(o->device_ordinal, &c->device, reterr);
        return error_set(reterr, CAIRN_ERR_UNSUPPORTED, "open session", c->run,
                         "device %d is not one that this version knows", (int) o->device);
}

static void start_stream(struct cairn *c) {
        if (c->device->ops->class == DEVICE_CLASS_CUDA)
                stream_init(&c->stream, c->device, c->page, c->ring_fd, c->clock);
}

static int open_session(struct cairn *c, const struct cairn_options *o,
                        struct cairn_error *reterr) {
        struct control control;
        guard_against_fork(c);
        TRY(fault_init_environment(reterr));
        TRY(find_identity(c, o, reterr));
        TRY(open_device(c, o, reterr));
        slabs_init(&c->slabs, c->device);
        if (c->passive) {
                start_stream(c);
                c->stage = HANDLE_OPENED;
                c->opened = true;
                return 0;
        }
        c->link_ready = true;
        TRY(link_init(&c->link, c->clock, reterr));
        control_init(&control, c->clock);
        int r = attach(c, &control, o, reterr);
        control_done(&control);
        if (r == 0)
                r = generation_lock_take(&c->generation_fd, &c->link, c->run, c->generation,
                                         open_deadline(c, o), c->clock, reterr);
        if (r == 0) {
                start_stream(c);
                c->stage = HANDLE_OPENED;
                c->opened = true;
        }
        return r;
}

/* The caller's may be of an older version, or of a newer one. What is smaller than the first one
 * ever was is not set: taken for defaults, it would be another rank or run than what was meant. */
static int take_options(const struct cairn_options *given, struct cairn_options *ret,
                        struct cairn_error *reterr) {
        if (!given)
                return 0;
        if (given->size < offsetof(struct cairn_options, debug_mutation))
                return error_set(reterr, CAIRN_ERR_API, "open session", "options",
                                 "their size is %zu: begin with CAIRN_OPTIONS_INIT, or call "
                                 "cairn_options_init",
                                 given->size);
        memcpy(ret, given, given->size < sizeof *ret ? given->size : sizeof *ret);
        return 0;
}

int cairn_open(const struct cairn_options *options, struct cairn **ret) {
        struct cairn_options o = CAIRN_OPTIONS_INIT;
        struct cairn_error e = CAIRN_ERROR_INIT;
        if (!ret)
                return CAIRN_ERR_API;
        *ret = handle_new();
        if (!*ret)
                return CAIRN_ERR_NOMEM;
        int r = take_options(options, &o, &e);
        return handle_end(*ret, r < 0 ? r : open_session(*ret, &o, &e), &e);
}

void cairn_close(struct cairn *c) {
        /* A child has neither the mappings nor the helper thread: what it could free is its copy of
         * the heap. */
        if (!c || (c->fork_guard && *c->fork_guard == 0))
                return;
        pusher_done(&c->pusher); /* rings, so before the link, which has the bell */
        stream_done(&c->stream);
        if (c->link_ready)
                link_done(&c->link);
        if (c->page)
                (void) munmap(c->page, CONTROL_PAGE_BYTES);
        if (c->generation_fd >= 0)
                (void) close(c->generation_fd);
        inventory_done(&c->inventory);
        stored_done(&c->stored);
        if (c->device) {
                slabs_done(&c->slabs);
                c->device->ops->close(c->device);
        }
        registry_done(&c->registry);
        arena_done(&c->strings);
        free(c->payload);
        textbuf_done(&c->report_text);
        textbuf_done(&c->report_json);
        textbuf_done(&c->details);
        textbuf_done(&c->error_string);
        (void) pthread_mutex_destroy(&c->error_lock);
        if (c->fork_guard)
                (void) munmap((void *) (uintptr_t) c->fork_guard, PAGE_BYTES);
        free(c);
}
