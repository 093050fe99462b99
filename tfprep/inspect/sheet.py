"""A contact sheet of a dataset: samples in rows, their variants, masks and maps in columns.

The sheet is drawn from the stored records, so that it shows a wrong augmentation or a shifted mask. Each variant has a panel for
the image, one for the image under its mask's classes, and one for every channel of a map. Boxes and points are drawn on the
image, boxes in the color of their class; labels and texts are to the left, and the names of the colors at the bottom.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from colorsys import hsv_to_rgb
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from tfprep import derive
from tfprep.checks import whole_number
from tfprep.dataset.dataset import Dataset
from tfprep.errors import DatasetError
from tfprep.fields import RASTER_KINDS, Array, FieldSpec, ImageArray, class_numbers
from tfprep.inspect.stats import inspected
from tfprep.optional import cv2

_GAP, _MARGIN, _LEFT, _LINE = 4, 8, 150, 14
_CAPTION_VALUES, _CAPTION_LETTERS = 16, 200
_PAPER, _INK, _FAINT = (255, 255, 255), (20, 20, 20), (120, 120, 120)
_MASK_SHARE = 0.55
_MOST_COLUMNS, _MOST_CHANNELS = 18, 4
_MOST_NAMES, _NAME_LETTERS = 60, 40


@dataclass(frozen=True)
class Panel:
    """One picture of a field: its title and its pixels, uint8 [H, W, 3]."""

    title: str
    pixels: ImageArray


def contact_sheet(
    data: Dataset, split: str | None = None, *, samples: int = 8, variants: int | None = None, panel_px: int = 144
) -> Image.Image:
    """Draw samples of a split, evenly spread over its first million, as an RGB image.

    Args:
        data: The dataset.
        split: The split; None takes the first.
        samples: The number of samples, each a row (or a row for each variant, if one would be too wide).
        variants: The number of variants of each sample, from 0 on; None draws all.
        panel_px: The longer side of a panel in pixels.

    Raises:
        DatasetError: The split holds no sample, the dataset stores no image, mask or map, or a record cannot be read.
        LoaderError: `samples` is not a whole number from 1.
    """
    split = split or next(iter(data.splits))
    info = data.split(split)
    if not info.samples:
        raise DatasetError(f"split {split!r} of {data.path} holds no sample to draw")
    positions = inspected(info.samples, whole_number("samples", samples, 1))
    column = data.index(split, 0, ["key"], first=positions[-1] + 1)["key"]
    keys = [column[position].as_py() for position in positions]
    read = [list(data.samples(split, v, positions)) for v in range(min(variants or info.variants, info.variants))]
    rows, words = [], []
    legend = sorted({label for of_variant in read for sample in of_variant for label in _drawn_classes(data, sample)})
    for n, key in enumerate(keys):
        lines = [list(_panels(data, of_variant[n], v)) for v, of_variant in enumerate(read)]
        if sum(map(len, lines)) <= _MOST_COLUMNS:  # side by side, else one below the other
            lines = [[panel for panels in lines for panel in panels]]
        rows += lines
        words += [_words(data, key, read[0][n]), *([] for _ in lines[1:])]
    return _draw(f"{data.name}, {split}", rows, words, panel_px, [(name, number) for _, number, name in legend])


# --- panels ---------------------------------------------------------------------------------------------------------


def _panels(data: Dataset, sample: Mapping[str, Any], variant: int) -> Iterator[Panel]:
    """Yield the panels of one variant; a mask is drawn over the first image of its size."""
    title, fields = f"v{variant} " if variant else "", _fields(data, sample)
    ground: Array | None = None
    for name, spec in fields.items():
        if spec.kind == "image":
            image, stretch = _rgb(sample[name])
            ground = image if ground is None else ground
            yield Panel(f"{title}{name}{stretch}", _marked(image, fields, sample))
    for name, spec in fields.items():
        if spec.kind == "mask":
            mask = sample[name]
            numbers, index = np.unique(mask, return_inverse=True)
            colors: ImageArray = class_colors(numbers.tolist())[index.reshape(mask.shape)]
            if ground is not None and ground.shape[:2] == mask.shape:
                colors = np.rint(colors * _MASK_SHARE + ground * (1 - _MASK_SHARE)).astype(np.uint8)
            yield Panel(f"{title}{name}", colors)
        elif spec.kind == "map":
            outlines = [_outline(sample[mask]) for mask, of in fields.items() if of.kind == "mask"]
            yield from _map_panels(f"{title}{name}", np.asarray(sample[name]), outlines, _channels_of(data, name))


def _channels_of(data: Dataset, name: str) -> Sequence[str]:
    """Return the names of a map's channels, as its derived input declares them; empty where it does not."""
    described = data.manifest.recipe.get("derive", {}).get(name, {})
    module, _, class_name = str(described.get("type", "")).rpartition(".")
    if module != "tfprep.derive":
        return ()
    names: Sequence[str] = getattr(getattr(derive, class_name, None), "channels", ())
    return names


