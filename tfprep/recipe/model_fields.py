"""Fields that a model computes from the built fields of a dataset: what to compute, and how it is stored."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, TypeAlias

from tfprep.codecs import Codec
from tfprep.dataset.names import check_name
from tfprep.errors import DatasetError, RecipeError
from tfprep.fields import Kind
from tfprep.recipe import checks
from tfprep.recipe.describe import NO_SOURCE, Description

Compute: TypeAlias = Callable[[Mapping[str, Any]], Mapping[str, Any]]
"""A function of a batch, arrays [B, ...] by input, that returns arrays [B, ...] by the fields that are stored."""
_KINDS: tuple[Kind, ...] = ("image", "mask", "map", "scalar")
"""The kinds that arrays may have; "scalar" is any array of numbers that ops leave as it is."""


@dataclass(frozen=True)
class ModelFields:
    """Fields that a model computes from built fields, stored beside the dataset (`tfprep fields add`).

        HERE = Path(__file__).parent  # without it, the name would be one in the current folder

        def teacher():
            import keras
            model = keras.saving.load_model(HERE / "teacher.keras")
            return lambda batch: {"teacher": model.predict_on_batch(batch["image"])}

        FIELDS = ModelFields(model=teacher, inputs=["image"], store={"teacher": codecs.Raw("float16")}, files=["teacher.keras"])

    Attributes:
        model: A function that is called once in each process that computes. It loads the model and returns a function of a batch,
            which gets NumPy arrays [B, ...] by input (text as arrays of str), and returns arrays [B, ...] by the names of
            `store`: of NumPy, or anything that `numpy.asarray` takes.
        inputs: The fields of the records that it gets, none that a model added; "key" is the samples' keys.
        store: Codec by the name of the new field.
        batch_size: The number of samples in a batch. The last batch of a shard is smaller.
        splits: The splits that get the fields; None for all.
        variants: "all", or the number of variants that get them: the first ones.
        kinds: Kind by field: "scalar", any array of numbers, where it is not named. "map" and "mask" follow geometry at load.
        follows_pixels: True where the values belong to the pixels of the stored variant, as latents do: ops at load that change
            pixels are then refused. False for what is the same under small changes, such as a class.
        files: Files that the model reads, such as its weights, relative to `folder`; a change of one makes the fields stale.
        folder: The folder of `files`. By default that of the file that defines this, or the current folder.
        depends: As in `Recipe`: what the model depends on and tfprep does not see. A change computes everything again.
        name: The name for the fields together, in names of folders and commands; by default the first of `store`.

    Raises:
        RecipeError: An option is wrong; the message gives the rule and the value.
    """

    model: Callable[[], Compute]
    inputs: Sequence[str]
    store: Mapping[str, Codec]
    batch_size: int = 64
    splits: Sequence[str] | None = None
    variants: int | Literal["all"] = "all"
    kinds: Mapping[str, Kind] = field(default_factory=dict)
    follows_pixels: bool = True
    files: Sequence[str] = ()
    folder: Path | None = field(default=None, compare=False)
    depends: Sequence[Any] = ()
    name: str = ""

    def __post_init__(self) -> None:
        checks.check_values(vars(self), _RULES)
        checks.check_store(self.store)
        for name, codec in self.store.items():
            codec.check(name, self.kind(name))
        for name in self.kinds:
            if name not in self.store:
                raise RecipeError(f"kinds names {name!r}, which store does not")
        object.__setattr__(self, "name", self.name or next(iter(self.store)))
        try:
            check_name("name, by default the first of store,", self.name)
        except DatasetError as error:
            raise RecipeError(f"{error}; give name=") from None
        object.__setattr__(self, "folder", (self.folder or checks.running_folder()).absolute())

    def kind(self, name: str) -> Kind:
        """Return the kind of a field."""
        kind = self.kinds.get(name, "scalar")
        if kind not in _KINDS:
            raise RecipeError(f"kinds: that of {name!r} is one of {', '.join(_KINDS)}, not {kind!r}")
        return kind

    def file_paths(self) -> dict[str, Path]:
        """Return where `files` are, by the name that they have there."""
        return {name: Path(os.path.normpath((self.folder or Path.cwd()) / name)) for name in self.files}

    def describe(self) -> dict[str, Any]:
        """Return everything that decides the values, as plain JSON: the options, the code of the model, the digests of `files`.

        Raises:
            RecipeError: A file cannot be read, or the code holds what has no description.
        """
        description = Description()
        options = {option.name: getattr(self, option.name) for option in fields(self) if option.name not in _NOT_VALUES}
        options["store"] = {name: codec.describe() for name, codec in self.store.items()}
        described = description.options(options)
        code = description.code()
        if names := code.get(NO_SOURCE):
            raise RecipeError(
                f"the source of {', '.join(names)} cannot be found; define it in a file, so that changes are seen"
            )
        return {**described, "files": self.file_digests(), "code": code}

    def file_digests(self) -> dict[str, str]:
        """Return the SHA-256 of each of `files`, in hexadecimal. Raises RecipeError where one cannot be read."""
        return {name: checks.file_digest(path) for name, path in self.file_paths().items()}


_RULES: Mapping[str, checks.Rule] = {
    "model": ("a function that loads the model and returns a function of a batch", callable),
    "inputs": ("a list of the fields that the model gets", lambda names: checks.is_names(names) and len(names) > 0),
    "batch_size": checks.COUNT,
    "splits": ("a list of splits, or None", lambda splits: splits is None or checks.is_names(splits)),
    "variants": ("'all' or a whole number from 1", lambda variants: variants == "all" or checks.is_count(variants)),
    **checks.FILES,
}
_NOT_VALUES = ("folder", "files", "splits", "follows_pixels")
"""Options that do not decide a value, or stand elsewhere."""


def deciding(description: Mapping[str, Any]) -> dict[str, Any]:
    """Return what decides the values in what `ModelFields.describe` returned: all but which variants get them, and their name."""
    return {name: value for name, value in description.items() if name not in ("variants", "name")}


def fingerprint_of(description: Mapping[str, Any]) -> str:
    """Return the digest of what decides the values: 64 hexadecimal digits."""
    return hashlib.sha256(json.dumps(deciding(description), sort_keys=True).encode()).hexdigest()
