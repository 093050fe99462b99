"""A recipe says what a dataset holds and how each of its values is computed. It is plain Python, and frozen.

Its fingerprint covers every option, and the source of the user's modules that the options refer to (`tfprep.recipe.describe`).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Literal

from tfprep.augment.transform import ColorOp, GeometryOp
from tfprep.augment.warp import Fill
from tfprep.codecs import Codec
from tfprep.derive.inputs import Derived, derived_kind, follows_of
from tfprep.errors import RecipeError
from tfprep.fields import EFFECTS, Kind
from tfprep.recipe.checks import check_kinds, check_options, file_digest, running_folder
from tfprep.recipe.describe import Description
from tfprep.sources.source import Listing, Source


@dataclass(frozen=True)
class Recipe:
    """The description of a dataset to build.

    Attributes:
        name: The name of the dataset: a letter, then letters, digits and `_`.
        source: Lists the raw samples (`tfprep.sources`).
        store: Codec by field name. A field that is not named here is not stored.
        geometry: Geometry ops, composed into one resampling of all fields.
        derive: Derived input by its new field name. They are computed in this order, from the warped sample.
        color: Ops that change images only; applied after the derived inputs, and to augmented variants only.
        variants: Number of variants by split, counting variant 0, which is not augmented. 1 for a split that is not named.
        border: What is outside the image: "constant" uses `fill`, "reflect" mirrors, "replicate" repeats the edge.
        fill: The value outside the image by field, a number or one per channel; 0 for a field that is not named. For a mask it is
            the number of void pixels that the source declares; without one, geometry that shows pixels outside is refused.
        min_visible: Share of a box's area, from 0 to 1, that must remain inside the image. Other boxes, and those wholly outside,
            are dropped, together with their rows in `row_fields`.
        row_fields: The fields with one row for each box, by the name of the boxes: `{"boxes": ["labels"]}`; needed for those that
            the source does not declare, and for derived boxes that a loader's geometry moves.
        flip_indices: The row that takes the place of each row of points in a mirror image, by the name of the points:
            `{"points": (0, 2, 1)}` exchanges rows 1 and 2, such as the left and the right eye, of every 3 rows. `()` says that
            the rows have no left and right. See `docs/recipes.md` for the key points of COCO.
        shards: Number of files per variant, by split. By default a shard holds about 64 MiB of raw data, and there are up to 16
            shards for small datasets, so that all cores have work.
        dct_downscale: Decode a JPEG at 1/2, 1/4 or 1/8 of its size (the scaled inverse DCT of libjpeg-turbo) if geometry makes it
            that small anyway, which takes less processor time and changes pixels slightly. A sample with masks or maps is
            always decoded whole.
        seed: The seed of all randomness: shards, order inside a shard, augmentation and derived inputs.
        depends: What your functions depend on and tfprep does not see: modules that they import by a name in a string, such as
            `[plugins.blur]`, and values, such as `[os.environ["MODE"], 2]`. A change rebuilds everything.
        files: Files that functions of the recipe read, such as `["teacher.onnx"]`, relative to `folder`. Their content belongs to
            the recipe: a change rebuilds everything. It is read when the recipe is made, and a build ends if it changes later.
        folder: The folder of `files`. By default that of the recipe's file, or the current folder where a recipe is not a file.

    Raises:
        RecipeError: An option is wrong; the message gives the rule, the value and the fix.
    """

    name: str
    source: Source
    store: Mapping[str, Codec]
    geometry: Sequence[GeometryOp] = ()
    derive: Mapping[str, Derived] = field(default_factory=dict)
    color: Sequence[ColorOp] = ()
    variants: Mapping[str, int] = field(default_factory=dict)
    border: Literal["constant", "reflect", "replicate"] = "constant"
    fill: Mapping[str, Fill] = field(default_factory=dict)
    min_visible: float = 0.0
    row_fields: Mapping[str, Sequence[str]] = field(default_factory=dict)
    flip_indices: Mapping[str, Sequence[int]] = field(default_factory=dict)
    shards: Mapping[str, int] = field(default_factory=dict)
    dct_downscale: bool = True
    seed: int = 0
    depends: Sequence[Any] = ()
    files: Sequence[str] = ()
    folder: Path | None = field(default=None, compare=False)
    _digests: Mapping[str, str] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        check_options(vars(self))
        for name, option in vars(self).items():  # what is checked here may not change later
            if isinstance(option, Mapping | list):
                object.__setattr__(self, name, dict(option) if isinstance(option, Mapping) else list(option))
        self._take_declarations()
        if self.files:
            object.__setattr__(self, "folder", (self.folder or running_folder()).absolute())
            object.__setattr__(self, "_digests", {name: file_digest(path) for name, path in self.file_paths().items()})

    def _take_declarations(self) -> None:
        """Add what the source declares: the numbers of void pixels, and the fields with rows for each box."""
        voids: Mapping[str, int] = getattr(self.source, "voids", dict)()
        rows: Mapping[str, Sequence[str]] = getattr(self.source, "rows", dict)()
        derived: dict[str, Any] = dict(self.derive)
        for name, op in derived.items():
            mask = str(getattr(op, "mask", ""))
            if is_dataclass(op) and mask in voids and getattr(op, "void", mask) is None:
                derived[name] = replace(op, void=voids[mask])  # type: ignore[type-var]
        own = {boxes: tuple(dict.fromkeys((*rows.get(boxes, ()), *of))) for boxes, of in self.row_fields.items()}
        object.__setattr__(self, "fill", {**voids, **self.fill})
        object.__setattr__(self, "derive", derived)
        object.__setattr__(self, "row_fields", {**rows, **own})

    def file_paths(self) -> dict[str, Path]:
        """Return where `files` are, by their path below `folder`; a file elsewhere by its absolute path."""
        paths = [Path(os.path.normpath((self.folder or running_folder()) / name)) for name in self.files]
        return {(os.path.relpath(p, self.folder) if p.is_relative_to(str(self.folder)) else str(p)): p for p in paths}

    def check_files(self) -> None:
        """Raise RecipeError if the content of `files` is no longer what it was when the recipe was made."""
        for name, path in self.file_paths().items():
            if file_digest(path) != self._digests[name]:
                raise RecipeError(f"files: {path} is another file than when the recipe was made; make the recipe again")

    def variants_of(self, split: str) -> int:
        """Return the number of variants of a split."""
        return self.variants.get(split, 1)

    def derived_kinds(self) -> dict[str, Kind]:
        """Return the kind of every derived input; a map if it does not say."""
        return {name: derived_kind(derived) for name, derived in self.derive.items()}

    def follows(self, name: str) -> tuple[str, ...]:
        """Return what a stored field follows, of `tfprep.fields.EFFECTS`: all, if it comes from the source."""
        return tuple(sorted(follows_of(self.derive[name]) if name in self.derive else EFFECTS))

    def first_label(self, kinds: Mapping[str, Kind]) -> str | None:
        """Return the label that the index keeps, the first of `store`; `kinds` are those of the source."""
        all_kinds = {**kinds, **self.derived_kinds()}
        return next((name for name in self.store if all_kinds.get(name) == "label"), None)

    def hashed_image(self, kinds: Mapping[str, Kind], files: Sequence[str]) -> str | None:
        """Return the image whose digest and hash the index keeps: the first of `store`, else the first of the source's files."""
        return next((name for name in (*self.store, *files) if name in files and kinds.get(name) == "image"), None)

    def check_fields(self, listing: Listing) -> None:
        """Raise RecipeError where an option names a field that neither the source nor a derived input gives."""
        check_kinds(vars(self), listing.kinds)
        for name in listing.fixed if self.geometry else ():
            raise RecipeError(
                f"geometry: the numbers of '{name}' cannot follow the images: declare them as boxes or points (tfprep index "
                "--features), or leave the field out of Records"
            )

    def check_splits(self, splits: Sequence[str]) -> None:
        """Raise RecipeError if `variants` or `shards` name a split that the source does not have."""
        for option in ("variants", "shards"):
            for split in getattr(self, option):
                if split not in splits:
                    raise RecipeError(f"{option}: there is no split '{split}'; there are {', '.join(splits)}")

    def describe(self, split: str | None = None) -> dict[str, Any]:
        """Describe the recipe as plain JSON.

        Args:
            split: Describe only what decides how a sample of this split becomes bytes. Where samples come from, and how
                they are split, is left out, because the samples themselves show it.

        Returns:
            The options by name, and under "code" the digest of each function and module of the user to which they refer, and
            the versions of installed packages. tfprep's own classes are named by their package, as `tfprep.augment.Flip`.

        Raises:
            RecipeError: An option holds something that cannot be described, such as a lock or an open file.
        """
        description = Description()
        left_out = ("files", "folder", "_digests", *(() if split is None else ("variants", "shards", "source")))
        options = {field.name: getattr(self, field.name) for field in fields(self) if field.name not in left_out}
        described = {"type": "tfprep.recipe.Recipe", **description.options(options)}
        described |= {"files": dict(self._digests)} if self._digests else {}
        if split is not None:
            described["variants"] = self.variants_of(split)
            for name in ("decoders", "multi_hot"):
                declared: Any = getattr(self.source, name, tuple)()
                described |= {name: description.describe(declared)} if declared else {}
        return {**described, "code": description.code()}

    def fingerprint(self, split: str | None = None) -> str:
        """SHA-256 of `describe(split)` in hexadecimal: equal fingerprints mean equal options and equal code."""
        described = self.describe(split)
        # A derived input sees those before it, so their order counts; the order of keys elsewhere does not.
        text = json.dumps([list(self.derive), described], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()
