// What the kernels use of the processor that they run on. Results never depend on it.
#pragma once

#if defined(__SSE2__)
#pragma GCC diagnostic push  // GCC 12 takes the lanes that its own header leaves open for a mistake
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop
#endif

#include <cstdlib>
#include <string_view>

namespace atta {

// It is found out once in a process. For measurements and tests, `ATTA_PROCESSOR` overrides it with words between commas:
// "amd" or "intel" chooses how memory is requested, "avx2" or "plain" forbids wider instructions.
struct Processor {
  bool amd = false;     // its maker
  bool avx2 = false;    // with FMA
  bool avx512 = false;  // F, DQ and CD

  static const Processor& here() {
    static const Processor found = look();
    return found;
  }

 private:
  static Processor look() {
    Processor found;
#if defined(__x86_64__)
    found.amd = __builtin_cpu_is("amd") != 0;
    found.avx2 = __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0;
    found.avx512 = __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512dq") != 0 &&
                   __builtin_cpu_supports("avx512cd") != 0;
#endif
    const char* const given = std::getenv("ATTA_PROCESSOR");
    const std::string_view words = given == nullptr ? "" : given;
    const auto says = [&](std::string_view word) { return words.find(word) != std::string_view::npos; };
    if (says("amd")) found.amd = true;
    if (says("intel")) found.amd = false;
    if (says("avx2") || says("plain")) found.avx512 = false;
    if (says("plain")) found.avx2 = false;
    return found;
  }
};

}  // namespace atta
