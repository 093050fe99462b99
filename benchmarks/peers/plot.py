"""A chart of the peers' rates as shares of tfprep's: an SVG for light and dark backgrounds.

Run: python benchmarks/peers/plot.py RESULT.json [RESULT.json ...] > peers.svg

Ratios are taken within a round, so those of several runs can be shown in one chart if each run included tfprep.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tfprep.bench.charts import WIDTH, Bar, bars, svg

NAMES = {
    "tfprep": "tfprep, threads", "tfprep_processes": "tfprep, processes",
    "tf_guide": "tf.data as in its guide", "tfds": "TensorFlow Datasets", "keras_directory": "Keras from a directory",
    "image_data_generator": "ImageDataGenerator", "webdataset": "WebDataset", "grain": "Grain + ArrayRecord",
    "streaming": "MosaicML Streaming", "litdata": "LitData", "torch_folder": "torch ImageFolder", "dali": "DALI (CPU)",
    "ffcv": "FFCV",
}  # fmt: skip
_STYLE = (
    "svg{font:13px system-ui,sans-serif}.bar{fill:#5b8def}.accent{fill:#e07a2f}.stroke{fill:none;stroke-width:1.8}"
    ".stroke.text{stroke:#667}text{fill:#667}"
)


def plot(results: Sequence[Mapping[str, Any]]) -> str:
    """The charts of all forms, from top to bottom."""
    elements, top = [], 0.0
    for form in ("jpeg", "raw"):
        peers = {name: one for result in results for name, one in _summary(result, form).items() if "ratio" in one}
        if not peers:
            continue
        rows = [_bar(name, one) for name, one in sorted(peers.items(), key=lambda pair: pair[1]["ratio"])]
        chart = bars(f"{form}: images/s as a share of tfprep's with threads", rows)
        elements.append(f'<text x="0" y="{top + 20}" font-weight="600">{chart.title}</text>')
        elements.append(f'<g transform="translate(0 {top + 32})">{_inner(svg(chart))}</g>')
        top += chart.height + 52
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top:.0f}" width="{WIDTH}" height="{top:.0f}">'
    )
    return "\n".join([head, f"<style>{_STYLE}</style>", *elements, "</svg>"])


def _summary(result: Mapping[str, Any], form: str) -> Mapping[str, Mapping[str, float]]:
    summary: Mapping[str, Mapping[str, float]] = result["forms"].get(form, {}).get("summary", {})
    return summary


def _bar(name: str, figures: Mapping[str, float]) -> Bar:
    share, least, most = (1 / figures[key] for key in ("ratio", "most", "least"))
    if name == "tfprep":
        return Bar(NAMES[name], 1.0, "100%", accent=True)
    if name == "tfprep_processes":
        return Bar(NAMES[name], share, f"{share:.0%}", accent=True)
    return Bar(NAMES.get(name, name), share, f"{share:.0%}", least, most)


def _inner(drawn: str) -> str:
    return drawn.split(">", 1)[1].rsplit("</svg>", 1)[0]


if __name__ == "__main__":
    print(plot([json.loads(Path(path).read_text()) for path in sys.argv[1:]]))
