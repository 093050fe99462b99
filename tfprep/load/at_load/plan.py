"""The ops of a loader, checked against what it delivers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, get_args

from tfprep.errors import LoaderError
from tfprep.fields import RASTER_KINDS, FieldSpec, Kind
from tfprep.load.at_load.ops import (
    AtLoadOp,
    CenterCrop,
    Colour,
    Cut,
    CutMix,
    Encoding,
    Geometry,
    Mixing,
    MixUp,
    OneHotLabels,
    RandomCrop,
    RandomErasing,
    RandomFlip,
    RandomResizedCrop,
    Resize,
)
from tfprep.load.order.permutation import seed_key
from tfprep.load.outputs import Output, Outputs, known_size
from tfprep.optional import require_package

PLACES: frozenset[Kind] = frozenset({"boxes", "points"})


@dataclass(frozen=True)
class Keys:
    """A key of 64 bits for each op, in order, and one for the choice between the ops that mix."""

    geometry: tuple[int, ...]
    colour: tuple[int, ...]
    mixes: tuple[int, ...]
    choice: int


@dataclass(frozen=True)
class AtLoad:
    """The ops of a loader, checked against its outputs.

    `geometry` and `colour` are the ops of each sample, in order; `mixes` the one or two ops that mix: a sample takes one of them,
    at equal odds. `rasters` and `labels` are the outputs that geometry changes, and those that become one-hot, by name. `images`
    are the fields that colour changes.

    Rasters that are only flipped and cut are copied (`tfprep.load.reader.stages`). With `rules` samples are warped instead, as in
    a build (`tfprep.load.reader.warping`): these are options of `tfprep.augment.warp.warp_sample`, by the recipe.
    """

    geometry: tuple[Geometry, ...]
    colour: tuple[Colour, ...]
    mixes: tuple[Mixing, ...]
    seed: int
    training: bool
    rasters: tuple[str, ...]
    labels: Mapping[str, int]
    images: tuple[str, ...] = ()
    rules: Mapping[str, Any] | None = None

    @property
    def crop(self) -> RandomCrop | None:
        """The first crop: no image may be smaller."""
        return next((op for op in self.geometry if isinstance(op, RandomCrop)), None)

    @property
    def mixes_samples(self) -> bool:
        """Return whether any sample is mixed with its partner."""
        return bool(self.mixes) and self.training

    @cached_property
    def keys(self) -> Keys:
        """The keys of the ops. Each depends on the seed, the op's class and its number among the ops of that class, so that
        adding an op does not change what the others draw."""
        kinds = (_keys(ops, self.seed) for ops in (self.geometry, self.colour, self.mixes))
        return Keys(*kinds, seed_key(self.seed, "at_load/mixing"))

    def filled(self, outputs: Outputs) -> Outputs:
        """The outputs after flips and crops, before samples are mixed: labels are still numbers."""
        return Outputs(tuple(self._cut(output) for output in outputs.outputs), outputs.structure)

    def delivered(self, outputs: Outputs) -> Outputs:
        """The outputs after all ops."""
        return Outputs(tuple(self._one_hot(self._cut(output)) for output in outputs.outputs), outputs.structure)

    def _cut(self, output: Output) -> Output:
        if output.name not in self.rasters:
            return output
        return replace(output, shape=(*_size_after(self.geometry, output.shape[:2]), *output.shape[2:]))

    def _one_hot(self, output: Output) -> Output:
        if output.name not in self.labels:
            return output
        return replace(output, shape=(self.labels[output.name],), dtype="float32")


def _keys(ops: Sequence[Any], seed: int) -> tuple[int, ...]:
    names = [type(op).__name__ for op in ops]
    return tuple(seed_key(seed, f"at_load/{name}/{names[:at].count(name)}") for at, name in enumerate(names))


def _size_after(ops: Sequence[Geometry], size: Sequence[int | None]) -> tuple[int | None, ...]:
    """The (height, width) that the ops leave; None for a side that differs between samples."""
    for op in ops:
        if isinstance(op, RandomCrop):
            size = op.height, op.width
        elif not isinstance(op, RandomFlip):
            size = known_size([op], size)
    return tuple(size)


def check_ops(ops: Any) -> None:
    """LoaderError unless it is a list of geometry, then colour, then at most one MixUp and one CutMix; OneHotLabels anywhere."""
    if not isinstance(ops, Sequence) or not all(isinstance(op, AtLoadOp) for op in ops):
        known = ", ".join(op.__name__ for op in get_args(AtLoadOp))
        raise LoaderError(f"at_load is a list of ops at load ({known}), not {ops!r}")
    stages = [
        2 if isinstance(op, MixUp | CutMix) else int(isinstance(op, Colour))
        for op in ops
        if not isinstance(op, OneHotLabels)
    ]
    if stages != sorted(stages):
        raise LoaderError(
            "at_load: MixUp and CutMix mix finished samples; put them after flips and crops, and colour in between"
        )
    kinds = [type(op) for op in ops if isinstance(op, MixUp | CutMix)]
    if len(set(kinds)) < len(kinds):
        raise LoaderError("at_load: one MixUp and one CutMix at most; a sample takes one of the two")


def plan_at_load(
    ops: Sequence[AtLoadOp],
    outputs: Outputs,
    specs: Mapping[str, FieldSpec],
    classes: Mapping[str, Sequence[str]],
    recipes: Sequence[Mapping[str, Any]],
    *,
    seed: int,
    training: bool,
) -> AtLoad | None:
    """The ops for these outputs; None without ops. LoaderError where a field cannot follow an op (see `unfit_fields`).

    `recipes` are those of the datasets, as `tfprep.json` holds them.
    """
    check_ops(ops)
    if not ops:
        return None
    unfit = {name: why for recipe in recipes for name, why in unfit_fields(recipe).items()}
    geometry = tuple(op for op in ops if isinstance(op, Geometry))
    colour = tuple(op for op in ops if isinstance(op, Colour))
    mixes = tuple(op for op in ops if isinstance(op, MixUp | CutMix))
    kinds = {output.name: _kinds(output, specs) for output in outputs.outputs}
    rasters = tuple(name for name, output_kinds in kinds.items() if output_kinds & RASTER_KINDS)
    encodings = tuple(op for op in ops if isinstance(op, Encoding))
    labels = {
        output.name: _class_count(output, encodings, classes)
        for output in outputs.outputs
        if encodings and "label" in kinds[output.name]
    }
    images = tuple(name for name in outputs.fields if name in specs and specs[name].kind == "image")
    moved = {kind for of_output in kinds.values() for kind in of_output}
    warps = not all(isinstance(op, Cut) for op in geometry) or colour or (geometry and moved & PLACES)
    rules, *others = [_rules(recipe, outputs, specs, geometry) if warps else None for recipe in recipes]
    if any(other != rules for other in others):
        raise LoaderError(
            "at_load: the datasets of a mix were built with different border, fill, min_visible, row_fields or flip_indices, by "
            "which boxes and points follow; leave these out of `fields`, or build both alike"
        )
    plan = AtLoad(geometry, colour, mixes, seed, training, rasters, labels, images, rules)
    _check_fields(ops, outputs, kinds, unfit)
    _check_colour(plan, specs)
    _check_sizes(plan, outputs)
    if warps:
        require_package("cv2", type(next(op for op in ops if not isinstance(op, Encoding))).__name__)
    return plan


def _rules(
    recipe: Mapping[str, Any], outputs: Outputs, specs: Mapping[str, FieldSpec], geometry: Sequence[Geometry]
) -> Mapping[str, Any]:
    """The options of `warp_sample` that a build of this recipe takes, of the fields that are loaded."""
    loaded = [name for name in outputs.fields if name in specs]
    flips = {name: tuple(rows) for name, rows in recipe.get("flip_indices", {}).items()}
    for name in loaded:
        if specs[name].kind == "points" and name not in flips and any(isinstance(op, RandomFlip) for op in geometry):
            raise LoaderError(
                f"at_load: RandomFlip mirrors '{name}', and a left hand becomes a right hand; say in the recipe which rows "
                f"change places, flip_indices={{'{name}': (0, 2, 1)}}, or () if none do, or leave '{name}' out of `fields`"
            )
    rows = {name: [one for one in others if one in loaded] for name, others in recipe.get("row_fields", {}).items()}
    least = recipe.get("min_visible", 0.0)
    for boxes, others in rows.items():
        if least and geometry and others and boxes not in loaded:
            raise LoaderError(
                f"at_load: '{others[0]}' loses the rows of boxes that are not visible; load '{boxes}' as well"
            )
    return {
        "border": recipe.get("border", "constant"), "fill": recipe.get("fill", {}), "min_visible": least,
        "row_fields": {name: others for name, others in rows.items() if name in loaded}, "flip_indices": flips,
    }  # fmt: skip


def _check_colour(plan: AtLoad, specs: Mapping[str, FieldSpec]) -> None:
    for op in plan.colour:
        name = type(op).__name__
        if not plan.images:
            raise LoaderError(f"at_load: no image is loaded for {name} to work on")
        for field in plan.images:
            spec = specs[field]
            if not isinstance(op, RandomErasing) and (spec.dtype, spec.shape[2:]) != ("uint8", (3,)):
                raise LoaderError(f"at_load: {name} takes RGB of 8 bits; '{field}' is {spec.dtype} {list(spec.shape)}")


class Unfit(NamedTuple):
    """Why the values of a field do not fit its image any more after an op of these types."""

    ops: tuple[type, ...]
    reason: str


def unfit_fields(recipe: Mapping[str, Any]) -> dict[str, Unfit]:
    """The derived inputs of a recipe, as `tfprep.json` holds it, that cannot follow an op at load, by name."""
    code = recipe.get("code", {})
    reasons = {name: _unfit(*_described(options, code)) for name, options in recipe.get("derive", {}).items()}
    unfit = {name: reason for name, reason in reasons.items() if reason is not None}
    for stack, fields in recipe.get("stack", {}).items():
        if first := next((unfit[name] for name in fields if name in unfit), None):
            unfit[stack] = first
    return unfit


def _described(options: Mapping[str, Any], code: Mapping[str, Any]) -> tuple[set[str], Mapping[str, Any]]:
    """The types of a derived input, of a user's class with all its bases, and its options."""
    bases, types = [options.get("type")], set()
    while bases:
        base = bases.pop()
        if isinstance(base, str):
            types.add(base)
        elif isinstance(base, dict) and (name := str(base.get("class"))) not in types:
            types.add(name)
            described = code.get(f"class {name}")
            bases += described.get("bases", []) if isinstance(described, dict) else []
    return types, options.get("attributes", options)


