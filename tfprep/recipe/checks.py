"""Checks of a recipe's options; each mistake is a RecipeError with the rule, the value received and the fix."""

from __future__ import annotations

import hashlib
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from math import isfinite
from pathlib import Path
from typing import Any, TypeAlias

from tfprep.augment import Custom
from tfprep.augment.transform import effects_of
from tfprep.codecs import Jpeg, Original
from tfprep.dataset.names import check_name
from tfprep.derive.inputs import derived_kind, follows_of, reads_of
from tfprep.errors import DatasetError, RecipeError
from tfprep.fields import EFFECTS, KINDS, RASTER_KINDS, Kind, field_name_fault

Rule: TypeAlias = tuple[str, Callable[[Any], bool]]
"""What an option is, in words and as a test."""
_TAKES = {"Size": "geometry", "Sample": "geometry", "ImageArray": "color"}
"""The option that an op of tfprep belongs in, by the annotation of what it is called with."""
_INPUTS: Mapping[str, frozenset[str]] = {
    "mask": frozenset({"mask", "map"}),
    "image": frozenset({"image", "map"}),
    "points": frozenset({"points", "scalar", "map"}),
    "like": frozenset(RASTER_KINDS),
}
"""Options of tfprep's derived inputs that name a field, with the kinds it may have.

A user's function that gives no kind derives a map, whatever it returns.
"""


def check_options(options: Mapping[str, Any]) -> None:
    """Raise RecipeError at the first option of a recipe that is wrong by itself, whatever the data."""
    name, source = options["name"], options["source"]
    try:
        check_name("Recipe(name=...)", name if isinstance(name, str) else repr(name))
    except DatasetError as error:
        raise RecipeError(str(error)) from None
    if inspect.isclass(source) or not callable(getattr(source, "scan", None)):
        raise RecipeError(f"source: expected a source such as sources.Folder(), not {source!r}{_called(source)}")
    for option, (expected, test) in _MAPPINGS.items():
        _check_mapping(option, options[option], expected, test)
    check_store(options["store"])
    check_derive(options["derive"])
    check_values(options, _VALUES)
    for option in ("geometry", "color"):
        check_ops(option, options[option])
        for op in options[option]:
            if any(getattr(each_op, "sizes", None) is not None for each_op in with_inner(op)):
                raise RecipeError(f"{option}: {op!r} has sizes by epoch, which are for loaders; give height and width")
    _check_codecs(options)


def check_kinds(options: Mapping[str, Any], source_kinds: Mapping[str, Kind]) -> None:
    """Raise RecipeError where an option names a field that neither the source nor a derived input gives."""
    for name in source_kinds:
        if fault := field_name_fault(name):
            raise RecipeError(f"source: {fault}")
    for name in options["derive"]:
        if name in source_kinds:
            raise RecipeError(f"derive: the source already has a field '{name}'; choose another name")
    kinds = check_inputs(options["derive"], source_kinds, options["fill"], moves=bool(options["geometry"]))
    for name, codec in options["store"].items():
        _check_known("store", name, kinds)
        codec.check(name, kinds[name])
    moving = next((op for op in options["geometry"] if not isinstance(op, Custom)), None)
    if moving is not None and not RASTER_KINDS & set(source_kinds.values()):
        raise RecipeError(f"geometry: the source has no image, mask or map, whose size {moving!r} needs; leave it out")
    _check_rows(options, source_kinds, kinds)
    _check_flip_indices(options, source_kinds)
    for name in options["fill"]:
        if kinds.get(name) not in RASTER_KINDS:
            raise RecipeError(f"fill: there is no image, mask or map named '{name}' to fill")
    uncovering = next((op for op in options["geometry"] if getattr(op, "uncovers", False)), None)
    for name in (name for name, kind in source_kinds.items() if kind == "mask" and name not in options["fill"]):
        if uncovering is not None and options["border"] == "constant":
            raise RecipeError(
                f"fill: {uncovering!r} shows pixels outside of the image, and no number is known for them in '{name}'; write "
                f'fill={{"{name}": 255}} with the number of void pixels, or border="reflect"'
            )


importing: ContextVar[Path | None] = ContextVar("importing", default=None)
"""The folder of the file that `tfprep.recipe.file.import_file` runs; None outside."""
_digested: dict[tuple[Any, ...], str] = {}
"""SHA-256 by path, size, times and inode: a recipe is loaded several times, and its files may be models of gigabytes."""


