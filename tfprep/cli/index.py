"""The command `tfprep index`."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tfprep.cli import text
from tfprep.cli.values import FILE

if TYPE_CHECKING:
    from tfprep.dataset.imported.make import IndexReport
    from tfprep.dataset.manifest import Manifest


@click.command("index")
@click.argument("source")
@click.option(
    "--split", help="Split that the shards are of. [default: for a directory of TensorFlow Datasets, all of its splits]"
)
@click.option("--out", help="Folder of the index; created if missing. [default: tfprep-index beside the shards]")
@click.option(
    "--features",
    type=FILE,
    help="features.json of TensorFlow Datasets, or a JSON file with kind, dtype, shape and classes by feature. "
    "[default: features.json beside the shards, if there is one]",
)
@click.option("--verify", is_flag=True, help="Compare the checksum of every record.")
@click.option(
    "--on-bad",
    type=click.Choice(["raise", "skip"]),
    default="raise",
    show_default=True,
    help="Stop at the first bad record, or leave bad records out and list them in rejects.jsonl.",
)
@click.option(
    "--key", help="Feature that gives each record its key. [default: the shard's name and the record's number]"
)
@click.option("--require", multiple=True, metavar="FEATURE", help="Leave out records without this feature; repeatable.")
@click.option("--ignore", multiple=True, metavar="FEATURE", help="Make no field of this feature; repeatable.")
@click.option(
    "--workers", type=click.IntRange(0), help="Number of processes; 0 reads in this process. [default: one per core]"
)
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
@click.option("--quiet", is_flag=True, help="Print errors alone.")
def index_command(
    source: str, split: str | None, out: str | None, features: Path | None,
    verify: bool, on_bad: str, key: str | None,
    require: tuple[str, ...], ignore: tuple[str, ...], workers: int | None, as_json: bool, quiet: bool,
) -> None:  # fmt: skip
    """Index TFRecords that tfprep did not write, so that `tfprep.open` opens them as a dataset; nothing is copied.

    SOURCE is a path or URL with wildcards, in quotes (`DIR/train-*.tfrecord`), or a directory of TensorFlow Datasets. The
    same command again reads only shards that are new or have changed.
    """
    from tfprep.dataset.imported.make import IndexOptions, index_tfrecords

    options = IndexOptions(verify, on_bad, key, require, ignore, workers)
    began = time.perf_counter()
    with text.progress("B", quiet=quiet or as_json, unit_scale=True) as on_bytes:
        report = index_tfrecords(source, split, out, features=features, options=options, on_bytes=on_bytes)
    seconds = time.perf_counter() - began
    if as_json:
        text.print_json(_plain(report, seconds))
    elif not quiet:
        from tfprep.dataset.imported.shards import root_of

        manifest, left_out = report.manifest, _left_out(report.manifest)
        root = root_of(report.out, manifest)
        place = os.path.normpath(root) if isinstance(root, Path) else str(root)
        rows = [("split", "samples", "shards", "size")]
        parts = [
            f"{report.out}: a dataset of the TFRecords in {place}",
            text.table([*rows, *((n, s.samples, s.shards, text.size(s.bytes)) for n, s in manifest.splits.items())]),
            _fields(report),
        ]
        if left_out:
            parts.append(text.table([("left out", "because"), *left_out.items()]))
        parts += [f"Note on {field.name}: {field.note}." for field in report.fields if field.note]
        parts += [f"Changed: {change}." for change in report.changed]
        if report.missing:
            names = ", ".join(report.missing[:3]) + (", ..." if len(report.missing) > 3 else "")
            count = text.number(len(report.missing), "shard is", "shards are")
            parts.append(f"{count} missing, by the names of the others: {names}. Their records are not in the index.")
        if manifest.rejects:
            count = text.number(manifest.rejects, "record was", "records were")
            parts.append(f"{count} left out; see {report.out / 'rejects.jsonl'}")
        parts.append(_read(report, seconds))
        parts.append(f'Open it with tfprep.open("{report.out}").')
        text.echo("\n".join(parts))


def _plain(report: IndexReport, seconds: float) -> dict[str, Any]:
    manifest, left_out = report.manifest, _left_out(report.manifest)
    return {
        "out": str(report.out),
        "splits": {
            name: {"samples": info.samples, "shards": info.shards, "bytes": info.bytes}
            for name, info in manifest.splits.items()
        },
        "fields": [
            {
                "name": field.name, "feature": field.feature, "kind": field.spec.kind, "shape": field.spec.shape,
                "dtype": field.spec.dtype, "column": field.column, "classes": len(field.classes), "note": field.note,
            }
            for field in report.fields
        ],
        "left_out": [{"feature": feature, "reason": reason} for feature, reason in left_out.items()],
        "rejects": manifest.rejects,
        "scanned": list(report.scanned),
        "scanned_bytes": report.bytes,
        "changed": list(report.changed),
        "missing": list(report.missing),
        "seconds": seconds,
    }  # fmt: skip


def _left_out(manifest: Manifest) -> Mapping[str, str]:
    return manifest.imported.left_out if manifest.imported else {}


def _read(report: IndexReport, seconds: float) -> str:
    if not report.scanned:
        return f"Nothing to read: no shard is new or has changed ({text.duration(seconds)})."
    rate = f", {text.size(int(report.bytes / max(seconds, 1e-9)))}/s"
    return f"Read {text.number(len(report.scanned), 'shard')}, {text.size(report.bytes)}, in {text.duration(seconds)}{rate}."


def _fields(report: IndexReport) -> str:
    rows = [("field", "feature", "kind", "shape", "dtype", "where, balance")]
    for field in report.fields:
        shape = " x ".join("?" if n is None else str(n) for n in field.spec.shape) or "-"
        rows.append(
            (field.name, field.feature, field.spec.kind, shape, field.spec.dtype, "yes" if field.column else "-")
        )
    return text.table(rows)
