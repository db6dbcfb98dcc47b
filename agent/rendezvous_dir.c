/* SPDX-License-Identifier: Apache-2.0
 *
 * A rendezvous in a folder that all nodes see: <path>/<run>/rendezvous, flat.
 *
 *     member-NODE-NONCE         a lease: counter, boot id of its machine, record, a line each
 *     gone-NODE-NONCE           the lease of who left or was given up; never comes back
 *     generation-NNN            record; the highest number is the newest
 *     value-NNN-KEY             as it was put
 *
 * Liveness: the owner adds 1 to the counter, in place; an observer that has not seen it change for
 * RENDEZVOUS_SILENCE_NS of its own clock gives the member up by renaming the lease to gone-. So
 * nobody's clock is trusted, a renewal that comes late writes into a file that no longer counts,
 * and its writer finds the lease gone. A lease that merely vanished (somebody cleaned the folder)
 * is made again by its owner, with the newest generation that it knows.
 *
 * Exclusive creation is link(2) of a whole file (io_publish_file), which servers of NFS decide too,
 * and which says so when the first answer was lost. After it the listing is read again, so that a
 * creator that slept meanwhile does not lead beside a newer one.
 *
 * NFS caches: contents are read by a new open (close-to-open: asks the server), a renewal ends with
 * close (writes through), and each look first changes the folder itself, which makes the client
 * drop what it remembers of the listing. Not for mounts with `nocto`.
 */
#include "agent/generation.h"
#include "agent/rendezvous_process.h"
#include "agent/rendezvous_record.h"
#include "base/cleanup.h"
#include "base/io.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define FOLDER_NAME "rendezvous"
#define OPERATION "look at rendezvous"
#define NAME_MAX_BYTES 128 /* longest: value- 20 - 64 */
#define COUNTER_BYTES 21   /* 20 digits and the end of the line */
#define BOOT_BYTES 37      /* a UUID and the end of the line */
#define HEAD_BYTES (COUNTER_BYTES + BOOT_BYTES)
#define LEASE_BYTES_MAX (HEAD_BYTES + RENDEZVOUS_MEMBER_TEXT_BYTES_MAX)
#define LOOK_STEP_NS_MAX (2 * RENDEZVOUS_RENEW_NS) /* of silence that one look can add */

struct lease_name {
        char node[RENDEZVOUS_NODE_BYTES];
        uint64_t nonce;
};
/* What a listing shows. */
struct listing {
        struct lease_name *members, *gone;
        size_t member_count, member_capacity, gone_count, gone_capacity;
        uint64_t newest; /* generation; 0: none */
        bool out_of_memory;
};
struct seen { /* a lease that was listed once */
        struct rendezvous_member member;
        uint64_t counter, silent_ns;
        bool alive, changed; /* alive: changed at least once, and not silent for long */
};
struct dir {
        struct rendezvous_place place;
        const struct io_ops *io;
        const struct clock_ops *clock;
        char object[320]; /* for errors: the folder's path, or its end */
        char boot[BOOT_BYTES];
        int fd;      /* the folder, as the last verb found it; -1 */
        int lock_fd; /* own lease, locked; -1 */
        struct seen *seen;
        size_t seen_count, seen_capacity;
        uint64_t looked_ns;
        struct rendezvous_member *members; /* of the last look */
        struct rendezvous_generation generation;
};

/* ---- names ---- */

static void name_lease(char *name, const char *kind, const char *node, uint64_t nonce) {
        (void) snprintf(name, NAME_MAX_BYTES, "%s-%s-%016" PRIx64, kind, node, nonce);
}

static void name_number(char *name, uint64_t number) {
        (void) snprintf(name, NAME_MAX_BYTES, "generation-%020" PRIu64, number);
}

static void name_value(char *name, uint64_t number, const char *key) {
        (void) snprintf(name, NAME_MAX_BYTES, "value-%020" PRIu64 "-%s", number, key);
}

static bool parse_number(const char *text, size_t digits, uint64_t *ret) {
        if (strspn(text, "0123456789") < digits)
                return false;
        *ret = 0;
        for (size_t i = 0; i < digits; i++) {
                *ret = *ret * 10 + (uint64_t) (text[i] - '0');
                if (*ret > INT64_MAX) /* not ours */
                        return false;
        }
        return true;
}

