/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/sim/simfs.h"
#include "base/assert.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

enum { FD_BASE = 1000000, NAME_MAX_BYTES = 96, SECTOR = 512, BLOCK = 4096 };

struct entry {
        char name[NAME_MAX_BYTES];
        size_t inode;
};
struct entries {
        struct entry *items;
        size_t count, capacity;
};
enum change_kind { CHANGE_ADD, CHANGE_REMOVE, CHANGE_RENAME };
struct change { /* of a directory, not yet synced */
        enum change_kind kind;
        uint64_t time; /* order over all directories */
        char name[NAME_MAX_BYTES], target[NAME_MAX_BYTES];
        size_t inode;
        bool is_dir; /* the inode is one */
};
struct bytes {
        unsigned char *data;
        size_t size;
};
struct write { /* to a file, not yet synced; `bytes.data` NULL: truncation to `bytes.size` */
        uint64_t offset;
        struct bytes bytes;
};
struct inode {
        bool is_dir, fate_sealed; /* sealed: a sync failed, nothing pending will ever be durable */
        struct bytes now, durable;
        struct write *writes;
        size_t write_count, write_capacity;
        struct entries entries, durable_entries;
        struct change *changes;
        size_t change_count, change_capacity;
        int locked_by; /* descriptor, 0: nobody */
};
struct file {
        bool used;
        size_t inode;
        int flags;
        char name[NAME_MAX_BYTES];
};
struct simfs {
        struct inode **inodes; /* 0 is the root */
        size_t inode_count, inode_capacity;
        struct file *files;
        size_t file_count, file_capacity;
        uint64_t calls, time, fail_at;
        int fail_errno;
        bool failed, in_hook;
        void (*hook)(void *argument);
        void *hook_argument;
        enum simfs_sync (*policy)(const char *name, bool is_dir);
        bool (*reuse)(const char *name);
        size_t late[16]; /* inodes whose sync waits for a rename */
        size_t late_count;
        bool late_due; /* a directory's was: by the call after it */
};

uint64_t simfs_random(uint64_t *seed) {
        uint64_t z = *seed += UINT64_C(0x9e3779b97f4a7c15);
        z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
        z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
        return z ^ (z >> 31);
}

static void *grow(void *items, size_t count, size_t *capacity, size_t item_bytes) {
        if (count < *capacity)
                return items;
        *capacity = *capacity ? *capacity * 2 : 8;
        items = realloc(items, *capacity * item_bytes);
        CAIRN_ASSERT(items);
        return items;
}

#define APPEND(array, count, capacity)                                   \
        ((array) = grow((array), (count), &(capacity), sizeof *(array)), \
         memset(&(array)[(count)], 0, sizeof *(array)), &(array)[(count)++])

static void set_name(char *target, const char *name) {
        CAIRN_ASSERT(strlen(name) < NAME_MAX_BYTES);
        memcpy(target, name, strlen(name) + 1);
}

/* ---- bytes and entries ---- */

static void bytes_resize(struct bytes *b, size_t size) {
        if (size > b->size) {
                b->data = realloc(b->data, size);
                CAIRN_ASSERT(b->data);
                memset(b->data + b->size, 0, size - b->size);
        }
        b->size = size;
}

static void bytes_copy(struct bytes *target, const struct bytes *source) {
        *target = (struct bytes){.size = source->size};
        if (!source->data)
                return;
        target->data = malloc(source->size ? source->size : 1);
        CAIRN_ASSERT(target->data);
        memcpy(target->data, source->data, source->size);
}

static void bytes_put(struct bytes *b, uint64_t offset, const void *data, size_t size) {
        if (offset + size > b->size)
                bytes_resize(b, offset + size);
        if (size > 0)
                memcpy(b->data + offset, data, size);
}

static struct entry *entries_find(const struct entries *e, const char *name) {
        for (size_t i = 0; i < e->count; i++)
                if (strcmp(e->items[i].name, name) == 0)
                        return &e->items[i];
        return NULL;
}

