"""Recognises annotations of objects, and public data sets, by the files and folders that they have."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from tfprep.errors import SourceError
from tfprep.optional import require_package
from tfprep.sources.annotations import Coco, CocoPanoptic, LabelMe, Voc, Yolo
from tfprep.sources.annotations.coco_file import CocoFile
from tfprep.sources.annotations.yolo import DataYaml
from tfprep.sources.detection.pairs import SPLIT_NAMES
from tfprep.sources.patterns import IMAGE_SUFFIXES, compile_pattern, literal
from tfprep.sources.presets import ade20k, camvid, cityscapes
from tfprep.sources.raw import open_raw, read_whole
from tfprep.sources.source import Source
from tfprep.sources.splits import Fractions
from tfprep.sources.walk import walk

FRACTIONS = Fractions(train=0.8, val=0.2)
"""What splits data that comes without splits."""
_SHAPES_READ = 50
"""Number of LabelMe's files that are read to see whether they are LabelMe's."""


class LayoutGuess(NamedTuple):
    """A source that may fit, what kind of layout that is in words, and what is not certain about it."""

    source: Source
    layout: str
    doubts: tuple[str, ...] = ()


def annotated(folder: Path, images: Mapping[str, Counter[str]]) -> Iterator[LayoutGuess]:
    """Yield the sources of annotations and the presets that the names suggest.

    Args:
        folder: The root.
        images: Each folder with images (relative, "" for the root), and the number of its images by suffix.
    """
    for recognise in (_presets, _yolo, _coco, _voc, _labelme):
        try:
            yield from recognise(folder, images)
        except SourceError:
            continue


Images = Mapping[str, Counter[str]]


def _presets(folder: Path, images: Images) -> Iterator[LayoutGuess]:
    if (folder / "leftImg8bit").is_dir() and (folder / "gtFine").is_dir():
        splits = tuple(name for name in ("train", "val") if (folder / "gtFine" / name).is_dir())
        yield LayoutGuess(cityscapes(splits=splits), "Cityscapes: leftImg8bit and gtFine")
    if (folder / "images/training").is_dir() and (folder / "annotations/training").is_dir():
        yield LayoutGuess(ade20k(), "ADE20K: images and annotations, training and validation")
    if (folder / "701_StillsRaw_full").is_dir() and (folder / "LabeledApproved_full").is_dir():
        yield LayoutGuess(camvid(FRACTIONS), "CamVid: 701_StillsRaw_full and LabeledApproved_full")


def _yolo(folder: Path, images: Images) -> Iterator[LayoutGuess]:
    for path in sorted((*folder.glob("*.yaml"), *folder.glob("*.yml"))):
        require_package("yaml", f"reading {path.name}")
        try:
            data = DataYaml.read(folder, path.name)
        except SourceError:
            continue
        fields = ["boxes", "box_labels"] + (["points"] if data.points else [])
        source = Yolo(data=path.name, fields=tuple(fields))
        objects = [one for entry in islice(source.scan(folder).entries, 64) for one in entry.values[0]["objects"]]
        if objects and all("polygons" in one for one in objects):
            source = replace(source, fields=("boxes", "box_labels", "instances"))
        yield LayoutGuess(source, f"YOLO: {path.name}, {len(data.names)} classes, {', '.join(data.places)}")


# --- COCO -----------------------------------------------------------------------------------------------------------


def _coco(folder: Path, images: Images) -> Iterator[LayoutGuess]:
    paths = [path for pattern in ("*.json", "*/*.json", "*/*/*.json") for path in sorted(folder.glob(pattern))]
    files: dict[str, CocoFile] = {}
    for path in (path for path in paths if _may_be_coco(path)):
        try:
            files[path.relative_to(folder).as_posix()] = CocoFile.read(path)
        except SourceError:
            continue
    for pattern, of_pattern in _patterns(files).items():
        source = _coco_source(pattern, of_pattern, images)
        if source is not None:
            doubts = ("each file of annotations is one split",) if "{split}" in pattern and len(of_pattern) == 1 else ()
            yield LayoutGuess(source, f"COCO: {', '.join(of_pattern)}", doubts)


def _may_be_coco(path: Path) -> bool:
    """Whether the file's first or last bytes name images; the other parts of a COCO file may be of any size."""
    try:
        with open_raw(path) as file:
            head = file.read(1 << 16)
            file.seek(max(0, path.stat().st_size - (1 << 16)))
            return any(b'"images"' in part or b'"annotations"' in part for part in (head, file.read()))
    except OSError:
        return False


_SPLIT_WORD = re.compile(
    rf"(?<![A-Za-z])({'|'.join(sorted(SPLIT_NAMES, key=len, reverse=True))})(?![A-Za-z])", re.IGNORECASE
)


def _patterns(files: Mapping[str, CocoFile]) -> dict[str, dict[str, CocoFile]]:
    """The files by pattern, those of instances first: `annotations/instances_train2017.json` fits
    `annotations/instances_{split}2017.json`."""
    grouped: dict[str, dict[str, CocoFile]] = {}
    for path, file in files.items():
        found = list(_SPLIT_WORD.finditer(path))
        if found and path.count(found[-1][0]) == 1:
            pattern = f"{literal(path[: found[-1].start()])}{{split}}{literal(path[found[-1].end() :])}"
        elif found:
            pattern = "/".join(part if not _SPLIT_WORD.fullmatch(part) else "{split}" for part in path.split("/"))
        else:
            pattern = literal(path)
        grouped.setdefault(pattern, {})[path] = file
    return {pattern: grouped[pattern] for pattern in sorted(grouped, key=lambda pattern: (_rank(pattern), pattern))}


