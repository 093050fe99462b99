"""Images with masks, by structure: files of equal names in two folders, or beside each other; one kind has few colors."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice, permutations

import numpy as np

from tfprep.errors import MissingDependencyError, RecipeError, SampleError, SourceError
from tfprep.images import decode_image
from tfprep.sources.detection import FRACTIONS, Proposal
from tfprep.sources.detection.facts import MOST_COLORS, Facts, image_form
from tfprep.sources.detection.files import FEW, Files, apart, below, joint, one_suffix, split_form
from tfprep.sources.paired import CAMVID_CLASSES, Paired, camvid
from tfprep.sources.patterns import compile_pattern, literal
from tfprep.sources.raw import read_raw
from tfprep.sources.source import read_files

MASK_WORD = re.compile(
    r"(?:masks?|trimaps?|ann(?:o(?:t(?:ation)?)?)?s?|labels?|seg(?:mentation)?s?|semantics?|gts?|ground[_ ]?truth|targets?)",
    re.IGNORECASE,
)
"""Names of masks, which decide only whether a JPEG may be meant as a mask."""
_ALL_PAIRS, _SIBLINGS = 40, 16
"""Up to 40 folders are compared with every other; of more, those that differ in one name from at most 16 others."""
_OPENED, _MASKS_OPENED = 3, 300
_ENDING = re.compile(r"[ _.-][A-Za-z][A-Za-z\d]*$")
_BLACK_AND_WHITE = ((0, 255), (0, 65535))
_DARKEST = 64
_NAMED_COLOR = re.compile(
    r"(?:(?P<before>[^,:\d][^,:]*)[,:] *)?(?P<r>\d{1,3})[ ,]+(?P<g>\d{1,3})[ ,]+(?P<b>\d{1,3})(?::.*|[\s,]+(?P<after>\S.*?))?\s*"
)
"""A line of `class_dict.csv` (name,r,g,b), CVAT's `labelmap.txt` (name:r,g,b::) or CamVid's `label_colors.txt` (r g b name)."""


def masks(files: Files) -> Iterator[Proposal]:
    """Yield sources of images with masks. Raises SourceError for masks in JPEG."""
    lossy = ""
    for image, mask in dict.fromkeys((*_in_two_folders(files), *_beside(files))):
        if image == mask:
            continue
        source = Paired(image=image, mask=mask, splits=None if "{split}" in image else FRACTIONS)
        few = []
        with suppress(SourceError):
            few = [one.files for one in islice(source.scan(files.root).entries, FEW) if files.has(one.files[1])][
                :_OPENED
            ]
        named = any(map(MASK_WORD.fullmatch, re.split(r"[/ _.*-]|\{split\}", mask)))
        if few and named and few[0][1].lower().endswith((".jpg", ".jpeg")):
            lossy = f"{mask} may be the masks of {image}, and JPEG does not keep class numbers: write masks as PNG"
        if few and all(has_few_colors(files, one[1]) for one in few) and not has_few_colors(files, few[0][0]):
            yield Proposal("masks", _with_splits(source, files), doubts=_about_parts(source, files))
    if lossy:
        raise SourceError(lossy)


def has_few_colors(files: Files, path: str) -> bool:
    """Return True if an image has few colors, as masks have; False also for one that cannot be read."""
    with suppress(SampleError, MissingDependencyError):
        return image_form(read_raw(files.root, path))[2]
    return False


def _with_splits(source: Paired, files: Files) -> Paired:
    """Return the source without the splits that have no masks at all."""
    image, mask = (compile_pattern(str(text), "init") for text in (source.image, source.mask))
    paths = [below(folder, name) for folder, names in files.images.items() for name in names[:FEW]]
    with_masks = {holes.get("split", "") for path in paths if (holes := mask.match_path(path))}
    holes_of = (image.match_path(path) for path in paths if mask.match_path(path) is None)
    splits = {holes.get("split", "") for holes in holes_of if holes}
    return replace(source, splits=tuple(sorted(splits & with_masks))) if splits - with_masks else source


def _about_parts(source: Paired, files: Files) -> tuple[str, ...]:
    """Return the doubt about folders that are neither splits nor one for each image: they may be classes, or scenes."""
    pattern = compile_pattern(source.image, "init")
    found = [pattern.match_path(below(folder, name)) for folder, names in files.images.items() for name in names]
    for part in (hole for hole in sorted(pattern.holes) if hole.startswith("part")):
        folders = Counter(holes[part] for holes in found if holes)
        if 1 < len(folders) < sum(folders.values()):
            few = ", ".join(sorted(folders)[:3])
            return (
                f"the folders {few} may be classes ({{label}} for {{{part}}}), or images that belong together (group_by=)",
            )
    return ()


# --- pairs of folders -----------------------------------------------------------------------------------------------


def _in_two_folders(files: Files) -> Iterator[tuple[str, str]]:
    """Yield patterns of images and of files with the same names in another folder."""
    stems = {folder: [os.path.splitext(name)[0] for name in names] for folder, names in files.images.items()}
    nearest: dict[str, tuple[int, list[tuple[str, tuple[str, str]]]]] = {}
    for image, mask in _folders_alike(list(stems)):
        distance, endings = apart(image, mask), _endings(stems[image], stems[mask])
        best, _ = nearest.get(mask, (distance + 1, []))
        if endings is not None and distance <= best:
            same = nearest[mask][1] if distance == best else []
            nearest[mask] = distance, [*same, (image, endings)]
    grouped: dict[tuple[object, ...], list[tuple[str, str, tuple[str, str]]]] = {}
    for mask, (_, images) in nearest.items():
        for image, endings in images:
            own, other = ([name for name in one.split("/") if name not in two.split("/")]
                          for one, two in ((image, mask), (mask, image)))  # fmt: skip
            if len(own) == len(other) == 1 and own[0] and other[0].startswith(own[0]):  # train and trainannot
                own, other = [], [other[0].removeprefix(own[0])]
            form = tuple(map(split_form, own)), tuple(map(split_form, other)), image.count("/"), endings
            grouped.setdefault(form, []).append((image, mask, endings))
    for pairs in grouped.values():
        if (patterns := joint([pair[:2] for pair in pairs])) is not None:
            folders = [image for image, *_ in pairs], [mask for _, mask, _ in pairs]
            names = ([name for folder in of_side for name in files.images[folder]] for of_side in folders)
            last = [f"*{literal(end)}{one_suffix(of_side)}" for end, of_side in zip(pairs[0][2], names, strict=True)]
            yield below(patterns[0], last[0]), below(patterns[1], last[1])


def _folders_alike(folders: Sequence[str]) -> Iterable[tuple[str, str]]:
    """Return pairs of folders that may hold images and what belongs to them."""
    if len(folders) <= _ALL_PAIRS:
        return permutations(folders, 2)
    by_rest: dict[tuple[int, str], list[str]] = {}
    for folder in folders:
        parts = folder.split("/")
        for place in range(len(parts)):
            by_rest.setdefault((place, "/".join(parts[:place] + parts[place + 1 :])), []).append(folder)
    known = set(folders)
    inserted = [(rest, one) for (_, rest), alike in by_rest.items() for one in alike[:2] if rest in known]
    siblings = (alike for alike in by_rest.values() if 1 < len(alike) <= _SIBLINGS)
    return [*(pair for alike in siblings for pair in permutations(alike, 2)), *inserted]


def _endings(images: Sequence[str], others: Sequence[str]) -> tuple[str, str] | None:
    """Return what the names of images, and of what belongs to them, have at their ends; None if the names do not fit."""
    for of_image in _common_endings(images):
        for of_other in _common_endings(others):
            left, right = {one.removesuffix(of_image) for one in images}, {one.removesuffix(of_other) for one in others}
            if 10 * len(left & right) >= 9 * len(right):
                return of_image, of_other
    return None


def _common_endings(stems: Sequence[str]) -> list[str]:
    """Return "", and the last word of names if all have the same: `_mask`."""
    endings = {match[0] if (match := _ENDING.search(stem)) else "" for stem in stems}
    return ["", *(endings - {""})] if len(endings) == 1 else [""]


# --- pairs in one folder --------------------------------------------------------------------------------------------


def _beside(files: Files) -> Iterator[tuple[str, str]]:
    """Yield patterns of images and of files in their folder, by the first or last word of the names."""
    found: dict[tuple[str, str], list[tuple[str, str, str]]] = {}
    for folder, names in files.images.items():
        stems = {os.path.splitext(name)[0]: name for name in names}
        whole = permutations(map(literal, stems), 2) if len(stems) == 2 < len(files.images) else ()
        for image, mask in (*whole, *_words_apart(list(stems))):  # case_1/image.png and case_1/label.png
            of_mask = [name for stem, name in stems.items() if _fits(stem, mask)]
            of_image = [name for stem, name in stems.items() if _fits(stem, image) and name not in of_mask]
            if of_image and of_mask:
                found.setdefault((image, mask), []).append((folder, one_suffix(of_image), one_suffix(of_mask)))
    for (image, mask), of_words in found.items():
        patterns = joint([(folder, folder) for folder, *_ in of_words])
        ends = [of_side.pop() if len(of_side := {one[side] for one in of_words}) == 1 else "" for side in (1, 2)]
        if patterns is not None:
            yield below(patterns[0], image + ends[0]), below(patterns[0], mask + ends[1])


def _fits(stem: str, word: str) -> bool:
    start, star, end = word.partition("*")
    return stem.startswith(start) and stem.endswith(end) if star else stem == word


def _words_apart(stems: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield patterns of names that differ in one word at their beginning or end: `*` and `*_mask`, `img_*` and `mask_*`."""
    whole = set(stems)
    for at_end in (True, False):
        regex = re.compile(r"[ _.-]?[A-Za-z]+$" if at_end else r"^[A-Za-z]+[ _.-]?")
        words: dict[str, set[str]] = {}
        for stem, match in ((stem, regex.search(stem)) for stem in stems):
            if match is not None and len(match[0]) < len(stem):
                words.setdefault(match[0], set()).add(stem[: match.start()] if at_end else stem[match.end() :])
        spelled = {word: f"*{literal(word)}" if at_end else f"{literal(word)}*" for word in words}
        for word, rests in words.items():
            if 3 * len(rests) >= len(stems):
                yield from [("*", spelled[word])] if at_end and rests <= whole else ()
                yield from (
                    (spelled[other], spelled[word]) for other in words if other != word and rests <= words[other]
                )


