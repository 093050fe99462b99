"""The commands about one dataset: its contents, its files and other formats of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tfprep.cli import text
from tfprep.cli.values import FILE, PATH
from tfprep.fields import RASTER_KINDS

if TYPE_CHECKING:
    from tfprep.builder.at_store import Leftovers
    from tfprep.builder.repair import RepairSummary
    from tfprep.dataset import Manifest
    from tfprep.export.export import Format

_MOST_CLASSES = 20


@click.command("info")
@click.argument("folder")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def info_command(folder: str, as_json: bool) -> None:
    """Print the fields, splits, classes and statistics of the dataset in FOLDER (a path or a URL)."""
    from tfprep.dataset import open_dataset

    data = open_dataset(folder)
    manifest = data.manifest
    if as_json:
        text.print_json(asdict(manifest))
        return
    parts = [part(manifest) for part in (_splits, _fields, _classes, _statistics, _versions)]
    text.echo("\n".join([f"{manifest.name} in {folder}", *filter(None, parts)]))
    if sizes := mixed_sizes(manifest):
        text.echo(sizes)
    imported = manifest.imported
    if imported is not None and imported.left_out:
        text.echo(text.table([("left out", "because"), *imported.left_out.items()]))
    if manifest.rejects:
        rejected = text.number(manifest.rejects, "input was", "inputs were")
        text.echo(f"{rejected} rejected; see {data.path / 'rejects.jsonl'}")


def mixed_sizes(manifest: Manifest) -> str:
    """Which images differ in size, and the lines that make them equal; "" if none does."""
    names = [
        name for name, info in manifest.fields.items() if info.spec.kind in RASTER_KINDS and None in info.spec.shape[:2]
    ]
    if not names:
        return ""
    return (
        f"Sizes differ: {', '.join(names)}. One array a batch, as most models take it, needs geometry= in the recipe or the "
        "loader: [augment.Resize(shorter=256), augment.CenterCrop(224, 224)] crops, [augment.Resize(224, 224, pad=True)] pads"
    )


def _splits(manifest: Manifest) -> str:
    rows = [("split", "samples", "variants", "shards", "size")]
    splits = manifest.splits.items()
    return text.table([*rows, *((n, s.samples, s.variants, s.shards, text.size(s.bytes)) for n, s in splits)])


def _fields(manifest: Manifest) -> str:
    added = manifest.groups
    rows = [("field", "kind", "shape", "dtype", "stored as", *(["added for"] if added else []))]
    fields = [(name, info, "") for name, info in manifest.fields.items()]
    for group, entry in added.items():
        splits = ", ".join(f"{split} x {variants}" for split, variants in entry.variants.items())
        fields += [(name, info, f"{splits} (by {group})") for name, info in entry.fields.items()]
    for name, info, where in fields:
        shape = " x ".join("?" if n is None else str(n) for n in info.spec.shape) or "-"
        options = [f"{key} {value}" for key, value in info.codec.items() if key != "codec" and value is not None]
        stored = ", ".join([info.codec["codec"], *options])
        rows.append((name, info.spec.kind, shape, info.spec.dtype, stored, *([where] if added else [])))
    return text.table(rows)


def _classes(manifest: Manifest) -> str:
    """The number of samples of each class of a label, or of pixels of each class of a mask."""
    tables = []
    for name, counts in manifest.class_counts.items():
        unit = "pixels" if manifest.fields[name].spec.kind == "mask" else "samples"
        rows: list[tuple[object, ...]] = [(f"{name} ({unit})", *counts)]
        classes = manifest.classes[name]
        rows += [(label, *(of_split[n] for of_split in counts.values())) for n, label in enumerate(classes)]
        more = f"\n  ... and {len(classes) - _MOST_CLASSES} more" if len(classes) > _MOST_CLASSES else ""
        tables.append(text.table(rows[: _MOST_CLASSES + 1]) + more)
    return "\n".join(tables)


def _statistics(manifest: Manifest) -> str:
    rows = [
        (f"{name} mean {_numbers(values.mean)}", f"std {_numbers(values.std)}")
        for name, values in manifest.statistics.items()
    ]
    return text.table(rows) if rows else ""


def _numbers(values: tuple[float, ...]) -> str:
    return " ".join(f"{value:.2f}" for value in values)


def _versions(manifest: Manifest) -> str:
    return "  built with " + ", ".join(f"{name} {version}" for name, version in manifest.versions.items())


@click.command("show")
@click.argument("folder")
@click.option(
    "--out",
    type=FILE,
    help="Image file to write. [default: FOLDER-sheet.png next to the folder; for a URL, in the current folder]",
)
@click.option("--split", help="Split to draw. [default: the first]")
@click.option("--samples", type=click.IntRange(1), default=8, show_default=True, help="Number of rows.")
@click.option("--variants", type=click.IntRange(1), help="Number of variants to draw. [default: all]")
@click.option(
    "--panel",
    "panel_px",
    type=click.IntRange(32, 1024),
    default=144,
    show_default=True,
    help="Side of a panel, in pixels.",
)
def show_command(
    folder: str, out: Path | None, split: str | None, samples: int, variants: int | None, panel_px: int
) -> None:
    """Draw samples of the dataset in FOLDER (a path or a URL): a row per sample, with its variants, masks and maps in columns."""
    from tfprep.dataset import open_dataset
    from tfprep.dataset.sheet import contact_sheet

    data = open_dataset(folder)
    sheet = contact_sheet(data, split, samples=samples, variants=variants, panel_px=panel_px)
    path = out or _default_path(data.path)
    path.parent.mkdir(parents=True, exist_ok=True)
    sheet.save(path)
    text.echo(f"{path}: {sheet.width} x {sheet.height} pixels")


def _default_path(folder: Path) -> Path:
    from tfprep.storage.urls import is_remote

    if is_remote(folder):
        return Path(f"{folder.name}-sheet.png")
    return folder.resolve().parent / f"{folder.resolve().name}-sheet.png"


@click.command("verify")
@click.argument("folder")
@click.option("--json", "as_json", is_flag=True, help="Print the faults as JSON.")
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
        text.echo(_verdict(len(faults), checked, folder))
    return 1 if faults else 0


def _verdict(faults: int, checked: int, folder: str) -> str:
    if not faults:
        return f"{folder}: no fault found ({text.size(checked)} checked)"
    count = text.number(faults, "fault")
    if "://" in folder:
        return f"{count}. Delete the damaged objects, then run the build again: it builds the shards that are missing."
    return (
        f"{count}. tfprep repair {folder} builds the damaged files again, and no others. Files that only an index refers to: "
        "write them again, then run tfprep index."
    )


EXIT_LOST = 1
_KEYS_SHOWN = 10


@click.command("repair")
@click.argument("folder", callback=lambda _context, _parameter, folder: _local(folder))
@click.argument("recipe", type=PATH, required=False)
@click.option("--data", type=PATH, help="Folder of the raw files. [default: as for tfprep build]")
@click.option("--workers", type=click.IntRange(0), help="Number of worker processes, as for tfprep build.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def repair_command(folder: Path, recipe: Path | None, data: Path | None, workers: int | None, as_json: bool) -> int:
    """Mend the damaged and missing files of the dataset in FOLDER; leave all others alone.

    Shards are built again from the raw files with RECIPE, the file that the dataset was built with, and take their place only if
    they have the same bytes as before. Without RECIPE, what follows from other files is mended.

    Exit status 1: something could not be mended; it is named.
    """
    from tfprep.builder.repair import repair

    summary = repair(folder, recipe, data, workers=workers, tell=lambda line: text.echo(line, err=True))
    if as_json:
        text.print_json(asdict(summary))
    else:
        text.echo("\n".join(_repair_lines(folder, summary)))
    return EXIT_LOST if summary.lost else 0


def _local(folder: str) -> Path:
    if "://" in folder:
        raise click.UsageError(
            f"{folder} is at a store, where no file can be mended; delete what tfprep verify names, then build again: that "
            "builds the shards that are missing"
        )
    return Path(folder)


def _repair_lines(folder: Path, summary: RepairSummary) -> Iterator[str]:
    if not summary.faults:
        yield f"{folder}: no fault found"
    if summary.mended:
        yield f"Mended: {', '.join(summary.mended)}"
    for name, reason in summary.lost.items():
        yield f"Not mended: {name}: {reason}"
    if summary.lost_samples:
        shown = ", ".join(summary.lost_samples[:_KEYS_SHOWN])
        more = len(summary.lost_samples) - _KEYS_SHOWN
        yield f"Lost samples: {shown}{f' and {more:,} more' if more > 0 else ''}"
        yield (
            "If the raw files are gone: tfprep index 'DIR/NAME-SPLIT.tfrecord-*-of-?????' --split SPLIT --verify --on-bad skip "
            "opens all records that are intact"
        )


_NAMED = 20


@click.command("clean")
@click.argument("place")
@click.option("--remove", is_flag=True, help="Remove what is listed; refused while a build runs there.")
@click.option("--json", "as_json", is_flag=True, help="Print what was found as JSON.")
def clean_command(place: str, remove: bool, as_json: bool) -> None:
    """List what builds and tfprep add-fields left at PLACE, a URL or a folder: objects that the dataset does not refer to.

    Loaders that opened an earlier dataset there still read its objects: remove them when those have ended. Other files are left
    alone.
    """
    from tfprep.builder.at_store import clean

    leftovers = clean(place, remove=remove)
    if as_json:
        text.print_json(asdict(leftovers))
    else:
        text.echo("\n".join(_clean_lines(leftovers)))


def _clean_lines(leftovers: Leftovers) -> Iterator[str]:
    found = leftovers.unreferenced
    yield from (f"  {info.name}  {text.size(info.bytes)}" for info in found[:_NAMED])
    if len(found) > _NAMED:
        yield f"  ... and {len(found) - _NAMED:,} more"
    verb = "removed" if leftovers.removed else "found"
    yield (
        f"{leftovers.url}: {verb} {text.number(len(found), 'unreferenced object')} of {text.size(sum(i.bytes for i in found))}"
        + ("" if leftovers.removed or not found else "; --remove removes them")
    )
    if leftovers.unfinished:
        size = text.size(sum(info.bytes for info in leftovers.unfinished))
        yield f"Kept: {text.number(len(leftovers.unfinished), 'object')} of {size} of a run that has not published"


@click.command("export")
@click.argument("folder")
@click.option("--to", required=True, type=click.Choice(["webdataset", "folder", "coco", "parquet"]), help="The format.")
@click.option("--out", required=True, type=PATH, help="An empty or new folder.")
@click.option("--variant", type=click.IntRange(0), default=0, show_default=True, help="The variant to export.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def export_command(folder: str, to: Format, out: Path, variant: int, as_json: bool) -> None:
    """Write the dataset in FOLDER (a path or a URL) in another format, with the same keys."""
    from tfprep.dataset import open_dataset
    from tfprep.export import export

    summary = export(open_dataset(folder), out, to, variant=variant)
    if as_json:
        text.print_json(asdict(summary))
        return
    counts = ", ".join(f"{text.number(count, 'sample')} of {split}" for split, count in summary.samples.items())
    text.echo("\n".join([f"{out}: {counts}", *(f"Left out: {what}" for what in summary.left_out)]))
