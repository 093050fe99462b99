"""Ways to store a dataset, measured on a sample of its raw data before anything is built.

After PRESTO (Isenko et al., "Where Is My Training Bottleneck? Hidden Trade-Offs in Deep Learning Preprocessing Pipelines",
SIGMOD 2022): which steps are done ahead and which while training decides between throughput, disk and preparation time,
and the best choice is found by measuring, not by rule.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from tfprep.augment.transform import GeometryOp
from tfprep.bench.forms import codec_name
from tfprep.codecs import Codec, Jpeg, Original, Png, Raw
from tfprep.fields import RASTER_KINDS, Kind
from tfprep.recipe import Recipe

VARIANTS = (1, 2, 4, 8, 16)


@dataclass(frozen=True)
class Strategy:
    """A recipe that stores the same things as `whole` in another way.

    `computed` are the derived inputs left to the training loop, `load_geometry` the ops left to the loader.
    """

    name: str
    recipe: Recipe
    whole: Recipe
    computed: tuple[str, ...] = ()
    load_geometry: tuple[GeometryOp, ...] = ()


def strategies(recipe: Recipe, kinds: Mapping[str, Kind]) -> list[Strategy]:
    """What is worth a measurement: the recipe as it stands, and its rasters as original bytes, JPEG, PNG, raw, each with
    derived inputs stored, or left to the training loop."""
    images = [name for name in recipe.store if kinds[name] == "image"]
    found = [Strategy("as the recipe says", recipe, recipe)]
    for label, codec in (("JPEG 95", Jpeg(95)), ("JPEG 85", Jpeg(85)), ("PNG", Png()), ("raw", Raw())):
        found.append(Strategy(f"images as {label}", with_images(recipe, images, codec), recipe))
    if stored := [name for name in recipe.derive if name in recipe.store]:
        found += [_computed(strategy, stored) for strategy in found[:2]]
    elif images == [name for name in recipe.store if kinds[name] in RASTER_KINDS] and not recipe.derive:
        found.append(_originals(recipe, images))
    return list(_distinct(found))


def with_images(recipe: Recipe, images: list[str], codec: Codec) -> Recipe:
    return replace(recipe, store={**recipe.store, **dict.fromkeys(images, codec)})


def _originals(recipe: Recipe, images: list[str]) -> Strategy:
    """The files' own bytes; resizing and cropping are left to the loader, and there are no variants."""
    kept = {name: Original() if name in images else codec for name, codec in recipe.store.items()}
    plain = replace(recipe, geometry=(), colour=(), derive={}, variants={}, fill={}, store=kept)
    return Strategy("original bytes", plain, recipe, load_geometry=tuple(recipe.geometry))


def _computed(strategy: Strategy, derived: list[str]) -> Strategy:
    store = {name: codec for name, codec in strategy.recipe.store.items() if name not in derived}
    name = f"{strategy.name}, {', '.join(derived)} computed while training"
    return Strategy(name, replace(strategy.recipe, store=store), strategy.whole, tuple(derived))


def _distinct(found: list[Strategy]) -> Iterator[Strategy]:
    """One of those that store the same."""
    seen = set()
    for strategy in found:
        key = (strategy.recipe.fingerprint("train"), strategy.computed)
        if key not in seen:
            seen.add(key)
            yield strategy


def stored_as(strategy: Strategy) -> str:
    """As `image JPEG 95, mask PNG`."""
    return ", ".join(f"{name} {codec_name(codec)}" for name, codec in strategy.recipe.store.items())
