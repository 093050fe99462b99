"""From what was found in the records to the fields of a dataset: names, shapes, types and codecs.

- Numbers or strings that every record has in the same number are an array of that shape: one is a scalar, k are [k].
- Where records differ, or some do not have the feature, the field is a list of any length; a record without it has none.
- A string that is a JPEG or a PNG is an image, of one size if all are. Each record must have it.
- Strings that are UTF-8 without control characters are text. All other strings are left out, with what they look like, unless
  their dtype is declared.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

from tfprep.codecs import Boxes, Encoded, Raw, Scalar, Text, Texts
from tfprep.codecs.raw import DTYPES
from tfprep.dataset.imported.declared import Declared, Shape
from tfprep.errors import DatasetError, RecipeError
from tfprep.fields import RASTER_KINDS, FieldSpec, Kind, field_name_fault

RESERVED = {
    *("key", "split", "variant", "shard", "offset", "size", "payload_crc", "height", "width"),
    *("source_digest", "image_digest", "image_hash"),
}
"""Columns of an index that are not fields; `label` is the first label."""
_MASK_WORDS = {"mask", "masks", "segmentation", "annotation", "annotations", "seg"}
BOX_WORDS = {"bbox", "bboxes", "box", "boxes", "xmin", "ymin", "xmax", "ymax", "keypoints", "polygon"}
_ROWS: Mapping[str, tuple[int]] = {"boxes": (4,), "points": (2,)}
_MOST_SHARE = 2.0
"""Sides of boxes that are all smaller are shares of the image, some of them a little beyond its edge."""
BOX_SIDES = ("xmin", "ymin", "xmax", "ymax")
"""Ends of the names of features that hold the sides of boxes, in the order of `xyxy`."""
_DTYPES = {"int64": "int64", "float": "float32"}
LONGEST_VALUE = 256
"""Bytes of a string that the index keeps for `where` and `balance`: names of classes and files, no captions."""
START_BYTES = 16
"""Bytes of the first value that are kept, to say what an unknown feature looks like."""


@dataclass(frozen=True)
class FeatureSummary:
    """One feature over some records.

    Attributes:
        records: The number of records that have it.
        kinds: The number of records by kind of list: "bytes", "float", "int64", and "none" where there is no list.
        counts: The least and the greatest number of values in a record that has the feature.
        sizes: The least and the greatest number of bytes of a value (of all numbers of a record).
        images: The number of records by what the header of the image says: "jpeg 3 8" for three channels of 8 bits.
        heights: The least and the greatest height of the images, in pixels; `widths` the same of their width.
        text: Whether all values that were looked at are text.
        start: The first bytes of one value, in hexadecimal.
        greatest: The greatest number of a feature whose name is one of boxes.
    """

    records: int = 0
    kinds: Mapping[str, int] = field(default_factory=dict)
    counts: tuple[int, int] | None = None
    sizes: tuple[int, int] | None = None
    images: Mapping[str, int] = field(default_factory=dict)
    heights: tuple[int, int] | None = None
    widths: tuple[int, int] | None = None
    text: bool = True
    start: str = ""
    greatest: float | None = None

    def merged(self, other: FeatureSummary) -> FeatureSummary:
        """Both together."""
        return FeatureSummary(
            self.records + other.records,
            dict(sorted((Counter(self.kinds) + Counter(other.kinds)).items())),
            _range(self.counts, other.counts),
            _range(self.sizes, other.sizes),
            {
                name: self.images.get(name, 0) + other.images.get(name, 0)
                for name in sorted({*self.images, *other.images})
            },
            _range(self.heights, other.heights),
            _range(self.widths, other.widths),
            self.text and other.text,
            self.start or other.start,
            max((one for one in (self.greatest, other.greatest) if one is not None), default=None),
        )

    @property
    def kind(self) -> str:
        """The only kind of list that has values; "" where there is none, or where there are several."""
        kinds = [kind for kind in self.kinds if kind != "none"]
        return kinds[0] if len(kinds) == 1 else ""


def _range(one: tuple[int, int] | None, other: tuple[int, int] | None) -> tuple[int, int] | None:
    if one is None or other is None:
        return one or other
    return min(one[0], other[0]), max(one[1], other[1])


def merge(first: Mapping[str, FeatureSummary], second: Mapping[str, FeatureSummary]) -> dict[str, FeatureSummary]:
    """The summaries of all features of both."""
    merged = dict(first)
    for name, summary in second.items():
        merged[name] = merged[name].merged(summary) if name in merged else summary
    return merged


# --- the fields ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class IndexedField:
    """A feature that becomes a field.

    Attributes:
        name: The field's name: that of the feature, with '_' for what a name cannot hold.
        feature: The feature's name in the Examples.
        spec: Kind, shape and dtype.
        codec: The codec's description.
        column: Whether the index holds its values in a column, for `where` and `balance`.
        required: Whether a record without it is left out.
        classes: The names of a label's classes.
        fixed: Whether its numbers are places in the image in a form that is not known, so that they cannot follow geometry.
        rows: For boxes, the names of the fields with one value per box.
        note: What a user should know about it; "" for nothing.
    """

    name: str
    feature: str
    spec: FieldSpec
    codec: Mapping[str, Any]
    column: bool = False
    required: bool = False
    classes: tuple[str, ...] = ()
    fixed: bool = False
    rows: tuple[str, ...] = ()
    note: str = ""


class _Unreadable(Exception):
    """A feature becomes no field; the text says why."""


def decide_fields(
    summaries: Mapping[str, FeatureSummary],
    records: int,
    declared: Mapping[str, Declared],
    require: Iterable[str] = (),
    ignore: Iterable[str] = (),
) -> tuple[list[IndexedField], dict[str, str]]:
    """Decide which features become which fields.

    Args:
        summaries: What was found, by feature.
        records: The number of records.
        declared: What is known beforehand, by feature.
        require: Features without which a record is left out.
        ignore: Features that become no fields.

    Returns:
        The fields, and the features that become none, with the reason.

    Raises:
        DatasetError: A name stands for no feature, or what is declared does not fit what was found.
    """
    require, ignore = set(require), set(ignore)
    for option, chosen in (("--require", require), ("--ignore", ignore)):
        if unknown := sorted(chosen - set(summaries)):
            raise DatasetError(f"{option} {unknown[0]!r}: no record has it; there are {', '.join(sorted(summaries))}")
    names = _field_names(name for name in sorted(summaries) if name not in ignore)
    fields, left_out = [], dict.fromkeys(sorted(ignore), "--ignore names it")
    for feature, name in names.items():
        known = declared.get(feature, Declared())
        try:
            field = _field(name, feature, summaries[feature], records, known, feature in require)
            is_side = known.kind == "boxes" and feature.rpartition("/")[2] in BOX_SIDES
            if known.kind not in (None, field.spec.kind) and not is_side:
                there = f"{summaries[feature].kind} values of shape {list(field.spec.shape)}"
                raise DatasetError(
                    f"{feature!r} is declared as {known.kind}, which its {there} cannot be; correct --features"
                )
            fields.append(field)
        except _Unreadable as error:
            left_out[feature] = str(error)
    for feature in sorted(set(declared) - set(summaries)):
        left_out[feature] = declared[feature].reason or "no record has it, although it is declared"
    return _label_first(_with_boxes(fields, summaries, declared)), left_out


def _with_boxes(
    fields: Sequence[IndexedField], summaries: Mapping[str, FeatureSummary], declared: Mapping[str, Declared]
) -> list[IndexedField]:
    """Make boxes of numbers that are declared as boxes, and of four lists of equal shape that are named as their sides.

    Shares of the image and numbers in pixels are told apart by the greatest number, unless the form is declared.
    """
    by_feature = {item.feature: item for item in fields}
    kept, image = list(fields), sized_raster(fields, summaries)
    for feature, item in by_feature.items():
        prefix, slash, side = feature.rpartition("/")
        form = declared.get(feature, Declared()).format
        sides = [by_feature.get(f"{prefix}{slash}{name}") for name in BOX_SIDES]
        parts = [part for part in sides if part is not None and part.spec.dtype == "float32"]
        if side == BOX_SIDES[0] and len(parts) == 4 and len({part.spec.shape for part in parts}) == 1:
            axis = (*item.spec.shape, 1)[0]
            greatest = max((summaries[part.feature].greatest or 0.0 for part in parts), default=0.0)
            form, name = form or ("xyxy" if greatest > _MOST_SHARE else "rel_xyxy"), "boxes"
            above = prefix.rpartition("/")[0]
        elif form and item.spec.kind == "boxes":
            parts, axis, name, above = [item], item.spec.shape[0], item.name, prefix
        else:
            continue
        if form.startswith("rel_") and image is None:
            kept[kept.index(item)] = replace(item, spec=replace(item.spec, kind="scalar"), fixed=True)
            continue
        kept = [one for one in kept if one not in parts]
        while any({name, f"{name}_offset", f"{name}_size"} & {one.name} for one in kept):
            name += "_"
        rows = [one.name for one in kept if above and one.feature.startswith(f"{above}/") and one.spec.shape == (axis,)]
        codec = Boxes([part.feature for part in parts], form, image or "" if form.startswith("rel_") else "")
        boxes = IndexedField(
            name, feature, FieldSpec("boxes", (axis, 4), "float32"), codec.describe(),
            required=any(part.required for part in parts), rows=tuple(rows),
            note=f"x0, y0, x1, y1 in pixels, of {form} in {prefix or feature}",
        )  # fmt: skip
        kept.append(boxes)
    return kept


def _label_first(fields: list[IndexedField]) -> list[IndexedField]:
    """Put a label of the name `label` first, since the index's column `label` is that of the first label.

    Another field of this name gets another one, if there is a label.
    """
    if not any(one.spec.kind == "label" for one in fields):
        return fields
    other = "label_"
    while any({other, f"{other}_offset"} & {one.name, f"{one.name}_offset"} for one in fields):
        other += "_"
    renamed = [
        replace(field, name=other) if field.name == "label" and field.spec.kind != "label" else field
        for field in fields
    ]
    return sorted(renamed, key=lambda field: field.name != "label")


def _field_names(features: Iterable[str]) -> dict[str, str]:
    """A name for each feature. A field's name has letters, digits and '_'; the index has columns NAME_offset, NAME_size."""
    names: dict[str, str] = {}
    used = set(RESERVED)
    for feature in features:
        name = re.sub(r"[^A-Za-z0-9_]", "_", feature)[:90] or "_"
        name = f"_{name}" if name[0].isdigit() else name
        while field_name_fault(name) or {name, f"{name}_offset", f"{name}_size"} & used:
            name += "_"
        names[feature] = name
        used |= {name, f"{name}_offset", f"{name}_size"}
    return names