def _unfit(types: set[str], options: Mapping[str, Any]) -> Unfit | None:
    if "tfprep.derive.InstanceOffsets" in types or ("tfprep.derive.Sobel" in types and options.get("of") == "both"):
        return Unfit((RandomFlip, *_SCALES), "holds directions, which a flip or a resize of its pixels does not turn")
    if "tfprep.derive.Heatmaps" in types and options.get("channels") != 1:
        return Unfit((RandomFlip,), "has a channel for each point, and a flip exchanges left and right points")
    if "tfprep.derive.ClickPoints" in types:
        return Unfit(
            (RandomFlip, RandomCrop, CenterCrop, *_SCALES, MixUp, CutMix),
            "holds coordinates, which do not move with the pixels",
        )
    if types & _LENGTHS:
        return Unfit(_SCALES, "holds distances in pixels, which a resize of its pixels does not scale")
    return None


_SCALES = (RandomResizedCrop, Resize)
_LENGTHS = {f"tfprep.derive.{name}" for name in ("Clicks", "Distance", "GeodesicDistance", "SignedDistance")}


def not_a_class(name: str, label: object, classes: int) -> str:
    """The message for a label that is not a number of a class."""
    return (
        f"'{name}' is {label}, and there are {classes} classes, from 0 on; write classes=N in the op, with all of them"
    )


