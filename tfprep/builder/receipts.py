"""Receipts: what became of a shard. One is written when all files of the shard are complete, and a build continues from them.

A receipt holds two digests. `digest` covers the keys of the samples and the content of their sources: shards of equal
fingerprints and digests have equal bytes. `signature` covers the fingerprint, and size and modification time of each source in
place of its content, so it is compared without reading a file. If it is equal, the shard is up to date; if not, the content
decides. `identity` also tells a file from another of the same size and time that took its place (`mv`, archives with one time):
it covers inodes and the times at which those changed. It is compared only within one file system, because copies differ.

The file of a receipt has two parts, the receipt and its contents, so that they always belong together. Each is a line of JSON and
a line with the SHA-256 of the file up to there. Damage costs that the shard is built again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

from tfprep.builder.layout import Layout
from tfprep.builder.sums import FieldForms, Moments
from tfprep.dataset.manifest import FileInfo, digest_of
from tfprep.dataset.names import SHARDS
from tfprep.dataset.plain_json import from_json, with_digest, without_digest
from tfprep.errors import BuildError
from tfprep.records import Frame, format_index
from tfprep.storage.local import sync_folder
from tfprep.storage.store import open_store
from tfprep.storage.urls import durable_write, read_content, remove_file, size_of


@dataclass(frozen=True)
class ShardTask:
    """One shard to build.

    Attributes:
      split, shard, shards: Which shard of how many.
      fingerprint: Digest of everything that decides how a sample becomes bytes, except the sample itself.
      signature: Digest of `fingerprint` and of what the listing says about each sample.
      identity: As in `Receipt`.
      samples: (key, files, values, stat, identity) of each sample, in the order of the records.
      skip: By position, why a sample is rejected without a try.
      expected: By field, the form (`tfprep.builder.sums`) that its value must have, where records of the dataset differ.
    """

    split: str
    shard: int
    shards: int
    fingerprint: str
    signature: str
    identity: str
    samples: Sequence[tuple[str, Sequence[str], Sequence[Any], str, int]]
    skip: Mapping[int, str] = field(default_factory=dict)
    expected: Mapping[str, str] = field(default_factory=dict)


_HEAD_BYTES = 1 << 14
"""Bytes from the beginning of a file in which nearly every receipt ends; its contents may have hundreds of megabytes."""
_READ_AT_ONCE = 32
"""Receipts that are requested from a store at a time."""
_OUT_OF_MEMORY = re.compile(r"^MemoryError\b|\(-4:Insufficient memory\)")
"""How the errors of Python and NumPy begin, and what those of OpenCV hold."""


@dataclass(frozen=True)
class RejectedSample:
    """A sample that was left out: in which stage it failed, and why."""

    key: str
    split: str
    stage: str
    field: str
    error: str
    file: str

    @property
    def accident(self) -> str:
        """Return what may have passed without a trace in any time stamp: "read", "process" or "memory"; "" for other causes."""
        of_memory = "memory" if _OUT_OF_MEMORY.search(self.error) else ""
        return self.stage if self.stage in ("read", "process") else of_memory


@dataclass(frozen=True)
class Receipt:
    """The content of one shard.

    Attributes:
      split, shard, shards: Which shard of how many.
      fingerprint, expected: What decided the bytes, except for the samples: recipe and libraries; forms of fields.
      signature, identity, digest: See above. `identity` is a file system and a digest, such as "8f1c/52a0..."; "" without one.
      files: The shard's file of each variant.
      forms, moments, class_counts: By field.
      rejected: The samples that were left out.
      seconds: Time spent, by stage.
      notes: Number of images by what is remarkable about them.
      warned: The samples with warnings, such as damaged files.
      code_accepted: True if other code built the shard than that of `fingerprint` (`BuildOptions.accept_code`).
    """

    split: str
    shard: int
    shards: int
    fingerprint: str
    signature: str
    identity: str
    digest: str
    files: tuple[FileInfo, ...]
    forms: FieldForms
    expected: Mapping[str, str]
    moments: Mapping[str, Moments]
    class_counts: Mapping[str, tuple[int, ...]]
    rejected: tuple[RejectedSample, ...]
    seconds: Mapping[str, float]
    notes: Mapping[str, int]
    warned: tuple[RejectedSample, ...] = ()
    code_accepted: bool = False

    @property
    def records(self) -> int:
        return self.files[0].records


@dataclass(frozen=True)
class Contents:
    """The part of a receipt that is too large to have in memory for all shards at once.

    Attributes:
      fields: The stored fields, in the order in which a row holds their spans: that of `store` when the shard was built.
      rows: By variant, the rows of the index as JSON: those of one variant are parsed at a time.
      stats: What `stats_of` returned.
    """

    fields: Sequence[str]
    rows: Sequence[str]
    stats: Mapping[str, str]


def read_receipt(
    layout: Layout,
    split: str,
    shard: int,
    *,
    sizes: Mapping[str, int] | None = None,
    common: dict[str, Any] | None = None,
) -> Receipt | None:
    """Return the shard's receipt. None if there is none that can be read, or a file that it names is gone or of another size.

    Args:
      layout, split, shard: Which shard of which build.
      sizes: The sizes of all objects of a dataset at a store, by name; None asks the store for each file.
      common: What other receipts hold, too, by its text; it is in memory once.

    Raises:
      StorageError: The store cannot be reached or refuses.
    """
    try:
        receipt = from_json(Receipt, document := without_digest(_head(layout.receipt(split, shard))))
    except (OSError, ValueError):
        return None
    if common is not None:
        texts = {name: json.dumps(document[name]) for name in ("forms", "expected")}
        receipt = replace(receipt, **{n: common.setdefault(text, getattr(receipt, n)) for n, text in texts.items()})
    if (receipt.split, receipt.shard) != (split, shard):
        return None
    for file in receipt.files:
        for name, size in ((file.name, file.bytes), (f"{file.name}.idx", None)):  # None: of any size
            path = layout.find(name) if sizes is None else None
            there = size_of(path) if path else (sizes or {}).get(f"{SHARDS}/{name}")
            if there is None or size not in (None, there):
                return None
    return receipt


def is_of(layout: Layout, receipt: Receipt, published: Mapping[str, str] | None, *, verify: bool) -> bool:
    """Return True if the files of a shard are those of its receipt, as far as their sizes do not say so.

    Args:
      layout: The folders of the build.
      receipt: What `read_receipt` returned.
      published: The SHA-256 of the shards of the current version, by name; None where names say nothing.
      verify: Read all bytes, also those of the `.idx` files.
    """
    if published is not None and any(
        published.get(file.name) != file.sha256
        for file in receipt.files
        if layout.find(file.name) != layout.staged / file.name
    ):
        return False
    if not verify:
        return True
    try:
        contents = read_contents(layout, receipt)
    except BuildError:  # it is damaged, so that nothing says which records there were
        return False
    for file, rows in zip(receipt.files, contents.rows, strict=True):
        path, text_index = layout.find(file.name), layout.find(f"{file.name}.idx")
        text = format_index(Frame(row[1], row[2]) for row in json.loads(rows))
        if path is None or digest_of(path).sha256 != file.sha256:
            return False
        if text_index is None or read_content(text_index) != text.encode():
            return False
    return True


def read_receipts(layout: Layout, shards: Iterable[tuple[str, int]]) -> Iterator[Receipt | None]:
    """Yield the receipts of many shards, in their order, as `read_receipt` returns them. At a store, they are fetched at once."""
    common: dict[str, Any] = {}
    if not layout.at_store:
        yield from (read_receipt(layout, split, shard, common=common) for split, shard in shards)
        return
    from concurrent.futures import ThreadPoolExecutor

    sizes = {info.name: info.bytes for info in open_store(layout.out).list()}
    with ThreadPoolExecutor(_READ_AT_ONCE) as pool:
        yield from pool.map(lambda place: read_receipt(layout, *place, sizes=sizes, common=common), shards)


def write_receipt(layout: Layout, receipt: Receipt, contents: Contents) -> None:
    """Write a receipt and its contents, in one step."""
    text = with_digest(vars(contents), with_digest(asdict(receipt)))  # asdict() would copy every row
    durable_write(layout.receipt(receipt.split, receipt.shard), text)


def withdraw_receipt(layout: Layout, split: str, shard: int) -> None:
    """Remove a receipt before the shard's files change: it describes no others, even after a power failure."""
    if size_of(path := layout.receipt(split, shard)) is None:
        return
    remove_file(path)
    if not layout.at_store:
        sync_folder(layout.receipts)