def running_folder() -> Path:
    """Return the folder of the file that `import_file` runs now, and else the current folder."""
    return importing.get() or Path.cwd()


def file_digest(path: Path) -> str:
    """Return the SHA-256 of one of `Recipe.files` in hexadecimal. Raises RecipeError if it cannot be read."""
    try:
        if not path.is_file():  # opening a pipe would wait for ever
            raise RecipeError(f"files: there is no regular file {path}; relative names are below the recipe's folder")
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            state = str(path), status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
            if state not in _digested:
                _digested[state] = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise RecipeError(f"files: {path} cannot be read: {error.strerror}") from None
    return _digested[state]


def _check_mapping(option: str, value: Any, expected: str, test: Callable[[Any], bool]) -> None:
    if not isinstance(value, Mapping):
        raise RecipeError(f"{option}: expected a dict from name to {expected}, not {value!r}")
    for name, item in value.items():
        if not isinstance(name, str):
            raise RecipeError(f"{option}: a name is a string, not {name!r}")
        if option not in ("variants", "shards") and (fault := field_name_fault(name)):
            raise RecipeError(f"{option}: {fault}")
        if inspect.isclass(item) or not test(item):
            raise RecipeError(f"{option}['{name}']: expected {expected}, not {item!r}{_called(item)}")


def check_store(store: Any) -> None:
    """Raise RecipeError unless `store` names a codec for at least one field."""
    _check_mapping("store", store, "a codec such as codecs.Jpeg()", _is_codec)
    if not store:
        raise RecipeError("store: nothing would be stored; name at least one field, such as {'image': codecs.Jpeg()}")


def check_values(options: Mapping[str, Any], rules: Mapping[str, Rule]) -> None:
    """Raise RecipeError at the first option that breaks its rule."""
    for option, (expected, test) in rules.items():
        if not test(options[option]):
            raise RecipeError(f"{option}: expected {expected}, not {options[option]!r}")


def check_derive(derive: Any) -> None:
    """Raise RecipeError at the first derived input, of a recipe or of a loader, that is wrong by itself."""
    _check_mapping("derive", derive, "a derived input or a function", callable)
    for name, derived in derive.items():
        if derived_kind(derived) not in KINDS:
            rule = f"the attribute kind is one of {', '.join(KINDS)}"
            raise RecipeError(f"derive['{name}']: {rule}, not {derived_kind(derived)!r}")
        if not follows_of(derived) <= EFFECTS:
            rule = f"the attribute follows holds names of {', '.join(sorted(EFFECTS))}"
            raise RecipeError(f"derive['{name}']: {rule}, not {sorted(follows_of(derived))}")


def check_ops(option: str, ops: Any) -> Any:
    """Return the ops of `geometry` or `color` of a recipe or a loader; RecipeError at the first that is wrong by itself."""
    if isinstance(ops, str | Mapping) or not isinstance(ops, Sequence):
        raise RecipeError(f"{option}: expected a list of ops, not {ops!r}")
    for number, op in enumerate(ops):
        place = f"{option}[{number}]"
        for each_op in with_inner(op):
            function = each_op.function if isinstance(each_op, Custom) else each_op
            if not callable(function) or inspect.isclass(function):
                raise RecipeError(f"{place}: expected an op or a function, not {each_op!r}{_called(each_op)}")
            if isinstance(each_op, Custom) and each_op is not op:
                raise RecipeError(
                    f"{place}: Custom is a function of a whole sample, which {type(op).__name__} does not have; put it into "
                    "geometry=[...] by itself, and let the function draw from its generator whether it acts"
                )
            if _option_of(each_op) not in ("", option):
                what = "changes colors" if option == "geometry" else "moves pixels"
                raise RecipeError(f"{place}: {op!r} {what}; it belongs in {_option_of(each_op)}=[...]")
    return ops


def with_inner(op: Any) -> list[Any]:
    """Return an op, the ops inside it if it is a policy, and those inside them."""
    inner = getattr(op, "ops", None) or ([op.op] if hasattr(op, "op") else [])
    return [op, *(below for inner_op in inner for below in with_inner(inner_op))]


def _option_of(op: Any) -> str:
    """Return the option that an op of tfprep belongs in; "" for both, and for functions of the user."""
    call = type(op).__call__
    if not getattr(call, "__module__", "").startswith("tfprep.augment."):
        return ""
    return _TAKES.get(next(iter(call.__annotations__.values()), ""), "")


