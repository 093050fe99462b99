"""Draws the gallery: every geometry op, color op and derived input on one generated sample, with the call that made it.

Run: python docs/gallery/draw.py [--out docs/gallery]

Writes geometry.jpg, color.jpg and derived.jpg. On geometry, the outline of the warped mask is drawn in white, the warped
boxes in yellow and the warped points in red: they must be where the picture shows them.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from tfprep import augment, derive
from tfprep.augment.chain import apply_geometry
from tfprep.seeding import generator

SIDE, COLUMNS, GAP, LINE = 192, 4, 12, 18
KINDS = {
    "image": "image",
    "mask": "mask",
    "instances": "mask",
    "points": "points",
    "boxes": "boxes",
}
FILL = {"image": (90, 90, 90), "mask": 0, "instances": 0}


def shift_colors(
    sample: Mapping[str, Any], draws: np.random.Generator | None
) -> dict[str, Any]:
    """A user's own function: it may do anything with a sample."""
    return {**sample, "image": np.roll(sample["image"], 1, axis=2)}


GEOMETRY = [
    "Flip(1)",
    'Flip(1, "vertical")',
    "Rotate90()",
    "Rotate(25)",
    "Scale((0.6, 0.6))",
    "Shear((20, 20))",
    "Translate((0.2, 0.2), (-0.1, -0.1))",
    "Perspective(0.5)",
    "Elastic(150, 10)",
    "Resize(96, 192)",
    "Resize(192, 96, pad=True)",
    "CenterCrop(128, 128)",
    "Crop(96, 128)",
    "RandomResizedCrop(192, 192, scale=(0.2, 0.5))",
    "[Rotate(30), Elastic(), Scale((1.3, 1.3)), Flip(1)]",
    "OneOf([Rotate(40), Perspective(0.5)])",
    "SomeOf([Rotate(40), Shear(20), Scale((0.7, 0.7)), Flip(1)], 3)",
    "Maybe(Rotate((30, 30)), 1)",
    "RandAugment(3, 20)",
    "TrivialAugment()",
    "Custom(shift_colors)",
]
SEEDS = {
    "Rotate90()": 3,
    "RandAugment(3, 20)": 5,
    "TrivialAugment()": 15,
    "Rotate(25)": 3,
}
COLOR = [
    "Brightness((1.5, 1.5))",
    "Contrast((1.8, 1.8))",
    "Saturation((2, 2))",
    "Hue((0.25, 0.25))",
    "Gamma((2, 2))",
    "Grayscale(1)",
    "ColorJitter((1.3, 1.3), (0.6, 0.6), (1.8, 1.8), (0.05, 0.05))",
    "Invert(1)",
    "Posterize((2, 2))",
    "Solarize((128, 128))",
    "Equalize()",
    "AutoContrast()",
    "Clahe((4, 4))",
    "Sharpness((4, 4))",
    "Blur((3, 3))",
    "Noise((25, 25))",
    "JpegArtifacts((10, 10))",
    "Erasing(1)",
]
DERIVED = [
    "Distance(target=1)",
    'Distance(target=1, to="boundary")',
    'Distance(target=1, to="inside")',
    "SignedDistance(target=1, truncate_px=60)",
    "Clicks(target=1, strategies=(3,))[..., 0]",
    "Clicks(target=1, strategies=(3,))[..., 1]",
    "Clicks(target=1, strategies=(1,), n_neg1=(8, 8))[..., 1]",
    "Clicks(target=1, strategies=(2,), n_neg2=(2, 2))[..., 1]",
    "ClickPoints(target=1, strategies=(3,))",
    'ClickMaps(points="clicks")[..., 0]',
    "Heatmaps(channels=1, sigma_px=8)[..., 0]",
    'UNetWeights(mask="instances", sigma_px=15, balance=False)',
    "Boundaries()",
    'Boundaries(mode="inner", width_px=2)',
    "OneHot(classes=4)[..., 2]",
    "OneObject(target=3)",
    'OneInstance(mask="instances")',
    'InstanceCenters(mask="instances")',
    'InstanceOffsets(mask="instances")[..., 0]',
    'InstanceOffsets(mask="instances")[..., 1]',
    'InstanceBoxes(mask="instances")',
    'InstanceClasses(mask="instances", classes="mask")',
    "Canny()",
    "Sobel()",
]
"""A caption is the call that made the picture; `[..., 0]` names the channel that is shown."""
CLICKS = "ClickPoints(target=1, strategies=(3,))"


