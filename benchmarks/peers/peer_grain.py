"""Grain: ArrayRecord files, read with a globally shuffled `MapDataset` and decoded in its threads."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from multiprocessing import Pool
from pathlib import Path
from typing import Any

from common import Item, decoded, encoded, main, stacked

SHARDS = 8


def build(items: Sequence[Item], out: Path, form: str) -> None:
    out.mkdir(parents=True)
    with Pool() as pool:
        pool.starmap(_shard, [(items[n::SHARDS], out / f"{n:03d}.array_record", form) for n in range(SHARDS)])


def _shard(items: Sequence[Item], path: Path, form: str) -> None:
    from array_record.python.array_record_module import ArrayRecordWriter

    writer = ArrayRecordWriter(str(path), "group_size:1")
    for photo, label in items:
        writer.write(struct.pack("<q", label) + encoded(photo, form))
    writer.close()


def load(out: Path, form: str, batch_size: int, workers: int) -> Iterable[Any]:
    import grain

    def sample(record: bytes) -> tuple[Any, int]:
        return decoded(record[8:], form), struct.unpack("<q", record[:8])[0]

    source = grain.sources.ArrayRecordDataSource([str(path) for path in sorted(out.glob("*.array_record"))])
    data = grain.MapDataset.source(source).shuffle(seed=0).repeat().map(sample)
    options = grain.ReadOptions(num_threads=8 * workers, prefetch_buffer_size=256)
    return data.to_iter_dataset(options).batch(batch_size, drop_remainder=True, batch_fn=stacked)


if __name__ == "__main__":
    main(build, load)
