"""Turns one raw sample into its variants: decode, then geometry, derived inputs, color and codecs for each variant.

Every stage is a pure function from mapping to mapping. An error, in tfprep or in a user's function, becomes a SampleError that
names the stage and the field, so that the sample is rejected and the build goes on.
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
from typing import Any, Protocol, TypeGuard, TypeVar

import numpy as np

from tfprep import images
from tfprep.augment.chain import Custom, apply_colors, apply_geometry, is_tone
from tfprep.augment.transform import ColorOp, Transform, identity
from tfprep.augment.warp import Fill, reduction_for, warp_sample
from tfprep.codecs import Feature, Original
from tfprep.errors import BuildError, SampleError, summary_of
from tfprep.fields import RASTER_KINDS, Array, FieldSpec, ImageArray, Kind, Sample, Size, raster_size
from tfprep.recipe import Recipe
from tfprep.recipe.checks import derived_kind
from tfprep.seeding import generator
from tfprep.sources import FieldDecoder
from tfprep.sources.pixels import PixelDecoder

T = TypeVar("T")
_MOST_SIZES = 1000
"""Sizes of images whose transform is kept."""


class PolicyOp(Protocol):
    """A geometry op that has a color half, of the same draws: RandAugment and TrivialAugment."""

    def color_ops(self, generator: np.random.Generator) -> tuple[ColorOp, ...]: ...


@dataclass(frozen=True)
class Stored:
    """One variant, ready to be written: its features, what each stored field is, and the values behind them."""

    features: Mapping[str, Feature]
    specs: Mapping[str, FieldSpec]
    values: Sample


@dataclass(frozen=True)
class SampleMaker:
    """A recipe applied to the samples of one source; `kinds` and `classes` are those of its listing.

    `seconds` adds up the time spent, by stage.
    """

    recipe: Recipe
    kinds: Mapping[str, Kind]
    classes: Mapping[str, Sequence[str]]
    seconds: dict[str, float] = dataclasses.field(default_factory=dict, compare=False)
    _unaugmented: dict[Size, Transform] = dataclasses.field(default_factory=dict, compare=False, init=False)
    """The transform of variant 0, which is made once for all images of one size (`GeometryOp`)."""

    def variants(self, key: str, raw: Mapping[str, Any], count: int, *, pixels: bool = True) -> Iterator[Stored]:
        """The first `count` variants of a raw sample, one at a time, encoded. Raises SampleError.

        Without `pixels`, an image that is stored by its own bytes and needed for nothing else is not decoded: its value
        stays bytes.
        """
        for sample in self.made(key, raw, range(count), pixels=pixels):
            yield self._encode(sample, raw)

    def made(
        self, key: str, raw: Mapping[str, Any], variants: Sequence[int], *, pixels: bool = True
    ) -> Iterator[Sample]:
        """These variants of a raw sample as values, one at a time. Raises SampleError.

        `raw` holds a file's bytes, or a value, by field. Each variant decides by itself at which scale its image is decoded, so
        that it does not depend on the number of variants; variants of one scale share one decode.
        """
        size = self._upright_size(raw)
        decoded: dict[int, Sample] = {}
        for variant in variants:
            transform = self._transform(key, variant, size)
            reduced = 1  # the factor by which a JPEG is reduced when it is decoded
            if transform is not None and self._reducible:
                file = raw[self._reducible]
                reduced = reduction_for(transform) if isinstance(file, bytes) and images.is_jpeg(file) else 1
            if reduced not in decoded:
                decoded[reduced] = self._decode(raw, size, reduced, pixels)
            sample = decoded[reduced]
            if self._custom:
                sample = self._customized(sample, key, variant)
            elif transform is not None:
                with self._stage("geometry"):
                    sample = warp_sample(
                        sample, self.kinds, transform, size=size, reduced=reduced, **self._warp_options()
                    )
            sample = self._derive(_read_only(sample), key, variant)
            sample = self._color(sample, key, variant) if variant else sample
            stacks = {}
            for name, fields in self.recipe.stack.items():
                with self._stage("stack", name):
                    stacks[name] = _stacked([sample[field] for field in fields])
            yield {**sample, **stacks}

    @cached_property
    def _decoders(self) -> Mapping[str, FieldDecoder]:
        decoders: Mapping[str, FieldDecoder] = getattr(self.recipe.source, "decoders", dict)()
        return decoders

    def converts_color(self, name: str) -> bool:
        """Tells if the colors of an image field are converted to sRGB by the profiles in its files."""
        decoder = self._decoders.get(name)
        return isinstance(decoder, PixelDecoder) and decoder.pixels.srgb

    @cached_property
    def _custom(self) -> bool:
        """Return whether a function of whole samples stands among the geometry, so that transforms are not known ahead."""
        return any(isinstance(op, Custom) for op in self.recipe.geometry)

    def _upright_size(self, raw: Mapping[str, Any]) -> Size | None:
        """(height, width) that all rasters of the sample share, from their headers; SampleError where they do not."""
        sizes: dict[str, Size] = {}
        for name in (name for name, kind in self.kinds.items() if kind in RASTER_KINDS):
            with self._stage("decode", name):
                if name in self._decoders:
                    size = self._decoders[name].size(raw)
                else:
                    value = raw[name]
                    size = images.image_size(value) if isinstance(value, bytes) else np.shape(value)[:2]
                if size is not None:
                    sizes[name] = size
        if len(set(sizes.values())) > 1:
            listed = ", ".join(f"{name} is {width} x {height}" for name, (height, width) in sizes.items())
            raise SampleError(f"images, masks and maps of one sample have one size; {listed}", stage="decode")
        return next(iter(sizes.values()), None)

    @cached_property
    def _reducible(self) -> str:
        """The field that may be decoded at a part of its size; "" where masks or maps lie on the pixels of the whole image."""
        rasters = [name for name, kind in self.kinds.items() if kind in RASTER_KINDS]
        alone = len(rasters) == 1 and rasters[0] not in self._decoders
        return rasters[0] if self.recipe.dct_downscale and alone else ""

    def _decode(self, raw: Mapping[str, Any], size: Size | None, reduced: int, pixels: bool) -> Sample:
        sample = {}
        for name in self.kinds:
            with self._stage("decode", name):
                value = raw.get(name)
                if name in self._decoders:
                    sample[name] = self._decoders[name].decode(raw, size)
                elif not pixels and isinstance(value, bytes) and self._is_stored_unseen(name, value):
                    sample[name] = value
                else:
                    sample[name] = _decode_field(raw[name], self.kinds[name], reduced)
                if name in self.classes and self.kinds[name] in ("mask", "label"):
                    fill, mask = self.recipe.fill.get(name), self.kinds[name] == "mask"
                    _check_classes(name, sample[name], self.classes[name], fill, mask)
        return sample

    def _is_stored_unseen(self, name: str, data: bytes) -> bool:
        """Return whether the file can be stored without looking at its pixels."""
        stored = isinstance(self.recipe.store.get(name), Original) and not self.recipe.derive and not self.recipe.stack
        return stored and images.certain_to_decode(data) and images.keeps_original(data)

    def _transform(self, key: str, variant: int, size: Size | None) -> Transform | None:
        """All geometry of a variant as one transform; None where there is nothing to do, or it is not known ahead."""
        if size is None or not self.recipe.geometry or self._custom:
            return None
        if not variant and size in self._unaugmented:
            return self._unaugmented[size]
        whole = identity(size)
        for step, op in _steps("geometry", self.recipe.geometry):
            with self._stage("geometry", step):
                draws = generator(self.recipe.seed, key, variant, step) if variant else None
                whole = whole.then(op(whole.size, draws))
        if (
            not variant and not whole.bends and len(self._unaugmented) < _MOST_SIZES
        ):  # a bend may hold maps of all pixels
            whole.matrix.flags.writeable = False
            self._unaugmented[size] = whole
        return whole

    def _customized(self, sample: Sample, key: str, variant: int) -> Sample:
        """Geometry with whole-sample functions in it: one resampling between two of them."""
        with self._stage("geometry"):
            steps = [
                (op, generator(self.recipe.seed, key, variant, step) if variant else None)
                for step, op in _steps("geometry", self.recipe.geometry)
            ]
            # A function may write into its sample; the next variant begins with the same decoded one.
            own = {name: value.copy() if isinstance(value, np.ndarray) else value for name, value in sample.items()}
            return apply_geometry(own, self.kinds, steps, **self._warp_options())

    def _warp_options(self) -> dict[str, Any]:
        """The recipe's options for what comes to lie outside the image, and for the rows of boxes and points."""
        recipe = self.recipe
        options = ("border", "fill", "min_visible", "row_fields", "flip_indices")
        return {name: getattr(recipe, name) for name in options}

    def _derive(self, sample: Sample, key: str, variant: int) -> Sample:
        fields = dict(sample)
        for name, derived in self.recipe.derive.items():
            with self._stage("derive", name):
                value = derived(MappingProxyType(fields), generator(self.recipe.seed, key, variant, f"derive/{name}"))
                _check_value(value, derived_kind(derived), raster_size(sample, self.kinds))
                fields |= _read_only({name: value})
        return fields

    def _color(self, sample: Sample, key: str, variant: int) -> Sample:
        if not self.recipe.color and not any(_is_policy(op) for op in self.recipe.geometry):
            return sample
        changed = {}
        for name, image in sample.items():
            if self.kinds.get(name) == "image":
                with self._stage("color", name):
                    self._check_color_ops(image)
                    changed[name] = apply_colors(image, self._color_steps(key, variant))
        return {**sample, **changed}

    def _check_color_ops(self, image: Array) -> None:
        """Raise SampleError if an op of tfprep would change an image that is not 8-bit gray or RGB."""
        if image.dtype == np.uint8 and image.shape[2] in (1, 3):
            return
        ops = (*self.recipe.color, *filter(_is_policy, self.recipe.geometry))
        if (op := next((op for op in ops if type(op).__module__.startswith("tfprep.augment.")), None)) is not None:
            form = f"{image.dtype} [H, W, {image.shape[2]}]"
            raise SampleError(
                f"{type(op).__name__} is defined for uint8 [H, W, 3], this image is {form}; leave it out, write a function "
                "of your own, or let the source make 8 bits of it (sources.Pixels(to='uint8'))"
            )

    def _color_steps(self, key: str, variant: int) -> Iterator[tuple[ColorOp, np.random.Generator]]:
        """The color halves of policies among the geometry, with the draws they had there, then the recipe's own ops."""
        for step, op in _steps("geometry", self.recipe.geometry):
            if _is_policy(op):
                for number, color in enumerate(op.color_ops(generator(self.recipe.seed, key, variant, step))):
                    yield color, generator(self.recipe.seed, key, variant, f"{step}/{number}")
        for step, color in _steps("color", self.recipe.color):
            checked = color if is_tone(color) else partial(self._call_color, step, color)
            yield checked, generator(self.recipe.seed, key, variant, step)

    def _call_color(self, step: str, op: ColorOp, image: ImageArray, draws: np.random.Generator, /) -> ImageArray:
        """Call an op, its step named in whatever it raises, and look at what it returns."""
        with self._stage("color", step):
            changed: Any = op(image, draws)
            if not isinstance(changed, np.ndarray) or changed.dtype != image.dtype or changed.shape != image.shape:
                got = f"{changed.dtype} {changed.shape}" if isinstance(changed, np.ndarray) else type(changed).__name__
                raise SampleError(f"a color op returns {image.dtype} {image.shape}, this one returned {got}")
            return changed

    def _encode(self, sample: Sample, raw: Mapping[str, Any]) -> Stored:
        features: dict[str, Feature] = {}
        specs: dict[str, FieldSpec] = {}
        kinds = {**self.kinds, **self.recipe.derived_kinds()}
        for name, codec in self.recipe.store.items():
            with self._stage("encode", name):
                value = sample[name]
                # The file's bytes where they can be stored as they are; they can where nobody looked at the pixels.
                if isinstance(codec, Original) and name not in self._decoders and not isinstance(value, bytes):
                    file = raw[name]
                    value = file if isinstance(file, bytes) and images.keeps_original(file) else value
                features |= {name + suffix: feature for suffix, feature in codec.encode(value).items()}
                specs[name] = codec.spec(kinds[name], value)
        return Stored(features, specs, sample)

    def _stage(self, stage: str, field: str = "") -> SampleStage:
        return SampleStage(self.seconds, stage, field)


