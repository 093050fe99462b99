"""Casting, normalising and resizing of the delivered values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import numpy as np

from tfprep.augment.transform import GeometryOp, Transform, identity
from tfprep.errors import LoaderError
from tfprep.fields import RASTER_KINDS, FieldSpec, Size
from tfprep.load.outputs import WEIGHT, Outputs, channels_of
from tfprep.optional import require_package

if TYPE_CHECKING:
    from tfprep.dataset import Statistics  # it imports pyarrow, which worker processes do without

FloatType: TypeAlias = Literal["float32", "float16", "bfloat16"]

_PROBES: tuple[Size, ...] = ((480, 640), (97, 61), (3000, 2000))


def mean_and_std(
    names: Sequence[str], specs: Mapping[str, FieldSpec], statistics: Mapping[str, Statistics]
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The mean and standard deviation of each channel of these fields, stacked.

    Images have those of the training split. Fields without statistics are only scaled: whole numbers to [0, 1] by their type's
    range, floats not at all.
    """
    mean: list[float] = []
    std: list[float] = []
    for name in names:
        channels = channels_of(specs[name])
        if name in statistics:
            mean += statistics[name].mean
            std += [value or 1.0 for value in statistics[name].std]
        else:
            kind = np.dtype(specs[name].dtype)
            mean += [0.0] * channels
            std += [float(np.iinfo(kind).max) if kind.kind in "iu" else 1.0] * channels
    return tuple(mean), tuple(std)


def convert(
    outputs: Outputs,
    specs: Mapping[str, FieldSpec],
    statistics: Mapping[str, Statistics],
    dtype: FloatType | None,
    normalize: bool,
) -> Outputs:
    """The outputs with images and maps as `dtype`, normalised if asked; masks, labels and other fields stay as they are."""
    if dtype is None:
        if normalize:
            raise LoaderError(
                "normalize=True makes fractions: name their dtype as well, 'float32', 'float16' or 'bfloat16'"
            )
        return outputs
    if dtype not in get_args(FloatType):
        raise LoaderError(f"dtype is {', '.join(get_args(FloatType))}, or None for what is stored, not {dtype!r}")
    if dtype == "bfloat16":
        require_bfloat16()
    converted = []
    for output in outputs.outputs:
        kinds = {specs[name].kind for name in output.fields if name in specs}
        if not kinds & {"image", "map"} or output.name == WEIGHT:
            converted.append(output)
            continue
        wide = [
            name for name in output.fields if np.dtype(specs[name].dtype) in (np.uint16, np.uint32, np.int32, np.int64)
        ]
        if dtype == "float16" and wide and not normalize:
            raise LoaderError(
                f"float16 ends at 65,504; '{wide[0]}' holds {specs[wide[0]].dtype}: use normalize, or float32"
            )
        mean, std = mean_and_std(output.fields, specs, statistics) if normalize else (None, None)
        converted.append(replace(output, dtype=dtype, mean=mean, std=std))
    return Outputs(tuple(converted), outputs.structure)


def require_bfloat16() -> None:
    """Importing ml_dtypes teaches NumPy the name 'bfloat16'."""
    require_package("ml_dtypes", "bfloat16")
    import ml_dtypes  # noqa: F401


def transform_of(geometry: Sequence[GeometryOp], size: Size) -> Transform:
    """All ops, in their unaugmented form, as one transform of an image of this size."""
    whole = identity(size)
    for op in geometry:
        whole = whole.then(op(whole.size, None))
    return whole


def warped_spec(spec: FieldSpec, geometry: Sequence[GeometryOp]) -> FieldSpec:
    """The spec of a field after the ops: a side is known if they produce it for every size."""
    if not geometry or spec.kind not in RASTER_KINDS:
        return spec
    height, width = spec.shape[:2]
    probes = _PROBES if height is None or width is None else ((height, width),)
    sizes = [transform_of(geometry, probe).size for probe in probes]
    known = [sides[0] if len(set(sides)) == 1 else None for sides in zip(*sizes, strict=True)]
    return FieldSpec(spec.kind, (*known, *spec.shape[2:]), spec.dtype)


def check_geometry(geometry: Any) -> None:
    if not isinstance(geometry, Sequence) or isinstance(geometry, str) or not all(callable(op) for op in geometry):
        raise LoaderError(f"geometry is a list of ops such as augment.Resize(224, 224), not {geometry!r}")
