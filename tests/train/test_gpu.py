"""GPU options against a TensorFlow whose device calls are recorded: what is called, in which order, and what is
refused."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from tfprep.errors import TrainError


@pytest.fixture
def calls(tf: Any, monkeypatch: Any) -> list[Any]:
    """Two GPUs, nothing initialised; the calls that configure them are written down in order."""
    from tfprep.train import gpu

    made: list[Any] = []
    gpus = [SimpleNamespace(name=f"/physical_device:GPU:{number}") for number in range(2)]
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: gpus if kind == "GPU" else [])
    monkeypatch.setattr(gpu, "_require_in_time", lambda: None)
    monkeypatch.setattr(
        tf.config, "set_visible_devices", lambda chosen, _: made.append(("visible", [g.name[-1] for g in chosen]))
    )
    monkeypatch.setattr(
        tf.config.experimental, "set_memory_growth", lambda g, on: made.append(("growth", g.name[-1], on))
    )
    monkeypatch.setattr(
        tf.config,
        "set_logical_device_configuration",
        lambda g, limited: made.append(("limit", g.name[-1], limited[0].memory_limit)),
    )
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("TF_GPU_ALLOCATOR", "before")
    monkeypatch.delenv("TF_GPU_ALLOCATOR")
    return made


CASES: dict[str, tuple[dict[str, Any], list[Any], str]] = {
    "growth": ({"growth": True}, [("growth", "0", True), ("growth", "1", True)], "GPU:0 (grows as needed), GPU:1 (grows"),
    "limit": ({"visible": [1], "memory_limit_mb": 4096}, [("visible", ["1"]), ("limit", "1", 4096)], "GPU:1 (up to 4,096 MB)"),
    "none_visible": ({"visible": []}, [("visible", [])], "no GPU"),
    "nothing": ({}, [], "GPU:0 (all of it), GPU:1 (all of it); allocator bfc"),
    "allocator": ({"allocator": "cuda_malloc_async"}, [], "allocator cuda_malloc_async"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_what_is_asked_for_takes_effect(calls: list[Any], capsys: Any, case: str) -> None:
    from tfprep.train import configure_gpu

    options, expected, printed = CASES[case]
    configure_gpu(**options)
    assert calls == expected
    assert printed in capsys.readouterr().out
    assert os.environ.get("TF_GPU_ALLOCATOR") == options.get("allocator")


def test_a_fraction_is_of_the_memory_that_the_driver_tells(calls: list[Any], monkeypatch: Any) -> None:
    """TensorFlow's GPU 1 is the second that CUDA_VISIBLE_DEVICES leaves: number 5 to the driver."""
    from tfprep.train import configure_gpu, gpu

    asked = []

    def run(command: list[str], **_: Any) -> Any:
        asked.append(command[-1])
        return SimpleNamespace(stdout="16384\n")

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    monkeypatch.setattr(gpu.subprocess, "run", run)
    assert configure_gpu([1], fraction=0.25).limits_mb == (4096,)
    assert asked == ["5"]
    assert calls == [("visible", ["1"]), ("limit", "1", 4096)]


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "growth_and_limit": ({"growth": True, "memory_limit_mb": 100}, "growth and a memory limit exclude each other"),
    "growth_and_fraction": ({"growth": True, "fraction": 0.5}, "growth and a memory limit exclude each other"),
    "two_limits": ({"memory_limit_mb": 100, "fraction": 0.5}, "say the same thing twice"),
    "fraction": ({"fraction": 1.5}, "above 0 and up to 1, got 1.5"),
    "limit": ({"memory_limit_mb": 0}, "at least 1, got 0"),
    "allocator": ({"allocator": "tcmalloc"}, "got 'tcmalloc'"),
    "number": ({"visible": [2]}, r"from 0 to 1, got \[2\]"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_contradictions_are_refused(calls: list[Any], case: str) -> None:
    from tfprep.train import configure_gpu

    options, message = REFUSED[case]
    with pytest.raises(TrainError, match=message):
        configure_gpu(**options)
    assert calls == []


def test_too_late_is_said(tf: Any, monkeypatch: Any) -> None:
    from tfprep.train import configure_gpu

    tf.zeros([1])  # initialises the devices
    monkeypatch.setattr(
        tf.config, "list_physical_devices", lambda kind: [SimpleNamespace(name="/physical_device:GPU:0")]
    )
    with pytest.raises(TrainError, match="too late: TensorFlow has initialised its devices already"):
        configure_gpu(growth=True)


def test_without_a_gpu_nothing_happens_and_that_is_said(tf: Any, capsys: Any) -> None:
    from tfprep.train import configure_gpu

    if tf.config.list_physical_devices("GPU"):
        pytest.skip("this machine has a GPU")
    settings = configure_gpu([3], memory_limit_mb=100)
    assert settings.gpus == ()
    assert "no GPU: nothing to configure, training runs on the CPU" in capsys.readouterr().out


def test_importing_the_package_imports_no_tensorflow() -> None:
    code = "import tfprep.train, sys; assert 'tensorflow' not in sys.modules and 'keras' not in sys.modules; dir(tfprep.train)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_every_public_name_is_there(tf: Any) -> None:
    import tfprep.train

    for name in tfprep.train.__all__:
        assert getattr(tfprep.train, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        tfprep.train.Nothing  # noqa: B018
