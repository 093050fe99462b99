"""The options of a loader, the same for TensorFlow, NumPy and PyTorch: checked once, in one place."""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import json
import operator
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Literal, TypeAlias, TypedDict, get_args

import numpy as np

from tfprep.augment.mixing import CutMix, MixUp
from tfprep.augment.transform import ColorOp, GeometryOp
from tfprep.derive.inputs import Derived
from tfprep.errors import LoaderError, RecipeError
from tfprep.load.augmentation import Buckets, check_stages
from tfprep.load.memory import parse_bytes
from tfprep.load.mixing import check_mix
from tfprep.load.order.permutation import OrderName
from tfprep.load.order.samplers import VariantChoice
from tfprep.load.order.schedule import Hosts, Remainder
from tfprep.load.order.where import Where
from tfprep.load.outputs import FieldChoice, FloatType

OnBad: TypeAlias = Literal["raise", "skip"]
Verify: TypeAlias = Literal["always", "first_epoch", "never"]
CacheChoice: TypeAlias = Literal["auto", "decoded", False]
ShuffleBuffer: TypeAlias = int | Literal["auto"] | None
WorkersChoice: TypeAlias = Literal["auto", "threads", "processes"]

MOST_BATCH, MOST_STEPS = 1 << 24, 1 << 36
"""The largest batch, and the last step with which a run may begin: positions in the run stay far below 2^63."""
MOST_SAMPLES, MOST_THREADS = 1 << 30, 1 << 12


