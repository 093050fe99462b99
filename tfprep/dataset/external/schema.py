"""From what was found in the records to the fields of a dataset: names, shapes, types and codecs.

- Numbers, or strings, of which every record has equally many are an array of that shape: one is a scalar, k are [k].
- Where records differ, or some do not have the feature, the field is a list of any length; a record without it has none.
- A string that is a JPEG or a PNG is an image, of one size if all are. Each record must have it.
- Strings that are UTF-8 are text. All other strings are left out, with what they look like, unless their dtype is declared.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from tfprep.codecs import Encoded, Raw, Scalar, Text, Texts
from tfprep.codecs.raw import DTYPES
from tfprep.dataset.external.declared import Declared, Shape
from tfprep.dataset.external.summary import LONGEST_VALUE, FeatureSummary, looks
from tfprep.errors import DatasetError, RecipeError
from tfprep.fields import RASTER_KINDS, FieldSpec, field_name_fault

RESERVED = {"split", "shard", "number", "offset", "size", "payload_crc", "height", "width", "source_digest"}
"""MappedColumns of an index that are no fields."""
_MASK_WORDS = {"mask", "masks", "segmentation", "annotation", "annotations", "seg"}
_BOX_WORDS = {"bbox", "bboxes", "box", "boxes", "xmin", "keypoints", "polygon"}
_DTYPES = {"int64": "int64", "float": "float32"}


@dataclass(frozen=True)
class IndexedField:
    """A feature that becomes a field.

    Attributes:
        name: The field's name: that of the feature, with '_' for what cannot stand in a name.
        feature: The feature's name in the Examples.
        spec: Kind, shape and dtype.
        codec: The codec's description.
        column: Whether the index holds its values, for `where` and `balance`.
        required: Whether a record without it is left out.
        classes: The names of a label's classes.
        note: What a user should know about it; "" for nothing.
    """

    name: str
    feature: str
    spec: FieldSpec
    codec: Mapping[str, Any]
    column: bool = False
    required: bool = False
    classes: tuple[str, ...] = ()
    note: str = ""


@dataclass(frozen=True)
class LeftOut:
    """A feature that becomes no field, and why."""

    feature: str
    reason: str


class _Unreadable(Exception):
    """A feature becomes no field; the text says why."""


def decide_fields(
    summaries: Mapping[str, FeatureSummary],
    records: int,
    declared: Mapping[str, Declared],
    require: Iterable[str] = (),
    ignore: Iterable[str] = (),
) -> tuple[list[IndexedField], list[LeftOut]]:
    """Decide which features become which fields.

    Args:
        summaries: What was found, by feature.
        records: The number of records.
        declared: What is known beforehand, by feature.
        require: Features without which a record is left out.
        ignore: Features that become no fields.

    Returns:
        The fields, and the features that become none.

    Raises:
        DatasetError: A name stands for no feature, or what is declared does not fit what was found.
    """
    require, ignore = set(require), set(ignore)
    _check_names(summaries, {"--require": require, "--ignore": ignore})
    names = _field_names(name for name in sorted(summaries) if name not in ignore)
    fields, left_out = [], [LeftOut(name, "--ignore names it") for name in sorted(ignore)]
    for feature, name in names.items():
        known = declared.get(feature, Declared())
        try:
            fields.append(_field(name, feature, summaries[feature], records, known, feature in require))
        except _Unreadable as error:
            left_out.append(LeftOut(feature, str(error)))
    absent = sorted(set(declared) - set(summaries))
    left_out += [LeftOut(name, declared[name].reason or "no record has it, although it is declared") for name in absent]
    return fields, left_out


def _check_names(summaries: Mapping[str, FeatureSummary], options: Mapping[str, set[str]]) -> None:
    for option, names in options.items():
        if unknown := sorted(names - set(summaries)):
            raise DatasetError(f"{option} {unknown[0]!r}: no record has it; there are {', '.join(sorted(summaries))}")


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
    if summary.kind != "bytes":
        return _numbers(name, feature, summary, records, known, require)
    images, single = sum(summary.images.values()), summary.kinds["bytes"]
    if known.kind in ("image", "mask") or (2 * images >= single and images):
        return _image(name, feature, summary, known)
    if known.dtype not in (None, "str", "object"):
        return _raw(name, feature, summary, records, known)
    if summary.utf8:
        return _text(name, feature, summary, records, require)
    raise _Unreadable(looks(summary))


def _counts(summary: FeatureSummary, records: int, require: bool) -> tuple[int, int]:
    """The least and the greatest number of values of a record; a record without the feature has none."""
    least, greatest = summary.counts or (0, 0)
    absent = summary.records < records or least == 0
    return (max(least, 1) if require else 0) if absent else least, greatest


def _shape(counts: tuple[int, int]) -> Shape:
    least, greatest = counts
    return (None,) if least != greatest else () if least == 1 else (least,)


def _numbers(
    name: str, feature: str, summary: FeatureSummary, records: int, known: Declared, require: bool
) -> IndexedField:
    counts = _counts(summary, records, require)
    shape = _shape(counts)
    if known.shape is not None:
        shape = _declared_shape(feature, known.shape, shape, counts)
    words = set(re.split(r"[^a-z]+", feature.lower()))
    is_label = (
        (known.kind == "label" or feature.rpartition("/")[2] == "label") and summary.kind == "int64" and shape == ()
    )
    spec = FieldSpec("label" if is_label else "scalar", shape, _DTYPES[summary.kind])
    note = "geometry= moves pixels, not these numbers" if words & _BOX_WORDS else ""
    classes = known.classes if summary.kind == "int64" else ()
    return IndexedField(
        name, feature, spec, Scalar().describe(), column=counts[1] <= 1, required=require, classes=classes, note=note
    )


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


def _text(name: str, feature: str, summary: FeatureSummary, records: int, require: bool) -> IndexedField:
    counts = _counts(summary, records, require)
    shape = _shape(counts)
    longest = summary.sizes[1] if summary.sizes else 0
    codec = Text() if shape == () else Texts()
    column = counts[1] <= 1 and longest <= LONGEST_VALUE
    spec = FieldSpec("text", shape, "string")
    return IndexedField(name, feature, spec, codec.describe(), column=column, required=require)


def _raw(name: str, feature: str, summary: FeatureSummary, records: int, known: Declared) -> IndexedField:
    if known.dtype not in DTYPES or known.shape is None or known.shape.count(None) > 1:
        raise DatasetError(
            f"{feature!r}: an array's bytes have a dtype ({', '.join(DTYPES)}) and a shape with at most one null, not "
            f"{known.dtype!r} and {known.shape!r}"
        )
    if _counts(summary, records, True) != (1, 1):
        raise _Unreadable("lists of several byte strings")
    kind = known.kind or "scalar"
    spec = FieldSpec(kind, known.shape, known.dtype)  # type: ignore[arg-type] # checked when it was read
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
    forms: list[tuple[Any, ...]] = [
        (*form.split(), count) for form, count in summary.images.items() if form != "unreadable"
    ]
    if not forms:
        raise _Unreadable(f"declared as an image, but {looks(summary)}")
    channels, dtype = _channels(forms), _pixel_dtype(forms)
    height, width = (
        None if sides is None or sides[0] != sides[1] else sides[0] for sides in (summary.heights, summary.widths)
    )
    odd = summary.records - sum(int(count) for *_, count in forms)
    if odd:
        height = width = None
    if known.kind in ("image", "mask") and known.shape and len(known.shape) == 3 and known.shape[2] is not None:
        channels = known.shape[2]
    is_mask = known.kind == "mask" or (known.kind is None and channels == 1 and _names_a_mask(feature, forms))
    if is_mask and channels != 1:
        raise DatasetError(f"{feature!r}: a mask has one channel of class numbers, its images have {channels}")
    shape: Shape = (height, width) if is_mask else (height, width, channels)
    spec = FieldSpec("mask" if is_mask else "image", shape, dtype)
    notes = _image_notes(forms, channels, odd, is_mask)
    return IndexedField(name, feature, spec, Encoded().describe(), required=True, note="; ".join(notes))


def _channels(forms: list[tuple[Any, ...]]) -> int:
    stored = {3 if form == "jpeg" and channels == "4" else int(channels) for form, channels, *_ in forms}
    return stored.pop() if len(stored) == 1 else 1 if stored <= {1, 2} else 3


def _pixel_dtype(forms: list[tuple[Any, ...]]) -> str:
    deep = sum(int(count) for _, _, bits, count in forms if bits == "16")
    return "uint16" if 2 * deep > sum(int(count) for *_, count in forms) else "uint8"


def _names_a_mask(feature: str, forms: list[tuple[Any, ...]]) -> bool:
    return bool(_MASK_WORDS & set(re.split(r"[^a-z]+", feature.lower()))) and all(form == "png" for form, *_ in forms)


def _image_notes(forms: list[tuple[Any, ...]], channels: int, odd: int, is_mask: bool) -> list[str]:
    notes = []
    if odd:
        notes.append(f"{odd:,} values are no JPEG or PNG: bad records")
    alpha = sum(int(count) for form, stored, _, count in forms if form == "png" and stored in ("2", "4"))
    if alpha and channels in (1, 3):
        notes.append(f"the alpha channel of {alpha:,} is dropped")
    if is_mask:
        notes.append("a mask: geometry= takes the nearest pixel")
    elif channels == 1 and all(form == "png" for form, *_ in forms):
        notes.append("gray; if these are class numbers, declare its kind as 'mask' with --features")
    return notes


def sized_raster(fields: Iterable[IndexedField], summaries: Mapping[str, FeatureSummary]) -> str | None:
    """The feature whose height and width the index holds: of the images, or else of the masks, the one of the most pixels."""

    def pixels(item: IndexedField) -> tuple[bool, int]:
        heights, widths = summaries[item.feature].heights or (0, 0), summaries[item.feature].widths or (0, 0)
        return item.spec.kind == "image", heights[1] * widths[1]

    rasters = [item for item in fields if item.spec.kind in RASTER_KINDS and item.codec["codec"] == "encoded"]
    return max(rasters, key=pixels).feature if rasters else None
