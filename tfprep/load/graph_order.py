"""The order of `tfprep.read` in TensorFlow ops: the same numbers, element by element.

Every function here mirrors the one of the same name in `tfprep.read.permute`, `order`, `variants`, `draws` or `schedule`; there
the definitions are explained. Tests compare the two.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tfprep.errors import LoaderError
from tfprep.read.draws import GOLDEN_RATIO, Draw, Each, Strata, Weighted
from tfprep.read.order import Order
from tfprep.read.permute import GOLDEN, MIX, ROUNDS, seed_key
from tfprep.read.schedule import Schedule
from tfprep.read.table import Table
from tfprep.read.variants import Variants


def word(value: Any) -> Any:
    """uint64: a tensor cast, or a Python number as it is."""
    return tf.constant(value, tf.uint64) if isinstance(value, int) else tf.cast(value, tf.uint64)


def mix(value: Any) -> Any:
    for shift, factor in MIX:
        value = tf.bitwise.bitwise_xor(value, tf.bitwise.right_shift(value, word(shift)))
        if factor is not None:
            value = value * word(factor)
    return value


def subkey(key: Any, number: Any) -> Any:
    return mix(word(key) + (word(number) + word(1)) * word(GOLDEN))


def below(value: Any, bound: Any) -> Any:
    return tf.bitwise.right_shift(tf.bitwise.right_shift(value, word(32)) * bound, word(32))


def permute(index: Any, size: Any, key: Any, *, inverse: bool = False) -> Any:
    index, size, key = _broadcast(word(index), word(size), word(key))
    a, b = sides(size)

    def outside(out: Any) -> Any:
        return tf.reduce_any(out >= size)

    def again(out: Any) -> tuple[Any]:
        return (tf.where(out >= size, _rounds(out, a, b, key, inverse), out),)

    return tf.while_loop(outside, again, [_rounds(index, a, b, key, inverse)])[0]


def sides(size: Any) -> tuple[Any, Any]:
    root = tf.cast(tf.math.ceil(tf.math.sqrt(tf.cast(size, tf.float64))), tf.uint64)
    a = tf.maximum(root + tf.bitwise.bitwise_and(root, word(1)), word(2))
    return a, (size + a - word(1)) // a


def _rounds(index: Any, a: Any, b: Any, key: Any, inverse: bool) -> Any:
    left, right = index % a, index // a
    for number in range(ROUNDS - 1, -1, -1) if inverse else range(ROUNDS):
        round_key = key + word((number + 1) * GOLDEN % 2**64)
        if number % 2:
            right = _shift(right, mix(left + round_key), b, inverse)
        else:
            left = _shift(left, mix(right + round_key), a, inverse)
    return right * a + left


def _shift(value: Any, draw: Any, modulus: Any, inverse: bool) -> Any:
    step = below(draw, modulus)
    return (value + (modulus - step if inverse else step)) % modulus


def _broadcast(*values: Any) -> list[Any]:
    shape = tf.shape(values[0])
    for value in values[1:]:
        shape = tf.broadcast_dynamic_shape(shape, tf.shape(value))
    return [tf.broadcast_to(value, shape) for value in values]


def items(order: Order, place: Any, epoch: Any, size: int) -> Any:
    if order.name == "sequential":
        return place
    key = subkey(seed_key(order.seed, f"order/{order.name}"), epoch)
    return permute(place, size, key) if order.name == "global" else _blocks(order, place, size, key)


def _blocks(order: Order, place: Any, size: int, key: Any) -> Any:
    block, blocks = word(order.block), word(-(-size // order.block))
    missing = blocks * block - word(size)
    short = permute(blocks - word(1), blocks, key, inverse=True)
    mixed = _mixed(order, place, blocks, missing, short, subkey(key, 0))
    padded = mixed + tf.where(mixed >= (short + word(1)) * block - missing, missing, word(0))
    return permute(padded // block, blocks, key) * block + padded % block


def _mixed(order: Order, place: Any, blocks: Any, missing: Any, short: Any, key: Any) -> Any:
    block, window = word(order.block), word(order.window)
    padded = place + tf.where(place >= (short + word(1)) * block - missing, missing, word(0))
    number = padded // (block * window)
    first = number * window
    last = tf.minimum(first + window, blocks)
    start = first * block - tf.where(first > short, missing, word(0))
    stop = last * block - tf.where(last > short, missing, word(0))
    return start + permute(place - start, stop - start, subkey(key, number))


def variant(variants: Variants, group: Any, visit: Any, count: Any) -> Any:
    if isinstance(variants.choice, int):
        return tf.fill(tf.shape(group), word(variants.choice))
    key = word(seed_key(variants.seed, f"variants/{variants.choice}"))
    if variants.choice == "rotate":
        return (below(mix(subkey(key, group)), count) + visit) % count
    return below(mix(subkey(subkey(key, visit), group)), count)


def samples(draw: Draw, item: Any, epoch: Any) -> tuple[Any, Any]:
    if isinstance(draw, Each):
        return item, epoch
    if isinstance(draw, Strata):
        return _stratum(draw, item, epoch)
    if isinstance(draw, Weighted):
        return _weighted(draw, item, epoch)
    raise LoaderError(f"path='graph' does not know {type(draw).__name__}; use path='direct'")


def _stratum(draw: Strata, item: Any, epoch: Any) -> tuple[Any, Any]:
    ends = tf.constant(draw.ends.astype(np.int64))
    number = tf.searchsorted(ends, tf.cast(item, tf.int64), "right")
    first, size, quota = (tf.gather(tf.constant(column), number) for column in draw.columns)
    place = epoch * quota + item - (word(tf.gather(ends, number)) - quota)
    visit, inside = place // size, place % size
    return first + permute(inside, size, subkey(subkey(draw.key, number), visit)), visit


def _weighted(draw: Weighted, item: Any, epoch: Any) -> tuple[Any, Any]:
    ends = tf.constant(draw.ends)
    offset = (draw.start + tf.cast(epoch, tf.float64) * GOLDEN_RATIO) % 1.0
    sample = tf.searchsorted(ends, tf.cast(item, tf.float64) + offset, "right")
    before = tf.where(sample > 0, tf.gather(ends, tf.maximum(sample - 1, 0)), tf.constant(0.0, tf.float64))
    visit = epoch * word(tf.math.ceil(tf.gather(ends, sample) - before))
    return word(sample), visit + item - word(tf.maximum(tf.math.ceil(before - offset), 0.0))


def at(schedule: Schedule, place: Any) -> tuple[Any, Any]:
    """(row, variant) as int64 [N] of these places of the run, int64 [N]."""
    size, count = schedule.size, word(schedule.draw.size)
    epoch = word(place // size)
    item = items(schedule.order, word(place % size), epoch, size)
    if schedule.times > 1:
        sample, _ = samples(schedule.draw, item % count, epoch)
        return _row(schedule, sample), tf.cast(item // count, tf.int64)
    sample, visit = samples(schedule.draw, item, epoch)
    row = _row(schedule, sample)
    if schedule.variants.choice == "all":
        return row, tf.zeros_like(row)
    group = row if schedule.groups is None else tf.gather(tf.constant(schedule.groups), row)
    counts = schedule.counts
    number = word(counts) if isinstance(counts, int) else word(tf.gather(tf.constant(counts), row))
    return row, tf.cast(variant(schedule.variants, word(group), visit, number), tf.int64)


def _row(schedule: Schedule, sample: Any) -> Any:
    number = tf.cast(sample, tf.int64)
    return number if schedule.rows is None else tf.gather(tf.constant(schedule.rows), number)


def record(table: Table, row: Any, chosen: Any) -> Any:
    """The number of each row's variant in the table: int64 [N]."""
    firsts = tf.constant(table.first_row[:-1].astype(np.int64))
    part = tf.searchsorted(firsts, row, "right") - 1
    slots = np.zeros((len(table.parts), 1 + max(max(p.variants) for p in table.parts)), np.int64)
    for number, share in enumerate(table.parts):
        slots[number, list(share.variants)] = np.arange(len(share.variants))
    slot = tf.gather_nd(tf.constant(slots), tf.stack([tf.cast(part, tf.int64), chosen], -1))
    sizes = tf.constant(np.array([share.samples for share in table.parts], np.int64))
    first_record = tf.constant(np.cumsum([0] + [share.records for share in table.parts])[:-1].astype(np.int64))
    inside = row - tf.gather(firsts, part)
    return tf.gather(first_record, part) + slot * tf.gather(sizes, part) + inside
