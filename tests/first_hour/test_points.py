"""What newcomers do, from the docs only: a machine without TensorFlow, a killed run, and mistakes in a recipe."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

import tfprep
from tests.warm_python import run_python
from tfprep.cli import main

ENVIRONMENT = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": str(Path(__file__).parents[2])}


def run(*command, **options):
    return subprocess.run(
        [sys.executable, *command], env=ENVIRONMENT, check=False, capture_output=True, text=True, timeout=280, **options
    )


def test_a_machine_without_tensorflow(photos):
    """Each way that needs TensorFlow says so in one line, with what to install and what works without it."""
    none = "import sys\nsys.modules['tensorflow'] = None\nimport tfprep\n"
    folder = str(photos.path)
    refused = run("-c", f"{none}tfprep.open({folder!r}).loader('train', batch_size=8)")
    last = refused.stderr.splitlines()[-1]
    assert last.startswith(
        "tfprep.errors.MissingDependencyError: loader() needs TensorFlow: pip install 'tfprep[tensorflow]'"
    )
    assert "numpy_loader() works" in last
    command = run("-c", f"{none}from tfprep.cli import main\nmain(['bench', {folder!r}])")
    assert command.stderr == "tfprep: tfprep bench needs TensorFlow: pip install 'tfprep[tensorflow]'\n"
    works = run("-c", f"{none}print(len(list(tfprep.open({folder!r}).numpy_loader('train', batch_size=8))))")
    assert works.stdout == "6\n", works.stderr


BEST = """
import os, signal, sys
import keras, tfprep

data = tfprep.open(sys.argv[1])
options = {"batch_size": 8, "seed": 0, "inputs": "image", "targets": "label"}
checkpoint = "best.keras"
start = 0
if os.path.exists(checkpoint):
    model = keras.models.load_model(checkpoint)
    start = int(model.optimizer.iterations)
