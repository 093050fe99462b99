"""Images with masks or maps, by structure: files whose names correspond, in two folders or in one."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from typing import Literal

import numpy as np

from tfprep.errors import MissingDependencyError, RecipeError, SampleError, SourceError
from tfprep.fields import Kind, Size, field_name_fault
from tfprep.images import decode_image, pixels_size
from tfprep.sources.detection import FRACTIONS, Proposal
from tfprep.sources.detection.facts import MOST_COLORS, Facts, image_form
from tfprep.sources.detection.files import FEW, Files, below, corresponding
from tfprep.sources.paired import CAMVID_CLASSES, Paired, cityscapes
from tfprep.sources.patterns import compile_pattern, literal
from tfprep.sources.raw import read_raw
from tfprep.sources.source import read_files
from tfprep.sources.splits import Fractions

MASK_WORD = re.compile(
    r"(?:masks?|trimaps?|ann(?:o(?:t(?:ation)?)?)?s?|labels?|seg(?:mentation)?s?|semantics?|gts?|ground[_ ]?truth|targets?)",
    re.IGNORECASE,
)
"""Names of masks. Masks need none of them: the number of colors decides, and a mask without such a name is a check."""
_NOT_CLASSES = re.compile(r"instance|panoptic|depth|disp|flow|edge|boundar|normal(?!_)|object(?!ive)", re.IGNORECASE)
"""Names of pictures whose numbers are not classes."""
_MASKS_OPENED = 300
_DARKEST = 64
_NAMED_COLOR = re.compile(
    r"(?:(?P<before>[^,:\d][^,:]*)[,:] *)?(?P<r>\d{1,3})[ ,]+(?P<g>\d{1,3})[ ,]+(?P<b>\d{1,3})(?::.*|[\s,]+(?P<after>\S.*?))?\s*"
)
"""A line of `class_dict.csv` (name,r,g,b), CVAT's `labelmap.txt` (name:r,g,b::) or CamVid's `label_colors.txt` (r g b name)."""


def masks(files: Files) -> Iterator[Proposal]:
    """Yield sources of images with masks or maps. Raises SourceError for masks in JPEG."""
    if {"leftImg8bit", "gtFine"} <= set(os.listdir(files.root)):
        splits = tuple(split for split in ("train", "val") if (files.root / "gtFine" / split).is_dir())
        ends = ("color.png", "instanceIds.png", "labelTrainIds.png", "instanceTrainIds.png", "polygons.json")
        yield Proposal("masks", cityscapes(splits=splits), tuple(f"gtFine/**/*_gtFine_{end}" for end in ends))
        return
    lossy = ""
    for image, others in corresponding(files.images, files.images).items():
        of_kind: dict[str, list[str]] = {"mask": [], "map": [], "picture": []}
        for other in (one for one in others if _names_masks(one) or not _in_folders_of_words(image, one)):
            pairs = _first_pairs(files, image, other)
            kinds = {content_of(files, path) for _, path in pairs}
            sizes = {_size(files, path) for path in (pairs[0] if pairs else ())}
            fits = kinds == {"mask"} or len(sizes) == 1  # of masks the sizes of more files are compared later
            if len(kinds) == 1 and fits and content_of(files, pairs[0][0]) != "mask":
                of_kind[kinds.pop()].append(other)
                if _names_masks(other) and pairs[0][1].lower().endswith((".jpg", ".jpeg")):
                    rule = "JPEG does not keep class numbers: write masks as PNG"
                    lossy = f"{other} may be the masks of {image}, and {rule}"
        maps = _fields(image, of_kind["map"])
        for mask in (*of_kind["mask"], *([] if of_kind["mask"] or not maps else [None])):
            yield _proposal(Paired(image, mask, maps, splits=_splits(image)), files)
    if lossy:
        raise SourceError(lossy)


def content_of(files: Files, path: str) -> Literal["mask", "map", "picture"]:
    """Return what an image may be: of few colors, as masks are; of one deep channel, as depths are; else a picture."""
    with suppress(SampleError, MissingDependencyError):
        form, _, few_colors = image_form(read_raw(files.root, path))
        deep = re.match(r"(?!uint8)\w+ \[H, W, 1\]$", form) is not None
        return "mask" if few_colors else "map" if deep else "picture"
    return "picture"


def _size(files: Files, path: str) -> Size:
    with suppress(SampleError, MissingDependencyError):
        return pixels_size(read_raw(files.root, path), page=0)
    return 0, 0


def _names_masks(pattern: str) -> bool:
    return any(map(MASK_WORD.fullmatch, re.split(r"[/ _.*-]|\{split\}", pattern)))


def _in_folders_of_words(image: str, other: str) -> bool:
    """Return True for two folders with words in their names, such as `cat/cat_*` and `dog/dog_*`: these may be classes."""
    (folder, _, name), (of_other, _, of_name) = image.rpartition("/"), other.rpartition("/")
    return folder != of_other and not name.startswith("*") and not of_name.startswith("*")


def _splits(image: str) -> Fractions | None:
    return None if "{split}" in image else FRACTIONS


def _fields(image: str, others: Sequence[str]) -> dict[str, tuple[Kind, str]]:
    """Return fields of maps, each named after what only its pattern has."""
    fields: dict[str, tuple[Kind, str]] = {}
    for other in others:
        words = [
            word for word in re.findall(r"[A-Za-z]\w*", re.sub(r"\{\w+\}|\.\w+$", "/", other)) if word not in image
        ]
        name = words[0].lower() if words and not field_name_fault(words[0].lower()) else "map"
        if name not in (*fields, "image", "mask", "label", "key"):
            fields[name] = "map", other
    return fields


def _first_pairs(files: Files, image: str, other: str) -> list[tuple[str, ...]]:
    """Return the paths of the first images and of what belongs to them; [] if the patterns do not fit together."""
    with suppress(SourceError, RecipeError):
        source = Paired(image, fields={"other": ("map", other)})
        entries = islice(source.scan(files.root).entries, FEW)
        return [entry.files for entry in entries if files.has(entry.files[1])][:3]
    return []


def _proposal(source: Paired, files: Files) -> Proposal:
    """Return the source without splits that have no masks at all; doubt folders that are neither splits nor one per image."""
    image = compile_pattern(source.image, "init")
    others = [
        compile_pattern(other, "init") for other in filter(None, (source.mask, *(f[1] for f in source.fields.values())))
    ]
    paths = [below(folder, name) for folder, names in files.images.items() for name in names[:FEW]]
    belong = [holes for path in paths for other in others if (holes := other.match_path(path)) is not None]
    found = [
        holes
        for path in paths
        if all(other.match_path(path) is None for other in others) and (holes := image.match_path(path)) is not None
    ]
    splits, complete = ({holes.get("split", "") for holes in matched} for matched in (found, belong))
    if splits - complete:
        source = replace(source, splits=tuple(sorted(splits & complete)))
    parts = [{holes[part] for holes in found} for part in image.holes if part.startswith("part")]
    doubts = [
        f"the folders {', '.join(sorted(of_part)[:3])} may be classes ({{label}}), or images that belong together (group_by=)"
        for of_part in parts
        if 1 < len(of_part) < len(found)
    ]
    if source.mask is not None and _NOT_CLASSES.search(source.mask):
        doubts.append(f"{source.mask} may number objects, or hold depths or edges, and not classes")
    unnamed = source.mask is not None and not _names_masks(source.mask)
    checks = [f"{source.mask} is taken for masks, because its files have few colors"] if unnamed else []
    for _, pattern in source.fields.values():
        if _names_masks(pattern):
            doubts.append(f"{pattern} may number objects")
        else:
            checks.append(f"{pattern} is taken for numbers of each pixel, such as depths (fields=)")
    return Proposal("masks", source, checks=tuple(checks), doubts=tuple(doubts))


# --- class numbers --------------------------------------------------------------------------------------------------


def with_numbers(source: Paired, files: Files, facts: Facts) -> tuple[Paired, list[str], list[str]]:
    """Return the source with class numbers for masks of colors or of black and white, files that it explains, and checks.

    Raises:
        SourceError: The files are not masks.
    """
    numbers = facts.mask_numbers.get("mask", ())
    if not numbers and facts.problems and not facts.other_size:
        return _with_palette(source, files, facts)
    if facts.most_numbers > MOST_COLORS or (numbers and max(numbers) > 255 and numbers != (0, 65535)):
        rule = f"one of {source.mask} holds {facts.most_numbers} numbers up to {max(numbers)}"
        raise SourceError(f"{rule}: objects, depths or soft edges, not classes")
    if numbers in ((0, 255), (0, 65535)):
        check = f"the masks hold {numbers[0]} and {numbers[1]}: two classes, 0 and 1 (numbers=)"
        return replace(source, numbers={numbers[0]: 0, numbers[1]: 1}), [], [check]
    if numbers and max(numbers) == len(CAMVID_CLASSES) - 1 and str(source.mask).startswith("{split}annot/"):
        check = f"the masks are taken for those of CamVid, in which {max(numbers)} is void (void=)"
        return replace(source, classes=CAMVID_CLASSES, void=max(numbers)), [], [check]
    if len(numbers) > 2 and not any(0 < number < _DARKEST for number in numbers):
        shades = ", ".join(map(str, numbers))
        return source, [], [f"the masks hold {shades}: are these shades of gray for classes 0, 1, 2, ... (numbers=)?"]
    return source, [], []


def _with_palette(source: Paired, files: Files, facts: Facts) -> tuple[Paired, list[str], list[str]]:
    """Return the source with the classes of the colors of its masks: those that a text file names, or their numbers."""
    listing = source.scan(files.root)
    codes: set[int] = set()
    for entry in islice(listing.entries, _MASKS_OPENED):
        with suppress(SampleError):
            pixels = decode_image(read_files(files.root, listing.files, entry)["mask"])
            codes.update(np.unique(pixels.astype(np.int64) @ np.array([1 << 16, 1 << 8, 1])).tolist())
    if not 1 < len(codes) <= MOST_COLORS:
        raise SourceError(f"the files of {source.mask!r} are not masks: {facts.problems[0]}")
    colors = [(code >> 16, code >> 8 & 255, code & 255) for code in sorted(codes)]
    for path in files.others(".csv", ".txt"):
        named = [match for line in files.lines(path) if (match := _NAMED_COLOR.fullmatch(line))]
        names = {
            (int(one["r"]), int(one["g"]), int(one["b"])): (one["before"] or one["after"] or "").strip(' "')
            for one in named
        }
        if set(colors) <= names.keys():
            palette = {color: number for number, color in enumerate(names)}
            with suppress(RecipeError):  # two classes of one name
                source = replace(source, palette=palette, classes=tuple(names.values()))
                return source, [literal(path)], [f"the classes of the colors are those of {path}"]
    check = f"the masks have {len(colors)} colors, numbered in their order (palette=, classes=); the build rejects other colors"
    return replace(source, palette={color: number for number, color in enumerate(colors)}), [], [check]