@dataclass(frozen=True)
class LoaderOptions:
    """The options of `loader`, `numpy_loader` and `torch_loader`.

    What an element is:
        fields: The fields of an element, which is a dict; None for all that are stored.
        inputs: The model's inputs, and `targets` its targets: an element is `x` or `(x, y)` (see `tfprep.load.outputs`).
        targets: See `inputs`.
        sample_weight: A stored number or map by which Keras multiplies the loss: an element is `(x, y, w)`.
        dtype: "float32", "float16" or "bfloat16" for images and maps, or that dtype of TensorFlow or NumPy; None for the
            stored type.
        pad: Rows that a field of N rows gets in every sample, such as {"boxes": 100}: those behind its own are -1, and more
            than that is an error. Without, such a field is a list of arrays, and for TensorFlow a ragged tensor.
        normalize: Whether to subtract the training split's mean and divide by its standard deviation; needs `dtype`.
        geometry: Geometry ops as in a recipe, such as `[augment.RandomResizedCrop(224, 224), augment.Flip()]`: in training they
        draw
            for each epoch, otherwise they take their unaugmented form.
        derive: Inputs that are derived in each epoch, after geometry, by the new field's name, as in a recipe. One of the name of
            a stored field takes its place.
        color: Color ops as in a recipe, for images; in training only.
        mix: `[augment.MixUp(0.2), augment.CutMix()]`, or one of them: samples are mixed with each other in training, and their
        labels
            become float32 [classes].
        one_hot: True, or the number of classes: labels become float32 [classes], as `CategoricalCrossentropy` takes them.
        views: The number of views of a sample by name, each with geometry and color of its own, all from one decode:
            `views={"global": (2, {"geometry": [...], "color": [...]}), "local": (6, {...})}`. Each image, mask, map, derived
            field and field of boxes or points becomes a dict of tuples, one array for each view.
        bucket: Sizes of which each batch has one, by the aspect ratio of its samples: `Buckets([(512, 768), (640, 640)])`.

    Which samples in which order:
        batch_size: Samples a step, of all hosts together.
        training: True: each pass is the next epoch, in another order and with other variants. False: each pass reads every
            sample once, in the order on disk, without augmentation, with the last, smaller batch. None: True for a split
            whose name begins with "train" and the training part of a fold, False for val, test and the like.
        seed: The seed of the order, the variants and all draws.
        order: "global", "block" or "sequential"; None for "global" in training and "sequential" otherwise.
        block: Samples of a block, with order="block".
        window: Blocks that are mixed with one another, with order="block".
        variants: "rotate", "random", "all" or a number; None for "rotate" in training and 0 otherwise.
        remainder: "drop" or "keep" the last, smaller batch, where `batch_size` does not divide the samples; None for "drop" in
            training, where each epoch leaves out other samples (with order="sequential" always the last ones), and "keep"
            otherwise, and where there is no full batch.
        start_step: The first step, or a state that `state_dict` returned: the loader delivers what an uninterrupted run delivers
            from this step on.
        hosts: (index, count) or a `tf.distribute.InputContext`: this host's part of every batch.
        where: An expression over the index that selects samples (see `tfprep.load.order.where`).
        balance: A column of the index such as "label": each of its values equally often in every epoch.
        weights: How often samples are drawn, by class ({"cat": 2, "dog": 1}) or one number a sample.

    How it is read without a change of what is delivered:
        on_bad: "raise", or "skip": another sample replaces one that cannot be read, drawn by the same rule (with
            training=False the row is left out).
        verify: Compare checksums "always", the first time that a record is read ("first_epoch"), or "never".
        memory_budget: Bytes, or text such as "2GB", for batches and cache; None for a quarter of the free memory.
        cache: "decoded", False, or "auto": decoded rows where samples are read more than once and all of them fit,
            or half of them where that saves decoding.
        local: A folder on a local disk where shards of a dataset at a URL are kept for later epochs and runs. Processes share it.
        local_limit: The most bytes, or text such as "500GB", that the folder may take; None for what the disk has left.
        workers: "threads" of this process fill the batches, or worker "processes", which training does not slow down; "auto"
            takes processes, where they can read the dataset, from 8 CPUs on, and from 2 where every epoch reads 10,000 records
            or more. `report()` says which, and why.
        threads: Threads that read and decode, in all processes together; 0 for one a usable CPU.
        prefetch: Batches kept ready in host memory; None for as many as are of use within the budget. `prefetch_to_device`
            is another thing: it copies finished batches to the accelerator.
        timeout_s: Seconds without a batch after which StalledPipelineError is raised.
        prefetch_to_device: A device such as "/GPU:0"; on a CPU there is no transfer to overlap, which the log says. TensorFlow's
            loader only; `jax_loader` transfers batches ahead by itself.

    Raises:
        LoaderError: A value is not one of these, or two options exclude each other.
    """

    batch_size: int = 32
    training: bool | None = None
    seed: int = 0
    fields: Sequence[str] | None = None
    inputs: FieldChoice | None = None
    targets: FieldChoice | None = None
    sample_weight: str | None = None
    order: OrderName | None = None
    block: int = 64
    window: int = 16
    variants: VariantChoice | None = None
    remainder: Remainder | None = None
    start_step: int | Mapping[str, Any] = 0
    hosts: Any = None
    where: Where | None = None
    balance: str | None = None
    weights: Any = None
    dtype: FloatType | None = None
    pad: Mapping[str, int] = field(default_factory=dict)
    normalize: bool = False
    geometry: Sequence[GeometryOp] = ()
    derive: Mapping[str, Derived] = field(default_factory=dict)
    color: Sequence[ColorOp] = ()
    mix: Sequence[MixUp | CutMix] = ()
    one_hot: bool | int = False
    views: Mapping[str, tuple[int, Mapping[str, Any]]] | None = None
    bucket: Buckets | None = None
    on_bad: OnBad = "raise"
    verify: Verify = "first_epoch"
    memory_budget: int | str | None = None
    cache: CacheChoice = "auto"
    local: str | os.PathLike[str] | None = None
    local_limit: int | str | None = None
    workers: WorkersChoice = "auto"
    threads: int = 0
    prefetch: int | None = None
    timeout_s: float = 300.0
    prefetch_to_device: str | None = None

    def __post_init__(self) -> None:
        _whole(self, "batch_size", 1, MOST_BATCH)
        if not isinstance(self.start_step, Mapping):
            _whole(self, "start_step", 0, MOST_STEPS)
        _whole(self, "threads", 0, MOST_THREADS)
        _whole(self, "block", 1, MOST_SAMPLES)
        _whole(self, "window", 1, MOST_SAMPLES)
        _whole(self, "seed")
        variants: Any = self.variants
        object.__setattr__(self, "variants", int(variants) if isinstance(variants, np.integer) else variants)
        dtype: Any = self.dtype  # or one of TensorFlow, NumPy or ml_dtypes
        name = dtype if isinstance(dtype, str) else getattr(dtype, "name", None) or getattr(dtype, "__name__", None)
        object.__setattr__(self, "dtype", name if isinstance(name, str) else dtype)
        if self.prefetch is not None:
            _whole(self, "prefetch", 1)
        for name in ("training", "normalize"):
            if not isinstance(getattr(self, name), bool) and not (name == "training" and self.training is None):
                raise LoaderError(f"{name} is True or False, not {getattr(self, name)!r}")
        if isinstance(self.timeout_s, bool) or not isinstance(self.timeout_s, int | float) or not self.timeout_s > 0:
            raise LoaderError(f"timeout_s is a number of seconds above 0, not {self.timeout_s!r}; inf waits for ever")
        choices = {"verify": Verify, "on_bad": OnBad, "cache": CacheChoice, "workers": WorkersChoice}
        for name, choice in choices.items():
            value = getattr(self, name)
            if not any(value is one or (isinstance(value, str) and value == one) for one in get_args(choice)):
                raise LoaderError(f"{name} is {', '.join(map(repr, get_args(choice)))}, not {value!r}")
        if self.host.count > self.batch_size:
            rule = f"batch_size={self.batch_size} is that of all hosts together"
            raise LoaderError(f"{rule}: give each of the {self.host.count} hosts one sample at least")
        if self.local_limit is not None:
            parse_bytes(self.local_limit, "local_limit")
            if self.local is None:
                raise LoaderError("local_limit is the limit of the folder `local`, which is not given")
        if not isinstance(self.pad, Mapping) or not all(
            isinstance(name, str) and isinstance(rows, int) and not isinstance(rows, bool) and rows > 0
            for name, rows in self.pad.items()
        ):
            raise LoaderError(f"pad gives numbers of rows from 1 by field, such as {{'boxes': 100}}, not {self.pad!r}")
        object.__setattr__(self, "pad", dict(self.pad))
        check_stages(self.geometry, self.derive, self.color, self.views, self.bucket)
        check_mix(self.mix, self.one_hot)
        if self.bucket is not None:
            _check_bucket(self)

    @property
    def host(self) -> Hosts:
        """The host from (index, count), from a `tf.distribute.InputContext`, or from None for a single host."""
        hosts = self.hosts
        if hosts is None:
            return Hosts()
        if hasattr(hosts, "input_pipeline_id"):
            return Hosts(int(hosts.input_pipeline_id), int(hosts.num_input_pipelines))
        try:
            index, count = hosts
            return Hosts(operator.index(index), operator.index(count))
        except (TypeError, ValueError):
            raise LoaderError(f"hosts is (index, count) or a tf.distribute.InputContext, not {hosts!r}") from None


