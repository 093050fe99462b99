"""The dtype policy for each device, and a dataset in its dtype."""

from types import SimpleNamespace
from typing import Any

import pytest

DEVICES: dict[str, tuple[list[tuple[int, int]], set[str], str, str]] = {
    "ampere": ([(8, 0)], set(), "mixed_bfloat16", "8.0"),
    "volta": ([(7, 0), (8, 6)], set(), "mixed_float16", "7.0"),
    "pascal": ([(6, 1)], {"avx512_bf16"}, "float32", "not faster"),
    "new_cpu": ([], {"avx2", "amx_bf16"}, "mixed_bfloat16", "amx_bf16"),
    "slow_cpu": ([], {"avx2", "avx512_bf16"}, "float32", "depthwise convolution 0.91, so half precision may be slower"),
    "old_cpu": ([], {"avx2"}, "float32", "no instructions for bfloat16"),
}


@pytest.mark.parametrize("device", DEVICES)
def test_the_policy_fits_the_device(tf: Any, monkeypatch: Any, device: str) -> None:
    import keras

    from tfprep.train import mixed_precision, precision

    capabilities, flags, policy, why = DEVICES[device]
    gpus = [SimpleNamespace(capability=capability) for capability in capabilities]
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: gpus if kind == "GPU" else [])
    details = lambda gpu: {"compute_capability": gpu.capability}  # noqa: E731
    monkeypatch.setattr(tf.config.experimental, "get_device_details", details)
    monkeypatch.setattr(precision, "_cpu_flags", lambda: frozenset(flags))
    speedups = {"convolution": 1.6, "depthwise convolution": 0.91 if device == "slow_cpu" else 1.2}
    monkeypatch.setattr(precision, "_cpu_speedups", lambda: speedups)
    chosen = mixed_precision()
    assert chosen.policy == policy == keras.config.dtype_policy().name
    assert chosen.dtype == policy.removeprefix("mixed_")
    assert why in chosen.why


def test_both_kinds_of_layers_are_measured(tf: Any) -> None:
    from tfprep.train import precision

    speedups = precision._cpu_speedups()
    assert set(speedups) == {"convolution", "depthwise convolution"}
    assert all(0.001 < speedup < 1000 for speedup in speedups.values())


def test_cast_changes_only_float_inputs(tf: Any) -> None:
    from tfprep.train import mixed_precision

    chosen = mixed_precision("mixed_bfloat16")
    x = {"image": tf.zeros([2, 2, 3], tf.uint8), "map": tf.zeros([2, 2])}
    dataset = chosen.cast(tf.data.Dataset.from_tensors((x, tf.zeros([4]))))
    spec, target = dataset.element_spec
    assert (spec["image"].dtype, spec["map"].dtype, target.dtype) == (tf.uint8, tf.bfloat16, tf.float32)
    same = tf.data.Dataset.from_tensors(tf.zeros([4]))
    assert mixed_precision("float32").cast(same) is same
