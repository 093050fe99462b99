"""Flips, crops and mixing in TensorFlow ops: the same numbers and pixels as `tfprep.read.at_load_fill`, element by element.

Functions mirror those of the same name in `tfprep.read.at_load_draws`, where the definitions are explained. Tests
compare the two.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

from tfprep.load.graph_order import below, mix, subkey, word
from tfprep.read.at_load import AtLoad, Cut, CutMix, MixUp, RandomFlip, not_a_class
from tfprep.read.at_load_draws import PARTS, box_sides, threshold, weights
from tfprep.read.outputs import Output, Outputs
from tfprep.read.pipeline import Pipeline
from tfprep.read.schedule import Hosts


class Window(NamedTuple):
    """One sample's, int64 and bool scalars."""

    y: Any
    x: Any
    height: Any
    width: Any
    flip_y: Any
    flip_x: Any


class Mixed(NamedTuple):
    """One element a sample: int64 [B]; `share` is float32."""

    weight: Any
    top: Any
    bottom: Any
    left: Any
    right: Any
    share: Any


class GraphAtLoad:
    """The ops of one pipeline; without any, samples go through as they are."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._plan, self._outputs = pipeline.at_load, pipeline.outputs
        self._hosts = pipeline.schedule.hosts

    @property
    def _mixes(self) -> bool:
        return self._plan is not None and bool(self._plan.mixes) and self._plan.training

    @property
    def extra(self) -> int:
        """Samples that are read beside a host's own: with several hosts, the last one's partner is the next host's first."""
        return int(self._mixes and self._hosts.count > 1)

    def with_partners(self, places: Any, start: Any, stop: Any) -> Any:
        """The places of some steps, ragged [steps, rows], with the partner of each step's last: one place more each.

        `start` and `stop` are those of the whole batches.
        """
        if not self.extra:
            return places
        after = _part(start, stop, self._hosts)
        return tf.concat([places, tf.where(after == stop, start, after)[:, None]], 1)

    def one(self, values: dict[str, Any], place: Any) -> Any:
        """What is made of one sample's values by output; the element itself where nothing is left to do with the batch."""
        if self._plan is None:
            return self._outputs.pack(values)
        return cut(self._plan, self._outputs, values, place), place

    def batch(self, batches: tf.data.Dataset) -> tf.data.Dataset:
        """Batches of what `one` gave to batches of elements."""
        plan = self._plan
        if plan is None:
            return batches

        def finish(values: dict[str, Any], place: Any) -> Any:
            values = {**values, **{name: _one_hot(name, values[name], count) for name, count in plan.labels.items()}}
            return self._outputs.pack(self._mix(plan, values, place) if self._mixes else values)

        return batches.map(finish)

    def _mix(self, plan: AtLoad, values: dict[str, Any], place: Any) -> dict[str, Any]:
        own = {name: value[: -self.extra or None] for name, value in values.items()}
        names = [*plan.rasters, *plan.labels]
        partners = {name: values[name][1:] if self.extra else tf.roll(values[name], -1, 0) for name in names}
        height, width = own[plan.rasters[0]].shape[1:3] if plan.rasters else (1, 1)
        mixed = mixtures(plan, place[: -self.extra or None], height, width)
        for name in plan.rasters:
            own[name] = mix_pixels(own[name], partners[name], mixed)
        for name in plan.labels:
            own[name] = own[name] * mixed.share[:, None] + partners[name] * (1 - mixed.share)[:, None]
        return own


def _one_hot(name: str, labels: Any, count: int) -> Any:
    known = tf.debugging.Assert(
        tf.reduce_all((labels >= 0) & (labels < count)), [not_a_class(name, "another", count), labels]
    )
    with tf.control_dependencies([known]):
        return tf.one_hot(labels, count)


def _part(start: Any, stop: Any, hosts: Hosts) -> Any:
    """Where this host's part of the places [start, stop) ends."""
    return start + (stop - start) * (hosts.index + 1) // hosts.count


def bits(key: int, place: Any, number: int) -> Any:
    return mix(subkey(subkey(key, place), number))


def happens(draw: Any, p: float) -> Any:
    return tf.bitwise.right_shift(draw, word(32)) < word(threshold(p))


# --- flips and crops ------------------------------------------------------------------------------------------------


def cut(plan: AtLoad, outputs: Outputs, values: dict[str, Any], place: Any) -> dict[str, Any]:
    """One sample's values with the rasters flipped and cut; InvalidArgumentError where an image is smaller than the crop."""
    if not plan.cuts:
        return values
    size = tf.shape(values[plan.rasters[0]], tf.int64)
    checks = [] if plan.least is None else [_large_enough(size, plan.least)]
    with tf.control_dependencies(checks):
        window = windows(plan, place, size[0], size[1])
    shapes = {output.name: output for output in outputs.outputs}
    return values | {name: _view(values[name], window, shapes[name]) for name in plan.rasters}


def _large_enough(size: Any, least: tuple[int, int]) -> Any:
    return tf.debugging.Assert(
        tf.reduce_all(size[:2] >= tf.constant(least, tf.int64)),
        [f"fewer pixels than RandomCrop{least} leaves; choose a smaller crop. (height, width):", size[:2]],
    )


