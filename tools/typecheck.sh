#!/bin/sh
# mypy --strict over the package as it is installed. Four folders make one import package: links put them together.
set -eu
cd "$(dirname "$0")/.."
tree=build/typing
rm -rf "$tree"
mkdir -p "$tree/atta"
for entry in platform/atta/*; do ln -s "$PWD/$entry" "$tree/atta/"; done
for folder in samplers partition protos; do ln -s "$PWD/$folder" "$tree/atta/$folder"; done
MYPYPATH="$tree" .venv/bin/python -m mypy --config-file pyproject.toml -p atta
