"""Chooses the one source that explains every file of a folder, or refuses with the reason and the recipes that come nearest."""

from __future__ import annotations

import heapq
import os
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from tfprep import images
from tfprep.errors import MissingDependencyError, SampleError, SourceError, TfprepError
from tfprep.fields import Array, Kind, Size
from tfprep.images.pillow import opened
from tfprep.seeding import sample_hash
from tfprep.sources import Archives, Entry, FieldDecoder, Folder, Fractions, Listing, Paired, Pixels, Source, read_files
from tfprep.sources.annotations.listing import ORPHAN
from tfprep.sources.detection.files import Files
from tfprep.sources.detection.rules import RULES, Proposal, Remark
from tfprep.sources.paired import CAMVID_CLASSES
from tfprep.sources.patterns import compile_pattern, image_suffix, is_test, split_words
from tfprep.sources.raw import parse_reference, read_raw

MOST_LISTED, _NAMED, _SHOWN, _MOST_READINGS = 6, 3, 12, 3
"""Number of patterns, files, classes and recipes that are named at most."""
_FEW_WRONG = 0.1
"""The share of samples that may be wrong, or have no objects. Of COCO's images 1 % have none; Ultralytics advise up to 10 %."""
_SAMPLES = 24
"""Number of samples that are opened: those with the smallest hashes, which is a fair and repeatable choice."""
_MOST_COLORS = 64
"""A mask has one color or number for each class; a picture has thousands."""
_UNREAD = (ORPHAN, "image without its", "image that does not fit")
"""How sources name files that they pass over."""
_SIDE_SEEN, _PIXELS_PER_COLOR, _DIFFERENT_COUNTS, _KEYS_SEEN = 256, 8, 2, 100_000
_SERIES = "(.*[0-9][^/]*)[._ -][^/._ -]*[.][^./]+$|(.+)"
"""Finds what the names of frames, slices or copies have in common: a number, and what is before the end: `video1_002.jpg`."""


@dataclass
class Facts:
    """Facts about the samples of a source, as `look` collects them. Those from `opened` on are of the few that it opens."""

    kinds: Mapping[str, Kind]  # of each field
    splits: Counter[str] = field(default_factory=Counter)  # number of samples
    labels: dict[str, Counter[str]] = field(default_factory=dict)  # of samples or objects, by field and class
    classes: dict[str, set[str]] = field(default_factory=dict)  # of the samples in each split
    empty: Counter[str] = field(default_factory=Counter)  # by split: without an object, or a file beside the image
    tally: Counter[str] = field(default_factory=Counter)  # what the source passed over
    dropped: list[str] = field(default_factory=list)  # what is wrong with annotations that the source drops
    used: set[int] = field(default_factory=set)  # `hash` of the path of each file that samples are made of
    folder_words: Counter[str] = field(default_factory=Counter)  # words for splits in their folders
    file_words: Counter[str] = field(default_factory=Counter)  # and in the names of their files
    folders: set[str] = field(default_factory=set)  # of the samples
    series: Counter[str] = field(default_factory=Counter)  # number of samples by what `_SERIES` finds, or ""
    opened: int = 0
    problems: list[str] = field(default_factory=list)  # what is wrong with samples
    unfit_masks: int = 0  # number of masks that are JPEGs, or of another size than their images
    sizes: list[Size] = field(default_factory=list)  # (height, width)
    turned: int = 0  # number of images that their EXIF orientation turns
    deep: bool = False  # True if images do not become 8-bit RGB
    drawn: dict[str, bool] = field(default_factory=dict)  # by key: has the image few colors, as masks have?
    mask_numbers: dict[str, set[int]] = field(default_factory=dict)  # class numbers in masks by field
    masks: list[list[int]] = field(default_factory=list)  # the numbers of each mask
    palettes: set[bytes] = field(default_factory=set)  # of masks whose numbers are not changed
    copies: int = 0  # number of images that another split has too, with the same name and bytes