def read_contents(layout: Layout, receipt: Receipt) -> Contents:
    """Return the contents of a receipt.

    Raises:
      BuildError: The file is damaged or missing, and is removed, so that the next build builds the shard again; or another build
        has written it meanwhile.
    """
    path = layout.receipt(receipt.split, receipt.shard)
    try:
        contents = from_json(Contents, without_digest(content := read_content(path)))
        if json.loads(content[: content.find(b"\n")])["signature"] == receipt.signature:
            return contents
    except (FileNotFoundError, ValueError) as error:
        remove_file(path)
        raise BuildError(f"{path} is damaged ({error}); run the build again, it builds this shard again") from error
    raise BuildError(f"{path} was written by another build while this one ran; run the build again")


def _head(path: Path) -> bytes:
    """Return the receipt of a file without its contents. ValueError where it has none."""
    size = _HEAD_BYTES
    while (content := read_content(path, size)).count(b"\n", 0, -1) < 2 and len(content) == size:
        size *= 8
    text, digest, contents = content.split(b"\n", 2)
    if not contents:
        raise ValueError("it has no contents")
    return text + b"\n" + digest


def stats_of(task: ShardTask) -> dict[str, str]:
    """Return by key what shows without opening a file whether a sample may have changed: a digest of its files, with sizes and
    times, and of its values, and then the files' identity. Members of an archive have the time and identity of the archive."""
    return {
        key: f"{blake2b(json.dumps(rest).encode(), digest_size=8).hexdigest()} {identity:x}"
        for key, *rest, identity in task.samples
    }


def changed_samples(task: ShardTask, receipt: Receipt, stats: Mapping[str, str]) -> set[str]:
    """Return the keys of the samples of a task that a receipt does not have, or whose inputs may have changed since.

    Args:
      task: The task of the shard now.
      receipt: That of the shard, whose contents have `stats`.
      stats: What `stats_of` returned then.
    """
    same_place = _file_system(receipt.identity) == _file_system(task.identity) != ""

    def compared(stat: str | None) -> str | None:
        return stat if same_place or stat is None else stat.rpartition(" ")[0]

    return {key for key, stat in stats_of(task).items() if compared(stat) != compared(stats.get(key))}


def same_files(receipt: Receipt, identity: str) -> bool:
    """Return True if a receipt's files are those of an identity, as far as the two can be compared."""
    return receipt.identity == identity or _file_system(receipt.identity) != _file_system(identity)


def _file_system(identity: str) -> str:
    return identity.partition("/")[0]
