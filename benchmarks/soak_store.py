"""Kill commands that write a dataset at an S3 server at random requests.

    python benchmarks/soak.py store --count 200 --seed 0 --json FILE [--kinds build clean]

Each command runs whole once. Then its process ends, as by SIGKILL, before or after a random request. A reader sees the dataset of
before or after the command, whole; the same command, started again, makes the same dataset; `clean` then leaves the same objects.
An index and an export are made of the objects in a local folder.
"""

from __future__ import annotations

import itertools
import os
import pickle
import random
import re
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import harness
import loader_data

import tfprep.builder.publish
import tfprep.dataset.clean as cleaning
from tests.storage.server import s3_server
from tests.test_kills import RECIPE
from tfprep.builder import BuildOptions, build
from tfprep.dataset import index_tfrecords, open_dataset
from tfprep.dataset.manifest import digest_of
from tfprep.dataset.verify import verify
from tfprep.errors import DatasetError
from tfprep.export import export
from tfprep.model_fields import add_fields, remove_fields
from tfprep.storage.store import Store, open_store

SOURCE = 'sources.Table("samples.csv", "{number}.png", label="label", key="number")'
FIELDS, KILLED = ["build", "fields add"], 9
BEFORE = {"build": [], "changed": FIELDS, "reshard": ["build"], "replace": FIELDS, "fields add": ["build"],
          "fields remove": FIELDS, "clean": ["build", "changed"], "index": ["build"], "export": FIELDS}  # fmt: skip
"""The commands, with those that run before each."""


def command(site: Path, url: str, name: str) -> None:
    """Run a command; one whose last step was done may say so."""
    if name == "fields add":
        add_fields(url, site / "recipe.py")
    elif name == "fields remove":
        try:
            remove_fields(url, "score")
        except DatasetError as error:
            if "has no added fields" not in str(error):
                raise
    elif name == "clean":
        cleaning.clean(url, remove=True)
    elif name == "index":
        index_tfrecords(f"{url}/shards/*-of-?????", "train", local(site, url), workers=0)
    elif name == "export":
        export(open_dataset(url), local(site, url), "webdataset")
    else:
        recipe = site / {"build": "recipe.py"}.get(name, f"{name}.py")
        kind = {name: True} if name in ("reshard", "replace") else {}
        build(recipe, url, site / "raw", options=BuildOptions(workers=0, **kind))


def local(site: Path, url: str) -> Path:
    """Return the folder here of the index or export of the objects at a URL."""
    return site / "local" / url.rpartition("/")[2] / "out"


def run(options: Any) -> None:
    if options.part:
        kill(Path(options.part[0]), options)
        return
    with tempfile.TemporaryDirectory() as folder, s3_server() as server:  # its threads must not be forked
        words = [sys.executable, *sys.argv, "--part", folder]
        own = {"PYTHONPATH": os.pathsep.join((os.getcwd(), *sys.path))}
        own["AWS_ENDPOINT_URL"] = f"http://127.0.0.1:{server.proxy.upstream}"
        sys.exit(subprocess.run(words, check=False, env={**os.environ, **server.environment, **own}).returncode)


def kill(site: Path, options: Any) -> None:
    warnings.simplefilter("ignore")
    loader_data.raw_files(site / "raw", 8)
    text = RECIPE.replace('sources.Folder("{split}/{label}/*.png")', SOURCE).replace(', "val": 1', "")
    (site / "recipe.py").write_text(text)
    (site / "changed.py").write_text(text.replace("Png()", "Jpeg(90)"))
    (site / "replace.py").write_text(text.replace('"tiny"', '"other"'))
    (site / "reshard.py").write_text(
        text.replace('{"train": 2}, shards={"train": 2}', '{"train": 2}, shards={"train": 3}')
    )
    tfprep.builder.publish.write_report = lambda *arguments: ""
    cleaning.AGE_S = -60.0
    chance, before, kills = random.Random(options.seed), site / "before", {}
    for name in options.kinds or BEFORE:
        place = f"s3://bucket/{name.replace(' ', '-')}"
        for step in BEFORE[name]:
            forked(command, site, place, step)
        before.write_bytes(forked(objects, place))
        old, steps = forked(seen, site, place), int(forked(command, site, place, name))
        new, left = forked(seen, site, place), forked(what_is_left, site, place)
        for number in range(options.count // len(BEFORE)):
            url, where = f"{place}-{number}", f"{name}, kill {number}"
            forked(restore, url, before)
            forked(command, site, url, name, die_at=chance.randint(1, steps), after=chance.random() < 0.5)
            assert forked(seen, site, url) in (old, new), f"{where}: neither version"
            forked(command, site, url, name)
            found = forked(seen, site, url), forked(what_is_left, site, url)
            assert found == (new, left), f"{where}: something else"
            kills[name] = number + 1
        print(name, steps, "requests,", kills.get(name, 0), "kills", flush=True)
    harness.finish(options, {"kills": kills, "seed": options.seed})


def seen(site: Path, url: str) -> bytes:
    """Return what a reader sees of the dataset and of what is made of it here, every byte compared with its digest."""
    parts: list[Any] = []
    for place in (url, local(site, url)):
        try:
            manifest = open_dataset(place).manifest
        except DatasetError:
            continue
        assert not list(verify(place)), list(verify(place))
        groups = {name: entry.sha256 for name, entry in manifest.groups.items()}
        parts += [manifest.splits, manifest.files, manifest.recipe, groups]
    parts += [(path.name, digest_of(path)) for path in sorted(local(site, url).glob("*.tar"))]
    return repr(parts).encode()


def what_is_left(site: Path, url: str) -> bytes:
    """Return the names of the objects after `clean`, and of files here; numbers of versions and digests of URLs do not count."""
    cleaning.clean(url, remove=True)
    names = [info.name for info in open_store(url).list()]
    names += [str(path.relative_to(local(site, url).parent)) for path in local(site, url).parent.rglob("*")]
    return repr(sorted(re.sub(r"\bv[0-9]{4}\b|[0-9a-f]{24}", "", name) for name in names)).encode()


def objects(url: str) -> bytes:
    store = open_store(url)
    return pickle.dumps({info.name: bytes(store.read(info.name)) for info in store.list()})


def restore(url: str, before: Path) -> None:
    for name, content in pickle.loads(before.read_bytes()).items():
        open_store(url).write(name, content)


def forked(function: Callable[..., bytes | None], *given: Any, die_at: int = 0, after: bool = False) -> bytes:
    """Return what a function returns in a fork of this process, or the number of requests; the fork may die at one."""
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
            result = function(*given)
            with os.fdopen(writing, "wb") as file:
                file.write(str(next(count) - 1).encode() if result is None else result)
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    os.close(writing)
    with os.fdopen(reading, "rb") as file:
        content = file.read()
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert status in (0, KILLED if die_at else 0), f"status {status}"
    return content
