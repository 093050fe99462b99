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
from tfprep.sources.detection.facts import FEW_WRONG, Facts, Reading, Remark, look
from tfprep.sources.detection.files import Files
from tfprep.sources.detection.rules import RULES, with_classes
from tfprep.sources.folder import Folder
from tfprep.sources.paired import Paired
from tfprep.sources.patterns import compile_pattern, image_suffix, is_test
from tfprep.sources.pixels import Pixels
from tfprep.sources.splits import Fractions

MOST_PATTERNS, _NAMED, _MOST_READINGS = 6, 3, 3


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
    readings.sort(key=lambda one: (len(one.left), bool(one.doubts)))
    # What leaves nothing over may take masks for images, and what leaves annotations over would lose the labels.
    nearest = [one for one in readings if not one.doubts and one.layout in ("coco", "voc", "yolo", "table", "masks")]
    nearest = nearest or [one for one in readings if len(one.left) == len(readings[0].left)]
    causes += [doubt for one in nearest for doubt in one.doubts]
    if nearest and nearest[0].left:
        causes.append(f"no source reads {listed_files(nearest[0].left)} (docs/sources.md: LabelMe and other tools)")
    if not causes:
        of_layout = f" as --as {layout} says" if layout is not None else ""
        records = ": `tfprep index` reads TFRecords in place" if "tfrecord" in "".join(files.every[:_NAMED]) else ""
        causes.append(f"no rule reads {listed_files(files.every) or f'{folder}, which is empty'}{of_layout}{records}")
    raise NotRecognized("\n".join(dict.fromkeys(causes)), nearest[:_MOST_READINGS])


def _readings(files: Files, layout: str | None) -> tuple[list[Reading], list[str]]:
    """Return the sources that fit the folder, with what they leave over and what is doubtful, and why others do not fit it."""
    proposals, readings, causes = list[Reading](), list[Reading](), list[str]()
    for rule in RULES:
        try:
            proposals.extend(rule(files))
        except TfprepError as error:
            causes.append(str(error))
    masked = layout is None and any(one.layout == "masks" for one in proposals)  # which are not images of a class
    for proposal in proposals:
        if layout in (None, proposal.layout) and not (masked and proposal.layout in ("folders", "images")):
            try:
                readings.append(_accounted(proposal, files))
            except TfprepError as error:
                causes.append(str(error))
    if layout is not None:
        readings = [replace(one, remarks=[(0, text) for _, text in one.remarks]) for one in readings]
    return readings, causes


def _accounted(proposal: Reading, files: Files) -> Reading:
    """Return a proposal with the files that its source does not read and its rule does not explain, and all doubts about it."""
    source, facts, remarks = _fitted(proposal.source, files)
    if len(facts.problems) == facts.opened:
        such = "".join((": ", *facts.problems)[:2])
        reasons = "\n".join((*proposal.doubts, f"none of {facts.opened} samples that were opened can be read{such}"))
        raise SourceError(reasons)
    if ignored := sum(hash(path) in facts.used for path in files.ignored):
        raise SourceError(f"the source reads {ignored} files that --ignore names: move them out of the folder")
    exact = {*proposal.declared}
    patterns = [compile_pattern(text, "init") for text in exact.difference(files.every) if re.search("[*{]", text)]
    unread = (path for path in files.every if hash(path) not in facts.used and path not in exact)
    left = [path for path in unread if all(pattern.match_path(path) is None for pattern in patterns)]
    of_tests = {one for one in files.image_folders if is_test(one) and facts.splits.keys().isdisjoint(one.split("/"))}
    unlabeled = {path for path in left if image_suffix(path) and path.rpartition("/")[0] in of_tests}
    if unlabeled and not any(unlabeled.issuperset(couple) for _, _, pairs in files.pairs for couple in pairs):  # masks
        left = [path for path in left if path not in unlabeled]
        such = listed_files(sorted(unlabeled))
        remarks.append((0, f"images of a test split have no labels, and are left out: {such}"))
    remarks = [*proposal.remarks, *remarks, *_about_splits(source, facts, files), *_about_samples(source, facts, files)]
    return replace(proposal, source=source, facts=facts, remarks=remarks, left=sorted(left))


