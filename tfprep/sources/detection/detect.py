"""Chooses the one source that explains every file of a folder, or refuses with the reason and the recipes that come nearest."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tfprep.errors import SourceError, TfprepError
from tfprep.sources.annotations.listing import ORPHAN
from tfprep.sources.detection import Layout, Proposal
from tfprep.sources.detection.annotated import coco, labelme, other_tools, voc, yolo
from tfprep.sources.detection.bundled import archives, arrays, videos
from tfprep.sources.detection.facts import PAGES, TRANSPARENT, Facts, look
from tfprep.sources.detection.files import Files, below
from tfprep.sources.detection.folders import folders
from tfprep.sources.detection.masks import masks, with_numbers
from tfprep.sources.detection.tables import tables
from tfprep.sources.folder import Folder
from tfprep.sources.paired import Paired
from tfprep.sources.patterns import compile_pattern, is_test
from tfprep.sources.pixels import Pixels
from tfprep.sources.splits import Fractions

_RULES = (yolo, coco, voc, labelme, tables, archives, arrays, videos, masks, folders)
_NAMED, _MOST_PATTERNS, _MOST_READINGS = 3, 6, 3
_MOST_WITHOUT_OBJECTS = 0.1
"""Of COCO's images 1 % have no objects, and Ultralytics advise up to 10 % of background for YOLO."""


@dataclass(frozen=True)
class Detected:
    """A source that fits a folder.

    Attributes:
        layout: The layout by its name in `tfprep.sources.detection.LAYOUTS`.
        source: The source.
        facts: What its samples are like.
        checks: What a user should check.
        doubts: Reasons to refuse it.
        left: Paths of files that it does not read and the rule does not explain.
    """

    layout: str
    source: Any
    facts: Facts
    checks: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()
    left: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """Return the source, the facts, and what should be checked, one line for each."""
        return [repr(self.source), *self.facts.lines(), *(f"check: {check}" for check in self.checks)]


class NotRecognized(SourceError):
    """No source, or several, explain every file of a folder. `readings` are the sources that come nearest."""

    def __init__(self, cause: str, readings: Sequence[Detected] = ()) -> None:
        super().__init__(cause)
        self.readings = tuple(readings)


def detect(folder: Path, layout: Layout | None = None, ignore: Sequence[str] = ()) -> Detected:
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
    found: list[Detected] = []
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
    pairs = [r for r in found if isinstance(r.source, Paired) and {"mask", "map"} & set(r.source.kinds().values())]
    without_folders = [reading for reading in found if not isinstance(reading.source, Folder)]
    if any(not reading.left for reading in pairs):
        found = without_folders  # masks and maps are not pictures of a class
    accepted = [reading for reading in found if not reading.doubts and not reading.left]
    if len(accepted) == 1:
        return accepted[0]
    if accepted:
        ways = ", ".join(dict.fromkeys(reading.layout for reading in accepted))
        raise NotRecognized(f"this folder can be read in {len(accepted)} ways ({ways}): choose one", accepted)
    found = without_folders if pairs else found
    fewest = min((len(reading.left) for reading in found), default=0)
    nearest = [reading for reading in found if len(reading.left) == fewest]
    nearest = [reading for reading in nearest if not reading.doubts] or nearest
    causes += [doubt for reading in nearest for doubt in reading.doubts]
    if nearest and fewest:
        causes.append(f"no source reads {listed_files(nearest[0].left)}")
    if not causes:
        every = files.paths()
        of_layout = f" as --as {layout} says" if layout is not None else ""
        records = ": `tfprep index` reads TFRecords in place" if "tfrecord" in "".join(every[:_NAMED]) else ""
        causes.append(f"no rule reads {listed_files(every) or f'{folder}, which is empty'}{of_layout}{records}")
    raise NotRecognized("\n".join(dict.fromkeys(causes)), nearest[:_MOST_READINGS])


def listed_files(paths: Sequence[str]) -> str:
    """Name a few files, or say how many there are in each folder with each suffix."""
    if len(paths) <= _NAMED:
        return ", ".join(paths)
    counts = Counter(map(_kind_of, paths))
    listing = ", ".join(f"{kind} ({count})" for kind, count in counts.most_common(_MOST_PATTERNS))
    return f"{len(paths)} files: {listing}" + ", …" * (len(counts) > _MOST_PATTERNS)


