"""Near pairs against a comparison of each hash with each."""

from __future__ import annotations

import numpy as np
import pytest

from tfprep.inspect.fingerprints import MOST_DISTANCE, Forest, near_pairs


def by_brute_force(hashes, distance):
    return {
        (i, j, (int(a) ^ int(b)).bit_count())
        for i, a in enumerate(hashes)
        for j, b in enumerate(hashes[:i])
        if (int(a) ^ int(b)).bit_count() <= distance
    }


def found(hashes, distance):
    pairs = [
        (max(a, b), min(a, b), int(bits))
        for first, second, of_pair in near_pairs(hashes, distance)
        for a, b, bits in zip(first.tolist(), second.tolist(), of_pair.tolist(), strict=True)
    ]
    assert len(pairs) == len(set(pairs)), "each pair comes once"
    return set(pairs)


def clustered(seed: int) -> np.ndarray:
    """Random hashes, and around each others that differ in 0 to 14 bits, half of them next to each other."""
    rng = np.random.default_rng(seed)
    hashes = list(rng.integers(0, 2**64, 40, dtype=np.uint64))
    for centre in hashes[:40]:
        for _ in range(8):
            start, spread = int(rng.integers(0, 50)), int(rng.integers(0, 15))
            bits = (
                range(start, start + spread) if rng.random() < 0.5 else rng.choice(64, spread, replace=False).tolist()
            )
            flips = np.bitwise_xor.reduce(np.array([0, *(1 << int(bit) for bit in bits)], np.uint64))
            hashes.append(centre ^ flips)
    return np.unique(np.array(hashes))


@pytest.mark.parametrize("distance", range(MOST_DISTANCE + 1))
def test_no_pair_is_missed_and_none_is_too_far(distance):
    hashes = clustered(distance)
    assert found(hashes, distance) == by_brute_force(hashes, distance)


def test_hashes_of_equal_bits_in_most_places():
    few_bits = np.arange(512, dtype=np.uint64)  # they all agree in 55 bits
    assert found(few_bits, 4) == by_brute_force(few_bits, 4)


@pytest.mark.parametrize("hashes", [[], [7], [7, 8]])
def test_few_hashes(hashes):
    array = np.array(hashes, np.uint64)
    assert found(array, 4) == by_brute_force(array, 4)


def test_a_forest_joins_what_belongs_together():
    rng = np.random.default_rng(0)
    first, second = rng.integers(0, 300, (2, 200))
    forest = Forest(300)
    for n in range(0, 200, 50):
        forest.join(first[n : n + 50], second[n : n + 50])
    expected = list(range(300))  # the smallest member, by the slow way
    for _ in range(300):
        for a, b in zip(first.tolist(), second.tolist(), strict=True):
            expected[a] = expected[b] = min(expected[a], expected[b])
    assert forest.groups().tolist() == expected
