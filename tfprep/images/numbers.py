"""Images with their own dtype and channels: uint8, uint16 or float32 [H, W, C], whatever the file holds, and nothing converted.

| file                   | read by                                    | channels                                          |
|------------------------|--------------------------------------------|---------------------------------------------------|
| TIFF, BigTIFF, GeoTIFF | tifffile, or rasterio for compressions that | as stored: planar and chunky, any number of bands |
|                        | it does not know                           |                                                   |
| DICOM                  | pydicom                                    | 1, or 3 (RGB); a palette is looked up             |
| PNG, PPM of 16 bits    | OpenCV                                     | gray, RGB, RGBA                                   |
| all others             | Pillow                                     | gray 1, gray and alpha 2, RGB 3, RGBA 4; a        |
|                        |                                            | palette is looked up                              |

Of a TIFF with several pages one is read. Signed numbers and those of 32 bits become float32 where that is exact, and are refused
where it is not. The orientation of EXIF is applied.
"""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from tfprep.errors import SampleError
from tfprep.fields import Array, Size
from tfprep.images.jpeg_png import by_opencv, decode_png, exif_orientation, upright
from tfprep.images.pillow import (
    bits_per_channel,
    check_page,
    check_pixels,
    is_jpeg,
    known_orientation,
    opened,
    pillow_orientation,
    upright_size,
    white_level,
)
from tfprep.optional import require_package

_EXACT_IN_FLOAT32 = 1 << 24
"""float32 holds all whole numbers up to this one."""


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


def pixels_size(data: bytes, page: int | None = None) -> Size:
    """Return (height, width) of the upright image, from its header. Raises SampleError."""
    if is_dicom(data):
        return dicom_size(data, page)
    if is_tiff(data):
        with _page(data, page) as tiff:
            turned = _orientation(tiff) >= 5
            return (tiff.imagewidth, tiff.imagelength) if turned else (tiff.imagelength, tiff.imagewidth)
    with opened(data, frames=page is not None) as image:
        _seek(image, page)
        return upright_size(image, data)


def file_orientation(data: bytes, page: int | None = None) -> int:
    """Return the EXIF orientation of an image file, 1 to 8, or the tag of the same number in a page of a TIFF; 1 without one."""
    if is_dicom(data):
        return 1
    if is_jpeg(data):
        return exif_orientation(data)
    try:
        with opened(data, frames=True) as image:
            _seek(image, page)
            return pillow_orientation(image, data)
    except SampleError:
        if not is_tiff(data):
            raise
    with _page(data, page or 0) as tiff:  # of more bands than Pillow knows
        return _orientation(tiff)


def decode_pixels(data: bytes, page: int | None = None, nodata: float | None = None) -> Array:
    """Return the upright image as uint8, uint16 or float32 [H, W, C].

    Args:
        data: The file's bytes.
        page: The page of a TIFF or the frame of an animated image, from 0. With None, a file of several is refused.
        nodata: The value for the pixels that a GeoTIFF marks as no data. With None, an image with such pixels is refused.

    Raises:
        SampleError: The file is not a whole image, or its numbers do not fit into these dtypes.
    """
    return decode_numbers(data, page, nodata).upside()


def decode_numbers(data: bytes, page: int | None = None, nodata: float | None = None) -> Numbers:
    """Return the upright image as `decode_pixels` does, before it is turned around where low numbers are white."""
    if is_dicom(data):
        numbers = dicom_numbers(data, page)
    else:
        numbers = tiff_numbers(data, page, nodata) if is_tiff(data) else _by_pillow(data, page)
    pixels = _plain(numbers.pixels if numbers.pixels.ndim == 3 else numbers.pixels[:, :, np.newaxis])
    limits = numbers.limits
    if limits is None and pixels.dtype.kind == "u":
        limits = 0.0, float(np.iinfo(pixels.dtype).max)
    return Numbers(pixels, limits, numbers.inverted)


def _plain(pixels: Array) -> Array:
    """The same numbers as uint8, uint16 or float32, in the machine's order of bytes, which OpenCV takes for granted."""
    if pixels.dtype.name in ("uint8", "uint16", "float32"):
        return np.ascontiguousarray(pixels, pixels.dtype.newbyteorder("="))
    if pixels.dtype == np.bool_:
        return pixels.astype(np.uint8) * np.uint8(255)
    if pixels.dtype.kind not in "iuf":
        raise SampleError(f"an image holds uint8, uint16 or float32, not {pixels.dtype}")
    if pixels.dtype.kind in "iu" and max(abs(int(pixels.min())), abs(int(pixels.max()))) > _EXACT_IN_FLOAT32:
        raise SampleError(
            f"numbers from {pixels.min()} to {pixels.max()} are not exact in float32; store them as a map (.npy)"
        )
    return pixels.astype(np.float32)


