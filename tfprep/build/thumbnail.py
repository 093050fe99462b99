"""A small picture of a rejected file, as far as it can be read."""

from __future__ import annotations

import io
import warnings

from PIL import Image, ImageFile

SIDE_PX = 96
_MOST_PIXELS = 25_000_000
"""Larger files get no picture: it would cost more than the rest of the report."""
_FORMATS = ("PNG", "GIF", "BMP", "PPM", "JPEG")


def thumbnail(data: bytes) -> bytes:
    """A JPEG of at most `SIDE_PX` a side; what a cut file lacks is gray. Empty where nothing can be read."""
    whole = ImageFile.LOAD_TRUNCATED_IMAGES
    ImageFile.LOAD_TRUNCATED_IMAGES = True
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
                return b"" if image.width * image.height > _MOST_PIXELS else _small(image)
    except Exception:  # whatever is wrong with the file is already told; there is just no picture
        return b""
    finally:
        ImageFile.LOAD_TRUNCATED_IMAGES = whole


def _small(image: Image.Image) -> bytes:
    image.draft("RGB", (SIDE_PX, SIDE_PX))
    picture = image.convert("RGB")
    picture.thumbnail((SIDE_PX, SIDE_PX))
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=80)
    return file.getvalue()
