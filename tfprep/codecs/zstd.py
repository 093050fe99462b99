"""Zstd: any array without loss, by Blosc (https://www.blosc.org/c-blosc): its bytes or bits shuffled, then Zstandard.

Masks and maps take half of the disk that they take as PNG, photos as much, and all are decoded several times as fast. The content
of a field is a byte that names the form, and a frame of Blosc 1. Each array chooses its form: by its bytes only, so that one
recipe and its files make the same bytes everywhere, and for itself, so that no sample changes the records of others.
"""

from __future__ import annotations

import os
import struct
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from math import isqrt
from typing import Any, ClassVar

import numpy as np

from tfprep.codecs.codec import Feature
from tfprep.codecs.raw import Arrays, check_dtype, checked_shape, little, stored_array
from tfprep.errors import BuildError, LoaderError, RecipeError, SampleError
from tfprep.fields import Array, FieldSpec

_PLAIN, _ROWS = 0, 1
"""The first byte of a field: the array itself, or the differences between each row and the one above it."""
_HEADER = struct.Struct("<B4xI4xI")
"""The form, then of the header of a Blosc frame, 16 bytes, those at 4 and 12: the bytes of the array and of the frame."""
_MOST_BYTES = 2**31 - 1 - 16
"""Blosc's limit (BLOSC_MAX_BUFFERSIZE in blosc.h): with the header, the largest int."""
_VARIABLES = {f"BLOSC_{name}" for name in ("CLEVEL", "SHUFFLE", "TYPESIZE", "COMPRESSOR", "BLOCKSIZE", "SPLITMODE")}
"""Variables of the environment that Blosc puts in place of its arguments (`blosc_compress` in blosc.c)."""
_BYTES, _BITS = 1, 2
_GAIN = 0.8
"""Differences of rows, which take longer to decode, are stored where they need at most this share of the bytes."""
_TRIAL_LEVEL = 1
_MOST_RATIO = 2**15
"""Zstandard's largest ratio: a block of 128 KiB in four bytes (RFC 8878, 3.1.1.2). A header that says more is not an array's."""


