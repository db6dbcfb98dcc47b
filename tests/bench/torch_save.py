# SPDX-License-Identifier: Apache-2.0
#
# What Cairn is compared with: torch.save and fsync of a dict of tensors, and torch.load of a file that is not
# in the page cache. torch_save.py FOLDER COUNT BYTES prints "save S load L", in seconds.
import os
import sys
import time

import torch

path = os.path.join(sys.argv[1], "state.pt")
count, size = int(sys.argv[2]), int(sys.argv[3])
state = {f"model.layers.{i:06d}.weight": torch.rand(size // 4) for i in range(count)}
torch.set_num_threads(1)

start = time.monotonic()
with open(path, "wb") as f:
    torch.save(state, f)
    f.flush()
    os.fsync(f.fileno())
saved = time.monotonic() - start

fd = os.open(path, os.O_RDONLY)
os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
os.close(fd)
start = time.monotonic()
torch.load(path)
loaded = time.monotonic() - start
os.unlink(path)
print(f"save {saved:.6f} load {loaded:.6f}")
