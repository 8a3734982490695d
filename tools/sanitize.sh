#!/bin/sh
# Builds the kernels with AddressSanitizer and UndefinedBehaviorSanitizer in another folder, and runs their tests on it.
set -eu
cd "$(dirname "$0")/.."
python="$PWD/.venv/bin/python"
out=build/sanitize
"$PWD/.venv/bin/cmake" -S . -B "$out" -G Ninja -DATTA_SANITIZE=ON -DCMAKE_BUILD_TYPE=RelWithDebInfo \
  -DCMAKE_MAKE_PROGRAM="$PWD/.venv/bin/ninja" -DPython_EXECUTABLE="$python" > /dev/null
"$PWD/.venv/bin/cmake" --build "$out"
library=$(find "$PWD/$out" -maxdepth 1 -name '_native*.so')
LD_PRELOAD="$(g++ -print-file-name=libasan.so) $(g++ -print-file-name=libubsan.so)" ASAN_OPTIONS=detect_leaks=0 \
  UBSAN_OPTIONS=halt_on_error=1 ATTA_NATIVE="$library" "$python" -m pytest -q -p no:cacheprovider tests/unit/native \
  tests/unit/partition/test_methods.py tests/unit/kvstore/test_rows.py tests/unit/kvstore/test_steps.py \
  tests/unit/kvstore/test_codecs.py tests/unit/kvstore/test_initial.py tests/unit/kvstore/test_mutable.py tests/unit/kvstore/test_cache_policies.py
