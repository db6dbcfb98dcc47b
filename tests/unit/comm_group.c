/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/comm_group.h"

#include "base/clock.h"
#include <dirent.h>
#include <errno.h>
#include <sys/mman.h>

static void pause_ms(unsigned ms) {
        clock_system.sleep_ns(NULL, ms * NSEC_PER_MSEC);
}

/* ---- the store ---- */

static int check_silent(struct dir_store *s, uint64_t deadline_ns, struct cairn_error *reterr) {
        if (!s->silent || !*s->silent)
                return 0;
        while (clock_now(&clock_system) < deadline_ns)
                pause_ms(1);
        return error_set(reterr, CAIRN_ERR_UNREACHABLE, "ask store", s->path, "it is silent");
}

static int dir_set(void *context, const char *key, const void *value, size_t bytes,
                   uint64_t deadline_ns, struct cairn_error *reterr) {
        struct dir_store *s = context;
        char path[400], temporary[400];

        TRY(check_silent(s, deadline_ns, reterr));
        (void) snprintf(path, sizeof path, "%s/%s", s->path, key);
        (void) snprintf(temporary, sizeof temporary, "%s/.%s.%d", s->path, key, (int) getpid());
        FILE *f = fopen(temporary, "we");
        if (!f || fwrite(value, 1, bytes, f) != bytes || fclose(f) != 0 ||
            rename(temporary, path) < 0)
                return error_set_errno(reterr, errno, "set", key);
        return 0;
}

static int dir_get(void *context, const char *key, void *buf, size_t bytes_max, size_t *ret_bytes,
                   uint64_t deadline_ns, struct cairn_error *reterr) {
        struct dir_store *s = context;
        char path[400];

        TRY(check_silent(s, deadline_ns, reterr));
        (void) snprintf(path, sizeof path, "%s/%s", s->path, key);
        for (;;) {
                FILE *f = fopen(path, "re");
                if (f) {
                        *ret_bytes = fread(buf, 1, bytes_max, f);
                        bool more = fgetc(f) != EOF;
                        (void) fclose(f);
                        return more ? error_set(reterr, CAIRN_ERR_CORRUPT, "get", key, "too large")
                                    : 0;
                }
                if (clock_now(&clock_system) >= deadline_ns)
                        return error_set(reterr, CAIRN_ERR_TIMEOUT, "get", key, "it is not there");
                pause_ms(1);
        }
}

static int dir_list(void *context, const char *prefix, comm_store_visit_fn visit, void *argument,
                    uint64_t deadline_ns, struct cairn_error *reterr) {
        struct dir_store *s = context;
        const struct dirent *entry;
        char value[4096];
        size_t bytes;

        TRY(check_silent(s, deadline_ns, reterr));
        DIR *d = opendir(s->path);
        if (!d)
                return error_set_errno(reterr, errno, "list", s->path);
        while ((entry = readdir(d)))
                if (strncmp(entry->d_name, prefix, strlen(prefix)) == 0 &&
                    dir_get(s, entry->d_name, value, sizeof value, &bytes, 0, reterr) == 0)
                        visit(entry->d_name, value, bytes, argument);
        (void) closedir(d);
        return 0;
}

static int dir_generation(void *context, uint64_t *ret, uint64_t deadline_ns,
                          struct cairn_error *reterr) {
        char text[32] = "";
        size_t bytes;

        TRY(dir_get(context, "generation", text, sizeof text - 1, &bytes, deadline_ns, reterr));
        *ret = strtoull(text, NULL, 10);
        return 0;
}

struct comm_store dir_store_verbs(struct dir_store *s) {
        return (struct comm_store){
                .set = dir_set,
                .get = dir_get,
                .list = dir_list,
                .generation = dir_generation,
                .context = s,
        };
}

void dir_store_set_generation(const struct dir_store *s, uint64_t generation) {
        struct dir_store copy = *s;
        char text[32];
        int bytes = snprintf(text, sizeof text, "%llu", (unsigned long long) generation);
        assert_int_equal(dir_set(&copy, "generation", text, (size_t) bytes, 0, NULL), 0);
}

