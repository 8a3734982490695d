#!/bin/sh
# Rewrites constraints.txt from what is installed in .venv: every package pinned, without local version suffixes.
set -eu
cd "$(dirname "$0")/.."
{
  echo "# Every package that Atta is built and tested with, pinned. Refresh with tools/pin.sh."
  .venv/bin/python -m pip list --format=freeze | grep -v -i -E '^(atta|pip|setuptools)==' | sed -E 's/\+[A-Za-z0-9.]+$//' | sort -f
} > constraints.txt
