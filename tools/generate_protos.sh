#!/bin/sh
# Generates protos/v1/*_pb2.py{,i} from protos/atta/v1/*.proto. They are imported as atta.protos.v1. With --check, only
# compares.
set -eu
cd "$(dirname "$0")/.."
python="${PYTHON:-.venv/bin/python}"
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
"$python" -m grpc_tools.protoc -I protos --python_out="$out" --pyi_out="$out" protos/atta/v1/*.proto
mkdir -p "$out/v1" protos/v1
for file in "$out"/atta/v1/*; do
  sed -e 's/^from atta\.v1 import/from atta.protos.v1 import/' "$file" > "$out/v1/$(basename "$file")"
done
echo '"""Generated from protos/atta/v1 by tools/generate_protos.sh; do not edit."""' > "$out/v1/__init__.py"
if [ "${1:-}" = --check ]; then
  diff -r -x __pycache__ "$out/v1" protos/v1 || { echo "protos/v1 is stale: run make protos" >&2; exit 1; }
else
  cp "$out"/v1/* protos/v1/
fi