def _field(
    name: str, feature: str, summary: FeatureSummary, records: int, known: Declared, require: bool
) -> IndexedField:
    if known.reason:
        raise _Unreadable(known.reason)
    if not summary.kind:
        kinds = [f"{kind} in {count:,} records" for kind, count in summary.kinds.items() if kind != "none"]
        raise _Unreadable(" and ".join(kinds) if kinds else "it is empty in every record")
    least, most = counts = _counts(summary, records, require)
    shape: Shape = (None,) if least != most else () if least == 1 else (least,)
    if summary.kind == "bytes":
        images, single = sum(summary.images.values()), summary.kinds["bytes"]
        if known.kind in ("image", "mask") or (2 * images >= single and images):
            return _image(name, feature, summary, known)
        if known.dtype not in (None, "str", "object"):
            return _raw(name, feature, summary, records, known)
        if not summary.text:
            raise _Unreadable(looks(summary))
        codec, spec = Text() if shape == () else Texts(), FieldSpec("text", shape, "string")
        is_column = most <= 1 and (summary.sizes or (0, 0))[1] <= LONGEST_VALUE
        return IndexedField(name, feature, spec, codec.describe(), column=is_column, required=require)
    shape = shape if known.shape is None else _declared_shape(feature, known.shape, shape, counts)
    is_named = known.kind == "label" or bool(known.classes) or feature.rpartition("/")[2] == "label"
    kind: Kind = "label" if is_named and summary.kind == "int64" and shape == () else "scalar"
    is_side = feature.rpartition("/")[2] in BOX_SIDES  # `_with_boxes` joins them
    if known.kind is not None and known.kind in _ROWS and summary.kind == "float" and not is_side:
        kind = known.kind
        shape = _shape_of_places(feature, kind, shape if known.shape is not None else (None, *_ROWS[kind]), counts)
    words = set(re.split(r"[^a-z]+", feature.lower()))
    is_place = kind == "scalar" and bool(words & BOX_WORDS)
    return IndexedField(
        name, feature, FieldSpec(kind, shape, _DTYPES[summary.kind]), Scalar().describe(),
        column=most <= 1, required=require, classes=known.classes if summary.kind == "int64" else (), fixed=is_place,
        note="places in the image? geometry refuses it; declare 'boxes' or 'points' with --features" if is_place else "",
    )  # fmt: skip


