"""The options of a loader. Each is declared once: its name, type, default and check; the class documents them."""

# ruff: noqa: RUF009 # `_option` makes the field of a dataclass

from __future__ import annotations

import difflib
import hashlib
import inspect
import json
import operator
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from functools import cached_property, partial
from typing import Any, Literal, TypeAlias, TypeVar, get_args

import numpy as np
import pyarrow.compute as pc

from tfprep.augment.geometry import RandomResizedCrop
from tfprep.augment.mixing import CutMix, MixUp
from tfprep.augment.transform import ColorOp, GeometryOp
from tfprep.checks import column_name, whole_number
from tfprep.derive.inputs import Derived
from tfprep.errors import LoaderError, RecipeError
from tfprep.fields import Size
from tfprep.load.order.samplers import VariantChoice
from tfprep.load.order.schedule import Hosts, OrderName, Remainder
from tfprep.recipe.checks import check_derive, check_ops, with_inner

OnBad: TypeAlias = Literal["raise", "skip"]
Verify: TypeAlias = Literal["always", "first_epoch", "never"]
WorkersChoice: TypeAlias = Literal["auto", "threads", "processes"]
CacheChoice: TypeAlias = Literal["auto", "decoded", False]
Layout: TypeAlias = Literal["NHWC", "NCHW"]
FieldChoice: TypeAlias = str | Sequence[str] | Mapping[str, str | Sequence[str]]
ShuffleBuffer: TypeAlias = int | Literal["auto"] | None

MOST_BATCH, MOST_STEPS = 1 << 24, 1 << 36
"""The largest batch, and the last step with which a run may begin: positions in the run stay far below 2^63."""
MOST_THREADS = 1 << 12
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}

# --- how an option is declared ------------------------------------------------------------------------------------------

Check: TypeAlias = Callable[[str, Any], Any]
"""Gets an option's name and value, and returns the value as it is kept. LoaderError, or RecipeError where a recipe has the same
rule, for a value that is not allowed."""
Decides: TypeAlias = Literal["element", "order", "part", "nothing"]
"""What an option decides: the elements, the order of the samples, or which part of a run is read. Options with "nothing" say how
it is read. Those with "part" and "nothing" are not part of a state's identity."""


def _option(default: Any, check: Check | None = None, *, decides: Decides = "element", only: Sequence[str] = ()) -> Any:
    """The field of an option. `only`: the calls that take it, where not all do."""
    rules = {"check": check, "decides": decides, "only": only}
    return field(default_factory=dict, metadata=rules) if default == {} else field(default=default, metadata=rules)


def _whole(least: int | None = None, most: int | None = None) -> Check:
    """A whole number (`whole_number`)."""
    return partial(whole_number, least=least, most=most)


def _one_of(*choices: Any) -> Check:
    """One of these values, where text is equal and anything else the same object: 1 is not True."""

    def check(name: str, value: Any) -> Any:
        for choice in choices:
            if value is choice or (isinstance(value, str) and value == choice):
                return value
        listed = [repr(choice) for choice in choices if choice is not None]
        raise LoaderError(f"{name} is {', '.join(listed[:-1])} or {listed[-1]}, not {value!r}")

    return check


def _step_or_state(name: str, value: Any) -> Any:
    return value if isinstance(value, Mapping) else _whole(0, MOST_STEPS)(name, value)


def _variants(name: str, value: Any) -> Any:
    if isinstance(value, str) and value in ("rotate", "random", "all"):
        return value
    return whole_number(f"{name}, if it is not 'rotate', 'random' or 'all',", value)


