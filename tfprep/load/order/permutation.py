"""Permutations that are computed instead of stored, and random draws: functions of a seed and of numbers only.

The permutation is a balanced Feistel network over the product a·b >= size, with additions modulo a and b in the rounds ("FE2"
of Black and Rogaway, 'Ciphers with Arbitrary Finite Domains', CT-RSA 2002), followed by cycle walking: an image outside the
domain is mapped again. As a·b < size + 3·sqrt(size) + 4, hardly any is. The round function is the finaliser of SplitMix64
(Steele, Lea and Flood, 'Fast Splittable Pseudorandom Number Generators', OOPSLA 2014).

All arithmetic is on unsigned 64-bit integers modulo 2^64, element by element. Arguments broadcast: every element may have its
own size and key. Sizes are below 2^62. Positions and items are numbered from 0. Nothing is stored: the item at any position of
any epoch is computed by itself.
"""

from __future__ import annotations

import operator
import threading
from functools import lru_cache
from hashlib import blake2b
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from tfprep.errors import LoaderError

Words: TypeAlias = npt.NDArray[np.uint64]
"""uint64 [N]"""
Numbers: TypeAlias = npt.NDArray[np.int64]
"""int64 [N]"""

ROUNDS = 20
"""With 8 rounds the 120 permutations of five elements are measurably not equally frequent; with 20 they pass our tests."""
GOLDEN = 0x9E3779B97F4A7C15


def whole_number(name: str, value: Any, least: int | None = None, most: int | None = None) -> int:
    """Return an argument, which may be a number of NumPy's, as a Python int; LoaderError unless it is from `least` to `most`."""
    number = operator.index(value) if hasattr(value, "__index__") and not isinstance(value, bool) else None
    if number is None or (least is not None and number < least) or (most is not None and number > most):
        rule = "a whole number" if least is None else f"a whole number from {least}"
        rule += f" to {most:,}" if most is not None and number is not None and number > most else ""
        raise LoaderError(f"{name} is {rule}, not {value!r}")
    return number


def words(values: Any) -> Words:
    """One number or several as uint64 [N]."""
    return np.atleast_1d(np.asarray(values)).astype(np.uint64)


def seed_key(seed: int, purpose: str) -> int:
    """A key of 64 bits for one use of the seed; keys for different purposes are independent."""
    return int.from_bytes(blake2b(f"{seed}\0{purpose}".encode(), digest_size=8).digest(), "little")


class _Kept(threading.local):
    """One generator for each thread: setting its state takes a third of the time that a new one takes."""

    def __init__(self) -> None:
        self.philox = np.random.Philox(key=0)
        self.generator = np.random.Generator(self.philox)
        self.state: Any = self.philox.state  # before the first draw


_kept = _Kept()
_kept_key = lru_cache(1024)(seed_key)


def generator_at(seed: int, step: str, position: int) -> np.random.Generator:
    """Return the generator of a step for the sample at a position of the run, valid until this thread's next call.

    It is Philox 4x64 with two numbers of 64 bits as its key: BLAKE2b of the seed and the step's name, and the position. A
    position counts the samples of all epochs, so it stands for (epoch, position in the epoch).

    Args:
        seed: The loader's seed.
        step: What draws, such as "geometry/Flip/0", in a view after its name: "global/0/geometry/Flip/0".
        position: The position in the run, of all hosts together.
    """
    _kept.state["state"]["key"] = np.array([_kept_key(seed, step), position], np.uint64)  # NumPy makes floats of a list
    _kept.philox.state = _kept.state
    return _kept.generator


def mix(value: Words) -> Words:
    """SplitMix64's finaliser."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: Words = value ^ (value >> np.uint64(31))
    return mixed


def subkey(key: Any, number: Any) -> Words:
    """The key of the `number`-th epoch, block, class, ... below `key`: elementwise."""
    return mix(words(key) + (words(number) + np.uint64(1)) * np.uint64(GOLDEN))


def below(value: Words, bound: Words) -> Words:
    """A number in [0, bound) from 64 random bits, for bounds below 2^32: their upper half, scaled."""
    scaled: Words = ((value >> np.uint64(32)) * bound) >> np.uint64(32)
    return scaled


def permute(index: Any, size: Any, key: Any) -> Words:
    """Return where the permutation of [0, size) chosen by `key` sends each index: uint64 [N]."""
    index, size, key = np.broadcast_arrays(words(index), words(size), words(key))
    a, b = sides(size)
    out = _rounds(index, a, b, key)
    while (outside := out >= size).any():
        out[outside] = _rounds(out[outside], a[outside], b[outside], key[outside])
    return out


def sides(size: Words) -> tuple[Words, Words]:
    """(a, b) with a·b >= size, a even: with both odd, only even permutations could be reached."""
    root = np.ceil(np.sqrt(size.astype(np.float64))).astype(np.uint64)
    a = np.maximum(root + (root & np.uint64(1)), np.uint64(2))
    return a, (size + a - np.uint64(1)) // a


def _rounds(index: Words, a: Words, b: Words, key: Words) -> Words:
    left, right = index % a, index // a
    for number in range(ROUNDS):
        round_key = key + np.uint64((number + 1) * GOLDEN % 2**64)
        if number % 2:
            right = (right + below(mix(left + round_key), b)) % b
        else:
            left = (left + below(mix(right + round_key), a)) % a
    joined: Words = right * a + left
    return joined
