"""A cluster as one batch script of Slurm: daemons on all nodes, trainers on the first ones. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from atta.cli.cluster.rendering.plan import DeploymentPlan

_SCRIPT = """\
#!/bin/bash
# Daemons and trainers of a run, for: sbatch FILE. Edit what your site does otherwise.
#SBATCH --job-name={name}
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node=1
#SBATCH --mem={memory}M
#SBATCH --time=24:00:00
#SBATCH --signal=B:TERM@120
set -euo pipefail

# Where all nodes see the cluster file and the logs.
folder="${{SLURM_SUBMIT_DIR:-$PWD}}/{name}-$SLURM_JOB_ID"
mkdir -p "$folder"
mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")

{{
    for part in {parts}; do
        printf '[[daemon]]\\npart = %d\\naddress = "%s:{port}"\\n\\n' "$part" "${{hosts[$part]}}"
    done{tls}
}} > "$folder/cluster.toml"

# Task n of this step serves partition n. --overlap lets trainers run on the same nodes.
srun --overlap --nodes={daemons} --ntasks={daemons} --relative=0 --kill-on-bad-exit=0 \\
    --output="$folder/daemon-%t.log" \\
    {daemon} &
serving=$!
stop() {{
    atta stop --cluster "$folder/cluster.toml" || kill "$serving" 2>/dev/null || true
    wait "$serving" || true
}}
trap stop EXIT
trap 'exit 143' TERM
"""
_TRAINERS = """
# Machine n of this step is task n. They wait for the daemons and for each other.
srun --overlap --nodes={nodes} --ntasks={nodes} --relative=0 \\
    {trainer} &
wait $!
"""
_ALONE = """
# Until the time of the job ends, or scancel.
wait "$serving"
"""


def sbatch(plan: DeploymentPlan, tls: Mapping[str, str], callers: Mapping[str, str]) -> str:
    """The script. ``tls``: options of daemons and their files; ``callers``: what trainers bring, by key."""
    folder = "$folder"
    text = _SCRIPT.format(
        name=plan.name,
        nodes=max(plan.parts, plan.nodes),
        memory=-(-plan.memory >> 20) + (2048 * (plan.trainers // plan.nodes) if plan.nodes else 0),
        parts=" ".join(map(str, range(plan.parts))),
        port=plan.port,
        daemons=plan.parts,
        daemon=_command(plan.daemon(f"{folder}/cluster.toml", tls)),
        tls=_tls(callers) if plan.tls else "",
    )
    if not plan.nodes:
        return text + _ALONE
    trainer = _command(plan.trainer(f"{folder}/cluster.toml", "${hosts[0]}"))
    return text + _TRAINERS.format(nodes=plan.nodes, trainer=trainer)


def _tls(callers: Mapping[str, str]) -> str:
    lines = ["[tls]", *(f'{key} = "{path}"' for key, path in callers.items())]
    return "\n    printf '%s\\n' " + " ".join(map(shlex.quote, lines))


def _command(words: list[str]) -> str:
    """The words on one line for bash. The script's own variables stay variables."""
    ours = ("$folder/", "${hosts[0]}:")
    return " ".join(f'"{word}"' if word.startswith(ours) else shlex.quote(word) for word in words)
