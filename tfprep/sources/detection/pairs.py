"""Images with masks or annotations, by their names: `train` and `trainannot`, `images` and `labels`, `x_mask.png`."""

from __future__ import annotations

import os
import posixpath
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from typing import TypeAlias

from tfprep.errors import RecipeError, SourceError
from tfprep.sources.detection import FRACTIONS, Answers, LayoutGuess, Refusal
from tfprep.sources.detection.inventory import Inventory, below
from tfprep.sources.paired import Paired
from tfprep.sources.patterns import compile_pattern, literal

SPLIT_WORD = re.compile(
    r"(?<![A-Za-z])(train[ _-]?val|train(?:ing)?|val(?:id(?:ation)?)?|dev|test(?:ing)?|eval|holdout|(?-i:TR|TE))"
    r"(?=(?:data(?:set)?|set)?(?![A-Za-z]))",
    re.IGNORECASE,
)
"""The name of a split, also in `traindata`; `TR` and `TE` as in DUTS."""
_MASK_WORDS = (
    r"(?:(?:masks?|trimaps?|ann(?:o(?:t(?:ation)?)?)?s?|labels?|seg(?:mentation)?s?|semantics?|gts?|ground[_ ]?truth|targets?)"
    r"(?:_?(?:dir|ids?|png))?"
    r"|segmentation_?(?:class|object)(?:png)?)"
)
MASK_WORD = re.compile(_MASK_WORDS, re.IGNORECASE)
_MASK_END = re.compile(rf"{_MASK_WORDS}$", re.IGNORECASE)
_ENDING = re.compile(rf"(?P<stem>.+?)(?P<ending>[_.-]?{_MASK_WORDS})", re.IGNORECASE)
IMAGE_WORD = re.compile(
    r"(?:(?:jpe?g|png)?_?i(?:mage|mg)s?|photos?|pictures?|raw|rgb|inputs?|frames)(?:_?(?:dir|png|jpe?g))?",
    re.IGNORECASE,
)
"""A folder of images by its name, which is no class."""
_IMAGE_FILE = re.compile(r"(?:images?|img|photo|raw|rgb|input)\b", re.IGNORECASE)
_BEGINNING = re.compile(rf"(?P<beginning>{_MASK_WORDS}[ _.-])(?P<rest>\w*\d)", re.IGNORECASE)
_TESTS = {"test", "testing"}
_OF_IMAGES = ("", "_sat", "_img", "_image", "_rgb", "_photo", "_raw")
"""The ends of the names of images beside which masks lie, as in DeepGlobe."""
_NAMELESS = re.compile(r"\*|\{(?:part\d+|folder)\}")
_COLORED = re.compile(r"colou?r_?maps?", re.IGNORECASE)
_DRAWN_MASKS = re.compile(rf"{_COLORED.pattern}|colou?r(?:s|ed)?|instances?", re.IGNORECASE)
"""Folders with pictures of masks, or masks of instances: the last choice. `color` alone may also hold images, as in ScanNet."""
NO_IMAGE = re.compile(
    rf"{MASK_WORD.pattern}|instances?|semantics?|panoptic|{_COLORED.pattern}|depths?|(?:disp(?:arit(?:y|ies))?|flows?)(?:_(?:occ|noc))?|normals|surface_?normals?|alphas?|mattes?"
    "|[hl]r",
    re.IGNORECASE,
)
"""Folders of what belongs to images, pixel by pixel: also those of super-resolution (HR, LR)."""
OF_ONE = r"(?:patient|subject|person|lesion|individual|case|study|slide|scene|video|sequence|group)"
"""Words for what several images show."""
_LOSSY = frozenset((".jpg", ".jpeg"))
"""No masks: JPEG does not keep class numbers."""

Names: TypeAlias = Mapping[str, Sequence[str]]
"""Folder (relative, "" the root) to some of the names of its images, sorted."""


def is_split(name: str) -> bool:
    """Tell whether a folder is called like a split."""
    return SPLIT_WORD.fullmatch(name) is not None


