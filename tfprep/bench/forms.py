"""`tfprep bench --forms`: in which form to store a dataset, from builds of a sample in each form.

After PRESTO (Isenko et al., "Where Is My Training Bottleneck? Hidden Trade-Offs in Deep Learning Preprocessing Pipelines",
SIGMOD 2022): the choice of steps to do ahead trades throughput against disk and preparation time, and the best choice is found
by measuring, not by a rule. The samples are loaded in turns. The predictions for the whole dataset are

- images/s: the measured rate; if the dataset does not fit into memory, at most the rate of the disk;
- disk: the bytes per sample times the number of samples;
- build: the time outside of shards, plus that of all samples divided by the number of workers.
"""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from tfprep.augment.transform import GeometryOp
from tfprep.bench.loaders import loader_candidate
from tfprep.bench.machine import drop_cache
from tfprep.bench.rounds import Budget, Candidate, compare, measure
from tfprep.bench.samples import RawSamples
from tfprep.builder import BuildEvent, BuildOptions, build
from tfprep.codecs import Codec, Jpeg, Original, Png, Raw, Zstd
from tfprep.errors import BuildError, DatasetError, LoaderError, RecipeError, SampleError, SourceError
from tfprep.fields import RASTER_KINDS, Kind
from tfprep.limits import memory_limit, usable_cpus
from tfprep.load import Data
from tfprep.load import open as open_data
from tfprep.recipe import Recipe

LOSS_SAMPLES = 24
IN_MEMORY = 0.6
"""A dataset below this share of the memory is assumed to stay in the page cache."""
_DERIVED_SAMPLES, _EXPECTED_SAMPLES = 16, 32


@dataclass(frozen=True)
class Form:
    """A recipe that stores the same fields as `whole` in another way.

    `computed` are derived inputs that the training loop computes; `load_geometry` are ops that the loader applies.
    """

    name: str
    recipe: Recipe
    whole: Recipe
    computed: tuple[str, ...] = ()
    load_geometry: tuple[GeometryOp, ...] = ()


def forms_of(recipe: Recipe, kinds: Mapping[str, Kind]) -> list[Form]:
    """Return the forms to measure: the recipe itself, its images in each form, and its masks and maps as Zstd or raw.

    Derived inputs are stored, or left to the training loop.
    """
    rasters = [name for name in recipe.store if kinds[name] in RASTER_KINDS]
    images = [name for name in rasters if kinds[name] == "image"]
    others = [name for name in rasters if kinds[name] != "image"]
    dtypes = {name: codec.dtype for name, codec in recipe.store.items() if isinstance(codec, Zstd | Raw)}
    small: dict[str, Codec] = {name: Zstd(dtype=dtypes.get(name)) for name in others}
    large: dict[str, Codec] = {name: Raw(dtype=dtypes.get(name)) for name in others}
    result = [Form("as the recipe says", recipe, recipe)]

    def add(name: str, changed: Mapping[str, Codec]) -> None:
        result.append(Form(name, replace(recipe, store={**recipe.store, **changed}), recipe))

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
            result.append(Form(name, replace(one.recipe, store=rest), recipe, tuple(stored)))
    elif images and not others and not recipe.derive:
        # The unchanged bytes of the files. The loader resizes and crops, and there are no variants.
        files = {name: Original() if name in images else codec for name, codec in recipe.store.items()}
        plain = replace(recipe, geometry=(), color=(), derive={}, variants={}, fill={}, store=files)
        result.append(Form("original bytes", plain, recipe, load_geometry=tuple(recipe.geometry)))
    distinct: dict[Any, Form] = {}  # one of each group that stores the same
    for one in result:
        distinct.setdefault((one.recipe.fingerprint("train"), one.computed), one)
    return list(distinct.values())


def codec_name(codec: Codec) -> str:
    """Return the name of a codec, such as `JPEG 95`, `PNG`, `Zstd` or `raw`."""
    described = codec.describe()
    name = str(described["codec"])
    shown = {"jpeg": "JPEG", "png": "PNG", "zstd": "Zstd"}.get(name, name)
    return f"{shown} {described['quality']}" if "quality" in described else shown