def _kinds(output: Output, specs: Mapping[str, FieldSpec]) -> set[Kind]:
    return {specs[name].kind for name in output.fields if name in specs}


def _class_count(output: Output, encodings: Sequence[Encoding], classes: Mapping[str, Sequence[str]]) -> int:
    if output.shape != ():
        raise LoaderError(
            f"{type(encodings[0]).__name__} takes labels of one class; '{output.name}' has shape {output.shape}: leave it out"
        )
    counts = {op.classes for op in encodings if op.classes is not None} | (
        {len(classes[output.fields[0]])} if output.fields[0] in classes else set()
    )
    if len(counts) != 1:
        raise LoaderError(
            f"how many classes '{output.name}' has is {'not known' if not counts else f'said differently: {sorted(counts)}'}; "
            f"write {type(encodings[0]).__name__}(..., classes=N)"
        )
    return int(counts.pop())


def _check_fields(
    ops: Sequence[AtLoadOp], outputs: Outputs, kinds: Mapping[str, set[Kind]], unfit: Mapping[str, Unfit]
) -> None:
    if any(isinstance(op, OneHotLabels) for op in ops) and not any(
        "label" in of_output for of_output in kinds.values()
    ):
        raise LoaderError("at_load: no label is loaded for OneHotLabels to work on; name it in `fields` or `targets`")
    for op in ops:
        for output in outputs.outputs:
            reason = _why_not(op, output, kinds[output.name], unfit)
            if reason:
                raise LoaderError(f"at_load: {type(op).__name__} {reason}")


