"""Models that torch compiles."""

from __future__ import annotations

import importlib.util
import os
import shutil

import torch

from atta.errors import ConfigError

__all__ = ["compile_in_place"]


def compile_in_place(model: torch.nn.Module, device: torch.device, backend: str = "inductor") -> None:
    """Have ``torch.compile`` turn the forward and backward pass of ``model`` into kernels, at its first call.

    Batches differ in size, so sizes are variables of the kernels: each piece of code is compiled once or twice, not once
    per batch. What torch cannot compile runs as it is. Weights keep their names, so checkpoints are those of other runs.

    Args:
        model: called as before.
        device: that it computes on.
        backend: of ``torch.compile``.

    Raises:
        ConfigError: the device's compiler is missing.
    """
    if backend == "inductor":
        _check_compiler(device)
    torch._dynamo.config.suppress_errors = True
    model.compile(dynamic=True, backend=backend)


def _check_compiler(device: torch.device) -> None:
    if device.type == "cuda":
        if importlib.util.find_spec("triton") is None:
            raise ConfigError("--compile: needs the package triton to make kernels for a GPU")
        return
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None:
        raise ConfigError(f"--compile: needs a C++ compiler, and there is no {compiler}; CXX names another one")
