"""`keras_loader` in `fit`, `evaluate` and `predict`, compared with a loop over the batches of `numpy_loader`."""

import json
import os
import shutil
import subprocess
import sys
from itertools import islice

import numpy as np
import pytest

import tfprep
from tfprep import augment
from tfprep.errors import LoaderError

keras = pytest.importorskip("keras")
BACKEND = keras.backend.backend()
OPTIONS = {"seed": 3, "inputs": "image", "targets": "label", "remainder": "drop", "training": True}


def _trained_by_hand(model, batches):
    for images, labels in batches:
        model.train_on_batch(images, labels)
    return model


def _same_weights(model, other):
    for one, two in zip(model.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-4, atol=1e-6)


def _batches(loader, count):
    """The first `count` batches, over several passes."""
    while count:
        taken = list(islice(loader, count))
        yield from taken
        count -= len(taken)


def _in_a_data_loader(data):
    """Keras takes a DataLoader as it is on PyTorch; each `iter` of it is one of the loader."""
    import torch

    return torch.utils.data.DataLoader(data.torch_loader("train", 8, **OPTIONS), batch_size=None)


WAYS = {"keras_loader": lambda data: data.keras_loader("train", 8, **OPTIONS)}
WAYS |= {"in a DataLoader": _in_a_data_loader} if BACKEND == "torch" else {}


