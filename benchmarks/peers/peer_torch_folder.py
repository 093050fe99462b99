"""PyTorch without a file format: files in class folders, as `ImageFolder` reads them, and DataLoader with worker processes.

Every image once an epoch, in a global permutation. `ImageFolder` belongs to torchvision, which has no wheel for a CPU build
of PyTorch on PyPI; the dataset below returns the same images and labels. Its decoder is simplejpeg, and its `__getitems__`
reads a whole batch into shared memory (see torch_batches.py).

Processor time of a raw image: 0.18 ms. Tried and slower: NumPy batches, which go through a pipe (2.7 times the time);
`__getitem__` for single images and a `collate_fn` that copies them into shared memory, 0.24 ms. As fast: 3 workers,
`prefetch_factor` 2 and 4.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from common import Item, decode_into, encoded, in_class_folders


def build(items: Sequence[Item], out: Path, form: str) -> None:
    in_class_folders(_write, items, out, form)


def _write(item: Item, number: int, out: Path, form: str) -> None:
    path, label = item
    (out / f"{label:05d}" / f"{number:06d}.{form}").write_bytes(encoded(path, form))


class Files:
    def __init__(self, out: Path, form: str) -> None:
        paths = sorted(out.rglob(f"*.{form}"))
        self.paths, self.labels, self.form = (
            [str(path) for path in paths],
            [int(path.parent.name) for path in paths],
            form,
        )

    def __len__(self) -> int:
        return len(self.paths)

    def __getitems__(self, numbers: Sequence[int]) -> Any:
        import torch
        from torch_batches import shared_images

        images = shared_images(len(numbers))
        for row, number in zip(images.numpy(), numbers, strict=True):
            self._read(row, self.paths[number])
        return images, torch.tensor([self.labels[number] for number in numbers])

    def _read(self, row: Any, path: str) -> None:
        with open(path, "rb", buffering=0) as file:
            if self.form == "raw":
                file.readinto(row.reshape(-1))
            else:
                decode_into(row, file.read(), self.form)


def load(out: Path, form: str, batch_size: int, workers: int) -> Iterable[Any]:
    from torch.utils.data import DataLoader
    from torch_batches import EndlessShuffle, as_it_is

    files = Files(out, form)
    order = EndlessShuffle(len(files))
    return DataLoader(
        files, batch_size, sampler=order, num_workers=workers, collate_fn=as_it_is, prefetch_factor=PREFETCH
    )


PREFETCH = 8
