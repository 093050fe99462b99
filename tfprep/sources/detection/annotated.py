"""Rules for annotations of objects: YOLO, COCO, Pascal VOC and LabelMe; and the names of formats that are not read."""

from __future__ import annotations

import os
import posixpath
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, NamedTuple

from tfprep.errors import SourceError
from tfprep.sources.annotations import Coco, LabelMe, Voc, Yolo
from tfprep.sources.annotations.coco import CocoFile, image_file_name
from tfprep.sources.annotations.yolo import DataYaml, images_in, label_path
from tfprep.sources.detection import FRACTIONS, Proposal
from tfprep.sources.detection.files import FEW, Files, below, beside, image_place
from tfprep.sources.patterns import by_form, literal, split_form
from tfprep.sources.raw import read_whole

_LABELFORMAT = "convert it with the package labelformat"
_OTHER_TOOLS = (
    (".xml", rb"<annotations.*<image ", "CVAT", f"{_LABELFORMAT}, or export COCO"),
    (".json", rb'"regions".*"shape_attributes"|"shape_attributes".*"regions"', "VGG Image Annotator", "export COCO"),
    (".json", rb'"data_row".*"projects"|"projects".*"data_row"', "Labelbox", _LABELFORMAT),
    (".txt", rb"\A[A-Za-z_]+ -?[\d.]+ -?\d+(?: -?[\d.]+){8,13}\s", "KITTI's format", _LABELFORMAT),
)
"""Suffix, what the file holds, the tool, and what to do."""


def other_tools(files: Files) -> Iterator[str]:
    """Yield a cause for each kind of annotations that tfprep does not read, with what to do."""
    for suffix, content, tool, fix in _OTHER_TOOLS:
        few = files.paths(suffix)[:FEW]
        if path := next((path for path in few if re.search(content, files.head(path), re.DOTALL)), ""):
            yield f"{path} is a file of {tool}, which tfprep does not read: {fix}"


# --- YOLO -----------------------------------------------------------------------------------------------------------

_NAMES = re.compile(r"(?:.*/)?(?:(?:predefined_)?classes\.txt|.*\.names)", re.IGNORECASE)
_LABEL = re.compile(r"\d+(?:\s+-?\d+(?:\.\d+)?(?:e-?\d+)?){4,}", re.IGNORECASE)


def yolo(files: Files) -> Iterator[Proposal]:
    """Yield the sources of YOLO's labels: those of YAML files, else text files of labels with a list of class names.

    Raises:
        SourceError: Labels have no list of class names.
    """
    lists = [path for path in files.paths(".txt", ".names") if _NAMES.fullmatch(path)]
    yamls = [path for path in files.paths(".yaml", ".yml") if re.search(rb"^names\s*:", files.head(path), re.MULTILINE)]
    for path in yamls:
        data = DataYaml.read(files.root, path)
        own = tuple(split for split in data.places if split not in data.twins)
        places = [place for of_split in data.places.values() for place in of_split]
        labels = [posixpath.normpath(posixpath.dirname(label_path(f"{place}/x.jpg"))) for place in places]
        patterns = [f"{literal(folder)}/**/*.txt" for folder in labels if folder != "."]
        mixed = [place for place in places if place.endswith(".txt") or place == "."]
        exact = [label_path(image) for place in mixed for image in images_in(files.root, place, Counter())]
        same = [literal(path) for path in lists if tuple(files.lines(path)) == data.names]
        checks = [f"{path}: {n} is {where!r}, which is not in this folder" for n, where in data.missing.items()]
        checks += [
            f"{path}: {n} names the images of {twin}, which are in {twin} only" for n, twin in data.twins.items()
        ]
        source, further = _with_fields(files, Yolo(data=path, splits=own if data.missing else None), bool(data.points))
        declared = (literal(path), *patterns, *same)
        yield Proposal("yolo", source, declared, (*checks, *further), read=frozenset((*mixed, *exact)))
    texts = [path for path in files.paths(".txt") if path not in lists] if not yamls else []
    stems = {os.path.splitext(name)[0] for name in files.image_names} if texts else set()
    labels = [path for path in texts if os.path.splitext(path.rpartition("/")[2])[0] in stems]
    lines = [line for path in labels[:FEW] for line in files.lines(path)]
    patterns_of = beside(files, labels) if 2 * sum(map(bool, map(_LABEL.fullmatch, lines))) > len(lines) else None
    if patterns_of is None:
        return
    image, label = patterns_of
    if not lists:
        rule = "are YOLO's labels, and no data.yaml, classes.txt or obj.names has the names of their classes"
        raise SourceError(f"{label} {rule}: write classes.txt with a name on each line")
    splits = None if "{split}" in image else FRACTIONS
    source, checks = _with_fields(files, Yolo(lists[0], image, label, splits=splits), False)
    same = [path for path in lists if files.lines(path) == files.lines(lists[0])]
    notes = [path for path in files.paths(".json") if b'"categories"' in files.head(path)[:FEW]]  # of Label Studio
    image_lists = [path for path in sorted(set(texts) - set(labels))[:FEW] if _names_images(files, path)]
    declared = (label, *map(literal, (*same, *image_lists, *notes, *files.paths(".data"))))
    drawn = splits and len(image_lists) > 1
    doubts = (
        [f"{image_lists[0]} and {image_lists[1]} may say the splits, and this recipe draws new ones"] if drawn else []
    )
    yield Proposal("yolo", source, declared, tuple(checks), tuple(doubts))


