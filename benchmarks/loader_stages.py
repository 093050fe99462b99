"""Where processor time goes between a stored image and a batch: in decoding, in the loader, in TensorFlow and Keras.

Run: python benchmarks/loader_stages.py [--form raw] [--images 10000] [--turns 5] [--data FOLDER] [--json FILE]

Two processes that only decode (for raw images, two threads that gather rows from a memory map), the loader in a loop,
`model.fit` on the loader and `model.fit` on one batch in memory take turns, each with a whole epoch. Processor time is counted
by thread: of the worker processes, of the thread that hands work out to them (the dispatcher), and of all other threads of this
process, which wait for batches and run TensorFlow and Keras. Figures are medians over the turns, in milliseconds for each batch
of 64. `idle` is what the cores had left.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import loader_data
import psutil
from loader_peers import BATCH, Candidate, decode_processes, memory_map

import tfprep
from tfprep import codecs
from tfprep.limits import usable_cpus

DISPATCHER = "tfprep-workers"
"""The name of the dispatcher's thread (tfprep.load.reader.worker_pool)."""
LIMITS = {"jpeg": decode_processes, "raw": memory_map}
COLUMNS = ("processes", "dispatcher", "other threads", "idle", "wall")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--form", choices=list(LIMITS), default="jpeg", help="How the images are stored")
    parser.add_argument("--images", type=int, default=10_000, help="Images of the dataset")
    parser.add_argument("--turns", type=int, default=5, help="Measured turns of each candidate")
    parser.add_argument("--data", type=Path, help="Folder of the dataset, which is generated if it does not exist")
    parser.add_argument("--json", type=Path, help="File for the results")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = options.data or Path(folder)
        codec = codecs.Raw() if options.form == "raw" else codecs.Jpeg(95)
        dataset = loader_data.write(root / f"{options.form}-{options.images}", codec, options.images)
        result = measured(candidates(dataset, options.form), options.images // BATCH, options.turns)
    print(f"{'ms a batch':24}" + "".join(f"{name:>15}" for name in COLUMNS))
    for name, row in result.items():
        print(f"{name:24}" + "".join(f"{row[column]:15.2f}" for column in COLUMNS))
    if options.json:
        options.json.write_text(json.dumps({"ms_per_batch": result, "batch_size": BATCH}, indent=1))


def candidates(dataset: Path, form: str) -> dict[str, Candidate]:
    from loader_fit import fit, keras_alone

    processes: dict[str, Any] = {"cache": False, "workers": "processes"}
    return {
        "limit": LIMITS[form](dataset),
        "loader": epochs(dataset, **processes),
        "loader, fit": fit(dataset, **processes),
        "fit, nothing to read": keras_alone(),
    }


def epochs(folder: Path, **options: Any) -> Candidate:
    """A loop over an epoch, which does not use the batches."""
    train = tfprep.open(folder).loader("train", BATCH, inputs="image", targets="label", tuning=False, **options)

    def run(count: int) -> float:
        start = time.perf_counter()
        for _ in train:
            pass
        return time.perf_counter() - start

    return run


def measured(runs: dict[str, Candidate], batches: int, turns: int) -> dict[str, dict[str, float]]:
    rows: dict[str, list[dict[str, float]]] = {name: [] for name in runs}
    for turn in range(-1, turns):  # the first turn warms up and is not counted
        for name, run in runs.items():
            time.sleep(1)  # pipelines go on filling their buffers after their turn
            row = stages(run, batches)
            if turn >= 0:
                rows[name].append(row)
    return {
        name: {column: statistics.median(row[column] for row in each) for column in COLUMNS}
        for name, each in rows.items()
    }


def stages(run: Candidate, batches: int) -> dict[str, float]:
    """Milliseconds of each column for a batch of one turn."""
    before, start = spent(), time.perf_counter()
    run(batches * BATCH)
    wall, after = time.perf_counter() - start, spent()
    row = {name: (after[name] - before[name]) / batches * 1e3 for name in after}
    return {**row, "wall": wall / batches * 1e3, "idle": usable_cpus() * wall / batches * 1e3 - sum(row.values())}


def spent() -> dict[str, float]:
    """Seconds of processor time so far, by column."""
    process = psutil.Process()
    dispatchers = {thread.native_id for thread in threading.enumerate() if thread.name == DISPATCHER}
    times = {thread.id: thread.user_time + thread.system_time for thread in process.threads()}
    dispatcher = sum(seconds for number, seconds in times.items() if number in dispatchers)
    children = sum(sum(child.cpu_times()[:2]) for child in process.children())
    return {"processes": children, "dispatcher": dispatcher, "other threads": time.process_time() - dispatcher}


if __name__ == "__main__":
    main()
