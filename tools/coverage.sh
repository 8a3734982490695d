#!/bin/sh
# coverage.sh [TESTS...]: run the tests (default: the tests of `make test`) and report the lines that they cover. Lines
# that daemons and trainers run count, too. Processes that tests kill with SIGKILL do not count. Lists every module below
# 80 %. It takes about twice as long as `make test`.
set -eu
cd "$(dirname "$0")/.."
python="$PWD/.venv/bin/python"
data=build/coverage
rm -rf "$data"
mkdir -p "$data"
failed=0
pytest="pytest -q -n logical --dist loadfile --no-loadscope-reorder -o timeout=600"
# shellcheck disable=SC2086 - $pytest is several words
"$python" -m coverage run -m $pytest "$@" || failed=$?
"$python" -m coverage combine --quiet
"$python" -m coverage json --quiet -o "$data/report.json"
"$python" tools/coverage_report.py "$data/report.json"
exit "$failed"
