#!/bin/sh
# Makes what a release consists of in dist/: the wheels for this machine, the source archive, a list of all packages that
# an installation brings (CycloneDX, with the pinned versions), and the SHA-256 of each file.
set -eu
cd "$(dirname "$0")/.."
python="$PWD/.venv/bin/python"
work=build/release
rm -rf "$work"
mkdir -p "$work"
rm -f dist/atta*
tools/wheel.sh >/dev/null
"$python" -m build --sdist --no-isolation --outdir dist . >"$work/log.txt" 2>&1 || { cat "$work/log.txt" >&2; exit 1; }
version=$("$python" -c "import importlib.metadata as m; print(m.version('atta'))")

# What an installation brings is read from one: a fresh environment with the wheel and nothing else, not even pip.
"$python" -m venv --without-pip "$work/installed"
"$python" -m pip --python "$work/installed/bin/python" install -qq --disable-pip-version-check -c constraints.txt \
  --find-links dist "atta==$version"
"$python" -m venv "$work/tool"
"$work/tool/bin/python" -m pip install -qq --disable-pip-version-check cyclonedx-bom
sbom="dist/atta-$version.cdx.json"
"$work/tool/bin/cyclonedx-py" environment --pyproject pyproject.toml --mc-type library --short-PURLs --output-reproducible \
  --of JSON -o "$sbom" "$work/installed/bin/python" 2>>"$work/log.txt" || { cat "$work/log.txt" >&2; exit 1; }
"$python" tools/check_sbom.py "$sbom" "$work/installed/bin/python"
(cd dist && sha256sum atta* | tee SHA256SUMS)
