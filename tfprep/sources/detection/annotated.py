"""Recognizes public data sets and annotations of objects: COCO, YOLO, Pascal VOC, LabelMe; names the files of other tools."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from tfprep.errors import SourceError
from tfprep.optional import require_package
from tfprep.sources.annotations import Coco, CocoPanoptic, LabelMe, Voc, Yolo
from tfprep.sources.annotations.coco import CocoFile, image_file_name
from tfprep.sources.annotations.yolo import DataYaml
from tfprep.sources.detection import FRACTIONS, Answers, LayoutGuess, Refusal
from tfprep.sources.detection.inventory import NAMES_KEPT, Inventory, below
from tfprep.sources.detection.pairs import SPLIT_WORD, annotation_patterns, is_split, split_pattern, splits_of_paths
from tfprep.sources.paired import ade20k, camvid, cityscapes
from tfprep.sources.patterns import Template, compile_pattern, literal
from tfprep.sources.raw import open_raw

_ENDS_READ = 1 << 16
_TO_COCO = "convert it to COCO, for example with the package labelformat, or export COCO from the tool"
_OTHER_TOOLS = (
    (".json", "CreateML", (b'"annotations"', b'"coordinates"', b'"image'), _TO_COCO),
    (".json", "VGG Image Annotator", (b'"regions"', b'"shape_attributes"'), _TO_COCO),
    (".json", "Supervisely", (b'"objects"', b'"classTitle"'), _TO_COCO),
    (".json", "Label Studio's own JSON", (b'"annotations"', b'"from_name"'), _TO_COCO),
    (".json", "BDD100K", (b'"labels"', b'"box2d"'), _TO_COCO),
    (".xml", "CVAT", (b"<annotations", b"<image "), "export COCO, YOLO, Pascal VOC or LabelMe from CVAT"),
)
"""Suffix, tool, what the first 64 KiB of its files hold, and the way out."""


def presets(tree: Inventory) -> Answers:
    """Yield the sources of public data sets that the names of the folders suggest."""

    def there(*folders: str) -> bool:
        return all((tree.root / folder).is_dir() for folder in folders)

    if there("leftImg8bit", "gtFine"):
        splits = tuple(name for name in ("train", "val") if there(f"gtFine/{name}"))
        yield LayoutGuess("masks", cityscapes(splits=splits), "Cityscapes: leftImg8bit and gtFine")
    if there("images/training", "annotations/training"):
        yield LayoutGuess("masks", ade20k(), "ADE20K: images and annotations, training and validation")
    if there("701_StillsRaw_full", "LabeledApproved_full"):
        yield LayoutGuess("masks", camvid(FRACTIONS), "CamVid: 701_StillsRaw_full and LabeledApproved_full")
    for lists in tree.others:  # masks of VOC whose splits are lists, where there are no boxes
        prefix = lists.removesuffix("ImageSets/Segmentation")
        images, masks = (f"{prefix}{name}" for name in ("JPEGImages", "SegmentationClass"))
        splits = _listed_splits(tree, lists)
        if (
            prefix != lists
            and splits
            and {images, masks} <= set(tree.names)
            and f"{prefix}Annotations" not in tree.others
        ):
            masks = f"{literal(masks)}/*.png"
            boxes, sets = f"{literal(prefix)}Annotations/*.xml", f"{literal(lists)}/{{split}}.txt"
            source = Voc(f"{literal(images)}/*", boxes, sets, masks, fields=("mask",), splits=splits)
            doubt = "the classes of the masks are taken for VOC's 20 (classes=)"
            yield LayoutGuess("masks", source, f"masks of Pascal VOC: {masks}", (doubt,))


def other_tools(tree: Inventory) -> Answers:
    """Refuse files of tools that are not read."""
    for suffix, tool, words, way_out in _OTHER_TOOLS:
        for path in tree.files(suffix):
            head, tail = _ends(tree.root / path)
            if all(word in head for word in words) and not _is_coco(head, tail):
                rule = f"{tree.root / path} is a file of {tool}, which tfprep does not read"
                yield Refusal(tool, SourceError(f"{rule}; {way_out}"))


def _listed_splits(tree: Inventory, folder: str) -> tuple[str, ...]:
    """The splits that lists of images in a folder are called by."""
    names = (Path(name).stem for name in tree.others.get(folder, {}).get(".txt", ()))
    return tuple(name for name in names if is_split(name) and name != "trainval")


def _ends(path: Path) -> tuple[bytes, bytes]:
    """The first and last bytes of a file; what stands between may be of any size. Nothing if it cannot be read."""
    try:
        with open_raw(path) as file:
            head = file.read(_ENDS_READ)
            file.seek(max(0, os.fstat(file.fileno()).st_size - _ENDS_READ))
            return head, file.read(_ENDS_READ)
    except OSError:
        return b"", b""


# --- COCO -----------------------------------------------------------------------------------------------------------


def coco(tree: Inventory) -> Answers:
    """Yield the sources of COCO's files, those of instances first."""
    grouped: dict[str, dict[str, CocoFile]] = {}  # annotations/instances_{split}2017.json: its files
    for path in tree.files(".json"):
        if _is_coco(*_ends(tree.root / path)):
            try:
                grouped.setdefault(split_pattern(path), {})[path] = CocoFile.read(tree.root / path)
            except SourceError as error:
                yield Refusal("coco", error)
    words = ("instances", "person_keypoints", "panoptic", "captions")
    ranks = {pattern: next((n for n, word in enumerate(words) if word in pattern), -1) for pattern in grouped}
    for pattern in sorted(filter(grouped.get, grouped), key=lambda pattern: (ranks[pattern], pattern)):
        try:
            yield _coco(tree, pattern, grouped[pattern])
        except SourceError as error:
            yield Refusal("coco", error)


