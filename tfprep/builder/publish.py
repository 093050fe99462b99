"""From finished shards to the dataset that readers see: at every moment either the old dataset or the new one, whole.

TensorFlow Datasets prescribes the names of the shards, so a new shard has the name of the old one, and they cannot all be
replaced in one step. A publication over an older dataset therefore gives the new files a second, hidden name (a hard link), and
goes through two manifests:

1. The waiting shards, the new index and `locations.bin` get their hidden names. Nothing that a reader sees has changed.
2. `tfprep.json` is replaced in one step by a manifest with the hidden names. From now on readers see the new dataset.
3. The usual names are replaced one by one; nobody uses them meanwhile. `dataset_info.json` is taken away for that time, because
   TensorFlow Datasets finds the shards by their usual names alone.
4. `tfprep.json` is replaced in one step by the final manifest, and the hidden names go.

The same build, started again after it was killed at any point, does the rest.
"""

from __future__ import annotations

import itertools
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import reduce
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from tfprep.builder.layout import Layout
from tfprep.builder.planning.plan import Plan, recorded_versions
from tfprep.builder.receipts import Receipt, read_contents
from tfprep.builder.shards.sums import Moments, merge
from tfprep.dataset import FieldInfo, FileInfo, Manifest, SplitInfo, Statistics, read_manifest
from tfprep.dataset.arrow import array_of
from tfprep.dataset.index import OPTIONAL, joined_tables, label_type, schema, write_index
from tfprep.dataset.locations import without_crcs, write_locations
from tfprep.dataset.manifest import MANIFEST, FileDigest, digest_of, kept_fields, matches
from tfprep.dataset.names import INDEX, LOCATIONS, REJECTS, hidden_name
from tfprep.dataset.other_readers import CROISSANT, croissant_text, tfds_files
from tfprep.errors import BuildError, DatasetError, ObjectChangedError, StorageError, TooManyRejectsError
from tfprep.fields import FieldSpec
from tfprep.storage.local import (
    link_or_copy,
    remove_leftovers,
    sync_folder,
    temporary_path,
    whole_file,
    write_whole,
    writing,
)  # fmt: skip
from tfprep.storage.store import open_store
from tfprep.storage.urls import is_remote, write_content

Publication: TypeAlias = Callable[[Layout, Manifest | None, Manifest, Sequence[Receipt]], Manifest]
"""A function that makes the built shards the dataset, as `publish` does."""

_TFDS_INFO = "dataset_info.json"


def publish(layout: Layout, before: Manifest | None, manifest: Manifest, receipts: Sequence[Receipt]) -> Manifest:
    """Make the built shards the dataset, and return its manifest.

    Args:
      layout: The folders of the build.
      before: What `manifest_there` returns.
      manifest: What `manifest_of` returned.
      receipts: The receipts of all shards, by split and shard.
    """
    if (
        before is not None
        and says_the_same(before, manifest)
        and not any(layout.staged.iterdir())
        and all(matches(layout.out / name, digest) for name, digest in before.files.items())
    ):
        published = before
    else:
        published = _publish(layout, before, manifest, receipts)
    content = (layout.out / MANIFEST).read_bytes()
    if not layout.manifest_copy.exists() or layout.manifest_copy.read_bytes() != content:
        with whole_file(layout.manifest_copy) as copy:
            copy.write(content)
    _remove_rest(layout, manifest)
    return published


def _publish(layout: Layout, before: Manifest | None, manifest: Manifest, receipts: Sequence[Receipt]) -> Manifest:
    written, manifest = write_tables(layout, manifest, receipts)
    if before is None:  # there is no older dataset that could be read, and so nothing to protect
        _take_away(layout.out / MANIFEST)
    else:
        _switch_to_hidden_names(layout, manifest, written)
    _note_files(layout, _noted(layout) | _belonging(manifest))
    _take_away(layout.out / _TFDS_INFO)
    with writing(layout.out):
        # The .idx files come first: a shard that has left `.tfprep/new` is complete.
        for name in sorted(shard_names(manifest), key=lambda name: not name.endswith(".idx")):
            if (layout.staged / name).exists():
                os.replace(layout.staged / name, layout.out / name)
        for name, path in written.items():
            os.replace(path, layout.out / name)
    sync_folder(layout.out)
    texts = other_files(manifest, receipts, digest_of(layout.out / INDEX))
    for name in sorted(texts, key=lambda name: name == _TFDS_INFO):  # the last: it shows TFDS that there is a dataset
        write_whole(layout.out / name, texts[name])
    published = replace(manifest, files={name: digest_of(layout.out / name) for name in (*written, *texts)})
    replace_manifest(layout.out, published)
    return published


