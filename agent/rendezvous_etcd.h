/* SPDX-License-Identifier: Apache-2.0
 *
 * rendezvous_etcd.h - the kind with another transport than HTTP, for tests and fuzzing.
 */
#ifndef CAIRN_AGENT_RENDEZVOUS_ETCD_H
#define CAIRN_AGENT_RENDEZVOUS_ETCD_H

#include "agent/rendezvous.h"
#include "agent/rendezvous_http.h"

/* http_post, or the like. */
typedef int (*etcd_post)(void *context, const char *path, const char *body, uint64_t deadline_ns,
                         struct http_answer *ret, struct cairn_error *reterr);

/* A `kind` of rendezvous_etcd_ops; the context stays the caller's. */
int rendezvous_etcd_new(const struct rendezvous_place *place, etcd_post post, void *context,
                        void **ret, struct cairn_error *reterr);

#endif
