"""Timing of pairs of functions, tfprep's and a peer's, in turns: one call each per round, so that a busy machine slows both.

This module is imported by benchmarks/derive.py and benchmarks/augment.py.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Pair:
    """A function of tfprep and the peer's function for the same task. `peer` is None if no peer has such a function."""

    name: str
    ours: Callable[[], Any]
    peer: Callable[[], Any] | None
    peer_name: str


@dataclass(frozen=True)
class Timing:
    """Medians in milliseconds over the rounds; the median and the quartiles of the ratio peer / ours within a round."""

    name: str
    peer_name: str
    ours_ms: float
    peer_ms: float | None
    ratio: float | None
    low: float | None
    high: float | None


def time_pair(pair: Pair, seconds: float, least_rounds: int = 3) -> Timing:
    """Calls both once to warm up, then in turns, in alternating order, until `seconds` have passed."""
    pair.ours()
    if pair.peer is not None:
        pair.peer()
    ours, peers = [], []
    end = time.perf_counter() + seconds
    while len(ours) < least_rounds or time.perf_counter() < end:
        first = len(ours) % 2 == 0
        if first:
            ours.append(_clocked(pair.ours))
        if pair.peer is not None:
            peers.append(_clocked(pair.peer))
        if not first:
            ours.append(_clocked(pair.ours))
    return _summary(pair, ours, peers)


def print_timing(timing: Timing) -> None:
    line = f"{timing.name:44} {timing.ours_ms:9.3f} ms"
    if timing.peer_ms is not None:
        line += f"   {timing.peer_name:26} {timing.peer_ms:9.3f} ms"
        line += f"   {timing.ratio:6.1f} x ({timing.low:.1f} to {timing.high:.1f})"
    print(line, flush=True)


def _clocked(function: Callable[[], Any]) -> float:
    start = time.perf_counter()
    function()
    return (time.perf_counter() - start) * 1e3


def _summary(pair: Pair, ours: list[float], peers: list[float]) -> Timing:
    if not peers:
        return Timing(pair.name, pair.peer_name, statistics.median(ours), None, None, None, None)
    ratios = sorted(peer / own for own, peer in zip(ours, peers, strict=True))
    quarter = len(ratios) // 4
    return Timing(
        pair.name,
        pair.peer_name,
        statistics.median(ours),
        statistics.median(peers),
        statistics.median(ratios),
        ratios[quarter],
        ratios[-1 - quarter],
    )
