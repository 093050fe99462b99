"""The ops of a loader, checked against what it delivers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any, NamedTuple, TypeAlias, get_args

import numpy as np

from tfprep import augment
from tfprep.augment.transform import GeometryOp, is_affine, warp_boxes
from tfprep.augment.warp import singular_values
from tfprep.errors import LoaderError
from tfprep.fields import RASTER_KINDS, FieldSpec, Kind
from tfprep.load.at_load.ops import (
    AtLoadOp,
    Buckets,
    CenterCrop,
    Color,
    Covering,
    Cut,
    CutMix,
    Encoding,
    Geometry,
    Mixing,
    MixUp,
    OneHotLabels,
    Placed,
    RandomCrop,
    RandomErasing,
    RandomFlip,
    RandomResizedCrop,
    Resize,
)
from tfprep.load.order.permutation import seed_key
from tfprep.load.outputs import Output, Outputs, known_size, renamed, transforms_of
from tfprep.optional import require_package

PLACES: frozenset[Kind] = frozenset({"boxes", "points"})
Act: TypeAlias = tuple[str, type]
"""What changes samples: its name for messages, and the type of op that does the same."""


@dataclass(frozen=True)
class AtLoad:
    """The ops of a loader, checked against its outputs.

    `forms` are the geometry of each sample, in order: one form for each size of a batch, which the schedule numbers
    (`BatchSchedule.forms_at`), and as a rule one. `color` follows; `mixes` the one or two ops that mix: a sample takes one of
    them, at equal odds. `rasters` and `labels` are the outputs that geometry changes, and those that become one-hot, by name.
    `images` are the fields that color changes.

    Rasters that are only flipped and cut are copied (`tfprep.load.reader.stages`). With `rules` samples are warped instead, as in
    a build (`tfprep.load.reader.warping`): these are options of `tfprep.augment.warp.warp_sample`, by the recipe.
    """

    forms: tuple[tuple[Placed, ...], ...]
    color: tuple[Color, ...]
    mixes: tuple[Mixing, ...]
    seed: int
    training: bool
    rasters: tuple[str, ...]
    labels: Mapping[str, int]
    images: tuple[str, ...] = ()
    rules: Mapping[str, Any] | None = None
    since: tuple[int, ...] = ()
    """The epoch from which each form holds, where that decides."""
    dropping: frozenset[str] = frozenset()
    """The fields that lose the rows of boxes that are not visible any more."""
    views: tuple[AtLoad, ...] = ()
    """The plan of each of several views of a sample; this plan itself then encodes labels alone."""
    moved: tuple[str, ...] = ()
    """The outputs of which each view has one."""
    prefix: str = ""
    """Before the names of a view's ops, in their keys: "global/0/"."""

    @property
    def geometry(self) -> tuple[Placed, ...]:
        """The geometry in one of its forms."""
        return self.forms[-1]

    @property
    def ops(self) -> tuple[Placed | Color, ...]:
        """The ops of one sample."""
        return *self.geometry, *self.color

    @property
    def crop(self) -> RandomCrop | None:
        """The first crop: no image may be smaller."""
        return next((op for op in self.geometry if isinstance(op, RandomCrop)), None)

    @property
    def mixes_samples(self) -> bool:
        """Return whether any sample is mixed with its partner."""
        return bool(self.mixes) and self.training

    @cached_property
    def keys(self) -> tuple[int, ...]:
        """A key of 64 bits for each of `ops`, then for those that mix, and for the choice between these.

        Each depends on the seed, the op's class and its number among the ops of that class, so that adding an op does not change
        what the others draw.
        """
        names = [type(op).__name__ for op in (*self.ops, *self.mixes)]
        purposes = [f"{self.prefix}{name}/{names[:at].count(name)}" for at, name in enumerate(names)]
        return tuple(seed_key(self.seed, f"at_load/{purpose}") for purpose in (*purposes, "mixing"))

    def filled(self, outputs: Outputs) -> Outputs:
        """The outputs after geometry and color, before samples are mixed: labels are still numbers."""
        if not self.views:
            return Outputs(tuple(self._cut(output) for output in outputs.outputs), outputs.structure)
        # One for each view in place of those that geometry changes: {"global": (first, second), ...}.
        delivered: list[Output] = []
        names: dict[str, dict[str, tuple[str, ...]]] = {}
        for output in outputs.outputs:
            if output.name not in self.moved:
                delivered.append(output)
                continue
            of_kind = names[output.name] = {}
            for number, view in enumerate(self.views):
                kind, name = view.prefix.partition("/")[0], f"{output.name}/{view.prefix.rstrip('/')}"
                delivered.append(replace(view._cut(output), name=name, view=number))
                of_kind[kind] = (*of_kind.get(kind, ()), name)
        return Outputs(tuple(delivered), renamed(outputs.structure, names))

    def delivered(self, outputs: Outputs) -> Outputs:
        """The outputs after all ops."""
        filled = self.filled(outputs)
        return Outputs(
            tuple(
                replace(output, shape=(self.labels[output.name],), dtype="float32")
                if output.name in self.labels
                else output
                for output in filled.outputs
            ),
            filled.structure,
        )

    def _cut(self, output: Output) -> Output:
        if output.name not in self.rasters:
            drops = output.fields[0] in self.dropping and not output.padded
            return replace(output, shape=(None, *output.shape[1:])) if drops else output
        shapes = [(*_size_after(form, output.shape[:2]), *output.shape[2:]) for form in self.forms]
        largest = max(shapes, key=lambda shape: prod(side or 0 for side in shape))
        return replace(output, shape=largest, shapes=tuple(shapes) if len(shapes) > 1 else ())


