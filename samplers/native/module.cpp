// Python bindings of the native kernels: the one file that knows about Python.
#include <nanobind/nanobind.h>

namespace nb = nanobind;

NB_MODULE(_native, m) { m.doc() = "Atta's native kernels."; }
