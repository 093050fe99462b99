"""Turns one raw sample into its variants: reads and decodes it, makes each variant (`tfprep.recipe.sample`), and encodes that.

An error, in tfprep or in a user's function, becomes a SampleError that names the stage and the field, so that the sample is
rejected and the build goes on.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tfprep import images
from tfprep.augment.warp import Fill, check_rows, reduction_for
from tfprep.builder.layout import Layout
from tfprep.builder.options import BuildOptions
from tfprep.codecs import Feature, Original, Scalar
from tfprep.errors import BuildError, RecipeError, SampleError, StorageError
from tfprep.fields import RASTER_KINDS, Array, FieldSpec, Kind, Sample, Size
from tfprep.recipe import Recipe
from tfprep.recipe.file import import_file, load_recipe
from tfprep.recipe.sample import SampleStage, Stages, check_form
from tfprep.seeding import generator
from tfprep.sources import Entry, FieldDecoder, Listing, read_files
from tfprep.sources.pixels import TURNED, PixelDecoder
from tfprep.sources.raw import parse_reference, state_of
from tfprep.storage.urls import folder_at, is_remote

_PLACED: frozenset[Kind] = frozenset({"mask", "map", "boxes", "points"})
"""Kinds whose values have places in the image."""
_TURNED = (
    "were turned upright by their EXIF orientation; labels that were drawn on the pixels as they are stored do not fit them: "
    "sources.Pixels(exif='ignore')"
)


@dataclass(frozen=True)
class SampleMaker:
    """A recipe applied to the samples of one source; `kinds` and `classes` are those of its listing.

    `seconds` adds up the time spent, by stage. `warned` are the warnings of decoders about the sample that is being made, and
    `notes` says what is remarkable about an image, as the end of "3 images ...", each by field.
    """

    recipe: Recipe
    kinds: Mapping[str, Kind]
    classes: Mapping[str, Sequence[str]]
    seconds: dict[str, float] = dataclasses.field(default_factory=dict, compare=False)
    warned: list[str] = dataclasses.field(default_factory=list, compare=False)
    notes: dict[str, str] = dataclasses.field(default_factory=dict, compare=False)

    def made(
        self, key: str, raw: Mapping[str, Any], variants: Sequence[int], *, pixels: bool = True
    ) -> Iterator[Sample]:
        """These variants of a raw sample as values, one at a time. Raises SampleError.

        `raw` holds a file's bytes, or a value, by field. Each variant decides by itself at which scale its image is decoded, so
        that it does not depend on the number of variants; variants of one scale share one decode. Without `pixels`, an image that
        is stored by its own bytes and needed for nothing else is not decoded: its value stays bytes.
        """
        self.warned.clear()
        self.notes.clear()
        decoded: dict[int, Sample] = {}
        file = raw.get(self._reducible)
        is_reducible = isinstance(file, bytes) and images.is_jpeg(file)
        if self._decoders or is_reducible:  # how the rest is decoded depends on the size
            size = self._upright_size(raw, raw)
        else:
            decoded[1] = self._decode(raw, None, 1, pixels)
            size = self._upright_size(raw, decoded[1])
        for variant in variants:
            of_variant = partial(generator, self.recipe.seed, key, variant)
            draws = of_variant if variant else partial(_unaugmented, of_variant)
            transform = self._stages.transform(draws, size)
            # The factor by which a JPEG is reduced when it is decoded:
            reduced = reduction_for(transform) if transform is not None and is_reducible else 1
            if reduced not in decoded:
                decoded[reduced] = self._decode(raw, size, reduced, pixels)
            yield self._stages.make(decoded[reduced], draws, size=size, transform=transform, reduced=reduced)

    @cached_property
    def _stages(self) -> Stages:
        recipe = self.recipe
        return Stages(
            self.kinds,
            recipe.geometry,
            recipe.derive,
            recipe.color,
            border=recipe.border,
            fill=recipe.fill,
            min_visible=recipe.min_visible,
            row_fields=recipe.row_fields,
            flip_indices=recipe.flip_indices,
            seconds=self.seconds,
        )

    @cached_property
    def _decoders(self) -> Mapping[str, FieldDecoder]:
        decoders: Mapping[str, FieldDecoder] = getattr(self.recipe.source, "decoders", dict)()
        return decoders

    @cached_property
    def _multi_hot(self) -> Sequence[str]:
        names: Sequence[str] = getattr(self.recipe.source, "multi_hot", tuple)()
        return names

    def _is_turned(self, name: str, data: Any) -> bool:
        """Return True if the file of an image is turned upright when it is decoded."""
        decoder = self._decoders.get(name)
        keeps = isinstance(decoder, PixelDecoder) and decoder.pixels.exif == "ignore"
        return isinstance(data, bytes) and not keeps and images.file_orientation(data) > 1

    def _upright_size(self, raw: Mapping[str, Any], values: Mapping[str, Any]) -> Size | None:
        """(height, width) that all rasters share, from the headers of files among `values`; SampleError where they do not."""
        sizes: dict[str, Size] = {}
        with (stage := SampleStage(self.seconds, "decode")):
            for name in self._rasters:
                stage.field = name
                if name in self._decoders:
                    size = self._decoders[name].size(raw)
                else:
                    value = values[name]
                    size = images.image_size(value) if isinstance(value, bytes) else np.shape(value)[:2]
                if size is not None:
                    sizes[name] = size
        if len(set(sizes.values())) > 1:
            listed = ", ".join(f"{name} is {width} x {height}" for name, (height, width) in sizes.items())
            turned = next((name for name in sizes if self._is_turned(name, raw.get(name))), None)
            hint = f"; {TURNED.format(name=turned)}" if turned else ""
            raise SampleError(f"images, masks and maps of one sample have one size; {listed}{hint}", stage="decode")
        return next(iter(sizes.values()), None)

    @cached_property
    def _rasters(self) -> Sequence[str]:
        return [name for name, kind in self.kinds.items() if kind in RASTER_KINDS]

    @cached_property
    def _reducible(self) -> str:
        """The field that may be decoded at a part of its size; "" without geometry, or where masks or maps have its pixels."""
        is_single = len(self._rasters) == 1 and self._rasters[0] not in self._decoders
        return self._rasters[0] if self.recipe.dct_downscale and self.recipe.geometry and is_single else ""

    def _decode(self, raw: Mapping[str, Any], size: Size | None, reduced: int, pixels: bool) -> Sample:
        sample = {}
        with images.decoder_warnings() as warned, (stage := SampleStage(self.seconds, "decode")):
            for name, kind in self.kinds.items():
                stage.field, value, known = name, raw.get(name), len(warned)
                warned.turned = False
                if name in self._decoders:
                    sample[name] = self._decoders[name].decode(raw, size)
                elif not pixels and name in self._originals and _can_be_stored_unseen(value):
                    sample[name] = value
                else:
                    sample[name] = _decode_field(raw[name], kind, reduced)
                if name in self.classes and kind in ("mask", "label"):
                    _check_classes(name, sample[name], self.classes[name], self.recipe.fill.get(name), kind == "mask")
                    if isinstance(value, list) and name in self._multi_hot:
                        vector = np.zeros(len(self.classes[name]), np.float32)
                        vector[sample[name]] = 1
                        sample[name] = vector
                if isinstance(self.recipe.store.get(name), Scalar):
                    _warn_of_rounding(sample[name])
                if warned.turned and _PLACED & set(self.kinds.values()):
                    self.notes[name] = _TURNED
                if texts := warned[known:]:
                    before = {line.partition(": ")[2] for line in self.warned}  # also of a decode at another scale
                    self.warned.extend(f"{name}: {text}" for text in texts if text not in before)
            stage.field = ""
            for boxes, fields in self.recipe.row_fields.items():
                if boxes in sample:  # those of derived boxes are for loaders
                    check_rows(sample, self.kinds, boxes, fields)
        return sample

    @cached_property
    def _originals(self) -> Set[str]:
        """The fields that are stored by their files' bytes, and needed for nothing else."""
        store = {} if self.recipe.derive else self.recipe.store
        return {name for name, codec in store.items() if isinstance(codec, Original)}

    @cached_property
    def all_kinds(self) -> Mapping[str, Kind]:
        """The kinds of the source's fields, and then of the derived inputs."""
        return {**self.kinds, **self.recipe.derived_kinds()}

    def encode(self, sample: Sample, raw: Mapping[str, Any]) -> tuple[dict[str, Feature], dict[str, FieldSpec]]:
        """The features of a variant that `made` yields, and what each stored field is. Raises SampleError."""
        features: dict[str, Feature] = {}
        specs: dict[str, FieldSpec] = {}
        with (stage := SampleStage(self.seconds, "encode")):
            for name, codec in self.recipe.store.items():
                stage.field, value = name, sample[name]
                # The file's bytes where they can be stored as they are; they can where nobody looked at the pixels.
                if isinstance(codec, Original) and name not in self._decoders and not isinstance(value, bytes):
                    file = raw[name]
                    value = file if isinstance(file, bytes) and images.keeps_original(file) else value
                for suffix, feature in codec.encode(value).items():
                    features[name + suffix] = feature
                specs[name] = spec = codec.spec(self.all_kinds[name], value)
                if spec.kind == "image" and "float" in spec.dtype and not np.isfinite(value).all():
                    raise SampleError(
                        "the image holds NaN or infinity, so that it has no mean; repair it, or leave it out"
                    )
        return features, specs