def _size_after(ops: Sequence[Placed], size: Sequence[int | None]) -> tuple[int | None, ...]:
    """The (height, width) that the ops leave; None for a side that differs between samples."""
    for op in ops:
        if isinstance(op, RandomCrop):
            size = op.height, op.width
        elif not isinstance(op, RandomFlip):
            size = known_size([op], size)
    return tuple(size)


def check_ops(ops: Any, views: Any = None) -> None:
    """LoaderError unless it is a list of geometry, then color, then at most one MixUp and one CutMix; OneHotLabels anywhere.

    With `views` it is such a list, without mixing, for each of their names.
    """
    if views is not None or isinstance(ops, Mapping):
        _check_views(ops, views)
        return
    if not isinstance(ops, Sequence) or not all(isinstance(op, AtLoadOp) for op in ops):
        known = ", ".join(op.__name__ for op in get_args(AtLoadOp))
        raise LoaderError(f"at_load is a list of ops of tfprep.load ({known}), not {ops!r}")
    stages = [
        2 if isinstance(op, MixUp | CutMix) else int(isinstance(op, Color))
        for op in ops
        if not isinstance(op, OneHotLabels)
    ]
    if stages != sorted(stages):
        raise LoaderError(
            "at_load: MixUp and CutMix mix finished samples; put them after flips and crops, and color in between"
        )
    kinds = [type(op) for op in ops if isinstance(op, MixUp | CutMix)]
    if len(set(kinds)) < len(kinds):
        raise LoaderError("at_load: one MixUp and one CutMix at most; a sample takes one of the two")


def _check_views(ops: Any, views: Any) -> None:
    counts = (
        isinstance(views, Mapping)
        and bool(views)
        and all(
            isinstance(name, str) and name and "/" not in name and type(count) is int and count > 0
            for name, count in views.items()
        )
    )
    if not counts or not isinstance(ops, Mapping) or ops.keys() != views.keys():
        raise LoaderError(
            "views gives the number of views by name, and at_load a list of ops for each of these names, such as "
            f"views={{'global': 2}}, at_load={{'global': [RandomFlip()]}}; not views={views!r}, at_load={ops!r}"
        )
    for one in ops.values():
        check_ops(one)
        for op in one:
            if isinstance(op, Mixing) or (isinstance(op, RandomResizedCrop) and op.sizes):
                raise LoaderError(f"at_load: {op} is not for views: neither mixing nor sizes by epoch are")