# --- decoding -------------------------------------------------------------------------------------------------------


def _decode_field(value: Any, kind: Kind, reduced: int) -> Any:
    """A file's bytes as the array of its kind; a value of the listing as an array."""
    if isinstance(value, bytes):
        if kind == "image":
            return images.decode_image(value, reduced=reduced, background=None)
        return {"mask": images.decode_mask, "map": images.decode_map}[kind](value)
    if kind == "text":
        return value
    if value is None:
        raise SampleError("the listing has no value for it")
    dtype = {"label": np.int64, "boxes": np.float32, "points": np.float32}.get(kind)
    array = np.asarray(value, dtype)
    return array.reshape(-1, 4) if kind == "boxes" else array


def _stacked(rasters: Sequence[Array]) -> Array:
    """Return images, masks and maps [H, W] or [H, W, C] as the channels of one array."""
    if len({raster.dtype for raster in rasters}) > 1:
        dtypes = ", ".join(str(raster.dtype) for raster in rasters)
        raise SampleError(f"the fields of a stack have one dtype, not {dtypes}; derive them with the same dtype")
    channels = [raster[..., np.newaxis] if raster.ndim == 2 else raster for raster in rasters]
    return np.concatenate(channels, axis=-1)


def _read_only(sample: Sample) -> Sample:
    """The sample with arrays that a user's function cannot write into: other variants and stored fields share them."""
    views = {name: value.view() for name, value in sample.items() if isinstance(value, np.ndarray)}
    for view in views.values():
        view.flags.writeable = False
    return {**sample, **views}


