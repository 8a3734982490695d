"""Messages and bytes that are changed at random, guided by the definitions of the messages."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
from google.protobuf.descriptor import FieldDescriptor

__all__ = ["change", "change_value", "mutated"]

INTEGERS = [0, 1, 2, 3, 7, 64, 1 << 16, (1 << 31) - 1]
WIDE = [*INTEGERS, 1 << 31, (1 << 32) - 1]
LONG = [*WIDE, 1 << 32, (1 << 63) - 1]
TEXTS = [
    "", "x", "node", "node__to__node", "train", "plain", "stepped", "write", "add", "step", "fp16", "int8", "nodes:node",
    "edges:node__to__node", "saint-nodes", "..", "a/b", "\0", "y" * 300, "0" * 16, "{", '{"budget": 30}', "[" * 5000,
    "[]", "null", "3", '{"name": 3}', "<i8", "<f4", "|O", "é\ud7ff", "127.0.0.1:1",
]  # fmt: skip
ARRAYS = [b"", b"\0" * 8, b"\0" * 4, b"\1" * 7, b"\xff" * 16, np.arange(9).tobytes(), np.array([1 << 62, -1]).tobytes(),
          np.arange(40, dtype=np.float32).tobytes()]  # fmt: skip
REALS = [0.0, 1.0, -1.0, 0.5, 1e-300, 1e300, float("inf"), float("nan")]
VALUES: dict[int, list[Any]] = {
    FieldDescriptor.CPPTYPE_INT32: [*INTEGERS, -1, -(1 << 31)],
    FieldDescriptor.CPPTYPE_INT64: [*LONG, -1, -(1 << 63)],
    FieldDescriptor.CPPTYPE_UINT32: WIDE,
    FieldDescriptor.CPPTYPE_UINT64: [*LONG, (1 << 64) - 1],
    FieldDescriptor.CPPTYPE_BOOL: [False, True],
    FieldDescriptor.CPPTYPE_DOUBLE: REALS,
    FieldDescriptor.CPPTYPE_FLOAT: REALS,
    FieldDescriptor.CPPTYPE_ENUM: [0, 1, 2, 9, -1],
}
PLAIN = [
    None, True, 0, -1, 3, 1 << 40, 10**30, -0.5, 1e300, "", "x", "a/b", "..", "0" * 16, [], [1], [[]], {}, {"x": 1},
]  # fmt: skip
"""Values of a JSON or TOML document."""


def value_of(field: FieldDescriptor, rng: random.Random) -> Any:
    """A value that means something, or is far from it."""
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return rng.choice(TEXTS if field.type == FieldDescriptor.TYPE_STRING else ARRAYS)
    return rng.choice(VALUES[field.cpp_type])


def change(message: Any, rng: random.Random, share: float) -> None:
    """Change about this share of the fields of a message, at any depth."""
    for field in message.DESCRIPTOR.fields:
        found = getattr(message, field.name)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            if rng.random() < share:
                found[rng.choice(TEXTS)] = 3
        elif field.message_type is not None:
            for inner in found if field.is_repeated else [found] * message.HasField(field.name):
                change(inner, rng, share)
            if rng.random() < share / 3:
                change(found.add() if field.is_repeated else found, rng, 0.5)
        elif rng.random() < share:
            if field.is_repeated:
                found.extend(value_of(field, rng) for _ in range(rng.randrange(4)))
            elif rng.random() < 0.2:
                message.ClearField(field.name)
            else:
                setattr(message, field.name, value_of(field, rng))


def change_value(value: Any, rng: random.Random, share: float) -> Any:
    """A JSON value with about this share of its entries replaced, left out or added, at any depth."""
    if rng.random() < share / 2:
        return rng.choice(PLAIN)
    if isinstance(value, dict):
        kept = {k: change_value(v, rng, share) for k, v in value.items() if rng.random() >= share / 4}
        return {**kept, rng.choice(["", "x", "1", "size"]): rng.choice(PLAIN)} if rng.random() < share / 4 else kept
    if isinstance(value, list | tuple):
        kept_entries = [change_value(v, rng, share) for v in value if rng.random() >= share / 4]
        return [*kept_entries, rng.choice(PLAIN)] if rng.random() < share / 4 else kept_entries
    if isinstance(value, int | float) and not isinstance(value, bool) and rng.random() < share:
        return rng.choice([value + 1, -value, value * 2, value - 1])
    return value


def mutated(raw: bytes, rng: random.Random) -> bytes:
    data = bytearray(raw)
    for _ in range(rng.randrange(1, 5)):
        at = rng.randrange(len(data) + 1)
        match rng.randrange(4):
            case 0 if at < len(data):
                data[at] ^= 1 << rng.randrange(8)
            case 1:
                del data[at : at + rng.randrange(4)]
            case 2:
                data[at:at] = data[at : at + rng.randrange(20)] or b"\xff"
            case _:
                del data[at + rng.randrange(1 + len(data) - at) :]
    return bytes(data)