static void entries_set(struct entries *e, const char *name, size_t inode) {
        struct entry *entry = entries_find(e, name);
        if (!entry)
                entry = APPEND(e->items, e->count, e->capacity);
        set_name(entry->name, name);
        entry->inode = inode;
}

static void entries_remove(struct entries *e, const char *name) {
        struct entry *entry = entries_find(e, name);
        if (!entry)
                return;
        size_t after = e->count - (size_t) (entry - e->items) - 1;
        memmove(entry, entry + 1, after * sizeof *entry);
        e->count--;
}

static void entries_copy(struct entries *target, const struct entries *source) {
        *target = (struct entries){.count = source->count, .capacity = source->count};
        if (source->count == 0)
                return;
        target->items = malloc(source->count * sizeof *source->items);
        CAIRN_ASSERT(target->items);
        memcpy(target->items, source->items, source->count * sizeof *source->items);
}

/* A directory has one name: a rename that reached the disk without an earlier one took the name
 * away that was there, whichever it was. */
static void entries_take_away(struct entries *e, const struct change *c) {
        for (size_t i = e->count; i-- > 0;)
                if (e->items[i].inode == c->inode &&
                    (c->is_dir || strcmp(e->items[i].name, c->name) == 0))
                        entries_remove(e, e->items[i].name);
}

static void entries_apply(struct entries *e, const struct change *c) {
        switch (c->kind) {
        case CHANGE_ADD:
                entries_set(e, c->name, c->inode);
                break;
        case CHANGE_REMOVE:
                entries_remove(e, c->name);
                break;
        case CHANGE_RENAME:
                entries_take_away(e, c);
                entries_set(e, c->target, c->inode);
                break;
        }
}

/* ---- inodes ---- */

static size_t inode_new(struct simfs *fs, bool is_dir) {
        /* NOLINTNEXTLINE(bugprone-sizeof-expression): an array of pointers is meant */
        struct inode **slot = APPEND(fs->inodes, fs->inode_count, fs->inode_capacity);
        *slot = calloc(1, sizeof **slot);
        CAIRN_ASSERT(*slot);
        (*slot)->is_dir = is_dir;
        return fs->inode_count - 1;
}

static void inode_forget_pending(struct inode *node) {
        for (size_t i = 0; i < node->write_count; i++)
                free(node->writes[i].bytes.data);
        node->write_count = 0;
        node->change_count = 0;
}

static void inode_free(struct inode *node) {
        inode_forget_pending(node);
        free(node->writes);
        free(node->changes);
        free(node->now.data);
        free(node->durable.data);
        free(node->entries.items);
        free(node->durable_entries.items);
        free(node);
}

static struct inode *inode_copy(const struct inode *source) {
        struct inode *node = calloc(1, sizeof *node);
        CAIRN_ASSERT(node);
        node->is_dir = source->is_dir;
        node->fate_sealed = source->fate_sealed;
        bytes_copy(&node->now, &source->now);
        bytes_copy(&node->durable, &source->durable);
        entries_copy(&node->entries, &source->entries);
        entries_copy(&node->durable_entries, &source->durable_entries);
        for (size_t i = 0; i < source->write_count; i++) {
                struct write *w = APPEND(node->writes, node->write_count, node->write_capacity);
                w->offset = source->writes[i].offset;
                bytes_copy(&w->bytes, &source->writes[i].bytes);
        }
        for (size_t i = 0; i < source->change_count; i++)
                *APPEND(node->changes, node->change_count, node->change_capacity) =
                        source->changes[i];
        return node;
}

static void change_dir(struct simfs *fs, size_t dir, enum change_kind kind, const char *name,
                       const char *target, size_t inode) {
        struct inode *node = fs->inodes[dir];
        struct change *c = APPEND(node->changes, node->change_count, node->change_capacity);

        c->kind = kind;
        c->time = ++fs->time;
        c->inode = inode;
        c->is_dir = fs->inodes[inode]->is_dir;
        set_name(c->name, name);
        set_name(c->target, target ? target : "");
        entries_apply(&node->entries, c);
}

