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

NAMES = {
    "tfprep": "tfprep, threads", "tfprep_processes": "tfprep, processes", "tf_dataset": "tf_dataset of tfprep",
    "tf_guide": "tf.data as in its guide", "tfds": "TensorFlow Datasets", "keras_directory": "Keras from a directory",
    "webdataset": "WebDataset", "grain": "Grain + ArrayRecord", "torch_folder": "torch ImageFolder", "dali": "DALI (CPU)",
    "ffcv": "FFCV",
}  # fmt: skip
WIDTH, LEFT, RIGHT, ROW, BAR = 720, 210, 130, 32, 22
_STYLE = "svg{font:13px system-ui,sans-serif}.bar{fill:#5b8def}.accent{fill:#e07a2f}path{stroke:#889}text{fill:#889}"


def plot(results: Sequence[Mapping[str, Any]]) -> str:
    """The charts of all forms, from top to bottom."""
    elements, top = [], 0
    for form in ("jpeg", "raw"):
        summaries = [result["forms"].get(form, {}).get("summary", {}) for result in results]
        peers = {name: one for summary in summaries for name, one in summary.items() if "ratio" in one}
        if not peers:
            continue
        title = f"{form}: images/s as a share of tfprep's with threads"
        elements.append(f'<text x="0" y="{top + 20}" font-weight="600">{title}</text>')
        scale = (WIDTH - LEFT - RIGHT) / max(1 / peer["least"] for peer in peers.values())
        for name, one in sorted(peers.items(), key=lambda pair: pair[1]["ratio"]):
            elements += _bar(name, one, top + 32, scale)
            top += ROW
        top += 52
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top}" width="{WIDTH}" height="{top}">'
    return "\n".join([head, f"<style>{_STYLE}</style>", *elements, "</svg>"])


def _bar(name: str, figures: Mapping[str, float], y: int, scale: float) -> list[str]:
    """A bar from 0, with a whisker from the least to the greatest share of a peer, and its share in words."""
    share, least, most = (1 / figures[key] for key in ("ratio", "most", "least"))
    ours = name.startswith("tfprep")
    end = LEFT + scale * (share if ours else max(share, most))
    whisker = f'<path d="M{LEFT + scale * least:.1f} {y + BAR / 2}H{LEFT + scale * most:.1f}"/>'
    return [
        f'<text x="{LEFT - 8}" y="{y + 16}" text-anchor="end">{NAMES.get(name, name)}</text>',
        f'<rect class="{"accent" if ours else "bar"}" x="{LEFT}" y="{y}" width="{scale * share:.1f}" height="{BAR}" rx="2"/>',
        *([] if ours else [whisker]),
        f'<text x="{end + 6:.1f}" y="{y + 16}">{share:.0%}</text>',
    ]


if __name__ == "__main__":
    print(plot([json.loads(Path(path).read_text()) for path in sys.argv[1:]]))
