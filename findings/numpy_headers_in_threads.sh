#!/usr/bin/env bash
# numpy 2.4.6 on CPython 3.11: np.load of an intact .npy file raises SystemError when several threads load files and the
# garbage collector has a callback in Python.
#
# np.load has the header of a file parsed by ast.literal_eval. CPython 3.11 counts the depth of the tree that it builds in
# one place for all threads. The collector may run in between; a callback of its own (gc.callbacks, a finaliser of weakref)
# lets another thread run, which counts there, too. Then the first one fails: "AST constructor recursion depth mismatch".
# Data loaders with threads and caches with finalisers are such programs. Without the callback all files are read.
#
# One would guess: reading a file that nobody writes to does not depend on what other threads read.
# Ends with 0 as long as it behaves so. Needs Python 3.11 and a package index.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q numpy==2.4.6
"$folder/venv/bin/python" - "$folder/rows.npy" <<'PYTHON'
import gc
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np

path = sys.argv[1]
np.save(path, np.arange(12.0).reshape(3, 4))
gc.set_threshold(10)
sys.setswitchinterval(1e-5)


def busy(*_):
    for _ in range(100):
        pass


def load(_):
    try:
        return str(np.load(path).shape)
    except SystemError as error:
        return str(error).partition(" (")[0]


def outcomes():
    with ThreadPoolExecutor(8) as pool:
        return set(pool.map(load, range(20_000)))


without = outcomes()
gc.callbacks.append(busy)
with_callback = outcomes()
print(f"Python {sys.version.split()[0]}, numpy {np.__version__}: {without} without a callback, {with_callback} with one")
wrong = {"AST constructor recursion depth mismatch"}
sys.exit(without != {"(3, 4)"} or with_callback != {"(3, 4)"} | wrong)
PYTHON
