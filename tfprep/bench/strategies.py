"""Strategies: ways to store a dataset, which are measured on a sample before anything is built.

After PRESTO (Isenko et al., "Where Is My Training Bottleneck? Hidden Trade-Offs in Deep Learning Preprocessing Pipelines",
SIGMOD 2022): the choice of steps to do ahead trades throughput against disk and preparation time, and the best choice is found
by measuring, not by a rule.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

from tfprep.augment.transform import GeometryOp
from tfprep.bench.bottleneck import codec_name
from tfprep.codecs import Jpeg, Original, Png, Raw
from tfprep.fields import RASTER_KINDS, Kind
from tfprep.recipe import Recipe


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
    """The strategies to measure: the recipe itself, and its images as original bytes, JPEG, PNG or raw.

    Derived inputs are stored, or left to the training loop.
    """
    images = [name for name in recipe.store if kinds[name] == "image"]
    found = [Strategy("as the recipe says", recipe, recipe)]
    for label, codec in (("JPEG 95", Jpeg(95)), ("JPEG 85", Jpeg(85)), ("PNG", Png()), ("raw", Raw())):
        stored_so = replace(recipe, store={**recipe.store, **dict.fromkeys(images, codec)})
        found.append(Strategy(f"images as {label}", stored_so, recipe))
    if stored := [name for name in recipe.derive if name in recipe.store]:
        found += [_computed(strategy, stored) for strategy in found[:2]]
    elif images == [name for name in recipe.store if kinds[name] in RASTER_KINDS] and not recipe.derive:
        found.append(_originals(recipe, images))
    return list(_distinct(found))


def _originals(recipe: Recipe, images: list[str]) -> Strategy:
    """The unchanged bytes of the files. The loader resizes and crops, and there are no variants."""
    kept = {name: Original() if name in images else codec for name, codec in recipe.store.items()}
    plain = replace(recipe, geometry=(), colour=(), derive={}, variants={}, fill={}, store=kept)
    return Strategy("original bytes", plain, recipe, load_geometry=tuple(recipe.geometry))


def _computed(strategy: Strategy, derived: list[str]) -> Strategy:
    store = {name: codec for name, codec in strategy.recipe.store.items() if name not in derived}
    name = f"{strategy.name}, {', '.join(derived)} computed during training"
    return Strategy(name, replace(strategy.recipe, store=store), strategy.whole, tuple(derived))


def _distinct(found: list[Strategy]) -> Iterator[Strategy]:
    """One strategy of each group that stores the same."""
    seen = set()
    for strategy in found:
        key = (strategy.recipe.fingerprint("train"), strategy.computed)
        if key not in seen:
            seen.add(key)
            yield strategy


def stored_as(strategy: Strategy) -> str:
    """The stored fields with their codecs, such as `image JPEG 95, mask PNG`."""
    return ", ".join(f"{name} {codec_name(codec)}" for name, codec in strategy.recipe.store.items())


def written(strategy: Strategy) -> tuple[str, ...]:
    """The lines that make a recipe and a trainer follow the strategy."""
    store = ", ".join(f'"{name}": {_call(codec)}' for name, codec in strategy.recipe.store.items())
    lines = [f"in the recipe: store={{{store}}},"]
    if strategy.load_geometry:
        lines += [
            "in the recipe: no geometry=, colour= and variants=",
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
