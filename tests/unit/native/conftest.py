"""``ATTA_NATIVE=path/to/_native.so`` runs the kernel tests on another build, e.g. the sanitised one."""

from __future__ import annotations

import importlib.util
import os
import sys

if path := os.environ.get("ATTA_NATIVE"):
    spec = importlib.util.spec_from_file_location("atta._native", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["atta._native"] = module
    spec.loader.exec_module(module)
