/* SPDX-License-Identifier: Apache-2.0
 *
 * probe.h - `cairnd --probe`: what the saver's I/O thread finds on this machine, as one JSON object
 * on standard output, for `cairn doctor`:
 *
 *     {"backend": "io_uring", "registered_bytes": 67108864, "warning": null}
 *
 * A real ring is set up and a real memfd registered; both are gone afterwards.
 *
 * `cairnd --probe-gpu`: the driver, then each GPU (device/gpu_probe.h), an object a line as soon as
 * it is known; `error`, `slab` and `staging` are null or say what failed:
 *
 *     {"present": true, "library": "/lib/libcuda.so.1", "version": 12040, "count": 1,
 *      "none": false, "error": null}
 *     {"gpu": 0, "name": "...", "uuid": "GPU-...", "bus": "0000:01:00.0", "bytes": 85899345920,
 *      "capability": 90, "exclusive": false, "vmm": true, "posix_fd": true, "host_register": true,
 *      "full": false, "persistence": true, "error": null, "slab": null, "staging": null}
 *
 * `none`: the driver works and sees no GPU. `full`: the GPU's memory is, so that nothing could be
 * tried. `persistence` is null where it is unknown; of a GPU that cannot be asked only gpu and
 * error are there. The results are exit statuses.
 */
#ifndef CAIRN_AGENT_PROBE_H
#define CAIRN_AGENT_PROBE_H

int probe_main(void);
int probe_gpu_main(void);

#endif
