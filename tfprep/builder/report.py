"""`report.html` of a build, from the receipts and the records only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tfprep.builder.receipts import Receipt
from tfprep.dataset import Dataset, Manifest
from tfprep.dataset.names import REPORT
from tfprep.inspect.leaks import find_leaks
from tfprep.inspect.pages.report import BuildFacts, report_page
from tfprep.inspect.stats import statistics_of
from tfprep.storage.urls import durable_write

_MOST_READ, _LEAST_READ, _MOST_READ_BYTES = 100, 16, 16 << 20
"""Samples of a split that are read for the report, and their bytes: 0.1 s for photos; `tfprep stats` reads 1,000."""
_MOST_COMPARED = 200_000
"""Samples among which duplicates are looked for: some two seconds, and a tenth of the memory that a million takes."""
_STAGES = ("read", "decode", "geometry", "derive", "color", "hash", "encode", "write")


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
    """Return what is remarkable about the data, such as "3 images were turned upright", and splits that were there before."""
    notes: Counter[str] = Counter()
    for receipt in receipts:
        notes.update(receipt.notes)
    lines = [f"{count:,} images {note}" for note, count in notes.most_common()]
    if warned := sum(len(receipt.warned) for receipt in receipts):
        rule = "report.html lists them, and --on-warning reject leaves them out"
        lines.append(f"{warned:,} samples have warnings, such as damaged files or dropped annotations; {rule}")
    gone = before.splits.keys() - manifest.splits.keys() if before and before.name == manifest.name else set()
    for name in sorted(gone):
        lines.append(
            f"the split {name!r} is gone: the raw data has no sample of it any more; the version before has it"
        )
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
