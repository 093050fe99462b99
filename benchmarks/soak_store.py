"""Kill commands that write a dataset at an S3 server at random requests.

    python benchmarks/soak.py store --count 200 --seed 0 --json FILE

Each command runs whole once. Then its process ends, as by SIGKILL, before or after a random request. A reader sees the dataset of
before or after the command, whole; the same command, started again, makes the same dataset; `clean` then leaves the same objects.
"""

from __future__ import annotations

import collections
import itertools
import os
import pickle
import random
import re
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import harness
import loader_data

import tfprep.builder.publish
import tfprep.builder.report
import tfprep.builder.shards.shard
import tfprep.dataset.clean as cleaning
from tests.storage.server import s3_server
from tfprep.builder import BuildOptions, build
from tfprep.dataset import open_dataset
from tfprep.dataset.verify import verify
from tfprep.errors import DatasetError
from tfprep.model_fields import add_fields, remove_fields
from tfprep.storage.store import Store, open_store

KILLED = 9
RECIPE = """
import numpy as np
from tfprep import ModelFields, Recipe, augment, codecs, sources


def model():
    return lambda batch: {"score": batch["image"].astype(np.float32).mean(axis=(1, 2))}


FIELDS = ModelFields(model=model, inputs=["image"], store={"score": codecs.Raw("float32")}, batch_size=4)
RECIPE = Recipe(
    name="tiny", source=sources.Table("samples.csv", "{number}.png", label="label", key="number"),
    geometry=[augment.Flip(p=1.0)], variants={"train": 2}, shards={"train": SHARDS},
    store={"image": codecs.Png(), "label": codecs.Scalar()},
)
"""


def run(options: Any) -> None:
    if options.part:
        kill(Path(options.part[0]), options)
        return
    with tempfile.TemporaryDirectory() as folder, s3_server() as server:  # its threads must not be forked
        command = [sys.executable, *sys.argv, "--part", folder]
        path = os.pathsep.join((os.getcwd(), *sys.path))
        sys.exit(
            subprocess.run(
                command, check=False, env={**os.environ, **server.environment, "PYTHONPATH": path}
            ).returncode
        )


def commands(site: Path, url: str) -> dict[str, Callable[[], Any]]:
    def built(recipe: str, **options: Any) -> None:
        build(site / recipe, url, site / "raw", options=BuildOptions(workers=0, **options))

    def removed() -> None:
        try:
            remove_fields(url, "score")
        except DatasetError as error:  # the last step was done
            if "has no added fields" not in str(error):
                raise

    return {
        "build": lambda: built("recipe.py"), "changed": lambda: built("changed.py"),
        "reshard": lambda: built("more.py", reshard=True), "fields add": lambda: add_fields(url, site / "recipe.py"),
        "fields remove": removed, "clean": lambda: cleaning.clean(url, remove=True),
    }  # fmt: skip


BEFORE = {"changed": ["build", "fields add"], "reshard": ["build"], "fields add": ["build"],
          "fields remove": ["build", "fields add"], "clean": ["build", "changed"]}  # fmt: skip


def kill(folder: Path, options: Any) -> None:
    site, chance, kills = folder, random.Random(options.seed), collections.Counter[str]()
    loader_data.raw_files(site / "raw", 8)
    for name, shards, codec in (("recipe", 2, "Png()"), ("changed", 2, "Jpeg(90)"), ("more", 3, "Png()")):
        text = RECIPE.replace("SHARDS", str(shards)).replace("codecs.Png()", f"codecs.{codec}")
        (site / f"{name}.py").write_text(text)
    tfprep.builder.report.write_report = lambda *arguments: ""
    cleaning.AGE_S = -60.0
    names, before = list(commands(site, "")), folder / "before"
    for name in names:
        url = f"s3://bucket/{name.replace(' ', '-')}"
        for step in BEFORE.get(name, []):
            forked(commands(site, url)[step])
        before.write_bytes(forked(lambda url=url: objects(url)))
        old, steps = forked(lambda url=url: seen(url)), int(forked(commands(site, url)[name], counted=True))
        new, left = (forked(lambda url=url, look=look: look(url)) for look in (seen, what_is_left))
        for number in range(options.count // len(names)):
            url = f"s3://bucket/{name.replace(' ', '-')}-{number}"
            forked(lambda url=url: restore(url, before))
            forked(commands(site, url)[name], die_at=chance.randint(1, steps), after=chance.random() < 0.5)
            where = f"{name}, kill {number}"
            assert forked(lambda url=url: seen(url)) in (old, new), f"{where}: neither version"
            forked(commands(site, url)[name])
            assert forked(lambda url=url: seen(url)) == new, f"{where}: another dataset"
            assert forked(lambda url=url: what_is_left(url)) == left, f"{where}: a leftover"
            kills[name] += 1
    harness.finish(options, {"kills": dict(kills), "seed": options.seed})


def seen(url: str) -> bytes:
    """Return what a reader sees of the dataset, every byte compared with its digest; nothing where there is none."""
    try:
        manifest = open_dataset(url).manifest
    except DatasetError:
        return b""
    assert not list(verify(url)), list(verify(url))
    groups = {name: entry.sha256 for name, entry in manifest.groups.items()}
    return repr((manifest.splits, manifest.files, manifest.recipe, groups)).encode()


def what_is_left(url: str) -> bytes:
    """Return the names of the objects after `clean`; numbers of versions do not count."""
    cleaning.clean(url, remove=True)
    return repr(sorted(re.sub(r"^v[0-9]+/", "v/", info.name) for info in open_store(url).list())).encode()


def objects(url: str) -> bytes:
    store = open_store(url)
    return pickle.dumps({info.name: bytes(store.read(info.name)) for info in store.list()})


def restore(url: str, contents: Path) -> None:
    for name, content in pickle.loads(contents.read_bytes()).items():
        open_store(url).write(name, content)


def forked(function: Callable[[], Any], *, die_at: int = 0, after: bool = False, counted: bool = False) -> bytes:
    """Return what a function returns in a fork of this process, which dies at a request, or the number of requests."""
    reading, writing = os.pipe()
    if not (pid := os.fork()):
        real, count = Store._request, itertools.count(1)

        def request(self: Store, name: str, ask: Callable[[], Any], *arguments: Any, **options: Any) -> Any:
            is_last = next(count) == die_at
            if is_last and not after:
                os._exit(KILLED)
            answer = real(self, name, ask, *arguments, **options)
            return os._exit(KILLED) if is_last else answer

        Store._request = request  # type: ignore[method-assign]
        try:
            result = function()
            os.write(
                writing, str(next(count) - 1).encode() if counted else result if isinstance(result, bytes) else b""
            )
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    os.close(writing)
    with os.fdopen(reading, "rb") as file:
        content = file.read()
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert status == (KILLED if die_at else 0) or (die_at and not status), f"status {status}"
    return content
