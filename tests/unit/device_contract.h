/* SPDX-License-Identifier: Apache-2.0
 *
 * device_contract.h - what device.h promises, asserted of any implementation. Content is looked at
 * through copies to registered host memory, so that it may lie on a GPU.
 */
#ifndef CAIRN_TESTS_UNIT_DEVICE_CONTRACT_H
#define CAIRN_TESTS_UNIT_DEVICE_CONTRACT_H

#include "device/device.h"

/* Memory of a process that was killed; in a process that opened no device of the kind yet. */
void contract_memory_outlives_its_owner(const struct device_ops *ops);

void contract_memory_is_zeroed_and_shared(struct device *d);
void contract_foreign_descriptors_are_refused(struct device *d);
void contract_sizes_out_of_range_are_refused(struct device *d);
/* check_memory has nothing against memory that is whole: a device's, registered, plain. */
void contract_good_memory_is_taken(struct device *d);
void contract_copies_and_events(struct device *d);
void contract_chunks_arrive(struct device *d);
/* A `look` of chunks.h stops the copy; nothing is left in flight. */
void contract_chunks_stop(struct device *d);

/* A life of a device: everything that it can do, with a look at the bytes. Not 0: the first error,
 * and everything was given back. */
int contract_life(const struct device_ops *ops, struct cairn_error *reterr);

/* Registered, page-aligned host memory of 2^n pages. */
unsigned char *contract_host_new(struct device *d, uint64_t bytes);
void contract_host_free(struct device *d, unsigned char *p, uint64_t bytes);
uint64_t contract_deadline(void); /* far away */

#endif