@dataclass(frozen=True)
class Reading:
    """One way to read a folder: a source that a rule proposes, and what is found out about it."""

    layout: str  # by its name in `tfprep.sources.detection.LAYOUTS`
    source: Any
    remarks: Sequence[Remark] = ()
    facts: Facts = field(default_factory=lambda: Facts({}))
    left: Sequence[str] = ()  # paths of files that it does not read and the rule does not explain

    @property
    def doubts(self) -> list[str]:
        """The reasons to refuse the source unless the user asks for it."""
        return [text for share, text in self.remarks if share > _FEW_WRONG]

    def lines(self) -> list[str]:
        """Return the source, the facts, and what should be checked, one line for each."""
        facts = self.facts
        lines = [repr(self.source), f"{facts.splits.total()} samples: {_counted(facts.splits)}"]
        lines += [f"{name}: {len(counts)} classes: {_counted(counts)}" for name, counts in facts.labels.items()]
        further = [f"{name} ({kind})" for name, kind in facts.kinds.items() if name not in ("image", *facts.labels)]
        lines += [f"further fields: {', '.join(further)}"] if further else []
        by_area = sorted(facts.sizes, key=lambda size: size[0] * size[1])
        sizes = dict.fromkeys(f"{width} x {height}" for height, width in (*by_area[:1], *by_area[-1:]))
        lines += [f"image sizes (width x height), {len(facts.sizes)} opened: {' to '.join(sizes)}"] if sizes else []
        lines += [f"turned by EXIF, {len(facts.sizes)} opened: {facts.turned}"] if facts.turned else []
        lines += ["images are not 8-bit RGB, and are stored without loss"] if facts.deep else []
        for name, numbers in facts.mask_numbers.items():
            lines.append(f"{name}: class numbers {', '.join(map(str, sorted(numbers)))} in the masks opened")
        lines += [f"{reason}: {count}" for reason, count in facts.tally.items()]
        return [*lines, *(f"check: {text}" for _, text in self.remarks)]


class NotRecognized(SourceError):
    """No source, or several, explain every file of a folder. `readings` are the sources that come nearest."""

    def __init__(self, cause: str, readings: Sequence[Reading] = ()) -> None:
        super().__init__(cause)
        self.readings = tuple(readings)


def detect(folder: Path, layout: str | None = None, ignore: Sequence[str] = ()) -> Reading:
    """Return the source that reads every data file of a folder, with what is known about it.

    `layout` is the layout to take, whose doubts become what should be checked; None for the only one that fits. `ignore` are
    patterns of files to leave out, as of `fnmatch`, for paths relative to the folder. NotRecognized if no source or several fit.
    """
    files = Files.of(folder, ignore)
    proposals, readings, causes = list[Proposal](), list[Reading](), list[str]()
    for rule in RULES:
        try:
            proposals.extend(rule(files))
        except TfprepError as error:
            causes.append(str(error))
    wanted = {kind for kind, *_ in proposals if layout in (None, kind)}
    if layout is None and "masks" in wanted:  # which are not images of a class
        wanted -= {"folders", "images"}
    for kind, *proposal in proposals:
        try:
            if kind in wanted:
                readings.append(_accounted(files, kind, *proposal))
        except TfprepError as error:
            causes.append(str(error))
    if layout is not None:
        readings = [replace(one, remarks=[(0, text) for _, text in one.remarks]) for one in readings]
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


def _accounted(files: Files, layout: str, source: Any, declared: Sequence[str], said: Sequence[Remark]) -> Reading:
    """Return a proposal with the files that its source does not read and its rule does not explain, and all doubts about it."""
    source, facts, remarks = _fitted(source, files)
    if len(facts.problems) == facts.opened:
        doubts = [text for share, text in said if share > _FEW_WRONG]
        rule = f"none of {facts.opened} samples that were opened can be read: {''.join(facts.problems[:1])}"
        raise SourceError("\n".join([*doubts, rule]))
    if ignored := sum(hash(path) in facts.used for path in files.ignored):
        raise SourceError(f"the source reads {ignored} files that --ignore names: move them out of the folder")
    explained = {*declared}
    patterns = [compile_pattern(text, "init") for text in explained.difference(files.every) if re.search("[*{]", text)]
    left = [path for path in files.every if hash(path) not in facts.used and path not in explained]
    left = [path for path in left if all(pattern.match_path(path) is None for pattern in patterns)]
    of_tests = (path for path in left if image_suffix(path) and is_test(path.rpartition("/")[0]))
    known = {*facts.splits, *chain(*facts.labels.values())}
    unlabeled = {path for path in of_tests if known.isdisjoint(path.split("/"))}
    have_masks = any(unlabeled.issuperset(both) for _, _, pairs in files.pairs for both in pairs)
    if unlabeled and not have_masks:
        left = [path for path in left if path not in unlabeled]
        such = listed_files(sorted(unlabeled))
        remarks.append((0, f"images of a test split have no labels, and are left out: {such}"))
    remarks = [*said, *remarks, *_vetoes(source, facts, files)]
    return Reading(layout, source, remarks, facts, sorted(left))