@dataclass(frozen=True)
class Zstd(Arrays):
    """Any array, exactly, masks and maps in half the space of `Png`, decoded several times as fast: images of any type too.

    The array is cast first where `dtype` is given, by the rules of `Raw`. TensorFlow has no op for it: tfprep's loaders decode
    it, and other readers by the lines in docs/format.md. An array of more than 2,147,483,631 bytes is a SampleError, and a
    variable of the environment that would change the bytes, such as BLOSC_CLEVEL, a BuildError.

    Attributes:
        level: Blosc's, 1 (fast) to 9 (smallest: builds take 30 times as long). Decoding is equally fast.
        dtype: The type that is stored; None for that of the array.
    """

    level: int = 5
    dtype: str | None = None
    kinds: ClassVar = ("image", "mask", "map")
    fix: ClassVar = "use Scalar(), Text() or Raw()"

    def __post_init__(self) -> None:
        if isinstance(self.level, bool) or self.level not in range(1, 10):
            raise RecipeError(f"Zstd(level=...) is from 1 to 9, not {self.level!r}; a type is Zstd(dtype=...)")
        check_dtype(self, self.dtype)

    def encode(self, value: Any) -> Mapping[str, Feature]:
        if names := sorted(_VARIABLES & os.environ.keys()):
            rule = f"Blosc, by which Zstd() compresses, takes {', '.join(names)} from the environment"
            raise BuildError(f"{rule}, so that the bytes are not those of the recipe; unset it, and run it again")
        size = np.size(value) * np.dtype(self.dtype or np.asarray(value).dtype).itemsize
        if size > _MOST_BYTES:
            rule = f"Zstd holds arrays of up to {_MOST_BYTES:,} bytes, this one has {size:,}"
            raise SampleError(f"{rule}; cut the image or map into smaller ones")
        array = np.asarray(stored_array(value, self.dtype), order="C")
        shape = np.array(array.shape, np.int64)
        if not array.size:
            return {"": bytes([_PLAIN]), "/shape": shape}
        words = _words(array)
        differences = np.diff(words, axis=0, prepend=np.zeros_like(words[:1]))  # modulo 2^bits: the sums are exact
        forms = [(_PLAIN, words, _BYTES), (_ROWS, differences, _BYTES), (_ROWS, differences, _BITS)]
        sizes = [len(_compressed(content, _TRIAL_LEVEL, shuffle)) for _, content, shuffle in forms]
        form, content, shuffle = forms[int(np.argmin([int(sizes[0] * _GAIN), *sizes[1:]]))]
        return {"": bytes([form]) + _compressed(content, self.level, shuffle), "/shape": shape}

    def decode(self, feature: Any, spec: FieldSpec, shape: tuple[int, ...] | None = None) -> Array:
        out = np.empty(checked_shape(spec, _array_bytes(memoryview(feature)), shape), spec.dtype)
        self.decode_into(feature, spec, out)
        return out

    def decode_into(self, feature: Any, spec: FieldSpec, out: Array) -> None:
        """`decode` into `out`, C-contiguous. SampleError where the array is not of just that size."""
        content = memoryview(feature)
        checked_shape(spec, _array_bytes(content), out.shape)
        if not out.nbytes:
            return
        words = _words(out)
        from numcodecs import blosc

        try:
            blosc.decompress(content[1:], words)
        except (RuntimeError, ValueError) as error:
            raise SampleError(f"a damaged array stored as Zstd ({error})") from error
        if content[0] == _ROWS:
            _sum_rows(words)
        if sys.byteorder == "big":
            np.copyto(out, out.view(little(out.dtype)).copy())

    def tf_features(self, name: str, spec: FieldSpec) -> Mapping[str, Any]:
        raise LoaderError(
            f"{name!r} is stored as Zstd, for which TensorFlow has no op; use loader(), or leave it out with fields="
        )

    def tf_decode(self, features: Mapping[str, Any], name: str, spec: FieldSpec) -> Any:
        return self.tf_features(name, spec)


def _words(array: Array) -> Array:
    """A C-contiguous array as rows of unsigned numbers, of the size of its values or of 8 bytes: [rows, N]."""
    word = f"<u{min(array.dtype.itemsize, 8)}"
    return array.reshape(array.shape[0] if array.ndim else 1, -1).view(word)


def _sum_rows(words: Array) -> None:
    """Replace each row by the sum of the rows up to it, modulo 2^bits, as `np.add.accumulate(axis=0)` does.

    That adds number by number. Here groups of rows are added up side by side, and then each group to the one before: about two
    square roots of the number of rows are that many calls, each with many numbers, outside the interpreter's lock.
    """
    size = max(1, isqrt(len(words)))
    whole = len(words) - len(words) % size
    groups = words[:whole].reshape(-1, size, words.shape[1])
    for row in range(1, size):
        np.add(groups[:, row], groups[:, row - 1], out=groups[:, row])
    for group in range(1, len(groups)):
        np.add(groups[group], groups[group - 1, -1], out=groups[group])
    for row in range(max(whole, 1), len(words)):
        np.add(words[row], words[row - 1], out=words[row])


def _compressed(array: Array, level: int, shuffle: int) -> bytes:
    """The array as one block, whose bytes do not depend on the number of threads."""
    from numcodecs import blosc

    return bytes(blosc.compress(np.ascontiguousarray(array), b"zstd", level, shuffle, array.nbytes))


def _array_bytes(content: memoryview) -> int:
    """The bytes of the array in a field. SampleError where the field is none that `encode` made."""
    if len(content) == 1 and content[0] == _PLAIN:
        return 0
    if len(content) >= _HEADER.size:
        form, size, frame = _HEADER.unpack_from(content)
        if form in (_PLAIN, _ROWS) and frame == len(content) - 1 and size <= _MOST_RATIO * frame:
            return int(size)
    raise SampleError(f"{len(content)} bytes that begin with {bytes(content[:8])!r} are not an array stored as Zstd")
