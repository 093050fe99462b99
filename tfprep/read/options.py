"""The options of a loader, the same for TensorFlow, NumPy and PyTorch: checked once, in one place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tfprep.errors import LoaderError
from tfprep.read.order import OrderName
from tfprep.read.outputs import Wanted
from tfprep.read.schedule import Hosts, Remainder
from tfprep.read.variants import VariantChoice


@dataclass(frozen=True)
class LoaderOptions:
    """What a loader delivers, in which order, and how.

    - `batch_size`: samples a step, over all hosts together.
    - `training`: True repeats for ever, another order and another variant each epoch; False reads once, in the order on disk,
      without augmentation, with the last, smaller batch.
    - `seed`: of the order and the choice of variants.
    - `fields`: the fields of an element, which is a dict; None: all that are stored. Or `inputs` and `targets`: an element
      is `x` or `(x, y)` (see `tfprep.read.outputs`).
    - `order`: "global", "block" or "sequential"; `block` in samples, `window` in blocks. By default "global" in training.
    - `variants`: "rotate", "random", "all" or a number. By default "rotate" in training, else 0.
    - `remainder`: "wrap", "keep" or "drop", where `batch_size` does not divide the samples: by default "wrap" in training,
      else "keep".
    - `start_step`: begin as an uninterrupted run would go on from this step.
    - `hosts`: (index, count), or a `tf.distribute.InputContext`: this host's part of every batch.
    - `threads`: that read and decode; 0: one a CPU that this process may use. `ahead`: batches kept ready; None: as many as
      make sense.
    - `timeout_s`: without a batch for so long, StalledPipelineError.
    """

    batch_size: int = 32
    training: bool = True
    seed: int = 0
    fields: Sequence[str] | None = None
    inputs: Wanted | None = None
    targets: Wanted | None = None
    order: OrderName | None = None
    block: int = 64
    window: int = 16
    variants: VariantChoice | None = None
    remainder: Remainder | None = None
    start_step: int = 0
    hosts: Any = None
    threads: int = 0
    ahead: int | None = None
    timeout_s: float = 300.0
    verify: Literal["always", "first_epoch", "never"] = "first_epoch"

    def __post_init__(self) -> None:
        _whole(self, "batch_size", 1)
        _whole(self, "start_step", 0)
        _whole(self, "threads", 0)
        if self.ahead is not None:
            _whole(self, "ahead", 1)
        if self.timeout_s <= 0:
            raise LoaderError(f"timeout_s is above 0 seconds, not {self.timeout_s!r}")
        if self.verify not in ("always", "first_epoch", "never"):
            raise LoaderError(f"verify is 'always', 'first_epoch' or 'never', not {self.verify!r}")
        if not self.training and self.remainder == "wrap":
            raise LoaderError(
                "remainder='wrap' goes on with the next epoch; with training=False there is none: 'keep' or 'drop'"
            )

    @property
    def host(self) -> Hosts:
        return hosts_of(self.hosts)


def hosts_of(hosts: Any) -> Hosts:
    """(index, count), None for one host alone, or anything with the two numbers of `tf.distribute.InputContext`."""
    if hosts is None:
        return Hosts()
    if hasattr(hosts, "input_pipeline_id"):
        return Hosts(int(hosts.input_pipeline_id), int(hosts.num_input_pipelines))
    try:
        index, count = hosts
    except (TypeError, ValueError):
        raise LoaderError(f"hosts is (index, count) or a tf.distribute.InputContext, not {hosts!r}") from None
    return Hosts(int(index), int(count))


def _whole(options: LoaderOptions, name: str, least: int) -> None:
    value = getattr(options, name)
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise LoaderError(f"{name} is a whole number from {least}, not {value!r}")
