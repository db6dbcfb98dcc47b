/* SPDX-License-Identifier: Apache-2.0
 *
 * bench.h - `cairnd --bench write|read|snapshot --dir D --bytes N [--keep NAME] [--json]`: how fast
 * the saver's own parts are on this machine. A trainer's state of N bytes is made up and goes
 * through copier, writer and reader as in a session:
 *
 *     write      copied state -> data file and manifest, checksums, both synced
 *     read       the data file -> staging, every checksum verified; past the page cache
 *     snapshot   slabs -> staging, beside a plain memcpy of the same bytes
 *
 * Prints one line, or {"what","bytes","seconds","bytes_per_second","backend","direct"} (snapshot
 * adds "first_seconds", "memcpy_bytes_per_second"). Takes 2 N of memory. Files have no names, so
 * that nothing is left; with --keep the data file stays in D under NAME, for whoever wants to
 * measure the same file (EEXIST where there is one already). The result is an exit status.
 */
#ifndef CAIRN_AGENT_BENCH_H
#define CAIRN_AGENT_BENCH_H

int bench_main(int argc, char **argv);

#endif