def _by_pillow(data: bytes, page: int | None) -> Numbers:
    with opened(data, frames=page is not None) as image:
        _seek(image, page)
        orientation = pillow_orientation(image, data)
        if bits_per_channel(image, data) == 16:
            if "transparency" in image.info:
                raise SampleError(
                    "a PNG of 16 bits per channel with one transparent color; save it with an alpha channel"
                )
            white = white_level(image, data)
            pixels = decode_png(data) if image.format == "PNG" else by_opencv(data)
            if pixels.dtype != np.uint16 or pixels.shape[:2] != (image.height, image.width):
                raise SampleError("not a whole image of 16 bits a channel")
            return Numbers(upright(pixels, orientation), None if white is None else (0.0, float(white)))
        image.load()
        mode = _KEPT.get(image.mode)
        if image.mode in ("P", "PA"):
            mode = "RGBA" if image.has_transparency_data else "RGB"
        elif image.mode in _ALPHA and image.has_transparency_data:  # one transparent color
            mode = _ALPHA[image.mode]
        array = np.asarray(image if mode == image.mode else image.convert(mode or "RGB"))
        return Numbers(upright(array, orientation))


_KEPT = {mode: mode for mode in ("L", "LA", "RGB", "RGBA", "I", "F", "I;16", "I;16L", "I;16B")} | {"1": "L"}
"""The mode in which Pillow gives an image's own channels; all others (CMYK, YCbCr, LAB) become RGB."""
_ALPHA = {"1": "LA", "L": "LA", "RGB": "RGBA"}


def _seek(image: Image.Image, page: int | None) -> None:
    if page is not None:
        check_page("", getattr(image, "n_frames", 1), page)
    if page:
        image.seek(page)


_STARTS = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
"""First bytes of TIFF and BigTIFF, in either byte order."""
_OTHER_COLORS, _DECODED_TO_RGB = ("SEPARATED", "YCBCR", "CIELAB", "ICCLAB", "ITULAB", "LOGLUV"), ("YCBCR", "JPEG")
_ORIENTATION, _NODATA = 274, 42113
"""Tags: orientation (TIFF 6.0, page 36), and GDAL's number for pixels without data
(https://gdal.org/en/stable/drivers/raster/gtiff.html)."""


def is_tiff(data: bytes) -> bool:
    return data.startswith(_STARTS)


def tiff_numbers(data: bytes, page: int | None, nodata: float | None) -> Numbers:
    """Return the numbers of the file, with limits for those of few bits. Raises SampleError."""
    with _page(data, page) as tiff:
        stored = _array(tiff, data, page or 0)
        array, is_palette = _checked(stored, tiff), getattr(tiff.photometric, "name", "") == "PALETTE"
        if (tag := tiff.tags.get(_NODATA)) is not None:
            number = float(str(tag.value).strip("\0 "))
            missing = np.isnan(stored) if np.isnan(number) else stored == number
            if is_palette:  # it is one of the palette's numbers, not a level
                missing = (missing if stored.ndim == 2 else missing[:, :, 0])[:, :, np.newaxis]
            if missing.any() and nodata is None:
                rule = f"{missing.mean():.1%} of the numbers are {number:g}, which means no data"
                raise SampleError(f"{rule}; say what they become (nodata=0)")
            integers = np.iinfo(array.dtype) if array.dtype.kind in "iu" and missing.any() else None
            if integers and nodata not in range(integers.min, integers.max + 1):
                raise SampleError(f"nodata is {nodata}, which {array.dtype} does not hold; give a number of its range")
            array = np.where(missing, np.asarray(nodata, array.dtype), array) if missing.any() else array
        is_packed = tiff.bitspersample > 1 and tiff.bitspersample % 8 and not is_palette  # 1 bit becomes 0 and 255
        limits = (0.0, 2.0**tiff.bitspersample - 1) if is_packed and array.dtype.kind == "u" else None
        return Numbers(upright(array, _orientation(tiff)), limits)


