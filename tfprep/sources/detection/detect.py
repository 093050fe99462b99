"""Chooses the one source that explains every file of a folder, or refuses with the reason and the recipes that come nearest."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tfprep.errors import SourceError, TfprepError
from tfprep.sources.annotations.listing import ORPHAN
from tfprep.sources.detection import Layout
from tfprep.sources.detection.annotated import coco, labelme, other_tools, voc, yolo
from tfprep.sources.detection.bundled import archives, arrays, videos
from tfprep.sources.detection.facts import MOST_COLORS, Facts, Reading, look
from tfprep.sources.detection.files import Files
from tfprep.sources.detection.pictures import folders, masks, with_classes
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
_FEW_WRONG = 0.1
"""The share of samples that may be wrong, or have no objects. Of COCO's images 1 % have none; Ultralytics advise up to 10 %."""


class NotRecognized(SourceError):
    """No source, or several, explain every file of a folder. `readings` are the sources that come nearest."""

    def __init__(self, cause: str, readings: Sequence[Reading] = ()) -> None:
        super().__init__(cause)
        self.readings = tuple(readings)


def detect(folder: Path, layout: Layout | None = None, ignore: Sequence[str] = ()) -> Reading:
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
    causes = list(other_tools(files))
    found: list[Reading] = []
    for rule in _RULES:
        try:
            for proposal in rule(files):
                if layout in (None, proposal.layout):
                    try:
                        found.append(_examine(proposal, files, layout is not None))
                    except TfprepError as error:
                        causes += proposal.doubts or [str(error)]
        except TfprepError as error:
            causes.append(str(error))
    if any(isinstance(reading.source, Paired) and not reading.doubts for reading in found):  # masks are not of a class
        found = [reading for reading in found if not isinstance(reading.source, Folder)]
    accepted = [reading for reading in found if not reading.doubts and not reading.left]
    if len(accepted) == 1:
        return accepted[0]
    if accepted:
        ways = ", ".join(dict.fromkeys(reading.layout for reading in accepted))
        raise NotRecognized(f"this folder can be read in {len(accepted)} ways ({ways}): choose one", accepted)
    found.sort(key=lambda reading: (len(reading.left), bool(reading.doubts)))
    nearest = [one for one in found if (len(one.left), bool(one.doubts)) == (len(found[0].left), bool(found[0].doubts))]
    causes += [doubt for reading in nearest for doubt in reading.doubts]
    if nearest and nearest[0].left:
        causes.append(f"no source reads {listed_files(nearest[0].left)}")
    if not causes:
        every = files.paths()
        of_layout = f" as --as {layout} says" if layout is not None else ""
        records = ": `tfprep index` reads TFRecords in place" if "tfrecord" in "".join(every[:_NAMED]) else ""
        causes.append(f"no rule reads {listed_files(every) or f'{folder}, which is empty'}{of_layout}{records}")
    raise NotRecognized("\n".join(dict.fromkeys(causes)), nearest[:_MOST_READINGS])


def patterns_of(paths: Sequence[str]) -> Counter[str]:
    """Count files by the pattern of their folder and suffix. A few files are patterns themselves."""
    return Counter(paths if len(paths) <= _NAMED else [re.sub(r"[^/]+?(\.[^./]*)?$", r"*\1", path) for path in paths])


def listed_files(paths: Sequence[str]) -> str:
    """Name a few files, or say how many there are in each folder with each suffix."""
    counts = patterns_of(paths)
    listing = ", ".join(f"{kind} ({count})" for kind, count in counts.most_common(MOST_PATTERNS))
    more = ", …" * (len(counts) > MOST_PATTERNS)
    return ", ".join(paths) if len(paths) <= _NAMED else f"{len(paths)} files: {listing}{more}"


def _examine(proposal: Reading, files: Files, asked: bool) -> Reading:
    """Return a proposed source with its facts, the files that it leaves over, and the doubts about it.

    Raises:
        SourceError: The source does not fit the folder.
    """
    source, facts, checks = _fitted([proposal.source, *proposal.others], files.root)
    if not facts.opened or len(facts.problems) == facts.opened:
        such = "".join((": ", *facts.problems)[:2])
        raise SourceError(f"none of {facts.opened} samples that were opened can be read{such}")
    every, declared = files.paths(), {*proposal.declared}
    patterns = [compile_pattern(text, "init") for text in declared.difference(every) if re.search("[*{]", text)]
    unread = (path for path in every if hash(path) not in facts.used and path not in declared)
    left = [path for path in unread if all(pattern.match_path(path) is None for pattern in patterns)]
    of_tests = {folder for folder in files.images if is_test(folder) and not facts.splits.keys() & {*folder.split("/")}}
    unlabeled = {p for p in left if p in proposal.unlabeled or (image_suffix(p) and p.rpartition("/")[0] in of_tests)}
    checks = [*proposal.checks, *checks]
    if len(facts.splits) == 1 and not isinstance(source.splits, Fractions):
        checks.append(f"all samples are in the split {next(iter(facts.splits))!r}; none is left for another (splits=)")
    if facts.problems:
        such = f"{len(facts.problems)} of {facts.opened} samples opened, such as {facts.problems[0]}"
        checks.append(f"the build rejects {such}")
    if unlabeled:
        checks.append(f"images of a test split have no labels, and are left out: {listed_files(sorted(unlabeled))}")
    if files.ignored:
        checks.append(f"{len(files.ignored)} files are left out by --ignore")
    doubts = [*proposal.doubts, *_doubts(source, facts)]
    there = sum(hash(path) in facts.used for path in every)  # copies of what is in Parquet are not files of the folder
    ignored = sum(hash(path) in facts.used for path in files.ignored)
    if missing := len(facts.used) - there - ignored if there else 0:
        such = f"{missing} of {len(facts.used)} files that the annotations name are not there (rejected)"
        (doubts if missing > _FEW_WRONG * len(facts.used) else checks).append(such)
    header = "\n".join(files.lines("README.md")).partition("configs:")[2].partition("---")[0]  # of Hugging Face
    if isinstance(source.splits, Fractions) and (named := re.findall(r"split:\s*(\w+)", header)):
        doubts.append(f"README.md names the splits {', '.join(named)}, and this recipe draws new ones")
    if asked:
        checks, doubts = [*checks, *doubts], []
    if ignored:
        doubts.append(f"the source reads {ignored} files that --ignore names: move them out of the folder")
    left = [path for path in left if path not in unlabeled]
    return replace(proposal, source=source, facts=facts, checks=checks, doubts=doubts, left=left)


