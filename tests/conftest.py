"""Datasets for tests of readers, written directly with `tfprep.records` and `tfprep.dataset`, without a recipe or a build."""

import contextlib
import importlib.util
import json
import signal
import threading
import traceback
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, settings

from tests.storage.server import S3, s3_server
from tfprep import codecs, records
from tfprep.dataset import FieldInfo, FileInfo, Manifest, SplitInfo, Statistics, read_manifest
from tfprep.dataset.index import schema, write_index
from tfprep.dataset.locations import write_locations
from tfprep.dataset.manifest import digest_of, seal
from tfprep.dataset.names import INDEX, LOCATIONS, shard_name
from tfprep.errors import DatasetError, MissingDependencyError
from tfprep.fields import FieldSpec

# A shell that starts a script in the background makes it ignore SIGINT, which processes inherit. Tests of Ctrl-C need
# the default handler in the processes that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("slow days", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("slow days")

SIZE = (24, 32)

ABSENT = [name for name in ("tensorflow", "keras") if importlib.util.find_spec(name) is None]
"""What every environment of the tests has, but one of a Python for which TensorFlow has no release."""


@contextlib.contextmanager
def skipped_where_absent() -> Iterator[None]:
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


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None]:
    if ABSENT and any(folder in item.path.parents for folder in ABOUT_TENSORFLOW):
        pytest.skip(f"needs {' and '.join(ABSENT)}")
    with skipped_where_absent():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None]:
    with skipped_where_absent():
        return (yield)


@pytest.fixture
def reading_threads():
    """A function that lists the reading threads that the test has started: loaders of earlier tests may still be alive."""
    before = set(threading.enumerate())
    return lambda: [
        thread for thread in threading.enumerate() if thread not in before and thread.name.startswith("tfprep-read-")
    ]


def smooth(rng: np.random.Generator, height: int, width: int, channels: int) -> np.ndarray:
    """An image that JPEG changes little: blurred noise, uint8 [H, W, C]."""
    noise = rng.integers(0, 256, (height, width, channels)).astype(np.float32)
    return cv2.GaussianBlur(noise, (0, 0), 2).reshape(height, width, channels).astype(np.uint8)


