"""DICOM, by pydicom: stored values become what they measure (rescale), and dark is low whatever the photometric interpretation.

PS3.3 C.11.1 (modality: slope and intercept, such as Hounsfield units), C.11.2 (window), C.7.6.3.1.2 (photometric interpretation).
"""

from __future__ import annotations

import io
import warnings
from typing import Any

import numpy as np

from tfprep.errors import SampleError
from tfprep.fields import Array, Size
from tfprep.images.limits import check_pixels
from tfprep.optional import require_package

_PREAMBLE, _MARK = 128, b"DICM"


def is_dicom(data: bytes) -> bool:
    return data[_PREAMBLE : _PREAMBLE + len(_MARK)] == _MARK


def dicom_size(data: bytes) -> Size:
    """Return (height, width). Raises SampleError."""
    return _size(read_header(data))


def dicom_pixels(data: bytes, page: int | None) -> Array:
    """Return one frame: float32 [H, W] after the modality's rescale, or as stored without one; or uint8 [H, W, 3] RGB.

    MONOCHROME1, whose low values are white, is turned around within the range of its bits. Raises SampleError.
    """
    from pydicom.pixels import apply_modality_lut, convert_color_space, pixel_array

    header = read_header(data)
    frames = int(header.get("NumberOfFrames") or 1)
    if page is None and frames > 1:
        raise SampleError(f"DICOM holds {frames} frames, expected one image; choose one with page=0")
    if page is not None and page >= frames:
        raise SampleError(f"there is no page {page}: the file has {frames}")
    height, width = _size(header)
    check_pixels(height, width, int(header.get("SamplesPerPixel", 1)) * int(header.get("BitsAllocated", 16)) // 8)
    kind = str(header.get("PhotometricInterpretation", ""))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if kind == "PALETTE COLOR":
                raise SampleError("DICOM with a palette (PALETTE COLOR); convert it to RGB first")
            array = np.asarray(pixel_array(io.BytesIO(data), index=page or 0))
            if kind not in ("MONOCHROME1", "MONOCHROME2"):
                return array if kind in ("RGB", "YBR_FULL", "YBR_FULL_422") else convert_color_space(array, kind, "RGB")
            array = _dark_is_low(array, header) if kind == "MONOCHROME1" else array
            return np.asarray(apply_modality_lut(array, header))
    except SampleError:
        raise
    except Exception as error:  # pydicom raises whatever its parsing of a damaged file runs into
        raise SampleError(f"not a whole DICOM file: {type(error).__name__}: {error}") from error


def dicom_window(data: bytes) -> tuple[float, float]:
    """Return centre and width of the file's first window. SampleError if it has none."""
    header = read_header(data)
    values = [header.get(name) for name in ("WindowCenter", "WindowWidth")]
    first = [value[0] if isinstance(value, list | tuple) or hasattr(value, "__iter__") else value for value in values]
    if any(value is None for value in first):
        raise SampleError("the DICOM file has no window; say which (window=(centre, width))")
    return float(first[0]), float(first[1])


def read_header(data: bytes) -> Any:
    """Return all elements but the pixels. Raises SampleError."""
    require_package("pydicom", "reading DICOM")
    import pydicom

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return pydicom.dcmread(io.BytesIO(data), stop_before_pixels=True)
    except Exception as error:  # pydicom raises whatever its parsing of a damaged file runs into
        raise SampleError(f"not a whole DICOM file: {type(error).__name__}: {error}") from error


def _size(header: Any) -> Size:
    try:
        return int(header.Rows), int(header.Columns)
    except (AttributeError, TypeError, ValueError) as error:
        raise SampleError("the DICOM file holds no image: it has no Rows and Columns") from error


def _dark_is_low(array: Array, header: Any) -> Array:
    bits, signed = int(header.BitsStored), bool(header.get("PixelRepresentation"))
    return np.asarray((-1 if signed else (1 << bits) - 1) - array)