def plan_at_load(
    ops: Sequence[AtLoadOp] | Mapping[str, Sequence[AtLoadOp]],
    outputs: Outputs,
    specs: Mapping[str, FieldSpec],
    classes: Mapping[str, Sequence[str]],
    recipes: Sequence[Mapping[str, Any]],
    *,
    views: Mapping[str, int] | None,
    bucket: Buckets | None,
    seed: int,
    training: bool,
) -> AtLoad | None:
    """The ops for these outputs; None without ops. LoaderError where a field cannot follow an op (see `unfit_fields`).

    `recipes` are those of the datasets, as the manifest holds them.
    """
    check_ops(ops, views)
    about = outputs, specs, classes, recipes
    if not isinstance(ops, Mapping):
        return _planned(ops, *about, bucket, seed, training) if ops or bucket else None
    if bucket is not None:
        raise LoaderError("views and bucket: one of them at a time")
    plans = {name: _planned(one, *about, None, seed, training, warps=True) for name, one in ops.items()}
    labels = {name: count for plan in plans.values() for name, count in plan.labels.items()}
    of_views = [
        replace(plans[name], labels={}, prefix=f"{name}/{number}/")
        for name, count in (views or {}).items()
        for number in range(count)
    ]
    moved = tuple(
        output.name
        for output in outputs.outputs
        if _kinds(output, specs) & (RASTER_KINDS | PLACES) or output.fields[0] in of_views[0].dropping
    )
    return replace(of_views[0], forms=((),), color=(), labels=labels, views=tuple(of_views), moved=moved)


def _planned(
    ops: Sequence[AtLoadOp],
    outputs: Outputs,
    specs: Mapping[str, FieldSpec],
    classes: Mapping[str, Sequence[str]],
    recipes: Sequence[Mapping[str, Any]],
    bucket: Buckets | None,
    seed: int,
    training: bool,
    warps: bool = False,
) -> AtLoad:
    geometry = tuple(op for op in ops if isinstance(op, Geometry))
    color = tuple(op for op in ops if isinstance(op, Color))
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
    moved_alone = all(isinstance(op, Cut) for op in geometry) and not (geometry and moved & PLACES)
    warps = warps or bucket is not None or bool(color) or not moved_alone
    forms, since = _forms(geometry, bucket, training)
    acts = [_act(op) for op in (*ops, *(bucket.forms[:1] if bucket else ()))]
    rules = _rules(recipes, outputs.fields, specs, acts, warps=warps)
    dropping = frozenset() if rules is None else dropped_by(rules, specs, acts)
    _check_voids(geometry, outputs.fields, specs, recipes)
    plan = AtLoad(forms, color, mixes, seed, training, rasters, labels, images, rules, since, dropping)
    _check_fields(acts, outputs, kinds, recipes)
    for op in color:
        name = type(op).__name__
        if not images:
            raise LoaderError(f"at_load: no image is loaded for {name} to work on")
        for field in images:
            spec = specs[field]
            if not isinstance(op, RandomErasing) and (spec.dtype, spec.shape[2:]) != ("uint8", (3,)):
                raise LoaderError(f"at_load: {name} takes RGB of 8 bits; '{field}' is {spec.dtype} {list(spec.shape)}")
    _check_sizes(plan, outputs)
    if warps:
        require_package("cv2", "at_load with ops that resize, color, or move boxes and points")
    return plan


def _forms(
    geometry: tuple[Geometry, ...], bucket: Buckets | None, training: bool
) -> tuple[tuple[tuple[Placed, ...], ...], tuple[int, ...]]:
    """The forms of the geometry, and the epochs from which they hold."""
    growing = [at for at, op in enumerate(geometry) if isinstance(op, RandomResizedCrop) and op.sizes]
    if bucket is not None:
        if sized := [op for op in geometry if not isinstance(op, RandomFlip)]:
            raise LoaderError(
                f"bucket makes batches of its sizes, and {type(sized[0]).__name__} others; leave one of them out"
            )
        return tuple((form, *geometry) for form in bucket.forms), ()
    if not growing:
        return (geometry,), ()
    if len(growing) > 1:
        raise LoaderError("at_load: one RandomResizedCrop with sizes at most")
    op = geometry[growing[0]]
    forms = op.forms if isinstance(op, RandomResizedCrop) else {}
    since = tuple(forms) if training else tuple(forms)[-1:]  # in evaluation the last one
    chains = tuple((*geometry[: growing[0]], forms[epoch], *geometry[growing[0] + 1 :]) for epoch in since)
    return chains, since if training else ()


