"""The peers' images a second as a picture: SVG that reads on light and dark paper."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tfprep.bench.charts import WIDTH, Bar, bars, svg

_STYLE = (
    "svg{font:13px system-ui,sans-serif}.bar{fill:#5b8def}.accent{fill:#e07a2f}.stroke{fill:none;stroke-width:1.8}"
    ".stroke.text{stroke:#667}text{fill:#667}"
)


def plot(result: Mapping[str, Any]) -> str:
    """One chart a form, below one another."""
    parts, top = [], 0.0
    for form, of_form in result["forms"].items():
        ranked = sorted(of_form["summary"].items(), key=lambda pair: -pair[1]["load_images_per_s"])
        rows = [_bar(name, figures, of_form["load"][name]) for name, figures in ranked]
        chart = bars(f"{form}: images a second", rows)
        parts.append(f'<text x="0" y="{top + 20}" font-weight="600">{chart.title}</text>')
        parts.append(f'<g transform="translate(0 {top + 32})">{_inner(svg(chart))}</g>')
        top += chart.height + 52
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top:.0f}" width="{WIDTH}" height="{top:.0f}">'
    )
    return "\n".join([head, f"<style>{_STYLE}</style>", *parts, "</svg>"])


def _bar(name: str, figures: Mapping[str, float], rounds: list[Mapping[str, float]]) -> Bar:
    rates = [one["images_per_s"] for one in rounds]
    rate = figures["load_images_per_s"]
    return Bar(name, rate, f"{rate:,.0f}", min(rates), max(rates), accent=name == "tfprep")


def _inner(drawn: str) -> str:
    return drawn.split(">", 1)[1].rsplit("</svg>", 1)[0]
