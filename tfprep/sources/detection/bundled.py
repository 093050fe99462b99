"""Recognises files that hold many samples each: tables with images as bytes (Hugging Face), videos, and arrays of NumPy."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tfprep.boxes import BoxFormat
from tfprep.errors import SourceError
from tfprep.fields import Kind
from tfprep.sources.archives import members
from tfprep.sources.arrays import Arrays, stored_arrays
from tfprep.sources.detection.guess import BY_CLASS, FRACTIONS, LayoutGuess
from tfprep.sources.detection.pairs import SPLIT_NAMES, files_by_split, split_pattern
from tfprep.sources.patterns import compile_pattern, literal
from tfprep.sources.rows import class_names, file_columns, parquet_columns
from tfprep.sources.table import Table
from tfprep.sources.video import VIDEO_SUFFIXES, Video
from tfprep.sources.walk import walk

_LABELS = ("label", "labels", "fine_label", "class", "category")
_MASKS = ("mask", "annotation", "label", "segmentation", "semantic")
_TEXTS = ("text", "caption")
_BOXES = ("objects.bbox", "objects.bboxes", "boxes")
_BOX_LABELS = ("objects.category", "objects.categories", "objects.label", "objects.labels", "box_labels")
_SECONDS = 1.0


def parquet_images(folder: Path) -> LayoutGuess | None:
    """Return the Parquet files below a folder as a source; None if there are none with images. SourceError if one is broken."""
    paths = [found.path for found in walk(folder, compile_pattern("**/*.parquet", "detect"), Counter())]
    if not paths:
        return None
    first = folder / paths[0]
    stored, columns = file_columns(first), parquet_columns(first)
    if not stored:
        return None
    image = "image" if "image" in stored else stored[0]
    mask = next((name for name in _MASKS if name in stored and name != image), None)
    named = [name for name in columns if "." not in name and class_names(first, name) is not None]
    label = next((name for name in (*named, *_LABELS) if name in columns and name not in stored), None)
    pattern, by_split = _pattern(paths)
    fields: dict[str, tuple[Kind, str]] = {"mask": ("mask", mask)} if mask else {}
    fields |= {name: ("text", name) for name in _TEXTS if name in columns}
    boxes = next((name for name in _BOXES if name in columns), None)
    box_format: BoxFormat = "xyxy"
    doubts: list[str] = []
    if boxes:
        fields["boxes"] = ("boxes", boxes)
        if f"{boxes}_shape" not in columns:  # as our own exports have it
            box_format = "xywh"
            doubts.append("boxes are taken for x, y, width and height (box_format=), as in COCO")
        if of_boxes := next((name for name in _BOX_LABELS if name in columns), None):
            fields["box_labels"] = ("label", of_boxes)
            label = None if label == of_boxes else label
    used = {image, label, "key", *(column for _, column in fields.values())}
    left = [
        name
        for name in columns
        if name.removesuffix("_shape") not in used and not any(str(one).startswith(f"{name}.") for one in used)
    ]
    left = [name for name in left if name.rpartition(".")[0] not in stored and name not in stored[:1]]
    if left:
        doubts.append(f"this recipe does not read the columns {', '.join(left[:12])} (label=, fields=)")
    shares = BY_CLASS if label else FRACTIONS
    source = Table(pattern, image, label, fields, splits=None if by_split else shares, box_format=box_format)
    return LayoutGuess(
        "table", source, f"{len(paths)} Parquet files with images, as Hugging Face writes them", tuple(doubts)
    )


def _pattern(paths: list[str]) -> tuple[str, bool]:
    """The pattern of the files, and whether it gives the splits: by the name `train-00000-of-00002`, or by folders."""
    for pattern in ("**/{split}-*-of-*.parquet", "**/{split}/*.parquet", "**/{split}.parquet"):
        compiled = compile_pattern(pattern, "detect")
        holes = [compiled.match_path(path) for path in paths]
        if all(found is not None and found["split"].lower() in SPLIT_NAMES for found in holes):
            return pattern, True
    by_name = files_by_split(paths, ".parquet")
    return by_name or "**/*.parquet", by_name is not None


def videos(folder: Path) -> LayoutGuess | None:
    """Return the videos below a folder as a source; None if there are none."""
    for suffix in VIDEO_SUFFIXES:
        paths = [found.path for found in walk(folder, compile_pattern(f"**/*{suffix}", "detect"), Counter())]
        if paths:
            return _videos(paths, suffix)
    return None


def _videos(paths: list[str], suffix: str) -> LayoutGuess:
    folders = {tuple(path.split("/")[:-1]) for path in paths}
    heads = {parts[0] if parts else "" for parts in folders}
    by_split = heads <= set(SPLIT_NAMES)
    rest = {parts[1:] if by_split else parts for parts in folders}
    classes = {parts[0] if parts else "" for parts in rest}
    by_class = len(classes) > 1 and "" not in classes
    pattern = f"{'{split}/' * by_split}{'{label}/' * by_class}**/*{suffix}"
    source = Video(pattern, seconds=_SECONDS, splits=None if by_split else FRACTIONS)
    return LayoutGuess(
        "videos", source, f"{len(paths)} videos", (f"a frame every {_SECONDS:g} s (seconds=, or every=)",)
    )


def arrays(folder: Path) -> LayoutGuess | None:
    """Return the arrays of NumPy's files as a source; None if there are none. SourceError if they are of another form."""
    texts: list[str] = []
    for path in (
        found.path
        for suffix in (".npy", ".npz")
        for found in walk(folder, compile_pattern(f"**/*{suffix}", "detect"), Counter())
    ):
        inside = members(folder / path, Counter()) if path.endswith(".npz") else ()
        texts += [f"{literal(path)}:{member.name.removesuffix('.npy')}" for member in inside] or [literal(path)]
    found = {text: stored_arrays(folder, text)[0] for text in texts}
    shapes = ", ".join(f"{one.name} {one.dtype} {list(one.shape)}" for one in list(found.values())[:6])
    images = [text for text, one in found.items() if len(one.shape) in (3, 4) and one.dtype.kind in "uif"]
    if not texts:
        return None
    by_name = {split_pattern(text) for text in images}
    if len(by_name) != 1 or (len(images) > 1 and "{split}" not in next(iter(by_name))):
        raise SourceError(
            f"{folder}: nothing says which array holds the images: {shapes}; write the recipe with sources.Arrays"
        )
    shape = found[images[0]].shape
    if len(shape) == 3 and shape[2] in (1, 3, 4):
        raise SourceError(
            f"{folder}: {shapes}: this is one image, or N of one height; expected [N, H, W] or [N, H, W, C]"
        )
    image = images[0] if len(images) == 1 else by_name.pop()
    of_rows = [text for text, one in found.items() if text not in images and len(one.shape) in (1, 2)]
    fitting = [text for text in of_rows if any(found[text].shape[0] == found[i].shape[0] for i in images)]
    labels = {split_pattern(text) if "{split}" in image else text for text in fitting}
    label = (
        next((text for text in sorted(labels) if "{split}" in image or len(labels) == 1), None)
        if len(labels) == 1
        else None
    )
    first = len(shape) == 4 and shape[1] in (1, 3, 4) and shape[3] not in (1, 3, 4)
    splits = None if "{split}" in image else BY_CLASS if label else FRACTIONS
    doubts = [f"the arrays are {shapes}: each row of {image} is an image"]
    doubts += [f"this recipe does not read {text}" for text in of_rows if label is None or text not in fitting]
    return LayoutGuess("arrays", Arrays(image, label, first, splits=splits), "arrays of NumPy", tuple(doubts))
