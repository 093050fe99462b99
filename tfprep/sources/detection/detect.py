"""Finds the source that fits a folder: annotations, a table beside images, images with masks, class folders, or images alone.

Nothing is dropped in silence. Annotations that are recognized and cannot be read end the search with the source's own error,
unless other annotations fit; what the source does not read of the folder stands among the doubts.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice
from pathlib import Path
from typing import TypeAlias

import numpy as np

from tfprep.errors import MissingDependencyError, RecipeError, SampleError, SourceError
from tfprep.images import decode_image, perceptual_hash
from tfprep.sources.annotations import Coco, CocoPanoptic, LabelMe, ObjectTable, Voc, Yolo
from tfprep.sources.archives import COMPRESSED_SUFFIXES, Archives
from tfprep.sources.arrays import Arrays
from tfprep.sources.detection import WITHOUT_ANNOTATIONS, Layout, LayoutGuess, Refusal
from tfprep.sources.detection.annotated import coco, labelme, other_tools, presets, voc, yolo
from tfprep.sources.detection.bundled import archives, arrays, parquet_images, videos
from tfprep.sources.detection.class_folders import folders
from tfprep.sources.detection.facts import MOST_COLORS, PAGES, SAMPLES, Facts, image_form, look
from tfprep.sources.detection.inventory import NAMES_KEPT, Inventory, below
from tfprep.sources.detection.pairs import pairs, split_words
from tfprep.sources.detection.tables import about_tables, tables
from tfprep.sources.folder import Folder
from tfprep.sources.paired import CAMVID_CLASSES, Paired, camvid
from tfprep.sources.patterns import IMAGE_SUFFIXES, Pattern, compile_pattern, literal
from tfprep.sources.pixels import Pixels
from tfprep.sources.raw import read_raw
from tfprep.sources.source import Source, read_files
from tfprep.sources.splits import Fractions
from tfprep.sources.table import Table
from tfprep.sources.video import Video

_OfPixels: TypeAlias = Folder | Paired | Table | Archives | Coco | CocoPanoptic | Voc | Yolo | LabelMe | ObjectTable
"""The sources with the option `pixels`."""
_FEW = 3
_MASKS_OPENED = 300
_DARKEST = 64
_BLACK_AND_WHITE = ((0, 255), (0, 65535))
_SAME_BITS = 6
"""Bits in which the hashes of a picture and of its thumbnail may differ: `tfprep check` takes up to 10."""
_LISTS = (".txt", ".csv", ".tsv", ".lst", ".json", "")
_OF_SPLITS = re.compile(r"(?<![A-Za-z])(?:splits?|partitions?|folds?)(?![A-Za-z])", re.IGNORECASE)
_NAMED_COLOR = re.compile(
    r"(?:(?P<before>[^,:\d][^,:]*)[,:] *)?(?P<r>\d{1,3})[ ,]+(?P<g>\d{1,3})[ ,]+(?P<b>\d{1,3})(?::.*|[\s,]+(?P<after>\S.*?))?\s*"
)
"""A line of `class_dict.csv` (name,r,g,b), CVAT's `labelmap.txt` (name:r,g,b::) or CamVid's `label_colors.txt` (r g b name)."""
_TO_ARRAYS = "init reads the .npz that this line writes: python -c "
_OF_KERAS = (
    '"import keras, numpy; (a, b), (c, d) = keras.datasets.{0}.load_data(); '
    "numpy.savez('{0}.npz', x_train=a, y_train=b, x_test=c, y_test=d)\""
)
_OTHER_FILES = {
    r".*tfrecords?(?:[.-].*)?|.*\.tfrec|.*\.record": "TFRecords: `tfprep index 'PATTERN' --split SPLIT` reads them in place",
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
    r".*\.(?:rar|7z)": "archives that tfprep does not read: unpack them",
    r".*\.(?:heic|heif|cr2|cr3|nef|arw|dng)": "photos as phones and cameras keep them: export them as JPEG or TIFF",
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
        SourceError: There is no image; or annotations are recognized, cannot be read, and no others fit.
    """
    tree = Inventory.of(folder)
    if not tree.images:
        return _without_images(tree)
    refused: list[Refusal] = []
    for last, answer in ((recognize is folders, one) for recognize in _DETECTORS for one in recognize(tree)):
        if layout is not None and answer.kind != layout:
            continue
        if last and layout is None and not refused:  # class folders, or images alone, or why they are not read so
            by_class = isinstance(answer, LayoutGuess) and answer.kind == "folders"
            if reason := tree.about_images(beside=True) if by_class else about_tables(tree) or tree.about_images():
                refused.append(Refusal("annotations", SourceError(reason)))
        if last and layout is None and refused and isinstance(answer, LayoutGuess):
            break
        if isinstance(answer, Refusal):
            refused.append(answer)
            continue
        try:
            detected = examine(answer, tree)
        except SourceError as error:
            refused.append(Refusal(answer.kind, error))
            continue
        if layout is None and answer.kind in WITHOUT_ANNOTATIONS and (reason := _drawn_apart(detected.facts)):
            rule = f"{folder}: {reason}; nothing says how they belong together"
            refused.append(Refusal("masks", SourceError(rule)))
            break
        return replace(detected, doubts=(*(str(one.error) for one in refused), *detected.doubts))
    if not refused:
        raise SourceError(
            f"{folder}: this folder is not laid out as --as {layout} says; leave it out to see what is found"
        )
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
            detected = examine(guess, tree)
            unread = tree.unread(detected.facts.used, _annotation_files(detected.source))
            if isinstance(guess.source, Archives) and set(detected.facts.kinds) == {"image"} and unread:
                rule = f"{tree.root}: the archives hold images alone, and {unread[0]}"
                raise SourceError(f"{rule}; unpack the archives, and run init again")
            return detected
    names = [name for files in tree.others.values() for few in files.values() for name in few]
    for pattern, way_out in _OTHER_FILES.items():
        if (name := next((name for name in names if re.fullmatch(pattern, name, re.IGNORECASE)), None)) is not None:
            raise SourceError(f"{tree.root}: no image below this folder. {name} belongs to {way_out}")
    raise SourceError(f"{tree.root}: no image below this folder (files ending in {', '.join(IMAGE_SUFFIXES)})")