def _seconds(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise LoaderError(f"{name} is a number of seconds above 0, not {value!r}; inf waits for ever")
    return value


def _bytes(name: str, value: Any) -> int:
    """A number of bytes, or text such as "800M", "2GB" or "1.5 GiB", in units of 1,024."""
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    match = re.fullmatch(r"\s*([0-9.]+)\s*([kmgt]?)i?b?\s*", str(value).lower())
    try:
        amount = int(float(match[1]) * _UNITS[match[2]]) if match else 0
    except (ValueError, OverflowError):
        amount = 0
    if amount < 1:
        raise LoaderError(f"{name} is a number of bytes or text such as '2GB', not {value!r}")
    return amount


def _pad(name: str, value: Any) -> dict[str, int]:
    if not isinstance(value, Mapping):
        raise LoaderError(f"{name} gives numbers of rows from 1 by field, such as {{'boxes': 100}}, not {value!r}")
    return {field: whole_number(f"{name}[{field!r}]", rows, 1) for field, rows in value.items()}


def _derive(name: str, value: Any) -> Any:
    check_derive(value)
    return value


def _per_sample(name: str, value: Any) -> Any:
    """A list as an array, of which a state holds a digest; other values, such as a dict or an expression, as they are."""
    try:
        return np.asarray(value) if isinstance(value, list | tuple) else value
    except ValueError:  # lists of several lengths
        raise LoaderError(f"{name} takes one value per sample of the split, not {value!r:.200}") from None


def _mix(name: str, value: Any) -> Any:
    listed = isinstance(value, Sequence) and all(isinstance(op, MixUp | CutMix) for op in value)
    if not listed or len({type(op) for op in value}) < len(value):
        raise LoaderError(f"{name} is a list of at most one augment.MixUp and one augment.CutMix, not {value!r}")
    return value


def _one_hot(name: str, value: Any) -> Any:
    what = f"{name}, the number of classes if it is not True,"
    return value if isinstance(value, bool) else whole_number(what, value, 1)


def _views(name: str, value: Any) -> Any:
    example = '{"global": (2, {"geometry": [...], "color": [...]})}'
    views: Mapping[Any, Any] = value if isinstance(value, Mapping) and value else {"": None}
    for kind, view in views.items():
        named = isinstance(kind, str) and kind and "/" not in kind
        pair = isinstance(view, tuple | list) and len(view) == 2 and type(view[0]) is int and view[0] > 0
        if not named or not pair or not isinstance(view[1], Mapping) or not view[1].keys() <= {"geometry", "color"}:
            raise LoaderError(f"{name} gives a number of views and their ops by name, such as {example}; not {value!r}")
        for option, ops in view[1].items():
            check_ops(option, ops)
        if _growing(view[1].get("geometry", ())):
            raise LoaderError(f"{name}: sizes by epoch are not for views")
    return value


def _growing(ops: Sequence[Any]) -> list[Any]:
    """The ops with sizes by epoch, also those inside of others."""
    inner = [each for op in ops for each in with_inner(op)]
    return [op for op in inner if isinstance(op, RandomResizedCrop) and op.sizes is not None]


def _bucket(name: str, value: Any) -> Any:
    if value is not None and not isinstance(value, Buckets):
        raise LoaderError(f"{name} is Buckets([(512, 768), (640, 640)]), not {value!r}")
    return value


@dataclass(frozen=True)
class Buckets:
    """Sizes of batches, (height, width) in pixels: the loader's option `bucket` for pictures of different aspect ratios.

    A sample belongs to the size whose aspect ratio is nearest to its own, by the height and width in the index; of two that are
    equally near, to the taller. All samples of a batch are of one size: resized, keeping their aspect, until they cover it, and
    cut to it, in training at a random place.
    (NovelAI's aspect ratio bucketing; `aspect_ratio_grouping` of detectron2.)
    """

    sizes: tuple[Size, ...]

    def __post_init__(self) -> None:
        listed = self.sizes if isinstance(self.sizes, Sequence) else ()
        sizes = tuple(tuple(size) for size in listed if isinstance(size, Sequence))
        pixels = all(len(size) == 2 and all(type(side) is int and side > 0 for side in size) for size in sizes)
        if not sizes or len(sizes) < len(listed) or not pixels:
            raise LoaderError(
                "Buckets takes a list of one size at least, each (height, width) in pixels as Python's int, such as "
                f"[(512, 768), (640, 640)], not {self.sizes!r}"
            )
        if len({height / width for height, width in sizes}) < len(sizes):
            raise LoaderError(f"Buckets differ in their aspect ratios, not {list(sizes)}; leave one of two out")
        object.__setattr__(self, "sizes", sizes)


# --- the options --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LoaderOptions:
    """The options of `loader`, `numpy_loader`, `torch_loader`, `keras_loader` and `jax_loader`.

    Attributes:
        batch_size: Samples per step, of all hosts together.
        training: True: each pass is the next epoch, in another order and with other variants. False: each pass reads every
            sample once, in the order on disk, without augmentation, with the last, smaller batch. None: True for a split whose
            name begins with "train" and the training part of a fold, False for val, test and the like.
        seed: The seed of the order, the variants and all draws.
        order: The order of an epoch: "global" or "sequential"; None for "global" in training and "sequential" otherwise.
        variants: Which variants are read: "rotate", "random", "all" or a number; None for "rotate" in training and 0 otherwise.
        remainder: What becomes of the last, smaller batch: "drop" or "keep". None for "drop" in training, where each epoch leaves
            out other samples (the last ones with order="sequential"), and "keep" in evaluation and where no batch is full.
        where: The samples that are read: an expression of `pyarrow.compute` over columns of the index, such as
            `pc.field("height") >= 224`, or one bool per sample of the split, in the order of `data.index(split)`.
        balance: A column such as "label": each of its values equally often in every epoch (of several classes, the rarest).
        weights: How often samples are drawn, by class ({"cat": 2, "dog": 1}) or one number per sample.
        start_step: The first step, or a state of `state_dict`: the loader delivers what an uninterrupted run delivers from it.
        hosts: (index, count) or a `tf.distribute.InputContext`: this host's part of every batch.
        fields: The fields of an element, which is a dict; None for all that are stored.
        inputs, targets: The model's inputs and its targets: an element is `x` or `(x, y)` (see `tfprep.load.outputs`).
        sample_weight: A stored number or map by which Keras multiplies the loss: an element is `(x, y, w)`.
        pad: Rows that a field of N rows gets in every sample, such as {"boxes": 100}: those after its own are -1, and more than
            that is an error. Without it, such a field is a list of arrays, and for TensorFlow a ragged tensor.
        layout: With "NCHW", images and other [H, W, C] rasters are [C, H, W]; for `numpy_loader` and `torch_loader`.
        geometry: Geometry ops as in a recipe, drawn in each epoch; in evaluation they take their unaugmented form.
        derive: Inputs that are derived in each epoch, after geometry, by name, as in a recipe. They may replace stored fields.
        color: Color ops as in a recipe, for images; in training only.
        mix: `[augment.MixUp(0.2), augment.CutMix()]`, or one of them, in training; labels become float32 [classes].
        one_hot: True, or the number of classes: labels become float32 [classes], as `CategoricalCrossentropy` takes them.
        views: The number of views of a sample by name, each with geometry and color of its own, all from one decode:
            `views={"global": (2, {"geometry": [...], "color": [...]}), "local": (6, {...})}`. Each image, mask, map, derived
            field and field of boxes or points becomes a dict of tuples, one array for each view.
        bucket: Each batch gets one of these sizes, by the aspect ratio of its samples: `Buckets([(512, 768), (640, 640)])`.
        on_bad: With "raise", a sample that cannot be read is an error; with "skip" another replaces it (in evaluation none).
        verify: Compare checksums "always", the first time that a record is read ("first_epoch"), or "never".
        memory_budget: Bytes, or text such as "2GB", for batches and cache; None for a quarter of the free memory.
        cache: Decoded rows that are kept: with "decoded" the number that fits, with False none, with "auto" where samples are
            read more than once and all of them fit, or half of them where that saves decoding.
        workers: What fills the batches: "threads" of this process, or worker "processes", which training does not slow down.
            "auto" takes processes, where they can read the dataset, from 8 CPUs on, and from 2 where every epoch reads 10,000
            records, or augments 1,000. `report()` says which, and why.
        threads: Threads that read and decode, in all processes together; 0 for one per usable CPU.
        prefetch: Batches kept ready in host memory; None for the number that is of use within the budget.
        timeout_s: Seconds without a batch after which StalledPipelineError is raised.

    Raises:
        LoaderError: A value is not allowed, or two options exclude each other.
    """

    # Which samples, in which order.
    batch_size: int = _option(32, _whole(1, MOST_BATCH), decides="order")
    training: bool | None = _option(None, _one_of(True, False, None), decides="order")
    seed: int = _option(0, _whole(), decides="order")
    order: OrderName | None = _option(None, _one_of(*get_args(OrderName), None), decides="order")
    variants: VariantChoice | None = _option(None, _variants, decides="order")
    remainder: Remainder | None = _option(None, _one_of(*get_args(Remainder), None), decides="order")
    where: pc.Expression | Sequence[bool] | None = _option(None, _per_sample, decides="order")
    balance: str | None = _option(None, column_name, decides="order")
    weights: Any = _option(None, _per_sample, decides="order")
    start_step: int | Mapping[str, Any] = _option(0, _step_or_state, decides="part")
    hosts: Any = _option(None, decides="part")

    # What an element is.
    fields: Sequence[str] | None = None
    inputs: FieldChoice | None = None
    targets: FieldChoice | None = None
    sample_weight: str | None = None
    pad: Mapping[str, int] = _option({}, _pad)
    layout: Layout = _option("NHWC", _one_of(*get_args(Layout)), only=("numpy_loader()", "torch_loader()"))
    geometry: Sequence[GeometryOp] = _option((), check_ops)
    derive: Mapping[str, Derived] = _option({}, _derive)
    color: Sequence[ColorOp] = _option((), check_ops)
    mix: Sequence[MixUp | CutMix] = _option((), _mix)
    one_hot: bool | int = _option(False, _one_hot)
    views: Mapping[str, tuple[int, Mapping[str, Any]]] | None = _option(None, _views)
    bucket: Buckets | None = _option(None, _bucket)

    # How it is read, without a change of what is delivered.
    on_bad: OnBad = _option("raise", _one_of(*get_args(OnBad)), decides="nothing")
    verify: Verify = _option("first_epoch", _one_of(*get_args(Verify)), decides="nothing")
    memory_budget: int | str | None = _option(None, _bytes, decides="nothing")
    cache: CacheChoice = _option("auto", _one_of(*get_args(CacheChoice)), decides="nothing")
    workers: WorkersChoice = _option("auto", _one_of(*get_args(WorkersChoice)), decides="nothing")
    threads: int = _option(0, _whole(0, MOST_THREADS), decides="nothing")
    prefetch: int | None = _option(None, _whole(1), decides="nothing")
    timeout_s: float = _option(300.0, _seconds, decides="nothing")

    def __post_init__(self) -> None:
        for option in fields(self):
            value, check = getattr(self, option.name), option.metadata.get("check")
            if value is option.default or (option.default is MISSING and isinstance(value, dict) and not value):
                continue
            if check is not None:
                try:
                    object.__setattr__(self, option.name, check(option.name, value))
                except RecipeError as error:
                    raise LoaderError(str(error)) from None
        if self.host.count > self.batch_size:
            rule = f"batch_size={self.batch_size} is that of all hosts together"
            raise LoaderError(f"{rule}: give each of the {self.host.count} hosts one sample at least")
        if self.views is not None and (self.geometry or self.color or self.bucket is not None):
            raise LoaderError("views have geometry and color of their own; leave geometry, color and bucket out")
        growing = _growing(self.geometry) if self.geometry else []
        if growing and (len(growing) > 1 or growing[0] not in self.geometry or self.bucket is not None):
            raise LoaderError("geometry: one op with sizes by epoch at most, by itself, and none with bucket")
        if self.bucket is not None and (self.balance is not None or self.weights is not None):
            raise LoaderError("bucket takes each sample once per epoch; leave balance and weights out")

    @cached_property
    def host(self) -> Hosts:
        """The host from (index, count), from a `tf.distribute.InputContext`, or from None for a single host."""
        hosts: Any = (0, 1) if self.hosts is None else self.hosts
        if hasattr(hosts, "input_pipeline_id"):
            hosts = hosts.input_pipeline_id, hosts.num_input_pipelines
        try:
            index, count = map(operator.index, hosts)
        except (TypeError, ValueError):
            raise LoaderError(f"hosts is (index, count) or a tf.distribute.InputContext, not {hosts!r}") from None
        if not 0 <= index < count:
            raise LoaderError(f"hosts=(index, count) with 0 <= index < count, not ({index}, {count})")
        return Hosts(index, count)


def deciding(*decides: Decides) -> list[str]:
    """The names of the options that decide one of these."""
    return [option.name for option in fields(LoaderOptions) if option.metadata.get("decides", "element") in decides]


DEFAULTS: dict[str, Any] = {
    option.name: {} if option.default is MISSING else list(option.default) if option.default == () else option.default
    for option in fields(LoaderOptions)
}
"""The default of each option, with lists for tuples, and {} for a dict."""

ELSEWHERE = {
    "shuffle": "training=True shuffles, order='sequential' does not",
    "repeat": "each pass is the next epoch; loader(...).repeat() has no end",
    "epochs": "each pass is the next epoch; loader(...).repeat(10) is ten of them",
    "drop_remainder": "remainder='drop'",
    "drop_last": "remainder='drop'",
    "num_workers": "workers, 'threads' or 'processes', and threads, their number",
    "num_parallel_calls": "threads",
    "sampler": "weights or balance; batch_sampler() is the order for a DataLoader",
    "as_supervised": "inputs='image' and targets='label'",
    "label": "targets",
    "image_size": "geometry=[augment.Resize(224, 224)]",
    "augment": "geometry=[augment.Flip()] and color=[augment.ColorJitter()]",
    "device": "images.to(device) in the loop of PyTorch; jax_loader() transfers ahead",
    "transform": "geometry=[augment.Flip()] and color=[augment.ColorJitter()]",
    "class_weight": "balance or weights, or class_weight of model.fit",
    "dtype": "fields come in their stored dtype; a model begins with keras.layers.Rescaling(1 / 255)",
    "normalize": "a model begins with data.normalization()",
    "layout": "numpy_loader() and torch_loader() have it; a model can begin with keras.layers.Permute((3, 1, 2))",
    "prefetch_to_device": "loader(...).apply(tf.data.experimental.prefetch_to_device('/GPU:0')); jax_loader() transfers ahead",
}
"""Options of other loaders, and what has that effect here."""


def loader_options(call: str, batch_size: int, keywords: Mapping[str, Any], known: Sequence[str] = ()) -> LoaderOptions:
    """The options from the keywords of a call such as "loader()", which takes those of the names `known`, or all.

    Raises:
        LoaderError: The call has no such option, with a suggestion, or a value is not allowed.
    """
    only = {option.name: option.metadata.get("only") for option in fields(LoaderOptions)}
    names = known or [name for name, calls in only.items() if not calls or call in calls]
    for name in keywords:
        if name not in names:
            near = difflib.get_close_matches(name, names, 1)
            listed = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(names)}"
            hint = f"instead: {ELSEWHERE[name]}" if name in ELSEWHERE else listed
            raise LoaderError(f"{call} has no option {name!r}; {hint}")
    return LoaderOptions(batch_size=batch_size, **keywords)