class OrderKeywords(TypedDict, total=False):
    """The keywords that decide which samples a batch holds: fields of `LoaderOptions`."""

    training: bool | None
    seed: int
    order: OrderName | None
    block: int
    window: int
    variants: VariantChoice | None
    remainder: Remainder | None
    start_step: int | Mapping[str, Any]
    hosts: Any
    where: Where | None
    balance: str | None
    weights: Any


class LoaderKeywords(OrderKeywords, total=False):
    """The keywords of the loaders, for type checkers and editors: the fields of `LoaderOptions` other than `batch_size`."""

    fields: Sequence[str] | None
    inputs: FieldChoice | None
    targets: FieldChoice | None
    sample_weight: str | None
    dtype: FloatType | None
    pad: Mapping[str, int]
    normalize: bool
    geometry: Sequence[GeometryOp]
    derive: Mapping[str, Derived]
    color: Sequence[ColorOp]
    mix: Sequence[MixUp | CutMix]
    one_hot: bool | int
    views: Mapping[str, tuple[int, Mapping[str, Any]]] | None
    bucket: Buckets | None
    on_bad: OnBad
    verify: Verify
    memory_budget: int | str | None
    cache: CacheChoice
    local: str | os.PathLike[str] | None
    local_limit: int | str | None
    workers: WorkersChoice
    threads: int
    prefetch: int | None
    timeout_s: float
    prefetch_to_device: str | None


