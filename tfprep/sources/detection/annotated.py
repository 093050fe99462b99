"""Recognises public data sets, and annotations in a file for each image: YOLO, Pascal VOC, LabelMe."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

from tfprep.errors import SourceError
from tfprep.optional import require_package
from tfprep.sources.annotations import LabelMe, Voc, Yolo
from tfprep.sources.annotations.yolo import DataYaml
from tfprep.sources.detection.guess import FRACTIONS, LayoutGuess, Refusal
from tfprep.sources.detection.inventory import NAMES_KEPT, Inventory
from tfprep.sources.detection.pairs import SPLIT_NAMES, annotation_patterns
from tfprep.sources.paired import ade20k, camvid, cityscapes
from tfprep.sources.patterns import compile_pattern, literal
from tfprep.sources.raw import open_raw

Found = Iterator[LayoutGuess | Refusal]
_HEAD = 1 << 16


def presets(tree: Inventory) -> Found:
    """Yield the sources of public data sets that the names of the folders suggest."""
    folder = tree.root
    if (folder / "leftImg8bit").is_dir() and (folder / "gtFine").is_dir():
        splits = tuple(name for name in ("train", "val") if (folder / "gtFine" / name).is_dir())
        yield LayoutGuess("masks", cityscapes(splits=splits), "Cityscapes: leftImg8bit and gtFine")
    if (folder / "images/training").is_dir() and (folder / "annotations/training").is_dir():
        yield LayoutGuess("masks", ade20k(), "ADE20K: images and annotations, training and validation")
    if (folder / "701_StillsRaw_full").is_dir() and (folder / "LabeledApproved_full").is_dir():
        yield LayoutGuess("masks", camvid(FRACTIONS), "CamVid: 701_StillsRaw_full and LabeledApproved_full")
    yield from _voc_masks(tree)


def _voc_masks(tree: Inventory) -> Found:
    """Yield masks of VOC whose splits are lists, where there are no boxes."""
    for lists, by_suffix in tree.others.items():
        prefix = lists.removesuffix("ImageSets/Segmentation")
        folders = [f"{prefix}{name}" for name in ("JPEGImages", "SegmentationClass")]
        names = [Path(name).stem for name in by_suffix.get(".txt", ())]
        splits = tuple(name for name in names if name in SPLIT_NAMES - {"trainval"})
        if (
            prefix == lists
            or not splits
            or not set(folders) <= set(tree.names)
            or f"{prefix}Annotations" in tree.others
        ):
            continue
        images, masks = (f"{literal(folder)}/*" for folder in folders)
        source = Voc(
            f"{images}",
            f"{literal(prefix)}Annotations/*.xml",
            f"{literal(lists)}/{{split}}.txt",
            ("mask",),
            f"{masks}.png",
        )
        doubt = "the classes of the masks are taken for VOC's 20 (classes=)"
        yield LayoutGuess("masks", replace(source, splits=splits), f"masks of Pascal VOC: {masks}.png", (doubt,))


# --- YOLO -----------------------------------------------------------------------------------------------------------


def yolo(tree: Inventory) -> Found:
    """Yield the sources of YOLO's labels: those of a YAML file, else text files of labels with a list of class names."""
    yamls = [
        path
        for path in tree.files(".yaml", ".yml")
        if re.search(rb"^names\s*:", _content(tree.root / path, _HEAD), re.MULTILINE)
    ]
    for path in yamls:
        require_package("yaml", f"reading {path}")
        try:
            yield _from_yaml(tree, path)
        except SourceError as error:
            yield Refusal("yolo", error)
    if not yamls:
        yield from _from_names(tree)


def _from_yaml(tree: Inventory, path: str) -> LayoutGuess:
    data = DataYaml.read(tree.root, path)
    splits = None if not data.missing else tuple(split for split in data.places if split not in data.twins)
    source = _with_fields(tree, Yolo(data=path, splits=splits), bool(data.points))
    missing = tuple(
        f"{path}: {split} is {where!r}, which is not below this folder" for split, where in data.missing.items()
    )
    return LayoutGuess(
        "yolo", source, f"YOLO: {path}, {len(data.names)} classes, {', '.join(data.places)}", (*missing, *data.doubts)
    )


def _with_fields(tree: Inventory, source: Yolo, points: bool) -> Yolo:
    """The source with the fields that its first objects have."""
    objects = [
        one for entry in islice(source.scan(tree.root).entries, NAMES_KEPT) for one in entry.values[0]["objects"]
    ]
    if points:
        return replace(source, fields=("boxes", "box_labels", "points"))
    if objects and all("polygons" in one for one in objects):
        return replace(source, fields=("boxes", "box_labels", "instances"))
    return source