def split_words(path: str) -> list[str]:
    """Return the names of splits in a path, in lower case, also those in `trainLabels`."""
    return [word.lower() for word in SPLIT_WORD.findall(re.sub(r"(?<=[a-z])(?=[A-Z])", "_", path))]


def is_mask_folder(name: str) -> bool:
    """Tell whether a folder is called like masks: `masks`, `trainannot`, `label_images_semantic`."""
    return any(map(MASK_WORD.fullmatch, re.split("[ _.-]", name))) or _MASK_END.search(name) is not None


def split_pattern(path: str) -> str:
    """Return the path with `{split}` in place of the split's name: `{split}/metadata.csv`, `instances_{split}2017.json`."""
    matches = list(SPLIT_WORD.finditer(path))
    words = [one[0] for one in matches]
    if words and path.count(words[-1]) == words.count(words[-1]):
        return "{split}".join(map(literal, path.split(words[-1])))
    return "/".join("{split}" if SPLIT_WORD.fullmatch(part) else literal(part) for part in path.split("/"))


def splits_of_paths(paths: Iterable[str]) -> str | None:
    """Return the pattern of paths that gives the splits, where the folders at one place are called like splits; else None."""
    parts = [posixpath.normpath(path).split("/")[:-1] for path in paths]
    for place in range(max(map(len, parts), default=0)):
        folders = {one[place] if len(one) > place else "" for one in parts}
        if len(folders) > 1 and all(map(is_split, folders)):
            return f"{'*/' * place}{{split}}/**"
    return None


def files_by_split(paths: Sequence[str], suffix: str) -> str | None:
    """Return the pattern of files whose `{split}` is their folder, or a word in their names; None where there is no such word."""
    if all(is_split(path.split("/")[0]) and "/" in path for path in paths):
        return f"{{split}}/**/*{suffix}"
    for shard in (r"(?!)", r"\d+"):  # shards differ in their numbers
        patterns = {re.sub(shard, "*", split_pattern(path)) for path in paths}
        with suppress(RecipeError):
            if len(patterns) == 1 and "{split}" in compile_pattern(next(iter(patterns)), "detect").text:
                return patterns.pop()
    return None


def annotation_patterns(tree: Inventory, suffix: str) -> list[tuple[str, str]]:
    """Return patterns for images and for the files of annotations that belong to them by their names.

    Files belong together where the file system has, for half of the files with the suffix in a folder, an image of the same name:
    in the same folder, or in one whose path differs in one name, or has one name more or less.

    Args:
        tree: The files of the root.
        suffix: The suffix of the annotations, such as ".xml".

    Returns:
        (pattern of the images, pattern of the annotations), the one with the most folders first.
    """
    by_depth: dict[tuple[bool, int, int], list[tuple[str, str]]] = {}
    for folder, files in tree.others.items():
        for images in _with_images(tree, folder, files.get(suffix, ())):
            key = images == folder, images.count("/") + bool(images), folder.count("/") + bool(folder)
            by_depth.setdefault(key, []).append((images, folder))
    patterns: dict[tuple[str, str], int] = {}
    same = [pair for (beside, *_), pairs in by_depth.items() if beside for pair in pairs]
    for pairs in [same, *(pairs for (beside, *_), pairs in by_depth.items() if not beside)]:
        if pairs:
            image, annotation = _joint_folders(pairs)
            patterns[f"{image}*", f"{annotation}*{suffix}"] = len(pairs)
    return sorted(patterns, key=lambda one: -patterns[one])


_FOLDERS_TRIED = 64


def _near(images: str, folder: str) -> bool:
    """Tell whether two paths are equal, or differ in one name, or in a name that one of them has not."""
    one, other = images.split("/") if images else [], folder.split("/") if folder else []
    if len(one) == len(other):
        return sum(a != b for a, b in zip(one, other, strict=True)) <= 1
    long, short = (one, other) if len(one) > len(other) else (other, one)
    return len(long) == len(short) + 1 and any(long[:at] + long[at + 1 :] == short for at in range(len(long)))


