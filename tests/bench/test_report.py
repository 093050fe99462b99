"""The report: complete, valid HTML, without external resources; the same figures in the page and in JSON."""

import html
import json
import re
from html.parser import HTMLParser
from pathlib import Path

from tfprep.bench.page import write_report
from tfprep.bench.rounds import Candidate
from tfprep.bench.run import BenchOptions, bench
from tfprep.load import Data


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_report_of_a_bench(jpeg_data: Data, tmp_path: Path) -> None:
    options = BenchOptions(batch_size=8, rounds=1, seconds=0.2, changes=False, loader={"threads": 2})
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
    widths = [float(width) for width in re.findall(r'style="width: ([0-9.]+)%"', text)]
    assert len(widths) == len(result.stages.costs) + 3  # the loader from its cache, without it, and the baseline
    assert "tfprep from its cache: " in text
    assert "tfprep in the first epoch: " in text
    limiting = result.stages.limit
    image_ms = 1000 / result.stages.top.images_per_s.median
    assert f"{limiting.words}: {limiting.share * image_ms:.3g} ms" in text
    assert widths[result.stages.costs.index(limiting)] == 100.0  # what limits is the longest bar
    document = json.loads(figures.read_text())
    assert document["loader"]["images_per_s"]["median"] == result.rounds.images_per_s("loader").median
    assert document["step"]["limit"] in html.unescape(text)
