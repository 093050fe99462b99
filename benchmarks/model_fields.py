"""`tfprep.add_fields` beside a loop by hand: the share of the time that the model has, and the time of the whole.

    python benchmarks/model_fields.py [--count 4000] [--rounds 5] [--model-ms 1.0] [--batch 64] [--json FILE]

The dataset holds `--count` JPEG images of 224 x 224. The model stands for one on an accelerator: it takes `--model-ms` a sample,
outside the interpreter's lock and without a processor, and returns 512 float32 a sample. `by hand` is a loop over
`numpy_loader(training=False)` that calls the same model and saves one `.npy` at the end; it has no keys, no variants and no way
to continue. Each run begins without fields.

- `model_share`: the model's part of the wall time of `add_fields`; `model_share_by_hand` that of the loop.
- `vs_by_hand`: wall time of `add_fields` as a multiple of the loop's.
- `calls`: calls of the model, and `batches`: the batches of all shards, which they must equal.
- `overhead_ms`: processor time a sample of `add_fields`, in milliseconds, with reading and decoding.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from harness import arguments, finish, in_turns, ratio
from loader_data import write

import tfprep
from tfprep import ModelFields, codecs
from tfprep.model_fields import add_fields, remove_fields


class Slow:
    """A model that takes this number of seconds per sample."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __call__(self) -> Callable[[Mapping[str, Any]], Mapping[str, Any]]:
        return self.compute

    def compute(self, batch: Mapping[str, Any]) -> Mapping[str, Any]:
        time.sleep(self.seconds * len(batch["image"]))
        return {"embedding": np.resize(batch["image"][:, 0, :, 0].astype(np.float32), (len(batch["image"]), 512))}


def added(folder: Path, fields: ModelFields) -> dict[str, float]:
    if "embedding" in tfprep.open(folder).fields:
        remove_fields(folder, "embedding")
    began, spent = time.monotonic(), time.process_time()
    summary = add_fields(folder, fields)
    wall = time.monotonic() - began
    cpu = (time.process_time() - spent) / summary.samples
    return {"wall_s": wall, "share": summary.model_s / wall, "calls": summary.calls, "overhead_ms": cpu * 1e3}


def by_hand(folder: Path, model: Slow, batch: int) -> dict[str, float]:
    began, in_model, parts = time.monotonic(), 0.0, []
    loader = tfprep.open(folder).numpy_loader("train", batch, training=False, fields=["image"], remainder="keep")
    for values in loader:
        called = time.monotonic()
        parts.append(model.compute(values)["embedding"])
        in_model += time.monotonic() - called
    np.save(folder.parent / "embedding.npy", np.concatenate(parts))
    loader.close()
    wall = time.monotonic() - began
    return {"wall_s": wall, "share": in_model / wall}


def main() -> None:
    options = arguments(
        __doc__,
        count=(4000, "Images"),
        rounds=(5, "Rounds"),
        model_ms=(1.0, "Milliseconds of the model a sample"),
        batch=(64, "Samples a batch"),
    )
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "jpeg"
        write(data, codecs.Jpeg(95), options.count)
        model = Slow(options.model_ms / 1e3)
        fields = ModelFields(
            model=model, inputs=["image"], store={"embedding": codecs.Raw("float16")}, batch_size=options.batch
        )
        runs = in_turns(
            {"add_fields": lambda: added(data, fields), "by hand": lambda: by_hand(data, model, options.batch)},
            options.rounds, warm_up=1,
        )  # fmt: skip
        files = [file for info in tfprep.open(data).splits.values() for of in info.files for file in of]
    ours, theirs = runs["add_fields"], runs["by hand"]
    results = {
        "model_share": median(run["share"] for run in ours),
        "model_share_by_hand": median(run["share"] for run in theirs),
        "vs_by_hand": ratio([run["wall_s"] for run in ours], [run["wall_s"] for run in theirs]),
        "calls": ours[-1]["calls"],
        "batches": sum(math.ceil(file.records / options.batch) for file in files),
        "overhead_ms": median(run["overhead_ms"] for run in ours),
        "wall_s": median(run["wall_s"] for run in ours),
    }
    for name, value in results.items():
        print(f"{name:20} {value:.4g}")
    finish(options, results, failed=results["calls"] != results["batches"])


if __name__ == "__main__":
    main()