def examine(candidate: LayoutGuess, tree: Inventory) -> Detected:
    """Return the source with what its samples are like, and what it does not read.

    Raises:
        SourceError: The source does not fit the folder.
    """
    source, doubts = candidate.source, candidate.doubts
    facts = look(source, tree.root)
    if isinstance(source, Paired) and source.mask and facts.drawn and all(facts.drawn.values()):
        rule = f"{tree.root}: the images {source.image}, with masks {source.mask}, have few colors, as pictures of masks have"
        raise SourceError(rule)
    names = ""
    if isinstance(source, Paired) and facts.mask_numbers:
        numbered, names, further_doubts = _with_numbers(source, tree, facts)
        source, facts, doubts = (
            numbered,
            facts if numbered is source else look(numbered, tree.root),
            (*doubts, *further_doubts),
        )
    elif (numbers := facts.mask_numbers.get("mask")) in _BLACK_AND_WHITE:
        doubts = (
            *doubts,
            f"the masks hold {numbers[0]} and {numbers[1]}, and keep them: write 0 and 1 for two classes",
        )
    if facts.deep and isinstance(source, _OfPixels):
        source, further_doubts = _with_pixels(source, facts)
        facts, doubts = look(source, tree.root), (*doubts, *further_doubts)
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
    # A dataset has files of its own beside its records.
    unread = [] if candidate.kind == "dataset" else tree.unread(facts.used, read)
    return Detected(source, candidate.layout, facts, (*doubts, *unread))


def _further_masks(source: Source, facts: Facts, tree: Inventory) -> Iterator[str]:
    """Yield the folders that may hold masks too, by one file of each that is not read."""
    if not isinstance(source, Paired) or source.mask is None:
        return
    # Masks without an image, or of a split that is left out, are no others.
    same = compile_pattern(source.mask, "detect").match_path
    first_left: dict[str, str] = {}
    for folder, names in tree.names.items():
        paths = (below(folder, name) for name in names)
        left = next((path for path in paths if not facts.reads(path) and same(path) is None), None)
        first_left |= {folder: left} if left is not None else {}
    folders: list[str] = []
    for folder, path in islice(first_left.items(), NAMES_KEPT):  # each opens a file
        with suppress(SampleError, MissingDependencyError):  # a file that is not read needs no package
            folders += [folder] if image_form(read_raw(tree.root, path))[2] else []
    if folders:
        listing = ", ".join(f"{folder or '.'}/" for folder in folders[:_FEW])
        yield f"{listing} may hold masks too: are those of {source.mask} the ones to learn (mask=)?"


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
        words = set[str]()
        for path in paths:
            if (holes := pattern.match_path(path)) is not None:
                of_class = split_words(holes.get("label", ""))  # classes may be called `valid` or `test_positive`
                words |= {word for word in split_words(path) if word not in of_class}
        if words - {"train", "training"}:
            listing = " and ".join(sorted(words))
            yield f"folders or files are called {listing}, and this recipe draws new splits from all of them (splits=)"
    lists = [path for path in tree.files(*_LISTS) if split_words(path) or _OF_SPLITS.search(path)]
    if lists := [path for path in lists if all(pattern.match_path(path) is None for pattern in read)]:
        few = ", ".join(lists[:3]) + ", …" * (len(lists) > 3)
        yield f"{few} may say which images are for training, and this recipe draws new splits (splits=)"


