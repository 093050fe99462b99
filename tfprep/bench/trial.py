"""Strategies to store a dataset, and builds of them on a sample of the raw data.

After PRESTO (Isenko et al., "Where Is My Training Bottleneck? Hidden Trade-Offs in Deep Learning Preprocessing Pipelines",
SIGMOD 2022): the choice of steps to do ahead trades throughput against disk and preparation time, and the best choice is found
by measuring, not by a rule. The time of a build is a fixed part and a part per sample.
"""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from tfprep.augment.transform import GeometryOp
from tfprep.bench.bottleneck import codec_name
from tfprep.builder import BuildEvent, BuildOptions, build, plan_build
from tfprep.builder.shards.make_sample import SampleMaker
from tfprep.codecs import Codec, Jpeg, Original, Png, Raw, Zstd
from tfprep.errors import LoaderError, SourceError
from tfprep.fields import RASTER_KINDS, FieldSpec, Kind
from tfprep.limits import usable_cpus
from tfprep.load import Data
from tfprep.load import open as open_data
from tfprep.recipe import Recipe
from tfprep.seeding import sample_hash
from tfprep.sources.source import Entry, read_files


@dataclass(frozen=True)
class Strategy:
    """A recipe that stores the same fields as `whole` in another way.

    `computed` are derived inputs that the training loop computes; `load_geometry` are ops that the loader applies.
    """

    name: str
    recipe: Recipe
    whole: Recipe
    computed: tuple[str, ...] = ()
    load_geometry: tuple[GeometryOp, ...] = ()


def strategies(recipe: Recipe, kinds: Mapping[str, Kind]) -> list[Strategy]:
    """The strategies to measure: the recipe itself, its images in each form, and its masks and maps as Zstd or raw.

    Derived inputs are stored, or left to the training loop.
    """
    rasters = [name for name in recipe.store if kinds[name] in RASTER_KINDS]
    images = [name for name in rasters if kinds[name] == "image"]
    others = [name for name in rasters if kinds[name] != "image"]
    dtypes = {name: codec.dtype for name, codec in recipe.store.items() if isinstance(codec, Zstd | Raw)}
    small: dict[str, Codec] = {name: Zstd(dtype=dtypes.get(name)) for name in others}
    large: dict[str, Codec] = {name: Raw(dtype=dtypes.get(name)) for name in others}
    result = [Strategy("as the recipe says", recipe, recipe)]

    def add(name: str, changed: Mapping[str, Codec]) -> None:
        result.append(Strategy(name, replace(recipe, store={**recipe.store, **changed}), recipe))

    for form in (Jpeg(95), Jpeg(85), Png(), Zstd(), Raw()) if images else ():
        add(f"images as {codec_name(form)}", dict.fromkeys(images, form))
    if others:
        add("masks and maps as Zstd", small)
        add("masks and maps as raw", large)
    if images and others:
        add("images as JPEG 95, masks and maps as Zstd", {**dict.fromkeys(images, Jpeg(95)), **small})
        add("all as Zstd", {**dict.fromkeys(images, Zstd()), **small})
    if stored := [name for name in recipe.derive if name in recipe.store]:
        for one in result[:2]:
            rest = {field: codec for field, codec in one.recipe.store.items() if field not in stored}
            name = f"{one.name}, {', '.join(stored)} computed during training"
            result.append(Strategy(name, replace(one.recipe, store=rest), recipe, tuple(stored)))
    elif images and not others and not recipe.derive:
        # The unchanged bytes of the files. The loader resizes and crops, and there are no variants.
        files = {name: Original() if name in images else codec for name, codec in recipe.store.items()}
        plain = replace(recipe, geometry=(), color=(), derive={}, variants={}, fill={}, store=files)
        result.append(Strategy("original bytes", plain, recipe, load_geometry=tuple(recipe.geometry)))
    distinct: dict[Any, Strategy] = {}  # one of each group that stores the same
    for one in result:
        distinct.setdefault((one.recipe.fingerprint("train"), one.computed), one)
    return list(distinct.values())


def written(strategy: Strategy) -> tuple[str, ...]:
    """The lines that make a recipe and a trainer follow the strategy."""
    store = ", ".join(f'"{name}": {_call(codec)}' for name, codec in strategy.recipe.store.items())
    lines = [f"in the recipe: store={{{store}}},"]
    if strategy.load_geometry:
        lines += [
            "in the recipe: no geometry=, color= and variants=",
            "in the trainer: data.loader(..., geometry=[...])",
        ]
    if strategy.computed:
        lines.append(f"in the trainer: compute {', '.join(strategy.computed)}")
    return tuple(lines)