# --- checks ---------------------------------------------------------------------------------------------------------


def _check_classes(name: str, numbers: Array, classes: Sequence[str], fill: Fill | None, mask: bool) -> None:
    """A label's or a mask's numbers are those of the class names, or the number that fills what lies outside the image."""
    if not numbers.ndim and 0 <= int(numbers) < len(classes):  # one label, without the start of two reductions
        return
    if not numbers.size or (numbers.max() < len(classes) and numbers.min() >= 0):
        return
    strange = [int(value) for value in np.unique(numbers) if not 0 <= value < len(classes) and value != fill]
    if strange:
        fills = f"; fill={{{name!r}: {strange[0]}}} would say that this is the number of void pixels" if mask else ""
        raise SampleError(f"class {strange[0]} is outside the list of {len(classes)} classes{fills}")


def _check_value(value: Any, kind: Kind, size: Size | None) -> None:
    """Raise SampleError unless a value has the form of its kind, as `tfprep.fields` says."""
    value = np.asarray(value) if isinstance(value, np.generic) else value
    rule, test = _FORMS[kind]
    if kind != "text" and not isinstance(value, np.ndarray):
        raise SampleError(f"expected a NumPy array, got {type(value).__name__}: it is {rule}")
    if np.ma.is_masked(value):
        raise SampleError(
            "expected no masked values, which would be stored as the numbers below the mask: fill them (`filled`)"
        )
    if not test(value):
        got = f"{value.dtype} {list(value.shape)}" if isinstance(value, np.ndarray) else type(value).__name__
        raise SampleError(f"expected {rule}, got {got}")
    if kind in RASTER_KINDS and size is not None and value.shape[:2] != size:
        raise SampleError(f"expected an array of height and width {size}, got shape {value.shape}")
    if isinstance(value, np.ndarray) and value.dtype.kind == "f" and not np.isfinite(value).all():
        raise SampleError("it gave NaN or infinity")


