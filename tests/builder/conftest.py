"""A folder of small image files, recipes for it, and helpers that compare finished builds."""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from PIL import Image

from tfprep.builder import BuildOptions, BuildSummary, build
from tfprep.dataset import Dataset, open_dataset
from tfprep.records import read_records

RECIPE = """
import os, signal, time, ctypes
import numpy as np
from tfprep import Recipe, augment, codecs, derive, sources

RECIPE = Recipe(
    name="tiny",
    source=sources.Paired(
        image="{split}/{label}/*.jpg", mask="{split}/{label}/*.mask.png", classes=("ground", "thing", "void")
    ),
    geometry=[augment.Flip(p=0.5), augment.Rotate(degrees=10), augment.Crop(16, 20)],
    colour=[augment.Brightness(0.2)],
    derive={"distance": derive.Distance(mask="mask", target=1)},
    variants={"train": 2},
    fill={"mask": 2},
    store={"image": codecs.Jpeg(90), "mask": codecs.Png(), "distance": codecs.Raw("float16"), "label": codecs.Scalar()},
    shards={"train": 4, "val": 2},
    seed=3,
)
"""


def picture(number: int, size: tuple[int, int] = (24, 28)) -> np.ndarray:
    noise = np.random.default_rng(number).integers(0, 256, (*size, 3)).astype(np.float32)
    return cv2.GaussianBlur(noise, (0, 0), 2).astype(np.uint8)


def blob(number: int, size: tuple[int, int] = (24, 28)) -> np.ndarray:
    mask = np.zeros(size, np.uint8)
    x, y = np.random.default_rng(number).integers(4, 20, 2)
    cv2.circle(mask, (int(x), int(y)), 4, 1, -1)
    return mask


@dataclass
class Site:
    """A folder of raw data, an output folder and a recipe file."""

    data: Path
    out: Path
    recipe: Path

    def add(self, name: str, number: int, *, mask: bool = True) -> Path:
        """Adds a sample, for example "train/cat/1": a JPEG and its mask."""
        path = self.data / f"{name}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture(number)).save(path, quality=92)
        if mask:
            Image.fromarray(blob(number)).save(self.data / f"{name}.mask.png")
        return path

    def fill(self, train: int = 24, val: int = 6) -> "Site":
        for split, count in (("train", train), ("val", val)):
            for number in range(count):
                self.add(f"{split}/{('cat', 'dog')[number % 2]}/{number:03d}", number + (1000 if split == "val" else 0))
        return self

    def build(self, out: Path | None = None, **options: Any) -> BuildSummary:
        """Builds the site in this process, unless `workers` is positive."""
        more = {name: options.pop(name) for name in ("on_progress", "on_event") if name in options}
        chosen = BuildOptions(**{"workers": 0, **options})
        return build(self.recipe, out or self.out, self.data, options=chosen, **more)

    def from_nothing(self, name: str = "fresh") -> dict[str, str]:
        """The digests of a build of the same recipe and data in a new folder."""
        out = self.out.with_name(name)
        self.build(out)
        return digests(out)

    def change_recipe(self, old: str, new: str) -> None:
        text = self.recipe.read_text()
        assert old in text
        self.recipe.write_text(text.replace(old, new))

    def rejects(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.out / "rejects.jsonl").read_text().splitlines()]


def digests(out: Path) -> dict[str, str]:
    """SHA-256 of every file that readers use, by name. The report is left out, since it contains times."""
    files = [path for path in out.iterdir() if path.is_file() and path.name != "report.html"]
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(files)}


def check_whole(out: Path) -> Dataset:
    """The dataset, after a comparison of every file with `tfprep.json` and the index. Raises DatasetError."""
    data = open_dataset(out)
    for name, split in data.splits.items():
        for variant, files in enumerate(split.files):
            index = data.index(name, variant).to_pylist()
            assert len(index) == split.samples
            frames = []
            for shard, file in enumerate(files):
                content = (out / file.name).read_bytes()
                assert (len(content), hashlib.sha256(content).hexdigest()) == (file.bytes, file.sha256)
                frames += [(shard, frame.offset, frame.size) for frame, _ in read_records(out / file.name)]
            assert frames == [(row["shard"], row["offset"], row["size"]) for row in index]
            locations = data.locations(name, range(variant, variant + 1))
            assert locations is not None
            rows = locations.take(np.arange(split.samples))
            assert [(row["offset"], row["size"]) for row in index] == rows[["offset", "size"]].tolist()
    return data


def driver(site: Site, *, workers: int, code: str = "") -> list[str]:
    """A command line that runs `code` and then builds the site in a new process."""
    call = (
        f"build({str(site.recipe)!r}, {str(site.out)!r}, {str(site.data)!r}, options=BuildOptions(workers={workers}))"
    )
    return [sys.executable, "-c", f"from tfprep.builder import build, BuildOptions\n{code}\n{call}"]


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Builds in this process do not sync, since no test simulates a power failure."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture
def reports() -> None:
    """Builds of this test write their report."""


@pytest.fixture(autouse=True)
def no_reports(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Builds in this process write no report, nearly half of their time, unless a test uses `reports`."""
    if "reports" not in request.fixturenames:
        monkeypatch.setattr("tfprep.builder.report.write_report", lambda *arguments: "")


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """Empty data and the recipe `tiny`."""
    recipe = tmp_path / "tiny.py"
    recipe.write_text(RECIPE)
    data = tmp_path / "data"
    data.mkdir()
    return Site(data, tmp_path / "out", recipe)


@pytest.fixture
def full(site: Site) -> Site:
    """24 training and 6 validation samples."""
    return site.fill()


@pytest.fixture
def run_python() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs code in a new interpreter."""

    def run(code: str, *arguments: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        command: Sequence[str] = [sys.executable, "-c", code, *arguments]
        merged = {**os.environ, **(env or {})}
        return subprocess.run(command, capture_output=True, text=True, env=merged, timeout=120, check=False)

    return run
