"""`tfprep bench URL`: what an epoch fetches is what the loader fetches, and the limit follows from the figures."""

import json
from dataclasses import replace

import pytest

import tfprep
from tfprep.bench.link import bench_link
from tfprep.cli import main
from tfprep.storage.store import open_store

pytest.importorskip("obstore")


def test_figures_of_a_slow_store(photos, s3):
    url = s3.copy(photos.path)
    s3.proxy.delay_s = 0.05
    data = tfprep.open(url)
    result = bench_link(data, "val", 11, seconds=0.3, fields="image", verify="never", order="sequential")
    images = sum(tfprep.open(photos.path).index("val", 0, ["image_size"])["image_size"].to_pylist())
    assert images <= result.fetching["bytes_per_epoch"] <= data.split("val").bytes, "what lies between images comes too"
    assert result.link_requests_per_s < 64 / 0.05
    assert result.link_images_per_s == pytest.approx(result.link_bytes_per_s / result.fetching["bytes_per_sample"])
    assert result.loader_images_per_s > 0
    assert result.local is None


def test_what_limits(photos, tmp_path):
    url = f"memory://{tmp_path.name}"
    for path in photos.path.iterdir():
        open_store(url).write(path.name, path)
    result = bench_link(tfprep.open(url), "train", 10, seconds=0.05, fields="label", local=tmp_path / "cache")
    fast = replace(result, loader_images_per_s=100.0, link_images_per_s=300.0)
    slow = replace(result, loader_images_per_s=100.0, link_images_per_s=110.0)
    assert (fast.link_limits, slow.link_limits) == (False, True)
    assert list(fast.lines())[-1] == "  This machine limits, not the link, which allows 3.0 times as much"
    for requests, text in ((1.0, "order='block' joins"), (0.1, "local= keeps shards on a disk here, smaller images")):
        last = list(replace(slow, fetching={**slow.fetching, "requests_per_sample": requests}).lines())[-1]
        assert last.startswith("  The link limits")
        assert text in last
    assert list(slow.lines(90.0))[-1] == "  The step's 90 images/s limit: the loader delivers more"
    assert "100% of the records are read from it" in "\n".join(slow.lines())


def test_the_command(photos, s3, capsys):
    url = s3.copy(photos.path)
    with pytest.raises(SystemExit) as ended:
        main(["bench", url, "--rounds", "1", "--seconds", "0.1", "--order", "sequential", "--json"])
    result = json.loads(capsys.readouterr().out)
    assert (ended.value.code, result["order"], result["samples"]) == (0, "sequential", 50)
    with pytest.raises(SystemExit):
        main(["bench", url, "--cold"])
    assert "--cold needs the dataset on a local disk" in capsys.readouterr().err