def _drawn_classes(data: Dataset, sample: Mapping[str, Any]) -> Iterator[tuple[str, int, str]]:
    """Yield the field, number and name of each class whose color a sample shows: of masks, and of the labels of boxes."""
    fields = _fields(data, sample)
    for name, spec in fields.items():
        field = name if spec.kind == "mask" else _labels_of(fields, sample, name) if spec.kind == "boxes" else ""
        if field:
            classes = data.manifest.classes.get(field, ())
            for number in np.unique(np.asarray(sample[field])).tolist():
                yield field, number, f"{field} {classes[number] if 0 <= number < len(classes) else number}"


def _labels_of(fields: Mapping[str, FieldSpec], sample: Mapping[str, Any], boxes: str) -> str:
    """Return the labels that have a class number for each box; "" where there are none."""
    rows = len(np.asarray(sample[boxes]))
    lists = [name for name, spec in fields.items() if spec.kind == "label" and len(spec.shape) == 1]
    labels = (name for name in lists if not fields[name].dtype.startswith("float"))  # a vector has a row for each class
    return next((name for name in labels if len(np.atleast_1d(sample[name])) == rows), "")


def _fields(data: Dataset, sample: Mapping[str, Any]) -> dict[str, FieldSpec]:
    """The fields that were read of a sample: a model may have added some to other splits and variants only."""
    return {name: spec for name, spec in data.fields.items() if name in sample}


def marked_image(data: Dataset, sample: Mapping[str, Any]) -> ImageArray | None:
    """Return the first image of a sample with its boxes and visible points, uint8 [H, W, 3]; None without an image."""
    fields = _fields(data, sample)
    name = next((name for name, spec in fields.items() if spec.kind == "image"), None)
    return None if name is None else _marked(_rgb(sample[name])[0], fields, sample)


def _rgb(image: Array) -> tuple[ImageArray, str]:
    """Return an image as 8-bit RGB, and the range that is drawn from black to white if it is not one ("" if it is).

    The range holds all but the darkest and the lightest hundredth, so that a few extremes do not hide the rest.
    """
    shown = np.repeat(image[:, :, :1], 3, axis=2) if image.shape[2] < 3 else np.asarray(image[:, :, :3])
    if image.dtype == np.uint8:
        return shown, f" ({image.shape[2]} channels)" if image.shape[2] not in (1, 3) else ""
    low, high = np.percentile(_finite(shown), (1, 99))
    more = f", channels 0 to {min(2, image.shape[2] - 1)} of {image.shape[2]}" if image.shape[2] not in (1, 3) else ""
    return _as_bytes(shown, low, high), f": {low:.5g} to {high:.5g}{more}"


def _finite(values: Array) -> Array:
    """Return the numbers that are neither NaN nor infinite, float64; one zero if there is none."""
    finite = values[np.isfinite(values)].astype(np.float64)
    return finite if finite.size else np.zeros(1)


def _as_bytes(values: Array, low: float, high: float) -> ImageArray:
    """Return numbers from `low` to `high` as 0 to 255; NaN as 0."""
    scaled = (values.astype(np.float64) - low) * (255 / ((high - low) or 1))
    return np.asarray(np.rint(np.nan_to_num(scaled, posinf=255, neginf=0).clip(0, 255)), np.uint8)


