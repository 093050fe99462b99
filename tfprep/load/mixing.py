"""One-hot labels, and the mixing of samples within a batch when all its rows are filled.

The partner of a sample in `MixUp` and `CutMix` is the next sample of the same global batch, and the first one for the last: in a
shuffled order a random sample. A host also reads the first sample of the next host's part.

The draws of a sample come from `generator_at(seed, "mix", position)`: a whole number chooses one op of the list, then come a
number from [0, 1) for its `p`, the weight from Beta(alpha, alpha), and two numbers from [0, 1) for the center of a box, down
and right.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import floor, sqrt
from typing import Any, NamedTuple

import numpy as np

from tfprep.augment.mixing import CutMix, MixUp
from tfprep.dataset import Dataset
from tfprep.derive import OneHot
from tfprep.derive.inputs import follows_of
from tfprep.errors import LoaderError
from tfprep.fields import EFFECTS, RASTER_KINDS, Array, FieldSpec, Kind
from tfprep.load.options import LoaderOptions
from tfprep.load.order.samplers import generator_at
from tfprep.load.outputs import WEIGHT, Output, Outputs
from tfprep.optional import cv2

PARTS = 256
"""The weights of MixUp are whole multiples of 1 / 256: an 8-bit image cannot show more."""
_HALF_UP = 1 / 512
"""Added before OpenCV rounds half to even: the sums are whole 256ths, so that this rounds halves up and changes nothing else."""


class Mixture(NamedTuple):
    """How a sample is mixed: it has the weight `weight` / 256 (256: it is not mixed), or a box of pixels (top, bottom, left,
    right) is the partner's. `share` is the sample's weight in the labels."""

    weight: int = PARTS
    box: tuple[int, int, int, int] | None = None
    share: float = 1.0


@dataclass(frozen=True)
class Mixing:
    """The ops that mix, one of them for each sample, all equally likely, none in evaluation; the outputs that are mixed; and the
    labels that become one-hot, or have a number for each class already, with the number of classes, by output."""

    ops: tuple[MixUp | CutMix, ...]
    seed: int
    rasters: tuple[str, ...]
    labels: Mapping[str, int]

    def delivered(self, outputs: Outputs) -> Outputs:
        """Return the outputs with one-hot labels."""
        encoded = (
            replace(output, shape=(self.labels[output.name],), dtype="float32")
            if output.name in self.labels
            else output
            for output in outputs.outputs
        )
        return Outputs(tuple(encoded), outputs.structure)

    def mixture(self, position: int, height: int, width: int) -> Mixture:
        """Return how the sample at a position of the run is mixed, in images of this size."""
        generator = generator_at(self.seed, "mix", position)
        op = self.ops[int(generator.integers(len(self.ops)))]
        if generator.random() >= op.p:
            return Mixture()
        draw = generator.beta(op.alpha, op.alpha)
        if isinstance(op, MixUp):
            weight = round(draw * PARTS)
            return Mixture(weight, share=weight / PARTS)
        ratio, box = sqrt(1 - draw), []
        for length, center in zip((height, width), generator.random(2), strict=True):  # as in the authors' code
            half, middle = floor(length * ratio) // 2, int(center * length)
            box += [max(0, middle - half), min(length, middle + half)]
        top, bottom, left, right = box
        return Mixture(box=(top, bottom, left, right), share=1 - (bottom - top) * (right - left) / (height * width))


def plan_mixing(options: LoaderOptions, dataset: Dataset, outputs: Outputs, specs: Mapping[str, FieldSpec]) -> Mixing:
    """Plan what happens to full batches of these outputs; labels that are mixed are one-hot in any case.

    Raises:
        LoaderError: A field cannot be mixed, the images are not of one size, or the number of classes is not known.
    """
    ops = tuple(options.mix)
    follows = {name: frozenset(info.follows) for name, info in dataset.infos.items()}
    follows |= {name: follows_of(op) for name, op in options.derive.items()}
    made_by = {name: str(one.get("type")) for name, one in dataset.manifest.recipe.get("derive", {}).items()}
    made_by |= {name: type(op).__name__ for name, op in options.derive.items()}
    # Of 0 and 1 the mean would be rounded: a map that holds them counts as a mask.
    one_hot = {n for n, spec in specs.items() if spec.dtype == "bool" or made_by.get(n, "").endswith(OneHot.__name__)}
    kind_of: dict[str, Kind] = {n: "mask" if n in one_hot and s.kind == "map" else s.kind for n, s in specs.items()}
    kinds = {output.name: {kind_of[name] for name in output.fields if name in specs} for output in outputs.outputs}
    classes = {name: names for name, names in dataset.classes.items() if name not in options.derive}
    labels = {
        output.name: _class_count(output, options.one_hot, classes)
        for output in outputs.outputs
        if "label" in kinds[output.name]
    }
    if not labels and not ops:
        raise LoaderError("one_hot: no label is loaded; name it in `fields` or `targets`")
    for op in ops:
        for output in outputs.outputs:
            computed = any(not follows.get(name, EFFECTS) >= EFFECTS for name in output.fields)
            if reason := _why_not(op, output, kinds[output.name], computed):
                raise LoaderError(f"mix: {type(op).__name__} {reason}")
    rasters = tuple(output for output in outputs.outputs if kinds[output.name] & RASTER_KINDS)
    if ops and options.training and options.batch_size == 1:
        raise LoaderError(
            "mix: a sample is mixed with another one of its batch; batch_size=1 has none, give it 2 or more"
        )
    if ops and any(None in output.shape[:2] for output in rasters):
        raise LoaderError("mix: images of one size are mixed; put augment.Crop or RandomResizedCrop into geometry")
    if any(isinstance(op, CutMix) for op in ops) and len({output.shape[:2] for output in rasters}) > 1:
        raise LoaderError(
            "mix: CutMix cuts the same box from all images of a sample; give all views one size, or take MixUp"
        )
    return Mixing(ops if options.training else (), options.seed, tuple(output.name for output in rasters), labels)


def _class_count(output: Output, one_hot: bool | int, classes: Mapping[str, Sequence[str]]) -> int:
    length = output.shape[0] if len(output.shape) == 1 and output.dtype == "float32" else None
    if output.shape != () and length is None:
        raise LoaderError(
            f"one_hot takes labels of one class, or float32 with a number for each class; '{output.name}' is {output.dtype} "
            f"{list(output.shape)}: leave it out"
        )
    asked = 0 if isinstance(one_hot, bool) else one_hot
    counts = [count for count in (length, len(classes.get(output.fields[0], ())), asked) if count]
    if not counts:
        raise LoaderError(f"how many classes '{output.name}' has is not known; write one_hot=N, their number")
    if other := [count for count in counts if count != counts[0]]:
        raise LoaderError(f"one_hot: '{output.name}' has {counts[0]} classes, not {other[0]}; write one_hot=True")
    return counts[0]


def _why_not(op: MixUp | CutMix, output: Output, kinds: set[Kind], computed: bool) -> str:
    """Return why an output cannot be mixed, and the fix; "" if it can be."""
    if kinds & {"boxes", "points"}:
        return f"does not move boxes and points, such as '{output.name}'; leave it out of `fields`"
    if output.name == WEIGHT and not kinds & RASTER_KINDS and (output.shape or not output.dtype.startswith("float")):
        return f"makes fractions of weights, which are floats, one per sample, not {output.dtype} {list(output.shape)}"
    if "scalar" in kinds and output.name != WEIGHT:
        return f"mixes two samples, and '{output.name}' would stay that of one: leave it out, or mix both in the training step"
    if isinstance(op, MixUp) and "mask" in kinds:
        return f"cannot mix the class numbers of '{output.name}'; use CutMix, or leave it out of `fields`"
    if computed and not kinds & RASTER_KINDS:
        return f"changes the pixels that '{output.name}' was computed from; leave it out of `fields`"
    return ""


# --- doing ----------------------------------------------------------------------------------------------------------


def mix_batch(values: dict[str, Any], mixing: Mixing, start: int, stop: int) -> None:
    """Encode the labels of a batch whose rows are filled, and mix its samples with their partners.

    The rows are those of the positions [start, stop) of the run, and the partner of the last one where that is not the first
    (see `BatchSchedule.partners`).
    """
    count = stop - start
    for name, classes in mixing.labels.items():  # class numbers [B] to float32 [B, classes]
        labels = values[name]
        if labels.ndim == 2:
            continue
        if (wrong := (labels < 0) | (labels >= classes)).any():
            raise LoaderError(
                f"'{name}' is {int(labels[wrong][0])}, and there are {classes} classes, from 0 on; write one_hot=N, with "
                "all of them"
            )
        values[name] = (labels[:, None] == np.arange(classes)).astype(np.float32)
    if not mixing.ops or not count:
        return
    height, width = values[mixing.rasters[0]].shape[1:3] if mixing.rasters else (1, 1)
    mixtures = [mixing.mixture(position, height, width) for position in range(start, stop)]
    for name in mixing.rasters:
        mix_rows(values[name], mixtures)
    shares = np.array([mixture.share for mixture in mixtures], np.float32)
    if (weights := values.get(WEIGHT)) is not None and weights.ndim == 1:
        # A loss that is linear in the labels then is the sum of both samples' weighted losses.
        own = weights[:count] * shares
        total = own + _partners(weights, count) * (np.float32(1) - shares)
        values[WEIGHT] = total.astype(weights.dtype)
        np.divide(own, total, out=shares, where=total != 0)
    shares = shares[:, None]
    for name in mixing.labels:
        own, partners = values[name][:count], _partners(values[name], count)
        values[name] = own * shares + partners * (np.float32(1) - shares)


def _partners(values: Array, count: int) -> Array:
    """The value of each sample's partner."""
    return np.concatenate([values[1:], values[:1]])[:count]


