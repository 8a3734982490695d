#!/bin/sh
# Runs mypy --strict on the package as it is installed. Its import package has four folders, so links join them.
set -eu
cd "$(dirname "$0")/.."
tree=build/typing
rm -rf "$tree"
mkdir -p "$tree/atta"
for entry in platform/atta/*; do ln -s "$PWD/$entry" "$tree/atta/"; done
for folder in samplers partition protos; do ln -s "$PWD/$folder" "$tree/atta/$folder"; done
MYPYPATH="$tree" .venv/bin/python -m mypy --config-file pyproject.toml -p atta
