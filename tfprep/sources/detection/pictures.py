"""Rules for images without annotations, which names explain: with masks, in class folders, plain; also in archives and arrays."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from itertools import chain, islice, zip_longest
from math import prod
from statistics import median

import numpy as np

from tfprep.errors import MissingDependencyError, SampleError, SourceError
from tfprep.fields import Kind
from tfprep.images import HASH_BITS, decode_image, decode_mask, perceptual_hash
from tfprep.images.pillow import opened
from tfprep.sources.archives import ARCHIVE_SUFFIXES, Archives, members, split_name
from tfprep.sources.arrays import Arrays, StoredArray, stored_arrays
from tfprep.sources.detection.facts import LOSSY, MOST_COLORS, Reading, Remark, has_few_colors
from tfprep.sources.detection.files import FEW, Files, Pair, below, may_hold_data, splits_for
from tfprep.sources.folder import Folder
from tfprep.sources.paired import CAMVID_CLASSES, Paired, cityscapes
from tfprep.sources.patterns import IMAGE_SUFFIXES, columns_of, image_suffix, is_test, literal, split_form
from tfprep.sources.raw import read_raw
from tfprep.sources.video import VIDEO_SUFFIXES, Video

_MASK_WORD = re.compile(
    r"(?:masks?|trimaps?|ann(?:o(?:t(?:ation)?)?)?s?|lab(?:els?)?|manual|seg(?:mentation)?s?|semantics?|gts?|ground[_ ]?truth"
    r"|targets?)\d*",
    re.IGNORECASE,
)
"""Names of masks."""
_NOT_CLASSES = re.compile(r"instance|panoptic|depth|disp|flow|edge|boundar|normal(?!_)|object(?!ive)", re.IGNORECASE)
"""Names of pictures whose numbers are not classes."""


def says_masks(path: str, image: str = "") -> bool:
    """Return True if words of a path, beside those of the path of the images, are those of masks with class numbers."""
    words, of_image = ({*re.split(r"[/ _.*-]|\{split\}", one), *one.split("/")} for one in (path, image))
    return any(map(_MASK_WORD.fullmatch, words - of_image)) and not _NOT_CLASSES.search(path)


_DARKEST, _OPENED, _SAMPLED, _NAMES, _MOST_THIN, _DIFFERENT_COUNTS = 64, 3, 8, 2000, 4, 2

# --- masks --------------------------------------------------------------------------------------------------------


def masks(files: Files) -> Iterator[Reading]:
    """Yield sources of images with masks."""
    if {"leftImg8bit", "gtFine"} <= set(os.listdir(files.root)):
        ends = ("color.png", "instanceIds.png", "labelTrainIds.png", "instanceTrainIds.png", "polygons.json")
        yield Reading("masks", cityscapes(), tuple(f"gtFine/**/*_gtFine_{end}" for end in ends))
        return
    few_colors = cache(partial(_few_colors, files))  # n class folders with the same names of files are n² pairs
    for pair in files.pairs:
        images_drawn, drawn = ([*map(few_colors, paths)] for paths in zip(*pair.files[:_OPENED], strict=True))
        stems = {os.path.splitext(pattern)[0] for pattern in (pair.image, pair.other)}
        named = len(stems) == 1 or says_masks(pair.other, pair.image)  # `a.jpg` and `a.png`
        lossy = named and not any(drawn) and pair.other.endswith((".jpg", ".jpeg"))
        if (lossy or all(drawn)) and not all(images_drawn):
            source = Paired(pair.image, pair.other, splits=splits_for(pair.image))
            doubt = LOSSY if lossy else f"{pair.other} may hold classes, numbers of objects, depths or edges"
            yield Reading("masks", source, remarks=[(1, doubt)] if lossy or not named else ())


def _few_colors(files: Files, path: str) -> bool:
    with suppress(SampleError):
        return image_suffix(path) and has_few_colors(read_raw(files.root, path))
    return False


def with_classes(source: Paired, masks: Sequence[bytes]) -> tuple[Paired, list[Remark]]:
    """Return the source with class numbers for these masks, and what is to be said about them. SourceError if they are none."""
    solid, colors, counts = set[int](), set[int](), list[list[int]]()
    shown: dict[int, set[bytes]] = {}
    for data in masks:
        try:
            mask = decode_mask(data)
        except SampleError:
            with suppress(SampleError):
                colors.update(np.unique(decode_image(data) @ np.array([1 << 16, 1 << 8, 1])).tolist())
            continue
        counts.append(np.unique(mask).tolist())
        corner = mask[1:, 1:]
        square = (corner == mask[:-1, 1:]) & (corner == mask[1:, :-1]) & (corner == mask[:-1, :-1])
        solid.update(np.unique(corner[square]).tolist())
        with opened(data) as image:
            palette = bytes(image.getpalette() or ()) if image.mode == "P" else b""
        for number in counts[-1] if palette else ():
            shown.setdefault(number, set()).add(palette[3 * number : 3 * number + 3])
    numbers, most = sorted({*chain(*counts)}), max(map(len, counts), default=0)
    if not numbers and 1 < len(colors) <= MOST_COLORS:
        codes = {(color >> 16, color >> 8 & 255, color & 255): number for number, color in enumerate(sorted(colors))}
        check = f"the masks opened have {len(codes)} colors, numbered in their order (palette=, classes=)"
        return replace(source, palette=codes), [(0, f"{check}; the build rejects masks of other colors")]
    if most > MOST_COLORS or (numbers and numbers[-1] > 255 and numbers != [0, 65535]):
        rule = "objects, depths or soft edges, not classes"
        raise SourceError(f"one of {source.mask} holds {most} numbers up to {numbers[-1]}: {rule}")
    thin = {*numbers} - solid
    if len(thin) > _MOST_THIN and 2 * len(thin) > len(numbers):
        rule = f"{len(thin)} of {len(numbers)} numbers in {source.mask} fill no 2 x 2 pixels, as those of soft edges"
        raise SourceError(f"{rule}: write one number for each class")
    if several := [number for number, of_number in shown.items() if len(of_number) > 1]:
        rule = f"the palettes of {source.mask} show the number {several[0]} in different colors"
        raise SourceError(f"{rule}: write masks with one palette, or without")
    if numbers in ([0, 255], [0, 65535]):
        check = f"the masks hold 0 and {numbers[1]}: two classes, 0 and 1 (numbers=)"
        return replace(source, numbers={0: 0, numbers[1]: 1}), [(0, check)]
    if numbers and numbers[-1] == len(CAMVID_CLASSES) - 1 and str(source.mask).startswith("{split}annot/"):
        check = f"the masks are taken for those of CamVid, in which {numbers[-1]} is void (void=)"
        return replace(source, classes=CAMVID_CLASSES, void=numbers[-1]), [(0, check)]
    if len(numbers) > 2 and not any(0 < number < _DARKEST for number in numbers):
        shades = ", ".join(map(str, numbers))
        return source, [(0, f"the masks hold {shades}: are these shades of gray for classes 0, 1, 2, ... (numbers=)?")]
    ends = {of_mask[-1] for of_mask in counts} - {0}
    if len(ends) > _DIFFERENT_COUNTS and all({0, *one} == {*range(one[-1] + 1)} for one in counts):
        rule = f"each mask holds 1, 2, 3, ... up to another number, at most {max(ends)}, as numbers of objects do"
        return source, [(1, f"{rule}; numbers={{0: 0, None: 1}} makes them one class")]
    return source, []


# --- folders --------------------------------------------------------------------------------------------------------

_IMAGE_WORD = r"i(?:mage|mg)s?|photos?|pictures?|pics?|dsc"
_PARTS = (
    rf"{_MASK_WORD.pattern}|{_IMAGE_WORD}|jpegimages|raw|rgb|inputs?|frames|instances?|panoptic|depths?|bands?|channels?|b\d\d"
    r"|disp(?:arit(?:y|ies))?|flows?|surface_?normals|alphas?|mattes?|[hl]r|left|right|visible|vis?|thermal|infrared|n?ir|extra|anchors?"
    r"|unlabell?ed|quer(?:y|ies)|gallery|database|index|ref(?:erence)?s?|dist(?:orted)?|contents?|styles?|sources?|fg|bg"
)
"""Words for images, or for what belongs to them: folders with such names are not classes."""
_LOOKS = (
    r"clean|clear|noisy|haz[ey]|blur(?:red|ry)?|sharp|rain(?:y|ed)?|low|high|gray|grey|colou?r|original|augmented|resized"
    r"|cropped|processed"
)
"""Words for what pictures look like. A few classes may have them, such as of the weather, but not half of the classes."""
_PART, _LOOK = (
    re.compile(rf"(?:{words})(?:[ _-]+(?:{words}))*[ _-]?\d*", re.IGNORECASE)
    for words in (_PARTS, f"{_PARTS}|{_LOOKS}")
)
GROUP = re.compile(
    r"(?:patient|subject|person|participant|driver|user|client|device|annotator|rater|lesion|individual|case|study|slide|scene"
    r"|video|clip|seq(?:uence)?|group|session|day|fold|batch|set|cam(?:era)?|view|site|hospital|cent(?:er|re))[ _-]?(?:\d+|[a-z])"
    r"|(?:jan|feb|mar|apr|may|june?|july?|aug|sep|oct|nov|dec)[a-z]*(?:\W?\d+)?|[a-z]+day|new folder.*|t?\d\d[a-z]{3}"
    r"|(?:19|20)\d\d(?:[-_. ]?(?:0[1-9]|1[0-2])(?:[-_. ]?[0-3]\d)?(?:\D.*)?)?|[1-9]\d\d(?-i:[A-Z_][A-Z\d_]{4})"
    r"|\d+x|\d{4,}|[\da-f]{8}[\da-f-]*|(?=.*[A-Za-z]|\d+\D+\d+\D+\d)(?:[^\s\d]*\d+(?!\d)){2,}[^\s\d]*",
    re.IGNORECASE,
)
"""Folders of images that belong together: `patient001`, `2024-05 holiday`, `69000`, `40X`, those of cameras (DCF): `100CANON`;
names of three numbers, or of two with letters, as days, slides and clips have: `05-01-2023`, `v_Archery_g01_c01`."""
_NUMBER_OF_CLASS = re.compile(
    r"[cfglnst]?(?:0|[1-9]\d?)|[1-9]\d\d+|n\d{8}|(?:class|type|categor|label|grade|level|stage|digit)[a-z]*[ _-]?(?:\d+|[a-z])",
    re.IGNORECASE,
)
"""Numbers of classes: `7`, `c0`, `s40`, `type_2`, WordNet's `n01440764`. `P0012`, `week_3` and `07` may be of something else."""
_BEGINNING = re.compile(r"(?:^|/)(?:([\da-f]{2,})/\1[\da-f]+|([A-Za-z])/\2[a-z]{2,}(?![a-z]).*)\.\w+$", re.IGNORECASE)
"""Files in folders of the first letters of their names, or of the first digits of their hashes."""
_PLAIN_NUMBER = re.compile(rf"(?:(?:{_IMAGE_WORD})[ _.-]?)?(?!0\d{{4,}}$)\d+", re.IGNORECASE)
"""Names that programs give to the files of each folder. Numbers of five digits from 0 are frames of a video."""
_ONE_SCENE_BITS = 16
"""Perceptual hashes of unrelated pictures differ in about 32 of 64 bits, those of inverted ones in nearly all."""


