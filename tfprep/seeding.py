"""Randomness as a function of *what* is made, and not of when, where or by which worker.

Every random draw of a build comes from `generator(seed, key, variant, step)`: the same four values give the same draws on
any machine, with any number of workers, in any order. Steps are named after what draws (`geometry/Rotate/0`), so adding
or removing one step leaves the draws of all others as they were.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

import numpy as np
import numpy.typing as npt


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


def sample_hashes(seed: int, keys: Sequence[bytes]) -> npt.NDArray[np.uint64]:
    """Return `sample_hash` of many keys, each in UTF-8: uint64 [N]."""
    start = blake2b(f"{seed}\0".encode(), digest_size=8)
    digests = []
    for key in keys:
        digest = start.copy()  # half the time of a new one
        digest.update(key)
        digests.append(digest.digest())
    return np.frombuffer(b"".join(digests), "<u8")
