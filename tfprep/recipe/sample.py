"""A sample is a pure function of its fields and of its draws: geometry, then derived inputs, then color.

Builds and loaders make every sample with `Stages`, from the same ops, so that a stage runs ahead of training or at load with the
same result. Each stage maps a mapping to a new mapping. An error, in tfprep or in a user's function, becomes a SampleError that
names the stage and the field.
"""

from __future__ import annotations

import dataclasses
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from time import perf_counter
from types import MappingProxyType, TracebackType
from typing import Any, TypeAlias, TypeVar

import numpy as np

from tfprep.augment.aligned import Border
from tfprep.augment.chain import Custom, apply_colors, apply_geometry, check_finite, check_unmasked, is_tone
from tfprep.augment.transform import ColorOp, GeometryOp, Transform, Window, WindowOp, identity
from tfprep.augment.warp import Fill, warp_sample
from tfprep.derive.inputs import Derived, derived_kind
from tfprep.errors import BuildError, SampleError, summary_of
from tfprep.fields import RASTER_KINDS, Array, ImageArray, Kind, Sample, Size, raster_size

T = TypeVar("T")
Draws: TypeAlias = Callable[[str], "np.random.Generator | None"]
"""The generator of a step, such as "geometry/Flip/0"; None where the step takes its unaugmented form. Each call
begins with the first draw. A derived input always draws: its steps, such as "derive/clicks", have a generator in any case."""
_MOST_SIZES = 1000
"""Sizes of images whose transform is kept."""