static void sync_inode(struct inode *node) {
        if (node->is_dir) {
                free(node->durable_entries.items);
                entries_copy(&node->durable_entries, &node->entries);
        } else if (!node->fate_sealed) {
                free(node->durable.data);
                bytes_copy(&node->durable, &node->now);
        }
        inode_forget_pending(node);
}

/* ---- crash ---- */

static bool chance(uint64_t *seed) {
        return simfs_random(seed) & 1;
}

static void fill_stale(struct bytes *b, uint64_t from, uint64_t to, uint64_t *seed) {
        for (uint64_t at = from; at < to; at++)
                b->data[at] = (unsigned char) simfs_random(seed);
}

/* A device tears at its sectors, a page cache writes whole blocks back, in any order: both at
 * offsets of the file, wherever the write began. */
static void keep_torn(struct bytes *b, const struct write *w, uint64_t *seed) {
        uint64_t unit = chance(seed) ? SECTOR : BLOCK, end = w->offset + w->bytes.size;

        /* The length may have reached the disk without the data: zeros, or what a file that was
         * deleted left there. */
        if (chance(seed) && end > b->size) {
                uint64_t from = b->size > w->offset ? b->size : w->offset;
                bytes_resize(b, end);
                if (chance(seed))
                        fill_stale(b, from, end, seed);
        }
        for (uint64_t at = w->offset, next; at < end; at = next) {
                next = (at / unit + 1) * unit < end ? (at / unit + 1) * unit : end;
                if (chance(seed))
                        bytes_put(b, at, w->bytes.data + (at - w->offset), next - at);
        }
}

static void crash_file(struct inode *node, uint64_t *seed, enum simfs_order order) {
        size_t kept = order == SIMFS_IN_ORDER ? simfs_random(seed) % (node->write_count + 1) : 0;

        for (size_t i = 0; i < node->write_count && !node->fate_sealed; i++) {
                const struct write *w = &node->writes[i];
                uint64_t fate = simfs_random(seed) % 3;
                if (order == SIMFS_IN_ORDER)
                        fate = i < kept ? 0 : i == kept ? 1 : 2;
                if (!w->bytes.data && fate == 0)
                        bytes_resize(&node->durable, w->bytes.size);
                else if (fate == 0)
                        bytes_put(&node->durable, w->offset, w->bytes.data, w->bytes.size);
                else if (fate == 1 && w->bytes.data)
                        keep_torn(&node->durable, w, seed);
        }
        free(node->now.data);
        bytes_copy(&node->now, &node->durable);
}

void simfs_crash(struct simfs *fs, uint64_t seed, enum simfs_order order) {
        /* A journal writes what happened up to some instant; weighted towards the last. */
        uint64_t pending = 0, first = UINT64_MAX;
        for (size_t i = 0; i < fs->inode_count; i++)
                for (size_t j = 0; j < fs->inodes[i]->change_count; j++) {
                        pending++;
                        if (fs->inodes[i]->changes[j].time < first)
                                first = fs->inodes[i]->changes[j].time;
                }
        uint64_t until = pending ? first + simfs_random(&seed) % (fs->time - first + 2) : 0;

        for (size_t i = 0; i < fs->inode_count; i++) {
                struct inode *node = fs->inodes[i];
                if (!node->is_dir)
                        crash_file(node, &seed, order);
                for (size_t j = 0; j < node->change_count; j++)
                        if (order == SIMFS_IN_ORDER ? node->changes[j].time < until : chance(&seed))
                                entries_apply(&node->durable_entries, &node->changes[j]);
                if (node->is_dir) {
                        free(node->entries.items);
                        entries_copy(&node->entries, &node->durable_entries);
                }
                inode_forget_pending(node);
                node->locked_by = 0;
                node->fate_sealed = false;
        }
        for (size_t i = 0; i < fs->file_count; i++)
                fs->files[i].used = false;
        fs->late_count = 0;
}

/* ---- calls ---- */

static int fail(int error_number) {
        errno = error_number;
        return -1;
}

