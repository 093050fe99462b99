"""Recognises COCO's files, and names JSON files of other tools."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path

from tfprep.errors import SourceError
from tfprep.sources.annotations import Coco, CocoPanoptic
from tfprep.sources.annotations.coco import CocoFile, image_file_name
from tfprep.sources.detection.guess import FRACTIONS, LayoutGuess, Refusal
from tfprep.sources.detection.inventory import NAMES_KEPT, Inventory, below
from tfprep.sources.detection.pairs import SPLIT_WORD, split_pattern, splits_of_paths
from tfprep.sources.patterns import Template, compile_pattern, literal
from tfprep.sources.raw import open_raw

_ENDS_READ = 1 << 16
_OTHER_TOOLS = {
    "CreateML": (b'"annotations"', b'"coordinates"', b'"image'),
    "VGG Image Annotator": (b'"regions"', b'"shape_attributes"'),
    "Supervisely": (b'"objects"', b'"classTitle"'),
    "Label Studio's own JSON": (b'"annotations"', b'"from_name"'),
    "BDD100K": (b'"labels"', b'"box2d"'),
}
"""What the first 64 KiB of a file hold, by the tool that writes it."""


def coco(tree: Inventory) -> Iterator[LayoutGuess | Refusal]:
    """Yield the sources of COCO's files, those of instances first, and refuse JSON files of tools that are not read."""
    files: dict[str, CocoFile] = {}
    for path in tree.files(".json"):
        head, tail = _ends(tree.root / path)
        if all(any(word in part for part in (head, tail)) for word in (b'"images"', b'"annotations"')):
            try:
                files[path] = CocoFile.read(tree.root / path)
            except SourceError as error:
                yield Refusal("coco", error)
        elif tool := next((tool for tool, words in _OTHER_TOOLS.items() if all(word in head for word in words)), None):
            way_out = "convert it to COCO, for example with the package labelformat, or export COCO from the tool"
            yield Refusal(
                tool, SourceError(f"{tree.root / path} is a file of {tool}, which tfprep does not read; {way_out}")
            )
    for pattern, of_pattern in _patterns(files).items():
        yield _guess(tree, pattern, of_pattern)


def _ends(path: Path) -> tuple[bytes, bytes]:
    """The first and last bytes of a file; what stands between may be of any size. Nothing if it cannot be read."""
    try:
        with open_raw(path) as file:
            head = file.read(_ENDS_READ)
            file.seek(max(0, os.fstat(file.fileno()).st_size - _ENDS_READ))
            return head, file.read(_ENDS_READ)
    except OSError:
        return b"", b""


def _patterns(files: Mapping[str, CocoFile]) -> dict[str, dict[str, CocoFile]]:
    """The files by pattern: `annotations/instances_train2017.json` fits `annotations/instances_{split}2017.json`."""
    grouped: dict[str, dict[str, CocoFile]] = {}
    for path, file in files.items():
        grouped.setdefault(split_pattern(path), {})[path] = file
    return {pattern: grouped[pattern] for pattern in sorted(grouped, key=lambda pattern: (_rank(pattern), pattern))}


def _rank(pattern: str) -> int:
    words = ("instances", "person_keypoints", "panoptic", "captions")
    return next((place for place, word in enumerate(words) if word in pattern), -1)


def _guess(tree: Inventory, pattern: str, files: Mapping[str, CocoFile]) -> LayoutGuess | Refusal:
    path, file = next(iter(files.items()))
    first = next((found for _, found in file.images() if found), None)
    if first is None or not isinstance(first[0], dict):
        return Refusal("coco", SourceError(f"{file.path}: no image has an annotation"))
    template = _image_template(tree, pattern, path, file)
    if template is None:
        named = [str(image.get("file_name")) for image, _ in islice(file.images(), 3)]
        return Refusal(
            "coco", SourceError(f"{file.path}: no folder holds the images that it lists, such as {', '.join(named)}")
        )
    compiled = compile_pattern(pattern, "detect")
    fitting = [one for one in tree.files(".json") if compiled.match_path(one)]
    of_files = tuple((compiled.match_path(one) or {}).get("split", "") for one in files)
    unread = [one for one in fitting if one not in files]  # such as a list of images without annotations
    others = of_files if unread else None
    splits = others if "{split}" in pattern else _splits_of_images(template, file) or FRACTIONS
    doubts: tuple[str, ...] = ("each file of annotations is one split",) if splits is None and len(files) == 1 else ()
    doubts += tuple(f"this recipe does not read {one}" for one in unread)
    layout = f"COCO: {', '.join(files)}"
    if "segments_info" in first[0]:
        segments = _segments_template(tree, path)
        if segments is None:
            return Refusal("coco", SourceError(f"{file.path}: no folder holds the PNG files of its segments"))
        return LayoutGuess("coco", CocoPanoptic(pattern, template, segments, splits=splits), layout, doubts)
    if "caption" in first[0]:
        return LayoutGuess("coco", Coco(pattern, template, fields=("text",), splits=splits), layout, doubts)
    fields = ["boxes", "box_labels"]
    fields += ["instances"] if first[0].get("segmentation") else []
    fields += ["points"] if first[0].get("keypoints") else []
    return LayoutGuess("coco", Coco(pattern, template, fields=tuple(fields), splits=splits), layout, doubts)


def _image_template(tree: Inventory, pattern: str, path: str, file: CocoFile) -> str | None:
    """Where the images of a file lie: below the folder with the most of the first ones. `{split}` stands for the split there."""
    found = compile_pattern(pattern, "detect").match_path(path)
    split = (found or {}).get("split", "")
    names = [
        name for image, _ in islice(file.images(), NAMES_KEPT) if (name := image_file_name(image.get("file_name")))
    ]
    parent = path.rpartition("/")[0]
    folders = {parent, *tree.images, *(above for folder in tree.images for above in _above(folder))}
    ranked = sorted(folders, key=lambda one: (split not in one, one != parent, len(one), one))
    hits = {folder: sum((tree.root / below(folder, name)).is_file() for name in names) for folder in ranked}
    best = max(ranked, key=lambda folder: hits[folder], default="")
    if not hits.get(best):
        return None
    prefix = literal(f"{best}/" if best else "")
    return f"{prefix.replace(split, '{split}') if split and '{split}' in pattern else prefix}{{file_name}}"


def _splits_of_images(template: str, file: CocoFile) -> str | None:
    """The pattern of the images' paths that gives the splits, where their folders are called like splits."""
    filled = Template.parse(template)
    paths = [filled.fill(lambda _: image_file_name(image.get("file_name")) or "") for image, _ in file.images()]  # noqa: B023
    return splits_of_paths(paths)


def _above(folder: str) -> list[str]:
    parts = folder.split("/")
    return ["/".join(parts[:count]) for count in range(len(parts))]


def _segments_template(tree: Inventory, path: str) -> str | None:
    """The folder of the PNGs: it is called as the JSON file, or ends in the same split."""
    stem = path.rpartition("/")[2].removesuffix(".json")
    folder = next((one for one in tree.images if one.rpartition("/")[2] == stem), None)
    if folder is None:
        return None
    found = SPLIT_WORD.findall(stem)
    said = literal(folder)
    return f"{said.replace(found[-1], '{split}') if found else said}/{{file_name}}"
