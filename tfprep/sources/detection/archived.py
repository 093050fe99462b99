"""Recognises tar and zip files of samples by the endings of their first members."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import islice
from pathlib import Path

from tfprep.errors import SourceError
from tfprep.fields import Kind, field_name_fault
from tfprep.sources.archives import Archives, members, plain_archive, split_name
from tfprep.sources.detection.folders import folders
from tfprep.sources.detection.guess import BY_CLASS, FRACTIONS, LayoutGuess, Refusal
from tfprep.sources.detection.inventory import ANNOTATIONS, Inventory, suffix_of
from tfprep.sources.detection.pairs import IMAGE_WORD, MASK_WORD, files_by_split
from tfprep.sources.folder import Folder
from tfprep.sources.patterns import IMAGE_SUFFIXES, compile_pattern
from tfprep.sources.walk import walk

_MEMBERS_READ = 20_000
"""Number of members of the first archive that are listed: a tar file of a million takes 50 s."""
_ENDINGS = (".tar", ".zip", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")


def archives(folder: Path) -> LayoutGuess | None:
    """Return the source of the archives below a folder; None if there are none with images. SourceError if one cannot be read."""
    for suffix in _ENDINGS:
        paths = [found.path for found in walk(folder, compile_pattern(f"**/*{suffix}", "detect"), Counter())]
        if not paths:
            continue
        pattern = files_by_split(paths, suffix) or f"**/*{suffix}"
        by_split = "{split}" in pattern
        names = [member.name for member in islice(members(plain_archive(folder / paths[0]), Counter()), _MEMBERS_READ)]
        guess = _guess(
            folder / paths[0], pattern, len(paths), Counter(split_name(name)[1].lower() for name in names), by_split
        )
        return None if guess is None else _with_folders(guess, folder / paths[0], names)
    return None


def _with_folders(guess: LayoutGuess, archive: Path, names: list[str]) -> LayoutGuess:
    """The guess with the classes and splits that folders inside the archive give, if members say nothing of it."""
    source = guess.source
    assert isinstance(source, Archives)
    inside: dict[str, list[str]] = {}
    for name in names:
        if suffix_of(name) in IMAGE_SUFFIXES:
            parent, _, last = name.removeprefix("./").rpartition("/")
            inside.setdefault(parent, []).append(last)
    if source.label is not None or source.fields or set(inside) == {""}:
        return guess
    tree = Inventory(archive, {one: Counter(map(suffix_of, files)) for one, files in inside.items()}, inside, {})
    found = next(folders(tree))
    if isinstance(found, Refusal):
        raise found.error
    assert isinstance(found.source, Folder)
    if found.source.image == "**":
        return guess
    if "{split}" in found.source.image:  # train.zip may hold the folder train
        source = replace(source, archives=f"**/*{''.join(Path(source.archives).suffixes[-2:])}".replace("{split}", "*"))
    splits = source.splits if "{split}" in source.archives else found.source.splits
    with_folders = replace(source, members=found.source.image, splits=splits)
    return guess._replace(
        source=with_folders,
        layout=f"{guess.layout.partition(' in ')[0]}: {found.layout}",
        doubts=(*guess.doubts, *found.doubts),
    )


def _guess(archive: Path, pattern: str, count: int, endings: Counter[str], by_split: bool) -> LayoutGuess | None:
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
        if last == "txt" and name != "key" and field_name_fault(name) == "" and name not in ("image", "label"):
            fields[name] = ("text", ending)
    fractions = BY_CLASS if label else FRACTIONS
    source = Archives(pattern, tuple(images), label, fields=fields, splits=None if by_split else fractions)
    known = {*images, label, "key.txt", *(ending for _, ending in fields.values())}
    others = sorted(ending for ending in endings if ending not in known)
    count_of_images = sum(endings[ending] for ending in images)
    notes = [one for one in others if f".{one}" in ANNOTATIONS and 2 * endings[one] < count_of_images]
    if notes and label is None and not fields:
        said = f"{archive}: the archive holds images and files of annotations ({', '.join(notes)})"
        raise SourceError(f"{said}; unpack it, and run init on the folder")
    doubts = (f"members that end in {', '.join(others)} are left out; fields= names them",) if others else ()
    return LayoutGuess("archives", source, f"{count} archives in WebDataset's convention", doubts)
