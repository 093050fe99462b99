"""Damaged and malicious dataset folders: mutated manifests, indices, shards and other files are opened, verified and read.

    python benchmarks/fuzz.py datasets --count 2000 --seed 0 --json fuzz_datasets.json

Each folder is a copy of one small dataset with one to three mutations. The manifests of half of the folders are sealed again, so
that the checksums agree and only the rules of the format can detect the mutation. Every folder is opened, verified and read for
one epoch by the NumPy loader. The run counts errors that are not tfprep's, folders that take longer than `TIMEOUT_S` (a hang),
and files outside the folder that were opened, as reported by Python's audit hook. The address space is limited to 3 GB
above that of the process at the start.
"""

from __future__ import annotations

import copy
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import harness
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import tfprep
from tests.photos import write_photos
from tfprep import Recipe, codecs, sources
from tfprep.builder import BuildOptions, build
from tfprep.dataset.manifest import digest_of, seal
from tfprep.dataset.verify import verify
from tfprep.errors import TfprepError
from tfprep.records import masked_crc

TIMEOUT_S = 30
VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 1, 2**31, 2**40, 2**62, 2**70, -(2**63), 0.5, 1e308, float("inf"), [], {}, [[]], {"": None}, [1] * 50,
    "", "x", "a\0b", "../../evil", "/etc/passwd", "\x1b[31m", "\ud800", "x" * 5000, "uint8", "object", "train", "index.parquet",
)  # fmt: skip


def make_dataset(folder: Path) -> Path:
    """Builds a dataset of 24 small images of two classes, in two splits, with labels."""
    places = [f"{split}/{label}" for split in ("train", "train", "train", "val") for label in ("cat", "dog")]
    write_photos(folder / "raw", 24, labels=places, noise=(12, 16))
    recipe = Recipe(
        name="fuzz",
        source=sources.Folder("{split}/{label}/**"),
        store={"image": codecs.Png(), "label": codecs.Scalar()},
        variants={"train": 2},
        shards={"train": 2},
    )
    build(recipe, folder / "whole", folder / "raw", options=BuildOptions(workers=0))
    shutil.copytree(
        tfprep.open(folder / "whole").path, folder / "version"
    )  # a folder without the pointer and older versions
    return folder / "version"


# --- mutations ------------------------------------------------------------------------------------------------------


