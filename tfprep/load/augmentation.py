"""Geometry, derived inputs and color at load: the stages of `tfprep.recipe.sample`, checked against what a loader delivers.

Every draw is a function of (seed, position in the run, name of the step), so that it does not depend on the number of hosts or
threads, and a resumed run draws the same (`generator_at`). With training=False each op takes its unaugmented form, as for variant
0 of a build; derived inputs draw in any case.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from tfprep import augment, derive
from tfprep.augment.chain import Custom
from tfprep.augment.geometry import RandomResizedCrop
from tfprep.augment.transform import GeometryOp, Transform, effects_of, scaling, translation
from tfprep.codecs import Scalar
from tfprep.derive.inputs import reads_of
from tfprep.errors import BuildError, LoaderError, RecipeError, RecordError, SampleError, summary_of
from tfprep.fields import EFFECTS, RASTER_KINDS, FieldSpec, Kind, Sample, Size
from tfprep.load.order.samplers import generator_at
from tfprep.load.outputs import Output, Outputs, mapped
from tfprep.recipe.checks import check_inputs
from tfprep.recipe.sample import Draws, Stages

if TYPE_CHECKING:  # these import pyarrow, which worker processes do without
    from tfprep.dataset import Dataset
    from tfprep.load.options import LoaderOptions
    from tfprep.load.reader.table import SplitRows

PLACES: frozenset[Kind] = frozenset({"boxes", "points"})
_PROBES: tuple[Size, ...] = ((480, 640), (97, 61), (3000, 2000), (50, 900))
"""Sizes with which geometry is tried where images differ in size."""
_TRIES = 8
"""Draws with which geometry is tried: an op such as Rotate90 changes the size in some of them."""


@dataclass(frozen=True)
class Covering:
    """The image resized until it covers `height` x `width`, and cut to it."""

    effects: ClassVar[frozenset[str]] = frozenset({"crop", "resize"})

    height: int
    width: int

    def __call__(self, size: Size, generator: np.random.Generator | None, /) -> Transform:
        scale = max(self.height / size[0], self.width / size[1])
        room = [int(scale * side - to + 1e-6) for side, to in zip(size, (self.height, self.width), strict=True)]
        top, left = room[0] // 2, room[1] // 2
        if generator is not None:
            top, left = (int(draw * (most + 1)) for draw, most in zip(generator.random(2), room, strict=True))
        return Transform(translation(-left, -top) @ scaling(scale, scale), (self.height, self.width))


@dataclass(frozen=True)
class View:
    """One way to see a sample: its stages, in one form for each size of a batch (`BatchSchedule.forms_at`), usually one.

    `name` is "" or that of one of several views, such as "global/0".
    """

    forms: tuple[Stages, ...]
    name: str = ""


@dataclass(frozen=True)
class Augmentation:
    """What happens to each sample of a loader while its row is filled.

    Attributes:
        views: The views of a sample, usually one.
        seed: The loader's seed.
        training: True if ops draw; otherwise they take their unaugmented form.
        derived: The fields that are derived at load.
        since: The epoch from which each form holds, where that decides.
    """

    views: tuple[View, ...]
    seed: int
    training: bool
    derived: Mapping[str, FieldSpec]
    since: tuple[int, ...] = ()

    @property
    def has_custom(self) -> bool:
        """True if a function of whole samples is among the geometry: it may change any field."""
        return any(isinstance(op, Custom) for view in self.views for form in view.forms for op in form.geometry)

    def draws(self, view: View, position: int) -> Draws:
        """Return the draws of a view of the sample at a position of the run."""
        prefix = f"{view.name}/" if view.name else ""

        def drawn(step: str) -> np.random.Generator | None:
            is_drawn = self.training or step.startswith("derive/")
            return generator_at(self.seed, f"{prefix}{step}", position) if is_drawn else None

        return drawn


def known_size(
    geometry: Sequence[GeometryOp | Custom], size: Sequence[int | None], training: bool
) -> tuple[int | None, ...]:
    """Return the (height, width) of a raster of this size after the ops; None for a side that differs between samples."""
    height, width = size
    sizes = {(height, width)} if height is not None and width is not None else set(_PROBES)
    are_known = None not in size
    generators = [np.random.default_rng(number) for number in range(_TRIES)] if training else []
    for op in geometry:
        if isinstance(op, Custom):
            sizes, are_known = set(_PROBES), False
            continue
        found = set[Size]()
        for each_size, generator in [(tried, None) for tried in sizes] + [(min(sizes), draws) for draws in generators]:
            try:
                made = op(each_size, generator)
            except Exception as error:  # an op may refuse a size that no image has
                if are_known:
                    raise LoaderError(f"geometry: {op!r}, for a size of {each_size}: {summary_of(error)}") from error
                continue
            if not isinstance(made, Transform) or not all(isinstance(side, int | np.integer) for side in made.size):
                raise LoaderError(f"geometry: a Transform has a size of two whole numbers; {op!r} returned {made!r}")
            found.add(made.size)
        sizes = found or sizes
    return tuple(sides[0] if len(set(sides)) == 1 else None for sides in zip(*sizes, strict=True))


# --- fields that are derived at load --------------------------------------------------------------------------------


def derived_specs(
    derived: Mapping[str, Any], sources: Sequence[SplitRows], specs: Mapping[str, FieldSpec], *, moves: bool
) -> tuple[dict[str, FieldSpec], frozenset[str]]:
    """Return the specs of the fields that are derived at load, and the stored fields that they read.

    Shape and dtype are those of one sample, which is read and derived. Values have the dtype that `Zstd()` or `Scalar()` stores.

    Raises:
        LoaderError: A field is not stored, or not as the recipe's derived inputs see it, or the sample cannot be derived.
    """
    recipes = [source.dataset.manifest.recipe for source in sources if source.read != (0,)]
    colored = any(recipe.get("color") or any(map(_has_color, recipe.get("geometry", ()))) for recipe in recipes)
    added = {name for name in specs if sources[0].dataset.group_of(name)}  # which the stages of a sample do not see
    stored = {name: spec for name, spec in specs.items() if name not in {*derived, *added}}
    kinds, needed = {name: spec.kind for name, spec in stored.items()}, set[str]()
    try:
        for source in sources:
            check_inputs(derived, kinds, source.dataset.manifest.recipe.get("fill", {}), moves=moves)
    except RecipeError as error:
        raise LoaderError(str(error)) from None
    for number, (name, one) in enumerate(derived.items()):
        before = [*derived][:number]
        reads = reads_of(one)
        if missing := sorted((reads or frozenset()) - {*stored, *before}):
            why = "a model added, in records of its own" if missing[0] in added else "is not stored"
            raise LoaderError(
                f"derive: '{name}' reads '{missing[0]}', which {why}; there are {', '.join([*stored, *before])}"
            )
        mine = stored.keys() if reads is None else reads - {*before}
        images = [field for field in mine if kinds[field] == "image"]
        if images and colored:
            own = f" If the function does not read it, say so: derive.Own(function, reads=[...]) for '{name}'."
            raise LoaderError(
                f"derive: '{name}' reads '{images[0]}', and the recipe's color ops have changed the stored pixels. Take those "
                f"ops to the loader's color=, store '{name}', or read variants=0.{'' if reads else own}"
            )
        needed |= mine
    try:
        sample = _readable_sample(sources[0], sorted(needed))
        stages = Stages({name: kinds[name] for name in needed}, derive=derived)
        made = stages.make(sample, lambda step: generator_at(0, step, 0))
    except (SampleError, BuildError) as error:
        raise LoaderError(f"{getattr(error, 'place', '') or 'derive'}: {error}") from error
    size = next((stored[name].shape[:2] for name in sorted(needed) if kinds[name] in RASTER_KINDS), None)
    made_specs = {name: _spec_of(getattr(op, "kind", "map"), made[name], size) for name, op in derived.items()}
    return made_specs, frozenset(needed)


def _readable_sample(source: SplitRows, names: Sequence[str]) -> Sample:
    """The first sample whose record is not damaged: what becomes of one that is, `on_bad` says when it is read."""
    error: Exception = LoaderError(f"{source.name} has no samples")
    for row in range(min(source.samples, _TRIES)):
        try:
            return next(iter(source.dataset.samples(source.split, 0, [row], names)))
        except RecordError as damaged:
            error = damaged
    raise error


def _spec_of(kind: Kind, value: Any, size: Sequence[int | None] | None) -> FieldSpec:
    if kind == "text":
        return FieldSpec(kind, (), "string")
    array = np.asarray(value)
    if kind in RASTER_KINDS:
        return FieldSpec(kind, (*(size or array.shape[:2]), *array.shape[2:]), array.dtype.name)
    rows = array.shape and (None, *array.shape[1:])  # the number of boxes, points and clicks differs
    return FieldSpec(kind, rows, Scalar().spec(kind, array).dtype)


def _has_color(described: Mapping[str, Any]) -> bool:
    """Return True if a geometry op, as `tfprep.json` describes it, has a color half, as far as is known."""
    inside = described.get("ops") or ([described["op"]] if "op" in described else [])
    kind = described.get("type")
    if inside or not isinstance(kind, str):  # a function of the user has none, an object may have one
        return any(map(_has_color, inside)) or isinstance(kind, Mapping)
    return hasattr(getattr(augment, kind.rpartition(".")[2], None), "color_ops")


# --- the plan -------------------------------------------------------------------------------------------------------


def plan_augmentation(
    options: LoaderOptions,
    datasets: Sequence[Dataset],
    outputs: Outputs,
    specs: Mapping[str, FieldSpec],
    needed: frozenset[str],
) -> tuple[Augmentation, Outputs]:
    """Plan what happens to each sample.

    Args:
        options: The loader's options, of which geometry, derive, color, views or bucket is given.
        datasets: The datasets, by whose recipes boxes and points follow.
        outputs: The outputs before geometry. Those that rows are filled with are returned.
        specs: The stored fields and those that are derived at load.
        needed: The stored fields that the derived ones read.

    Raises:
        LoaderError: A field cannot follow the geometry, or an op cannot work on what is loaded.
    """
    derived = {name: specs[name] for name in options.derive}
    read = {name: specs[name] for name in (*outputs.fields, *sorted(needed)) if name in specs and name not in derived}
    chains, training = _chains(options), bool(options.training)
    ops = [op for _, forms in chains for geometry, _ in forms for op in geometry]
    _check_fields(datasets, ops, read)
    rules = _rules(datasets, ops, read)
    kinds = {name: spec.kind for name, spec in read.items()}
    views = []
    for name, forms in chains:
        for geometry, color in forms:
            _check_rasters(geometry, color, read)
        stages = tuple(Stages(kinds, geometry, dict(options.derive), color, **rules) for geometry, color in forms)
        views.append(View(stages, name))
    lose_rows = frozenset[str]()
    if any(effects_of(op) & _DROPS for op in ops):
        boxes = [name for name, kind in kinds.items() if kind == "boxes"]
        lose_rows = frozenset(boxes).union(*rules["row_fields"].values())
    moved = {name for name, kind in kinds.items() if kind in RASTER_KINDS | PLACES} | derived.keys() | lose_rows
    since = tuple(epoch for op in options.geometry for epoch in _by_epoch(op)) if training else ()
    augmentation = Augmentation(tuple(views), options.seed, training, derived, since)
    return augmentation, _filled(augmentation, outputs, specs, moved, lose_rows)


def _filled(
    augmentation: Augmentation,
    outputs: Outputs,
    specs: Mapping[str, FieldSpec],
    moved: set[str],
    lose_rows: frozenset[str],
) -> Outputs:
    """Return the outputs as rows are filled with them: those with `moved` fields once for each view."""

    def after(output: Output, view: View) -> Output:
        if not any(specs[name].kind in RASTER_KINDS for name in output.fields if name in specs):
            stored = {**specs, **dict.fromkeys(augmentation.derived)}.get(output.fields[0])
            if view.forms[0].geometry and stored and stored.kind in PLACES and np.dtype(stored.dtype).kind in "iu":
                output = replace(output, dtype="float32")  # as `warp_sample` makes them of whole numbers
            drops = output.fields[0] in lose_rows and not output.padded
            return replace(output, shape=(None, *output.shape[1:])) if drops else output
        sizes = [known_size(stages.geometry, output.shape[:2], augmentation.training) for stages in view.forms]
        if len(sizes) > 1 and None in itertools.chain(*sizes):  # samples of one form differ: those of all come as lists
            sizes = [(None, None)]
        shapes = [(*size, *output.shape[2:]) for size in sizes]
        largest = max(shapes, key=lambda shape: prod(side or 0 for side in shape))
        return replace(output, shape=largest, shapes=tuple(shapes) if len(shapes) > 1 else ())

    views = augmentation.views
    if not views[0].name:
        return Outputs(tuple(after(output, views[0]) for output in outputs.outputs), outputs.structure)
    filled: list[Output] = []
    of_view: dict[str, Any] = {}  # {"image": {"global": ("image/global/0", "image/global/1"), ...}}
    for output in outputs.outputs:
        if moved.isdisjoint(output.fields):
            filled.append(output)
            continue
        names = of_view[output.name] = {}
        for number, view in enumerate(views):
            kind, name = view.name.partition("/")[0], f"{output.name}/{view.name}"
            filled.append(replace(after(output, view), name=name, view=number))
            names[kind] = (*names.get(kind, ()), name)
    return Outputs(tuple(filled), mapped(outputs.structure, lambda name: of_view.get(name, name)))


Chain = tuple[tuple[GeometryOp, ...], tuple[Any, ...]]
"""The geometry and the color of a view, in one size of a batch."""


def _chains(options: LoaderOptions) -> list[tuple[str, list[Chain]]]:
    """Return the name of each view, and its ops in each size of a batch."""
    if options.views is not None:
        return [
            (f"{name}/{number}", [(tuple(ops.get("geometry", ())), tuple(ops.get("color", ())))])
            for name, (count, ops) in options.views.items()
            for number in range(count)
        ]
    geometry, color = tuple(options.geometry), tuple(options.color)
    if options.bucket is not None:
        for size in options.bucket.sizes:
            if known_size(geometry, size, bool(options.training)) != size:
                raise LoaderError(
                    f"bucket makes batches of its sizes, and geometry={list(geometry)} others; leave one out"
                )
        return [("", [((Covering(*size), *geometry), color) for size in options.bucket.sizes])]
    at = next((at for at, op in enumerate(geometry) if _by_epoch(op)), None)
    if at is None:
        return [("", [(geometry, color)])]
    forms = list(_by_epoch(geometry[at]).values())
    forms = forms if options.training else forms[-1:]  # in evaluation the last one
    return [("", [((*geometry[:at], form, *geometry[at + 1 :]), color) for form in forms])]


def _by_epoch(op: Any) -> Mapping[int, Any]:
    """Return an op with sizes by epoch as ops of one size; nothing for any other op."""
    return op.forms if isinstance(op, RandomResizedCrop) and op.sizes is not None else {}


def _rules(datasets: Sequence[Dataset], ops: Sequence[Any], read: Mapping[str, FieldSpec]) -> dict[str, Any]:
    """Return the options of `Stages` by which fields follow geometry: those of the recipes, of the fields that are read."""
    first, *other_rules = [_rules_of(dataset, ops, read) for dataset in datasets]
    if ops and any(other != first for other in other_rules):
        raise LoaderError(
            "geometry: the datasets of a mix were built with different border, fill, min_visible, row_fields or flip_indices, "
            "by which edges, boxes and points follow; build both alike, or leave boxes and points out of `fields`"
        )
    return first


def _rules_of(dataset: Dataset, ops: Sequence[Any], read: Mapping[str, FieldSpec]) -> dict[str, Any]:
    recipe = dataset.manifest.recipe
    flips = {name: tuple(rows) for name, rows in recipe.get("flip_indices", {}).items() if name in read}
    mirroring = next((op for op in ops if not isinstance(op, Custom) and "flip" in effects_of(op)), None)
    for name, spec in read.items() if mirroring is not None else ():
        if spec.kind == "points" and name not in flips:
            raise LoaderError(
                f"geometry: {mirroring} mirrors '{name}', and a left hand becomes a right hand; say in the recipe which rows "
                f"change places, flip_indices={{'{name}': (0, 2, 1)}}, or () if none do, or leave '{name}' out of `fields`"
            )
    rows = {
        name: [other for other in row_fields if other in read]
        for name, row_fields in recipe.get("row_fields", {}).items()
    }
    _check_rows(rows, ops, read)
    fill = {name: tuple(value) if isinstance(value, list) else value for name, value in recipe.get("fill", {}).items()}
    # A map that counts in pixels, such as a distance, has no number for what is outside of its frame.
    counted = [name for name, spec in read.items() if spec.kind == "map" and "warp" not in dataset.infos[name].follows]
    fill = {**dict.fromkeys(counted), **fill}
    _check_voids(recipe, fill, ops, read)
    return {
        "border": recipe.get("border", "constant"),
        "fill": {name: value for name, value in fill.items() if name in read},
        "min_visible": recipe.get("min_visible", 0.0) if any(spec.kind == "boxes" for spec in read.values()) else 0.0,
        "row_fields": {name: row_fields for name, row_fields in rows.items() if name in read},
        "flip_indices": flips,
    }


def _check_rows(rows: Mapping[str, Sequence[str]], ops: Sequence[Any], read: Mapping[str, FieldSpec]) -> None:
    """Raise LoaderError if boxes may be dropped and it is not known, or not possible, what happens to fields with a row for
    each."""
    if not any(effects_of(op) & _DROPS for op in ops):
        return
    for boxes, row_fields in rows.items():
        if row_fields and boxes not in read:
            raise LoaderError(
                f"geometry: '{row_fields[0]}' loses the rows of boxes that are not visible; load '{boxes}' as well"
            )
        if numbered := next((name for name in row_fields if read[name].kind == "mask"), None):
            raise LoaderError(
                f"geometry: '{numbered}' numbers objects by the places of their '{boxes}', and boxes that are not visible are "
                f"dropped; build with the field 'box_numbers', or leave '{numbered}' out of `fields`"
            )
    unknown = [name for name, spec in read.items() if spec.kind == "boxes" and name not in rows]
    own = [name for name, spec in read.items() if spec.kind in ("label", "points", "scalar") and spec.shape]
    if unknown and own:
        raise LoaderError(
            f"geometry: boxes that are not visible are dropped, and the recipe does not say which of {', '.join(own)} have a row "
            f"for each box; build with Recipe(row_fields={{{unknown[0]!r}: {own}}}) (or declare rows for tfprep index), or leave "
            f"'{unknown[0]}' out of `fields`"
        )


_DROPS = frozenset({"crop", "warp"})
"""The effects by which boxes may leave the frame."""


def _check_voids(
    recipe: Mapping[str, Any], fill: Mapping[str, Any], ops: Sequence[Any], read: Mapping[str, FieldSpec]
) -> None:
    """Raise LoaderError if an op shows pixels outside of any image and it is not known what a field holds there."""
    op = next((op for op in ops if getattr(op, "uncovers", False)), None)
    unknown = [n for n, spec in read.items() if fill.get(n) is None and (n in fill or spec.kind == "mask")]
    if op is not None and unknown and recipe.get("border", "constant") == "constant":
        name = unknown[0]
        fix = f'build with Recipe(fill={{"{name}": 255}}), the number of void pixels'
        raise LoaderError(
            f"geometry: {op!r} shows pixels outside of the image, and no number is known for them in '{name}'; "
            f"{_derive_line(name, recipe) if name in recipe.get('derive', {}) else fix}, or leave '{name}' out of `fields`"
        )


def _check_fields(datasets: Sequence[Dataset], ops: Sequence[Any], read: Mapping[str, FieldSpec]) -> None:
    """Raise LoaderError if a field cannot follow the geometry."""
    for dataset in datasets if ops else ():
        for name, spec in read.items():
            follows = frozenset(dataset.infos[name].follows) if name in dataset.infos else EFFECTS
            if op := next((op for op in ops if not effects_of(op) <= follows), None):
                effects = ", ".join(sorted(effects_of(op) - follows))
                raise LoaderError(
                    f"geometry: '{name}' does not follow {_name(op)}, which may {effects}: "
                    f"{_derive_line(name, dataset.manifest.recipe)}, or leave it out of `fields`"
                )
            if (group := dataset.group_of(name)) and spec.kind in RASTER_KINDS | PLACES:
                raise LoaderError(
                    f"geometry: '{name}' is in records of its own ({group}), and cannot follow the images; leave it out of "
                    "`fields`"
                )
            imported = dataset.manifest.imported
            if imported is not None and name in imported.fixed:
                raise LoaderError(
                    f"geometry: the numbers of '{name}' cannot follow the images: declare {imported.features[name]!r} as boxes "
                    "or points (tfprep index --features), or leave it out of `fields`"
                )


def _name(op: Any) -> str:
    """The name of an op, or of the option that made it."""
    return "bucket" if isinstance(op, Covering) else type(op).__name__


def _derive_line(name: str, recipe: Mapping[str, Any]) -> str:
    described = recipe.get("derive", {}).get(name)
    if described is None:
        return "put the op into the recipe's geometry"
    kind = getattr(derive, str(described.get("type", "")).rpartition(".")[2], None)
    if not isinstance(kind, type) or not is_dataclass(kind) or kind is derive.Own:
        return f"derive it at load, derive={{'{name}': ...}} with the recipe's function"
    defaults = {field.name: field.default for field in fields(kind)}
    given = {
        option: tuple(one) if isinstance(one, list) else one for option, one in described.items() if option in defaults
    }
    changed = [f"{n}={value!r}" for n, value in given.items() if defaults[n] is MISSING or defaults[n] != value]
    return f"derive it at load, derive={{'{name}': derive.{kind.__name__}({', '.join(changed)})}}"


def _check_rasters(geometry: Sequence[Any], color: Sequence[Any], read: Mapping[str, FieldSpec]) -> None:
    rasters = {name: spec for name, spec in read.items() if spec.kind in RASTER_KINDS}
    if geometry and not rasters:
        raise LoaderError(f"geometry: no image, mask or map is loaded for {_name(geometry[0])} to work on")
    if len({spec.shape[:2] for spec in rasters.values()}) > 1:
        sizes = ", ".join(f"'{name}' is {spec.shape[:2]}" for name, spec in rasters.items())
        raise LoaderError(f"all rasters of a sample have one height and width; {sizes}")
    images = {name: spec for name, spec in rasters.items() if spec.kind == "image"}
    for op in color:
        if not images:
            raise LoaderError(f"color: no image is loaded for {type(op).__name__} to work on")
        for name, spec in images.items():
            plain = spec.dtype == "uint8" and spec.shape[2:] in ((1,), (3,), (None,))
            if not (plain or getattr(op, "any_image", False)) and type(op).__module__.startswith("tfprep.augment."):
                raise LoaderError(
                    f"color: {type(op).__name__} takes gray or RGB of 8 bits; '{name}' is {spec.dtype} {list(spec.shape)}"
                )
