"""Exports of our own: `init` reads each, and the dataset that its recipe builds holds what was exported."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import tfprep
from tests.sources.building import write_picture
from tfprep import Recipe, codecs
from tfprep.builder import BuildOptions
from tfprep.export import Format, export
from tfprep.sources import Table
from tfprep.sources.detection.detect import detect

SERIAL = BuildOptions(workers=0)
BOX = [3.0, 4.0, 20.0, 30.0]


def exported(root: Path, to: Format, *fields: str) -> tuple[Any, Path]:
    """A dataset of two splits with some of the fields, and its export."""
    rows = []
    for number in range(8):
        write_picture(root / f"raw/{number}.png", number)
        Image.fromarray(np.full((40, 56), number % 3, np.uint8)).save(root / f"raw/mask{number}.png")
        rows.append({"f": f"{number}.png", "m": f"mask{number}.png", "s": ["train", "val"][number // 6], "l": "ab"[number % 2],
                     "b": [BOX] * (number % 2 + 1), "bl": ["xy"[number % 2]] * (number % 2 + 1)})  # fmt: skip
    (root / "raw/t.jsonl").write_text("\n".join(map(json.dumps, rows)))
    known: dict[str, tuple[Any, str]] = {"mask": ("mask", "m"), "boxes": ("boxes", "b"), "box_labels": ("label", "bl")}
    source = Table("t.jsonl", "f", "l", {name: known[name] for name in fields if name in known}, splits="s")
    store = {name: codecs.Png() if name in ("image", "mask") else codecs.Scalar() for name in ("image", *fields)}
    tfprep.build(Recipe(name="set", source=source, store=store), root / "built", root / "raw", options=SERIAL)
    data = tfprep.open(root / "built")
    export(data, root / "export", to)
    return data, root / "export"


def content(data: Any, fields: tuple[str, ...]) -> dict[bytes, Any]:
    """The split and the fields of each sample by its pixels; classes by their names."""
    found = {}
    for split in data.splits:
        for batch in data.numpy_loader(split, batch_size=1, training=False, fields=["image", *fields]):
            row = {name: np.asarray(batch[name][0]).tolist() for name in fields}
            for name, names in data.classes.items():
                if name in row and data.fields[name].kind == "label":
                    numbers = row[name] if isinstance(row[name], list) else [row[name]]
                    row[name] = [names[number] for number in numbers]
            found[np.asarray(batch["image"][0]).tobytes()] = (split, row)
    return found


@pytest.mark.parametrize(
    ("to", "fields"),
    [
        ("webdataset", ("label",)),
        ("webdataset", ("mask",)),
        ("parquet", ("label",)),
        ("parquet", ("mask",)),
        ("parquet", ("boxes", "box_labels")),
    ],
)
def test_an_export_comes_back(tmp_path, to: Format, fields):
    data, folder = exported(tmp_path, to, *fields)
    found = detect(folder)
    store = {
        name: codecs.Png() if kind in ("image", "mask") else codecs.Scalar() for name, kind in found.facts.kinds.items()
    }
    assert set(store) == {"image", *fields}
    tfprep.build(Recipe(name="again", source=found.source, store=store), tmp_path / "again", folder, options=SERIAL)
    again, expected = content(tfprep.open(tmp_path / "again"), fields), content(data, fields)
    if to == "webdataset":  # which holds numbers, and says so
        expected = {image: (s, {n: ["01"["ab".index(v[0])]] if n == "label" else v for n, v in row.items()})
                    for image, (s, row) in expected.items()}  # fmt: skip
    assert again == expected
