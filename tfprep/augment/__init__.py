"""Augmentation: geometry ops, which return transforms, and colour ops, which change images."""

from tfprep.augment.affine import Flip, Rotate, Scale
from tfprep.augment.colour import Brightness, Contrast, Hue, Saturation
from tfprep.augment.geometry import CenterCrop, Crop, RandomResizedCrop, Resize
from tfprep.augment.transform import ColourOp, GeometryOp, Transform

__all__ = [
    "Brightness",
    "CenterCrop",
    "ColourOp",
    "Contrast",
    "Crop",
    "Flip",
    "GeometryOp",
    "Hue",
    "RandomResizedCrop",
    "Resize",
    "Rotate",
    "Saturation",
    "Scale",
    "Transform",
]