def _call(codec: Any) -> str:
    """The code that makes a codec, without the options that have their defaults."""
    if not is_dataclass(codec) or not type(codec).__module__.startswith("tfprep."):
        return repr(codec)
    values = {field.name: getattr(codec, field.name) for field in fields(codec)}
    changed = [f"{field.name}={values[field.name]!r}" for field in fields(codec) if values[field.name] != field.default]
    return f"codecs.{type(codec).__name__}({', '.join(changed)})"


# --- samples without a build


@dataclass(frozen=True)
class RawSamples:
    """The samples of one split in the order of their hashes, so that the first n are a random sample."""

    recipe: Recipe
    root: Path
    split: str
    entries: tuple[Entry, ...]
    maker: SampleMaker
    files: tuple[str, ...]
    values: tuple[str, ...]

    @classmethod
    def of(cls, recipe: Recipe, root: Path, split: str = "train") -> RawSamples:
        """List the source. Raises SourceError if the split has no sample."""
        listing = recipe.source.scan(root)
        recipe.check_fields(listing)
        entries = list(listing.entries)
        of_split = [entry for entry in entries if entry.split == split]
        if not of_split:
            there = ", ".join(sorted({entry.split for entry in entries})) or "no sample at all"
            raise SourceError(f"{root}: split {split!r} has no sample; available: {there}")
        of_split.sort(key=lambda entry: sample_hash(recipe.seed, entry.key))
        maker = SampleMaker(recipe, listing.kinds, dict(listing.classes))
        return cls(recipe, root, split, tuple(of_split), maker, listing.files, listing.values)

    def __len__(self) -> int:
        return len(self.entries)

    def made(self, number: int, variant: int) -> Mapping[str, Any]:
        """All fields of one variant of sample `number`, before encoding. Raises SampleError."""
        entry = self.entries[number]
        raw = {**read_files(self.root, self.files, entry), **dict(zip(self.values, entry.values, strict=True))}
        return next(self.maker.made(entry.key, raw, [variant]))

    def stored(self, number: int, variant: int) -> dict[str, Any]:
        """The stored fields of one variant as a loader would deliver them, with the shape and dtype on disk."""
        fields = self.made(number, variant)
        specs = {name: self.spec(name, fields[name]) for name in self.recipe.store}
        return {
            name: fields[name] if spec.dtype == "string" else _cast_as_stored(fields[name], spec)
            for name, spec in specs.items()
        }

    def spec(self, name: str, value: Any) -> FieldSpec:
        kinds = {**self.maker.kinds, **self.recipe.derived_kinds()}
        return self.recipe.store[name].spec(kinds[name], value)


def _cast_as_stored(value: Any, spec: FieldSpec) -> Any:
    array = np.asarray(value)
    if array.dtype.name == spec.dtype:  # without copies, which would count against the recipe
        return array
    raw = Raw(spec.dtype)  # rounds, and refuses what does not fit
    return raw.decode(raw.encode(value)[""], spec)