def _fitted(forms: Sequence[Any], root: Path) -> tuple[Any, Facts, list[str]]:
    """Return the first form of a source with which samples can be built, facts about its samples, and what to check."""
    source, facts, checks = forms[0], look(forms[0], root), list[str]()
    if isinstance(source, Paired) and source.mask is not None:
        if 1 < len(facts.mask_colors) <= MOST_COLORS:  # each color that is missed rejects the masks that have it
            facts = look(source, root, _OF_COLORS)
        numbered, checks = with_classes(source, facts)
        source, facts = (numbered, look(numbered, root)) if numbered != source else (source, facts)
    of_pixels = [{"image": pixels} for pixels in _PIXELS if hasattr(source, "pixels")]
    for form in (*forms[1:], *of_pixels):
        if len(facts.problems) > _FEW_WRONG * facts.opened or (facts.problems and form in of_pixels[:1]):
            other = replace(source, pixels=form) if form in of_pixels else form
            found = look(other, root)
            source, facts = (other, found) if len(found.problems) < len(facts.problems) else (source, facts)
    if getattr(source, "pixels", None):
        checks.append(f"images opened cannot all be built without {source.pixels['image']} (pixels=)")
    if "boxes" in facts.kinds and hasattr(source, "box_format"):
        checks.append(f"boxes are taken for {source.box_format} (box_format=)")
    if isinstance(source, Folder | Paired) and isinstance(source.splits, Fractions) and facts.dicom:
        source = replace(source, splits=replace(source.splits, stratify=None, group_by="PatientID"))
    tests = {split for split, n in facts.splits.items() if is_test(split) and facts.objects and facts.empty[split] == n}
    twice = facts.twice
    largest = max(facts.splits, key=facts.splits.__getitem__, default="")
    splits = (largest,) if twice else tuple(split for split in facts.splits if split not in tests)
    if len(splits) < len(facts.splits) and not isinstance(source.splits, Fractions | str):
        source = replace(source, splits=splits)
        facts = replace(look(source, root), twice=twice)  # a doubt, whose recipe builds
    return source, facts, checks


def _doubts(source: Any, facts: Facts) -> Iterator[str]:
    """Yield the reasons to refuse any source."""
    words, names, total = facts.folder_words, facts.file_words, sum(facts.splits.values())
    if len(names) > 1 and sum(names.values()) == total:  # a word in some names, as of a train on rails, says nothing
        words = words | names
    if isinstance(source.splits, Fractions) and (len(words) > 1 or 0 < sum(words.values()) < total):
        yield f"names say {' and '.join(sorted(words))}, and this recipe draws new splits from all of them"
    kinds = {re.sub("[^a-z]", "", split.lower()) for split in facts.splits}
    if "trainval" in kinds and len(kinds - {"test", "testing"}) > 1:
        yield f"images of {', '.join(facts.splits)} may be in two splits (splits= takes some of them)"
    if facts.twice:
        yield f"{facts.twice} images are in two samples, or in two splits"
    if facts.copies:
        yield f"{facts.copies} of {facts.opened} images opened are in another split too, with the same name and bytes"
    if len(facts.problems) > _FEW_WRONG * facts.opened:
        yield f"{len(facts.problems)} of {facts.opened} samples opened are wrong, such as {facts.problems[0]}"
    for split, count in facts.empty.items():
        if count > _FEW_WRONG * facts.splits[split]:
            yield f"{split}: {count} of {facts.splits[split]} samples have no objects; are their annotations missing?"
    for reason, count in facts.tally.items():
        if reason == ORPHAN or reason.startswith(("image without its", "image that does not fit")):
            yield f"{reason}: {count}"
    few = [path for path, drawn in facts.drawn.items() if drawn]
    if (
        isinstance(source, Folder)
        and "label" not in facts.kinds
        and len(facts.drawn) > len(few) >= len(facts.drawn) / 4
    ):
        yield f"files such as {few[0]} have few colors, as masks have, and others are pictures"
