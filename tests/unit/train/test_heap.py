"""Freed memory goes back to the kernel, even if an object that lives on lies above it."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import ctypes
from pathlib import Path
from atta.train.steps.heap import give_back_freed
from atta.train.launching.worker import keep_freed_memory

def resident():
    return next(int(l.split()[1]) >> 10 for l in Path("/proc/self/status").read_text().splitlines() if l.startswith("VmRSS"))

keep_freed_memory()
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
blocks = []
for _ in range(50):  # a block of 2 MiB, and a small one that stays
    blocks.append(libc.malloc(2 << 20))
    ctypes.memset(blocks[-1], 1, 2 << 20)
    libc.malloc(5000)
for block in blocks:
    libc.free(block)
before = resident()
give_back_freed()
print(before - resident())
"""


def test_freed_blocks_between_others_are_given_back() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert int(done.stdout) > 90  # MiB of 100
