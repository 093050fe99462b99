"""Rules that propose sources: for annotations of objects, tables, archives, arrays, videos, masks and class folders."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain, islice
from posixpath import join
from statistics import median
from typing import Any, TypeAlias
from zlib import crc32

from tfprep.errors import MissingDependencyError, SampleError, SourceError
from tfprep.fields import Kind
from tfprep.images import HASH_BITS, perceptual_hash
from tfprep.sources import Archives, Arrays, Coco, Folder, Fractions, ObjectTable, Paired, Table, Video, Voc, Yolo
from tfprep.sources.annotations.coco import CocoFile, image_file_name
from tfprep.sources.annotations.yolo import DataYaml, label_path
from tfprep.sources.archives import ARCHIVE_SUFFIXES, members, split_name
from tfprep.sources.arrays import StoredArray, stored_arrays
from tfprep.sources.detection.files import FEW, Files, may_hold_data, splits_for, splits_of
from tfprep.sources.patterns import columns_of, image_suffix, is_test, literal, split_form, split_words
from tfprep.sources.raw import read_raw
from tfprep.sources.rows import BATCH_ROWS, TABLE_SUFFIXES, column_names, file_columns, rows_of
from tfprep.sources.video import VIDEO_SUFFIXES

Remark: TypeAlias = tuple[float, str]
"""What a user should check, and the share of samples that may be wrong: more than a few refuse the source."""
Proposal: TypeAlias = tuple[str, Any, Sequence[str], Sequence[Remark]]
"""A layout, the source that reads it, the patterns and paths of further files that the rule explains, and what is to be said."""

_MOST_JSON, _ARCHIVES_READ, _MEMBERS_READ, _MOST_NAMES = 1000, 8, 20_000, 50_000
"""Number of files that are opened, and of names that are compared. A tar file of a million members takes 50 s to list."""
_EVERY = 25  # frames from one that is taken to the next: about one for each second
_CLASS_NAMES = re.compile(r"(?:.*/)?(?:(?:predefined_)?classes\.txt|.*\.(?:names|labels))", re.IGNORECASE)
_YOLO_OBJECT = re.compile(r"\d+(?:\s+[-+.\de]+){4,}", re.IGNORECASE)


def yolo(files: Files) -> Iterator[Proposal]:
    """Yield the sources of YOLO's labels: YAML files, else labels and a list of class names. SourceError if there is no list."""
    lists = [path for path in files.paths(".txt", ".names", ".labels") if _CLASS_NAMES.fullmatch(path)]
    yamls = [path for path in files.paths(".yaml", ".yml") if re.search(rb"^names\s*:", files.head(path), re.MULTILINE)]
    found = list[tuple[Yolo, list[str], list[Remark]]]()
    for path in yamls:
        data = DataYaml.read(files.root, path)
        left_out = {split: f"is {where!r}, which is not in this folder" for split, where in data.missing.items()}
        left_out |= {split: f"names the images of {twin}, and is left out" for split, twin in data.twins.items()}
        own = tuple(split for split in data.places if split not in left_out)
        source = Yolo(data=path, splits=own if own and left_out else None)
        labels = [label_path(entry.files[0]) for entry in source.scan(files.root).entries]
        same = [names for names in lists if tuple(files.lines(names)) == data.names]
        declared = [path, *same, *labels, *chain(*data.places.values())]
        found.append((source, declared, [(0, f"{path}: {split} {why}") for split, why in left_out.items()]))
    labels = [path for path in files.paths(".txt") if path not in lists and not yamls]
    labels = [path for path in labels if os.path.splitext(os.path.basename(path))[0] in files.places]
    are_objects = any(_YOLO_OBJECT.fullmatch(line) for path in labels[:FEW] for line in files.lines(path))
    patterns = files.beside(labels)
    if are_objects and patterns is not None:
        if not lists:
            rule = "are YOLO's labels, and no data.yaml, classes.txt or obj.names has the names of their classes"
            raise SourceError(f"{patterns[1]} {rule}: write classes.txt with a name on each line")
        same = [path for path in lists if files.lines(path) == files.lines(lists[0])]
        # CVAT lists the images in train.txt. A further list, which may be of another split, is left over.
        same += [path for path in files.paths(".txt") if os.path.basename(path) == "train.txt"]
        source = Yolo(lists[0], *patterns, splits=splits_for(patterns[0]))
        found.append((source, [patterns[1], *same, *files.paths(".data")], []))
    for source, declared, remarks in found:
        objects = [one for entry in islice(source.scan(files.root).entries, FEW) for one in entry.values[0]["objects"]]
        further = {"points": any("points" in one for one in objects)}
        further["instances"] = bool(objects) and all("polygons" in one for one in objects)
        fields = ("boxes", "box_labels", *(name for name, is_there in further.items() if is_there))
        yield "yolo", replace(source, fields=fields), declared, remarks


