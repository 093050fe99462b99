"""The code in docs/loader.md and docs/predict.md runs as printed, on small images."""

import re
from pathlib import Path

import numpy as np
import pytest

import tfprep
from tests.commands import status_of
from tests.docs import pages
from tests.photos import write_photos
from tfprep import augment
from tfprep.load.options import LoaderOptions

keras = pytest.importorskip("keras")

PAGE = pages.text("loader.md")
BLOCKS = pages.blocks("loader.md")


@pytest.fixture
def names(make_dataset, tmp_path, monkeypatch):
    """The names that the page uses without defining them: datasets and a model."""
    monkeypatch.chdir(tmp_path)
    sizes = {"train": 40, "val": 8}
    photos = tfprep.open(make_dataset("out/photos", samples=sizes, fields=["image", "label"], variants=2).path)
    drawings = tfprep.open(make_dataset("out/drawings", samples=sizes, fields=["image", "label"], variants=2).path)
    model = keras.Sequential([keras.Input((24, 32, 3)), keras.layers.Flatten(), keras.layers.Dense(3)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return {"model": model, "data": photos, "photos": photos, "drawings": drawings, "tfprep": tfprep}


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # Keras saving weights, with NumPy 2
def test_the_code_runs(names):
    assert len(BLOCKS) >= 4
    starts = []
    for block in BLOCKS:
        here = block.replace(">= 224", ">= 24")
        exec(compile(here, "docs/loader.md", "exec"), names)
        starts.append(getattr(names["train"], "next_step", None))
    assert 1000 in starts  # of the block that resumes from a state


def test_the_page_about_predictions(names, monkeypatch):
    tf = pytest.importorskip("tensorflow")
    monkeypatch.setattr(tf.config.experimental, "enable_op_determinism", lambda: None)
    names["model"].optimizer.learning_rate = 0.0  # the page trains after it predicts
    *of_loaders, recipe = sorted(pages.blocks("predict.md"), key=lambda block: block.startswith("# file"))
    for block in of_loaders:
        here = block.replace("64, 64", "24, 32").replace(", version=1", "")
        exec(compile(here, "docs/predict.md", "exec"), names)
    lines = [line.split(",") for line in Path("predictions.csv").read_text().splitlines()[1:]]
    for sample, (key, label, *scores) in zip(names["photos"].random_access("val"), lines, strict=True):
        expected = names["model"].predict_on_batch(sample["image"][None])[0]
        for predicted in (np.array(scores, float), names["predicted"][key]):
            np.testing.assert_allclose(predicted, expected, rtol=1e-4, atol=0.01)  # of sums of 2,304 products up to 255
        assert label == names["photos"].class_names[sample["label"]]
    assert names["scores"].shape == (8, 3)
    assert names["matrix"].sum() == 8
    matrix = augment.Resize(64, 96, pad=True)((333, 77), None).matrix
    ends = (matrix @ np.array([[10, 30], [50, 200], [1, 1]])).T[:, :2]  # the corners of a box on the photo, moved
    box = names["on_photo"](ends.reshape(1, 4), (333, 77), (64, 96))
    np.testing.assert_allclose(box, [[10, 50, 30, 200]])
    Path("recipe.py").write_text(pages.RECIPE.replace("{split}/", ""))
    Path("new.py").write_text(recipe)
    write_photos(Path("new_photos"), 4, "{number}.png")
    (command,) = re.findall(r"`(tfprep build .*?)`", pages.text("predict.md"))
    assert status_of(command, "--workers", "0") == 0
    assert list(tfprep.open("out/new").splits) == ["test"]


def test_every_option_named_there_exists():
    """Words written as `name=value` are options of the loader, of folds, or of Keras and PyTorch."""
    others = {
        "shuffle", "steps_per_epoch", "num_workers", "stratify", "group", "jit_compile", "save_freq",
        "multiprocessing_context", "variant", "gradient_accumulation_steps", "limit_train_batches",
    }  # fmt: skip
    named = set(re.findall(r"`(\w+)=[^`]*`", PAGE)) - others
    assert named
    assert named <= {*LoaderOptions.__dataclass_fields__}, named - {*LoaderOptions.__dataclass_fields__}
