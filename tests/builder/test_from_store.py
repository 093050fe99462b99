"""From raw files in a bucket to a dataset in a bucket to batches: what a folder gives, with no request too many."""

from __future__ import annotations

from collections import Counter
from contextlib import closing

import numpy as np
import pytest

import tfprep
from tests.builder.test_at_store import content
from tests.waiting import wait_until
from tfprep.builder import BuildOptions, build
from tfprep.dataset import open_dataset
from tfprep.load.reader import ahead
from tfprep.storage import cache

pytest.importorskip("obstore")
ORDERS = ({"order": "global"}, {"order": "block", "block": 8, "window": 2}, {"order": "sequential"})


def test_from_a_bucket_to_a_bucket_to_batches(site, s3, tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "KEPT_FREE_BYTES", 0)
    monkeypatch.setattr(ahead, "GAP_BYTES", 200)  # joins the fields of a record, not the blocks of a window
    full = site.fill(12, 2)
    full.build()
    raw, url = s3.new_url(), s3.new_url()
    files = [path.relative_to(full.data).as_posix() for path in full.data.rglob("*") if path.is_file()]
    for name in files:
        s3.put(f"{raw}/{name}", (full.data / name).read_bytes())
    s3.proxy.reset()
    build(full.recipe, url, raw, options=BuildOptions(workers=0))
    assert content(url) == content(full.out)
    reads = Counter(request.path for request in s3.proxy.reads(raw.removeprefix("s3:/")))
    assert (len(reads), set(reads.values())) == (len(files), {1})
    s3.proxy.reset()
    assert build(full.recipe, url, raw, options=BuildOptions(workers=0)).built_shards == 0
    assert s3.proxy.reads(raw.removeprefix("s3:/")) == []
    for number, order in enumerate(ORDERS):
        _check_loading(url, full.out, s3, order, tmp_path / f"cache{number}")


def _check_loading(url, folder, s3, order, local):
    """An epoch by range, one with a cold cache, and one with a warm one."""
    options = {"seed": 2, "variants": "all", "cache": False, "workers": "threads", **order}
    data, size = tfprep.open(url), sum(file.bytes for file in _files(url))
    for cached, warm in ((False, False), (True, False), (True, True)):
        s3.proxy.reset()
        with (
            closing(
                data.numpy_loader("train", 6, local=local if cached else None, training=cached, **options)
            ) as there,
            closing(tfprep.open(folder).numpy_loader("train", 6, training=cached, **options)) as here,
        ):
            for a, b in zip(there, here, strict=True):
                assert a.keys() == b.keys()
                for name in a:
                    np.testing.assert_array_equal(a[name], b[name], name)
            if cached and not warm:
                wait_until(lambda there=there: there.report()["local"]["hits"] == 1.0)
        spans = [request.span for request in s3.proxy.reads(".tfrecord-")]
        if not cached:  # in training, the next epoch is fetched ahead
            assert sum(stop - start for start, stop in spans) == size
        assert (spans == []) == warm


def _files(url):
    return [file for files in open_dataset(url).splits["train"].files for file in files]
