"""Exact storage forms of one dataset's fields: share of the raw bytes, and processor time to decode into the row of a batch.

    python benchmarks/codecs.py --data data/camvid [--recipe pipelines/camvid_clicks.py] [--rounds 9] [--json FILE]

The recipe's fields are built as `Raw`, with distance maps of the mask's class 1 as float16 and as uint16 beside them. Each form
then stores the same arrays, and decodes them in turns on one core; figures are medians over the rounds. Keys of the JSON, by
field: `bytes_vs_raw`, `bytes_vs_png`, `speed_vs_png` and `mb_per_s` (of the decoded bytes) of Zstd, and those of the other forms
below `forms`.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import harness
import numpy as np

import tfprep
from tfprep import codecs, derive
from tfprep.bench.machine import this_machine
from tfprep.errors import SampleError
from tfprep.fields import Array
from tfprep.recipe.file import load_recipe

FORMS: Mapping[str, Any] = {
    "raw": codecs.Raw(),
    "png": codecs.Png(),
    "zstd": codecs.Zstd(),
    "zstd, none": codecs.Zstd(predict="none"),
    "zstd, rows": codecs.Zstd(predict="rows"),
    "zstd 3": codecs.Zstd(3),
    "zstd 9": codecs.Zstd(9),
}


def main() -> None:
    camvid = Path(__file__).parent.parent / "pipelines" / "camvid_clicks.py"
    options = harness.arguments(
        __doc__ or "", lambda parser: parser.add_argument("--data", type=Path, required=True, help="Folder of CamVid"),
        recipe=(camvid, "Recipe of the fields"), samples=(48, "Samples that are measured"), rounds=(9, "Measured rounds"),
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "built"
        tfprep.build(with_maps(options.recipe), out, options.data)
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
    stored, encoding_s = {}, {}
    for form, codec in FORMS.items():
        started = time.thread_time()
        if content := encoded(codec, arrays):
            stored[form], encoding_s[form] = content, time.thread_time() - started
    took: dict[str, list[float]] = {form: [] for form in stored}
    for number in range(rounds + 1):
        for form, contents in stored.items():
            started = time.thread_time()
            for content in contents:
                FORMS[form].decode_into(content, spec, out)
            if number:  # the first round warms up
                took[form].append(time.thread_time() - started)
        for form, contents in stored.items():
            FORMS[form].decode_into(contents[-1], spec, out)
            assert out.tobytes() == arrays[-1].tobytes(), form
    sizes = {form: sum(map(len, contents)) for form, contents in stored.items()}
    return report(name, out.nbytes * len(arrays), sizes, took, encoding_s)


def encoded(codec: Any, arrays: list[Array]) -> list[bytes]:
    try:
        return [codec.encode(array)[""] for array in arrays]
    except SampleError:
        return []


def report(
    name: str, raw: int, sizes: Mapping[str, int], took: Mapping[str, list[float]], encoding_s: Mapping[str, float]
) -> dict[str, Any]:
    forms = {
        form: {
            "bytes_vs_raw": sizes[form] / raw,
            "mb_per_s": raw / median(took[form]) / 1e6,
            "encode_mb_per_s": raw / encoding_s[form] / 1e6,
        }
        for form in sizes
    }
    for form, figures in forms.items():
        share, decoding, encoding = figures.values()
        print(
            f"{name:10} {form:12} {share:.3f} of raw, {decoding:7.0f} MB/s, encoded at {encoding:5.0f} MB/s", flush=True
        )
    found: dict[str, Any] = {key: forms["zstd"][key] for key in ("bytes_vs_raw", "mb_per_s")}
    if "png" in forms:
        found["bytes_vs_png"] = sizes["zstd"] / sizes["png"]
        found["speed_vs_png"] = median(png / ours for png, ours in zip(took["png"], took["zstd"], strict=True))
    return {**found, "forms": forms}


if __name__ == "__main__":
    main()
