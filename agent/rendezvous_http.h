/* SPDX-License-Identifier: Apache-2.0
 *
 * rendezvous_http.h - POST of a JSON text to one of several hosts, with a deadline. The host that
 * answered last is asked first; one that does not answer in HTTP_TRY_NS, or says that it cannot
 * serve (5xx, 429), is passed over. A request may reach two hosts: callers ask only for what may
 * happen twice. No proxy, no redirect, no more than HTTP_ANSWER_BYTES_MAX of an answer.
 */
#ifndef CAIRN_AGENT_RENDEZVOUS_HTTP_H
#define CAIRN_AGENT_RENDEZVOUS_HTTP_H

#include "base/clock.h"
#include "base/limits.h"
#include "base/status.h"
#include <stddef.h>

#define HTTP_TRY_NS (1 * NSEC_PER_SEC)
#define HTTP_ANSWER_BYTES_MAX (8 * MiB)

struct http;

struct http_answer {
        long status; /* 200 */
        void *bytes; /* malloc'ed; the caller's */
        size_t count;
};

/* host:port[,host:port...] */
int http_new(const char *hosts, struct http **ret, struct cairn_error *reterr);
struct http *http_free(struct http *h);
/* An answer of any status is a success, 5xx only if no host has a better one. UNREACHABLE: no
 * connection; TIMEOUT: no answer, so that the outcome is unknown; PEER: no HTTP, or too long. */
int http_post(void *http, const char *path, const char *body, uint64_t deadline_ns,
              struct http_answer *ret, struct cairn_error *reterr);

#endif
