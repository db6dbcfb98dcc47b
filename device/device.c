/* SPDX-License-Identifier: Apache-2.0 */
#include "device/device.h"
#include "device/cuda_driver.h"

struct verb {
        const char *name;
        bool present;
};

int device_ops_check(const struct device_ops *ops, struct cairn_error *reterr) {
        if (!ops || !ops->name)
                return error_set(reterr, CAIRN_ERR_FATAL, "check device table", "",
                                 "it has no name");
        const struct verb verbs[] = {
                {"open", ops->open},
                {"close", ops->close},
                {"granularity", ops->granularity},
                {"allocate", ops->allocate},
                {"release", ops->release},
                {"export_fd", ops->export_fd},
                {"import_fd", ops->import_fd},
                {"unmap", ops->unmap},
                {"copy_async", ops->copy_async},
                {"event_record", ops->event_record},
                {"event_query", ops->event_query},
                {"event_wait", ops->event_wait},
                {"event_done", ops->event_done},
                {"synchronize", ops->synchronize},
                {"check_memory", ops->check_memory},
                {"host_register", ops->host_register},
                {"host_unregister", ops->host_unregister},
        };
        for (size_t i = 0; i < sizeof verbs / sizeof *verbs; i++)
                if (!verbs[i].present)
                        return error_set(reterr, CAIRN_ERR_FATAL, "check device table", ops->name,
                                         "the verb %s is missing", verbs[i].name);
        return 0;
}

bool device_error_is_final(const struct cairn_error *e) {
        return e->status == CAIRN_ERR_DEVICE &&
               cuda_result_is_sticky((enum cuda_result) e->system_code);
}