def _from_names(tree: Inventory) -> Found:
    """Text files of labels without a YAML file, as Label Studio, LabelImg and CVAT export them."""
    pattern = next((pair for pair in annotation_patterns(tree, ".txt") if _are_labels(tree, pair[1])), None)
    if pattern is None:
        return
    images, labels = pattern
    lists = [path for path in tree.files(".txt", ".names") if _NAMES.fullmatch(path.rpartition("/")[2])]
    try:
        if not lists:
            rule = "the labels are YOLO's, but no data.yaml, classes.txt or obj.names names their classes"
            raise SourceError(f"{tree.root}: {labels}: {rule}; write classes.txt with the name of a class on each line")
        splits = None if "{split}" in images else FRACTIONS
        source = _with_fields(tree, Yolo(data=lists[0], images=images, labels=labels, splits=splits), False)
        yield LayoutGuess("yolo", source, f"YOLO: {labels} with the classes of {lists[0]}")
    except SourceError as error:
        yield Refusal("yolo", error)


_NAMES = re.compile(r"classes\.txt|classes\.names|obj\.names|.*\.names|predefined_classes\.txt", re.IGNORECASE)
_LABEL_LINE = re.compile(r"\d+(?:\s+-?\d+(?:\.\d+)?(?:e-?\d+)?){4,}", re.IGNORECASE)


def _are_labels(tree: Inventory, pattern: str) -> bool:
    """Whether the first text files of a pattern hold lines of a class and four numbers or more, and at least one does."""
    compiled = compile_pattern(pattern, "detect")
    paths = [path for path in tree.files(".txt") if compiled.match_path(path)][:NAMES_KEPT]
    texts = [
        _content(tree.root / path, _HEAD).decode("utf-8-sig", "replace")
        for path in paths
        if not _NAMES.fullmatch(Path(path).name)
    ]
    lines = [line.strip() for text in texts for line in text.splitlines() if line.strip()]
    return bool(lines) and sum(bool(_LABEL_LINE.fullmatch(line)) for line in lines) >= 0.9 * len(lines)


# --- Pascal VOC and LabelMe -----------------------------------------------------------------------------------------


def voc(tree: Inventory) -> Found:
    """Yield the sources of XML files for single images, and refuse XML files of tools that are not read."""
    for images, files in annotation_patterns(tree, ".xml"):
        if _share(tree, files, ".xml", lambda data: b"<annotation" in data and b"<annotations" not in data) < 0.5:
            continue
        source = Voc(images, files, splits=None if "{split}" in images else FRACTIONS)
        doubts: tuple[str, ...] = ()
        prefix = files.rpartition("/")[0].rpartition("/")[0]
        listed = ("ImageSets/Main", "ImageSets", "Main")
        places = [f"{prefix}/{place}" if prefix else place for place in listed]
        sets = next((place for place in places if ".txt" in tree.others.get(place, {})), places[0])
        lists = tree.others.get(sets, {}).get(".txt", []) if "{" not in sets else []
        splits = tuple(Path(name).stem for name in lists if Path(name).stem in SPLIT_NAMES - {"trainval"})
        if splits:
            source = replace(source, sets=f"{sets}/{{split}}.txt", splits=splits)
        if "annotations" not in files.lower():
            doubts = ("pixels are taken to be counted from 1, as VOC counts them (first_pixel=)",)
        elif splits or prefix:
            source = replace(source, fields=("boxes", "box_labels", "difficult"))
        yield LayoutGuess("voc", source, f"Pascal VOC: {images} with {files}", doubts)
    for path in tree.files(".xml"):
        head = _content(tree.root / path, _HEAD)
        if b"<annotations" in head and b"<image " in head:
            rule = f"{tree.root / path} is a file of CVAT, which tfprep does not read"
            yield Refusal("CVAT", SourceError(f"{rule}; export COCO, YOLO, Pascal VOC or LabelMe from CVAT"))


def labelme(tree: Inventory) -> Found:
    """Yield the sources of LabelMe's JSON files."""
    for images, files in annotation_patterns(tree, ".json"):
        if _share(tree, files, ".json", _is_labelme) >= 0.9:
            splits = None if "{split}" in images else FRACTIONS
            fields = ("boxes", "box_labels", "instances")
            source = LabelMe(images, files, fields=fields, splits=splits)
            yield LayoutGuess("labelme", source, f"LabelMe: {images} with {files}")


def _share(tree: Inventory, pattern: str, suffix: str, fits: Callable[[bytes], bool]) -> float:
    """The share of the first files of a pattern whose content fits."""
    compiled = compile_pattern(pattern, "detect")
    paths = [path for path in tree.files(suffix) if compiled.match_path(path)][:NAMES_KEPT]
    return sum(fits(_content(tree.root / path)) for path in paths) / max(1, len(paths))


def _is_labelme(data: bytes) -> bool:
    try:
        content = json.loads(data)
    except (ValueError, RecursionError):
        return False
    return isinstance(content, dict) and isinstance(content.get("shapes"), Sequence)


def _content(path: Path, most_bytes: int = -1) -> bytes:
    """The content of a file, or its first bytes; nothing if it cannot be read."""
    try:
        with open_raw(path) as file:
            return file.read(most_bytes)
    except OSError:
        return b""
