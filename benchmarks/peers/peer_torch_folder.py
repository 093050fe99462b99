"""PyTorch without a file format: prepared photos as files, a map-style dataset, and DataLoader with worker processes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from common import Item, decoded, encoded, forever, in_class_folders, main, stacked


def build(items: Sequence[Item], out: Path, form: str) -> None:
    in_class_folders(_write, items, out, form)


def _write(item: Item, number: int, out: Path, form: str) -> None:
    path, label = item
    (out / f"{label:05d}" / f"{number:06d}.{form}").write_bytes(encoded(path, form))


class Files:
    def __init__(self, out: Path, form: str) -> None:
        self.paths, self.form = sorted(out.rglob(f"*.{form}")), form

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, number: int) -> tuple[Any, int]:
        path = self.paths[number]
        return decoded(path.read_bytes(), self.form), int(path.parent.name)


def load(out: Path, form: str, batch_size: int, workers: int) -> Iterable[Any]:
    import torch

    loader = torch.utils.data.DataLoader(
        Files(out, form), batch_size, shuffle=True, num_workers=workers, collate_fn=stacked, drop_last=True,
        persistent_workers=True,
    )  # fmt: skip
    return forever(lambda: loader)


if __name__ == "__main__":
    main(build, load)
