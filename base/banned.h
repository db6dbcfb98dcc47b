/* SPDX-License-Identifier: Apache-2.0
 *
 * banned.h - included before every source by the Makefile: functions without a bound, without an
 * error or with hidden state break the build where they are named. The system headers come first,
 * since they may name them.
 */
#ifndef CAIRN_BANNED_H
#define CAIRN_BANNED_H

#include <alloca.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#undef alloca
#undef strdupa
#undef strndupa
#pragma GCC poison strcpy strcat strncpy strncat stpcpy strtok sprintf vsprintf gets alloca \
        strdupa strndupa
#pragma GCC poison atoi atol atoll atof tmpnam tempnam mktemp asctime ctime

#endif