def _with_images(tree: Inventory, annotated: str, files: Sequence[str]) -> list[str]:
    """The folders that hold the images of these files; none if there are images for less than half of them.

    The folder of the files themselves comes first, then folders near it, then all others; folders of masks are no images.
    """
    stems = [os.path.splitext(name)[0] for name in files]
    spelled = [{unicodedata.normalize(form, stem) for form in ("NFC", "NFD")} for stem in stems]

    def count_images(folder: str) -> int:
        suffixes = {one for suffix in tree.images[folder] for one in (suffix, suffix.upper())}
        where = tree.root / folder
        return sum(any((where / f"{s}{suffix}").is_file() for s in forms for suffix in suffixes) for forms in spelled)

    tried = [one for one in tree.images if one == annotated or not MASK_WORD.fullmatch(one.rpartition("/")[2])]
    near = [one for one in tried if _near(one, annotated)]
    for folders in ([annotated], near, tried[:_FOLDERS_TRIED]) if stems else ():
        hits = {folder: count_images(folder) for folder in folders if folder in tree.images}
        if sum(hits.values()) >= 0.5 * len(stems):
            return [folder for folder, hit in hits.items() if hit]
    return []


def _joint_folders(pairs: Sequence[tuple[str, str]]) -> tuple[str, str]:
    """Patterns of the folders of images and of annotations, each with its slash at the end; "" for the root."""
    if all(image == annotation for image, annotation in pairs):
        folders = sorted({image for image, _ in pairs})
        return _parents(folders), _parents(folders)
    images, annotations = (
        [folder.split("/") if folder else [] for folder in of_kind] for of_kind in zip(*pairs, strict=True)
    )
    columns = [list(column) for column in zip(*images, strict=True)]
    holes = [f"{{part{place}}}" if _common(column) == "*" else _common(column) for place, column in enumerate(columns)]
    spelled = []
    for column in (list(column) for column in zip(*annotations, strict=True)):
        alike = next((hole for other, hole in zip(columns, holes, strict=True) if other == column), None)
        common = _common(column) if any("{split}" in hole for hole in holes) else "*"
        spelled.append(alike if alike is not None else literal(column[0]) if len(set(column)) == 1 else common)
    return "".join(f"{part}/" for part in holes), "".join(f"{part}/" for part in spelled)


def _elsewhere(names: Names) -> Iterator[tuple[str, str]]:
    """Masks in folders that are called otherwise than those of their images, or lie deeper: `annotations/trimaps`."""
    masks = {one: None for one in names if any(map(is_mask_folder, one.split("/")))}
    others = [one for one in names if one not in masks and not any(map(NO_IMAGE.fullmatch, one.split("/")))]
    by_form: dict[tuple[bool, int, str, str], list[tuple[str, str]]] = {}
    for mask in masks:
        endings = {image: _mask_ending(names, image, mask) for image in others}
        fitting = [image for image, ending in endings.items() if ending is not None]
        drawn = any(map(_DRAWN_MASKS.fullmatch, re.split("[ /_-]", mask)))
        if fitting and not _suffixes(names[mask]) <= _LOSSY:
            image, *others_alike = _nearest(fitting, mask)
            if others_alike:
                continue  # nothing says to which of these folders the masks belong
            own = "/".join(
                split_pattern(part) for part in mask.split("/") if part not in image.split("/")
            )  # v2.0/labels
            by_form.setdefault((drawn, image.count("/"), own, endings[image] or ""), []).append((image, mask))
    best = sorted(by_form.items(), key=lambda one: (one[0][0], -sum(len(names[image]) for image, _ in one[1])))
    for (_, _, _, ending), pairs in best:
        image, mask = _joint_folders(pairs)
        image_file, mask_file = _file_patterns(names, pairs, ending)
        yield f"{image}{image_file}", f"{mask}{mask_file}"


