/* SPDX-License-Identifier: Apache-2.0
 *
 * override.h - does the trainer know what the operator overrides? A key that is misspelt would
 * otherwise change nothing, and nobody would be told.
 *
 * Known are: what the trainer described, what it asked for (cairn_override), what the checkpoint
 * describes, `step` and `step/NAME` of a registered tensor. Pure; any thread.
 */
#ifndef CAIRN_CLIENT_OVERRIDE_H
#define CAIRN_CLIENT_OVERRIDE_H

#include "client/binding.h"

/* API names the first unknown key, and what comes near it, else what there is. `asked`: parallel to
 * the overrides, those that need no check. */
int override_check(const struct pair *overrides, const _Atomic bool *asked, size_t count,
                   const struct registry *r, const struct stored *s, struct cairn_error *reterr);

#endif
