"""How the system reads mapped files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np

PROGRAM = """
import re, sys
from pathlib import Path
from atta.partition.disk.files import map_bytes, read_page_by_page

def mapped(name):
    with open(name, "rb") as file:
        return map_bytes(file, Path(name).stat().st_size)

def flags(name):
    maps = re.split(r"(?m)^(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text())
    return [re.search("VmFlags:(.*)", map).group(1).split() for map in maps if name in map.partition("\\n")[0]]

before, after = sys.argv[1:]
held = [mapped(before)]
[found] = flags(before)
assert "rr" not in found, found
read_page_by_page()
held.append(mapped(after))
for name in (before, after):
    [found] = flags(name)
    assert "rr" in found, found
print(*(sum(bytes(map)) for map in held))
"""


def test_files_that_do_not_stay_in_memory_are_read_page_by_page(tmp_path: Path) -> None:
    names = [tmp_path / "before", tmp_path / "after"]
    rng = np.random.default_rng(1)
    written = [rng.integers(0, 256, 10_000, dtype=np.uint8) for _ in names]
    for name, values in zip(names, written, strict=True):
        name.write_bytes(values.tobytes())
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *map(str, names)], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == [str(values.sum()) for values in written]
