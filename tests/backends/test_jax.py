"""JAX: batches on the devices ahead of their use, and processes that each read their part."""

import json
import os
import socket
import subprocess
import sys
import threading
import time
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

import tfprep
from tfprep.errors import LoaderError
from tfprep.load.jax_loader import in_types_of_jax

jax = pytest.importorskip("jax")

OPTIONS = {"seed": 3, "fields": ["image", "label", "key"], "training": True}


def test_the_batches_of_the_numpy_loader_which_stay_as_they_are(data):
    """All batches of three epochs are kept on the device, while the loader uses its memory again for later ones."""
    loader = data.jax_loader("train", 8, **OPTIONS)
    kept = [batch for _ in range(3) for batch in loader]
    arrays = data.numpy_loader("train", 8, **OPTIONS)
    expected = [{name: np.array(value) for name, value in batch.items()} for _ in range(3) for batch in arrays]
    assert len(kept) == len(expected) == 3 * len(loader)
    for batch, same in zip(kept, expected, strict=True):
        assert isinstance(batch["image"], jax.Array)
        np.testing.assert_array_equal(np.asarray(batch["image"]), same["image"])
        np.testing.assert_array_equal(np.asarray(batch["label"]), same["label"])
        assert batch["key"].tolist() == same["key"].tolist()  # text stays in NumPy


@pytest.mark.parametrize("kind", ["jax_loader", "keras_loader"])
@pytest.mark.parametrize(
    ("label", "fits"), [(-(2**31), True), (2**31 - 1, True), (2**31, False), (-(2**31) - 1, False)]
)
def test_an_integer_that_jax_would_cut_off_is_an_error(make_dataset, kind, label, fits):
    made = make_dataset(samples={"train": 4}, shards=1, fields=("label",), make=lambda rng, number: {"label": label})
    loader = getattr(tfprep.open(made.path), kind)(
        "train", 4, **({"inputs": "label"} if kind == "keras_loader" else {})
    )
    if not fits:
        with pytest.raises(LoaderError, match=rf"{label}, which JAX would cut off to int32; jax.config.update"):
            loader[0]
        return
    batch = loader[0]["label"] if kind == "jax_loader" else loader[0][0]
    assert np.asarray(batch).tolist() == [label] * 4


def test_a_float_that_jax_would_make_infinite_is_an_error():
    numbers = np.array([1e300, np.inf, np.nan])
    with pytest.raises(LoaderError, match=r"x holds 1e\+300, which JAX would cut off to float32"):
        in_types_of_jax(numbers, "x")
    assert np.isinf(in_types_of_jax(numbers[1:])).tolist() == [True, False]


@pytest.mark.parametrize("ahead", [0, 2])
def test_the_number_of_batches_that_are_taken_ahead(data, ahead):
    loader = data.jax_loader("train", 8, ahead=ahead, **OPTIONS)
    batches = iter(loader)
    for taken in (1, 2, 3):
        next(batches)
        assert (loader.stats["batches"], loader.state_dict()["step"]) == (taken + ahead, taken)
    assert len(list(batches)) == 3
    with pytest.raises(LoaderError, match="ahead is a whole number from 0"):
        data.jax_loader("train", 8, ahead=-1, **OPTIONS)


