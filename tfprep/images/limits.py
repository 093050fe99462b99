"""The limits that a file must keep before it is read, and an image's header before any of its pixels is decoded."""

from __future__ import annotations

from tfprep.errors import SampleError

MAX_PIXELS = 178_956_970
"""Twice Pillow's `MAX_IMAGE_PIXELS`, where Pillow itself refuses an image."""
MAX_BYTES = 3 * MAX_PIXELS
"""Bytes of the decoded pixels, 537 MB: `MAX_PIXELS` of 8-bit RGB, and accordingly fewer with more channels or bits."""

MAX_FILE_BYTES = 1 << 30
"""Size of a raw file, 1 GiB: an image within `MAX_BYTES`, uncompressed, and as much again of metadata. A worker that reads such a
file and decodes the largest image needs 2.7 GB."""


def check_file_size(size: int, most_bytes: int = MAX_FILE_BYTES) -> None:
    """Raises SampleError where a file's size in bytes exceeds `most_bytes`."""
    if size > most_bytes:
        raise SampleError(
            f"the file has {size:,} bytes, more than the limit of {most_bytes:,}; cut the image or map into smaller ones"
        )


def check_pixels(height: int, width: int, bytes_per_pixel: int = 3) -> None:
    """Checks a size from a header. Raises SampleError where it exceeds `MAX_PIXELS` or `MAX_BYTES`, or is empty."""
    if height * width > MAX_PIXELS:
        raise SampleError(
            f"{width} x {height} pixels are more than the limit of {MAX_PIXELS:,}; the file may be hostile"
        )
    if height * width * bytes_per_pixel > MAX_BYTES:
        raise SampleError(
            f"{width} x {height} pixels of {bytes_per_pixel} bytes are more than the limit of {MAX_BYTES:,} bytes; "
            "store fewer channels or bits, or a smaller image"
        )
    if height < 1 or width < 1:
        raise SampleError(f"an image of {width} x {height} pixels")
