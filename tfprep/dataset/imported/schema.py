"""From what was found in the records to the fields of a dataset: names, shapes, types and codecs.

- Numbers or strings that every record has in the same number are an array of that shape: one is a scalar, k are [k].
- Where records differ, or some do not have the feature, the field is a list of any length; a record without it has none.
- A string that is a JPEG or a PNG is an image, of one size if all are. Each record must have it.
- Strings that are UTF-8 without control characters are text. All other strings are left out, unless their dtype is declared.
"""

from __future__ import annotations

import posixpath
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from tfprep.codecs import Boxes, Encoded, Raw, Scalar, Text, Texts
from tfprep.codecs.raw import DTYPES
from tfprep.dataset.imported.declared import Declared, Shape
from tfprep.dataset.imported.scan import BOX_SIDES, LONGEST_VALUE, MOST_SHARE, Summary
from tfprep.dataset.index import schema
from tfprep.errors import DatasetError, RecipeError
from tfprep.fields import RASTER_KINDS, FieldSpec, Kind, field_name_fault

_RESERVED = {*schema((), None).names, "label_"}
"""Columns of an index that are not fields, and a name for what is called `label` beside labels."""
_MASK_WORDS = {"mask", "masks", "segmentation", "annotation", "annotations", "seg", "label", "labels"}
_PLACE_WORDS = {
    *("bbox", "bboxes", "box", "boxes", "xmin", "ymin", "xmax", "ymax", "polygon", "polygons", "contour", "contours"),
    *("keypoint", "keypoints", "landmark", "landmarks", "corner", "corners"),
}
_OTHER_WORDS = {
    *("id", "ids", "num", "number", "count", "label", "labels", "class", "score", "scores", "area", "visibility"),
}
"""Words of numbers that belong to boxes and points, and are not places."""
_ROWS: Mapping[Kind, int] = {"boxes": 4, "points": 2}
"""The kinds that a list of numbers may be declared as, with the numbers in a row of it."""
_DTYPES = {"int64": "int64", "float": "float32"}
_MOST_LOST = 0.5
"""Records without an image are left out up to this share; beyond it, the image is."""


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
        rows: For boxes, the names of the fields with a row per box; None where that is not known.
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
    rows: tuple[str, ...] | None = None
    note: str = ""


class _Unreadable(Exception):
    """A feature becomes no field; the text says why."""


def decide_fields(
    summaries: Mapping[str, Summary], records: int, declared: Mapping[str, Declared], *, skip: bool
) -> tuple[list[IndexedField], dict[str, str]]:
    """Return the fields that features become, and the features that become none, with the reason.

    `skip`: records may be left out that do not have what each must have. DatasetError where what is declared does not fit what
    was found.
    """
    fields, left_out = [], {}
    for feature, name in _field_names(summaries).items():
        try:
            item = _field(name, feature, summaries[feature], records, declared.get(feature, Declared()))
            absent = records - summaries[feature].get(f"kind {summaries[feature].kind}", 0)
            if item.required and absent > (records * _MOST_LOST if skip else 0):
                advice = "" if skip else "; --on-bad skip leaves those records out and lists them"
                raise _Unreadable(f"{absent:,} of {records:,} records have none{advice}")
            fields.append(item)
        except _Unreadable as error:
            left_out[feature] = str(error)
    for feature in sorted(set(declared) - set(summaries)):
        left_out[feature] = declared[feature].reason or "no record has it, although it is declared"
    fields = _with_boxes(fields, summaries, declared)
    if any(item.spec.kind == "label" for item in fields):  # the index's column `label` is that of the first label
        is_other = [item.name == "label" and item.spec.kind != "label" for item in fields]
        fields = [replace(one, name="label_") if other else one for one, other in zip(fields, is_other, strict=True)]
        fields.sort(key=lambda item: item.name != "label")
    return fields, left_out


def _field_names(features: Iterable[str]) -> dict[str, str]:
    """A name for each feature. A field's name has letters, digits and '_'; the index has columns NAME_offset, NAME_size."""
    names: dict[str, str] = {}
    used = set(_RESERVED)
    for feature in sorted(features):
        name = re.sub(r"[^A-Za-z0-9_]", "_", feature)[:90] or "_"
        name = f"_{name}" if name[0].isdigit() else name
        while field_name_fault(name) or {name, f"{name}_offset", f"{name}_size"} & used:
            name += "_"
        names[feature] = name
        used |= {name, f"{name}_offset", f"{name}_size"}
    return names