def ignoring(paths: Sequence[str]) -> tuple[str, ...]:
    """Return patterns that fit these paths, for `detect`; nothing if it takes too many."""
    kinds = tuple(dict.fromkeys(paths if len(paths) <= _NAMED else map(_kind_of, paths)))
    return tuple(kind.replace("[", "[[]") for kind in kinds) if len(kinds) <= _MOST_PATTERNS else ()


def _kind_of(path: str) -> str:
    folder, _, name = path.rpartition("/")
    stem, dot, suffix = name.rpartition(".")
    return below(folder, f"*{dot}{suffix}" if stem else "*")


def _examine(proposal: Proposal, files: Files, asked: bool) -> Detected:
    """Return a proposed source with its facts, the files that it leaves over, and the doubts about it.

    Raises:
        SourceError: The source does not fit the folder.
    """
    first = look(proposal.source, files.root)
    source, checks = _adjusted(proposal, files, first)
    facts = first if source is proposal.source else look(source, files.root)
    if not facts.opened or len(facts.problems) == facts.opened:
        such = "".join((": ", *facts.problems)[:2])
        raise SourceError(f"none of {facts.opened} samples that were opened can be read{such}")
    checks += _checks(source, facts)
    every = files.paths()
    unread = [path for path in every if hash(path) not in facts.used]
    patterns = [compile_pattern(text, "init") for text in proposal.declared]
    known = {*proposal.declared, *proposal.read}
    unexplained = [p for p in unread if p not in known and all(pattern.match_path(p) is None for pattern in patterns)]
    of_tests = {image for image in files.images if is_test(image) and not facts.splits.keys() & set(image.split("/"))}
    unlabeled = [
        p for p in unexplained if p in proposal.unlabeled or (files.has(p) and p.rpartition("/")[0] in of_tests)
    ]
    if unlabeled:
        checks.append(f"images of a test split have no labels, and are left out: {listed_files(unlabeled)}")
        unexplained = sorted({*unexplained} - {*unlabeled})
    checks += [f"{files.ignored} files are left out by --ignore"] if files.ignored else []
    doubts = [*proposal.doubts, *_doubts(source, facts)]
    # Members of archives, and copies of what is in Parquet, are not files of the folder.
    missing = len(facts.used) - len(every) + len(unread) if len(unread) < len(every) else 0
    checks += [f"{missing} files that the annotations name are not there (rejected)"] if missing else []
    if 10 * missing > len(facts.used):
        doubts.append(f"{missing} of {len(facts.used)} files that the annotations name are not there")
    if first.twice:
        doubts.append(f"{first.twice} images are in two samples, or in two splits")
    header = "\n".join(files.lines("README.md")).partition("configs:")[2].partition("---")[0]  # of Hugging Face
    if isinstance(source.splits, Fractions) and (named := re.findall(r"split:\s*(\w+)", header)):
        doubts.append(f"README.md names the splits {', '.join(named)}, and this recipe draws new ones")
    if asked:
        checks, doubts = [*checks, *doubts], []
    if files.ignored and any((files.root / path).is_file() and not files.holds(path) for path in facts.drawn):
        doubts.append("the source reads files that --ignore names")
    return Detected(proposal.layout, source, facts, tuple(checks), tuple(doubts), tuple(unexplained))


def _adjusted(proposal: Proposal, files: Files, facts: Facts) -> tuple[Any, list[str]]:
    """Return the source with what its samples ask for (class numbers, dtypes, splits with labels), and what to check."""
    source: Any = proposal.source
    checks = list(proposal.checks)
    if isinstance(source, Paired) and source.mask is not None:
        source, further = with_numbers(source, files, facts)
        checks += further
    if hasattr(source, "pixels") and (facts.deep or any(form.endswith(TRANSPARENT) for form in facts.forms)):
        source, further = _with_pixels(source, facts)
        checks += further
    tests = [split for split, count in facts.empty.items() if is_test(split) and count == facts.splits[split]]
    if tests and facts.objects and source.splits is None:
        source = replace(source, splits=tuple(split for split in facts.splits if split not in tests))
    if facts.twice and len(facts.splits) > 1 and source.splits is None:  # the doubt remains, and its recipe builds
        source = replace(source, splits=(max(facts.splits, key=facts.splits.__getitem__),))
    return source, checks


