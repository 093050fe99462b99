"""Comparison of every derived input, op and codec with an independent reference, on real images.

Run: python benchmarks/fidelity.py --data data/photos [--images 6] [--json FILE]

Each line shows the largest and the mean absolute difference over all images, in the units of the result (levels, pixels,
classes), the largest difference that is allowed, and a verdict. Lines named RMS compare one root mean square per image, since
single pixels may differ: a reduced JPEG keeps other high frequencies than an area average, and shrinking warps average 2 x 2
points. The references are Pillow, SciPy, scikit-image, NumPy formulas, and TensorFlow for codecs. Ops have ranges of a single
value, so that the reference does not depend on their random numbers. The exit status is 1 if a comparison fails.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import cos, radians, sin
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageEnhance, ImageOps
from scipy import ndimage
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import dijkstra
from skimage import color, exposure, feature
from skimage.segmentation import find_boundaries

from tfprep import augment, codecs, derive, images
from tfprep.augment.chain import apply_colours, apply_geometry
from tfprep.augment.warp import reduction_for, warp_sample

PROTOCOLS = {"ColourOp", "GeometryOp", "Transform", "Derived"}
"""Exported names that are not ops."""


@dataclass(frozen=True)
class Case:
    """`compare(photo)` returns tfprep's result and that of the reference; a difference above `allowed` fails."""

    name: str
    reference: str
    allowed: float
    compare: Callable[[Photo], tuple[Any, Any]]


@dataclass(frozen=True)
class Photo:
    """An image: its file, its pixels, and a mask with classes 0 to 4 (bands of the smoothed brightness)."""

    data: bytes
    pixels: np.ndarray
    mask: np.ndarray

    @property
    def sample(self) -> dict[str, Any]:
        points = np.array([[30.5, 20.5, 1], [60.2, 50.9, 2], [10.0, 70.0, 0]], np.float32)
        return {"image": self.pixels, "mask": self.mask, "points": points}

    @property
    def pil(self) -> Image.Image:
        return Image.fromarray(self.pixels)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="Folder with images in it or below it")
    parser.add_argument("--images", type=int, default=6, help="Number of images to compare")
    parser.add_argument("--json", type=Path, help="File for the results")
    options = parser.parse_args()
    photos = list(read_photos(options.data, options.images))
    cases = [*codec_cases(), *geometry_cases(), *colour_cases(), *policy_cases(), *derive_cases()]
    missing = uncovered(cases)
    assert not missing, f"no case for {missing}"
    rows = [measured(case, photos) for case in cases]
    print(f"{'':32} {'largest':>10} {'mean':>10} {'allowed':>10}  verdict  reference ({len(photos)} images)")
    for row in rows:
        figures = f"{row['largest']:10.4g} {row['mean']:10.4g} {row['allowed']:10.4g}"
        print(f"{row['name']:32} {figures}  {row['verdict']:7}  {row['reference']}")
    if options.json:
        options.json.write_text(json.dumps({"images": len(photos), "rows": rows}, indent=1) + "\n")
    return int(any(row["verdict"] == "FAILS" for row in rows))