/* ---- ranks ---- */

void group_init(struct group *g, const char *back_end, int world) {
        *g = (struct group){.world = world, .back_end = back_end};
        int fd = test_folder(g->store.path, sizeof g->store.path);
        (void) close(fd);
        dir_store_set_generation(&g->store, 7);
        g->ranks = mmap(NULL, sizeof *g->ranks * GROUP_RANKS_MAX, PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        assert_true(g->ranks != MAP_FAILED);
}

void group_done(struct group *g) {
        for (int rank = 0; rank < g->world; rank++)
                if (g->pids[rank] > 0) {
                        (void) kill(g->pids[rank], SIGKILL);
                        (void) waitpid(g->pids[rank], NULL, 0);
                }
        (void) munmap(g->ranks, sizeof *g->ranks * GROUP_RANKS_MAX);
}

struct comm_options group_options(struct group *g, int rank) {
        struct comm_options o = COMM_OPTIONS_INIT;

        o.back_end = g->back_end;
        o.rank = rank;
        o.world = g->world;
        o.generation = 7;
        o.interface = "127.0.0.1";
        o.store = dir_store_verbs(&g->store);
        o.bootstrap_ns = 30 * NSEC_PER_SEC;
        o.collective_ns = o.silence_ns = o.abort_ns = 2 * NSEC_PER_SEC;
        return o;
}

void group_start(struct group *g, int rank, void (*body)(struct group *g, int rank)) {
        (void) fflush(NULL);
        g->pids[rank] = fork();
        assert_true(g->pids[rank] >= 0);
        if (g->pids[rank] == 0) {
                body(g, rank);
                _exit(0);
        }
}

int group_wait(struct group *g, int rank, double seconds) {
        uint64_t end_ns = clock_now(&clock_system) + (uint64_t) (seconds * (double) NSEC_PER_SEC);
        int status;

        for (;;) {
                pid_t pid = waitpid(g->pids[rank], &status, WNOHANG);
                if (pid == g->pids[rank]) {
                        g->pids[rank] = 0;
                        return status;
                }
                assert_int_equal(pid, 0);
                if (clock_now(&clock_system) > end_ns)
                        fail_msg("rank %d has not ended within %.1f s", rank, seconds);
                pause_ms(2);
        }
}

void group_run(struct group *g, void (*body)(struct group *g, int rank)) {
        for (int rank = 0; rank < g->world; rank++)
                group_start(g, rank, body);
        for (int rank = 0; rank < g->world; rank++)
                assert_int_equal(group_wait(g, rank, 60), 0);
}

void group_await(struct group *g, int rank, int mark) {
        uint64_t end_ns = clock_now(&clock_system) + 60 * NSEC_PER_SEC;

        while (!g->ranks[rank].marks[mark]) {
                if (clock_now(&clock_system) > end_ns)
                        fail_msg("rank %d has not set mark %d", rank, mark);
                pause_ms(1);
        }
}

double group_seconds(const struct group *g, int rank) {
        return (double) (g->ranks[rank].end_ns - g->ranks[rank].begin_ns) / (double) NSEC_PER_SEC;
}

void group_assert_in_time(const struct group *g, int rank, double limit) {
        double seconds = group_seconds(g, rank);
        if (seconds > limit + (double) COMM_MARGIN_NS / (double) NSEC_PER_SEC + 2)
                fail_msg("rank %d came back after %.1f s, its limit was %.1f s", rank, seconds,
                         limit);
}

void group_assert_error(const struct group *g, int rank, int status, const char *operation,
                        const char *part) {
        const struct group_rank *r = &g->ranks[rank];
        char text[1024];

        if (r->status != status || !strstr(r->error.operation, operation) ||
            !strstr(r->error.message, part))
                fail_msg("rank %d: %s, %s", rank, status_name(r->status),
                         error_format(&r->error, text, sizeof text));
}

void group_hang(void) {
        for (;;)
                (void) pause();
}
