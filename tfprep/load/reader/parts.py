"""One field on its way from stored bytes into its output."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import numpy as np

from tfprep import images
from tfprep.codecs import (
    Boxes,
    Codec,
    Encoded,
    InPlace,
    Jpeg,
    Original,
    Png,
    Raw,
    Scalar,
    Text,
    Texts,
    TopK,
    Zstd,
    feature_value,
)
from tfprep.errors import SampleError
from tfprep.fields import Array, FieldSpec, Size, stored_name
from tfprep.load.outputs import PADDING, Output, channels_of
from tfprep.load.threads import ThreadState
from tfprep.records import decode as decode_example
from tfprep.records import unpack

FEW_CHANNELS = 4
"""Up to this many channels are copied one at a time: NumPy copies an array of pixels of 3 bytes into every fifth, say, pixel by
pixel, which takes five times as long (1.07 ms against 0.23 for 360 x 480). At 16 channels the opposite holds."""


def _write(value: Any, target: Any) -> None:
    """Write a raster into an array that has other channels beside it."""
    if value.shape[2] > FEW_CHANNELS:
        np.copyto(target, value)
        return
    for channel in range(value.shape[2]):
        np.copyto(target[..., channel], value[..., channel])


@dataclass(frozen=True, eq=False)
class FieldPart:
    """A stored field that fills an output, or with `channels` (first, last) a part of its channels.

    `spec` is what is stored; the output may be of another dtype, and, after geometry, of another size. `name` is that of the
    field, or of a part of it, such as "teacher/indices" of `field` "teacher".
    """

    name: str
    codec: Codec
    spec: FieldSpec
    output: Output
    channels: tuple[int, int] | None = None
    warped: bool = False

    @property
    def field(self) -> str:
        """The stored field."""
        return stored_name(self.name)

    @cached_property
    def in_place(self) -> bool:
        """Return True if it is decoded straight into its row."""
        plain = self.channels is None and not self.warped and not self.output.padded
        return plain and self.fixed and self.spec.dtype == self.output.dtype

    @cached_property
    def fixed(self) -> bool:
        """Return True if it is a raster, or other array in a codec of rasters, of one size in all records."""
        return isinstance(self.codec, Jpeg | Png | Raw | Encoded | TopK | Zstd) and None not in self.spec.shape

    @cached_property
    def direct(self) -> bool:
        """Return True if its bytes are the row: nothing to decode."""
        return self.in_place and isinstance(self.codec, Raw) and sys.byteorder == "little"

    @cached_property
    def _is_bytes(self) -> bool:
        """Return True if the stored bytes are the array: nothing to copy."""
        return isinstance(self.codec, Raw) and np.dtype(self.spec.dtype).itemsize == 1

    @cached_property
    def whole_example(self) -> bool:
        """Return True if other features of the record are needed: an array with several unknown sizes, boxes of other tools."""
        return isinstance(self.codec, Boxes) or (isinstance(self.codec, Raw | Zstd) and self.spec.shape.count(None) > 1)

    def is_jpeg(self, content: Array) -> bool:
        """Return True for a JPEG of 8 bits, whose pixels are delivered as they are in the file."""
        holds = isinstance(self.codec, Jpeg | Encoded | Original) and self.spec.shape[2:] in ((1,), (3,))
        return holds and self.spec.dtype == "uint8" and images.is_jpeg(content[:3].tobytes())

    def decode_jpeg(self, content: Array, size: Size, reduced: int, state: ThreadState) -> Array:
        """A JPEG of this size decoded at 1 / `reduced`, in memory of the thread, valid until its next call for the field."""
        channels = self.spec.shape[2] or 0
        pixels = state.array(
            (-(-size[0] // reduced), -(-size[1] // reduced), channels), "uint8", f"decoded {self.name}"
        )
        return images.decode_stored_jpeg(content, channels=channels, out=pixels, reduced=reduced)

    def decode(self, content: Array, state: ThreadState) -> Any:
        """The value; an array may be the thread's own, valid until its next call."""
        if isinstance(self.codec, Text):
            return content.tobytes()
        if isinstance(self.codec, Texts):
            return self.codec.items(content.tobytes(), self.spec)
        if isinstance(self.codec, Scalar) or self.whole_example:
            return self._from_example(content.tobytes()) if self.whole_example else self._numbers(content)
        if self.fixed and not self._is_bytes:
            pixels = state.array(tuple(size or 0 for size in self.spec.shape), self.spec.dtype, f"decoded {self.name}")
            cast(InPlace, self.codec).decode_into(content, self.spec, pixels)
            return pixels
        if self.fixed:
            return self.codec.decode(content, self.spec)
        return np.array(self.codec.decode(content.tobytes(), self.spec))  # a list of them outlives the scratch memory

    def place(self, value: Any, values: Mapping[str, Any], row: int) -> None:
        """Write a decoded value into its row, or its channels of it."""
        if None in self.output.shape or self.output.dtype == "string":
            text = self.output.dtype == "string"
            values[self.output.name][row] = value if text else np.array(value, self.output.dtype, order="C")
            return
        target = values[self.output.name][row : row + 1][0, ...]
        if self.output.padded:
            if len(value) > len(target):
                raise SampleError(
                    f"'{self.field}' has {len(value)} rows, more than pad={{'{self.field}': {len(target)}}} takes"
                )
            target[: len(value)] = value
            target[len(value) :] = PADDING
            return
        if self.channels is not None:
            target = target[..., slice(*self.channels)]
            value = value.reshape(*value.shape[:2], -1)
        if np.shape(value) != target.shape:
            raise SampleError(f"'{self.field}' has shape {np.shape(value)}, in the other records it has {target.shape}")
        if self.channels is not None:
            _write(value, target)
        else:
            np.copyto(target, value)

    def _from_example(self, payload: bytes) -> Array:
        try:
            value, shape = feature_value(self.codec, decode_example(payload), self.field)
            return np.array(self.codec.decode(value, self.spec, shape))
        except (ValueError, TypeError, OverflowError) as error:  # no Example, or one of other types
            raise SampleError(str(error)) from error

    def _numbers(self, content: Array) -> Array:
        numbers = unpack(content, self.spec.dtype)
        shape = [-1 if size is None else size for size in self.spec.shape]
        try:
            return numbers.reshape(shape)
        except ValueError:
            raise SampleError(f"'{self.field}' holds {len(numbers)} numbers, expected shape {shape}") from None


_DERIVED = Raw()
"""In place of a codec, for fields that are derived at load."""


def field_parts(
    outputs: Sequence[Output], specs: Mapping[str, FieldSpec], codecs: Mapping[str, Codec], *, warped: bool
) -> list[FieldPart]:
    """A part for every field of every output, also for those that are derived at load."""
    parts = []
    for output in outputs:
        first = 0
        for name in output.fields:
            if name not in specs:
                continue  # key and variant come from the index
            last = first + (channels_of(specs[name]) if output.stacked else 0)
            channels = (first, last) if output.stacked else None
            codec = codecs.get(name, _DERIVED)
            parts.append(FieldPart(name, codec, specs[name], output, channels, warped))
            first = last
    return parts
