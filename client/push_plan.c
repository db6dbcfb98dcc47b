/* SPDX-License-Identifier: Apache-2.0 */
#include "client/push_plan.h"
#include "format/layout.h"
#include <errno.h>

int push_plan_make(const struct registry *r, struct file_content *inventory, uint32_t rank,
                   struct arena *arena, struct push_plan **ret, uint64_t *ret_image_bytes,
                   struct cairn_error *reterr) {
        struct push_plan *p = malloc(sizeof *p + r->tensor_count * sizeof *p->items);
        if (!p)
                return error_set_errno(reterr, ENOMEM, "plan copies", "inventory");
        *p = (struct push_plan){.seal = inventory->inventory->seal};
        int status = layout_assign(inventory, rank, arena, ret_image_bytes, reterr);
        if (status < 0) {
                free(p);
                return status;
        }
        p->image_bytes = *ret_image_bytes;
        for (size_t i = 0; i < r->tensor_count; i++) {
                const struct tensor *t = &r->tensors[i];
                const Cairn__Format__Tensor *record = inventory->tensors[i];
                if (record->n_extents == 0)
                        continue; /* empty, tied, or another rank's */
                p->items[p->count++] = (struct push_item){
                        .source = t->shadow ? t->shadow : t->data,
                        .offset = record->extents[0]->offset,
                        .bytes = t->bytes,
                };
        }
        *ret = p;
        return 0;
}

void push_plan_free(struct push_plan *p) {
        free(p);
}