ELSEWHERE = {
    "shuffle": "training=True shuffles, order='sequential' does not",
    "repeat": "each pass is the next epoch; loader(...).repeat() has no end",
    "epochs": "each pass is the next epoch; loader(...).repeat(10) is ten of them",
    "drop_remainder": "remainder='drop'",
    "num_workers": "workers, 'threads' or 'processes', and threads, their number",
    "as_supervised": "inputs='image' and targets='label'",
    "num_parallel_calls": "threads",
    "image_size": "geometry=[augment.Resize(224, 224)]",
    "augment": "geometry=[augment.Flip()] and color=[augment.ColorJitter()]",
    "transform": "geometry=[augment.Flip()] and color=[augment.ColorJitter()]",
    "transforms": "geometry=[augment.Flip()] and color=[augment.ColorJitter()]",
    "label": "targets",
    "class_weight": "balance or weights, or class_weight of model.fit",
}
"""Options of other loaders, and what has that effect here."""


def loader_options(batch_size: int, keywords: Mapping[str, Any]) -> LoaderOptions:
    """The options from the keywords of `loader(...)`; LoaderError with a suggestion for a keyword that does not exist."""
    known = [field.name for field in fields(LoaderOptions)]
    for name in keywords:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            instead = ELSEWHERE.get(name) or (near[0] if near else "")
            hint = f"instead: {instead}" if instead else f"there are {', '.join(known)}"
            raise LoaderError(f"a loader has no option {name!r}; {hint}")
    return LoaderOptions(batch_size=batch_size, **keywords)


def op_texts(value: Any) -> Any:
    """Return ops as text for a state: the name of each and the options that are not defaults, so that later ones change nothing.

    Lists and dicts stay such. A user's function or object, which may hold anything, is described like one of a recipe, by its
    options and its code.

    Raises:
        LoaderError: A function or an object cannot be described.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {str(name): op_texts(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [op_texts(one) for one in value]
    kind = type(value)
    if is_dataclass(value) and kind.__module__.startswith("tfprep."):
        given = {one.name: getattr(value, one.name) for one in fields(value)}
        changed = [
            f"{one.name}={op_texts(given[one.name])!r}" for one in fields(value) if given[one.name] != one.default
        ]
        return f"{kind.__qualname__}({', '.join(changed)})"
    from tfprep.recipe.describe import Description  # with the sources

    name, description = getattr(value, "__qualname__", kind.__qualname__), Description()
    try:
        content = json.dumps([description.describe(value), description.code()])
        return f"{name} {hashlib.sha256(content.encode()).hexdigest()[:16]}"
    except RecipeError as error:
        way_out = "leave it out of what pickle takes (__getstate__)"
        raise LoaderError(f"a state cannot say what {name} does: {error}; {way_out}") from error


def _whole(options: LoaderOptions, name: str, least: int | None = None, most: int | None = None) -> None:
    """Check that the option is a whole number, and store it as a Python int: it may be one of NumPy's."""
    value = getattr(options, name)
    number = None
    with contextlib.suppress(TypeError):
        number = None if isinstance(value, bool) else operator.index(value)
    if number is None or (least is not None and number < least) or (most is not None and number > most):
        rule = "a whole number" if least is None else f"a whole number from {least}"
        rule += f" to {most:,}" if most is not None and number is not None and number > most else ""
        raise LoaderError(f"{name} is {rule}, not {value!r}")
    object.__setattr__(options, name, number)


def _check_bucket(options: LoaderOptions) -> None:
    if options.order == "block":
        raise LoaderError(
            "order='block' fills batches with what comes next, bucket with samples of one size; leave one of them out"
        )
    for name in ("balance", "weights"):
        if getattr(options, name) is not None:
            raise LoaderError(f"bucket takes each sample once an epoch; leave {name} out")
