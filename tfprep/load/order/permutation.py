"""Permutations that are computed instead of stored, and the order of an epoch's items: functions of (seed, epoch) only.

The permutation is a balanced Feistel network over the product a·b >= size, with additions modulo a and b in the rounds ("FE2"
of Black and Rogaway, 'Ciphers with Arbitrary Finite Domains', CT-RSA 2002), followed by cycle walking: an image outside the
domain is mapped again. As a·b < size + 3·sqrt(size) + 4, hardly any is. The round function is the finaliser of SplitMix64
(Steele, Lea and Flood, 'Fast Splittable Pseudorandom Number Generators', OOPSLA 2014).

All arithmetic is on unsigned 64-bit integers modulo 2^64, element by element. Arguments broadcast: every element may have its
own size and key. Sizes are below 2^62. Positions and items are numbered from 0. Nothing is stored: the item at any position of
any epoch is computed by itself.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

Words: TypeAlias = npt.NDArray[np.uint64]
"""uint64 [N]"""
Numbers: TypeAlias = npt.NDArray[np.int64]
"""int64 [N]"""

ROUNDS = 20
"""With 8 rounds the 120 permutations of five elements are measurably not equally frequent; with 20 they pass our tests."""
GOLDEN = 0x9E3779B97F4A7C15
MIX = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, None))
"""SplitMix64's finaliser: xor with itself shifted right, then multiply."""


def words(values: Any) -> Words:
    """One number or several as uint64 [N]."""
    return np.atleast_1d(np.asarray(values)).astype(np.uint64)


def seed_key(seed: int, purpose: str) -> int:
    """A key of 64 bits for one use of the seed; keys for different purposes are independent."""
    return int.from_bytes(blake2b(f"{seed}\0{purpose}".encode(), digest_size=8).digest(), "little")


def generator_at(seed: int, step: str, position: int) -> np.random.Generator:
    """Return the generator of a step for the sample at a position of the run.

    It is Philox 4x64 with two numbers of 64 bits as its key: BLAKE2b of the seed and the step's name, and the position. A
    position counts the samples of all epochs, so it stands for (epoch, position in the epoch).

    Args:
        seed: The loader's seed.
        step: What draws, such as "geometry/Flip/0", in a view after its name: "global/0/geometry/Flip/0".
        position: The position in the run, of all hosts together.
    """
    return np.random.Generator(np.random.Philox(key=_key_at(seed, step, position)))


def _key_at(seed: int, step: str, position: int) -> npt.NDArray[np.uint64]:
    return np.array([_kept_key(seed, step), position], np.uint64)  # NumPy makes floats of a list of them


class Generators(threading.local):
    """The draws of `generator_at` from one generator for each thread, in a third of the time: valid until the next call."""

    def __init__(self) -> None:
        self._philox = np.random.Philox(key=0)
        self._generator = np.random.Generator(self._philox)
        self._state: Any = self._philox.state  # before the first draw

    def at(self, seed: int, step: str, position: int) -> np.random.Generator:
        """See `generator_at`."""
        self._state["state"]["key"] = _key_at(seed, step, position)
        self._philox.state = self._state
        return self._generator


_kept_key = lru_cache(1024)(seed_key)


def mix(value: Words) -> Words:
    for shift, factor in MIX:
        value = value ^ (value >> np.uint64(shift))
        if factor is not None:
            value = value * np.uint64(factor)
    return value


def subkey(key: Any, number: Any) -> Words:
    """The key of the `number`-th epoch, block, class, ... below `key`: elementwise."""
    return mix(words(key) + (words(number) + np.uint64(1)) * np.uint64(GOLDEN))


def below(value: Words, bound: Words) -> Words:
    """A number in [0, bound) from 64 random bits, for bounds below 2^32: their upper half, scaled."""
    scaled: Words = ((value >> np.uint64(32)) * bound) >> np.uint64(32)
    return scaled


def permute(index: Any, size: Any, key: Any) -> Words:
    """Return where the permutation of [0, size) chosen by `key` sends each index: uint64 [N]."""
    return _walk(words(index), words(size), words(key), inverse=False)


def unpermute(index: Any, size: Any, key: Any) -> Words:
    """The inverse of `permute`."""
    return _walk(words(index), words(size), words(key), inverse=True)


def _walk(index: Words, size: Words, key: Words, *, inverse: bool) -> Words:
    index, size, key = np.broadcast_arrays(index, size, key)
    a, b = sides(size)
    out = _rounds(index, a, b, key, inverse)
    while (outside := out >= size).any():
        out[outside] = _rounds(out[outside], a[outside], b[outside], key[outside], inverse)
    return out


def sides(size: Words) -> tuple[Words, Words]:
    """(a, b) with a·b >= size, a even: with both odd, only even permutations could be reached."""
    root = np.ceil(np.sqrt(size.astype(np.float64))).astype(np.uint64)
    a = np.maximum(root + (root & np.uint64(1)), np.uint64(2))
    return a, (size + a - np.uint64(1)) // a


def _rounds(index: Words, a: Words, b: Words, key: Words, inverse: bool) -> Words:
    left, right = index % a, index // a
    order = range(ROUNDS - 1, -1, -1) if inverse else range(ROUNDS)
    for number in order:
        round_key = key + np.uint64((number + 1) * GOLDEN % 2**64)
        if number % 2:
            right = _shift(right, mix(left + round_key), b, inverse)
        else:
            left = _shift(left, mix(right + round_key), a, inverse)
    joined: Words = right * a + left
    return joined


def _shift(value: Words, draw: Words, modulus: Words, inverse: bool) -> Words:
    step = below(draw, modulus)
    shifted: Words = (value + (modulus - step if inverse else step)) % modulus
    return shifted


OrderName: TypeAlias = Literal["global", "sequential"]


@dataclass(frozen=True)
class EpochOrder:
    """The order of the items of each epoch: one permutation of all of them, or as they are on disk."""

    name: OrderName = "global"
    seed: int = 0

    def items(self, position: Any, epoch: Any, size: int) -> Words:
        """The items at these positions of these epochs of `size` items: uint64 [N]."""
        position, epoch = np.broadcast_arrays(words(position), words(epoch))
        if self.name == "sequential" or not size:
            same: Words = position.copy()
            return same
        return permute(position, size, subkey(seed_key(self.seed, "order/global"), epoch))
