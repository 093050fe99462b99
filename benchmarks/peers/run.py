"""Comparison of tfprep with other libraries on the same photos: building and loading, JPEG and raw.

Run: python benchmarks/peers/run.py --photos data/photos --python-torch peers/bin/python [--rounds 3] [--json FILE]

Every peer builds its own format from the same photos (shorter side 256, cropped to 224 at the center, JPEG of quality 95 or raw).
Then all load in turns, round by round, each in a new process: shuffled batches of 64, decoded to uint8, on all cores. A ratio is
taken within a round, and the result is the median. Rounds in which other programs used more than a tenth of the cores while one
of the two ran do not count, unless all rounds are like that. A peer that is not installed is reported and skipped.

requirements.txt describes the environments of the peers. `--python ffcv=PATH` sets the interpreter of one peer.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import harness
from common import SAME_DATASET

from tfprep.bench.machine import this_machine
from tfprep.bench.rounds import BUSY

HERE = Path(__file__).parent
TENSORFLOW = ("tfprep", "tfprep_processes", "tf_dataset", "tf_guide", "keras_directory")
TORCH = ("grain", "torch_folder", "dali", "ffcv")
NAMES = {
    "tf_dataset": "tf_dataset of tfprep", "tf_guide": "tf.data as in its guide", "keras_directory": "Keras from a directory",
    "grain": "Grain + ArrayRecord", "torch_folder": "torch ImageFolder", "dali": "DALI (CPU)", "ffcv": "FFCV",
}  # fmt: skip
NOT_RAW = ("keras_directory",)
Figures = dict[str, float]


def main() -> None:
    options = harness.arguments(
        __doc__ or "", photos=(Path("data/photos"), "Folder of class folders"), repeat=(10, "Number of links to each photo"),
        python_torch=(Path, "Interpreter with the peers that use PyTorch, and Grain"),
        python=([], "Interpreters of single peers, as PEER=PATH"), peers=([], "Peers to run"),
        rounds=(3, "Rounds of loading"), seconds=(8.0, "Measured seconds per peer and round"),
    )  # fmt: skip
    names = options.peers or [*TENSORFLOW, *(TORCH if options.python_torch else ())]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        result = {"command": " ".join(sys.argv), "machine": asdict(this_machine(folder)), "forms": {}}
        photos = repeated(options.photos, folder / "photos", options.repeat)
        for form in ("jpeg", "raw"):
            result["forms"][form] = of_form(options, form, names, photos, folder / form)
            shutil.rmtree(folder / form)
    print(ratios(result))
    harness.finish(options, result)


def repeated(photos: Path, out: Path, times: int) -> Path:
    """The photos this number of times: a copy of each, since hard links cannot cross file systems, and links to it."""
    for path in sorted(path for path in photos.rglob("*") if path.is_file()):
        copies = [out / path.parent.name / f"{path.stem}-{number:03d}{path.suffix}" for number in range(times)]
        copies[0].parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copies[0])
        for copy in copies[1:]:
            copy.hardlink_to(copies[0])
    return out


def of_form(options: argparse.Namespace, form: str, names: list[str], photos: Path, folder: Path) -> dict[str, Any]:
    """What the peers built and loaded, round by round, and the medians."""
    built, turns = {}, {}
    for name in names:
        dataset = folder / SAME_DATASET.get(name, name)
        if form == "raw" and name in NOT_RAW:
            continue
        if dataset.name not in built:
            built[dataset.name] = run(
                options, dataset.name, "build", form, ["--photos", str(photos), "--out", str(dataset)]
            )
        if built[dataset.name]:
            turns[name] = partial(loaded, options, name, form, dataset)
    rounds = harness.in_turns(turns, options.rounds)
    return {"build": built, "load": rounds, "summary": summary(built, rounds)}


def loaded(options: argparse.Namespace, name: str, form: str, dataset: Path) -> Figures:
    for path in dataset.rglob("*"):  # into the page cache, from which the datasets of other peers may have displaced it
        if path.is_file():
            with path.open("rb", buffering=0) as file:
                while file.read(1 << 22):
                    pass
    return run(options, name, "load", form, ["--out", str(dataset), "--seconds", str(options.seconds)])


def run(options: argparse.Namespace, name: str, what: str, form: str, more: list[str]) -> Figures:
    """Runs one peer in a new process. Prints an error and returns {} if it fails."""
    others = dict(pair.split("=", 1) for pair in options.python)
    python = others.get(name) or (options.python_torch if name in TORCH else sys.executable)
    command = [str(python), str(HERE / "common.py"), name, what, "--form", form, *more]
    here = {"PYTHONPATH": f"{HERE}:{HERE.parent.parent}", "TF_CPP_MIN_LOG_LEVEL": "2", "RAY_USAGE_STATS_ENABLED": "0"}
    ran = subprocess.run(command, env={**os.environ, **here}, capture_output=True, text=True, timeout=600, check=False)
    lines = [line for line in ran.stdout.splitlines() if line.startswith("{")]
    if ran.returncode or not lines:
        print(f"{name} {what} failed: {(ran.stderr.strip().splitlines() or ['no output'])[-1]}", file=sys.stderr)
        return {}
    figures: Figures = json.loads(lines[-1])
    shown = ", ".join(f"{key} {value:,.3g}" for key, value in figures.items())
    print(form, name, what, shown, flush=True)
    return figures


def summary(built: Mapping[str, Figures], loaded: Mapping[str, list[Figures]]) -> dict[str, Figures]:
    """Medians by peer. `ratio` is the median of tfprep's images/s divided by the peer's, over the undisturbed rounds; `least` and
    `most` are its range. The names that start with `processes_` are the same for tfprep with worker processes."""
    by_peer = {}
    for name, rounds in loaded.items():
        if all(rounds):
            figures = {f"load_{key}": median(one[key] for one in rounds) for key in rounds[0]}
            figures |= {f"build_{key}": value for key, value in built.get(name, {}).items()}
            figures |= _spread("", loaded.get("tfprep", []), rounds)
            by_peer[name] = figures | _spread("processes_", loaded.get("tfprep_processes", []), rounds)
    return by_peer


def _spread(prefix: str, ours: list[Figures], theirs: list[Figures]) -> Figures:
    if not ours or not all(ours):
        return {}
    pairs = list(zip(ours, theirs, strict=True))
    undisturbed = [pair for pair in pairs if all(one.get("others", 0.0) < BUSY for one in pair)] or pairs
    ratios = [mine["images_per_s"] / other["images_per_s"] for mine, other in undisturbed]
    return {f"{prefix}ratio": median(ratios), f"{prefix}least": min(ratios), f"{prefix}most": max(ratios)}


def ratios(result: Mapping[str, Any]) -> str:
    """The table of docs/performance.md: images/s of tfprep, with threads and with processes, divided by those of each peer."""
    jpeg, raw = (result["forms"][form]["summary"] for form in ("jpeg", "raw"))
    peers = [name for name in {**jpeg, **raw} if not name.startswith("tfprep")]
    lines = ["| | JPEG, threads | JPEG, processes | raw, threads | raw, processes |", "|---|---:|---:|---:|---:|"]
    for name in sorted(peers, key=lambda name: jpeg.get(name, {}).get("ratio", 0.0)):
        cells = [_ratio(one.get(name, {}), prefix) for one in (jpeg, raw) for prefix in ("", "processes_")]
        lines.append(f"| {NAMES[name]} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _ratio(figures: Figures, prefix: str) -> str:
    if f"{prefix}ratio" not in figures:
        return ""
    return "{:.2f} ({:.2f} to {:.2f})".format(*(figures[prefix + key] for key in ("ratio", "least", "most")))


if __name__ == "__main__":
    main()
