"""The commands for files: `tfprep index`, `verify`, `clean` and `export` of a dataset, and `init` of raw data."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from shlex import quote
from textwrap import indent
from typing import TYPE_CHECKING, Any, Literal

import click

from tfprep import units
from tfprep.cli import text
from tfprep.cli.options import FILE, OLD_FOLDER, PATH, PLACE, json_option, option, quiet_option
from tfprep.errors import TfprepError
from tfprep.sources.detection import LAYOUTS

if TYPE_CHECKING:
    from tfprep.dataset.clean import Leftovers
    from tfprep.dataset.imported.make import IndexReport
    from tfprep.export import Format


@click.command("index")
@click.argument("source")
@option(
    "--split", help="Split that the shards are of. [default: for a directory of TensorFlow Datasets, all of its splits]"
)
@option("--out", type=PLACE, help="Folder of the index; created if missing. [default: tfprep-index beside the shards]")
@option(
    "--features",
    type=FILE,
    help="JSON file with kind, dtype, shape and classes by feature, in place of what a features.json of TensorFlow Datasets "
    "beside the shards says of them. [default: features.json beside the shards, if there is one]",
)
@option("--on-bad", type=click.Choice(["raise", "skip"]), default="raise",
        help="Stop at the first bad record, or leave bad records out and list them in rejects.jsonl.")  # fmt: skip
@option(
    "--workers", type=click.IntRange(0), help="Number of processes; 0 reads in this process. [default: one per core]"
)
@option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
@quiet_option
def index_command(
    source: str, split: str | None, out: str | None, features: Path | None, on_bad: Literal["raise", "skip"], workers: int | None,
    as_json: bool, quiet: bool,
) -> None:  # fmt: skip
    """Index TFRecords that tfprep did not write, so that `tfprep.open` opens them as a dataset; nothing is copied.

    SOURCE is a path or URL with wildcards, in quotes (`DIR/train-*.tfrecord`), or a directory of TensorFlow Datasets. The
    same command again reads only shards that are new or have changed.
    """
    from tfprep.dataset.imported.make import index_tfrecords

    began = time.perf_counter()
    with text.progress("B", quiet=quiet or as_json, unit_scale=True) as on_bytes:
        report = index_tfrecords(
            source, split, out, features=features, on_bad=on_bad, workers=workers, on_bytes=on_bytes
        )
    seconds = time.perf_counter() - began
    if as_json:
        text.print_json(_plain(report, seconds))
    elif not quiet:
        from tfprep.dataset.dataset import Splits
        from tfprep.dataset.imported.shards import root_of
        from tfprep.dataset.versions import version_folder

        manifest = report.manifest
        root = root_of(version_folder(report.out, 1), manifest)
        place = os.path.normpath(root) if isinstance(root, Path) else str(root)
        fields = [("field", "feature", "kind", "shape", "dtype", "where, balance")]
        for field in report.fields:
            spec, where = field.spec, "yes" if field.column else "-"
            fields.append((field.name, field.feature, spec.kind, spec.sides, spec.dtype, where))
        parts = [
            f"{report.out}: a dataset of the TFRecords in {place}",
            indent(repr(Splits(manifest.splits)), "  "),
            text.table(fields),
        ]
        if manifest.imported and manifest.imported.left_out:
            parts.append(text.table([("left out", "because"), *manifest.imported.left_out.items()]))
        parts += [f"Note on {field.name}: {field.note}." for field in report.fields if field.note]
        parts += [f"Changed: {change}." for change in report.changed]
        if report.missing:
            names = ", ".join(report.missing[:3]) + (", ..." if len(report.missing) > 3 else "")
            count = units.number(len(report.missing), "shard is", "shards are")
            parts.append(f"{count} missing, by the names of the others: {names}. Their records are not in the index.")
        if manifest.rejected:
            count = units.number(manifest.rejected, "record was", "records were")
            parts.append(f"{count} left out; see {report.out / 'current/rejects.jsonl'}")
        if report.scanned:
            rate = units.size(int(report.bytes / max(seconds, 1e-9)))
            read = f"{units.number(len(report.scanned), 'shard')}, {units.size(report.bytes)}"
            parts.append(f"Read {read}, in {units.duration(seconds)}, {rate}/s.")
        else:
            parts.append(f"Nothing to read: no shard is new or has changed ({units.duration(seconds)}).")
        parts.append(f'Open it with tfprep.open("{report.out}").')
        text.echo("\n".join(parts))


def _plain(report: IndexReport, seconds: float) -> dict[str, Any]:
    splits, imported = report.manifest.splits.items(), report.manifest.imported
    return {
        **vars(report),
        "manifest": report.out / "current/manifest.json",
        "fields": [asdict(field) for field in report.fields],
        "splits": {n: {"samples": s.samples, "shards": s.shards, "bytes": s.bytes} for n, s in splits},
        "left_out": imported.left_out if imported else {},
        "rejected": report.manifest.rejected,
        "seconds": seconds,
    }


@click.command("verify")
@click.argument("folder")
@option("--json", "as_json", is_flag=True, help="Print the faults as JSON.")
def verify_command(folder: str, as_json: bool) -> int:
    """Check every file and record of the dataset in FOLDER (a path or a URL) against its checksums.

    Exit status 1: a file or record is damaged or missing.
    """
    from tfprep.dataset.verify import verify

    checked = 0
    with text.progress("B", unit_scale=True) as show:

        def on_bytes(done: int, total: int) -> None:
            nonlocal checked
            checked = done
            show(done, total)

        faults = list(verify(folder, on_bytes))
    if as_json:
        text.print_json([asdict(fault) for fault in faults])
    else:
        for fault in faults:
            where = fault.file if fault.offset is None else f"{fault.file}, byte {fault.offset}"
            text.echo(f"{where}: {fault.reason}")
        count = units.number(len(faults), "fault")
        if not faults:
            verdict = f"{folder}: no fault found ({units.size(checked)} checked)"
        else:
            verdict = (
                f"{count}. Of a build: tfprep build RECIPE --out {quote(folder)} --verify makes the damaged shards again. "
                "Of an index: write the files again, then run tfprep index; a file that kept its size and time is read again "
                "after `touch FILE`."
            )
        text.echo(verdict)
    return 1 if faults else 0


_NAMED = 20


@click.command("clean")
@click.argument("place")
@option("--keep", type=click.IntRange(0), default=0, help="Number of older versions that stay.")
@option("--remove", is_flag=True, help="Remove what is listed; refused while a build runs there.")
@option("--json", "as_json", is_flag=True, help="Print what was found as JSON.")
def clean_command(place: str, keep: int, remove: bool, as_json: bool) -> None:
    """List the older versions of the dataset at PLACE, a folder or a URL, and objects at a store that no version refers to.

    A version in a folder that a process reads is not removed. At a store nothing shows that a version is read: remove older ones
    when the loaders that opened them have ended. Other files stay.
    """
    from tfprep.dataset.clean import clean

    leftovers = clean(place, keep=keep, remove=remove)
    text.print_result(as_json, asdict(leftovers), _clean_lines(leftovers, remove))


def _clean_lines(leftovers: Leftovers, removed: bool) -> Iterator[str]:
    for number, own in leftovers.versions.items():
        yield f"  version {number}: {units.size(own)} that no other version shares"
    objects = leftovers.unreferenced
    yield from (f"  {info.name}  {units.size(info.bytes)}" for info in objects[:_NAMED])
    if len(objects) > _NAMED:
        yield f"  ... and {len(objects) - _NAMED:,} more"
    found = f"{units.number(len(leftovers.versions), 'older version')}"
    if objects:
        found += f", {units.number(len(objects), 'unreferenced object')} of {units.size(sum(info.bytes for info in objects))}"
    rest = f"; {units.size(leftovers.freed)} are free again" if removed else "; --remove removes them"
    yield f"{leftovers.place}: {found}{rest if leftovers.versions or objects else ''}"
    for number in leftovers.kept:
        yield f"Kept: version {number}, which a process reads, or whose file system has no locks to tell"
    kept = {"of a run that has not published": leftovers.unfinished, "that are not a day old": leftovers.young}
    for what, infos in kept.items():
        if infos:
            size = units.size(sum(info.bytes for info in infos))
            yield f"Kept: {units.number(len(infos), 'object')} of {size} {what}"


@click.command("export")
@click.argument("folder")
@option("--to", required=True, type=click.Choice(["webdataset", "parquet"]), help="The format.")
@option("--out", required=True, type=PATH, help="An empty or new folder.")
@option("--split", "splits", multiple=True, help="Split to export. Repeatable. [default: all]")
@option("--variant", type=click.IntRange(0), default=0, help="The variant to export.")
@json_option
def export_command(folder: str, to: Format, out: Path, splits: tuple[str, ...], variant: int, as_json: bool) -> None:
    """Write the dataset in FOLDER (a path or a URL) in another format, with the same keys."""
    from tfprep.dataset import open_dataset
    from tfprep.export import export

    summary = export(open_dataset(folder), out, to, variant=variant, splits=splits or None)
    counts = ", ".join(f"{units.number(count, 'sample')} of {split}" for split, count in summary.samples.items())
    text.print_result(
        as_json, asdict(summary), [f"{out}: {counts}", *(f"Left out: {what}" for what in summary.left_out)]
    )


# --- `tfprep init` -----------------------------------------------------------------------------------------------------


_SAMPLES_BUILT, _SAMPLES_DRAWN = 6, 3


@click.command("init")
@click.argument("folder", type=OLD_FOLDER)
@option("--out", type=FILE, default="recipe.py", help="Recipe file to write.")
@option("--as", "layout", type=click.Choice(LAYOUTS), help="Layout to take, if FOLDER fits several or is doubtful.")
@option(
    "--ignore", multiple=True, help="Leave out files whose path in FOLDER fits this pattern; * stands for any text."
)
@option("--force", is_flag=True, help="Overwrite an existing recipe.")
def init_command(folder: Path, out: Path, layout: str | None, ignore: tuple[str, ...], force: bool) -> None:
    """Inspect FOLDER and write a recipe for its images. The recipe builds without edits."""
    from tfprep.recipe.template import dataset_name, recipe_text, recognized

    if out.exists() and not force:
        raise click.UsageError(f"{out} already exists; --force overwrites it, --out names another file")
    detected = recognized(folder, layout, ignore)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(recipe_text(detected, folder, out), encoding="utf-8")
    for line in detected.lines():
        text.echo(f"  {line}")
    picture = out.with_name(f"{out.stem}-preview.png")
    text.echo(f"  {_draw_samples(out, folder, picture)}")
    text.echo(f"Wrote {out}. Next: tfprep build {quote(str(out))} --out out/{dataset_name(folder)}")


def _draw_samples(recipe: Path, folder: Path, picture: Path) -> str:
    """Build a few samples with the recipe and draw three of them. Return what the picture is, or why there is none."""
    picture.unlink(missing_ok=True)
    try:
        import tfprep
        from tfprep.builder import BuildOptions
        from tfprep.inspect.sheet import contact_sheet

        with tempfile.TemporaryDirectory() as temporary:
            options = BuildOptions(workers=0, limit=_SAMPLES_BUILT)
            # Its warnings would count within these few samples; the build itself counts in all.
            built = tfprep.build(recipe, Path(temporary) / "few", folder, options=options, on_event=lambda event: None)
            split = max(built.splits, key=lambda name: built.splits[name]["samples"])
            drawn = min(_SAMPLES_DRAWN, built.splits[split]["samples"])
            contact_sheet(tfprep.open(built.out), split, samples=drawn, panel_px=256).save(picture)
    except TfprepError as error:
        return f"check: no picture of samples could be drawn: {error}"
    return f"{picture} shows {drawn} sample{'s' * (drawn > 1)} as this recipe builds them"
