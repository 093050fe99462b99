"""Chooses the one source that explains every file of a folder, or refuses with the reason and the recipes that come nearest."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from tfprep.errors import SourceError, TfprepError
from tfprep.sources.annotations.listing import ORPHAN
from tfprep.sources.archives import Archives
from tfprep.sources.detection.annotated import coco, labelme, voc, yolo
from tfprep.sources.detection.facts import FEW_WRONG, Facts, Reading, Remark, look
from tfprep.sources.detection.files import ANSWERS, FEW, Files
from tfprep.sources.detection.pictures import archives, arrays, folders, masks, videos, with_classes
from tfprep.sources.detection.tables import tables
from tfprep.sources.folder import Folder
from tfprep.sources.paired import Paired
from tfprep.sources.patterns import compile_pattern, image_suffix, is_test
from tfprep.sources.pixels import Pixels
from tfprep.sources.splits import Fractions

_RULES = (yolo, coco, voc, labelme, tables, archives, arrays, videos, masks, folders)
_PIXELS = Pixels(background=(255, 255, 255)), Pixels(), Pixels(page=0)
"""What to do with images that do not become 8-bit RGB without loss."""
MOST_PATTERNS, _NAMED, _MOST_READINGS, _OF_COLORS = 6, 3, 3, 300


class NotRecognized(SourceError):
    """No source, or several, explain every file of a folder. `readings` are the sources that come nearest."""

    def __init__(self, cause: str, readings: Sequence[Reading] = ()) -> None:
        super().__init__(cause)
        self.readings = tuple(readings)


def detect(folder: Path, layout: str | None = None, ignore: Sequence[str] = ()) -> Reading:
    """Find the source that reads every data file of a folder.

    Args:
        folder: The folder.
        layout: The layout to take; its doubts become what should be checked. None for the only one that fits.
        ignore: Patterns of files to leave out, as of `fnmatch`, for paths relative to the folder.

    Returns:
        The source, and what is known about the folder.

    Raises:
        NotRecognized: No source fits, or several do.
    """
    files = Files.of(folder, ignore)
    readings, causes = _readings(files, layout)
    accepted = [one for one in readings if not one.doubts and not one.left]
    if len(accepted) == 1:
        return accepted[0]
    if accepted:
        ways = ", ".join(dict.fromkeys(one.layout for one in accepted))
        raise NotRecognized(f"this folder can be read in {len(accepted)} ways ({ways}): choose one", accepted)
    least = min(((len(one.left), bool(one.doubts)) for one in readings), default=None)
    # Masks too: a reading that leaves nothing over may take them for images.
    nearest = [one for one in readings if (len(one.left), bool(one.doubts)) == least or one.layout == "masks"]
    causes += [doubt for one in nearest for doubt in one.doubts]
    if nearest and nearest[0].left:
        other_tools = any(path.endswith((".xml", ".json", ".txt")) for path in nearest[0].left)
        fix = " (annotations of other tools: see docs/sources.md)" * other_tools
        causes.append(f"no source reads {listed_files(nearest[0].left)}{fix}")
    if not causes:
        of_layout = f" as --as {layout} says" if layout is not None else ""
        records = ": `tfprep index` reads TFRecords in place" if "tfrecord" in "".join(files.every[:_NAMED]) else ""
        causes.append(f"no rule reads {listed_files(files.every) or f'{folder}, which is empty'}{of_layout}{records}")
    raise NotRecognized("\n".join(dict.fromkeys(causes)), nearest[:_MOST_READINGS])


def _readings(files: Files, layout: str | None) -> tuple[list[Reading], list[str]]:
    """Return the sources that fit the folder, with what they leave over and what is doubtful, and why others do not fit it."""
    readings, causes, masked = list[Reading](), list[str](), False
    for rule in _RULES:
        if rule in (masks, folders) and any(not one.doubts and not one.left for one in readings):
            break  # they read images only, and would leave over what that source reads
        try:
            for proposal in rule(files):
                masked |= rule is masks
                if layout in (None, proposal.layout):
                    try:
                        readings.append(_accounted(proposal, files))
                    except TfprepError as error:
                        causes += [*proposal.doubts, str(error)]
        except TfprepError as error:
            causes.append(str(error))
    if layout is not None:
        return [replace(one, remarks=[(0, text) for _, text in one.remarks]) for one in readings], causes
    if any(isinstance(one.source, Paired) and not one.doubts for one in readings):  # masks are not of a class
        readings = [one for one in readings if not isinstance(one.source, Folder)]
    elif masked:
        readings = [one for one in readings if one.layout != "folders" or not one.doubts]
    return readings, causes


def _accounted(proposal: Reading, files: Files) -> Reading:
    """Return a proposal with the files that its source does not read and its rule does not explain, and all doubts about it."""
    source, facts, remarks = _fitted(proposal, files)
    if not facts.opened or len(facts.problems) == facts.opened:
        such = "".join((": ", *facts.problems)[:2])
        raise SourceError(f"none of {facts.opened} samples that were opened can be read{such}")
    if ignored := sum(hash(path) in facts.used for path in files.ignored):
        raise SourceError(f"the source reads {ignored} files that --ignore names: move them out of the folder")
    every, declared = files.every, {*proposal.declared}
    texts = (text for text in declared.difference(every) if re.search("[*{]", text))
    patterns = [compile_pattern(text, "init") for text in texts]
    unread = (path for path in every if hash(path) not in facts.used and path not in declared)
    unread = (path for path in unread if not ANSWERS.fullmatch(path))
    left = [path for path in unread if all(pattern.match_path(path) is None for pattern in patterns)]
    classes = {*facts.objects}.union(*facts.labels.values())
    if classes and proposal.layout != "yolo" and len(left) <= FEW:  # YOLO's say which number a class has
        left = [path for path in left if sorted(filter(classes.__contains__, files.lines(path))) != sorted(classes)]
    of_tests = {folder for folder in files.images if is_test(folder) and not facts.splits.keys() & {*folder.split("/")}}
    unlabeled = {path for path in left if image_suffix(path) and path.rpartition("/")[0] in of_tests}
    if unlabeled and any(unlabeled.issuperset(couple) for pair in files.pairs for couple in pair.files):
        unlabeled = set()  # such as masks
    remarks += [*_about_splits(source, facts, files), *_about_samples(source, facts, files)]
    such = listed_files(sorted(unlabeled))
    remarks += [(0, f"images of a test split have no labels, and are left out: {such}")] if unlabeled else []
    left = sorted({*left} - unlabeled)
    return replace(proposal, source=source, facts=facts, remarks=[*proposal.remarks, *remarks], left=left)


def _fitted(proposal: Reading, files: Files) -> tuple[Any, Facts, list[Remark]]:
    """Return the form of a proposed source with which samples can be built, facts about them, and what is to be said."""
    source, remarks = proposal.source, list[Remark]()
    looked = partial(look, root=files.root, there=files.hashes)
    facts = looked(source)
    bare = {split for split, n in facts.splits.items() if facts.empty[split] == n}
    lost = {split for split in bare if is_test(split) or not facts.objects}
    splits = tuple(split for split in facts.splits if split not in lost)
    if twice := facts.twice:  # a doubt, whose recipe builds
        splits = (max(facts.splits, key=facts.splits.__getitem__),)
    if 0 < len(splits) < len(facts.splits) and not isinstance(source.splits, Fractions | str):
        source = replace(source, splits=splits)
        facts = replace(looked(source), twice=twice)
    if isinstance(source, Paired) and source.mask is not None:
        numbered, remarks = with_classes(source, facts.masks)
        if numbered.palette:  # each color that is missed rejects the masks that have it
            numbered, remarks = with_classes(source, looked(source, samples=_OF_COLORS).masks)
        source, facts = (numbered, looked(numbered)) if numbered != source else (source, facts)
    elif facts.masks:  # of a table or an archive
        paired, remarks = with_classes(Paired("*", "masks"), facts.masks)
        if paired.numbers or paired.palette:
            remarks = [(1, f"{text}, as sources.Paired reads masks in files of their own") for _, text in remarks]
    for form in (*proposal.others, *(_PIXELS if hasattr(source, "pixels") else ())):
        if len(facts.problems) > (0 if form is _PIXELS[0] else FEW_WRONG * facts.opened):
            is_pixels = isinstance(form, Pixels)
            other = replace(source, pixels={"image": form}) if is_pixels else replace(form, splits=source.splits)
            found = looked(other)
            source, facts = (other, found) if len(found.problems) < len(facts.problems) else (source, facts)
    if isinstance(source, Folder | Paired) and isinstance(source.splits, Fractions) and facts.dicom:
        source = replace(source, splits=replace(source.splits, stratify=None, group_by="PatientID"))
    return source, facts, remarks


def _about_splits(source: Any, facts: Facts, files: Files) -> Iterator[Remark]:
    """Yield what is to be said about the splits of any source, as `_about_samples` does."""
    words, names, total = facts.folder_words, facts.file_words, sum(facts.splits.values())
    if len(names) > 1 and sum(names.values()) == total:  # a word in some names, as of a train on rails, says nothing
        words = words | names
    if isinstance(source.splits, Fractions):
        if len(words) > 1 or 0 < sum(words.values()) < total:
            yield 1, f"names say {' and '.join(sorted(words))}, and this recipe draws new splits from all of them"
        header = "\n".join(files.lines("README.md")).partition("configs:")[2].partition("---")[0]  # of Hugging Face
        if named := re.findall(r"(?:split|data_dir|drop_labels): *\S+", header):
            yield 1, f"README.md has configs with {', '.join(named)}, and this recipe draws new splits"
    elif len(facts.splits) == 1:
        yield 0, f"all samples are in the split {min(facts.splits)!r}; none is left for another (splits=)"
    else:
        training = next((split for split in sorted(facts.classes) if "train" in split.lower()), "")
        for split, classes in facts.classes.items() if training else ():
            if strange := sorted(classes - facts.classes[training]):
                such = f"{split} has the classes {', '.join(strange[:3])}, which {training} does not have"
                yield int("{label}" in repr(source)), such  # a table or an array may mean it
    trains = " ".join(split for split in facts.splits if not is_test(split))
    if " " in trains and re.search("train[_-]?val", trains, re.IGNORECASE):
        yield 1, f"images of {', '.join(facts.splits)} may be in two splits (splits= takes some of them)"
    if facts.twice:
        yield 1, f"{facts.twice} images are in two samples, or in two splits"
    if facts.copies:
        yield 1, f"{facts.copies} of {facts.opened} images opened are in two splits, with the same name and bytes"


def _about_samples(source: Any, facts: Facts, files: Files) -> Iterator[Remark]:
    """Yield what is to be said about the samples of any source, each with the share of them that may be wrong; 0 is a check."""
    if getattr(source, "pixels", None):
        yield 0, f"images opened cannot all be built without {source.pixels['image']} (pixels=)"
    if "boxes" in facts.kinds and hasattr(source, "box_format"):
        yield 0, f"boxes are taken for {source.box_format} (box_format=)"
    if files.ignored:
        yield 0, f"{len(files.ignored)} files are left out by --ignore"
    if dropped := len(facts.dropped):
        such = f"{dropped} annotations are dropped, such as {facts.dropped[0]}"
        yield dropped / (dropped + sum(facts.objects.values())), such
    for split, count in facts.empty.items():
        if count > FEW_WRONG * (total := facts.splits[split]):
            yield 1, f"{split}: {count} of {total} samples have no objects or masks; are their annotations missing?"
    for reason, count in facts.tally.items():
        if reason == ORPHAN or reason.startswith(("image without its", "image that does not fit")):
            yield 1, f"{reason}: {count}"
    if facts.problems:
        such = f"{len(facts.problems)} of {facts.opened} samples opened, such as {facts.problems[0]}"
        yield 1 if facts.unequal else len(facts.problems) / facts.opened, f"the build rejects {such}"
    few, total = [path for path, drawn in facts.drawn.items() if drawn], len(facts.drawn)
    if isinstance(source, Folder | Archives) and total > len(few) >= total / 4:
        of_few, of_pictures = ({path.rpartition("/")[0] for path in paths} for paths in (few, facts.drawn.keys() - few))
        if "label" not in facts.kinds or of_few.isdisjoint(of_pictures):
            yield 1, f"files such as {few[0]} have few colors, as masks have, and others are pictures"


def patterns_of(paths: Sequence[str]) -> Counter[str]:
    """Count files by the pattern of their folder and suffix. A few files are patterns themselves."""
    return Counter(paths if len(paths) <= _NAMED else [re.sub(r"[^/]+?(\.[^./]*)?$", r"*\1", path) for path in paths])


def listed_files(paths: Sequence[str]) -> str:
    """Name a few files, or say how many there are in each folder with each suffix."""
    counts = patterns_of(paths)
    listing = ", ".join(f"{kind} ({count})" for kind, count in counts.most_common(MOST_PATTERNS))
    more = ", …" * (len(counts) > MOST_PATTERNS)
    return ", ".join(paths) if len(paths) <= _NAMED else f"{len(paths)} files: {listing}{more}"