def folders(files: Files) -> Iterator[Reading]:
    """Yield class folders or images without classes: each level of folders is a name, the split, or the class.

    Where folders are doubtful, there is a source for each reading.
    """
    deepest = max((folder.count("/") for folder in files.images), default=0)
    tests = [folder for folder in files.images if is_test(folder) and folder.count("/") < deepest]  # without classes
    inner = [folder for folder in files.images if folder not in tests]
    columns = columns_of(inner) if inner else None
    patterns, remarks = list[str](), list[Remark]()
    if columns is None:
        remarks = [(1, f"images are in folders of several depths: {', '.join(sorted(inner, key=len)[:3])}, ...")]
        start = f"{literal(prefix)}/" if "" not in inner and (prefix := os.path.commonpath(inner or [""])) else ""
        patterns = [f"{start}{{label}}/**", f"{start}**/{{label}}/*", f"{start}**"] if inner else []
    else:
        places = [place for place, (form, _) in enumerate(columns) if not form]
        remarks = [*_about_pairs(files)]
        if len(places) > 1:
            remarks.append((1, f"there are folders in folders ({', '.join(inner[:3])}); which are the classes?"))
        remarks += _about_classes(files, {*columns[places[0]][1]}) if len(places) == 1 else []
        remarks += [] if places else _about_names(files)
        places += [] if places and not any(share for share, _ in remarks) else [-1]  # no level is the class
        for place in places:
            levels = [form or ("{label}" if at == place else "*") for at, (form, _) in enumerate(columns)]
            patterns.append("/".join([*levels, "**" if place >= 0 and not tests else "*"]))
    for pattern in dict.fromkeys(patterns):
        by_class = "{label}" in pattern
        source = Folder(pattern, splits=splits_for(pattern, by_class))
        own = [(share, text) for share, text in remarks if by_class or share]
        yield Reading("folders" if by_class else "images", source, remarks=own)