def _rank(pattern: str) -> int:
    words = ("instances", "person_keypoints", "panoptic", "captions")
    return next((place for place, word in enumerate(words) if word in pattern), -1)


def _coco_source(pattern: str, files: Mapping[str, CocoFile], images: Images) -> Coco | CocoPanoptic | None:
    path, file = next(iter(files.items()))
    first = next((found for image, found in file.images() if found), None)
    template = _image_template(pattern, path, file, images)
    if first is None or template is None or not isinstance(first[0], dict):
        return None
    splits = None if "{split}" in pattern else FRACTIONS
    if "segments_info" in first[0]:
        segments = _segments_template(path, images)
        return CocoPanoptic(pattern, template, segments, splits=splits) if segments else None
    if "caption" in first[0]:
        return Coco(pattern, template, fields=("text",), splits=splits)
    fields = ["boxes", "box_labels"]
    fields += ["instances"] if first[0].get("segmentation") else []
    fields += ["points"] if first[0].get("keypoints") else []
    return Coco(pattern, template, fields=tuple(fields), splits=splits)


def _image_template(pattern: str, path: str, file: CocoFile, images: Images) -> str | None:
    """Where the file's images lie, with `{split}` if the folder's name holds the split's; None if they are not there."""
    found = compile_pattern(pattern, "detect").match_path(path)
    split = (found or {}).get("split", "")
    name = next((image.get("file_name") for image, _ in file.images()), None)
    if not isinstance(name, str):
        return None
    parent = path.rpartition("/")[0]
    folders = [f"{one}/" if one else "" for one in (parent, *images)]
    for prefix in sorted(dict.fromkeys(folders), key=lambda one: (split not in one, len(one))):
        whole = f"{prefix}{name}".rpartition("/")[0]
        if whole in images and _exists(file.path, path, prefix + name):
            said = literal(prefix).replace(split, "{split}") if split and "{split}" in pattern else literal(prefix)
            return f"{said}{{file_name}}"
    return None


def _exists(file: Path, path: str, name: str) -> bool:
    root = file.parents[path.count("/")]
    return (root / name).is_file()


def _segments_template(path: str, images: Images) -> str | None:
    """The folder of the PNGs: it is called as the JSON file, or ends in the same split."""
    stem = path.rpartition("/")[2].removesuffix(".json")
    folder = next((one for one in images if one.rpartition("/")[2] == stem), None)
    if folder is None:
        return None
    found = _SPLIT_WORD.findall(stem)
    said = literal(folder)
    return f"{said.replace(found[-1], '{split}') if found else said}/{{file_name}}"


# --- a file for each image ------------------------------------------------------------------------------------------


def _voc(folder: Path, images: Images) -> Iterator[LayoutGuess]:
    for path in sorted(path for path in folder.glob("**/Annotations") if path.is_dir()):
        prefix = path.relative_to(folder).as_posix().removesuffix("Annotations")
        said = literal(prefix)
        if f"{prefix}JPEGImages" not in images or next(path.glob("*.xml"), None) is None:
            continue
        lists = sorted(one.stem for one in (folder / prefix / "ImageSets/Main").glob("*.txt"))
        splits = tuple(name for name in lists if name in SPLIT_NAMES and name != "trainval")
        fields = ("boxes", "box_labels", "difficult")
        source = Voc(f"{said}JPEGImages/*", f"{said}Annotations/*.xml", fields=fields, splits=FRACTIONS)
        if splits:
            source = replace(source, sets=f"{said}ImageSets/Main/{{split}}.txt", splits=splits)
        yield LayoutGuess(source, "Pascal VOC: JPEGImages and Annotations")
    beside = {one: next((folder / one).glob("*.xml"), None) for one in images}
    if beside and all(beside.values()) and _is_voc(next(iter(beside.values()))):
        source = Voc("**", "**/*.xml", splits=FRACTIONS)
        doubt = "whether pixels are counted from 1 (first_pixel)"
        yield LayoutGuess(source, "Pascal VOC: an XML file beside each image", (doubt,))


def _is_voc(path: Path | None) -> bool:
    return path is not None and b"<bndbox>" in _content(path)


def _content(path: Path) -> bytes:
    """The content of a file; nothing if it cannot be read."""
    try:
        return read_whole(path)
    except OSError:
        return b""


def _labelme(folder: Path, images: Images) -> Iterator[LayoutGuess]:
    pattern = compile_pattern("**/*.json", "detect")
    paths = [folder / found.path for found in islice(walk(folder, pattern, Counter()), _SHAPES_READ)]
    if paths and sum(map(_is_labelme, paths)) >= 0.9 * len(paths):
        fields: Sequence[str] = ("boxes", "box_labels", "instances")
        yield LayoutGuess(LabelMe(fields=tuple(fields), splits=FRACTIONS), "LabelMe: a JSON file beside each image")


def _is_labelme(path: Path) -> bool:
    try:
        content = json.loads(_content(path))
    except (ValueError, RecursionError):
        return False
    beside = any(path.with_suffix(suffix).exists() for suffix in IMAGE_SUFFIXES)
    return isinstance(content, dict) and "shapes" in content and beside
