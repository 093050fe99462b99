"""The decoded cache around reading, row by row, for threads and for worker processes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tfprep.fields import Array
from tfprep.load.order.schedule import Numbers
from tfprep.load.reader.rows import Rows, Stage, UnreadRow
from tfprep.load.reader.thread_state import ThreadState


def with_stages(reading: Stage, cache: Mapping[str, Array] | None) -> Stage:
    """Wrap the reader with the cache, if there is one.

    Args:
        reading: What reads and decodes.
        cache: The arrays of the decoded cache by output, none if it holds text only; None without a cache.
    """
    return reading if cache is None else CachedRows(reading, cache)


class CachedRows:
    """Copies the rows that the cache holds, reads the others, and copies those that have a slot into the cache."""

    def __init__(self, inner: Stage, cache: Mapping[str, Array]) -> None:
        self._inner, self._cache = inner, cache

    def fill(self, values: Mapping[str, Any], rows: Rows, state: ThreadState) -> list[UnreadRow]:
        """See `Stage`."""
        state.enter("read")
        others = np.flatnonzero(rows["cached"] == 0)
        if not len(others):
            self._copy(self._cache, values, rows["slot"], rows["row"])
            return []
        cached = rows["cached"] != 0
        self._copy(self._cache, values, rows["slot"][cached], rows["row"][cached])
        part = rows.take(others)
        unread = self._inner.fill(values, part, state)
        kept = part["slot"] >= 0
        kept[[failure.number for failure in unread]] = False
        self._copy(values, self._cache, part["row"][kept], part["slot"][kept])
        return [UnreadRow(int(others[failure.number]), failure.reason) for failure in unread]

    def _copy(self, source: Any, target: Any, rows_from: Numbers, rows_to: Numbers) -> None:
        if not len(rows_to):
            return
        first, stop = int(rows_to[0]), int(rows_to[0]) + len(rows_to)
        together = bool((rows_to == np.arange(first, stop)).all())
        for name in self._cache:
            if together:
                np.take(source[name], rows_from, axis=0, out=target[name][first:stop], mode="clip")
                continue
            for row_from, row_to in zip(rows_from.tolist(), rows_to.tolist(), strict=True):
                target[name][row_to] = source[name][row_from]
