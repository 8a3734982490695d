"""The heap: freed memory is kept for the next step, or goes back although an object that lives on lies above it."""

from __future__ import annotations

import os
import subprocess
import sys

LIBC = """
import ctypes, resource
from pathlib import Path
from atta.observe.machine.memory import give_back_freed, keep_freed
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
keep_freed()
"""
STEPS = """
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def step():
    block = libc.malloc(64 << 20)
    ctypes.memset(block, 1, 64 << 20)
    libc.free(block)

step()
before = faults()
step()
print(faults() - before)
"""
SCATTERED = """
def resident():
    return next(int(l.split()[1]) >> 10 for l in Path("/proc/self/status").read_text().splitlines() if l.startswith("VmRSS"))

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


def printed(script: str, **env: str) -> int:
    run = [sys.executable, "-c", LIBC + script]
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_TUNABLES"))}
    return int(subprocess.run(run, capture_output=True, text=True, check=True, env=plain | env).stdout)


def test_a_step_meets_the_pages_of_the_last_one() -> None:
    assert printed(STEPS) < 10  # of 16,384, or of 32 huge pages


def test_settings_of_the_environment_hold() -> None:
    assert printed(STEPS, MALLOC_MMAP_THRESHOLD_=str(1 << 20)) >= 32


def test_freed_blocks_between_others_are_given_back() -> None:
    assert printed(SCATTERED) > 90  # MiB of 100
