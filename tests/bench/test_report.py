"""The result of a bench, as text, as JSON and as a page."""

import html
import json
import os
import re

import pytest

from tests.commands import status_of
from tfprep.bench.rounds import Candidate
from tfprep.bench.run import BenchOptions, bench, bench_page, lines


@pytest.fixture(scope="module")
def result(jpeg_data):
    options = BenchOptions(batch_size=8, rounds=1, seconds=0.2, loader={"threads": 2})
    slower = Candidate("<b>mine</b>", lambda: iter(jpeg_data.numpy_loader("train", 8).repeat()))
    return bench(jpeg_data, options, baselines=[slower], step_s=0.02)


def test_a_bench_as_text_and_as_json(result):
    printed = "\n".join(lines(result))
    for part in (
        "images/s",
        "6.92 kB of memory per image",
        "MB to the memory of the process",
        "first batch after",
        "limit: ",
        "limit of the first epoch: ",
        "<b>mine</b>",
        "with a step of 20.0 ms (which took ",
        "of the time waiting for input",
    ):
        assert part in printed
    document = json.loads(json.dumps(result.as_json(), default=str))
    assert document["loader"]["memory_bytes"]["image"] == 48 * 48 * 3 + 8
    assert document["limit"]["causes"][0] == result.limit.cause
    assert document["step"]["step_s"] == 0.02
    assert document["machine"]["cores"] == len(os.sched_getaffinity(0))
    for name in ("loader", "first epoch"):
        rates = document[name.replace(" ", "_")]["images_per_s"]
        assert rates["median"] == result.rounds.images_per_s(name).median
        assert f"{rates['median']:,.0f} ({rates['least']:,.0f} to {rates['greatest']:,.0f}) images/s" in printed
    assert document["against"]["<b>mine</b>"]["ratio"]["median"] > 0


def test_the_page_has_the_rates_on_one_axis(result):
    page = bench_page(result)
    assert "http" not in page  # it opens offline
    assert "<b>" not in page
    assert "&lt;b&gt;mine&lt;/b&gt;" in page
    widths = [float(width) for width in re.findall(r'class="s0" style="width: ([0-9.]+)%"', page)]
    assert len(widths) == 3  # the loader from its cache, without it, and the other pipeline
    whiskers = re.findall(r'class="whisker" style="left: ([0-9.]+)%; width: ([0-9.]+)%"', page)
    assert max(float(left) + float(width) for left, width in whiskers) == pytest.approx(100, abs=0.11)
    largest = max(result.rounds.images_per_s(name).greatest for name in ("loader", "first epoch", "<b>mine</b>"))
    assert f"<span>{largest:,.0f}</span></div>" in page  # the end of the axis
    assert page.count(html.escape(lines(result)[0], quote=False)) == 1


pytest.importorskip("obstore")


def test_a_dataset_at_a_url(photos, s3, capsys):
    """The same engine names fetching as the limit."""
    url = s3.copy(photos.path)
    s3.proxy.delay_s = 0.05
    quick = ["--rounds", "1", "--seconds", "0.3", "--batch-size", "10", "--cache", "none", "--order", "sequential"]
    quick += ["--memory-budget", "1MB"]  # a batch in advance, so that also a busy machine waits for the store
    assert status_of("bench", url, *quick, "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert result["limit"]["causes"][0] == "fetch"
    assert "requests brought" in result["limit"]["limit"]
