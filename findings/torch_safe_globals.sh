#!/usr/bin/env bash
# torch 2.13.0: leaving a safe_globals block un-registers a class that was registered before the block.
#
# torch.serialization.add_safe_globals([Kind]) admits a class for the rest of the process. A library that later loads a
# file within `with torch.serialization.safe_globals([Kind])` takes it away again on leaving the block: it subtracts what
# it was given, and does not put back what there was. From then on the program's own torch.load of Kind fails. PyG
# registers its classes when it is imported, so any such block with one of them breaks loading PyG's data sets.
#
# One would guess: a context manager restores what it found.
# Ends with 0 as long as torch behaves so. Needs Python 3.11 and a package index.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q torch==2.13.0 numpy
"$folder/venv/bin/python" - "$folder/kind.pt" 2>/dev/null <<'PYTHON'
import pickle
import sys

import torch
from torch.serialization import add_safe_globals, safe_globals


class Kind:
    pass


torch.save(Kind(), sys.argv[1])
add_safe_globals([Kind])
before = type(torch.load(sys.argv[1])).__name__
with safe_globals([Kind]):
    torch.load(sys.argv[1])
try:
    after = type(torch.load(sys.argv[1])).__name__
except pickle.UnpicklingError:
    after = "refused"
print(f"torch {torch.__version__}: before the block {before}, after it {after}")
sys.exit((before, after) != ("Kind", "refused"))
PYTHON
