"""The code of docs/augmentation.md runs as printed, and its table says what derived inputs follow."""

import re

import numpy as np
import pytest

from tests.docs import pages
from tests.load.test_ahead_or_at_load import built_dataset
from tests.photos import build_photos
from tfprep import derive
from tfprep.derive.inputs import follows_of
from tfprep.fields import EFFECTS

pytest.importorskip("tensorflow")


def test_the_code_runs(tmp_path, monkeypatch):
    splits = {"recipe": {"variants": {"train": 1}}, "size": (40, 50)}
    (tmp_path / "out").mkdir()
    build_photos(tmp_path / "a", 24, **splits).rename(tmp_path / "out/photos")
    built_dataset(tmp_path / "b")
    (tmp_path / "b/out").rename(tmp_path / "out/camvid")
    monkeypatch.chdir(tmp_path)
    names = {}
    for block in pages.blocks("augmentation.md"):
        exec(
            compile(block.replace('"val"', '"train"').replace("void=11", "void=5"), "docs/augmentation.md", "exec"),
            names,
        )
    images, labels = next(iter(names["val"]))
    assert images.shape[1:] == (224, 224, 3)
    assert np.asarray(labels).sum(axis=1).tolist() == [1] * len(labels)
    assert names["first"].shape[1:] == (224, 224, 3)


def test_the_table_of_what_follows():
    rows = re.findall(
        r"^\| (`.*?) \| (.*?) \|$", pages.text("augmentation.md").split("## Fields that are stored")[1], re.M
    )
    said = {}
    for classes, follows in rows:
        effects = set(EFFECTS) if follows.startswith("the same") else set(follows.split(", ")) & EFFECTS
        said |= dict.fromkeys(re.findall(r"`(\w+)`", classes), effects)
    assert said.keys() == set(derive.__all__) - {"Derived", "Own"}
    for name, effects in said.items():
        kind = getattr(derive, name)
        op = kind(4) if name == "OneHot" else kind(channels=1) if name == "Heatmaps" else kind()
        assert follows_of(op) == effects, name