def _fitted(source: Any, files: Files) -> tuple[Any, Facts, list[Remark]]:
    """Return the form of a proposed source with which samples can be built, facts about them, and what is to be said."""
    looked = partial(look, root=files.root, paths=files.hashes)
    facts, remarks = looked(source), list[Remark]()
    bare = [split for split, count in facts.splits.items() if is_test(split) and facts.empty[split] == count]
    if 0 < len(bare) < len(facts.splits) and not isinstance(source.splits, Fractions | str):
        source = replace(source, splits=tuple(split for split in facts.splits if split not in bare))
        facts = looked(source)
    if facts.problems and hasattr(source, "pixels"):  # images that do not become 8-bit RGB without loss
        forms = (Pixels(background=(255, 255, 255)), Pixels(), Pixels(page=0))
        few = _FEW_WRONG * facts.opened
        found = [(other, looked(other)) for other in (replace(source, pixels={"image": form}) for form in forms)]
        source, facts = min([(source, facts), *found], key=lambda one: max(few, len(one[1].problems)))
        if source.pixels == {"image": forms[-1]}:
            remarks.append((0, "images have several pages, and the first one is read (page=)"))
    numbers = sorted({*chain(*facts.masks)})
    if isinstance(source, Paired) and numbers in ([0, 255], [0, 65535]):
        source = replace(source, numbers={0: 0, numbers[1]: 1})
        facts = looked(source)
        remarks.append((0, f"the masks hold 0 and {numbers[1]}: two classes, 0 and 1 (numbers=)"))
    elif isinstance(source, Paired) and numbers[-1:] == [11] and str(source.mask).startswith("{split}annot/"):
        source = replace(source, classes=CAMVID_CLASSES, void=11)
        facts = looked(source)
        remarks.append((0, "the masks are taken for those of CamVid, in which 11 is void (void=)"))
    return source, facts, remarks


def look(source: Source, root: Path, paths: Collection[int] = ()) -> Facts:
    """List all samples and open some of them. `paths` is the `hash` of the path of each file of the folder.
    SourceError if the source does not fit the folder."""
    listing = source.scan(root)
    facts = Facts(listing.kinds)
    chosen = heapq.nlargest(_SAMPLES, _counted_entries(facts, listing, paths), lambda entry: -sample_hash(0, entry.key))
    facts.tally = +(facts.tally + Counter(listing.tally))
    facts.opened = len(chosen)
    facts.mask_numbers = {name: set() for name, kind in listing.kinds.items() if kind == "mask"}
    for entry in chosen:
        try:
            _open(facts, source, root, listing, entry)
        except (SampleError, MissingDependencyError) as error:
            facts.problems.append(f"{entry.key}: {error}")
    return facts


def _counted_entries(facts: Facts, listing: Listing, paths: Collection[int]) -> Iterator[Entry]:
    """Yield the entries, and count them. SourceError at the end if two are of one image."""
    names = {name: listing.classes[name] for name in listing.values if listing.kinds.get(name) == "label"}
    names |= {"objects": listing.classes.get("box_labels", ())} if "objects" in listing.values else {}
    facts.labels = {name: Counter(dict.fromkeys(classes, 0)) for name, classes in names.items()}
    references = set[int]()
    for entry in listing.entries:
        references.add(hash(entry.files[0]))
        image, *beside = (hash(parse_reference(file).file) for file in entry.files)
        facts.used.update((image, *beside))
        facts.empty[entry.split] += image in paths and any(path not in paths for path in beside)
        facts.splits[entry.split] += 1
        folder, _, file = entry.key.rpartition("/")
        facts.folders.add(folder)
        facts.folder_words.update({*split_words(folder)})
        facts.file_words.update(split_words(file)[:1])
        if len(references) <= _KEYS_SEEN:
            facts.series.update(re.findall(_SERIES, entry.key)[0][:1])
        values = dict(zip(listing.values, entry.values, strict=True))
        if "objects" in values:
            facts.empty[entry.split] += not values["objects"]["objects"]
            facts.dropped += values["objects"].get("dropped", ())
            values["objects"] = [one["label"] for one in values["objects"]["objects"] if one.get("label") is not None]
        for name, of_field in names.items():
            facts.tally["rejected, because the label is empty"] += values[name] is None
            numbers = values[name] if isinstance(values[name], list) else [values[name]]
            classes = [of_field[number] for number in numbers if number is not None]
            facts.labels[name].update(classes)
            facts.classes.setdefault(entry.split, set()).update(classes)
        yield entry
    if twice := sum(facts.splits.values()) - len(references):
        raise SourceError(f"{twice} images are in two samples, or in two splits")