def _field(name: str, feature: str, summary: Summary, records: int, known: Declared) -> IndexedField:
    if known.reason:
        raise _Unreadable(known.reason)
    if not summary.kind:
        kinds = [
            f"{kind} in {count:,} records" for kind, count in sorted(summary.sums("kind").items()) if kind != "none"
        ]
        raise _Unreadable(" and ".join(kinds) if kinds else "it is empty in every record")
    is_in_all = sum(summary.sums("kind").values()) == records
    counts = summary["least count"] if is_in_all else 0, summary["most count"]
    item = (_strings if summary.kind == "bytes" else _numbers)(name, feature, summary, known, counts)
    is_side = known.kind == "boxes" and feature.rpartition("/")[2] in BOX_SIDES  # `_with_boxes` joins them
    what = f"{summary.kind} values of shape {list(item.spec.shape)}"
    if known.kind not in (None, item.spec.kind) and not is_side:
        raise DatasetError(f"{feature!r} is declared as {known.kind}, which its {what} cannot be; correct --features")
    if known.dtype not in (None, item.spec.dtype):
        raise DatasetError(f"{feature!r} is declared as {known.dtype}, but holds {what}; correct --features")
    if known.classes and not item.classes:
        raise DatasetError(f"{feature!r} has class names, but holds {what}, not class numbers; correct --features")
    return item


def _shape(feature: str, declared: Shape | None, counts: tuple[int, int]) -> Shape:
    """Return the shape of the values of a record, as it is declared, or by the least and the greatest number of them.

    A declared scalar that some records lack is a list. DatasetError where the numbers do not fit what is declared.
    """
    least, most = counts
    if declared is None or declared.count(None) > 1 or (not declared and counts == (0, 1)):
        return (None,) if least != most else () if least == 1 else (least,)
    known = prod(size for size in declared if size is not None)
    if not (all(count % max(known, 1) == 0 for count in counts) if None in declared else counts == (known, known)):
        values = f"{least:,}" if least == most else f"{least:,} to {most:,}"
        raise DatasetError(
            f"{feature!r} is declared with the shape {list(declared)}, but the records have {values} values of it; correct "
            "--features"
        )
    return declared


# --- numbers ------------------------------------------------------------------------------------------------------------


def _numbers(name: str, feature: str, summary: Summary, known: Declared, counts: tuple[int, int]) -> IndexedField:
    last = feature.rpartition("/")[2]
    shape = known.shape
    kind: Kind = "scalar"
    if known.kind is not None and known.kind in _ROWS and summary.kind == "float" and last not in BOX_SIDES:
        kind, size = known.kind, _ROWS[known.kind]
        shape = (None, size) if shape is None else (1, *shape) if shape == (size,) else shape
        if shape[1:] != (size,):
            raise DatasetError(f"{feature!r} is declared as {kind}, whose shape is [null, {size}], not {list(shape)}")
    shape = _shape(feature, shape, counts)
    is_label = known.kind == "label" or bool(known.classes) or last == "label"
    if is_label and summary.kind == "int64" and shape == ():
        kind = "label"
    if summary.kind == "int64" and 0 < len(known.classes) <= (most := summary.get("most integer", 0)):
        raise DatasetError(
            f"{feature!r} has {len(known.classes)} class names, of the numbers from 0, and a record has {most}: give each number "
            "from 0 a name"
        )
    words = set(re.split(r"[^a-z]+", feature.lower()))
    is_named = feature.endswith(("/x", "/y")) or bool(_PLACE_WORDS & words)
    is_place = kind == "scalar" and is_named and not _OTHER_WORDS & words
    return IndexedField(
        name, feature, FieldSpec(kind, shape, _DTYPES[summary.kind]), Scalar().describe(),
        column=counts[1] <= 1, classes=known.classes if summary.kind == "int64" else (), fixed=is_place,
        note="places in the image? geometry refuses it; declare 'boxes' or 'points' with --features" if is_place else "",
    )  # fmt: skip


