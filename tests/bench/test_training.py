"""A training beside the loader: a step that sleeps, a Keras model and its `fit`, and wrong names of models."""

import json

import pytest

from tests.commands import status_of
from tfprep.bench.training import loader_candidate, train_with_step

MODELS = """
import keras
import tensorflow as tf

def small():
    model = keras.Sequential([keras.Input((48, 48, 3)), keras.layers.Rescaling(1 / 255),
                              keras.layers.Conv2D(4, 3, strides=4), keras.layers.GlobalAveragePooling2D(),
                              keras.layers.Dense(2)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model

def another_shape():
    model = keras.Sequential([keras.Input((32, 32, 3)), keras.layers.Flatten(), keras.layers.Dense(2)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model

def not_compiled():
    return keras.Sequential([keras.Input((48, 48, 3)), keras.layers.Flatten()])

def mirrored():
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        return small()

def nothing():
    small()

def raises():
    raise RuntimeError("no weights here")

number = 3
"""
QUICK = ["--rounds", "1", "--seconds", "0.2", "--batch-size", "8", "--threads", "1", "--inputs", "image"]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "models.py"
    path.write_text(MODELS)
    return path


def run(capfd, *arguments):
    return status_of("bench", *arguments), *capfd.readouterr()


@pytest.mark.parametrize(("read_s", "status"), [(0.0, 0), (0.01, 4)])
def test_a_model_is_fitted(jpeg_data, models, capfd, slow_reads, read_s, status):
    """A batch of eight slow reads takes 0.08 s, and a step some milliseconds."""
    slow_reads(read_s)
    limit = "50%" if status else "100%"
    given = [*QUICK, "--cache", "none", "--targets", "label", "--model", f"{models}:small", "--fail-if-waiting", limit]
    found, text, _ = run(capfd, str(jpeg_data.path), *given, "--json")
    assert found == status
    found = json.loads(text)["model"]
    assert found["batches"] >= 10
    assert found["window_s"] >= 1.0, "as long as asked for, without the traces and the start of the loader"
    assert 0 <= found["p50_ms"] <= found["p99_ms"]
    if status:
        assert found["share"] > 0.5
        assert found["images_per_s"] < 8 / 0.08
        assert "reading limits" in found["limit"]


@pytest.mark.parametrize(
    ("step_s", "read_s", "cause", "text"),
    [(0.15, 0.0, "step", "the step limits"), (0.03, 0.03, "read", "reading limits")],
)
def test_a_step_beside_the_loader(raw_data, slow_reads, step_s, read_s, cause, text):
    """One thread and 4 records per batch, each read in `read_s` seconds."""
    slow_reads(read_s)
    loader = loader_candidate(raw_data, "train", 4, threads=1, cache=False)
    found = train_with_step(loader, step_s, seconds=2.0, tolerated=0.5)  # a busy machine hands a batch over late
    assert found.cause == cause
    assert text in found.limit
    assert found.waits.batches >= 10
    assert found.waits.share == pytest.approx(max(0.0, 1 - step_s / max(step_s, 4 * read_s)), abs=0.45)


@pytest.mark.parametrize(
    ("name", "targets", "message"),
    [
        ("another_shape", "label", "int64 [8]): Input 0 with name"),
        ("small", None, "choose them with --inputs and --targets"),
        ("not_compiled", "label", "the model is not compiled; call model.compile"),
        ("mirrored", "label", "waits are not measured under a distribution strategy"),
        ("nothing", "label", "returned nothing (None); it should return a compiled Keras model (is `return` missing?)"),
        ("raises", "label", "the function raised RuntimeError: no weights here"),
        ("number", "label", "not a int"),
        ("missing", "label", "has no 'missing'"),
    ],
)
def test_functions_that_return_no_model(jpeg_data, models, capfd, name, targets, message):
    given = [*QUICK, *(["--targets", targets] if targets else []), "--model", f"{models}:{name}"]
    status, out, err = run(capfd, str(jpeg_data.path), *given)
    assert status == 1
    assert message in err
    assert "Traceback" not in err
    assert out == ""
