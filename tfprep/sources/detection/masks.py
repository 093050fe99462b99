"""Images with masks or maps, by structure: files whose names correspond, in two folders or in one."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from typing import Literal

import numpy as np

from tfprep.errors import MissingDependencyError, SampleError, SourceError
from tfprep.images import decode_image, pixels_size
from tfprep.sources.detection import FRACTIONS, Proposal
from tfprep.sources.detection.facts import MOST_COLORS, Facts, image_form
from tfprep.sources.detection.files import Correspondence, Files
from tfprep.sources.paired import CAMVID_CLASSES, Paired, cityscapes
from tfprep.sources.patterns import compile_pattern
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
_DARKEST, _MOST_UNNAMED = 64, 20


def masks(files: Files) -> Iterator[Proposal]:
    """Yield sources of images with masks or maps. Raises SourceError for masks in JPEG."""
    if {"leftImg8bit", "gtFine"} <= set(os.listdir(files.root)):
        splits = tuple(split for split in ("train", "val") if (files.root / "gtFine" / split).is_dir())
        ends = ("color.png", "instanceIds.png", "labelTrainIds.png", "instanceTrainIds.png", "polygons.json")
        yield Proposal("masks", cityscapes(splits=splits), tuple(f"gtFine/**/*_gtFine_{end}" for end in ends))
        return
    lossy = ""
    for pair in files.pairs:
        of_images, contents = (
            {content_of(files, path) for path in paths} for paths in zip(*pair.examples, strict=True)
        )
        named = _names_masks(pair.other)
        if "mask" in of_images or len(contents) > 1 or (_are_words(pair) and not named):
            continue
        if contents == {"mask"}:
            doubts = (
                [f"{pair.other} may number objects, or hold depths or edges"] if _NOT_CLASSES.search(pair.other) else []
            )
            checks = [] if named else [f"{pair.other} is taken for masks, because its files have few colors"]
            yield _proposal(files, pair, Paired(pair.image, pair.other, splits=_splits(files, pair)), checks, doubts)
        elif contents == {"map"} and len({_side(files, path) for path in pair.examples[0]}) == 1:
            doubts = [f"{pair.other} may number objects"] if named else []
            checks = [f"{pair.other} is taken for numbers of each pixel, such as depths (fields=)"]
            source = Paired(pair.image, fields={"map": ("map", pair.other)}, splits=_splits(files, pair))
            yield _proposal(files, pair, source, checks, doubts)
        elif named and pair.examples[0][1].lower().endswith((".jpg", ".jpeg")):
            rule = "JPEG does not keep class numbers: write masks as PNG"
            lossy = f"{pair.other} may be the masks of {pair.image}, and {rule}"
    if lossy:
        raise SourceError(lossy)


def _names_masks(pattern: str) -> bool:
    return any(map(MASK_WORD.fullmatch, re.split(r"[/ _.*-]|\{split\}", pattern)))


def content_of(files: Files, path: str) -> Literal["mask", "map", "picture"]:
    """Return what an image may be: of few colors, as masks are; of one deep channel, as depths are; else a picture."""
    with suppress(SampleError, MissingDependencyError):
        form, _, few_colors = image_form(files.image(path))
        deep = re.match(r"(?!uint8)\w+ \[H, W, 1\]$", form) is not None
        return "mask" if few_colors else "map" if deep else "picture"
    return "picture"


def _side(files: Files, path: str) -> tuple[int, int]:
    with suppress(SampleError, MissingDependencyError):
        return pixels_size(files.image(path), page=0)
    return 0, 0


def _are_words(pair: Correspondence) -> bool:
    """Return True for two folders with words in their names, such as `cat/cat_*` and `dog/dog_*`: these may be classes."""
    return not any(name.startswith("*") for name in pair.names) and any(one != two for one, two in pair.folders)


def _splits(files: Files, pair: Correspondence) -> Fractions | tuple[str, ...] | None:
    """Return the splits that have masks, if others have none; fractions without splits."""
    if "{split}" not in pair.image:
        return FRACTIONS
    image, other = compile_pattern(pair.image, "init"), compile_pattern(pair.other, "init")
    of_images = {path: image.match_folders(path.split("/")) for path in files.images}
    splits = {
        holes["split"]: one for one, holes in of_images.items() if holes and not other.match_folders(one.split("/"))
    }
    complete = {(of_images[folder] or {})["split"] for folder, _ in pair.folders}
    return tuple(sorted(complete)) if splits.keys() - complete else None


def _proposal(files: Files, pair: Correspondence, source: Paired, checks: list[str], doubts: list[str]) -> Proposal:
    """Return the proposal, with a doubt about folders that are neither splits nor one for each image."""
    folders = [folder for folder, _ in pair.folders]
    if "{part" in pair.image and len(folders) < sum(len(files.images[folder]) for folder in folders) / 2:
        doubts.append(
            f"the folders {', '.join(folders[:3])}, ... may be classes ({{label}}), or images that belong together (group_by=)"
        )
    return Proposal("masks", source, checks=tuple(checks), doubts=tuple(doubts))


# --- class numbers --------------------------------------------------------------------------------------------------


def with_numbers(source: Paired, files: Files, facts: Facts) -> tuple[Paired, list[str]]:
    """Return the source with class numbers for masks of colors or of black and white, and what to check.

    Raises:
        SourceError: The files are not masks.
    """
    numbers = facts.mask_numbers.get("mask", ())
    if not numbers and facts.problems and not facts.other_size:
        return _with_palette(source, files, facts)
    if facts.most_numbers > MOST_COLORS or (numbers and max(numbers) > 255 and numbers != (0, 65535)):
        rule = f"one of {source.mask} holds {facts.most_numbers} numbers up to {max(numbers)}"
        raise SourceError(f"{rule}: objects, depths or soft edges, not classes")
    if facts.most_numbers > _MOST_UNNAMED and not _names_masks(str(source.mask)):
        raise SourceError(f"{source.mask} does not have a name of masks, and one holds {facts.most_numbers} numbers")
    if numbers in ((0, 255), (0, 65535)):
        check = f"the masks hold {numbers[0]} and {numbers[1]}: two classes, 0 and 1 (numbers=)"
        return replace(source, numbers={numbers[0]: 0, numbers[1]: 1}), [check]
    if numbers and max(numbers) == len(CAMVID_CLASSES) - 1 and str(source.mask).startswith("{split}annot/"):
        check = f"the masks are taken for those of CamVid, in which {max(numbers)} is void (void=)"
        return replace(source, classes=CAMVID_CLASSES, void=max(numbers)), [check]
    if len(numbers) > 2 and not any(0 < number < _DARKEST for number in numbers):
        shades = ", ".join(map(str, numbers))
        return source, [f"the masks hold {shades}: are these shades of gray for classes 0, 1, 2, ... (numbers=)?"]
    return source, []


def _with_palette(source: Paired, files: Files, facts: Facts) -> tuple[Paired, list[str]]:
    """Return the source with a class number for each of the colors of its masks."""
    listing = source.scan(files.root)
    colors: set[tuple[int, int, int]] = set()
    for entry in islice(listing.entries, _MASKS_OPENED):
        with suppress(SampleError):
            pixels = decode_image(read_files(files.root, listing.files, entry)["mask"])
            codes = np.unique(pixels.astype(np.int64) @ np.array([1 << 16, 1 << 8, 1])).tolist()
            colors.update((code >> 16, code >> 8 & 255, code & 255) for code in codes)
    if not 1 < len(colors) <= MOST_COLORS:
        raise SourceError(f"the files of {source.mask!r} are not masks: {facts.problems[0]}")
    palette = {color: number for number, color in enumerate(sorted(colors))}
    check = f"the masks have {len(colors)} colors, numbered in their order (palette=, classes=); the build rejects other colors"
    return replace(source, palette=palette), [check]