def plan_geometry(
    geometry: Sequence[GeometryOp],
    outputs: Outputs,
    specs: Mapping[str, FieldSpec],
    recipes: Sequence[Mapping[str, Any]],
) -> tuple[Mapping[str, Any], frozenset[str]]:
    """The options of `warp_sample` for `geometry`, ops of a recipe in their unaugmented form, and the fields that lose rows.

    LoaderError where a field cannot follow, as for an op at load.
    """
    rasters = [name for name in outputs.fields if name in specs and specs[name].kind in RASTER_KINDS]
    if not geometry or not rasters:
        return {}, frozenset()
    acts = _acts_of(geometry, specs[rasters[0]].shape[:2])
    _check_voids(geometry, outputs.fields, specs, recipes)
    _check_fields(acts, outputs, {output.name: _kinds(output, specs) for output in outputs.outputs}, recipes)
    places = any(specs[name].kind in PLACES for name in outputs.fields if name in specs)
    matters = places or ("geometry", augment.Translate) in acts  # or no rule says anything about the picture
    rules = _rules(recipes if matters else recipes[:1], outputs.fields, specs, acts, warps=True) or {}
    return rules, dropped_by(rules, specs, acts)


def _check_voids(
    geometry: Sequence[Any], fields: Sequence[str], specs: Mapping[str, FieldSpec], recipes: Sequence[Mapping[str, Any]]
) -> None:
    """Raise LoaderError if an op shows pixels outside of any image and the recipe does not say what a mask holds there."""
    op = next((op for op in geometry if getattr(op, "uncovers", False)), None)
    masks = [name for name in fields if name in specs and specs[name].kind == "mask"] if op is not None else []
    for recipe in recipes:
        unknown = next((name for name in masks if name not in recipe.get("fill", {})), None)
        if unknown and recipe.get("border", "constant") == "constant":
            raise LoaderError(
                f"{op!r} shows pixels outside of the image, and no number is known for them in '{unknown}'; build with "
                f"Recipe(fill={{\"{unknown}\": 255}}), the number of void pixels, or leave '{unknown}' out of `fields`"
            )


def _acts_of(geometry: Sequence[GeometryOp], size: Sequence[int | None]) -> list[Act]:
    """The ops that do what `geometry` does to rasters of this size. Rotate stands for any that turns, Translate for any that
    moves the picture's edges."""
    acts: set[type] = set()
    for (height, width), transform in transforms_of(geometry, size):
        linear = transform.matrix[:2, :2] / transform.matrix[2, 2]
        bends = bool(transform.bends) or not is_affine(transform.matrix)
        if bends or (np.abs(np.array(singular_values(transform)) - 1) > 1e-6).any():
            acts.add(Resize)
        if transform.mirrors:
            acts.add(RandomFlip)
        elif bends or (np.abs(linear / np.abs(np.linalg.det(linear)) ** 0.5 - np.eye(2)) > 1e-6).any():
            acts.add(augment.Rotate)
        (seen,), (visible,) = warp_boxes(np.array([[0, 0, width, height]]), transform)
        if visible < 1 - 1e-6:
            acts.add(CenterCrop)
        if bends or not np.allclose(seen, (0, 0, transform.size[1], transform.size[0])) or CenterCrop in acts:
            acts.add(augment.Translate)
    return [
        ("geometry", act) for act in (RandomFlip, Resize, CenterCrop, augment.Rotate, augment.Translate) if act in acts
    ]


def _act(op: AtLoadOp | Covering) -> Act:
    return "bucket" if isinstance(op, Covering) else f"at_load: {type(op).__name__}", type(op)