def _unaugmented(draws: Callable[[str], np.random.Generator], step: str) -> np.random.Generator | None:
    """The draws of variant 0, which is not augmented, but whose derived inputs draw."""
    return draws(step) if step.startswith("derive/") else None


class RawSample(NamedTuple):
    """The raw parts of a sample.

    Attributes:
      parts: Bytes of a file, or a value, by field.
      digest: 16 bytes of SHA-256 of all files' content and of the values.
      image_digest: 16 bytes of SHA-256 of the image's file only: its size as 8 bytes, little-endian, and its content. Empty
        if no field of the source is an image.
    """

    parts: dict[str, Any]
    digest: bytes
    image_digest: bytes


def _identity(folder: Path) -> tuple[int, int] | None:
    """Return what tells a folder from an empty mount point of the same name; None of a URL."""
    if is_remote(folder):
        return None
    try:
        status = os.stat(folder)
    except OSError:
        return None
    return status.st_dev, status.st_ino


@dataclass(frozen=True)
class BuildContext:
    """The common ground of all shard tasks of a build, as the driver sends it to the workers.

    Attributes:
      source: The recipe: its file, from which each worker loads it, its pickle, or itself within one process.
      modules: The files of recipes whose functions a pickle refers to, by the name of their module.
      fingerprint: The recipe's.
      layout: The folders of the build.
      root: The folder of the raw files, or its URL.
      listing: The source's, without its entries.
      train: The split whose pixels make the statistics.
      run: A word that belongs to this run of the build. An attempt at a shard continues from what others of the run left.
      options: As in `tfprep.build`.
    """

    source: Recipe | Path | bytes
    modules: Mapping[str, str]
    fingerprint: str
    layout: Layout
    root: str
    listing: Listing
    train: str
    run: str
    options: BuildOptions

    @cached_property
    def recipe(self) -> Recipe:
        """The recipe. Raises RecipeError if it is not the one of the plan."""
        recipe: Recipe
        if isinstance(self.source, Recipe):
            recipe = self.source
        else:
            for name, file in self.modules.items():
                import_file(Path(file), name)
            recipe = load_recipe(self.source) if isinstance(self.source, Path) else pickle.loads(self.source)
        recipe.check_files()
        if recipe.fingerprint() != self.fingerprint:
            # A worker that replaces one that died starts minutes after the plan: the file may have been edited meanwhile.
            name = str(self.source) if isinstance(self.source, Path) else "the code of the recipe"
            raise RecipeError(f"{name} changed while the build was running; run the build again")
        return recipe

    @cached_property
    def maker(self) -> SampleMaker:
        """Makes the variants of a sample."""
        return SampleMaker(self.recipe, self.listing.kinds, self.listing.classes)

    @cached_property
    def image(self) -> str | None:
        """The field of the raw files whose own digest is kept."""
        return self.recipe.hashed_image(self.listing.kinds, self.listing.files)

    @cached_property
    def _folder(self) -> tuple[Path, tuple[int, int] | None]:
        root = folder_at(self.root)
        return root, _identity(root)

    def read(self, files: Sequence[str], values: Sequence[Any]) -> RawSample:
        """Read and digest the files of a sample.

        Raises:
          SampleError: A file cannot be read, or does not fit into memory.
          BuildError: The folder itself is gone, or its store cannot be reached or refuses, so that no file can be read.
        """
        root, identity = self._folder
        try:
            raw: dict[str, Any] = {**read_files(root, self.listing.files, Entry("", "", tuple(files)))}
        except MemoryError as error:
            raise SampleError("its files do not fit into memory", stage="read") from error
        except StorageError as error:
            raise BuildError(f"{error}. Run the same command again: it continues") from error
        except SampleError as error:
            if _identity(root) != identity:
                raise BuildError(
                    f"the raw data is gone: {root} was removed or unmounted while it was read. Bring it back, then run the same "
                    "command again: it continues"
                ) from error
            raise
        sha256, image_digest = hashlib.sha256(), b""
        for number, (name, data) in enumerate(raw.items()):
            size = len(data).to_bytes(8, "little")
            sha256.update(size)
            sha256.update(data)
            if name == self.image:
                # So far the digest of the first file is its own: an image that comes first is digested once.
                image_digest = (hashlib.sha256(size + data) if number else sha256.copy()).digest()[:16]
        sha256.update(json.dumps(values).encode())
        parts = {**raw, **dict(zip(self.listing.values, values, strict=True))}
        return RawSample(parts, sha256.digest()[:16], image_digest)

    def check_places(self, files: Sequence[str], stat: str) -> None:
        """Raise BuildError if a file below the root, of which parts were read, is not as it was when they were listed.

        Args:
          files: The references of a sample.
          stat: The states of their files when they were listed.
        """
        if not any("//" in file for file in files) or is_remote(root := self._folder[0]):
            return
        for text, listed in zip(files, stat.split(" "), strict=True):
            file, _, size, *_ = parse_reference(text)
            # Others are copies, which belong to one content, or records with checksums.
            is_part = size is not None and not file.startswith("/") and "://" not in file
            if is_part and state_of(root / file).text != listed:
                rule = "changed while the build was running, and its parts may be in other places"
                raise BuildError(f"{file} {rule}; run the build again")

    def digest(self, files: Sequence[str], values: Sequence[Any]) -> bytes:
        """Return only the digest of `read`; it is empty if a file cannot be read."""
        try:
            return self.read(files, values).digest
        except SampleError:
            return b""