def _view(value: Any, window: Window, output: Output) -> Any:
    rank = len(value.shape)
    begin = tf.stack([window.y, window.x, *[tf.zeros_like(window.y)] * (rank - 2)])
    size = tf.stack([window.height, window.width, *[-tf.ones_like(window.y)] * (rank - 2)])
    part = tf.slice(value, begin, size)
    part = tf.cond(window.flip_y, lambda: tf.reverse(part, [0]), lambda: part)
    turned = tf.cond(window.flip_x, lambda: tf.reverse(part, [1]), lambda: part)
    return tf.ensure_shape(turned, output.shape)


def windows(plan: AtLoad, place: Any, height: Any, width: Any) -> Window:
    zero, no = tf.zeros_like(height), tf.constant(False)
    window = Window(zero, zero, height, width, no, no)
    for op, key in zip(plan.cuts, plan.keys.cuts, strict=True):
        window = _cut(op, key, place, window, plan.training)
    return window


def _cut(op: Cut, key: int, place: Any, window: Window, training: bool) -> Window:
    if isinstance(op, RandomFlip):
        flip = happens(bits(key, place, 0), op.p if training else 0.0)
        if op.vertical:
            return window._replace(flip_y=tf.math.logical_xor(window.flip_y, flip))
        return window._replace(flip_x=tf.math.logical_xor(window.flip_x, flip))
    room_y, room_x = window.height - op.height, window.width - op.width
    if training:
        down = tf.cast(below(bits(key, place, 0), word(room_y + 1)), tf.int64)
        right = tf.cast(below(bits(key, place, 1), word(room_x + 1)), tf.int64)
    else:
        down, right = room_y // 2, room_x // 2
    return window._replace(
        y=window.y + tf.where(window.flip_y, room_y - down, down),
        x=window.x + tf.where(window.flip_x, room_x - right, right),
        height=tf.constant(op.height, tf.int64),
        width=tf.constant(op.width, tf.int64),
    )


# --- mixing ---------------------------------------------------------------------------------------------------------


def mixtures(plan: AtLoad, place: Any, height: int, width: int) -> Mixed:
    drawn = plan.keys
    chosen = below(bits(drawn.choice, place, 0), word(len(plan.mixes)))
    mixed = _unmixed(place)
    for number, (op, key) in enumerate(zip(plan.mixes, drawn.mixes, strict=True)):
        does = (chosen == word(number)) & happens(bits(key, place, 0), op.p if plan.training else 0.0)
        made = _weighed(op, key, place) if isinstance(op, MixUp) else _boxed(op, key, place, height, width)
        mixed = Mixed(*(tf.where(does, new, old) for new, old in zip(made, mixed, strict=True)))
    return mixed


def _unmixed(place: Any) -> Mixed:
    nothing = tf.zeros_like(place)
    return Mixed(nothing + PARTS, nothing, nothing, nothing, nothing, tf.ones_like(place, tf.float32))


def _weighed(op: MixUp, key: int, place: Any) -> Mixed:
    weight = tf.gather(tf.constant(weights(op.alpha)), quantile(bits(key, place, 1)))
    share = tf.cast(weight, tf.float32) / PARTS
    return _unmixed(place)._replace(weight=weight, share=share)


def _boxed(op: CutMix, key: int, place: Any, height: int, width: int) -> Mixed:
    at = quantile(bits(key, place, 1))
    top, bottom = _side(bits(key, place, 2), tf.gather(tf.constant(box_sides(op.alpha, height)), at), height)
    left, right = _side(bits(key, place, 3), tf.gather(tf.constant(box_sides(op.alpha, width)), at), width)
    area = tf.cast((bottom - top) * (right - left), tf.float64)
    share = tf.cast(1.0 - area / (height * width), tf.float32)
    return Mixed(tf.zeros_like(place) + PARTS, top, bottom, left, right, share)


def _side(draw: Any, side: Any, length: int) -> tuple[Any, Any]:
    centre = tf.cast(below(draw, word(length)), tf.int64)
    return tf.clip_by_value(centre - side // 2, 0, length), tf.clip_by_value(centre + side // 2, 0, length)


def quantile(draw: Any) -> Any:
    return tf.cast(tf.bitwise.right_shift(draw, word(52)), tf.int64)


def mix_pixels(own: Any, other: Any, mixed: Mixed) -> Any:
    """[B, H, W, ...] of the samples and of their partners to the mixed ones."""
    behind = [1] * (len(own.shape) - 3)

    def each(column: Any) -> Any:
        return tf.reshape(column, [-1, 1, 1, *behind])

    y = tf.reshape(tf.range(own.shape[1], dtype=tf.int64), [1, -1, 1, *behind])
    x = tf.reshape(tf.range(own.shape[2], dtype=tf.int64), [1, 1, -1, *behind])
    inside = (y >= each(mixed.top)) & (y < each(mixed.bottom)) & (x >= each(mixed.left)) & (x < each(mixed.right))
    blended = tf.where(each(mixed.weight) == PARTS, own, blend(own, other, each(mixed.weight)))
    return tf.where(inside, other, blended)


def blend(own: Any, other: Any, weight: Any) -> Any:
    if own.dtype.is_integer:
        wide = tf.int32 if own.dtype in (tf.uint8, tf.uint16) else tf.int64
        part = tf.cast(weight, wide)
        total = tf.cast(own, wide) * part + tf.cast(other, wide) * (PARTS - part)
        return tf.cast((total + PARTS // 2) // PARTS, own.dtype)
    share = tf.cast(weight, tf.float32) / PARTS
    return tf.cast(tf.cast(own, tf.float32) * share + tf.cast(other, tf.float32) * (1 - share), own.dtype)
