"""Augmentation: geometry ops, which return transforms, and color ops, which change images.

Each is a frozen dataclass of options. Geometry ops are called with (size, generator), color ops with (image, generator);
policies go into either list. A user's own function can take the place of any op.

Names are imported when they are first used: a recipe uses a few of them, and each worker of a build imports only those.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tfprep.optional import lazy_names

if TYPE_CHECKING:
    from tfprep.augment.chain import Custom
    from tfprep.augment.color import (
        AutoContrast,
        Brightness,
        Clahe,
        ColorJitter,
        Contrast,
        Equalize,
        Gamma,
        Grayscale,
        Hue,
        Invert,
        Posterize,
        Saturation,
        Solarize,
    )
    from tfprep.augment.dense import Elastic
    from tfprep.augment.geometry import (
        CenterCrop,
        Crop,
        Flip,
        Perspective,
        RandomResizedCrop,
        Resize,
        Rotate,
        Rotate90,
        Scale,
        Shear,
        Translate,
    )
    from tfprep.augment.mixing import CutMix, MixUp
    from tfprep.augment.optics import Blur, Erasing, JpegArtifacts, Noise, Sharpness
    from tfprep.augment.policies import Maybe, OneOf, RandAugment, SomeOf, TrivialAugment
    from tfprep.augment.transform import ColorOp, GeometryOp, Transform

__all__ = [
    "AutoContrast", "Blur", "Brightness", "CenterCrop", "Clahe", "ColorJitter", "ColorOp",
    "Contrast", "Crop", "Custom", "CutMix", "Elastic", "Equalize", "Erasing", "Flip", "Gamma", "GeometryOp",
    "Grayscale", "Hue", "Invert", "JpegArtifacts", "Maybe", "MixUp", "Noise", "OneOf",
    "Perspective", "Posterize", "RandAugment", "RandomResizedCrop", "Resize", "Rotate", "Rotate90", "Saturation", "Scale",
    "Sharpness", "Shear", "Solarize", "SomeOf", "Transform", "Translate", "TrivialAugment",
]  # fmt: skip

__getattr__, __dir__ = lazy_names(__name__, {
    "chain": ["Custom"],
    "color": [
        "AutoContrast", "Brightness", "Clahe", "ColorJitter", "Contrast", "Equalize", "Gamma", "Grayscale",
        "Hue", "Invert", "Posterize", "Saturation", "Solarize",
    ],
    "dense": ["Elastic"],
    "geometry": [
        "CenterCrop", "Crop", "Flip", "Perspective", "RandomResizedCrop", "Resize", "Rotate", "Rotate90", "Scale",
        "Shear", "Translate",
    ],
    "mixing": ["CutMix", "MixUp"],
    "optics": ["Blur", "Erasing", "JpegArtifacts", "Noise", "Sharpness"],
    "policies": ["Maybe", "OneOf", "RandAugment", "SomeOf", "TrivialAugment"],
    "transform": ["ColorOp", "GeometryOp", "Transform"],
})  # fmt: skip
