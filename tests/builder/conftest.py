"""A folder of small image files, recipes for it, and helpers that compare finished builds."""

import hashlib
import json
import os
import resource
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from PIL import Image

from tests.examples import read_records
from tests.sources.building import picture
from tfprep.builder import BuildOptions, BuildSummary, build, build_part, explain, finish_build, plan_build
from tfprep.dataset import Dataset, open_dataset

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
    color=[augment.Brightness(0.2)],
    derive={"distance": derive.Distance(mask="mask", target=1)},
    variants={"train": 2},
    fill={"mask": 2},
    store={"image": codecs.Jpeg(90), "mask": codecs.Png(), "distance": codecs.Raw("float16"), "label": codecs.Scalar()},
    shards={"train": 4, "val": 2},
    seed=3,
)
"""


def blob(number: int, size: tuple[int, int] = (24, 28)) -> np.ndarray:
    mask = np.zeros(size, np.uint8)
    x, y = np.random.default_rng(number).integers(4, 20, 2)
    cv2.circle(mask, (int(x), int(y)), 4, 1, -1)
    return mask


_fresh: dict[bytes, dict[str, str]] = {}
"""Digests of builds from nothing, by the digest of the recipe and of the raw files."""


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
        Image.fromarray(picture(number, 24, 28)).save(path, quality=92)
        if mask:
            Image.fromarray(blob(number)).save(self.mask(name))
        return path

    def mask(self, name: str, value: int | None = None, dtype: Any = np.uint8) -> Path:
        """The file of a sample's mask, which is written with this value everywhere if there is one."""
        path = self.data / f"{name}.mask.png"
        if value is not None:
            Image.fromarray(np.full((24, 28), value, dtype)).save(path)
        return path

    def fill(self, train: int = 24, val: int = 6) -> "Site":
        for split, count in (("train", train), ("val", val)):
            for number in range(count):
                self.add(f"{split}/{('cat', 'dog')[number % 2]}/{number:03d}", number + (1000 if split == "val" else 0))
        return self

    def build(self, out: Path | str | None = None, **options: Any) -> BuildSummary:
        """Builds the site in this process, unless `workers` is positive."""
        return build(self.recipe, self.out if out is None else out, self.data, **self._chosen(options))

    def part(self, part: int, parts: int, data: Path | None = None, **options: Any) -> BuildSummary:
        """Builds one part in this process."""
        chosen = self._chosen(options)
        return build_part(self.recipe, self.out, data or self.data, part=part, parts=parts, **chosen)

    def _chosen(self, options: dict[str, Any]) -> dict[str, Any]:
        functions = {name: options.pop(name) for name in ("on_progress", "on_event", "confirm") if name in options}
        return {**functions, "options": BuildOptions(**{"workers": 0, **options})}

    def finish(self) -> BuildSummary:
        """Publishes the parts."""
        return finish_build(self.recipe, self.out, self.data, options=BuildOptions(workers=0))

    def due(self, **options: Any) -> str:
        """The line of a dry run."""
        return explain(plan_build(self.recipe, self.out, self.data, options=BuildOptions(**options)))

    def command(self, *options: str) -> list[str]:
        """`tfprep build` of the site in a new process."""
        paths = ["build", str(self.recipe), "--data", str(self.data), "--out", str(self.out)]
        return [sys.executable, "-m", "tfprep", *paths, *options]

    def driver(self, workers: int, code: str = "") -> list[str]:
        """A command that runs `code` and then builds the site in a new process."""
        places = ", ".join(repr(str(place)) for place in (self.recipe, self.out, self.data))
        call = f"build({places}, options=BuildOptions(workers={workers}))"
        return [sys.executable, "-c", f"from tfprep.builder import build, BuildOptions\n{code}\n{call}"]

    def from_nothing(self) -> dict[str, str]:
        """The digests of a build of the same recipe and data in a new folder; of equal ones, once a session."""
        files = [path for path in sorted(self.data.rglob("*")) if path.is_file()]
        content = [self.recipe.read_bytes(), *(os.fsencode(path.relative_to(self.data)) for path in files)]
        key = hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in content))
        for path in files:
            key.update(hashlib.sha256(path.read_bytes()).digest())
        if key.digest() not in _fresh:
            out = self.out.with_name(f"fresh-{key.hexdigest()}")
            self.build(out)
            _fresh[key.digest()] = digests(out)
        return _fresh[key.digest()]

    def change_recipe(self, *pairs: str) -> None:
        """Replaces texts of the recipe: old, new, old, new."""
        text = self.recipe.read_text()
        for old, new in zip(pairs[::2], pairs[1::2], strict=True):
            assert old in text
            text = text.replace(old, new)
        self.recipe.write_text(text)

    def define(self, code: str) -> None:
        """Writes this code before the recipe."""
        self.change_recipe("RECIPE = Recipe(", f"{code}\n\nRECIPE = Recipe(")

    def derive(self, name: str, body: str, codec: str = "") -> None:
        """Adds a derived input, a function of `sample` and `generator` with this body, which a codec stores."""
        self.define(f"def {name}(sample, generator):\n{textwrap.indent(textwrap.dedent(body), '    ')}\n")
        self.change_recipe("derive={", f'derive={{"{name}": {name}, ')
        if codec:
            self.change_recipe("store={", f'store={{"{name}": {codec}, ')

    def slow(self) -> None:
        """Makes builds mostly wait, so that kills are spread over all steps, and other tests have the processors."""
        self.derive("slow", "time.sleep(0.004)\nreturn sample['mask']")

    def rejected(self) -> list[dict[str, Any]]:
        """The rejected samples in the order of their keys."""
        rejected = [json.loads(line) for line in (self.out / "current/rejects.jsonl").read_text("utf-8").splitlines()]
        return sorted(rejected, key=lambda sample: str(sample["key"]))

    def log(self) -> str:
        return (self.out / ".tfprep/build.log").read_text()


def digests(out: Path) -> dict[str, str]:
    """SHA-256 of every file of the current version, by name. The report is left out, since it contains times."""
    files = [path for path in open_dataset(out).path.iterdir() if path.is_file() and path.name != "report.html"]
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(files)}


def check_whole(out: Path) -> Dataset:
    """The dataset, after a comparison of every file with the manifest and the index. Raises DatasetError."""
    data = open_dataset(out)
    for name, split in data.splits.items():
        for variant, files in enumerate(split.files):
            index = data.index(name, variant).to_pylist()
            assert len(index) == split.samples
            frames = []
            for shard, file in enumerate(files):
                content = (data.path / file.name).read_bytes()
                assert (len(content), hashlib.sha256(content).hexdigest()) == (file.bytes, file.sha256)
                frames += [(shard, frame.offset, frame.size) for frame, _ in read_records(data.path / file.name)]
            assert frames == [(row["shard"], row["offset"], row["size"]) for row in index]
            locations = data.locations(name, range(variant, variant + 1))
            assert locations is not None
            rows = locations.take(np.arange(split.samples))
            assert [(row["offset"], row["size"]) for row in index] == rows[["offset", "size"]].tolist()
    return data


def run(command: Sequence[Any], **options: Any) -> subprocess.CompletedProcess[str]:
    """A process that has ended, with what it printed."""
    return subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=240, check=False, **options)


FILES_OF_4000_BYTES = f"""
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (4000, {resource.RLIM_INFINITY}))
"""
"""Code for `Site.driver` after which a write fails as on a full disk."""


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
        monkeypatch.setattr("tfprep.builder.publish.write_report", lambda *arguments: "")


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
