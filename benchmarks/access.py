"""Processor time a sample of random access, beside our loader and ArrayRecord.

    python benchmarks/access.py [--count 2000] [--rounds 5] [--seconds 2] [--python INTERPRETER] [--json access.json]

Each reading takes place in a process of its own, once a round, in another order each round: numbers in random order, and every
image decoded to uint8 [224, 224, 3], from JPEG of quality 95 or raw bytes. The processor time is that of all its threads.
ArrayRecord holds the same JPEG or raw bytes in records of its own, one per group, as Grain's guide says for random access, and
the decoder is ours. The figures are medians over rounds; ratios are taken within a round. What is not installed is left out.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import harness
import loader_data
import numpy as np
from loader_data import contents

BATCH, SIZE = 64, 224
Read = Callable[[list[int]], Any]
"""Reads a batch: the samples of these numbers, one by one or together."""


def main() -> None:
    options = harness.arguments(
        __doc__ or "", count=(2000, "Number of images"), rounds=(5, "Number of rounds"),
        seconds=(2.0, "Seconds of each reading"), python=(sys.executable, "Interpreter with ArrayRecord"),
        reading=("", argparse.SUPPRESS), folder=(Path, argparse.SUPPRESS),
    )  # fmt: skip
    if options.reading:
        print(json.dumps(measured(options.folder, options.reading, options.seconds)))
        return
    with loader_data.datasets(options.count) as folder:
        figures = {form: compared(folder / form, options) for form in ("jpeg", "raw")}
    harness.finish(options, {"arguments": {"count": options.count, "rounds": options.rounds}, **figures})


def compared(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    command = [options.python, __file__, "--folder", str(folder), "--seconds", str(options.seconds)]

    def microseconds(name: str) -> float | None:
        done = subprocess.run([*command, "--reading", name], stdout=subprocess.PIPE, text=True, check=True)
        return json.loads(done.stdout.splitlines()[-1])

    times = harness.in_turns({name: partial(microseconds, name) for name in READINGS}, options.rounds)
    figures = {}
    print(f"{folder.name}: processor time a sample, and as a multiple of numpy_loader's")
    for name, values in times.items():
        if None in values:
            print(f"  {name:28} not installed, left out")
            continue
        ratio = harness.ratio(values, times["numpy_loader"])
        figures[name] = {"microseconds": median(values), "ratio": ratio}
        print(f"  {name:28} {median(values):7.0f} µs {ratio:6.2f}")
    return figures


def measured(folder: Path, reading: str, seconds: float) -> float | None:
    """Processor time a sample in microseconds; None where a package is missing."""
    package, make = READINGS[reading]
    if importlib.util.find_spec(package) is None:
        return None
    read, count = make(folder)
    rng = np.random.default_rng(0)

    def seconds_of(numbers: list[int]) -> float:
        began = time.process_time()
        for first in range(0, len(numbers), BATCH):
            batch = read(numbers[first : first + BATCH])  # noqa: F841 # its memory lives on during the next, as in training
        return time.process_time() - began

    seconds_of(rng.permutation(count)[: 20 * BATCH].tolist())  # opens files, compares checksums, fills buffers
    samples, spent, end = 0, 0.0, time.monotonic() + seconds
    while time.monotonic() < end:
        numbers = rng.permutation(count)[: 4 * BATCH].tolist()
        spent += seconds_of(numbers)
        samples += len(numbers)
    return spent / samples * 1e6


# --- tfprep -------------------------------------------------------------------------------------------------------------------


def samples_of(folder: Path) -> Any:
    import tfprep

    return tfprep.open(folder).random_access("train", fields=["image", "label"])


def one_by_one(folder: Path) -> tuple[Read, int]:
    samples = samples_of(folder)
    return lambda numbers: [samples[number] for number in numbers], len(samples)


def together(folder: Path) -> tuple[Read, int]:
    samples = samples_of(folder)
    return samples.__getitems__, len(samples)


def numpy_loader(folder: Path) -> tuple[Read, int]:
    """The loader's own order, without an end; it reads ahead by the same number of batches at either end of a turn."""
    import tfprep

    loader = tfprep.open(folder).numpy_loader(
        "train", BATCH, fields=["image", "label"], cache=False, workers="threads", prefetch=2
    )
    stream = iter(loader.repeat())
    return lambda numbers: next(stream), loader.pipeline.schedule.size


# --- others -------------------------------------------------------------------------------------------------------------------


def array_record(folder: Path) -> tuple[Read, int]:
    from array_record.python.array_record_data_source import ArrayRecordDataSource
    from array_record.python.array_record_module import ArrayRecordWriter

    path = folder / "images.array_record"
    if not path.exists():
        writer = ArrayRecordWriter(str(path), "group_size:1")
        for image in contents(folder):
            writer.write(image)
        writer.close()
    source = ArrayRecordDataSource(str(path))
    decode = decoder(folder.name)
    return lambda numbers: [decode(data) for data in source.__getitems__(numbers)], len(source)


def decoder(form: str) -> Callable[[bytes], Any]:
    import simplejpeg

    if form == "raw":
        return lambda data: np.frombuffer(data, np.uint8).reshape(SIZE, SIZE, 3)
    return lambda data: simplejpeg.decode_jpeg(data, "RGB")


READINGS: dict[str, tuple[str, Callable[[Path], tuple[Read, int]]]] = {
    "numpy_loader": ("tfprep", numpy_loader),
    "one by one": ("tfprep", one_by_one),
    "64 together": ("tfprep", together),
    "ArrayRecord, 64 together": ("array_record", array_record),
}
"""By name the package that a reading needs, and what makes its function and says how many samples there are."""


if __name__ == "__main__":
    main()