def check_inputs(
    derive: Mapping[str, Any], kinds: Mapping[str, Kind], fill: Mapping[str, Any], *, moves: bool
) -> dict[str, Kind]:
    """Raise RecipeError where one of tfprep's derived inputs reads a field that is not there, or stays where geometry moves the
    image, or takes void for an object.

    Args:
        derive: The derived inputs, in order.
        kinds: The kinds of the fields that are there before.
        fill: What is outside of an image, by field.
        moves: True if there is geometry.

    Returns:
        The kinds of all fields.
    """
    known, voids = dict(kinds), dict(fill)
    for name, derived in derive.items():
        if lost := [option for option in getattr(derived, "inputs", None) or () if not hasattr(derived, option)]:
            rule = f"inputs of {type(derived).__name__} names its options that name fields"
            raise RecipeError(f"derive['{name}']: {rule}; it does not have the option {lost[0]!r}")
        for option, allowed in _INPUTS.items() if type(derived).__module__.startswith("tfprep.derive.") else ():
            field = getattr(derived, option, None)
            if not isinstance(field, str):
                continue
            asks = f"derive['{name}']: {type(derived).__name__}({option}={field!r})"
            if field not in known:
                fix = "derive it first" if field in derive else f"there are {', '.join(sorted(known))}"
                raise RecipeError(f"{asks} names no field that is there; {fix}")
            if known[field] not in allowed:
                rule = f"needs a field of the kind {' or '.join(sorted(allowed))}"
                raise RecipeError(f"{asks} {rule}; '{field}' has the kind {known[field]}")
            if option == "points" and moves and known[field] == "scalar" and field not in derive:
                raise RecipeError(f"{asks}: geometry does not move '{field}', which is a scalar; declare points [N, 3]")
        mask = str(getattr(derived, "mask", ""))
        void, told = voids.get(mask), [getattr(derived, option, None) for option in ("void", "background")]
        # The distance to a class is to one number, and void is another.
        has_void = hasattr(derived, "void") and getattr(derived, "to", "") != "class"
        if void and has_void and void not in told:
            rule = f"'{mask}' has {void} for void, and {type(derived).__name__} without void= takes it for an object"
            raise RecipeError(f"derive['{name}']: {rule}; write void={void}")
        known[name] = derived_kind(derived)
        if (void := getattr(derived, "marks_void", None)) is not None:
            voids[name] = void
    return known


def _check_known(option: str, name: str, kinds: Mapping[str, Kind]) -> None:
    if name not in kinds:
        raise RecipeError(f"{option}: there is no field '{name}'; there are {', '.join(sorted(kinds))}")


def _check_rows(options: Mapping[str, Any], source_kinds: Mapping[str, Kind], kinds: Mapping[str, Kind]) -> None:
    """Raise RecipeError if boxes may be dropped and it is not known which fields lose rows with them.

    The rows of derived boxes are for loaders: they are derived after the geometry of the recipe.
    """
    for boxes, row_fields in options["row_fields"].items():
        known = kinds if boxes in options["derive"] else source_kinds
        for field in (boxes, *row_fields):
            _check_known("row_fields", field, known)
            if field != boxes and known[field] not in ("label", "points", "scalar", "mask"):
                rule = f"row_fields: '{field}' has the kind {known[field]}, whose rows do not follow '{boxes}'"
                raise RecipeError(f"{rule}; leave it out")
    if not any("crop" in effects_of(op) for op in options["geometry"]):
        return
    several = [name for name, kind in source_kinds.items() if kind in ("label", "points", "scalar")]
    for boxes in (name for name, kind in source_kinds.items() if kind == "boxes"):
        if several and boxes not in options["row_fields"]:
            raise RecipeError(
                f"row_fields: boxes outside of the image are dropped, and fields with a row for each box lose it; write "
                f"row_fields={{{boxes!r}: {several}}} with those of them that have such rows"
            )
        for mask in options["row_fields"].get(boxes, ()):
            if source_kinds[mask] == "mask" and {mask, boxes} <= set(options["store"]):
                raise RecipeError(
                    f"store: '{mask}' numbers objects by the places of their '{boxes}', which change where boxes outside of the "
                    "image are dropped; add 'box_numbers' to the fields of the source and to store: they are these numbers"
                )