def _shape_of_places(feature: str, kind: str, shape: Shape, counts: tuple[int, int]) -> Shape:
    """Return the shape of boxes [N, 4] or points [N, 2] whose numbers the records hold."""
    shape = (1, *shape) if shape == _ROWS[kind] else shape
    if shape[1:] != _ROWS[kind]:
        raise DatasetError(
            f"{feature!r} is declared as {kind}, whose shape is [null, {_ROWS[kind][0]}], not {list(shape)}"
        )
    return _declared_shape(feature, shape, shape, counts)


def _counts(summary: FeatureSummary, records: int, require: bool) -> tuple[int, int]:
    """Return the least and the greatest number of values of a record; a record without the feature has none."""
    least, greatest = summary.counts or (0, 0)
    absent = summary.records < records or least == 0
    return (max(least, 1) if require else 0) if absent else least, greatest


def _declared_shape(feature: str, declared: Shape, found: Shape, counts: tuple[int, int]) -> Shape:
    """The declared shape; DatasetError where a record has another number of values."""
    unknown, known = declared.count(None), prod(size for size in declared if size is not None)
    fits = all(count % max(known, 1) == 0 for count in counts) if unknown == 1 else counts == (known, known)
    if unknown > 1 or (unknown == 0 and not declared and found == (None,) and counts == (0, 1)):
        return found
    if not fits:
        values = f"{counts[0]:,}" if counts[0] == counts[1] else f"{counts[0]:,} to {counts[1]:,}"
        raise DatasetError(
            f"{feature!r} is declared with the shape {list(declared)}, but the records have {values} values of it. Correct "
            "the file of --features, or leave the feature out with --ignore"
        )
    return declared


