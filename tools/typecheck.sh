#!/bin/sh
# Runs mypy --strict on the packages as they are installed. Links join the four folders of `atta`, and name `atta_bench`.
set -eu
cd "$(dirname "$0")/.."
tree=build/typing
rm -rf "$tree"
mkdir -p "$tree/atta"
for entry in platform/atta/*; do ln -s "$PWD/$entry" "$tree/atta/"; done
for folder in samplers partition protos; do ln -s "$PWD/$folder" "$tree/atta/$folder"; done
ln -s "$PWD/bench" "$tree/atta_bench"
MYPYPATH="$tree" .venv/bin/python -m mypy --config-file pyproject.toml -p atta -p atta_bench