@pytest.mark.parametrize("built", [True, False] if BACKEND != "tensorflow" else [True])  # TensorFlow looks at no batch
@pytest.mark.parametrize("way", WAYS)
def test_fit_trains_on_the_batches_in_their_order(data, make_model, weights, way, built):
    """Also if Keras looks at a first batch and builds the model with it; its weights are set when the training begins."""

    class SetWeights(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_begin(self, logs=None):
            self.model.set_weights(weights)

    model, callbacks = make_model(built), [] if built else [SetWeights()]
    history = model.fit(WAYS[way](data), shuffle=False, epochs=3, verbose=0, callbacks=callbacks)
    _same_weights(model, _trained_by_hand(make_model(), _batches(data.numpy_loader("train", 8, **OPTIONS), 18)))
    assert len(history.history["loss"]) == 3
    assert int(model.optimizer.iterations.value) == 18


@pytest.mark.skipif(BACKEND == "tensorflow", reason="tests/load/test_passes.py has it for TensorFlow")
def test_an_epoch_of_one_step_that_keras_could_use_up_is_named(data, caplog):
    """The batch with which Keras builds a model is such an epoch's last one."""
    with caplog.at_level("WARNING", logger="tfprep.load"):
        for batch_size, repeated, named in ((8, False, 0), (50, True, 0), (50, False, 1)):
            loader = data.keras_loader("train", batch_size, **OPTIONS)
            loader = loader.repeat() if repeated else loader
            for _ in range(2):
                loader[0]
            assert len(caplog.messages) == named
    assert "has only 1 step. " in caplog.text


def test_a_run_continues_at_its_step(data, make_model):
    """Two epochs and half of another, then a new loader and the rest: the same training as without the break."""
    whole = make_model()
    whole.fit(data.keras_loader("train", 8, **OPTIONS), shuffle=False, epochs=5, verbose=0)
    model, loader = make_model(), data.keras_loader("train", 8, **OPTIONS)
    model.fit(loader.repeat(), shuffle=False, steps_per_epoch=5, epochs=3, verbose=0)
    state = loader.state_dict(step=15)
    continued = data.keras_loader("train", 8, start_step=state, **OPTIONS)
    model.fit(continued.repeat(), shuffle=False, steps_per_epoch=5, epochs=3, verbose=0)
    _same_weights(model, whole)


def test_validation_sees_each_sample_once(data, make_model):
    val = data.keras_loader("val", 4, inputs="image", targets="label", training=False)
    assert len(val) == 3
    model = make_model()
    history = model.fit(
        data.keras_loader("train", 8, **OPTIONS), shuffle=False, epochs=2, verbose=0, validation_data=val
    ).history
    images, labels = (np.concatenate(part) for part in zip(*val, strict=True))
    assert len(images) == 11
    logits = keras.ops.convert_to_numpy(model(images.astype("float32")))
    accuracy = float((logits.argmax(-1) == labels).mean())
    assert history["val_accuracy"][-1] == pytest.approx(accuracy)
    assert model.evaluate(val, verbose=0, return_dict=True)["accuracy"] == pytest.approx(accuracy)
    np.testing.assert_allclose(model.predict(val, verbose=0), logits, rtol=1e-4, atol=1e-5)


def test_inputs_by_name(data):
    inputs = {"a": keras.Input([24, 32, 3], name="a"), "b": keras.Input([24, 32, 3], name="b")}
    pooled = [keras.layers.GlobalAveragePooling2D()(one) for one in inputs.values()]
    model = keras.Model(inputs, keras.layers.Dense(3)(keras.layers.Concatenate()(pooled)))
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    loader = data.keras_loader("train", 8, **{**OPTIONS, "inputs": {"a": "image", "b": "lossless"}})
    model.fit(loader, shuffle=False, verbose=0)
    assert loader.stats["batches"] >= 6


@pytest.mark.skipif(
    BACKEND == "tensorflow", reason="TensorFlow has tensors of text, and of samples that differ in shape"
)
def test_what_the_backend_has_no_arrays_for_is_refused(data, make_dataset):
    with pytest.raises(
        LoaderError, match=r"'inputs' is text, and Keras on \w+ takes numbers only; name what the model takes"
    ):
        data.keras_loader("train", 8, inputs="caption", targets="label")

    def other_sizes(rng, number):
        return {"image": np.zeros([8 + number, 8, 3], np.uint8), "label": 0}

    made = make_dataset(samples={"train": 4}, shards=1, fields=("image", "label"), make=other_sizes)
    import tfprep

    with pytest.raises(LoaderError, match=r"'inputs' differ in shape, \(None, 8, 3\), .* for images, pad="):
        tfprep.open(made.path).keras_loader("train", 2, inputs="image", targets="label")
    sized = tfprep.open(made.path).keras_loader(
        "train", 2, inputs="image", targets="label", geometry=[augment.Resize(8, 8)]
    )
    assert next(iter(sized))[0].shape == (2, 8, 8, 3)


@pytest.mark.skipif(BACKEND == "tensorflow", reason="tf.data refuses it")
def test_another_order_than_that_of_the_loader_is_refused(data, make_model):
    """`fit` asks for batches in a random order unless it is told not to."""
    loader = data.keras_loader("train", 8, **OPTIONS)
    with pytest.raises(LoaderError, match=r"Keras asks for batch \d of a pass, and \d comes next: .*shuffle=False"):
        make_model().fit(loader, epochs=9, verbose=0)
    val = data.keras_loader("val", 4, inputs="image", targets="label", training=False, start_step=1)
    with pytest.raises(LoaderError, match="cannot continue one at step 1"):
        make_model().evaluate(val, verbose=0)
    with pytest.raises(ValueError, match="`y`"):
        make_model().fit(loader, y=np.zeros(3), shuffle=False, verbose=0)


CLASS_WEIGHTS = {"class_weight": {0: 5.0, 1: 1.0, 2: 0.5}}


@pytest.mark.parametrize(("options", "fit"), [({}, CLASS_WEIGHTS), ({"sample_weight": "weight"}, {})])
def test_weights_of_classes_and_of_samples(data, make_model, options, fit):
    one, other = make_model(), make_model()
    one.fit(data.keras_loader("train", 8, **OPTIONS, **options), shuffle=False, verbose=0, **fit)
    for images, labels, *weights in _batches(data.numpy_loader("train", 8, **OPTIONS, **options), 6):
        other.train_on_batch(images, labels, *weights, **fit)
    _same_weights(one, other)
    plain = _trained_by_hand(make_model(), _batches(data.numpy_loader("train", 8, **OPTIONS), 6))
    assert not np.allclose(one.get_weights()[1], plain.get_weights()[1], atol=1e-3)


def test_batches_of_epochs_are_those_of_their_step(data):
    epochs = data.keras_loader("train", 8, **OPTIONS).epochs(2)
    expected = data.numpy_loader("train", 8, **OPTIONS)
    for step in (9, 2):
        np.testing.assert_array_equal(np.asarray(epochs[step][0]), expected[step][0])


SCRIPT = """
import sys
import keras, tfprep
data = tfprep.open(sys.argv[1])
model = keras.Sequential([keras.Input([24, 32, 3]), keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(3)])
model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
train = data.keras_loader("train", 8, inputs="image", targets="label")
val = data.keras_loader("val", 4, inputs="image", targets="label", training=False)
monitor = tfprep.train.InputMonitor(sys.argv[2])
model.fit(train, epochs=2, validation_data=val, shuffle=False, verbose=0, callbacks=[monitor])
model.predict(val, verbose=0)
print(monitor.summary)
print("tensorflow" in sys.modules)
"""


@pytest.mark.skipif(BACKEND == "tensorflow", reason="TensorFlow is the backend")
def test_nothing_imports_tensorflow_nor_warns(photos, tmp_path):
    command = [sys.executable, "-W", "error::UserWarning", "-c", SCRIPT, str(photos.path), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200, env=dict(os.environ))
    assert done.returncode == 0, done.stderr[-3000:]
    first, *_, last = done.stdout.splitlines()
    assert (first.startswith("InputMonitor: 11 batches in "), last) == (True, "False"), done.stdout


@pytest.mark.skipif(BACKEND == "torch", reason="PyTorch's fit takes one step at a time")
def test_the_state_counts_the_steps_that_were_trained(data, make_model, tmp_path):
    """The last execution of an epoch of 6 steps asks for 4 and finds 2."""
    from tfprep.load.keras_loader import SaveLoaderState

    model, loader = make_model(), data.keras_loader("train", 8, **OPTIONS)
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), steps_per_execution=4)
    save = SaveLoaderState(loader, tmp_path / "state")
    model.fit(loader, shuffle=False, epochs=2, verbose=0, callbacks=[save])
    assert json.loads((tmp_path / "state").read_text())["step"] == 12 == int(model.optimizer.iterations.value)


