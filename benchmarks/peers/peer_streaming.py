"""MosaicML Streaming: MDS shards, read with `LocalDataset` and PyTorch's DataLoader with worker processes.

Every record once an epoch, in a global permutation; decoded with simplejpeg into shared memory. Its performance guide
(https://docs.mosaicml.com/projects/streaming/en/latest/distributed_training/performance_tuning.html) is about downloads, and
there are none here.

Processor time of a raw image: 0.37 ms. Tried and slower: `StreamingDataset` with `shuffle=True`, 0.46 ms, also where one
epoch has 500,000 samples and never ends, 0.49 ms.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterable, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

from common import Item, encoded

PREFETCH = 4


def build(items: Sequence[Item], out: Path, form: str) -> None:
    stand_in_for_torchvision()
    from streaming import MDSWriter

    with MDSWriter(out=str(out), columns={"image": "bytes", "label": "int"}, size_limit=1 << 26) as writer:
        for path, label in items:
            writer.write({"image": encoded(path, form), "label": label})


class Records:
    """The records of a `LocalDataset`, a batch at a time."""

    def __init__(self, out: Path, form: str) -> None:
        from streaming import LocalDataset

        self._records, self._form = LocalDataset(local=str(out)), form

    def __len__(self) -> int:
        return len(self._records)

    def __getitems__(self, numbers: Sequence[int]) -> Any:
        from torch_batches import shared_batch

        samples = [self._records[number] for number in numbers]
        return shared_batch(
            [sample["image"] for sample in samples], [sample["label"] for sample in samples], self._form
        )


def load(out: Path, form: str, batch_size: int, workers: int) -> Iterable[Any]:
    stand_in_for_torchvision()
    from torch.utils.data import DataLoader
    from torch_batches import EndlessShuffle, as_it_is

    data = Records(out, form)
    order = EndlessShuffle(len(data))
    return DataLoader(
        data, batch_size, sampler=order, num_workers=workers, collate_fn=as_it_is, prefetch_factor=PREFETCH
    )


def stand_in_for_torchvision() -> None:
    """Lets `import streaming` succeed without torchvision, which only its vision classes use. They are not measured here."""
    if importlib.util.find_spec("torchvision") is None:
        names = ("torchvision", "torchvision.datasets", "torchvision.transforms", "torchvision.transforms.functional")
        sys.modules |= {name: importlib.util.module_from_spec(ModuleSpec(name, None)) for name in names}
        sys.modules["torchvision.datasets"].VisionDataset = object  # type: ignore[attr-defined]
        sys.modules["torchvision.transforms.functional"].to_tensor = None  # type: ignore[attr-defined]