def _about_names(files: Files) -> Iterator[Remark]:
    """Yield the doubt that names of files say the class: words or small numbers that come again and again."""
    for every in files.images.values():
        names = every[:: 1 + len(every) // _NAMES]
        tokens = [re.split(r"[ _.\-]+|(?<=[A-Za-z])(?=\d)", os.path.splitext(name)[0]) for name in names]
        for words in map(Counter, zip_longest(*tokens, fillvalue="")):
            said = [word for word, n in words.items() if n > 1 and (re.search("[A-Za-z]", word) or 0 < len(word) <= 3)]
            if len(said) > 1 and 2 * sum(words[word] for word in said) > len(names):
                rule = f"words come again in the names of files ({', '.join(sorted(said)[:3])})"
                yield 1, f"{rule}, and may be classes: as in image='{{label}}_*'"
                return


def are_groups(names: Collection[str]) -> bool:
    """Return True if names are those of dates, patients or sequences: by their words, or as they differ in a number only."""
    forms = {re.sub(r"\d+|(?<=[ _-])[A-Za-z]$", "0", name) for name in names}
    numbers = [*map(int, names)] if forms == {"0"} else [0]
    if len(names) > len(forms) == 1 and re.fullmatch(r"0|\D.*0.*", min(forms)):
        return 1 < min(numbers) > max(numbers) - len(names) or not all(map(_NUMBER_OF_CLASS.fullmatch, names))
    return all(map(GROUP.fullmatch, names))


def _about_classes(files: Files, names: Iterable[str]) -> Iterator[Remark]:
    classes = sorted(names)
    looks = [*filter(_LOOK.fullmatch, classes)]
    if parts := looks if 2 * len(looks) >= len(classes) else [*filter(_PART.fullmatch, classes)]:
        yield 1, f"{', '.join(parts[:3])} do not have names of classes, but of images and what belongs to them"
    if are_groups(classes):
        yield 1, f"{', '.join(classes[:3])} have names of dates, patients or sequences, not of classes"
    few = (below(folder, name) for folder, of_folder in files.images.items() for name in of_folder[:FEW])
    if all(map(_BEGINNING.search, few)):
        yield 1, f"{', '.join(classes[:3])} are the beginnings of the names inside, as shards of an archive are"


def _about_pairs(files: Files) -> Iterator[Remark]:
    """Yield what is to be said about names that correspond: views of one image, or files that are numbered in each folder."""
    looked = Counter[bool]()
    for pair in files.pairs:
        image, other = (path.rpartition("/")[0] for path in pair.files[0])
        rule = f"{' and '.join(sorted((pair.image, pair.other)))} have names that correspond"
        stems = [os.path.splitext(path.rpartition("/")[2])[0] for path, _ in pair.files[:FEW]]
        is_numbered = image != other and pair.names == ("*", "*") and all(map(_PLAIN_NUMBER.fullmatch, stems))
        are_parts = image == other and "*" not in pair.names
        belong = pair.names[0] == "*" and not is_numbered
        if (is_numbered or are_parts) and looked[is_numbered] < _SAMPLED:
            looked[is_numbered] += 1
            colors = {_few_colors(files, path) for path in pair.files[0]} if are_parts else ()
            belong = len(colors) > 1 or _show_one_scene(files, pair)
        if belong:
            yield 1, f"{rule}, as images and what belongs to them have"
            return
        if is_numbered and looked[True] == 1:
            yield 0, f"{rule}; each folder is taken for a class"


def _show_one_scene(files: Files, pair: Pair) -> bool:
    """Return True if images of one name look alike, or like inverted copies, as views of one scene do."""
    distances = []
    for paths in pair.files[:_SAMPLED] if image_suffix(pair.files[0][0]) else ():
        with suppress(SampleError, MissingDependencyError):
            one, other = (perceptual_hash(read_raw(files.root, path)) for path in paths)
            bits = (one ^ other).bit_count()
            distances.append(min(bits, HASH_BITS - bits))
    return bool(distances) and median(distances) < _ONE_SCENE_BITS


# --- archives, videos and arrays ----------------------------------------------------------------------------------------

_ARCHIVES_READ, _MEMBERS_READ = 8, 20_000
"""Number of archives that are listed, and of members of each: a tar file of a million takes 50 s."""
_ARRAY_OF_CLASSES = re.compile(r"label|class|target|categor|(?<![A-Za-z])y(?![A-Za-z])", re.IGNORECASE)
_EVERY = 25
"""Frames from one that is taken to the next: about one for each second."""


def archives(files: Files) -> Iterator[Reading]:
    """Yield the source of tar or zip files with images, with the classes and splits that names inside of them give.
    SourceError if one is compressed as a whole, or cannot be read."""
    if packed := files.paths(".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst"):
        raise SourceError(f"{packed[0]} is compressed as a whole, so that no member has a place of its own: unpack it")
    paths = next(filter(None, map(files.paths, ARCHIVE_SUFFIXES)), [])
    read = (islice(members(files.root / path, Counter()), _MEMBERS_READ) for path in paths[:_ARCHIVES_READ])
    names = [*dict.fromkeys(member.name for of_archive in read for member in of_archive)]
    names = [name for name in names if may_hold_data(name.rpartition("/")[2])]
    inside: dict[str, list[str]] = {}
    for folder, _, name in (name.removeprefix("./").rpartition("/") for name in names if image_suffix(name)):
        inside.setdefault(folder, []).append(name)
    if not inside:
        return
    for at_last in (False, True):  # as in `Archives`
        parts = [split_name(name, at_last) for name in names]
        every = dict.fromkeys(ending.lower() for _, ending in parts)
        images = tuple(ending for ending in every if f".{ending.removeprefix('image.')}" in IMAGE_SUFFIXES)
        if images:
            break
    stems = {stem for stem, ending in parts if ending.lower() in images}
    endings = [*dict.fromkeys(ending.lower() for stem, ending in parts if stem in stems)]
    labels = [ending for ending in endings if ending.rpartition(".")[2] == "cls"][:1]
    masks = [end for end in endings if image_suffix(f"x.{end}") and says_masks(end.rpartition(".")[0])][:1]
    fields: dict[str, tuple[Kind, str]] = {"mask": ("mask", masks[0])} if masks else {}
    fields |= {"text": ("text", "txt")} if "txt" in endings else {}
    unknown = sorted({*every} - {*images, *labels, *masks, *(ending for _, ending in fields.values()), "key.txt"})
    doubtful = unknown != ["json"] or not (labels or fields)  # img2dataset writes JSON
    rule = f"the archive holds further files ({', '.join(unknown[:6])}): unpack it, and run init on the folder"
    remarks: list[Remark] = [(int(doubtful), f"{paths[0]}: {rule}")] if unknown else []
    pattern = re.sub(r"\d+", "*", split_form(paths[0]))
    numbers = {int(number) for path in paths for number in re.findall(r"\d+", path)[-1:]}
    if not labels and max(numbers, default=0) - min(numbers, default=0) >= max(1, len(numbers)):
        remarks.append((1, f"the names of archives ({', '.join(paths[:3])}) may be classes: their numbers have gaps"))
    splits = splits_for(pattern, bool(labels))
    source = Archives(pattern, images, next(iter(labels), None), fields=fields, splits=splits)
    if labels or fields:
        yield Reading("archives", source, (pattern,), remarks)
        return
    for inner in folders(Files(files.root / paths[0], inside)):
        inside_split = "{split}" in inner.source.image
        of_members = replace(
            source,
            archives=pattern.replace("{split}", "*") if inside_split else pattern,
            members=inner.source.image if inner.source.image != "*" else None,
            splits=None if inside_split else splits_for(pattern, "label" in inner.source.kinds()),
        )
        yield Reading("archives", of_members, (pattern,), (*remarks, *inner.remarks))


def videos(files: Files) -> Iterator[Reading]:
    """Yield the sources of the videos of each suffix, in folders of splits and of classes as images are."""
    for suffix in (one for one in VIDEO_SUFFIXES if one in files.suffixes):
        for inner in folders(replace(files, image_suffixes=(suffix,))):
            pattern = inner.source.image + "/*" * inner.source.image.endswith("**") + suffix
            source = Video(pattern, every=_EVERY, splits=splits_for(pattern))
            check = (0, f"one of {_EVERY} frames is taken (every=)")
            yield Reading("videos", source, (pattern,), (*inner.remarks, check))


def arrays(files: Files) -> Iterator[Reading]:
    """Yield the source of arrays in NumPy's files. Raises SourceError if nothing says which array holds the images."""
    if idx := [path for path in files.every if "ubyte" in path.rpartition("/")[2]]:
        rule = "is a file of MNIST's format (IDX): write it as an array of NumPy, as docs/sources.md shows"
        raise SourceError(f"{idx[0]} {rule}")
    texts = [literal(path) for path in files.paths(".npy")]
    for path in files.paths(".npz"):
        texts += [f"{literal(path)}:{one.name.removesuffix('.npy')}" for one in members(files.root / path, Counter())]
    forms: dict[str, list[StoredArray]] = {}
    for text in texts:
        form = split_form(text.replace(":", "/"), True).replace(".npz/", ".npz:")
        forms.setdefault(form, []).extend(stored_arrays(files.root, text))
    if not forms:
        return
    images = [form for form, (one, *_) in forms.items() if len(one.shape) in (3, 4) and one.dtype.kind in "uif"]
    labels = [form for form, (one, *_) in forms.items() if one.shape and prod(one.shape) == one.shape[0]]
    certain = all(map(_ARRAY_OF_CLASSES.search, labels)) and len(labels) <= 1
    shape = forms[images[0]][0].shape if images else ()
    certain &= len(images) == 1 and len(forms) == 1 + len(labels)
    shapes = ", ".join(f"{one.name} {one.dtype} {list(one.shape)}" for of_form in forms.values() for one in of_form[:2])
    first = len(shape) == 4 and shape[1] in (1, 3, 4) and shape[3] not in (1, 3, 4)
    channels = shape[1 if first else 3] if len(shape) == 4 else 1
    if not certain or shape[2:] in ((1,), (3,), (4,)) or channels > 4:
        rule = "nothing says which array holds images [N, H, W] or [N, H, W, C] of at most 4 channels, and which their classes"
        raise SourceError(f"{rule}: {shapes}; write the recipe with sources.Arrays")
    source = Arrays(images[0], next(iter(labels), None), first, splits=splits_for(images[0], bool(labels)))
    check = (0, f"the arrays are {shapes}: each row of {images[0]} is an image")
    yield Reading("arrays", source, [text.partition(":")[0] for text in texts], [check])
