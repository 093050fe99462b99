"""LitData: chunks written by `optimize`, read with `StreamingDataset` and its DataLoader with worker processes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from common import Item, decoded, encoded, forever, main, stacked


def build(items: Sequence[Item], out: Path, form: str) -> None:
    import os

    import litdata

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

    data = litdata.StreamingDataset(str(out), shuffle=True, drop_last=True)

    def collate(samples: Sequence[Any]) -> Any:
        return stacked([(decoded(sample["image"], form), sample["label"]) for sample in samples])

    loader = litdata.StreamingDataLoader(
        data, batch_size=batch_size, num_workers=workers, collate_fn=collate, drop_last=True
    )
    return forever(lambda: loader)


if __name__ == "__main__":
    main(build, load)