def _rules(
    recipes: Sequence[Mapping[str, Any]],
    fields: Sequence[str],
    specs: Mapping[str, FieldSpec],
    acts: Sequence[Act],
    *,
    warps: bool,
) -> Mapping[str, Any] | None:
    """The options of `warp_sample` that a build of these recipes takes, of the fields that are loaded; None unless it `warps`."""
    first, *others = [_rules_of(recipe, fields, specs, acts) for recipe in recipes]
    if not warps:
        return None
    if any(other != first for other in others):
        raise LoaderError(
            f"{acts[0][0] if acts else 'at_load'}: the datasets of a mix were built with different border, fill, min_visible, "
            "row_fields or flip_indices, by which edges, boxes and points follow; build both alike, or leave boxes and points "
            "out of `fields`"
        )
    return first


def dropped_by(rules: Mapping[str, Any], specs: Mapping[str, FieldSpec], acts: Sequence[Act]) -> frozenset[str]:
    """The fields that lose the rows of boxes that are not visible any more."""
    if not any(issubclass(act, _CUTS) for _, act in acts):
        return frozenset()
    boxes = [name for name, spec in specs.items() if spec.kind == "boxes"]
    return frozenset(boxes).union(*rules["row_fields"].values())


def _rules_of(
    recipe: Mapping[str, Any], fields: Sequence[str], specs: Mapping[str, FieldSpec], acts: Sequence[Act]
) -> Mapping[str, Any]:
    """The options of `warp_sample` that a build of this recipe takes, of the fields that are loaded."""
    loaded = [name for name in fields if name in specs]
    flips = {name: tuple(rows) for name, rows in recipe.get("flip_indices", {}).items() if name in loaded}
    mirroring = next((what for what, act in acts if issubclass(act, RandomFlip)), None)
    for name in loaded:
        if specs[name].kind == "points" and name not in flips and mirroring:
            raise LoaderError(
                f"{mirroring} mirrors '{name}', and a left hand becomes a right hand; say in the recipe which rows "
                f"change places, flip_indices={{'{name}': (0, 2, 1)}}, or () if none do, or leave '{name}' out of `fields`"
            )
    rows = {name: [one for one in others if one in loaded] for name, others in recipe.get("row_fields", {}).items()}
    cutting = next((what.partition(":")[0] for what, act in acts if issubclass(act, _CUTS)), None)
    for boxes, others in rows.items() if cutting else ():
        if others and boxes not in loaded:
            raise LoaderError(
                f"{cutting}: '{others[0]}' loses the rows of boxes that are not visible; load '{boxes}' as well"
            )
        if numbered := next((name for name in others if specs[name].kind == "mask"), None):
            raise LoaderError(
                f"{cutting}: '{numbered}' numbers objects by the places of their '{boxes}', and boxes that are not visible are "
                f"dropped; build with the field 'box_numbers', or leave '{numbered}' out of `fields`"
            )
    unknown = [name for name in loaded if specs[name].kind == "boxes" and name not in rows] if cutting else []
    own = [name for name in loaded if specs[name].kind in ("label", "points", "scalar") and specs[name].shape]
    if unknown and own:
        raise LoaderError(
            f"{cutting}: boxes that are not visible are dropped, and the recipe does not say which of {', '.join(own)} have a "
            f"row for each box; build with Recipe(row_fields={{{unknown[0]!r}: {own}}}), or leave '{unknown[0]}' out of `fields`"
        )
    return {
        "border": recipe.get("border", "constant"),
        "fill": {name: fill for name, fill in recipe.get("fill", {}).items() if name in loaded},
        "min_visible": recipe.get("min_visible", 0.0) if any(specs[name].kind == "boxes" for name in loaded) else 0.0,
        "row_fields": {name: others for name, others in rows.items() if name in loaded}, "flip_indices": flips,
    }  # fmt: skip


_CUTS = (RandomCrop, RandomResizedCrop, CenterCrop, Covering)


class Unfit(NamedTuple):
    """Why the values of a field do not fit its image any more after an op of these types."""

    ops: tuple[type, ...]
    reason: str