def coco(files: Files) -> Iterator[Proposal]:
    """Yield the sources of COCO's files; captions, panoptic segments, and key points beside other objects are side files."""
    sides, groups = list[str](), dict[str, list[str]]()
    for path in files.paths(".json")[:_MOST_JSON]:
        head = files.head(path)
        if b'"images"' in head and (re.search(rb'"segments_info"|"caption"\s*:', head) or b'"annotations"' not in head):
            sides += [literal(path), f"**/{literal(os.path.splitext(os.path.basename(path))[0])}/*.png"]
        elif b'"images"' in head:
            groups.setdefault(split_form(path), []).append(path)
    sources = {pattern: _coco(files, pattern, paths) for pattern, paths in groups.items()}
    of_objects = {pattern: found for pattern, found in sources.items() if "points" not in found[0].fields} or sources
    sides += chain(*(groups[pattern] for pattern in groups.keys() - of_objects.keys()))
    for pattern, (source, remarks) in of_objects.items():
        yield "coco", source, (*groups[pattern], *sides), remarks


def _coco(files: Files, pattern: str, paths: Sequence[str]) -> tuple[Coco, list[Remark]]:
    """Return the source of COCO's files of one pattern with the fields of their annotations. SourceError without their images."""
    places, listed, objects = set[str](), list[str](), list[Any]()
    for path in paths:
        images = list(CocoFile.read(files.root / path).images())
        names = [str(image_file_name(image)) for image, _ in images]
        place = files.image_place(names, path, "it lists")
        listed += [join(place, name) for name in names]
        places.add(split_form(place) if {*split_words(place)} == {*split_words(path)} else literal(place))
        objects += [one for _, of_image in images for one in of_image if isinstance(one, dict)]
    if len(places) != 1:
        raise SourceError(f"the images of {paths[0]} and {paths[1]} are in folders that differ in more than the split")
    first = objects[0] if objects else {}
    drawn = sum(bool(one.get("segmentation")) for one in objects)
    known = {"boxes": "bbox" in first or bool(first.get("segmentation")), "box_labels": True}
    known |= {"instances": 10 * drawn >= 9 * len(objects) > 0, "points": "keypoints" in first}
    fields = tuple(name for name, is_there in known.items() if is_there)
    splits = splits_of(pattern, paths) or splits_for(pattern, images=listed)
    of_split = [key for image, _ in images[:1] for key, value in image.items() if split_form(str(value)) == "{split}"]
    remarks = list[Remark]()
    if of_split and isinstance(splits, Fractions):
        remarks = [(1, f"{paths[0]}: {of_split} of an image may say its split, and this recipe draws new ones")]
    return Coco(pattern, join(places.pop(), "{file_name}"), fields=fields, splits=splits), remarks


def voc(files: Files) -> Iterator[Proposal]:
    """Yield the source of Pascal VOC's XML files for single images."""
    notes = files.paths(".xml")
    heads = [files.head(path) for path in notes[:FEW]]
    is_voc = all(b"<annotation" in head and b"<image " not in head for head in heads)
    # Masks have the names of the annotations too.
    photos = [path for path in files.every if not re.search(r"(?:^|/)Segmentation(?:Class|Object)/", path)]
    patterns = replace(files, every=photos).beside(notes)
    if is_voc and patterns is not None:
        image, note = patterns
        prefix = note.rpartition("/")[0].rpartition("/")[0]
        start = join(prefix, "ImageSets/Main/")
        lists = [os.path.basename(path)[:-4] for path in files.paths(".txt") if path.startswith(start)]
        own = tuple(name for name in lists if split_form(name) == "{split}" and name != "trainval")
        options = {"sets": f"{start}{{split}}.txt", "splits": own or None} if lists else {"splits": splits_for(image)}
        source = Voc(image, note, fields=("boxes", "box_labels", "difficult"), first_pixel=1, **options)
        sides = ("SegmentationClass/**/*", "SegmentationObject/**/*", "ImageSets/**/*.txt", "labelmap.txt")
        check = (0, "pixels are taken to be counted from 1 (first_pixel=)")
        yield "voc", source, (note, *(join(prefix, side) for side in sides)), [check]


