"""Write one golden folder for the current version of the format: `python -m tests.dataset.golden.make`.

The folder is committed once, and is never written again: it stands for the datasets that people have. `expected.json` holds
what the records contain according to readers that share no code with tfprep: TensorFlow parses the records, Pillow decodes
the images, and pyarrow reads the keys.
"""

import contextlib
import hashlib
import io
import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from PIL import Image

from tests.examples import serialized, write
from tfprep import Recipe, augment, codecs, derive, sources
from tfprep.builder import BuildOptions, build
from tfprep.dataset import IndexOptions, index_tfrecords
from tfprep.dataset.manifest import FORMAT_VERSION

HERE = Path(__file__).parent
SAMPLES = {"train": 4, "val": 2}
RAW_DTYPES = {"depth": "uint16", "distance": "float16"}
IMAGES = ("image", "exact", "mask", "gray", "picture")


def exact(sample: Mapping[str, Any], generator: np.random.Generator) -> np.ndarray:
    """The image once more, to be stored without loss."""
    return np.asarray(sample["image"]).copy()


def gray(sample: Mapping[str, Any], generator: np.random.Generator) -> np.ndarray:
    """A map of 16 bits."""
    return np.asarray(sample["image"]).astype(np.uint16).sum(2, dtype=np.uint16) * np.uint16(85)


exact.kind = "image"  # type: ignore[attr-defined]


def rows(root: Path) -> None:
    """Draw pictures and masks, and write `rows.jsonl`. The last picture of each split is broken."""
    draws = np.random.default_rng(20)
    lines = []
    for split, count in SAMPLES.items():
        for number in range(count + 1):
            pixels = draws.integers(0, 256, (3, 4, 3), np.uint8)
            image = Image.fromarray(pixels).resize((16, 12), Image.Resampling.BICUBIC)
            name = f"{split}-{number}.{'png' if number % 2 else 'jpg'}"
            image.save(root / name)
            Image.fromarray(draws.integers(0, 3, (12, 16), np.uint8)).save(root / f"{name}.mask.png")
            if number == count:
                (root / name).write_bytes((root / name).read_bytes()[:60])
            boxes = [[1.5, 2.0, 9.0, 11.25], [0.0, 0.0, 16.0, 12.0]][: number % 3]
            lines.append({
                "file": name, "split": split, "animal": ["cat", "owl ☾"][number % 2], "tags": ["a", "b", "c"][: number % 4],
                "boxes": boxes,
                "points": [[3.25, 4.5], [8.0, 9.75]], "weight": number / 8, "pages": 10**12 + number,
                "text": f"{split} {number} ßé漢",
            })  # fmt: skip
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (root / "rows.jsonl").write_text(text, encoding="utf-8")


def every_kind() -> Recipe:
    """A field of every kind, in every codec but Original, with an augmented variant of the training split."""
    return Recipe(
        name="every_kind",
        source=sources.Table(
            "rows.jsonl",
            image="file",
            label="animal",
            splits="split",
            fields={
                "mask": ("mask", "{file}.mask.png"), "boxes": ("boxes", "boxes"), "points": ("points", "points"),
                "weight": ("scalar", "weight"), "pages": ("scalar", "pages"), "text": ("text", "text"),
            },
            classes={"mask": ("ground", "thing", "void")},
        ),
        geometry=[augment.Flip(p=0.5), augment.Rotate(degrees=10)],
        color=[augment.Brightness(0.2)],
        derive={"exact": exact, "gray": gray, "depth": gray, "distance": derive.Distance(mask="mask", target=1)},
        variants={"train": 2},
        shards={"train": 2, "val": 1},
        fill={"mask": 2},
        flip_indices={"points": ()},
        row_fields={"boxes": []},
        store={
            "image": codecs.Jpeg(90), "label": codecs.Scalar(), "mask": codecs.Png(), "boxes": codecs.Scalar(),
            "points": codecs.Scalar(), "weight": codecs.Scalar(), "pages": codecs.Scalar(), "text": codecs.Text(),
            "exact": codecs.Png(), "gray": codecs.Png(), "depth": codecs.Raw(), "distance": codecs.Raw("float16"),
        },
        seed=20,
    )  # fmt: skip


def originals() -> Recipe:
    """The files' own bytes, and a list of labels for each sample."""
    return Recipe(
        name="originals",
        source=sources.Table("rows.jsonl", image="file", label="tags", splits="split"),
        shards={"train": 2, "val": 1},
        store={"image": codecs.Original(), "label": codecs.Scalar()},
        seed=20,
    )