def _form(rule: str, dtypes: str, *dimensions: int) -> tuple[str, Callable[[Any], bool]]:
    """A rule in words and as a test: an array of one of these kinds of dtype, with one of these numbers of dimensions."""
    return (
        rule,
        lambda value: (
            isinstance(value, np.ndarray)
            and value.dtype.kind in dtypes
            and (not dimensions or value.ndim in dimensions)
        ),
    )


_FORMS: Mapping[Kind, tuple[str, Callable[[Any], bool]]] = {
    "image": (
        "an image, uint8, uint16 or float32 [H, W, C]",
        lambda v: _is_array(v) and v.dtype in (np.uint8, np.uint16, np.float32) and v.ndim == 3,
    ),
    "mask": _form("a mask, whole numbers [H, W]", "iu", 2),
    "map": _form("a map, numbers [H, W] or [H, W, C]", "biuf", 2, 3),
    "boxes": ("boxes, numbers [N, 4]", lambda v: _is_array(v) and v.ndim == 2 and v.shape[1] == 4),
    "points": (
        "points, numbers [N, 2] or [N, 3]",
        lambda v: _is_array(v) and v.ndim == 2 and v.shape[1] in (2, 3),
    ),
    "label": _form("a label, whole numbers: one class, or [K]", "iu", 0, 1),
    "scalar": _form("numbers", "biuf"),
    "text": ("a str", lambda value: isinstance(value, str)),
}