_LABELS = {
    *("label", "labels", "class", "classes", "classname", "classid", "classlabel", "category", "categoryid", "labelname"),
    *("species", "target", "diagnosis", "breed", "dx", "tags", "findinglabels", "attributeids", "emotion", "variety"),
}  # fmt: skip
"""Names of columns, in lower case and without other characters than letters and digits."""
_OF_FILES = {"", "key", "id", "imageid", "width", "height", "imagewidth", "imageheight", "area", "unnamed0"}
"""Names of columns that are not read: images, boxes and the order of the rows say the same."""
_GROUP = re.compile(r"(?i:patient|subject|group|video|.+[ _-]id)|.+[a-z]I[dD]")
"""Names of columns with what several images have in common: `Patient ID`, `lesion_id`, `sceneId`."""
_BOXES = (
    ("xyxy", "xmin ymin xmax ymax, x0 y0 x1 y1, x1 y1 x2 y2, left top right bottom"),
    ("center_xywh", "xcenter ycenter width height, xcenter ycenter w h, cx cy width height, cx cy w h"),
    ("xywh", "xmin ymin width height, x y width height, x y w h, bbox, bboxes, box, boxes"),
)
"""Names of the columns of boxes, and the form of their numbers."""
_NUMBER = re.compile(r"-?\d+(?:[.]\d*)?(?:e-?\d+)?")
_NO_CLASS = re.compile(r"[\[{].*|-?\d*[.]\d*[1-9]\d*")
"""Cells that are lists as text, or numbers with fractions."""
_FLAGS = ({"0", "1"}, {"-1", "1"}, {"true", "false"})

Columns: TypeAlias = Mapping[str, Sequence[Any]]
"""The cells of the first rows of a table by column; () for a column that holds files."""
Images: TypeAlias = tuple[str, str, list[str]]
"""The column that names or holds images, the path of an image with this column in braces, and the path of each image."""


def tables(files: Files) -> Iterator[Proposal]:
    """Yield the sources of tables whose rows name images, those of one split each together. SourceError if one cannot be read."""
    grouped: dict[str, list[str]] = {}
    for path in files.paths(*TABLE_SUFFIXES):
        shards = re.sub(r"\d+(?=-of-|\.parquet)|(?<=-of-)\d+", "*", path)  # of one split
        grouped.setdefault(split_form(shards), []).append(path)
    for pattern, paths in grouped.items():
        paths.sort(key=lambda path: "train" not in "".join(split_words(path)))
        columns = _columns(files, paths[0])
        found = _image(files, paths[0], columns)
        if found is not None:
            yield from _table(files, pattern, paths, columns, found)


def _columns(files: Files, path: str) -> Columns:
    """Return the cells of the first rows of a table by column. SourceError if its first line is not a header."""
    stored = file_columns(files.root / path) if path.lower().endswith(".parquet") else []
    names = [name for name in column_names(files.root / path) if name.partition(".")[0] not in stored]
    if image := next(filter(image_suffix, names), ""):
        raise SourceError(f"{path}: the first line names {image!r}: write the names of the columns above it")
    columns: dict[str, Sequence[Any]] = dict.fromkeys(stored, ())
    rows = [cells for _, cells in islice(rows_of(files.root / path, names), BATCH_ROWS)]
    if rows:
        columns |= zip(names, zip(*rows, strict=True), strict=True)
    return columns


def _image(files: Files, path: str, columns: Columns) -> Images | None:
    """Return the column of images; None if there is none. SourceError if the images are nowhere."""
    found = [(name != "image", name, name, list[str]()) for name, cells in columns.items() if not cells]
    for column in filter(None, columns):
        cells = [str(cell).replace("\\", "/") for cell in columns[column]]
        filled = [cell for cell in cells[:FEW] if cell not in ("None", "")]
        are_files = bool(filled) and all(map(image_suffix, filled))
        for suffix in ("", *sorted({suffix for _, suffix in files.images})):
            try:
                place = files.image_place([f"{cell}{suffix}" for cell in filled], path, f"{column!r} names")
            except SourceError:
                if are_files and not suffix and files.images:
                    raise
                continue
            image = join(literal(place), f"{{{column}}}{suffix}") if place or suffix else column
            found.append((not are_files, column, image, [join(place, f"{cell}{suffix}") for cell in cells]))
    return min(found, key=lambda one: one[0])[1:] if found else None


