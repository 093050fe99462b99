"""Finds the source that fits a folder: annotations, a table beside images, images with masks, class folders, or images alone.

Nothing is dropped in silence. Annotations that are recognised and cannot be read end the search with the source's own error,
unless other annotations fit; what the source does not read of the folder stands among the doubts.
"""

from __future__ import annotations

import heapq
import os
import re
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import groupby, islice
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from tfprep.errors import MissingDependencyError, RecipeError, SampleError, SourceError
from tfprep.fields import Array, Kind, Size
from tfprep.images import (
    decode_image,
    decode_mask,
    decode_pixels,
    image_size,
    is_dicom,
    is_jpeg,
    perceptual_hash,
    pixels_size,
)
from tfprep.seeding import sample_hash
from tfprep.sources.annotations import Coco, CocoPanoptic, LabelMe, ObjectTable, Voc, Yolo
from tfprep.sources.archives import Archives
from tfprep.sources.arrays import Arrays
from tfprep.sources.detection import WITHOUT_ANNOTATIONS, Layout, LayoutGuess, Refusal
from tfprep.sources.detection.annotated import coco, labelme, other_tools, presets, voc, yolo
from tfprep.sources.detection.bundled import archives, arrays, parquet_images, videos
from tfprep.sources.detection.inventory import NAMES_KEPT, Inventory, below, path_hash, suffix_of
from tfprep.sources.detection.pairs import folders, pairs, split_words
from tfprep.sources.detection.tables import about_tables, tables
from tfprep.sources.folder import Folder
from tfprep.sources.paired import CAMVID_CLASSES, Paired, camvid
from tfprep.sources.patterns import IMAGE_SUFFIXES, Pattern, compile_pattern, literal
from tfprep.sources.pixels import Pixels
from tfprep.sources.raw import parse_reference, read_raw
from tfprep.sources.source import Entry, FieldDecoder, Listing, Source, read_files
from tfprep.sources.splits import Fractions
from tfprep.sources.table import Table

PLAIN = ("uint8 [H, W, 3]", "uint8 [H, W, 1]", "uint8 [H, W, 4]", "uint8 [H, W, 2]")
"""The forms that become 8-bit RGB without losing anything, unless they are transparent somewhere."""
TRANSPARENT, PAGES = ", transparent", ", several pages"
_MISSING = re.compile(r"nan|none|null|n/?a|nil|missing|\?|-|", re.IGNORECASE)
_UNPAIRED = "image without its "
_PROBLEMS = 4
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
        empty: How many samples of which split have no objects.
        tally: What the source passed over.
        used: `path_hash` of each file that samples are made of, sorted.
        drawn: Path of each opened image, and whether it has few colours, as drawings and pictures of masks have.
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
    empty: list[str] = field(default_factory=list)
    tally: dict[str, int] = field(default_factory=dict)
    used: Array = field(default_factory=lambda: np.zeros(0, np.int64))
    drawn: dict[str, bool] = field(default_factory=dict)

    def reads(self, path: str) -> bool:
        """Tell if samples are made of this file."""
        place = int(np.searchsorted(self.used, path_hash(path)))
        return place < len(self.used) and self.used[place] == path_hash(path)

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
            said = f"all {smallest}" if len(set(self.sizes)) == 1 else f"{smallest} to {largest}"
            lines.append(f"image sizes, {len(self.sizes)} opened: {said}")
        if self.not_plain:
            lines.append(f"image dtype and channels: {_counts(self.forms)}")
        for name, numbers in self.mask_numbers.items():
            # (0, 1, 2, 255) as "0-2, 255"
            runs = [[n for _, n in run] for _, run in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0])]
            said = ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs) or "none"
            lines.append(f"{name}: class numbers {said} in the masks opened")
        lines += [f"{reason}: {count}" for reason, count in self.tally.items() if not reason.startswith(_UNPAIRED)]
        problems = [f"{one} (a reject)" for one in self.problems[:_PROBLEMS]]
        if (more := len(self.problems) - _PROBLEMS) > 0:
            problems.append(f"{more} more of the files opened are rejects")
        problems += [f"{why}, which is a reject: {n}" for why, n in self.tally.items() if why.startswith(_UNPAIRED)]
        problems += self.empty
        if self.most_numbers > _MOST_COLOURS:
            problems.append(
                f"one mask holds {self.most_numbers} numbers: are these classes, or objects, depths, soft edges?"
            )
        for name, counts in self.labels.items():
            if missing := [repr(one) for one in counts if _MISSING.fullmatch(one)]:
                problems.append(f"the classes {', '.join(missing)} of {name} may stand for a value that is missing")
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
            found = entry.values[places["objects"]]["objects"]
            objects.update(one["label"] for one in found if one.get("label") is not None)
            without[entry.split] += not found
        ranked = (-sample_hash(0, entry.key), number, entry)
        (heapq.heappush if len(chosen) < SAMPLES else heapq.heappushpop)(chosen, ranked)
    for name, count in counts.items():
        facts.labels[name] = {label: count[n] for n, label in enumerate(listing.classes[name])}
    names = listing.classes.get("box_labels") or listing.classes.get("mask", ())[1:]
    facts.objects = {names[n] if n < len(names) else str(n): count for n, count in sorted(objects.items())}
    _open(facts, source, root, listing, [entry for _, _, entry in sorted(chosen, reverse=True)])
    for split, none in without.items() if objects else ():
        where = f"{split}: {'all' if none == facts.splits[split] else none} samples have no objects"
        facts.empty += [f"{where}: is this so, or are their annotations missing?"] * (none > 0)
    facts.tally = dict(listing.tally) | {reason: count for reason, count in empty.items() if count}
    facts.used = np.unique(np.array(used, np.int64))
    return facts


