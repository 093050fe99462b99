"""Facts about the samples of a source: what its listing counts, and what the few samples that are opened hold."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from tfprep import images
from tfprep.errors import MissingDependencyError, SampleError, SourceError
from tfprep.fields import Kind, Size
from tfprep.images.pillow import opened
from tfprep.seeding import sample_hash
from tfprep.sources.patterns import split_words
from tfprep.sources.raw import parse_reference, read_raw
from tfprep.sources.source import Entry, FieldDecoder, Listing, Source, read_files

MOST_COLORS = 64
"""A mask has one color or number for each class; a picture has thousands."""
LOSSY = "JPEG does not keep class numbers: write masks as PNG"
FEW_WRONG = 0.1
"""The share of samples that may be wrong, or have no objects. Of COCO's images 1 % have none; Ultralytics advise up to 10 %."""
_SAMPLES = 24
"""Number of samples that are opened: those with the smallest hashes, which is a fair and repeatable choice."""
_SIDE_SEEN, _PIXELS_PER_COLOR, _SHOWN = 256, 8, 12

Remark: TypeAlias = tuple[float, str]
"""What a user should check, and the share of samples that may be wrong: above `FEW_WRONG` it refuses the source."""


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
    opened: int = 0
    problems: list[str] = field(default_factory=list)  # what is wrong with samples
    unfit_masks: int = 0  # number of masks that are JPEGs, or of another size than their images
    sizes: list[Size] = field(default_factory=list)  # (height, width)
    deep: bool = False  # True if images do not become 8-bit RGB
    drawn: dict[str, bool] = field(default_factory=dict)  # by key: has the image few colors, as masks have?
    mask_numbers: dict[str, set[int]] = field(default_factory=dict)  # class numbers in masks by field
    masks: list[list[int]] = field(default_factory=list)  # the numbers of each mask
    palettes: set[bytes] = field(default_factory=set)  # of masks whose numbers are not changed
    copies: int = 0  # number of images that another split has too, with the same name and bytes

    def lines(self) -> list[str]:
        """Return the facts in words, one line for each."""
        further = [f"{name} ({kind})" for name, kind in self.kinds.items() if name not in ("image", *self.labels)]
        by_area = sorted(self.sizes, key=lambda size: size[0] * size[1])
        sizes = dict.fromkeys(f"{width} x {height}" for height, width in (*by_area[:1], *by_area[-1:]))
        lines = [f"{sum(self.splits.values())} samples: {_counted(self.splits)}"]
        lines += [f"{name}: {len(counts)} classes: {_counted(counts)}" for name, counts in self.labels.items()]
        lines += [f"further fields: {', '.join(further)}"] if further else []
        lines += [f"image sizes, {len(self.sizes)} opened: {' to '.join(sizes)}"] if sizes else []
        lines += ["images are not 8-bit RGB, and are stored without loss"] if self.deep else []
        for name, numbers in self.mask_numbers.items():
            lines.append(f"{name}: class numbers {', '.join(map(str, sorted(numbers)))} in the masks opened")
        return lines + [f"{reason}: {count}" for reason, count in self.tally.items()]


@dataclass(frozen=True)
class Reading:
    """One way to read a folder: a source that a rule proposes, and what is found out about it."""

    layout: str  # by its name in `tfprep.sources.detection.LAYOUTS`
    source: Any
    declared: Sequence[str] = ()  # patterns and paths of further files that the rule explains
    remarks: Sequence[Remark] = ()
    facts: Facts = field(default_factory=lambda: Facts({}))
    left: Sequence[str] = ()  # paths of files that it does not read and the rule does not explain

    @property
    def doubts(self) -> list[str]:
        """The reasons to refuse the source unless the user asks for it."""
        return [text for share, text in self.remarks if share > FEW_WRONG]

    def lines(self) -> list[str]:
        """Return the source, the facts, and what should be checked, one line for each."""
        return [repr(self.source), *self.facts.lines(), *(f"check: {text}" for _, text in self.remarks)]


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
        image, *beside = (hash(parse_reference(file).file) for file in entry.files)
        references.add(hash(entry.files[0]))
        facts.used.update((image, *beside))
        facts.empty[entry.split] += image in paths and any(path not in paths for path in beside)
        facts.splits[entry.split] += 1
        folder, _, file = entry.key.rpartition("/")
        facts.folder_words.update(set(split_words(folder)))
        facts.file_words.update(split_words(file)[:1])
        for name, value in zip(listing.values, entry.values, strict=True):
            if name == "objects":
                facts.empty[entry.split] += not value["objects"]
                facts.dropped += value.get("dropped", ())
                value = [one["label"] for one in value["objects"] if one.get("label") is not None]
            if name in names:
                facts.tally["rejected, because the label is empty"] += value is None
                numbers = value if isinstance(value, list) else [] if value is None else [value]
                classes = [names[name][number] for number in numbers]
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
    size = decoders[image].size(raw) if image in decoders else None
    if "image" in raw:
        facts.drawn[entry.key] = has_few_colors(raw["image"])
        folder, slash, name = entry.files[0].rpartition("/")
        twins = {folder.replace(entry.split, split) + slash + name for split in facts.splits} - {entry.files[0]}
        facts.copies += any((root / twin).is_file() and read_raw(root, twin) == raw["image"] for twin in twins)
    if any(isinstance(raw.get(name), bytes) and images.is_jpeg(raw[name]) for name in facts.mask_numbers):
        facts.unfit_masks += 1
        raise SampleError(LOSSY)
    if "image" in raw and size is None:
        size = images.image_size(raw["image"])
        if not images.is_jpeg(raw["image"]):
            images.decode_image(raw["image"], background=None)
    facts.sizes += [] if size is None else [size]
    decoded = {name: decoder.decode(raw, size) for name, decoder in decoders.items()}
    facts.deep |= image in decoded and (decoded[image].dtype != np.uint8 or decoded[image].shape[2] != 3)
    for name, numbers in facts.mask_numbers.items():
        mask = decoded[name] if name in decoded else images.decode_mask(raw[name])
        if size is not None and mask.shape[:2] != size:
            facts.unfit_masks += 1
            sizes = [f"{width} x {height}" for height, width in (mask.shape[:2], size)]
            raise SampleError(f"{name} is {sizes[0]}, and its image {sizes[1]}")
        facts.masks.append(np.unique(mask).tolist())
        numbers.update(facts.masks[-1])
        if name not in decoders:
            with opened(raw[name]) as image_of_mask:
                facts.palettes.add(bytes(image_of_mask.getpalette() or ()))


def has_few_colors(data: bytes) -> bool:
    """Return True if an image has few colors or numbers, as masks have. JPEG never has, nor what cannot be read."""
    if images.is_jpeg(data):
        return False
    try:
        pixels = images.decode_pixels(data, page=0, nodata=0)
    except (SampleError, MissingDependencyError):
        return False
    height, width, channels = pixels.shape
    few = pixels[:: 1 + height // _SIDE_SEEN, :: 1 + width // _SIDE_SEEN].reshape(-1, channels)
    return len(np.unique(few, axis=0)) <= min(MOST_COLORS, len(few) // _PIXELS_PER_COLOR)


def _counted(counts: Mapping[str, int]) -> str:
    listing = ", ".join(f"{name} {count}" for name, count in list(counts.items())[:_SHOWN])
    return listing + (f", … ({len(counts) - _SHOWN} more)" if len(counts) > _SHOWN else "")