def _table(files: Files, pattern: str, paths: Sequence[str], columns: Columns, found: Images) -> Iterator[Proposal]:
    """Yield the source of the tables of one pattern, unless they hold nothing about their images."""
    of_image, image, images = found
    kept = [path for path in paths if columns.keys() <= {*column_names(files.root / path)}]
    unlabeled = [path for path in paths if path not in kept and is_test(path)]
    place, slash, name = image.rpartition("/")
    if "{split}" in pattern and split_words(place) == split_words(paths[0]):
        image = split_form(place, True) + slash + name
    table = pattern
    splits: Any = splits_of(pattern, kept)
    forms = {name: {split_form(str(cell)) for cell in cells} for name, cells in columns.items()}
    of_split = next((name for name, of_cells in forms.items() if of_cells == {"{split}"} and len(paths) == 1), None)
    if of_split is not None:
        table, splits = literal(paths[0]), of_split
    source, options, remarks = _roles(columns, {of_image, of_split}, images)
    if not (options["label"] or options.get("boxes") or options.get("fields")) and images:
        return
    options["splits"] = splits or splits_for(table, source is Table and options["label"] is not None, images)
    if source is ObjectTable and of_split is not None:
        options |= {"splits": None, "split": of_split}
    remarks += [(0, f"images of {path} have no labels, and are left out") for path in unlabeled]
    of_tests = (_image(files, path, _columns(files, path)) for path in unlabeled)
    declared = [*kept, *unlabeled, *chain(*(one[2] for one in of_tests if one is not None))]
    said = [(share, f"{paths[0]}: {text:.400}") for share, text in remarks]
    yield "table", source(table, image, **options), declared, said


def _roles(columns: Columns, known: set[str | None], images: Sequence[str]) -> tuple[Any, dict[str, Any], list[Remark]]:
    """Return the source for a table, its options for the columns, and what is to be said. `known` are the columns of the image
    and the split. Each other column that varies is boxes, the label, a text or a group, or the table is doubtful."""
    varied = [name for name, cells in columns.items() if len({*map(str, cells)}) != 1]  # also those that hold files
    # `objects` is read as `objects.bbox`; columns such as `boxes_shape` are of our own exports.
    used = {*known, *(name.rpartition(".")[0] for name in columns), *(f"{name}_shape" for name in columns)}
    boxes, box_format, nested = _boxes({name: cells for name, cells in columns.items() if name not in used})
    if boxes and f"{boxes[0]}_shape" in columns:
        box_format, nested = "xyxy", True
    of_rows = bool(boxes) and not nested  # a row for each object
    fields: dict[str, tuple[Kind, str]] = {}
    for name, cells in columns.items():
        if name.lower() in ("text", "caption") and not of_rows:
            fields[name] = "text", name
        elif nested and re.search("categor|box_label|objects.label", name.lower()):
            fields.setdefault("box_labels", ("label", name))
        elif not cells and name not in known and _MASK_WORD.fullmatch(name):
            fields.setdefault("mask", ("mask", name))
    if nested:
        fields["boxes"] = "boxes", boxes[0]
    used.update(boxes, (name for _, name in fields.values()))
    rest = {name: cells for name, cells in columns.items() if cells and name not in used}
    label, separator, remarks = _label(rest, [name for name in varied if name in rest], of_rows, bool(boxes or fields))
    used.update(label if isinstance(label, tuple) else (label,))
    unread = [name for name in varied if name not in used and _plain(name) not in _OF_FILES]
    groups = [name for name in unread if not of_rows and _GROUP.fullmatch(name) and _plain(name) not in _LABELS]
    groups = [name for name in groups if len({*map(str, columns[name])}) < len(columns[name])]
    unread = [name for name in unread if name not in groups]
    if isinstance(label, str):  # a number of each class says nothing more
        unread = [name for name in unread if split_words(name) or not _says_the_same(columns[name], columns[label])]
    folders = [os.path.basename(os.path.dirname(path)) for path in images]
    if len({*map(split_form, folders)}) > 1 and folders != [*map(str, columns.get(str(label), ()))]:
        unread.append(f"the folders, such as {folders[0]}")
    if unread:
        remarks.append((1, f"not read: {', '.join(unread)} (label=, fields=)"))
    remarks += [(0, f"images with one {name!r} may get into two splits (group_by={name!r})") for name in groups]
    if label and _plain(str(label)) not in _LABELS:
        remarks.append((0, f"the label is {label!r} (label=)"))
    if of_rows:
        options = {"label": label, "boxes": boxes if len(boxes) == 4 else boxes[0], "box_format": box_format}
        return ObjectTable, options, remarks
    return Table, {"label": label, "fields": fields, "separator": separator, "box_format": box_format}, remarks


def _plain(column: str) -> str:
    return re.sub(r"[\W_]", "", column.rpartition(".")[2].lower())


def _says_the_same(one: Sequence[Any], other: Sequence[Any]) -> bool:
    """Return True if each value of a column belongs to one value of the other."""
    pairs = {*zip(map(str, one), map(str, other), strict=False)}
    return len({*map(str, one)}) == len(pairs) == len({*map(str, other)})


