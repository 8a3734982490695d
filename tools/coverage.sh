#!/bin/sh
# coverage.sh [TESTS...]: run the tests (default: those of `make test`) and report the lines that they cover, daemons and trainers
# included. Lists every module below 80 %. Processes that tests kill with SIGKILL do not count. Takes twice as long as `make test`.
set -eu
cd "$(dirname "$0")/.."
python="$PWD/.venv/bin/python"
data=build/coverage
rm -rf "$data"
mkdir -p "$data"
failed=0
"$python" -m coverage run -m pytest -q -n logical --dist loadfile --no-loadscope-reorder -o timeout=600 "$@" || failed=$?
"$python" -m coverage combine --quiet
"$python" -m coverage json --quiet -o "$data/report.json"
"$python" tools/coverage_report.py "$data/report.json"
exit "$failed"
