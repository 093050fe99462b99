"""The map for newcomers in CONTRIBUTING.md names files that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_path_exists():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    paths = set(re.findall(r"`((?:tfprep|tests|scripts|\.ci|benchmarks|pipelines)/[^`\s:]*)", text))
    assert len(paths) > 30
    missing = [path for path in sorted(paths) if not re.search("NAME|FAMILY", path) and not (ROOT / path).exists()]
    assert not missing