def _label(columns: Columns, varied: list[str], of_rows: bool, may_lack: bool) -> tuple[Any, str | None, list[Remark]]:
    """Return the column of the label by its name, else columns of 1 and 0, None if there are none; what divides the classes in
    its cells; and what is to be said."""
    texts = {name: [str(cell).strip() for cell in cells if cell not in (None, "")] for name, cells in columns.items()}
    named = [name for name in columns if _plain(name) in _LABELS and "." not in name]
    values = {name: {cell.lower().removesuffix(".0") for cell in cells} for name, cells in texts.items()}
    flags = [name for name in values if any(values[name] <= pair for pair in _FLAGS) and not split_words(name)]
    if not named and varied and {*varied} <= {*flags}:
        return tuple(flags) if len(varied) > 1 else varied[0], None, []
    if not named and (may_lack or not varied):
        return None, None, []
    label = min(named or varied[:1], key=lambda name: all(map(_NUMBER.fullmatch, texts[name])))
    remarks: list[Remark] = [] if named else [(1, f"no column has the name of a label; it may be {label} (label=)")]
    if of_rows or any(isinstance(cell, list) for cell in columns[label]):
        return label, None, remarks
    classes = sorted({*texts[label]})
    odd = [*filter(_NO_CLASS.fullmatch, classes)]
    if not 1 < len(classes) < max(3, len(texts[label])):
        odd = odd or classes
    if odd:
        rule = "are lists, fractions, all different or all the same, not like classes"
        scalar = f"(a number to predict is read by fields={{{label!r}: ('scalar', {label!r})}})"
        remarks.append((1, f"{odd[0]!r:.40} and others in {label!r} {rule} {scalar}"))
    numbers = [float(name) for name in classes if _NUMBER.fullmatch(name)]
    if len(numbers) == len(classes) > 2 and (min(numbers) < 0 or max(numbers) > len(numbers)):
        remarks.append((0, f"the numbers in {label!r} are taken for classes, not for amounts"))
    separator, several = _separator(label, classes)
    return label, separator, [*remarks, *several]


def _separator(label: str, cells: Sequence[str]) -> tuple[str | None, list[Remark]]:
    """Return what divides the classes in the cells of a label, None if nothing does; and what is to be said about it."""
    for separator in "|;, ":
        classes = {cell: [part.strip() for part in cell.split(separator)] for cell in cells}
        several = [cell for cell in cells if len(classes[cell]) > 1]
        counts = Counter(part for of_cell in classes.values() for part in {*of_cell})
        if several and (separator == "|" or max(counts.values()) > 1):
            shown = "; ".join(f"{cell!r} is {classes[cell]}" for cell in several[:3])
            # Tags, as of Planet, have more combinations than tags; names of several words do not, or all have two words.
            are_tags = len(counts) < len(cells) and len({*map(len, classes.values())}) > 2
            is_sure = separator == "|" or counts.keys() <= {*cells} or are_tags
            return separator, [(not is_sure, f"cells of {label!r} hold several classes, or one: {shown} (separator=)")]
    return None, []


def _boxes(columns: Columns) -> tuple[tuple[str, ...], Any, bool]:
    """Return the columns that hold boxes, () if there are none; their form; and whether a cell holds all boxes of an image."""
    plain = {re.sub(r"^(?:bbox|box)(?=.)(?!es$)", "", _plain(name)): name for name in reversed([*columns])}
    for form, names in ((form, names.split()) for form, of_form in _BOXES for names in of_form.split(", ")):
        found = tuple(plain[name] for name in names if name in plain)
        numbers = [[*map(float, _NUMBER.findall(" ".join(map(str, columns[name]))))] for name in found]
        if len(found) == len(names) and all(numbers):
            are_shares = all(-0.01 <= number <= 1.01 for number in chain(*numbers))
            cells = [cell for cell in columns[found[0]] if isinstance(cell, list) and cell]
            nested = any(isinstance(cell[0], list) for cell in cells)
            return found, f"rel_{form}" if are_shares else form, nested and len(found) == 1
    return (), "xyxy", False


_MASK_WORD = re.compile(
    r"(?:masks?|trimaps?|ann(?:o(?:t(?:ation)?)?)?s?|lab(?:els?)?|manual|seg(?:mentation)?s?|semantics?|gts?|ground[_ ]?truth"
    r"|targets?)\d*",
    re.IGNORECASE,
)


def masks(files: Files) -> Iterator[Proposal]:
    """Yield sources of images with masks: in words of their paths, or as `a.png` beside `a.jpg`."""
    for image, other, _ in files.pairs:
        words, of_image = ({*re.split(r"[/ _.*-]|\{split\}", one), *one.split("/")} for one in (other, image))
        says_masks = any(map(_MASK_WORD.fullmatch, words - of_image)) and not re.search("flow|disp|depth", other)
        if says_masks or os.path.splitext(image)[0] == os.path.splitext(other)[0]:
            yield "masks", Paired(image, other, splits=splits_for(image)), (), ()


