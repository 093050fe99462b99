"""One process that only decodes JPEGs, for the limit of processes in benchmarks/loader.py. It reads a count and prints seconds.

Run by loader_peers.decode_processes: python benchmarks/decode_process.py DATASET
"""

from __future__ import annotations

import mmap
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import simplejpeg

BATCH, SIDE = 64, 224


def main() -> None:
    folder = Path(sys.argv[1])
    index = pq.read_table(folder / "index.parquet", columns=["shard", "image_offset", "image_size"]).to_pydict()
    shards = [path.read_bytes() for path in sorted(folder.glob("*.tfrecord-*-of-*")) if path.suffix != ".idx"]
    rows = zip(index["shard"], index["image_offset"], index["image_size"], strict=True)
    jpegs = [shards[shard][offset : offset + size] for shard, offset, size in rows]
    memory = np.frombuffer(mmap.mmap(-1, BATCH * SIDE * SIDE * 3), np.uint8).reshape(BATCH, SIDE, SIDE, 3)
    memory[:] = 1
    rng = np.random.default_rng()
    print("ready", flush=True)
    for line in sys.stdin:
        order = rng.integers(0, len(jpegs), int(line)).tolist()
        start = time.perf_counter()
        for position, number in enumerate(order):
            simplejpeg.decode_jpeg(jpegs[number], buffer=memory[position % BATCH])
        print(time.perf_counter() - start, flush=True)


if __name__ == "__main__":
    main()
