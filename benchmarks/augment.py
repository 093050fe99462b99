"""Augmentation compared with Pillow and albumentations: the ops that both sides have, with the same strength.

Run: python benchmarks/augment.py [--seconds 2] [--threads 1] [--only NAME] [--json FILE]

Colour ops work on 224 x 224 pixels, geometry ops go from 375 x 500 to 224 x 224. The two functions of a pair take turns in one
process. The table shows medians, and the ratio within a round with its quartiles. albumentations is skipped if it is not
installed (its last MIT release: pip install albumentations==2.0.8). The last line compares a chain of ops that is resampled once
with one that is resampled in every step: the PSNR of both against an image whose values between the pixels are known.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from interleaved import Pair, print_timing, time_pair
from PIL import Image, ImageEnhance, ImageFilter, ImageOps

from tfprep import augment
from tfprep.augment.chain import apply_colours
from tfprep.augment.transform import Transform, identity
from tfprep.augment.warp import warp_sample

os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")
try:
    import albumentations
except ImportError:
    albumentations = None

SOURCE, SIZE = (375, 500), (224, 224)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2.0, help="Measured seconds per pair")
    parser.add_argument("--threads", type=int, default=1, help="Threads of OpenCV")
    parser.add_argument("--only", default="", help="Measure only pairs whose name contains this text")
    parser.add_argument("--json", type=Path, help="File for the results")
    options = parser.parse_args()
    cv2.setNumThreads(options.threads)
    results = []
    for pair in (*colours(picture(SIZE)), *geometry(picture(SOURCE)), *chains(picture(SIZE))):
        if options.only.lower() in pair.name.lower():
            timing = time_pair(pair, options.seconds)
            print_timing(timing)
            results.append(vars(timing))
    gain = resampling_gain()
    print(f"PSNR of a chain of five ops: {gain[0]:.1f} dB if resampled once, {gain[1]:.1f} dB if resampled five times")
    if options.json:
        options.json.write_text(
            json.dumps({"pairs": results, "psnr_once": gain[0], "psnr_stepwise": gain[1]}, indent=1)
        )


def colours(image: Any) -> Iterator[Pair]:
    pil = Image.fromarray(image)
    by_pillow: list[tuple[Any, Callable[[], Any]]] = [
        (augment.Brightness((1.3, 1.3)), lambda: ImageEnhance.Brightness(pil).enhance(1.3)),
        (augment.Contrast((1.3, 1.3)), lambda: ImageEnhance.Contrast(pil).enhance(1.3)),
        (augment.Saturation((1.3, 1.3)), lambda: ImageEnhance.Color(pil).enhance(1.3)),
        (augment.Sharpness((1.5, 1.5)), lambda: ImageEnhance.Sharpness(pil).enhance(1.5)),
        (augment.Posterize((4, 4)), lambda: ImageOps.posterize(pil, 4)),
        (augment.Solarize((128, 128)), lambda: ImageOps.solarize(pil, 128)),
        (augment.Equalize(), lambda: ImageOps.equalize(pil)),
        (augment.AutoContrast(), lambda: ImageOps.autocontrast(pil)),
        (augment.Grayscale(1), lambda: pil.convert("L").convert("RGB")),
        (augment.Blur((2, 2)), lambda: pil.filter(ImageFilter.GaussianBlur(2))),
    ]
    for op, peer in by_pillow:
        yield Pair(type(op).__name__, _on(op, image), lambda peer=peer: np.asarray(peer()), "Pillow")
    if albumentations is None:
        return
    a = albumentations
    by_albumentations = [
        (augment.Brightness((1.3, 1.3)), a.RandomBrightnessContrast((0.3, 0.3), (0, 0), p=1)),
        (augment.Hue((0.1, 0.1)), a.HueSaturationValue((18, 18), (0, 0), (0, 0), p=1)),
        (augment.Gamma((1.2, 1.2)), a.RandomGamma((120, 120), p=1)),
        (augment.Equalize(), a.Equalize(p=1)),
        (augment.Clahe((2, 2)), a.CLAHE((2, 2), p=1)),
        (augment.Sharpness((1.5, 1.5)), a.Sharpen((0.5, 0.5), p=1)),
        (augment.Blur((2, 2)), a.GaussianBlur((17, 17), (2, 2), p=1)),
        (augment.MotionBlur((9, 9)), a.MotionBlur((9, 9), p=1)),
        (augment.Noise((10, 10)), a.GaussNoise((10 / 255, 10 / 255), p=1)),
        (augment.JpegArtefacts((50, 50)), a.ImageCompression(quality_range=(50, 50), p=1)),
        (augment.Erasing(1), a.Erasing(p=1)),
        (augment.ChannelShuffle(1), a.ChannelShuffle(p=1)),
    ]
    for op, theirs in by_albumentations:
        yield Pair(type(op).__name__, _on(op, image), lambda theirs=theirs: theirs(image=image), "albumentations")


def geometry(image: Any) -> Iterator[Pair]:
    pil, box = Image.fromarray(image), (60, 40, 388, 368)
    crop = Transform(np.array([[224 / 328, 0, -60 * 224 / 328], [0, 224 / 328, -40 * 224 / 328], [0, 0, 1]]), SIZE)

    def by_pillow() -> Any:
        whole = pil.resize((224, 224), Image.Resampling.BOX, box=box)
        return np.asarray(whole.transpose(Image.Transpose.FLIP_LEFT_RIGHT))

    flipped = crop.then(augment.Flip(1)(SIZE, np.random.default_rng(0)))
    yield Pair("crop 328, resize to 224, flip", lambda: _warp(image, flipped), by_pillow, "Pillow")
    rotated = crop.then(augment.Rotate((10, 10))(SIZE, np.random.default_rng(0)))
    yield Pair("crop 328, resize, rotate 10", lambda: _warp(image, rotated), lambda: _pillow_rotate(pil, box), "Pillow")
    if albumentations is None:
        return
    a, mask = albumentations, np.ascontiguousarray(image[:, :, 0])
    sample, kinds = {"image": image, "mask": mask}, {"image": "image", "mask": "mask"}
    recipes = {
        "RandomResizedCrop, Flip, mask too": (
            [augment.RandomResizedCrop(224, 224), augment.Flip()],
            [a.RandomResizedCrop((224, 224), interpolation=cv2.INTER_AREA), a.HorizontalFlip()],
        ),
        "Rotate, Scale, Crop, mask too": (
            [augment.Rotate(20), augment.Scale((0.8, 1.25)), augment.Crop(224, 224)],
            [a.Rotate(20, p=1), a.RandomScale((-0.2, 0.25), p=1), a.RandomCrop(224, 224, pad_if_needed=True)],
        ),
        "Perspective, Crop, mask too": (
            [augment.Perspective(0.3), augment.Crop(224, 224)],
            [a.Perspective((0.05, 0.1), p=1), a.RandomCrop(224, 224)],
        ),
        "Elastic, Crop, mask too": (
            [augment.Elastic(90, 10), augment.Crop(224, 224)],
            [a.ElasticTransform(90, 10, p=1), a.RandomCrop(224, 224)],
        ),
        "GridDistortion, Crop, mask too": (
            [augment.GridDistortion(), augment.Crop(224, 224)],
            [a.GridDistortion(p=1), a.RandomCrop(224, 224)],
        ),
    }
    for name, (ops, theirs) in recipes.items():
        peer = a.Compose(theirs, seed=0)
        yield Pair(
            name,
            lambda ops=ops: _warped_by(ops, sample, kinds),
            lambda peer=peer: peer(image=image, mask=mask),
            "albumentations",
        )


def chains(image: Any) -> Iterator[Pair]:
    ops = [augment.Brightness(), augment.Gamma(), augment.ToneCurve(), augment.Posterize()]

    def one_by_one() -> Any:
        result = image
        for op in ops:
            result = op(result, RNG)
        return result

    yield Pair(
        "4 tone curves", lambda: apply_colours(image, [(op, RNG) for op in ops]), one_by_one, "one after another"
    )


def resampling_gain() -> tuple[float, float]:
    """PSNR in dB of a chain in one resampling and in one per step, on an image of waves with known values between pixels."""
    size = (400, 400)
    steps = [
        augment.Rotate((12, 12)),
        augment.Scale((1.1, 1.1)),
        augment.Shear((5, 5), 0),
        augment.Translate((0.013, 0.013), 0, whole=False),
        augment.Rotate((-5, -5)),
    ]
    centres = np.stack(np.meshgrid(np.arange(400) + 0.5, np.arange(400) + 0.5), axis=2)
    image = np.rint(waves(centres)).astype(np.uint8)[:, :, None]
    whole, stepwise = identity(size), image
    for op in steps:
        step = op(size, RNG)
        whole, stepwise = whole.then(step), _warp(stepwise, step)
    truth = waves(whole.pull(centres))[:, :, None]
    middle = slice(100, 300), slice(100, 300)
    return _psnr(_warp(image, whole)[middle], truth[middle]), _psnr(stepwise[middle], truth[middle])


def waves(xy: Any) -> Any:
    """The sum of twenty waves 5 to 60 pixels long, in all directions, with values from 0 to 255."""
    generator = np.random.default_rng(4)
    total = np.zeros(xy.shape[:2])
    for length, angle, phase in generator.uniform([5, 0, 0], [60, np.pi, 2 * np.pi], (20, 3)):
        total += np.sin(2 * np.pi / length * (xy[..., 0] * np.cos(angle) + xy[..., 1] * np.sin(angle)) + phase)
    return 127.5 + total * (127.5 / 20)


RNG = np.random.default_rng(0)


def picture(size: tuple[int, int]) -> Any:
    """An image with edges and texture: blurred noise at two scales."""
    noise = np.random.default_rng(1).integers(0, 256, (2, *size, 3), dtype=np.uint8)
    coarse, fine = cv2.GaussianBlur(noise[0], (0, 0), 9), cv2.GaussianBlur(noise[1], (0, 0), 1.2)
    return np.clip((coarse.astype(np.float32) - 128) * 12 + (fine - 128.0) * 1.5 + 128, 0, 255).astype(np.uint8)


def _on(op: Any, image: Any) -> Callable[[], Any]:
    return lambda: op(image, RNG)


def _warp(image: Any, transform: Transform) -> Any:
    return warp_sample({"image": image}, {"image": "image"}, transform)["image"]


def _warped_by(ops: Any, sample: Any, kinds: Any) -> Any:
    transform = identity(sample["image"].shape[:2])
    for op in ops:
        transform = transform.then(op(transform.size, RNG))
    return warp_sample(sample, kinds, transform)


def _pillow_rotate(pil: Image.Image, box: tuple[int, int, int, int]) -> Any:
    return np.asarray(pil.resize((224, 224), Image.Resampling.BOX, box=box).rotate(10, Image.Resampling.BILINEAR))


def _psnr(warped: Any, truth: Any) -> float:
    error = np.square(warped.astype(np.float64) - truth).mean()
    return float("inf") if error == 0 else float(10 * np.log10(255**2 / error))


if __name__ == "__main__":
    main()
