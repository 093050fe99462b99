"""Kinds of fields: a kind says what a named value of a sample means, and how geometry changes it.

| kind   | array                                   | under geometry                              |
|--------|-----------------------------------------|---------------------------------------------|
| image  | uint8, uint16 or float32 [H, W, C]      | resampled, antialiased                      |
| mask   | uint8 or uint16 [H, W], class numbers   | nearest pixel; never gains a class          |
| map    | any number [H, W] or [H, W, C]          | resampled linearly                          |
| boxes  | float32 [N, 4]: x0, y0, x1, y1          | corners mapped, refitted                    |
| points | float32 [N, 2] or [N, 3]: x, y, visible | mapped as coordinates; [N, K, 2] as well    |
| label  | int64 scalar or [K]: class numbers, or  | untouched                                   |
|        | float32 [classes], 1 for each class     |                                             |
| scalar | any number or array of numbers          | untouched                                   |
| text   | str                                     | untouched                                   |

An image is RGB of 8 bits unless its source says otherwise (`sources.Pixels`).

Coordinates are continuous, in pixels: x to the right, y down, the image covers [0, W] x [0, H], and the pixel in row r,
column c covers [c, c+1] x [r, r+1], so that its center is (c + 0.5, r + 0.5). Boxes are kept as `xyxy`: left, top, right and
bottom. `convert_boxes` makes the other forms of `keras.utils.bounding_boxes.convert_format`; `rel_` forms are shares of the
image's width and height.
"""

from __future__ import annotations

import importlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from tfprep.errors import RecipeError

Kind: TypeAlias = Literal["image", "mask", "map", "boxes", "points", "label", "scalar", "text"]
KINDS: tuple[Kind, ...] = get_args(Kind)
RASTER_KINDS: frozenset[Kind] = frozenset({"image", "mask", "map"})
"""The kinds that are arrays of pixels: all rasters of one sample have the same height and width."""

EFFECTS = frozenset({"crop", "flip", "resize", "warp"})
"""What geometry may do to a frame: cut or pad it, mirror it, scale it, and anything else, such as a rotation. A geometry op says
which of them it may cause (`effects`), a derived input under which its stored copy may be moved like an image (`follows`)."""
EXTRA_FIELDS = ("key", "variant")
"""Fields that the loader adds to those of the dataset."""
_MOST_NAME_CHARACTERS = 100
_FIELD_NAME = re.compile(rf"[A-Za-z_][A-Za-z0-9_]{{0,{_MOST_NAME_CHARACTERS - 1}}}")

Array: TypeAlias = npt.NDArray[Any]
ImageArray: TypeAlias = npt.NDArray[np.uint8]
Sample: TypeAlias = Mapping[str, Any]
"""Field name to value, as in the table above. Never changed in place: a step returns a new mapping."""
Size: TypeAlias = tuple[int, int]
"""(height, width) in pixels."""


@dataclass(frozen=True)
class FieldSpec:
    """Kind, shape and dtype of a stored field, the same for every record of a dataset.

    Attributes:
        kind: The kind, as in the table above.
        shape: The lengths of the axes; None for an axis whose length differs between records.
        dtype: NumPy's name of the dtype, or "string" for text.
    """

    kind: Kind
    shape: tuple[int | None, ...]
    dtype: str

    @property
    def sides(self) -> str:
        """The shape for people, such as `? x ? x 3` for images of any size; `-` for a single value."""
        return " x ".join("?" if side is None else str(side) for side in self.shape) or "-"


def raster_size(sample: Sample, kinds: Mapping[str, Kind]) -> Size | None:
    """Return the (height, width) of the sample's rasters in pixels; None if it has no raster."""
    for name, kind in kinds.items():
        if kind in RASTER_KINDS and name in sample:
            height, width = np.shape(sample[name])[:2]
            return int(height), int(width)
    return None


def class_numbers(label: Any) -> Any:
    """Return the class number of a label, or a list of them: of a vector of floats the places that are not 0."""
    array = np.asarray(label)
    return (np.flatnonzero(array) if array.dtype.kind == "f" else array).tolist()


def components(batch: Any, *, collated: bool = True) -> Iterator[Any]:
    """Yield the parts of a batch: arrays or tensors [B, ...], and lists of B texts, or of B arrays of different sizes.

    PyTorch's `DataLoader` gives the parts in a list (`collated`), where they have the same first axis.
    """
    if collated and isinstance(batch, list):
        sizes = {tuple(part.shape)[:1] for part in batch if hasattr(part, "shape")}
        nested = any(isinstance(part, Mapping | list | tuple) for part in batch)
        batch = tuple(batch) if nested or (len(sizes) == 1 and () not in sizes) else batch
    else:
        collated = False
    if isinstance(batch, Mapping | tuple):
        for part in batch.values() if isinstance(batch, Mapping) else batch:
            yield from components(part, collated=collated)
    elif batch is not None:
        yield batch


def batch_size_of(batch: Any) -> int:
    """Return the number of samples in a batch: the length of its first part; 1 for a single number, and for nothing."""
    first: Any = next(components(batch), 0)
    if isinstance(first, list):
        return len(first)
    if isinstance(replicas := getattr(first, "values", None), tuple):  # of tf.distribute
        return sum(map(batch_size_of, replicas))
    shape: Any = getattr(first, "shape", ())
    return int(shape[0]) if len(shape) else 1


