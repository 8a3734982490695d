"""Weights as a safetensors file: 8 bytes with the length of a JSON header, the header, then the tensors' bytes.

The format is that of https://github.com/huggingface/safetensors. Any reader of it can open the file, and nothing in it
can run code.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import torch

_TYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_ALIGNED = 8


def safetensors_bytes(weights: Mapping[str, torch.Tensor], about: Mapping[str, str]) -> bytes:
    """The content of a safetensors file. ``about``: its metadata, texts by name.

    Raises:
        TypeError: a tensor has a type that the format does not know.
    """
    header: dict[str, object] = {"__metadata__": dict(about)}
    pieces, end = [], 0
    for name, tensor in sorted(weights.items()):
        if tensor.dtype not in _TYPES:
            raise TypeError(f"{name}: {tensor.dtype} has no place in a safetensors file")
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        piece = flat.view(torch.uint8).numpy().tobytes()
        offsets = [end, end + len(piece)]
        header[name] = {"dtype": _TYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": offsets}
        pieces.append(piece)
        end += len(piece)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNED)
    return len(text).to_bytes(8, "little") + text + b"".join(pieces)
