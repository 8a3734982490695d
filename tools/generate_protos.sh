#!/bin/sh
# Generates protos/v1/*_pb2*.py from protos/atta/v1/*.proto, importable as atta.protos.v1.
set -eu
cd "$(dirname "$0")/.."
python="${PYTHON:-.venv/bin/python}"
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
mkdir -p protos/v1
"$python" -m grpc_tools.protoc -I protos --python_out="$out" --pyi_out="$out" --grpc_python_out="$out" protos/atta/v1/*.proto
for file in "$out"/atta/v1/*; do
  sed -e 's/^from atta\.v1 import/from atta.protos.v1 import/' "$file" > "protos/v1/$(basename "$file")"
done
echo '"""Generated from protos/atta/v1 by tools/generate_protos.sh; do not edit."""' > protos/v1/__init__.py
