"""The arguments of a traced function, leaf by leaf, and how two calls differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf


@dataclass(frozen=True)
class Leaf:
    """One value of a call.

    Attributes:
        dtype: Of tensors and arrays.
        shape: Of tensors and arrays; None for an unknown axis or rank.
        value: Of Python values, of which each new one is a new trace.
    """

    dtype: str = ""
    shape: tuple[int | None, ...] | None = None
    value: str = ""

    def __str__(self) -> str:
        if self.value:
            return f"Python value {self.value}"
        return f"{self.dtype} of shape {'unknown' if self.shape is None else self.shape}"


Signature = Mapping[str, Leaf]


def signature(arguments: Mapping[str, Any]) -> Signature:
    """Return the path of each leaf (`images`, `labels['class']`, `data[0]`) to its description."""
    return {path: leaf for name, value in arguments.items() for path, leaf in _leaves(name, value)}


def nearest(call: Signature, known: list[Signature]) -> Signature:
    """Return the known signature that differs from `call` in the fewest leaves, the latest among equals."""
    return min(reversed(known), key=lambda other: len(differences(other, call)))


def differences(before: Signature, now: Signature) -> list[str]:
    """Return what changed, a line for each leaf, with what to do about it."""
    paths = dict.fromkeys([*before, *now])
    return [_difference(path, before.get(path), now.get(path)) for path in paths if before.get(path) != now.get(path)]


def _difference(path: str, before: Leaf | None, now: Leaf | None) -> str:
    if before is None or now is None:
        return f"{path}: {before or 'absent'} before, {now or 'absent'} now; always pass the same structure"
    return f"{path}: {before} before, {now} now; {_way_out(before, now)}"


def _way_out(before: Leaf, now: Leaf) -> str:
    if now.value or before.value:
        return "each new Python value is a new trace, so pass it as a tensor (tf.constant)"
    if before.dtype != now.dtype:
        return "cast it in the dataset"
    if _smaller_batch(before, now):
        return "the partial last batch: use batch(..., drop_remainder=True)"
    return "pad or resize to one shape, or give the function an input_signature with None for that axis"


def _smaller_batch(before: Leaf, now: Leaf) -> bool:
    if not before.shape or not now.shape or before.shape[1:] != now.shape[1:]:
        return False
    size_before, size_now = before.shape[0], now.shape[0]
    return size_before is not None and size_now is not None and size_now < size_before


def _leaves(path: str, value: Any) -> Iterator[tuple[str, Leaf]]:
    if isinstance(value, Mapping):
        for key, inside in value.items():
            yield from _leaves(f"{path}[{key!r}]", inside)
    elif isinstance(value, (list, tuple)):
        for index, inside in enumerate(value):
            yield from _leaves(f"{path}[{index}]", inside)
    elif isinstance(value, (tf.data.Iterator, tf.data.Dataset)):
        yield from _leaves(f"elements of {path}", value.element_spec)
    else:
        yield path, _leaf(value)


def _leaf(value: Any) -> Leaf:
    dtype, shape = getattr(value, "dtype", None), getattr(value, "shape", None)
    if isinstance(value, (bool, int, float, str, bytes, np.generic)) or dtype is None:
        return Leaf(value=_short(value))
    if isinstance(shape, tf.TensorShape):
        shape = tuple(shape.as_list()) if shape.rank is not None else None
    return Leaf(dtype=tf.as_dtype(dtype).name, shape=shape)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