def foreign(folder: Path) -> None:
    """Records that TensorFlow wrote, for `tfprep index`."""
    draws = np.random.default_rng(21)
    for split, count in SAMPLES.items():
        records = []
        for number in range(count):
            file = io.BytesIO()
            image = Image.fromarray(draws.integers(0, 256, (3, 4, 3), np.uint8)).resize((16, 12))
            image.save(file, "PNG" if number % 2 else "JPEG")
            ragged = np.arange(number % 3, dtype=np.float32) / 4
            texts = [b"t%d" % n for n in range(number)]
            features = {"picture": file.getvalue(), "label": number % 2, "ragged": ragged, "texts": texts}
            records.append(serialized(features))
        write(folder / f"{split}-00000.tfrecord", records)


def contents(shards: list[Path]) -> Iterator[dict[str, Any]]:
    """The fields of each record, by TensorFlow and Pillow."""
    import tensorflow as tf

    for record in tf.data.TFRecordDataset([str(path) for path in shards]):
        example = tf.train.Example.FromString(record.numpy())
        values = {name: _values(feature) for name, feature in example.features.feature.items()}
        yield {name: _readable(name, values) for name in sorted(values) if not name.endswith("/shape")}


def _values(feature: Any) -> list[Any]:
    kind = feature.WhichOneof("kind")
    return list(getattr(feature, kind).value) if kind else []


def _readable(name: str, values: Mapping[str, list[Any]]) -> Any:
    """A field as JSON: numbers and texts as they are, arrays and images as their digest."""
    if name in IMAGES:
        pixels = np.asarray(Image.open(io.BytesIO(values[name][0])))
        return {"shape": list(pixels.shape), "pixels": hashlib.sha256(pixels.tobytes()).hexdigest()}
    if name in RAW_DTYPES:
        array = np.frombuffer(values[name][0], np.dtype(RAW_DTYPES[name]).newbyteorder("<"))
        return {"shape": values[f"{name}/shape"], "values": hashlib.sha256(array.tobytes()).hexdigest()}
    return [value.decode() if isinstance(value, bytes) else value for value in values[name]]


def built(folder: Path) -> dict[str, Any]:
    """By split and variant, the key and the content of each record in the order of the shards."""
    version = folder / "v0001"
    index = pq.read_table(version / "index.parquet", columns=["key", "split", "variant"]).to_pylist()
    expected: dict[str, Any] = {}
    for split in SAMPLES:
        for variant in range(2 if split == "train" and folder.name == "every_kind" else 1):
            suffix = f"_v{variant}" if variant else ""
            shards = sorted(version.glob(f"{folder.name}-{split}{suffix}.tfrecord-*-of-?????"))
            keys = [row["key"] for row in index if (row["split"], row["variant"]) == (split, variant)]
            records = zip(keys, contents(shards), strict=True)
            expected[f"{split}{suffix}"] = [{"key": key, **record} for key, record in records]
    return expected


def main() -> None:
    """Build the datasets from pictures that are drawn here, and write what they hold."""
    out = HERE / f"v{FORMAT_VERSION}"
    out.mkdir()  # an existing folder is never changed
    expected: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as temporary:
        rows(Path(temporary))
        for recipe in (every_kind(), originals()):
            folder = out / recipe.name
            build(recipe, folder, Path(temporary), options=BuildOptions(workers=0))
            (folder / "v0001/report.html").unlink()  # no reader needs these
            (folder / "current").unlink()
            shutil.rmtree(folder / ".tfprep")
            expected[recipe.name] = built(folder)
    (out / "indexed").mkdir()
    foreign(out / "indexed")
    with contextlib.chdir(out / "indexed"):  # the index notes its command
        for split in SAMPLES:
            index_tfrecords(f"{split}-*.tfrecord", split, options=IndexOptions(workers=0))
    shutil.rmtree(out / "indexed/tfprep-index/v0001")
    (out / "indexed/tfprep-index/current").unlink()
    shutil.rmtree(out / "indexed/tfprep-index/.tfprep")
    expected["indexed"] = {split: list(contents([out / "indexed" / f"{split}-00000.tfrecord"])) for split in SAMPLES}
    text = json.dumps(expected, ensure_ascii=False)
    (out / "expected.json").write_text(text.replace('{"key"', '\n{"key"') + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
