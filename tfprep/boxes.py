"""Forms of boxes, by the names that Keras gives them, and conversion between them.

tfprep keeps boxes as `xyxy`: left, top, right and bottom in continuous pixels, where the image covers [0, W] x [0, H]. The other
forms are those of `keras.utils.bounding_boxes.convert_format`. `rel_` forms are shares of the image's width and height.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias, get_args

from tfprep.errors import RecipeError
from tfprep.fields import Size

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
        boxes: Numbers [..., 4]: an array of NumPy or JAX, a tensor of TensorFlow or PyTorch, or a `tf.RaggedTensor` [B, None, 4].
        target: The form of the result.
        source: The form of `boxes`.
        size: (height, width) of the image in pixels. It is needed between a relative form and one in pixels.

    Returns:
        The same type and shape. Rows of four -1, with which `pad=` of a loader fills up, stay as they are.

    Raises:
        RecipeError: A form is unknown, or `size` is missing.

    Example:
        >>> convert_boxes(np.array([[10.0, 20.0, 30.0, 60.0]]), "rel_center_xywh", size=(100, 200))
        array([[0.1, 0.4, 0.1, 0.4]])
    """
    check_box_format(source, "source")
    check_box_format(target, "target")
    if hasattr(boxes, "with_flat_values"):
        return boxes.with_flat_values(convert_boxes(boxes.flat_values, target, source=source, size=size))
    given = [boxes[..., column] for column in range(4)]
    columns = _corners(given, source)
    relative = source.startswith("rel_"), target.startswith("rel_")
    if relative[0] != relative[1]:
        if size is None:
            raise RecipeError(f"boxes from {source} to {target} need size=(height, width) of the image in pixels")
        factors = (size[1], size[0]) * 2
        columns = [c * f if relative[0] else c / f for c, f in zip(columns, factors, strict=True)]
    return _stack(boxes, given, _from_corners(columns, target))


def _corners(columns: Sequence[Any], source: str) -> list[Any]:
    """Columns x0, y0, x1, y1."""
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


def _stack(boxes: Any, given: list[Any], columns: list[Any]) -> Any:
    """The columns as one array of the library of `boxes`; rows of which all `given` columns are -1 are filler and stay."""
    library = importlib.import_module(_LIBRARIES.get(type(boxes).__module__.partition(".")[0], "numpy"))
    filler = (given[0] == -1) & (given[1] == -1) & (given[2] == -1) & (given[3] == -1)
    return library.stack([library.where(filler, -library.ones_like(column), column) for column in columns], -1)
