"""A small built dataset, and files that define fields for it."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
import pytest

import tfprep
from tests.storage.server import S3
from tfprep import Recipe, augment, codecs, sources
from tfprep.model_fields import add_fields
from tfprep.storage.store import open_store

FIELDS = """
import os, pathlib, time
import numpy as np
from tfprep import ModelFields, codecs

HERE = pathlib.Path(__file__).parent

def model():
    weight = float((HERE / "weight.txt").read_text())

    def compute(batch):
        with open(HERE / "calls.txt", "a") as calls:
            calls.write(f"{os.getpid()} {len(batch['image'])}\\n")
        BODY
        return {"score": batch["image"].astype(np.float32).mean(axis=(1, 2)) * weight}

    return compute

FIELDS = ModelFields(
    model=model, inputs=["image"], store={"score": codecs.Raw("float32")}, batch_size=4, files=["weight.txt"], OPTIONS
)
"""


@dataclass
class Site:
    """Raw photos, the dataset that is built of them, and a file of fields."""

    root: Path

    @property
    def data(self) -> Path:
        return self.root / "raw"

    @property
    def out(self) -> Path:
        return self.root / "built"

    @property
    def fields(self) -> Path:
        return self.root / "fields.py"

    @property
    def calls(self) -> list[int]:
        """The sizes of the batches that the model got."""
        path = self.root / "calls.txt"
        return [int(line.split()[1]) for line in path.read_text().splitlines()] if path.exists() else []

    def photo(self, name: str, number: int) -> None:
        (self.data / name).parent.mkdir(parents=True, exist_ok=True)
        noise = np.random.default_rng(number).integers(0, 256, (20, 24, 3)).astype(np.float32)
        cv2.imwrite(str(self.data / name), cv2.GaussianBlur(noise, (0, 0), 2).astype(np.uint8))

    def build(self, name: str = "tiny", shards: dict[str, int] | None = None, *, replace: bool = False) -> list[str]:
        """Build, and return the warnings."""
        recipe = Recipe(
            name=name,
            source=sources.Folder("{split}/{label}/*.png"),
            geometry=[augment.Flip(p=1.0), augment.CenterCrop(16, 16)],
            store={"image": codecs.Png(), "label": codecs.Scalar()},
            variants={"train": 2},
            shards=shards or {"train": 3, "val": 1},
        )
        events: list[str] = []
        options = tfprep.builder.BuildOptions(workers=0, replace=replace)
        tfprep.build(
            recipe, self.out, self.data, options=options,
            on_event=lambda event: events.append(event.text) if event.name == "warning" else None,
        )  # fmt: skip
        return events

    def define(self, body: str = "", options: str = "", weight: str = "2.0") -> Path:
        """Write the file of fields; `body` is code of the model, `options` are those of ModelFields."""
        (self.root / "weight.txt").write_text(weight)
        self.fields.write_text(FIELDS.replace("BODY", body or "pass").replace("OPTIONS", options))
        return self.fields

    def main_files(self) -> dict[str, bytes]:
        """The bytes of the dataset's own shards and tables."""
        return {
            path.name: path.read_bytes() for path in self.out.iterdir() if path.is_file() and path.name != "tfprep.json"
        }

    def added_files(self) -> dict[str, bytes]:
        """The bytes of all files of added fields, by their path."""
        folders = [path for path in self.out.iterdir() if path.is_dir() and not path.name.startswith(".")]
        return {f"{folder.name}/{path.name}": path.read_bytes() for folder in folders for path in folder.iterdir()}


def killed_at_store(s3: S3, site: Site, url: str, after: int) -> bool:
    """Run `add-fields`, and kill it after so many requests; False if it ended before."""
    command = [sys.executable, "-m", "tfprep", "add-fields", url, str(site.fields), "--quiet"]
    first = len(s3.proxy.requests)
    process = subprocess.Popen(command)
    while process.poll() is None and len(s3.proxy.requests) < first + after:
        time.sleep(0.001)
    process.kill()
    status = process.wait()
    assert status in (0, -9), f"a run ended with status {status}"
    return status != 0


def objects_of_fields(url: str) -> dict[str, bytes]:
    """The content of the published fields and of `tfprep.json`, by name."""
    store = open_store(url)
    names = [info.name for info in store.list() if info.name.startswith("score-") or info.name == "tfprep.json"]
    return {name: bytes(store.read(name)) for name in names}


@pytest.fixture(scope="session")
def _built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    site = Site(tmp_path_factory.mktemp("fields"))
    for number in range(32):
        site.photo(f"{'train' if number < 24 else 'val'}/{'cat' if number % 2 else 'dog'}/{number:02d}.png", number)
    assert site.build() == []
    return site.root


@pytest.fixture(scope="session")
def _added(_built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = shutil.copytree(_built, tmp_path_factory.mktemp("added") / "site")
    add_fields(root / "built", Site(root).define())
    return root


@pytest.fixture
def plain(_built: Path, tmp_path: Path) -> Site:
    """A copy of a built dataset, with a file of fields."""
    site = Site(shutil.copytree(_built, tmp_path / "site"))
    site.define()
    return site


@pytest.fixture
def site(_added: Path, tmp_path: Path) -> Site:
    """A copy of a built dataset whose fields were added."""
    return Site(shutil.copytree(_added, tmp_path / "site"))
