"""Recognizes files that hold many samples each: archives, tables with images as bytes (Hugging Face), videos, arrays of NumPy."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from tfprep.errors import SourceError
from tfprep.fields import Kind, field_name_fault
from tfprep.sources.archives import Archives, members, plain_archive, split_name
from tfprep.sources.arrays import Arrays, stored_arrays
from tfprep.sources.detection import BY_CLASS, FRACTIONS, LayoutGuess, Refusal
from tfprep.sources.detection.class_folders import folders
from tfprep.sources.detection.inventory import Inventory, may_annotate, suffix_of
from tfprep.sources.detection.pairs import IMAGE_WORD, MASK_WORD, files_by_split, is_split, split_pattern
from tfprep.sources.folder import Folder
from tfprep.sources.patterns import IMAGE_SUFFIXES, compile_pattern, literal, walk
from tfprep.sources.rows import column_names, declared_classes, file_columns
from tfprep.sources.table import Table
from tfprep.sources.video import VIDEO_SUFFIXES, Video

_MEMBERS_READ = 20_000
"""Number of members of the first archive that are listed: a tar file of a million takes 50 s."""
_ENDINGS = (".tar", ".zip", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")
_LABELS = ("label", "labels", "fine_label", "class", "category")
_MASKS = ("mask", "annotation", "label", "segmentation", "semantic")
_TEXTS = ("text", "caption")
_BOXES = ("objects.bbox", "objects.bboxes", "boxes")
_BOX_LABELS = ("objects.category", "objects.categories", "objects.label", "objects.labels", "box_labels")
_SECONDS = 1.0


def _paths(folder: Path, suffix: str) -> list[str]:
    return [path for path, _ in walk(folder, compile_pattern(f"**/*{suffix}", "detect"), Counter())]


def archives(folder: Path) -> LayoutGuess | None:
    """Return the source of the archives below a folder; None if there are none with images. SourceError if one cannot be read."""
    for suffix in _ENDINGS:
        if not (paths := _paths(folder, suffix)):
            continue
        first = folder / paths[0]
        names = [member.name for member in islice(members(plain_archive(first), Counter()), _MEMBERS_READ)]
        source = _of_members(first, files_by_split(paths, suffix) or f"**/*{suffix}", names)
        if source is None:
            return None
        endings = {split_name(name)[1].lower() for name in names}
        known = {*source.image, source.label, "key.txt", *(ending for _, ending in source.fields.values())}
        others = ", ".join(sorted(endings - known))
        doubts = (f"members that end in {others} are left out; fields= names them",) if others else ()
        guess = LayoutGuess("archives", source, f"{len(paths)} archives in WebDataset's convention", doubts)
        return _with_folders(guess, source, first, names)
    return None


def _of_members(archive: Path, pattern: str, names: list[str]) -> Archives | None:
    """The source of archives whose first one has members of these names; None where there is no image."""
    endings = Counter(split_name(name)[1].lower() for name in names)
    images = [ending for ending in endings if f".{ending}" in IMAGE_SUFFIXES]
    images = images or [
        one for one in endings if IMAGE_WORD.fullmatch(one.partition(".")[0]) and suffix_of(one) in IMAGE_SUFFIXES
    ]
    if not images:
        return None
    label = next((ending for ending in endings if ending.rpartition(".")[2] == "cls"), None)
    fields: dict[str, tuple[Kind, str]] = {}
    for ending in endings:
        first, _, last = ending.partition(".")
        if last and f".{last}" in IMAGE_SUFFIXES and MASK_WORD.fullmatch(first):
            fields.setdefault("mask", ("mask", ending))
    for ending in endings:  # our own exports have the key of each sample as key.txt
        name, _, last = f"text.{ending}".rpartition(".") if ending == "txt" else ending.rpartition(".")
        if last == "txt" and name not in ("key", "image", "label") and field_name_fault(name) == "":
            fields[name] = ("text", ending)
    notes = [one for one in sorted(endings) if may_annotate(f"x.{one}") and one not in (*images, "key.txt")]
    notes = [one for one in notes if 2 * endings[one] < sum(endings[ending] for ending in images)]
    if notes and label is None and not fields:
        rule = f"{archive}: the archive holds images and files of annotations ({', '.join(notes)})"
        raise SourceError(f"{rule}; unpack it, and run init on the folder")
    splits = None if "{split}" in pattern else BY_CLASS if label else FRACTIONS
    return Archives(pattern, tuple(images), label, fields=fields, splits=splits)


def _with_folders(guess: LayoutGuess, source: Archives, archive: Path, names: list[str]) -> LayoutGuess:
    """The guess with the classes and splits that folders inside the archive give, if members say nothing of it."""
    inside: dict[str, list[str]] = {}
    for name in names:
        if suffix_of(name) in IMAGE_SUFFIXES:
            parent, _, last = name.removeprefix("./").rpartition("/")
            inside.setdefault(parent, []).append(last)
    if source.label is not None or source.fields or set(inside) == {""}:
        return guess
    tree = Inventory(archive, {one: Counter(map(suffix_of, files)) for one, files in inside.items()}, inside, {})
    inner_guess = next(folders(tree))
    if isinstance(inner_guess, Refusal):
        raise SourceError(f"{inner_guess.error}; unpack the archive, and run init on the folder")
    assert isinstance(inner_guess.source, Folder)
    if inner_guess.source.image == "**":
        return guess
    if "{split}" in inner_guess.source.image:  # train.zip may hold the folder train
        source = replace(source, archives=f"**/*{''.join(Path(source.archives).suffixes[-2:])}".replace("{split}", "*"))
    splits = source.splits if "{split}" in source.archives else inner_guess.source.splits
    with_folders = replace(source, members=inner_guess.source.image, splits=splits)
    layout = f"{guess.layout.partition(' in ')[0]}: {inner_guess.layout}"
    return guess._replace(source=with_folders, layout=layout, doubts=(*guess.doubts, *inner_guess.doubts))


def parquet_images(folder: Path) -> LayoutGuess | None:
    """Return the Parquet files below a folder as a source; None if there are none with images. SourceError if one is broken."""
    if not (paths := _paths(folder, ".parquet")):
        return None
    first = folder / paths[0]
    stored, columns = file_columns(first), column_names(first)
    if not stored:
        return None
    image = "image" if "image" in stored else stored[0]
    mask = next((name for name in _MASKS if name in stored and name != image), None)
    named = [name for name in columns if "." not in name and declared_classes(first, name) is not None]
    label = next((name for name in (*named, *_LABELS) if name in columns and name not in stored), None)
    fields: dict[str, tuple[Kind, str]] = {"mask": ("mask", mask)} if mask else {}
    fields |= {name: ("text", name) for name in _TEXTS if name in columns}
    options: dict[str, Any] = {}
    doubts: list[str] = []
    if boxes := next((name for name in _BOXES if name in columns), None):
        fields["boxes"] = ("boxes", boxes)
        if f"{boxes}_shape" not in columns:  # as our own exports have it
            options["box_format"] = "xywh"
            doubts.append("boxes are taken for x, y, width and height (box_format=), as in COCO")
        if of_boxes := next((name for name in _BOX_LABELS if name in columns), None):
            fields["box_labels"] = ("label", of_boxes)
            label = None if label == of_boxes else label
    used = {name for name in (image, label, "key", *(column for _, column in fields.values())) if name}
    left = [name for name in columns if name.rpartition(".")[0] not in stored and name not in stored[:1]]
    left = [c for c in left if c.removesuffix("_shape") not in used and not any(n.startswith(f"{c}.") for n in used)]
    if left:
        doubts.append(f"this recipe does not read the columns {', '.join(left[:12])} (label=, fields=)")
    pattern = files_by_split(paths, ".parquet") or "**/*.parquet"
    for by_split in ("**/{split}.parquet", "**/{split}/*.parquet", "**/{split}-*-of-*.parquet"):  # the last that fits
        holes = [compile_pattern(by_split, "detect").match_path(path) for path in paths]
        if all(hole is not None and is_split(hole["split"]) for hole in holes):
            pattern = by_split
    options["splits"] = None if "{split}" in pattern else BY_CLASS if label else FRACTIONS
    layout = f"{len(paths)} Parquet files with images, as Hugging Face writes them"
    return LayoutGuess("table", Table(pattern, image, label, fields, **options), layout, tuple(doubts))


def videos(folder: Path) -> LayoutGuess | None:
    """Return the videos below a folder as a source; None if there are none."""
    for suffix in VIDEO_SUFFIXES:
        if paths := _paths(folder, suffix):
            parents = {tuple(path.split("/")[:-1]) for path in paths}
            by_split = all(is_split(parts[0] if parts else "") for parts in parents)
            classes = {(*parts[by_split:], "")[0] for parts in parents}
            by_class = len(classes) > 1 and "" not in classes
            pattern = f"{'{split}/' * by_split}{'{label}/' * by_class}**/*{suffix}"
            source = Video(pattern, seconds=_SECONDS, splits=None if by_split else FRACTIONS)
            doubt = f"a frame every {_SECONDS:g} s (seconds=, or every=)"
            return LayoutGuess("videos", source, f"{len(paths)} videos", (doubt,))
    return None


def arrays(folder: Path) -> LayoutGuess | None:
    """Return the arrays of NumPy's files as a source; None if there are none. SourceError if they are of another form."""
    texts = [literal(path) for path in _paths(folder, ".npy")]
    for path in _paths(folder, ".npz"):
        inside = [f"{literal(path)}:{one.name.removesuffix('.npy')}" for one in members(folder / path, Counter())]
        texts += inside or [literal(path)]
    if not texts:
        return None
    stored = {text: stored_arrays(folder, text)[0] for text in texts}
    shapes = ", ".join(f"{one.name} {one.dtype} {list(one.shape)}" for one in list(stored.values())[:6])
    images = [text for text, one in stored.items() if len(one.shape) in (3, 4) and one.dtype.kind in "uif"]
    by_name = {split_pattern(text) for text in images}
    if len(by_name) != 1 or (len(images) > 1 and "{split}" not in next(iter(by_name))):
        rule = f"{folder}: nothing says which array holds the images: {shapes}"
        raise SourceError(f"{rule}; write the recipe with sources.Arrays")
    shape = stored[images[0]].shape
    if len(shape) == 3 and shape[2] in (1, 3, 4):
        rule = f"{folder}: {shapes}: this is one image, or N of one height"
        raise SourceError(f"{rule}; expected [N, H, W] or [N, H, W, C]")
    image = images[0] if len(images) == 1 else by_name.pop()
    of_rows = [text for text, one in stored.items() if text not in images and len(one.shape) in (1, 2)]
    fitting = [text for text in of_rows if any(stored[text].shape[0] == stored[i].shape[0] for i in images)]
    labels = {split_pattern(text) if "{split}" in image else text for text in fitting}
    label = labels.pop() if len(labels) == 1 else None
    first = len(shape) == 4 and shape[1] in (1, 3, 4) and shape[3] not in (1, 3, 4)
    splits = None if "{split}" in image else BY_CLASS if label else FRACTIONS
    doubts = [f"the arrays are {shapes}: each row of {image} is an image"]
    doubts += [f"this recipe does not read {text}" for text in of_rows if label is None or text not in fitting]
    return LayoutGuess("arrays", Arrays(image, label, first, splits=splits), "arrays of NumPy", tuple(doubts))
