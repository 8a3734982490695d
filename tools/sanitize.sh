#!/bin/sh
# Builds the kernels with AddressSanitizer and UndefinedBehaviorSanitizer in another folder, and runs their tests on it.
# Then it damages frames of links under the same sanitizers (FRAMES), and lets threads use links under ThreadSanitizer
# (SECONDS_OF_STRESS).
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
  tests/unit/partition/test_methods.py tests/unit/kvstore/test_rows.py tests/unit/kvstore/test_machine.py \
  tests/unit/kvstore/test_codecs.py tests/unit/kvstore/test_spec.py tests/unit/kvstore/test_mutable.py tests/unit/kvstore/test_cache.py

# program SANITIZERS NAME: tests/fuzz/NAME.cpp
program() {
  nice g++ -std=c++20 -O2 -g -Wall -Wextra -Werror -fvisibility=hidden "-fsanitize=$1" -fno-sanitize-recover=all \
    -ffunction-sections -Wl,--gc-sections -Isamplers/native -Iplatform/atta/daemon/native -Iplatform/atta/kvstore/native \
    -isystem "$("$python" -m nanobind --include_dir)" \
    -isystem "$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')" \
    "tests/fuzz/$2.cpp" -o "$out/$2" -pthread
}
program address,undefined frames
program thread stress
"$out/frames" "${FRAMES:-1000000}" "${SEED:-0}"
TSAN_OPTIONS=halt_on_error=1 "$out/stress" "${SECONDS_OF_STRESS:-60}" "${SEED:-0}"
