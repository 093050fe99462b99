"""Randomness as a function of *what* is made, and not of when, where or by which worker.

Every random draw of a build comes from `generator(seed, key, variant, step)`: the same four values give the same draws on
any machine, with any number of workers, in any order. Steps are named after what draws (`geometry/Rotate/0`), so adding
or removing one step leaves the draws of all others as they were.
"""

from __future__ import annotations

from hashlib import blake2b

import numpy as np


def generator(seed: int, key: str, variant: int, step: str) -> np.random.Generator:
    """Return a NumPy generator (Philox 4x64, Salmon et al. 2011) keyed by 128 bits of BLAKE2b of the four values.

    Args:
        seed: The recipe's seed.
        key: The sample's key.
        variant: The variant of the sample, from 0.
        step: What draws, such as `geometry/Rotate/0`.
    """
    text = f"{seed}\0{variant}\0{step}\0{key}"
    digest = blake2b(text.encode("utf-8", "surrogateescape"), digest_size=16).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "little")))


def sample_hash(seed: int, key: str) -> int:
    """Return 64 bits of BLAKE2b of (seed, key), which decide a sample's shard and its position there."""
    text = f"{seed}\0{key}"
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogateescape"), digest_size=8).digest(), "little")