@dataclass(frozen=True)
class Stages:
    """Geometry, derived inputs and color, the options of a recipe or of a loader.

    Attributes:
        kinds: The kinds of the fields that come in.
        geometry, derive, color: As in `Recipe`.
        border, fill, min_visible, row_fields, flip_indices: How fields follow geometry, as in `Recipe`.
        seconds: Adds up the time spent, by stage.
    """

    kinds: Mapping[str, Kind]
    geometry: Sequence[GeometryOp | Custom] = ()
    derive: Mapping[str, Derived] = dataclasses.field(default_factory=dict)
    color: Sequence[ColorOp] = ()
    border: Border = "constant"
    fill: Mapping[str, Fill | None] = dataclasses.field(default_factory=dict)
    min_visible: float = 0.0
    row_fields: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)
    flip_indices: Mapping[str, Sequence[int]] = dataclasses.field(default_factory=dict)
    seconds: dict[str, float] = dataclasses.field(default_factory=dict, compare=False)
    _unaugmented: dict[Size, Transform] = dataclasses.field(default_factory=dict, compare=False, init=False)
    """The transform of the unaugmented form, which is made once for all images of one size (`GeometryOp`)."""

    def make(
        self,
        sample: Sample,
        draws: Draws,
        *,
        size: Size | None = None,
        transform: Transform | None = None,
        reduced: int = 1,
    ) -> Sample:
        """Return the sample after all stages.

        Args:
            sample: The decoded fields. They are not changed.
            draws: The draws of each step.
            size: (height, width) of the sample's rasters; by default as they are.
            transform: What `transform(draws, size)` returned, if it was asked.
            reduced: The factor by which a JPEG was reduced when it was decoded (`tfprep.augment.warp.warp_sample`).

        Raises:
            SampleError: A stage cannot work on this sample.
            BuildError: A user's function imports a module that is not installed.
        """
        size = size or raster_size(sample, self.kinds)
        if self._has_custom:
            sample = self._customized(sample, draws)
        elif transform := transform or self.transform(draws, size):
            with SampleStage(self.seconds, "geometry"):
                sample = warp_sample(sample, self.kinds, transform, size=size, reduced=reduced, **self.rules)
        if self.derive:
            sample = self._derived(sample, draws)
        return self._colored(sample, draws) if self.color or self._policies else sample

    def transform(self, draws: Draws, size: Size | None) -> Transform | None:
        """Return all geometry as one transform; None where there is nothing to do, or it is not known ahead (`Custom`)."""
        if size is None or not self.geometry or self._has_custom:
            return None
        whole, unaugmented = identity(size), False
        with (stage := SampleStage(self.seconds, "geometry")):
            for number, (stage.field, op) in enumerate(self._geometry_steps):
                generator = draws(stage.field)
                if not number and (unaugmented := generator is None) and size in self._unaugmented:
                    return self._unaugmented[size]
                whole = whole.then(op(whole.size, generator))
        # A bend may hold maps of all pixels.
        if unaugmented and not whole.bends and len(self._unaugmented) < _MOST_SIZES:
            whole.matrix.flags.writeable = False
            self._unaugmented[size] = whole
        return whole

    @cached_property
    def only_cuts(self) -> bool:
        """Return True if there is nothing to do but to cut and mirror rasters by whole pixels (`window`)."""
        cuts = [isinstance(op, WindowOp) and type(op).__call__ is WindowOp.__call__ for op in self.geometry]
        has_places = {"boxes", "points"} & {*self.kinds.values()}
        return all(cuts) and bool(cuts) and not (self.derive or self.color or has_places)

    def window(self, draws: Draws, size: Size) -> Window:
        """Return the window that all geometry amounts to where stages are `only_cuts`."""
        whole = Window(0, 0, *size)
        with (stage := SampleStage(self.seconds, "geometry")):
            for stage.field, op in self._geometry_steps:
                whole = whole.then(op.window((whole.height, whole.width), draws(stage.field)))
        return whole

    # --- geometry -----------------------------------------------------------------------------------------------------

    @cached_property
    def _has_custom(self) -> bool:
        """Return True if a function of whole samples is among the geometry, so that transforms are not known ahead."""
        return any(isinstance(op, Custom) for op in self.geometry)

    @cached_property
    def _geometry_steps(self) -> Sequence[tuple[str, Any]]:
        return list(named_steps("geometry", self.geometry))

    @cached_property
    def rules(self) -> Mapping[str, Any]:
        """What comes to be outside the image, and the rows of boxes and points: options of `warp_sample`."""
        names = ("border", "fill", "min_visible", "row_fields", "flip_indices")
        return {name: getattr(self, name) for name in names}

    def _customized(self, sample: Sample, draws: Draws) -> Sample:
        """Geometry with whole-sample functions in it: one resampling between two of them."""
        with SampleStage(self.seconds, "geometry"):
            steps = ((op, draws(step)) for step, op in self._geometry_steps)
            # A function may write into its sample; the next variant begins with the same decoded one.
            own = {name: value.copy() if isinstance(value, np.ndarray) else value for name, value in sample.items()}
            return apply_geometry(own, self.kinds, steps, **self.rules)

    # --- derived inputs -----------------------------------------------------------------------------------------------

    def _derived(self, sample: Sample, draws: Draws) -> Sample:
        fields, size = _read_only(sample), raster_size(sample, self.kinds)
        with (stage := SampleStage(self.seconds, "derive")):
            for stage.field, derived in self.derive.items():
                generator: Any = draws(f"derive/{stage.field}")
                value = derived(MappingProxyType(fields), generator)
                check_unmasked(stage.field, value)
                _check_value(value, derived_kind(derived), size)
                fields |= _read_only({stage.field: value})
        return fields

    # --- color --------------------------------------------------------------------------------------------------------

    @cached_property
    def _color_steps(self) -> Sequence[tuple[str, ColorOp]]:
        return list(named_steps("color", self.color))

    @cached_property
    def _policies(self) -> Sequence[tuple[str, Any]]:
        """The geometry ops that have a color half, of the same draws: RandAugment and TrivialAugment."""
        return [(step, op) for step, op in self._geometry_steps if callable(getattr(type(op), "color_ops", None))]

    def _colored(self, sample: Sample, draws: Draws) -> Sample:
        changed = {}
        for name, image in _read_only(sample).items():
            if self.kinds.get(name) == "image":
                with SampleStage(self.seconds, "color", name):
                    changed[name] = apply_colors(image, self._drawn_colors(image, draws))
        return {**sample, **changed}

    def _drawn_colors(self, image: ImageArray, draws: Draws) -> Iterator[tuple[ColorOp, np.random.Generator]]:
        """The color halves of policies, with the draws they had among the geometry, then the color ops; each with its draws."""
        for step, policy in self._policies:
            if (generator := draws(step)) is not None:
                _check_color_op(policy, image)
                for number, color in enumerate(policy.color_ops(generator)):
                    if (inner := draws(f"{step}/{number}")) is not None:
                        yield color if is_tone(color) else partial(_called_color, step, color), inner
        for step, op in self._color_steps:
            if (generator := draws(step)) is not None:
                _check_color_op(op, image)
                yield op if is_tone(op) else partial(_called_color, step, op), generator


def _called_color(step: str, op: ColorOp, image: ImageArray, draws: np.random.Generator, /) -> ImageArray:
    """Call an op, its step named in whatever it raises, and look at what it returns. Those of tfprep see a gray image as RGB."""
    gray_as_rgb = image.shape[2] == 1 and _is_ours(op) and not getattr(op, "any_image", False)
    with SampleStage({}, "color", step):
        changed: Any = op(np.repeat(image, 3, axis=2), draws)[:, :, :1] if gray_as_rgb else op(image, draws)
        if type(changed) is not np.ndarray or changed.dtype != image.dtype or changed.shape != image.shape:
            got = f"{changed.dtype} {changed.shape}" if type(changed) is np.ndarray else type(changed).__name__
            raise SampleError(f"a color op returns {image.dtype} {image.shape}, this one returned {got}")
        check_finite(changed)
        return changed


