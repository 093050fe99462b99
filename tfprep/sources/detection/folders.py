"""Class folders, folders of splits, and images without classes: each level of folders is a name, the split, or the class."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from statistics import median

from tfprep.errors import MissingDependencyError, SampleError
from tfprep.images.phash import HASH_BITS, perceptual_hash
from tfprep.sources.detection import BY_CLASS, FRACTIONS, Proposal
from tfprep.sources.detection.files import Files, below
from tfprep.sources.detection.masks import MASK_WORD, content_of
from tfprep.sources.folder import Folder
from tfprep.sources.patterns import columns_of, is_test, literal, split_form

_IMAGE_WORD = r"i(?:mage|mg)s?|photos?|pictures?|pics?|dsc"
_PART = re.compile(
    rf"{MASK_WORD.pattern}|{_IMAGE_WORD}|jpegimages|raw|rgb|inputs?|frames|instances?|panoptic|depths?|bands?|channels?|b\d\d"
    r"|disp(?:arit(?:y|ies))?|flows?|surface_?normals|alphas?|mattes?|[hl]r|left|right|visible|vis?|thermal|infrared|n?ir"
    r"|clean|clear|noisy|haz[ey]|blur(?:red|ry)?|sharp|rain(?:y|ed)?|low|high|gray|grey|colou?r|extra|unlabell?ed",
    re.IGNORECASE,
)
"""Folders of images, or of what belongs to them, by their names: they are not classes."""
_GROUP = re.compile(
    r"(?:patient|subject|person|lesion|individual|case|study|slide|scene|video|clip|seq(?:uence)?|group|session|day|fold|part"
    r"|split|batch|chunk|shard|set|volume|cam(?:era)?|view|run|s)[ _-]?\d+"
    r"|(?:19|20)\d\d(?:[-_. ]?(?:0[1-9]|1[0-2])(?:[-_. ]?[0-3]\d(?:\D.*)?)?)?|[1-9]\d\d(?-i:[A-Z_][A-Z\d_]{4})|\d{5,}",
    re.IGNORECASE,
)
"""Folders of images that belong together: `patient001`, `2024-05-03 holiday`, `69000`, and those of cameras (DCF): `100CANON`."""
_PLAIN_NUMBER = re.compile(rf"(?:(?:{_IMAGE_WORD})[ _.-]?)?(?!0\d{{4,}}$)\d+", re.IGNORECASE)
"""Names that programs give to the files of each folder. Numbers of five digits from 0 are frames of a video."""
_SAMPLED, _NAMES = 8, 2000
_ONE_SCENE_BITS = 16
"""Perceptual hashes of unrelated pictures differ in about 32 of 64 bits, those of inverted ones in nearly all."""


def folders(files: Files) -> Iterator[Proposal]:
    """Yield class folders or images without classes; where folders are doubtful, one source for each reading."""
    deepest = max((folder.count("/") for folder in files.images), default=0)
    tests = [folder for folder in files.images if is_test(folder) and folder.count("/") < deepest]  # without classes
    inner = [folder for folder in files.images if folder not in tests]
    columns = columns_of(inner) if inner else []
    if columns is None:
        doubt = f"images are in folders of several depths: {', '.join(sorted(inner, key=len)[:3])}, ..."
        start = f"{literal(prefix)}/" if "" not in inner and (prefix := os.path.commonpath(inner)) else ""
        for image in (f"{start}{{label}}/**", f"{start}**/{{label}}/*", f"{start}**"):
            yield _proposal(image, doubts=[doubt])
        return
    places = [place for place, (form, _) in enumerate(columns) if not form]
    doubts, checks = [*_about_continued_names(files)], list[str]()
    if len(places) > 1:
        doubts.append(f"there are folders in folders ({', '.join(inner[:3])}), and nothing says which are the classes")
    elif places:
        shared, checks = _about_shared_names(files, inner, places[0])
        doubts += [*_about_classes(columns, places[0]), *shared]
    else:
        doubts += _about_names(files)
    for place in places or ([-1] if inner else []):
        levels = [form or ("{label}" if at == place else "*") for at, (form, _) in enumerate(columns)]
        yield _proposal("/".join([*levels, "**" if places and not tests else "*"]), doubts, checks)
    if doubts and places:
        yield _proposal("/".join([*(form or "*" for form, _ in columns), "*"]), doubts)


def _proposal(image: str, doubts: Sequence[str] = (), checks: Sequence[str] = ()) -> Proposal:
    by_class = "{label}" in image
    source = Folder(image, splits=None if "{split}" in image else BY_CLASS if by_class else FRACTIONS)
    return Proposal("folders" if by_class else "images", source, checks=tuple(checks), doubts=tuple(doubts))


def _about_names(files: Files) -> list[str]:
    """Return the doubt that the names of files say the class: words or small numbers that come again and again."""
    for every in files.images.values():
        names = every[:: 1 + len(every) // _NAMES]
        tokens = [re.split(r"[ _.\-]+|(?<=[A-Za-z])(?=\d)", os.path.splitext(name)[0]) for name in names]
        for place in range(max(map(len, tokens))):
            words = Counter(token[place] for token in tokens if len(token) > place)
            said = [word for word, n in words.items() if n > 1 and (re.search("[A-Za-z]", word) or len(word) <= 3)]
            if len(said) > 1 and 2 * sum(words[word] for word in said) > len(names):
                few = ", ".join(sorted(said)[:3])
                rule = f"words come again in the names of files ({few}), and may be classes"
                return [f"{rule}: as in image='{{label}}_*'"]
    return []


def _about_classes(columns: Sequence[tuple[str, list[str]]], place: int) -> Iterator[str]:
    """Yield the doubts that the names of class folders raise."""
    by_split: dict[str, set[str]] = {}
    splits = next((names for form, names in columns if "{split}" in form), [""] * len(columns[place][1]))
    for split, name in zip(splits, columns[place][1], strict=True):
        by_split.setdefault(split, set()).add(name)
    classes = sorted(set().union(*by_split.values()))
    if strange := [name for name in classes if split_form(name) == "{split}"]:
        yield f"{strange[0]}/ has the name of a split, and folders beside it do not"
    if parts := [name for name in classes if _PART.fullmatch(name) or _PART.fullmatch(re.sub(r"[ _-]?\d+$", "", name))]:
        yield f"{', '.join(parts[:3])} do not have names of classes, but of images and what belongs to them"
    if all(map(_GROUP.fullmatch, classes)):
        yield f"{', '.join(classes[:3])} have names of dates, patients or sequences, not of classes"
    training = next((split for split in sorted(by_split) if "train" in split.lower()), "")
    for split, of_split in by_split.items() if training else ():
        if strange := sorted(of_split - by_split[training]):
            yield f"{split}/ has the folders {', '.join(strange[:3])}, which {training}/ does not have"


# --- folders that hold several views of the same images -------------------------------------------------------------


def _about_continued_names(files: Files) -> Iterator[str]:
    """Yield the doubt that names continue other names, as `1_mask.png` beside `1.png`, or `1x2.png` in another folder."""
    for pair in files.pairs:
        if pair.names[0] == "*" != pair.names[1]:
            image, other = pair.folders[0]
            rule = f"the names in {other}/ begin with those in {image}/"
            beside = f"names of files in {image}/ continue other names"
            yield f"{beside if image == other else rule}, as those of masks or of other sizes of images do"
            return


def _about_shared_names(files: Files, inner: Sequence[str], place: int) -> tuple[list[str], list[str]]:
    """Return doubts and checks about files of one name in sibling folders: views of one image, or files numbered in each."""
    siblings: dict[tuple[str, ...], list[str]] = {}
    for folder in inner:
        parts = folder.split("/")
        siblings.setdefault((*parts[:place], *parts[place + 1 :]), []).append(folder)
        stems = Counter(os.path.splitext(name)[0] for name in files.images[folder])
        if 4 * sum(count > 1 for count in stems.values()) > len(stems):
            doubt = f"{folder}/ holds files of one name with several suffixes, as images and what belongs to them have"
            return [doubt], []
    checks = []
    for group in siblings.values():
        paths_of: dict[str, list[str]] = {}
        for path in (below(folder, name) for folder in group for name in files.images[folder]):
            paths_of.setdefault(os.path.splitext(path.rpartition("/")[2])[0], []).append(path)
        shared = {stem: paths for stem, paths in paths_of.items() if len(paths) > 1}
        if 3 * len(shared) > len(paths_of):
            rule = f"{group[0]}/ and {group[1]}/ hold files of the same names"
            if not all(map(_PLAIN_NUMBER.fullmatch, shared)) or _show_one_scene(files, [*shared.values()]):
                return [f"{rule}, as images and what belongs to them do"], []
            checks = [f"{rule}; each folder is taken for a class"]
    contents = {f: {content_of(files, below(f, n)) for n in files.images[f][: _SAMPLED // 2]} for f in inner[:_SAMPLED]}
    drawn, photos = ([one for one, found in contents.items() if found == {kind}] for kind in ("mask", "picture"))
    if drawn and photos:
        return [f"images in {drawn[0]}/ have few colors, as masks have, and those in {photos[0]}/ are pictures"], []
    return [], checks


def _show_one_scene(files: Files, paths: Sequence[Sequence[str]]) -> bool:
    """Return True if images of one name look alike, or like inverted copies, as views of one scene do."""
    distances = []
    for one, other, *_ in paths[:: 1 + len(paths) // _SAMPLED]:
        with suppress(SampleError, MissingDependencyError):
            hashes = (perceptual_hash(files.image(path)) for path in (one, other))
            bits = (next(hashes) ^ next(hashes)).bit_count()
            distances.append(min(bits, HASH_BITS - bits))
    return bool(distances) and median(distances) < _ONE_SCENE_BITS