static bool parse_lease(const char *name, const char *kind, struct lease_name *ret) {
        size_t head = strlen(kind) + 1, bytes = strlen(name);
        char *end;

        if (strncmp(name, kind, head - 1) != 0 || name[head - 1] != '-' || bytes < head + 18 ||
            bytes - head - 17 >= sizeof ret->node || name[bytes - 17] != '-' ||
            strspn(name + bytes - 16, "0123456789abcdef") != 16)
                return false;
        memcpy(ret->node, name + head, bytes - head - 17);
        ret->node[bytes - head - 17] = '\0';
        ret->nonce = strtoull(name + bytes - 16, &end, 16);
        return ret->nonce != 0 && rendezvous_check_name(ret->node, "", NULL) == 0;
}

/* ---- the listing ---- */

static void add_name(struct listing *l, struct lease_name **array, size_t *count, size_t *capacity,
                     const struct lease_name *name) {
        if (*count == *capacity) {
                size_t wanted = *capacity ? *capacity * 2 : 16;
                void *larger = reallocarray(*array, wanted, sizeof **array);
                if (!larger) {
                        l->out_of_memory = true;
                        return;
                }
                *array = larger;
                *capacity = wanted;
        }
        (*array)[(*count)++] = *name;
}

static int visit(const char *name, void *argument) {
        struct listing *l = argument;
        struct lease_name lease;
        uint64_t number;

        if (parse_lease(name, "member", &lease))
                add_name(l, &l->members, &l->member_count, &l->member_capacity, &lease);
        else if (parse_lease(name, "gone", &lease))
                add_name(l, &l->gone, &l->gone_count, &l->gone_capacity, &lease);
        else if (strncmp(name, "generation-", 11) == 0 && strlen(name) == 31 &&
                 parse_number(name + 11, 20, &number) && number > l->newest)
                l->newest = number;
        return l->out_of_memory;
}

static void listing_done(struct listing *l) {
        free(l->members);
        free(l->gone);
        *l = (struct listing){0};
}

static bool has_name(const struct lease_name *names, size_t count, const char *node,
                     uint64_t nonce) {
        for (size_t i = 0; i < count; i++)
                if (names[i].nonce == nonce && strcmp(names[i].node, node) == 0)
                        return true;
        return false;
}

/* A change of the folder first: see the top. */
static int list_fresh(struct dir *d, struct listing *ret, struct cairn_error *reterr) {
        char poke[] = ".poke-XXXXXXXXXXXXXXXX";

        *ret = (struct listing){0};
        (void) snprintf(poke, sizeof poke, ".poke-%016" PRIx64,
                        (uint64_t) getpid() << 32 ^
                                (d->clock->now_ns(d->clock->context) & UINT32_MAX));
        int fd = d->io->openat(d->io->context, d->fd, poke, O_WRONLY | O_CREAT | O_EXCL, 0600);
        if (fd < 0 && errno != EEXIST)
                return error_set_errno(reterr, errno, OPERATION, d->object);
        if (fd >= 0)
                (void) d->io->close(d->io->context, fd);
        (void) d->io->unlinkat(d->io->context, d->fd, poke, 0);
        errno = 0;
        if (d->io->list(d->io->context, d->fd, visit, ret) < 0)
                return error_set_errno(reterr, errno, OPERATION, d->object);
        if (ret->out_of_memory)
                return error_set_errno(reterr, ENOMEM, OPERATION, d->object);
        if (ret->member_count > RENDEZVOUS_MEMBERS_MAX)
                return error_set(reterr, CAIRN_ERR_UNSUPPORTED, OPERATION, d->object,
                                 "more than %d leases are in it", RENDEZVOUS_MEMBERS_MAX);
        return 0;
}

/* ---- the folder ---- */

static void close_folder(struct dir *d) {
        if (d->fd >= 0)
                (void) close(d->fd);
        d->fd = -1;
}

static int missing(const struct dir *d, const char *path, struct cairn_error *reterr) {
        return error_set(reterr, CAIRN_ERR_UNREACHABLE, OPERATION, path,
                         "there is no such folder; is the file system mounted on this node?%s",
                         d->place.in_store ? " A new store is made by `cairn init`" : "");
}