def _check_flip_indices(options: Mapping[str, Any], source_kinds: Mapping[str, Kind]) -> None:
    """Points whose rows may mean left and right have `flip_indices` where the geometry may mirror them."""
    points = [name for name, kind in source_kinds.items() if kind == "points"]
    for name in options["flip_indices"]:
        if name not in points:
            listed = f"; there are {', '.join(points)}" if points else ""
            raise RecipeError(f"flip_indices: the source has no points named '{name}'{listed}")
    mirrors = (op for op in options["geometry"] if not isinstance(op, Custom) and "flip" in effects_of(op))
    mirror = next(mirrors, None)
    for name in points if mirror is not None else ():
        ordered = any(  # as a channel for each point, or by a function of the user
            "flip" not in follows_of(derived) and ((reads := reads_of(derived)) is None or name in reads)
            for derived in options["derive"].values()
        )
        if name not in options["flip_indices"] and (name in options["store"] or ordered):
            raise RecipeError(
                f"flip_indices: {mirror!r} may mirror '{name}', and a left hand becomes a right hand; write "
                f"flip_indices={{'{name}': (0, 2, 1)}} with the row that takes the place of each row, or "
                f"flip_indices={{'{name}': ()}} if the rows have no left and right"
            )


def _check_codecs(options: Mapping[str, Any]) -> None:
    """Raise RecipeError if a codec cannot hold the pixels that the source and the stages make."""
    changed = options["geometry"] or options["color"] or max(options["variants"].values(), default=1) > 1
    decoded: Mapping[str, Any] = getattr(options["source"], "decoders", dict)()
    for name, codec in options["store"].items():
        lossless = f"store['{name}']: {{}}; use Zstd(), Png() or Raw()"
        if isinstance(codec, Original) and name in decoded:
            rule = f"Original keeps the source's bytes, but the source decodes '{name}' in a way of its own"
            raise RecipeError(lossless.format(rule))
        if isinstance(codec, Original) and changed:
            rule = "Original keeps the source's bytes, but geometry, color and variants change the pixels"
            raise RecipeError(lossless.format(rule))
        depth = getattr(getattr(decoded.get(name), "pixels", None), "to", None)
        if isinstance(codec, Jpeg) and depth in ("uint16", "float32"):
            raise RecipeError(lossless.format("JPEG holds 8 bits") + ", or sources.Pixels(to='uint8')")


def _called(item: Any) -> str:
    return f"; call it: {item.__name__}()" if inspect.isclass(item) else ""


def _is_codec(value: Any) -> bool:
    return all(callable(getattr(value, name, None)) for name in ("encode", "check", "spec"))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def is_count(value: Any) -> bool:
    """Return True for a whole number from 1."""
    return _is_whole(value) and value >= 1


def is_names(value: Any) -> bool:
    """Return True for a list of texts."""
    return isinstance(value, list | tuple) and all(isinstance(name, str) for name in value)


def _is_flip(value: Any) -> bool:
    """Return True if it is a permutation of its rows that undoes itself, as a mirror image of a mirror image is the image."""
    whole = isinstance(value, list | tuple) and all(map(_is_whole, value))
    return whole and sorted(value) == list(range(len(value))) and all(value[row] == i for i, row in enumerate(value))


COUNT: Rule = "a whole number from 1", is_count
_MAPPINGS: Mapping[str, Rule] = {
    "variants": COUNT,
    "shards": COUNT,
    "fill": (
        "a number, or a tuple of one per channel",
        lambda fill: all(map(_is_number, fill if isinstance(fill, tuple) else (fill,))),
    ),
    "row_fields": ("a list of field names", is_names),
    "flip_indices": ("the row that takes the place of each row, such as (0, 2, 1)", _is_flip),
}
FILES: Mapping[str, Rule] = {
    "depends": ("a list", lambda value: isinstance(value, list | tuple)),
    "files": ("a list of names of files", is_names),
}
_VALUES: Mapping[str, Rule] = {
    "min_visible": ("a share from 0 to 1", lambda share: _is_number(share) and 0 <= share <= 1),
    "border": ("'constant', 'reflect' or 'replicate'", lambda border: border in ("constant", "reflect", "replicate")),
    "dct_downscale": ("True or False", lambda value: isinstance(value, bool)),
    "seed": ("a whole number", _is_whole),
    **FILES,
}
