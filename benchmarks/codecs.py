"""Exact storage forms of one dataset's fields: share of the raw bytes, and processor time to decode into the row of a batch.

    python benchmarks/codecs.py --data data/camvid [--rounds 9] [--json FILE]

The recipe's fields are built as `Raw`, with distance maps of the mask's class 1 as float16 and as uint16 beside them. Each form
then stores the same arrays, and decodes each of them ten times in a turn, on one core; figures are medians over the rounds. Keys
of the JSON, by field: `bytes_vs_raw`, `bytes_vs_png`, `speed_vs_png` and `mb_per_s` (of the decoded bytes) of Zstd, and those of
the other forms below `forms`.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import harness
import numpy as np
from story import RECIPE

import tfprep
from tfprep import codecs, derive
from tfprep.bench.machine import this_machine
from tfprep.errors import SampleError
from tfprep.fields import Array
from tfprep.recipe.file import load_recipe

FORMS: Mapping[str, Any] = {"raw": codecs.Raw(), "png": codecs.Png(), "zstd": codecs.Zstd()}
PASSES = 10
"""Decodings of each array in a turn: 48 masks take 2 ms, in which the caches still hold what the form before left there."""


def main() -> None:
    options = harness.arguments(
        __doc__ or "", data=(Path("data/camvid"), "Folder of CamVid"), samples=(48, "Samples that are measured"),
        rounds=(9, "Measured rounds"),
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "built"
        tfprep.build(with_maps(RECIPE), out, options.data)
        batch = next(iter(tfprep.open(out).numpy_loader("train", options.samples, training=False)))
    fields = {name: of_field(name, list(values), options.rounds) for name, values in batch.items() if values.ndim > 2}
    harness.finish(options, {"fields": fields, "machine": vars(this_machine(Path(tempfile.gettempdir())))})


def with_maps(path: Path) -> tfprep.Recipe:
    recipe = load_recipe(path)
    maps = {"distance": derive.Distance(mask="mask", target=1), "deep": derive.Distance(mask="mask", target=1)}
    stored = dict.fromkeys(recipe.store, codecs.Raw())
    stored |= {"distance": codecs.Raw("float16"), "deep": codecs.Raw("uint16")}
    return replace(recipe, derive={**recipe.derive, **maps}, store=stored, variants={})


def of_field(name: str, arrays: list[Array], rounds: int) -> dict[str, Any]:
    """Store and decode the arrays of a field in each form that can hold them."""
    spec = codecs.Raw().spec("map", arrays[0])
    out = np.empty_like(arrays[0])
    stored = {form: content for form, codec in FORMS.items() if (content := encoded(codec, arrays))}

    def seconds(form: str) -> float:
        started = time.thread_time()
        for content in stored[form] * PASSES:
            FORMS[form].decode_into(content, spec, out)
        taken = time.thread_time() - started
        assert out.tobytes() == arrays[-1].tobytes(), form
        return taken

    took = harness.in_turns({form: partial(seconds, form) for form in stored}, rounds, warm_up=1)
    raw, sizes = out.nbytes * len(arrays), {form: sum(map(len, contents)) for form, contents in stored.items()}
    forms = {
        form: {"bytes_vs_raw": sizes[form] / raw, "mb_per_s": raw * PASSES / median(took[form]) / 1e6}
        for form in stored
    }
    for form, figures in forms.items():
        print(f"{name:10} {form:12} {figures['bytes_vs_raw']:.3f} of raw, {figures['mb_per_s']:7.0f} MB/s", flush=True)
    found: dict[str, Any] = {**forms["zstd"], "forms": forms}
    if "png" in forms:
        found |= {
            "bytes_vs_png": sizes["zstd"] / sizes["png"],
            "speed_vs_png": harness.ratio(took["png"], took["zstd"]),
        }
    return found


def encoded(codec: Any, arrays: list[Array]) -> list[bytes]:
    try:
        return [codec.encode(array)[""] for array in arrays]
    except SampleError:
        return []


if __name__ == "__main__":
    main()
