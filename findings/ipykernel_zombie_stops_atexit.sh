#!/usr/bin/env bash
# ipykernel 7.4.0: a kernel that has started a process without waiting for it never runs what atexit was told.
#
# On a shutdown the kernel asks the processes of its group to end and waits until none is left. A child that has ended
# long ago, and was not waited for, stays in the process table as a zombie, and counts. So the kernel waits for it until
# jupyter_client loses patience after 2.5 s and sends a signal, and the interpreter ends without its exit functions: no
# file is flushed, no cluster closed. A child that was waited for, or that has a process group of its own, does no harm.
#
# One would guess: a child that has ended keeps nobody waiting.
# Ends with 0 as long as ipykernel behaves so. Needs Python 3.11 and a package index.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q ipykernel==7.4.0 jupyter_client==8.10.0
cat > "$folder/shutdown.py" <<'PYTHON'
import sys
import time
from pathlib import Path

import ipykernel
import jupyter_client
from jupyter_client.manager import start_new_kernel

CASES = {
    "no child": "",
    "waited for": "child = subprocess.run(['true'])",
    "a group of its own": "child = subprocess.Popen(['true'], process_group=0); time.sleep(0.5)",
    "not waited for": "child = subprocess.Popen(['true']); time.sleep(0.5)",
}
folder, found = Path(sys.argv[1]), {}
for number, (name, code) in enumerate(CASES.items()):
    mark = folder / f"exited-{number}"
    manager, client = start_new_kernel()
    told = f"import atexit, pathlib, subprocess, time\nmark = atexit.register(pathlib.Path({str(mark)!r}).touch)\n{code}"
    client.execute_interactive(told)
    began = time.monotonic()
    manager.shutdown_kernel()
    found[name] = time.monotonic() - began, mark.exists()
    client.stop_channels()
print(f"ipykernel {ipykernel.__version__}, jupyter_client {jupyter_client.__version__}")
for name, (seconds, ran) in found.items():
    print(f"{name}: shutdown took {seconds:.1f} s, exit functions ran: {ran}")
sys.exit([ran for _, ran in found.values()] != [True, True, True, False] or found["not waited for"][0] < 2)
PYTHON
PATH="$folder/venv/bin:$PATH" "$folder/venv/bin/python" "$folder/shutdown.py" "$folder" 2>"$folder/errors" || { tail -5 "$folder/errors"; exit 1; }
