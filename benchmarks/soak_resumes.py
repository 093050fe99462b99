"""Interrupt runs at random steps and continue them elsewhere: every batch that is left equals that of the uninterrupted run.

    python benchmarks/soak.py resumes [--kinds numpy tensorflow graph jax torch stateful] [--count 300] [--json resumes.json]

Each round takes one of `CASES`, reads a random number of batches, saves the state as JSON, and continues in a new loader with
another number of threads or worker processes, or on several hosts, up to the end of the last epoch. The keys and pixels of every
batch are compared with those of `numpy_loader` in one thread without a break. "tensorflow" reads `loader` in eager code, "graph"
through `Dataset.map`, where the state is `state_dict(step)`; "stateful" is torchdata's `StatefulDataLoader` over `random_access`
and `batch_sampler` with 0 and with 2 workers. Frameworks that are not installed are named. The exit status is 1 after a
difference.
"""

from __future__ import annotations

import collections
import hashlib
import importlib.util
import inspect
import itertools
import json
import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import harness
import numpy as np

import tfprep
from tests.photos import write_photos
from tfprep import Recipe, augment, codecs, sources
from tfprep.load import Buckets

BATCH, EPOCHS = 8, 3
SHAPES = ((224, 150), (160, 160), (140, 224), (224, 200))
SQUARE = [augment.Resize(32, 32)]
CASES: dict[str, dict[str, Any]] = {
    "global": {},
    "balanced": {"balance": "label", "variants": "random"},
    "all variants": {"variants": "all", "remainder": "keep"},
    "evaluation": {"training": False},
    "at load": {"geometry": [*SQUARE, augment.Flip()], "mix": [augment.MixUp(0.4)]},
    "windows": {
        "geometry": [augment.RandomResizedCrop(24, 20), augment.Flip(), augment.RandAugment()],
        "color": [augment.ColorJitter(), augment.Erasing()],
        "mix": [augment.MixUp(0.4)],
    },
    "growing": {"geometry": [augment.RandomResizedCrop(sizes={0: 16, 1: 24, 2: (20, 28)}), augment.Flip()]},
    "buckets": {"bucket": Buckets([(16, 24), (20, 20), (24, 16)]), "geometry": [augment.Flip()]},
    "views": {
        "views": {
            "global": (2, {"geometry": [augment.RandomResizedCrop(24, 24)], "color": [augment.Grayscale(0.5)]}),
            "local": (3, {"geometry": [augment.RandomResizedCrop(12, 12)]}),
        },
    },
}
FRAMEWORKS = {
    "numpy": "numpy",
    "tensorflow": "tensorflow",
    "graph": "tensorflow",
    "jax": "jax",
    "torch": "torch",
    "stateful": "torchdata",
}
"""By name the package that each needs."""


def run(options: Any) -> None:
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        data = write_dataset(Path(folder))
        expected = {name: uninterrupted(data, case) for name, case in CASES.items()}
        for framework in options.kinds or FRAMEWORKS:
            if importlib.util.find_spec(FRAMEWORKS[framework]) is None:
                print(f"{framework}: {FRAMEWORKS[framework]} is not installed, left out")
                continue
            results[framework] = counts = interrupted(data, framework, expected, options.count, options.seed)
            print(f"{framework}: {dict(counts)}", flush=True)
    harness.finish(options, results, failed=any(counts["different"] for counts in results.values()))


def write_dataset(folder: Path) -> Any:
    """Build 61 images of four shapes, in three classes with three variants: no epoch is a whole number of batches."""
    for number, shape in enumerate(SHAPES):
        write_photos(
            folder / "raw", 15 + (number == 0), f"{{label}}/{number}-{{number}}.png", labels="abc", noise=shape
        )
    recipe = Recipe(
        "resumes",
        sources.Folder("{label}/*"),
        {"image": codecs.Jpeg(95), "label": codecs.Scalar()},
        geometry=[augment.Resize(longer=32), augment.Flip()],
        variants={"train": 3},
    )
    tfprep.build(recipe, folder / "built", folder / "raw")
    return tfprep.open(folder / "built", version=1)


def uninterrupted(data: Any, case: dict[str, Any]) -> list[str]:
    loader = data.numpy_loader("train", BATCH, **common(case), workers="threads", threads=1)
    return [digest(batch) for batch in (loader if case.get("training") is False else loader.repeat(EPOCHS))]


def interrupted(data: Any, framework: str, expected: dict[str, list[str]], count: int, seed: int) -> Any:
    """Interrupt `count` runs; return what was counted."""
    chance, counts = random.Random(f"{framework} {seed}"), collections.Counter[str]()
    of_sampler = inspect.signature(data.batch_sampler).parameters.keys()
    cases = [name for name in CASES if framework != "stateful" or CASES[name].keys() <= of_sampler]
    if framework == "graph":  # tf.data was promised all batches of an evaluation
        cases.remove("evaluation")
    counts["different"] = 0
    for number in range(count):
        name = cases[number % len(cases)]
        before, after = readers(framework, chance, number)
        taken = chance.randrange(len(expected[name]) + (CASES[name].get("training") is not False))
        first = loader_of(data, framework, CASES[name], before)
        batches = passes(first)
        seen = [digest(batch) for batch in itertools.islice(batches, taken)]
        state = json.loads(json.dumps(first.state_dict(*([taken] if framework == "graph" else []))))
        batches.close()
        if framework == "graph":
            second = loader_of(data, framework, {**CASES[name], "start_step": state}, after)
        else:
            second = loader_of(data, framework, CASES[name], after)
            second.load_state_dict(state)
        left = len(expected[name]) - taken
        seen += [digest(batch) for batch in itertools.islice(passes(second), left)]
        for loader in (first, second):
            getattr(loader, "close", int)()
        counts.update(["interruptions", f"{before} to {after}"])
        counts["batches after it"] += left
        if seen != expected[name]:
            counts["different"] += 1
            step = next(at for at, pair in enumerate(itertools.zip_longest(seen, expected[name])) if len(set(pair)) > 1)
            print(f"{framework}, {name}: interrupted at {taken}, {before} to {after}: another batch at step {step}")
    return counts