def _nearest(images: Iterable[str], mask: str) -> list[str]:
    """Return the folders whose paths say most that the masks are theirs: by the split, by what differs, by what is equal."""
    parts, words = set(mask.split("/")), SPLIT_WORD.findall(mask)
    ranks = {
        one: (SPLIT_WORD.findall(one) == words, _near(one, mask), len(set(one.split("/")) & parts)) for one in images
    }
    return [one for one, rank in ranks.items() if rank == max(ranks.values())]


def _parallel(names: Names) -> Iterator[tuple[tuple[str, str], int]]:
    """Masks in folders beside those of their images: `train` and `trainannot`, `a/left` and `a/masks`."""
    groups: dict[tuple[int, int, str, str], list[tuple[str, str]]] = {}
    for image, mask, place in _one_name_apart(names):
        part, mask_part = image.split("/")[place], mask.split("/")[place]
        if not (MASK_WORD.fullmatch(mask_part) or mask_part.startswith(part)) or _suffixes(names[mask]) <= _LOSSY:
            continue
        beside = _MASK_END.search(part) or NO_IMAGE.fullmatch(part)  # as color maps and instances beside labels
        if (beside and not _suffixes(names[image]) <= _LOSSY) or _mask_ending(names, image, mask) is None:
            continue
        hole = "{split}" if is_split(part) else "{folder}"
        by_name = literal(part), literal(mask_part)
        spelled = (hole, hole + literal(mask_part[len(part) :])) if mask_part.startswith(part) else by_name
        groups.setdefault((image.count("/"), place, *spelled), []).append((image, mask))
    for (_, place, *of_place), pairs in groups.items():
        parts = [_common(values) for values in zip(*(image.split("/") for image, _ in pairs), strict=True)]
        alike = len({image.split("/")[place] for image, _ in pairs}) == 1
        at_place = (one.replace("{folder}", parts[place]) if alike else one for one in of_place)
        folders = ("/".join((*parts[:place], one, *parts[place + 1 :])) for one in at_place)
        files = _file_patterns(names, pairs, _mask_ending(names, *pairs[0]) or "")
        image, mask = (below(folder, file) for folder, file in zip(folders, files, strict=True))
        yield (image, mask), sum(len(names[image]) for image, _ in pairs)


def _one_name_apart(names: Names) -> Iterator[tuple[str, str, int]]:
    """Yield pairs of folders whose paths differ in one name, which ends like masks in the second, and the place of that name."""
    by_rest: dict[tuple[int, tuple[str, ...]], list[str]] = {}
    for folder in names:
        parts = folder.split("/")
        for place in range(len(parts)):
            by_rest.setdefault((place, (*parts[:place], *parts[place + 1 :])), []).append(folder)
    for (place, _), folders in by_rest.items():
        for mask in folders:
            if _MASK_END.search(mask.split("/")[place]):
                yield from ((image, mask, place) for image in folders if image != mask)


def _file_patterns(names: Names, pairs: Sequence[tuple[str, str]], ending: str) -> tuple[str, str]:
    """Patterns of the files of images and of masks, whose names have this ending."""
    image, mask = (_star(name for folder in folders for name in names[folder]) for folders in zip(*pairs, strict=True))
    return image, mask.replace("*", f"*{literal(ending)}", 1)


def _mask_ending(names: Names, image: str, mask: str) -> str | None:
    """Return what the names of masks have after those of their images ("", "_mask", "_L"); None where less than half of them
    belong together."""
    stems, masks = ([os.path.splitext(name)[0] for name in names[folder]] for folder in (image, mask))
    endings = Counter({"": len(set(stems) & set(masks))})
    for stem in masks:
        cuts = {match.start() for match in re.finditer(r"[ _.-]\D*[A-Za-z]", stem)}
        cuts |= {match.start("ending") for match in filter(None, [_ENDING.fullmatch(stem)])}
        endings.update(stem[cut:] for cut in cuts if stem[:cut] in stems)
    ending, often = endings.most_common(1)[0]
    return ending if often and often >= 0.5 * min(len(stems), len(masks)) else None