def says_the_same(published: Manifest, manifest: Manifest) -> bool:
    """Return whether a published manifest says what one says that is about to be published, which names no files yet."""
    plain = replace(without_crcs(published), files={})
    if plain.splits != manifest.splits:
        return False
    return replace(plain, splits={}).to_json() == replace(manifest, splits={}).to_json()


def check_rejects(layout: Layout, receipts: Sequence[Receipt], samples: int, max_bad: float) -> None:
    """Raise TooManyRejectsError if more samples were rejected than allowed, or all; `.tfprep/rejects.jsonl` then lists them.

    The `rejects.jsonl` of the dataset itself stays: it belongs to what was published before.
    """
    rejects = [reject for receipt in receipts for reject in receipt.rejects]
    if len(rejects) < samples and len(rejects) <= max_bad * samples:
        return
    write_content(layout.failed_rejects, "".join(_reject_lines(receipts)))
    (reason, often), *_ = Counter(f"{reject.stage}: {reject.error}" for reject in rejects).most_common(1)
    example = next(reject.file or reject.key for reject in rejects if f"{reject.stage}: {reject.error}" == reason)
    allowed = f"at most {100 * max_bad:.3g}% may be" if max_bad < 1 else "a dataset holds at least one"
    raise TooManyRejectsError(
        f"{len(rejects)} of {samples} samples were rejected, {allowed}; nothing was published. Most often ({often} times): "
        f"{reason} ({example}). All are in {layout.failed_rejects}"
    )


# --- files ----------------------------------------------------------------------------------------------------------


def manifest_there(layout: Layout, *, damaged_is_none: bool = True) -> Manifest | None:
    """Return the manifest of the dataset that is there; None where there is none, or none that can be read.

    Raises:
        DatasetError: It is damaged, and `damaged_is_none` is False.
        StorageError: The store cannot be reached or refuses.
    """
    try:
        return read_manifest(layout.out)
    except DatasetError as error:  # StorageError is one
        if isinstance(error.__cause__, FileNotFoundError):
            return None
        if damaged_is_none and not isinstance(error, StorageError):
            return None
        raise


def replace_manifest(folder: Path, manifest: Manifest, version: str | None = None) -> str:
    """Replace `tfprep.json` in one step; return its new version at a store.

    All names in a local folder are durable before it, and it is durable at the end. At a store it has to be of `version` still.

    Raises:
      BuildError: The disk refuses, or another process published at the store meanwhile.
    """
    if is_remote(folder):
        try:
            return open_store(folder).replace(MANIFEST, manifest.to_json().encode("utf-8", "surrogateescape"), version)
        except ObjectChangedError as error:
            raise BuildError(
                f"{folder}: another process published in the meantime, so this one did not; run the same command again: it "
                "continues from the shards that are there"
            ) from error
    sync_folder(folder)
    write_whole(folder / MANIFEST, manifest.to_json())
    sync_folder(folder)
    return ""


