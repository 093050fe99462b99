"""MosaicML Streaming: MDS shards, read with `StreamingDataset` and PyTorch's DataLoader with worker processes."""

from __future__ import annotations

import importlib.util
import sys
import types
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from common import Item, encoded, main

EPOCH = 1_000_000
PREFETCH = 4


def build(items: Sequence[Item], out: Path, form: str) -> None:
    stand_in_for_torchvision()
    from streaming import MDSWriter

    with MDSWriter(out=str(out), columns={"image": "bytes", "label": "int"}, size_limit=1 << 26) as writer:
        for path, label in items:
            writer.write({"image": encoded(path, form), "label": label})


def load(out: Path, form: str, batch_size: int, workers: int) -> Iterable[Any]:
    stand_in_for_torchvision()
    import streaming
    import torch
    from torch_batches import shared_batch

    streaming.base.util.clean_stale_shared_memory()
    data = streaming.StreamingDataset(local=str(out), shuffle=True, batch_size=batch_size, epoch_size=EPOCH)

    def collate(samples: Sequence[Any]) -> Any:
        return shared_batch([sample["image"] for sample in samples], [sample["label"] for sample in samples], form)

    return torch.utils.data.DataLoader(
        data, batch_size, num_workers=workers, collate_fn=collate, drop_last=True, prefetch_factor=PREFETCH
    )


def stand_in_for_torchvision() -> None:
    """Lets `import streaming` succeed without torchvision, which only its vision classes use. They are not measured here."""
    if importlib.util.find_spec("torchvision") is None:
        names = ("torchvision", "torchvision.datasets", "torchvision.transforms", "torchvision.transforms.functional")
        sys.modules |= {name: types.ModuleType(name) for name in names}
        sys.modules["torchvision.datasets"].VisionDataset = object  # type: ignore[attr-defined]
        sys.modules["torchvision.transforms.functional"].to_tensor = None  # type: ignore[attr-defined]


if __name__ == "__main__":
    main(build, load)
