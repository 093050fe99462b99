"""Class folders, folders of splits, and images without classes: each level of folders is a name, the split, or the class."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from tfprep.errors import SampleError
from tfprep.images import image_size
from tfprep.sources.detection import BY_CLASS, FRACTIONS, Proposal
from tfprep.sources.detection.files import Files, below, columns_of, is_test, split_form, split_words
from tfprep.sources.detection.masks import MASK_WORD, has_few_colors
from tfprep.sources.folder import Folder
from tfprep.sources.paired import Paired
from tfprep.sources.patterns import compile_pattern, literal
from tfprep.sources.raw import read_raw

_PART = re.compile(
    rf"{MASK_WORD.pattern}|i(?:mage|mg)s?|jpegimages|photos?|pictures?|raw|rgb|inputs?|frames|instances?|panoptic|depths?"
    r"|disp(?:arit(?:y|ies))?|flows?|surface_?normals|alphas?|mattes?|[hl]r|left|right|visible|vis|thermal|infrared|n?ir"
    r"|clean|clear|noisy|haz[ey]|blur(?:red|ry)?|sharp|rain(?:y|ed)?|low|high|extra|unlabell?ed",
    re.IGNORECASE,
)
"""Folders of images, or of what belongs to them, by their names: they are not classes."""
_GROUP = re.compile(
    r"(?:patient|subject|person|lesion|individual|case|study|slide|scene|video|clip|seq(?:uence)?|group|session|day|fold|part"
    r"|split|batch|chunk|shard|set|volume|cam(?:era)?|view|run|s)[ _-]?\d+"
    r"|(?:19|20)\d\d(?:[-_. ]?(?:0[1-9]|1[0-2])(?:[-_. ]?[0-3]\d(?:\D.*)?)?)?|[1-9]\d\d(?-i:[A-Z_][A-Z\d_]{4})",
    re.IGNORECASE,
)
"""Folders of images that belong together: `patient001`, `2024-05-03 holiday`, and those of cameras (DCF): `100CANON`."""
_FEW, _SAMPLED, _NAMES = 8, 4, 2000


def folders(files: Files) -> Iterator[Proposal]:
    """Yield class folders or images without classes; where folders are doubtful, one source for each reading."""
    tests = _tests(files)
    inner = [folder for folder in files.images if folder not in tests]
    columns = columns_of(inner) if inner else []
    if columns is None:
        doubt = f"images are in folders of several depths: {', '.join(sorted(inner, key=len)[:3])}, ..."
        start = f"{literal(prefix)}/" if "" not in inner and (prefix := os.path.commonpath(inner)) else ""
        for image in (f"{start}{{label}}/**", f"{start}**/{{label}}/*", f"{start}**"):
            yield _proposal(image, doubts=[doubt])
        return
    places = [place for place, (form, _) in enumerate(columns) if not form]
    forms = [form or "{label}" for form, _ in columns]
    last = "**" if places and not tests else "*"
    splits = _splits(files, "/".join([*forms, last]), inner) if tests else None
    doubts = [f"names of files in {folder}/ continue other names, as those of masks do"
              for folder in inner if _continued(files.images[folder])][:1]  # fmt: skip
    if len(places) > 1:
        doubts.append(f"there are folders in folders ({', '.join(inner[:3])}), and nothing says which are the classes")
    elif places:
        doubts += [*_about_classes(columns, places[0]), *_about_pairs(files, inner, places[0])]
    else:
        doubts += _about_names(files)
    for place in places or ([-1] if inner else []):
        levels = ["*" if form == "{label}" and at != place else form for at, form in enumerate(forms)]
        yield _proposal("/".join([*levels, last]), splits, doubts)
    if doubts and places:
        yield _proposal("/".join(["*" if form == "{label}" else form for form in forms] + ["*"]), splits, doubts)
        yield from _as_pairs(files, columns, places, forms, doubts)


def _tests(files: Files) -> list[str]:
    """Return the folders of a test split without class folders, or with a single one that is not a class of other splits."""
    deepest = max((folder.count("/") for folder in files.images), default=0)
    below_test = [folder for folder in files.images if is_test(folder) and not split_words(folder.rpartition("/")[2])]
    classes = {folder.rpartition("/")[2] for folder in files.images if split_words(folder) and not is_test(folder)}
    if len(below_test) == 1 and len(classes) > 1 and below_test[0].rpartition("/")[2] not in classes:
        return below_test
    return [folder for folder in files.images if is_test(folder) and folder.count("/") < deepest]


def _proposal(image: str, splits: tuple[str, ...] | None = None, doubts: Sequence[str] = ()) -> Proposal:
    by_class = "{label}" in image
    source = Folder(image, splits=splits if "{split}" in image else BY_CLASS if by_class else FRACTIONS)
    return Proposal("folders" if by_class else "images", source, doubts=tuple(doubts))


def _splits(files: Files, image: str, folders: Sequence[str]) -> tuple[str, ...] | None:
    """Return the splits of the images in these folders."""
    pattern = compile_pattern(image, "init")
    found = (pattern.match_path(below(folder, files.images[folder][0])) for folder in folders)
    return tuple(sorted({holes["split"] for holes in found if holes and "split" in holes})) or None


def _continued(names: Sequence[str]) -> bool:
    """Return True if a quarter of the names begin with another of them, as `1_mask.png` beside `1.png`."""
    stems = {os.path.splitext(name)[0] for name in names}
    few = [os.path.splitext(name)[0] for name in names[:_NAMES]]
    cuts = ({stem[: m.start()] for m in re.finditer(r"[ _.-]|(?<=\d)[A-Za-z]", stem)} for stem in few)
    return 4 * sum(bool(stems & of_stem) for of_stem in cuts) > len(few)


def _about_names(files: Files) -> list[str]:
    """Return the doubt that the names of files say the class: words or small numbers that come again and again."""
    for every in files.images.values():
        names = every[:: 1 + len(every) // _NAMES]
        tokens = [re.split(r"[ _.\-]+|(?<=[A-Za-z])(?=\d)", os.path.splitext(name)[0]) for name in names]
        for place in range(max(map(len, tokens))):
            words = Counter(one[place] for one in tokens if len(one) > place)
            said = [word for word, n in words.items() if n > 1 and (re.search("[A-Za-z]", word) or len(word) <= 3)]
            if len(said) > 1 and 2 * sum(words[word] for word in said) > len(names):
                few = ", ".join(sorted(said)[:3])
                return [
                    f"words come again in the names of files ({few}), and may be classes: as in image='{{label}}_*'"
                ]
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
    if parts := [name for name in classes if _PART.fullmatch(re.sub(r"[ _-]?\d+$", "", name))]:
        yield f"{', '.join(parts[:3])} are not called like classes, but like images and what belongs to them"
    if all(map(_GROUP.fullmatch, classes)):
        yield f"{', '.join(classes[:3])} are called like dates, patients or sequences, not like classes"
    training = next((split for split in sorted(by_split) if "train" in split.lower()), "")
    for split, of_split in by_split.items() if training else ():
        if strange := sorted(of_split - by_split[training]):
            yield f"{split}/ has the folders {', '.join(strange[:3])}, which {training}/ does not have"


def _about_pairs(files: Files, inner: Sequence[str], place: int) -> Iterator[str]:
    """Yield the doubt that sibling folders hold several views of the same images: equal names, or few colors in some."""
    siblings: dict[tuple[str, ...], list[str]] = {}
    for folder in inner:
        parts = folder.split("/")
        siblings.setdefault((*parts[:place], *parts[place + 1 :]), []).append(folder)
        stems = Counter(os.path.splitext(name)[0] for name in files.images[folder])
        if 4 * sum(count > 1 for count in stems.values()) > len(stems):
            yield f"{folder}/ holds files of one name with several suffixes, as images and what belongs to them have"
            return
    for group in siblings.values():
        stems_of = {folder: [os.path.splitext(name)[0] for name in files.images[folder]] for folder in group}
        often = Counter(stem for of_one in stems_of.values() for stem in of_one)
        shared = sum(count > 1 for count in often.values())
        if len(group) > 1 and 3 * shared > len(often) and not _numbered_each(stems_of):
            yield f"{group[0]}/ and {group[1]}/ hold files of the same names, as images and what belongs to them do"
            return
        if len(group) <= _FEW and (longer := _one_continues_another(stems_of)):
            yield f"the names in {longer[1]}/ begin with those in {longer[0]}/, as of masks or other sizes of images"
            return
    few = {f: {has_few_colors(files, below(f, n)) for n in files.images[f][:_SAMPLED]} for f in inner[:_FEW]}
    drawn, photos = ([folder for folder, found in few.items() if found == {kind}] for kind in (True, False))
    if drawn and photos:
        yield f"images in {drawn[0]}/ have few colors, as masks have, and those in {photos[0]}/ are pictures"


def _numbered_each(stems_of: Mapping[str, list[str]]) -> bool:
    """Return True if folders share names because each numbers its files (not as frames, `000012`), and counts differ."""
    for stems in stems_of.values():
        starts = {stem.rstrip("0123456789") for stem in stems}
        numbers = sorted(int(end) for stem in stems if (end := stem[len(stem.rstrip("0123456789")) :]))
        frames = any(re.fullmatch(r"0\d{4,}|frame.*", stem, re.IGNORECASE) for stem in stems)
        if frames or len(starts) > 1 or not numbers or numbers[0] > 1 or numbers[-1] - numbers[0] != len(stems) - 1:
            return False
    return len({len(stems) for stems in stems_of.values()}) > 1


def _ratio(files: Files, one: str, other: str) -> tuple[float, float]:
    try:
        (h0, w0), (h1, w1) = (image_size(read_raw(files.root, path)) for path in (one, other))
    except SampleError:
        return 0, 0
    return round(h0 / h1, 1), round(w0 / w1, 1)


def _one_continues_another(stems_of: Mapping[str, list[str]]) -> tuple[str, str] | None:
    """Return two folders if the names in the second begin with the names in the first: `1`, and `1_mask` or `1x2`."""
    for folder, stems in stems_of.items():
        known = set(stems)
        for other, of_other in stems_of.items():
            few = of_other[:_NAMES]
            cuts = ({stem[: m.start()] for m in re.finditer(r"[ _.-]|(?<=\d)[A-Za-z]", stem)} for stem in few)
            if folder != other and 2 * sum(bool(known & of_stem) for of_stem in cuts) > len(few):
                return folder, other
    return None


def _as_pairs(
    files: Files,
    columns: Sequence[tuple[str, list[str]]],
    places: Sequence[int],
    forms: Sequence[str],
    doubts: list[str],
) -> Iterator[Proposal]:
    """Yield two sibling folders as images with further images of their names and size."""
    names = sorted(set(columns[places[0]][1]))
    if len(places) > 1 or len(names) != 2 or not re.fullmatch("[A-Za-z][A-Za-z0-9_]*", names[1]) or names[1] == "mask":
        return
    levels = (["/".join([literal(name) if form == "{label}" else form for form in forms]), "*"] for name in names)
    image, further = map("/".join, levels)
    pattern = compile_pattern(image, "init")
    first = next(p for f, few in files.images.items() if pattern.match_path(p := below(f, few[0])))
    other = first.replace(names[0], names[1], 1)
    if files.has(other) and _ratio(files, first, other) == (1, 1):
        source = Paired(image, fields={names[1]: ("image", further)}, splits=None if "{split}" in image else FRACTIONS)
        yield Proposal("masks", source, doubts=tuple(doubts))
