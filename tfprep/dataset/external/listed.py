"""The shards on their way into an index: which there are, and what was indexed of them before."""

from __future__ import annotations

import os
from dataclasses import dataclass

from tfprep.dataset.external.opened import ExternalIndex, IndexedShard
from tfprep.dataset.external.scanning import Scanned
from tfprep.dataset.external.shards import Place, Shard
from tfprep.dataset.external.targets import Targets
from tfprep.storage.urls import is_remote


@dataclass(frozen=True)
class ListedShard:
    """One shard on its way into an index: as it was indexed before (`old`: the index, the split and the shard's number), or as it
    was scanned now."""

    shard: Shard
    old: tuple[ExternalIndex, str, int] | None = None
    scanned: Scanned | None = None

    @property
    def state(self) -> IndexedShard:
        """What is known of it."""
        if self.scanned is not None:
            return IndexedShard(self.shard.version, self.scanned.records, self.scanned.summaries)
        index, split, number = self.before
        return index.splits[split].shards[number]

    @property
    def before(self) -> tuple[ExternalIndex, str, int]:
        """`old`, for a shard that was not scanned."""
        assert self.old is not None
        return self.old


def listed_shards(targets: Targets, old: ExternalIndex | None, *, verify: bool) -> dict[str, list[ListedShard]]:
    """Return all shards by split. Unless `verify`, those that did not change since they were indexed keep what is known."""
    known: dict[tuple[str, str], tuple[ExternalIndex, str, int]] = {}
    entries: dict[str, list[ListedShard]] = {}
    if old is not None:
        for split, info in old.manifest.splits.items():
            entries[split] = []
            for number, file in enumerate(info.files[0]):
                before = (old, split, number)
                path = old.path_of(file.name)
                shard = Shard(path, file.bytes, old.splits[split].shards[number].version)
                known[split, _real(path)] = before
                entries[split].append(ListedShard(shard, before))
    for split, shards in targets.splits.items():
        entries[split] = [
            ListedShard(shard, _same(None if verify else known.get((split, _real(shard.path))), shard))
            for shard in shards
        ]
    return entries


def _same(before: tuple[ExternalIndex, str, int] | None, shard: Shard) -> tuple[ExternalIndex, str, int] | None:
    """What was indexed before, if the shard is still as it was then."""
    if before is None:
        return None
    index, split, number = before
    file, state = index.manifest.splits[split].files[0][number], index.splits[split].shards[number]
    return before if (file.bytes, state.version) == (shard.bytes, shard.version) else None


def _real(path: Place) -> str:
    return str(path) if is_remote(path) else os.path.realpath(path)
