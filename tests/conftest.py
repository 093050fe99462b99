"""Datasets for tests of readers, written directly with `tfprep.records` and `tfprep.dataset`, without a recipe or a build."""

import contextlib
import importlib.util
import json
import signal
import threading
import traceback
from dataclasses import asdict, dataclass, field
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, settings

from tests.storage.server import s3_server
from tfprep import codecs, records
from tfprep.builder.plan import PRECISE_OPENCV
from tfprep.dataset import (
    FieldInfo,
    FileInfo,
    Manifest,
    SplitInfo,
    Statistics,
    index_tfrecords,
    read_manifest,
)
from tfprep.dataset import clean as cleaning
from tfprep.dataset.index import schema
from tfprep.dataset.locations import with_rows, write_rows
from tfprep.dataset.manifest import digest_of, seal
from tfprep.dataset.names import INDEX, LOCATIONS, shard_name
from tfprep.errors import DatasetError, MissingDependencyError
from tfprep.fields import RASTER_KINDS, FieldSpec
from tfprep.storage import store as objects

# A shell that starts a script in the background makes it ignore SIGINT, which processes inherit. Tests of Ctrl-C need
# the default handler in the processes that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("slow days", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("slow days")

SIZE = (24, 32)

ABSENT = [name for name in ("tensorflow", "keras") if importlib.util.find_spec(name) is None]
"""What every environment of the tests has, but one of a Python for which TensorFlow has no release."""


@contextlib.contextmanager
def skipped_where_absent():
    """Skip a test that imports TensorFlow or Keras itself, or is told by tfprep that it needs them, where there are none.

    An import in tfprep that fails otherwise, without telling what to install, stays a failure.
    """
    try:
        yield
    except MissingDependencyError as error:
        if ABSENT and ("TensorFlow" in str(error) or "Keras" in str(error)):
            pytest.skip(str(error))
        raise
    except ModuleNotFoundError as error:
        by_test = Path(__file__).parent in Path(traceback.extract_tb(error.__traceback__)[-1].filename).parents
        if error.name in ABSENT and by_test:
            pytest.skip(str(error))
        raise


ABOUT_TENSORFLOW = [Path(__file__).parent / folder for folder in ("bench", "train", "load/tensorflow")]


