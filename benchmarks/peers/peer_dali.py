"""NVIDIA DALI on the CPU: files in class folders, `fn.readers.file` and `fn.readers.numpy`, decoded by its threads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from common import Item, encoded, in_class_folders, main, prepared


def build(items: Sequence[Item], out: Path, form: str) -> None:
    in_class_folders(_write, items, out, form)


def _write(item: Item, number: int, out: Path, form: str) -> None:
    path, label = item
    if form == "raw":
        np.save(out / f"{label:05d}" / f"{number:06d}.npy", prepared(path))
    else:
        (out / f"{label:05d}" / f"{number:06d}.jpg").write_bytes(encoded(path, form))


def load(out: Path, form: str, batch_size: int, workers: int) -> Iterable[Any]:
    from nvidia.dali import fn, pipeline_def

    files = [str(path) for path in sorted(out.rglob("*.npy"))]

    @pipeline_def(batch_size=batch_size, num_threads=workers, device_id=None, seed=0)  # type: ignore[misc]
    def images() -> Any:
        if form == "raw":
            return fn.readers.numpy(files=files, random_shuffle=True)  # this reader has no labels
        content, label = fn.readers.file(file_root=str(out), random_shuffle=True)
        return fn.decoders.image(content, device="cpu"), label

    pipeline = images()
    pipeline.build()
    return _batches(pipeline)


def _batches(pipeline: Any) -> Iterator[Any]:
    while True:
        out = pipeline.run()
        yield tuple(part.as_array() for part in (out if isinstance(out, tuple) else (out,)))


if __name__ == "__main__":
    main(build, load)
