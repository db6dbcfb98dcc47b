/* SPDX-License-Identifier: Apache-2.0
 *
 * rendezvous_record.h - what lies in a rendezvous store, as JSON text, the same in both kinds; and
 * the checks of what goes in and comes out. Bytes from a store are nobody's: whatever they hold,
 * parsing gives a record within its limits or CORRUPT with a sentence, and allocates in proportion
 * to them.
 *
 *   member      {"node":"a","address":"10.0.0.1:4711","nonce":"0123456789abcdef","ranks":8,
 *                "detail":"..."}
 *   generation  {"number":3,"leader":"a","leader_nonce":"...","world":16,
 *                "master_port":29500,"parent":"...","secret":"64 hex digits","members":[{"node":..,
 *                "address":..,"nonce":..,"ranks":..,"first_rank":..},...]}
 */
#ifndef CAIRN_AGENT_RENDEZVOUS_RECORD_H
#define CAIRN_AGENT_RENDEZVOUS_RECORD_H

#include "agent/rendezvous.h"

#define RENDEZVOUS_MEMBER_TEXT_BYTES_MAX (8 * KiB)
#define RENDEZVOUS_GENERATION_TEXT_BYTES_MAX (2 * MiB)

/* Of names (node, key): API with the rule. `what` names it in the sentence. */
int rendezvous_check_name(const char *name, const char *what, struct cairn_error *reterr);
/* host:port; without a port only if it may be left out. */
bool rendezvous_is_address(const char *text, size_t bytes, bool port_optional);
int rendezvous_check_member(const struct rendezvous_member *m, struct cairn_error *reterr);
/* Number, world, parent and members; not the leader, who is filled in later. */
int rendezvous_check_generation(const struct rendezvous_generation *g, struct cairn_error *reterr);

/* The text is malloc'ed, without a zero at its end counted. */
int rendezvous_member_text(const struct rendezvous_member *m, char **ret, size_t *ret_bytes,
                           struct cairn_error *reterr);
int rendezvous_member_parse(const void *bytes, size_t count, const char *object,
                            struct rendezvous_member *ret, struct cairn_error *reterr);
int rendezvous_generation_text(const struct rendezvous_generation *g, char **ret, size_t *ret_bytes,
                               struct cairn_error *reterr);
/* The members are malloc'ed: rendezvous_generation_done. */
int rendezvous_generation_parse(const void *bytes, size_t count, const char *object,
                                struct rendezvous_generation *ret, struct cairn_error *reterr);
void rendezvous_generation_done(struct rendezvous_generation *g); /* leaves it empty */
const struct rendezvous_member *rendezvous_find(const struct rendezvous_member *members,
                                                size_t count, const char *node, uint64_t nonce);

#endif