def called(caption: str, package: Any) -> Any:
    """Return what the call in a caption makes, of the names of a package."""
    names = {name: getattr(package, name) for name in package.__all__}
    return eval(caption.partition("[...")[0], {**names, "shift_colors": shift_colors})


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    out = parser.parse_args().out
    for name, cells in (
        ("geometry", geometry()),
        ("color", colors()),
        ("derived", derived()),
    ):
        sheet(cells).save(out / f"{name}.jpg", quality=88)
        print(out / f"{name}.jpg")


# --- the sample -----------------------------------------------------------------------------------------------------


def scene() -> dict[str, Any]:
    """A disc (class 1), a car (2) and two stars (3) on a tiled floor under a sky, and a letter that shows what is mirrored."""
    image, mask, instances = backdrop(), canvas(1), canvas(1)
    for number, (label, color, polygons) in enumerate(objects(), start=1):
        for polygon in polygons:
            points = [np.round(np.array(polygon) * 16).astype(np.int32)]
            cv2.fillPoly(image, points, color, cv2.LINE_AA, shift=4)
            cv2.fillPoly(mask, points, label, shift=4)
            cv2.fillPoly(instances, points, number, shift=4)
    cv2.putText(
        image, "F", (8, 48), cv2.FONT_HERSHEY_SIMPLEX, 1.6, (20, 20, 40), 4, cv2.LINE_AA
    )
    sample = {"image": image, "mask": mask, "instances": instances}
    sample["points"] = np.array(
        [[70, 70, 2], [118, 137, 2], [166, 137, 2], [150, 48, 2], [35, 150, 2]],
        np.float32,
    )
    sample["boxes"] = derive.InstanceBoxes(mask="instances")(sample, draws("boxes"))
    return sample


