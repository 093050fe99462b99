"""`tfprep bench --forms`: size, rate and build time of a dataset in each storage form, from builds of a sample.

After PRESTO (Isenko et al., "Where Is My Training Bottleneck? Hidden Trade-Offs in Deep Learning Preprocessing Pipelines",
SIGMOD 2022): the choice of steps to do ahead trades throughput against disk and preparation time, and the best choice is found
by measuring, not by a rule. The samples are loaded in turns. The predictions for the whole dataset are

- images/s: the measured rate, with the sample in memory;
- disk: the bytes per sample times the number of samples;
- build: the time outside of shards, plus that of all samples divided by the number of workers.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tfprep.bench.rounds import Budget, Candidate, compare, measure
from tfprep.bench.training import loader_candidate
from tfprep.builder import BuildEvent, BuildOptions, build
from tfprep.codecs import Codec, Jpeg, Original, Png, Raw, Zstd
from tfprep.errors import BuildError, DatasetError, LoaderError, RecipeError, SourceError
from tfprep.fields import RASTER_KINDS, Kind
from tfprep.limits import usable_cpus
from tfprep.load import Data
from tfprep.load import open as open_data
from tfprep.recipe import Recipe

_EXPECTED_SAMPLES = 32
_BUDGET = Budget(3, 1.0, 0.5, 2)
_IMAGES_AS: dict[str, Codec] = {"JPEG 95": Jpeg(95), "JPEG 85": Jpeg(85), "PNG": Png(), "Zstd": Zstd(), "raw": Raw()}


@dataclass(frozen=True)
class Form:
    """A recipe that stores the same fields in another way, and the options with which a loader computes the rest."""

    name: str
    recipe: Recipe
    at_load: Mapping[str, Any] = field(default_factory=dict)


def forms_of(recipe: Recipe, kinds: Mapping[str, Kind]) -> list[Form]:
    """Return the forms to measure: the recipe itself, its images in each form, and its masks and maps as Zstd or raw.

    Derived inputs are stored, or computed by the loader. What the rules of recipes refuse, such as JPEG of 16 bits, is left out.
    """
    images = [name for name in recipe.store if kinds[name] == "image"]
    masks_and_maps = [name for name in recipe.store if kinds[name] in RASTER_KINDS - {"image"}]
    dtypes = {name: codec.dtype for name, codec in recipe.store.items() if isinstance(codec, Zstd | Raw)}
    small: dict[str, Codec] = {name: Zstd(dtype=dtypes.get(name)) for name in masks_and_maps}
    large: dict[str, Codec] = {name: Raw(dtype=dtypes.get(name)) for name in masks_and_maps}
    result = [Form("as the recipe says", recipe)]

    def add(name: str, changed: Mapping[str, Codec]) -> None:
        with suppress(RecipeError):
            result.append(Form(name, replace(recipe, store={**recipe.store, **changed})))

    for name, codec in _IMAGES_AS.items() if images else ():
        add(f"images as {name}", dict.fromkeys(images, codec))
    if masks_and_maps:
        add("masks and maps as Zstd", small)
        add("masks and maps as raw", large)
    if images and masks_and_maps:
        add("images as JPEG 95, masks and maps as Zstd", {**dict.fromkeys(images, Jpeg(95)), **small})
        add("all as Zstd", {**dict.fromkeys(images, Zstd()), **small})
    if derived := {name: made for name, made in recipe.derive.items() if name in recipe.store}:
        rest = {name: codec for name, codec in recipe.store.items() if name not in derived}
        result.append(Form(f"{', '.join(derived)} computed at load", replace(recipe, store=rest), {"derive": derived}))
    elif images and not masks_and_maps and not recipe.derive:
        # The unchanged bytes of the files. The loader resizes and crops, and there are no variants.
        files = {name: Original() if name in images else codec for name, codec in recipe.store.items()}
        at_load = {"geometry": tuple(recipe.geometry), "color": tuple(recipe.color)}
        with suppress(RecipeError):
            plain = replace(recipe, geometry=(), color=(), derive={}, variants={}, fill={}, store=files)
            result.append(Form("original bytes, augmented at load", plain, at_load))
    distinct: dict[Any, Form] = {}  # one of each group that stores the same
    for form in result:
        distinct.setdefault((form.recipe.fingerprint("train"), tuple(form.at_load)), form)
    return list(distinct.values())


@dataclass(frozen=True)
class Prediction:
    """The whole dataset in one form."""

    form: str
    images_per_s: float
    disk_bytes: float
    build_s: float


@dataclass(frozen=True)
class FormTable:
    """Predictions for `samples` samples from `measured_on` of them, and the forms that were left out with the reasons.

    `busy` is a note if other programs took the processors, else empty.
    """

    samples: int
    measured_on: int
    predictions: tuple[Prediction, ...]
    left_out: Mapping[str, str]
    busy: str


def compare_forms(
    recipe: Recipe,
    root: Path,
    scratch: Path,
    *,
    samples: int = 200,
    split: str = "train",
    budget: Budget = _BUDGET,
    workers: int | None = None,
    on_progress: Callable[[str], None] = lambda line: None,
) -> FormTable:
    """Build a sample of `samples` in each form, load it, and predict the whole dataset. Imports TensorFlow.

    `root` is the folder of the raw files, `scratch` one for the datasets; `on_progress` is called with a line for each step.

    Raises:
        RecipeError: If no form can be built.
        LoaderError: If no form can be loaded.
        SourceError: If the split has no sample.
    """
    listing = recipe.source.scan(root)
    recipe.check_fields(listing)
    counts = Counter(entry.split for entry in listing.entries)
    if split not in counts:
        available = f"available: {', '.join(sorted(counts))}" if counts else "the source finds no sample at all"
        raise SourceError(f"{root}: split {split!r} has no sample; {available} (option --split)")
    options = BuildOptions(workers, limit=min(samples, counts.total()))
    forms = forms_of(recipe, {**listing.kinds, **recipe.derived_kinds()})
    built, left_out = _built(forms, root, scratch, options, on_progress)
    candidates, refused = _loaded(built, split)
    left_out |= refused
    if not candidates:
        raise LoaderError(f"no form can be loaded: {_reasons(left_out)}")
    on_progress(f"loading {len(candidates)} samples in turns")
    rounds = compare(candidates, budget)
    predictions = [
        _predict(build, rounds.images_per_s(build.form.name).median, counts)
        for build in built
        if build.form.name in rounds.measurements
    ]
    return FormTable(counts.total(), options.limit or 0, tuple(predictions), left_out, rounds.busy)


# --- a sample in each form


@dataclass(frozen=True)
class Built:
    """A form built on a sample. A build takes `fixed_s` seconds, and one of its `workers` takes `sample_s` seconds per sample."""

    form: Form
    data: Data
    samples: int
    bytes: int
    workers: int
    fixed_s: float
    sample_s: float


def _built(
    forms: Sequence[Form], root: Path, scratch: Path, options: BuildOptions, tell: Callable[[str], None]
) -> tuple[list[Built], dict[str, str]]:
    """Build a sample in each form; return those that work, and the errors of the others.

    All are built before one is loaded: TensorFlow and its threads would count as time of the later builds.
    """
    built, left_out = [], {}
    for number, form in enumerate(forms):
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

    recipe = replace(form.recipe, depends=())  # modules decide when a dataset is stale, and no worker gets one
    summary = build(recipe, out, root, options=options, on_event=on_event)
    workers = max(1, usable_cpus() if options.workers is None else options.workers)
    fixed_s = max(0.0, summary.seconds - took_s / workers)
    data = open_data(summary.out)
    return Built(form, data, summary.samples, summary.bytes, workers, fixed_s, took_s / summary.samples)


def expected_build(recipe: Recipe, root: Path, samples: int, workers: int | None = None) -> tuple[float, float]:
    """Return the bytes and the seconds of a build of `samples` samples, predicted from one of a few in a temporary folder.

    Raises:
        BuildError: None of the samples can be built.
    """
    with tempfile.TemporaryDirectory(prefix="tfprep-expected-") as scratch:
        options = BuildOptions(workers, limit=min(_EXPECTED_SAMPLES, samples))
        built = _build(Form("", recipe), root, Path(scratch) / "out", options)
    return built.bytes / built.samples * samples, built.fixed_s + built.sample_s * samples / built.workers


def _loaded(built: Sequence[Built], split: str) -> tuple[list[Candidate], dict[str, str]]:
    """Load a batch of each; return the loaders of those that work, and the errors of the others."""
    candidates, refused = [], {}
    for form in built:
        try:
            candidate = loader_candidate(form.data, split, 32, name=form.form.name, cache=False, **form.form.at_load)
            measure(candidate, Budget(1, 0.0, 0.0, 1))
        except Exception as error:  # at load, a function of the recipe may raise anything
            refused[form.form.name] = (str(error) or type(error).__name__).splitlines()[0]
        else:
            candidates.append(candidate)
    return candidates, refused


def _reasons(left_out: Mapping[str, str]) -> str:
    return "; ".join(f"{name}: {why}" for name, why in left_out.items())


def _predict(built: Built, images_per_s: float, counts: Counter[str]) -> Prediction:
    splits = built.data.splits
    each = {name: info.bytes / info.samples for name, info in splits.items() if info.samples}
    disk = sum(count * each.get(name, built.bytes / built.samples) for name, count in counts.items())
    build_s = built.fixed_s + built.sample_s * counts.total() / built.workers
    return Prediction(built.form.name, images_per_s, disk, build_s)
