"""What happens to a record that cannot be read: an error, or a note and another sample that replaces it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

from tfprep.errors import LoaderError, RecordError

OnBad: TypeAlias = Literal["raise", "skip"]

LISTED = 1_000
"""Bad records are counted without end, and named up to this number."""
ATTEMPTS = 100


@dataclass(frozen=True)
class BadRecord:
    """One record that was left out: its file, its number there, the sample's key, and why."""

    path: str
    record: int
    key: str
    reason: str


class BadRecords:
    """The policy, and what was left out under it. Safe to use from any thread."""

    def __init__(self, on_bad: OnBad) -> None:
        self.on_bad = on_bad
        self._lock = threading.Lock()
        self._listed: list[BadRecord] = []
        self._known: set[int] = set()
        self.rows_lost = 0

    @property
    def count(self) -> int:
        """How many different records were bad."""
        return len(self._known)

    @property
    def listed(self) -> Sequence[BadRecord]:
        return tuple(self._listed)

    def report(self) -> list[dict[str, Any]]:
        return [asdict(bad) for bad in self.listed]

    def known(self, record: int) -> bool:
        return record in self._known

    def note(self, record: int, key: str, error: RecordError) -> None:
        with self._lock:
            if record in self._known:
                return
            self._known.add(record)
            if len(self._listed) < LISTED:
                self._listed.append(BadRecord(error.path, error.record or 0, key, error.reason))

    def lost(self) -> None:
        with self._lock:
            self.rows_lost += 1


def too_many(place: int, reason: str) -> LoaderError:
    """The error where no record can be read for a place of the run; `reason`: why the last one could not."""
    return LoaderError(
        f"{ATTEMPTS} records in a row could not be read for place {place} of the run, the last one because: {reason}. report() "
        "names them; where files are damaged, build the dataset again"
    )
