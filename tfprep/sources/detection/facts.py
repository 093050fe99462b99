"""Facts about the samples of a source: what a listing counts, and what the few files that are opened hold."""

from __future__ import annotations

import heapq
import re
from array import array
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from tfprep.errors import MissingDependencyError, SampleError
from tfprep.fields import Array, Kind, Size
from tfprep.images import decode_mask, decode_pixels, image_size, is_dicom, is_jpeg, pixels_size
from tfprep.seeding import sample_hash
from tfprep.sources.detection.inventory import path_hash, suffix_of
from tfprep.sources.folder import Folder
from tfprep.sources.patterns import IMAGE_SUFFIXES
from tfprep.sources.raw import parse_reference
from tfprep.sources.source import Entry, FieldDecoder, Listing, Source, read_files

PLAIN = ("uint8 [H, W, 3]", "uint8 [H, W, 1]", "uint8 [H, W, 4]", "uint8 [H, W, 2]")
"""The forms that become 8-bit RGB without losing anything, unless they are transparent somewhere."""
TRANSPARENT, PAGES = ", transparent", ", several pages"
_MISSING = re.compile(r"nan|none|null|n/?a|nil|missing|\?|-|", re.IGNORECASE)
_MOST_WITHOUT_OBJECTS = 0.1
"""Of COCO's images 1 % have no objects, and Ultralytics advise up to 10 % of background for YOLO."""
_UNPAIRED = "image without its "
_PROBLEMS = 4
MOST_COLORS = 64
"""A mask of colors has one color for each class; a picture has thousands."""
_SIDE_SEEN, _PIXELS_A_COLOR = 256, 8
"""Colors are counted in at most so many rows and columns of an image; few colors are few for the number of pixels too."""
SAMPLES = 24
"""Number of samples that are opened: those with the smallest hashes, which is a fair and repeatable choice."""


@dataclass
class Facts:
    """Facts about the samples of a source, as `look` collects them.

    Attributes:
        kinds: Kind of each field.
        splits: Number of samples by split.
        labels: Number of samples by label field and class name.
        suffixes: Number of image files by suffix.
        sizes: (height, width) of the images that were opened.
        objects: Number of annotated objects by class.
        mask_numbers: Class numbers in the masks that were opened, by field.
        most_numbers: The most class numbers in one mask.
        forms: Number of opened images by dtype and channels, such as "uint16 [H, W, 1]".
        problems: What is wrong with files that were opened.
        missing: What samples may lack: how many of a split have no objects, and which classes may stand for none.
        tally: What the source passed over.
        used: `path_hash` of each file that samples are made of, sorted.
        drawn: Path of each opened image, and whether it has few colors, as drawings and pictures of masks have.
    """

    kinds: Mapping[str, Kind]
    splits: Counter[str] = field(default_factory=Counter)
    labels: dict[str, dict[str, int]] = field(default_factory=dict)
    suffixes: Counter[str] = field(default_factory=Counter)
    sizes: list[Size] = field(default_factory=list)
    objects: dict[str, int] = field(default_factory=dict)
    mask_numbers: dict[str, tuple[int, ...]] = field(default_factory=dict)
    most_numbers: int = 0
    forms: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    tally: dict[str, int] = field(default_factory=dict)
    used: Array = field(default_factory=lambda: np.zeros(0, np.int64))
    drawn: dict[str, bool] = field(default_factory=dict)

    def reads(self, path: str) -> bool:
        """Tell if samples are made of this file."""
        number = path_hash(path)
        place = int(np.searchsorted(self.used, number))
        return place < len(self.used) and bool(self.used[place] == number)

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
        """Tells if images that were opened have transparent pixels."""
        return any(form.endswith(TRANSPARENT) for form in self.forms)

    @property
    def usual_side(self) -> int:
        """The shorter side in pixels that at least 19 of 20 images have, as far as they were opened."""
        shorter = sorted(min(size) for size in self.sizes)
        return shorter[len(shorter) // 20]

    @property
    def small(self) -> str:
        """Names those of the images that were opened are much smaller than the others; "" if none is."""
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
            by_area = sorted(self.sizes, key=lambda size: size[0] * size[1])
            smallest, largest = (f"{width} x {height}" for height, width in (by_area[0], by_area[-1]))
            span = f"all {smallest}" if len(set(self.sizes)) == 1 else f"{smallest} to {largest}"
            lines.append(f"image sizes, {len(self.sizes)} opened: {span}")
        if self.not_plain:
            lines.append(f"image dtype and channels: {_counts(self.forms)}")
        for name, numbers in self.mask_numbers.items():
            # (0, 1, 2, 255) as "0-2, 255"
            runs = [[n for _, n in run] for _, run in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0])]
            listing = ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs) or "none"
            lines.append(f"{name}: class numbers {listing} in the masks opened")
        lines += [f"{reason}: {count}" for reason, count in self.tally.items() if not reason.startswith(_UNPAIRED)]
        problems = [f"{one} (a reject)" for one in self.problems[:_PROBLEMS]]
        if (more := len(self.problems) - _PROBLEMS) > 0:
            problems.append(f"{more} more of the files opened are rejects")
        problems += [f"{why}, which is a reject: {n}" for why, n in self.tally.items() if why.startswith(_UNPAIRED)]
        problems += self.missing
        if self.most_numbers > MOST_COLORS:
            problems.append(
                f"one mask holds {self.most_numbers} numbers: are these classes, or objects, depths, soft edges?"
            )
        return [*lines, *(f"unsure: {one}" for one in problems)]