def _open(facts: Facts, source: Source, root: Path, listing: Listing, entries: list[Entry]) -> None:
    """Add what is found in the files of some samples."""
    decoders: Mapping[str, FieldDecoder] = getattr(source, "decoders", dict)()
    numbers: dict[str, set[int]] = {name: set() for name, kind in listing.kinds.items() if kind == "mask"}
    for entry in entries:
        try:
            raw: dict[str, Any] = {**read_files(root, listing.files, entry)}
            raw |= zip(listing.values, entry.values, strict=True)
            size = decoders["image"].size(raw) if "image" in decoders else None
            if "image" in raw:
                form, size, facts.drawn[entry.files[0]] = _form(raw["image"])
                facts.forms[form] += 1
            facts.sizes += [] if size is None else [size]
            made = {name: decoder.decode(raw, size) for name, decoder in decoders.items()}
            if "image" not in raw:
                facts.forms[f"{made['image'].dtype} [H, W, {made['image'].shape[2]}]"] += 1
            for name, found in numbers.items():
                of_one = np.unique(made[name] if name in made else decode_mask(raw[name])).tolist()
                found.update(of_one)
                facts.most_numbers = max(facts.most_numbers, len(of_one) if name == "mask" else 0)
        except SampleError as error:
            facts.problems.append(f"{entry.key}: {error}")
    facts.mask_numbers = {name: tuple(sorted(found)) for name, found in numbers.items()}