def _is_coco(head: bytes, tail: bytes) -> bool:
    return all(word in head or word in tail for word in (b'"images"', b'"annotations"'))


def _coco(tree: Inventory, pattern: str, files: Mapping[str, CocoFile]) -> LayoutGuess:
    path, file = next(iter(files.items()))
    first = next((annotations[0] for _, annotations in file.images() if annotations), None)
    if not isinstance(first, dict):
        raise SourceError(f"{file.path}: no image has an annotation")
    template = _image_template(tree, pattern, path, file)
    if template is None:
        named = [str(image_file_name(image)) for image, _ in islice(file.images(), 3)]
        raise SourceError(f"{file.path}: no folder holds the images that it lists, such as {', '.join(named)}")
    compiled = compile_pattern(pattern, "detect")
    unread = [
        one for one in tree.files(".json") if compiled.match_path(one) and one not in files
    ]  # without annotations
    options: dict[str, Any] = {}
    if "{split}" not in pattern:
        filled = Template.parse(template)
        names = (image_file_name(image) or "" for image, _ in file.images())
        options["splits"] = splits_of_paths(filled.fill(lambda _, name=name: name) for name in names) or FRACTIONS  # type: ignore[misc]
    elif unread:
        options["splits"] = tuple((compiled.match_path(one) or {}).get("split", "") for one in files)
    doubts = ["each file of annotations is one split"] if not options and len(files) == 1 else []
    doubts += [f"this recipe does not read {one}" for one in unread]
    source: Coco | CocoPanoptic
    if "segments_info" in first:
        stem = path.rpartition("/")[2].removesuffix(".json")
        folder = next((one for one in tree.images if one.rpartition("/")[2] == stem), None)
        if folder is None:
            raise SourceError(f"{file.path}: no folder holds the PNG files of its segments")
        words, path_of_segments = SPLIT_WORD.findall(stem), literal(folder)
        segments = f"{path_of_segments.replace(words[-1], '{split}') if words else path_of_segments}/{{file_name}}"
        source = CocoPanoptic(pattern, template, segments, **options)
    else:
        placed = "bbox" in first or bool(first.get("segmentation"))
        fields = ["boxes", "box_labels"] if placed else ["box_labels"]
        if not placed and "caption" not in first:  # as in iNaturalist
            doubts.append("the annotations have no boxes: box_labels are the classes of an image")
        fields += ["instances"] if first.get("segmentation") else []
        fields += ["points"] if first.get("keypoints") else []
        source = Coco(pattern, template, fields=("text",) if "caption" in first else tuple(fields), **options)
    return LayoutGuess("coco", source, f"COCO: {', '.join(files)}", tuple(doubts))


def _image_template(tree: Inventory, pattern: str, path: str, file: CocoFile) -> str | None:
    """Return the path of the images of a file: below the folder with the most of the first ones, with `{split}` for the split."""
    split = (compile_pattern(pattern, "detect").match_path(path) or {}).get("split", "")
    first = islice(file.images(), NAMES_KEPT)
    names = [name for image, _ in first if (name := image_file_name(image))]
    parent = path.rpartition("/")[0]
    above = {folder[:place] for folder in tree.images for place in (0, *(m.start() for m in re.finditer("/", folder)))}
    ranked = sorted({parent, *tree.images, *above}, key=lambda one: (split not in one, one != parent, len(one), one))
    hits = {folder: sum((tree.root / below(folder, name)).is_file() for name in names) for folder in ranked}
    best = max(ranked, key=lambda folder: hits[folder], default="")
    if not hits.get(best):
        return None
    prefix = literal(f"{best}/" if best else "")
    return f"{prefix.replace(split, '{split}') if split and '{split}' in pattern else prefix}{{file_name}}"


# --- YOLO -----------------------------------------------------------------------------------------------------------

_NAMES = re.compile(r"classes\.txt|classes\.names|obj\.names|.*\.names|predefined_classes\.txt", re.IGNORECASE)
_LABEL_LINE = re.compile(r"\d+(?:\s+-?\d+(?:\.\d+)?(?:e-?\d+)?){4,}", re.IGNORECASE)