def _marked(image: ImageArray, fields: Mapping[str, FieldSpec], sample: Mapping[str, Any]) -> ImageArray:
    marked: ImageArray = image.copy()
    radius = max(2, min(image.shape[:2]) // 60)
    for name, spec in fields.items():
        if spec.kind == "boxes":
            boxes, labels = _drawable(sample[name]), _labels_of(fields, sample, name)
            colors = (
                class_colors(np.asarray(sample[labels]).tolist()) if labels else np.full((len(boxes), 3), (255, 220, 0))
            )
            for (x0, y0, x1, y1), color in zip(boxes, colors.tolist(), strict=True):
                corners = (int(x0), int(y0)), (int(x1), int(y1))
                if not any(color):  # class 0 would not show on a dark photo
                    cv2.rectangle(marked, *corners, (255, 255, 255), radius // 2 + 2)
                cv2.rectangle(marked, *corners, color, radius // 2)
        elif spec.kind == "points":
            points = _drawable(sample[name])
            for point in points.reshape(-1, points.shape[-1]):
                if len(point) < 3 or point[2] > 0:
                    cv2.circle(marked, (int(point[0]), int(point[1])), radius, (255, 0, 80), -1)
    return marked


def _drawable(places: Any) -> Array:
    """Return coordinates as OpenCV takes them, also those that are NaN or far away."""
    return np.asarray(np.nan_to_num(places).clip(-1e6, 1e6))


def class_colors(numbers: Iterable[int]) -> ImageArray:
    """Return a color for each class number, uint8 [N, 3]: black for 0, white for 255 (void), else hues far from neighbors."""
    hsv = [((n * 137.508 / 360) % 1, 0.78 * (n % 255 > 0), (1.0 if n % 2 else 0.75) if n else 0.0) for n in numbers]
    return np.asarray(np.rint(np.array([hsv_to_rgb(*color) for color in hsv]) * 255), np.uint8)


def _outline(mask: Array) -> Array:
    """Return where a pixel's class differs from that of the pixel to the right or below, bool [H, W]."""
    edge = np.zeros(mask.shape, bool)
    edge[:, :-1] |= mask[:, :-1] != mask[:, 1:]
    edge[:-1] |= mask[:-1] != mask[1:]
    return edge


def _map_panels(title: str, values: Array, outlines: Sequence[Array], names: Sequence[str]) -> Iterator[Panel]:
    """Yield a panel for each of the first channels, from dark (its smallest value) to light (its largest).

    The title gives both values, and the channel's name from `names`, which repeat. The outlines of the masks' classes are
    drawn on top, so that a shifted map shows.
    """
    channels = values[:, :, None] if values.ndim == 2 else values
    for number in range(min(channels.shape[2], _MOST_CHANNELS)):
        channel = channels[:, :, number]
        low, high = float(_finite(channel).min()), float(_finite(channel).max())
        scaled = _as_bytes(channel, low if low < high else 0.0, high)
        colored = cv2.cvtColor(cv2.applyColorMap(scaled, cv2.COLORMAP_VIRIDIS), cv2.COLOR_BGR2RGB)
        for outline in outlines:
            if outline.shape == channel.shape:
                colored[outline] = colored[outline] // 2 + 127
        of = f" {number} of {channels.shape[2]}:" if channels.shape[2] > 1 else ":"
        if names and channels.shape[2] % len(names) == 0:
            of = f", {names[number % len(names)]}:"
        yield Panel(f"{title}{of} {low:.3g} to {high:.3g}", np.asarray(colored))


def _words(data: Dataset, key: str, sample: Mapping[str, Any]) -> list[str]:
    """Return the caption of a row: the key, and every stored label, number and text."""
    words = [key]
    for name, spec in _fields(data, sample).items():
        if spec.kind == "label":
            classes = data.manifest.classes.get(name, ())
            numbers = np.atleast_1d(class_numbers(sample[name]))
            words.append(f"{name}: {', '.join(classes[n] if 0 <= n < len(classes) else str(n) for n in numbers)}")
        elif spec.kind not in RASTER_KINDS and spec.kind not in ("boxes", "points"):
            words.append(f"{name}: {_caption(sample[name])}")
    return words


def _caption(value: Any) -> str:
    """The value itself, or the dtype and shape of an array that would fill the page."""
    if isinstance(value, np.ndarray) and value.size > _CAPTION_VALUES:
        return f"{value.dtype} {list(value.shape)}"
    text = str(value)
    return text if len(text) <= _CAPTION_LETTERS else f"{text[:_CAPTION_LETTERS]} ..."


# --- drawing --------------------------------------------------------------------------------------------------------


def _draw(
    title: str,
    rows: Sequence[Sequence[Panel]],
    words: Sequence[Sequence[str]],
    panel_px: int,
    legend: Sequence[tuple[str, int]],
) -> Image.Image:

    def fitted(pixels: ImageArray) -> Image.Image:
        picture = Image.fromarray(np.ascontiguousarray(pixels))
        scale = panel_px / max(picture.size)
        size = max(1, round(picture.width * scale)), max(1, round(picture.height * scale))
        return picture.resize(size, Image.Resampling.BOX if scale < 1 else Image.Resampling.NEAREST)

    pictures = [[fitted(panel.pixels) for panel in row] for row in rows]
    columns = max(len(row) for row in rows)
    if columns == 0:
        raise DatasetError("the dataset stores no image, mask or map to draw")
    font = ImageFont.load_default(10)
    captions = [list(_wrapped(caption, font)) for caption in words]
    heights = [
        max([*(picture.height for picture in row), _LINE * len(caption)])
        for row, caption in zip(pictures, captions, strict=True)
    ]
    width = _LEFT + columns * (panel_px + _GAP) + _MARGIN
    names = list(_placed(legend, width, font))
    below = _LINE * (names[-1][1] + 2) if names else 0
    sheet = Image.new("RGB", (width, 2 * _MARGIN + 2 * _LINE + sum(h + _LINE + _GAP for h in heights) + below), _PAPER)
    pen = ImageDraw.Draw(sheet)
    pen.text((_MARGIN, _MARGIN), title, _INK, ImageFont.load_default(12))
    top = _MARGIN + 2 * _LINE
    for row, drawn, caption, height in zip(rows, pictures, captions, heights, strict=True):
        for number, (line, ink) in enumerate(caption, 1):
            pen.text((_MARGIN, top + _LINE * number), line, ink, font)
        for column, (panel, picture) in enumerate(zip(row, drawn, strict=True)):
            left = _LEFT + column * (panel_px + _GAP)
            pen.text((left, top), _fitted(panel.title, panel_px, font), _FAINT, font)
            sheet.paste(picture, (left, top + _LINE))
        top += height + _LINE + _GAP
    for edge, below_top, name, class_number in names:
        color, upper = tuple(class_colors([class_number])[0].tolist()), top + _LINE * below_top
        pen.rectangle((edge, upper + 3, edge + 8, upper + 11), color, _FAINT)
        pen.text((edge + 12, upper), name, _INK, font)
    return sheet


def _placed(legend: Sequence[tuple[str, int]], width: int, font: Any) -> Iterator[tuple[int, int, str, int]]:
    """Yield the left edge and the line of each name of the legend, with the name and the number of its class."""
    left, line = _MARGIN, 0
    for name, number in legend[:_MOST_NAMES]:
        shown = name if len(name) <= _NAME_LETTERS else f"{name[:_NAME_LETTERS]} ..."
        needed = 24 + int(font.getlength(shown))
        if left > _MARGIN and left + needed > width - _MARGIN:
            left, line = _MARGIN, line + 1
        yield left, line, shown, number
        left += needed


def _wrapped(captions: Sequence[str], font: Any) -> Iterator[tuple[str, tuple[int, int, int]]]:
    """Yield lines that fit to the left of the panels, with their colors; a line ends after a separator where it can."""
    for number, caption in enumerate(captions):
        rest = " ".join(caption.split())  # a line end in a text would be drawn over the next line
        while rest:
            fits = max(1, len(_fitted(rest, _LEFT - 2 * _MARGIN, font)))
            ends = [place.end() for place in re.finditer(r"[\s/_.,:-]+", rest) if place.end() <= fits]
            end = fits if fits == len(rest) or not ends else ends[-1]
            yield rest[:end], _FAINT if number else _INK
            rest = rest[end:]


def _fitted(word: str, width: int, font: Any) -> str:
    while word and font.getlength(word) > width:
        word = word[:-1]
    return word