def _raw(name: str, feature: str, summary: FeatureSummary, records: int, known: Declared) -> IndexedField:
    if known.dtype not in DTYPES or known.shape is None or known.shape.count(None) > 1:
        raise DatasetError(
            f"{feature!r}: an array's bytes have a dtype ({', '.join(DTYPES)}) and a shape with at most one null, not "
            f"{known.dtype!r} and {known.shape!r}"
        )
    if _counts(summary, records, True) != (1, 1):
        raise _Unreadable("lists of several byte strings")
    kind = known.kind or "scalar"
    spec = FieldSpec(kind, known.shape, known.dtype)
    item = Raw(known.dtype)
    try:
        item.check(name, spec.kind)
    except RecipeError as error:
        raise DatasetError(f"{feature!r}: {error}") from error
    return IndexedField(name, feature, spec, item.describe(), required=True)


# --- images -----------------------------------------------------------------------------------------------------------


def _image(name: str, feature: str, summary: FeatureSummary, known: Declared) -> IndexedField:
    if summary.counts and summary.counts[1] > 1:
        raise _Unreadable(f"lists of up to {summary.counts[1]:,} images a record")
    forms: list[tuple[int, int, str, int]] = []
    for text, count in summary.images.items():
        if text != "unreadable":
            form, stored_channels, bits = text.split()
            forms.append((int(stored_channels), int(bits), form, count))
    if not forms:
        raise _Unreadable(f"declared as an image, but {looks(summary)}")
    images = sum(count for *_, count in forms)
    stored = {3 if form == "jpeg" and channels == 4 else channels for channels, _, form, _ in forms}
    channels = stored.pop() if len(stored) == 1 else 1 if stored <= {1, 2} else 3
    dtype = "uint16" if 2 * sum(count for _, bits, _, count in forms if bits == 16) > images else "uint8"
    height, width = (
        None if sides is None or sides[0] != sides[1] else sides[0] for sides in (summary.heights, summary.widths)
    )
    odd = summary.records - images
    if odd:
        height = width = None
    if known.kind in ("image", "mask") and known.shape and len(known.shape) == 3 and known.shape[2] is not None:
        channels = known.shape[2]
    is_png = all(form == "png" for _, _, form, _ in forms)
    is_named = bool(_MASK_WORDS & set(re.split(r"[^a-z]+", feature.lower())))
    is_mask = known.kind == "mask" or (known.kind is None and channels == 1 and is_png and is_named)
    if is_mask and channels != 1:
        raise DatasetError(f"{feature!r}: a mask has one channel of class numbers, its images have {channels}")
    shape: Shape = (height, width) if is_mask else (height, width, channels)
    spec = FieldSpec("mask" if is_mask else "image", shape, dtype)
    notes = [f"{odd:,} values are not JPEG or PNG: bad records"] if odd else []
    alpha = sum(count for with_alpha, _, form, count in forms if form == "png" and with_alpha in (2, 4))
    if alpha and channels in (1, 3):
        notes.append(f"the alpha channel of {alpha:,} is dropped")
    if is_mask:
        notes.append("a mask: geometry= takes the nearest pixel")
    elif channels == 1 and is_png:
        notes.append("gray; if these are class numbers, declare its kind as 'mask' with --features")
    classes = known.classes if is_mask else ()
    return IndexedField(
        name, feature, spec, Encoded().describe(), required=True, classes=classes, note="; ".join(notes)
    )