def pytest_collection_modifyitems(items):
    """Skip tests of exact warps with an OpenCV that rounds them."""
    if int(cv2.__version__.partition(".")[0]) < PRECISE_OPENCV:
        for item in items:
            if item.get_closest_marker("precise_warps"):
                item.add_marker(pytest.mark.skip(reason="this OpenCV rounds the coordinates of warps to 1/32 pixel"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item):
    if ABSENT and any(folder in item.path.parents for folder in ABOUT_TENSORFLOW):
        pytest.skip(f"needs {' and '.join(ABSENT)}")
    with skipped_where_absent():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call():
    with skipped_where_absent():
        return (yield)


@pytest.fixture
def reading_threads():
    """A function that lists the reading threads that the test has started: loaders of earlier tests may still be alive."""
    before = set(threading.enumerate())
    return lambda: [
        thread for thread in threading.enumerate() if thread not in before and thread.name.startswith("tfprep-read-")
    ]


def smooth(rng, height, width, channels):
    """An image that JPEG changes little: blurred noise, uint8 [H, W, C]."""
    noise = rng.integers(0, 256, (height, width, channels)).astype(np.float32)
    return cv2.GaussianBlur(noise, (0, 0), 2).reshape(height, width, channels).astype(np.uint8)


def photo_fields(rng, number):
    """A field of every kind; `clicks` holds the number."""
    return {
        "image": smooth(rng, *SIZE, 3),
        "lossless": smooth(rng, *SIZE, 3),
        "mask": rng.integers(0, 4, SIZE).astype(np.uint8),
        "depth": rng.integers(0, 65536, SIZE).astype(np.uint16),
        "clicks": np.stack([np.full(SIZE, number % 256), np.full(SIZE, number // 256)], -1).astype(np.uint8),
        "field": rng.normal(size=(*SIZE, 2)).astype(np.float32),
        "label": number % 1000 % 3,
        "weight": float(rng.normal()),
        "pose": rng.normal(size=(4,)).astype(np.float32),
        "caption": f"número {number}",
    }


FIELDS = {
    "image": ("image", codecs.Jpeg(95)), "lossless": ("image", codecs.Png()), "mask": ("mask", codecs.Png()),
    "depth": ("map", codecs.Png()), "clicks": ("map", codecs.Raw()), "field": ("map", codecs.Raw()),
    "label": ("label", codecs.Scalar()), "weight": ("scalar", codecs.Scalar()), "pose": ("scalar", codecs.Scalar()),
    "caption": ("text", codecs.Text()),
}  # fmt: skip
KINDS = {name: kind for name, (kind, _) in FIELDS.items()}
CODECS = {name: codec for name, (_, codec) in FIELDS.items()}


@dataclass
class Made:
    """A dataset on disk and its decoded records: `values[split][variant][row]` by field."""

    path: Path
    values: dict[str, list[list[dict[str, Any]]]] = field(default_factory=dict)
    keys: dict[str, list[str]] = field(default_factory=dict)

    def change_index(self, row, **values):
        """Writes these values to a row of `index.parquet`, counted over all rows, and seals the dataset again."""
        table = pq.read_table(self.path / INDEX)
        rows = table.to_pylist()
        rows[row].update(values)
        crcs = {}
        with contextlib.suppress(DatasetError, ValueError):  # what a location cannot be is an error of the index only
            manifest = _write_rows(self.path, rows, table.schema, read_manifest(self.path))
            crcs = {name: info.rows_crc32c for name, info in manifest.splits.items()}
        with pq.ParquetWriter(self.path / INDEX, table.schema) as writer:
            for group in _groups(rows, table.schema):
                writer.write_table(group)
        self.seal(lambda document: [document["splits"][name].update(rows_crc32c=crc) for name, crc in crcs.items()])

    def seal(self, change=lambda document: None):
        """Changes `manifest.json` as a whole, and updates the digests of the files and its own checksum."""
        path = self.path / "manifest.json"
        document = json.loads(path.read_bytes())
        del document["sha256"]
        change(document)
        document["files"] = {name: asdict(digest_of(self.path / name)) for name in (INDEX, LOCATIONS)}
        path.write_text(seal(document))


def write_dataset(
    path, *, samples, variants=1, shards=2, fields=(), make=photo_fields, codec=CODECS, kinds=KINDS, seed=0
):
    """Writes a dataset with the given number of samples per split. Variant v of sample n is `make` of number n + 1000 v.

    `fields` are those of `make` that are stored, by default all that have a codec.
    """
    path.mkdir(parents=True, exist_ok=True)
    made, codec = Made(path), {name: codec[name] for name in fields or codec}
    specs = {}
    splits, rows = {}, []
    for split, count in samples.items():
        made.keys[split] = [f"{split}/{number:04d}" for number in range(count)]
        made.values[split], files = [], []
        for variant in range(variants if split == "train" else 1):
            rng, values = np.random.default_rng([seed, variant, count]), []
            stored = [
                _stored(make(rng, number + 1000 * variant), codec, kinds, specs, values) for number in range(count)
            ]
            made.values[split].append(values)
            files.append([])
            for shard, part in enumerate(np.array_split(np.arange(count), shards)):
                name = shard_name("made", split, variant, shard, shards)
                with (path / name).open("wb") as file:
                    for number in part:
                        features, spans, columns = stored[number]
                        framed = records.frame(features)
                        frame, payload_crc = records.Frame(file.tell(), len(framed)), records.masked_crc(features)
                        file.write(framed)
                        spans = {column: frame.offset + 12 + offset for column, offset in spans.items()}
                        place = {"key": made.keys[split][number], "split": split, "variant": variant, "shard": shard}
                        crc = {"payload_crc": payload_crc, "source_digest": b"\0" * 16}
                        rows.append({**place, **frame._asdict(), **crc, **columns, **spans})
                files[-1].append(FileInfo(name, len(part), (path / name).stat().st_size, "0" * 64))
        splits[split] = SplitInfo(count, tuple(map(tuple, files)))
    columns = schema(list(codec), pa.int64() if any("label" in row for row in rows) else None)
    manifest = Manifest(
        name="made",
        fingerprint="0" * 64,
        recipe={},
        fields={name: FieldInfo(specs[name], codec[name].describe()) for name in codec},
        splits=splits,
        classes={"label": ("cat", "dog", "owl")} if "label" in codec else {},
        statistics={"image": Statistics((120.0, 128.0, 130.0), (10.0, 11.0, 12.0))} if "image" in codec else {},
    )
    (path / "manifest.json").write_text(_write_rows(path, rows, columns, manifest).to_json())
    made.seal()
    return made


def _groups(rows, columns):
    groups = groupby(rows, key=itemgetter("split", "variant", "shard"))
    return [pa.Table.from_pylist(list(group), columns) for _, group in groups]


def _write_rows(path, rows, columns, manifest):
    paths = path / INDEX, path / LOCATIONS
    return with_rows(manifest, write_rows(*paths, manifest.fields, columns, _groups(rows, columns)), *paths)


def _stored(sample, codec, kinds, specs, values):
    """The payload of a sample, where fields begin in it, and what the index says besides; notes its specs and decoded values."""
    encoded = {name: one.encode(sample[name]) for name, one in codec.items()}
    values.append({})
    columns = {}
    for name, one in codec.items():
        spec, features = one.spec(kinds[name], sample[name]), encoded[name]
        before = specs.get(name, spec)
        shape = tuple(a if a == b else None for a, b in zip(spec.shape, before.shape, strict=True))
        specs[name] = FieldSpec(spec.kind, shape, spec.dtype)
        shape = tuple(features["/shape"]) if "/shape" in features else None
        values[-1][name] = one.decode(features[""], spec, shape)
        if kinds[name] == "label" and spec.shape == ():
            columns.setdefault("label", sample[name])
        if kinds[name] in RASTER_KINDS and "height" not in columns:
            columns["height"], columns["width"] = spec.shape[:2]
    payload, spans = records.encode({name + suffix: one for name in codec for suffix, one in encoded[name].items()})
    columns |= {f"{name}_size": spans[name][1] for name in codec}
    return payload, {f"{name}_offset": spans[name][0] for name in codec}, columns


@pytest.fixture
def make_dataset(tmp_path):
    """`write_dataset` into the folder of this test."""

    def make(name="made", **options):
        return write_dataset(tmp_path / name, **options)

    return make


@pytest.fixture
def indexed(tmp_path):
    """A folder of TFRecords of another tool, 4 training and 2 validation records, with an index."""
    pixels = np.random.default_rng(21).integers(0, 256, (12, 16, 3), np.uint8)
    (tmp_path / "indexed").mkdir()
    for split, count in (("train", 4), ("val", 2)):
        examples = [
            {
                "picture": cv2.imencode(".png" if number % 2 else ".jpg", pixels + np.uint8(number))[1].tobytes(),
                "label": np.array([number % 2]), "ragged": np.arange(number % 3, dtype=np.float32) / 4,
                "texts": [b"t%d" % n for n in range(number)],
            }
            for number in range(count)
        ]  # fmt: skip
        path = tmp_path / "indexed" / f"{split}-00000.tfrecord"
        path.write_bytes(b"".join(records.frame(records.encode(example)[0]) for example in examples))
        index_tfrecords(path, split, workers=0)
    return path.parent


@pytest.fixture(scope="session")
def photos(tmp_path_factory):
    """50 training samples of 3 variants in 3 shards and 11 validation samples, with fields of every kind. Tests must not
    change it."""
    return write_dataset(tmp_path_factory.mktemp("photos"), samples={"train": 50, "val": 11}, variants=3, shards=3)


@pytest.fixture(scope="module")
def _s3_server():
    for package in ("obstore", "moto"):
        pytest.importorskip(package)
    with s3_server() as server:
        yield server


@pytest.fixture
def s3(_s3_server, monkeypatch):
    """An S3 server on loopback after a proxy, with the environment variables that lead to it. It is started once per module."""
    _s3_server.proxy.reset()
    for name, value in _s3_server.environment.items():
        monkeypatch.setenv(name, value)
    return _s3_server


@pytest.fixture
def quick(monkeypatch):
    """Clients of object stores that wait for moments before they repeat a request."""
    monkeypatch.setattr(objects, "FIRST_BACKOFF_S", 0.01)
    objects._connected.cache_clear()
    yield
    objects._connected.cache_clear()


@pytest.fixture
def any_age(monkeypatch):
    """`clean` removes objects at a store at once."""
    monkeypatch.setattr(cleaning, "AGE_S", -60.0)