_IMAGE_WORD = r"i(?:mage|mg)s?|photos?|pictures?|pics?|dsc"
_PARTS = (
    rf"{_MASK_WORD.pattern}|{_IMAGE_WORD}|jpe?g(?:images)?|png|tiff?|raw|rgb|inputs?|frames|instances?|panoptic|depths?|bands?"
    r"|channels?|b\d\d|disp(?:arit(?:y|ies))?|flows?|surface_?normals|alphas?|mattes?|[hl]r|left|right|visible|vis?|thermal|infrared"
    r"|n?ir|extra|anchors?|unlabell?ed|quer(?:y|ies)|gallery|database|index|ref(?:erence)?s?|dist(?:orted)?|contents?|styles?|sources?"
    r"|(?:patient|subject|scan|session|sequence|seq|video|visit|plot)s?[ _-]*\d+|before|after|pre|post|fg|bg|docs|assets|figures"
    r"|clean|clear|noisy|haz[ey]|blur(?:red|ry)?|sharp|low|high|gray|grey|colou?r|original|augmented|resized|cropped|processed"
)
_PART = re.compile(rf"(?:{_PARTS})(?:[ _-]+(?:{_PARTS}))*[ _-]?\d*", re.IGNORECASE)
"""Words for images, for what belongs to them, or for what was done to them: folders with such names are not classes."""
_GROUP_FOLDER = re.compile(
    r"(?:jan|feb|mar|apr|may|june?|july?|aug|sep|oct|nov|dec)[a-z]*(?:\W?\d+)?|[a-z]+day|new folder.*"
    r"|(?:19|20)\d\d.*|t?\d\d[a-z]{3}|\d+x|\d{4,}|[\da-f]{8}[\da-f-]*", re.IGNORECASE
)  # fmt: skip
"""Folders of images that belong together, where all are such: `March`, `2024-05 holiday`, `T32TMT`, `40X`, `69000`."""
_NUMBER_OF_CLASS = re.compile(r"(?i:[cfglnst]?(?:0|[1-9]\d?)|[1-9]\d\d|n\d{8}|(?:class|type|grade|stage)[ _-]?\w+)")
"""Numbers of classes: `7`, `c0`, `s40`, `type_2`, WordNet's `n01440764`. `P0012`, `week_3` and `07` may be of something else."""
_BEGINNING = re.compile(r"(?:^|/)(?:([\da-f]{2,})/\1[\da-f]+|([A-Za-z])/\2[a-z]{2,}(?![a-z]).*)\.\w+$", re.IGNORECASE)
"""Files in folders of the first letters of their names, or of the first digits of their hashes."""
_PLAIN_NUMBER = re.compile(rf"(?:(?:{_IMAGE_WORD})[ _.-]?)?(?!0\d{{4,}}$)\d+", re.IGNORECASE)
"""Names that programs give to the files of each folder. Numbers of five digits from 0 are frames of a video."""
_SAMPLED, _ONE_SCENE_BITS = 8, 16
"""Perceptual hashes of unrelated pictures differ in about 32 of 64 bits, those of inverted ones in nearly all."""


def folders(files: Files) -> Iterator[Proposal]:
    """Yield class folders or images without classes: each level of folders is a name, the split, or the class.
    Where folders are doubtful, there is a source for each reading."""
    every = sorted({folder for folder, _ in files.images})
    deepest = max((folder.count("/") for folder in every), default=0)
    # A folder of a test split may have no classes.
    inner = [folder for folder in every if folder.count("/") == deepest or not is_test(folder)]
    patterns, doubts = list[str](), list[str]()
    columns = columns_of(inner)
    if columns is None and inner:
        doubts.append(f"images are in folders of several depths: {', '.join(sorted(inner, key=len)[:3])}, ...")
        prefix = os.path.commonpath(inner) if "" not in inner else ""
        patterns = [join(literal(prefix), end) for end in ("{label}/**", "**/{label}/*", "**")]
    elif columns is not None:
        places = [place for place, (form, _) in enumerate(columns) if not form]
        classes = sorted({*columns[places[0]][1]}) if len(places) == 1 else []
        doubts += [*_about_pairs(files), *_about_names(files, classes)]
        if len(places) > 1:
            doubts.append(f"there are folders in folders ({', '.join(inner[:3])}); which are the classes?")
        if doubts or not places:
            places.append(-1)  # no level is the class
        for place in places:
            levels = [form or ("{label}" if at == place else "*") for at, (form, _) in enumerate(columns)]
            patterns.append("/".join([*levels, "**" if place >= 0 and inner == every else "*"]))
    for pattern in dict.fromkeys(patterns):
        of_classes = "{label}" in pattern
        unlabeled = [] if of_classes else ["no folder or file says the classes of these images; their names may"]
        source = Folder(pattern, splits=splits_for(pattern, of_classes))
        yield "folders" if of_classes else "images", source, (), [(1, doubt) for doubt in (*doubts, *unlabeled)]


