"""Files of images, photos in class folders, and datasets built from them, for tests that need files with nothing particular."""

import io

import cv2
import numpy as np
from PIL import Image

import tfprep
from tfprep import Recipe, codecs, sources
from tfprep.builder import BuildOptions


def write_photos(folder, count, name="{label}/{number}.png", *, labels="ab", noise=(6, 8), size=None):
    """Writes `count` images of noise of (height, width) pixels, scaled up smoothly to `size`; returns the folder."""
    draws = np.random.default_rng(0)
    for number in range(count):
        path = folder / name.format(label=labels[number % len(labels)], number=number)
        path.parent.mkdir(parents=True, exist_ok=True)
        image = Image.fromarray(draws.integers(0, 256, (*noise, 3), np.uint8))
        (image.resize(size[::-1], Image.Resampling.BICUBIC) if size else image).save(path)
    return folder


def build_photos(folder, count, image=None, recipe=None, **raw):
    """Writes photos below `folder`, and builds a dataset of them and their labels; returns the folder of the dataset."""
    write_photos(folder / "raw", count, **raw)
    store = {"image": image or codecs.Png(), "label": codecs.Scalar()}
    made = Recipe(name="photos", source=sources.Folder("{label}/*"), store=store, **(recipe or {}))
    tfprep.build(made, folder / "out", folder / "raw", options=BuildOptions(workers=0))
    return folder / "out"


def written(image, form="PNG", **options):
    """The bytes of a file of this image of Pillow's, or of these pixels."""
    file = io.BytesIO()
    (image if isinstance(image, Image.Image) else Image.fromarray(image)).save(file, form, **options)
    return file.getvalue()


def oriented(number):
    """EXIF with this orientation."""
    exif = Image.Exif()
    exif[0x0112] = number
    return exif


def save(path, pixels):
    """Writes an image of these pixels to a folder that is made if it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


def natural(number, height=96, width=128):
    """A picture with the spectrum of photos, another one for each number: amplitudes fall with the frequency (Field 1987)."""
    draws = np.random.default_rng(number)
    layers = [
        cv2.resize(draws.normal(size=(n, n, 3)), (width, height), interpolation=cv2.INTER_CUBIC) / n for n in SCALES
    ]
    sums = np.sum(layers, axis=0)
    return ((sums - sums.min()) / np.ptp(sums) * 255).astype(np.uint8)


SCALES = (2, 4, 8, 16, 32)