def _with_pixels(source: Any, facts: Facts) -> tuple[Any, list[str]]:
    """Return the source that keeps the images' own dtype and channels, with the slices of a patient in one split."""
    if not facts.deep:
        white = Pixels(background=(255, 255, 255))
        return replace(source, pixels={"image": white}), ["transparent pixels are laid over white (background=)"]
    paged = any(PAGES in form for form in facts.forms)
    source = replace(source, pixels={"image": Pixels(page=0 if paged else None)})
    checks = ["only the first page or frame of each file is taken (page=0)"] if paged else []
    if len(facts.forms) > 1:
        checks.append(
            "images differ in dtype or channels: the build rejects the less common ones (Pixels(to=, channels=))"
        )
    if isinstance(source, Folder | Paired) and isinstance(source.splits, Fractions) and "DICOM" in str(facts.forms):
        source = replace(source, splits=replace(source.splits, stratify=None, group_by="PatientID"))
    return source, checks


def _checks(source: Any, facts: Facts) -> Iterator[str]:
    """Yield what a user should check of any source."""
    if len(facts.splits) == 1 and not isinstance(getattr(source, "splits", None), Fractions):
        yield f"all samples are in the split {next(iter(facts.splits))!r}; none is left for another (splits=)"
    if (empty := "rejected, because the label is empty") in facts.tally:
        yield f"the build rejects {facts.tally[empty]} samples without a label"
    if facts.problems:
        yield f"the build rejects {len(facts.problems)} of {facts.opened} samples opened, such as {facts.problems[0]}"
    if facts.not_plain and not facts.deep:
        yield f"the build rejects images that are not 8-bit RGB ({', '.join(facts.not_plain)}), unless Pixels() is given"


def _doubts(source: Any, facts: Facts) -> Iterator[str]:
    """Yield the reasons to refuse any source."""
    words, names, total = facts.folder_words, facts.file_words, sum(facts.splits.values())
    if len(names) > 1 and sum(names.values()) == total:  # a word in some names, as of a train on rails, says nothing
        words = words | names
    if isinstance(getattr(source, "splits", None), Fractions) and (len(words) > 1 or 0 < sum(words.values()) < total):
        yield f"names say {' and '.join(sorted(words))}, and this recipe draws new splits from all of them"
    kinds = {re.sub("[^a-z]", "", split.lower()) for split in facts.splits}
    if "trainval" in kinds and len(kinds - {"test", "testing"}) > 1:
        yield f"images of {', '.join(facts.splits)} may be in two splits (splits= takes some of them)"
    if facts.empty and not facts.objects and "box_labels" in facts.kinds:
        yield "no image has an annotation"
    for split, count in facts.empty.items() if facts.objects else ():
        if count > _MOST_WITHOUT_OBJECTS * facts.splits[split]:
            yield f"{split}: {count} of {facts.splits[split]} samples have no objects; are their annotations missing?"
    if facts.other_size:
        yield f"{facts.other_size} of the masks opened have another size than their image, such as {facts.problems[0]}"
    if orphans := facts.tally.get(ORPHAN):
        yield f"{orphans} files of annotations have no image"
    for reason, count in facts.tally.items():
        if reason.startswith("image without its"):
            yield f"{count} images have no {reason.rpartition(' ')[2]}, and the build would reject them"
        if reason.startswith("image that does not fit"):
            yield f"{reason}: {count}"
    few = [path for path, drawn in facts.drawn.items() if drawn]
    if (
        isinstance(source, Folder)
        and "label" not in facts.kinds
        and len(facts.drawn) / 4 <= len(few) < len(facts.drawn)
    ):
        yield f"files such as {few[0]} have few colors, as masks have, and others are pictures"
