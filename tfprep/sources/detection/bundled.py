"""Rules for files that hold many samples each: archives, arrays of NumPy, videos."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from math import prod
from typing import Any

from tfprep.errors import SourceError
from tfprep.fields import Kind, field_name_fault
from tfprep.sources.archives import ARCHIVE_SUFFIXES, Archives, members, split_name
from tfprep.sources.arrays import Arrays, stored_arrays
from tfprep.sources.detection import BY_CLASS, FRACTIONS, Proposal
from tfprep.sources.detection.files import Files, below, may_hold_data
from tfprep.sources.detection.folders import folders
from tfprep.sources.detection.masks import MASK_WORD
from tfprep.sources.patterns import IMAGE_SUFFIXES, by_form, image_suffix, literal, split_form
from tfprep.sources.video import VIDEO_SUFFIXES, Video

_ARCHIVES_READ, _MEMBERS_READ = 8, 20_000
"""Number of archives that are listed, and of members of each: a tar file of a million takes 50 s."""
_EVERY = 25
"""Frames from one that is taken to the next: about one for each second."""


def archives(files: Files) -> Iterator[Proposal]:
    """Yield the source of tar or zip files with images, with the classes and splits that names inside of them give.

    Raises:
        SourceError: An archive is compressed as a whole.
    """
    if packed := files.paths(".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst"):
        raise SourceError(f"{packed[0]} is compressed as a whole, so that no member has a place of its own: unpack it")
    suffix = next((suffix for suffix in ARCHIVE_SUFFIXES if files.paths(suffix)), "")
    paths = files.paths(suffix) if suffix else []
    forms = {re.sub(r"\d+", "*", form) for form in by_form(paths)}
    pattern = next(iter(forms)) if len(forms) == 1 else f"**/*{suffix}"
    names: list[str] = []
    for path in paths[:_ARCHIVES_READ]:
        names += [one.name for one in islice(members(files.root / path, Counter()), _MEMBERS_READ)]
    inside: dict[str, list[str]] = {}
    for folder, _, name in (path.removeprefix("./").rpartition("/") for path in names if image_suffix(path)):
        inside.setdefault(folder, []).append(name)
    if not inside:
        return
    source, checks, doubts = _of_members(paths[0], pattern, names)
    if len(forms) > 1:
        doubts = (*doubts, f"the names of archives ({', '.join(paths[:3])}) may be classes, or parts of the data")
    if source.label or source.fields:
        yield Proposal("archives", source, (pattern,), checks, doubts)
        return
    for inner in folders(Files(files.root / paths[0], inside)):
        of_folders: Any = inner.source
        by_member = "{split}" in of_folders.image
        whole = replace(
            source,
            archives=pattern.replace("{split}", "*") if by_member else pattern,
            members=of_folders.image if of_folders.image != "*" else None,
            splits=None if by_member or "{split}" in pattern else of_folders.splits,
        )
        yield Proposal("archives", whole, (pattern,), inner.checks, (*doubts, *inner.doubts))


def _of_members(archive: str, pattern: str, names: Sequence[str]) -> tuple[Archives, tuple[str, ...], tuple[str, ...]]:
    """Return the source of archives whose first one has members of these names, checks and doubts."""
    endings = Counter(split_name(name)[1].lower() for name in names)
    images = [ending for ending in endings if f".{ending.removeprefix('image.')}" in IMAGE_SUFFIXES]
    if not images:
        raise SourceError(
            f"{archive}: names such as {names[0]} do not end in the suffix of an image after their first dot"
        )
    label = next((ending for ending in endings if ending.rpartition(".")[2] == "cls"), None)
    fields: dict[str, tuple[Kind, str]] = {}
    for ending in endings:
        name, _, last = f"text.{ending}".rpartition(".") if ending == "txt" else ending.rpartition(".")
        if image_suffix(f"x.{last}") and MASK_WORD.fullmatch(name):
            fields.setdefault("mask", ("mask", ending))
        elif last == "txt" and name not in ("key", "image", "label") and not field_name_fault(name):
            fields[name] = ("text", ending)
    known = {*images, label, "key.txt", *(ending for _, ending in fields.values())}
    unknown = sorted(suffix for suffix in endings if suffix not in known and may_hold_data(f"x.{suffix}"))
    splits = None if "{split}" in pattern else BY_CLASS if label else FRACTIONS
    source = Archives(pattern, tuple(images), label, fields=fields, splits=splits)
    if unknown == ["json"] and (label or fields):  # as img2dataset writes them
        return source, ("members that end in json are left out (fields=)",), ()
    doubt = (
        f"{archive}: the archive holds further files ({', '.join(unknown[:6])}): unpack it, and run init on the folder"
    )
    return source, (), (doubt,) if unknown else ()


def videos(files: Files) -> Iterator[Proposal]:
    """Yield the sources of the videos of each suffix, in folders of splits and of classes as images are."""
    for suffix in VIDEO_SUFFIXES:
        for inner in folders(replace(files, image_suffixes=(suffix,))):
            of_folders: Any = inner.source
            pattern = of_folders.image + "/*" * of_folders.image.endswith("**") + suffix
            source = Video(pattern, every=_EVERY, splits=None if "{split}" in pattern else FRACTIONS)
            checks = (*inner.checks, f"one of {_EVERY} frames is taken (every=)")
            yield Proposal("videos", source, (pattern,), checks, inner.doubts)


def arrays(files: Files) -> Iterator[Proposal]:
    """Yield the source of arrays in NumPy's files. Raises SourceError if nothing says which array holds the images."""
    if idx := [below(place, name) for place, names in files.names.items() for name in names if "ubyte" in name]:
        rule = "is a file of MNIST's format (IDX): write it as an array of NumPy, as docs/sources.md shows"
        raise SourceError(f"{idx[0]} {rule}")
    texts = [literal(path) for path in files.paths(".npy")]
    for path in files.paths(".npz"):
        texts += [f"{literal(path)}:{one.name.removesuffix('.npy')}" for one in members(files.root / path, Counter())]
    if not texts:
        return
    stored = {text: stored_arrays(files.root, text)[0] for text in texts}
    form_of = {text: split_form(text.replace(":", "/")).replace(".npz/", ".npz:") for text in texts}
    shapes = ", ".join(f"{one.name} {one.dtype} {list(one.shape)}" for one in list(stored.values())[:6])
    images = {
        text: array.shape for text, array in stored.items() if len(array.shape) in (3, 4) and array.dtype.kind in "uif"
    }
    forms = {form_of[text] for text in images}
    shape = next(iter(images.values()), ())
    by_split = "{split}" in "".join(forms)
    one_image = len(shape) == 3 and shape[2] in (1, 3, 4)
    if len(forms) != 1 or (len(images) > 1 and not by_split) or one_image:
        rule = f"nothing says which array holds images [N, H, W] or [N, H, W, C]: {shapes}"
        raise SourceError(f"{rule}; write the recipe with sources.Arrays")
    image = forms.pop() if by_split else next(iter(images))
    first = len(shape) == 4 and shape[1] in (1, 3, 4) and shape[3] not in (1, 3, 4)
    many_channels = len(shape) == 4 and shape[1 if first else 3] > 4
    doubts = [f"the images have more than 4 channels: {shapes}"] if many_channels else []
    counts = {shape[0] for shape in images.values()}
    other_shapes = {text: array.shape for text, array in stored.items() if text not in images}
    labels = [text for text, other in other_shapes.items() if other and other[0] in counts and prod(other) == other[0]]
    spelled = {form_of[text] if by_split else text for text in labels}
    if len(spelled) > 1 or len(labels) < len(other_shapes):
        doubts.append(f"nothing says what the arrays {', '.join(other_shapes)} hold: {shapes}")
    label = min(spelled, default=None)
    splits = None if by_split else BY_CLASS if label else FRACTIONS
    declared = tuple(dict.fromkeys(text.partition(":")[0] for text in texts))
    check = f"the arrays are {shapes}: each row of {image} is an image"
    yield Proposal("arrays", Arrays(image, label, first, splits=splits), declared, (check,), tuple(doubts))