# --- decoding -------------------------------------------------------------------------------------------------------


def _can_be_stored_unseen(value: Any) -> bool:
    """Return True if a value is a file that need not be decoded to be stored."""
    return isinstance(value, bytes) and images.certain_to_decode(value) and images.keeps_original(value)


def _decode_field(value: Any, kind: Kind, reduced: int) -> Any:
    """A file's bytes as the array of its kind; a value of the listing as an array."""
    if isinstance(value, bytes):
        if kind == "image":
            return images.decode_image(value, reduced=reduced, background=None)
        return {"mask": images.decode_mask, "map": images.decode_map}[kind](value)
    if kind == "text":
        return value
    if value is None:
        raise SampleError("it has no value: a cell is empty, or an archive has no such member beside the image")
    dtype = {"label": np.int64, "boxes": np.float32, "points": np.float32}.get(kind)
    array = np.asarray(value, dtype)
    if kind == "label" and array.tolist() != np.asarray(value).tolist():
        raise SampleError(f"a label is a class number, or a list of them, not {value!r}")
    if array.dtype.hasobject and None in array.flat:
        raise SampleError("one of its numbers is empty or NaN")
    if kind in ("boxes", "points") and not np.isfinite(array).all():
        raise SampleError(f"one of the {kind} has no number, or NaN or infinity, for a coordinate")
    if kind == "boxes" and (array.shape == (4,) or not array.size):  # one by itself, or none
        return array.reshape(-1, 4)
    if kind == "points" and not array.size:
        rule = "it has no points, and an empty list does not say whether a row has 2 or 3 numbers"
        raise SampleError(f"{rule}; give all rows a third number, visible, and this image one row with 0 for it")
    check_form(array, kind)
    return array


