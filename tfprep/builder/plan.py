"""The plan of a build: which samples are in which shard, and in which order.

The plan keeps samples on disk (`tfprep.builder.samples`); the task of a shard is cut out of them when its turn comes.
The shard of a sample is `sample_hash(seed, key) mod shards`; the samples of a shard are sorted by that hash.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from platform import python_version
from typing import Any

import numpy as np
import PIL
import simplejpeg

from tfprep import __version__
from tfprep.builder.layout import Layout
from tfprep.builder.options import BuildOptions
from tfprep.builder.receipts import ShardTask
from tfprep.builder.samples import ArrangedSamples, SampleTable, arrange, collect_samples, limit_samples
from tfprep.dataset.plain_json import with_digest
from tfprep.errors import SourceError
from tfprep.optional import HAS_OPENCV, cv2
from tfprep.recipe import Recipe
from tfprep.recipe.describe import NO_SOURCE
from tfprep.sources import Listing
from tfprep.sources.raw import file_system_of
from tfprep.storage.urls import durable_write, names_in, read_content

SHARD_BYTES = 64 << 20
"""Largest number of raw bytes in a shard by default."""
_EVEN_SHARDS = 16
_LEAST_SAMPLES, _LEAST_BYTES, _FEW_SHARDS = 32, 4 << 20, 4
"""A small dataset gets up to 16 shards, so that all cores have work, with 32 samples or more each; more than four only with 4 MB
of raw files or more each. A larger one gets a multiple of 16, which 2, 4, 8 or 16 workers share without one of them building a
last shard by itself."""


@dataclass(frozen=True)
class Plan:
    """All that a build is to make.

    Attributes:
      recipe: The recipe, with its `description` (plain JSON) and `fingerprint` as they were when the plan was made: the
        globals of a user's module may change while it runs.
      listing: The source's, without its entries.
      shards: Number of shards by split.
      samples: All samples, by split and shard.
      fingerprints: By split, the digest of everything but the samples that decides the bytes of a shard.
      described: By split, what the fingerprint covers, as plain JSON.
      file_system: Of the raw files (`tfprep.sources.raw.file_system_of`).
    """

    recipe: Recipe
    description: Mapping[str, Any]
    fingerprint: str
    listing: Listing
    shards: Mapping[str, int]
    samples: ArrangedSamples
    fingerprints: Mapping[str, str]
    described: Mapping[str, Mapping[str, Any]]
    file_system: str

    def __len__(self) -> int:
        return len(self.samples)

    @property
    def splits(self) -> tuple[str, ...]:
        return self.samples.names

    @property
    def starts(self) -> Mapping[tuple[str, int], tuple[int, int]]:
        """The shards, as split and number, with their rows."""
        return self.samples.starts

    def size(self, split: str, shard: int) -> int:
        """Return the number of samples of a shard."""
        start, stop = self.starts[split, shard]
        return stop - start

    def task(self, split: str, shard: int) -> ShardTask:
        """Return the task that builds a shard."""
        samples = self.samples.samples(split, shard)
        signature, identity = self.signature(split, shard), self.identity(split, shard)
        return ShardTask(split, shard, self.shards[split], self.fingerprints[split], signature, identity, samples)

    def signature(self, split: str, shard: int) -> str:
        """Return a digest of all that the plan says about a shard; it costs no Python object for a sample."""
        rows = self.samples.rows(split, shard)
        sha256 = hashlib.sha256(f"{self.fingerprints[split]} {self.shards[split]}".encode())
        sha256.update(rows["hash"].tobytes())
        sha256.update(rows["digest"].tobytes())
        return sha256.hexdigest()

    def identity(self, split: str, shard: int) -> str:
        """Return a shard's `Receipt.identity`: the files' system, and a digest of what tells them from other files there."""
        if not self.file_system:
            return ""
        rows = self.samples.rows(split, shard)
        return f"{self.file_system}/{hashlib.sha256(rows['identity'].tobytes()).hexdigest()}"


def make_plan(recipe: Recipe, root: Path, layout: Layout, options: BuildOptions) -> Plan:
    """List the source and lay out the shards; nothing is written.

    Raises:
      RecipeError: The recipe names a field or a split that the source does not have.
      SourceError: The raw data is not laid out as the source expects, or there is none.
    """
    recipe.check_files()
    listing = recipe.source.scan(root)
    recipe.check_fields(listing)
    scratch = layout.here if layout.here.is_dir() and os.access(layout.here, os.W_OK) else None
    samples = collect_samples(listing, root, recipe.seed, scratch)
    if not len(samples):
        left_out = [f"{count} left out: {reason}" for reason, count in listing.tally.items()]
        why = "; ".join(left_out) or "is --data the right folder?"
        raise SourceError(f"{root}: {recipe.source!r} finds no sample there; {why}")
    recipe.check_splits(samples.names)
    samples = limit_samples(samples, options.limit)
    shards = _shards(recipe, samples, {} if options.limit or options.reshard else _remembered(layout, recipe.name))
    warnings = {} if options.on_warning == "keep" else {"on_warning": options.on_warning}
    described = {split: _described(recipe, listing, split, samples.names[0]) | warnings for split in samples.names}
    fingerprints = {}
    for split in samples.names:
        rest = {name: item for name, item in described[split].items() if name != "recipe"}
        # What has no source may have changed: these shards are built by each build.
        unseen = [secrets.token_hex()] if NO_SOURCE in described[split]["recipe"]["code"] else []
        parts = json.dumps([recipe.fingerprint(split), rest, *unseen])
        fingerprints[split] = hashlib.sha256(parts.encode()).hexdigest()
    listing = replace(  # for workers: without the entries, and with plain mappings
        listing, entries=iter(()), kinds=dict(listing.kinds), classes=dict(listing.classes), tally=dict(listing.tally)
    )
    return Plan(
        recipe, recipe.describe(), recipe.fingerprint(), listing, shards,
        arrange(samples, shards, scratch), fingerprints, described, file_system_of(root),
    )  # fmt: skip


def remember(plan: Plan, layout: Layout, options: BuildOptions) -> None:
    """Note what is built, by its fingerprint, and the number of shards, which later builds keep, whatever is added."""
    known = _remembered(layout, plan.recipe.name)
    if options.limit is None and known != {**known, **plan.shards}:
        durable_write(layout.plan, json.dumps({"name": plan.recipe.name, "shards": {**known, **plan.shards}}))
    names = names_in(layout.recipes)
    for split, fingerprint in plan.fingerprints.items():
        if f"{fingerprint}.json" not in names:
            durable_write(layout.recipes / f"{fingerprint}.json", with_digest(plan.described[split]))


def _described(recipe: Recipe, listing: Listing, split: str, train: str) -> dict[str, Any]:
    """Return what decides how a sample of `split` becomes bytes."""
    classes = {name: list(names) for name, names in listing.classes.items()}
    return {
        "recipe": recipe.describe(split),
        "kinds": dict(listing.kinds),
        "files": list(listing.files),
        "values": list(listing.values),
        "classes": classes,
        "indexed": {
            "label": recipe.first_label(listing.kinds),
            "image": recipe.hashed_image(listing.kinds, listing.files),
        },
        "statistics": split == train,
        "versions": maker_versions(),
    }


def differing_listings(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Return what differs in `Plan.described` of a split beside the recipe, as texts."""
    parts = [
        f"the {name} of the source"
        for name in ("kinds", "files", "values", "classes")
        if json.dumps(old[name]) != json.dumps(new[name])  # the order of names counts
    ]
    before, after = (described.get("on_warning", "keep") for described in (old, new))
    parts += [f"--on-warning: {before} -> {after}"] if before != after else []
    if parts or old["indexed"] == new["indexed"]:
        return parts
    return [f"the first {what} of store" for what in old["indexed"] if old["indexed"][what] != new["indexed"][what]]