def _drawn_apart(facts: Facts) -> str:
    """Say which images have few colors, where their suffix, folder or the end of their name divides them from all others.

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
    return f"files such as {drawn[0]} have few colors, as masks have, and files such as {others[0]} are pictures"


def _copies(facts: Facts, tree: Inventory) -> str:
    """Say that most of the images opened that share their name are copies, as thumbnails are; "" where they are not."""

    def stem(name: str) -> str:
        return os.path.splitext(name)[0]

    @cache
    def hash_of(path: str) -> int:
        return perceptual_hash(read_raw(tree.root, path))

    alike: dict[str, list[str]] = {}  # copies of whole folders begin with the same name
    for folder, names in tree.names.items():
        alike.setdefault(stem(names[0]), []).append(folder)
    copies, of_one_name = [], 0
    for path in facts.drawn:
        folder, _, name = path.rpartition("/")
        others = alike[stem(tree.names[folder][0])][:NAMES_KEPT] if folder in tree.names else []
        named = (
            below(o, stem(name) + end) for o in others for suffix in tree.images[o] for end in (suffix, suffix.upper())
        )
        paths = [one for one in named if one != path and facts.reads(one) and (tree.root / one).is_file()]
        of_one_name += bool(paths)
        for other in paths:
            with suppress(SampleError, MissingDependencyError):  # pictures are compared where OpenCV is there
                if (hash_of(path) ^ hash_of(other)).bit_count() <= _SAME_BITS:
                    copies.append((path, other))
                    break
    if len(copies) < 2 or 2 * len(copies) < of_one_name:  # digits of two classes are alike now and then
        return ""
    return f"{copies[0][0]} and {copies[0][1]} seem to be one picture, and {len(copies) - 1} more of those opened have a copy too"


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
    if isinstance(source, Video):  # their samples lie in copies
        texts.append(source.videos)
    if isinstance(source, Archives) and source.archives.endswith(COMPRESSED_SUFFIXES):
        texts.append(source.archives)
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
    """The source with class numbers for its masks, where their files hold colors or black and white; as `_with_palette`."""
    numbers = facts.mask_numbers.get("mask")
    if not any(facts.mask_numbers.values()) and not source.palette and facts.problems:
        return _with_palette(source, tree, facts)
    if numbers in _BLACK_AND_WHITE:
        doubt = f"the masks hold {numbers[0]} and {numbers[1]}: two classes, 0 and 1 (numbers=)"
        return replace(source, numbers={numbers[0]: 0, numbers[1]: 1}), "", (doubt,)
    if numbers and len(numbers) > 2 and not any(0 < number < _DARKEST for number in numbers):
        doubt = ", ".join(map(str, numbers))
        return source, "", (f"the masks hold {doubt}: are these shades of gray for classes 0, 1, 2, ... (numbers=)?",)
    return source, "", ()


def _with_palette(source: Paired, tree: Inventory, facts: Facts) -> tuple[Paired, str, tuple[str, ...]]:
    """The source with class numbers for the colors of its masks, the file that names them, and the doubts.

    The numbers are in the order of that file, such as `class_dict.csv`; without one in that of the colors, black first.
    SourceError if the files are no masks.
    """
    folder = tree.root
    listing = source.scan(folder)
    codes: set[int] = set()
    opened = 0
    for entry in islice(listing.entries, _MASKS_OPENED):
        with suppress(SampleError):
            pixels = decode_image(read_files(folder, listing.files, entry)["mask"])
            codes.update(np.unique(pixels.astype(np.int64) @ np.array([1 << 16, 1 << 8, 1])).tolist())
            opened += 1
        if len(codes) > MOST_COLORS:
            raise SourceError(f"{folder}: the files of {source.mask!r} are no masks: {facts.problems[0]}")
    colors = [(code >> 16, code >> 8 & 255, code & 255) for code in sorted(codes)]
    doubt = f"the masks are pictures of {len(colors)} colors ({opened} opened); another color is a reject"
    for path in tree.files(".csv", ".txt"):
        named_colors = filter(None, map(_NAMED_COLOR.fullmatch, tree.text(path).splitlines()))
        names = {
            (int(one["r"]), int(one["g"]), int(one["b"])): one["before"] or one["after"] or "" for one in named_colors
        }
        if set(colors) <= names.keys():
            palette = {color: number for number, color in enumerate(names)}
            with suppress(RecipeError):  # two classes of one name
                named = replace(source, palette=palette, classes=tuple(name.strip(' "') for name in names.values()))
                return named, path, (f"the classes of the colors are those of {path}",)
    known = camvid().palette
    if len(colors) > 2 and all(color in known for color in colors):
        return replace(source, palette=known, classes=CAMVID_CLASSES), "", (doubt, "the classes are CamVid's")
    palette = {color: number for number, color in enumerate(colors)}
    about_order = "their numbers follow the colors' order, and want names (classes=)"
    return replace(source, palette=palette), "", (doubt, about_order)
