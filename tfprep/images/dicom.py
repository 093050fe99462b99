"""DICOM, by pydicom: the modality's LUT or rescale, then the VOI window or LUT, and last the inversion of MONOCHROME1.

That is the order of PS3.3: C.11.1 (modality, such as Hounsfield units), C.11.2 (VOI: LINEAR, LINEAR_EXACT, SIGMOID and tables),
then C.7.6.3.1.2 (photometric interpretation). Enhanced CT and MR give rescale and window by frame, in functional groups
(C.7.6.16).
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from tfprep.errors import MissingDependencyError, SampleError
from tfprep.fields import Array, Size
from tfprep.images.pillow import check_page, check_pixels
from tfprep.optional import require_package

_PREAMBLE, _MARK = 128, b"DICM"
_GRAY = ("MONOCHROME1", "MONOCHROME2")
_ALREADY_RGB = ("RGB", "YBR_FULL", "YBR_FULL_422", "YBR_ICT", "YBR_RCT")
"""Color spaces that `pixel_array` returns as RGB; the last two are undone by decoders of JPEG 2000."""
_OF_FRAMES = ("PixelValueTransformationSequence", "FrameVOILUTSequence")
"""The functional groups that say how numbers are shown."""
_WIDE_LUT_BITS = 16


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
    return data[_PREAMBLE : _PREAMBLE + len(_MARK)] == _MARK


def dicom_size(data: bytes, page: int | None) -> Size:
    """Return (height, width) of a frame. Raises SampleError."""
    header = read_header(data)
    with _reading():
        _check_page(header, page)
        return _size(header)


def dicom_numbers(data: bytes, page: int | None, window: bool = False) -> Numbers:
    """Return one frame: gray after the modality's LUT or rescale, as stored without them; or RGB, a palette looked up.

    Args:
        data: The file's bytes.
        page: The frame, from 0. With None, a file of several is refused.
        window: Apply the first window or VOI LUT of the file, or of the frame. SampleError if there is none.

    Raises:
        SampleError: The file is not a whole DICOM file of images.
    """
    require_package("pydicom", "reading DICOM")
    with _reading():
        import pydicom
        from pydicom.pixels import apply_color_lut, convert_color_space, pixel_array

        header = pydicom.dcmread(io.BytesIO(data))
        _check_page(header, page)
        height, width = _size(header)
        check_pixels(height, width, int(header.get("SamplesPerPixel", 1)) * int(header.get("BitsAllocated", 16)) // 8)
        kind = str(header.get("PhotometricInterpretation", ""))
        if window and kind not in _GRAY:
            raise SampleError(f"a window is for gray DICOM (MONOCHROME1 and 2), this one is {kind}")
        array = np.asarray(pixel_array(header, index=page or 0))
        if kind in _GRAY:
            # The rescale and the window of one frame are in its groups, or in those of all frames.
            shared = list(header.get("SharedFunctionalGroupsSequence") or ())[:1]
            own = list(header.get("PerFrameFunctionalGroupsSequence") or ())[page or 0 : (page or 0) + 1]
            for group in (*shared, *own):
                for item in (one for name in _OF_FRAMES for one in list(group.get(name) or ())[:1]):
                    header.update(item)
            return _gray(array, header, window)
        if kind == "PALETTE COLOR":
            return Numbers(np.asarray(apply_color_lut(array, header)))
        return Numbers(
            array if kind in _ALREADY_RGB else convert_color_space(array, kind, "RGB"), _stored(header, array)
        )


def _gray(array: Array, header: Any, window: bool) -> Numbers:
    """Gray numbers after the modality, and the VOI if it is asked for."""
    from pydicom.pixels import apply_modality_lut, apply_voi_lut

    inverted = header.PhotometricInterpretation == "MONOCHROME1"
    limits = _stored(header, array)
    if limits is not None and (array.min() < limits[0] or array.max() > limits[1]):
        raise SampleError(
            f"stored numbers from {array.min()} to {array.max()} do not fit into {header.BitsStored} bits"
        )
    values = np.asarray(apply_modality_lut(array, header))
    if header.get("ModalityLUTSequence"):
        limits = 0.0, 2.0 ** int(header.ModalityLUTSequence[0].LUTDescriptor[2]) - 1
    elif limits is not None:
        first, last = (float(one) for one in apply_modality_lut(np.array(limits), header))
        limits = first, last
    ascending = limits is None or limits[0] <= limits[1]
    if (
        limits is not None and not ascending
    ):  # a negative slope, for which pydicom's window would turn dark and bright around
        limits = limits[1], limits[0]
    if not window:
        return Numbers(values, limits, inverted)
    tables = header.get("VOILUTSequence")
    if tables and None not in (tables[0].get("LUTDescriptor"), tables[0].get("LUTData")):
        count, first, bits = tables[0].LUTDescriptor
        # pydicom looks numbers up in the table's own dtype, in which larger ones would start again from 0.
        tables[0].LUTDescriptor = [count, first, _WIDE_LUT_BITS]
        values = np.rint(values).clip(first, first + (count or 1 << _WIDE_LUT_BITS) - 1).astype(np.int64)
        return Numbers(np.asarray(apply_voi_lut(values, header)), (0.0, 2.0 ** int(bits) - 1), inverted)
    if header.get("WindowCenter") is None or header.get("WindowWidth") is None:
        raise SampleError("the DICOM file has no window; say which (window=(center, width))")
    if limits is None:
        raise SampleError("a window of floats has no limits; give window=(center, width)")
    shown = np.asarray(apply_voi_lut(values, header))
    return Numbers(shown if ascending else sum(limits) - shown, limits, inverted)


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
        return str(header.get(name) or "")


@contextmanager
def _reading() -> Iterator[None]:
    """Turn whatever pydicom raises into a SampleError; elements are parsed, and warned about, when they are first used."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except (SampleError, MissingDependencyError):
        raise
    except Exception as error:
        raise SampleError(f"not a whole DICOM file: {type(error).__name__}: {error}") from error


def _check_page(header: Any, page: int | None) -> None:
    frames = int(header.get("NumberOfFrames") or 1)
    check_page(f"DICOM holds {frames} frames", frames, page)


def _size(header: Any) -> Size:
    if header.get("Rows") is None or header.get("Columns") is None:
        raise SampleError("the DICOM file holds no image: it has no Rows and Columns")
    return int(header.Rows), int(header.Columns)
