"""A small built dataset, files that define fields for it, and what every reader must deliver of them."""

from __future__ import annotations

import shutil
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import tfprep
from tests.sources.building import write_picture
from tfprep import Recipe, augment, codecs, sources
from tfprep.builder.plan import warning_of_opencv
from tfprep.dataset.verify import verify
from tfprep.model_fields import add_fields

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
    def data(self):
        return self.root / "raw"

    @property
    def out(self):
        return self.root / "built"

    @property
    def fields(self):
        return self.root / "fields.py"

    @property
    def calls(self):
        """The sizes of the batches that the model got."""
        path = self.root / "calls.txt"
        return [int(line.split()[1]) for line in path.read_text().splitlines()] if path.exists() else []

    def photo(self, name, number):
        write_picture(self.data / name, number, 20, 24)

    def build(self, name="tiny", shards=None, *, replace=False):
        """Build, and return the warnings."""
        recipe = Recipe(
            name=name, source=sources.Folder("{split}/{label}/*.png"),
            geometry=[augment.Flip(p=1.0), augment.CenterCrop(16, 16)],
            store={"image": codecs.Png(), "label": codecs.Scalar()}, variants={"train": 2},
            shards=shards or {"train": 3, "val": 1},
        )  # fmt: skip
        events = []
        options = tfprep.builder.BuildOptions(workers=0, replace=replace)
        tfprep.build(
            recipe, self.out, self.data, options=options,
            on_event=lambda event: events.append(event.text) if event.name == "warning" else None,
        )  # fmt: skip
        return [text for text in events if text != warning_of_opencv()]  # which OpenCV 4 gives

    def define(self, body="pass", options="", weight="2.0", change=None):
        """Write the file of fields: code of the model, options of ModelFields, and a text to change with what takes its place."""
        (self.root / "weight.txt").write_text(weight)
        text = FIELDS.replace("BODY", body).replace("OPTIONS", options)
        self.fields.write_text(text.replace(*change) if change else text)
        return self.fields

    def other(self, text):
        """Write a second file of fields; `text` ends with the call of ModelFields."""
        path = self.root / "other.py"
        path.write_text(f"import numpy as np\nfrom tfprep import ModelFields, Recipe, codecs\n{text}\n")
        return path

    def main_files(self):
        """The bytes of the dataset's own shards and tables."""
        files = [path for path in (self.out / "current").iterdir() if path.is_file() and path.name != "manifest.json"]
        return {path.name: path.read_bytes() for path in files}

    def added_files(self):
        """The bytes of all files of added fields, by their path."""
        folders = [path for path in (self.out / "current").iterdir() if path.is_dir()]
        return {f"{folder.name}/{path.name}": path.read_bytes() for folder in folders for path in folder.iterdir()}


VIEWS = (("train", 0), ("train", 1), ("val", 0))


def expected(site, split, variant, weight=2.0):
    """The scores by the formula, of the pixels that Pillow reads from the PNG of each record (lossless)."""
    samples = tfprep.open(site.out).samples(split, variant, fields=["image"])
    return np.stack([np.asarray(sample["image"], np.float64).mean((0, 1)) * weight for sample in samples])


def check_all(site, weight=2.0):
    """Every record has the scores of its own pixels, and no file is damaged."""
    for split, variant in VIEWS:
        scores = [one["score"] for one in tfprep.open(site.out).samples(split, variant, fields=["score"])]
        np.testing.assert_allclose(scores, expected(site, split, variant, weight), rtol=1e-5)
    assert not list(verify(site.out))


def check_batch(batch, weight=2.0):
    """The scores of a batch, or of one sample, by the formula from its images."""
    wanted = np.asarray(batch["image"], np.float64).mean((-3, -2)) * weight
    np.testing.assert_allclose(batch["score"], wanted, rtol=1e-5)


def every_batch(data, **options):
    """Batches of 5 training samples: two epochs of each kind of loader for NumPy, the second may come from a cache."""
    ways = (
        {"workers": "threads"}, {"workers": "processes"}, {"cache": "decoded"}, {"cache": False, "verify": "always"}
    )  # fmt: skip
    for way in ways:
        with closing(data.numpy_loader("train", 5, seed=1, **way, **options)) as loader:
            for _ in range(2):
                yield from loader
    yield from data.loader("train", 5, **options)


@pytest.fixture(scope="session")
def _built(tmp_path_factory):
    site = Site(tmp_path_factory.mktemp("fields"))
    for number in range(32):
        site.photo(f"{'train' if number < 24 else 'val'}/{'cat' if number % 2 else 'dog'}/{number:02d}.png", number)
    assert site.build() == []
    return site.root


@pytest.fixture(scope="session")
def _added(_built, tmp_path_factory):
    root = shutil.copytree(_built, tmp_path_factory.mktemp("added") / "site", symlinks=True)
    add_fields(root / "built", Site(root).define())
    return root


@pytest.fixture
def plain(_built, tmp_path):
    """A copy of a built dataset, with a file of fields."""
    site = Site(shutil.copytree(_built, tmp_path / "site", symlinks=True))
    site.define()
    return site


@pytest.fixture
def site(_added, tmp_path):
    """A copy of a built dataset whose fields were added."""
    return Site(shutil.copytree(_added, tmp_path / "site", symlinks=True))
