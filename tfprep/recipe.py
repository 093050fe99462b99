"""A recipe: what a dataset holds and how each value of it is made. Plain Python, frozen, and with a fingerprint.

The fingerprint covers every option and the source text of every user
function, so that a shard is built anew exactly when something that makes it has changed.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Literal, NoReturn

from tfprep.augment.transform import ColourOp, GeometryOp
from tfprep.augment.warp import Fill
from tfprep.codecs import Codec, Original
from tfprep.dataset.names import check_name
from tfprep.derive.derived import Derived
from tfprep.errors import DatasetError, RecipeError
from tfprep.fields import RASTER_KINDS, Kind
from tfprep.sources.source import Listing, Source


@dataclass(frozen=True)
class Recipe:
    """What to build.

    - `name`: of the dataset; a letter, then letters, digits and `_`.
    - `source`: lists the raw samples (`tfprep.sources`).
    - `store`: field name to codec. What is not named here is not stored.
    - `geometry`: ops that are composed into one resampling of all fields; `border` and `fill` say what lies outside.
    - `derive`: new field name to derived input, computed in this order from the warped sample.
    - `colour`: ops on images only, after the derived inputs, in augmented variants only.
    - `variants`: how many variants a split gets, variant 0 (no augmentation) counted; 1 for a split not named.
    - `border`: "constant" fills with `fill[field]` (0 where not given; a number, or one a channel), "reflect" mirrors,
      "replicate" repeats the edge.
    - `min_visible`: boxes of which a smaller share remains inside the image are dropped, and with them the rows of the fields
      that `beside` names: `{"boxes": ["box_labels"]}`. 0 keeps all of them.
    - `shards`: files a variant for each split named; by default so many that a shard holds some 64 MiB of raw data, and
      at least 16 where there are 512 samples, so that all cores have work.
    - `dct_downscale`: where geometry makes a JPEG at most half as large, decode it at 1/2, 1/4 or 1/8 already (libjpeg-turbo's
      scaled inverse DCT): 1.1 to 1.3 times less CPU, and half a level from the area average (mean of 40 photos, 50 dB; the worst
      35 dB; benchmarks/dct_downscale.py). A sample with masks or maps is always decoded whole.
    - `seed`: of all randomness: shards, order inside a shard, augmentation, derived inputs.
    """

    name: str
    source: Source
    store: Mapping[str, Codec]
    geometry: Sequence[GeometryOp] = ()
    derive: Mapping[str, Derived] = field(default_factory=dict)
    colour: Sequence[ColourOp] = ()
    variants: Mapping[str, int] = field(default_factory=dict)
    border: Literal["constant", "reflect", "replicate"] = "constant"
    fill: Mapping[str, Fill] = field(default_factory=dict)
    min_visible: float = 0.0
    beside: Mapping[str, Sequence[str]] = field(default_factory=dict)
    shards: Mapping[str, int] = field(default_factory=dict)
    dct_downscale: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        _check_recipe(self)

    def variants_of(self, split: str) -> int:
        return self.variants.get(split, 1)

    def derived_kinds(self) -> dict[str, Kind]:
        """The kind of every derived input; a map where it does not say."""
        return {name: getattr(made, "kind", "map") for name, made in self.derive.items()}

    def check_fields(self, listing: Listing) -> None:
        """RecipeError where the recipe names a field that the source and the derived inputs do not give."""
        kinds = {**listing.kinds, **self.derived_kinds()}
        for name in self.derive:
            if name in listing.kinds:
                _wrong(("derive", name), f"derive: the source already has a field '{name}'; choose another name")
        for name, codec in self.store.items():
            if name not in kinds:
                _wrong(("store", name), f"store: there is no field '{name}'; there are {', '.join(sorted(kinds))}")
            try:
                codec.check(name, kinds[name])
            except RecipeError as error:
                _wrong(("store", name), str(error))
        for name in {*self.beside, *(other for others in self.beside.values() for other in others)}:
            if name not in kinds:
                _wrong(("beside",), f"beside: there is no field '{name}'; there are {', '.join(sorted(kinds))}")
        for name in self.fill:
            if kinds.get(name) not in RASTER_KINDS:
                _wrong(("fill", name), f"fill: there is no image, mask or map named '{name}' to fill")

    def check_splits(self, splits: Sequence[str]) -> None:
        """RecipeError where `variants` or `shards` name a split that the source does not have."""
        for option in ("variants", "shards"):
            for split in getattr(self, option):
                if split not in splits:
                    _wrong((option, split), f"{option}: there is no split '{split}'; there are {', '.join(splits)}")

    def describe(self) -> dict[str, Any]:
        """The recipe as plain JSON."""
        description: dict[str, Any] = _describe(self)
        return description

    def fingerprint(self, split: str | None = None) -> str:
        """SHA-256 of the whole recipe, or of what decides how a sample of `split` becomes bytes, in hexadecimal.

        The latter leaves out where samples come from and how they are split: the samples themselves tell.
        """
        description = self.describe()
        if split is not None:
            description["variants"] = self.variants_of(split)
            del description["shards"], description["source"]
        text = json.dumps(description, sort_keys=True, ensure_ascii=False)
        return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


# --- checks ---------------------------------------------------------------------------------------------------------


def _check_recipe(recipe: Recipe) -> None:
    try:
        check_name("Recipe(name=...)", recipe.name)
    except DatasetError as error:
        _wrong(("name",), str(error))
    if not callable(getattr(recipe.source, "scan", None)):
        _wrong(("source",), f"source: expected a source such as sources.Folder(), not {recipe.source!r}")
    _check_mapping(
        "store", recipe.store, "a codec such as codecs.Jpeg()", lambda c: callable(getattr(c, "encode", None))
    )
    _check_mapping("derive", recipe.derive, "a derived input or a function", callable)
    for option, least in (("variants", 1), ("shards", 1)):
        test = functools.partial(_whole_number, least=least)
        _check_mapping(option, getattr(recipe, option), f"a whole number from {least}", test)
    _check_mapping("fill", recipe.fill, "a number, or a tuple of one a channel", _is_fill)
    _check_mapping("beside", recipe.beside, "a list of field names", lambda names: isinstance(names, list | tuple))
    if not 0 <= recipe.min_visible <= 1:
        _wrong(("min_visible",), f"min_visible: expected a share from 0 to 1, not {recipe.min_visible!r}")
    _check_ops("geometry", recipe.geometry)
    _check_ops("colour", recipe.colour)
    if recipe.border not in ("constant", "reflect", "replicate"):
        _wrong(("border",), f"border: expected 'constant', 'reflect' or 'replicate', not {recipe.border!r}")
    if not recipe.store:
        _wrong(("store",), "store: nothing would be stored; name at least one field, such as {'image': codecs.Jpeg()}")
    _check_original(recipe)


def _check_mapping(option: str, value: Any, expected: str, test: Callable[[Any], bool]) -> None:
    if not isinstance(value, Mapping):
        _wrong((option,), f"{option}: expected a dict from name to {expected}, not {value!r}")
    for name, item in value.items():
        if not isinstance(name, str):
            _wrong((option,), f"{option}: a name is a string, not {name!r}")
        if inspect.isclass(item) or not test(item):
            _wrong((option, name), f"{option}['{name}']: expected {expected}, not {item!r}{_called(item)}")


def _check_ops(option: str, ops: Any) -> None:
    if isinstance(ops, str | Mapping) or not isinstance(ops, Sequence):
        _wrong((option,), f"{option}: expected a list of ops, not {ops!r}")
    for number, op in enumerate(ops):
        if not callable(op) or inspect.isclass(op):
            _wrong((option,), f"{option}[{number}]: expected an op or a function, not {op!r}{_called(op)}")


def _called(item: Any) -> str:
    return f"; call it: {item.__name__}()" if inspect.isclass(item) else ""


def _check_original(recipe: Recipe) -> None:
    for name, codec in recipe.store.items():
        if isinstance(codec, Original) and (
            recipe.geometry or recipe.colour or max(recipe.variants.values(), default=1) > 1
        ):
            reason = "Original keeps the source's bytes, but geometry, colour and variants change the pixels"
            _wrong(("store", name), f"store['{name}']: {reason}; use Jpeg(), Png() or Raw(), or drop those")


def _is_fill(value: Any) -> bool:
    values = value if isinstance(value, tuple) else (value,)
    return all(isinstance(one, int | float) and not isinstance(one, bool) for one in values)


def _whole_number(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _wrong(where: tuple[str, ...], message: str) -> NoReturn:
    """Raise; `where` is the path of option names by which `recipe_file` finds the line."""
    error = RecipeError(message)
    error.where = where
    raise error


# --- description ----------------------------------------------------------------------------------------------------


def _describe(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        options = {f.name: _describe(getattr(value, f.name)) for f in fields(value)}
        return {"type": f"{type(value).__module__}.{type(value).__qualname__}", **options}
    if isinstance(value, Mapping):
        return {str(name): _describe(item) for name, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_describe(item) for item in (sorted(value) if isinstance(value, set | frozenset) else value)]
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if isinstance(value, functools.partial):
        return {"function": _describe(value.func), "args": _describe(value.args), "keywords": _describe(value.keywords)}
    if callable(value):
        return _describe_callable(value)
    raise RecipeError(f"a recipe holds plain values, dataclasses and functions; {value!r} cannot be described in JSON")


def _describe_callable(value: Any) -> dict[str, Any]:
    """A function by its name, source text and captured values; an object by its class and attributes.

    A change of any of them builds anew what it makes.
    """
    function = value if inspect.isroutine(value) or inspect.isclass(value) else type(value)
    held = (
        inspect.getclosurevars(function).nonlocals if inspect.isfunction(function) else getattr(value, "__dict__", {})
    )
    try:
        text = inspect.getsource(function)
    except (OSError, TypeError):
        text = ""
    digest = hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:16]
    return {"function": function.__qualname__, "source": digest, **({"held": _describe(held)} if held else {})}
