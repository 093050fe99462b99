"""`tfprep.load.order` in TensorFlow ops.

Each function returns the numbers that the one of the same name in `tfprep.load.order` returns; the definitions are explained
there. Numbers are uint64 tensors [N] unless a docstring says otherwise.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tfprep.errors import LoaderError
from tfprep.load.order.epoch_order import EpochOrder
from tfprep.load.order.permutation import GOLDEN, MIX, ROUNDS, seed_key
from tfprep.load.order.samplers import (
    STEP,
    UNIT,
    Sampler,
    StratifiedSampler,
    UniformSampler,
    WeightedSampler,
    euclid_steps,
)
from tfprep.load.order.schedule import BatchSchedule
from tfprep.load.order.variants import Variants
from tfprep.load.reader.table import RecordTable


def word(value: Any) -> Any:
    """A tensor or a Python number as uint64; a number may have all 64 bits."""
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

    def any_outside(out: Any) -> Any:
        return tf.reduce_any(out >= size)

    def next_round(out: Any) -> tuple[Any]:
        return (tf.where(out >= size, _rounds(out, a, b, key, inverse), out),)

    return tf.while_loop(any_outside, next_round, [_rounds(index, a, b, key, inverse)])[0]


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


def items(order: EpochOrder, position: Any, epoch: Any, size: int) -> Any:
    if order.name == "sequential":
        return position
    key = subkey(seed_key(order.seed, f"order/{order.name}"), epoch)
    return permute(position, size, key) if order.name == "global" else _blocks(order, position, size, key)


def _blocks(order: EpochOrder, position: Any, size: int, key: Any) -> Any:
    block, blocks = word(order.block), word(-(-size // order.block))
    missing = blocks * block - word(size)
    short = permute(blocks - word(1), blocks, key, inverse=True)
    mixed = _mixed(order, position, blocks, missing, short, subkey(key, 0))
    padded = mixed + tf.where(mixed >= (short + word(1)) * block - missing, missing, word(0))
    return permute(padded // block, blocks, key) * block + padded % block


def _mixed(order: EpochOrder, position: Any, blocks: Any, missing: Any, short: Any, key: Any) -> Any:
    block, window = word(order.block), word(order.window)
    padded = position + tf.where(position >= (short + word(1)) * block - missing, missing, word(0))
    number = padded // (block * window)
    first = number * window
    last = tf.minimum(first + window, blocks)
    start = first * block - tf.where(first > short, missing, word(0))
    stop = last * block - tf.where(last > short, missing, word(0))
    return start + permute(position - start, stop - start, subkey(key, number))


def variant(variants: Variants, group: Any, passes: Any, count: Any) -> Any:
    if isinstance(variants.choice, int):
        return tf.fill(tf.shape(group), word(variants.choice))
    key = word(seed_key(variants.seed, f"variants/{variants.choice}"))
    if variants.choice == "rotate":
        return (below(mix(subkey(key, group)), count) + passes) % count
    return below(mix(subkey(subkey(key, passes), group)), count)


def samples(sampler: Sampler, item: Any, epoch: Any) -> tuple[Any, Any]:
    if isinstance(sampler, UniformSampler):
        return item, epoch
    if isinstance(sampler, StratifiedSampler):
        return _stratum(sampler, item, epoch)
    if isinstance(sampler, WeightedSampler):
        return _weighted(sampler, item, epoch)
    raise LoaderError(f"path='graph' does not know {type(sampler).__name__}; use path='direct'")


def _stratum(sampler: StratifiedSampler, item: Any, epoch: Any) -> tuple[Any, Any]:
    ends = tf.constant(sampler.ends.astype(np.int64))
    number = tf.searchsorted(ends, tf.cast(item, tf.int64), "right")
    first, size, quota = (tf.gather(tf.constant(column), number) for column in sampler.columns)
    position = epoch * quota + item - (word(tf.gather(ends, number)) - quota)
    passes, inside = position // size, position % size
    return first + permute(inside, size, subkey(subkey(sampler.key, number), passes)), passes


def _weighted(sampler: WeightedSampler, item: Any, epoch: Any) -> tuple[Any, Any]:
    ends = tf.constant(sampler.ends.astype(np.int64))
    unit = word(UNIT)
    offset = (word(sampler.start) + epoch * word(STEP)) % unit
    sample = tf.searchsorted(ends, tf.cast(item * unit + offset, tf.int64), "right")
    end = word(tf.gather(ends, sample))
    begin = tf.where(sample > 0, word(tf.gather(ends, tf.maximum(sample - 1, 0))), word(0))
    first_item = (begin + unit - word(1) - offset) // unit
    shift = word(UNIT - 1 - sampler.start)
    before = floor_sums(epoch, UNIT, UNIT - STEP, end + shift) - floor_sums(epoch, UNIT, UNIT - STEP, begin + shift)
    return word(sample), before + item - first_item


def floor_sums(count: Any, modulus: int, factor: int, offset: Any) -> Any:
    total = tf.zeros_like(offset)
    for whole, rest, divisor in euclid_steps(modulus, factor):
        total = total + count * (count - word(1)) // word(2) * word(whole)
        total, offset = total + count * (offset // word(divisor)), offset % word(divisor)
        top = word(rest) * count + offset
        count, offset = top // word(divisor), top % word(divisor)
    return total


def at(schedule: BatchSchedule, position: Any) -> tuple[Any, Any]:
    """The row and the variant at each position of the run: int64 [N] of int64 [N]."""
    size, count = schedule.size, word(schedule.sampler.size)
    epoch = word(position // size)
    item = items(schedule.order, word(position % size), epoch, size)
    if schedule.times > 1:
        sample, _ = samples(schedule.sampler, item % count, epoch)
        return _row(schedule, sample), tf.cast(item // count, tf.int64)
    sample, passes = samples(schedule.sampler, item, epoch)
    row = _row(schedule, sample)
    if schedule.variants.choice == "all":
        return row, tf.zeros_like(row)
    group = row if schedule.groups is None else tf.gather(tf.constant(schedule.groups), row)
    counts = schedule.counts
    number = word(counts) if isinstance(counts, int) else word(tf.gather(tf.constant(counts), row))
    return row, tf.cast(variant(schedule.variants, word(group), passes, number), tf.int64)


def _row(schedule: BatchSchedule, sample: Any) -> Any:
    number = tf.cast(sample, tf.int64)
    return number if schedule.rows is None else tf.gather(tf.constant(schedule.rows), number)


def record(table: RecordTable, row: Any, chosen: Any) -> Any:
    """The number in the table of each row's record in the variant `chosen`: int64 [N] of int64 [N]."""
    firsts = tf.constant(table.first_row[:-1].astype(np.int64))
    part = tf.searchsorted(firsts, row, "right") - 1
    slots = np.zeros((len(table.parts), 1 + max(max(split.variants) for split in table.parts)), np.int64)
    for number, split in enumerate(table.parts):
        slots[number, list(split.variants)] = np.arange(len(split.variants))
    slot = tf.gather_nd(tf.constant(slots), tf.stack([tf.cast(part, tf.int64), chosen], -1))
    sizes = tf.constant(np.array([split.samples for split in table.parts], np.int64))
    first_record = tf.constant(np.cumsum([0] + [split.records for split in table.parts])[:-1].astype(np.int64))
    inside = row - tf.gather(firsts, part)
    return tf.gather(first_record, part) + slot * tf.gather(sizes, part) + inside
