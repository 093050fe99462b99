"""The code in docs/loader.md runs as printed, on small images."""

import re

import pytest

import tfprep
from tests.docs import pages
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
    return {"model": model, "photos": photos, "drawings": drawings, "tfprep": tfprep}


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # Keras saving weights, with NumPy 2
def test_the_code_runs(names):
    assert len(BLOCKS) >= 4
    starts = []
    for block in BLOCKS:
        here = block.replace("height >= 224", "height >= 24")
        exec(compile(here, "docs/loader.md", "exec"), names)
        starts.append(getattr(names["train"], "next_step", None))
    assert 1000 in starts  # of the block that resumes from a state


def test_every_option_named_there_exists():
    """Words written as `name=value` are options of the loader, of folds, or of Keras and PyTorch."""
    others = {
        "shuffle", "steps_per_epoch", "num_workers", "stratify", "group", "jit_compile", "save_freq",
        "multiprocessing_context", "variant", "gradient_accumulation_steps",
    }  # fmt: skip
    named = set(re.findall(r"`(\w+)=[^`]*`", PAGE)) - others
    assert named
    assert named <= {*LoaderOptions.__dataclass_fields__}, named - {*LoaderOptions.__dataclass_fields__}
