"""The imports of a whole build: each of these packages takes tenths of a second."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from tfprep.images import encode_jpeg

BUILD = """
import sys
from pathlib import Path
from tfprep import Recipe, build, codecs, sources
store = {"image": codecs.Jpeg(), "label": codecs.Scalar()}
summary = build(Recipe("photos", sources.Folder(), store), "out", "data", **OPTIONS)
assert summary.samples == 6 and Path("out/report.html").exists()
print([name for name in ("pandas", "tensorflow", "tqdm") if name in sys.modules])
"""


@pytest.mark.parametrize("options", ["{}", "{'options': __import__('tfprep').builder.BuildOptions(workers=0)}"])
def test_a_build_with_its_report_imports_no_pandas(tmp_path, options):
    pytest.importorskip("pandas")
    pixels = np.random.default_rng(0).integers(0, 256, (40, 30, 3), np.uint8)
    for number in range(6):
        path = tmp_path / "data" / f"class{number % 2}" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode_jpeg(pixels, 90 + number, "420"))
    command = [sys.executable, "-c", BUILD.replace("OPTIONS", options)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr
