"""Ops at load: flips, crops and the mixing of two samples, drawn anew in every epoch while batches are made, and one-hot labels.

All other augmentation belongs into the dataset's variants. All rasters of a sample (images, masks, maps) are flipped and cut
alike; labels, scalars and text stay as they are. Every random number is a function of (seed, epoch, position in the epoch), so
that it does not depend on the number of hosts or threads, and a resumed run draws the same ones.

The partner of a sample in `MixUp` and `CutMix` is the next sample of the same global batch, and the first one for the last: in
a shuffled order a random sample. A host also reads the first sample of the next host's part.

With training=False each op takes its unaugmented form, as ops of `tfprep.augment` do for variant 0: the crop is the centre,
nothing is flipped or mixed, and labels are one-hot where they are in training.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple, TypeAlias

from tfprep.errors import LoaderError
from tfprep.fields import RASTER_KINDS, FieldSpec, Kind
from tfprep.load.order.permutation import seed_key
from tfprep.load.outputs import Output, Outputs


@dataclass(frozen=True)
class RandomFlip:
    """With probability `p`, the mirror image: left and right exchanged, or with `direction="vertical"` top and bottom.

    The arguments are those of `augment.Flip`.
    """

    p: float = 0.5
    direction: Literal["horizontal", "vertical"] = "horizontal"

    def __post_init__(self) -> None:
        _check_probability("RandomFlip", self.p)
        if self.direction not in ("horizontal", "vertical"):
            raise LoaderError(
                f"RandomFlip(direction=...) is 'horizontal' or 'vertical', not {self.direction!r}; list two RandomFlips for both"
            )


@dataclass(frozen=True)
class RandomCrop:
    """A window of `height` x `width` pixels at a random position, uniformly distributed. No image may be smaller."""

    height: int
    width: int

    def __post_init__(self) -> None:
        for side in (self.height, self.width):
            if isinstance(side, bool) or not isinstance(side, int) or side < 1:
                raise LoaderError(f"RandomCrop(height, width): whole numbers of pixels from 1, not {side!r}")


@dataclass(frozen=True)
class MixUp:
    """A weighted sum of two samples: w a + (1 - w) b, images, maps and one-hot labels alike (Zhang et al., 'mixup: Beyond
    Empirical Risk Minimization', ICLR 2018), with w from Beta(`alpha`, `alpha`), rounded to a 256th.

    Labels become float32 [classes]. Whole-number rasters are rounded half up, exactly; floats are computed in float32. `p` is
    the share of samples that are mixed. `classes` is needed where the dataset does not name its classes.
    """

    alpha: float = 0.2
    p: float = 1.0
    classes: int | None = None

    def __post_init__(self) -> None:
        _check_mixing(self)


@dataclass(frozen=True)
class CutMix:
    """A box of the sample replaced by the partner's pixels there (Yun et al., 'CutMix', ICCV 2019): as high and wide as
    sqrt(1 - w) of the image, w from Beta(`alpha`, `alpha`), its centre anywhere, cut off at the borders.

    Labels become float32 [classes], by the areas that are left. Masks and maps are replaced like the image. `p` is the share
    of samples that are mixed. `classes` is needed where the dataset does not name its classes.
    """

    alpha: float = 1.0
    p: float = 1.0
    classes: int | None = None

    def __post_init__(self) -> None:
        _check_mixing(self)


@dataclass(frozen=True)
class OneHotLabels:
    """Labels as float32 [classes]: 1 for the sample's class, 0 for all others, as `CategoricalCrossentropy` takes them.

    `MixUp` and `CutMix` need no `OneHotLabels`: their labels are such vectors. `classes` is needed where the dataset does not
    name its classes.
    """

    classes: int | None = None

    def __post_init__(self) -> None:
        _check_classes(self)


AtLoadOp: TypeAlias = RandomFlip | RandomCrop | MixUp | CutMix | OneHotLabels
Mixing: TypeAlias = MixUp | CutMix
Cut: TypeAlias = RandomFlip | RandomCrop
Encoding: TypeAlias = MixUp | CutMix | OneHotLabels
"""Ops whose labels are vectors."""


@dataclass(frozen=True)
class Keys:
    """A key of 64 bits for each op, in order, and one for the choice between the ops that mix."""

    cuts: tuple[int, ...]
    mixes: tuple[int, ...]
    choice: int


@dataclass(frozen=True)
class AtLoad:
    """The ops of a loader, checked against its outputs.

    `cuts` are the flips and crops, in order; `mixes` the one or two ops that mix: a sample takes one of them, at equal odds.
    `rasters` and `labels` are the outputs that are cut, and those that become one-hot, by name.
    """

    cuts: tuple[Cut, ...]
    mixes: tuple[Mixing, ...]
    seed: int
    training: bool
    rasters: tuple[str, ...]
    labels: Mapping[str, int]

    @property
    def size(self) -> tuple[int, int] | None:
        """(height, width) that the last crop leaves; None without one."""
        crops = [op for op in self.cuts if isinstance(op, RandomCrop)]
        return (crops[-1].height, crops[-1].width) if crops else None

    @property
    def least(self) -> tuple[int, int] | None:
        """The least (height, width) of an image: the first crop's."""
        crops = [op for op in self.cuts if isinstance(op, RandomCrop)]
        return (crops[0].height, crops[0].width) if crops else None

    @property
    def mixes_samples(self) -> bool:
        """Return whether any sample is mixed with its partner."""
        return bool(self.mixes) and self.training

    @cached_property
    def keys(self) -> Keys:
        """The keys of the ops. Each depends on the seed, the op's class and its number among the ops of that class, so that
        adding an op does not change what the others draw."""
        return Keys(_keys(self.cuts, self.seed), _keys(self.mixes, self.seed), seed_key(self.seed, "at_load/mixing"))

    def filled(self, outputs: Outputs) -> Outputs:
        """The outputs after flips and crops, before samples are mixed: labels are still numbers."""
        return Outputs(tuple(self._cut(output) for output in outputs.outputs), outputs.structure)

    def delivered(self, outputs: Outputs) -> Outputs:
        """The outputs after all ops."""
        return Outputs(tuple(self._one_hot(self._cut(output)) for output in outputs.outputs), outputs.structure)

    def _cut(self, output: Output) -> Output:
        cut = output.name in self.rasters and self.size is not None
        return replace(output, shape=(*self.size, *output.shape[2:])) if cut and self.size else output

    def _one_hot(self, output: Output) -> Output:
        if output.name not in self.labels:
            return output
        return replace(output, shape=(self.labels[output.name],), dtype="float32")


def _keys(ops: Sequence[Any], seed: int) -> tuple[int, ...]:
    names = [type(op).__name__ for op in ops]
    return tuple(seed_key(seed, f"at_load/{name}/{names[:at].count(name)}") for at, name in enumerate(names))


def check_ops(ops: Any) -> None:
    """LoaderError unless it is a list of flips and crops, then at most one MixUp and one CutMix, with OneHotLabels anywhere."""
    if not isinstance(ops, Sequence) or not all(isinstance(op, AtLoadOp) for op in ops):
        raise LoaderError(f"at_load is a list of RandomFlip, RandomCrop, MixUp, CutMix and OneHotLabels, not {ops!r}")
    mixes = [isinstance(op, MixUp | CutMix) for op in ops if not isinstance(op, OneHotLabels)]
    if mixes != sorted(mixes):
        raise LoaderError("at_load: MixUp and CutMix mix finished samples; put them after flips and crops")
    kinds = [type(op) for op in ops if isinstance(op, MixUp | CutMix)]
    if len(set(kinds)) < len(kinds):
        raise LoaderError("at_load: one MixUp and one CutMix at most; a sample takes one of the two")


def plan_at_load(
    ops: Sequence[AtLoadOp],
    outputs: Outputs,
    specs: Mapping[str, FieldSpec],
    classes: Mapping[str, Sequence[str]],
    unfit: Mapping[str, Unfit],
    *,
    seed: int,
    training: bool,
) -> AtLoad | None:
    """The ops for these outputs; None without ops. LoaderError where a field cannot follow an op (see `unfit_fields`)."""
    check_ops(ops)
    if not ops:
        return None
    cuts = tuple(op for op in ops if isinstance(op, RandomFlip | RandomCrop))
    mixes = tuple(op for op in ops if isinstance(op, MixUp | CutMix))
    kinds = {output.name: _kinds(output, specs) for output in outputs.outputs}
    rasters = tuple(name for name, output_kinds in kinds.items() if output_kinds & RASTER_KINDS)
    encodings = tuple(op for op in ops if isinstance(op, Encoding))
    labels = {
        output.name: _class_count(output, encodings, classes)
        for output in outputs.outputs
        if encodings and "label" in kinds[output.name]
    }
    plan = AtLoad(cuts, mixes, seed, training, rasters, labels)
    _check_fields(ops, outputs, kinds, unfit)
    _check_sizes(plan, outputs)
    return plan


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
        return Unfit((RandomFlip,), "holds directions, which a flip of its pixels does not turn")
    if "tfprep.derive.Heatmaps" in types and options.get("channels") != 1:
        return Unfit((RandomFlip,), "has a channel for each point, and a flip exchanges left and right points")
    if "tfprep.derive.ClickPoints" in types:
        return Unfit((RandomFlip, RandomCrop, MixUp, CutMix), "holds coordinates, which do not move with the pixels")
    return None


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
    if isinstance(op, OneHotLabels):
        return ""
    way_out = "leave it out of `fields`, or put the op into the recipe's geometry"
    if kinds & {"boxes", "points"}:
        return f"does not move boxes and points, such as '{output.name}'; {way_out}"
    if isinstance(op, MixUp) and "mask" in kinds:
        return f"cannot mix the class numbers of '{output.name}'; use CutMix, or leave it out of `fields`"
    for field in output.fields:
        if field in unfit and isinstance(op, unfit[field].ops):
            return f"cannot be applied: '{field}' {unfit[field].reason}; {way_out}"
    return ""


def _check_sizes(plan: AtLoad, outputs: Outputs) -> None:
    sizes = {output.shape[:2] for output in outputs.outputs if output.name in plan.rasters}
    if plan.cuts and not sizes:
        raise LoaderError(f"at_load: no image, mask or map is loaded for {type(plan.cuts[0]).__name__} to work on")
    if len(sizes) > 1:
        raise LoaderError(
            f"at_load: all rasters of a sample have one height and width, these have {sorted(map(str, sizes))}"
        )
    known = next(iter(sizes), (None, None))
    for op in plan.cuts:
        if isinstance(op, RandomCrop):
            if any(side is not None and side < least for side, least in zip(known, (op.height, op.width), strict=True)):
                raise LoaderError(
                    f"RandomCrop({op.height}, {op.width}) of images of {known[0]} x {known[1]} pixels: crop less, or store "
                    "larger images"
                )
            known = (op.height, op.width)
    if plan.mixes and None in known:
        raise LoaderError("MixUp and CutMix mix images of one size; put RandomCrop before them, or use `geometry`")


def _check_mixing(op: Mixing) -> None:
    name = type(op).__name__
    if not _is_number(op.alpha) or not 0 < op.alpha <= 1000:
        raise LoaderError(f"{name}(alpha): a number above 0, at most 1000, not {op.alpha!r}")
    _check_probability(name, op.p)
    _check_classes(op)


def _check_classes(op: Encoding) -> None:
    if op.classes is not None and (isinstance(op.classes, bool) or not isinstance(op.classes, int) or op.classes < 1):
        raise LoaderError(f"{type(op).__name__}(classes=...): a whole number from 1, not {op.classes!r}")


def _check_probability(name: str, p: Any) -> None:
    if not _is_number(p) or not 0 <= p <= 1:
        raise LoaderError(f"{name}(p=...): a probability from 0 to 1, not {p!r}")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
