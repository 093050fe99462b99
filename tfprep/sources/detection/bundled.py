"""Recognises files that hold many samples each: tables with images as bytes (Hugging Face), and videos."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tfprep.boxes import BoxFormat
from tfprep.fields import Kind
from tfprep.sources.detection.guess import BY_CLASS, FRACTIONS, LayoutGuess
from tfprep.sources.detection.pairs import SPLIT_NAMES
from tfprep.sources.patterns import compile_pattern
from tfprep.sources.rows import class_names, file_columns, parquet_columns
from tfprep.sources.table import Table
from tfprep.sources.video import VIDEO_SUFFIXES, Video
from tfprep.sources.walk import walk

_LABELS = ("label", "labels", "fine_label", "class", "category")
_MASKS = ("mask", "annotation", "label", "segmentation", "semantic")
_TEXTS = ("text", "caption")
_BOXES = ("objects.bbox", "objects.bboxes")
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
    doubts: tuple[str, ...] = ()
    if boxes:
        fields["boxes"], box_format = ("boxes", boxes), "xywh"
        doubts = ("boxes are taken for x, y, width and height (box_format=), as in COCO",)
        if "objects.category" in columns:
            fields["box_labels"] = ("label", "objects.category")
    shares = BY_CLASS if label else FRACTIONS
    source = Table(pattern, image, label, fields, splits=None if by_split else shares, box_format=box_format)
    return LayoutGuess("table", source, f"{len(paths)} Parquet files with images, as Hugging Face writes them", doubts)


def _pattern(paths: list[str]) -> tuple[str, bool]:
    """The pattern of the files, and whether it gives the splits: by the name `train-00000-of-00002`, or by folders."""
    for pattern in ("**/{split}-*-of-*.parquet", "**/{split}/*.parquet", "**/{split}.parquet"):
        compiled = compile_pattern(pattern, "detect")
        holes = [compiled.match_path(path) for path in paths]
        if all(found is not None and found["split"].lower() in SPLIT_NAMES for found in holes):
            return pattern, True
    return "**/*.parquet", False


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
