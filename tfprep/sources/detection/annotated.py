"""Rules for annotations of objects: YOLO, COCO, Pascal VOC and LabelMe."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import Any

from tfprep.errors import SourceError
from tfprep.sources.annotations import Coco, LabelMe, Voc, Yolo
from tfprep.sources.annotations.coco import CocoFile, image_file_name
from tfprep.sources.annotations.yolo import DataYaml, images_in, label_path
from tfprep.sources.detection.facts import Reading, Remark
from tfprep.sources.detection.files import FEW, Files, below, beside, image_place, splits_for, splits_of
from tfprep.sources.patterns import literal, split_form, split_words
from tfprep.sources.raw import read_whole
from tfprep.sources.splits import Fractions

# --- YOLO -----------------------------------------------------------------------------------------------------------

_NAMES = re.compile(r"(?:.*/)?(?:(?:predefined_)?classes\.txt|.*\.(?:names|labels))", re.IGNORECASE)
_LABEL = re.compile(r"\d+(?:\s+-?\d+(?:\.\d+)?(?:e-?\d+)?){4,}", re.IGNORECASE)


def yolo(files: Files) -> Iterator[Reading]:
    """Yield the sources of YOLO's labels: YAML files, else labels and a list of class names. SourceError if there is no list."""
    lists = [path for path in files.paths(".txt", ".names", ".labels") if _NAMES.fullmatch(path)]
    yamls = [path for path in files.paths(".yaml", ".yml") if re.search(rb"^names\s*:", files.head(path), re.MULTILINE)]
    for path in yamls:
        data = DataYaml.read(files.root, path)
        labels_of = {
            split: [label_path(image) for place in places for image in images_in(files.root, place, Counter())]
            for split, places in data.places.items()
        }
        labeled = [split for split, labels in labels_of.items() if not files.hashes.isdisjoint(map(hash, labels))]
        bare = [split for split in data.places if labeled and split not in labeled]
        own = tuple(split for split in data.places if split not in (*data.twins, *bare))
        checks = [f"no image of {split} has labels: the split is left out" for split in bare]
        checks += [f"{n} is {where!r}, which is not in this folder" for n, where in data.missing.items()]
        checks += [f"{n} names the images of {twin}, and is left out" for n, twin in data.twins.items()]
        same = [list_path for list_path in lists if tuple(files.lines(list_path)) == data.names]
        declared = [path, *same, *chain(*data.places.values(), *labels_of.values())]
        remarks = [(0, f"{path}: {check}") for check in checks]
        yield _yolo(files, Yolo(data=path, splits=own if data.missing or bare else None), declared, remarks)
    texts = [path for path in files.paths(".txt") if path not in lists] if not yamls else []
    stems = {os.path.splitext(name)[0] for name in files.image_folders} if texts else set()
    labels = [path for path in texts if os.path.splitext(path.rpartition("/")[2])[0] in stems]
    lines = [line for path in labels[:FEW] for line in files.lines(path)]
    patterns = beside(files, labels) if 2 * sum(map(bool, map(_LABEL.fullmatch, lines))) > len(lines) else None
    if patterns is None:
        return
    if not lists:
        rule = "are YOLO's labels, and no data.yaml, classes.txt or obj.names has the names of their classes"
        raise SourceError(f"{patterns[1]} {rule}: write classes.txt with a name on each line")
    splits = splits_for(patterns[0])
    same = [path for path in lists if files.lines(path) == files.lines(lists[0])]
    notes = [path for path in files.paths(".json") if b'"categories"' in files.head(path)[:FEW]]  # of Label Studio
    listed = {  # by each text that may be a list of images
        path: {line.replace("\\", "/").rpartition("/")[2] for line in files.lines(path)[:FEW]}
        for path in sorted({*texts} - {*labels})[:FEW]
    }
    image_lists = [path for path, names in listed.items() if names and files.image_folders.keys() >= names]
    say_splits = splits and (len(image_lists) > 1 or {*split_words("".join(image_lists))} - {"train"})
    doubt = f"{' and '.join(image_lists[:2])} may say the splits, and this recipe draws new ones"
    further = [patterns[1], *same, *image_lists, *notes, *files.paths(".data")]
    yield _yolo(files, Yolo(lists[0], *patterns, splits=splits), further, [(1, doubt)] if say_splits else [])


