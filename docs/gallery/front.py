"""Draws front.jpg, the picture of README.md: what goes into a build, and what a training step gets.

Run: python docs/gallery/front.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import cv2
import numpy as np
from PIL import Image, ImageDraw, ImageFont

import tfprep
from tfprep import augment, codecs, derive, sources
from tfprep.builder import BuildOptions
from tfprep.demo.scenes import CLASSES, write_scenes
from tfprep.fields import Array, ImageArray

RECIPE = tfprep.Recipe(
    name="front",
    source=sources.Paired(
        image="{split}/images/*.jpg", mask="{split}/masks/*.png", classes=CLASSES
    ),
    geometry=[
        augment.Rotate(25),
        augment.Scale((1.0, 1.5)),
        augment.Resize(128, 128),
        augment.Flip(),
    ],
    derive={
        "clicks": derive.Clicks(mask="mask", target=2),
        "distance": derive.SignedDistance(mask="mask", target=(1, 2, 3), truncate_px=40),
    },
    color=[augment.Brightness(0.3), augment.Contrast(0.3)],
    border="reflect",
    variants={"train": 3},
    store={name: codecs.Raw() for name in ("image", "mask", "clicks", "distance")},
    seed=5,
)
SAMPLE, MASK = "train/images/0011.jpg", "train/masks/0011.png"
PANEL, GAP, WIDTH, HEIGHT = 128, 10, 1160, 530
INK, FAINT, PAPER = (25, 25, 25), (110, 110, 110), (255, 255, 255)
COLORS = np.array(
    [[70, 70, 70], [90, 190, 90], [240, 180, 60], [120, 140, 230]], np.uint8
)
COLUMNS = ("image", "mask", "click map: this", "click map: not this", "distance")


def heat(values: Array) -> ImageArray:
    levels = cv2.normalize(
        values.astype(np.float32), None, 0, 255, cv2.NORM_MINMAX
    ).astype(np.uint8)
    return np.asarray(
        cv2.cvtColor(cv2.applyColorMap(levels, cv2.COLORMAP_VIRIDIS), cv2.COLOR_BGR2RGB),
        np.uint8,
    )


def rows(folder: Path) -> list[list[ImageArray]]:
    """The panels of each variant, read back from the records."""
    data = tfprep.open(folder)
    drawn = []
    for variant in range(3):
        keys = data.index("train", variant, ["key"])["key"].to_pylist()
        sample = next(data.samples("train", variant, [keys.index(SAMPLE)]))
        clicks = sample["clicks"]
        panels = [
            sample["image"],
            COLORS[sample["mask"]],
            heat(clicks[..., 0]),
            heat(clicks[..., 1]),
        ]
        drawn.append([*panels, heat(sample["distance"].min(-1))])
    return drawn


def draw(
    photo: Image.Image, mask: Image.Image, variants: list[list[ImageArray]]
) -> Image.Image:
    page = Image.new("RGB", (WIDTH, HEIGHT), PAPER)
    pen, font, small = (
        ImageDraw.Draw(page),
        ImageFont.load_default(19),
        ImageFont.load_default(14),
    )
    left = 20
    pen.text((left, 14), "raw files", INK, font)
    for top, title, picture in ((64, "photo.jpg", photo), (292, "mask.png", mask)):
        pen.text((left, top - 20), title, FAINT, small)
        page.paste(
            picture.resize((230, 230 * picture.height // picture.width)), (left, top)
        )
    middle, at = 262, 236
    pen.text((middle + 6, at - 48), "tfprep build", INK, font)
    pen.text((middle + 6, at - 24), "once, ahead", FAINT, small)
    pen.line([(middle + 4, at), (middle + 140, at)], INK, 3)
    pen.polygon([(middle + 140, at - 8), (middle + 140, at + 8), (middle + 156, at)], INK)
    start = middle + 186
    pen.text((start, 14), "records: three variants of the sample", INK, font)
    for column, title in enumerate(COLUMNS):
        pen.text((start + column * (PANEL + GAP), 44), title, FAINT, small)
    for row, panels in enumerate(variants):
        for column, panel in enumerate(panels):
            page.paste(
                Image.fromarray(panel),
                (start + column * (PANEL + GAP), 64 + row * (PANEL + GAP)),
            )
    pen.text((start, 64 + 3 * (PANEL + GAP) + 12), "data.loader(...)", INK, font)
    text = (
        "one variant per epoch, exact order, [B, H, W, C] batches straight into model.fit"
    )
    pen.text((start + 160, 64 + 3 * (PANEL + GAP) + 16), text, FAINT, small)
    return page


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        raw, out = Path(folder) / "raw", Path(folder) / "out"
        write_scenes(raw, {"train": 12, "val": 1})
        tfprep.build(RECIPE, out, raw, options=BuildOptions(workers=0))
        variants = rows(out)
        photo = Image.open(raw / SAMPLE)
        mask = Image.fromarray(COLORS[np.asarray(Image.open(raw / MASK))])
        draw(photo, mask, variants).save(
            Path(__file__).with_name("front.jpg"), quality=90
        )


if __name__ == "__main__":
    main()
