/* SPDX-License-Identifier: Apache-2.0 */
#include "trainer/agreement.h"
#include "base/cleanup.h"
#include "kernels/digest.h"
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>

/* What fits one line of an error; the rest is counted. */
enum { EXPLAINED_MAX = 3, VALUE_COLUMNS = 60 };

void agreement_add(struct agreement *a, const char *key, const char *format, ...) {
        char line[1024];
        va_list arguments;

        int key_bytes = snprintf(line, sizeof(line), "%.200s ", key);
        va_start(arguments, format);
        (void) vsnprintf(line + key_bytes, sizeof(line) - (size_t) key_bytes - 1, format,
                         arguments);
        va_end(arguments);
        size_t bytes = strcspn(line, "\n");
        line[bytes++] = '\n';
        if (a->bytes + bytes + 1 > a->capacity) {
                size_t larger = 2 * a->capacity + sizeof(line);
                char *text = realloc(a->text, larger);
                if (!text) {
                        a->failed = true;
                        return;
                }
                a->text = text;
                a->capacity = larger;
        }
        memcpy(a->text + a->bytes, line, bytes);
        a->bytes += bytes;
        a->text[a->bytes] = '\0';
}

void agreement_done(struct agreement *a) {
        free(a->text);
        *a = (struct agreement){0};
}

/* The value of a line's key in another rank's text; NULL: it has no such line. */
static const char *find_value(const char *text, const char *line, size_t key_bytes) {
        for (; text && *text; text = strchr(text, '\n'), text += text != NULL)
                if (!strncmp(text, line, key_bytes))
                        return text + key_bytes;
        return NULL;
}

static bool same_line(const char *a, const char *b) {
        size_t bytes = strcspn(a, "\n");

        return strcspn(b, "\n") == bytes && !memcmp(a, b, bytes);
}

struct explanation {
        char *text;
        size_t bytes, at, differences;
};

static void explain_line(struct explanation *x, const char *line, const char *other,
                         uint32_t line_rank, uint32_t other_rank) {
        size_t key_bytes = strcspn(line, " ");
        const char *value = line + key_bytes + 1;

        if (x->differences++ >= EXPLAINED_MAX || x->at >= x->bytes)
                return;
        int width = (int) strcspn(value, "\n"),
            other_width = other ? (int) strcspn(other, "\n") : 0;
        x->at += (size_t) snprintf(
                x->text + x->at, x->bytes - x->at,
                "%s%.*s is %.*s on rank %" PRIu32 " and %.*s on rank %" PRIu32, x->at ? "; " : "",
                (int) key_bytes, line, width < VALUE_COLUMNS ? width : VALUE_COLUMNS, value,
                line_rank, other ? other_width < VALUE_COLUMNS ? other_width : VALUE_COLUMNS : 7,
                other ? other : "missing", other_rank);
}

void agreement_explain(const char *const *texts, uint32_t world, char *ret, size_t bytes) {
        struct explanation x = {.text = ret, .bytes = bytes};

        *ret = '\0';
        for (uint32_t rank = 1; rank < world; rank++) {
                for (const char *line = texts[0]; *line; line = strchr(line, '\n') + 1) {
                        size_t key_bytes = strcspn(line, " ") + 1;
                        const char *other = find_value(texts[rank], line, key_bytes);
                        if (!other || !same_line(line + key_bytes, other))
                                explain_line(&x, line, other, 0, rank);
                }
                for (const char *line = texts[rank]; *line; line = strchr(line, '\n') + 1)
                        if (!find_value(texts[0], line, strcspn(line, " ") + 1))
                                explain_line(&x, line, NULL, rank, 0);
        }
        if (x.differences > EXPLAINED_MAX && x.at < bytes)
                (void) snprintf(ret + x.at, bytes - x.at, "; and %zu more",
                                x.differences - EXPLAINED_MAX);
}

/* The ranks' digests differ: exchange the texts. */
static int exchange_texts(const struct agreement *a, struct group *g, size_t bytes_max,
                          struct cairn_error *reterr) {
        size_t part = bytes_max + 1;
        _cleanup_free_ char *all = calloc(g->world, part);
        _cleanup_free_ const char **texts = calloc(g->world, sizeof(*texts));
        char explanation[480];

        if (!all || !texts)
                return error_set_errno(reterr, ENOMEM, "compare ranks", "texts");
        memcpy(all + g->rank * part, a->text, a->bytes);
        TRY(group_spread(g, all, part, reterr));
        for (uint32_t rank = 0; rank < g->world; rank++)
                texts[rank] = all + rank * part;
        agreement_explain(texts, g->world, explanation, sizeof(explanation));
        return error_set(reterr, CAIRN_ERR_MISMATCH, "compare ranks", "", "%s", explanation);
}

int agreement_check(struct agreement *a, struct group *g, struct cairn_error *reterr) {
        struct {
                uint64_t digest, bytes;
        } * all;
        bool equal = true;
        size_t bytes_max = 0;

        if (a->failed)
                return error_set_errno(reterr, ENOMEM, "compare ranks", "text");
        _cleanup_free_ void *memory = calloc(g->world, sizeof(*all));
        all = memory;
        if (!all)
                return error_set_errno(reterr, ENOMEM, "compare ranks", "digests");
        all[g->rank].digest = digest_bytes(a->text, a->bytes);
        all[g->rank].bytes = a->bytes;
        TRY(group_spread(g, all, sizeof(*all), reterr));
        for (uint32_t rank = 0; rank < g->world; rank++) {
                equal = equal && all[rank].digest == all[0].digest &&
                        all[rank].bytes == all[0].bytes;
                if (all[rank].bytes > bytes_max)
                        bytes_max = all[rank].bytes;
        }
        return equal ? 0 : exchange_texts(a, g, bytes_max, reterr);
}