def _about_names(files: Files, classes: Sequence[str]) -> Iterator[str]:
    """Yield the doubts that folders, each of which would be a class, have names of something else."""
    form_of = {name: re.sub(r"\d+|(?<=[ _-])[A-Za-z]$|(?<=[a-z])[A-Z]$", "0", name) for name in classes}
    counts = Counter(form_of.values())
    numbered = [name for name, form in form_of.items() if counts[form] > 1]
    numbers = sorted(map(int, filter(str.isdecimal, numbered)))
    odd = [*filter(_PART.fullmatch, classes)]
    # Such as the days 12 and 13, or the sizes 256 and 512.
    starts_late = bool(numbers) and numbers[0] > 1 and (numbers[-1] - numbers[0] < len(numbers) or numbers[0] > 99)
    if all(map(_GROUP_FOLDER.fullmatch, classes)):
        odd = odd or [*classes]
    elif starts_late or not all(map(_NUMBER_OF_CLASS.fullmatch, numbered)):
        odd = odd or numbered
    if odd:
        yield f"{', '.join(odd[:3])} have names of images, dates, patients or sequences, not of classes"
    if classes and all(map(_BEGINNING.search, files.paths(*files.image_suffixes))):
        yield f"{', '.join(classes[:3])} are the beginnings of the names inside, as those of shards are"


def _about_pairs(files: Files) -> Iterator[str]:
    """Yield the doubt that names correspond, as those of views of one image do, if the names of their folders are taken out.
    Files may be numbered in each folder, unless they look alike, or like inverted copies."""
    names = dict.fromkeys(files.paths(*files.image_suffixes))
    paths_of: dict[str, str] = {}  # by the path without the word of its folder
    compared, every = 0, 1 + len(names) // _MOST_NAMES
    for path in names:
        folder, slash, name = path.rpartition("/")
        word = folder.rpartition("/")[2]
        if re.search("[A-Za-z]{2}", word) and word.lower() in name.lower():
            name = re.sub(rf"(?<![A-Za-z]){re.escape(word)}(?![A-Za-z])", "", name, count=1, flags=re.IGNORECASE)
        if crc32(os.fsencode(name)) % every == 0:
            paths_of[folder + slash + name] = path
    for image, other, pairs in (*files.pairs, *replace(files, every=[*paths_of]).pairs):
        whole = [path for both in pairs[:FEW] for path in both if path in names or not re.search(r"\d[^/]*$", path)]
        stems = (os.path.splitext(os.path.basename(path))[0] for path in whole)
        is_numbered = os.path.dirname(image) != os.path.dirname(other) and all(map(_PLAIN_NUMBER.fullmatch, stems))
        compared += is_numbered
        bits = list[int]()
        if is_numbered and compared <= _SAMPLED and image_suffix(pairs[0][0]):
            with suppress(SampleError, MissingDependencyError):
                for both in pairs[:_SAMPLED]:
                    one, two = (perceptual_hash(read_raw(files.root, paths_of.get(path, path))) for path in both)
                    bits.append(min((one ^ two).bit_count(), HASH_BITS - (one ^ two).bit_count()))
        if not is_numbered or (bits and median(bits) < _ONE_SCENE_BITS):
            rule = f"{' and '.join(sorted((image, other)))} have names that correspond"
            yield f"{rule}, as images and what belongs to them have"
            return


