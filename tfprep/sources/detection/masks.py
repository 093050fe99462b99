"""Images with masks, by structure: files of equal names in two folders, or beside each other; one kind has few colors."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice, permutations, product

import numpy as np

from tfprep.errors import MissingDependencyError, RecipeError, SampleError, SourceError
from tfprep.images import decode_image
from tfprep.sources.detection import FRACTIONS, Proposal
from tfprep.sources.detection.facts import MOST_COLORS, Facts, image_form
from tfprep.sources.detection.files import FEW, Files, apart, below, joint, one_suffix, split_form
from tfprep.sources.paired import CAMVID_CLASSES, Paired, cityscapes
from tfprep.sources.patterns import compile_pattern, literal
from tfprep.sources.raw import read_raw
from tfprep.sources.source import read_files

MASK_WORD = re.compile(
    r"(?:masks?|trimaps?|ann(?:o(?:t(?:ation)?)?)?s?|labels?|seg(?:mentation)?s?|semantics?|gts?|ground[_ ]?truth|targets?)",
    re.IGNORECASE,
)
"""Names of masks, which decide only whether a JPEG may be meant as a mask."""
_OBJECTS = re.compile(r"instance|panoptic|depth|disp|flow|edge|boundar|normal(?!_)|object(?!ive)", re.IGNORECASE)
"""Names of pictures of few numbers that are not classes."""
_MOST_FOLDERS = 100
"""Up to this number of folders each is compared with every other."""
_MASKS_OPENED = 300
_WORD_AT_END = re.compile(r"[ _.-]?[A-Za-z][A-Za-z\d]*$")
_DARKEST = 64
_NAMED_COLOR = re.compile(
    r"(?:(?P<before>[^,:\d][^,:]*)[,:] *)?(?P<r>\d{1,3})[ ,]+(?P<g>\d{1,3})[ ,]+(?P<b>\d{1,3})(?::.*|[\s,]+(?P<after>\S.*?))?\s*"
)
"""A line of `class_dict.csv` (name,r,g,b), CVAT's `labelmap.txt` (name:r,g,b::) or CamVid's `label_colors.txt` (r g b name)."""


def masks(files: Files) -> Iterator[Proposal]:
    """Yield sources of images with masks. Raises SourceError for masks in JPEG."""
    if "leftImg8bit" in os.listdir(files.root) and "gtFine" in os.listdir(files.root):
        splits = tuple(split for split in ("train", "val") if (files.root / "gtFine" / split).is_dir())
        ends = ("color.png", "instanceIds.png", "labelTrainIds.png", "instanceTrainIds.png", "polygons.json")
        yield Proposal("masks", cityscapes(splits=splits), tuple(f"gtFine/**/*_gtFine_{end}" for end in ends))
        return
    lossy = ""
    for image, mask in dict.fromkeys((*_in_two_folders(files), *_beside(files))):
        few = []
        with suppress(SourceError, RecipeError):
            source = Paired(image=image, mask=mask, splits=None if "{split}" in image else FRACTIONS)
            few = [one.files for one in islice(source.scan(files.root).entries, FEW) if files.has(one.files[1])][:3]
        named = any(map(MASK_WORD.fullmatch, re.split(r"[/ _.*-]|\{split\}", mask)))
        if few and named and few[0][1].lower().endswith((".jpg", ".jpeg")):
            lossy = f"{mask} may be the masks of {image}, and JPEG does not keep class numbers: write masks as PNG"
        if few and all(has_few_colors(files, one[1]) for one in few) and not has_few_colors(files, few[0][0]):
            yield _of_splits(source, files)
    if lossy:
        raise SourceError(lossy)


def has_few_colors(files: Files, path: str) -> bool:
    """Return True if an image has few colors, as masks have; False also for one that cannot be read."""
    with suppress(SampleError, MissingDependencyError):
        return image_form(read_raw(files.root, path))[2]
    return False


def _of_splits(source: Paired, files: Files) -> Proposal:
    """Return the source without splits that have no masks at all; doubt folders that are neither splits nor one per image."""
    image, mask = (compile_pattern(str(text), "init") for text in (source.image, source.mask))
    paths = [below(folder, name) for folder, names in files.images.items() for name in names[:FEW]]
    found = [holes for path in paths if mask.match_path(path) is None and (holes := image.match_path(path))]
    with_masks = {holes.get("split", "") for path in paths if (holes := mask.match_path(path))}
    splits = {holes.get("split", "") for holes in found}
    if splits - with_masks:
        source = replace(source, splits=tuple(sorted(splits & with_masks)))
    parts = [{holes[part] for holes in found} for part in image.holes if part.startswith("part")]
    doubts = [
        f"the folders {', '.join(sorted(of_part)[:3])} may be classes ({{label}}), or images that belong together (group_by=)"
        for of_part in parts
        if 1 < len(of_part) < len(found)
    ]
    if _OBJECTS.search(str(source.mask)):
        doubts.append(f"{source.mask} may number objects, or hold depths or edges, and not classes")
    return Proposal("masks", source, doubts=tuple(doubts))


# --- pairs of folders, and pairs in one folder ----------------------------------------------------------------------


def _in_two_folders(files: Files) -> Iterator[tuple[str, str]]:
    """Yield patterns of images and of files with the same names in another folder, the nearest one."""
    stems = {folder: [os.path.splitext(name)[0] for name in names] for folder, names in files.images.items()}
    nearest: dict[str, tuple[tuple[bool, int], list[tuple[str, tuple[str, str]]]]] = {}
    known = {folder: frozenset(of_folder) for folder, of_folder in stems.items()}
    for image, mask in permutations(stems, 2) if len(stems) <= _MOST_FOLDERS else ():
        if (endings := _endings(stems[image], known[image], stems[mask])) is not None:
            distance = apart(image, mask)
            best, same = nearest.get(mask, (distance, []))
            if distance <= best:
                nearest[mask] = distance, [*(same if distance == best else ()), (image, endings)]
    grouped: dict[tuple[object, ...], list[tuple[str, str]]] = {}
    for mask, (_, images) in nearest.items():
        for image, endings in images:
            own, other = ("/".join(n for n in one.split("/") if n not in two.split("/"))
                          for one, two in ((image, mask), (mask, image)))  # fmt: skip
            begins = bool(own) and "/" not in other and other.startswith(own)  # trainannot of train
            form = ("", other.removeprefix(own)) if begins else (split_form(own), split_form(other))
            grouped.setdefault((*form, image.count("/"), *endings), []).append((image, mask))
    for (*_, of_image, of_mask), pairs in grouped.items():
        if (patterns := joint(pairs)) is not None:
            suffixes = [one_suffix(n for pair in pairs for n in files.images[pair[side]]) for side in (0, 1)]
            yield below(patterns[0], f"*{of_image}{suffixes[0]}"), below(patterns[1], f"*{of_mask}{suffixes[1]}")


def _endings(images: Sequence[str], known: frozenset[str], others: Sequence[str]) -> tuple[str, str] | None:
    """Return what the names of images, and of what belongs to them, have at their ends; None if the first names do not fit."""
    few = [stems[:FEW] for stems in (images, others)]
    ends = [{match[0] if (match := _WORD_AT_END.search(stem)) else "" for stem in stems} for stems in few]
    for of_image, of_other in product(*(dict.fromkeys(["", *(end if len(end) == 1 else ())]) for end in ends)):
        expected = [stem.removesuffix(of_other) + of_image for stem in few[1]]
        if of_image not in known and 10 * len(known.intersection(expected)) >= 9 * len(expected):
            return literal(of_image), literal(of_other)
    return None


def _beside(files: Files) -> Iterator[tuple[str, str]]:
    """Yield patterns of images and of files in their folder: `*` and `*_mask`, `img_*` and `mask_*`, `image` and `label`."""
    found: dict[tuple[str, str], list[tuple[str, str, str]]] = {}
    for folder, names in files.images.items():
        stems = {os.path.splitext(name)[0]: name for name in names}
        whole = permutations(map(literal, stems), 2) if len(stems) == 2 < len(files.images) else ()
        for image, mask in (*whole, *_words_apart(list(stems))):  # case_1/image.png and case_1/label.png
            (start, _, end), (of_start, star, of_end) = mask.partition("*"), image.partition("*")
            of_mask = [n for s, n in stems.items() if (s.startswith(start) and s.endswith(end) if star else s == mask)]
            of_image = [
                n for s, n in stems.items() if s.startswith(of_start) and s.endswith(of_end) and n not in of_mask
            ]
            found.setdefault((image, mask), []).append((folder, one_suffix(of_image), one_suffix(of_mask)))
    for (image, mask), of_words in found.items():
        patterns = joint([(folder, folder) for folder, *_ in of_words])
        ends = [of_side.pop() if len(of_side := {one[side] for one in of_words}) == 1 else "" for side in (1, 2)]
        if patterns is not None:
            yield below(patterns[0], image + ends[0]), below(patterns[0], mask + ends[1])


def _words_apart(stems: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield patterns of names that differ in one word at their end or beginning, for a third of the names at least."""
    for regex, spell in ((_WORD_AT_END, "*{}"), (re.compile(r"^[A-Za-z]+[ _.-]?"), "{}*")):
        words: dict[str, set[str]] = {"": set(stems)} if spell == "*{}" else {}
        for stem, match in ((stem, regex.search(stem)) for stem in stems):
            if match is not None and len(match[0]) < len(stem):
                words.setdefault(match[0], set()).add(stem[: match.start()] + stem[match.end() :])
        frequent = [word for word, rests in words.items() if 3 * len(rests) >= len(stems)]
        for one, other in permutations(frequent, 2):
            if other and words[other] <= words[one]:
                yield spell.format(literal(one)), spell.format(literal(other))


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
