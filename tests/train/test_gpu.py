"""GPU options, compared with TensorFlow's bookkeeping of devices. Two GPUs are simulated, and the tests read the `GPUOptions`
that TensorFlow would pass to its runtime.
"""

import pytest

from tfprep import train
from tfprep.errors import TrainError

VARIABLES = ("CUDA_VISIBLE_DEVICES", "TF_GPU_ALLOCATOR", "TF_FORCE_GPU_ALLOW_GROWTH")


@pytest.fixture
def machine(tf, monkeypatch):
    """TensorFlow's bookkeeping of devices, not initialized, on a machine with two GPUs."""
    from tensorflow.python.eager import context

    devices = [b"/physical_device:CPU:0", b"/physical_device:GPU:0", b"/physical_device:GPU:1"]
    monkeypatch.setattr(context.pywrap_tfe, "TF_ListPhysicalDevices", lambda: devices)
    fresh = context.Context()
    monkeypatch.setattr(context, "_context", fresh)
    for name in VARIABLES:  # Set first, so that the value that the call sets is undone after the test.
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    return fresh


CASES = {
    "growth": ({"growth": True}, ("0,1", True, []), "GPU:0, GPU:1: grows as needed"),
    "limit": ({"visible": [1], "memory_limit_mb": 4096}, ("1", False, [[4096]]), "GPU:1: up to 4,096 MB"),
    "order": ({"visible": [1, 0], "growth": True}, ("0,1", True, []), "GPU:0, GPU:1: grows"),
    "none_visible": ({"visible": []}, ("", False, []), "no GPU"),
    "nothing": ({}, ("0,1", False, []), "GPU:0, GPU:1: all of it"),
}


def _told(machine):
    options = machine._compute_gpu_options()
    split = [list(device.memory_limit_mb) for device in options.experimental.virtual_devices]
    return options.visible_device_list, options.allow_growth, split


@pytest.mark.parametrize("case", CASES)
def test_options_take_effect(machine, capsys, case):
    options, expected, printed = CASES[case]
    train.configure_gpu(**options)
    assert _told(machine) == expected
    assert printed in capsys.readouterr().out


REFUSED = {
    "growth_and_limit": ({"growth": True, "memory_limit_mb": 100}, "growth and a memory limit exclude each other"),
    "number": ({"visible": [2]}, r"from 0 to 1, got \[2\]"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_contradictions_are_refused(machine, case):
    options, message = REFUSED[case]
    with pytest.raises(TrainError, match=message):
        train.configure_gpu(**options)
    assert _told(machine) == ("0,1", False, [])


def test_a_second_call_that_contradicts_the_first_is_refused(machine):
    train.configure_gpu(memory_limit_mb=100)
    with pytest.raises(TrainError, match="TensorFlow refuses: Cannot set memory growth"):
        train.configure_gpu(growth=True)


def test_a_late_call_raises(machine, monkeypatch):
    monkeypatch.setattr(machine, "_context_handle", object())
    with pytest.raises(TrainError, match=r"TensorFlow refuses: .* initialized"):
        train.configure_gpu(memory_limit_mb=100)
    monkeypatch.setattr(machine, "_context_handle", None)


def test_without_a_gpu_nothing_changes_and_a_message_says_so(tf, capsys):
    if tf.config.list_physical_devices("GPU"):
        pytest.skip("this machine has a GPU")
    assert train.configure_gpu([3], memory_limit_mb=100) == ()
    assert "no GPU: nothing to configure, training runs on the CPU" in capsys.readouterr().out
