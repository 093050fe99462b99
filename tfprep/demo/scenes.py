"""Drawn scenes: objects of three classes on textured ground, as JPEG files with masks (PNG) and boxes (COCO's JSON).

Class 1 is leaves, class 2 stars, class 3 stones; the ground is class 0. The color of every object is random, so a model cannot
tell classes by color only: it has to use shape, or the user's clicks.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from tfprep.fields import Array, ImageArray
from tfprep.optional import cv2
from tfprep.seeding import generator

CLASSES = ("ground", "leaf", "star", "stone")
LEAF = CLASSES.index("leaf")
TINTS = {1: (90, 170, 80), 2: (210, 150, 70), 3: (140, 140, 150)}
"""RGB around which the colors of tinted objects lie, by class."""
_SOFT_PX = 0.7
"""Width, in pixels, over which the edge of an object is blended with the ground, as a lens would show it."""


class Scene(NamedTuple):
    """A drawn photo, with the class of each pixel; and of each object that can be seen its class, x, y, width and height."""

    image: ImageArray
    mask: Array
    boxes: Sequence[tuple[int, Sequence[int]]]


def write_scenes(root: Path, counts: dict[str, int], seed: int = 0) -> int:
    """Write `{split}/images/NNNN.jpg`, `{split}/masks/NNNN.png` and `annotations/instances_{split}.json` below `root`.

    A split that is complete is kept.
    """
    for split, count in counts.items():
        photos = [root / split / "images" / f"{number:04d}.jpg" for number in range(count)]
        masks = [root / split / "masks" / f"{photo.stem}.png" for photo in photos]
        annotations = root / "annotations" / f"instances_{split}.json"
        is_whole = all(path.exists() for path in (annotations, *photos, *masks))
        if is_whole and len(json.loads(annotations.read_text())["images"]) == count:
            continue
        for path in (photos[0], masks[0], annotations):
            path.parent.mkdir(parents=True, exist_ok=True)
        scenes = [draw_scene(generator(seed, f"{split}/{number}", 0, "scene")) for number in range(count)]
        for scene, photo, mask in zip(scenes, photos, masks, strict=True):
            Image.fromarray(scene.image).save(photo, quality=90)
            Image.fromarray(scene.mask).save(mask)
        annotations.write_text(json.dumps(_coco(scenes, photos)))
    return sum(counts.values())


def _coco(scenes: Sequence[Scene], photos: Sequence[Path]) -> dict[str, Any]:
    """The boxes of scenes in the format of COCO's object detection."""
    images = [
        {"id": number, "file_name": photo.name, "height": scene.mask.shape[0], "width": scene.mask.shape[1]}
        for number, (scene, photo) in enumerate(zip(scenes, photos, strict=True))
    ]
    boxes = [(number, *box) for number, scene in enumerate(scenes) for box in scene.boxes]
    annotations = [
        {"id": number, "image_id": image, "category_id": kind, "bbox": box, "area": box[2] * box[3], "iscrowd": 0}
        for number, (image, kind, box) in enumerate(boxes)
    ]
    categories = [{"id": kind, "name": CLASSES[kind]} for kind in range(1, len(CLASSES))]
    return {"images": images, "annotations": annotations, "categories": categories}


def write_objects(root: Path, count: int, seed: int = 0) -> int:
    """Write `count` photos of one object each as `{class}/NNNN.jpg` below `root`; existing files are kept."""
    for number in range(count):
        kind = 1 + number % (len(CLASSES) - 1)
        photo = root / CLASSES[kind] / f"{number:04d}.jpg"
        photo.parent.mkdir(parents=True, exist_ok=True)
        if not photo.exists():
            draws = generator(seed, f"object/{number}", 0, "scene")
            scene = draw_scene(draws, [kind], radii=(0.25, 0.4), tinted=True)
            Image.fromarray(scene.image).save(photo, quality=90)
    return count


def draw_scene(
    draws: np.random.Generator,
    kinds: Sequence[int] = (),
    radii: tuple[float, float] = (0.09, 0.2),
    tinted: bool = False,
) -> Scene:
    """Draw objects on textured ground.

    Args:
        draws: The source of everything that is drawn at random.
        kinds: The class of each object; by default three to six objects of random classes; the last one, which nothing
            hides, is a leaf around the middle: every scene then shows the demo's target, also after rotation and scaling.
        radii: The smallest and the largest radius of an object, as shares of the image's shorter side.
        tinted: Give most leaves a green, stars an orange and stones a gray tint; by default colors say nothing.

    Returns:
        The scene. Its size differs from scene to scene.
    """
    height, width = (int(n) for n in draws.integers((240, 320), (321, 441)))
    # Noise of several octaves between two colors, float32 [H, W, 3].
    texture = _noise((height, width), draws, octaves=5)[:, :, None]
    dark, light = draws.uniform(30, 130, 3), draws.uniform(110, 230, 3)
    canvas = np.asarray(dark * (1 - texture) + light * texture, np.float32)
    mask, numbers, classes = np.zeros((height, width), np.uint8), np.zeros((height, width), np.uint8), []
    count = len(kinds) or int(draws.integers(3, 7))
    for number in range(count):
        target = not kinds and number == count - 1
        kind = kinds[number] if kinds else LEAF if target else int(draws.integers(1, len(CLASSES)))
        shape = _shape(kind, (height, width), radii, draws, 0.35 if target else 0.0)
        _shade(canvas, shape)
        color = np.add(TINTS[kind], draws.uniform(-50, 50, 3)) if tinted else draws.uniform(40, 240, 3)
        _paint(canvas, shape, color, draws)
        classes.append(kind)
        mask[shape > 127], numbers[shape > 127] = kind, len(classes)
    # Brighter on one side than on the other, float32 [H, W] around 1.
    y, x = np.mgrid[-1 : 1 : height * 1j, -1 : 1 : width * 1j]
    angle = draws.uniform(0, 2 * np.pi)
    slope = draws.uniform(0.05, 0.3) * (np.cos(angle) * x + np.sin(angle) * y)
    lit = canvas * np.asarray(1 + slope, np.float32)[:, :, None]
    lit += draws.standard_normal(canvas.shape, np.float32) * 3
    visible = [(kind, numbers == number) for number, kind in enumerate(classes, 1)]
    boxes = [(kind, cv2.boundingRect(pixels.astype(np.uint8))) for kind, pixels in visible if pixels.any()]
    return Scene(np.clip(lit, 0, 255).astype(np.uint8), mask, boxes)


def _noise(size: tuple[int, int], draws: np.random.Generator, octaves: int) -> Array:
    """Noise in [0, 1]: grids of random numbers, each twice as fine and half as strong as the one before."""
    total = np.zeros(size, np.float32)
    for octave in range(octaves):
        grid = draws.random((4 << octave, 5 << octave), np.float32)
        total += cv2.resize(grid, size[::-1], interpolation=cv2.INTER_CUBIC) / (1 << octave)
    low, high = float(total.min()), float(total.max())
    return (total - low) / (high - low)


def _shape(
    kind: int, size: tuple[int, int], radii: tuple[float, float], draws: np.random.Generator, margin: float
) -> Array:
    """The object's silhouette, uint8 0 or 255. Its center keeps away from the edges by `margin`, a share of the image's sides."""
    radius = min(size) * draws.uniform(*radii)
    sides = np.array(size[::-1])
    nearest = np.maximum(radius, margin * sides)
    center = draws.uniform(nearest, sides - nearest)
    around = np.linspace(0, 2 * np.pi, 240, endpoint=False)
    turn = draws.uniform(0, 2 * np.pi)
    if kind == 1:
        outline = np.stack([np.cos(around), 0.45 * np.sin(around) * np.abs(np.sin(around / 2)) ** 0.5], 1)
    elif kind == 2:
        points = int(draws.integers(5, 8))
        spikes = 0.72 + 0.28 * np.sign(np.cos(points * around)) * np.abs(np.cos(points * around)) ** 0.6
        outline = np.stack([np.cos(around), np.sin(around)], 1) * spikes[:, None]
    else:
        waves = [draws.uniform(-0.09, 0.09) * np.cos(n * around + draws.uniform(0, 6)) for n in range(2, 6)]
        outline = np.stack([np.cos(around), 0.8 * np.sin(around)], 1) * (0.85 + np.sum(waves, 0))[:, None]
    rotation = np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]])
    drawn = np.zeros(size, np.uint8)
    cv2.fillPoly(drawn, [np.rint(outline @ rotation.T * radius + center).astype(np.int32)], 255)
    return drawn


def _shade(canvas: Array, shape: Array) -> None:
    """A soft shadow to the lower right."""
    reach = max(canvas.shape[:2]) // 60
    x, y, w, h = cv2.boundingRect(shape)
    around = np.s_[max(y - 3 * reach, 0) : y + h + 3 * reach, max(x - 3 * reach, 0) : x + w + 3 * reach]
    part = shape[around]
    moved = cv2.warpAffine(part, np.array([[1, 0, reach], [0, 1, reach]], np.float64), part.shape[::-1])
    soft = cv2.GaussianBlur(moved, (0, 0), reach / 2)
    canvas[around] *= (1 - 0.45 / 255 * soft.astype(np.float32))[:, :, None]


def _paint(canvas: Array, shape: Array, color: Array, draws: np.random.Generator) -> None:
    """The object's color, rounded by its depth, with some texture."""
    texture = draws.random((24, 24), np.float32) - 0.5
    x, y, w, h = cv2.boundingRect(shape)
    around = np.s_[max(y - 3, 0) : y + h + 3, max(x - 3, 0) : x + w + 3]
    depth = cv2.distanceTransform(shape[around], cv2.DIST_L2, 5)
    grain = cv2.resize(texture, depth.shape[::-1], interpolation=cv2.INTER_CUBIC)
    body = 0.55 + 0.5 * np.sqrt(depth / max(float(depth.max()), 1)) + 0.25 * grain
    cover = cv2.GaussianBlur(shape[around], (0, 0), _SOFT_PX).astype(np.float32)[:, :, None] / 255
    canvas[around] += cover * (color.astype(np.float32) * body[:, :, None] - canvas[around])
