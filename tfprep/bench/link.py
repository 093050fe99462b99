"""A benchmark of a dataset at a URL: what an epoch fetches, what the link delivers, and which of link and loader limits."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from tfprep.bench.loaders import numpy_candidate
from tfprep.bench.rounds import Budget, measure
from tfprep.errors import DatasetError
from tfprep.load import Data
from tfprep.load.reader.ahead import REQUEST_BYTES, REQUESTS
from tfprep.storage.store import open_store
from tfprep.units import duration, size

_NEAR = 1.25
"""The link counts as the limit up to this many times the loader's rate: both vary by some tenths from second to second."""


@dataclass(frozen=True)
class LinkBench:
    """The result.

    Attributes:
        dataset, split, samples, batch_size: What was read.
        order: The loader's order.
        fetching: What an epoch fetches, as in the loader's `report()`.
        local: What the local cache holds and will hold, as in `report()`; None without one.
        request_bytes: The size of the requests that the link was measured with: the mean of those of the loader.
        link_bytes_per_s, link_requests_per_s: What the link delivered to requests of that size.
        link_images_per_s: What the loader could take from it.
        loader_images_per_s: What the loader delivered from the URL, decoded, without a cache of records in memory.
    """

    dataset: str
    split: str
    samples: int
    batch_size: int
    order: str
    fetching: Mapping[str, float]
    local: Mapping[str, Any] | None
    request_bytes: int
    link_bytes_per_s: float
    link_requests_per_s: float
    link_images_per_s: float
    loader_images_per_s: float

    @property
    def link_limits(self) -> bool:
        return self.link_images_per_s < _NEAR * self.loader_images_per_s

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "link_limits": self.link_limits}

    def lines(self, images_per_s: float | None = None) -> Iterator[str]:
        """Yield the result as text; `images_per_s` is what a training step takes."""
        fetching, link = self.fetching, self.link_images_per_s
        yield f"{self.dataset}, {self.split}: {self.samples:,} samples in {self.order} order, batches of {self.batch_size}"
        yield (
            f"  an epoch fetches {size(int(fetching['bytes_per_epoch']))} with {fetching['requests_per_epoch']:,.0f} requests: "
            f"{size(int(fetching['bytes_per_sample']))} and {fetching['requests_per_sample']:.3g} requests a sample"
        )
        yield (
            f"  link:   {size(int(self.link_bytes_per_s))}/s in {self.link_requests_per_s:,.0f} requests/s of "
            f"{size(self.request_bytes)}, enough for {link:,.0f} images/s; an epoch in {duration(self.samples / link)}"
        )
        yield f"  loader: {self.loader_images_per_s:,.0f} images/s"
        if self.local is not None:
            yield (
                f"  cache:  {size(self.local['bytes_to_fetch'])} to fetch into {self.local['folder']}; then "
                f"{100 * self.local['predicted_hits']:.0f}% of the records are read from it"
            )
        yield self._verdict(images_per_s)

    def _verdict(self, images_per_s: float | None) -> str:
        if images_per_s is not None and self.loader_images_per_s >= images_per_s:
            return f"  The step's {images_per_s:,.0f} images/s limit: the loader delivers more"
        if not self.link_limits:
            times = self.link_images_per_s / self.loader_images_per_s
            return f"  This machine limits, not the link, which allows {times:.1f} times as much"
        joined = self.fetching["requests_per_sample"] <= 0.5
        smaller = (
            "smaller images, fewer fields or codecs.Zstd take less of it"
            if joined
            else "order='block' joins records to fewer requests"
        )
        return f"  The link limits: local= keeps shards on a disk here, {smaller}"


def bench_link(
    data: Data, split: str | None = None, batch_size: int = 32, *, seconds: float = 3.0, **options: Any
) -> LinkBench:
    """Measure a dataset at a URL.

    Args:
        data: The dataset.
        split: The split to load. None takes the first one.
        batch_size: Samples per batch.
        seconds: Measured seconds of link and loader, each.
        **options: Other options of the loader, such as `order` and `local`.

    Raises:
        DatasetError: The split is missing or empty, or the store fails.
        LoaderError: An option cannot be met.
    """
    split = split or next(iter(data.splits))
    if not data.split(split).samples:
        raise DatasetError(f"{data.path}: split {split!r} has no sample (option --split)")
    options = {"cache": False, "training": True, **options}  # as training reads: without an end
    with closing(data.numpy_loader(split, batch_size, **options)) as reported:
        report = reported.report()
    fetching = report["fetching"]
    per_sample, requests = fetching["bytes_per_sample"], fetching["requests_per_sample"]
    request_bytes = max(1, min(REQUEST_BYTES, round(per_sample / max(requests, 1e-9))))
    # Ranges at random places, as many at a time as the loader makes.
    store, draws = open_store(data.shards_folder), np.random.default_rng(0)
    files = [file for file in data.split(split).files[0] if file.bytes]
    end = time.perf_counter() + seconds

    def fetch(_: int) -> tuple[int, int]:
        nbytes = count = 0
        while time.perf_counter() < end:
            file = files[draws.integers(len(files))]
            start = int(draws.integers(max(1, file.bytes - request_bytes)))
            nbytes += len(store.read(data.shard_path(file).name, start, min(file.bytes, start + request_bytes)))
            count += 1
        return nbytes, count

    begin = time.perf_counter()
    with ThreadPoolExecutor(REQUESTS) as pool:
        nbytes, count = np.array(list(pool.map(fetch, range(REQUESTS)))).sum(axis=0).tolist()
    taken = time.perf_counter() - begin
    loader = numpy_candidate(data, split, batch_size, name="loader", **options)
    return LinkBench(
        dataset=str(data.path), split=split, samples=report["samples"], batch_size=batch_size, order=report["order"],
        fetching=fetching, local=report["local"], request_bytes=request_bytes,
        link_bytes_per_s=nbytes / taken, link_requests_per_s=count / taken,
        link_images_per_s=nbytes / taken / max(per_sample, 1),
        loader_images_per_s=measure(loader, Budget(1, seconds, seconds / 2, 1)).images_per_s,
    )  # fmt: skip
