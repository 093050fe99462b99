"""`check_batches`: what a pipeline really delivers, checked before a long training."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np

from tfprep.errors import TrainError
from tfprep.fields import Array
from tfprep.load.outputs import PADDING

_UNSCALED = 20
"""A float image with values above this was probably not scaled: standardized images reach 3, images in [0, 1] reach 1."""


def check_batches(dataset: Any, batches: int = 4, *, num_classes: int | None = None) -> str:
    """Look at the first batches of a pipeline, and raise where they look wrong.

    Problems are: a shape that changes (other than the size of the last batch), NaN or infinity, a component that is one constant,
    labels outside of [0, num_classes), one class only, and float images that look unscaled.

    Args:
        dataset: A `tf.data.Dataset`, or any iterable of arrays in tuples and dicts.
        batches: How many batches to look at.
        num_classes: Number of classes; None does not check the range of labels. Inputs beside targets are not labels, and
            -1 among labels [B, N] is a row that `pad` added.

    Returns:
        A line for each component with its dtype, shapes, range and mean; text and empty components are listed as not checked.

    Raises:
        TrainError: There are problems (the text has all of them), or the dataset is empty.
    """
    seen, shapes_of = dict[str, list[Array]](), dict[str, list[tuple[Any, ...]]]()
    for element in itertools.islice(dataset, batches):
        for path, value in keras.tree.flatten_with_path(element):
            name = "".join(f"[{key!r}]" for key in path) or "batch"
            seen.setdefault(name, []).append(_array(value))
            shapes_of.setdefault(name, []).append(tuple(getattr(value, "shape", ())))
    if not seen:
        raise TrainError("the dataset gave no batch: it is empty, or its filter lets nothing through")
    lines, problems = [], []
    for name, arrays in seen.items():
        values, shapes = np.concatenate([array.ravel() for array in arrays]), shapes_of[name]
        line = f"{name}: {values.dtype} {' or '.join(map(str, dict.fromkeys(shapes)))}"
        if values.size and values.dtype.kind in "biuf":
            lines.append(f"{line}, from {values.min():g} to {values.max():g}, mean {values.mean():.4g}")
            is_input = name.startswith("[0]") and any(other.startswith("[1]") for other in seen)
            is_weight = name.startswith("[2]") and values.dtype.kind == "f"
            classes = None if is_input or is_weight else num_classes
            problems += [f"{name}: {text}" for text in _problems(shapes, values, classes)]
        else:
            lines.append(f"{line}, not checked: no {'numbers' if values.size else 'values'}")
    if problems:
        raise TrainError("\n  ".join(["the batches do not look right:", *problems, *lines]))
    return "\n".join(lines)


def _array(value: Any) -> Array:
    """Return the values of a tensor of any framework, also of one on a GPU; bfloat16, which NumPy does not know, as float32.

    Of a ragged or sparse tensor these are the values that it stores.
    """
    value = getattr(value, "flat_values", value)
    value = value.values if hasattr(value, "dense_shape") else value
    if hasattr(value, "detach"):  # PyTorch
        value = value.detach().cpu()
        value = value.float() if value.is_floating_point() else value
    array = np.asarray(value)
    return array.astype(np.float32) if array.dtype.name == "bfloat16" else array


def _problems(shapes: list[tuple[Any, ...]], values: Array, num_classes: int | None) -> Iterator[str]:
    is_float = values.dtype.kind == "f"
    if len({shape[1:] for shape in shapes}) > 1:
        yield "shapes differ; each new shape is a new trace. Resize or pad in the pipeline"
    elif len(set(shapes[:-1])) > 1:
        yield "batch sizes differ before the last batch; batch after filtering"
    if is_float and not np.isfinite(values).all():
        yield f"{np.count_nonzero(~np.isfinite(values))} values are NaN or infinite"
    if values.size > 1 and (values == values[0]).all():
        yield f"all values are {values[0]}; is the right file read, and is it shuffled before it is batched?"
    shape = shapes[0]
    is_image = len(shape) == 4 and bool({shape[1], shape[-1]} & {1, 3})
    largest = values[np.isfinite(values)].max(initial=0)
    if is_image and is_float and largest > _UNSCALED:
        yield f"float images up to {largest:g}; divide by 255, or keep uint8 and let the model's first layer do it"
    is_mask, is_vector = len(shape) <= 3 or shape[3:] == (1,), shape[1:] in ((), (1,))
    is_label = (is_vector and (values == np.rint(values)).all()) if is_float else is_mask
    if num_classes is not None and is_label:
        lowest = 0 if is_vector or len(shape) != 2 else PADDING
        outside = np.unique(values[(values < lowest) | (values >= num_classes)])
        if outside.size:
            yield f"labels {outside[:10].tolist()} are outside of [0, {num_classes})"