def _with_fields(files: Files, source: Yolo, points: bool) -> tuple[Yolo, list[str]]:
    """Return the source with the fields that its first objects have, and a check for objects of four corners."""
    if points:
        return replace(source, fields=("boxes", "box_labels", "points")), []
    entries = islice(source.scan(files.root).entries, FEW)
    numbers = {
        len(annotation["polygons"][0]) if "polygons" in annotation else 4
        for e in entries
        for annotation in e.values[0]["objects"]
    }
    if numbers == {8}:
        return source, ["objects have four corners: if they are oriented, their boxes are those around them"]
    polygons = bool(numbers) and 4 not in numbers
    return replace(source, fields=("boxes", "box_labels", "instances")) if polygons else source, []


def _names_images(files: Files, path: str) -> bool:
    """Return True if each of the first lines of a text ends in the name of an image."""
    names = [line.replace("\\", "/").rpartition("/")[2] for line in files.lines(path)[:FEW]]
    return bool(names) and files.image_names.issuperset(names)


# --- COCO -----------------------------------------------------------------------------------------------------------

_MOST_JSON = 1000
"""Number of JSON files that are opened: COCO has a few, LabelMe has one for each image."""


class _CocoGroup(NamedTuple):
    """COCO's files that differ in their split only: pattern, path of the images with `{file_name}`, all images, an annotation."""

    pattern: str
    images: str
    listed: frozenset[str]
    first: dict[str, Any]
    splits: tuple[str, ...] | None


def coco(files: Files) -> Iterator[Proposal]:
    """Yield the sources of COCO's files; key points of the same images, captions and panoptic segments are side files.

    Raises:
        SourceError: There are only captions, or segments of panoptic segmentation.
    """
    heads = {path: files.head(path) for path in files.paths(".json")[:_MOST_JSON]}

    def has(path: str, key: bytes) -> bool:  # of a large file, it is in the middle
        return key in heads[path] or key in read_whole(files.root / path)

    maybe = (path for path, head in heads.items() if re.search(b'"(?:categories|caption|category_id)"', head))
    paths = [path for path in maybe if has(path, b'"images"')]
    panoptic = [path for path in paths if b'"segments_info"' in heads[path]]
    captions = [path for path in paths if re.search(rb'"caption"\s*:', heads[path])]
    without = [path for path in paths if not has(path, b'"annotations"')]  # image_info_test.json
    sides = [literal(path) for path in (*panoptic, *captions, *without)]
    sides += [f"**/{literal(path.rpartition('/')[2].removesuffix('.json'))}/*.png" for path in panoptic]
    forms = by_form(path for path in paths if path not in {*panoptic, *captions, *without})
    groups = [_coco_group(files, pattern, of_form) for pattern, of_form in forms.items()]
    points = [candidate for candidate in groups if "keypoints" in candidate.first]
    objects = [candidate for candidate in groups if candidate not in points]
    further = [point for point in points if any(point.listed <= other.listed for other in objects)]
    sides += [other.pattern for other in further]
    for group in (candidate for candidate in groups if candidate not in further):
        yield _coco(files, group, (group.pattern, *sides))
    if not groups and (only := [*panoptic, *captions]):
        rule = "holds captions, or segments of panoptic segmentation, which tfprep does not read"
        raise SourceError(f"{only[0]} {rule}: write captions as a column of JSON lines, segments as masks")


