"""The command `tfprep info`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from tfprep.cli import text
from tfprep.fields import RASTER_KINDS

if TYPE_CHECKING:
    from tfprep.dataset import Manifest

_MOST_CLASSES = 20


@click.command("info")
@click.argument("folder")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def command(folder: str, as_json: bool) -> None:
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