def _switch_to_hidden_names(layout: Layout, manifest: Manifest, written: Mapping[str, Path]) -> None:
    """Steps 1 and 2 above; `written` holds the temporary paths of the index and of the locations, by their usual names."""

    def hidden_file(file: FileInfo) -> FileInfo:
        """Give a shard that waits to be published its hidden name; the others keep theirs."""
        waiting = (layout.staged / file.name).exists()
        return replace(file, name=hidden_name(file.name, file.sha256)) if waiting else file

    splits = {
        name: replace(split, files=tuple(tuple(map(hidden_file, files)) for files in split.files))
        for name, split in manifest.splits.items()
    }
    digests = {name: digest_of(path) for name, path in written.items()}
    aliases = {name: hidden_name(name, digest.sha256) for name, digest in digests.items()}
    files = {aliases[name]: digest for name, digest in digests.items()}
    hidden = replace(manifest, splits=splits, files=files)
    _note_files(layout, _noted(layout) | set(shard_names(hidden)) | set(hidden.files))
    for name, alias in zip(shard_names(manifest), shard_names(hidden), strict=True):
        source = layout.find(name)
        if alias != name and source is not None:
            link_or_copy(source, layout.out / alias)
    for name, alias in aliases.items():
        link_or_copy(written[name], layout.out / alias)
    replace_manifest(layout.out, hidden)


def _take_away(path: Path) -> None:
    with writing(path):
        path.unlink(missing_ok=True)
    sync_folder(path.parent)


def other_files(manifest: Manifest, receipts: Sequence[Receipt], index: FileDigest) -> dict[str, str]:
    """Return the content of the published files that are neither shards nor index, by name; `index` is the index's digest."""
    rejects = "".join(_reject_lines(receipts))
    return {REJECTS: rejects, CROISSANT: croissant_text(manifest, index), **tfds_files(manifest)}


def shard_names(manifest: Manifest) -> Iterator[str]:
    """Yield the names of all shards, each with its `.idx`."""
    for file in manifest.shard_files():
        yield from (file.name, f"{file.name}.idx")


def _belonging(manifest: Manifest) -> set[str]:
    """Return the names of the files that depend on what the dataset holds."""
    return {*shard_names(manifest), *tfds_files(manifest)}


def _noted(layout: Layout) -> set[str]:
    try:
        return set(json.loads(layout.files.read_bytes()))
    except (OSError, ValueError):
        return set()


def _note_files(layout: Layout, names: set[str]) -> None:
    if names != _noted(layout):
        write_whole(layout.files, json.dumps(sorted(names)))


def _remove_rest(layout: Layout, manifest: Manifest) -> None:
    """Remove hidden names, and shards of another name, variant, split or number of shards than the dataset now has."""
    kept = _belonging(manifest)
    for name in _noted(layout) - kept:
        (layout.out / name).unlink(missing_ok=True)
    for path in layout.staged.iterdir():
        path.unlink()
    receipts = {
        path
        for split, info in manifest.splits.items()
        for shard in range(info.shards)
        for path in (layout.receipt(split, shard), layout.contents(split, shard))
    }
    for path in layout.receipts.iterdir():
        if path not in receipts:
            path.unlink()
    _note_files(layout, kept)
    for folder in (layout.out, layout.private):
        remove_leftovers(folder)


# --- the content of tfprep.json ----------------------------------------------------------------------------------------


def manifest_of(
    plan: Plan, receipts: Sequence[Receipt], common: Mapping[str, str], before: Manifest | None
) -> Manifest:
    """Return the manifest, without the digests of the files that are no shards.

    Args:
      plan: The plan of the build.
      receipts: The receipts of all shards, by split and shard.
      common: The form of each field (`tfprep.builder.shards.sums`).
      before: The manifest that is there, whose added fields are kept as far as they are of the same shards.
    """
    specs: dict[str, FieldSpec] = {}
    for name, form in common.items():
        forms = [receipt.forms[name].get(form) for receipt in receipts if name in receipt.forms]
        if spec := reduce(merge, (one.spec for one in forms if one), None):
            specs[name] = spec
    splits: dict[str, SplitInfo] = {}
    class_counts: dict[str, dict[str, tuple[int, ...]]] = {}
    for split in plan.splits:
        own, variants = [r for r in receipts if r.split == split], range(plan.recipe.variants_of(split))
        files = tuple(tuple(receipt.files[variant] for receipt in own) for variant in variants)
        splits[split] = SplitInfo(sum(receipt.records for receipt in own), files)
    for receipt in receipts:
        for name, counts in receipt.class_counts.items():
            totals = class_counts.setdefault(name, {})
            before_these = totals.get(receipt.split, (0,) * len(counts))
            totals[receipt.split] = tuple(a + b for a, b in zip(before_these, counts, strict=True))
    statistics = {}
    for name in sorted({name for receipt in receipts for name in receipt.moments}):
        total = reduce(Moments.plus, (r.moments[name] for r in receipts if name in r.moments))
        mean = np.array(total.sums, np.float64) / total.pixels
        variance = np.array(total.squares, np.float64) / total.pixels - mean**2
        statistics[name] = Statistics(tuple(mean.tolist()), tuple(np.sqrt(np.maximum(variance, 0)).tolist()))
    codecs = {name: codec.describe() for name, codec in plan.recipe.store.items()}
    manifest = Manifest(
        name=plan.recipe.name,
        fingerprint=plan.fingerprint,
        recipe=plan.description,
        fields={
            name: FieldInfo(specs[name], codecs[name], plan.recipe.follows(name)) for name in codecs if name in specs
        },
        splits=splits,
        classes=plan.listing.classes,
        class_counts={name: class_counts[name] for name in codecs if name in class_counts},
        statistics=statistics,
        versions=recorded_versions(),
        rejects=sum(len(receipt.rejects) for receipt in receipts),
    )
    return replace(manifest, added=kept_fields(before, manifest))