def _fitted(source: Any, files: Files) -> tuple[Any, Facts, list[Remark]]:
    """Return the form of a proposed source with which samples can be built, facts about them, and what is to be said."""
    looked = partial(look, root=files.root, paths=files.hashes)
    facts = looked(source)
    bare = [split for split, count in facts.splits.items() if is_test(split) and facts.empty[split] == count]
    if 0 < len(bare) < len(facts.splits) and not isinstance(source.splits, Fractions | str):
        source = replace(source, splits=tuple(split for split in facts.splits if split not in bare))
        facts = looked(source)
    options, remarks = with_classes(source, facts)
    if options and isinstance(source, Paired):
        facts = looked(source := replace(source, **options))
    elif options:
        remarks = [(1, f"{text}, as sources.Paired reads masks in files of their own") for _, text in remarks]
    if facts.problems and hasattr(source, "pixels"):  # images that do not become 8-bit RGB without loss
        forms = (Pixels(background=(255, 255, 255)), Pixels(), Pixels(page=0))
        found = [(other, looked(other)) for other in (replace(source, pixels={"image": form}) for form in forms)]
        few = FEW_WRONG * facts.opened
        source, facts = min([(source, facts), *found], key=lambda one: max(few, len(one[1].problems)))
    return source, facts, remarks


def _about_splits(source: Any, facts: Facts, files: Files) -> Iterator[Remark]:
    """Yield what is to be said about the splits of any source, as `_about_samples` does."""
    words, names, total = facts.folder_words, facts.file_words, sum(facts.splits.values())
    if len(names) > 1 and sum(names.values()) == total:  # a word in some names, as of a train on rails, says nothing
        words = words | names
    if isinstance(source.splits, Fractions):
        if files.paths(".dcm"):
            yield 1, "DICOM files of one patient may get into two splits (splits=Fractions(..., group_by='PatientID'))"
        if len(words) > 1 or 0 < sum(words.values()) < total:
            yield 1, f"names say {' and '.join(sorted(words))}, and this recipe draws new splits from all of them"
        if re.search(rb"^configs:", files.head("README.md"), re.MULTILINE):
            yield 1, "configs: in README.md may say the splits of Hugging Face, and this recipe draws new ones"
    elif len(facts.splits) == 1:
        yield 0, f"all samples are in the split {min(facts.splits)!r}; none is left for another (splits=)"
    in_train = set[str]().union(*(of_split for split, of_split in facts.classes.items() if "train" in split.lower()))
    for split, classes in facts.classes.items():
        if in_train and (strange := sorted(classes - in_train)):
            such = ", ".join(strange[:3])
            yield int("{label}" in repr(source)), f"{split} has the classes {such}, which train does not have"
    trains = [split for split in facts.splits if not is_test(split)]
    if len(trains) > 1 and any(re.search("train[_-]?val", split, re.IGNORECASE) for split in trains):
        yield 1, f"images of {', '.join(facts.splits)} may be in two splits (splits= takes some of them)"
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
        yield dropped / (dropped + facts.labels["objects"].total()), such
    for split, count in facts.empty.items():
        if count > FEW_WRONG * (total := facts.splits[split]):
            yield 1, f"{split}: {count} of {total} samples have no objects or masks; are their annotations missing?"
    for reason, count in facts.tally.items():
        if reason == ORPHAN or reason.startswith(("image without its", "image that does not fit")):
            yield 1, f"{reason}: {count}"
    if facts.problems:
        such = f"{len(facts.problems)} of {facts.opened} samples opened, such as {facts.problems[0]}"
        yield facts.unfit_masks or len(facts.problems) / facts.opened, f"the build rejects {such}"
    few, total = [path for path, drawn in facts.drawn.items() if drawn], len(facts.drawn)
    if isinstance(source, Folder | Archives) and total > len(few) >= total / 4:
        rule = "have few colors, as masks have, and others are pictures"
        yield 1, f"files such as {few[0]} {rule} (sources.Paired or sources.cityscapes() read masks)"


def patterns_of(paths: Sequence[str]) -> Counter[str]:
    """Count files by the pattern of their folder and suffix. A few files are patterns themselves."""
    return Counter(paths if len(paths) <= _NAMED else [re.sub(r"[^/]+?(\.[^./]*)?$", r"*\1", path) for path in paths])


def listed_files(paths: Sequence[str]) -> str:
    """Name a few files, or say how many there are in each folder with each suffix."""
    counts = patterns_of(paths)
    listing = ", ".join(f"{kind} ({count})" for kind, count in counts.most_common(MOST_PATTERNS))
    more = ", …" * (len(counts) > MOST_PATTERNS)
    return ", ".join(paths) if len(paths) <= _NAMED else f"{len(paths)} files: {listing}{more}"