@pytest.mark.parametrize("taken", [0, 4, 5, 6, 8])
def test_state_dict_counts_batches_that_were_delivered(data, taken):
    """Two more are on the way, and six are an epoch."""
    loader = data.jax_loader("train", 8, **OPTIONS)
    expected = [batch["key"].tolist() for batch in data.numpy_loader("train", 8, **OPTIONS).repeat(4)]
    for number in range(1 + taken // 6):
        for _ in islice(iter(loader), min(6, taken - 6 * number)):
            pass
    assert loader.state_dict()["step"] == taken
    resumed = data.jax_loader("train", 8, **OPTIONS)
    resumed.load_state_dict(loader.state_dict())
    assert resumed.state_dict()["step"] == taken
    assert [batch["key"].tolist() for batch in resumed] == expected[taken : taken + 6 - taken % 6]
    loader.set_epoch(1)
    assert loader.state_dict()["step"] == 6
    stream = iter(loader.repeat())
    assert [next(stream)["key"].tolist() for _ in range(5)] == expected[6:11]
    assert loader.state_dict()["step"] == 11


def test_a_sharding_divides_each_batch(data):
    mesh = jax.make_mesh((jax.device_count(),), ("batch",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("batch"))
    (batch, *_) = data.jax_loader("train", 8, sharding=sharding, **OPTIONS)
    assert batch["image"].sharding == sharding
    np.testing.assert_array_equal(batch["label"], next(iter(data.numpy_loader("train", 8, **OPTIONS)))["label"])


def test_a_sharding_that_cannot_divide_the_batches_is_refused(data):
    """At once, also where only the last batch of an evaluation does not fit."""
    mesh = jax.sharding.AbstractMesh((4,), ("batch",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("batch"))
    with pytest.raises(LoaderError, match="the sharding cannot divide a batch of 6 samples"):
        data.jax_loader("train", 6, sharding=sharding, **OPTIONS)
    with pytest.raises(LoaderError, match="the sharding cannot divide a batch of 3 samples"):
        data.jax_loader("val", 4, sharding=sharding, fields=["label"], training=False)
    mesh = jax.make_mesh((1, 1), ("batch", "width"))
    two_axes = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("batch", "width"))
    for wrong in (two_axes, "batch", jax.devices()[0]):  # a label has one axis
        with pytest.raises(LoaderError, match="the sharding cannot divide a batch of 4 samples"):
            data.jax_loader("train", 4, sharding=wrong, **OPTIONS)
    assert len(next(iter(data.jax_loader("train", 4, sharding=two_axes, fields=["key"])))["key"]) == 4


def test_threads_share_a_pass(data, monkeypatch):
    errors, taken, loader = [], [], data.jax_loader("train", 2, fields=["key"])
    expected = [loader[step]["key"].tolist() for step in range(len(loader))]
    monkeypatch.setattr(threading, "excepthook", errors.append)
    count = loader.progress.delivered
    monkeypatch.setattr(
        loader.progress, "delivered", lambda *step: (time.sleep(0.001), count(*step))
    )  # others come in between
    batches = iter(loader)
    threads = [threading.Thread(target=lambda: taken.extend(batches)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert sorted(batch["key"].tolist() for batch in taken) == sorted(expected)


SCRIPT = Path(__file__).parents[1] / "first_hour" / "two_hosts_jax.py"


def _run_two(photos):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    command = [sys.executable, "-W", "ignore", str(SCRIPT), address]
    environment = {**os.environ, "KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(SCRIPT.parents[2])}
    processes = [
        subprocess.Popen(
            [*command, str(number), str(photos.path)], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for number in range(2)
    ]
    try:
        outputs = [process.communicate(timeout=200) for process in processes]
    finally:
        for process in processes:
            process.kill()
    for process, (_, errors) in zip(processes, outputs, strict=True):
        assert process.returncode == 0, errors.decode()[-3000:]
    return [json.loads(output.splitlines()[-1]) for output, _ in outputs]


def test_two_processes_read_each_sample_once_and_train_as_one(data, photos, make_model):
    one, two = _run_two(photos)
    assert one["processes"] == two["processes"] == 2
    batches = list(data.numpy_loader("train", 10, seed=3, fields=["key", "label"]))
    # Each batch of one process is the two parts after one another, and its labels add up to the same.
    halves = zip(one["jax_loader"]["keys"], two["jax_loader"]["keys"], strict=True)
    assert [first + second for first, second in halves] == [batch["key"].tolist() for batch in batches]
    assert one["jax_loader"]["sums"] == two["jax_loader"]["sums"] == [int(batch["label"].sum()) for batch in batches]
    for report in (one, two):
        assert "make the distribution with auto_shard_dataset=False" in report["refused"]
        assert "a batch of 9 samples has no 2 equal parts" in report["uneven"]
    # Half of the samples each, and the weights of one process that reads all.
    assert one["keras"]["samples"] >= 50
    assert one["keras"]["bias"] == two["keras"]["bias"]
    if os.environ.get("KERAS_BACKEND") == "jax":
        keras = pytest.importorskip("keras")
        single = make_model()
        single.compile(keras.optimizers.SGD(0.01), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        single.fit(
            data.keras_loader("train", 10, seed=3, inputs="image", targets="label"), epochs=2, shuffle=False, verbose=0
        )
        np.testing.assert_allclose(one["keras"]["bias"], single.get_weights()[1], rtol=1e-4, atol=1e-6)