def unfit_fields(recipe: Mapping[str, Any]) -> dict[str, Unfit]:
    """The derived inputs of a recipe, as the manifest holds it, that cannot follow an op at load, by name."""
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
        return Unfit(
            (RandomFlip, augment.Rotate, *_SCALES),
            "holds directions, which a flip or a resize of its pixels does not turn",
        )
    if "tfprep.derive.Heatmaps" in types and options.get("channels") != 1:
        return Unfit((RandomFlip,), "has a channel for each point, and a flip exchanges left and right points")
    if "tfprep.derive.ClickPoints" in types:
        ops = (RandomFlip, RandomCrop, CenterCrop, augment.Rotate, augment.Translate, *_SCALES, MixUp, CutMix)
        return Unfit(ops, "holds coordinates, which do not move with the pixels")
    if "tfprep.derive.Sobel" in types:
        return Unfit(_SCALES, "holds gradients in levels a pixel, which a resize of its pixels does not scale")
    if types & _LENGTHS:
        return Unfit(_SCALES, "holds distances in pixels, which a resize of its pixels does not scale")
    return None


_SCALES = (RandomResizedCrop, Resize, Covering)
_LENGTHS = {
    f"tfprep.derive.{name}" for name in ("ClickMaps", "Clicks", "Distance", "GeodesicDistance", "SignedDistance")
}


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
    counts = {op.classes for op in encodings if op.classes is not None}
    if output.fields[0] in classes:
        counts.add(len(classes[output.fields[0]]))
    if len(counts) != 1:
        raise LoaderError(
            f"how many classes '{output.name}' has is {'not known' if not counts else f'said differently: {sorted(counts)}'}; "
            f"write {type(encodings[0]).__name__}(..., classes=N)"
        )
    return int(counts.pop())


def _check_fields(
    acts: Sequence[Act], outputs: Outputs, kinds: Mapping[str, set[Kind]], recipes: Sequence[Mapping[str, Any]]
) -> None:
    unfit = {name: why for recipe in recipes for name, why in unfit_fields(recipe).items()}
    has_label = any("label" in of_output for of_output in kinds.values())
    if not has_label and any(issubclass(act, OneHotLabels) for _, act in acts):
        raise LoaderError("at_load: no label is loaded for OneHotLabels to work on; name it in `fields` or `targets`")
    for what, act in acts:
        for output in outputs.outputs:
            if reason := _why_not(act, output, kinds[output.name], unfit):
                raise LoaderError(f"{what} {reason}")


def _why_not(act: type, output: Output, kinds: set[Kind], unfit: Mapping[str, Unfit]) -> str:
    """Why an output cannot follow the op, and the way out; "" where it can."""
    if issubclass(act, OneHotLabels | Color):
        return ""
    way_out = "leave it out of `fields`, or put the op into the recipe's geometry"
    if kinds & PLACES and issubclass(act, Mixing):
        return f"does not move boxes and points, such as '{output.name}'; {way_out}"
    if issubclass(act, MixUp) and "mask" in kinds:
        return f"cannot mix the class numbers of '{output.name}'; use CutMix, or leave it out of `fields`"
    for field in output.fields:
        types, reason = unfit.get(field, ((), ""))
        if issubclass(act, types):
            return f"cannot be applied: '{field}' {reason}; {way_out}"
    return ""


def _check_sizes(plan: AtLoad, outputs: Outputs) -> None:
    sizes = {output.shape[:2] for output in outputs.outputs if output.name in plan.rasters}
    if plan.geometry and not sizes:
        raise LoaderError(f"at_load: no image, mask or map is loaded for {type(plan.geometry[0]).__name__} to work on")
    if len(sizes) > 1:
        raise LoaderError(
            f"at_load: all rasters of a sample have one height and width, these have {sorted(map(str, sizes))}"
        )
    for form in plan.forms:
        known: Sequence[int | None] = next(iter(sizes), (None, None))
        for op in form:
            if isinstance(op, RandomCrop) and any(
                side is not None and side < least for side, least in zip(known, (op.height, op.width), strict=True)
            ):
                raise LoaderError(
                    f"RandomCrop({op.height}, {op.width}) of images of {known[0]} x {known[1]} pixels: crop less, or store "
                    "larger images"
                )
            known = _size_after([op], known)
    if plan.mixes and None in known:
        raise LoaderError("MixUp and CutMix mix images of one size; put RandomCrop or RandomResizedCrop before them")
