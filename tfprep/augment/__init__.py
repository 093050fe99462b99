"""Augmentation: geometry ops, which return transforms, and colour ops, which change images."""

from tfprep.augment.affine import Flip, Perspective, Rotate, Rotate90, Scale, Shear, Translate
from tfprep.augment.colour import Brightness, Contrast, Hue, Saturation
from tfprep.augment.dense import Elastic, GridDistortion
from tfprep.augment.geometry import CenterCrop, Crop, RandomResizedCrop, Resize
from tfprep.augment.transform import ColourOp, GeometryOp, Transform

__all__ = [
    "Brightness",
    "CenterCrop",
    "ColourOp",
    "Contrast",
    "Crop",
    "Elastic",
    "Flip",
    "GeometryOp",
    "GridDistortion",
    "Hue",
    "Perspective",
    "RandomResizedCrop",
    "Resize",
    "Rotate",
    "Rotate90",
    "Saturation",
    "Scale",
    "Shear",
    "Transform",
    "Translate",
]
