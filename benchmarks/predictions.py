"""Advice that predicts a figure, followed: what was predicted, and what it brought.

    python benchmarks/predictions.py [--rounds 3] [--data DIR] [--json FILE]

- Speed (5 stands for that or more) and disk of other storage forms (`tfprep bench`) against datasets built so, in turns.
- The epochs before and after the cache is full, and more threads.
- At a URL: what an epoch fetches, the rate where the link limits, and what `local=` holds.
- Rate, disk and build time of `tfprep advise`, from 150 of the 600 images, against whole builds.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import harness

BATCH, IMAGES = 32, 600
LATENCY_MS = 300


def main() -> None:
    options = harness.arguments(
        __doc__ or "",
        lambda parser: parser.add_argument("--data", type=Path, help="Folder that keeps the images for the next run"),
        rounds=(3, "Rounds of each comparison"),
    )
    with ExitStack() as stack:
        folder = options.data or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        harness.write_jpeg_and_raw(folder, IMAGES)
        found = [
            *forms(folder, options.rounds),
            *caches(folder, options.rounds),
            *links(folder),
            *strategies(folder, options.rounds),
        ]
    harness.finish(options, found)


Outcome = tuple[str, float, float]
"""The figure, as predicted and as following the advice brought it."""


def told(name: str, predicted: float, brought: float) -> Outcome:
    print(
        f"{name:58} predicted {predicted:9.3g}  brought {brought:9.3g}  {brought / (predicted or 1e-9):6.2f}",
        flush=True,
    )
    return name, predicted, brought


def forms(folder: Path, rounds: int) -> Iterator[Outcome]:
    """Each other form of the images that `bench` predicts, built, and loaded in turns with the present one."""
    from loader_data import write

    import tfprep
    from tfprep import codecs
    from tfprep.bench.bottleneck import changes_of
    from tfprep.bench.loaders import loader_candidate
    from tfprep.bench.rounds import Budget, compare
    from tfprep.bench.run import BenchOptions, bench

    codec_of = {
        "raw": codecs.Raw(),
        "PNG": codecs.Png(),
        "JPEG 95": codecs.Jpeg(95),
        "JPEG 85": codecs.Jpeg(85),
        "Zstd": codecs.Zstd(),
    }
    for now in ("JPEG 95", "PNG"):
        folders = {now: write(folder / now.lower().replace(" ", ""), codec_of[now], IMAGES)}
        result = bench(
            folders[now], BenchOptions(batch_size=BATCH, rounds=rounds, changes=False, loader={"cache": False})
        )
        cores = result.machine.cores * (1 - (result.rounds.others or 0.0))
        changes = changes_of(tfprep.open(folders[now]), "train", result.stages, cores)
        for change in changes:
            name, _, size = change.then.partition(" at ")
            side = int(size.split(" ")[0]) if size else 224
            folders[change.then] = write(
                folder / change.then.lower().replace(" ", ""), codec_of[name], IMAGES, side=side
            )
        options = {"cache": False, "inputs": "image", "targets": "label"}
        opened = {name: tfprep.open(path) for name, path in folders.items()}
        candidates = [loader_candidate(data, "train", BATCH, name=name, **options) for name, data in opened.items()]
        measured = compare(candidates, Budget(rounds, 1.5, 0.5))
        disk = {name: data.split("train").bytes for name, data in opened.items()}
        for change in changes:
            title = f"{now} as {change.then}, times the"
            yield told(f"{title} speed", change.speed, measured.ratio(change.then, now).median)
            yield told(f"{title} disk", change.disk, disk[change.then] / disk[now])


def caches(folder: Path, rounds: int) -> Iterator[Outcome]:
    """What `bench` says of the first epoch and of those that copy from the cache, and what more threads bring."""
    import tfprep
    from tfprep.bench.loaders import loader_candidate
    from tfprep.bench.rounds import Budget, compare
    from tfprep.bench.run import LOADER, BenchOptions, bench

    data = tfprep.open(folder / "jpeg")
    result = bench(data, BenchOptions(batch_size=BATCH, rounds=rounds, changes=False))
    with closing(data.loader("train", BATCH).repeat()) as loader:
        batches, seconds = iter(loader), []
        next(batches)  # opening takes as long as the epoch of this small dataset
        for _ in range(1 + 5 * rounds):
            started = time.perf_counter()
            for _ in range(IMAGES // BATCH):
                next(batches)
            seconds.append(time.perf_counter() - started)
    first, later = (IMAGES // BATCH * BATCH / took for took in (seconds[0], statistics.median(seconds[1:])))
    yield told("first epoch of the cache: images/s", result.stages.top.images_per_s.median, first)
    yield told("later epochs: images/s", result.rounds.images_per_s(LOADER).median, later)
    candidates = [
        loader_candidate(data, "train", BATCH, name=str(threads), cache=False, threads=threads)
        for threads in (1, os.cpu_count() or 1)
    ]
    ratio = compare(candidates, Budget(rounds, 1.5, 0.5)).ratio(candidates[1].name, "1").median
    yield told("threads raised from one to all processors: times the speed, more than", 1.0, ratio)


def links(folder: Path) -> Iterator[Outcome]:
    """What `bench` says of a dataset at a URL: its traffic, the rate where the link limits, and what `local=` will hold."""
    import tfprep
    from tfprep.bench.link import bench_link

    with harness.store(folder, LATENCY_MS) as (_, environment), tempfile.TemporaryDirectory() as place:
        os.environ.update(environment)
        data = tfprep.open("s3://bench/jpeg")
        for order in ("global", "block", "sequential"):
            options = {"order": order, "memory_budget": "24MB"}  # else this small dataset is fetched as a whole
            result = bench_link(data, "train", BATCH, seconds=2.0, **options)
            with closing(data.numpy_loader("train", BATCH, cache=False, training=False, **options)) as loader:
                for _ in loader:  # one epoch and nothing of the next
                    pass
                stats = loader.stats
            yield told(f"{order}: requests an epoch", result.fetching["requests_per_epoch"], stats["requests"])
            yield told(f"{order}: MB an epoch", result.fetching["bytes_per_epoch"] / 1e6, stats["bytes_fetched"] / 1e6)
            if result.link_limits:
                yield told(f"{order}, the link limits: images/s", result.link_images_per_s, result.loader_images_per_s)
        whole = data.split("train").bytes
        options = {"local": place, "local_limit": 6 * whole // 10, "cache": False}
        with closing(data.numpy_loader("train", BATCH, **options)) as loader:
            expected = loader.report()["local"]
            for _ in loader:
                pass
            end = time.monotonic() + 20
            while loader.report()["local"]["hits"] < expected["predicted_hits"] and time.monotonic() < end:
                time.sleep(0.1)
            brought = loader.report()["local"]
        yield told("local: share of records in it", expected["predicted_hits"], brought["hits"])
        yield told("local: MB to fetch", expected["bytes_to_fetch"] / 1e6, brought["bytes"] / 1e6)


def strategies(folder: Path, rounds: int) -> Iterator[Outcome]:
    """Rate, disk and build time of each strategy of `tfprep advise` against a build of all images by the same recipe.

    Rates of two moments cannot be compared: the samples that were measured run again, in turns with what was built of all images.
    """
    from loader_data import raw_files, recipe_of

    import tfprep
    from tfprep.bench.advise import advise
    from tfprep.bench.loaders import loader_candidate
    from tfprep.bench.rounds import Budget, compare
    from tfprep.bench.trial import strategies as strategies_of

    with tempfile.TemporaryDirectory() as place:
        raw_files(Path(place, "raw"), IMAGES)
        recipe = recipe_of(tfprep.codecs.Jpeg(95))
        budget = Budget(rounds, 1.5, 0.5, 2)
        advice = advise(recipe, Path(place, "raw"), Path(place, "trials"), samples=150, budget=budget)
        found = strategies_of(recipe, recipe.source.scan(Path(place, "raw")).kinds)
        candidates, whole = [], {}
        for number, one in enumerate(found):
            started = time.perf_counter()
            tfprep.build(one.recipe, Path(place, f"whole{number}"), Path(place, "raw"))
            whole[one.name] = time.perf_counter() - started, tfprep.open(Path(place, f"whole{number}"))
            sample = tfprep.open(Path(place, "trials", f"strategy{number}"))
            for name, data in ((one.name, whole[one.name][1]), (f"sample of {one.name}", sample)):
                options = {"cache": False, "geometry": one.load_geometry}
                candidates.append(loader_candidate(data, "train", BATCH, name=name, **options))
        measured = compare(candidates, budget)
        for one in advice.predictions:
            seconds, data = whole[one.strategy]
            sampled, brought = (measured.images_per_s(f"{of}{one.strategy}").median for of in ("sample of ", ""))
            yield told(f"advise, {one.strategy}: images/s, in turns", sampled, brought)
            yield told(f"advise, {one.strategy}: images/s, as printed", one.images_per_s, brought)
            yield told(f"advise, {one.strategy}: MB", one.disk_bytes / 1e6, data.split("train").bytes / 1e6)
            yield told(f"advise, {one.strategy}: seconds to build", one.build_s, seconds)


if __name__ == "__main__":
    main()