def _with_boxes(
    fields: Sequence[IndexedField], summaries: Mapping[str, Summary], declared: Mapping[str, Declared]
) -> list[IndexedField]:
    """Make boxes of numbers that are declared as boxes, and of four lists of equal shape that are named as their sides.

    Shares of the image and numbers in pixels are told apart by the greatest number of most records, unless the form is declared.
    """
    by_feature = {item.feature: item for item in fields}
    kept, made = list(fields), dict[str, tuple[str, int | None, int, tuple[str, ...] | None]]()
    for item in fields:
        prefix, slash, side = item.feature.rpartition("/")
        known = declared.get(item.feature, Declared())
        form, weighed = known.format or "", summaries[item.feature]["weighed"]
        sides = [by_feature.get(f"{prefix}{slash}{name}") for name in BOX_SIDES]
        parts = [part for part in sides if part is not None and part.spec.dtype == "float32"]
        are_sides = side in BOX_SIDES and len(parts) == 4 and len({part.spec.shape for part in parts}) == 1
        if side in BOX_SIDES and form and not (are_sides and form in ("xyxy", "rel_xyxy")):
            raise DatasetError(
                f"{item.feature!r} is declared as boxes of the form {form}; sides of boxes are four lists of floats, xmin, ymin, "
                "xmax and ymax, of one length: xyxy or rel_xyxy. Correct --features"
            )
        if are_sides and side == BOX_SIDES[0]:
            name, axis, above = "boxes", (*item.spec.shape, 1)[0], prefix.rpartition("/")[0]
        elif form and item.spec.kind == "boxes":
            parts, axis, name, above, weighed = [item], item.spec.shape[0], item.name, prefix, weighed // 4
        else:
            continue
        in_pixels = max(summaries[part.feature].get("in pixels", 0) for part in parts)
        records = summaries[item.feature]["kind float"]
        if (form.startswith("rel_") and 2 * in_pixels > records) or (not form and 0 < 2 * in_pixels <= records):
            said = f"is declared as {form}, shares of the image, and" if form else "are sides of boxes, and"
            raise DatasetError(
                f"{item.feature!r} {said} {in_pixels} of {records} records have numbers above {MOST_SHARE}, as pixels are; "
                "declare the boxes with their format in --features"
            )
        form = form or ("xyxy" if in_pixels else "rel_xyxy")
        image = sized_raster(fields, summaries, item.feature) if form.startswith("rel_") else ""
        if image is None:
            kept[kept.index(item)] = replace(item, spec=replace(item.spec, kind="scalar"), fixed=True)
            continue
        kept = [field for field in kept if field not in parts]
        while any({name, f"{name}_offset", f"{name}_size"} & {field.name} for field in kept):
            name += "_"
        codec = Boxes([part.feature for part in parts], form, image)
        note = f"x0, y0, x1, y1 in pixels, of {form} in {prefix or item.feature}"
        spec = FieldSpec("boxes", (axis, 4), "float32")
        kept.append(IndexedField(name, item.feature, spec, codec.describe(), note=note))
        made[name] = above, axis, weighed, known.rows
    groups = {group for group, *_ in made.values()}
    others = [field for field in kept if field.spec.kind not in (*RASTER_KINDS, "boxes") and field.spec.shape]
    rows = {name: _rows_of(others, summaries, groups, *of_boxes) for name, of_boxes in made.items()}
    counts = Counter(name for of_boxes in rows.values() for name in of_boxes or ())
    clear = {name: of for name, of in rows.items() if of is not None and all(counts[row] == 1 for row in of)}
    return [replace(field, rows=clear.get(field.name)) for field in kept]


def _rows_of(
    fields: Sequence[IndexedField], summaries: Mapping[str, Summary], groups: Iterable[str],
    group: str, boxes: int | None, weighed: int, known: tuple[str, ...] | None,
) -> tuple[str, ...] | None:  # fmt: skip
    """Return the names of the lists with a row per box; `boxes` and `weighed` are the number of boxes, as a side and as a sum.

    They are those that are known; or those of the same group, and those that have as many rows as boxes in every record. Nothing
    tells them (None) where that number never differs, or where, without a group, a list has another number in some records.
    """
    if unknown := set(known or ()) - {field.feature for field in fields}:
        raise DatasetError(f"rows of boxes: {min(unknown)!r} is not a list of numbers or texts; correct --features")
    if known is not None:
        return tuple(field.name for field in fields if field.feature in known)
    rows = []
    for field in fields:
        own = "" if "" in groups else group
        if max((one for one in groups if field.feature.startswith(f"{one}/")), key=len, default=own) != group:
            continue  # it belongs to other boxes
        length, *width = field.spec.shape
        is_equal = summaries[field.feature]["weighed"] == weighed * prod(side or 1 for side in width)
        in_group, is_raw = bool(group) and field.feature.startswith(f"{group}/"), field.codec["codec"] == "raw"
        beside = not group and "/" not in field.feature and not (field.column or field.spec.kind == "text")
        if not is_raw and ((length is None and is_equal) or (in_group and not width and (is_equal or length is None))):
            rows.append(field.name)
        elif is_equal or ((is_raw or (beside and length is None)) and length == boxes):
            return None
    return tuple(rows)


# --- strings ------------------------------------------------------------------------------------------------------------


