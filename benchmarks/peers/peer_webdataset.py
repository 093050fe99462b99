"""WebDataset: tar shards, read with PyTorch's DataLoader with worker processes and a shuffle buffer of 1,000."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from multiprocessing import Pool
from pathlib import Path
from typing import Any

from common import Item, decoded, encoded, main, stacked

SHARDS = 8


def build(items: Sequence[Item], out: Path, form: str) -> None:
    out.mkdir(parents=True)
    with Pool() as pool:
        pool.starmap(_shard, [(items[n::SHARDS], out / f"{n:03d}.tar", form) for n in range(SHARDS)])


def _shard(items: Sequence[Item], path: Path, form: str) -> None:
    import webdataset as wds

    with wds.TarWriter(str(path)) as tar:
        for number, (photo, label) in enumerate(items):
            tar.write({"__key__": f"{number:06d}", "img": encoded(photo, form), "cls": str(label).encode()})


def load(out: Path, form: str, batch_size: int, workers: int) -> Iterable[Any]:
    import torch
    import webdataset as wds

    def sample(parts: tuple[bytes, bytes]) -> tuple[Any, int]:
        return decoded(parts[0], form), int(parts[1])

    shards = [str(path) for path in sorted(out.glob("*.tar"))]
    data = wds.WebDataset(shards, shardshuffle=len(shards), nodesplitter=None).repeat().shuffle(1000)
    data = data.to_tuple("img", "cls").map(sample).batched(batch_size, collation_fn=stacked, partial=False)
    return torch.utils.data.DataLoader(data, batch_size=None, num_workers=workers)


if __name__ == "__main__":
    main(build, load)