def written(form: Form) -> tuple[str, ...]:
    """Return the lines that make a recipe and a trainer store this form."""
    store = ", ".join(f'"{name}": {_call(codec)}' for name, codec in form.recipe.store.items())
    lines = [f"in the recipe: store={{{store}}},"]
    if form.load_geometry:
        lines += [
            "in the recipe: no geometry=, color= and variants=",
            "in the trainer: data.loader(..., geometry=[...])",
        ]
    if form.computed:
        lines.append(f"in the trainer: compute {', '.join(form.computed)}")
    return tuple(lines)


def _call(codec: Any) -> str:
    """Return the code that makes a codec, without the options that have their defaults."""
    if not is_dataclass(codec) or not type(codec).__module__.startswith("tfprep."):
        return repr(codec)
    values = {field.name: getattr(codec, field.name) for field in fields(codec)}
    changed = [f"{field.name}={values[field.name]!r}" for field in fields(codec) if values[field.name] != field.default]
    return f"codecs.{type(codec).__name__}({', '.join(changed)})"


@dataclass(frozen=True)
class Goals:
    """Requirements of a dataset; None where there is none."""

    images_per_s: float | None = None
    disk_bytes: float | None = None
    hours: float | None = None

    def missed(self, prediction: Prediction) -> dict[str, float]:
        """The requirements that a prediction misses, in words, and by what factor."""
        missed = {}
        if self.images_per_s is not None and prediction.images_per_s < self.images_per_s:
            words = f"{prediction.images_per_s:,.0f} of {self.images_per_s:,.0f} images/s"
            missed[words] = self.images_per_s / prediction.images_per_s
        if self.disk_bytes is not None and prediction.disk_bytes > self.disk_bytes:
            words = f"{prediction.disk_bytes / 1e9:.3g} of {self.disk_bytes / 1e9:.3g} GB"
            missed[words] = prediction.disk_bytes / self.disk_bytes
        if self.hours is not None and prediction.build_s / 3600 > self.hours:
            missed[f"{prediction.build_s / 3600:.2g} of {self.hours:.2g} hours"] = (
                prediction.build_s / 3600 / self.hours
            )
        return missed


@dataclass(frozen=True)
class Prediction:
    """The whole dataset in one form. An `estimated` rate is computed from CPU times, not measured."""

    form: str
    stored: str
    images_per_s: float
    disk_bytes: float
    build_s: float
    estimated: bool = False


@dataclass(frozen=True)
class Loss:
    """The loss of one field: PSNR in dB between an image before encoding and the decoded one, over `samples` images."""

    field: str
    codec: str
    median_db: float
    least_db: float
    samples: int

    @property
    def words(self) -> str:
        return (
            f"'{self.field}' as {self.codec} loses detail: PSNR {self.median_db:.1f} dB in the median of {self.samples} "
            f"images, {self.least_db:.1f} dB at worst"
        )