# --- index and rejects ----------------------------------------------------------------------------------------------


def write_tables(layout: Layout, manifest: Manifest, receipts: Sequence[Receipt]) -> tuple[dict[str, Path], Manifest]:
    """Write index and `locations.bin` under temporary names.

    Returns:
      Their paths by the usual names, and the manifest with the checksums of the rows.
    """
    paths = {name: temporary_path(layout.here / name, str(os.getpid())) for name in (INDEX, LOCATIONS)}
    with writing(paths[INDEX]):
        write_index_file(paths[INDEX], layout, manifest, receipts)
        manifest = write_locations(paths[LOCATIONS], paths[INDEX], manifest)
        for path in paths.values():
            with path.open("rb+") as file:
                os.fsync(file.fileno())
    return paths, manifest


def write_index_file(path: Path, layout: Layout, manifest: Manifest, receipts: Sequence[Receipt]) -> None:
    """Write the index. Rows of one variant of one shard are in memory at a time."""
    columns = schema(list(manifest.fields), label_type(manifest.fields))
    groups = (
        joined_tables(_rows(layout, receipt, variant, columns) for receipt in receipts if receipt.split == split)
        for split, info in manifest.splits.items()
        for variant in range(info.variants)
    )
    write_index(path, columns, itertools.chain.from_iterable(groups))


def _rows(layout: Layout, receipt: Receipt, variant: int, columns: pa.Schema) -> pa.Table:
    """Return the rows of the index of one variant of a shard."""
    contents = read_contents(layout, receipt)
    rows = contents.rows[variant]
    names = ["key", "offset", "size", "payload_crc", "label", "height", "width", "source_digest"]
    names += [f"{name}_{what}" for name in contents.fields for what in ("offset", "size")]
    names += OPTIONAL
    by_name: dict[str, Sequence[Any]] = {name: [row[place] for row in rows] for place, name in enumerate(names)}
    for name in ("source_digest", "image_digest"):
        by_name[name] = [None if digest is None else bytes.fromhex(digest) for digest in by_name[name]]
    of_shard = {"split": receipt.split, "variant": variant, "shard": receipt.shard}
    by_name |= {name: [value] * len(rows) for name, value in of_shard.items()}
    return pa.table({column.name: array_of(by_name[column.name], column.type) for column in columns}, schema=columns)


def _reject_lines(receipts: Sequence[Receipt]) -> Iterator[str]:
    for receipt in receipts:
        for reject in receipt.rejects:
            printable = {name: _printable(text) for name, text in asdict(reject).items()}
            yield json.dumps(printable, ensure_ascii=False) + "\n"


def _printable(text: str) -> str:
    """Show bytes of a file name that are not UTF-8 as `\\xff`, as a sample's key does."""
    try:
        data = text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # half of a UTF-16 pair, as JSON and messages of exceptions may hold
        data = text.encode("utf-8", "surrogatepass")
    return data.decode("utf-8", "backslashreplace")
