"""`check_batches`: what a pipeline really delivers, checked before a long training."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tfprep.errors import TrainError
from tfprep.fields import Array
from tfprep.train.backend import tensorflow_in_use

_MAX_LABELS = 1000
"""An integer component with more different values than this has no labels; ImageNet has 1,000 classes."""
_SHOWN_LABELS = 20
_UNSCALED = 20
"""A float image with values above this was probably not scaled: standardised images reach 3, images in [0, 1] reach 1."""


@dataclass(frozen=True)
class BatchComponent:
    """One component of the batches, over all batches seen.

    Attributes:
        name: Its path in the element, such as `[0]['image']`.
        dtype: Name of its dtype.
        shapes: The shapes that came, batch axis included.
        low: Least finite value.
        high: Greatest finite value.
        mean: Mean of the finite values.
        not_finite: How many values are NaN or infinite.
        counts: Value to how often it came; of integers up to rank 3 (labels and masks).
    """

    name: str
    dtype: str
    shapes: tuple[tuple[int, ...], ...]
    low: float
    high: float
    mean: float
    not_finite: int
    counts: dict[int, int] = field(default_factory=dict)

    def __str__(self) -> str:
        shapes = " or ".join(map(str, self.shapes))
        text = f"{self.name}: {self.dtype} {shapes}, from {self.low:g} to {self.high:g}, mean {self.mean:.4g}"
        if self.counts:
            counts = ", ".join(f"{label}: {count}" for label, count in sorted(self.counts.items())[:_SHOWN_LABELS])
            text += f"; values {counts}{', ...' if len(self.counts) > _SHOWN_LABELS else ''}"
        return text


@dataclass(frozen=True)
class BatchReport:
    """The result of `check_batches`.

    Attributes:
        batches: How many batches.
        components: Their components.
        problems: What looks wrong, a sentence each.
    """

    batches: int
    components: tuple[BatchComponent, ...]
    problems: tuple[str, ...]

    def __str__(self) -> str:
        lines = [f"{self.batches} batches", *map(str, self.components), *(f"PROBLEM {text}" for text in self.problems)]
        return "\n".join(lines)


def check_batches(
    dataset: Any,
    batches: int = 4,
    *,
    num_classes: int | None = None,
    strict: bool = True,
) -> BatchReport:
    """Look at the first batches of a pipeline and report what looks wrong.

    Problems are: a shape that changes (other than the size of the last batch), NaN or infinity, a component that is one constant,
    labels outside of [0, num_classes), one class only, and float images that look unscaled.

    Args:
        dataset: A `tf.data.Dataset`, or any iterable of arrays in tuples and dicts.
        batches: How many batches to look at.
        num_classes: Number of classes; None does not check the range of labels.
        strict: Whether problems raise.

    Returns:
        Shapes, dtype, range, mean and label counts of each component, and the problems.

    Raises:
        TrainError: There are problems and `strict` is set (the text has all of them), the dataset is empty, or an argument is
            wrong.
    """
    if batches < 1:
        raise TrainError(f"batches is how many to look at, at least 1, got {batches!r}")
    if not hasattr(dataset, "__iter__"):
        raise TrainError(f"dataset is a tf.data.Dataset or an iterable of batches, got {type(dataset).__name__}")
    seen: dict[str, list[Array]] = {}
    for element in itertools.islice(dataset, batches):
        for name, value in _leaves("", element):
            seen.setdefault(name, []).append(value)
    if not seen:
        raise TrainError("the dataset gave no batch: it is empty, or its filter lets nothing through")
    components = tuple(_component(name, arrays) for name, arrays in seen.items())
    problems = tuple(
        text for component in components for text in _problems(component, seen[component.name], num_classes)
    )
    report = BatchReport(max(map(len, seen.values()), default=0), components, problems)
    if strict and problems:
        raise TrainError(
            f"the batches do not look right; check_batches(..., strict=False) returns this as a report:\n{report}"
        )
    return report


def _leaves(path: str, value: Any) -> Iterator[tuple[str, Array]]:
    if isinstance(value, dict):
        for key, inside in value.items():
            yield from _leaves(f"{path}.{key}" if path else str(key), inside)
    elif isinstance(value, (tuple, list)):
        for index, inside in enumerate(value):
            yield from _leaves(f"{path}[{index}]", inside)
    else:
        yield path or "batch", _array(value)


def _array(value: Any) -> Array:
    """The numbers of a tensor of any framework, also of one on a GPU; of a ragged or sparse tensor those that it stores."""
    tf = tensorflow_in_use()
    if tf is not None and isinstance(value, tf.RaggedTensor):
        return np.asarray(value.flat_values)
    if tf is not None and isinstance(value, tf.SparseTensor):
        return np.asarray(value.values)
    if hasattr(value, "detach"):  # PyTorch; NumPy has no bfloat16
        value = value.detach().cpu()
        return np.asarray(value.float() if str(value.dtype) == "torch.bfloat16" else value)
    return np.asarray(value)


def _component(name: str, arrays: list[Array]) -> BatchComponent:
    flat = np.concatenate([array.ravel() for array in arrays])
    shapes = tuple(dict.fromkeys(array.shape for array in arrays))
    if flat.dtype.kind in "OSU":
        return BatchComponent(name, "string", shapes, 0.0, 0.0, 0.0, 0)
    numbers = flat.astype(np.float64)
    finite = numbers[np.isfinite(numbers)]
    low, high, mean = (float(of(finite)) for of in (np.min, np.max, np.mean)) if finite.size else (0.0, 0.0, 0.0)
    counts: dict[int, int] = {}
    if flat.dtype.kind in "iub" and arrays[0].ndim <= 3:
        labels, often = np.unique(flat, return_counts=True)
        if labels.size <= _MAX_LABELS:
            counts = dict(zip(map(int, labels), map(int, often), strict=True))
    return BatchComponent(name, flat.dtype.name, shapes, low, high, mean, int(numbers.size - finite.size), counts)


def _problems(component: BatchComponent, arrays: list[Array], num_classes: int | None) -> Iterator[str]:
    name, counts = component.name, component.counts
    if len({array.shape[1:] for array in arrays}) > 1:
        yield f"{name}: shapes differ, {component.shapes}; each new shape is a new trace. Resize or pad in the pipeline"
    elif len({array.shape for array in arrays[:-1]}) > 1:
        yield f"{name}: batch sizes differ before the last batch, {component.shapes}; batch after filtering"
    if component.not_finite:
        yield f"{name}: {component.not_finite} values are NaN or infinite; find the sample with check_batches on batches of 1"
    outside = sorted(label for label in counts if num_classes is not None and not 0 <= label < num_classes)
    if outside:
        yield f"{name}: labels {outside[:10]} are outside of [0, {num_classes}); the loss is NaN or wrong for these"
    if len(counts) == 1 and sum(counts.values()) > 1:
        yield f"{name}: only the value {next(iter(counts))}; shuffle before batching, or look at the labels"
    if not counts and component.dtype != "string" and component.low == component.high and arrays[0].size > 1:
        yield f"{name}: all values are {component.low:g}; is the right file read, and is it scaled before it is cast?"
    is_float = component.dtype.startswith(("float", "bfloat"))
    if _is_image(arrays[0]) and is_float and component.high > _UNSCALED:
        yield (
            f"{name}: float images up to {component.high:g}; divide by 255 (or keep uint8 and let the model's first layer do it)"
        )


def _is_image(array: Array) -> bool:
    return array.ndim == 4 and array.shape[-1] in (1, 3)
