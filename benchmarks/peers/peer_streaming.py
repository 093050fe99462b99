"""MosaicML Streaming: MDS shards, read with `StreamingDataset` and PyTorch's DataLoader with worker processes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from common import Item, decoded, encoded, forever, main, stacked


def build(items: Sequence[Item], out: Path, form: str) -> None:
    from streaming import MDSWriter

    with MDSWriter(out=str(out), columns={"image": "bytes", "label": "int"}, size_limit=1 << 26) as writer:
        for path, label in items:
            writer.write({"image": encoded(path, form), "label": label})


def load(out: Path, form: str, batch_size: int, workers: int) -> Iterable[Any]:
    import streaming
    import torch

    streaming.base.util.clean_stale_shared_memory()
    data = streaming.StreamingDataset(local=str(out), shuffle=True, batch_size=batch_size)

    def collate(samples: Sequence[Any]) -> Any:
        return stacked([(decoded(sample["image"], form), sample["label"]) for sample in samples])

    loader = torch.utils.data.DataLoader(
        data, batch_size, num_workers=workers, collate_fn=collate, drop_last=True, persistent_workers=True
    )
    return forever(lambda: loader)


if __name__ == "__main__":
    main(build, load)