def yolo(tree: Inventory) -> Answers:
    """Yield the sources of YOLO's labels: those of a YAML file, else text files of labels with a list of class names."""
    yamls = [
        path
        for path in tree.files(".yaml", ".yml")
        if re.search(rb"^names\s*:", _ends(tree.root / path)[0], re.MULTILINE)
    ]
    for path in yamls:
        require_package("yaml", f"reading {path}")
        try:
            data = DataYaml.read(tree.root, path)
            own = tuple(split for split in data.places if split not in data.twins)
            missing = (f"{path}: {n} is {where!r}, which is not below this folder" for n, where in data.missing.items())
            source = _with_fields(tree, Yolo(data=path, splits=own if data.missing else None), bool(data.points))
            layout = f"YOLO: {path}, {len(data.names)} classes, {', '.join(data.places)}"
            yield LayoutGuess("yolo", source, layout, (*missing, *data.doubts))
        except SourceError as error:
            yield Refusal("yolo", error)
    for images, labels in annotation_patterns(tree, ".txt") if not yamls else ():
        texts = _contents(tree, labels, ".txt", _ENDS_READ, _NAMES)
        lines = [line.strip() for text in texts for line in text.decode("utf-8-sig", "replace").splitlines()]
        lines = [line for line in lines if line]
        if not lines or sum(bool(_LABEL_LINE.fullmatch(line)) for line in lines) < 0.9 * len(lines):
            continue
        # As Label Studio, LabelImg and CVAT export them.
        lists = [path for path in tree.files(".txt", ".names") if _NAMES.fullmatch(path.rpartition("/")[2])]
        try:
            if not lists:
                rule = "the labels are YOLO's, but no data.yaml, classes.txt or obj.names names their classes"
                way_out = "write classes.txt with the name of a class on each line"
                raise SourceError(f"{tree.root}: {labels}: {rule}; {way_out}")
            splits = None if "{split}" in images else FRACTIONS
            source = _with_fields(tree, Yolo(data=lists[0], images=images, labels=labels, splits=splits), False)
            others = [path for path in lists[1:] if tree.text(path).split() != tree.text(lists[0]).split()]
            doubts = tuple(f"{path} names other classes than {lists[0]}" for path in others)
            yield LayoutGuess("yolo", source, f"YOLO: {labels} with the classes of {lists[0]}", doubts)
        except SourceError as error:
            yield Refusal("yolo", error)
        return


def _with_fields(tree: Inventory, source: Yolo, points: bool) -> Yolo:
    """The source with the fields that its first objects have."""
    few = islice(source.scan(tree.root).entries, NAMES_KEPT)
    objects = [one for entry in few for one in entry.values[0]["objects"]]
    if points:
        return replace(source, fields=("boxes", "box_labels", "points"))
    if objects and all("polygons" in one for one in objects):
        return replace(source, fields=("boxes", "box_labels", "instances"))
    return source


# --- Pascal VOC and LabelMe -----------------------------------------------------------------------------------------


def voc(tree: Inventory) -> Answers:
    """Yield the sources of XML files for single images."""
    for images, files in annotation_patterns(tree, ".xml"):
        are_voc = [b"<annotation" in data and b"<annotations" not in data for data in _contents(tree, files, ".xml")]
        if not any(are_voc) or sum(are_voc) < 0.5 * len(are_voc):
            continue
        source = Voc(images, files, splits=None if "{split}" in images else FRACTIONS)
        doubts: tuple[str, ...] = ()
        prefix = files.rpartition("/")[0].rpartition("/")[0]
        places = [below(prefix, place) for place in ("ImageSets/Main", "ImageSets", "Main")]
        sets = next((place for place in places if ".txt" in tree.others.get(place, {})), places[0])
        splits = _listed_splits(tree, sets) if "{" not in sets else ()
        if splits:
            source = replace(source, sets=f"{sets}/{{split}}.txt", splits=splits)
        if "annotations" not in files.lower():
            doubts = ("pixels are taken to be counted from 1, as VOC counts them (first_pixel=)",)
        elif splits or prefix:
            source = replace(source, fields=("boxes", "box_labels", "difficult"))
        yield LayoutGuess("voc", source, f"Pascal VOC: {images} with {files}", doubts)


def labelme(tree: Inventory) -> Answers:
    """Yield the sources of LabelMe's JSON files."""
    for images, files in annotation_patterns(tree, ".json"):
        count = fitting = 0
        for data in _contents(tree, files, ".json"):
            count += 1
            with suppress(ValueError, RecursionError):
                content = json.loads(data)
                fitting += isinstance(content, dict) and isinstance(content.get("shapes"), Sequence)
        if fitting and fitting >= 0.9 * count:
            splits = None if "{split}" in images else FRACTIONS
            source = LabelMe(images, files, fields=("boxes", "box_labels", "instances"), splits=splits)
            yield LayoutGuess("labelme", source, f"LabelMe: {images} with {files}")


def _contents(
    tree: Inventory, pattern: str, suffix: str, most: int = -1, without: re.Pattern[str] | None = None
) -> Iterator[bytes]:
    """Yield the beginnings of the first files of a pattern; nothing for one that cannot be read."""
    compiled = compile_pattern(pattern, "detect")
    for path in [path for path in tree.files(suffix) if compiled.match_path(path)][:NAMES_KEPT]:
        if without is None or not without.fullmatch(path.rpartition("/")[2]):
            content = b""
            with suppress(OSError), open_raw(tree.root / path) as file:
                content = file.read(most)
            yield content
