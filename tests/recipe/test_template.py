"""The recipe that `tfprep init` writes for a dataset, and what it fills in."""

import shutil

import numpy as np
import pytest

import tfprep
from tests.examples import detection, serialized
from tests.examples import write as write_records
from tests.sources.building import read_rejected
from tests.sources.detection.test_layouts import lay_out
from tfprep import Recipe, codecs, sources
from tfprep.builder import BuildOptions
from tfprep.dataset import index_tfrecords
from tfprep.errors import SourceError
from tfprep.recipe.file import data_root
from tfprep.recipe.template import recipe_text, recognized


def test_a_shade_of_gray_is_not_filled_in_as_void(tmp_path):
    for numbers, fills in (("0,1,255", True), ("0,128,255", False)):
        root = tmp_path / numbers
        lay_out(root, f"images/# masks/#={numbers}")
        assert ("fill={" in recipe_text(recognized(root, "masks"), root, tmp_path / "recipe.py")) == fills


def test_the_recipe_for_a_dataset_builds_it_again(tmp_path):
    root = tmp_path / "data"
    lay_out(root, "raw/cat/#.png")
    recipe = Recipe(name="first", source=sources.Folder("raw/{label}/*"), variants={"train": 2},
                    store={"image": codecs.Png(), "label": codecs.Scalar()})  # fmt: skip
    tfprep.build(recipe, root / "out", root, options=BuildOptions(workers=0))
    shutil.rmtree(root / "raw")
    for path in (root / "out").iterdir():
        path.rename(root / path.name)
    (root / "out").rmdir()
    found = recognized(root)
    assert repr(found.source) == "Records(fields={'image': 'image', 'label': 'label'}, splits=None)"
    path = tmp_path / "recipe.py"
    path.write_text(recipe_text(found, root, path))
    options = BuildOptions(workers=0)
    assert tfprep.build(path, tmp_path / "again", data_root(path), options=options).samples == 4
    assert not read_rejected(tmp_path / "again")


def test_lists_of_imported_records_are_named(tmp_path):
    """Those of TensorFlow's Object Detection API: the image has another name, and some fields are lists."""
    pytest.importorskip("tensorflow")
    rng = np.random.default_rng(0)
    write_records(tmp_path / "train.tfrecord", [serialized(detection(rng, number)) for number in range(12)])
    index_tfrecords(tmp_path / "train.tfrecord", "train")
    assert "Records(fields={'image_encoded': 'image', 'image_filename': 'text', " in repr(recognized(tmp_path).source)
    assert [line for line in recognized(tmp_path).lines() if "check" in line] == [
        "check: image_object_class_text is a list of texts, which this recipe does not read",
    ]


def test_a_damaged_dataset_is_not_taken_for_raw_files(tmp_path):
    lay_out(tmp_path, "cat/# dog/#")
    (tmp_path / "tfprep.json").write_text("{}")
    with pytest.raises(SourceError, match=r"tfprep\.json.*--as LAYOUT"):
        recognized(tmp_path)
    assert recognized(tmp_path, "folders").facts.labels == {"label": {"cat": 4, "dog": 4}}
