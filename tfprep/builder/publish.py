"""From finished shards to a version of the dataset: its tables, its description, and what people are told of it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import reduce
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tfprep.builder.layout import Layout
from tfprep.builder.plan import Plan, building_versions
from tfprep.builder.receipts import Receipt, read_contents
from tfprep.builder.sums import Moments, merge
from tfprep.codecs import Scalar
from tfprep.dataset import Dataset, FieldInfo, Manifest, SplitInfo, Statistics
from tfprep.dataset.index import OPTIONAL, label_type, read_index, schema
from tfprep.dataset.locations import with_rows, write_rows
from tfprep.dataset.manifest import digest_of, kept_fields, matches
from tfprep.dataset.names import INDEX, LOCATIONS, REJECTS, REPORT
from tfprep.dataset.other_readers import tfds_files
from tfprep.dataset.versions import NewVersion
from tfprep.errors import BuildError, DatasetError, TooManyRejectedError
from tfprep.fields import FieldSpec
from tfprep.storage.store import open_store
from tfprep.storage.urls import durable_write, names_in, remove_files

_MOST_READ, _LEAST_READ, _MOST_READ_BYTES = 100, 16, 16 << 20
"""Samples of a split that are read for the report, and their bytes: 0.1 s for photos; `tfprep stats` reads 1,000."""
_MOST_COMPARED = 200_000
"""Samples among which duplicates are looked for: some two seconds, and a tenth of the memory that a million takes."""
_STAGES = ("read", "decode", "geometry", "derive", "color", "hash", "encode", "write")


def write_files(
    layout: Layout, new: NewVersion, before: Manifest | None, manifest: Manifest, receipts: Sequence[Receipt]
) -> Manifest:
    """Make shards, added fields and tables part of the version that is made; return its manifest, with their digests.

    Args:
      layout: The folders of the build.
      new: The version that is made.
      before: The manifest of the version that is current; None without one that can be read.
      manifest: What `manifest_of` returned.
      receipts: The receipts of all shards, by split and shard.
    """
    if not layout.at_store:
        for name in shard_names(manifest):
            source = layout.find(name)
            assert source is not None, name
            new.add(name, source)
    index, locations = new.file(INDEX), new.file(LOCATIONS)
    columns = schema(list(manifest.fields), label_type(manifest.fields))
    tables = (
        _rows(layout, receipt, variant, columns)
        for split, info in manifest.splits.items()
        for variant in range(info.variants)
        for receipt in receipts
        if receipt.split == split
    )
    written = write_rows(index, locations, manifest.fields, columns, tables)
    manifest = with_rows(manifest, written, index, locations)
    if before is not None and layout.current is not None:
        data = Dataset(layout.current, before)
        kept = {group: entry for group, entry in manifest.groups.items() if _fit(data, group, new.folder, manifest)}
        manifest = replace(manifest, added=kept or None)
        if not layout.at_store:
            new.take_added(before.groups, kept)
    digests = dict(manifest.files)
    tfds = {} if manifest.within else tfds_files(manifest)  # TensorFlow Datasets finds shards by prescribed names only
    for name, text in {REJECTS: "".join(_rejected_lines(receipts)), **tfds}.items():
        digests[name] = digest_of(new.write(name, text))
    return replace(manifest, files=digests)


def _fit(data: Dataset, group: str, folder: Path, manifest: Manifest) -> bool:
    """Return True if fields were computed for samples of these keys: another name of a raw file may change no shard."""
    try:
        added, keys = data.added(group), ["key"]
        pairs = [(added.index(split, 0, keys), read_index(folder, manifest, split, 0, keys)) for split in added.splits]
    except DatasetError:  # it is damaged, which `tfprep verify` says
        return True
    return all(before == now for before, now in pairs)


def remove_notes(layout: Layout, receipts: Sequence[Receipt]) -> None:
    """Remove the receipts and recipes of shards that the dataset does not have any more; `receipts` are those of all shards."""
    kept = {layout.receipt(receipt.split, receipt.shard).name for receipt in receipts}
    with suppress(DatasetError, OSError):  # Only room is lost.
        remove_files(layout.receipts, names_in(layout.receipts) - kept)
        remove_files(layout.recipes, names_in(layout.recipes) - {f"{one.fingerprint}.json" for one in receipts})


def is_published(layout: Layout, new: NewVersion, before: Manifest, manifest: Manifest, *, verify: bool) -> bool:
    """Return True if the current version says the same as a manifest, and all of its small files are as they were written; at a
    store their sizes say so, unless `verify` asks for their content."""
    if new.before is None or not new.is_pointed:
        return False
    # `manifest` names no files yet, and no rows of `locations.bin`.
    splits = {name: replace(info, rows_crc32c=()) for name, info in before.splits.items()}
    if replace(before, files={}, splits=splits).to_json() != manifest.to_json():
        return False
    if layout.at_store and not verify:
        sizes = {info.name: info.bytes for info in open_store(new.before.path).list(recursive=False)}
        return all(sizes.get(name) == digest.bytes for name, digest in before.files.items())
    waiting = any(layout.find(name) == layout.staged / name for name in shard_names(manifest))
    return not waiting and all(matches(new.before.path / name, digest) for name, digest in before.files.items())


def check_rejected(layout: Layout, receipts: Sequence[Receipt], samples: int, max_bad: float) -> None:
    """Raise TooManyRejectedError if more samples were rejected than allowed, or all; `.tfprep/rejects.jsonl` then lists them.

    The `rejects.jsonl` of the dataset itself stays: it belongs to what was published before.
    """
    rejected = [sample for receipt in receipts for sample in receipt.rejected]
    if len(rejected) < samples and len(rejected) / samples <= max_bad:
        return
    durable_write(layout.failed_rejected, "".join(_rejected_lines(receipts)))
    (reason, often), *_ = Counter(f"{sample.stage}: {sample.error}" for sample in rejected).most_common(1)
    example = next(sample.file or sample.key for sample in rejected if f"{sample.stage}: {sample.error}" == reason)
    allowed = f"at most {100 * max_bad:.3g}% may be" if max_bad < 1 else "a dataset holds at least one"
    raise TooManyRejectedError(
        f"{len(rejected)} of {samples} samples were rejected, {allowed}; nothing was published. Most often ({often} times): "
        f"{reason} ({example}). All are in {layout.failed_rejected}"
    )


def shard_names(manifest: Manifest) -> Iterator[str]:
    """Yield the names of all shards, each with its `.idx`."""
    for file in manifest.shard_files():
        yield from (file.name, f"{file.name}.idx")


# --- the content of manifest.json ----------------------------------------------------------------------------------------


def manifest_of(
    plan: Plan, receipts: Sequence[Receipt], common: Mapping[str, str], before: Manifest | None
) -> Manifest:
    """Return the manifest, without the digests of the files that are not shards.

    Args:
      plan: The plan of the build.
      receipts: The receipts of all shards, by split and shard.
      common: The form of each field (`tfprep.builder.sums`).
      before: The manifest that is there, whose added fields are kept as far as they are of the same shards.
    """
    specs: dict[str, FieldSpec] = {}
    for name, form in common.items():
        forms = [receipt.forms[name].get(form) for receipt in receipts if name in receipt.forms]
        if spec := reduce(merge, (form_of_shard.spec for form_of_shard in forms if form_of_shard), None):
            specs[name] = spec
            if spec.shape.count(None) > 1 and isinstance(plan.recipe.store[name], Scalar):
                rule = f"the arrays of {name!r} differ in several sides, {list(spec.shape)}, which Scalar() cannot give back"
                raise BuildError(f"{rule}; write store={{{name!r}: codecs.Raw()}}")
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
    fields = {name: FieldInfo(specs[name], codecs[name], plan.recipe.follows(name)) for name in codecs if name in specs}
    inputs = [*(receipt.digest for receipt in receipts), *_rejected_lines(receipts)]
    manifest = Manifest(
        name=plan.recipe.name,
        fingerprint=plan.fingerprint,
        recipe=plan.description,
        fields=fields,
        splits=splits,
        classes=plan.listing.classes,
        class_counts={name: class_counts[name] for name in codecs if name in class_counts},
        statistics=statistics,
        versions=building_versions(),
        rejected=sum(len(receipt.rejected) for receipt in receipts),
        inputs=sha256("".join(inputs).encode()).hexdigest(),
    )
    return replace(manifest, added=kept_fields(before, manifest))


# --- index and rejected samples ---------------------------------------------------------------------------------------


def _rows(layout: Layout, receipt: Receipt, variant: int, columns: pa.Schema) -> pa.Table:
    contents = read_contents(layout, receipt)
    rows = json.loads(contents.rows[variant])
    names = ["key", "offset", "size", "payload_crc", "label", "height", "width", "source_digest"]
    names += [f"{name}_{what}" for name in contents.fields for what in ("offset", "size")]
    names += OPTIONAL
    by_name: dict[str, Sequence[Any]] = {name: [row[place] for row in rows] for place, name in enumerate(names)}
    for name in ("source_digest", "image_digest"):
        by_name[name] = [None if digest is None else bytes.fromhex(digest) for digest in by_name[name]]
    of_shard = {"split": receipt.split, "variant": variant, "shard": receipt.shard}
    by_name |= {name: [value] * len(rows) for name, value in of_shard.items()}
    return pa.table({column.name: pa.array(by_name[column.name], column.type) for column in columns}, schema=columns)


def _rejected_lines(receipts: Sequence[Receipt]) -> Iterator[str]:
    for receipt in receipts:
        for sample in receipt.rejected:
            printable = {name: _printable(text) for name, text in asdict(sample).items()}
            yield json.dumps(printable, ensure_ascii=False) + "\n"


def first_rejected(receipts: Sequence[Receipt]) -> str:
    """The file or key of the first sample that was rejected, and why; "" where there is none."""
    sample = next((sample for receipt in receipts for sample in receipt.rejected), None)
    return "" if sample is None else _printable(f"{sample.file or sample.key}: {sample.error}")


def _printable(text: str) -> str:
    """Show bytes of a file name that are not UTF-8 as `\\xff`, as a sample's key does."""
    try:
        data = text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # half of a UTF-16 pair, as JSON and messages of exceptions may hold
        data = text.encode("utf-8", "surrogatepass")
    return data.decode("utf-8", "backslashreplace")