def sized_raster(fields: Iterable[IndexedField], summaries: Mapping[str, FeatureSummary]) -> str | None:
    """The feature whose height and width the index holds: of the images, or else of the masks, the one of the most pixels."""

    def pixels(item: IndexedField) -> tuple[bool, int]:
        heights, widths = summaries[item.feature].heights or (0, 0), summaries[item.feature].widths or (0, 0)
        return item.spec.kind == "image", heights[1] * widths[1]

    rasters = [item for item in fields if item.spec.kind in RASTER_KINDS and item.codec["codec"] == "encoded"]
    return max(rasters, key=pixels).feature if rasters else None


def looks(summary: FeatureSummary) -> str:
    """Say what the values of an unknown feature look like, and what would make a field of them."""
    start = bytes.fromhex(summary.start)
    least, greatest = summary.sizes or (0, 0)
    if summary.counts and summary.counts[1] > 1:
        return f"lists of up to {summary.counts[1]:,} byte strings that are not text"
    if least == greatest and least:
        return (
            f"{least:,} bytes in every record, not text, beginning with {start[:8]!r}: raw numbers? Declare their dtype and "
            "shape with --features. Of image files, only JPEG and PNG are decoded"
        )
    return f"{least:,} to {greatest:,} bytes, not text, beginning with {start[:8]!r}; only JPEG and PNG are decoded"
