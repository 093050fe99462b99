"""Facts about a folder of raw data: counts by split and class, and the sizes and classes in a few of its files."""

from __future__ import annotations

import heapq
import os
from array import array
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tfprep.errors import MissingDependencyError, SampleError
from tfprep.fields import Array, Kind, Size
from tfprep.images import decode_mask, decode_pixels, image_size, is_dicom, is_jpeg, pixels_size
from tfprep.seeding import sample_hash
from tfprep.sources.detection.inventory import path_hash
from tfprep.sources.patterns import IMAGE_SUFFIXES
from tfprep.sources.raw import parse_reference
from tfprep.sources.source import Entry, FieldDecoder, Listing, Source, read_files

PLAIN = ("uint8 [H, W, 3]", "uint8 [H, W, 1]", "uint8 [H, W, 4]", "uint8 [H, W, 2]")
"""The forms that become 8-bit RGB without losing anything, unless they are transparent somewhere."""
TRANSPARENT = ", transparent"
SAMPLES = 24
"""Number of samples that are opened: those with the smallest hashes, which is a fair and repeatable choice."""


@dataclass(frozen=True)
class Facts:
    """What `look` returns.

    Attributes:
        kinds: Kind of each field.
        splits: Number of samples by split.
        labels: Number of samples by label field and class name.
        suffixes: Number of image files by suffix.
        sizes: (height, width) of the images that were opened.
        objects: Number of annotated objects by class.
        mask_numbers: Class numbers in the masks that were opened, by field.
        forms: Number of opened images by dtype and channels, such as "uint16 [H, W, 1]".
        problems: What is wrong with files that were opened.
        tally: What the source passed over.
        used: `path_hash` of each file that samples are made of, sorted.
    """

    kinds: Mapping[str, Kind]
    splits: Mapping[str, int]
    labels: Mapping[str, Mapping[str, int]]
    suffixes: Mapping[str, int]
    sizes: tuple[Size, ...]
    objects: Mapping[str, int]
    mask_numbers: Mapping[str, tuple[int, ...]]
    forms: Mapping[str, int]
    problems: tuple[str, ...]
    tally: Mapping[str, int]
    used: Array

    @property
    def deep(self) -> bool:
        """Tells if 8-bit RGB would lose something of most images that were opened."""
        return sum(self.not_plain.values()) * 2 > sum(self.forms.values())

    @property
    def not_plain(self) -> Mapping[str, int]:
        """The forms of which 8-bit RGB would lose something."""
        return {form: count for form, count in self.forms.items() if form.removesuffix(TRANSPARENT) not in PLAIN}

    @property
    def transparent(self) -> bool:
        """Whether images that were opened have transparent pixels."""
        return any(form.endswith(TRANSPARENT) for form in self.forms)

    @property
    def no_mask_opened(self) -> bool:
        """Whether there are masks, and not one of those that were opened holds class numbers."""
        return bool(self.mask_numbers) and not any(self.mask_numbers.values()) and bool(self.problems)

    @property
    def usual_side(self) -> int:
        """The shorter side in pixels that at least 19 of 20 images have, as far as they were opened."""
        shorter = sorted(min(size) for size in self.sizes)
        return shorter[len(shorter) // 20]

    @property
    def small(self) -> str:
        """Which of the images that were opened are much smaller than the others; "" if none is."""
        usual = self.usual_side if self.sizes else 0
        few = [min(size) for size in self.sizes if min(size) < usual / 2]
        if not few:
            return ""
        share = f"{len(few)} of {len(self.sizes)} images opened"
        return f"{share} are smaller than half of the usual {usual} pixels; they are enlarged"

    def lines(self) -> list[str]:
        """Return the facts in words, one line for each."""
        lines = [f"{sum(self.splits.values())} samples: {_counts(self.splits)}"]
        for name, counts in self.labels.items():
            lines.append(f"{name}: {len(counts)} classes: {_counts(counts)}")
        if self.objects:
            lines.append(
                f"{sum(self.objects.values())} objects in {len(self.objects)} classes: {_counts(self.objects)}"
            )
        lines.append(f"image files: {_counts(self.suffixes)}")
        if self.sizes:
            lines.append(f"image sizes, {len(self.sizes)} opened: {_sizes(self.sizes)}")
        if self.not_plain:
            lines.append(f"image dtype and channels: {_counts(self.forms)}")
        for name, numbers in self.mask_numbers.items():
            lines.append(f"{name}: class numbers {_ranges(numbers)} in the masks opened")
        return [*lines, *self.problems, *(f"{reason}: {count}" for reason, count in self.tally.items())]


def look(source: Source, root: Path) -> Facts:
    """List all samples and open `SAMPLES` of them. Raises SourceError if the source does not fit the folder."""
    listing = source.scan(root)
    splits, suffixes = Counter[str](), Counter[str]()
    counts = {name: Counter[str]() for name in listing.values if listing.kinds.get(name) == "label"}
    objects: Counter[int] = Counter()
    empty: Counter[str] = Counter()
    chosen: list[tuple[int, int, Entry]] = []
    used = array("q")
    for number, entry in enumerate(listing.entries):
        used.extend(path_hash(parse_reference(file).file) for file in entry.files)
        splits[entry.split] += 1
        suffixes[_suffix(entry.files[0])] += 1
        for name, count in counts.items():
            count.update(_names(listing, name, entry))
            empty[f"{name}: the cell is empty, which is a reject"] += entry.values[listing.values.index(name)] is None
        if "objects" in listing.values:
            part = entry.values[listing.values.index("objects")]
            objects.update(one["label"] for one in part["objects"] if one.get("label") is not None)
        ranked = (-sample_hash(0, entry.key), number, entry)
        (heapq.heappush if len(chosen) < SAMPLES else heapq.heappushpop)(chosen, ranked)
    labels = {name: {c: count[c] for c in listing.classes[name]} for name, count in counts.items()}
    few = [entry for _, _, entry in sorted(chosen, reverse=True)]
    sizes, numbers, forms, problems = _opened(source, root, listing, few)
    names = listing.classes.get("box_labels") or listing.classes.get("mask", ())[1:]
    by_class = {
        names[number] if number < len(names) else str(number): count for number, count in sorted(objects.items())
    }
    return Facts(
        kinds=listing.kinds,
        splits=splits,
        labels=labels,
        suffixes=suffixes,
        sizes=sizes,
        objects=by_class,
        mask_numbers=numbers,
        forms=forms,
        problems=problems,
        tally=dict(listing.tally) | {reason: count for reason, count in empty.items() if count},
        used=np.unique(np.array(used, np.int64)),
    )


def _suffix(text: str) -> str:
    """The suffix of a file, or of a member's name; that of the file for a member without a name of its own."""
    reference = parse_reference(text)
    member = os.path.splitext(reference.member)[1].lower()
    return member if member in IMAGE_SUFFIXES else os.path.splitext(reference.file)[1].lower()


def _names(listing: Listing, name: str, entry: Entry) -> list[str]:
    value = entry.values[listing.values.index(name)]
    numbers = value if isinstance(value, list) else [] if value is None else [value]
    return [listing.classes[name][number] for number in numbers]


def _opened(
    source: Source, root: Path, listing: Listing, entries: list[Entry]
) -> tuple[tuple[Size, ...], dict[str, tuple[int, ...]], Counter[str], tuple[str, ...]]:
    sizes: list[Size] = []
    decoders: Mapping[str, FieldDecoder] = getattr(source, "decoders", dict)()
    numbers: dict[str, set[int]] = {name: set() for name, kind in listing.kinds.items() if kind == "mask"}
    problems: list[str] = []
    forms: Counter[str] = Counter()
    for entry in entries:
        try:
            raw: dict[str, Any] = {
                **read_files(root, listing.files, entry),
                **dict(zip(listing.values, entry.values, strict=True)),
            }
            size = decoders["image"].size(raw) if "image" in decoders else None
            if "image" in raw:
                form, size = _form(raw["image"])
                forms[form] += 1
            if size is not None:
                sizes.append(size)
            made = {name: decoder.decode(raw, size) for name, decoder in decoders.items()}
            if "image" not in raw:
                forms[f"{made['image'].dtype} [H, W, {made['image'].shape[2]}]"] += 1
            for name, found in numbers.items():
                found.update(np.unique(made[name] if name in made else decode_mask(raw[name])).tolist())
        except SampleError as error:
            problems.append(f"{entry.key}: {error}")
    return tuple(sizes), {name: tuple(sorted(found)) for name, found in numbers.items()}, forms, tuple(problems)


def _form(data: bytes) -> tuple[str, Size]:
    """Dtype and channels of an image as its file holds them, and its size."""
    if is_jpeg(data):
        return PLAIN[0], image_size(data)
    try:
        pixels = decode_pixels(data, page=0, nodata=0)
    except MissingDependencyError:
        if is_dicom(data):
            raise
        return PLAIN[0], image_size(data)  # one of more than 8 bits is a reject of the build, which says what to do
    alpha = pixels.dtype == np.uint8 and pixels.shape[2] in (2, 4) and pixels[:, :, -1].min() < 255
    height, width, channels = pixels.shape
    kind = ", DICOM" if is_dicom(data) else ""
    return f"{pixels.dtype} [H, W, {channels}]{kind}{_several(data)}{TRANSPARENT if alpha else ''}", (height, width)


PAGES = ", several pages"


def _several(data: bytes) -> str:
    try:
        pixels_size(data)
    except SampleError:
        return PAGES
    return ""


def _counts(counts: Mapping[str, int], most: int = 12) -> str:
    said = ", ".join(f"{name} {count}" for name, count in list(counts.items())[:most])
    return said + (f", … ({len(counts) - most} more)" if len(counts) > most else "")


def _sizes(sizes: tuple[Size, ...]) -> str:
    if len(set(sizes)) == 1:
        return f"all {sizes[0][1]} x {sizes[0][0]}"
    smallest, largest = (pick(sizes, key=lambda size: size[0] * size[1]) for pick in (min, max))
    return f"{smallest[1]} x {smallest[0]} to {largest[1]} x {largest[0]}"


def _ranges(numbers: tuple[int, ...]) -> str:
    """(0, 1, 2, 255) as "0-2, 255"."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs) or "none"