# --- the report -----------------------------------------------------------------------------------------------------------


def write_report(
    folder: Path,
    manifest: Manifest,
    receipts: Sequence[Receipt],
    seconds: float,
    built_samples: int,
    passed_over: Mapping[str, int],
    notes: Sequence[str],
) -> str:
    """Write `report.html` of a version that is about to be published.

    Args:
        folder: The complete folder of the version, or its URL.
        manifest: What it is.
        receipts: Those of all shards.
        seconds, built_samples, passed_over, notes: As in `BuildFacts`.

    Returns:
        Why it was not written; "" if it was. The dataset is complete, so a report that fails must not make the build fail.
    """
    # A build that finds nothing to do writes no report.
    from tfprep.inspect.leaks import find_leaks
    from tfprep.inspect.report import BuildFacts, report_page
    from tfprep.inspect.stats import statistics_of

    stages = {stage: sum(receipt.seconds.get(stage, 0.0) for receipt in receipts) for stage in _STAGES}
    stages = {stage: total for stage, total in stages.items() if total}
    accepted = sum(receipt.code_accepted for receipt in receipts)
    warned = [(sample.key, sample.error) for receipt in receipts for sample in receipt.warned]
    facts = BuildFacts(seconds, built_samples, passed_over, stages, notes, accepted, warned)
    records = sum(split.samples * split.variants for split in manifest.splits.values())
    size = sum(split.bytes for split in manifest.splits.values()) / max(1, records)
    most = int(min(_MOST_READ, max(_LEAST_READ, _MOST_READ_BYTES // max(size, 1))))
    try:
        data = Dataset(folder, manifest)
        stats = statistics_of(data, most_samples=most)
        leaks = None
        if sum(split.samples for split in data.splits.values()) <= _MOST_COMPARED:
            pairs = find_leaks(data, most_pairs=100, from_records=False)
            leaks = pairs if sum(pairs.samples.values()) > min(pairs.unhashed, pairs.undigested) else None
        durable_write(folder / REPORT, report_page(data, stats, leaks, facts))
    except Exception as error:
        return f"report.html was not written: {type(error).__name__}: {error}"
    return ""


def notes_on_build(receipts: Sequence[Receipt], manifest: Manifest, before: Manifest | None) -> list[str]:
    """Return what is remarkable about the data, such as "3 images were turned upright", and what was otherwise before."""
    notes: Counter[str] = Counter()
    for receipt in receipts:
        notes.update(receipt.notes)
    lines = [f"{count:,} images {note}" for note, count in notes.most_common()]
    if warned := sum(len(receipt.warned) for receipt in receipts):
        rule = "report.html lists them, and --on-warning reject leaves them out"
        lines.append(f"{warned:,} samples have warnings, such as damaged files or dropped annotations; {rule}")
    if before is None or before.name != manifest.name:
        return lines
    for name in sorted(before.splits.keys() - manifest.splits.keys()):
        lines.append(
            f"the split {name!r} is gone: the raw data has no sample of it any more; the version before has it"
        )
    for name, classes in manifest.classes.items():
        numbers = {one: number for number, one in enumerate(classes)}
        others = ((one, old) for old, one in enumerate(before.classes.get(name, ())) if numbers.get(one, old) != old)
        if moved := next(others, None):
            rule = "models of before mean the old numbers; classes= of the source fixes the order"
            lines.append(f"{name}: the class {moved[0]!r} was number {moved[1]} and is {numbers[moved[0]]}: {rule}")
    return lines


def other_shares(manifest: Manifest) -> Iterator[str]:
    """Say which splits have less than half, or more than twice, of the samples that the recipe's `Fractions` ask for."""
    asked, total = manifest.recipe["source"].get("splits"), sum(split.samples for split in manifest.splits.values())
    for name in ("train", "val", "test") if isinstance(asked, dict) and total else ():
        share = manifest.splits[name].samples / total if name in manifest.splits else 0.0
        if not asked[name] / 2 <= share <= 2 * asked[name]:
            rule = "shares are uneven where keys or groups are few; another seed= of Fractions divides them otherwise"
            yield f"the split {name!r} has {share:.0%} of the samples, and Fractions asks for {asked[name]:.0%}: {rule}"


def empty_parts(manifest: Manifest) -> list[str]:
    """Say which splits have no samples, and which classes and fields no values, a line each."""
    lines = [
        f"the split {name!r} has no sample; all of its samples were rejected (rejects.jsonl)"
        for name, split in manifest.splits.items()
        if not split.samples
    ]
    for name, by_split in manifest.class_counts.items():
        what = "pixel" if manifest.fields[name].spec.kind == "mask" else "label"
        for split, counts in by_split.items():
            classes = manifest.classes.get(name, ())
            empty = [name for number, name in enumerate(classes) if number >= len(counts) or not counts[number]]
            if len(empty) == len(classes):
                lines.append(f"{name}: no sample of {split!r} has a {what} of any class")
            elif empty:
                shown = ", ".join(empty[:6]) + (", …" if len(empty) > 6 else "")
                lines.append(f"{name}: {len(empty)} of {len(classes)} classes have no {what} in {split!r}: {shown}")
    return lines
