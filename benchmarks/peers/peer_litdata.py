"""LitData: chunks written by `optimize`, read with `StreamingDataset` and its DataLoader with worker processes.

Chunks and the records in them are shuffled. Images are decoded with simplejpeg into shared memory; the decoder of LitData's
own JPEG serializer belongs to torchvision. Processor time of a raw image: 0.29 to 0.36 ms. Tried and not faster: the default
`prefetch_factor` of 2 instead of 4 (0.35 ms) and `ParallelStreamingDataset` with an endless length, so that no epoch ends
(0.38 ms).
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from common import Item, encoded, forever

PREFETCH = 4


def build(items: Sequence[Item], out: Path, form: str) -> None:
    import litdata

    with tempfile.TemporaryDirectory() as cache:
        # Without these, `optimize` deletes the folders "chunks" and "data" of the folder for temporary files.
        os.environ |= {f"DATA_OPTIMIZER_{kind}CACHE_FOLDER": f"{cache}/{kind}" for kind in ("", "DATA_")}
        litdata.optimize(
            fn=partial(_one, form=form),
            inputs=list(items),
            output_dir=str(out),
            chunk_bytes="64MB",
            num_workers=len(os.sched_getaffinity(0)),
        )


def _one(item: Item, form: str) -> dict[str, Any]:
    return {"image": encoded(item[0], form), "label": item[1]}


def load(out: Path, form: str, batch_size: int, workers: int) -> Iterable[Any]:
    import litdata
    from torch_batches import shared_batch

    data = litdata.StreamingDataset(str(out), shuffle=True, drop_last=True)

    def collate(samples: Sequence[Any]) -> Any:
        return shared_batch([sample["image"] for sample in samples], [sample["label"] for sample in samples], form)

    loader = litdata.StreamingDataLoader(
        data,
        batch_size=batch_size,
        num_workers=workers,
        collate_fn=collate,
        drop_last=True,
        persistent_workers=True,
        prefetch_factor=PREFETCH,
    )
    return forever(lambda: loader)