def _side_by_side(names: Names) -> Iterator[tuple[tuple[str, str], int]]:
    """Masks in the folder of their images, told by the end of their name."""
    folders: dict[tuple[str, str], list[str]] = {}
    for folder, files in names.items():
        stems = {os.path.splitext(name)[0] for name in files}
        for match in filter(None, map(_ENDING.fullmatch, sorted(stems))):
            ours = next((own for own in _OF_IMAGES if match["stem"] + own in stems), None)
            if ours is not None:
                folders.setdefault((ours, match["ending"]), []).append(folder)
    for (ours, ending), there in folders.items():
        where = _parents(sorted(set(there)))
        files = [name for folder in set(there) for name in names[folder]]
        masks = [name for name in files if os.path.splitext(name)[0].endswith(ending)]
        of_masks = {os.path.splitext(name)[0].removesuffix(ending) + ours for name in masks}
        images = [name for name in files if os.path.splitext(name)[0] in of_masks]
        image, mask = _star(images).replace("*", f"*{ours}"), _star(masks).replace("*", f"*{literal(ending)}")
        yield (where + image, where + mask), len(there)


def _same_names(names: Names) -> Iterator[tuple[tuple[str, str], int]]:
    """Folders of one case each, with files of the same names: `image.png` and `label.png`."""
    often = Counter(name for files in names.values() for name in files)
    common = [name for name, count in often.items() if count > 1 and count >= 0.5 * len(names)]
    masks = [name for name in common if MASK_WORD.fullmatch(os.path.splitext(name)[0])]
    images = [name for name in common if name not in masks and not _ENDING.fullmatch(os.path.splitext(name)[0])]
    for mask in masks:
        for image in sorted(images, key=lambda name: (not _IMAGE_FILE.match(name), name))[:1]:
            folders = sorted(folder for folder, files in names.items() if image in files and mask in files)
            yield (_parents(folders) + literal(image), _parents(folders) + literal(mask)), len(folders)


def _by_beginnings(names: Names) -> Iterator[tuple[tuple[str, str], int]]:
    """Masks told by the beginning of their name, beside their images or in a folder near them: `image_1.png`, `mask_1.png`."""
    for folder, files in names.items():
        matches = list(filter(None, (_BEGINNING.fullmatch(os.path.splitext(name)[0]) for name in files)))
        start = matches[0]["beginning"] if matches else ""
        rests = {match["rest"] for match in matches if match["beginning"] == start}
        for of_images in (one for one in names if rests and _near(one, folder)):
            stems = [os.path.splitext(name)[0] for name in names[of_images]]
            others = Counter(stem.removesuffix(rest) for rest in rests for stem in stems if stem.endswith(rest))
            others = Counter({begin: often for begin, often in others.items() if not MASK_WORD.match(begin)})
            for begin, often in others.most_common(1):
                called = [(folder, start), (of_images, begin)]
                by_class = all(one.rpartition("/")[2] == first.rstrip(" _.-") for one, first in called)
                if folder != of_images and (
                    _suffixes(files) <= _LOSSY or (by_class and not _IMAGE_FILE.match(begin.rstrip(" _.-")))
                ):
                    continue  # classes, such as target/target_1.png and clutter/clutter_1.png
                image, mask = (
                    f"{split_pattern(below(one, first))}{_star(name for name in names[one] if name.startswith(first))}"
                    for one, first in ((of_images, begin), (folder, start))
                )
                if 2 * often > len(rests):
                    yield (image, mask), often


def _parents(folders: Sequence[str]) -> str:
    """A pattern for folders of images with their masks beside them."""
    if folders == [""]:
        return ""
    if len({folder.count("/") for folder in folders}) > 1:
        return "**/"
    return "".join(f"{_common(values)}/" for values in zip(*(f.split("/") for f in folders), strict=True))


def _common(values: Iterable[str]) -> str:
    """Return what one name of a path is called in the pattern: the split, itself, or a wildcard."""
    different = sorted(set(values))
    if all(map(is_split, different)):
        return "{split}"
    if len(different) == 1:
        return literal(different[0])
    patterns = set(map(split_pattern, different))  # {split}_images
    return patterns.pop() if len(patterns) == 1 else "*"