/* The folder that people name; in a store it has to be one. */
static int open_root(const struct dir *d, bool check, int *ret, struct cairn_error *reterr) {
        const struct rendezvous_place *p = &d->place;

        if (check && p->in_store && p->create_store && store_folder_is_free(p->path)) {
                int r = store_create(d->io, d->clock, p->path, 1, reterr);
                if (r < 0 && r != CAIRN_ERR_EXISTS)
                        return r;
        }
        int fd = open(p->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (fd < 0 && errno == ENOENT)
                return missing(d, p->path, reterr);
        if (fd < 0)
                return error_set_errno(reterr, errno, OPERATION, p->path);
        if (check && p->in_store) {
                (void) close(fd);
                TRY(store_open(d->io, p->path, &fd, reterr));
        }
        *ret = fd;
        return 0;
}

static int open_in(const struct dir *d, int parent, const char *name, bool make, mode_t mode,
                   int *ret, struct cairn_error *reterr) {
        int fd = d->io->openat(d->io->context, parent, name, O_RDONLY | O_DIRECTORY, 0);

        if (fd < 0 && errno == ENOENT && make) {
                TRY(io_make_dir(d->io, parent, name, mode, true, reterr));
                fd = d->io->openat(d->io->context, parent, name, O_RDONLY | O_DIRECTORY, 0);
        }
        if (fd < 0 && errno == ENOENT)
                return error_set(reterr, CAIRN_ERR_NOTFOUND, OPERATION, d->object, "it is missing");
        if (fd < 0)
                return error_set_errno(reterr, errno, OPERATION, d->object);
        *ret = fd;
        return 0;
}

/* By its path each time: folders are moved and removed under jobs. What is made for a join, the
 * run's folder included, is not made again for a member: the store process does that where the run
 * may go on, and a folder that was moved away can be moved back. NOTFOUND: it is missing. */
enum purpose { TO_WATCH, AS_MEMBER, TO_JOIN };
static int open_folder(struct dir *d, enum purpose purpose, struct cairn_error *reterr) {
        _cleanup_close_ int root = -1, run = -1;

        close_folder(d);
        TRY(open_root(d, purpose == TO_JOIN, &root, reterr));
        TRY(open_in(d, root, d->place.run, purpose == TO_JOIN, 0755, &run, reterr));
        /* The secret is in it. */
        return open_in(d, run, FOLDER_NAME, purpose != TO_WATCH, 0700, &d->fd, reterr);
}

static int open_as_member(struct dir *d, struct cairn_error *reterr) {
        struct cairn_error e = CAIRN_ERROR_INIT;
        int r = open_folder(d, AS_MEMBER, &e);

        if (r == CAIRN_ERR_NOTFOUND)
                return error_set(reterr, CAIRN_ERR_UNREACHABLE, OPERATION, d->object,
                                 "the run's folder was removed or moved while the run goes on; "
                                 "move it back, or wait for the next checkpoint, which makes it "
                                 "again");
        if (r < 0 && reterr)
                *reterr = e;
        return r;
}

/* ---- leases ---- */

struct lease {
        uint64_t counter;
        char boot[BOOT_BYTES];
        char text[RENDEZVOUS_MEMBER_TEXT_BYTES_MAX];
        size_t text_bytes;
};

/* NOTFOUND: it is gone meanwhile. */
static int read_lease(struct dir *d, const char *name, struct lease *ret,
                      struct cairn_error *reterr) {
        char bytes[LEASE_BYTES_MAX];
        int fd = d->io->openat(d->io->context, d->fd, name, O_RDONLY, 0);

        if (fd < 0)
                return error_set_errno(reterr, errno, "read lease", name);
        ssize_t n = d->io->pread(d->io->context, fd, bytes, sizeof bytes, 0);
        int error_number = errno;
        (void) d->io->close(d->io->context, fd);
        if (n < 0)
                return error_set_errno(reterr, error_number, "read lease", name);
        if (n < HEAD_BYTES || !parse_number(bytes, COUNTER_BYTES - 1, &ret->counter))
                return error_set(reterr, CAIRN_ERR_CORRUPT, "read lease", name,
                                 "it is no lease of Cairn");
        memcpy(ret->boot, bytes + COUNTER_BYTES, BOOT_BYTES - 1);
        ret->boot[BOOT_BYTES - 1] = '\0';
        ret->text_bytes = (size_t) n - HEAD_BYTES;
        memcpy(ret->text, bytes + HEAD_BYTES, ret->text_bytes);
        return 0;
}

static int write_lease(struct dir *d, const struct rendezvous_member *self, uint64_t counter,
                       enum io_publish how, struct cairn_error *reterr) {
        char bytes[LEASE_BYTES_MAX + 1], name[NAME_MAX_BYTES];
        _cleanup_free_ char *text = NULL;
        size_t text_bytes;

        TRY(rendezvous_member_text(self, &text, &text_bytes, reterr));
        int count = snprintf(bytes, sizeof bytes, "%020" PRIu64 "\n%s\n%s", counter, d->boot, text);
        if (count < 0 || (size_t) count >= sizeof bytes)
                return error_set(reterr, CAIRN_ERR_API, "write lease", self->node,
                                 "it is too long");
        name_lease(name, "member", self->node, self->nonce);
        return io_publish_file(d->io, d->fd, name, bytes, (size_t) count, how, reterr);
}

/* Who holds the lock lives, on this machine at least; the lock goes with the process. Tried again
 * with each look: a predecessor that is being killed may hold it still. */
static void lock_lease(struct dir *d, const struct rendezvous_member *self) {
        char name[NAME_MAX_BYTES];

        name_lease(name, "member", self->node, self->nonce);
        int fd = d->io->openat(d->io->context, d->fd, name, O_RDWR, 0);
        if (fd >= 0 && d->io->try_lock(d->io->context, fd) == 0)
                d->lock_fd = fd;
        else if (fd >= 0)
                (void) d->io->close(d->io->context, fd);
}

static void unlock_lease(struct dir *d) {
        if (d->lock_fd >= 0)
                (void) d->io->close(d->io->context, d->lock_fd);
        d->lock_fd = -1;
}

static void give_up(struct dir *d, const char *node, uint64_t nonce) {
        char member[NAME_MAX_BYTES], gone[NAME_MAX_BYTES];

        name_lease(member, "member", node, nonce);
        name_lease(gone, "gone", node, nonce);
        /* Somebody else may have been faster; a failure shows at the next look. */
        (void) d->io->renameat(d->io->context, d->fd, member, d->fd, gone, 0);
}

static struct seen *find_seen(struct dir *d, const char *node, uint64_t nonce) {
        for (size_t i = 0; i < d->seen_count; i++)
                if (d->seen[i].member.nonce == nonce && strcmp(d->seen[i].member.node, node) == 0)
                        return &d->seen[i];
        return NULL;
}

static struct seen *add_seen(struct dir *d, const struct rendezvous_member *m, uint64_t counter,
                             bool alive) {
        if (d->seen_count == d->seen_capacity) {
                size_t wanted = d->seen_capacity ? d->seen_capacity * 2 : 16;
                void *larger = reallocarray(d->seen, wanted, sizeof *d->seen);
                if (!larger)
                        return NULL;
                d->seen = larger;
                d->seen_capacity = wanted;
        }
        struct seen *s = &d->seen[d->seen_count++];
        *s = (struct seen){.counter = counter, .alive = alive};
        memcpy(&s->member, m, sizeof s->member);
        return s;
}

/* ---- looking ---- */

/* One listed lease: has it changed? What is not a lease counts as none. */
static int observe(struct dir *d, const struct lease_name *l, struct cairn_error *reterr) {
        struct seen *s = find_seen(d, l->node, l->nonce);
        struct cairn_error e = CAIRN_ERROR_INIT;
        struct rendezvous_member m;
        struct lease lease;
        char name[NAME_MAX_BYTES];

        name_lease(name, "member", l->node, l->nonce);
        int r = read_lease(d, name, &lease, &e);
        if (r == CAIRN_ERR_NOTFOUND || r == CAIRN_ERR_CORRUPT)
                return 0;
        if (r < 0) {
                if (reterr)
                        *reterr = e;
                return r;
        }
        if (s && s->counter == lease.counter)
                return 0;
        if (rendezvous_member_parse(lease.text, lease.text_bytes, name, &m, NULL) < 0 ||
            m.nonce != l->nonce || strcmp(m.node, l->node) != 0)
                return 0;
        if (!s) {
                s = add_seen(d, &m, lease.counter, false);
                return s ? 0 : error_set_errno(reterr, ENOMEM, OPERATION, d->object);
        }
        memcpy(&s->member, &m, sizeof m);
        s->counter = lease.counter;
        s->changed = true;
        return 0;
}

/* After all could be observed; a look that failed lets no time pass. */
static void add_silence(struct dir *d) {
        uint64_t now_ns = clock_now(d->clock);
        uint64_t step = d->looked_ns ? now_ns - d->looked_ns : 0;

        if (step > LOOK_STEP_NS_MAX)
                step = LOOK_STEP_NS_MAX;
        for (size_t i = 0; i < d->seen_count; i++) {
                struct seen *s = &d->seen[i];
                s->silent_ns = s->changed ? 0 : s->silent_ns + step;
                s->alive |= s->changed;
                s->changed = false;
        }
        d->looked_ns = now_ns;
}

/* Who left, was given up by others, or is now by this one. A watcher changes nothing. */
static void drop_silent(struct dir *d, const struct rendezvous_member *self,
                        const struct listing *l) {
        for (size_t i = 0; i < d->seen_count;) {
                struct seen *s = &d->seen[i];
                bool own = self && s->member.nonce == self->nonce;
                bool silent = !own && s->silent_ns >= RENDEZVOUS_SILENCE_NS;
                bool listed =
                        has_name(l->members, l->member_count, s->member.node, s->member.nonce);
                if (silent && listed && self)
                        give_up(d, s->member.node, s->member.nonce);
                if ((silent && (self || !listed)) ||
                    has_name(l->gone, l->gone_count, s->member.node, s->member.nonce)) {
                        d->seen[i] = d->seen[--d->seen_count];
                        continue;
                }
                s->alive = s->alive && !silent;
                i++;
        }
}

static int compare_members(const void *a, const void *b) {
        const struct rendezvous_member *x = a, *y = b;
        return strcmp(x->node, y->node);
}

static int collect_members(struct dir *d, const struct rendezvous_member *self,
                           struct rendezvous_look *ret, struct cairn_error *reterr) {
        size_t count = 0;

        free(d->members);
        d->members = calloc(d->seen_count + 1, sizeof *d->members);
        if (!d->members)
                return error_set_errno(reterr, ENOMEM, OPERATION, d->object);
        if (self)
                memcpy(&d->members[count++], self, sizeof *self);
        for (size_t i = 0; i < d->seen_count && count < RENDEZVOUS_MEMBERS_MAX; i++)
                if (d->seen[i].alive && (!self || strcmp(d->seen[i].member.node, self->node) != 0))
                        memcpy(&d->members[count++], &d->seen[i].member, sizeof *d->members);
        qsort(d->members, count, sizeof *d->members, compare_members);
        ret->members = d->members;
        ret->member_count = count;
        return 0;
}

static int read_generation(struct dir *d, uint64_t number, struct rendezvous_generation *ret,
                           struct cairn_error *reterr) {
        _cleanup_free_ void *bytes = NULL;
        char name[NAME_MAX_BYTES];
        size_t count;

        name_number(name, number);
        TRY(io_read_file(d->io, d->fd, name, RENDEZVOUS_GENERATION_TEXT_BYTES_MAX, &bytes, &count,
                         reterr));
        TRY(rendezvous_generation_parse(bytes, count, name, ret, reterr));
        if (ret->number == number)
                return 0;
        rendezvous_generation_done(ret);
        return error_set(reterr, CAIRN_ERR_CORRUPT, OPERATION, name, "it holds another number");
}

/* Removed while this reads: somebody creates the next one. The next look finds that. */
static int update_generation(struct dir *d, uint64_t newest, struct cairn_error *reterr) {
        struct rendezvous_generation g;
        struct cairn_error e = CAIRN_ERROR_INIT;

        if (d->generation.number == newest)
                return 0;
        int r = newest ? read_generation(d, newest, &g, &e) : 0;
        if (r == CAIRN_ERR_NOTFOUND)
                return 0;
        if (r < 0) {
                if (reterr)
                        *reterr = e;
                return r;
        }
        rendezvous_generation_done(&d->generation);
        if (newest)
                d->generation = g;
        return 0;
}

/* Somebody emptied the folder, or the run's folder was made again: what this member knows goes back
 * into it. */
static int put_back(struct dir *d, const struct rendezvous_member *self, bool own_listed,
                    struct listing *l, struct cairn_error *reterr) {
        _cleanup_free_ char *text = NULL;
        char name[NAME_MAX_BYTES];
        size_t bytes;

        if (!own_listed) {
                int r = write_lease(d, self, 1, IO_PUBLISH_EXCLUSIVE, reterr);
                if (r < 0 && r != CAIRN_ERR_EXISTS)
                        return r;
                unlock_lease(d);
        }
        if (d->lock_fd < 0)
                lock_lease(d, self);
        if (d->generation.number <= l->newest)
                return 0;
        TRY(rendezvous_generation_text(&d->generation, &text, &bytes, reterr));
        name_number(name, d->generation.number);
        int r = io_publish_file(d->io, d->fd, name, text, bytes, IO_PUBLISH_EXCLUSIVE, reterr);
        if (r < 0 && r != CAIRN_ERR_EXISTS)
                return r;
        l->newest = d->generation.number;
        return 0;
}

static int renew(struct dir *d, const struct rendezvous_member *self, struct cairn_error *reterr) {
        char name[NAME_MAX_BYTES], counter[COUNTER_BYTES + 1];
        uint64_t value;

        name_lease(name, "member", self->node, self->nonce);
        int fd = d->io->openat(d->io->context, d->fd, name, O_RDWR, 0);
        if (fd < 0 && errno == ENOENT)
                return 0; /* just now: the next look says why */
        if (fd < 0)
                return error_set_errno(reterr, errno, "renew lease", name);
        int error_number = 0;
        if (d->io->pread(d->io->context, fd, counter, COUNTER_BYTES, 0) != COUNTER_BYTES ||
            !parse_number(counter, COUNTER_BYTES - 1, &value))
                value = 0; /* damaged: any change will do */
        (void) snprintf(counter, sizeof counter, "%020" PRIu64 "\n", value + 1);
        if (d->io->pwrite(d->io->context, fd, counter, COUNTER_BYTES, 0) != COUNTER_BYTES)
                error_number = errno ? errno : EIO;
        if (d->io->close(d->io->context, fd) < 0 && error_number == 0)
                error_number = errno;
        return error_number ? error_set_errno(reterr, error_number, "renew lease", name) : 0;
}

static int look_as_member(struct dir *d, const struct rendezvous_member *self, bool renewing,
                          struct listing *l, struct cairn_error *reterr) {
        TRY(open_as_member(d, reterr));
        TRY(list_fresh(d, l, reterr));
        if (has_name(l->gone, l->gone_count, self->node, self->nonce))
                return rendezvous_refuse_lost(self, reterr);
        bool listed = has_name(l->members, l->member_count, self->node, self->nonce);
        TRY(put_back(d, self, listed, l, reterr));
        return listed && renewing ? renew(d, self, reterr) : 0;
}

static int look_at(struct dir *d, const struct rendezvous_member *self, bool renewing,
                   struct listing *l, struct rendezvous_look *ret, struct cairn_error *reterr) {
        struct cairn_error e = CAIRN_ERROR_INIT;

        if (self) {
                TRY(look_as_member(d, self, renewing, l, reterr));
        } else {
                int r = open_folder(d, TO_WATCH, &e);
                if (r == 0)
                        r = list_fresh(d, l, &e);
                if (r < 0 && r != CAIRN_ERR_NOTFOUND) {
                        if (reterr)
                                *reterr = e;
                        return r;
                }
        }
        for (size_t i = 0; i < l->member_count; i++)
                TRY(observe(d, &l->members[i], reterr));
        add_silence(d);
        drop_silent(d, self, l);
        TRY(update_generation(d, l->newest, reterr));
        ret->generation = d->generation;
        return collect_members(d, self, ret, reterr);
}

static int dir_look(void *kind, const struct rendezvous_member *self, bool renewing,
                    uint64_t deadline_ns, struct rendezvous_look *ret, struct cairn_error *reterr) {
        struct listing l = {0};

        int r = look_at(kind, self, renewing, &l, ret, reterr);
        listing_done(&l);
        return r;
}

/* ---- joining and leaving ---- */

/* On this machine, and its lock is free: killed. Elsewhere only silence tells. */
static bool is_dead_here(struct dir *d, const char *name, const struct lease *lease) {
        bool dead = false;

        if (d->boot[0] == '-' || strcmp(lease->boot, d->boot) != 0)
                return false;
        int fd = d->io->openat(d->io->context, d->fd, name, O_RDWR, 0);
        if (fd >= 0) {
                dead = d->io->try_lock(d->io->context, fd) == 0;
                (void) d->io->close(d->io->context, fd);
        }
        return dead;
}

/* EXISTS: another lease of that name may be a living member's. */
static int check_rivals(struct dir *d, const struct rendezvous_member *self,
                        const struct listing *l, struct cairn_error *reterr) {
        struct rendezvous_member rival;
        struct lease lease;
        char name[NAME_MAX_BYTES];

        for (size_t i = 0; i < l->member_count; i++) {
                const struct lease_name *n = &l->members[i];
                if (n->nonce == self->nonce || strcmp(n->node, self->node) != 0)
                        continue;
                const struct seen *s = find_seen(d, n->node, n->nonce);
                name_lease(name, "member", n->node, n->nonce);
                int r = read_lease(d, name, &lease, reterr);
                if (r == CAIRN_ERR_NOTFOUND)
                        continue;
                if (r < 0 && r != CAIRN_ERR_CORRUPT)
                        return r;
                if (r < 0 || (s && s->silent_ns >= RENDEZVOUS_SILENCE_NS) ||
                    is_dead_here(d, name, &lease) ||
                    rendezvous_member_parse(lease.text, lease.text_bytes, name, &rival, NULL) < 0)
                        give_up(d, n->node, n->nonce);
                else
                        return rendezvous_refuse_name(&rival, reterr);
        }
        return 0;
}

/* Of members that all are gone nobody comes back: a job that begins forgets them. */
static void forget_gone(struct dir *d, const struct listing *l) {
        char name[NAME_MAX_BYTES];

        for (size_t i = 0; l->member_count == 0 && i < l->gone_count; i++) {
                name_lease(name, "gone", l->gone[i].node, l->gone[i].nonce);
                (void) d->io->unlinkat(d->io->context, d->fd, name, 0);
        }
}

static int join(struct dir *d, const struct rendezvous_member *self, struct listing *l,
                struct cairn_error *reterr) {
        struct cairn_error e = CAIRN_ERROR_INIT;
        struct lease lease;
        char name[NAME_MAX_BYTES];

        TRY(open_folder(d, TO_JOIN, reterr));
        TRY(list_fresh(d, l, reterr));
        if (has_name(l->gone, l->gone_count, self->node, self->nonce))
                return rendezvous_refuse_lost(self, reterr);
        name_lease(name, "member", self->node, self->nonce);
        if (has_name(l->members, l->member_count, self->node, self->nonce) &&
            read_lease(d, name, &lease, &e) == 0) /* its own: taken up */
                return write_lease(d, self, lease.counter + 1, IO_PUBLISH_REPLACE, reterr);
        TRY(check_rivals(d, self, l, reterr));
        forget_gone(d, l);
        TRY(write_lease(d, self, 1, IO_PUBLISH_REPLACE, reterr));
        /* Two that join at the same time both see it now, and both step back. */
        listing_done(l);
        TRY(list_fresh(d, l, reterr));
        int r = check_rivals(d, self, l, reterr);
        if (r < 0)
                (void) d->io->unlinkat(d->io->context, d->fd, name, 0);
        return r;
}

static int dir_join(void *kind, const struct rendezvous_member *self, uint64_t deadline_ns,
                    struct cairn_error *reterr) {
        struct listing l = {0};
        struct dir *d = kind;

        int r = join(d, self, &l, reterr);
        listing_done(&l);
        if (r == 0) {
                unlock_lease(d);
                lock_lease(d, self);
        }
        return r;
}

static int dir_leave(void *kind, const struct rendezvous_member *self, uint64_t deadline_ns,
                     struct cairn_error *reterr) {
        struct dir *d = kind;

        TRY(open_as_member(d, reterr));
        give_up(d, self->node, self->nonce);
        unlock_lease(d);
        return 0;
}

/* ---- generations and values ---- */

/* As a member whose lease is there; *ret_newest is the newest generation's number. */
static int enter(struct dir *d, const struct rendezvous_member *self, uint64_t *ret_newest,
                 struct cairn_error *reterr) {
        struct listing l = {0};

        int r = open_as_member(d, reterr);
        if (r == 0)
                r = list_fresh(d, &l, reterr);
        *ret_newest = l.newest;
        if (r == 0 && has_name(l.gone, l.gone_count, self->node, self->nonce))
                r = rendezvous_refuse_lost(self, reterr);
        else if (r == 0 && !has_name(l.members, l.member_count, self->node, self->nonce))
                r = error_set(reterr, CAIRN_ERR_UNREACHABLE, OPERATION, d->object,
                              "the lease of this member was removed; it is about to be put back");
        listing_done(&l);
        return r;
}

static int refuse_existing(struct dir *d, const struct rendezvous_member *self, uint64_t number,
                           struct cairn_error *reterr) {
        struct rendezvous_generation g;

        TRY(read_generation(d, number, &g, reterr));
        bool ours = g.leader_nonce == self->nonce && strcmp(g.leader, self->node) == 0;
        int r = ours ? 0 : rendezvous_refuse_taken(number, g.leader, reterr);
        rendezvous_generation_done(&g);
        return r;
}

struct cleaning {
        char (*names)[NAME_MAX_BYTES];
        size_t count, capacity;
        uint64_t newest;
};

static int visit_older(const char *name, void *argument) {
        struct cleaning *c = argument;
        uint64_t number;

        bool older = (strncmp(name, "generation-", 11) == 0 && strlen(name) == 31 &&
                      parse_number(name + 11, 20, &number) && number < c->newest) ||
                     (strncmp(name, "value-", 6) == 0 && strlen(name) > 27 &&
                      strlen(name) < NAME_MAX_BYTES && parse_number(name + 6, 20, &number) &&
                      number < c->newest);
        if (!older)
                return 0;
        if (c->count == c->capacity) {
                size_t wanted = c->capacity ? c->capacity * 2 : 16;
                void *larger = reallocarray(c->names, wanted, sizeof *c->names);
                if (!larger)
                        return 1;
                c->names = larger;
                c->capacity = wanted;
        }
        (void) snprintf(c->names[c->count++], NAME_MAX_BYTES, "%s", name);
        return 0;
}

/* What is left over is removed with the next generation. */
static void remove_older(struct dir *d, uint64_t newest) {
        struct cleaning c = {.newest = newest};

        (void) d->io->list(d->io->context, d->fd, visit_older, &c);
        for (size_t i = 0; i < c.count; i++)
                (void) d->io->unlinkat(d->io->context, d->fd, c.names[i], 0);
        free(c.names);
}

static int dir_create(void *kind, const struct rendezvous_member *self,
                      const struct rendezvous_generation *generation, uint64_t deadline_ns,
                      struct cairn_error *reterr) {
        uint64_t number = generation->number, newest;
        _cleanup_free_ char *text = NULL;
        struct dir *d = kind;
        char name[NAME_MAX_BYTES];
        size_t bytes;

        TRY(enter(d, self, &newest, reterr));
        if (newest > number)
                return rendezvous_refuse_old("create generation", number, newest, reterr);
        if (newest == number)
                return refuse_existing(d, self, number, reterr);
        TRY(rendezvous_generation_text(generation, &text, &bytes, reterr));
        name_number(name, number);
        int r = io_publish_file(d->io, d->fd, name, text, bytes, IO_PUBLISH_EXCLUSIVE, reterr);
        if (r < 0 && r != CAIRN_ERR_EXISTS)
                return r;
        TRY(enter(d, self, &newest, reterr));
        if (newest > number)
                return rendezvous_refuse_old("create generation", number, newest, reterr);
        TRY(refuse_existing(d, self, number, reterr));
        remove_older(d, number);
        return 0;
}

static int check_newest(struct dir *d, const struct rendezvous_member *self, const char *operation,
                        uint64_t generation, struct cairn_error *reterr) {
        uint64_t newest;

        TRY(enter(d, self, &newest, reterr));
        return newest == generation ? 0
                                    : rendezvous_refuse_old(operation, generation, newest, reterr);
}

static int dir_put(void *kind, const struct rendezvous_member *self, uint64_t generation,
                   const char *key, const void *value, size_t bytes, uint64_t deadline_ns,
                   struct cairn_error *reterr) {
        struct dir *d = kind;
        char name[NAME_MAX_BYTES];

        TRY(check_newest(d, self, "put value", generation, reterr));
        name_value(name, generation, key);
        TRY(io_publish_file(d->io, d->fd, name, value, bytes, IO_PUBLISH_REPLACE, reterr));
        return check_newest(d, self, "put value", generation, reterr);
}

static int dir_get(void *kind, const struct rendezvous_member *self, uint64_t generation,
                   const char *key, uint64_t deadline_ns, void **ret, size_t *ret_bytes,
                   struct cairn_error *reterr) {
        struct dir *d = kind;
        char name[NAME_MAX_BYTES];

        TRY(check_newest(d, self, "get value", generation, reterr));
        name_value(name, generation, key);
        return io_read_file(d->io, d->fd, name, RENDEZVOUS_VALUE_BYTES_MAX, ret, ret_bytes, reterr);
}

/* ---- the object ---- */

static void read_boot_id(char *ret) {
        _cleanup_fclose_ FILE *f = fopen("/proc/sys/kernel/random/boot_id", "re");

        if (!f || fread(ret, 1, BOOT_BYTES - 1, f) != BOOT_BYTES - 1)
                memset(ret, '-', BOOT_BYTES - 1);
        ret[BOOT_BYTES - 1] = '\0';
}

int rendezvous_dir_new(const struct rendezvous_place *place, const struct io_ops *io,
                       const struct clock_ops *clock, void **ret, struct cairn_error *reterr) {
        struct dir *d = calloc(1, sizeof *d);

        if (!d)
                return error_set_errno(reterr, ENOMEM, OPERATION, place->url);
        d->place = *place;
        d->io = io;
        d->clock = clock;
        d->fd = d->lock_fd = -1;
        (void) snprintf(d->object, sizeof d->object, "%.200s/%s/" FOLDER_NAME, place->path,
                        place->run);
        read_boot_id(d->boot);
        *ret = d;
        return 0;
}

static int dir_open(const struct rendezvous_place *place, void **ret, struct cairn_error *reterr) {
        return rendezvous_dir_new(place, &io_system, &clock_system, ret, reterr);
}

static void dir_close(void *kind) {
        struct dir *d = kind;

        close_folder(d);
        unlock_lease(d);
        rendezvous_generation_done(&d->generation);
        free(d->members);
        free(d->seen);
        free(d);
}

static void dir_seed(void *kind, const struct rendezvous_member *members, size_t count) {
        struct dir *d = kind;

        for (size_t i = 0; i < count; i++)
                if (!find_seen(d, members[i].node, members[i].nonce))
                        (void) add_seen(d, &members[i], 0, true);
}

const struct rendezvous_ops rendezvous_dir_ops = {
        .open = dir_open,
        .close = dir_close,
        .seed = dir_seed,
        .join = dir_join,
        .leave = dir_leave,
        .look = dir_look,
        .create = dir_create,
        .put = dir_put,
        .get = dir_get,
};