def readers(framework: str, chance: random.Random, number: int) -> tuple[str, str]:
    """Who reads before and after the interruption; a state of torchdata's is for one number of workers."""
    if framework == "stateful":
        return (str(number // len(CASES) % 2 * 2),) * 2
    before, after = chance.sample(["1 thread", "2 threads", "5 threads"], 2)
    if framework == "numpy" and number % 3 == 2:
        return before, f"{chance.choice([2, 3, 5])} hosts"
    return (before, "processes") if number % 4 == 0 else ("processes", after) if number % 4 == 1 else (before, after)


def loader_of(data: Any, framework: str, case: dict[str, Any], reader: str) -> Any:
    if framework == "stateful":
        from torchdata.stateful_dataloader import StatefulDataLoader

        samples = data.random_access("train", variant="all", fields=["key", "image", "label"])
        sampler = data.batch_sampler("train", BATCH, **{"seed": 1, **case})
        return StatefulDataLoader(samples, batch_sampler=sampler, num_workers=int(reader), collate_fn=resized)
    if reader.endswith("hosts"):
        return JoinedHosts(data, case, int(reader[0]))
    workers = (
        {"workers": "processes", "threads": 2, "prefetch": 1}
        if reader == "processes"
        else {"workers": "threads", "threads": int(reader[0])}
    )
    kind = {"tensorflow": "loader", "graph": "loader"}.get(framework, f"{framework}_loader")
    loader = getattr(data, kind)("train", BATCH, **common(case), **workers)
    if framework == "graph":
        mapped = loader.map(lambda element: element)
        for name in ("state_dict", "report", "close"):
            setattr(mapped, name, getattr(loader, name))
        return mapped
    return loader.eager() if framework == "tensorflow" else loader


def resized(samples: list[dict[str, Any]]) -> Any:
    """A batch of samples whose images are resized as `geometry=SQUARE` does."""
    from torch.utils.data import default_collate

    for sample in samples:
        transform = SQUARE[0](sample["image"].shape[:2], None)
        sample.update(augment.warp.warp_sample({"image": sample["image"]}, {"image": "image"}, transform))
    return default_collate(samples)


class JoinedHosts:
    """The loaders of all hosts, whose parts are put together."""

    def __init__(self, data: Any, case: dict[str, Any], count: int) -> None:
        self._loaders = [
            data.numpy_loader("train", BATCH, **common(case), workers="threads", threads=1, hosts=(index, count))
            for index in range(count)
        ]

    def load_state_dict(self, state: Any) -> None:
        for loader in self._loaders:
            loader.load_state_dict(state)

    def __iter__(self) -> Iterator[Any]:
        for parts in zip(*self._loaders, strict=True):
            yield {name: joined([part[name] for part in parts]) for name in parts[0]}

    def close(self) -> None:
        for loader in self._loaders:
            loader.close()


def joined(parts: list[Any]) -> Any:
    if isinstance(parts[0], dict):
        return {name: joined([part[name] for part in parts]) for name in parts[0]}
    if isinstance(parts[0], tuple):
        return tuple(joined(list(each)) for each in zip(*parts, strict=True))
    return np.concatenate(parts)


def common(case: dict[str, Any]) -> dict[str, Any]:
    """The options of all loaders of a case. What makes one size of all pictures at load gets them in their own shapes."""
    own = "bucket" in case or "views" in case
    return {"seed": 1, "fields": ["key", "image", "label"], "cache": False, "geometry": [] if own else SQUARE, **case}


def passes(loader: Any) -> Iterator[Any]:
    """One epoch after another; the end of the data where two passes in a row are empty. Worker processes read once they can."""
    empty = 0
    while empty < 2:
        empty += 1
        for batch in loader:
            empty = 0
            yield batch
            while is_starting(loader):
                time.sleep(0.01)


def is_starting(loader: Any) -> bool:
    workers = loader.report()["workers"] if hasattr(loader, "report") else {"kind": "threads"}
    return workers["kind"] == "processes" and not workers["started"]


def digest(batch: Any) -> str:
    """Digest the keys, the pixels and the labels of a batch, whatever holds them."""
    keys = [key.decode() if isinstance(key, bytes) else str(key) for key in np.asarray(batch["key"]).tolist()]
    views = batch["image"]
    images = [views] if not isinstance(views, dict) else [one for name in sorted(views) for one in views[name]]
    content = b"".join(repr(image.shape).encode() + image.tobytes() for image in map(np.asarray, images))
    label = np.asarray(batch["label"]).astype(np.float64)
    return hashlib.sha256(repr(keys).encode() + content + label.tobytes()).hexdigest()
