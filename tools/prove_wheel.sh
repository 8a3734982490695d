#!/bin/sh
# prove_wheel.sh [PYTHON...]: proves the wheels in dist. For each Python (python3.11) it makes a fresh environment with the
# wheel and what that requires, and tries it (tools/check_wheel.sh), also by tests of daemons and clients without torch.
# Then it adds the extra `train` and tries the wheel again, unless CLIENT_ALONE=1.
set -eu
cd "$(dirname "$0")/.."
tests="tests/unit/dag tests/unit/kvstore tests/unit/operators tests/unit/platform tests/unit/security
  tests/system/test_certificates.py tests/system/test_daemon.py tests/system/test_daemons_of_parts.py
  tests/system/test_identity.py tests/system/test_live.py tests/system/test_parameters.py"
for python in "${@:-python3.11}"; do
  work=$PWD/build/proof/$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
  rm -rf "$work"
  "$python" -m venv "$work"
  proved=$work/bin/python
  install() { "$proved" -m pip install -qq --disable-pip-version-check "$@"; }
  install --no-index --no-deps --find-links dist atta
  install -c constraints.txt atta
  PYTHON=$proved tools/check_wheel.sh
  install -c constraints.txt hypothesis pytest pytest-timeout pyyaml
  # shellcheck disable=SC2086 - $tests are several words; the command `atta bench` is in another wheel
  "$proved" -m pytest -q -p no:cacheprovider -k "not test_bench" $tests
  if [ -n "${CLIENT_ALONE:-}" ]; then continue; fi
  install -c constraints.txt "atta[train]"
  PYTHON=$proved tools/check_wheel.sh
done