/* The begin of each counted call: -1 with errno when it is the one to fail. */
static int enter(struct simfs *fs) {
        if (fs->in_hook)
                return 0;
        fs->calls++;
        if (fs->hook) {
                fs->in_hook = true;
                fs->hook(fs->hook_argument);
                fs->in_hook = false;
        }
        for (size_t i = 0; fs->late_due && i < fs->late_count; i++)
                sync_inode(fs->inodes[fs->late[i]]);
        fs->late_count = fs->late_due ? 0 : fs->late_count;
        fs->late_due = false;
        if (fs->fail_at == 0 || --fs->fail_at > 0)
                return 0;
        fs->failed = true;
        return fail(fs->fail_errno);
}

static struct file *file_of(struct simfs *fs, int fd) {
        size_t i = (size_t) (fd - FD_BASE);
        return fd >= FD_BASE && i < fs->file_count && fs->files[i].used ? &fs->files[i] : NULL;
}

static int file_open(struct simfs *fs, size_t inode, int flags, const char *name) {
        size_t i = 0;
        while (i < fs->file_count && fs->files[i].used)
                i++;
        if (i == fs->file_count)
                (void) APPEND(fs->files, fs->file_count, fs->file_capacity);
        fs->files[i] = (struct file){.used = true, .inode = inode, .flags = flags};
        set_name(fs->files[i].name, name);
        return FD_BASE + (int) i;
}

/* The directory in which the last component of `path` lies. */
static int find_parent(struct simfs *fs, int dirfd, const char *path, size_t *ret_dir,
                       char *ret_name) {
        struct file *file = file_of(fs, dirfd);
        size_t at = file ? file->inode : 0;

        if (path[0] == '/' && dirfd != AT_FDCWD)
                return fail(EXDEV);
        if (!file && dirfd != AT_FDCWD)
                return fail(EBADF);
        while (*path == '/')
                path++;
        for (;;) {
                size_t bytes = strcspn(path, "/");
                if (bytes >= NAME_MAX_BYTES)
                        return fail(ENAMETOOLONG);
                memcpy(ret_name, path, bytes);
                ret_name[bytes] = '\0';
                if (strcmp(ret_name, "..") == 0)
                        return fail(EXDEV);
                if (!fs->inodes[at]->is_dir)
                        return fail(ENOTDIR);
                path += bytes;
                while (*path == '/')
                        path++;
                if (!*path)
                        break;
                const struct entry *entry = entries_find(&fs->inodes[at]->entries, ret_name);
                if (strcmp(ret_name, ".") != 0 && !entry)
                        return fail(ENOENT);
                if (entry)
                        at = entry->inode;
        }
        *ret_dir = at;
        return 0;
}

static int sim_openat(void *context, int dirfd, const char *path, int flags, mode_t mode) {
        struct simfs *fs = context;
        char name[NAME_MAX_BYTES];
        size_t dir, inode;

        if (enter(fs) < 0 || find_parent(fs, dirfd, path, &dir, name) < 0)
                return -1;
        const struct entry *entry = entries_find(&fs->inodes[dir]->entries, name);
        if (!name[0] || strcmp(name, ".") == 0) {
                inode = dir;
        } else if (entry) {
                bool reuse = fs->reuse && fs->reuse(name);
                if ((flags & O_CREAT) && (flags & O_EXCL) && !reuse)
                        return fail(EEXIST);
                inode = entry->inode;
        } else if (flags & O_CREAT) {
                inode = inode_new(fs, false);
                change_dir(fs, dir, CHANGE_ADD, name, NULL, inode);
        } else {
                return fail(ENOENT);
        }
        bool is_dir = fs->inodes[inode]->is_dir;
        if ((flags & O_DIRECTORY) && !is_dir)
                return fail(ENOTDIR);
        if (is_dir && (flags & O_ACCMODE) != O_RDONLY)
                return fail(EISDIR);
        CAIRN_ASSERT(!(flags & O_TRUNC));
        return file_open(fs, inode, flags, name);
}

