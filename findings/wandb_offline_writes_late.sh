#!/usr/bin/env bash
# wandb 0.31.0: an offline run keeps what it logs in memory for 15 s; a run that is killed before has a file of 7 bytes.
#
# WANDB_MODE=offline writes a file run-ID.wandb, a log of transactions, by a process of its own. Nothing of five calls of
# log() is in it after 3 s: it holds the magic number alone. SIGKILL of the script's process group, as a scheduler or the
# out-of-memory killer of a container does it, leaves this. With the setting x_transaction_log_flush_interval at 0.1 s the
# same script has its rows in the file.
#
# One would guess: what was logged offline, and committed by the next step, is in the file soon after.
# Ends with 0 as long as wandb behaves so. Needs Python 3.11 and a package index.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q wandb==0.31.0
cat > "$folder/killed.py" <<'PYTHON'
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LOGGED = """
import sys, time, wandb
given = {"x_transaction_log_flush_interval": float(sys.argv[1])} if len(sys.argv) > 1 else {}
run = wandb.init(project="p", settings=wandb.Settings(console="off", **given))
for step in range(5):
    run.log({"loss": 1.0 / (step + 1)}, step=step)
print("logged", flush=True)
time.sleep(60)
"""


def left_after_kill(*flush: str) -> int:
    """Bytes of the run's file, 3 s after the last of five steps, when all its processes are killed."""
    with tempfile.TemporaryDirectory() as folder:
        more = {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "WANDB_ERROR_REPORTING": "false", "WANDB_DIR": folder}
        script = subprocess.Popen(
            [sys.executable, "-c", LOGGED, *flush], stdout=subprocess.PIPE, env={**os.environ, **more}, start_new_session=True
        )
        while b"logged" not in script.stdout.readline():
            pass
        time.sleep(3)
        os.killpg(script.pid, signal.SIGKILL)
        script.wait()
        (file,) = Path(folder).rglob("*.wandb")
        return file.stat().st_size


import wandb

default, flushed = left_after_kill(), left_after_kill("0.1")
print(f"wandb {wandb.__version__}: {default} bytes are left of five steps; flushed every 0.1 s: {flushed}")
sys.exit(default != 7 or flushed < 500)
PYTHON
"$folder/venv/bin/python" "$folder/killed.py" 2>"$folder/errors" || { tail -5 "$folder/errors"; exit 1; }
