"""Prints the coverage of all modules together, and every module below the bound with the reason, if there is one.

python tools/coverage_report.py build/coverage/report.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

BOUND = 80.0
_PEER = "the tests marked `peer` run it"
_SLOW = "the tests marked `slow` run it"
_GPU = "half of it is for a GPU; tests/unit/train/test_transfer.py runs it where there is one"
REASONS = {
    "bench/lab/distdgl.py": _PEER,
    "bench/lab/distdgl_worker.py": _PEER,
    "bench/lab/flow.py": _SLOW,
    "bench/loader/benchmark.py": _SLOW,
    "bench/loader/consumer.py": _SLOW,
    "bench/loader/scheduler.py": _SLOW,
    "bench/train/run.py": _SLOW,
    "bench/train/strategies.py": _SLOW,
    "bench/train/worker.py": _SLOW,
    "platform/atta/observe/packages.py": "two of its six lines are for a source tree that was never installed",
    "platform/atta/train/steps/timing.py": _GPU,
}
"""Why a module stays below the bound."""


def main() -> None:
    """Print the table."""
    document = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    summaries = {path: entry["summary"] for path, entry in document["files"].items()}
    low = {path: s["percent_covered"] for path, s in summaries.items() if s["percent_covered"] < BOUND}
    total = document["totals"]
    lines = f"{total['covered_lines']:,} of {total['num_statements']:,} lines"
    print(f"{lines} in {len(summaries)} modules: {total['percent_covered']:.1f} %")
    print(f"modules below {BOUND:g} %: {len(low)}")
    for path, percent in sorted(low.items(), key=lambda item: item[1]):
        print(f"{percent:6.1f} %  {path}  {REASONS.get(path, '')}".rstrip())


if __name__ == "__main__":
    main()