static int sim_close(void *context, int fd) {
        struct simfs *fs = context;
        struct file *file = file_of(fs, fd);

        if (!file)
                return fail(EBADF);
        if (fs->inodes[file->inode]->locked_by == fd)
                fs->inodes[file->inode]->locked_by = 0;
        file->used = false;
        return 0;
}

static int sim_mkdirat(void *context, int dirfd, const char *path, mode_t mode) {
        struct simfs *fs = context;
        char name[NAME_MAX_BYTES];
        size_t dir;

        if (enter(fs) < 0 || find_parent(fs, dirfd, path, &dir, name) < 0)
                return -1;
        if (entries_find(&fs->inodes[dir]->entries, name))
                return fail(EEXIST);
        change_dir(fs, dir, CHANGE_ADD, name, NULL, inode_new(fs, true));
        return 0;
}

static int sim_unlinkat(void *context, int dirfd, const char *path, int flags) {
        struct simfs *fs = context;
        char name[NAME_MAX_BYTES];
        size_t dir;

        if (enter(fs) < 0 || find_parent(fs, dirfd, path, &dir, name) < 0)
                return -1;
        const struct entry *entry = entries_find(&fs->inodes[dir]->entries, name);
        if (!entry)
                return fail(ENOENT);
        const struct inode *node = fs->inodes[entry->inode];
        if (node->is_dir != !!(flags & AT_REMOVEDIR))
                return fail(node->is_dir ? EISDIR : ENOTDIR);
        if (node->is_dir && node->entries.count > 0)
                return fail(ENOTEMPTY);
        change_dir(fs, dir, CHANGE_REMOVE, name, NULL, entry->inode);
        return 0;
}

static int sim_renameat(void *context, int olddirfd, const char *oldpath, int newdirfd,
                        const char *newpath, unsigned flags) {
        struct simfs *fs = context;
        char name[NAME_MAX_BYTES], target[NAME_MAX_BYTES];
        size_t dir, target_dir;

        if (enter(fs) < 0 || find_parent(fs, olddirfd, oldpath, &dir, name) < 0 ||
            find_parent(fs, newdirfd, newpath, &target_dir, target) < 0)
                return -1;
        CAIRN_ASSERT(dir == target_dir); /* nothing of ours moves between directories */
        const struct entry *entry = entries_find(&fs->inodes[dir]->entries, name);
        const struct entry *taken = entries_find(&fs->inodes[dir]->entries, target);
        if (!entry)
                return fail(ENOENT);
        if (taken && (flags & RENAME_NOREPLACE))
                return fail(EEXIST);
        if (taken && fs->inodes[taken->inode]->is_dir &&
            fs->inodes[taken->inode]->entries.count > 0)
                return fail(ENOTEMPTY);
        change_dir(fs, dir, CHANGE_RENAME, name, target, entry->inode);
        fs->late_due = fs->late_count > 0 && fs->inodes[entry->inode]->is_dir;
        return 0;
}

static int sim_linkat(void *context, int olddirfd, const char *oldpath, int newdirfd,
                      const char *newpath) {
        struct simfs *fs = context;
        char name[NAME_MAX_BYTES], target[NAME_MAX_BYTES];
        size_t dir, target_dir;

        if (enter(fs) < 0 || find_parent(fs, olddirfd, oldpath, &dir, name) < 0 ||
            find_parent(fs, newdirfd, newpath, &target_dir, target) < 0)
                return -1;
        const struct entry *entry = entries_find(&fs->inodes[dir]->entries, name);
        if (!entry)
                return fail(ENOENT);
        if (entries_find(&fs->inodes[target_dir]->entries, target))
                return fail(EEXIST);
        change_dir(fs, target_dir, CHANGE_ADD, target, NULL, entry->inode);
        return 0;
}

static int sim_fstat(void *context, int fd, struct stat *ret) {
        struct simfs *fs = context;
        struct file *file = file_of(fs, fd);

        if (!file)
                return fail(EBADF);
        const struct inode *node = fs->inodes[file->inode];
        *ret = (struct stat){.st_ino = file->inode + 1,
                             .st_mode = node->is_dir ? S_IFDIR | 0755 : S_IFREG | 0644,
                             .st_size = (off_t) node->now.size};
        for (size_t i = 0; i < fs->inode_count; i++)
                for (size_t j = 0; j < fs->inodes[i]->entries.count; j++)
                        ret->st_nlink += fs->inodes[i]->entries.items[j].inode == file->inode;
        return 0;
}