@pytest.mark.skipif(BACKEND == "tensorflow", reason="there it is the loader of TensorFlow")
def test_a_batch_without_samples_is_an_error(data, make_model, tmp_path):
    """Its mean loss would be NaN."""
    root = shutil.copytree(data.path, tmp_path / "damaged")
    for path in root.glob("*val*.tfrecord-*"):
        if path.suffix != ".idx":
            path.write_bytes(bytes(byte ^ 1 for byte in path.read_bytes()))
    val = tfprep.open(root).keras_loader("val", 4, inputs="image", targets="label", on_bad="skip")
    with pytest.raises(LoaderError, match="all samples of batch 0 are damaged"):
        make_model().evaluate(val, verbose=0)


@pytest.mark.skipif(BACKEND == "tensorflow", reason="tests/train/test_memory.py has it for TensorFlow")
def test_a_memory_report_takes_no_batch(data):
    """The one of this epoch would be its last."""
    from tfprep.train import memory_report

    loader = data.keras_loader("train", 50, **OPTIONS)
    model = keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(2)])
    model.compile("sgd", "mse")
    shape = next(iter(data.numpy_loader("train", 50, **OPTIONS)))[0].shape
    assert memory_report(model, 50, data=loader).input_buffers == 2 * np.prod(shape)
    assert loader.next_step == 0