def photo_fields(rng: np.random.Generator, number: int) -> dict[str, Any]:
    """One sample: an image whose first pixels encode its number (see `number_of`), and a field of every other kind."""
    image = smooth(rng, *SIZE, 3)
    return {
        "image": image,
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


CODECS: Mapping[str, Any] = {
    "image": codecs.Jpeg(95),
    "lossless": codecs.Png(),
    "mask": codecs.Png(),
    "depth": codecs.Png(),
    "clicks": codecs.Raw(),
    "field": codecs.Raw(),
    "label": codecs.Scalar(),
    "weight": codecs.Scalar(),
    "pose": codecs.Scalar(),
    "caption": codecs.Text(),
}
KINDS = {
    "image": "image",
    "lossless": "image",
    "mask": "mask",
    "depth": "map",
    "clicks": "map",
    "field": "map",
    "label": "label",
    "weight": "scalar",
    "pose": "scalar",
    "caption": "text",
}


@dataclass
class Made:
    """A dataset on disk and its decoded records: `values[split][variant][row]` by field."""

    path: Path
    values: dict[str, list[list[dict[str, Any]]]] = field(default_factory=dict)
    keys: dict[str, list[str]] = field(default_factory=dict)

    def change_index(self, row: int, **values: Any) -> None:
        """Writes these values to a row of `index.parquet`, counted over all rows, and seals the dataset again."""
        table = pq.read_table(self.path / INDEX)
        for name, value in values.items():
            column = table.column(name).to_pylist()
            column[row] = value
            place = table.schema.get_field_index(name)
            table = table.set_column(place, table.schema.field(name), pa.array(column, table.schema.field(name).type))
        splits, variants = (table.column(name).to_pylist() for name in ("split", "variant"))
        groups = dict.fromkeys(zip(splits, variants, strict=True))
        masks = [pc.and_(pc.equal(table["split"], split), pc.equal(table["variant"], v)) for split, v in groups]
        write_index(self.path / INDEX, table.schema, [table.filter(mask) for mask in masks])
        with contextlib.suppress(DatasetError):  # what no location can be is an error of the index alone
            manifest = write_locations(self.path / LOCATIONS, self.path / INDEX, read_manifest(self.path))
            crcs = {name: info.rows_crc32c for name, info in manifest.splits.items()}
            self.seal(lambda m: [m["splits"][name].update(rows_crc32c=crc) for name, crc in crcs.items()])
            return
        self.seal()

    def seal(self, change: Callable[[Any], Any] = lambda document: None) -> None:
        """Changes `tfprep.json` as a whole, and updates the digests of the files and its own checksum."""
        path = self.path / "tfprep.json"
        document = json.loads(path.read_bytes())
        del document["sha256"]
        change(document)
        document["files"] = {name: asdict(digest_of(self.path / name)) for name in (INDEX, LOCATIONS)}
        path.write_text(seal(document))


def write_dataset(
    path: Path,
    *,
    samples: Mapping[str, int],
    variants: int = 1,
    shards: int = 2,
    fields: Sequence[str] = tuple(CODECS),
    make: Callable[[np.random.Generator, int], dict[str, Any]] = photo_fields,
    codec: Mapping[str, Any] = CODECS,
    kinds: Mapping[str, Any] = KINDS,
    seed: int = 0,
) -> Made:
    """Writes a dataset with the given number of samples per split. Variant v of sample n is `make` of number n + 1000 v."""
    path.mkdir(parents=True, exist_ok=True)
    made = Made(path)
    specs: dict[str, FieldSpec] = {}
    splits, tables = {}, []
    for split, count in samples.items():
        made.keys[split] = [f"{split}/{number:04d}" for number in range(count)]
        made.values[split] = []
        files: list[list[FileInfo]] = []
        for variant in range(variants if split == "train" else 1):
            rng = np.random.default_rng([seed, variant, count])
            rows = [
                {name: value for name, value in make(rng, number + 1000 * variant).items() if name in fields}
                for number in range(count)
            ]
            made.values[split].append([_stored(row, codec, kinds, specs) for row in rows])
            files.append([])
            for shard, part in enumerate(np.array_split(np.arange(count), shards)):
                info, table = _write_shard(
                    path, split, variant, shard, shards, part, rows, made.keys[split], fields, codec, kinds
                )
                files[-1].append(info)
                tables.append(table)
        splits[split] = SplitInfo(count, tuple(tuple(part) for part in files))
    write_index(path / INDEX, tables[0].schema, tables)
    manifest = Manifest(
        name="made",
        fingerprint="0" * 64,
        recipe={},
        fields={name: FieldInfo(specs[name], codec[name].describe()) for name in fields},
        splits=splits,
        classes={"label": ("cat", "dog", "owl")} if "label" in fields else {},
        statistics={"image": Statistics((120.0, 128.0, 130.0), (10.0, 11.0, 12.0))} if "image" in fields else {},
    )
    manifest = write_locations(path / LOCATIONS, path / INDEX, manifest)
    (path / "tfprep.json").write_text(manifest.to_json())
    made.seal()
    return made


def _stored(
    row: Mapping[str, Any], codec: Mapping[str, Any], kinds: Mapping[str, Any], specs: dict[str, FieldSpec]
) -> dict[str, Any]:
    """The decoded values of a row, by the codec's own decode; notes the specs of the fields."""
    stored = {}
    for name, value in row.items():
        spec = codec[name].spec(kinds[name], value)
        before = specs.get(name, spec)
        shape = tuple(a if a == b else None for a, b in zip(spec.shape, before.shape, strict=True))
        specs[name] = FieldSpec(spec.kind, shape, spec.dtype)
        features = codec[name].encode(value)
        shape = tuple(features["/shape"]) if "/shape" in features else None
        stored[name] = codec[name].decode(features[""], spec, shape)
    return stored


def _write_shard(
    path: Path,
    split: str,
    variant: int,
    shard: int,
    shards: int,
    part: Any,
    rows: Sequence[Mapping[str, Any]],
    keys: Sequence[str],
    fields: Sequence[str],
    codec: Mapping[str, Any],
    kinds: Mapping[str, Any],
) -> tuple[FileInfo, pa.Table]:
    name = shard_name("made", split, variant, shard, shards)
    raster = next((field for field in fields if kinds[field] in ("image", "mask", "map")), None)
    label = next((field for field in fields if kinds[field] == "label" and np.ndim(rows[0][field]) == 0), None)
    columns: dict[str, list[Any]] = {}
    with (path / name).open("wb") as file:
        writer = records.RecordWriter(file)
        for number in part:
            features = {n + suffix: f for n in fields for suffix, f in codec[n].encode(rows[number][n]).items()}
            payload, spans = records.encode(features)
            frame = writer.write(payload)
            spec = codec[raster].spec(kinds[raster], rows[number][raster]) if raster else None
            size = spec.shape[:2] if spec else (None, None)
            entry = {
                "key": keys[number],
                "split": split,
                "variant": variant,
                "shard": shard,
                "offset": frame.offset,
                "size": frame.size,
                "payload_crc": writer.payload_crcs[-1],
                "label": rows[number][label] if label else None,
                "height": size[0],
                "width": size[1],
                "source_digest": b"\0" * 16,
            }
            for n in fields:
                entry[f"{n}_offset"] = frame.offset + 12 + spans[n].offset
                entry[f"{n}_size"] = spans[n].size
            for column, value in entry.items():
                columns.setdefault(column, []).append(value)
        size_bytes = sum(frame.size for frame in writer.frames)
    wanted = schema(list(fields), pa.int64() if label else None)
    table = pa.table({c.name: pa.array(columns.get(c.name, [None] * len(part)), c.type) for c in wanted}, schema=wanted)
    return FileInfo(name, len(part), size_bytes, "0" * 64), table


@pytest.fixture
def make_dataset(tmp_path: Path) -> Callable[..., Made]:
    """`write_dataset` into the folder of this test."""

    def make(name: str = "made", **options: Any) -> Made:
        return write_dataset(tmp_path / name, **options)

    return make


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """50 training samples of 3 variants in 3 shards and 11 validation samples, with fields of every kind. Tests must not
    change it."""
    return write_dataset(tmp_path_factory.mktemp("photos"), samples={"train": 50, "val": 11}, variants=3, shards=3)


@pytest.fixture(scope="module")
def _s3_server() -> Iterator[S3]:
    for package in ("obstore", "moto"):
        pytest.importorskip(package)
    with s3_server() as server:
        yield server


@pytest.fixture
def s3(_s3_server: S3, monkeypatch: pytest.MonkeyPatch) -> S3:
    """An S3 server on loopback behind a proxy, with the environment variables that lead to it. It is started once a module."""
    _s3_server.proxy.reset()
    for name, value in _s3_server.environment.items():
        monkeypatch.setenv(name, value)
    return _s3_server
