"""`tfprep index` on synthetic shards: seconds, memory and the time to the first batch.

    python benchmarks/index.py --records 10000000 --json index.json

The records have a short image (bytes that begin as a JPEG does), a label, a file name, and a list of floats of 0 to 3 values:
about 500 bytes, so that the cost of a record, not of its bytes, is what counts. A run measures, each in a process of its own:

- `write_s`: seconds to write the shards, for comparison (by copies of one block of Examples that TensorFlow serialised).
- `index`: seconds of `tfprep index` on the clock and of processors, and the most memory of its processes together, sampled every
  50 ms.
- `append`: the same of the same command after one more shard of the same size.
- `read`: the same of `tf.data.TFRecordDataset` over the same shards, which only reads them (`--tensorflow`).
- `open_s`, `first_batch_s`, `load_mb`: seconds from `tfprep.open` to the end of making a loader with `where` and to its first
  batch in global order, and the process's own memory then, above that after the imports.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from tfprep.records import encode, frame

SAMPLE_S = 0.05
PATTERN = 10_000
"""Different records; a shard repeats them."""

LOAD = """
import json, sys, time
import tfprep.load.numpy_loader


def anonymous():
    with open("/proc/self/status") as file:
        return sum(int(line.split()[1]) << 10 for line in file if line.startswith("RssAnon"))


before = anonymous()
start = time.perf_counter()
data = tfprep.open(sys.argv[1])
opened = time.perf_counter() - start
loader = data.numpy_loader("train", 256, seed=1, fields=["label", "boxes"], cache=False, **json.loads(sys.argv[2]))
made = time.perf_counter() - start
next(iter(loader))
first = time.perf_counter() - start
memory = (anonymous() - before) / 1e6
print(json.dumps({"open_s": opened, "loader_s": made, "first_batch_s": first, "load_mb": memory}))
loader.close()
"""
READ = """
import sys
import tensorflow as tf
print(sum(1 for _ in tf.data.TFRecordDataset(tf.io.gfile.glob(sys.argv[1])).batch(1024)))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=1_000_000, help="Records in all shards")
    parser.add_argument("--shards", type=int, default=20, help="Shards")
    parser.add_argument("--image-bytes", type=int, default=350, help="Bytes of an image")
    parser.add_argument(
        "--data", type=Path, help="Folder for the shards ; shards in it are used again [default: a temporary one]"
    )
    parser.add_argument("--tensorflow", action="store_true", help="Measure TFRecordDataset on the same shards too")
    parser.add_argument("--json", type=Path, help="File for the results")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.data or Path(temporary)
        results = measure(folder, options)
    print(json.dumps(results, indent=1))
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")


def measure(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    per_shard = options.records // options.shards
    start = time.perf_counter()
    for shard in range(options.shards):
        path = folder / f"train-{shard:05d}.tfrecord"
        if not path.exists():
            write_shard(path, per_shard, options.image_bytes)
    results: dict[str, Any] = {
        "records": per_shard * options.shards,
        "shards": options.shards,
        "bytes": sum(path.stat().st_size for path in folder.glob("*.tfrecord")),
        "write_s": time.perf_counter() - start,
    }
    command = [sys.executable, "-m", "tfprep", "index", f"{folder}/train-*.tfrecord", "--split", "train", "--quiet"]
    results["index"] = watched(command)
    write_shard(folder / "train-99999.tfrecord", per_shard, options.image_bytes)
    results["append"] = watched(command)
    results["columns_mb"] = sum(path.stat().st_size for path in folder.glob("tfprep-index/*.arrow")) / 1e6
    results["load"] = load(folder, {})
    results["load_where"] = load(folder, {"where": "label < 500 and name.startswith('photo')"})
    results["load_balance"] = load(folder, {"balance": "label"})
    if options.tensorflow:
        results["read"] = watched([sys.executable, "-c", READ, f"{folder}/train-*.tfrecord"])
    return results


def write_shard(path: Path, records: int, image_bytes: int) -> None:
    rng = np.random.default_rng(0)
    frames = [frame(example(rng, number, image_bytes)) for number in range(min(PATTERN, records))]
    block = b"".join(frames)
    with path.open("wb") as file:
        for _ in range(records // len(frames)):
            file.write(block)
        file.write(b"".join(frames[: records % len(frames)]))


def example(rng: np.random.Generator, number: int, image_bytes: int) -> bytes:
    image = b"\xff\xd8\xff\xc0\x00\x11\x08\x00\xe0\x00\xe0\x03" + rng.bytes(image_bytes)
    features = {
        "image": image,
        "label": np.array([number % 1000], np.int64),
        "name": b"photo%08d.jpg" % number,
        "boxes": rng.random(number % 4).astype(np.float32),
    }
    return encode(features)[0]


def watched(command: list[str]) -> dict[str, float]:
    """Seconds of a command, on the clock and of processors, and the most memory that it and its children had of their own
    together, in MB: pages of files that are mapped do not count, which the system may take back at any time."""
    start, most = time.perf_counter(), 0
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        while process.poll() is None:
            most = max(most, own_memory(process.pid))
            time.sleep(SAMPLE_S)
    if process.returncode:
        raise SystemExit(f"{command} ended with status {process.returncode}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"s": time.perf_counter() - start, "cpu_s": cpu_s, "mb": most / 1e6}


def own_memory(pid: int) -> int:
    total = 0
    try:
        parent = psutil.Process(pid)
        for process in [parent, *parent.children(recursive=True)]:
            lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
            total += sum(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon"))
    except (psutil.Error, OSError):  # it ended meanwhile
        pass
    return total


def load(folder: Path, options: dict[str, Any]) -> dict[str, Any]:
    command = [sys.executable, "-c", LOAD, str(folder), json.dumps(options)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    result: dict[str, Any] = json.loads(output.splitlines()[-1])
    return result


if __name__ == "__main__":
    main()