def _star(names: Iterable[str]) -> str:
    """`*` with the suffix of the names, where they have one suffix."""
    suffixes = _suffixes(names)
    return "*" + (suffixes.pop() if len(suffixes) == 1 else "")


def _suffixes(names: Iterable[str]) -> set[str]:
    return {os.path.splitext(name)[1].lower() for name in names}


def pairs(tree: Inventory) -> Answers:
    """Yield the sources of images with masks, those with the most images first, and refuse masks in JPEG."""
    names = tree.names
    by_names = dict((*_parallel(names), *_side_by_side(names), *_same_names(names), *_by_beginnings(names)))
    ranked = sorted(
        by_names, key=lambda patterns: (not _TESTS.isdisjoint(split_words(patterns[0])), -by_names[patterns])
    )
    tried = set[tuple[str, str]]()
    # `_elsewhere` compares each folder of masks with every other folder: only if nothing else fits.
    for image, mask in chain(ranked, _elsewhere(names)):
        if (image, mask) in tried:
            continue
        tried.add((image, mask))
        if os.path.splitext(mask)[1] in _LOSSY:
            rule = f"{tree.root}: {mask} seem to be the masks of {image}; JPEG does not keep class numbers"
            yield Refusal("masks", SourceError(f"{rule}, so they are no masks. Write the masks as PNG"))
            continue
        doubts = list[str]()
        try:
            source = Paired(image=image, mask=mask, splits=None if "{split}" in image else FRACTIONS)
        except RecipeError as error:
            rule = f"{tree.root}: {mask} seem to be the masks of {image}, which tfprep does not read so ({error})"
            yield Refusal("masks", SourceError(rule))
            continue
        if "{split}" in image:
            paths = [below(folder, name) for folder, files in names.items() for name in files]
            compiled = [compile_pattern(pattern, "detect") for pattern in (mask, image)]
            with_masks, splits = (
                {holes["split"] for holes in map(one.match_path, paths) if holes and is_split(holes["split"])}
                for one in compiled
            )
            both, without = sorted(splits & with_masks), sorted(splits - with_masks)
            source = replace(source, splits=tuple(both) if without else None)
            doubts += [f"{', '.join(without)} has no masks, and is left out"] if without else []
        for place, part in enumerate(image.split("/")[:-1]):
            fits = compile_pattern(image, "detect").match_path
            files = (below(folder, name) for folder, few in names.items() for name in few if _NAMELESS.fullmatch(part))
            folders = Counter(path.split("/")[place] for path in files if fits(path) is not None)
            if 1 < len(folders) < folders.total():  # not a folder for each image
                few = ", ".join(sorted(folders)[:3]) + ", …" * (len(folders) > 3)
                doubt = f"the folders {few} are no labels; {{label}} for {part} in image= and mask= makes them classes"
                doubts.append(doubt + ", or group_by= keeps each in one split" * ("{split}" not in image))
        yield LayoutGuess("masks", source, f"images {image} with masks {mask}", tuple(doubts))
    for image, mask, place in _one_name_apart(names):
        called = IMAGE_WORD.fullmatch(image.split("/")[place]) and MASK_WORD.fullmatch(mask.split("/")[place])
        if called and _suffixes(names[mask]) <= _LOSSY and _mask_ending(names, image, mask) is not None:
            rule = f"{tree.root}: {mask}/ holds JPEG files beside {image}/; JPEG does not keep class numbers"
            way_out = f'those of black and white become PNG by: python -c "{_TO_PNG.format(mask)}"'
            yield Refusal("masks", SourceError(f"{rule}, so they are no masks. Write the masks as PNG; {way_out}"))


_TO_PNG = (
    "import os, pathlib; from PIL import Image; os.makedirs('{0}_png'); "
    "[Image.open(p).convert('L').point(lambda v: 255 * (v > 127)).save('{0}_png/' + p.stem + '.png') "
    "for p in pathlib.Path('{0}').iterdir()]"
)