def _open(facts: Facts, source: Source, root: Path, listing: Listing, entry: Entry) -> None:
    """Add what is found in the files of a sample. Raises SampleError if it cannot be built."""
    decoders: Mapping[str, FieldDecoder] = getattr(source, "decoders", dict)()
    image = next((name for name, kind in listing.kinds.items() if kind == "image"), "")
    raw: dict[str, Any] = {**read_files(root, listing.files, entry)}
    raw |= zip(listing.values, entry.values, strict=True)
    decoded: dict[str, Array] = {}
    size = decoders[image].size(raw) if image in decoders else None
    if "image" in raw:
        folder, slash, name = entry.files[0].rpartition("/")
        twins = {folder.replace(entry.split, split) + slash + name for split in facts.splits} - {entry.files[0]}
        facts.copies += any((root / twin).is_file() and read_raw(root, twin) == raw["image"] for twin in twins)
        facts.turned += images.file_orientation(raw["image"], 0) > 1
        facts.drawn[entry.key] = False
        if size is None:
            size = images.image_size(raw["image"])
        if image not in decoders and not images.is_jpeg(raw["image"]):
            decoded[image] = images.decode_image(raw["image"], background=None)
    if size is not None:
        facts.sizes.append(size)
    decoded |= {name: decoder.decode(raw, size) for name, decoder in decoders.items()}
    if image in decoded:
        pixels = decoded[image]
        facts.deep |= pixels.dtype != np.uint8 or pixels.shape[2] != 3
        facts.drawn[entry.key] = _has_few_colors(pixels) and not images.is_jpeg(raw.get("image", b""))
    for name, numbers in facts.mask_numbers.items():
        facts.unfit_masks += 1  # if this fails
        if isinstance(raw.get(name), bytes) and images.is_jpeg(raw[name]):
            raise SampleError("JPEG does not keep class numbers: write masks as PNG")
        mask = decoded[name] if name in decoded else images.decode_mask(raw[name])
        if size is not None and mask.shape[:2] != size:
            sizes = [f"{width} x {height}" for height, width in (mask.shape[:2], size)]
            raise SampleError(f"{name} is {sizes[0]}, and its image {sizes[1]}")
        facts.unfit_masks -= 1
        of_mask = np.unique(mask).tolist()
        numbers.update(of_mask)
        if name not in decoders:
            facts.masks.append(of_mask)
            with opened(raw[name]) as image_of_mask:
                facts.palettes.add(bytes(image_of_mask.getpalette() or ()))


