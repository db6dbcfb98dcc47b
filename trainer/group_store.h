/* SPDX-License-Identifier: Apache-2.0
 *
 * group_store.h - libcairn's exchange as the store in which a communicator's ranks find each other.
 * The context is the handle, which has to live as long as the communicator.
 */
#ifndef CAIRN_TRAINER_GROUP_STORE_H
#define CAIRN_TRAINER_GROUP_STORE_H

#include "client/cairn.h"
#include "comm/comm.h"

struct comm_store group_store(struct cairn *c);

#endif