def mix_rows(pixels: Array, mixtures: Sequence[Mixture]) -> None:
    """Mix rows of an array [B, H, W, ...] in place, each with the next one: the last with the row after those, or the first.

    It begins with the first row, so that each row's partner is still unmixed.
    """
    count = len(mixtures)
    last = pixels[count] if len(pixels) > count else pixels[0].copy()
    for row, mixture in enumerate(mixtures):
        own, other = pixels[row], pixels[row + 1] if row + 1 < count else last
        if mixture.box is not None:
            top, bottom, left, right = mixture.box
            own[top:bottom, left:right] = other[top:bottom, left:right]
        elif mixture.weight < PARTS:
            _blend(own, other, mixture.weight)


def _blend(own: Array, other: Array, weight: int) -> None:
    """`own` becomes (weight own + (256 - weight) other) / 256: whole numbers rounded half up, floats in float32."""
    if own.dtype == np.uint8:
        a, b = own.reshape(1, -1), other.reshape(1, -1)
        cv2.addWeighted(a, weight / PARTS, b, 1 - weight / PARTS, _HALF_UP, dst=a)
    elif own.dtype.kind in "iu":
        wide = own.astype(np.int64) * weight + other.astype(np.int64) * (PARTS - weight)
        own[...] = (wide + PARTS // 2) >> 8
    else:
        share = np.float32(weight / PARTS)
        own[...] = own.astype("float32") * share + other.astype("float32") * (np.float32(1) - share)