def archives(files: Files) -> Iterator[Proposal]:
    """Yield the source of tar or zip files with images, with the classes and splits that names inside of them give.
    SourceError if one cannot be read."""
    if packed := files.paths(".tgz", ".gz", ".bz2", ".xz", ".zst"):
        raise SourceError(f"{packed[0]} is compressed as a whole, so that no member has a place of its own: unpack it")
    paths = next(filter(None, map(files.paths, ARCHIVE_SUFFIXES)), [])
    read = (islice(members(files.root / path, Counter()), _MEMBERS_READ) for path in paths[:_ARCHIVES_READ])
    names = [*dict.fromkeys(member.name.removeprefix("./") for of_archive in read for member in of_archive)]
    names = [name for name in names if may_hold_data(os.path.basename(name))]
    inside = [name for name in names if image_suffix(name)]
    if not inside:
        return
    pattern = re.sub(r"\d+", "*", split_form(paths[0]))
    endings = sorted({split_name(name)[1].lower() for name in names})
    of_images = [ending for ending in endings if image_suffix(f"x.{ending}")]
    images = tuple(ending for ending in of_images if re.fullmatch(r"(?:image\.)?[^.]+", ending))
    masks = [ending for ending in of_images if _MASK_WORD.fullmatch(ending.rpartition(".")[0])]
    fields: dict[str, tuple[Kind, str]] = {}
    if masks:
        fields["mask"] = "mask", masks[0]
    if "txt" in endings and paths[0].endswith(".tar"):
        fields["text"] = "text", "txt"
    label = next((ending for ending in endings if ending.rpartition(".")[2] == "cls"), None)
    found = list[tuple[Archives, Sequence[Remark]]]()
    if images and (label or fields):  # as WebDataset's
        further = {*endings}.difference(images, [label, "key.txt", "json"], (ending for _, ending in fields.values()))
        stems = Counter(stem for stem, ending in map(split_name, names) if ending.lower() in images)
        if max(stems.values()) > 1:  # such as a JPEG and a PNG, which may be its mask
            further.update(images)
        splits = splits_for(pattern, label is not None)
        found.append((Archives(pattern, images, label, fields=fields, splits=splits), ()))
    else:
        further = {os.path.splitext(name)[1] for name in {*names}.difference(inside)}
        for _, folder, _, doubts in folders(Files(files.root / paths[0], inside)):
            of_archive, splits = pattern, splits_for(pattern, "label" in folder.kinds())
            if "{split}" in folder.image:
                of_archive, splits = pattern.replace("{split}", "*"), None
            inner = folder.image if folder.image != "*" else None
            found.append((Archives(of_archive, members=inner, splits=splits), doubts))
    rule = f"{paths[0]} holds further files ({', '.join(sorted(further)[:6])}): unpack it, and run init on the folder"
    unread = [(1, rule)] if further else []
    for source, doubts in found:
        yield "archives", source, (pattern,), [*doubts, *unread]


def videos(files: Files) -> Iterator[Proposal]:
    """Yield the sources of the videos of each suffix, in folders of splits and of classes as images are."""
    for suffix in filter(files.by_suffix.get, VIDEO_SUFFIXES):
        for _, folder, _, doubts in folders(replace(files, image_suffixes=(suffix,))):
            pattern = re.sub(r"\*\*$", "**/*", folder.image) + suffix
            check = (0, f"one of {_EVERY} frames is taken (every=)")
            yield "videos", Video(pattern, every=_EVERY, splits=splits_for(pattern)), (pattern,), (*doubts, check)


def arrays(files: Files) -> Iterator[Proposal]:
    """Yield the source of arrays in NumPy's files. Raises SourceError if nothing says which array holds the images."""
    if idx := [path for path in files.every if "ubyte" in path.rpartition("/")[2]]:
        rule = "is a file of MNIST's format (IDX): write it as an array of NumPy, as docs/sources.md shows"
        raise SourceError(f"{idx[0]} {rule}")
    texts = [literal(path) for path in files.paths(".npy")]
    for path in files.paths(".npz"):
        texts += [f"{literal(path)}:{one.name.removesuffix('.npy')}" for one in members(files.root / path, Counter())]
    forms: dict[str, list[StoredArray]] = {}
    for text in texts:
        form = split_form(text.replace(":", "/"), True).replace(".npz/", ".npz:")
        forms.setdefault(form, []).extend(stored_arrays(files.root, text))
    labels = [form for form, (one, *_) in forms.items() if len(one.shape) == 1 or one.shape[1:] == (1,)]
    images = [form for form in forms if form not in labels]
    # [N, H, W] or [N, H, W, C]. Other orders of the axes need channels_first=.
    shape = forms[images[0]][0].shape if images else ()
    is_image = shape[3:] in ((), (1,), (3,), (4,)) and len(shape) > 2 and not {*shape[1:3]} & {1, 3, 4}
    named = all(re.search(r"(?i)label|class|target|categor|(?<![a-z])y(?![a-z])", form) for form in labels)
    examples = [f"{one.name} {one.dtype} {list(one.shape)}" for of_form in forms.values() for one in of_form[:2]]
    shapes = ", ".join(examples[:6]) + (", …" if len(examples) > 6 else "")
    if is_image and named and len(images) == 1 and len(labels) < 2:
        source = Arrays(images[0], next(iter(labels), None), splits=splits_for(images[0], bool(labels)))
        check = (0, f"the arrays are {shapes}: each row of {images[0]} is an image")
        yield "arrays", source, [text.partition(":")[0] for text in texts], [check]
    elif forms:
        rule = "nothing says which array holds images [N, H, W] or [N, H, W, C] of at most 4 channels, and which their classes"
        raise SourceError(f"{rule}: {shapes}; write the recipe with sources.Arrays (channels_first=)")


RULES = (yolo, coco, voc, tables, archives, arrays, videos, masks, folders)
