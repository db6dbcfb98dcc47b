/* SPDX-License-Identifier: Apache-2.0
 *
 * cairn doctor - can Cairn work here, and how well? One line a probe, each with its remedy.
 */
#include "tools/doctor.h"

#include "base/log.h"
#include "tools/command.h"
#include "tools/print_json.h"
#include "tools/store_view.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void doctor_say(struct doctor *d, enum verdict verdict, const char *probe, const char *remedy,
                const char *found, ...) {
        static const char *const marks[] = {"✓", "!", "✗"};
        static const char *const words[] = {"good", "weak", "bad"};
        char text[1024], escaped[2048];
        va_list arguments;
        va_start(arguments, found);
        (void) vsnprintf(text, sizeof text, found, arguments);
        va_end(arguments);
        if (verdict == VERDICT_GOOD)
                remedy = NULL;
        d->bad = d->bad || verdict == VERDICT_BAD;
        text_escape(escaped, sizeof escaped, text, strlen(text));
        if (d->probes)
                json_array_append_new(d->probes,
                                      json_pack("{s:s, s:s, s:o, s:s?}", "probe", probe, "verdict",
                                                words[verdict], "found",
                                                json_text(text, strlen(text)), "remedy", remedy));
        else
                printf("%s %-14s %s%s%s\n", marks[verdict], probe, escaped, remedy ? " → " : "",
                       remedy ? remedy : "");
        (void) fflush(stdout);
}

int command_doctor(const struct command *self, int argc, char **argv) {
        const char *store = NULL;
        bool json = false;
        size_t count;
        const struct option_row rows[] = {
                {"--json", NULL, OPTION_FLAG, &json, "one JSON object", NULL},
        };
        int r = options_parse(self, OPTION_ROWS(rows), argc, argv, &store, 1, &count, NULL);
        if (r != 0)
                return r < 0 ? status_exit_code(CAIRN_ERR_API) : 0;
        struct doctor d = {.probes = json ? json_array() : NULL};
        const char *environment = getenv("CAIRN_STORE");
        bool named = store || (environment && *environment);
        store = store_view_default(store);
        doctor_host(&d);
        doctor_gpu(&d);
        bool host_bad = d.bad;
        d.bad = false;
        doctor_store(&d, store, named);
        int status = d.bad ? status_exit_code(CAIRN_ERR_UNREACHABLE) : host_bad ? 1 : 0;
        if (!json)
                return status;
        r = print_json(json_pack("{s:b, s:o, s:o}", "good", status == 0, "store",
                                 json_text(store, strlen(store)), "probes", d.probes));
        return r ? r : status;
}
