"""Codecs: how a stored field becomes features of an Example and comes back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tfprep.codecs.codec import Codec, Feature, codec_name
from tfprep.codecs.encoded import Encoded, Jpeg, Original, Png
from tfprep.codecs.raw import Boxes, Raw, Scalar, Text, Texts, feature_value
from tfprep.codecs.zstd import Zstd
from tfprep.errors import DatasetError

__all__ = [
    "Boxes", "Codec", "Encoded", "Feature", "Jpeg", "Original", "Png", "Raw", "Scalar", "Text", "Texts",
    "Zstd", "feature_value", "from_description",
]  # fmt: skip

_BY_NAME: dict[str, Any] = {
    codec_name(codec): codec for codec in (Jpeg, Png, Raw, Original, Scalar, Text, Encoded, Texts, Boxes, Zstd)
}


def from_description(description: Mapping[str, Any]) -> Codec:
    """Make a codec from its description in a manifest.

    Args:
        description: What `Codec.describe` returned.

    Returns:
        The codec.

    Raises:
        DatasetError: This version does not know the codec.
    """
    options = dict(description)
    name = options.pop("codec", None)
    if name not in _BY_NAME:
        raise DatasetError(
            f"unknown codec {name!r}: the dataset was built by a newer tfprep; upgrade tfprep to read it"
        )
    codec: Codec = _BY_NAME[name](**options)
    return codec