def look(source: Source, root: Path) -> Facts:
    """List all samples and open `SAMPLES` of them. Raises SourceError if the source does not fit the folder."""
    listing = source.scan(root)
    facts = Facts(listing.kinds)
    places = {name: place for place, name in enumerate(listing.values)}
    counts = {name: Counter[int]() for name in places if listing.kinds.get(name) == "label"}
    objects, empty, without = Counter[int](), Counter[str](), Counter[str]()
    chosen: list[tuple[int, int, Entry]] = []
    used = array("q")
    for number, entry in enumerate(listing.entries):
        used.extend(path_hash(parse_reference(file).file) for file in entry.files)
        facts.splits[entry.split] += 1
        reference = parse_reference(entry.files[0])
        of_member = suffix_of(reference.member)
        facts.suffixes[of_member if of_member in IMAGE_SUFFIXES else suffix_of(reference.file)] += 1
        for name, count in counts.items():
            value = entry.values[places[name]]
            count.update(value if isinstance(value, list) else [] if value is None else [value])
            empty[f"{name}: the cell is empty, which is a reject"] += value is None
        if "objects" in places:
            annotations = entry.values[places["objects"]]["objects"]
            objects.update(one["label"] for one in annotations if one.get("label") is not None)
            without[entry.split] += not annotations
        ranked = (-sample_hash(0, entry.key), number, entry)
        (heapq.heappush if len(chosen) < SAMPLES else heapq.heappushpop)(chosen, ranked)
    for name, count in counts.items():
        facts.labels[name] = {label: count[n] for n, label in enumerate(listing.classes[name])}
    names = listing.classes.get("box_labels") or listing.classes.get("mask", ())[1:]
    facts.objects = {names[n] if n < len(names) else str(n): count for n, count in sorted(objects.items())}
    _open(facts, source, root, listing, [entry for _, _, entry in sorted(chosen, reverse=True)])
    for split, none in without.items() if objects else ():
        if none > _MOST_WITHOUT_OBJECTS * (of_split := facts.splits[split]):
            where = f"{split}: {'all' if none == of_split else f'{none} of {of_split}'} samples have no objects"
            facts.missing.append(f"{where}: is this so, or are their annotations missing?")
    for name, of_label in facts.labels.items():  # nobody calls a folder by a value that is missing
        classes = [] if isinstance(source, Folder) else [repr(one) for one in of_label if _MISSING.fullmatch(one)]
        if classes:
            facts.missing.append(f"the classes {', '.join(classes)} of {name} may stand for a value that is missing")
    facts.tally = dict(listing.tally) | {reason: count for reason, count in empty.items() if count}
    facts.used = np.unique(np.array(used, np.int64))
    return facts


def _open(facts: Facts, source: Source, root: Path, listing: Listing, entries: list[Entry]) -> None:
    """Add what is found in the files of some samples."""
    decoders: Mapping[str, FieldDecoder] = getattr(source, "decoders", dict)()
    numbers: dict[str, set[int]] = {name: set() for name, kind in listing.kinds.items() if kind == "mask"}
    # A dataset names its image as it likes.
    image = next((name for name, kind in listing.kinds.items() if kind == "image"), "")
    for entry in entries:
        try:
            raw: dict[str, Any] = {**read_files(root, listing.files, entry)}
            raw |= zip(listing.values, entry.values, strict=True)
            size = decoders[image].size(raw) if image in decoders else None
            if "image" in raw:
                form, size, facts.drawn[entry.files[0]] = image_form(raw["image"])
                facts.forms[form] += 1
            facts.sizes += [] if size is None else [size]
            decoded = {name: decoder.decode(raw, size) for name, decoder in decoders.items()}
            if "image" not in raw and image:
                facts.forms[f"{decoded[image].dtype} [H, W, {decoded[image].shape[2]}]"] += 1
            for name, class_numbers in numbers.items():
                mask = decoded[name] if name in decoded else decode_mask(raw[name])
                if size is not None and mask.shape[:2] != size:
                    sizes = [f"{width} x {height}" for height, width in (mask.shape[:2], size)]
                    raise SampleError(f"{name} is {sizes[0]}, and its image {sizes[1]}")
                of_one = np.unique(mask).tolist()
                class_numbers.update(of_one)
                facts.most_numbers = max(facts.most_numbers, len(of_one) if name == "mask" else 0)
        except SampleError as error:
            facts.problems.append(f"{entry.key}: {error}")
    facts.mask_numbers = {name: tuple(sorted(class_numbers)) for name, class_numbers in numbers.items()}


def image_form(data: bytes) -> tuple[str, Size, bool]:
    """Dtype and channels of an image as its file holds them, its size, and whether it has few colors."""
    if is_jpeg(data):
        return PLAIN[0], image_size(data), False
    try:
        pixels = decode_pixels(data, page=0, nodata=0)
    except MissingDependencyError:
        if is_dicom(data):
            raise
        return (
            PLAIN[0],
            image_size(data),
            False,
        )  # one of more than 8 bits is a reject of the build, which says what to do
    alpha = pixels.dtype == np.uint8 and pixels.shape[2] in (2, 4) and pixels[:, :, -1].min() < 255
    height, width, channels = pixels.shape
    few = pixels[:: 1 + height // _SIDE_SEEN, :: 1 + width // _SIDE_SEEN].reshape(-1, channels)
    drawn = len(np.unique(few, axis=0)) <= min(MOST_COLORS, len(few) // _PIXELS_A_COLOR)
    kind = ", DICOM" if is_dicom(data) else ""
    try:
        pixels_size(data)
    except SampleError:
        kind += PAGES
    return f"{pixels.dtype} [H, W, {channels}]{kind}{TRANSPARENT if alpha else ''}", (height, width), drawn


def _counts(counts: Mapping[str, int], most: int = 12) -> str:
    listing = ", ".join(f"{name} {count}" for name, count in list(counts.items())[:most])
    return listing + (f", … ({len(counts) - most} more)" if len(counts) > most else "")
