"""DICOM, by pydicom: the modality's LUT or rescale, such as Hounsfield units (PS3.3, C.11.1), then the inversion of MONOCHROME1
(C.7.6.3.1.2). Enhanced CT and MR give the rescale by frame, in functional groups (C.7.6.16).
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from tfprep.errors import SampleError
from tfprep.fields import Array, Size
from tfprep.images.pillow import check_page, check_pixels
from tfprep.optional import require_package

_GRAY = ("MONOCHROME1", "MONOCHROME2")
_ALREADY_RGB = ("RGB", "YBR_FULL", "YBR_FULL_422", "YBR_ICT", "YBR_RCT")
"""Color spaces that `pixel_array` returns as RGB; the last two are undone by decoders of JPEG 2000."""


class Numbers(NamedTuple):
    """The pixels of an image, and what their numbers can be.

    Attributes:
        pixels: [H, W] or [H, W, C].
        limits: The lowest and the highest number that the file could hold; None for floats, which have no limits.
        inverted: Whether low numbers are white: values are turned around within their limits, after everything else.
    """

    pixels: Array
    limits: tuple[float, float] | None = None
    inverted: bool = False

    def upside(self) -> Array:
        """Return the pixels with dark as low numbers."""
        if not self.inverted or self.limits is None:
            return self.pixels
        low, high = self.limits
        if self.pixels.dtype.kind == "f":
            return low + high - self.pixels
        return (int(low + high) - self.pixels.astype(np.int64)).astype(self.pixels.dtype)


def is_dicom(data: bytes) -> bool:
    return data.startswith(b"DICM", 128)  # after a preamble (PS3.10, 7.1)


def dicom_size(data: bytes, page: int | None) -> Size:
    """Return (height, width) of a frame. Raises SampleError."""
    header = read_header(data)
    with _reading():
        return _size(header, page)


def dicom_numbers(data: bytes, page: int | None) -> Numbers:
    """Return one frame: gray after the modality's LUT or rescale, as stored without them; or RGB, a palette looked up.

    Args:
        data: The file's bytes.
        page: The frame, from 0. With None, a file of several is refused.

    Raises:
        SampleError: The file is not a whole DICOM file of images.
    """
    require_package("pydicom", "reading DICOM")
    with _reading():
        import pydicom
        from pydicom.pixels import apply_color_lut, convert_color_space, pixel_array

        header = pydicom.dcmread(io.BytesIO(data))
        height, width = _size(header, page)
        check_pixels(height, width, int(header.get("SamplesPerPixel", 1)) * int(header.get("BitsAllocated", 16)) // 8)
        kind = str(header.get("PhotometricInterpretation", ""))
        array = np.asarray(pixel_array(header, index=page or 0))
        if kind in _GRAY:
            # The rescale of one frame is in its groups, or in those of all frames.
            shared = list(header.get("SharedFunctionalGroupsSequence") or ())[:1]
            own = list(header.get("PerFrameFunctionalGroupsSequence") or ())[page or 0 : (page or 0) + 1]
            for group in (*shared, *own):
                for item in list(group.get("PixelValueTransformationSequence") or ())[:1]:
                    header.update(item)
            return _gray(array, header)
        if kind == "PALETTE COLOR":
            return Numbers(np.asarray(apply_color_lut(array, header)))
        colors = array if kind in _ALREADY_RGB else convert_color_space(array, kind, "RGB")
        return Numbers(colors, _stored(header, array))


def _gray(array: Array, header: Any) -> Numbers:
    from pydicom.pixels import apply_modality_lut

    limits = _stored(header, array)
    if limits is not None and (array.min() < limits[0] or array.max() > limits[1]):
        raise SampleError(
            f"stored numbers from {array.min()} to {array.max()} do not fit into {header.BitsStored} bits"
        )
    values = np.asarray(apply_modality_lut(array, header))
    if header.get("ModalityLUTSequence"):
        limits = 0.0, 2.0 ** int(header.ModalityLUTSequence[0].LUTDescriptor[2]) - 1
    elif limits is not None:
        first, last = (float(value) for value in apply_modality_lut(np.array(limits), header))
        limits = min(first, last), max(first, last)
    return Numbers(values, limits, header.PhotometricInterpretation == "MONOCHROME1")


def _stored(header: Any, array: Array) -> tuple[float, float] | None:
    """Return the lowest and the highest number of the bits stored; None for floats."""
    if array.dtype.kind == "f":
        return None
    bits = int(header.get("BitsStored") or header.BitsAllocated)
    return (-(2.0 ** (bits - 1)), 2.0 ** (bits - 1) - 1) if header.get("PixelRepresentation") else (0.0, 2.0**bits - 1)


def read_header(data: bytes) -> Any:
    """Return all elements but the pixels. Raises SampleError."""
    require_package("pydicom", "reading DICOM")
    import pydicom

    with _reading():
        return pydicom.dcmread(io.BytesIO(data), stop_before_pixels=True)


def header_text(data: bytes, name: str) -> str:
    """Return an element as text; "" if the file does not have it. Raises SampleError."""
    header = read_header(data)
    with _reading():
        return str(header.get(name) or "").strip()


@contextmanager
def _reading() -> Iterator[None]:
    """Turn whatever pydicom raises into a SampleError; elements are parsed, and warned about, when they are first used."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except (SampleError, ImportError):
        raise
    except Exception as error:
        raise SampleError(f"not a whole DICOM file: {type(error).__name__}: {error}") from error


def _size(header: Any, page: int | None) -> Size:
    frames = int(header.get("NumberOfFrames") or 1)
    check_page(f"DICOM holds {frames} frames", frames, page)
    if header.get("Rows") is None or header.get("Columns") is None:
        raise SampleError("the DICOM file holds no image: it has no Rows and Columns")
    return int(header.Rows), int(header.Columns)
