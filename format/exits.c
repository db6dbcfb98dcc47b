/* SPDX-License-Identifier: Apache-2.0 */
#include "format/exits.h"
#include <stddef.h>

const char *exit_final_reason(int code) {
        switch (code) {
        case 64:
                return "it was called wrongly";
        case 65:
                return "its data or checkpoint is damaged or does not fit";
        case 66:
                return "what it needs is missing";
        case 73:
                return "it cannot write";
        case 77:
                return "it is not allowed to";
        case 78:
                return "its settings do not fit";
        default:
                return NULL;
        }
}
