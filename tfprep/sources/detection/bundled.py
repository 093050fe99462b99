"""Rules for files that hold many samples each: archives, arrays of NumPy, videos."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from math import prod

from tfprep.errors import SourceError
from tfprep.fields import Kind
from tfprep.sources.archives import ARCHIVE_SUFFIXES, Archives, members, split_name
from tfprep.sources.arrays import Arrays, StoredArray, stored_arrays
from tfprep.sources.detection import splits_for
from tfprep.sources.detection.facts import Reading, Remark
from tfprep.sources.detection.files import Files, may_hold_data
from tfprep.sources.detection.pictures import folders, says_masks
from tfprep.sources.patterns import IMAGE_SUFFIXES, image_suffix, literal, split_form
from tfprep.sources.video import VIDEO_SUFFIXES, Video

_ARCHIVES_READ, _MEMBERS_READ = 8, 20_000
"""Number of archives that are listed, and of members of each: a tar file of a million takes 50 s."""
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
        parts = [(key, ending.lower()) for key, ending in (split_name(name, at_last) for name in names)]
        endings = [*dict.fromkeys(ending for _, ending in parts)]
        images = tuple(ending for ending in endings if f".{ending.removeprefix('image.')}" in IMAGE_SUFFIXES)
        if images:
            break
    keys = {key for key, ending in parts if ending in images}
    beside = [*dict.fromkeys(ending for key, ending in parts if key in keys)]
    labels = [ending for ending in beside if ending.rpartition(".")[2] == "cls"]
    masks = [end for end in beside if image_suffix(f"x.{end}") and says_masks(end.rpartition(".")[0])]
    fields: dict[str, tuple[Kind, str]] = {"mask": ("mask", masks[0])} if masks else {}
    fields |= {"text": ("text", "txt")} if "txt" in beside else {}
    known = {*images, *labels[:1], *(ending for _, ending in fields.values()), "key.txt"}
    unknown = sorted({*endings} - known)
    remarks = list[Remark]()
    if unknown == ["json"] and (labels or fields):  # as img2dataset writes them
        remarks = [(0, "members that end in json are left out (fields=)")]
    elif unknown:
        rule = f"the archive holds further files ({', '.join(unknown[:6])})"
        remarks = [(1, f"{paths[0]}: {rule}: unpack it, and run init on the folder")]
    pattern, *others = {re.sub(r"\d+", "*", split_form(path)) for path in paths}
    if others:
        pattern = f"**/*{paths[0][-4:].lower()}"
        remarks.append((1, f"the names of archives ({', '.join(paths[:3])}) may be classes, or parts of the data"))
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
    shape = forms[images[0]][0].shape if images else ()
    unsplit = any(len(of_form) > 1 and "{split}" not in form for form, of_form in forms.items())
    shapes = ", ".join(f"{one.name} {one.dtype} {list(one.shape)}" for of_form in forms.values() for one in of_form[:2])
    certain = len(images) == 1 and len(labels) <= 1 and len(forms) == 1 + len(labels) and not unsplit
    if not certain or shape[2:] in ((1,), (3,), (4,)):
        rule = "nothing says which array holds images [N, H, W] or [N, H, W, C], and which their classes"
        raise SourceError(f"{rule}: {shapes}; write the recipe with sources.Arrays")
    first = len(shape) == 4 and shape[1] in (1, 3, 4) and shape[3] not in (1, 3, 4)
    channels = shape[1 if first else 3] if len(shape) == 4 else 1
    doubts = [(1, f"the images have more than 4 channels: {shapes}")] if channels > 4 else []
    source = Arrays(images[0], next(iter(labels), None), first, splits=splits_for(images[0], bool(labels)))
    check = (0, f"the arrays are {shapes}: each row of {images[0]} is an image")
    yield Reading("arrays", source, [text.partition(":")[0] for text in texts], [check, *doubts])