@dataclass(frozen=True)
class Advice:
    """All predictions, the recommended form with the reason, and the forms that were left out with the reasons.

    `lines` are the lines to write for the recommended form; `lost` is what it loses in JPEG.
    """

    samples: int
    measured_on: int
    predictions: tuple[Prediction, ...]
    chosen: str
    reason: str
    left_out: Mapping[str, str]
    busy: str
    lines: tuple[str, ...] = ()
    lost: tuple[Loss, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return all figures."""
        return asdict(self)


def compare_forms(
    recipe: Recipe,
    root: Path,
    scratch: Path,
    goals: Goals | None = None,
    *,
    samples: int = 200,
    split: str = "train",
    budget: Budget | None = None,
    workers: int | None = None,
    only: Sequence[str] = (),
    on_progress: Callable[[str], None] | None = None,
) -> Advice:
    """Build and load a sample in each form, and recommend one. Imports TensorFlow.

    Args:
        recipe: The recipe whose fields are stored.
        root: The folder of its raw files.
        scratch: A folder for the datasets of the sample.
        goals: Requirements of the dataset.
        samples: Number of samples to build.
        split: The split to load.
        budget: Rounds and seconds of loading.
        workers: Worker processes, as for a build.
        only: Names of the forms to measure; all if empty.
        on_progress: Called with a line of text for each step.

    Returns:
        Predictions for the whole dataset, and the recommended form.

    Raises:
        RecipeError: If there is no form of such a name, or none can be built.
        LoaderError: If no form can be loaded.
        SourceError: If the split has no sample.
    """
    tell = on_progress or (lambda line: None)
    listing = recipe.source.scan(root)
    recipe.check_fields(listing)
    counts = Counter(entry.split for entry in listing.entries)
    if split not in counts:
        there = f"available: {', '.join(sorted(counts))}" if counts else "the source finds no sample at all"
        raise SourceError(f"{root}: split {split!r} has no sample; {there} (option --split)")
    available = forms_of(recipe, {**listing.kinds, **recipe.derived_kinds()})
    names = [form.name for form in available]
    if unknown := [name for name in only if name not in names]:
        raise RecipeError(f"there is no form {unknown[0]!r} for this recipe; available: {', '.join(names)}")
    selected = [form for form in available if not only or form.name in only]
    options = BuildOptions(workers, limit=min(samples, counts.total()))
    built, left_out = _built(selected, root, scratch, options, tell)
    candidates, refused = _loaded(built, split)
    left_out |= refused
    if not candidates:
        raise LoaderError(f"no form can be loaded: {_reasons(left_out)}")
    tell(f"loading {len(candidates)} samples in turns")
    rounds = compare(candidates, budget or Budget(3, 1.0, 0.5, 2))
    loaded = [item for item in built if item.form.name in rounds.measurements]
    predictions = [_predict(item, rounds.images_per_s(item.form.name).median, counts) for item in loaded]
    chosen, reason = choose(predictions, goals or Goals())
    winner = next(item.form for item in loaded if item.form.name == chosen.form)
    return Advice(
        counts.total(), options.limit or 0, tuple(predictions), chosen.form, reason, left_out, rounds.busy,
        written(winner), losses(winner.recipe, root, split),
    )  # fmt: skip


def choose(predictions: Sequence[Prediction], goals: Goals) -> tuple[Prediction, str]:
    """Return the smallest form that meets all goals or, without a goal for the rate, the fastest that meets the others.

    If none meets all goals, the one that misses the fewest; of these one that is fast enough, and the one that comes closest.
    """
    meeting = [one for one in predictions if not goals.missed(one)]
    if not meeting:

        def distance(one: Prediction) -> tuple[int, bool, float]:
            factors = goals.missed(one).values()
            return len(factors), one.images_per_s < (goals.images_per_s or 0), max(factors)

        least = min(predictions, key=distance)
        return least, f"no form meets all requirements; this one comes closest ({', '.join(goals.missed(least))})"
    if goals.images_per_s is not None:
        return min(meeting, key=lambda one: one.disk_bytes), "the smallest form that is fast enough"
    return max(meeting, key=lambda one: one.images_per_s), "the fastest form" + (
        " within the limits" if goals != Goals() else ""
    )


# --- a sample in each form


@dataclass(frozen=True)
class Built:
    """A form built on a sample.

    A build takes `fixed_s` seconds, and one of its `workers` takes `sample_s` seconds per sample. `derive_s` is the CPU time per
    image of the derived inputs that are left to the training loop.
    """

    form: Form
    data: Data
    samples: int
    bytes: int
    workers: int
    fixed_s: float
    sample_s: float
    derive_s: float = 0.0


def _built(
    selected: Sequence[Form], root: Path, scratch: Path, options: BuildOptions, tell: Callable[[str], None]
) -> tuple[list[Built], dict[str, str]]:
    """Build a sample in each form; return those that work, and the errors of the others.

    All are built before one is loaded: TensorFlow and its threads would count as time of the later builds.
    """
    built, left_out = [], {}
    for number, form in enumerate(selected):
        tell(f"building a sample: {form.name}")
        try:
            built.append(_build(form, root, scratch / f"form{number}", options))
        except (BuildError, RecipeError, DatasetError) as error:
            left_out[form.name] = str(error).splitlines()[0]
    if not built:
        raise RecipeError(f"no form can be built: {_reasons(left_out)}")
    return built, left_out


def _build(form: Form, root: Path, out: Path, options: BuildOptions) -> Built:
    took_s = 0.0

    def on_event(event: BuildEvent) -> None:
        nonlocal took_s
        if event.name == "shard":
            took_s += float(event.facts["shard_seconds"])

    summary = build(form.recipe, out, root, options=options, on_event=on_event)
    workers = max(1, usable_cpus() if options.workers is None else options.workers)
    data = open_data(summary.out)
    return Built(
        form, data, summary.samples, summary.bytes, workers, max(0.0, summary.seconds - took_s / workers),
        took_s / summary.samples, _derive_s(form.whole, root) if form.computed else 0.0,
    )  # fmt: skip


def expected_build(recipe: Recipe, root: Path, samples: int, *, of: int = _EXPECTED_SAMPLES) -> tuple[float, float]:
    """Predict the size and the time of a build from one of a few samples, in a temporary folder.

    Args:
        recipe: The recipe.
        root: The folder of its raw files.
        samples: Samples that are to be built, with all their variants.
        of: Samples to build for it.

    Returns:
        Bytes and seconds.

    Raises:
        BuildError: None of the samples can be built.
    """
    with tempfile.TemporaryDirectory(prefix="tfprep-expected-") as scratch:
        built = _build(Form("", recipe, recipe), root, Path(scratch) / "out", BuildOptions(limit=min(of, samples)))
    return built.bytes / built.samples * samples, built.fixed_s + built.sample_s * samples / built.workers


def _derive_s(recipe: Recipe, root: Path) -> float:
    """Return the CPU seconds of the derived inputs of an image."""
    raw = RawSamples.of(recipe, root)
    count = min(_DERIVED_SAMPLES, len(raw))
    for number in range(count):
        raw.made(number, 0)
    return raw.maker.seconds["derive"] / count


def _loaded(built: Sequence[Built], split: str) -> tuple[list[Candidate], dict[str, str]]:
    """Load a batch of each; return the loaders of those that work, and the errors of the others."""
    candidates, refused = [], {}
    for item in built:
        options: dict[str, Any] = {"cache": False, "geometry": item.form.load_geometry}
        try:
            candidate = loader_candidate(item.data, split, 32, name=item.form.name, **options)
            measure(candidate, Budget(1, 0.0, 0.0, 1))
        except (LoaderError, DatasetError) as error:
            refused[item.form.name] = str(error).splitlines()[0]
        else:
            candidates.append(candidate)
    return candidates, refused


def _reasons(left_out: Mapping[str, str]) -> str:
    return "; ".join(f"{name}: {why}" for name, why in left_out.items())


def _predict(item: Built, images_per_s: float, counts: Counter[str]) -> Prediction:
    stored = ", ".join(f"{field} {codec_name(codec)}" for field, codec in item.form.recipe.store.items())
    each = {name: info.bytes / info.samples for name, info in item.data.splits.items() if info.samples}
    disk = sum(count * each.get(name, item.bytes / item.samples) for name, count in counts.items())
    record = item.bytes / sum(info.samples * info.variants for info in item.data.splits.values())
    seconds = 1 / images_per_s + item.derive_s / usable_cpus()
    if disk >= IN_MEMORY * memory_limit():
        seconds = max(seconds, _read_s(item.data) * record)
    build_s = item.fixed_s + item.sample_s * counts.total() / item.workers
    return Prediction(item.form.name, stored, 1 / seconds, disk, build_s, item.derive_s > 0)


def _read_s(data: Data) -> float:
    """Return the seconds to read a byte from the disk; next to nothing where the system keeps the files in memory."""
    files = [data.shard_path(file) for info in data.splits.values() for of in info.files for file in of]
    drop_cache(files)
    started = time.perf_counter()
    nbytes = sum(len(path.read_bytes()) for path in files)
    return (time.perf_counter() - started) / max(1, nbytes)


# --- what JPEG loses


def losses(recipe: Recipe, root: Path, split: str) -> tuple[Loss, ...]:
    """Measure each field that the recipe stores as JPEG, on variant 0 of the first samples; empty where there is none."""
    lossy = [name for name, codec in recipe.store.items() if isinstance(codec, Jpeg)]
    if not lossy:
        return ()
    raw = RawSamples.of(recipe, root, split)
    psnr_db: dict[str, list[float]] = {name: [] for name in lossy}
    for number in range(min(LOSS_SAMPLES, len(raw))):
        try:
            sample = raw.made(number, 0)
        except SampleError:  # a build rejects it, and says so
            continue
        for name in lossy:
            codec = recipe.store[name]
            decoded = codec.decode(codec.encode(sample[name])[""], raw.spec(name, sample[name]))
            error = float(np.mean((np.asarray(sample[name], np.float64) - np.asarray(decoded, np.float64)) ** 2))
            psnr_db[name].append(10 * float(np.log10(255**2 / error)) if error else float("inf"))
    return tuple(
        Loss(name, codec_name(recipe.store[name]), median(values), min(values), len(values))
        for name, values in psnr_db.items()
        if values
    )