def _form(data: bytes) -> tuple[str, Size, bool]:
    """Dtype and channels of an image as its file holds them, its size, and whether it has few colours."""
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
    drawn = len(np.unique(few, axis=0)) <= min(_MOST_COLOURS, len(few) // _PIXELS_A_COLOUR)
    kind = ", DICOM" if is_dicom(data) else ""
    try:
        pixels_size(data)
    except SampleError:
        kind += PAGES
    return f"{pixels.dtype} [H, W, {channels}]{kind}{TRANSPARENT if alpha else ''}", (height, width), drawn


def _drawn_apart(facts: Facts) -> str:
    """Say which images have few colours, where their suffix, folder or the end of their name divides them from all others.

    So masks are told from photos: in a data set of drawings and photos both have the same kinds of names.
    """
    features: dict[tuple[int, str], list[str]] = {}
    for path in facts.drawn:
        *folders, name = path.split("/")
        stem, suffix = os.path.splitext(name)
        named = (suffix.lower(), re.split(r"[ _.-]", stem)[-1], *folders)
        for feature in enumerate(named):
            features.setdefault(feature, []).append(path)
    apart = {
        path for paths in features.values() if len(paths) > 1 and all(map(facts.drawn.get, paths)) for path in paths
    }
    drawn, others = ([path for path, few in facts.drawn.items() if few is one] for one in (True, False))
    if len(drawn) < _FEW or len(others) < _FEW or set(drawn) - apart:
        return ""
    return f"files such as {drawn[0]} have few colours, as masks have, and files such as {others[0]} are pictures"


def _counts(counts: Mapping[str, int], most: int = 12) -> str:
    said = ", ".join(f"{name} {count}" for name, count in list(counts.items())[:most])
    return said + (f", … ({len(counts) - most} more)" if len(counts) > most else "")


_OfPixels: TypeAlias = Folder | Paired | Table | Archives | Coco | CocoPanoptic | Voc | Yolo | LabelMe | ObjectTable
"""The sources with the option `pixels`."""
_MOST_COLOURS = 64
"""A mask of colours has one colour for each class; a picture has thousands."""
_SIDE_SEEN, _PIXELS_A_COLOUR = 256, 8
"""Colours are counted in at most so many rows and columns of an image; few colours are few for the number of pixels too."""
_FEW = 3
_MASKS_OPENED = 300
_DARKEST = 64
_BLACK_AND_WHITE = ((0, 255), (0, 65535))
_SAME_BITS = 6
"""Bits in which the hashes of a picture and of its thumbnail may differ: `tfprep check` takes up to 10."""
_LISTS = (".txt", ".csv", ".tsv", ".lst", ".json", "")
_OF_SPLITS = re.compile(r"(?<![A-Za-z])(?:splits?|partitions?|folds?)(?![A-Za-z])", re.IGNORECASE)
_NAMED_COLOUR = re.compile(
    r"(?:(?P<before>[^,:\d][^,:]*)[,:] *)?(?P<r>\d{1,3})[ ,]+(?P<g>\d{1,3})[ ,]+(?P<b>\d{1,3})(?::.*|[\s,]+(?P<after>\S.*?))?\s*"
)
"""A line of `class_dict.csv` (name,r,g,b), CVAT's `labelmap.txt` (name:r,g,b::) or CamVid's `label_colors.txt` (r g b name)."""
_TO_ARRAYS = "init reads the .npz that this line writes: python -c "
_OF_KERAS = (
    '"import keras, numpy; (a, b), (c, d) = keras.datasets.{0}.load_data(); '
    "numpy.savez('{0}.npz', x_train=a, y_train=b, x_test=c, y_test=d)\""
)
_OTHER_FILES = {
    r".*tfrecords?(?:[.-].*)?|.*\.tfrec|.*\.record": "TFRecords: `tfprep index 'PATTERN' SPLIT` reads them where they are",
    r".*[.-]idx[1-4]-ubyte(?:\.gz)?": f"MNIST's idx files; {_TO_ARRAYS}{_OF_KERAS.format('mnist')}",
    r"data_batch_\d+(?:\.bin)?|test_batch(?:\.bin)?": f"CIFAR's batches; {_TO_ARRAYS}{_OF_KERAS.format('cifar10')}",
    r"meta|fine_label_names\.txt": f"CIFAR-100's files; {_TO_ARRAYS}{_OF_KERAS.format('cifar100')}",
    r".*\.(?:h5|hdf5)": f"HDF5; {_TO_ARRAYS}\"import h5py, numpy; f = h5py.File('FILE'); "
    "numpy.savez('data.npz', **{name: f[name][:] for name in f})\"",
    r".*\.mat": f"MATLAB; {_TO_ARRAYS}\"import numpy, scipy.io; f = scipy.io.loadmat('FILE'); "
    "numpy.savez('data.npz', x=f['X'].transpose(3, 0, 1, 2), y=f['y'])\", for an array X [H, W, C, N] as in SVHN",
    r".*\.(?:pkl|pickle)": "pickles, which run code when they are read: write an image file for each sample with Pillow",
    r".*\.arrow": "Arrow of Hugging Face: datasets.load_from_disk(FOLDER)['train'].to_parquet('train.parquet') writes Parquet",
    r".*\.nii(?:\.gz)?": f'NIfTI; {_TO_ARRAYS}"import nibabel, numpy; '
    "numpy.savez('data.npz', x=nibabel.load('FILE').get_fdata(dtype='float32').transpose(2, 0, 1))\", for one volume of slices",
    r".*\.csv": "tables without images; for a class and 28 x 28 pixels in the columns of each row, "
    f"{_TO_ARRAYS}\"import numpy; t = numpy.loadtxt('FILE', int, delimiter=',', skiprows=1); "
    "numpy.savez('data.npz', x=t[:, 1:].reshape(-1, 28, 28).astype('uint8'), y=t[:, 0])\"",
    r".*\.mdb": "LMDB: write an image file for each sample with Pillow",
}
"""Other content of a folder without images, and the way out."""


@dataclass(frozen=True)
class Detected:
    """A source with its options, what kind of layout that is in words, what it holds, and what is not certain."""

    source: Source
    layout: str
    facts: Facts
    doubts: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """Return the layout, the facts and the doubts, a line each."""
        return [self.layout, *self.facts.lines(), *(f"unsure: {doubt}" for doubt in self.doubts)]


def detect(folder: Path, layout: Layout | None = None) -> Detected:
    """Find the source that fits a folder.

    The whole tree is listed to find the layout, by the source, and for what the source does not read; a few files are opened.

    Args:
        folder: The folder.
        layout: The layout to take; None for the first that fits.

    Returns:
        The source, and what is known about the folder.

    Raises:
        SourceError: There is no image; or annotations are recognised, cannot be read, and no others fit.
    """
    tree = Inventory.of(folder)
    if not tree.images:
        return _without_images(tree)
    refused: list[Refusal] = []
    for last, found in ((recognise is folders, one) for recognise in _DETECTORS for one in recognise(tree)):
        if layout is not None and found.kind != layout:
            continue
        if last and layout is None and not refused:  # class folders, or images alone, or why they are not read so
            by_class = isinstance(found, LayoutGuess) and found.kind == "folders"
            if said := tree.about_images(beside=True) if by_class else about_tables(tree) or tree.about_images():
                refused.append(Refusal("annotations", SourceError(said)))
        if last and layout is None and refused and isinstance(found, LayoutGuess):
            break
        if isinstance(found, Refusal):
            refused.append(found)
            continue
        try:
            detected = looked(found, tree)
        except SourceError as error:
            refused.append(Refusal(found.kind, error))
            continue
        if layout is None and found.kind in WITHOUT_ANNOTATIONS and (said := _drawn_apart(detected.facts)):
            rule = f"{folder}: {said}; nothing says how they belong together"
            refused.append(Refusal("masks", SourceError(rule)))
            break
        return replace(detected, doubts=(*(str(one.error) for one in refused), *detected.doubts))
    if not refused:
        raise SourceError(f"{folder}: this folder is not laid out as --as {layout} says")
    kinds = [one.kind for one in folders(tree) if isinstance(one, LayoutGuess)] + ["images"]
    left = [kind for kind in kinds if kind not in {one.kind for one in refused}]
    if layout is None and left:
        raise SourceError(f"{refused[0].error}. To read the images without these annotations: --as {left[0]}")
    raise refused[0].error


_DETECTORS = (presets, yolo, other_tools, coco, voc, labelme, tables, pairs, folders)
"""In the order of how much their answers say about the images."""


def _without_images(tree: Inventory) -> Detected:
    for bundled in (archives, parquet_images, videos, arrays):
        if (guess := bundled(tree.root)) is not None:
            found = looked(guess, tree)
            unread = tree.unread(found.facts.used, _annotation_files(found.source))
            if isinstance(guess.source, Archives) and set(found.facts.kinds) == {"image"} and unread:
                rule = f"{tree.root}: the archives hold images alone, and {unread[0]}"
                raise SourceError(f"{rule}; unpack the archives, and run init again")
            return found
    names = [name for files in tree.others.values() for few in files.values() for name in few]
    for pattern, way_out in _OTHER_FILES.items():
        if (name := next((name for name in names if re.fullmatch(pattern, name, re.IGNORECASE)), None)) is not None:
            raise SourceError(f"{tree.root}: no image below this folder. {name} belongs to {way_out}")
    raise SourceError(f"{tree.root}: no image below this folder (files ending in {', '.join(IMAGE_SUFFIXES)})")


def looked(candidate: LayoutGuess, tree: Inventory) -> Detected:
    """Return the source with what its samples are like, and what it does not read.

    Raises:
        SourceError: The source does not fit the folder.
    """
    source, doubts = candidate.source, candidate.doubts
    facts = look(source, tree.root)
    if isinstance(source, Paired) and source.mask and facts.drawn and all(facts.drawn.values()):
        rule = f"{tree.root}: the images {source.image}, with masks {source.mask}, have few colours, as pictures of masks have"
        raise SourceError(rule)
    names = ""
    if isinstance(source, Paired) and facts.mask_numbers:
        numbered, names, said = _with_numbers(source, tree, facts)
        source, facts, doubts = numbered, facts if numbered is source else look(numbered, tree.root), (*doubts, *said)
    elif (numbers := facts.mask_numbers.get("mask")) in _BLACK_AND_WHITE:
        doubts = (
            *doubts,
            f"the masks hold {numbers[0]} and {numbers[1]}, and keep them: write 0 and 1 for two classes",
        )
    if facts.deep and isinstance(source, _OfPixels):
        source, said = _with_pixels(source, facts)
        facts, doubts = look(source, tree.root), (*doubts, *said)
    elif isinstance(source, _OfPixels):
        if facts.transparent:
            source = replace(source, pixels={"image": Pixels(background=(255, 255, 255))})
            doubts = (*doubts, "transparent pixels are laid over white (background=)")
        if facts.not_plain:
            rule = f"images that are no 8-bit RGB ({', '.join(facts.not_plain)}) are rejects"
            doubts = (*doubts, f"{rule}, unless Pixels(to=, channels=) is given")
    doubts = (*doubts, *filter(None, (facts.small, _copies(facts, tree))))
    if len(facts.problems) == min(SAMPLES, sum(facts.splits.values())):
        raise SourceError(f"{tree.root}: none of the samples that were opened can be read, such as {facts.problems[0]}")
    read = [*_annotation_files(source), *([compile_pattern(literal(names), "detect")] if names else [])]
    doubts = (*doubts, *_about_splits(source, facts, tree, read), *_further_masks(source, facts, tree))
    return Detected(source, candidate.layout, facts, (*doubts, *tree.unread(facts.used, read)))


def _further_masks(source: Source, facts: Facts, tree: Inventory) -> Iterator[str]:
    """Yield the folders that may hold masks too, by one file of each that is not read."""
    if not isinstance(source, Paired) or source.mask is None:
        return
    folders: list[str] = []
    for folder, names in tree.names.items():
        left = (below(folder, name) for name in names if not facts.reads(below(folder, name)))
        if len(folders) < _FEW and (path := next(left, None)) is not None:
            with suppress(SampleError):
                folders += [folder] if _form(read_raw(tree.root, path))[2] else []
    if folders:
        said = ", ".join(f"{folder}/" for folder in folders)
        yield f"{said} may hold masks too: are those of {source.mask} the ones to learn (mask=)?"


def _about_splits(source: Source, facts: Facts, tree: Inventory, read: Sequence[Pattern]) -> Iterator[str]:
    """Yield what is doubtful about the splits: one split alone, or new ones where folders or lists name others."""
    splits = getattr(source, "splits", None)
    if len(facts.splits) == 1 and not isinstance(splits, Fractions | str):
        yield f"all samples are in the split {next(iter(facts.splits))!r}; none is left for another (splits=)"
    if not isinstance(splits, Fractions):
        return
    if isinstance(source, Folder | Paired):
        pattern = compile_pattern(source.image, "detect")
        paths = (below(folder, name) for folder, names in tree.names.items() for name in names)
        words = {word for path in paths if pattern.match_path(path) for word in split_words(path)}
        if words - {"train", "training"}:
            said = " and ".join(sorted(words))
            yield f"folders or files are called {said}, and this recipe draws new splits from all of them (splits=)"
    lists = [path for path in tree.files(*_LISTS) if split_words(path) or _OF_SPLITS.search(path)]
    if lists := [path for path in lists if all(pattern.match_path(path) is None for pattern in read)]:
        few = ", ".join(lists[:3]) + ", …" * (len(lists) > 3)
        yield f"{few} may say which images are for training, and this recipe draws new splits (splits=)"


def _copies(facts: Facts, tree: Inventory) -> str:
    """Say which of the images that were opened are copies of others of their name, as thumbnails are; "" for fewer than two."""

    def stem(name: str) -> str:
        return os.path.splitext(name)[0]

    alike: dict[str, list[str]] = {}  # copies of whole folders begin with the same name
    for folder, names in tree.names.items():
        alike.setdefault(stem(names[0]), []).append(folder)
    found = []
    for path in facts.drawn:
        folder, _, name = path.rpartition("/")
        others = alike[stem(tree.names[folder][0])][:NAMES_KEPT] if folder in tree.names else []
        named = (
            below(o, stem(name) + end) for o in others for suffix in tree.images[o] for end in (suffix, suffix.upper())
        )
        for other in (one for one in named if one != path and facts.reads(one) and (tree.root / one).is_file()):
            with suppress(SampleError, MissingDependencyError):  # pictures are compared where OpenCV is there
                one, two = (perceptual_hash(read_raw(tree.root, file)) for file in (path, other))
                if (one ^ two).bit_count() <= _SAME_BITS:
                    found.append((path, other))
                    break
    if len(found) < 2:
        return ""
    return f"{found[0][0]} and {found[0][1]} seem to be one picture, and {len(found) - 1} more of those opened have a copy too"


def _annotation_files(source: Source) -> list[Pattern]:
    """The patterns of the files that a source reads beside those of its samples."""
    texts: list[str | None] = [
        getattr(source, option, None) for option in ("table", "annotations", "sets", "labels", "data")
    ]
    if isinstance(source, Yolo) and source.labels is None:
        texts.append("**/*.txt")
    if isinstance(source, Arrays):
        texts = [text.partition(":")[0] for text in (source.image, source.label or "") if text]
    if isinstance(source, Folder):
        texts += map(literal, source.labels.values())
    return [compile_pattern(text, "detect") for text in texts if isinstance(text, str)]


def _with_pixels(source: _OfPixels, facts: Facts) -> tuple[_OfPixels, tuple[str, ...]]:
    """The source that keeps the images' own dtype and channels, and the slices of a patient in one split."""
    paged = any(PAGES in form for form in facts.forms)
    source = replace(source, pixels={"image": Pixels(page=0 if paged else None)})
    doubts = ["only the first page or frame of each file is taken (page=0)"] if paged else []
    if len(facts.forms) > 1:
        doubts.append(
            "images differ in dtype or channels: the less common ones are rejects, unless Pixels(to=, channels=) is given"
        )
    if ".dcm" in facts.suffixes and isinstance(source, Folder | Paired) and isinstance(source.splits, Fractions):
        source = replace(source, splits=replace(source.splits, stratify=None, group_by="PatientID"))
    return source, tuple(doubts)


def _with_numbers(source: Paired, tree: Inventory, facts: Facts) -> tuple[Paired, str, tuple[str, ...]]:
    """The source with class numbers for its masks, where their files hold colours or black and white; as `_with_palette`."""
    numbers = facts.mask_numbers.get("mask")
    if not any(facts.mask_numbers.values()) and not source.palette and facts.problems:
        return _with_palette(source, tree, facts)
    if numbers in _BLACK_AND_WHITE:
        said = f"the masks hold {numbers[0]} and {numbers[1]}: two classes, 0 and 1 (numbers=)"
        return replace(source, numbers={numbers[0]: 0, numbers[1]: 1}), "", (said,)
    if numbers and len(numbers) > 2 and not any(0 < number < _DARKEST for number in numbers):
        said = ", ".join(map(str, numbers))
        return source, "", (f"the masks hold {said}: are these shades of gray for classes 0, 1, 2, ... (numbers=)?",)
    return source, "", ()


def _with_palette(source: Paired, tree: Inventory, facts: Facts) -> tuple[Paired, str, tuple[str, ...]]:
    """The source with class numbers for the colours of its masks, the file that names them, and the doubts.

    The numbers are in the order of that file, such as `class_dict.csv`; without one in that of the colours, black first.
    SourceError if the files are no masks.
    """
    folder = tree.root
    listing = source.scan(folder)
    seen: set[int] = set()
    opened = 0
    for entry in islice(listing.entries, _MASKS_OPENED):
        with suppress(SampleError):
            pixels = decode_image(read_files(folder, listing.files, entry)["mask"])
            seen.update(np.unique(pixels.astype(np.int64) @ np.array([1 << 16, 1 << 8, 1])).tolist())
            opened += 1
        if len(seen) > _MOST_COLOURS:
            raise SourceError(f"{folder}: the files of {source.mask!r} are no masks: {facts.problems[0]}")
    colours = [(code >> 16, code >> 8 & 255, code & 255) for code in sorted(seen)]
    doubt = f"the masks are pictures of {len(colours)} colours ({opened} opened); another colour is a reject"
    for path in tree.files(".csv", ".txt"):
        found = filter(None, map(_NAMED_COLOUR.fullmatch, tree.text(path).splitlines()))
        names = {(int(one["r"]), int(one["g"]), int(one["b"])): one["before"] or one["after"] or "" for one in found}
        if set(colours) <= names.keys():
            palette = {colour: number for number, colour in enumerate(names)}
            with suppress(RecipeError):  # two classes of one name
                named = replace(source, palette=palette, classes=tuple(name.strip(' "') for name in names.values()))
                return named, path, (f"the classes of the colours are those of {path}",)
    known = camvid().palette
    if len(colours) > 2 and all(colour in known for colour in colours):
        return replace(source, palette=known, classes=CAMVID_CLASSES), "", (doubt, "the classes are CamVid's")
    palette = {colour: number for number, colour in enumerate(colours)}
    said = "their numbers follow the colours' order, and want names (classes=)"
    return replace(source, palette=palette), "", (doubt, said)