def _why_not(op: AtLoadOp, output: Output, kinds: set[Kind], unfit: Mapping[str, Unfit]) -> str:
    """Why an output cannot follow the op, and the way out; "" where it can."""
    if isinstance(op, OneHotLabels | Colour):
        return ""
    way_out = "leave it out of `fields`, or put the op into the recipe's geometry"
    if kinds & PLACES and isinstance(op, Mixing):
        return f"does not move boxes and points, such as '{output.name}'; {way_out}"
    if isinstance(op, MixUp) and "mask" in kinds:
        return f"cannot mix the class numbers of '{output.name}'; use CutMix, or leave it out of `fields`"
    for field in output.fields:
        if field in unfit and isinstance(op, unfit[field].ops):
            return f"cannot be applied: '{field}' {unfit[field].reason}; {way_out}"
    return ""


def _check_sizes(plan: AtLoad, outputs: Outputs) -> None:
    sizes = {output.shape[:2] for output in outputs.outputs if output.name in plan.rasters}
    if plan.geometry and not sizes:
        raise LoaderError(f"at_load: no image, mask or map is loaded for {type(plan.geometry[0]).__name__} to work on")
    if len(sizes) > 1:
        raise LoaderError(
            f"at_load: all rasters of a sample have one height and width, these have {sorted(map(str, sizes))}"
        )
    known: Sequence[int | None] = next(iter(sizes), (None, None))
    for op in plan.geometry:
        if isinstance(op, RandomCrop) and any(
            side is not None and side < least for side, least in zip(known, (op.height, op.width), strict=True)
        ):
            raise LoaderError(
                f"RandomCrop({op.height}, {op.width}) of images of {known[0]} x {known[1]} pixels: crop less, or store "
                "larger images"
            )
        known = _size_after([op], known)
    if plan.mixes and None in known:
        raise LoaderError("MixUp and CutMix mix images of one size; put RandomCrop before them, or use `geometry`")