def rarest_classes(labels: Sequence[Sequence[int]]) -> Array:
    """Return the class of each sample that fewest samples have, int64 [N]; -1 for a sample without a class."""
    counts = Counter(number for numbers in labels for number in set(numbers))
    rarest = (min(numbers, key=lambda number: (counts[number], number), default=-1) for numbers in labels)
    return np.fromiter(rarest, np.int64, len(labels))


def field_name_fault(name: object) -> str:
    """Return why this cannot be the name of a field; "" if it can be.

    Field names become names of features, of columns, and of files (`FIELD.labels.txt`), so they hold nothing that has a meaning
    there.
    """
    if not isinstance(name, str) or not _FIELD_NAME.fullmatch(name):
        rule = f"a letter or '_', then letters, digits and '_', at most {_MOST_NAME_CHARACTERS} characters"
        return f"the name of a field is {rule}, not {name!r:.120}"
    return f"the loader itself adds the field {name!r}; choose another name" if name in EXTRA_FIELDS else ""


BoxFormat: TypeAlias = Literal[
    "xyxy", "yxyx", "xywh", "center_xywh", "center_yxhw", "rel_xyxy", "rel_yxyx", "rel_xywh", "rel_center_xywh"
]
BOX_FORMATS: tuple[str, ...] = get_args(BoxFormat)
_LIBRARIES = {"tensorflow": "tensorflow", "torch": "torch", "jax": "jax.numpy", "jaxlib": "jax.numpy"}
"""The module whose `stack` joins the columns of an array, by the package of the array's type; NumPy for all others."""


def check_box_format(format: Any, where: str) -> None:
    """Raise RecipeError unless `format` is the name of a form of boxes."""
    if format not in BOX_FORMATS:
        raise RecipeError(f"{where}: a form of boxes is one of {', '.join(BOX_FORMATS)}; got {format!r}")


def convert_boxes(boxes: Any, target: BoxFormat, *, source: BoxFormat = "xyxy", size: Size | None = None) -> Any:
    """Convert boxes from one form to another.

    Args:
        boxes: Numbers [..., 4]: a list, an array of NumPy or JAX, a tensor of TensorFlow (or ragged, [B, None, 4]) or PyTorch.
        target: The form of the result.
        source: The form of `boxes`.
        size: (height, width) of the image in pixels. It is needed between a relative form and one in pixels.

    Returns:
        The same type and shape, of a list an array. Rows of four -1, with which `pad=` of a loader fills up, stay as they are.

    Raises:
        RecipeError: A form is unknown, `size` is missing, or the array is not [..., 4].

    Example:
        >>> convert_boxes(np.array([[10.0, 20.0, 30.0, 60.0]]), "rel_center_xywh", size=(100, 200))
        array([[0.1, 0.4, 0.1, 0.4]])
    """
    check_box_format(source, "source")
    check_box_format(target, "target")
    if hasattr(boxes, "with_flat_values"):
        return boxes.with_flat_values(convert_boxes(boxes.flat_values, target, source=source, size=size))
    if isinstance(boxes, list):
        boxes = np.asarray(boxes) if boxes else np.zeros((0, 4))
    if isinstance(boxes, np.ndarray) and boxes.dtype.kind in "iu":
        boxes = boxes.astype(np.int64)  # sums in 8 or 16 bits would overflow
    if isinstance(boxes, np.ndarray) and boxes.shape[-1:] != (4,):
        raise RecipeError(f"boxes are numbers [..., 4], not an array of shape {boxes.shape}")
    sides = [boxes[..., column] for column in range(4)]
    columns = _corners(sides, source)
    relative = source.startswith("rel_"), target.startswith("rel_")
    if relative[0] != relative[1]:
        if size is None:
            raise RecipeError(f"boxes from {source} to {target} need size=(height, width) of the image in pixels")
        factors = (size[1], size[0]) * 2
        columns = [c * f if relative[0] else c / f for c, f in zip(columns, factors, strict=True)]
    library = importlib.import_module(_LIBRARIES.get(type(boxes).__module__.partition(".")[0], "numpy"))
    filler = (sides[0] == -1) & (sides[1] == -1) & (sides[2] == -1) & (sides[3] == -1)
    columns = _from_corners(columns, target)
    return library.stack([library.where(filler, -library.ones_like(column), column) for column in columns], -1)


def _corners(columns: Sequence[Any], source: str) -> list[Any]:
    a, b, c, d = columns
    form = source.removeprefix("rel_")
    if form in ("yxyx", "center_yxhw"):
        a, b, c, d = b, a, d, c
    if form == "xywh":
        return [a, b, a + c, b + d]
    if form.startswith("center"):
        return [a - c / 2, b - d / 2, a + c / 2, b + d / 2]
    return [a, b, c, d]


def _from_corners(columns: Sequence[Any], target: str) -> list[Any]:
    x0, y0, x1, y1 = columns
    form = target.removeprefix("rel_")
    if form == "xywh":
        return [x0, y0, x1 - x0, y1 - y0]
    if form == "center_xywh":
        return [(x0 + x1) / 2, (y0 + y1) / 2, x1 - x0, y1 - y0]
    if form == "center_yxhw":
        return [(y0 + y1) / 2, (x0 + x1) / 2, y1 - y0, x1 - x0]
    return [y0, x0, y1, x1] if form == "yxyx" else [x0, y0, x1, y1]