static struct inode *writable(struct simfs *fs, int fd) {
        struct file *file = file_of(fs, fd);
        if (!file || (file->flags & O_ACCMODE) == O_RDONLY) {
                errno = EBADF;
                return NULL;
        }
        return fs->inodes[file->inode];
}

static int sim_ftruncate(void *context, int fd, off_t bytes) {
        struct simfs *fs = context;
        if (enter(fs) < 0)
                return -1;
        struct inode *node = writable(fs, fd);
        if (!node)
                return -1;
        struct write *w = APPEND(node->writes, node->write_count, node->write_capacity);
        w->bytes.size = (size_t) bytes;
        bytes_resize(&node->now, (size_t) bytes);
        return 0;
}

static int sim_fallocate(void *context, int fd, off_t offset, off_t bytes) {
        struct simfs *fs = context;
        struct file *file = file_of(fs, fd);
        if (!file)
                return fail(EBADF);
        if ((uint64_t) (offset + bytes) <= fs->inodes[file->inode]->now.size)
                return enter(fs);
        return sim_ftruncate(context, fd, offset + bytes);
}

static ssize_t sim_pread(void *context, int fd, void *buf, size_t bytes, off_t offset) {
        struct simfs *fs = context;
        if (enter(fs) < 0)
                return -1;
        struct file *file = file_of(fs, fd);
        if (!file)
                return fail(EBADF);
        const struct bytes *now = &fs->inodes[file->inode]->now;
        if ((size_t) offset >= now->size)
                return 0;
        if (bytes > now->size - (size_t) offset)
                bytes = now->size - (size_t) offset;
        memcpy(buf, now->data + offset, bytes);
        return (ssize_t) bytes;
}

static ssize_t sim_pwrite(void *context, int fd, const void *buf, size_t bytes, off_t offset) {
        struct simfs *fs = context;
        if (enter(fs) < 0)
                return -1;
        struct inode *node = writable(fs, fd);
        if (!node)
                return -1;
        struct write *w = APPEND(node->writes, node->write_count, node->write_capacity);
        w->offset = (uint64_t) offset;
        bytes_put(&w->bytes, 0, buf, bytes);
        bytes_put(&node->now, (uint64_t) offset, buf, bytes);
        return (ssize_t) bytes;
}

static int sim_fsync(void *context, int fd) {
        struct simfs *fs = context;
        struct file *file = file_of(fs, fd);
        if (!file)
                return fail(EBADF);
        struct inode *node = fs->inodes[file->inode];
        if (enter(fs) < 0) {
                node->fate_sealed |= !node->is_dir && node->write_count > 0;
                return -1;
        }
        enum simfs_sync worth = fs->policy ? fs->policy(file->name, node->is_dir) : SIMFS_SYNC;
        if (worth == SIMFS_SYNC)
                sync_inode(node);
        else if (worth == SIMFS_SYNC_AFTER_RENAME &&
                 fs->late_count < sizeof fs->late / sizeof *fs->late)
                fs->late[fs->late_count++] = file->inode;
        return 0;
}

static int sim_list(void *context, int dirfd, int (*visit)(const char *name, void *argument),
                    void *argument) {
        struct simfs *fs = context;
        struct entries entries;
        int r = 0;

        if (enter(fs) < 0)
                return -1;
        struct file *file = file_of(fs, dirfd);
        if (!file || !fs->inodes[file->inode]->is_dir)
                return fail(file ? ENOTDIR : EBADF);
        entries_copy(&entries, &fs->inodes[file->inode]->entries);
        for (size_t i = 0; i < entries.count && r == 0; i++)
                r = visit(entries.items[i].name, argument);
        free(entries.items);
        return r;
}

