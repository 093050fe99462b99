"""A built dataset, read-only and one for the session, and copies of it to damage."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import tfprep
from tests.photos import save
from tfprep import Recipe, augment, codecs, sources
from tfprep.builder import BuildOptions
from tfprep.dataset import open_dataset

LABELS = ["cat", "dog", "ünïcode"]


def write_table(root):
    """A table of photos of noise, which are beside it."""
    draws, rows = np.random.default_rng(0), []
    for split, count in (("train", 30), ("val", 12)):
        for number in range(count):
            label = LABELS[number % 3]
            name = f"{split}/{label}/{number} photo.png"
            coarse = Image.fromarray(draws.integers(0, 256, (6, 8, 3), np.uint8))
            save(root / name, np.asarray(coarse.resize((64 + number, 48), Image.Resampling.BICUBIC)))
            corners = np.sort(draws.uniform(0, 40, (number % 3, 2, 2)).round(2), axis=1)
            rows.append({
                "path": name, "split": split, "animal": label, "text": f"{split} {number} ß", "weight": number / 7,
                "boxes": corners.reshape(-1, 4).tolist(),
            })  # fmt: skip
    (root / "table.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def gray(sample, generator):
    return sample["image"].mean(2).astype(np.float32)


def plain(sample, generator):
    return sample["image"].copy()


plain.kind = "image"


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    """30 training samples of 3 variants in 3 shards, and 12 of validation in one."""
    fields = {"weight": ("scalar", "weight"), "text": ("text", "text"), "boxes": ("boxes", "boxes")}
    recipe = Recipe(
        name="mixed",
        source=sources.Table("table.jsonl", image="path", label="animal", splits="split", fields=fields),
        geometry=[augment.Rotate(10), augment.Crop(40, 40)],
        color=[augment.Brightness(0.2)],
        derive={"gray": gray, "plain": plain},
        variants={"train": 3},
        shards={"train": 3},
        store={
            "image": codecs.Jpeg(90), "label": codecs.Scalar(), "weight": codecs.Scalar(), "text": codecs.Text(),
            "boxes": codecs.Scalar(), "gray": codecs.Raw(), "plain": codecs.Png(),
        },
        row_fields={"boxes": []},
        seed=4,
    )  # fmt: skip
    root = tmp_path_factory.mktemp("mixed")
    write_table(root / "raw")
    tfprep.build(recipe, root / "out", root / "raw", options=BuildOptions(workers=0))
    return open_dataset(root / "out")


@pytest.fixture
def copy(data, tmp_path):
    return Path(shutil.copytree(data.path, tmp_path / "copy"))