def _strings(name: str, feature: str, summary: Summary, known: Declared, counts: tuple[int, int]) -> IndexedField:
    is_single, images = counts[1] <= 1, sum(summary.sums("image").values())
    is_declared = known.kind in ("image", "mask") and known.dtype is None
    if is_declared or (images and 2 * images >= summary["kind bytes"]):
        if not is_single:
            raise _Unreadable(f"lists of up to {counts[1]:,} images in a record")
        return _image(name, feature, summary, known)
    if known.dtype is not None:
        if not is_single:
            raise _Unreadable("lists of several byte strings")
        if known.dtype not in DTYPES or known.shape is None or known.shape.count(None) > 1:
            raise DatasetError(
                f"{feature!r}: an array's bytes have a dtype ({', '.join(DTYPES)}) and a shape with at most one null, not "
                f"{known.dtype!r} and {known.shape!r}"
            )
        spec, raw = FieldSpec(known.kind or "scalar", known.shape, known.dtype), Raw(known.dtype)
        try:
            raw.check(name, spec.kind)
        except RecipeError as error:
            raise DatasetError(f"{feature!r}: {error}") from error
        return IndexedField(name, feature, spec, raw.describe(), required=True)
    if summary["other"] or not summary["visible"]:
        sizes = dict.fromkeys(f"{summary[size]:,}" for size in ("least bytes", "most bytes"))
        what = f"strings of {' to '.join(sizes)} bytes" if is_single else "lists of byte strings"
        raise _Unreadable(
            f"{what} that are neither text, JPEG nor PNG; for raw numbers declare dtype and shape with --features"
        )
    shape = _shape(feature, None, counts)
    codec, spec = Text() if shape == () else Texts(), FieldSpec("text", shape, "string")
    is_column = is_single and summary["most bytes"] <= LONGEST_VALUE
    return IndexedField(name, feature, spec, codec.describe(), column=is_column)


def _image(name: str, feature: str, summary: Summary, known: Declared) -> IndexedField:
    forms = []
    for text, count in sorted(summary.sums("image").items()):
        if text != "unreadable":
            form, channels, bits = text.split()
            forms.append((form, int(channels), int(bits), count))
    if not forms:
        raise _Unreadable("declared as an image, and no value is a JPEG or a PNG")
    images = sum(count for *_, count in forms)
    stored = {3 if (form, number) == ("jpeg", 4) else number for form, number, *_ in forms}
    depth = stored.pop() if len(stored) == 1 else 1 if stored <= {1, 2} else 3
    dtype = "uint16" if 2 * sum(count for _, _, bits, count in forms if bits == 16) > images else "uint8"
    odd = sum(summary.sums("kind").values()) - images
    ranges = [(summary[f"least {side}"], summary[f"most {side}"]) for side in ("height", "width")]
    sides = [least if least == most and not odd else None for least, most in ranges]
    wrong_sides = [side for side, both in zip(known.shape or (), ranges, strict=False) if side and (side, side) != both]
    if wrong_sides or known.dtype not in (None, dtype):
        declared = f"{known.dtype or dtype} {list(known.shape or ())}"
        found = f"{dtype}, {ranges[0][0]} to {ranges[0][1]} high and {ranges[1][0]} to {ranges[1][1]} wide"
        raise DatasetError(f"{feature!r} is declared as {declared}, but its images are {found}; correct --features")
    if known.shape and len(known.shape) == 3 and known.shape[2] is not None:
        depth = known.shape[2]
    is_named = bool(_MASK_WORDS & set(re.split(r"[^a-z]+", feature.lower())))
    is_png = all(form == "png" for form, *_ in forms)
    is_mask = known.kind == "mask" or (known.kind is None and depth == 1 and is_png and is_named)
    if is_mask and depth != 1:
        raise DatasetError(f"{feature!r}: a mask has one channel of class numbers, its images have {depth}")
    alpha = sum(count for form, with_alpha, _, count in forms if form == "png" and with_alpha in (2, 4))
    notes = {
        f"{odd:,} values are not JPEG or PNG: bad records": odd,
        f"the alpha channel of {alpha:,} is dropped": alpha if depth in (1, 3) else 0,
        "a mask: geometry= takes the nearest pixel": is_mask,
    }
    return IndexedField(
        name, feature, FieldSpec("mask" if is_mask else "image", tuple(sides) if is_mask else (*sides, depth), dtype),
        Encoded().describe(), required=True, classes=known.classes if is_mask else (),
        note="; ".join(note for note, holds in notes.items() if holds),
    )  # fmt: skip


def sized_raster(fields: Iterable[IndexedField], summaries: Mapping[str, Summary], near: str = "") -> str | None:
    """The feature of the images, or else of the masks, whose name begins most like `near`; of several the one of the most pixels.

    The index has the height and width of the one of all features; boxes are shares of the one near them.
    """

    def pixels(item: IndexedField) -> tuple[bool, int, int]:
        summary = summaries[item.feature]
        common = posixpath.commonpath([f"/{item.feature}", f"/{near}"])
        return item.spec.kind == "image", len(common), summary["most height"] * summary["most width"]

    rasters = [item for item in fields if item.spec.kind in RASTER_KINDS and item.codec["codec"] == "encoded"]
    return max(rasters, key=pixels).feature if rasters else None