def named_steps(stage: str, ops: Sequence[T]) -> Iterator[tuple[str, T]]:
    """Each op with the name of its draws, such as `geometry/Rotate/0`: ops of other types do not change it."""
    seen: Counter[str] = Counter()
    for op in ops:
        name = getattr(op, "__name__", type(op).__name__)
        yield f"{stage}/{name}/{seen[name]}", op
        seen[name] += 1


def _read_only(sample: Sample) -> dict[str, Any]:
    """The sample with arrays that a user's function cannot write into: other variants and stored fields share them."""
    fields = dict(sample)
    for name, value in sample.items():
        if isinstance(value, np.ndarray):
            fields[name] = value.view()
            fields[name].flags.writeable = False
    return fields


# --- checks ---------------------------------------------------------------------------------------------------------


def _is_ours(op: Any) -> bool:
    return type(op).__module__.startswith("tfprep.augment.")


def _check_color_op(op: Any, image: Array) -> None:
    """Raise SampleError if an op of tfprep would change an image that is not 8-bit gray or RGB, and cannot."""
    plain = image.dtype == np.uint8 and image.shape[2] in (1, 3)
    if not plain and _is_ours(op) and not getattr(op, "any_image", False):
        form = f"{image.dtype} [H, W, {image.shape[2]}]"
        raise SampleError(
            f"{type(op).__name__} is defined for uint8 [H, W, 3], this image is {form}; leave it out, write a function "
            "of your own, or let the source make 8 bits of it (sources.Pixels(to='uint8'))"
        )


def check_form(value: Any, kind: Kind) -> None:
    """Raise SampleError unless a value has the dtype and the number of dimensions of its kind, as `tfprep.fields` says."""
    if kind == "text":
        if not isinstance(value, str):
            raise SampleError(f"expected a str, got {type(value).__name__}")
        return
    rule, dtypes, dimensions, last = _FORMS[kind]
    if not isinstance(value, np.ndarray):
        raise SampleError(f"expected a NumPy array, got {type(value).__name__}: it is {rule}")
    is_of_dtype = value.dtype.kind in dtypes or str(value.dtype) in dtypes  # ">u2" is not "uint16"
    if not is_of_dtype or value.ndim not in (dimensions or (value.ndim,)) or (last and value.shape[-1] not in last):
        raise SampleError(f"expected {rule}, got {value.dtype} {list(value.shape)}")


def _check_value(value: Any, kind: Kind, size: Size | None) -> None:
    """Raise SampleError unless a derived value has the form of its kind, and the size of the image, and is finite."""
    value = np.asarray(value) if isinstance(value, np.generic) else value
    check_form(value, kind)
    if kind in RASTER_KINDS and size is not None and value.shape[:2] != size:
        raise SampleError(f"expected an array of height and width {size}, got shape {value.shape}")
    check_finite(value)


_FORMS: Mapping[str, tuple[str, Sequence[str], Sequence[int], Sequence[int]]] = {
    "image": ("an image, uint8, uint16 or float32 [H, W, C]", ["uint8", "uint16", "float32"], [3], []),
    "mask": ("a mask, whole numbers [H, W]", "iu", [2], []),
    "map": ("a map, numbers [H, W] or [H, W, C]", "biuf", [2, 3], []),
    "boxes": ("boxes, numbers [N, 4]", "iuf", [2], [4]),
    "points": ("points, numbers [N, 2] or [N, 3], or [N, K, 2] or [N, K, 3]", "iuf", [2, 3], [2, 3]),
    "label": ("a label, whole numbers: one class, or [K]", "iu", [0, 1], []),
    "scalar": ("numbers", "biuf", [], []),
}
"""By kind the rule, the dtypes or the letters of their kinds, the numbers of dimensions, and the last side; none for any."""


# --- time and errors of a stage ---------------------------------------------------------------------------------------


class SampleStage:
    """A context that adds its duration to `seconds[stage]`; what it raises becomes a SampleError of the stage and the field.

    That is any exception of a user's function, such as SystemExit and GeneratorExit; KeyboardInterrupt only where Ctrl-C is
    ignored, as in worker processes. A failed import ends the build as a BuildError: it is not a fault of the sample, and another
    machine of the build may have what is missing here.
    """

    __slots__ = ("field", "seconds", "stage", "started")

    def __init__(self, seconds: dict[str, float], stage: str, field: str = "") -> None:
        self.seconds, self.stage, self.field, self.started = seconds, stage, field, perf_counter()

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.seconds[self.stage] = self.seconds.get(self.stage, 0.0) + perf_counter() - self.started
        if error is None or isinstance(error, BuildError):  # a stage inside this one has named itself
            return
        if isinstance(error, SampleError):
            raise error.located(stage=self.stage, field=self.field) from error
        if isinstance(error, ImportError):
            where = f"{self.stage} of '{self.field}'" if self.field else self.stage
            raise BuildError(f"{where}: {summary_of(error)}") from error
        from_keyboard = isinstance(error, KeyboardInterrupt) and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN
        if not from_keyboard:
            raise SampleError(summary_of(error), stage=self.stage, field=self.field) from error
