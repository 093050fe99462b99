"""Color profiles (ICC) inside image files: which ones are not sRGB, and the conversion to sRGB, by Pillow's ImageCms.

The stored numbers are kept unless a conversion is asked for, as Pillow, TensorFlow and torchvision keep them.
"""

from __future__ import annotations

import io
from functools import lru_cache
from typing import Any

import numpy as np
from PIL import Image, ImageCms

from tfprep.errors import SampleError
from tfprep.images.jpeg import icc_profile, jpeg_header
from tfprep.images.pillow import PNG_START, is_jpeg, opened

_SIGNATURE = b"acsp"
"""Bytes 36 to 39 of every profile (ICC.1:2022, 7.2.11); a PNG holds its profile compressed, in the chunk iCCP."""
_SAME_LEVELS = 8
"""The most by which a profile counts as sRGB: some that are called so move a color by 6, Adobe RGB and P3 by 60 and more."""
_MODE_OF_JPEG = {"Gray": "L", "YCbCr": "RGB", "RGB": "RGB", "CMYK": "CMYK", "YCCK": "CMYK"}
_MODE_OF_SPACE = {"RGB": "RGB", "GRAY": "L", "CMYK": "CMYK"}


def foreign_profile(data: bytes) -> tuple[str, bytes] | None:
    """Return name and content of the profile inside an image; None if it has none, or one that says sRGB.

    A profile for another number of channels than the image has says nothing about it, and counts as none.
    """
    profile: Any = icc_profile(data) if is_jpeg(data) else None
    if _SIGNATURE not in (data if profile is None else profile) and not (
        data.startswith(PNG_START) and b"iCCP" in data
    ):
        return None
    try:
        if profile is not None and (header := jpeg_header(data)):
            mode = _MODE_OF_JPEG[header[2]]
        else:
            with opened(data, frames=True) as image:
                profile, mode = image.info.get("icc_profile"), _plain_mode(image)
    except SampleError:
        return None
    if not isinstance(profile, bytes) or not profile:
        return None
    name = _foreign_name(profile, mode)
    return (name, profile) if name else None


def in_srgb(image: Image.Image, profile: bytes) -> Image.Image:
    """Return an opened image with its colors converted from a profile to sRGB (perceptual intent), its transparency kept."""
    image.load()
    transparent = image.has_transparency_data
    alpha = image.convert("RGBA").getchannel("A") if transparent else None
    mode = _plain_mode(image)
    try:
        converted: Image.Image = _transform(profile, mode).apply(image if image.mode == mode else image.convert(mode))
    except (ImageCms.PyCMSError, OSError, ValueError) as error:
        raise SampleError(f"its color profile cannot be applied: {error}") from error
    if alpha is not None:
        converted.putalpha(alpha)
    return converted


def _plain_mode(image: Image.Image) -> str:
    """The mode, without transparency and palette, to which the profile applies."""
    if image.mode in ("L", "LA", "1", "CMYK"):
        return image.mode if image.mode == "CMYK" else "L"
    return "RGB" if image.mode in ("RGB", "RGBA", "RGBX", "P", "PA", "YCbCr") else ""


@lru_cache(256)
def _foreign_name(profile: bytes, mode: str) -> str:
    """Return the name of a profile, "" if it is sRGB or is not for images of this mode."""
    if not mode:
        return ""
    try:
        opened_profile = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        if _MODE_OF_SPACE.get(opened_profile.profile.xcolor_space.strip()) != mode:
            return ""
        name = ImageCms.getProfileDescription(opened_profile).strip() or "without a name"
        if mode == "CMYK":
            return name
        # All levels of gray, or colors all over the cube.
        levels = np.arange(256) if mode == "L" else np.linspace(0, 255, 9).round()
        colors = levels[np.newaxis] if mode == "L" else np.stack(np.meshgrid(*[levels] * 3), -1).reshape(1, -1, 3)
        probe = Image.fromarray(colors.astype(np.uint8))
        moved = np.asarray(_transform(profile, mode).apply(probe), np.int16) - np.asarray(
            probe.convert("RGB"), np.int16
        )
    except (ImageCms.PyCMSError, OSError, ValueError):
        return "damaged"
    return name if abs(moved).max() > _SAME_LEVELS else ""


@lru_cache(64)
def _transform(profile: bytes, mode: str) -> Any:
    source, target = ImageCms.ImageCmsProfile(io.BytesIO(profile)), ImageCms.createProfile("sRGB")
    return ImageCms.buildTransform(source, target, mode, "RGB", ImageCms.Intent.PERCEPTUAL)