@contextmanager
def _page(data: bytes, page: int | None) -> Iterator[Any]:
    require_package("tifffile", "reading TIFF with its own numbers")
    import tifffile

    logging.getLogger("tifffile").setLevel(logging.CRITICAL)  # what it logs about a damaged file is an error here
    try:
        with tifffile.TiffFile(io.BytesIO(data)) as file:
            count = len(file.pages)
            check_page(f"TIFF holds {count} pages", count, page)
            tiff: Any = file.pages[page or 0]
            tiff = tiff.aspage() if hasattr(tiff, "aspage") else tiff
            if tiff.imagedepth > 1:
                raise SampleError(f"TIFF of {tiff.imagedepth} planes of depth, expected one image")
            check_pixels(tiff.imagelength, tiff.imagewidth, max(1, tiff.samplesperpixel * tiff.bitspersample // 8))
            yield tiff
    except SampleError:
        raise
    except Exception as error:  # tifffile raises whatever its parsing of a damaged file runs into
        raise SampleError(f"not a whole TIFF: {type(error).__name__}: {error}") from error


def _array(tiff: Any, data: bytes, page: int) -> Array:
    """The page's numbers, channels last; by rasterio where tifffile needs a package for its compression."""
    try:
        array = np.asarray(tiff.asarray())
        # PlanarConfiguration decides, whatever the lengths: "SYX" where the channels are stored one after another, else "YXS".
        return np.moveaxis(array, 0, -1) if tiff.axes == "SYX" else array
    except (ValueError, ImportError, NotImplementedError) as error:
        if "imagecodecs" not in str(error) and not isinstance(error, ImportError):
            raise
    require_package("rasterio", f"reading TIFF with {tiff.compression.name} compression")
    import rasterio
    from rasterio.io import MemoryFile

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about images that are not maps
            with MemoryFile(data) as memory, memory.open() as whole:
                if page == 0:
                    bands = whole.read()
                else:
                    with rasterio.open(f"GTIFF_DIR:{page + 1}:{memory.name}") as page_file:
                        bands = page_file.read()
                bands = bands != 0 if tiff.bitspersample == 1 else bands  # as tifffile gives them
                return np.moveaxis(bands, 0, -1) if len(bands) > 1 else bands[0]
    except rasterio.errors.RasterioError as error:
        raise SampleError(f"not a whole TIFF: {error}") from error


def _checked(array: Array, tiff: Any) -> Array:
    """[H, W] or [H, W, C] of numbers for which 0 is black, a palette looked up."""
    size = tiff.imagelength, tiff.imagewidth
    if array.shape[:2] != size or array.ndim not in (2, 3):
        raise SampleError(f"TIFF of the shape {array.shape}, expected [H, W, C] of {size}")
    photometric = getattr(tiff.photometric, "name", None)  # a number that TIFF does not know has no name
    if photometric in (None, "MINISWHITE"):
        means = "whose 0 is white" if photometric else "that does not say what its numbers mean"
        raise SampleError(f"TIFF {means} (PhotometricInterpretation {tiff.photometric}); save it with 0 as black")
    if photometric in _OTHER_COLORS and (photometric, tiff.compression.name) != _DECODED_TO_RGB:
        raise SampleError(f"TIFF of {photometric} colors, which are not RGB; save it as RGB, or leave out pixels=")
    if photometric == "PALETTE":
        index, *channels = [array] if array.ndim == 2 else np.moveaxis(array, -1, 0)
        if channels and (len(channels) > 1 or array.dtype != np.uint8):
            raise SampleError(
                f"TIFF with a palette and {len(channels)} further channels of {array.dtype}; save it as RGB"
            )
        colors = (np.asarray(tiff.colormap)[:, index] >> 8).astype(np.uint8)
        return np.stack([*colors, *channels], axis=-1)
    return array


def _orientation(tiff: Any) -> int:
    tag = tiff.tags.get(_ORIENTATION)
    return known_orientation(tag.value) if tag is not None else 1


# --- DICOM ---------------------------------------------------------------------------------------------------------------
# DICOM, by pydicom: the modality's LUT or rescale, such as Hounsfield units (PS3.3, C.11.1), then the inversion of MONOCHROME1
# (C.7.6.3.1.2). Enhanced CT and MR give the rescale by frame, in functional groups (C.7.6.16).

_GRAY = ("MONOCHROME1", "MONOCHROME2")
_ALREADY_RGB = ("RGB", "YBR_FULL", "YBR_FULL_422", "YBR_ICT", "YBR_RCT")
"""Color spaces that `pixel_array` returns as RGB; the last two are undone by decoders of JPEG 2000."""


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