def _is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.kind in "iuf"


def _is_policy(op: Any) -> TypeGuard[PolicyOp]:
    """Not `isinstance`, which for a Protocol costs more than some ops, at every step of every sample."""
    return callable(getattr(type(op), "color_ops", None))


def _steps(stage: str, ops: Sequence[T]) -> Iterator[tuple[str, T]]:
    """Each op with the name of its draws, such as `geometry/Rotate/0`: ops of other types do not change it."""
    seen: Counter[str] = Counter()
    for op in ops:
        name = getattr(op, "__name__", type(op).__name__)
        yield f"{stage}/{name}/{seen[name]}", op
        seen[name] += 1


# --- stages ------------------------------------------------------------------------------------------------------------


class TimedStage:
    """A context that adds its duration to `seconds[stage]`."""

    def __init__(self, seconds: dict[str, float], stage: str) -> None:
        self._seconds, self.stage = seconds, stage
        self._started = 0.0

    def __enter__(self) -> None:
        self._started = perf_counter()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._seconds[self.stage] = self._seconds.get(self.stage, 0.0) + perf_counter() - self._started


class SampleStage(TimedStage):
    """`TimedStage`, and what is raised inside becomes a SampleError that names the stage and the field.

    That is any exception of a user's function, such as SystemExit and GeneratorExit; KeyboardInterrupt only where Ctrl-C is
    ignored, as in worker processes. A failed import ends the build as a BuildError: it is no fault of the sample, and another
    machine of the build may have what is missing here.
    """

    def __init__(self, seconds: dict[str, float], stage: str, field: str = "") -> None:
        super().__init__(seconds, stage)
        self._field = field

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        if error is None or isinstance(error, BuildError):  # a stage inside this one has named itself
            return
        if isinstance(error, SampleError):
            raise error.located(stage=self.stage, field=self._field) from error
        if isinstance(error, ImportError):
            where = f"{self.stage} of '{self._field}'" if self._field else self.stage
            raise BuildError(f"{where}: {summary_of(error)}") from error
        from_keyboard = isinstance(error, KeyboardInterrupt) and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN
        if not from_keyboard:
            raise SampleError(summary_of(error), stage=self.stage, field=self._field) from error
