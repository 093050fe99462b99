"""The code in docs/training.md runs as printed, block after block."""

import gc
import json
import re

import numpy as np
import pytest

from tests.docs import pages
from tests.photos import build_photos
from tests.warm_python import run_python
from tfprep import augment

PAGE = pages.text("training.md")
BLOCKS = pages.blocks("training.md")
SCRIPTS = [block for block in BLOCKS if block.startswith("# script")]
TYPED = [block for block in BLOCKS if not block.startswith("# script")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A built dataset of 24 images of two classes."""
    recipe = {"geometry": [augment.Flip(p=0.5)], "variants": {"train": 2}}
    return build_photos(tmp_path_factory.mktemp("training"), 24, recipe=recipe, noise=(12, 10))


@pytest.fixture
def page(folder):
    """The names that the page uses without defining them."""
    import keras
    import tensorflow as tf

    model = keras.Sequential([keras.Input([8]), keras.layers.Dense(4)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    x, y = np.random.default_rng(0).normal(size=[40, 8]).astype("f"), np.arange(40) % 4
    return {
        "model": model,
        "dataset": tf.data.Dataset.from_tensor_slices((x, y)).batch(8).prefetch(1),
        "folder": folder,
    }


@pytest.mark.filterwarnings("ignore:__array__ implementation")  # Keras's TensorBoard callback, with NumPy 2
def test_the_page_runs_from_top_to_bottom(page, tmp_path, monkeypatch, capsys):
    import keras
    import tensorflow as tf

    monkeypatch.chdir(tmp_path)
    page["__name__"] = "page"
    gc.freeze()  # each clear_session collects garbage: not in TensorFlow's own half million objects
    # Another test of this process may have begun already; without a GPU that does not matter.
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind=None: [])
    try:
        for number, block in enumerate(TYPED):
            exec(compile(block, f"docs/training.md, block {number + 1}", "exec"), page)
    finally:
        gc.unfreeze()
        keras.config.set_dtype_policy("float32")
    printed = capsys.readouterr().out
    assert "no GPU: nothing to configure" in printed
    assert "input buffers" in printed
    assert 0 <= sum(page["scores"]) / 2 <= 1
    assert "[0]: float32 (8, 8), from" in printed
    assert (tmp_path / "logs" / "input.jsonl").stat().st_size > 0
    images, _ = next(iter(page["train"]))
    assert images.shape == (8, 12, 10, 3)


@pytest.mark.parametrize("number", range(len(SCRIPTS)))
def test_each_script_runs(number, tmp_path):
    (tmp_path / "script.py").write_text(SCRIPTS[number])
    done = run_python([str(tmp_path / "script.py")], cwd=tmp_path, env={"TF_CPP_MIN_LOG_LEVEL": "3"}, timeout=150)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split()[-1] == ["36", "4"][number]


def test_the_page_says_each_key_of_the_json_lines(tmp_path):
    import tensorflow as tf

    from tfprep.train import InputMonitor

    with InputMonitor(tmp_path, every_s=60) as monitor:
        list(monitor.watch(tf.data.Dataset.range(8).shuffle(4).batch(2)))
    (line,) = map(json.loads, (tmp_path / "input.jsonl").read_text().splitlines())
    keys = {*line, *line["waits"], *line["cpu"], *line["stages"][0]}
    listed = PAGE[PAGE.index("- `time`, `step`") :].partition("\n\n")[0]
    assert keys == set(re.findall(r"`([a-z0-9_]+)`", listed))


def test_every_public_name_is_on_the_page():
    import tfprep.train

    functions = [name for name in tfprep.train.__all__ if name[0].islower() or name.endswith(("Monitor", "Guard"))]
    assert [name for name in functions if name not in PAGE] == []
