"""Runs a peer's own test files over Atta: `make peers FOLDER=...`.

    python -m tests.peers pytorch_geometric/test/loader --json peers.json

FOLDER has test files of PyG or of DGL, for the installed version; nothing is fetched, and they are no part of this
repository. For each case it prints whether it passed over Atta, differs for a reason that the documents give
(`tests/peers/differences.toml`), or shows a fault. The exit code is 1 if there is a fault, or no case at all.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import warnings
from collections import Counter
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

import pytest

from tests.peers import dgl, pyg
from tests.peers.graphs import Graphs
from tests.peers.outcomes import Case, Outcome, Recorder
from tests.preloaded.commands import Commands


def main() -> int:
    """Run the cases, print and record what they tell; return the exit code."""
    options = _arguments()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="atta-peers-")))
        stack.enter_context(contextlib.chdir(folder))  # some tests write where they are
        commands = Commands()
        stack.callback(commands.close)
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setattr(subprocess, "Popen", commands.popen)  # daemons are forked: they start in no time
        root = options.files[0] if options.files[0].is_dir() else options.files[0].parent
        graphs, servers = Graphs(folder, options.parts), dgl.Servers()
        stack.callback(graphs.close)
        stack.callback(servers.close)
        pyg.hand_over(graphs)
        dgl.hand_over(servers, root)
        recorder = Recorder(lambda: graphs.asked + servers.asked, _print_case, pyg.as_if_installed)
        chosen = ["-k", options.only] if options.only else []
        pytest.main([*_PLAIN, "--rootdir", str(root), *chosen, *map(str, options.files)], [recorder])
    counts = Counter(case.outcome for case in recorder.cases)
    print(", ".join(f"{counts[outcome]} {outcome.value}" for outcome in Outcome))
    if options.json is not None:
        rows = [{**asdict(case), "outcome": case.outcome.value} for case in recorder.cases]
        options.json.write_text(json.dumps({"parts": options.parts, "cases": rows}, indent=1) + "\n")
    return int(bool(counts[Outcome.FAULT]) or not recorder.cases)


_PLAIN = ["-p", "no:terminal", "-p", "no:cacheprovider", "--continue-on-collection-errors", "-c", os.devnull]
"""Neither the settings of this project's tests nor those of the peer's."""


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.peers", description="Run a peer's test files over Atta.")
    parser.add_argument("files", type=Path, nargs="+", help="folder with the peer's tests, or some of its files")
    parser.add_argument("--only", help="run cases whose names fit, as pytest's -k")
    parser.add_argument("--parts", type=int, default=2, help="partitions, so daemons, of each graph (2)")
    parser.add_argument("--json", type=Path, help="also write the outcomes to this file")
    options = parser.parse_args()
    options.files = [path.resolve() for path in options.files]
    options.json = options.json and options.json.resolve()
    if missing := [path for path in options.files if not path.exists()]:
        parser.error(f"{missing[0]}: there is nothing")
    return options


def _print_case(case: Case) -> None:
    reason = f": {case.why}" if case.why else ""
    where = f" ({case.document})" if case.document else ""
    print(f"{case.outcome.value:22} {case.name}{reason}{where}", flush=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    sys.exit(main())
