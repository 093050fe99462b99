"""Comparison of tfprep with other libraries on the same photos: building and loading, JPEG and raw.

Run: python benchmarks/peers/run.py --photos data/photos --python-torch peers/bin/python [--json FILE] [--plot FILE]
     in several runs: the same with --folder DIR --rounds 1; datasets are kept, and rounds are added to the JSON file

Every peer builds its own format from the same photos (shorter side 256, cropped to 224 at the centre, JPEG of quality 95 or raw).
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
from pathlib import Path
from statistics import median
from typing import Any

from tfprep.bench.machine import this_machine
from tfprep.bench.rounds import BUSY

HERE = Path(__file__).parent
TENSORFLOW = ("tfprep", "tfprep_processes", "tf_guide", "tfds", "keras_directory", "image_data_generator")
TORCH = ("webdataset", "grain", "streaming", "litdata", "torch_folder", "dali", "ffcv")
NOT_RAW = ("keras_directory", "image_data_generator")
SAME_DATASET = {"tfprep_processes": "tfprep", "image_data_generator": "keras_directory"}
"""Peers that read the dataset that another one builds."""
Figures = dict[str, float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", type=Path, required=True, help="Folder of class folders")
    parser.add_argument("--repeat", type=int, default=10, help="Number of links to each photo")
    parser.add_argument("--python-torch", type=Path, help="Interpreter with the peers that use PyTorch, and Grain")
    parser.add_argument("--python", nargs="+", default=[], metavar="PEER=PATH", help="Interpreter of a single peer")
    parser.add_argument("--folder", type=Path, help="Folder to keep photos and datasets in, and to reuse them from")
    parser.add_argument("--peers", nargs="+", choices=TENSORFLOW + TORCH, help="Peers to run")
    parser.add_argument("--forms", nargs="+", default=["jpeg", "raw"], choices=["jpeg", "raw"], help="Storage forms")
    parser.add_argument("--rounds", type=int, default=3, help="Rounds of loading")
    parser.add_argument("--build-rounds", type=int, default=1, help="Rounds of building")
    parser.add_argument("--batch-size", type=int, default=64, help="Batch size")
    parser.add_argument("--seconds", type=float, default=8.0, help="Measured seconds per peer and round")
    parser.add_argument("--json", type=Path, help="File for the results; rounds are added to an existing file")
    parser.add_argument("--plot", type=Path, help="File for the chart (SVG)")
    options = parser.parse_args()
    names = options.peers or [*TENSORFLOW, *(TORCH if options.python_torch else ())]
    if options.folder:
        result = measured(options, names, options.folder)
    else:
        with tempfile.TemporaryDirectory() as folder:
            result = measured(options, names, Path(folder))
    print(table(result))
    print(ratios(result))
    if options.plot:
        from plot import plot

        options.plot.write_text(plot([result]))


def measured(options: argparse.Namespace, names: list[str], folder: Path) -> dict[str, Any]:
    """The results of all forms, together with the rounds that the file `--json` contains from earlier runs."""
    photos = repeated(options.photos, folder / "photos", options.repeat)
    result = _earlier(options.json) or {"machine": asdict(this_machine(folder)), "forms": {}}
    result["command"] = " ".join(sys.argv)
    for form in options.forms:
        peers = [name for name in names if form == "jpeg" or name not in NOT_RAW]
        of_form = result["forms"].setdefault(form, {"build": {}, "load": {}, "summary": {}})
        built, loaded = of_form["build"], of_form["load"]
        for name in peers:
            if not _dataset(folder, form, name).exists():
                built[name] = _build(options, name, form, photos, folder)
        loaded |= {name: loaded.get(name, []) for name in peers if _dataset(folder, form, name).exists()}
        if len({len(rounds) for rounds in loaded.values()}) > 1:
            sys.exit(
                f"{options.json} contains rounds of other peers; ratios are taken within a round, so name another file"
            )
        for _ in range(options.rounds):
            for name, figures in _round(options, form, loaded, folder).items():
                loaded[name].append(figures)
            of_form["summary"] = summary(built, loaded)
            _write(options.json, result)  # after each round, so that a run that is stopped keeps its rounds
        _write(options.json, result)
        if not options.folder:
            shutil.rmtree(folder / form)
    return result


def _dataset(folder: Path, form: str, name: str) -> Path:
    return folder / form / SAME_DATASET.get(name, name)


def _round(
    options: argparse.Namespace, form: str, loaded: Mapping[str, list[Figures]], folder: Path
) -> dict[str, Figures]:
    """Runs every peer once. The order is rotated from round to round."""
    order = list(loaded)
    turn = max((len(rounds) for rounds in loaded.values()), default=0) % max(1, len(order))
    figures = {}
    for name in order[turn:] + order[:turn]:
        dataset = _dataset(folder, form, name)
        _into_page_cache(dataset)
        figures[name] = _run(options, name, "load", form, ["--out", str(dataset)])
        print(form, name, "load", listed(figures[name]), flush=True)
    return figures


def _into_page_cache(dataset: Path) -> None:
    """Reads all files of a dataset, which the datasets of other peers may have displaced."""
    for path in dataset.rglob("*"):
        if path.is_file():
            with path.open("rb", buffering=0) as file:
                while file.read(1 << 22):
                    pass


def _earlier(path: Path | None) -> dict[str, Any] | None:
    return json.loads(path.read_text()) if path is not None and path.exists() else None


def _write(path: Path | None, result: Mapping[str, Any]) -> None:
    if path is not None:
        path.write_text(json.dumps(result, indent=1))


def repeated(photos: Path, out: Path, times: int) -> Path:
    if out.exists():
        return out
    for path in sorted(path for path in photos.rglob("*") if path.is_file()):
        below = out / path.parent.name
        below.mkdir(parents=True, exist_ok=True)
        for number in range(times):
            (below / f"{path.stem}-{number:03d}{path.suffix}").hardlink_to(_local(path, out.parent / "originals"))
    return out


def _local(path: Path, folder: Path) -> Path:
    """A copy of the photo on the file system of `folder`, since hard links cannot cross file systems."""
    copy = folder / path.parent.name / path.name
    if not copy.exists():
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
    return copy


def _build(options: argparse.Namespace, name: str, form: str, photos: Path, folder: Path) -> list[Figures]:
    rounds = []
    for _ in range(options.build_rounds):
        out = _dataset(folder, form, name)
        shutil.rmtree(out, ignore_errors=True)
        figures = _run(options, name, "build", form, ["--photos", str(photos), "--out", str(out)])
        print(form, name, "build", listed(figures), flush=True)
        rounds += [figures] if figures else []
    if not rounds:
        shutil.rmtree(out, ignore_errors=True)
    return rounds


def _run(options: argparse.Namespace, name: str, what: str, form: str, more: list[str]) -> Figures:
    """Runs one peer in a new process. Prints an error and returns {} if it fails."""
    others = dict(pair.split("=", 1) for pair in options.python)
    python = others.get(name) or (options.python_torch if name in TORCH else sys.executable)
    command = [str(python), str(HERE / f"peer_{name}.py"), what, "--form", form, *more]
    if what == "load":
        command += ["--batch-size", str(options.batch_size), "--seconds", str(options.seconds)]
    here = {"PYTHONPATH": f"{HERE}:{HERE.parent.parent}", "TF_CPP_MIN_LOG_LEVEL": "2", "RAY_USAGE_STATS_ENABLED": "0"}
    ran = subprocess.run(command, env={**os.environ, **here}, capture_output=True, text=True, timeout=600, check=False)
    lines = [line for line in ran.stdout.splitlines() if line.startswith("{")]
    if ran.returncode or not lines:
        print(f"{name} {what} failed: {(ran.stderr.strip().splitlines() or ['no output'])[-1]}", file=sys.stderr)
        return {}
    figures: Figures = json.loads(lines[-1])
    return figures


def summary(built: Mapping[str, list[Figures]], loaded: Mapping[str, list[Figures]]) -> dict[str, Figures]:
    """Medians by peer. `ratio` is the median of tfprep's images/s divided by the peer's, over the undisturbed rounds; `least` and
    `most` are its range. The names that start with `processes_` are the same for tfprep with worker processes."""
    by_peer = {}
    for name, rounds in loaded.items():
        if not all(rounds) or not rounds:
            continue
        figures = {f"load_{key}": median(one[key] for one in rounds) for key in rounds[0]}
        of_builds = built.get(name, [])  # empty if an earlier run built the dataset
        figures |= {f"build_{key}": median(one[key] for one in of_builds) for key in (of_builds or [{}])[0]}
        figures |= _spread("", loaded.get("tfprep", []), rounds)
        figures |= _spread("processes_", loaded.get("tfprep_processes", []), rounds)
        by_peer[name] = figures
    return by_peer


def _spread(prefix: str, ours: list[Figures], theirs: list[Figures]) -> Figures:
    if not ours or not all(ours):
        return {}
    ratios = [mine["images_per_s"] / other["images_per_s"] for mine, other in undisturbed(ours, theirs)]
    return {f"{prefix}ratio": median(ratios), f"{prefix}least": min(ratios), f"{prefix}most": max(ratios)}


def undisturbed(ours: list[Figures], theirs: list[Figures]) -> list[tuple[Figures, Figures]]:
    """The rounds in which other programs used less than a tenth of the cores, or all rounds if there are none."""
    pairs = list(zip(ours, theirs, strict=True))
    return [pair for pair in pairs if all(one.get("others", 0.0) < BUSY for one in pair)] or pairs


def table(result: Mapping[str, Any]) -> str:
    """The results as Markdown."""
    lines = []
    for form, of_form in result["forms"].items():
        lines += [f"### {form}", "", "| | load, images/s | tfprep / peer | CPU ms/image | memory MB | first batch s |"]
        lines[-1] += " build, images/s | build CPU ms/image | kB/image |"
        lines += ["|---|---:|---:|---:|---:|---:|---:|---:|---:|"]
        ranked = sorted(of_form["summary"].items(), key=lambda pair: -pair[1]["load_images_per_s"])
        lines += [_row(name, figures) for name, figures in ranked] + [""]
    return "\n".join(lines)


def ratios(result: Mapping[str, Any]) -> str:
    """The table of docs/performance.md: images/s of tfprep, with threads and with processes, divided by those of each peer."""
    from plot import NAMES

    of_forms = [result["forms"].get(form, {}).get("summary", {}) for form in ("jpeg", "raw")]
    peers = [name for name in {**of_forms[0], **of_forms[1]} if not name.startswith("tfprep")]
    peers.sort(key=lambda name: of_forms[0].get(name, {}).get("ratio", 0.0))
    lines = ["| | JPEG, threads | JPEG, processes | raw, threads | raw, processes |", "|---|---:|---:|---:|---:|"]
    for name in peers:
        cells = [_ratio(one.get(name, {}), prefix) for one in of_forms for prefix in ("", "processes_")]
        lines.append(f"| {NAMES[name]} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _ratio(figures: Figures, prefix: str = "") -> str:
    if f"{prefix}ratio" not in figures:
        return ""
    return "{:.2f} ({:.2f} to {:.2f})".format(*(figures[prefix + key] for key in ("ratio", "least", "most")))


def _row(name: str, f: Figures) -> str:
    ratio = _ratio(f) if name != "tfprep" else ""
    built = (
        f"{f['build_images_per_s']:,.0f} | {f['build_cpu_ms']:.2f} | {f['build_bytes_an_image'] / 1000:.1f}"
        if "build_cpu_ms" in f
        else " | | "
    )
    return (
        f"| {name} | {f['load_images_per_s']:,.0f} | {ratio} | {f['load_cpu_ms']:.2f} | {f['load_rss_mb']:,.0f} | "
        f"{f['load_first_batch_s']:.2f} | {built} |"
    )


def listed(figures: Figures) -> str:
    return ", ".join(f"{name} {value:,.3g}" for name, value in figures.items()) or "failed"


if __name__ == "__main__":
    main()
