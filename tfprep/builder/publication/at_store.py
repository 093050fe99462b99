"""From finished shards to the dataset that readers of an object store see.

A store renames nothing, and other processes read what is there. All shards and the index therefore have names that belong to
their content (`stored_name`), and `tfprep.json` names them:

1. The index and `locations.bin` are written under names of their own. Nothing that a reader sees has changed.
2. `tfprep.json` is replaced, if it is still the one that was there when the build began. From now on readers see the new dataset.
3. The files that have one name for all builds (rejects, Croissant) are written.
4. `tfprep.json` is replaced by one that holds their digests too.

The shards of the dataset before stay, because somebody may be reading them, until `tfprep clean` removes them. TensorFlow
Datasets finds shards by prescribed names alone, so that its files are not written.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import google_crc32c

from tfprep.builder.layout import Layout
from tfprep.builder.planning.plan import Plan
from tfprep.builder.publication.contents import manifest_of
from tfprep.builder.publication.publish import Publication, other_files, says_the_same, write_tables
from tfprep.builder.receipts import Receipt, contents_path
from tfprep.builder.store_lock import StoreLock, store_locked
from tfprep.dataset import Manifest, read_manifest
from tfprep.dataset.manifest import MANIFEST, FileDigest, digest_of
from tfprep.dataset.names import PRIVATE, stored_name
from tfprep.dataset.tfds import tfds_files
from tfprep.errors import BuildError, DatasetError, ObjectChangedError, StorageError


@contextmanager
def locked_at_store(layout: Layout, *, shared: bool = False) -> Iterator[Publication]:
    """Hold the lock of a dataset at a store, and yield the function that publishes.

    Raises:
      BuildLockedError: Another build holds the lock; it is named.
      StorageError: The store cannot be reached or refuses.
    """
    with store_locked(layout.store, str(layout.out), shared=shared) as lock:
        before = version_of_manifest(layout)

        def publication(plan: Plan, layout: Layout, receipts: Sequence[Receipt], common: Mapping[str, str]) -> Manifest:
            return _publish(manifest_of(plan, receipts, common), layout, receipts, lock, before)

        yield publication


def version_of_manifest(layout: Layout) -> str | None:
    """Return the version of `tfprep.json`; None where there is none."""
    try:
        return layout.store.info(MANIFEST).version
    except StorageError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return None
        raise


def _publish(
    manifest: Manifest, layout: Layout, receipts: Sequence[Receipt], lock: StoreLock, before: str | None
) -> Manifest:
    published = _published(layout, manifest)
    if published is None:
        written, manifest = write_tables(layout, manifest, receipts)
        digests = dict(_stored(layout, written))
        lock.check()
        first = replace(manifest, files=digests)
        version = _replace(layout, first, before)
        texts = other_files(first, receipts, digests[first.index])
        texts = {name: text for name, text in texts.items() if name not in tfds_files(manifest)}
        for other, text in texts.items():
            layout.store.write(other, text.encode())
        published = replace(first, files={**digests, **{other: _digest(text) for other, text in texts.items()}})
        _replace(layout, published, version)
    _forget_receipts(layout, receipts)
    return published


def _stored(layout: Layout, files: Mapping[str, Path]) -> Iterator[tuple[str, FileDigest]]:
    """Move files to the store, and yield the names that they have there, with their digests."""
    for usual, path in files.items():
        digest = digest_of(path)
        name = stored_name(usual, digest.sha256)
        layout.store.write(name, path)
        path.unlink()
        yield name, digest


def _replace(layout: Layout, manifest: Manifest, version: str | None) -> str:
    try:
        return layout.store.replace(MANIFEST, manifest.to_json().encode("utf-8", "surrogateescape"), version)
    except ObjectChangedError as error:
        raise BuildError(
            f"{layout.out}: another build published in the meantime, so this one did not; run the same command again: it "
            "continues from the shards that are built"
        ) from error


def _published(layout: Layout, manifest: Manifest) -> Manifest | None:
    """Return the manifest at the store if it says the same as this one and all objects that it names are there."""
    try:
        published = read_manifest(layout.out)
    except StorageError:
        raise
    except DatasetError:
        return None
    if not says_the_same(published, manifest) or set(published.files) <= {published.index, published.locations}:
        return None
    sizes = {info.name: info.bytes for info in layout.store.list(recursive=False)}
    return published if all(sizes.get(name) == one.bytes for name, one in published.files.items()) else None


def _forget_receipts(layout: Layout, receipts: Sequence[Receipt]) -> None:
    """Remove receipts and contents of shards that the dataset no longer has."""
    kept = {
        path.name
        for receipt in receipts
        for path in (layout.receipt(receipt.split, receipt.shard), contents_path(layout, receipt))
    }
    folder = f"{PRIVATE}/{layout.receipts.name}"
    names = [info.name for info in layout.store.list(folder)]
    if left := [name for name in names if name.removeprefix(f"{folder}/") not in kept]:
        with suppress(StorageError):  # Only room is lost.
            layout.store.delete(left)


def _digest(text: str) -> FileDigest:
    content = text.encode()
    return FileDigest(len(content), google_crc32c.value(content), hashlib.sha256(content).hexdigest())