F = TypeVar("F", bound=Callable[..., Any])


def with_options(method: F) -> F:
    """Show each option in the signature of a call that takes `**options`: in `help` and where a notebook completes names."""
    signature = inspect.signature(method)
    shown = [parameter for parameter in signature.parameters.values() if parameter.kind is not parameter.VAR_KEYWORD]
    for option in fields(LoaderOptions):
        calls = option.metadata.get("only")
        if option.name not in signature.parameters and (not calls or f"{method.__name__}()" in calls):
            default = option.default if option.default is not MISSING else {}
            shown.append(
                inspect.Parameter(option.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=option.type)
            )
    method.__signature__ = signature.replace(parameters=shown)  # type: ignore[attr-defined]
    return method


def described(value: Any) -> Any:
    """The value of an option in the types that JSON returns, equal for values that have the same effect.

    Arrays are described by their content, and ops by their names and the options that are not defaults, so that later ones change
    nothing. A user's function or object, which may hold anything, is described like one of a recipe, by its options and its code.

    Raises:
        LoaderError: A function or an object cannot be described.
    """
    if isinstance(value, np.generic | pc.Expression):
        value = value.item() if isinstance(value, np.generic) else str(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {str(name): described(part) for name, part in value.items()}
    if hasattr(value, "__array__"):
        array = np.asarray(value)
        return [array.dtype.str, list(array.shape), hashlib.sha256(array.tobytes()).hexdigest()[:16]]
    kind = type(value)
    if is_dataclass(value) and kind.__module__.startswith("tfprep."):
        given = {option: getattr(value, option.name) for option in fields(value)}
        changed = [f"{option.name}={described(v)!r}" for option, v in given.items() if v != option.default]
        return f"{kind.__qualname__}({', '.join(changed)})"
    if isinstance(value, Collection) and not callable(value):
        return [described(part) for part in value]
    from tfprep.recipe.describe import Description  # with the sources

    name, description = getattr(value, "__qualname__", kind.__qualname__), Description()
    try:
        content = json.dumps([description.describe(value), description.code()])
        return f"{name} {hashlib.sha256(content.encode()).hexdigest()[:16]}"
    except RecipeError as error:
        fix = "leave it out of what pickle takes (__getstate__)"
        raise LoaderError(f"a state cannot say what {name} does: {error}; {fix}") from error
