/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/rendezvous_http.h"
#include "base/cleanup.h"

#define CURL_DISABLE_TYPECHECK /* its macros take the names of the members below */
#include <curl/curl.h>
#include <dlfcn.h>
#include <errno.h>
#include <stdbool.h>
#include <string.h>

#define OPERATION "ask etcd"
#define LIBRARY "libcurl.so.4"
enum { HOSTS_MAX = 16 };

/* Loaded when the first rendezvous of this kind is opened: savers and store processes are the same
 * program and start without libcurl and all that it brings, also where it is not installed. */
/* clang-format off */
#define FUNCTIONS(X)                                                                    \
        X(curl_global_init) X(curl_easy_init) X(curl_easy_setopt) X(curl_easy_perform)  \
        X(curl_easy_getinfo) X(curl_easy_cleanup) X(curl_easy_strerror)                 \
        X(curl_slist_append) X(curl_slist_free_all)
/* clang-format on */

struct library {
#define MEMBER(name) __typeof__(name) *name;
        FUNCTIONS(MEMBER)
#undef MEMBER
};

struct http {
        struct library library;
        void *loaded; /* never unloaded: it keeps threads and exit handlers of its own */
        CURL *curl;
        struct curl_slist *headers;
        char *hosts[HOSTS_MAX];
        size_t host_count, host; /* host: that answered last */
};
struct sink {
        char *bytes;
        size_t count, capacity;
        bool too_long;
};

static size_t take(char *bytes, size_t size, size_t count, void *argument) {
        struct sink *s = argument;
        size_t n = size * count;

        if (n > HTTP_ANSWER_BYTES_MAX - s->count) {
                s->too_long = true;
                return 0;
        }
        if (n > s->capacity - s->count) {
                size_t wanted = s->capacity ? s->capacity * 2 : 4096;
                while (wanted - s->count < n)
                        wanted *= 2;
                char *larger = realloc(s->bytes, wanted);
                if (!larger)
                        return 0;
                s->bytes = larger;
                s->capacity = wanted;
        }
        memcpy(s->bytes + s->count, bytes, n);
        s->count += n;
        return n;
}