def read_photos(folder: Path, count: int) -> Iterator[Photo]:
    suffixes = (".jpg", ".jpeg", ".png")
    paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in suffixes)
    for path in paths[:: max(1, len(paths) // count)][:count]:
        data = path.read_bytes()
        pixels = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB"))
        smooth = ndimage.gaussian_filter(pixels.mean(2), 6)
        yield Photo(data, pixels, np.digitize(smooth, np.quantile(smooth, [0.2, 0.4, 0.6, 0.8])).astype(np.uint8))


def measured(case: Case, photos: list[Photo]) -> dict[str, Any]:
    differences = []
    for photo in photos:
        ours, reference = (np.asarray(value, np.float64) for value in case.compare(photo))
        assert ours.shape == reference.shape, f"{case.name}: {ours.shape} and {reference.shape}"
        differences.append(np.abs(ours - reference).ravel())
    every = np.concatenate(differences)
    largest = float(every.max(initial=0))
    verdict = "FAILS" if largest > case.allowed else "equal" if largest == 0 else "close"
    figures = {"largest": largest, "mean": float(every.mean()), "allowed": case.allowed, "verdict": verdict}
    return {"name": case.name, "reference": case.reference, **figures}


def uncovered(cases: list[Case]) -> list[str]:
    """The public ops, derived inputs and codecs without a case; the name of a case begins with the name of the class."""
    covered = {case.name.split("(")[0].split(",")[0] for case in cases}
    public = {*augment.__all__, *derive.__all__, *(kind.__name__ for kind in codecs._BY_NAME.values())}
    return sorted(public - covered - PROTOCOLS)


def draws(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


# --- codecs and decoding ----------------------------------------------------------------------------------------------


def by_tensorflow(codec: Any, kind: Any, value: Any) -> np.ndarray:
    import tensorflow as tf

    from tfprep.records import encode

    spec = codec.spec(kind, value)
    payload, _ = encode({f"x{suffix}": part for suffix, part in codec.encode(value).items()})
    return codec.tf_decode(tf.io.parse_single_example(payload, codec.tf_features("x", spec)), "x", spec).numpy()


def by_us(codec: Any, kind: Any, value: Any) -> Any:
    return codec.decode(codec.encode(value)[""], codec.spec(kind, value), np.shape(value))


def pillow_jpeg(photo: Photo, quality: int, subsampling: int) -> np.ndarray:
    file = io.BytesIO()
    photo.pil.save(file, "JPEG", quality=quality, subsampling=subsampling)
    return np.asarray(Image.open(file))


def codec_cases() -> Iterator[Case]:
    for name, number in (("444", 0), ("422", 1), ("420", 2)):
        codec = codecs.Jpeg(95, name)
        yield Case(
            f"Jpeg(95, {name})", "Pillow's encoder and decoder", 0,
            lambda p, codec=codec, number=number: (by_us(codec, "image", p.pixels), pillow_jpeg(p, 95, number)),
        )  # fmt: skip
    for codec, kind, of in (
        (codecs.Jpeg(90), "image", lambda p: p.pixels), (codecs.Png(), "image", lambda p: p.pixels),
        (codecs.Raw("float16"), "map", lambda p: p.mask / 3), (codecs.Scalar(), "label", lambda p: p.mask[0].astype(np.int64)),
        (codecs.Original(), "image", lambda p: p.data if images.keeps_original(p.data) else p.pixels),
    ):  # fmt: skip
        yield Case(
            f"{type(codec).__name__}, decoded", "TensorFlow's parser and decoder", 0,
            lambda p, codec=codec, kind=kind, of=of: (by_us(codec, kind, of(p)), by_tensorflow(codec, kind, of(p))),
        )  # fmt: skip
    yield Case("Text", "the text itself", 0, lambda p: (by_us(codecs.Text(), "text", "Grüße") == "Grüße", True))
    yield Case("decode_image", "Pillow", 0, lambda p: (images.decode_image(p.data), p.pixels))
    yield Case("decode_mask", "Pillow", 0, lambda p: (images.decode_mask(png(p.mask)), p.mask))
    for side in (100, 64):
        yield Case(
            f"reduced decode to {side}, RMS", "area average of the whole image", 10,
            lambda p, side=side: (rms(*reduced_and_whole(p, side)), 0),
        )  # fmt: skip
        # The row above compares two ways of shrinking, so it would pass with pixels half a pixel off; this one would not.
        yield Case(
            f"reduced decode to {side}", "area average of Pillow's reduced decode", 0.51,
            lambda p, side=side: reduced_and_placed(p, side),
        )  # fmt: skip


def png(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(array).save(file, "PNG")
    return file.getvalue()


def rms(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(one.astype(np.float64) - other))))


def reduced_and_whole(photo: Photo, side: int) -> tuple[np.ndarray, np.ndarray]:
    size = photo.pixels.shape[:2]
    transform = augment.Resize(side, side)(size, None)
    factor = reduction_for(transform)
    small = images.decode_image(photo.data, reduced=factor)
    ours = warp_sample({"x": small}, {"x": "image"}, transform, size=size, reduced=factor)["x"]
    return ours, area_average(photo.pixels, (0, 0, *size), (side, side))


def reduced_and_placed(photo: Photo, side: int) -> tuple[np.ndarray, np.ndarray]:
    """Ours, and Pillow's decode at the same 1/k, whose pixels are k pixels wide: the whole image is size / k of them."""
    height, width = photo.pixels.shape[:2]
    factor = reduction_for(augment.Resize(side, side)((height, width), None))
    with Image.open(io.BytesIO(photo.data)) as image:
        image.draft("RGB", (width // factor, height // factor))
        small = np.asarray(image.convert("RGB"))
    assert small.shape[:2] == (-(-height // factor), -(-width // factor))
    ours, _ = reduced_and_whole(photo, side)
    return ours, area_average(small, (0, 0, height / factor, width / factor), (side, side))


def area_average(array: np.ndarray, window: tuple[int, int, int, int], size: tuple[int, int]) -> np.ndarray:
    """The window (top, left, bottom, right) averaged to a size; each pixel is weighted by its overlap with the output pixel."""
    top, left, bottom, right = window
    down = shares(array.shape[0], top, bottom, size[0])
    along = shares(array.shape[1], left, right, size[1])
    return np.einsum("ai,ijc,bj->abc", down, array.astype(np.float64), along, optimize=True)


def shares(length: int, start: float, stop: float, count: int) -> np.ndarray:
    edges, pixels = np.linspace(start, stop, count + 1), np.arange(length)
    overlap = np.clip(np.minimum(pixels + 1, edges[1:, None]) - np.maximum(pixels, edges[:-1, None]), 0, None)
    return overlap / overlap.sum(1, keepdims=True)


# --- geometry ---------------------------------------------------------------------------------------------------------


def warped(photo: Photo, op: Any, generator: np.random.Generator | None = None, **options: Any) -> np.ndarray:
    transform = op(photo.pixels.shape[:2], generator if generator is not None else draws())
    return warp_sample({"x": photo.pixels}, {"x": "image"}, transform, **options)["x"]


def pulled(photo: Photo, pull: Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """SciPy's linear interpolation at the points from which `pull` takes output pixels, relative to the image's centre."""
    height, width = photo.pixels.shape[:2]
    y, x = np.mgrid[:height, :width] + 0.5
    from_x, from_y = pull(x - width / 2, y - height / 2)
    where = [from_y + height / 2 - 0.5, from_x + width / 2 - 0.5]
    channels = [
        ndimage.map_coordinates(photo.pixels[:, :, c].astype(float), where, order=1, mode="nearest") for c in range(3)
    ]
    return np.stack(channels, axis=2)


def inner(one: np.ndarray, other: np.ndarray, margin: float = 0.3) -> tuple[np.ndarray, np.ndarray]:
    """Both images without their borders, which depend on how pixels outside the image are filled."""
    top, left = (int(side * margin) for side in one.shape[:2])
    return one[top:-top, left:-left], other[top:-top, left:-left]


def linear(a: float, b: float, c: float, d: float) -> Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    return lambda x, y: (a * x + b * y, c * x + d * y)


def bent_reference(photo: Photo, op: Any, fine: int = 3) -> np.ndarray:
    """SciPy's interpolation at the points of the op's `pull`, averaged over `fine` x `fine` points per pixel."""
    height, width = photo.pixels.shape[:2]
    transform = op((height, width), draws())
    y, x = (np.mgrid[: height * fine, : width * fine] + 0.5) / fine
    source = transform.pull(np.stack([x, y], axis=-1))
    where = [source[..., 1] - 0.5, source[..., 0] - 0.5]
    planes = [
        ndimage.map_coordinates(photo.pixels[:, :, c].astype(float), where, order=1, mode="nearest") for c in range(3)
    ]
    return np.stack([plane.reshape(height, fine, width, fine).mean((1, 3)) for plane in planes], axis=2)


def geometry_cases() -> Iterator[Case]:
    c, s = cos(radians(17)), sin(radians(17))
    yield Case("Flip", "NumPy", 0, lambda p: (warped(p, augment.Flip(1)), p.pixels[:, ::-1]))
    yield Case("Rotate90", "NumPy's rot90", 0, quarter_turn)
    yield Case("Crop", "slicing, unaugmented", 0, lambda p: (centre(p, augment.Crop), sliced(p)))
    yield Case("CenterCrop", "slicing", 0, lambda p: (centre(p, augment.CenterCrop), sliced(p)))
    yield Case(
        "Resize, smaller",
        "area average by NumPy",
        0.51,
        lambda p: (warped(p, augment.Resize(90, 70)), whole(p, 90, 70)),
    )
    yield Case("Resize, larger", "SciPy, linear", 0.51, enlarged)
    yield Case("RandomResizedCrop", "area average by NumPy", 0.51, resized_crop)
    yield Case(
        "Translate", "SciPy's shift by a fraction of a pixel", 0.51,
        lambda p: inner(warped(p, shift(p)), pulled(p, lambda x, y: (x - 3.3, y + 2.75))),
    )  # fmt: skip
    yield Case(
        "Rotate", "SciPy, linear", 0.7,
        lambda p: inner(warped(p, augment.Rotate((17, 17))), pulled(p, linear(c, -s, s, c))),
    )  # fmt: skip
    yield Case(
        "Scale, larger", "SciPy, linear", 0.51,
        lambda p: (warped(p, augment.Scale((1.5, 1.5)), border="replicate"), pulled(p, linear(1 / 1.5, 0, 0, 1 / 1.5))),
    )  # fmt: skip
    yield Case(
        "Shear, RMS", "SciPy, 3 x 3 points per pixel", 2, lambda p: (bent_rms(p, augment.Shear((10, 10), 0), 0.2), 0)
    )
    yield Case(
        "Perspective, RMS",
        "SciPy at the homography's points",
        0.6,
        lambda p: (bent_rms(p, augment.Perspective(0.1), fine=1), 0),
    )
    yield Case("Elastic, RMS", "SciPy, 3 x 3 points per pixel", 2, lambda p: (bent_rms(p, augment.Elastic()), 0))
    yield Case(
        "GridDistortion, RMS", "SciPy, 3 x 3 points per pixel", 2, lambda p: (bent_rms(p, augment.GridDistortion()), 0)
    )
    yield Case("Custom", "NumPy", 0, lambda p: (apply_geometry(
        p.sample, {"image": "image"}, [(augment.Custom(lambda sample, _: {**sample, "image": sample["image"][::2]}), draws())]
    )["image"], p.pixels[::2]))  # fmt: skip
    yield Case(
        "Rotate and Scale, RMS", "SciPy, 3 x 3 points per pixel", 2, lambda p: (bent_rms(p, turned_and_shrunk, 0.3), 0)
    )


def turned_and_shrunk(size: tuple[int, int], generator: np.random.Generator) -> Any:
    return augment.Rotate((10, 10))(size, generator).then(augment.Scale((0.8, 0.8))(size, generator))


def bent_rms(photo: Photo, op: Any, margin: float = 0.1, fine: int = 3) -> float:
    return rms(*inner(warped(photo, op), bent_reference(photo, op, fine), margin))


def shift(photo: Photo) -> augment.Translate:
    height, width = photo.pixels.shape[:2]
    return augment.Translate((3.3 / width,) * 2, (-2.75 / height,) * 2, whole=False)


def quarter_turn(photo: Photo) -> tuple[np.ndarray, np.ndarray]:
    ours = warped(photo, augment.Rotate90(), draws(4))
    turns = [np.rot90(photo.pixels, k) for k in range(4)]
    same = [turn for turn in turns if turn.shape == ours.shape]
    return ours, min(same, key=lambda turn: int(np.abs(turn.astype(int) - ours).max()))


def centre(photo: Photo, op: Any) -> np.ndarray:
    return warp_sample({"x": photo.pixels}, {"x": "image"}, op(64, 80)(photo.pixels.shape[:2], None))["x"]


def sliced(photo: Photo) -> np.ndarray:
    top, left = round((photo.pixels.shape[0] - 64) / 2), round((photo.pixels.shape[1] - 80) / 2)
    return photo.pixels[top : top + 64, left : left + 80]


def whole(photo: Photo, height: int, width: int) -> np.ndarray:
    return area_average(photo.pixels, (0, 0, *photo.pixels.shape[:2]), (height, width))


def enlarged(photo: Photo) -> tuple[np.ndarray, np.ndarray]:
    small = Photo(b"", photo.pixels[:60, :80], photo.mask)
    ours = warped(small, augment.Resize(150, 200))
    y, x = (np.mgrid[:150, :200] + 0.5) / 2.5 - 0.5
    planes = [
        ndimage.map_coordinates(small.pixels[:, :, c].astype(float), [y, x], order=1, mode="nearest") for c in range(3)
    ]
    return ours, np.stack(planes, axis=2)


def resized_crop(photo: Photo) -> tuple[np.ndarray, np.ndarray]:
    """The window comes from warped points: the source of the output's corners after rounding to whole pixels."""
    size = photo.pixels.shape[:2]
    transform = augment.RandomResizedCrop(48, 56, (0.3, 1))(size, draws(3))
    points = np.array([[0, 0], [size[1], size[0]]], np.float32)
    out = warp_sample({"x": photo.pixels, "p": points}, {"x": "image", "p": "points"}, transform)
    scale = (out["p"][1] - out["p"][0]) / (size[1], size[0])
    left, top = -out["p"][0] / scale
    right, bottom = ((56, 48) - out["p"][0]) / scale
    return out["x"], area_average(photo.pixels, tuple(round(float(v)) for v in (top, left, bottom, right)), (48, 56))


# --- colour -----------------------------------------------------------------------------------------------------------


def enhanced(kind: Any, factor: float) -> Callable[[Photo], np.ndarray]:
    return lambda p: np.asarray(kind(p.pil).enhance(factor))


def colour_cases() -> Iterator[Case]:
    factor = (1.3, 1.3)
    for op, reference, allowed, expected in (
        (augment.Brightness(factor), "Pillow's ImageEnhance", 0, enhanced(ImageEnhance.Brightness, 1.3)),
        (augment.Contrast(factor), "Pillow's ImageEnhance", 0, enhanced(ImageEnhance.Contrast, 1.3)),
        (augment.Saturation(factor), "Pillow's ImageEnhance", 0, enhanced(ImageEnhance.Color, 1.3)),
        (augment.Sharpness(factor), "Pillow's ImageEnhance", 0, enhanced(ImageEnhance.Sharpness, 1.3)),
        (augment.Grayscale(1), "Pillow's convert", 0, lambda p: np.asarray(p.pil.convert("L").convert("RGB"))),
        (augment.Posterize((3, 3)), "Pillow's ImageOps", 0, lambda p: np.asarray(ImageOps.posterize(p.pil, 3))),
        (augment.Solarize((99, 99)), "Pillow's ImageOps", 0, lambda p: np.asarray(ImageOps.solarize(p.pil, 99))),
        (augment.Equalize(), "Pillow's ImageOps", 0, lambda p: np.asarray(ImageOps.equalize(p.pil))),
        (augment.AutoContrast(), "Pillow's ImageOps", 0, lambda p: np.asarray(ImageOps.autocontrast(p.pil))),
        (augment.Invert(1), "Pillow's ImageOps", 0, lambda p: np.asarray(ImageOps.invert(p.pil))),
        (augment.Gamma((2, 2)), "the formula", 0, lambda p: np.rint(255 * (p.pixels / 255) ** 2)),
        (augment.Hue((0.25, 0.25)), "scikit-image's HSV", 1, turned_hue),
        (augment.Blur((1.5, 1.5)), "SciPy's gaussian_filter", 1, blurred),
        (augment.MotionBlur((7, 7), (0, 0)), "SciPy's uniform_filter1d", 1, motion),
        (augment.ToneCurve(0), "the image itself", 0, lambda p: p.pixels),
        (augment.JpegArtefacts((40, 40)), "Pillow's encoder", 0, lambda p: pillow_jpeg(p, 40, 2)),
        (augment.Noise((0, 0)), "the image itself, σ = 0", 0, lambda p: p.pixels),
    ):  # fmt: skip
        name = type(op).__name__
        yield Case(name, reference, allowed, lambda p, op=op, expected=expected: (op(p.pixels, draws()), expected(p)))
    yield Case("Clahe, RMS of lightness", "scikit-image: one tile, no clip limit", 3, lambda p: (clahe_rms(p), 0))
    yield Case("ToneCurve, mean of 2,000", "the level itself: shifts cancel out", 2, tone_mean)
    yield Case("Noise, deviation", "σ = 8 of unclipped pixels", 0.15, noise_deviation)
    yield Case(
        "Cutout", "size² pixels of one level, or fewer at the edge", 0, lambda p: (cut_pixels(p) <= 32 * 32, True)
    )
    yield Case("Erasing", "one rectangle of 2 to 33 % of the area", 0, lambda p: (erased_share(p), True))
    yield Case("ChannelShuffle", "the same three levels in each pixel", 0, shuffled)


def turned_hue(photo: Photo) -> np.ndarray:
    hsv = color.rgb2hsv(photo.pixels)
    hsv[:, :, 0] = (hsv[:, :, 0] + 0.25) % 1
    return np.rint(color.hsv2rgb(hsv) * 255)


def blurred(photo: Photo) -> np.ndarray:
    planes = [
        ndimage.gaussian_filter(photo.pixels[:, :, c].astype(float), 1.5, mode="mirror", radius=6) for c in range(3)
    ]
    return np.rint(np.stack(planes, axis=2))


def motion(photo: Photo) -> np.ndarray:
    return np.rint(ndimage.uniform_filter1d(photo.pixels.astype(float), 7, axis=1, mode="mirror"))


def tone_mean(photo: Photo) -> tuple[float, float]:
    ramp = np.arange(256, dtype=np.uint8)[None, :, None].repeat(3, 2)
    out = np.mean([augment.ToneCurve(40)(ramp, draws(seed)) for seed in range(2000)], axis=0)
    return out, ramp


def clahe_rms(photo: Photo) -> float:
    """With one tile and no clip limit, CLAHE is histogram equalisation of L*. A gray image keeps all colours inside sRGB."""
    gray = np.asarray(photo.pil.convert("L").convert("RGB"))
    ours = color.rgb2lab(augment.Clahe((100, 100), 1)(gray, draws()))[:, :, 0]
    return rms(ours, 100 * exposure.equalize_hist(color.rgb2lab(gray)[:, :, 0]))


def noise_deviation(photo: Photo) -> tuple[float, float]:
    gray = np.full_like(photo.pixels, 128)
    return float(np.std(augment.Noise((8, 8))(gray, draws()).astype(float))), 8 + 1 / (12 * 16)


def shuffled(photo: Photo) -> tuple[np.ndarray, np.ndarray]:
    return np.sort(augment.ChannelShuffle(1)(photo.pixels, draws()), axis=2), np.sort(photo.pixels, axis=2)


def cut_pixels(photo: Photo) -> int:
    bright = np.maximum(photo.pixels, 1)
    return int((augment.Cutout(32)(bright, draws()) == 0).all(2).sum())


def erased_share(photo: Photo) -> bool:
    bright = np.maximum(photo.pixels, 1)
    erased = (augment.Erasing(1, level=0)(bright, draws()) == 0).all(2)
    rows, columns = np.flatnonzero(erased.any(1)), np.flatnonzero(erased.any(0))
    rectangle = (rows[-1] - rows[0] + 1) * (columns[-1] - columns[0] + 1)
    return bool(erased.sum() == rectangle and 0.015 < erased.mean() < 0.34)


# --- policies ---------------------------------------------------------------------------------------------------------


PILLOW_OPS: dict[str, Callable[[Image.Image, float], Image.Image]] = {
    "Brightness": lambda image, factor: ImageEnhance.Brightness(image).enhance(factor),
    "Color": lambda image, factor: ImageEnhance.Color(image).enhance(factor),
    "Contrast": lambda image, factor: ImageEnhance.Contrast(image).enhance(factor),
    "Sharpness": lambda image, factor: ImageEnhance.Sharpness(image).enhance(factor),
    "AutoContrast": lambda image, _: ImageOps.autocontrast(image),
    "Equalize": lambda image, _: ImageOps.equalize(image),
}


def policy_colours(photo: Photo, policy: Any, strength: float) -> tuple[np.ndarray, np.ndarray]:
    """The colour ops of a policy, for a seed with which Pillow has all of them under the same name."""
    for seed in range(1000):
        chosen = [one for one in policy.draw(draws(seed)) if one.name in (*augment.automatic.TONAL,)]
        if chosen and all(one.name in PILLOW_OPS for one in chosen):
            break
    expected = photo.pil
    for one in chosen:
        expected = PILLOW_OPS[one.name](expected, 1 + one.sign * strength * one.magnitude / 30)
    steps = [(op, draws()) for op in policy.colour_ops(draws(seed))]
    return apply_colours(photo.pixels, steps), np.asarray(expected)


def policy_cases() -> Iterator[Case]:
    yield Case(
        "RandAugment", "Pillow, the paper's strengths", 0, lambda p: policy_colours(p, augment.RandAugment(2, 20), 0.9)
    )
    yield Case(
        "TrivialAugment",
        "Pillow, the paper's strengths",
        0,
        lambda p: policy_colours(p, augment.TrivialAugment(), 0.99),
    )
    inverted = "the op inside, by Pillow"
    ops = [augment.Invert(1), augment.Invert(1)]
    yield Case("Maybe", inverted, 0, lambda p: (augment.Maybe(ops[0], 1)(p.pixels, draws()), 255 - p.pixels))
    yield Case("OneOf", inverted, 0, lambda p: (augment.OneOf(ops)(p.pixels, draws()), 255 - p.pixels))
    yield Case("SomeOf", inverted, 0, lambda p: (augment.SomeOf(ops, 2)(p.pixels, draws()), p.pixels))
    yield Case(
        "AugMix",
        "the image, blended with share 0",
        1,
        lambda p: (augment.AugMix(alpha=1)(p.pixels, NoMixture()), p.pixels),
    )


class NoMixture:
    """A generator with which AugMix gives its mixture a share of 0."""

    def __init__(self) -> None:
        self._draws = draws()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._draws, name)

    def beta(self, *_: float) -> float:
        return 0.0


# --- derived inputs ---------------------------------------------------------------------------------------------------


def of(op: Any, sample: dict[str, Any], seed: int = 0) -> np.ndarray:
    return op(sample, draws(seed))


def derive_cases() -> Iterator[Case]:
    edt = ndimage.distance_transform_edt
    yield Case(
        "Distance", "SciPy's exact EDT", 1e-3, lambda p: (of(derive.Distance(target=2), p.sample), edt(p.mask != 2))
    )
    yield Case(
        "SignedDistance",
        "SciPy's exact EDT",
        1e-3,
        lambda p: (of(derive.SignedDistance(target=2), p.sample), signed(p.mask == 2)),
    )
    yield Case("GeodesicDistance", "SciPy's Dijkstra on 60 x 80 pixels", 1e-2, geodesic)
    yield Case("Clicks", "SciPy's EDT to the points of ClickPoints", 0.51, clicks)
    yield Case("ClickMaps", "SciPy's EDT to the points", 0.51, click_maps)
    yield Case("ClickPoints", "all on the right side, positive 5 px inside", 0, lambda p: (click_rules(p), True))
    yield Case("ExtremePoints", "NumPy's extremes", 0, extremes)
    yield Case("Heatmaps", "the formula", 1e-6, heatmaps)
    yield Case(
        "Boundaries",
        "scikit-image",
        0,
        lambda p: (of(derive.Boundaries(), p.sample), find_boundaries(p.mask, connectivity=1)),
    )
    yield Case("OneHot", "NumPy's eye", 0, lambda p: (of(derive.OneHot(5), p.sample), np.eye(5)[p.mask]))
    yield Case("OneObject", "SciPy's label", 0, one_object)
    yield Case("InstanceCenters", "SciPy's centre of mass, the formula", 1e-5, instance_centers)
    yield Case("InstanceOffsets", "SciPy's centre of mass", 1e-3, instance_offsets)
    yield Case("InstanceBoxes", "SciPy's find_objects", 0, instance_boxes)
    yield Case("InstanceClasses", "NumPy's bincount", 0, instance_classes)
    yield Case("UNetWeights", "the formula on SciPy's EDT", 1e-3, unet)
    yield Case("Canny", "share of pixels more than 2 px from scikit-image's", 0.25, canny)
    yield Case("Sobel", "SciPy's correlate", 1e-3, sobel)
    yield Case("ChannelStatistics", "NumPy", 1e-2, statistics)


def signed(inside: np.ndarray) -> np.ndarray:
    distance = ndimage.distance_transform_edt(~inside) - ndimage.distance_transform_edt(inside)
    return distance - 0.5 * np.sign(distance)


def geodesic(photo: Photo) -> tuple[np.ndarray, np.ndarray]:
    image = photo.pixels[:60, :80]
    ours = of(
        derive.GeodesicDistance(edge_weight_px=50), {"image": image, "points": np.array([[40.5, 30.5, 1]], np.float32)}
    )
    number = np.arange(image.shape[0] * image.shape[1]).reshape(image.shape[:2])
    colours = image.astype(float) / 255 * 50
    starts, ends, costs = [], [], []
    for a, b, squared in (
        (np.s_[:, :-1], np.s_[:, 1:], 1), (np.s_[:-1], np.s_[1:], 1),
        (np.s_[:-1, :-1], np.s_[1:, 1:], 2), (np.s_[1:, :-1], np.s_[:-1, 1:], 2),
    ):  # fmt: skip
        starts.append(number[a].ravel())
        ends.append(number[b].ravel())
        costs.append(np.sqrt(squared + np.square(colours[a] - colours[b]).sum(-1)).ravel())
    graph = coo_matrix((np.concatenate(costs), (np.concatenate(starts), np.concatenate(ends))), (number.size,) * 2)
    return ours, dijkstra(graph, directed=False, indices=number[30, 40]).reshape(image.shape[:2])


def distance_maps(points: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    maps = []
    for positive in (1, 0):
        clicked = np.ones(shape, bool)
        for x, y, *_ in points[points[:, 2] == positive]:
            clicked[int(y), int(x)] = False
        maps.append(
            np.minimum(ndimage.distance_transform_edt(clicked), 255) if not clicked.all() else np.full(shape, 255.0)
        )
    return np.stack(maps, axis=2)


def clicks(photo: Photo) -> tuple[np.ndarray, np.ndarray]:
    points = of(derive.ClickPoints(target=2), photo.sample)
    return of(derive.Clicks(target=2), photo.sample), distance_maps(points, photo.mask.shape)


def click_maps(photo: Photo) -> tuple[np.ndarray, np.ndarray]:
    points = np.array([[5.5, 6.5, 1], [50.5, 40.5, 0], [20.5, 60.5, 1]], np.float32)
    return of(derive.ClickMaps(), {**photo.sample, "clicks": points}), distance_maps(points, photo.mask.shape)


def click_rules(photo: Photo) -> bool:
    inside = photo.mask == 2
    depth = ndimage.distance_transform_edt(inside)
    for seed in range(20):
        for x, y, positive, _ in of(derive.ClickPoints(target=2), photo.sample, seed):
            at = int(y), int(x)
            if bool(inside[at]) != bool(positive) or (positive and depth[at] < 5 <= depth.max()):
                return False
    return True


def extremes(photo: Photo) -> tuple[np.ndarray, np.ndarray]:
    ours = of(derive.ExtremePoints(target=2, jitter_px=0), photo.sample)
    rows, columns = np.nonzero(photo.mask == 2)
    return [ours[0, 0], ours[1, 1], ours[2, 0], ours[3, 1]], np.array(
        [columns.min(), rows.min(), columns.max(), rows.max()]
    ) + 0.5


def gaussian(shape: tuple[int, ...], x: float, y: float, sigma: float) -> np.ndarray:
    rows, columns = np.mgrid[: shape[0], : shape[1]] + 0.5
    return np.exp(-((columns - x) ** 2 + (rows - y) ** 2) / (2 * sigma**2))


def heatmaps(photo: Photo) -> tuple[np.ndarray, np.ndarray]:
    points = photo.sample["points"]
    maps = [gaussian(photo.mask.shape, x, y, 3.0) * (seen >= 1) for x, y, seen in points]
    return of(derive.Heatmaps(sigma_px=3.0), photo.sample), np.stack(maps, axis=2)


def one_object(photo: Photo) -> tuple[np.ndarray, np.ndarray]:
    ours = of(derive.OneObject(target=2), photo.sample) == 1
    components, _ = ndimage.label(photo.mask == 2, np.ones((3, 3)))
    return ours, components == components[tuple(np.argwhere(ours)[0])]


def centres(photo: Photo) -> dict[int, tuple[float, float]]:
    numbers = [int(number) for number in np.unique(photo.mask) if number]
    means = ndimage.center_of_mass(np.ones(photo.mask.shape), photo.mask, numbers)
    return {number: (y + 0.5, x + 0.5) for number, (y, x) in zip(numbers, means, strict=True)}


def instance_centers(photo: Photo) -> tuple[np.ndarray, np.ndarray]:
    maps = [gaussian(photo.mask.shape, x, y, 8.0) for y, x in centres(photo).values()]
    return of(derive.InstanceCenters(), photo.sample), np.max(maps, axis=0)


def instance_offsets(photo: Photo) -> tuple[np.ndarray, np.ndarray]:
    expected = np.zeros((*photo.mask.shape, 2))
    for number, (y, x) in centres(photo).items():
        rows, columns = np.nonzero(photo.mask == number)
        expected[rows, columns] = np.stack([y - rows - 0.5, x - columns - 0.5], axis=1)
    return of(derive.InstanceOffsets(), photo.sample), expected


def instance_boxes(photo: Photo) -> tuple[np.ndarray, np.ndarray]:
    boxes = [(box[1].start, box[0].start, box[1].stop, box[0].stop) for box in ndimage.find_objects(photo.mask)]
    return of(derive.InstanceBoxes(), photo.sample), np.array(boxes)


def instance_classes(photo: Photo) -> tuple[np.ndarray, np.ndarray]:
    classes = (photo.pixels[:, :, 0] // 64).astype(np.uint8)
    expected = [np.bincount(classes[photo.mask == number]).argmax() for number in range(1, 5)]
    return of(derive.InstanceClasses(), {**photo.sample, "classes": classes}), np.array(expected)


def unet(photo: Photo) -> tuple[np.ndarray, np.ndarray]:
    cells, _ = ndimage.label(photo.mask[:90, :120] % 2 == 1, np.ones((3, 3)))
    distances = [ndimage.distance_transform_edt(cells != number) for number in np.unique(cells) if number]
    two = np.sort(distances, axis=0)[:2].sum(0) if len(distances) > 1 else np.full(cells.shape, np.inf)
    inside = cells > 0
    balance = np.where(inside, inside.size / (2 * max(inside.sum(), 1)), inside.size / (2 * max((~inside).sum(), 1)))
    balance = balance if 0 < inside.sum() < inside.size else np.ones(inside.shape)
    expected = balance + np.where(inside, 0, 10 * np.exp(-(two**2) / (2 * 5**2)))
    return of(derive.UNetWeights(), {"mask": cells.astype(np.uint16)}), expected


def canny(photo: Photo) -> tuple[float, float]:
    """The share of edge pixels away from scikit-image's edges with lower thresholds: both smooth and measure gradients
    differently, so that the edges cannot be equal."""
    ours = of(derive.Canny(low=150, high=300), photo.sample) == 1
    theirs = feature.canny(np.asarray(photo.pil.convert("L")) / 255, sigma=0.5, low_threshold=0.02, high_threshold=0.05)
    near = ndimage.binary_dilation(theirs, iterations=2)
    return float((ours & ~near).sum() / max(ours.sum(), 1)), 0.0


def sobel(photo: Photo) -> tuple[np.ndarray, np.ndarray]:
    import cv2  # Pillow rounds gray levels differently

    gray = cv2.cvtColor(photo.pixels, cv2.COLOR_RGB2GRAY).astype(float)
    along = [ndimage.sobel(gray, axis, mode="reflect") / 8 for axis in (1, 0)]
    return of(derive.Sobel(of="both"), photo.sample), np.stack(along, axis=2)


def statistics(photo: Photo) -> tuple[np.ndarray, np.ndarray]:
    flat = photo.pixels.reshape(-1, 3).astype(float)
    return of(derive.ChannelStatistics(), photo.sample), np.stack(
        [flat.mean(0), flat.std(0), flat.min(0), flat.max(0)], axis=1
    )


if __name__ == "__main__":
    sys.exit(main())