def _yolo(files: Files, source: Yolo, declared: Sequence[str], remarks: Sequence[Remark]) -> Reading:
    """Return the reading of a source with the fields that its first objects have."""
    few = [one for entry in islice(source.scan(files.root).entries, FEW) for one in entry.values[0]["objects"]]
    corners = {len(one["polygons"][0]) // 2 if "polygons" in one else 0 for one in few}
    if any("points" in one for one in few):
        source = replace(source, fields=("boxes", "box_labels", "points"))
    elif corners == {4}:
        check = "objects have four corners: if they are oriented, their boxes are those around them"
        remarks = [*remarks, (0, check)]
    elif corners and 0 not in corners:
        source = replace(source, fields=("boxes", "box_labels", "instances"))
    return Reading("yolo", source, declared, remarks)


# --- COCO -----------------------------------------------------------------------------------------------------------

_MOST_JSON = 1000
"""Number of JSON files that are opened: COCO has a few, LabelMe has one for each image."""


def coco(files: Files) -> Iterator[Reading]:
    """Yield the sources of COCO's files; captions, panoptic segments, and key points beside other objects are side files.
    SourceError if there are only captions or segments."""
    sides: list[str] = []
    groups: dict[str, list[str]] = {}
    for path in files.paths(".json")[:_MOST_JSON]:
        head = files.head(path)
        if not re.search(rb'"(?:categories|caption|category_id)"', head):
            continue
        text = read_whole(files.root / path)
        if b'"images"' in text and (re.search(rb'"segments_info"|"caption"\s*:', head) or b'"annotations"' not in text):
            sides += [literal(path), f"**/{literal(os.path.splitext(os.path.basename(path))[0])}/*.png"]
        elif b'"images"' in text:
            groups.setdefault(split_form(path), []).append(path)
    proposals = [_coco(files, pattern, paths) for pattern, paths in groups.items()]
    of_objects = [one for one in proposals if "points" not in one.source.kinds()] or proposals
    sides += [path for one in proposals if one not in of_objects for path in one.declared]
    for proposal in of_objects:
        yield replace(proposal, declared=(*proposal.declared, *sides))
    if sides and not proposals:
        rule = "holds captions, or segments of panoptic segmentation, which tfprep does not read"
        raise SourceError(f"{sides[0]} {rule}: write captions as a column of JSON lines, segments as masks")


def _coco(files: Files, pattern: str, paths: Sequence[str]) -> Reading:
    """Return the source of COCO's files of one pattern with the fields of their annotations. SourceError without their images."""
    places, listed, first, drawn, remarks = set[str](), set[str](), dict[str, Any](), list[bool](), list[Remark]()
    for path in paths:
        images = list(CocoFile.read(files.root / path).images())
        names = [str(image_file_name(image)) for image, _ in images]
        place = image_place(files, names, path, "it lists")
        listed.update(below(place, name) for name in names)
        places.add(split_form(place) if {*split_words(place)} == {*split_words(path)} else literal(place))
        first = first or next((one[0] for _, one in images if one and isinstance(one[0], dict)), {})
        drawn += [bool(one.get("segmentation")) for _, of_image in images for one in of_image if isinstance(one, dict)]
    if len(places) != 1:
        raise SourceError(f"the images of {paths[0]} and {paths[1]} are in folders that differ in more than the split")
    has = {
        "boxes": "bbox" in first or bool(first.get("segmentation")),
        "box_labels": True,
        "instances": 10 * sum(drawn) >= 9 * len(drawn) > 0,
        "points": "keypoints" in first,
    }
    fields = tuple(name for name, there in has.items() if there)
    if not has["boxes"]:
        remarks.append((0, "the annotations have no boxes: box_labels are the classes of an image"))
    splits = splits_of(files, pattern, paths, listed)
    said = (key for image, _ in images[:1] for key, value in image.items() if split_form(str(value)) == "{split}")
    if isinstance(splits, Fractions) and (key := next(said, "")):
        remarks.append((1, f"{paths[0]}: {key!r} of an image may say its split, and this recipe draws new ones"))
    source = Coco(pattern, below(places.pop(), "{file_name}"), fields=fields, splits=splits)
    return Reading("coco", source, paths, remarks)


# --- Pascal VOC and LabelMe -----------------------------------------------------------------------------------------


def voc(files: Files) -> Iterator[Reading]:
    """Yield the source of XML files for single images."""
    notes = files.paths(".xml")
    heads = [files.head(path) for path in notes[:FEW]]
    is_voc = all(b"<annotation" in head and b"<image " not in head for head in heads)
    of_masks = {"SegmentationClass", "SegmentationObject"}  # with the names of the annotations, as photos have them
    photos = {folder: names for folder, names in files.names.items() if not of_masks & {*folder.split("/")}}
    patterns = beside(replace(files, names=photos), notes) if is_voc else None
    if patterns is None:
        return
    image, note = patterns
    source = Voc(image, note, splits=splits_for(image), first_pixel=1)
    checks = [(0, "pixels are taken to be counted from 1 (first_pixel=)")]
    if "Annotations" in note.split("/"):
        source, checks = replace(source, fields=("boxes", "box_labels", "difficult")), []
    prefix = note.rpartition("/")[0].rpartition("/")[0]
    places = [below(prefix, name) for name in ("ImageSets/Main", "ImageSets/Segmentation", "ImageSets")]
    if lists := next((place for place in places if place in files.names and "{" not in place), ""):
        names = [os.path.splitext(name)[0] for name in files.names[lists] if name.endswith(".txt")]
        own = [name for name in names if split_form(name) == "{split}" and name != "trainval"] or names
        source = replace(source, sets=f"{lists}/{{split}}.txt", splits=tuple(own) if own != names else None)
    sides = ("SegmentationClass/**/*", "SegmentationObject/**/*", "ImageSets/**/*.txt", "labelmap.txt")
    yield Reading("voc", source, (note, *(below(prefix, side) for side in sides)), checks)


def labelme(files: Files) -> Iterator[Reading]:
    """Yield the source of LabelMe's JSON files."""
    notes = files.paths(".json")
    patterns = beside(files, notes) if all(b'"shapes"' in files.head(path) for path in notes[:FEW]) else None
    if patterns is not None:
        source = LabelMe(*patterns, fields=("boxes", "box_labels", "instances"), splits=splits_for(patterns[0]))
        yield Reading("labelme", source, (patterns[1],))