static int load(struct http *h, struct cairn_error *reterr) {
        h->loaded = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
        if (!h->loaded)
                return error_set(
                        reterr, CAIRN_ERR_UNSUPPORTED, "load library", LIBRARY,
                        "a rendezvous at etcd needs it (Debian: apt-get install libcurl4)");
#define LOAD(name)                                                                       \
        h->library.name = (__typeof__(name) *) dlsym(h->loaded, #name);                  \
        if (!h->library.name)                                                            \
                return error_set(reterr, CAIRN_ERR_UNSUPPORTED, "load library", LIBRARY, \
                                 "it has no function " #name);
        FUNCTIONS(LOAD)
#undef LOAD
        return 0;
}

static bool set_options(struct http *h) {
        struct curl_slist *more;

        h->curl = h->library.curl_easy_init();
        h->headers = h->library.curl_slist_append(NULL, "Content-Type: application/json");
        more = h->headers ? h->library.curl_slist_append(h->headers, "Expect:")
                          : NULL; /* no second trip */
        return h->curl && more &&
               !h->library.curl_easy_setopt(h->curl, CURLOPT_HTTPHEADER, h->headers) &&
               !h->library.curl_easy_setopt(h->curl, CURLOPT_NOSIGNAL, 1L) &&
               !h->library.curl_easy_setopt(h->curl, CURLOPT_PROXY, "") &&
               !h->library.curl_easy_setopt(h->curl, CURLOPT_PROTOCOLS_STR, "http") &&
               !h->library.curl_easy_setopt(h->curl, CURLOPT_FOLLOWLOCATION, 0L) &&
               !h->library.curl_easy_setopt(h->curl, CURLOPT_HTTP_VERSION,
                                            (long) CURL_HTTP_VERSION_1_1) &&
               !h->library.curl_easy_setopt(h->curl, CURLOPT_WRITEFUNCTION, take) &&
               !h->library.curl_easy_setopt(h->curl, CURLOPT_POST, 1L);
}

int http_new(const char *hosts, struct http **ret, struct cairn_error *reterr) {
        struct http *h = calloc(1, sizeof *h);

        if (!h)
                return error_set_errno(reterr, ENOMEM, "set up HTTP", hosts);
        int r = load(h, reterr);
        if (r == 0 && (h->library.curl_global_init(CURL_GLOBAL_DEFAULT) != 0 || !set_options(h)))
                r = error_set_errno(reterr, ENOMEM, "set up HTTP", hosts);
        if (r < 0) {
                (void) http_free(h);
                return r;
        }
        while (h->host_count < HOSTS_MAX && *hosts) {
                size_t bytes = strcspn(hosts, ",");
                char *host = strndup(hosts, bytes);
                if (!host) {
                        (void) http_free(h);
                        return error_set_errno(reterr, ENOMEM, "set up HTTP", "");
                }
                h->hosts[h->host_count++] = host;
                hosts += bytes + (hosts[bytes] == ',');
        }
        *ret = h;
        return 0;
}

struct http *http_free(struct http *h) {
        if (!h)
                return NULL;
        for (size_t i = 0; i < h->host_count; i++)
                free(h->hosts[i]);
        if (h->curl) {
                h->library.curl_slist_free_all(h->headers);
                h->library.curl_easy_cleanup(h->curl);
        }
        free(h);
        return NULL;
}

static int describe(const struct http *h, CURLcode code, const struct sink *s, const char *host,
                    const char *text, struct cairn_error *reterr) {
        if (s->too_long)
                return error_set(reterr, CAIRN_ERR_PEER, OPERATION, host,
                                 "the answer is longer than %d bytes; this is not etcd, or other "
                                 "programs write beneath the prefix",
                                 (int) HTTP_ANSWER_BYTES_MAX);
        if (code == CURLE_OPERATION_TIMEDOUT)
                return error_set(reterr, CAIRN_ERR_TIMEOUT, OPERATION, host,
                                 "it does not answer in time; is it running, does it have a leader "
                                 "(`etcdctl endpoint status`), does the network reach it?");
        if (code == CURLE_OUT_OF_MEMORY || code == CURLE_WRITE_ERROR)
                return error_set_errno(reterr, ENOMEM, OPERATION, host);
        if (code == CURLE_COULDNT_CONNECT || code == CURLE_COULDNT_RESOLVE_HOST)
                return error_set(reterr, CAIRN_ERR_UNREACHABLE, OPERATION, host,
                                 "%s; is etcd running there, and is the address right?",
                                 *text ? text : h->library.curl_easy_strerror(code));
        return error_set(reterr, CAIRN_ERR_PEER, OPERATION, host,
                         "%s; what answers there is not etcd's client port, or it was just ended",
                         *text ? text : h->library.curl_easy_strerror(code));
}

static int try_host(struct http *h, const char *host, const char *path, const char *body,
                    uint64_t timeout_ns, struct http_answer *ret, struct cairn_error *reterr) {
        char url[512], text[CURL_ERROR_SIZE] = "";
        struct sink sink = {0};
        long milliseconds = (long) (timeout_ns / NSEC_PER_MSEC);

        (void) snprintf(url, sizeof url, "http://%s%s", host, path);
        bool set =
                !h->library.curl_easy_setopt(h->curl, CURLOPT_URL, url) &&
                !h->library.curl_easy_setopt(h->curl, CURLOPT_POSTFIELDS, body) &&
                !h->library.curl_easy_setopt(h->curl, CURLOPT_POSTFIELDSIZE, (long) strlen(body)) &&
                !h->library.curl_easy_setopt(h->curl, CURLOPT_TIMEOUT_MS, milliseconds) &&
                !h->library.curl_easy_setopt(h->curl, CURLOPT_ERRORBUFFER, text) &&
                !h->library.curl_easy_setopt(h->curl, CURLOPT_WRITEDATA, &sink);
        CURLcode code = set ? h->library.curl_easy_perform(h->curl) : CURLE_OUT_OF_MEMORY;
        (void) h->library.curl_easy_setopt(h->curl, CURLOPT_ERRORBUFFER, NULL);
        ret->status = 0;
        if (code == CURLE_OK)
                (void) h->library.curl_easy_getinfo(h->curl, CURLINFO_RESPONSE_CODE, &ret->status);
        if (code != CURLE_OK) {
                free(sink.bytes);
                return describe(h, code, &sink, host, text, reterr);
        }
        ret->bytes = sink.bytes;
        ret->count = sink.count;
        return 0;
}

int http_post(void *http, const char *path, const char *body, uint64_t deadline_ns,
              struct http_answer *ret, struct cairn_error *reterr) {
        struct http *h = http;
        int r = error_set(reterr, CAIRN_ERR_TIMEOUT, OPERATION, h->hosts[h->host],
                          "there is no time left to ask");

        *ret = (struct http_answer){0};
        for (size_t i = 0; i < h->host_count; i++) {
                uint64_t now_ns = clock_now(&clock_system);
                if (deadline_ns < now_ns + NSEC_PER_MSEC)
                        break;
                uint64_t left_ns = deadline_ns - now_ns;
                free(ret->bytes);
                *ret = (struct http_answer){0};
                r = try_host(h, h->hosts[h->host], path, body,
                             left_ns < HTTP_TRY_NS ? left_ns : HTTP_TRY_NS, ret, reterr);
                if (r == 0 && ret->status < 500 && ret->status != 429)
                        return 0;
                h->host = (h->host + 1) % h->host_count;
        }
        return r;
}
