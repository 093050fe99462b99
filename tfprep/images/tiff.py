"""TIFF as it is stored, by tifffile: any number of bands, planar or not, integers or floats, one page of several."""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from tfprep.errors import SampleError
from tfprep.fields import Array, Size
from tfprep.images.limits import check_pixels
from tfprep.images.orientation import upright
from tfprep.optional import require_package

_STARTS = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
"""How TIFF and BigTIFF begin, in either byte order."""
_ORIENTATION, _NODATA = 274, 42113
"""Tags: orientation (TIFF 6.0, page 36), and GDAL's number for pixels without data
(https://gdal.org/en/stable/drivers/raster/gtiff.html)."""


def is_tiff(data: bytes) -> bool:
    return data.startswith(_STARTS)


def tiff_size(data: bytes, page: int | None) -> Size:
    """Return (height, width) of the upright page. Raises SampleError."""
    with _page(data, page) as found:
        turned = _orientation(found) >= 5
        return (found.imagewidth, found.imagelength) if turned else (found.imagelength, found.imagewidth)


def tiff_pixels(data: bytes, page: int | None, nodata: float | None) -> Array:
    """Return [H, W] or [H, W, C] with the numbers of the file. Raises SampleError."""
    with _page(data, page) as found:
        array = _checked(_array(found, data, page or 0), found)
        return upright(_without_nodata(array, found, nodata), _orientation(found))


@contextmanager
def _page(data: bytes, page: int | None) -> Iterator[Any]:
    require_package("tifffile", "reading TIFF with its own numbers")
    import tifffile

    logging.getLogger("tifffile").setLevel(logging.CRITICAL)  # what it logs about a damaged file is an error here
    try:
        with tifffile.TiffFile(io.BytesIO(data)) as file:
            count = len(file.pages)
            if page is None and count > 1:
                raise SampleError(f"TIFF holds {count} pages, expected one image; choose one with page=0")
            if page is not None and page >= count:
                raise SampleError(f"there is no page {page}: the file has {count}")
            found: Any = file.pages[page or 0]
            found = found.aspage() if hasattr(found, "aspage") else found
            if found.imagedepth > 1:
                raise SampleError(f"TIFF of {found.imagedepth} planes of depth, expected one image")
            check_pixels(found.imagelength, found.imagewidth, max(1, found.samplesperpixel * found.bitspersample // 8))
            yield found
    except SampleError:
        raise
    except Exception as error:  # tifffile raises whatever its parsing of a damaged file runs into
        raise SampleError(f"not a whole TIFF: {type(error).__name__}: {error}") from error


def _array(found: Any, data: bytes, page: int) -> Array:
    """The page's numbers, channels last; by rasterio where tifffile needs a package for its compression."""
    try:
        array = np.asarray(found.asarray())
        # PlanarConfiguration decides, whatever the lengths: "SYX" where the channels are stored one after another, else "YXS".
        return np.moveaxis(array, 0, -1) if found.axes == "SYX" else array
    except ValueError as error:
        if "imagecodecs" not in str(error):
            raise
    require_package("rasterio", f"reading TIFF with {found.compression.name} compression")
    import rasterio
    from rasterio.io import MemoryFile

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about images that are no maps
            with MemoryFile(data) as memory, memory.open() as whole:
                if page == 0:
                    bands = whole.read()
                else:
                    with rasterio.open(f"GTIFF_DIR:{page + 1}:{memory.name}") as one:
                        bands = one.read()
                return np.moveaxis(bands, 0, -1) if len(bands) > 1 else bands[0]
    except rasterio.errors.RasterioError as error:
        raise SampleError(f"not a whole TIFF: {error}") from error


def _checked(array: Array, found: Any) -> Array:
    """[H, W] or [H, W, C] of numbers for which 0 is black, a palette looked up."""
    size = found.imagelength, found.imagewidth
    if array.shape[:2] != size or array.ndim not in (2, 3):
        raise SampleError(f"TIFF of the shape {array.shape}, expected [H, W, C] of {size}")
    photometric = getattr(found.photometric, "name", None)  # a number that TIFF does not know has no name
    if photometric in (None, "MINISWHITE"):
        means = "whose 0 is white" if photometric else "that does not say what its numbers mean"
        raise SampleError(f"TIFF {means} (PhotometricInterpretation {found.photometric}); save it with 0 as black")
    if photometric == "PALETTE":
        index, *others = [array] if array.ndim == 2 else np.moveaxis(array, -1, 0)
        if others and (len(others) > 1 or array.dtype != np.uint8):
            raise SampleError(
                f"TIFF with a palette and {len(others)} further channels of {array.dtype}; save it as RGB"
            )
        colours = (np.asarray(found.colormap)[:, index] >> 8).astype(np.uint8)
        return np.stack([*colours, *others], axis=-1)
    return array


def _without_nodata(array: Array, found: Any, nodata: float | None) -> Array:
    tag = found.tags.get(_NODATA)
    if tag is None:
        return array
    number = float(str(tag.value).strip("\0 "))
    missing = np.isnan(array) if np.isnan(number) else array == number
    if not missing.any():
        return array
    if nodata is None:
        share = missing.mean()
        raise SampleError(
            f"{share:.1%} of the numbers are {number:g}, which means no data; say what they become (nodata=0)"
        )
    return np.where(missing, np.asarray(nodata, array.dtype), array)


def _orientation(found: Any) -> int:
    tag = found.tags.get(_ORIENTATION)
    return int(tag.value) if tag is not None else 1