def _warn_of_rounding(value: Any) -> None:
    numbers = np.ravel(value)
    if numbers.dtype != np.float64:
        return
    with np.errstate(over="ignore"):
        stored = numbers.astype(np.float32)
    is_rounded = (stored != numbers) & (np.trunc(numbers) == numbers) & (abs(numbers) < 2**53)
    if is_rounded.any():
        rule = f"float32 stores the whole number {numbers[is_rounded][0]:.0f} as {stored[is_rounded][0]:.0f}"
        images.warn(f"{rule}: write identifiers without a point, as int64, or store them with Raw()")


# --- checks ---------------------------------------------------------------------------------------------------------


def _check_classes(name: str, numbers: Array, classes: Sequence[str], fill: Fill | None, mask: bool) -> None:
    """A label's or a mask's numbers are those of the class names, or the number that fills what is outside the image."""
    if not numbers.ndim and 0 <= int(numbers) < len(classes):  # one label, without the start of two reductions
        return
    if not numbers.size or (numbers.max() < len(classes) and numbers.min() >= 0):
        return
    strange = [int(value) for value in np.unique(numbers) if not 0 <= value < len(classes) and value != fill]
    if strange:
        fills = f"; fill={{{name!r}: {strange[0]}}} would say that this is the number of void pixels" if mask else ""
        raise SampleError(f"class {strange[0]} is outside the list of {len(classes)} classes{fills}")