static int sim_try_lock(void *context, int fd) {
        struct simfs *fs = context;
        if (enter(fs) < 0)
                return -1;
        struct inode *node = writable(fs, fd);
        if (!node)
                return -1;
        if (node->locked_by && node->locked_by != fd)
                return fail(EAGAIN);
        node->locked_by = fd;
        return 0;
}

/* ---- the object ---- */

void simfs_ops(struct simfs *fs, struct io_ops *ret) {
        *ret = (struct io_ops){
                .openat = sim_openat,
                .close = sim_close,
                .mkdirat = sim_mkdirat,
                .unlinkat = sim_unlinkat,
                .renameat = sim_renameat,
                .linkat = sim_linkat,
                .fstat = sim_fstat,
                .fallocate = sim_fallocate,
                .ftruncate = sim_ftruncate,
                .pread = sim_pread,
                .pwrite = sim_pwrite,
                .fsync = sim_fsync,
                .fdatasync = sim_fsync,
                .list = sim_list,
                .try_lock = sim_try_lock,
                .context = fs,
        };
}

struct simfs *simfs_new(void) {
        struct simfs *fs = calloc(1, sizeof *fs);
        CAIRN_ASSERT(fs);
        (void) inode_new(fs, true);
        return fs;
}

struct simfs *simfs_free(struct simfs *fs) {
        if (!fs)
                return NULL;
        for (size_t i = 0; i < fs->inode_count; i++)
                inode_free(fs->inodes[i]);
        free(fs->inodes);
        free(fs->files);
        free(fs);
        return NULL;
}

/* What a crash could still bring back. */
static void mark_reachable(const struct simfs *fs, size_t inode, bool *reachable) {
        const struct inode *node = fs->inodes[inode];

        if (reachable[inode])
                return;
        reachable[inode] = true;
        for (size_t i = 0; i < node->entries.count; i++)
                mark_reachable(fs, node->entries.items[i].inode, reachable);
        for (size_t i = 0; i < node->durable_entries.count; i++)
                mark_reachable(fs, node->durable_entries.items[i].inode, reachable);
        for (size_t i = 0; i < node->change_count; i++)
                mark_reachable(fs, node->changes[i].inode, reachable);
}

struct simfs *simfs_clone(const struct simfs *fs) {
        static const struct inode nothing;
        struct simfs *copy = calloc(1, sizeof *copy);
        bool *reachable = calloc(fs->inode_count, sizeof *reachable);

        CAIRN_ASSERT(copy && reachable);
        copy->time = fs->time;
        mark_reachable(fs, 0, reachable);
        for (size_t i = 0; i < fs->inode_count; i++)
                /* NOLINTNEXTLINE(bugprone-sizeof-expression): likewise */
                *APPEND(copy->inodes, copy->inode_count, copy->inode_capacity) =
                        inode_copy(reachable[i] ? fs->inodes[i] : &nothing);
        free(reachable);
        return copy;
}

int simfs_root(struct simfs *fs) {
        return file_open(fs, 0, O_RDONLY | O_DIRECTORY, "/");
}

uint64_t simfs_calls(const struct simfs *fs) {
        return fs->calls;
}

void simfs_set_hook(struct simfs *fs, void (*before)(void *argument), void *argument) {
        fs->hook = before;
        fs->hook_argument = argument;
}

void simfs_fail(struct simfs *fs, uint64_t n, int error_number) {
        fs->fail_at = n;
        fs->fail_errno = error_number;
        fs->failed = false;
}

bool simfs_failed(const struct simfs *fs) {
        return fs->failed;
}

void simfs_set_sync_policy(struct simfs *fs,
                           enum simfs_sync (*policy)(const char *name, bool is_dir)) {
        fs->policy = policy;
}

void simfs_set_reuse_policy(struct simfs *fs, bool (*reuse)(const char *name)) {
        fs->reuse = reuse;
}

size_t simfs_open_count(const struct simfs *fs) {
        size_t count = 0;
        for (size_t i = 0; i < fs->file_count; i++)
                count += fs->files[i].used;
        return count;
}