# --- shards ---------------------------------------------------------------------------------------------------------


def _shards(recipe: Recipe, samples: SampleTable, known: Mapping[str, int]) -> dict[str, int]:
    """Return the number of shards by split: the recipe's, else that of the dataset's first build, else one by size."""
    # One huge file, such as a sparse one of 200 GB, does not make thousands of shards: it is in one of them.
    totals = samples.totals(SHARD_BYTES)
    return {
        name: recipe.shards.get(name) or known.get(name) or _default_shards(*totals[name]) for name in samples.names
    }


def _remembered(layout: Layout, name: str) -> dict[str, int]:
    """Return the noted number of shards of the dataset of this name; that of another one, which it replaces, does not count."""
    try:
        noted = json.loads(read_content(layout.plan))
        shards: dict[str, int] = noted["shards"]
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return shards if noted.get("name", name) == name else {}


def _default_shards(samples: int, raw_bytes: int) -> int:
    by_size = -(-raw_bytes // SHARD_BYTES)
    if by_size > _EVEN_SHARDS:
        return -(-by_size // _EVEN_SHARDS) * _EVEN_SHARDS
    few = max(_FEW_SHARDS, raw_bytes // _LEAST_BYTES)
    return max(1, by_size, min(_EVEN_SHARDS, few, samples // _LEAST_SAMPLES))


# --- versions ----------------------------------------------------------------------------------------------------------


MAKER = 12
"""Raised whenever tfprep itself makes other bytes of the same recipe and inputs, so that older shards are built again."""
PRECISE_OPENCV = 5
"""The first version whose `warpAffine` interpolates at exact coordinates instead of a table of 32 x 32 fractions."""


@cache
def maker_versions() -> dict[str, str]:
    """Return the versions of the libraries that turn files into pixels and back; a shard's fingerprint covers them."""
    return {
        "maker": str(MAKER),
        "numpy": np.__version__,
        "opencv": cv2.__version__ if HAS_OPENCV else "none",
        "pillow": PIL.__version__,
        "simplejpeg": simplejpeg.__version__,
    }


def building_versions() -> dict[str, str]:
    """Return the versions that all machines of one build share, and that the manifest names: of libraries, tfprep and Python."""
    from importlib.metadata import version  # takes 20 ms, which only publication and parts need

    # Zstd loses nothing: another version of numcodecs makes other bytes of the same values, and no shard has to be built again.
    return {
        "tfprep": __version__,
        "python": python_version(),
        **maker_versions(),
        "numcodecs": version("numcodecs"),
        "pyarrow": version("pyarrow"),
    }


def warning_of_opencv() -> str:
    """Return what an old OpenCV costs; empty for a version that warps with full precision."""
    version = cv2.__version__
    is_old = int(version.partition(".")[0]) < PRECISE_OPENCV
    return f"OpenCV {version} rounds warps to 1/32 pixel; version {PRECISE_OPENCV} does not" if is_old else ""