def entries(node: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every entry of a JSON document: names and positions from the top."""
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for name, inner in items:
        yield (*above, name)
        yield from entries(inner, (*above, name))


def change_manifest(folder: Path, draws: np.random.Generator) -> None:
    """Replaces, removes or renames one entry, and seals the manifest again."""
    path = folder / "manifest.json"
    document = json.loads(path.read_bytes())
    document.pop("sha256", None)
    paths = list(entries(document))
    *above, last = paths[draws.integers(len(paths))]
    node = document
    for name in above:
        node = node[name]
    action = draws.integers(4)
    if action == 0 and isinstance(node, dict):
        del node[last]
    elif action == 1 and isinstance(node, dict):
        name = VALUES[draws.integers(len(VALUES))]
        node[name if isinstance(name, str) else "other"] = node.pop(last)
    elif action == 2 and isinstance(node, list):
        node.append(copy.deepcopy(node[last]))
    else:
        node[last] = VALUES[draws.integers(len(VALUES))]
    path.write_text(seal(document), encoding="utf-8", errors="surrogatepass")


def change_index(folder: Path, draws: np.random.Generator) -> None:
    """Changes a value, removes or retypes a column, or reorders rows."""
    path = folder / "index.parquet"
    table = pq.read_table(path)
    column = int(draws.integers(table.num_columns))
    field, values = table.schema.field(column), table.column(column).to_pylist()
    action = draws.integers(5)
    if action == 0:
        table = table.remove_column(column)
    elif action == 1:
        table = table.take(pa.array(draws.permutation(len(table))))
    elif action == 2:
        table = table.set_column(column, field.name, pa.array([str(value) for value in values]))
    elif action == 3:
        values[draws.integers(len(values))] = None
        table = table.set_column(column, field.name, pa.array(values, field.type))
    elif pa.types.is_integer(field.type):
        limits = np.iinfo(field.type.to_pandas_dtype())
        choices = [limits.min, limits.max, 0, 1, limits.max // 2]
        values[draws.integers(len(values))] = int(choices[draws.integers(len(choices))])
        table = table.set_column(column, field.name, pa.array(values, field.type))
    pq.write_table(table, path, row_group_size=int(draws.choice([3, 6, 1000])))


def change_bytes(folder: Path, draws: np.random.Generator) -> None:
    """Damages the bytes of any file."""
    path = any_file(folder, draws)
    path.write_bytes(harness.damaged(path.read_bytes(), draws))


def change_record(folder: Path, draws: np.random.Generator) -> None:
    """Changes a record's payload and corrects its checksum in the shard and in the index."""
    path = folder / "index.parquet"
    table = pq.read_table(path)
    row = int(draws.integers(len(table)))
    entry = {name: table.column(name)[row].as_py() for name in ("split", "variant", "shard", "offset", "size")}
    document = json.loads((folder / "manifest.json").read_bytes())
    try:
        shard = folder / document["splits"][entry["split"]]["files"][entry["variant"]][entry["shard"]]["name"]
        content = bytearray(shard.read_bytes())
        start, stop = entry["offset"] + 12, entry["offset"] + entry["size"] - 4
        for position in draws.integers(start, stop, draws.integers(1, 6)):
            content[position] = draws.integers(256)
    except Exception:  # an earlier mutation left nothing to change
        return
    crc = masked_crc(bytes(content[start:stop]))
    content[stop : stop + 4] = crc.to_bytes(4, "little")
    shard.write_bytes(content)
    crcs = table.column("payload_crc").to_pylist()
    crcs[row] = crc
    field = table.schema.get_field_index("payload_crc")
    pq.write_table(table.set_column(field, "payload_crc", pa.array(crcs, pa.uint32())), path, row_group_size=6)


def change_kind(folder: Path, draws: np.random.Generator) -> None:
    """Replaces a file by a FIFO, a folder, a link or nothing."""
    path = any_file(folder, draws)
    path.unlink()
    action = draws.integers(6)
    if action == 0:
        os.mkfifo(path)
    elif action == 1:
        path.mkdir()
    elif action == 2:
        path.symlink_to("/etc/passwd")
    elif action == 3:
        path.symlink_to(path)
    elif action == 4:
        path.symlink_to("/dev/zero")


def any_file(folder: Path, draws: np.random.Generator) -> Path:
    files = sorted(path for path in folder.iterdir() if path.is_file() and not path.is_symlink())
    return files[draws.integers(len(files))]


MUTATIONS: tuple[Callable[[Path, np.random.Generator], None], ...] = (
    change_manifest, change_manifest, change_index, change_index, change_bytes, change_record, change_kind,
)  # fmt: skip


def mutate(folder: Path, draws: np.random.Generator) -> str:
    names = []
    for _ in range(draws.integers(1, 4)):
        change = MUTATIONS[draws.integers(len(MUTATIONS))]
        if not are_regular(folder):
            return "+".join(names)  # this program would hang where tfprep must not
        try:
            change(folder, draws)
            names.append(change.__name__)
        except (OSError, ValueError, KeyError, TypeError, pa.ArrowException):
            pass  # what an earlier mutation destroyed cannot be mutated again
    if draws.integers(2) and are_regular(folder):
        reseal(folder)
    return "+".join(names)


def are_regular(folder: Path) -> bool:
    paths = [folder / "manifest.json", folder / "index.parquet"]
    return all(path.is_file() and not path.is_symlink() for path in paths)


def reseal(folder: Path) -> None:
    """Writes the files' current sizes and checksums, and the manifest's own checksum, to the manifest."""
    path = folder / "manifest.json"
    try:
        document = json.loads(path.read_bytes())
        document.pop("sha256", None)
        for name in document["files"]:
            document["files"][name] = asdict(digest_of(folder / name))
        for split in document["splits"].values():
            for file in (file for variant in split["files"] for file in variant):
                digest = digest_of(folder / file["name"])
                file.update(bytes=digest.bytes, sha256=digest.sha256)
        path.write_text(seal(document), encoding="utf-8", errors="surrogatepass")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, TfprepError):
        pass  # the manifest is too damaged to be sealed


# --- the run --------------------------------------------------------------------------------------------------------


def read_all(folder: Path) -> str:
    """Opens, verifies and reads the dataset; returns "read", "faults" or the name of tfprep's error."""
    outcome = "read"
    try:
        faults = list(verify(folder))
        outcome = "faults" if faults else "read"
    except TfprepError as error:
        outcome = type(error).__name__
    try:
        data = tfprep.open(folder)
        for split in data.splits:
            loader = data.numpy_loader(split, 4, training=False, timeout_s=20)
            for _ in loader:
                pass
            loader.close()
    except TfprepError as error:
        outcome = type(error).__name__
    return outcome


def run(options: Any) -> None:
    outside: list[str] = []

    def read_inside(folder: Path) -> str:
        outside.clear()
        outcome = read_all(folder)
        return f"read outside the folder: {outside[0]}" if outside else outcome

    def cases(root: Path, whole: Path) -> Iterator[tuple[str, Callable[[], str], float]]:
        draws, folder = np.random.default_rng(options.seed), root / "mutated"
        for number in range(options.count):
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(whole, folder, ignore=shutil.ignore_patterns(".tfprep", "report.html"))
            mutations = mutate(folder, draws)
            yield f"{number} {mutations}", partial(read_inside, folder), TIMEOUT_S

    with tempfile.TemporaryDirectory() as name:
        root = Path(name).resolve()
        whole = make_dataset(root)
        assert read_all(whole) == "read"
        watch_opened_files(root / "mutated", outside)
        harness.limit_memory(3)
        bad = ("not tfprep's", "hang", "read outside")
        harness.run_cases(options, cases(root, whole), allowed=lambda outcome: not outcome.startswith(bad))


def watch_opened_files(folder: Path, outside: list[str]) -> None:
    """Notes the files outside the folder that the mutations point to, if Python opens them."""
    ours = str(folder.parent)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(arguments[0], str | os.PathLike):
            path = os.path.realpath(arguments[0])  # mutations name /etc/passwd, /dev/zero and ../../evil
            if path.startswith(("/etc/passwd", "/dev/zero")) or (path.startswith(ours) and "evil" in path):
                outside.append(path)

    sys.addaudithook(hook)