def backdrop() -> Any:
    rows, columns = np.indices((SIDE, SIDE))
    sky = np.stack([150 + rows * 0.5, 190 + rows * 0.3, 235 - rows * 0.1], 2)
    tiles = (rows // 12 + columns // 12) % 2
    floor = np.stack([120 + 40 * tiles, 130 + 25 * tiles, 90 + 30 * tiles], 2)
    return np.where(rows[:, :, None] < 116, sky, floor).clip(0, 255).astype(np.uint8)


def objects() -> list[tuple[int, tuple[int, int, int], list[Any]]]:
    wheel = [circle(118, 137, 11), circle(166, 137, 11)]
    body = [
        (100, 118),
        (112, 118),
        (122, 100),
        (160, 100),
        (170, 118),
        (184, 120),
        (184, 138),
        (100, 138),
    ]
    return [
        (1, (210, 60, 50), [circle(70, 70, 30)]),
        (2, (40, 80, 190), [body, *wheel]),
        (3, (240, 200, 40), [star(150, 48, 24)]),
        (3, (250, 170, 30), [star(35, 150, 28)]),
    ]


def circle(x: float, y: float, radius: float) -> Any:
    turn = np.linspace(0, 2 * np.pi, 60, endpoint=False)
    return np.stack([x + radius * np.cos(turn), y + radius * np.sin(turn)], 1)


def star(x: float, y: float, radius: float) -> Any:
    turn = np.arange(10) * np.pi / 5 - np.pi / 2
    reach = np.where(np.arange(10) % 2, radius * 0.45, radius)
    return np.stack([x + reach * np.cos(turn), y + reach * np.sin(turn)], 1)


def canvas(channels: int) -> Any:
    return np.zeros((SIDE, SIDE, channels) if channels > 1 else (SIDE, SIDE), np.uint8)


def draws(name: str) -> np.random.Generator:
    return generator(SEEDS.get(name, 0), "gallery", 1, name)


# --- cells ----------------------------------------------------------------------------------------------------------


def geometry() -> dict[str, Any]:
    cells = {"the sample": marked(scene()["image"], scene())}
    for caption in GEOMETRY:
        made = called(caption, augment)
        ops = made if isinstance(made, list) else [made]
        warped = apply_geometry(
            scene(), KINDS, [(op, draws(caption)) for op in ops], fill=FILL
        )
        image = warped["image"]
        for op in ops:
            for color in op.color_ops(draws(caption)) if hasattr(op, "color_ops") else ():
                image = color(image, draws(caption))
        cells[caption] = marked(image, warped)
    return cells


def marked(image: Any, sample: Mapping[str, Any]) -> Any:
    drawn = image.copy()
    drawn[derive.Boundaries(mode="inner")(sample, draws("")) > 0] = 255
    for x0, y0, x1, y1 in np.round(sample["boxes"]).astype(int):
        if x1 > x0 and y1 > y0:
            cv2.rectangle(drawn, (x0, y0), (x1 - 1, y1 - 1), (255, 255, 0), 1)
    for x, y, visible in sample["points"]:
        if visible:
            cv2.circle(
                drawn, (round(float(x) - 0.5), round(float(y) - 0.5)), 3, (255, 0, 0), -1
            )
    return drawn


def colors() -> dict[str, Any]:
    image = scene()["image"]
    return {"the sample": image} | {
        caption: called(caption, augment)(image, draws(caption)) for caption in COLOR
    }


def derived() -> dict[str, Any]:
    sample, cells = scene(), {}
    sample["clicks"] = called(CLICKS, derive)(sample, draws(CLICKS))
    for caption in DERIVED:
        op, channel = called(caption, derive), caption.partition("[..., ")[2]
        value = op(sample, draws(caption))
        cells[caption] = SHOWN.get(type(op), heat)(
            value[..., int(channel[:-1])] if channel else value, sample
        )
    return cells


def heat(values: Any, sample: Mapping[str, Any]) -> Any:
    """From the least (dark) to the greatest (light)."""
    span = float(values.max()) - float(values.min())
    levels = (values.astype(np.float64) - values.min()) * (255 / span if span else 0)
    return cv2.applyColorMap(levels.astype(np.uint8), cv2.COLORMAP_VIRIDIS)[:, :, ::-1]


def dots(points: Any, sample: Mapping[str, Any]) -> Any:
    """Positive clicks and visible points green, negative ones red."""
    drawn = sample["image"] // 2 + 100
    for point in points:
        color = (0, 150, 0) if point[2] else (220, 0, 0)
        cv2.circle(drawn, (int(point[0]), int(point[1])), 4, color, -1, cv2.LINE_AA)
    return drawn


def frames(boxes: Any, sample: Mapping[str, Any]) -> Any:
    drawn = sample["image"] // 2 + 100
    for x0, y0, x1, y1 in boxes.astype(int):
        cv2.rectangle(drawn, (x0, y0), (x1 - 1, y1 - 1), (220, 0, 0), 1)
    return drawn


def numbers(values: Any, sample: Mapping[str, Any]) -> Any:
    page = Image.new("RGB", (SIDE, SIDE), "white")
    text = np.array2string(
        np.atleast_2d(values), precision=0, suppress_small=True, floatmode="fixed"
    )
    ImageDraw.Draw(page).multiline_text(
        (6, 60), text, "black", ImageFont.load_default(12)
    )
    return np.asarray(page)


SHOWN: dict[type, Callable[[Any, Mapping[str, Any]], Any]] = {
    derive.ClickPoints: dots,
    derive.InstanceBoxes: frames,
    derive.InstanceClasses: numbers,
}


# --- the sheet ------------------------------------------------------------------------------------------------------


def sheet(cells: Mapping[str, Any]) -> Image.Image:
    font = ImageFont.load_default(14)
    captions = {caption: wrapped(caption, font) for caption in cells}
    rows = [
        list(cells)[first : first + COLUMNS] for first in range(0, len(cells), COLUMNS)
    ]
    heights = [
        SIDE + LINE * max(len(captions[caption]) for caption in row) + GAP for row in rows
    ]
    page = Image.new("RGB", (COLUMNS * (SIDE + GAP) + GAP, sum(heights) + GAP), "white")
    pen, top = ImageDraw.Draw(page), GAP
    for row, row_height in zip(rows, heights, strict=True):
        for column, caption in enumerate(row):
            left, (height, width) = GAP + column * (SIDE + GAP), cells[caption].shape[:2]
            picture = Image.fromarray(np.ascontiguousarray(cells[caption]))
            page.paste(picture, (left + (SIDE - width) // 2, top + (SIDE - height) // 2))
            for number, line in enumerate(captions[caption]):
                pen.text((left, top + SIDE + 2 + number * LINE), line, "black", font)
        top += row_height
    return page


def wrapped(caption: str, font: Any) -> list[str]:
    """The lines of a caption, none wider than a cell."""
    lines = [""]
    for word in re.split(r"(?<=[^.], )|(?<=\w\()", caption):
        if font.getlength((lines[-1] + word).rstrip()) > SIDE:
            lines.append("")
        lines[-1] += word
    return [line for line in lines if line]


if __name__ == "__main__":
    main()