def _has_few_colors(pixels: Array) -> bool:
    step = 1 + max(pixels.shape[:2]) // _SIDE_SEEN
    seen = pixels[::step, ::step].reshape(-1, pixels.shape[2])
    return len(np.unique(seen, axis=0)) <= min(_MOST_COLORS, len(seen) // _PIXELS_PER_COLOR)


def _vetoes(source: Any, facts: Facts, files: Files) -> Iterator[Remark]:
    """Yield what is to be said about any source, each with the share of samples that may be wrong; 0 is a check."""
    draws, total, splits = isinstance(source.splits, Fractions), facts.splits.total(), ", ".join(facts.splits)
    words = facts.folder_words
    if len(facts.file_words) > 1 and facts.file_words.total() == total:  # `train` in some names may be one on rails
        words = words | facts.file_words
    series = facts.series.keys() - {""}
    frames = facts.series.total() - facts.series[""]
    of_series = {os.path.dirname(name) for name in series}
    are_frames = frames > facts.series[""] and len(of_series) < len(series) <= frames / 2
    dropped = len(facts.dropped)
    drawn = [path for path, is_drawn in facts.drawn.items() if is_drawn and isinstance(source, Folder | Archives)]
    numbers = sorted({*chain(*facts.masks)})
    most_objects = {of_mask[-1] for of_mask in facts.masks} - {0}
    of_objects = all({0, *of_mask} == {*range(of_mask[-1] + 1)} for of_mask in facts.masks)
    in_train = set[str]().union(*(classes for split, classes in facts.classes.items() if "train" in split.lower()))
    strange = {split: sorted(classes - in_train)[:3] for split, classes in facts.classes.items() if in_train}
    single = [name for name, count in facts.labels.get("label", {}).items() if count == 1]
    wrong = f"{len(facts.problems)} of {facts.opened} samples opened, such as {''.join(facts.problems[:1])}"
    for share, applies, text in (
        (1, draws and files.paths(".dcm"), "DICOM files of one patient may get into two splits (group_by='PatientID')"),
        (1, draws and (len(words) > 1 or 0 < words.total() < total),
         f"names say {' and '.join(sorted(words))}, and this recipe draws new splits from all of them"),
        (1, draws and re.search(rb"(?m)^configs:", files.head("README.md")), "configs: in README.md may say the splits"),
        (0, draws and are_frames, f"frames of one series, such as {min(series, default='')}*, may get into two splits "
         f"(splits=Fractions(..., group_by={_SERIES!r}))"),
        (0, draws and not isinstance(source, Archives) and "label" not in facts.kinds and len(facts.folders) > 1,
         f"images of one folder, such as {min(facts.folders)}, may get into two splits (group_by='(.*)/')"),
        (0, draws and single, f"classes with one sample, such as {''.join(single[:1])}, are in one split only"),
        (0, not draws and len(facts.splits) == 1, f"all samples are in the split {splits!r}; none is left for another"),
        (1, re.search("(?i)train[_-]?val", splits) and sum(not is_test(split) for split in facts.splits) > 1,
         f"images of {splits} may be in two splits (splits= takes some of them)"),
        (1, facts.copies, f"{facts.copies} of {facts.opened} images opened are in two splits, with the same name and bytes"),
        *((int("{label}" in repr(source)), classes, f"{split} has the classes {', '.join(classes)}, which train does not have")
          for split, classes in strange.items()),
        (0, "boxes" in facts.kinds and hasattr(source, "box_format"),
         f"boxes are taken for {getattr(source, 'box_format', '')} (box_format=)"),
        (0, files.ignored, f"{len(files.ignored)} files are left out by --ignore"),
        (dropped and dropped / (dropped + facts.labels["objects"].total()), dropped,
         f"{dropped} annotations are dropped, such as {''.join(facts.dropped[:1])}"),
        *((1, count > _FEW_WRONG * facts.splits[split],
           f"{split}: {count} of {facts.splits[split]} samples have no objects or masks; are their annotations missing?")
          for split, count in facts.empty.items()),
        *((1, reason.startswith(_UNREAD), f"{reason}: {count}") for reason, count in facts.tally.items()),
        (facts.unfit_masks or len(facts.problems) / facts.opened, facts.problems, f"the build rejects {wrong}"),
        (1, len(facts.drawn) > len(drawn) > 0 and len(drawn) >= len(facts.drawn) / 4,
         f"files such as {''.join(drawn[:1])} have few colors, as masks have, and others are pictures (sources.Paired)"),
        (1, numbers and max({0, *numbers} - {255}) >= _MOST_COLORS,
         f"the masks hold {', '.join(map(str, numbers[:8]))}, ...: are these objects, depths, shades of gray or soft edges?"),
        (0, len(numbers) == 1, f"all masks opened hold {numbers[:1]} only"),
        (1, numbers in ([0, 255], [0, 65535]), "the masks hold 0 and 255, which sources.Paired makes two classes (numbers=)"),
        (1, of_objects and len(most_objects) > _DIFFERENT_COUNTS,
         f"each mask holds 1, 2, 3, ... up to another number, at most {max(most_objects, default=0)}, as numbers of objects "
         "do; numbers={0: 0, None: 1} makes them one class"),
        (1, len(facts.palettes) > 1, "the palettes of the masks differ, so that a number may stand for two classes"),
    ):  # fmt: skip
        if applies:
            yield share, text


def patterns_of(paths: Sequence[str]) -> Counter[str]:
    """Count files by the pattern of their folder and suffix. A few files are patterns themselves."""
    if len(paths) <= _NAMED:
        return Counter(paths)
    return Counter(re.sub(r"[^/]+?(\.[^./]*)?$", r"*\1", path) for path in paths)


def listed_files(paths: Sequence[str]) -> str:
    """Name a few files, or say how many there are in each folder with each suffix."""
    if len(paths) <= _NAMED:
        return ", ".join(paths)
    counts = patterns_of(paths)
    listing = ", ".join(f"{kind} ({count})" for kind, count in counts.most_common(MOST_LISTED))
    return f"{len(paths)} files: {listing}" + (", …" if len(counts) > MOST_LISTED else "")


def _counted(counts: Counter[str]) -> str:
    listing = ", ".join(f"{name} {count}" for name, count in [*counts.items()][:_SHOWN])
    return listing + (f", … ({len(counts) - _SHOWN} more)" if len(counts) > _SHOWN else "")
