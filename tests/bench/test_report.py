"""The report: complete, valid HTML, without external resources; the same figures in the page and in JSON."""

import html
import json
import os
import re
from html.parser import HTMLParser

import pytest

import tfprep
from tests.commands import status_of
from tfprep.bench.rounds import Candidate
from tfprep.bench.run import BenchOptions, bench, lines, write_report


class Tags(HTMLParser):
    def __init__(self):
        super().__init__()
        self.open = []
        self.seen = []
        self.links = []

    def handle_starttag(self, tag, attrs):
        self.seen.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_report_of_a_bench(jpeg_data, tmp_path):
    """As a page, as text, and as JSON."""
    options = BenchOptions(batch_size=8, rounds=1, seconds=0.2, loader={"threads": 2})
    slower = Candidate("<b>mine</b>", lambda: iter(jpeg_data.numpy_loader("train", 8)))
    result = bench(jpeg_data, options, baselines=[slower], step_s=0.02)
    page, figures = write_report(result, tmp_path / "report.html")
    text = page.read_text()
    tags = Tags()
    tags.feed(text)
    assert tags.open == []
    assert tags.links == []  # The page opens offline.
    assert "http" not in text
    assert "<b>" not in text  # Names are escaped.
    assert "&lt;b&gt;mine&lt;/b&gt;" in text
    assert "prefers-color-scheme:dark" in text
    assert f"{result.rounds.images_per_s('loader').median:,.0f}" in text
    assert "limit: " in text
    widths = [float(width) for width in re.findall(r'class="s0" style="width: ([0-9.]+)%"', text)]
    assert len(widths) == 3  # the loader from its cache, without it, and the baseline
    whiskers = re.findall(r'class="whisker" style="left: ([0-9.]+)%; width: ([0-9.]+)%"', text)
    assert max(float(left) + float(width) for left, width in whiskers) == pytest.approx(100, abs=0.11)
    largest = max(result.rounds.images_per_s(name).greatest for name in ("loader", "first epoch", "<b>mine</b>"))
    assert f"<span>{largest:,.0f}</span></div>" in text  # the end of the axis
    assert "tfprep from its cache: " in text
    assert "tfprep in the first epoch: " in text
    printed = "\n".join(lines(result))
    assert text.count(html.escape(lines(result)[0], quote=False)) == 1
    for part in (
        "images/s",
        "kB of memory per image",
        "MB to the memory of the process",
        "first batch after",
        "limit: ",
        "limit of the first epoch: ",
        "with a step of 20.0 ms (which took ",
        "the training waits for input",
    ):
        assert part in printed
    document = json.loads(figures.read_text())
    assert document["loader"]["memory_bytes"]["image"] == 48 * 48 * 3 + 8
    assert document["limit"]["causes"][0] == result.limit.causes[0]
    assert document["step"]["step_s"] == 0.02
    assert document["machine"]["cores"] == len(os.sched_getaffinity(0))
    assert document["loader"]["images_per_s"]["median"] == result.rounds.images_per_s("loader").median
    assert document["step"]["limit"] in html.unescape(text)


pytest.importorskip("obstore")


def test_a_dataset_at_a_url(photos, s3, capsys):
    """The same engine names fetching as the limit, and says what an epoch fetches."""
    url = s3.copy(photos.path)
    s3.proxy.delay_s = 0.05
    quick = ["--rounds", "1", "--seconds", "0.3", "--batch-size", "10", "--cache", "none", "--order", "sequential"]
    assert status_of("bench", url, *quick, "--json") == 0
    result = json.loads(capsys.readouterr().out)
    fetching = result["settings"]["fetching"]
    assert 0 < fetching["bytes_per_epoch"] <= tfprep.open(url).split("train").bytes
    assert result["limit"]["causes"][0] == "fetch"
    assert "requests brought" in result["limit"]["limit"]
    assert status_of("bench", url, "--cold") == 1
    assert "cold drops files of a local disk" in capsys.readouterr().err
