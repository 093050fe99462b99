"""Facts about the samples of a source: what its listing counts, and what the few samples that are opened hold."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from tfprep.errors import MissingDependencyError, SampleError
from tfprep.fields import Kind, Size
from tfprep.images import decode_mask, decode_pixels, file_orientation, image_size, is_dicom, is_jpeg, pixels_size
from tfprep.seeding import sample_hash
from tfprep.sources.patterns import split_words
from tfprep.sources.raw import parse_reference
from tfprep.sources.source import Entry, FieldDecoder, Listing, Source, read_files

MOST_COLORS = 64
"""A mask has one color or number for each class; a picture has thousands."""
PAGES, TRANSPARENT = ", several pages", ", transparent"
_SAMPLES = 24
"""Number of samples that are opened: those with the smallest hashes, which is a fair and repeatable choice."""
_PLAIN = frozenset(f"uint8 [H, W, {channels}]" for channels in (1, 2, 3, 4))
"""The forms that become 8-bit RGB without losing anything, unless they are transparent somewhere."""
_SIDE_SEEN, _PIXELS_PER_COLOR, _SHOWN = 256, 8, 12


@dataclass
class Facts:
    """Facts about the samples of a source, as `look` collects them.

    Attributes:
        kinds: Kind of each field.
        splits, labels, objects: Number of samples by split, by label field and class, and of objects by class.
        empty: Number of samples without an object by split.
        tally: What the source passed over.
        used: `hash` of the path of each file that samples are made of.
        twice: Number of images that belong to two samples.
        folder_words, file_words: Number of samples by the words that name splits in their folders, and in the names of files.
        opened, problems: Number of samples that were opened, and what is wrong with some of them.
        sizes, forms: (height, width) of these images; their number by dtype and channels, such as "uint16 [H, W, 1]".
        turned: How many of these images are turned by their EXIF orientation.
        drawn: Path of each of these images, and whether it has few colors, as masks have.
        mask_numbers, most_numbers: Class numbers in their masks, by field; the most in one mask.
        other_size: How many of these masks have another size than their image.
    """

    kinds: Mapping[str, Kind]
    splits: Counter[str] = field(default_factory=Counter)
    labels: dict[str, dict[str, int]] = field(default_factory=dict)
    objects: dict[str, int] = field(default_factory=dict)
    empty: Counter[str] = field(default_factory=Counter)
    tally: dict[str, int] = field(default_factory=dict)
    used: set[int] = field(default_factory=set)
    twice: int = 0
    folder_words: Counter[str] = field(default_factory=Counter)
    file_words: Counter[str] = field(default_factory=Counter)
    opened: int = 0
    problems: list[str] = field(default_factory=list)
    sizes: list[Size] = field(default_factory=list)
    forms: Counter[str] = field(default_factory=Counter)
    turned: int = 0
    drawn: dict[str, bool] = field(default_factory=dict)
    mask_numbers: dict[str, tuple[int, ...]] = field(default_factory=dict)
    most_numbers: int = 0
    other_size: int = 0

    @property
    def not_plain(self) -> Mapping[str, int]:
        """The forms that lose something as 8-bit RGB."""
        return {form: count for form, count in self.forms.items() if form.removesuffix(TRANSPARENT) not in _PLAIN}

    @property
    def deep(self) -> bool:
        """True if 8-bit RGB would lose something of most images that were opened."""
        return sum(self.not_plain.values()) * 2 > sum(self.forms.values())

    @property
    def usual_side(self) -> int:
        """The shorter side in pixels that at least 19 of 20 images have, as far as they were opened."""
        shorter = sorted(min(size) for size in self.sizes)
        return shorter[len(shorter) // 20]

    def lines(self) -> list[str]:
        """Return the facts in words, one line for each."""
        other_fields = [f"{name} ({kind})" for name, kind in self.kinds.items() if name not in ("image", *self.labels)]
        by_area = sorted(self.sizes, key=lambda size: size[0] * size[1])
        sizes = dict.fromkeys(f"{size[1]} x {size[0]}" for size in (*by_area[:1], *by_area[-1:]))
        lines = [
            f"{sum(self.splits.values())} samples: {_counted(self.splits)}",
            *(f"{name}: {len(counts)} classes: {_counted(counts)}" for name, counts in self.labels.items()),
            *([f"objects of {len(self.objects)} classes: {_counted(self.objects)}"] if self.objects else []),
            *([f"further fields: {', '.join(other_fields)}"] if other_fields else []),
            *([f"image sizes, {len(self.sizes)} opened: {' to '.join(sizes)}"] if sizes else []),
            *([f"turned by EXIF, {len(self.sizes)} opened: {self.turned}"] if self.turned else []),
            *([f"image dtype and channels: {_counted(self.forms)}"] if self.not_plain else []),
        ]
        for name, numbers in self.mask_numbers.items():  # (0, 1, 2, 255) as "0-2, 255"
            runs = [[n for _, n in run] for _, run in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0])]
            listing = ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
            lines.append(f"{name}: class numbers {listing} in the masks opened")
        return lines + [f"{reason}: {count}" for reason, count in self.tally.items()]


def look(source: Source, root: Path) -> Facts:
    """List all samples and open a few of them. Raises SourceError if the source does not fit the folder."""
    listing = source.scan(root)
    facts = Facts(listing.kinds)
    places = {name: place for place, name in enumerate(listing.values)}
    counts = {name: Counter[int]() for name in places if listing.kinds.get(name) == "label"}
    objects, unlabeled = Counter[int](), 0
    chosen: list[tuple[int, int, Entry]] = []
    images = set[int]()
    for number, entry in enumerate(listing.entries):
        facts.used.update(hash(parse_reference(file).file) for file in entry.files)
        images.add(hash(entry.files[0]))
        facts.splits[entry.split] += 1
        folder, _, name = entry.key.rpartition("/")
        facts.folder_words.update(set(split_words(folder)))
        facts.file_words.update(split_words(name)[:1])
        for name, count in counts.items():
            value = entry.values[places[name]]
            count.update(value if isinstance(value, list) else [] if value is None else [value])
            unlabeled += value is None
        if "objects" in places:
            annotations = entry.values[places["objects"]]["objects"]
            objects.update(annotation["label"] for annotation in annotations if annotation.get("label") is not None)
            facts.empty[entry.split] += not annotations
        ranked = (-sample_hash(0, entry.key), number, entry)
        (heapq.heappush if len(chosen) < _SAMPLES else heapq.heappushpop)(chosen, ranked)
    for name, count in counts.items():
        facts.labels[name] = {label: count[n] for n, label in enumerate(listing.classes[name])}
    names = listing.classes.get("box_labels") or listing.classes.get("mask", ())[1:]
    facts.objects = {names[n] if n < len(names) else str(n): count for n, count in sorted(objects.items())}
    facts.tally = dict(listing.tally) | ({"rejected, because the label is empty": unlabeled} if unlabeled else {})
    facts.twice = sum(facts.splits.values()) - len(images)
    facts.opened = len(chosen)
    _open(facts, source, root, listing, [entry for _, _, entry in sorted(chosen, reverse=True)])
    return facts


def _open(facts: Facts, source: Source, root: Path, listing: Listing, entries: list[Entry]) -> None:
    """Add what is found in the files of some samples."""
    decoders: Mapping[str, FieldDecoder] = getattr(source, "decoders", dict)()
    numbers: dict[str, set[int]] = {name: set() for name, kind in listing.kinds.items() if kind == "mask"}
    image = next((name for name, kind in listing.kinds.items() if kind == "image"), "")
    for entry in entries:
        try:
            raw: dict[str, Any] = {**read_files(root, listing.files, entry)}
            raw |= zip(listing.values, entry.values, strict=True)
            size = decoders[image].size(raw) if image in decoders else None
            if "image" in raw:
                form, size, facts.drawn[entry.files[0]] = image_form(raw["image"])
                facts.forms[form] += 1
                facts.turned += file_orientation(raw["image"], 0) > 1
            facts.sizes += [] if size is None else [size]
            decoded = {name: decoder.decode(raw, size) for name, decoder in decoders.items()}
            if "image" not in raw and image:
                facts.forms[f"{decoded[image].dtype} [H, W, {decoded[image].shape[2]}]"] += 1
            for name, class_numbers in numbers.items():
                mask = decoded[name] if name in decoded else decode_mask(raw[name])
                if size is not None and mask.shape[:2] != size:
                    facts.other_size += 1
                    sizes = [f"{width} x {height}" for height, width in (mask.shape[:2], size)]
                    raise SampleError(f"{name} is {sizes[0]}, and its image {sizes[1]}")
                of_one = np.unique(mask).tolist()
                class_numbers.update(of_one)
                facts.most_numbers = max(facts.most_numbers, len(of_one) if name == "mask" else 0)
        except SampleError as error:
            facts.problems.append(f"{entry.key}: {error}")
    facts.mask_numbers = {name: tuple(sorted(class_numbers)) for name, class_numbers in numbers.items()}


def image_form(data: bytes) -> tuple[str, Size, bool]:
    """Return dtype and channels of an image as its file holds them, its size, and whether it has few colors. JPEG never has."""
    rgb = "uint8 [H, W, 3]"
    if is_jpeg(data):
        return rgb, image_size(data), False
    try:
        pixels = decode_pixels(data, page=0, nodata=0)
    except MissingDependencyError:
        if is_dicom(data):
            raise
        return rgb, image_size(data), False  # the build rejects one of more than 8 bits, and says what to do
    alpha = pixels.dtype == np.uint8 and pixels.shape[2] in (2, 4) and pixels[:, :, -1].min() < 255
    height, width, channels = pixels.shape
    few = pixels[:: 1 + height // _SIDE_SEEN, :: 1 + width // _SIDE_SEEN].reshape(-1, channels)
    drawn = len(np.unique(few, axis=0)) <= min(MOST_COLORS, len(few) // _PIXELS_PER_COLOR)
    form = f"{pixels.dtype} [H, W, {channels}]{', DICOM' if is_dicom(data) else ''}"
    try:
        pixels_size(data)
    except SampleError:
        form += PAGES
    return form + (TRANSPARENT if alpha else ""), (height, width), drawn


def _counted(counts: Mapping[str, int]) -> str:
    """Return counts in words, at most `_SHOWN` of them."""
    listing = ", ".join(f"{name} {count}" for name, count in list(counts.items())[:_SHOWN])
    return listing + (f", … ({len(counts) - _SHOWN} more)" if len(counts) > _SHOWN else "")