def _coco_group(files: Files, pattern: str, paths: Sequence[str]) -> _CocoGroup:
    """Return the files of a pattern with the place of their images. SourceError if they cannot be read."""
    places, listed, first = set[str](), set[str](), dict[str, Any]()
    for path in paths:
        images = list(CocoFile.read(files.root / path).images())
        names = [str(image_file_name(image)) for image, _ in images]
        place = image_place(files, names, path, "it lists")
        listed.update(below(place, name) for name in names)
        places.add(split_form(place) if "{split}" in pattern else literal(place))
        first = first or next((one[0] for _, one in images if one and isinstance(one[0], dict)), {})
    if len(places) != 1:
        raise SourceError(f"the images of {paths[0]} and {paths[1]} are in folders that differ in more than the split")
    images_at = below(places.pop(), "{file_name}")
    return _CocoGroup(pattern, images_at, frozenset(listed), first, files.splits_of(pattern, paths))


def _coco(files: Files, group: _CocoGroup, declared: tuple[str, ...]) -> Proposal:
    """Return the source of COCO's files with the fields that their annotations have."""
    first, splits = group.first, group.splits if "{split}" in group.pattern else FRACTIONS
    folders = {split_form(path.rpartition("/")[0]) for path in group.listed}
    if "{split}" not in group.pattern and len(folders) == 1 and "{split}" in (folder := folders.pop()):
        splits = f"{folder}/**"  # type: ignore[assignment]
    placed = "bbox" in first or bool(first.get("segmentation"))
    checks = [] if placed else ["the annotations have no boxes: box_labels are the classes of an image"]
    has = {
        "boxes": placed,
        "box_labels": True,
        "instances": first.get("segmentation"),
        "points": first.get("keypoints"),
    }
    fields = tuple(name for name, there in has.items() if there)
    return Proposal("coco", Coco(group.pattern, group.images, fields=fields, splits=splits), declared, tuple(checks))


# --- Pascal VOC and LabelMe -----------------------------------------------------------------------------------------


def voc(files: Files) -> Iterator[Proposal]:
    """Yield the source of XML files for single images, or of the masks of VOC whose splits are lists."""
    notes = files.paths(".xml")
    heads = [files.head(path) for path in notes[:FEW]]
    if not all(b"<annotation" in head and b"<image " not in head for head in heads):
        return
    image, note = beside(files, notes) or ("", "")
    prefix = note.rpartition("/")[0].rpartition("/")[0]
    for folder in files.names if not notes else ():
        if folder.endswith("ImageSets/Segmentation"):
            prefix = folder.removesuffix("ImageSets/Segmentation").rstrip("/")
            image, note = below(prefix, "JPEGImages/*"), below(prefix, "Annotations/*.xml")
    if not image:
        return
    source = Voc(image, note, splits=None if "{split}" in image else FRACTIONS, first_pixel=1)
    standard = "Annotations" in note.split("/")
    checks = () if standard else ("pixels are taken to be counted from 1 (first_pixel=)",)
    if not notes:
        source = replace(source, fields=("mask",), masks=below(prefix, "SegmentationClass/*.png"))
    elif standard:
        source = replace(source, fields=("boxes", "box_labels", "difficult"))
    places = [below(prefix, name) for name in ("ImageSets/Main", "ImageSets/Segmentation", "ImageSets")]
    lists = next((place for place in places if place in files.names and "{" not in place), None)
    if lists is not None:
        names = [os.path.splitext(name)[0] for name in files.names[lists] if name.endswith(".txt")]
        own = [name for name in names if split_form(name) == "{split}" and name != "trainval"] or names
        source = replace(source, sets=f"{lists}/{{split}}.txt", splits=tuple(own))
    sides = ("SegmentationClass/**/*", "SegmentationObject/**/*", "ImageSets/**/*.txt", "labelmap.txt")
    yield Proposal("voc", source, (note, *(below(prefix, side) for side in sides)), checks)


def labelme(files: Files) -> Iterator[Proposal]:
    """Yield the source of LabelMe's JSON files."""
    notes = files.paths(".json")
    patterns = beside(files, notes) if all(b'"shapes"' in files.head(path) for path in notes[:FEW]) else None
    if patterns is not None:
        splits = None if "{split}" in patterns[0] else FRACTIONS
        source = LabelMe(*patterns, fields=("boxes", "box_labels", "instances"), splits=splits)
        yield Proposal("labelme", source, (patterns[1],))
