"""`benchmarks/gpu.py` on a machine without a GPU: small sizes, and a row for each part, whatever is installed."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PARTS = ["limit", "fit", "memory_report", "prefetch_to_device", "model_fields", "jax_loader", "torch_loader"]
"""All but those whose functions start processes of their own, and have tests of their own."""


def test_the_parts_run_on_a_cpu_or_say_why_not(tmp_path):
    given = ["--small", "--json", tmp_path / "gpu", "--only", ",".join(PARTS)]
    command = [sys.executable, ROOT / "benchmarks/gpu.py", *given]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    results = json.loads((tmp_path / "gpu").read_text())
    assert results == json.loads(done.stdout)
    assert set(results["parts"]) == {"data", *PARTS}
    assert results["parts"]["limit"]["skipped"] == "no GPU"
    assert results["parts"]["fit"]["policy"] == "float32"
    assert not [row for row in results["parts"].values() if "failed" in row]
    skipped = [row["skipped"] for name, row in results["parts"].items() if "skipped" in row and name != "limit"]
    assert all("No module named" in reason for reason in skipped), skipped
