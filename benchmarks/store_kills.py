"""Builds into an S3 server that are killed at random moments until they are complete; the bytes must be those of a local build.

Run: python benchmarks/store_kills.py [--kills 30] [--parts N] [--seed 0] [--json FILE]

moto's server and the tests' proxy run on loopback. Each round builds 64 images with 2 workers into a new URL and kills the whole
process group after a random number of requests, again and again, until a build ends by itself; in every second round the next run
continues as another machine would, by waiting for the dead build's heartbeat (shortened to 2 s). Requests are throttled and
reset at random meanwhile. With --parts, a round builds that many parts in a random order, each of them killed in the same way,
and finishes. Counted: kills, rounds, how many objects were written in vain, and what `tfprep clean` removed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.storage.server import S3, s3_server

IMAGES = 64
RECIPE = """
from tfprep import Recipe, augment, codecs, sources
RECIPE = Recipe(
    name="kills", source=sources.Folder("*.png"), geometry=[augment.Flip(p=0.5)], variants={"train": 2},
    store={"image": codecs.Jpeg(90)}, shards={"train": 12}, seed=1,
)
"""
BUILD = """
import sys
from tfprep.builder import BuildOptions, build, build_part, finish_build, store_lock
recipe, out, data, machine, part, parts = sys.argv[1:]
store_lock.DEAD_S, store_lock.HEARTBEAT_S, store_lock._POLL_S = 2.0, 0.4, 0.1
if machine:
    store_lock._machine = lambda: machine
options = BuildOptions(workers=2)
if part.isdigit():
    build_part(recipe, out, data, part=int(part), parts=int(parts), options=options)
else:
    {"finish": finish_build, "all": build}[part](recipe, out, data, options=options)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=30, help="Kills in all")
    parser.add_argument("--parts", type=int, default=0, help="Build in this many parts; 0: at once")
    parser.add_argument("--seed", type=int, default=0, help="Seed of the moments")
    parser.add_argument("--json", type=Path, metavar="FILE", help="File for the results")
    options = parser.parse_args()
    from tfprep.storage import objects

    rng = random.Random(options.seed)
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as name, s3_server() as s3:
        os.environ.update(s3.environment)
        objects.RETRY_S = 900.0  # of this process, which compares; the machine may stop it for minutes
        folder = Path(name)
        _prepare(folder)
        subprocess.run(_command(folder, str(folder / "local"), ""), check=True)
        expected = _digests(str(folder / "local"))
        while counts["kills"] < options.kills:
            _round(folder, s3, rng, counts, options, expected)
            print(dict(counts), flush=True)
    if options.json:
        options.json.write_text(json.dumps(counts, indent=1))
    sys.exit(counts["other bytes"] + counts["failed builds"] + counts["faults that verify found"] > 0)


def _prepare(folder: Path) -> None:
    import numpy as np
    from PIL import Image

    (folder / "raw").mkdir()
    draws = np.random.default_rng(0)
    for number in range(IMAGES):
        Image.fromarray(draws.integers(0, 256, (96, 96, 3)).astype(np.uint8)).save(folder / f"raw/{number:03d}.png")
    (folder / "recipe.py").write_text(RECIPE)


def _command(folder: Path, out: str, machine: str, part: str = "all", parts: int = 0) -> list[str]:
    recipe, raw = str(folder / "recipe.py"), str(folder / "raw")
    return [sys.executable, "-c", BUILD, recipe, out, raw, machine, part, str(parts)]


def _round(
    folder: Path, s3: S3, rng: random.Random, counts: Counter[str], options: Any, expected: dict[str, str]
) -> None:
    from tfprep.builder.clean import clean
    from tfprep.dataset.verify import verify

    url = s3.new_url()
    counts["rounds"] += 1
    start = len(s3.proxy.requests)
    order = [*map(str, rng.sample(range(options.parts), options.parts)), "finish"] if options.parts else ["all"]
    for part in order:
        _until_it_ends(folder, url, part, s3, rng, counts, options)
    writes = Counter(one.path for one in s3.proxy.requests[start:] if one.method == "PUT" and not one.fault)
    counts["shard files written again"] += sum(n - 1 for path, n in writes.items() if ".tfrecord-" in path)
    counts["other bytes"] += _digests(url) != expected
    faults = list(verify(url))
    counts["faults that verify found"] += len(faults)
    print(*faults, sep="\n", end="" if not faults else "\n", flush=True)
    counts["objects cleaned"] += len(clean(url, remove=True).unreferenced)


def _until_it_ends(
    folder: Path, url: str, part: str, s3: S3, rng: random.Random, counts: Counter[str], options: Any
) -> None:
    """Start a build or a part again and again, and kill it after a random number of requests; the sixth attempt is left alone."""
    attempt = 0
    while True:
        attempt += 1
        s3.proxy.write_faults.extend(rng.choice(["503", "reset", "lost", *[""] * 9]) for _ in range(20))
        machine = f"machine-{attempt}" if counts["rounds"] % 2 == 0 else ""
        process = subprocess.Popen(_command(folder, url, machine, part, options.parts), start_new_session=True)
        begin, after = len(s3.proxy.requests), rng.randrange(1, 110 // max(options.parts, 1) + 20)
        while process.poll() is None and (
            counts["kills"] >= options.kills or attempt > 5 or len(s3.proxy.requests) < begin + after
        ):
            time.sleep(0.01)
        if process.poll() is not None:
            counts["failed builds"] += process.returncode != 0
            return
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        counts["kills"] += 1


def _digests(place: str) -> dict[str, str]:
    from tfprep.dataset import open_dataset
    from tfprep.storage.store import open_store

    data, store = open_dataset(place), open_store(place)
    names = {f"{split}/{variant}/{shard}": file.name for split, info in data.splits.items()
             for variant, files in enumerate(info.files) for shard, file in enumerate(files)}  # fmt: skip
    names["index"] = data.manifest.index
    return {key: hashlib.sha256(store.read(name)).hexdigest() for key, name in names.items()}


if __name__ == "__main__":
    main()
