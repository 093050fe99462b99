"""The report: complete, valid HTML, without external resources; the same figures in the page, PNG and JSON."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from PIL import Image

from tfprep.bench import charts
from tfprep.bench.charts import Bar, Label, Polyline, Rectangle, Series
from tfprep.bench.html_report import write_report
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
    result = bench(jpeg_data, BenchOptions(batch_size=8, rounds=1, seconds=0.2, loader={"threads": 2}), step_s=0.02)
    page, picture, figures = write_report(result, tmp_path / "report.html")
    text = page.read_text()
    tags = Tags()
    tags.feed(text)
    assert tags.open == []
    assert tags.links == []  # The page opens offline.
    assert "http" not in text
    assert tags.seen.count("svg") == 4  # Stages, waits, buffers and memory.
    assert "prefers-color-scheme: dark" in text
    assert f"{result.rounds.images_per_s('loader').median:,.0f} images/s" in text
    with Image.open(picture) as image:
        assert image.size[0] == 2 * (charts.WIDTH + 48)
    document = json.loads(figures.read_text())
    assert document["loader"]["images_per_s"]["median"] == result.rounds.images_per_s("loader").median
    assert len(document["step"]["moments"]) == document["step"]["steps"]


def test_names_are_escaped() -> None:
    assert "<b>" not in charts.svg(charts.bars("<b>", [Bar("<b>", 1.0, "<b>")]))


def test_bars_are_to_scale_and_begin_at_zero() -> None:
    chart = charts.bars("rates", [Bar("a", 100.0, ""), Bar("b", 25.0, "", 20.0, 50.0)])
    boxes = [shape for shape in chart.shapes if isinstance(shape, Rectangle)]
    assert boxes[0].width == pytest.approx(4 * boxes[1].width)
    assert {box.x for box in boxes} == {charts.LEFT}
    whisker = next(shape for shape in chart.shapes if isinstance(shape, Polyline))
    (start, _), (stop, _) = whisker.points
    assert (start - charts.LEFT, stop - charts.LEFT) == pytest.approx((boxes[0].width / 5, boxes[0].width / 2))


def test_lines_are_inside_the_axes() -> None:
    chart = charts.lines("wait", [Series("a", ((0.0, 0.0), (1.0, 40.0), (4.0, 10.0)))], "ms")
    line = next(shape for shape in chart.shapes if isinstance(shape, Polyline) and shape.role == "line")
    (x0, y0), (_, y1), (x2, y2) = line.points
    assert y0 == charts.PLOT_HEIGHT
    assert y1 < y2 < y0
    labels = [shape.text for shape in chart.shapes if isinstance(shape, Label)]
    assert {"50", "0", "4 s"} <= set(labels)
    assert 0 < x0 < x2 < charts.WIDTH


@pytest.mark.parametrize(("value", "top"), [(0, 1), (0.9, 1), (1, 1), (1.1, 2), (38, 50), (930, 1000), (1100, 2000)])
def test_axes_end_at_round_numbers(value: float, top: float) -> None:
    assert charts.nice(value) == top


@pytest.mark.parametrize(
    ("last", "expected"),
    [
        (1.0, [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (2.97, [0, 1, 2]),
        (3.0, [0, 1, 2, 3]),
        (10, [0, 2, 4, 6, 8, 10]),
        (4.4, [0, 1, 2, 3, 4]),
    ],
)
def test_ticks_are_round_and_inside(last: float, expected: list[float]) -> None:
    assert charts.ticks(last) == pytest.approx(expected)


def test_an_empty_chart_is_drawn() -> None:
    assert re.search("</svg>", charts.svg(charts.lines("nothing", [Series("a", ())])))
    charts.png([charts.bars("nothing", [])])
