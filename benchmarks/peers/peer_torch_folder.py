"""PyTorch without a file format: files in class folders, as `ImageFolder` reads them, and DataLoader with worker processes.

Every image once an epoch, in a global permutation. `ImageFolder` belongs to torchvision, which has no wheel for a CPU build
of PyTorch on PyPI; the dataset below returns the same images and labels. Its decoder is simplejpeg, and its `__getitems__`
reads a whole batch into a tensor in shared memory, as `default_collate` allocates its result: DataLoader sends a
tensor as a handle of shared memory, and an array through a pipe.

Processor time of a raw image: 0.18 ms. Tried and slower: NumPy batches, which go through a pipe (2.7 times the time);
`__getitem__` for single images and a `collate_fn` that copies them into shared memory, 0.24 ms. As fast: 3 workers,
`prefetch_factor` 2 and 4.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from common import CROP, Item, decode_into, encoded, in_class_folders


def build(items: Sequence[Item], out: Path, form: str) -> None:
    in_class_folders(_write, items, out, form)


def _write(item: Item, number: int, out: Path, form: str) -> None:
    path, label = item
    (out / f"{label:05d}" / f"{number:06d}.{form}").write_bytes(encoded(path, form))


class Files:
    def __init__(self, out: Path, form: str) -> None:
        self.paths, self.form = sorted(out.rglob(f"*.{form}")), form
        self.labels = [int(path.parent.name) for path in self.paths]

    def __len__(self) -> int:
        return len(self.paths)

    def __getitems__(self, numbers: Sequence[int]) -> Any:
        import torch

        storage = torch.UntypedStorage._new_shared(len(numbers) * CROP * CROP * 3)
        images = torch.empty(0, dtype=torch.uint8).set_(storage).view(len(numbers), CROP, CROP, 3)
        for row, number in zip(images.numpy(), numbers, strict=True):
            with open(self.paths[number], "rb", buffering=0) as file:
                if self.form == "raw":
                    file.readinto(row.reshape(-1))
                else:
                    decode_into(row, file.read(), self.form)
        return images, torch.tensor([self.labels[number] for number in numbers])


def as_it_is(batch: Any) -> Any:
    """A `collate_fn` for a dataset that returns whole batches."""
    return batch


def load(out: Path, form: str, batch_size: int, workers: int) -> Iterable[Any]:
    import torch

    class EndlessShuffle(torch.utils.data.Sampler):  # type: ignore[misc, type-arg]
        """One permutation after another, so that the loader is not started again for each of the short epochs."""

        def __iter__(self) -> Iterator[int]:
            while True:
                yield from torch.randperm(len(files)).tolist()

    files = Files(out, form)
    return torch.utils.data.DataLoader(
        files, batch_size, sampler=EndlessShuffle(), num_workers=workers, collate_fn=as_it_is, prefetch_factor=8
    )