def on_the_fly(recipe: Recipe, root: Path, split: str = "train", batch_size: int = 32, seed: int = 0) -> Any:
    """An endless `tf.data.Dataset` of dicts of the stored fields, [B, ...] each. Every epoch shows another variant.

    The functions are tfprep's own, so the pixels equal those of a build; only the time of their computation differs.

    Raises:
        SourceError: If the split has no sample.
        LoaderError: If the images of a batch differ in size.
    """
    import tensorflow as tf

    samples = RawSamples.of(recipe, root, split)
    specs = _specs(samples)
    variants = recipe.variants_of(split)
    dtypes = [tf.dtypes.as_dtype(spec.dtype) for spec in specs.values()]

    def compute(count: Any, number: Any) -> list[Any]:
        index = int(number)
        fields = samples.stored(index, (int(count) // len(samples) + index) % variants)
        return [
            fields[name] if isinstance(fields[name], str) else np.asarray(fields[name], order="C") for name in specs
        ]

    def map_one(count: Any, number: Any) -> dict[str, Any]:
        values = tf.py_function(compute, [count, number], dtypes)
        return {
            name: tf.ensure_shape(value, spec.shape) for (name, spec), value in zip(specs.items(), values, strict=True)
        }

    numbers = tf.data.Dataset.range(len(samples)).shuffle(len(samples), seed=seed).repeat().enumerate()
    plain = tf.autograph.experimental.do_not_convert(map_one)
    mapped = numbers.map(plain, num_parallel_calls=tf.data.AUTOTUNE)
    return mapped.batch(batch_size, drop_remainder=True).prefetch(tf.data.AUTOTUNE)


def _specs(samples: RawSamples) -> Mapping[str, FieldSpec]:
    """The specs of the stored fields, from the first two samples."""
    specs: dict[str, FieldSpec] = {}
    for number in range(min(2, len(samples))):
        fields = samples.made(number, 0)
        for name in samples.recipe.store:
            spec = samples.spec(name, fields[name])
            if specs.setdefault(name, spec).shape != spec.shape:
                raise LoaderError(
                    f"'{name}' has shape {spec.shape} in one sample and {specs[name].shape} in another: they cannot "
                    "be batched; add a Resize or a Crop to the recipe's geometry"
                )
    return specs


# --- builds of a sample

MOST_SHARDS, LEAST_SAMPLES = 8, 16
SHORT_S = 20.0
"""A sample build that takes longer than about this is not repeated."""


Work: TypeAlias = Sequence[tuple[str, int]]
"""The split and number of samples of each shard, in the order in which a build starts them."""


@dataclass(frozen=True)
class Built:
    """A strategy built on a sample.

    A build takes `fixed_s` seconds, and one of its `workers` takes `sample_s[split]` seconds per sample of a split. `derive_s` is
    the CPU time per image of the derived inputs that are left to the training loop.
    """

    strategy: Strategy
    data: Data
    samples: int
    bytes: int
    workers: int
    fixed_s: float
    sample_s: Mapping[str, float]
    derive_s: float = 0.0

    def build_s(self, work: Work) -> float:
        """Seconds to build these shards. A split without a drawn sample costs as much as the most expensive other one."""
        other = max(self.sample_s.values(), default=0.0)
        seconds = [count * self.sample_s.get(split, other) for split, count in work]
        return self.fixed_s + makespan(seconds, self.workers)


def makespan(seconds: Sequence[float], workers: int) -> float:
    """Seconds until the last task is done, if the next free worker starts each task in turn."""
    free = [0.0] * max(1, workers)
    for task in seconds:
        heapq.heapreplace(free, free[0] + task)
    return max(free)


def sample_seconds(shards: Sequence[tuple[str, int, float]]) -> dict[str, float]:
    """Seconds of one worker per sample by split, of shards given as (split, samples, seconds)."""
    return {
        split: sum(took for of, _, took in shards if of == split) / sum(count for of, count, _ in shards if of == split)
        for split in dict.fromkeys(of for of, _, _ in shards)
    }


@dataclass(frozen=True)
class Sampling:
    """The way in which samples are built: from `root` into folders of `scratch`, with `workers` processes (None: one per core).

    `counts` is the number of samples of each split in the raw data.
    """

    root: Path
    scratch: Path
    samples: int
    counts: Mapping[str, int]
    workers: int | None = None

    def build(self, strategy: Strategy, folder: str) -> Built:
        """Build a sample. A short build runs twice, as a pause of the machine may be as long; the smaller times count."""
        built = self._build(strategy, folder)
        if built.fixed_s + sum(built.sample_s.values()) * self.samples > SHORT_S:
            return built
        again = self._build(strategy, f"{folder}-again")
        sample_s = {split: min(took, again.sample_s.get(split, took)) for split, took in built.sample_s.items()}
        return dataclasses.replace(built, fixed_s=min(built.fixed_s, again.fixed_s), sample_s=sample_s)

    def _build(self, strategy: Strategy, folder: str) -> Built:
        """Use as few shards as keep all workers busy, since every shard has a cost of its own."""
        shards: list[tuple[str, int, float]] = []

        def on_event(event: BuildEvent) -> None:
            if event.name == "shard" and event.facts["samples"]:
                of = event.facts
                shards.append((str(of["split"]), int(of["samples"]), float(of["shard_seconds"])))

        recipe = dataclasses.replace(strategy.recipe, shards={split: self._shards(split) for split in self.counts})
        options = BuildOptions(self.workers, limit=self.samples)
        summary = build(recipe, self.scratch / folder, self.root, options=options, on_event=on_event)
        workers = usable_cpus() if self.workers is None else self.workers
        fixed_s = max(0.0, summary.seconds - makespan([took for _, _, took in shards], workers))
        derive_s = _derive_s(strategy.whole, self.root) if strategy.computed else 0.0
        data = open_data(summary.out)
        return Built(strategy, data, summary.samples, summary.bytes, workers, fixed_s, sample_seconds(shards), derive_s)

    def _shards(self, split: str) -> int:
        """The number of shards of a split, with at least 16 samples each."""
        expected = self.samples * self.counts[split] // sum(self.counts.values())
        return max(1, min(MOST_SHARDS, expected // LEAST_SAMPLES))


def work_of(recipe: Recipe, root: Path, out: Path) -> list[tuple[str, int]]:
    """The shards of a build of the whole dataset, the largest first, as a build starts them."""
    states = sorted(plan_build(recipe, out, root), key=lambda state: -state.samples)
    return [(state.split, state.samples) for state in states]


def _derive_s(recipe: Recipe, root: Path, samples: int = 16) -> float:
    """CPU seconds of the derived inputs of an image."""
    raw = RawSamples.of(recipe, root)
    count = min(samples, len(raw))
    for number in range(count):
        raw.made(number, 0)
    return raw.maker.seconds["derive"] / count
