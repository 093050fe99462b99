"""`--model`: a Keras model and its `fit`, the evaluation of the steps' times, and wrong names of models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tfprep.bench.model import FitTimes, compared, ready_model
from tfprep.cli import main
from tfprep.errors import LoaderError
from tfprep.load import Data

MODELS = """
import keras

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

def nothing():
    small()

def raises():
    raise RuntimeError("no weights here")

def another():
    return "a model"

number = 3
"""
QUICK = ["--rounds", "1", "--seconds", "0.2", "--batch-size", "8", "--threads", "1", "--inputs", "image"]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "models.py"
    path.write_text(MODELS)
    return path


def run(capfd: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["bench", *arguments])
    out, err = capfd.readouterr()
    return int(ended.value.code or 0), out, err


def test_a_model_is_fitted(jpeg_data: Data, models: Path, capfd: pytest.CaptureFixture[str]) -> None:
    given = [*QUICK, "--targets", "label", "--model", f"{models}:small"]
    status, out, _ = run(capfd, str(jpeg_data.path), *given, "--json")
    assert status == 0
    found = json.loads(out)["model"]
    assert 0 < found["step_s"] < 5
    assert found["step_with_loader_s"] > 0
    assert 0 <= found["share"]["least"] <= found["share"]["median"] <= found["share"]["greatest"] < 1
    assert 0 <= found["wait_p50_s"] <= found["wait_p99_s"]


def test_the_text_and_json_of_a_fit(jpeg_data: Data, models: Path, capfd: pytest.CaptureFixture[str]) -> None:
    given = [*QUICK, "--targets", "label", "--model", f"{models}:small", "--fail-if-waiting", "100%"]
    status, out, _ = run(capfd, str(jpeg_data.path), *given)
    assert status == 0
    for part in (
        "compared with your model: a step takes",
        "input costs",
        "wait for a batch: ",
        "at the 99th percentile",
    ):
        assert part in out


@pytest.mark.parametrize(
    ("name", "targets", "message"),
    [
        ("another_shape", "label", "elements of the loader, (uint8 [8, 48, 48, 3], int64 [8])"),
        ("small", None, "choose them with --inputs and --targets"),
        ("not_compiled", "label", "the model is not compiled; call model.compile"),
        ("nothing", "label", "returned nothing (None); it should return a compiled Keras model (is `return` missing?)"),
        ("raises", "label", "the function raised RuntimeError: no weights here"),
        ("another", "label", "returned a str"),
        ("number", "label", "not a int"),
        ("missing", "label", "has no 'missing'"),
    ],
)
def test_functions_that_return_no_model(
    jpeg_data: Data, models: Path, capfd: pytest.CaptureFixture[str], name: str, targets: str | None, message: str
) -> None:
    given = [*QUICK, *(["--targets", targets] if targets else []), "--model", f"{models}:{name}"]
    status, out, err = run(capfd, str(jpeg_data.path), *given)
    assert status == 1
    assert message in err
    assert "Traceback" not in err
    assert out == ""


@pytest.mark.parametrize("name", ["no.such.module:model", "missing.py:model"])
def test_modules_that_cannot_be_imported(jpeg_data: Data, capfd: pytest.CaptureFixture[str], name: str) -> None:
    status, _, err = run(capfd, str(jpeg_data.path), *QUICK, "--model", name)
    assert status == 1
    assert "no module" in err or "no such file" in err


def test_additional_time_of_steps_counts_as_waits() -> None:
    kept, slow = FitTimes((0.01,) * 20, 0.1), FitTimes((0.01,) * 18 + (0.05, 0.21), 0.1)
    found = compared([(kept, slow)], 0.004, 0.001, 2)
    assert found.wait_p50_s == pytest.approx(0)
    assert 0.04 < found.wait_p99_s <= 0.2
    assert found.step_with_loader_s == pytest.approx(0.022)
    assert found.share.median == pytest.approx(1 - 0.01 / 0.022)
    assert found.predicted == 0


@pytest.mark.parametrize(
    ("batch_s", "batch_cpu_s", "predicted"),
    [(0.005, 0.001, 0.0), (0.04, 0.001, 0.75), (0.001, 0.07, 0.75)],
)
def test_the_prediction_uses_rate_and_cpu_time(batch_s: float, batch_cpu_s: float, predicted: float) -> None:
    """A step of 10 ms that takes 10 ms of CPU, on two cores, waits for the rate or for the CPU."""
    kept = FitTimes((0.01,) * 10, 0.1)
    assert compared([(kept, kept)], batch_s, batch_cpu_s, 2).predicted == pytest.approx(predicted)


def test_the_loader_is_closed_if_the_model_fails(jpeg_data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    from tfprep.load.tensorflow.loader import Loader

    closed: list[int] = []
    close = Loader.close
    monkeypatch.setattr(Loader, "close", lambda self: (closed.append(1), close(self))[1])

    def model() -> Any:
        import keras

        made = keras.Sequential([keras.Input((9,)), keras.layers.Dense(1)])
        made.compile("sgd", "mse")
        return made

    with pytest.raises(LoaderError, match="does not accept the elements"):
        ready_model(model, jpeg_data, "train", 8, inputs="image", targets="label")
    assert closed