# --- class numbers --------------------------------------------------------------------------------------------------


def with_numbers(source: Paired, files: Files, facts: Facts) -> tuple[Paired, list[str], list[str]]:
    """Return the source with class numbers for masks of colors or of black and white, files that it explains, and checks.

    Raises:
        SourceError: The files are not masks.
    """
    numbers = facts.mask_numbers.get("mask", ())
    if not numbers and facts.problems and not facts.other_size:
        return _with_palette(source, files, facts)
    if facts.most_numbers > MOST_COLORS:
        raise SourceError(
            f"one of {source.mask} holds {facts.most_numbers} numbers: objects, depths or soft edges, not classes"
        )
    if numbers in _BLACK_AND_WHITE:
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
    """Return the source with the classes of the colors of its masks: those that a text file names, CamVid's, or numbers."""
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
        names = {(int(one["r"]), int(one["g"]), int(one["b"])): one["before"] or one["after"] or "" for one in named}
        if set(colors) <= names.keys():
            palette = {color: number for number, color in enumerate(names)}
            with suppress(RecipeError):  # two classes of one name
                source = replace(source, palette=palette, classes=tuple(name.strip(' "') for name in names.values()))
                return source, [literal(path)], [f"the classes of the colors are those of {path}"]
    check = f"the masks are pictures of {len(colors)} colors, and the build rejects a mask with another color"
    known = camvid().palette
    if len(colors) > 2 and all(color in known for color in colors):
        return (
            replace(source, palette=known, classes=CAMVID_CLASSES, void=camvid().void),
            [],
            [check, "the classes are CamVid's"],
        )
    palette = {color: number for number, color in enumerate(colors)}
    return (
        replace(source, palette=palette),
        [],
        [check, "the numbers follow the order of the colors (palette=, classes=)"],
    )
