"""FFCV on the images of benchmarks/loader.py. It reads a count and prints the seconds in which it delivered so many images.

Run by loader_peers.ffcv, with the interpreter that has FFCV: python benchmarks/ffcv_process.py DATASET {jpeg,raw}

The options are those of benchmarks/peers/peer_ffcv.py, which says what was tried.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent / "peers"))

import loader_data
import peer_ffcv

BATCH, DRAIN = 64, 16


class Images:
    """The images of loader_data and their labels, as the indexed dataset that FFCV's writer takes."""

    def __init__(self, count: int) -> None:
        self._images = list(loader_data.images(count))

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, number: int) -> tuple[Any, int]:
        return self._images[number], number % loader_data.CLASSES


def main() -> None:
    folder, form = Path(sys.argv[1]), sys.argv[2]
    out = folder.parent / f"{folder.name}-ffcv"
    if not (out / "photos.beton").exists():
        peer_ffcv.write(Images(int(folder.name.rpartition("-")[2])), out, form)
    batches = iter(peer_ffcv.load(out, form, BATCH, workers=2))
    next(batches)
    print("ready", flush=True)
    for line in sys.stdin:
        for _ in range(DRAIN):
            next(batches)
        start = time.perf_counter()
        for _ in range(int(line) // BATCH):
            next(batches)
        print(time.perf_counter() - start, flush=True)


if __name__ == "__main__":
    main()
