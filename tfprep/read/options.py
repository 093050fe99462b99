"""The options of a loader, the same for TensorFlow, NumPy and PyTorch: checked once, in one place."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

from tfprep.augment.transform import GeometryOp
from tfprep.errors import LoaderError
from tfprep.read.at_load import AtLoadOp, check_ops
from tfprep.read.bad import OnBad
from tfprep.read.order import OrderName
from tfprep.read.outputs import Wanted
from tfprep.read.schedule import Hosts, Remainder
from tfprep.read.values import FloatType, check_geometry
from tfprep.read.variants import VariantChoice
from tfprep.read.where import Where

Verify: TypeAlias = Literal["always", "first_epoch", "never"]
CacheChoice: TypeAlias = Literal["auto", "encoded", "decoded", False]
Path: TypeAlias = Literal["auto", "direct", "graph"]


@dataclass(frozen=True)
class LoaderOptions:
    """What a loader delivers, in which order, and how.

    - `batch_size`: samples a step, over all hosts together.
    - `training`: True repeats for ever, another order and another variant each epoch; False reads once, in the order on disk,
      without augmentation, with the last, smaller batch.
    - `seed`: of the order and the choice of variants.
    - `fields`: the fields of an element, which is a dict; None: all that are stored. Or `inputs` and `targets`: an element
      is `x` or `(x, y)` (see `tfprep.read.outputs`).
    - `sample_weight`: a stored number or map that Keras multiplies the loss with: an element is `(x, y, w)`.
    - `order`: "global", "block" or "sequential"; `block` in samples, `window` in blocks. By default "global" in training.
    - `variants`: "rotate", "random", "all" or a number. By default "rotate" in training, else 0.
    - `remainder`: "wrap", "keep" or "drop", where `batch_size` does not divide the samples: by default "wrap" in training,
      else "keep".
    - `start_step`: begin as an uninterrupted run would go on from this step.
    - `hosts`: (index, count), or a `tf.distribute.InputContext`: this host's part of every batch.
    - `where`: an expression over the index (see `tfprep.read.where`): only these samples.
    - `balance`: an index column such as "label": every class equally often in every epoch.
    - `weights`: how often, by class ({"cat": 2, "dog": 1}) or one number a sample.
    - `dtype`: images and maps as "float32", "float16" or "bfloat16" instead of what is stored; `normalize`: less the training
      split's mean, by its standard deviation.
    - `geometry`: ops such as `augment.Resize(224, 224)`, `augment.CenterCrop(224, 224)`, in their unaugmented form, for images
      that were stored in their original sizes.
    - `at_load`: what is drawn anew every epoch: `RandomFlip`, `RandomCrop`, `MixUp`, `CutMix` (see `tfprep.read.at_load`).
    - `on_bad`: "raise", or "skip": another sample takes the place of one that cannot be read (with training=False, none does).
    - `verify`: checksums "always", the first time that a record is read ("first_epoch"), or "never".
    - `memory_budget`: bytes, or text such as "2GB", for batches and cache; None: a quarter of what is free.
    - `cache`: "decoded", "encoded", False, or "auto": decoded where all of it fits, or half where that saves decoding, and
      samples are read more than once.
    - `threads`: that read and decode; 0: one a CPU that this process may use (16 where records come from a URL). `ahead`:
      batches kept ready; None: as many as make sense within the budget.
    - `tuning`: whether `threads`, `ahead` and `cache`, where they are left at their defaults, come from the dataset's
      `tuning.json`, if `tfprep bench --tune` wrote it on a machine of this kind. It changes nothing that is delivered.
    - `timeout_s`: without a batch for so long, StalledPipelineError.
    - `path`: "direct", "graph" (TensorFlow ops alone), or "auto". TensorFlow's loader only.
    - `prefetch_to_device`: such as "/GPU:0". TensorFlow's loader only.
    """

    batch_size: int = 32
    training: bool = True
    seed: int = 0
    fields: Sequence[str] | None = None
    inputs: Wanted | None = None
    targets: Wanted | None = None
    sample_weight: str | None = None
    order: OrderName | None = None
    block: int = 64
    window: int = 16
    variants: VariantChoice | None = None
    remainder: Remainder | None = None
    start_step: int = 0
    hosts: Any = None
    where: Where | None = None
    balance: str | None = None
    weights: Any = None
    dtype: FloatType | None = None
    normalize: bool = False
    geometry: Sequence[GeometryOp] = ()
    at_load: Sequence[AtLoadOp] = ()
    on_bad: OnBad = "raise"
    verify: Verify = "first_epoch"
    memory_budget: int | str | None = None
    cache: CacheChoice = "auto"
    threads: int = 0
    ahead: int | None = None
    tuning: bool = True
    timeout_s: float = 300.0
    path: Path = "auto"
    prefetch_to_device: str | None = None

    def __post_init__(self) -> None:
        _whole(self, "batch_size", 1)
        _whole(self, "start_step", 0)
        _whole(self, "threads", 0)
        _whole(self, "block", 1)
        _whole(self, "window", 1)
        _whole(self, "seed")
        if self.ahead is not None:
            _whole(self, "ahead", 1)
        for name in ("training", "normalize", "tuning"):
            if not isinstance(getattr(self, name), bool):
                raise LoaderError(f"{name} is True or False, not {getattr(self, name)!r}")
        if isinstance(self.timeout_s, bool) or not isinstance(self.timeout_s, int | float) or not self.timeout_s > 0:
            raise LoaderError(f"timeout_s is a number of seconds above 0, not {self.timeout_s!r}; inf waits for ever")
        for name, allowed in (("verify", Verify), ("on_bad", OnBad), ("cache", CacheChoice), ("path", Path)):
            _one_of(self, name, get_args(allowed))
        if not self.training and self.remainder == "wrap":
            rule = "remainder='wrap' goes on with the next epoch; with training=False there is none"
            raise LoaderError(f"{rule}: use 'keep' or 'drop'")
        if self.host.count > self.batch_size:
            rule = f"batch_size={self.batch_size} is that of all hosts together"
            raise LoaderError(f"{rule}: give each of the {self.host.count} hosts one sample at least")
        check_geometry(self.geometry)
        check_ops(self.at_load)

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
        return Hosts(operator.index(index), operator.index(count))
    except (TypeError, ValueError):
        raise LoaderError(f"hosts is (index, count) or a tf.distribute.InputContext, not {hosts!r}") from None


def _whole(options: LoaderOptions, name: str, least: int | None = None) -> None:
    """Check it, and keep it as a Python int: it may be NumPy's."""
    value = getattr(options, name)
    number = None
    with contextlib.suppress(TypeError):
        number = None if isinstance(value, bool) else operator.index(value)
    if number is None or (least is not None and number < least):
        rule = "a whole number" if least is None else f"a whole number from {least}"
        raise LoaderError(f"{name} is {rule}, not {value!r}")
    object.__setattr__(options, name, number)


def _one_of(options: LoaderOptions, name: str, allowed: tuple[object, ...]) -> None:
    value = getattr(options, name)
    if not any(value is choice or (isinstance(value, str) and value == choice) for choice in allowed):
        raise LoaderError(f"{name} is {', '.join(map(repr, allowed))}, not {value!r}")