else:
    model = keras.Sequential([keras.Input((24, 32, 3)), keras.layers.Flatten(), keras.layers.Dense(3)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
train = data.loader("train", start_step=start, **options)


class Kill(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        logs["val_score"] = float(epoch == 1)  # the second epoch is the best
        if epoch == 3 and not start:
            os.kill(os.getpid(), signal.SIGKILL)


best = keras.callbacks.ModelCheckpoint(checkpoint, monitor="val_score", mode="max", save_best_only=True)
print(start, int(model.optimizer.iterations))
model.fit(train, initial_epoch=start // len(train), epochs=4, shuffle=False, verbose=0, callbacks=[Kill(), best])
print(train.next_step, int(model.optimizer.iterations))
"""


def test_a_killed_run_continues_at_its_best_checkpoint(photos, tmp_path):
    """Epochs of 6 steps: the checkpoint of step 12 is followed by step 12, and not by that of the kill."""
    killed = run_python(["-c", BEST, str(photos.path)], cwd=tmp_path)
    assert killed.returncode == -signal.SIGKILL, killed.stderr[-2000:]
    again = run_python(["-c", BEST, str(photos.path)], cwd=tmp_path)
    assert again.returncode == 0, again.stderr[-2000:]
    assert again.stdout.split("\n")[:2] == ["12 12", "24 24"]


RECIPE = """from tfprep import Recipe, augment, codecs, derive, sources

RECIPE = Recipe(
    name="photos",
    source=sources.Folder("{label}/*.png"),
    {OPTION},
    store={STORE},
)
"""
STORE = '{"image": codecs.Jpeg(95), "label": codecs.Scalar()}'


@pytest.mark.parametrize(
    ("option", "store", "expected"),
    [
        ("color=[augment.Flip()]", STORE, "geometry="),
        ("geometry=[augment.Brightness(0.2)]", STORE, "color="),
        ("color=[augment.Brightness(20)]", STORE, "Brightness"),
        ('seed="x"', STORE, "seed"),
        ("seed=7", '{"image": "jpeg"}', "codecs"),
        ('derive={"clicks": derive.Clicks(mask="mask", target=8)}', STORE, "mask"),
    ],
)
def test_a_mistake_in_a_recipe_is_found_when_it_is_loaded(tmp_path, capfd, option, store, expected):
    """With the file, the line, and what was expected; nothing is built."""
    (tmp_path / "recipe.py").write_text(RECIPE.replace("{OPTION}", option).replace("{STORE}", store))
    (tmp_path / "photos" / "cat").mkdir(parents=True)
    Image.new("RGB", (8, 8)).save(tmp_path / "photos" / "cat" / "1.png")
    with pytest.raises(SystemExit) as ended:
        main(["build", f"{tmp_path}/recipe.py", "--data", f"{tmp_path}/photos", "--out", f"{tmp_path}/out"])
    assert ended.value.code
    message = capfd.readouterr().err
    assert expected in message
    assert "Traceback" not in message
    assert len(message) < 1500
    assert not list((tmp_path / "out").glob("*.tfrecord*"))


def test_home_folders_and_a_file_that_cannot_be_read(tmp_path, monkeypatch, capfd):
    """`~` is the home folder in DATA, in --out and in open(), and an error of reading names its file."""
    monkeypatch.setenv("HOME", str(tmp_path))
    recipe = RECIPE.replace("{OPTION}", "seed=1").replace("{STORE}", STORE)
    (tmp_path / "recipe.py").write_text('DATA = "~/photos"\n' + recipe)
    (tmp_path / "photos" / "cat").mkdir(parents=True)
    Image.new("RGB", (8, 8)).save(tmp_path / "photos" / "cat" / "1.png")
    (tmp_path / "photos" / "cat" / "2.png").symlink_to("2.png")
    with pytest.raises(SystemExit) as ended:
        main(["build", str(tmp_path / "recipe.py"), "--out", "~/out"])
    assert not ended.value.code
    assert len(tfprep.open("~/out").index("train")) == 1
    (sample,) = map(json.loads, (tmp_path / "out" / "current/rejects.jsonl").read_text().splitlines())
    assert sample["file"] == "cat/2.png"
    assert sample["error"].startswith("cannot read the file: ")
    (tmp_path / "photos" / "cat" / "1.png").unlink()
    with pytest.raises(SystemExit) as ended:
        main(["build", str(tmp_path / "recipe.py"), "--out", "~/none"])
    assert ended.value.code
    assert re.search(r"cannot read the file: [^(]*\(cat/2.png\)", capfd.readouterr().err)


SCRIPT = """
import warnings
warnings.simplefilter("error")
import sys
import keras
import tensorflow as tf
import tfprep

data = tfprep.open(sys.argv[1])
print(repr(data))
options = {"batch_size": 8, "inputs": "image", "targets": "label"}
train = data.loader("train", seed=0, **options)
val = data.loader("val", **options)
print(train, len(train))
print(val, len(val))
model = keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(3)])
model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
history = model.fit(train, epochs=2, validation_data=val, verbose=0, shuffle=False)
print(len(history.history["val_loss"]), train.next_step)
train.save(sys.argv[2])
print(len(tf.data.Dataset.load(sys.argv[2])))
print(sum(1 for _ in train), sum(1 for _ in val))
"""


def test_a_first_script(photos, tmp_path):
    """50 samples are 6 full batches, 11 are 2."""
    done = run_python(["-c", SCRIPT, str(photos.path), str(tmp_path / "saved")])
    assert done.returncode == 0, done.stderr[-2000:]
    dataset, train, val, *rest = done.stdout.splitlines()
    assert len(dataset) < 400
    assert "for training (training=True): a pass is an epoch" in train
    assert train.endswith("> 6")
    assert "for evaluation (training=False)" in val
    assert val.endswith("> 2")
    assert rest == ["2 12", "6", "6 2"]
